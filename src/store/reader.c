/* The reader thread: keeps reads in flight as far as the ring has room, verifies what has come whole, hands over.
 *
 *   under the lock: plan, cut reads -> outside: add them -> under the lock again: until there is nothing to add;
 *   then verify one part (outside), take in the reads that ended meanwhile, begin again;
 *   nothing to verify: sleep until a read ends, room or parts come, or the rate allows more.
 *
 * So hashing never keeps the device waiting by more than one part's time. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "platform/os.h"
#include "store/stream_impl.h"

/* Of the rate, in seconds: what may be caught up after an idle time. */
static const double RATE_WINDOW_S = 0.1;

/* The part's error waits at its position until the caller's walk comes there. Under the lock. */
static void fail_at(sl_stream *stream, sl_pos pos, const sl_err *err)
{
    sl_stream_rewind(stream, pos);
    stream->has_failed = true;
    stream->failure = *err;
    pthread_cond_broadcast(&stream->wake_caller);
}

/* What was taken back may have been let go of. Under the lock. */
static void tell_pausing(sl_stream *stream)
{
    if (stream->is_pausing)
        pthread_cond_broadcast(&stream->wake_caller);
}

/* Seconds until the rate allows the next read; 0: now. A read may overdraw: small rates still read whole reads. */
static double rate_wait_s(sl_stream *stream)
{
    double rate = (double)stream->options.read_rate;
    if (rate <= 0)
        return 0;
    double now = sl_os_seconds();
    if (stream->credit_at_s > 0)
        stream->credit_bytes += (now - stream->credit_at_s) * rate;
    stream->credit_at_s = now;
    if (stream->credit_bytes > rate * RATE_WINDOW_S)
        stream->credit_bytes = rate * RATE_WINDOW_S;
    return stream->credit_bytes >= 0 ? 0 : -stream->credit_bytes / rate;
}

/* What kept refill from asking for more. */
typedef struct pause {
    bool is_starving; /* room or parts would help */
    double timeout_s; /* the rate allows more then; negative: it is not the rate */
} pause;

/* Under the lock. Fills in reads[SL_STREAM_BATCH], returns how many. */
static size_t refill(sl_stream *stream, sl_read *reads, pause *why)
{
    size_t n = 0;
    *why = (pause){false, -1};
    while (n < SL_STREAM_BATCH) {
        sl_schedule_end end = sl_schedule_plan(stream);
        size_t bytes = sl_schedule_next_bytes(stream, end);
        why->is_starving = bytes == 0;
        if (bytes == 0 || !stream->queue || stream->n_free_reads == 0)
            break;
        if (stream->flying_bytes > 0 && stream->flying_bytes + bytes > stream->in_flight_bytes)
            break;
        double wait_s = rate_wait_s(stream);
        if (wait_s > 0) {
            why->timeout_s = wait_s;
            break;
        }
        uint32_t tag = stream->free_reads[--stream->n_free_reads];
        sl_stream_read *read = &stream->reads[tag];
        sl_schedule_cut(stream, bytes, read);
        read->start_s = sl_trace_now(stream->options.trace);
        stream->credit_bytes -= (double)bytes;
        reads[n++] = (sl_read){read->data, bytes, read->off, tag};
    }
    return n;
}

/* Takes in the end of a read. Under the lock. */
static void land(sl_stream *stream, const sl_stream_read *read, sl_status status, const sl_err *err)
{
    const uint8_t *at = read->data;
    const uint8_t *end = read->data + read->bytes;
    bool is_failing = false;
    sl_pos failed = {0, 0, 0};
    stream->flying_bytes -= read->bytes;
    stream->bytes_read += status == SL_OK ? read->bytes : 0;
    for (int32_t i = read->item; at < end;) {
        sl_ring_item *item = &stream->ring.items[i];
        const uint8_t *item_end = item->data + item->flash_bytes;
        size_t n = (size_t)((item_end < end ? item_end : end) - at);
        int32_t next = item->run_next;
        at += n;
        assert(item->flying_bytes >= n);
        item->flying_bytes -= n;
        if (item->state == SL_RING_STATE_DROPPED) {
            sl_ring_sweep(&stream->ring, i);
        } else if (status != SL_OK) {
            failed = is_failing ? failed : item->pos;
            is_failing = true;
        } else if (item->flying_bytes == 0 && item->unasked_bytes == 0) {
            sl_ring_set_whole(&stream->ring, i);
        }
        i = next;
    }
    if (is_failing)
        fail_at(stream, failed, err);
}

/* Waits at most timeout_s (negative: for ever) for an end or a wake, then takes in whatever has ended. Outside the
 * lock. */
static void collect(sl_stream *stream, double timeout_s)
{
    const sl_kvfile *file = stream->options.file;
    uint64_t tag;
    sl_status status;
    sl_err err;
    for (; sl_queue_wait(stream->queue, timeout_s, &tag, &status, &err); timeout_s = 0) {
        const sl_stream_read *read = &stream->reads[tag];
        if (stream->options.trace)
            sl_trace_span(stream->options.trace, SL_TRACE_LANE_READ, "read", read->start_s, sl_os_seconds(),
                          (sl_trace_about){-1, -1, (int64_t)read->bytes, (int64_t)read->off});
        if (status == SL_OK)
            sl_kvfile_forget(file, read->bytes, read->off);
        double busy_s = sl_queue_busy_s(stream->queue);
        pthread_mutex_lock(&stream->lock);
        land(stream, read, status, &err);
        tell_pausing(stream);
        stream->read_s = busy_s;
        pthread_mutex_unlock(&stream->lock);
        stream->free_reads[stream->n_free_reads++] = (uint32_t)tag;
    }
}

static sl_status check_bytes(sl_stream *stream, const sl_ring_item *item, bool is_rehearsing, sl_err *err)
{
    double start_s = sl_trace_now(stream->options.trace);
    uint64_t found = sl_hash(item->data, item->flash_bytes);
    if (stream->options.trace)
        sl_trace_span(
            stream->options.trace, SL_TRACE_LANE_CHECK, "checksum", start_s, sl_os_seconds(),
            (sl_trace_about){item->pos.layer, (int64_t)item->pos.part, (int64_t)item->flash_bytes, (int64_t)item->off});
    if (is_rehearsing) {
        stream->rehearsed ^= found;
        return SL_OK;
    }
    const sl_kvfile_part part = {item->pos.layer, item->pos.part, item->off, item->flash_bytes, found, item->checksum};
    return sl_kvfile_judge(stream->options.file->name, &part, err);
}

/* The memory that a complete part shall move to; NULL when it stays on flash. Under the lock. */
static uint8_t *adopting_memory(const sl_stream *stream, const sl_ring_item *item)
{
    const sl_parts *parts = stream->options.parts;
    size_t at = sl_parts_at(parts, item->pos.layer, item->pos.part);
    bool is_full = item->n_groups == sl_parts_capacity(parts, item->pos.part);
    bool is_its = sl_parts_holds(parts, item->pos.layer, item->pos.part);
    return is_full && is_its && parts->places[at] == SL_PLACE_WANTED ? parts->memory[at] : NULL;
}

/* Enters and leaves with the lock held. */
static void adopt(sl_stream *stream, const sl_ring_item *item)
{
    uint8_t *memory = adopting_memory(stream, item);
    if (!memory)
        return;
    size_t bytes = (size_t)(item->n_groups * stream->layers[item->pos.layer].group_bytes);
    stream->is_adopting = true;
    pthread_mutex_unlock(&stream->lock);
    memcpy(memory, item->data, bytes);
    pthread_mutex_lock(&stream->lock);
    stream->is_adopting = false;
    sl_parts *parts = stream->options.parts;
    parts->places[sl_parts_at(parts, item->pos.layer, item->pos.part)] = SL_PLACE_RESIDENT;
    stream->bytes_resident += bytes;
    /* The item may be dropped, and the caller wait for the part all the same. */
    pthread_cond_signal(&stream->wake_caller);
}

/* Verifies the first whole part; false when there is none. Enters and leaves with the lock held. */
static bool check_one(sl_stream *stream)
{
    int32_t i = sl_ring_find_whole(&stream->ring);
    if (i == SL_RING_NONE)
        return false;
    sl_ring_item *item = &stream->ring.items[i];
    /* As it was planned: the caller may switch meanwhile, and has dropped it then. */
    bool is_rehearsing = stream->is_rehearsing;
    sl_err err;
    sl_ring_set_checking(&stream->ring, i);
    pthread_mutex_unlock(&stream->lock);
    sl_status status = check_bytes(stream, item, is_rehearsing, &err);
    pthread_mutex_lock(&stream->lock);
    if (status == SL_OK && !is_rehearsing)
        adopt(stream, item);
    if (item->state == SL_RING_STATE_DROPPED) {
        sl_ring_sweep(&stream->ring, i);
        tell_pausing(stream);
        return true;
    }
    item->state = SL_RING_STATE_READY;
    if (status != SL_OK)
        fail_at(stream, item->pos, &err);
    else if (i == sl_ring_first(&stream->ring))
        pthread_cond_signal(&stream->wake_caller);
    return true;
}

static void keep_note(void *arg, sl_log_level level, const char *text)
{
    sl_stream *stream = arg;
    pthread_mutex_lock(&stream->lock);
    if (stream->n_notes < SL_STREAM_NOTES) {
        sl_stream_note *note = &stream->notes[stream->n_notes++];
        note->level = level;
        snprintf(note->text, sizeof note->text, "%s", text);
    }
    pthread_mutex_unlock(&stream->lock);
}

void sl_stream_tell(sl_stream *stream)
{
    for (size_t i = 0;; i++) {
        pthread_mutex_lock(&stream->lock);
        bool has_note = i < stream->n_notes;
        sl_stream_note note = has_note ? stream->notes[i] : (sl_stream_note){0};
        if (!has_note)
            stream->n_notes = 0;
        pthread_mutex_unlock(&stream->lock);
        if (!has_note)
            return;
        sl_log_write(&stream->options.log, note.level, "%s", note.text);
    }
}

/* As soon as there is a file: the system takes its time to make the ring's memory ready for it. A failure counts when a
 * part is wanted. Enters and leaves with the lock held. */
static void open_queue(sl_stream *stream)
{
    const sl_kvfile *file = stream->options.file;
    const sl_queue_options options = {
        .vfs = file->vfs,
        .file = file->file,
        .name = file->name,
        .memory = stream->ring.memory,
        .memory_bytes = stream->ring.bytes,
        .depth = SL_STREAM_DEPTH,
        .engine = stream->options.io_engine,
        .budget = &stream->queue_budget,
        .log = {keep_note, stream},
    };
    sl_err err = stream->queue_failure;
    sl_queue *queue = NULL;
    stream->wants_queue = false;
    if (err.status == SL_OK) {
        pthread_mutex_unlock(&stream->lock);
        sl_status status = sl_queue_create(&options, &queue, &err);
        pthread_mutex_lock(&stream->lock);
        stream->queue = queue;
        if (status == SL_OK)
            return;
        stream->queue_failure = err;
    }
    if (stream->run.bytes > 0)
        fail_at(stream, stream->ring.items[stream->run.item].pos, &err);
}

/* Enters and leaves with the lock held. */
static void sleep_until_work(sl_stream *stream, const pause *why)
{
    if (!stream->queue) {
        stream->reader = SL_READER_STATE_SLEEPING;
        pthread_cond_wait(&stream->wake_reader, &stream->lock);
    } else {
        stream->reader = why->is_starving ? SL_READER_STATE_STARVING : SL_READER_STATE_WAITING;
        pthread_mutex_unlock(&stream->lock);
        collect(stream, why->timeout_s);
        pthread_mutex_lock(&stream->lock);
    }
    stream->reader = SL_READER_STATE_WORKING;
}

void *sl_reader_main(void *arg)
{
    sl_stream *stream = arg;
    pthread_mutex_lock(&stream->lock);
    while (!stream->stopping) {
        sl_read reads[SL_STREAM_BATCH];
        pause why;
        size_t n = refill(stream, reads, &why);
        if (n > 0) {
            stream->engine = sl_queue_engine(stream->queue);
            pthread_mutex_unlock(&stream->lock);
            sl_queue_add(stream->queue, reads, n);
            pthread_mutex_lock(&stream->lock);
        } else if (!stream->queue && (stream->run.bytes > 0 || stream->wants_queue)) {
            open_queue(stream);
        } else if (check_one(stream)) {
            bool is_flying = stream->flying_bytes > 0;
            pthread_mutex_unlock(&stream->lock);
            if (is_flying)
                collect(stream, 0);
            pthread_mutex_lock(&stream->lock);
        } else {
            sleep_until_work(stream, &why);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}
