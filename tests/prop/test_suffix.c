/* The index of a text's ends, against looking at every place: random and repetitive texts, grown and cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decode/suffix.h"

static sl_budget budget;

/* Knuth's linear congruential generator, the upper bits. */
typedef struct test_random {
    uint64_t state;
} test_random;

static test_random test_random_of(uint64_t seed)
{
    return (test_random){seed * UINT64_C(0x9E3779B97F4A7C15) + 1};
}

static uint64_t test_random_next(test_random *random)
{
    random->state = random->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return random->state >> 33;
}

static sl_suffix *make(size_t max_tokens)
{
    sl_err err = {SL_OK, ""};
    sl_suffix *suffix = NULL;
    if (sl_suffix_create(max_tokens, &budget, &suffix, &err) != SL_OK)
        fail_msg("%s", err.text);
    return suffix;
}

static size_t common_end(const int32_t *text, size_t end, size_t other)
{
    size_t n = 0;
    while (n <= end && text[end - n] == text[other - n])
        n++;
    return n;
}

static int by_falling_length(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

enum { MOST = 3000, NEAR = 24 };

/* What is found is what looking at every place finds. */
static void expect_right(const sl_suffix *suffix, const int32_t *text, size_t n)
{
    static size_t lengths[MOST];
    size_t n_lengths = 0;
    sl_suffix_match best = {0, 0}, found = {0, 0};
    for (size_t end = 0; end + 1 < n; end++) {
        const size_t length = common_end(text, end, n - 1);
        if (length > 0)
            lengths[n_lengths++] = length;
        if (length > 0 && length >= best.length)
            best = (sl_suffix_match){end, length};
    }
    assert_int_equal(n, sl_suffix_n_tokens(suffix));
    assert_int_equal(best.length > 0, n > 0 && sl_suffix_find(suffix, n - 1, &found));
    assert_int_equal(best.length, found.length);
    assert_int_equal(best.end, found.end);
    qsort(lengths, n_lengths, sizeof *lengths, by_falling_length);
    sl_suffix_match near[NEAR];
    const size_t n_near = sl_suffix_near(suffix, near, NEAR);
    assert_int_equal(n_lengths < NEAR ? n_lengths : NEAR, n_near);
    for (size_t i = 0; i < n_near; i++) {
        assert_int_equal(lengths[i], near[i].length);
        assert_int_equal(near[i].length, common_end(text, near[i].end, n - 1));
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(near[i].end, near[j].end);
    }
}

enum { RANDOM_2, RANDOM_3, RANDOM_50, RANDOM_ALL, ONE, PERIOD_2, PERIOD_7, FIBONACCI, THUE_MORSE, COPIES, KINDS };

static int32_t token_at(int kind, const int32_t *text, size_t i, test_random *random)
{
    switch (kind) {
    case RANDOM_2: return (int32_t)(test_random_next(random) % 2);
    case RANDOM_3: return (int32_t)(test_random_next(random) % 3);
    case RANDOM_50: return (int32_t)(test_random_next(random) % 50);
    case RANDOM_ALL: return (int32_t)test_random_next(random);
    case ONE: return 7;
    case PERIOD_2: return (int32_t)(i % 2);
    case PERIOD_7: return (int32_t)(i * i % 7);
    case FIBONACCI: /* "0" "01" "010" ...: every word is its two predecessors */
        for (size_t a = 1, b = 2, rest;; rest = a + b, a = b, b = rest)
            if (i < b)
                return i < 2 ? (int32_t)i : text[i - a];
    case THUE_MORSE: return (int32_t)(__builtin_popcountll(i) & 1);
    default: /* long runs of what was there */
        return i < 40 || test_random_next(random) % 60 == 0 ? (int32_t)(test_random_next(random) % 20)
                                                            : text[i - 37];
    }
}

static void finds_what_is_there(void **unused)
{
    (void)unused;
    static int32_t text[MOST];
    for (int kind = 0; kind < KINDS; kind++) {
        test_random random = test_random_of(77 + (uint64_t)kind);
        sl_suffix *suffix = make(MOST);
        size_t n = 0;
        for (size_t i = 0; i < MOST; i++) {
            text[i] = token_at(kind, text, i, &random);
            if (i % 97 != 0 && i > 300)
                continue;
            n = i + 1;
            sl_suffix_extend(suffix, text, n);
            expect_right(suffix, text, n);
        }
        sl_suffix_destroy(suffix);
    }
}

/* Grown and cut at random, to other tokens too: as though it had never had more. */
static void forgets_what_is_cut(void **unused)
{
    (void)unused;
    static int32_t text[MOST];
    for (int kind = 0; kind < KINDS; kind++) {
        test_random random = test_random_of(990 + (uint64_t)kind);
        sl_suffix *suffix = make(MOST);
        size_t n = 0;
        for (int round = 0; round < 120; round++) {
            const size_t to = test_random_next(&random) % (MOST + 1);
            if (to < n)
                sl_suffix_cut(suffix, to);
            for (size_t i = n; i < to; i++)
                text[i] = round % 3 == 2 ? (int32_t)(test_random_next(&random) % 2) : token_at(kind, text, i, &random);
            sl_suffix_extend(suffix, text, to);
            n = to;
            expect_right(suffix, text, n);
        }
        sl_suffix_destroy(suffix);
    }
}

/* The promise about memory counts all blocks there could be; the most are there when much was cut. */
static void keeps_within_its_memory(void **unused)
{
    (void)unused;
    enum { TOKENS = 1 << 20 };
    assert_true(sl_suffix_bytes(TOKENS) <= UINT64_C(61) * TOKENS);
    sl_budget own;
    sl_budget_init(&own, UINT64_MAX);
    sl_err err = {SL_OK, ""};
    sl_suffix *suffix = NULL;
    assert_int_equal(SL_OK, sl_suffix_create(TOKENS, &own, &suffix, &err));
    assert_true(own.used_bytes <= sl_suffix_bytes(TOKENS));
    sl_suffix_destroy(suffix);
    assert_int_equal(0, own.used_bytes);
    sl_budget_deinit(&own);

    /* full to the brim again and again, after cuts that leave next to nothing in every block */
    int32_t *text = malloc(60000 * sizeof *text);
    assert_non_null(text);
    test_random random = test_random_of(5);
    suffix = make(60000);
    for (size_t n = 60000, cut = 3000, round = 0; round < 8; round++) {
        for (size_t i = sl_suffix_n_tokens(suffix); i < n; i++)
            text[i] = (int32_t)(test_random_next(&random) % (round % 2 ? 3 : 100000));
        sl_suffix_extend(suffix, text, n);
        sl_suffix_cut(suffix, cut * (round + 1) / 2);
    }
    sl_suffix_destroy(suffix);
    free(text);
}

static void refuses_too_many(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    sl_suffix *suffix = NULL;
    assert_int_equal(SL_REFUSED, sl_suffix_create((size_t)INT32_MAX + 1, &budget, &suffix, &err));
    assert_non_null(strstr(err.text, "2147483648 tokens"));
    assert_null(suffix);
}

int main(void)
{
    sl_budget_init(&budget, UINT64_MAX);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_is_there),
        cmocka_unit_test(forgets_what_is_cut),
        cmocka_unit_test(keeps_within_its_memory),
        cmocka_unit_test(refuses_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
