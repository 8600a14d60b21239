/* The reader thread: plans a batch of adjacent parts under the lock, reads and verifies it outside, hands over. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "platform/os.h"
#include "store/stream_impl.h"

/* Gives an item its room. The piece is copied here, under the lock: the layer may grow while the rest is read. */
static bool take(sl_stream *stream, sl_ring_item *item, const sl_ring_item *behind)
{
    if (!sl_ring_plan(&stream->ring, item, behind))
        return false;
    const sl_stream_layer *layer = &stream->layers[item->pos.layer];
    size_t piece_bytes = (size_t)(item->n_groups * layer->group_bytes) - item->flash_bytes;
    assert(piece_bytes == 0 || piece_bytes == layer->piece_bytes);
    memcpy(item->data + item->flash_bytes, layer->piece, piece_bytes);
    stream->batch[stream->n_batch++] = *item;
    stream->cursor = item->pos;
    stream->cursor.part++;
    return true;
}

/* Parts that follow one another in the file and in the slot make one read. */
static bool plan(sl_stream *stream)
{
    stream->n_batch = 0;
    sl_ring_item item;
    if (stream->has_failed || !sl_schedule_find(stream, &stream->cursor, &item) || !take(stream, &item, NULL))
        return false;
    size_t bytes = item.flash_bytes;
    while (stream->n_batch < SL_BATCH_ITEMS) {
        sl_ring_item last = item;
        sl_pos ahead = stream->cursor;
        if (last.bytes != last.flash_bytes || !sl_schedule_find(stream, &ahead, &item))
            break;
        if (item.off != last.off + last.flash_bytes || bytes + item.flash_bytes > stream->options.read_bytes)
            break;
        if (!take(stream, &item, &last))
            break;
        bytes += item.flash_bytes;
    }
    return true;
}

/* One read into the room of all items. */
static sl_status read_batch(const sl_stream *stream, size_t bytes, sl_err *err)
{
    const sl_ring_item *first = &stream->batch[0];
    if (bytes == 0)
        return SL_OK;
    return sl_kvfile_read(stream->options.file, first->data, bytes, first->off, err);
}

static sl_status verify(const sl_stream *stream, const sl_ring_item *item, sl_err *err)
{
    uint64_t found = sl_hash(item->data, item->flash_bytes);
    if (found == item->checksum)
        return SL_OK;
    return sl_err_set(err, SL_DAMAGED,
                      "%s: layer %" PRIu32 ", segment %" PRIu64 ", offset %" PRIu64 " (%zu bytes): checksum %016" PRIx64
                      ", expected %016" PRIx64,
                      stream->options.file->name, item->pos.layer, item->pos.part / SL_SEGMENT_PARTS, item->off,
                      item->flash_bytes, found, item->checksum);
}

/* The memory that a complete part shall move to; NULL when it stays on flash. Under the lock. */
static uint8_t *adopting_memory(const sl_stream *stream, const sl_ring_item *item)
{
    const sl_parts *parts = stream->options.parts;
    size_t at = sl_parts_at(parts, item->pos.layer, item->pos.part);
    bool is_full = item->n_groups == sl_parts_capacity(parts, item->pos.part);
    return is_full && parts->places[at] == SL_PLACE_WANTED ? parts->memory[at] : NULL;
}

/* Gives up the batch from item i on; the error reaches the caller when its walk comes there. Under the lock. */
static void fail(sl_stream *stream, size_t i, const sl_err *err)
{
    for (; i < stream->n_batch; i++) {
        if (!stream->batch[i].dropped && !stream->has_failed) {
            stream->has_failed = true;
            stream->failure = *err;
            stream->cursor = stream->batch[i].pos;
        }
        sl_ring_cancel(&stream->ring, &stream->batch[i]);
    }
    stream->n_batch = 0;
    pthread_cond_broadcast(&stream->wake_caller);
}

/* Enters and leaves with the lock held. */
static void hand_over(sl_stream *stream, size_t i)
{
    sl_ring_item *item = &stream->batch[i];
    uint8_t *memory = adopting_memory(stream, item);
    size_t bytes = (size_t)(item->n_groups * stream->layers[item->pos.layer].group_bytes);
    if (memory) {
        pthread_mutex_unlock(&stream->lock);
        memcpy(memory, item->data, bytes);
        pthread_mutex_lock(&stream->lock);
        sl_parts *parts = stream->options.parts;
        parts->places[sl_parts_at(parts, item->pos.layer, item->pos.part)] = SL_PLACE_RESIDENT;
        stream->bytes_resident += bytes;
    }
    if (item->dropped)
        sl_ring_cancel(&stream->ring, item);
    else
        sl_ring_push(&stream->ring, item);
    pthread_cond_broadcast(&stream->wake_caller);
}

/* Enters and leaves with the lock held. */
static void run_batch(sl_stream *stream)
{
    sl_err err;
    size_t bytes = 0;
    for (size_t i = 0; i < stream->n_batch; i++)
        bytes += stream->batch[i].flash_bytes;
    pthread_mutex_unlock(&stream->lock);
    double start = sl_os_seconds();
    sl_status status = read_batch(stream, bytes, &err);
    double seconds = sl_os_seconds() - start;
    pthread_mutex_lock(&stream->lock);
    stream->read_s += seconds;
    stream->bytes_read += status == SL_OK ? bytes : 0;
    for (size_t i = 0; i < stream->n_batch; i++) {
        if (status == SL_OK) {
            pthread_mutex_unlock(&stream->lock);
            status = verify(stream, &stream->batch[i], &err);
            pthread_mutex_lock(&stream->lock);
        }
        if (status != SL_OK) {
            fail(stream, i, &err);
            return;
        }
        hand_over(stream, i);
        /* Handed over: a later drop must not touch it. */
        stream->batch[i].dropped = true;
    }
    stream->n_batch = 0;
}

void *sl_reader_main(void *arg)
{
    sl_stream *stream = arg;
    pthread_mutex_lock(&stream->lock);
    while (!stream->stopping) {
        if (plan(stream))
            run_batch(stream);
        else
            pthread_cond_wait(&stream->wake_reader, &stream->lock);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}
