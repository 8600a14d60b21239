/* The walk over stored parts: the schedule, the reader thread that runs ahead of it, and the hand-over.
 *
 * Owns: the ring, the reader thread, what both sides know about each layer. Refuses: to hand over a part whose checksum
 * is not the one written; to read what can still change.
 *
 *   caller:  begin -> next/release ... -> end                       (grow: inside a pass or between two)
 *   reader:  plan (room in the ring) -> many reads in flight -> verify, in any order -> hand over, in order -> ...
 *
 * The reader's cursor is a position of the walk: the current pass, or the next one when that was announced. Of the next
 * pass it takes closed parts at any time; a layer's open part and what follows after the layer has grown in this pass,
 * or at once where nothing is growing (schedule.c). A layer that grows takes back what was read ahead beyond its closed
 * parts. What is taken back while it is being read keeps its room until the read has ended.
 *
 * Thread rule: one thread drives; release from any. */
#ifndef SL_STREAM_H
#define SL_STREAM_H

#include "store/kv.h"
#include "store/kvfile.h"
#include "store/parts.h"

typedef struct sl_stream sl_stream;

typedef struct sl_stream_options {
    const sl_geom *geom; /* borrowed, like the next two */
    sl_parts *parts;
    const sl_kvfile *file;
    size_t n_slots, slot_bytes; /* the ring in all; one part less than slots may be held while another is asked for */
    size_t read_bytes, in_flight_bytes;
    uint64_t read_rate; /* 0: all */
    sl_io_engine io_engine;
    bool has_ring; /* false: every part is resident, no ring and no thread */
    sl_trace *trace;
    sl_log log;              /* called by the driving thread */
    bool (*stop)(void *arg); /* asked while a part is long in coming; NULL: never */
    void *arg;
    sl_budget *budget;
} sl_stream_options;

sl_status sl_stream_create(const sl_stream_options *options, sl_stream **out, sl_err *err) SL_CHECK;
void sl_stream_destroy(sl_stream *stream);

/* Memory without the ring. */
uint64_t sl_stream_table_bytes(const sl_geom *geom);

sl_status sl_stream_begin(sl_stream *stream, bool will_follow, sl_err *err) SL_CHECK;
sl_status sl_stream_next(sl_stream *stream, uint32_t layer, sl_kv_part *part, bool *found, sl_err *err) SL_CHECK;
bool sl_stream_is_ready(sl_stream *stream, uint32_t layer); /* as sl_kv_is_ready */
void sl_stream_release(sl_stream *stream, const sl_kv_part *part);
sl_status sl_stream_end(sl_stream *stream, sl_err *err) SL_CHECK;

/* Before a layer gets new full tile groups: read-ahead that would miss them, or whose parts lose their slots to new
 * ones, is taken back. SL_USAGE when the pass has parts of the layer left to walk. */
sl_status sl_stream_grow_begin(sl_stream *stream, uint32_t layer, uint64_t n_new_groups, sl_err *err) SL_CHECK;
/* Inside growing, before the first bytes of a part: the slot becomes its own, and what memory it has holds them. */
void sl_stream_take_turn(sl_stream *stream, uint32_t layer, uint64_t part);

/* What a layer holds after growing. */
typedef struct sl_growth {
    uint64_t n_groups;
    const uint8_t *piece; /* of the open part: bytes behind its last whole sector, copied */
    size_t piece_bytes;
    uint64_t open_checksum;  /* of the open part's bytes on flash */
    uint64_t resident_bytes; /* newly held */
} sl_growth;
void sl_stream_grow_end(sl_stream *stream, uint32_t layer, const sl_growth *growth);

/* Between passes: what was read ahead is taken back, and the reader has let go of it when this returns. The ring's
 * memory is the caller's until the next pass begins; NULL without a ring. SL_USAGE: a pass is under way, or somebody
 * holds a part. */
sl_status sl_stream_pause(sl_stream *stream, uint8_t **room, sl_err *err) SL_CHECK;
/* After sl_stream_pause: the layer has its first n_groups from now on, which are whole parts. */
void sl_stream_cut(sl_stream *stream, uint32_t layer, uint64_t n_groups);
/* Likewise: the slot of a part that the file below has is the part's again. */
void sl_stream_return(sl_stream *stream, uint32_t layer, uint64_t part, uint64_t checksum);
/* Of the open part's bytes on flash. */
uint64_t sl_stream_open_checksum(const sl_stream *stream, uint32_t layer);

uint64_t sl_stream_groups(const sl_stream *stream, uint32_t layer);
/* The waiting piece; borrowed until the layer grows. */
const uint8_t *sl_stream_piece(const sl_stream *stream, uint32_t layer, size_t *bytes);

/* sl_parts_raise under the lock. */
sl_status sl_stream_raise(sl_stream *stream, uint64_t resident_bytes, sl_err *err) SL_CHECK;

/* sl_kv_set_rehearsal */
sl_status sl_stream_rehearse(sl_stream *stream, bool on, sl_err *err) SL_CHECK;

void sl_stream_fill_ring(sl_stream *stream, const uint8_t *pattern, size_t bytes); /* as sl_kv_fill_ring */

/* Fills in what the stream counts. */
void sl_stream_get_stats(const sl_stream *stream, sl_kv_stats *out);

#endif
