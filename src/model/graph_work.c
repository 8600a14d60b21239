/* Work over the chunk's rows and over matrices, spread over the pool: rows and outputs are split, never a sum. */
#include "kernel/race.h"
#include "model/graph_impl.h"

typedef struct row_work {
    sl_graph *graph;
    sl_graph_row_fn fn;
    size_t n, per_item;
} row_work;

static void row_item(void *arg, size_t item, size_t worker)
{
    (void)worker;
    row_work *work = arg;
    size_t first = item * work->per_item;
    for (size_t i = first; i < first + work->per_item && i < work->n; i++)
        work->fn(work->graph, i);
}

void sl_graph_for(sl_graph *graph, size_t n, sl_graph_row_fn fn)
{
    row_work work = {graph, fn, n, n / (4 * sl_pool_threads(graph->options.pool)) + 1};
    sl_pool_run(graph->options.pool, (n + work.per_item - 1) / work.per_item, row_item, &work);
}

void sl_graph_for_rows(sl_graph *graph, sl_graph_row_fn fn)
{
    sl_graph_for(graph, graph->n, fn);
}

typedef struct product_work {
    const sl_graph *graph;
    const sl_graph_product *products;
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
    sl_race_product(&args);
    sl_kernels_gemm(work->graph->options.kernels, matrix->type)(&args);
}

void sl_graph_multiply(const sl_graph *graph, const float *x, size_t x_stride, size_t n_rows,
                       const sl_graph_product *products, size_t n_products)
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

bool sl_graph_next_chunk(sl_graph *graph, size_t n_rows)
{
    graph->first += graph->n;
    graph->n = n_rows - graph->first < graph->chunk_rows ? n_rows - graph->first : graph->chunk_rows;
    return graph->n > 0;
}

void sl_graph_trace(const sl_graph *graph, sl_trace_lane lane, const char *name, double start_s, int64_t layer)
{
    const sl_trace_about about = {layer, -1, -1, -1};
    sl_trace_span(graph->options.trace, lane, name, start_s, sl_trace_now(graph->options.trace), about);
}
