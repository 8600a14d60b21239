/* Inside the stream: shared by stream.c (the caller's side) and reader.c (the thread's). */
#ifndef SL_STREAM_IMPL_H
#define SL_STREAM_IMPL_H

#include <pthread.h>

#include "store/ring.h"
#include "store/stream.h"

enum { SL_BATCH_ITEMS = 64 }; /* parts of one read, at most */

typedef struct sl_stream_layer {
    uint64_t block_off, group_bytes, part_bytes;
    uint64_t n_groups;      /* stored */
    uint64_t walk_groups;   /* when the current pass began */
    uint64_t open_checksum; /* of the open part's flash bytes */
    size_t piece_bytes;
    uint8_t *piece; /* [SL_SECTOR_BYTES] */
    bool has_grown; /* since the current pass began */
} sl_stream_layer;

struct sl_stream {
    sl_stream_options options;
    uint64_t segment_bytes;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t wake_reader, wake_caller;
    /* under lock from here on */
    bool stopping;
    sl_ring ring;
    sl_stream_layer *layers;
    uint8_t *pieces;
    uint64_t pass; /* current, or the last one when !is_active */
    bool is_active, will_follow;
    uint32_t walk_layer;
    uint64_t walk_part;
    sl_pos cursor; /* the reader's next part; its failed one when has_failed */
    bool has_failed;
    sl_err failure;
    sl_ring_item batch[SL_BATCH_ITEMS]; /* being read; `dropped` belongs to the lock, the rest to the reader */
    size_t n_batch;
    uint64_t bytes_read, bytes_visited, bytes_resident, n_passes;
    double wait_s, read_s;
};

static inline uint64_t sl_parts_of_groups(uint64_t groups)
{
    return (groups + SL_PART_TILES - 1) / SL_PART_TILES;
}

/* The part at the cursor or the next one behind it that must be read, the cursor moved there; false when none may be
 * read now. Fills in all but its room in the ring. */
bool sl_schedule_find(const sl_stream *stream, sl_pos *cursor, sl_ring_item *item);

/* arg: the stream. */
void *sl_reader_main(void *arg);

#endif
