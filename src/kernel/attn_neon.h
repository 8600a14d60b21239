/* A block of up to sixteen queries against a tile, what NEON and I8MM share: masks, softmax, the fold, the tile's
 * scales. Lanes are queries, four to a vector; nv, the number of vectors in use (1, 2 or 4), and masked are constants
 * in every inlined copy. Private to this folder. */
#ifndef SL_ATTN_NEON_H
#define SL_ATTN_NEON_H

#if defined(__aarch64__)

#include "kernel/attn_few.h"
#include "kernel/neon.h"

enum { SL_NEON_VECTORS = SL_LANES / 4 };

typedef struct sl_neon_block {
    const void *q;
    float *state;
    float *s;      /* [64][16] scores, then p */
    uint32_t *vis; /* [64][16] all ones where the key is visible */
    size_t nv;
    float32x4_t m[SL_NEON_VECTORS], l[SL_NEON_VECTORS];        /* of the tile */
    float32x4_t alpha[SL_NEON_VECTORS], beta[SL_NEON_VECTORS]; /* of the fold */
    uint32x4_t seen[SL_NEON_VECTORS];                          /* all ones where the query sees any key */
    const uint8_t *next; /* the tile to call into the cache while this block is scored, or NULL */
} sl_neon_block;

/* ---- masks ---- */

typedef enum sl_neon_cut { SL_NEON_CUT_NONE, SL_NEON_CUT_SOME, SL_NEON_CUT_ALL } sl_neon_cut;

/* Fills vis and seen from 16 masks. */
NEON static inline void sl_neon_expand_masks(sl_neon_block *b, const uint64_t *masks)
{
    for (size_t j = 0; j < SL_NEON_VECTORS; j++, masks += 4) {
        uint32x4_t a = vreinterpretq_u32_u64(vld1q_u64(masks)), c = vreinterpretq_u32_u64(vld1q_u64(masks + 2));
        uint32x4_t low = vuzp1q_u32(a, c), high = vuzp2q_u32(a, c), any = vorrq_u32(low, high);
        b->seen[j] = vtstq_u32(any, any);
        for (size_t t = 0; t < SL_TILE; t++)
            vst1q_u32(b->vis + t * SL_LANES + 4 * j, vtstq_u32(t < 32 ? low : high, vdupq_n_u32(1u << t % 32)));
    }
}

/* Points b at block i of n_queries; CUT_ALL: nothing to do. */
NEON static inline sl_neon_cut sl_neon_block_start(sl_neon_block *b, const sl_tile_args *args, size_t i,
                                                   size_t n_queries, size_t qblock_bytes)
{
    size_t left = n_queries - i * SL_LANES, n = left < SL_LANES ? left : SL_LANES;
    b->q = args->qblocks + i * qblock_bytes;
    b->nv = n <= 4 ? 1 : n <= 8 ? 2 : SL_NEON_VECTORS;
    b->next = i == 0 ? args->next : NULL;
    b->state = (float *)(void *)(args->states + i * args->state_stride);
    if (!args->masks)
        return SL_NEON_CUT_NONE;
    const uint64_t *masks = args->masks + i * SL_LANES;
    uint64_t all = UINT64_MAX, any = 0;
    for (size_t lane = 0; lane < n; lane++) {
        all &= masks[lane];
        any |= masks[lane];
    }
    if (any == 0)
        return SL_NEON_CUT_ALL;
    if (all == UINT64_MAX)
        return SL_NEON_CUT_NONE;
    sl_neon_expand_masks(b, masks);
    return SL_NEON_CUT_SOME;
}

NEON_INLINE uint32x4_t sl_neon_vis(const sl_neon_block *b, size_t key, size_t j)
{
    return vld1q_u32(b->vis + key * SL_LANES + 4 * j);
}

/* ---- softmax of a tile and the fold, vector j ---- */

/* Softcap, mask and maximum. A hidden key's score becomes -inf, from which p = +0 follows. maxnm passes over a NaN. */
NEON_INLINE void sl_neon_maximum(sl_neon_block *b, size_t j, float softcap, const bool masked)
{
    const float32x4_t nothing = vdupq_n_f32(-INFINITY), cap = vdupq_n_f32(softcap * SL_LOG2E);
    float32x4_t m[2] = {nothing, nothing};
    for (size_t t = 0; t < SL_TILE; t++) {
        float *at = b->s + t * SL_LANES + 4 * j;
        float32x4_t s = vld1q_f32(at);
        if (softcap != 0.0f)
            s = vmulq_f32(cap, sl_neon_tanh(s));
        if (masked)
            s = vbslq_f32(sl_neon_vis(b, t, j), s, nothing);
        if (masked || softcap != 0.0f)
            vst1q_f32(at, s);
        m[t % 2] = vmaxnmq_f32(m[t % 2], s);
    }
    b->m[j] = vaddq_f32(vmaxnmq_f32(m[0], m[1]), vdupq_n_f32(0.0f)); /* -0 becomes +0 */
}

NEON_INLINE float32x4_t sl_neon_exp_in_place(float *at, float32x4_t m)
{
    float32x4_t p = sl_neon_exp2(vsubq_f32(vld1q_f32(at), m));
    vst1q_f32(at, p);
    return p;
}

NEON_INLINE void sl_neon_exp_and_sum(sl_neon_block *b, size_t j)
{
    const float32x4_t m = b->m[j];
    float32x4_t sum[8];
    for (size_t t = 0; t < 8; t++) {
        float *at = b->s + t * SL_LANES + 4 * j;
        float32x4_t low = sl_neon_exp_in_place(at, m), high = sl_neon_exp_in_place(at + 8 * SL_LANES, m);
        for (size_t u = SL_LANES; u < SL_TILE; u += SL_LANES) {
            low = vaddq_f32(low, sl_neon_exp_in_place(at + u * SL_LANES, m));
            high = vaddq_f32(high, sl_neon_exp_in_place(at + (u + 8) * SL_LANES, m));
        }
        sum[t] = vaddq_f32(low, high);
    }
    for (int t = 0; t < 4; t++)
        sum[t] = vaddq_f32(sum[t], sum[t + 4]);
    b->l[j] = vaddq_f32(vaddq_f32(sum[0], sum[2]), vaddq_f32(sum[1], sum[3]));
}

NEON_INLINE void sl_neon_store_seen(const sl_neon_block *b, size_t j, float *at, float32x4_t value, const bool masked)
{
    vst1q_f32(at, masked ? vbslq_f32(b->seen[j], value, vld1q_f32(at)) : value);
}

/* m and l of the state; alpha and beta for its o. */
NEON_INLINE void sl_neon_fold_m_l(sl_neon_block *b, size_t j, const bool masked)
{
    float *m_at = b->state + 4 * j, *l_at = m_at + SL_LANES;
    float32x4_t m = vld1q_f32(m_at), m_new = vmaxnmq_f32(b->m[j], m);
    b->alpha[j] = sl_neon_exp2(vsubq_f32(m, m_new));
    b->beta[j] = sl_neon_exp2(vsubq_f32(b->m[j], m_new));
    float32x4_t l = vfmaq_f32(vmulq_f32(b->l[j], b->beta[j]), vld1q_f32(l_at), b->alpha[j]);
    sl_neon_store_seen(b, j, l_at, l, masked);
    sl_neon_store_seen(b, j, m_at, m_new, masked);
}

NEON_INLINE void sl_neon_fold_o(const sl_neon_block *b, size_t j, size_t d, float32x4_t o, const bool masked)
{
    float *at = b->state + (2 + d) * SL_LANES + 4 * j;
    float32x4_t sum = vfmaq_f32(vmulq_f32(o, b->beta[j]), vld1q_f32(at), b->alpha[j]);
    sl_neon_store_seen(b, j, at, sum, masked);
}

NEON_INLINE void sl_neon_softmax(sl_neon_block *b, float softcap, const bool masked)
{
    for (size_t j = 0; j < b->nv; j++) {
        if (softcap != 0.0f)
            sl_neon_maximum(b, j, softcap, masked);
        else
            sl_neon_maximum(b, j, 0.0f, masked);
        sl_neon_exp_and_sum(b, j);
        sl_neon_fold_m_l(b, j, masked);
    }
}

/* ---- a Q8_0 tile's scales ---- */

typedef struct sl_neon_scales {
    float *ks, *vs; /* [D/32][64] */
    float *vf;      /* [D/32][64] vs * (65535 / vmax), vmax over the whole tile */
    float vmax[SL_MAX_HEAD_DIM / SL_GROUP];
} sl_neon_scales;

NEON static inline void sl_neon_scales_load(sl_neon_scales *t, const uint8_t *tile, size_t head_dim)
{
    const uint8_t *ks = tile + 64 * head_dim, *vs = tile + 132 * head_dim;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        float32x4_t most = vdupq_n_f32(0.0f);
        for (size_t i = g * SL_TILE; i < (g + 1) * SL_TILE; i += 4) {
            float32x4_t v = sl_neon_halves(vs + 2 * i);
            vst1q_f32(t->ks + i, sl_neon_halves(ks + 2 * i));
            vst1q_f32(t->vs + i, v);
            most = vmaxnmq_f32(most, v);
        }
        t->vmax[g] = vmaxnmvq_f32(most);
        float inverse = t->vmax[g] > 0.0f ? 65535.0f / t->vmax[g] : 0.0f;
        for (size_t i = g * SL_TILE; i < (g + 1) * SL_TILE; i += 4)
            vst1q_f32(t->vf + i, vmulq_n_f32(vld1q_f32(t->vs + i), inverse));
    }
}

/* The largest value scale of group g among the keys that each query of vector j sees. */
NEON_INLINE float32x4_t sl_neon_visible_vmax(const sl_neon_scales *t, const sl_neon_block *b, size_t g, size_t j)
{
    float32x4_t vmax = vdupq_n_f32(0.0f);
    for (size_t key = 0; key < SL_TILE; key++) {
        uint32x4_t scale = vreinterpretq_u32_f32(vdupq_n_f32(t->vs[g * SL_TILE + key]));
        vmax = vmaxnmq_f32(vmax, vreinterpretq_f32_u32(vandq_u32(scale, sl_neon_vis(b, key, j))));
    }
    return vmax;
}

/* 65535 / vmax, or 0 where that is 0. */
NEON_INLINE float32x4_t sl_neon_inverse(float32x4_t vmax)
{
    float32x4_t inverse = vdivq_f32(vdupq_n_f32(65535.0f), vmax);
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(inverse), vcgtq_f32(vmax, vdupq_n_f32(0.0f))));
}

/* P of keys [key, key + 4) for vector j's queries as two vectors of 16-bit pairs: keys 0 and 2, 1 and 3. inverse: of
 * a masked block. */
NEON_INLINE void sl_neon_weight_pairs(const sl_neon_scales *t, const sl_neon_block *b, size_t g, size_t key, size_t j,
                                      float32x4_t inverse, const bool masked, uint8x16_t pairs[2])
{
    const float32x4_t scale = vld1q_f32((masked ? t->vs : t->vf) + g * SL_TILE + key);
    const float *p = b->s + key * SL_LANES + 4 * j;
    uint32x4_t w[4];
#define WEIGHT(i)                                                                                                      \
    w[i] = vcvtnq_u32_f32(masked ? vmulq_f32(vld1q_f32(p + i * SL_LANES), vmulq_laneq_f32(inverse, scale, i))          \
                                 : vmulq_laneq_f32(vld1q_f32(p + i * SL_LANES), scale, i));
    WEIGHT(0)
    WEIGHT(1) WEIGHT(2) WEIGHT(3)
#undef WEIGHT
        pairs[0] = vreinterpretq_u8_u32(vsliq_n_u32(w[0], w[2], 16));
    pairs[1] = vreinterpretq_u8_u32(vsliq_n_u32(w[1], w[3], 16));
}

#endif

#endif
