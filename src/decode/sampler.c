#include "decode/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/fpenv.h"
#include "decode/recent.h"
#include "kernel/math64.h"

struct sl_sampler {
    sl_sampling sampling;
    const sl_kernels *kernels;
    sl_budget *budget;
    size_t n_vocab;
    uint64_t *order, *spare; /* [n_vocab] rank key in the upper half, id in the lower */
    float *p;                /* [n_vocab] */
    float *changed;          /* [n_vocab] logits after penalties and biases; NULL: there are none */
    sl_recent *recent;       /* NULL: no penalties */
    float repeat;
};

static sl_status check_changes(const sl_sampling *s, size_t n_vocab, sl_err *err)
{
    if (s->penalty_last_n < -1)
        return sl_err_set(err, SL_USAGE, "penalties over %" PRId64 " tokens, expected -1 (all) or more",
                          s->penalty_last_n);
    if (!(s->repeat_penalty == 0.0f || (s->repeat_penalty >= 0.01f && s->repeat_penalty <= 100.0f)))
        return sl_err_set(err, SL_USAGE, "repetition penalty is %g, expected 0.01 to 100", (double)s->repeat_penalty);
    const float added[2] = {s->presence_penalty, s->frequency_penalty};
    for (int i = 0; i < 2; i++)
        if (!(added[i] >= -1000.0f && added[i] <= 1000.0f))
            return sl_err_set(err, SL_USAGE, "%s penalty is %g, expected -1000 to 1000", i ? "frequency" : "presence",
                              (double)added[i]);
    for (size_t i = 0; i < s->n_bias; i++) {
        const float value = s->bias_values[i];
        if (s->bias_ids[i] < 0 || (size_t)s->bias_ids[i] >= n_vocab)
            return sl_err_set(err, SL_USAGE, "logit bias of token %" PRId32 ", expected 0 to %zu", s->bias_ids[i],
                              n_vocab - 1);
        if (!(value == -INFINITY || (value >= -1e6f && value <= 1e6f)))
            return sl_err_set(err, SL_USAGE, "logit bias of token %" PRId32 " is %g, expected -1e6 to 1e6 or -inf",
                              s->bias_ids[i], (double)value);
    }
    return SL_OK;
}

sl_status sl_sampling_check(const sl_sampling *s, size_t n_vocab, sl_err *err)
{
    /* Below, logit / temp could overflow. */
    if (!(s->temp == 0.0f || (s->temp >= 1e-6f && s->temp <= 1000.0f)))
        return sl_err_set(err, SL_USAGE, "temperature is %g, expected 0 or 0.000001 to 1000", (double)s->temp);
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return sl_err_set(err, SL_USAGE, "top-p is %g, expected more than 0, at most 1", (double)s->top_p);
    if (!(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return sl_err_set(err, SL_USAGE, "min-p is %g, expected 0 to 1", (double)s->min_p);
    return check_changes(s, n_vocab, err);
}

uint64_t sl_sampler_bytes(size_t n_vocab)
{
    return n_vocab * (2 * sizeof(uint64_t) + 2 * sizeof(float)) + sl_recent_bytes(n_vocab) + 4096;
}

static sl_status make_changes(sl_sampler *s, sl_err *err)
{
    const sl_sampling *o = &s->sampling;
    s->repeat = o->repeat_penalty > 0.0f ? o->repeat_penalty : 1.0f;
    const bool any = s->repeat != 1.0f || o->presence_penalty != 0.0f || o->frequency_penalty != 0.0f;
    const bool penalties = any && o->penalty_last_n != 0;
    if (!penalties && o->n_bias == 0)
        return SL_OK;
    sl_status status = sl_mem_new(s->budget, s->n_vocab, sizeof *s->changed, "sampler", &s->changed, err);
    const size_t last_n = o->penalty_last_n < 0 ? SIZE_MAX : (size_t)o->penalty_last_n;
    if (status == SL_OK && penalties)
        status = sl_recent_create(last_n, s->n_vocab, s->budget, &s->recent, err);
    if (status != SL_OK)
        return status;
    for (size_t i = 0; i < o->n_bias; i++)
        s->changed[o->bias_ids[i]] += o->bias_values[i];
    for (size_t id = 0; id < s->n_vocab; id++)
        if (s->changed[id] != -INFINITY)
            return SL_OK;
    return sl_err_set(err, SL_USAGE, "the logit biases ban every token");
}

sl_status sl_sampler_create(const sl_sampling *sampling, size_t n_vocab, const sl_kernels *kernels, sl_budget *budget,
                            sl_sampler **out, sl_err *err)
{
    *out = NULL;
    sl_status status = sl_sampling_check(sampling, n_vocab, err);
    sl_sampler *s = NULL;
    if (status == SL_OK)
        status = sl_mem_new(budget, 1, sizeof *s, "sampler", &s, err);
    if (status != SL_OK)
        return status;
    s->sampling = *sampling;
    s->kernels = kernels;
    s->budget = budget;
    s->n_vocab = n_vocab;
    status = sl_mem_new(budget, n_vocab, sizeof *s->order, "sampler", &s->order, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n_vocab, sizeof *s->spare, "sampler", &s->spare, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n_vocab, sizeof *s->p, "sampler", &s->p, err);
    if (status == SL_OK)
        status = make_changes(s, err);
    if (status != SL_OK) {
        sl_sampler_destroy(s);
        return status;
    }
    *out = s;
    return SL_OK;
}

void sl_sampler_destroy(sl_sampler *s)
{
    if (!s)
        return;
    sl_mem_free(s->budget, s->order);
    sl_mem_free(s->budget, s->spare);
    sl_mem_free(s->budget, s->p);
    sl_mem_free(s->budget, s->changed);
    sl_recent_destroy(s->recent);
    sl_mem_free(s->budget, s);
}

/* The logits after penalties and biases. */
static const float *change_logits(sl_sampler *s, const float *logits, const int32_t *history, size_t n)
{
    const sl_sampling *o = &s->sampling;
    if (!s->changed)
        return logits;
    memcpy(s->changed, logits, s->n_vocab * sizeof *logits);
    const uint32_t *counts = s->recent ? sl_recent_count(s->recent, history, n) : NULL;
    for (size_t id = 0; counts && id < s->n_vocab; id++) {
        if (counts[id] == 0)
            continue;
        float x = logits[id], off = (float)counts[id] * o->frequency_penalty;
        x = x > 0.0f ? x / s->repeat : x * s->repeat;
        off = off + o->presence_penalty;
        s->changed[id] = x - off;
    }
    for (size_t i = 0; i < o->n_bias; i++)
        s->changed[o->bias_ids[i]] += o->bias_values[i];
    return s->changed;
}

/* Rises as the logit falls; -0 counts as +0. */
static uint32_t rank_key(float logit)
{
    uint32_t bits;
    float plain = logit + 0.0f;
    memcpy(&bits, &plain, sizeof bits);
    uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~rising;
}

/* Radix sort, least significant byte of the rank first; stable, so equal ranks stay in order of id. */
static void order_candidates(sl_sampler *s, const float *logits)
{
    for (size_t i = 0; i < s->n_vocab; i++)
        s->order[i] = (uint64_t)rank_key(logits[i]) << 32 | i;
    for (unsigned shift = 32; shift < 64; shift += 8) {
        size_t starts[257] = {0};
        for (size_t i = 0; i < s->n_vocab; i++)
            starts[(s->order[i] >> shift & 255) + 1]++;
        for (size_t i = 0; i < 256; i++)
            starts[i + 1] += starts[i];
        for (size_t i = 0; i < s->n_vocab; i++)
            s->spare[starts[s->order[i] >> shift & 255]++] = s->order[i];
        uint64_t *swap = s->order;
        s->order = s->spare;
        s->spare = swap;
    }
}

static size_t candidate(const sl_sampler *s, size_t i)
{
    return (size_t)(s->order[i] & 0xffffffffu);
}

void sl_sampler_best(sl_sampler *s, const float *logits, size_t n, int32_t *out)
{
    sl_fpenv saved = sl_fpenv_enter();
    order_candidates(s, logits);
    sl_fpenv_leave(saved);
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)candidate(s, i);
}

/* Philox4x32 with ten rounds; the first of its four words. */
static uint32_t philox_word(uint64_t key, uint64_t counter)
{
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof c);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c[0];
}

/* How many candidates stay; their weights in s->p. */
static size_t keep_candidates(sl_sampler *s, const float *logits)
{
    const sl_sampling *o = &s->sampling;
    size_t n = o->top_k > 0 && o->top_k < s->n_vocab ? o->top_k : s->n_vocab;
    float first = logits[candidate(s, 0)] / o->temp;
    for (size_t i = 0; i < n; i++)
        s->p[i] = (logits[candidate(s, i)] / o->temp - first) * SL_LOG2E;
    s->kernels->exp2(s->p, s->p, n);
    if (o->top_p < 1.0f) {
        float all = 0.0f, sum = 0.0f;
        for (size_t i = 0; i < n; i++)
            all += s->p[i];
        size_t kept = 0;
        while (kept < n && (kept == 0 || sum < o->top_p * all))
            sum += s->p[kept++];
        n = kept;
    }
    size_t kept = 1;
    while (kept < n && s->p[kept] >= o->min_p)
        kept++;
    return o->min_p > 0.0f ? kept : n;
}

static int32_t draw(sl_sampler *s, const float *logits, uint64_t position)
{
    if (s->sampling.temp == 0.0f)
        return (int32_t)s->kernels->argmax(logits, s->n_vocab);
    order_candidates(s, logits);
    size_t n = keep_candidates(s, logits);
    float total = 0.0f, sum = 0.0f;
    for (size_t i = 0; i < n; i++)
        total += s->p[i];
    float u = (float)(philox_word(s->sampling.seed, position) >> 8) * 0x1p-24f;
    for (size_t i = 0; i < n; i++) {
        sum += s->p[i];
        if (sum > u * total)
            return (int32_t)candidate(s, i);
    }
    return (int32_t)candidate(s, n - 1);
}

int32_t sl_sampler_draw(sl_sampler *s, const float *logits, const int32_t *history, size_t n)
{
    sl_fpenv saved = sl_fpenv_enter();
    int32_t id = draw(s, change_logits(s, logits, history, n), n);
    sl_fpenv_leave(saved);
    return id;
}

sl_logprobs sl_logprobs_of(const sl_kernels *kernels, const float *logits, size_t n_vocab)
{
    sl_fpenv saved = sl_fpenv_enter();
    float max = logits[kernels->argmax(logits, n_vocab)];
    double log_sum = sl_log64((double)kernels->sumexp(logits, n_vocab, max));
    sl_fpenv_leave(saved);
    return (sl_logprobs){logits, (double)max, log_sum};
}

float sl_logprobs_get(const sl_logprobs *logprobs, int32_t id)
{
    sl_fpenv saved = sl_fpenv_enter();
    float logprob = (float)(((double)logprobs->logits[id] - logprobs->max) - logprobs->log_sum);
    sl_fpenv_leave(saved);
    return logprob;
}

void sl_logprobs_best(const sl_logprobs *logprobs, size_t n_vocab, size_t n, int32_t *out)
{
    const float *x = logprobs->logits;
    size_t n_out = 0;
    for (size_t id = 0; n > 0 && id < n_vocab; id++) {
        if (n_out == n && !(x[id] > x[out[n - 1]]))
            continue;
        size_t at = n_out < n ? n_out++ : n - 1;
        for (; at > 0 && x[id] > x[out[at - 1]]; at--)
            out[at] = out[at - 1];
        out[at] = (int32_t)id;
    }
}
