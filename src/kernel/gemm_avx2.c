/* Projections for AVX2, FMA and F16C: the bits of gemm_ref.c.
 * Quantised types: lanes are outputs, a panel is two vectors; four activation bytes are broadcast. The weights of a
 * group are decoded once for up to ROW_BLOCK rows, half a group (four quads of both vectors: eight registers) at a
 * time. Weights enter `vpmaddubsw` as unsigned 4-bit values, so that eight products of pairs stay inside 16 bits
 * (8 * 2 * 15 * 127 = 30480). What was added to make them unsigned is subtracted as offset * sum(q), which binary32
 * holds exactly.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/avx2.h"

enum {
    ROW_BLOCK = 16,
    HALF = 8,      /* outputs of a vector */
    QUADS = 8,     /* of a group */
    SPLIT = 4,     /* quads decoded at a time for many rows */
    PLANE = 4 * SL_PANEL,
    Q4_VALUES = 4 * PLANE,
    Q8_VALUES = 8 * PLANE,
    PREFETCH_BYTES = 2048
};

/* Rows of quantised input: up to ROW_BLOCK of them share one decoding of the weights. */
typedef struct row_block {
    const uint8_t *rows;
    size_t stride, sum_off, q_off;
    size_t n;
} row_block;

AVX2_INLINE __m256 scale_of(const row_block *in, size_t r, size_t g)
{
    return _mm256_broadcast_ss((const float *)(const void *)(in->rows + r * in->stride) + g);
}

AVX2_INLINE __m256 sum_of(const row_block *in, size_t r, size_t g)
{
    return _mm256_broadcast_ss((const float *)(const void *)(in->rows + r * in->stride + in->sum_off) + g);
}

AVX2_INLINE const uint8_t *values_of(const row_block *in, size_t r, size_t g)
{
    return in->rows + r * in->stride + in->q_off + g * SL_GROUP;
}

AVX2_INLINE __m256i load_256(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

AVX2_INLINE __m256i broadcast_quad(const uint8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm256_set1_epi32(quad);
}

AVX2_INLINE __m256 load_halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

/* Of the group that lies PREFETCH_BYTES further on. For one row the weights come from memory, and the processor's own
 * prefetch falls behind. Past the end of the matrix it does nothing: the address is only a hint. */
AVX2_INLINE void prefetch_ahead(const uint8_t *group, size_t bytes)
{
    for (size_t line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)((uintptr_t)group + PREFETCH_BYTES + line), _MM_HINT_T0);
}

AVX2_INLINE __m256i low_nibbles(__m256i v)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

AVX2_INLINE __m256i high_nibbles(__m256i v)
{
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}

/* 16-bit sums of n quads of one row over eight outputs, two partial sums an output; w[i] holds 0..15. */
AVX2_INLINE __m256i dot_nibbles(const __m256i *w, const uint8_t *q, size_t n)
{
    __m256i s = _mm256_maddubs_epi16(w[0], broadcast_quad(q));
    for (size_t i = 1; i < n; i++)
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w[i], broadcast_quad(q + 4 * i)));
    return s;
}

/* n quads of eight outputs. */
AVX2_INLINE void decode_q4(__m256i *w, const uint8_t *values, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        __m256i v = load_256(values + i * PLANE);
        w[2 * i] = low_nibbles(v);
        w[2 * i + 1] = high_nibbles(v);
    }
}

/* acc + dot * (ws * is), and the minimum of Q4_1. `dot` is that of values 0..15. */
AVX2_INLINE __m256 fold_q4(__m256 acc, __m256i dot, __m256 d, __m256 m, const row_block *in, size_t r, size_t g,
                           sl_wtype type)
{
    __m256 scale = scale_of(in, r, g);
    __m256 value = _mm256_cvtepi32_ps(dot);
    if (type == SL_WTYPE_Q4_0)
        value = _mm256_fmadd_ps(sum_of(in, r, g), _mm256_set1_ps(-8.0f), value);
    acc = _mm256_fmadd_ps(value, _mm256_mul_ps(d, scale), acc);
    if (type == SL_WTYPE_Q4_1)
        acc = _mm256_fmadd_ps(m, _mm256_mul_ps(scale, sum_of(in, r, g)), acc);
    return acc;
}

/* sums[r] = or += the 16-bit sums of the four quads in w, for each row. */
AVX2_INLINE void add_quads(__m256i sums[ROW_BLOCK][2], __m256i w[2][SPLIT], const row_block *in, size_t g,
                           size_t first_quad)
{
    for (size_t r = 0; r < in->n; r++) {
        const uint8_t *q = values_of(in, r, g) + 4 * first_quad;
        for (size_t h = 0; h < 2; h++) {
            __m256i s = dot_nibbles(w[h], q, SPLIT);
            sums[r][h] = first_quad == 0 ? s : _mm256_add_epi16(sums[r][h], s);
        }
    }
}

/* A whole panel for in->n rows. */
AVX2_INLINE void rows_panel_q4(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups,
                               const row_block *in, sl_wtype type)
{
    size_t group_bytes = sl_wtype_row_bytes(type, SL_GROUP) * SL_PANEL;
    __m256 acc[ROW_BLOCK][2];
    __m256i sums[ROW_BLOCK][2];
    for (size_t r = 0; r < in->n; r++)
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *group = panel + g * group_bytes;
        const uint8_t *head = group + Q4_VALUES;
        __m256i w[2][SPLIT];
        decode_q4(w[0], group, SPLIT);
        decode_q4(w[1], group + 4 * HALF, SPLIT);
        add_quads(sums, w, in, g, 0);
        decode_q4(w[0], group + 2 * PLANE, SPLIT);
        decode_q4(w[1], group + 2 * PLANE + 4 * HALF, SPLIT);
        __m256 d[2] = {load_halves(head), load_halves(head + 2 * HALF)};
        __m256 m[2] = {d[0], d[1]};
        for (size_t h = 0; type == SL_WTYPE_Q4_1 && h < 2; h++)
            m[h] = load_halves(head + 2 * SL_PANEL + h * 2 * HALF);
        for (size_t r = 0; r < in->n; r++) {
            const uint8_t *q = values_of(in, r, g) + 4 * SPLIT;
            for (size_t h = 0; h < 2; h++) {
                __m256i pairs = _mm256_add_epi16(sums[r][h], dot_nibbles(w[h], q, SPLIT));
                __m256i dot = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                acc[r][h] = fold_q4(acc[r][h], dot, d[h], m[h], in, r, g, type);
            }
        }
    }
    for (size_t r = 0; r < in->n; r++)
        for (size_t h = 0; h < 2; h++)
            _mm256_storeu_ps(out + r * out_stride + h * HALF, acc[r][h]);
}

/* A whole panel for one row: bound by memory, so the panel is read once, front to back. */
AVX2_INLINE void row_panel_q4(float *out, const uint8_t *panel, size_t n_groups, const row_block *in, sl_wtype type)
{
    size_t group_bytes = sl_wtype_row_bytes(type, SL_GROUP) * SL_PANEL;
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *group = panel + g * group_bytes;
        prefetch_ahead(group, group_bytes);
        for (size_t h = 0; h < 2; h++) {
            __m256i w[QUADS];
            decode_q4(w, group + h * 4 * HALF, QUADS);
            const uint8_t *head = group + Q4_VALUES + h * 2 * HALF;
            __m256 d = load_halves(head);
            __m256 m = type == SL_WTYPE_Q4_1 ? load_halves(head + 2 * SL_PANEL) : d;
            __m256i dot = _mm256_madd_epi16(dot_nibbles(w, values_of(in, 0, g), QUADS), _mm256_set1_epi16(1));
            acc[h] = fold_q4(acc[h], dot, d, m, in, 0, g, type);
        }
    }
    _mm256_storeu_ps(out, acc[0]);
    _mm256_storeu_ps(out + HALF, acc[1]);
}

AVX2_INLINE void panel_q4(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups, const row_block *in,
                          sl_wtype type)
{
    if (in->n == 1)
        row_panel_q4(out, panel, n_groups, in, type);
    else
        rows_panel_q4(out, out_stride, panel, n_groups, in, type);
}

AVX2 static void panel_q4_0(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups,
                            const row_block *in)
{
    panel_q4(out, out_stride, panel, n_groups, in, SL_WTYPE_Q4_0);
}

AVX2 static void panel_q4_1(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups,
                            const row_block *in)
{
    panel_q4(out, out_stride, panel, n_groups, in, SL_WTYPE_Q4_1);
}

/* Four quads of both vectors: w + 128 = 16 * high + low, one of the two. */
AVX2_INLINE void decode_q8(__m256i w[2][SPLIT], const uint8_t *values, bool high)
{
    for (size_t h = 0; h < 2; h++)
        for (size_t i = 0; i < SPLIT; i++) {
            __m256i v = load_256(values + i * PLANE + h * 4 * HALF);
            w[h][i] = high ? _mm256_xor_si256(high_nibbles(v), _mm256_set1_epi8(8)) : low_nibbles(v);
        }
}

/* A whole Q8_0 panel for in->n rows: the 4-bit product twice, and 128 * sum(q) taken off. */
AVX2_INLINE void rows_panel_q8(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups,
                               const row_block *in)
{
    __m256 acc[ROW_BLOCK][2];
    __m256i high[ROW_BLOCK][2], low[ROW_BLOCK][2];
    for (size_t r = 0; r < in->n; r++)
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *group = panel + g * (Q8_VALUES + 2 * SL_PANEL);
        __m256i w[2][SPLIT];
        decode_q8(w, group, true);
        add_quads(high, w, in, g, 0);
        decode_q8(w, group + SPLIT * PLANE, true);
        add_quads(high, w, in, g, SPLIT);
        decode_q8(w, group, false);
        add_quads(low, w, in, g, 0);
        decode_q8(w, group + SPLIT * PLANE, false);
        __m256 d[2] = {load_halves(group + Q8_VALUES), load_halves(group + Q8_VALUES + 2 * HALF)};
        for (size_t r = 0; r < in->n; r++) {
            const uint8_t *q = values_of(in, r, g) + 4 * SPLIT;
            for (size_t h = 0; h < 2; h++) {
                __m256i pairs = _mm256_add_epi16(low[r][h], dot_nibbles(w[h], q, SPLIT));
                __m256i dot = _mm256_add_epi32(_mm256_madd_epi16(high[r][h], _mm256_set1_epi16(16)),
                                               _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                __m256 value = _mm256_fmadd_ps(sum_of(in, r, g), _mm256_set1_ps(-128.0f), _mm256_cvtepi32_ps(dot));
                acc[r][h] = _mm256_fmadd_ps(value, _mm256_mul_ps(d[h], scale_of(in, r, g)), acc[r][h]);
            }
        }
    }
    for (size_t r = 0; r < in->n; r++)
        for (size_t h = 0; h < 2; h++)
            _mm256_storeu_ps(out + r * out_stride + h * HALF, acc[r][h]);
}

/* A whole Q8_0 panel for one row. The weight's sign moves to the activation, which is never -128; |-128| = 128 is
 * right as an unsigned byte, and a pair of products is at most 2 * 128 * 127 = 32512. */
AVX2_INLINE void row_panel_q8(float *out, const uint8_t *panel, size_t n_groups, const row_block *in)
{
    __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *group = panel + g * (Q8_VALUES + 2 * SL_PANEL);
        prefetch_ahead(group, Q8_VALUES + 2 * SL_PANEL);
        __m256i dot[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (size_t i = 0; i < QUADS; i++) {
            __m256i q = broadcast_quad(values_of(in, 0, g) + 4 * i);
            for (size_t h = 0; h < 2; h++) {
                __m256i w = load_256(group + i * PLANE + h * 4 * HALF);
                __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
                dot[h] = _mm256_add_epi32(dot[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
        for (size_t h = 0; h < 2; h++) {
            __m256 d = load_halves(group + Q8_VALUES + h * 2 * HALF);
            acc[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[h]), _mm256_mul_ps(d, scale_of(in, 0, g)), acc[h]);
        }
    }
    _mm256_storeu_ps(out, acc[0]);
    _mm256_storeu_ps(out + HALF, acc[1]);
}

AVX2 static void panel_q8_0(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups,
                            const row_block *in)
{
    if (in->n == 1)
        row_panel_q8(out, panel, n_groups, in);
    else
        rows_panel_q8(out, out_stride, panel, n_groups, in);
}

typedef void (*panel_fn)(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups, const row_block *in);

/* Whole panels by `panel`, a narrow last one by the reference. */
static void gemm_panels(const sl_gemm_args *args, sl_wtype type, panel_fn panel, sl_gemm_fn reference)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in);
    size_t n_whole = args->n / SL_PANEL * SL_PANEL;
    row_block in = {NULL, sl_qrow_bytes(args->n_in), sl_qrow_sum_off(args->n_in), sl_qrow_q_off(args->n_in), 0};
    for (size_t o = args->first_out; o < args->first_out + n_whole; o += SL_PANEL) {
        const uint8_t *weights = (const uint8_t *)args->packed + o * row_bytes;
        for (size_t r = 0; r < args->n_rows; r += in.n) {
            in.rows = (const uint8_t *)args->qrows + r * in.stride;
            in.n = args->n_rows - r < ROW_BLOCK ? args->n_rows - r : ROW_BLOCK;
            panel(args->out + r * args->out_stride + o, args->out_stride, weights, args->n_in / SL_GROUP, &in);
        }
    }
    if (n_whole == args->n)
        return;
    sl_gemm_args narrow = *args;
    narrow.first_out += n_whole;
    narrow.n -= n_whole;
    reference(&narrow);
}

void sl_gemm_q8_0_avx2(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q8_0, panel_q8_0, sl_gemm_q8_0_ref);
}

void sl_gemm_q4_0_avx2(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_0, panel_q4_0, sl_gemm_q4_0_ref);
}

void sl_gemm_q4_1_avx2(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_1, panel_q4_1, sl_gemm_q4_1_ref);
}

/* ------------------------------------------------------------------------------------------------------------
 * Float weights: lanes are k mod 16, two vectors an output and row. */

AVX2_INLINE __m256 load_weights(sl_wtype type, const uint8_t *row, size_t k)
{
    if (type == SL_WTYPE_F32)
        return _mm256_loadu_ps((const float *)(const void *)row + k);
    if (type == SL_WTYPE_F16)
        return load_halves(row + 2 * k);
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * k));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

AVX2_INLINE float load_weight(sl_wtype type, const uint8_t *row, size_t k)
{
    if (type == SL_WTYPE_F32) {
        float value;
        memcpy(&value, row + 4 * k, sizeof value);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, row + 2 * k, sizeof bits);
    return type == SL_WTYPE_F16 ? sl_float_of_half(bits) : sl_float_of_bf16(bits);
}

AVX2_INLINE __m256 fma_scalar_lane(__m256 acc, float w, float x, size_t lane)
{
    float lanes[HALF];
    _mm256_storeu_ps(lanes, acc);
    lanes[lane] = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(w), _mm_set_ss(x), _mm_set_ss(lanes[lane])));
    return _mm256_loadu_ps(lanes);
}

/* t + (t+8), then +4, +2, +1. */
AVX2_INLINE float tree16(__m256 low, __m256 high)
{
    __m256 s8 = _mm256_add_ps(low, high);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* n_r rows by n_o outputs, both compile-time constants. */
AVX2_INLINE void float_block(const sl_gemm_args *args, sl_wtype type, size_t r0, size_t o0, size_t n_r, size_t n_o)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in);
    const uint8_t *w = (const uint8_t *)args->packed + o0 * row_bytes;
    const float *x = args->x + r0 * args->x_stride;
    __m256 acc[2][4][2];
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            acc[r][o][0] = acc[r][o][1] = _mm256_setzero_ps();
    size_t k = 0;
    for (; k + SL_LANES <= args->n_in; k += SL_LANES)
        for (size_t h = 0; h < 2; h++)
            for (size_t o = 0; o < n_o; o++) {
                __m256 wv = load_weights(type, w + o * row_bytes, k + h * HALF);
                for (size_t r = 0; r < n_r; r++)
                    acc[r][o][h] =
                        _mm256_fmadd_ps(wv, _mm256_loadu_ps(x + r * args->x_stride + k + h * HALF), acc[r][o][h]);
            }
    /* Absent elements leave their lanes alone: a product of zeros would turn -0 into +0. */
    for (; k < args->n_in; k++)
        for (size_t o = 0; o < n_o; o++)
            for (size_t r = 0; r < n_r; r++) {
                __m256 *lanes = &acc[r][o][k % SL_LANES / HALF];
                *lanes = fma_scalar_lane(*lanes, load_weight(type, w + o * row_bytes, k), x[r * args->x_stride + k],
                                         k % HALF);
            }
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            args->out[(r0 + r) * args->out_stride + o0 + o] = tree16(acc[r][o][0], acc[r][o][1]);
}

/* Outputs outside, rows inside: the weights come from memory once. */
AVX2_INLINE void gemm_floats(const sl_gemm_args *args, sl_wtype type)
{
    size_t end = args->first_out + args->n;
    size_t o = args->first_out;
    for (; args->n_rows == 1 && o + 4 <= end; o += 4)
        float_block(args, type, 0, o, 1, 4);
    for (; o + 2 <= end; o += 2) {
        size_t r = 0;
        for (; r + 2 <= args->n_rows; r += 2)
            float_block(args, type, r, o, 2, 2);
        if (r < args->n_rows)
            float_block(args, type, r, o, 1, 2);
    }
    for (size_t r = 0; o < end && r < args->n_rows; r++)
        float_block(args, type, r, o, 1, 1);
}

AVX2 void sl_gemm_f32_avx2(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F32);
}

AVX2 void sl_gemm_f16_avx2(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F16);
}

AVX2 void sl_gemm_bf16_avx2(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_BF16);
}

#endif
