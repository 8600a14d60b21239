/* Attention tiles for NEON with dot products: the bits of attn_ref.c.
 * Lanes are queries: a block of 16 is four vectors (one or two where at most 4 or 8 lanes are in use), keys and values
 * are taken by element, so that no sum ever crosses lanes. Few queries are attn_few_neon.c's.
 *
 * A 16-bit number times a byte is two byte products: n = 256 * high + low. Without I8MM both operands of a dot product
 * have the same sign, so low - 128 takes the place of low (of P also high - 128), and what that leaves out, a multiple
 * of the sum of the keys' or values' bytes, is added. Two `sdot` do sixteen such products; `smlal` would take four. */
#include "kernel/levels.h"

#if defined(__aarch64__)

#include <assert.h>

#include "kernel/attn_neon.h"

/* Accumulators of a register block: half of the 32 registers, and enough to hide the latency of four instructions a
 * cycle. Accumulator i belongs to key (or dimension) i / nv and vector i % nv. Each has a name, because gcc leaves an
 * array of them in memory; and an element's number must be written out. */
enum { ACCUMULATORS = 16 };
#define EACH_ACCUMULATOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

/* ---- F16 ---- */

typedef struct f16_tile {
    size_t head_dim;
    float *k; /* [D][64] */
    float *v; /* [64][D] */
} f16_tile;

#define ZERO(i) float32x4_t acc##i = vdupq_n_f32(0.0f);
/* 16 / nv numbers of one row of k or v, and the lanes that they multiply */
#define LOAD_ROW(row, lanes)                                                                                           \
    float32x4_t x[4], w[4];                                                                                            \
    for (size_t i = 0; i < 4; i++)                                                                                     \
        x[i] = vld1q_f32((row) + (i < SL_NEON_VECTORS / nv ? 4 * i : 0));                                              \
    for (size_t i = 0; i < 4; i++)                                                                                     \
        w[i] = vld1q_f32((lanes) + (i < nv ? 4 * i : 0));
#define FMA_OF(i, n) vfmaq_laneq_f32(acc##i, w[i % n], x[i / n / 4], i / n % 4)
#define FMA(i) (nv == 4 ? FMA_OF(i, 4) : nv == 2 ? FMA_OF(i, 2) : FMA_OF(i, 1))

NEON_INLINE void score_f16(const f16_tile *t, const sl_neon_block *b, const size_t nv)
{
    for (size_t key = 0; key < SL_TILE; key += ACCUMULATORS / nv) {
#define STEP(i) acc##i = FMA(i);
#define STORE(i) vst1q_f32(b->s + (key + i / nv) * SL_LANES + i % nv * 4, acc##i);
        EACH_ACCUMULATOR(ZERO)
        const float *q = b->q, *k = t->k + key;
        if (b->next)
            sl_attn_fetch(b->next + key * 4 * t->head_dim, ACCUMULATORS / nv * 4 * t->head_dim);
        for (size_t d = 0; d < t->head_dim; d++, q += SL_LANES, k += SL_TILE) {
            LOAD_ROW(k, q)
            EACH_ACCUMULATOR(STEP)
        }
        EACH_ACCUMULATOR(STORE)
#undef STEP
#undef STORE
    }
}

NEON_INLINE void output_f16(const f16_tile *t, const sl_neon_block *b, const size_t nv, const bool masked)
{
    for (size_t d = 0; d < t->head_dim; d += ACCUMULATORS / nv) {
/* where the key is visible: an fma with p = 0 would turn a sum of -0 into +0 */
#define STEP(i) acc##i = masked ? vbslq_f32(vis[i % nv], FMA(i), acc##i) : FMA(i);
#define FOLD(i) sl_neon_fold_o(b, i % nv, d + i / nv, acc##i, masked);
        EACH_ACCUMULATOR(ZERO)
        const float *v = t->v + d, *p = b->s;
        for (size_t key = 0; key < SL_TILE; key++, v += t->head_dim, p += SL_LANES) {
            uint32x4_t vis[4];
            for (size_t i = 0; i < 4; i++)
                vis[i] = masked ? sl_neon_vis(b, key, i < nv ? i : 0) : vdupq_n_u32(0);
            LOAD_ROW(v, p)
            EACH_ACCUMULATOR(STEP)
        }
        EACH_ACCUMULATOR(FOLD)
#undef STEP
#undef FOLD
    }
}
#undef ZERO

NEON_INLINE void block_f16(const f16_tile *t, sl_neon_block *b, float softcap, const size_t nv, const bool masked)
{
    score_f16(t, b, nv);
    sl_neon_softmax(b, softcap, masked);
    output_f16(t, b, nv, masked);
}

NEON static void whole_f16(const f16_tile *t, sl_neon_block *b, float softcap)
{
    if (b->nv == 1)
        block_f16(t, b, softcap, 1, false);
    else if (b->nv == 2)
        block_f16(t, b, softcap, 2, false);
    else
        block_f16(t, b, softcap, 4, false);
}

/* A cut tile is rare: all four vectors. */
NEON static void cut_f16(const f16_tile *t, sl_neon_block *b, float softcap)
{
    b->nv = SL_NEON_VECTORS;
    block_f16(t, b, softcap, 4, true);
}

NEON static void widen_f16(float *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        vst1q_f32(out + i, sl_neon_halves(in + 2 * i));
}

NEON void sl_attn_tile_f16_neon(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_NEON_F16), n_queries = args->n_queries - few;
    const size_t head_dim = args->head_dim, n = SL_TILE * head_dim;
    assert(head_dim % 16 == 0 && head_dim <= SL_MAX_HEAD_DIM);
    if (few > 0)
        sl_attn_few_f16_neon(args, n_queries);
    if (n_queries == 0)
        return;
    float *k = args->scratch, *s = k + 2 * n;
    const f16_tile t = {head_dim, k, k + n};
    widen_f16(t.k, args->tile, n);
    widen_f16(t.v, args->tile + 2 * n, n);
    sl_neon_block b = {.s = s, .vis = (uint32_t *)(void *)(s + SL_TILE * SL_LANES)};
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        sl_neon_cut cut = sl_neon_block_start(&b, args, i, n_queries, sl_qblock_bytes(SL_KV_TYPE_F16, head_dim));
        if (cut == SL_NEON_CUT_NONE)
            whole_f16(&t, &b, args->softcap);
        else if (cut == SL_NEON_CUT_SOME)
            cut_f16(&t, &b, args->softcap);
    }
}

/* ---- Q8_0 ---- */

/* Planes of bytes: [quad][16 lanes][4], a quad being four consecutive dimensions or keys. */
typedef struct q8_tile {
    size_t head_dim;
    const int8_t *k; /* [64][D] */
    const int8_t *v; /* [D][64] */
    sl_neon_scales scale;
    int32_t *k_bias;                  /* [D/32][64] what low - 128 leaves out */
    int32_t *v_bias;                  /* [D] what low - 128 and high - 128 leave out */
    int8_t *q_high, *q_low;           /* [D/4] quads of the block */
    int8_t *weight_high, *weight_low; /* [16] quads of one group */
} q8_tile;

#define ZERO(i) int32x4_t acc##i = vdupq_n_s32(0);
#define SHIFT(i) acc##i = vshlq_n_s32(acc##i, 8);
#define DOT_OF(i, n, quad) vdotq_laneq_s32(acc##i, w[i % n], x[i / n], quad)
#define DOT(i, quad) acc##i = nv == 4 ? DOT_OF(i, 4, quad) : DOT_OF(i, 2, quad);
#define DOT_0(i) DOT(i, 0)
#define DOT_1(i) DOT(i, 1)
#define DOT_2(i) DOT(i, 2)
#define DOT_3(i) DOT(i, 3)
#define QUAD(plane, quad)                                                                                              \
    for (size_t j = 0; j < 4; j++)                                                                                     \
        w[j] = vld1q_s8((plane) + (quad)*64 + (j < nv ? 16 * j : 0));                                                  \
    EACH_ACCUMULATOR(DOT_##quad)
/* acc += the products of n_chunks times sixteen bytes of each of 16 / nv rows with a plane's quads */
#define ADD_PLANE(plane, rows, stride, n_chunks)                                                                       \
    for (size_t chunk = 0; chunk < (n_chunks); chunk++) {                                                              \
        const int8_t *quads = (plane) + chunk * 256;                                                                   \
        int8x16_t x[8], w[4];                                                                                          \
        for (size_t i = 0; i < 8; i++)                                                                                 \
            x[i] = vld1q_s8((rows) + (i < ACCUMULATORS / nv ? i : 0) * (stride) + 16 * chunk);                         \
        QUAD(quads, 0)                                                                                                 \
        QUAD(quads, 1)                                                                                                 \
        QUAD(quads, 2)                                                                                                 \
        QUAD(quads, 3)                                                                                                 \
    }

/* s = fma(dot, ks * qs, s) */
NEON_INLINE void add_score(float *at, int32x4_t dot, float ks, float32x4_t qs, bool first)
{
    float32x4_t before = first ? vdupq_n_f32(0.0f) : vld1q_f32(at);
    vst1q_f32(at, vfmaq_f32(before, vcvtq_f32_s32(dot), vmulq_n_f32(qs, ks)));
}

NEON_INLINE void fetch_share(const q8_tile *t, const sl_neon_block *b, size_t key, size_t g, size_t n_keys)
{
    /* of a tile, the bytes to one key's group of K */
    const size_t share = sl_tile_bytes(SL_KV_TYPE_Q8_0, SL_GROUP) / SL_TILE;
    (void)t;
    if (b->next)
        sl_attn_fetch(b->next + (g * SL_TILE + key) * share, n_keys * share);
}

NEON_INLINE void score_q8(const q8_tile *t, const sl_neon_block *b, const size_t nv)
{
    const size_t head_dim = t->head_dim, n_keys = ACCUMULATORS / nv;
    const float *all_qs = (const float *)(const void *)((const uint8_t *)b->q + head_dim * SL_LANES * 2);
    for (size_t key = 0; key < SL_TILE; key += n_keys)
        for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
#define STORE(i)                                                                                                       \
    add_score(s + i / nv * SL_LANES + i % nv * 4, vaddq_s32(acc##i, vdupq_n_s32(bias[i / nv])), ks[i / nv],            \
              qs[i % nv], g == 0);
            EACH_ACCUMULATOR(ZERO)
            fetch_share(t, b, key, g, n_keys);
            const int8_t *k = t->k + key * head_dim + g * SL_GROUP;
            ADD_PLANE(t->q_high + g * SL_GROUP * SL_LANES, k, head_dim, 2)
            EACH_ACCUMULATOR(SHIFT)
            ADD_PLANE(t->q_low + g * SL_GROUP * SL_LANES, k, head_dim, 2)
            float32x4_t qs[4];
            for (size_t j = 0; j < 4; j++)
                qs[j] = vld1q_f32(all_qs + g * SL_LANES + 4 * j);
            float *s = b->s + key * SL_LANES;
            const float *ks = t->scale.ks + g * SL_TILE + key;
            const int32_t *bias = t->k_bias + g * SL_TILE + key;
            EACH_ACCUMULATOR(STORE)
#undef STORE
        }
}

/* The bytes of P - 32896 = 256 * (high - 128) + (low - 128) of group g; returns vmax / 65535, vmax over the keys that
 * a query sees. */
NEON_INLINE float32x4_t weights_q8(const q8_tile *t, const sl_neon_block *b, size_t g, size_t j, const bool masked)
{
    float32x4_t vmax = masked ? sl_neon_visible_vmax(&t->scale, b, g, j) : vdupq_n_f32(t->scale.vmax[g]);
    float32x4_t inverse = sl_neon_inverse(vmax);
    for (size_t key = 0; key < SL_TILE; key += 4) {
        uint8x16_t pairs[2];
        sl_neon_weight_pairs(&t->scale, b, g, key, j, inverse, masked, pairs);
        for (int i = 0; i < 2; i++)
            pairs[i] = veorq_u8(pairs[i], vdupq_n_u8(0x80));
        vst1q_s8(t->weight_low + key * SL_LANES + 16 * j, vreinterpretq_s8_u8(vtrn1q_u8(pairs[0], pairs[1])));
        vst1q_s8(t->weight_high + key * SL_LANES + 16 * j, vreinterpretq_s8_u8(vtrn2q_u8(pairs[0], pairs[1])));
    }
    return vdivq_f32(vmax, vdupq_n_f32(65535.0f));
}

/* o = float(dot) * scale, folded into the state. */
NEON_INLINE void fold_dot(const sl_neon_block *b, size_t j, size_t d, int32x4_t dot, float32x4_t scale,
                          const bool masked)
{
    sl_neon_fold_o(b, j, d, vmulq_f32(vcvtq_f32_s32(dot), scale), masked);
}

NEON_INLINE void output_q8(const q8_tile *t, const sl_neon_block *b, const size_t nv, const bool masked)
{
    float32x4_t scale[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (size_t d = 0; d < t->head_dim; d += ACCUMULATORS / nv) {
        for (size_t j = 0; d % SL_GROUP == 0 && j < nv; j++)
            scale[j] = weights_q8(t, b, d / SL_GROUP, j, masked);
#define FOLD(i)                                                                                                        \
    fold_dot(b, i % nv, d + i / nv, vaddq_s32(acc##i, vdupq_n_s32(t->v_bias[d + i / nv])), scale[i % nv], masked);
        EACH_ACCUMULATOR(ZERO)
        const int8_t *v = t->v + d * SL_TILE;
        ADD_PLANE(t->weight_high, v, SL_TILE, 4)
        EACH_ACCUMULATOR(SHIFT)
        ADD_PLANE(t->weight_low, v, SL_TILE, 4)
        EACH_ACCUMULATOR(FOLD)
#undef FOLD
    }
}
#undef DOT

/* One vector of queries against eight rows: high bytes into accumulators 0..7, low bytes into 8..15. */
#define DOT(i, quad) acc##i = vdotq_laneq_s32(acc##i, i < 8 ? high : low, x[i % 8], quad);
#define QUAD_OF_BOTH(quad)                                                                                             \
    high = vld1q_s8(high_quads + (quad)*64);                                                                           \
    low = vld1q_s8(low_quads + (quad)*64);                                                                             \
    EACH_ACCUMULATOR(DOT_##quad)
#define ADD_BOTH_PLANES(high_plane, low_plane, rows, stride, n_chunks)                                                 \
    for (size_t chunk = 0; chunk < (n_chunks); chunk++) {                                                              \
        const int8_t *high_quads = (high_plane) + chunk * 256, *low_quads = (low_plane) + chunk * 256;                 \
        int8x16_t x[8], high, low;                                                                                     \
        for (size_t i = 0; i < 8; i++)                                                                                 \
            x[i] = vld1q_s8((rows) + i * (stride) + 16 * chunk);                                                       \
        QUAD_OF_BOTH(0)                                                                                                \
        QUAD_OF_BOTH(1)                                                                                                \
        QUAD_OF_BOTH(2)                                                                                                \
        QUAD_OF_BOTH(3)                                                                                                \
    }
#define EACH_OF_EIGHT(X) X(0, 8) X(1, 9) X(2, 10) X(3, 11) X(4, 12) X(5, 13) X(6, 14) X(7, 15)
/* 256 * high + low + what was left out */
#define JOIN(h, l, bias) vaddq_s32(vaddq_s32(vshlq_n_s32(acc##h, 8), acc##l), vdupq_n_s32((bias)[h]))

NEON_INLINE void score_q8_four(const q8_tile *t, const sl_neon_block *b)
{
    const size_t head_dim = t->head_dim;
    const float *qs = (const float *)(const void *)((const uint8_t *)b->q + head_dim * SL_LANES * 2);
    for (size_t key = 0; key < SL_TILE; key += 8)
        for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
#define STORE(h, l) add_score(s + h * SL_LANES, JOIN(h, l, bias), ks[h], vld1q_f32(qs + g * SL_LANES), g == 0);
            EACH_ACCUMULATOR(ZERO)
            fetch_share(t, b, key, g, 8);
            const size_t plane = g * SL_GROUP * SL_LANES;
            ADD_BOTH_PLANES(t->q_high + plane, t->q_low + plane, t->k + key * head_dim + g * SL_GROUP, head_dim, 2)
            float *s = b->s + key * SL_LANES;
            const float *ks = t->scale.ks + g * SL_TILE + key;
            const int32_t *bias = t->k_bias + g * SL_TILE + key;
            EACH_OF_EIGHT(STORE)
#undef STORE
        }
}

NEON_INLINE void output_q8_four(const q8_tile *t, const sl_neon_block *b)
{
    float32x4_t scale = vdupq_n_f32(0);
    for (size_t d = 0; d < t->head_dim; d += 8) {
        if (d % SL_GROUP == 0)
            scale = weights_q8(t, b, d / SL_GROUP, 0, false);
#define FOLD(h, l) fold_dot(b, 0, d + h, JOIN(h, l, bias), scale, false);
        EACH_ACCUMULATOR(ZERO)
        ADD_BOTH_PLANES(t->weight_high, t->weight_low, t->v + d * SL_TILE, SL_TILE, 4)
        const int32_t *bias = t->v_bias + d;
        EACH_OF_EIGHT(FOLD)
#undef FOLD
    }
}

/* The block's queries as planes of their high bytes and of low - 128. */
NEON static void split_queries(const q8_tile *t, const void *q, size_t nv)
{
    for (size_t quad = 0; quad < t->head_dim / 4; quad++)
        for (size_t j = 0; j < nv; j++) {
            const uint8_t *at = (const uint8_t *)q + quad * 128 + 16 * j;
            uint32x4_t first = vreinterpretq_u32_u8(vld1q_u8(at)), second = vreinterpretq_u32_u8(vld1q_u8(at + 64));
            uint8x16_t a = vreinterpretq_u8_u32(vzip1q_u32(first, second));
            uint8x16_t c = vreinterpretq_u8_u32(vzip2q_u32(first, second));
            uint8x16_t low = veorq_u8(vuzp1q_u8(a, c), vdupq_n_u8(0x80));
            vst1q_s8(t->q_low + quad * 64 + 16 * j, vreinterpretq_s8_u8(low));
            vst1q_s8(t->q_high + quad * 64 + 16 * j, vreinterpretq_s8_u8(vuzp2q_u8(a, c)));
        }
}

NEON static void whole_q8(const q8_tile *t, sl_neon_block *b, float softcap)
{
    split_queries(t, b->q, b->nv);
    if (b->nv == 1) {
        score_q8_four(t, b);
        sl_neon_softmax(b, softcap, false);
        output_q8_four(t, b);
    } else if (b->nv == 2) {
        score_q8(t, b, 2);
        sl_neon_softmax(b, softcap, false);
        output_q8(t, b, 2, false);
    } else {
        score_q8(t, b, 4);
        sl_neon_softmax(b, softcap, false);
        output_q8(t, b, 4, false);
    }
}

NEON static void cut_q8(const q8_tile *t, sl_neon_block *b, float softcap)
{
    b->nv = SL_NEON_VECTORS;
    split_queries(t, b->q, 4);
    score_q8(t, b, 4);
    sl_neon_softmax(b, softcap, true);
    output_q8(t, b, 4, true);
}

/* 128 times the sum of a key's group; (256 + 1) * 128 times the sum of a dimension's values. */
NEON static void biases(q8_tile *t)
{
    const size_t head_dim = t->head_dim;
    const int8x16_t ones = vdupq_n_s8(1);
    for (size_t g = 0; g < head_dim / SL_GROUP; g++)
        for (size_t key = 0; key < SL_TILE; key++) {
            const int8_t *k = t->k + key * head_dim + g * SL_GROUP;
            int32x4_t sum = vdotq_s32(vdotq_s32(vdupq_n_s32(0), vld1q_s8(k), ones), vld1q_s8(k + 16), ones);
            t->k_bias[g * SL_TILE + key] = 128 * vaddvq_s32(sum);
        }
    for (size_t d = 0; d < head_dim; d++) {
        int32x4_t sum = vdupq_n_s32(0);
        for (size_t i = 0; i < SL_TILE; i += 16)
            sum = vdotq_s32(sum, vld1q_s8(t->v + d * SL_TILE + i), ones);
        t->v_bias[d] = 257 * 128 * vaddvq_s32(sum);
    }
}

NEON void sl_attn_tile_q8_neon(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_NEON_Q8), n_queries = args->n_queries - few;
    const size_t head_dim = args->head_dim, n_scales = head_dim / SL_GROUP * SL_TILE;
    assert(head_dim % SL_GROUP == 0 && head_dim <= SL_MAX_HEAD_DIM);
    if (few > 0)
        sl_attn_few_q8_neon(args, n_queries);
    if (n_queries == 0)
        return;
    float *s = args->scratch, *ks = s + 2 * SL_TILE * SL_LANES;
    q8_tile t = {
        .head_dim = head_dim, .k = (const int8_t *)args->tile, .v = (const int8_t *)args->tile + 68 * head_dim};
    t.scale = (sl_neon_scales){.ks = ks, .vs = ks + n_scales, .vf = ks + 2 * n_scales};
    t.k_bias = (int32_t *)(void *)(ks + 3 * n_scales);
    t.v_bias = t.k_bias + n_scales;
    t.q_high = (int8_t *)(t.v_bias + head_dim);
    t.q_low = t.q_high + head_dim * SL_LANES;
    t.weight_high = t.q_low + head_dim * SL_LANES;
    t.weight_low = t.weight_high + SL_TILE * SL_LANES;
    sl_neon_scales_load(&t.scale, args->tile, head_dim);
    biases(&t);
    sl_neon_block b = {.s = s, .vis = (uint32_t *)(void *)(s + SL_TILE * SL_LANES)};
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        sl_neon_cut cut = sl_neon_block_start(&b, args, i, n_queries, sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim));
        if (cut == SL_NEON_CUT_NONE)
            whole_q8(&t, &b, args->softcap);
        else if (cut == SL_NEON_CUT_SOME)
            cut_q8(&t, &b, args->softcap);
    }
}

#else
typedef int sl_attn_neon_is_for_arm64;
#endif
