/* Projections with quantised weights for AVX2 with AVX-VNNI: the bits of gemm_ref.c.
 * The way through them is gemm_rows256.h's. `vpdpbusd` multiplies four unsigned weights by four activation bytes and
 * adds them to a lane exactly. Sums start at the bits of 1.5 * 2^23: below 2^22 in magnitude, such a lane,
 * read as binary32, is that number plus the sum, and one subtraction makes the exact float of it. The subtrahend also
 * holds what the weights' offset (8, 12, 16, 128) adds: offset * sum(q). Integer conversion would take the products'
 * ports.
 * Q6_K, Q2_K, Q3_K: weights are signed, the activation gets 128 added, and sums start at -128 * the sum of w
 * (gemm_panels.h). IQ4_NL, IQ4_XS: 128 is added to the weights.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/avxvnni.h"
#include "kernel/gemm_quads.h"

enum { ROUND_BITS = 0x4b400000 };

#define ROUND 12582912.0f /* 1.5 * 2^23 */

/* Four products an output; q has 128 added where w is signed. */
AVXVNNI_INLINE __m256i add_products(__m256i dot, __m256i w, __m256i q, sl_packing p)
{
    return p.subscales ? _mm256_dpbusd_avx_epi32(dot, q, w) : _mm256_dpbusd_avx_epi32(dot, w, q);
}

/* What turns a sum into a float when it is subtracted. */
AVXVNNI_INLINE __m256 subtrahend(__m256 sum, float offset)
{
    const __m256 round = _mm256_set1_ps(ROUND);
    return offset == 0.0f ? round : _mm256_fmadd_ps(sum, _mm256_set1_ps(offset), round);
}

AVXVNNI_INLINE __m256 float_of(__m256i dot, __m256 less)
{
    return _mm256_sub_ps(_mm256_castsi256_ps(dot), less);
}

/* The sum of a group with sub-scales from those of its halves. The first is added to +0: a product of -0 must not
 * stay. */
AVXVNNI_INLINE __m256 float_of_parts(__m256i dot0, __m256i dot1, __m256 sub0, __m256 sub1)
{
    const __m256 round = _mm256_set1_ps(ROUND);
    __m256 value = _mm256_fmadd_ps(float_of(dot0, round), sub0, _mm256_setzero_ps());
    return _mm256_fmadd_ps(float_of(dot1, round), sub1, value);
}

AVXVNNI_INLINE void start_at(__m256i dot[SL_BLOCK_ROWS][2], size_t n, __m256i start0, __m256i start1)
{
    for (size_t r = 0; r < n; r++) {
        dot[r][0] = _mm256_add_epi32(start0, _mm256_set1_epi32(ROUND_BITS));
        dot[r][1] = _mm256_add_epi32(start1, _mm256_set1_epi32(ROUND_BITS));
    }
}

/* One quad for each row. Compilers would reorder these sums until they no longer fit the registers; not across the
 * empty statement. Hence a step a call, too: a loop might not be unrolled. */
AVXVNNI_INLINE void add_quad(__m256i dot[SL_BLOCK_ROWS][2], __m256i w0, __m256i w1, const sl_row_block *b, size_t q_off,
                             sl_packing p)
{
    for (size_t r = 0; r < b->n; r++) {
        __m256i q = sl_broadcast_quad(b->row[r] + q_off);
        if (p.subscales)
            q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
        dot[r][0] = add_products(dot[r][0], w0, q, p);
        dot[r][1] = add_products(dot[r][1], w1, q, p);
        __asm__("" : "+x"(dot[r][0]), "+x"(dot[r][1]));
    }
}

/* Half of a group's elements. */
AVXVNNI_INLINE void add_part(__m256i dot[SL_BLOCK_ROWS][2], const uint8_t (*w)[2][SL_HALF_BYTES], const sl_row_block *b,
                             size_t q_off, sl_packing p)
{
    add_quad(dot, sl_load_256(w[0][0]), sl_load_256(w[0][1]), b, q_off, p);
    add_quad(dot, sl_load_256(w[1][0]), sl_load_256(w[1][1]), b, q_off + 4, p);
    add_quad(dot, sl_load_256(w[2][0]), sl_load_256(w[2][1]), b, q_off + 8, p);
    add_quad(dot, sl_load_256(w[3][0]), sl_load_256(w[3][1]), b, q_off + 12, p);
}

/* The sums of group `at` for each row: of all of it in dot[0], or of each part where there are sub-scales. */
AVXVNNI_INLINE void add_group(__m256i dot[2][SL_BLOCK_ROWS][2], const sl_panel_block *w, size_t at,
                              const sl_row_block *b, size_t q_off, sl_packing p)
{
    const __m256i zero = _mm256_setzero_si256();
    if (!p.subscales) {
        start_at(dot[0], b->n, zero, zero);
        add_part(dot[0], w->w[at], b, q_off, p);
        add_part(dot[0], w->w[at] + SL_PART, b, q_off + 4 * SL_PART, p);
        return;
    }
    start_at(dot[0], b->n, sl_load_256(w->start[at][0][0]), sl_load_256(w->start[at][0][1]));
    add_part(dot[0], w->w[at], b, q_off, p);
    start_at(dot[1], b->n, sl_load_256(w->start[at][1][0]), sl_load_256(w->start[at][1][1]));
    add_part(dot[1], w->w[at] + SL_PART, b, q_off + 4 * SL_PART, p);
}

AVXVNNI_INLINE __m256 sub_of(const sl_panel_block *w, size_t at, size_t part, size_t h)
{
    return _mm256_load_ps((const float *)(const void *)w->sub[at][part][h]);
}

AVXVNNI_INLINE void block_values(__m256 value[SL_BLOCK_ROWS][2], const sl_panel_block *w, size_t at,
                                 const sl_row_block *b, sl_group_off off, sl_packing p)
{
    __m256i dot[2][SL_BLOCK_ROWS][2];
    add_group(dot, w, at, b, off.q, p);
    for (size_t r = 0; r < b->n; r++) {
        const __m256 less = subtrahend(sl_broadcast_float(b->row[r] + off.sum), p.offset);
        for (size_t h = 0; h < 2; h++)
            value[r][h] = p.subscales ? float_of_parts(dot[0][r][h], dot[1][r][h], sub_of(w, at, 0, h),
                                                       sub_of(w, at, 1, h))
                                      : float_of(dot[0][r][h], less);
    }
}

AVXVNNI_INLINE void few_starts(__m256i start[2], __m256i sub[2], const __m256i w[SL_QUADS])
{
    (void)sub;
    start[0] = sl_start_whole(w);
    start[1] = sl_start_whole(w + SL_PART);
}

/* Half h of a group, decoded, for one row's group at q. Two sums at a time: the products of one would wait for each
 * other. */
AVXVNNI_INLINE __m256 few_value(const __m256i w[SL_QUADS], const __m256i start[2], const __m256i sub[2],
                                const uint8_t *q, __m256 sum, sl_packing p)
{
    const __m256i round = _mm256_set1_epi32(ROUND_BITS);
    __m256i dot0 = p.subscales ? _mm256_add_epi32(start[0], round) : round;
    __m256i dot1 = p.subscales ? _mm256_add_epi32(start[1], round) : _mm256_setzero_si256();
    const __m256i flip = p.wide ? _mm256_set1_epi8(-128) : _mm256_setzero_si256();
    for (size_t i = 0; i < SL_PART; i++) {
        dot0 = add_products(dot0, _mm256_xor_si256(w[i], flip), sl_broadcast_quad(q + 4 * i), p);
        dot1 = add_products(dot1, _mm256_xor_si256(w[SL_PART + i], flip), sl_broadcast_quad(q + 4 * (SL_PART + i)), p);
    }
    if (p.subscales)
        return float_of_parts(dot0, dot1, _mm256_cvtepi32_ps(sub[0]), _mm256_cvtepi32_ps(sub[1]));
    return float_of(_mm256_add_epi32(dot0, dot1), subtrahend(sum, p.wide ? 128.0f : p.offset));
}

AVXVNNI_INLINE void add_quad_q8(__m256i dot[SL_BLOCK_ROWS][2], const uint8_t *w, const sl_row_block *b, size_t q_off)
{
    const __m256i flip = _mm256_set1_epi8(-128);
    __m256i w0 = _mm256_xor_si256(sl_load_256(w), flip), w1 = _mm256_xor_si256(sl_load_256(w + SL_HALF_BYTES), flip);
    add_quad(dot, w0, w1, b, q_off, (sl_packing){.bits = 8});
}

/* Four quads of a group. */
AVXVNNI_INLINE void add_part_q8(__m256i dot[SL_BLOCK_ROWS][2], const uint8_t *w, const sl_row_block *b, size_t q_off)
{
    add_quad_q8(dot, w, b, q_off);
    add_quad_q8(dot, w + SL_QUAD_BYTES, b, q_off + 4);
    add_quad_q8(dot, w + 2 * SL_QUAD_BYTES, b, q_off + 8);
    add_quad_q8(dot, w + 3 * SL_QUAD_BYTES, b, q_off + 12);
}

AVXVNNI_INLINE void q8_values(__m256 value[SL_BLOCK_ROWS][2], const uint8_t *group, const sl_row_block *b,
                              sl_group_off off)
{
    __m256i dot[SL_BLOCK_ROWS][2];
    start_at(dot, b->n, _mm256_setzero_si256(), _mm256_setzero_si256());
    add_part_q8(dot, group, b, off.q);
    add_part_q8(dot, group + SL_PART * SL_QUAD_BYTES, b, off.q + SL_PART * 4);
    for (size_t r = 0; r < b->n; r++) {
        const __m256 less = subtrahend(sl_broadcast_float(b->row[r] + off.sum), 128.0f);
        for (size_t h = 0; h < 2; h++)
            value[r][h] = float_of(dot[r][h], less);
    }
}

#define LEVEL AVXVNNI
#define BODY AVXVNNI_INLINE
#define LEVEL_NAME avxvnni
#define SUBS whole
#include "kernel/gemm_rows256.h"

#endif
