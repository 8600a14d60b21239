/* Projections of quantised weights for AVX-512 with VNNI: the bits of gemm_ref.c.
 * A panel's sixteen outputs are the lanes; a group is eight `vpdpbusd`, unsigned weights by four broadcast activation
 * bytes. What was added to make weights unsigned (their offset) is taken off by the integer at which a sum starts,
 * -offset * sum(q). Q6_K's two sums of a group meet its sub-scales in binary32, which holds all of it exactly.
 * Few rows: one panel at a time, its values in registers. More: eight groups of two panels are unpacked into the first
 * cache for up to 64 rows, of which eight at a time have sixteen sums running, so that the dot units never wait.
 * An inlined helper takes more than six parameters where they are what its caller's loops hold. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/gemm_avx512.h"

enum {
    FEW_ROWS = 3,       /* up to which a panel's values stay in registers */
    STEP_ROWS = 8, /* rows whose sums run at a time */
    MOST_ROWS = 64,     /* for which a panel is unpacked once */
    CHUNK = GEMM_CHUNK,
    N_FACTORS = 8192,
    AHEAD_BYTES = 2048 /* how far before their use weights are called from memory */
};

typedef enum kind { KIND_OFFSET, KIND_MINIMUM, KIND_SUBSCALE } kind;

AVX512_INLINE kind kind_of(sl_wtype type)
{
    return type == SL_WTYPE_Q6_K ? KIND_SUBSCALE : gemm_has_minimum(type) ? KIND_MINIMUM : KIND_OFFSET;
}

/* What a row and group bring, made once a call: the minimum's factor, or where the sum starts; two starts for Q6_K. */
typedef union factor {
    float minimum; /* scale * sum */
    int32_t start; /* -offset * sum */
} factor;

/* Input rows from a group on. */
typedef struct input {
    const int8_t *q;
    const float *scale;
    size_t stride;         /* bytes from row to row of q and of scale */
    const factor *factors; /* [row][group], Q6_K: [row][group][2] */
    size_t factor_stride;  /* in factors */
} input;

/* Groups of one or two panels in the first cache. */
typedef struct unpacked {
    _Alignas(64) uint8_t values[CHUNK][2][GEMM_QUADS][GEMM_PLANE];
    _Alignas(64) float ws[2][CHUNK][SL_PANEL], second[2][CHUNK][SL_PANEL], third[2][CHUNK][SL_PANEL];
    size_t n_groups;
} unpacked;

AVX512_INLINE __m512i broadcast_quad(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm512_set1_epi32(quad);
}

AVX512_INLINE const float *scale_of(const input *in, size_t r)
{
    return (const float *)(const void *)((const uint8_t *)in->scale + r * in->stride);
}

/* One group's part of a sum; Q6_K's sums are two. */
AVX512_INLINE __m512 fold_group(__m512 acc, const __m512i dot[2], __m512 ws, __m512 second, __m512 third, float scale,
                                float minimum, kind k)
{
    __m512 value = _mm512_cvtepi32_ps(dot[0]);
    if (k == KIND_SUBSCALE)
        value = _mm512_fmadd_ps(value, second, _mm512_mul_ps(_mm512_cvtepi32_ps(dot[1]), third));
    acc = _mm512_fmadd_ps(value, _mm512_mul_ps(ws, _mm512_set1_ps(scale)), acc);
    if (k == KIND_MINIMUM)
        acc = _mm512_fmadd_ps(second, _mm512_set1_ps(minimum), acc);
    return acc;
}

/* ------------------------------------------------------------------------------------------------ more rows */

/* Half a group: four quads of n_rows by n_panels. Written out, or gcc keeps the sums in memory. */
AVX512_INLINE void dots(__m512i dot[STEP_ROWS][2], const uint8_t *values, const int8_t *q, size_t stride,
                        size_t n_rows, size_t n_panels)
{
#define QUAD(i)                                                                                                        \
    for (size_t r = 0; r < n_rows; r++) {                                                                              \
        const __m512i quad = broadcast_quad(q + r * stride + 4 * i);                                                   \
        for (size_t p = 0; p < n_panels; p++)                                                                          \
            dot[r][p] = _mm512_dpbusd_epi32(                                                                           \
                dot[r][p], _mm512_load_si512(values + (p * GEMM_QUADS + i) * GEMM_PLANE), quad);                       \
    }
    QUAD(0)
    QUAD(1)
    QUAD(2)
    QUAD(3)
#undef QUAD
}

/* n_rows by n_panels, compile-time constants up to STEP_ROWS and 2. */
AVX512_INLINE void fold_block(float *out, size_t out_stride, const unpacked *u, const input *in, size_t n_rows,
                              size_t n_panels, kind k)
{
    const size_t per_group = k == KIND_SUBSCALE ? 2 : 1;
    _Alignas(64) float acc[STEP_ROWS][2][SL_PANEL];
    for (size_t r = 0; r < n_rows; r++)
        for (size_t p = 0; p < n_panels; p++)
            _mm512_store_ps(acc[r][p], _mm512_loadu_ps(out + r * out_stride + p * SL_PANEL));
    for (size_t g = 0; g < u->n_groups; g++) {
        const int8_t *q = in->q + g * SL_GROUP;
        const factor *f = in->factors + g * per_group;
        __m512 first[STEP_ROWS][2];
        __m512i dot[STEP_ROWS][2];
        for (size_t r = 0; r < n_rows; r++)
            for (size_t p = 0; p < n_panels; p++)
                dot[r][p] = k == KIND_MINIMUM ? _mm512_setzero_si512()
                                              : _mm512_set1_epi32(f[r * in->factor_stride].start);
        dots(dot, u->values[g][0][0], q, in->stride, n_rows, n_panels);
        if (k == KIND_SUBSCALE)
            for (size_t r = 0; r < n_rows; r++)
                for (size_t p = 0; p < n_panels; p++) {
                    const __m512 sub_scale = _mm512_load_ps(u->second[p][g]);
                    first[r][p] = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][p]), sub_scale);
                    dot[r][p] = _mm512_set1_epi32(f[r * in->factor_stride + 1].start);
                }
        dots(dot, u->values[g][0][GEMM_QUADS / 2], q + SL_GROUP / 2, in->stride, n_rows, n_panels);
        for (size_t p = 0; p < n_panels; p++) {
            const __m512 ws = _mm512_load_ps(u->ws[p][g]);
            for (size_t r = 0; r < n_rows; r++) {
                const __m512 scale = _mm512_mul_ps(ws, _mm512_set1_ps(scale_of(in, r)[g]));
                __m512 value = _mm512_cvtepi32_ps(dot[r][p]), sum = _mm512_load_ps(acc[r][p]);
                if (k == KIND_SUBSCALE)
                    value = _mm512_fmadd_ps(value, _mm512_load_ps(u->third[p][g]), first[r][p]);
                sum = _mm512_fmadd_ps(value, scale, sum);
                if (k == KIND_MINIMUM)
                    sum = _mm512_fmadd_ps(_mm512_load_ps(u->second[p][g]),
                                          _mm512_set1_ps(f[r * in->factor_stride].minimum), sum);
                _mm512_store_ps(acc[r][p], sum);
            }
        }
    }
    for (size_t r = 0; r < n_rows; r++)
        for (size_t p = 0; p < n_panels; p++)
            _mm512_storeu_ps(out + r * out_stride + p * SL_PANEL, _mm512_load_ps(acc[r][p]));
}

AVX512_INLINE void fold_rows(float *out, size_t out_stride, const unpacked *u, const input *rows, size_t n_rows,
                             size_t n_panels, kind k)
{
    input in = *rows;
    size_t step;
    for (size_t left = n_rows; left > 0; left -= step) {
        /* the last two steps alike: each has enough sums at a time */
        step = left >= 2 * STEP_ROWS ? STEP_ROWS : left > STEP_ROWS ? (left + 1) / 2 : left;
        switch (step) {
#define STEP(n)                                                                                                        \
    case n:                                                                                                            \
        fold_block(out, out_stride, u, &in, n, n_panels, k);                                                           \
        break;
            STEP(8)
            STEP(7)
            STEP(6)
            STEP(5)
        default:
            fold_block(out, out_stride, u, &in, 4, n_panels, k);
        }
#undef STEP
        out += step * out_stride;
        in.q += step * in.stride;
        in.scale = scale_of(&in, step);
        in.factors += step * in.factor_stride;
    }
}

#define FOLD_ROWS(name, n_panels, kind)                                                                                \
    static AVX512 void name(float *out, size_t out_stride, const unpacked *u, const input *rows, size_t n_rows)        \
    {                                                                                                                  \
        fold_rows(out, out_stride, u, rows, n_rows, n_panels, kind);                                                   \
    }
FOLD_ROWS(fold_offset_1, 1, KIND_OFFSET)
FOLD_ROWS(fold_offset_2, 2, KIND_OFFSET)
FOLD_ROWS(fold_minimum_1, 1, KIND_MINIMUM)
FOLD_ROWS(fold_minimum_2, 2, KIND_MINIMUM)
FOLD_ROWS(fold_subscale_1, 1, KIND_SUBSCALE)
FOLD_ROWS(fold_subscale_2, 2, KIND_SUBSCALE)
#undef FOLD_ROWS

/* [kind][panels - 1] */
static void (*const FOLD[][2])(float *out, size_t out_stride, const unpacked *u, const input *rows, size_t n_rows) = {
    [KIND_OFFSET] = {fold_offset_1, fold_offset_2},
    [KIND_MINIMUM] = {fold_minimum_1, fold_minimum_2},
    [KIND_SUBSCALE] = {fold_subscale_1, fold_subscale_2},
};

/* Groups [0, n_groups) of n_panels panels that lie panel_bytes apart. */
AVX512_INLINE void unpack(unpacked *u, const uint8_t *groups, size_t panel_bytes, size_t n_groups, size_t n_panels,
                          sl_wtype type)
{
    const size_t block_groups = gemm_block_groups(type), block_bytes = gemm_block_bytes(type);
    u->n_groups = n_groups;
    for (size_t p = 0; p < n_panels; p++) {
        const uint8_t *block = groups + p * panel_bytes;
        for (size_t b = 0; b < n_groups; b += block_groups, block += block_bytes) {
            for (size_t g = 0; g < block_groups; g++) {
                __m512i w[GEMM_QUADS];
                gemm_values(w, block + g * gemm_value_bytes(type), type);
                for (size_t i = 0; i < GEMM_QUADS; i++)
                    _mm512_store_si512(u->values[b + g][p][i], w[i]);
            }
            for (size_t at = 0; at < block_bytes; at += 64)
                _mm_prefetch((const char *)block + AHEAD_BYTES + at, _MM_HINT_T0);
            gemm_scales_read((gemm_scales){u->ws[p] + b, u->second[p] + b, u->third[p] + b},
                             block + block_groups * gemm_value_bytes(type), type);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ factors */

/* Four sums of sixteen bytes each. */
AVX512_INLINE __m128i half_sums(const int8_t *q)
{
    const __m512i quads = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(q));
    const __m512i pairs = _mm512_add_epi32(quads, _mm512_shuffle_epi32(quads, _MM_PERM_CDAB));
    const __m512i sums = _mm512_add_epi32(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_BADC));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, sums));
}

/* Of groups [first, first + n) of one quantised row; writes up to a multiple of sixteen. */
AVX512_INLINE void row_factors(factor *out, const uint8_t *row, size_t n_in, size_t first, size_t n, sl_wtype type)
{
    const uint8_t *sum = row + sl_qrow_sum_off(n_in) + first * sizeof(float);
    const uint8_t *scale = row + first * sizeof(float);
    const int8_t *q = (const int8_t *)row + sl_qrow_q_off(n_in) + first * SL_GROUP;
    if (kind_of(type) == KIND_SUBSCALE) {
        for (size_t g = 0; g < n; g += 2) /* n is a multiple of eight */
            _mm_storeu_si128((__m128i *)(void *)(out + 2 * g),
                             _mm_mullo_epi32(half_sums(q + g * SL_GROUP), _mm_set1_epi32(-gemm_offset(type))));
        return;
    }
    for (size_t g = 0; g < n; g += SL_LANES) {
        const size_t left = n - g;
        const __mmask16 valid = (__mmask16)(left >= SL_LANES ? 0xffffu : (1u << left) - 1u);
        const __m512 s = _mm512_maskz_loadu_ps(valid, sum + g * sizeof(float));
        if (kind_of(type) == KIND_MINIMUM)
            _mm512_storeu_ps(out + g, _mm512_mul_ps(_mm512_maskz_loadu_ps(valid, scale + g * sizeof(float)), s));
        else
            _mm512_storeu_si512(
                out + g, _mm512_cvtps_epi32(_mm512_mul_ps(s, _mm512_set1_ps((float)-gemm_offset(type)))));
    }
}

/* ------------------------------------------------------------------------------------------------ few rows */

/* A panel for n_rows rows, a compile-time constant up to FEW_ROWS. */
AVX512_INLINE void panel_few(float *out, size_t out_stride, const uint8_t *panel, const input *in, size_t n_groups,
                             size_t n_rows, sl_wtype type)
{
    const kind k = kind_of(type);
    const size_t block_groups = gemm_block_groups(type), block_bytes = gemm_block_bytes(type);
    const size_t value_bytes = gemm_value_bytes(type), per_group = k == KIND_SUBSCALE ? 2 : 1;
    __m512 acc[FEW_ROWS];
    for (size_t r = 0; r < n_rows; r++)
        acc[r] = _mm512_loadu_ps(out + r * out_stride);
    for (size_t b = 0; b < n_groups; b += block_groups, panel += block_bytes) {
        _Alignas(64) float ws[CHUNK][SL_PANEL], second[CHUNK][SL_PANEL], third[CHUNK][SL_PANEL];
        gemm_scales_read((gemm_scales){ws, second, third}, panel + block_groups * value_bytes, type);
        for (size_t g = 0; g < block_groups; g++) {
            __m512i w[GEMM_QUADS];
            gemm_values(w, panel + g * value_bytes, type);
            for (size_t at = 0; at < value_bytes + 63; at += 64)
                _mm_prefetch((const char *)panel + g * value_bytes + AHEAD_BYTES + at, _MM_HINT_T0);
            for (size_t r = 0; r < n_rows; r++) {
                const int8_t *q = in->q + r * in->stride + (b + g) * SL_GROUP;
                const factor *f = in->factors + r * in->factor_stride + (b + g) * per_group;
                /* two halves: Q6_K's sums, and for the others a shorter chain */
                __m512i dot[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
                if (k != KIND_MINIMUM)
                    dot[0] = _mm512_set1_epi32(f[0].start);
                if (k == KIND_SUBSCALE)
                    dot[1] = _mm512_set1_epi32(f[1].start);
                for (size_t i = 0; i < GEMM_QUADS / 2; i++) {
                    dot[0] = _mm512_dpbusd_epi32(dot[0], w[i], broadcast_quad(q + 4 * i));
                    dot[1] = _mm512_dpbusd_epi32(dot[1], w[i + 4], broadcast_quad(q + 16 + 4 * i));
                }
                if (k != KIND_SUBSCALE)
                    dot[0] = _mm512_add_epi32(dot[0], dot[1]);
                acc[r] = fold_group(acc[r], dot, _mm512_load_ps(ws[g]), _mm512_load_ps(second[g]),
                                    _mm512_load_ps(third[g]), scale_of(in, r)[b + g], f[0].minimum, k);
            }
        }
    }
    for (size_t r = 0; r < n_rows; r++)
        _mm512_storeu_ps(out + r * out_stride, acc[r]);
}

/* ------------------------------------------------------------------------------------------------ the matrix */

/* Rows [first_row, first_row + n_rows), n_rows <= MOST_ROWS, of whole panels; groups [g, g + n_groups), whose factors
 * are `in`'s. The sums go on from what `out` holds. */
AVX512_INLINE void multiply(const sl_gemm_args *args, float *out, size_t n_rows, const input *rows, size_t first,
                            size_t n_groups, sl_wtype type)
{
    const size_t panel_bytes = sl_wtype_row_bytes(type, args->n_in) * SL_PANEL;
    const size_t per_group = kind_of(type) == KIND_SUBSCALE ? 2 : 1;
    const size_t n_panels = args->n / SL_PANEL;
    const uint8_t *panel = (const uint8_t *)args->packed + args->first_out / SL_PANEL * panel_bytes +
                           first / gemm_block_groups(type) * gemm_block_bytes(type);
    unpacked u;
    size_t step;
    for (size_t p = 0; p < n_panels; p += step, panel += step * panel_bytes, out += step * SL_PANEL) {
        step = n_panels - p >= 2 && n_rows > FEW_ROWS ? 2 : 1;
        if (n_rows == 1)
            panel_few(out, args->out_stride, panel, rows, n_groups, 1, type);
        else if (n_rows == 2)
            panel_few(out, args->out_stride, panel, rows, n_groups, 2, type);
        else if (n_rows == 3)
            panel_few(out, args->out_stride, panel, rows, n_groups, 3, type);
        for (size_t g = 0; n_rows > FEW_ROWS && g < n_groups; g += CHUNK) {
            const input in = {rows->q + g * SL_GROUP, rows->scale + g, rows->stride, rows->factors + g * per_group,
                              rows->factor_stride};
            const size_t n = n_groups - g < CHUNK ? n_groups - g : CHUNK;
            const uint8_t *groups = panel + g / gemm_block_groups(type) * gemm_block_bytes(type);
            unpack(&u, groups, panel_bytes, n, step, type);
            FOLD[kind_of(type)][step - 1](out, args->out_stride, &u, &in, n_rows);
        }
    }
}

/* Whole panels of up to MOST_ROWS rows. */
AVX512_INLINE void row_block(const sl_gemm_args *args, size_t first_row, size_t n_rows, sl_wtype type)
{
    const size_t n_in = args->n_in, n_groups = n_in / SL_GROUP, stride = sl_qrow_bytes(n_in);
    const size_t per_group = kind_of(type) == KIND_SUBSCALE ? 2 : 1;
    const uint8_t *row = (const uint8_t *)args->qrows + first_row * stride;
    float *out = args->out + first_row * args->out_stride + args->first_out;
    const size_t most = N_FACTORS / n_rows / per_group / SL_LANES * SL_LANES;
    _Alignas(64) factor factors[N_FACTORS];
    for (size_t r = 0; r < n_rows; r++)
        memset(out + r * args->out_stride, 0, args->n / SL_PANEL * SL_PANEL * sizeof *out);
    for (size_t g = 0; g < n_groups; g += most) {
        const size_t n = n_groups - g < most ? n_groups - g : most;
        const size_t factor_stride = (n + SL_LANES - 1) / SL_LANES * SL_LANES * per_group;
        for (size_t r = 0; r < n_rows; r++)
            row_factors(factors + r * factor_stride, row + r * stride, n_in, g, n, type);
        const input in = {(const int8_t *)row + sl_qrow_q_off(n_in) + g * SL_GROUP,
                          (const float *)(const void *)row + g, stride, factors, factor_stride};
        multiply(args, out, n_rows, &in, g, n, type);
    }
}

/* Whole panels here, a narrow last one by the reference. */
AVX512_INLINE void gemm_panels(const sl_gemm_args *args, sl_wtype type, sl_gemm_fn reference)
{
    const size_t narrow = args->n % SL_PANEL;
    size_t step;
    for (size_t r = 0; r < args->n_rows && args->n > narrow; r += step) {
        const size_t left = args->n_rows - r; /* the last two blocks alike: neither is of few rows */
        step = left <= MOST_ROWS ? left : left >= 2 * MOST_ROWS ? MOST_ROWS : (left / 2 + 7) / 8 * 8;
        row_block(args, r, step, type);
    }
    if (narrow == 0)
        return;
    sl_gemm_args rest = *args;
    rest.first_out += args->n - narrow;
    rest.n = narrow;
    reference(&rest);
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

AVX512 void sl_gemm_q5_0_avx512(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_0, sl_gemm_q5_0_ref);
}

AVX512 void sl_gemm_q5_1_avx512(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_1, sl_gemm_q5_1_ref);
}

AVX512 void sl_gemm_q4_k_avx512(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_K, sl_gemm_q4_k_ref);
}

AVX512 void sl_gemm_q5_k_avx512(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_K, sl_gemm_q5_k_ref);
}

AVX512 void sl_gemm_q6_k_avx512(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q6_K, sl_gemm_q6_k_ref);
}

#endif
