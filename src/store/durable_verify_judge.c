/* A file's bytes one behind the other: what they belong to, and whether they are what they should be. */
#include <string.h>

#include "store/durable_verify_impl.h"

/* Regions of a block: each part, what follows in it; the block's end. */
enum { LAYER_STEPS = 2 * SL_SEGMENT_PARTS + 1 };

void sl_verify_tell(sl_verify *v, sl_damage damage)
{
    v->result->n_damaged++;
    v->o->found(v->o->arg, &damage);
}

/* ---- the segment's record ---- */

/* copy -1: both are whole, and wrong. */
static sl_damage record_damage(const sl_verify *v, const char *what, int copy)
{
    uint64_t off = sl_layout_record_off(&v->d->layout, v->segment) + (copy > 0 ? sl_verify_record_bytes(v) : 0);
    return (sl_damage){what, copy, -1, (int64_t)v->segment, off, sl_verify_record_bytes(v),
                       .kind = copy < 0 ? SL_DAMAGE_CHAIN : SL_DAMAGE_COPY};
}

static bool read_record(sl_verify *v, int copy, sl_record *out)
{
    uint8_t *buf = v->records + (size_t)copy * sl_verify_record_bytes(v);
    uint64_t off = sl_layout_record_off(&v->d->layout, v->segment) + (copy > 0 ? sl_verify_record_bytes(v) : 0);
    sl_err why;
    sl_status status = sl_vfs_read(v->d->vfs, v->d->file, v->d->path, buf, sl_verify_record_bytes(v), off, &why);
    if (status == SL_OK)
        status = sl_record_decode(buf, v->geom, v->segment, v->d->superblock.checksum, out, &why);
    return status == SL_OK; /* what cannot be read is damaged */
}

static void take_record(sl_verify *v, const sl_record *record)
{
    v->state = SL_VERIFY_SEGMENT_KNOWN;
    v->n_tokens = record->n_tokens;
    v->sums = record->parts;
    v->previous = record->checksum;
    v->knows_previous = true;
    v->result->n_tokens += record->n_tokens;
}

/* A segment whose record must be there. */
static void judge_record(sl_verify *v, const sl_record records[2], const bool good[2])
{
    for (int copy = 0; copy < 2; copy++)
        if (!good[copy])
            sl_verify_tell(v, record_damage(v, "segment record", copy));
    if (!good[0] && !good[1]) {
        v->state = SL_VERIFY_SEGMENT_UNKNOWN;
        v->knows_previous = false;
        return;
    }
    const sl_record *record = &records[good[0] ? 0 : 1];
    bool is_last = !v->has_commit && v->segment + 1 == v->n_segments;
    if (good[0] && good[1] && records[1].checksum != record->checksum)
        sl_verify_tell(v, record_damage(v, "segment record, unlike its first copy", 1));
    if (v->knows_previous && record->previous != v->previous)
        sl_verify_tell(v, record_damage(v, "segment record, does not follow the one before", -1));
    if (!is_last && record->n_tokens != SL_SEGMENT_TOKENS)
        sl_verify_tell(v, record_damage(v, "segment record, too few tokens", -1));
    take_record(v, record);
}

/* Behind the commit record's segments: one more whole segment, the open one, or nothing that was committed. */
static void judge_later(sl_verify *v, const sl_record records[2], const bool good[2])
{
    uint64_t open = v->commit.n_tokens / SL_SEGMENT_TOKENS;
    size_t n_open = (size_t)(v->commit.n_tokens % SL_SEGMENT_TOKENS);
    int pick = good[0] ? 0 : 1;
    const sl_record *record = &records[pick];
    bool follows = v->is_chain && good[pick] && record->n_tokens == SL_SEGMENT_TOKENS &&
                   (!v->knows_previous || record->previous == v->previous) &&
                   (v->segment != open || memcmp(record->ids, v->commit.ids, n_open * sizeof *record->ids) == 0);
    if (follows) {
        if (v->has_pending)
            sl_verify_tell(v, v->pending);
        v->has_pending = !good[0] || !good[1] || records[1].checksum != records[0].checksum;
        v->pending = record_damage(v, "segment record", 1 - pick);
        take_record(v, record);
        return;
    }
    bool is_open = v->is_chain && v->segment == open;
    v->is_chain = false;
    v->state = is_open ? SL_VERIFY_SEGMENT_OPEN : SL_VERIFY_SEGMENT_OUTSIDE;
    v->sums = v->commit.parts;
    v->n_tokens = (uint32_t)n_open;
    v->result->n_tokens += is_open ? n_open : 0;
}

static bool read_end(sl_verify *v, uint64_t off, sl_end *out)
{
    sl_err why;
    sl_status status = sl_vfs_read(v->d->vfs, v->d->file, v->d->path, v->records, SL_FORMAT_END_BYTES, off, &why);
    if (status == SL_OK)
        status = sl_end_decode(v->records, v->d->superblock.checksum, out, &why);
    return status == SL_OK;
}

/* Of a finished file, behind its last segment. */
static void judge_end(sl_verify *v)
{
    uint64_t off = sl_layout_segment_off(&v->d->layout, v->n_segments);
    sl_end ends[2];
    bool good[2];
    for (int copy = 0; copy < 2; copy++)
        good[copy] = read_end(v, off + (uint64_t)copy * SL_FORMAT_END_BYTES, &ends[copy]);
    if (!good[0] && !good[1]) {
        sl_verify_tell(v, (sl_damage){"end record, both copies: damaged, or the file was cut off", -1, -1, -1, off,
                                      2 * SL_FORMAT_END_BYTES, .kind = SL_DAMAGE_SIZE});
        return;
    }
    bool is_same = good[0] && good[1] && memcmp(&ends[0], &ends[1], sizeof ends[0]) == 0;
    int bad = good[0] ? 1 : 0;
    if (!is_same)
        sl_verify_tell(v, (sl_damage){"end record", bad, -1, -1, off + (uint64_t)bad * SL_FORMAT_END_BYTES,
                                      SL_FORMAT_END_BYTES, .kind = SL_DAMAGE_COPY});
    const sl_end *end = &ends[1 - bad];
    uint64_t n_tokens = (v->n_segments - 1) * SL_SEGMENT_TOKENS + v->n_tokens;
    if (v->knows_previous && (end->last != v->previous || end->n_tokens != n_tokens))
        sl_verify_tell(v, (sl_damage){"end record, does not fit the last segment record", -1, -1, -1, off,
                                      2 * SL_FORMAT_END_BYTES, .kind = SL_DAMAGE_CHAIN});
}

static void enter_segment(sl_verify *v)
{
    uint64_t open = v->commit.n_tokens / SL_SEGMENT_TOKENS;
    if (v->has_commit && v->segment == open && v->knows_previous && v->commit.previous != v->previous)
        sl_verify_tell(v, record_damage(v, "commit record, does not follow the last segment record", -1));
    v->step = 0;
    if (v->segment >= v->n_segments) {
        v->state = SL_VERIFY_SEGMENT_NONE;
        if (v->has_end)
            judge_end(v);
        return;
    }
    sl_record records[2] = {{0}, {0}};
    bool good[2] = {false, false};
    for (int copy = 0; copy < 2; copy++)
        good[copy] = read_record(v, copy, &records[copy]);
    if (!v->has_commit || v->segment < open)
        judge_record(v, records, good);
    else
        judge_later(v, records, good);
}

/* ---- regions ---- */

/* Tokens of the segment's part p. */
static uint64_t part_tokens(const sl_verify *v, uint32_t part)
{
    uint64_t first = (uint64_t)part * SL_PART_TOKENS, n = v->n_tokens > first ? v->n_tokens - first : 0;
    return n < SL_PART_TOKENS ? n : SL_PART_TOKENS;
}

static void block_region(sl_verify *v, sl_verify_region *r, uint64_t k)
{
    uint64_t part_bytes = sl_geom_part_bytes(v->geom, r->layer), group_bytes = sl_geom_group_bytes(v->geom, r->layer);
    if (k == LAYER_STEPS - 1) {
        r->left = sl_geom_block_bytes(v->geom, r->layer) - SL_SEGMENT_PARTS * part_bytes;
        return;
    }
    r->part = (uint32_t)(k / 2);
    bool is_stored = v->state == SL_VERIFY_SEGMENT_KNOWN || v->state == SL_VERIFY_SEGMENT_OPEN;
    uint64_t n = is_stored ? part_tokens(v, r->part) : 0;
    uint64_t groups = v->state == SL_VERIFY_SEGMENT_OPEN ? n / SL_TILE : (n + SL_TILE - 1) / SL_TILE;
    uint64_t stored = groups * group_bytes;
    uint64_t in_file = v->state == SL_VERIFY_SEGMENT_OPEN ? stored / SL_SECTOR_BYTES * SL_SECTOR_BYTES : stored;
    if (k % 2 == 0) {
        r->kind = SL_VERIFY_REGION_PART;
        r->what = "part";
        r->left = in_file;
        r->checked = stored;
        XXH3_64bits_reset(v->hash);
        return;
    }
    r->left = part_bytes - in_file;
    if (v->state == SL_VERIFY_SEGMENT_UNKNOWN)
        r->kind = SL_VERIFY_REGION_SKIP;
}

/* To the next segment, when all regions of this one have been made. */
static void advance(sl_verify *v)
{
    uint64_t n_steps = (uint64_t)v->geom->n_layers * LAYER_STEPS + 2;
    if (v->state == SL_VERIFY_SEGMENT_NONE || v->step < (v->state == SL_VERIFY_SEGMENT_HEAD ? 2 : n_steps))
        return;
    v->segment += v->state == SL_VERIFY_SEGMENT_HEAD ? 0 : 1;
    enter_segment(v);
}

/* The region that begins at `off`, perhaps of no bytes. */
static void make_region(sl_verify *v, uint64_t off)
{
    const sl_layout *layout = &v->d->layout;
    advance(v);
    uint64_t step = v->step++, block_steps = (uint64_t)v->geom->n_layers * LAYER_STEPS;
    sl_verify_region *r = &v->region;
    *r = (sl_verify_region){.off = off, .what = "unused bytes", .kind = SL_VERIFY_REGION_ZERO};
    if (v->has_commit)
        r->kind = SL_VERIFY_REGION_OUTSIDE;
    if (v->state == SL_VERIFY_SEGMENT_NONE) {
        r->kind = v->has_commit ? SL_VERIFY_REGION_OUTSIDE : SL_VERIFY_REGION_SKIP;
        r->left = UINT64_MAX;
    } else if (v->state == SL_VERIFY_SEGMENT_HEAD) {
        bool is_area = step == 0;
        r->kind = is_area && (v->has_commit || v->has_trace) ? SL_VERIFY_REGION_SKIP : SL_VERIFY_REGION_ZERO;
        r->what = is_area ? "commit area of a finished file" : r->what;
        r->left = is_area ? 4 * layout->commit_bytes : layout->data_off - off;
    } else if (step < block_steps) {
        r->layer = (uint32_t)(step / LAYER_STEPS);
        block_region(v, r, step % LAYER_STEPS);
    } else if (step == block_steps) {
        bool is_record = v->state == SL_VERIFY_SEGMENT_KNOWN || v->state == SL_VERIFY_SEGMENT_UNKNOWN;
        r->kind = is_record ? SL_VERIFY_REGION_SKIP : SL_VERIFY_REGION_OUTSIDE;
        r->left = 2 * layout->record_bytes;
    } else {
        r->left = layout->stride - layout->blocks_bytes - 2 * layout->record_bytes;
    }
}

/* The commit record's bytes of a layer that belong behind what the file has of its last part. */
static const uint8_t *piece_of(const sl_verify *v, uint32_t layer)
{
    const uint8_t *at = v->commit.tails;
    for (uint32_t i = 0; i < layer; i++)
        at += sl_commit_piece_bytes(v->geom, i, v->commit.n_tokens) +
              (v->commit.n_tokens % SL_TILE != 0 ? sl_geom_group_bytes(v->geom, i) : 0);
    return at;
}

static void end_region(sl_verify *v)
{
    sl_verify_region *r = &v->region;
    if (r->kind != SL_VERIFY_REGION_PART || r->checked == 0)
        return;
    uint64_t piece = v->state == SL_VERIFY_SEGMENT_OPEN ? r->checked % SL_SECTOR_BYTES : 0;
    if (piece > 0)
        XXH3_64bits_update(v->hash, piece_of(v, r->layer), (size_t)piece);
    if (XXH3_64bits_digest(v->hash) != v->sums[(size_t)r->layer * SL_SEGMENT_PARTS + r->part])
        sl_verify_tell(v, (sl_damage){r->what, -1, (int64_t)r->layer, (int64_t)v->segment, r->off, r->checked,
                                      .kind = SL_DAMAGE_PART, .part = r->part});
}

void sl_verify_next_region(sl_verify *v, uint64_t off)
{
    while (v->region.left == 0) {
        end_region(v);
        make_region(v, off);
    }
}

/* ---- judging bytes ---- */

static bool is_zero(const uint8_t *buf, size_t n)
{
    return n == 0 || (buf[0] == 0 && memcmp(buf, buf + 1, n - 1) == 0);
}

static void expect_zero(sl_verify *v, const uint8_t *buf, size_t n, uint64_t off)
{
    size_t first = 0;
    if (v->region.is_told || is_zero(buf, n))
        return;
    while (buf[first] == 0)
        first++;
    v->region.is_told = true;
    bool is_in_segment = v->state != SL_VERIFY_SEGMENT_HEAD && v->state != SL_VERIFY_SEGMENT_NONE;
    sl_verify_tell(v, (sl_damage){v->region.what, -1, -1, is_in_segment ? (int64_t)v->segment : -1, off + first, 1,
                                  .kind = SL_DAMAGE_UNUSED, .end = off + v->region.left});
}

static void count_outside(sl_verify *v, const uint8_t *buf, size_t n)
{
    for (size_t i = 0; i < n; i += SL_SECTOR_BYTES) {
        size_t bytes = n - i < SL_SECTOR_BYTES ? n - i : SL_SECTOR_BYTES;
        v->result->outside_bytes += is_zero(buf + i, bytes) ? 0 : bytes;
    }
}

void sl_verify_judge(sl_verify *v, const uint8_t *buf, size_t bytes, uint64_t off)
{
    while (bytes > 0) {
        sl_verify_next_region(v, off);
        size_t n = v->region.left < bytes ? (size_t)v->region.left : bytes;
        if (v->region.kind == SL_VERIFY_REGION_PART)
            XXH3_64bits_update(v->hash, buf, n);
        else if (v->region.kind == SL_VERIFY_REGION_ZERO)
            expect_zero(v, buf, n, off);
        else if (v->region.kind == SL_VERIFY_REGION_OUTSIDE)
            count_outside(v, buf, n);
        v->region.left -= n;
        buf += n;
        bytes -= n;
        off += n;
    }
}
