/* The tokenizer that a GGUF file describes, for tests. */
#ifndef TESTS_TOK_FROM_GGUF_H
#define TESTS_TOK_FROM_GGUF_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gguf/gguf.h"
#include "tok/tok.h"

typedef struct tok_gguf {
    sl_gguf_iter tokens, merges, kinds, scores;
} tok_gguf;

static inline bool tok_gguf_text(sl_gguf_iter *iter, sl_tok_text *out)
{
    sl_gguf_string text;
    if (!sl_gguf_iter_string(iter, &text))
        return false;
    *out = (sl_tok_text){text.data, text.size};
    return true;
}

static inline bool tok_gguf_token(void *arg, sl_tok_text *out)
{
    return tok_gguf_text(&((tok_gguf *)arg)->tokens, out);
}

static inline bool tok_gguf_merge(void *arg, sl_tok_text *out)
{
    return tok_gguf_text(&((tok_gguf *)arg)->merges, out);
}

static inline bool tok_gguf_kind(void *arg, int *out)
{
    double kind;
    if (!sl_gguf_iter_number(&((tok_gguf *)arg)->kinds, &kind))
        return false;
    *out = (int)kind;
    return true;
}

static inline bool tok_gguf_score(void *arg, double *out)
{
    return sl_gguf_iter_number(&((tok_gguf *)arg)->scores, out);
}

/* pattern NULL: the file's own. */
static inline sl_status tok_from_gguf(const sl_gguf *gguf, const char *pattern, sl_budget *budget, sl_tok **out,
                                      sl_err *err)
{
    const sl_gguf_value *tokens = sl_gguf_find(gguf, "tokenizer.ggml.tokens");
    const sl_gguf_value *merges = sl_gguf_find(gguf, "tokenizer.ggml.merges");
    const sl_gguf_value *kinds = sl_gguf_find(gguf, "tokenizer.ggml.token_type");
    const sl_gguf_value *scores = sl_gguf_find(gguf, "tokenizer.ggml.scores");
    sl_gguf_string model, pre;
    sl_status status = sl_gguf_get_string(gguf, "tokenizer.ggml.model", &model, err);
    if (status == SL_OK)
        status = sl_gguf_get_string(gguf, "tokenizer.ggml.pre", &pre, err);
    uint64_t bos = 0, eos = 0;
    if (status == SL_OK)
        status = sl_gguf_get_uint(gguf, "tokenizer.ggml.bos_token_id", 0, INT32_MAX, &bos, err);
    if (status == SL_OK)
        status = sl_gguf_get_uint(gguf, "tokenizer.ggml.eos_token_id", 0, INT32_MAX, &eos, err);
    if (status != SL_OK)
        return status;
    bool is_pieces = sl_tok_is_pieces((sl_tok_text){model.data, model.size});
    if (!tokens || !kinds || !(is_pieces ? scores : merges))
        return sl_err_set(err, SL_DAMAGED, "%s: no tokenizer", sl_gguf_path(gguf));
    tok_gguf items = {sl_gguf_iter_start(tokens), sl_gguf_iter_start(merges), sl_gguf_iter_start(kinds),
                      sl_gguf_iter_start(scores)};
    sl_tok_source source = {.model = {model.data, model.size},
                            .pattern = {pre.data, pre.size},
                            .n_tokens = tokens->n_items,
                            .n_merges = merges ? merges->n_items : 0,
                            .next_token = tok_gguf_token,
                            .next_merge = tok_gguf_merge,
                            .next_kind = tok_gguf_kind,
                            .next_score = is_pieces ? tok_gguf_score : NULL,
                            .arg = &items,
                            .bos_id = (int32_t)bos,
                            .eos_id = (int32_t)eos,
                            .eot_id = -1};
    if (is_pieces && sl_gguf_find(gguf, "tokenizer.ggml.add_space_prefix"))
        status = sl_gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", &source.add_space_prefix, err);
    else
        source.add_space_prefix = is_pieces;
    if (status != SL_OK)
        return status;
    if (pattern)
        source.pattern = (sl_tok_text){pattern, strlen(pattern)};
    return sl_tok_create(&source, budget, out, err);
}

/* Path of the demo model in `path`; false: it is not on this machine. */
static inline bool demo_model_find(char *path, size_t size)
{
    const char *given = getenv("SLUICE_DEMO_MODEL"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    static const char name[] = "sluice/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (given && *given)
        snprintf(path, size, "%s", given);
    else if (cache && *cache)
        snprintf(path, size, "%s/%s", cache, name);
    else
        snprintf(path, size, "%s/.cache/%s", home ? home : "", name);
    return access(path, R_OK) == 0;
}

#endif
