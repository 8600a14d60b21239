#include "store/geom.h"

#include <inttypes.h>

enum { MAX_LAYERS = 65536, MAX_KV_HEADS = 65536 };

sl_status sl_geom_check(const sl_geom *geom, sl_err *err)
{
    if (geom->type != SL_KV_TYPE_F16 && geom->type != SL_KV_TYPE_Q8_0)
        return sl_err_set(err, SL_USAGE, "KV type %d, expected f16 or q8_0", (int)geom->type);
    if (geom->n_layers == 0 || geom->n_layers > MAX_LAYERS)
        return sl_err_set(err, SL_USAGE, "%" PRIu32 " layers, expected 1 to %d", geom->n_layers, (int)MAX_LAYERS);
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        const sl_kv_layer *layer = &geom->layers[i];
        if (layer->n_kv_heads == 0 || layer->n_kv_heads > MAX_KV_HEADS)
            return sl_err_set(err, SL_USAGE, "layer %" PRIu32 ": %" PRIu32 " KV heads, expected 1 to %d", i,
                              layer->n_kv_heads, (int)MAX_KV_HEADS);
        if (layer->head_dim == 0 || layer->head_dim % 16 != 0 || layer->head_dim > SL_MAX_HEAD_DIM)
            return sl_err_set(err, SL_USAGE,
                              "layer %" PRIu32 ": head dimension %" PRIu32 ", expected a multiple of 16 up to %d", i,
                              layer->head_dim, (int)SL_MAX_HEAD_DIM);
        if (layer->span > UINT32_MAX)
            return sl_err_set(err, SL_USAGE, "layer %" PRIu32 ": rows see %" PRIu64 " tokens, expected 0 to %" PRIu32,
                              i, layer->span, UINT32_MAX);
        if (geom->type == SL_KV_TYPE_Q8_0 && layer->head_dim % 32 != 0)
            return sl_err_set(err, SL_REFUSED,
                              "layer %" PRIu32 ": head dimension %" PRIu32
                              " is not a multiple of 32, which q8_0 needs: use --kv f16",
                              i, layer->head_dim);
    }
    /* With the bounds above a segment is below 2^16 * 2^16 * 2^22 = 2^54 bytes, a part below 2^36. */
    if (sl_geom_max_part_bytes(geom) > SIZE_MAX / 8)
        return sl_err_set(err, SL_USAGE, "a part of %zu bytes is too large for this machine",
                          sl_geom_max_part_bytes(geom));
    return SL_OK;
}

size_t sl_geom_group_bytes(const sl_geom *geom, uint32_t layer)
{
    return geom->layers[layer].n_kv_heads * sl_tile_bytes(geom->type, geom->layers[layer].head_dim);
}

size_t sl_geom_part_bytes(const sl_geom *geom, uint32_t layer)
{
    return SL_PART_TILES * sl_geom_group_bytes(geom, layer);
}

size_t sl_geom_block_bytes(const sl_geom *geom, uint32_t layer)
{
    size_t bytes = SL_SEGMENT_PARTS * sl_geom_part_bytes(geom, layer);
    return (bytes + SL_BLOCK_ALIGN - 1) / SL_BLOCK_ALIGN * SL_BLOCK_ALIGN;
}

uint64_t sl_geom_segment_bytes(const sl_geom *geom)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++)
        bytes += sl_geom_block_bytes(geom, i);
    return bytes;
}

uint64_t sl_geom_block_off(const sl_geom *geom, uint64_t segment, uint32_t layer)
{
    uint64_t off = segment * sl_geom_segment_bytes(geom);
    for (uint32_t i = 0; i < layer; i++)
        off += sl_geom_block_bytes(geom, i);
    return off;
}

uint64_t sl_geom_first_seen(const sl_kv_layer *layer, uint64_t pos)
{
    return layer->span > 0 && pos >= layer->span ? pos - layer->span + 1 : 0;
}

uint64_t sl_geom_first_part(const sl_kv_layer *layer, uint64_t pos)
{
    return sl_geom_first_seen(layer, pos / SL_TILE * SL_TILE) / SL_PART_TOKENS;
}

uint64_t sl_geom_seen_bytes(const sl_geom *geom, uint64_t pos, uint64_t n_tokens)
{
    uint64_t bytes = 0, n_groups = n_tokens / SL_TILE;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        uint64_t unseen = sl_geom_first_part(&geom->layers[i], pos) * SL_PART_TILES;
        if (unseen < n_groups)
            bytes += (n_groups - unseen) * sl_geom_group_bytes(geom, i);
    }
    return bytes;
}

uint64_t sl_geom_token_bytes(const sl_geom *geom)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++)
        bytes += sl_geom_group_bytes(geom, i) / SL_TILE;
    return bytes;
}

size_t sl_geom_max_part_bytes(const sl_geom *geom)
{
    size_t most = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        size_t bytes = sl_geom_part_bytes(geom, i);
        most = bytes > most ? bytes : most;
    }
    return most;
}

bool sl_geom_is_same(const sl_geom *a, const sl_geom *b)
{
    bool is_same = a->type == b->type && a->n_layers == b->n_layers;
    for (uint32_t i = 0; is_same && i < a->n_layers; i++) {
        const sl_kv_layer *one = &a->layers[i], *other = &b->layers[i];
        is_same = one->n_kv_heads == other->n_kv_heads && one->head_dim == other->head_dim && one->span == other->span;
    }
    return is_same;
}
