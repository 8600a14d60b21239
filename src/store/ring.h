/* The ring: slots that receive parts, and the queue of those that are ready.
 *
 * Owns: one aligned region cut into slots. Invariants: items leave the queue in the order of their positions; a slot
 * is filled again only when no item in it is planned, queued or held.
 * Thread rule: none of its own; the stream calls everything under its lock. */
#ifndef SL_RING_H
#define SL_RING_H

#include <stdbool.h>

#include "base/mem.h"

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

typedef struct sl_ring_item {
    sl_pos pos;
    uint32_t n_groups;
    uint64_t off;       /* in the file */
    size_t flash_bytes; /* whole sectors read from there; the piece that waits in memory comes behind */
    size_t bytes;       /* room taken in the slot: whole sectors */
    uint64_t checksum;  /* of the flash bytes */
    uint8_t *data;      /* in the slot */
    int32_t slot;
    bool dropped; /* nobody wants it any more */
} sl_ring_item;

typedef struct sl_ring_slot {
    size_t used_bytes;
    size_t n_live; /* items planned, queued or held */
} sl_ring_slot;

typedef struct sl_ring {
    sl_budget *budget;
    uint8_t *memory; /* [n_slots][slot_bytes] */
    size_t n_slots, slot_bytes;
    sl_ring_slot *slots;
    size_t fill_slot; /* being filled */
    sl_ring_item *queue;
    size_t queue_capacity, queue_head, n_queued, n_planned;
} sl_ring;

/* slot_bytes: a multiple of a sector. min_item_bytes bounds the number of items that fit. */
sl_status sl_ring_init(sl_ring *ring, size_t n_slots, size_t slot_bytes, size_t min_item_bytes, sl_budget *budget,
                       sl_err *err) SL_CHECK;
void sl_ring_deinit(sl_ring *ring);

/* Finds room for an item and counts it as planned. With `behind`, only directly behind that item. False: none now. */
bool sl_ring_plan(sl_ring *ring, sl_ring_item *item, const sl_ring_item *behind);
/* A planned item becomes ready, or is given up. */
void sl_ring_push(sl_ring *ring, const sl_ring_item *item);
void sl_ring_cancel(sl_ring *ring, const sl_ring_item *item);
/* NULL when nothing is ready. */
const sl_ring_item *sl_ring_head(const sl_ring *ring);
/* Takes the head; its slot stays occupied until released. */
sl_ring_item sl_ring_pop(sl_ring *ring);
void sl_ring_release(sl_ring *ring, int32_t slot);
/* Forgets the ready items at or behind `pos`. */
void sl_ring_drop_from(sl_ring *ring, sl_pos pos);

#endif
