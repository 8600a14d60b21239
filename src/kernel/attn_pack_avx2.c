/* What lies around the attention tiles, for AVX2, FMA and F16C: queries packed, states folded and finished, keys
 * and values rounded to the stored type. The bits of attn_ref.c. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/avx2.h"

/* ---- 32 elements with one scale ---- */

typedef struct group {
    __m256 x[4];
    uint32_t amax_bits; /* of the largest magnitude; above 0x7f7fffff: not all are finite */
} group;

AVX2_INLINE group group_load(const float *x)
{
    group g;
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i amax = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        g.x[i] = _mm256_loadu_ps(x + 8 * i);
        /* magnitudes compare as integers, and so NaN is the largest of all */
        amax = _mm256_max_epi32(amax, _mm256_and_si256(_mm256_castps_si256(g.x[i]), magnitude));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(amax), _mm256_extracti128_si256(amax, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    g.amax_bits = (uint32_t)_mm_cvtsi128_si32(four);
    return g;
}

/* rint(x * inverse) as 16-bit numbers, in order: elements 0..15 and 16..31. */
AVX2_INLINE void group_quantise(const group *g, float inverse, __m256i out[2])
{
    const __m256 factor = _mm256_set1_ps(inverse);
    __m256i q[4];
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(g->x[i], factor));
    for (int i = 0; i < 2; i++)
        out[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * i], q[2 * i + 1]), 0xd8);
}

/* ---- queries ---- */

AVX2 void sl_attn_qpack_q8_avx2(void *qblock, const float *const *q, size_t n, size_t head_dim, float c)
{
    float *qs = (float *)(void *)((uint8_t *)qblock + head_dim * SL_LANES * sizeof(int16_t));
    memset(qblock, 0, sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim));
    for (size_t i = 0; i < n; i++)
        for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
            group x = group_load(q[i] + g * SL_GROUP);
            float amax = sl_float_of_bits(x.amax_bits);
            if (amax < SL_AMAX_MIN)
                continue; /* zeros, scale 0 */
            uint32_t pairs[SL_GROUP / 2];
            __m256i wide[2];
            group_quantise(&x, 32767.0f / amax, wide);
            memcpy(pairs, wide, sizeof pairs);
            uint32_t *out = (uint32_t *)qblock + g * SL_GROUP / 2 * SL_LANES + i;
            for (size_t e = 0; e < SL_GROUP / 2; e++)
                out[e * SL_LANES] = pairs[e];
            qs[g * SL_LANES + i] = amax / 32767.0f * c;
        }
}

/* ---- states ---- */

AVX2_INLINE void segfold_vector(float *total, float *segment, size_t head_dim)
{
    const __m256 nothing = _mm256_set1_ps(-INFINITY);
    __m256 m = _mm256_load_ps(total), m_in = _mm256_load_ps(segment), m_new = _mm256_max_ps(m_in, m);
    __m256 untouched = _mm256_cmp_ps(m_in, nothing, _CMP_EQ_OQ);
    __m256 alpha = sl_avx2_exp2(_mm256_sub_ps(m, m_new)), beta = sl_avx2_exp2(_mm256_sub_ps(m_in, m_new));
    _mm256_store_ps(total, _mm256_blendv_ps(m_new, m, untouched));
    _mm256_store_ps(segment, nothing);
    for (size_t i = 1; i < head_dim + 2; i++) { /* l, then o */
        float *to = total + i * SL_LANES, *from = segment + i * SL_LANES;
        __m256 old = _mm256_load_ps(to), in = _mm256_mul_ps(_mm256_load_ps(from), beta);
        _mm256_store_ps(to, _mm256_blendv_ps(_mm256_fmadd_ps(old, alpha, in), old, untouched));
        _mm256_store_ps(from, _mm256_setzero_ps());
    }
}

AVX2 void sl_attn_segfold_avx2(uint8_t *totals, uint8_t *segments, size_t state_stride, size_t n_blocks,
                               size_t head_dim)
{
    for (size_t b = 0; b < n_blocks; b++)
        for (size_t lane = 0; lane < SL_LANES; lane += 8)
            segfold_vector((float *)(void *)(totals + b * state_stride) + lane,
                           (float *)(void *)(segments + b * state_stride) + lane, head_dim);
}

AVX2_INLINE void transpose_8x8(__m256 r[8])
{
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
            fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

AVX2 void sl_attn_finish_avx2(const uint8_t *total, float *const *out, size_t n, size_t head_dim)
{
    for (size_t lane = 0; lane < n; lane += 8) {
        const float *l = (const float *)(const void *)total + SL_LANES + lane, *o = l + SL_LANES;
        for (size_t d = 0; d < head_dim; d += 8) {
            __m256 rows[8];
            for (size_t i = 0; i < 8; i++)
                rows[i] = _mm256_div_ps(_mm256_load_ps(o + (d + i) * SL_LANES), _mm256_load_ps(l));
            transpose_8x8(rows);
            for (size_t i = 0; i < 8 && lane + i < n; i++)
                _mm256_storeu_ps(out[lane + i] + d, rows[i]);
        }
    }
}

/* ---- keys and values ---- */

/* Eight binary16 values; false when one is not finite. */
AVX2_INLINE bool halves_of(uint16_t out[8], const float *x)
{
    __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT);
    __m128i exponent = _mm_set1_epi16(0x7c00);
    _mm_storeu_si128((__m128i *)(void *)out, half);
    return _mm_movemask_epi8(_mm_cmpeq_epi16(_mm_and_si128(half, exponent), exponent)) == 0;
}

AVX2 bool sl_kv_pack_f16_avx2(uint8_t *tile, size_t key, const float *k, const float *v, size_t head_dim)
{
    uint16_t *to_k = (uint16_t *)(void *)tile + key;
    uint16_t *to_v = (uint16_t *)(void *)(tile + 128 * head_dim) + key * head_dim;
    for (size_t d = 0; d < head_dim; d += 8) {
        uint16_t halves[8];
        if (!halves_of(to_v + d, v + d) || !halves_of(halves, k + d))
            return false;
        for (size_t i = 0; i < 8; i++)
            to_k[(d + i) * SL_TILE] = halves[i];
    }
    return true;
}

/* 32 signed bytes in order and their scale; false as in the reference. */
AVX2_INLINE bool pack_group(__m256i *bytes, uint16_t *scale, const float *x)
{
    group g = group_load(x);
    if (g.amax_bits > 0x7f7fffffu)
        return false;
    float amax = sl_float_of_bits(g.amax_bits);
    __m256i wide[2];
    group_quantise(&g, amax < SL_AMAX_MIN ? 0.0f : 127.0f / amax, wide);
    *bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(wide[0], wide[1]), 0xd8);
    *scale = amax < SL_AMAX_MIN ? 0 : sl_half_of_float(amax / 127.0f);
    return *scale != 0x7c00u;
}

AVX2 bool sl_kv_pack_q8_avx2(uint8_t *tile, size_t key, const float *k, const float *v, size_t head_dim)
{
    uint8_t *to_k = tile + key * head_dim, *to_v = tile + 68 * head_dim + key;
    uint16_t *ks = (uint16_t *)(void *)(tile + 64 * head_dim) + key;
    uint16_t *vs = (uint16_t *)(void *)(tile + 132 * head_dim) + key;
    for (size_t d = 0; d < head_dim; d += SL_GROUP, ks += SL_TILE, vs += SL_TILE) {
        __m256i k_bytes, v_bytes;
        uint8_t column[SL_GROUP];
        if (!pack_group(&k_bytes, ks, k + d) || !pack_group(&v_bytes, vs, v + d))
            return false;
        _mm256_storeu_si256((__m256i *)(void *)(to_k + d), k_bytes);
        _mm256_storeu_si256((__m256i *)(void *)column, v_bytes);
        for (size_t e = 0; e < SL_GROUP; e++)
            to_v[(d + e) * SL_TILE] = column[e];
    }
    return true;
}

#else
typedef int sl_attn_pack_avx2_is_for_x86;
#endif
