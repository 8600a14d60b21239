/* The way through a matrix that gemm_panels.h describes: blocks of groups, row blocks, the narrow last panel. */
#include "kernel/gemm_panels.h"

#include <stdalign.h>
#include <string.h>

enum { CACHE_LINE = 64, MAX_BLOCK_BYTES = SL_PANEL * SL_PANEL_GROUPS * 34 };

/* Bytes of an output in a block of a panel: fields of four bytes (values, high bits, packed scales), then of two, of
 * one. */
typedef struct block_fields {
    uint8_t n_fours, n_twos, n_ones;
} block_fields;

static const block_fields FIELDS[SL_WTYPE_COUNT] = {
    [SL_WTYPE_Q8_0] = {8, 1, 0},    [SL_WTYPE_Q4_0] = {4, 1, 0},   [SL_WTYPE_Q4_1] = {4, 2, 0},
    [SL_WTYPE_Q5_0] = {5, 1, 0},    [SL_WTYPE_Q5_1] = {5, 2, 0},   [SL_WTYPE_Q4_K] = {35, 2, 0},
    [SL_WTYPE_Q5_K] = {43, 2, 0},   [SL_WTYPE_Q6_K] = {48, 9, 0},  [SL_WTYPE_Q2_K] = {16, 10, 0},
    [SL_WTYPE_Q3_K] = {27, 1, 0},   [SL_WTYPE_IQ4_NL] = {4, 1, 0}, [SL_WTYPE_IQ4_XS] = {33, 2, 0},
    [SL_WTYPE_MXFP4] = {4, 0, 1},
};

/* n fields of `size` bytes each. */
static void widen_fields(uint8_t **out, const uint8_t **in, size_t n, size_t size, size_t w)
{
    for (size_t i = 0; i < n; i++, *in += size * w, *out += size * SL_PANEL) {
        memcpy(*out, *in, size * w);
        memset(*out + size * w, 0, size * (SL_PANEL - w));
    }
}

/* n blocks of a panel of w outputs as those of a panel of sixteen, the missing ones zero. */
static void widen(uint8_t *out, const uint8_t *in, block_fields fields, size_t n, size_t w)
{
    for (size_t block = 0; block < n; block++) {
        widen_fields(&out, &in, fields.n_fours, 4, w);
        widen_fields(&out, &in, fields.n_twos, 2, w);
        widen_fields(&out, &in, fields.n_ones, 1, w);
    }
}

/* One panel of w outputs for in's rows, to out. */
static void panel_rows(const sl_gemm_args *args, const sl_panel_ops *ops, size_t o, const sl_panel_rows *in, float *out)
{
    alignas(CACHE_LINE) float acc[SL_PANEL_ROWS][SL_PANEL];
    alignas(CACHE_LINE) sl_panel_block block;
    alignas(CACHE_LINE) uint8_t wide[MAX_BLOCK_BYTES];
    size_t left = args->n_out - o, w = left < SL_PANEL ? left : SL_PANEL, n_groups = args->n_in / SL_GROUP;
    const uint8_t *panel = (const uint8_t *)args->packed + o * sl_wtype_row_bytes(ops->type, args->n_in);
    bool whole = w == SL_PANEL, few = in->n <= SL_PANEL_FEW;
    /* A few rows keep nothing near: the panel is read in one go. */
    size_t step = whole && few ? n_groups : SL_PANEL_GROUPS;
    memset(acc, 0, in->n * sizeof acc[0]);
    for (size_t g = 0; g < n_groups; g += step) {
        size_t n = n_groups - g < step ? n_groups - g : step, elems = n * SL_GROUP;
        const uint8_t *packed = panel + w * sl_wtype_row_bytes(ops->type, g * SL_GROUP);
        if (!whole) {
            widen(wide, packed, FIELDS[ops->type], elems / sl_wtype_block_elems(ops->type), w);
            packed = wide;
        }
        if (few || !ops->decode) {
            ops->packed(acc, packed, g, n, in);
            continue;
        }
        ops->decode(&block, packed, n);
        ops->block(acc, &block, g, n, in);
    }
    for (size_t r = 0; r < in->n; r++)
        if (whole) /* a size that compilers know */
            memcpy(out + r * args->out_stride, acc[r], sizeof acc[r]);
        else
            memcpy(out + r * args->out_stride, acc[r], w * sizeof(float));
}

void sl_gemm_panels(const sl_gemm_args *args, const sl_panel_ops *ops)
{
    sl_panel_rows in = {NULL, sl_qrow_bytes(args->n_in), sl_qrow_sum_off(args->n_in), sl_qrow_q_off(args->n_in), 0};
    for (size_t o = args->first_out; o < args->first_out + args->n; o += SL_PANEL)
        for (size_t r = 0; r < args->n_rows; r += in.n) {
            in.rows = (const uint8_t *)args->qrows + r * in.stride;
            in.n = args->n_rows - r < SL_PANEL_ROWS ? args->n_rows - r : SL_PANEL_ROWS;
            panel_rows(args, ops, o, &in, args->out + r * args->out_stride + o);
        }
}
