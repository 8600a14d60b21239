/* A layer's mixture of experts: the router's choice for each row, every expert once for all rows of the chunk that
 * chose it, and each row's sum in the order of its own choice. Which rows share a chunk moves no bit. */
#include <math.h>
#include <string.h>

#include "model/graph_impl.h"

/* The best n_used logits, the lower id first among equals; their shares are exp2((logit - best) * log2 e) over the sum
 * of these, added in that order. The sum of the softmax over all experts, of which they are taken, cancels out. */
static void choose_row(sl_graph *graph, size_t row)
{
    const sl_kernels *kernels = graph->options.kernels;
    const size_t n_experts = graph->hp.n_experts, n_used = graph->hp.n_used;
    float *logits = graph->experts.logits + row * n_experts, *shares = graph->experts.shares + row * n_used;
    graph->bad[row] = !kernels->finite(logits, n_experts);
    if (graph->bad[row])
        return;
    for (size_t i = 0; i < n_used; i++) {
        size_t best = kernels->argmax(logits, n_experts);
        graph->experts.ids[row * n_used + i] = (uint32_t)best;
        shares[i] = logits[best];
        logits[best] = -INFINITY;
    }
    const float best = shares[0];
    float sum = 0.0f;
    for (size_t i = 0; i < n_used; i++)
        shares[i] = (shares[i] - best) * SL_LOG2E;
    kernels->exp2(shares, shares, n_used);
    for (size_t i = 0; i < n_used; i++)
        sum += shares[i];
    for (size_t i = 0; i < n_used; i++)
        shares[i] /= sum;
}

/* Counts, then places: expert by expert, rows rising. */
static void place_choices(sl_graph *graph)
{
    sl_graph_experts *e = &graph->experts;
    const size_t n_used = graph->hp.n_used, n_choices = graph->n * n_used;
    memset(e->ends, 0, graph->hp.n_experts * sizeof *e->ends);
    for (size_t i = 0; i < n_choices; i++)
        e->ends[e->ids[i]]++;
    uint32_t n_before = 0;
    for (size_t i = 0; i < graph->hp.n_experts; i++) {
        uint32_t n = e->ends[i];
        e->ends[i] = n_before;
        n_before += n;
    }
    for (size_t i = 0; i < n_choices; i++) {
        e->places[i] = e->ends[e->ids[i]]++;
        e->rows[e->places[i]] = (uint32_t)(i / n_used);
    }
}

/* The expert's i-th row. */
static void gather_row(sl_graph *graph, size_t i)
{
    const size_t n_embd = graph->hp.n_embd;
    float *x = graph->experts.x + i * n_embd;
    memcpy(x, graph->tmp + graph->experts.rows[graph->experts.first + i] * graph->wide, n_embd * sizeof *x);
    sl_graph_quantise(graph, x, i, n_embd);
}

static void run_expert(sl_graph *graph, size_t expert, size_t n_rows)
{
    const sl_layer_weights *w = &graph->options.weights->layers[graph->layer];
    const size_t n_embd = graph->hp.n_embd;
    const sl_matrix gate = sl_matrix_of_stack(&w->w_gate, expert), up = sl_matrix_of_stack(&w->w_up, expert);
    const sl_matrix down = sl_matrix_of_stack(&w->w_down, expert);
    const sl_graph_product gate_up[] = {{&gate, graph->a, graph->wide}, {&up, graph->b, graph->wide}};
    const sl_graph_product out = {&down, graph->experts.out + graph->experts.first * n_embd, n_embd};
    sl_graph_for(graph, n_rows, gather_row);
    sl_graph_multiply(graph, graph->experts.x, n_embd, n_rows, gate_up, 2);
    sl_graph_for(graph, n_rows, sl_graph_activate_row);
    sl_graph_multiply(graph, graph->a, graph->wide, n_rows, &out, 1);
}

/* Products and sums each rounded, in the order of the row's choice. */
static void sum_row(sl_graph *graph, size_t row)
{
    const size_t n_used = graph->hp.n_used, n_embd = graph->hp.n_embd;
    float *out = graph->tmp + row * graph->wide;
    for (size_t i = 0; i < n_used; i++) {
        const float share = graph->experts.shares[row * n_used + i];
        const float *from = graph->experts.out + graph->experts.places[row * n_used + i] * n_embd;
        for (size_t k = 0; k < n_embd; k++)
            out[k] = i > 0 ? out[k] + share * from[k] : share * from[k];
    }
}

sl_status sl_graph_mix(sl_graph *graph, sl_err *err)
{
    const sl_graph_product router = {&graph->options.weights->layers[graph->layer].router, graph->experts.logits,
                                     graph->hp.n_experts};
    sl_graph_multiply(graph, graph->tmp, graph->wide, graph->n, &router, 1);
    sl_graph_for_rows(graph, choose_row);
    sl_status status = sl_graph_check_rows(graph, "router logit", err);
    if (status != SL_OK)
        return status;
    place_choices(graph);
    graph->experts.first = 0;
    for (size_t expert = 0; expert < graph->hp.n_experts; expert++) {
        size_t n_rows = graph->experts.ends[expert] - graph->experts.first;
        if (n_rows > 0)
            run_expert(graph, expert, n_rows);
        graph->experts.first += n_rows;
    }
    sl_graph_for_rows(graph, sum_row);
    return SL_OK;
}
