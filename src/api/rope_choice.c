/* The rule of rotary positions of a context: the model's, as the options change it. */
#include "api/store.h"

/* LongRoPE: the long set for texts that may pass the original length. A file's context goes on with its own. */
static sl_rope_kind choose_set(const sl_engine *engine, const sl_context_options *o)
{
    if (o->rope.set != SL_ROPE_SET_AUTO)
        return o->rope.set == SL_ROPE_SET_LONG ? SL_ROPE_KIND_LONG_LONG : SL_ROPE_KIND_LONG_SHORT;
    if (o->store)
        return sl_durable_identity(o->store->durable)->rope_kind == SL_ROPE_KIND_LONG_LONG ? SL_ROPE_KIND_LONG_LONG
                                                                                            : SL_ROPE_KIND_LONG_SHORT;
    double all = (double)o->prompt_tokens + (double)o->predict_tokens;
    return all > engine->hp.rope.original ? SL_ROPE_KIND_LONG_LONG : SL_ROPE_KIND_LONG_SHORT;
}

static void put(double value, double *out)
{
    if (value != 0.0)
        *out = value;
}

sl_rope sl_engine_rope(const sl_engine *engine, const sl_context_options *o)
{
    static const sl_rope_kind kinds[] = {
        [SL_ROPE_SCALING_NONE] = SL_ROPE_KIND_LINEAR,
        [SL_ROPE_SCALING_LINEAR] = SL_ROPE_KIND_LINEAR,
        [SL_ROPE_SCALING_YARN] = SL_ROPE_KIND_YARN,
        [SL_ROPE_SCALING_LLAMA3] = SL_ROPE_KIND_LLAMA3,
    };
    sl_rope rope = engine->hp.rope;
    if (o->rope.scaling != SL_ROPE_SCALING_MODEL) {
        if (rope.kind == SL_ROPE_KIND_LONG_SHORT)
            rope.magnitude = 1.0; /* LongRoPE's own */
        rope.kind = kinds[o->rope.scaling];
    } else if (rope.kind == SL_ROPE_KIND_LONG_SHORT) {
        rope.kind = choose_set(engine, o);
    }
    put(o->rope_scale, &rope.factor);
    if (o->rope.scaling == SL_ROPE_SCALING_NONE)
        rope.factor = 1.0;
    put(o->rope.base, &rope.base);
    put(o->rope.original, &rope.original);
    put(o->rope.yarn_extrapolate, &rope.extrapolate);
    put(o->rope.yarn_magnitude, &rope.magnitude);
    put(o->rope.yarn_fast, &rope.fast);
    put(o->rope.yarn_slow, &rope.slow);
    return rope;
}

sl_status sl_rope_check(const sl_engine *engine, const sl_context_options *o, sl_err *err)
{
    const struct {
        const char *name;
        double value, low, high;
    } numbers[] = {
        {"rope scale", o->rope_scale, 1.0, 1e6},          {"rope base", o->rope.base, 1.0, 1e15},
        {"original context", o->rope.original, 1.0, 1e9}, {"YaRN's ext factor", o->rope.yarn_extrapolate, 0.0, 1.0},
        {"YaRN's beta fast", o->rope.yarn_fast, 1e-3, 1e6}, {"YaRN's beta slow", o->rope.yarn_slow, 1e-3, 1e6},
        {"YaRN's attn factor", o->rope.yarn_magnitude, 1e-3, 1e3},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value != 0.0 && !(numbers[i].value >= numbers[i].low && numbers[i].value <= numbers[i].high))
            return sl_err_set(err, SL_USAGE, "%s is %g, expected %g to %g", numbers[i].name, numbers[i].value,
                              numbers[i].low, numbers[i].high);
    if ((unsigned)o->rope.scaling > SL_ROPE_SCALING_LLAMA3 || (unsigned)o->rope.set > SL_ROPE_SET_LONG)
        return sl_err_set(err, SL_USAGE, "rope scaling is %d, set %d: unknown", (int)o->rope.scaling, (int)o->rope.set);
    const sl_rope rope = sl_engine_rope(engine, o);
    if (rope.slow > rope.fast)
        return sl_err_set(err, SL_USAGE, "YaRN's beta slow is %g, more than its beta fast, %g", rope.slow, rope.fast);
    const bool is_long = rope.kind == SL_ROPE_KIND_LONG_SHORT || rope.kind == SL_ROPE_KIND_LONG_LONG;
    if (is_long && o->rope_scale > 1.0)
        return sl_err_set(err, SL_USAGE, "LongRoPE has no factor to set: add --rope-scaling linear or yarn");
    if (!is_long && o->rope.set != SL_ROPE_SET_AUTO)
        return sl_err_set(err, SL_USAGE, "the model has no short and long set of RoPE factors");
    return SL_OK;
}

uint64_t sl_rope_trained_tokens(const sl_engine *engine, const sl_context_options *o)
{
    const sl_rope rope = sl_engine_rope(engine, o);
    double trained = (double)engine->hp.n_ctx_train;
    if (rope.factor > engine->hp.rope.factor)
        trained *= rope.factor / engine->hp.rope.factor;
    return (uint64_t)trained;
}

sl_status sl_rope_check_length(const sl_engine *engine, const sl_context_options *o, size_t *n_context, size_t fed,
                               sl_err *err)
{
    const sl_rope rope = sl_engine_rope(engine, o);
    if (rope.kind != SL_ROPE_KIND_LONG_SHORT || (double)*n_context <= rope.original)
        return SL_OK;
    *n_context = (size_t)rope.original;
    if (fed <= *n_context)
        return SL_OK;
    return sl_err_set(err, SL_REFUSED,
                      "%zu tokens are more than the %zu that the short set of RoPE factors serves: prefill again with "
                      "--rope-set long",
                      fed, *n_context);
}

void sl_rope_options_of(const sl_identity *identity, sl_context_options *out)
{
    static const sl_rope_scaling scalings[] = {
        [SL_ROPE_KIND_LINEAR] = SL_ROPE_SCALING_LINEAR,
        [SL_ROPE_KIND_YARN] = SL_ROPE_SCALING_YARN,
        [SL_ROPE_KIND_LLAMA3] = SL_ROPE_SCALING_LLAMA3,
    };
    out->rope.base = identity->rope_base;
    out->rope_scale = identity->rope_scale;
    out->rope.original = identity->rope_numbers[0];
    out->rope.yarn_magnitude = identity->rope_numbers[1];
    out->rope.yarn_fast = identity->rope_numbers[2];
    out->rope.yarn_slow = identity->rope_numbers[3];
    out->rope.yarn_extrapolate = identity->rope_numbers[4];
    if (identity->rope_kind <= SL_ROPE_KIND_LLAMA3)
        out->rope.scaling = scalings[identity->rope_kind];
    else
        out->rope.set = identity->rope_kind == SL_ROPE_KIND_LONG_LONG ? SL_ROPE_SET_LONG : SL_ROPE_SET_SHORT;
}
