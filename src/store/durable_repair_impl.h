/* Inside a repair: shared by durable_repair.c (the whole file, its parts) and durable_repair_copies.c (what stands
 * twice, unused bytes). */
#ifndef SL_DURABLE_REPAIR_IMPL_H
#define SL_DURABLE_REPAIR_IMPL_H

#include "store/durable_pick.h"
#include "store/durable_repair.h"

enum { SL_REPAIR_LOOK_BYTES = 64 << 10 }; /* of one reading of what may have to be written */

struct sl_repair {
    sl_repair_options o;
    sl_durable *d;
    uint64_t n_segments;
    bool has_commit;
    sl_commit commit; /* in d->commit */
    /* Tokens from the first on whose ids and checksums are believed: they are in d. From segment `open` on (UINT64_MAX:
     * none) the commit record has them. */
    uint64_t known_tokens, open;
    uint8_t *buf;      /* [SL_REPAIR_LOOK_BYTES] */
    uint64_t *damaged; /* a bit for each part of the file: [n_segments][4][n_layers] */
    size_t damaged_bytes;
    bool is_end_made; /* the end record, where both copies were missing */
    uint64_t at;       /* sl_repair_next: the part of the context that is at work */
    sl_repair_result result;
    sl_status failed; /* within a callback; its words are in `why` */
    sl_err why;
};

/* Found and repaired (with dry_run: found), or lost. */
void sl_repair_tell(sl_repair *repair, const sl_damage *damage, bool is_lost);

/* Both copies of superblock and records; what the records say is then in d. */
sl_status sl_repair_copies(sl_repair *repair, sl_err *err) SL_CHECK;
/* Zeros from `off` to `end`, sector by sector where there are none. */
sl_status sl_repair_zeros(sl_repair *repair, uint64_t off, uint64_t end, sl_err *err) SL_CHECK;
/* What a writer left that was cut off in a finished file. */
sl_status sl_repair_trace(sl_repair *repair, sl_err *err) SL_CHECK;

#endif
