/* Chats: where a stored conversation stands in its template, and what a message's text must not hold. */
#include <inttypes.h>
#include <string.h>

#include "api/chat.h"

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

static bool has_mark(const sl_engine *engine, const sl_chat *chat)
{
    return sl_tok_is_control(engine->tok, chat->ask.ids[0]);
}

/* Does what ends a user message begin here? By its first token where that is a mark; as a whole where it is text. */
static bool is_ask(const sl_engine *engine, const sl_chat *chat, const int32_t *ids, size_t n)
{
    if (ids[0] != chat->ask.ids[0])
        return false;
    return has_mark(engine, chat) ||
           (n >= chat->ask.n && memcmp(ids, chat->ask.ids, chat->ask.n * sizeof *ids) == 0);
}

typedef struct walk {
    const sl_engine *engine;
    const sl_chat *chat;
    const int32_t *ids;
    size_t n;
} walk;

/* Over token i; false: the template has another there. */
static bool step(const walk *w, size_t i, sl_chat_place *place)
{
    const sl_chat *chat = w->chat;
    const sl_tokens *piece = piece_of(chat, place->part);
    if (piece && piece->ids[place->done] != w->ids[i])
        return false;
    if (place->part == SL_CHAT_PART_USER && is_ask(w->engine, chat, w->ids + i, w->n - i))
        *place = (sl_chat_place){SL_CHAT_PART_ASK, 0};
    else if (place->part == SL_CHAT_PART_ANSWER && w->ids[i] == chat->next.ids[0])
        *place = (sl_chat_place){SL_CHAT_PART_NEXT, 0};
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

/* How many tokens agree. */
static size_t common(const sl_tokens *piece, const int32_t *ids, size_t n)
{
    size_t i = 0;
    while (i < n && i < piece->n && ids[i] == piece->ids[i])
        i++;
    return i;
}

bool sl_chat_has_head(const sl_chat *chat, const int32_t *ids, size_t n)
{
    size_t same = common(&chat->head, ids, n);
    return same == n || same == chat->head.n;
}

/* Tokens of the head with another system message than chat's, or with none; 0: it is no such head, or not whole. */
static size_t other_head(const sl_chat *chat, const int32_t *ids, size_t n)
{
    if (common(&chat->plain, ids, n) == chat->plain.n)
        return chat->plain.n;
    size_t open = chat->system_open.n, close = chat->system_close.n;
    if (open == 0 || close == 0 || common(&chat->system_open, ids, n) < open)
        return 0;
    for (size_t i = open; i + close <= n; i++)
        if (ids[i] == chat->system_close.ids[0])
            return common(&chat->system_close, ids + i, n - i) == close ? i + close : 0;
    return 0;
}

static sl_status refuse(const sl_chat *chat, const walk *w, size_t i, sl_chat_place place, sl_err *err)
{
    const sl_tokens *piece = piece_of(chat, place.part);
    return sl_err_set(err, SL_REFUSED, "the stored text is no conversation in this model's chat template (%s): "
                      "token %zu is %" PRId32 ", the template has %" PRId32, chat->family->name, i, w->ids[i],
                      piece ? piece->ids[place.done] : -1);
}

sl_status sl_chat_find(sl_engine *engine, const sl_chat *chat, const int32_t *ids, size_t n, sl_chat_turns *turns,
                       sl_chat_place *out, sl_err *err)
{
    *out = (sl_chat_place){SL_CHAT_PART_HEAD, 0};
    const walk w = {engine, chat, ids, n};
    int32_t mark = chat->next.ids[0];
    sl_tok_text spelt = sl_tok_bytes(engine->tok, mark, true);
    if (!sl_tok_is_end(engine->tok, mark))
        return sl_err_set(err, SL_REFUSED, "%s: '%.*s' is no end token of the vocabulary: where messages end cannot be "
                          "seen", engine->path, (int)(spelt.size < 40 ? spelt.size : 40), spelt.data);
    size_t from = 0;
    if (!sl_chat_has_head(chat, ids, n)) {
        from = other_head(chat, ids, n);
        if (from == 0) {
            size_t same = common(&chat->head, ids, n);
            return refuse(chat, &w, same, (sl_chat_place){SL_CHAT_PART_HEAD, same}, err);
        }
        *out = (sl_chat_place){SL_CHAT_PART_USER, 0};
    }
    size_t message_off = 0; /* of the user message behind an answer that is being looked at */
    for (size_t i = from; i < n; i++) {
        sl_chat_place before = *out;
        if (!step(&w, i, out))
            return refuse(chat, &w, i, before, err);
        if (out->part != before.part && out->part == SL_CHAT_PART_NEXT)
            message_off = i + 1;
        else if (before.part == SL_CHAT_PART_USER && out->part != SL_CHAT_PART_USER && message_off > 0)
            note_turn(turns, message_off);
        if (before.part == SL_CHAT_PART_ANSWER && out->part == SL_CHAT_PART_USER) /* a piece of one token */
            message_off = i + 1;
    }
    return SL_OK;
}

sl_status sl_chat_open_user(sl_engine *engine, const sl_chat *chat, sl_chat_place place, sl_tokens *out, sl_err *err)
{
    const sl_tokens *piece = piece_of(chat, place.part);
    sl_status status = SL_OK;
    if (piece)
        status = sl_tokens_add(engine, piece->ids + place.done, piece->n - place.done, out, err);
    /* a question that nobody answered is answered with nothing */
    bool has_answer = place.part == SL_CHAT_PART_ASK || place.part == SL_CHAT_PART_ANSWER;
    if (status == SL_OK && has_answer)
        status = sl_tokens_add(engine, chat->next.ids, chat->next.n, out, err);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ texts */

/* The white space that a character of valid UTF-8 is, by Python's str.strip, which the templates use: its bytes; 0: it
 * is none. */
static size_t space_bytes(const char *at, size_t left)
{
    static const char *const wide[] = {"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9",
                                       "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
    uint8_t byte = (uint8_t)*at;
    if ((byte >= 9 && byte <= 13) || (byte >= 28 && byte <= 32))
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (strlen(wide[i]) <= left && memcmp(at, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    bool is_quad = left >= 3 && memcmp(at, "\xe2\x80", 2) == 0 && (uint8_t)at[2] >= 0x80 && (uint8_t)at[2] <= 0x8a;
    return is_quad ? 3 : 0; /* U+2000 to U+200A */
}

void sl_chat_trim(bool first, bool last, const char **text, size_t *size)
{
    for (size_t n; first && *size > 0 && (n = space_bytes(*text, *size)) > 0; *size -= n)
        *text += n;
    while (last && *size > 0) {
        size_t n = 1;
        while (n < *size && n < 3 && ((uint8_t)(*text)[*size - n] & 0xc0) == 0x80)
            n++;
        if (space_bytes(*text + *size - n, n) != n)
            break;
        *size -= n;
    }
}

sl_status sl_chat_check_text(const sl_engine *engine, const sl_chat *chat, const char *text, size_t size, sl_err *err)
{
    const char *end = chat->family->ask;
    while (*end == ' ')
        end++;
    size_t n = strlen(end);
    if (has_mark(engine, chat) || n == 0)
        return SL_OK;
    for (size_t i = 0; i + n <= size; i++)
        if (text[i] == *end && memcmp(text + i, end, n) == 0)
            return sl_err_set(err, SL_REFUSED, "the message holds \"%s\" at offset %zu, which ends a message in this "
                              "model's chat template (%s)", end, i, chat->family->name);
    return SL_OK;
}
