/* Commit records: what a context file holds of its open segment. */
#include <assert.h>
#include <string.h>

#include "store/format_impl.h"

static const char COMMIT_MAGIC[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'C', 'M'};

size_t sl_commit_piece_bytes(const sl_geom *geom, uint32_t layer, uint64_t n_tokens)
{
    uint64_t groups = n_tokens % SL_SEGMENT_TOKENS / SL_TILE;
    return (size_t)(groups * sl_geom_group_bytes(geom, layer) % SL_FORMAT_SECTOR);
}

size_t sl_commit_tails_bytes(const sl_geom *geom, uint64_t n_tokens)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++)
        bytes +=
            sl_commit_piece_bytes(geom, i, n_tokens) + (n_tokens % SL_TILE != 0 ? sl_geom_group_bytes(geom, i) : 0);
    return bytes;
}

/* Of the ids, padded: what follows is aligned. */
static size_t ids_bytes(uint64_t n_tokens)
{
    return (size_t)sl_format_up(n_tokens % SL_SEGMENT_TOKENS * sizeof(int32_t), 8);
}

size_t sl_commit_tails_off(const sl_geom *geom, uint64_t n_tokens)
{
    return SL_FORMAT_COMMIT_HEAD + ids_bytes(n_tokens) + sl_format_n_sums(geom) * sizeof(uint64_t);
}

size_t sl_commit_record_bytes(const sl_geom *geom, uint64_t n_tokens)
{
    size_t bytes = sl_commit_tails_off(geom, n_tokens) + sl_commit_tails_bytes(geom, n_tokens);
    return (size_t)sl_format_up(bytes, 8) + SL_FORMAT_CHECKSUM_BYTES;
}

void sl_commit_encode(uint8_t *buf, const sl_geom *geom, const sl_commit *commit)
{
    size_t bytes = sl_commit_record_bytes(geom, commit->n_tokens);
    size_t n_open = (size_t)(commit->n_tokens % SL_SEGMENT_TOKENS);
    uint8_t *tails = buf + sl_commit_tails_off(geom, commit->n_tokens), *tails_end = tails + commit->tails_bytes;
    assert(commit->tails_bytes == sl_commit_tails_bytes(geom, commit->n_tokens));
    memset(buf, 0, (size_t)(tails - buf));
    memset(tails_end, 0, (size_t)(buf + bytes - tails_end));
    uint8_t *at = buf;
    memcpy(at, COMMIT_MAGIC, sizeof COMMIT_MAGIC);
    at += sizeof COMMIT_MAGIC;
    sl_format_put(&at, commit->generation, 8);
    sl_format_put(&at, commit->n_tokens, 8);
    sl_format_put(&at, commit->intended_tokens, 8);
    sl_format_put(&at, commit->superblock, 8);
    sl_format_put(&at, commit->previous, 8);
    sl_format_put(&at, bytes, 8);
    sl_format_put(&at, n_open, 4);
    sl_format_put(&at, commit->is_alone, 4);
    assert(at == buf + SL_FORMAT_COMMIT_HEAD);
    for (size_t i = 0; i < n_open; i++)
        sl_format_put(&at, (uint32_t)commit->ids[i], 4);
    at = buf + SL_FORMAT_COMMIT_HEAD + ids_bytes(commit->n_tokens);
    for (size_t i = 0; i < sl_format_n_sums(geom); i++)
        sl_format_put(&at, commit->parts[i], 8);
    assert(at == tails);
    if (commit->tails_bytes > 0 && commit->tails != tails)
        memcpy(tails, commit->tails, commit->tails_bytes);
    (void)sl_format_seal(buf, bytes);
}

static bool is_zero(const uint8_t *buf, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (buf[i] != 0)
            return false;
    return true;
}

static sl_status check_commit(const uint8_t *buf, size_t size, const sl_geom *geom, uint64_t superblock, sl_commit *out,
                              sl_err *err)
{
    if (size < SL_FORMAT_SECTOR || memcmp(buf, COMMIT_MAGIC, sizeof COMMIT_MAGIC) != 0)
        return sl_err_set(err, SL_DAMAGED, "commit record: no magic");
    sl_span span = sl_span_of(buf, size);
    (void)sl_span_take(&span, 8);
    out->generation = sl_span_u64(&span);
    out->n_tokens = sl_span_u64(&span);
    out->intended_tokens = sl_span_u64(&span);
    out->superblock = sl_span_u64(&span);
    out->previous = sl_span_u64(&span);
    uint64_t bytes = sl_span_u64(&span);
    if (bytes > size || bytes != sl_commit_record_bytes(geom, out->n_tokens))
        return sl_err_set(err, SL_DAMAGED, "commit record: %" PRIu64 " tokens in %" PRIu64 " bytes", out->n_tokens,
                          bytes);
    (void)sl_span_u32(&span); /* of the open segment: follows from n_tokens */
    uint32_t flags = sl_span_u32(&span);
    if (flags > 1)
        return sl_err_set(err, SL_DAMAGED, "commit record: flags %" PRIu32, flags);
    out->is_alone = flags == 1;
    uint64_t checksum;
    sl_status status = sl_format_check(buf, (size_t)bytes, "commit record", &checksum, err);
    if (status != SL_OK)
        return status;
    sl_layout layout = sl_layout_of(geom);
    if (out->superblock != superblock || out->generation == 0 ||
        out->n_tokens / SL_SEGMENT_TOKENS >= sl_layout_max_segments(&layout))
        return sl_err_set(err, SL_DAMAGED,
                          "commit record: generation %" PRIu64 ", %" PRIu64
                          " tokens, of a context with mark %016" PRIx64,
                          out->generation, out->n_tokens, out->superblock);
    return SL_OK;
}

sl_status sl_commit_decode(uint8_t *buf, size_t size, const sl_geom *geom, uint64_t superblock, sl_commit *out,
                           sl_err *err)
{
    *out = (sl_commit){0};
    if (size >= SL_FORMAT_SECTOR && is_zero(buf, SL_FORMAT_SECTOR)) {
        (void)sl_err_set(err, SL_FAILED, "%s", "");
        return SL_FAILED;
    }
    sl_status status = check_commit(buf, size, geom, superblock, out, err);
    if (status != SL_OK)
        return status;
    size_t n_open = (size_t)(out->n_tokens % SL_SEGMENT_TOKENS);
    size_t parts_off = SL_FORMAT_COMMIT_HEAD + ids_bytes(out->n_tokens);
    sl_format_make_native(buf + SL_FORMAT_COMMIT_HEAD, n_open, sizeof(int32_t));
    sl_format_make_native(buf + parts_off, sl_format_n_sums(geom), sizeof(uint64_t));
    out->ids = sl_format_at(buf, SL_FORMAT_COMMIT_HEAD);
    out->parts = sl_format_at(buf, parts_off);
    out->tails = buf + sl_commit_tails_off(geom, out->n_tokens);
    out->tails_bytes = sl_commit_tails_bytes(geom, out->n_tokens);
    return SL_OK;
}
