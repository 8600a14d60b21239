/* Commit records: four places, of which one counts. A right checksum says that a record is whole, not that it is of
 * this text: what counts is what its second copy or the commit before bears out. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/durable_pick.h"

/* What is known of a copy. */
typedef struct place {
    bool is_whole, is_empty, is_borne_out;
    uint64_t generation, n_tokens, previous, checksum;
    int32_t *ids; /* [n_tokens % 4096] of the open segment */
} place;

enum { IDS_BYTES = SL_DURABLE_COMMITS * SL_SEGMENT_TOKENS * (int)sizeof(int32_t) };

void sl_durable_note(sl_durable *d, const char *text)
{
    if (!d->note[0])
        snprintf(d->note, sizeof d->note, "%s", text);
}

static sl_status read_at(const sl_durable *d, void *buf, size_t bytes, uint64_t off, sl_err *err)
{
    return sl_vfs_read(d->vfs, d->file, d->path, buf, bytes, off, err);
}

/* One copy, into buf [commit_bytes]; as sl_commit_decode. */
static sl_status read_commit(const sl_durable *d, uint8_t *buf, unsigned copy, sl_commit *out, sl_err *found)
{
    uint64_t off = sl_layout_area_off(&d->layout, copy / 2) + copy % 2 * d->layout.commit_bytes, bytes = 0;
    sl_status status = read_at(d, buf, SL_SECTOR_BYTES, off, found);
    if (status != SL_OK)
        return status;
    for (size_t i = 0; i < 8; i++)
        bytes |= (uint64_t)buf[48 + i] << (8 * i);
    size_t size = bytes <= d->layout.commit_bytes ? (size_t)sl_up_sector(bytes) : SL_SECTOR_BYTES;
    if (size > SL_SECTOR_BYTES)
        status = read_at(d, buf, size, off, found);
    if (status == SL_OK)
        status = sl_commit_decode(buf, size > SL_SECTOR_BYTES ? size : SL_SECTOR_BYTES, &d->superblock.geom,
                                  d->superblock.checksum, out, found);
    if (status == SL_OK && out->generation % 2 != copy / 2)
        return sl_err_set(found, SL_DAMAGED, "commit record: generation %" PRIu64 " in the other area",
                          out->generation);
    return status;
}

sl_status sl_durable_read_commit(sl_durable *d, uint8_t *buf, unsigned copy, sl_commit *out, sl_err *err)
{
    sl_status status = read_commit(d, buf, copy, out, err);
    d->was_overtaken = status == SL_DAMAGED || (status != SL_OK && !err->text[0]);
    return status;
}

/* All four. Only what cannot be read at all is an error. */
static sl_status look(sl_durable *d, uint8_t *buf, place places[SL_DURABLE_COMMITS], sl_err *err)
{
    for (unsigned copy = 0; copy < SL_DURABLE_COMMITS; copy++) {
        sl_commit commit;
        sl_err found;
        place *p = &places[copy];
        sl_status status = read_commit(d, buf, copy, &commit, &found);
        p->is_whole = status == SL_OK;
        p->is_empty = status == SL_FAILED && !found.text[0];
        if (status == SL_DAMAGED) {
            d->has_damaged_commit = true;
            sl_durable_note(d, "a copy of a commit record is damaged");
        } else if (!p->is_whole && !p->is_empty) {
            return sl_err_set(err, status, "%s", found.text);
        }
        if (!p->is_whole)
            continue;
        p->generation = commit.generation;
        p->n_tokens = commit.n_tokens;
        p->previous = commit.previous;
        memcpy(&p->checksum, buf + sl_commit_record_bytes(&d->superblock.geom, commit.n_tokens) - sizeof p->checksum,
               sizeof p->checksum);
        memcpy(p->ids, commit.ids, (size_t)(commit.n_tokens % SL_SEGMENT_TOKENS) * sizeof *p->ids);
    }
    return SL_OK;
}

/* Whether a whole copy of the segment's record has this checksum. buf: longer than a record. */
static bool has_record(const sl_durable *d, uint8_t *buf, uint64_t segment, uint64_t checksum)
{
    bool has = false;
    for (uint64_t copy = 0; copy < 2; copy++) {
        uint64_t off = sl_layout_record_off(&d->layout, segment) + copy * d->layout.record_bytes;
        sl_record record;
        sl_err why;
        has = has || (read_at(d, buf, (size_t)d->layout.record_bytes, off, &why) == SL_OK &&
                      sl_record_decode(buf, &d->superblock.geom, segment, d->superblock.checksum, &record, &why) ==
                          SL_OK &&
                      record.checksum == checksum);
    }
    return has;
}

static bool is_equal(const place *a, const place *b)
{
    return a->is_whole && b->is_whole && a->checksum == b->checksum;
}

/* Whether `next` is the commit after `p`: of more of the same tokens. */
static bool goes_on(const sl_durable *d, uint8_t *buf, const place *p, const place *next)
{
    uint64_t segment = next->n_tokens / SL_SEGMENT_TOKENS;
    if (!p->is_whole || next->generation != p->generation + 1 || next->n_tokens < p->n_tokens)
        return false;
    if (p->n_tokens / SL_SEGMENT_TOKENS < segment)
        return has_record(d, buf, segment - 1, next->previous);
    return next->previous == p->previous &&
           memcmp(next->ids, p->ids, (size_t)(p->n_tokens % SL_SEGMENT_TOKENS) * sizeof *p->ids) == 0;
}

static void find_support(const sl_durable *d, uint8_t *buf, place places[SL_DURABLE_COMMITS])
{
    for (unsigned copy = 0; copy < SL_DURABLE_COMMITS; copy++) {
        place *p = &places[copy];
        const place *second = &places[copy ^ 1];
        if (!p->is_whole)
            continue;
        p->is_borne_out = is_equal(p, second);
        for (unsigned other = 0; other < SL_DURABLE_COMMITS && !p->is_borne_out; other++)
            /* Anything goes on from nothing. */
            if (other / 2 != copy / 2 && (places[other].n_tokens > 0 || !second->is_empty))
                p->is_borne_out = goes_on(d, buf, &places[other], p);
    }
}

/* Whether the file ends as a finished one does. */
static bool has_end(const sl_durable *d, uint8_t *buf)
{
    int64_t size = d->vfs->size(d->file);
    uint64_t n = size > (int64_t)d->layout.data_off ? ((uint64_t)size - d->layout.data_off) / d->layout.stride : 0;
    bool has = false;
    if (n == 0 || (uint64_t)size != sl_layout_finished_bytes(&d->layout, n))
        return false;
    for (uint64_t copy = 0; copy < 2 && !has; copy++) {
        sl_end end;
        sl_err why;
        has = read_at(d, buf, SL_FORMAT_END_BYTES, sl_layout_segment_off(&d->layout, n) + copy * SL_FORMAT_END_BYTES,
                      &why) == SL_OK &&
              sl_end_decode(buf, d->superblock.checksum, &end, &why) == SL_OK && has_record(d, buf, n - 1, end.last);
    }
    return has;
}

/* The newest of those that are borne out; of none, the newest. */
static unsigned choose(const place places[SL_DURABLE_COMMITS], bool borne_out)
{
    unsigned best = SL_DURABLE_COMMITS;
    for (unsigned copy = 0; copy < SL_DURABLE_COMMITS; copy++)
        if (places[copy].is_whole && (places[copy].is_borne_out || !borne_out) &&
            (best == SL_DURABLE_COMMITS || places[copy].generation > places[best].generation))
            best = copy;
    return best;
}

static sl_status pick(sl_durable *d, uint8_t *buf, place places[SL_DURABLE_COMMITS], unsigned *found_copy, sl_err *err)
{
    find_support(d, buf, places);
    unsigned best = choose(places, true);
    if (best == SL_DURABLE_COMMITS)
        best = choose(places, false);
    *found_copy = best;
    if (best == SL_DURABLE_COMMITS)
        return SL_OK;
    const place *p = &places[best], *second = &places[best ^ 1];
    /* Of a finished file's first commit one copy alone: not the commit's end, or another's record. */
    if (!p->is_borne_out && second->is_empty && has_end(d, buf)) {
        d->has_damaged_commit = true;
        sl_durable_note(d, "a commit record in one copy alone, which nothing bears out");
        *found_copy = SL_DURABLE_COMMITS;
        return SL_OK;
    }
    if (second->is_whole && second->generation == p->generation && !is_equal(p, second) &&
        second->is_borne_out == p->is_borne_out)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: the two copies of the commit record of generation %" PRIu64
                          " are whole and differ, and nothing says which one is right",
                          d->path, p->generation);
    for (unsigned copy = 0; copy < SL_DURABLE_COMMITS; copy++) {
        bool is_same = is_equal(&places[copy], p);
        if (is_same || goes_on(d, buf, &places[copy], p))
            d->fitting_commits |= 1u << copy;
        if (places[copy].is_whole && places[copy].generation >= p->generation && !is_same)
            sl_durable_note(d, "a copy of a commit record is not of this text");
    }
    return SL_OK;
}

sl_status sl_durable_find_commit(sl_durable *d, uint8_t *buf, sl_commit *best, unsigned *found_copy, sl_err *err)
{
    place places[SL_DURABLE_COMMITS];
    int32_t *ids = NULL;
    *found_copy = SL_DURABLE_COMMITS;
    d->fitting_commits = 0;
    memset(places, 0, sizeof places);
    sl_status status = sl_mem_map(d->options.budget, IDS_BYTES, "commit records' tokens", &ids, err);
    if (status != SL_OK)
        return status;
    for (size_t copy = 0; copy < SL_DURABLE_COMMITS; copy++)
        places[copy].ids = ids + copy * SL_SEGMENT_TOKENS;
    status = look(d, buf, places, err);
    if (status == SL_OK)
        status = pick(d, buf, places, found_copy, err);
    sl_mem_unmap(d->options.budget, ids, IDS_BYTES);
    return status == SL_OK && *found_copy < SL_DURABLE_COMMITS ? sl_durable_read_commit(d, buf, *found_copy, best, err)
                                                               : status;
}
