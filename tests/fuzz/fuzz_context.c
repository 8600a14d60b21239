/* Any bytes as a part of a context file: a superblock, a segment record, a commit record, an end record. The first byte
 * says which, and whether checksum and mark are put right first, so that what lies behind them is reached too. What is
 * accepted is walked, and says the same when it is encoded and decoded again; nothing is read past the input, memory
 * stays in proportion. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "fuzz/fuzz.h"
#include "store/format.h"

enum { SECTOR = 4096, MARK_OFF_RECORD = 24, MARK_OFF_COMMIT = 32, LENGTH_OFF_COMMIT = 48 };

static const uint64_t mark = UINT64_C(0x0123456789abcdef);

static void require(bool truth)
{
    if (!truth)
        abort();
}

static void require_error(sl_status status, const sl_err *err)
{
    require((status == SL_DAMAGED || status == SL_REFUSED) && err->text[0] != '\0' && !strchr(err->text, '\n'));
}

static void store(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void seal(uint8_t *buf, uint64_t bytes)
{
    store(buf + bytes - 8, sl_hash(buf, (size_t)bytes - 8));
}

/* Aligned, as the readers' buffers are; of the exact size, so that the address sanitizer sees what lies beyond. */
static uint8_t *copy_of(const uint8_t *data, size_t size, size_t bytes)
{
    uint8_t *buf = calloc(1, bytes > 0 ? bytes : 1);
    require(buf != NULL);
    if (size > 0)
        memcpy(buf, data, size < bytes ? size : bytes);
    return buf;
}

static void try_superblock(const uint8_t *data, size_t size, bool fix)
{
    sl_budget budget;
    sl_superblock found, again;
    sl_err err = {SL_OK, ""};
    uint8_t *buf = copy_of(data, size, size);
    uint64_t bytes = size < SECTOR ? 0 : (uint64_t)buf[16] | (uint64_t)buf[17] << 8 | (uint64_t)buf[18] << 16;
    if (fix && bytes >= SECTOR && bytes <= size)
        seal(buf, bytes);
    sl_budget_init(&budget, UINT64_MAX);
    sl_status status = sl_superblock_decode(buf, size, &budget, &found, &err);
    require(budget.peak_bytes <= 4096 + 2 * (uint64_t)size);
    if (status == SL_OK) {
        sl_layout layout = sl_layout_of(&found.geom);
        require(layout.superblock_bytes == bytes && layout.data_off % SL_BLOCK_ALIGN == 0);
        require(layout.stride >= layout.blocks_bytes + 2 * layout.record_bytes && sl_layout_max_segments(&layout) > 0);
        uint8_t *second = copy_of(NULL, 0, (size_t)layout.superblock_bytes);
        uint64_t checksum = sl_superblock_encode(second, &found.identity, &found.geom);
        require(sl_superblock_decode(second, (size_t)layout.superblock_bytes, &budget, &again, &err) == SL_OK);
        require(again.checksum == checksum && again.geom.n_layers == found.geom.n_layers);
        require(sl_identity_compare(&found.identity, &again.identity, &err) == SL_OK);
        sl_superblock_free(&again, &budget);
        free(second);
    } else {
        require_error(status, &err);
    }
    sl_superblock_free(&found, &budget);
    require(budget.used_bytes == 0);
    sl_budget_deinit(&budget);
    free(buf);
}

static uint64_t walk_ids(const int32_t *ids, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (uint32_t)ids[i];
    return sum;
}

static void try_record(const uint8_t *data, size_t size, bool fix, const sl_geom *geom)
{
    sl_err err = {SL_OK, ""};
    sl_layout layout = sl_layout_of(geom);
    uint8_t *buf = copy_of(data, size, (size_t)layout.record_bytes);
    uint64_t segment = buf[8];
    if (fix) {
        store(buf + MARK_OFF_RECORD, mark);
        seal(buf, layout.record_bytes);
    }
    sl_record record, again;
    sl_status status = sl_record_decode(buf, geom, segment, mark, &record, &err);
    if (status == SL_OK) {
        require(record.n_tokens >= 1 && record.n_tokens <= SL_SEGMENT_TOKENS && record.segment == segment);
        uint8_t *second = copy_of(NULL, 0, (size_t)layout.record_bytes);
        sl_record_encode(second, geom, &record);
        require(sl_record_decode(second, geom, segment, mark, &again, &err) == SL_OK);
        require(walk_ids(record.ids, record.n_tokens) == walk_ids(again.ids, again.n_tokens));
        require(memcmp(record.parts, again.parts, geom->n_layers * SL_SEGMENT_PARTS * sizeof *again.parts) == 0);
        free(second);
    } else {
        require_error(status, &err);
    }
    free(buf);
}

static void try_commit(const uint8_t *data, size_t size, bool fix, const sl_geom *geom)
{
    sl_err err = {SL_OK, ""};
    sl_layout layout = sl_layout_of(geom);
    size_t bytes = (size + SECTOR - 1) / SECTOR * SECTOR;
    bytes = bytes < layout.commit_bytes ? bytes : (size_t)layout.commit_bytes;
    uint8_t *buf = copy_of(data, size, bytes);
    uint64_t length = 0;
    for (size_t i = 0; i < 8 && bytes > 0; i++)
        length |= (uint64_t)buf[LENGTH_OFF_COMMIT + i] << (8 * i);
    if (fix && length >= LENGTH_OFF_COMMIT + 16 && length <= bytes) {
        store(buf + MARK_OFF_COMMIT, mark);
        seal(buf, length);
    }
    sl_commit commit, again;
    sl_status status = sl_commit_decode(buf, bytes, geom, mark, &commit, &err);
    if (status == SL_OK) {
        size_t n_open = (size_t)(commit.n_tokens % SL_SEGMENT_TOKENS);
        require(commit.generation > 0 && commit.tails + commit.tails_bytes + 8 <= buf + length);
        uint8_t *second = copy_of(NULL, 0, (size_t)layout.commit_bytes);
        sl_commit_encode(second, geom, &commit);
        require(sl_commit_decode(second, (size_t)layout.commit_bytes, geom, mark, &again, &err) == SL_OK);
        require(again.n_tokens == commit.n_tokens && again.intended_tokens == commit.intended_tokens);
        require(walk_ids(commit.ids, n_open) == walk_ids(again.ids, n_open));
        require(memcmp(commit.tails, again.tails, commit.tails_bytes) == 0);
        free(second);
    } else if (status != SL_FAILED) {
        require_error(status, &err);
    }
    free(buf);
}

static void try_end(const uint8_t *data, size_t size, bool fix)
{
    sl_err err = {SL_OK, ""};
    uint8_t *buf = copy_of(data, size, SL_FORMAT_END_BYTES);
    if (fix) {
        store(buf + MARK_OFF_RECORD, mark);
        seal(buf, SL_FORMAT_END_BYTES);
    }
    sl_end end, again;
    sl_status status = sl_end_decode(buf, mark, &end, &err);
    if (status == SL_OK) {
        uint8_t *second = copy_of(NULL, 0, SL_FORMAT_END_BYTES);
        sl_end_encode(second, &end);
        require(sl_end_decode(second, mark, &again, &err) == SL_OK);
        require(again.n_tokens == end.n_tokens && again.last == end.last);
        free(second);
    } else {
        require_error(status, &err);
    }
    free(buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const sl_kv_layer layers[] = {{1, 32, 0}, {3, 64, 0}};
    if (size == 0)
        return 0;
    const sl_geom geom = {data[0] & 8 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, data[0] & 16 ? 2 : 1, layers};
    bool fix = (data[0] & 4) != 0;
    if ((data[0] & 3) == 0)
        try_superblock(data + 1, size - 1, fix);
    else if ((data[0] & 3) == 1)
        try_record(data + 1, size - 1, fix, &geom);
    else if ((data[0] & 3) == 2)
        try_commit(data + 1, size - 1, fix, &geom);
    else
        try_end(data + 1, size - 1, fix);
    return 0;
}
