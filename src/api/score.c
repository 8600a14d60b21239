/* Scoring through the public API: a text's own log-probabilities, the best candidates, perplexity. */
#include <math.h>

#include "api/context.h"

typedef struct scorer {
    sl_context *context;
    const int32_t *ids;
    uint64_t first; /* position of ids[0] */
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
    const size_t at = (size_t)(position - s->first);
    size_t n_vocab = s->context->engine->hp.n_vocab;
    sl_logprobs logprobs = sl_logprobs_of(&s->context->engine->kernels, logits, n_vocab);
    sl_score score = {
        .position = position,
        .id = s->ids[at],
        .has_next = at + 1 < s->n,
        .logits = logits,
        .best = s->best,
        .best_logprobs = s->best_logprobs,
        .n_best = s->n_best,
    };
    if (score.has_next) {
        score.next_logprob = sl_logprobs_get(&logprobs, s->ids[at + 1]);
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
    if (!options || !options->row || !perplexity)
        return sl_err_set(err, SL_USAGE, "score: a function for the rows and room for the perplexity are needed");
    scorer s = {.context = context, .ids = ids, .n = n, .options = options};
    s.first = sl_session_n_tokens(context->session);
    s.n_best = options->n_best < n_vocab ? options->n_best : n_vocab;
    sl_status status = sl_context_expect(context, 1 << SL_CONTEXT_STATE_FRESH, "score", err);
    if (status == SL_OK && n == 0)
        status = sl_err_set(err, SL_USAGE, "no tokens to read");
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
        status = sl_context_feed_watched(context, ids, n, &watch, err);
    sl_mem_free(budget, s.best);
    sl_mem_free(budget, s.best_logprobs);
    sl_sampler_destroy(s.sampler);
    context->state = status == SL_OK ? SL_CONTEXT_STATE_DONE : SL_CONTEXT_STATE_BROKEN;
    *perplexity = n > 1 ? exp(-s.sum / (double)(n - 1)) : NAN;
    return status;
}
