#include "store/ring.h"

#include <assert.h>
#include <string.h>

sl_status sl_ring_init(sl_ring *ring, size_t n_slots, size_t slot_bytes, size_t min_item_bytes, sl_budget *budget,
                       sl_err *err)
{
    enum { MOST_ITEMS = 4096 }; /* of a slot: keeps the queue small when parts are tiny */
    memset(ring, 0, sizeof *ring);
    ring->budget = budget;
    ring->n_slots = n_slots;
    ring->slot_bytes = slot_bytes;
    size_t in_slot = slot_bytes / min_item_bytes;
    ring->queue_capacity = n_slots * (in_slot < MOST_ITEMS ? in_slot + 1 : (size_t)MOST_ITEMS);
    sl_status status = sl_mem_map(budget, n_slots * slot_bytes, "ring", &ring->memory, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n_slots, sizeof *ring->slots, "ring", &ring->slots, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, ring->queue_capacity, sizeof *ring->queue, "ring", &ring->queue, err);
    if (status != SL_OK)
        sl_ring_deinit(ring);
    return status;
}

void sl_ring_deinit(sl_ring *ring)
{
    sl_mem_free(ring->budget, ring->queue);
    sl_mem_free(ring->budget, ring->slots);
    sl_mem_unmap(ring->budget, ring->memory, ring->n_slots * ring->slot_bytes);
    memset(ring, 0, sizeof *ring);
}

/* A slot with nothing live in it, the next in turn if possible: parts may be released in any order. NULL: none. */
static sl_ring_slot *find_free_slot(sl_ring *ring)
{
    for (size_t i = 1; i < ring->n_slots; i++) {
        size_t idx = (ring->fill_slot + i) % ring->n_slots;
        if (ring->slots[idx].n_live == 0) {
            ring->fill_slot = idx;
            ring->slots[idx].used_bytes = 0;
            return &ring->slots[idx];
        }
    }
    return NULL;
}

bool sl_ring_plan(sl_ring *ring, sl_ring_item *item, const sl_ring_item *behind)
{
    assert(item->bytes <= ring->slot_bytes);
    if (ring->n_queued + ring->n_planned == ring->queue_capacity)
        return false;
    sl_ring_slot *slot = &ring->slots[ring->fill_slot];
    if (slot->n_live == 0)
        slot->used_bytes = 0;
    if (item->bytes > ring->slot_bytes - slot->used_bytes) {
        slot = behind ? NULL : find_free_slot(ring);
        if (!slot)
            return false;
    }
    item->slot = (int32_t)ring->fill_slot;
    item->data = ring->memory + ring->fill_slot * ring->slot_bytes + slot->used_bytes;
    item->dropped = false;
    assert(!behind || item->data == behind->data + behind->bytes);
    slot->used_bytes += item->bytes;
    slot->n_live++;
    ring->n_planned++;
    return true;
}

void sl_ring_push(sl_ring *ring, const sl_ring_item *item)
{
    assert(ring->n_planned > 0 && ring->n_queued < ring->queue_capacity);
    ring->n_planned--;
    ring->queue[(ring->queue_head + ring->n_queued) % ring->queue_capacity] = *item;
    ring->n_queued++;
}

void sl_ring_cancel(sl_ring *ring, const sl_ring_item *item)
{
    assert(ring->n_planned > 0);
    ring->n_planned--;
    sl_ring_release(ring, item->slot);
}

const sl_ring_item *sl_ring_head(const sl_ring *ring)
{
    return ring->n_queued > 0 ? &ring->queue[ring->queue_head] : NULL;
}

sl_ring_item sl_ring_pop(sl_ring *ring)
{
    assert(ring->n_queued > 0);
    sl_ring_item item = ring->queue[ring->queue_head];
    ring->queue_head = (ring->queue_head + 1) % ring->queue_capacity;
    ring->n_queued--;
    return item;
}

void sl_ring_release(sl_ring *ring, int32_t slot)
{
    assert(slot >= 0 && (size_t)slot < ring->n_slots && ring->slots[slot].n_live > 0);
    ring->slots[slot].n_live--;
}

void sl_ring_drop_from(sl_ring *ring, sl_pos pos)
{
    while (ring->n_queued > 0) {
        size_t last = (ring->queue_head + ring->n_queued - 1) % ring->queue_capacity;
        if (sl_pos_is_before(ring->queue[last].pos, pos))
            return;
        sl_ring_release(ring, ring->queue[last].slot);
        ring->n_queued--;
    }
}
