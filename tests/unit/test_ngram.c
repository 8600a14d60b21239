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
            sl_ngram_drafter(ngram).settled(ngram, history, n);
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

static size_t tree_of(sl_ngram *ngram, const int32_t *history, size_t n, sl_draft_node *nodes, size_t max)
{
    sl_err err = {SL_OK, ""};
    sl_draft_tree tree = {0, max, nodes};
    const sl_draft_ask ask = {.history = history, .n = n, .max_nodes = max, .max_depth = max, .may_branch = true};
    const sl_drafter drafter = sl_ngram_drafter(ngram);
    assert_int_equal(SL_OK, drafter.propose(drafter.self, &ask, &tree, &err));
    assert_true(tree.n <= max);
    return tree.n;
}

/* Three places end alike and go on differently; the third shares its first token with the second. */
static void a_tree_parts_where_matches_differ(void **unused)
{
    (void)unused;
    const int32_t history[] = {1, 2, 3, 4, 5, 9, 2, 3, 6, 7, 9, 8, 3, 6, 8, 1, 2, 3};
    sl_ngram *ngram = make(100);
    sl_draft_node nodes[32];
    const size_t n = tree_of(ngram, history, 18, nodes, 32);
    assert_true(n > 6);
    size_t roots = 0, under_6 = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(nodes[i].p > 0.0f && nodes[i].p < 1.0f);
        if (nodes[i].parent == SL_DRAFT_ROOT)
            assert_int_equal(roots++ == 0 ? 4 : 6, nodes[i].id);
        else if (nodes[nodes[i].parent].parent == SL_DRAFT_ROOT && nodes[nodes[i].parent].id == 6)
            assert_true(nodes[i].id == (under_6++ == 0 ? 7 : 8));
    }
    assert_int_equal(2, roots);
    assert_int_equal(2, under_6);
    sl_ngram_destroy(ngram);
}

/* Tokens replaced one for one in a copy: it goes on where it was, for a while, unless a longer match knows better. */
static void a_copy_goes_on_behind_a_change(void **unused)
{
    (void)unused;
    enum { N = 30, AT = 14 };
    int32_t history[2 * N], want[3];
    for (int32_t i = 0; i < N; i++)
        history[i] = history[N + i] = 100 + i;
    history[N + AT] = 7;
    history[N + AT + 1] = 8;
    for (int32_t i = 0; i < 3; i++)
        want[i] = 100 + AT + 1 + i;
    sl_ngram *ngram = make(100);
    expect(ngram, history, N + AT + 1, want, 3);
    want[0]++, want[1]++, want[2]++;
    expect(ngram, history, N + AT + 2, want, 3);
    sl_ngram_destroy(ngram);
    /* seven tokens are no copy yet */
    ngram = make(100);
    for (int32_t i = 0; i < 7; i++)
        history[N + i] = 110 + i;
    history[N + 7] = 7;
    expect(ngram, history, N + 8, NULL, 0);
    sl_ngram_destroy(ngram);
}

/* The path to a node, from the root on, is what followed some place that ends with the text's last token, or one that a
 * copy has reached. */
static bool is_continuation(const int32_t *history, size_t n, const int32_t *path, size_t depth)
{
    for (size_t end = 0; end + 1 < n; end++) {
        bool is_there = history[end] == history[n - 1];
        for (size_t behind = 1; behind <= 8 && behind <= end; behind++)
            is_there = is_there || history[end - behind] == history[n - 1 - behind];
        size_t i = is_there ? 0 : depth + 1;
        while (i < depth && (end + 1 + i < n ? history[end + 1 + i] : path[end + 1 + i - n]) == path[i])
            i++;
        if (i == depth)
            return true;
    }
    return false;
}

static void a_tree_is_made_of_what_was_there(void **unused)
{
    (void)unused;
    enum { N = 500, MOST = 60 };
    static int32_t history[N];
    uint64_t state = 99;
    size_t n_branched = 0;
    sl_ngram *ngram = make(N);
    for (size_t n = 1; n <= N; n++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        history[n - 1] = n % 100 > 60 ? history[n - 4] : (int32_t)((state >> 60) % 5);
        sl_draft_node nodes[MOST];
        const size_t n_nodes = tree_of(ngram, history, n, nodes, MOST);
        for (size_t i = 0; i < n_nodes; i++) {
            int32_t path[MOST];
            size_t depth = 0;
            assert_true(nodes[i].parent < (int32_t)i);
            for (int32_t up = (int32_t)i; up != SL_DRAFT_ROOT; up = nodes[up].parent)
                depth++;
            int32_t up = (int32_t)i;
            for (size_t j = depth; j > 0; j--, up = nodes[up].parent)
                path[j - 1] = nodes[up].id;
            assert_true(is_continuation(history, n, path, depth));
            for (size_t j = 0; j < i; j++)
                assert_false(nodes[j].parent == nodes[i].parent && nodes[j].id == nodes[i].id);
            n_branched += nodes[i].parent != (int32_t)i - 1;
        }
    }
    assert_true(n_branched > N);
    sl_ngram_destroy(ngram);
}

/* What comes true again and again is expected, what does not is not. */
static void estimates_follow_what_came(void **unused)
{
    (void)unused;
    enum { N = 2000 };
    static int32_t history[N];
    sl_ngram *ngram = make(N);
    sl_draft_node nodes[4] = {{0}};
    for (size_t n = 1; n <= N; n++) {
        history[n - 1] = (int32_t)(n % 2 ? 5 : n); /* what follows a 5 was never there */
        (void)tree_of(ngram, history, n, nodes, 1);
    }
    assert_int_equal(1, tree_of(ngram, history, N - 1, nodes, 1));
    assert_true(nodes[0].p < 0.02f);
    sl_ngram_destroy(ngram);
    ngram = make(N);
    for (size_t n = 1; n <= N; n++) {
        history[n - 1] = (int32_t)(n % 3);
        (void)tree_of(ngram, history, n, nodes, 4);
    }
    assert_true(nodes[0].p > 0.98f);
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
        cmocka_unit_test(a_copy_goes_on_behind_a_change),
        cmocka_unit_test(a_tree_parts_where_matches_differ),
        cmocka_unit_test(a_tree_is_made_of_what_was_there),
        cmocka_unit_test(estimates_follow_what_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
