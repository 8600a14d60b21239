/* What stands twice in a context file, and bytes that should be zero. */
#include <string.h>

#include "store/durable_repair_impl.h"

static sl_status read_at(sl_repair *r, void *buf, size_t bytes, uint64_t off, sl_err *err)
{
    return sl_vfs_read(r->d->vfs, r->d->file, r->d->path, buf, bytes, off, err);
}

/* Copies the bytes at `from` to where the damaged ones are; the buffer has room for all of them. */
static sl_status mend_copy(sl_repair *r, uint8_t *buf, const sl_damage *damage, uint64_t from, sl_err *err)
{
    sl_status status = SL_OK;
    if (!r->o.dry_run)
        status = read_at(r, buf, (size_t)damage->bytes, from, err);
    if (status == SL_OK && !r->o.dry_run)
        status = sl_durable_write(r->d, buf, (size_t)damage->bytes, damage->off, err);
    if (status == SL_OK)
        sl_repair_tell(r, damage, false);
    return status;
}

/* ---- superblock ---- */

static sl_status mend_superblocks(sl_repair *r, sl_err *err)
{
    size_t bytes = (size_t)r->d->layout.superblock_bytes;
    uint8_t *buf = NULL;
    sl_status status = sl_mem_map(r->o.budget, bytes, "superblock", &buf, err);
    for (int copy = 0; status == SL_OK && copy < 2; copy++) {
        const sl_damage damage = {"superblock", copy, -1, -1, (uint64_t)copy * bytes, bytes, .kind = SL_DAMAGE_COPY};
        sl_superblock found = {0};
        sl_err why;
        sl_status read = read_at(r, buf, bytes, damage.off, &why);
        if (read == SL_OK)
            read = sl_superblock_decode(buf, bytes, r->o.budget, &found, &why);
        /* One of them is whole, or the file would not have been opened; a whole one is written over only if the
         * records are the other's. */
        if (read == SL_OK && found.checksum != r->d->superblock.checksum && !r->d->is_marked)
            sl_repair_tell(r, &damage, true);
        else if (read != SL_OK || found.checksum != r->d->superblock.checksum)
            status = mend_copy(r, buf, &damage, (uint64_t)(1 - copy) * bytes, err);
        sl_superblock_free(&found, r->o.budget);
    }
    sl_mem_unmap(r->o.budget, buf, bytes);
    return status;
}

/* ---- commit records ---- */

/* Of each area the copy that fits stands in both places afterwards. An area of which neither does holds what a crash
 * left, or nothing that is still needed. */
static sl_status mend_area(sl_repair *r, uint8_t *buf, unsigned area, sl_err *err)
{
    uint64_t off = sl_layout_area_off(&r->d->layout, area), room = r->d->layout.commit_bytes;
    unsigned fitting = r->d->fitting_commits >> 2 * area & 3;
    if (fitting != 1 && fitting != 2)
        return SL_OK;
    unsigned pick = fitting - 1;
    sl_commit commit;
    sl_status status = sl_durable_read_commit(r->d, buf, 2 * area + pick, &commit, err);
    if (status != SL_OK)
        return status;
    uint64_t bytes = sl_up_sector(sl_commit_record_bytes(&r->d->superblock.geom, commit.n_tokens));
    const sl_damage damage = {"commit record", (int)(1 - pick), -1, -1, off + (1 - pick) * room, bytes,
                              .kind = SL_DAMAGE_COPY};
    return mend_copy(r, buf, &damage, off + pick * room, err);
}

static sl_status mend_commits(sl_repair *r, sl_err *err)
{
    sl_durable *d = r->d;
    unsigned copy = SL_DURABLE_COMMITS;
    uint8_t *buf = NULL;
    sl_status status = sl_durable_find_commit(d, d->commit, &r->commit, &copy, err);
    r->has_commit = copy < SL_DURABLE_COMMITS;
    if (status == SL_OK)
        status = sl_mem_map(r->o.budget, d->commit_room, "commit record", &buf, err);
    for (unsigned area = 0; status == SL_OK && area < 2; area++)
        status = mend_area(r, buf, area, err);
    sl_mem_unmap(r->o.budget, buf, buf ? d->commit_room : 0);
    return status;
}

/* ---- segment records ---- */

/* What is known while the records are read one after the other. */
typedef struct chain {
    uint64_t segment;
    uint64_t needed; /* segments whose records must be there */
    uint64_t previous; /* checksum of the record before */
    bool is_known;   /* it, and all before it */
    uint8_t *buf;    /* [record_room] */
    sl_pick *picks;  /* [n_segments + 1] */
} chain;

static sl_damage record_damage(const sl_repair *r, const chain *c, const char *what, int copy)
{
    uint64_t off = sl_layout_record_off(&r->d->layout, c->segment), bytes = r->d->layout.record_bytes;
    return (sl_damage){what, copy, -1, (int64_t)c->segment, off + (copy > 0 ? bytes : 0),
                       copy < 0 ? 2 * bytes : bytes, .kind = copy < 0 ? SL_DAMAGE_CHAIN : SL_DAMAGE_COPY};
}

static void lose(sl_repair *r, chain *c, const char *what)
{
    const sl_damage damage = record_damage(r, c, what, -1);
    sl_repair_tell(r, &damage, true);
    c->is_known = false;
}

static void take_record(sl_repair *r, const chain *c, const sl_record *record)
{
    sl_durable *d = r->d;
    size_t n_sums = (size_t)d->superblock.geom.n_layers * SL_SEGMENT_PARTS;
    memcpy(sl_durable_sums(d, c->segment), record->parts, n_sums * sizeof *record->parts);
    memcpy(d->ids + c->segment * SL_SEGMENT_TOKENS, record->ids, record->n_tokens * sizeof *record->ids);
    r->known_tokens = c->segment * SL_SEGMENT_TOKENS + record->n_tokens;
}

/* Both copies become the one that counts. A whole one is written over only if the other fits all that follows; one
 * that the records beside it contradict is written over nothing. */
static sl_status mend_pick(sl_repair *r, const sl_pick *pick, sl_damage damage, uint64_t from, sl_err *err)
{
    if (!sl_pick_is_uneven(pick))
        return SL_OK;
    if (pick->is_sure || (!pick->is_whole[1 - pick->copy] && !pick->is_denied))
        return mend_copy(r, r->d->record, &damage, from, err);
    damage.kind = SL_DAMAGE_CHAIN;
    sl_repair_tell(r, &damage, true);
    return SL_OK;
}

/* The copy that counts, decoded in c->buf. */
static sl_status read_pick(sl_repair *r, const chain *c, const sl_pick *pick, sl_record *out, sl_err *err)
{
    sl_durable *d = r->d;
    uint64_t off = sl_layout_record_off(&d->layout, c->segment) + (uint64_t)pick->copy * d->record_room;
    sl_status status = read_at(r, c->buf, d->record_room, off, err);
    return status == SL_OK
               ? sl_record_decode(c->buf, &d->superblock.geom, c->segment, d->superblock.checksum, out, err)
               : status;
}

/* *go_on = false: neither this record nor a later one counts. */
static sl_status take_segment(sl_repair *r, chain *c, bool *go_on, sl_err *err)
{
    const sl_pick *pick = &c->picks[c->segment];
    *go_on = c->segment < c->needed || (c->is_known && pick->copy != SL_PICK_NONE);
    if (!*go_on)
        return SL_OK;
    if (pick->copy < 0) {
        lose(r, c, pick->copy == SL_PICK_NONE ? "segment record, both copies: token ids and checksums"
                                              : "segment record, its copies differ and neither fits better");
        return SL_OK;
    }
    sl_record record;
    sl_status status = read_pick(r, c, pick, &record, err);
    if (status != SL_OK)
        return status;
    bool is_last = !r->has_commit && c->segment + 1 == r->n_segments;
    if (c->is_known && record.previous != c->previous)
        lose(r, c, "segment record, does not follow the one before");
    else if (!is_last && record.n_tokens != SL_SEGMENT_TOKENS)
        lose(r, c, "segment record, too few tokens");
    if (c->is_known)
        take_record(r, c, &record);
    c->previous = record.checksum;
    const sl_damage damage = record_damage(r, c, "segment record", 1 - pick->copy);
    uint64_t off = sl_layout_record_off(&r->d->layout, c->segment);
    return mend_pick(r, pick, damage, off + (uint64_t)pick->copy * r->d->record_room, err);
}

/* The tokens of the commit record, where they are not a segment record's by now. */
static void take_open(sl_repair *r, chain *c)
{
    sl_durable *d = r->d;
    uint64_t open = r->commit.n_tokens / SL_SEGMENT_TOKENS;
    size_t n_open = (size_t)(r->commit.n_tokens % SL_SEGMENT_TOKENS);
    if (c->segment != open || !c->is_known)
        return;
    if (c->previous != r->commit.previous) {
        lose(r, c, "commit record, does not follow the last segment record");
        return;
    }
    if (n_open == 0 || open >= r->n_segments)
        return;
    size_t n_sums = (size_t)d->superblock.geom.n_layers * SL_SEGMENT_PARTS;
    memcpy(sl_durable_sums(d, open), r->commit.parts, n_sums * sizeof *r->commit.parts);
    memcpy(d->ids + open * SL_SEGMENT_TOKENS, r->commit.ids, n_open * sizeof *r->commit.ids);
    r->known_tokens = open * SL_SEGMENT_TOKENS + n_open;
    r->open = open;
}

static sl_damage end_damage(const sl_repair *r, const char *what, int copy)
{
    uint64_t off = sl_layout_segment_off(&r->d->layout, r->n_segments), bytes = SL_FORMAT_END_BYTES;
    return (sl_damage){what, copy, -1, -1, off + (copy > 0 ? bytes : 0), copy < 0 ? 2 * bytes : bytes,
                       .kind = copy < 0 ? SL_DAMAGE_CHAIN : SL_DAMAGE_COPY};
}

/* Neither copy is there, or not all of their room: where the last segment is not full nothing can have followed it, and
 * the records say what the end record said. Else the file was cut off who knows where, as the verification says. */
static sl_status make_end(sl_repair *r, const chain *c, sl_err *err)
{
    const sl_end end = {.n_tokens = r->known_tokens, .last = c->previous, .superblock = r->d->superblock.checksum};
    sl_damage damage = end_damage(r, "end record, both copies", -1);
    sl_status status = SL_OK;
    if (!c->is_known || r->known_tokens % SL_SEGMENT_TOKENS == 0)
        return SL_OK;
    sl_end_encode(c->buf, &end);
    for (uint64_t copy = 0; status == SL_OK && copy < 2 && !r->o.dry_run; copy++)
        status = sl_durable_write(r->d, c->buf, SL_FORMAT_END_BYTES, damage.off + copy * SL_FORMAT_END_BYTES, err);
    damage.kind = SL_DAMAGE_COPY;
    if (status != SL_OK)
        return status;
    sl_repair_tell(r, &damage, false);
    r->is_end_made = true;
    if (!r->o.dry_run)
        r->result.file_bytes = damage.off + damage.bytes;
    return SL_OK;
}

/* Of a finished file. */
static sl_status mend_end(sl_repair *r, const chain *c, sl_err *err)
{
    const sl_pick *pick = &c->picks[r->n_segments];
    if (pick->copy == SL_PICK_NONE)
        return make_end(r, c, err);
    if (pick->copy == SL_PICK_BOTH) {
        const sl_damage damage = end_damage(r, "end record, its copies differ and neither fits better", -1);
        sl_repair_tell(r, &damage, true);
        return SL_OK;
    }
    if (c->is_known && (pick->previous[pick->copy] != c->previous || pick->end[pick->copy] != r->known_tokens)) {
        const sl_damage damage = end_damage(r, "end record, does not fit the last segment record", -1);
        sl_repair_tell(r, &damage, true);
    }
    return mend_pick(r, pick, end_damage(r, "end record", 1 - pick->copy), end_damage(r, NULL, pick->copy).off, err);
}

static sl_status mend_chain(sl_repair *r, chain *c, sl_err *err)
{
    uint64_t whole = sl_layout_finished_bytes(&r->d->layout, r->n_segments);
    bool may_end = !r->has_commit && r->n_segments > 0 && r->result.file_bytes <= whole;
    bool has_end = may_end && r->result.file_bytes == whole;
    bool go_on = true;
    sl_picks_make(r->d, r->has_commit ? &r->commit : NULL, r->n_segments, has_end, c->picks, c->buf);
    sl_status status = SL_OK;
    for (; status == SL_OK && c->segment < r->n_segments; c->segment++) {
        status = take_segment(r, c, &go_on, err);
        if (!go_on)
            break;
    }
    if (status == SL_OK && r->has_commit)
        take_open(r, c);
    return status == SL_OK && may_end ? mend_end(r, c, err) : status;
}

static sl_status mend_records(sl_repair *r, sl_err *err)
{
    chain c = {.is_known = true, .needed = r->has_commit ? r->commit.n_tokens / SL_SEGMENT_TOKENS : r->n_segments};
    size_t picks_bytes = (size_t)(r->n_segments + 1) * sizeof *c.picks;
    sl_status status = sl_mem_map(r->o.budget, r->d->record_room, "segment record", &c.buf, err);
    if (status == SL_OK)
        status = sl_mem_map(r->o.budget, picks_bytes, "copies of the records", &c.picks, err);
    if (status == SL_OK)
        status = mend_chain(r, &c, err);
    sl_mem_unmap(r->o.budget, c.picks, c.picks ? picks_bytes : 0);
    sl_mem_unmap(r->o.budget, c.buf, c.buf ? r->d->record_room : 0);
    return status;
}

sl_status sl_repair_copies(sl_repair *r, sl_err *err)
{
    sl_status status = mend_superblocks(r, err);
    if (status == SL_OK)
        status = mend_commits(r, err);
    return status == SL_OK ? mend_records(r, err) : status;
}

sl_status sl_repair_trace(sl_repair *r, sl_err *err)
{
    const sl_layout *layout = &r->d->layout;
    const sl_damage damage = {"commit area, left by a writer that was cut off", -1, -1, -1,
                              sl_layout_area_off(layout, 0), 4 * layout->commit_bytes, .kind = SL_DAMAGE_UNUSED};
    sl_status status = r->o.dry_run ? SL_OK : sl_durable_clear_areas(r->d, err);
    if (status == SL_OK)
        sl_repair_tell(r, &damage, false);
    return status;
}

/* ---- unused bytes ---- */

static bool is_zero(const uint8_t *buf, size_t n)
{
    return n == 0 || (buf[0] == 0 && memcmp(buf, buf + 1, n - 1) == 0);
}

/* One sector at `at`, of which [off, end) should be zero; read: whether buf holds it. */
static sl_status zero_sector(sl_repair *r, uint8_t *buf, bool read, uint64_t at, const uint64_t range[2], sl_err *err)
{
    size_t first = range[0] > at ? (size_t)(range[0] - at) : 0;
    size_t end = range[1] < at + SL_SECTOR_BYTES ? (size_t)(range[1] - at) : SL_SECTOR_BYTES;
    /* A sector that cannot be read and is a part's, too, is written with the part. */
    if (read ? is_zero(buf + first, end - first) : end - first < SL_SECTOR_BYTES)
        return SL_OK;
    memset(buf + first, 0, end - first);
    return sl_durable_write(r->d, buf, SL_SECTOR_BYTES, at, err);
}

sl_status sl_repair_zeros(sl_repair *r, uint64_t off, uint64_t end, sl_err *err)
{
    const uint64_t range[2] = {off, end};
    sl_status status = SL_OK;
    uint64_t at = off / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    while (status == SL_OK && at < end) {
        uint64_t left = sl_up_sector(end - at);
        size_t bytes = left < SL_REPAIR_LOOK_BYTES ? (size_t)left : SL_REPAIR_LOOK_BYTES;
        sl_err why;
        bool all = read_at(r, r->buf, bytes, at, &why) == SL_OK;
        for (size_t i = 0; status == SL_OK && i < bytes; i += SL_SECTOR_BYTES) {
            bool read = all || read_at(r, r->buf + i, SL_SECTOR_BYTES, at + i, &why) == SL_OK;
            status = zero_sector(r, r->buf + i, read, at + i, range, err);
        }
        at += bytes;
    }
    return status;
}
