#include "store/stream.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "platform/os.h"
#include "store/stream_impl.h"

enum { STACK_BYTES = 256 * 1024 }; /* of the reader thread */

uint64_t sl_stream_table_bytes(const sl_geom *geom)
{
    enum { HEAP_HEADS = 2 * 32 };
    uint64_t pieces = ((uint64_t)geom->n_layers * SL_SECTOR_BYTES + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN * SL_MEM_ALIGN;
    return sizeof(sl_stream) + geom->n_layers * sizeof(sl_stream_layer) + pieces + STACK_BYTES + HEAP_HEADS;
}

static sl_status start_thread(sl_stream *stream, sl_err *err)
{
    sl_status status = sl_budget_take(stream->options.budget, STACK_BYTES, "reader thread", err);
    if (status != SL_OK)
        return status;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* Signals belong to the program's own threads. */
    sigset_t all, saved;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved);
    int failed = pthread_create(&stream->thread, &attr, sl_reader_main, stream);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    pthread_attr_destroy(&attr);
    if (failed) {
        sl_budget_give(stream->options.budget, STACK_BYTES);
        return sl_err_set_errno(err, SL_FAILED, failed, "cannot start the reader thread");
    }
    stream->has_thread = true;
    return SL_OK;
}

static sl_status init_ring(sl_stream *stream, sl_err *err)
{
    const sl_stream_options *options = &stream->options;
    size_t least = SIZE_MAX;
    for (uint32_t i = 0; i < options->geom->n_layers; i++) {
        size_t bytes = sl_geom_part_bytes(options->geom, i);
        least = bytes < least ? bytes : least;
    }
    sl_status status = sl_ring_init(&stream->ring, options->n_slots, options->slot_bytes, least, options->budget, err);
    return status == SL_OK ? start_thread(stream, err) : status;
}

static sl_status init_layers(sl_stream *stream, sl_err *err)
{
    const sl_geom *geom = stream->options.geom;
    sl_budget *budget = stream->options.budget;
    sl_status status = sl_mem_new(budget, geom->n_layers, sizeof *stream->layers, "layer table", &stream->layers, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, (size_t)geom->n_layers * SL_SECTOR_BYTES, "waiting pieces", &stream->pieces, err);
    if (status != SL_OK)
        return status;
    uint64_t off = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        stream->layers[i].block_off = off;
        stream->layers[i].group_bytes = sl_geom_group_bytes(geom, i);
        stream->layers[i].part_bytes = sl_geom_part_bytes(geom, i);
        stream->layers[i].piece = stream->pieces + (size_t)i * SL_SECTOR_BYTES;
        off += sl_geom_block_bytes(geom, i);
    }
    stream->segment_bytes = off;
    return SL_OK;
}

sl_status sl_stream_create(const sl_stream_options *options, sl_stream **out, sl_err *err)
{
    *out = NULL;
    sl_stream *stream = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *stream, "stream", &stream, err);
    if (status != SL_OK)
        return status;
    stream->options = *options;
    stream->cursor = (sl_pos){1, 0, 0};
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->wake_reader, NULL);
    pthread_cond_init(&stream->wake_caller, NULL);
    status = init_layers(stream, err);
    if (status == SL_OK && options->has_ring)
        status = init_ring(stream, err);
    if (status != SL_OK) {
        sl_stream_destroy(stream);
        return status;
    }
    *out = stream;
    return SL_OK;
}

void sl_stream_destroy(sl_stream *stream)
{
    if (!stream)
        return;
    sl_budget *budget = stream->options.budget;
    if (stream->has_thread) {
        pthread_mutex_lock(&stream->lock);
        stream->stopping = true;
        pthread_cond_signal(&stream->wake_reader);
        pthread_mutex_unlock(&stream->lock);
        pthread_join(stream->thread, NULL);
        sl_budget_give(budget, STACK_BYTES);
    }
    if (stream->ring.budget)
        sl_ring_deinit(&stream->ring);
    pthread_cond_destroy(&stream->wake_caller);
    pthread_cond_destroy(&stream->wake_reader);
    pthread_mutex_destroy(&stream->lock);
    sl_mem_unmap(budget, stream->pieces, (size_t)stream->options.geom->n_layers * SL_SECTOR_BYTES);
    sl_mem_free(budget, stream->layers);
    sl_mem_free(budget, stream);
}

/* Takes back everything the reader has at or behind `pos`. */
static void rewind_to(sl_stream *stream, sl_pos pos)
{
    if (!sl_pos_is_before(pos, stream->cursor))
        return;
    if (stream->options.has_ring)
        sl_ring_drop_from(&stream->ring, pos);
    for (size_t i = 0; i < stream->n_batch; i++)
        if (!sl_pos_is_before(stream->batch[i].pos, pos))
            stream->batch[i].dropped = true;
    stream->cursor = pos;
    stream->has_failed = false;
}

sl_status sl_stream_begin(sl_stream *stream, bool will_follow, sl_err *err)
{
    if (stream->is_active)
        return sl_err_set(err, SL_USAGE, "a pass begins inside pass %" PRIu64, stream->pass);
    pthread_mutex_lock(&stream->lock);
    stream->pass++;
    stream->is_active = true;
    stream->will_follow = will_follow;
    stream->walk_layer = 0;
    stream->walk_part = 0;
    for (uint32_t i = 0; i < stream->options.geom->n_layers; i++) {
        stream->layers[i].walk_groups = stream->layers[i].n_groups;
        stream->layers[i].has_grown = false;
    }
    if (stream->cursor.pass < stream->pass)
        stream->cursor = (sl_pos){stream->pass, 0, 0};
    pthread_cond_signal(&stream->wake_reader);
    pthread_mutex_unlock(&stream->lock);
    return SL_OK;
}

static bool has_parts_left(const sl_stream *stream, uint32_t layer)
{
    return layer == stream->walk_layer ? stream->walk_part < sl_parts_of_groups(stream->layers[layer].walk_groups)
                                       : layer > stream->walk_layer && stream->layers[layer].walk_groups > 0;
}

sl_status sl_stream_end(sl_stream *stream, sl_err *err)
{
    if (!stream->is_active)
        return sl_err_set(err, SL_USAGE, "a pass ends that has not begun");
    pthread_mutex_lock(&stream->lock);
    bool is_whole = true;
    for (uint32_t i = stream->walk_layer; i < stream->options.geom->n_layers; i++)
        is_whole = is_whole && !has_parts_left(stream, i);
    if (!is_whole) {
        /* Given up half way: what was read ahead cannot be handed over in order any more. */
        rewind_to(stream, (sl_pos){0, 0, 0});
        stream->cursor = (sl_pos){stream->pass + 1, 0, 0};
    } else if (stream->cursor.pass == stream->pass) {
        stream->cursor = (sl_pos){stream->pass + 1, 0, 0};
    }
    stream->is_active = false;
    stream->n_passes++;
    pthread_cond_signal(&stream->wake_reader);
    pthread_mutex_unlock(&stream->lock);
    return SL_OK;
}

static void hand_resident(sl_stream *stream, sl_pos pos, sl_kv_part *part)
{
    const sl_stream_layer *layer = &stream->layers[pos.layer];
    uint64_t groups = layer->walk_groups - pos.part * SL_PART_TILES;
    part->tiles = stream->options.parts->memory[sl_parts_at(stream->options.parts, pos.layer, pos.part)];
    part->n_groups = groups < SL_PART_TILES ? (uint32_t)groups : (uint32_t)SL_PART_TILES;
    part->slot = -1;
}

static void hand_read(sl_stream *stream, sl_kv_part *part)
{
    sl_ring_item item = sl_ring_pop(&stream->ring);
    part->tiles = item.data;
    part->n_groups = item.n_groups;
    part->slot = item.slot;
    stream->bytes_visited += item.flash_bytes;
    pthread_cond_signal(&stream->wake_reader);
}

/* Waits for the part at `pos`. Under the lock. */
static sl_status await(sl_stream *stream, sl_pos pos, sl_kv_part *part, sl_err *err)
{
    const sl_parts *parts = stream->options.parts;
    double start = 0;
    sl_status status = SL_OK;
    for (;;) {
        const sl_ring_item *head = sl_ring_head(&stream->ring);
        /* In the ring first: a part that moved to memory when it was read is there too. */
        if (head && sl_pos_is_same(head->pos, pos)) {
            hand_read(stream, part);
            break;
        }
        if (parts->places[sl_parts_at(parts, pos.layer, pos.part)] == SL_PLACE_RESIDENT) {
            hand_resident(stream, pos, part);
            break;
        }
        assert(!head);
        if (stream->has_failed && !sl_pos_is_before(pos, stream->cursor)) {
            status = sl_err_set(err, stream->failure.status, "%s", stream->failure.text);
            break;
        }
        start = start > 0 ? start : sl_os_seconds();
        pthread_cond_wait(&stream->wake_caller, &stream->lock);
    }
    if (start > 0)
        stream->wait_s += sl_os_seconds() - start;
    return status;
}

sl_status sl_stream_next(sl_stream *stream, uint32_t layer, sl_kv_part *part, bool *found, sl_err *err)
{
    *found = false;
    if (!stream->is_active || layer >= stream->options.geom->n_layers)
        return sl_err_set(err, SL_USAGE, "layer %" PRIu32 ": asked for a part outside a pass", layer);
    pthread_mutex_lock(&stream->lock);
    sl_status status = SL_OK;
    while (stream->walk_layer < layer && status == SL_OK) {
        if (has_parts_left(stream, stream->walk_layer)) {
            status = sl_err_set(err, SL_USAGE, "layer %" PRIu32 " asked for while layer %" PRIu32 " has parts left",
                                layer, stream->walk_layer);
        } else {
            stream->walk_layer++;
            stream->walk_part = 0;
        }
    }
    if (status == SL_OK && has_parts_left(stream, layer)) {
        sl_pos pos = {stream->pass, layer, stream->walk_part};
        part->layer = layer;
        part->first_token = pos.part * SL_PART_TOKENS;
        status = await(stream, pos, part, err);
        *found = status == SL_OK;
        stream->walk_part += status == SL_OK;
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

void sl_stream_release(sl_stream *stream, const sl_kv_part *part)
{
    if (part->slot < 0)
        return;
#ifndef NDEBUG
    uint8_t *slot = stream->ring.memory + (size_t)part->slot * stream->ring.slot_bytes;
    memset(slot + (part->tiles - slot), 0xa5, (size_t)(part->n_groups * stream->layers[part->layer].group_bytes));
#endif
    pthread_mutex_lock(&stream->lock);
    sl_ring_release(&stream->ring, part->slot);
    pthread_cond_signal(&stream->wake_reader);
    pthread_mutex_unlock(&stream->lock);
}

sl_status sl_stream_grow_begin(sl_stream *stream, uint32_t layer, bool has_new_groups, sl_err *err)
{
    sl_status status = SL_OK;
    pthread_mutex_lock(&stream->lock);
    if (stream->is_active && has_parts_left(stream, layer)) {
        status = sl_err_set(err, SL_USAGE, "layer %" PRIu32 " grows before its parts have been walked", layer);
    } else if (has_new_groups) {
        sl_stream_layer *grown = &stream->layers[layer];
        grown->has_grown = false;
        rewind_to(stream, (sl_pos){stream->pass + 1, layer, grown->n_groups / SL_PART_TILES});
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

void sl_stream_grow_end(sl_stream *stream, uint32_t layer, const sl_growth *growth)
{
    pthread_mutex_lock(&stream->lock);
    sl_stream_layer *grown = &stream->layers[layer];
    grown->n_groups = growth->n_groups;
    grown->open_checksum = growth->open_checksum;
    grown->piece_bytes = growth->piece_bytes;
    memcpy(grown->piece, growth->piece, growth->piece_bytes);
    grown->has_grown = true;
    stream->bytes_resident += growth->resident_bytes;
    pthread_cond_signal(&stream->wake_reader);
    pthread_mutex_unlock(&stream->lock);
}

uint64_t sl_stream_groups(const sl_stream *stream, uint32_t layer)
{
    return stream->layers[layer].n_groups;
}

const uint8_t *sl_stream_piece(const sl_stream *stream, uint32_t layer, size_t *bytes)
{
    *bytes = stream->layers[layer].piece_bytes;
    return stream->layers[layer].piece;
}

sl_status sl_stream_raise(sl_stream *stream, uint64_t resident_bytes, sl_err *err)
{
    pthread_mutex_lock(&stream->lock);
    sl_status status = sl_parts_raise(stream->options.parts, resident_bytes, err);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

void sl_stream_get_stats(const sl_stream *stream, sl_kv_stats *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&stream->lock;
    pthread_mutex_lock(lock);
    out->bytes_read = stream->bytes_read;
    out->bytes_visited = stream->bytes_visited;
    out->bytes_resident = stream->bytes_resident;
    out->n_passes = stream->n_passes;
    out->wait_s = stream->wait_s;
    out->read_s = stream->read_s;
    pthread_mutex_unlock(lock);
}
