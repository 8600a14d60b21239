#include "store/stream.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "platform/os.h"
#include "store/stream_impl.h"

static const double ASK_EVERY_S = 0.2;

enum {
    STACK_BYTES = 256 * 1024,     /* of the reader thread */
    LEAST_READ_BYTES = 64 * 1024, /* what a small ring or a low rate makes of the wanted size, unless less was wanted */
};

uint64_t sl_stream_table_bytes(const sl_geom *geom)
{
    enum { HEAP_HEADS = 2 * 32 };
    uint64_t pieces = ((uint64_t)geom->n_layers * SL_SECTOR_BYTES + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN * SL_MEM_ALIGN;
    return sizeof(sl_stream) + geom->n_layers * sizeof(sl_stream_layer) + pieces + STACK_BYTES + HEAP_HEADS +
           sl_ring_table_bytes() + sl_queue_bytes(SL_STREAM_DEPTH);
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

static size_t at_least(size_t bytes, size_t least)
{
    return bytes > least ? bytes : least;
}

static size_t at_most(size_t bytes, size_t most)
{
    return bytes < most ? bytes : most;
}

/* Sizes in force. A small ring shall hold some reads; a low rate shall not come in bursts longer than what it is
 * averaged over. */
static void choose_sizes(sl_stream *stream, size_t ring_bytes)
{
    const sl_stream_options *options = &stream->options;
    uint64_t of_rate = options->read_rate > 0 ? options->read_rate / 20 : UINT64_MAX;
    size_t most = at_least(ring_bytes / 8, LEAST_READ_BYTES);
    if (of_rate < most)
        most = at_least((size_t)of_rate, LEAST_READ_BYTES);
    stream->read_bytes = at_most(options->read_bytes, most) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    size_t in_flight = at_most(at_most(options->in_flight_bytes, ring_bytes), SL_STREAM_DEPTH * stream->read_bytes);
    stream->in_flight_bytes = at_least(in_flight, stream->read_bytes);
}

static sl_status init_ring(sl_stream *stream, sl_err *err)
{
    const sl_stream_options *options = &stream->options;
    size_t ring_bytes = options->n_slots * options->slot_bytes;
    choose_sizes(stream, ring_bytes);
    /* All but one slot's number of parts may be held wherever they lie, and another must find room between them. In a
     * ring that is too small for that, each part stays in one slot. */
    bool is_roomy = ring_bytes / (2 * options->n_slots - 1) >= sl_geom_max_part_bytes(options->geom);
    size_t fence_bytes = is_roomy ? ring_bytes : options->slot_bytes;
    for (uint32_t i = 0; i < SL_STREAM_DEPTH; i++)
        stream->free_reads[stream->n_free_reads++] = i;
    sl_status status = sl_ring_init(&stream->ring, ring_bytes, fence_bytes, options->budget, err);
    if (status == SL_OK)
        status = sl_budget_take(options->budget, sl_queue_bytes(SL_STREAM_DEPTH), "queue of reads", err);
    if (status != SL_OK)
        return status;
    sl_budget_init(&stream->queue_budget, sl_queue_bytes(SL_STREAM_DEPTH));
    stream->has_queue_budget = true;
    return start_thread(stream, err);
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
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        stream->layers[i].group_bytes = sl_geom_group_bytes(geom, i);
        stream->layers[i].piece = stream->pieces + (size_t)i * SL_SECTOR_BYTES;
    }
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
    stream->engine = "none";
    stream->grew_inside = true; /* nothing is known: as for windows */
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->wake_reader, NULL);
    sl_os_cond_init(&stream->wake_caller);
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

/* After a change that may give the reader something to do. Under the lock: a reader that works looks again. */
static void wake_reader(sl_stream *stream)
{
    if (stream->reader == SL_READER_STATE_SLEEPING)
        pthread_cond_signal(&stream->wake_reader);
    else if (stream->reader == SL_READER_STATE_STARVING)
        sl_queue_wake(stream->queue);
    else
        return;
    stream->reader = SL_READER_STATE_WORKING;
}

void sl_stream_destroy(sl_stream *stream)
{
    if (!stream)
        return;
    sl_budget *budget = stream->options.budget;
    if (stream->has_thread) {
        pthread_mutex_lock(&stream->lock);
        stream->stopping = true;
        if (stream->reader == SL_READER_STATE_WAITING)
            stream->reader = SL_READER_STATE_STARVING;
        wake_reader(stream);
        pthread_mutex_unlock(&stream->lock);
        pthread_join(stream->thread, NULL);
        sl_budget_give(budget, STACK_BYTES);
    }
    sl_queue_destroy(stream->queue);
    if (stream->has_queue_budget) {
        sl_budget_deinit(&stream->queue_budget);
        sl_budget_give(budget, sl_queue_bytes(SL_STREAM_DEPTH));
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

void sl_stream_rewind(sl_stream *stream, sl_pos pos)
{
    sl_ring *ring = &stream->ring;
    if (!sl_pos_is_before(pos, stream->cursor))
        return;
    for (int32_t i; (i = sl_ring_last(ring)) != SL_RING_NONE && !sl_pos_is_before(ring->items[i].pos, pos);) {
        stream->run.bytes -= ring->items[i].unasked_bytes;
        sl_ring_drop_last(ring);
    }
    /* Its last item may be gone, or may be followed by another one later. */
    stream->run.is_closed = true;
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
    stream->is_growing = stream->grew_inside;
    stream->grew_inside = false;
    if (stream->cursor.pass < stream->pass)
        stream->cursor = (sl_pos){stream->pass, 0, 0};
    wake_reader(stream);
    pthread_mutex_unlock(&stream->lock);
    return SL_OK;
}

/* Of the current pass and a layer that is walked now or later: the next part. */
static uint64_t next_part(sl_stream *stream, uint32_t layer)
{
    uint64_t first = sl_stream_first_part(stream, stream->pass, layer);
    return layer == stream->walk_layer && stream->walk_part > first ? stream->walk_part : first;
}

static bool has_parts_left(sl_stream *stream, uint32_t layer)
{
    return layer >= stream->walk_layer &&
           next_part(stream, layer) < sl_parts_of_groups(stream->layers[layer].walk_groups);
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
        sl_stream_rewind(stream, (sl_pos){0, 0, 0});
        stream->cursor = (sl_pos){stream->pass + 1, 0, 0};
    } else if (stream->cursor.pass == stream->pass) {
        stream->cursor = (sl_pos){stream->pass + 1, 0, 0};
    }
    stream->is_active = false;
    stream->n_passes++;
    wake_reader(stream);
    pthread_mutex_unlock(&stream->lock);
    sl_stream_tell(stream);
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

static void hand_read(sl_stream *stream, int32_t i, sl_kv_part *part)
{
    const sl_ring_item *item = &stream->ring.items[i];
    part->tiles = item->data;
    part->n_groups = item->n_groups;
    part->slot = i;
    stream->bytes_visited += item->flash_bytes;
    sl_ring_pop(&stream->ring);
}

static void count_wait(sl_stream *stream, sl_pos pos, double start_s)
{
    double now = sl_os_seconds();
    stream->wait_s += now - start_s;
    sl_trace_span(stream->options.trace, SL_TRACE_LANE_WAIT, "wait", start_s, now,
                  (sl_trace_about){pos.layer, (int64_t)pos.part, -1, -1});
}

static bool is_first_in_ring(const sl_stream *stream, sl_pos pos)
{
    int32_t first = sl_ring_first(&stream->ring);
    return first != SL_RING_NONE && sl_pos_is_same(stream->ring.items[first].pos, pos);
}

static bool is_resident(const sl_stream *stream, sl_pos pos)
{
    const sl_parts *parts = stream->options.parts;
    return parts->places[sl_parts_at(parts, pos.layer, pos.part)] == SL_PLACE_RESIDENT;
}

/* Whether the part at `pos`, or its error, can be handed out now. In the ring first: a part that moved to memory when
 * it was read is there too. Under the lock. */
static bool is_there(const sl_stream *stream, sl_pos pos)
{
    if (is_first_in_ring(stream, pos))
        return stream->ring.items[sl_ring_first(&stream->ring)].state == SL_RING_STATE_READY;
    return is_resident(stream, pos) || (stream->has_failed && !sl_pos_is_before(pos, stream->cursor));
}

/* Enters and leaves with the lock held. */
static bool asks_to_stop(sl_stream *stream)
{
    if (!stream->options.stop)
        return false;
    pthread_mutex_unlock(&stream->lock);
    bool is_stopped = stream->options.stop(stream->options.arg);
    pthread_mutex_lock(&stream->lock);
    return is_stopped;
}

/* Waits for the part at `pos`. Under the lock. */
static sl_status await(sl_stream *stream, sl_pos pos, sl_kv_part *part, sl_err *err)
{
    double start_s = 0;
    bool is_stopped = false;
    while (!is_there(stream, pos) && !is_stopped) {
        start_s = start_s > 0 ? start_s : sl_os_seconds();
        /* What was taken from the queue since the reader looked can be passed by now. */
        wake_reader(stream);
        if (!sl_os_cond_wait_until(&stream->wake_caller, &stream->lock, sl_os_seconds() + ASK_EVERY_S))
            is_stopped = asks_to_stop(stream);
    }
    if (start_s > 0)
        count_wait(stream, pos, start_s);
    if (is_stopped)
        return sl_err_set(err, SL_CANCELLED, "cancelled");
    if (is_first_in_ring(stream, pos))
        hand_read(stream, sl_ring_first(&stream->ring), part);
    else if (is_resident(stream, pos))
        hand_resident(stream, pos, part);
    else
        return sl_err_set(err, stream->failure.status, "%s", stream->failure.text);
    return SL_OK;
}

bool sl_stream_is_ready(sl_stream *stream, uint32_t layer)
{
    pthread_mutex_lock(&stream->lock);
    bool is_ready = !stream->is_active || !has_parts_left(stream, layer) ||
                    is_there(stream, (sl_pos){stream->pass, layer, next_part(stream, layer)});
    pthread_mutex_unlock(&stream->lock);
    return is_ready;
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
        sl_pos pos = {stream->pass, layer, next_part(stream, layer)};
        part->layer = layer;
        part->first_token = pos.part * SL_PART_TOKENS;
        status = await(stream, pos, part, err);
        *found = status == SL_OK;
        stream->walk_part = pos.part + (status == SL_OK);
    }
    bool has_notes = stream->n_notes > 0;
    pthread_mutex_unlock(&stream->lock);
    if (has_notes)
        sl_stream_tell(stream);
    return status;
}

void sl_stream_release(sl_stream *stream, const sl_kv_part *part)
{
    if (part->slot < 0)
        return;
    pthread_mutex_lock(&stream->lock);
    sl_ring_item *item = &stream->ring.items[part->slot];
#ifndef NDEBUG
    /* A rehearsal goes on with what is there. */
    if (!stream->is_rehearsing)
        memset(item->data, 0xa5, item->bytes);
#endif
    assert(item->data == part->tiles);
    (void)item;
    sl_ring_release(&stream->ring, part->slot);
    wake_reader(stream);
    pthread_mutex_unlock(&stream->lock);
}

sl_status sl_stream_grow_begin(sl_stream *stream, uint32_t layer, uint64_t n_new_groups, sl_err *err)
{
    sl_status status = SL_OK;
    pthread_mutex_lock(&stream->lock);
    if (stream->is_active && has_parts_left(stream, layer)) {
        status = sl_err_set(err, SL_USAGE, "layer %" PRIu32 " grows before its parts have been walked", layer);
    } else {
        stream->grew_inside = stream->grew_inside || stream->is_active;
        stream->is_growing = stream->is_growing || stream->is_active || n_new_groups > 0;
    }
    if (status == SL_OK && n_new_groups > 0) {
        sl_stream_layer *grown = &stream->layers[layer];
        /* Of a sliding layer the walk may begin elsewhere, and parts there lose their slots. */
        bool slides = stream->options.geom->layers[layer].span > 0;
        uint64_t from = slides ? 0 : grown->n_groups / SL_PART_TILES;
        grown->first_pass = slides ? 0 : grown->first_pass;
        grown->has_grown = false;
        sl_stream_rewind(stream, (sl_pos){stream->pass + 1, layer, from});
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
    stream->wants_queue = !stream->queue && stream->queue_failure.status == SL_OK && stream->options.file->file != NULL;
    wake_reader(stream);
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

sl_status sl_stream_rehearse(sl_stream *stream, bool on, sl_err *err)
{
    if (stream->is_active)
        return sl_err_set(err, SL_USAGE, "a rehearsal %s inside pass %" PRIu64, on ? "begins" : "ends", stream->pass);
    pthread_mutex_lock(&stream->lock);
    if (stream->is_rehearsing != on) {
        /* What was read ahead is of the other kind. */
        sl_stream_rewind(stream, (sl_pos){0, 0, 0});
        stream->cursor = (sl_pos){stream->pass + 1, 0, 0};
        stream->is_rehearsing = on;
        /* One that waits for the rate has another reason to work now. */
        if (stream->reader == SL_READER_STATE_WAITING)
            stream->reader = SL_READER_STATE_STARVING;
        wake_reader(stream);
    }
    pthread_mutex_unlock(&stream->lock);
    return SL_OK;
}

void sl_stream_fill_ring(sl_stream *stream, const uint8_t *pattern, size_t bytes)
{
    pthread_mutex_lock(&stream->lock);
    assert(stream->pass == 0 && bytes > 0);
    for (size_t at = 0; at < stream->ring.bytes; at += bytes)
        memcpy(stream->ring.memory + at, pattern, at_most(bytes, stream->ring.bytes - at));
    pthread_mutex_unlock(&stream->lock);
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
    out->io_engine = stream->engine;
    out->read_bytes = stream->read_bytes;
    out->in_flight_bytes = stream->in_flight_bytes;
    pthread_mutex_unlock(lock);
}
