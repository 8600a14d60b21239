#include "store/ring.h"

#include <assert.h>
#include <string.h>

enum { ENDS = SL_RING_ITEMS }; /* the item without bytes that closes the circle of neighbours */

uint64_t sl_ring_table_bytes(void)
{
    enum { HEAP_HEADS = 2 * 32 };
    return (SL_RING_ITEMS + 1) * sizeof(sl_ring_item) + SL_RING_ITEMS * sizeof(int32_t) + HEAP_HEADS;
}

sl_status sl_ring_init(sl_ring *ring, size_t bytes, size_t fence_bytes, sl_budget *budget, sl_err *err)
{
    assert(bytes % fence_bytes == 0);
    memset(ring, 0, sizeof *ring);
    ring->budget = budget;
    ring->bytes = bytes;
    ring->fence_bytes = fence_bytes;
    sl_status status = sl_mem_map(budget, bytes, "ring", &ring->memory, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, SL_RING_ITEMS + 1, sizeof *ring->items, "ring", &ring->items, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, SL_RING_ITEMS, sizeof *ring->queue, "ring", &ring->queue, err);
    if (status != SL_OK) {
        sl_ring_deinit(ring);
        return status;
    }
    ring->free_items = SL_RING_NONE;
    for (int32_t i = SL_RING_ITEMS - 1; i >= 0; i--) {
        ring->items[i].behind = ring->free_items;
        ring->free_items = i;
    }
    ring->items[ENDS] = (sl_ring_item){.data = ring->memory, .before = ENDS, .behind = ENDS};
    ring->fill_item = ENDS;
    return SL_OK;
}

void sl_ring_deinit(sl_ring *ring)
{
    sl_mem_free(ring->budget, ring->queue);
    sl_mem_free(ring->budget, ring->items);
    sl_mem_unmap(ring->budget, ring->memory, ring->bytes);
    memset(ring, 0, sizeof *ring);
}

static size_t end_off(const sl_ring *ring, int32_t i)
{
    return (size_t)(ring->items[i].data - ring->memory) + ring->items[i].bytes;
}

/* Where the free room behind an item ends. */
static size_t gap_end_off(const sl_ring *ring, int32_t i)
{
    int32_t behind = ring->items[i].behind;
    return behind == ENDS ? ring->bytes : (size_t)(ring->items[behind].data - ring->memory);
}

static bool crosses_fence(const sl_ring *ring, size_t off, size_t bytes)
{
    return off / ring->fence_bytes != (off + bytes - 1) / ring->fence_bytes;
}

/* The next room in turn. Held items are passed by: nobody knows for how long. An item that waits in the queue is not:
 * its turn comes before the new one's. Comes round to the room before fill_off at last. */
static bool find_room(const sl_ring *ring, size_t bytes, int32_t *before, size_t *off)
{
    *before = ring->fill_item;
    *off = ring->fill_off;
    for (bool is_round = false;;) {
        if (crosses_fence(ring, *off, bytes))
            *off = (*off / ring->fence_bytes + 1) * ring->fence_bytes;
        size_t end = gap_end_off(ring, *before);
        if (*off <= end && end - *off >= bytes)
            return true;
        if (is_round && *before == ring->fill_item)
            return false;
        int32_t next = ring->items[*before].behind;
        if (next != ENDS && ring->items[next].state != SL_RING_STATE_HELD)
            return false;
        *before = next;
        *off = end_off(ring, next);
        is_round = true;
    }
}

bool sl_ring_has_room(const sl_ring *ring, size_t bytes)
{
    int32_t before;
    size_t off;
    return ring->free_items != SL_RING_NONE && find_room(ring, bytes, &before, &off);
}

bool sl_ring_can_follow(const sl_ring *ring, int32_t behind, size_t bytes)
{
    size_t off = end_off(ring, behind);
    return off < ring->bytes && ring->bytes - off >= bytes && !crosses_fence(ring, off, bytes);
}

bool sl_ring_is_empty(const sl_ring *ring)
{
    return ring->items[ENDS].behind == ENDS;
}

bool sl_ring_is_held_only(const sl_ring *ring)
{
    for (int32_t i = ring->items[ENDS].behind; i != ENDS; i = ring->items[i].behind)
        if (ring->items[i].state != SL_RING_STATE_HELD)
            return false;
    return true;
}

static void link_behind(sl_ring *ring, int32_t i, int32_t before)
{
    ring->items[i].before = before;
    ring->items[i].behind = ring->items[before].behind;
    ring->items[ring->items[before].behind].before = i;
    ring->items[before].behind = i;
}

int32_t sl_ring_place(sl_ring *ring, const sl_ring_item *item, int32_t behind)
{
    assert(item->bytes > 0 && item->bytes <= ring->fence_bytes);
    int32_t i = ring->free_items, before;
    size_t off;
    if (i == SL_RING_NONE || !find_room(ring, item->bytes, &before, &off))
        return SL_RING_NONE;
    if (behind != SL_RING_NONE && (before != behind || off != end_off(ring, behind)))
        return SL_RING_NONE;
    ring->free_items = ring->items[i].behind;
    ring->items[i] = *item;
    ring->items[i].data = ring->memory + off;
    ring->items[i].state = SL_RING_STATE_PLANNED;
    ring->items[i].run_next = SL_RING_NONE;
    link_behind(ring, i, before);
    ring->fill_item = i;
    ring->fill_off = off + item->bytes;
    ring->queue[(ring->queue_head + ring->n_queued++) % SL_RING_ITEMS] = i;
    return i;
}

static void free_item(sl_ring *ring, int32_t i)
{
    sl_ring_item *item = &ring->items[i];
    item->state = SL_RING_STATE_FREE;
    ring->items[item->before].behind = item->behind;
    ring->items[item->behind].before = item->before;
    if (ring->fill_item == i) {
        ring->fill_item = item->before;
        ring->fill_off = (size_t)(item->data - ring->memory);
    }
    if (ring->items[ENDS].behind == ENDS) {
        /* Nothing left: from the start, where the memory is warm. */
        ring->fill_item = ENDS;
        ring->fill_off = 0;
    }
    item->behind = ring->free_items;
    ring->free_items = i;
}

int32_t sl_ring_first(const sl_ring *ring)
{
    return ring->n_queued > 0 ? ring->queue[ring->queue_head] : SL_RING_NONE;
}

int32_t sl_ring_last(const sl_ring *ring)
{
    return ring->n_queued > 0 ? ring->queue[(ring->queue_head + ring->n_queued - 1) % SL_RING_ITEMS] : SL_RING_NONE;
}

int32_t sl_ring_find_whole(sl_ring *ring)
{
    if (ring->n_whole == 0)
        return SL_RING_NONE;
    for (size_t n = ring->n_ready; n < ring->n_queued; n++) {
        int32_t i = ring->queue[(ring->queue_head + n) % SL_RING_ITEMS];
        if (ring->items[i].state == SL_RING_STATE_WHOLE)
            return i;
        if (n == ring->n_ready && ring->items[i].state == SL_RING_STATE_READY)
            ring->n_ready++;
    }
    return SL_RING_NONE;
}

void sl_ring_set_whole(sl_ring *ring, int32_t i)
{
    assert(ring->items[i].state == SL_RING_STATE_PLANNED && ring->items[i].unasked_bytes == 0 &&
           ring->items[i].flying_bytes == 0);
    ring->items[i].state = SL_RING_STATE_WHOLE;
    ring->n_whole++;
}

void sl_ring_set_checking(sl_ring *ring, int32_t i)
{
    assert(ring->items[i].state == SL_RING_STATE_WHOLE);
    ring->items[i].state = SL_RING_STATE_CHECKING;
    ring->n_whole--;
}

void sl_ring_pop(sl_ring *ring)
{
    int32_t i = sl_ring_first(ring);
    assert(i != SL_RING_NONE && ring->items[i].state == SL_RING_STATE_READY);
    ring->items[i].state = SL_RING_STATE_HELD;
    ring->queue_head = (ring->queue_head + 1) % SL_RING_ITEMS;
    ring->n_queued--;
    ring->n_ready -= ring->n_ready > 0;
}

void sl_ring_release(sl_ring *ring, int32_t i)
{
    assert(i >= 0 && i < SL_RING_ITEMS && ring->items[i].state == SL_RING_STATE_HELD);
    free_item(ring, i);
}

void sl_ring_drop_last(sl_ring *ring)
{
    int32_t i = sl_ring_last(ring);
    assert(i != SL_RING_NONE);
    sl_ring_item *item = &ring->items[i];
    ring->n_queued--;
    if (ring->n_ready > ring->n_queued)
        ring->n_ready = ring->n_queued;
    ring->n_whole -= item->state == SL_RING_STATE_WHOLE;
    if (item->state == SL_RING_STATE_CHECKING || item->flying_bytes > 0)
        item->state = SL_RING_STATE_DROPPED;
    else
        free_item(ring, i);
}

void sl_ring_sweep(sl_ring *ring, int32_t i)
{
    if (ring->items[i].state == SL_RING_STATE_DROPPED && ring->items[i].flying_bytes == 0)
        free_item(ring, i);
}
