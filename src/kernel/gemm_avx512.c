/* Projections for AVX-512 with VNNI: the bits of gemm_ref.c.
 * Quantised types: a panel's sixteen outputs are the lanes; a group is eight `vpdpbusd`, unsigned weights by four
 * broadcast activation bytes. What was added to make weights unsigned (8 or 128) is subtracted as offset * sum(q),
 * which binary32 holds exactly. Rows go eight, four, two, one at a time: a group is decoded once for a block.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/avx512.h"

enum { ROW_BLOCK = 8, QUADS = 8, PLANE = 4 * SL_PANEL, Q4_VALUES = 4 * PLANE, Q8_VALUES = 8 * PLANE };

/* Where a row of quantised input keeps its parts; `rows` is the first of the block. */
typedef struct row_block {
    const uint8_t *rows;
    size_t stride, sum_off, q_off;
} row_block;

AVX512_INLINE __m512 broadcast_float(const uint8_t *row, size_t g)
{
    float value;
    memcpy(&value, row + g * sizeof value, sizeof value);
    return _mm512_set1_ps(value);
}

AVX512_INLINE __m512i broadcast_quad(const uint8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm512_set1_epi32(quad);
}

AVX512_INLINE __m512 load_halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

/* The eight quads of a group as unsigned bytes. */
AVX512_INLINE void decode_group(__m512i w[QUADS], const uint8_t *group, sl_wtype type)
{
    if (type == SL_WTYPE_Q8_0) {
        for (size_t i = 0; i < QUADS; i++) /* w + 128 */
            w[i] = _mm512_xor_si512(_mm512_loadu_si512(group + i * PLANE), _mm512_set1_epi8(-128));
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    for (size_t i = 0; i < QUADS / 2; i++) {
        __m512i v = _mm512_loadu_si512(group + i * PLANE);
        w[2 * i] = _mm512_and_si512(v, low);
        w[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
}

/* One row's group added to its accumulator. */
AVX512_INLINE __m512 fold_group(__m512 acc, const __m512i w[QUADS], __m512 d, __m512 m, const row_block *in,
                                const uint8_t *row, size_t g, sl_wtype type)
{
    const uint8_t *q = row + in->q_off + g * SL_GROUP;
    __m512i dot = _mm512_setzero_si512();
    for (size_t i = 0; i < QUADS; i++)
        dot = _mm512_dpbusd_epi32(dot, w[i], broadcast_quad(q + 4 * i));
    __m512 scale = broadcast_float(row, g), sum = broadcast_float(row + in->sum_off, g);
    __m512 value = _mm512_cvtepi32_ps(dot);
    if (type == SL_WTYPE_Q8_0)
        value = _mm512_fmadd_ps(sum, _mm512_set1_ps(-128.0f), value);
    if (type == SL_WTYPE_Q4_0)
        value = _mm512_fmadd_ps(sum, _mm512_set1_ps(-8.0f), value);
    acc = _mm512_fmadd_ps(value, _mm512_mul_ps(d, scale), acc);
    if (type == SL_WTYPE_Q4_1)
        acc = _mm512_fmadd_ps(m, _mm512_mul_ps(scale, sum), acc);
    return acc;
}

/* A panel for n_rows rows, a compile-time constant up to ROW_BLOCK. */
AVX512_INLINE void panel_rows(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups,
                              const row_block *in, size_t n_rows, sl_wtype type)
{
    const size_t values = type == SL_WTYPE_Q8_0 ? Q8_VALUES : Q4_VALUES;
    const size_t group_bytes = values + (type == SL_WTYPE_Q4_1 ? 4u : 2u) * SL_PANEL;
    __m512 acc[ROW_BLOCK];
    for (size_t r = 0; r < n_rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *group = panel + g * group_bytes;
        __m512i w[QUADS];
        decode_group(w, group, type);
        __m512 d = load_halves(group + values);
        __m512 m = type == SL_WTYPE_Q4_1 ? load_halves(group + values + 2 * SL_PANEL) : d;
        for (size_t r = 0; r < n_rows; r++)
            acc[r] = fold_group(acc[r], w, d, m, in, in->rows + r * in->stride, g, type);
    }
    for (size_t r = 0; r < n_rows; r++)
        _mm512_storeu_ps(out + r * out_stride, acc[r]);
}

/* Whole panels here, a narrow last one by the reference. */
AVX512_INLINE void gemm_panels(const sl_gemm_args *args, sl_wtype type, sl_gemm_fn reference)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in), n_groups = args->n_in / SL_GROUP;
    size_t n_whole = args->n / SL_PANEL * SL_PANEL, stride = args->out_stride;
    row_block in = {NULL, sl_qrow_bytes(args->n_in), sl_qrow_sum_off(args->n_in), sl_qrow_q_off(args->n_in)};
    for (size_t o = args->first_out; o < args->first_out + n_whole; o += SL_PANEL) {
        const uint8_t *panel = (const uint8_t *)args->packed + o * row_bytes;
        size_t step;
        for (size_t r = 0; r < args->n_rows; r += step) {
            size_t left = args->n_rows - r;
            float *out = args->out + r * stride + o;
            in.rows = (const uint8_t *)args->qrows + r * in.stride;
            if (left >= 8)
                panel_rows(out, stride, panel, n_groups, &in, step = 8, type);
            else if (left >= 4)
                panel_rows(out, stride, panel, n_groups, &in, step = 4, type);
            else if (left >= 2)
                panel_rows(out, stride, panel, n_groups, &in, step = 2, type);
            else
                panel_rows(out, stride, panel, n_groups, &in, step = 1, type);
        }
    }
    if (n_whole == args->n)
        return;
    sl_gemm_args narrow = *args;
    narrow.first_out += n_whole;
    narrow.n -= n_whole;
    reference(&narrow);
}

AVX512 void sl_gemm_q8_0_avx512(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q8_0, sl_gemm_q8_0_ref);
}

AVX512 void sl_gemm_q4_0_avx512(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_0, sl_gemm_q4_0_ref);
}

AVX512 void sl_gemm_q4_1_avx512(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_1, sl_gemm_q4_1_ref);
}

/* ------------------------------------------------------------------------------------------------------------
 * Float weights: lanes are k mod 16, one vector an output and row. */

/* Sixteen weights from k on; those not in `mask` are not read. */
AVX512_INLINE __m512 load_weights(sl_wtype type, const uint8_t *row, size_t k, __mmask16 mask)
{
    if (type == SL_WTYPE_F32)
        return _mm512_maskz_loadu_ps(mask, row + 4 * k);
    __m256i bits = _mm256_maskz_loadu_epi16(mask, row + 2 * k);
    if (type == SL_WTYPE_F16)
        return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* t + (t+8), then +4, +2, +1. */
AVX512_INLINE float tree16(__m512 lanes)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* n_r rows by n_o outputs, compile-time constants up to 4. Absent elements leave their lanes alone: a product of
 * zeros would turn -0 into +0. */
AVX512_INLINE void float_block(const sl_gemm_args *args, sl_wtype type, size_t r0, size_t o0, size_t n_r, size_t n_o)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in);
    const uint8_t *w = (const uint8_t *)args->packed + o0 * row_bytes;
    const float *x = args->x + r0 * args->x_stride;
    __m512 acc[4][4];
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            acc[r][o] = _mm512_setzero_ps();
    for (size_t k = 0; k < args->n_in; k += SL_LANES) {
        size_t left = args->n_in - k;
        __mmask16 mask = (__mmask16)(left >= SL_LANES ? 0xffffu : (1u << left) - 1u);
        __m512 xv[4];
        for (size_t r = 0; r < n_r; r++)
            xv[r] = _mm512_maskz_loadu_ps(mask, x + r * args->x_stride + k);
        for (size_t o = 0; o < n_o; o++) {
            __m512 wv = load_weights(type, w + o * row_bytes, k, mask);
            for (size_t r = 0; r < n_r; r++)
                acc[r][o] = _mm512_mask3_fmadd_ps(wv, xv[r], acc[r][o], mask);
        }
    }
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            args->out[(r0 + r) * args->out_stride + o0 + o] = tree16(acc[r][o]);
}

/* Outputs outside, rows inside: the weights come from memory once. */
AVX512_INLINE void gemm_floats(const sl_gemm_args *args, sl_wtype type)
{
    size_t end = args->first_out + args->n, o = args->first_out;
    for (; o + 4 <= end; o += 4) {
        size_t r = 0;
        for (; r + 4 <= args->n_rows; r += 4)
            float_block(args, type, r, o, 4, 4);
        for (; r < args->n_rows; r++)
            float_block(args, type, r, o, 1, 4);
    }
    for (; o < end; o++) {
        size_t r = 0;
        for (; r + 4 <= args->n_rows; r += 4)
            float_block(args, type, r, o, 4, 1);
        for (; r < args->n_rows; r++)
            float_block(args, type, r, o, 1, 1);
    }
}

AVX512 void sl_gemm_f32_avx512(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F32);
}

AVX512 void sl_gemm_f16_avx512(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F16);
}

AVX512 void sl_gemm_bf16_avx512(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_BF16);
}

#endif
