/* The layer graph: rows of token ids through all layers over a stored context.
 *
 * Owns: the hidden rows and scratch of up to max_rows rows. Refuses: a NaN or an infinity, naming layer and position.
 * Two ways: a window appends its K and V to the store as it leaves each layer; a staged graph (bursts) keeps them for
 * all layers until sl_graph_accept says how many rows stay. Thread rule: one thread drives it, the pool works. */
#ifndef SL_GRAPH_H
#define SL_GRAPH_H

#include "attn/attn.h"
#include "model/weights.h"

typedef struct sl_graph sl_graph;

typedef struct sl_graph_options {
    const sl_weights *weights; /* borrowed, as all below */
    const sl_kernels *kernels;
    sl_pool *pool;
    sl_budget *budget;
    sl_geom geom;
    size_t max_rows;
    bool staged;
    bool trees;      /* rows may be a tree's, at most SL_TREE_MAX_ROWS */
    sl_rope rope;    /* dims 0: the model's own */
    sl_trace *trace; /* NULL: none */
    /* NULL: attention over the pass's store, which takes the rows' K and V. Else this gives a layer's attention output;
     * the graph then touches no store (kv may be NULL), and where K and V go is the caller's business: own_groups holds
     * the rows' own, the first at lane first_pos % SL_TILE; earlier lanes are undefined. */
    sl_status (*attend)(void *arg, const sl_attn_rows *rows, sl_err *err);
    /* NULL: the graph's own memory. Else, with `attend`: where a layer's own tile groups lie, the one that holds
     * first_pos first; what is in them stays. */
    uint8_t *(*own)(void *arg, uint32_t layer);
    void *attend_arg; /* of both */
    sl_hot *hot;      /* borrowed; told what walks show and what is appended; NULL: none */
} sl_graph_options;

sl_status sl_graph_create(const sl_graph_options *options, sl_graph **out, sl_err *err) SL_CHECK;
void sl_graph_destroy(sl_graph *graph);

/* Bytes that sl_graph_create takes. For the plan. */
uint64_t sl_graph_bytes(const sl_graph_options *options);

typedef struct sl_graph_rows {
    const int32_t *ids; /* [n_rows], each in [0, n_vocab) */
    /* [n_rows] rows before them, in the order of attn/tree.h: position = first_pos + depth. NULL: consecutive */
    const int32_t *parents;
    size_t n_rows;
    uint64_t first_pos;               /* = tokens in the store */
    bool will_follow;                 /* another pass will come: the reader may run ahead */
    bool (*stop)(void *arg);          /* asked before each layer; NULL: never. true ends with SL_CANCELLED */
    bool (*stop_in_layer)(void *arg); /* likewise before each stored part */
    void *arg;
} sl_graph_rows;

/* One pass. After an error or a cancelled pass the store holds some layers' rows and not others': destroy it. */
sl_status sl_graph_pass(sl_graph *graph, sl_kv *kv, const sl_graph_rows *rows, sl_err *err) SL_CHECK;

/* Logits of rows [first, first + n) of the last pass: out[n][n_vocab]; n <= SL_GRAPH_LOGIT_ROWS. */
enum { SL_GRAPH_LOGIT_ROWS = 8 };
sl_status sl_graph_logits(sl_graph *graph, size_t first, size_t n, float *out, sl_err *err) SL_CHECK;

/* Whether the last pass, or the last logits, failed because a row of them came to a NaN, an infinity or a value beyond
 * the stored type: other rows may be well. */
bool sl_graph_broke_down(const sl_graph *graph);
/* Where it did: a row of the pass that came to that. */
size_t sl_graph_bad_row(const sl_graph *graph);

/* Staged graphs: appends n rows of the last pass to every layer; the others are forgotten. path [n]: a way from row 0
 * down the tree; NULL: the first n rows. Once a pass. */
sl_status sl_graph_accept(sl_graph *graph, sl_kv *kv, const int32_t *path, size_t n, sl_err *err) SL_CHECK;

#endif
