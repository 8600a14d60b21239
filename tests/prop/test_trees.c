/* Trees of rows: each row's logits are, bit for bit, those of a plain chain over its path; a path that is accepted
 * leaves the store with the bytes of a text that was never guessed at. Random trees at every edge of tile and segment,
 * for both cache types, any threads and residence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "common/effort.h"
#include "common/tiny_run.h"

enum { MOST_ROWS = 256, MAX_TOKENS = 4600 };

static uint64_t state;

static size_t pick(size_t low, size_t high)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return low + (size_t)(state % (high - low + 1));
}

static int32_t text[MAX_TOKENS];

/* One context and the graphs that work on it. */
typedef struct place {
    tiny_run *run;
    sl_kv_type type;
    sl_pool *pool;
    sl_kv *kv;
    sl_graph *window, *burst;
    size_t n; /* tokens stored */
    float *logits;
} place;

static sl_graph *make_graph(const place *p, size_t max_rows, bool staged)
{
    sl_err err = {SL_OK, ""};
    sl_graph *graph = NULL;
    const sl_graph_options options = {
        .weights = p->run->weights,
        .kernels = &p->run->kernels,
        .pool = p->pool,
        .budget = &p->run->budget,
        .geom = {p->type, p->run->weights->hp.n_layers, p->run->layers},
        .max_rows = max_rows,
        .staged = staged,
        .trees = staged,
    };
    if (sl_graph_create(&options, &graph, &err) != SL_OK)
        fail_msg("%s", err.text);
    return graph;
}

static void open_place(place *p, tiny_run *run, sl_kv_type type, size_t threads, size_t resident_percent)
{
    sl_err err = {SL_OK, ""};
    *p = (place){.run = run, .type = type};
    assert_int_equal(SL_OK, sl_pool_create(threads, &run->budget, &p->pool, &err));
    const tiny_ways ways = {threads, 512, 2, 1, resident_percent, 0, 0};
    sl_session_options options = tiny_session_options(run, type, &ways, MAX_TOKENS, p->pool);
    assert_int_equal(SL_OK, sl_kv_create(&options.kv, &p->kv, &err));
    p->window = make_graph(p, 512, false);
    p->burst = make_graph(p, MOST_ROWS, true);
    p->logits = malloc(SL_GRAPH_LOGIT_ROWS * run->weights->hp.n_vocab * sizeof *p->logits);
    assert_non_null(p->logits);
}

static void close_place(place *p)
{
    free(p->logits);
    sl_graph_destroy(p->burst);
    sl_graph_destroy(p->window);
    sl_kv_destroy(p->kv);
    sl_pool_destroy(p->pool);
}

static void pass(place *p, sl_graph *graph, const int32_t *ids, const int32_t *parents, size_t n)
{
    sl_err err = {SL_OK, ""};
    const sl_graph_rows rows = {
        .ids = ids, .parents = parents, .n_rows = n, .first_pos = p->n, .will_follow = pick(0, 1) == 1};
    if (sl_graph_pass(graph, p->kv, &rows, &err) != SL_OK)
        fail_msg("pass: %s", err.text);
}

static void hash_logits(place *p, sl_graph *graph, size_t n, uint64_t *hashes)
{
    sl_err err = {SL_OK, ""};
    size_t n_vocab = p->run->weights->hp.n_vocab;
    for (size_t first = 0; first < n; first += SL_GRAPH_LOGIT_ROWS) {
        size_t now = n - first < SL_GRAPH_LOGIT_ROWS ? n - first : SL_GRAPH_LOGIT_ROWS;
        if (sl_graph_logits(graph, first, now, p->logits, &err) != SL_OK)
            fail_msg("logits: %s", err.text);
        for (size_t i = 0; i < now; i++)
            hashes[first + i] = sl_hash(p->logits + i * n_vocab, n_vocab * sizeof *p->logits);
    }
}

/* Stores text[p->n, to) by windows of random size. */
static void read_up_to(place *p, size_t to)
{
    while (p->n < to) {
        size_t n = pick(1, 512);
        n = n < to - p->n ? n : to - p->n;
        pass(p, p->window, text + p->n, NULL, n);
        p->n += n;
    }
}

/* ---------------------------------------------------------------------------------------------------------- trees */

typedef struct rows_of {
    size_t n;
    int32_t ids[MOST_ROWS], parents[MOST_ROWS];
} rows_of;

/* In depth-first order; bushy ones branch at every other row, as far as branches are left. */
static void random_tree(rows_of *t, size_t n)
{
    t->n = n;
    size_t n_branches = 0, odds = pick(1, 12), near = pick(0, 1);
    for (size_t row = 0; row < n; row++) {
        t->ids[row] = (int32_t)pick(3, tiny_model_n_vocab() - 1);
        t->parents[row] = (int32_t)row - 1;
        if (row < 2 || n_branches == SL_TREE_MAX_BRANCHES || pick(0, odds) > 0)
            continue;
        size_t up = near ? pick(1, 3) : pick(1, row);
        int32_t parent = (int32_t)row - 1;
        for (size_t i = 0; i < up && parent > 0; i++)
            parent = t->parents[parent];
        t->parents[row] = parent;
        n_branches++;
    }
    assert_true(sl_tree_is_ordered(t->parents, n));
}

/* Rows from row 0 to `row`. */
static size_t path_to(const rows_of *t, int32_t row, int32_t *path)
{
    size_t n = 0;
    for (int32_t at = row; at > 0; at = t->parents[at])
        n++;
    path[0] = 0;
    for (size_t i = n; i > 0; i--, row = t->parents[row])
        path[i] = row;
    return n + 1;
}

static bool is_leaf(const rows_of *t, size_t row)
{
    for (size_t i = row + 1; i < t->n; i++)
        if (t->parents[i] == (int32_t)row)
            return false;
    return true;
}

static void expect_rows_of_chains(place *p, const rows_of *t, const uint64_t *tree_hashes)
{
    static uint64_t hashes[MOST_ROWS];
    for (size_t leaf = 0; leaf < t->n; leaf++) {
        int32_t path[MOST_ROWS], ids[MOST_ROWS];
        if (!is_leaf(t, leaf))
            continue;
        size_t n = path_to(t, (int32_t)leaf, path);
        for (size_t i = 0; i < n; i++)
            ids[i] = t->ids[path[i]];
        pass(p, p->burst, ids, NULL, n);
        hash_logits(p, p->burst, n, hashes);
        for (size_t i = 0; i < n; i++)
            if (hashes[i] != tree_hashes[path[i]])
                fail_msg("KV type %d, %zu stored, tree of %zu rows: row %d at depth %zu differs from a chain's",
                         (int)p->type, p->n, t->n, path[i], i);
    }
}

/* Part by part, as stored; tails too. */
static void expect_same_store(place *a, place *b)
{
    sl_err err = {SL_OK, ""};
    sl_geom geom = {a->type, a->run->weights->hp.n_layers, a->run->layers};
    size_t bytes = sl_geom_max_part_bytes(&geom);
    uint8_t *x = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096),
            *y = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    assert_non_null(x);
    assert_non_null(y);
    for (uint32_t layer = 0; layer < geom.n_layers; layer++)
        for (uint64_t part = 0; part * SL_PART_TOKENS < a->n; part++) {
            memset(x, 0, bytes);
            memset(y, 0, bytes);
            if (sl_kv_get_part(a->kv, layer, part, x, &err) != SL_OK ||
                sl_kv_get_part(b->kv, layer, part, y, &err) != SL_OK)
                fail_msg("%s", err.text);
            if (memcmp(x, y, bytes) != 0)
                fail_msg("KV type %d, %zu tokens: layer %u, part %u differs from plain decoding", (int)a->type, a->n,
                         (unsigned)layer, (unsigned)part);
        }
    free(x);
    free(y);
}

/* A random path's first rows are accepted: logits then and bytes now are those of the plain text. */
static void accept_some(place *p, const rows_of *t)
{
    sl_err err = {SL_OK, ""};
    int32_t path[MOST_ROWS];
    size_t n = path_to(t, (int32_t)pick(0, t->n - 1), path);
    if (sl_graph_accept(p->burst, p->kv, path, n, &err) != SL_OK)
        fail_msg("accept: %s", err.text);
    for (size_t i = 0; i < n; i++)
        text[p->n + i] = t->ids[path[i]];
    p->n += n;
}

static void try_place(tiny_run *run, sl_kv_type type, size_t n_before)
{
    place p, plain;
    static rows_of tree;
    static uint64_t hashes[MOST_ROWS];
    open_place(&p, run, type, pick(1, 4), pick(0, 2) * 50);
    open_place(&plain, run, type, 1, 100);
    read_up_to(&p, n_before);
    for (int i = 0; i < EFFORT(6); i++) {
        static const size_t sizes[] = {3, 9, 17, 40, 64, 100, 255};
        random_tree(&tree, i == 0 ? MOST_ROWS : sizes[pick(0, sizeof sizes / sizeof sizes[0] - 1)] + pick(0, 1));
        pass(&p, p.burst, tree.ids, tree.parents, tree.n);
        hash_logits(&p, p.burst, tree.n, hashes);
        expect_rows_of_chains(&p, &tree, hashes);
        pass(&p, p.burst, tree.ids, tree.parents, tree.n);
        accept_some(&p, &tree);
        if (p.n + MOST_ROWS > MAX_TOKENS)
            break;
    }
    read_up_to(&plain, p.n);
    expect_same_store(&p, &plain);
    close_place(&plain);
    close_place(&p);
}

static void rows_of_trees_equal_chains(void **unused)
{
    (void)unused;
    static const size_t lengths[] = {0, 1, 60, 63, 64, 300, 1020, 4000, 4090, 4095, 4096};
    tiny_run run;
    tiny_model model = tiny_model_of_seed(21);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i += EFFORT_IS_SMALL ? 3 : 1)
        for (int type = 0; type < SL_KV_TYPE_COUNT; type++)
            try_place(&run, (sl_kv_type)type, lengths[i]);
    tiny_run_close(&run);
}

/* ---------------------------------------------------------------------------------------------------------- shapes */

static void orders_that_are_none(void **unused)
{
    (void)unused;
    const int32_t chain[] = {-1, 0, 1, 2}, star[] = {-1, 0, 0, 0}, back[] = {-1, 0, 1, 0, 3};
    const int32_t jump[] = {-1, 0, 0, 1}, self[] = {-1, 1}, none[] = {-1, -1}, late[] = {-1, 0, 3, 2};
    assert_true(sl_tree_is_ordered(chain, 4) && sl_tree_is_ordered(star, 4) && sl_tree_is_ordered(back, 5));
    assert_false(sl_tree_is_ordered(jump, 4) || sl_tree_is_ordered(self, 2) || sl_tree_is_ordered(none, 2) ||
                 sl_tree_is_ordered(late, 4) || sl_tree_is_ordered(chain, 0));
    int32_t wide[MOST_ROWS] = {-1};
    assert_true(sl_tree_is_ordered(wide, SL_TREE_MAX_BRANCHES + 2));
    assert_false(sl_tree_is_ordered(wide, SL_TREE_MAX_BRANCHES + 3));
}

static void tiles_of_branches_have_room(void **unused)
{
    (void)unused;
    static rows_of tree;
    sl_tree shape;
    for (int i = 0; i < 3000; i++) {
        random_tree(&tree, pick(1, MOST_ROWS));
        sl_tree_init(&shape, tree.parents, tree.n, pick(0, 5000));
        assert_in_range(shape.n_tiles, 0, sl_tree_max_tiles(tree.n));
    }
}

int main(void)
{
    const char *seed = getenv("SLUICE_TEST_SEED");
    state = seed ? strtoull(seed, NULL, 10) : 20261201;
    printf("seed %llu\n", (unsigned long long)state);
    for (size_t i = 0; i < MAX_TOKENS; i++)
        text[i] = (int32_t)pick(3, tiny_model_n_vocab() - 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_that_are_none),
        cmocka_unit_test(tiles_of_branches_have_room),
        cmocka_unit_test(rows_of_trees_equal_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
