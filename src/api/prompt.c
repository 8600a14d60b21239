/* Text and tokens: tokenising, prompts. */
#include <inttypes.h>
#include <string.h>

#include "api/chat.h"

/* ------------------------------------------------------------------------------------------------------- tokenising */

static sl_status encode(sl_engine *engine, const char *text, size_t size, bool special, sl_tokens *out,
                        uint64_t *n_dropped, sl_err *err)
{
    sl_ids ids = {out->ids, out->n, out->cap};
    sl_status status = sl_tok_encode(engine->tok, text, size, special, &ids, n_dropped, err);
    *out = (sl_tokens){ids.ids, ids.n, ids.cap};
    return status;
}

sl_status sl_engine_tokenize(sl_engine *engine, const char *text, size_t size, bool special, sl_tokens *out,
                             uint64_t *n_dropped, sl_err *err)
{
    return encode(engine, text, size, special, out, n_dropped, err);
}

sl_status sl_engine_detokenize(const sl_engine *engine, const int32_t *ids, size_t n, bool special,
                               bool (*take)(void *arg, const char *bytes, size_t size), void *arg, sl_err *err)
{
    for (size_t i = 0; i < n; i++) {
        sl_tok_text bytes = sl_tok_bytes(engine->tok, ids[i], special);
        if (bytes.size > 0 && !take(arg, bytes.data, bytes.size))
            return sl_err_set(err, SL_CANCELLED, "interrupted");
    }
    return SL_OK;
}

void sl_tokens_free(sl_engine *engine, sl_tokens *tokens)
{
    sl_ids ids = {tokens->ids, tokens->n, tokens->cap};
    sl_ids_deinit(&ids, &engine->budget);
    *tokens = (sl_tokens){0};
}

/* ---------------------------------------------------------------------------------------------------------- prompts */

/* Named before anything is put in front of it. */
static sl_status check_text(const char *what, const char *text, size_t size, sl_err *err)
{
    size_t good = sl_utf8_check(text, size);
    if (good == size)
        return SL_OK;
    return sl_err_set(err, SL_FAILED, "the %s is not UTF-8: byte 0x%02x at offset %zu", what,
                      (unsigned)(unsigned char)text[good], good);
}

/* The blank line belongs to the question. */
static sl_status encode_question(sl_engine *engine, const sl_prompt *prompt, bool has_gap, sl_tokens *out,
                                 uint64_t *n_dropped, sl_err *err)
{
    size_t gap = has_gap ? 2 : 0;
    char *text = NULL;
    sl_status status = sl_mem_new(&engine->budget, prompt->question_size + gap + 1, 1, "question", &text, err);
    if (status != SL_OK)
        return status;
    memcpy(text, "\n\n", gap);
    memcpy(text + gap, prompt->question, prompt->question_size);
    status = encode(engine, text, prompt->question_size + gap, false, out, n_dropped, err);
    sl_mem_free(&engine->budget, text);
    return status;
}

/* Nothing when id < 0. */
static sl_status add_id(sl_engine *engine, int32_t id, sl_tokens *out, sl_err *err)
{
    if (id < 0)
        return SL_OK;
    sl_ids ids = {out->ids, out->n, out->cap};
    sl_status status = sl_ids_push(&ids, id, &engine->budget, err);
    *out = (sl_tokens){ids.ids, ids.n, ids.cap};
    return status;
}

/* What stands before the user's text; *has_text: some of it is stored already. */
static sl_status begin(sl_engine *engine, const sl_prompt *prompt, const sl_chat *chat, sl_tokens *out, bool *has_text,
                       sl_err *err)
{
    *has_text = prompt->stored && !prompt->chat;
    if (!prompt->chat)
        return prompt->stored ? SL_OK : add_id(engine, sl_tok_bos(engine->tok), out, err);
    if (prompt->stored && !prompt->stored_ids && prompt->n_stored > 0)
        return sl_err_set(err, SL_USAGE, "prompt: %zu stored tokens, but no list of them", prompt->n_stored);
    sl_chat_place place = {SL_CHAT_PART_HEAD, 0};
    sl_status status = SL_OK;
    if (prompt->stored)
        status = sl_chat_find(engine, chat, prompt->stored_ids, prompt->n_stored, NULL, &place, err);
    if (status == SL_OK)
        status = sl_chat_open_user(engine, chat, place, out, err);
    *has_text = place.part == SL_CHAT_PART_USER && place.done > 0;
    return status;
}

static sl_status write_prompt(sl_engine *engine, const sl_prompt *prompt, const sl_chat *chat, sl_tokens *out,
                              uint64_t *n_dropped, sl_err *err)
{
    bool has_text = false;
    sl_status status = begin(engine, prompt, chat, out, &has_text, err);
    size_t before = out->n;
    if (status == SL_OK && prompt->document)
        status = encode(engine, prompt->document, prompt->document_size, false, out, n_dropped, err);
    if (status == SL_OK && prompt->question_size > 0)
        status = encode_question(engine, prompt, has_text || prompt->document, out, n_dropped, err);
    if (status == SL_OK && out->n == before)
        status = sl_err_set(err, SL_USAGE, "the prompt is empty after tokenising");
    for (size_t i = 0; status == SL_OK && !prompt->open && i < chat->ask.n; i++)
        status = add_id(engine, chat->ask.ids[i], out, err);
    if (status == SL_OK && prompt->whole && engine->add_eos)
        status = add_id(engine, sl_tok_eos(engine->tok), out, err);
    return status;
}

sl_status sl_engine_prompt(sl_engine *engine, const sl_prompt *prompt, sl_tokens *out, sl_err *err)
{
    sl_chat chat = {0};
    uint64_t n_dropped = 0;
    sl_status status = prompt->chat ? sl_chat_init(engine, &chat, &n_dropped, err) : SL_OK;
    if (status == SL_OK && prompt->document)
        status = check_text("document", prompt->document, prompt->document_size, err);
    if (status == SL_OK && prompt->question)
        status = check_text("question", prompt->question, prompt->question_size, err);
    if (status == SL_OK)
        status = write_prompt(engine, prompt, &chat, out, &n_dropped, err);
    sl_chat_deinit(engine, &chat);
    if (status == SL_OK && n_dropped > 0)
        sl_log_write(&engine->log, SL_LOG_LEVEL_WARNING,
                     "%" PRIu64 " bytes of the text are not in the model's vocabulary and were dropped", n_dropped);
    return status;
}

sl_status sl_engine_chat_questions(sl_engine *engine, const int32_t *ids, size_t n, size_t *offs, size_t cap,
                                   size_t *n_questions, sl_err *err)
{
    sl_chat chat = {0};
    sl_chat_turns turns = {.offs = offs, .cap = cap};
    sl_chat_place place;
    sl_status status = sl_chat_init(engine, &chat, NULL, err);
    if (status == SL_OK)
        status = sl_chat_find(engine, &chat, ids, n, &turns, &place, err);
    sl_chat_deinit(engine, &chat);
    *n_questions = status == SL_OK ? turns.n : 0;
    return status;
}
