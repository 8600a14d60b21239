/* Where a context's bytes lie: pure arithmetic, no state.
 *
 * A tile group is the tiles of all KV heads of one layer for the same 64 tokens, in head order. A block is the 64
 * tile groups of one layer and segment; a part a quarter of it. In the file, segment after segment, each the blocks
 * of its layers in order, every block starting on a multiple of 16 KiB. */
#ifndef SL_GEOM_H
#define SL_GEOM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/tile.h"

enum {
    SL_SEGMENT_TOKENS = 4096,
    SL_PART_TOKENS = 1024,
    SL_PART_TILES = SL_PART_TOKENS / SL_TILE,
    SL_SEGMENT_PARTS = SL_SEGMENT_TOKENS / SL_PART_TOKENS,
    SL_BLOCK_ALIGN = 16384
};

typedef struct sl_kv_layer {
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint64_t span; /* a row sees its own token and the span - 1 before it; 0: all before it */
} sl_kv_layer;

typedef struct sl_geom {
    sl_kv_type type;
    uint32_t n_layers;
    const sl_kv_layer *layers; /* [n_layers], borrowed for the geometry's life */
} sl_geom;

/* What a context keeps of its sliding layers. */
typedef struct sl_slide {
    bool drops;           /* only what rows can still see, and what follows; false: everything */
    uint64_t back_tokens; /* and what rows so many tokens before the newest saw: a context can be cut back that far */
    bool has_points;      /* and the window before the end of every eighth segment: it can be cut back to there */
} sl_slide;

enum { SL_POINT_TOKENS = 8 * SL_SEGMENT_TOKENS };

/* Refuses: no layers, head_dim not a multiple of 16 or over SL_MAX_HEAD_DIM, a span over 32 bits, Q8_0 with head_dim
 * not a multiple of 32 (hint: f16), sizes that overflow. */
sl_status sl_geom_check(const sl_geom *geom, sl_err *err) SL_CHECK;
size_t sl_geom_group_bytes(const sl_geom *geom, uint32_t layer); /* one tile group */
size_t sl_geom_part_bytes(const sl_geom *geom, uint32_t layer);  /* 16 tile groups: a multiple of 4096 */
size_t sl_geom_block_bytes(const sl_geom *geom, uint32_t layer); /* 4 parts, rounded up to 16 KiB */
uint64_t sl_geom_segment_bytes(const sl_geom *geom);
uint64_t sl_geom_block_off(const sl_geom *geom, uint64_t segment, uint32_t layer); /* from the file's first block */
/* The first token that a row at `pos` of the layer sees. */
uint64_t sl_geom_first_seen(const sl_kv_layer *layer, uint64_t pos);
/* The first part that the layer's rows from `pos` on walk, behind full tile groups or in the unfilled one. */
uint64_t sl_geom_first_part(const sl_kv_layer *layer, uint64_t pos);
/* Bytes of the full tiles of n_tokens that lie in parts which rows from `pos` on walk; with pos = n_tokens, what a pass
 * at the end does. */
uint64_t sl_geom_seen_bytes(const sl_geom *geom, uint64_t pos, uint64_t n_tokens);
uint64_t sl_geom_token_bytes(const sl_geom *geom); /* KV bytes of one token, all layers (exact: tile bytes / 64) */
size_t sl_geom_max_part_bytes(const sl_geom *geom);
bool sl_geom_is_same(const sl_geom *a, const sl_geom *b); /* type and every layer, its span too */

#endif
