/* Own tiles: the pass's own keys, with the tail's before them, under the causal mask; and the end of a layer.
 * In a tree the same for each branch, with tiles as though its path were the only text. */
#include <string.h>

#include "attn/attn_impl.h"
#include "kernel/tile_key.h"

/* Bits of the first n keys of a tile. */
static uint64_t first_keys(uint64_t n)
{
    return n >= SL_TILE ? UINT64_MAX : (UINT64_C(1) << n) - 1;
}

/* The keys of the tile at tile_pos that a row at `pos` sees: those up to its own position, in a sliding layer the last
 * `span` of them. */
static uint64_t causal_mask(uint64_t tile_pos, uint64_t pos, uint64_t span)
{
    if (pos < tile_pos)
        return 0;
    uint64_t seen = first_keys(pos - tile_pos + 1);
    return span > 0 && pos >= tile_pos + span ? seen & ~first_keys(pos - tile_pos - span + 1) : seen;
}

/* One own tile; in a tree one that belongs to a branch. Or a stored one. */
typedef struct own_tile {
    const uint8_t *bytes;
    uint64_t pos;           /* of its first key */
    size_t branch;          /* whose it is */
    const uint16_t *owners; /* as sl_tree_owners; NULL: all rows may see it */
} own_tile;

static uint64_t mask_of_row(const sl_attn *attn, const own_tile *tile, size_t row)
{
    const sl_tree *tree = attn->rows->tree;
    if (!tree)
        return causal_mask(tile->pos, attn->rows->first_pos + row, attn->span);
    if (row >= tree->n_rows || (tile->owners && tile->owners[tree->branch[row]] != tile->branch))
        return 0;
    return causal_mask(tile->pos, attn->rows->first_pos + tree->depth[row], attn->span);
}

typedef enum view { HIDDEN, CUT, WHOLE } view;

/* What a block's queries see of a tile; masks [SL_LANES]. */
static view view_of_block(const sl_attn *attn, const own_tile *tile, size_t block, uint64_t *masks)
{
    uint64_t all = UINT64_MAX, any = 0;
    for (size_t lane = 0; lane < SL_LANES; lane++) {
        size_t query = block * SL_LANES + lane;
        masks[lane] = mask_of_row(attn, tile, query / attn->group);
        if (query < sl_attn_n_queries(attn)) {
            all &= masks[lane];
            any |= masks[lane];
        }
    }
    return any == 0 ? HIDDEN : all == UINT64_MAX ? WHOLE : CUT;
}

/* Blocks that see nothing of it are passed over, blocks that it cuts get masks, others see all of it. */
static void fold_own_tile(const sl_attn *attn, const sl_attn_item *span, const own_tile *tile)
{
    uint64_t masks[SL_ATTN_MAX_CHUNK * SL_LANES];
    view views[SL_ATTN_MAX_CHUNK];
    for (size_t b = 0; b < span->n; b++)
        views[b] = view_of_block(attn, tile, span->first + b, masks + b * SL_LANES);
    for (size_t b = 0, end; b < span->n; b = end) {
        for (end = b + 1; end < span->n && views[end] == views[b];)
            end++;
        if (views[b] != HIDDEN)
            sl_attn_fold_tile(attn, span, b, end - b, tile->bytes, views[b] == CUT ? masks : NULL);
    }
}

static uint64_t last_pos_of(const sl_attn *attn, const sl_attn_item *span)
{
    if (attn->rows->tree)
        return attn->rows->first_pos + attn->rows->tree->max_depth;
    size_t last_query = sl_attn_min((span->first + span->n) * SL_LANES, sl_attn_n_queries(attn)) - 1;
    return attn->rows->first_pos + last_query / attn->group;
}

void sl_attn_fold_cut(const sl_attn *attn, const sl_attn_item *span, const uint8_t *tile, uint64_t pos)
{
    const own_tile stored = {.bytes = tile, .pos = pos};
    if (last_pos_of(attn, span) < pos + attn->span)
        sl_attn_fold_tile(attn, span, 0, span->n, tile, NULL);
    else
        fold_own_tile(attn, span, &stored);
}

bool sl_attn_is_cut(const sl_attn *attn, uint64_t pos)
{
    const sl_attn_rows *rows = attn->rows;
    uint64_t last_pos = rows->first_pos + (rows->tree ? rows->tree->max_depth : rows->n_rows - 1);
    return attn->span > 0 && last_pos >= pos + attn->span;
}

/* A branch's tile at a group where it has one. */
static uint8_t *branch_tile(const sl_attn *attn, size_t branch, size_t group, size_t head)
{
    const sl_branch *b = &attn->rows->tree->branches[branch];
    size_t at = (size_t)b->tile + group - b->group;
    return attn->branch_tiles + (at * attn->n_kv_heads + head) * sl_tile_bytes(attn->options.geom.type, attn->head_dim);
}

static const uint8_t *own_tile_at(const sl_attn *attn, size_t group, size_t head)
{
    size_t at = group * attn->n_kv_heads + head;
    return attn->rows->own_groups + at * sl_tile_bytes(attn->options.geom.type, attn->head_dim);
}

/* The tiles of all branches at one place. Segments must not end between them: so they are folded group by group. */
static void fold_group(const sl_attn *attn, const sl_attn_item *span, size_t group, uint64_t pos)
{
    const sl_tree *tree = attn->rows->tree;
    own_tile tile = {.bytes = own_tile_at(attn, group, span->head), .pos = pos};
    if (!tree) {
        fold_own_tile(attn, span, &tile);
        return;
    }
    uint16_t owners[SL_TREE_MAX_BRANCHES + 1];
    sl_tree_owners(tree, group, owners);
    tile.owners = owners;
    for (size_t b = 0; b < tree->n_branches; b++) {
        if (group < tree->branches[b].group || group > sl_tree_last_group(tree, b))
            continue;
        tile.branch = b;
        if (b > 0)
            tile.bytes = branch_tile(attn, b, group, span->head);
        fold_own_tile(attn, span, &tile);
    }
}

static void finish_head(const sl_attn *attn, sl_attn_item span, size_t worker)
{
    uint64_t pos = attn->rows->first_pos / SL_TILE * SL_TILE;
    const uint64_t last_pos = last_pos_of(attn, &span);
    for (size_t g = 0; pos <= last_pos; g++, pos += SL_TILE) {
        /* A segment that ended exactly where the own tiles start was folded with its last part. */
        if (pos % SL_SEGMENT_TOKENS == 0)
            sl_attn_fold_segment(attn, &span);
        fold_group(attn, &span, g, pos);
        sl_attn_note(attn, &span, (size_t)(pos / SL_TILE));
    }
    sl_attn_fold_segment(attn, &span);
    if (sl_attn_is_noted(attn, &span))
        sl_hot_rank(attn->options.hot, worker, span.head,
                    span.totals + (attn->noted_block - span.first) * attn->state_bytes);
    for (size_t b = 0; b < span.n; b++) {
        size_t first = (span.first + b) * SL_LANES, n = sl_attn_min(SL_LANES, sl_attn_n_queries(attn) - first);
        float *out[SL_LANES];
        for (size_t i = 0; i < n; i++)
            out[i] = attn->rows->out + sl_attn_query_off(attn, span.head, first + i, attn->rows->out_stride);
        attn->options.kernels->attn_finish(span.totals + b * attn->state_bytes, out, n, attn->head_dim);
    }
}

static void finish_item(void *arg, size_t item, size_t worker)
{
    sl_attn *attn = arg;
    size_t place = attn->rows->first_pos / SL_TILE * SL_TILE / SL_SEGMENT_TOKENS % attn->side;
    sl_attn_item all = sl_attn_item_of(attn, place * sl_attn_n_items(attn) + item, worker);
    for (size_t i = 0; i < all.n_heads; i++)
        finish_head(attn, sl_attn_head_of(attn, &all, i), worker);
}

/* A branch's first tile starts as a copy of the one that it branches off in, for the keys that they share. The rows'
 * own keys come from own_groups, where they lie row by row. */
static void assemble_head(void *arg, size_t head, size_t worker)
{
    const sl_attn *attn = arg;
    const sl_tree *tree = attn->rows->tree;
    const sl_kv_type type = attn->options.geom.type;
    (void)worker;
    for (size_t b = 1; b < tree->n_branches; b++) {
        const sl_branch *branch = &tree->branches[b];
        for (size_t group = branch->group; group <= sl_tree_last_group(tree, b); group++)
            memset(branch_tile(attn, b, group, head), 0, sl_tile_bytes(type, attn->head_dim));
        if ((tree->first_lane + tree->depth[branch->first]) % SL_TILE > 0) {
            uint16_t owners[SL_TREE_MAX_BRANCHES + 1];
            sl_tree_owners(tree, branch->group, owners);
            size_t from = owners[branch->from];
            memcpy(branch_tile(attn, b, branch->group, head),
                   from > 0 ? branch_tile(attn, from, branch->group, head) : own_tile_at(attn, branch->group, head),
                   sl_tile_bytes(type, attn->head_dim));
        }
        for (size_t row = branch->first; row < branch->end; row++) {
            size_t to = tree->first_lane + tree->depth[row], from = tree->first_lane + row;
            sl_tile_key_copy(type, attn->head_dim, branch_tile(attn, b, to / SL_TILE, head), to % SL_TILE,
                             own_tile_at(attn, from / SL_TILE, head), from % SL_TILE);
        }
    }
}

void sl_attn_finish(sl_attn *attn)
{
    double start_s = sl_trace_now(attn->options.trace);
    if (attn->rows->tree)
        sl_attn_run_items(attn, attn->n_kv_heads, attn->rows->tree->n_tiles * attn->n_kv_heads, assemble_head);
    size_t tiles = (attn->rows->first_pos % SL_TILE + attn->rows->n_rows + SL_TILE - 1) / SL_TILE;
    sl_attn_run_items(attn, sl_attn_n_items(attn), tiles * attn->n_kv_heads * attn->n_blocks, finish_item);
    sl_attn_trace(attn, "own tiles", start_s, -1);
}
