/* By the layouts of kernel.h. */
#include "kernel/tile_key.h"

#include <string.h>

#include "kernel/kernel.h"

/* Row `key` of `n` bytes. */
static void copy_row(uint8_t *to, size_t to_key, const uint8_t *from, size_t from_key, size_t n)
{
    memmove(to + to_key * n, from + from_key * n, n);
}

/* Column `key` of n rows of 64 elements. */
static void copy_bytes(uint8_t *to, size_t to_key, const uint8_t *from, size_t from_key, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i * SL_TILE + to_key] = from[i * SL_TILE + from_key];
}

static void copy_halves(uint8_t *to, size_t to_key, const uint8_t *from, size_t from_key, size_t n)
{
    uint16_t *t = (uint16_t *)(void *)to;
    const uint16_t *f = (const uint16_t *)(const void *)from;
    for (size_t i = 0; i < n; i++)
        t[i * SL_TILE + to_key] = f[i * SL_TILE + from_key];
}

void sl_tile_key_copy(sl_kv_type type, size_t head_dim, uint8_t *to, size_t to_key, const uint8_t *from,
                      size_t from_key)
{
    if (type == SL_KV_TYPE_F16) {
        copy_halves(to, to_key, from, from_key, head_dim);
        copy_row(to + 128 * head_dim, to_key, from + 128 * head_dim, from_key, 2 * head_dim);
        return;
    }
    copy_row(to, to_key, from, from_key, head_dim);
    copy_halves(to + 64 * head_dim, to_key, from + 64 * head_dim, from_key, head_dim / SL_GROUP);
    copy_bytes(to + 68 * head_dim, to_key, from + 68 * head_dim, from_key, head_dim);
    copy_halves(to + 132 * head_dim, to_key, from + 132 * head_dim, from_key, head_dim / SL_GROUP);
}
