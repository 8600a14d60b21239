/* Projections for AMX: the bits of gemm_ref.c.
 * A panel's group, as signed bytes, is a right operand: eight rows of sixteen outputs' four bytes. Sixteen rows of
 * quantised input are the left one. Each group's products go through memory to vector registers, where they are
 * scaled; products run three groups ahead of that. Both operands are laid out anew for many products, aligned and dense
 * (a tile load that crosses lines takes twice as long, and rows that lie a multiple of 1024 bytes apart share a few
 * sets of the first cache), while the packed groups that come next are called from memory.
 * Few rows, Q6_K, float weights and a narrow last panel are other levels'.
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
    CHUNK = 16,                        /* groups that are decoded at a time; a multiple of 16 */
    MOST_BLOCKS = 8,                   /* row blocks for which they are */
    TILE = AMX_ROWS * SL_GROUP,        /* bytes of a left operand */
    LINE = 64                          /* of a cache */
};

/* Sixteen accumulators, a row each. Each has a name, because gcc leaves an array of them in memory. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

/* Up to CHUNK groups of a panel. */
typedef struct panel {
    _Alignas(64) uint8_t values[CHUNK * GROUP_VALUES]; /* signed */
    float d[CHUNK][SL_PANEL], m[CHUNK][SL_PANEL];
    size_t n_groups;
    /* Packed groups that come next, `left` bytes, of which `each` are called in a step. They may be past the end of the
     * matrix: the address is only a hint. */
    uintptr_t next;
    size_t left, each;
} panel;

/* Input rows of a chunk, in blocks of AMX_ROWS, the last one filled up with zeros; and two groups of products. */
typedef struct work {
    _Alignas(64) int32_t products[2][AMX_ROWS][SL_PANEL];
    int8_t q[MOST_BLOCKS * CHUNK * TILE]; /* [block][group][row][32] */
    float scale[MOST_BLOCKS][AMX_ROWS][CHUNK], minimum[MOST_BLOCKS][AMX_ROWS][CHUNK]; /* minimum: scale * sum */
    size_t n_rows;
} work;

/* Groups [0, n_groups) of a chunk to signed bytes and floats. */
AMX_INLINE void panel_decode(panel *p, const uint8_t *block, sl_wtype type)
{
    const size_t block_groups = gemm_block_groups(type), value_bytes = gemm_value_bytes(type);
    for (size_t b = 0; b < p->n_groups; b += block_groups, block += gemm_block_bytes(type)) {
        for (size_t g = 0; g < block_groups; g++) {
            const __m512i offset = _mm512_set1_epi8((char)gemm_offset(type));
            uint8_t *to = p->values + (b + g) * GROUP_VALUES;
            __m512i w[GEMM_QUADS];
            if (type != SL_WTYPE_Q8_0)
                gemm_values(w, block + g * value_bytes, type);
            for (size_t i = 0; i < GEMM_QUADS; i++) {
                if (type == SL_WTYPE_Q8_0)
                    w[i] = _mm512_loadu_si512(block + i * PLANE);
                else if (gemm_offset(type) != 0)
                    w[i] = _mm512_sub_epi8(w[i], offset);
                _mm512_store_si512(to + i * PLANE, w[i]);
            }
        }
        gemm_scales_read((gemm_scales){p->d + b, p->m + b, NULL}, block + block_groups * value_bytes, type);
    }
}

AMX_INLINE void call_ahead(panel *p)
{
    const size_t n = p->left < p->each ? p->left : p->each;
    for (size_t i = 0; i < n; i += LINE)
        _mm_prefetch((const char *)(p->next + i), _MM_HINT_T0);
    p->next += n;
    p->left -= n;
}

/* Registers 0 to 3 hold products, 4, 5 weights, 6, 7 rows: a product takes 50 cycles before its register is free for
 * another one, so that it takes four registers to keep up with the scaling. */
AMX_INLINE void start_product(const uint8_t *values, const int8_t *q, size_t step)
{
#define START(c, weights, rows)                                                                                        \
    AMX_LOAD(weights, values, PLANE);                                                                                  \
    AMX_LOAD(rows, q, SL_GROUP);                                                                                       \
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
    size_t g, step, n_steps;
} cursor;

AMX_INLINE void start_next(const panel *p, const work *w, cursor *at)
{
    if (at->step == at->n_steps)
        return;
    start_product(p->values + at->g * GROUP_VALUES, w->q + at->step * TILE, at->step);
    at->step++;
    if (++at->g == p->n_groups)
        at->g = 0;
}

/* Groups [first, first + n) of the rows from `row` on, quantised rows of n_in elements. */
AMX_INLINE void rows_lay_out(work *w, const uint8_t *row, size_t n_in, size_t first, size_t n, const bool minimums)
{
    for (size_t r = 0; r < w->n_rows; r++, row += sl_qrow_bytes(n_in)) {
        const float *scale = (const float *)(const void *)row + first;
        const float *sum = (const float *)(const void *)(row + sl_qrow_sum_off(n_in)) + first;
        const uint8_t *q = row + sl_qrow_q_off(n_in) + first * SL_GROUP;
        const size_t block = r / AMX_ROWS, i = r % AMX_ROWS;
        for (size_t g = 0; g < n; g++)
            memcpy(w->q + (block * n + g) * TILE + i * SL_GROUP, q + g * SL_GROUP, SL_GROUP);
        for (size_t g = 0; g < n; g += SL_LANES) {
            const size_t left = n - g;
            const __mmask16 valid = (__mmask16)(left >= SL_LANES ? 0xffffu : (1u << left) - 1u);
            const __m512 s = _mm512_maskz_loadu_ps(valid, scale + g);
            _mm512_storeu_ps(w->scale[block][i] + g, s);
            if (minimums) /* not of what lies behind the arrays: a product with a denormal takes long */
                _mm512_storeu_ps(w->minimum[block][i] + g, _mm512_mul_ps(s, _mm512_maskz_loadu_ps(valid, sum + g)));
        }
    }
    for (size_t r = w->n_rows; r % AMX_ROWS != 0; r++) {
        const size_t block = r / AMX_ROWS, i = r % AMX_ROWS;
        for (size_t g = 0; g < n; g++)
            memset(w->q + (block * n + g) * TILE + i * SL_GROUP, 0, SL_GROUP);
        memset(w->scale[block][i], 0, sizeof w->scale[block][i]);
        memset(w->minimum[block][i], 0, sizeof w->minimum[block][i]);
    }
}

/* A chunk of a panel times all rows; after the first chunk the sums go on from `out`. */
AMX_INLINE void panel_rows(float *out, size_t out_stride, panel *p, work *w, const bool first, sl_wtype type)
{
    const size_t n_blocks = (w->n_rows + AMX_ROWS - 1) / AMX_ROWS;
    cursor ahead = {0, 0, n_blocks * p->n_groups};
    size_t step = 0;
    for (int i = 0; i < AHEAD; i++)
        start_next(p, w, &ahead);
    end_product(w, 0);
    for (size_t block = 0; block < n_blocks; block++, out += AMX_ROWS * out_stride) {
        const size_t n_rows = w->n_rows - block * AMX_ROWS; /* at least: those of the block */
        float(*scale)[CHUNK] = w->scale[block], (*minimum)[CHUNK] = w->minimum[block];
#define START(i) __m512 acc##i = first || i >= n_rows ? _mm512_setzero_ps() : _mm512_loadu_ps(out + i * out_stride);
#define SCALE(i)                                                                                                       \
    acc##i = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(products[i])),                              \
                             _mm512_mul_ps(d, _mm512_set1_ps(scale[i][g])), acc##i);
#define MINIMUM(i) acc##i = _mm512_fmadd_ps(m, _mm512_set1_ps(minimum[i][g]), acc##i);
#define STORE(i)                                                                                                       \
    if (i < n_rows)                                                                                                    \
        _mm512_storeu_ps(out + i * out_stride, acc##i);
        EACH_ROW(START)
        for (size_t g = 0; g < p->n_groups; g++, step++) {
            start_next(p, w, &ahead);
            call_ahead(p);
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

/* Whole panels of up to MOST_BLOCKS blocks of rows. */
AMX_INLINE void multiply(const sl_gemm_args *args, size_t first_row, size_t n_rows, sl_wtype type)
{
    const amx_config config = {
        .palette = AMX_PALETTE,
        .row_bytes = {PLANE, PLANE, PLANE, PLANE, PLANE, PLANE, SL_GROUP, SL_GROUP},
        .rows = {AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, GEMM_QUADS, GEMM_QUADS, AMX_ROWS, AMX_ROWS}};
    const size_t n_groups = args->n_in / SL_GROUP, panel_bytes = sl_wtype_row_bytes(type, args->n_in) * SL_PANEL;
    const size_t first_panel = args->first_out / SL_PANEL, n_panels = args->n / SL_PANEL;
    const uint8_t *row = (const uint8_t *)args->qrows + first_row * sl_qrow_bytes(args->n_in);
    panel p;
    work w;
    w.n_rows = n_rows;
    amx_configure(&config);
    for (size_t g = 0; g < n_groups; g += CHUNK) {
        const uint8_t *groups = (const uint8_t *)args->packed + first_panel * panel_bytes +
                                g / gemm_block_groups(type) * gemm_block_bytes(type);
        float *out = args->out + first_row * args->out_stride + args->first_out;
        p.n_groups = n_groups - g < CHUNK ? n_groups - g : CHUNK;
        rows_lay_out(&w, row, args->n_in, g, p.n_groups, gemm_has_minimum(type));
        for (size_t i = 0; i < n_panels; i++, groups += panel_bytes, out += SL_PANEL) {
            p.next = (uintptr_t)groups + panel_bytes;
            p.left = p.n_groups / gemm_block_groups(type) * gemm_block_bytes(type);
            p.each = (p.left * AMX_ROWS / (p.n_groups * n_rows) / LINE + 1) * LINE;
            panel_decode(&p, groups, type);
            panel_rows(out, args->out_stride, &p, &w, g == 0, type);
        }
    }
    amx_release();
}

/* Rows by blocks; few, and a narrow last panel, by others. */
AMX_INLINE void gemm_panels(const sl_gemm_args *args, sl_wtype type, sl_gemm_fn few, sl_gemm_fn reference)
{
    const size_t narrow = args->n % SL_PANEL;
    size_t step;
    for (size_t r = 0; r < args->n_rows; r += step) {
        const size_t left = args->n_rows - r;
        step = left < MOST_BLOCKS * AMX_ROWS ? left : MOST_BLOCKS * AMX_ROWS;
        sl_gemm_args rest = *args;
        rest.n_rows = step;
        rest.qrows = (const uint8_t *)args->qrows + r * sl_qrow_bytes(args->n_in);
        rest.out = args->out + r * args->out_stride;
        if (step < FEWEST_ROWS) {
            few(&rest);
            return;
        }
        multiply(args, r, step, type);
        rest.first_out += args->n - narrow;
        rest.n = narrow;
        if (narrow > 0)
            reference(&rest);
    }
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
