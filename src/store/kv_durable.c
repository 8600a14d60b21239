/* A context and its file: taking over what is stored, committing what is new, finishing. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "store/kv_impl.h"

/* ---- taking over ---- */

static void load_whole_parts(sl_kv *kv, uint32_t layer, uint64_t n_parts)
{
    for (uint64_t part = 0; part < n_parts; part++) {
        (void)sl_parts_take_turn(&kv->parts, layer, part);
        kv->parts.checksums[sl_parts_at(&kv->parts, layer, part)] = sl_durable_part(kv->durable, layer, part);
    }
    sl_writer_start(kv->writer, layer, n_parts * SL_PART_TOKENS);
    const uint8_t none = 0;
    const sl_growth growth = {.n_groups = n_parts * SL_PART_TILES, .piece = &none};
    sl_stream_grow_end(kv->stream, layer, &growth);
}

static sl_status check_geometry(const sl_kv *kv, sl_err *err)
{
    const sl_geom *stored = sl_durable_geom(kv->durable);
    const char *const types[] = {"f16", "q8_0"};
    if (stored->type != kv->geom.type)
        return sl_err_set(err, SL_REFUSED, "%s: its type is %s, this run's is %s", kv->file.name, types[stored->type],
                          types[kv->geom.type]);
    if (stored->n_layers != kv->geom.n_layers)
        return sl_err_set(err, SL_REFUSED, "%s: %" PRIu32 " layers, the model has %" PRIu32, kv->file.name,
                          stored->n_layers, kv->geom.n_layers);
    for (uint32_t i = 0; i < stored->n_layers; i++) {
        const sl_kv_layer *there = &stored->layers[i], *here = &kv->geom.layers[i];
        if (there->n_kv_heads != here->n_kv_heads || there->head_dim != here->head_dim)
            return sl_err_set(err, SL_REFUSED,
                              "%s: layer %" PRIu32 " has %" PRIu32 " KV heads of %" PRIu32 ", the model's %" PRIu32
                              " of %" PRIu32,
                              kv->file.name, i, there->n_kv_heads, there->head_dim, here->n_kv_heads, here->head_dim);
    }
    return SL_OK;
}

static sl_status commit(sl_kv *kv, const int32_t *ids, uint64_t intended_tokens, bool in_area, sl_err *err);

sl_status sl_kv_load(sl_kv *kv, sl_err *err)
{
    sl_durable_state state = sl_durable_get(kv->durable);
    sl_status status = check_geometry(kv, err);
    if (status == SL_OK && kv->base_tokens > kv->parts.max_groups * SL_TILE + SL_TILE - 1)
        status =
            sl_err_set(err, SL_USAGE, "%s: %" PRIu64 " tokens, planned for fewer", kv->file.name, kv->base_tokens);
    if (status != SL_OK)
        return status;
    uint64_t n_parts = kv->base_tokens / SL_PART_TOKENS;
    for (uint32_t i = 0; i < kv->geom.n_layers; i++)
        load_whole_parts(kv, i, n_parts);
    sl_writer_set_loading(kv->writer, kv->keeps);
    status = sl_kv_append_stored(kv, kv->durable, kv->base_tokens, NULL, err);
    sl_writer_set_loading(kv->writer, false);
    /* Before anything in a finished file is overwritten, what stands there is committed elsewhere: whole, so that a
     * file whose writer was killed here lacks nothing but its end, and is committed so again by the next one. */
    uint64_t segment_end = (state.n_tokens / SL_SEGMENT_TOKENS + 1) * SL_SEGMENT_TOKENS;
    bool may_cross = kv->parts.max_groups * SL_TILE >= segment_end; /* else an append has no record before its commit */
    bool is_whole = state.n_tokens > 0 && state.n_tokens == state.intended_tokens;
    if (status == SL_OK && kv->keeps && (state.is_finished || (is_whole && may_cross)))
        status = commit(kv, sl_durable_ids(kv->durable), state.n_tokens, true, err);
    return status;
}

/* ---- committing ---- */

static void give_parts(void *arg, uint64_t segment, bool finished, uint64_t *out)
{
    const sl_kv *kv = arg;
    for (uint32_t layer = 0; layer < kv->geom.n_layers; layer++)
        for (uint64_t p = 0; p < SL_SEGMENT_PARTS; p++) {
            uint64_t part = segment * SL_SEGMENT_PARTS + p;
            uint64_t last = sl_writer_tokens(kv->writer, layer) / SL_PART_TOKENS;
            *out++ = part <= last ? sl_writer_part_checksum(kv->writer, layer, part, finished && part == last) : 0;
        }
}

static void give_tails(void *arg, uint8_t *out)
{
    const sl_kv *kv = arg;
    uint64_t n_tokens = sl_writer_tokens(kv->writer, 0);
    for (uint32_t layer = 0; layer < kv->geom.n_layers; layer++) {
        size_t piece_bytes = 0, wanted = sl_commit_piece_bytes(&kv->geom, layer, n_tokens);
        uint32_t n_tail = 0;
        const uint8_t *piece = sl_stream_piece(kv->stream, layer, &piece_bytes);
        const uint8_t *tail = sl_writer_tail(kv->writer, layer, &n_tail);
        /* A part that has just been filled leaves no piece: parts are whole sectors. */
        assert(piece_bytes == wanted);
        memcpy(out, piece, wanted);
        out += wanted;
        if (n_tail > 0) {
            memcpy(out, tail, sl_geom_group_bytes(&kv->geom, layer));
            out += sl_geom_group_bytes(&kv->geom, layer);
        }
    }
}

static sl_status commit(sl_kv *kv, const int32_t *ids, uint64_t intended_tokens, bool in_area, sl_err *err)
{
    const sl_durable_source source = {give_parts, give_tails, kv};
    uint64_t n_tokens = sl_writer_tokens(kv->writer, 0);
    for (uint32_t i = 1; i < kv->geom.n_layers; i++)
        if (sl_writer_tokens(kv->writer, i) != n_tokens)
            return sl_err_set(err, SL_USAGE,
                              "a commit while layer %" PRIu32 " has %" PRIu64 " tokens and the first %" PRIu64, i,
                              sl_writer_tokens(kv->writer, i), n_tokens);
    if (intended_tokens < n_tokens)
        intended_tokens = n_tokens;
    return sl_durable_commit(kv->durable, ids, n_tokens, intended_tokens, in_area, &source, err);
}

sl_status sl_kv_commit(sl_kv *kv, const int32_t *ids, uint64_t intended_tokens, sl_err *err)
{
    if (!kv->keeps)
        return sl_err_set(err, SL_USAGE, "a commit of a context that is not kept");
    return commit(kv, ids, intended_tokens, false, err);
}

sl_status sl_kv_finish(sl_kv *kv, sl_err *err)
{
    const sl_durable_source source = {give_parts, give_tails, kv};
    if (!kv->keeps || sl_durable_get(kv->durable).n_tokens != sl_writer_tokens(kv->writer, 0))
        return sl_err_set(err, SL_USAGE, "a context is finished before all of it is committed");
    sl_status status = SL_OK;
    for (uint32_t i = 0; status == SL_OK && i < kv->geom.n_layers; i++)
        status = sl_writer_write_tail(kv->writer, i, err);
    return status == SL_OK ? sl_durable_finish(kv->durable, &source, err) : status;
}
