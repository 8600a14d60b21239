/* Projections for AMX: the bits of gemm_ref.c.
 * A panel's group, as signed bytes, is a right operand: eight rows of sixteen outputs' four bytes. Sixteen rows of
 * quantised input are the left one. Each group's products go through memory to vector registers, where they are
 * scaled: products are begun four groups ahead of that and stored two ahead. A few groups of all rows lie in the first
 * cache, aligned and dense (a tile load that crosses lines takes twice as long), beside the panel's; panel after panel
 * passes by, its sums kept densely until the last of its groups, while the packed groups that come next are called
 * from memory.
 * After a tile instruction 512-bit products and conversions have one port, additions two. So a sum becomes a float by
 * two additions: of the bits of 1.5 * 2^23, which read as binary32 are then that number plus the sum, and of its
 * negative, exactly.
 * Few rows, Q6_K, float weights and a narrow last panel are other levels'. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <string.h>

#include "kernel/amx.h"
#include "kernel/gemm_avx512.h"

enum {
    FEWEST_ROWS = 12, /* below, AVX-512 is as fast */
    PLANE = GEMM_PLANE,
    GROUP_VALUES = GEMM_QUADS * PLANE, /* as signed bytes */
    STEPS = 4,                         /* products on their way */
    CHUNK = 8,                         /* groups that are near at a time; a multiple of STEPS and of a block's */
    MOST_BLOCKS = 4,                   /* of rows, for which they are */
    SUM_ROWS = 1024,                   /* of sixteen outputs, that wait for further groups */
    TILE = AMX_ROWS * SL_GROUP,        /* bytes of a left operand */
    LINE = 64,                         /* of a cache */
    ROUND_BITS = 0x4b400000
};

#define ROUND 12582912.0f /* 1.5 * 2^23 */

/* Sixteen accumulators, a row each. Each has a name, because gcc leaves an array of them in memory. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

/* Up to CHUNK groups of a panel. */
typedef struct panel {
    _Alignas(64) uint8_t values[CHUNK * GROUP_VALUES]; /* signed */
    float d[CHUNK][SL_PANEL], m[CHUNK][SL_PANEL];
    size_t n_groups;
    bool is_first, is_last; /* of the panel's chunks */
    /* Packed groups that come next, called in pieces of so many bytes. They may be past the end of the matrix: the
     * address is only a hint. */
    uintptr_t next;
    size_t next_piece;
} panel;

/* Input rows of a chunk, in blocks of AMX_ROWS, the last one filled up with zeros; products; sums of some panels. */
typedef struct work {
    _Alignas(64) int32_t products[STEPS][AMX_ROWS][SL_PANEL];
    /* [block][group][row][32], as many groups as STEPS divides; what is begun at the end is never used */
    int8_t q[(MOST_BLOCKS * CHUNK + STEPS) * TILE];
    float scale[MOST_BLOCKS][AMX_ROWS][CHUNK], minimum[MOST_BLOCKS][AMX_ROWS][CHUNK]; /* minimum: scale * sum */
    _Alignas(64) float sums[SUM_ROWS][SL_PANEL];                                      /* [panel][row of the blocks] */
    const uint8_t *rows; /* quantised */
    size_t n_rows, n_blocks;
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

/* Groups in whole STEPS. */
AMX_INLINE size_t in_steps(size_t n_groups)
{
    return (n_groups + STEPS - 1) / STEPS * STEPS;
}

/* Groups [first, first + n) of the rows, which have n_in elements. */
AMX_INLINE void rows_lay_out(work *w, size_t n_in, size_t first, size_t n, const bool minimums)
{
    const size_t n_steps = in_steps(n);
    const uint8_t *row = w->rows;
    for (size_t r = 0; r < w->n_rows; r++, row += sl_qrow_bytes(n_in)) {
        const float *scale = (const float *)(const void *)row + first;
        const float *sum = (const float *)(const void *)(row + sl_qrow_sum_off(n_in)) + first;
        const uint8_t *q = row + sl_qrow_q_off(n_in) + first * SL_GROUP;
        const size_t block = r / AMX_ROWS, i = r % AMX_ROWS;
        for (size_t g = 0; g < n; g++)
            memcpy(w->q + (block * n_steps + g) * TILE + i * SL_GROUP, q + g * SL_GROUP, SL_GROUP);
        memcpy(w->scale[block][i], scale, n * sizeof *scale);
        for (size_t g = 0; minimums && g < n; g++) /* not of what lies behind: a product with a denormal takes long */
            w->minimum[block][i][g] = scale[g] * sum[g];
    }
    for (size_t r = w->n_rows; r < w->n_blocks * AMX_ROWS; r++) {
        const size_t block = r / AMX_ROWS, i = r % AMX_ROWS;
        for (size_t g = 0; g < n; g++)
            memset(w->q + (block * n_steps + g) * TILE + i * SL_GROUP, 0, SL_GROUP);
        memset(w->scale[block][i], 0, sizeof w->scale[block][i]);
        memset(w->minimum[block][i], 0, sizeof w->minimum[block][i]);
    }
}

/* acc + a row's products, scaled. Compilers would move this across tile instructions until registers no longer do; not
 * across the empty statement. */
AMX_INLINE __m512 scaled(__m512 acc, const int32_t *products, __m512 d, float scale)
{
    const __m512i bits = _mm512_add_epi32(_mm512_load_si512(products), _mm512_set1_epi32(ROUND_BITS));
    const __m512 value = _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(ROUND));
    acc = _mm512_fmadd_ps(value, _mm512_mul_ps(d, _mm512_set1_ps(scale)), acc);
    __asm__ volatile("" : "+v"(acc));
    return acc;
}

AMX_INLINE __m512 with_minimum(__m512 acc, __m512 m, float minimum)
{
    acc = _mm512_fmadd_ps(m, _mm512_set1_ps(minimum), acc);
    __asm__ volatile("" : "+v"(acc));
    return acc;
}

/* Registers 0 to 3 hold products, 4, 5 weights, 6, 7 rows: a product takes 50 cycles before its register is free for
 * another one, so that it takes four registers to keep up with the scaling. A product is cleared as soon as it is
 * stored, and a group's scaling lies between loads and product: what waits for a tile register holds up all that comes
 * behind it. Measured: 1.2 to 1.5 times the speed beside a busy neighbour. */
#define BEGIN(weights, rows, at)                                                                                       \
    AMX_LOAD(weights, (at), PLANE);                                                                                    \
    AMX_LOAD(rows, q, SL_GROUP);                                                                                       \
    q += TILE;
#define MULTIPLY(c, weights, rows) AMX_DOT_SS(c, rows, weights);
#define END(c)                                                                                                         \
    AMX_STORE(c, w->products[c], PLANE);                                                                               \
    AMX_ZERO(c);
#define CALL_AHEAD                                                                                                     \
    for (const uintptr_t end = next + p->next_piece; next != end; next += LINE)                                        \
        _mm_prefetch((const char *)next, _MM_HINT_T0);

#define START(i) __m512 acc##i = p->is_first ? _mm512_setzero_ps() : _mm512_load_ps(sums[i]);
#define SCALE(i) acc##i = scaled(acc##i, products[i], d, scale[i][at]);
#define MINIMUM(i) acc##i = with_minimum(acc##i, m, minimum[i][at]);
#define STORE(i)                                                                                                       \
    if (!p->is_last)                                                                                                   \
        _mm512_store_ps(sums[i], acc##i);                                                                              \
    else if (i < n_rows)                                                                                               \
        _mm512_storeu_ps(out + i * out_stride, acc##i);
/* Group g + c, if there is one. */
#define FOLD(c)                                                                                                        \
    if (g + c < p->n_groups) {                                                                                         \
        int32_t(*products)[SL_PANEL] = w->products[c];                                                                 \
        const size_t at = g + c;                                                                                       \
        const __m512 d = _mm512_load_ps(p->d[at]);                                                                     \
        EACH_ROW(SCALE)                                                                                                \
        if (gemm_has_minimum(type)) {                                                                                  \
            const __m512 m = _mm512_load_ps(p->m[at]);                                                                 \
            EACH_ROW(MINIMUM)                                                                                          \
        }                                                                                                              \
    }

/* A chunk of a panel times all rows; the sums go on from `sums`, and to `out` at the end. */
AMX_INLINE void panel_rows(float *out, size_t out_stride, float (*sums)[SL_PANEL], const panel *p, work *w,
                           sl_wtype type)
{
    const size_t n_groups = in_steps(p->n_groups);
    const int8_t *q = w->q;
    const uint8_t *then = p->values; /* of the group that is begun next, in steps */
    uintptr_t next = p->next;
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    BEGIN(4, 6, then) MULTIPLY(0, 4, 6)
    BEGIN(5, 7, then + GROUP_VALUES) MULTIPLY(1, 5, 7)
    BEGIN(4, 6, then + 2 * GROUP_VALUES) MULTIPLY(2, 4, 6)
    END(0)
    BEGIN(5, 7, then + 3 * GROUP_VALUES) MULTIPLY(3, 5, 7)
    END(1)
    for (size_t block = 0; block < w->n_blocks; block++, out += AMX_ROWS * out_stride, sums += AMX_ROWS) {
        const size_t n_rows = w->n_rows - block * AMX_ROWS; /* at least: those of the block */
        float(*scale)[CHUNK] = w->scale[block], (*minimum)[CHUNK] = w->minimum[block];
        EACH_ROW(START)
        for (size_t g = 0; g < n_groups; g += STEPS) {
            then = p->values + (g + STEPS < n_groups ? g + STEPS : 0) * GROUP_VALUES;
            BEGIN(4, 6, then)
            CALL_AHEAD
            END(2)
            FOLD(0)
            MULTIPLY(0, 4, 6)
            BEGIN(5, 7, then + GROUP_VALUES)
            END(3)
            FOLD(1)
            MULTIPLY(1, 5, 7)
            BEGIN(4, 6, then + 2 * GROUP_VALUES)
            CALL_AHEAD
            END(0)
            FOLD(2)
            MULTIPLY(2, 4, 6)
            BEGIN(5, 7, then + 3 * GROUP_VALUES)
            END(1)
            FOLD(3)
            MULTIPLY(3, 5, 7)
        }
        EACH_ROW(STORE)
    }
}

/* Packed bytes from `next` on, in pieces that together reach as far. */
AMX_INLINE void panel_next(panel *p, const work *w, uintptr_t next, size_t bytes)
{
    const size_t n_pieces = w->n_blocks * in_steps(p->n_groups) / 2;
    p->next = next;
    p->next_piece = (bytes / LINE + n_pieces) / n_pieces * LINE;
}

/* The outputs of n_panels panels for w's rows. */
AMX_INLINE void multiply_panels(float *out, const sl_gemm_args *args, const uint8_t *panels, size_t n_panels, work *w,
                                sl_wtype type)
{
    const size_t n_groups = args->n_in / SL_GROUP, panel_bytes = sl_wtype_row_bytes(type, args->n_in) * SL_PANEL;
    panel p;
    for (size_t g = 0; g < n_groups; g += CHUNK) {
        const uint8_t *const first = panels + g / gemm_block_groups(type) * gemm_block_bytes(type);
        p.n_groups = n_groups - g < CHUNK ? n_groups - g : CHUNK;
        p.is_first = g == 0;
        p.is_last = g + p.n_groups == n_groups;
        const size_t bytes = p.n_groups / gemm_block_groups(type) * gemm_block_bytes(type);
        rows_lay_out(w, args->n_in, g, p.n_groups, gemm_has_minimum(type));
        for (size_t i = 0; i < n_panels; i++) {
            const uint8_t *groups = first + i * panel_bytes;
            uintptr_t next = (uintptr_t)groups + panel_bytes;
            if (i + 1 == n_panels)
                next = p.is_last ? (uintptr_t)panels + n_panels * panel_bytes : (uintptr_t)first + bytes;
            panel_next(&p, w, next, bytes);
            panel_decode(&p, groups, type);
            panel_rows(out + i * SL_PANEL, args->out_stride, w->sums + i * w->n_blocks * AMX_ROWS, &p, w, type);
        }
    }
}

/* Whole panels of up to MOST_BLOCKS blocks of rows, as many panels at a time as have room for their sums. */
AMX_INLINE void multiply(const sl_gemm_args *args, size_t first_row, size_t n_rows, sl_wtype type)
{
    const amx_config config = {
        .palette = AMX_PALETTE,
        .row_bytes = {PLANE, PLANE, PLANE, PLANE, PLANE, PLANE, SL_GROUP, SL_GROUP},
        .rows = {AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, GEMM_QUADS, GEMM_QUADS, AMX_ROWS, AMX_ROWS}};
    const size_t panel_bytes = sl_wtype_row_bytes(type, args->n_in) * SL_PANEL, n_panels = args->n / SL_PANEL;
    const uint8_t *panels = (const uint8_t *)args->packed + args->first_out / SL_PANEL * panel_bytes;
    float *out = args->out + first_row * args->out_stride + args->first_out;
    work w;
    w.rows = (const uint8_t *)args->qrows + first_row * sl_qrow_bytes(args->n_in);
    w.n_rows = n_rows;
    w.n_blocks = (n_rows + AMX_ROWS - 1) / AMX_ROWS;
    const size_t most = SUM_ROWS / (w.n_blocks * AMX_ROWS), n_turns = (n_panels + most - 1) / most;
    amx_configure(&config);
    for (size_t turn = 0; turn < n_turns; turn++) {
        const size_t from = turn * n_panels / n_turns, to = (turn + 1) * n_panels / n_turns;
        multiply_panels(out + from * SL_PANEL, args, panels + from * panel_bytes, to - from, &w, type);
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
