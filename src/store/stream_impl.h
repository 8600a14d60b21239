/* Inside the stream: shared by stream.c (the caller's side), schedule.c (what to read) and reader.c (the thread). */
#ifndef SL_STREAM_IMPL_H
#define SL_STREAM_IMPL_H

#include <pthread.h>

#include "store/ring.h"
#include "store/stream.h"

enum {
    SL_STREAM_NOTES = 4,   /* one for each kind of fallback, and more */
    SL_STREAM_DEPTH = 128, /* reads in flight, at most */
    SL_STREAM_BATCH = 16   /* reads added by one call */
};

typedef struct sl_stream_layer {
    uint64_t group_bytes;
    uint64_t n_groups;      /* stored */
    uint64_t walk_groups;   /* when the current pass began */
    uint64_t open_checksum; /* of the open part's flash bytes */
    size_t piece_bytes;
    uint8_t *piece; /* [SL_SECTOR_BYTES] */
    bool has_grown; /* since the current pass began */
    uint64_t first_pass, first_part; /* where that pass's walk of the layer begins; fixed by who needs it first */
} sl_stream_layer;

/* Items that have their room, lie one behind another in file and ring, and have bytes that no read was asked for. */
typedef struct sl_stream_run {
    int32_t item; /* the first that has such bytes */
    int32_t last;
    uint8_t *data; /* of the first such byte */
    uint64_t off;
    size_t bytes;
    bool is_closed; /* nothing may be added */
} sl_stream_run;

/* A read in flight. */
typedef struct sl_stream_read {
    int32_t item; /* the first that it has bytes for; the others follow by run_next */
    uint8_t *data;
    size_t bytes;
    uint64_t off;
    double start_s; /* with a trace only */
} sl_stream_read;

/* A line of the reader's for the log, which the driving thread writes. */
typedef struct sl_stream_note {
    sl_log_level level;
    char text[480];
} sl_stream_note;

/* What the reader thread does, so that whoever changes something knows how to wake it. */
typedef enum sl_reader_state {
    SL_READER_STATE_WORKING,  /* looks at everything again before it sleeps */
    SL_READER_STATE_SLEEPING, /* on the condition variable */
    SL_READER_STATE_STARVING, /* waits for reads to end, but could start some if room or parts came */
    SL_READER_STATE_WAITING   /* waits for reads to end or for the time to come; nothing else matters to it */
} sl_reader_state;

struct sl_stream {
    sl_stream_options options;
    size_t read_bytes, in_flight_bytes;
    pthread_t thread;
    bool has_thread, has_queue_budget;
    sl_budget queue_budget; /* taken in advance: the queue is made at the first read */
    pthread_mutex_t lock;
    pthread_cond_t wake_reader, wake_caller;

    /* the reader thread's own */
    sl_stream_read reads[SL_STREAM_DEPTH];
    uint32_t free_reads[SL_STREAM_DEPTH];
    size_t n_free_reads;
    double credit_bytes, credit_at_s; /* of the rate: below 0, nothing is asked for */
    uint64_t rehearsed;               /* what hashing gave when nothing was read */

    /* under lock from here on */
    bool stopping, is_rehearsing;
    bool is_pausing;        /* somebody waits until the ring is empty */
    bool is_adopting;       /* a part is being copied to the memory where it stays */
    sl_err queue_failure; /* why it could not be made; SL_OK: it can, or was not tried */
    sl_stream_note notes[SL_STREAM_NOTES];
    size_t n_notes;
    bool wants_queue; /* there is a file now: reads will come */
    sl_reader_state reader;
    sl_queue *queue; /* set by the reader, once */
    sl_ring ring;
    sl_stream_run run;
    size_t flying_bytes;
    sl_stream_layer *layers;
    uint8_t *pieces;
    uint64_t pass; /* current, or the last one when !is_active */
    bool is_active, will_follow;
    bool grew_inside; /* some layer did in the pass that began last, before its end */
    bool is_growing;  /* layers get new tile groups, or are expected to: what lies behind an open part would be lost */
    uint32_t walk_layer;
    uint64_t walk_part;
    sl_pos cursor; /* the reader's next part; its failed one when has_failed */
    bool has_failed;
    sl_err failure;
    uint64_t bytes_read, bytes_visited, bytes_resident, n_passes;
    double wait_s, read_s;
    const char *engine;
};

static inline uint64_t sl_parts_of_groups(uint64_t groups)
{
    return (groups + SL_PART_TILES - 1) / SL_PART_TILES;
}

/* The part that the pass's walk of a layer begins with: of a sliding layer the first that a row behind what is stored
 * can see any of. What is stored later moves it in later passes only: parts are handed over in order. Under the lock.
 */
uint64_t sl_stream_first_part(sl_stream *stream, uint64_t pass, uint32_t layer);

/* Takes back everything planned, read or ready at or behind `pos`. Under the lock. */
void sl_stream_rewind(sl_stream *stream, sl_pos pos);

/* Why no more was planned. */
typedef enum sl_schedule_end {
    SL_SCHEDULE_END_ENOUGH, /* two reads' worth waits to be asked for */
    SL_SCHEDULE_END_BREAK,  /* what comes next does not lie behind the run */
    SL_SCHEDULE_END_ROOM,   /* the ring has none */
    SL_SCHEDULE_END_PARTS   /* there is nothing that may be read now */
} sl_schedule_end;

/* Gives the next parts of the walk their room, as far as reads can be made of them. Under the lock. */
sl_schedule_end sl_schedule_plan(sl_stream *stream);
/* Bytes of the next read, 0: none now; cut makes it. */
size_t sl_schedule_next_bytes(const sl_stream *stream, sl_schedule_end end);
void sl_schedule_cut(sl_stream *stream, size_t bytes, sl_stream_read *read);

/* Writes what the reader had to say. Outside the lock, by the driving thread: the log is the caller's. */
void sl_stream_tell(sl_stream *stream);

/* arg: the stream. */
void *sl_reader_main(void *arg);

#endif
