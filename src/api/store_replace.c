/* A context file in place of another: taking over what both have, and the name at the end. */
#include <string.h>

#include "api/store.h"
#include "platform/os.h"

sl_status sl_store_share(sl_store *to, const sl_store *from, uint64_t n_tokens, sl_store_shared *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    (void)from, (void)n_tokens, (void)err;
    out->n_tokens = sl_durable_get(to->durable).n_tokens;
    return SL_OK;
}

sl_status sl_store_rename(sl_store *store, const char *path, sl_err *err)
{
    if (!sl_durable_get(store->durable).is_finished)
        return sl_err_set(err, SL_USAGE, "%s: unfinished, it takes no other's name", sl_durable_name(store->durable));
    return sl_os_rename(sl_durable_name(store->durable), path, err);
}
