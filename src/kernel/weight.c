/* Weight formats: sizes, packing into panels, and reading one row back.
 * Owns: the byte layouts of kernel.h's Weights section. Runs at load time and for embeddings; no instruction sets.
 * Source of the input formats: the GGUF specification and ggml's block layouts, stated at the packing functions. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/kernel.h"

enum {
    PAD = 64,
    KSCALE_BYTES = 12, /* sixteen six-bit fields */
    WORD_FIELDS = 5,   /* of a packed word; the last field is spread over the words' top bits */
    FIELD_BITS = 6,
    Q3_K_SCALES_OFF = 96,  /* sixteen six-bit fields */
    Q6_K_SCALES_OFF = 192, /* sixteen int8, one for 16 elements */
    LOW_BYTES = 16,        /* a packed group's low four bits */
    FIVE_BITS = 20,        /* bytes of a packed group with a fifth bit, */
    SIX_BITS = 24,         /* with two more */
    GROUPS = SL_SUPERBLOCK / SL_GROUP
};

/* In GGUF a block's own numbers stand in front (Q6_K, Q2_K, Q3_K: behind); packed, they end each block of the panel. */
typedef struct wtype_info {
    const char *name;
    size_t block_elems, block_bytes;
    size_t half_bytes;  /* scale, and minimum where there is one; binary16, MXFP4's a byte */
    size_t group_bytes; /* of 32 values, packed */
    int offset;         /* stored value - element */
} wtype_info;

static const wtype_info WTYPES[SL_WTYPE_COUNT] = {
    [SL_WTYPE_F32] = {"F32", 1, 4, 0, 0, 0},
    [SL_WTYPE_F16] = {"F16", 1, 2, 0, 0, 0},
    [SL_WTYPE_BF16] = {"BF16", 1, 2, 0, 0, 0},
    [SL_WTYPE_Q8_0] = {"Q8_0", SL_GROUP, 34, 2, 32, 0},
    [SL_WTYPE_Q4_0] = {"Q4_0", SL_GROUP, 18, 2, 16, 8},
    [SL_WTYPE_Q4_1] = {"Q4_1", SL_GROUP, 20, 4, 16, 0},
    [SL_WTYPE_Q5_0] = {"Q5_0", SL_GROUP, 22, 2, 20, 16},
    [SL_WTYPE_Q5_1] = {"Q5_1", SL_GROUP, 24, 4, 20, 0},
    [SL_WTYPE_Q4_K] = {"Q4_K", SL_SUPERBLOCK, 144, 4, 16, 0},
    [SL_WTYPE_Q5_K] = {"Q5_K", SL_SUPERBLOCK, 176, 4, 20, 0},
    [SL_WTYPE_Q6_K] = {"Q6_K", SL_SUPERBLOCK, 210, 2, 24, 32},
    [SL_WTYPE_Q2_K] = {"Q2_K", SL_SUPERBLOCK, 84, 4, 8, 0},
    [SL_WTYPE_Q3_K] = {"Q3_K", SL_SUPERBLOCK, 110, 2, 12, 4},
    [SL_WTYPE_IQ4_NL] = {"IQ4_NL", SL_GROUP, 18, 2, 16, 0},
    [SL_WTYPE_IQ4_XS] = {"IQ4_XS", SL_SUPERBLOCK, 136, 2, 16, 0},
    [SL_WTYPE_MXFP4] = {"MXFP4", SL_GROUP, 17, 1, 16, 0},
};

/* What the nibbles of IQ4_NL and IQ4_XS stand for, and those of MXFP4, twice the value. Source: ggml's tables. */
static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float load_half(const uint8_t *at)
{
    return sl_float_of_half((uint16_t)(at[0] | at[1] << 8));
}

static size_t pad_up(size_t bytes)
{
    return (bytes + PAD - 1) / PAD * PAD;
}

size_t sl_wtype_block_elems(sl_wtype type)
{
    return WTYPES[type].block_elems;
}

size_t sl_wtype_row_bytes(sl_wtype type, size_t n)
{
    return n / WTYPES[type].block_elems * WTYPES[type].block_bytes;
}

bool sl_wtype_is_quantised(sl_wtype type)
{
    return WTYPES[type].block_elems > 1;
}

bool sl_wtype_has_minimum(sl_wtype type)
{
    return WTYPES[type].half_bytes == 4;
}

const char *sl_wtype_name(sl_wtype type)
{
    return WTYPES[type].name;
}

size_t sl_qrow_sum_off(size_t n)
{
    return pad_up(n / SL_GROUP * sizeof(float));
}

size_t sl_qrow_q_off(size_t n)
{
    return 2 * sl_qrow_sum_off(n);
}

/* An odd number of cache lines: rows at an even distance (4,096 values: 80 lines) meet in a few sets of the cache, and
 * sixteen rows read side by side then push each other out. Measured: a third to a half of the speed. */
size_t sl_qrow_bytes(size_t n)
{
    size_t bytes = sl_qrow_q_off(n) + pad_up(n);
    return bytes / PAD % 2 == 0 ? bytes + PAD : bytes;
}

/* --------------------------------------------------------------------------------------------------------- packing */

/* Four bytes at once: shifts stay inside their bytes, so that the order of the bytes in a word does not matter. */
#define LOW_NIBBLES 0x0f0f0f0fu
#define LOW_BITS 0x01010101u
#define LOW_PAIRS 0x03030303u

static uint32_t load_word(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static void store_word(uint8_t *at, uint32_t word)
{
    memcpy(at, &word, sizeof word);
}

/* Eight elements, which are the low or the high nibbles of eight bytes: the first four beside the others. */
static uint32_t beside(const uint8_t *at, bool high)
{
    uint32_t first = load_word(at), others = load_word(at + 4);
    return high ? (first >> 4 & LOW_NIBBLES) | (others & ~LOW_NIBBLES)
                : (first & LOW_NIBBLES) | (others & LOW_NIBBLES) << 4;
}

/* Every fourth bit of a word, from bit b on, as a byte. */
static uint32_t fourth_bits(uint32_t word, size_t b)
{
    uint32_t x = word >> b & 0x11111111u;
    x = (x | x >> 3) & 0x03030303u;
    x = (x | x >> 6) & 0x000f000fu;
    return (x | x >> 12) & 0xffu;
}

/* Blocks of 32 start with d, then m where there is one. Q8_0: 32 bytes. The others: a 32-bit word with the fifth bits
 * of elements 0..31 (Q5 only), then 16 bytes whose low nibbles are elements 0..15 and high nibbles 16..31. */
static void pack_32(sl_wtype type, const uint8_t *block, uint8_t *group, size_t w, size_t j)
{
    const uint8_t *at = block + WTYPES[type].half_bytes;
    if (type == SL_WTYPE_Q8_0) {
        for (size_t i = 0; i < 8; i++)
            memcpy(group + (i * w + j) * 4, at + 4 * i, 4);
        return;
    }
    if (WTYPES[type].group_bytes == FIVE_BITS) {
        uint32_t fifth = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        for (size_t b = 0; b < 4; b++)
            group[(4 * w + j) * 4 + b] = (uint8_t)fourth_bits(fifth, b);
        at += 4;
    }
    for (size_t i = 0; i < 4; i++)
        store_word(group + (i * w + j) * 4, beside(at + i % 2 * 8, i >= 2));
}

/* Q4_K, Q5_K: d, dmin, 12 bytes of scales and minimums, Q5_K: 32 bytes whose bit g is the fifth bit of group g's
 * elements 0..31; then, for each two groups, 32 bytes with the first's elements in the low nibbles and the second's in
 * the high ones. */
static void pack_q45_k(sl_wtype type, const uint8_t *block, size_t g, uint8_t *group, size_t w, size_t j)
{
    const uint8_t *fifth = block + 4 + KSCALE_BYTES;
    const uint8_t *low = fifth + (type == SL_WTYPE_Q5_K ? SL_GROUP : 0) + g / 2 * SL_GROUP;
    for (size_t i = 0; i < 4; i++)
        store_word(group + (i * w + j) * 4, beside(low + 8 * i, g % 2 != 0));
    if (type == SL_WTYPE_Q5_K) {
        uint32_t bits = 0;
        for (size_t i = 0; i < 8; i++)
            bits |= (load_word(fifth + 4 * i) >> g & LOW_BITS) << i;
        store_word(group + (4 * w + j) * 4, bits);
    }
}

/* Pairs of bits from `shift` on of each of sixteen bytes: byte b gets those of bytes b, 4 + b, 8 + b and 12 + b. */
static uint32_t four_pairs(const uint8_t *at, size_t shift)
{
    uint32_t pairs = 0;
    for (size_t k = 0; k < 4; k++)
        pairs |= (load_word(at + 4 * k) >> shift & LOW_PAIRS) << 2 * k;
    return pairs;
}

/* Q6_K: 128 bytes of low nibbles, 64 bytes of high pairs of bits, sixteen int8 scales, d. Each half of 128 elements
 * takes 64 and 32 of the bytes: its groups 0 and 1 are the low nibbles of both 32 bytes, 2 and 3 the high ones; bits
 * 2 g and 2 g + 1 of the 32 bytes belong to its group g. */
static void pack_q6_k(const uint8_t *block, size_t g, uint8_t *group, size_t w, size_t j)
{
    const uint8_t *low = block + g / 4 * 64 + g % 2 * SL_GROUP, *high = block + 128 + g / 4 * SL_GROUP;
    for (size_t i = 0; i < 4; i++)
        store_word(group + (i * w + j) * 4, beside(low + 8 * i, g % 4 >= 2));
    for (size_t i = 0; i < 2; i++)
        store_word(group + ((4 + i) * w + j) * 4, four_pairs(high + 16 * i, g % 4 * 2));
}

/* Q2_K: sixteen bytes of scales, 64 bytes of pairs of bits, d, dmin. Q3_K: 32 bytes whose bit g is the third bit of
 * group g's elements, 64 bytes of pairs, 12 bytes of scales, d. The pairs of 128 elements take 32 bytes: bits 2 g and
 * 2 g + 1 belong to group g of the four. */
static void pack_q23_k(sl_wtype type, const uint8_t *block, size_t g, uint8_t *group, size_t w, size_t j)
{
    const uint8_t *pairs = block + (type == SL_WTYPE_Q2_K ? 16 : 32) + g / 4 * SL_GROUP;
    for (size_t i = 0; i < 2; i++)
        store_word(group + (i * w + j) * 4, four_pairs(pairs + 16 * i, g % 4 * 2));
    if (type == SL_WTYPE_Q3_K) {
        uint32_t bits = 0;
        for (size_t i = 0; i < 8; i++)
            bits |= (load_word(block + 4 * i) >> g & LOW_BITS) << i;
        store_word(group + (2 * w + j) * 4, bits);
    }
}

/* IQ4_XS: d, 16 bits and four bytes of scales, then for each group 16 bytes as Q4_0's. */
static void pack_iq4_xs(const uint8_t *block, size_t g, uint8_t *group, size_t w, size_t j)
{
    const uint8_t *at = block + 8 + 16 * g;
    for (size_t i = 0; i < 4; i++)
        store_word(group + (i * w + j) * 4, beside(at + i % 2 * 8, i >= 2));
}

/* Scale f of a Q3_K block as in GGUF, twelve bytes: its low four bits a nibble of the first eight, its high two a pair
 * of the last four. */
static uint32_t q3_scale_of(const uint8_t *scales, size_t f)
{
    uint32_t low = f < 8 ? scales[f] & 15u : scales[f - 8] >> 4;
    return low | ((uint32_t)scales[8 + f % 4] >> f / 4 * 2 & 3u) << 4;
}

/* Six-bit field f of a Q4_K or Q5_K block as in GGUF: 2 g the scale of group g, 2 g + 1 its minimum. Groups 0..3 use
 * the low six bits of bytes g and g + 4; groups 4..7 a nibble of byte g + 4 and the top two bits of bytes g - 4 and
 * g. */
static uint32_t kscale_of(sl_wtype type, const uint8_t *scales, size_t f)
{
    if (type == SL_WTYPE_Q3_K)
        return q3_scale_of(scales, f);
    size_t g = f / 2;
    bool minimum = f % 2 != 0;
    if (g < 4)
        return scales[minimum ? g + 4 : g] & 63u;
    uint32_t low = minimum ? scales[g + 4] >> 4 : scales[g + 4] & 15u;
    return low | (uint32_t)(scales[minimum ? g : g - 4] >> 6) << 4;
}

/* `at`: the packed block's scales, behind its groups. */
static void pack_kscales(sl_wtype type, const uint8_t *block, uint8_t *at, size_t w, size_t j)
{
    if (type == SL_WTYPE_Q6_K) {
        for (size_t g = 0; g < GROUPS; g++)
            memcpy(at + (g * w + j) * 2, block + Q6_K_SCALES_OFF + 2 * g, 2);
        return;
    }
    if (type == SL_WTYPE_Q2_K) {
        for (size_t g = 0; g < GROUPS; g++)
            memcpy(at + (g * w + j) * 2, block + 2 * g, 2);
        return;
    }
    if (type == SL_WTYPE_IQ4_XS) {
        memcpy(at + j * 4, block + 4, 4);
        memcpy(at + 4 * w + j * 2, block + 2, 2);
        return;
    }
    const uint8_t *scales = block + (type == SL_WTYPE_Q3_K ? Q3_K_SCALES_OFF : 4);
    uint32_t last = kscale_of(type, scales, 15);
    for (size_t i = 0; i < 3; i++) {
        uint32_t word = (last >> 2 * i & 3u) << 30;
        for (size_t k = 0; k < WORD_FIELDS; k++)
            word |= kscale_of(type, scales, i * WORD_FIELDS + k) << FIELD_BITS * k;
        for (size_t b = 0; b < 4; b++)
            at[(i * w + j) * 4 + b] = (uint8_t)(word >> 8 * b);
    }
}

/* One output's block. */
static void pack_block(sl_wtype type, const uint8_t *block, uint8_t *out, size_t w, size_t j)
{
    const wtype_info *info = &WTYPES[type];
    uint8_t *halves = out + (info->block_bytes - info->half_bytes) * w;
    const bool behind = type == SL_WTYPE_Q6_K || type == SL_WTYPE_Q2_K || type == SL_WTYPE_Q3_K;
    const uint8_t *from = behind ? block + info->block_bytes - info->half_bytes : block;
    if (type == SL_WTYPE_MXFP4)
        halves[j] = block[0];
    for (size_t h = 0; h + 2 <= info->half_bytes; h += 2) /* d of all outputs, then m of all */
        memcpy(halves + (h / 2 * w + j) * 2, from + h, 2);
    if (info->block_elems == SL_GROUP) {
        pack_32(type, block, out, w, j);
        return;
    }
    for (size_t g = 0; g < GROUPS; g++) {
        uint8_t *group = out + g * info->group_bytes * w;
        if (type == SL_WTYPE_Q6_K)
            pack_q6_k(block, g, group, w, j);
        else if (type == SL_WTYPE_IQ4_XS)
            pack_iq4_xs(block, g, group, w, j);
        else if (info->group_bytes < LOW_BYTES)
            pack_q23_k(type, block, g, group, w, j);
        else
            pack_q45_k(type, block, g, group, w, j);
    }
    pack_kscales(type, block, out + GROUPS * info->group_bytes * w, w, j);
}

void sl_weight_pack_panel(sl_wtype type, void *panel, const void *rows, size_t w, size_t n_in)
{
    const wtype_info *info = &WTYPES[type];
    size_t row_bytes = sl_wtype_row_bytes(type, n_in);
    if (!sl_wtype_is_quantised(type)) {
        memcpy(panel, rows, w * row_bytes);
        return;
    }
    for (size_t i = 0; i < n_in / info->block_elems; i++)
        for (size_t j = 0; j < w; j++)
            pack_block(type, (const uint8_t *)rows + j * row_bytes + i * info->block_bytes,
                       (uint8_t *)panel + i * info->block_bytes * w, w, j);
}

/* --------------------------------------------------------------------------------------------------------- reading */

/* Element e of a packed group as stored, without sign. */
static unsigned packed_value(sl_wtype type, const uint8_t *group, size_t w, size_t j, size_t e)
{
    if (WTYPES[type].group_bytes < LOW_BYTES) { /* Q2_K, Q3_K */
        unsigned pair = (unsigned)group[(e / 16 * w + j) * 4 + e % 4] >> e % 16 / 4 * 2 & 3u;
        return type == SL_WTYPE_Q2_K ? pair : pair | ((unsigned)group[(2 * w + j) * 4 + e % 4] >> e / 4 & 1u) << 2;
    }
    unsigned byte = group[(e / 8 * w + j) * 4 + e % 4], value = e % 8 < 4 ? byte & 15u : byte >> 4;
    const uint8_t *high = group + LOW_BYTES * w;
    if (WTYPES[type].group_bytes == FIVE_BITS)
        value |= ((unsigned)high[j * 4 + e % 4] >> e / 4 & 1u) << 4;
    if (WTYPES[type].group_bytes == SIX_BITS)
        value |= ((unsigned)high[(e / 16 * w + j) * 4 + e % 4] >> e % 16 / 4 * 2 & 3u) << 4;
    return value;
}

static uint32_t packed_word(const uint8_t *scales, size_t w, size_t j, size_t i)
{
    const uint8_t *at = scales + (i * w + j) * 4;
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t packed_field(const uint8_t *scales, size_t w, size_t j, size_t f)
{
    if (f < 3 * WORD_FIELDS)
        return packed_word(scales, w, j, f / WORD_FIELDS) >> FIELD_BITS * (f % WORD_FIELDS) & 63u;
    uint32_t field = 0;
    for (size_t i = 0; i < 3; i++)
        field |= packed_word(scales, w, j, i) >> 30 << 2 * i;
    return field;
}

/* Scales of group g of a superblock: into the integers where there are two, else into ws and mw, exactly: 11 bits by 6.
 */
static void read_subscales(sl_wtype type, const uint8_t *scales, size_t w, size_t j, size_t g, sl_weight_group *out)
{
    int sub[2] = {1, 1};
    for (size_t h = 0; h < 2; h++) {
        const uint8_t *byte = scales + (g * w + j) * 2 + h; /* of Q6_K and Q2_K */
        if (type == SL_WTYPE_Q6_K)
            sub[h] = (int8_t)*byte;
        if (type == SL_WTYPE_Q3_K)
            sub[h] = (int)packed_field(scales, w, j, 2 * g + h) - 32;
        if (type == SL_WTYPE_Q2_K) {
            sub[h] = *byte & 15;
            out->m[h] = *byte >> 4;
        }
    }
    for (size_t e = 0; e < SL_GROUP; e++)
        out->q[e] = (int16_t)(out->q[e] * sub[e / 16]);
    if (type == SL_WTYPE_Q4_K || type == SL_WTYPE_Q5_K) {
        out->ws *= (float)packed_field(scales, w, j, 2 * g);
        out->mw = -(out->mw * (float)packed_field(scales, w, j, 2 * g + 1));
    }
    if (type == SL_WTYPE_Q2_K)
        out->mw = -out->mw;
    if (type == SL_WTYPE_IQ4_XS) {
        const uint8_t *high = scales + 4 * w + 2 * j;
        int low = scales[4 * j + g / 2] >> g % 2 * 4 & 15, top = (high[0] | high[1] << 8) >> 2 * g & 3;
        out->ws *= (float)((low | top << 4) - 32);
    }
}

void sl_weight_group_read(sl_wtype type, const void *panel, size_t w, size_t j, size_t g, sl_weight_group *out)
{
    const wtype_info *info = &WTYPES[type];
    size_t n_groups = info->block_elems / SL_GROUP, in_block = g % n_groups;
    const uint8_t *block = (const uint8_t *)panel + g / n_groups * info->block_bytes * w;
    const uint8_t *group = block + in_block * info->group_bytes * w;
    const uint8_t *scales = block + n_groups * info->group_bytes * w;
    const uint8_t *halves = block + (info->block_bytes - info->half_bytes) * w;
    for (size_t e = 0; e < SL_GROUP; e++) {
        if (type == SL_WTYPE_Q8_0) {
            out->q[e] = (int8_t)group[(e / 4 * w + j) * 4 + e % 4];
            continue;
        }
        const unsigned value = packed_value(type, group, w, j, e);
        if (type == SL_WTYPE_IQ4_NL || type == SL_WTYPE_IQ4_XS)
            out->q[e] = IQ4_VALUES[value];
        else
            out->q[e] = type == SL_WTYPE_MXFP4 ? MXFP4_VALUES[value] : (int16_t)((int)value - info->offset);
    }
    out->m[0] = out->m[1] = 1;
    out->mw = sl_wtype_has_minimum(type) ? load_half(halves + 2 * (w + j)) : 0.0f;
    if (type == SL_WTYPE_MXFP4) {
        const uint32_t e = halves[j];
        out->ws = sl_float_of_bits(e < 2 ? 0x200000u << e : (e - 1) << 23);
        return;
    }
    out->ws = load_half(halves + 2 * j);
    read_subscales(type, scales, w, j, in_block, out);
}

static void row_of_floats(sl_wtype type, const uint8_t *row, size_t n_in, float *out)
{
    if (type == SL_WTYPE_F32) {
        memcpy(out, row, n_in * sizeof(float));
        return;
    }
    for (size_t k = 0; k < n_in; k++) {
        uint16_t bits = (uint16_t)(row[2 * k] | row[2 * k + 1] << 8);
        out[k] = type == SL_WTYPE_F16 ? sl_float_of_half(bits) : sl_float_of_bf16(bits);
    }
}

void sl_weight_row(sl_wtype type, const void *packed, size_t n_out, size_t n_in, size_t row, float *out)
{
    size_t row_bytes = sl_wtype_row_bytes(type, n_in);
    if (!sl_wtype_is_quantised(type)) {
        row_of_floats(type, (const uint8_t *)packed + row * row_bytes, n_in, out);
        return;
    }
    size_t first = row / SL_PANEL * SL_PANEL;
    size_t w = n_out - first < SL_PANEL ? n_out - first : SL_PANEL;
    const uint8_t *panel = (const uint8_t *)packed + first * row_bytes;
    bool has_minimum = sl_wtype_has_minimum(type);
    for (size_t g = 0; g < n_in / SL_GROUP; g++, out += SL_GROUP) {
        sl_weight_group group;
        sl_weight_group_read(type, panel, w, row - first, g, &group);
        for (size_t e = 0; e < SL_GROUP; e++)
            out[e] = has_minimum ? fmaf(group.ws, (float)group.q[e], group.mw * (float)group.m[e / 16])
                                 : group.ws * (float)group.q[e];
    }
}
