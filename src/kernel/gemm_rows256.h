/* Projections of quantised weights in 256-bit registers, for whichever dot product the includer has: row blocks over
 * decoded weights, few rows over packed ones, the fold into the sums (the way through a matrix: gemm_panels.h). Lanes
 * are outputs, a panel is two vectors; four activation bytes are broadcast.
 * Whoever includes this says what the products are:
 *   LEVEL_NAME   avx2; LEVEL its target, BODY the same for inlined helpers; SUBS pairs or whole, the decoders' kind
 *   block_values the products of a decoded group as floats, offsets taken off: [row][half]
 *   few_starts   types with sub-scales: where the sums of half a panel's quads start, and the sub-scales as few_value
 *                wants them
 *   few_value    the product of half a panel's group for one row
 *   q8_values    the products of a group of signed bytes: of Q8_0, packed, or decoded
 * x86-64 only.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#ifndef SL_GEMM_ROWS256_H
#define SL_GEMM_ROWS256_H

#if defined(LEVEL_NAME) /* empty by itself */

#include <stdalign.h>

#include "kernel/gemm_quads.h"

/* acc[half h] += the product of a group. */
BODY void fold(float *acc, __m256 value, __m256 ws, const float *mw, __m256 scale, __m256 sum, bool minimum)
{
    __m256 to = _mm256_fmadd_ps(value, _mm256_mul_ps(ws, scale), _mm256_load_ps(acc));
    if (minimum)
        to = _mm256_fmadd_ps(_mm256_load_ps(mw), _mm256_mul_ps(scale, sum), to);
    _mm256_store_ps(acc, to);
}

/* Calls fn(..., first row, number of rows) for all rows, the number a constant up to SL_BLOCK_ROWS. */
#define EACH_ROW_BLOCK(n_all, fn, ...)                                                                                 \
    size_t row_ = 0;                                                                                                   \
    for (; row_ + SL_BLOCK_ROWS <= (n_all); row_ += SL_BLOCK_ROWS)                                                     \
        fn(__VA_ARGS__, row_, SL_BLOCK_ROWS);                                                                          \
    if ((n_all)-row_ == 3)                                                                                             \
        fn(__VA_ARGS__, row_, 3);                                                                                      \
    if ((n_all)-row_ == 2)                                                                                             \
        fn(__VA_ARGS__, row_, 2);                                                                                      \
    if ((n_all)-row_ == 1)                                                                                             \
        fn(__VA_ARGS__, row_, 1);

/* ------------------------------------------------------------------------------------------------------------
 * Decoded blocks: many rows. */

BODY void block_rows(float (*acc)[SL_PANEL], const sl_panel_block *w, size_t first, size_t n_groups,
                     const sl_panel_rows *in, sl_packing p, size_t r0, size_t n)
{
    const sl_row_block b = sl_row_block_from(in, r0, n);
    for (size_t at = 0; at < n_groups; at++) {
        const sl_group_off off = sl_group_off_of(in, first + at);
        __m256 value[SL_BLOCK_ROWS][2];
        int32_t half_sums[SL_BLOCK_ROWS];
        if (p.wide)
            q8_values(value, w->w[at][0][0], &b, off);
        else
            block_values(value, w, at, &b, off, p);
        if (p.minimum && p.subscales)
            sl_half_sums(half_sums, &b, off.q);
        for (size_t r = 0; r < n; r++) {
            const __m256 scale = sl_broadcast_float(b.row[r] + off.scale);
            for (size_t h = 0; h < 2; h++) {
                const __m256 sum = p.minimum && p.subscales
                                       ? sl_minimum_sum(half_sums[r], sl_load_256(w->minimums[at][h]))
                                       : sl_broadcast_float(b.row[r] + off.sum);
                fold(acc[r0 + r] + h * SL_HALF_PANEL, value[r][h], _mm256_load_ps(w->heads.ws[at][h]),
                     w->heads.mw[at][h], scale, sum, p.minimum);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------
 * Packed groups: a few rows. */

/* n_rows is a constant up to SL_PANEL_FEW. */
BODY void few_block(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n, const sl_panel_rows *in,
                    size_t n_rows, sl_wtype type)
{
    const sl_packing p = sl_packing_of(type);
    const sl_row_block b = sl_row_block_from(in, 0, n_rows);
    alignas(64) sl_panel_heads heads;
    sl_heads_of(&heads, packed, n, p);
    for (size_t at = 0; at < n; at++) {
        const sl_group_off off = sl_group_off_of(in, first + at);
        uint8_t flipped[SL_PANEL_FEW][SL_GROUP];
        int32_t half_sums[SL_BLOCK_ROWS];
        for (size_t r = 0; p.subscales && r < n_rows; r++)
            sl_flip_group(flipped[r], b.row[r] + off.q);
        if (p.minimum && p.subscales)
            sl_half_sums(half_sums, &b, off.q);
        sl_prefetch_ahead(packed, at, type);
        for (size_t h = 0; h < 2; h++) {
            __m256i w[SL_QUADS], start[2], sub[2];
            for (size_t i = 0; i < SL_QUADS / 2; i++)
                sl_quad_pair(w + 2 * i, packed + at * sl_packing_step(p), i, h, p);
            for (size_t part = 0; part < 2; part++)
                start[part] = sub[part] = _mm256_setzero_si256();
            if (p.subscales) {
                sl_subs_of(sub, packed, at, h, p);
                few_starts(start, sub, w);
            }
            for (size_t r = 0; r < n_rows; r++) {
                const uint8_t *q = p.subscales ? flipped[r] : b.row[r] + off.q;
                const __m256 scale = sl_broadcast_float(b.row[r] + off.scale);
                __m256 sum = sl_broadcast_float(b.row[r] + off.sum);
                const __m256 value = few_value(w, start, sub, q, sum, p);
                if (p.minimum && p.subscales)
                    sum = sl_minimum_sum(half_sums[r], sl_minimums_of(packed, at, h, p));
                fold(acc[r] + h * SL_HALF_PANEL, value, _mm256_load_ps(heads.ws[at][h]), heads.mw[at][h], scale, sum,
                     p.minimum);
            }
        }
    }
}

BODY void few_all(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n, const sl_panel_rows *in,
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

#define ENTRY_OF(name, level) sl_gemm_##name##_##level
#define ENTRY(name, level) ENTRY_OF(name, level) /* with level replaced */
#define DECODER_OF(name, kind) sl_panel_decode_##name##_##kind
#define DECODER(name, kind) DECODER_OF(name, kind)
#define GEMM_DECODED(name, NAME, decoder)                                                                              \
    LEVEL static void block_##name(float (*acc)[SL_PANEL], const sl_panel_block *w, size_t first, size_t n,            \
                                   const sl_panel_rows *in)                                                            \
    {                                                                                                                  \
        EACH_ROW_BLOCK(in->n, block_rows, acc, w, first, n, in, sl_packing_of(SL_WTYPE_##NAME))                        \
    }                                                                                                                  \
    LEVEL static void few_##name(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,                \
                                 const sl_panel_rows *in)                                                              \
    {                                                                                                                  \
        few_all(acc, packed, first, n, in, SL_WTYPE_##NAME);                                                           \
    }                                                                                                                  \
    void ENTRY(name, LEVEL_NAME)(const sl_gemm_args *args)                                                             \
    {                                                                                                                  \
        sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_##NAME, few_##name, decoder, block_##name});                     \
    }

GEMM_DECODED(q4_0, Q4_0, sl_panel_decode_q4_0)
GEMM_DECODED(q4_1, Q4_1, sl_panel_decode_q4_1)
GEMM_DECODED(q5_0, Q5_0, sl_panel_decode_q5_0)
GEMM_DECODED(q5_1, Q5_1, sl_panel_decode_q5_1)
GEMM_DECODED(q4_k, Q4_K, sl_panel_decode_q4_k)
GEMM_DECODED(q5_k, Q5_K, sl_panel_decode_q5_k)
GEMM_DECODED(q6_k, Q6_K, DECODER(q6_k, SUBS))
GEMM_DECODED(q2_k, Q2_K, DECODER(q2_k, SUBS))
GEMM_DECODED(q3_k, Q3_K, DECODER(q3_k, SUBS))
GEMM_DECODED(iq4_nl, IQ4_NL, sl_panel_decode_iq4_nl)
GEMM_DECODED(iq4_xs, IQ4_XS, sl_panel_decode_iq4_xs)
GEMM_DECODED(mxfp4, MXFP4, sl_panel_decode_mxfp4)

/* ------------------------------------------------------------------------------------------------------------
 * Q8_0: any number of rows from packed groups. */

BODY void rows_q8(float (*acc)[SL_PANEL], const uint8_t *group, size_t first, size_t n_groups,
                  const sl_panel_rows *in, size_t r0, size_t n)
{
    const sl_row_block b = sl_row_block_from(in, r0, n);
    for (size_t g = first; g < first + n_groups; g++, group += SL_Q8_BYTES) {
        const sl_group_off off = sl_group_off_of(in, g);
        __m256 value[SL_BLOCK_ROWS][2];
        for (size_t line = 0; n == 1 && line < SL_Q8_BYTES; line += 64)
            _mm_prefetch((const char *)((uintptr_t)group + SL_Q8_AHEAD + line), _MM_HINT_T0);
        q8_values(value, group, &b, off);
        const __m256 d[2] = {sl_load_halves(group + SL_Q8_VALUES), sl_load_halves(group + SL_Q8_VALUES + SL_PANEL)};
        for (size_t r = 0; r < n; r++) {
            const __m256 scale = sl_broadcast_float(b.row[r] + off.scale);
            for (size_t h = 0; h < 2; h++)
                fold(acc[r0 + r] + h * SL_HALF_PANEL, value[r][h], d[h], NULL, scale, scale, false);
        }
    }
}

LEVEL static void packed_q8_0(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,
                              const sl_panel_rows *in)
{
    EACH_ROW_BLOCK(in->n, rows_q8, acc, packed, first, n, in)
}

void ENTRY(q8_0, LEVEL_NAME)(const sl_gemm_args *args)
{
    sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_Q8_0, packed_q8_0, NULL, NULL});
}

#endif
#endif
