/* What the NEON kernels share: their targets, exp2, tanh and small moves. arm64 only. */
#ifndef SL_NEON_H
#define SL_NEON_H

#if defined(__aarch64__)

#include "kernel/scalar.h"

/* clang names an extension alone; before 16 its header declares what an extension adds only where the whole file has
 * it. gcc wants the architecture that its own header names. */
#if defined(__clang__)
#if __clang_major__ < 16
#define __ARM_FEATURE_DOTPROD 1
#define __ARM_FEATURE_MATMUL_INT8 1
#endif
#define SL_NEON_TARGET target("dotprod")
#define SL_I8MM_TARGET target("dotprod,i8mm")
#else
#define SL_NEON_TARGET target("arch=armv8.2-a+dotprod")
#define SL_I8MM_TARGET target("arch=armv8.2-a+dotprod+i8mm")
#endif

#include <arm_neon.h>

#define NEON __attribute__((SL_NEON_TARGET))
#define NEON_INLINE static inline __attribute__((always_inline, SL_NEON_TARGET))
#define I8MM __attribute__((SL_I8MM_TARGET))
#define I8MM_INLINE static inline __attribute__((always_inline, SL_I8MM_TARGET))

/* sl_scalar_exp2 of four. Both conversions round x alike, to the nearest even. */
NEON_INLINE float32x4_t sl_neon_exp2(float32x4_t x)
{
    float32x4_t f = vsubq_f32(x, vrndnq_f32(x));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(SL_EXP2_C5), vdupq_n_f32(SL_EXP2_C6), f);
    p = vfmaq_f32(vdupq_n_f32(SL_EXP2_C4), p, f);
    p = vfmaq_f32(vdupq_n_f32(SL_EXP2_C3), p, f);
    p = vfmaq_f32(vdupq_n_f32(SL_EXP2_C2), p, f);
    p = vfmaq_f32(vdupq_n_f32(SL_EXP2_C1), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
    int32x4_t scaled = vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtnq_s32_f32(x), 23));
    uint32x4_t in_range = vcgeq_f32(x, vdupq_n_f32(SL_EXP2_MIN));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(scaled), in_range));
}

/* sl_scalar_tanh of four. minnm gives the number where the other is NaN. */
NEON_INLINE float32x4_t sl_neon_tanh(float32x4_t y)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    float32x4_t magnitude = vabsq_f32(y), t = vmulq_f32(y, y);
    float32x4_t p = vfmaq_f32(vdupq_n_f32(SL_TANH_T2), vdupq_n_f32(SL_TANH_T3), t);
    p = vfmaq_f32(vdupq_n_f32(SL_TANH_T1), p, t);
    float32x4_t small = vfmaq_f32(y, vmulq_f32(y, t), p);
    float32x4_t x = vmulq_f32(vaddq_f32(magnitude, magnitude), vdupq_n_f32(SL_LOG2E));
    float32x4_t e = sl_neon_exp2(vminnmq_f32(x, vdupq_n_f32(SL_TANH_EXP_MAX)));
    float32x4_t large = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0f), vaddq_f32(e, one)));
    large = vbslq_f32(vdupq_n_u32(0x80000000u), y, large);
    return vbslq_f32(vcltq_f32(magnitude, vdupq_n_f32(SL_TANH_SMALL)), small, large);
}

/* The tree over sixteen lanes in four vectors. */
NEON_INLINE float sl_neon_tree16(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d)
{
    float32x4_t four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* Binary16 numbers, of any alignment. */
NEON_INLINE float32x4_t sl_neon_halves(const void *at)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}

NEON_INLINE void sl_neon_transpose(float32x4_t r[4])
{
    float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

/* 32 floats that share a scale. */
typedef struct sl_neon_group {
    float32x4_t x[SL_GROUP / 4];
    uint32_t amax_bits; /* of the largest magnitude; above 0x7f7fffff: not all are finite */
} sl_neon_group;

NEON_INLINE sl_neon_group sl_neon_group_load(const float *x)
{
    sl_neon_group g;
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < SL_GROUP / 4; i++) {
        g.x[i] = vld1q_f32(x + 4 * i);
        /* magnitudes compare as integers, and so NaN is the largest of all */
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(g.x[i])));
    }
    g.amax_bits = vmaxvq_u32(most);
    return g;
}

/* rint(x * inverse) as 16-bit numbers, in order; NaN becomes 0. */
NEON_INLINE void sl_neon_group_round(const sl_neon_group *g, float inverse, int16x8_t out[SL_GROUP / 8])
{
    for (int i = 0; i < SL_GROUP / 8; i++) {
        int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(g->x[2 * i], inverse));
        int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(g->x[2 * i + 1], inverse));
        out[i] = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
    }
}

#endif

#endif
