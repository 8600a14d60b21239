/* What lies around the attention tiles, for NEON: queries packed, states folded and finished, keys and values rounded
 * to the stored type. The bits of attn_ref.c. */
#include "kernel/levels.h"

#if defined(__aarch64__)

#include <string.h>

#include "kernel/neon.h"

/* ---- queries ---- */

NEON void sl_attn_qpack_f16_neon(void *qblock, const float *const *q, size_t n, size_t head_dim, float c)
{
    float *out = qblock;
    for (size_t lane = 0; lane < SL_LANES; lane += 4)
        for (size_t d = 0; d < head_dim; d += 4) {
            float32x4_t rows[4];
            for (size_t i = 0; i < 4; i++)
                rows[i] = lane + i < n ? vmulq_n_f32(vld1q_f32(q[lane + i] + d), c) : vdupq_n_f32(0.0f);
            sl_neon_transpose(rows);
            for (size_t i = 0; i < 4; i++)
                vst1q_f32(out + (d + i) * SL_LANES + lane, rows[i]);
        }
}

NEON void sl_attn_qpack_q8_neon(void *qblock, const float *const *q, size_t n, size_t head_dim, float c)
{
    float *qs = (float *)(void *)((uint8_t *)qblock + head_dim * SL_LANES * sizeof(int16_t));
    memset(qblock, 0, sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim));
    for (size_t i = 0; i < n; i++)
        for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
            const sl_neon_group x = sl_neon_group_load(q[i] + g * SL_GROUP);
            float amax = sl_float_of_bits(x.amax_bits);
            if (amax < SL_AMAX_MIN)
                continue; /* zeros, scale 0 */
            int16x8_t wide[4];
            uint32_t pairs[SL_GROUP / 2];
            sl_neon_group_round(&x, 32767.0f / amax, wide);
            memcpy(pairs, wide, sizeof pairs);
            uint32_t *out = (uint32_t *)qblock + g * SL_GROUP / 2 * SL_LANES + i;
            for (size_t e = 0; e < SL_GROUP / 2; e++)
                out[e * SL_LANES] = pairs[e];
            qs[g * SL_LANES + i] = amax / 32767.0f * c;
        }
}

/* ---- states ---- */

NEON_INLINE void segfold_vector(float *total, float *segment, size_t head_dim)
{
    const float32x4_t nothing = vdupq_n_f32(-INFINITY);
    float32x4_t m = vld1q_f32(total), m_in = vld1q_f32(segment), m_new = vmaxnmq_f32(m_in, m);
    uint32x4_t untouched = vceqq_f32(m_in, nothing);
    float32x4_t alpha = sl_neon_exp2(vsubq_f32(m, m_new)), beta = sl_neon_exp2(vsubq_f32(m_in, m_new));
    vst1q_f32(total, vbslq_f32(untouched, m, m_new));
    vst1q_f32(segment, nothing);
    for (size_t i = 1; i < head_dim + 2; i++) { /* l, then o */
        float *to = total + i * SL_LANES, *from = segment + i * SL_LANES;
        float32x4_t old = vld1q_f32(to), in = vmulq_f32(vld1q_f32(from), beta);
        vst1q_f32(to, vbslq_f32(untouched, old, vfmaq_f32(in, old, alpha)));
        vst1q_f32(from, vdupq_n_f32(0.0f));
    }
}

NEON void sl_attn_segfold_neon(uint8_t *totals, uint8_t *segments, size_t state_stride, size_t n_blocks,
                               size_t head_dim)
{
    for (size_t b = 0; b < n_blocks; b++)
        for (size_t lane = 0; lane < SL_LANES; lane += 4)
            segfold_vector((float *)(void *)(totals + b * state_stride) + lane,
                           (float *)(void *)(segments + b * state_stride) + lane, head_dim);
}

NEON void sl_attn_finish_neon(const uint8_t *total, float *const *out, size_t n, size_t head_dim)
{
    for (size_t lane = 0; lane < n; lane += 4) {
        const float *l = (const float *)(const void *)total + SL_LANES + lane, *o = l + SL_LANES;
        for (size_t d = 0; d < head_dim; d += 4) {
            float32x4_t rows[4];
            for (size_t i = 0; i < 4; i++)
                rows[i] = vdivq_f32(vld1q_f32(o + (d + i) * SL_LANES), vld1q_f32(l));
            sl_neon_transpose(rows);
            for (size_t i = 0; i < 4 && lane + i < n; i++)
                vst1q_f32(out[lane + i] + d, rows[i]);
        }
    }
}

/* ---- keys and values ---- */

/* Eight binary16 values; false when one is not finite. */
NEON_INLINE bool halves_of(uint16_t out[8], const float *x)
{
    float16x4_t low = vcvt_f16_f32(vld1q_f32(x)), high = vcvt_f16_f32(vld1q_f32(x + 4));
    uint16x8_t half = vcombine_u16(vreinterpret_u16_f16(low), vreinterpret_u16_f16(high));
    vst1q_u16(out, half);
    return vmaxvq_u16(vandq_u16(half, vdupq_n_u16(0x7fff))) < 0x7c00;
}

NEON bool sl_kv_pack_f16_neon(uint8_t *tile, size_t key, const float *k, const float *v, size_t head_dim)
{
    uint16_t *to_k = (uint16_t *)(void *)tile + key;
    uint16_t *to_v = (uint16_t *)(void *)(tile + 128 * head_dim) + key * head_dim;
    for (size_t d = 0; d < head_dim; d += 8) {
        uint16_t halves[8];
        if (!halves_of(to_v + d, v + d) || !halves_of(halves, k + d))
            return false;
        for (size_t i = 0; i < 8; i++)
            to_k[(d + i) * SL_TILE] = halves[i];
    }
    return true;
}

/* 32 signed bytes in order and their scale; false as in the reference. */
NEON_INLINE bool pack_group(int8_t *bytes, uint16_t *scale, const float *x)
{
    const sl_neon_group g = sl_neon_group_load(x);
    if (g.amax_bits > 0x7f7fffffu)
        return false;
    float amax = sl_float_of_bits(g.amax_bits);
    int16x8_t wide[4];
    sl_neon_group_round(&g, amax < SL_AMAX_MIN ? 0.0f : 127.0f / amax, wide);
    for (int i = 0; i < 4; i++)
        vst1_s8(bytes + 8 * i, vmovn_s16(wide[i]));
    *scale = amax < SL_AMAX_MIN ? 0 : sl_half_of_float(amax / 127.0f);
    return *scale != 0x7c00u;
}

NEON bool sl_kv_pack_q8_neon(uint8_t *tile, size_t key, const float *k, const float *v, size_t head_dim)
{
    int8_t *to_k = (int8_t *)tile + key * head_dim, *to_v = (int8_t *)tile + 68 * head_dim + key;
    uint16_t *ks = (uint16_t *)(void *)(tile + 64 * head_dim) + key;
    uint16_t *vs = (uint16_t *)(void *)(tile + 132 * head_dim) + key;
    for (size_t d = 0; d < head_dim; d += SL_GROUP, ks += SL_TILE, vs += SL_TILE) {
        int8_t column[SL_GROUP];
        if (!pack_group(to_k + d, ks, k + d) || !pack_group(column, vs, v + d))
            return false;
        for (size_t e = 0; e < SL_GROUP; e++)
            to_v[(d + e) * SL_TILE] = column[e];
    }
    return true;
}

#else
typedef int sl_attn_pack_neon_is_for_arm64;
#endif
