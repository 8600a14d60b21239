/* Text and tokens: tokenising, prompts. */
#include <inttypes.h>
#include <string.h>

#include "api/chat.h"

/* ------------------------------------------------------------------------------------------------------- tokenising */

enum { BEHIND_NOTHING = -1, BEHIND_TEXT = -2 }; /* instead of the id that a text stands behind */
enum { PIECE_BYTES = 1 << 16 }; /* of a text: what encoding needs beside it and its ids is a few of these */

/* A text begins behind nothing or a control token, else it goes on; behind a control token a space in front is taken
 * for the tokenizer's own. behind: what stands before out, where out is empty. */
static sl_status encode(sl_engine *engine, int32_t behind, sl_tok_text text, bool special, sl_tokens *out,
                        uint64_t *n_dropped, sl_err *err)
{
    sl_ids ids = {out->ids, out->n, out->cap};
    int32_t last = out->n > 0 ? out->ids[out->n - 1] : behind;
    bool begins = last == BEHIND_NOTHING ||
                  (sl_tok_is_control(engine->tok, last) && text.size > 0 && text.data[0] != ' ');
    sl_tok_feed feed;
    sl_status status = SL_OK;
    sl_tok_feed_start(&feed, engine->tok, !begins, special);
    for (size_t at = 0, n; at < text.size && status == SL_OK; at += n) {
        n = text.size - at < PIECE_BYTES ? text.size - at : PIECE_BYTES;
        status = sl_tok_feed_put(&feed, text.data + at, n, &ids, err);
    }
    if (status == SL_OK)
        status = sl_tok_feed_end(&feed, &ids, err);
    if (status == SL_OK && n_dropped)
        *n_dropped += feed.n_dropped;
    sl_tok_feed_deinit(&feed);
    *out = (sl_tokens){ids.ids, status == SL_OK ? ids.n : out->n, ids.cap};
    return status;
}

sl_status sl_engine_tokenize(sl_engine *engine, const char *text, size_t size, bool special, sl_tokens *out,
                             uint64_t *n_dropped, sl_err *err)
{
    return encode(engine, BEHIND_NOTHING, (sl_tok_text){text, size}, special, out, n_dropped, err);
}

sl_status sl_engine_detokenize(const sl_engine *engine, const int32_t *ids, size_t n, bool special,
                               bool (*take)(void *arg, const char *bytes, size_t size), void *arg, sl_err *err)
{
    for (size_t i = 0; i < n; i++) {
        sl_tok_text bytes = sl_tok_bytes_behind(engine->tok, i == 0 ? -1 : ids[i - 1], ids[i], special);
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

sl_status sl_tokens_add(sl_engine *engine, const int32_t *ids, size_t n, sl_tokens *out, sl_err *err)
{
    sl_ids list = {out->ids, out->n, out->cap};
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < n; i++)
        status = sl_ids_push(&list, ids[i], &engine->budget, err);
    *out = (sl_tokens){list.ids, list.n, list.cap};
    return status;
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

/* The user message that the prompt's text belongs to. */
typedef struct message {
    bool has_text;     /* some of it is stored already */
    const char *front; /* what the template has in front of its beginning */
    bool trims_front;  /* white space there goes */
    int32_t behind;    /* the last stored token, or what stands for it */
    uint64_t *n_dropped;
} message;

/* What goes in front - a blank line, the template's space - is part of the text. */
static sl_status encode_behind(sl_engine *engine, const message *m, const char *front, sl_tok_text text,
                               sl_tokens *out, sl_err *err)
{
    size_t size = strlen(front);
    uint64_t *n_dropped = m->n_dropped;
    if (size == 0)
        return encode(engine, m->behind, text, false, out, n_dropped, err);
    char *copy = NULL;
    sl_status status = sl_mem_new(&engine->budget, text.size + size, 1, "question", &copy, err);
    if (status != SL_OK)
        return status;
    memcpy(copy, front, size);
    memcpy(copy + size, text.data, text.size);
    status = encode(engine, m->behind, (sl_tok_text){copy, text.size + size}, false, out, n_dropped, err);
    sl_mem_free(&engine->budget, copy);
    return status;
}

/* Nothing when id < 0. */
static sl_status add_id(sl_engine *engine, int32_t id, sl_tokens *out, sl_err *err)
{
    return id < 0 ? SL_OK : sl_tokens_add(engine, &id, 1, out, err);
}

/* What stands before the user's text. */
static sl_status begin(sl_engine *engine, const sl_prompt *prompt, const sl_chat *chat, sl_tokens *out, message *m,
                       sl_err *err)
{
    m->has_text = prompt->stored && !prompt->chat;
    m->behind = !prompt->stored ? BEHIND_NOTHING : BEHIND_TEXT;
    if (prompt->stored && prompt->stored_ids)
        m->behind = prompt->n_stored > 0 ? prompt->stored_ids[prompt->n_stored - 1] : BEHIND_NOTHING;
    if (!prompt->chat)
        return prompt->stored ? SL_OK : add_id(engine, sl_tok_bos(engine->tok), out, err);
    size_t n = prompt->stored ? prompt->n_stored : 0;
    if (prompt->stored && !prompt->stored_ids && n > 0)
        return sl_err_set(err, SL_USAGE, "prompt: %zu stored tokens, but no list of them", n);
    if (n > 0 && prompt->system && !sl_chat_has_head(chat, prompt->stored_ids, n))
        return sl_err_set(err, SL_REFUSED, "the stored conversation begins with another system message, or with none");
    sl_chat_place place = {SL_CHAT_PART_HEAD, 0};
    sl_status status = SL_OK;
    if (prompt->stored)
        status = sl_chat_find(engine, chat, prompt->stored_ids, n, NULL, &place, err);
    if (status == SL_OK)
        status = sl_chat_open_user(engine, chat, place, out, err);
    bool is_first = place.part == SL_CHAT_PART_HEAD ||
                    (place.part == SL_CHAT_PART_USER && place.done == 0 && n == chat->head.n);
    bool is_joined = is_first && chat->is_joined;
    m->has_text = place.part == SL_CHAT_PART_USER && place.done > 0;
    m->front = m->has_text || is_joined ? "" : chat->lead;
    m->trims_front = !m->has_text && (chat->family->strips || (chat->family->trims && !(is_joined && chat->lead[0])));
    return status;
}

static sl_status write_text(sl_engine *engine, const sl_prompt *prompt, const sl_chat *chat, const message *m,
                            sl_tokens *out, sl_err *err)
{
    sl_tok_text document = {prompt->document, prompt->document ? prompt->document_size : 0};
    sl_tok_text question = {prompt->question, prompt->question_size};
    bool trims_end = prompt->chat && !prompt->open && chat->family->trims, has_question = question.size > 0;
    sl_status status = SL_OK;
    if (prompt->document) {
        sl_chat_trim(m->trims_front, trims_end && !has_question, &document.data, &document.size);
        status = encode_behind(engine, m, document.size > 0 ? m->front : "", document, out, err);
    }
    if (status != SL_OK || !has_question)
        return status;
    bool has_gap = m->has_text || prompt->document;
    sl_chat_trim(m->trims_front && !has_gap, trims_end, &question.data, &question.size);
    return encode_behind(engine, m, has_gap ? "\n\n" : m->front, question, out, err);
}

static sl_status write_prompt(sl_engine *engine, const sl_prompt *prompt, const sl_chat *chat, sl_tokens *out,
                              uint64_t *n_dropped, sl_err *err)
{
    message m = {.front = "", .n_dropped = n_dropped};
    sl_status status = begin(engine, prompt, chat, out, &m, err);
    size_t before = out->n;
    if (status == SL_OK)
        status = write_text(engine, prompt, chat, &m, out, err);
    if (status == SL_OK && out->n == before)
        status = sl_err_set(err, SL_USAGE, "the prompt is empty after tokenising");
    if (status == SL_OK && !prompt->open)
        status = sl_tokens_add(engine, chat->ask.ids, chat->ask.n, out, err);
    if (status == SL_OK && prompt->whole && engine->add_eos)
        status = add_id(engine, sl_tok_eos(engine->tok), out, err);
    return status;
}

static sl_status check_texts(const sl_engine *engine, const sl_prompt *prompt, const sl_chat *chat, sl_err *err)
{
    sl_status status = SL_OK;
    if (prompt->document)
        status = check_text("document", prompt->document, prompt->document_size, err);
    if (status == SL_OK && prompt->question)
        status = check_text("question", prompt->question, prompt->question_size, err);
    if (status == SL_OK && prompt->chat && prompt->document)
        status = sl_chat_check_text(engine, chat, prompt->document, prompt->document_size, err);
    if (status == SL_OK && prompt->chat && prompt->question)
        status = sl_chat_check_text(engine, chat, prompt->question, prompt->question_size, err);
    return status;
}

sl_status sl_engine_prompt(sl_engine *engine, const sl_prompt *prompt, sl_tokens *out, sl_err *err)
{
    sl_chat chat = {0};
    uint64_t n_dropped = 0;
    const sl_chat_start start = {.system = prompt->system, .system_size = prompt->system_size,
                                 .goes_on = prompt->stored && prompt->n_stored > 0};
    sl_status status = SL_OK;
    if (prompt->system && !prompt->chat)
        return sl_err_set(err, SL_USAGE, "prompt: a system message needs the chat template");
    if (prompt->system)
        status = check_text("system message", prompt->system, prompt->system_size, err);
    if (status == SL_OK && prompt->chat)
        status = sl_chat_init(engine, &start, &chat, err);
    if (status == SL_OK)
        status = check_texts(engine, prompt, &chat, err);
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
    const sl_chat_start start = {.goes_on = n > 0};
    sl_status status = sl_chat_init(engine, &start, &chat, err);
    if (status == SL_OK)
        status = sl_chat_find(engine, &chat, ids, n, &turns, &place, err);
    sl_chat_deinit(engine, &chat);
    *n_questions = status == SL_OK ? turns.n : 0;
    return status;
}
