/* Projections of F32, F16 and BF16 weights for AVX-512: the bits of gemm_ref.c. Lanes are k mod 16, one vector an
 * output and row.
 * An inlined helper takes more than six parameters where they are what its caller's loops hold. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/avx512.h"

/* Sixteen weights from k on; those not in `mask` are not read. */
AVX512_INLINE __m512 load_weights(sl_wtype type, const uint8_t *row, size_t k, __mmask16 mask)
{
    if (type == SL_WTYPE_F32)
        return _mm512_maskz_loadu_ps(mask, row + 4 * k);
    __m256i bits = _mm256_maskz_loadu_epi16(mask, row + 2 * k);
    if (type == SL_WTYPE_F16)
        return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* t + (t+8), then +4, +2, +1. */
AVX512_INLINE float tree16(__m512 lanes)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* n_r rows by n_o outputs, compile-time constants up to 4. Absent elements leave their lanes alone: a product of
 * zeros would turn -0 into +0. */
AVX512_INLINE void float_block(const sl_gemm_args *args, sl_wtype type, size_t r0, size_t o0, size_t n_r, size_t n_o)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in);
    const uint8_t *w = (const uint8_t *)args->packed + o0 * row_bytes;
    const float *x = args->x + r0 * args->x_stride;
    __m512 acc[4][4];
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            acc[r][o] = _mm512_setzero_ps();
    for (size_t k = 0; k < args->n_in; k += SL_LANES) {
        size_t left = args->n_in - k;
        __mmask16 mask = (__mmask16)(left >= SL_LANES ? 0xffffu : (1u << left) - 1u);
        __m512 xv[4];
        for (size_t r = 0; r < n_r; r++)
            xv[r] = _mm512_maskz_loadu_ps(mask, x + r * args->x_stride + k);
        for (size_t o = 0; o < n_o; o++) {
            __m512 wv = load_weights(type, w + o * row_bytes, k, mask);
            for (size_t r = 0; r < n_r; r++)
                acc[r][o] = _mm512_mask3_fmadd_ps(wv, xv[r], acc[r][o], mask);
        }
    }
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            args->out[(r0 + r) * args->out_stride + o0 + o] = tree16(acc[r][o]);
}

/* Outputs outside, rows inside: the weights come from memory once. */
AVX512_INLINE void gemm_floats(const sl_gemm_args *args, sl_wtype type)
{
    size_t end = args->first_out + args->n, o = args->first_out;
    for (; o + 4 <= end; o += 4) {
        size_t r = 0;
        for (; r + 4 <= args->n_rows; r += 4)
            float_block(args, type, r, o, 4, 4);
        for (; r < args->n_rows; r++)
            float_block(args, type, r, o, 1, 4);
    }
    for (; o < end; o++) {
        size_t r = 0;
        for (; r + 4 <= args->n_rows; r += 4)
            float_block(args, type, r, o, 4, 1);
        for (; r < args->n_rows; r++)
            float_block(args, type, r, o, 1, 1);
    }
}

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
