/* The hot set: of each layer and KV head, a few tiles of the context in memory, for a draft to attend to: the first,
 * the most recent, and those that drew the most attention in the passes so far.
 *
 *   a pass  sl_hot_begin     a layer's walk begins: which queries are looked at, if any
 *           sl_hot_take      a part is in memory: tiles that are wanted and missing are copied from it
 *           sl_harvest_note  a tile was folded: the states of those queries (harvest.h)
 *           sl_hot_rank      the walk is over: each tile's share of attention goes into its running mean
 *   then    sl_hot_append    tokens joined the layer: where it was looked at, or has a tile more, what is wanted is
 *                            fixed anew; new tiles that are come in at once, the others when the next pass hands them
 *                            over
 *
 * Looking costs the same whatever the pass has rows, and says more the more there are. So of every four rows at least
 * one is looked at: passes of four and more all are, of single rows every fourth, in each layer another.
 *
 * Nothing is read from flash for it, and nothing that a pass computes depends on it. What it holds is a function of the
 * text and of what the passes were, never of time or threads.
 *
 * Owns: the tiles' copies, every tile's running mean, a pass's notes. Refuses: nothing. Thread rule: one thread drives
 * it; take, note and rank may be called at once for different heads, take and note for different segments. */
#ifndef SL_HOT_H
#define SL_HOT_H

#include "attn/harvest.h"
#include "base/mem.h"
#include "base/thread.h"
#include "store/geom.h"

typedef struct sl_hot sl_hot;

/* What it is made of; all but the first are for measuring. Random: what the first and the recent tiles leave room for
 * is filled by others without regard to attention. */
typedef enum sl_hot_policy {
    SL_HOT_HARVESTED,
    SL_HOT_RECENT, /* alone */
    SL_HOT_FIRST_AND_RECENT,
    SL_HOT_RANDOM
} sl_hot_policy;

typedef struct sl_hot_options {
    const sl_kernels *kernels; /* borrowed, as all pointers */
    sl_pool *pool;
    sl_budget *budget;
    sl_geom geom;
    uint32_t n_heads;    /* query heads of every layer */
    uint64_t max_tokens; /* of the context: sizes the means and notes */
    size_t hot_tokens;   /* kept of each layer and KV head: rounded up to tiles, two at least */
    sl_hot_policy policy;
} sl_hot_options;

sl_status sl_hot_create(const sl_hot_options *options, sl_hot **out, sl_err *err) SL_CHECK;
void sl_hot_destroy(sl_hot *hot);
uint64_t sl_hot_bytes(const sl_hot_options *options); /* for the plan */

/* Rows of a layer's pass, as attention divides them: queries of a KV head are numbered row by row, 16 to a block. */
typedef struct sl_hot_rows {
    uint32_t layer;
    size_t first_tile;  /* that the walk begins with */
    uint64_t first_pos; /* of the rows */
    size_t n_rows, group;
    bool is_burst; /* rows behind the first may never become text: the first ones are looked at; else the last ones */
} sl_hot_rows;

/* Returns the notes to be taken, of one query block, until the next layer begins; NULL: this walk is not looked at. */
const sl_harvest *sl_hot_begin(sl_hot *hot, const sl_hot_rows *rows, size_t *block);
/* n tiles of a head from first_tile on, `stride` bytes apart. */
void sl_hot_take(sl_hot *hot, size_t head, size_t first_tile, size_t n, const uint8_t *tiles, size_t stride);
/* total: the noted block's, every key folded. */
void sl_hot_rank(sl_hot *hot, size_t worker, size_t head, const uint8_t *total);

/* The layer has n_new tokens more, from first_pos on: as sl_kv_append, whose groups these are. */
void sl_hot_append(sl_hot *hot, uint32_t layer, uint64_t first_pos, const uint8_t *groups, uint64_t n_new);
/* The context has n_tokens: another's, cut, or read from a file. What lay beyond is forgotten. */
void sl_hot_settle(sl_hot *hot, uint64_t n_tokens);

/* Tiles that are wanted and in memory, tiles wanted; of all layers and heads. */
void sl_hot_count(const sl_hot *hot, size_t *present, size_t *wanted);

/* One head's tiles in memory, for who attends to them: tile i of [n] is the context's tiles[i], at
 * data + i * tile_bytes; -1: none there. */
typedef struct sl_hot_view {
    size_t n;
    const int32_t *tiles;
    const uint8_t *data;
} sl_hot_view;
sl_hot_view sl_hot_get(const sl_hot *hot, uint32_t layer, size_t head);

#endif
