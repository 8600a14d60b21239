/* A reader of a finished file and whoever appends to it: the append writes over the last sectors of each block. The
 * reader takes what lies in them into memory while it opens the file, and makes sure that nobody had begun by then. */
#include <string.h>

#include "store/durable_impl.h"

static sl_status read_tail(sl_durable *d, uint32_t layer, uint8_t *buf, uint8_t **out, sl_err *err)
{
    const sl_geom *geom = &d->superblock.geom;
    size_t group = sl_geom_group_bytes(geom, layer);
    size_t full = (size_t)(d->n_tokens % SL_SEGMENT_TOKENS / SL_TILE) * group;
    size_t piece = sl_commit_piece_bytes(geom, layer, d->n_tokens);
    size_t bytes = piece + (d->n_tokens % SL_TILE != 0 ? group : 0);
    size_t sectors = (bytes + SL_SECTOR_BYTES - 1) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    if (bytes == 0)
        return SL_OK;
    uint64_t off = sl_layout_segment_off(&d->layout, d->n_tokens / SL_SEGMENT_TOKENS) +
                   sl_geom_block_off(geom, 0, layer) + (full - piece);
    sl_status status = sl_vfs_read(d->vfs, d->file, d->path, buf, sectors, off, err);
    if (status == SL_OK)
        memcpy(*out, buf, bytes);
    *out += bytes;
    return status;
}

/* A commit record is there before anything is written over, and an append that has ended has made another end. */
static sl_status has_begun(sl_durable *d, uint64_t end_off, uint8_t *buf, bool *out, sl_err *err)
{
    sl_commit commit;
    sl_end end;
    sl_err why;
    unsigned copy = SL_DURABLE_COMMITS;
    char note[sizeof d->note];
    memcpy(note, d->note, sizeof note);
    sl_status status = sl_durable_find_commit(d, buf, &commit, &copy, err);
    memcpy(d->note, note, sizeof note);
    *out = copy < SL_DURABLE_COMMITS;
    bool is_end = false;
    for (uint64_t i = 0; status == SL_OK && !*out && i < 2; i++) {
        uint64_t off = end_off + i * SL_FORMAT_END_BYTES;
        status = sl_vfs_read(d->vfs, d->file, d->path, buf, SL_FORMAT_END_BYTES, off, err);
        is_end = is_end || (status == SL_OK && sl_end_decode(buf, d->superblock.checksum, &end, &why) == SL_OK &&
                            end.n_tokens == d->n_tokens && end.last == d->last);
    }
    *out = *out || !is_end;
    return status;
}

sl_status sl_durable_hold_tails(sl_durable *d, uint64_t end_off, sl_err *err)
{
    const sl_geom *geom = &d->superblock.geom;
    size_t room = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        size_t group = sl_geom_group_bytes(geom, i);
        room = group > room ? group : room;
    }
    room = (room / SL_SECTOR_BYTES + 3) * SL_SECTOR_BYTES;
    if (room < d->commit_room)
        room = d->commit_room;
    uint8_t *buf = NULL, *at = d->commit;
    sl_status status = sl_mem_map(d->options.budget, room, "last sectors of the context", &buf, err);
    for (uint32_t i = 0; status == SL_OK && i < geom->n_layers; i++)
        status = read_tail(d, i, buf, &at, err);
    bool is_overtaken = false;
    if (status == SL_OK)
        status = has_begun(d, end_off, buf, &is_overtaken, err);
    sl_mem_unmap(d->options.budget, buf, room);
    if (status == SL_OK && is_overtaken) {
        d->was_overtaken = true;
        return sl_err_set(err, SL_DAMAGED, "%s: another process is writing it faster than it can be opened", d->path);
    }
    if (status == SL_OK)
        d->tails = at > d->commit ? d->commit : NULL;
    return status;
}
