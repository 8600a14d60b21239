/* Rows of an embedding that does not stay: a panel is read for each, because a panel is what has a checksum. */
#include "base/hash.h"
#include "model/weight_stream_impl.h"

enum { MOST_LANES = 32 };

typedef struct row_lane {
    const uint8_t *panel; /* as in the file */
    size_t row;           /* of the matrix */
    float *out;
    bool is_bad;
} row_lane;

typedef struct row_lanes {
    const sl_weights *weights;
    uint8_t *packed; /* [n] rows */
    row_lane lanes[MOST_LANES];
} row_lanes;

/* One row: packed alone, it is the row that it would be in its panel. */
static void embed_lane(void *arg, size_t i, size_t worker)
{
    (void)worker;
    row_lanes *l = arg;
    row_lane *lane = &l->lanes[i];
    const sl_matrix *m = &l->weights->embedding;
    const size_t row = sl_wtype_row_bytes(m->type, m->n_in), panel = lane->row / SL_PANEL;
    lane->is_bad = sl_hash(lane->panel, sl_matrix_range(m, panel, 1).bytes) != m->sums[panel];
    if (lane->is_bad)
        return;
    uint8_t *packed = l->packed + i * l->weights->stream->share.lane_bytes;
    sl_weight_pack_panel(m->type, packed, lane->panel + lane->row % SL_PANEL * row, 1, m->n_in);
    sl_weight_row(m->type, packed, 1, m->n_in, 0, lane->out);
}

static sl_status embed_some(row_lanes *l, const int32_t *ids, size_t n, float *out, sl_pool *pool, sl_err *err)
{
    const sl_weight_stream *stream = l->weights->stream;
    const sl_matrix *m = &l->weights->embedding;
    size_t slots[MOST_LANES];
    sl_status status = SL_OK;
    sl_err cause = {SL_OK, ""};
    for (size_t i = 0; i < n; i++) {
        const sl_gguf_range range = sl_matrix_range(m, (size_t)ids[i] / SL_PANEL, 1);
        slots[i] = sl_gguf_reader_add(stream->reader, &range, stream->lanes + i * stream->share.lane_bytes);
        l->lanes[i] = (row_lane){.row = (size_t)ids[i], .out = out + i * m->n_in};
    }
    for (size_t i = 0; i < n; i++) {
        sl_status ended = sl_gguf_reader_wait(stream->reader, slots[i], &l->lanes[i].panel, &cause);
        if (ended != SL_OK && status == SL_OK)
            status = sl_weight_say_unread(l->weights, m, &cause, err);
    }
    if (status != SL_OK)
        return status;
    sl_pool_run(pool, n, embed_lane, l);
    for (size_t i = 0; i < n; i++)
        if (l->lanes[i].is_bad)
            return sl_weight_say_changed(l->weights, m, l->lanes[i].row / SL_PANEL, err);
    return SL_OK;
}

sl_status sl_weights_embed(const sl_weights *weights, const int32_t *ids, size_t n, float *out, sl_pool *pool,
                           sl_err *err)
{
    const sl_weight_share *share = &weights->stream->share;
    row_lanes l = {.weights = weights, .packed = weights->stream->lanes + share->row_bytes};
    sl_status status = sl_weight_expect_set(weights, err);
    for (size_t i = 0; status == SL_OK && i < n; i += share->n_lanes)
        status = embed_some(&l, ids + i, n - i < share->n_lanes ? n - i : share->n_lanes, out + i * weights->hp.n_embd,
                            pool, err);
    return status;
}
