/* Which copy of a segment record or of the end record counts: the one that fits the others, not merely one whose own
 * checksum is right. A stale or misdirected sector may hold another context's record, valid on its own.
 * Thread rule: the handle's. */
#ifndef SL_DURABLE_PICK_H
#define SL_DURABLE_PICK_H

#include "store/durable_impl.h"

enum {
    SL_PICK_NONE = -1, /* neither copy is whole; behind the last commit: or none follows */
    SL_PICK_BOTH = -2  /* both are, they differ, and nothing says which one is right */
};

/* Of a segment, or of what ends the chain: the end record, or the commit record (both copies alike). */
typedef struct sl_pick {
    bool is_whole[2]; /* valid on its own; behind the last commit: and may follow it */
    uint64_t checksum[2], previous[2];
    uint64_t first[2]; /* tokens before it; the end record's tokens */
    uint64_t end[2];   /* tokens to its end */
    uint64_t before[2], after[2]; /* fitting links on the best way through the others, to this copy, from it */
    int copy;     /* that counts */
    bool is_sure; /* it fits all that follow, to the end of the chain: a whole copy unlike it is not the file's */
    bool is_denied; /* a neighbour does not fit it, and it is not sure */
} sl_pick;

/* picks [n_segments + 1]: the last one is the chain's end. commit NULL: a finished file, has_end when it has the size
 * of one. buf [record_bytes], 8-byte aligned. What cannot be read is not whole. */
void sl_picks_make(sl_durable *durable, const sl_commit *commit, uint64_t n_segments, bool has_end, sl_pick *picks,
                   uint8_t *buf);

/* Segments, at most n, whose records look present, one after the other from 0 on: what a file's length says is worth no
 * memory, what lies in it is. `commit` (NULL: a finished file): behind its tokens full segments go on, alone: none do.
 * buf [SL_SECTOR_BYTES]. */
uint64_t sl_picks_count(const sl_durable *durable, const sl_commit *commit, uint64_t n, uint8_t *buf);
/* The end record of a finished file of n_segments alone; as picks[n_segments]. buf [SL_FORMAT_END_BYTES]. */
void sl_picks_end(const sl_durable *durable, uint64_t n_segments, sl_pick *out, uint8_t *buf);

/* Whether the copies are whole and differ, or one of them is not whole. */
bool sl_pick_is_uneven(const sl_pick *pick);

/* Whether any commit record or the first segment's record has this superblock's mark. buf [SL_SECTOR_BYTES]. */
bool sl_superblock_is_used(const sl_durable *durable, const sl_superblock *superblock, uint8_t *buf);

#endif
