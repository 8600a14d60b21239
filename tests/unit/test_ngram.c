/* The n-gram drafter: longest match, most recent among equals, repetition, growth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "decode/ngram.h"

static sl_budget budget;

static sl_ngram *make(size_t max_tokens)
{
    sl_err err = {SL_OK, ""};
    sl_ngram *ngram = NULL;
    if (sl_ngram_create(max_tokens, &budget, &ngram, &err) != SL_OK)
        fail_msg("%s", err.text);
    return ngram;
}

/* Writes the chain that is proposed to out; returns its length. */
static size_t chain_of(sl_ngram *ngram, const int32_t *history, size_t n, int32_t *out, size_t max)
{
    sl_err err = {SL_OK, ""};
    sl_draft_node nodes[16];
    sl_draft_tree tree = {0, 16, nodes};
    const sl_draft_ask ask = {.history = history, .n = n, .max_nodes = max, .max_depth = max};
    const sl_drafter drafter = sl_ngram_drafter(ngram);
    assert_int_equal(SL_OK, drafter.propose(drafter.self, &ask, &tree, &err));
    for (size_t i = 0; i < tree.n; i++) {
        assert_int_equal((int)i - 1, nodes[i].parent);
        out[i] = nodes[i].id;
    }
    return tree.n;
}

static void expect(sl_ngram *ngram, const int32_t *history, size_t n, const int32_t *want, size_t n_want)
{
    int32_t out[16];
    assert_int_equal(n_want, chain_of(ngram, history, n, out, n_want ? n_want : 16));
    assert_memory_equal(want, out, n_want * sizeof *out);
}

static void takes_the_longest_match(void **unused)
{
    (void)unused;
    /* "2 3" was followed by 9, and by 4 after a 1: the longer match wins although it is older */
    const int32_t history[] = {1, 2, 3, 4, 5, 7, 2, 3, 9, 8, 1, 2, 3};
    const int32_t want[] = {4, 5, 7};
    sl_ngram *ngram = make(100);
    expect(ngram, history, 13, want, 3);
    sl_ngram_destroy(ngram);
}

static void takes_the_most_recent_of_equals(void **unused)
{
    (void)unused;
    const int32_t history[] = {6, 2, 3, 4, 7, 2, 3, 9, 8, 2, 3};
    const int32_t want[] = {9, 8};
    sl_ngram *ngram = make(100);
    expect(ngram, history, 11, want, 2);
    sl_ngram_destroy(ngram);
}

static void a_repeating_end_goes_on_repeating(void **unused)
{
    (void)unused;
    const int32_t history[] = {5, 1, 2, 3, 1, 2, 3};
    const int32_t want[] = {1, 2, 3, 1, 2, 3, 1, 2};
    sl_ngram *ngram = make(100);
    expect(ngram, history, 7, want, 8);
    sl_ngram_destroy(ngram);
}

static void proposes_nothing_without_a_match(void **unused)
{
    (void)unused;
    const int32_t history[] = {1, 2, 3, 4, 5, 6};
    sl_ngram *ngram = make(100);
    for (size_t n = 0; n <= 6; n++)
        expect(ngram, history, n, NULL, 0);
    sl_ngram_destroy(ngram);
}

/* Asked after every token or only at the end: the same. */
static void growth_in_steps_changes_nothing(void **unused)
{
    (void)unused;
    enum { N = 3000 };
    static int32_t history[N];
    uint64_t state = 12345;
    for (size_t i = 0; i < N; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        history[i] = (int32_t)(state >> 60);
    }
    sl_ngram *steps = make(N);
    int32_t a[8], b[8];
    size_t n_a = 0;
    for (size_t n = 1; n <= N; n++)
        n_a = chain_of(steps, history, n, a, 8);
    sl_ngram *once = make(N);
    assert_int_equal(n_a, chain_of(once, history, N, b, 8));
    assert_memory_equal(a, b, n_a * sizeof *a);
    sl_ngram_destroy(steps);
    sl_ngram_destroy(once);
}

/* After a rewind it proposes what one proposes that never saw what was forgotten. */
static void a_rewind_leaves_no_trace(void **unused)
{
    (void)unused;
    enum { MOST = 400, TURNS = 300 };
    static int32_t history[MOST], got[8], want[8];
    uint64_t state = 5;
    size_t n = 0, n_proposed = 0;
    sl_ngram *ngram = make(MOST);
    for (int turn = 0; turn < TURNS; turn++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t random = state >> 33;
        if (turn % 3 == 2) {
            n = turn % 9 == 8 ? random % 3 : random % (n + 1);
            sl_ngram_rewind(ngram, history, n);
        }
        for (size_t i = 0; i < random % 40 && n < MOST; i++)
            history[n++] = (int32_t)((random >> i % 16) % 4 + (uint64_t)(turn % 5 == 0));
        if (turn % 4 == 3) /* rewound again before anything was asked */
            continue;
        size_t n_got = chain_of(ngram, history, n, got, 8);
        sl_ngram *fresh = make(MOST);
        assert_int_equal(chain_of(fresh, history, n, want, 8), n_got);
        assert_memory_equal(want, got, n_got * sizeof *got);
        n_proposed += n_got > 0;
        sl_ngram_destroy(fresh);
    }
    assert_true(n_proposed > TURNS / 4);
    sl_ngram_destroy(ngram);
}

int main(void)
{
    sl_budget_init(&budget, UINT64_MAX);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_longest_match),           cmocka_unit_test(takes_the_most_recent_of_equals),
        cmocka_unit_test(a_repeating_end_goes_on_repeating), cmocka_unit_test(proposes_nothing_without_a_match),
        cmocka_unit_test(growth_in_steps_changes_nothing),
        cmocka_unit_test(a_rewind_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
