/* The tile: 64 consecutive tokens of one layer and one KV head, and its size in bytes. Here because both the kernels,
 * which compute on tiles, and the store, which keeps them, need it and neither may include the other. The layout
 * inside is kernel/kernel.h's. */
#ifndef SL_TILE_H
#define SL_TILE_H

#include <stddef.h>

enum {
    SL_TILE = 64, /* tokens of a tile */
    SL_MAX_HEAD_DIM = 256
};

typedef enum sl_kv_type { SL_KV_TYPE_F16, SL_KV_TYPE_Q8_0, SL_KV_TYPE_COUNT } sl_kv_type;

/* K and V of 64 tokens: F16 2 * 64 * D * 2 bytes; Q8_0 one byte a value and one binary16 for 32 of them. */
static inline size_t sl_tile_bytes(sl_kv_type type, size_t head_dim)
{
    return (type == SL_KV_TYPE_F16 ? 256 : 136) * head_dim;
}

#endif
