/* The table of parts: which stay in memory, where, the checksums of those on flash, and where these lie.
 *
 * Owns: the memory of resident parts. Every part has a slot: its place in memory and file. Of a layer that keeps all
 * its tokens each part has its own; of a sliding layer that drops old ones (sl_slide) a few take turns.
 *
 * Which slots are resident is fixed by arithmetic over (layer, slot): of a context over a file first those that are its
 * own, then, spread evenly over layers and over every prefix of the context, the others. Where layers slide and keep
 * everything, parts that no row from answer_from on sees come last: a prefill reads such a part once or twice, each
 * pass of an answer reads all others. A cyclic walk would defeat any choice by recent use.
 *
 * Thread rule: none of its own; the stream's lock guards places and checksums of parts that the reader may see. */
#ifndef SL_PARTS_H
#define SL_PARTS_H

#include "base/mem.h"
#include "platform/vfs.h"
#include "store/geom.h"

typedef enum sl_place {
    SL_PLACE_FLASH,   /* goes to the file, or is there */
    SL_PLACE_WANTED,  /* has memory, but its bytes (if any yet) are in the file */
    SL_PLACE_RESIDENT /* its bytes are in memory; they may never have been written */
} sl_place;

typedef struct sl_parts_region sl_parts_region;

typedef struct sl_parts_layer {
    size_t first;           /* of its slots in the arrays */
    size_t first_turn;      /* likewise in `held` */
    uint64_t n_slots;
    uint64_t n_turns;       /* 0: every part has its own slot; else parts take turns in the first so many */
    uint64_t n_point_parts; /* of every 32, the last so many have slots of their own behind those */
    uint64_t off, stride;   /* of its blocks in the file: the first, and from one to the next */
    size_t part_bytes;
} sl_parts_layer;

typedef struct sl_parts {
    const sl_geom *geom; /* borrowed */
    sl_budget *budget;   /* borrowed */
    uint64_t max_groups; /* tile groups of a layer, the most there will be */
    uint64_t n_parts;    /* of a layer */
    /* Parts from own_part on lie in the file that is attached to a kept one (SL_OVERLAY_OFF), by slots, those before
     * in the kept one, by their index. Set after init; UINT64_MAX: there is one file only. */
    uint64_t own_part;
    bool is_over; /* such an attached file is or may be */
    uint64_t answer_from; /* token; set after init where it is known; 0: all parts are alike */
    uint64_t total_bytes, chosen_bytes;
    sl_parts_layer *layers; /* [n_layers] */
    uint64_t *held;         /* [n_layers][n_turns] the part that has the slot; UINT64_MAX: none */
    /* [n_layers][n_slots] */
    uint64_t *checksums; /* of closed parts on flash */
    uint8_t **memory;    /* NULL where not chosen */
    uint8_t *places;     /* sl_place */
    sl_parts_region *regions;
} sl_parts;

/* All parts start on flash, in a file of this context's own. */
sl_status sl_parts_init(sl_parts *parts, const sl_geom *geom, uint64_t max_tokens, const sl_slide *slide,
                        sl_budget *budget, sl_err *err) SL_CHECK;
void sl_parts_deinit(sl_parts *parts);

/* Blocks lie as in a context file: the first segment at data_off, one every `stride` bytes. */
void sl_parts_lay(sl_parts *parts, uint64_t data_off, uint64_t stride);

/* Bytes of all slots that parts from `own_part` on may have: what a file of theirs takes, at most. */
uint64_t sl_parts_bytes(const sl_geom *geom, uint64_t max_tokens, const sl_slide *slide, uint64_t own_part);
/* Of these, what rows from position `pos` on see. */
uint64_t sl_parts_seen_bytes(const sl_geom *geom, uint64_t max_tokens, const sl_slide *slide, uint64_t pos);

/* Memory that init takes, at most. */
uint64_t sl_parts_table_bytes(const sl_geom *geom, uint64_t max_tokens);

/* Makes parts WANTED until `resident_bytes` in all are chosen, as far as whole parts go; never takes one back. The
 * memory is taken from the budget here and touched when a part gets its bytes. On error nothing has changed. */
sl_status sl_parts_raise(sl_parts *parts, uint64_t resident_bytes, sl_err *err) SL_CHECK;

/* The slot of a part among its layer's. */
static inline uint64_t sl_parts_slot(const sl_parts_layer *layer, uint64_t part)
{
    enum { POINT_PARTS = SL_POINT_TOKENS / SL_PART_TOKENS };
    if (layer->n_turns == 0)
        return part;
    uint64_t before = POINT_PARTS - layer->n_point_parts, at = part % POINT_PARTS;
    return at < before ? part % layer->n_turns
                       : layer->n_turns + part / POINT_PARTS * layer->n_point_parts + (at - before);
}

/* Index into the arrays. */
static inline size_t sl_parts_at(const sl_parts *parts, uint32_t layer, uint64_t part)
{
    return parts->layers[layer].first + (size_t)sl_parts_slot(&parts->layers[layer], part);
}

/* Offset of a part. */
static inline uint64_t sl_parts_off(const sl_parts *parts, uint32_t layer, uint64_t part)
{
    const sl_parts_layer *of = &parts->layers[layer];
    uint64_t place = parts->is_over && part < parts->own_part ? part : sl_parts_slot(of, part);
    uint64_t off = of->off + place / SL_SEGMENT_PARTS * of->stride + place % SL_SEGMENT_PARTS * of->part_bytes;
    return parts->is_over && part >= parts->own_part ? off + SL_OVERLAY_OFF : off;
}

/* Whether the slot is the part's own, or its turn. */
bool sl_parts_holds(const sl_parts *parts, uint32_t layer, uint64_t part);
/* The slot is the part's from now on; false if it was before. */
bool sl_parts_take_turn(sl_parts *parts, uint32_t layer, uint64_t part);

/* A slot that was the part's for a time is nobody's from now on; false if it is another's, or the part's for good. */
bool sl_parts_end_turn(sl_parts *parts, uint32_t layer, uint64_t part);

/* Tile groups that a part can hold: 16, fewer in the last. */
static inline uint32_t sl_parts_capacity(const sl_parts *parts, uint64_t part)
{
    uint64_t left = parts->max_groups - part * SL_PART_TILES;
    return left < SL_PART_TILES ? (uint32_t)left : (uint32_t)SL_PART_TILES;
}

#endif
