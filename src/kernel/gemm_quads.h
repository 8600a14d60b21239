/* Packed groups of weights (kernel.h, Weights) in 256-bit registers: what decoding and the products of a few rows
 * share. A half is eight of a panel's outputs; its quad is four elements of each, a byte an element. x86-64 only. */
#ifndef SL_GEMM_QUADS_H
#define SL_GEMM_QUADS_H

#include <string.h>

#include "kernel/avx2.h"
#include "kernel/gemm_panels.h"

enum {
    SL_QUAD_BYTES = 4 * SL_PANEL, /* of sixteen outputs */
    SL_HALF_BYTES = 4 * SL_HALF_PANEL,
    SL_Q8_VALUES = SL_QUADS * SL_QUAD_BYTES,
    SL_Q8_BYTES = SL_Q8_VALUES + 2 * SL_PANEL,
    SL_Q8_AHEAD = 2048, /* bytes that the prefetch of one row runs ahead */
    SL_BLOCK_ROWS = 4,  /* share the loads of a group's weights */
    SL_PART = 4,        /* quads: half a group's elements */
    SL_FIELD_BITS = 6, /* of a packed scale or minimum of Q4_K and Q5_K */
    SL_WORD_FIELDS = 5
};

/* How a type is packed; a constant wherever it is used. */
typedef struct sl_packing {
    sl_wtype type;
    unsigned bits;           /* of a value: 2 to 6 */
    unsigned head;           /* bytes of an output behind the values */
    bool super;              /* heads follow eight groups, not one */
    bool minimum, subscales; /* of the head; both: the minimums, too, are of half a group */
    bool parts;              /* sums of half a group: those of all of it would not fit 16 bits */
    bool wide;               /* decoded weights are any signed bytes, multiplied as Q8_0's */
    float offset;            /* what the decoded value adds to the weight */
} sl_packing;

AVX2_INLINE sl_packing sl_packing_of(sl_wtype type)
{
    switch (type) {
    case SL_WTYPE_Q4_0:
        return (sl_packing){.type = type, .bits = 4, .head = 2, .offset = 8.0f};
    case SL_WTYPE_Q4_1:
        return (sl_packing){.type = type, .bits = 4, .head = 4, .minimum = true};
    case SL_WTYPE_Q5_0:
        return (sl_packing){.type = type, .bits = 5, .head = 2, .parts = true, .offset = 16.0f};
    case SL_WTYPE_Q5_1:
        return (sl_packing){.type = type, .bits = 5, .head = 4, .parts = true, .minimum = true};
    case SL_WTYPE_Q4_K:
        return (sl_packing){.type = type, .bits = 4, .head = 16, .super = true, .minimum = true};
    case SL_WTYPE_Q5_K:
        return (sl_packing){.type = type, .bits = 5, .head = 16, .super = true, .parts = true, .minimum = true};
    case SL_WTYPE_Q2_K:
        return (sl_packing){.type = type, .bits = 2, .head = 20, .super = true, .parts = true, .minimum = true,
                            .subscales = true};
    case SL_WTYPE_Q3_K:
        return (sl_packing){.type = type, .bits = 3, .head = 14, .super = true, .parts = true, .subscales = true};
    case SL_WTYPE_IQ4_NL:
        return (sl_packing){.type = type, .bits = 4, .head = 2, .wide = true};
    case SL_WTYPE_IQ4_XS:
        return (sl_packing){.type = type, .bits = 4, .head = 8, .super = true, .wide = true};
    case SL_WTYPE_MXFP4:
        return (sl_packing){.type = type, .bits = 4, .head = 1, .parts = true, .offset = 12.0f};
    default:
        return (sl_packing){.type = SL_WTYPE_Q6_K, .bits = 6, .head = 18, .super = true, .parts = true,
                            .subscales = true};
    }
}

AVX2_INLINE size_t sl_packing_value_bytes(sl_packing p)
{
    return (size_t)p.bits * SL_QUAD_BYTES;
}

/* From a group's values to the next one's. */
AVX2_INLINE size_t sl_packing_step(sl_packing p)
{
    return sl_packing_value_bytes(p) + (p.super ? 0u : p.head * SL_PANEL);
}

/* Of a whole panel, heads included. */
AVX2_INLINE size_t sl_packing_group_bytes(sl_wtype type)
{
    const sl_packing p = sl_packing_of(type);
    return sl_packing_value_bytes(p) + p.head * SL_PANEL / (p.super ? SL_PANEL_GROUPS : 1u);
}

AVX2_INLINE __m256i sl_load_256(const void *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

AVX2_INLINE __m256 sl_load_halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

/* Calls the place of a group a block further on into the cache: one row goes through its weights faster than the
 * processor's own prefetch. Past the end of the matrix it does nothing: the address is only a hint. */
AVX2_INLINE void sl_prefetch_ahead(const uint8_t *block, size_t g, sl_wtype type)
{
    const size_t bytes = sl_packing_group_bytes(type);
    for (size_t line = 0; line < bytes; line += 64)
        _mm_prefetch((const char *)((uintptr_t)block + (SL_PANEL_GROUPS + g) * bytes + line), _MM_HINT_T0);
}

/* `bits` moved up, or down where n is negative, and masked. */
AVX2_INLINE __m256i sl_bits_at(__m256i bits, int n, int mask)
{
    __m256i moved = n >= 0 ? _mm256_slli_epi16(bits, n >= 0 ? n : 0) : _mm256_srli_epi16(bits, n < 0 ? -n : 0);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

/* Q2_K and Q3_K, whose offset is taken off: as sl_quad_pair. */
AVX2_INLINE void sl_quad_pair_23(__m256i w[2], const uint8_t *group, size_t i, size_t h, sl_packing p)
{
    const __m256i v = sl_load_256(group + i / 2 * SL_QUAD_BYTES + h * SL_HALF_BYTES);
    const int n = (int)(4 * (i % 2)), k = (int)(2 * i);
    w[0] = sl_bits_at(v, -n, 3);
    w[1] = sl_bits_at(v, -n - 2, 3);
    if (p.bits == 3) { /* bit k of a byte belongs to quad k */
        const __m256i bits = sl_load_256(group + 2 * SL_QUAD_BYTES + h * SL_HALF_BYTES), offset = _mm256_set1_epi8(4);
        w[0] = _mm256_sub_epi8(_mm256_or_si256(w[0], sl_bits_at(bits, 2 - k, 4)), offset);
        w[1] = _mm256_sub_epi8(_mm256_or_si256(w[1], sl_bits_at(bits, 1 - k, 4)), offset);
    }
}

/* What the sixteen nibbles stand for. MXFP4's have 12 added. */
AVX2_INLINE __m256i sl_nibble_values(sl_packing p)
{
    if (p.wide)
        return _mm256_broadcastsi128_si256(
            _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

/* Quads 2*i and 2*i+1 of half h: i and p constants. */
AVX2_INLINE void sl_quad_pair(__m256i w[2], const uint8_t *group, size_t i, size_t h, sl_packing p)
{
    if (p.bits < 4) {
        sl_quad_pair_23(w, group, i, h, p);
        return;
    }
    __m256i v = sl_load_256(group + i * SL_QUAD_BYTES + h * SL_HALF_BYTES);
    w[0] = sl_bits_at(v, 0, 15);
    w[1] = sl_bits_at(v, -4, 15);
    if (p.wide || p.type == SL_WTYPE_MXFP4) {
        w[0] = _mm256_shuffle_epi8(sl_nibble_values(p), w[0]);
        w[1] = _mm256_shuffle_epi8(sl_nibble_values(p), w[1]);
    }
    const uint8_t *high = group + 4 * SL_QUAD_BYTES + h * SL_HALF_BYTES;
    int n = (int)(2 * i);
    if (p.bits == 5) { /* bit k of a byte belongs to quad k */
        __m256i bits = sl_load_256(high);
        w[0] = _mm256_or_si256(w[0], sl_bits_at(bits, 4 - n, 16));
        w[1] = _mm256_or_si256(w[1], sl_bits_at(bits, 3 - n, 16));
    }
    if (p.bits == 6) { /* bits 2*k and 2*k+1 belong to quad k or 4+k; the offset is taken off */
        __m256i bits = sl_load_256(high + i / 2 * SL_QUAD_BYTES), offset = _mm256_set1_epi8(32);
        n = (int)(4 * (i % 2));
        w[0] = _mm256_sub_epi8(_mm256_or_si256(w[0], sl_bits_at(bits, 4 - n, 48)), offset);
        w[1] = _mm256_sub_epi8(_mm256_or_si256(w[1], sl_bits_at(bits, 2 - n, 48)), offset);
    }
}

/* Where a group's parts lie in every quantised row. */
typedef struct sl_group_off {
    size_t scale, sum, q;
} sl_group_off;

/* The compiler shall add these to the rows' pointers in addresses, and not keep a pointer for each sum. */
AVX2_INLINE sl_group_off sl_group_off_of(const sl_panel_rows *in, size_t g)
{
    sl_group_off off = {g * sizeof(float), in->sum_off + g * sizeof(float), in->q_off + g * SL_GROUP};
    __asm__("" : "+r"(off.scale), "+r"(off.sum), "+r"(off.q));
    return off;
}

/* The rows of a register block. */
typedef struct sl_row_block {
    const uint8_t *row[SL_BLOCK_ROWS];
    size_t n; /* a constant where it is used */
} sl_row_block;

AVX2_INLINE sl_row_block sl_row_block_from(const sl_panel_rows *in, size_t first, size_t n)
{
    sl_row_block b = {.n = n};
    for (size_t r = 0; r < n; r++)
        b.row[r] = in->rows + (first + r) * in->stride;
    return b;
}

AVX2_INLINE __m256 sl_broadcast_float(const uint8_t *at)
{
    return _mm256_broadcast_ss((const float *)(const void *)at);
}

AVX2_INLINE __m256i sl_broadcast_quad(const uint8_t *at)
{
    int32_t value;
    memcpy(&value, at, sizeof value);
    return _mm256_set1_epi32(value);
}

/* Field f of eight outputs, whose three words lie in s. */
AVX2_INLINE __m256i sl_field_of(const __m256i s[3], size_t f)
{
    const __m256i mask = _mm256_set1_epi32((1 << SL_FIELD_BITS) - 1);
    if (f < 3 * SL_WORD_FIELDS)
        return _mm256_and_si256(
            _mm256_srli_epi32(s[f / SL_WORD_FIELDS], (int)(SL_FIELD_BITS * (f % SL_WORD_FIELDS))), mask);
    __m256i low = _mm256_srli_epi32(s[0], 30), middle = _mm256_srli_epi32(s[1], 30), high = _mm256_srli_epi32(s[2], 30);
    return _mm256_or_si256(_mm256_or_si256(low, _mm256_slli_epi32(middle, 2)), _mm256_slli_epi32(high, 4));
}

/* The three words of half h. */
AVX2_INLINE void sl_field_words(__m256i s[3], const uint8_t *head, size_t h)
{
    for (size_t i = 0; i < 3; i++)
        s[i] = sl_load_256(head + i * SL_QUAD_BYTES + h * SL_HALF_BYTES);
}

/* Scales and minimums of a superblock of Q4_K or Q5_K: ws = d * scale, mw = -(dmin * minimum). */
AVX2_INLINE void sl_super_heads(sl_panel_heads *out, const uint8_t *head)
{
    const uint8_t *halves = head + 3 * SL_QUAD_BYTES;
    for (size_t h = 0; h < 2; h++) {
        __m256i s[3];
        sl_field_words(s, head, h);
        __m256 d = sl_load_halves(halves + h * SL_PANEL);
        __m256 dmin = _mm256_xor_ps(sl_load_halves(halves + 2 * SL_PANEL + h * SL_PANEL), _mm256_set1_ps(-0.0f));
        for (size_t g = 0; g < SL_PANEL_GROUPS; g++) {
            _mm256_store_ps(out->ws[g][h], _mm256_mul_ps(d, _mm256_cvtepi32_ps(sl_field_of(s, 2 * g))));
            _mm256_store_ps(out->mw[g][h], _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(sl_field_of(s, 2 * g + 1))));
        }
    }
}

/* Scales of a superblock of IQ4_XS: ws = d * scale. */
AVX2_INLINE void sl_iq4_xs_heads(sl_panel_heads *out, const uint8_t *head)
{
    const uint8_t *tops = head + SL_QUAD_BYTES, *halves = tops + 2 * SL_PANEL;
    for (size_t h = 0; h < 2; h++) {
        __m256i low = sl_load_256(head + h * SL_HALF_BYTES);
        __m256i top = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(tops + h * SL_PANEL)));
        const __m256 d = sl_load_halves(halves + h * SL_PANEL);
        for (size_t g = 0; g < SL_PANEL_GROUPS; g++) {
            __m256i scale = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                            _mm256_slli_epi32(_mm256_and_si256(top, _mm256_set1_epi32(3)), 4));
            scale = _mm256_sub_epi32(scale, _mm256_set1_epi32(32));
            _mm256_store_ps(out->ws[g][h], _mm256_mul_ps(d, _mm256_cvtepi32_ps(scale)));
            low = _mm256_srli_epi32(low, 4);
            top = _mm256_srli_epi32(top, 2);
        }
    }
}

/* Eight of MXFP4's: 2^(e - 128), denormal for e < 2. */
AVX2_INLINE __m256 sl_powers_of(const uint8_t *at)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, denormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

/* Scales of a block of n groups. */
AVX2_INLINE void sl_heads_of(sl_panel_heads *out, const uint8_t *packed, size_t n, sl_packing p)
{
    const uint8_t *head = packed + (p.super ? n : 1) * sl_packing_value_bytes(p);
    if (p.super && p.minimum && !p.subscales) {
        sl_super_heads(out, head);
        return;
    }
    if (p.type == SL_WTYPE_IQ4_XS) {
        sl_iq4_xs_heads(out, head);
        return;
    }
    if (p.subscales)
        head += (p.head - (p.minimum ? 4 : 2)) * SL_PANEL;
    const __m256 sign = p.subscales ? _mm256_set1_ps(-0.0f) : _mm256_setzero_ps(); /* Q2_K: mw = -dmin */
    for (size_t g = 0; g < n; g++, head += p.super ? 0 : sl_packing_step(p))
        for (size_t h = 0; h < 2; h++) {
            _mm256_store_ps(out->ws[g][h], p.type == SL_WTYPE_MXFP4 ? sl_powers_of(head + h * SL_HALF_PANEL)
                                                                    : sl_load_halves(head + h * SL_PANEL));
            if (p.minimum)
                _mm256_store_ps(out->mw[g][h],
                                _mm256_xor_ps(sl_load_halves(head + 2 * SL_PANEL + h * SL_PANEL), sign));
        }
}

/* Q6_K, Q2_K, Q3_K: the sub-scales of group g of a superblock for half h, for each half of its elements. */
AVX2_INLINE void sl_subs_of(__m256i sub[2], const uint8_t *packed, size_t g, size_t h, sl_packing p)
{
    const uint8_t *head = packed + SL_PANEL_GROUPS * sl_packing_value_bytes(p);
    if (p.type == SL_WTYPE_Q3_K) {
        __m256i s[3];
        sl_field_words(s, head, h);
        for (size_t part = 0; part < 2; part++)
            sub[part] = _mm256_sub_epi32(sl_field_of(s, 2 * g + part), _mm256_set1_epi32(32));
        return;
    }
    __m128i both = _mm_loadu_si128((const __m128i *)(const void *)(head + (g * 2 + h) * SL_PANEL));
    if (p.type == SL_WTYPE_Q2_K) {
        const __m256i bytes = _mm256_cvtepu16_epi32(both), low = _mm256_set1_epi32(15);
        sub[0] = _mm256_and_si256(bytes, low);
        sub[1] = _mm256_and_si256(_mm256_srli_epi32(bytes, 8), low);
        return;
    }
    sub[0] = _mm256_srai_epi32(_mm256_slli_epi32(_mm256_cvtepi16_epi32(both), 24), 24);
    sub[1] = _mm256_cvtepi16_epi32(_mm_srai_epi16(both, 8));
}

/* Q2_K: the minimums beside them, two int16 an output. */
AVX2_INLINE __m256i sl_minimums_of(const uint8_t *packed, size_t g, size_t h, sl_packing p)
{
    const uint8_t *at = packed + SL_PANEL_GROUPS * sl_packing_value_bytes(p) + (g * 2 + h) * SL_PANEL;
    const __m256i bytes = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(bytes, 4), _mm256_set1_epi32(15)),
                           _mm256_and_si256(_mm256_slli_epi32(bytes, 4), _mm256_set1_epi32(15 << 16)));
}

/* The sums of a group's elements 0..15 and 16..31 as two int16, of each row of a block. */
AVX2_INLINE void sl_half_sums(int32_t out[SL_BLOCK_ROWS], const sl_row_block *b, size_t q_off)
{
    __m256i s[SL_BLOCK_ROWS];
    for (size_t r = 0; r < SL_BLOCK_ROWS; r++) {
        s[r] = _mm256_setzero_si256();
        if (r < b->n)
            s[r] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), sl_load_256(b->row[r] + q_off)),
                                     _mm256_set1_epi16(1));
    }
    const __m256i rows = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    const __m128i first = _mm256_castsi256_si128(rows), second = _mm256_extracti128_si256(rows, 1);
    _mm_storeu_si128((__m128i *)(void *)out, _mm_blend_epi16(first, _mm_slli_epi32(second, 16), 0xaa));
}

/* What they and the minimums of eight outputs make. */
AVX2_INLINE __m256 sl_minimum_sum(int32_t half_sums, __m256i minimums)
{
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_set1_epi32(half_sums), minimums));
}

/* Each of eight small numbers as two int16. */
AVX2_INLINE __m256i sl_twice_16(__m256i v)
{
    return _mm256_blend_epi16(v, _mm256_slli_epi32(v, 16), 0xaa);
}

/* -128 times the sums of four quads of -32..31, two int16 an output, modulo 2^16. Four such bytes add up to a byte. */
AVX2_INLINE __m256i sl_start_pairs(const __m256i w[4])
{
    __m256i sum = _mm256_add_epi8(_mm256_add_epi8(w[0], w[1]), _mm256_add_epi8(w[2], w[3]));
    return _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_maddubs_epi16(_mm256_set1_epi8(-128), sum));
}

/* The same as one int32. */
AVX2_INLINE __m256i sl_start_whole(const __m256i w[4])
{
    __m256i sum = _mm256_add_epi8(_mm256_add_epi8(w[0], w[1]), _mm256_add_epi8(w[2], w[3]));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(-128), sum), _mm256_set1_epi16(-1));
}

/* A row's group with 128 added to each activation, as signed weights multiply it. */
AVX2_INLINE void sl_flip_group(uint8_t out[SL_GROUP], const uint8_t *q)
{
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_xor_si256(sl_load_256(q), _mm256_set1_epi8(-128)));
}

#endif
