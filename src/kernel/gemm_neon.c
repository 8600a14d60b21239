/* Projections for NEON with dot products: the bits of gemm_ref.c.
 * Quantised types: lanes are outputs, a panel is four vectors; a row's quad of four elements is taken by element. Four
 * rows by half a panel share what is decoded; one row takes the whole panel, front to back. What makes weights unsigned
 * (8 or 16) is subtracted as offset * sum(q), which binary32 holds exactly.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__aarch64__)

#include <string.h>

#include "kernel/gemm_neon.h"

/* Most rows of a block of each kind, and vectors of outputs beside them. */
enum { ROWS = 4, VECTORS = 4 };

/* dot[r][v] += quad i of the weights times quad i of each row */
#define ADD_QUAD(i)                                                                                                    \
    for (size_t v = 0; v < n_v; v++) {                                                                                 \
        int8x16_t w = sl_neon_quad(type, group, first_v + v, i);                                                       \
        for (size_t r = 0; r < n_r; r++)                                                                               \
            dot[r][v] = vdotq_laneq_s32(dot[r][v], w, q[r], (i) % 4);                                                  \
    }

/* n_r rows' integer products of group g of a block. */
NEON_INLINE void group_dots(int32x4_t dot[ROWS][VECTORS], sl_wtype type, const uint8_t *block, size_t g,
                            const int8_t *const at[ROWS], size_t first_v, size_t n_r, size_t n_v)
{
    const uint8_t *group = block + g * sl_neon_value_bytes(type) * SL_PANEL;
    int8x16_t q[ROWS];
    for (size_t r = 0; r < n_r; r++) {
        q[r] = vld1q_s8(at[r]);
        for (size_t v = 0; v < n_v; v++)
            dot[r][v] = vdupq_n_s32(0);
    }
    ADD_QUAD(0)
    ADD_QUAD(1)
    ADD_QUAD(2)
    ADD_QUAD(3)
    int32x4_t first[ROWS][VECTORS];
    for (size_t r = 0; r < n_r; r++) {
        q[r] = vld1q_s8(at[r] + 16);
        for (size_t v = 0; v < n_v && sl_neon_has_subscales(type); v++) {
            first[r][v] = dot[r][v];
            dot[r][v] = vdupq_n_s32(0);
        }
    }
    ADD_QUAD(4)
    ADD_QUAD(5)
    ADD_QUAD(6)
    ADD_QUAD(7)
    for (size_t v = 0; v < n_v && sl_neon_has_subscales(type); v++) {
        int32x4_t s[2];
        sl_neon_subscales(s, type, block, first_v + v, g);
        for (size_t r = 0; r < n_r; r++)
            dot[r][v] = vmlaq_s32(vmulq_s32(first[r][v], s[0]), dot[r][v], s[1]);
    }
}

/* acc + dot * (ws * is), and the minimum. */
NEON_INLINE float32x4_t fold(float32x4_t acc, int32x4_t dot, sl_neon_scale s, float scale, float32x4_t sum,
                             sl_wtype type)
{
    float32x4_t value = vcvtq_f32_s32(dot);
    if (sl_neon_offset(type) > 0.0f)
        value = vaddq_f32(value, vmulq_n_f32(sum, -sl_neon_offset(type)));
    acc = vfmaq_f32(acc, value, vmulq_n_f32(s.ws, scale));
    return sl_neon_has_minimum(type) ? vfmaq_f32(acc, s.mw, vmulq_n_f32(sum, scale)) : acc;
}

/* What the minimum's factor is multiplied by: the sum of a row's group, which starts at q; Q2_K: of its halves, each
 * times its minimum. */
NEON_INLINE float32x4_t minimum_sum(sl_wtype type, const uint8_t *block, size_t v, size_t g, const int8_t *q, float sum)
{
    if (type != SL_WTYPE_Q2_K)
        return vdupq_n_f32(sum);
    int32x4_t m[2];
    sl_neon_q2_k_nibbles(m, block, v, g, 4);
    return vcvtq_f32_s32(vmlaq_n_s32(vmulq_n_s32(m[0], vaddlvq_s8(vld1q_s8(q))), m[1], vaddlvq_s8(vld1q_s8(q + 16))));
}

/* Vectors [first_v, first_v + n_v) of a panel for n_r rows, compile-time constants. */
NEON_INLINE void panel_rows(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups,
                            const sl_neon_rows *in, sl_wtype type, size_t first_v, size_t n_r, size_t n_v)
{
    const size_t groups = sl_neon_block_groups(type), block_bytes = sl_neon_block_bytes(type) * SL_PANEL;
    float32x4_t acc[ROWS][VECTORS];
    for (size_t r = 0; r < n_r; r++)
        for (size_t v = 0; v < n_v; v++)
            acc[r][v] = vdupq_n_f32(0.0f);
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *block = panel + g / groups * block_bytes;
        const int8_t *at[ROWS];
        for (size_t r = 0; r < n_r; r++)
            at[r] = sl_neon_row_q(in, r) + g * SL_GROUP;
        int32x4_t dot[ROWS][VECTORS];
        group_dots(dot, type, block, g % groups, at, first_v, n_r, n_v);
        for (size_t v = 0; v < n_v; v++) {
            sl_neon_scale s = sl_neon_scale_load(type, block, first_v + v, g % groups);
            for (size_t r = 0; r < n_r; r++) {
                const float32x4_t sum =
                    minimum_sum(type, block, first_v + v, g % groups, at[r], sl_neon_row_sum(in, r)[g]);
                acc[r][v] = fold(acc[r][v], dot[r][v], s, sl_neon_row_scale(in, r)[g], sum, type);
            }
        }
    }
    for (size_t r = 0; r < n_r; r++)
        for (size_t v = 0; v < n_v; v++)
            vst1q_f32(out + r * out_stride + 4 * (first_v + v), acc[r][v]);
}

/* Whole panels here, a narrow last one by the reference. */
NEON_INLINE void gemm_panels(const sl_gemm_args *args, sl_wtype type, sl_gemm_fn reference)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in), n_groups = args->n_in / SL_GROUP;
    size_t n_whole = args->n / SL_PANEL * SL_PANEL, stride = args->out_stride;
    sl_neon_rows in = {NULL, sl_qrow_bytes(args->n_in), sl_qrow_sum_off(args->n_in), sl_qrow_q_off(args->n_in)};
    for (size_t o = args->first_out; o < args->first_out + n_whole; o += SL_PANEL) {
        const uint8_t *panel = (const uint8_t *)args->packed + o * row_bytes;
        size_t r = 0;
        for (; r + ROWS <= args->n_rows; r += ROWS) {
            in.rows = (const uint8_t *)args->qrows + r * in.stride;
            for (size_t v = 0; v < VECTORS; v += 2)
                panel_rows(args->out + r * stride + o, stride, panel, n_groups, &in, type, v, ROWS, 2);
        }
        for (; r + 2 <= args->n_rows; r += 2) {
            in.rows = (const uint8_t *)args->qrows + r * in.stride;
            panel_rows(args->out + r * stride + o, stride, panel, n_groups, &in, type, 0, 2, VECTORS);
        }
        if (r < args->n_rows) {
            in.rows = (const uint8_t *)args->qrows + r * in.stride;
            panel_rows(args->out + r * stride + o, stride, panel, n_groups, &in, type, 0, 1, VECTORS);
        }
    }
    if (n_whole == args->n)
        return;
    sl_gemm_args narrow = *args;
    narrow.first_out += n_whole;
    narrow.n -= n_whole;
    reference(&narrow);
}

NEON void sl_gemm_q8_0_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q8_0, sl_gemm_q8_0_ref);
}

NEON void sl_gemm_q4_0_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_0, sl_gemm_q4_0_ref);
}

NEON void sl_gemm_q4_1_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_1, sl_gemm_q4_1_ref);
}

NEON void sl_gemm_q5_0_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_0, sl_gemm_q5_0_ref);
}

NEON void sl_gemm_q5_1_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_1, sl_gemm_q5_1_ref);
}

NEON void sl_gemm_q4_k_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_K, sl_gemm_q4_k_ref);
}

NEON void sl_gemm_q5_k_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_K, sl_gemm_q5_k_ref);
}

NEON void sl_gemm_q6_k_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q6_K, sl_gemm_q6_k_ref);
}

NEON void sl_gemm_q2_k_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q2_K, sl_gemm_q2_k_ref);
}

NEON void sl_gemm_q3_k_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q3_K, sl_gemm_q3_k_ref);
}

NEON void sl_gemm_iq4_nl_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_IQ4_NL, sl_gemm_iq4_nl_ref);
}

NEON void sl_gemm_iq4_xs_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_IQ4_XS, sl_gemm_iq4_xs_ref);
}

NEON void sl_gemm_mxfp4_neon(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_MXFP4, sl_gemm_mxfp4_ref);
}

/* ------------------------------------------------------------------------------------------------------------
 * Float weights: sixteen lanes, k mod 16, are four vectors an output and row. */

enum { BLOCK = 4, STRETCH = 1024 };

/* Lanes of a block of outputs and rows, between the stretches of k. */
typedef struct float_lanes {
    float of[BLOCK][BLOCK][SL_LANES]; /* [row][output] */
} float_lanes;

NEON_INLINE float32x4_t load_weights(sl_wtype type, const uint8_t *row, size_t k)
{
    if (type == SL_WTYPE_F32)
        return vreinterpretq_f32_u8(vld1q_u8(row + 4 * k));
    if (type == SL_WTYPE_F16)
        return sl_neon_halves(row + 2 * k);
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(row + 2 * k)), 16));
}

NEON_INLINE float load_weight(sl_wtype type, const uint8_t *row, size_t k)
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

/* k in [k0, k1), multiples of 16, of n_r rows by n_o outputs: n_q of the four vectors of lanes at a time, because
 * registers hold sixteen sums. All n_: compile-time constants. */
NEON_INLINE void float_stretch(float_lanes *lanes, const float *x, size_t x_stride, const uint8_t *w, size_t row_bytes,
                               sl_wtype type, size_t k0, size_t k1, size_t n_r, size_t n_o, size_t n_q)
{
    for (size_t j = 0; j < 4; j += n_q) {
        float32x4_t acc[BLOCK][BLOCK][4];
        for (size_t r = 0; r < n_r; r++)
            for (size_t o = 0; o < n_o; o++)
                for (size_t i = 0; i < n_q; i++)
                    acc[r][o][i] = vld1q_f32(lanes->of[r][o] + 4 * (j + i));
        for (size_t k = k0 + 4 * j; k < k1; k += SL_LANES)
            for (size_t i = 0; i < n_q; i++) {
                float32x4_t xv[BLOCK];
                for (size_t r = 0; r < n_r; r++)
                    xv[r] = vld1q_f32(x + r * x_stride + k + 4 * i);
                for (size_t o = 0; o < n_o; o++) {
                    float32x4_t wv = load_weights(type, w + o * row_bytes, k + 4 * i);
                    for (size_t r = 0; r < n_r; r++)
                        acc[r][o][i] = vfmaq_f32(acc[r][o][i], wv, xv[r]);
                }
            }
        for (size_t r = 0; r < n_r; r++)
            for (size_t o = 0; o < n_o; o++)
                for (size_t i = 0; i < n_q; i++)
                    vst1q_f32(lanes->of[r][o] + 4 * (j + i), acc[r][o][i]);
    }
}

NEON_INLINE void float_block(const sl_gemm_args *args, sl_wtype type, size_t r0, size_t o0, size_t n_r, size_t n_o,
                             size_t n_q)
{
    const size_t row_bytes = sl_wtype_row_bytes(type, args->n_in), whole = args->n_in / SL_LANES * SL_LANES;
    const uint8_t *w = (const uint8_t *)args->packed + o0 * row_bytes;
    const float *x = args->x + r0 * args->x_stride;
    float_lanes lanes;
    memset(&lanes, 0, sizeof lanes);
    for (size_t k = 0; k < whole; k += STRETCH)
        float_stretch(&lanes, x, args->x_stride, w, row_bytes, type, k, k + STRETCH < whole ? k + STRETCH : whole, n_r,
                      n_o, n_q);
    for (size_t r = 0; r < n_r; r++)
        for (size_t o = 0; o < n_o; o++) {
            float *of = lanes.of[r][o];
            /* absent elements leave their lanes alone: a product of zeros would turn -0 into +0 */
            for (size_t k = whole; k < args->n_in; k++)
                of[k - whole] = fmaf(load_weight(type, w + o * row_bytes, k), x[r * args->x_stride + k], of[k - whole]);
            args->out[(r0 + r) * args->out_stride + o0 + o] =
                sl_neon_tree16(vld1q_f32(of), vld1q_f32(of + 4), vld1q_f32(of + 8), vld1q_f32(of + 12));
        }
}

/* Outputs outside, rows inside: the weights come from memory once. */
NEON_INLINE void gemm_floats(const sl_gemm_args *args, sl_wtype type)
{
    size_t end = args->first_out + args->n, o = args->first_out;
    for (; o + BLOCK <= end; o += BLOCK) {
        size_t r = 0;
        for (; r + BLOCK <= args->n_rows; r += BLOCK)
            float_block(args, type, r, o, BLOCK, BLOCK, 1);
        for (; r < args->n_rows; r++)
            float_block(args, type, r, o, 1, BLOCK, 4);
    }
    for (; o < end; o++)
        for (size_t r = 0; r < args->n_rows; r++)
            float_block(args, type, r, o, 1, 1, 4);
}

NEON void sl_gemm_f32_neon(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F32);
}

NEON void sl_gemm_f16_neon(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_F16);
}

NEON void sl_gemm_bf16_neon(const sl_gemm_args *args)
{
    gemm_floats(args, SL_WTYPE_BF16);
}

#else
typedef int sl_gemm_neon_is_for_arm64;
#endif
