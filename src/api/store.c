/* Context files of the public API: making, opening, looking inside. */
#include "api/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "platform/os.h"

void sl_store_identity(const sl_engine *engine, const sl_context_options *o, sl_identity *out)
{
    const sl_hparams *hp = &engine->hp;
    memset(out, 0, sizeof *out);
    out->arithmetic_version = SL_ARITHMETIC_VERSION;
    out->flags = o->store_chat ? SL_FORMAT_FLAG_CHAT : 0;
    out->tokenizer = engine->tok_fingerprint;
    const sl_rope rope = sl_engine_rope(engine, o);
    out->rope_kind = rope.kind;
    out->rope_dims = rope.dims;
    out->rope_base = rope.base;
    out->rope_scale = rope.factor;
    out->n_vocab = hp->n_vocab;
    out->attn_scale = hp->attn_scale;
    out->softcap = hp->attn_softcap;
    if (engine->weights) {
        out->model[0] = engine->weights->fingerprint[0];
        out->model[1] = engine->weights->fingerprint[1];
        out->rope_factors = sl_rope_hash(&rope, sl_weights_rope_divisors(engine->weights, rope.kind));
    }
    const double numbers[SL_FORMAT_ROPE_NUMBERS] = {rope.original, rope.magnitude, rope.fast, rope.slow,
                                                    rope.extrapolate};
    if (!sl_rope_is_plain(&rope))
        memcpy(out->rope_numbers, numbers, sizeof numbers);
    /* For people: the file's name without its folders. */
    const char *slash = strrchr(engine->path, '/'), *name = slash ? slash + 1 : engine->path;
    strncpy(out->name, name, SL_FORMAT_NAME_BYTES);
}

static const char *rope_name(const sl_identity *identity)
{
    const bool is_none = identity->rope_kind == SL_ROPE_KIND_LINEAR && identity->rope_scale == 1.0;
    return is_none ? "none" : sl_rope_kind_name((sl_rope_kind)identity->rope_kind);
}

/* Where nothing that is compared before it differs: in names. */
static sl_status match_rope(const sl_store *store, const sl_identity *wanted, sl_err *err)
{
    const sl_identity *stored = sl_durable_identity(store->durable);
    if (stored->arithmetic_version != wanted->arithmetic_version || stored->n_vocab != wanted->n_vocab ||
        stored->rope_kind == wanted->rope_kind)
        return SL_OK;
    return sl_err_set(err, SL_REFUSED, "%s: it was made with RoPE rule '%s', this run has '%s': prefill again with "
                      "this run's RoPE options, or leave them out", sl_durable_name(store->durable), rope_name(stored),
                      rope_name(wanted));
}

sl_status sl_store_match(const sl_store *store, const sl_context_options *o, sl_err *err)
{
    sl_identity wanted;
    sl_err why;
    if (!store->engine)
        return sl_err_set(err, SL_USAGE, "%s: opened for looking only", sl_durable_name(store->durable));
    sl_context_options with_file = *o;
    with_file.store = (sl_store *)(uintptr_t)store;
    sl_store_identity(store->engine, &with_file, &wanted);
    const sl_identity *stored = sl_durable_identity(store->durable);
    if (memcmp(stored->model, wanted.model, sizeof wanted.model) != 0) {
        /* Another model: its own RoPE, not the file's, tells best what differs. */
        const sl_context_options plain = {.store_chat = o->store_chat};
        sl_store_identity(store->engine, &plain, &wanted);
    }
    sl_status status = match_rope(store, &wanted, err);
    if (status != SL_OK)
        return status;
    status = sl_identity_compare(stored, &wanted, &why);
    if (status != SL_OK)
        return sl_err_set(err, status, "%s: %s", sl_durable_name(store->durable), why.text);
    sl_kv_type type = o->cache == SL_CACHE_F16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0;
    const char *const types[] = {"f16", "q8_0"};
    const sl_kv_type stored_type = sl_durable_geom(store->durable)->type;
    if (stored_type != type)
        return sl_err_set(err, SL_REFUSED, "%s: it holds %s, %s was asked for", sl_durable_name(store->durable),
                          types[stored_type], types[type]);
    return SL_OK;
}

sl_status sl_store_check(const sl_engine *engine, const sl_context_options *o, sl_err *err)
{
    const sl_store *store = o->store;
    if (store->engine != engine)
        return sl_err_set(err, SL_USAGE, "%s: opened for another engine", sl_durable_name(store->durable));
    if (store->in_use)
        return sl_err_set(err, SL_USAGE, "%s: another context has it", sl_durable_name(store->durable));
    const uint64_t n_tokens = sl_durable_get(store->durable).n_tokens;
    if (o->store_tokens > n_tokens)
        return sl_err_set(err, SL_REFUSED, "%s: it holds %" PRIu64 " tokens, %zu were asked for",
                          sl_durable_name(store->durable), n_tokens, o->store_tokens);
    return sl_store_match(store, o, err);
}

sl_status sl_store_expect_room(const sl_store *store, size_t n_tokens, sl_err *err)
{
    sl_durable_state state = sl_durable_get(store->durable);
    if (!state.is_for_writing)
        return sl_err_set(err, SL_USAGE, "%s: not opened for writing", sl_durable_name(store->durable));
    if (n_tokens > state.max_tokens)
        return sl_err_set(err, SL_USAGE, "%s: opened for %" PRIu64 " tokens, %zu are planned",
                          sl_durable_name(store->durable), state.max_tokens, n_tokens);
    return SL_OK;
}

static sl_status new_store(sl_engine *engine, sl_store **out, sl_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sl_err_set(err, SL_FAILED, "out of memory: context file");
    (*out)->engine = engine;
    sl_budget_init(&(*out)->budget, UINT64_MAX);
    return SL_OK;
}

static sl_durable_options durable_options(sl_store *store, const char *path, uint64_t max_tokens)
{
    sl_durable_options options = {.path = path, .max_tokens = max_tokens, .budget = &store->budget};
    if (store->engine) {
        options.budget = &store->engine->budget;
        options.log = store->engine->log;
    }
    return options;
}

bool sl_store_is_named(const char *path, const sl_os_file *before)
{
    sl_os_file now;
    return sl_os_look(path, &now) && sl_os_is_same(before, &now);
}

/* While a writer waits for the lock, the name may go to another file (sl_store_rename): that one is meant then, and
 * the one that was opened has no name any more. */
static sl_status open_durable(const sl_durable_options *options, sl_durable **out, sl_err *err)
{
    enum { TRIES = 4 };
    for (int i = 0; i < TRIES; i++) {
        sl_os_file before;
        bool was_there = sl_os_look(options->path, &before);
        sl_status status = sl_durable_open(options, out, err);
        if (status != SL_OK || !options->for_writing)
            return status;
        if (was_there && sl_store_is_named(options->path, &before))
            return SL_OK;
        sl_durable_close(*out);
        *out = NULL;
    }
    return sl_err_set(err, SL_REFUSED, "%s: its name keeps going to other files", options->path);
}

sl_status sl_store_open(sl_engine *engine, const sl_store_options *o, sl_store **out, sl_err *err)
{
    sl_store *store = NULL;
    *out = NULL;
    if (!o || !o->path)
        return sl_err_set(err, SL_USAGE, "open: the name of a context file is needed");
    sl_status status = new_store(engine, &store, err);
    if (status != SL_OK)
        return status;
    sl_durable_options options = durable_options(store, o->path, o->max_tokens);
    options.for_writing = o->for_writing;
    options.more_tokens = o->more_tokens;
    options.force_buffered = o->buffered;
    status = open_durable(&options, &store->durable, err);
    if (status != SL_OK) {
        sl_store_close(store);
        return status;
    }
    *out = store;
    return SL_OK;
}

sl_kv_layer *sl_store_layers(sl_engine *engine, sl_err *err)
{
    sl_kv_layer *layers = NULL;
    if (sl_mem_new(&engine->budget, engine->hp.n_layers, sizeof *layers, "geometry", &layers, err) != SL_OK)
        return NULL;
    for (uint32_t i = 0; i < engine->hp.n_layers; i++)
        layers[i] = sl_hparams_kv_layer(&engine->hp, i);
    return layers;
}

sl_geom sl_store_geom(const sl_engine *engine, const sl_context_options *o, const sl_kv_layer *layers)
{
    return (sl_geom){o->cache == SL_CACHE_F16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, engine->hp.n_layers, layers};
}

sl_status sl_store_create(sl_engine *engine, const char *path, const sl_context_options *o, sl_store **out, sl_err *err)
{
    sl_store *store = NULL;
    *out = NULL;
    if (!engine->weights || engine->options.plan_only)
        return sl_err_set(err, SL_USAGE, "a context file is made with a model that is loaded");
    sl_status status = new_store(engine, &store, err);
    sl_kv_layer *layers = status == SL_OK ? sl_store_layers(engine, err) : NULL;
    if (status == SL_OK && !layers)
        status = SL_FAILED;
    const sl_geom geom = sl_store_geom(engine, o, layers);
    if (status == SL_OK) {
        sl_identity identity;
        sl_store_identity(engine, o, &identity);
        sl_durable_options options = durable_options(store, path, o->prompt_tokens + o->predict_tokens);
        options.for_writing = true;
        options.force_buffered = o->io == SL_IO_BUFFERED;
        options.allow_ram = o->allow_ram_dir;
        status = sl_durable_create(&options, &identity, &geom, &store->durable, err);
    }
    sl_mem_free(&engine->budget, layers);
    if (status != SL_OK) {
        sl_store_close(store);
        return status;
    }
    *out = store;
    return SL_OK;
}

void sl_store_close(sl_store *store)
{
    if (!store)
        return;
    sl_durable_close(store->durable);
    sl_budget_deinit(&store->budget);
    free(store);
}

void sl_store_get_info(const sl_store *store, sl_store_info *out)
{
    sl_durable_state state = sl_durable_get(store->durable);
    const sl_identity *identity = sl_durable_identity(store->durable);
    const sl_geom *geom = sl_durable_geom(store->durable);
    sl_context_options rope = {0};
    sl_rope_options_of(identity, &rope);
    *out = (sl_store_info){
        .n_tokens = state.n_tokens,
        .intended_tokens = state.intended_tokens,
        .is_finished = state.is_finished,
        .is_chat = (identity->flags & SL_FORMAT_FLAG_CHAT) != 0,
        .cache = geom->type == SL_KV_TYPE_F16 ? SL_CACHE_F16 : SL_CACHE_Q8_0,
        .n_layers = geom->n_layers,
        .n_kv_heads = geom->layers[0].n_kv_heads,
        .head_dim = geom->layers[0].head_dim,
        .n_vocab = identity->n_vocab,
        .token_bytes = sl_geom_token_bytes(geom),
        .arithmetic_version = identity->arithmetic_version,
        .format_version = SL_FORMAT_VERSION,
        .model_name = identity->name,
        .model = {identity->model[0], identity->model[1]},
        .tokenizer = identity->tokenizer,
        .rope_base = identity->rope_base,
        .rope_scale = identity->rope_scale,
        .rope_dims = identity->rope_dims,
        .rope_kind = sl_rope_kind_name((sl_rope_kind)identity->rope_kind),
        .rope = rope.rope,
        .ids = sl_durable_ids(store->durable),
        .note = state.note,
    };
}

sl_store_layer sl_store_get_layer(const sl_store *store, uint32_t layer)
{
    const sl_geom *geom = sl_durable_geom(store->durable);
    if (layer >= geom->n_layers)
        return (sl_store_layer){0, 0};
    return (sl_store_layer){geom->layers[layer].n_kv_heads, geom->layers[layer].head_dim};
}
