/* Projections with F32, F16 and BF16 weights for AVX2, FMA and F16C (gemm_floats.h). */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/avx2.h"

#define BODY AVX2_INLINE

enum { VEC_LANES = 8, TILE_OUTS = 3, FEW_SIDE = 2 };

typedef __m256 vec;

BODY vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

BODY vec vec_load(const float *at)
{
    return _mm256_loadu_ps(at);
}

BODY void vec_store(float *at, vec v)
{
    _mm256_storeu_ps(at, v);
}

BODY vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

BODY vec vec_of_halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

BODY vec vec_of_bf16(const uint8_t *at)
{
    const __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)at);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

#include "kernel/gemm_floats.h"

AVX2 void sl_gemm_f32_avx2(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F32);
}

AVX2 void sl_gemm_f16_avx2(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F16);
}

AVX2 void sl_gemm_bf16_avx2(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_BF16);
}

#endif
