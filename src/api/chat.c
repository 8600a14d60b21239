/* Chat templates: recognised, cut into pieces, found again in the tokens of a stored conversation. */
#include "api/chat.h"

#include <inttypes.h>
#include <string.h>

enum { HEAD_BYTES = 1024 };

static const char ask_text[] = "<|im_end|>\n<|im_start|>assistant\n", next_text[] = "<|im_end|>\n<|im_start|>user\n";

static const char *find_text(const char *text, const char *end, const char *what)
{
    size_t size = strlen(what);
    for (; text + size <= end; text++)
        if (memcmp(text, what, size) == 0)
            return text;
    return NULL;
}

/* The default system message that a ChatML template spells out: between "<|im_start|>system", a newline (itself, or as
 * the template language writes it: backslash n) and "<|im_end|>". Nothing when the template has none. */
static void default_system(const char *template, const char **text, size_t *size)
{
    static const char start[] = "<|im_start|>system";
    const char *end = template + strlen(template);
    const char *at = find_text(template, end, start);
    *size = 0;
    if (!at)
        return;
    at += sizeof start - 1;
    if (*at == '\n')
        at += 1;
    else if (at[0] == '\\' && at[1] == 'n')
        at += 2;
    else
        return;
    const char *stop = find_text(at, end, "<|im_end|>");
    if (!stop || memchr(at, '\'', (size_t)(stop - at)) || memchr(at, '{', (size_t)(stop - at)))
        return;
    *text = at;
    *size = (size_t)(stop - at);
}

/* ChatML (https://github.com/openai/openai-python/blob/v0.28.1/chatml.md) is recognised by its two marks. */
static sl_status write_head(const sl_engine *engine, char out[HEAD_BYTES], sl_err *err)
{
    const char *template = engine->chat_template;
    if (!template)
        return sl_err_set(err, SL_REFUSED, "%s: the model has no chat template", engine->path);
    if (!strstr(template, "<|im_start|>") || !strstr(template, "<|im_end|>"))
        return sl_err_set(err, SL_REFUSED, "%s: the model's chat template is not ChatML, the one known here",
                          engine->path);
    const char *system = NULL;
    size_t size = 0, used = 0;
    default_system(template, &system, &size);
    static const char before[] = "<|im_start|>system\n", between[] = "<|im_end|>\n", user[] = "<|im_start|>user\n";
    if (size > HEAD_BYTES - sizeof before - sizeof between - sizeof user)
        return sl_err_set(err, SL_REFUSED, "%s: the chat template's system message of %zu bytes is too long",
                          engine->path, size);
    if (size > 0) {
        memcpy(out, before, sizeof before - 1);
        used = sizeof before - 1;
        memcpy(out + used, system, size);
        used += size;
        memcpy(out + used, between, sizeof between - 1);
        used += sizeof between - 1;
    }
    memcpy(out + used, user, sizeof user);
    return SL_OK;
}

/* ----------------------------------------------------------------------------------------------------------- pieces */

static sl_status add_ids(sl_engine *engine, const int32_t *ids, size_t n, sl_tokens *out, sl_err *err)
{
    sl_ids list = {out->ids, out->n, out->cap};
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < n; i++)
        status = sl_ids_push(&list, ids[i], &engine->budget, err);
    *out = (sl_tokens){list.ids, list.n, list.cap};
    return status;
}

sl_status sl_chat_init(sl_engine *engine, sl_chat *out, uint64_t *n_dropped, sl_err *err)
{
    char head[HEAD_BYTES];
    sl_status status = write_head(engine, head, err);
    int32_t bos = sl_tok_bos(engine->tok);
    if (status == SL_OK && bos >= 0)
        status = add_ids(engine, &bos, 1, &out->head, err);
    if (status == SL_OK)
        status = sl_engine_tokenize(engine, head, strlen(head), true, &out->head, n_dropped, err);
    if (status == SL_OK)
        status = sl_engine_tokenize(engine, ask_text, strlen(ask_text), true, &out->ask, n_dropped, err);
    if (status == SL_OK)
        status = sl_engine_tokenize(engine, next_text, strlen(next_text), true, &out->next, n_dropped, err);
    return status;
}

void sl_chat_deinit(sl_engine *engine, sl_chat *chat)
{
    sl_tokens_free(engine, &chat->head);
    sl_tokens_free(engine, &chat->ask);
    sl_tokens_free(engine, &chat->next);
}

/* ----------------------------------------------------------------------------------------------------------- places */

/* NULL: a message, as long as its writer made it. */
static const sl_tokens *piece_of(const sl_chat *chat, sl_chat_part part)
{
    switch (part) {
    case SL_CHAT_PART_HEAD: return &chat->head;
    case SL_CHAT_PART_ASK: return &chat->ask;
    case SL_CHAT_PART_NEXT: return &chat->next;
    default: return NULL;
    }
}

/* Over one token; false: the template has another there. */
static bool step(const sl_chat *chat, int32_t id, sl_chat_place *place)
{
    const sl_tokens *piece = piece_of(chat, place->part);
    if (piece && piece->ids[place->done] != id)
        return false;
    bool is_mark = !piece && id == chat->ask.ids[0];
    if (is_mark)
        *place = (sl_chat_place){place->part == SL_CHAT_PART_USER ? SL_CHAT_PART_ASK : SL_CHAT_PART_NEXT, 0};
    place->done++;
    piece = piece_of(chat, place->part);
    if (piece && place->done == piece->n)
        *place = (sl_chat_place){place->part == SL_CHAT_PART_ASK ? SL_CHAT_PART_ANSWER : SL_CHAT_PART_USER, 0};
    return true;
}

static void note_turn(sl_chat_turns *turns, size_t off)
{
    if (!turns)
        return;
    if (turns->n < turns->cap)
        turns->offs[turns->n] = off;
    turns->n++;
}

sl_status sl_chat_find(sl_engine *engine, const sl_chat *chat, const int32_t *ids, size_t n, sl_chat_turns *turns,
                       sl_chat_place *out, sl_err *err)
{
    *out = (sl_chat_place){SL_CHAT_PART_HEAD, 0};
    int32_t mark = sl_tok_find(engine->tok, "<|im_end|>");
    if (!sl_tok_is_end(engine->tok, mark) || mark != chat->ask.ids[0] || mark != chat->next.ids[0])
        return sl_err_set(err, SL_REFUSED, "%s: '<|im_end|>' is no end token of the vocabulary: where messages end "
                          "cannot be seen", engine->path);
    size_t message_off = 0; /* of the user message behind an answer that is being looked at */
    if (n > 0 && chat->head.n == 0)
        return sl_err_set(err, SL_REFUSED, "%s: the vocabulary has no token for the chat template's head",
                          engine->path);
    for (size_t i = 0; i < n; i++) {
        const sl_tokens *piece = piece_of(chat, out->part);
        int32_t wanted = piece ? piece->ids[out->done] : -1;
        if (!step(chat, ids[i], out))
            return sl_err_set(err, SL_REFUSED, "the stored text is no conversation in this model's chat template: "
                              "token %zu is %" PRId32 ", the template has %" PRId32, i, ids[i], wanted);
        if (out->done == 1 && out->part == SL_CHAT_PART_NEXT)
            message_off = i + 1;
        else if (out->done == 1 && out->part == SL_CHAT_PART_ASK && message_off > 0)
            note_turn(turns, message_off);
    }
    return SL_OK;
}

sl_status sl_chat_open_user(sl_engine *engine, const sl_chat *chat, sl_chat_place place, sl_tokens *out, sl_err *err)
{
    const sl_tokens *piece = piece_of(chat, place.part);
    sl_status status = SL_OK;
    if (piece)
        status = add_ids(engine, piece->ids + place.done, piece->n - place.done, out, err);
    /* a question that nobody answered is answered with nothing */
    bool has_answer = place.part == SL_CHAT_PART_ASK || place.part == SL_CHAT_PART_ANSWER;
    if (status == SL_OK && has_answer)
        status = add_ids(engine, chat->next.ids, chat->next.n, out, err);
    return status;
}
