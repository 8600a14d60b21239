/* Which bytes come next: pure arithmetic over what the stream knows, under its lock. */
#include <assert.h>
#include <string.h>

#include "store/stream_impl.h"

uint64_t sl_stream_first_part(sl_stream *stream, uint64_t pass, uint32_t layer)
{
    sl_stream_layer *of = &stream->layers[layer];
    if (of->first_pass != pass) {
        /* Rows come behind the full tile groups: inside the unfilled one, or later. */
        uint64_t groups = pass == stream->pass ? of->walk_groups : of->n_groups;
        of->first_part = sl_geom_first_part(&stream->options.geom->layers[layer], groups * SL_TILE);
        of->first_pass = pass;
    }
    return of->first_part;
}

static void fill_item(const sl_stream *stream, sl_pos pos, uint64_t groups, sl_ring_item *item)
{
    const sl_stream_layer *layer = &stream->layers[pos.layer];
    uint64_t in_part = groups - pos.part * SL_PART_TILES;
    bool is_closed = in_part >= SL_PART_TILES;
    memset(item, 0, sizeof *item);
    item->pos = pos;
    item->n_groups = is_closed ? (uint32_t)SL_PART_TILES : (uint32_t)in_part;
    item->off = sl_parts_off(stream->options.parts, pos.layer, pos.part);
    size_t bytes = (size_t)(item->n_groups * layer->group_bytes);
    item->flash_bytes = bytes / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    item->bytes = (bytes + SL_SECTOR_BYTES - 1) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    item->checksum = is_closed
                         ? stream->options.parts->checksums[sl_parts_at(stream->options.parts, pos.layer, pos.part)]
                         : layer->open_checksum;
}

/* Moves the cursor to the next part that must be read; false when none may be read now. Fills in all but its room.
 *
 * In the announced pass, parts of layers that have grown since the current one began are what they will be. Those of
 * the others may still be joined by new ones. Where growing is under way, or was seen inside the last pass and so is
 * expected in this one, the schedule waits for it at a layer's open part; else (drafts are verified: a token or some
 * dozens a pass, a new tile group once in 64) it goes on, and growth takes back what it must. Of a sliding layer the
 * walk begins where the span of its first row does. */
static bool find_next(sl_stream *stream, sl_pos *cursor, sl_ring_item *item)
{
    const sl_parts *parts = stream->options.parts;
    for (;;) {
        bool is_current = stream->is_active && cursor->pass == stream->pass;
        bool is_announced = stream->will_follow && cursor->pass == stream->pass + 1;
        if (!is_current && !is_announced)
            return false;
        const sl_stream_layer *layer = &stream->layers[cursor->layer];
        /* A sliding layer that grows sees later parts when it has grown. */
        bool slides = stream->options.geom->layers[cursor->layer].span > 0;
        if (is_announced && stream->is_growing && !layer->has_grown && slides)
            return false;
        uint64_t groups = is_current ? layer->walk_groups : layer->n_groups;
        bool is_settled = is_current || layer->has_grown || !stream->is_growing;
        uint64_t end = is_settled ? sl_parts_of_groups(groups) : groups / SL_PART_TILES;
        uint64_t first = sl_stream_first_part(stream, cursor->pass, cursor->layer);
        cursor->part = cursor->part > first ? cursor->part : first;
        if (cursor->part < end) {
            if (parts->places[sl_parts_at(parts, cursor->layer, cursor->part)] != SL_PLACE_RESIDENT) {
                fill_item(stream, *cursor, groups, item);
                return true;
            }
            cursor->part++;
            continue;
        }
        if (!is_settled)
            return false;
        cursor->part = 0;
        cursor->layer++;
        if (cursor->layer == stream->options.geom->n_layers) {
            cursor->layer = 0;
            cursor->pass++;
        }
    }
}

/* The item at i goes on where the run ends, or starts one. */
static void join_run(sl_stream *stream, int32_t i)
{
    sl_ring_item *item = &stream->ring.items[i];
    sl_stream_run *run = &stream->run;
    if (run->bytes == 0)
        *run = (sl_stream_run){.item = i, .data = item->data, .off = item->off};
    else
        stream->ring.items[run->last].run_next = i;
    run->last = i;
    run->bytes += item->flash_bytes;
    /* Behind a waiting piece the file goes on elsewhere than the ring. */
    run->is_closed = item->bytes != item->flash_bytes;
    item->unasked_bytes = item->flash_bytes;
}

/* The piece is copied here, under the lock: the layer may grow while the rest is read. */
static void fill_piece(const sl_stream *stream, const sl_ring_item *item)
{
    const sl_stream_layer *layer = &stream->layers[item->pos.layer];
    size_t piece_bytes = (size_t)(item->n_groups * layer->group_bytes) - item->flash_bytes;
    assert(piece_bytes == 0 || piece_bytes == layer->piece_bytes);
    memcpy(item->data + item->flash_bytes, layer->piece, piece_bytes);
}

sl_schedule_end sl_schedule_plan(sl_stream *stream)
{
    sl_stream_run *run = &stream->run;
    sl_ring *ring = &stream->ring;
    while (run->bytes < 2 * stream->read_bytes) {
        sl_ring_item item;
        if (stream->has_failed || !find_next(stream, &stream->cursor, &item))
            return SL_SCHEDULE_END_PARTS;
        bool follows = run->bytes > 0 && !run->is_closed && item.off == run->off + run->bytes &&
                       sl_ring_can_follow(ring, run->last, item.bytes);
        if (run->bytes > 0 && !follows)
            return SL_SCHEDULE_END_BREAK;
        int32_t i = sl_ring_place(ring, &item, follows ? run->last : SL_RING_NONE);
        /* There may be room elsewhere, past a held part: another run's. */
        if (i == SL_RING_NONE)
            return follows && sl_ring_has_room(ring, item.bytes) ? SL_SCHEDULE_END_BREAK : SL_SCHEDULE_END_ROOM;
        fill_piece(stream, &ring->items[i]);
        stream->cursor.part++;
        if (stream->is_rehearsing || item.flash_bytes == 0)
            sl_ring_set_whole(ring, i);
        else
            join_run(stream, i);
    }
    return SL_SCHEDULE_END_ENOUGH;
}

/* A run that has ended is cut evenly: a small rest would cost the device as much as a whole read. One that only waits
 * for room is asked for in part while enough is in flight, not in crumbs. */
size_t sl_schedule_next_bytes(const sl_stream *stream, sl_schedule_end end)
{
    size_t bytes = stream->run.bytes, most = stream->read_bytes;
    if (bytes >= 2 * most)
        return most;
    if (end == SL_SCHEDULE_END_ROOM && bytes >= most)
        return most;
    if (bytes == 0 || (end == SL_SCHEDULE_END_ROOM && stream->flying_bytes > 0))
        return 0;
    return bytes <= most ? bytes : (bytes / 2 + SL_SECTOR_BYTES - 1) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
}

void sl_schedule_cut(sl_stream *stream, size_t bytes, sl_stream_read *read)
{
    sl_stream_run *run = &stream->run;
    *read = (sl_stream_read){.item = run->item, .data = run->data, .bytes = bytes, .off = run->off};
    run->data += bytes;
    run->off += bytes;
    run->bytes -= bytes;
    stream->flying_bytes += bytes;
    for (size_t left = bytes; left > 0;) {
        sl_ring_item *item = &stream->ring.items[run->item];
        size_t n = left < item->unasked_bytes ? left : item->unasked_bytes;
        item->unasked_bytes -= n;
        item->flying_bytes += n;
        left -= n;
        if (item->unasked_bytes == 0)
            run->item = item->run_next;
    }
}
