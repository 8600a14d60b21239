/* A context that goes on, as it is now, in a file of its own. */
#include "api/context.h"
#include "api/new_file.h"
#include "api/store.h"

uint64_t sl_store_save_bytes(const sl_geom *geom, uint64_t max_tokens)
{
    return sl_durable_bytes(geom, max_tokens) + sl_kv_table_bytes(geom, max_tokens) + sl_geom_max_part_bytes(geom);
}

/* A conversation over a file is of the file's kind; else of what the options say. */
static sl_status create_saved(const sl_context *context, const char *path, uint64_t n_tokens, sl_new_file *f,
                              sl_err *err)
{
    sl_engine *engine = context->engine;
    const sl_context_options *o = &context->options;
    const sl_durable_options options = {.path = path, .for_writing = true, .name_last = true,
                                        .force_buffered = o->io == SL_IO_BUFFERED, .allow_ram = o->allow_ram_dir,
                                        .max_tokens = n_tokens, .budget = &engine->budget, .log = engine->log};
    sl_identity identity;
    if (o->store)
        identity = *sl_durable_identity(o->store->durable);
    else
        sl_store_identity(engine, o, &identity);
    const sl_geom geom = sl_store_geom(engine, o, context->layers);
    return sl_durable_create(&options, &identity, &geom, &f->durable, err);
}

typedef struct saving {
    sl_new_file *f;
    sl_kv *from;
    uint64_t first_bytes, first; /* of the tokens before the copying began: of the file, and how many */
} saving;

static sl_status copy_window(void *arg, size_t n_stored, sl_err *err)
{
    const saving *s = arg;
    sl_new_file *f = s->f;
    const sl_durable_watch watch = {sl_new_file_step, f};
    uint64_t there = sl_kv_tokens(f->kv, 0);
    if (n_stored <= there)
        return SL_OK;
    f->before_bytes = s->first_bytes + (there - s->first) * sl_geom_token_bytes(sl_durable_geom(f->durable));
    return sl_kv_copy(f->kv, s->from, n_stored, &watch, err);
}

/* A file holds everything, this context of its sliding layers what rows can see: the text is computed again, and copied
 * window by window. */
static sl_status copy_again(sl_context *context, sl_new_file *f, uint64_t n_shared_tokens, sl_err *err)
{
    saving s = {f, sl_session_kv(context->session), f->before_bytes, n_shared_tokens};
    const sl_feed_watch watch = {.stored = copy_window, .arg = &s};
    sl_status status = sl_session_unstore(context->session, (size_t)n_shared_tokens, err);
    return status == SL_OK ? sl_context_feed_watched(context, NULL, 0, &watch, err) : status;
}

static sl_status save(sl_context *context, const char *path, sl_new_file *f, sl_err *err)
{
    sl_kv *kv = sl_session_kv(context->session);
    const sl_durable *base = context->options.store ? context->options.store->durable : NULL;
    const sl_durable_watch watch = {sl_new_file_step, f};
    uint64_t n_tokens = sl_session_n_stored(context->session);
    uint64_t n_shared = base ? sl_kv_base_tokens(kv) / SL_SEGMENT_TOKENS : 0;
    sl_durable_cloned cloned = {0, 0};
    sl_status status = create_saved(context, path, n_tokens, f, err);
    if (status != SL_OK)
        return status;
    uint64_t shared_bytes = n_shared * sl_durable_layout(f->durable)->blocks_bytes;
    f->total_bytes = shared_bytes + (n_tokens - n_shared * SL_SEGMENT_TOKENS) *
                                        sl_geom_token_bytes(sl_durable_geom(f->durable));
    if (n_shared > 0)
        status = sl_durable_clone(f->durable, base, n_shared, &watch, &cloned, err);
    f->before_bytes = shared_bytes;
    if (status == SL_OK)
        status = sl_new_file_open_kv(f, n_tokens, &context->engine->budget, err);
    if (status == SL_OK && !sl_kv_has_all(kv, n_shared * SL_SEGMENT_TOKENS))
        status = copy_again(context, f, n_shared * SL_SEGMENT_TOKENS, err);
    else if (status == SL_OK)
        status = sl_kv_copy(f->kv, kv, n_tokens, &watch, err);
    return status == SL_OK ? sl_new_file_end(f, sl_session_ids(context->session), n_tokens, err) : status;
}

sl_status sl_context_save(sl_context *context, const char *path,
                          bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes), void *arg,
                          sl_err *err)
{
    enum { OPEN = 1 << SL_CONTEXT_STATE_FRESH | 1 << SL_CONTEXT_STATE_FED | 1 << SL_CONTEXT_STATE_DRAWN };
    sl_status status = path ? sl_context_expect(context, OPEN, "save", err)
                            : sl_err_set(err, SL_USAGE, "save: a name is needed");
    if (status == SL_OK && context->options.keep)
        status = sl_err_set(err, SL_USAGE, "a context that is kept in its file is not saved in another");
    if (status == SL_OK && sl_session_n_tokens(context->session) == 0)
        status = sl_err_set(err, SL_USAGE, "%s: the context has no tokens to save", path);
    if (status == SL_OK)
        status = sl_new_file_expect_name(path, err);
    if (status == SL_OK && sl_session_n_stored(context->session) < sl_session_n_tokens(context->session))
        status = sl_context_settle(context, err);
    if (status != SL_OK)
        return status;
    sl_new_file f = {.progress = progress, .arg = arg};
    status = save(context, path, &f, err);
    sl_new_file_close(&f);
    return status;
}
