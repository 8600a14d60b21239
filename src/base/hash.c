#include "base/hash.h"

sl_status sl_hash_create(sl_budget *budget, XXH3_state_t **out, sl_err *err)
{
    *out = NULL;
    sl_status status = sl_budget_take(budget, SL_HASH_STATE_BYTES, "running checksum", err);
    if (status != SL_OK)
        return status;
    *out = XXH3_createState();
    if (!*out) {
        sl_budget_give(budget, SL_HASH_STATE_BYTES);
        return sl_err_set(err, SL_FAILED, "out of memory: a running checksum needs %d bytes", (int)SL_HASH_STATE_BYTES);
    }
    (void)XXH3_64bits_reset(*out);
    return SL_OK;
}

void sl_hash_destroy(sl_budget *budget, XXH3_state_t *state)
{
    if (!state)
        return;
    XXH3_freeState(state);
    sl_budget_give(budget, SL_HASH_STATE_BYTES);
}
