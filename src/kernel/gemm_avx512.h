/* What the projections of AVX-512 and AMX share: a packed panel's values and scales in registers. x86-64 only. */
#ifndef SL_GEMM_AVX512_H
#define SL_GEMM_AVX512_H

#include "kernel/avx512.h"
#include "kernel/kernel.h"

enum {
    GEMM_QUADS = SL_GROUP / 4,             /* of a group's 32 values */
    GEMM_PLANE = 4 * SL_PANEL,             /* bytes of one quad of sixteen outputs */
    GEMM_CHUNK = SL_SUPERBLOCK / SL_GROUP, /* groups of the longest block */
    GEMM_OR_AND = 0xf8                     /* vpternlog: a | (b & c) */
};

/* Where a panel's groups leave their scales, a row of sixteen outputs a group. */
typedef struct gemm_scales {
    float (*ws)[SL_PANEL];
    float (*second)[SL_PANEL]; /* the minimum mw, or Q6_K's sub-scale of elements 0..15 */
    float (*third)[SL_PANEL];  /* Q6_K: the sub-scale of elements 16..31 */
} gemm_scales;

AVX512_INLINE bool gemm_has_minimum(sl_wtype type)
{
    return type == SL_WTYPE_Q4_1 || type == SL_WTYPE_Q5_1 || type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K;
}

/* Unsigned value - element. */
AVX512_INLINE int gemm_offset(sl_wtype type)
{
    switch (type) {
    case SL_WTYPE_Q8_0:
        return 128;
    case SL_WTYPE_Q4_0:
        return 8;
    case SL_WTYPE_Q5_0:
        return 16;
    case SL_WTYPE_Q6_K:
        return 32;
    default:
        return 0;
    }
}

/* Groups that share a tail of scales. */
AVX512_INLINE size_t gemm_block_groups(sl_wtype type)
{
    return type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K || type == SL_WTYPE_Q6_K ? GEMM_CHUNK : 1;
}

/* Bytes of a whole panel's group without its scales. */
AVX512_INLINE size_t gemm_value_bytes(sl_wtype type)
{
    switch (type) {
    case SL_WTYPE_Q8_0:
        return 8 * GEMM_PLANE;
    case SL_WTYPE_Q5_0:
    case SL_WTYPE_Q5_1:
    case SL_WTYPE_Q5_K:
        return 5 * GEMM_PLANE;
    case SL_WTYPE_Q6_K:
        return 6 * GEMM_PLANE;
    default:
        return 4 * GEMM_PLANE;
    }
}

/* Bytes of a whole panel's block, scales included. */
AVX512_INLINE size_t gemm_block_bytes(sl_wtype type)
{
    const size_t values = gemm_block_groups(type) * gemm_value_bytes(type);
    switch (type) {
    case SL_WTYPE_Q4_K:
    case SL_WTYPE_Q5_K:
        return values + 16 * SL_PANEL;
    case SL_WTYPE_Q6_K:
        return values + 18 * SL_PANEL;
    default:
        return values + (gemm_has_minimum(type) ? 4u : 2u) * SL_PANEL;
    }
}

AVX512_INLINE __m512 gemm_halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

/* The eight quads of a group as unsigned bytes. Shifts cross bytes; what they bring in is masked off. */
AVX512_INLINE void gemm_values(__m512i w[GEMM_QUADS], const uint8_t *group, sl_wtype type)
{
    const __m512i low = _mm512_set1_epi8(15);
    if (type == SL_WTYPE_Q8_0) {
        for (size_t i = 0; i < GEMM_QUADS; i++)
            w[i] = _mm512_xor_si512(_mm512_loadu_si512(group + i * GEMM_PLANE), _mm512_set1_epi8(-128));
        return;
    }
    for (size_t i = 0; i < GEMM_QUADS / 2; i++) {
        const __m512i v = _mm512_loadu_si512(group + i * GEMM_PLANE);
        w[2 * i] = _mm512_and_si512(v, low);
        w[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
    group += GEMM_QUADS / 2 * GEMM_PLANE;
    if (gemm_value_bytes(type) == 5 * GEMM_PLANE) {
        const __m512i h = _mm512_loadu_si512(group), fifth = _mm512_set1_epi8(16);
        __m512i first = _mm512_slli_epi16(h, 4), second = h;
        for (size_t i = 0; i < GEMM_QUADS / 2; i++) {
            w[i] = _mm512_ternarylogic_epi32(w[i], first, fifth, GEMM_OR_AND);
            w[i + 4] = _mm512_ternarylogic_epi32(w[i + 4], second, fifth, GEMM_OR_AND);
            first = _mm512_srli_epi16(first, 1);
            second = _mm512_srli_epi16(second, 1);
        }
    }
    if (type == SL_WTYPE_Q6_K) {
        const __m512i high = _mm512_set1_epi8(48);
        for (size_t i = 0; i < GEMM_QUADS; i += 4) {
            const __m512i h = _mm512_loadu_si512(group + i / 4 * GEMM_PLANE);
            w[i] = _mm512_ternarylogic_epi32(w[i], _mm512_slli_epi16(h, 4), high, GEMM_OR_AND);
            w[i + 1] = _mm512_ternarylogic_epi32(w[i + 1], _mm512_slli_epi16(h, 2), high, GEMM_OR_AND);
            w[i + 2] = _mm512_ternarylogic_epi32(w[i + 2], h, high, GEMM_OR_AND);
            w[i + 3] = _mm512_ternarylogic_epi32(w[i + 3], _mm512_srli_epi16(h, 2), high, GEMM_OR_AND);
        }
    }
}

/* The tail of Q4_K and Q5_K: sixteen six-bit fields of each output in three words, the last in what is left of them. */
AVX512_INLINE void gemm_scales_q4_k(gemm_scales out, const uint8_t *tail)
{
    const __m512 d = gemm_halves(tail + 3 * GEMM_PLANE);
    const __m512 minus_dmin = _mm512_xor_ps(gemm_halves(tail + 3 * GEMM_PLANE + 2 * SL_PANEL), _mm512_set1_ps(-0.0f));
    const __m512i six_bits = _mm512_set1_epi32(63);
    __m512i left[3];
    size_t field = 0;
    for (size_t k = 0; k < 3; k++) {
        left[k] = _mm512_loadu_si512(tail + k * GEMM_PLANE);
        for (size_t j = 0; j < 5; j++, field++) {
            const __m512 value = _mm512_cvtepi32_ps(_mm512_and_si512(left[k], six_bits));
            float *to = field % 2 == 0 ? out.ws[field / 2] : out.second[field / 2];
            _mm512_storeu_ps(to, _mm512_mul_ps(field % 2 == 0 ? d : minus_dmin, value));
            left[k] = _mm512_srli_epi32(left[k], 6);
        }
    }
    const __m512i last = _mm512_or_si512(left[0], _mm512_or_si512(_mm512_slli_epi32(left[1], 2),
                                                                  _mm512_slli_epi32(left[2], 4)));
    _mm512_storeu_ps(out.second[GEMM_CHUNK - 1], _mm512_mul_ps(minus_dmin, _mm512_cvtepi32_ps(last)));
}

/* The scales of a block, whose tail they are. */
AVX512_INLINE void gemm_scales_read(gemm_scales out, const uint8_t *tail, sl_wtype type)
{
    if (type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K) {
        gemm_scales_q4_k(out, tail);
    } else if (type == SL_WTYPE_Q6_K) {
        const __m512 d = gemm_halves(tail + GEMM_CHUNK * 2 * SL_PANEL);
        for (size_t g = 0; g < GEMM_CHUNK; g++) {
            const __m256i pair = _mm256_loadu_si256((const __m256i *)(const void *)(tail + g * 2 * SL_PANEL));
            const __m512i wide = _mm512_cvtepi16_epi32(pair);
            const __m512i first = _mm512_srai_epi32(_mm512_slli_epi32(wide, 24), 24);
            _mm512_storeu_ps(out.ws[g], d);
            _mm512_storeu_ps(out.second[g], _mm512_cvtepi32_ps(first));
            _mm512_storeu_ps(out.third[g], _mm512_cvtepi32_ps(_mm512_srai_epi32(wide, 8)));
        }
    } else {
        _mm512_storeu_ps(out.ws[0], gemm_halves(tail));
        if (gemm_has_minimum(type))
            _mm512_storeu_ps(out.second[0], gemm_halves(tail + 2 * SL_PANEL));
    }
}

#endif
