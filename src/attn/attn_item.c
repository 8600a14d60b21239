/* Memory of attention, and work items: which blocks of which heads and segments one thread computes at a time. */
#include "attn/attn_impl.h"
#include "kernel/race.h"

enum {
    TOO_LITTLE = 8 /* tiles x blocks that one thread computes sooner than two could */
};

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Fills in the sizes that depend on geometry and rows. */
static void measure(const sl_attn_options *options, sl_attn *attn)
{
    attn->options = *options;
    for (uint32_t i = 0; i < options->geom.n_layers; i++) {
        const sl_kv_layer *layer = &options->geom.layers[i];
        size_t group = options->n_heads / layer->n_kv_heads;
        size_t blocks = (options->max_rows * group + SL_LANES - 1) / SL_LANES * layer->n_kv_heads;
        attn->max_blocks = max_size(attn->max_blocks, blocks);
        attn->qblock_bytes = max_size(attn->qblock_bytes, sl_qblock_bytes(options->geom.type, layer->head_dim));
        attn->state_bytes = max_size(attn->state_bytes, sl_state_bytes(layer->head_dim));
        attn->group_bytes = max_size(attn->group_bytes, sl_geom_group_bytes(&options->geom, i));
        attn->scratch_bytes = max_size(attn->scratch_bytes, sl_tile_scratch_bytes(options->geom.type, layer->head_dim));
    }
    attn->scratch_bytes = (attn->scratch_bytes + 63) & ~(size_t)63;
    size_t threads = sl_pool_threads(options->pool);
    attn->spare_blocks = threads > 1 ? 4 * threads : 0;
    attn->map_bytes = attn->max_blocks * (attn->qblock_bytes + 2 * attn->state_bytes) +
                      attn->spare_blocks * attn->state_bytes + threads * attn->scratch_bytes +
                      (options->trees ? sl_tree_max_tiles(options->max_rows) * attn->group_bytes : 0);
}

uint64_t sl_attn_bytes(const sl_attn_options *options)
{
    sl_attn attn = {0};
    measure(options, &attn);
    return attn.map_bytes + SL_MEM_ALIGN + sizeof attn + 64;
}

sl_status sl_attn_create(const sl_attn_options *options, sl_attn **out, sl_err *err)
{
    *out = NULL;
    sl_attn *attn = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *attn, "attention", &attn, err);
    if (status != SL_OK)
        return status;
    measure(options, attn);
    status = sl_mem_map(options->budget, attn->map_bytes, "attention states", &attn->map, err);
    if (status != SL_OK) {
        sl_attn_destroy(attn);
        return status;
    }
    attn->qblocks = attn->map;
    attn->segments = attn->qblocks + attn->max_blocks * attn->qblock_bytes;
    attn->totals = attn->segments + attn->max_blocks * attn->state_bytes;
    attn->spare = attn->totals + attn->max_blocks * attn->state_bytes;
    attn->scratch = attn->spare + attn->spare_blocks * attn->state_bytes;
    attn->branch_tiles = attn->scratch + sl_pool_threads(options->pool) * attn->scratch_bytes;
    *out = attn;
    return SL_OK;
}

void sl_attn_destroy(sl_attn *attn)
{
    if (!attn)
        return;
    sl_mem_unmap(attn->options.budget, attn->map, attn->map_bytes);
    sl_mem_free(attn->options.budget, attn);
}

sl_attn_item sl_attn_item_of(const sl_attn *attn, size_t item, size_t worker)
{
    size_t place = item / sl_attn_n_items(attn);
    uint8_t *segments = attn->segments;
    if (place > 0)
        segments = attn->spare + (place - 1) * attn->n_kv_heads * attn->n_blocks * attn->state_bytes;
    item %= sl_attn_n_items(attn);
    sl_attn_item span = {.head = item / attn->n_chunks * attn->together, .first = item % attn->n_chunks * attn->chunk};
    span.n_heads = sl_attn_min(attn->together, attn->n_kv_heads - span.head);
    span.n = sl_attn_min(attn->chunk, attn->n_blocks - span.first);
    size_t block = span.head * attn->n_blocks + span.first;
    span.qblocks = attn->qblocks + block * sl_qblock_bytes(attn->options.geom.type, attn->head_dim);
    span.segments = segments + block * attn->state_bytes;
    span.totals = attn->totals + block * attn->state_bytes;
    span.scratch = attn->scratch + worker * attn->scratch_bytes;
    return span;
}

void sl_attn_run_items(sl_attn *attn, size_t n, size_t work, sl_pool_task task)
{
    if (work > TOO_LITTLE)
        sl_pool_run(attn->options.pool, n, task, attn);
    else
        sl_pool_run_alone(attn->options.pool, n, task, attn);
}

/* Heads together and segments side by side: as many heads, where each has one block, as leave every thread several
 * items all the same; then as many segments as give it those, if there is room for their states. */
static void set_side(sl_attn *attn, size_t wanted)
{
    uint64_t segments = (attn->rows->first_pos + SL_SEGMENT_TOKENS - 1) / SL_SEGMENT_TOKENS;
    size_t most = sl_attn_min(SL_ATTN_MAX_SIDE, 1 + attn->spare_blocks / (attn->n_kv_heads * attn->n_blocks));
    size_t filled = segments < most ? (size_t)segments : most;
    attn->together = attn->n_blocks == 1 ? attn->n_kv_heads : 1;
    while (attn->together > 1 && sl_attn_n_items(attn) * filled < wanted)
        attn->together--;
    attn->side = 1;
    if (sl_attn_n_items(attn) < wanted / 2 || (attn->together > 1 && sl_attn_n_items(attn) < wanted))
        attn->side = sl_attn_min((wanted + sl_attn_n_items(attn) - 1) / sl_attn_n_items(attn), most);
}

void sl_attn_divide(sl_attn *attn)
{
    attn->n_blocks = (sl_attn_n_queries(attn) + SL_LANES - 1) / SL_LANES;
    /* Enough items for every thread to get several, few enough that a tile is widened for many blocks. */
    size_t wanted = 4 * sl_pool_threads(attn->options.pool);
    size_t per_head = (wanted + attn->n_kv_heads - 1) / attn->n_kv_heads;
    attn->chunk = sl_attn_min(SL_ATTN_MAX_CHUNK, (attn->n_blocks + per_head - 1) / per_head);
    attn->n_chunks = (attn->n_blocks + attn->chunk - 1) / attn->chunk;
    set_side(attn, wanted);
}

sl_tile_args sl_attn_args_of(const sl_attn *attn, const sl_attn_item *span, size_t first, size_t n)
{
    size_t first_query = (span->first + first) * SL_LANES;
    return (sl_tile_args){
        .head_dim = attn->head_dim,
        .qblocks = span->qblocks + first * sl_qblock_bytes(attn->options.geom.type, attn->head_dim),
        .states = span->segments + first * attn->state_bytes,
        .state_stride = attn->state_bytes,
        .n_queries = sl_attn_min(n * SL_LANES, sl_attn_n_queries(attn) - first_query),
        .softcap = attn->options.softcap,
        .scratch = span->scratch,
        .next = span->next,
    };
}

void sl_attn_fold_tile(const sl_attn *attn, const sl_attn_item *span, size_t first, size_t n, const uint8_t *tile,
                       const uint64_t *masks)
{
    if (n == 0)
        return;
    sl_tile_args args = sl_attn_args_of(attn, span, first, n);
    args.tile = tile;
    args.masks = masks ? masks + first * SL_LANES : NULL;
    sl_race_tile(&args, attn->options.geom.type);
    sl_kernels_attn_tile(attn->options.kernels, attn->options.geom.type)(&args);
}

void sl_attn_fold_segment(const sl_attn *attn, const sl_attn_item *span)
{
    attn->options.kernels->attn_segfold(span->totals, span->segments, attn->state_bytes, span->n * span->n_heads,
                                        attn->head_dim);
}

void sl_attn_trace(const sl_attn *attn, const char *name, double start_s, int64_t part)
{
    const sl_trace_about about = {attn->rows->layer, part, -1, -1};
    sl_trace_span(attn->options.trace, SL_TRACE_LANE_KERNEL, name, start_s, sl_trace_now(attn->options.trace), about);
}
