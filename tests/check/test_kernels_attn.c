/* Every attention kernel of every level against the reference, bit for bit. */
#include "check.h"

#include <math.h>

#include "base/fpenv.h"
#include "common/effort.h"
#include "kernel/attn_few.h"
#include "kernel/scalar.h"

static const size_t head_dims[] = {16, 32, 64, 80, 96, 112, 128, 256};
enum { N_HEAD_DIMS = sizeof head_dims / sizeof head_dims[0], MAX_QUERIES = 160, N_TILES = 2 };

static sl_kernels ref, level_kernels;
static check_rng rng;

/* Each test starts from the run's seed, so that it can be repeated alone. */
static void start_level(void **state)
{
    sl_cpu_level level = *(const sl_cpu_level *)*state;
    rng.state = check_seed();
    if (!sl_cpu_has(level))
        skip();
    sl_kernels_init(&ref, SL_CPU_LEVEL_REF);
    sl_kernels_init(&level_kernels, level);
}

/* ---- masks ---- */

typedef enum mask_kind {
    MASK_KIND_NULL,
    MASK_KIND_FULL,
    MASK_KIND_RANDOM,
    MASK_KIND_PREFIX,
    MASK_KIND_SINGLE,
    MASK_KIND_EMPTY,
    MASK_KIND_TREE,
    MASK_KIND_MIXED,
    MASK_KIND_COUNT
} mask_kind;

static uint64_t random_mask(mask_kind kind)
{
    uint64_t shift = check_rng_below(&rng, 64), base = UINT64_MAX >> shift;
    switch (kind) {
    case MASK_KIND_FULL:
        return UINT64_MAX;
    case MASK_KIND_RANDOM:
        return check_rng_u64(&rng);
    case MASK_KIND_PREFIX:
        return base;
    case MASK_KIND_SINGLE:
        return 1ull << shift;
    case MASK_KIND_EMPTY:
        return 0;
    case MASK_KIND_TREE: /* a common beginning, then scattered ancestors */
        return base | (check_rng_u64(&rng) & check_rng_u64(&rng) & check_rng_u64(&rng));
    default:
        return random_mask((mask_kind)(MASK_KIND_FULL + check_rng_below(&rng, MASK_KIND_MIXED - MASK_KIND_FULL)));
    }
}

/* ---- one comparison of attn_tile ---- */

typedef struct tile_case {
    sl_kv_type type;
    size_t head_dim, n_queries;
    mask_kind masks;
    check_values values;
    float softcap;
} tile_case;

/* Keys and values through kv_pack, or (Q8_0) raw bytes and scales that no packing would give. */
static void fill_tile(uint8_t *tile, const tile_case *c)
{
    float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
    memset(tile, 0, sl_tile_bytes(c->type, c->head_dim));
    for (size_t key = 0; key < SL_TILE; key++) {
        check_fill(&rng, c->values, c->type == SL_KV_TYPE_F16 ? 6e4f : 8e6f, k, c->head_dim);
        check_fill(&rng, c->values, c->type == SL_KV_TYPE_F16 ? 6e4f : 8e6f, v, c->head_dim);
        assert_true(sl_kernels_kv_pack(&ref, c->type)(tile, key, k, v, c->head_dim));
    }
    if (c->type == SL_KV_TYPE_F16 || check_rng_below(&rng, 4) != 0)
        return;
    for (size_t i = 0; i < 132 * c->head_dim; i++)
        if (i < 64 * c->head_dim || i >= 68 * c->head_dim)
            tile[i] = (uint8_t)check_rng_u64(&rng);
    uint16_t *vs = (uint16_t *)(void *)(tile + 132 * c->head_dim);
    for (size_t i = 0; i < c->head_dim / SL_GROUP * SL_TILE; i++)
        vs[i] = (uint16_t)check_rng_below(&rng, check_rng_below(&rng, 8) ? 0x7c00 : 1);
}

static void fill_queries(uint8_t *qblocks, const tile_case *c)
{
    static float q[SL_LANES][SL_MAX_HEAD_DIM];
    const float *rows[SL_LANES];
    float scale = 1.0f / sqrtf((float)c->head_dim) * (c->softcap > 0.0f ? 1.0f / c->softcap : SL_LOG2E);
    for (size_t first = 0; first < c->n_queries; first += SL_LANES) {
        size_t n = c->n_queries - first < SL_LANES ? c->n_queries - first : SL_LANES;
        for (size_t i = 0; i < n; i++) {
            check_fill(&rng, c->values, 1e20f, q[i], c->head_dim);
            rows[i] = q[i];
        }
        sl_kernels_attn_qpack(&ref, c->type)(qblocks, rows, n, c->head_dim, scale);
        qblocks += sl_qblock_bytes(c->type, c->head_dim);
    }
}

static void reset_states(uint8_t *states, size_t n_blocks, size_t head_dim)
{
    size_t n_floats = sl_state_bytes(head_dim) / sizeof(float);
    for (size_t b = 0; b < n_blocks; b++)
        for (size_t i = 0; i < n_floats; i++)
            ((float *)(void *)states)[b * n_floats + i] = i < SL_LANES ? -INFINITY : 0.0f;
}

/* Fills n_blocks states with what tiles could have left: some lanes untouched. */
static void random_states(float *states, size_t n_blocks, size_t head_dim, check_values values)
{
    size_t n_floats = sl_state_bytes(head_dim) / sizeof(float);
    reset_states((uint8_t *)states, n_blocks, head_dim);
    for (size_t b = 0; b < n_blocks; b++, states += n_floats)
        for (size_t lane = 0; lane < SL_LANES; lane++) {
            if (check_rng_below(&rng, 4) == 0)
                continue;
            for (size_t i = 0; i < head_dim + 2; i++)
                states[i * SL_LANES + lane] = check_value(&rng, values, 1e30f);
            states[lane] += 0.0f; /* m is never -0 */
            states[SL_LANES + lane] = fabsf(states[SL_LANES + lane]);
        }
}

static void compare_states(const uint8_t *got, const uint8_t *want, const tile_case *c)
{
    char what[160];
    for (size_t query = 0; query < c->n_queries; query++) {
        size_t at = query / SL_LANES * sl_state_bytes(c->head_dim) + query % SL_LANES * sizeof(float);
        snprintf(what, sizeof what, "type %d, D %zu, query %zu of %zu, masks %d, values %d, softcap %g", (int)c->type,
                 c->head_dim, query, c->n_queries, (int)c->masks, (int)c->values, (double)c->softcap);
        check_same((const float *)(const void *)(got + at), (const float *)(const void *)(want + at), c->head_dim + 2,
                   SL_LANES, what);
    }
}

static void compare_tile(const tile_case *c)
{
    if (check_rng_below(&rng, 6) >= EFFORT(6)) /* where effort is small, a sixth of the cases */
        return;
    size_t n_blocks = (c->n_queries + SL_LANES - 1) / SL_LANES, state_bytes = sl_state_bytes(c->head_dim);
    check_buf tile = check_buf_new(sl_tile_bytes(c->type, c->head_dim), 64);
    check_buf qblocks = check_buf_new(n_blocks * sl_qblock_bytes(c->type, c->head_dim), 64);
    check_buf want = check_buf_new(n_blocks * state_bytes, 64), got = check_buf_new(n_blocks * state_bytes, 64);
    check_buf masks = check_buf_new(n_blocks * SL_LANES * sizeof(uint64_t), 64);
    check_buf scratch = check_buf_new(sl_tile_scratch_bytes(c->type, c->head_dim), 64);
    fill_queries(qblocks.data, c);
    if (check_rng_u64(&rng) & 1)
        reset_states(want.data, n_blocks, c->head_dim);
    else
        random_states(want.data, n_blocks, c->head_dim, CHECK_VALUES_MIXED);
    memcpy(got.data, want.data, want.bytes);
    for (int i = 0; i < N_TILES; i++) {
        fill_tile(tile.data, c);
        for (size_t query = 0; query < n_blocks * SL_LANES; query++)
            ((uint64_t *)masks.data)[query] = random_mask(c->masks);
        sl_tile_args args = {.tile = tile.data,
                             .head_dim = c->head_dim,
                             .qblocks = qblocks.data,
                             .states = want.data,
                             .state_stride = state_bytes,
                             .n_queries = c->n_queries,
                             .masks = c->masks == MASK_KIND_NULL ? NULL : masks.data,
                             .softcap = c->softcap,
                             .scratch = scratch.data,
                             .next = i % 2 ? tile.data : NULL};
        sl_kernels_attn_tile(&ref, c->type)(&args);
        args.states = got.data;
        sl_kernels_attn_tile(&level_kernels, c->type)(&args);
        compare_states(got.data, want.data, c);
    }
    check_buf *all[] = {&tile, &qblocks, &want, &got, &masks, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check_buf_free(all[i]);
}

/* Every number of queries, the rest drawn; then every kind of mask, value and softcap, the number drawn. */
static void compare_tiles(sl_kv_type type)
{
    for (size_t i = 0; i < N_HEAD_DIMS; i++) {
        if (type == SL_KV_TYPE_Q8_0 && head_dims[i] % SL_GROUP != 0)
            continue;
        tile_case c = {.type = type, .head_dim = head_dims[i]};
        for (size_t n = 1; n <= 43; n++) {
            c.n_queries = n <= 40 ? n : n == 41 ? 64 : n == 42 ? 100 : MAX_QUERIES;
            c.masks = (mask_kind)check_rng_below(&rng, MASK_KIND_COUNT);
            c.values = n % 3 ? CHECK_VALUES_NORMAL : (check_values)check_rng_below(&rng, CHECK_VALUES_COUNT);
            c.softcap = check_rng_below(&rng, 4) ? 0.0f : 30.0f;
            compare_tile(&c);
        }
        for (int kind = 0; kind < (int)MASK_KIND_COUNT * (int)CHECK_VALUES_COUNT * 2; kind++) {
            c.masks = (mask_kind)(kind / 2 % MASK_KIND_COUNT);
            c.values = (check_values)(kind / 2 / MASK_KIND_COUNT);
            c.softcap = kind % 2 ? 2.0f : 0.0f;
            c.n_queries = 1 + check_rng_below(&rng, 20);
            compare_tile(&c);
        }
    }
}

/* Whole and cut tiles against each number of queries of one block, and of a block after a full one. */
static void compare_few(sl_kv_type type)
{
    const mask_kind kinds[] = {MASK_KIND_NULL, MASK_KIND_RANDOM, MASK_KIND_MIXED};
    for (size_t i = 0; i < N_HEAD_DIMS * 2 * SL_LANES * 3; i++) {
        tile_case c = {.type = type, .head_dim = head_dims[i % N_HEAD_DIMS], .masks = kinds[i / N_HEAD_DIMS % 3]};
        c.n_queries = 1 + i / (N_HEAD_DIMS * 3);
        c.values = (check_values)check_rng_below(&rng, CHECK_VALUES_COUNT);
        c.softcap = check_rng_below(&rng, 4) ? 0.0f : 30.0f;
        if (type == SL_KV_TYPE_F16 || c.head_dim % SL_GROUP == 0)
            compare_tile(&c);
    }
}

static void test_tile_f16(void **state)
{
    start_level(state);
    compare_tiles(SL_KV_TYPE_F16);
    compare_few(SL_KV_TYPE_F16);
}

static void test_tile_q8(void **state)
{
    start_level(state);
    compare_tiles(SL_KV_TYPE_Q8_0);
    compare_few(SL_KV_TYPE_Q8_0);
}

/* The path for few queries leaves the scratch alone, the other one widens the tile into it: which of them ran shows. */
static void test_few_path_runs(void **state)
{
    start_level(state);
    static const size_t limits[SL_CPU_LEVEL_COUNT][2] = {
        /* F16, Q8_0; a level without a version of its own has the one below it */
        [SL_CPU_LEVEL_AVX2] = {SL_FEW_AVX2_F16, SL_FEW_AVX2_Q8},
        [SL_CPU_LEVEL_AVXVNNI] = {SL_FEW_AVX2_F16, SL_FEW_AVXVNNI_Q8},
        [SL_CPU_LEVEL_AVX512] = {SL_FEW_AVX512_F16, SL_FEW_AVX512_Q8},
        [SL_CPU_LEVEL_AMX] = {SL_FEW_AVX512_F16, SL_FEW_AMX_Q8},
        [SL_CPU_LEVEL_NEON] = {SL_FEW_NEON_F16, SL_FEW_NEON_Q8},
        [SL_CPU_LEVEL_I8MM] = {SL_FEW_NEON_F16, SL_FEW_I8MM_Q8},
        [SL_CPU_LEVEL_SME] = {SL_FEW_NEON_F16, SL_FEW_I8MM_Q8},
    };
    const size_t *most = limits[*(const sl_cpu_level *)*state];
    for (size_t i = 0; i < 2 * 2 * SL_LANES; i++) {
        tile_case c = {.type = i % 2 ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16, .head_dim = 64, .n_queries = 1 + i / 2};
        check_buf tile = check_buf_new(sl_tile_bytes(c.type, 64), 64);
        check_buf state_buf = check_buf_new(2 * sl_state_bytes(64), 64);
        check_buf qblocks = check_buf_new(2 * sl_qblock_bytes(c.type, 64), 64);
        check_buf scratch = check_buf_new(sl_tile_scratch_bytes(c.type, 64), 64);
        fill_queries(qblocks.data, &c);
        fill_tile(tile.data, &c);
        reset_states(state_buf.data, 2, 64);
        sl_kernels_attn_tile(&level_kernels, c.type)(&(sl_tile_args){.tile = tile.data,
                                                                     .head_dim = 64,
                                                                     .qblocks = qblocks.data,
                                                                     .states = state_buf.data,
                                                                     .state_stride = sl_state_bytes(64),
                                                                     .n_queries = c.n_queries,
                                                                     .scratch = scratch.data});
        bool untouched = true;
        for (size_t at = 0; at < scratch.bytes; at++)
            untouched = untouched && ((const uint8_t *)scratch.data)[at] == 0xa5;
        assert_true(most[i % 2] >= 1 && most[i % 2] < SL_LANES);
        assert_int_equal(untouched, c.n_queries <= most[i % 2]);
        check_buf *all[] = {&tile, &qblocks, &state_buf, &scratch};
        for (size_t b = 0; b < sizeof all / sizeof all[0]; b++)
            check_buf_free(all[b]);
    }
}

/* ---- signed zeros ---- */

/* Equal F16 queries of 16 dimensions, all but the first -0, so that they do not turn a sum of -0 into +0. */
typedef struct zero_case {
    check_buf tile, q, state[2], scratch;
    uint64_t masks[SL_LANES];
    size_t n_queries;
} zero_case;

static void zero_case_set(zero_case *z, size_t key, float k, float v)
{
    float ks[16] = {k}, vs[16];
    for (size_t d = 0; d < 16; d++)
        vs[d] = v;
    assert_true(ref.kv_pack_f16(z->tile.data, key, ks, vs, 16));
}

static void zero_case_start(zero_case *z, float q, size_t n_queries)
{
    float x[16] = {q};
    const float *rows[SL_LANES];
    z->n_queries = n_queries;
    for (size_t d = 1; d < 16; d++)
        x[d] = -0.0f;
    for (size_t i = 0; i < SL_LANES; i++)
        rows[i] = x;
    z->tile = check_buf_new(sl_tile_bytes(SL_KV_TYPE_F16, 16), 64);
    z->q = check_buf_new(sl_qblock_bytes(SL_KV_TYPE_F16, 16), 64);
    z->scratch = check_buf_new(sl_tile_scratch_bytes(SL_KV_TYPE_F16, 16), 64);
    for (size_t i = 0; i < 2; i++) {
        z->state[i] = check_buf_new(sl_state_bytes(16), 64);
        reset_states(z->state[i].data, 1, 16);
    }
    ref.attn_qpack_f16(z->q.data, rows, n_queries, 16, 1.0f);
    for (size_t key = 0; key < SL_TILE; key++)
        zero_case_set(z, key, 0.0f, 1.0f);
}

/* Both versions; bits of element i of the state (m, l, o[16]), which must agree. */
static uint32_t zero_case_run(zero_case *z, uint64_t mask, size_t i)
{
    for (size_t lane = 0; lane < SL_LANES; lane++)
        z->masks[lane] = mask;
    for (size_t v = 0; v < 2; v++) {
        sl_tile_args args = {.tile = z->tile.data,
                             .head_dim = 16,
                             .qblocks = z->q.data,
                             .states = z->state[v].data,
                             .state_stride = sl_state_bytes(16),
                             .n_queries = z->n_queries,
                             .masks = z->masks,
                             .scratch = z->scratch.data};
        (v ? &level_kernels : &ref)->attn_tile_f16(&args);
    }
    for (size_t lane = 0; lane < z->n_queries; lane++)
        check_same((float *)z->state[1].data + lane, (float *)z->state[0].data + lane, 18, SL_LANES, "signed zero");
    return sl_bits_of_float(((float *)z->state[0].data)[i * SL_LANES]);
}

static void zero_case_end(zero_case *z)
{
    check_buf *all[] = {&z->tile, &z->q, &z->state[0], &z->state[1], &z->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check_buf_free(all[i]);
}

/* A maximum of -0, from products that underflow, is kept as +0. */
static void test_zero_maximum(void **state)
{
    zero_case z;
    start_level(state);
    for (size_t n = 1; n <= SL_LANES; n += SL_LANES - 1) {
        zero_case_start(&z, -0x1p-130f, n);
        for (size_t key = 0; key < SL_TILE; key++)
            zero_case_set(&z, key, 0x1p-24f, 1.0f);
        assert_int_equal(zero_case_run(&z, UINT64_MAX, 0), 0);
        zero_case_end(&z);
    }
}

/* A tile's output of -0, from 2^-126 * -2^-24, is not made +0 by the hidden keys that follow, and shows when it
 * meets an older output that a far larger maximum has scaled to -0. */
static void test_zero_output(void **state)
{
    zero_case z;
    start_level(state);
    for (size_t n = 1; n <= SL_LANES; n += SL_LANES - 1) {
        zero_case_start(&z, 1.0f, n);
        zero_case_set(&z, 0, -1000.0f, -1.0f);
        assert_int_equal(zero_case_run(&z, 1, 2), sl_bits_of_float(-1.0f));
        zero_case_set(&z, 0, 0.0f, -0x1p-24f);
        zero_case_set(&z, 1, 126.0f, -0.0f);
        assert_int_equal(zero_case_run(&z, 3, 2), 0x80000000u);
        zero_case_end(&z);
    }
}

/* ---- queries, folding, the end, packing ---- */

static void test_qpack(void **state)
{
    start_level(state);
    for (size_t i = 0; i < N_HEAD_DIMS * CHECK_VALUES_COUNT * SL_LANES * 2; i++) {
        sl_kv_type type = i % 2 ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16;
        size_t head_dim = head_dims[i / 2 % N_HEAD_DIMS], n = 1 + i / (2 * N_HEAD_DIMS) % SL_LANES;
        if (type == SL_KV_TYPE_Q8_0 && head_dim % SL_GROUP != 0)
            continue;
        check_values values = (check_values)(i / (2 * N_HEAD_DIMS * SL_LANES));
        check_buf rows = check_buf_new(n * head_dim * sizeof(float), 4);
        check_buf want = check_buf_new(sl_qblock_bytes(type, head_dim), 64);
        check_buf got = check_buf_new(sl_qblock_bytes(type, head_dim), 64);
        const float *q[SL_LANES];
        for (size_t r = 0; r < n; r++) {
            q[r] = (const float *)rows.data + r * head_dim;
            check_fill(&rng, values, 3e38f, (float *)rows.data + r * head_dim, head_dim);
        }
        sl_kernels_attn_qpack(&ref, type)(want.data, q, n, head_dim, 0.18f);
        sl_kernels_attn_qpack(&level_kernels, type)(got.data, q, n, head_dim, 0.18f);
        assert_memory_equal(got.data, want.data, want.bytes);
        check_buf_free(&rows);
        check_buf_free(&want);
        check_buf_free(&got);
    }
}

static void test_segfold_and_finish(void **state)
{
    start_level(state);
    for (size_t i = 0; i < N_HEAD_DIMS * CHECK_VALUES_COUNT * 4; i++) {
        size_t head_dim = head_dims[i % N_HEAD_DIMS], n_blocks = 1 + i / N_HEAD_DIMS % 4, n = 1 + i % SL_LANES;
        check_values values = (check_values)(i / N_HEAD_DIMS / 4);
        size_t stride = sl_state_bytes(head_dim), bytes = n_blocks * stride;
        check_buf bufs[6]; /* total, segment: wanted, got; rows: wanted, got */
        for (size_t b = 0; b < 6; b++)
            bufs[b] = check_buf_new(b < 4 ? bytes : n * head_dim * sizeof(float), b < 4 ? 64 : 4);
        random_states(bufs[0].data, n_blocks, head_dim, values);
        random_states(bufs[1].data, n_blocks, head_dim, values);
        memcpy(bufs[2].data, bufs[0].data, bytes);
        memcpy(bufs[3].data, bufs[1].data, bytes);
        ref.attn_segfold(bufs[0].data, bufs[1].data, stride, n_blocks, head_dim);
        level_kernels.attn_segfold(bufs[2].data, bufs[3].data, stride, n_blocks, head_dim);
        check_same(bufs[2].data, bufs[0].data, bytes / sizeof(float), 1, "total");
        check_same(bufs[3].data, bufs[1].data, bytes / sizeof(float), 1, "segment");
        for (size_t lane = 0; lane < SL_LANES; lane++) /* no 0 / 0: its NaN may have either sign */
            ((float *)bufs[0].data)[SL_LANES + lane] += 0x1p-60f;
        float *want[SL_LANES], *got[SL_LANES];
        for (size_t r = 0; r < n; r++) {
            want[r] = (float *)bufs[4].data + r * head_dim;
            got[r] = (float *)bufs[5].data + r * head_dim;
        }
        ref.attn_finish(bufs[0].data, want, n, head_dim);
        level_kernels.attn_finish(bufs[0].data, got, n, head_dim);
        check_same(bufs[5].data, bufs[4].data, n * head_dim, 1, "finish");
        for (size_t b = 0; b < 6; b++)
            check_buf_free(&bufs[b]);
    }
}

/* One row of k and v to both; `bad` >= 0 puts a value there that must be refused. */
static void compare_pack(sl_kv_type type, size_t head_dim, check_values values, float bad)
{
    check_buf want = check_buf_new(sl_tile_bytes(type, head_dim), 64), got = check_buf_new(want.bytes, 64);
    check_buf k = check_buf_new(head_dim * sizeof(float), 4), v = check_buf_new(head_dim * sizeof(float), 4);
    check_fill(&rng, values, type == SL_KV_TYPE_F16 ? 65519.0f : 8.3e6f, k.data, head_dim);
    check_fill(&rng, values, type == SL_KV_TYPE_F16 ? 65519.0f : 8.3e6f, v.data, head_dim);
    if (bad != 0.0f)
        ((float *)(check_rng_u64(&rng) & 1 ? k.data : v.data))[check_rng_below(&rng, head_dim)] = bad;
    size_t key = check_rng_below(&rng, SL_TILE);
    bool want_ok = sl_kernels_kv_pack(&ref, type)(want.data, key, k.data, v.data, head_dim);
    bool got_ok = sl_kernels_kv_pack(&level_kernels, type)(got.data, key, k.data, v.data, head_dim);
    assert_int_equal(want_ok, bad == 0.0f);
    assert_int_equal(got_ok, want_ok);
    if (want_ok)
        assert_memory_equal(got.data, want.data, want.bytes);
    check_buf_free(&want);
    check_buf_free(&got);
    check_buf_free(&k);
    check_buf_free(&v);
}

static void test_kv_pack(void **state)
{
    start_level(state);
    const float bad[] = {0, 0, 0, NAN, -NAN, INFINITY, -INFINITY, 3e38f, -9e6f};
    for (size_t i = 0; i < N_HEAD_DIMS * CHECK_VALUES_COUNT * 18 * 2; i++) {
        sl_kv_type type = i % 2 ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16;
        size_t head_dim = head_dims[i / 2 % N_HEAD_DIMS];
        if (type == SL_KV_TYPE_Q8_0 && head_dim % SL_GROUP != 0)
            continue;
        compare_pack(type, head_dim, (check_values)(i / 2 / N_HEAD_DIMS / 18), bad[i / 2 / N_HEAD_DIMS % 9]);
    }
}

int main(void)
{
    enum { N_KINDS = 8, N_TESTS = N_KINDS * SL_CPU_LEVEL_COUNT };
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[N_KINDS] = {{"tile_f16", test_tile_f16},
                        {"tile_q8", test_tile_q8},
                        {"few_path_runs", test_few_path_runs},
                        {"zero_maximum", test_zero_maximum},
                        {"zero_output", test_zero_output},
                        {"qpack", test_qpack},
                        {"segfold_and_finish", test_segfold_and_finish},
                        {"kv_pack", test_kv_pack}};
    static sl_cpu_level levels[SL_CPU_LEVEL_COUNT];
    static char names[N_TESTS][64];
    static struct CMUnitTest tests[N_TESTS];
    for (size_t i = N_KINDS; i < N_TESTS; i++) { /* the reference's places stay empty and are passed over */
        levels[i / N_KINDS] = (sl_cpu_level)(i / N_KINDS);
        snprintf(names[i], sizeof names[i], "%s %s", kinds[i % N_KINDS].name, sl_cpu_level_name(levels[i / N_KINDS]));
        tests[i] = (struct CMUnitTest){names[i], kinds[i % N_KINDS].run, NULL, NULL, &levels[i / N_KINDS]};
    }
    sl_fpenv saved = sl_fpenv_enter();
    int failed = cmocka_run_group_tests_name("kernels_attn", tests, NULL, NULL);
    sl_fpenv_leave(saved);
    return failed;
}
