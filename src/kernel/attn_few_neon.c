/* Attention tiles against few queries for NEON with dot products: the bits of attn_ref.c.
 * Lanes are keys (scores, softmax, Q8_0's outputs) or dimensions (F16's outputs), so that one query fills the vectors.
 * The tile is read as it lies, for one query or two at once: `nq`, a constant in every inlined copy. A query that sees
 * only a part of the tile goes alone.
 *
 * Q8_0: a 16-bit number is 256 * high + low. A query's high bytes are signed, as keys are; its low bytes and both bytes
 * of P are unsigned, so there keys and values become unsigned, as x + 128, and 128 * the sum of the query's low bytes,
 * or of P, is taken off. */
#include "kernel/attn_few.h"

#if defined(__aarch64__)

#include "kernel/neon.h"

/* Queries that share what is loaded and widened. */
enum { TOGETHER = 2 };

/* One query, out of its block. */
typedef struct few_query {
    float s[SL_TILE];         /* scores, then p */
    float o[SL_MAX_HEAD_DIM]; /* of the tile, times beta */
    int8_t high[SL_MAX_HEAD_DIM];
    uint8_t low[SL_MAX_HEAD_DIM];
    uint8_t p_high[SL_TILE], p_low[SL_TILE];    /* of one group */
    int32_t q_bias[SL_MAX_HEAD_DIM / SL_GROUP]; /* -128 * the sum of a group's low bytes */
    const float *qs;                            /* Q8_0: a group's scale at g * SL_LANES */
    const float *qf;                            /* F16: dimension d at d * SL_LANES */
    float *state;                               /* at its lane */
    uint64_t mask;
    float m, l, alpha, beta;
} few_query;

/* ---- softmax and the fold, one query ---- */

NEON_INLINE uint32x4_t visible_4(uint64_t mask, int key)
{
    const uint32x4_t bits = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32((uint32_t)(mask >> key)), bits);
}

/* Softcap, mask and maximum. A hidden key's score becomes -inf, from which p = +0 follows. */
NEON_INLINE void maximum_of_scores(few_query *f, float softcap, const bool masked)
{
    const float32x4_t nothing = vdupq_n_f32(-INFINITY), cap = vdupq_n_f32(softcap * SL_LOG2E);
    float32x4_t m[2] = {nothing, nothing};
    for (int key = 0; key < SL_TILE; key += 4) {
        float32x4_t s = vld1q_f32(f->s + key);
        if (softcap != 0.0f)
            s = vmulq_f32(cap, sl_neon_tanh(s));
        if (masked)
            s = vbslq_f32(visible_4(f->mask, key), s, nothing);
        if (masked || softcap != 0.0f)
            vst1q_f32(f->s + key, s);
        m[key / 4 % 2] = vmaxnmq_f32(m[key / 4 % 2], s); /* passes over a NaN */
    }
    f->m = vmaxnmvq_f32(vmaxnmq_f32(m[0], m[1])) + 0.0f; /* -0 becomes +0 */
}

NEON_INLINE void exp_and_sum(few_query *f)
{
    const float32x4_t m = vdupq_n_f32(f->m);
    float32x4_t sum[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)}; /* +0 + p is p */
    for (int key = 0; key < SL_TILE; key += SL_LANES)
        for (int i = 0; i < 4; i++) {
            float *at = f->s + key + 4 * i;
            float32x4_t p = sl_neon_exp2(vsubq_f32(vld1q_f32(at), m));
            vst1q_f32(at, p);
            sum[i] = vaddq_f32(sum[i], p);
        }
    f->l = sl_neon_tree16(sum[0], sum[1], sum[2], sum[3]);
}

/* m and l of the state; alpha and beta for its o. */
NEON_INLINE void fold_m_l(few_query *f)
{
    float m = f->state[0], m_new = f->m > m ? f->m : m;
    float32x4_t both = vsetq_lane_f32(f->m, vdupq_n_f32(m), 1);
    both = sl_neon_exp2(vsubq_f32(both, vdupq_n_f32(m_new)));
    f->alpha = vgetq_lane_f32(both, 0);
    f->beta = vgetq_lane_f32(both, 1);
    f->state[0] = m_new;
    f->state[SL_LANES] = fmaf(f->state[SL_LANES], f->alpha, f->l * f->beta);
}

NEON_INLINE void softmax(few_query *f, float softcap, const bool masked)
{
    if (softcap != 0.0f)
        maximum_of_scores(f, softcap, masked);
    else
        maximum_of_scores(f, 0.0f, masked);
    exp_and_sum(f);
    fold_m_l(f);
}

NEON_INLINE void fold_o(const few_query *f, size_t head_dim)
{
    float *at = f->state + 2 * SL_LANES;
    for (size_t d = 0; d < head_dim; d += 8, at += 8 * SL_LANES)
        for (size_t i = 0; i < 8; i++) /* unrolled by the compiler */
            at[i * SL_LANES] = fmaf(at[i * SL_LANES], f->alpha, f->o[d + i]);
}

/* ---- F16 ---- */

/* Accumulators: i belongs to vector i / nq and query i % nq. Each has a name, because gcc leaves an array of them in
 * memory. */
enum { ACCUMULATORS = 16 };
#define EACH_ACCUMULATOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define ZERO(i) float32x4_t acc##i = vdupq_n_f32(0.0f);

/* The i-th vector of a row of 16 / nq widened ones; two of them share a load. */
NEON_INLINE float32x4_t widened(const uint8_t *row, int i)
{
    float16x8_t eight = vreinterpretq_f16_u8(vld1q_u8(row + i / 2 * 16));
    return i % 2 ? vcvt_high_f32_f16(eight) : vcvt_f32_f16(vget_low_f16(eight));
}

NEON_INLINE void scores_f16(few_query *f, const sl_tile_args *args, const int nq)
{
    const int width = 4 * ACCUMULATORS / nq;
    for (int key = 0; key < SL_TILE; key += width) {
#define STEP(i) acc##i = vfmaq_f32(acc##i, widened(k, i / nq), q[i % nq]);
#define STORE(i) vst1q_f32(f[i % nq].s + key + 4 * (i / nq), acc##i);
        EACH_ACCUMULATOR(ZERO)
        const uint8_t *k = args->tile + 2 * key, *next = args->next + 2 * key;
        for (size_t d = 0; d < args->head_dim; d++, k += 2 * SL_TILE, next += 2 * SL_TILE) {
            const float32x4_t q[2] = {vld1q_dup_f32(f[0].qf + d * SL_LANES),
                                      vld1q_dup_f32(f[nq - 1].qf + d * SL_LANES)};
            EACH_ACCUMULATOR(STEP)
            sl_attn_fetch(next, (size_t)width * 2);
        }
        EACH_ACCUMULATOR(STORE)
#undef STEP
#undef STORE
    }
}

/* Dimensions [d, d + 64 / nq). masked: of the one query, whose sum passes over a hidden key, because an fma with p = 0
 * would turn a sum of -0 into +0. */
NEON_INLINE void output_dims_f16(few_query *f, const sl_tile_args *args, size_t d, const int nq, const bool masked)
{
#define STEP(i) acc##i = vfmaq_f32(acc##i, widened(v, i / nq), p[i % nq]);
#define STORE(i) vst1q_f32(f[i % nq].o + d + 4 * (i / nq), vmulq_n_f32(acc##i, f[i % nq].beta));
    EACH_ACCUMULATOR(ZERO)
    const size_t v_off = 128 * args->head_dim + 2 * d, row_bytes = (size_t)(8 * ACCUMULATORS / nq);
    const uint8_t *v = args->tile + v_off, *next = args->next + v_off;
    for (int key = 0; key < SL_TILE; key++, v += 2 * args->head_dim, next += 2 * args->head_dim) {
        sl_attn_fetch(next, row_bytes);
        if (masked && !(f->mask >> key & 1))
            continue;
        const float32x4_t p[2] = {vld1q_dup_f32(f[0].s + key), vld1q_dup_f32(f[nq - 1].s + key)};
        EACH_ACCUMULATOR(STEP)
    }
    EACH_ACCUMULATOR(STORE)
#undef STEP
#undef STORE
}

/* One query, 16 dimensions: for small heads. */
NEON_INLINE void output_16_dims_f16(few_query *f, const sl_tile_args *args, size_t d)
{
    float32x4_t sum[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    const uint8_t *v = args->tile + 128 * args->head_dim + 2 * d;
    for (int key = 0; key < SL_TILE; key++, v += 2 * args->head_dim) {
        if (!(f->mask >> key & 1))
            continue;
        const float32x4_t p = vld1q_dup_f32(f->s + key);
        for (int i = 0; i < 4; i++)
            sum[i] = vfmaq_f32(sum[i], widened(v, i), p);
    }
    for (int i = 0; i < 4; i++)
        vst1q_f32(f->o + d + 4 * i, vmulq_n_f32(sum[i], f->beta));
}

NEON_INLINE void outputs_f16(few_query *f, const sl_tile_args *args, const int nq, const bool masked)
{
    const size_t head_dim = args->head_dim, width = (size_t)(4 * ACCUMULATORS / nq);
    if (head_dim < width)
        for (size_t d = 0; d < head_dim; d += 16)
            for (int j = 0; j < nq; j++)
                output_16_dims_f16(f + j, args, d);
    else
        for (size_t d = 0; d < head_dim; d += width) /* the last dimensions may be computed twice */
            output_dims_f16(f, args, d + width <= head_dim ? d : head_dim - width, nq, masked);
}

NEON_INLINE void queries_f16(few_query *f, const sl_tile_args *args, const int nq, const bool masked)
{
    scores_f16(f, args, nq);
    for (int j = 0; j < nq; j++)
        softmax(f + j, args->softcap, masked);
    outputs_f16(f, args, nq, masked);
    for (int j = 0; j < nq; j++)
        fold_o(f + j, args->head_dim);
}

/* ---- Q8_0 ---- */

/* A 32-bit vector for each of nq queries. */
typedef struct sums {
    int32x4_t of[TOGETHER];
} sums;

/* The sums of the lanes of four vectors, in order. */
NEON_INLINE int32x4_t sum_of_four(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d)
{
    return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

NEON_INLINE int32x4_t add_signed(int32x4_t sum, int8x16_t a, const int8_t *b)
{
    return vdotq_s32(sum, a, vld1q_s8(b));
}

NEON_INLINE int32x4_t add_unsigned(int32x4_t sum, uint8x16_t a, const uint8_t *b)
{
    return vreinterpretq_s32_u32(vdotq_u32(vreinterpretq_u32_s32(sum), a, vld1q_u8(b)));
}

NEON_INLINE uint8x16_t plus_128(int8x16_t x)
{
    return veorq_u8(vreinterpretq_u8_s8(x), vdupq_n_u8(0x80));
}

/* Products of one key's group with each query's, but for q_bias. */
NEON_INLINE sums key_products(const int8_t *k, const few_query *f, size_t d, const int nq)
{
    int8x16_t x0 = vld1q_s8(k), x1 = vld1q_s8(k + 16);
    uint8x16_t u0 = plus_128(x0), u1 = plus_128(x1);
    sums r = {{vdupq_n_s32(0), vdupq_n_s32(0)}};
    for (int j = 0; j < nq; j++) {
        int32x4_t sum = add_signed(add_signed(vdupq_n_s32(0), x0, f[j].high + d), x1, f[j].high + d + 16);
        r.of[j] = add_unsigned(add_unsigned(vshlq_n_s32(sum, 8), u0, f[j].low + d), u1, f[j].low + d + 16);
    }
    return r;
}

NEON_INLINE void scores_q8(few_query *f, const sl_tile_args *args, const int nq)
{
    const size_t head_dim = args->head_dim;
    const uint8_t *next = args->next;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        const uint8_t *ks = args->tile + 64 * head_dim + g * 2 * SL_TILE;
        for (size_t key = 0; key < SL_TILE; key += 4, next += 4 * SL_GROUP) {
            sl_attn_fetch(next, 4 * SL_GROUP);
            const int8_t *k = (const int8_t *)args->tile + key * head_dim + g * SL_GROUP;
            sums r[4];
            for (size_t i = 0; i < 4; i++)
                r[i] = key_products(k + i * head_dim, f, g * SL_GROUP, nq);
            float32x4_t k_scale = sl_neon_halves(ks + 2 * key);
            for (int j = 0; j < nq; j++) {
                int32x4_t dot = sum_of_four(r[0].of[j], r[1].of[j], r[2].of[j], r[3].of[j]);
                dot = vaddq_s32(dot, vdupq_n_s32(f[j].q_bias[g]));
                float32x4_t before = g == 0 ? vdupq_n_f32(0.0f) : vld1q_f32(f[j].s + key);
                float32x4_t scale = vmulq_n_f32(k_scale, f[j].qs[g * SL_LANES]);
                vst1q_f32(f[j].s + key, vfmaq_f32(before, vcvtq_f32_s32(dot), scale));
            }
        }
    }
}

/* What one query makes of a group of values. */
typedef struct group_scale {
    float scale;  /* vmax / 65535 */
    int32_t bias; /* -128 * the sum of P */
} group_scale;

/* The bytes of P of one group. */
NEON_INLINE group_scale weights_q8(few_query *f, const uint8_t *vs, const bool masked)
{
    float32x4_t most = vdupq_n_f32(0.0f);
    for (int key = 0; key < SL_TILE; key += 4) {
        uint32x4_t scale = vreinterpretq_u32_f32(sl_neon_halves(vs + 2 * key));
        most = vmaxnmq_f32(most, vreinterpretq_f32_u32(masked ? vandq_u32(scale, visible_4(f->mask, key)) : scale));
    }
    float vmax = vmaxnmvq_f32(most), inverse = vmax > 0.0f ? 65535.0f / vmax : 0.0f;
    uint32x4_t total = vdupq_n_u32(0);
    for (int key = 0; key < SL_TILE; key += 16) {
        uint16x8_t p[4];
        for (int i = 0; i < 4; i++) {
            float32x4_t factor = vmulq_n_f32(sl_neon_halves(vs + 2 * (key + 4 * i)), inverse);
            uint32x4_t w = vcvtnq_u32_f32(vmulq_f32(vld1q_f32(f->s + key + 4 * i), factor));
            total = vaddq_u32(total, w);
            p[i] = vreinterpretq_u16_u32(w);
        }
        uint8x16_t a = vreinterpretq_u8_u16(vuzp1q_u16(p[0], p[1])), b = vreinterpretq_u8_u16(vuzp1q_u16(p[2], p[3]));
        vst1q_u8(f->p_low + key, vuzp1q_u8(a, b));
        vst1q_u8(f->p_high + key, vuzp2q_u8(a, b));
    }
    return (group_scale){vmax / 65535.0f, -128 * (int32_t)vaddvq_u32(total)};
}

/* Products of one dimension's 64 values with each query's P, but for the bias. */
NEON_INLINE sums value_products(const int8_t *v, const few_query *f, const int nq)
{
    uint8x16_t x[4];
    for (int i = 0; i < 4; i++)
        x[i] = plus_128(vld1q_s8(v + 16 * i));
    sums r = {{vdupq_n_s32(0), vdupq_n_s32(0)}};
    for (int j = 0; j < nq; j++) {
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < 4; i++)
            sum = add_unsigned(sum, x[i], f[j].p_high + 16 * i);
        sum = vshlq_n_s32(sum, 8);
        for (int i = 0; i < 4; i++)
            sum = add_unsigned(sum, x[i], f[j].p_low + 16 * i);
        r.of[j] = sum;
    }
    return r;
}

NEON_INLINE void outputs_q8(few_query *f, const sl_tile_args *args, const int nq, const bool masked)
{
    const size_t head_dim = args->head_dim;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        group_scale of[TOGETHER] = {{0.0f, 0}, {0.0f, 0}};
        for (int j = 0; j < nq; j++)
            of[j] = weights_q8(f + j, args->tile + 132 * head_dim + g * 2 * SL_TILE, masked);
        sl_attn_fetch(args->next + 64 * head_dim + g * 2 * SL_TILE, 2 * SL_TILE);
        sl_attn_fetch(args->next + 132 * head_dim + g * 2 * SL_TILE, 2 * SL_TILE);
        for (size_t d = g * SL_GROUP; d < (g + 1) * SL_GROUP; d += 4) {
            const size_t v_off = 68 * head_dim + d * SL_TILE;
            sl_attn_fetch(args->next + v_off, 4 * SL_TILE);
            sums r[4];
            for (size_t i = 0; i < 4; i++)
                r[i] = value_products((const int8_t *)args->tile + v_off + i * SL_TILE, f, nq);
            for (int j = 0; j < nq; j++) {
                int32x4_t dot = sum_of_four(r[0].of[j], r[1].of[j], r[2].of[j], r[3].of[j]);
                dot = vaddq_s32(dot, vdupq_n_s32(of[j].bias));
                vst1q_f32(f[j].o + d, vmulq_n_f32(vmulq_n_f32(vcvtq_f32_s32(dot), of[j].scale), f[j].beta));
            }
        }
    }
}

NEON_INLINE void queries_q8(few_query *f, const sl_tile_args *args, const int nq, const bool masked)
{
    scores_q8(f, args, nq);
    for (int j = 0; j < nq; j++)
        softmax(f + j, args->softcap, masked);
    outputs_q8(f, args, nq, masked);
    for (int j = 0; j < nq; j++)
        fold_o(f + j, args->head_dim);
}

/* ---- the entries ---- */

/* Takes the query of `lane` out of its block. */
NEON_INLINE void query_load(few_query *f, const uint8_t *block, size_t lane, size_t head_dim, const sl_kv_type type)
{
    f->qf = (const float *)(const void *)block + lane;
    if (type == SL_KV_TYPE_F16)
        return;
    const uint32_t *pairs = (const uint32_t *)(const void *)block + lane;
    f->qs = (const float *)(const void *)(block + head_dim * SL_LANES * sizeof(int16_t)) + lane;
    for (size_t d = 0; d < head_dim; d += 16, pairs += 8 * SL_LANES) {
        uint32x4_t eight[2];
#define PAIRS(i)                                                                                                       \
    {                                                                                                                  \
        pairs[(i)*SL_LANES], pairs[((i) + 1) * SL_LANES], pairs[((i) + 2) * SL_LANES], pairs[((i) + 3) * SL_LANES]     \
    }
        const uint32_t first[4] = PAIRS(0), second[4] = PAIRS(4);
#undef PAIRS
        eight[0] = vld1q_u32(first);
        eight[1] = vld1q_u32(second);
        uint8x16_t a = vreinterpretq_u8_u32(eight[0]), b = vreinterpretq_u8_u32(eight[1]), low = vuzp1q_u8(a, b);
        vst1q_u8(f->low + d, low);
        vst1q_s8(f->high + d, vreinterpretq_s8_u8(vuzp2q_u8(a, b)));
        int32_t *bias = f->q_bias + d / SL_GROUP, off = 128 * (int32_t)vaddlvq_u8(low);
        *bias = d % SL_GROUP == 0 ? -off : *bias - off;
    }
}

/* Points f at query `query` of the call; false when it sees nothing of the tile. */
static bool query_start(few_query *f, const sl_tile_args *args, size_t query)
{
    f->mask = args->masks ? args->masks[query] : UINT64_MAX;
    f->state = (float *)(void *)(args->states + query / SL_LANES * args->state_stride) + query % SL_LANES;
    return f->mask != 0;
}

NEON_INLINE void queries(few_query *f, const sl_tile_args *args, sl_kv_type type, const int nq, const bool masked)
{
    if (type == SL_KV_TYPE_F16)
        queries_f16(f, args, nq, masked);
    else
        queries_q8(f, args, nq, masked);
}

/* type: a constant in both copies */
NEON_INLINE void few_queries(const sl_tile_args *call, size_t first, const sl_kv_type type)
{
    const uint8_t *block = call->qblocks + first / SL_LANES * sl_qblock_bytes(type, call->head_dim);
    sl_tile_args args = *call;
    few_query f[TOGETHER];
    int n = 0; /* waiting in f, which see the whole tile */
    args.next = call->next ? call->next : call->tile;
    for (size_t query = first; query < args.n_queries; query++) {
        if (!query_start(&f[n], &args, query))
            continue;
        query_load(&f[n], block, query % SL_LANES, args.head_dim, type);
        if (f[n].mask != UINT64_MAX)
            queries(&f[n], &args, type, 1, true);
        else if (++n == TOGETHER) {
            queries(f, &args, type, TOGETHER, false);
            args.next = args.tile; /* the next one is on its way */
            n = 0;
        }
    }
    if (n == 1)
        queries(f, &args, type, 1, false);
}

NEON void sl_attn_few_f16_neon(const sl_tile_args *args, size_t first)
{
    few_queries(args, first, SL_KV_TYPE_F16);
}

NEON void sl_attn_few_q8_neon(const sl_tile_args *args, size_t first)
{
    few_queries(args, first, SL_KV_TYPE_Q8_0);
}

#else
typedef int sl_attn_few_neon_is_for_arm64;
#endif
