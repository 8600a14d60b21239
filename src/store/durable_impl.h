/* Inside a context file: shared by durable.c (making, committing, finishing) and durable_open.c (finding out what is
 * there). */
#ifndef SL_DURABLE_IMPL_H
#define SL_DURABLE_IMPL_H

#include "store/durable.h"

struct sl_durable {
    sl_durable_options options;
    const sl_vfs *vfs;
    char *path;
    sl_file *file;
    bool is_direct;
    sl_superblock superblock;
    sl_layout layout;
    uint64_t n_tokens, intended_tokens;
    uint64_t generation; /* of the last commit in an area; 0: the areas hold none */
    uint64_t previous;   /* checksum of the last full segment's record; 0: none */
    uint64_t last;       /* of the last record, while opening */
    bool is_finished;
    bool is_alone; /* the last commit record: only another one commits more */
    bool is_marked;          /* a commit record or a segment record has the superblock's mark; seen while opening */
    bool has_damaged_commit; /* seen while opening */
    unsigned fitting_commits; /* likewise: bit i: copy i is the commit record that counts or the one before it */
    bool was_overtaken;      /* by a writer, while opening: what was found whole was another thing a moment later */
    bool is_lost; /* a sync failed: what was written before it may be gone, and no later sync would tell */
    uint64_t n_commits, bytes_written;
    char note[160]; /* empty: nothing to note */

    uint64_t cap_tokens, cap_segments;
    size_t ids_bytes, sums_bytes, record_room, commit_room;
    int32_t *ids;         /* [cap_tokens] */
    uint64_t *sums;       /* [cap_segments][n_layers][4] */
    uint8_t *record;      /* [record_room] */
    uint8_t *commit;      /* [commit_room] the last one read or written: its tails are the file's */
    const uint8_t *tails; /* into commit; NULL: none */
};

enum { SL_DURABLE_COMMITS = 4 }; /* copies of commit records: two in each area */

/* Empty, with its path; the caller closes. */
sl_status sl_durable_new(const sl_durable_options *options, sl_durable **out, sl_err *err) SL_CHECK;
/* Takes the memory for max(max_tokens, n_tokens) tokens; the geometry is known. */
sl_status sl_durable_take_memory(sl_durable *durable, uint64_t n_tokens, sl_err *err) SL_CHECK;
/* The steps of opening: the file, its lock, its size; the superblock; the commit record that counts, which stays in
 * buf [commit_bytes] (*found_copy = SL_DURABLE_COMMITS: there is none; SL_DAMAGED: nothing says which one). */
sl_status sl_durable_open_file(sl_durable *durable, uint64_t *size, sl_err *err) SL_CHECK;
sl_status sl_durable_load_superblock(sl_durable *durable, uint64_t size, sl_err *err) SL_CHECK;
sl_status sl_durable_find_commit(sl_durable *durable, uint8_t *buf, sl_commit *best, unsigned *found_copy,
                                 sl_err *err) SL_CHECK;
/* One copy, once more, of a commit record that was whole: if it is not any more, the next commits or the end of the
 * file have come over it (was_overtaken). */
sl_status sl_durable_read_commit(sl_durable *durable, uint8_t *buf, unsigned copy, sl_commit *out, sl_err *err)
    SL_CHECK;
/* What was found damaged and stands in a second copy: the first of it. */
void sl_durable_note(sl_durable *durable, const char *text);
/* Writes, counted. */
sl_status sl_durable_write(sl_durable *durable, const void *buf, size_t bytes, uint64_t off, sl_err *err) SL_CHECK;
/* Waits until all that was written is on the disk. Once failed, it fails for ever. */
sl_status sl_durable_sync(sl_durable *durable, sl_err *err) SL_CHECK;
/* Makes the commit areas zero, in an order in which a file with anything left in them never looks as though there was
 * nothing, and never like the commit before the last. */
sl_status sl_durable_clear_areas(sl_durable *durable, sl_err *err) SL_CHECK;
/* Of a finished file, for a reader: takes what an append may write over into memory. end_off: of the end record. */
sl_status sl_durable_hold_tails(sl_durable *durable, uint64_t end_off, sl_err *err) SL_CHECK;
/* Opens, reads and believes what deserves it; on error the caller closes. */
sl_status sl_durable_read_all(sl_durable *durable, sl_err *err) SL_CHECK;

static inline uint64_t *sl_durable_sums(const sl_durable *durable, uint64_t segment)
{
    return durable->sums + segment * durable->superblock.geom.n_layers * SL_SEGMENT_PARTS;
}

#endif
