/* A context file in place of another: taking over what both have, and the name at the end. */
#include <string.h>

#include "api/store.h"
#include "platform/os.h"

sl_status sl_store_share(sl_store *to, const sl_store_share_options *o, sl_store_shared *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    sl_durable_state from = sl_durable_get(o->from->durable), have = sl_durable_get(to->durable);
    uint64_t n_tokens = o->n_tokens < from.n_tokens ? o->n_tokens : from.n_tokens;
    uint64_t n_segments = n_tokens / SL_SEGMENT_TOKENS;
    if (have.is_finished || have.n_tokens % SL_SEGMENT_TOKENS != 0 || n_segments <= have.n_tokens / SL_SEGMENT_TOKENS)
        return SL_OK;
    const sl_durable_watch watch = {o->progress, o->arg};
    sl_durable_cloned cloned = {0};
    sl_status status = sl_durable_clone(to->durable, o->from->durable, n_segments, &watch, &cloned, err);
    out->n_tokens = sl_durable_get(to->durable).n_tokens - have.n_tokens;
    out->shared_bytes = cloned.shared_bytes;
    out->copied_bytes = cloned.copied_bytes;
    return status;
}

sl_status sl_store_rename(sl_store *store, const char *path, sl_err *err)
{
    if (!sl_durable_get(store->durable).is_finished)
        return sl_err_set(err, SL_USAGE, "%s: unfinished, it takes no other's name", sl_durable_name(store->durable));
    return sl_os_rename(sl_durable_name(store->durable), path, err);
}
