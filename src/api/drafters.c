#include "api/drafters.h"

enum {
    HOT_TOKENS = 4096,   /* where nobody says */
    SELF_FROM_TOKENS = 4 /* times the hot set: a shorter context is walked about as fast whole */
};

sl_status sl_drafters_check(const sl_engine *engine, const sl_context_options *o, sl_err *err)
{
    const unsigned all = SL_DRAFT_WITH_NGRAM | SL_DRAFT_WITH_SELF | SL_DRAFT_WITH_MODEL;
    enum { MOST_HOT = 1 << 20 };
    if (o->drafters & ~all)
        return sl_err_set(err, SL_USAGE, "drafters are %#x, expected SL_DRAFT_WITH_NGRAM, _SELF and _MODEL alone",
                          o->drafters);
    if ((o->drafters & SL_DRAFT_WITH_MODEL) && !engine->draft.weights)
        return sl_err_set(err, SL_USAGE, "a draft model is asked for, and the engine was opened without one");
    if (o->hot_tokens > MOST_HOT)
        return sl_err_set(err, SL_USAGE, "hot set of %zu tokens, expected at most %d", o->hot_tokens, MOST_HOT);
    if (o->hot_tokens > 0 && o->drafters != 0 && !(o->drafters & SL_DRAFT_WITH_SELF))
        return sl_err_set(err, SL_USAGE, "a hot set is asked for, and the self drafter, which it is for, is not");
    return SL_OK;
}

size_t sl_drafters_hot_tokens(const sl_context_options *o, size_t max_tokens)
{
    const size_t wanted = o->hot_tokens > 0 ? o->hot_tokens : HOT_TOKENS;
    if (o->drafters & SL_DRAFT_WITH_SELF)
        return wanted < max_tokens ? wanted : max_tokens;
    const size_t most = o->hot_tokens > 0 ? wanted : max_tokens / SELF_FROM_TOKENS;
    const size_t hot = wanted < most ? wanted : most;
    return hot >= SL_LEAST_HOT_TOKENS || o->hot_tokens > 0 ? hot : 0;
}

unsigned sl_drafters_wanted(const sl_engine *engine, const sl_context_options *o, size_t max_tokens)
{
    if (o->max_drafts == 0)
        return 0;
    if (o->drafters != 0)
        return o->drafters;
    const unsigned model = engine->draft.weights ? SL_DRAFT_WITH_MODEL : 0;
    const unsigned self = sl_drafters_hot_tokens(o, max_tokens) > 0 ? SL_DRAFT_WITH_SELF : 0;
    return SL_DRAFT_WITH_NGRAM | model | self;
}

static sl_model_drafter_options model_options(sl_engine *engine, size_t max_tokens)
{
    return (sl_model_drafter_options){
        .weights = engine->draft.weights,
        .kernels = &engine->kernels,
        .pool = engine->pool,
        .budget = &engine->budget,
        .max_tokens = max_tokens + 1,
        .weight_bytes = engine->draft.map_bytes,
    };
}

uint64_t sl_drafters_bytes(sl_engine *engine, unsigned drafters, size_t max_tokens)
{
    if (!(drafters & SL_DRAFT_WITH_MODEL))
        return 0;
    const sl_model_drafter_options options = model_options(engine, max_tokens);
    return sl_model_drafter_bytes(&options);
}

/* LongRoPE's set: the model's that is drafted for, where it has such; else as for a model of its own. */
static sl_rope rope_of(const sl_weights *weights, const sl_session_options *session)
{
    sl_rope rope = weights->hp.rope;
    const sl_rope_kind of_model = session->rope.kind;
    if (rope.kind != SL_ROPE_KIND_LONG_SHORT)
        return rope;
    if (of_model == SL_ROPE_KIND_LONG_SHORT || of_model == SL_ROPE_KIND_LONG_LONG)
        rope.kind = of_model;
    else if ((double)session->max_tokens > rope.original)
        rope.kind = SL_ROPE_KIND_LONG_LONG;
    return rope;
}

sl_status sl_drafters_make(sl_engine *engine, unsigned drafters, const sl_session_options *session,
                           sl_model_drafter **out, sl_err *err)
{
    *out = NULL;
    if (!(drafters & SL_DRAFT_WITH_MODEL))
        return SL_OK;
    sl_model_drafter_options options = model_options(engine, session->max_tokens);
    options.dir = session->kv.dir;
    options.rope = rope_of(options.weights, session);
    options.stop = session->stop;
    options.arg = session->arg;
    return sl_model_drafter_create(&options, out, err);
}
