/* Projections with quantised weights for AVX2 with AVX-VNNI: the bits of gemm_ref.c.
 * Lanes are outputs, a panel is two vectors; `vpdpbusd` multiplies four unsigned weights by four broadcast activation
 * bytes and adds them to a lane exactly. Sums start at the bits of 1.5 * 2^23: below 2^22 in magnitude, such a lane,
 * read as binary32, is that number plus the sum, and one subtraction makes the exact float of it. The subtrahend also
 * holds what the weights' offset (8, 16, 128) adds: offset * sum(q). Integer conversion would take the products' ports.
 * Q6_K: weights are signed, the activation gets 128 added, and sums start at -128 * the sum of w (gemm_panels.h).
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <stdalign.h>

#include "kernel/avxvnni.h"
#include "kernel/gemm_quads.h"

enum {
    HALF = SL_HALF_PANEL,
    ROWS = 4, /* share the loads of a group's weights */
    PART = 4, /* quads: half a group's elements */
    ROUND_BITS = 0x4b400000
};

#define ROUND 12582912.0f /* 1.5 * 2^23 */

/* The rows of a register block. */
typedef struct row_block {
    const uint8_t *row[ROWS];
    size_t n; /* a constant where it is used */
} row_block;

AVXVNNI_INLINE row_block rows_from(const sl_panel_rows *in, size_t first, size_t n)
{
    row_block b = {.n = n};
    for (size_t r = 0; r < n; r++)
        b.row[r] = in->rows + (first + r) * in->stride;
    return b;
}

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

/* The sum of a Q6_K group from those of its halves. The first is added to +0: a product of -0 must not stay. */
AVXVNNI_INLINE __m256 float_of_parts(__m256i dot0, __m256i dot1, __m256 sub0, __m256 sub1)
{
    const __m256 round = _mm256_set1_ps(ROUND);
    __m256 value = _mm256_fmadd_ps(float_of(dot0, round), sub0, _mm256_setzero_ps());
    return _mm256_fmadd_ps(float_of(dot1, round), sub1, value);
}

/* acc[half h] += the product of a group. */
AVXVNNI_INLINE void fold(float *acc, __m256 value, __m256 ws, const float *mw, __m256 scale, __m256 sum, sl_packing p)
{
    __m256 to = _mm256_fmadd_ps(value, _mm256_mul_ps(ws, scale), _mm256_load_ps(acc));
    if (p.minimum)
        to = _mm256_fmadd_ps(_mm256_load_ps(mw), _mm256_mul_ps(scale, sum), to);
    _mm256_store_ps(acc, to);
}

AVXVNNI_INLINE void start_at(__m256i dot[ROWS][2], size_t n, __m256i start0, __m256i start1)
{
    for (size_t r = 0; r < n; r++) {
        dot[r][0] = _mm256_add_epi32(start0, _mm256_set1_epi32(ROUND_BITS));
        dot[r][1] = _mm256_add_epi32(start1, _mm256_set1_epi32(ROUND_BITS));
    }
}

/* One quad for each row. Compilers would reorder these sums until they no longer fit the registers; not across the
 * empty statement. Hence a step a call, too: a loop might not be unrolled. */
AVXVNNI_INLINE void add_quad(__m256i dot[ROWS][2], __m256i w0, __m256i w1, const row_block *b, size_t q_off,
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

/* ------------------------------------------------------------------------------------------------------------
 * Decoded blocks: many rows. */

/* Half of a group's elements. */
AVXVNNI_INLINE void add_part(__m256i dot[ROWS][2], const uint8_t (*w)[2][SL_HALF_BYTES], const row_block *b,
                             size_t q_off, sl_packing p)
{
    add_quad(dot, sl_load_256(w[0][0]), sl_load_256(w[0][1]), b, q_off, p);
    add_quad(dot, sl_load_256(w[1][0]), sl_load_256(w[1][1]), b, q_off + 4, p);
    add_quad(dot, sl_load_256(w[2][0]), sl_load_256(w[2][1]), b, q_off + 8, p);
    add_quad(dot, sl_load_256(w[3][0]), sl_load_256(w[3][1]), b, q_off + 12, p);
}

/* The sums of group `at` for each row: of all of it in dot[0], or of each part where there are sub-scales. */
AVXVNNI_INLINE void add_group(__m256i dot[2][ROWS][2], const sl_panel_block *w, size_t at, const row_block *b,
                              size_t q_off, sl_packing p)
{
    const __m256i zero = _mm256_setzero_si256();
    if (!p.subscales) {
        start_at(dot[0], b->n, zero, zero);
        add_part(dot[0], w->w[at], b, q_off, p);
        add_part(dot[0], w->w[at] + PART, b, q_off + 4 * PART, p);
        return;
    }
    start_at(dot[0], b->n, sl_load_256(w->start[at][0][0]), sl_load_256(w->start[at][0][1]));
    add_part(dot[0], w->w[at], b, q_off, p);
    start_at(dot[1], b->n, sl_load_256(w->start[at][1][0]), sl_load_256(w->start[at][1][1]));
    add_part(dot[1], w->w[at] + PART, b, q_off + 4 * PART, p);
}

AVXVNNI_INLINE __m256 sub_of(const sl_panel_block *w, size_t at, size_t part, size_t h)
{
    return _mm256_load_ps((const float *)(const void *)w->sub[at][part][h]);
}

/* n rows from r0 on, n a constant up to ROWS. */
AVXVNNI_INLINE void block_rows(float (*acc)[SL_PANEL], const sl_panel_block *w, size_t first, size_t n_groups,
                               const sl_panel_rows *in, size_t r0, size_t n, sl_packing p)
{
    const row_block b = rows_from(in, r0, n);
    for (size_t at = 0; at < n_groups; at++) {
        const sl_group_off off = sl_group_off_of(in, first + at);
        __m256i dot[2][ROWS][2];
        add_group(dot, w, at, &b, off.q, p);
        for (size_t r = 0; r < n; r++) {
            __m256 scale = sl_broadcast_float(b.row[r] + off.scale), sum = sl_broadcast_float(b.row[r] + off.sum);
            __m256 less = subtrahend(sum, p.offset);
            for (size_t h = 0; h < 2; h++) {
                __m256 value = p.subscales ? float_of_parts(dot[0][r][h], dot[1][r][h], sub_of(w, at, 0, h),
                                                            sub_of(w, at, 1, h))
                                           : float_of(dot[0][r][h], less);
                fold(acc[r0 + r] + h * HALF, value, _mm256_load_ps(w->heads.ws[at][h]), w->heads.mw[at][h], scale, sum,
                     p);
            }
        }
    }
}

AVXVNNI_INLINE void block_all(float (*acc)[SL_PANEL], const sl_panel_block *w, size_t first, size_t n,
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

/* Half h of a group, decoded, for one row's group at q. Two sums at a time: the products of one would wait for each
 * other. */
AVXVNNI_INLINE __m256 few_value(const __m256i w[SL_QUADS], const __m256i start[2], const __m256i sub[2],
                                const uint8_t *q, __m256 sum, sl_packing p)
{
    const __m256i round = _mm256_set1_epi32(ROUND_BITS);
    __m256i dot0 = p.subscales ? _mm256_add_epi32(start[0], round) : round;
    __m256i dot1 = p.subscales ? _mm256_add_epi32(start[1], round) : _mm256_setzero_si256();
    for (size_t i = 0; i < PART; i++) {
        dot0 = add_products(dot0, w[i], sl_broadcast_quad(q + 4 * i), p);
        dot1 = add_products(dot1, w[PART + i], sl_broadcast_quad(q + 4 * (PART + i)), p);
    }
    if (p.subscales)
        return float_of_parts(dot0, dot1, _mm256_cvtepi32_ps(sub[0]), _mm256_cvtepi32_ps(sub[1]));
    return float_of(_mm256_add_epi32(dot0, dot1), subtrahend(sum, p.offset));
}

/* n_rows is a constant up to SL_PANEL_FEW. */
AVXVNNI_INLINE void few_block(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,
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
                start[0] = sl_start_whole(w);
                start[1] = sl_start_whole(w + PART);
            }
            for (size_t r = 0; r < n_rows; r++) {
                const uint8_t *row = in->rows + r * in->stride, *q = p.subscales ? flipped[r] : row + off.q;
                __m256 scale = sl_broadcast_float(row + off.scale), sum = sl_broadcast_float(row + off.sum);
                fold(acc[r] + h * HALF, few_value(w, start, sub, q, sum, p), _mm256_load_ps(heads.ws[at][h]),
                     heads.mw[at][h], scale, sum, p);
            }
        }
    }
}

AVXVNNI_INLINE void few_all(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,
                            const sl_panel_rows *in, sl_wtype type)
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
    AVXVNNI static void block_##name(float (*acc)[SL_PANEL], const sl_panel_block *w, size_t first, size_t n,          \
                                     const sl_panel_rows *in)                                                          \
    {                                                                                                                  \
        block_all(acc, w, first, n, in, sl_packing_of(SL_WTYPE_##NAME));                                               \
    }                                                                                                                  \
    AVXVNNI static void few_##name(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,              \
                                   const sl_panel_rows *in)                                                            \
    {                                                                                                                  \
        few_all(acc, packed, first, n, in, SL_WTYPE_##NAME);                                                           \
    }                                                                                                                  \
    void sl_gemm_##name##_avxvnni(const sl_gemm_args *args)                                                            \
    {                                                                                                                  \
        sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_##NAME, few_##name, decoder, block_##name});                     \
    }

GEMM_DECODED(q4_0, Q4_0, sl_panel_decode_q4_0)
GEMM_DECODED(q4_1, Q4_1, sl_panel_decode_q4_1)
GEMM_DECODED(q5_0, Q5_0, sl_panel_decode_q5_0)
GEMM_DECODED(q5_1, Q5_1, sl_panel_decode_q5_1)
GEMM_DECODED(q4_k, Q4_K, sl_panel_decode_q4_k)
GEMM_DECODED(q5_k, Q5_K, sl_panel_decode_q5_k)
GEMM_DECODED(q6_k, Q6_K, sl_panel_decode_q6_k_whole)

/* ------------------------------------------------------------------------------------------------------------
 * Q8_0: nothing to decode but 128 to add. */

AVXVNNI_INLINE void add_quad_q8(__m256i dot[ROWS][2], const uint8_t *w, const row_block *b, size_t q_off)
{
    const __m256i flip = _mm256_set1_epi8(-128);
    __m256i w0 = _mm256_xor_si256(sl_load_256(w), flip), w1 = _mm256_xor_si256(sl_load_256(w + SL_HALF_BYTES), flip);
    add_quad(dot, w0, w1, b, q_off, (sl_packing){.bits = 8});
}

/* Four quads of a group. */
AVXVNNI_INLINE void add_part_q8(__m256i dot[ROWS][2], const uint8_t *w, const row_block *b, size_t q_off)
{
    add_quad_q8(dot, w, b, q_off);
    add_quad_q8(dot, w + SL_QUAD_BYTES, b, q_off + 4);
    add_quad_q8(dot, w + 2 * SL_QUAD_BYTES, b, q_off + 8);
    add_quad_q8(dot, w + 3 * SL_QUAD_BYTES, b, q_off + 12);
}

/* n rows from r0 on, n a constant up to ROWS. */
AVXVNNI_INLINE void rows_q8(float (*acc)[SL_PANEL], const uint8_t *group, size_t first, size_t n_groups,
                            const sl_panel_rows *in, size_t r0, size_t n)
{
    const row_block b = rows_from(in, r0, n);
    for (size_t g = first; g < first + n_groups; g++, group += SL_Q8_BYTES) {
        const sl_group_off off = sl_group_off_of(in, g);
        __m256i dot[ROWS][2];
        start_at(dot, n, _mm256_setzero_si256(), _mm256_setzero_si256());
        for (size_t line = 0; n == 1 && line < SL_Q8_BYTES; line += 64)
            _mm_prefetch((const char *)((uintptr_t)group + SL_Q8_AHEAD + line), _MM_HINT_T0);
        add_part_q8(dot, group, &b, off.q);
        add_part_q8(dot, group + PART * SL_QUAD_BYTES, &b, off.q + PART * 4);
        __m256 d[2] = {sl_load_halves(group + SL_Q8_VALUES), sl_load_halves(group + SL_Q8_VALUES + SL_PANEL)};
        for (size_t r = 0; r < n; r++) {
            __m256 scale = sl_broadcast_float(b.row[r] + off.scale), sum = sl_broadcast_float(b.row[r] + off.sum);
            __m256 less = subtrahend(sum, 128.0f);
            for (size_t h = 0; h < 2; h++)
                fold(acc[r0 + r] + h * HALF, float_of(dot[r][h], less), d[h], NULL, scale, sum,
                     (sl_packing){.bits = 8});
        }
    }
}

AVXVNNI static void packed_q8_0(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,
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

void sl_gemm_q8_0_avxvnni(const sl_gemm_args *args)
{
    sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_Q8_0, packed_q8_0, NULL, NULL});
}

#endif
