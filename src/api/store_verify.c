/* Context files of the public API: checking one, and its text. */
#include "api/store.h"
#include "store/durable_verify.h"

static void give_damage(void *arg, const sl_damage *d)
{
    const sl_store_verify_options *o = arg;
    const sl_store_damage damage = {d->what, d->copy, d->layer, d->segment, d->off, d->bytes};
    if (o->found)
        o->found(o->arg, &damage);
}

static bool give_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    const sl_store_verify_options *o = arg;
    return !o->progress || o->progress(o->arg, done_bytes, total_bytes);
}

sl_status sl_store_verify(const sl_store_verify_options *o, sl_store_verified *out, sl_err *err)
{
    sl_budget budget;
    if (!o || !o->path || !out)
        return sl_err_set(err, SL_USAGE, "verify: options, a name and room for the result are needed");
    sl_budget_init(&budget, UINT64_MAX);
    sl_store_verify_options given = *o;
    const sl_verify_options options = {.path = o->path,
                                       .force_buffered = o->buffered,
                                       .budget = &budget,
                                       .found = give_damage,
                                       .progress = give_progress,
                                       .arg = &given};
    sl_verify_result found;
    sl_status status = sl_durable_verify(&options, &found, err);
    sl_budget_deinit(&budget);
    *out = (sl_store_verified){found.n_tokens,   found.intended_tokens, found.is_finished, found.file_bytes,
                               found.n_damaged, found.outside_bytes,   found.is_torn};
    return status;
}

sl_status sl_store_get_text(const sl_store *store, bool special,
                            bool (*take)(void *arg, const char *bytes, size_t size), void *arg, sl_err *err)
{
    const sl_identity *identity = sl_durable_identity(store->durable);
    if (!take)
        return sl_err_set(err, SL_USAGE, "a context's text needs a function that takes it");
    if (!store->engine)
        return sl_err_set(err, SL_USAGE, "a context's text needs a model's vocabulary");
    if (identity->tokenizer != store->engine->tok_fingerprint)
        return sl_err_set(err, SL_REFUSED, "%s: tokenizer %016llx, the model has %016llx",
                          sl_durable_name(store->durable), (unsigned long long)identity->tokenizer,
                          (unsigned long long)store->engine->tok_fingerprint);
    return sl_engine_detokenize(store->engine, sl_durable_ids(store->durable),
                                (size_t)sl_durable_get(store->durable).n_tokens, special, take, arg, err);
}
