/* Quantised input rows, norms, RoPE and element-wise functions for NEON: the bits of gemm_ref.c's qrow and of
 * vec_ref.c. Ends shorter than a vector go through the reference or its scalar functions. */
#include "kernel/levels.h"

#if defined(__aarch64__)

#include <math.h>

#include "kernel/neon.h"

enum { LANES = 4 };

NEON_INLINE void quantise_group(const float *x, int8_t *q, float *scale, float *sum)
{
    const sl_neon_group g = sl_neon_group_load(x);
    float amax = sl_float_of_bits(g.amax_bits);
    if (amax < SL_AMAX_MIN) {
        vst1q_s8(q, vdupq_n_s8(0));
        vst1q_s8(q + 16, vdupq_n_s8(0));
        *scale = *sum = 0.0f;
        return;
    }
    int16x8_t wide[4];
    sl_neon_group_round(&g, 127.0f / amax, wide);
    for (int i = 0; i < 4; i++)
        vst1_s8(q + 8 * i, vmovn_s16(wide[i]));
    int16x8_t eight = vaddq_s16(vaddq_s16(wide[0], wide[1]), vaddq_s16(wide[2], wide[3]));
    *scale = amax / 127.0f;
    *sum = (float)vaddlvq_s16(eight);
}

NEON void sl_qrow_neon(void *out, const float *x, size_t x_stride, size_t n_rows, size_t n)
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

NEON_INLINE void store_lanes(float lanes[SL_LANES], const float32x4_t v[4])
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(lanes + LANES * i, v[i]);
}

NEON static float sum_squares(const float *x, size_t n)
{
    float32x4_t v[4] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
    size_t k = 0;
    for (; k + SL_LANES <= n; k += SL_LANES)
        for (size_t i = 0; i < 4; i++) {
            float32x4_t a = vld1q_f32(x + k + LANES * i);
            v[i] = vfmaq_f32(v[i], a, a);
        }
    float lanes[SL_LANES];
    store_lanes(lanes, v);
    for (; k < n; k++)
        lanes[k % SL_LANES] = fmaf(x[k], x[k], lanes[k % SL_LANES]);
    return sl_scalar_tree16(lanes);
}

NEON void sl_rmsnorm_neon(float *out, const float *x, const float *w, size_t n, float eps)
{
    float mean = sum_squares(x, n) / (float)n;
    float r = 1.0f / sqrtf(mean + eps);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        vst1q_f32(out + k, vmulq_f32(vmulq_n_f32(vld1q_f32(x + k), r), vld1q_f32(w + k)));
    for (; k < n; k++)
        out[k] = (x[k] * r) * w[k];
}

NEON void sl_rope_norm_neon(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
{
    size_t i = 0;
    for (; i + LANES <= n_pairs; i += LANES) {
        float32x4x2_t v = vld2q_f32(x + 2 * i);
        float32x4_t c = vld1q_f32(cos_tab + i), s = vld1q_f32(sin_tab + i);
        float32x4x2_t turned;
        turned.val[0] = vfmaq_f32(vnegq_f32(vmulq_f32(v.val[1], s)), v.val[0], c);
        turned.val[1] = vfmaq_f32(vmulq_f32(v.val[1], c), v.val[0], s);
        vst2q_f32(x + 2 * i, turned);
    }
    sl_rope_norm_ref(x + 2 * i, cos_tab + i, sin_tab + i, n_pairs - i);
}

NEON void sl_rope_neox_neon(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
{
    float *y = x + n_pairs;
    size_t i = 0;
    for (; i + LANES <= n_pairs; i += LANES) {
        float32x4_t a = vld1q_f32(x + i), b = vld1q_f32(y + i);
        float32x4_t c = vld1q_f32(cos_tab + i), s = vld1q_f32(sin_tab + i);
        vst1q_f32(x + i, vfmaq_f32(vnegq_f32(vmulq_f32(b, s)), a, c));
        vst1q_f32(y + i, vfmaq_f32(vmulq_f32(b, c), a, s));
    }
    for (; i < n_pairs; i++) {
        float a = x[i], b = y[i];
        x[i] = fmaf(a, cos_tab[i], -(b * sin_tab[i]));
        y[i] = fmaf(a, sin_tab[i], b * cos_tab[i]);
    }
}

NEON void sl_silu_mul_neon(float *out, const float *gate, const float *up, size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        float32x4_t g = vld1q_f32(gate + k);
        float32x4_t t = vmulq_n_f32(vnegq_f32(g), SL_LOG2E);
        t = vminnmq_f32(t, vdupq_n_f32(127.0f)); /* a NaN gives 127, as in the reference */
        float32x4_t silu = vdivq_f32(g, vaddq_f32(vdupq_n_f32(1.0f), sl_neon_exp2(t)));
        vst1q_f32(out + k, vmulq_f32(silu, vld1q_f32(up + k)));
    }
    sl_silu_mul_ref(out + k, gate + k, up + k, n - k);
}

NEON void sl_gelu_mul_neon(float *out, const float *gate, const float *up, size_t n)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        float32x4_t x = vld1q_f32(gate + k);
        float32x4_t y = vfmaq_f32(one, vdupq_n_f32(SL_GELU_CUBE), vmulq_f32(x, x));
        y = vmulq_f32(vmulq_n_f32(x, SL_GELU_SCALE), y);
        float32x4_t gelu = vmulq_f32(vmulq_n_f32(x, 0.5f), vaddq_f32(one, sl_neon_tanh(y)));
        vst1q_f32(out + k, vmulq_f32(gelu, vld1q_f32(up + k)));
    }
    sl_gelu_mul_ref(out + k, gate + k, up + k, n - k);
}

NEON void sl_softcap_neon(float *x, size_t n, float cap)
{
    const float32x4_t most = vdupq_n_f32(cap);
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        vst1q_f32(x + k, vmulq_f32(most, sl_neon_tanh(vdivq_f32(vld1q_f32(x + k), most))));
    sl_softcap_ref(x + k, n - k, cap);
}

NEON void sl_add_neon(float *x, const float *y, size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        vst1q_f32(x + k, vaddq_f32(vld1q_f32(x + k), vld1q_f32(y + k)));
    sl_add_ref(x + k, y + k, n - k);
}

NEON void sl_exp2_neon(float *out, const float *x, size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        vst1q_f32(out + k, sl_neon_exp2(vld1q_f32(x + k)));
    sl_exp2_ref(out + k, x + k, n - k);
}

NEON float sl_sumexp_neon(const float *x, size_t n, float max)
{
    float32x4_t v[4] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
    const float32x4_t most = vdupq_n_f32(max);
    size_t k = 0;
    for (; k + SL_LANES <= n; k += SL_LANES)
        for (size_t i = 0; i < 4; i++) {
            float32x4_t difference = vsubq_f32(vld1q_f32(x + k + LANES * i), most);
            v[i] = vaddq_f32(v[i], sl_neon_exp2(vmulq_n_f32(difference, SL_LOG2E)));
        }
    float lanes[SL_LANES];
    store_lanes(lanes, v);
    for (; k < n; k++)
        lanes[k % SL_LANES] += sl_scalar_exp2((x[k] - max) * SL_LOG2E);
    return sl_scalar_tree16(lanes);
}

/* Two passes: the maximum, then the first place that equals it. */
NEON size_t sl_argmax_neon(const float *x, size_t n)
{
    float32x4_t most[2] = {vdupq_n_f32(x[0]), vdupq_n_f32(x[0])};
    size_t k = 0;
    for (; k + 2 * LANES <= n; k += 2 * LANES) {
        most[0] = vmaxnmq_f32(most[0], vld1q_f32(x + k));
        most[1] = vmaxnmq_f32(most[1], vld1q_f32(x + k + LANES));
    }
    float max = vmaxnmvq_f32(vmaxnmq_f32(most[0], most[1]));
    for (; k < n; k++)
        max = x[k] > max ? x[k] : max;
    for (k = 0; k + LANES <= n; k += LANES)
        if (vmaxvq_u32(vceqq_f32(vld1q_f32(x + k), vdupq_n_f32(max))))
            break;
    while (k < n && x[k] != max)
        k++;
    return k < n ? k : 0;
}

NEON bool sl_finite_neon(const float *x, size_t n)
{
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        if (vmaxvq_u32(vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + k)))) >= 0x7f800000u)
            return false;
    return sl_finite_ref(x + k, n - k);
}

#else
typedef int sl_vec_neon_is_for_arm64;
#endif
