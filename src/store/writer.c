#include "store/writer.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"

enum { STAGE_BYTES = 1 << 20 }; /* of one write, at most */

typedef struct writer_layer {
    uint64_t n_tokens;
    uint64_t reserved_segments; /* whose block has its disk space */
    uint8_t *tail;              /* one tile group */
    XXH3_state_t *hash;         /* of the open part's flash bytes */
} writer_layer;

struct sl_writer {
    sl_writer_options options;
    writer_layer *layers;
    uint8_t *tails;
    size_t tails_bytes;
    uint8_t *stage; /* [STAGE_BYTES], sector-aligned */
    size_t stage_used;
    uint64_t stage_off;
    uint8_t *piece;     /* [SL_SECTOR_BYTES]: what the append under way leaves waiting */
    XXH3_state_t *hash; /* of the append under way */
    bool is_loading;
};

/* An append under way: becomes the layer's state when all of it has succeeded. */
typedef struct append_run {
    sl_writer *writer;
    uint32_t layer;
    size_t group_bytes;
    uint64_t n_groups;
    size_t piece_bytes;
    uint64_t resident_bytes;
} append_run;

static size_t tails_bytes_of(const sl_geom *geom)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++)
        bytes += sl_geom_group_bytes(geom, i);
    return bytes;
}

uint64_t sl_writer_table_bytes(const sl_geom *geom)
{
    enum { HEAP_HEADS = 2 * 32, SMALL_MAP = SL_MEM_ALIGN };
    uint64_t tails = (tails_bytes_of(geom) + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN * SL_MEM_ALIGN;
    uint64_t hashes = ((uint64_t)geom->n_layers + 1) * SL_HASH_STATE_BYTES;
    return sizeof(sl_writer) + geom->n_layers * sizeof(writer_layer) + hashes + tails + STAGE_BYTES + SMALL_MAP +
           HEAP_HEADS;
}

static sl_status init_memory(sl_writer *writer, sl_err *err)
{
    const sl_geom *geom = writer->options.geom;
    sl_budget *budget = writer->options.budget;
    writer->tails_bytes = tails_bytes_of(geom);
    sl_status status = sl_mem_new(budget, geom->n_layers, sizeof *writer->layers, "layer table", &writer->layers, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, writer->tails_bytes, "tails", &writer->tails, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, STAGE_BYTES, "write buffer", &writer->stage, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, SL_SECTOR_BYTES, "write buffer", &writer->piece, err);
    if (status == SL_OK)
        status = sl_hash_create(budget, &writer->hash, err);
    uint8_t *tail = writer->tails;
    for (uint32_t i = 0; status == SL_OK && i < geom->n_layers; i++) {
        writer->layers[i].tail = tail;
        tail += sl_geom_group_bytes(geom, i);
        status = sl_hash_create(budget, &writer->layers[i].hash, err);
    }
    return status;
}

sl_status sl_writer_create(const sl_writer_options *options, sl_writer **out, sl_err *err)
{
    *out = NULL;
    sl_writer *writer = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *writer, "writer", &writer, err);
    if (status != SL_OK)
        return status;
    writer->options = *options;
    status = init_memory(writer, err);
    if (status != SL_OK) {
        sl_writer_destroy(writer);
        return status;
    }
    *out = writer;
    return SL_OK;
}

void sl_writer_destroy(sl_writer *writer)
{
    if (!writer)
        return;
    sl_budget *budget = writer->options.budget;
    for (uint32_t i = 0; writer->layers && i < writer->options.geom->n_layers; i++)
        sl_hash_destroy(budget, writer->layers[i].hash);
    sl_hash_destroy(budget, writer->hash);
    sl_mem_unmap(budget, writer->piece, SL_SECTOR_BYTES);
    sl_mem_unmap(budget, writer->stage, STAGE_BYTES);
    sl_mem_unmap(budget, writer->tails, writer->tails_bytes);
    sl_mem_free(budget, writer->layers);
    sl_mem_free(budget, writer);
}

static sl_status flush(sl_writer *writer, sl_err *err)
{
    if (writer->stage_used == 0)
        return SL_OK;
    sl_status status = sl_kvfile_write(writer->options.file, writer->stage, writer->stage_used, writer->stage_off, err);
    writer->stage_off += writer->stage_used;
    writer->stage_used = 0;
    return status;
}

/* Bytes for the file at `off`, gathered into large writes. */
static sl_status stage(sl_writer *writer, const uint8_t *bytes, size_t n, uint64_t off, sl_err *err)
{
    sl_status status = SL_OK;
    if (writer->stage_off + writer->stage_used != off) {
        status = flush(writer, err);
        writer->stage_off = off;
    }
    while (status == SL_OK && n > 0) {
        size_t room = STAGE_BYTES - writer->stage_used;
        size_t now = n < room ? n : room;
        memcpy(writer->stage + writer->stage_used, bytes, now);
        writer->stage_used += now;
        bytes += now;
        n -= now;
        if (writer->stage_used == STAGE_BYTES)
            status = flush(writer, err);
    }
    return status;
}

static uint64_t part_off(const append_run *run, uint64_t part)
{
    return sl_parts_off(run->writer->options.parts, run->layer, part);
}

/* Before the first write into a block, at `off` of it: the rest gets its disk space in one piece, although windows fill
 * it bit by bit between other layers' writes. */
static sl_status reserve_block(const append_run *run, uint64_t part, uint64_t off, sl_err *err)
{
    const sl_parts *parts = run->writer->options.parts;
    const sl_parts_layer *of = &parts->layers[run->layer];
    writer_layer *layer = &run->writer->layers[run->layer];
    uint64_t slot = sl_parts_slot(of, part), segment = slot / SL_SEGMENT_PARTS, first = segment * SL_SEGMENT_PARTS;
    if (segment < layer->reserved_segments)
        return SL_OK;
    uint64_t bytes = of->n_turns > 0 ? (of->n_slots - first) * of->part_bytes
                                     : (parts->max_groups - first * SL_PART_TILES) * run->group_bytes;
    uint64_t block = sl_geom_block_bytes(run->writer->options.geom, run->layer);
    /* Whole sectors: a file that ended inside one would get that page zeroed, and so cached, when it grows. */
    bytes = (bytes < block ? bytes : block) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    /* From this part, not the block's first, which may lie in the file below. */
    uint64_t end = part_off(run, part) - slot % SL_SEGMENT_PARTS * of->part_bytes + bytes;
    sl_status status = sl_kvfile_reserve(run->writer->options.file, off, end - off, err);
    if (status == SL_OK)
        layer->reserved_segments = segment + 1;
    return status;
}

/* Groups for the open part on flash: whole sectors go out, the rest waits. All in whole groups, within one part. */
static sl_status append_flash(append_run *run, const uint8_t *bytes, size_t n, sl_err *err)
{
    sl_writer *writer = run->writer;
    uint64_t part = run->n_groups / SL_PART_TILES;
    size_t old_bytes = (size_t)(run->n_groups % SL_PART_TILES) * run->group_bytes;
    size_t old_flash = old_bytes / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    size_t new_flash = (old_bytes + n) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    size_t piece_bytes = old_bytes - old_flash;
    assert(piece_bytes == run->piece_bytes && new_flash > old_flash);
    if (old_bytes == 0)
        XXH3_64bits_reset(writer->hash);
    size_t out_bytes = new_flash - old_bytes;
    XXH3_64bits_update(writer->hash, writer->piece, piece_bytes);
    XXH3_64bits_update(writer->hash, bytes, out_bytes);
    uint64_t off = part_off(run, part) + old_flash;
    sl_status status = writer->is_loading ? SL_OK : reserve_block(run, part, off, err);
    if (status == SL_OK && !writer->is_loading)
        status = stage(writer, writer->piece, piece_bytes, off, err);
    if (status == SL_OK && !writer->is_loading)
        status = stage(writer, bytes, out_bytes, off + piece_bytes, err);
    run->piece_bytes = n - out_bytes;
    memcpy(writer->piece, bytes + out_bytes, run->piece_bytes);
    return status;
}

/* As many groups as the open part takes; returns their number in *n_groups. */
static sl_status append_part(append_run *run, const uint8_t *groups, uint64_t left, uint64_t *n_groups, sl_err *err)
{
    sl_parts *parts = run->writer->options.parts;
    const sl_parts_layer *of = &parts->layers[run->layer];
    uint64_t used = run->n_groups % SL_PART_TILES;
    uint64_t part = run->n_groups / SL_PART_TILES;
    size_t at = sl_parts_at(parts, run->layer, part);
    uint64_t n = SL_PART_TILES - used < left ? SL_PART_TILES - used : left;
    size_t bytes = (size_t)n * run->group_bytes;
    uint64_t last_part = (run->n_groups + left - 1) / SL_PART_TILES;
    if (used == 0 && sl_parts_slot(of, part) < of->n_turns && part + of->n_turns <= last_part) {
        /* Nobody will see it: another part has the slot when this append is done. */
        run->n_groups += n;
        *n_groups = n;
        return SL_OK;
    }
    if (used == 0)
        sl_stream_take_turn(run->writer->options.stream, run->layer, part);
    sl_status status = SL_OK;
    bool is_resident = parts->places[at] == SL_PLACE_RESIDENT;
    if (is_resident) {
        /* What a cut keeps comes from where it goes. */
        memmove(parts->memory[at] + used * run->group_bytes, groups, bytes);
        run->resident_bytes += bytes;
    }
    if (!is_resident || run->writer->options.keeps_all) {
        status = append_flash(run, groups, bytes, err);
        if (used + n == SL_PART_TILES)
            parts->checksums[at] = XXH3_64bits_digest(run->writer->hash);
    }
    run->n_groups += n;
    *n_groups = n;
    return status;
}

/* All full groups of an append. */
static sl_status append_groups(append_run *run, const uint8_t *groups, uint64_t n_full, sl_err *err)
{
    sl_writer *writer = run->writer;
    const sl_stream *stream = writer->options.stream;
    uint64_t done = 0;
    sl_status status = SL_OK;
    writer->stage_used = 0;
    run->n_groups = sl_stream_groups(stream, run->layer);
    const uint8_t *piece = sl_stream_piece(stream, run->layer, &run->piece_bytes);
    memcpy(writer->piece, piece, run->piece_bytes);
    XXH3_copyState(writer->hash, writer->layers[run->layer].hash);
    while (status == SL_OK && done < n_full) {
        uint64_t n = 0;
        status = append_part(run, groups + done * run->group_bytes, n_full - done, &n, err);
        done += n;
    }
    return status == SL_OK ? flush(writer, err) : status;
}

/* Clears the tokens of one tile from `first` on; its layout is described in kernel/kernel.h. */
static void clear_tile(uint8_t *tile, sl_kv_type type, size_t head_dim, size_t first)
{
    size_t absent = SL_TILE - first;
    if (type == SL_KV_TYPE_F16) {
        for (size_t d = 0; d < head_dim; d++)
            memset(tile + (d * SL_TILE + first) * 2, 0, absent * 2);
        memset(tile + 128 * head_dim + first * head_dim * 2, 0, absent * head_dim * 2);
        return;
    }
    memset(tile + first * head_dim, 0, absent * head_dim);
    for (size_t d = 0; d < head_dim; d++)
        memset(tile + 68 * head_dim + d * SL_TILE + first, 0, absent);
    for (size_t g = 0; g < head_dim / 32; g++) {
        memset(tile + 64 * head_dim + (g * SL_TILE + first) * 2, 0, absent * 2);
        memset(tile + 132 * head_dim + (g * SL_TILE + first) * 2, 0, absent * 2);
    }
}

static void keep_tail(sl_writer *writer, uint32_t layer, const uint8_t *group, size_t n_tokens)
{
    const sl_geom *geom = writer->options.geom;
    size_t head_dim = geom->layers[layer].head_dim;
    size_t tile_bytes = sl_tile_bytes(geom->type, head_dim);
    uint8_t *tail = writer->layers[layer].tail;
    if (n_tokens == 0) {
        memset(tail, 0, sl_geom_group_bytes(geom, layer));
        return;
    }
    memmove(tail, group, sl_geom_group_bytes(geom, layer));
    for (uint32_t head = 0; head < geom->layers[layer].n_kv_heads; head++)
        clear_tile(tail + head * tile_bytes, geom->type, head_dim, n_tokens);
}

sl_status sl_writer_append(sl_writer *writer, uint32_t layer, const uint8_t *groups, uint64_t n_new, sl_err *err)
{
    writer_layer *state = &writer->layers[layer];
    if (n_new > writer->options.max_tokens - state->n_tokens)
        return sl_err_set(err, SL_REFUSED,
                          "layer %" PRIu32 ": %" PRIu64 " tokens and %" PRIu64 " new ones are more than the %" PRIu64
                          " planned for",
                          layer, state->n_tokens, n_new, writer->options.max_tokens);
    uint64_t n_tokens = state->n_tokens % SL_TILE + n_new;
    uint64_t n_full = n_tokens / SL_TILE;
    sl_status status = sl_stream_grow_begin(writer->options.stream, layer, n_full, err);
    if (status != SL_OK)
        return status;
    append_run run = {.writer = writer, .layer = layer};
    run.group_bytes = sl_geom_group_bytes(writer->options.geom, layer);
    status = append_groups(&run, groups, n_full, err);
    if (status != SL_OK)
        return status;
    if (n_new > 0)
        keep_tail(writer, layer, groups + n_full * run.group_bytes, (size_t)(n_tokens % SL_TILE));
    state->n_tokens += n_new;
    XXH3_copyState(state->hash, writer->hash);
    sl_growth growth = {run.n_groups, writer->piece, run.piece_bytes, XXH3_64bits_digest(writer->hash),
                        run.resident_bytes};
    sl_stream_grow_end(writer->options.stream, layer, &growth);
    return SL_OK;
}

void sl_writer_start(sl_writer *writer, uint32_t layer, uint64_t n_tokens)
{
    assert(n_tokens % SL_PART_TOKENS == 0);
    writer->layers[layer].n_tokens = n_tokens;
    /* Its last segment's space is there; what more of it is asked for again. Slots that parts take turns in stay. */
    if (writer->options.parts->layers[layer].n_turns == 0)
        writer->layers[layer].reserved_segments = n_tokens / SL_SEGMENT_TOKENS;
}

void sl_writer_cut_tail(sl_writer *writer, uint32_t layer, uint32_t n_tokens)
{
    writer_layer *state = &writer->layers[layer];
    assert(n_tokens <= state->n_tokens % SL_TILE);
    state->n_tokens -= state->n_tokens % SL_TILE - n_tokens;
    keep_tail(writer, layer, state->tail, n_tokens);
}

void sl_writer_set_loading(sl_writer *writer, bool on)
{
    writer->is_loading = on;
}

uint64_t sl_writer_part_checksum(const sl_writer *writer, uint32_t layer, uint64_t part, bool with_tail)
{
    const writer_layer *state = &writer->layers[layer];
    uint64_t groups = state->n_tokens / SL_TILE;
    if (groups >= (part + 1) * SL_PART_TILES)
        return writer->options.parts->checksums[sl_parts_at(writer->options.parts, layer, part)];
    with_tail = with_tail && state->n_tokens % SL_TILE != 0;
    bool has_groups = groups > part * SL_PART_TILES;
    if (groups < part * SL_PART_TILES || (!has_groups && !with_tail))
        return 0;
    XXH3_64bits_reset(writer->hash);
    if (has_groups) {
        size_t piece_bytes = 0;
        const uint8_t *piece = sl_stream_piece(writer->options.stream, layer, &piece_bytes);
        XXH3_copyState(writer->hash, state->hash);
        XXH3_64bits_update(writer->hash, piece, piece_bytes);
    }
    if (with_tail)
        XXH3_64bits_update(writer->hash, state->tail, sl_geom_group_bytes(writer->options.geom, layer));
    return XXH3_64bits_digest(writer->hash);
}

sl_status sl_writer_write_tail(sl_writer *writer, uint32_t layer, sl_err *err)
{
    const writer_layer *state = &writer->layers[layer];
    append_run run = {.writer = writer, .layer = layer};
    run.group_bytes = sl_geom_group_bytes(writer->options.geom, layer);
    uint64_t groups = state->n_tokens / SL_TILE, part = groups / SL_PART_TILES;
    size_t piece_bytes = 0, tail_bytes = state->n_tokens % SL_TILE != 0 ? run.group_bytes : 0;
    const uint8_t *piece = sl_stream_piece(writer->options.stream, layer, &piece_bytes);
    size_t bytes = piece_bytes + tail_bytes, padding = (SL_SECTOR_BYTES - bytes % SL_SECTOR_BYTES) % SL_SECTOR_BYTES;
    if (bytes == 0)
        return SL_OK;
    uint64_t off = part_off(&run, part) + groups % SL_PART_TILES * run.group_bytes - piece_bytes;
    memset(writer->piece, 0, SL_SECTOR_BYTES);
    writer->stage_used = 0;
    sl_status status = stage(writer, piece, piece_bytes, off, err);
    if (status == SL_OK)
        status = stage(writer, state->tail, tail_bytes, off + piece_bytes, err);
    if (status == SL_OK)
        status = stage(writer, writer->piece, padding, off + bytes, err);
    return status == SL_OK ? flush(writer, err) : status;
}

const uint8_t *sl_writer_tail(const sl_writer *writer, uint32_t layer, uint32_t *n_tokens)
{
    *n_tokens = (uint32_t)(writer->layers[layer].n_tokens % SL_TILE);
    return writer->layers[layer].tail;
}

uint64_t sl_writer_tokens(const sl_writer *writer, uint32_t layer)
{
    return writer->layers[layer].n_tokens;
}
