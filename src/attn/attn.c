/* THE PATH: how one part travels from flash to output. Read from the bottom up:
 *
 *   sl_attn_run        packs the queries, takes the stored parts as the ring hands them over, then the own tiles
 *     begin            queries -> query blocks; states to (-inf, 0, 0)
 *     fold_held        a few parts of stored tiles x all queries       (every key visible)
 *     sl_attn_finish   own tiles under the causal mask, last segment folded, O / l -> out (attn_own.c)
 *
 * begin, fold_held and finish are the seam where another backend can stand. A work item is one KV head and a chunk
 * of query blocks: items share no state, so that neither their order nor the thread count can change a bit. Where
 * heads and rows are too few to occupy the threads, the pass is split: an item is then one segment's too, and several
 * segments, each with a state of its own, are computed side by side; they join the total left to right as ever.
 * Where memory bounds the pass, an item is several heads: their tiles lie side by side, and memory is read faster in
 * long runs. */
#include "attn/attn_impl.h"
#include "kernel/race.h"

#include <assert.h>
#include <math.h>

enum {
    MAX_RING_HELD = 2 * SL_SEGMENT_PARTS, /* parts of the ring in a run: what is held, the reader cannot fill */
    ENOUGH = 256, /* tiles x blocks per run of the pool: waking a thread takes as long as 20 or so */
    RUN_LEAST = 3,
    RUN_MOST = 4 /* queries of a head whose tiles go to the kernel in runs */
};

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

static void pack_queries(const sl_attn *attn, sl_attn_item span)
{
    sl_attn_qpack_fn pack = sl_kernels_attn_qpack(attn->options.kernels, attn->options.geom.type);
    for (size_t b = 0; b < span.n; b++) {
        size_t first = (span.first + b) * SL_LANES, n = sl_attn_min(SL_LANES, sl_attn_n_queries(attn) - first);
        const float *q[SL_LANES];
        for (size_t i = 0; i < n; i++)
            q[i] = attn->rows->q + sl_attn_query_off(attn, span.head, first + i, attn->rows->q_stride);
        pack(span.qblocks + b * sl_qblock_bytes(attn->options.geom.type, attn->head_dim), q, n, attn->head_dim,
             score_factor(attn));
    }
}

static void begin_item(void *arg, size_t item, size_t worker)
{
    sl_attn *attn = arg;
    sl_attn_item all = sl_attn_item_of(attn, item, worker);
    for (size_t i = 0; i < all.n_heads; i++)
        pack_queries(attn, sl_attn_head_of(attn, &all, i));
    for (size_t place = 0; place < attn->side; place++)
        reset_states(sl_attn_item_of(attn, place * sl_attn_n_items(attn) + item, worker).segments, all.n * all.n_heads,
                     attn->state_bytes, attn->head_dim);
    reset_states(all.totals, all.n * all.n_heads, attn->state_bytes, attn->head_dim);
}

static void begin(sl_attn *attn, const sl_attn_rows *rows)
{
    const sl_kv_layer *layer = &attn->options.geom.layers[rows->layer];
    assert(rows->n_rows > 0 && rows->n_rows <= attn->options.max_rows);
    attn->rows = rows;
    attn->head_dim = layer->head_dim;
    attn->span = layer->span;
    attn->n_kv_heads = layer->n_kv_heads;
    attn->group = attn->options.n_heads / layer->n_kv_heads;
    sl_attn_divide(attn);
    attn->n_held = attn->n_ring_held = 0;
    if (attn->options.hot) {
        const sl_hot_rows hot = {.layer = rows->layer,
                                 .first_tile = (size_t)(sl_geom_first_seen(layer, rows->first_pos) / SL_TILE),
                                 .first_pos = rows->first_pos,
                                 .n_rows = rows->n_rows,
                                 .group = attn->group,
                                 .is_burst = rows->is_burst};
        attn->notes = sl_hot_begin(attn->options.hot, &hot, &attn->noted_block);
    }
    sl_attn_run_items(attn, sl_attn_n_items(attn), attn->n_kv_heads * attn->n_blocks, begin_item);
}

/* Whether a part's tiles of one head go to the kernel together, because it has a way of its own for that. Not where
 * notes are taken of the states between the tiles: of passes of a single row that is every fourth (hot.h). The bits are
 * the same. */
static bool in_runs(const sl_attn *attn)
{
    const sl_kernels *kernels = attn->options.kernels;
    return attn->options.geom.type == SL_KV_TYPE_Q8_0 && !attn->notes && sl_attn_n_queries(attn) >= RUN_LEAST &&
           sl_attn_n_queries(attn) <= RUN_MOST && kernels->level[SL_KERNEL_ENTRY_attn_tiles_q8] != SL_CPU_LEVEL_REF;
}

static size_t segment_of(const sl_kv_part *part)
{
    return (size_t)(part->first_token / SL_SEGMENT_TOKENS);
}

static bool ends_segment(const sl_kv_part *part)
{
    return (part->first_token + part->n_groups * (uint64_t)SL_TILE) % SL_SEGMENT_TOKENS == 0;
}

/* The hot set is shown a part once, by the item of the heads' first blocks. */
static void show_part(const sl_attn *attn, const sl_attn_item *all, const sl_kv_part *part)
{
    const size_t tile_bytes = sl_tile_bytes(attn->options.geom.type, attn->head_dim);
    if (!attn->options.hot || all->first > 0)
        return;
    for (size_t head = all->head; head < all->head + all->n_heads; head++)
        sl_hot_take(attn->options.hot, head, (size_t)(part->first_token / SL_TILE), part->n_groups,
                    part->tiles + head * tile_bytes, attn->n_kv_heads * tile_bytes);
}

/* then: the item's next part of what is held, or NULL. */
static void fold_part(const sl_attn *attn, const sl_attn_item *all, const sl_kv_part *part, const sl_kv_part *then)
{
    const sl_kernels *kernels = attn->options.kernels;
    const size_t tile_bytes = sl_tile_bytes(attn->options.geom.type, attn->head_dim);
    const size_t group_bytes = attn->n_kv_heads * tile_bytes, first_tile = (size_t)(part->first_token / SL_TILE);
    const uint8_t *tiles = part->tiles + all->head * tile_bytes;
    const uint8_t *after = then ? then->tiles + all->head * tile_bytes : NULL;
    const bool is_cut = sl_attn_is_cut(attn, part->first_token);
    if (in_runs(attn) && !is_cut) {
        for (size_t i = 0; i < all->n_heads; i++) {
            sl_attn_item span = sl_attn_head_of(attn, all, i);
            span.next = i + 1 < all->n_heads ? tiles + (i + 1) * tile_bytes : after;
            sl_tile_args args = sl_attn_args_of(attn, &span, 0, span.n);
            args.tile = tiles + i * tile_bytes;
            for (uint32_t g = 0; g < part->n_groups; g++)
                sl_race_read(args.tile + g * group_bytes, tile_bytes);
            kernels->attn_tiles_q8(&args, part->n_groups, group_bytes, kernels->attn_tile_q8);
        }
        return;
    }
    for (uint32_t g = 0; g < part->n_groups; g++, tiles += group_bytes)
        for (size_t i = 0; i < all->n_heads; i++) {
            sl_attn_item span = sl_attn_head_of(attn, all, i);
            span.next = g + 1 < part->n_groups ? tiles + group_bytes : after;
            if (i + 1 < all->n_heads)
                span.next = tiles + (i + 1) * tile_bytes;
            if (is_cut)
                sl_attn_fold_cut(attn, &span, tiles + i * tile_bytes, part->first_token + (uint64_t)g * SL_TILE);
            else
                sl_attn_fold_tile(attn, &span, 0, span.n, tiles + i * tile_bytes, NULL);
            sl_attn_note(attn, &span, first_tile + g);
        }
}

static void fold_held_item(void *arg, size_t item, size_t worker)
{
    sl_attn *attn = arg;
    sl_attn_item span = sl_attn_item_of(attn, item, worker);
    size_t place = item / sl_attn_n_items(attn);
    const sl_kv_part *end = attn->held + attn->n_held;
    for (const sl_kv_part *part = attn->held, *then; part < end; part = then) {
        then = part + 1;
        if (segment_of(part) % attn->side != place)
            continue;
        while (then < end && segment_of(then) % attn->side != place)
            then++;
        fold_part(attn, &span, part, then < end ? then : NULL);
        show_part(attn, &span, part);
        if (ends_segment(part) && attn->side == 1)
            sl_attn_fold_segment(attn, &span);
    }
}

/* In a split pass, when all segments of the run are computed: those that ended join the totals in order. */
static void fold_ended(void *arg, size_t unused, size_t worker)
{
    sl_attn *attn = arg;
    (void)unused;
    for (const sl_kv_part *part = attn->held; part < attn->held + attn->n_held; part++)
        for (size_t item = 0; item < sl_attn_n_items(attn) && ends_segment(part); item++) {
            sl_attn_item span =
                sl_attn_item_of(attn, segment_of(part) % attn->side * sl_attn_n_items(attn) + item, worker);
            sl_attn_fold_segment(attn, &span);
        }
}

static void release_held(sl_attn *attn, sl_kv *kv)
{
    for (size_t i = 0; i < attn->n_held; i++)
        sl_kv_release(kv, &attn->held[i]);
    attn->n_held = attn->n_ring_held = 0;
}

/* Every stored key precedes every row: no mask, but where a layer slides. */
static void fold_held(sl_attn *attn, sl_kv *kv)
{
    if (attn->n_held == 0)
        return;
    double start_s = sl_trace_now(attn->options.trace);
    sl_pool_run(attn->options.pool, attn->side * sl_attn_n_items(attn), fold_held_item, attn);
    if (attn->side > 1)
        sl_pool_run_alone(attn->options.pool, 1, fold_ended, attn);
    sl_attn_trace(attn, "attention", start_s, (int64_t)(attn->held[0].first_token / SL_PART_TOKENS));
    release_held(attn, kv);
}

/* Whether what is held is worth the waking of threads: it must not wait for the disk, nor span more segments than lie
 * side by side. */
static bool is_enough(const sl_attn *attn, sl_kv *kv)
{
    size_t work = attn->n_held * SL_PART_TILES * attn->n_kv_heads * attn->n_blocks;
    uint64_t next_token = attn->held[attn->n_held - 1].first_token + SL_PART_TOKENS;
    size_t side = attn->side > 1 ? attn->side : SL_ATTN_MAX_SIDE;
    return attn->n_held == SL_ATTN_MAX_HELD || attn->n_ring_held == MAX_RING_HELD ||
           (work >= ENOUGH && attn->side == 1) || next_token / SL_SEGMENT_TOKENS >= segment_of(attn->held) + side ||
           !sl_kv_is_ready(kv, attn->rows->layer);
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
    sl_attn_finish(attn);
    return SL_OK;
}
