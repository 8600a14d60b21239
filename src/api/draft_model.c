#include "api/draft_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/weight_stream.h"

/* -------------------------------------------------------------------------------------------------- the vocabulary */

static sl_status find_tokens(const sl_gguf *gguf, const sl_gguf_value **out, sl_err *err)
{
    static const char key[] = "tokenizer.ggml.tokens";
    *out = sl_gguf_find(gguf, key);
    if (!*out || (*out)->type != SL_GGUF_TYPE_ARRAY || (*out)->item_type != SL_GGUF_TYPE_STRING)
        return sl_err_set(err, SL_DAMAGED, "%s: %s is %s", sl_gguf_path(gguf), key,
                          *out ? "not an array of strings" : "missing");
    return SL_OK;
}

typedef struct spelling {
    char text[80];
} spelling;

/* As the file has it, in one line: bytes beyond printable ASCII as <0xNN>. */
static spelling spelled(sl_gguf_string token)
{
    enum { MOST_OF_BYTE = 6 };
    spelling s = {""};
    size_t n = 0;
    for (size_t i = 0; i < token.size && n + MOST_OF_BYTE < sizeof s.text; i++) {
        const unsigned byte = (unsigned char)token.data[i];
        const bool is_plain = byte >= 0x20 && byte <= 0x7e;
        n += (size_t)snprintf(s.text + n, sizeof s.text - n, is_plain ? "%c" : "<0x%02X>", byte);
    }
    return s;
}

static sl_status compare_tokens(const sl_gguf *model, const sl_gguf *draft, sl_err *err)
{
    const sl_gguf_value *of_model = NULL, *of_draft = NULL;
    sl_status status = find_tokens(model, &of_model, err);
    if (status == SL_OK)
        status = find_tokens(draft, &of_draft, err);
    if (status != SL_OK)
        return status;
    sl_gguf_iter a = sl_gguf_iter_start(of_model), b = sl_gguf_iter_start(of_draft);
    for (uint64_t id = 0;; id++) {
        sl_gguf_string here, there;
        const bool has_here = sl_gguf_iter_string(&a, &here), has_there = sl_gguf_iter_string(&b, &there);
        if (!has_here && !has_there)
            return SL_OK;
        if (!has_here || !has_there)
            return sl_err_set(err, SL_REFUSED,
                              "draft model: %s has %" PRIu64 " tokens, %s has %" PRIu64 "; token %" PRIu64
                              " is '%s' of one alone",
                              sl_gguf_path(draft), of_draft->n_items, sl_gguf_path(model), of_model->n_items, id,
                              spelled(has_here ? here : there).text);
        if (here.size != there.size || memcmp(here.data, there.data, here.size) != 0)
            return sl_err_set(err, SL_REFUSED, "draft model: token %" PRIu64 " is '%s' in %s, '%s' in %s", id,
                              spelled(there).text, sl_gguf_path(draft), spelled(here).text, sl_gguf_path(model));
    }
}

/* Where both files name them: a text ends and begins with the same tokens. */
static sl_status compare_specials(const sl_gguf *model, const sl_gguf *draft, sl_err *err)
{
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint64_t here = 0, there = 0;
        if (!sl_gguf_find(model, keys[i]) || !sl_gguf_find(draft, keys[i]))
            continue;
        sl_status status = sl_gguf_get_uint(model, keys[i], 0, UINT32_MAX, &here, err);
        if (status == SL_OK)
            status = sl_gguf_get_uint(draft, keys[i], 0, UINT32_MAX, &there, err);
        if (status == SL_OK && here != there)
            status = sl_err_set(err, SL_REFUSED, "draft model: %s is %" PRIu64 " in %s, %" PRIu64 " in %s", keys[i],
                                there, sl_gguf_path(draft), here, sl_gguf_path(model));
        if (status != SL_OK)
            return status;
    }
    return SL_OK;
}

static sl_status compare(sl_engine *engine, const sl_gguf *draft, sl_err *err)
{
    sl_gguf *model = NULL;
    sl_status status = sl_gguf_open(engine->path, &engine->budget, &model, err);
    if (status == SL_OK)
        status = compare_tokens(model, draft, err);
    if (status == SL_OK)
        status = compare_specials(model, draft, err);
    sl_gguf_close(model);
    return status;
}

/* ----------------------------------------------------------------------------------------------------- the weights */

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 20);
}

static sl_status stand_in(sl_engine *engine, const sl_hparams *hp, sl_err *err)
{
    sl_draft_model *draft = &engine->draft;
    sl_status status = sl_mem_new(&engine->budget, 1, sizeof *draft->weights, "weights", &draft->weights, err);
    if (status != SL_OK)
        return status;
    draft->weights->budget = &engine->budget;
    draft->weights->hp = *hp;
    return SL_OK;
}

/* The model's own weights leave memory for a draft model's, as far as they must and can. */
static sl_status make_room(sl_engine *engine, uint64_t bytes, sl_err *err)
{
    sl_weight_share share;
    uint64_t limit = 0, used = 0;
    if (sl_budget_left(&engine->budget) >= bytes)
        return SL_OK;
    sl_engine_memory(engine, &limit, &used);
    used -= engine->draft.map_bytes; /* counted as if it were there */
    return sl_weights_set_room(engine->weights, limit > used + bytes ? limit - used - bytes : 0, &share, err);
}

static sl_status load_weights(sl_engine *engine, const sl_gguf *gguf, const sl_hparams *hp, sl_err *err)
{
    sl_draft_model *draft = &engine->draft;
    draft->map_bytes = sl_engine_count_weights(gguf, hp);
    if (engine->options.plan_only)
        return stand_in(engine, hp, err);
    sl_status status = make_room(engine, draft->map_bytes + sl_weights_buffer_bytes(hp), err);
    const uint64_t all = engine->program_bytes + engine->budget.used_bytes + draft->map_bytes +
                         sl_weights_buffer_bytes(hp);
    if (status != SL_OK)
        return status;
    if (all > engine->ram_bytes)
        return sl_err_set(err, SL_REFUSED,
                          "memory budget of %.1f MiB is too small for a draft model: its weights of %.1f MiB make %.1f "
                          "with what is there, and the context comes on top",
                          mib(engine->ram_bytes), mib(draft->map_bytes), mib(all));
    status = sl_weights_load(gguf, &engine->budget, engine->options.progress, engine->options.arg,
                                       &draft->weights, err);
    draft->is_loaded = status == SL_OK;
    engine->load_bytes = all > engine->load_bytes ? all : engine->load_bytes;
    return status;
}

sl_status sl_draft_model_load(sl_engine *engine, sl_err *err)
{
    sl_gguf *gguf = NULL;
    sl_hparams hp;
    sl_status status = sl_gguf_open(engine->options.draft_model_path, &engine->budget, &gguf, err);
    if (status == SL_OK)
        status = compare(engine, gguf, err);
    if (status == SL_OK)
        status = sl_hparams_read(gguf, &hp, err);
    if (status == SL_OK)
        status = sl_weights_check(gguf, &hp, err);
    if (status == SL_OK && hp.n_vocab != engine->hp.n_vocab)
        status = sl_err_set(err, SL_REFUSED, "%s cannot draft for %s: it gives %" PRIu32 " logits, expected %" PRIu32,
                            engine->options.draft_model_path, engine->path, hp.n_vocab, engine->hp.n_vocab);
    if (status == SL_OK)
        status = load_weights(engine, gguf, &hp, err);
    sl_gguf_close(gguf);
    return status;
}

void sl_draft_model_unload(sl_engine *engine)
{
    sl_weights_destroy(engine->draft.weights);
    engine->draft = (sl_draft_model){.weights = NULL};
}

uint64_t sl_draft_model_bytes(const sl_engine *engine)
{
    return engine->draft.map_bytes;
}
