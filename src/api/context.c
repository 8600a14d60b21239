/* A context of the public API: plan, session, measuring. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/plan.h"
#include "platform/os.h"

/* FRESH -feed-> FED -feed-> FED -generate-> DONE; FRESH -score-> DONE; any error: BROKEN, which can be destroyed only
 * (some layers may hold rows that others lack). */
typedef enum context_state { FRESH, FED, DONE, BROKEN } context_state;

struct sl_context {
    sl_engine *engine;
    context_state state;
    size_t max_drafts, score_best, predict_tokens; /* as planned */
    sl_session *session;
    sl_plan plan;
    sl_kv_layer *layers; /* [n_layers] of the geometry */
    sl_stats stats;
    uint64_t read_before_decode;
    double read_s_before_decode;
};

static sl_status check_options(const sl_engine *engine, const sl_context_options *o, size_t *n_context, sl_err *err)
{
    enum { MAX_WINDOW = 1 << 20 };
    if (o->window_tokens % SL_TILE != 0 || o->window_tokens > MAX_WINDOW)
        return sl_err_set(err, SL_USAGE, "window is %zu tokens, expected a multiple of %d up to %d", o->window_tokens,
                          SL_TILE, MAX_WINDOW);
    if (o->cache != SL_CACHE_Q8_0 && o->cache != SL_CACHE_F16)
        return sl_err_set(err, SL_USAGE, "cache type is %d, expected SL_CACHE_Q8_0 or SL_CACHE_F16", (int)o->cache);
    if ((unsigned)o->io > SL_IO_BUFFERED)
        return sl_err_set(err, SL_USAGE, "io is %d, expected SL_IO_AUTO to SL_IO_BUFFERED", (int)o->io);
    if (o->max_drafts > 255)
        return sl_err_set(err, SL_USAGE, "drafts are %zu, expected 0 to 255", o->max_drafts);
    if (o->rope_scale != 0.0 && !(o->rope_scale >= 1.0 && o->rope_scale <= 1e6))
        return sl_err_set(err, SL_USAGE, "rope scale is %g, expected 1 to 1000000", o->rope_scale);
    double scale = o->rope_scale != 0.0 ? o->rope_scale / engine->hp.rope_factor : 1.0;
    double trained = (double)engine->hp.n_ctx_train * (scale > 1.0 ? scale : 1.0);
    size_t all = o->prompt_tokens + o->predict_tokens;
    if (all < o->prompt_tokens || all > (size_t)1 << 40)
        return sl_err_set(err, SL_USAGE, "%zu prompt tokens and %zu more are beyond what can be counted",
                          o->prompt_tokens, o->predict_tokens);
    *n_context = o->force_context || (double)all <= trained ? all : (size_t)trained;
    if (o->prompt_tokens > *n_context)
        return sl_err_set(err, SL_REFUSED,
                          "the prompt has %zu tokens, the model was trained for %zu (--rope-scale stretches positions, "
                          "--force-context goes on regardless)",
                          o->prompt_tokens, *n_context);
    return SL_OK;
}

static const char *kv_dir(const sl_context_options *options)
{
    if (options->kv_dir)
        return options->kv_dir;
    const char *from_env = getenv("SLUICE_KV_DIR");
    return from_env && *from_env ? from_env : "/var/tmp";
}

static sl_session_options session_options(const sl_context *context, const sl_context_options *o, size_t n_context)
{
    sl_engine *engine = context->engine;
    return (sl_session_options){
        .weights = engine->weights,
        .kernels = &engine->kernels,
        .pool = engine->pool,
        .budget = &engine->budget,
        .kv = {.geom = {o->cache == SL_CACHE_F16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, engine->hp.n_layers,
                        context->layers},
               .dir = kv_dir(o),
               .allow_ram_dir = o->allow_ram_dir,
               .force_buffered = o->io == SL_IO_BUFFERED,
               .max_tokens = n_context,
               .read_rate = o->read_rate,
               .io_engine = o->io == SL_IO_URING  ? SL_IO_ENGINE_URING
                            : o->io == SL_IO_POOL ? SL_IO_ENGINE_POOL
                                                  : SL_IO_ENGINE_AUTO,
               .budget = &engine->budget,
               .log = engine->log},
        .max_tokens = n_context,
        .max_drafts = o->max_drafts,
        .rope_factor = o->rope_scale,
        .will_decode = o->predict_tokens > 0,
        .ngram = o->max_drafts > 0,
        .stop = o->stop,
        .arg = o->arg,
    };
}

static sl_status create(sl_context *context, const sl_context_options *options, sl_err *err)
{
    sl_engine *engine = context->engine;
    size_t n_context = 0;
    sl_status status = check_options(engine, options, &n_context, err);
    if (status == SL_OK)
        status = sl_mem_new(&engine->budget, engine->hp.n_layers, sizeof *context->layers, "geometry",
                            &context->layers, err);
    if (status != SL_OK)
        return status;
    for (uint32_t i = 0; i < engine->hp.n_layers; i++)
        context->layers[i] = (sl_kv_layer){engine->hp.n_kv_heads, engine->hp.head_dim};
    sl_session_options session = session_options(context, options, n_context);
    status = sl_geom_check(&session.kv.geom, err);
    if (status == SL_OK)
        status = sl_plan_make(engine, options, &session, &context->plan, err);
    if (status == SL_OK)
        status = sl_session_create(&session, &context->session, err);
    return status;
}

sl_status sl_context_create(sl_engine *engine, const sl_context_options *options, sl_context **out, sl_err *err)
{
    *out = NULL;
    if (!engine->weights)
        return sl_err_set(err, SL_USAGE, "the engine was opened for its vocabulary only");
    sl_context *context = NULL;
    sl_status status = sl_mem_new(&engine->budget, 1, sizeof *context, "context", &context, err);
    if (status != SL_OK)
        return status;
    context->engine = engine;
    context->max_drafts = options->max_drafts;
    context->score_best = options->score_best;
    context->predict_tokens = options->predict_tokens;
    status = create(context, options, err);
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
    sl_mem_free(budget, context->layers);
    sl_mem_free(budget, context);
}

void sl_context_get_plan(const sl_context *context, sl_plan *out)
{
    *out = context->plan;
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
    if (status == SL_OK && (options->max_drafts > context->max_drafts ||
                            options->predict_tokens > context->predict_tokens))
        status = sl_err_set(err, SL_USAGE, "generate: %zu drafts, %zu tokens, planned were at most %zu and %zu",
                            options->max_drafts, options->predict_tokens, context->max_drafts,
                            context->predict_tokens);
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
    if (status == SL_OK && s.n_best > context->score_best)
        status = sl_err_set(err, SL_USAGE, "score: %zu candidates, planned were at most %zu", s.n_best,
                            context->score_best);
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
    out->resident_bytes = kv.bytes_resident;
    out->bytes_read = kv.bytes_read;
    out->bytes_written = kv.bytes_written;
    out->bytes_visited = kv.bytes_visited;
    out->decode_bytes_read = kv.bytes_read - context->read_before_decode;
    out->decode_read_s = kv.read_s - context->read_s_before_decode;
    out->peak_rss_bytes = sl_os_peak_rss_bytes();
    out->page_cache_growth_bytes = kv.page_cache_bytes;
    out->io_mode = kv.io_mode;
    out->io_engine = kv.io_engine ? kv.io_engine : "none";
}
