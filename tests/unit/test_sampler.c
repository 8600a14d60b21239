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

static void bad_options_are_named(void **unused)
{
    (void)unused;
    const struct {
        sl_sampling sampling;
        const char *word;
    } cases[] = {
        {{.temp = 1e-38f, .top_p = 1.0f}, "temperature"},
        {{.temp = -1.0f, .top_p = 1.0f}, "temperature"}, {{.temp = NAN, .top_p = 1.0f}, "temperature"},
        {{.temp = 1.0f, .top_p = 0.0f}, "top-p"},        {{.temp = 1.0f, .top_p = 1.5f}, "top-p"},
        {{.temp = 1.0f, .top_p = 1.0f, .min_p = -0.1f}, "min-p"},
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
        cmocka_unit_test(bad_options_are_named),             cmocka_unit_test(logprobs_agree_with_binary64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
