/* Projections with F32, F16 and BF16 weights on vectors: the bits of gemm_ref.c. Lanes are k mod 16.
 * Few rows: a few outputs at a time, their sums in registers. More: STEPS vectors of OUTS outputs become floats in the
 * first cache for up to ROWS rows, whose sums meanwhile lie in memory; a register block takes TILE_ROWS by TILE_OUTS of
 * them. The rows and weights that come next are called near meanwhile.
 * Whoever includes this says what a vector is: BODY, vec, VEC_LANES (of a vec), vec_zero, vec_load, vec_store, vec_fma,
 * vec_of_halves and vec_of_bf16 (that many weights); and the sides of its register blocks, FEW_SIDE and TILE_OUTS.
 * x86-64 only.
 * An inlined helper takes more than six parameters where they are what its caller's loops hold. */
#ifndef SL_GEMM_FLOATS_H
#define SL_GEMM_FLOATS_H

#if defined(BODY) /* empty by itself */

#include <string.h>

#include "kernel/kernel.h"
#include "kernel/scalar.h"

enum {
    FEW_ROWS = 15,
    FEW_OUTS = 4, /* of a register block of few rows; and of one row, always */
    ROWS = 64,    /* that share the conversion of weights */
    OUTS = 12,    /* whose weights lie near at a time, STEPS vectors of each */
    STEPS = 16,
    TILE_ROWS = 4, /* of a register block of more rows */
    CACHE_LINE = 64,
    VECS = SL_LANES / VEC_LANES
};

/* The sums of up to ROWS rows and OUTS outputs, a register block's beside each other; weights as floats. */
typedef struct sums {
    _Alignas(64) float lanes[ROWS * OUTS][SL_LANES];
    _Alignas(64) float w[STEPS][OUTS][SL_LANES];
} sums;

BODY vec weights_at(sl_wtype type, const uint8_t *row, size_t k)
{
    if (type == SL_WTYPE_F32)
        return vec_load((const float *)(const void *)row + k);
    return type == SL_WTYPE_F16 ? vec_of_halves(row + 2 * k) : vec_of_bf16(row + 2 * k);
}

BODY float weight_at(sl_wtype type, const uint8_t *row, size_t k)
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

BODY float fma_scalar(float a, float b, float c)
{
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

/* The elements past the last whole sixteen. Absent ones leave their lanes alone: a product of zeros would turn -0 into
 * +0. */
BODY void add_rest(float *lanes, sl_wtype type, const uint8_t *w, const float *x, size_t n_in)
{
    for (size_t k = n_in / SL_LANES * SL_LANES; k < n_in; k++)
        lanes[k % SL_LANES] = fma_scalar(weight_at(type, w, k), x[k], lanes[k % SL_LANES]);
}

/* t + (t+8), then +4, +2, +1. */
BODY float tree16(const float *lanes)
{
    __m256 s8 = _mm256_add_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* ---------------------------------------------------------------------------------------------------- few rows */

/* n_r rows by n_o outputs, compile-time constants. */
BODY void few_block(const sl_gemm_args *args, sl_wtype type, size_t r0, size_t o0, size_t n_r, size_t n_o)
{
    const size_t row_bytes = sl_wtype_row_bytes(type, args->n_in);
    const uint8_t *w = (const uint8_t *)args->packed + o0 * row_bytes;
    const float *x = args->x + r0 * args->x_stride;
    vec acc[FEW_SIDE][FEW_OUTS][VECS];
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            for (size_t h = 0; h < VECS; h++)
                acc[r][o][h] = vec_zero();
    for (size_t k = 0; k + SL_LANES <= args->n_in; k += SL_LANES)
        for (size_t h = 0; h < VECS; h++)
            for (size_t o = 0; o < n_o; o++) {
                vec wv = weights_at(type, w + o * row_bytes, k + h * VEC_LANES);
                for (size_t r = 0; r < n_r; r++)
                    acc[r][o][h] = vec_fma(wv, vec_load(x + r * args->x_stride + k + h * VEC_LANES), acc[r][o][h]);
            }
    float lanes[FEW_SIDE][FEW_OUTS][SL_LANES];
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++)
            for (size_t h = 0; h < VECS; h++)
                vec_store(lanes[r][o] + h * VEC_LANES, acc[r][o][h]);
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++) {
            add_rest(lanes[r][o], type, w + o * row_bytes, x + r * args->x_stride, args->n_in);
            args->out[(r0 + r) * args->out_stride + o0 + o] = tree16(lanes[r][o]);
        }
}

/* n_o outputs, a compile-time constant, of all rows. */
BODY void few_rows(const sl_gemm_args *args, sl_wtype type, size_t o, size_t n_o)
{
    size_t r = 0;
    for (; r + FEW_SIDE <= args->n_rows; r += FEW_SIDE)
        few_block(args, type, r, o, FEW_SIDE, n_o);
    for (; r < args->n_rows; r++)
        few_block(args, type, r, o, 1, n_o);
}

BODY void gemm_few(const sl_gemm_args *args, sl_wtype type)
{
    size_t end = args->first_out + args->n, o = args->first_out;
    for (; args->n_rows == 1 && o + FEW_OUTS <= end; o += FEW_OUTS)
        few_rows(args, type, o, FEW_OUTS);
    for (; o + FEW_SIDE <= end; o += FEW_SIDE)
        few_rows(args, type, o, FEW_SIDE);
    for (; o < end; o++)
        few_rows(args, type, o, 1);
}

/* --------------------------------------------------------------------------------------------------- more rows */

/* Elements of up to OUTS outputs' rows as floats, for all rows. */
typedef struct chunk {
    const float *x; /* the first of them in the first row */
    size_t x_stride, n_rows, n_steps, n_outs;
    uintptr_t next; /* packed elements that come next in the first output: a hint, maybe past the end */
    size_t row_bytes, next_bytes;
} chunk;

/* n_r rows from x on by n_o outputs: compile-time constants up to TILE_ROWS and TILE_OUTS. Their sums lie densely. */
BODY void tile(float (*lanes)[SL_LANES], const float (*w)[OUTS][SL_LANES], const float *x, const chunk *c,
               uintptr_t ahead, size_t n_r, size_t n_o)
{
    for (size_t h = 0; h < VECS; h++) {
        const size_t at = h * VEC_LANES;
        vec acc[TILE_ROWS][TILE_OUTS];
        for (size_t r = 0; r < n_r; r++)
            for (size_t o = 0; o < n_o; o++)
                acc[r][o] = vec_load(lanes[r * n_o + o] + at);
        for (size_t step = 0; step < c->n_steps; step++) {
            vec wv[TILE_OUTS];
            if (h == 0)
                _mm_prefetch((const char *)(ahead + step * SL_LANES * sizeof *x), _MM_HINT_T0);
            for (size_t o = 0; o < n_o; o++)
                wv[o] = vec_load(w[step][o] + at);
            for (size_t r = 0; r < n_r; r++) {
                const vec xv = vec_load(x + r * c->x_stride + step * SL_LANES + at);
                for (size_t o = 0; o < n_o; o++)
                    acc[r][o] = vec_fma(wv[o], xv, acc[r][o]);
            }
        }
        for (size_t r = 0; r < n_r; r++)
            for (size_t o = 0; o < n_o; o++)
                vec_store(lanes[r * n_o + o] + at, acc[r][o]);
    }
}

/* n_r rows from r on by all outputs, while the rows that follow are called near: one with each tile. */
BODY void tiles(sums *s, const chunk *c, size_t r, size_t n_r)
{
    float(*lanes)[SL_LANES] = s->lanes + r * c->n_outs;
    size_t follows = r + n_r;
    for (size_t o = 0, n; o < c->n_outs; o += n, lanes += n_r * n, follows++) {
        const float(*w)[OUTS][SL_LANES] = (const float(*)[OUTS][SL_LANES])(const void *)s->w[0][o];
        const float *x = c->x + r * c->x_stride;
        size_t off = follows * c->x_stride;
        if (follows >= c->n_rows) /* the first rows again, further on */
            off = (follows - c->n_rows) * c->x_stride + STEPS * SL_LANES;
        const uintptr_t ahead = (uintptr_t)c->x + off * sizeof *x;
        n = c->n_outs - o >= TILE_OUTS ? TILE_OUTS : 1;
        if (n == TILE_OUTS)
            tile(lanes, w, x, c, ahead, n_r, TILE_OUTS);
        else
            tile(lanes, w, x, c, ahead, n_r, 1);
    }
}

/* Of the next chunk's weights the part for rows [r, r + n_r). */
BODY void call_weights(const chunk *c, size_t r, size_t n_r)
{
    for (size_t o = r * c->n_outs / c->n_rows; o < (r + n_r) * c->n_outs / c->n_rows; o++)
        for (size_t at = 0; at < c->next_bytes; at += CACHE_LINE)
            _mm_prefetch((const char *)(c->next + o * c->row_bytes + at), _MM_HINT_T0);
}

/* The sums of lanes, to `out`. */
BODY void finish(const sl_gemm_args *args, sl_wtype type, sums *s, size_t o0, size_t n_outs)
{
    const size_t row_bytes = sl_wtype_row_bytes(type, args->n_in);
    const uint8_t *w = (const uint8_t *)args->packed + o0 * row_bytes;
    float(*lanes)[SL_LANES] = s->lanes;
    for (size_t first = 0, n_r; first < args->n_rows; first += n_r) {
        n_r = args->n_rows - first >= TILE_ROWS ? TILE_ROWS : 1;
        for (size_t from = 0, n_o; from < n_outs; from += n_o) {
            n_o = n_outs - from >= TILE_OUTS ? TILE_OUTS : 1;
            for (size_t r = first; r < first + n_r; r++)
                for (size_t o = from; o < from + n_o; o++, lanes++) {
                    add_rest(*lanes, type, w + o * row_bytes, args->x + r * args->x_stride, args->n_in);
                    args->out[r * args->out_stride + o0 + o] = tree16(*lanes);
                }
        }
    }
}

/* Up to OUTS outputs from o0 on, of up to ROWS rows. */
BODY void many_outs(const sl_gemm_args *args, sl_wtype type, sums *s, size_t o0, size_t n_outs)
{
    const size_t n_steps = args->n_in / SL_LANES, row_bytes = sl_wtype_row_bytes(type, args->n_in);
    const uint8_t *w = (const uint8_t *)args->packed + o0 * row_bytes;
    chunk c = {.x_stride = args->x_stride, .n_rows = args->n_rows, .n_outs = n_outs, .row_bytes = row_bytes};
    memset(s->lanes, 0, args->n_rows * n_outs * sizeof s->lanes[0]);
    for (size_t first = 0; first < n_steps; first += STEPS) {
        c.x = args->x + first * SL_LANES;
        c.n_steps = n_steps - first < STEPS ? n_steps - first : STEPS;
        c.next_bytes = sl_wtype_row_bytes(type, c.n_steps * SL_LANES);
        c.next = (uintptr_t)w + sl_wtype_row_bytes(type, (first + c.n_steps) * SL_LANES);
        if (first + c.n_steps == n_steps)
            c.next = (uintptr_t)w + n_outs * row_bytes;
        for (size_t o = 0; o < n_outs; o++)
            for (size_t step = 0; step < c.n_steps; step++)
                for (size_t h = 0; h < VECS; h++)
                    vec_store(s->w[step][o] + h * VEC_LANES,
                              weights_at(type, w + o * row_bytes, (first + step) * SL_LANES + h * VEC_LANES));
        size_t r = 0;
        for (; r + TILE_ROWS <= c.n_rows; r += TILE_ROWS) {
            tiles(s, &c, r, TILE_ROWS);
            call_weights(&c, r, TILE_ROWS);
        }
        for (; r < c.n_rows; r++) {
            tiles(s, &c, r, 1);
            call_weights(&c, r, 1);
        }
    }
    finish(args, type, s, o0, n_outs);
}

BODY void gemm_floats(const sl_gemm_args *args, sl_wtype type)
{
    if (args->n_rows <= FEW_ROWS) {
        gemm_few(args, type);
        return;
    }
    sums s;
    sl_gemm_args block = *args;
    for (size_t o = 0; o < args->n; o += OUTS)
        for (size_t r = 0; r < args->n_rows; r += block.n_rows) {
            block.n_rows = args->n_rows - r < ROWS ? args->n_rows - r : ROWS;
            block.x = args->x + r * args->x_stride;
            block.out = args->out + r * args->out_stride;
            many_outs(&block, type, &s, args->first_out + o, args->n - o < OUTS ? args->n - o : OUTS);
        }
}

#endif
#endif
