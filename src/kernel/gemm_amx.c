/* Projections for AMX: the bits of gemm_ref.c.
 * A panel's group, as it is packed, is a right operand: eight rows of sixteen outputs' four bytes. Sixteen rows of
 * quantised input are the left one. Each group's products go through memory to vector registers, where they are
 * scaled; products run three groups ahead of that. Four-bit weights become signed bytes once for all rows.
 * Few rows, float weights and a narrow last panel are other levels'.
 * An inlined helper takes more than six parameters where they are what its caller's loops hold. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/amx.h"
#include "kernel/gemm_avx512.h"

enum {
    FEWEST_ROWS = 9, /* below, AVX-512 is as fast */
    PLANE = GEMM_PLANE,
    GROUP_VALUES = GEMM_QUADS * PLANE, /* as signed bytes */
    AHEAD = 3,                         /* products that are started ahead */
    CHUNK = 32                         /* groups that are decoded at a time; a multiple of 16 */
};

/* Sixteen accumulators, a row each. Each has a name, because gcc leaves an array of them in memory. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

/* Up to CHUNK groups of a panel. */
typedef struct panel {
    _Alignas(64) uint8_t decoded[CHUNK * GROUP_VALUES];
    float d[CHUNK][SL_PANEL], m[CHUNK][SL_PANEL];
    const uint8_t *values; /* right operands at `stride` */
    size_t stride, n_groups;
} panel;

/* Blocks of AMX_ROWS input rows, or one of n_rows; q: of the first row, at the chunk's first group. */
typedef struct input {
    const uint8_t *q;
    const float *scale, *sum; /* likewise */
    size_t stride;            /* bytes */
    size_t n_blocks, n_rows;
} input;

/* One row block's factors of a chunk, and two groups of products. */
typedef struct work {
    _Alignas(64) int32_t products[2][AMX_ROWS][SL_PANEL];
    float scale[AMX_ROWS][CHUNK], minimum[AMX_ROWS][CHUNK]; /* minimum: scale * sum */
} work;

/* Groups [0, n_groups) of a chunk to signed bytes (Q8_0: left where they are) and floats. */
AMX_INLINE void panel_decode(panel *p, const uint8_t *block, sl_wtype type)
{
    const size_t block_groups = gemm_block_groups(type), block_bytes = gemm_block_bytes(type);
    const size_t value_bytes = gemm_value_bytes(type);
    const __m512i offset = _mm512_set1_epi8((char)gemm_offset(type));
    p->values = type == SL_WTYPE_Q8_0 ? block : p->decoded;
    p->stride = type == SL_WTYPE_Q8_0 ? block_bytes : GROUP_VALUES;
    for (size_t b = 0; b < p->n_groups; b += block_groups, block += block_bytes) {
        for (size_t g = 0; type != SL_WTYPE_Q8_0 && g < block_groups; g++) {
            __m512i w[GEMM_QUADS];
            gemm_values(w, block + g * value_bytes, type);
            for (size_t i = 0; i < GEMM_QUADS; i++)
                _mm512_store_si512(p->decoded + (b + g) * GROUP_VALUES + i * PLANE,
                                   gemm_offset(type) == 0 ? w[i] : _mm512_sub_epi8(w[i], offset));
        }
        gemm_scales_read((gemm_scales){p->d + b, p->m + b, NULL}, block + block_groups * value_bytes, type);
    }
}

/* Registers 0 to 3 hold products, 4, 5 weights, 6, 7 rows: a product takes 50 cycles before its register is free for
 * another one, so that it takes four registers to keep up with the scaling. */
AMX_INLINE void start_product(const uint8_t *values, const uint8_t *q, size_t stride, size_t step)
{
#define START(c, weights, rows)                                                                                        \
    AMX_LOAD(weights, values, PLANE);                                                                                  \
    AMX_LOAD(rows, q, stride);                                                                                         \
    AMX_ZERO(c);                                                                                                       \
    AMX_DOT_SS(c, rows, weights);                                                                                      \
    break;
    switch (step % 4) {
    case 0:
        START(0, 4, 6)
    case 1:
        START(1, 5, 7)
    case 2:
        START(2, 4, 6)
    default:
        START(3, 5, 7)
    }
#undef START
}

AMX_INLINE void end_product(work *w, size_t step)
{
    int32_t *at = w->products[step % 2][0];
    switch (step % 4) {
    case 0:
        AMX_STORE(0, at, PLANE);
        break;
    case 1:
        AMX_STORE(1, at, PLANE);
        break;
    case 2:
        AMX_STORE(2, at, PLANE);
        break;
    default:
        AMX_STORE(3, at, PLANE);
    }
}

/* Which product is started next: steps are (block, group), groups inside. */
typedef struct cursor {
    size_t block, g, step;
} cursor;

AMX_INLINE void start_next(const panel *p, const input *in, cursor *at)
{
    if (at->block == in->n_blocks)
        return;
    start_product(p->values + at->g * p->stride, in->q + at->block * AMX_ROWS * in->stride + at->g * SL_GROUP,
                  in->stride, at->step++);
    if (++at->g == p->n_groups) {
        at->g = 0;
        at->block++;
    }
}

AMX_INLINE void factors(work *w, const input *in, size_t block, size_t n_groups, const bool minimums)
{
    const uint8_t *scale = (const uint8_t *)in->scale + block * AMX_ROWS * in->stride;
    const uint8_t *sum = (const uint8_t *)in->sum + block * AMX_ROWS * in->stride;
    for (size_t r = 0; r < in->n_rows; r++, scale += in->stride, sum += in->stride)
        for (size_t g = 0; g < n_groups; g += SL_LANES) {
            const size_t left = n_groups - g;
            const __mmask16 valid = (__mmask16)(left >= SL_LANES ? 0xffffu : (1u << left) - 1u);
            __m512 s = _mm512_maskz_loadu_ps(valid, scale + g * sizeof(float));
            _mm512_storeu_ps(w->scale[r] + g, s);
            if (minimums) /* not of what lies behind the arrays: a product with a denormal takes long */
                _mm512_storeu_ps(w->minimum[r] + g,
                                 _mm512_mul_ps(s, _mm512_maskz_loadu_ps(valid, sum + g * sizeof(float))));
        }
}

/* A chunk of a panel times all of `in`; after the first chunk the sums go on from `out`. */
AMX_INLINE void panel_rows(float *out, size_t out_stride, const panel *p, const input *in, work *w, const bool first,
                           sl_wtype type)
{
    const size_t n_rows = in->n_rows;
    cursor ahead = {0, 0, 0};
    size_t step = 0;
    for (int i = 0; i < AHEAD; i++)
        start_next(p, in, &ahead);
    end_product(w, 0);
    for (size_t block = 0; block < in->n_blocks; block++, out += AMX_ROWS * out_stride) {
        factors(w, in, block, p->n_groups, gemm_has_minimum(type));
#define START(i) __m512 acc##i = first || i >= n_rows ? _mm512_setzero_ps() : _mm512_loadu_ps(out + i * out_stride);
#define SCALE(i)                                                                                                       \
    acc##i = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(products[i])),                              \
                             _mm512_mul_ps(d, _mm512_set1_ps(w->scale[i][g])), acc##i);
#define MINIMUM(i) acc##i = _mm512_fmadd_ps(m, _mm512_set1_ps(w->minimum[i][g]), acc##i);
#define STORE(i)                                                                                                       \
    if (i < n_rows)                                                                                                    \
        _mm512_storeu_ps(out + i * out_stride, acc##i);
        EACH_ROW(START)
        for (size_t g = 0; g < p->n_groups; g++, step++) {
            start_next(p, in, &ahead);
            end_product(w, step + 1); /* after the last step: nothing that anybody reads */
            int32_t(*products)[SL_PANEL] = w->products[step % 2];
            const __m512 d = _mm512_loadu_ps(p->d[g]);
            EACH_ROW(SCALE)
            if (gemm_has_minimum(type)) {
                const __m512 m = _mm512_loadu_ps(p->m[g]);
                EACH_ROW(MINIMUM)
            }
        }
        EACH_ROW(STORE)
#undef START
#undef SCALE
#undef MINIMUM
#undef STORE
    }
}

/* Whole panels of n_blocks row blocks from first_row on. */
AMX_INLINE void multiply(const sl_gemm_args *args, size_t first_row, size_t n_blocks, size_t n_rows, sl_wtype type)
{
    const uint8_t rows = (uint8_t)n_rows;
    const amx_config config = {
        .palette = AMX_PALETTE,
        .row_bytes = {PLANE, PLANE, PLANE, PLANE, PLANE, PLANE, SL_GROUP, SL_GROUP},
        .rows = {rows, rows, rows, rows, GEMM_QUADS, GEMM_QUADS, rows, rows}};
    const size_t row_bytes = sl_wtype_row_bytes(type, args->n_in), n_groups = args->n_in / SL_GROUP;
    const size_t end = args->first_out + args->n / SL_PANEL * SL_PANEL;
    const uint8_t *row = (const uint8_t *)args->qrows + first_row * sl_qrow_bytes(args->n_in);
    panel p;
    work w;
    memset(&w, 0, sizeof w);
    amx_configure(&config);
    for (size_t o = args->first_out; o < end; o += SL_PANEL)
        for (size_t g = 0; g < n_groups; g += CHUNK) {
            const input in = {.q = row + sl_qrow_q_off(args->n_in) + g * SL_GROUP,
                              .scale = (const float *)(const void *)row + g,
                              .sum = (const float *)(const void *)(row + sl_qrow_sum_off(args->n_in)) + g,
                              .stride = sl_qrow_bytes(args->n_in),
                              .n_blocks = n_blocks,
                              .n_rows = n_rows};
            float *out = args->out + first_row * args->out_stride + o;
            p.n_groups = n_groups - g < CHUNK ? n_groups - g : CHUNK;
            panel_decode(&p, (const uint8_t *)args->packed + o * row_bytes +
                                 g / gemm_block_groups(type) * gemm_block_bytes(type), type);
            panel_rows(out, args->out_stride, &p, &in, &w, g == 0, type);
        }
    amx_release();
}

/* Rows in blocks of sixteen, then what is left: a smaller block, or few rows by the level below. */
AMX_INLINE void gemm_panels(const sl_gemm_args *args, sl_wtype type, sl_gemm_fn few, sl_gemm_fn reference)
{
    const size_t left = args->n_rows % AMX_ROWS, blocks = args->n_rows - left, narrow = args->n % SL_PANEL;
    const bool few_left = left > 0 && left < FEWEST_ROWS;
    if (blocks > 0)
        multiply(args, 0, blocks / AMX_ROWS, AMX_ROWS, type);
    if (left > 0 && !few_left)
        multiply(args, blocks, 1, left, type);
    sl_gemm_args rest = *args;
    rest.first_out += args->n - narrow;
    rest.n = narrow;
    rest.n_rows = few_left ? blocks : args->n_rows;
    if (rest.n > 0 && rest.n_rows > 0)
        reference(&rest);
    if (!few_left)
        return;
    rest = *args;
    rest.qrows = (const uint8_t *)args->qrows + blocks * sl_qrow_bytes(args->n_in);
    rest.out = args->out + blocks * args->out_stride;
    rest.n_rows = left;
    few(&rest);
}

AMX void sl_gemm_q8_0_amx(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q8_0, sl_gemm_q8_0_avx512, sl_gemm_q8_0_ref);
}

AMX void sl_gemm_q4_0_amx(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_0, sl_gemm_q4_0_avx512, sl_gemm_q4_0_ref);
}

AMX void sl_gemm_q4_1_amx(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_1, sl_gemm_q4_1_avx512, sl_gemm_q4_1_ref);
}

AMX void sl_gemm_q5_0_amx(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_0, sl_gemm_q5_0_avx512, sl_gemm_q5_0_ref);
}

AMX void sl_gemm_q5_1_amx(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_1, sl_gemm_q5_1_avx512, sl_gemm_q5_1_ref);
}

AMX void sl_gemm_q4_k_amx(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_K, sl_gemm_q4_k_avx512, sl_gemm_q4_k_ref);
}

AMX void sl_gemm_q5_k_amx(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_K, sl_gemm_q5_k_avx512, sl_gemm_q5_k_ref);
}

#else
typedef int sl_gemm_amx_is_for_x86;
#endif
