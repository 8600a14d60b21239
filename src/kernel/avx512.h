/* What the AVX-512 kernels share: their target, exp2 and tanh. x86-64 only. */
#ifndef SL_AVX512_H
#define SL_AVX512_H

#include <immintrin.h>

#include "kernel/scalar.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
#define AVX512_INLINE                                                                                                  \
    static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))

/* sl_scalar_exp2 of sixteen. Taking rint(x) from x is exact, and so is taking the rest from x; scaling by a power of
 * two is, too, because the result is a normal number. */
AVX512_INLINE __m512 sl_avx512_exp2(__m512 x)
{
    __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(SL_EXP2_MIN), _CMP_GE_OQ);
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(SL_EXP2_C6), f, _mm512_set1_ps(SL_EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(in_range, p, _mm512_sub_ps(x, f));
}

/* sl_avx512_exp2 of eight vectors in step: one goes from product to product as slowly as they depend on each other, and
 * compilers take one after the other, so that few of them fit the processor's window, less where its other thread has
 * half of it. The empty statements keep the steps apart. */
#define AVX512_EIGHT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
AVX512_INLINE void sl_avx512_exp2_eight(__m512 x[8])
{
    __m512 f[8], n[8];
    __mmask16 in_range[8];
#define KEEP(v) __asm__("" : "+v"(v))
#define START(i)                                                                                                       \
    in_range[i] = _mm512_cmp_ps_mask(x[i], _mm512_set1_ps(SL_EXP2_MIN), _CMP_GE_OQ);                                   \
    f[i] = _mm512_reduce_ps(x[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);                                      \
    KEEP(f[i]);
#define FIRST(i)                                                                                                       \
    n[i] = _mm512_sub_ps(x[i], f[i]);                                                                                  \
    x[i] = _mm512_fmadd_ps(_mm512_set1_ps(SL_EXP2_C6), f[i], _mm512_set1_ps(SL_EXP2_C5));                              \
    KEEP(n[i]);
#define THEN(i, c)                                                                                                     \
    x[i] = _mm512_fmadd_ps(x[i], f[i], _mm512_set1_ps(c));                                                             \
    KEEP(x[i]);
#define C4(i) THEN(i, SL_EXP2_C4)
#define C3(i) THEN(i, SL_EXP2_C3)
#define C2(i) THEN(i, SL_EXP2_C2)
#define C1(i) THEN(i, SL_EXP2_C1)
#define C0(i) THEN(i, 1.0f)
#define LAST(i) x[i] = _mm512_maskz_scalef_ps(in_range[i], x[i], n[i]);
    AVX512_EIGHT(START)
    AVX512_EIGHT(FIRST)
    AVX512_EIGHT(C4)
    AVX512_EIGHT(C3)
    AVX512_EIGHT(C2)
    AVX512_EIGHT(C1)
    AVX512_EIGHT(C0)
    AVX512_EIGHT(LAST)
#undef KEEP
#undef START
#undef FIRST
#undef THEN
#undef C4
#undef C3
#undef C2
#undef C1
#undef C0
#undef LAST
}

/* sl_scalar_tanh of sixteen. */
AVX512_INLINE __m512 sl_avx512_tanh(__m512 y)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512 magnitude = _mm512_andnot_ps(sign, y);
    __m512 t = _mm512_mul_ps(y, y);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(SL_TANH_T3), t, _mm512_set1_ps(SL_TANH_T2));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(SL_TANH_T1));
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(y, t), p, y);
    __m512 x = _mm512_mul_ps(_mm512_add_ps(magnitude, magnitude), _mm512_set1_ps(SL_LOG2E));
    __m512 e = sl_avx512_exp2(_mm512_min_ps(x, _mm512_set1_ps(SL_TANH_EXP_MAX)));
    __m512 large = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
    large = _mm512_or_ps(large, _mm512_and_ps(sign, y));
    __mmask16 near_zero = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(SL_TANH_SMALL), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(large, near_zero, small);
}

#endif
