/* One layer of a pass: norm, queries, keys and values, RoPE, attention, output projection, feed-forward. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "model/graph_impl.h"

static float *q_row(const sl_graph *graph, size_t row)
{
    return graph->q + (graph->first + row) * graph->q_dim;
}

static float *wide_row(const sl_graph *graph, float *rows, size_t row)
{
    return rows + row * graph->wide;
}

/* n is a multiple of 32 for every quantised matrix; a row that no quantised matrix reads may have another length. */
void sl_graph_quantise(const sl_graph *graph, const float *x, size_t row, size_t n)
{
    if (n % SL_GROUP == 0)
        graph->options.kernels->qrow(graph->qrows + row * sl_qrow_bytes(n), x, n, 1, n);
}

void sl_graph_norm_row(sl_graph *graph, size_t row, const float *weight)
{
    float *out = wide_row(graph, graph->tmp, row);
    graph->options.kernels->rmsnorm(out, sl_graph_x_row(graph, row), weight, graph->hp.n_embd, graph->hp.norm_eps);
    sl_graph_quantise(graph, out, row, graph->hp.n_embd);
}

static void attn_norm_row(sl_graph *graph, size_t row)
{
    sl_graph_norm_row(graph, row, graph->options.weights->layers[graph->layer].attn_norm);
}

static void add_bias(const sl_graph *graph, float *row, const float *bias, size_t n)
{
    if (bias)
        graph->options.kernels->add(row, bias, n);
}

/* One head's query or key: normed, then turned. */
static void turn_head(const sl_graph *graph, size_t row, float *head, const float *norm)
{
    const sl_hparams *hp = &graph->hp;
    const sl_kernels *kernels = graph->options.kernels;
    if (norm)
        kernels->rmsnorm(head, head, norm, hp->head_dim, hp->norm_eps);
    if (!sl_hparams_has_rope(hp, graph->layer))
        return;
    size_t pairs = graph->rope.dims / 2, index = graph->first + row;
    size_t turn = graph->n_turns > 1 && sl_hparams_slides(hp, graph->layer);
    size_t off = (turn * graph->options.max_rows + index) * pairs;
    sl_rope_norm_fn rope = hp->arch->flags & SL_ARCH_NEOX ? kernels->rope_neox : kernels->rope_norm;
    rope(head, graph->cos + off, graph->sin + off, pairs);
}

static void turn_pack_row(sl_graph *graph, size_t row)
{
    const sl_hparams *hp = &graph->hp;
    const sl_kernels *kernels = graph->options.kernels;
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    float *q = q_row(graph, row), *k = wide_row(graph, graph->a, row), *v = wide_row(graph, graph->b, row);
    add_bias(graph, q, w->bq, graph->q_dim);
    add_bias(graph, k, w->bk, graph->kv_dim);
    add_bias(graph, v, w->bv, graph->kv_dim);
    for (size_t h = 0; h < hp->n_heads; h++)
        turn_head(graph, row, q + h * hp->head_dim, w->q_norm);
    size_t token = graph->first_pos % SL_TILE + graph->first + row;
    uint8_t *group = sl_graph_own(graph, graph->layer) + token / SL_TILE * sl_geom_group_bytes(&graph->options.geom, 0);
    bool good = kernels->finite(q, graph->q_dim);
    for (size_t h = 0; h < hp->n_kv_heads; h++) {
        turn_head(graph, row, k + h * hp->head_dim, w->k_norm);
        uint8_t *tile = group + h * sl_tile_bytes(graph->options.geom.type, hp->head_dim);
        good &= sl_kernels_kv_pack(kernels, graph->options.geom.type)(tile, token % SL_TILE, k + h * hp->head_dim,
                                                                      v + h * hp->head_dim, hp->head_dim);
    }
    graph->bad[row] = !good;
}

static void attn_out_row(sl_graph *graph, size_t row)
{
    sl_graph_quantise(graph, q_row(graph, row), row, graph->q_dim);
}

/* tmp's row, a sublayer's output: biased and normed as the architecture has it, then added to the hidden row. */
static void add_output(const sl_graph *graph, size_t row, const float *bias, const float *norm)
{
    float *out = wide_row(graph, graph->tmp, row);
    add_bias(graph, out, bias, graph->hp.n_embd);
    if (norm)
        graph->options.kernels->rmsnorm(out, out, norm, graph->hp.n_embd, graph->hp.norm_eps);
    graph->options.kernels->add(sl_graph_x_row(graph, row), out, graph->hp.n_embd);
}

static void ffn_norm_row(sl_graph *graph, size_t row)
{
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    add_output(graph, row, w->bo, w->attn_post_norm);
    sl_graph_norm_row(graph, row, w->ffn_norm);
}

void sl_graph_activate_row(sl_graph *graph, size_t row)
{
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    const sl_kernels *kernels = graph->options.kernels;
    float *gate = wide_row(graph, graph->a, row), *up = wide_row(graph, graph->b, row);
    add_bias(graph, gate, w->b_gate, graph->hp.n_ff);
    add_bias(graph, up, w->b_up, graph->hp.n_ff);
    (graph->hp.arch->flags & SL_ARCH_GELU ? kernels->gelu_mul : kernels->silu_mul)(gate, gate, up, graph->hp.n_ff);
    sl_graph_quantise(graph, gate, row, graph->hp.n_ff);
}

static void ffn_add_row(sl_graph *graph, size_t row)
{
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    add_output(graph, row, w->b_down, w->ffn_post_norm);
    graph->bad[row] = !graph->options.kernels->finite(sl_graph_x_row(graph, row), graph->hp.n_embd);
}

sl_status sl_graph_check_rows(sl_graph *graph, const char *what, sl_err *err)
{
    for (size_t i = 0; i < graph->n; i++) {
        if (!graph->bad[i])
            continue;
        graph->broke_down = true;
        graph->bad_row = graph->first + i;
        return sl_err_set(err, SL_FAILED,
                          "%s is not finite or beyond the stored type: layer %" PRIu32 ", position %" PRIu64, what,
                          graph->layer, sl_graph_pos(graph, graph->first + i));
    }
    return SL_OK;
}

static sl_status project_qkv(sl_graph *graph, sl_err *err)
{
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    double start_s = sl_trace_now(graph->options.trace);
    graph->first = graph->n = 0;
    while (sl_graph_next_chunk(graph, graph->n_rows)) {
        sl_graph_for_rows(graph, attn_norm_row);
        const sl_graph_product products[] = {
            {&w->wq, q_row(graph, 0), graph->q_dim}, {&w->wk, graph->a, graph->wide}, {&w->wv, graph->b, graph->wide}};
        sl_graph_multiply(graph, graph->tmp, graph->wide, graph->n, products, 3);
        sl_graph_for_rows(graph, turn_pack_row);
        sl_status status = sl_graph_check_rows(graph, "query, key or value", err);
        if (status != SL_OK)
            return status;
    }
    sl_graph_trace(graph, SL_TRACE_LANE_KERNEL, "queries, keys, values", start_s, graph->layer);
    return SL_OK;
}

/* The chunk's normed rows become the feed-forward's output, in tmp. */
static sl_status feed_rows(sl_graph *graph, sl_err *err)
{
    if (graph->hp.n_experts > 0)
        return sl_graph_mix(graph, err);
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    const sl_graph_product gate_up[] = {{&w->w_gate, graph->a, graph->wide}, {&w->w_up, graph->b, graph->wide}};
    sl_graph_multiply(graph, graph->tmp, graph->wide, graph->n, gate_up, 2);
    sl_graph_for_rows(graph, sl_graph_activate_row);
    const sl_graph_product down = {&w->w_down, graph->tmp, graph->wide};
    sl_graph_multiply(graph, graph->a, graph->wide, graph->n, &down, 1);
    return SL_OK;
}

static sl_status feed_forward(sl_graph *graph, sl_err *err)
{
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    double start_s = sl_trace_now(graph->options.trace);
    graph->first = graph->n = 0;
    while (sl_graph_next_chunk(graph, graph->n_rows)) {
        sl_graph_for_rows(graph, attn_out_row);
        const sl_graph_product attn_out = {&w->wo, graph->tmp, graph->wide};
        sl_graph_multiply(graph, q_row(graph, 0), graph->q_dim, graph->n, &attn_out, 1);
        sl_graph_for_rows(graph, ffn_norm_row);
        sl_status status = feed_rows(graph, err);
        if (status != SL_OK)
            return status;
        sl_graph_for_rows(graph, ffn_add_row);
        status = sl_graph_check_rows(graph, "hidden row", err);
        if (status != SL_OK)
            return status;
    }
    sl_graph_trace(graph, SL_TRACE_LANE_KERNEL, "output and feed-forward", start_s, graph->layer);
    return SL_OK;
}

sl_status sl_graph_append(sl_graph *graph, sl_kv *kv, uint32_t layer, size_t n, sl_err *err)
{
    const uint8_t *own = sl_graph_own(graph, layer);
    sl_status status = sl_kv_append(kv, layer, own, n, err);
    if (status == SL_OK && graph->options.hot)
        sl_hot_append(graph->options.hot, layer, graph->first_pos, own, n);
    return status;
}

/* Attention of the layer's rows: over the store, or as the graph's owner would have it. */
static sl_status attend(sl_graph *graph, sl_kv *kv, const uint8_t *own, sl_err *err)
{
    const sl_attn_rows rows = {
        .layer = graph->layer,
        .first_pos = graph->first_pos,
        .n_rows = graph->n_rows,
        .tree = graph->is_tree ? &graph->tree : NULL,
        .q = graph->q,
        .q_stride = graph->q_dim,
        .out = graph->q,
        .out_stride = graph->q_dim,
        .own_groups = own,
        .is_burst = graph->options.staged,
        .stop = graph->rows->stop_in_layer,
        .arg = graph->rows->arg,
    };
    if (graph->options.attend)
        return graph->options.attend(graph->options.attend_arg, &rows, err);
    sl_status status = sl_attn_run(graph->attn, kv, &rows, err);
    if (status == SL_OK && !graph->options.staged)
        status = sl_graph_append(graph, kv, graph->layer, graph->n_rows, err);
    return status;
}

sl_status sl_graph_layer(sl_graph *graph, sl_kv *kv, sl_err *err)
{
    uint8_t *own = sl_graph_own(graph, graph->layer);
    if (!graph->options.attend) {
        uint32_t n_tail = 0;
        const uint8_t *tail = sl_kv_tail(kv, graph->layer, &n_tail);
        assert(n_tail == graph->first_pos % SL_TILE);
        if (n_tail > 0)
            memcpy(own, tail, sl_geom_group_bytes(&graph->options.geom, graph->layer));
    }
    sl_status status = project_qkv(graph, err);
    if (status == SL_OK)
        status = attend(graph, kv, own, err);
    return status == SL_OK ? feed_forward(graph, err) : status;
}
