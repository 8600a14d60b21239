/* The packed weight layouts of kernel.h as NEON reads them: what gemm_neon.c and gemm_i8mm.c share. Panels are whole:
 * sixteen outputs, four vectors v of four. `type` is a constant in every inlined copy. Private to this folder. */
#ifndef SL_GEMM_NEON_H
#define SL_GEMM_NEON_H

#if defined(__aarch64__)

#include <string.h>

#include "kernel/neon.h"

enum { SL_NEON_PLANE = 4 * SL_PANEL };

/* Where a row of quantised input keeps its parts; `rows` is the first of the block. */
typedef struct sl_neon_rows {
    const uint8_t *rows;
    size_t stride, sum_off, q_off;
} sl_neon_rows;

static inline const float *sl_neon_row_scale(const sl_neon_rows *in, size_t r)
{
    return (const float *)(const void *)(in->rows + r * in->stride);
}

static inline const float *sl_neon_row_sum(const sl_neon_rows *in, size_t r)
{
    return (const float *)(const void *)(in->rows + r * in->stride + in->sum_off);
}

static inline const int8_t *sl_neon_row_q(const sl_neon_rows *in, size_t r)
{
    return (const int8_t *)(in->rows + r * in->stride + in->q_off);
}

/* Bytes of one output's group of values: nibbles or bytes, and high bits. */
NEON_INLINE size_t sl_neon_value_bytes(sl_wtype type)
{
    switch (type) {
    case SL_WTYPE_Q8_0:
        return 32;
    case SL_WTYPE_Q5_0:
    case SL_WTYPE_Q5_1:
    case SL_WTYPE_Q5_K:
        return 20;
    case SL_WTYPE_Q6_K:
        return 24;
    case SL_WTYPE_Q2_K:
        return 8;
    case SL_WTYPE_Q3_K:
        return 12;
    default:
        return 16;
    }
}

NEON_INLINE bool sl_neon_has_subscales(sl_wtype type)
{
    return type == SL_WTYPE_Q6_K || type == SL_WTYPE_Q2_K || type == SL_WTYPE_Q3_K;
}

NEON_INLINE bool sl_neon_is_k(sl_wtype type)
{
    return type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K || type == SL_WTYPE_IQ4_XS || sl_neon_has_subscales(type);
}

NEON_INLINE bool sl_neon_has_minimum(sl_wtype type)
{
    return type == SL_WTYPE_Q4_1 || type == SL_WTYPE_Q5_1 || type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K ||
           type == SL_WTYPE_Q2_K;
}

NEON_INLINE bool sl_neon_has_fifth(sl_wtype type)
{
    return type == SL_WTYPE_Q5_0 || type == SL_WTYPE_Q5_1 || type == SL_WTYPE_Q5_K;
}

/* What the product of unsigned values is too large by, in sums of the input. */
NEON_INLINE float sl_neon_offset(sl_wtype type)
{
    return type == SL_WTYPE_Q4_0 ? 8.0f : type == SL_WTYPE_Q5_0 ? 16.0f : 0.0f;
}

NEON_INLINE size_t sl_neon_block_groups(sl_wtype type)
{
    return sl_neon_is_k(type) ? SL_SUPERBLOCK / SL_GROUP : 1;
}

/* Of d, and the minimum's factor; of one output. */
NEON_INLINE size_t sl_neon_half_bytes(sl_wtype type)
{
    return type == SL_WTYPE_MXFP4 ? 1 : sl_neon_has_minimum(type) ? 4 : 2;
}

/* Of the other scales of one output. */
NEON_INLINE size_t sl_neon_scale_bytes(sl_wtype type)
{
    switch (type) {
    case SL_WTYPE_Q6_K:
    case SL_WTYPE_Q2_K:
        return 16;
    case SL_WTYPE_IQ4_XS:
        return 6;
    default:
        return sl_neon_is_k(type) ? 12 : 0;
    }
}

/* Of one output. */
NEON_INLINE size_t sl_neon_block_bytes(sl_wtype type)
{
    const size_t values = sl_neon_block_groups(type) * sl_neon_value_bytes(type);
    return values + sl_neon_scale_bytes(type) + sl_neon_half_bytes(type);
}

/* Bit i moved to bit 4; pairs k of bits to bits 4 and 5. */
NEON_INLINE uint8x16_t sl_neon_fifth(uint8x16_t h, size_t i)
{
    switch (i) {
    case 0:
        return vshlq_n_u8(h, 4);
    case 1:
        return vshlq_n_u8(h, 3);
    case 2:
        return vshlq_n_u8(h, 2);
    case 3:
        return vshlq_n_u8(h, 1);
    case 4:
        return h;
    case 5:
        return vshrq_n_u8(h, 1);
    case 6:
        return vshrq_n_u8(h, 2);
    default:
        return vshrq_n_u8(h, 3);
    }
}

/* Q2_K, Q3_K: as sl_neon_quad. */
NEON_INLINE int8x16_t sl_neon_quad_23(sl_wtype type, const uint8_t *group, size_t v, size_t i)
{
    const uint8x16_t pairs = vld1q_u8(group + i / 4 * SL_NEON_PLANE + 16 * v);
    const uint8x16_t x = vandq_u8(vshlq_u8(pairs, vdupq_n_s8((int8_t)(-2 * (int)(i % 4)))), vdupq_n_u8(3));
    if (type == SL_WTYPE_Q2_K)
        return vreinterpretq_s8_u8(x);
    const uint8x16_t third = vshlq_u8(vld1q_u8(group + 2 * SL_NEON_PLANE + 16 * v), vdupq_n_s8((int8_t)(2 - (int)i)));
    return vsubq_s8(vreinterpretq_s8_u8(vbslq_u8(vdupq_n_u8(4), third, x)), vdupq_n_s8(4));
}

/* What sixteen nibbles stand for. */
NEON_INLINE int8x16_t sl_neon_looked_up(sl_wtype type, uint8x16_t nibbles)
{
    static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int8_t mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return vqtbl1q_s8(vld1q_s8(type == SL_WTYPE_MXFP4 ? mxfp4 : iq4), nibbles);
}

/* Quad i of the four outputs of vector v: unsigned where the type has an offset or a minimum, else signed. */
NEON_INLINE int8x16_t sl_neon_quad(sl_wtype type, const uint8_t *group, size_t v, size_t i)
{
    if (type == SL_WTYPE_Q8_0)
        return vreinterpretq_s8_u8(vld1q_u8(group + i * SL_NEON_PLANE + 16 * v));
    if (type == SL_WTYPE_Q2_K || type == SL_WTYPE_Q3_K)
        return sl_neon_quad_23(type, group, v, i);
    uint8x16_t x = vld1q_u8(group + i / 2 * SL_NEON_PLANE + 16 * v);
    x = i % 2 ? vshrq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15));
    if (type == SL_WTYPE_IQ4_NL || type == SL_WTYPE_IQ4_XS || type == SL_WTYPE_MXFP4)
        return sl_neon_looked_up(type, x);
    const uint8_t *high = group + 4 * SL_NEON_PLANE + 16 * v;
    if (sl_neon_has_fifth(type))
        x = vbslq_u8(vdupq_n_u8(16), sl_neon_fifth(vld1q_u8(high), i), x);
    if (type == SL_WTYPE_Q6_K) { /* bits 2 k and 2 k + 1, k = i % 4 */
        x = vbslq_u8(vdupq_n_u8(48), sl_neon_fifth(vld1q_u8(high + i / 4 * SL_NEON_PLANE), i % 4 * 2), x);
        return vsubq_s8(vreinterpretq_s8_u8(x), vdupq_n_s8(32));
    }
    return vreinterpretq_s8_u8(x);
}

/* Six-bit field f of Q4_K's, Q5_K's and Q3_K's words. */
NEON_INLINE float32x4_t sl_neon_field(const uint8_t *words, size_t v, size_t f)
{
    uint32x4_t w[3];
    for (size_t i = 0; i < 3; i++)
        w[i] = vreinterpretq_u32_u8(vld1q_u8(words + i * SL_NEON_PLANE + 16 * v));
    if (f < 15) {
        uint32x4_t field = vshlq_u32(w[f / 5], vdupq_n_s32(-6 * (int32_t)(f % 5)));
        return vcvtq_f32_u32(vandq_u32(field, vdupq_n_u32(63)));
    }
    uint32x4_t last = vsliq_n_u32(vshrq_n_u32(w[0], 30), vshrq_n_u32(w[1], 30), 2);
    return vcvtq_f32_u32(vsliq_n_u32(last, vshrq_n_u32(w[2], 30), 4));
}

/* Scale and minimum of vector v's outputs, group g of a block. */
typedef struct sl_neon_scale {
    float32x4_t ws, mw;
} sl_neon_scale;

/* IQ4_XS: the scale of group g; `scales`: behind the groups. */
NEON_INLINE float32x4_t sl_neon_iq4_xs_scale(const uint8_t *scales, size_t v, size_t g)
{
    const uint32x4_t lows = vreinterpretq_u32_u8(vld1q_u8(scales + 16 * v));
    const uint32x4_t tops = vmovl_u16(vreinterpret_u16_u8(vld1_u8(scales + SL_NEON_PLANE + 8 * v)));
    const uint32x4_t low = vandq_u32(vshlq_u32(lows, vdupq_n_s32(-4 * (int32_t)g)), vdupq_n_u32(15));
    const uint32x4_t top = vandq_u32(vshlq_u32(tops, vdupq_n_s32(-2 * (int32_t)g)), vdupq_n_u32(3));
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(vsliq_n_u32(low, top, 4)), vdupq_n_s32(32)));
}

/* MXFP4's: 2^(e - 128), denormal for e < 2. */
NEON_INLINE float32x4_t sl_neon_powers(const uint8_t *at)
{
    uint32_t four;
    memcpy(&four, at, sizeof four);
    const uint32x4_t e = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t denormal = vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), denormal, normal));
}

NEON_INLINE sl_neon_scale sl_neon_scale_load(sl_wtype type, const uint8_t *block, size_t v, size_t g)
{
    const uint8_t *halves = block + (sl_neon_block_bytes(type) - sl_neon_half_bytes(type)) * SL_PANEL;
    const uint8_t *d = halves + 8 * v;
    if (type == SL_WTYPE_MXFP4)
        return (sl_neon_scale){sl_neon_powers(halves + 4 * v), vdupq_n_f32(0.0f)};
    sl_neon_scale s = {sl_neon_halves(d), vdupq_n_f32(0.0f)};
    const uint8_t *scales = block + sl_neon_block_groups(type) * sl_neon_value_bytes(type) * SL_PANEL;
    if (sl_neon_has_minimum(type))
        s.mw = sl_neon_halves(d + 2 * SL_PANEL);
    if (type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K) {
        s.ws = vmulq_f32(s.ws, sl_neon_field(scales, v, 2 * g));
        s.mw = vnegq_f32(vmulq_f32(s.mw, sl_neon_field(scales, v, 2 * g + 1)));
    }
    if (type == SL_WTYPE_IQ4_XS)
        s.ws = vmulq_f32(s.ws, sl_neon_iq4_xs_scale(scales, v, g));
    if (type == SL_WTYPE_Q2_K)
        s.mw = vnegq_f32(s.mw);
    return s;
}

/* Q2_K: nibbles of elements 0..15 and 16..31, the scales from bit 0, the minimums from bit 4. */
NEON_INLINE void sl_neon_q2_k_nibbles(int32x4_t s[2], const uint8_t *block, size_t v, size_t g, int bit)
{
    const uint8_t *at = block + 8 * sl_neon_value_bytes(SL_WTYPE_Q2_K) * SL_PANEL + g * 2 * SL_PANEL + 8 * v;
    const uint32x4_t both = vmovl_u16(vreinterpret_u16_u8(vld1_u8(at)));
    for (int part = 0; part < 2; part++)
        s[part] = vreinterpretq_s32_u32(vandq_u32(vshlq_u32(both, vdupq_n_s32(-bit - 8 * part)), vdupq_n_u32(15)));
}

/* Types with sub-scales: those of elements 0..15 and 16..31. */
NEON_INLINE void sl_neon_subscales(int32x4_t s[2], sl_wtype type, const uint8_t *block, size_t v, size_t g)
{
    const uint8_t *scales = block + 8 * sl_neon_value_bytes(type) * SL_PANEL, *at = scales + g * 2 * SL_PANEL + 8 * v;
    if (type == SL_WTYPE_Q2_K) {
        sl_neon_q2_k_nibbles(s, block, v, g, 0);
        return;
    }
    if (type == SL_WTYPE_Q3_K) {
        for (size_t part = 0; part < 2; part++)
            s[part] = vsubq_s32(vcvtq_s32_f32(sl_neon_field(scales, v, 2 * g + part)), vdupq_n_s32(32));
        return;
    }
    int32x4_t both = vreinterpretq_s32_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(at))));
    s[0] = vshrq_n_s32(vshlq_n_s32(both, 16), 16);
    s[1] = vshrq_n_s32(both, 16);
}

#endif

#endif
