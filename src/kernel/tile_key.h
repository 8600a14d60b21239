/* One token of a tile, moved as it lies: no arithmetic, so no instruction set has its own. */
#ifndef SL_TILE_KEY_H
#define SL_TILE_KEY_H

#include <stdint.h>

#include "base/tile.h"

/* K and V of key `from_key` of the tile `from` become key `to_key` of the tile `to`, which may be the same. */
void sl_tile_key_copy(sl_kv_type type, size_t head_dim, uint8_t *to, size_t to_key, const uint8_t *from,
                      size_t from_key);

#endif
