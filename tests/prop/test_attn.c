/* Attention over a streamed context equals, bit for bit, the definition applied row by row to tiles in memory:
 * whatever the context's length, how it was appended, ring, resident share, threads and number of rows. */
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
#include "base/fpenv.h"
#include "common/effort.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t pick(size_t low, size_t high)
{
    return low + (size_t)(next_random() % (high - low + 1));
}

/* Roughly normal; sometimes tiny (denormal scores), sometimes large. */
static float noise(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(next_random() >> 40) * 0x1p-24f - 0.5f;
    size_t odd = next_random() % 200;
    return odd == 0 ? sum * 1e-38f : odd == 1 ? sum * 12.0f : sum * 1.7f;
}

typedef struct shape {
    sl_kv_type type;
    size_t head_dim, n_kv_heads, group, n_rows, n_before;
    size_t threads, slot_bytes, n_slots;
    uint64_t resident_bytes;
    float softcap;
    bool flush_denormals;
} shape;

typedef struct bench {
    shape s;
    sl_kv_layer layer;
    sl_geom geom;
    sl_budget budget;
    sl_pool *pool;
    sl_kernels kernels, reference;
    sl_kv *kv;
    sl_attn *attn;
    size_t group_bytes, tile_bytes, n_groups;
    uint8_t *tiles; /* [n_groups][n_kv_heads] the whole context and the rows */
    float *q, *out; /* [n_rows][n_heads * head_dim] */
} bench;

static uint8_t *tile_at(const bench *b, size_t group, size_t head)
{
    return b->tiles + group * b->group_bytes + head * b->tile_bytes;
}

static void fill_tiles(bench *b)
{
    size_t total = b->s.n_before + b->s.n_rows;
    float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
    for (size_t t = 0; t < total; t++)
        for (size_t h = 0; h < b->s.n_kv_heads; h++) {
            for (size_t d = 0; d < b->s.head_dim; d++) {
                k[d] = noise();
                v[d] = noise();
            }
            sl_kv_pack_fn pack = sl_kernels_kv_pack(&b->reference, b->s.type);
            assert_true(pack(tile_at(b, t / SL_TILE, h), t % SL_TILE, k, v, b->s.head_dim));
        }
}

/* The definition: one query, tile after tile, segment after segment. */
static void attend_plainly(const bench *b, const float *q, size_t head, size_t pos, float *out)
{
    size_t state_bytes = sl_state_bytes(b->s.head_dim);
    uint8_t *mem = NULL;
    assert_int_equal(0, posix_memalign((void **)&mem, 64,
                                       sl_qblock_bytes(b->s.type, b->s.head_dim) + 2 * state_bytes +
                                           sl_tile_scratch_bytes(b->s.type, b->s.head_dim)));
    uint8_t *segment = mem, *total = mem + state_bytes, *qblock = mem + 2 * state_bytes;
    uint8_t *scratch = qblock + sl_qblock_bytes(b->s.type, b->s.head_dim);
    memset(mem, 0, 2 * state_bytes);
    for (size_t lane = 0; lane < SL_LANES; lane++)
        ((float *)(void *)segment)[lane] = ((float *)(void *)total)[lane] = -INFINITY;
    double factor = 1.0 / sqrt((double)b->s.head_dim);
    float c = (float)(b->s.softcap > 0.0f ? factor / (double)b->s.softcap : factor * 1.4426950408889634074);
    sl_kernels_attn_qpack(&b->reference, b->s.type)(qblock, &q, 1, b->s.head_dim, c);
    for (size_t group = 0; group * SL_TILE <= pos; group++) {
        uint64_t masks[SL_LANES] = {0};
        size_t visible = pos - group * SL_TILE + 1;
        masks[0] = visible >= 64 ? UINT64_MAX : ((uint64_t)1 << visible) - 1;
        sl_tile_args args = {.tile = tile_at(b, group, head),
                             .head_dim = b->s.head_dim,
                             .qblocks = qblock,
                             .states = segment,
                             .state_stride = state_bytes,
                             .n_queries = 1,
                             .masks = masks,
                             .softcap = b->s.softcap,
                             .scratch = scratch};
        sl_kernels_attn_tile(&b->reference, b->s.type)(&args);
        if ((group + 1) * SL_TILE % SL_SEGMENT_TOKENS == 0)
            b->reference.attn_segfold(total, segment, state_bytes, 1, b->s.head_dim);
    }
    b->reference.attn_segfold(total, segment, state_bytes, 1, b->s.head_dim);
    b->reference.attn_finish(total, &out, 1, b->s.head_dim);
    free(mem);
}

static void set_up(bench *b)
{
    b->layer = (sl_kv_layer){(uint32_t)b->s.n_kv_heads, (uint32_t)b->s.head_dim, 0};
    b->geom = (sl_geom){b->s.type, 1, &b->layer};
    sl_budget_init(&b->budget, UINT64_MAX);
    sl_kernels_init(&b->kernels, sl_cpu_best());
    sl_kernels_init(&b->reference, SL_CPU_LEVEL_REF);
    sl_err err;
    assert_int_equal(SL_OK, sl_pool_create(b->s.threads, &b->budget, &b->pool, &err));
    b->tile_bytes = sl_tile_bytes(b->s.type, b->s.head_dim);
    b->group_bytes = b->tile_bytes * b->s.n_kv_heads;
    b->n_groups = (b->s.n_before + b->s.n_rows + SL_TILE - 1) / SL_TILE;
    assert_int_equal(0, posix_memalign((void **)&b->tiles, 64, b->n_groups * b->group_bytes));
    memset(b->tiles, 0, b->n_groups * b->group_bytes);
    size_t width = b->s.n_kv_heads * b->s.group * b->s.head_dim;
    b->q = malloc(b->s.n_rows * width * sizeof *b->q);
    b->out = malloc(b->s.n_rows * width * sizeof *b->out);
    assert_non_null(b->q);
    assert_non_null(b->out);
    for (size_t i = 0; i < b->s.n_rows * width; i++)
        b->q[i] = noise();
    fill_tiles(b);
    const sl_kv_options kv = {
        .geom = b->geom,
        .dir = getenv("SLUICE_TEST_DIR") ? getenv("SLUICE_TEST_DIR") : "/var/tmp",
        .max_tokens = b->s.n_before + b->s.n_rows,
        .resident_bytes = b->s.resident_bytes,
        .slot_bytes = b->s.slot_bytes,
        .n_slots = b->s.n_slots,
        .budget = &b->budget,
    };
    assert_int_equal(SL_OK, sl_kv_create(&kv, &b->kv, &err));
    const sl_attn_options attn = {
        .kernels = &b->kernels,
        .pool = b->pool,
        .budget = &b->budget,
        .geom = b->geom,
        .n_heads = (uint32_t)(b->s.n_kv_heads * b->s.group),
        .max_rows = b->s.n_rows,
        .softcap = b->s.softcap,
    };
    assert_int_equal(SL_OK, sl_attn_create(&attn, &b->attn, &err));
}

/* Appends the tokens before the rows in pieces of random size: every edge of tile, sector, part and segment comes up.
 * The tiles given hold later tokens too, as rejected drafts would leave them. */
static void append_before(bench *b)
{
    sl_err err = {SL_OK, ""};
    for (size_t at = 0; at < b->s.n_before;) {
        size_t n = pick(1, pick(0, 1) ? 200 : 5000);
        n = n < b->s.n_before - at ? n : b->s.n_before - at;
        sl_status status = sl_kv_append(b->kv, 0, b->tiles + at / SL_TILE * b->group_bytes, n, &err);
        if (status != SL_OK)
            fail_msg("append: %s", err.text);
        at += n;
    }
}

static void tear_down(bench *b)
{
    sl_attn_destroy(b->attn);
    sl_kv_destroy(b->kv);
    sl_pool_destroy(b->pool);
    free(b->tiles);
    free(b->q);
    free(b->out);
    assert_int_equal(0, b->budget.used_bytes);
    sl_budget_deinit(&b->budget);
}

static void run_once(bench *b)
{
    sl_err err = {SL_OK, ""};
    size_t width = b->s.n_kv_heads * b->s.group * b->s.head_dim;
    const sl_attn_rows rows = {
        .layer = 0,
        .first_pos = b->s.n_before,
        .n_rows = b->s.n_rows,
        .q = b->q,
        .q_stride = width,
        .out = b->out,
        .out_stride = width,
        .own_groups = b->tiles + b->s.n_before / SL_TILE * b->group_bytes,
    };
    sl_status status = sl_kv_pass_begin(b->kv, false, &err);
#if defined(__x86_64__)
    unsigned word = _mm_getcsr();
    if (b->s.flush_denormals)
        _mm_setcsr(word | 0x8040u | 0x6000u); /* FTZ, DAZ, rounding toward zero */
#endif
    if (status == SL_OK)
        status = sl_attn_run(b->attn, b->kv, &rows, &err);
#if defined(__x86_64__)
    if (b->s.flush_denormals) {
        assert_int_equal((word | 0x8040u | 0x6000u) & ~0x3fu, _mm_getcsr() & ~0x3fu); /* but for the sticky flags */
        _mm_setcsr(word);
    }
#endif
    if (status == SL_OK)
        status = sl_kv_pass_end(b->kv, &err);
    if (status != SL_OK)
        fail_msg("pass: %s", err.text);
}

static void compare_rows(const bench *b, size_t n_checked)
{
    size_t n_heads = b->s.n_kv_heads * b->s.group;
    float want[SL_MAX_HEAD_DIM];
    for (size_t i = 0; i < n_checked; i++) {
        size_t row = i == 0 ? 0 : i == 1 ? b->s.n_rows - 1 : pick(0, b->s.n_rows - 1), head = pick(0, n_heads - 1);
        size_t at = (row * n_heads + head) * b->s.head_dim;
        attend_plainly(b, b->q + at, head / b->s.group, b->s.n_before + row, want);
        if (memcmp(want, b->out + at, b->s.head_dim * sizeof *want) != 0)
            fail_msg("type %d, D %zu, %zu KV heads, group %zu, %zu tokens before, %zu rows, %zu threads, slot %zu: row "
                     "%zu head %zu differs",
                     (int)b->s.type, b->s.head_dim, b->s.n_kv_heads, b->s.group, b->s.n_before, b->s.n_rows,
                     b->s.threads, b->s.slot_bytes, row, head);
    }
}

static void try_shape(const shape *s, size_t n_checked)
{
    bench b = {.s = *s};
    set_up(&b);
    append_before(&b);
    for (int again = 0; again < 2; again++) { /* the second pass starts from what was read ahead and resident */
        memset(b.out, 0xff, b.s.n_rows * b.s.n_kv_heads * b.s.group * b.s.head_dim * sizeof *b.out);
        run_once(&b);
        compare_rows(&b, n_checked);
    }
    tear_down(&b);
}

/* Around every edge: tile, part, segment. */
static size_t length_near_an_edge(void)
{
    static const size_t edges[] = {1, 64, 128, 1024, 2048, 4096, 5120, 8192, 12288, 19456};
    size_t edge = edges[pick(0, sizeof edges / sizeof edges[0] - 1)];
    size_t length = edge + pick(0, 4);
    return length > 2 ? length - 2 : length - 1;
}

static shape random_shape(sl_kv_type type)
{
    static const size_t dims[2][5] = {{64, 80, 96, 128, 16}, {64, 96, 128, 32, 64}};
    shape s = {.type = type, .head_dim = dims[type == SL_KV_TYPE_Q8_0][pick(0, 4)]};
    s.group = pick(1, 16);
    s.n_kv_heads = pick(1, 3);
    s.n_rows = pick(1, 65);
    s.n_before = pick(0, 3) ? length_near_an_edge() : pick(0, 6000);
    if (s.n_before > 9000 && pick(0, 2)) /* the long ones are slow to make: fewer of them */
        s.n_before %= 4200;
    s.threads = pick(1, 7);
    s.n_slots = pick(2, 3);
    size_t part = SL_PART_TILES * s.n_kv_heads * sl_tile_bytes(type, s.head_dim);
    s.slot_bytes = part * pick(1, 3);
    uint64_t all = (uint64_t)(s.n_before / SL_TILE) * s.n_kv_heads * sl_tile_bytes(type, s.head_dim);
    s.resident_bytes = pick(0, 1) ? 0 : pick(0, 1) ? all : all / 3;
    s.softcap = pick(0, 5) == 0 ? 30.0f : 0.0f;
    s.flush_denormals = pick(0, 3) == 0;
    return s;
}

static void try_type(sl_kv_type type)
{
    for (int i = 0; i < EFFORT(60); i++) {
        shape s = random_shape(type);
        try_shape(&s, 4);
    }
}

static void streamed_equals_plain_q8(void **unused)
{
    (void)unused;
    try_type(SL_KV_TYPE_Q8_0);
}

static void streamed_equals_plain_f16(void **unused)
{
    (void)unused;
    try_type(SL_KV_TYPE_F16);
}

static void twenty_thousand_tokens(void **unused)
{
    (void)unused;
    for (int type = 0; type < SL_KV_TYPE_COUNT; type++) {
        shape s = {(sl_kv_type)type, 64, 2, 3, 64, 20000, 3, 2 * 16 * 2 * 17408, 2, 0, 0.0f, false};
        try_shape(&s, 3);
    }
}

/* So few queries that two segments are computed side by side: from the ring, whose slots hold a part, two segments or
 * something between, and from memory. */
static void few_rows_over_several_segments(void **unused)
{
    (void)unused;
    for (int i = 0; i < EFFORT(24); i++) {
        shape s = {.type = (sl_kv_type)(i % 2), .head_dim = 64, .n_kv_heads = pick(1, 2), .group = pick(1, 4)};
        s.n_rows = pick(1, 4);
        s.n_before = i % 3 ? length_near_an_edge() : pick(8000, 16000);
        s.threads = pick(2, 5);
        s.n_slots = 2;
        size_t part = SL_PART_TILES * s.n_kv_heads * sl_tile_bytes(s.type, s.head_dim);
        s.slot_bytes = part * pick(1, 10);
        s.resident_bytes = pick(0, 2) * part * (s.n_before / SL_PART_TOKENS + 1) / 2;
        try_shape(&s, 3);
    }
}

static void q8_refuses_other_head_dims(void **unused)
{
    (void)unused;
    sl_kv_layer layer = {1, 80, 0};
    sl_geom geom = {SL_KV_TYPE_Q8_0, 1, &layer};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_REFUSED, sl_geom_check(&geom, &err));
    assert_non_null(strstr(err.text, "f16"));
}

int main(void)
{
    const char *seed = getenv("SLUICE_TEST_SEED");
    state = seed ? strtoull(seed, NULL, 10) : 20261130;
    printf("seed %llu\n", (unsigned long long)state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_equals_plain_q8),
        cmocka_unit_test(streamed_equals_plain_f16),
        cmocka_unit_test(twenty_thousand_tokens),
        cmocka_unit_test(few_rows_over_several_segments),
        cmocka_unit_test(q8_refuses_other_head_dims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
