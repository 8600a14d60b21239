/* Runs of tiles (attn_tiles_q8) of every level against the reference, bit for bit: each number of queries about those
 * that a level takes in its own way, each number of tiles, tiles side by side or apart. */
#include "check.h"

#include <math.h>

#include "base/fpenv.h"
#include "kernel/kernel.h"

static sl_kernels ref, level_kernels;
static check_rng rng;

typedef struct run_case {
    size_t head_dim, n_queries, n_tiles, stride;
    float softcap;
} run_case;

static void fill_tiles(uint8_t *tiles, const run_case *c)
{
    float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
    for (size_t key = 0; key < c->n_tiles * SL_TILE; key++) {
        check_values values = (check_values)check_rng_below(&rng, CHECK_VALUES_COUNT);
        check_fill(&rng, values, 8e6f, k, c->head_dim);
        check_fill(&rng, values, 8e6f, v, c->head_dim);
        assert_true(ref.kv_pack_q8(tiles + key / SL_TILE * c->stride, key % SL_TILE, k, v, c->head_dim));
    }
}

static void fill_queries(uint8_t *qblocks, const run_case *c)
{
    static float q[SL_LANES][SL_MAX_HEAD_DIM];
    const float *rows[SL_LANES];
    for (size_t first = 0; first < c->n_queries; first += SL_LANES) {
        size_t n = c->n_queries - first < SL_LANES ? c->n_queries - first : SL_LANES;
        for (size_t i = 0; i < n; i++) {
            check_fill(&rng, CHECK_VALUES_NORMAL, 1.0f, q[i], c->head_dim);
            rows[i] = q[i];
        }
        ref.attn_qpack_q8(qblocks, rows, n, c->head_dim, (c->softcap > 0.0f ? 0.1f : SL_LOG2E) / 8.0f);
        qblocks += sl_qblock_bytes(SL_KV_TYPE_Q8_0, c->head_dim);
    }
}

/* At the start, or as tiles could have left them. */
static void fill_states(float *states, size_t n_blocks, const run_case *c)
{
    bool is_start = check_rng_below(&rng, 2);
    for (size_t b = 0; b < n_blocks; b++)
        for (size_t i = 0; i < (2 + c->head_dim) * SL_LANES; i++, states++) {
            *states = i < SL_LANES ? -INFINITY : 0.0f;
            if (!is_start)
                *states = check_rng_normal(&rng);
            if (!is_start && i / SL_LANES == 1)
                *states = fabsf(*states);
        }
}

static void compare_run(const run_case *c)
{
    size_t n_blocks = (c->n_queries + SL_LANES - 1) / SL_LANES, state_bytes = sl_state_bytes(c->head_dim);
    check_buf tiles = check_buf_new(c->n_tiles * c->stride, 64);
    check_buf qblocks = check_buf_new(n_blocks * sl_qblock_bytes(SL_KV_TYPE_Q8_0, c->head_dim), 64);
    check_buf want = check_buf_new(n_blocks * state_bytes, 64), got = check_buf_new(n_blocks * state_bytes, 64);
    check_buf scratch = check_buf_new(sl_tile_scratch_bytes(SL_KV_TYPE_Q8_0, c->head_dim), 64);
    fill_tiles(tiles.data, c);
    fill_queries(qblocks.data, c);
    fill_states(want.data, n_blocks, c);
    memcpy(got.data, want.data, want.bytes);
    sl_tile_args args = {.tile = tiles.data,
                         .head_dim = c->head_dim,
                         .qblocks = qblocks.data,
                         .states = want.data,
                         .state_stride = state_bytes,
                         .n_queries = c->n_queries,
                         .softcap = c->softcap,
                         .scratch = scratch.data,
                         .next = check_rng_below(&rng, 2) ? tiles.data : NULL};
    ref.attn_tiles_q8(&args, c->n_tiles, c->stride, ref.attn_tile_q8);
    args.states = got.data;
    level_kernels.attn_tiles_q8(&args, c->n_tiles, c->stride, level_kernels.attn_tile_q8);
    for (size_t query = 0; query < c->n_queries; query++) {
        char what[96];
        size_t at = query / SL_LANES * (2 + c->head_dim) * SL_LANES + query % SL_LANES;
        snprintf(what, sizeof what, "D %zu, query %zu of %zu, %zu tiles, softcap %g", c->head_dim, query, c->n_queries,
                 c->n_tiles, (double)c->softcap);
        check_same((const float *)got.data + at, (const float *)want.data + at, c->head_dim + 2, SL_LANES, what);
    }
    check_buf *all[] = {&tiles, &qblocks, &want, &got, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check_buf_free(all[i]);
}

static void test_runs(void **state)
{
    static const size_t head_dims[] = {32, 64, 96, 128, 160, 256}, queries[] = {1, 2, 3, 4, 5, 16, 20};
    enum { N_DIMS = sizeof head_dims / sizeof head_dims[0], N_QUERIES = sizeof queries / sizeof queries[0], TILES = 5 };
    sl_cpu_level level = *(const sl_cpu_level *)*state;
    rng.state = check_seed();
    if (!sl_cpu_has(level))
        skip();
    sl_kernels_init(&ref, SL_CPU_LEVEL_REF);
    sl_kernels_init(&level_kernels, level);
    for (size_t i = 0; i < N_DIMS * N_QUERIES * TILES; i++) {
        run_case c = {head_dims[i % N_DIMS], queries[i / N_DIMS % N_QUERIES], 1 + i / (N_DIMS * N_QUERIES), 0, 0.0f};
        c.stride = sl_tile_bytes(SL_KV_TYPE_Q8_0, c.head_dim) * (1 + check_rng_below(&rng, 3));
        c.softcap = check_rng_below(&rng, 4) ? 0.0f : 30.0f;
        compare_run(&c);
    }
}

int main(void)
{
    static sl_cpu_level levels[SL_CPU_LEVEL_COUNT];
    static char names[SL_CPU_LEVEL_COUNT][32];
    static struct CMUnitTest tests[SL_CPU_LEVEL_COUNT];
    for (size_t i = 1; i < SL_CPU_LEVEL_COUNT; i++) { /* the reference's place stays empty and is passed over */
        levels[i] = (sl_cpu_level)i;
        snprintf(names[i], sizeof names[i], "runs %s", sl_cpu_level_name(levels[i]));
        tests[i] = (struct CMUnitTest){names[i], test_runs, NULL, NULL, &levels[i]};
    }
    sl_fpenv saved = sl_fpenv_enter();
    int failed = cmocka_run_group_tests_name("attn_runs", tests, NULL, NULL);
    sl_fpenv_leave(saved);
    return failed;
}
