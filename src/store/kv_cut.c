/* A context cut short: what a rewind keeps. */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "store/kv_impl.h"

sl_status sl_kv_check_whole(const sl_kv *kv, sl_err *err)
{
    return kv->is_lost ? sl_err_set(err, SL_FAILED, "%s: cutting it short failed before; open it again", kv->file.name)
                       : SL_OK;
}

/* In the file below, wherever the slot is now. */
static bool is_below(const sl_kv *kv, uint64_t part)
{
    return kv->parts.is_over && part < kv->parts.own_part;
}

bool sl_kv_has_window(const sl_kv *kv, uint32_t layer, uint64_t n_tokens)
{
    /* What is left of the tile group that is unfilled now is in memory. */
    bool is_tail = sl_kv_tokens(kv, layer) / SL_TILE == n_tokens / SL_TILE;
    uint64_t end = is_tail ? n_tokens / SL_TILE * SL_TILE : n_tokens;
    for (uint64_t part = sl_geom_first_part(&kv->geom.layers[layer], n_tokens); part * SL_PART_TOKENS < end; part++)
        if (!sl_parts_holds(&kv->parts, layer, part) && !is_below(kv, part))
            return false;
    return true;
}

static bool is_point(const sl_kv *kv, uint64_t n_tokens)
{
    bool is = true;
    for (uint32_t i = 0; is && i < kv->geom.n_layers; i++)
        is = sl_kv_has_window(kv, i, n_tokens);
    return is;
}

uint64_t sl_kv_find_point(const sl_kv *kv, uint64_t n_tokens)
{
    if (is_point(kv, n_tokens))
        return n_tokens;
    uint64_t below = kv->parts.is_over ? kv->parts.own_part * SL_PART_TOKENS : 0;
    for (uint64_t n = n_tokens / SL_POINT_TOKENS * SL_POINT_TOKENS; n > below; n -= SL_POINT_TOKENS)
        if (is_point(kv, n))
            return n;
    return below < n_tokens ? below : n_tokens;
}

bool sl_kv_has_all(const sl_kv *kv, uint64_t n_tokens)
{
    bool has = true;
    for (uint32_t i = 0; has && i < kv->geom.n_layers; i++)
        for (uint64_t part = n_tokens / SL_PART_TOKENS; has && part < sl_kv_tokens(kv, i) / SL_TILE / SL_PART_TILES;
             part++)
            has = sl_parts_holds(&kv->parts, i, part) || is_below(kv, part);
    return has;
}

sl_status sl_kv_fetch(sl_kv *kv, uint32_t layer, uint64_t part, uint8_t *room, const uint8_t **groups, sl_err *err)
{
    const sl_parts *parts = &kv->parts;
    size_t at = sl_parts_at(parts, layer, part);
    bool is_held = sl_parts_holds(parts, layer, part);
    if (is_held && parts->places[at] == SL_PLACE_RESIDENT) {
        *groups = parts->memory[at];
        return SL_OK;
    }
    uint64_t left = sl_stream_groups(kv->stream, layer) - part * SL_PART_TILES;
    bool is_closed = left >= SL_PART_TILES;
    size_t bytes = (size_t)(is_closed ? SL_PART_TILES : left) * sl_geom_group_bytes(&kv->geom, layer);
    size_t on_flash = bytes / SL_SECTOR_BYTES * SL_SECTOR_BYTES, piece_bytes = 0;
    uint64_t off = sl_parts_off(parts, layer, part);
    *groups = room;
    if (on_flash > 0) {
        sl_status status = sl_vfs_read(kv->file.vfs, kv->file.file, kv->file.name, room, on_flash, off, err);
        if (status != SL_OK)
            return status;
        sl_kvfile_forget(&kv->file, on_flash, off);
        uint64_t expected = !is_closed ? sl_stream_open_checksum(kv->stream, layer)
                            : is_held  ? parts->checksums[at]
                                       : sl_durable_part(kv->durable, layer, part);
        const sl_kvfile_part read = {layer, part, off, on_flash, sl_hash(room, on_flash), expected};
        status = sl_kvfile_judge(kv->file.name, &read, err);
        if (status != SL_OK)
            return status;
    }
    const uint8_t *piece = sl_stream_piece(kv->stream, layer, &piece_bytes);
    if (bytes > on_flash)
        memcpy(room + on_flash, piece, bytes - on_flash);
    return SL_OK;
}

/* What a cut needs to know. */
typedef struct cut {
    uint64_t n_tokens, part; /* part: the one that it falls in */
    uint64_t old_own, own;   /* sl_parts.own_part before and after */
    uint8_t *room;
} cut;

/* The layer goes back to its whole parts; what it has of the next one is appended again. */
static sl_status cut_to_part(sl_kv *kv, uint32_t layer, const cut *c, sl_err *err)
{
    uint64_t n_open = c->n_tokens % SL_PART_TOKENS;
    const uint8_t *groups = NULL;
    sl_status status = SL_OK;
    kv->parts.own_part = c->old_own;
    if (n_open > 0)
        status = sl_kv_fetch(kv, layer, c->part, c->room, &groups, err);
    kv->parts.own_part = c->own;
    if (status != SL_OK)
        return status;
    sl_stream_cut(kv->stream, layer, c->part * SL_PART_TILES);
    for (uint64_t part = sl_geom_first_part(&kv->geom.layers[layer], c->n_tokens); part < c->part; part++)
        if (is_below(kv, part))
            sl_stream_return(kv->stream, layer, part, sl_durable_part(kv->durable, layer, part));
    sl_writer_start(kv->writer, layer, c->part * SL_PART_TOKENS);
    sl_writer_cut_tail(kv->writer, layer, 0);
    if (n_open == 0)
        return SL_OK;
    /* Unless it lay in the file below, it is where it belongs. */
    sl_writer_set_loading(kv->writer, c->old_own == c->own);
    status = sl_writer_append(kv->writer, layer, groups, n_open, err);
    sl_writer_set_loading(kv->writer, false);
    return status;
}

static sl_status cut_layer(sl_kv *kv, uint32_t layer, const cut *c, sl_err *err)
{
    uint64_t stored = sl_writer_tokens(kv->writer, layer);
    if (stored <= c->n_tokens)
        return SL_OK;
    if (stored / SL_TILE != c->n_tokens / SL_TILE)
        return cut_to_part(kv, layer, c, err);
    sl_writer_cut_tail(kv->writer, layer, (uint32_t)(c->n_tokens % SL_TILE));
    return SL_OK;
}

sl_status sl_kv_truncate(sl_kv *kv, uint64_t n_tokens, sl_err *err)
{
    if (kv->keeps && n_tokens < sl_durable_get(kv->durable).n_tokens)
        return sl_err_set(err, SL_USAGE, "%s: what is committed cannot be cut off", kv->file.name);
    cut c = {.n_tokens = n_tokens, .part = n_tokens / SL_PART_TOKENS, .old_own = kv->parts.own_part};
    c.own = kv->durable && !kv->keeps && c.part < c.old_own ? c.part : c.old_own;
    sl_status status = sl_kv_check_whole(kv, err);
    if (status == SL_OK && !is_point(kv, n_tokens))
        status = sl_err_set(err, SL_USAGE,
                            "%s: what rows behind token %" PRIu64
                            " see of sliding layers was dropped; from token %" PRIu64 " on it can be computed again",
                            kv->file.name, n_tokens, sl_kv_find_point(kv, n_tokens));
    if (status == SL_OK)
        status = sl_stream_pause(kv->stream, &c.room, err);
    if (status != SL_OK)
        return status;
    bool is_cut = false;
    for (uint32_t i = 0; i < kv->geom.n_layers; i++)
        is_cut = is_cut || sl_writer_tokens(kv->writer, i) > n_tokens;
    if (!is_cut)
        return SL_OK;
    for (uint32_t i = 0; status == SL_OK && i < kv->geom.n_layers; i++)
        status = cut_layer(kv, i, &c, err);
    kv->is_lost = status != SL_OK;
    kv->base_tokens = kv->base_tokens < n_tokens ? kv->base_tokens : n_tokens;
    return status;
}
