/* The choice of rows and drafters in made-up worlds: passes and drafters of known cost and skill, no clock. In each the
 * plan must come within a share of the best fixed number of drafts, and within few bursts. And guesses: joined, picked,
 * ordered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decode/draft_guesses.h"

enum { N_VOCAB = 1000, MAX_DRAFTS = 255, N_LEFT = 500 };

static uint64_t state;

static double chance(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

typedef struct world_drafter {
    double call_s, node_s;
    double right; /* that a node comes true if its parent did */
    float says;   /* its own estimate; 0: none */
    double read_s; /* of each token that it has not read; 0: it reads none */
    double work;   /* of a row, in rows of a pass; 0: nobody knows */
} world_drafter;

typedef struct world {
    double pass_s, row_s; /* a pass of r rows: the longer of pass_s and base_s + row_s x r */
    double base_s, token_s;
    size_t n_drafters;
    world_drafter drafters[3];
} world;

static double pass_seconds(const world *w, size_t rows)
{
    double compute = w->base_s + w->row_s * (double)rows;
    return compute > w->pass_s ? compute : w->pass_s;
}

typedef struct outcome {
    double seconds, expected; /* expected: tokens of a chain of so many rows of the best drafter */
    size_t n_asked[3], n_read[3];
    double draft_s;
    size_t rows; /* of the last burst */
} outcome;

static double expected_tokens(const world *w, size_t rows)
{
    double right = 0.0, path = 1.0, tokens = 0.0;
    for (size_t d = 0; d < w->n_drafters; d++)
        right = w->drafters[d].right > right ? w->drafters[d].right : right;
    for (size_t i = 0; i < rows; i++, path *= right)
        tokens += path;
    return tokens;
}

static int32_t truth_at(size_t n)
{
    return (int32_t)(n * 7 % (N_VOCAB - 1));
}

static double ask(const world_drafter *d, size_t n_text, size_t n_nodes, sl_draft_tree *tree)
{
    bool on_way = true;
    for (size_t i = 0; i < n_nodes; i++) {
        on_way = on_way && chance() < d->right;
        sl_draft_tree_add(tree, on_way ? truth_at(n_text + i) : N_VOCAB - 1, (int32_t)i - 1, d->says);
    }
    return d->call_s + d->node_s * (double)n_nodes;
}

/* One burst, as the plan has it. */
static void run_burst(const world *w, sl_draft_plan *plan, size_t *n_text, outcome *out)
{
    static sl_guesses guesses;
    static sl_burst_rows rows;
    static sl_draft_counts counts;
    sl_guess_limits limits = {MAX_DRAFTS, false, true, 0.0};
    sl_guesses_start(&guesses, plan, N_VOCAB);
    double value = sl_guesses_pick(&guesses, &limits, 0, &rows);
    for (size_t d = 0; d < w->n_drafters; d++) {
        const world_drafter *drafter = &w->drafters[d];
        const size_t unread = drafter->read_s > 0.0 ? *n_text - out->n_read[d] : 0;
        const sl_draft_terms terms = {limits.max_nodes, limits.is_fixed, rows.n - 1, value, limits.draft_s,
                                      drafter->work, unread, N_LEFT};
        size_t n = sl_draft_plan_wish(plan, d, &terms);
        if (n == 0)
            continue;
        sl_draft_tree tree = {0, SL_MAX_DRAFTS, guesses.proposed};
        double seconds = ask(drafter, *n_text, n, &tree) + drafter->read_s * (double)unread;
        sl_draft_plan_drafted(plan, d, (sl_draft_call){tree.n, unread, seconds});
        out->n_read[d] = *n_text;
        out->draft_s += seconds;
        sl_guesses_join(&guesses, d, &tree);
        limits.draft_s += seconds;
        out->n_asked[d]++;
        value = sl_guesses_pick(&guesses, &limits, 0, &rows);
    }
    int32_t drawn[SL_TREE_MAX_ROWS];
    size_t n_drawn = 0;
    for (int32_t row = 0; row >= 0; n_drawn++) {
        drawn[n_drawn] = truth_at(*n_text + n_drawn);
        row = sl_burst_rows_find(&rows, row, drawn[n_drawn]);
    }
    sl_draft_plan_passed(plan, rows.n, pass_seconds(w, rows.n) * (0.97 + 0.06 * chance()));
    sl_draft_plan_drawn(plan, n_drawn, w->token_s * (double)n_drawn);
    sl_guesses_judge(&guesses, drawn, n_drawn, &counts);
    *n_text += n_drawn;
    const double expected = expected_tokens(w, rows.n);
    out->seconds += limits.draft_s + pass_seconds(w, rows.n) + w->token_s * expected;
    out->expected += expected;
    out->rows = rows.n;
}

static outcome run_world(const world *w, sl_draft_plan *plan, size_t n_bursts)
{
    outcome out = {0};
    size_t n_text = 100;
    for (size_t i = 0; i < n_bursts; i++)
        run_burst(w, plan, &n_text, &out);
    return out;
}

static double best_fixed(const world *w, size_t *best_n)
{
    static const size_t numbers[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63, 96, 128, 192, 255};
    double best = 0.0;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const world_drafter *d = &w->drafters[w->n_drafters - 1];
        double tokens = expected_tokens(w, numbers[i] + 1);
        double rate = tokens / (pass_seconds(w, numbers[i] + 1) + w->token_s * tokens +
                                (numbers[i] > 0 ? d->call_s + d->node_s * (double)numbers[i] : 0.0));
        if (rate > best) {
            best = rate;
            *best_n = numbers[i];
        }
    }
    return best;
}

/* Bursts 1 to 8 may be spent on learning; from there on, and over two hundred with the learning, it must pay. */
static void expect_share(const char *name, const world *w, double share_later, double share_of_all)
{
    size_t best_n = 0;
    const double best = best_fixed(w, &best_n);
    sl_draft_plan plan = {0};
    outcome first = run_world(w, &plan, 8), later = run_world(w, &plan, 192);
    const double later_rate = later.expected / later.seconds;
    const double rate = (first.expected + later.expected) / (first.seconds + later.seconds);
    printf("%-28s best fixed %3zu drafts, %8.3f tokens/s; chosen: %8.3f in bursts 1 to 8, %8.3f later (%.2f)\n", name,
           best_n, best, first.expected / first.seconds, later_rate, later_rate / best);
    if (later_rate < share_later * best || rate < share_of_all * best)
        fail_msg("%s: %.3f tokens a second later and %.3f in all, best fixed (%zu drafts) %.3f", name, later_rate, rate,
                 best_n, best);
}

static void comes_near_the_best_fixed_number(void **unused)
{
    (void)unused;
    const world_drafter good = {1e-4, 1e-6, 0.95, 0.0f, 0.0, 0.0}, fair = {1e-4, 1e-6, 0.7, 0.0f, 0.0, 0.0},
                        wrong = {1e-4, 1e-6, 0.0, 0.0f, 0.0, 0.0}, right = {1e-4, 1e-6, 1.0, 0.0f, 0.0, 0.0},
                        boaster = {1e-4, 1e-6, 0.3, 0.97f, 0.0, 0.0}, modest = {1e-4, 1e-6, 0.9, 0.2f, 0.0, 0.0};
    const struct {
        const char *name;
        world w;
    } worlds[] = {
        {"disk-bound, good", {.pass_s = 1.0, .base_s = 0.05, .row_s = 0.001, .n_drafters = 1, .drafters = {good}}},
        {"disk-bound, right", {.pass_s = 1.0, .base_s = 0.05, .row_s = 0.001, .n_drafters = 1, .drafters = {right}}},
        {"disk-bound, wrong", {.pass_s = 1.0, .base_s = 0.05, .row_s = 0.001, .n_drafters = 1, .drafters = {wrong}}},
        {"knee at 16 rows, good", {.pass_s = 1.0, .row_s = 0.0625, .n_drafters = 1, .drafters = {good}}},
        {"knee at 16 rows, fair", {.pass_s = 1.0, .row_s = 0.0625, .n_drafters = 1, .drafters = {fair}}},
        {"compute-bound, good", {.base_s = 0.04, .row_s = 0.01, .n_drafters = 1, .drafters = {good}}},
        {"compute-bound, fair", {.base_s = 0.04, .row_s = 0.01, .n_drafters = 1, .drafters = {fair}}},
        {"compute-bound, wrong", {.base_s = 0.04, .row_s = 0.01, .n_drafters = 1, .drafters = {wrong}}},
        {"compute-bound, right", {.base_s = 0.04, .row_s = 0.01, .n_drafters = 1, .drafters = {right}}},
        {"each row as dear as a pass", {.row_s = 0.05, .n_drafters = 1, .drafters = {fair}}},
        {"compute-bound, boasting", {.base_s = 0.04, .row_s = 0.01, .n_drafters = 1, .drafters = {boaster}}},
        {"disk-bound, modest", {.pass_s = 1.0, .base_s = 0.05, .row_s = 0.001, .n_drafters = 1, .drafters = {modest}}},
        {"dear drawing, good", {.pass_s = 0.1, .token_s = 0.05, .n_drafters = 1, .drafters = {good}}},
    };
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        expect_share(worlds[i].name, &worlds[i].w, 0.85, 0.75);
}

/* Drafts that never come true where rows cost: after the first bursts there are none. */
static void wrong_drafts_are_given_up(void **unused)
{
    (void)unused;
    const world w = {.base_s = 0.04, .row_s = 0.01, .n_drafters = 1, .drafters = {{1e-4, 1e-6, 0.0, 0.6f, 0.0, 0.0}}};
    sl_draft_plan plan = {0};
    run_world(&w, &plan, 8);
    outcome later = run_world(&w, &plan, 60);
    assert_int_equal(1, later.rows);
    assert_true(later.seconds < 60 * pass_seconds(&w, 1) * 1.1);
}

static void drafters_are_asked_when_they_pay(void **unused)
{
    (void)unused;
    const world_drafter free_one = {1e-5, 1e-7, 0.3, 0.0f, 0.0, 0.0}, dear = {0.002, 0.02, 0.9, 0.0f, 0.0, 0.0};
    const world slow = {.pass_s = 1.0, .base_s = 0.03, .row_s = 0.001, .n_drafters = 2, .drafters = {free_one, dear}};
    expect_share("slow pass, dear drafter", &slow, 0.8, 0.7);
    sl_draft_plan plan = {0};
    outcome out = run_world(&slow, &plan, 100);
    assert_int_equal(100, out.n_asked[0]);
    assert_in_range(out.n_asked[1], 85, 100);
    /* A pass that costs no more than a draft: drafting by the dear one cannot pay. */
    const world fast = {
        .pass_s = 0.02, .base_s = 0.015, .row_s = 0.0005, .n_drafters = 2, .drafters = {free_one, dear}};
    plan = (sl_draft_plan){0};
    out = run_world(&fast, &plan, 100);
    assert_in_range(out.n_asked[1], 1, 10);
}

/* A drafter of a thousand times the model's work: not asked at all where that is known, once where it is not, however
 * right it is. The same work over a slow pass is worth it, and so is reading a long text first. */
static void a_drafter_that_cannot_pay_is_not_asked(void **unused)
{
    (void)unused;
    world w = {.pass_s = 0.001, .base_s = 0.0005, .row_s = 0.0001, .n_drafters = 1,
               .drafters = {{0.0, 0.1, 1.0, 0.9f, 0.01, 700.0}}};
    sl_draft_plan plan = {0};
    outcome out = run_world(&w, &plan, 900);
    assert_int_equal(0, out.n_asked[0]);
    w.drafters[0].work = 0.0;
    plan = (sl_draft_plan){0};
    out = run_world(&w, &plan, 900);
    assert_int_equal(1, out.n_asked[0]);
    w.drafters[0].work = 7.0;
    plan = (sl_draft_plan){0};
    out = run_world(&w, &plan, 900);
    assert_int_equal(1, out.n_asked[0]);
    w.pass_s = 2.0;
    w.drafters[0].work = 0.05;
    plan = (sl_draft_plan){0};
    out = run_world(&w, &plan, 100);
    assert_in_range(out.n_asked[0], 90, 100);
}

/* Ten bursts after a change, the next thirty must pay as they may. */
static void expect_share_after_change(const char *name, const world *w, sl_draft_plan *plan, double share)
{
    size_t best_n = 0;
    const double best = best_fixed(w, &best_n);
    run_world(w, plan, 10);
    const outcome later = run_world(w, plan, 30);
    printf("%-28s best fixed %3zu drafts, %8.3f tokens/s; chosen: %8.3f\n", name, best_n, best,
           later.expected / later.seconds);
    if (later.expected / later.seconds < share * best)
        fail_msg("%s: %.3f tokens a second, best fixed (%zu drafts) %.3f", name, later.expected / later.seconds, best_n,
                 best);
}

/* What was good turns bad, and good again; the disk gets slow, so that rows cost nothing. */
static void changes_are_noticed(void **unused)
{
    (void)unused;
    world w = {.base_s = 0.04, .row_s = 0.01, .n_drafters = 1, .drafters = {{1e-4, 1e-6, 0.97, 0.0f, 0.0, 0.0}}};
    sl_draft_plan plan = {0};
    run_world(&w, &plan, 30);
    w.drafters[0].right = 0.0;
    expect_share_after_change("the drafter got wrong", &w, &plan, 0.8);
    w.drafters[0].right = 0.97;
    expect_share_after_change("it got good again", &w, &plan, 0.8);
    w.pass_s = 3.0;
    expect_share_after_change("the disk got slow", &w, &plan, 0.75);
    w.pass_s = 0.0;
    w.row_s = 0.2;
    expect_share_after_change("rows got dear", &w, &plan, 0.75);
}

static void a_pass_grows_in_steps(void **unused)
{
    (void)unused;
    const world w = {.pass_s = 1.0, .n_drafters = 1, .drafters = {{1e-4, 1e-6, 1.0, 0.99f, 0.0, 0.0}}};
    sl_draft_plan plan = {0};
    size_t n_text = 100, most = 2;
    for (int i = 0; i < 8; i++) {
        outcome out = {0};
        run_burst(&w, &plan, &n_text, &out);
        assert_in_range(out.rows, 1, 4 * most);
        most = out.rows > most ? out.rows : most;
    }
    assert_in_range(most, 200, 256);
}

/* ---------------------------------------------------------------------------------------------------------- guesses */

static void join(sl_guesses *g, size_t drafter, const sl_draft_node *nodes, size_t n)
{
    sl_draft_tree tree = {n, n, (sl_draft_node[16]){{0}}};
    memcpy(tree.nodes, nodes, n * sizeof *nodes);
    sl_guesses_join(g, drafter, &tree);
}

static void guesses_are_joined_and_ordered(void **unused)
{
    (void)unused;
    static sl_guesses g;
    static sl_burst_rows rows;
    static sl_draft_counts counts;
    sl_draft_plan plan = {0};
    sl_guess_limits limits = {255, true, true, 0.0};
    /* 5 -> 6 -> 7, and 8 behind 5; an id that is none, with its child; a parent that comes later */
    const sl_draft_node a[] = {{5, -1, 0.9f, 0}, {6, 0, 0.8f, 0}, {8, 0, 0.1f, 0}, {7, 1, 0.8f, 0},
                               {50, 0, 1.0f, 0}, {6, 4, 1.0f, 0}, {9, 7, 0.5f, 0}, {6, 0, 0.7f, 0}};
    /* the same 5 -> 6, then another way; and another beginning */
    const sl_draft_node b[] = {{5, -1, 0.5f, 0}, {6, 0, 0.5f, 0}, {9, 1, 0.5f, 0}, {4, -1, 0.05f, 0}};
    sl_guesses_start(&g, &plan, 50);
    join(&g, 0, a, 8);
    join(&g, 1, b, 4);
    sl_guesses_pick(&g, &limits, 3, &rows);
    static const int32_t ids[] = {3, 5, 6, 7, 9, 8, 4}, parents[] = {-1, 0, 1, 2, 2, 1, 0};
    assert_int_equal(7, rows.n);
    assert_true(rows.is_tree && sl_tree_is_ordered(rows.parents, rows.n));
    assert_memory_equal(ids, rows.ids, sizeof ids);
    assert_memory_equal(parents, rows.parents, sizeof parents);
    assert_int_equal(4, sl_burst_rows_find(&rows, 2, 9));
    assert_int_equal(-1, sl_burst_rows_find(&rows, 0, 9));
    const int32_t drawn[] = {5, 6, 9, 1};
    sl_guesses_judge(&g, drawn, 4, &counts);
    assert_int_equal(1, counts.proposed[0][0]); /* 5 */
    assert_int_equal(2, counts.proposed[0][1]); /* 6, 8 */
    assert_int_equal(2, counts.proposed[1][0]); /* 5, 4 */
    assert_int_equal(1, counts.accepted[1][2]); /* 9 */
    assert_int_equal(0, counts.accepted[0][2]);
    assert_int_equal(1, counts.accepted[0][1]);
    /* a chain: the likeliest way */
    limits.may_branch = false;
    sl_guesses_pick(&g, &limits, 3, &rows);
    assert_int_equal(4, rows.n);
    assert_false(rows.is_tree);
    assert_int_equal(7, rows.ids[3]);
    limits = (sl_guess_limits){2, true, true, 0.0};
    sl_guesses_pick(&g, &limits, 3, &rows);
    assert_int_equal(3, rows.n);
}

/* More leaves than a pass may have branches, more nodes than rows. */
static void bushes_are_pruned(void **unused)
{
    (void)unused;
    static sl_guesses g;
    static sl_burst_rows rows;
    sl_draft_plan plan = {0};
    const sl_guess_limits limits = {255, true, true, 0.0};
    sl_guesses_start(&g, &plan, N_VOCAB);
    for (size_t d = 0; d < 3; d++) {
        static sl_draft_node nodes[SL_MAX_DRAFTS];
        sl_draft_tree tree = {0, SL_MAX_DRAFTS, nodes};
        for (size_t i = 0; i < SL_MAX_DRAFTS; i++)
            sl_draft_tree_add(&tree, (int32_t)(d * 255 + i) % N_VOCAB, i < 30 ? -1 : (int32_t)(i - 30), 0.5f);
        sl_guesses_join(&g, d, &tree);
    }
    sl_guesses_pick(&g, &limits, 3, &rows);
    assert_true(rows.is_tree && sl_tree_is_ordered(rows.parents, rows.n));
    assert_in_range(rows.n, 100, SL_TREE_MAX_ROWS);
}

int main(void)
{
    const char *seed = getenv("SLUICE_TEST_SEED");
    state = seed ? strtoull(seed, NULL, 10) : 20261202;
    printf("seed %llu\n", (unsigned long long)state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_are_joined_and_ordered),
        cmocka_unit_test(bushes_are_pruned),
        cmocka_unit_test(a_pass_grows_in_steps),
        cmocka_unit_test(comes_near_the_best_fixed_number),
        cmocka_unit_test(wrong_drafts_are_given_up),
        cmocka_unit_test(drafters_are_asked_when_they_pay),
        cmocka_unit_test(a_drafter_that_cannot_pay_is_not_asked),
        cmocka_unit_test(changes_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
