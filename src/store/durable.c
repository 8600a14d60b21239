#include "store/durable.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/durable_impl.h"

static uint64_t segments_for(uint64_t tokens)
{
    return tokens / SL_SEGMENT_TOKENS + 1;
}

static size_t sums_of_segment(const sl_geom *geom)
{
    return (size_t)geom->n_layers * SL_SEGMENT_PARTS;
}

uint64_t sl_durable_bytes(const sl_geom *geom, uint64_t max_tokens)
{
    enum { MAPS = 4, SMALL = 8192 };
    sl_layout layout = sl_layout_of(geom);
    return sizeof(sl_durable) + max_tokens * sizeof(int32_t) +
           segments_for(max_tokens) * sums_of_segment(geom) * sizeof(uint64_t) + layout.record_bytes +
           layout.commit_bytes + (uint64_t)MAPS * SL_MEM_ALIGN + SMALL;
}

sl_status sl_durable_take_memory(sl_durable *d, uint64_t n_tokens, sl_err *err)
{
    sl_budget *budget = d->options.budget;
    d->layout = sl_layout_of(&d->superblock.geom);
    uint64_t more = d->options.more_tokens;
    n_tokens = more < UINT64_MAX - n_tokens ? n_tokens + more : UINT64_MAX;
    d->cap_tokens = d->options.max_tokens > n_tokens ? d->options.max_tokens : n_tokens;
    d->cap_segments = segments_for(d->cap_tokens);
    if (d->cap_segments > sl_layout_max_segments(&d->layout))
        return sl_err_set(err, SL_USAGE, "%" PRIu64 " tokens are more than a file can hold", d->cap_tokens);
    d->ids_bytes = (size_t)d->cap_tokens * sizeof *d->ids;
    d->sums_bytes = (size_t)d->cap_segments * sums_of_segment(&d->superblock.geom) * sizeof *d->sums;
    d->record_room = (size_t)d->layout.record_bytes;
    d->commit_room = (size_t)d->layout.commit_bytes;
    sl_status status = sl_mem_map(budget, d->ids_bytes, "token ids of the context", &d->ids, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, d->sums_bytes, "checksums of the context", &d->sums, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, d->record_room, "segment record", &d->record, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, d->commit_room, "commit record", &d->commit, err);
    return status;
}

sl_status sl_durable_new(const sl_durable_options *options, sl_durable **out, sl_err *err)
{
    *out = NULL;
    sl_durable *d = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *d, "context file", &d, err);
    if (status != SL_OK)
        return status;
    d->options = *options;
    d->vfs = options->vfs ? options->vfs : sl_vfs_system();
    size_t path_bytes = strlen(options->path) + 1;
    status = sl_mem_new(options->budget, path_bytes, 1, "context file", &d->path, err);
    if (status != SL_OK) {
        sl_mem_free(options->budget, d);
        return status;
    }
    memcpy(d->path, options->path, path_bytes);
    d->options.path = d->path;
    *out = d;
    return SL_OK;
}

void sl_durable_close(sl_durable *d)
{
    if (!d)
        return;
    sl_budget *budget = d->options.budget;
    if (d->file)
        d->vfs->close(d->file);
    sl_mem_unmap(budget, d->commit, d->commit_room);
    sl_mem_unmap(budget, d->record, d->record_room);
    sl_mem_unmap(budget, d->sums, d->sums_bytes);
    sl_mem_unmap(budget, d->ids, d->ids_bytes);
    sl_superblock_free(&d->superblock, budget);
    sl_mem_free(budget, d->path);
    sl_mem_free(budget, d);
}

/* A reader whom a writer has overtaken looks again: a few commits cannot come between two reads for ever. What looks
 * damaged may be a finished file that has begun to grow since its areas were read: it is looked at once more, too. */
sl_status sl_durable_open(const sl_durable_options *options, sl_durable **out, sl_err *err)
{
    enum { LOOKS = 20 };
    *out = NULL;
    for (int look = 1;; look++) {
        sl_durable *d = NULL;
        sl_status status = sl_durable_new(options, &d, err);
        if (status == SL_OK)
            status = sl_durable_read_all(d, err);
        if (status == SL_OK) {
            *out = d;
            return SL_OK;
        }
        bool may_be = d && !options->for_writing && (d->was_overtaken || (status == SL_DAMAGED && look == 1));
        bool again = may_be && look < LOOKS;
        bool is_busy = may_be && d->was_overtaken && !again;
        sl_durable_close(d);
        if (is_busy)
            return sl_err_set(err, SL_FAILED, "%s: changed while it was read, %d times: its writer commits too often",
                              options->path, look);
        if (!again)
            return status;
    }
}

/* ---- writing ---- */

sl_status sl_durable_write(sl_durable *d, const void *buf, size_t bytes, uint64_t off, sl_err *err)
{
    sl_status status = sl_vfs_write(d->vfs, d->file, d->path, buf, bytes, off, err);
    if (status == SL_OK)
        d->bytes_written += bytes;
    return status;
}

sl_status sl_durable_sync(sl_durable *d, sl_err *err)
{
    if (d->is_lost)
        return sl_err_set(err, SL_FAILED, "%s: an earlier write-out failed; open it again", d->path);
    int failed = d->vfs->sync(d->file);
    d->is_lost = failed != 0;
    return failed == 0 ? SL_OK : sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot be written out", d->path);
}

static sl_status set_size(sl_durable *d, uint64_t bytes, sl_err *err)
{
    int failed = d->vfs->set_size(d->file, bytes);
    return failed == 0
               ? SL_OK
               : sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot be made %" PRIu64 " bytes long", d->path, bytes);
}

/* A commit makes nothing shorter: as long as it is not on the disk, an end record behind the segments may be what the
 * file is believed by. */
static sl_status grow(sl_durable *d, uint64_t bytes, sl_err *err)
{
    int64_t size = d->vfs->size(d->file);
    if (size < 0)
        return sl_err_set_errno(err, SL_FAILED, (int)-size, "%s: its size cannot be had", d->path);
    return (uint64_t)size >= bytes ? SL_OK : set_size(d, bytes, err);
}

/* Of the segments of so many tokens. */
static uint64_t size_for(const sl_durable *d, uint64_t n_tokens)
{
    return sl_layout_segment_off(&d->layout, (n_tokens + SL_SEGMENT_TOKENS - 1) / SL_SEGMENT_TOKENS);
}

/* Zeros from here on: the file system takes the space back, or, where it cannot, zeros are written. */
static sl_status clear(sl_durable *d, uint64_t off, uint64_t bytes, sl_err *err)
{
    if (bytes == 0)
        return SL_OK;
    int failed = d->vfs->clear(d->file, off, bytes);
    if (failed == 0)
        return SL_OK;
    if (failed != -EOPNOTSUPP)
        return sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot clear %" PRIu64 " bytes at offset %" PRIu64,
                                d->path, bytes, off);
    memset(d->commit, 0, d->commit_room);
    d->tails = NULL;
    sl_status status = SL_OK;
    while (status == SL_OK && bytes > 0) {
        size_t now = bytes < d->commit_room ? (size_t)bytes : d->commit_room;
        status = sl_durable_write(d, d->commit, now, off, err);
        off += now;
        bytes -= now;
    }
    return status;
}

/* The beginnings of its copies last: as long as anything else is in there, they say that something was. */
static sl_status clear_area(sl_durable *d, unsigned area, sl_err *err)
{
    uint64_t bytes = d->layout.commit_bytes, off = sl_layout_area_off(&d->layout, area);
    sl_status status = SL_OK;
    for (uint64_t copy = 0; status == SL_OK && copy < 2; copy++)
        status = clear(d, off + copy * bytes + SL_SECTOR_BYTES, bytes - SL_SECTOR_BYTES, err);
    if (status == SL_OK)
        status = sl_durable_sync(d, err);
    for (uint64_t copy = 0; status == SL_OK && copy < 2; copy++)
        status = clear(d, off + copy * bytes, SL_SECTOR_BYTES, err);
    return status == SL_OK ? sl_durable_sync(d, err) : status;
}

sl_status sl_durable_clear_areas(sl_durable *d, sl_err *err)
{
    unsigned newest = (unsigned)(d->generation & 1);
    /* The newest record goes last: an older one alone would be believed. */
    sl_status status = clear_area(d, 1 - newest, err);
    return status == SL_OK ? clear_area(d, newest, err) : status;
}

static sl_status write_superblock(sl_durable *d, const sl_identity *identity, const sl_geom *geom, sl_err *err)
{
    size_t bytes = (size_t)d->layout.superblock_bytes;
    uint8_t *buf = NULL;
    sl_status status = sl_mem_map(d->options.budget, bytes, "superblock", &buf, err);
    if (status != SL_OK)
        return status;
    d->superblock.checksum = sl_superblock_encode(buf, identity, geom);
    for (uint64_t copy = 0; status == SL_OK && copy < 2; copy++)
        status = sl_durable_write(d, buf, bytes, copy * bytes, err);
    sl_mem_unmap(d->options.budget, buf, bytes);
    return status;
}

static sl_status copy_geometry(sl_durable *d, const sl_identity *identity, const sl_geom *geom, sl_err *err)
{
    sl_superblock *superblock = &d->superblock;
    sl_status status = sl_geom_check(geom, err);
    if (status == SL_OK)
        status = sl_mem_new(d->options.budget, geom->n_layers, sizeof *superblock->layers, "layer table",
                            &superblock->layers, err);
    if (status != SL_OK)
        return status;
    memcpy(superblock->layers, geom->layers, geom->n_layers * sizeof *superblock->layers);
    superblock->geom = *geom;
    superblock->geom.layers = superblock->layers;
    superblock->identity = *identity;
    return SL_OK;
}

/* Whether direct I/O really works there: by a transfer into the first commit area, which the first commit overwrites.
 */
static sl_status probe(sl_durable *d, sl_err *err)
{
    uint8_t *scratch = NULL;
    sl_status status = sl_mem_map(d->options.budget, (size_t)2 * SL_SECTOR_BYTES, "direct I/O probe", &scratch, err);
    if (status != SL_OK)
        return status;
    status =
        sl_vfs_probe_direct(d->vfs, d->file, d->path, scratch, sl_layout_area_off(&d->layout, 1), &d->is_direct, err);
    d->bytes_written += SL_SECTOR_BYTES;
    sl_mem_unmap(d->options.budget, scratch, (size_t)2 * SL_SECTOR_BYTES);
    return status;
}

static void no_parts(void *arg, uint64_t segment, bool finished, uint64_t *out)
{
    const sl_durable *d = arg;
    (void)segment, (void)finished;
    memset(out, 0, sums_of_segment(&d->superblock.geom) * sizeof *out);
}

static void no_tails(void *arg, uint8_t *out)
{
    (void)arg, (void)out;
}

static sl_status create_file(sl_durable *d, const sl_identity *identity, sl_err *err)
{
    const sl_durable_options *o = &d->options;
    sl_status status =
        d->vfs->create_named(d->vfs, d->path, !o->force_buffered, o->allow_ram, &d->file, &d->is_direct, err);
    if (status == SL_OK)
        status = set_size(d, d->layout.data_off, err);
    if (status == SL_OK && d->is_direct)
        status = probe(d, err);
    if (status == SL_OK && d->vfs->lock(d->file) != 0)
        status = sl_err_set(err, SL_REFUSED, "%s: cannot be locked", d->path);
    if (status == SL_OK)
        status = write_superblock(d, identity, &d->superblock.geom, err);
    const sl_durable_source nothing = {no_parts, no_tails, d};
    if (status == SL_OK)
        status = sl_durable_commit(d, d->ids, 0, o->max_tokens, true, &nothing, err);
    return status == SL_OK && !o->name_last ? sl_durable_publish(d, false, err) : status;
}

sl_status sl_durable_publish(sl_durable *d, bool replace, sl_err *err)
{
    int failed = d->vfs->publish(d->file, d->path, replace);
    if (failed == -EEXIST)
        return sl_err_set(err, SL_REFUSED, "%s: exists already", d->path);
    return failed == 0 ? SL_OK : sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot be named", d->path);
}

sl_status sl_durable_create(const sl_durable_options *options, const sl_identity *identity, const sl_geom *geom,
                            sl_durable **out, sl_err *err)
{
    *out = NULL;
    assert(options->for_writing);
    sl_durable *d = NULL;
    sl_status status = sl_durable_new(options, &d, err);
    if (status == SL_OK)
        status = copy_geometry(d, identity, geom, err);
    if (status == SL_OK)
        status = sl_durable_take_memory(d, 0, err);
    if (status == SL_OK)
        status = create_file(d, identity, err);
    if (status != SL_OK) {
        sl_durable_close(d);
        return status;
    }
    d->n_commits = 0;
    *out = d;
    return SL_OK;
}

/* ---- commits ---- */

static sl_status write_record(sl_durable *d, uint64_t segment, uint32_t n_tokens, sl_err *err)
{
    sl_record record = {
        .segment = segment,
        .n_tokens = n_tokens,
        .superblock = d->superblock.checksum,
        .previous = d->previous,
        .parts = sl_durable_sums(d, segment),
        .ids = d->ids + segment * SL_SEGMENT_TOKENS,
    };
    sl_record_encode(d->record, &d->superblock.geom, &record);
    uint64_t off = sl_layout_record_off(&d->layout, segment);
    sl_status status = SL_OK;
    for (uint64_t copy = 0; status == SL_OK && copy < 2; copy++)
        status = sl_durable_write(d, d->record, d->record_room, off + copy * d->record_room, err);
    if (status == SL_OK)
        d->previous = record.checksum;
    return status;
}

static sl_status write_commit(sl_durable *d, uint64_t n_tokens, bool is_alone, const sl_durable_source *source,
                              sl_err *err)
{
    const sl_geom *geom = &d->superblock.geom;
    uint64_t segment = n_tokens / SL_SEGMENT_TOKENS;
    size_t bytes = sl_commit_record_bytes(geom, n_tokens), tails_bytes = sl_commit_tails_bytes(geom, n_tokens);
    uint8_t *tails = d->commit + sl_commit_tails_off(geom, n_tokens);
    memset(d->commit, 0, (size_t)sl_up_sector(bytes));
    d->tails = NULL;
    if (tails_bytes > 0)
        source->tails(source->arg, tails);
    const sl_commit commit = {
        .generation = d->generation + 1,
        .n_tokens = n_tokens,
        .intended_tokens = d->intended_tokens,
        .superblock = d->superblock.checksum,
        .previous = d->previous,
        .is_alone = is_alone,
        .ids = d->ids + segment * SL_SEGMENT_TOKENS,
        .parts = sl_durable_sums(d, segment),
        .tails = tails,
        .tails_bytes = tails_bytes,
    };
    sl_commit_encode(d->commit, geom, &commit);
    sl_status status = SL_OK;
    uint64_t off = sl_layout_area_off(&d->layout, (unsigned)(commit.generation & 1));
    /* The first in a finished file: its beginning first, so that whatever comes through of it is seen (clear_area). */
    if (status == SL_OK && commit.generation == 1 && n_tokens > 0)
        status = sl_durable_write(d, d->commit, SL_SECTOR_BYTES, off, err);
    if (status == SL_OK && commit.generation == 1 && n_tokens > 0)
        status = sl_durable_sync(d, err);
    for (uint64_t copy = 0; status == SL_OK && copy < 2; copy++)
        status = sl_durable_write(d, d->commit, (size_t)sl_up_sector(bytes), off + copy * d->layout.commit_bytes, err);
    if (status == SL_OK)
        status = sl_durable_sync(d, err);
    /* A commit that fails is written again in its place: the other area holds the last one that did not. */
    if (status == SL_OK) {
        d->generation = commit.generation;
        d->is_alone = is_alone;
    }
    return status;
}

sl_status sl_durable_commit(sl_durable *d, const int32_t *ids, uint64_t n_tokens, uint64_t intended_tokens,
                            bool in_area, const sl_durable_source *source, sl_err *err)
{
    assert(d->options.for_writing && n_tokens >= d->n_tokens && n_tokens <= d->cap_tokens);
    assert(!d->is_finished || n_tokens == d->n_tokens);
    uint64_t first = d->n_tokens / SL_SEGMENT_TOKENS, end = n_tokens / SL_SEGMENT_TOKENS;
    const uint64_t previous = d->previous;
    if (n_tokens > d->n_tokens)
        memcpy(d->ids + d->n_tokens, ids + d->n_tokens, (size_t)(n_tokens - d->n_tokens) * sizeof *ids);
    for (uint64_t segment = first; segment <= end; segment++)
        source->parts(source->arg, segment, false, sl_durable_sums(d, segment));
    d->intended_tokens = intended_tokens;
    sl_status status = grow(d, size_for(d, n_tokens), err);
    if (status == SL_OK && n_tokens > 0)
        status = sl_durable_sync(d, err);
    for (uint64_t segment = first; status == SL_OK && segment < end; segment++)
        status = write_record(d, segment, SL_SEGMENT_TOKENS, err);
    if (status == SL_OK && first < end)
        status = sl_durable_sync(d, err);
    bool wants_area = in_area || d->is_alone || n_tokens % SL_SEGMENT_TOKENS != 0;
    /* What an append begins with: its segments' records come before its commit, and must not count before it. */
    bool is_alone = in_area && n_tokens > 0;
    if (status == SL_OK && wants_area)
        status = write_commit(d, n_tokens, is_alone, source, err);
    if (status != SL_OK) {
        d->previous = previous; /* the records may have to be written again */
        if (d->is_finished)     /* and the file still is what it was */
            source->parts(source->arg, first, true, sl_durable_sums(d, first));
        return status;
    }
    d->n_tokens = n_tokens;
    d->is_finished = false;
    d->n_commits++;
    return SL_OK;
}

/* Between the last stored byte of each layer's block and the next one nothing may be left; nor behind the records. */
static sl_status clear_rest(sl_durable *d, sl_err *err)
{
    const sl_geom *geom = &d->superblock.geom;
    uint64_t n_last = d->n_tokens % SL_SEGMENT_TOKENS, segment = d->n_tokens / SL_SEGMENT_TOKENS;
    uint64_t groups = (n_last + SL_TILE - 1) / SL_TILE;
    sl_status status = SL_OK;
    uint64_t off = sl_layout_segment_off(&d->layout, segment);
    for (uint32_t i = 0; status == SL_OK && n_last > 0 && i < geom->n_layers; i++) {
        uint64_t used = sl_up_sector(groups * sl_geom_group_bytes(geom, i));
        status = clear(d, off + used, sl_geom_block_bytes(geom, i) - used, err);
        off += sl_geom_block_bytes(geom, i);
    }
    return status;
}

static sl_status write_end(sl_durable *d, uint64_t last, sl_err *err)
{
    const sl_end end = {.n_tokens = d->n_tokens, .last = last, .superblock = d->superblock.checksum};
    sl_status status = SL_OK;
    sl_end_encode(d->record, &end);
    for (uint64_t copy = 0; status == SL_OK && copy < 2; copy++)
        status = sl_durable_write(d, d->record, SL_FORMAT_END_BYTES,
                                  size_for(d, d->n_tokens) + copy * SL_FORMAT_END_BYTES, err);
    return status;
}

sl_status sl_durable_finish(sl_durable *d, const sl_durable_source *source, sl_err *err)
{
    assert(d->options.for_writing && d->n_tokens > 0);
    uint64_t segment = d->n_tokens / SL_SEGMENT_TOKENS;
    uint32_t n_last = (uint32_t)(d->n_tokens % SL_SEGMENT_TOKENS);
    uint64_t n_segments = segment + (n_last > 0), last = d->previous;
    sl_status status = clear_rest(d, err);
    /* Longer than this it may have been: from an earlier run that wanted more. */
    if (status == SL_OK)
        status = set_size(d, sl_layout_finished_bytes(&d->layout, n_segments), err);
    if (status == SL_OK)
        status = sl_durable_sync(d, err);
    if (status == SL_OK && n_last > 0) {
        uint64_t previous = d->previous;
        source->parts(source->arg, segment, true, sl_durable_sums(d, segment));
        status = write_record(d, segment, n_last, err);
        last = d->previous;
        d->previous = previous; /* of the last full segment */
    }
    if (status == SL_OK)
        status = write_end(d, last, err);
    if (status == SL_OK)
        status = sl_durable_sync(d, err);
    if (status == SL_OK)
        status = sl_durable_clear_areas(d, err);
    if (status != SL_OK)
        return status;
    d->generation = 0;
    d->tails = NULL;
    d->is_finished = true;
    d->intended_tokens = d->n_tokens;
    return SL_OK;
}
