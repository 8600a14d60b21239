#include "tok/merge.h"

#include <stdbool.h>

static const uint32_t none = SL_MERGE_NONE;

/* All arrays [n], by a symbol's position. */
typedef struct run {
    const sl_merging *m;
    uint32_t *next, *prev;
    uint32_t *ranks; /* of the merge with the right neighbour */
    uint32_t *heap;  /* [n_heap] positions; least (rank, position) first */
    uint32_t *at;    /* place of a position in the heap; `none`: not in it */
    uint32_t n_heap;
} run;

static bool is_before(const run *r, uint32_t a, uint32_t b)
{
    return r->ranks[a] != r->ranks[b] ? r->ranks[a] < r->ranks[b] : a < b;
}

static void heap_put(run *r, uint32_t place, uint32_t pos)
{
    r->heap[place] = pos;
    r->at[pos] = place;
}

/* Moves `pos`, which belongs somewhere around `place`, to where it belongs. */
static void heap_settle(run *r, uint32_t place, uint32_t pos)
{
    while (place > 0 && is_before(r, pos, r->heap[(place - 1) / 2])) {
        heap_put(r, place, r->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= r->n_heap)
            break;
        if (child + 1 < r->n_heap && is_before(r, r->heap[child + 1], r->heap[child]))
            child++;
        if (is_before(r, pos, r->heap[child]))
            break;
        heap_put(r, place, r->heap[child]);
        place = child;
    }
    heap_put(r, place, pos);
}

static void heap_remove(run *r, uint32_t pos)
{
    uint32_t place = r->at[pos];
    if (place == none)
        return;
    r->at[pos] = none;
    uint32_t last = r->heap[--r->n_heap];
    if (last != pos)
        heap_settle(r, place, last);
}

/* Looks up the merge of `pos` and its right neighbour anew. */
static void pair_update(run *r, uint32_t pos)
{
    uint32_t next = r->next[pos];
    heap_remove(r, pos);
    r->ranks[pos] = none;
    if (next != none)
        r->ranks[pos] = r->m->rank(r->m->arg, pos, next, r->next[next] == none ? r->m->n : r->next[next]);
    if (r->ranks[pos] != none)
        heap_settle(r, r->n_heap++, pos);
}

void sl_merge_run(const sl_merging *m)
{
    run r = {.m = m, .next = m->next, .prev = m->rest, .ranks = m->rest + m->n};
    r.heap = m->rest + 2 * (uint64_t)m->n;
    r.at = m->rest + 3 * (uint64_t)m->n;
    if (m->n == 0)
        return;
    for (uint32_t pos = 0, before = none; pos != none; before = pos, pos = r.next[pos]) {
        r.prev[pos] = before;
        r.at[pos] = none;
    }
    for (uint32_t pos = 0; pos != none; pos = r.next[pos])
        pair_update(&r, pos);
    while (r.n_heap > 0) {
        uint32_t pos = r.heap[0], gone = r.next[pos];
        if (m->join)
            m->join(m->arg, pos, r.ranks[pos]);
        heap_remove(&r, gone);
        r.next[pos] = r.next[gone];
        if (r.next[pos] != none)
            r.prev[r.next[pos]] = pos;
        pair_update(&r, pos);
        if (r.prev[pos] != none)
            pair_update(&r, r.prev[pos]);
    }
}
