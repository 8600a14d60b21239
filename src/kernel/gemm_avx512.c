/* Projections of quantised weights for AVX-512 with VNNI: the bits of gemm_ref.c.
 * A panel's sixteen outputs are the lanes; a group is eight `vpdpbusd`, unsigned weights by four broadcast activation
 * bytes. What was added to make weights unsigned (their offset) is taken off by the integer at which a sum starts,
 * -offset * sum(q). Q6_K's two sums of a group meet its sub-scales in binary32, which holds all of it exactly.
 * Few rows: one panel at a time, its values in registers. More: eight groups of two panels are unpacked into the first
 * cache for up to 128 rows; eight rows at a time have sixteen sums running, so that the dot units never wait, while the
 * packed groups that come next are called from memory.
 * An inlined helper takes more than six parameters where they are what its caller's loops hold. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/gemm_avx512.h"

enum {
    FEW_ROWS = 3,            /* up to which a panel's values stay in registers */
    STEP_ROWS = 8,           /* rows whose sums run at a time */
    MOST_ROWS = 128,         /* for which a panel is unpacked once */
    CHUNK = GEMM_CHUNK,      /* groups that are unpacked at a time */
    ROW_GROUPS = 4096,       /* whose factors are made at a time: many groups of few rows */
    LINE = 64,               /* bytes of a cache line */
    AHEAD_BYTES = 4096       /* how far before their use few rows call weights from memory */
};

typedef enum kind { KIND_OFFSET, KIND_MINIMUM, KIND_SUBSCALE } kind;

AVX512_INLINE kind kind_of(sl_wtype type)
{
    return type == SL_WTYPE_Q6_K ? KIND_SUBSCALE : gemm_has_minimum(type) ? KIND_MINIMUM : KIND_OFFSET;
}

/* What a row and group bring: the minimum's factor, or where the sum starts; two starts for Q6_K. */
typedef union factor {
    float minimum; /* scale * sum */
    int32_t start; /* -offset * sum */
} factor;

/* Up to MOST_ROWS rows from a group on. */
typedef struct rows {
    const int8_t *q;
    const float *scale;
    size_t stride;                             /* bytes from row to row of q and of scale */
    size_t n_rows, n_groups;
    factor factors[2 * ROW_GROUPS + SL_LANES]; /* [row][group], Q6_K: [row][group][2]; room for a last vector */
} rows;

/* A step's rows from a group on. */
typedef struct step_rows {
    const int8_t *q;
    const float *scale;
    const factor *factors;
    size_t stride, n_groups; /* from row to row: bytes of q and scale, groups of factors */
} step_rows;

/* Packed groups of one or two panels that come next: as many bytes of each are called at a time as keep up. They may
 * be past the end of the matrix: the addresses are only hints. */
typedef struct ahead {
    uintptr_t at[2];
    size_t left, each;
} ahead;

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

AVX512_INLINE const float *scale_of(const float *first, size_t r, size_t stride)
{
    return (const float *)(const void *)((const uint8_t *)first + r * stride);
}

/* Rows of the next step when `left` are left: the last two alike, so that both have sums enough. */
AVX512_INLINE size_t step_of(size_t left)
{
    return left >= 2 * STEP_ROWS ? STEP_ROWS : left > STEP_ROWS ? (left + 1) / 2 : left;
}

AVX512_INLINE void call_ahead(ahead *next)
{
    const size_t n = next->left < next->each ? next->left : next->each;
    for (size_t i = 0; i < n; i += LINE) {
        _mm_prefetch((const char *)(next->at[0] + i), _MM_HINT_T0);
        _mm_prefetch((const char *)(next->at[1] + i), _MM_HINT_T0);
    }
    next->at[0] += n;
    next->at[1] += n;
    next->left -= n;
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
AVX512_INLINE void fold_block(float *out, size_t out_stride, const unpacked *u, const step_rows *in, ahead *next,
                              size_t n_rows, size_t n_panels, kind k)
{
    const size_t per_group = k == KIND_SUBSCALE ? 2 : 1;
    _Alignas(64) float acc[STEP_ROWS][2][SL_PANEL];
    for (size_t r = 0; r < n_rows; r++)
        for (size_t p = 0; p < n_panels; p++)
            _mm512_store_ps(acc[r][p], _mm512_loadu_ps(out + r * out_stride + p * SL_PANEL));
    for (size_t g = 0; g < u->n_groups; g++) {
        const int8_t *q = in->q + g * SL_GROUP;
        const factor *f = in->factors + g * per_group;
        call_ahead(next);
        __m512 first[STEP_ROWS][2];
        __m512i dot[STEP_ROWS][2];
        for (size_t r = 0; r < n_rows; r++)
            for (size_t p = 0; p < n_panels; p++)
                dot[r][p] = k == KIND_MINIMUM ? _mm512_setzero_si512()
                                              : _mm512_set1_epi32(f[r * in->n_groups * per_group].start);
        dots(dot, u->values[g][0][0], q, in->stride, n_rows, n_panels);
        if (k == KIND_SUBSCALE)
            for (size_t r = 0; r < n_rows; r++)
                for (size_t p = 0; p < n_panels; p++) {
                    const __m512 sub_scale = _mm512_load_ps(u->second[p][g]);
                    first[r][p] = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[r][p]), sub_scale);
                    dot[r][p] = _mm512_set1_epi32(f[r * in->n_groups * per_group + 1].start);
                }
        dots(dot, u->values[g][0][GEMM_QUADS / 2], q + SL_GROUP / 2, in->stride, n_rows, n_panels);
        for (size_t p = 0; p < n_panels; p++) {
            const __m512 ws = _mm512_load_ps(u->ws[p][g]);
            for (size_t r = 0; r < n_rows; r++) {
                const __m512 scale = _mm512_mul_ps(ws, _mm512_set1_ps(scale_of(in->scale, r, in->stride)[g]));
                __m512 value = _mm512_cvtepi32_ps(dot[r][p]), sum = _mm512_load_ps(acc[r][p]);
                if (k == KIND_SUBSCALE)
                    value = _mm512_fmadd_ps(value, _mm512_load_ps(u->third[p][g]), first[r][p]);
                sum = _mm512_fmadd_ps(value, scale, sum);
                if (k == KIND_MINIMUM)
                    sum = _mm512_fmadd_ps(_mm512_load_ps(u->second[p][g]),
                                          _mm512_set1_ps(f[r * in->n_groups * per_group].minimum), sum);
                _mm512_store_ps(acc[r][p], sum);
            }
        }
    }
    for (size_t r = 0; r < n_rows; r++)
        for (size_t p = 0; p < n_panels; p++)
            _mm512_storeu_ps(out + r * out_stride + p * SL_PANEL, _mm512_load_ps(acc[r][p]));
}

/* Groups [first, first + u->n_groups) of all rows. */
AVX512_INLINE void fold_rows(float *out, size_t out_stride, const unpacked *u, const rows *all, size_t first,
                             ahead *next, size_t n_panels, kind k)
{
    const size_t per_group = k == KIND_SUBSCALE ? 2 : 1;
    size_t step;
    for (size_t r = 0; r < all->n_rows; r += step, out += step * out_stride) {
        step = step_of(all->n_rows - r);
        const step_rows in = {all->q + r * all->stride + first * SL_GROUP,
                              scale_of(all->scale, r, all->stride) + first,
                              all->factors + (r * all->n_groups + first) * per_group, all->stride, all->n_groups};
        switch (step) {
#define STEP(n)                                                                                                        \
    case n:                                                                                                            \
        fold_block(out, out_stride, u, &in, next, n, n_panels, k);                                                     \
        break;
            STEP(8)
            STEP(7)
            STEP(6)
            STEP(5)
        default:
            fold_block(out, out_stride, u, &in, next, 4, n_panels, k);
        }
#undef STEP
    }
}

typedef void (*fold_fn)(float *out, size_t out_stride, const unpacked *u, const rows *all, size_t first, ahead *next);

#define FOLD_ROWS(name, n_panels, kind)                                                                                \
    static AVX512 void name(float *out, size_t out_stride, const unpacked *u, const rows *all, size_t first,           \
                            ahead *next)                                                                               \
    {                                                                                                                  \
        fold_rows(out, out_stride, u, all, first, next, n_panels, kind);                                               \
    }
FOLD_ROWS(fold_offset_1, 1, KIND_OFFSET)
FOLD_ROWS(fold_offset_2, 2, KIND_OFFSET)
FOLD_ROWS(fold_minimum_1, 1, KIND_MINIMUM)
FOLD_ROWS(fold_minimum_2, 2, KIND_MINIMUM)
FOLD_ROWS(fold_subscale_1, 1, KIND_SUBSCALE)
FOLD_ROWS(fold_subscale_2, 2, KIND_SUBSCALE)
#undef FOLD_ROWS

/* [kind][panels - 1] */
static const fold_fn FOLD[][2] = {
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

/* Of n groups of one row; writes up to a multiple of sixteen. */
AVX512_INLINE void row_factors(factor *out, const int8_t *q, const float *scale, const float *sum, size_t n,
                               sl_wtype type)
{
    if (kind_of(type) == KIND_SUBSCALE) {
        for (size_t g = 0; g < n; g += 2) /* n is a multiple of eight */
            _mm_storeu_si128((__m128i *)(void *)(out + 2 * g),
                             _mm_mullo_epi32(half_sums(q + g * SL_GROUP), _mm_set1_epi32(-gemm_offset(type))));
        return;
    }
    for (size_t g = 0; g < n; g += SL_LANES) {
        const size_t left = n - g;
        const __mmask16 valid = (__mmask16)(left >= SL_LANES ? 0xffffu : (1u << left) - 1u);
        const __m512 s = _mm512_maskz_loadu_ps(valid, sum + g);
        if (kind_of(type) == KIND_MINIMUM)
            _mm512_storeu_ps(out + g, _mm512_mul_ps(_mm512_maskz_loadu_ps(valid, scale + g), s));
        else
            _mm512_storeu_si512(
                out + g, _mm512_cvtps_epi32(_mm512_mul_ps(s, _mm512_set1_ps((float)-gemm_offset(type)))));
    }
}

/* Groups [first, first + n) of n_rows quantised rows of n_in elements. */
AVX512_INLINE void rows_init(rows *out, const uint8_t *row, size_t n_in, size_t n_rows, size_t first, size_t n,
                             sl_wtype type)
{
    const size_t per_group = kind_of(type) == KIND_SUBSCALE ? 2 : 1;
    out->q = (const int8_t *)row + sl_qrow_q_off(n_in) + first * SL_GROUP;
    out->scale = (const float *)(const void *)row + first;
    out->stride = sl_qrow_bytes(n_in);
    out->n_rows = n_rows;
    out->n_groups = n;
    const float *sum = (const float *)(const void *)(row + sl_qrow_sum_off(n_in)) + first;
    for (size_t r = 0; r < n_rows; r++)
        row_factors(out->factors + r * n * per_group, out->q + r * out->stride, scale_of(out->scale, r, out->stride),
                    scale_of(sum, r, out->stride), n, type);
}

/* ------------------------------------------------------------------------------------------------ few rows */

/* One row's group added to its sum. The sums of two halves: Q6_K has two scales, for the others a shorter chain. */
AVX512_INLINE __m512 fold_group(__m512 acc, const __m512i w[GEMM_QUADS], const int8_t *q, const float *scales[3],
                                float scale, float sum, sl_wtype type)
{
    const __m512i offset = _mm512_set1_epi8((char)gemm_offset(type));
    const __m512 ws = _mm512_mul_ps(_mm512_load_ps(scales[0]), _mm512_set1_ps(scale));
    __m512i dot[2], part[2];
    __m512 value;
    for (size_t h = 0; h < 2; h++) {
        dot[h] = part[h] = _mm512_setzero_si512();
        for (size_t i = 0; i < GEMM_QUADS / 2; i++) {
            const __m512i quad = broadcast_quad(q + h * SL_GROUP / 2 + 4 * i);
            dot[h] = _mm512_dpbusd_epi32(dot[h], w[h * GEMM_QUADS / 2 + i], quad);
            if (kind_of(type) == KIND_SUBSCALE)
                part[h] = _mm512_dpbusd_epi32(part[h], offset, quad);
        }
    }
    if (kind_of(type) == KIND_SUBSCALE) {
        value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(dot[1], part[1])), _mm512_load_ps(scales[2]));
        value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(dot[0], part[0])), _mm512_load_ps(scales[1]),
                                value);
    } else {
        value = _mm512_cvtepi32_ps(_mm512_add_epi32(dot[0], dot[1]));
    }
    if (kind_of(type) == KIND_OFFSET) /* exact: both are integers below 2^24 */
        value = _mm512_fmadd_ps(_mm512_set1_ps(sum), _mm512_set1_ps((float)-gemm_offset(type)), value);
    acc = _mm512_fmadd_ps(value, ws, acc);
    if (kind_of(type) == KIND_MINIMUM)
        acc = _mm512_fmadd_ps(_mm512_load_ps(scales[1]), _mm512_set1_ps(scale * sum), acc);
    return acc;
}

/* A panel for n_rows rows, a compile-time constant up to FEW_ROWS; `row`: the first of them. */
AVX512_INLINE void panel_few(float *out, size_t out_stride, const uint8_t *panel, const uint8_t *row, size_t n_in,
                             size_t n_rows, sl_wtype type)
{
    const size_t block_groups = gemm_block_groups(type), value_bytes = gemm_value_bytes(type);
    const size_t stride = sl_qrow_bytes(n_in), sum_off = sl_qrow_sum_off(n_in), q_off = sl_qrow_q_off(n_in);
    __m512 acc[FEW_ROWS];
    for (size_t r = 0; r < n_rows; r++)
        acc[r] = _mm512_setzero_ps();
    for (size_t b = 0; b < n_in / SL_GROUP; b += block_groups, panel += gemm_block_bytes(type)) {
        _Alignas(64) float ws[CHUNK][SL_PANEL], second[CHUNK][SL_PANEL], third[CHUNK][SL_PANEL];
        gemm_scales_read((gemm_scales){ws, second, third}, panel + block_groups * value_bytes, type);
        for (size_t g = 0; g < block_groups; g++) {
            const float *scales[3] = {ws[g], second[g], third[g]};
            __m512i w[GEMM_QUADS];
            gemm_values(w, panel + g * value_bytes, type);
            for (size_t at = 0; at < value_bytes + LINE; at += LINE)
                _mm_prefetch((const char *)((uintptr_t)panel + g * value_bytes + AHEAD_BYTES + at), _MM_HINT_T0);
            for (size_t r = 0; r < n_rows; r++) {
                const uint8_t *in = row + r * stride;
                const float *scale = (const float *)(const void *)in;
                const float *sum = (const float *)(const void *)(in + sum_off);
                acc[r] = fold_group(acc[r], w, (const int8_t *)in + q_off + (b + g) * SL_GROUP, scales, scale[b + g],
                                    sum[b + g], type);
            }
        }
    }
    for (size_t r = 0; r < n_rows; r++)
        _mm512_storeu_ps(out + r * out_stride, acc[r]);
}

/* ------------------------------------------------------------------------------------------------ the matrix */

/* n_panels panels from group `first` on for the rows of `all`. The sums go on from what `out` holds. */
AVX512_INLINE void multiply(float *out, size_t out_stride, const uint8_t *groups, size_t panel_bytes, size_t n_panels,
                            const rows *all, sl_wtype type)
{
    const size_t block_groups = gemm_block_groups(type), block_bytes = gemm_block_bytes(type);
    const size_t n_steps = (all->n_rows + STEP_ROWS - 1) / STEP_ROWS;
    unpacked u;
    size_t step;
    for (size_t p = 0; p < n_panels; p += step, groups += step * panel_bytes, out += step * SL_PANEL) {
        step = n_panels - p >= 2 ? 2 : 1;
        for (size_t g = 0; g < all->n_groups; g += CHUNK) {
            const size_t n = all->n_groups - g < CHUNK ? all->n_groups - g : CHUNK;
            const uint8_t *from = groups + g / block_groups * block_bytes;
            uintptr_t then = (uintptr_t)from + n / block_groups * block_bytes;
            if (g + n == all->n_groups)
                then = (uintptr_t)groups + step * panel_bytes;
            ahead next = {{then, step == 2 ? then + panel_bytes : then}, n / block_groups * block_bytes, 0};
            next.each = (next.left / (n * n_steps) / LINE + 1) * LINE;
            unpack(&u, from, panel_bytes, n, step, type);
            FOLD[kind_of(type)][step - 1](out, out_stride, &u, all, g, &next);
        }
    }
}

/* Whole panels of n_rows > FEW_ROWS rows, up to MOST_ROWS. */
AVX512_INLINE void gemm_rows(const sl_gemm_args *args, size_t first_row, size_t n_rows, sl_wtype type)
{
    const size_t n_groups = args->n_in / SL_GROUP, n_panels = args->n / SL_PANEL;
    const size_t panel_bytes = sl_wtype_row_bytes(type, args->n_in) * SL_PANEL;
    const size_t most = ROW_GROUPS / n_rows / CHUNK * CHUNK;
    const uint8_t *panels = (const uint8_t *)args->packed + args->first_out / SL_PANEL * panel_bytes;
    float *out = args->out + first_row * args->out_stride + args->first_out;
    rows all;
    for (size_t r = 0; r < n_rows; r++)
        memset(out + r * args->out_stride, 0, n_panels * SL_PANEL * sizeof *out);
    for (size_t g = 0; g < n_groups; g += most) {
        rows_init(&all, (const uint8_t *)args->qrows + first_row * sl_qrow_bytes(args->n_in), args->n_in, n_rows, g,
                  n_groups - g < most ? n_groups - g : most, type);
        multiply(out, args->out_stride, panels + g / gemm_block_groups(type) * gemm_block_bytes(type), panel_bytes,
                 n_panels, &all, type);
    }
}

AVX512_INLINE void gemm_few(const sl_gemm_args *args, sl_wtype type)
{
    const size_t panel_bytes = sl_wtype_row_bytes(type, args->n_in) * SL_PANEL;
    const uint8_t *panel = (const uint8_t *)args->packed + args->first_out / SL_PANEL * panel_bytes;
    float *out = args->out + args->first_out;
    for (size_t p = 0; p < args->n / SL_PANEL; p++, panel += panel_bytes, out += SL_PANEL) {
        if (args->n_rows == 1)
            panel_few(out, args->out_stride, panel, args->qrows, args->n_in, 1, type);
        else if (args->n_rows == 2)
            panel_few(out, args->out_stride, panel, args->qrows, args->n_in, 2, type);
        else
            panel_few(out, args->out_stride, panel, args->qrows, args->n_in, 3, type);
    }
}

/* Whole panels here, a narrow last one by the reference. */
AVX512_INLINE void gemm_panels(const sl_gemm_args *args, sl_wtype type, sl_gemm_fn reference)
{
    const size_t narrow = args->n % SL_PANEL;
    size_t step;
    for (size_t r = 0; r < args->n_rows && args->n_rows > FEW_ROWS && args->n > narrow; r += step) {
        const size_t left = args->n_rows - r; /* the last two blocks alike: neither is of few rows */
        step = left <= MOST_ROWS ? left : left >= 2 * MOST_ROWS ? MOST_ROWS : (left / 2 + 7) / 8 * 8;
        gemm_rows(args, r, step, type);
    }
    if (args->n_rows > 0 && args->n_rows <= FEW_ROWS)
        gemm_few(args, type);
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
