#include "store/durable_verify.h"

#include <inttypes.h>
#include <string.h>

#include "store/durable_verify_impl.h"

/* ---- reading ---- */

/* The file behind the superblocks, in slices; slice i is read into slot i mod n_slots. */
static uint64_t slice_off(const sl_verify *v, uint64_t slice)
{
    return sl_layout_area_off(&v->d->layout, 0) + slice * v->slice_bytes;
}

static size_t slice_size(const sl_verify *v, uint64_t slice)
{
    uint64_t left = v->result->file_bytes - slice_off(v, slice);
    return left < v->slice_bytes ? (size_t)left : v->slice_bytes;
}

static uint8_t *slot_of(const sl_verify *v, uint64_t slice)
{
    return v->memory + slice % v->n_slots * v->slice_bytes;
}

static void start_slice(sl_verify *v, uint64_t slice)
{
    const sl_read read = {slot_of(v, slice), slice_size(v, slice), slice_off(v, slice), slice % v->n_slots};
    v->slots[read.tag] = SL_VERIFY_SLOT_READING;
    sl_queue_add(v->queue, &read, 1);
}

static bool is_read(sl_verify *v, uint64_t wanted)
{
    while (v->slots[wanted] == SL_VERIFY_SLOT_READING) {
        uint64_t slot = 0;
        sl_status status = SL_OK;
        sl_err why;
        if (sl_queue_wait(v->queue, -1.0, &slot, &status, &why))
            v->slots[slot] = status == SL_OK ? SL_VERIFY_SLOT_WHOLE : SL_VERIFY_SLOT_FAILED;
    }
    return v->slots[wanted] == SL_VERIFY_SLOT_WHOLE;
}

void sl_verify_start_record(sl_verify *v, uint64_t segment)
{
    if (segment >= v->n_segments || v->picks[segment].copy < 0)
        return;
    size_t bytes = sl_verify_record_bytes(v);
    const sl_read read = {sl_verify_record(v, segment), bytes,
                          sl_layout_record_off(&v->d->layout, segment) + (uint64_t)v->picks[segment].copy * bytes,
                          v->n_slots + segment % 2};
    v->slots[read.tag] = SL_VERIFY_SLOT_READING;
    sl_queue_add(v->queue, &read, 1);
}

bool sl_verify_wait_for_record(sl_verify *v, uint64_t segment)
{
    return is_read(v, v->n_slots + segment % 2);
}

/* Until it has come; what cannot be read is told and then judged as bytes that have no checksum. */
static const uint8_t *wait_for(sl_verify *v, uint64_t slice)
{
    if (!is_read(v, slice % v->n_slots)) {
        memset(slot_of(v, slice), UINT8_MAX, slice_size(v, slice));
        sl_verify_tell(v, (sl_damage){"bytes that cannot be read", -1, -1, -1, slice_off(v, slice),
                                      slice_size(v, slice), .kind = SL_DAMAGE_UNREADABLE});
    }
    return slot_of(v, slice);
}

static sl_status read_and_judge(sl_verify *v, sl_err *err)
{
    uint64_t size = v->result->file_bytes, n = (size - slice_off(v, 0) + v->slice_bytes - 1) / v->slice_bytes;
    sl_verify_start_record(v, 0);
    for (uint64_t slice = 0, started = 0; slice < n; slice++) {
        for (; started < n && started < slice + v->n_slots; started++)
            start_slice(v, started);
        sl_verify_judge(v, wait_for(v, slice), slice_size(v, slice), slice_off(v, slice));
        if (v->o->progress && !v->o->progress(v->o->arg, slice_off(v, slice) + slice_size(v, slice), size))
            return sl_err_set(err, SL_CANCELLED, "interrupted");
    }
    sl_verify_next_region(v, size); /* the last one's end */
    v->result->is_torn = v->has_pending || v->has_trace || (v->has_commit && v->d->note[0]);
    return SL_OK;
}

/* ---- beginning ---- */

static sl_status judge_superblocks(sl_verify *v, sl_err *err)
{
    size_t bytes = (size_t)v->d->layout.superblock_bytes;
    uint8_t *buf = NULL;
    sl_status status = sl_mem_map(v->o->budget, bytes, "superblock", &buf, err);
    for (int copy = 0; status == SL_OK && copy < 2; copy++) {
        uint64_t off = (uint64_t)copy * bytes;
        sl_superblock found = {0};
        sl_err why;
        sl_status read = sl_vfs_read(v->d->vfs, v->d->file, v->d->path, buf, bytes, off, &why);
        if (read == SL_OK)
            read = sl_superblock_decode(buf, bytes, v->o->budget, &found, &why);
        if (read != SL_OK || found.checksum != v->d->superblock.checksum)
            sl_verify_tell(v, (sl_damage){"superblock", copy, -1, -1, off, bytes, .kind = SL_DAMAGE_COPY});
        sl_superblock_free(&found, v->o->budget);
    }
    sl_mem_unmap(v->o->budget, buf, bytes);
    return status;
}

/* Whether an area holds the head of a commit record of this context: whatever is in the areas then is a writer's. */
static bool find_trace(const sl_verify *v)
{
    enum { MARK_OFF = 32 };
    const sl_layout *layout = &v->d->layout;
    for (unsigned copy = 0; copy < SL_DURABLE_COMMITS; copy++) {
        uint64_t off = sl_layout_area_off(layout, copy / 2) + copy % 2 * layout->commit_bytes, mark = 0;
        sl_err why;
        if (sl_vfs_read(v->d->vfs, v->d->file, v->d->path, v->commit_buf, SL_SECTOR_BYTES, off, &why) != SL_OK)
            continue;
        for (int i = 7; i >= 0; i--)
            mark = mark << 8 | v->commit_buf[MARK_OFF + i];
        if (memcmp(v->commit_buf, "SLUICECM", 8) == 0 && mark == v->d->superblock.checksum)
            return true;
    }
    return false;
}

/* What the commit records say and the file's size allows. */
static sl_status start(sl_verify *v, sl_err *err)
{
    const sl_layout *layout = &v->d->layout;
    uint64_t size = v->result->file_bytes;
    unsigned copy = SL_DURABLE_COMMITS;
    v->d->note[0] = '\0';
    sl_status status = sl_durable_find_commit(v->d, v->commit_buf, &v->commit, &copy, err);
    if (status != SL_OK)
        return status;
    v->has_commit = v->is_chain = copy < SL_DURABLE_COMMITS;
    v->has_trace = !v->has_commit && find_trace(v);
    v->knows_previous = true;
    v->result->is_finished = !v->has_commit;
    uint64_t needed = v->has_commit ? (v->commit.n_tokens + SL_SEGMENT_TOKENS - 1) / SL_SEGMENT_TOKENS : 1;
    needed = v->n_segments > needed ? v->n_segments : needed;
    uint64_t wanted =
        v->has_commit ? sl_layout_segment_off(layout, needed) : sl_layout_finished_bytes(layout, needed);
    v->has_end = !v->has_commit && size == wanted;
    sl_picks_make(v->d, v->has_commit ? &v->commit : NULL, v->n_segments, v->has_end, v->picks,
                  sl_verify_record(v, 0));
    const char *what = size < wanted ? "end of the file: it was cut off"
                                     : "end of the file: it was cut off in a segment, or added to";
    if (size < wanted || (!v->has_commit && size != wanted))
        sl_verify_tell(v, (sl_damage){what, -1, -1, -1, size < wanted ? size : wanted,
                                      size < wanted ? wanted - size : size - wanted, .kind = SL_DAMAGE_SIZE});
    v->result->file_bytes = size / SL_SECTOR_BYTES * SL_SECTOR_BYTES; /* what a full disk cut short is not read */
    return judge_superblocks(v, err);
}

static size_t memory_bytes(const sl_verify *v)
{
    return v->n_slots * v->slice_bytes + 2 * sl_verify_record_bytes(v);
}

/* Many large reads in flight, as far as there is memory for them. */
static sl_status take_slots(sl_verify *v, sl_err *err)
{
    v->n_slots = SL_VERIFY_MAX_SLOTS;
    v->slice_bytes = SL_VERIFY_SLICE_BYTES;
    uint64_t room = sl_budget_left(v->o->budget) / 2;
    while (v->n_slots > SL_VERIFY_LEAST_SLOTS && v->n_slots * v->slice_bytes > room)
        v->n_slots /= 2;
    while (v->slice_bytes > SL_VERIFY_LEAST_SLICE_BYTES && v->n_slots * v->slice_bytes > room)
        v->slice_bytes /= 2;
    size_t bytes = memory_bytes(v);
    sl_status status = sl_mem_map(v->o->budget, bytes, "what is verified", &v->memory, err);
    if (status != SL_OK)
        return status;
    const sl_queue_options options = {.vfs = v->d->vfs,
                                      .file = v->d->file,
                                      .name = v->d->path,
                                      .memory = v->memory,
                                      .memory_bytes = bytes,
                                      .depth = v->n_slots + 2,
                                      .budget = v->o->budget,
                                      .log = v->o->log};
    return sl_queue_create(&options, &v->queue, err);
}

static sl_status take_memory(sl_verify *v, sl_err *err)
{
    sl_budget *budget = v->o->budget;
    v->geom = &v->d->superblock.geom;
    sl_status status = sl_hash_create(budget, &v->hash, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, (size_t)v->d->layout.commit_bytes, "commit record", &v->commit_buf, err);
    v->n_segments = (v->result->file_bytes - v->d->layout.data_off) / v->d->layout.stride;
    v->picks_bytes = (size_t)(v->n_segments + 1) * sizeof *v->picks;
    if (status == SL_OK)
        status = sl_mem_map(budget, v->picks_bytes, "copies of the records", &v->picks, err);
    return status == SL_OK ? take_slots(v, err) : status;
}

static void give_memory(sl_verify *v)
{
    sl_budget *budget = v->o->budget;
    sl_queue_destroy(v->queue);
    sl_mem_unmap(budget, v->memory, v->memory ? memory_bytes(v) : 0);
    sl_mem_unmap(budget, v->picks, v->picks ? v->picks_bytes : 0);
    sl_mem_unmap(budget, v->commit_buf, v->commit_buf ? (size_t)v->d->layout.commit_bytes : 0);
    sl_hash_destroy(budget, v->hash);
    if (!v->o->opened)
        sl_durable_close(v->d);
}

static sl_status open_file(sl_verify *v, sl_err *err)
{
    if (v->o->opened) {
        v->d = v->o->opened;
        int64_t size = v->d->vfs->size(v->d->file);
        v->result->file_bytes = size > 0 ? (uint64_t)size : 0;
        return size > 0 ? SL_OK : sl_err_set(err, SL_FAILED, "%s: its size cannot be had", v->d->path);
    }
    const sl_durable_options options = {.vfs = v->o->vfs,
                                        .path = v->o->path,
                                        .force_buffered = v->o->force_buffered,
                                        .budget = v->o->budget,
                                        .log = v->o->log};
    sl_status status = sl_durable_new(&options, &v->d, err);
    if (status == SL_OK)
        status = sl_durable_open_file(v->d, &v->result->file_bytes, err);
    return status == SL_OK ? sl_durable_load_superblock(v->d, v->result->file_bytes, err) : status;
}

static sl_status run(sl_verify *v, sl_err *err)
{
    sl_status status = open_file(v, err);
    if (status == SL_OK)
        status = take_memory(v, err);
    if (status == SL_OK)
        status = start(v, err);
    if (status == SL_OK)
        status = read_and_judge(v, err);
    if (status != SL_OK)
        return status;
    uint64_t n_tokens = v->result->n_tokens, intended = v->commit.intended_tokens;
    v->result->intended_tokens = intended > n_tokens ? intended : n_tokens;
    return v->result->n_damaged == 0 ? SL_OK
                                     : sl_err_set(err, SL_DAMAGED, "%s: %" PRIu64 " damaged %s", v->d->path,
                                                  v->result->n_damaged, v->result->n_damaged == 1 ? "place" : "places");
}

sl_status sl_durable_verify(const sl_verify_options *options, sl_verify_result *out, sl_err *err)
{
    sl_verify *v = NULL;
    *out = (sl_verify_result){0};
    sl_status status = sl_mem_new(options->budget, 1, sizeof *v, "verification", &v, err);
    if (status != SL_OK)
        return status;
    v->o = options;
    v->result = out;
    status = run(v, err);
    give_memory(v);
    sl_mem_free(options->budget, v);
    return status;
}
