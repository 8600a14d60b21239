/* Counts of the last tokens of a text against counting them one by one, while the text grows, is cut and goes on
 * otherwise; and that they cost what has changed, not the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/effort.h"
#include "decode/recent.h"

enum { N_VOCAB = 50, MOST = 6000 };

static sl_budget budget;
static int32_t text[MOST];

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static sl_recent *make(size_t last_n, size_t n_vocab)
{
    sl_err err = {SL_OK, ""};
    sl_recent *recent = NULL;
    if (sl_recent_create(last_n, n_vocab, &budget, &recent, &err) != SL_OK)
        fail_msg("%s", err.text);
    return recent;
}

static void expect(sl_recent *recent, size_t last_n, size_t n)
{
    uint32_t want[N_VOCAB] = {0};
    for (size_t i = n > last_n ? n - last_n : 0; i < n; i++)
        want[text[i]]++;
    assert_memory_equal(want, sl_recent_count(recent, text, n), sizeof want);
}

/* A cut that is so deep that all is counted anew, and asked for before the text grows again. */
static size_t cut_deep(sl_recent *recent, size_t last_n, size_t n, size_t *most)
{
    expect(recent, last_n, n);
    *most = n + SL_RECENT_TAIL <= *most ? n : *most;
    return n;
}

/* Steps that a burst and its drafters may take: tails that are asked for, or not, before the text goes on otherwise. */
static void counts_follow_the_text(void **unused)
{
    (void)unused;
    static const size_t windows[] = {1, 2, 63, 64, 500, 512, 513, 1000, 5000, SIZE_MAX};
    uint64_t state = 3;
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        sl_recent *recent = make(windows[w], N_VOCAB);
        size_t n = 0, most = 0; /* most: the longest text that was asked for since all was counted anew */
        for (int step = 0; step < EFFORT(3000); step++) {
            const uint64_t kind = next_random(&state) % 32;
            const size_t least = most >= SL_RECENT_TAIL ? most - SL_RECENT_TAIL + 1 : 0;
            if (kind == 0 || n > MOST - 700)
                n = cut_deep(recent, windows[w], next_random(&state) % (n + 1), &most);
            else if (kind < 12 && n > least)
                n -= next_random(&state) % (n - least < 256 ? n - least + 1 : 256);
            const uint64_t more = kind == 1 ? 600 : next_random(&state) % 20;
            for (uint64_t i = 0; i < more; i++)
                text[n++] = (int32_t)(next_random(&state) % N_VOCAB);
            if (kind == 2)
                continue;
            expect(recent, windows[w], n);
            most = n > most ? n : most;
        }
        sl_recent_destroy(recent);
    }
    assert_int_equal(0, budget.used_bytes);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A million tokens: drawing one more, and losing it again, takes nowhere near as long as counting them once. */
static void a_long_text_is_not_counted_again(void **unused)
{
    (void)unused;
    enum { LONG = 1 << 20, DRAWS = 200 };
    int32_t *long_text = calloc(LONG + DRAWS, sizeof *long_text);
    assert_non_null(long_text);
    uint64_t state = 9;
    for (size_t i = 0; i < LONG + DRAWS; i++)
        long_text[i] = (int32_t)(next_random(&state) % 49152);
    sl_recent *recent = make(SIZE_MAX, 49152);
    double start = seconds();
    (void)sl_recent_count(recent, long_text, LONG);
    const double all_s = seconds() - start;
    start = seconds();
    for (size_t i = 0; i < DRAWS; i++) {
        long_text[LONG + i] ^= 1;
        (void)sl_recent_count(recent, long_text, LONG + i + 1);
        long_text[LONG + i] ^= 1;
        const uint32_t *counts = sl_recent_count(recent, long_text, LONG + i + 1);
        assert_true(counts[long_text[LONG + i]] > 0);
    }
    assert_true(seconds() - start < DRAWS / 10 * all_s);
    sl_recent_destroy(recent);
    free(long_text);
}

int main(void)
{
    sl_budget_init(&budget, UINT64_MAX);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_follow_the_text),
        cmocka_unit_test(a_long_text_is_not_counted_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
