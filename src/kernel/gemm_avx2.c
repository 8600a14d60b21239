/* Projections with quantised weights for AVX2, FMA and F16C: the bits of gemm_ref.c.
 * The way through them is gemm_rows256.h's. `vpmaddubsw` multiplies unsigned bytes by signed ones and adds pairs with
 * saturation at 32767, which no product here reaches:
 *  4 bits: w is 0..15, so eight quads stay inside 16 bits (8 * 2 * 15 * 127 = 30480);
 *  5 bits: w is 0..31, four quads do (4 * 2 * 31 * 127 = 31496);
 *  MXFP4:  w is 0..24, four quads;
 *  6 bits: w is -32..31 and the activation gets 128 added; a pair is at most 2 * 32 * 255 = 16320, and four quads,
 *          started at -128 times the sum of their w, end at no more than 4 * 2 * 32 * 127 = 32512, whatever wrapped
 *          meanwhile; the sub-scale enters where pairs are widened. Q2_K (0..3) and Q3_K (-4..3) likewise;
 *  8 bits, and IQ4_NL and IQ4_XS (-127..113): the weight's sign moves to the activation, which is never -128;
 *          |-128| = 128 is right as an unsigned byte, and a pair is at most 2 * 128 * 127 = 32512.
 * An offset left in w (8, 12, 16) is taken off as offset * sum(q), which binary32 holds exactly.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/gemm_quads.h"

/* Four products an output, added in pairs; q has 128 added where w is signed. */
AVX2_INLINE __m256i pairs_of(__m256i w, __m256i q, sl_packing p)
{
    return p.subscales ? _mm256_maddubs_epi16(q, w) : _mm256_maddubs_epi16(w, q);
}

/* What offset an unsigned weight has, its product has times the sum of q. */
AVX2_INLINE __m256 float_of(__m256i dot, __m256 sum, sl_packing p)
{
    const __m256 value = _mm256_cvtepi32_ps(dot);
    return p.offset == 0.0f ? value : _mm256_fmadd_ps(sum, _mm256_set1_ps(-p.offset), value);
}

/* Adds a quad in 16 bits, for each row. Compilers would reorder these sums until they no longer fit the registers; not
 * across the empty statement. Hence a step a call, too: a loop might not be unrolled. */
AVX2_INLINE void add_quad(__m256i s[SL_BLOCK_ROWS][2], const uint8_t (*w)[SL_HALF_BYTES], const sl_row_block *b,
                          size_t q_off, sl_packing p)
{
    __m256i w0 = sl_load_256(w[0]), w1 = sl_load_256(w[1]);
    for (size_t r = 0; r < b->n; r++) {
        __m256i q = sl_broadcast_quad(b->row[r] + q_off);
        if (p.subscales)
            q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
        s[r][0] = _mm256_add_epi16(s[r][0], pairs_of(w0, q, p));
        s[r][1] = _mm256_add_epi16(s[r][1], pairs_of(w1, q, p));
        __asm__("" : "+x"(s[r][0]), "+x"(s[r][1]));
    }
}

/* Half of group `at`'s elements. */
AVX2_INLINE void add_part(__m256i s[SL_BLOCK_ROWS][2], const sl_panel_block *w, size_t at, size_t part,
                          const sl_row_block *b, size_t q_off, sl_packing p)
{
    const uint8_t(*quads)[2][SL_HALF_BYTES] = w->w[at] + part * SL_PART;
    q_off += part * SL_PART * 4;
    for (size_t r = 0; r < b->n; r++)
        for (size_t h = 0; h < 2; h++)
            if (p.subscales)
                s[r][h] = sl_load_256(w->start[at][part][h]);
            else if (part == 0 || p.parts)
                s[r][h] = _mm256_setzero_si256();
    add_quad(s, quads[0], b, q_off, p);
    add_quad(s, quads[1], b, q_off + 4, p);
    add_quad(s, quads[2], b, q_off + 8, p);
    add_quad(s, quads[3], b, q_off + 12, p);
}

/* 16-bit sums to 32-bit ones, times the sub-scale where there is one. */
AVX2_INLINE __m256i widened(__m256i s, const sl_panel_block *w, size_t at, size_t part, size_t h, sl_packing p)
{
    return _mm256_madd_epi16(s, p.subscales ? sl_load_256(w->sub[at][part][h]) : _mm256_set1_epi16(1));
}

AVX2_INLINE void block_values(__m256 value[SL_BLOCK_ROWS][2], const sl_panel_block *w, size_t at,
                              const sl_row_block *b, sl_group_off off, sl_packing p)
{
    __m256i s[SL_BLOCK_ROWS][2], dot[SL_BLOCK_ROWS][2];
    add_part(s, w, at, 0, b, off.q, p);
    for (size_t r = 0; r < b->n && p.parts; r++)
        for (size_t h = 0; h < 2; h++)
            dot[r][h] = widened(s[r][h], w, at, 0, h, p);
    add_part(s, w, at, 1, b, off.q, p);
    for (size_t r = 0; r < b->n; r++) {
        const __m256 sum = sl_broadcast_float(b->row[r] + off.sum);
        for (size_t h = 0; h < 2; h++) {
            const __m256i wide = widened(s[r][h], w, at, 1, h, p);
            value[r][h] = float_of(p.parts ? _mm256_add_epi32(dot[r][h], wide) : wide, sum, p);
        }
    }
}

AVX2_INLINE void few_starts(__m256i start[2], __m256i sub[2], const __m256i w[SL_QUADS])
{
    for (size_t part = 0; part < 2; part++) {
        start[part] = sl_start_pairs(w + part * SL_PART);
        sub[part] = sl_twice_16(sub[part]);
    }
}

AVX2_INLINE __m256i quad_sums(__m256i size, __m256i w, __m256i q)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(q, w)), _mm256_set1_epi16(1));
}

/* Half h of a group of signed bytes for one row's group at q. */
AVX2_INLINE __m256 few_value_wide(const __m256i w[SL_QUADS], const uint8_t *q)
{
    __m256i dot = _mm256_setzero_si256();
    for (size_t i = 0; i < SL_QUADS; i++)
        dot = _mm256_add_epi32(dot, quad_sums(_mm256_abs_epi8(w[i]), w[i], sl_broadcast_quad(q + 4 * i)));
    return _mm256_cvtepi32_ps(dot);
}

/* Half h of a group, decoded, for one row's group at q. */
AVX2_INLINE __m256 few_value(const __m256i w[SL_QUADS], const __m256i start[2], const __m256i sub[2], const uint8_t *q,
                             __m256 sum, sl_packing p)
{
    if (p.wide)
        return few_value_wide(w, q);
    __m256i s = p.subscales ? start[0] : _mm256_setzero_si256(), dot = s;
    for (size_t i = 0; i < SL_QUADS; i++) {
        if (i == SL_PART && p.parts) {
            dot = _mm256_madd_epi16(s, p.subscales ? sub[0] : _mm256_set1_epi16(1));
            s = p.subscales ? start[1] : _mm256_setzero_si256();
        }
        s = _mm256_add_epi16(s, pairs_of(w[i], sl_broadcast_quad(q + 4 * i), p));
        __asm__("" : "+x"(s)); /* as in add_quad */
    }
    s = _mm256_madd_epi16(s, p.subscales ? sub[1] : _mm256_set1_epi16(1));
    return float_of(p.parts ? _mm256_add_epi32(dot, s) : s, sum, p);
}

AVX2_INLINE void add_quad_q8(__m256i dot[SL_BLOCK_ROWS][2], const uint8_t *w, const sl_row_block *b, size_t q_off)
{
    __m256i w0 = sl_load_256(w), w1 = sl_load_256(w + SL_HALF_BYTES);
    __m256i a0 = _mm256_abs_epi8(w0), a1 = _mm256_abs_epi8(w1);
    for (size_t r = 0; r < b->n; r++) {
        __m256i q = sl_broadcast_quad(b->row[r] + q_off);
        dot[r][0] = _mm256_add_epi32(dot[r][0], quad_sums(a0, w0, q));
        dot[r][1] = _mm256_add_epi32(dot[r][1], quad_sums(a1, w1, q));
        __asm__("" : "+x"(dot[r][0]), "+x"(dot[r][1]));
    }
}

/* Four quads of a group. */
AVX2_INLINE void add_part_q8(__m256i dot[SL_BLOCK_ROWS][2], const uint8_t *w, const sl_row_block *b, size_t q_off)
{
    add_quad_q8(dot, w, b, q_off);
    add_quad_q8(dot, w + SL_QUAD_BYTES, b, q_off + 4);
    add_quad_q8(dot, w + 2 * SL_QUAD_BYTES, b, q_off + 8);
    add_quad_q8(dot, w + 3 * SL_QUAD_BYTES, b, q_off + 12);
}

AVX2_INLINE void q8_values(__m256 value[SL_BLOCK_ROWS][2], const uint8_t *group, const sl_row_block *b,
                           sl_group_off off)
{
    __m256i dot[SL_BLOCK_ROWS][2];
    for (size_t r = 0; r < b->n; r++)
        dot[r][0] = dot[r][1] = _mm256_setzero_si256();
    add_part_q8(dot, group, b, off.q);
    add_part_q8(dot, group + SL_PART * SL_QUAD_BYTES, b, off.q + SL_PART * 4);
    for (size_t r = 0; r < b->n; r++)
        for (size_t h = 0; h < 2; h++)
            value[r][h] = _mm256_cvtepi32_ps(dot[r][h]);
}

#define LEVEL AVX2
#define BODY AVX2_INLINE
#define LEVEL_NAME avx2
#define SUBS pairs
#include "kernel/gemm_rows256.h"

#endif
