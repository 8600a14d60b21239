#include "model/graph.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/fpenv.h"
#include "kernel/math64.h"

enum { CHUNK_ROWS = 128 }; /* rows whose projections are computed together: bounds the scratch */

struct sl_graph {
    sl_graph_options options;
    sl_hparams hp;
    sl_attn *attn;
    size_t q_dim, kv_dim;
    size_t n_own_layers, own_groups, own_layer_bytes; /* own tile groups of a layer: tail's and the rows' */
    size_t wide;                                      /* longest row of the chunk scratch */
    size_t chunk_rows;

    size_t map_bytes;
    uint8_t *map;
    float *x;         /* [max_rows][n_embd] hidden rows */
    float *q;         /* [max_rows][q_dim] queries, then attention's output */
    float *cos, *sin; /* [max_rows][rope_dims / 2] */
    uint8_t *own;     /* [n_own_layers][own_layer_bytes] */
    float *tmp;       /* [chunk_rows][wide] normed rows; outputs of wo and w_down */
    float *a, *b;     /* [chunk_rows][wide] K and V, or gate and up */
    uint8_t *qrows;   /* [chunk_rows] quantised rows, of the length at hand */
    uint8_t *bad;     /* [chunk_rows] 1: not finite */
    double *freq;     /* [rope_dims / 2] radians per position */

    /* the pass and the chunk being computed */
    const sl_graph_rows *rows;
    uint64_t first_pos;
    uint32_t layer;
    size_t n_rows, first, n; /* of the last pass; the chunk */
};

/* ---------------------------------------------------------------------------------------------------- creation */

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t pad64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static sl_attn_options attn_options(const sl_graph_options *options)
{
    return (sl_attn_options){
        .kernels = options->kernels,
        .pool = options->pool,
        .budget = options->budget,
        .geom = options->geom,
        .n_heads = options->weights->hp.n_heads,
        .max_rows = options->max_rows,
        .scale = options->weights->hp.attn_scale,
        .trace = options->trace,
    };
}

/* Sizes, and pointers from graph->map (NULL while measuring). */
static void lay_out(const sl_graph_options *options, sl_graph *graph)
{
    const sl_hparams *hp = &options->weights->hp;
    graph->options = *options;
    graph->hp = *hp;
    graph->q_dim = (size_t)hp->n_heads * hp->head_dim;
    graph->kv_dim = (size_t)hp->n_kv_heads * hp->head_dim;
    graph->wide = max_size(max_size(hp->n_ff, hp->n_embd), max_size(graph->q_dim, graph->kv_dim));
    graph->chunk_rows = options->max_rows < CHUNK_ROWS ? options->max_rows : CHUNK_ROWS;
    graph->n_own_layers = options->staged ? hp->n_layers : 1;
    graph->own_groups = (SL_TILE - 1 + options->max_rows + SL_TILE - 1) / SL_TILE;
    graph->own_layer_bytes = graph->own_groups * sl_geom_group_bytes(&options->geom, 0);
    size_t rows = options->max_rows, pairs = hp->rope_dims / 2, off = 0;
    struct {
        void *field;
        size_t bytes;
    } parts[] = {
        {&graph->x, rows * hp->n_embd * sizeof(float)},
        {&graph->q, rows * graph->q_dim * sizeof(float)},
        {&graph->cos, rows * pairs * sizeof(float)},
        {&graph->sin, rows * pairs * sizeof(float)},
        {&graph->own, graph->n_own_layers * graph->own_layer_bytes},
        {&graph->tmp, graph->chunk_rows * graph->wide * sizeof(float)},
        {&graph->a, graph->chunk_rows * graph->wide * sizeof(float)},
        {&graph->b, graph->chunk_rows * graph->wide * sizeof(float)},
        {&graph->qrows, graph->chunk_rows * sl_qrow_bytes((graph->wide + 31) / 32 * 32)},
        {&graph->bad, graph->chunk_rows},
        {&graph->freq, pairs * sizeof(double)},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (graph->map) {
            void *at = graph->map + off;
            memcpy(parts[i].field, &at, sizeof at);
        }
        off += pad64(parts[i].bytes);
    }
    graph->map_bytes = off;
}

uint64_t sl_graph_bytes(const sl_graph_options *options)
{
    sl_graph graph = {0};
    lay_out(options, &graph);
    sl_attn_options attn = attn_options(options);
    return graph.map_bytes + SL_MEM_ALIGN + sizeof graph + 64 + sl_attn_bytes(&attn);
}

sl_status sl_graph_create(const sl_graph_options *options, sl_graph **out, sl_err *err)
{
    *out = NULL;
    sl_graph *graph = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *graph, "layer graph", &graph, err);
    if (status != SL_OK)
        return status;
    lay_out(options, graph);
    status = sl_mem_map(options->budget, graph->map_bytes, "rows of the window", &graph->map, err);
    if (status == SL_OK) {
        lay_out(options, graph);
        sl_attn_options attn = attn_options(options);
        status = sl_attn_create(&attn, &graph->attn, err);
    }
    if (status != SL_OK) {
        sl_graph_destroy(graph);
        return status;
    }
    sl_fpenv saved = sl_fpenv_enter();
    for (size_t i = 0; i < graph->hp.rope_dims / 2; i++) {
        graph->freq[i] = sl_pow64(graph->hp.rope_base, -2.0 * (double)i / (double)graph->hp.rope_dims);
        if (options->weights->rope_factors)
            graph->freq[i] /= (double)options->weights->rope_factors[i];
    }
    sl_fpenv_leave(saved);
    *out = graph;
    return SL_OK;
}

void sl_graph_destroy(sl_graph *graph)
{
    if (!graph)
        return;
    sl_attn_destroy(graph->attn);
    sl_mem_unmap(graph->options.budget, graph->map, graph->map_bytes);
    sl_mem_free(graph->options.budget, graph);
}

/* ------------------------------------------------------------------------------------ work over rows and matrices */

typedef void (*row_fn)(sl_graph *graph, size_t row); /* row of the chunk */

typedef struct row_work {
    sl_graph *graph;
    row_fn fn;
    size_t per_item;
} row_work;

static void row_item(void *arg, size_t item, size_t worker)
{
    (void)worker;
    row_work *work = arg;
    size_t first = item * work->per_item;
    for (size_t i = first; i < first + work->per_item && i < work->graph->n; i++)
        work->fn(work->graph, i);
}

static void for_rows(sl_graph *graph, row_fn fn)
{
    row_work work = {graph, fn, graph->n / (4 * sl_pool_threads(graph->options.pool)) + 1};
    sl_pool_run(graph->options.pool, (graph->n + work.per_item - 1) / work.per_item, row_item, &work);
}

/* One product of a batch: the chunk's rows x one matrix. */
typedef struct product {
    const sl_matrix *matrix;
    float *out;
    size_t out_stride;
} product;

typedef struct product_work {
    const sl_graph *graph;
    const product *products;
    const float *x;
    size_t x_stride, n_rows;
    size_t item_outputs; /* of a matrix; whole panels */
    size_t n_items[3];   /* of each product */
} product_work;

static void product_item(void *arg, size_t item, size_t worker)
{
    (void)worker;
    const product_work *work = arg;
    size_t p = 0;
    while (item >= work->n_items[p])
        item -= work->n_items[p++];
    const sl_matrix *matrix = work->products[p].matrix;
    size_t n = work->item_outputs, first = item * n;
    sl_gemm_args args = {
        .packed = matrix->packed,
        .n_out = matrix->n_out,
        .n_in = matrix->n_in,
        .first_out = first,
        .n = n < matrix->n_out - first ? n : matrix->n_out - first,
        .qrows = work->graph->qrows,
        .x = work->x,
        .x_stride = work->x_stride,
        .n_rows = work->n_rows,
        .out = work->products[p].out,
        .out_stride = work->products[p].out_stride,
    };
    sl_kernels_gemm(work->graph->options.kernels, matrix->type)(&args);
}

/* All products take the same n_rows input rows: x, and graph->qrows made from it. */
static void multiply(const sl_graph *graph, const float *x, size_t x_stride, size_t n_rows, const product *products,
                     size_t n_products)
{
    product_work work = {graph, products, x, x_stride, n_rows, 0, {0}};
    size_t n_panels = 0, n_items = 0;
    for (size_t i = 0; i < n_products; i++)
        n_panels += (products[i].matrix->n_out + SL_PANEL - 1) / SL_PANEL;
    /* Many rows: fewer, larger pieces, in pairs of panels as the kernels take them; what a call sets up costs less. */
    const bool many = n_rows >= SL_LANES;
    size_t panels = n_panels / ((many ? 4 : 8) * sl_pool_threads(graph->options.pool)) + 1;
    work.item_outputs = (many ? (panels + 1) / 2 * 2 : panels) * SL_PANEL;
    for (size_t i = 0; i < n_products; i++) {
        work.n_items[i] = (products[i].matrix->n_out + work.item_outputs - 1) / work.item_outputs;
        n_items += work.n_items[i];
    }
    sl_pool_run(graph->options.pool, n_items, product_item, &work);
}

/* A span that ends now; layer -1: all of them. */
static void trace(const sl_graph *graph, sl_trace_lane lane, const char *name, double start_s, int64_t layer)
{
    const sl_trace_about about = {layer, -1, -1, -1};
    sl_trace_span(graph->options.trace, lane, name, start_s, sl_trace_now(graph->options.trace), about);
}

/* ---------------------------------------------------------------------------------------------------- one layer */

static float *x_row(const sl_graph *graph, size_t row)
{
    return graph->x + (graph->first + row) * graph->hp.n_embd;
}

static float *q_row(const sl_graph *graph, size_t row)
{
    return graph->q + (graph->first + row) * graph->q_dim;
}

static float *wide_row(const sl_graph *graph, float *rows, size_t row)
{
    return rows + row * graph->wide;
}

/* n is a multiple of 32 for every quantised matrix; a row that no quantised matrix reads may have another length. */
static void quantise(const sl_graph *graph, const float *x, size_t row, size_t n)
{
    if (n % SL_GROUP == 0)
        graph->options.kernels->qrow(graph->qrows + row * sl_qrow_bytes(n), x, n, 1, n);
}

static void norm_row(sl_graph *graph, size_t row, const float *weight)
{
    float *out = wide_row(graph, graph->tmp, row);
    graph->options.kernels->rmsnorm(out, x_row(graph, row), weight, graph->hp.n_embd, graph->hp.norm_eps);
    quantise(graph, out, row, graph->hp.n_embd);
}

static void attn_norm_row(sl_graph *graph, size_t row)
{
    norm_row(graph, row, graph->options.weights->layers[graph->layer].attn_norm);
}

static uint8_t *own_of(const sl_graph *graph, uint32_t layer)
{
    return graph->own + (graph->options.staged ? layer : 0) * graph->own_layer_bytes;
}

static void rope_pack_row(sl_graph *graph, size_t row)
{
    const sl_hparams *hp = &graph->hp;
    const sl_kernels *kernels = graph->options.kernels;
    size_t pairs = hp->rope_dims / 2, index = graph->first + row;
    const float *cos = graph->cos + index * pairs, *sin = graph->sin + index * pairs;
    for (size_t h = 0; h < hp->n_heads; h++)
        kernels->rope_norm(q_row(graph, row) + h * hp->head_dim, cos, sin, pairs);
    size_t token = graph->first_pos % SL_TILE + index;
    uint8_t *group = own_of(graph, graph->layer) + token / SL_TILE * sl_geom_group_bytes(&graph->options.geom, 0);
    bool good = kernels->finite(q_row(graph, row), graph->q_dim);
    for (size_t h = 0; h < hp->n_kv_heads; h++) {
        float *k = wide_row(graph, graph->a, row) + h * hp->head_dim;
        const float *v = wide_row(graph, graph->b, row) + h * hp->head_dim;
        kernels->rope_norm(k, cos, sin, pairs);
        uint8_t *tile = group + h * sl_tile_bytes(graph->options.geom.type, hp->head_dim);
        good &= sl_kernels_kv_pack(kernels, graph->options.geom.type)(tile, token % SL_TILE, k, v, hp->head_dim);
    }
    graph->bad[row] = !good;
}

static void attn_out_row(sl_graph *graph, size_t row)
{
    quantise(graph, q_row(graph, row), row, graph->q_dim);
}

static void ffn_norm_row(sl_graph *graph, size_t row)
{
    graph->options.kernels->add(x_row(graph, row), wide_row(graph, graph->tmp, row), graph->hp.n_embd);
    norm_row(graph, row, graph->options.weights->layers[graph->layer].ffn_norm);
}

static void silu_row(sl_graph *graph, size_t row)
{
    float *gate = wide_row(graph, graph->a, row);
    graph->options.kernels->silu_mul(gate, gate, wide_row(graph, graph->b, row), graph->hp.n_ff);
    quantise(graph, gate, row, graph->hp.n_ff);
}

static void ffn_add_row(sl_graph *graph, size_t row)
{
    graph->options.kernels->add(x_row(graph, row), wide_row(graph, graph->tmp, row), graph->hp.n_embd);
    graph->bad[row] = !graph->options.kernels->finite(x_row(graph, row), graph->hp.n_embd);
}

/* The first bad row of the chunk, named. */
static sl_status check_rows(const sl_graph *graph, const char *what, sl_err *err)
{
    for (size_t i = 0; i < graph->n; i++)
        if (graph->bad[i])
            return sl_err_set(err, SL_FAILED,
                              "%s is not finite or beyond the stored type: layer %" PRIu32 ", position %" PRIu64, what,
                              graph->layer, graph->first_pos + graph->first + i);
    return SL_OK;
}

/* Sets the next chunk of the pass's rows; false at the end. Start with first = n = 0. */
static bool next_chunk(sl_graph *graph, size_t n_rows)
{
    graph->first += graph->n;
    graph->n = n_rows - graph->first < graph->chunk_rows ? n_rows - graph->first : graph->chunk_rows;
    return graph->n > 0;
}

static sl_status project_qkv(sl_graph *graph, sl_err *err)
{
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    double start_s = sl_trace_now(graph->options.trace);
    graph->first = graph->n = 0;
    while (next_chunk(graph, graph->n_rows)) {
        for_rows(graph, attn_norm_row);
        const product products[] = {{&w->wq, q_row(graph, 0), graph->q_dim},
                                    {&w->wk, graph->a, graph->wide},
                                    {&w->wv, graph->b, graph->wide}};
        multiply(graph, graph->tmp, graph->wide, graph->n, products, 3);
        for_rows(graph, rope_pack_row);
        sl_status status = check_rows(graph, "query, key or value", err);
        if (status != SL_OK)
            return status;
    }
    trace(graph, SL_TRACE_LANE_KERNEL, "queries, keys, values", start_s, graph->layer);
    return SL_OK;
}

static sl_status feed_forward(sl_graph *graph, sl_err *err)
{
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    double start_s = sl_trace_now(graph->options.trace);
    graph->first = graph->n = 0;
    while (next_chunk(graph, graph->n_rows)) {
        for_rows(graph, attn_out_row);
        const product attn_out = {&w->wo, graph->tmp, graph->wide};
        multiply(graph, q_row(graph, 0), graph->q_dim, graph->n, &attn_out, 1);
        for_rows(graph, ffn_norm_row);
        const product gate_up[] = {{&w->w_gate, graph->a, graph->wide}, {&w->w_up, graph->b, graph->wide}};
        multiply(graph, graph->tmp, graph->wide, graph->n, gate_up, 2);
        for_rows(graph, silu_row);
        const product down = {&w->w_down, graph->tmp, graph->wide};
        multiply(graph, graph->a, graph->wide, graph->n, &down, 1);
        for_rows(graph, ffn_add_row);
        sl_status status = check_rows(graph, "hidden row", err);
        if (status != SL_OK)
            return status;
    }
    trace(graph, SL_TRACE_LANE_KERNEL, "output and feed-forward", start_s, graph->layer);
    return SL_OK;
}

static sl_status run_layer(sl_graph *graph, sl_kv *kv, sl_err *err)
{
    uint32_t n_tail = 0;
    const uint8_t *tail = sl_kv_tail(kv, graph->layer, &n_tail);
    assert(n_tail == graph->first_pos % SL_TILE);
    uint8_t *own = own_of(graph, graph->layer);
    if (n_tail > 0)
        memcpy(own, tail, sl_geom_group_bytes(&graph->options.geom, graph->layer));
    sl_status status = project_qkv(graph, err);
    if (status != SL_OK)
        return status;
    const sl_attn_rows rows = {
        .layer = graph->layer,
        .first_pos = graph->first_pos,
        .n_rows = graph->n_rows,
        .q = graph->q,
        .q_stride = graph->q_dim,
        .out = graph->q,
        .out_stride = graph->q_dim,
        .own_groups = own,
        .stop = graph->rows->stop_in_layer,
        .arg = graph->rows->arg,
    };
    status = sl_attn_run(graph->attn, kv, &rows, err);
    if (status == SL_OK && !graph->options.staged)
        status = sl_kv_append(kv, graph->layer, own, graph->n_rows, err);
    return status == SL_OK ? feed_forward(graph, err) : status;
}

/* ------------------------------------------------------------------------------------------------------ the pass */

static void start_row(sl_graph *graph, size_t row)
{
    const sl_matrix *embedding = &graph->options.weights->embedding;
    size_t index = graph->first + row, pairs = graph->hp.rope_dims / 2;
    sl_weight_row(embedding->type, embedding->packed, embedding->n_out, embedding->n_in,
                  (size_t)graph->rows->ids[index], x_row(graph, row));
    double factor = graph->options.rope_factor > 0.0 ? graph->options.rope_factor : graph->hp.rope_factor;
    double pos = (double)(graph->first_pos + index) / factor;
    for (size_t i = 0; i < pairs; i++) {
        double s, c;
        sl_sincos64(pos * graph->freq[i], &s, &c);
        graph->cos[index * pairs + i] = (float)c;
        graph->sin[index * pairs + i] = (float)s;
    }
}

static sl_status run_layers(sl_graph *graph, sl_kv *kv, sl_err *err)
{
    for (graph->layer = 0; graph->layer < graph->hp.n_layers; graph->layer++) {
        if (graph->rows->stop && graph->rows->stop(graph->rows->arg))
            return sl_err_set(err, SL_CANCELLED, "cancelled");
        double start_s = sl_trace_now(graph->options.trace);
        sl_status status = run_layer(graph, kv, err);
        if (status != SL_OK)
            return status;
        trace(graph, SL_TRACE_LANE_PASS, "layer", start_s, graph->layer);
    }
    return SL_OK;
}

sl_status sl_graph_pass(sl_graph *graph, sl_kv *kv, const sl_graph_rows *rows, sl_err *err)
{
    assert(rows->n_rows > 0 && rows->n_rows <= graph->options.max_rows);
    graph->rows = rows;
    graph->n_rows = rows->n_rows;
    graph->first_pos = rows->first_pos;
    double start_s = sl_trace_now(graph->options.trace);
    graph->first = graph->n = 0;
    while (next_chunk(graph, rows->n_rows))
        for_rows(graph, start_row);
    sl_status status = sl_kv_pass_begin(kv, rows->will_follow, err);
    if (status == SL_OK)
        status = run_layers(graph, kv, err);
    if (status == SL_OK)
        status = sl_kv_pass_end(kv, err);
    graph->rows = NULL;
    trace(graph, SL_TRACE_LANE_PASS, "pass", start_s, -1);
    return status;
}

static void output_norm_row(sl_graph *graph, size_t row)
{
    norm_row(graph, row, graph->options.weights->output_norm);
}

sl_status sl_graph_logits(sl_graph *graph, size_t first, size_t n, float *out, sl_err *err)
{
    assert(n <= SL_GRAPH_LOGIT_ROWS && first + n <= graph->n_rows);
    graph->first = first;
    graph->n = n;
    for_rows(graph, output_norm_row);
    const product logits = {graph->options.weights->output, out, graph->hp.n_vocab};
    multiply(graph, graph->tmp, graph->wide, n, &logits, 1);
    for (size_t i = 0; i < n; i++)
        if (!graph->options.kernels->finite(out + i * graph->hp.n_vocab, graph->hp.n_vocab))
            return sl_err_set(err, SL_FAILED, "logits are not finite: position %" PRIu64, graph->first_pos + first + i);
    return SL_OK;
}

sl_status sl_graph_accept(sl_graph *graph, sl_kv *kv, size_t n, sl_err *err)
{
    assert(graph->options.staged && n <= graph->n_rows);
    sl_status status = SL_OK;
    for (uint32_t layer = 0; status == SL_OK && layer < graph->hp.n_layers; layer++)
        status = sl_kv_append(kv, layer, own_of(graph, layer), n, err);
    return status;
}
