/* Inside the hot set: shared by hot.c (memory, what comes and goes) and hot_plan.c (what is wanted). */
#ifndef SL_HOT_IMPL_H
#define SL_HOT_IMPL_H

#include "attn/hot.h"

/* A tile that the next pass is to bring, and the slot that it goes to. */
typedef struct sl_hot_missing {
    int32_t tile, slot;
} sl_hot_missing;

/* One layer's KV head. */
typedef struct sl_hot_head {
    uint8_t *data;           /* [n_slots] tiles */
    int32_t *tiles;          /* [n_slots] which tile of the context a slot holds; -1: none */
    sl_hot_missing *missing; /* [n_missing], ascending; found again as long as their slot holds another */
    size_t n_missing, n_wanted;
    float *means; /* [max_tiles] each tile's share of attention, fading from pass to pass */
} sl_hot_head;

/* Of one layer. */
typedef struct sl_hot_looks {
    size_t n_rows;     /* of all passes */
    bool is_new;       /* nobody looked since the text became another */
    bool is_unplanned; /* somebody has since it was planned */
} sl_hot_looks;

struct sl_hot {
    sl_hot_options options;
    size_t n_slots, max_tiles;
    size_t n_all_heads, max_heads; /* of all layers; of a layer */
    size_t max_lanes;
    size_t *n_tiles;     /* [n_layers] full tiles of the context */
    sl_hot_head *heads;  /* [n_all_heads] layer after layer */
    size_t *first_head;  /* [n_layers] */
    sl_hot_looks *looks; /* [n_layers] */
    uint8_t *table;      /* what the four lie in */
    size_t map_bytes;
    uint8_t *map;
    float *scratch; /* [threads][2 * max_tiles] */
    uint8_t *marks; /* [threads][max_tiles] */
    /* the pass's layer */
    uint32_t layer;
    sl_harvest harvest;
};

static inline sl_hot_head *sl_hot_head_of(const sl_hot *hot, uint32_t layer, size_t head)
{
    return &hot->heads[hot->first_head[layer] + head];
}

/* Tiles that have just come, in place of a next pass; groups: NULL where none have. */
typedef struct sl_hot_new {
    const uint8_t *groups;
    size_t first_tile;
} sl_hot_new;

/* Fixes what a head wants of the layer's n_tiles, copies what is there to be copied, lists what is missing. */
void sl_hot_plan(sl_hot *hot, uint32_t layer, size_t head, size_t worker, const sl_hot_new *fresh);

#endif
