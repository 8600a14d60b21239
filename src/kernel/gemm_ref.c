/* Projections: the definition. Every other gemm_<isa>.c gives these bits; docs/numerics.md states the rules.
 * Owns: the quantised input row and the products with each weight type. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/kernel.h"
#include "kernel/ref.h"
#include "kernel/scalar.h"

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

/* One output for all rows, each of which is a chain over the groups: the product, then the minimum where there is one.
 * Integers: |dot| <= 32 * 4096 * 127 < 2^24, so that its conversion is exact. */
static void gemm_output(const sl_gemm_args *args, sl_wtype type, size_t o)
{
    size_t first = o / SL_PANEL * SL_PANEL;
    size_t w = args->n_out - first < SL_PANEL ? args->n_out - first : SL_PANEL;
    const uint8_t *panel = (const uint8_t *)args->packed + first * sl_wtype_row_bytes(type, args->n_in);
    bool has_minimum = sl_wtype_has_minimum(type);
    for (size_t r = 0; r < args->n_rows; r++)
        args->out[r * args->out_stride + o] = 0.0f;
    for (size_t g = 0; g < args->n_in / SL_GROUP; g++) {
        sl_weight_group weights;
        sl_weight_group_read(type, panel, w, o - first, g, &weights);
        for (size_t r = 0; r < args->n_rows; r++) {
            const uint8_t *row = (const uint8_t *)args->qrows + r * sl_qrow_bytes(args->n_in);
            const float *scale = (const float *)(const void *)row;
            const float *sum = (const float *)(const void *)(row + sl_qrow_sum_off(args->n_in));
            const int8_t *q = (const int8_t *)(row + sl_qrow_q_off(args->n_in)) + g * SL_GROUP;
            int32_t dot = 0, minimums = 0;
            for (size_t e = 0; e < SL_GROUP; e++)
                dot += weights.q[e] * q[e];
            for (size_t e = 0; type == SL_WTYPE_Q2_K && e < SL_GROUP; e++)
                minimums += weights.m[e / 16] * q[e];
            float acc = fmaf((float)dot, weights.ws * scale[g], args->out[r * args->out_stride + o]);
            if (has_minimum)
                acc = fmaf(weights.mw, scale[g] * (type == SL_WTYPE_Q2_K ? (float)minimums : sum[g]), acc);
            args->out[r * args->out_stride + o] = acc;
        }
    }
}

static void gemm_quantised(const sl_gemm_args *args, sl_wtype type)
{
    for (size_t o = args->first_out; o < args->first_out + args->n; o++)
        gemm_output(args, type, o);
}

void sl_gemm_q8_0_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q8_0);
}

void sl_gemm_q4_0_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q4_0);
}

void sl_gemm_q4_1_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q4_1);
}

void sl_gemm_q5_0_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q5_0);
}

void sl_gemm_q5_1_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q5_1);
}

void sl_gemm_q4_k_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q4_K);
}

void sl_gemm_q5_k_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q5_K);
}

void sl_gemm_q6_k_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q6_K);
}

void sl_gemm_q2_k_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q2_K);
}

void sl_gemm_q3_k_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_Q3_K);
}

void sl_gemm_iq4_nl_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_IQ4_NL);
}

void sl_gemm_iq4_xs_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_IQ4_XS);
}

void sl_gemm_mxfp4_ref(const sl_gemm_args *args)
{
    gemm_quantised(args, SL_WTYPE_MXFP4);
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
