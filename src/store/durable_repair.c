#include "store/durable_repair.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "store/durable_repair_impl.h"

enum { WORD_BITS = 64 };

static const sl_geom *geom_of(const sl_repair *r)
{
    return &r->d->superblock.geom;
}

/* ---- opening ---- */

static sl_status take_memory(sl_repair *r, sl_err *err)
{
    sl_durable *d = r->d;
    uint64_t n_parts = r->n_segments * SL_SEGMENT_PARTS * geom_of(r)->n_layers;
    r->damaged_bytes = (size_t)(n_parts / WORD_BITS + 1) * sizeof *r->damaged;
    sl_status status = sl_durable_take_memory(d, r->n_segments * SL_SEGMENT_TOKENS, err);
    if (status == SL_OK)
        status = sl_mem_map(r->o.budget, r->damaged_bytes, "list of damaged parts", &r->damaged, err);
    return status == SL_OK ? sl_mem_map(r->o.budget, SL_REPAIR_LOOK_BYTES, "repair", &r->buf, err) : status;
}

static sl_status open_file(sl_repair *r, sl_err *err)
{
    const sl_durable_options options = {.vfs = r->o.vfs,
                                        .path = r->o.path,
                                        .for_writing = !r->o.dry_run,
                                        .force_buffered = r->o.force_buffered,
                                        .budget = r->o.budget,
                                        .log = r->o.log};
    sl_status status = sl_durable_new(&options, &r->d, err);
    if (status == SL_OK)
        status = sl_durable_open_file(r->d, &r->result.file_bytes, err);
    /* What a killed writer left may not have reached the disk: nothing is built on it before it has. */
    if (status == SL_OK && !r->o.dry_run)
        status = sl_durable_sync(r->d, err);
    if (status == SL_OK)
        status = sl_durable_load_superblock(r->d, r->result.file_bytes, err);
    if (status != SL_OK)
        return status;
    r->n_segments = (r->result.file_bytes - r->d->layout.data_off) / r->d->layout.stride;
    return take_memory(r, err);
}

sl_status sl_repair_open(const sl_repair_options *options, sl_repair **out, sl_err *err)
{
    *out = NULL;
    sl_repair *r = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *r, "repair", &r, err);
    if (status != SL_OK)
        return status;
    r->o = *options;
    r->open = UINT64_MAX;
    status = open_file(r, err);
    if (status != SL_OK) {
        sl_repair_close(r);
        return status;
    }
    *out = r;
    return SL_OK;
}

void sl_repair_close(sl_repair *r)
{
    if (!r)
        return;
    sl_budget *budget = r->o.budget;
    sl_mem_unmap(budget, r->buf, r->buf ? SL_REPAIR_LOOK_BYTES : 0);
    sl_mem_unmap(budget, r->damaged, r->damaged ? r->damaged_bytes : 0);
    sl_durable_close(r->d);
    sl_mem_free(budget, r);
}

sl_durable *sl_repair_durable(sl_repair *r)
{
    return r->d;
}

/* ---- looking ---- */

void sl_repair_tell(sl_repair *r, const sl_damage *damage, bool is_lost)
{
    r->result.n_found++;
    r->result.n_lost += is_lost;
    r->result.n_repaired += !is_lost && !r->o.dry_run;
    if (r->o.told)
        r->o.told(r->o.arg, damage, is_lost ? SL_FATE_LOST : r->o.dry_run ? SL_FATE_REPAIRABLE : SL_FATE_REPAIRED);
}

static size_t bit_of(const sl_repair *r, uint64_t part, uint32_t layer)
{
    return (size_t)(part * geom_of(r)->n_layers + layer);
}

static bool is_damaged(const sl_repair *r, uint64_t part, uint32_t layer)
{
    size_t bit = bit_of(r, part, layer);
    return (r->damaged[bit / WORD_BITS] >> bit % WORD_BITS & 1) != 0;
}

static void found(void *arg, const sl_damage *damage)
{
    sl_repair *r = arg;
    if (damage->kind == SL_DAMAGE_PART) {
        size_t bit = bit_of(r, (uint64_t)damage->segment * SL_SEGMENT_PARTS + damage->part, (uint32_t)damage->layer);
        r->damaged[bit / WORD_BITS] |= UINT64_C(1) << bit % WORD_BITS;
        return;
    }
    if (damage->kind == SL_DAMAGE_SIZE && !r->is_end_made) /* with a dry run it still is not there */
        sl_repair_tell(r, damage, true);
    if (damage->kind != SL_DAMAGE_UNUSED || r->failed != SL_OK)
        return; /* records have been seen to; what cannot be read is found again as what it should have been */
    if (!r->o.dry_run)
        r->failed = sl_repair_zeros(r, damage->off, damage->end, &r->why);
    if (r->failed == SL_OK)
        sl_repair_tell(r, damage, false);
}

static bool progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    sl_repair *r = arg;
    return r->failed == SL_OK && (!r->o.progress || r->o.progress(r->o.arg, done_bytes, total_bytes));
}

/* Tokens that the part's tile groups on flash hold; 0: nothing says so. */
static size_t tokens_of(const sl_repair *r, uint64_t part)
{
    uint64_t first = part * SL_PART_TOKENS, left = r->known_tokens > first ? r->known_tokens - first : 0;
    if (part / SL_SEGMENT_PARTS == r->open)
        left = left / SL_TILE * SL_TILE; /* the unfilled group is in the commit record */
    return left < SL_PART_TOKENS ? (size_t)left : (size_t)SL_PART_TOKENS;
}

/* The part's layers from the first damaged one on; n_layers: none. */
static uint32_t next_damaged(const sl_repair *r, uint64_t part, uint32_t layer)
{
    while (layer < geom_of(r)->n_layers && !is_damaged(r, part, layer))
        layer++;
    return layer;
}

static void count_work(sl_repair *r)
{
    for (uint64_t part = 0; part < r->n_segments * SL_SEGMENT_PARTS; part++)
        if (next_damaged(r, part, 0) < geom_of(r)->n_layers)
            r->result.part_tokens += tokens_of(r, part);
}

sl_status sl_repair_look(sl_repair *r, sl_err *err)
{
    sl_status status = sl_repair_copies(r, err);
    if (status != SL_OK)
        return status;
    const sl_verify_options options = {.opened = r->d, .budget = r->o.budget, .found = found, .progress = progress,
                                       .arg = r};
    sl_verify_result verified;
    status = sl_durable_verify(&options, &verified, err);
    if (r->failed != SL_OK)
        return sl_err_set(err, r->failed, "%s", r->why.text);
    if (status != SL_OK && status != SL_DAMAGED)
        return status;
    r->result.n_tokens = verified.n_tokens;
    r->result.intended_tokens = verified.intended_tokens;
    r->result.is_finished = verified.is_finished;
    status = SL_OK;
    if (verified.is_finished && verified.is_torn && r->result.n_lost == 0)
        status = sl_repair_trace(r, err);
    count_work(r);
    return status == SL_OK && !r->o.dry_run ? sl_durable_sync(r->d, err) : status;
}

/* ---- parts ---- */

/* Bytes of the part in the file; *checked: of the part, under its checksum. */
static uint64_t bytes_of(const sl_repair *r, uint64_t part, uint32_t layer, uint64_t *checked)
{
    uint64_t groups = (tokens_of(r, part) + SL_TILE - 1) / SL_TILE;
    *checked = groups * sl_geom_group_bytes(geom_of(r), layer);
    bool is_open = part / SL_SEGMENT_PARTS == r->open;
    return is_open ? *checked / SL_SECTOR_BYTES * SL_SECTOR_BYTES : sl_up_sector(*checked);
}

static sl_damage part_damage(const sl_repair *r, uint64_t part, uint32_t layer)
{
    uint64_t segment = part / SL_SEGMENT_PARTS, p = part % SL_SEGMENT_PARTS, checked;
    uint64_t off = sl_layout_segment_off(&r->d->layout, segment) + sl_geom_block_off(geom_of(r), 0, layer) +
                   p * sl_geom_part_bytes(geom_of(r), layer);
    (void)bytes_of(r, part, layer, &checked);
    /* Where nothing says how full it is. */
    if (checked == 0)
        checked = sl_geom_part_bytes(geom_of(r), layer);
    return (sl_damage){"part", -1, layer, (int64_t)segment, off, checked, .kind = SL_DAMAGE_PART, .part = (uint32_t)p};
}

/* All damaged layers of a part at once: what will not be computed. */
static void tell_part(sl_repair *r, uint64_t part, bool is_lost)
{
    uint32_t n_layers = geom_of(r)->n_layers;
    for (uint32_t layer = next_damaged(r, part, 0); layer < n_layers; layer = next_damaged(r, part, layer + 1)) {
        const sl_damage damage = part_damage(r, part, layer);
        sl_repair_tell(r, &damage, is_lost);
    }
}

bool sl_repair_next(sl_repair *r, sl_repair_work *out)
{
    uint32_t n_layers = geom_of(r)->n_layers;
    for (; r->at < r->n_segments * SL_SEGMENT_PARTS; r->at++) {
        if (next_damaged(r, r->at, 0) == n_layers)
            continue;
        size_t n_tokens = tokens_of(r, r->at);
        if (r->o.dry_run || n_tokens == 0) {
            tell_part(r, r->at, n_tokens == 0);
            continue;
        }
        *out = (sl_repair_work){.first_token = r->at * SL_PART_TOKENS,
                                .n_tokens = n_tokens,
                                .ids = r->d->ids + r->at * SL_PART_TOKENS};
        for (uint32_t layer = 0; layer < n_layers; layer++)
            if (is_damaged(r, r->at, layer))
                out->n_layers = layer + 1;
        /* For who takes the tokens before it over: whole parts, whatever else the file is. */
        r->d->n_tokens = r->d->intended_tokens = out->first_token;
        r->d->is_finished = true;
        r->d->tails = NULL;
        return true;
    }
    return false;
}

bool sl_repair_wants(const sl_repair *r, uint32_t layer)
{
    return is_damaged(r, r->at, layer);
}

static bool is_same(sl_repair *r, const uint8_t *bytes, size_t n, uint64_t off)
{
    sl_err why;
    return sl_vfs_read(r->d->vfs, r->d->file, r->d->path, r->buf, n, off, &why) == SL_OK &&
           memcmp(r->buf, bytes, n) == 0;
}

/* The sectors of [bytes] that are not what they should be. */
static sl_status write_unlike(sl_repair *r, const uint8_t *bytes, size_t n, uint64_t off, sl_err *err)
{
    if (is_same(r, bytes, n, off))
        return SL_OK;
    sl_status status = SL_OK;
    for (size_t first = 0, end; status == SL_OK && first < n; first = end) {
        bool same = is_same(r, bytes + first, SL_SECTOR_BYTES, off + first);
        for (end = first + SL_SECTOR_BYTES; end < n; end += SL_SECTOR_BYTES)
            if (is_same(r, bytes + end, SL_SECTOR_BYTES, off + end) != same)
                break;
        if (!same)
            status = sl_durable_write(r->d, bytes + first, end - first, off + first, err);
    }
    return status;
}

sl_status sl_repair_put(sl_repair *r, uint32_t layer, uint8_t *groups, sl_err *err)
{
    uint64_t checked, in_file = bytes_of(r, r->at, layer, &checked);
    const sl_damage damage = part_damage(r, r->at, layer);
    assert(!r->o.dry_run && is_damaged(r, r->at, layer) && checked > 0);
    uint64_t computed = sl_hash(groups, (size_t)checked), wanted = sl_durable_part(r->d, layer, r->at);
    if (computed != wanted)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: layer %" PRIu32 ", segment %" PRIi64 ", offset %" PRIu64
                          ": what the model computes for it has checksum %016" PRIx64 ", its record says %016" PRIx64
                          ": the file was made by other arithmetic, or this machine errs; nothing was written there",
                          r->d->path, layer, damage.segment, damage.off, computed, wanted);
    if (in_file > checked)
        memset(groups + checked, 0, (size_t)(in_file - checked));
    sl_status status = SL_OK;
    for (uint64_t at = 0; status == SL_OK && at < in_file; at += SL_REPAIR_LOOK_BYTES) {
        uint64_t left = in_file - at;
        size_t n = left < SL_REPAIR_LOOK_BYTES ? (size_t)left : SL_REPAIR_LOOK_BYTES;
        status = write_unlike(r, groups + at, n, damage.off + at, err);
    }
    if (status == SL_OK)
        sl_repair_tell(r, &damage, false);
    return status;
}

sl_status sl_repair_settle(sl_repair *r, sl_err *err)
{
    r->at++;
    return sl_durable_sync(r->d, err);
}

sl_repair_result sl_repair_get(const sl_repair *r)
{
    sl_repair_result result = r->result;
    result.bytes_written = sl_durable_bytes_written(r->d);
    return result;
}
