/* Tokens of a context file into a context: part after part through the writer, verified. */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "store/kv_impl.h"

enum { LOAD_BYTES = 256 << 10 }; /* of one reading, about */

/* A part of a layer as the file has it: on flash up to a whole sector, the rest in `tail`. */
typedef struct stored_part {
    uint32_t layer;
    uint64_t part, off; /* of the file */
    size_t group_bytes;
    size_t n_tokens; /* of it, taken over */
    size_t bytes;    /* of all its tile groups, the unfilled one included */
    size_t checked;  /* of them, under the checksum */
    size_t on_flash; /* of them, or more where padded: whole sectors */
    const uint8_t *tail;
} stored_part;

static stored_part find_part(const sl_durable *from, uint32_t layer, uint64_t part, size_t n_tokens)
{
    const sl_geom *geom = sl_durable_geom(from);
    sl_durable_state state = sl_durable_get(from);
    uint64_t in_file = state.n_tokens - part * SL_PART_TOKENS;
    size_t n_in_file = in_file < SL_PART_TOKENS ? (size_t)in_file : SL_PART_TOKENS;
    size_t group_bytes = sl_geom_group_bytes(geom, layer);
    size_t full = n_in_file / SL_TILE * group_bytes, unfilled = n_in_file % SL_TILE != 0 ? group_bytes : 0;
    /* Whole parts are whole sectors, and all in place. */
    const uint8_t *tail = n_in_file < SL_PART_TOKENS ? sl_durable_tail(from, layer) : NULL;
    return (stored_part){
        .layer = layer,
        .part = part,
        .off = sl_layout_segment_off(sl_durable_layout(from), part / SL_SEGMENT_PARTS) +
               sl_geom_block_off(geom, 0, layer) + part % SL_SEGMENT_PARTS * sl_geom_part_bytes(geom, layer),
        .group_bytes = group_bytes,
        .n_tokens = n_tokens,
        .bytes = full + unfilled,
        .checked = full + (state.is_finished ? unfilled : 0),
        .on_flash = tail ? full / SL_SECTOR_BYTES * SL_SECTOR_BYTES : (size_t)sl_up_sector(full + unfilled),
        .tail = tail,
    };
}

/* Bytes [first, end) of it; `buf` then begins with the sector that `first` lies in. */
static sl_status fetch(const sl_durable *from, const stored_part *p, size_t first, size_t end, uint8_t *buf,
                       sl_err *err)
{
    first = first / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    size_t sectors_end = (size_t)sl_up_sector(end), flash_end = sectors_end < p->on_flash ? sectors_end : p->on_flash;
    const sl_vfs *vfs = sl_durable_vfs(from);
    sl_file *file = sl_durable_file(from);
    sl_status status = SL_OK;
    if (first < flash_end)
        status = sl_vfs_read(vfs, file, sl_durable_name(from), buf, flash_end - first, p->off + first, err);
    if (first < flash_end && !sl_durable_is_direct(from))
        (void)vfs->drop_cached(file, p->off + first, flash_end - first);
    size_t copied = first > flash_end ? first : flash_end;
    if (status == SL_OK && copied < end && p->tail)
        memcpy(buf + (copied - first), p->tail + (copied - p->on_flash), end - copied);
    return status;
}

/* What a part is loaded through. */
typedef struct loader {
    sl_kv *kv;
    const sl_durable *from;
    uint8_t *buf;
    size_t room;
    XXH3_state_t *hash;
} loader;

/* Groups after groups through the writer; what the checksum says of them all comes at the end, before anybody has seen
 * one. */
static sl_status load_part(const loader *l, const stored_part *p, sl_err *err)
{
    size_t at_once = LOAD_BYTES / p->group_bytes * p->group_bytes;
    at_once = at_once > 0 ? at_once : p->group_bytes;
    sl_status status = SL_OK;
    XXH3_64bits_reset(l->hash);
    for (size_t from = 0, to; status == SL_OK && from < p->bytes; from = to) {
        to = from + at_once < p->bytes ? from + at_once : p->bytes;
        status = fetch(l->from, p, from, to, l->buf, err);
        if (status != SL_OK)
            break;
        const uint8_t *groups = l->buf + from % SL_SECTOR_BYTES;
        size_t end = to < p->checked ? to : p->checked;
        if (end > from)
            XXH3_64bits_update(l->hash, groups, end - from);
        size_t first_token = from / p->group_bytes * SL_TILE, last = to / p->group_bytes * SL_TILE;
        last = last < p->n_tokens ? last : p->n_tokens;
        if (last > first_token)
            status = sl_writer_append(l->kv->writer, p->layer, groups, last - first_token, err);
    }
    if (status != SL_OK)
        return status;
    const sl_kvfile_part part = {p->layer,
                                 p->part,
                                 p->off,
                                 p->checked,
                                 p->checked > 0 ? XXH3_64bits_digest(l->hash) : 0,
                                 sl_durable_part(l->from, p->layer, p->part)};
    return sl_kvfile_judge(sl_durable_name(l->from), &part, err);
}

size_t sl_kv_load_bytes(const sl_geom *geom)
{
    size_t longest = LOAD_BYTES;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        size_t bytes = sl_geom_group_bytes(geom, i);
        longest = bytes > longest ? bytes : longest;
    }
    return (size_t)sl_up_sector(longest) + 2 * SL_SECTOR_BYTES;
}

static sl_status init_loader(loader *l, sl_err *err)
{
    l->room = sl_kv_load_bytes(&l->kv->geom);
    sl_status status = sl_mem_map(l->kv->budget, l->room, "the context's open part", &l->buf, err);
    return status == SL_OK ? sl_hash_create(l->kv->budget, &l->hash, err) : status;
}

/* All layers' tokens [at, n_tokens), part after part. */
static sl_status load_parts(const loader *l, uint64_t at, uint64_t n_tokens, const sl_durable_watch *watch,
                            sl_err *err)
{
    uint64_t done = 0, total = (n_tokens - at) * sl_geom_token_bytes(&l->kv->geom);
    sl_status status = SL_OK;
    for (uint64_t part = at / SL_PART_TOKENS; part * SL_PART_TOKENS < n_tokens; part++) {
        uint64_t left = n_tokens - part * SL_PART_TOKENS;
        size_t n = left < SL_PART_TOKENS ? (size_t)left : SL_PART_TOKENS;
        for (uint32_t i = 0; i < l->kv->geom.n_layers; i++) {
            const stored_part p = find_part(l->from, i, part, n);
            status = load_part(l, &p, err);
            if (status != SL_OK)
                return status;
            done += n / SL_TILE * p.group_bytes + n % SL_TILE * (p.group_bytes / SL_TILE);
            if (watch && watch->progress && !watch->progress(watch->arg, done, total))
                return sl_err_set(err, SL_CANCELLED, "cancelled");
        }
    }
    return SL_OK;
}

sl_status sl_kv_append_stored(sl_kv *kv, const sl_durable *from, uint64_t n_tokens, const sl_durable_watch *watch,
                              sl_err *err)
{
    uint64_t at = sl_writer_tokens(kv->writer, 0);
    for (uint32_t i = 0; i < kv->geom.n_layers; i++)
        if (sl_writer_tokens(kv->writer, i) != at || at % SL_PART_TOKENS != 0)
            return sl_err_set(err, SL_USAGE, "layer %" PRIu32 " has %" PRIu64 " tokens, no whole parts", i,
                              sl_writer_tokens(kv->writer, i));
    if (n_tokens > sl_durable_get(from).n_tokens)
        return sl_err_set(err, SL_USAGE, "%s: %" PRIu64 " tokens wanted, it holds %" PRIu64, sl_durable_name(from),
                          n_tokens, sl_durable_get(from).n_tokens);
    if (n_tokens <= at)
        return SL_OK;
    loader l = {.kv = kv, .from = from};
    sl_status status = init_loader(&l, err);
    if (status == SL_OK)
        status = load_parts(&l, at, n_tokens, watch, err);
    sl_hash_destroy(kv->budget, l.hash);
    sl_mem_unmap(kv->budget, l.buf, l.room);
    return status;
}
