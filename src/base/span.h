/* A bounds-checked reader of bytes in memory, for parsers of files that nobody vouches for.
 * A read past the end sets `failed`, returns zeros and stays failed: a parser may read several fields and ask
 * once. All integers little-endian. */
#ifndef SL_SPAN_H
#define SL_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct sl_span {
    const uint8_t *data; /* borrowed */
    size_t size;
    size_t pos;
    bool failed;
} sl_span;

static inline sl_span sl_span_of(const void *data, size_t size)
{
    return (sl_span){data, size, 0, false};
}

/* n bytes at the position, which moves past them; NULL when fewer are left. */
static inline const uint8_t *sl_span_take(sl_span *span, uint64_t n)
{
    if (span->failed || n > span->size - span->pos) {
        span->failed = true;
        return NULL;
    }
    const uint8_t *at = span->data + span->pos;
    span->pos += (size_t)n;
    return at;
}

static inline uint64_t sl_span_uint(sl_span *span, size_t n_bytes)
{
    const uint8_t *at = sl_span_take(span, n_bytes);
    uint64_t value = 0;
    for (size_t i = 0; at && i < n_bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static inline uint8_t sl_span_u8(sl_span *span)
{
    return (uint8_t)sl_span_uint(span, 1);
}

static inline uint16_t sl_span_u16(sl_span *span)
{
    return (uint16_t)sl_span_uint(span, 2);
}

static inline uint32_t sl_span_u32(sl_span *span)
{
    return (uint32_t)sl_span_uint(span, 4);
}

static inline uint64_t sl_span_u64(sl_span *span)
{
    return sl_span_uint(span, 8);
}

#endif
