/* Projections with F32, F16 and BF16 weights for AVX2, FMA and F16C: the bits of gemm_ref.c. Lanes are k mod 16, two
 * vectors an output and row.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/avx2.h"

enum { HALF = 8 }; /* lanes of a vector */

AVX2_INLINE __m256 load_halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

AVX2_INLINE __m256 load_weights(sl_wtype type, const uint8_t *row, size_t k)
{
    if (type == SL_WTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)row + k);
    if (type == SL_WTYPE_F16)
        return load_halves(row + 2 * k);
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * k));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

AVX2_INLINE float load_weight(sl_wtype type, const uint8_t *row, size_t k)
{
    if (type == SL_WTYPE_F32) {
        float value;
        memcpy(&value, row + 4 * k, sizeof value);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, row + 2 * k, sizeof bits);
    return type == SL_WTYPE_F16 ? sl_float_of_half(bits) : sl_float_of_bf16(bits);
}

AVX2_INLINE __m256 fma_scalar_lane(__m256 acc, float w, float x, size_t lane)
{
    float lanes[HALF];
    _mm256_storeu_ps(lanes, acc);
    lanes[lane] = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(w), _mm_set_ss(x), _mm_set_ss(lanes[lane])));
    return _mm256_loadu_ps(lanes);
}

/* t + (t+8), then +4, +2, +1. */
AVX2_INLINE float tree16(__m256 low, __m256 high)
{
    __m256 s8 = _mm256_add_ps(low, high);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* n_r rows by n_o outputs, both compile-time constants. */
AVX2_INLINE void float_block(const sl_gemm_args *args, sl_wtype type, size_t r0, size_t o0, size_t n_r, size_t n_o)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in);
    const uint8_t *w = (const uint8_t *)args->packed + o0 * row_bytes;
    const float *x = args->x + r0 * args->x_stride;
    __m256 acc[2][4][2];
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            acc[r][o][0] = acc[r][o][1] = _mm256_setzero_ps();
    size_t k = 0;
    for (; k + SL_LANES <= args->n_in; k += SL_LANES)
        for (size_t h = 0; h < 2; h++)
            for (size_t o = 0; o < n_o; o++) {
                __m256 wv = load_weights(type, w + o * row_bytes, k + h * HALF);
                for (size_t r = 0; r < n_r; r++)
                    acc[r][o][h] =
                        _mm256_fmadd_ps(wv, _mm256_loadu_ps(x + r * args->x_stride + k + h * HALF), acc[r][o][h]);
            }
    /* Absent elements leave their lanes alone: a product of zeros would turn -0 into +0. */
    for (; k < args->n_in; k++)
        for (size_t o = 0; o < n_o; o++)
            for (size_t r = 0; r < n_r; r++) {
                __m256 *lanes = &acc[r][o][k % SL_LANES / HALF];
                *lanes = fma_scalar_lane(*lanes, load_weight(type, w + o * row_bytes, k), x[r * args->x_stride + k],
                                         k % HALF);
            }
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            args->out[(r0 + r) * args->out_stride + o0 + o] = tree16(acc[r][o][0], acc[r][o][1]);
}

/* Outputs outside, rows inside: the weights come from memory once. */
AVX2_INLINE void gemm_floats(const sl_gemm_args *args, sl_wtype type)
{
    size_t end = args->first_out + args->n;
    size_t o = args->first_out;
    for (; args->n_rows == 1 && o + 4 <= end; o += 4)
        float_block(args, type, 0, o, 1, 4);
    for (; o + 2 <= end; o += 2) {
        size_t r = 0;
        for (; r + 2 <= args->n_rows; r += 2)
            float_block(args, type, r, o, 2, 2);
        if (r < args->n_rows)
            float_block(args, type, r, o, 1, 2);
    }
    for (size_t r = 0; o < end && r < args->n_rows; r++)
        float_block(args, type, r, o, 1, 1);
}

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
