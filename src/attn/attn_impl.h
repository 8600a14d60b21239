/* Inside attention: shared by attn.c (the path), attn_item.c (memory, work items) and attn_own.c (own tiles). */
#ifndef SL_ATTN_IMPL_H
#define SL_ATTN_IMPL_H

#include "attn/attn.h"

enum {
    SL_ATTN_MAX_CHUNK = 16, /* query blocks per item: a tile is widened once for so many */
    SL_ATTN_MAX_SIDE = 16,  /* segments side by side */
    SL_ATTN_MAX_HELD = SL_ATTN_MAX_SIDE * SL_SEGMENT_PARTS /* parts per run of the pool */
};

struct sl_attn {
    sl_attn_options options;
    size_t qblock_bytes, state_bytes, scratch_bytes, group_bytes; /* the largest over the layers */
    size_t map_bytes;
    /* [max_blocks] query blocks, then as many segment states, totals, then [spare_blocks] segment states of a split
     * pass's further segments, then scratch for each worker, then the tiles of a tree's branches */
    uint8_t *map;
    uint8_t *qblocks, *segments, *totals, *spare, *scratch, *branch_tiles;
    size_t max_blocks, spare_blocks;

    /* the layer being computed */
    const sl_attn_rows *rows;
    size_t head_dim, n_kv_heads, group; /* group: queries that share a KV head, per row */
    uint64_t span;                      /* of a sliding layer; 0: every row sees all before it */
    size_t n_blocks;                    /* per KV head */
    size_t chunk, n_chunks;             /* per KV head */
    size_t together;                    /* KV heads per item; above 1 only where n_blocks is 1 */
    size_t side;                        /* segments side by side; 1: the pass is not split */
    sl_kv_part held[SL_ATTN_MAX_HELD];  /* taken from the store, in order, not folded yet */
    size_t n_held, n_ring_held;
    const sl_harvest *notes; /* that are taken of the walk; NULL: none */
    size_t noted_block;      /* of each KV head, whose states they are of */
};

/* A work item: blocks [first, first + n) of one KV head, or the only block of each of several. Arrays of blocks lie
 * head after head. */
typedef struct sl_attn_item {
    size_t head, n_heads, first, n;
    uint8_t *qblocks, *segments, *totals;
    uint8_t *scratch;    /* the worker's */
    const uint8_t *next; /* the tile to come, if it is known: NULL in a new span */
} sl_attn_item;

static inline size_t sl_attn_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t sl_attn_n_items(const sl_attn *attn)
{
    return (attn->n_kv_heads + attn->together - 1) / attn->together * attn->n_chunks;
}

/* Queries of one KV head, numbered row by row: n_rows * group. */
static inline size_t sl_attn_n_queries(const sl_attn *attn)
{
    return attn->rows->n_rows * attn->group;
}

/* Where query `query` of a KV head lies in a row-major buffer. */
static inline size_t sl_attn_query_off(const sl_attn *attn, size_t head, size_t query, size_t stride)
{
    return query / attn->group * stride + (head * attn->group + query % attn->group) * attn->head_dim;
}

static inline bool sl_attn_is_noted(const sl_attn *attn, const sl_attn_item *span)
{
    return attn->notes && attn->noted_block - span->first < span->n;
}

/* Notes what `tile` of the context, just folded into the span's segment states, did to them. */
static inline void sl_attn_note(const sl_attn *attn, const sl_attn_item *span, size_t tile)
{
    if (sl_attn_is_noted(attn, span))
        sl_harvest_note(attn->notes, span->head, tile,
                        span->segments + (attn->noted_block - span->first) * attn->state_bytes);
}

/* Of a span's heads, the i-th. */
static inline sl_attn_item sl_attn_head_of(const sl_attn *attn, const sl_attn_item *span, size_t i)
{
    const size_t block = i * attn->n_blocks;
    return (sl_attn_item){
        .head = span->head + i,
        .n_heads = 1,
        .first = span->first,
        .n = span->n,
        .qblocks = span->qblocks + block * sl_qblock_bytes(attn->options.geom.type, attn->head_dim),
        .segments = span->segments + block * attn->state_bytes,
        .totals = span->totals + block * attn->state_bytes,
        .scratch = span->scratch,
        .next = span->next,
    };
}

/* attn_item.c */

/* Items from sl_attn_n_items on are a split pass's further segments: item / n_items is the segment's place among
 * `side`. */
sl_attn_item sl_attn_item_of(const sl_attn *attn, size_t item, size_t worker);

/* Fills in chunks, heads together and segments side by side for attn->rows. */
void sl_attn_divide(sl_attn *attn);

/* One task per item; work: tiles x blocks, or as much as so many. */
void sl_attn_run_items(sl_attn *attn, size_t n, size_t work, sl_pool_task task);

/* Blocks [first, first + n) of the span, n > 0, as a kernel takes them; without tile and masks. */
sl_tile_args sl_attn_args_of(const sl_attn *attn, const sl_attn_item *span, size_t first, size_t n);

/* Folds one tile into blocks [first, first + n) of the span. masks, as in sl_tile_args: [of the span's blocks]. */
void sl_attn_fold_tile(const sl_attn *attn, const sl_attn_item *span, size_t first, size_t n, const uint8_t *tile,
                       const uint64_t *masks);
void sl_attn_fold_segment(const sl_attn *attn, const sl_attn_item *span);

/* A kernel span that ends now. */
void sl_attn_trace(const sl_attn *attn, const char *name, double start_s, int64_t part);

/* attn_own.c */

/* One tile group of a sliding layer, stored before all rows: folds the head's tile, the keys at `pos` and on, into the
 * span's states, as far as its rows see them. */
void sl_attn_fold_cut(const sl_attn *attn, const sl_attn_item *span, const uint8_t *tile, uint64_t pos);

/* Whether some row does not see the whole of a stored tile whose first key is at `pos`. */
bool sl_attn_is_cut(const sl_attn *attn, uint64_t pos);

/* The own tiles under the causal mask, last segment folded, O / l -> out. */
void sl_attn_finish(sl_attn *attn);

#endif
