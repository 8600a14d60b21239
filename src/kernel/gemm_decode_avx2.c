/* Packed groups of weights (kernel.h, Weights) to bytes and binary32 scales, for the 256-bit levels. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/avx2.h"
#include "kernel/gemm_panels.h"

enum {
    HALF = SL_HALF_PANEL,
    PLANE = 4 * SL_PANEL,      /* bytes of a quad, or of four bits of two */
    NIBBLE_BYTES = 4 * PLANE,  /* of a group */
    FIELD_BITS = 6,
    FIELDS_PER_WORD = 5
};

AVX2_INLINE __m256i load_256(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

AVX2_INLINE __m256 load_halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

AVX2_INLINE void store_quad(sl_panel_group *out, size_t quad, size_t h, __m256i w)
{
    _mm256_store_si256((__m256i *)(void *)out->w[quad][h], w);
}

/* The low four bits of all elements: quads 2*i and 2*i+1 of a half from one vector. */
AVX2_INLINE void nibbles(__m256i w[2], const uint8_t *group, size_t i, size_t h)
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i v = load_256(group + i * PLANE + h * 4 * HALF);
    w[0] = _mm256_and_si256(v, low);
    w[1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
}

AVX2_INLINE void decode_q4(sl_panel_group *out, const uint8_t *group)
{
    for (size_t h = 0; h < 2; h++)
        for (size_t i = 0; i < SL_QUADS / 2; i++) {
            __m256i w[2];
            nibbles(w, group, i, h);
            store_quad(out, 2 * i, h, w[0]);
            store_quad(out, 2 * i + 1, h, w[1]);
        }
}

/* Bit i of a byte is the fifth bit of quad i. */
AVX2_INLINE void decode_q5(sl_panel_group *out, const uint8_t *group)
{
    const __m256i fifth = _mm256_set1_epi8(16);
    for (size_t h = 0; h < 2; h++) {
        __m256i bits = load_256(group + NIBBLE_BYTES + h * 4 * HALF);
        for (size_t i = 0; i < SL_QUADS / 2; i++) {
            __m256i w[2];
            nibbles(w, group, i, h);
            __m256i at4 = i < 2 ? _mm256_slli_epi16(bits, (int)(4 - 2 * i)) : _mm256_srli_epi16(bits, (int)(2 * i - 4));
            __m256i at5 = i < 2 ? _mm256_slli_epi16(bits, (int)(3 - 2 * i)) : _mm256_srli_epi16(bits, (int)(2 * i - 3));
            store_quad(out, 2 * i, h, _mm256_or_si256(w[0], _mm256_and_si256(at4, fifth)));
            store_quad(out, 2 * i + 1, h, _mm256_or_si256(w[1], _mm256_and_si256(at5, fifth)));
        }
    }
}

AVX2_INLINE void decode_head(sl_panel_group *out, const uint8_t *head, bool has_minimum)
{
    for (size_t h = 0; h < 2; h++) {
        _mm256_store_ps(out->ws[h], load_halves(head + h * 2 * HALF));
        if (has_minimum)
            _mm256_store_ps(out->mw[h], load_halves(head + 2 * SL_PANEL + h * 2 * HALF));
    }
}

AVX2 void sl_panel_decode_q4_0(sl_panel_group *out, const uint8_t *packed, size_t n)
{
    for (size_t g = 0; g < n; g++, packed += NIBBLE_BYTES + 2 * SL_PANEL) {
        decode_q4(out + g, packed);
        decode_head(out + g, packed + NIBBLE_BYTES, false);
    }
}

AVX2 void sl_panel_decode_q4_1(sl_panel_group *out, const uint8_t *packed, size_t n)
{
    for (size_t g = 0; g < n; g++, packed += NIBBLE_BYTES + 4 * SL_PANEL) {
        decode_q4(out + g, packed);
        decode_head(out + g, packed + NIBBLE_BYTES, true);
    }
}

AVX2 void sl_panel_decode_q5_0(sl_panel_group *out, const uint8_t *packed, size_t n)
{
    for (size_t g = 0; g < n; g++, packed += NIBBLE_BYTES + PLANE + 2 * SL_PANEL) {
        decode_q5(out + g, packed);
        decode_head(out + g, packed + NIBBLE_BYTES + PLANE, false);
    }
}

AVX2 void sl_panel_decode_q5_1(sl_panel_group *out, const uint8_t *packed, size_t n)
{
    for (size_t g = 0; g < n; g++, packed += NIBBLE_BYTES + PLANE + 4 * SL_PANEL) {
        decode_q5(out + g, packed);
        decode_head(out + g, packed + NIBBLE_BYTES + PLANE, true);
    }
}

/* Field f of eight outputs, whose three words lie in s. */
AVX2_INLINE __m256 field_of(const __m256i s[3], size_t f)
{
    const __m256i mask = _mm256_set1_epi32((1 << FIELD_BITS) - 1);
    if (f < 3 * FIELDS_PER_WORD)
        return _mm256_cvtepi32_ps(_mm256_and_si256(
            _mm256_srli_epi32(s[f / FIELDS_PER_WORD], (int)(FIELD_BITS * (f % FIELDS_PER_WORD))), mask));
    __m256i low = _mm256_srli_epi32(s[0], 30), middle = _mm256_srli_epi32(s[1], 30), high = _mm256_srli_epi32(s[2], 30);
    return _mm256_cvtepi32_ps(
        _mm256_or_si256(_mm256_or_si256(low, _mm256_slli_epi32(middle, 2)), _mm256_slli_epi32(high, 4)));
}

/* Scales and minimums of a superblock of Q4_K or Q5_K: ws = d * scale, mw = -(dmin * minimum). */
AVX2_INLINE void decode_super(sl_panel_group *out, const uint8_t *head)
{
    const uint8_t *halves = head + 3 * PLANE;
    for (size_t h = 0; h < 2; h++) {
        __m256i s[3];
        for (size_t i = 0; i < 3; i++)
            s[i] = load_256(head + i * PLANE + h * 4 * HALF);
        __m256 d = load_halves(halves + h * 2 * HALF);
        __m256 dmin = _mm256_xor_ps(load_halves(halves + 2 * SL_PANEL + h * 2 * HALF), _mm256_set1_ps(-0.0f));
        for (size_t g = 0; g < SL_PANEL_GROUPS; g++) {
            _mm256_store_ps(out[g].ws[h], _mm256_mul_ps(d, field_of(s, 2 * g)));
            _mm256_store_ps(out[g].mw[h], _mm256_mul_ps(dmin, field_of(s, 2 * g + 1)));
        }
    }
}

AVX2 void sl_panel_decode_q4_k(sl_panel_group *out, const uint8_t *packed, size_t n)
{
    decode_super(out, packed + n * NIBBLE_BYTES);
    for (size_t g = 0; g < n; g++)
        decode_q4(out + g, packed + g * NIBBLE_BYTES);
}

AVX2 void sl_panel_decode_q5_k(sl_panel_group *out, const uint8_t *packed, size_t n)
{
    decode_super(out, packed + n * (NIBBLE_BYTES + PLANE));
    for (size_t g = 0; g < n; g++)
        decode_q5(out + g, packed + g * (NIBBLE_BYTES + PLANE));
}

/* Quads 4*i to 4*i+3 of a half: bits 2*k and 2*k+1 of a byte are the high two bits of quad 4*i+k; 32 taken off. */
AVX2_INLINE void decode_q6(__m256i w[4], const uint8_t *group, size_t i, size_t h)
{
    const __m256i high = _mm256_set1_epi8(48), offset = _mm256_set1_epi8(32);
    __m256i bits = load_256(group + NIBBLE_BYTES + i * PLANE + h * 4 * HALF);
    nibbles(w, group, 2 * i, h);
    nibbles(w + 2, group, 2 * i + 1, h);
    for (size_t k = 0; k < 4; k++) {
        __m256i at4 = k < 3 ? _mm256_slli_epi16(bits, (int)(4 - 2 * k)) : _mm256_srli_epi16(bits, 2);
        w[k] = _mm256_sub_epi8(_mm256_or_si256(w[k], _mm256_and_si256(at4, high)), offset);
    }
}

AVX2_INLINE void decode_q6_k(sl_panel_group *out, const uint8_t *packed, size_t n, bool pairs)
{
    const size_t group_bytes = NIBBLE_BYTES + 2 * PLANE;
    const uint8_t *subs = packed + n * group_bytes, *d = subs + n * 2 * SL_PANEL;
    for (size_t g = 0; g < n; g++)
        for (size_t h = 0; h < 2; h++) {
            _mm256_store_ps(out[g].ws[h], load_halves(d + h * 2 * HALF));
            __m128i both = _mm_loadu_si128((const __m128i *)(const void *)(subs + (g * SL_PANEL + h * HALF) * 2));
            __m256i sub[2];
            sub[0] = _mm256_srai_epi32(_mm256_slli_epi32(_mm256_cvtepi16_epi32(both), 24), 24);
            sub[1] = _mm256_cvtepi16_epi32(_mm_srai_epi16(both, 8));
            for (size_t i = 0; i < 2; i++) {
                __m256i w[4], start = _mm256_setzero_si256();
                decode_q6(w, packed + g * group_bytes, i, h);
                for (size_t k = 0; k < 4; k++) {
                    store_quad(out + g, 4 * i + k, h, w[k]);
                    start = _mm256_sub_epi16(start, _mm256_maddubs_epi16(_mm256_set1_epi8(-128), w[k]));
                }
                __m256i twice = _mm256_or_si256(_mm256_and_si256(sub[i], _mm256_set1_epi32(0xffff)),
                                                _mm256_slli_epi32(sub[i], 16));
                __m256i scale = _mm256_castps_si256(_mm256_cvtepi32_ps(sub[i]));
                __m256i sum = _mm256_setzero_si256();
                for (size_t k = 0; k < 4; k++)
                    sum = _mm256_sub_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(-128), w[k]),
                                                                  _mm256_set1_epi16(1)));
                _mm256_store_si256((__m256i *)(void *)out[g].start[i][h], pairs ? start : sum);
                _mm256_store_si256((__m256i *)(void *)out[g].sub[i][h], pairs ? twice : scale);
            }
        }
}

AVX2 void sl_panel_decode_q6_k_pairs(sl_panel_group *out, const uint8_t *packed, size_t n)
{
    decode_q6_k(out, packed, n, true);
}

AVX2 void sl_panel_decode_q6_k_whole(sl_panel_group *out, const uint8_t *packed, size_t n)
{
    decode_q6_k(out, packed, n, false);
}

#endif
