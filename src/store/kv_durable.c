/* A context and its file: taking over what is stored, committing what is new, finishing. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "store/kv_impl.h"

enum { LOAD_BYTES = 256 << 10 }; /* of one reading, about, while a context is opened */

static size_t up_sector(size_t bytes)
{
    return (bytes + SL_SECTOR_BYTES - 1) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
}

/* ---- taking over ---- */

static void load_whole_parts(sl_kv *kv, uint32_t layer, uint64_t n_parts)
{
    for (uint64_t part = 0; part < n_parts; part++)
        kv->parts.checksums[sl_parts_at(&kv->parts, layer, part)] = sl_durable_part(kv->durable, layer, part);
    sl_writer_start(kv->writer, layer, n_parts * SL_PART_TOKENS);
    const uint8_t none = 0;
    const sl_growth growth = {.n_groups = n_parts * SL_PART_TILES, .piece = &none};
    sl_stream_grow_end(kv->stream, layer, &growth);
}

/* The part of a layer in which what is taken over ends, as the file has it: on flash up to a whole sector, the rest in
 * `tail`. */
typedef struct open_part {
    uint32_t layer;
    uint64_t part, off; /* of the file */
    size_t group_bytes;
    size_t n_tokens; /* of it, taken over */
    size_t bytes;    /* of all its tile groups in the file, the unfilled one included */
    size_t checked;  /* of them, under the checksum */
    size_t on_flash; /* of them, or more where padded: whole sectors */
    const uint8_t *tail;
} open_part;

static open_part find_open_part(const sl_kv *kv, uint32_t layer, uint64_t part, size_t n_tokens)
{
    sl_durable_state state = sl_durable_get(kv->durable);
    uint64_t in_file = state.n_tokens - part * SL_PART_TOKENS;
    size_t n_in_file = in_file < SL_PART_TOKENS ? (size_t)in_file : SL_PART_TOKENS;
    size_t group_bytes = sl_geom_group_bytes(&kv->geom, layer);
    size_t full = n_in_file / SL_TILE * group_bytes, unfilled = n_in_file % SL_TILE != 0 ? group_bytes : 0;
    /* Whole parts are whole sectors, and all in place. */
    bool is_in_place = state.is_finished || n_in_file == SL_PART_TOKENS;
    return (open_part){
        .layer = layer,
        .part = part,
        .off = kv->parts.data_off + part / SL_SEGMENT_PARTS * kv->parts.stride +
               sl_geom_block_off(&kv->geom, 0, layer) +
               part % SL_SEGMENT_PARTS * sl_geom_part_bytes(&kv->geom, layer),
        .group_bytes = group_bytes,
        .n_tokens = n_tokens,
        .bytes = full + unfilled,
        .checked = full + (is_in_place ? unfilled : 0),
        .on_flash = is_in_place ? up_sector(full + unfilled) : full / SL_SECTOR_BYTES * SL_SECTOR_BYTES,
        .tail = is_in_place ? NULL : sl_durable_tail(kv->durable, layer),
    };
}

/* Bytes [from, to) of it; `buf` then begins with the sector that `from` lies in. */
static sl_status fetch(const sl_kv *kv, const open_part *p, size_t from, size_t to, uint8_t *buf, sl_err *err)
{
    size_t first = from / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    size_t flash_end = up_sector(to) < p->on_flash ? up_sector(to) : p->on_flash;
    sl_status status = SL_OK;
    if (first < flash_end)
        status = sl_vfs_read(kv->file.vfs, kv->file.file, kv->file.name, buf, flash_end - first, p->off + first, err);
    size_t copied = first > flash_end ? first : flash_end;
    if (status == SL_OK && copied < to && p->tail)
        memcpy(buf + (copied - first), p->tail + (copied - p->on_flash), to - copied);
    return status;
}

/* Groups after groups through the writer; what the checksum says of them all comes at the end, before anybody has seen
 * one. */
static sl_status load_open_part(sl_kv *kv, const open_part *p, uint8_t *buf, XXH3_state_t *hash, sl_err *err)
{
    size_t at_once = LOAD_BYTES / p->group_bytes * p->group_bytes;
    at_once = at_once > 0 ? at_once : p->group_bytes;
    sl_status status = SL_OK;
    XXH3_64bits_reset(hash);
    for (size_t from = 0, to; status == SL_OK && from < p->bytes; from = to) {
        to = from + at_once < p->bytes ? from + at_once : p->bytes;
        status = fetch(kv, p, from, to, buf, err);
        if (status != SL_OK)
            break;
        const uint8_t *groups = buf + from % SL_SECTOR_BYTES;
        size_t end = to < p->checked ? to : p->checked;
        if (end > from)
            XXH3_64bits_update(hash, groups, end - from);
        size_t first_token = from / p->group_bytes * SL_TILE, last = to / p->group_bytes * SL_TILE;
        last = last < p->n_tokens ? last : p->n_tokens;
        if (last > first_token)
            status = sl_writer_append(kv->writer, p->layer, groups, last - first_token, err);
    }
    if (status != SL_OK)
        return status;
    const sl_kvfile_part part = {p->layer,
                                 p->part,
                                 p->off,
                                 p->checked,
                                 p->checked > 0 ? XXH3_64bits_digest(hash) : 0,
                                 sl_durable_part(kv->durable, p->layer, p->part)};
    return sl_kvfile_judge(&kv->file, &part, err);
}

static sl_status load_open_parts(sl_kv *kv, uint64_t part, size_t n_tokens, sl_err *err)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < kv->geom.n_layers; i++) {
        size_t bytes = sl_geom_group_bytes(&kv->geom, i);
        longest = bytes > longest ? bytes : longest;
    }
    size_t room = up_sector(longest > LOAD_BYTES ? longest : LOAD_BYTES) + 2 * SL_SECTOR_BYTES;
    uint8_t *buf = NULL;
    sl_status status = sl_mem_map(kv->budget, room, "the context's open part", &buf, err);
    XXH3_state_t *hash = XXH3_createState();
    if (status == SL_OK && !hash)
        status = sl_err_set(err, SL_FAILED, "out of memory: checksum");
    sl_writer_set_loading(kv->writer, kv->keeps);
    for (uint32_t i = 0; status == SL_OK && i < kv->geom.n_layers; i++) {
        open_part p = find_open_part(kv, i, part, n_tokens);
        status = load_open_part(kv, &p, buf, hash, err);
    }
    sl_writer_set_loading(kv->writer, false);
    XXH3_freeState(hash);
    sl_mem_unmap(kv->budget, buf, room);
    return status;
}

static sl_status check_geometry(const sl_kv *kv, sl_err *err)
{
    const sl_geom *stored = sl_durable_geom(kv->durable);
    const char *const types[] = {"f16", "q8_0"};
    if (stored->type != kv->geom.type)
        return sl_err_set(err, SL_REFUSED, "%s: its type is %s, this run's is %s", kv->file.name, types[stored->type],
                          types[kv->geom.type]);
    bool is_same = stored->n_layers == kv->geom.n_layers;
    for (uint32_t i = 0; is_same && i < stored->n_layers; i++)
        is_same = stored->layers[i].n_kv_heads == kv->geom.layers[i].n_kv_heads &&
                  stored->layers[i].head_dim == kv->geom.layers[i].head_dim;
    return is_same
               ? SL_OK
               : sl_err_set(err, SL_REFUSED,
                            "%s: %" PRIu32 " layers, %" PRIu32 " KV heads of %" PRIu32
                            " in the first; the model has %" PRIu32 ", %" PRIu32 ", %" PRIu32,
                            kv->file.name, stored->n_layers, stored->layers[0].n_kv_heads, stored->layers[0].head_dim,
                            kv->geom.n_layers, kv->geom.layers[0].n_kv_heads, kv->geom.layers[0].head_dim);
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
    size_t n_open = (size_t)(kv->base_tokens % SL_PART_TOKENS);
    if (n_open > 0)
        status = load_open_parts(kv, n_parts, n_open, err);
    /* Before anything in a finished file is overwritten, what stands there is committed elsewhere. */
    if (status == SL_OK && kv->keeps && state.is_finished)
        status = commit(kv, sl_durable_ids(kv->durable), kv->parts.max_groups * SL_TILE, true, err);
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
