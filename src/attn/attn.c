/* THE PATH: how one part travels from flash to output. Read from the bottom up:
 *
 *   sl_attn_run        packs the queries, takes the stored parts as the ring hands them over, then the own tiles
 *     begin            queries -> query blocks; states to (-inf, 0, 0)
 *     fold_held        a few parts of stored tiles x all queries       (every key visible)
 *     finish           own tiles under the causal mask, last segment folded, O / l -> out
 *
 * begin, fold_held and finish are the seam where another backend can stand. A work item is one KV head and a chunk
 * of query blocks: items share no state, so that neither their order nor the thread count can change a bit. Where
 * heads and rows are too few to occupy the threads, the pass is split: an item is then one segment's too, and several
 * segments, each with a state of its own, are computed side by side; they join the total left to right as ever.
 * Where memory bounds the pass, an item is several heads: their tiles lie side by side, and memory is read faster in
 * long runs. */
#include "attn/attn.h"

#include <assert.h>
#include <math.h>

enum {
    MAX_CHUNK = 16,                         /* query blocks per item: a tile is widened once for so many */
    MAX_SIDE = 16,                          /* segments side by side */
    MAX_HELD = MAX_SIDE * SL_SEGMENT_PARTS, /* parts per run of the pool */
    MAX_RING_HELD = 2 * SL_SEGMENT_PARTS,   /* of them in the ring: what is held, the reader cannot fill */
    ENOUGH = 256,   /* tiles x blocks per run of the pool: waking a thread takes as long as 20 or so */
    TOO_LITTLE = 8, /* tiles x blocks that one thread computes sooner than two could */
    RUN_LEAST = 3,
    RUN_MOST = 4 /* queries of a head whose tiles go to the kernel in runs */
};

struct sl_attn {
    sl_attn_options options;
    size_t qblock_bytes, state_bytes, scratch_bytes; /* the largest over the layers */
    size_t map_bytes;
    /* [max_blocks] query blocks, then as many segment states, totals, then [spare_blocks] segment states of a split
     * pass's further segments, then scratch for each worker */
    uint8_t *map;
    uint8_t *qblocks, *segments, *totals, *spare, *scratch;
    size_t max_blocks, spare_blocks;

    /* the layer being computed */
    const sl_attn_rows *rows;
    size_t head_dim, n_kv_heads, group; /* group: queries that share a KV head, per row */
    size_t n_blocks;                    /* per KV head */
    size_t chunk, n_chunks;             /* per KV head */
    size_t together;                    /* KV heads per item; above 1 only where n_blocks is 1 */
    size_t side;                        /* segments side by side; 1: the pass is not split */
    sl_kv_part held[MAX_HELD];          /* taken from the store, in order, not folded yet */
    size_t n_held, n_ring_held;
};

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
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
        attn->scratch_bytes = max_size(attn->scratch_bytes, sl_tile_scratch_bytes(options->geom.type, layer->head_dim));
    }
    attn->scratch_bytes = (attn->scratch_bytes + 63) & ~(size_t)63;
    size_t threads = sl_pool_threads(options->pool);
    attn->spare_blocks = threads > 1 ? 4 * threads : 0;
    attn->map_bytes = attn->max_blocks * (attn->qblock_bytes + 2 * attn->state_bytes) +
                      attn->spare_blocks * attn->state_bytes + threads * attn->scratch_bytes;
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

static size_t n_items(const sl_attn *attn)
{
    return (attn->n_kv_heads + attn->together - 1) / attn->together * attn->n_chunks;
}

/* A work item: blocks [first, first + n) of one KV head, or the only block of each of several. Arrays of blocks lie
 * head after head. */
typedef struct item_span {
    size_t head, n_heads, first, n;
    uint8_t *qblocks, *segments, *totals;
    uint8_t *scratch;    /* the worker's */
    const uint8_t *next; /* the tile to come, if it is known: NULL in a new span */
} item_span;

/* Items from n_items on are a split pass's further segments: item / n_items is the segment's place among `side`. */
static item_span span_of(const sl_attn *attn, size_t item, size_t worker)
{
    size_t place = item / n_items(attn);
    uint8_t *segments = attn->segments;
    if (place > 0)
        segments = attn->spare + (place - 1) * attn->n_kv_heads * attn->n_blocks * attn->state_bytes;
    item %= n_items(attn);
    item_span span = {.head = item / attn->n_chunks * attn->together, .first = item % attn->n_chunks * attn->chunk};
    span.n_heads = min_size(attn->together, attn->n_kv_heads - span.head);
    span.n = min_size(attn->chunk, attn->n_blocks - span.first);
    size_t block = span.head * attn->n_blocks + span.first;
    span.qblocks = attn->qblocks + block * sl_qblock_bytes(attn->options.geom.type, attn->head_dim);
    span.segments = segments + block * attn->state_bytes;
    span.totals = attn->totals + block * attn->state_bytes;
    span.scratch = attn->scratch + worker * attn->scratch_bytes;
    return span;
}

/* Of a span's heads, the i-th. */
static item_span head_of(const sl_attn *attn, item_span span, size_t i)
{
    span.head += i;
    span.n_heads = 1;
    span.qblocks += i * attn->n_blocks * sl_qblock_bytes(attn->options.geom.type, attn->head_dim);
    span.segments += i * attn->n_blocks * attn->state_bytes;
    span.totals += i * attn->n_blocks * attn->state_bytes;
    return span;
}

/* Queries of one KV head, numbered row by row: n_rows * group. */
static size_t n_queries(const sl_attn *attn)
{
    return attn->rows->n_rows * attn->group;
}

/* Where query `query` of a KV head lies in a row-major buffer. */
static size_t query_off(const sl_attn *attn, size_t head, size_t query, size_t stride)
{
    return query / attn->group * stride + (head * attn->group + query % attn->group) * attn->head_dim;
}

static float score_factor(const sl_attn *attn)
{
    double scale = attn->options.scale > 0.0f ? (double)attn->options.scale : 1.0 / sqrt((double)attn->head_dim);
    if (attn->options.softcap > 0.0f)
        return (float)(scale / (double)attn->options.softcap);
    return (float)(1.4426950408889634074 * scale);
}

static void reset_states(uint8_t *states, size_t n, size_t stride, size_t head_dim)
{
    for (size_t b = 0; b < n; b++) {
        float *state = (float *)(void *)(states + b * stride);
        for (size_t lane = 0; lane < SL_LANES; lane++)
            state[lane] = -INFINITY;
        for (size_t i = SL_LANES; i < (2 + head_dim) * SL_LANES; i++)
            state[i] = 0.0f;
    }
}

static void pack_queries(const sl_attn *attn, item_span span)
{
    sl_attn_qpack_fn pack = sl_kernels_attn_qpack(attn->options.kernels, attn->options.geom.type);
    for (size_t b = 0; b < span.n; b++) {
        size_t first = (span.first + b) * SL_LANES, n = min_size(SL_LANES, n_queries(attn) - first);
        const float *q[SL_LANES];
        for (size_t i = 0; i < n; i++)
            q[i] = attn->rows->q + query_off(attn, span.head, first + i, attn->rows->q_stride);
        pack(span.qblocks + b * sl_qblock_bytes(attn->options.geom.type, attn->head_dim), q, n, attn->head_dim,
             score_factor(attn));
    }
}

static void begin_item(void *arg, size_t item, size_t worker)
{
    sl_attn *attn = arg;
    item_span all = span_of(attn, item, worker);
    for (size_t i = 0; i < all.n_heads; i++)
        pack_queries(attn, head_of(attn, all, i));
    for (size_t place = 0; place < attn->side; place++)
        reset_states(span_of(attn, place * n_items(attn) + item, worker).segments, all.n * all.n_heads,
                     attn->state_bytes, attn->head_dim);
    reset_states(all.totals, all.n * all.n_heads, attn->state_bytes, attn->head_dim);
}

/* work: tiles x blocks, or as much as so many */
static void run_items(sl_attn *attn, size_t n, size_t work, sl_pool_task task)
{
    if (work > TOO_LITTLE)
        sl_pool_run(attn->options.pool, n, task, attn);
    else
        sl_pool_run_alone(attn->options.pool, n, task, attn);
}

/* Heads together and segments side by side: as many heads, where each has one block, as leave every thread several
 * items all the same; then as many segments as give it those, if there is room for their states. */
static void divide(sl_attn *attn, size_t wanted)
{
    uint64_t segments = (attn->rows->first_pos + SL_SEGMENT_TOKENS - 1) / SL_SEGMENT_TOKENS;
    size_t most = min_size(MAX_SIDE, 1 + attn->spare_blocks / (attn->n_kv_heads * attn->n_blocks));
    size_t filled = segments < most ? (size_t)segments : most;
    attn->together = attn->n_blocks == 1 ? attn->n_kv_heads : 1;
    while (attn->together > 1 && n_items(attn) * filled < wanted)
        attn->together--;
    attn->side = 1;
    if (n_items(attn) < wanted / 2 || (attn->together > 1 && n_items(attn) < wanted))
        attn->side = min_size((wanted + n_items(attn) - 1) / n_items(attn), most);
}

static void begin(sl_attn *attn, const sl_attn_rows *rows)
{
    const sl_kv_layer *layer = &attn->options.geom.layers[rows->layer];
    assert(rows->n_rows > 0 && rows->n_rows <= attn->options.max_rows);
    attn->rows = rows;
    attn->head_dim = layer->head_dim;
    attn->n_kv_heads = layer->n_kv_heads;
    attn->group = attn->options.n_heads / layer->n_kv_heads;
    attn->n_blocks = (n_queries(attn) + SL_LANES - 1) / SL_LANES;
    /* Enough items for every thread to get several, few enough that a tile is widened for many blocks. */
    size_t wanted = 4 * sl_pool_threads(attn->options.pool);
    size_t per_head = (wanted + attn->n_kv_heads - 1) / attn->n_kv_heads;
    attn->chunk = min_size(MAX_CHUNK, (attn->n_blocks + per_head - 1) / per_head);
    attn->n_chunks = (attn->n_blocks + attn->chunk - 1) / attn->chunk;
    divide(attn, wanted);
    attn->n_held = attn->n_ring_held = 0;
    run_items(attn, n_items(attn), attn->n_kv_heads * attn->n_blocks, begin_item);
}

/* Whether a part's tiles of one head go to the kernel together, because it has a way of its own for that. */
static bool in_runs(const sl_attn *attn)
{
    const sl_kernels *kernels = attn->options.kernels;
    return attn->options.geom.type == SL_KV_TYPE_Q8_0 && n_queries(attn) >= RUN_LEAST && n_queries(attn) <= RUN_MOST &&
           kernels->level[SL_KERNEL_ENTRY_attn_tiles_q8] != SL_CPU_LEVEL_REF;
}

/* Blocks [first, first + n) of the span, n > 0, as a kernel takes them; without tile and masks. */
static sl_tile_args args_of(const sl_attn *attn, const item_span *span, size_t first, size_t n)
{
    size_t first_query = (span->first + first) * SL_LANES;
    return (sl_tile_args){
        .head_dim = attn->head_dim,
        .qblocks = span->qblocks + first * sl_qblock_bytes(attn->options.geom.type, attn->head_dim),
        .states = span->segments + first * attn->state_bytes,
        .state_stride = attn->state_bytes,
        .n_queries = min_size(n * SL_LANES, n_queries(attn) - first_query),
        .softcap = attn->options.softcap,
        .scratch = span->scratch,
        .next = span->next,
    };
}

/* Folds one tile into blocks [first, first + n) of the span. masks, as in sl_tile_args: [of the span's blocks]. */
static void fold_tile(const sl_attn *attn, const item_span *span, size_t first, size_t n, const uint8_t *tile,
                      const uint64_t *masks)
{
    if (n == 0)
        return;
    sl_tile_args args = args_of(attn, span, first, n);
    args.tile = tile;
    args.masks = masks ? masks + first * SL_LANES : NULL;
    sl_kernels_attn_tile(attn->options.kernels, attn->options.geom.type)(&args);
}

static void fold_segment(const sl_attn *attn, const item_span *span)
{
    attn->options.kernels->attn_segfold(span->totals, span->segments, attn->state_bytes, span->n * span->n_heads,
                                        attn->head_dim);
}

static size_t segment_of(const sl_kv_part *part)
{
    return (size_t)(part->first_token / SL_SEGMENT_TOKENS);
}

static bool ends_segment(const sl_kv_part *part)
{
    return (part->first_token + part->n_groups * (uint64_t)SL_TILE) % SL_SEGMENT_TOKENS == 0;
}

/* then: the item's next part of what is held, or NULL. */
static void fold_part(const sl_attn *attn, const item_span *all, const sl_kv_part *part, const sl_kv_part *then)
{
    const sl_kernels *kernels = attn->options.kernels;
    size_t tile_bytes = sl_tile_bytes(attn->options.geom.type, attn->head_dim);
    size_t group_bytes = attn->n_kv_heads * tile_bytes;
    const uint8_t *tiles = part->tiles + all->head * tile_bytes;
    const uint8_t *after = then ? then->tiles + all->head * tile_bytes : NULL;
    if (in_runs(attn)) {
        for (size_t i = 0; i < all->n_heads; i++) {
            item_span span = head_of(attn, *all, i);
            span.next = i + 1 < all->n_heads ? tiles + (i + 1) * tile_bytes : after;
            sl_tile_args args = args_of(attn, &span, 0, span.n);
            args.tile = tiles + i * tile_bytes;
            kernels->attn_tiles_q8(&args, part->n_groups, group_bytes, kernels->attn_tile_q8);
        }
        return;
    }
    for (uint32_t g = 0; g < part->n_groups; g++, tiles += group_bytes)
        for (size_t i = 0; i < all->n_heads; i++) {
            item_span span = head_of(attn, *all, i);
            span.next = g + 1 < part->n_groups ? tiles + group_bytes : after;
            if (i + 1 < all->n_heads)
                span.next = tiles + (i + 1) * tile_bytes;
            fold_tile(attn, &span, 0, span.n, tiles + i * tile_bytes, NULL);
        }
}

static void fold_held_item(void *arg, size_t item, size_t worker)
{
    sl_attn *attn = arg;
    item_span span = span_of(attn, item, worker);
    size_t place = item / n_items(attn);
    const sl_kv_part *end = attn->held + attn->n_held;
    for (const sl_kv_part *part = attn->held, *then; part < end; part = then) {
        then = part + 1;
        if (segment_of(part) % attn->side != place)
            continue;
        while (then < end && segment_of(then) % attn->side != place)
            then++;
        fold_part(attn, &span, part, then < end ? then : NULL);
        if (ends_segment(part) && attn->side == 1)
            fold_segment(attn, &span);
    }
}

/* In a split pass, when all segments of the run are computed: those that ended join the totals in order. */
static void fold_ended(void *arg, size_t unused, size_t worker)
{
    sl_attn *attn = arg;
    (void)unused;
    for (const sl_kv_part *part = attn->held; part < attn->held + attn->n_held; part++)
        for (size_t item = 0; item < n_items(attn) && ends_segment(part); item++) {
            item_span span = span_of(attn, segment_of(part) % attn->side * n_items(attn) + item, worker);
            fold_segment(attn, &span);
        }
}

/* A kernel span that ends now. */
static void trace(const sl_attn *attn, const char *name, double start_s, int64_t part)
{
    const sl_trace_about about = {attn->rows->layer, part, -1, -1};
    sl_trace_span(attn->options.trace, SL_TRACE_LANE_KERNEL, name, start_s, sl_trace_now(attn->options.trace), about);
}

static void release_held(sl_attn *attn, sl_kv *kv)
{
    for (size_t i = 0; i < attn->n_held; i++)
        sl_kv_release(kv, &attn->held[i]);
    attn->n_held = attn->n_ring_held = 0;
}

/* Every stored key precedes every row: no mask. */
static void fold_held(sl_attn *attn, sl_kv *kv)
{
    if (attn->n_held == 0)
        return;
    double start_s = sl_trace_now(attn->options.trace);
    sl_pool_run(attn->options.pool, attn->side * n_items(attn), fold_held_item, attn);
    if (attn->side > 1)
        sl_pool_run_alone(attn->options.pool, 1, fold_ended, attn);
    trace(attn, "attention", start_s, (int64_t)(attn->held[0].first_token / SL_PART_TOKENS));
    release_held(attn, kv);
}

/* Whether what is held is worth the waking of threads: it must not wait for the disk, nor span more segments than lie
 * side by side. */
static bool is_enough(const sl_attn *attn, sl_kv *kv)
{
    size_t work = attn->n_held * SL_PART_TILES * attn->n_kv_heads * attn->n_blocks;
    uint64_t next_token = attn->held[attn->n_held - 1].first_token + SL_PART_TOKENS;
    size_t side = attn->side > 1 ? attn->side : MAX_SIDE;
    return attn->n_held == MAX_HELD || attn->n_ring_held == MAX_RING_HELD || (work >= ENOUGH && attn->side == 1) ||
           next_token / SL_SEGMENT_TOKENS >= segment_of(attn->held) + side || !sl_kv_is_ready(kv, attn->rows->layer);
}

/* The keys of the tile at tile_pos that a row at `pos` sees: those up to its own position. */
static uint64_t causal_mask(uint64_t tile_pos, uint64_t pos)
{
    if (pos < tile_pos)
        return 0;
    return pos - tile_pos >= SL_TILE - 1 ? UINT64_MAX : (UINT64_C(1) << (pos - tile_pos + 1)) - 1;
}

/* One own tile: blocks wholly before it are passed over, blocks that it cuts get masks, later ones see all of it. */
static void fold_own_tile(const sl_attn *attn, const item_span *span, const uint8_t *tile, uint64_t tile_pos)
{
    uint64_t masks[MAX_CHUNK * SL_LANES];
    size_t hidden = 0, cut = 0;
    for (size_t b = 0; b < span->n; b++) {
        uint64_t all = UINT64_MAX, any = 0;
        for (size_t lane = 0; lane < SL_LANES; lane++) {
            size_t query = (span->first + b) * SL_LANES + lane;
            uint64_t mask = causal_mask(tile_pos, attn->rows->first_pos + query / attn->group);
            masks[b * SL_LANES + lane] = mask;
            if (query < n_queries(attn)) {
                all &= mask;
                any |= mask;
            }
        }
        hidden += any == 0;
        cut += any != 0 && all != UINT64_MAX;
    }
    fold_tile(attn, span, hidden, cut, tile, masks);
    fold_tile(attn, span, hidden + cut, span->n - hidden - cut, tile, NULL);
}

static void finish_head(const sl_attn *attn, item_span span)
{
    uint64_t pos = attn->rows->first_pos / SL_TILE * SL_TILE;
    size_t tile_bytes = sl_tile_bytes(attn->options.geom.type, attn->head_dim);
    size_t last_query = min_size((span.first + span.n) * SL_LANES, n_queries(attn)) - 1;
    uint64_t last_pos = attn->rows->first_pos + last_query / attn->group;
    for (size_t g = 0; pos <= last_pos; g++, pos += SL_TILE) {
        /* A segment that ended exactly where the own tiles start was folded with its last part. */
        if (pos % SL_SEGMENT_TOKENS == 0)
            fold_segment(attn, &span);
        fold_own_tile(attn, &span, attn->rows->own_groups + (g * attn->n_kv_heads + span.head) * tile_bytes, pos);
    }
    fold_segment(attn, &span);
    for (size_t b = 0; b < span.n; b++) {
        size_t first = (span.first + b) * SL_LANES, n = min_size(SL_LANES, n_queries(attn) - first);
        float *out[SL_LANES];
        for (size_t i = 0; i < n; i++)
            out[i] = attn->rows->out + query_off(attn, span.head, first + i, attn->rows->out_stride);
        attn->options.kernels->attn_finish(span.totals + b * attn->state_bytes, out, n, attn->head_dim);
    }
}

static void finish_item(void *arg, size_t item, size_t worker)
{
    sl_attn *attn = arg;
    size_t place = attn->rows->first_pos / SL_TILE * SL_TILE / SL_SEGMENT_TOKENS % attn->side;
    item_span all = span_of(attn, place * n_items(attn) + item, worker);
    for (size_t i = 0; i < all.n_heads; i++)
        finish_head(attn, head_of(attn, all, i));
}

static void finish(sl_attn *attn)
{
    double start_s = sl_trace_now(attn->options.trace);
    size_t tiles = (attn->rows->first_pos % SL_TILE + attn->rows->n_rows + SL_TILE - 1) / SL_TILE;
    run_items(attn, n_items(attn), tiles * attn->n_kv_heads * attn->n_blocks, finish_item);
    trace(attn, "own tiles", start_s, -1);
}

sl_status sl_attn_run(sl_attn *attn, sl_kv *kv, const sl_attn_rows *rows, sl_err *err)
{
    begin(attn, rows);
    for (bool found = true; found;) {
        sl_kv_part part;
        sl_status status = rows->stop && rows->stop(rows->arg) ? sl_err_set(err, SL_CANCELLED, "cancelled")
                                                               : sl_kv_next(kv, rows->layer, &part, &found, err);
        if (status != SL_OK) {
            release_held(attn, kv);
            return status;
        }
        if (found) {
            attn->held[attn->n_held++] = part;
            attn->n_ring_held += part.slot >= 0;
        }
        if (!found || is_enough(attn, kv))
            fold_held(attn, kv);
    }
    finish(attn);
    return SL_OK;
}
