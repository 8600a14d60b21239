/* What the AVX-512 kernels share: their target and exp2. x86-64 only. */
#ifndef SL_AVX512_H
#define SL_AVX512_H

#include <immintrin.h>

#include "kernel/scalar.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
#define AVX512_INLINE                                                                                                  \
    static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))

/* sl_scalar_exp2 of sixteen. */
AVX512_INLINE __m512 sl_avx512_exp2(__m512 x)
{
    __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(SL_EXP2_MIN), _CMP_GE_OQ);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(SL_EXP2_C6), f, _mm512_set1_ps(SL_EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    __m512i power = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(in_range, _mm512_castps_si512(p), power));
}

#endif
