/* A context of the public API: plan, session, measuring. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/measure.h"
#include "api/plan.h"
#include "api/store.h"
#include "platform/os.h"

/* FRESH -feed-> FED -feed-> FED -generate-> DONE; FRESH -score-> DONE; any error: BROKEN, which can be destroyed only
 * (some layers may hold rows that others lack). */
typedef enum context_state { FRESH, FED, DONE, BROKEN } context_state;

struct sl_context {
    sl_engine *engine;
    context_state state;
    sl_context_options options; /* as planned, without kv_dir */
    sl_io_profile io;           /* of the disk that the cache is on */
    bool has_io, has_store;
    sl_session *session;
    sl_plan plan;
    sl_kv_layer *layers; /* [n_layers] of the geometry */
    sl_stats stats;
    uint64_t read_before_decode;
    double read_s_before_decode;
};

static sl_status create(sl_context *context, sl_err *err)
{
    sl_engine *engine = context->engine;
    sl_session_options session;
    sl_status status = sl_mem_new(&engine->budget, engine->hp.n_layers, sizeof *context->layers, "geometry",
                                  &context->layers, err);
    if (status == SL_OK)
        status = sl_plan_session(engine, &context->options, context->layers, &session, err);
    if (status == SL_OK)
        status = sl_plan_make(engine, &context->options, &session, &context->plan, err);
    if (status != SL_OK)
        return status;
    const sl_io_profile *io = sl_plan_io(engine, &context->options);
    context->has_io = io != NULL;
    if (io)
        context->io = *io;
    status = sl_session_create(&session, &context->session, err);
    if (status == SL_OK && context->options.store) {
        context->options.store->in_use = true;
        context->has_store = true;
        context->stats.stored_tokens = sl_session_n_tokens(context->session);
    }
    return status;
}

static sl_status expect_engine(const sl_engine *engine, bool is_for_plan, sl_err *err)
{
    if (engine->options.plan_only && !is_for_plan)
        return sl_err_set(err, SL_USAGE, "the engine was opened for planning only");
    if (!engine->weights)
        return sl_err_set(err, SL_USAGE, "the engine was opened for its vocabulary only");
    return SL_OK;
}

sl_status sl_context_create(sl_engine *engine, const sl_context_options *options, sl_context **out, sl_err *err)
{
    *out = NULL;
    sl_context *context = NULL;
    sl_status status = expect_engine(engine, false, err);
    if (status == SL_OK)
        status = sl_mem_new(&engine->budget, 1, sizeof *context, "context", &context, err);
    if (status != SL_OK)
        return status;
    context->engine = engine;
    context->options = *options;
    status = create(context, err);
    context->options.kv_dir = NULL; /* borrowed for the call */
    if (status != SL_OK) {
        sl_context_destroy(context);
        return status;
    }
    *out = context;
    return SL_OK;
}

void sl_context_destroy(sl_context *context)
{
    if (!context)
        return;
    sl_budget *budget = &context->engine->budget;
    sl_session_destroy(context->session);
    if (context->has_store)
        context->options.store->in_use = false;
    sl_mem_free(budget, context->layers);
    sl_mem_free(budget, context);
}

void sl_context_get_plan(const sl_context *context, sl_plan *out)
{
    *out = context->plan;
}

void sl_context_estimate(const sl_context *context, size_t rows, sl_estimate *out)
{
    const sl_context_options *o = &context->options;
    sl_plan_estimate(context->engine, o, &context->plan, context->has_io ? &context->io : NULL,
                     rows ? rows : o->max_drafts + 1, out);
}

sl_status sl_engine_plan(sl_engine *engine, const sl_context_options *options, size_t rows, sl_plan *plan,
                         sl_estimate *estimate, sl_err *err)
{
    memset(plan, 0, sizeof *plan);
    if (estimate)
        memset(estimate, 0, sizeof *estimate);
    sl_kv_layer *layers = NULL;
    sl_session_options session;
    sl_status status = expect_engine(engine, true, err);
    if (status == SL_OK && (rows < 1 || rows > 256))
        status = sl_err_set(err, SL_USAGE, "rows are %zu, expected 1 to 256", rows);
    if (status == SL_OK)
        status = sl_mem_new(&engine->budget, engine->hp.n_layers, sizeof *layers, "geometry", &layers, err);
    if (status == SL_OK)
        status = sl_plan_session(engine, options, layers, &session, err);
    if (status != SL_OK) {
        sl_mem_free(&engine->budget, layers);
        return status;
    }
    sl_status planned = sl_plan_make(engine, options, &session, plan, err);
    sl_mem_free(&engine->budget, layers);
    if (!estimate || (planned != SL_OK && planned != SL_REFUSED))
        return planned;
    /* Too little memory to measure in: the times stay unknown, the sizes do not. */
    status = sl_engine_measure(engine, session.kv.geom.type, NULL);
    if (status != SL_OK && status != SL_REFUSED)
        return sl_err_set(err, status, "kernels cannot be measured: out of memory");
    sl_plan_estimate(engine, options, plan, sl_plan_io(engine, options), rows, estimate);
    return planned;
}

/* ---------------------------------------------------------------------------------------------------------- prefill */

static sl_status expect_state(const sl_context *context, context_state a, context_state b, const char *what,
                              sl_err *err)
{
    static const char *const names[] = {"fresh", "fed", "finished", "broken by an earlier error"};
    if (context->state == a || context->state == b)
        return SL_OK;
    return sl_err_set(err, SL_USAGE, "%s: the context is %s", what, names[context->state]);
}

static sl_status check_ids(const sl_context *context, const int32_t *ids, size_t n, sl_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= context->engine->hp.n_vocab)
            return sl_err_set(err, SL_USAGE, "token %zu has id %" PRId32 ", expected 0 to %" PRIu32, i, ids[i],
                              context->engine->hp.n_vocab - 1);
    return SL_OK;
}

static sl_status feed(sl_context *context, const int32_t *ids, size_t n, const sl_feed_watch *watch, sl_err *err)
{
    sl_status status = check_ids(context, ids, n, err);
    if (status == SL_OK && n == 0)
        status = sl_err_set(err, SL_USAGE, "no tokens to read");
    if (status != SL_OK)
        return status;
    double start = sl_os_seconds();
    status = sl_session_feed(context->session, ids, n, watch, err);
    context->stats.prefill_s += sl_os_seconds() - start;
    if (status == SL_OK)
        context->stats.prompt_tokens += n;
    context->state = status == SL_OK ? FED : BROKEN;
    return status;
}

sl_status sl_context_feed(sl_context *context, const int32_t *ids, size_t n,
                          void (*progress)(void *arg, size_t done_tokens, size_t total_tokens), void *arg, sl_err *err)
{
    const sl_feed_watch watch = {.progress = progress, .arg = arg};
    sl_status status = expect_state(context, FRESH, FED, "feed", err);
    if (status == SL_OK)
        status = feed(context, ids, n, &watch, err);
    sl_kv_stats kv;
    sl_kv_get_stats(sl_session_kv(context->session), &kv);
    context->stats.n_windows = (size_t)kv.n_passes;
    context->read_before_decode = kv.bytes_read;
    context->read_s_before_decode = kv.read_s;
    return status;
}

sl_status sl_context_keep(sl_context *context, const int32_t *ids, size_t n,
                          void (*progress)(void *arg, size_t done_tokens, size_t total_tokens), void *arg, sl_err *err)
{
    const sl_feed_watch watch = {.progress = progress, .arg = arg};
    sl_status status = expect_state(context, FRESH, FRESH, "keep", err);
    if (status == SL_OK && !context->options.keep)
        status = sl_err_set(err, SL_USAGE, "keep: the context was not made for it");
    if (status == SL_OK)
        status = check_ids(context, ids, n, err);
    if (status != SL_OK)
        return status;
    double start = sl_os_seconds();
    status = sl_session_keep(context->session, ids, n, &watch, err);
    context->stats.prefill_s += sl_os_seconds() - start;
    context->stats.prompt_tokens += status == SL_OK ? n : 0;
    context->state = status == SL_OK ? DONE : BROKEN;
    context->stats.n_commits = (size_t)sl_durable_get(context->options.store->durable).n_commits;
    sl_kv_stats kv;
    sl_kv_get_stats(sl_session_kv(context->session), &kv);
    context->stats.n_windows = (size_t)kv.n_passes;
    return status;
}

/* ------------------------------------------------------------------------------------------------------- generation */

typedef struct emitter {
    const sl_context *context;
    const sl_draw_options *options;
    sl_utf8_stream stream;
    char text[1024]; /* whole characters of the token at hand */
    size_t n_text;
} emitter;

static void collect_text(void *arg, const char *text, size_t size)
{
    emitter *e = arg;
    size_t room = sizeof e->text - e->n_text;
    size = size < room ? size : room;
    memcpy(e->text + e->n_text, text, size);
    e->n_text += size;
}

static bool is_end(void *arg, int32_t id)
{
    const emitter *e = arg;
    return sl_tok_is_end(e->context->engine->tok, id);
}

/* A token's bytes in pieces that fit the buffer; the id goes out with the first. */
static bool emit_token(void *arg, int32_t id)
{
    emitter *e = arg;
    if (!e->options->token)
        return true;
    sl_tok_text bytes = sl_tok_bytes(e->context->engine->tok, id, false);
    enum { STEP = 256 }; /* an invalid byte becomes three: three times this and what is held fits e->text */
    size_t at = 0;
    do {
        size_t n = bytes.size - at < STEP ? bytes.size - at : STEP;
        e->n_text = 0;
        sl_utf8_stream_feed(&e->stream, bytes.data + at, n, collect_text, e);
        if (!e->options->token(e->options->arg, at == 0 ? id : -1, e->text, e->n_text))
            return false;
        at += n;
    } while (at < bytes.size);
    return true;
}

static const sl_finish_reason finish_reasons[] = {
    [SL_FINISH_STOP] = SL_FINISH_REASON_STOP,
    [SL_FINISH_LENGTH] = SL_FINISH_REASON_LENGTH,
    [SL_FINISH_CONTEXT] = SL_FINISH_REASON_CONTEXT,
    [SL_FINISH_CANCELLED] = SL_FINISH_REASON_CANCELLED,
};

sl_status sl_context_generate(sl_context *context, const sl_draw_options *options, sl_draw_result *out, sl_err *err)
{
    sl_status status = expect_state(context, FED, FED, "generate", err);
    if (status == SL_OK && (options->max_drafts > context->options.max_drafts ||
                            options->predict_tokens > context->options.predict_tokens))
        status = sl_err_set(err, SL_USAGE, "generate: %zu drafts, %zu tokens, planned were at most %zu and %zu",
                            options->max_drafts, options->predict_tokens, context->options.max_drafts,
                            context->options.predict_tokens);
    if (status != SL_OK)
        return status;
    emitter e = {.context = context, .options = options};
    const sl_generate_options generate = {
        .sampling = {options->temp, options->top_k, options->top_p, options->min_p, options->seed},
        .n_predict = options->predict_tokens,
        .n_context = context->plan.max_tokens,
        .max_drafts = options->max_drafts,
        .is_end = is_end,
        .token = emit_token,
        .arg = &e,
    };
    sl_generate_result result;
    double start = sl_os_seconds();
    status = sl_session_generate(context->session, &generate, &result, err);
    context->state = status == SL_OK ? DONE : BROKEN;
    context->stats.decode_s = sl_os_seconds() - start;
    if (status != SL_OK)
        return status;
    e.n_text = 0;
    sl_utf8_stream_end(&e.stream, collect_text, &e);
    if (e.n_text > 0 && options->token)
        (void)options->token(options->arg, -1, e.text, e.n_text);
    context->stats.n_passes = result.n_passes;
    context->stats.n_rows = result.n_rows;
    context->stats.n_drafted = result.n_drafted;
    context->stats.n_accepted = result.n_accepted;
    context->stats.n_tokens = result.n_tokens;
    *out = (sl_draw_result){finish_reasons[result.finish], result.n_tokens};
    return SL_OK;
}

/* ---------------------------------------------------------------------------------------------------------- scoring */

typedef struct scorer {
    sl_context *context;
    const int32_t *ids;
    size_t n, n_best;
    const sl_score_options *options;
    sl_sampler *sampler;
    int32_t *best;
    float *best_logprobs;
    double sum; /* of log-probabilities */
} scorer;

static void score_progress(void *arg, size_t done, size_t total)
{
    const scorer *s = arg;
    if (s->options->progress)
        s->options->progress(s->options->arg, done, total);
}

static sl_status score_row(void *arg, uint64_t position, const float *logits, sl_err *err)
{
    scorer *s = arg;
    size_t n_vocab = s->context->engine->hp.n_vocab;
    sl_logprobs logprobs = sl_logprobs_of(&s->context->engine->kernels, logits, n_vocab);
    sl_score score = {
        .position = position,
        .id = s->ids[position],
        .has_next = position + 1 < s->n,
        .logits = logits,
        .best = s->best,
        .best_logprobs = s->best_logprobs,
        .n_best = s->n_best,
    };
    if (score.has_next) {
        score.next_logprob = sl_logprobs_get(&logprobs, s->ids[position + 1]);
        s->sum += (double)score.next_logprob;
    }
    if (s->n_best > 0)
        sl_sampler_best(s->sampler, logits, s->n_best, s->best);
    for (size_t i = 0; i < s->n_best; i++)
        s->best_logprobs[i] = sl_logprobs_get(&logprobs, s->best[i]);
    if (!s->options->row(s->options->arg, &score))
        return sl_err_set(err, SL_CANCELLED, "cancelled");
    return SL_OK;
}

sl_status sl_context_score(sl_context *context, const int32_t *ids, size_t n, const sl_score_options *options,
                           double *perplexity, sl_err *err)
{
    size_t n_vocab = context->engine->hp.n_vocab;
    sl_budget *budget = &context->engine->budget;
    scorer s = {.context = context, .ids = ids, .n = n, .options = options};
    s.n_best = options->n_best < n_vocab ? options->n_best : n_vocab;
    sl_status status = expect_state(context, FRESH, FRESH, "score", err);
    if (status == SL_OK && s.n_best > context->options.score_best)
        status = sl_err_set(err, SL_USAGE, "score: %zu candidates, planned were at most %zu", s.n_best,
                            context->options.score_best);
    *perplexity = NAN;
    if (status != SL_OK)
        return status;
    const sl_sampling greedy = {.top_p = 1.0f};
    if (s.n_best > 0)
        status = sl_sampler_create(&greedy, n_vocab, &context->engine->kernels, budget, &s.sampler, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, s.n_best, sizeof *s.best, "best tokens", &s.best, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, s.n_best, sizeof *s.best_logprobs, "best tokens", &s.best_logprobs, err);
    const sl_feed_watch watch = {.progress = score_progress, .logits = score_row, .arg = &s};
    if (status == SL_OK)
        status = feed(context, ids, n, &watch, err);
    sl_mem_free(budget, s.best);
    sl_mem_free(budget, s.best_logprobs);
    sl_sampler_destroy(s.sampler);
    context->state = status == SL_OK ? DONE : BROKEN;
    *perplexity = n > 1 ? exp(-s.sum / (double)(n - 1)) : NAN;
    return status;
}

/* ---------------------------------------------------------------------------------------------------- measuring */

void sl_context_get_stats(const sl_context *context, sl_stats *out)
{
    sl_kv_stats kv;
    sl_kv_get_stats(sl_session_kv(context->session), &kv);
    *out = context->stats;
    out->wait_s = kv.wait_s;
    out->read_s = kv.read_s;
    out->write_s = kv.write_s;
    out->compute_s = out->prefill_s + out->decode_s - kv.wait_s - kv.write_s;
    /* the last layer has what all have */
    out->kv_bytes = sl_kv_tokens(sl_session_kv(context->session), context->engine->hp.n_layers - 1) *
                    context->plan.kv_token_bytes;
    /* tails too, where nothing went to a file */
    out->resident_bytes = kv.bytes_written > 0 ? kv.bytes_resident : out->kv_bytes;
    out->bytes_read = kv.bytes_read;
    out->bytes_written = kv.bytes_written;
    out->bytes_visited = kv.bytes_visited;
    out->decode_bytes_read = kv.bytes_read - context->read_before_decode;
    out->decode_read_s = kv.read_s - context->read_s_before_decode;
    out->peak_rss_bytes = sl_os_peak_rss_bytes();
    out->page_cache_growth_bytes = kv.page_cache_bytes;
    out->io_mode = kv.io_mode;
    out->io_engine = kv.io_engine ? kv.io_engine : "none";
    out->read_bytes = kv.read_bytes;
    out->in_flight_bytes = kv.in_flight_bytes;
}
