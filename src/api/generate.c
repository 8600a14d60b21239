/* Generating through the public API: text out of tokens, stop strings, log-probabilities. */
#include <string.h>

#include "api/context.h"
#include "decode/stops.h"
#include "platform/os.h"

/* From drawn tokens to what the caller gets: whole characters, none of which may still belong to a stop string. */
typedef struct emitter {
    const sl_context *context;
    const sl_draw_options *options;
    sl_utf8_stream stream;
    sl_stops *stops;
    char text[SL_STOPS_BYTES + 1024]; /* what is held back, and the whole characters of the token at hand */
    size_t n_text;
    int32_t before; /* the token in front of the next one; -1: none */
    bool is_stopped; /* by a stop string: the text before it is in `text`, the rest is gone */
    bool is_cancelled;
    int32_t best[SL_LOGPROBS_MAX];
    float best_logprobs[SL_LOGPROBS_MAX];
} emitter;

static void keep_byte(emitter *e, char byte)
{
    if (e->n_text < sizeof e->text)
        e->text[e->n_text++] = byte;
}

static void collect_text(void *arg, const char *text, size_t size)
{
    emitter *e = arg;
    for (size_t i = 0; i < size && !e->is_stopped; i++) {
        keep_byte(e, text[i]);
        const size_t stop_size = sl_stops_take(e->stops, text[i]);
        e->is_stopped = stop_size > 0;
        e->n_text -= stop_size;
    }
}

/* The beginning of a character that never became whole: no stop string is looked for in what stands for it. */
static void collect_rest(void *arg, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        keep_byte(arg, text[i]);
}

/* All of the text but its last `held` bytes. */
static bool hand_out(emitter *e, int32_t id, size_t held)
{
    const size_t n = e->n_text - held;
    const sl_draw_options *o = e->options;
    if (o->token && (id >= 0 || n > 0) && !o->token(o->arg, id, e->text, n))
        e->is_cancelled = true;
    memmove(e->text, e->text + n, held);
    e->n_text = held;
    return !e->is_cancelled && !e->is_stopped;
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
    const sl_tok_text bytes = sl_tok_bytes_behind(e->context->engine->tok, e->before, id, false);
    e->before = id;
    enum { STEP = 256 }; /* an invalid byte becomes three: three times this and what is held fits e->text */
    size_t at = 0;
    do {
        const size_t n = bytes.size - at < STEP ? bytes.size - at : STEP;
        sl_utf8_stream_feed(&e->stream, bytes.data + at, n, collect_text, e);
        if (!hand_out(e, at == 0 ? id : -1, e->is_stopped ? 0 : sl_stops_held(e->stops)))
            return false;
        at += n;
    } while (at < bytes.size);
    return true;
}

static void emit_logprobs(void *arg, int32_t id, const float *logits)
{
    emitter *e = arg;
    const sl_draw_options *o = e->options;
    const sl_engine *engine = e->context->engine;
    if (!o->logprobs || sl_tok_is_end(engine->tok, id))
        return;
    const sl_logprobs logprobs = sl_logprobs_of(&engine->kernels, logits, engine->hp.n_vocab);
    const size_t n = o->n_logprobs < engine->hp.n_vocab ? o->n_logprobs : engine->hp.n_vocab;
    sl_logprobs_best(&logprobs, engine->hp.n_vocab, n, e->best);
    for (size_t i = 0; i < n; i++)
        e->best_logprobs[i] = sl_logprobs_get(&logprobs, e->best[i]);
    const sl_token_logprobs out = {id, sl_logprobs_get(&logprobs, id), e->best, e->best_logprobs, n};
    o->logprobs(o->arg, &out);
}

static const sl_finish_reason finish_reasons[] = {
    [SL_FINISH_STOP] = SL_FINISH_REASON_STOP,
    [SL_FINISH_LENGTH] = SL_FINISH_REASON_LENGTH,
    [SL_FINISH_CONTEXT] = SL_FINISH_REASON_CONTEXT,
    [SL_FINISH_CANCELLED] = SL_FINISH_REASON_CANCELLED,
};

static void count_drafts(sl_context *context, const sl_draft_counts *counts)
{
    _Static_assert((int)SL_STATS_DRAFTERS == (int)SL_MAX_DRAFTERS && (int)SL_STATS_DEPTHS == (int)SL_DRAFT_DEPTHS,
                   "what is counted is what is told");
    sl_stats *stats = &context->stats;
    const sl_drafter *drafters = sl_session_drafters(context->session, &stats->n_drafters);
    for (size_t i = 0; i < stats->n_drafters; i++) {
        sl_drafter_stats *out = &stats->drafters[i];
        out->name = drafters[i].name;
        out->n_asked += counts->n_asked[i];
        out->seconds += counts->drafter_s[i];
        for (size_t depth = 0; depth < SL_STATS_DEPTHS; depth++) {
            out->n_verified[depth] += counts->proposed[i][depth];
            out->n_accepted[depth] += counts->accepted[i][depth];
        }
    }
    stats->draft_s += counts->draft_s;
    stats->pass_s += counts->pass_s;
    stats->accept_s += counts->accept_s;
    stats->n_tree_passes += counts->n_tree_passes;
}

/* An answer's part of what is counted: several answers add up. */
static void count_answer(sl_context *context, const sl_generate_result *result, const sl_kv_stats *before, double s)
{
    sl_kv_stats after;
    sl_kv_get_stats(sl_session_kv(context->session), &after);
    context->stats.decode_s += s;
    context->stats.decode_bytes_read += after.bytes_read - before->bytes_read;
    context->stats.decode_read_s += after.read_s - before->read_s;
    context->stats.n_passes += result->n_passes;
    context->stats.n_rows += result->n_rows;
    context->stats.n_drafted += result->n_drafted;
    context->stats.n_accepted += result->n_accepted;
    context->stats.n_tokens += result->n_tokens;
    count_drafts(context, &result->draft);
}

static sl_sampling sampling_of(const sl_draw_options *o)
{
    return (sl_sampling){
        .temp = o->temp,
        .top_k = o->top_k,
        .top_p = o->top_p,
        .min_p = o->min_p,
        .seed = o->seed,
        .penalty_last_n = o->penalty_last_n,
        .repeat_penalty = o->repeat_penalty,
        .presence_penalty = o->presence_penalty,
        .frequency_penalty = o->frequency_penalty,
        .bias_ids = o->bias_ids,
        .bias_values = o->bias_values,
        .n_bias = o->n_bias,
    };
}

static bool may_branch(const sl_context *context, const sl_draw_options *o)
{
    const bool is_wanted = o->draft_shape == SL_DRAFT_SHAPE_TREE ||
                           (o->draft_shape == SL_DRAFT_SHAPE_AUTO && o->draft_auto);
    return is_wanted && !context->options.no_trees && context->options.max_drafts > 0;
}

static sl_status generate(emitter *e, sl_context *context, sl_generate_result *result, sl_err *err)
{
    const sl_draw_options *options = e->options;
    const size_t most = context->options.max_drafts;
    const sl_generate_options generate = {
        .sampling = sampling_of(options),
        .n_predict = options->predict_tokens,
        .n_context = context->plan.max_tokens,
        .max_drafts = options->max_drafts < most ? options->max_drafts : most,
        .draft_auto = options->draft_auto,
        .may_branch = may_branch(context, options),
        .is_end = is_end,
        .drawn = options->logprobs ? emit_logprobs : NULL,
        .token = emit_token,
        .arg = e,
    };
    sl_kv_stats before;
    sl_kv_get_stats(sl_session_kv(context->session), &before);
    const double start = sl_os_seconds();
    sl_status status = sl_session_generate(context->session, &generate, result, err);
    count_answer(context, result, &before, sl_os_seconds() - start);
    if (status != SL_OK || e->is_stopped)
        return status;
    sl_utf8_stream_end(&e->stream, collect_rest, e);
    (void)hand_out(e, -1, 0);
    return SL_OK;
}

sl_status sl_engine_check_draw(const sl_engine *engine, const sl_draw_options *options, sl_err *err)
{
    if (options->n_logprobs > SL_LOGPROBS_MAX)
        return sl_err_set(err, SL_USAGE, "log-probabilities of the %zu best, expected at most %d", options->n_logprobs,
                          SL_LOGPROBS_MAX);
    const sl_sampling sampling = sampling_of(options);
    sl_status status = sl_sampling_check(&sampling, sl_tok_n_tokens(engine->tok), err);
    return status == SL_OK ? sl_stops_check(options->stops, options->n_stops, err) : status;
}

static sl_status check_options(const sl_context *context, const sl_draw_options *options, sl_err *err)
{
    if ((options->max_drafts > context->options.max_drafts && !options->draft_auto) ||
        options->predict_tokens > context->options.predict_tokens)
        return sl_err_set(err, SL_USAGE, "generate: %zu drafts, %zu tokens, planned were at most %zu and %zu",
                          options->max_drafts, options->predict_tokens, context->options.max_drafts,
                          context->options.predict_tokens);
    if ((unsigned)options->draft_shape > SL_DRAFT_SHAPE_TREE)
        return sl_err_set(err, SL_USAGE, "draft shape is %d, expected SL_DRAFT_SHAPE_AUTO to _TREE",
                          (int)options->draft_shape);
    if (options->draft_shape == SL_DRAFT_SHAPE_TREE && context->options.no_trees)
        return sl_err_set(err, SL_USAGE, "generate: drafts shall branch, and the context was planned without trees");
    return sl_engine_check_draw(context->engine, options, err);
}

sl_status sl_context_generate(sl_context *context, const sl_draw_options *options, sl_draw_result *out, sl_err *err)
{
    const size_t n = sl_context_n_tokens(context);
    emitter e = {.context = context, .options = options, .before = n > 0 ? sl_context_ids(context)[n - 1] : -1};
    sl_status status = sl_context_expect(context, 1 << SL_CONTEXT_STATE_FED, "generate", err);
    if (status == SL_OK)
        status = check_options(context, options, err);
    if (status == SL_OK)
        status = sl_stops_create(options->stops, options->n_stops, &context->engine->budget, &e.stops, err);
    if (status != SL_OK)
        return status;
    sl_generate_result result;
    status = generate(&e, context, &result, err);
    sl_stops_destroy(e.stops);
    context->state = sl_context_state_after(context, status);
    if (status != SL_OK)
        return status;
    if (!sl_context_talks(context))
        context->state = SL_CONTEXT_STATE_DONE;
    const bool by_text = e.is_stopped && !e.is_cancelled;
    *out = (sl_draw_result){by_text ? SL_FINISH_REASON_STOP : finish_reasons[result.finish], result.n_tokens};
    return SL_OK;
}
