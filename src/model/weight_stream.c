#include "model/weight_stream.h"

#include "model/weight_stream_impl.h"

/* --------------------------------------------------------------------------------------------- what stays, and not */

sl_status sl_weight_stream_create(sl_weights *weights, const sl_gguf *gguf, const sl_weights_options *options,
                                  sl_err *err)
{
    sl_status status = sl_mem_new(weights->budget, 1, sizeof *weights->stream, "stream of weights", &weights->stream,
                                  err);
    if (status != SL_OK)
        return status;
    weights->stream->log = options->log;
    weights->stream->now.id = weights->stream->coming.id = SL_NO_UNIT;
    return sl_gguf_reader_open(gguf, options->vfs, weights->budget, &weights->stream->reader, err);
}

/* What is held, and what is on its way, is no more. */
static void let_go(sl_weight_stream *stream)
{
    sl_held_unit *units[] = {&stream->now, &stream->coming};
    for (size_t u = 0; u < 2; u++) {
        for (size_t i = 0; i < units[u]->n_taken; i++)
            if (!units[u]->pieces[i].matrix->is_own)
                units[u]->pieces[i].matrix->packed = NULL;
        for (size_t i = units[u]->n_taken; i < units[u]->n_asked; i++) {
            const uint8_t *at;
            const sl_status ended = sl_gguf_reader_wait(stream->reader, units[u]->pieces[i].slot, &at, NULL);
            (void)ended; /* nobody wants it any more */
        }
        units[u]->id = SL_NO_UNIT;
        units[u]->n = units[u]->n_asked = units[u]->n_taken = 0;
    }
}

static void free_buffers(sl_weights *weights)
{
    sl_weight_stream *stream = weights->stream;
    sl_gguf_reader_stop(stream->reader);
    sl_mem_unmap(weights->budget, stream->raw, stream->map_bytes);
    sl_mem_unmap(weights->budget, stream->packed, stream->share.packed_bytes);
    stream->raw = stream->packed = stream->lanes = NULL;
    stream->taken_bytes = 0;
}

static sl_status make_buffers(sl_weights *weights, sl_err *err)
{
    sl_weight_stream *stream = weights->stream;
    const sl_weight_share *share = &stream->share;
    const uint64_t left = sl_budget_left(weights->budget);
    stream->map_bytes = share->raw_bytes + share->n_lanes * share->lane_bytes;
    if (share->buffer_bytes == 0)
        return SL_OK;
    sl_status status = sl_mem_map(weights->budget, stream->map_bytes, "buffer of weights", &stream->raw, err);
    if (status == SL_OK)
        status = sl_mem_map(weights->budget, share->packed_bytes, "buffer of weights", &stream->packed, err);
    if (status == SL_OK)
        status = sl_gguf_reader_start(stream->reader, stream->raw, stream->map_bytes, stream->log, err);
    stream->lanes = stream->raw ? stream->raw + share->raw_bytes : NULL;
    stream->taken_bytes = left - sl_budget_left(weights->budget);
    return status;
}

/* Reads a matrix into memory, a few panels at a time. buffer: sl_weights_buffer_bytes, so one at least. */
static sl_status bring_back(sl_weights *weights, sl_matrix *matrix, uint8_t *buffer, size_t buffer_bytes, sl_err *err)
{
    const size_t panel = SL_PANEL * sl_wtype_row_bytes(matrix->type, matrix->n_in);
    const size_t n_panels = sl_matrix_n_panels(matrix), at_once = (buffer_bytes - 2 * SL_SECTOR_BYTES) / panel;
    uint8_t *packed = NULL;
    sl_status status = sl_mem_map(weights->budget, matrix->bytes, "weights", &packed, err);
    for (size_t first = 0; status == SL_OK && first < n_panels; first += at_once) {
        const sl_held_piece piece = {matrix, first, n_panels - first < at_once ? n_panels - first : at_once, 0, 0, 0};
        const sl_gguf_range range = sl_matrix_range(matrix, first, piece.n);
        const uint8_t *raw;
        sl_err cause = {SL_OK, ""};
        status = sl_gguf_reader_read(weights->stream->reader, &range, buffer, &raw, &cause);
        if (status != SL_OK)
            status = sl_weight_say_unread(weights, matrix, &cause, err);
        else
            status = sl_weight_pack(weights, &piece, raw, packed + (range.off - matrix->file_off), NULL, err);
    }
    if (status != SL_OK) {
        sl_mem_unmap(weights->budget, packed, matrix->bytes);
        return status;
    }
    matrix->packed = packed;
    matrix->is_own = true;
    return SL_OK;
}

static void drop(sl_weights *weights, sl_matrix *matrix)
{
    sl_mem_unmap(weights->budget, matrix->packed, matrix->bytes);
    matrix->packed = NULL;
    matrix->is_own = false;
}

/* Every matrix that need not stay: fn until it fails. */
typedef sl_status (*matrix_fn)(sl_weights *weights, sl_matrix *matrix, void *arg, sl_err *err);

static sl_status for_matrices(sl_weights *weights, matrix_fn fn, void *arg, sl_err *err)
{
    sl_status status = SL_OK;
    sl_matrix *matrix;
    for (size_t i = 0; status == SL_OK && (matrix = sl_weights_model_matrix(weights, i)) != NULL; i++)
        status = fn(weights, matrix, arg, err);
    for (uint32_t layer = 0; status == SL_OK && layer < weights->hp.n_layers; layer++)
        for (size_t i = 0; status == SL_OK && (matrix = sl_weights_layer_matrix(weights, layer, i)) != NULL; i++)
            status = fn(weights, matrix, arg, err);
    return status;
}

static sl_status drop_needless(sl_weights *weights, sl_matrix *matrix, void *n_missing, sl_err *err)
{
    (void)err;
    if (matrix->is_own && !matrix->stays)
        drop(weights, matrix);
    *(size_t *)n_missing += matrix->stays && !matrix->is_own;
    return SL_OK;
}

static sl_status bring_missing(sl_weights *weights, sl_matrix *matrix, void *buffer, sl_err *err)
{
    if (!matrix->stays || matrix->is_own)
        return SL_OK;
    return bring_back(weights, matrix, buffer, sl_weights_buffer_bytes(&weights->hp), err);
}

static sl_status count_other(sl_weights *weights, sl_matrix *matrix, void *n_other, sl_err *err)
{
    (void)weights;
    (void)err;
    *(size_t *)n_other += matrix->stays != matrix->is_own;
    return SL_OK;
}

/* Everything is already as the choice in `stays` would have it. */
static bool is_as_chosen(sl_weights *weights, const sl_weight_share *share)
{
    size_t n_other = 0;
    const sl_status status = for_matrices(weights, count_other, &n_other, NULL);
    return status == SL_OK && n_other == 0 && share->buffer_bytes == weights->stream->share.buffer_bytes;
}

sl_status sl_weights_set_room(sl_weights *weights, uint64_t room_bytes, sl_weight_share *out, sl_err *err)
{
    sl_weight_stream *stream = weights->stream;
    size_t n_missing = 0;
    uint8_t *buffer = NULL;
    sl_weights_choose(weights, room_bytes, out);
    if (stream->is_set && is_as_chosen(weights, out))
        return SL_OK;
    let_go(stream);
    free_buffers(weights);
    stream->share = *out;
    stream->is_set = true;
    sl_status status = for_matrices(weights, drop_needless, &n_missing, err);
    const size_t buffer_bytes = sl_weights_buffer_bytes(&weights->hp);
    if (status == SL_OK && n_missing > 0) {
        status = sl_mem_map(weights->budget, buffer_bytes, "weight reading buffer", &buffer, err);
        if (status == SL_OK)
            status = for_matrices(weights, bring_missing, buffer, err);
        sl_mem_unmap(weights->budget, buffer, buffer_bytes);
    }
    if (status == SL_OK)
        status = make_buffers(weights, err);
    stream->is_set = status == SL_OK;
    return status;
}

static sl_status add_memory(sl_weights *weights, sl_matrix *matrix, void *bytes, sl_err *err)
{
    (void)weights;
    (void)err;
    if (matrix->is_own)
        *(uint64_t *)bytes += (matrix->bytes + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN * SL_MEM_ALIGN;
    return SL_OK;
}

uint64_t sl_weights_memory(const sl_weights *weights)
{
    const sl_weight_stream *stream = weights->stream;
    uint64_t bytes = stream ? weights->fixed_bytes + stream->taken_bytes : 0;
    sl_status status = for_matrices((sl_weights *)weights, add_memory, &bytes, NULL);
    (void)status; /* of no failure */
    return bytes;
}

void sl_weight_stream_destroy(sl_weights *weights)
{
    sl_weight_stream *stream = weights->stream;
    if (!stream)
        return;
    if (stream->reader) {
        let_go(stream);
        free_buffers(weights);
        sl_gguf_reader_close(stream->reader);
    }
    sl_mem_free(weights->budget, stream);
    weights->stream = NULL;
}

/* -------------------------------------------------------------------------------------------- what comes, and when */

static size_t n_slices(const sl_weights *weights)
{
    const size_t at_once = weights->stream->share.slice_panels;
    return at_once > 0 ? (sl_matrix_n_panels(weights->output) + at_once - 1) / at_once : 0;
}

static void add_piece(sl_held_unit *unit, sl_matrix *matrix, size_t first, size_t n)
{
    const sl_held_piece *before = unit->n > 0 ? &unit->pieces[unit->n - 1] : NULL;
    sl_held_piece *piece = &unit->pieces[unit->n++];
    *piece = (sl_held_piece){.matrix = matrix, .first = first, .n = n};
    if (!before)
        return;
    const sl_gguf_range range = sl_matrix_range(before->matrix, before->first, before->n);
    piece->raw_off = before->raw_off + sl_gguf_range_room(&range);
    piece->packed_off = (before->packed_off + range.bytes + 63) / 64 * 64;
}

/* n = 0: all of it is in memory. */
static void make_unit(const sl_weights *weights, int64_t id, sl_held_unit *out)
{
    const size_t at_once = weights->stream->share.slice_panels;
    *out = (sl_held_unit){.id = id};
    if (id >= (int64_t)weights->hp.n_layers) {
        const size_t first = (size_t)(id - (int64_t)weights->hp.n_layers) * at_once;
        const size_t left = sl_matrix_n_panels(weights->output) - first;
        add_piece(out, weights->output, first, left < at_once ? left : at_once);
        return;
    }
    sl_matrix *matrix;
    for (size_t i = 0; (matrix = sl_weights_layer_matrix(weights, (uint32_t)id, i)) != NULL; i++)
        if (!matrix->is_own)
            add_piece(out, matrix, 0, sl_matrix_n_panels(matrix));
}

/* The first layer from `layer` on that reads; SL_NO_UNIT: none does. */
static void find_layer(const sl_weights *weights, uint32_t layer, sl_held_unit *out)
{
    for (; layer < weights->hp.n_layers; layer++) {
        make_unit(weights, layer, out);
        if (out->n > 0)
            return;
    }
    *out = (sl_held_unit){.id = SL_NO_UNIT};
}

/* What comes behind unit `id`, as far as that is known. */
static void make_next(const sl_weights *weights, int64_t id, sl_weights_ahead ahead, sl_held_unit *out)
{
    const int64_t n_layers = weights->hp.n_layers, n = (int64_t)n_slices(weights);
    *out = (sl_held_unit){.id = SL_NO_UNIT};
    if (id < n_layers)
        find_layer(weights, (uint32_t)id + 1, out);
    else if (id + 1 < n_layers + n)
        make_unit(weights, id + 1, out);
    if (out->n == 0 && ahead.has_logits && n > 0)
        make_unit(weights, n_layers, out);
    else if (out->n == 0 && ahead.has_pass)
        find_layer(weights, 0, out);
    if (out->id == id)
        *out = (sl_held_unit){.id = SL_NO_UNIT}; /* it is there */
}

/* Pieces of the unit that fit into the raw buffer before `free_end` are asked for, in their order. */
static void ask(sl_weight_stream *stream, sl_held_unit *unit, size_t free_end)
{
    for (; unit->n_asked < unit->n; unit->n_asked++) {
        sl_held_piece *piece = &unit->pieces[unit->n_asked];
        const sl_gguf_range range = sl_matrix_range(piece->matrix, piece->first, piece->n);
        if (piece->raw_off + sl_gguf_range_room(&range) > free_end)
            return;
        piece->slot = sl_gguf_reader_add(stream->reader, &range, stream->raw + piece->raw_off);
    }
}

/* The next piece that is on its way, into the packed buffer. */
static sl_status take_piece(const sl_weights *weights, sl_pool *pool, sl_err *err)
{
    sl_weight_stream *stream = weights->stream;
    sl_held_piece *piece = &stream->now.pieces[stream->now.n_taken++];
    sl_err cause = {SL_OK, ""};
    const uint8_t *raw;
    if (sl_gguf_reader_wait(stream->reader, piece->slot, &raw, &cause) != SL_OK)
        return sl_weight_say_unread(weights, piece->matrix, &cause, err);
    sl_status status = sl_weight_pack(weights, piece, raw, stream->packed + piece->packed_off, pool, err);
    if (status == SL_OK && stream->now.id < (int64_t)weights->hp.n_layers)
        piece->matrix->packed = stream->packed + piece->packed_off;
    return status;
}

/* The unit, all of it, in the packed buffer; what comes behind it on its way. */
static sl_status hold(const sl_weights *weights, int64_t id, sl_weights_ahead ahead, sl_pool *pool, sl_err *err)
{
    sl_weight_stream *stream = weights->stream;
    if (stream->now.id == id)
        return SL_OK;
    sl_held_unit wanted;
    make_unit(weights, id, &wanted);
    if (wanted.n == 0)
        return SL_OK;
    if (stream->coming.id == id)
        wanted = stream->coming;
    else if (stream->coming.n_asked > 0)
        let_go(stream); /* it came otherwise than expected */
    stream->coming = (sl_held_unit){.id = SL_NO_UNIT};
    let_go(stream);
    stream->now = wanted;
    ask(stream, &stream->now, stream->share.raw_bytes);
    make_next(weights, id, ahead, &stream->coming);
    sl_status status = SL_OK;
    while (status == SL_OK && stream->now.n_taken < stream->now.n) {
        status = take_piece(weights, pool, err);
        const sl_held_unit *now = &stream->now;
        const bool is_last = now->n_taken == now->n;
        if (status == SL_OK)
            ask(stream, &stream->coming, is_last ? stream->share.raw_bytes : now->pieces[now->n_taken].raw_off);
    }
    if (status != SL_OK)
        let_go(stream);
    return status;
}

sl_status sl_weight_expect_set(const sl_weights *weights, sl_err *err)
{
    return weights->stream->is_set ? SL_OK
                                   : sl_err_set(err, SL_FAILED, "%s: what stays of its weights in memory could not be "
                                                "changed before; make the context again",
                                                sl_gguf_reader_path(weights->stream->reader, 0));
}

sl_status sl_weights_hold(const sl_weights *weights, uint32_t layer, sl_weights_ahead ahead, sl_pool *pool, sl_err *err)
{
    if (!weights->stream)
        return SL_OK;
    sl_status status = sl_weight_expect_set(weights, err);
    return status == SL_OK ? hold(weights, layer, ahead, pool, err) : status;
}

bool sl_weights_has_slice(const sl_weights *weights, size_t slice)
{
    return slice < n_slices(weights);
}

sl_status sl_weights_hold_slice(const sl_weights *weights, size_t slice, sl_weights_ahead ahead, sl_pool *pool,
                                sl_matrix *out, size_t *first, sl_err *err)
{
    const sl_weight_stream *stream = weights->stream;
    sl_status status = hold(weights, (int64_t)(weights->hp.n_layers + slice), ahead, pool, err);
    if (status != SL_OK)
        return status;
    const sl_held_piece *piece = &stream->now.pieces[0];
    const sl_gguf_range range = sl_matrix_range(piece->matrix, piece->first, piece->n);
    *out = *piece->matrix;
    *first = sl_matrix_panel_row(piece->matrix, piece->first);
    out->packed = stream->packed;
    out->bytes = range.bytes;
    out->n_out = range.bytes / sl_wtype_row_bytes(out->type, out->n_in);
    return SL_OK;
}

void sl_weights_get_stats(const sl_weights *weights, sl_weights_stats *out)
{
    *out = (sl_weights_stats){.bytes_read = 0};
    if (!weights->stream)
        return;
    const sl_gguf_reader *reader = weights->stream->reader;
    out->bytes_read = sl_gguf_reader_bytes_read(reader);
    out->wait_s = sl_gguf_reader_wait_s(reader);
    out->is_direct = sl_gguf_reader_is_direct(reader);
}
