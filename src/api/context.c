/* A context of the public API: plan, session, feeding, measuring. */
#include "api/context.h"

#include <inttypes.h>
#include <string.h>

#include "api/drafters.h"
#include "api/measure.h"
#include "api/plan.h"
#include "api/store.h"
#include "platform/os.h"

/* Of a context file (NULL: 0), in the page cache; -1: unknown. */
static int64_t cached_bytes(const sl_store *store)
{
    return store ? sl_durable_vfs(store->durable)->cached_bytes(sl_durable_file(store->durable)) : 0;
}

static sl_status create(sl_context *context, sl_err *err)
{
    sl_engine *engine = context->engine;
    sl_session_options session;
    sl_status status = sl_mem_new(&engine->budget, engine->hp.n_layers, sizeof *context->layers, "geometry",
                                  &context->layers, err);
    if (status == SL_OK)
        status = sl_plan_session(engine, &context->options, context->layers, &session, err);
    if (status == SL_OK)
        status = sl_plan_make(engine, &context->options, &session, &context->plan, err);
    sl_weight_share share;
    if (status == SL_OK)
        status = sl_weights_set_room(engine->weights, context->plan.weight_room_bytes, &share, err);
    if (status != SL_OK)
        return status;
    sl_weights_get_stats(engine->weights, &context->weights_before);
    const sl_io_profile *io = sl_plan_io(engine, &context->options);
    context->has_io = io != NULL;
    if (io)
        context->io = *io;
    context->cached_bytes = cached_bytes(context->options.store);
    context->options.max_drafts = context->plan.max_drafts;
    status = sl_drafters_make(engine, context->plan.drafters, &session, &context->model_drafter, err);
    sl_drafter model;
    if (context->model_drafter) {
        model = sl_model_drafter_drafter(context->model_drafter);
        session.drafters = &model;
        session.n_drafters = 1;
    }
    if (status == SL_OK)
        status = sl_session_create(&session, &context->session, err);
    if (status == SL_OK && context->options.store) {
        context->options.store->in_use = true;
        context->has_store = true;
        context->stats.stored_tokens = sl_session_n_tokens(context->session);
    }
    return status;
}

static sl_status expect_engine(const sl_engine *engine, bool is_for_plan, sl_err *err)
{
    if (engine->options.plan_only && !is_for_plan)
        return sl_err_set(err, SL_USAGE, "the engine was opened for planning only");
    if (!engine->weights)
        return sl_err_set(err, SL_USAGE, "the engine was opened for its vocabulary only");
    return SL_OK;
}

sl_status sl_context_create(sl_engine *engine, const sl_context_options *options, sl_context **out, sl_err *err)
{
    *out = NULL;
    sl_context *context = NULL;
    sl_status status = expect_engine(engine, false, err);
    if (status == SL_OK && options->keep && !options->store)
        status = sl_err_set(err, SL_USAGE, "a context is kept in a file, and there is none");
    if (status == SL_OK)
        status = sl_mem_new(&engine->budget, 1, sizeof *context, "context", &context, err);
    if (status != SL_OK)
        return status;
    context->engine = engine;
    context->options = *options;
    status = create(context, err);
    context->options.kv_dir = NULL; /* borrowed for the call */
    if (status != SL_OK) {
        sl_context_destroy(context);
        return status;
    }
    *out = context;
    return SL_OK;
}

void sl_context_destroy(sl_context *context)
{
    if (!context)
        return;
    sl_budget *budget = &context->engine->budget;
    sl_session_destroy(context->session);
    sl_model_drafter_destroy(context->model_drafter);
    if (context->has_store)
        context->options.store->in_use = false;
    sl_mem_free(budget, context->layers);
    sl_mem_free(budget, context);
}

void sl_context_get_plan(const sl_context *context, sl_plan *out)
{
    *out = context->plan;
}

void sl_context_estimate(const sl_context *context, size_t rows, sl_estimate *out)
{
    sl_context_options o = context->options;
    o.store_tokens = context->stats.stored_tokens; /* the file may have grown since */
    sl_plan_estimate(context->engine, &o, &context->plan, context->has_io ? &context->io : NULL,
                     rows ? rows : o.max_drafts + 1, out);
}

sl_status sl_engine_plan(sl_engine *engine, const sl_context_options *options, size_t rows, sl_plan *plan,
                         sl_estimate *estimate, sl_err *err)
{
    memset(plan, 0, sizeof *plan);
    if (estimate)
        memset(estimate, 0, sizeof *estimate);
    sl_kv_layer *layers = NULL;
    sl_session_options session;
    sl_status status = expect_engine(engine, true, err);
    if (status == SL_OK && (rows < 1 || rows > 256))
        status = sl_err_set(err, SL_USAGE, "rows are %zu, expected 1 to 256", rows);
    if (status == SL_OK)
        status = sl_mem_new(&engine->budget, engine->hp.n_layers, sizeof *layers, "geometry", &layers, err);
    if (status == SL_OK)
        status = sl_plan_session(engine, options, layers, &session, err);
    if (status != SL_OK) {
        sl_mem_free(&engine->budget, layers);
        return status;
    }
    sl_status planned = sl_plan_make(engine, options, &session, plan, err);
    sl_mem_free(&engine->budget, layers);
    if (!estimate || (planned != SL_OK && planned != SL_REFUSED))
        return planned;
    /* Too little memory to measure in: the times stay unknown, the sizes do not. */
    status = sl_engine_measure(engine, session.kv.geom.type, NULL);
    if (status != SL_OK && status != SL_REFUSED)
        return sl_err_set(err, status, "kernels cannot be measured: out of memory");
    sl_plan_estimate(engine, options, plan, sl_plan_io(engine, options), rows, estimate);
    return planned;
}

/* --------------------------------------------------------------------------------------------------- order of calls */

sl_status sl_context_expect(const sl_context *context, unsigned states, const char *what, sl_err *err)
{
    static const char *const names[] = {"fresh", "fed", "drawn from", "finished", "broken by an earlier error"};
    if (states >> context->state & 1)
        return SL_OK;
    return sl_err_set(err, SL_USAGE, "%s: the context is %s", what, names[context->state]);
}

bool sl_context_talks(const sl_context *context)
{
    return context->options.talk || context->options.keep;
}

sl_context_state sl_context_state_after(const sl_context *context, sl_status status)
{
    const sl_session *session = context->session;
    if ((status != SL_OK && !context->options.talk) || !sl_session_is_whole(session))
        return SL_CONTEXT_STATE_BROKEN;
    if (sl_session_has_logits(session))
        return SL_CONTEXT_STATE_FED;
    bool is_fresh = sl_session_n_tokens(session) == 0;
    return is_fresh ? SL_CONTEXT_STATE_FRESH : SL_CONTEXT_STATE_DRAWN;
}

enum {
    FRESH = 1 << SL_CONTEXT_STATE_FRESH,
    FED = 1 << SL_CONTEXT_STATE_FED,
    DRAWN = 1 << SL_CONTEXT_STATE_DRAWN,
    NOT_OVER = FRESH | FED | DRAWN
};

/* ---------------------------------------------------------------------------------------------------------- prefill */

static sl_status check_ids(const sl_context *context, const int32_t *ids, size_t n, sl_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= context->engine->hp.n_vocab)
            return sl_err_set(err, SL_USAGE, "token %zu has id %" PRId32 ", expected 0 to %" PRIu32, i, ids[i],
                              context->engine->hp.n_vocab - 1);
    return SL_OK;
}

static uint64_t passes_of(const sl_context *context)
{
    sl_kv_stats kv;
    sl_kv_get_stats(sl_session_kv(context->session), &kv);
    return kv.n_passes;
}

sl_status sl_context_feed_watched(sl_context *context, const int32_t *ids, size_t n, const sl_feed_watch *watch,
                                  sl_err *err)
{
    const uint64_t n_passes = passes_of(context);
    const double start = sl_os_seconds();
    sl_status status = check_ids(context, ids, n, err);
    if (status != SL_OK)
        return status;
    status = sl_session_feed(context->session, ids, n, watch, err);
    context->stats.prefill_s += sl_os_seconds() - start;
    context->stats.n_windows += (size_t)(passes_of(context) - n_passes);
    if (status == SL_OK)
        context->stats.prompt_tokens += n;
    context->state = sl_context_state_after(context, status);
    return status;
}

sl_status sl_context_feed(sl_context *context, const int32_t *ids, size_t n,
                          void (*progress)(void *arg, size_t done_tokens, size_t total_tokens), void *arg, sl_err *err)
{
    const sl_feed_watch watch = {.progress = progress, .arg = arg};
    sl_status status = sl_context_expect(context, sl_context_talks(context) ? NOT_OVER : FRESH | FED, "feed", err);
    if (status == SL_OK && n == 0)
        status = sl_err_set(err, SL_USAGE, "no tokens to read");
    return status == SL_OK ? sl_context_feed_watched(context, ids, n, &watch, err) : status;
}

sl_status sl_context_settle(sl_context *context, sl_err *err)
{
    const sl_feed_watch watch = {.progress = NULL};
    sl_status status = sl_context_expect(context, sl_context_talks(context) ? NOT_OVER : 0, "settle", err);
    return status == SL_OK ? sl_context_feed_watched(context, NULL, 0, &watch, err) : status;
}

sl_status sl_context_rewind(sl_context *context, size_t n_tokens, sl_err *err)
{
    sl_status status = sl_context_expect(context, context->options.talk ? NOT_OVER : 0, "rewind", err);
    const size_t n = sl_session_n_tokens(context->session);
    if (status == SL_OK && (n_tokens < 1 || n_tokens > n))
        status = sl_err_set(err, SL_USAGE, "rewind to %zu tokens, expected 1 to %zu", n_tokens, n);
    if (status != SL_OK)
        return status;
    status = sl_session_rewind(context->session, n_tokens, err);
    context->state = sl_context_state_after(context, status);
    return status;
}

size_t sl_context_n_tokens(const sl_context *context)
{
    return sl_session_n_tokens(context->session);
}

size_t sl_context_n_stored(const sl_context *context)
{
    return sl_session_n_stored(context->session);
}

const int32_t *sl_context_ids(const sl_context *context)
{
    return sl_session_ids(context->session);
}

sl_status sl_context_keep(sl_context *context, const int32_t *ids, size_t n,
                          void (*progress)(void *arg, size_t done_tokens, size_t total_tokens), void *arg, sl_err *err)
{
    const sl_feed_watch watch = {.progress = progress, .arg = arg};
    sl_status status = sl_context_expect(context, NOT_OVER, "keep", err);
    if (status == SL_OK && !context->options.keep)
        status = sl_err_set(err, SL_USAGE, "keep: the context was not made for it");
    if (status == SL_OK)
        status = check_ids(context, ids, n, err);
    if (status != SL_OK)
        return status;
    const uint64_t n_passes = passes_of(context);
    const double start = sl_os_seconds();
    status = sl_session_keep(context->session, ids, n, &watch, err);
    context->stats.prefill_s += sl_os_seconds() - start;
    context->stats.prompt_tokens += status == SL_OK ? n : 0;
    context->stats.n_windows += (size_t)(passes_of(context) - n_passes);
    context->stats.n_commits = (size_t)sl_durable_get(context->options.store->durable).n_commits;
    context->state = status == SL_OK ? SL_CONTEXT_STATE_DONE : SL_CONTEXT_STATE_BROKEN;
    return status;
}

/* ---------------------------------------------------------------------------------------------------- measuring */

/* What this context's reading and writing has left in the page cache, of `now` bytes that are there; a context file may
 * have been there before. */
static int64_t cache_growth(const sl_context *context, int64_t now)
{
    const int64_t before = context->cached_bytes;
    if (now < 0 || before < 0)
        return -1;
    return now > before ? now - before : 0;
}

void sl_context_get_stats(const sl_context *context, sl_stats *out)
{
    sl_kv_stats kv;
    sl_kv_get_stats(sl_session_kv(context->session), &kv);
    *out = context->stats;
    sl_weights_stats weights;
    sl_weights_get_stats(context->engine->weights, &weights);
    out->weight_bytes_read = weights.bytes_read - context->weights_before.bytes_read;
    out->weight_wait_s = weights.wait_s - context->weights_before.wait_s;
    out->wait_s = kv.wait_s;
    out->read_s = kv.read_s;
    out->write_s = kv.write_s;
    out->compute_s = out->prefill_s + out->decode_s - kv.wait_s - kv.write_s - out->weight_wait_s;
    /* the last layer has what all have */
    out->kv_bytes = sl_kv_tokens(sl_session_kv(context->session), context->engine->hp.n_layers - 1) *
                    context->plan.kv_token_bytes;
    /* tails too, where nothing went to a file */
    bool is_on_flash = kv.bytes_written > 0 || context->has_store;
    out->resident_bytes = is_on_flash ? kv.bytes_resident : out->kv_bytes;
    out->bytes_read = kv.bytes_read;
    out->bytes_written = kv.bytes_written;
    out->bytes_visited = kv.bytes_visited;
    out->peak_rss_bytes = sl_os_peak_rss_bytes();
    out->page_cache_growth_bytes = cache_growth(context, kv.page_cache_bytes);
    out->io_mode = kv.io_mode;
    out->io_engine = kv.io_engine ? kv.io_engine : "none";
    out->read_bytes = kv.read_bytes;
    out->in_flight_bytes = kv.in_flight_bytes;
}
