/* tiny_model.h's tiny_encode: values as each type's blocks have them. Simple rules, not ggml's: what matters is that
 * the blocks use their whole range, signs of scales included. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/half.h"
#include "common/tiny_model.h"

static uint16_t bf16_of_float(float value)
{
    uint32_t bits = sl_bits_of_float(value);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Nearest whole number of x in [lo, hi]. */
static uint8_t nearest(float x, float lo, float hi)
{
    float rounded = rintf(x);
    return (uint8_t)(int)(rounded < lo ? lo : rounded > hi ? hi : rounded);
}

static void encode_q8_0(const float *x, gguf_bytes *out)
{
    float amax = 0;
    for (size_t i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    uint16_t scale = sl_half_of_float(amax / 127);
    float d = sl_float_of_half(scale);
    gguf_bytes_uint(out, scale, 2);
    for (size_t i = 0; i < 32; i++)
        gguf_bytes_uint(out, nearest((d > 0 ? x[i] / d : 0) + 128, 1, 255) ^ 128u, 1);
}

/* Smallest and largest of x[0..n). */
static void range_of(const float *x, size_t n, float *lo, float *hi)
{
    *lo = *hi = x[0];
    for (size_t i = 1; i < n; i++) {
        *lo = fminf(*lo, x[i]);
        *hi = fmaxf(*hi, x[i]);
    }
}

/* 4 or 5 bits: value = d * (q - 8) (or 16), or d * q + m. Fifth bits in a word; 16 bytes: elements 0-15 in the low
 * halves, 16-31 in the high ones. */
static void encode_q45(const float *x, unsigned bits, bool has_min, gguf_bytes *out)
{
    float lo, hi, top = (float)((1u << bits) - 1), half = (float)(1u << (bits - 1));
    range_of(x, 32, &lo, &hi);
    float widest = fabsf(lo) > fabsf(hi) ? lo : hi;
    uint16_t scale = sl_half_of_float(has_min ? (hi - lo) / top : widest / -half);
    uint16_t min = sl_half_of_float(lo);
    float d = sl_float_of_half(scale);
    float base = has_min ? sl_float_of_half(min) : -half * d;
    uint8_t q[32];
    uint32_t fifth = 0;
    for (size_t i = 0; i < 32; i++) {
        q[i] = nearest(d != 0 ? (x[i] - base) / d : 0, 0, top);
        fifth |= (uint32_t)(q[i] >> 4) << i;
    }
    gguf_bytes_uint(out, scale, 2);
    if (has_min)
        gguf_bytes_uint(out, min, 2);
    if (bits == 5)
        gguf_bytes_uint(out, fifth, 4);
    for (size_t i = 0; i < 16; i++)
        gguf_bytes_uint(out, (q[i] & 15u) | (q[i + 16] & 15u) << 4, 1);
}

/* The 12 bytes of eight six-bit scales and minimums. */
static void put_six_bits(const uint8_t *scales, const uint8_t *mins, gguf_bytes *out)
{
    uint8_t bytes[12];
    for (size_t g = 0; g < 4; g++) {
        bytes[g] = (uint8_t)(scales[g] | scales[g + 4] >> 4 << 6);
        bytes[g + 4] = (uint8_t)(mins[g] | mins[g + 4] >> 4 << 6);
        bytes[g + 8] = (uint8_t)((scales[g + 4] & 15u) | (mins[g + 4] & 15u) << 4);
    }
    gguf_bytes_put(out, bytes, sizeof bytes);
}

/* Q4_K, Q5_K: value = d * scale * q - dmin * min, a scale and a minimum for 32 elements. */
static void encode_q45_k(const float *x, unsigned bits, gguf_bytes *out)
{
    float lo, hi, top = (float)((1u << bits) - 1), steps[8], depths[8], step = 0, depth = 0;
    for (size_t g = 0; g < 8; g++) {
        range_of(x + 32 * g, 32, &lo, &hi);
        depths[g] = fmaxf(-lo, 0);
        steps[g] = (hi + depths[g]) / top;
        step = fmaxf(step, steps[g]);
        depth = fmaxf(depth, depths[g]);
    }
    uint16_t d16 = sl_half_of_float(step / 63), dmin16 = sl_half_of_float(depth / 63);
    float d = sl_float_of_half(d16), dmin = sl_float_of_half(dmin16);
    uint8_t scales[8], mins[8], q[256], fifth[32] = {0};
    for (size_t g = 0; g < 8; g++) {
        scales[g] = nearest(d > 0 ? steps[g] / d : 0, 0, 63);
        mins[g] = nearest(dmin > 0 ? depths[g] / dmin : 0, 0, 63);
        float unit = d * (float)scales[g], base = dmin * (float)mins[g];
        for (size_t i = 0; i < 32; i++) {
            q[32 * g + i] = nearest(unit > 0 ? (x[32 * g + i] + base) / unit : 0, 0, top);
            fifth[i] |= (uint8_t)(q[32 * g + i] >> 4 << g);
        }
    }
    gguf_bytes_uint(out, d16, 2);
    gguf_bytes_uint(out, dmin16, 2);
    put_six_bits(scales, mins, out);
    if (bits == 5)
        gguf_bytes_put(out, fifth, sizeof fifth);
    for (size_t pair = 0; pair < 4; pair++)
        for (size_t i = 64 * pair; i < 64 * pair + 32; i++)
            gguf_bytes_uint(out, (q[i] & 15u) | (q[i + 32] & 15u) << 4, 1);
}

/* Q6_K: value = d * scale * (q - 32), a signed scale for 16 elements. */
static void encode_q6_k(const float *x, gguf_bytes *out)
{
    float lo, hi, units[16], most = 0;
    for (size_t s = 0; s < 16; s++) {
        range_of(x + 16 * s, 16, &lo, &hi);
        units[s] = (fabsf(lo) > fabsf(hi) ? lo : hi) / -32;
        most = fmaxf(most, fabsf(units[s]));
    }
    uint16_t d16 = sl_half_of_float(most / 127);
    float d = sl_float_of_half(d16);
    uint8_t scales[16], q[256];
    for (size_t s = 0; s < 16; s++) {
        int scale = (int)nearest(d > 0 ? units[s] / d + 128 : 128, 1, 255) - 128;
        scales[s] = (uint8_t)scale;
        for (size_t i = 16 * s; i < 16 * s + 16; i++)
            q[i] = nearest(scale != 0 ? x[i] / (d * (float)scale) + 32 : 0, 0, 63);
    }
    for (size_t i = 0; i < 128; i++) {
        const uint8_t *at = q + i / 64 * 128 + i % 64;
        gguf_bytes_uint(out, (at[0] & 15u) | (at[64] & 15u) << 4, 1);
    }
    for (size_t i = 0; i < 64; i++) {
        const uint8_t *at = q + i / 32 * 128 + i % 32;
        gguf_bytes_uint(out, (unsigned)(at[0] >> 4) | (unsigned)(at[32] >> 4) << 2 | (unsigned)(at[64] >> 4) << 4 |
                                 (unsigned)(at[96] >> 4) << 6, 1);
    }
    gguf_bytes_put(out, scales, sizeof scales);
    gguf_bytes_uint(out, d16, 2);
}

void tiny_encode(uint32_t type, const float *values, size_t n, gguf_bytes *out)
{
    bool is_k = type >= TINY_TYPE_Q4_K && type <= TINY_TYPE_Q6_K;
    bool is_plain = type == TINY_TYPE_F32 || type == TINY_TYPE_F16 || type == TINY_TYPE_BF16;
    for (const float *x = values; x < values + n; x += is_k ? 256 : is_plain ? 1 : 32) {
        switch (type) {
        case TINY_TYPE_F32:
            gguf_bytes_uint(out, sl_bits_of_float(*x), 4);
            break;
        case TINY_TYPE_F16:
            gguf_bytes_uint(out, sl_half_of_float(*x), 2);
            break;
        case TINY_TYPE_BF16:
            gguf_bytes_uint(out, bf16_of_float(*x), 2);
            break;
        case TINY_TYPE_Q8_0:
            encode_q8_0(x, out);
            break;
        case TINY_TYPE_Q4_0:
        case TINY_TYPE_Q4_1:
            encode_q45(x, 4, type == TINY_TYPE_Q4_1, out);
            break;
        case TINY_TYPE_Q5_0:
        case TINY_TYPE_Q5_1:
            encode_q45(x, 5, type == TINY_TYPE_Q5_1, out);
            break;
        case TINY_TYPE_Q4_K:
        case TINY_TYPE_Q5_K:
            encode_q45_k(x, type == TINY_TYPE_Q5_K ? 5 : 4, out);
            break;
        case TINY_TYPE_Q6_K:
            encode_q6_k(x, out);
            break;
        default:
            fprintf(stderr, "tiny_encode: type %u\n", (unsigned)type);
            abort();
        }
    }
}
