/* Own tiles: the pass's own keys, with the tail's before them, under the causal mask; and the end of a layer. */
#include "attn/attn_impl.h"

/* The keys of the tile at tile_pos that a row at `pos` sees: those up to its own position. */
static uint64_t causal_mask(uint64_t tile_pos, uint64_t pos)
{
    if (pos < tile_pos)
        return 0;
    return pos - tile_pos >= SL_TILE - 1 ? UINT64_MAX : (UINT64_C(1) << (pos - tile_pos + 1)) - 1;
}

/* One own tile: blocks wholly before it are passed over, blocks that it cuts get masks, later ones see all of it. */
static void fold_own_tile(const sl_attn *attn, const sl_attn_item *span, const uint8_t *tile, uint64_t tile_pos)
{
    uint64_t masks[SL_ATTN_MAX_CHUNK * SL_LANES];
    size_t hidden = 0, cut = 0;
    for (size_t b = 0; b < span->n; b++) {
        uint64_t all = UINT64_MAX, any = 0;
        for (size_t lane = 0; lane < SL_LANES; lane++) {
            size_t query = (span->first + b) * SL_LANES + lane;
            uint64_t mask = causal_mask(tile_pos, attn->rows->first_pos + query / attn->group);
            masks[b * SL_LANES + lane] = mask;
            if (query < sl_attn_n_queries(attn)) {
                all &= mask;
                any |= mask;
            }
        }
        hidden += any == 0;
        cut += any != 0 && all != UINT64_MAX;
    }
    sl_attn_fold_tile(attn, span, hidden, cut, tile, masks);
    sl_attn_fold_tile(attn, span, hidden + cut, span->n - hidden - cut, tile, NULL);
}

static void finish_head(const sl_attn *attn, sl_attn_item span, size_t worker)
{
    uint64_t pos = attn->rows->first_pos / SL_TILE * SL_TILE;
    size_t tile_bytes = sl_tile_bytes(attn->options.geom.type, attn->head_dim);
    size_t last_query = sl_attn_min((span.first + span.n) * SL_LANES, sl_attn_n_queries(attn)) - 1;
    uint64_t last_pos = attn->rows->first_pos + last_query / attn->group;
    for (size_t g = 0; pos <= last_pos; g++, pos += SL_TILE) {
        /* A segment that ended exactly where the own tiles start was folded with its last part. */
        if (pos % SL_SEGMENT_TOKENS == 0)
            sl_attn_fold_segment(attn, &span);
        fold_own_tile(attn, &span, attn->rows->own_groups + (g * attn->n_kv_heads + span.head) * tile_bytes, pos);
        sl_attn_note(attn, &span, (size_t)(pos / SL_TILE));
    }
    sl_attn_fold_segment(attn, &span);
    if (attn->options.hot && attn->noted_block - span.first < span.n)
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
        finish_head(attn, sl_attn_head_of(attn, all, i), worker);
}

void sl_attn_finish(sl_attn *attn)
{
    double start_s = sl_trace_now(attn->options.trace);
    size_t tiles = (attn->rows->first_pos % SL_TILE + attn->rows->n_rows + SL_TILE - 1) / SL_TILE;
    sl_attn_run_items(attn, sl_attn_n_items(attn), tiles * attn->n_kv_heads * attn->n_blocks, finish_item);
    sl_attn_trace(attn, "own tiles", start_s, -1);
}
