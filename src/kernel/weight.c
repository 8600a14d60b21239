/* Weight formats: sizes, packing into panels, and reading one row back.
 * Owns: the byte layouts of kernel.h's Weights section. Runs at load time and for embeddings; no instruction sets.
 * Source of the input formats: the GGUF specification and ggml's block layouts (Q8_0: d, 32 bytes; Q4_0: d, 16
 * bytes whose low nibbles are elements 0..15 and high nibbles 16..31; Q4_1: d, m, the same 16 bytes). */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/kernel.h"

enum { PAD = 64 };

typedef struct wtype_info {
    const char *name;
    size_t block_elems;
    size_t block_bytes;
    size_t head_bytes; /* scale and minimum in front of a GGUF block's values */
} wtype_info;

static const wtype_info WTYPES[SL_WTYPE_COUNT] = {
    [SL_WTYPE_F32] = {"F32", 1, 4, 0},   [SL_WTYPE_F16] = {"F16", 1, 2, 0},
    [SL_WTYPE_BF16] = {"BF16", 1, 2, 0}, [SL_WTYPE_Q8_0] = {"Q8_0", SL_GROUP, 34, 2},
    [SL_WTYPE_Q4_0] = {"Q4_0", SL_GROUP, 18, 2}, [SL_WTYPE_Q4_1] = {"Q4_1", SL_GROUP, 20, 4},
};

static uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static size_t pad_up(size_t bytes)
{
    return (bytes + PAD - 1) / PAD * PAD;
}

size_t sl_wtype_row_bytes(sl_wtype type, size_t n)
{
    return n / WTYPES[type].block_elems * WTYPES[type].block_bytes;
}

bool sl_wtype_is_quantised(sl_wtype type)
{
    return WTYPES[type].block_elems == SL_GROUP;
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

size_t sl_qrow_bytes(size_t n)
{
    return sl_qrow_q_off(n) + pad_up(n);
}

/* Element e of a GGUF 4-bit block's sixteen bytes. */
static unsigned nibble_of(const uint8_t *values, size_t e)
{
    return e < 16 ? values[e] & 15u : values[e - 16] >> 4;
}

static void pack_block_q4(uint8_t *group, const uint8_t *values, size_t w, size_t j)
{
    for (size_t i = 0; i < 4; i++)
        for (size_t b = 0; b < 4; b++)
            group[(i * w + j) * 4 + b] =
                (uint8_t)(nibble_of(values, 8 * i + b) | nibble_of(values, 8 * i + 4 + b) << 4);
}

static void pack_block_q8(uint8_t *group, const uint8_t *values, size_t w, size_t j)
{
    for (size_t i = 0; i < 8; i++)
        memcpy(group + (i * w + j) * 4, values + 4 * i, 4);
}

void sl_weight_pack_panel(sl_wtype type, void *panel, const void *rows, size_t w, size_t n_in)
{
    const wtype_info *info = &WTYPES[type];
    size_t row_bytes = sl_wtype_row_bytes(type, n_in);
    if (!sl_wtype_is_quantised(type)) {
        memcpy(panel, rows, w * row_bytes);
        return;
    }
    size_t value_bytes = info->block_bytes - info->head_bytes;
    for (size_t g = 0; g < n_in / SL_GROUP; g++) {
        uint8_t *group = (uint8_t *)panel + g * info->block_bytes * w;
        uint8_t *head = group + value_bytes * w;
        for (size_t j = 0; j < w; j++) {
            const uint8_t *block = (const uint8_t *)rows + j * row_bytes + g * info->block_bytes;
            for (size_t h = 0; h < info->head_bytes; h += 2) /* d of all outputs, then m of all */
                memcpy(head + (h / 2 * w + j) * 2, block + h, 2);
            if (type == SL_WTYPE_Q8_0)
                pack_block_q8(group, block + info->head_bytes, w, j);
            else
                pack_block_q4(group, block + info->head_bytes, w, j);
        }
    }
}

static void row_of_floats(sl_wtype type, const uint8_t *row, size_t n_in, float *out)
{
    if (type == SL_WTYPE_F32) {
        memcpy(out, row, n_in * sizeof(float));
        return;
    }
    for (size_t k = 0; k < n_in; k++) {
        uint16_t bits = load_u16(row + 2 * k);
        out[k] = type == SL_WTYPE_F16 ? sl_float_of_half(bits) : sl_float_of_bf16(bits);
    }
}

/* One output's group: 32 floats. */
static void group_to_floats(sl_wtype type, const uint8_t *group, size_t w, size_t j, float *out)
{
    size_t value_bytes = WTYPES[type].block_bytes - WTYPES[type].head_bytes;
    const uint8_t *head = group + value_bytes * w;
    float d = sl_float_of_half(load_u16(head + 2 * j));
    float m = type == SL_WTYPE_Q4_1 ? sl_float_of_half(load_u16(head + 2 * (w + j))) : 0.0f;
    for (size_t e = 0; e < SL_GROUP; e++) {
        if (type == SL_WTYPE_Q8_0) {
            out[e] = d * (float)(int8_t)group[(e / 4 * w + j) * 4 + e % 4];
            continue;
        }
        unsigned byte = group[(e / 8 * w + j) * 4 + e % 4];
        int value = (int)(e % 8 < 4 ? byte & 15u : byte >> 4);
        out[e] = type == SL_WTYPE_Q4_1 ? fmaf(d, (float)value, m) : d * (float)(value - 8);
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
    for (size_t g = 0; g < n_in / SL_GROUP; g++)
        group_to_floats(type, panel + g * WTYPES[type].block_bytes * w, w, row - first, out + g * SL_GROUP);
}
