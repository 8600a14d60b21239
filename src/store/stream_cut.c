/* What changes a stream from outside its walk: the ring handed to somebody else for a while, layers cut short. */
#include <assert.h>
#include <inttypes.h>

#include "platform/os.h"
#include "store/stream_impl.h"

/* Reads that are in flight are waited for; their rate does not matter then. */
static const double LOOK_EVERY_S = 0.2;

sl_status sl_stream_pause(sl_stream *stream, uint8_t **room, sl_err *err)
{
    *room = NULL;
    if (stream->is_active)
        return sl_err_set(err, SL_USAGE, "pass %" PRIu64 " is under way", stream->pass);
    if (!stream->options.has_ring)
        return SL_OK;
    pthread_mutex_lock(&stream->lock);
    sl_stream_rewind(stream, (sl_pos){0, 0, 0});
    stream->cursor = (sl_pos){stream->pass + 1, 0, 0};
    stream->will_follow = false;
    stream->is_pausing = true;
    while (!sl_ring_is_held_only(&stream->ring))
        (void)sl_os_cond_wait_until(&stream->wake_caller, &stream->lock, sl_os_seconds() + LOOK_EVERY_S);
    stream->is_pausing = false;
    bool is_held = !sl_ring_is_empty(&stream->ring);
    pthread_mutex_unlock(&stream->lock);
    if (is_held)
        return sl_err_set(err, SL_USAGE, "a part of pass %" PRIu64 " was not released", stream->pass);
    *room = stream->ring.memory;
    return SL_OK;
}

void sl_stream_cut(sl_stream *stream, uint32_t layer, uint64_t n_groups)
{
    sl_parts *parts = stream->options.parts;
    sl_stream_layer *cut = &stream->layers[layer];
    assert(n_groups % SL_PART_TILES == 0 && n_groups <= cut->n_groups);
    pthread_mutex_lock(&stream->lock);
    for (uint64_t part = n_groups / SL_PART_TILES; part < sl_parts_of_groups(cut->n_groups); part++) {
        uint64_t left = cut->n_groups - part * SL_PART_TILES;
        uint64_t held = left < SL_PART_TILES ? left : SL_PART_TILES;
        uint8_t *place = &parts->places[sl_parts_at(parts, layer, part)];
        if (sl_parts_holds(parts, layer, part) && *place == SL_PLACE_RESIDENT)
            stream->bytes_resident -= held * cut->group_bytes;
        if (sl_parts_end_turn(parts, layer, part) && *place == SL_PLACE_RESIDENT)
            *place = SL_PLACE_WANTED;
    }
    cut->n_groups = n_groups;
    cut->first_pass = 0;
    cut->piece_bytes = 0;
    pthread_mutex_unlock(&stream->lock);
}

/* A slot that parts take turns in: what memory holds of the part that had it goes. Under the lock. */
static void give_up(sl_stream *stream, uint32_t layer, uint64_t part)
{
    sl_parts *parts = stream->options.parts;
    uint8_t *place = &parts->places[sl_parts_at(parts, layer, part)];
    if (*place != SL_PLACE_RESIDENT)
        return;
    *place = SL_PLACE_WANTED;
    stream->bytes_resident -= parts->layers[layer].part_bytes;
}

void sl_stream_take_turn(sl_stream *stream, uint32_t layer, uint64_t part)
{
    pthread_mutex_lock(&stream->lock);
    /* The part before may be on its way into the slot's memory. */
    while (stream->is_adopting)
        (void)sl_os_cond_wait_until(&stream->wake_caller, &stream->lock, sl_os_seconds() + LOOK_EVERY_S);
    sl_parts *parts = stream->options.parts;
    if (sl_parts_take_turn(parts, layer, part))
        give_up(stream, layer, part);
    /* At once: nothing of it is on flash yet (an ephemeral one's never will be), and a reader that is still to pass the
     * part before would take the slot for one that must be read. */
    uint8_t *place = &parts->places[sl_parts_at(parts, layer, part)];
    if (*place == SL_PLACE_WANTED)
        *place = SL_PLACE_RESIDENT;
    pthread_mutex_unlock(&stream->lock);
}

void sl_stream_return(sl_stream *stream, uint32_t layer, uint64_t part, uint64_t checksum)
{
    sl_parts *parts = stream->options.parts;
    pthread_mutex_lock(&stream->lock);
    if (sl_parts_take_turn(parts, layer, part)) {
        give_up(stream, layer, part);
        parts->checksums[sl_parts_at(parts, layer, part)] = checksum;
    }
    pthread_mutex_unlock(&stream->lock);
}

uint64_t sl_stream_open_checksum(const sl_stream *stream, uint32_t layer)
{
    return stream->layers[layer].open_checksum;
}
