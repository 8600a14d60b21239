/* Projections: the definition. Every other gemm_<isa>.c gives these bits; docs/numerics.md states the rules.
 * Owns: the quantised input row and the products with each weight type. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/kernel.h"
#include "kernel/ref.h"
#include "kernel/scalar.h"

enum { Q8_GROUP_BYTES = 34, Q4_0_GROUP_BYTES = 18, Q4_1_GROUP_BYTES = 20, Q8_VALUES = 32, Q4_VALUES = 16 };

static float load_half(const uint8_t *at)
{
    return sl_float_of_half((uint16_t)(at[0] | at[1] << 8));
}

/* One group of 32. The maximum is taken over bit patterns, so that a NaN or an infinity reaches the scale, and with
 * it every product, instead of being lost. */
static void quantise_group(const float *x, int8_t *q, float *scale, float *sum)
{
    uint32_t max_bits = 0;
    for (size_t k = 0; k < SL_GROUP; k++) {
        uint32_t bits = sl_bits_of_float(x[k]) & 0x7fffffffu;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    float amax = sl_float_of_bits(max_bits);
    if (amax < SL_AMAX_MIN) {
        memset(q, 0, SL_GROUP);
        *scale = *sum = 0.0f;
        return;
    }
    float inverse = 127.0f / amax;
    int32_t total = 0;
    for (size_t k = 0; k < SL_GROUP; k++) {
        float value = x[k] * inverse;
        q[k] = (int8_t)(value == value ? rintf(value) : 0.0f);
        total += q[k];
    }
    *scale = amax / 127.0f;
    *sum = (float)total;
}

void sl_qrow_ref(void *out, const float *x, size_t x_stride, size_t n_rows, size_t n)
{
    for (size_t r = 0; r < n_rows; r++) {
        uint8_t *row = (uint8_t *)out + r * sl_qrow_bytes(n);
        float *scale = (float *)(void *)row;
        float *sum = (float *)(void *)(row + sl_qrow_sum_off(n));
        int8_t *q = (int8_t *)(row + sl_qrow_q_off(n));
        for (size_t g = 0; g < n / SL_GROUP; g++)
            quantise_group(x + r * x_stride + g * SL_GROUP, q + g * SL_GROUP, scale + g, sum + g);
    }
}

/* Output `o` of a packed matrix: its panel, the panel's width and the place inside. */
typedef struct panel_ref {
    const uint8_t *groups;
    size_t w, j;
} panel_ref;

static panel_ref panel_find(const sl_gemm_args *args, sl_wtype type, size_t o)
{
    size_t first = o / SL_PANEL * SL_PANEL;
    size_t left = args->n_out - first;
    return (panel_ref){(const uint8_t *)args->packed + first * sl_wtype_row_bytes(type, args->n_in),
                       left < SL_PANEL ? left : SL_PANEL, o - first};
}

static int32_t dot_q8(const uint8_t *group, size_t w, size_t j, const int8_t *q)
{
    int32_t dot = 0;
    for (size_t e = 0; e < SL_GROUP; e++)
        dot += (int8_t)group[(e / 4 * w + j) * 4 + e % 4] * q[e];
    return dot;
}

static int32_t dot_q4(const uint8_t *group, size_t w, size_t j, const int8_t *q, int32_t offset)
{
    int32_t dot = 0;
    for (size_t e = 0; e < SL_GROUP; e++) {
        int32_t byte = group[(e / 8 * w + j) * 4 + e % 4];
        dot += ((e % 8 < 4 ? byte & 15 : byte >> 4) - offset) * q[e];
    }
    return dot;
}

static float product_q8_0(panel_ref at, size_t n_groups, const float *scale, const float *sum, const int8_t *q)
{
    (void)sum;
    float acc = 0.0f;
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *group = at.groups + g * Q8_GROUP_BYTES * at.w;
        float d = load_half(group + Q8_VALUES * at.w + 2 * at.j);
        acc = fmaf((float)dot_q8(group, at.w, at.j, q + g * SL_GROUP), d * scale[g], acc);
    }
    return acc;
}

static float product_q4_0(panel_ref at, size_t n_groups, const float *scale, const float *sum, const int8_t *q)
{
    (void)sum;
    float acc = 0.0f;
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *group = at.groups + g * Q4_0_GROUP_BYTES * at.w;
        float d = load_half(group + Q4_VALUES * at.w + 2 * at.j);
        acc = fmaf((float)dot_q4(group, at.w, at.j, q + g * SL_GROUP, 8), d * scale[g], acc);
    }
    return acc;
}

static float product_q4_1(panel_ref at, size_t n_groups, const float *scale, const float *sum, const int8_t *q)
{
    float acc = 0.0f;
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *group = at.groups + g * Q4_1_GROUP_BYTES * at.w;
        float d = load_half(group + Q4_VALUES * at.w + 2 * at.j);
        float m = load_half(group + (Q4_VALUES + 2) * at.w + 2 * at.j);
        acc = fmaf((float)dot_q4(group, at.w, at.j, q + g * SL_GROUP, 0), d * scale[g], acc);
        acc = fmaf(m, scale[g] * sum[g], acc);
    }
    return acc;
}

typedef float (*product_fn)(panel_ref at, size_t n_groups, const float *scale, const float *sum, const int8_t *q);

static void gemm_quantised(const sl_gemm_args *args, sl_wtype type, product_fn product)
{
    size_t n_groups = args->n_in / SL_GROUP;
    for (size_t r = 0; r < args->n_rows; r++) {
        const uint8_t *row = (const uint8_t *)args->qrows + r * sl_qrow_bytes(args->n_in);
        const float *scale = (const float *)(const void *)row;
        const float *sum = (const float *)(const void *)(row + sl_qrow_sum_off(args->n_in));
        const int8_t *q = (const int8_t *)(row + sl_qrow_q_off(args->n_in));
        for (size_t o = args->first_out; o < args->first_out + args->n; o++)
            args->out[r * args->out_stride + o] = product(panel_find(args, type, o), n_groups, scale, sum, q);
    }
}

void sl_gemm_q8_0_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q8_0, product_q8_0);
}

void sl_gemm_q4_0_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q4_0, product_q4_0);
}

void sl_gemm_q4_1_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q4_1, product_q4_1);
}

static float weight_at(sl_wtype type, const uint8_t *row, size_t k)
{
    if (type == SL_WTYPE_F32) {
        float value;
        memcpy(&value, row + 4 * k, sizeof value);
        return value;
    }
    uint16_t bits = (uint16_t)(row[2 * k] | row[2 * k + 1] << 8);
    return type == SL_WTYPE_F16 ? sl_float_of_half(bits) : sl_float_of_bf16(bits);
}

/* Sixteen lanes by k mod 16, then the tree t + (t+8), +4, +2, +1. */
static void gemm_floats(const sl_gemm_args *args, sl_wtype type)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in);
    for (size_t o = args->first_out; o < args->first_out + args->n; o++) {
        const uint8_t *w = (const uint8_t *)args->packed + o * row_bytes;
        for (size_t r = 0; r < args->n_rows; r++) {
            const float *x = args->x + r * args->x_stride;
            float lanes[SL_LANES] = {0.0f};
            for (size_t k = 0; k < args->n_in; k++)
                lanes[k % SL_LANES] = fmaf(weight_at(type, w, k), x[k], lanes[k % SL_LANES]);
            args->out[r * args->out_stride + o] = sl_scalar_tree16(lanes);
        }
    }
}

void sl_gemm_f32_ref(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F32);
}

void sl_gemm_f16_ref(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F16);
}

void sl_gemm_bf16_ref(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_BF16);
}
