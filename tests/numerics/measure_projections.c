/* Projections against binary64: what the sums' roundings cost, and, in the last column, what 8-bit rows add. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tiny_model.h"
#include "numerics/measure.h"

enum { N_IN = 1536, N_OUT = 64, N_ROWS = 64 };

static const uint32_t ggml_types[SL_WTYPE_COUNT] = {
    [SL_WTYPE_F32] = TINY_TYPE_F32,   [SL_WTYPE_F16] = TINY_TYPE_F16,   [SL_WTYPE_BF16] = TINY_TYPE_BF16,
    [SL_WTYPE_Q8_0] = TINY_TYPE_Q8_0, [SL_WTYPE_Q4_0] = TINY_TYPE_Q4_0, [SL_WTYPE_Q4_1] = TINY_TYPE_Q4_1,
    [SL_WTYPE_Q5_0] = TINY_TYPE_Q5_0, [SL_WTYPE_Q5_1] = TINY_TYPE_Q5_1, [SL_WTYPE_Q4_K] = TINY_TYPE_Q4_K,
    [SL_WTYPE_Q5_K] = TINY_TYPE_Q5_K, [SL_WTYPE_Q6_K] = TINY_TYPE_Q6_K};

/* A layer's product: weights [N_OUT][N_IN] as a type has them, inputs [N_ROWS][N_IN]. */
typedef struct operands {
    sl_wtype type;
    uint8_t packed[N_OUT * N_IN * 4];
    _Alignas(64) uint8_t qrows[N_ROWS * (N_IN + 2 * N_IN / 8 + 64)];
    float x[N_ROWS][N_IN], out[N_ROWS][N_OUT];
} operands;

static void pack(operands *op, const float *weights)
{
    gguf_bytes rows = {0};
    size_t row_bytes = sl_wtype_row_bytes(op->type, N_IN);
    tiny_encode(ggml_types[op->type], weights, (size_t)N_OUT * N_IN, &rows);
    for (size_t o = 0; o < N_OUT; o += SL_PANEL)
        sl_weight_pack_panel(op->type, op->packed + o * row_bytes, rows.data + o * row_bytes, SL_PANEL, N_IN);
    free(rows.data);
}

/* The sum of products, exactly, with its bound. */
static double exact_of(const operands *op, size_t r, size_t o, double *bound)
{
    double sum = 0.0, mass = 0.0;
    if (!sl_wtype_is_quantised(op->type)) {
        float w[N_IN];
        sl_weight_row(op->type, op->packed, N_OUT, N_IN, o, w);
        for (size_t i = 0; i < N_IN; i++) {
            sum += (double)w[i] * (double)op->x[r][i];
            mass += fabs((double)w[i] * (double)op->x[r][i]);
        }
        *bound = (N_IN / SL_LANES + 4) * MEASURE_U * mass;
        return sum;
    }
    const uint8_t *row = op->qrows + r * sl_qrow_bytes(N_IN);
    const float *scale = (const float *)(const void *)row;
    const int8_t *q = (const int8_t *)(row + sl_qrow_q_off(N_IN));
    const uint8_t *panel = op->packed + o / SL_PANEL * SL_PANEL * sl_wtype_row_bytes(op->type, N_IN);
    for (size_t g = 0; g < N_IN / SL_GROUP; g++) {
        sl_weight_group w;
        sl_weight_group_read(op->type, panel, SL_PANEL, o % SL_PANEL, g, &w);
        int dot = 0, total = 0;
        for (size_t e = 0; e < SL_GROUP; e++) {
            dot += w.q[e] * q[g * SL_GROUP + e];
            total += q[g * SL_GROUP + e];
        }
        double product = (double)w.ws * (double)scale[g] * dot, minimum = (double)w.mw * (double)scale[g] * total;
        sum += product + minimum;
        mass += fabs(product) + fabs(minimum);
    }
    *bound = ((sl_wtype_has_minimum(op->type) ? 2.0 : 1.0) * (N_IN / SL_GROUP) + 1) * MEASURE_U * mass;
    return sum;
}

static void add_products(const sl_kernels *kernels, operands *op, measure_sum *sum)
{
    kernels->qrow(op->qrows, op->x[0], N_IN, N_ROWS, N_IN);
    const sl_gemm_args args = {.packed = op->packed,
                               .n_out = N_OUT,
                               .n_in = N_IN,
                               .n = N_OUT,
                               .qrows = op->qrows,
                               .x = op->x[0],
                               .x_stride = N_IN,
                               .n_rows = N_ROWS,
                               .out = op->out[0],
                               .out_stride = N_OUT};
    sl_kernels_gemm(kernels, op->type)(&args);
    static float weights[N_OUT][N_IN];
    for (size_t o = 0; o < N_OUT; o++)
        sl_weight_row(op->type, op->packed, N_OUT, N_IN, o, weights[o]);
    for (size_t r = 0; r < N_ROWS; r++) {
        double exact[N_OUT], given[N_OUT], bound[N_OUT];
        for (size_t o = 0; o < N_OUT; o++) {
            exact[o] = exact_of(op, r, o, &bound[o]);
            given[o] = 0.0;
            for (size_t i = 0; i < N_IN; i++)
                given[o] += (double)weights[o][i] * (double)op->x[r][i];
        }
        measure_add(sum, op->out[r], exact, sl_wtype_is_quantised(op->type) ? given : NULL, bound, N_OUT);
    }
}

/* The inputs of ffn_down, rows spread over the text, and its first outputs; rewritten in the type. */
static void add_real(const sl_kernels *kernels, const real_rows *real, operands *op, measure_sum *sum)
{
    static float weights[N_OUT][N_IN];
    for (size_t n = 0; n < REAL_LAYERS; n++) {
        const real_layer *l = &real->layers[n];
        const sl_matrix *down = &real->weights->layers[l->layer].w_down;
        for (size_t o = 0; o < N_OUT; o++)
            sl_weight_row(down->type, down->packed, down->n_out, down->n_in, o, weights[o]);
        for (size_t r = 0; r < N_ROWS; r++)
            memcpy(op->x[r], l->mid + r * (real->n / N_ROWS) * N_IN, sizeof op->x[r]);
        pack(op, weights[0]);
        add_products(kernels, op, sum);
    }
}

void measure_projections(const sl_kernels *kernels, const real_rows *real)
{
    static operands op;
    static float weights[N_OUT][N_IN];
    bool fits = real && real->weights->hp.n_ff == N_IN && real->weights->hp.n_embd >= N_OUT && real->n >= N_ROWS;
    if (sl_qrow_bytes(N_IN) * N_ROWS > sizeof op.qrows)
        abort();
    for (int type = 0; type < SL_WTYPE_COUNT; type++)
        for (int set = 0; set < MEASURE_SET_COUNT; set++) {
            char name[32] = "projection ";
            measure_sum sum = {0};
            op.type = (sl_wtype)type;
            strcat(name, sl_wtype_name(op.type));
            if ((set == MEASURE_SET_REAL && !fits) || (type != SL_WTYPE_F32 && ggml_types[type] == 0))
                continue; /* 0: nothing here encodes to it */
            if (set == MEASURE_SET_REAL) {
                add_real(kernels, real, &op, &sum);
            } else {
                measure_fill(weights[0], N_OUT, N_IN, MEASURE_SET_NORMAL, 7);
                measure_fill(op.x[0], N_ROWS, N_IN, (measure_set)set, 8);
                pack(&op, weights[0]);
                add_products(kernels, &op, &sum);
            }
            measure_print(name, measure_set_name((measure_set)set), &sum);
        }
}
