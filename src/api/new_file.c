#include "api/new_file.h"

#include "platform/os.h"

bool sl_new_file_step(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    const sl_new_file *f = arg;
    (void)total_bytes;
    return !f->progress || f->progress(f->arg, f->before_bytes + done_bytes, f->total_bytes);
}

sl_status sl_new_file_expect_name(const char *path, sl_err *err)
{
    return sl_os_is_taken(path) ? sl_err_set(err, SL_REFUSED, "%s: exists already", path) : SL_OK;
}

sl_status sl_new_file_open_kv(sl_new_file *f, uint64_t n_tokens, sl_budget *budget, sl_err *err)
{
    /* Nothing goes to the folder: all of it is kept. */
    const sl_kv_options options = {.geom = *sl_durable_geom(f->durable), .dir = ".", .max_tokens = n_tokens,
                                   .durable = f->durable, .keep = true, .budget = budget};
    return sl_kv_create(&options, &f->kv, err);
}

sl_status sl_new_file_end(sl_new_file *f, const int32_t *ids, uint64_t n_tokens, sl_err *err)
{
    sl_status status = sl_kv_commit(f->kv, ids, n_tokens, err);
    if (status == SL_OK)
        status = sl_kv_finish(f->kv, err);
    return status == SL_OK ? sl_durable_publish(f->durable, false, err) : status;
}

void sl_new_file_close(sl_new_file *f)
{
    sl_kv_destroy(f->kv);
    sl_durable_close(f->durable);
}
