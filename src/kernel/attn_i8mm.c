/* Q8_0 attention tiles for Advanced SIMD's int8 matrix products: the bits of attn_ref.c.
 * `smmla` and `usmmla` multiply two rows of eight bytes by two others: 32 products, twice what `sdot` does. A vector of
 * sums holds two queries by two keys, or by two dimensions. A 16-bit number is 256 * high + low: a query's high bytes
 * are signed, its low ones and both of P unsigned, as `usmmla` takes them, so that nothing has to be put right. Rows go
 * two and two: the tile's are put side by side once per call, a block's queries and P when they are split into bytes.
 * Scores become lanes of queries again after the last group. Few queries, and F16, are NEON's.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__aarch64__)

#include <assert.h>

#include "kernel/attn_neon.h"

/* Of a register block: sum i belongs to pair of keys (or dimensions) i / nq and pair of queries i % nq; nq, the pairs
 * of queries, is 4 or 2. Each has a name, because gcc leaves an array of them in memory. */
enum { ACCUMULATORS = 16, PAIRS = SL_LANES / 2 };
#define EACH_ACCUMULATOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define EACH_OF_EIGHT(X) X(0, 1) X(2, 3) X(4, 5) X(6, 7) X(8, 9) X(10, 11) X(12, 13) X(14, 15)

/* Bytes in eights: two rows' eights make a vector. */
typedef struct q8_tile {
    size_t head_dim;
    int8_t *k; /* [D/8][32 pairs of keys] */
    int8_t *v; /* [8 eights of keys][D/2 pairs of dimensions] */
    sl_neon_scales scale;
    uint8_t *q_high, *q_low;           /* [D/8][8 pairs of queries] */
    uint8_t *weight_high, *weight_low; /* [8][8 pairs of queries], of one group */
    float *qs;                         /* [D/32][8 pairs][4]: first, first, second, second */
} q8_tile;

#define ZERO(i) int32x4_t acc##i = vdupq_n_s32(0);
#define SHIFT(i) acc##i = vshlq_n_s32(acc##i, 8);
#define SIGNED(i) acc##i = vmmlaq_s32(acc##i, vreinterpretq_s8_u8(q[i % nq]), x[i / nq]);
#define UNSIGNED(i) acc##i = vusmmlaq_s32(acc##i, q[i % nq], x[i / nq]);
/* acc += the products of n eights of a plane's pairs of queries with 16 / nq pairs of rows, whose next eights are
 * `step` bytes on */
#define ADD_PLANE(MULTIPLY, plane, rows, step, n)                                                                      \
    for (size_t eight = 0; eight < (n); eight++) {                                                                     \
        uint8x16_t q[4];                                                                                               \
        int8x16_t x[8];                                                                                                \
        for (size_t i = 0; i < 4; i++)                                                                                 \
            q[i] = vld1q_u8((plane) + (eight * PAIRS + (i < nq ? i : 0)) * 16);                                        \
        for (size_t i = 0; i < 8; i++)                                                                                 \
            x[i] = vld1q_s8((rows) + eight * (step) + (i < ACCUMULATORS / nq ? 16 * i : 0));                           \
        EACH_ACCUMULATOR(MULTIPLY)                                                                                     \
    }

/* ---- scores ---- */

/* s = fma(dot, ks * qs, s), two queries by two keys. */
NEON_INLINE float32x4_t add_score(const float *before, int32x4_t dot, float32x4_t ks, const float *qs, bool first)
{
    float32x4_t s = first ? vdupq_n_f32(0.0f) : vld1q_f32(before);
    return vfmaq_f32(s, vcvtq_f32_s32(dot), vmulq_f32(ks, vld1q_f32(qs)));
}

/* Two keys' scales, twice over. */
NEON_INLINE float32x4_t two_twice(const float *ks)
{
    float32x2_t two = vld1_f32(ks);
    return vcombine_f32(two, two);
}

/* Of the queries from pair `first` on, for one group of 32 / nq keys: sums in `partial` become s after the last. */
I8MM_INLINE void score_group(const q8_tile *t, float *s, float *partial, size_t key, size_t g, size_t first,
                             const size_t nq)
{
    const size_t step = SL_TILE / 2 * 16, groups = t->head_dim / SL_GROUP;
    const int8_t *k = t->k + g * 4 * step + key * 8;
    const size_t plane = (g * 4 * PAIRS + first) * 16;
    EACH_ACCUMULATOR(ZERO)
    ADD_PLANE(SIGNED, t->q_high + plane, k, step, 4)
    EACH_ACCUMULATOR(SHIFT)
    ADD_PLANE(UNSIGNED, t->q_low + plane, k, step, 4)
    const float *qs = t->qs + (g * PAIRS + first) * 4, *ks = t->scale.ks + g * SL_TILE + key;
    float32x4_t sum[ACCUMULATORS];
#define SCORE(i) sum[i] = add_score(partial + 4 * i, acc##i, two_twice(ks + i / nq * 2), qs + i % nq * 4, g == 0);
    EACH_ACCUMULATOR(SCORE)
#undef SCORE
    if (g + 1 < groups) {
        for (size_t i = 0; i < ACCUMULATORS; i++)
            vst1q_f32(partial + 4 * i, sum[i]);
        return;
    }
    for (size_t i = 0; i < ACCUMULATORS; i += 2) { /* four queries by two keys */
        float *at = s + (key + i / nq * 2) * SL_LANES + 2 * first + i % nq * 2;
        vst1q_f32(at, vuzp1q_f32(sum[i], sum[i + 1]));
        vst1q_f32(at + SL_LANES, vuzp2q_f32(sum[i], sum[i + 1]));
    }
}

I8MM_INLINE void scores(const q8_tile *t, const sl_neon_block *b, const size_t nq)
{
    /* of a tile, the bytes to one key's group of K */
    const size_t share = sl_tile_bytes(SL_KV_TYPE_Q8_0, SL_GROUP) / SL_TILE, n_keys = 2 * ACCUMULATORS / nq;
    float partial[4 * ACCUMULATORS];
    for (size_t key = 0; key < SL_TILE; key += n_keys)
        for (size_t first = 0; first < 2 * b->nv; first += nq)
            for (size_t g = 0; g < t->head_dim / SL_GROUP; g++) {
                if (b->next && first == 0)
                    sl_attn_fetch(b->next + (g * SL_TILE + key) * share, n_keys * share);
                score_group(t, b->s, partial, key, g, first, nq);
            }
}

/* ---- outputs ---- */

/* The bytes of P of group g, vector j; returns vmax / 65535, vmax over the keys that a query sees. */
NEON_INLINE float32x4_t weights(const q8_tile *t, const sl_neon_block *b, size_t g, size_t j, const bool masked)
{
    float32x4_t vmax = masked ? sl_neon_visible_vmax(&t->scale, b, g, j) : vdupq_n_f32(t->scale.vmax[g]);
    float32x4_t inverse = sl_neon_inverse(vmax);
    for (size_t key = 0; key < SL_TILE; key += 8) {
        uint8x16_t a[2], c[2]; /* keys 0..3, 4..7 */
        sl_neon_weight_pairs(&t->scale, b, g, key, j, inverse, masked, a);
        sl_neon_weight_pairs(&t->scale, b, g, key + 4, j, inverse, masked, c);
        uint32x4_t low_a = vreinterpretq_u32_u8(vtrn1q_u8(a[0], a[1])),
                   low_c = vreinterpretq_u32_u8(vtrn1q_u8(c[0], c[1]));
        uint32x4_t high_a = vreinterpretq_u32_u8(vtrn2q_u8(a[0], a[1]));
        uint32x4_t high_c = vreinterpretq_u32_u8(vtrn2q_u8(c[0], c[1]));
        const size_t at = (key / 8 * PAIRS + 2 * j) * 16;
        vst1q_u8(t->weight_low + at, vreinterpretq_u8_u32(vzip1q_u32(low_a, low_c)));
        vst1q_u8(t->weight_low + at + 16, vreinterpretq_u8_u32(vzip2q_u32(low_a, low_c)));
        vst1q_u8(t->weight_high + at, vreinterpretq_u8_u32(vzip1q_u32(high_a, high_c)));
        vst1q_u8(t->weight_high + at + 16, vreinterpretq_u8_u32(vzip2q_u32(high_a, high_c)));
    }
    return vdivq_f32(vmax, vdupq_n_f32(65535.0f));
}

/* o = float(dot) * scale of four queries by dimensions d and d + 1, folded into the state. */
NEON_INLINE void fold_two(const sl_neon_block *b, size_t j, size_t d, int32x4_t first, int32x4_t second,
                          const float32x4_t *scale, const bool masked)
{
    int32x4_t even = vuzp1q_s32(first, second), odd = vuzp2q_s32(first, second);
    sl_neon_fold_o(b, j, d, vmulq_f32(vcvtq_f32_s32(even), scale[j]), masked);
    sl_neon_fold_o(b, j, d + 1, vmulq_f32(vcvtq_f32_s32(odd), scale[j]), masked);
}

/* Dimensions [d, d + 32 / nq) of the queries from pair `first` on. */
I8MM_INLINE void output_block(const q8_tile *t, const sl_neon_block *b, size_t d, size_t first,
                              const float32x4_t *scale, const size_t nq, const bool masked)
{
    const size_t step = t->head_dim / 2 * 16;
    const int8_t *v = t->v + d * 8;
    EACH_ACCUMULATOR(ZERO)
    ADD_PLANE(UNSIGNED, t->weight_high + first * 16, v, step, 8)
    EACH_ACCUMULATOR(SHIFT)
    ADD_PLANE(UNSIGNED, t->weight_low + first * 16, v, step, 8)
#define FOLD(i, n) fold_two(b, first / 2 + i % nq / 2, d + i / nq * 2, acc##i, acc##n, scale, masked);
    EACH_OF_EIGHT(FOLD)
#undef FOLD
}

I8MM_INLINE void outputs(const q8_tile *t, const sl_neon_block *b, const size_t nq, const bool masked)
{
    for (size_t g = 0; g < t->head_dim / SL_GROUP; g++) {
        float32x4_t scale[SL_NEON_VECTORS];
        for (size_t j = 0; j < b->nv; j++)
            scale[j] = weights(t, b, g, j, masked);
        for (size_t d = g * SL_GROUP; d < (g + 1) * SL_GROUP; d += 2 * ACCUMULATORS / nq)
            for (size_t first = 0; first < 2 * b->nv; first += nq)
                output_block(t, b, d, first, scale, nq, masked);
    }
}

/* ---- rows side by side ---- */

/* The block's queries as planes of bytes, and their scales. */
NEON static void split_queries(const q8_tile *t, const void *q, size_t nv)
{
    const uint8_t *at = q;
    for (size_t eight = 0; eight < t->head_dim / 8; eight++)
        for (size_t j = 0; j < nv; j++) {
            uint32x4_t low[2], high[2]; /* dimensions 0..3, 4..7 of four queries */
            for (size_t i = 0; i < 2; i++) {
                const uint8_t *pairs = at + eight * 256 + i * 128 + 16 * j;
                uint32x4_t first = vreinterpretq_u32_u8(vld1q_u8(pairs));
                uint32x4_t second = vreinterpretq_u32_u8(vld1q_u8(pairs + 64));
                uint8x16_t a = vreinterpretq_u8_u32(vzip1q_u32(first, second));
                uint8x16_t c = vreinterpretq_u8_u32(vzip2q_u32(first, second));
                low[i] = vreinterpretq_u32_u8(vuzp1q_u8(a, c));
                high[i] = vreinterpretq_u32_u8(vuzp2q_u8(a, c));
            }
            const size_t to = (eight * PAIRS + 2 * j) * 16;
            vst1q_u8(t->q_low + to, vreinterpretq_u8_u32(vzip1q_u32(low[0], low[1])));
            vst1q_u8(t->q_low + to + 16, vreinterpretq_u8_u32(vzip2q_u32(low[0], low[1])));
            vst1q_u8(t->q_high + to, vreinterpretq_u8_u32(vzip1q_u32(high[0], high[1])));
            vst1q_u8(t->q_high + to + 16, vreinterpretq_u8_u32(vzip2q_u32(high[0], high[1])));
        }
    const float *qs = (const float *)(const void *)(at + t->head_dim * SL_LANES * 2);
    for (size_t i = 0; i < t->head_dim / SL_GROUP * SL_LANES; i += 4) {
        float32x4_t four = vld1q_f32(qs + i);
        vst1q_f32(t->qs + 2 * i, vzip1q_f32(four, four));
        vst1q_f32(t->qs + 2 * i + 4, vzip2q_f32(four, four));
    }
}

/* Rows 2 i and 2 i + 1, of n bytes each: their eights e side by side at out + e * step + 16 * i. */
NEON_INLINE void pair_rows(int8_t *out, size_t step, const int8_t *first, const int8_t *second, size_t n)
{
    for (size_t at = 0; at < n; at += 16, out += 2 * step) {
        int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first + at)), c = vreinterpretq_s64_s8(vld1q_s8(second + at));
        vst1q_s8(out, vreinterpretq_s8_s64(vzip1q_s64(a, c)));
        vst1q_s8(out + step, vreinterpretq_s8_s64(vzip2q_s64(a, c)));
    }
}

NEON static void pair_tile(const q8_tile *t, const uint8_t *tile)
{
    const size_t head_dim = t->head_dim;
    const int8_t *k = (const int8_t *)tile, *v = k + 68 * head_dim;
    for (size_t key = 0; key < SL_TILE; key += 2)
        pair_rows(t->k + key * 8, SL_TILE * 8, k + key * head_dim, k + (key + 1) * head_dim, head_dim);
    for (size_t d = 0; d < head_dim; d += 2)
        pair_rows(t->v + d * 8, head_dim * 8, v + d * SL_TILE, v + (d + 1) * SL_TILE, SL_TILE);
}

/* ---- the entry ---- */

I8MM static void whole(const q8_tile *t, sl_neon_block *b, float softcap)
{
    split_queries(t, b->q, b->nv);
    if (b->nv == 1)
        scores(t, b, 2);
    else
        scores(t, b, 4);
    sl_neon_softmax(b, softcap, false);
    if (b->nv == 1)
        outputs(t, b, 2, false);
    else
        outputs(t, b, 4, false);
}

/* A cut tile is rare: all queries. */
I8MM static void cut(const q8_tile *t, sl_neon_block *b, float softcap)
{
    b->nv = SL_NEON_VECTORS;
    split_queries(t, b->q, b->nv);
    scores(t, b, 4);
    sl_neon_softmax(b, softcap, true);
    outputs(t, b, 4, true);
}

/* Places in the scratch, behind the blocks' scores and masks. */
NEON static q8_tile tile_start(const sl_tile_args *args, float *at)
{
    const size_t head_dim = args->head_dim, n_scales = head_dim / SL_GROUP * SL_TILE;
    q8_tile t = {.head_dim = head_dim, .scale = {.ks = at, .vs = at + n_scales, .vf = at + 2 * n_scales}};
    t.qs = at + 3 * n_scales;
    t.k = (int8_t *)(t.qs + head_dim / SL_GROUP * SL_LANES * 2);
    t.v = t.k + SL_TILE * head_dim;
    t.q_high = (uint8_t *)t.v + SL_TILE * head_dim;
    t.q_low = t.q_high + SL_LANES * head_dim;
    t.weight_high = t.q_low + SL_LANES * head_dim;
    t.weight_low = t.weight_high + SL_TILE * SL_LANES;
    sl_neon_scales_load(&t.scale, args->tile, head_dim);
    pair_tile(&t, args->tile);
    return t;
}

I8MM void sl_attn_tile_q8_i8mm(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_I8MM_Q8), n_queries = args->n_queries - few;
    assert(args->head_dim % SL_GROUP == 0 && args->head_dim <= SL_MAX_HEAD_DIM);
    if (few > 0)
        sl_attn_few_q8_neon(args, n_queries);
    if (n_queries == 0)
        return;
    float *s = args->scratch;
    const q8_tile t = tile_start(args, s + 2 * SL_TILE * SL_LANES);
    sl_neon_block b = {.s = s, .vis = (uint32_t *)(void *)(s + SL_TILE * SL_LANES)};
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        sl_neon_cut seen =
            sl_neon_block_start(&b, args, i, n_queries, sl_qblock_bytes(SL_KV_TYPE_Q8_0, args->head_dim));
        if (seen == SL_NEON_CUT_NONE)
            whole(&t, &b, args->softcap);
        else if (seen == SL_NEON_CUT_SOME)
            cut(&t, &b, args->softcap);
    }
}

#else
typedef int sl_attn_i8mm_is_for_arm64;
#endif
