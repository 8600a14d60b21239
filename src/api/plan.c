#include "api/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "platform/os.h"
#include "platform/vfs.h"

enum {
    MIB = 1 << 20,
    N_SLOTS = 2,
    MAX_SLOT_BYTES = 128 << 20,
    RING_SHARE = 6,      /* of what is left for a context, the ring takes one part in so many */
    SLACK_BYTES = 64 << 10, /* alignment of a handful of mappings */
    NOISE_BYTES = 512 << 10 /* by which the program's own resident set differs from run to run */
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t bytes_with_window(sl_session_options *session, size_t rows)
{
    session->window_rows = rows;
    return sl_session_bytes(session);
}

/* The largest window that fits `room` and of which a whole number makes a segment: then windows end on segments. */
static size_t choose_window(sl_session_options *session, size_t prompt_tokens, uint64_t room)
{
    size_t most = (prompt_tokens + SL_TILE - 1) / SL_TILE * SL_TILE;
    for (size_t per_segment = 1; per_segment <= SL_SEGMENT_TOKENS / SL_TILE; per_segment++) {
        size_t rows = (SL_SEGMENT_TOKENS / SL_TILE + per_segment - 1) / per_segment * SL_TILE;
        if (rows > most)
            rows = most;
        if (bytes_with_window(session, rows) <= room)
            return rows;
    }
    return SL_TILE;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)MIB;
}

static sl_status refuse(const sl_engine *engine, const sl_plan *plan, uint64_t least, sl_err *err)
{
    return sl_err_set(err, SL_REFUSED,
                      "memory budget of %.1f MiB is too small, %" PRIu64 "M would do: program %.1f MiB, weights %.1f, "
                      "tables %.1f, ring %.1f, smallest window and burst %.1f",
                      mib(engine->ram_bytes), (least + NOISE_BYTES + MIB - 1) / MIB, mib(plan->program_bytes),
                      mib(plan->weight_bytes), mib(plan->table_bytes), mib(plan->ring_bytes),
                      mib(plan->window_bytes));
}

/* Slot size: what the caller asked for, else a share of the room; never more than the cache itself needs. */
static sl_status choose_ring(const sl_context_options *options, const sl_geom *geom, uint64_t room, uint64_t kv_bytes,
                             sl_session_options *session, sl_err *err)
{
    uint64_t part = sl_geom_max_part_bytes(geom);
    uint64_t ring = options->ring_bytes ? options->ring_bytes : min_u64(room / RING_SHARE, N_SLOTS * MAX_SLOT_BYTES);
    if (options->ring_bytes && options->ring_bytes < N_SLOTS * part)
        return sl_err_set(err, SL_REFUSED, "ring of %" PRIu64 " bytes is too small: two parts of %" PRIu64
                          " bytes are the least", options->ring_bytes, part);
    if (!options->ring_bytes)
        ring = min_u64(ring, max_u64(kv_bytes, N_SLOTS * part));
    session->kv.n_slots = N_SLOTS;
    session->kv.slot_bytes = (size_t)(max_u64(ring / N_SLOTS, part) / SL_SECTOR_BYTES * SL_SECTOR_BYTES);
    return SL_OK;
}

/* Before hours of work: the folder takes an unnamed file, keeps it on a disk, and has the room. A folder that was named
 * must be right even when nothing will be written. */
static sl_status check_disk(sl_plan *plan, const sl_context_options *options, const sl_kv_options *kv, sl_err *err)
{
    const char *from_env = getenv("SLUICE_KV_DIR");
    if (plan->disk_bytes == 0 && !options->kv_dir && !(from_env && *from_env))
        return SL_OK;
    const sl_vfs *vfs = sl_vfs_system();
    sl_file *file = NULL;
    bool is_direct = false;
    sl_status status = vfs->open_temp(vfs, kv->dir, true, kv->allow_ram_dir, &file, &is_direct, err);
    if (status == SL_FAILED && err)
        err->status = SL_REFUSED;
    if (status != SL_OK)
        return status == SL_FAILED ? SL_REFUSED : status;
    vfs->close(file);
    status = sl_os_disk_free(kv->dir, &plan->disk_free_bytes, err);
    if (status == SL_OK && plan->disk_free_bytes < plan->disk_bytes)
        status = sl_err_set(err, SL_REFUSED, "%s: %" PRIu64 " bytes are free, the cache needs %" PRIu64, kv->dir,
                            plan->disk_free_bytes, plan->disk_bytes);
    return status;
}

sl_status sl_plan_make(const sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       sl_plan *plan, sl_err *err)
{
    const sl_geom *geom = &session->kv.geom;
    uint64_t left = engine->budget.limit_bytes - engine->budget.used_bytes;
    uint64_t groups = session->max_tokens / SL_TILE, kv_bytes = 0;
    for (uint32_t layer = 0; layer < geom->n_layers; layer++)
        kv_bytes += groups * sl_geom_group_bytes(geom, layer);
    memset(plan, 0, sizeof *plan);
    plan->ram_bytes = engine->ram_bytes;
    plan->program_bytes = engine->program_bytes;
    plan->weight_bytes = engine->weights->bytes;
    plan->kv_token_bytes = sl_geom_token_bytes(geom);
    plan->kv_bytes = session->max_tokens * plan->kv_token_bytes;
    plan->max_tokens = session->max_tokens;
    plan->n_slots = N_SLOTS;

    uint64_t tables = sl_kv_table_bytes(geom, session->max_tokens) +
                      sl_sampler_bytes(session->weights->hp.n_vocab) + SLACK_BYTES +
                      options->score_best * (sizeof(int32_t) + sizeof(float));
    plan->table_bytes = engine->budget.used_bytes - engine->weights->bytes + tables;
    size_t asked_window = options->window_tokens ? options->window_tokens : SL_TILE;
    plan->window_bytes = bytes_with_window(session, asked_window);
    plan->ring_bytes = N_SLOTS * sl_geom_max_part_bytes(geom);
    uint64_t fixed = tables + plan->window_bytes;
    sl_status status = choose_ring(options, geom, left > fixed ? left - fixed : 0, kv_bytes, session, err);
    if (status != SL_OK)
        return status;
    if (options->ring_bytes)
        plan->ring_bytes = N_SLOTS * session->kv.slot_bytes;
    plan->needed_bytes = engine->ram_bytes - left + fixed + plan->ring_bytes;
    if (plan->needed_bytes > engine->ram_bytes)
        return refuse(engine, plan, plan->needed_bytes, err);
    plan->ring_bytes = N_SLOTS * session->kv.slot_bytes;

    uint64_t room = left - tables - plan->ring_bytes;
    plan->window_tokens = options->window_tokens ? options->window_tokens
                                                 : choose_window(session, options->prompt_tokens, room);
    plan->window_bytes = bytes_with_window(session, plan->window_tokens);
    plan->resident_bytes = min_u64(room - plan->window_bytes, kv_bytes);
    session->kv.resident_bytes = plan->resident_bytes;
    if (plan->resident_bytes < kv_bytes)
        plan->disk_bytes = kv_bytes + (uint64_t)geom->n_layers * SL_SECTOR_BYTES;
    return check_disk(plan, options, &session->kv, err);
}
