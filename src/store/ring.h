/* The ring: one region of memory that parts are read into, one behind another, round and round, and the queue of those
 * that nobody has taken yet.
 *
 * Owns: the region and a fixed table of items. Invariants: items enter and leave the queue in the order of their
 * positions; the room of an item is given to another only when it is not planned, not being filled, not ready and not
 * held. An item lies in one piece. Freed room is reused in order of place; a part that is held for long is passed by.
 *
 *   free -> planned (place) -> whole (all bytes there) -> checking -> ready -> held (pop) -> free (release)
 *   before it is held, any of these -> free, or while its room is in use: dropped -> free   (drop_last, sweep)
 *
 * Thread rule: none of its own; the stream calls everything under its lock. */
#ifndef SL_RING_H
#define SL_RING_H

#include <stdbool.h>

#include "base/mem.h"

enum {
    SL_RING_ITEMS = 1024, /* at once */
    SL_RING_NONE = -1
};

/* A place in the walk: passes count from 1. */
typedef struct sl_pos {
    uint64_t pass;
    uint32_t layer;
    uint64_t part;
} sl_pos;

static inline bool sl_pos_is_before(sl_pos a, sl_pos b)
{
    if (a.pass != b.pass)
        return a.pass < b.pass;
    if (a.layer != b.layer)
        return a.layer < b.layer;
    return a.part < b.part;
}

static inline bool sl_pos_is_same(sl_pos a, sl_pos b)
{
    return a.pass == b.pass && a.layer == b.layer && a.part == b.part;
}

typedef enum sl_ring_state {
    SL_RING_STATE_FREE,
    SL_RING_STATE_PLANNED,
    SL_RING_STATE_WHOLE,
    SL_RING_STATE_CHECKING, /* the reader looks at its bytes, outside the lock */
    SL_RING_STATE_READY,
    SL_RING_STATE_HELD,
    SL_RING_STATE_DROPPED /* nobody wants it any more, but reads into it or the reader's look at it have not ended */
} sl_ring_state;

typedef struct sl_ring_item {
    sl_pos pos;
    uint32_t n_groups;
    uint64_t off;       /* in the file */
    size_t flash_bytes; /* whole sectors read from there; the piece that waits in memory comes behind */
    size_t bytes;       /* room taken: whole sectors */
    uint64_t checksum;  /* of the flash bytes */
    uint8_t *data;      /* its room */
    size_t unasked_bytes, flying_bytes; /* of flash_bytes: no read started yet; read not ended yet */
    sl_ring_state state;
    int32_t run_next;       /* the item behind it in file and ring, when one read may cover both */
    int32_t before, behind; /* neighbours in memory */
} sl_ring_item;

typedef struct sl_ring {
    sl_budget *budget;
    uint8_t *memory;
    size_t bytes, fence_bytes;
    sl_ring_item *items; /* [SL_RING_ITEMS + 1]; the last stands for the region's two ends */
    int32_t free_items;  /* linked by `behind` */
    int32_t fill_item;   /* the next item goes behind this one, */
    size_t fill_off;     /* from here on */
    int32_t *queue;      /* [SL_RING_ITEMS] planned to ready, a circle */
    size_t queue_head, n_queued;
    size_t n_ready; /* the queue's first ones known to be ready */
    size_t n_whole;
} sl_ring;

/* bytes: a multiple of a sector. No item crosses a multiple of fence_bytes; bytes is one, and an item is no larger. */
sl_status sl_ring_init(sl_ring *ring, size_t bytes, size_t fence_bytes, sl_budget *budget, sl_err *err) SL_CHECK;
void sl_ring_deinit(sl_ring *ring);
uint64_t sl_ring_table_bytes(void);

/* Takes room for an item, a copy of *item, as the queue's last, planned; behind: directly behind that item, the last
 * one placed. SL_RING_NONE: no room now. */
int32_t sl_ring_place(sl_ring *ring, const sl_ring_item *item, int32_t behind);
bool sl_ring_has_room(const sl_ring *ring, size_t bytes);
/* Whether `bytes` could ever lie directly behind the item. */
bool sl_ring_can_follow(const sl_ring *ring, int32_t behind, size_t bytes);

/* Whether nobody has any of it; whether all that is had is held by who took it. */
bool sl_ring_is_empty(const sl_ring *ring);
bool sl_ring_is_held_only(const sl_ring *ring);

/* Ends of the queue; SL_RING_NONE: it is empty. */
int32_t sl_ring_first(const sl_ring *ring);
int32_t sl_ring_last(const sl_ring *ring);
/* The first in the queue that is whole. */
int32_t sl_ring_find_whole(sl_ring *ring);
/* All bytes of a planned item are there. */
void sl_ring_set_whole(sl_ring *ring, int32_t i);
/* The whole item goes to the reader; from there set the state to ready, or drop it and sweep. */
void sl_ring_set_checking(sl_ring *ring, int32_t i);

/* Takes the first out of the queue: ready before, held from now on. */
void sl_ring_pop(sl_ring *ring);
void sl_ring_release(sl_ring *ring, int32_t i);
/* Nobody wants the queue's last any more. */
void sl_ring_drop_last(sl_ring *ring);
/* Frees a dropped item whose reads have ended, which the reader does not look at. */
void sl_ring_sweep(sl_ring *ring, int32_t i);

#endif
