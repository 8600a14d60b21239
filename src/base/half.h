/* binary16 and bfloat16 to and from binary32, in integers, so that no rounding mode or instruction set matters.
 * Source: IEEE 754-2008 section 3.4; round to nearest, ties to even. */
#ifndef SL_HALF_H
#define SL_HALF_H

#include <stdint.h>
#include <string.h>

static inline float sl_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sl_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float sl_float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u;
    uint32_t mantissa = half & 1023u;
    if (exponent == 31)
        return sl_float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0)
        return sl_float_of_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
    /* subnormal: mantissa * 2^-24, exact in binary32 */
    float magnitude = (float)mantissa * 0x1p-24f;
    return sl_float_of_bits(sign | sl_bits_of_float(magnitude));
}

/* Overflow gives an infinity; NaN stays NaN (quiet, upper payload bits kept, as F16C does). */
static inline uint16_t sl_half_of_float(float value)
{
    uint32_t bits = sl_bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) { /* normal: drop 13 bits, ties to even */
        uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
        return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
    }
    if (magnitude < 0x33000000u) /* below 2^-25 */
        return (uint16_t)sign;
    uint32_t exponent = magnitude >> 23; /* 102..112 */
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126u - exponent; /* 14..24 */
    uint32_t half = mantissa >> shift;
    uint32_t rest = mantissa & ((1u << shift) - 1u);
    uint32_t middle = 1u << (shift - 1u);
    if (rest > middle || (rest == middle && (half & 1u)))
        half++;
    return (uint16_t)(sign | half);
}

static inline float sl_float_of_bf16(uint16_t value)
{
    return sl_float_of_bits((uint32_t)value << 16);
}

#endif
