/* The chain of records, each in two copies: the way through it on which most of them fit. */
#include "store/durable_pick.h"

#include <string.h>

#include "store/format_impl.h"

/* ---- reading ---- */

static bool read_at(const sl_durable *d, void *buf, size_t bytes, uint64_t off)
{
    sl_err why;
    return sl_vfs_read(d->vfs, d->file, d->path, buf, bytes, off, &why) == SL_OK;
}

/* Behind the commit's segments only a full record counts, the open one's if it begins with the commit's tokens; none
 * behind a commit that says so. */
static bool may_follow(const sl_commit *commit, const sl_record *record)
{
    uint64_t open = commit->n_tokens / SL_SEGMENT_TOKENS;
    size_t n_open = (size_t)(commit->n_tokens % SL_SEGMENT_TOKENS);
    if (record->segment < open)
        return true;
    return !commit->is_alone && record->n_tokens == SL_SEGMENT_TOKENS &&
           (record->segment > open || memcmp(record->ids, commit->ids, n_open * sizeof *commit->ids) == 0);
}

static void read_segment(const sl_durable *d, const sl_commit *commit, uint64_t segment, sl_pick *out, uint8_t *buf)
{
    size_t bytes = (size_t)d->layout.record_bytes;
    *out = (sl_pick){.copy = SL_PICK_NONE};
    for (size_t copy = 0; copy < 2; copy++) {
        sl_record record;
        sl_err why;
        if (!read_at(d, buf, bytes, sl_layout_record_off(&d->layout, segment) + copy * bytes) ||
            sl_record_decode(buf, &d->superblock.geom, segment, d->superblock.checksum, &record, &why) != SL_OK)
            continue;
        out->is_whole[copy] = !commit || may_follow(commit, &record);
        out->checksum[copy] = record.checksum;
        out->previous[copy] = record.previous;
        out->first[copy] = segment * SL_SEGMENT_TOKENS;
        out->end[copy] = out->first[copy] + record.n_tokens;
    }
}

static void read_end(const sl_durable *d, uint64_t off, sl_pick *out, uint8_t *buf)
{
    for (size_t copy = 0; copy < 2; copy++) {
        sl_end end;
        sl_err why;
        if (!read_at(d, buf, SL_FORMAT_END_BYTES, off + copy * SL_FORMAT_END_BYTES) ||
            sl_end_decode(buf, d->superblock.checksum, &end, &why) != SL_OK)
            continue;
        out->is_whole[copy] = true;
        memcpy(&out->checksum[copy], buf + SL_FORMAT_END_BYTES - 8, 8);
        out->previous[copy] = end.last;
        out->first[copy] = out->end[copy] = end.n_tokens;
    }
}

/* ---- judging ---- */

/* Whether copy b can stand behind copy a; left NULL: behind nothing. */
static bool is_link(const sl_pick *left, int a, const sl_pick *right, int b)
{
    if (!right->is_whole[b] || (left && !left->is_whole[a]))
        return false;
    return right->previous[b] == (left ? left->checksum[a] : 0) && right->first[b] == (left ? left->end[a] : 0);
}

/* A place where neither copy is whole is one that nothing fits, in the place of its first copy. */
static bool is_there(const sl_pick *p, int copy)
{
    return p->is_whole[copy] || (copy == 0 && !p->is_whole[1]);
}

static uint64_t best_before(const sl_pick *left, const sl_pick *right, int b)
{
    uint64_t best = 0;
    for (int a = 0; a < 2; a++) {
        uint64_t n = is_there(left, a) ? left->before[a] + is_link(left, a, right, b) : 0;
        best = n > best ? n : best;
    }
    return best;
}

static uint64_t best_after(const sl_pick *left, int a, const sl_pick *right)
{
    uint64_t best = 0;
    for (int b = 0; b < 2; b++) {
        uint64_t n = is_there(right, b) ? right->after[b] + is_link(left, a, right, b) : 0;
        best = n > best ? n : best;
    }
    return best;
}

bool sl_pick_is_uneven(const sl_pick *p)
{
    return !p->is_whole[0] || !p->is_whole[1] || p->checksum[0] != p->checksum[1];
}

static int choose(const sl_pick *p)
{
    if (!p->is_whole[0] || !p->is_whole[1])
        return p->is_whole[0] ? 0 : p->is_whole[1] ? 1 : SL_PICK_NONE;
    uint64_t first = p->before[0] + p->after[0], second = p->before[1] + p->after[1];
    if (p->checksum[0] == p->checksum[1] || first > second)
        return 0;
    return second > first ? 1 : SL_PICK_BOTH;
}

/* Whether a neighbour says that the copy is not the one: all its whole copies, or the one of them that counts. */
static bool denies(const sl_pick *left, const sl_pick *right, bool is_left_asked)
{
    const sl_pick *other = is_left_asked ? left : right;
    bool fits = false, is_known = !other;
    for (int i = 0; i < 2; i++) {
        if (other && (!other->is_whole[i] || (other->copy >= 0 && other->copy != i)))
            continue;
        is_known = true;
        fits |= is_left_asked ? is_link(left, i, right, right->copy) : is_link(left, left->copy, right, i);
    }
    return is_known && !fits;
}

/* Segments 0 to n - 1, then `end`. */
static void judge_chain(sl_pick *picks, uint64_t n, sl_pick *end)
{
    for (uint64_t i = 0; i <= n; i++) {
        sl_pick *p = i < n ? &picks[i] : end;
        for (int c = 0; c < 2; c++)
            p->before[c] = i == 0 ? is_link(NULL, 0, p, c) : best_before(&picks[i - 1], p, c);
    }
    for (uint64_t i = n; i-- > 0;)
        for (int c = 0; c < 2; c++)
            picks[i].after[c] = best_after(&picks[i], c, i + 1 < n ? &picks[i + 1] : end);
    for (uint64_t i = 0; i <= n; i++) {
        sl_pick *p = i < n ? &picks[i] : end;
        p->copy = choose(p);
        p->is_sure = i < n && p->copy >= 0 && p->after[p->copy] == n - i;
    }
    for (uint64_t i = 0; i <= n; i++) {
        sl_pick *p = i < n ? &picks[i] : end, *left = i > 0 ? &picks[i - 1] : NULL;
        if (p->copy < 0 || p->is_sure)
            continue;
        p->is_denied = denies(left, p, true) || (i < n && denies(p, i + 1 < n ? &picks[i + 1] : end, false));
        /* The end itself: what the last record says it is. */
        p->is_sure = i == n && left && left->copy >= 0 && is_link(left, left->copy, p, p->copy);
    }
}

/* Records that were committed by themselves, behind the segment with this checksum: as many as follow each other. */
static void judge_more(sl_pick *picks, uint64_t first, uint64_t n, uint64_t previous)
{
    for (uint64_t i = n; i-- > first;)
        for (int c = 0; c < 2; c++)
            for (int next = 0; next < 2; next++)
                if (i + 1 < n && is_link(&picks[i], c, &picks[i + 1], next) &&
                    picks[i + 1].after[next] + 1 > picks[i].after[c])
                    picks[i].after[c] = picks[i + 1].after[next] + 1;
    for (uint64_t i = first; i < n; i++) {
        sl_pick *p = &picks[i];
        for (int c = 0; c < 2; c++)
            p->is_whole[c] = p->is_whole[c] && p->previous[c] == previous;
        p->copy = choose(p);
        p->is_sure = p->copy >= 0;
        if (!p->is_sure)
            return;
        previous = p->checksum[p->copy];
    }
}

void sl_picks_make(sl_durable *d, const sl_commit *commit, uint64_t n_segments, bool has_end, sl_pick *picks,
                   uint8_t *buf)
{
    for (uint64_t segment = 0; segment < n_segments; segment++)
        read_segment(d, commit, segment, &picks[segment], buf);
    sl_pick *end = &picks[n_segments];
    *end = (sl_pick){.copy = SL_PICK_NONE};
    if (has_end)
        read_end(d, sl_layout_segment_off(&d->layout, n_segments), end, buf);
    uint64_t n_needed = n_segments;
    if (commit) {
        uint64_t full = commit->n_tokens / SL_SEGMENT_TOKENS;
        n_needed = full < n_segments ? full : n_segments;
        for (int c = 0; c < 2; c++) {
            end->is_whole[c] = true;
            end->previous[c] = commit->previous;
            end->first[c] = full * SL_SEGMENT_TOKENS;
        }
    }
    judge_chain(picks, n_needed, end);
    if (commit)
        judge_more(picks, n_needed, n_segments, commit->previous);
}

/* ---- superblocks, and what looks like a record ---- */

static bool has_mark(const sl_durable *d, uint64_t off, const char *magic, size_t mark_off, uint64_t mark, uint8_t *buf)
{
    uint64_t found = 0;
    if (!read_at(d, buf, SL_SECTOR_BYTES, off) || memcmp(buf, magic, 8) != 0)
        return false;
    for (size_t i = 8; i-- > 0;)
        found = found << 8 | buf[mark_off + i];
    return found == mark;
}

uint64_t sl_picks_count(const sl_durable *d, const sl_commit *commit, uint64_t n, uint8_t *buf)
{
    enum { RECORD_MARK_OFF = 24, SEGMENT_OFF = 8 };
    const uint64_t n_committed = commit ? (commit->n_tokens + SL_SEGMENT_TOKENS - 1) / SL_SEGMENT_TOKENS : n;
    const uint64_t open = commit ? commit->n_tokens / SL_SEGMENT_TOKENS : n;
    const uint64_t most = commit && commit->is_alone && n_committed < n ? n_committed : n;
    uint64_t segment = 0;
    for (bool is_there = true; segment < most; segment++) {
        is_there = false;
        for (uint64_t copy = 0; copy < 2 && !is_there; copy++) {
            uint64_t off = sl_layout_record_off(&d->layout, segment) + copy * d->layout.record_bytes;
            is_there = has_mark(d, off, "SLUICERC", RECORD_MARK_OFF, d->superblock.checksum, buf) &&
                       sl_format_load(buf + SEGMENT_OFF, 8) == segment;
        }
        if (!is_there)
            break;
    }
    /* The open segment has no record yet. */
    return commit && segment == open && n_committed <= n && n_committed > segment ? n_committed : segment;
}

void sl_picks_end(const sl_durable *d, uint64_t n_segments, sl_pick *out, uint8_t *buf)
{
    *out = (sl_pick){.copy = SL_PICK_NONE};
    read_end(d, sl_layout_segment_off(&d->layout, n_segments), out, buf);
}

bool sl_superblock_is_used(const sl_durable *d, const sl_superblock *superblock, uint8_t *buf)
{
    enum { COMMIT_MARK_OFF = 32, RECORD_MARK_OFF = 24 };
    const sl_layout layout = sl_layout_of(&superblock->geom);
    for (unsigned copy = 0; copy < 2; copy++)
        if (has_mark(d, sl_layout_record_off(&layout, 0) + copy * layout.record_bytes, "SLUICERC", RECORD_MARK_OFF,
                     superblock->checksum, buf))
            return true;
    for (unsigned copy = 0; copy < SL_DURABLE_COMMITS; copy++)
        if (has_mark(d, sl_layout_area_off(&layout, copy / 2) + copy % 2 * layout.commit_bytes, "SLUICECM",
                     COMMIT_MARK_OFF, superblock->checksum, buf))
            return true;
    return false;
}
