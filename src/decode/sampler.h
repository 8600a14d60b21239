/* From logits to a token: a pure function of (logits, history, options); the token's position is the history's length.
 *
 * Owns: scratch for one vocabulary, the counts of the penalties. Refuses: options out of range, a bias for a token that
 * does not exist, a vocabulary banned as a whole. Thread rule: one thread at a time. No allocation after creation.
 *
 * In this order, every operation rounded to binary32:
 *
 * 1. Penalties, for a token that stands c > 0 times among the last penalty_last_n of the history (the prompt counts):
 *      x = x > 0 ? x / repeat : x * repeat      Keskar et al., "CTRL", 2019, section 4.1, where x is divided whatever
 *                                               its sign; a negative one would gain by that
 *      x = x - (c * frequency + presence)       as the field has them from OpenAI's API reference ("frequency_penalty",
 *                                               "presence_penalty")
 * 2. x = x + value, for each bias of the token in the order of the list; -infinity bans it.
 * 3. Temperature 0 takes the largest logit, the lowest id among equals. Else: candidates ordered by logit, then by
 *    lower id; t = logit / temp; p = exp2((t - t of the first) * log2 e); top-k keeps the first k; top-p keeps the
 *    shortest prefix whose sum >= top_p * sum of all kept; min-p keeps p >= min_p; sums run in candidate order. u is
 *    (word >> 8) * 2^-24 of the first word of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
 *    3", SC 2011) with key = seed, counter = position; the first candidate whose running sum > u * total is drawn. */
#ifndef SL_SAMPLER_H
#define SL_SAMPLER_H

#include "base/mem.h"
#include "kernel/kernel.h"

typedef struct sl_sampling {
    float temp;     /* 0: greedy; else 1e-6 to 1000 */
    uint32_t top_k; /* 0: all */
    float top_p;    /* 1: all */
    float min_p;    /* 0: all */
    uint64_t seed;
    int64_t penalty_last_n;                    /* 0: no penalties; -1: the whole history */
    float repeat_penalty;                      /* 0.01 to 100; 1 or 0: none */
    float presence_penalty, frequency_penalty; /* -1000 to 1000; 0: none */
    const int32_t *bias_ids;                   /* [n_bias] borrowed as long as the sampler lives, as values */
    const float *bias_values;                  /* -1e6 to 1e6, or -infinity */
    size_t n_bias;
} sl_sampling;

typedef struct sl_sampler sl_sampler;

/* SL_USAGE names the value that is out of range. */
sl_status sl_sampling_check(const sl_sampling *sampling, size_t n_vocab, sl_err *err) SL_CHECK;
uint64_t sl_sampler_bytes(size_t n_vocab); /* for the plan */
sl_status sl_sampler_create(const sl_sampling *sampling, size_t n_vocab, const sl_kernels *kernels, sl_budget *budget,
                            sl_sampler **out, sl_err *err) SL_CHECK;
void sl_sampler_destroy(sl_sampler *sampler);

/* logits [n_vocab], finite; they stay as they are. history [n]: all tokens before the one drawn, ids of the vocabulary.
 *
 * A sampler follows one text, as sl_recent_count says. So a drafter may draw what could follow, and the burst then what
 * does. */
int32_t sl_sampler_draw(sl_sampler *sampler, const float *logits, const int32_t *history, size_t n);

/* Log-probabilities: (x - max) - ln(sum of exp2((x - max) * log2 e)), in binary64 over a binary32 sum, rounded once. */
typedef struct sl_logprobs {
    const float *logits;
    double max, log_sum;
} sl_logprobs;
sl_logprobs sl_logprobs_of(const sl_kernels *kernels, const float *logits, size_t n_vocab);
float sl_logprobs_get(const sl_logprobs *logprobs, int32_t id);
/* Ids of the n best in the order of candidates, for few: it sorts by insertion. n <= n_vocab. */
void sl_logprobs_best(const sl_logprobs *logprobs, size_t n_vocab, size_t n, int32_t *out);

/* Ids of the n best logits in the order of candidates; n <= n_vocab. */
void sl_sampler_best(sl_sampler *sampler, const float *logits, size_t n, int32_t *out);

#endif
