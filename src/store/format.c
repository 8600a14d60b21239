#include "store/format.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "store/format_impl.h"

enum {
    MAX_LAYERS = 65536, /* as sl_geom_check */
    FIXED_BYTES = 368,  /* of the superblock, before the layers */
    LAYER_BYTES = 16,
    NUMBERS_BYTES = 8 * SL_FORMAT_ROPE_NUMBERS, /* behind the layers */
    HEAD_BYTES = 112, /* before the name */
    RECORD_HEAD = 56
};

static const char SUPERBLOCK_MAGIC[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'K', 'V'};
static const char RECORD_MAGIC[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'R', 'C'};

/* ---- places ---- */

static uint64_t superblock_bytes(uint32_t n_layers)
{
    return sl_format_up(FIXED_BYTES + (uint64_t)LAYER_BYTES * n_layers + NUMBERS_BYTES + SL_FORMAT_CHECKSUM_BYTES,
                        SL_FORMAT_SECTOR);
}

uint64_t sl_superblock_max_bytes(void)
{
    return superblock_bytes(MAX_LAYERS);
}

/* The longest commit record: 63 tokens of an unfilled tile, and every piece at its longest. */
static uint64_t longest_commit(const sl_geom *geom)
{
    uint64_t bytes = SL_FORMAT_COMMIT_HEAD + SL_SEGMENT_TOKENS * sizeof(int32_t) + SL_FORMAT_CHECKSUM_BYTES;
    for (uint32_t i = 0; i < geom->n_layers; i++)
        bytes += SL_SEGMENT_PARTS * sizeof(uint64_t) + SL_FORMAT_SECTOR + sl_geom_group_bytes(geom, i);
    return bytes;
}

sl_layout sl_layout_of(const sl_geom *geom)
{
    sl_layout layout = {.superblock_bytes = superblock_bytes(geom->n_layers),
                        .commit_bytes = sl_format_up(longest_commit(geom), SL_FORMAT_SECTOR),
                        .blocks_bytes = sl_geom_segment_bytes(geom)};
    uint64_t record_bytes = RECORD_HEAD + SL_SEGMENT_PARTS * sizeof(uint64_t) * (uint64_t)geom->n_layers +
                            SL_SEGMENT_TOKENS * sizeof(int32_t) + SL_FORMAT_CHECKSUM_BYTES;
    layout.record_bytes = sl_format_up(record_bytes, SL_FORMAT_SECTOR);
    layout.data_off = sl_format_up(2 * layout.superblock_bytes + 4 * layout.commit_bytes, SL_BLOCK_ALIGN);
    layout.stride = sl_format_up(layout.blocks_bytes + 2 * layout.record_bytes, SL_BLOCK_ALIGN);
    return layout;
}

uint64_t sl_layout_area_off(const sl_layout *layout, unsigned area)
{
    return 2 * layout->superblock_bytes + area * 2 * layout->commit_bytes;
}

uint64_t sl_layout_segment_off(const sl_layout *layout, uint64_t segment)
{
    return layout->data_off + segment * layout->stride;
}

uint64_t sl_layout_record_off(const sl_layout *layout, uint64_t segment)
{
    return sl_layout_segment_off(layout, segment) + layout->blocks_bytes;
}

uint64_t sl_layout_finished_bytes(const sl_layout *layout, uint64_t n_segments)
{
    return sl_layout_segment_off(layout, n_segments) + 2 * SL_FORMAT_END_BYTES;
}

uint64_t sl_layout_max_segments(const sl_layout *layout)
{
    return ((uint64_t)INT64_MAX - layout->data_off - 2 * SL_FORMAT_END_BYTES) / layout->stride;
}

/* ---- numbers in a buffer, little-endian ---- */

static void put_double(uint8_t **at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    sl_format_put(at, bits, 8);
}

static void put_float(uint8_t **at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    sl_format_put(at, bits, 4);
}

static double take_double(sl_span *span)
{
    uint64_t bits = sl_span_u64(span);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float take_float(sl_span *span)
{
    uint32_t bits = sl_span_u32(span);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- superblock ---- */

uint64_t sl_superblock_encode(uint8_t *buf, const sl_identity *identity, const sl_geom *geom)
{
    uint64_t bytes = superblock_bytes(geom->n_layers);
    size_t name_bytes = strlen(identity->name);
    memset(buf, 0, (size_t)bytes);
    uint8_t *at = buf;
    memcpy(at, SUPERBLOCK_MAGIC, sizeof SUPERBLOCK_MAGIC);
    at += sizeof SUPERBLOCK_MAGIC;
    sl_format_put(&at, SL_FORMAT_VERSION, 4);
    sl_format_put(&at, identity->arithmetic_version, 4);
    sl_format_put(&at, bytes, 4);
    sl_format_put(&at, geom->type, 4);
    sl_format_put(&at, geom->n_layers, 4);
    sl_format_put(&at, identity->flags, 4);
    sl_format_put(&at, identity->model[0], 8);
    sl_format_put(&at, identity->model[1], 8);
    sl_format_put(&at, identity->tokenizer, 8);
    sl_format_put(&at, identity->rope_kind, 4);
    sl_format_put(&at, identity->rope_dims, 4);
    put_double(&at, identity->rope_base);
    put_double(&at, identity->rope_scale);
    sl_format_put(&at, identity->rope_factors, 8);
    sl_format_put(&at, identity->n_vocab, 4);
    sl_format_put(&at, name_bytes, 4);
    put_float(&at, identity->attn_scale);
    put_float(&at, identity->softcap);
    sl_format_put(&at, 0, 8);
    assert(at == buf + HEAD_BYTES && name_bytes <= SL_FORMAT_NAME_BYTES);
    memcpy(at, identity->name, name_bytes);
    at = buf + FIXED_BYTES;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        sl_format_put(&at, geom->layers[i].n_kv_heads, 4);
        sl_format_put(&at, geom->layers[i].head_dim, 4);
        sl_format_put(&at, geom->layers[i].span, 8);
    }
    for (size_t i = 0; i < SL_FORMAT_ROPE_NUMBERS; i++)
        put_double(&at, identity->rope_numbers[i]);
    return sl_format_seal(buf, (size_t)bytes);
}

/* Magic, version, length and checksum: what must hold before anything else is believed. */
static sl_status check_superblock(const uint8_t *buf, size_t size, size_t *bytes, uint64_t *checksum, sl_err *err)
{
    if (size < SL_FORMAT_SECTOR || memcmp(buf, SUPERBLOCK_MAGIC, sizeof SUPERBLOCK_MAGIC) != 0)
        return sl_err_set(err, SL_DAMAGED, "superblock: no magic, this is not a context");
    uint32_t version = (uint32_t)sl_format_load(buf + 8, 4);
    if (version != SL_FORMAT_VERSION)
        return sl_err_set(err, SL_REFUSED, "format version %" PRIu32 ", this program knows %d", version,
                          (int)SL_FORMAT_VERSION);
    *bytes = (size_t)sl_format_load(buf + 16, 4);
    if (*bytes < SL_FORMAT_SECTOR || *bytes % SL_FORMAT_SECTOR != 0 || *bytes > sl_superblock_max_bytes() ||
        *bytes > size)
        return sl_err_set(err, SL_DAMAGED, "superblock: length %zu", *bytes);
    return sl_format_check(buf, *bytes, "superblock", checksum, err);
}

static sl_status decode_fields(sl_span *span, sl_superblock *out, uint32_t *name_bytes)
{
    sl_identity *identity = &out->identity;
    (void)sl_span_take(span, 12); /* magic, version */
    identity->arithmetic_version = sl_span_u32(span);
    (void)sl_span_u32(span); /* length */
    out->geom.type = (sl_kv_type)sl_span_u32(span);
    out->geom.n_layers = sl_span_u32(span);
    identity->flags = sl_span_u32(span);
    identity->model[0] = sl_span_u64(span);
    identity->model[1] = sl_span_u64(span);
    identity->tokenizer = sl_span_u64(span);
    identity->rope_kind = sl_span_u32(span);
    identity->rope_dims = sl_span_u32(span);
    identity->rope_base = take_double(span);
    identity->rope_scale = take_double(span);
    identity->rope_factors = sl_span_u64(span);
    identity->n_vocab = sl_span_u32(span);
    *name_bytes = sl_span_u32(span);
    identity->attn_scale = take_float(span);
    identity->softcap = take_float(span);
    (void)sl_span_u64(span);
    return span->failed ? SL_DAMAGED : SL_OK;
}

static sl_status decode_layers(sl_span *span, sl_budget *budget, sl_superblock *out, sl_err *err)
{
    sl_status status = sl_mem_new(budget, out->geom.n_layers, sizeof *out->layers, "layer table", &out->layers, err);
    if (status != SL_OK)
        return status;
    for (uint32_t i = 0; i < out->geom.n_layers; i++) {
        out->layers[i].n_kv_heads = sl_span_u32(span);
        out->layers[i].head_dim = sl_span_u32(span);
        out->layers[i].span = sl_span_u64(span);
    }
    for (size_t i = 0; i < SL_FORMAT_ROPE_NUMBERS; i++)
        out->identity.rope_numbers[i] = take_double(span);
    out->geom.layers = out->layers;
    sl_err why;
    status = sl_geom_check(&out->geom, &why);
    return status == SL_OK ? SL_OK : sl_err_set(err, SL_DAMAGED, "superblock: %s", why.text);
}

sl_status sl_superblock_decode(const uint8_t *buf, size_t size, sl_budget *budget, sl_superblock *out, sl_err *err)
{
    *out = (sl_superblock){0};
    size_t bytes = 0;
    sl_status status = check_superblock(buf, size, &bytes, &out->checksum, err);
    if (status != SL_OK)
        return status;
    sl_span span = sl_span_of(buf, bytes);
    uint32_t name_bytes = 0;
    if (decode_fields(&span, out, &name_bytes) != SL_OK || name_bytes > SL_FORMAT_NAME_BYTES ||
        out->geom.n_layers == 0 || out->geom.n_layers > MAX_LAYERS || superblock_bytes(out->geom.n_layers) != bytes)
        return sl_err_set(err, SL_DAMAGED, "superblock: %" PRIu32 " layers, name of %" PRIu32 " bytes, length %zu",
                          out->geom.n_layers, name_bytes, bytes);
    const uint8_t *name = sl_span_take(&span, SL_FORMAT_NAME_BYTES);
    if (name)
        memcpy(out->identity.name, name, name_bytes);
    return decode_layers(&span, budget, out, err);
}

void sl_superblock_free(sl_superblock *superblock, sl_budget *budget)
{
    sl_mem_free(budget, superblock->layers);
    *superblock = (sl_superblock){0};
}

sl_status sl_identity_compare(const sl_identity *context, const sl_identity *model, sl_err *err)
{
    const struct {
        const char *what;
        uint64_t of_context, of_model;
    } numbers[] = {
        {"version of the arithmetic", context->arithmetic_version, model->arithmetic_version},
        {"vocabulary size", context->n_vocab, model->n_vocab},
        {"RoPE rule", context->rope_kind, model->rope_kind},
        {"RoPE dimensions", context->rope_dims, model->rope_dims},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].of_context != numbers[i].of_model)
            return sl_err_set(err, SL_REFUSED, "%s: the context was made with %" PRIu64 ", this run has %" PRIu64,
                              numbers[i].what, numbers[i].of_context, numbers[i].of_model);
    const struct {
        const char *what;
        double of_context, of_model;
    } reals[] = {
        {"RoPE base", context->rope_base, model->rope_base},
        {"RoPE scale", context->rope_scale, model->rope_scale},
        {"attention scale", (double)context->attn_scale, (double)model->attn_scale},
        {"attention softcap", (double)context->softcap, (double)model->softcap},
    };
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++)
        if (memcmp(&reals[i].of_context, &reals[i].of_model, sizeof(double)) != 0)
            return sl_err_set(err, SL_REFUSED, "%s: the context was made with %.17g, this run has %.17g", reals[i].what,
                              reals[i].of_context, reals[i].of_model);
    const struct {
        const char *what;
        uint64_t of_context, of_model;
    } marks[] = {
        {"RoPE factors", context->rope_factors, model->rope_factors},
        {"tokenizer", context->tokenizer, model->tokenizer},
        {"model (high half)", context->model[1], model->model[1]},
        {"model", context->model[0], model->model[0]},
    };
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (marks[i].of_context != marks[i].of_model)
            return sl_err_set(err, SL_REFUSED,
                              "%s: the context was made with %s, fingerprint %016" PRIx64
                              "; this one, %s, has %016" PRIx64,
                              marks[i].what, context->name, marks[i].of_context, model->name, marks[i].of_model);
    return SL_OK;
}

/* ---- segment record ---- */

static size_t record_bytes(const sl_geom *geom)
{
    return (size_t)sl_layout_of(geom).record_bytes;
}

void sl_record_encode(uint8_t *buf, const sl_geom *geom, sl_record *record)
{
    size_t bytes = record_bytes(geom);
    memset(buf, 0, bytes);
    uint8_t *at = buf;
    memcpy(at, RECORD_MAGIC, sizeof RECORD_MAGIC);
    at += sizeof RECORD_MAGIC;
    sl_format_put(&at, record->segment, 8);
    sl_format_put(&at, record->n_tokens, 4);
    sl_format_put(&at, geom->n_layers, 4);
    sl_format_put(&at, record->superblock, 8);
    sl_format_put(&at, record->previous, 8);
    sl_format_put(&at, record->segment * SL_SEGMENT_TOKENS + record->n_tokens, 8);
    sl_format_put(&at, 0, 8);
    assert(at == buf + RECORD_HEAD);
    for (size_t i = 0; i < sl_format_n_sums(geom); i++)
        sl_format_put(&at, record->parts[i], 8);
    for (size_t i = 0; i < record->n_tokens; i++)
        sl_format_put(&at, (uint32_t)record->ids[i], 4);
    record->checksum = sl_format_seal(buf, bytes);
}

sl_status sl_record_decode(uint8_t *buf, const sl_geom *geom, uint64_t segment, uint64_t superblock, sl_record *out,
                           sl_err *err)
{
    size_t bytes = record_bytes(geom);
    *out = (sl_record){0};
    if (memcmp(buf, RECORD_MAGIC, sizeof RECORD_MAGIC) != 0)
        return sl_err_set(err, SL_DAMAGED, "record of segment %" PRIu64 ": no magic", segment);
    sl_status status = sl_format_check(buf, bytes, "segment record", &out->checksum, err);
    if (status != SL_OK)
        return status;
    sl_span span = sl_span_of(buf, bytes);
    (void)sl_span_take(&span, 8);
    out->segment = sl_span_u64(&span);
    out->n_tokens = sl_span_u32(&span);
    uint32_t n_layers = sl_span_u32(&span);
    out->superblock = sl_span_u64(&span);
    out->previous = sl_span_u64(&span);
    if (out->segment != segment || out->superblock != superblock || n_layers != geom->n_layers)
        return sl_err_set(err, SL_DAMAGED,
                          "record of segment %" PRIu64 ": it is segment %" PRIu64
                          "'s of a context with mark %016" PRIx64,
                          segment, out->segment, out->superblock);
    if (out->n_tokens == 0 || out->n_tokens > SL_SEGMENT_TOKENS)
        return sl_err_set(err, SL_DAMAGED, "record of segment %" PRIu64 ": %" PRIu32 " tokens", segment, out->n_tokens);
    size_t ids_off = RECORD_HEAD + sl_format_n_sums(geom) * sizeof(uint64_t);
    sl_format_make_native(buf + RECORD_HEAD, sl_format_n_sums(geom), sizeof(uint64_t));
    sl_format_make_native(buf + ids_off, out->n_tokens, sizeof(int32_t));
    out->parts = sl_format_at(buf, RECORD_HEAD);
    out->ids = sl_format_at(buf, ids_off);
    return SL_OK;
}
