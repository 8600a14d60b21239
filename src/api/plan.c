/* The plan as a whole: options, budget, disk; and the estimate of what was planned. */
#include "api/plan_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/measure.h"
#include "platform/os.h"
#include "platform/vfs.h"

static const uint64_t probe_from_bytes = UINT64_C(1) << 30; /* of the cache on flash: two seconds are then little */

static sl_status check_uring(const sl_vfs *vfs, sl_file *file, const char *dir, sl_err *err)
{
    const sl_aio_options options = {.file = file, .depth = 1};
    sl_aio *aio = NULL;
    int register_refused = 0, failed = vfs->aio_open ? vfs->aio_open(vfs, &options, &aio, &register_refused) : -ENOSYS;
    if (failed != 0)
        return sl_err_set_errno(err, SL_REFUSED, -failed, "%s: io_uring cannot be had here", dir);
    vfs->aio_close(aio);
    return SL_OK;
}

/* Before hours of work: the folder takes an unnamed file, keeps it on a disk, and has the room. A folder that was named
 * must be right even when nothing will be written. */
static sl_status check_disk(sl_plan *plan, const sl_context_options *options, const sl_kv_options *kv, sl_err *err)
{
    const char *from_env = getenv("SLUICE_KV_DIR");
    if (plan->disk_bytes == 0 && !options->kv_dir && !(from_env && *from_env)) {
        if (sl_os_disk_free(kv->dir, &plan->disk_free_bytes, NULL) != SL_OK)
            plan->disk_free_bytes = UINT64_MAX;
        return SL_OK;
    }
    const sl_vfs *vfs = sl_vfs_system();
    sl_file *file = NULL;
    bool is_direct = false;
    sl_status status = vfs->open_temp(vfs, kv->dir, true, kv->allow_ram_dir, &file, &is_direct, err);
    if (status == SL_FAILED && err)
        err->status = SL_REFUSED;
    if (status != SL_OK)
        return status == SL_FAILED ? SL_REFUSED : status;
    if (options->io == SL_IO_URING)
        status = check_uring(vfs, file, kv->dir, err);
    vfs->close(file);
    if (status != SL_OK)
        return status;
    status = sl_os_disk_free(kv->dir, &plan->disk_free_bytes, err);
    if (status == SL_OK && plan->disk_free_bytes < plan->disk_bytes)
        status = sl_err_set(err, SL_REFUSED, "%s: %" PRIu64 " bytes are free, the cache needs %" PRIu64, kv->dir,
                            plan->disk_free_bytes, plan->disk_bytes);
    return status;
}

const sl_io_profile *sl_plan_io(sl_engine *engine, const sl_context_options *options)
{
    return options->io == SL_IO_BUFFERED ? NULL : sl_engine_find_io(engine, sl_plan_kv_dir(options));
}

static sl_status decide(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                        sl_plan *plan, sl_err *err)
{
    const sl_io_profile *io = sl_plan_io(engine, options);
    session->kv.read_bytes = io ? io->read_bytes : 0;
    session->kv.in_flight_bytes = io ? sl_io_profile_flight(io) : 0;
    sl_status status = sl_plan_spend(engine, options, session, plan, err);
    if (status == SL_OK)
        return check_disk(plan, options, &session->kv, err);
    if (sl_os_disk_free(session->kv.dir, &plan->disk_free_bytes, NULL) != SL_OK)
        plan->disk_free_bytes = 0;
    return status;
}

static bool wants_probe(sl_engine *engine, const sl_context_options *options, const sl_plan *plan)
{
    bool is_known = sl_plan_io(engine, options) != NULL;
    if (options->io == SL_IO_BUFFERED || engine->io.was_probed)
        return false;
    bool is_worth = plan->disk_bytes + plan->weight_pass_bytes > (engine->options.plan_only ? 0 : probe_from_bytes);
    return options->io_probe || (!is_known && is_worth);
}

sl_status sl_plan_make(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       sl_plan *plan, sl_err *err)
{
    sl_status status = decide(engine, options, session, plan, err);
    if (status != SL_OK || !wants_probe(engine, options, plan))
        return status;
    status = sl_engine_probe_io(engine, options, session->kv.dir, err);
    return status == SL_OK ? decide(engine, options, session, plan, err) : status;
}

void sl_plan_estimate(const sl_engine *engine, const sl_context_options *options, const sl_plan *plan,
                      const sl_io_profile *io, size_t rows, sl_estimate *out)
{
    const sl_estimate_input in = {
        .hp = &engine->hp,
        .work = &engine->work,
        .plan = plan,
        .rates = &engine->rates,
        .io = io,
        .type = options->cache == SL_CACHE_F16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0,
        .prompt_tokens = options->prompt_tokens,
        .rows = rows,
        .read_rate = options->read_rate,
        .all_logits = options->all_logits,
        .stored_tokens = sl_plan_stored_tokens(options),
        .keeps = options->keep,
    };
    sl_estimate_make(&in, out);
    out->disk_remembered = io && !engine->io.was_probed;
}
