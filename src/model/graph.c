#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/fpenv.h"
#include "kernel/math64.h"
#include "kernel/tile_key.h"
#include "model/graph_impl.h"
#include "model/weight_stream.h"

enum { CHUNK_ROWS = 128 }; /* rows whose projections are computed together: bounds the scratch */

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
        .trees = options->trees,
        .scale = options->weights->hp.attn_scale,
        .softcap = options->weights->hp.attn_softcap,
        .trace = options->trace,
        .hot = options->hot,
    };
}

/* Sizes, and pointers from graph->map (NULL while measuring). */
static void lay_out(const sl_graph_options *options, sl_graph *graph)
{
    const sl_hparams *hp = &options->weights->hp;
    graph->options = *options;
    graph->hp = *hp;
    graph->rope = options->rope.dims > 0 ? options->rope : hp->rope;
    graph->n_turns = graph->rope.sliding_base > 0.0 && hp->sliding_span > 0 ? 2 : 1;
    graph->q_dim = (size_t)hp->n_heads * hp->head_dim;
    graph->kv_dim = (size_t)hp->n_kv_heads * hp->head_dim;
    graph->wide = max_size(max_size(hp->n_ff, hp->n_embd), max_size(graph->q_dim, graph->kv_dim));
    graph->chunk_rows = options->max_rows < CHUNK_ROWS ? options->max_rows : CHUNK_ROWS;
    graph->n_own_layers = options->own ? 0 : options->staged ? hp->n_layers : 1;
    graph->own_groups = (SL_TILE - 1 + options->max_rows + SL_TILE - 1) / SL_TILE;
    graph->own_layer_bytes = graph->own_groups * sl_geom_group_bytes(&options->geom, 0);
    size_t rows = options->max_rows, turns = graph->n_turns * (graph->rope.dims / 2), off = 0;
    size_t choices = graph->chunk_rows * hp->n_used;
    struct {
        void *field;
        size_t bytes;
    } parts[] = {
        {&graph->x, rows * hp->n_embd * sizeof(float)},
        {&graph->q, rows * graph->q_dim * sizeof(float)},
        {&graph->cos, rows * turns * sizeof(float)},
        {&graph->sin, rows * turns * sizeof(float)},
        {&graph->own, graph->n_own_layers * graph->own_layer_bytes},
        {&graph->tmp, graph->chunk_rows * graph->wide * sizeof(float)},
        {&graph->a, graph->chunk_rows * graph->wide * sizeof(float)},
        {&graph->b, graph->chunk_rows * graph->wide * sizeof(float)},
        {&graph->qrows, graph->chunk_rows * sl_qrow_bytes((graph->wide + 31) / 32 * 32)},
        {&graph->bad, graph->chunk_rows},
        {&graph->freq, turns * sizeof(double)},
        {&graph->experts.logits, graph->chunk_rows * hp->n_experts * sizeof(float)},
        {&graph->experts.shares, choices * sizeof(float)},
        {&graph->experts.x, hp->n_experts > 0 ? graph->chunk_rows * hp->n_embd * sizeof(float) : 0},
        {&graph->experts.out, choices * hp->n_embd * sizeof(float)},
        {&graph->experts.ids, choices * sizeof(uint32_t)},
        {&graph->experts.places, choices * sizeof(uint32_t)},
        {&graph->experts.rows, choices * sizeof(uint32_t)},
        {&graph->experts.ends, hp->n_experts * sizeof(uint32_t)},
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
    return graph.map_bytes + SL_MEM_ALIGN + sizeof graph + 64 + (options->attend ? 0 : sl_attn_bytes(&attn));
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
        if (!options->attend)
            status = sl_attn_create(&attn, &graph->attn, err);
    }
    if (status != SL_OK) {
        sl_graph_destroy(graph);
        return status;
    }
    sl_fpenv saved = sl_fpenv_enter();
    sl_rope_frequencies(&graph->rope, sl_weights_rope_divisors(options->weights, graph->rope.kind), graph->freq);
    if (graph->n_turns > 1)
        sl_rope_sliding_frequencies(&graph->rope, graph->freq + graph->rope.dims / 2);
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

/* ------------------------------------------------------------------------------------------------------ the pass */

static void start_row(sl_graph *graph, size_t row)
{
    const sl_matrix *embedding = &graph->options.weights->embedding;
    size_t index = graph->first + row, pairs = graph->rope.dims / 2;
    float *x = sl_graph_x_row(graph, row);
    if (embedding->packed)
        sl_weight_row(embedding->type, embedding->packed, embedding->n_out, embedding->n_in,
                      (size_t)graph->rows->ids[index], x);
    for (size_t i = 0; graph->hp.embd_scale > 0.0f && i < graph->hp.n_embd; i++)
        x[i] *= graph->hp.embd_scale;
    for (size_t turn = 0; turn < graph->n_turns; turn++) {
        size_t off = (turn * graph->options.max_rows + index) * pairs;
        sl_rope_turn(&graph->rope, turn == 0, graph->freq + turn * pairs, sl_graph_pos(graph, index), graph->cos + off,
                     graph->sin + off);
    }
}

/* The rows' embeddings, from memory or from flash, and their turns. */
static sl_status start_rows(sl_graph *graph, sl_err *err)
{
    const sl_weights *weights = graph->options.weights;
    sl_status status = SL_OK;
    if (!weights->embedding.packed)
        status = sl_weights_embed(weights, graph->rows->ids, graph->n_rows, graph->x, graph->options.pool, err);
    graph->first = graph->n = 0;
    while (status == SL_OK && sl_graph_next_chunk(graph, graph->n_rows))
        sl_graph_for_rows(graph, start_row);
    return status;
}

/* Where the output projection is read for each logits, a window's may come or not: then nothing is read ahead. */
static sl_weights_ahead ahead_of_layers(const sl_graph *graph)
{
    const bool has_logits = graph->options.staged || graph->options.attend;
    const bool is_known = has_logits || graph->options.weights->output->packed;
    return (sl_weights_ahead){.has_logits = has_logits,
                              .has_pass = is_known && graph->will_follow};
}

static sl_status run_layers(sl_graph *graph, sl_kv *kv, sl_err *err)
{
    for (graph->layer = 0; graph->layer < graph->hp.n_layers; graph->layer++) {
        if (graph->rows->stop && graph->rows->stop(graph->rows->arg))
            return sl_err_set(err, SL_CANCELLED, "cancelled");
        double start_s = sl_trace_now(graph->options.trace);
        sl_status status = sl_weights_hold(graph->options.weights, graph->layer, ahead_of_layers(graph),
                                           graph->options.pool, err);
        if (status == SL_OK)
            status = sl_graph_layer(graph, kv, err);
        if (status != SL_OK)
            return status;
        sl_graph_trace(graph, SL_TRACE_LANE_PASS, "layer", start_s, graph->layer);
    }
    return SL_OK;
}

sl_status sl_graph_pass(sl_graph *graph, sl_kv *kv, const sl_graph_rows *rows, sl_err *err)
{
    assert(rows->n_rows > 0 && rows->n_rows <= graph->options.max_rows);
    graph->rows = rows;
    graph->n_rows = rows->n_rows;
    graph->first_pos = rows->first_pos;
    graph->is_tree = rows->parents != NULL;
    graph->will_follow = rows->will_follow || graph->options.attend;
    graph->broke_down = false;
    assert(!graph->is_tree || graph->options.trees);
    if (graph->is_tree)
        sl_tree_init(&graph->tree, rows->parents, rows->n_rows, rows->first_pos);
    double start_s = sl_trace_now(graph->options.trace);
    sl_status status = start_rows(graph, err);
    const bool stored = !graph->options.attend;
    if (status == SL_OK && stored)
        status = sl_kv_pass_begin(kv, rows->will_follow, err);
    if (status == SL_OK)
        status = run_layers(graph, kv, err);
    if (status == SL_OK && stored)
        status = sl_kv_pass_end(kv, err);
    graph->rows = NULL;
    sl_graph_trace(graph, SL_TRACE_LANE_PASS, "pass", start_s, -1);
    return status;
}

static void output_norm_row(sl_graph *graph, size_t row)
{
    sl_graph_norm_row(graph, row, graph->options.weights->output_norm);
}

static void cap_logits_row(sl_graph *graph, size_t row)
{
    float *logits = graph->logits + row * graph->hp.n_vocab;
    if (graph->hp.logit_softcap > 0.0f)
        graph->options.kernels->softcap(logits, graph->hp.n_vocab, graph->hp.logit_softcap);
    graph->bad[row] = !graph->options.kernels->finite(logits, graph->hp.n_vocab);
}

/* The chunk's normed rows times the output projection: of one that is read, slice by slice. */
static sl_status multiply_output(sl_graph *graph, sl_err *err)
{
    const sl_weights *weights = graph->options.weights;
    const size_t n_vocab = graph->hp.n_vocab;
    const sl_graph_product all = {weights->output, graph->logits, n_vocab};
    if (weights->output->packed) {
        sl_graph_multiply(graph, graph->tmp, graph->wide, graph->n, &all, 1);
        return SL_OK;
    }
    /* The last rows' logits are the last ones. Of others, a burst may want more or not; a window, all or only these. */
    const bool is_last = graph->first + graph->n == graph->n_rows;
    const sl_weights_ahead ahead = {.has_logits = !graph->options.staged && !is_last,
                                    .has_pass = graph->will_follow && is_last};
    for (size_t slice = 0; sl_weights_has_slice(weights, slice); slice++) {
        sl_matrix some;
        size_t first_out = 0;
        sl_status status = sl_weights_hold_slice(weights, slice, ahead, graph->options.pool, &some, &first_out, err);
        if (status != SL_OK)
            return status;
        const sl_graph_product product = {&some, graph->logits + first_out, n_vocab};
        sl_graph_multiply(graph, graph->tmp, graph->wide, graph->n, &product, 1);
    }
    return SL_OK;
}

sl_status sl_graph_logits(sl_graph *graph, size_t first, size_t n, float *out, sl_err *err)
{
    assert(n <= SL_GRAPH_LOGIT_ROWS && first + n <= graph->n_rows);
    graph->first = first;
    graph->n = n;
    graph->logits = out;
    graph->broke_down = false;
    sl_graph_for_rows(graph, output_norm_row);
    sl_status status = multiply_output(graph, err);
    if (status != SL_OK)
        return status;
    sl_graph_for_rows(graph, cap_logits_row);
    for (size_t i = 0; i < n; i++) {
        if (!graph->bad[i])
            continue;
        graph->broke_down = true;
        graph->bad_row = first + i;
        return sl_err_set(err, SL_FAILED, "logits are not finite: position %" PRIu64, sl_graph_pos(graph, first + i));
    }
    return SL_OK;
}

bool sl_graph_broke_down(const sl_graph *graph)
{
    return graph->broke_down;
}

size_t sl_graph_bad_row(const sl_graph *graph)
{
    return graph->bad_row;
}

/* The path's rows of a layer, moved to the first lanes. In order: none is overwritten before it has moved. */
static void gather(sl_graph *graph, uint32_t layer, const int32_t *path, size_t n)
{
    const sl_geom *geom = &graph->options.geom;
    const sl_kv_layer *shape = &geom->layers[layer];
    size_t group_bytes = sl_geom_group_bytes(geom, layer), first = (size_t)(graph->first_pos % SL_TILE);
    size_t tile_bytes = sl_tile_bytes(geom->type, shape->head_dim);
    uint8_t *own = sl_graph_own(graph, layer);
    for (size_t i = 0; i < n; i++) {
        size_t to = first + i, from = first + (size_t)path[i];
        for (size_t h = 0; from != to && h < shape->n_kv_heads; h++)
            sl_tile_key_copy(geom->type, shape->head_dim, own + to / SL_TILE * group_bytes + h * tile_bytes,
                             to % SL_TILE, own + from / SL_TILE * group_bytes + h * tile_bytes, from % SL_TILE);
    }
}

sl_status sl_graph_accept(sl_graph *graph, sl_kv *kv, const int32_t *path, size_t n, sl_err *err)
{
    assert(graph->options.staged && n <= graph->n_rows);
    sl_status status = SL_OK;
    for (uint32_t layer = 0; status == SL_OK && layer < graph->hp.n_layers; layer++) {
        if (path)
            gather(graph, layer, path, n);
        status = sl_graph_append(graph, kv, layer, n, err);
    }
    return status;
}
