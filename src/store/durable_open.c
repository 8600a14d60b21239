/* Finding out what a context file holds: superblock, commit areas, the chain of records. Trusts no byte. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "store/durable_pick.h"

static sl_status read_at(sl_durable *d, void *buf, size_t bytes, uint64_t off, sl_err *err)
{
    return sl_vfs_read(d->vfs, d->file, d->path, buf, bytes, off, err);
}

/* Puts the file's name before what was found in it. */
static sl_status name_error(const sl_durable *d, sl_status status, const sl_err *found, sl_err *err)
{
    return sl_err_set(err, status, "%s: %s", d->path, found->text);
}

/* ---- superblock ---- */

/* The copy at `off`, whose length its own first sector tells. buf: room for the longest. */
static sl_status read_superblock(sl_durable *d, uint8_t *buf, uint64_t size, uint64_t off, sl_err *found)
{
    if (off + SL_SECTOR_BYTES > size)
        return sl_err_set(found, SL_DAMAGED, "superblock: the file has only %" PRIu64 " bytes", size);
    sl_status status = read_at(d, buf, SL_SECTOR_BYTES, off, found);
    if (status != SL_OK)
        return status;
    uint64_t bytes = (uint64_t)buf[16] | (uint64_t)buf[17] << 8 | (uint64_t)buf[18] << 16 | (uint64_t)buf[19] << 24;
    bool is_likely = memcmp(buf, "SLUICEKV", 8) == 0 && bytes > SL_SECTOR_BYTES && bytes % SL_SECTOR_BYTES == 0 &&
                     bytes <= sl_superblock_max_bytes() && bytes <= size - off;
    if (is_likely)
        status = read_at(d, buf, (size_t)bytes, off, found);
    if (status != SL_OK)
        return status;
    return sl_superblock_decode(buf, is_likely ? (size_t)bytes : SL_SECTOR_BYTES, d->options.budget, &d->superblock,
                                found);
}

/* The first copy; if it is damaged, or nothing in the file has its mark, the second, which lies behind the first and so
 * where a copy's own length says. */
static sl_status find_superblock(sl_durable *d, uint8_t *buf, uint64_t size, sl_err *err)
{
    sl_err first;
    sl_status found = read_superblock(d, buf, size, 0, &first);
    d->is_marked = found == SL_OK && sl_superblock_is_used(d, &d->superblock, buf);
    /* A version that is not known may be a known one with a flipped bit: then the second copy has that. */
    if (d->is_marked || (found != SL_OK && found != SL_DAMAGED && found != SL_REFUSED))
        return d->is_marked ? SL_OK : name_error(d, found, &first, err);
    for (uint64_t off = SL_SECTOR_BYTES; off <= sl_superblock_max_bytes() && off + SL_SECTOR_BYTES <= size;
         off += SL_SECTOR_BYTES) {
        sl_err other;
        sl_superblock_free(&d->superblock, d->options.budget);
        sl_status status = read_superblock(d, buf, size, off, &other);
        if (status != SL_OK || sl_layout_of(&d->superblock.geom).superblock_bytes != off)
            continue;
        d->is_marked = sl_superblock_is_used(d, &d->superblock, buf);
        if (d->is_marked || found != SL_OK) {
            sl_durable_note(d, "the superblock's first copy is damaged, the second is not");
            return SL_OK;
        }
    }
    if (found != SL_OK)
        return name_error(d, found, &first, err);
    sl_superblock_free(&d->superblock, d->options.budget);
    found = read_superblock(d, buf, size, 0, &first);
    return found == SL_OK ? SL_OK : name_error(d, found, &first, err);
}

sl_status sl_durable_load_superblock(sl_durable *d, uint64_t size, sl_err *err)
{
    size_t room = (size_t)sl_superblock_max_bytes();
    uint8_t *buf = NULL;
    sl_status status = sl_mem_map(d->options.budget, room, "superblock", &buf, err);
    if (status == SL_OK)
        status = find_superblock(d, buf, size, err);
    sl_mem_unmap(d->options.budget, buf, room);
    if (status == SL_OK)
        d->layout = sl_layout_of(&d->superblock.geom);
    if (status == SL_OK && size < d->layout.data_off)
        return sl_err_set(err, SL_DAMAGED, "%s: %" PRIu64 " bytes, its first %" PRIu64 " are missing", d->path, size,
                          d->layout.data_off);
    return status;
}

/* ---- records ---- */

/* The copy of a segment's record that counts, decoded in d->record. */
static sl_status read_record(sl_durable *d, const sl_pick *pick, uint64_t segment, sl_record *out, sl_err *found)
{
    if (pick->copy == SL_PICK_BOTH)
        return sl_err_set(found, SL_DAMAGED,
                          "the two copies of the record of segment %" PRIu64
                          " are whole and differ, and neither fits the other records better",
                          segment);
    size_t copy = pick->copy == 1;
    uint64_t off = sl_layout_record_off(&d->layout, segment) + copy * d->layout.record_bytes;
    sl_status status = read_at(d, d->record, d->record_room, off, found);
    if (status == SL_OK)
        status = sl_record_decode(d->record, &d->superblock.geom, segment, d->superblock.checksum, out, found);
    if (status == SL_OK && (pick->copy < 0 || out->checksum != pick->checksum[copy]))
        status = sl_err_set(found, SL_DAMAGED, "record of segment %" PRIu64 ": it changed while it was read", segment);
    if (status == SL_OK && (copy == 1 || (pick->is_whole[1] && sl_pick_is_uneven(pick))))
        sl_durable_note(d, "a copy of a segment's record is damaged, the other is not");
    return status;
}

/* A commit may have been cut off between the copies of a record: whoever goes on writing makes them equal again, or the
 * finished file would tell of it. The copy that counts is in the file at `off` + copy * bytes; d->record is
 * overwritten. Only one that fits is written over another. */
static sl_status even_out(sl_durable *d, const sl_pick *pick, uint64_t off, size_t bytes, sl_err *err)
{
    if (!d->options.for_writing || !pick->is_sure || !sl_pick_is_uneven(pick))
        return SL_OK;
    uint64_t from = (uint64_t)pick->copy;
    sl_status status = read_at(d, d->record, bytes, off + from * bytes, err);
    if (status == SL_OK)
        status = sl_durable_write(d, d->record, bytes, off + (1 - from) * bytes, err);
    return status == SL_OK ? sl_durable_sync(d, err) : status;
}

static void take_record(sl_durable *d, const sl_record *record)
{
    size_t n_sums = (size_t)d->superblock.geom.n_layers * SL_SEGMENT_PARTS;
    memcpy(sl_durable_sums(d, record->segment), record->parts, n_sums * sizeof *record->parts);
    memcpy(d->ids + record->segment * SL_SEGMENT_TOKENS, record->ids, record->n_tokens * sizeof *record->ids);
    d->n_tokens += record->n_tokens;
    d->last = record->checksum;
    if (record->n_tokens == SL_SEGMENT_TOKENS)
        d->previous = record->checksum;
}

/* The record of the next segment, which must be there and follow the one before. */
static sl_status take_next(sl_durable *d, const sl_pick *picks, uint64_t segment, bool must_be_full, sl_err *err)
{
    sl_record record;
    sl_err found;
    sl_status status = read_record(d, &picks[segment], segment, &record, &found);
    if (status != SL_OK)
        return name_error(d, status, &found, err);
    if (record.previous != d->previous)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: the record of segment %" PRIu64 " follows one with checksum %016" PRIx64
                          ", the one before it has %016" PRIx64,
                          d->path, segment, record.previous, d->previous);
    if (must_be_full && record.n_tokens != SL_SEGMENT_TOKENS)
        return sl_err_set(err, SL_DAMAGED, "%s: the record of segment %" PRIu64 " has %" PRIu32 " tokens, expected %d",
                          d->path, segment, record.n_tokens, (int)SL_SEGMENT_TOKENS);
    take_record(d, &record);
    return even_out(d, &picks[segment], sl_layout_record_off(&d->layout, segment), d->record_room, err);
}

/* Full segments that were committed by their records after the commit in the area. */
static sl_status take_more(sl_durable *d, const sl_pick *picks, const sl_commit *commit, uint64_t n_segments,
                           sl_err *err)
{
    uint64_t open = commit->n_tokens / SL_SEGMENT_TOKENS;
    for (uint64_t segment = open; segment < n_segments && picks[segment].copy != SL_PICK_NONE; segment++) {
        sl_record record;
        sl_err found;
        sl_status status = read_record(d, &picks[segment], segment, &record, &found);
        if (status != SL_OK)
            return name_error(d, status, &found, err);
        if (segment == open)
            d->n_tokens -= commit->n_tokens % SL_SEGMENT_TOKENS; /* they are the record's now */
        take_record(d, &record);
        status = even_out(d, &picks[segment], sl_layout_record_off(&d->layout, segment), d->record_room, err);
        if (status != SL_OK)
            return status;
    }
    return SL_OK;
}

static sl_status load_unfinished(sl_durable *d, const sl_pick *picks, const sl_commit *commit, uint64_t n_segments,
                                 sl_err *err)
{
    uint64_t n_full = commit->n_tokens / SL_SEGMENT_TOKENS;
    size_t n_open = (size_t)(commit->n_tokens % SL_SEGMENT_TOKENS);
    sl_status status = SL_OK;
    for (uint64_t segment = 0; status == SL_OK && segment < n_full; segment++)
        status = take_next(d, picks, segment, true, err);
    if (status == SL_OK && d->previous != commit->previous)
        status =
            sl_err_set(err, SL_DAMAGED,
                       "%s: the commit follows a record with checksum %016" PRIx64 ", the last one has %016" PRIx64,
                       d->path, commit->previous, d->previous);
    if (status != SL_OK)
        return status;
    size_t n_sums = (size_t)d->superblock.geom.n_layers * SL_SEGMENT_PARTS;
    memcpy(sl_durable_sums(d, n_full), commit->parts, n_sums * sizeof *commit->parts);
    if (n_open > 0)
        memcpy(d->ids + d->n_tokens, commit->ids, n_open * sizeof *commit->ids);
    d->n_tokens += n_open;
    d->generation = commit->generation;
    d->is_alone = commit->is_alone;
    d->tails = commit->tails_bytes > 0 ? commit->tails : NULL;
    status = take_more(d, picks, commit, n_segments, err);
    if (d->n_tokens != commit->n_tokens)
        d->tails = NULL;
    d->intended_tokens = commit->intended_tokens > d->n_tokens ? commit->intended_tokens : d->n_tokens;
    return status;
}

/* The copy of the end record that counts. */
static sl_status load_end(sl_durable *d, const sl_pick *pick, uint64_t off, sl_end *out, sl_err *err)
{
    if (pick->copy == SL_PICK_NONE)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: no end record at offset %" PRIu64 ": it was cut off, or both copies are damaged",
                          d->path, off);
    if (pick->copy == SL_PICK_BOTH)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: the two copies of the end record are whole and differ, and neither fits the segment "
                          "records better",
                          d->path);
    if (sl_pick_is_uneven(pick))
        sl_durable_note(d, "a copy of the end record is damaged, the other is not");
    out->n_tokens = pick->end[pick->copy];
    out->last = pick->previous[pick->copy];
    return SL_OK;
}

static sl_status load_finished(sl_durable *d, const sl_pick *picks, uint64_t n_segments, sl_err *err)
{
    sl_end end = {0};
    uint64_t off = sl_layout_segment_off(&d->layout, n_segments);
    sl_status status = load_end(d, &picks[n_segments], off, &end, err);
    for (uint64_t segment = 0; status == SL_OK && segment < n_segments; segment++)
        status = take_next(d, picks, segment, segment + 1 < n_segments, err);
    if (status == SL_OK && (end.n_tokens != d->n_tokens || end.last != d->last))
        status = sl_err_set(err, SL_DAMAGED,
                            "%s: the end record tells of %" PRIu64 " tokens and a last record with checksum %016" PRIx64
                            ", the records of %" PRIu64 " and %016" PRIx64,
                            d->path, end.n_tokens, end.last, d->n_tokens, d->last);
    if (status == SL_OK)
        status = even_out(d, &picks[n_segments], off, SL_FORMAT_END_BYTES, err);
    d->intended_tokens = d->n_tokens;
    d->is_finished = true;
    return status;
}

/* Whoever counts by id relies on it; checksums do not show it in a file that was made to look right. */
static sl_status expect_ids(const sl_durable *d, sl_err *err)
{
    const uint32_t n_vocab = d->superblock.identity.n_vocab;
    for (uint64_t i = 0; i < d->n_tokens; i++)
        if (!sl_id_is_known(d->ids[i], n_vocab))
            return sl_err_set(err, SL_DAMAGED, "%s: token %" PRIu64 " has id %" PRId32 ", expected 0 to %" PRIu32,
                              d->path, i, d->ids[i], n_vocab - 1);
    return SL_OK;
}

/* Everything behind the commit record, or without one (NULL). */
static sl_status load_records(sl_durable *d, const sl_commit *commit, uint64_t n_segments, sl_err *err)
{
    size_t bytes = (size_t)(n_segments + 1) * sizeof(sl_pick);
    sl_pick *picks = NULL;
    sl_status status = sl_mem_map(d->options.budget, bytes, "copies of the records", &picks, err);
    if (status != SL_OK)
        return status;
    sl_picks_make(d, commit, n_segments, !commit, picks, d->record);
    status = commit ? load_unfinished(d, picks, commit, n_segments, err) : load_finished(d, picks, n_segments, err);
    if (status == SL_OK)
        status = expect_ids(d, err);
    sl_mem_unmap(d->options.budget, picks, bytes);
    return status;
}

/* Why the segment has no record. buf: longer than one. */
static sl_status miss_record(const sl_durable *d, uint8_t *buf, uint64_t segment, sl_err *err)
{
    sl_record record;
    sl_err found;
    sl_status status = sl_vfs_read(d->vfs, d->file, d->path, buf, (size_t)d->layout.record_bytes,
                                   sl_layout_record_off(&d->layout, segment), &found);
    if (status == SL_OK)
        status = sl_record_decode(buf, &d->superblock.geom, segment, d->superblock.checksum, &record, &found);
    if (status == SL_OK)
        return sl_err_set(err, SL_DAMAGED, "%s: record of segment %" PRIu64 ": it changed while it was read", d->path,
                          segment);
    return name_error(d, status, &found, err);
}

/* Segments that there is anything of, before memory is taken for them: a file may be sparse, and longer than any
 * memory. Of the *n that its length has room for. buf [commit_bytes]. */
static sl_status bound_segments(sl_durable *d, const sl_commit *commit, uint64_t size, uint8_t *buf, uint64_t *n,
                                sl_err *err)
{
    uint64_t n_needed = commit ? commit->n_tokens / SL_SEGMENT_TOKENS : *n;
    const bool has_open = commit && commit->n_tokens % SL_SEGMENT_TOKENS > 0;
    if (commit && n_needed + has_open > *n)
        return sl_err_set(err, SL_DAMAGED, "%s: %" PRIu64 " tokens are committed, the file ends in segment %" PRIu64,
                          d->path, commit->n_tokens, *n);
    if (!commit && (*n == 0 || size != sl_layout_finished_bytes(&d->layout, *n)))
        return sl_err_set(err, SL_DAMAGED,
                          "%s: cut off: %" PRIu64 " bytes are no whole segments with an end record, and there is no "
                          "commit record",
                          d->path, size);
    sl_pick end_pick = {.copy = 0};
    if (!commit)
        sl_picks_end(d, *n, &end_pick, buf);
    if (!commit && !end_pick.is_whole[0] && !end_pick.is_whole[1]) {
        sl_end end;
        end_pick.copy = SL_PICK_NONE;
        return load_end(d, &end_pick, sl_layout_segment_off(&d->layout, *n), &end, err);
    }
    uint64_t n_there = sl_picks_count(d, commit, *n, buf);
    if (n_there < n_needed)
        return miss_record(d, buf, n_there, err);
    *n = n_there;
    return SL_OK;
}

/* The commit records come before the memory for what they count: a buffer of their own. */
static sl_status load_state(sl_durable *d, uint64_t size, sl_err *err)
{
    size_t room = (size_t)d->layout.commit_bytes;
    uint64_t n_segments = (size - d->layout.data_off) / d->layout.stride;
    uint8_t *buf = NULL;
    sl_status status = sl_mem_map(d->options.budget, room, "commit record", &buf, err);
    sl_commit commit = {0};
    unsigned copy = SL_DURABLE_COMMITS;
    if (status == SL_OK)
        status = sl_durable_find_commit(d, buf, &commit, &copy, err);
    const bool has_commit = copy < SL_DURABLE_COMMITS;
    uint8_t *scratch = NULL; /* the commit's ids stay in buf */
    if (status == SL_OK)
        status = sl_mem_map(d->options.budget, room, "commit record", &scratch, err);
    if (status == SL_OK)
        status = bound_segments(d, has_commit ? &commit : NULL, size, scratch, &n_segments, err);
    sl_mem_unmap(d->options.budget, scratch, room);
    if (status == SL_OK)
        status = sl_durable_take_memory(d, n_segments * SL_SEGMENT_TOKENS, err);
    if (status == SL_OK && has_commit)
        status = sl_durable_read_commit(d, d->commit, copy, &commit, err);
    sl_mem_unmap(d->options.budget, buf, room);
    if (status != SL_OK || has_commit)
        return status == SL_OK ? load_records(d, &commit, n_segments, err) : status;
    status = load_records(d, NULL, n_segments, err);
    if (status == SL_OK && !d->options.for_writing)
        status = sl_durable_hold_tails(d, sl_layout_segment_off(&d->layout, n_segments), err);
    /* A first commit that was cut off, or the last act of finishing. */
    if (status == SL_OK && d->has_damaged_commit && d->options.for_writing)
        status = sl_durable_clear_areas(d, err);
    return status;
}

/* Some file systems refuse direct I/O only at the first transfer. */
static sl_status try_direct(sl_durable *d, sl_err *err)
{
    if (!d->is_direct)
        return SL_OK;
    uint8_t *scratch = NULL;
    sl_status status = sl_mem_map(d->options.budget, SL_SECTOR_BYTES, "direct I/O probe", &scratch, err);
    if (status != SL_OK)
        return status;
    int64_t moved = d->vfs->pread(d->file, scratch, SL_SECTOR_BYTES, 0);
    if (moved == -EINVAL || moved == -EOPNOTSUPP) {
        d->is_direct = false;
        (void)d->vfs->set_direct(d->file, false);
        sl_log_write(&d->options.log, SL_LOG_LEVEL_WARNING,
                     "%s: direct I/O does not work there; going through the page cache and dropping pages behind",
                     d->path);
    }
    sl_mem_unmap(d->options.budget, scratch, SL_SECTOR_BYTES);
    return SL_OK;
}

/* 0 or -errno. A writer that was killed can hold the lock a moment longer than it lives: its queue of reads, which
 * knows the file, is taken apart by the system afterwards. */
static int lock(const sl_durable *d)
{
    enum { TRIES = 100 };
    const struct timespec pause = {0, 20000000};
    int failed = d->vfs->lock(d->file);
    for (int i = 1; i < TRIES && failed == -EAGAIN; i++) {
        nanosleep(&pause, NULL);
        failed = d->vfs->lock(d->file);
    }
    return failed;
}

sl_status sl_durable_open_file(sl_durable *d, uint64_t *size, sl_err *err)
{
    const sl_durable_options *o = &d->options;
    sl_status status =
        d->vfs->open_named(d->vfs, d->path, o->for_writing, !o->force_buffered, &d->file, &d->is_direct, err);
    if (status != SL_OK)
        return status;
    int failed = o->for_writing ? lock(d) : 0;
    if (failed == -EAGAIN)
        return sl_err_set(err, SL_REFUSED, "%s: another process is writing it", d->path);
    if (failed != 0)
        return sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot be locked", d->path);
    int64_t found = d->vfs->size(d->file);
    if (found < 0)
        return sl_err_set_errno(err, SL_FAILED, (int)-found, "%s: its size cannot be had", d->path);
    if (found == 0)
        return sl_err_set(err, SL_DAMAGED, "%s: empty, this is not a context", d->path);
    /* Any size: a write that a full disk cut short may end within a sector. A finished file is judged later. */
    *size = (uint64_t)found;
    return try_direct(d, err);
}

sl_status sl_durable_read_all(sl_durable *d, sl_err *err)
{
    uint64_t size = 0;
    sl_status status = sl_durable_open_file(d, &size, err);
    /* What a killed writer left may not have reached the disk: nothing is built on it before it has. */
    if (status == SL_OK && d->options.for_writing)
        status = sl_durable_sync(d, err);
    if (status == SL_OK)
        status = sl_durable_load_superblock(d, size, err);
    if (status == SL_OK)
        status = load_state(d, size, err);
    if (status != SL_OK && d->file && d->vfs->size(d->file) != (int64_t)size)
        d->was_overtaken = true;
    return status;
}
