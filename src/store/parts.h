/* The table of parts: which stay in memory, where, and the checksums of those on flash.
 *
 * Owns: the memory of resident parts. Which parts are resident is fixed by arithmetic over (layer, part index): of a
 * context over a file first those that are its own, then, spread evenly over layers and over every prefix of the
 * context, the others. Where layers slide, parts that no row from answer_from on sees come last: a prefill reads such a
 * part once or twice, each pass of an answer reads all others. A cyclic walk would defeat any choice by recent use.
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

typedef struct sl_parts {
    const sl_geom *geom; /* borrowed */
    sl_budget *budget;   /* borrowed */
    uint64_t max_groups; /* tile groups of a layer, the most there will be */
    uint64_t n_parts;    /* of a layer */
    /* Where segments lie in the file: the first at data_off, one every `stride` bytes. Parts from own_part on lie in
     * the file that is attached to it (SL_OVERLAY_OFF). Set after init where they are not the defaults: 0, the blocks'
     * bytes, none. */
    uint64_t data_off, stride, own_part;
    uint64_t answer_from; /* token; set after init where it is known; 0: all parts are alike */
    uint64_t total_bytes, chosen_bytes;
    uint64_t *checksums; /* [n_layers][n_parts] of closed parts on flash */
    uint8_t **memory;    /* [n_layers][n_parts] NULL where not chosen */
    uint8_t *places;     /* [n_layers][n_parts] sl_place */
    sl_parts_region *regions;
} sl_parts;

/* All parts start on flash. */
sl_status sl_parts_init(sl_parts *parts, const sl_geom *geom, uint64_t max_tokens, sl_budget *budget,
                        sl_err *err) SL_CHECK;
void sl_parts_deinit(sl_parts *parts);

/* Memory that init takes. */
uint64_t sl_parts_table_bytes(const sl_geom *geom, uint64_t max_tokens);

/* Makes parts WANTED until `resident_bytes` in all are chosen, as far as whole parts go; never takes one back. The
 * memory is taken from the budget here and touched when a part gets its bytes. On error nothing has changed. */
sl_status sl_parts_raise(sl_parts *parts, uint64_t resident_bytes, sl_err *err) SL_CHECK;

/* Offset of the segment that a part belongs to. */
static inline uint64_t sl_parts_segment_off(const sl_parts *parts, uint64_t part)
{
    uint64_t off = parts->data_off + part / SL_SEGMENT_PARTS * parts->stride;
    return part >= parts->own_part ? off + SL_OVERLAY_OFF : off;
}

/* Index into the arrays. */
static inline size_t sl_parts_at(const sl_parts *parts, uint32_t layer, uint64_t part)
{
    return (size_t)(layer * parts->n_parts + part);
}

/* Tile groups that a part can hold: 16, fewer in the last. */
static inline uint32_t sl_parts_capacity(const sl_parts *parts, uint64_t part)
{
    uint64_t left = parts->max_groups - part * SL_PART_TILES;
    return left < SL_PART_TILES ? (uint32_t)left : (uint32_t)SL_PART_TILES;
}

#endif
