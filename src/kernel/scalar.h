/* Scalar definitions that the reference kernels share: what every vector version must equal bit for bit.
 * Thread rule: pure. The caller has entered sl_fpenv (to nearest, denormals kept). */
#ifndef SL_SCALAR_H
#define SL_SCALAR_H

#include <math.h>

#include "base/half.h"
#include "kernel/kernel.h"

/* exp2's polynomial on [-1/2, 1/2]: value 1 at 0, largest relative error 3.0e-9 (2^-28.3). Made by
 * tools/fit_exp2.py. */
#define SL_EXP2_C1 0x1.62e430p-1f
#define SL_EXP2_C2 0x1.ebfbdcp-3f
#define SL_EXP2_C3 0x1.c6af7cp-5f
#define SL_EXP2_C4 0x1.3b2de0p-7f
#define SL_EXP2_C5 0x1.5f082ep-10f
#define SL_EXP2_C6 0x1.416b5ep-13f
#define SL_EXP2_MIN (-126.0f)

/* tanh near 0: y + y * t * (T1 + T2 t + T3 t^2), t = y^2: the Taylor series, next term below 2^-29 of y. */
#define SL_TANH_SMALL 0.125f
#define SL_TANH_T1 (-0x1.555556p-2f) /* -1/3 */
#define SL_TANH_T2 0x1.111112p-3f    /* 2/15 */
#define SL_TANH_T3 (-0x1.ba1ba2p-5f) /* -17/315 */
#define SL_TANH_EXP_MAX 126.0f

/* GELU by its tanh: sqrt(2 / pi) and the cube's factor. */
#define SL_GELU_SCALE 0.79788456f
#define SL_GELU_CUBE 0.044715f

/* A group whose largest magnitude is below this is stored as zeros with scale 0. */
#define SL_AMAX_MIN 0x1p-100f

/* 2^x for x <= 127; +0 below -126 and for NaN. For x in [-126, -125.5) n is -126 and x - n >= 0, so the
 * polynomial is at least 1 and the exponent addition never leaves the normal numbers. */
static inline float sl_scalar_exp2(float x)
{
    if (!(x >= SL_EXP2_MIN))
        return 0.0f;
    float n = rintf(x);
    float f = x - n;
    float p = fmaf(SL_EXP2_C6, f, SL_EXP2_C5);
    p = fmaf(p, f, SL_EXP2_C4);
    p = fmaf(p, f, SL_EXP2_C3);
    p = fmaf(p, f, SL_EXP2_C2);
    p = fmaf(p, f, SL_EXP2_C1);
    p = fmaf(p, f, 1.0f);
    return sl_float_of_bits(sl_bits_of_float(p) + ((uint32_t)(int32_t)n << 23));
}

static inline float sl_scalar_tanh(float y)
{
    float magnitude = fabsf(y);
    if (magnitude < SL_TANH_SMALL) {
        float t = y * y;
        float p = fmaf(fmaf(SL_TANH_T3, t, SL_TANH_T2), t, SL_TANH_T1);
        return fmaf(y * t, p, y);
    }
    float x = 2.0f * magnitude * SL_LOG2E;
    x = x < SL_TANH_EXP_MAX ? x : SL_TANH_EXP_MAX;
    return copysignf(1.0f - 2.0f / (sl_scalar_exp2(x) + 1.0f), y);
}

static inline float sl_scalar_gelu(float x)
{
    float y = (x * SL_GELU_SCALE) * fmaf(SL_GELU_CUBE, x * x, 1.0f);
    return (0.5f * x) * (1.0f + sl_scalar_tanh(y));
}

/* Largest magnitude of n finite numbers. */
static inline float sl_scalar_amax(const float *x, size_t n)
{
    float amax = 0.0f;
    for (size_t i = 0; i < n; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    return amax;
}

/* The fixed binary tree over sixteen lanes: t + (t+8), then +4, +2, +1. */
static inline float sl_scalar_tree16(const float lanes[SL_LANES])
{
    float sum[8];
    for (size_t t = 0; t < 8; t++)
        sum[t] = lanes[t] + lanes[t + 8];
    for (size_t t = 0; t < 4; t++)
        sum[t] = sum[t] + sum[t + 4];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

#endif
