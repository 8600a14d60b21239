/* What the AVX2 kernels share: their target, exp2 and tanh. x86-64 only. */
#ifndef SL_AVX2_H
#define SL_AVX2_H

#include <immintrin.h>

#include "kernel/scalar.h"

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE static inline __attribute__((always_inline, target("avx2,fma,f16c")))

/* sl_scalar_exp2 of eight. */
AVX2_INLINE __m256 sl_avx2_exp2(__m256 x)
{
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_sub_ps(x, n);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(SL_EXP2_C6), f, _mm256_set1_ps(SL_EXP2_C5));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_C4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_C3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_C2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(SL_EXP2_C1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    __m256 in_range = _mm256_cmp_ps(x, _mm256_set1_ps(SL_EXP2_MIN), _CMP_GE_OQ);
    return _mm256_and_ps(_mm256_castsi256_ps(scaled), in_range);
}

/* sl_scalar_tanh of eight. */
AVX2_INLINE __m256 sl_avx2_tanh(__m256 y)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 magnitude = _mm256_andnot_ps(sign, y);
    __m256 t = _mm256_mul_ps(y, y);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(SL_TANH_T3), t, _mm256_set1_ps(SL_TANH_T2));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(SL_TANH_T1));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(y, t), p, y);
    __m256 x = _mm256_mul_ps(_mm256_add_ps(magnitude, magnitude), _mm256_set1_ps(SL_LOG2E));
    __m256 e = sl_avx2_exp2(_mm256_min_ps(x, _mm256_set1_ps(SL_TANH_EXP_MAX)));
    __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one)));
    large = _mm256_or_ps(large, _mm256_and_ps(sign, y));
    return _mm256_blendv_ps(large, small, _mm256_cmp_ps(magnitude, _mm256_set1_ps(SL_TANH_SMALL), _CMP_LT_OQ));
}

#endif
