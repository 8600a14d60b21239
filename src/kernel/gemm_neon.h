/* The packed weight layouts of kernel.h as NEON reads them: what gemm_neon.c and gemm_i8mm.c share. Panels are whole:
 * sixteen outputs, four vectors v of four. `type` is a constant in every inlined copy. Private to this folder. */
#ifndef SL_GEMM_NEON_H
#define SL_GEMM_NEON_H

#if defined(__aarch64__)

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
    default:
        return 16;
    }
}

NEON_INLINE bool sl_neon_is_k(sl_wtype type)
{
    return type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K || type == SL_WTYPE_Q6_K;
}

NEON_INLINE bool sl_neon_has_minimum(sl_wtype type)
{
    return type == SL_WTYPE_Q4_1 || type == SL_WTYPE_Q5_1 || type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K;
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

/* Of one output. */
NEON_INLINE size_t sl_neon_block_bytes(sl_wtype type)
{
    size_t halves = type == SL_WTYPE_Q6_K || !sl_neon_has_minimum(type) ? 2 : 4;
    size_t scales = type == SL_WTYPE_Q6_K ? 16 : sl_neon_is_k(type) ? 12 : 0;
    return sl_neon_block_groups(type) * sl_neon_value_bytes(type) + scales + halves;
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

/* Quad i of the four outputs of vector v: unsigned where the type has an offset or a minimum, else signed. */
NEON_INLINE int8x16_t sl_neon_quad(sl_wtype type, const uint8_t *group, size_t v, size_t i)
{
    if (type == SL_WTYPE_Q8_0)
        return vreinterpretq_s8_u8(vld1q_u8(group + i * SL_NEON_PLANE + 16 * v));
    uint8x16_t x = vld1q_u8(group + i / 2 * SL_NEON_PLANE + 16 * v);
    x = i % 2 ? vshrq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15));
    const uint8_t *high = group + 4 * SL_NEON_PLANE + 16 * v;
    if (sl_neon_has_fifth(type))
        x = vbslq_u8(vdupq_n_u8(16), sl_neon_fifth(vld1q_u8(high), i), x);
    if (type == SL_WTYPE_Q6_K) { /* bits 2 k and 2 k + 1, k = i % 4 */
        x = vbslq_u8(vdupq_n_u8(48), sl_neon_fifth(vld1q_u8(high + i / 4 * SL_NEON_PLANE), i % 4 * 2), x);
        return vsubq_s8(vreinterpretq_s8_u8(x), vdupq_n_s8(32));
    }
    return vreinterpretq_s8_u8(x);
}

/* Six-bit field f of Q4_K's and Q5_K's words. */
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

NEON_INLINE sl_neon_scale sl_neon_scale_load(sl_wtype type, const uint8_t *block, size_t v, size_t g)
{
    size_t halves = sl_neon_has_minimum(type) ? 4 : 2;
    const uint8_t *d = block + (sl_neon_block_bytes(type) - halves) * SL_PANEL + 8 * v;
    sl_neon_scale s = {sl_neon_halves(d), vdupq_n_f32(0.0f)};
    if (sl_neon_has_minimum(type))
        s.mw = sl_neon_halves(d + 2 * SL_PANEL);
    if (type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K) {
        const uint8_t *words = block + sl_neon_block_groups(type) * sl_neon_value_bytes(type) * SL_PANEL;
        s.ws = vmulq_f32(s.ws, sl_neon_field(words, v, 2 * g));
        s.mw = vnegq_f32(vmulq_f32(s.mw, sl_neon_field(words, v, 2 * g + 1)));
    }
    return s;
}

/* Q6_K: the sub-scales of elements 0..15 and 16..31. */
NEON_INLINE void sl_neon_subscales(int32x4_t s[2], const uint8_t *block, size_t v, size_t g)
{
    const uint8_t *at = block + 8 * 24 * SL_PANEL + g * 2 * SL_PANEL + 8 * v;
    int32x4_t both = vreinterpretq_s32_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(at))));
    s[0] = vshrq_n_s32(vshlq_n_s32(both, 16), 16);
    s[1] = vshrq_n_s32(both, 16);
}

#endif

#endif
