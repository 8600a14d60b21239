/* Inside the format: what superblock, segment records (format.c) and commit records (format_commit.c) share. */
#ifndef SL_FORMAT_IMPL_H
#define SL_FORMAT_IMPL_H

#include <inttypes.h>

#include "base/hash.h"
#include "base/span.h"
#include "store/format.h"

enum {
    SL_FORMAT_SECTOR = 4096,
    SL_FORMAT_COMMIT_HEAD = 64, /* before a commit record's ids */
    SL_FORMAT_CHECKSUM_BYTES = 8
};

static inline uint64_t sl_format_up(uint64_t bytes, uint64_t align)
{
    return (bytes + align - 1) / align * align;
}

static inline size_t sl_format_n_sums(const sl_geom *geom)
{
    return (size_t)geom->n_layers * SL_SEGMENT_PARTS;
}

static inline void sl_format_put(uint8_t **at, uint64_t value, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        *(*at)++ = (uint8_t)(value >> (8 * i));
}

static inline uint64_t sl_format_load(const uint8_t *at, size_t n_bytes)
{
    sl_span span = sl_span_of(at, n_bytes);
    return sl_span_uint(&span, n_bytes);
}

/* Numbers of a file become the machine's, in place; nothing to do on little-endian machines. */
static inline void sl_format_make_native(uint8_t *at, size_t n, size_t item_bytes)
{
    for (size_t i = 0; i < n; i++, at += item_bytes) {
        uint64_t value = sl_format_load(at, item_bytes);
        uint32_t narrow = (uint32_t)value;
        if (item_bytes == sizeof narrow)
            memcpy(at, &narrow, sizeof narrow);
        else
            memcpy(at, &value, sizeof value);
    }
}

/* The checksum that ends `bytes` bytes; written there. */
static inline uint64_t sl_format_seal(uint8_t *buf, size_t bytes)
{
    uint64_t checksum = sl_hash(buf, bytes - SL_FORMAT_CHECKSUM_BYTES);
    uint8_t *at = buf + bytes - SL_FORMAT_CHECKSUM_BYTES;
    sl_format_put(&at, checksum, SL_FORMAT_CHECKSUM_BYTES);
    return checksum;
}

static inline sl_status sl_format_check(const uint8_t *buf, size_t bytes, const char *what, uint64_t *checksum,
                                        sl_err *err)
{
    *checksum = sl_format_load(buf + bytes - SL_FORMAT_CHECKSUM_BYTES, SL_FORMAT_CHECKSUM_BYTES);
    uint64_t found = sl_hash(buf, bytes - SL_FORMAT_CHECKSUM_BYTES);
    if (found == *checksum)
        return SL_OK;
    return sl_err_set(err, SL_DAMAGED, "%s: checksum %016" PRIx64 ", expected %016" PRIx64, what, found, *checksum);
}

/* Pointers into a decoded buffer: the buffer is aligned to 8 bytes, and so is each of its arrays. */
static inline void *sl_format_at(uint8_t *buf, size_t off)
{
    return buf + off;
}

#endif
