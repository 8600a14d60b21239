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

/* The copy that counts; it may have changed since it was chosen: then it is damaged. */
static bool read_record(sl_verify *v, const sl_pick *pick, sl_record *out)
{
    if (pick->copy < 0)
        return false;
    sl_err why;
    return sl_verify_wait_for_record(v, v->segment) &&
           sl_record_decode(sl_verify_record(v, v->segment), v->geom, v->segment, v->d->superblock.checksum, out,
                            &why) == SL_OK &&
           out->checksum == pick->checksum[pick->copy];
}

static void judge_ids(sl_verify *v, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!sl_id_is_known(ids[i], v->d->superblock.identity.n_vocab)) {
            sl_verify_tell(v, record_damage(v, "token id that the vocabulary lacks, under a right checksum", -1));
            return;
        }
}

static void take_record(sl_verify *v, const sl_record *record)
{
    judge_ids(v, record->ids, record->n_tokens);
    v->state = SL_VERIFY_SEGMENT_KNOWN;
    v->n_tokens = record->n_tokens;
    v->sums = record->parts;
    v->previous = record->checksum;
    v->knows_previous = true;
    v->result->n_tokens += record->n_tokens;
}

static const char NEITHER_FITS[] = "segment record: its copies differ, and neither fits the other records better";

/* A segment whose record must be there. */
static void judge_record(sl_verify *v, const sl_pick *pick)
{
    sl_record record;
    bool has_record = read_record(v, pick, &record);
    for (int copy = 0; copy < 2; copy++)
        if (!pick->is_whole[copy] || (!has_record && pick->copy == copy))
            sl_verify_tell(v, record_damage(v, "segment record", copy));
        else if (pick->copy == 1 - copy && sl_pick_is_uneven(pick))
            sl_verify_tell(v, record_damage(v, "segment record, does not fit the others", copy));
    if (pick->copy == SL_PICK_BOTH)
        sl_verify_tell(v, record_damage(v, NEITHER_FITS, -1));
    if (!has_record) {
        v->state = SL_VERIFY_SEGMENT_UNKNOWN;
        v->knows_previous = false;
        return;
    }
    bool is_last = !v->has_commit && v->segment + 1 == v->n_segments;
    if (v->knows_previous && record.previous != v->previous)
        sl_verify_tell(v, record_damage(v, "segment record, does not follow the one before", -1));
    if (!is_last && record.n_tokens != SL_SEGMENT_TOKENS)
        sl_verify_tell(v, record_damage(v, "segment record, too few tokens", -1));
    take_record(v, &record);
}

/* Behind the commit record's segments: one more whole segment, the open one, or nothing that was committed. */
static void judge_later(sl_verify *v, const sl_pick *pick)
{
    sl_record record;
    if (v->is_chain && pick->copy == SL_PICK_BOTH)
        sl_verify_tell(v, record_damage(v, NEITHER_FITS, -1));
    if (v->is_chain && read_record(v, pick, &record)) {
        if (v->has_pending)
            sl_verify_tell(v, v->pending);
        v->has_pending = sl_pick_is_uneven(pick);
        v->pending = record_damage(v, "segment record", 1 - pick->copy);
        take_record(v, &record);
        return;
    }
    uint64_t open = v->commit.n_tokens / SL_SEGMENT_TOKENS;
    size_t n_open = (size_t)(v->commit.n_tokens % SL_SEGMENT_TOKENS);
    bool is_open = v->is_chain && v->segment == open;
    v->is_chain = false;
    v->state = is_open ? SL_VERIFY_SEGMENT_OPEN : SL_VERIFY_SEGMENT_OUTSIDE;
    v->sums = v->commit.parts;
    v->n_tokens = (uint32_t)n_open;
    v->result->n_tokens += is_open ? n_open : 0;
    if (is_open)
        judge_ids(v, v->commit.ids, v->n_tokens);
}

static void tell_end(sl_verify *v, const char *what, int copy, sl_damage_kind kind)
{
    uint64_t off = sl_layout_segment_off(&v->d->layout, v->n_segments), bytes = SL_FORMAT_END_BYTES;
    sl_verify_tell(v, (sl_damage){what, copy, -1, -1, off + (copy > 0 ? bytes : 0), copy < 0 ? 2 * bytes : bytes,
                                  .kind = kind});
}

/* Of a finished file, behind its last segment. */
static void judge_end(sl_verify *v)
{
    const sl_pick *pick = &v->picks[v->n_segments];
    if (pick->copy == SL_PICK_NONE) {
        tell_end(v, "end record, both copies: damaged, or the file was cut off", -1, SL_DAMAGE_SIZE);
        return;
    }
    if (pick->copy == SL_PICK_BOTH) {
        tell_end(v, "end record: its copies differ, and neither fits the segment records better", -1,
                 SL_DAMAGE_CHAIN);
        return;
    }
    if (sl_pick_is_uneven(pick))
        tell_end(v, pick->is_whole[1 - pick->copy] ? "end record, does not fit the segment records" : "end record",
                 1 - pick->copy, SL_DAMAGE_COPY);
    uint64_t n_tokens = (v->n_segments - 1) * SL_SEGMENT_TOKENS + v->n_tokens;
    if (v->knows_previous && (pick->previous[pick->copy] != v->previous || pick->end[pick->copy] != n_tokens))
        tell_end(v, "end record, does not fit the last segment record", -1, SL_DAMAGE_CHAIN);
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
    if (!v->has_commit || v->segment < open)
        judge_record(v, &v->picks[v->segment]);
    else
        judge_later(v, &v->picks[v->segment]);
    sl_verify_start_record(v, v->segment + 1);
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
