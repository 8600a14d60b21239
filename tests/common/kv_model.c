#include "common/kv_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { JUNK_TOKENS = 100 };

uint64_t kv_model_random(kv_model *model, uint64_t n)
{
    model->random ^= model->random >> 12;
    model->random ^= model->random << 25;
    model->random ^= model->random >> 27;
    return (model->random * 2685821657736338717ULL >> 20) % n;
}

static uint8_t *new_groups(const sl_geom *geom, uint32_t layer, uint64_t tokens)
{
    size_t bytes = (size_t)(tokens / SL_TILE + 1) * sl_geom_group_bytes(geom, layer);
    uint8_t *groups = aligned_alloc(64, bytes);
    assert_non_null(groups);
    memset(groups, 0, bytes);
    return groups;
}

void kv_model_init(kv_model *model, const sl_geom *geom, uint64_t max_tokens, uint64_t seed)
{
    memset(model, 0, sizeof *model);
    assert_true(geom->n_layers <= KV_MODEL_LAYERS);
    memcpy(model->layers, geom->layers, geom->n_layers * sizeof *geom->layers);
    model->geom = *geom;
    model->geom.layers = model->layers;
    model->max_tokens = max_tokens;
    model->random = seed * 2 + 1;
    model->n_held = 1;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        model->groups[i] = new_groups(geom, i, max_tokens);
        if (sl_geom_group_bytes(geom, i) > sl_geom_group_bytes(geom, largest))
            largest = i;
    }
    model->scratch = new_groups(geom, largest, max_tokens + JUNK_TOKENS + SL_TILE);
}

void kv_model_deinit(kv_model *model)
{
    for (uint32_t i = 0; i < model->geom.n_layers; i++)
        free(model->groups[i]);
    free(model->scratch);
}

/* The n-th byte of a token in a tile of one head, by the layout in kernel/kernel.h; n < tile bytes / 64. */
static size_t byte_at(sl_kv_type type, size_t dim, size_t key, size_t n)
{
    if (type == SL_KV_TYPE_F16) {
        if (n < 2 * dim)
            return (n / 2 * 64 + key) * 2 + n % 2;
        return 128 * dim + key * dim * 2 + (n - 2 * dim);
    }
    if (n < dim)
        return key * dim + n;
    n -= dim;
    if (n < dim / 16)
        return 64 * dim + (n / 2 * 64 + key) * 2 + n % 2;
    n -= dim / 16;
    if (n < dim)
        return 68 * dim + n * 64 + key;
    n -= dim;
    return 132 * dim + (n / 2 * 64 + key) * 2 + n % 2;
}

static void put_tokens(kv_model *model, uint8_t *groups, uint32_t layer, uint64_t first, uint64_t n)
{
    size_t dim = model->layers[layer].head_dim;
    size_t tile_bytes = sl_tile_bytes(model->geom.type, dim);
    size_t group_bytes = sl_geom_group_bytes(&model->geom, layer);
    for (uint64_t t = first; t < first + n; t++) {
        for (uint32_t head = 0; head < model->layers[layer].n_kv_heads; head++) {
            uint8_t *tile = groups + t / SL_TILE * group_bytes + head * tile_bytes;
            uint64_t word = kv_model_random(model, UINT64_MAX);
            for (size_t i = 0; i < tile_bytes / SL_TILE; i++)
                tile[byte_at(model->geom.type, dim, t % SL_TILE, i)] = (uint8_t)(1 + (word >> i % 8 * 7) % 255 + i % 3);
        }
    }
}

sl_status kv_model_append(kv_model *model, sl_kv *kv, uint32_t layer, uint64_t n, sl_err *err)
{
    uint64_t tail = model->tokens[layer] % SL_TILE;
    size_t group_bytes = sl_geom_group_bytes(&model->geom, layer);
    uint8_t *to = model->groups[layer] + model->tokens[layer] / SL_TILE * group_bytes;
    memset(model->scratch, 0xee, (size_t)((tail + n + JUNK_TOKENS) / SL_TILE * group_bytes));
    uint32_t n_tail = 0;
    const uint8_t *kept = sl_kv_tail(kv, layer, &n_tail);
    assert_int_equal(n_tail, tail);
    if (tail > 0)
        memcpy(model->scratch, kept, group_bytes);
    put_tokens(model, model->scratch, layer, tail, n + kv_model_random(model, JUNK_TOKENS));
    sl_status status = sl_kv_append(kv, layer, model->scratch, n, err);
    if (status != SL_OK)
        return status;
    /* The model keeps the bytes of real tokens only. */
    size_t dim = model->layers[layer].head_dim;
    size_t tile_bytes = sl_tile_bytes(model->geom.type, dim);
    for (uint64_t t = tail; t < tail + n; t++)
        for (uint32_t head = 0; head < model->layers[layer].n_kv_heads; head++)
            for (size_t i = 0; i < tile_bytes / SL_TILE; i++) {
                size_t at = (size_t)(t / SL_TILE) * group_bytes + head * tile_bytes +
                            byte_at(model->geom.type, dim, t % SL_TILE, i);
                to[at] = model->scratch[at];
            }
    model->tokens[layer] += n;
    assert_int_equal(sl_kv_tokens(kv, layer), model->tokens[layer]);
    return SL_OK;
}

static void check_part(const kv_model *model, uint32_t layer, uint64_t part_idx, const sl_kv_part *part)
{
    size_t group_bytes = sl_geom_group_bytes(&model->geom, layer);
    uint64_t groups = model->tokens[layer] / SL_TILE;
    uint64_t left = groups - part_idx * SL_PART_TILES;
    assert_int_equal(part->layer, layer);
    assert_int_equal(part->first_token, part_idx * SL_PART_TOKENS);
    assert_int_equal(part->n_groups, left < SL_PART_TILES ? left : SL_PART_TILES);
    assert_int_equal((uintptr_t)part->tiles % 64, 0);
    assert_memory_equal(part->tiles, model->groups[layer] + part_idx * SL_PART_TILES * group_bytes,
                        part->n_groups * group_bytes);
}

sl_status kv_model_walk(kv_model *model, sl_kv *kv, uint32_t layer, uint64_t most, uint64_t *parts, sl_err *err)
{
    enum { MOST_HELD = 16 };
    sl_kv_part held[MOST_HELD];
    uint32_t n_held = 0;
    sl_status status = SL_OK;
    uint64_t groups = model->tokens[layer] / SL_TILE;
    uint64_t expected = (groups + SL_PART_TILES - 1) / SL_PART_TILES;
    bool found = true;
    for (uint64_t i = 0; i < most; i++) {
        sl_kv_part part;
        status = sl_kv_next(kv, layer, &part, &found, err);
        if (status != SL_OK || !found)
            break;
        check_part(model, layer, i, &part);
        ++*parts;
        held[n_held++] = part;
        if (n_held == model->n_held) {
            uint32_t victim = (uint32_t)kv_model_random(model, n_held);
            sl_kv_release(kv, &held[victim]);
            held[victim] = held[--n_held];
        }
    }
    /* Held parts stay what they were while others came. */
    for (uint32_t i = 0; i < n_held; i++) {
        check_part(model, layer, held[i].first_token / SL_PART_TOKENS, &held[i]);
        sl_kv_release(kv, &held[i]);
    }
    if (status != SL_OK)
        return status;
    if (!found || most >= expected) {
        if (most > expected)
            assert_false(found);
        uint32_t n_tail = 0;
        const uint8_t *tail = sl_kv_tail(kv, layer, &n_tail);
        size_t group_bytes = sl_geom_group_bytes(&model->geom, layer);
        assert_int_equal(n_tail, model->tokens[layer] % SL_TILE);
        assert_memory_equal(tail, model->groups[layer] + groups * group_bytes, group_bytes);
    }
    return SL_OK;
}

void kv_model_tail(const kv_model *model, uint32_t layer, uint64_t n_tokens, uint8_t *out)
{
    size_t dim = model->layers[layer].head_dim, tile_bytes = sl_tile_bytes(model->geom.type, dim);
    size_t group_bytes = sl_geom_group_bytes(&model->geom, layer);
    const uint8_t *group = model->groups[layer] + n_tokens / SL_TILE * group_bytes;
    memset(out, 0, group_bytes);
    for (size_t t = 0; t < n_tokens % SL_TILE; t++)
        for (uint32_t head = 0; head < model->layers[layer].n_kv_heads; head++)
            for (size_t i = 0; i < tile_bytes / SL_TILE; i++) {
                size_t at = head * tile_bytes + byte_at(model->geom.type, dim, t, i);
                out[at] = group[at];
            }
}

uint64_t kv_model_flash_bytes(const kv_model *model)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->geom.n_layers; i++) {
        uint64_t layer_bytes = model->tokens[i] / SL_TILE * sl_geom_group_bytes(&model->geom, i);
        bytes += layer_bytes / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    }
    return bytes;
}

uint64_t kv_model_full_bytes(const kv_model *model)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->geom.n_layers; i++)
        bytes += model->tokens[i] / SL_TILE * sl_geom_group_bytes(&model->geom, i);
    return bytes;
}
