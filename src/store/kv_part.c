/* A part's stored bytes, for who writes them elsewhere. */
#include <string.h>

#include "store/kv_impl.h"

sl_status sl_kv_get_part(sl_kv *kv, uint32_t layer, uint64_t part, uint8_t *out, sl_err *err)
{
    size_t group_bytes = sl_geom_group_bytes(&kv->geom, layer);
    uint64_t first = part * SL_PART_TILES, groups = sl_kv_tokens(kv, layer) / SL_TILE;
    uint64_t left = groups > first ? groups - first : 0;
    size_t n_full = left < SL_PART_TILES ? (size_t)left : (size_t)SL_PART_TILES;
    const uint8_t *full = out;
    sl_status status = n_full > 0 ? sl_kv_fetch(kv, layer, part, out, &full, err) : SL_OK;
    if (status == SL_OK && full != out)
        memcpy(out, full, n_full * group_bytes);
    uint32_t n_tail = 0;
    const uint8_t *tail = sl_kv_tail(kv, layer, &n_tail);
    if (status == SL_OK && n_tail > 0 && n_full < SL_PART_TILES)
        memcpy(out + n_full * group_bytes, tail, group_bytes);
    return status;
}
