/* The reference against binary64, within the bounds derived in docs/numerics.md; packing against a plain reading of
 * the GGUF blocks. u = 2^-24, the rounding unit of binary32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fpenv.h"
#include "check/check_gemm.h"
#include "kernel/kernel.h"
#include "kernel/ref.h"

#define U 0x1p-24
#define SLACK 1.001 /* second-order terms of the bounds */

/* Element k of a row in GGUF's layout, exactly; and, for quantised types, its parts. */
typedef struct element {
    double value, d, m;
    int q;
} element;

static double half_at(const uint8_t *at)
{
    return (double)sl_float_of_half((uint16_t)(at[0] | at[1] << 8));
}

/* Q2_K, Q3_K, IQ4_XS: likewise. */
static void element_of_few_bits(sl_wtype type, const uint8_t *block, size_t i, element *e)
{
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const size_t half = i / 128, l = i % 32, shift = i % 128 / 32 * 2, sixteen = i / 16;
    if (type == SL_WTYPE_IQ4_XS) {
        const size_t ib = i / 32;
        int ls = (block[4 + ib / 2] >> 4 * (ib % 2) & 15) | ((block[2] | block[3] << 8) >> 2 * ib & 3) << 4;
        e->d = half_at(block) * (ls - 32);
        e->q = iq4[l < 16 ? block[8 + 16 * ib + l] & 15 : block[8 + 16 * ib + l - 16] >> 4];
    } else if (type == SL_WTYPE_Q2_K) {
        e->d = half_at(block + 80) * (block[sixteen] & 15);
        e->m = -(half_at(block + 82) * (block[sixteen] >> 4));
        e->q = block[16 + half * 32 + l] >> shift & 3;
    } else {
        const uint8_t *s = block + 96;
        int low = sixteen < 8 ? s[sixteen] & 15 : s[sixteen - 8] >> 4;
        int scale = (low | (s[8 + sixteen % 4] >> 2 * (sixteen / 4) & 3) << 4) - 32;
        e->d = half_at(block + 108);
        e->q = scale * ((block[32 + half * 32 + l] >> shift & 3) - (block[l] >> (i / 32) & 1 ? 0 : 4));
    }
}

/* Source: ggml's dequantize_row_* functions, as they read, not as src/kernel/weight.c does. */
static void element_of_k(sl_wtype type, const uint8_t *block, size_t i, element *e)
{
    if (type == SL_WTYPE_Q2_K || type == SL_WTYPE_Q3_K || type == SL_WTYPE_IQ4_XS) {
        element_of_few_bits(type, block, i, e);
        return;
    }
    if (type == SL_WTYPE_Q6_K) {
        size_t half = i / 128, l = i % 32, quarter = i % 128 / 32;
        const uint8_t *ql = block + half * 64, *qh = block + 128 + half * 32;
        const int low[4] = {ql[l] & 15, ql[l + 32] & 15, ql[l] >> 4, ql[l + 32] >> 4};
        const int high[4] = {qh[l] & 3, qh[l] >> 2 & 3, qh[l] >> 4 & 3, qh[l] >> 6};
        e->d = half_at(block + 208);
        e->q = ((low[quarter] | high[quarter] << 4) - 32) * (int8_t)block[192 + half * 8 + quarter * 2 + l / 16];
        return;
    }
    const uint8_t *scales = block + 4, *low = block + (type == SL_WTYPE_Q5_K ? 48 : 16);
    size_t j = i / 32;
    int scale = scales[j] & 63, minimum = scales[j + 4] & 63;
    if (j >= 4) {
        scale = (scales[j + 4] & 15) | scales[j - 4] >> 6 << 4;
        minimum = scales[j + 4] >> 4 | scales[j] >> 6 << 4;
    }
    e->q = i % 64 < 32 ? low[i / 64 * 32 + i % 32] & 15 : low[i / 64 * 32 + i % 32] >> 4;
    if (type == SL_WTYPE_Q5_K)
        e->q += block[16 + i % 32] >> j & 1 ? 16 : 0;
    e->d = half_at(block) * scale;
    e->m = -(half_at(block + 2) * minimum);
}

static void element_of_32(sl_wtype type, const uint8_t *block, size_t i, element *e)
{
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    if (type == SL_WTYPE_MXFP4) {
        e->d = ldexp(1.0, block[0] - 128);
        e->q = mxfp4[i < 16 ? block[1 + i] & 15 : block[1 + i - 16] >> 4];
        return;
    }
    const uint8_t *values = block + (sl_wtype_has_minimum(type) ? 4 : 2);
    e->d = half_at(block);
    e->m = sl_wtype_has_minimum(type) ? half_at(block + 2) : 0.0;
    if (type == SL_WTYPE_Q8_0) {
        e->q = (int8_t)values[i];
        return;
    }
    bool five = type == SL_WTYPE_Q5_0 || type == SL_WTYPE_Q5_1;
    if (five)
        values += 4;
    e->q = i < 16 ? values[i] & 15 : values[i - 16] >> 4;
    e->q += five && values[(int)(i / 8) - 4] >> i % 8 & 1 ? 16 : 0;
    e->q -= type == SL_WTYPE_Q4_0 ? 8 : type == SL_WTYPE_Q5_0 ? 16 : 0;
    if (type == SL_WTYPE_IQ4_NL)
        e->q = iq4[e->q];
}

static element element_of(sl_wtype type, const uint8_t *row, size_t k)
{
    element e = {0, 1, 0, 0};
    size_t elems = sl_wtype_block_elems(type);
    const uint8_t *block = row + k / elems * sl_wtype_row_bytes(type, elems);
    if (type == SL_WTYPE_F32) {
        float value;
        memcpy(&value, block, 4);
        e.value = (double)value;
    } else if (type == SL_WTYPE_F16) {
        e.value = half_at(block);
    } else if (type == SL_WTYPE_BF16) {
        e.value = (double)sl_float_of_bf16((uint16_t)(block[0] | block[1] << 8));
    } else {
        if (elems == SL_SUPERBLOCK)
            element_of_k(type, block, k % elems, &e);
        else
            element_of_32(type, block, k % elems, &e);
        e.value = e.d * e.q; /* exact: binary16 by a small integer; so is the sum, at most 51 bits */
        e.value += sl_wtype_has_minimum(type) ? e.m : -0.0;
    }
    return e;
}

/* Random GGUF rows with scales of ordinary size. */
static void fill_rows(sl_wtype type, uint8_t *rows, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        rows[i] = (uint8_t)cg_next();
    size_t block_bytes = sl_wtype_row_bytes(type, sl_wtype_block_elems(type));
    for (size_t at = 0; at < bytes; at += block_bytes) {
        float value = cg_value(CG_MODE_NORMAL);
        uint16_t half = sl_half_of_float(value), minimum = sl_half_of_float(cg_value(CG_MODE_NORMAL) * 4.0f);
        uint16_t brain = (uint16_t)(sl_bits_of_float(value) >> 16);
        const size_t behind = type == SL_WTYPE_Q6_K   ? 208
                              : type == SL_WTYPE_Q2_K ? 80
                              : type == SL_WTYPE_Q3_K ? 108
                                                      : 0;
        if (type == SL_WTYPE_F32)
            memcpy(rows + at, &value, 4);
        else if (type == SL_WTYPE_MXFP4)
            rows[at] = (uint8_t)(110 + cg_below(30));
        else
            memcpy(rows + at + behind, type == SL_WTYPE_BF16 ? &brain : &half, 2);
        if (sl_wtype_has_minimum(type))
            memcpy(rows + at + behind + 2, &minimum, 2);
    }
}

static void pack_all(sl_wtype type, uint8_t *packed, const uint8_t *rows, size_t n_out, size_t n_in)
{
    size_t row_bytes = sl_wtype_row_bytes(type, n_in);
    for (size_t o = 0; o < n_out; o += SL_PANEL) {
        size_t w = n_out - o < SL_PANEL ? n_out - o : SL_PANEL;
        sl_weight_pack_panel(type, packed + o * row_bytes, rows + o * row_bytes, w, n_in);
    }
}

/* pack, then row, equals the plain reading, bit for bit: every value needs one rounding. */
static void packed_rows_read_back(void **state)
{
    (void)state;
    for (int t = 0; t < SL_WTYPE_COUNT; t++)
        for (size_t n_out = 1; n_out <= 35; n_out++) {
            sl_wtype type = (sl_wtype)t;
            size_t elems = sl_wtype_block_elems(type);
            size_t n_in = (elems < SL_GROUP ? SL_GROUP : elems) * (1 + cg_below(5));
            size_t row_bytes = sl_wtype_row_bytes(type, n_in);
            cg_buf rows = cg_alloc(n_out * row_bytes), packed = cg_alloc(rows.size);
            cg_buf out = cg_alloc(n_in * sizeof(float));
            fill_rows(type, rows.data, rows.size);
            pack_all(type, packed.data, rows.data, n_out, n_in);
            for (size_t o = 0; o < n_out; o++) {
                cg_prefill(&out);
                sl_weight_row(type, packed.data, n_out, n_in, o, cg_floats(&out));
                for (size_t k = 0; k < n_in; k++)
                    if (!cg_same(cg_floats(&out)[k], (float)element_of(type, rows.data + o * row_bytes, k).value))
                        fail_msg("%s row %zu of %zu, element %zu", sl_wtype_name(type), o, n_out, k);
            }
            cg_free(&rows);
            cg_free(&packed);
            cg_free(&out);
        }
}

/* |x - scale q| <= scale (1/2 + 2^-15), sums exact, scale amax/127 rounded once. */
static void qrow_within_half_a_step(void **state)
{
    (void)state;
    enum { N = 1536 };
    cg_buf x = cg_alloc(N * sizeof(float)), out = cg_alloc(sl_qrow_bytes(N));
    for (int mode = 0; mode < CG_MODE_SPECIAL; mode++) {
        cg_fill(cg_floats(&x), N, (cg_mode)mode);
        sl_qrow_ref(out.data, cg_floats(&x), N, 1, N);
        const int8_t *q = (const int8_t *)(out.data + sl_qrow_q_off(N));
        for (size_t g = 0; g < N / SL_GROUP; g++) {
            double amax = 0;
            int sum = 0;
            float scale = cg_floats(&out)[g];
            for (size_t k = g * SL_GROUP; k < (g + 1) * SL_GROUP; k++) {
                double value = (double)cg_floats(&x)[k];
                amax = fmax(amax, fabs(value));
                sum += q[k];
                if (scale != 0 && fabs(value - (double)scale * q[k]) > (double)scale * (0.5 + 0x1p-15))
                    fail_msg("mode %d element %zu: %a is not %a * %d", mode, k, value, (double)scale, q[k]);
            }
            assert_true(cg_same(scale, amax < 0x1p-100 ? 0.0f : (float)amax / 127.0f));
            assert_true(cg_same(((const float *)(const void *)(out.data + sl_qrow_sum_off(N)))[g], (float)sum));
            for (size_t k = 0; scale == 0 && k < SL_GROUP; k++)
                assert_int_equal(q[g * SL_GROUP + k], 0);
        }
    }
    cg_free(&x);
    cg_free(&out);
}

/* A NaN or an infinity must reach the result. */
static void qrow_keeps_what_is_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {(float)NAN, (float)INFINITY, (float)-INFINITY};
    _Alignas(64) uint8_t out[256];
    assert_true(sl_qrow_bytes(SL_GROUP) <= sizeof out);
    for (size_t b = 0; b < 3; b++) {
        float x[SL_GROUP] = {1.0f, -2.0f};
        x[cg_below(SL_GROUP)] = bad[b];
        sl_qrow_ref(out, x, SL_GROUP, 1, SL_GROUP);
        float scale;
        memcpy(&scale, out, sizeof scale);
        assert_false(fabsf(scale) <= 0x1.fffffep127f);
    }
}

/* One output of a quantised type in binary64 on the quantised row; `mass` is the sum of the terms' magnitudes. */
static double quantised_product(sl_wtype type, const uint8_t *row, const uint8_t *qrow, size_t n_in, double *mass)
{
    const float *scale = (const float *)(const void *)qrow;
    const int8_t *q = (const int8_t *)(qrow + sl_qrow_q_off(n_in));
    double total = 0;
    *mass = 0;
    for (size_t g = 0; g < n_in / SL_GROUP; g++) {
        double product = 0, minimum = 0;
        for (size_t k = g * SL_GROUP; k < (g + 1) * SL_GROUP; k++) { /* exact; d and m may differ between halves */
            const element e = element_of(type, row, k);
            product += e.d * e.q * q[k];
            minimum += e.m * q[k];
        }
        product *= (double)scale[g];
        minimum *= (double)scale[g];
        total += product + minimum;
        *mass += fabs(product) + fabs(minimum);
    }
    return total;
}

static double float_product(sl_wtype type, const uint8_t *row, const float *x, size_t n_in, double *mass)
{
    double total = 0;
    *mass = 0;
    for (size_t k = 0; k < n_in; k++) {
        double term = element_of(type, row, k).value * (double)x[k];
        total += term;
        *mass += fabs(term);
    }
    return total;
}

static void run_reference(sl_wtype type, const sl_gemm_args *args)
{
    static const sl_gemm_fn references[SL_WTYPE_COUNT] = {
        sl_gemm_f32_ref,  sl_gemm_f16_ref,  sl_gemm_bf16_ref, sl_gemm_q8_0_ref, sl_gemm_q4_0_ref, sl_gemm_q4_1_ref,
        sl_gemm_q5_0_ref, sl_gemm_q5_1_ref, sl_gemm_q4_k_ref, sl_gemm_q5_k_ref, sl_gemm_q6_k_ref,
        sl_gemm_q2_k_ref, sl_gemm_q3_k_ref, sl_gemm_iq4_nl_ref, sl_gemm_iq4_xs_ref, sl_gemm_mxfp4_ref};
    references[type](args);
}

/* Roundings that a term passes through: quantised, one of its factor and one a fold from there on; floats, those of
 * its lane and four of the tree. */
static double depth_of(sl_wtype type, size_t n_in)
{
    if (!sl_wtype_is_quantised(type))
        return ceil((double)n_in / SL_LANES) + 4;
    return (sl_wtype_has_minimum(type) ? 2.0 : 1.0) * (double)(n_in / SL_GROUP) + 1;
}

static double check_products(sl_wtype type, size_t n_out, size_t n_in, size_t n_rows)
{
    size_t row_bytes = sl_wtype_row_bytes(type, n_in);
    cg_buf rows = cg_alloc(n_out * row_bytes), packed = cg_alloc(rows.size);
    cg_buf x = cg_alloc(n_rows * n_in * sizeof(float)), qrows = cg_alloc(n_rows * sl_qrow_bytes(n_in));
    cg_buf out = cg_alloc(n_rows * n_out * sizeof(float));
    double worst = 0;
    fill_rows(type, rows.data, rows.size);
    pack_all(type, packed.data, rows.data, n_out, n_in);
    cg_fill(cg_floats(&x), n_rows * n_in, CG_MODE_NORMAL);
    sl_qrow_ref(qrows.data, cg_floats(&x), n_in, n_rows, n_in);
    sl_gemm_args args = {.packed = packed.data, .n_out = n_out, .n_in = n_in, .n = n_out, .qrows = qrows.data,
                         .x = cg_floats(&x), .x_stride = n_in, .n_rows = n_rows, .out = cg_floats(&out),
                         .out_stride = n_out};
    run_reference(type, &args);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t o = 0; o < n_out; o++) {
            const uint8_t *row = rows.data + o * row_bytes;
            double mass;
            double want = sl_wtype_is_quantised(type)
                              ? quantised_product(type, row, qrows.data + r * sl_qrow_bytes(n_in), n_in, &mass)
                              : float_product(type, row, cg_floats(&x) + r * n_in, n_in, &mass);
            double error = fabs((double)cg_floats(&out)[r * n_out + o] - want);
            worst = fmax(worst, error / (U * mass));
            if (error > depth_of(type, n_in) * SLACK * U * mass)
                fail_msg("%s n_in %zu row %zu output %zu: %a, not %a", sl_wtype_name(type), n_in, r, o,
                         (double)cg_floats(&out)[r * n_out + o], want);
        }
    cg_free(&rows);
    cg_free(&packed);
    cg_free(&x);
    cg_free(&qrows);
    cg_free(&out);
    return worst;
}

static void products_within_bounds(void **state)
{
    (void)state;
    static const size_t lengths[] = {32, 64, 256, 576, 1536};
    for (int type = 0; type < SL_WTYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            if (lengths[i] % sl_wtype_block_elems((sl_wtype)type) != 0)
                continue;
            double worst = check_products((sl_wtype)type, 35, lengths[i], 3);
            print_message("%s n_in %zu: worst %.2f u of the terms' magnitudes, bound %.0f\n",
                          sl_wtype_name((sl_wtype)type), lengths[i], worst, depth_of((sl_wtype)type, lengths[i]));
        }
}

static void rmsnorm_within_bounds(void **state)
{
    (void)state;
    static float x[1536], w[1536], out[1536];
    double worst = 0;
    for (size_t n = 1; n <= 1536; n += n < 160 ? 1 : 172) {
        cg_fill(x, n, CG_MODE_NORMAL);
        cg_fill(w, n, CG_MODE_NORMAL);
        sl_rmsnorm_ref(out, x, w, n, 1e-5f);
        double sum = 0;
        for (size_t k = 0; k < n; k++)
            sum += (double)x[k] * (double)x[k];
        double r = 1.0 / sqrt(sum / (double)n + (double)1e-5f);
        double bound = (ceil((double)n / SL_LANES) + 6) / 2 + 4;
        for (size_t k = 0; k < n; k++) {
            double want = (double)x[k] * r * (double)w[k];
            double error = fabs((double)out[k] - want) / (U * fabs(want) + 0x1p-149);
            worst = fmax(worst, error / bound);
            if (error > bound * SLACK)
                fail_msg("rmsnorm n %zu element %zu: %a, not %a", n, k, (double)out[k], want);
        }
    }
    print_message("rmsnorm: worst %.2f of the bound\n", worst);
}

static void rope_within_two_roundings(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 100000; i++) {
        float x[2] = {cg_value(CG_MODE_NORMAL), cg_value(CG_MODE_NORMAL)};
        double angle = (double)cg_unit() * 3.0, a = (double)x[0], b = (double)x[1];
        float c = (float)cos(angle), s = (float)sin(angle);
        sl_rope_norm_ref(x, &c, &s, 1);
        double first = fabs(a * (double)c) + fabs(b * (double)s), second = fabs(a * (double)s) + fabs(b * (double)c);
        double error = fmax(fabs((double)x[0] - (a * (double)c - b * (double)s)) / first,
                            fabs((double)x[1] - (a * (double)s + b * (double)c)) / second);
        worst = fmax(worst, error / U);
        assert_true(error <= 2 * SLACK * U);
    }
    print_message("rope: worst %.2f u, bound 2\n", worst);
}

static void exp2_within_two_roundings(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        float x = -126.0f + (float)(cg_next() >> 40) * 0x1p-24f * 253.0f, y;
        sl_exp2_ref(&y, &x, 1);
        worst = fmax(worst, fabs((double)y / exp2((double)x) - 1.0) / U);
    }
    print_message("exp2: worst %.2f u, bound 2\n", worst);
    assert_true(worst <= 2);
}

/* x / (1 + 2^t): the error of t grows with |t|; below -88 the clamp leaves at most 2^-126 |x up|. */
static void silu_within_bounds(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        float gate = cg_unit() * (i & 1 ? 100.0f : 8.0f), up = cg_value(CG_MODE_NORMAL), y;
        sl_silu_mul_ref(&y, &gate, &up, 1);
        double g = (double)gate, want = g / (1.0 + exp(-g)) * (double)up;
        double bound = (0.86 * fabs(g * 1.4427) + 6) * U * fabs(want) + 0x1p-126 * fabs(g * (double)up);
        worst = fmax(worst, fabs((double)y - want) / bound);
        if (fabs((double)y - want) > bound)
            fail_msg("silu(%a) * %a: %a, not %a", g, (double)up, (double)y, want);
    }
    print_message("silu: worst %.2f of the bound\n", worst);
}

static void sumexp_within_bounds(void **state)
{
    (void)state;
    static float x[49152];
    double worst = 0;
    for (size_t n = 1; n <= 49152; n = n * 2 + cg_below(3)) {
        cg_fill(x, n, CG_MODE_NORMAL);
        for (size_t k = 0; k < n; k++)
            x[k] *= 20.0f;
        float max = x[sl_argmax_ref(x, n)];
        double total = 0, bound = 0;
        for (size_t k = 0; k < n; k++) {
            double t = ((double)x[k] - (double)max) * 1.4426950408889634, term = exp2(t);
            total += term;
            bound += term * (1.55 * fabs(t) + 2 + ceil((double)n / SL_LANES) + 4) * U + 0x1p-126;
        }
        double error = fabs((double)sl_sumexp_ref(x, n, max) - total);
        worst = fmax(worst, error / bound);
        if (error > bound * SLACK)
            fail_msg("sumexp n %zu: %a off", n, error);
    }
    print_message("sumexp: worst %.2f of the bound\n", worst);
}

static int enter(void **state)
{
    static sl_fpenv saved;
    saved = sl_fpenv_enter();
    *state = &saved;
    return 0;
}

static int leave(void **state)
{
    sl_fpenv_leave(*(sl_fpenv *)*state);
    return 0;
}

int main(void)
{
    cg_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_rows_read_back),   cmocka_unit_test(qrow_within_half_a_step),
        cmocka_unit_test(qrow_keeps_what_is_not_finite), cmocka_unit_test(products_within_bounds),
        cmocka_unit_test(rmsnorm_within_bounds),   cmocka_unit_test(rope_within_two_roundings),
        cmocka_unit_test(exp2_within_two_roundings), cmocka_unit_test(silu_within_bounds),
        cmocka_unit_test(sumexp_within_bounds),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
