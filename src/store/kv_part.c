/* A part's stored bytes, for who writes them elsewhere. */
#include <string.h>

#include "store/kv_impl.h"

/* Of full tile groups: `bytes` of them, in memory or on flash; what is smaller than a sector waits in a piece. */
static sl_status get_full(const sl_kv *kv, uint32_t layer, uint64_t part, uint8_t *out, size_t bytes, sl_err *err)
{
    const sl_parts *parts = &kv->parts;
    size_t at = sl_parts_at(parts, layer, part);
    if (parts->places[at] == SL_PLACE_RESIDENT) {
        memcpy(out, parts->memory[at], bytes);
        return SL_OK;
    }
    size_t on_flash = bytes / SL_SECTOR_BYTES * SL_SECTOR_BYTES, piece_bytes = 0;
    uint64_t off = sl_parts_segment_off(parts, part) + sl_geom_block_off(&kv->geom, 0, layer) +
                   part % SL_SEGMENT_PARTS * sl_geom_part_bytes(&kv->geom, layer);
    sl_status status = SL_OK;
    if (on_flash > 0)
        status = sl_vfs_read(kv->file.vfs, kv->file.file, kv->file.name, out, on_flash, off, err);
    if (status == SL_OK && bytes > on_flash)
        memcpy(out + on_flash, sl_stream_piece(kv->stream, layer, &piece_bytes), bytes - on_flash);
    return status;
}

sl_status sl_kv_get_part(const sl_kv *kv, uint32_t layer, uint64_t part, uint8_t *out, sl_err *err)
{
    size_t group_bytes = sl_geom_group_bytes(&kv->geom, layer);
    uint64_t first = part * SL_PART_TILES, groups = sl_kv_tokens(kv, layer) / SL_TILE;
    uint64_t left = groups > first ? groups - first : 0;
    size_t n_full = left < SL_PART_TILES ? (size_t)left : (size_t)SL_PART_TILES;
    sl_status status = n_full > 0 ? get_full(kv, layer, part, out, n_full * group_bytes, err) : SL_OK;
    uint32_t n_tail = 0;
    const uint8_t *tail = sl_kv_tail(kv, layer, &n_tail);
    if (status == SL_OK && n_tail > 0 && n_full < SL_PART_TILES)
        memcpy(out + n_full * group_bytes, tail, group_bytes);
    return status;
}
