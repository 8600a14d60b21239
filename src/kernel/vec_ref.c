/* Norms, RoPE and element-wise functions: the definition. Every other vec_<isa>.c gives these bits.
 * Owns: sums over sixteen lanes (lane = k mod 16, in order) and their tree t + (t+8), +4, +2, +1. */
#include <math.h>

#include "base/half.h"
#include "kernel/kernel.h"
#include "kernel/ref.h"
#include "kernel/scalar.h"

void sl_rmsnorm_ref(float *out, const float *x, const float *w, size_t n, float eps)
{
    float lanes[SL_LANES] = {0.0f};
    for (size_t k = 0; k < n; k++)
        lanes[k % SL_LANES] = fmaf(x[k], x[k], lanes[k % SL_LANES]);
    float mean = sl_scalar_tree16(lanes) / (float)n;
    float r = 1.0f / sqrtf(mean + eps);
    for (size_t k = 0; k < n; k++)
        out[k] = (x[k] * r) * w[k];
}

void sl_rope_norm_ref(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
{
    for (size_t i = 0; i < n_pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        float c = cos_tab[i], s = sin_tab[i];
        x[2 * i] = fmaf(a, c, -(b * s));
        x[2 * i + 1] = fmaf(a, s, b * c);
    }
}

void sl_rope_neox_ref(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
{
    for (size_t i = 0; i < n_pairs; i++) {
        float a = x[i], b = x[n_pairs + i];
        float c = cos_tab[i], s = sin_tab[i];
        x[i] = fmaf(a, c, -(b * s));
        x[n_pairs + i] = fmaf(a, s, b * c);
    }
}

void sl_silu_mul_ref(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        float t = -gate[k] * SL_LOG2E;
        t = t < 127.0f ? t : 127.0f;
        out[k] = gate[k] / (1.0f + sl_scalar_exp2(t)) * up[k];
    }
}

void sl_gelu_mul_ref(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t k = 0; k < n; k++)
        out[k] = sl_scalar_gelu(gate[k]) * up[k];
}

void sl_softcap_ref(float *x, size_t n, float cap)
{
    for (size_t k = 0; k < n; k++)
        x[k] = cap * sl_scalar_tanh(x[k] / cap);
}

void sl_add_ref(float *x, const float *y, size_t n)
{
    for (size_t k = 0; k < n; k++)
        x[k] += y[k];
}

void sl_exp2_ref(float *out, const float *x, size_t n)
{
    for (size_t k = 0; k < n; k++)
        out[k] = sl_scalar_exp2(x[k]);
}

float sl_sumexp_ref(const float *x, size_t n, float max)
{
    float lanes[SL_LANES] = {0.0f};
    for (size_t k = 0; k < n; k++)
        lanes[k % SL_LANES] += sl_scalar_exp2((x[k] - max) * SL_LOG2E);
    return sl_scalar_tree16(lanes);
}

size_t sl_argmax_ref(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t k = 1; k < n; k++)
        if (x[k] > x[best])
            best = k;
    return best;
}

bool sl_finite_ref(const float *x, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if ((sl_bits_of_float(x[k]) & 0x7f800000u) == 0x7f800000u)
            return false;
    return true;
}
