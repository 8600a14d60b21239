/* The hot set beside a walk: it changes no bit of attention, its masses are those of binary64 softmax, what it holds
 * are the context's tiles, what it wants are the largest means; all of it the same whatever threads and ring. And
 * attention over a hot set that holds everything is attention. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn/attn.h"
#include "attn/hot_attend.h"
#include "attn/hot_impl.h"
#include "base/half.h"
#include "common/effort.h"

enum {
    N_LAYERS = 2,
    N_HEADS = 6,
    MOST = 9000, /* tokens, over two segments */
    ROWS = 9
};

static uint64_t random_state;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static float noise(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(next_random() >> 40) * 0x1p-24f - 0.5f;
    return sum * 2.0f;
}

typedef struct ways {
    size_t threads, n_slots;
    uint64_t resident_bytes;
    size_t hot_tokens;
    uint64_t span; /* of the second layer; 0: it does not slide */
} ways;

typedef struct rig {
    sl_kv_layer layers[N_LAYERS];
    sl_geom geom;
    sl_budget budget;
    sl_pool *pool;
    sl_kernels kernels;
    sl_kv *kv;
    sl_attn *attn;
    sl_hot *hot;
    uint8_t *tiles[N_LAYERS]; /* of MOST tokens */
    size_t n_stored;
    float *q, *out; /* of the last pass, [N_LAYERS][ROWS][N_HEADS * 64] */
} rig;

static uint8_t *tile_at(const rig *r, uint32_t layer, size_t tile, size_t head)
{
    const sl_kv_layer *l = &r->layers[layer];
    return r->tiles[layer] + (tile * l->n_kv_heads + head) * sl_tile_bytes(r->geom.type, l->head_dim);
}

/* Some tiles have keys that most queries like. */
static void fill_tiles(rig *r)
{
    float k[64], v[64];
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        const sl_kv_layer *l = &r->layers[layer];
        const size_t bytes = (MOST / SL_TILE + 1) * sl_geom_group_bytes(&r->geom, layer);
        assert_int_equal(0, posix_memalign((void **)&r->tiles[layer], 64, bytes));
        memset(r->tiles[layer], 0, bytes);
        for (size_t t = 0; t < MOST; t++)
            for (size_t h = 0; h < l->n_kv_heads; h++) {
                for (size_t d = 0; d < l->head_dim; d++) {
                    k[d] = noise() + (t / SL_TILE % 7 == h + 1 && d < 4 ? 1.5f : 0.0f);
                    v[d] = noise();
                }
                assert_true(sl_kernels_kv_pack(&r->kernels, r->geom.type)(tile_at(r, layer, t / SL_TILE, h),
                                                                          t % SL_TILE, k, v, l->head_dim));
            }
    }
}

static sl_attn_options attn_options(const rig *r, sl_hot *hot)
{
    return (sl_attn_options){.kernels = &r->kernels,
                             .pool = r->pool,
                             .budget = (sl_budget *)&r->budget,
                             .geom = r->geom,
                             .n_heads = N_HEADS,
                             .max_rows = 2 * SL_SEGMENT_TOKENS,
                             .hot = hot};
}

static void set_up(rig *r, sl_kv_type type, const ways *w)
{
    sl_err err;
    random_state = 20261130;
    r->layers[0] = (sl_kv_layer){.n_kv_heads = 2, .head_dim = 64};
    r->layers[1] = (sl_kv_layer){.n_kv_heads = 3, .head_dim = 32, .span = w->span};
    r->geom = (sl_geom){type, N_LAYERS, r->layers};
    sl_budget_init(&r->budget, UINT64_MAX);
    sl_kernels_init(&r->kernels, sl_cpu_best());
    assert_int_equal(SL_OK, sl_pool_create(w->threads, &r->budget, &r->pool, &err));
    fill_tiles(r);
    r->q = malloc(N_LAYERS * ROWS * N_HEADS * 64 * sizeof *r->q);
    r->out = malloc(N_LAYERS * ROWS * N_HEADS * 64 * sizeof *r->out);
    assert_non_null(r->q);
    assert_non_null(r->out);
    const sl_kv_options kv = {.geom = r->geom,
                              .dir = getenv("SLUICE_TEST_DIR") ? getenv("SLUICE_TEST_DIR") : "/var/tmp",
                              .max_tokens = MOST,
                              .resident_bytes = w->resident_bytes,
                              .slot_bytes = sl_geom_max_part_bytes(&r->geom),
                              .n_slots = w->n_slots,
                              .budget = &r->budget};
    assert_int_equal(SL_OK, sl_kv_create(&kv, &r->kv, &err));
    const sl_hot_options hot = {.kernels = &r->kernels,
                                .pool = r->pool,
                                .budget = &r->budget,
                                .geom = r->geom,
                                .n_heads = N_HEADS,
                                .max_tokens = MOST,
                                .hot_tokens = w->hot_tokens};
    if (w->hot_tokens > 0) {
        const uint64_t before = r->budget.used_bytes;
        assert_int_equal(SL_OK, sl_hot_create(&hot, &r->hot, &err));
        assert_in_range(r->budget.used_bytes - before, 1, sl_hot_bytes(&hot));
    }
    const sl_attn_options attn = attn_options(r, r->hot);
    assert_int_equal(SL_OK, sl_attn_create(&attn, &r->attn, &err));
}

static void tear_down(rig *r)
{
    sl_attn_destroy(r->attn);
    sl_hot_destroy(r->hot);
    sl_kv_destroy(r->kv);
    sl_pool_destroy(r->pool);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        free(r->tiles[layer]);
    free(r->q);
    free(r->out);
    assert_int_equal(0, r->budget.used_bytes);
    sl_budget_deinit(&r->budget);
}

/* As a graph does after a pass. */
static void append(rig *r, size_t n)
{
    sl_err err = {SL_OK, ""};
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        const uint8_t *groups = tile_at(r, layer, r->n_stored / SL_TILE, 0);
        if (sl_kv_append(r->kv, layer, groups, n, &err) != SL_OK)
            fail_msg("append: %s", err.text);
        if (r->hot)
            sl_hot_append(r->hot, layer, r->n_stored, groups, n);
    }
    r->n_stored += n;
}

static void pass_of(rig *r, size_t n_rows, bool is_burst)
{
    sl_err err = {SL_OK, ""};
    assert_true(n_rows <= ROWS);
    assert_int_equal(SL_OK, sl_kv_pass_begin(r->kv, true, &err));
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        float *q = r->q + layer * ROWS * N_HEADS * 64, *out = r->out + layer * ROWS * N_HEADS * 64;
        const size_t width = N_HEADS * r->layers[layer].head_dim;
        for (size_t i = 0; i < n_rows * width; i++)
            q[i] = noise() + (i % r->layers[layer].head_dim < 4 ? 1.0f : 0.0f);
        const sl_attn_rows rows = {.layer = layer,
                                   .first_pos = r->n_stored,
                                   .n_rows = n_rows,
                                   .q = q,
                                   .q_stride = width,
                                   .out = out,
                                   .out_stride = width,
                                   .own_groups = tile_at(r, layer, r->n_stored / SL_TILE, 0),
                                   .is_burst = is_burst};
        if (sl_attn_run(r->attn, r->kv, &rows, &err) != SL_OK)
            fail_msg("pass: %s", err.text);
    }
    assert_int_equal(SL_OK, sl_kv_pass_end(r->kv, &err));
}

static void pass(rig *r, size_t n_rows)
{
    pass_of(r, n_rows, true);
}

/* --------------------------------------------------------------------------------------------------------- masses */

static double key_value(const rig *r, uint32_t layer, size_t token, size_t head, size_t d)
{
    const size_t dim = r->layers[layer].head_dim, lane = token % SL_TILE;
    const uint8_t *tile = tile_at(r, layer, token / SL_TILE, head);
    if (r->geom.type == SL_KV_TYPE_F16)
        return (double)sl_float_of_half(((const uint16_t *)(const void *)tile)[d * SL_TILE + lane]);
    const uint16_t *scales = (const uint16_t *)(const void *)(tile + SL_TILE * dim);
    return (double)((const int8_t *)tile)[lane * dim + d] *
           (double)sl_float_of_half(scales[d / SL_GROUP * SL_TILE + lane]);
}

/* One query's share of attention by tile, plainly. */
static void add_shares(const rig *r, uint32_t layer, size_t row, size_t query_head, double *shares)
{
    static double weights[MOST];
    const size_t dim = r->layers[layer].head_dim, group = N_HEADS / r->layers[layer].n_kv_heads;
    const float *q = r->q + layer * ROWS * N_HEADS * 64 + (row * N_HEADS + query_head) * dim;
    double most = -INFINITY, sum = 0.0;
    const size_t from = (size_t)sl_geom_first_seen(&r->layers[layer], r->n_stored + row);
    for (size_t t = from; t <= r->n_stored + row; t++) {
        double dot = 0.0;
        for (size_t d = 0; d < dim; d++)
            dot += (double)q[d] * key_value(r, layer, t, query_head / group, d);
        weights[t] = dot / sqrt((double)dim);
        most = weights[t] > most ? weights[t] : most;
    }
    for (size_t t = from; t <= r->n_stored + row; t++)
        sum += weights[t] = exp(weights[t] - most);
    for (size_t t = from; t <= r->n_stored + row; t++)
        shares[t / SL_TILE] += weights[t] / sum;
}

/* After the first pass the means are the masses: of a burst the first rows', on stored tiles; of a window the last
 * ones', of the last block's queries, on its own tiles too. */
static void compare_masses(const rig *r, size_t n_rows, bool is_burst)
{
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        const size_t n_kv_heads = r->layers[layer].n_kv_heads, group = N_HEADS / n_kv_heads;
        const size_t n_queries = n_rows * group, last = (n_queries - 1) % SL_LANES + 1, most = r->hot->max_lanes;
        size_t n_lanes = is_burst ? n_queries : last;
        n_lanes = n_lanes < most ? n_lanes : most;
        const size_t first = is_burst ? 0 : n_queries - n_lanes;
        const size_t n_tiles = is_burst ? r->n_stored / SL_TILE : (r->n_stored + n_rows + SL_TILE - 1) / SL_TILE;
        for (size_t head = 0; head < n_kv_heads; head++) {
            double shares[MOST / SL_TILE + 1] = {0}, all = 0.0;
            for (size_t i = first; i < first + n_lanes; i++)
                add_shares(r, layer, i / group, head * group + i % group, shares);
            const float *means = sl_hot_head_of(r->hot, layer, head)->means;
            for (size_t t = 0; t < n_tiles; t++) {
                const double want = shares[t] / (double)n_lanes;
                all += (double)means[t];
                if (fabs((double)means[t] - want) > 1e-6 + 1e-3 * want)
                    fail_msg("type %d, layer %u, head %zu, tile %zu: mass %g, expected %g", (int)r->geom.type, layer,
                             head, t, (double)means[t], want);
            }
            assert_true((all > 0.5 || r->layers[layer].span > 0) && all < 1.0001);
        }
    }
}

static void masses_are_shares_of_attention(void **unused)
{
    (void)unused;
    static const size_t tokens[] = {SL_TILE, 700, 5000, 2 * SL_SEGMENT_TOKENS, 4090, 4096};
    static const size_t rows[] = {1, 4, ROWS, 8, 4, ROWS};
    for (int type = 0; type < SL_KV_TYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i += EFFORT_IS_SMALL ? 2 : 1) {
            rig r = {0};
            const ways w = {i % 2 ? 3 : 1, 2, 0, 512, i > 1 ? 1000 : 0};
            set_up(&r, (sl_kv_type)type, &w);
            append(&r, tokens[i]);
            pass_of(&r, rows[i], i % 2 == 0);
            compare_masses(&r, rows[i], i % 2 == 0);
            tear_down(&r);
        }
}

/* ------------------------------------------------------------------------------------------------------- the set */

/* What is there is the context's; the first and the last tiles and no better ones are missing. */
static void check_set(const rig *r)
{
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        for (size_t h = 0; h < r->layers[layer].n_kv_heads; h++) {
            const sl_hot_view view = sl_hot_get(r->hot, layer, h);
            const size_t bytes = sl_tile_bytes(r->geom.type, r->layers[layer].head_dim);
            const size_t n_tiles = r->n_stored / SL_TILE;
            bool is_there[MOST / SL_TILE + 1] = {false};
            for (size_t i = 0; i < view.n; i++) {
                if (view.tiles[i] < 0)
                    continue;
                assert_in_range(view.tiles[i], 0, n_tiles - 1);
                assert_false(is_there[view.tiles[i]]);
                is_there[view.tiles[i]] = true;
                assert_memory_equal(view.data + i * bytes, tile_at(r, layer, (size_t)view.tiles[i], h), bytes);
            }
            const size_t first = (size_t)sl_geom_first_seen(&r->layers[layer], n_tiles * SL_TILE) / SL_TILE;
            assert_true(n_tiles == 0 || is_there[n_tiles - 1]);
            assert_true(n_tiles == 0 || first > 0 || is_there[0]);
        }
}

/* Every wanted tile is worth no less than any unwanted one; both as they stood when they were chosen. */
static void check_choice(const rig *r)
{
    for (size_t i = 0; i < r->hot->n_all_heads; i++) {
        const sl_hot_head *head = &r->hot->heads[i];
        float best_out = 0.0f, worst_in = INFINITY;
        bool is_in[MOST / SL_TILE + 1] = {false};
        for (size_t s = 0; s < r->hot->n_slots; s++)
            if (head->tiles[s] >= 0)
                is_in[head->tiles[s]] = true;
        for (size_t m = 0; m < head->n_missing; m++)
            assert_true(is_in[head->missing[m].tile]);
        const size_t n_tiles = r->n_stored / SL_TILE, recent = r->hot->n_slots / 4;
        for (size_t t = 1; t + recent < n_tiles; t++) {
            const float last = head->means[t - 1] * 0.5f, worth = head->means[t] > last ? head->means[t] : last;
            best_out = !is_in[t] && worth > best_out ? worth : best_out;
            worst_in = is_in[t] && worth < worst_in ? worth : worst_in;
        }
        assert_true(worst_in * 1.25f >= best_out);
    }
}

/* A text grows by passes; drawn is by how much each time. */
static void grow(rig *r, size_t n_passes)
{
    append(r, 5000);
    for (size_t i = 0; i < n_passes; i++) {
        const size_t rows = 1 + i % ROWS;
        pass(r, rows);
        append(r, i % (rows + 1));
        if (r->hot)
            check_set(r);
    }
}

static uint64_t hash_of(const void *data, size_t bytes, uint64_t hash)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001B3);
    return hash;
}

static uint64_t hash_set(const rig *r)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < r->hot->n_all_heads; i++) {
        const sl_hot_head *head = &r->hot->heads[i];
        hash = hash_of(head->tiles, r->hot->n_slots * sizeof *head->tiles, hash);
        hash = hash_of(head->means, r->n_stored / SL_TILE * sizeof *head->means, hash);
    }
    return hash;
}

static void the_set_follows_and_changes_nothing(void **unused)
{
    (void)unused;
    static const ways all[] = {{1, 2, 0, 0, 0}, {1, 2, 0, 1024, 0}, {2, 3, 0, 1024, 0}, {7, 2, 1 << 20, 1024, 0}};
    for (int type = 0; type < SL_KV_TYPE_COUNT; type++) {
        uint64_t bits = 0, set = 0;
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            rig r = {0};
            set_up(&r, (sl_kv_type)type, &all[i]);
            grow(&r, EFFORT_IS_SMALL ? 6 : 20);
            pass(&r, ROWS);
            uint64_t hash = hash_of(r.out, ROWS * N_HEADS * 64 * sizeof *r.out, 0);
            hash = hash_of(r.out + ROWS * N_HEADS * 64, ROWS * N_HEADS * 32 * sizeof *r.out, hash);
            if (i > 0)
                assert_int_equal(bits, hash);
            bits = hash;
            if (r.hot) {
                append(&r, 1);
                pass(&r, 1); /* what was missing has come */
                check_choice(&r);
                size_t present = 0, wanted = 0;
                sl_hot_count(r.hot, &present, &wanted);
                assert_int_equal(present, wanted);
                assert_int_equal(wanted, r.hot->n_slots * r.hot->n_all_heads);
                if (i > 1)
                    assert_int_equal(set, hash_set(&r));
                set = hash_set(&r);
            }
            tear_down(&r);
        }
    }
}

static void what_is_cut_off_is_forgotten(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    rig r = {0};
    const ways w = {2, 2, 0, 512, 0};
    set_up(&r, SL_KV_TYPE_Q8_0, &w);
    grow(&r, 4);
    assert_int_equal(SL_OK, sl_kv_truncate(r.kv, 3000, &err));
    r.n_stored = 3000;
    sl_hot_settle(r.hot, 3000);
    for (size_t i = 0; i < r.hot->n_all_heads; i++)
        for (size_t s = 0; s < r.hot->n_slots; s++)
            assert_true(r.hot->heads[i].tiles[s] < 3000 / SL_TILE);
    /* Other tokens in the place of the forgotten ones. */
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        memcpy(tile_at(&r, layer, 3008 / SL_TILE, 0), tile_at(&r, layer, 1, 0),
               20 * sl_geom_group_bytes(&r.geom, layer));
    append(&r, 8); /* to the end of a tile */
    pass(&r, 3);
    append(&r, 1000);
    pass(&r, 3);
    append(&r, 0);
    check_set(&r);
    tear_down(&r);
}

/* Passes of a single row are looked at every fourth time, in each layer another; the first one of a text always, and of
 * four rows and more every one. What is missing comes whether a pass is looked at or not. */
static void single_rows_are_looked_at_in_turn(void **unused)
{
    (void)unused;
    rig r = {0};
    const ways w = {1, 2, 0, 1024, 0};
    set_up(&r, SL_KV_TYPE_Q8_0, &w);
    append(&r, 5000);
    for (int text = 0; text < 2; text++) {
        size_t looks[N_LAYERS] = {0}, both = 0, n_firsts = 0;
        for (size_t i = 0; i < 1 + 4 * 5; i++) {
            bool is_noted[N_LAYERS];
            for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
                const sl_hot_rows rows = {.layer = layer, .first_pos = r.n_stored, .n_rows = 1, .group = 2};
                size_t block = 1;
                is_noted[layer] = sl_hot_begin(r.hot, &rows, &block) != NULL;
                assert_int_equal(0, block);
                looks[layer] += i > 0 && is_noted[layer];
                n_firsts += i == 0 && is_noted[layer];
            }
            both += i > 0 && is_noted[0] && is_noted[1];
        }
        assert_int_equal(N_LAYERS, n_firsts);
        assert_int_equal(5, looks[0]);
        assert_int_equal(5, looks[1]);
        assert_int_equal(0, both);
        const sl_hot_rows four = {.n_rows = 4, .first_pos = r.n_stored, .group = 2};
        size_t block = 0;
        for (int i = 0; i < 3; i++)
            assert_non_null(sl_hot_begin(r.hot, &four, &block));
        sl_hot_settle(r.hot, 3000);
        r.n_stored = 3000;
    }
    tear_down(&r);
}

static void what_is_missing_comes_with_any_pass(void **unused)
{
    (void)unused;
    rig r = {0};
    const ways w = {1, 2, 0, 1024, 0};
    set_up(&r, SL_KV_TYPE_Q8_0, &w);
    append(&r, 5000);
    size_t present = 0, wanted = 0, n_missed = 0;
    for (size_t i = 0; i < 9; i++) {
        pass(&r, i % 3 ? 1 : ROWS);
        sl_hot_count(r.hot, &present, &wanted);
        assert_int_equal(present, wanted);
        append(&r, 1);
        sl_hot_count(r.hot, &present, &wanted);
        n_missed += wanted - present;
        check_set(&r);
    }
    assert_true(n_missed > 0);
    tear_down(&r);
}

/* ------------------------------------------------------------------------------------------------------ attending */

static void attending_to_everything_is_attention(void **unused)
{
    (void)unused;
    for (int type = 0; type < SL_KV_TYPE_COUNT; type++)
        for (size_t threads = 1; threads <= 3; threads += 2) {
            sl_err err = {SL_OK, ""};
            rig r = {0};
            const ways w = {threads, 2, 0, MOST, threads > 1 ? 777 : 0};
            set_up(&r, (sl_kv_type)type, &w);
            append(&r, 4500);
            pass(&r, ROWS);
            sl_hot_attend *attend = NULL;
            sl_attn_options options = attn_options(&r, NULL);
            options.max_rows = ROWS;
            const uint64_t before = r.budget.used_bytes;
            assert_int_equal(SL_OK, sl_hot_attend_create(&options, &attend, &err));
            assert_in_range(r.budget.used_bytes - before, 1, sl_hot_attend_bytes(&options));
            for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
                float out[ROWS * N_HEADS * 64];
                const size_t width = N_HEADS * r.layers[layer].head_dim;
                const sl_attn_rows rows = {.layer = layer,
                                           .first_pos = r.n_stored,
                                           .n_rows = ROWS,
                                           .q = r.q + layer * ROWS * N_HEADS * 64,
                                           .q_stride = width,
                                           .out = out,
                                           .out_stride = width};
                /* From a tile that the hot set holds too: it counts once. */
                const size_t from = r.n_stored / SL_TILE - 1;
                sl_hot_attend_run(attend, r.hot, &rows, tile_at(&r, layer, from, 0), from * SL_TILE);
                const float *want = r.out + layer * ROWS * N_HEADS * 64;
                for (size_t i = 0; i < ROWS * width; i++)
                    if (fabsf(out[i] - want[i]) > 1e-4f)
                        fail_msg("type %d, layer %u, value %zu: %g, expected %g", type, layer, i, (double)out[i],
                                 (double)want[i]);
            }
            sl_hot_attend_destroy(attend);
            tear_down(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masses_are_shares_of_attention),    cmocka_unit_test(the_set_follows_and_changes_nothing),
        cmocka_unit_test(single_rows_are_looked_at_in_turn), cmocka_unit_test(what_is_missing_comes_with_any_pass),
        cmocka_unit_test(what_is_cut_off_is_forgotten),      cmocka_unit_test(attending_to_everything_is_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
