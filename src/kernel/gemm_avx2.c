/* Projections with quantised weights for AVX2, FMA and F16C: the bits of gemm_ref.c.
 * Lanes are outputs, a panel is two vectors; four activation bytes are broadcast. `vpmaddubsw` multiplies unsigned
 * bytes by signed ones and adds pairs with saturation at 32767, which no product here reaches:
 *  4 bits: w is 0..15, so eight quads stay inside 16 bits (8 * 2 * 15 * 127 = 30480);
 *  5 bits: w is 0..31, four quads do (4 * 2 * 31 * 127 = 31496);
 *  6 bits: w is -32..31 and the activation gets 128 added; a pair is at most 2 * 32 * 255 = 16320, and four quads,
 *          started at -128 times the sum of their w, end at no more than 4 * 2 * 32 * 127 = 32512, whatever wrapped
 *          meanwhile; the sub-scale enters where pairs are widened;
 *  8 bits: the weight's sign moves to the activation, which is never -128; |-128| = 128 is right as an unsigned byte,
 *          and a pair is at most 2 * 128 * 127 = 32512.
 * An offset left in w (8, 16) is taken off as offset * sum(q), which binary32 holds exactly.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <stdalign.h>

#include "kernel/gemm_quads.h"

enum {
    HALF = SL_HALF_PANEL,
    ROWS = 4, /* share the loads of a group's weights */
    PART = 4  /* quads: half a group's elements */
};

/* The rows of a register block. */
typedef struct row_block {
    const uint8_t *row[ROWS];
    size_t n; /* a constant where it is used */
} row_block;

AVX2_INLINE row_block rows_from(const sl_panel_rows *in, size_t first, size_t n)
{
    row_block b = {.n = n};
    for (size_t r = 0; r < n; r++)
        b.row[r] = in->rows + (first + r) * in->stride;
    return b;
}

/* Four products an output, added in pairs; q has 128 added where w is signed. */
AVX2_INLINE __m256i pairs_of(__m256i w, __m256i q, sl_packing p)
{
    return p.subscales ? _mm256_maddubs_epi16(q, w) : _mm256_maddubs_epi16(w, q);
}

/* acc[half h] += the product of a group. */
AVX2_INLINE void fold(float *acc, __m256i dot, const float *ws, const float *mw, __m256 scale, __m256 sum, sl_packing p)
{
    __m256 value = _mm256_cvtepi32_ps(dot);
    if (p.offset != 0.0f)
        value = _mm256_fmadd_ps(sum, _mm256_set1_ps(-p.offset), value);
    __m256 to = _mm256_fmadd_ps(value, _mm256_mul_ps(_mm256_load_ps(ws), scale), _mm256_load_ps(acc));
    if (p.minimum)
        to = _mm256_fmadd_ps(_mm256_load_ps(mw), _mm256_mul_ps(scale, sum), to);
    _mm256_store_ps(acc, to);
}

/* ------------------------------------------------------------------------------------------------------------
 * Decoded blocks: many rows. */

/* Adds a quad in 16 bits, for each row. Compilers would reorder these sums until they no longer fit the registers; not
 * across the empty statement. Hence a step a call, too: a loop might not be unrolled. */
AVX2_INLINE void add_quad(__m256i s[ROWS][2], const uint8_t (*w)[SL_HALF_BYTES], const row_block *b, size_t q_off,
                          sl_packing p)
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
AVX2_INLINE void add_part(__m256i s[ROWS][2], const sl_panel_block *w, size_t at, size_t part, const row_block *b,
                          size_t q_off, sl_packing p)
{
    const uint8_t(*quads)[2][SL_HALF_BYTES] = w->w[at] + part * PART;
    q_off += part * PART * 4;
    for (size_t r = 0; r < b->n; r++)
        for (size_t h = 0; h < 2; h++)
            if (p.subscales)
                s[r][h] = sl_load_256(w->start[at][part][h]);
            else if (part == 0 || p.bits == 5)
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

/* n rows from r0 on, n a constant up to ROWS. */
AVX2_INLINE void block_rows(float (*acc)[SL_PANEL], const sl_panel_block *w, size_t first, size_t n_groups,
                            const sl_panel_rows *in, size_t r0, size_t n, sl_packing p)
{
    const row_block b = rows_from(in, r0, n);
    for (size_t at = 0; at < n_groups; at++) {
        const sl_group_off off = sl_group_off_of(in, first + at);
        __m256i s[ROWS][2], dot[ROWS][2];
        add_part(s, w, at, 0, &b, off.q, p);
        for (size_t r = 0; r < n && p.bits != 4; r++)
            for (size_t h = 0; h < 2; h++)
                dot[r][h] = widened(s[r][h], w, at, 0, h, p);
        add_part(s, w, at, 1, &b, off.q, p);
        for (size_t r = 0; r < n; r++) {
            __m256 scale = sl_broadcast_float(b.row[r] + off.scale), sum = sl_broadcast_float(b.row[r] + off.sum);
            for (size_t h = 0; h < 2; h++) {
                __m256i wide = widened(s[r][h], w, at, 1, h, p);
                wide = p.bits == 4 ? wide : _mm256_add_epi32(dot[r][h], wide);
                fold(acc[r0 + r] + h * HALF, wide, w->heads.ws[at][h], w->heads.mw[at][h], scale, sum, p);
            }
        }
    }
}

AVX2_INLINE void block_all(float (*acc)[SL_PANEL], const sl_panel_block *w, size_t first, size_t n,
                           const sl_panel_rows *in, sl_packing p)
{
    size_t r = 0;
    for (; r + ROWS <= in->n; r += ROWS)
        block_rows(acc, w, first, n, in, r, ROWS, p);
    if (in->n - r == 3)
        block_rows(acc, w, first, n, in, r, 3, p);
    if (in->n - r == 2)
        block_rows(acc, w, first, n, in, r, 2, p);
    if (in->n - r == 1)
        block_rows(acc, w, first, n, in, r, 1, p);
}

/* ------------------------------------------------------------------------------------------------------------
 * Packed groups: a few rows. */

/* Half h of a group, decoded, for one row's group at q. */
AVX2_INLINE __m256i few_dot(const __m256i w[SL_QUADS], const __m256i start[2], const __m256i sub[2], const uint8_t *q,
                            sl_packing p)
{
    __m256i s = p.subscales ? start[0] : _mm256_setzero_si256(), dot = s;
    for (size_t i = 0; i < SL_QUADS; i++) {
        if (i == PART && p.bits != 4) {
            dot = _mm256_madd_epi16(s, p.subscales ? sub[0] : _mm256_set1_epi16(1));
            s = p.subscales ? start[1] : _mm256_setzero_si256();
        }
        s = _mm256_add_epi16(s, pairs_of(w[i], sl_broadcast_quad(q + 4 * i), p));
        __asm__("" : "+x"(s)); /* as in add_quad */
    }
    s = _mm256_madd_epi16(s, p.subscales ? sub[1] : _mm256_set1_epi16(1));
    return p.bits == 4 ? s : _mm256_add_epi32(dot, s);
}

/* n_rows is a constant up to SL_PANEL_FEW. */
AVX2_INLINE void few_block(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,
                           const sl_panel_rows *in, size_t n_rows, sl_wtype type)
{
    const sl_packing p = sl_packing_of(type);
    alignas(64) sl_panel_heads heads;
    sl_heads_of(&heads, packed, n, p);
    for (size_t at = 0; at < n; at++) {
        const sl_group_off off = sl_group_off_of(in, first + at);
        uint8_t flipped[SL_PANEL_FEW][SL_GROUP];
        for (size_t r = 0; p.subscales && r < n_rows; r++)
            sl_flip_group(flipped[r], in->rows + r * in->stride + off.q);
        sl_prefetch_ahead(packed, at, type);
        for (size_t h = 0; h < 2; h++) {
            __m256i w[SL_QUADS], start[2], sub[2];
            for (size_t i = 0; i < SL_QUADS / 2; i++)
                sl_quad_pair(w + 2 * i, packed + at * sl_packing_step(p), i, h, p);
            for (size_t part = 0; part < 2; part++)
                start[part] = sub[part] = _mm256_setzero_si256();
            if (p.subscales) {
                sl_subs_of(sub, packed, at, h, p);
                for (size_t part = 0; part < 2; part++) {
                    start[part] = sl_start_pairs(w + part * PART);
                    sub[part] = sl_twice_16(sub[part]);
                }
            }
            for (size_t r = 0; r < n_rows; r++) {
                const uint8_t *row = in->rows + r * in->stride, *q = p.subscales ? flipped[r] : row + off.q;
                fold(acc[r] + h * HALF, few_dot(w, start, sub, q, p), heads.ws[at][h], heads.mw[at][h],
                     sl_broadcast_float(row + off.scale), sl_broadcast_float(row + off.sum), p);
            }
        }
    }
}

AVX2_INLINE void few_all(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n, const sl_panel_rows *in,
                         sl_wtype type)
{
    for (size_t g = 0; g < n; g += SL_PANEL_GROUPS) {
        size_t left = n - g < SL_PANEL_GROUPS ? n - g : SL_PANEL_GROUPS;
        const uint8_t *at = packed + g * sl_packing_group_bytes(type);
        if (in->n == 1)
            few_block(acc, at, first + g, left, in, 1, type);
        else if (in->n == 2)
            few_block(acc, at, first + g, left, in, 2, type);
        else
            few_block(acc, at, first + g, left, in, 3, type);
    }
}

#define GEMM_DECODED(name, NAME, decoder)                                                                              \
    AVX2 static void block_##name(float (*acc)[SL_PANEL], const sl_panel_block *w, size_t first, size_t n,             \
                                  const sl_panel_rows *in)                                                             \
    {                                                                                                                  \
        block_all(acc, w, first, n, in, sl_packing_of(SL_WTYPE_##NAME));                                               \
    }                                                                                                                  \
    AVX2 static void few_##name(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,                 \
                                const sl_panel_rows *in)                                                               \
    {                                                                                                                  \
        few_all(acc, packed, first, n, in, SL_WTYPE_##NAME);                                                           \
    }                                                                                                                  \
    void sl_gemm_##name##_avx2(const sl_gemm_args *args)                                                               \
    {                                                                                                                  \
        sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_##NAME, few_##name, decoder, block_##name});                     \
    }

GEMM_DECODED(q4_0, Q4_0, sl_panel_decode_q4_0)
GEMM_DECODED(q4_1, Q4_1, sl_panel_decode_q4_1)
GEMM_DECODED(q5_0, Q5_0, sl_panel_decode_q5_0)
GEMM_DECODED(q5_1, Q5_1, sl_panel_decode_q5_1)
GEMM_DECODED(q4_k, Q4_K, sl_panel_decode_q4_k)
GEMM_DECODED(q5_k, Q5_K, sl_panel_decode_q5_k)
GEMM_DECODED(q6_k, Q6_K, sl_panel_decode_q6_k_pairs)

/* ------------------------------------------------------------------------------------------------------------
 * Q8_0: nothing to decode. */

AVX2_INLINE __m256i quad_sums(__m256i size, __m256i w, __m256i q)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(q, w)), _mm256_set1_epi16(1));
}

AVX2_INLINE void add_quad_q8(__m256i dot[ROWS][2], const uint8_t *w, const row_block *b, size_t q_off)
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
AVX2_INLINE void add_part_q8(__m256i dot[ROWS][2], const uint8_t *w, const row_block *b, size_t q_off)
{
    add_quad_q8(dot, w, b, q_off);
    add_quad_q8(dot, w + SL_QUAD_BYTES, b, q_off + 4);
    add_quad_q8(dot, w + 2 * SL_QUAD_BYTES, b, q_off + 8);
    add_quad_q8(dot, w + 3 * SL_QUAD_BYTES, b, q_off + 12);
}

/* n rows from r0 on, n a constant up to ROWS. */
AVX2_INLINE void rows_q8(float (*acc)[SL_PANEL], const uint8_t *group, size_t first, size_t n_groups,
                         const sl_panel_rows *in, size_t r0, size_t n)
{
    const row_block b = rows_from(in, r0, n);
    for (size_t g = first; g < first + n_groups; g++, group += SL_Q8_BYTES) {
        const sl_group_off off = sl_group_off_of(in, g);
        __m256i dot[ROWS][2];
        for (size_t r = 0; r < n; r++)
            dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        for (size_t line = 0; n == 1 && line < SL_Q8_BYTES; line += 64)
            _mm_prefetch((const char *)((uintptr_t)group + SL_Q8_AHEAD + line), _MM_HINT_T0);
        add_part_q8(dot, group, &b, off.q);
        add_part_q8(dot, group + PART * SL_QUAD_BYTES, &b, off.q + PART * 4);
        __m256 d[2] = {sl_load_halves(group + SL_Q8_VALUES), sl_load_halves(group + SL_Q8_VALUES + SL_PANEL)};
        for (size_t r = 0; r < n; r++) {
            __m256 scale = sl_broadcast_float(b.row[r] + off.scale);
            for (size_t h = 0; h < 2; h++) {
                float *at = acc[r0 + r] + h * HALF;
                __m256 value = _mm256_cvtepi32_ps(dot[r][h]);
                _mm256_store_ps(at, _mm256_fmadd_ps(value, _mm256_mul_ps(d[h], scale), _mm256_load_ps(at)));
            }
        }
    }
}

AVX2 static void packed_q8_0(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,
                             const sl_panel_rows *in)
{
    size_t r = 0;
    for (; r + ROWS <= in->n; r += ROWS)
        rows_q8(acc, packed, first, n, in, r, ROWS);
    if (in->n - r == 3)
        rows_q8(acc, packed, first, n, in, r, 3);
    if (in->n - r == 2)
        rows_q8(acc, packed, first, n, in, r, 2);
    if (in->n - r == 1)
        rows_q8(acc, packed, first, n, in, r, 1);
}

void sl_gemm_q8_0_avx2(const sl_gemm_args *args)
{
    sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_Q8_0, packed_q8_0, NULL, NULL});
}

#endif
