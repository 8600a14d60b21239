/* What the layer graph's files share: its memory, the chunk at hand, and work over rows and matrices.
 *
 * graph.c owns creation and the pass, graph_layer.c one layer, graph_work.c the spreading of work over the pool. */
#ifndef SL_GRAPH_IMPL_H
#define SL_GRAPH_IMPL_H

#include "model/graph.h"

struct sl_graph {
    sl_graph_options options;
    sl_hparams hp;
    sl_rope rope;
    size_t n_turns; /* 2: sliding layers turn by frequencies of their own, the second ones */
    sl_attn *attn;
    size_t q_dim, kv_dim;
    size_t n_own_layers, own_groups, own_layer_bytes; /* own tile groups of a layer: tail's and the rows' */
    size_t wide;                                      /* longest row of the chunk scratch */
    size_t chunk_rows;

    size_t map_bytes;
    uint8_t *map;
    float *x;         /* [max_rows][n_embd] hidden rows */
    float *q;         /* [max_rows][q_dim] queries, then attention's output */
    float *cos, *sin; /* [n_turns][max_rows][rope.dims / 2] */
    uint8_t *own;     /* [n_own_layers][own_layer_bytes] */
    float *tmp;       /* [chunk_rows][wide] normed rows; outputs of wo and w_down */
    float *a, *b;     /* [chunk_rows][wide] K and V, or gate and up */
    uint8_t *qrows;   /* [chunk_rows] quantised rows, of the length at hand */
    uint8_t *bad;     /* [chunk_rows] 1: not finite */
    double *freq;     /* [n_turns][rope.dims / 2] radians per position */

    /* the pass and the chunk being computed */
    const sl_graph_rows *rows;
    uint64_t first_pos;
    uint32_t layer;
    size_t n_rows, first, n; /* of the last pass; the chunk */
    bool is_tree;
    sl_tree tree;
    float *logits;           /* [n][n_vocab], being made */
    bool broke_down;         /* as sl_graph_broke_down */
};

/* Row `index` of the pass. */
static inline uint64_t sl_graph_pos(const sl_graph *graph, size_t index)
{
    return graph->first_pos + (graph->is_tree ? graph->tree.depth[index] : index);
}

static inline float *sl_graph_x_row(const sl_graph *graph, size_t row)
{
    return graph->x + (graph->first + row) * graph->hp.n_embd;
}

/* Tile groups of the layer's own rows: the tail's group first. */
static inline uint8_t *sl_graph_own(const sl_graph *graph, uint32_t layer)
{
    if (graph->options.own)
        return graph->options.own(graph->options.attend_arg, layer);
    return graph->own + (graph->options.staged ? layer : 0) * graph->own_layer_bytes;
}

typedef void (*sl_graph_row_fn)(sl_graph *graph, size_t row); /* row of the chunk */

/* Calls fn for every row of the chunk, from the pool. */
void sl_graph_for_rows(sl_graph *graph, sl_graph_row_fn fn);

/* One product of a batch: the chunk's rows x one matrix. */
typedef struct sl_graph_product {
    const sl_matrix *matrix;
    float *out;
    size_t out_stride;
} sl_graph_product;

/* All products take the same n_rows input rows: x, and graph->qrows made from it. */
void sl_graph_multiply(const sl_graph *graph, const float *x, size_t x_stride, size_t n_rows,
                       const sl_graph_product *products, size_t n_products);

/* Sets the next chunk of the pass's rows; false at the end. Start with first = n = 0. */
bool sl_graph_next_chunk(sl_graph *graph, size_t n_rows);

/* A span that ends now; layer -1: all of them. */
void sl_graph_trace(const sl_graph *graph, sl_trace_lane lane, const char *name, double start_s, int64_t layer);

/* tmp's row = RMS norm of the hidden row, quantised too. */
void sl_graph_norm_row(sl_graph *graph, size_t row, const float *weight);

/* The first n of the layer's own rows go to the store. */
sl_status sl_graph_append(sl_graph *graph, sl_kv *kv, uint32_t layer, size_t n, sl_err *err) SL_CHECK;

/* All rows of the pass through graph->layer. */
sl_status sl_graph_layer(sl_graph *graph, sl_kv *kv, sl_err *err) SL_CHECK;

#endif
