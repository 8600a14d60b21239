/* What a context is asked for, checked, and a session's options made of it: all but what the budget decides. */
#include "api/plan_impl.h"

#include <stdlib.h>

#include "api/drafters.h"
#include "api/measure.h"
#include "api/store.h"

enum { COMMIT_SECONDS = 60 };

static sl_status check_options(const sl_context_options *o, sl_err *err)
{
    enum { MAX_WINDOW = 1 << 20 };
    if (o->window_tokens % SL_TILE != 0 || o->window_tokens > MAX_WINDOW)
        return sl_err_set(err, SL_USAGE, "window is %zu tokens, expected a multiple of %d up to %d", o->window_tokens,
                          SL_TILE, MAX_WINDOW);
    if (o->cache != SL_CACHE_Q8_0 && o->cache != SL_CACHE_F16)
        return sl_err_set(err, SL_USAGE, "cache type is %d, expected SL_CACHE_Q8_0 or SL_CACHE_F16", (int)o->cache);
    if ((unsigned)o->io > SL_IO_BUFFERED)
        return sl_err_set(err, SL_USAGE, "io is %d, expected SL_IO_AUTO to SL_IO_BUFFERED", (int)o->io);
    if (o->max_drafts > 255)
        return sl_err_set(err, SL_USAGE, "drafts are %zu, expected 0 to 255", o->max_drafts);
    if (!(o->commit_seconds >= 0.0 && o->commit_seconds <= 1e6))
        return sl_err_set(err, SL_USAGE, "%g seconds between commits, expected 0 to 1000000", o->commit_seconds);
    if (o->keep && (o->talk || o->store_tokens > 0))
        return sl_err_set(err, SL_USAGE, "a context that is kept in its file takes all of it and is not taken back");
    size_t all = o->prompt_tokens + o->predict_tokens;
    if (all < o->prompt_tokens || all > (size_t)1 << 40)
        return sl_err_set(err, SL_USAGE, "%zu prompt tokens and %zu more are beyond what can be counted",
                          o->prompt_tokens, o->predict_tokens);
    return SL_OK;
}

size_t sl_plan_stored_tokens(const sl_context_options *o)
{
    if (!o->store)
        return 0;
    return o->store_tokens > 0 ? o->store_tokens : (size_t)sl_durable_get(o->store->durable).n_tokens;
}

/* Whether feeds follow an answer: then windows and bursts share one piece of memory to the end. */
static bool talks(const sl_context_options *o)
{
    return o->talk || (o->keep && o->predict_tokens > 0);
}

/* Tokens of the context: all that was asked for, or what the trained context leaves of the answer; of a talk, which is
 * fed as it goes, what it leaves of all that may come. */
static sl_status choose_context(const sl_engine *engine, const sl_context_options *o, size_t *n_context, sl_err *err)
{
    const size_t trained = (size_t)sl_rope_trained_tokens(engine, o);
    size_t fed = sl_plan_stored_tokens(o) + o->prompt_tokens, all = fed + o->predict_tokens;
    bool is_free = o->force_context || engine->options.plan_only;
    *n_context = is_free || all <= trained ? all : trained;
    if (o->talk)
        fed = sl_plan_stored_tokens(o) + 1;
    if (fed <= *n_context)
        return sl_rope_check_length(engine, o, n_context, fed, err);
    return sl_err_set(err, SL_REFUSED,
                      "the prompt has %zu tokens, the model was trained for %zu (--rope-scale stretches positions, "
                      "--force-context goes on regardless)",
                      fed, *n_context);
}

/* Where what is fed ends and the answer begins; of a talk nobody knows, nor is there an answer to what is scored. */
static size_t answer_from(const sl_context_options *o, size_t n_context)
{
    size_t fed = sl_plan_stored_tokens(o) + o->prompt_tokens;
    return talks(o) || o->predict_tokens == 0 || fed > n_context ? n_context : fed;
}

/* What an ephemeral context drops. A talk takes back a window that was stopped, and what was said lately without
 * computing anything again; nothing else is ever taken back. */
static sl_slide slide_of(const sl_context_options *o)
{
    enum { LATELY_TOKENS = 4096 };
    size_t window = o->window_tokens > SL_PLAN_TALK_ROWS ? o->window_tokens : (size_t)SL_PLAN_TALK_ROWS;
    return (sl_slide){.drops = !o->keep, .back_tokens = o->talk ? window + LATELY_TOKENS : 0, .has_points = o->talk};
}

const char *sl_plan_kv_dir(const sl_context_options *options)
{
    if (options->kv_dir)
        return options->kv_dir;
    const char *from_env = getenv("SLUICE_KV_DIR");
    return from_env && *from_env ? from_env : "/var/tmp";
}

sl_status sl_plan_session(sl_engine *engine, const sl_context_options *o, sl_kv_layer *layers, sl_session_options *out,
                          sl_err *err)
{
    size_t n_context = 0;
    sl_status status = check_options(o, err);
    if (status == SL_OK)
        status = sl_rope_check(engine, o, err);
    if (status == SL_OK)
        status = sl_drafters_check(engine, o, err);
    if (status == SL_OK && o->store)
        status = sl_store_check(engine, o, err);
    if (status == SL_OK)
        status = choose_context(engine, o, &n_context, err);
    if (status == SL_OK && o->keep && o->store)
        status = sl_store_expect_room(o->store, n_context, err);
    if (status != SL_OK)
        return status;
    const unsigned drafters = sl_drafters_wanted(engine, o, n_context);
    for (uint32_t i = 0; i < engine->hp.n_layers; i++)
        layers[i] = sl_hparams_kv_layer(&engine->hp, i);
    *out = (sl_session_options){
        .weights = engine->weights,
        .weight_bytes = engine->work.weight_bytes,
        .kernels = &engine->kernels,
        .pool = engine->pool,
        .budget = &engine->budget,
        .kv = {.geom = {o->cache == SL_CACHE_F16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, engine->hp.n_layers, layers},
               .dir = sl_plan_kv_dir(o),
               .allow_ram_dir = o->allow_ram_dir,
               .force_buffered = o->io == SL_IO_BUFFERED,
               .max_tokens = n_context,
               .answer_from = answer_from(o, n_context),
               .slide = slide_of(o),
               .read_rate = o->read_rate,
               .io_engine = sl_engine_io_of(o->io),
               .durable = o->store ? o->store->durable : NULL,
               .durable_tokens = o->store_tokens,
               .keep = o->keep,
               .trace = engine->trace,
               .budget = &engine->budget,
               .log = engine->log},
        .max_tokens = n_context,
        .max_drafts = o->max_drafts,
        .trees = o->max_drafts > 0 && !o->no_trees,
        .rope = sl_engine_rope(engine, o),
        .commit_s = o->commit_seconds > 0.0 ? o->commit_seconds : COMMIT_SECONDS,
        .commit_tokens = o->commit_tokens > 0 ? o->commit_tokens : SL_SEGMENT_TOKENS,
        .will_decode = o->predict_tokens > 0,
        .talks = talks(o),
        .ngram = (drafters & SL_DRAFT_WITH_NGRAM) != 0,
        .hot_tokens = drafters & SL_DRAFT_WITH_SELF ? sl_drafters_hot_tokens(o, n_context) : 0,
        .stop = o->stop,
        .arg = o->arg,
    };
    return sl_geom_check(&out->kv.geom, err);
}
