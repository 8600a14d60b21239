/* Which tiles draw the attention: read off the states of a walk, which tell it anyway.
 *
 * A query's state (m, l) behind a tile says what share of the query's attention lies so far: l * 2^m / (L * 2^M), with
 * the total's (M, L) at the end of the layer; what the tile added is the difference to the tile before. So a walk only
 * notes (m, l) of a few queries behind each tile, and the exponentials, one for each, wait for the layer's end.
 * Segments need no care: m is the score itself, whichever state it stands in; only the first tile of a segment starts
 * from an empty one.
 *
 * Owns: nothing; memory is the caller's. Refuses: nothing. Thread rule: calls for different heads or tiles may run at
 * once; begin may not. */
#ifndef SL_HARVEST_H
#define SL_HARVEST_H

#include <string.h>

#include "kernel/kernel.h"

enum { SL_HARVEST_STEP = 4 }; /* lanes are noted by so many: what they are more than n_lanes is not looked at */

typedef struct sl_harvest {
    const sl_kernels *kernels;   /* borrowed */
    size_t max_tiles, max_lanes; /* room; max_lanes at most SL_LANES, and a multiple of SL_HARVEST_STEP */
    float *m, *l;                /* [n_kv_heads][max_tiles][max_lanes] the lanes' states behind each tile */
    size_t segment_tiles;        /* tiles that share a state: from a multiple of it on, it starts empty */
    /* the layer under way */
    size_t first_lane, n_lanes;  /* of the block that is looked at; n_lanes = 0: nothing is noted */
    size_t first_tile, end_tile; /* of the context, that are noted */
} sl_harvest;

/* Bytes of m and of l, each. */
static inline size_t sl_harvest_bytes(size_t n_kv_heads, size_t max_tiles, size_t max_lanes)
{
    return n_kv_heads * max_tiles * max_lanes * sizeof(float);
}

/* Lanes [first_lane, first_lane + n_lanes) of the block's states are looked at, over tiles [first_tile, end_tile) of
 * the context, as far as there is room; each is to be noted once, and the walk starts with first_tile. */
void sl_harvest_begin(sl_harvest *harvest, size_t first_lane, size_t n_lanes, size_t first_tile, size_t end_tile);

/* state: the segment's (kernel.h), with `tile` of the head just folded. Behind its l there are outputs: a step too far
 * is still inside. */
static inline void sl_harvest_note(const sl_harvest *harvest, size_t head, size_t tile, const uint8_t *state)
{
    if (tile >= harvest->end_tile)
        return;
    const float *from = (const float *)(const void *)state + harvest->first_lane;
    size_t at = (head * harvest->max_tiles + tile) * harvest->max_lanes;
    for (size_t i = 0; i < harvest->n_lanes; i += SL_HARVEST_STEP) {
        memcpy(harvest->m + at + i, from + i, SL_HARVEST_STEP * sizeof *from);
        memcpy(harvest->l + at + i, from + SL_LANES + i, SL_HARVEST_STEP * sizeof *from);
    }
}

/* masses [end_tile]: each tile's share of the head's attention, mean over the lanes: what is missing to 1 in sum fell
 * on tiles that were not noted; those before first_tile have 0. total: the block's, every key folded. */
void sl_harvest_masses(const sl_harvest *harvest, size_t head, const uint8_t *total, float *masses);

#endif
