#include "model/weight_share.h"

#include <stddef.h>

#include "model/tensors.h"

enum {
    SLICE_BYTES = 2 << 20, /* of an output projection read in pieces, where no layer reads more */
    LANES_BYTES = 1 << 20, /* for embeddings read side by side */
    MOST_LANES = 32
};

static const size_t layer_matrices[] = {
    offsetof(sl_layer_weights, wq),   offsetof(sl_layer_weights, wk),     offsetof(sl_layer_weights, wv),
    offsetof(sl_layer_weights, wo),   offsetof(sl_layer_weights, w_gate), offsetof(sl_layer_weights, w_up),
    offsetof(sl_layer_weights, w_down),
};
enum { N_KINDS = sizeof layer_matrices / sizeof layer_matrices[0] };

sl_matrix *sl_weights_layer_matrix(const sl_weights *weights, uint32_t layer, size_t i)
{
    return i < N_KINDS ? (sl_matrix *)(void *)((char *)&weights->layers[layer] + layer_matrices[i]) : NULL;
}

sl_matrix *sl_weights_model_matrix(const sl_weights *weights, size_t i)
{
    sl_matrix *output = weights->output;
    if (i == 0)
        return output;
    return i == 1 && output == &weights->own_output ? (sl_matrix *)&weights->embedding : NULL;
}

size_t sl_matrix_n_panels(const sl_matrix *matrix)
{
    return matrix->n_stacked * ((matrix->n_out + SL_PANEL - 1) / SL_PANEL);
}

size_t sl_matrix_panel_row(const sl_matrix *matrix, size_t panel)
{
    const size_t per_stack = (matrix->n_out + SL_PANEL - 1) / SL_PANEL;
    return panel / per_stack * matrix->n_out + panel % per_stack * SL_PANEL;
}

sl_gguf_range sl_matrix_range(const sl_matrix *matrix, size_t first, size_t n)
{
    const size_t row = sl_wtype_row_bytes(matrix->type, matrix->n_in), at = sl_matrix_panel_row(matrix, first);
    const size_t all = matrix->n_stacked * matrix->n_out;
    const size_t end = first + n < sl_matrix_n_panels(matrix) ? sl_matrix_panel_row(matrix, first + n) : all;
    return (sl_gguf_range){matrix->file_off + (uint64_t)at * row, (end - at) * row, matrix->part};
}

static uint64_t map_bytes(uint64_t bytes)
{
    return (bytes + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN * SL_MEM_ALIGN;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A layer's matrices that do not stay, side by side in either buffer. */
static void count_layer(const sl_weights *weights, uint32_t layer, sl_weight_share *out)
{
    size_t raw = 0, packed = 0;
    for (size_t i = 0; i < N_KINDS; i++) {
        const sl_matrix *matrix = sl_weights_layer_matrix(weights, layer, i);
        const sl_gguf_range range = sl_matrix_range(matrix, 0, sl_matrix_n_panels(matrix));
        if (matrix->stays) {
            out->memory_bytes += map_bytes(matrix->bytes);
            out->resident_bytes += matrix->bytes;
            continue;
        }
        raw += sl_gguf_range_room(&range);
        packed += (matrix->bytes + 63) / 64 * 64;
    }
    out->pass_bytes += raw;
    out->raw_bytes = max_size(out->raw_bytes, raw);
    out->packed_bytes = max_size(out->packed_bytes, packed);
}

/* The output projection in slices of whole panels. */
static void count_output(const sl_weights *weights, sl_weight_share *out)
{
    const sl_matrix *m = weights->output;
    const size_t panel = SL_PANEL * sl_wtype_row_bytes(m->type, m->n_in), n = sl_matrix_n_panels(m);
    const size_t most = max_size(max_size(out->raw_bytes, SLICE_BYTES) / panel, 1);
    out->slice_panels = most < n ? most : n;
    for (size_t first = 0; first < n; first += out->slice_panels) {
        const size_t here = n - first < out->slice_panels ? n - first : out->slice_panels;
        const sl_gguf_range range = sl_matrix_range(m, first, here);
        out->logit_bytes += sl_gguf_range_room(&range);
        out->raw_bytes = max_size(out->raw_bytes, sl_gguf_range_room(&range));
        out->packed_bytes = max_size(out->packed_bytes, range.bytes);
    }
}

static void count_embedding(const sl_weights *weights, sl_weight_share *out)
{
    const sl_matrix *m = &weights->embedding;
    const size_t panel = SL_PANEL * sl_wtype_row_bytes(m->type, m->n_in);
    out->row_bytes = sl_up_sector(panel) + SL_SECTOR_BYTES;
    const size_t lanes = max_size(LANES_BYTES / (size_t)out->row_bytes, 1);
    out->n_lanes = lanes < MOST_LANES ? lanes : MOST_LANES;
    out->lane_bytes = (size_t)(out->row_bytes + sl_up_sector(panel / SL_PANEL));
}

/* What the choice in the matrices' `stays` takes and costs. */
static void count(const sl_weights *weights, sl_weight_share *out)
{
    *out = (sl_weight_share){.memory_bytes = weights->fixed_bytes};
    for (uint32_t layer = 0; layer < weights->hp.n_layers; layer++)
        count_layer(weights, layer, out);
    const sl_matrix *matrix;
    for (size_t i = 0; (matrix = sl_weights_model_matrix(weights, i)) != NULL; i++) {
        out->memory_bytes += matrix->stays ? map_bytes(matrix->bytes) : 0;
        out->resident_bytes += matrix->stays ? matrix->bytes : 0;
    }
    if (!weights->output->stays)
        count_output(weights, out);
    if (!weights->embedding.stays)
        count_embedding(weights, out);
    if (out->pass_bytes + out->logit_bytes + out->row_bytes == 0)
        return;
    out->buffer_bytes = map_bytes(out->raw_bytes + out->n_lanes * out->lane_bytes) + map_bytes(out->packed_bytes) +
                        sl_gguf_reader_queue_bytes(weights->n_files);
    out->memory_bytes += out->buffer_bytes;
}

static void set_all(sl_weights *weights, bool stays)
{
    sl_matrix *matrix;
    for (uint32_t layer = 0; layer < weights->hp.n_layers; layer++)
        for (size_t i = 0; i < N_KINDS; i++)
            sl_weights_layer_matrix(weights, layer, i)->stays = stays;
    for (size_t i = 0; (matrix = sl_weights_model_matrix(weights, i)) != NULL; i++)
        matrix->stays = stays;
}

static void keep_if_fits(sl_weights *weights, sl_matrix *matrix, uint64_t room, sl_weight_share *share)
{
    if (matrix->stays)
        return;
    matrix->stays = true;
    count(weights, share);
    matrix->stays = share->memory_bytes <= room;
}

/* One kind of matrix, of all layers or of as many as there is room for, evenly among the others: then a layer that
 * computes more than it reads helps the next one. */
static void keep_kind(sl_weights *weights, size_t kind, uint64_t room)
{
    sl_weight_share share;
    uint64_t largest = 1;
    const uint32_t n = weights->hp.n_layers;
    for (uint32_t i = 0; i < n; i++) {
        sl_matrix *matrix = sl_weights_layer_matrix(weights, i, kind);
        largest = !matrix->stays && matrix->bytes > largest ? map_bytes(matrix->bytes) : largest;
        matrix->stays = true;
    }
    count(weights, &share);
    if (share.memory_bytes <= room)
        return;
    for (uint32_t i = 0; i < n; i++)
        sl_weights_layer_matrix(weights, i, kind)->stays = false;
    count(weights, &share);
    const uint64_t left = room > share.memory_bytes ? room - share.memory_bytes : 0;
    const uint64_t n_fit = left / largest < n ? left / largest : n;
    for (uint32_t i = 0; i < n; i++)
        if ((i + 1) * n_fit / n > i * n_fit / n)
            keep_if_fits(weights, sl_weights_layer_matrix(weights, i, kind), room, &share);
}

void sl_weights_choose(sl_weights *weights, uint64_t room_bytes, sl_weight_share *out)
{
    set_all(weights, true);
    count(weights, out);
    weights->matrix_bytes = out->resident_bytes;
    if (out->memory_bytes <= room_bytes)
        return;
    set_all(weights, false);
    keep_if_fits(weights, weights->output, room_bytes, out);
    for (size_t kind = 0; kind < N_KINDS; kind++)
        keep_kind(weights, kind, room_bytes);
    sl_matrix *embedding = sl_weights_model_matrix(weights, 1);
    if (embedding)
        keep_if_fits(weights, embedding, room_bytes, out);
    count(weights, out);
}

uint64_t sl_weights_least(sl_weights *weights)
{
    sl_weight_share none, all;
    sl_weights_choose(weights, 0, &none);
    sl_weights_choose(weights, UINT64_MAX, &all);
    return none.memory_bytes < all.memory_bytes ? none.memory_bytes : all.memory_bytes;
}
