/* What the layer graph's files share: its memory, the chunk at hand, and work over rows and matrices.
 *
 * graph.c owns creation and the pass, graph_layer.c one layer, graph_experts.c a layer's mixture of experts,
 * graph_work.c the spreading of work over the pool. */
#ifndef SL_GRAPH_IMPL_H
#define SL_GRAPH_IMPL_H

#include "model/graph.h"

/* A mixture's choices for the chunk at hand. A choice is a row with one of its experts; its place is its number when
 * choices are ordered by expert, then row. */
typedef struct sl_graph_experts {
    float *logits;    /* [chunk_rows][n_experts] of the router */
    float *shares;    /* [chunk_rows][n_used] weights, best logit first */
    float *x;         /* [chunk_rows][n_embd] the normed rows that one expert is chosen by */
    float *out;       /* [chunk_rows * n_used][n_embd] by place */
    uint32_t *ids;    /* [chunk_rows][n_used] experts, best logit first */
    uint32_t *places; /* [chunk_rows][n_used] */
    uint32_t *rows;   /* [chunk_rows * n_used] by place */
    uint32_t *ends;   /* [n_experts] the place after its last choice */
    size_t first;     /* place of the expert's first choice, while it is computed */
} sl_graph_experts;

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
    sl_graph_experts experts;

    /* the pass and the chunk being computed */
    const sl_graph_rows *rows;
    uint64_t first_pos;
    uint32_t layer;
    size_t n_rows, first, n; /* of the last pass; the chunk */
    bool is_tree;
    bool will_follow;        /* another pass, to the last one's knowledge */
    sl_tree tree;
    float *logits;   /* [n][n_vocab], being made */
    bool broke_down; /* as sl_graph_broke_down */
    size_t bad_row;  /* then */
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

/* Calls fn for every row of the chunk, or for n numbers from 0 on, from the pool. */
void sl_graph_for_rows(sl_graph *graph, sl_graph_row_fn fn);
void sl_graph_for(sl_graph *graph, size_t n, sl_graph_row_fn fn);

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

/* Quantises n floats as input row `row` of the next product. */
void sl_graph_quantise(const sl_graph *graph, const float *x, size_t row, size_t n);

/* Gate and up of row `row` of a and b become a's activated row, quantised too. */
void sl_graph_activate_row(sl_graph *graph, size_t row);

/* The first row of the chunk that is marked bad, named: the pass broke down over it. */
sl_status sl_graph_check_rows(sl_graph *graph, const char *what, sl_err *err) SL_CHECK;

/* The chunk's normed rows, in tmp and quantised, through their experts: tmp's rows. */
sl_status sl_graph_mix(sl_graph *graph, sl_err *err) SL_CHECK;

/* The first n of the layer's own rows go to the store. */
sl_status sl_graph_append(sl_graph *graph, sl_kv *kv, uint32_t layer, size_t n, sl_err *err) SL_CHECK;

/* All rows of the pass through graph->layer. */
sl_status sl_graph_layer(sl_graph *graph, sl_kv *kv, sl_err *err) SL_CHECK;

#endif
