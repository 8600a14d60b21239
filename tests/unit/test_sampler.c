/* The sampler against hand values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "decode/sampler.h"

enum { N = 4096 };

static sl_budget budget;
static sl_kernels kernels;
static const int32_t history[N]; /* all zeros */

static sl_sampler *make(sl_sampling sampling, size_t n_vocab)
{
    sl_err err = {SL_OK, ""};
    sl_sampler *sampler = NULL;
    if (sl_sampler_create(&sampling, n_vocab, &kernels, &budget, &sampler, &err) != SL_OK)
        fail_msg("%s", err.text);
    return sampler;
}

static void greedy_takes_the_lowest_of_equals(void **unused)
{
    (void)unused;
    const float logits[5] = {-1.0f, 3.0f, 3.0f, 2.0f, -0.0f};
    sl_sampler *s = make((sl_sampling){.top_p = 1.0f}, 5);
    assert_int_equal(1, sl_sampler_draw(s, logits, NULL, 0));
    sl_sampler_destroy(s);
}

static void candidates_are_ordered_by_logit_then_id(void **unused)
{
    (void)unused;
    const float logits[7] = {0.0f, -2.5f, 7.0f, -0.0f, 7.0f, 1e-40f, -1e30f};
    const int32_t want[7] = {2, 4, 5, 0, 3, 1, 6};
    int32_t got[7];
    sl_sampler *s = make((sl_sampling){.top_p = 1.0f}, 7);
    sl_sampler_best(s, logits, 7, got);
    assert_memory_equal(want, got, sizeof want);
    sl_sampler_destroy(s);
}

/* Known answer of Philox4x32-10 (Random123's kat_vectors): key 0, counter 0 gives the word 6627e8d5. Over 4,096 equal
 * candidates u = 0x6627e8 / 2^24 falls on candidate 0x662. */
static void the_random_number_is_philox(void **unused)
{
    (void)unused;
    static float logits[N];
    memset(logits, 0, sizeof logits);
    sl_sampler *s = make((sl_sampling){.temp = 1.0f, .top_p = 1.0f, .seed = 0}, N);
    assert_int_equal(0x662, sl_sampler_draw(s, logits, NULL, 0));
    /* a function of position alone: asking again, or in another order, changes nothing */
    int32_t at_9 = sl_sampler_draw(s, logits, history, 9);
    assert_int_equal(0x662, sl_sampler_draw(s, logits, NULL, 0));
    assert_int_equal(at_9, sl_sampler_draw(s, logits, history, 9));
    sl_sampler_destroy(s);
}

/* The ids that are drawn greedily when each one drawn is banned for the next; -1: it was banned from the start. */
static void expect_order(sl_sampling sampling, const float *logits, const int32_t *text, size_t n, const int32_t *want)
{
    int32_t ids[16] = {0};
    float values[16] = {0};
    for (size_t i = 0; i < sampling.n_bias; i++) {
        ids[i] = sampling.bias_ids[i];
        values[i] = sampling.bias_values[i];
    }
    sampling.bias_ids = ids;
    sampling.bias_values = values;
    for (size_t i = 0; i < 5 && want[i] >= 0; i++) {
        sl_sampler *s = make(sampling, 5);
        const int32_t got = sl_sampler_draw(s, logits, text, n);
        sl_sampler_destroy(s);
        assert_int_equal(want[i], got);
        ids[sampling.n_bias] = got;
        values[sampling.n_bias++] = -INFINITY;
    }
}

/* How often each of four candidates is drawn over 4,096 positions. */
static void count_draws(sl_sampling sampling, const float *logits, int counts[4])
{
    sl_sampler *s = make(sampling, 4);
    memset(counts, 0, 4 * sizeof *counts);
    for (size_t pos = 0; pos < N; pos++)
        counts[sl_sampler_draw(s, logits, history, pos)]++;
    sl_sampler_destroy(s);
}

static void truncations_keep_what_they_say(void **unused)
{
    (void)unused;
    /* probabilities 1/2, 1/4, 1/8, 1/8 */
    const float ln2 = 0.69314718f, logits[4] = {-ln2, 0.0f, -2 * ln2, -2 * ln2};
    int counts[4];
    count_draws((sl_sampling){.temp = 1.0f, .top_p = 1.0f, .seed = 7}, logits, counts);
    assert_in_range(counts[1], N / 2 - 130, N / 2 + 130); /* 4 standard deviations */
    assert_in_range(counts[0], N / 4 - 111, N / 4 + 111);
    assert_in_range(counts[2], N / 8 - 85, N / 8 + 85);
    assert_in_range(counts[3], N / 8 - 85, N / 8 + 85);
    count_draws((sl_sampling){.temp = 1.0f, .top_k = 3, .top_p = 1.0f, .seed = 7}, logits, counts);
    assert_int_equal(0, counts[3]);
    assert_true(counts[2] > 0);
    count_draws((sl_sampling){.temp = 1.0f, .top_p = 0.7f, .seed = 7}, logits, counts);
    assert_int_equal(0, counts[2] + counts[3]);
    assert_true(counts[0] > 0);
    count_draws((sl_sampling){.temp = 1.0f, .top_p = 1.0f, .min_p = 0.3f, .seed = 7}, logits, counts);
    assert_int_equal(0, counts[2] + counts[3]);
    assert_true(counts[0] > 0);
    count_draws((sl_sampling){.temp = 1.0f, .top_p = 0.4f, .seed = 7}, logits, counts);
    assert_int_equal(N, counts[1]);
    /* a low temperature sharpens */
    count_draws((sl_sampling){.temp = 0.1f, .top_p = 1.0f, .seed = 7}, logits, counts);
    assert_in_range(counts[1], N - 20, N);
}

/* What is drawn greedily from logits that penalties and biases have changed tells where each of them ends up. */
static void penalties_and_biases_are_what_they_say(void **unused)
{
    (void)unused;
    const int32_t text[6] = {3, 0, 0, 1, 0, 2};
    const float logits[5] = {4.0f, -1.0f, 1.0f, 2.5f, -3.0f};
    const sl_sampling all = {.top_p = 1.0f, .penalty_last_n = -1};
    sl_sampling s = all;
    s.repeat_penalty = 2.0f; /* 2, -2, 0.5, 1.25, -3 */
    expect_order(s, logits, text, 6, (const int32_t[]){0, 3, 2, 1, 4});
    s.repeat_penalty = 4.0f; /* 1, -4, 0.25, 0.625, -3: what is below 0 falls, too */
    expect_order(s, logits, text, 6, (const int32_t[]){0, 3, 2, 4, 1});
    s = all;
    s.frequency_penalty = 1.25f; /* 0.25, -2.25, -0.25, 1.25, -3 */
    expect_order(s, logits, text, 6, (const int32_t[]){3, 0, 2, 1, 4});
    s.presence_penalty = 1.0f; /* -0.75, -3.25, -1.25, 0.25, -3 */
    expect_order(s, logits, text, 6, (const int32_t[]){3, 0, 2, 4, 1});
    s.penalty_last_n = 2; /* 1.75, -1, -1.25, 2.5, -3: of the last two */
    expect_order(s, logits, text, 6, (const int32_t[]){3, 0, 1, 2, 4});
    s.penalty_last_n = 0; /* none */
    expect_order(s, logits, text, 6, (const int32_t[]){0, 3, 2, 1, 4});
    s = all;
    s.repeat_penalty = 2.0f; /* the penalty first, then the bias: 2, -2, 0.5, 1.25, 1.5 */
    const int32_t ids[3] = {4, 0, 4};
    const float values[3] = {5.0f, -INFINITY, -0.5f};
    s.bias_ids = ids;
    s.bias_values = values;
    s.n_bias = 3;
    expect_order(s, logits, text, 6, (const int32_t[]){4, 3, 2, 1, -1});
}

/* Banned tokens come last, and their share is nothing. */
static void what_is_banned_is_never_drawn(void **unused)
{
    (void)unused;
    const float logits[4] = {9.0f, 1.0f, 0.5f, 8.0f}, values[2] = {-INFINITY, -INFINITY};
    const int32_t ids[2] = {0, 3};
    const sl_sampling sampling = {.temp = 1.0f, .top_p = 1.0f, .bias_ids = ids, .bias_values = values, .n_bias = 2};
    int counts[4];
    count_draws(sampling, logits, counts);
    assert_int_equal(0, counts[0] + counts[3]);
    assert_true(counts[1] > counts[2] && counts[2] > 0);
}

static void a_banned_vocabulary_is_refused(void **unused)
{
    (void)unused;
    const int32_t ids[3] = {0, 1, 2};
    const float values[3] = {-INFINITY, -INFINITY, -INFINITY};
    const sl_sampling sampling = {.top_p = 1.0f, .bias_ids = ids, .bias_values = values, .n_bias = 3};
    sl_err err = {SL_OK, ""};
    sl_sampler *sampler = NULL;
    assert_int_equal(SL_USAGE, sl_sampler_create(&sampling, 3, &kernels, &budget, &sampler, &err));
    assert_non_null(strstr(err.text, "every token"));
    assert_null(sampler);
}

static void the_best_are_those_of_a_sort(void **unused)
{
    (void)unused;
    enum { MANY = 500 };
    float logits[MANY];
    int32_t want[MANY], got[MANY];
    for (size_t i = 0; i < MANY; i++)
        logits[i] = (float)(i * i % 37) - 18.0f;
    logits[7] = -0.0f;
    sl_sampler *s = make((sl_sampling){.top_p = 1.0f}, MANY);
    sl_sampler_best(s, logits, MANY, want);
    const sl_logprobs logprobs = sl_logprobs_of(&kernels, logits, MANY);
    for (size_t n = 0; n <= MANY; n = 2 * n + 1 < MANY ? 2 * n + 1 : n + 245) {
        sl_logprobs_best(&logprobs, MANY, n, got);
        assert_memory_equal(want, got, n * sizeof *got);
    }
    sl_sampler_destroy(s);
}

static void bad_options_are_named(void **unused)
{
    (void)unused;
    const int32_t four = 4;
    const float zero = 0.0f, nan = NAN, much = INFINITY;
    const struct {
        sl_sampling sampling;
        const char *word;
    } cases[] = {
        {{.temp = 1e-38f, .top_p = 1.0f}, "temperature"},
        {{.temp = -1.0f, .top_p = 1.0f}, "temperature"}, {{.temp = NAN, .top_p = 1.0f}, "temperature"},
        {{.temp = 1.0f, .top_p = 0.0f}, "top-p"},        {{.temp = 1.0f, .top_p = 1.5f}, "top-p"},
        {{.temp = 1.0f, .top_p = 1.0f, .min_p = -0.1f}, "min-p"},
        {{.top_p = 1.0f, .repeat_penalty = -1.0f}, "repetition"},
        {{.top_p = 1.0f, .repeat_penalty = NAN}, "repetition"},
        {{.top_p = 1.0f, .presence_penalty = 2000.0f}, "presence"},
        {{.top_p = 1.0f, .frequency_penalty = NAN}, "frequency"},
        {{.top_p = 1.0f, .penalty_last_n = -2}, "penalties over"},
        {{.top_p = 1.0f, .bias_ids = &four, .bias_values = &zero, .n_bias = 1}, "token 4"},
        {{.top_p = 1.0f, .bias_ids = history, .bias_values = &nan, .n_bias = 1}, "nan"},
        {{.top_p = 1.0f, .bias_ids = history, .bias_values = &much, .n_bias = 1}, "inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sl_err err = {SL_OK, ""};
        assert_int_equal(SL_USAGE, sl_sampling_check(&cases[i].sampling, 4, &err));
        assert_non_null(strstr(err.text, cases[i].word));
    }
}

static void logprobs_agree_with_binary64(void **unused)
{
    (void)unused;
    static float logits[1000];
    double sum = 0.0;
    for (int i = 0; i < 1000; i++) {
        logits[i] = (float)((i * 7919) % 1000) * 0.02f - 9.0f;
        sum += exp((double)logits[i]);
    }
    sl_logprobs lp = sl_logprobs_of(&kernels, logits, 1000);
    for (int32_t i = 0; i < 1000; i += 37)
        assert_true(fabs((double)sl_logprobs_get(&lp, i) - ((double)logits[i] - log(sum))) < 2e-6);
}

int main(void)
{
    sl_budget_init(&budget, UINT64_MAX);
    sl_kernels_init(&kernels, sl_cpu_best());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_of_equals), cmocka_unit_test(candidates_are_ordered_by_logit_then_id),
        cmocka_unit_test(the_random_number_is_philox),       cmocka_unit_test(truncations_keep_what_they_say),
        cmocka_unit_test(penalties_and_biases_are_what_they_say), cmocka_unit_test(what_is_banned_is_never_drawn),
        cmocka_unit_test(a_banned_vocabulary_is_refused),    cmocka_unit_test(the_best_are_those_of_a_sort),
        cmocka_unit_test(bad_options_are_named),             cmocka_unit_test(logprobs_agree_with_binary64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
