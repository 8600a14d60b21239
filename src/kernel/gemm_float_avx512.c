/* Projections with F32, F16 and BF16 weights for AVX-512 (gemm_floats.h). */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/avx512.h"

#define BODY AVX512_INLINE

enum { VEC_LANES = 16, TILE_OUTS = 6, FEW_SIDE = 4 };

typedef __m512 vec;

BODY vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

BODY vec vec_load(const float *at)
{
    return _mm512_loadu_ps(at);
}

BODY void vec_store(float *at, vec v)
{
    _mm512_storeu_ps(at, v);
}

BODY vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

BODY vec vec_of_halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

BODY vec vec_of_bf16(const uint8_t *at)
{
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

#include "kernel/gemm_floats.h"

AVX512 void sl_gemm_f32_avx512(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F32);
}

AVX512 void sl_gemm_f16_avx512(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F16);
}

AVX512 void sl_gemm_bf16_avx512(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_BF16);
}

#endif
