/* Quantised input rows, norms, RoPE and element-wise functions for AVX-512: the bits of gemm_ref.c's qrow and of
 * vec_ref.c. Ends shorter than a vector are masked: neither read, nor written, nor added. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <math.h>

#include "kernel/avx512.h"

/* The lanes that hold one of `left` elements. */
AVX512_INLINE __mmask16 lanes_of(size_t left)
{
    return (__mmask16)(left >= SL_LANES ? 0xffffu : (1u << left) - 1u);
}

AVX512_INLINE float tree_of(__m512 v)
{
    float lanes[SL_LANES];
    _mm512_storeu_ps(lanes, v);
    return sl_scalar_tree16(lanes);
}

/* Sixteen elements times `inverse`, to the nearest integer, NaN to 0; stored as bytes, returned as 32-bit. */
AVX512_INLINE __m512i round_half(int8_t *q, __m512 v, float inverse)
{
    __m512 value = _mm512_mul_ps(v, _mm512_set1_ps(inverse));
    __m512i whole = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(value, value, _CMP_ORD_Q), value);
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(whole));
    return whole;
}

AVX512_INLINE void quantise_group(const float *x, int8_t *q, float *scale, float *sum)
{
    __m512 v[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + SL_LANES)};
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(v[0]), magnitude),
                                    _mm512_and_si512(_mm512_castps_si512(v[1]), magnitude));
    float amax = sl_float_of_bits((uint32_t)_mm512_reduce_max_epi32(most));
    if (amax < SL_AMAX_MIN) {
        _mm256_storeu_si256((__m256i *)(void *)q, _mm256_setzero_si256());
        *scale = *sum = 0.0f;
        return;
    }
    float inverse = 127.0f / amax;
    __m512i low = round_half(q, v[0], inverse), high = round_half(q + SL_LANES, v[1], inverse);
    *scale = amax / 127.0f;
    *sum = (float)_mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
}

AVX512 void sl_qrow_avx512(void *out, const float *x, size_t x_stride, size_t n_rows, size_t n)
{
    for (size_t r = 0; r < n_rows; r++) {
        uint8_t *row = (uint8_t *)out + r * sl_qrow_bytes(n);
        float *scale = (float *)(void *)row;
        float *sum = (float *)(void *)(row + sl_qrow_sum_off(n));
        int8_t *q = (int8_t *)(row + sl_qrow_q_off(n));
        for (size_t g = 0; g < n / SL_GROUP; g++)
            quantise_group(x + r * x_stride + g * SL_GROUP, q + g * SL_GROUP, scale + g, sum + g);
    }
}

AVX512 void sl_rmsnorm_avx512(float *out, const float *x, const float *w, size_t n, float eps)
{
    __m512 lanes = _mm512_setzero_ps();
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + k);
        lanes = _mm512_mask3_fmadd_ps(v, v, lanes, mask);
    }
    float mean = tree_of(lanes) / (float)n;
    __m512 r = _mm512_set1_ps(1.0f / sqrtf(mean + eps));
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + k), r);
        _mm512_mask_storeu_ps(out + k, mask, _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(mask, w + k)));
    }
}

AVX512 void sl_rope_norm_avx512(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __mmask16 odd = 0xaaaa;
    for (size_t i = 0; i < n_pairs; i += SL_LANES / 2) {
        __mmask16 mask = lanes_of(2 * (n_pairs - i));
        __mmask8 pairs = (__mmask8)lanes_of(n_pairs - i);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + 2 * i);
        __m512 c = _mm512_castps256_ps512(_mm256_maskz_loadu_ps(pairs, cos_tab + i));
        __m512 s = _mm512_castps256_ps512(_mm256_maskz_loadu_ps(pairs, sin_tab + i));
        c = _mm512_permutexvar_ps(twice, c);
        s = _mm512_permutexvar_ps(twice, s);
        __m512 product = _mm512_mul_ps(_mm512_movehdup_ps(v), _mm512_mask_blend_ps(odd, s, c));
        /* even places subtract the product, odd places add it */
        v = _mm512_fmaddsub_ps(_mm512_moveldup_ps(v), _mm512_mask_blend_ps(odd, c, s), product);
        _mm512_mask_storeu_ps(x + 2 * i, mask, v);
    }
}

AVX512 void sl_rope_neox_avx512(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
{
    float *y = x + n_pairs;
    for (size_t i = 0; i < n_pairs; i += SL_LANES) {
        __mmask16 mask = lanes_of(n_pairs - i);
        __m512 a = _mm512_maskz_loadu_ps(mask, x + i), b = _mm512_maskz_loadu_ps(mask, y + i);
        __m512 c = _mm512_maskz_loadu_ps(mask, cos_tab + i), s = _mm512_maskz_loadu_ps(mask, sin_tab + i);
        _mm512_mask_storeu_ps(x + i, mask, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(y + i, mask, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
    }
}

AVX512 void sl_silu_mul_avx512(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        __m512 g = _mm512_maskz_loadu_ps(mask, gate + k);
        __m512 t = _mm512_mul_ps(_mm512_xor_ps(g, _mm512_set1_ps(-0.0f)), _mm512_set1_ps(SL_LOG2E));
        t = _mm512_min_ps(t, _mm512_set1_ps(127.0f)); /* a NaN gives 127, as in the reference */
        __m512 silu = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), sl_avx512_exp2(t)));
        _mm512_mask_storeu_ps(out + k, mask, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(mask, up + k)));
    }
}

AVX512 void sl_gelu_mul_avx512(float *out, const float *gate, const float *up, size_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        __m512 x = _mm512_maskz_loadu_ps(mask, gate + k);
        __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(SL_GELU_CUBE), _mm512_mul_ps(x, x), one);
        y = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(SL_GELU_SCALE)), y);
        __m512 half = _mm512_mul_ps(_mm512_set1_ps(0.5f), x);
        __m512 gelu = _mm512_mul_ps(half, _mm512_add_ps(one, sl_avx512_tanh(y)));
        _mm512_mask_storeu_ps(out + k, mask, _mm512_mul_ps(gelu, _mm512_maskz_loadu_ps(mask, up + k)));
    }
}

AVX512 void sl_softcap_avx512(float *x, size_t n, float cap)
{
    const __m512 most = _mm512_set1_ps(cap);
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        __m512 y = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, x + k), most);
        _mm512_mask_storeu_ps(x + k, mask, _mm512_mul_ps(most, sl_avx512_tanh(y)));
    }
}

AVX512 void sl_add_avx512(float *x, const float *y, size_t n)
{
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, x + k), _mm512_maskz_loadu_ps(mask, y + k));
        _mm512_mask_storeu_ps(x + k, mask, sum);
    }
}

AVX512 void sl_exp2_avx512(float *out, const float *x, size_t n)
{
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        _mm512_mask_storeu_ps(out + k, mask, sl_avx512_exp2(_mm512_maskz_loadu_ps(mask, x + k)));
    }
}

AVX512 float sl_sumexp_avx512(const float *x, size_t n, float max)
{
    __m512 lanes = _mm512_setzero_ps();
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        __m512 difference = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + k), _mm512_set1_ps(max));
        __m512 power = sl_avx512_exp2(_mm512_mul_ps(difference, _mm512_set1_ps(SL_LOG2E)));
        lanes = _mm512_mask_add_ps(lanes, mask, lanes, power);
    }
    return tree_of(lanes);
}

/* Two passes: the maximum, then the first place that equals it. */
AVX512 size_t sl_argmax_avx512(const float *x, size_t n)
{
    __m512 most = _mm512_set1_ps(x[0]);
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        most = _mm512_mask_max_ps(most, mask, most, _mm512_maskz_loadu_ps(mask, x + k));
    }
    __m512 max = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (size_t k = 0; k < n; k += SL_LANES) {
        __mmask16 mask = lanes_of(n - k);
        __mmask16 equal = _mm512_mask_cmp_ps_mask(mask, _mm512_maskz_loadu_ps(mask, x + k), max, _CMP_EQ_OQ);
        if (equal)
            return k + (size_t)__builtin_ctz(equal);
    }
    return 0;
}

AVX512 bool sl_finite_avx512(const float *x, size_t n)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    for (size_t k = 0; k < n; k += SL_LANES) {
        __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes_of(n - k), x + k));
        if (_mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent))
            return false;
    }
    return true;
}

#endif
