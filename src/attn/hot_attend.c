#include "attn/hot_attend.h"

#include <assert.h>
#include <math.h>

#include "kernel/race.h"

enum {
    MAX_PIECES = 4, /* of a head's tiles, each a state of its own, that threads compute side by side */
    MAX_BLOCKS = 16 /* of queries that share a KV head */
};

struct sl_hot_attend {
    sl_attn_options options;
    size_t qblock_bytes, state_bytes, scratch_bytes, max_blocks; /* the largest over the layers */
    size_t max_heads, n_pieces;
    size_t map_bytes;
    uint8_t *map;
    uint8_t *states, *totals; /* [max_heads][n_pieces][max_blocks], [max_blocks] */
    uint8_t *workers;         /* [threads] query blocks, scratch */
    /* the call */
    const sl_hot *hot;
    const sl_attn_rows *rows;
    const uint8_t *groups;
    uint64_t groups_pos;
    size_t head_dim, n_kv_heads, group, n_blocks;
};

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void measure(const sl_attn_options *options, sl_hot_attend *attend)
{
    attend->options = *options;
    for (uint32_t i = 0; i < options->geom.n_layers; i++) {
        const sl_kv_layer *layer = &options->geom.layers[i];
        const size_t group = options->n_heads / layer->n_kv_heads;
        attend->max_heads = max_size(attend->max_heads, layer->n_kv_heads);
        attend->max_blocks = max_size(attend->max_blocks, (options->max_rows * group + SL_LANES - 1) / SL_LANES);
        attend->qblock_bytes =
            max_size(attend->qblock_bytes, sl_qblock_bytes(options->geom.type, layer->head_dim));
        attend->state_bytes = max_size(attend->state_bytes, sl_state_bytes(layer->head_dim));
        attend->scratch_bytes =
            max_size(attend->scratch_bytes, sl_tile_scratch_bytes(options->geom.type, layer->head_dim));
    }
    attend->scratch_bytes = (attend->scratch_bytes + 63) & ~(size_t)63;
    const size_t threads = sl_pool_threads(options->pool);
    attend->n_pieces = threads > 1 ? (2 * threads + attend->max_heads - 1) / attend->max_heads : 1;
    attend->n_pieces = attend->n_pieces < MAX_PIECES ? attend->n_pieces : MAX_PIECES;
    attend->map_bytes = (attend->max_heads * attend->n_pieces + 1) * attend->max_blocks * attend->state_bytes +
                        threads * (attend->max_blocks * attend->qblock_bytes + attend->scratch_bytes);
}

uint64_t sl_hot_attend_bytes(const sl_attn_options *options)
{
    sl_hot_attend attend = {0};
    measure(options, &attend);
    return attend.map_bytes + SL_MEM_ALIGN + sizeof attend + 64;
}

sl_status sl_hot_attend_create(const sl_attn_options *options, sl_hot_attend **out, sl_err *err)
{
    *out = NULL;
    sl_hot_attend *attend = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *attend, "draft attention", &attend, err);
    if (status != SL_OK)
        return status;
    measure(options, attend);
    status = sl_mem_map(options->budget, attend->map_bytes, "draft attention", &attend->map, err);
    if (status != SL_OK) {
        sl_hot_attend_destroy(attend);
        return status;
    }
    attend->states = attend->map;
    attend->totals =
        attend->states + attend->max_heads * attend->n_pieces * attend->max_blocks * attend->state_bytes;
    attend->workers = attend->totals + attend->max_blocks * attend->state_bytes;
    *out = attend;
    return SL_OK;
}

void sl_hot_attend_destroy(sl_hot_attend *attend)
{
    if (!attend)
        return;
    sl_mem_unmap(attend->options.budget, attend->map, attend->map_bytes);
    sl_mem_free(attend->options.budget, attend);
}

static float score_factor(const sl_hot_attend *attend)
{
    const sl_attn_options *o = &attend->options;
    const double scale = o->scale > 0.0f ? (double)o->scale : 1.0 / sqrt((double)attend->head_dim);
    return (float)(o->softcap > 0.0f ? scale / (double)o->softcap : 1.4426950408889634074 * scale);
}

static size_t n_queries(const sl_hot_attend *attend)
{
    return attend->rows->n_rows * attend->group;
}

/* Queries of a head, numbered row by row. */
static size_t query_off(const sl_hot_attend *attend, size_t head, size_t query, size_t stride)
{
    return query / attend->group * stride + (head * attend->group + query % attend->group) * attend->head_dim;
}

static void pack(const sl_hot_attend *attend, size_t head, uint8_t *qblocks)
{
    for (size_t b = 0; b < attend->n_blocks; b++) {
        const float *q[SL_LANES];
        size_t n = 0;
        for (; n < SL_LANES && b * SL_LANES + n < n_queries(attend); n++)
            q[n] = attend->rows->q + query_off(attend, head, b * SL_LANES + n, attend->rows->q_stride);
        sl_kernels_attn_qpack(attend->options.kernels, attend->options.geom.type)(
            qblocks + b * sl_qblock_bytes(attend->options.geom.type, attend->head_dim), q, n, attend->head_dim,
            score_factor(attend));
    }
}

static void reset(const sl_hot_attend *attend, uint8_t *states)
{
    for (size_t b = 0; b < attend->n_blocks; b++) {
        float *state = (float *)(void *)(states + b * attend->state_bytes);
        for (size_t i = 0; i < (2 + attend->head_dim) * SL_LANES; i++)
            state[i] = i < SL_LANES ? -INFINITY : 0.0f;
    }
}

/* masks [n_blocks * SL_LANES]: the keys of the tile at `pos` that each query's row sees. True: all see all. */
static bool set_masks(const sl_hot_attend *attend, uint64_t pos, uint64_t *masks)
{
    const sl_attn_rows *rows = attend->rows;
    const sl_kv_layer *layer = &attend->options.geom.layers[rows->layer];
    bool is_whole = true;
    for (size_t i = 0; i < attend->n_blocks * SL_LANES; i++) {
        const uint64_t row_pos = rows->first_pos + i / attend->group, from = sl_geom_first_seen(layer, row_pos);
        const uint64_t n = row_pos >= pos ? row_pos - pos + 1 : 0, hidden = from > pos ? from - pos : 0;
        masks[i] = n >= SL_TILE ? UINT64_MAX : (UINT64_C(1) << n) - 1;
        masks[i] &= hidden >= SL_TILE ? 0 : UINT64_MAX << hidden;
        is_whole = is_whole && masks[i] == UINT64_MAX;
    }
    return is_whole;
}

static void fold_hot(const sl_hot_attend *attend, size_t head, size_t piece, sl_tile_args *args)
{
    const sl_hot_view view = sl_hot_get(attend->hot, attend->rows->layer, head);
    const size_t tile_bytes = sl_tile_bytes(attend->options.geom.type, attend->head_dim);
    const sl_attn_tile_fn fold = sl_kernels_attn_tile(attend->options.kernels, attend->options.geom.type);
    const size_t end = view.n * (piece + 1) / attend->n_pieces;
    uint64_t masks[MAX_BLOCKS * SL_LANES];
    for (size_t i = view.n * piece / attend->n_pieces; i < end; i++) {
        if (view.tiles[i] < 0 || (uint64_t)view.tiles[i] * SL_TILE >= attend->groups_pos)
            continue;
        args->tile = view.data + i * tile_bytes;
        args->masks = set_masks(attend, (uint64_t)view.tiles[i] * SL_TILE, masks) ? NULL : masks;
        args->next = i + 1 < end ? args->tile + tile_bytes : NULL;
        sl_race_tile(args, attend->options.geom.type);
        fold(args);
    }
}

static void fold_own(const sl_hot_attend *attend, size_t head, sl_tile_args *args)
{
    uint64_t masks[MAX_BLOCKS * SL_LANES];
    const sl_attn_rows *rows = attend->rows;
    const size_t tile_bytes = sl_tile_bytes(attend->options.geom.type, attend->head_dim);
    const uint8_t *tile = attend->groups + head * tile_bytes;
    args->next = NULL;
    args->masks = masks;
    for (uint64_t pos = attend->groups_pos; pos < rows->first_pos + rows->n_rows; pos += SL_TILE) {
        set_masks(attend, pos, masks);
        args->tile = tile;
        sl_race_tile(args, attend->options.geom.type);
        sl_kernels_attn_tile(attend->options.kernels, attend->options.geom.type)(args);
        tile += attend->n_kv_heads * tile_bytes;
    }
}

static uint8_t *states_of(const sl_hot_attend *attend, size_t head, size_t piece)
{
    return attend->states + (head * attend->n_pieces + piece) * attend->max_blocks * attend->state_bytes;
}

static void item(void *arg, size_t index, size_t worker)
{
    const sl_hot_attend *attend = arg;
    const size_t head = index / attend->n_pieces, piece = index % attend->n_pieces;
    uint8_t *qblocks =
        attend->workers + worker * (attend->max_blocks * attend->qblock_bytes + attend->scratch_bytes);
    sl_tile_args args = {.head_dim = attend->head_dim,
                         .qblocks = qblocks,
                         .states = states_of(attend, head, piece),
                         .state_stride = attend->state_bytes,
                         .n_queries = n_queries(attend),
                         .softcap = attend->options.softcap,
                         .scratch = qblocks + attend->max_blocks * attend->qblock_bytes};
    pack(attend, head, qblocks);
    reset(attend, args.states);
    fold_hot(attend, head, piece, &args);
    if (piece + 1 == attend->n_pieces)
        fold_own(attend, head, &args);
}

static void finish_head(const sl_hot_attend *attend, size_t head)
{
    reset(attend, attend->totals);
    for (size_t piece = 0; piece < attend->n_pieces; piece++)
        attend->options.kernels->attn_segfold(attend->totals, states_of(attend, head, piece), attend->state_bytes,
                                              attend->n_blocks, attend->head_dim);
    for (size_t b = 0; b < attend->n_blocks; b++) {
        float *out[SL_LANES];
        size_t n = 0;
        for (; n < SL_LANES && b * SL_LANES + n < n_queries(attend); n++)
            out[n] = attend->rows->out + query_off(attend, head, b * SL_LANES + n, attend->rows->out_stride);
        attend->options.kernels->attn_finish(attend->totals + b * attend->state_bytes, out, n, attend->head_dim);
    }
}

void sl_hot_attend_run(sl_hot_attend *attend, const sl_hot *hot, const sl_attn_rows *rows, const uint8_t *groups,
                       uint64_t groups_pos)
{
    const sl_kv_layer *layer = &attend->options.geom.layers[rows->layer];
    assert(rows->n_rows <= attend->options.max_rows && attend->max_blocks <= MAX_BLOCKS);
    assert(groups_pos % SL_TILE == 0 && groups_pos <= rows->first_pos);
    attend->hot = hot;
    attend->rows = rows;
    attend->groups = groups;
    attend->groups_pos = groups_pos;
    attend->head_dim = layer->head_dim;
    attend->n_kv_heads = layer->n_kv_heads;
    attend->group = attend->options.n_heads / layer->n_kv_heads;
    attend->n_blocks = (n_queries(attend) + SL_LANES - 1) / SL_LANES;
    sl_pool_run(attend->options.pool, attend->n_kv_heads * attend->n_pieces, item, attend);
    for (size_t head = 0; head < attend->n_kv_heads; head++)
        finish_head(attend, head);
}
