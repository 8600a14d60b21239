/* Quantised input rows, norms, RoPE and element-wise functions for AVX2 and FMA: the bits of gemm_ref.c's qrow and
 * of vec_ref.c. Ends shorter than a vector go through the reference or its scalar functions. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <math.h>

#include "kernel/avx2.h"

enum { LANES = 8 };

/* Lanes 0..7 and 8..15 as an array of sixteen. */
AVX2_INLINE void store_lanes(float lanes[SL_LANES], __m256 low, __m256 high)
{
    _mm256_storeu_ps(lanes, low);
    _mm256_storeu_ps(lanes + LANES, high);
}

AVX2_INLINE int32_t sum_int32(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(s);
}

AVX2_INLINE int32_t max_int32(__m256i v)
{
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(s);
}

/* The four vectors of a group times `inverse`, to the nearest integer, NaN to 0; returns their sum. */
AVX2_INLINE int32_t round_group(int8_t *q, const __m256 v[4], float inverse)
{
    __m256i whole[4];
    for (size_t i = 0; i < 4; i++) {
        __m256 value = _mm256_mul_ps(v[i], _mm256_set1_ps(inverse));
        value = _mm256_and_ps(value, _mm256_cmp_ps(value, value, _CMP_ORD_Q));
        whole[i] = _mm256_cvtps_epi32(value);
    }
    /* Packing works in 128-bit halves: the dwords come out as 0 2 4 6 | 1 3 5 7. */
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    return sum_int32(
        _mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3])));
}

AVX2_INLINE void quantise_group(const float *x, int8_t *q, float *scale, float *sum)
{
    __m256 v[4];
    __m256i most = _mm256_setzero_si256();
    for (size_t i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + i * LANES);
        __m256i bits = _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff));
        most = _mm256_max_epi32(most, bits);
    }
    float amax = sl_float_of_bits((uint32_t)max_int32(most));
    if (amax < SL_AMAX_MIN) {
        _mm256_storeu_si256((__m256i *)(void *)q, _mm256_setzero_si256());
        *scale = *sum = 0.0f;
        return;
    }
    *sum = (float)round_group(q, v, 127.0f / amax);
    *scale = amax / 127.0f;
}

AVX2 void sl_qrow_avx2(void *out, const float *x, size_t x_stride, size_t n_rows, size_t n)
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

AVX2 static float sum_squares(const float *x, size_t n)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    size_t k = 0;
    for (; k + SL_LANES <= n; k += SL_LANES) {
        __m256 a = _mm256_loadu_ps(x + k), b = _mm256_loadu_ps(x + k + LANES);
        low = _mm256_fmadd_ps(a, a, low);
        high = _mm256_fmadd_ps(b, b, high);
    }
    float lanes[SL_LANES];
    store_lanes(lanes, low, high);
    for (; k < n; k++)
        lanes[k % SL_LANES] = fmaf(x[k], x[k], lanes[k % SL_LANES]);
    return sl_scalar_tree16(lanes);
}

AVX2 void sl_rmsnorm_avx2(float *out, const float *x, const float *w, size_t n, float eps)
{
    float mean = sum_squares(x, n) / (float)n;
    float r = 1.0f / sqrtf(mean + eps);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + k), _mm256_set1_ps(r));
        _mm256_storeu_ps(out + k, _mm256_mul_ps(scaled, _mm256_loadu_ps(w + k)));
    }
    for (; k < n; k++)
        out[k] = (x[k] * r) * w[k];
}

AVX2 void sl_rope_norm_avx2(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    size_t i = 0;
    for (; i + 4 <= n_pairs; i += 4) {
        __m256 v = _mm256_loadu_ps(x + 2 * i);
        __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos_tab + i)), twice);
        __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin_tab + i)), twice);
        __m256 product = _mm256_mul_ps(_mm256_movehdup_ps(v), _mm256_blend_ps(s, c, 0xaa));
        /* even places subtract the product, odd places add it */
        v = _mm256_fmaddsub_ps(_mm256_moveldup_ps(v), _mm256_blend_ps(c, s, 0xaa), product);
        _mm256_storeu_ps(x + 2 * i, v);
    }
    sl_rope_norm_ref(x + 2 * i, cos_tab + i, sin_tab + i, n_pairs - i);
}

AVX2 void sl_rope_neox_avx2(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
{
    float *y = x + n_pairs;
    size_t i = 0;
    for (; i + LANES <= n_pairs; i += LANES) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(y + i);
        __m256 c = _mm256_loadu_ps(cos_tab + i), s = _mm256_loadu_ps(sin_tab + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    }
    for (; i < n_pairs; i++) {
        float a = x[i], b = y[i];
        x[i] = fmaf(a, cos_tab[i], -(b * sin_tab[i]));
        y[i] = fmaf(a, sin_tab[i], b * cos_tab[i]);
    }
}

AVX2 void sl_silu_mul_avx2(float *out, const float *gate, const float *up, size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        __m256 g = _mm256_loadu_ps(gate + k);
        __m256 t = _mm256_mul_ps(_mm256_xor_ps(g, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(SL_LOG2E));
        t = _mm256_min_ps(t, _mm256_set1_ps(127.0f)); /* a NaN gives 127, as in the reference */
        __m256 silu = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), sl_avx2_exp2(t)));
        _mm256_storeu_ps(out + k, _mm256_mul_ps(silu, _mm256_loadu_ps(up + k)));
    }
    sl_silu_mul_ref(out + k, gate + k, up + k, n - k);
}

AVX2 void sl_gelu_mul_avx2(float *out, const float *gate, const float *up, size_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        __m256 x = _mm256_loadu_ps(gate + k);
        __m256 y = _mm256_fmadd_ps(_mm256_set1_ps(SL_GELU_CUBE), _mm256_mul_ps(x, x), one);
        y = _mm256_mul_ps(_mm256_mul_ps(x, _mm256_set1_ps(SL_GELU_SCALE)), y);
        __m256 half = _mm256_mul_ps(_mm256_set1_ps(0.5f), x);
        __m256 gelu = _mm256_mul_ps(half, _mm256_add_ps(one, sl_avx2_tanh(y)));
        _mm256_storeu_ps(out + k, _mm256_mul_ps(gelu, _mm256_loadu_ps(up + k)));
    }
    sl_gelu_mul_ref(out + k, gate + k, up + k, n - k);
}

AVX2 void sl_softcap_avx2(float *x, size_t n, float cap)
{
    const __m256 most = _mm256_set1_ps(cap);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        _mm256_storeu_ps(x + k, _mm256_mul_ps(most, sl_avx2_tanh(_mm256_div_ps(_mm256_loadu_ps(x + k), most))));
    sl_softcap_ref(x + k, n - k, cap);
}

AVX2 void sl_add_avx2(float *x, const float *y, size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        _mm256_storeu_ps(x + k, _mm256_add_ps(_mm256_loadu_ps(x + k), _mm256_loadu_ps(y + k)));
    sl_add_ref(x + k, y + k, n - k);
}

AVX2 void sl_exp2_avx2(float *out, const float *x, size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        _mm256_storeu_ps(out + k, sl_avx2_exp2(_mm256_loadu_ps(x + k)));
    sl_exp2_ref(out + k, x + k, n - k);
}

AVX2_INLINE __m256 exp_difference(const float *x, __m256 max)
{
    return sl_avx2_exp2(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x), max), _mm256_set1_ps(SL_LOG2E)));
}

AVX2 float sl_sumexp_avx2(const float *x, size_t n, float max)
{
    __m256 low = _mm256_setzero_ps(), high = low;
    size_t k = 0;
    for (; k + SL_LANES <= n; k += SL_LANES) {
        low = _mm256_add_ps(low, exp_difference(x + k, _mm256_set1_ps(max)));
        high = _mm256_add_ps(high, exp_difference(x + k + LANES, _mm256_set1_ps(max)));
    }
    float lanes[SL_LANES];
    store_lanes(lanes, low, high);
    for (; k < n; k++)
        lanes[k % SL_LANES] += sl_scalar_exp2((x[k] - max) * SL_LOG2E);
    return sl_scalar_tree16(lanes);
}

AVX2 static float max_of(const float *x, size_t n)
{
    __m256 most = _mm256_set1_ps(x[0]);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        most = _mm256_max_ps(most, _mm256_loadu_ps(x + k));
    float lanes[LANES];
    _mm256_storeu_ps(lanes, most);
    float max = lanes[0];
    for (size_t i = 1; i < LANES; i++)
        max = lanes[i] > max ? lanes[i] : max;
    for (; k < n; k++)
        max = x[k] > max ? x[k] : max;
    return max;
}

/* Two passes: the maximum, then the first place that equals it. */
AVX2 size_t sl_argmax_avx2(const float *x, size_t n)
{
    float max = max_of(x, n);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        __m256 equal = _mm256_cmp_ps(_mm256_loadu_ps(x + k), _mm256_set1_ps(max), _CMP_EQ_OQ);
        if (_mm256_movemask_ps(equal))
            break;
    }
    while (k < n && x[k] != max)
        k++;
    return k < n ? k : 0;
}

AVX2 bool sl_finite_avx2(const float *x, size_t n)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        __m256i bits = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + k)), exponent);
        if (_mm256_movemask_epi8(_mm256_cmpeq_epi32(bits, exponent)))
            return false;
    }
    return sl_finite_ref(x + k, n - k);
}

#endif
