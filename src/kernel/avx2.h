/* What the AVX2 kernels share: their target and exp2. x86-64 only. */
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

#endif
