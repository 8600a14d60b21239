/* Which part comes next: pure arithmetic over what the stream knows, under its lock. */
#include "store/stream_impl.h"

static void fill_item(const sl_stream *stream, sl_pos pos, uint64_t groups, sl_ring_item *item)
{
    const sl_stream_layer *layer = &stream->layers[pos.layer];
    uint64_t in_part = groups - pos.part * SL_PART_TILES;
    bool is_closed = in_part >= SL_PART_TILES;
    item->pos = pos;
    item->n_groups = is_closed ? (uint32_t)SL_PART_TILES : (uint32_t)in_part;
    item->off = pos.part / SL_SEGMENT_PARTS * stream->segment_bytes + layer->block_off +
                pos.part % SL_SEGMENT_PARTS * layer->part_bytes;
    size_t bytes = (size_t)(item->n_groups * layer->group_bytes);
    item->flash_bytes = bytes / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    item->bytes = (bytes + SL_SECTOR_BYTES - 1) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    item->checksum = is_closed
                         ? stream->options.parts->checksums[sl_parts_at(stream->options.parts, pos.layer, pos.part)]
                         : layer->open_checksum;
    item->dropped = false;
}

bool sl_schedule_find(const sl_stream *stream, sl_pos *cursor, sl_ring_item *item)
{
    const sl_parts *parts = stream->options.parts;
    for (;;) {
        bool is_current = stream->is_active && cursor->pass == stream->pass;
        bool is_announced = stream->will_follow && cursor->pass == stream->pass + 1;
        if (!is_current && !is_announced)
            return false;
        const sl_stream_layer *layer = &stream->layers[cursor->layer];
        uint64_t groups = is_current ? layer->walk_groups : layer->n_groups;
        bool is_settled = is_current || layer->has_grown;
        uint64_t end = is_settled ? sl_parts_of_groups(groups) : groups / SL_PART_TILES;
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
