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

#include <string.h>

#include "kernel/avx2.h"
#include "kernel/gemm_panels.h"

enum {
    HALF = SL_HALF_PANEL,
    ROWS = 4, /* share the loads of a group's weights */
    PLANE = 4 * SL_PANEL,
    Q8_VALUES = 8 * PLANE,
    Q8_BYTES = Q8_VALUES + 2 * SL_PANEL,
    PREFETCH_BYTES = 2048
};

/* What differs between the decoded types. */
typedef struct product_kind {
    size_t chain; /* quads added in 16 bits */
    float offset; /* left in w */
    bool minimum, subscales;
} product_kind;

/* The rows of a register block. */
typedef struct row_block {
    const uint8_t *row; /* the first */
    const sl_panel_rows *in;
    size_t n;
} row_block;

AVX2_INLINE __m256 scale_of(const row_block *b, size_t r, size_t g)
{
    return _mm256_broadcast_ss((const float *)(const void *)(b->row + r * b->in->stride) + g);
}

AVX2_INLINE __m256 sum_of(const row_block *b, size_t r, size_t g)
{
    return _mm256_broadcast_ss((const float *)(const void *)(b->row + r * b->in->stride + b->in->sum_off) + g);
}

AVX2_INLINE __m256i broadcast_quad(const row_block *b, size_t r, size_t g, size_t quad)
{
    int32_t value;
    memcpy(&value, b->row + r * b->in->stride + b->in->q_off + g * SL_GROUP + 4 * quad, sizeof value);
    return _mm256_set1_epi32(value);
}

AVX2_INLINE __m256i load_256(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

/* Compilers reorder sums of integers until they no longer fit the registers; not across this. */
AVX2_INLINE void fix_order(__m256i s[2])
{
    __asm__("" : "+x"(s[0]), "+x"(s[1]));
}

/* 16-bit sums of `chain` quads from `first` on: two words an output. */
AVX2_INLINE void add_chain(__m256i s[ROWS][2], const sl_panel_group *w, const row_block *b, size_t g, size_t first,
                           product_kind kind)
{
    for (size_t r = 0; r < b->n; r++)
        for (size_t h = 0; h < 2; h++)
            s[r][h] = kind.subscales ? load_256(w->start[first / kind.chain][h]) : _mm256_setzero_si256();
    for (size_t i = first; i < first + kind.chain; i++) {
        __m256i w0 = load_256(w->w[i][0]), w1 = load_256(w->w[i][1]);
        for (size_t r = 0; r < b->n; r++) {
            __m256i q = broadcast_quad(b, r, g, i);
            if (kind.subscales)
                q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
            __m256i p0 = kind.subscales ? _mm256_maddubs_epi16(q, w0) : _mm256_maddubs_epi16(w0, q);
            __m256i p1 = kind.subscales ? _mm256_maddubs_epi16(q, w1) : _mm256_maddubs_epi16(w1, q);
            bool begins = i == first && !kind.subscales;
            s[r][0] = begins ? p0 : _mm256_add_epi16(s[r][0], p0);
            s[r][1] = begins ? p1 : _mm256_add_epi16(s[r][1], p1);
            fix_order(s[r]);
        }
    }
}

/* acc += the product of a group. */
AVX2_INLINE void fold(float *acc, __m256i dot, const sl_panel_group *w, size_t h, __m256 scale, __m256 sum,
                      product_kind kind)
{
    __m256 value = _mm256_cvtepi32_ps(dot);
    if (kind.offset != 0.0f)
        value = _mm256_fmadd_ps(sum, _mm256_set1_ps(-kind.offset), value);
    __m256 to = _mm256_fmadd_ps(value, _mm256_mul_ps(_mm256_load_ps(w->ws[h]), scale), _mm256_load_ps(acc + h * HALF));
    if (kind.minimum)
        to = _mm256_fmadd_ps(_mm256_load_ps(w->mw[h]), _mm256_mul_ps(scale, sum), to);
    _mm256_store_ps(acc + h * HALF, to);
}

/* The register block: b->n rows, a compile-time constant up to ROWS. */
AVX2_INLINE void block_multiply(float (*acc)[SL_PANEL], const sl_panel_group *w, size_t first, size_t n,
                                const row_block *b, product_kind kind)
{
    for (size_t g = first; g < first + n; g++, w++) {
        __m256i s[ROWS][2], dot[ROWS][2];
        for (size_t r = 0; r < b->n; r++)
            dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        for (size_t quad = 0; quad < SL_QUADS; quad += kind.chain) {
            add_chain(s, w, b, g, quad, kind);
            for (size_t r = 0; r < b->n; r++)
                for (size_t h = 0; h < 2; h++) {
                    __m256i by = kind.subscales ? load_256(w->sub[quad / kind.chain][h]) : _mm256_set1_epi16(1);
                    __m256i wide = _mm256_madd_epi16(s[r][h], by);
                    dot[r][h] = quad == 0 ? wide : _mm256_add_epi32(dot[r][h], wide);
                }
        }
        for (size_t r = 0; r < b->n; r++)
            for (size_t h = 0; h < 2; h++)
                fold(acc[r], dot[r][h], w, h, scale_of(b, r, g), sum_of(b, r, g), kind);
    }
}

AVX2_INLINE void rows_multiply(float (*acc)[SL_PANEL], const void *weights, size_t first, size_t n,
                               const sl_panel_rows *in, product_kind kind)
{
    size_t r = 0;
    for (; r + ROWS <= in->n; r += ROWS)
        block_multiply(acc + r, weights, first, n, &(row_block){in->rows + r * in->stride, in, ROWS}, kind);
    const uint8_t *row = in->rows + r * in->stride;
    if (in->n - r == 3)
        block_multiply(acc + r, weights, first, n, &(row_block){row, in, 3}, kind);
    if (in->n - r == 2)
        block_multiply(acc + r, weights, first, n, &(row_block){row, in, 2}, kind);
    if (in->n - r == 1)
        block_multiply(acc + r, weights, first, n, &(row_block){row, in, 1}, kind);
}

/* Of a type: its rows_multiply and its entry. */
#define GEMM_DECODED(name, NAME, decoder, ...)                                                                         \
    AVX2 static void multiply_##name(float (*acc)[SL_PANEL], const void *weights, size_t first, size_t n,              \
                                     const sl_panel_rows *in)                                                          \
    {                                                                                                                  \
        rows_multiply(acc, weights, first, n, in, (product_kind){__VA_ARGS__});                                        \
    }                                                                                                                  \
    void sl_gemm_##name##_avx2(const sl_gemm_args *args)                                                               \
    {                                                                                                                  \
        sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_##NAME, decoder, multiply_##name});                              \
    }

GEMM_DECODED(q4_0, Q4_0, sl_panel_decode_q4_0, .chain = 8, .offset = 8.0f)
GEMM_DECODED(q4_1, Q4_1, sl_panel_decode_q4_1, .chain = 8, .minimum = true)
GEMM_DECODED(q5_0, Q5_0, sl_panel_decode_q5_0, .chain = 4, .offset = 16.0f)
GEMM_DECODED(q5_1, Q5_1, sl_panel_decode_q5_1, .chain = 4, .minimum = true)
GEMM_DECODED(q4_k, Q4_K, sl_panel_decode_q4_k, .chain = 8, .minimum = true)
GEMM_DECODED(q5_k, Q5_K, sl_panel_decode_q5_k, .chain = 4, .minimum = true)
GEMM_DECODED(q6_k, Q6_K, sl_panel_decode_q6_k_pairs, .chain = 4, .subscales = true)

/* Q8_0, packed: the same register block. */
AVX2_INLINE void block_multiply_q8(float (*acc)[SL_PANEL], const uint8_t *group, size_t first, size_t n,
                                   const row_block *b)
{
    for (size_t g = first; g < first + n; g++, group += Q8_BYTES) {
        __m256i dot[ROWS][2];
        for (size_t r = 0; r < b->n; r++)
            dot[r][0] = dot[r][1] = _mm256_setzero_si256();
        if (b->n == 1) /* the processor's own prefetch falls behind */
            for (size_t line = 0; line < Q8_BYTES; line += 64)
                _mm_prefetch((const char *)((uintptr_t)group + PREFETCH_BYTES + line), _MM_HINT_T0);
        for (size_t i = 0; i < SL_QUADS; i++) {
            __m256i w0 = load_256(group + i * PLANE), w1 = load_256(group + i * PLANE + 4 * HALF);
            __m256i a0 = _mm256_abs_epi8(w0), a1 = _mm256_abs_epi8(w1);
            for (size_t r = 0; r < b->n; r++) {
                __m256i q = broadcast_quad(b, r, g, i);
                __m256i p0 = _mm256_maddubs_epi16(a0, _mm256_sign_epi8(q, w0));
                __m256i p1 = _mm256_maddubs_epi16(a1, _mm256_sign_epi8(q, w1));
                p0 = _mm256_madd_epi16(p0, _mm256_set1_epi16(1));
                p1 = _mm256_madd_epi16(p1, _mm256_set1_epi16(1));
                dot[r][0] = i == 0 ? p0 : _mm256_add_epi32(dot[r][0], p0);
                dot[r][1] = i == 0 ? p1 : _mm256_add_epi32(dot[r][1], p1);
                fix_order(dot[r]);
            }
        }
        for (size_t h = 0; h < 2; h++) {
            __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(group + Q8_VALUES + h * 2 * HALF)));
            for (size_t r = 0; r < b->n; r++) {
                float *at = acc[r] + h * HALF;
                __m256 scale = _mm256_mul_ps(d, scale_of(b, r, g));
                _mm256_store_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][h]), scale, _mm256_load_ps(at)));
            }
        }
    }
}

AVX2 static void multiply_q8_0(float (*acc)[SL_PANEL], const void *weights, size_t first, size_t n,
                               const sl_panel_rows *in)
{
    size_t r = 0;
    for (; r + ROWS <= in->n; r += ROWS)
        block_multiply_q8(acc + r, weights, first, n, &(row_block){in->rows + r * in->stride, in, ROWS});
    const uint8_t *row = in->rows + r * in->stride;
    if (in->n - r == 3)
        block_multiply_q8(acc + r, weights, first, n, &(row_block){row, in, 3});
    if (in->n - r == 2)
        block_multiply_q8(acc + r, weights, first, n, &(row_block){row, in, 2});
    if (in->n - r == 1)
        block_multiply_q8(acc + r, weights, first, n, &(row_block){row, in, 1});
}

void sl_gemm_q8_0_avx2(const sl_gemm_args *args)
{
    sl_gemm_panels(args, &(sl_panel_ops){SL_WTYPE_Q8_0, NULL, multiply_q8_0});
}

#endif
