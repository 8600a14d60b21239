/* Inside a verification: shared by durable_verify.c (beginning, reading) and durable_verify_judge.c (what the bytes
 * should be). */
#ifndef SL_DURABLE_VERIFY_IMPL_H
#define SL_DURABLE_VERIFY_IMPL_H

#include "base/hash.h"
#include "platform/queue.h"
#include "store/durable_pick.h"
#include "store/durable_verify.h"

enum {
    SL_VERIFY_SLICE_BYTES = 1 << 20, /* of one read */
    SL_VERIFY_LEAST_SLICE_BYTES = 256 << 10,
    SL_VERIFY_MAX_SLOTS = 48, /* in flight, or waiting for one before them: enough for a fast disk */
    SL_VERIFY_LEAST_SLOTS = 6
};

typedef enum sl_verify_slot { SL_VERIFY_SLOT_READING, SL_VERIFY_SLOT_WHOLE, SL_VERIFY_SLOT_FAILED } sl_verify_slot;

typedef enum sl_verify_region_kind {
    SL_VERIFY_REGION_SKIP,   /* judged elsewhere, or not at all */
    SL_VERIFY_REGION_PART,   /* under a checksum */
    SL_VERIFY_REGION_ZERO,   /* unused bytes of a finished file */
    SL_VERIFY_REGION_OUTSIDE /* behind the last commit: counted */
} sl_verify_region_kind;

/* Consecutive bytes of the file that are judged as one. */
typedef struct sl_verify_region {
    sl_verify_region_kind kind;
    const char *what;
    uint64_t off, left;
    uint64_t checked; /* SL_VERIFY_REGION_PART: bytes under the checksum */
    uint32_t layer, part;
    bool is_told; /* SL_VERIFY_REGION_ZERO: a byte was found */
} sl_verify_region;

typedef enum sl_verify_state {
    SL_VERIFY_SEGMENT_HEAD,    /* not a segment: the commit areas */
    SL_VERIFY_SEGMENT_KNOWN,   /* its record counts */
    SL_VERIFY_SEGMENT_UNKNOWN, /* both copies of its record are damaged */
    SL_VERIFY_SEGMENT_OPEN,    /* the commit record counts */
    SL_VERIFY_SEGMENT_OUTSIDE, /* behind the last commit */
    SL_VERIFY_SEGMENT_NONE     /* behind the last segment */
} sl_verify_state;

typedef struct sl_verify {
    const sl_verify_options *o;
    sl_verify_result *result;
    sl_durable *d;
    const sl_geom *geom;
    uint64_t n_segments;
    bool has_commit;
    bool has_end;   /* the file has the size of a finished one: its end record is where it should be */
    bool has_trace; /* no commit record counts, but a writer was cut off at the first one or at clearing the last */
    sl_commit commit;
    uint8_t *commit_buf;
    sl_pick *picks; /* [n_segments + 1] */
    size_t picks_bytes;
    uint8_t *memory; /* [n_slots][slice_bytes], then records [2][record_bytes]: a segment's, and the next one's ahead */
    size_t n_slots, slice_bytes;
    sl_verify_slot slots[SL_VERIFY_MAX_SLOTS + 2]; /* slot n_slots + i: records[i] */
    XXH3_state_t *hash;
    sl_queue *queue;

    sl_verify_state state;
    uint64_t segment, step;
    uint32_t n_tokens;    /* of the segment */
    const uint64_t *sums; /* [n_layers][4] */
    uint64_t previous;    /* checksum of the record before */
    bool knows_previous, is_chain; /* is_chain: segments committed by their records alone may follow */
    bool has_pending;
    sl_damage pending; /* damage if a segment follows; a crash's trace if none does */
    sl_verify_region region;
} sl_verify;

static inline size_t sl_verify_record_bytes(const sl_verify *v)
{
    return (size_t)v->d->layout.record_bytes;
}

/* Where the record of a segment belongs in memory. */
static inline uint8_t *sl_verify_record(const sl_verify *v, uint64_t segment)
{
    return v->memory + v->n_slots * v->slice_bytes + segment % 2 * sl_verify_record_bytes(v);
}

void sl_verify_tell(sl_verify *v, sl_damage damage);
/* The copy of a segment's record that counts, if one does: its reading started, so that no slice waits for it. */
void sl_verify_start_record(sl_verify *v, uint64_t segment);
/* Until it has come, if it was started. False: it could not be read. */
bool sl_verify_wait_for_record(sl_verify *v, uint64_t segment);
/* The next bytes of the file, those at `off`. */
void sl_verify_judge(sl_verify *v, const uint8_t *buf, size_t bytes, uint64_t off);
/* Ends a region that has no bytes left; begins the next one that has some. */
void sl_verify_next_region(sl_verify *v, uint64_t off);

#endif
