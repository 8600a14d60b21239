/* Projections for Advanced SIMD's int8 matrix products: the bits of gemm_ref.c.
 * `smmla` multiplies two outputs' eight bytes by two rows' eight: 32 products, twice what `sdot` does. A group of eight
 * or four rows is put side by side once for a whole panel; the panel's halves, eight outputs each, then keep their sums
 * in registers, while the floating-point sums wait in the nearest cache. Three rows and fewer, a narrow last panel and
 * weights that are not quantised are NEON's and the reference's.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__aarch64__)

#include "kernel/gemm_neon.h"

enum { ROW_PAIRS = 4, OUT_PAIRS = 4, HALVES = 2, EIGHTS = SL_GROUP / 8, VECTORS = 2 /* of four outputs, in a half */ };

/* A block of 2 * np rows against one panel. Vectors of four are two outputs by two rows. */
typedef struct block {
    float acc[HALVES][ROW_PAIRS][OUT_PAIRS][4];
    int8_t q[EIGHTS][ROW_PAIRS][16];              /* of one group */
    float scale[ROW_PAIRS][4], sum[ROW_PAIRS][4]; /* first, second row, twice over */
} block;

/* Group g of the rows, side by side. */
NEON_INLINE void load_rows(block *b, const sl_neon_rows *in, size_t g, const size_t np)
{
    for (size_t p = 0; p < np; p++) {
        const int8_t *first = sl_neon_row_q(in, 2 * p) + g * SL_GROUP, *second = first + in->stride;
        for (size_t i = 0; i < 2; i++) {
            int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first + 16 * i));
            int64x2_t c = vreinterpretq_s64_s8(vld1q_s8(second + 16 * i));
            vst1q_s8(b->q[2 * i][p], vreinterpretq_s8_s64(vzip1q_s64(a, c)));
            vst1q_s8(b->q[2 * i + 1][p], vreinterpretq_s8_s64(vzip2q_s64(a, c)));
        }
        float32x4_t scale = vdupq_n_f32(sl_neon_row_scale(in, 2 * p)[g]);
        float32x4_t sum = vdupq_n_f32(sl_neon_row_sum(in, 2 * p)[g]);
        vst1q_f32(b->scale[p], vtrn1q_f32(scale, vdupq_n_f32(sl_neon_row_scale(in, 2 * p + 1)[g])));
        vst1q_f32(b->sum[p], vtrn1q_f32(sum, vdupq_n_f32(sl_neon_row_sum(in, 2 * p + 1)[g])));
    }
}

/* dot[p][o] += eight e of the weights times eight e of the rows */
#define ADD_EIGHT(e)                                                                                                   \
    {                                                                                                                  \
        int8x16_t w[OUT_PAIRS];                                                                                        \
        for (size_t v = 0; v < VECTORS; v++) {                                                                         \
            int32x4_t a = vreinterpretq_s32_s8(sl_neon_quad(type, group, first_v + v, 2 * (e)));                       \
            int32x4_t c = vreinterpretq_s32_s8(sl_neon_quad(type, group, first_v + v, 2 * (e) + 1));                   \
            w[2 * v] = vreinterpretq_s8_s32(vzip1q_s32(a, c));                                                         \
            w[2 * v + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, c));                                                     \
        }                                                                                                              \
        for (size_t p = 0; p < np; p++) {                                                                              \
            int8x16_t q = vld1q_s8(b->q[e][p]);                                                                        \
            for (size_t o = 0; o < OUT_PAIRS; o++)                                                                     \
                dot[p][o] = vmmlaq_s32(dot[p][o], w[o], q);                                                            \
        }                                                                                                              \
    }

/* Integer products of group g of a block of weights with half a panel. */
I8MM_INLINE void half_dots(int32x4_t dot[ROW_PAIRS][OUT_PAIRS], const block *b, sl_wtype type, const uint8_t *weights,
                           size_t g, size_t first_v, const size_t np)
{
    const uint8_t *group = weights + g * sl_neon_value_bytes(type) * SL_PANEL;
    for (size_t p = 0; p < np; p++)
        for (size_t o = 0; o < OUT_PAIRS; o++)
            dot[p][o] = vdupq_n_s32(0);
    ADD_EIGHT(0)
    ADD_EIGHT(1)
    int32x4_t s[VECTORS][2];
    if (type == SL_WTYPE_Q6_K)
        for (size_t v = 0; v < VECTORS; v++)
            sl_neon_subscales(s[v], type, weights, first_v + v, g);
    int32x4_t first[ROW_PAIRS][OUT_PAIRS];
    for (size_t p = 0; p < np && type == SL_WTYPE_Q6_K; p++)
        for (size_t o = 0; o < OUT_PAIRS; o++) {
            int32x4_t of = s[o / 2][0];
            first[p][o] = vmulq_s32(dot[p][o], o % 2 ? vzip2q_s32(of, of) : vzip1q_s32(of, of));
            dot[p][o] = vdupq_n_s32(0);
        }
    ADD_EIGHT(2)
    ADD_EIGHT(3)
    for (size_t p = 0; p < np && type == SL_WTYPE_Q6_K; p++)
        for (size_t o = 0; o < OUT_PAIRS; o++) {
            int32x4_t of = s[o / 2][1];
            dot[p][o] = vmlaq_s32(first[p][o], dot[p][o], o % 2 ? vzip2q_s32(of, of) : vzip1q_s32(of, of));
        }
}

/* acc + dot * (ws * is), and the minimum. */
I8MM_INLINE void add_half(block *b, sl_wtype type, const uint8_t *weights, size_t g, size_t half, const size_t np)
{
    int32x4_t dot[ROW_PAIRS][OUT_PAIRS];
    half_dots(dot, b, type, weights, g, half * VECTORS, np);
    float32x4_t ws[OUT_PAIRS], mw[OUT_PAIRS];
    for (size_t v = 0; v < VECTORS; v++) {
        sl_neon_scale s = sl_neon_scale_load(type, weights, half * VECTORS + v, g);
        ws[2 * v] = vzip1q_f32(s.ws, s.ws);
        ws[2 * v + 1] = vzip2q_f32(s.ws, s.ws);
        mw[2 * v] = vzip1q_f32(s.mw, s.mw);
        mw[2 * v + 1] = vzip2q_f32(s.mw, s.mw);
    }
    for (size_t p = 0; p < np; p++) {
        float32x4_t scale = vld1q_f32(b->scale[p]), sum = vld1q_f32(b->sum[p]);
        for (size_t o = 0; o < OUT_PAIRS; o++) {
            float32x4_t value = vcvtq_f32_s32(dot[p][o]), acc = vld1q_f32(b->acc[half][p][o]);
            if (sl_neon_offset(type) > 0.0f)
                value = vaddq_f32(value, vmulq_n_f32(sum, -sl_neon_offset(type)));
            acc = vfmaq_f32(acc, value, vmulq_f32(ws[o], scale));
            if (sl_neon_has_minimum(type))
                acc = vfmaq_f32(acc, mw[o], vmulq_f32(scale, sum));
            vst1q_f32(b->acc[half][p][o], acc);
        }
    }
}

/* A panel for 2 * np rows; np: a compile-time constant. */
I8MM_INLINE void panel_rows(float *out, size_t out_stride, const uint8_t *panel, size_t n_groups,
                            const sl_neon_rows *in, sl_wtype type, const size_t np)
{
    const size_t groups = sl_neon_block_groups(type), block_bytes = sl_neon_block_bytes(type) * SL_PANEL;
    block b;
    for (size_t half = 0; half < HALVES; half++)
        for (size_t p = 0; p < np; p++)
            for (size_t o = 0; o < OUT_PAIRS; o++)
                vst1q_f32(b.acc[half][p][o], vdupq_n_f32(0.0f));
    for (size_t g = 0; g < n_groups; g++) {
        const uint8_t *weights = panel + g / groups * block_bytes;
        load_rows(&b, in, g, np);
        for (size_t half = 0; half < HALVES; half++)
            add_half(&b, type, weights, g % groups, half, np);
    }
    for (size_t half = 0; half < HALVES; half++)
        for (size_t p = 0; p < np; p++)
            for (size_t v = 0; v < VECTORS; v++) { /* four outputs, two rows */
                float32x4_t a = vld1q_f32(b.acc[half][p][2 * v]), c = vld1q_f32(b.acc[half][p][2 * v + 1]);
                float *to = out + 2 * p * out_stride + 8 * half + 4 * v;
                vst1q_f32(to, vuzp1q_f32(a, c));
                vst1q_f32(to + out_stride, vuzp2q_f32(a, c));
            }
}

/* Eights and fours of rows here; what is left of rows by `lower`, of outputs by `reference`. */
I8MM_INLINE void gemm_panels(const sl_gemm_args *args, sl_wtype type, sl_gemm_fn lower, sl_gemm_fn reference)
{
    size_t row_bytes = sl_wtype_row_bytes(type, args->n_in), n_groups = args->n_in / SL_GROUP;
    size_t n_whole = args->n / SL_PANEL * SL_PANEL, stride = args->out_stride, n_rows = args->n_rows / 4 * 4;
    sl_neon_rows in = {NULL, sl_qrow_bytes(args->n_in), sl_qrow_sum_off(args->n_in), sl_qrow_q_off(args->n_in)};
    for (size_t o = args->first_out; o < args->first_out + n_whole; o += SL_PANEL) {
        const uint8_t *panel = (const uint8_t *)args->packed + o * row_bytes;
        for (size_t r = 0; r < n_rows; r += 2 * ROW_PAIRS) {
            in.rows = (const uint8_t *)args->qrows + r * in.stride;
            if (r + 2 * ROW_PAIRS <= n_rows)
                panel_rows(args->out + r * stride + o, stride, panel, n_groups, &in, type, ROW_PAIRS);
            else
                panel_rows(args->out + r * stride + o, stride, panel, n_groups, &in, type, ROW_PAIRS / 2);
        }
    }
    sl_gemm_args rest = *args;
    if (n_whole < args->n) {
        rest.first_out += n_whole;
        rest.n -= n_whole;
        rest.n_rows = n_rows;
        reference(&rest);
    }
    rest = *args;
    rest.n_rows -= n_rows;
    rest.qrows = (const uint8_t *)args->qrows + n_rows * in.stride;
    rest.out += n_rows * stride;
    if (rest.n_rows > 0)
        lower(&rest);
}

I8MM void sl_gemm_q8_0_i8mm(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q8_0, sl_gemm_q8_0_neon, sl_gemm_q8_0_ref);
}

I8MM void sl_gemm_q4_0_i8mm(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_0, sl_gemm_q4_0_neon, sl_gemm_q4_0_ref);
}

I8MM void sl_gemm_q4_1_i8mm(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_1, sl_gemm_q4_1_neon, sl_gemm_q4_1_ref);
}

I8MM void sl_gemm_q5_0_i8mm(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_0, sl_gemm_q5_0_neon, sl_gemm_q5_0_ref);
}

I8MM void sl_gemm_q5_1_i8mm(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_1, sl_gemm_q5_1_neon, sl_gemm_q5_1_ref);
}

I8MM void sl_gemm_q4_k_i8mm(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q4_K, sl_gemm_q4_k_neon, sl_gemm_q4_k_ref);
}

I8MM void sl_gemm_q5_k_i8mm(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q5_K, sl_gemm_q5_k_neon, sl_gemm_q5_k_ref);
}

I8MM void sl_gemm_q6_k_i8mm(const sl_gemm_args *args)
{
    gemm_panels(args, SL_WTYPE_Q6_K, sl_gemm_q6_k_neon, sl_gemm_q6_k_ref);
}

#else
typedef int sl_gemm_i8mm_is_for_arm64;
#endif
