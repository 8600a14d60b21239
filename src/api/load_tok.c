/* The tokenizer that a model file describes (tokenizer.ggml.*). */
#include <inttypes.h>
#include <string.h>

#include "api/engine.h"

typedef struct tok_walk {
    sl_gguf_iter tokens, merges, kinds, scores;
} tok_walk;

static bool walk_string(sl_gguf_iter *iter, sl_tok_text *out)
{
    sl_gguf_string string;
    if (!sl_gguf_iter_string(iter, &string))
        return false;
    *out = (sl_tok_text){string.data, string.size};
    return true;
}

static bool walk_token(void *arg, sl_tok_text *out)
{
    return walk_string(&((tok_walk *)arg)->tokens, out);
}

static bool walk_merge(void *arg, sl_tok_text *out)
{
    return walk_string(&((tok_walk *)arg)->merges, out);
}

static bool walk_kind(void *arg, int *out)
{
    double number = 0.0;
    if (!sl_gguf_iter_number(&((tok_walk *)arg)->kinds, &number))
        return false;
    *out = number >= 0.0 && number < 100.0 ? (int)number : 0;
    return true;
}

static bool walk_score(void *arg, double *out)
{
    return sl_gguf_iter_number(&((tok_walk *)arg)->scores, out);
}

static sl_status find_array(const sl_gguf *gguf, const char *key, bool strings, const sl_gguf_value **out, sl_err *err)
{
    *out = sl_gguf_find(gguf, key);
    if (!*out)
        return sl_err_set(err, SL_DAMAGED, "%s: %s is missing", sl_gguf_path(gguf), key);
    bool is_strings = (*out)->item_type == SL_GGUF_TYPE_STRING;
    if ((*out)->type != SL_GGUF_TYPE_ARRAY || is_strings != strings)
        return sl_err_set(err, SL_DAMAGED, "%s: %s is not an array of %s", sl_gguf_path(gguf), key,
                          strings ? "strings" : "numbers");
    return SL_OK;
}

static sl_status get_text(const sl_gguf *gguf, const char *key, sl_tok_text *out, sl_err *err)
{
    *out = (sl_tok_text){NULL, 0};
    if (!sl_gguf_find(gguf, key))
        return SL_OK;
    sl_gguf_string string;
    sl_status status = sl_gguf_get_string(gguf, key, &string, err);
    if (status == SL_OK)
        *out = (sl_tok_text){string.data, string.size};
    return status;
}

static sl_status get_id(const sl_gguf *gguf, const char *key, uint64_t n_tokens, int32_t *out, sl_err *err)
{
    *out = -1;
    if (!sl_gguf_find(gguf, key))
        return SL_OK;
    uint64_t id = 0;
    sl_status status = sl_gguf_get_uint(gguf, key, 0, n_tokens - 1, &id, err);
    if (status == SL_OK)
        *out = (int32_t)id;
    return status;
}

static sl_status get_flag(const sl_gguf *gguf, const char *key, bool otherwise, bool *out, sl_err *err)
{
    *out = otherwise;
    return sl_gguf_find(gguf, key) ? sl_gguf_get_bool(gguf, key, out, err) : SL_OK;
}

static sl_status read_flags(const sl_gguf *gguf, sl_tok_source *source, sl_err *err)
{
    bool is_pieces = sl_tok_is_pieces(source->model), squeezes = false;
    sl_status status = get_flag(gguf, "tokenizer.ggml.add_bos_token",
                                sl_tok_default_bos(source->model, source->pattern), &source->add_bos, err);
    if (status == SL_OK)
        status = get_flag(gguf, "tokenizer.ggml.add_eos_token", false, &source->add_eos, err);
    if (status == SL_OK && is_pieces)
        status = get_flag(gguf, "tokenizer.ggml.add_space_prefix", true, &source->add_space_prefix, err);
    if (status == SL_OK && is_pieces)
        status = get_flag(gguf, "tokenizer.ggml.remove_extra_whitespaces", false, &squeezes, err);
    if (status == SL_OK && squeezes)
        return sl_err_set(err, SL_REFUSED,
                          "%s: tokenizer.ggml.remove_extra_whitespaces is true, which is not supported",
                          sl_gguf_path(gguf));
    return status;
}

static sl_status read_ids(const sl_gguf *gguf, sl_tok_source *source, sl_err *err)
{
    sl_status status = get_id(gguf, "tokenizer.ggml.bos_token_id", source->n_tokens, &source->bos_id, err);
    if (status == SL_OK)
        status = get_id(gguf, "tokenizer.ggml.eos_token_id", source->n_tokens, &source->eos_id, err);
    if (status == SL_OK)
        status = get_id(gguf, "tokenizer.ggml.eot_token_id", source->n_tokens, &source->eot_id, err);
    return status == SL_OK ? read_flags(gguf, source, err) : status;
}

/* As many items as tokens; NULL: the file has none. */
static sl_status find_numbers(const sl_gguf *gguf, const char *key, uint64_t n, const sl_gguf_value **out, sl_err *err)
{
    *out = NULL;
    if (!sl_gguf_find(gguf, key))
        return SL_OK;
    sl_status status = find_array(gguf, key, false, out, err);
    if (status == SL_OK && (*out)->n_items != n)
        return sl_err_set(err, SL_DAMAGED, "%s: %s has %" PRIu64 " items, expected %" PRIu64, sl_gguf_path(gguf), key,
                          (*out)->n_items, n);
    return status;
}

static sl_status start_walk(const sl_gguf *gguf, tok_walk *walk, sl_tok_source *source, sl_err *err)
{
    const sl_gguf_value *tokens = NULL, *merges = NULL, *kinds = NULL, *scores = NULL;
    bool is_pieces = sl_tok_is_pieces(source->model);
    sl_status status = find_array(gguf, "tokenizer.ggml.tokens", true, &tokens, err);
    if (status == SL_OK && !is_pieces)
        status = find_array(gguf, "tokenizer.ggml.merges", true, &merges, err);
    if (status == SL_OK)
        status = find_numbers(gguf, "tokenizer.ggml.token_type", tokens->n_items, &kinds, err);
    if (status == SL_OK && is_pieces)
        status = find_numbers(gguf, "tokenizer.ggml.scores", tokens->n_items, &scores, err);
    if (status != SL_OK)
        return status;
    uint64_t n_merges = merges ? merges->n_items : 0;
    if (tokens->n_items == 0 || tokens->n_items > (1u << 24) || n_merges > (1u << 26))
        return sl_err_set(err, SL_DAMAGED, "%s: tokenizer has %" PRIu64 " tokens and %" PRIu64 " merges",
                          sl_gguf_path(gguf), tokens->n_items, n_merges);
    source->n_tokens = (size_t)tokens->n_items;
    source->n_merges = (size_t)n_merges;
    walk->tokens = sl_gguf_iter_start(tokens);
    if (merges)
        walk->merges = sl_gguf_iter_start(merges);
    if (kinds) {
        walk->kinds = sl_gguf_iter_start(kinds);
        source->next_kind = walk_kind;
    }
    if (scores) {
        walk->scores = sl_gguf_iter_start(scores);
        source->next_score = walk_score;
    }
    return SL_OK;
}

sl_status sl_engine_load_tok(sl_engine *engine, const sl_gguf *gguf, sl_err *err)
{
    tok_walk walk;
    sl_tok_source source = {.next_token = walk_token, .next_merge = walk_merge, .arg = &walk};
    sl_status status = get_text(gguf, "tokenizer.ggml.model", &source.model, err);
    if (status == SL_OK)
        status = get_text(gguf, "tokenizer.ggml.pre", &source.pattern, err);
    bool is_bytes = source.model.size == 4 && memcmp(source.model.data, "gpt2", 4) == 0;
    if (status == SL_OK && !is_bytes && !sl_tok_is_pieces(source.model))
        return sl_err_set(err, SL_REFUSED,
                          "%s: tokenizer.ggml.model is '%.*s', which is not supported (known: gpt2, llama)",
                          engine->path, (int)(source.model.size < 64 ? source.model.size : 64),
                          source.model.data ? source.model.data : "");
    if (status == SL_OK)
        status = start_walk(gguf, &walk, &source, err);
    if (status == SL_OK)
        status = read_ids(gguf, &source, err);
    engine->add_eos = source.add_eos;
    return status == SL_OK ? sl_tok_create(&source, &engine->budget, &engine->tok, err) : status;
}
