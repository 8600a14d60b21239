/* Exact attention of one pass's rows over one layer's context: stored parts first, then the rows' own tiles.
 *
 * Owns: query blocks and online-softmax states of up to max_rows rows, for one layer at a time. Refuses: nothing; its
 * errors are the store's. Thread rule: one thread drives it; the pool does the work.
 *
 * What a row gets depends on the keys at positions up to its own and on nothing else: tiles and segments follow from
 * positions, every tile is folded whole and in token order, and threads split queries, never a sum. */
#ifndef SL_ATTN_H
#define SL_ATTN_H

#include "attn/hot.h"
#include "attn/tree.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/trace.h"
#include "kernel/kernel.h"
#include "store/kv.h"

typedef struct sl_attn sl_attn;

typedef struct sl_attn_options {
    const sl_kernels *kernels; /* borrowed */
    sl_pool *pool;             /* borrowed */
    sl_budget *budget;         /* borrowed */
    sl_geom geom;              /* its layer table is borrowed */
    uint32_t n_heads;          /* query heads of every layer: a multiple of each layer's KV heads */
    size_t max_rows;
    bool trees;    /* rows may be a tree's, at most SL_TREE_MAX_ROWS */
    float scale;   /* of the scores; 0: 1 / sqrt(head_dim) */
    float softcap; /* 0: none */
    sl_trace *trace; /* borrowed; NULL: none */
    sl_hot *hot;     /* borrowed; told what the walks show; NULL: none */
} sl_attn_options;

sl_status sl_attn_create(const sl_attn_options *options, sl_attn **out, sl_err *err) SL_CHECK;
void sl_attn_destroy(sl_attn *attn);

/* Bytes that sl_attn_create takes for max_rows. For the plan. */
uint64_t sl_attn_bytes(const sl_attn_options *options);

/* Rows at consecutive positions, or a tree's. */
typedef struct sl_attn_rows {
    uint32_t layer;
    uint64_t first_pos;
    size_t n_rows;
    const sl_tree *tree; /* NULL: consecutive */
    const float *q; /* [n_rows][n_heads][head_dim] at q_stride floats a row, RoPE applied */
    size_t q_stride;
    float *out; /* likewise; may be q */
    size_t out_stride;
    /* Tile groups from the one that holds first_pos on: the tail's tokens and the rows' own, the i-th row's at lane
     * first_pos % 64 + i, in a tree too. 64-byte aligned. */
    const uint8_t *own_groups;
    bool is_burst; /* rows behind the first are drafts */
    bool (*stop)(void *arg); /* asked before each part; NULL: never. true ends with SL_CANCELLED */
    void *arg;
} sl_attn_rows;

/* Walks the layer's stored parts and the own groups; must be called once a layer and pass, layers in order. */
sl_status sl_attn_run(sl_attn *attn, sl_kv *kv, const sl_attn_rows *rows, sl_err *err) SL_CHECK;

#endif
