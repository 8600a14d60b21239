/* Projections with quantised weights for AVX2 with AVX-VNNI: the bits of gemm_ref.c.
 * Lanes are outputs, a panel is two vectors; `vpdpbusd` multiplies four unsigned weights by four broadcast activation
 * bytes and adds them to a lane exactly. Sums start at the bits of 1.5 * 2^23: below 2^22 in magnitude, such a lane read
 * as binary32 is that number plus the sum, and one subtraction makes the exact float of it. The subtrahend also holds
 * what the weights' offset (8, 16, 128) adds: offset * sum(q). Integer conversion would take the ports of the products.
 * Q6_K: weights are signed, the activation gets 128 added, and sums start at -128 * the sum of w (gemm_panels.h).
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/avxvnni.h"
#include "kernel/gemm_panels.h"

#ifndef GEMM_ROWS
#define GEMM_ROWS 6
#endif

enum {
    HALF = SL_HALF_PANEL,
    ROWS = GEMM_ROWS, /* share the loads of a group's weights */
    PLANE = 4 * SL_PANEL,
    Q8_VALUES = 8 * PLANE,
    Q8_BYTES = Q8_VALUES + 2 * SL_PANEL,
    PREFETCH_BYTES = 2048,
    ROUND_BITS = 0x4b400000 /* 1.5 * 2^23 */
};

#define ROUND 12582912.0f

/* What differs between the types. */
typedef struct product_kind {
    float offset; /* left in w */
    bool packed;  /* Q8_0: bytes as they lie in the matrix */
    bool minimum, subscales;
} product_kind;

/* The rows of a register block. */
typedef struct row_block {
    const uint8_t *row; /* the first */
    const sl_panel_rows *in;
    size_t n;
} row_block;

AVXVNNI_INLINE __m256 scale_of(const row_block *b, size_t r, size_t g)
{
    return _mm256_broadcast_ss((const float *)(const void *)(b->row + r * b->in->stride) + g);
}

AVXVNNI_INLINE __m256 sum_of(const row_block *b, size_t r, size_t g)
{
    return _mm256_broadcast_ss((const float *)(const void *)(b->row + r * b->in->stride + b->in->sum_off) + g);
}

AVXVNNI_INLINE __m256i broadcast_quad(const row_block *b, size_t r, size_t g, size_t quad)
{
    int32_t value;
    memcpy(&value, b->row + r * b->in->stride + b->in->q_off + g * SL_GROUP + 4 * quad, sizeof value);
    return _mm256_set1_epi32(value);
}

AVXVNNI_INLINE __m256i load_256(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

/* A group's values and scales, decoded or packed. */
typedef struct group_at {
    const uint8_t *values; /* quads of PLANE bytes */
    const sl_panel_group *decoded;
} group_at;

AVXVNNI_INLINE __m256i quad_of(const group_at *at, size_t quad, size_t h, product_kind kind)
{
    __m256i w = load_256(at->values + quad * PLANE + h * 4 * HALF);
    return kind.packed ? _mm256_xor_si256(w, _mm256_set1_epi8(-128)) : w;
}

AVXVNNI_INLINE __m256 ws_of(const group_at *at, size_t h, product_kind kind)
{
    if (!kind.packed)
        return _mm256_load_ps(at->decoded->ws[h]);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(at->values + Q8_VALUES + h * 2 * HALF)));
}

/* dot += quads [first, first + n), lane by lane. Compilers may not reorder across the empty statement: the sums would no
 * longer fit the registers. */
AVXVNNI_INLINE void add_quads(__m256i dot[ROWS][2], const group_at *at, const row_block *b, size_t g, size_t first,
                              size_t n, product_kind kind)
{
    for (size_t i = first; i < first + n; i++) {
        __m256i w0 = quad_of(at, i, 0, kind), w1 = quad_of(at, i, 1, kind);
        for (size_t r = 0; r < b->n; r++) {
            __m256i q = broadcast_quad(b, r, g, i);
            if (kind.subscales) {
                q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
                dot[r][0] = _mm256_dpbusd_avx_epi32(dot[r][0], q, w0);
                dot[r][1] = _mm256_dpbusd_avx_epi32(dot[r][1], q, w1);
            } else {
                dot[r][0] = _mm256_dpbusd_avx_epi32(dot[r][0], w0, q);
                dot[r][1] = _mm256_dpbusd_avx_epi32(dot[r][1], w1, q);
            }
            __asm__("" : "+x"(dot[r][0]), "+x"(dot[r][1]));
        }
    }
}

AVXVNNI_INLINE void start_sums(__m256i dot[ROWS][2], size_t n, const __m256i start[2])
{
    for (size_t r = 0; r < n; r++)
        for (size_t h = 0; h < 2; h++)
            dot[r][h] = start[h];
}

/* The sum of a half of a Q6_K group, as float. */
AVXVNNI_INLINE __m256 sum_as_float(__m256i dot)
{
    return _mm256_sub_ps(_mm256_castsi256_ps(dot), _mm256_set1_ps(ROUND));
}

/* value[r][h], +0 before = the exact product of a group. */
AVXVNNI_INLINE void group_products(__m256 value[ROWS][2], const group_at *at, const row_block *b, size_t g,
                                   product_kind kind)
{
    __m256i dot[ROWS][2];
    const __m256i round = _mm256_set1_epi32(ROUND_BITS);
    if (!kind.subscales) {
        start_sums(dot, b->n, (const __m256i[2]){round, round});
        add_quads(dot, at, b, g, 0, SL_QUADS, kind);
        for (size_t r = 0; r < b->n; r++) {
            __m256 less = _mm256_set1_ps(ROUND);
            if (kind.offset != 0.0f)
                less = _mm256_fmadd_ps(sum_of(b, r, g), _mm256_set1_ps(kind.offset), less);
            for (size_t h = 0; h < 2; h++)
                value[r][h] = _mm256_sub_ps(_mm256_castsi256_ps(dot[r][h]), less);
        }
        return;
    }
    for (size_t part = 0; part < 2; part++) {
        const sl_panel_group *w = at->decoded;
        const __m256i start[2] = {_mm256_add_epi32(load_256(w->start[part][0]), round),
                                  _mm256_add_epi32(load_256(w->start[part][1]), round)};
        start_sums(dot, b->n, start);
        add_quads(dot, at, b, g, part * SL_QUADS / 2, SL_QUADS / 2, kind);
        for (size_t r = 0; r < b->n; r++)
            for (size_t h = 0; h < 2; h++) {
                __m256 sub = _mm256_castsi256_ps(load_256(w->sub[part][h])), sum = sum_as_float(dot[r][h]);
                /* also the first time onto the caller's +0: a product of -0 must not stay */
                value[r][h] = _mm256_fmadd_ps(sum, sub, value[r][h]);
            }
    }
}

/* The register block: b->n rows, a compile-time constant up to ROWS. */
AVXVNNI_INLINE void block_multiply(float (*acc)[SL_PANEL], const uint8_t *weights, size_t first, size_t n,
                                   const row_block *b, product_kind kind)
{
    size_t step = kind.packed ? Q8_BYTES : sizeof(sl_panel_group);
    for (size_t g = first; g < first + n; g++, weights += step) {
        const group_at at = {weights, (const sl_panel_group *)(const void *)weights};
        if (kind.packed && b->n == 1) /* the processor's own prefetch falls behind */
            for (size_t line = 0; line < Q8_BYTES; line += 64)
                _mm_prefetch((const char *)((uintptr_t)weights + PREFETCH_BYTES + line), _MM_HINT_T0);
        __m256 value[ROWS][2];
        for (size_t r = 0; r < b->n; r++)
            value[r][0] = value[r][1] = _mm256_setzero_ps();
        group_products(value, &at, b, g, kind);
        for (size_t h = 0; h < 2; h++) {
            __m256 ws = ws_of(&at, h, kind);
            for (size_t r = 0; r < b->n; r++) {
                float *to = acc[r] + h * HALF;
                __m256 scale = scale_of(b, r, g);
                __m256 total = _mm256_fmadd_ps(value[r][h], _mm256_mul_ps(ws, scale), _mm256_load_ps(to));
                if (kind.minimum)
                    total = _mm256_fmadd_ps(_mm256_load_ps(at.decoded->mw[h]), _mm256_mul_ps(scale, sum_of(b, r, g)),
                                            total);
                _mm256_store_ps(to, total);
            }
        }
    }
}

AVXVNNI_INLINE void rows_multiply(float (*acc)[SL_PANEL], const void *weights, size_t first, size_t n,
                                  const sl_panel_rows *in, product_kind kind)
{
    size_t r = 0;
    for (; r + ROWS <= in->n; r += ROWS)
        block_multiply(acc + r, weights, first, n, &(row_block){in->rows + r * in->stride, in, ROWS}, kind);
    const row_block left = {in->rows + r * in->stride, in, in->n - r};
    if (left.n >= 4) {
        block_multiply(acc + r, weights, first, n, &(row_block){left.row, in, 4}, kind);
        r += 4;
    }
    const uint8_t *row = in->rows + r * in->stride;
    if (in->n - r == 3)
        block_multiply(acc + r, weights, first, n, &(row_block){row, in, 3}, kind);
    if (in->n - r == 2)
        block_multiply(acc + r, weights, first, n, &(row_block){row, in, 2}, kind);
    if (in->n - r == 1)
        block_multiply(acc + r, weights, first, n, &(row_block){row, in, 1}, kind);
}

/* Of a type: its rows_multiply and its entry. */
#define GEMM_ENTRY(name, NAME, decoder, ...)                                                                           \
    AVXVNNI static void multiply_##name(float (*acc)[SL_PANEL], const void *weights, size_t first, size_t n,           \
                                        const sl_panel_rows *in)                                                       \
    {                                                                                                                  \
        rows_multiply(acc, weights, first, n, in, (product_kind){__VA_ARGS__});                                        \
    }                                                                                                                  \
    void sl_gemm_##name##_avxvnni(const sl_gemm_args *args)                                                            \
    {                                                                                                                  \
        sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_##NAME, decoder, multiply_##name});                              \
    }

GEMM_ENTRY(q8_0, Q8_0, NULL, .packed = true, .offset = 128.0f)
GEMM_ENTRY(q4_0, Q4_0, sl_panel_decode_q4_0, .offset = 8.0f)
GEMM_ENTRY(q4_1, Q4_1, sl_panel_decode_q4_1, .minimum = true)
GEMM_ENTRY(q5_0, Q5_0, sl_panel_decode_q5_0, .offset = 16.0f)
GEMM_ENTRY(q5_1, Q5_1, sl_panel_decode_q5_1, .minimum = true)
GEMM_ENTRY(q4_k, Q4_K, sl_panel_decode_q4_k, .minimum = true)
GEMM_ENTRY(q5_k, Q5_K, sl_panel_decode_q5_k, .minimum = true)
GEMM_ENTRY(q6_k, Q6_K, sl_panel_decode_q6_k_whole, .subscales = true)

#endif
