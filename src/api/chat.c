/* Chat templates: cut into pieces, tokenised, found again in the tokens of a stored conversation. */
#include "api/chat.h"

#include <stdio.h>
#include <string.h>

enum { PIECE_BYTES = 1024 };

/* ----------------------------------------------------------------------------------------------------------- pieces */

static bool ends_in_space(const char *text)
{
    return *text && text[strlen(text) - 1] == ' ';
}

/* A template's text as it is tokenised: BOS and EOS spelt out; where marks swallow what is behind them, without it.
 * Returns the size. */
static size_t spell(const sl_engine *engine, const sl_chat_family *family, const char *text, char out[PIECE_BYTES])
{
    bool strips = family->strips && sl_tok_adds_space(engine->tok);
    size_t n = 0;
    for (; *text && n < PIECE_BYTES; text++) {
        bool is_swallowed = strips && n > 0 && (*text == '\n' || *text == ' ') && out[n - 1] == '>';
        if (*text != '\x01' && *text != '\x02') {
            if (!is_swallowed)
                out[n++] = *text;
            continue;
        }
        int32_t id = *text == '\x01' ? sl_tok_bos_id(engine->tok) : sl_tok_eos(engine->tok);
        sl_tok_text mark = sl_tok_bytes(engine->tok, id, true);
        size_t size = mark.size < PIECE_BYTES - n ? mark.size : PIECE_BYTES - n;
        memcpy(out + n, mark.data, size);
        n += size;
    }
    return n;
}

/* Pieces up to NULL as one text. Of the last, a space at the end is left out: it belongs to the message behind it. */
static sl_status add_pieces(sl_engine *engine, const sl_chat_family *family, const char *const *pieces, sl_tokens *out,
                            sl_err *err)
{
    char text[PIECE_BYTES], spelt[PIECE_BYTES];
    size_t n = 0;
    for (; *pieces; pieces++) {
        size_t size = strlen(*pieces);
        if (size >= sizeof text - n)
            return sl_err_set(err, SL_FAILED, "chat template %s: a piece of %zu bytes", family->name, n + size);
        memcpy(text + n, *pieces, size);
        n += size;
    }
    if (n > 0 && text[n - 1] == ' ')
        n--;
    text[n] = '\0';
    n = spell(engine, family, text, spelt);
    return sl_engine_tokenize(engine, spelt, n, true, out, NULL, err);
}

static sl_status add_bos(sl_engine *engine, sl_tokens *out, sl_err *err)
{
    const char *template = engine->chat_template;
    int32_t bos = sl_tok_bos(engine->tok);
    if (bos < 0 && template && strstr(template, "bos_token"))
        bos = sl_tok_bos_id(engine->tok);
    return bos < 0 ? SL_OK : sl_tokens_add(engine, &bos, 1, out, err);
}

static bool holds(const char *text, size_t size, const char *what)
{
    size_t n = strlen(what);
    for (size_t at = 0; at + n <= size; at++)
        if (memcmp(text + at, what, n) == 0)
            return true;
    return false;
}

/* What a system message stands between, as text. */
typedef struct frame {
    const char *before, *after;
} frame;

static size_t put(char *out, size_t n, const char *text)
{
    memcpy(out + n, text, strlen(text));
    return n + strlen(text);
}

/* The system message in its final form, tokenised: the template's own holds newlines as the template spells them. */
static sl_status add_system(sl_engine *engine, const sl_chat_start *start, frame around, sl_tokens *out, sl_err *err)
{
    char *text;
    const char *system = start->system;
    size_t size = system ? start->system_size : 0, n = 0;
    sl_status status = sl_mem_new(&engine->budget, strlen(around.before) + size + strlen(around.after) + 1, 1,
                                  "system message", &text, err);
    if (status != SL_OK)
        return status;
    n = put(text, n, around.before);
    for (size_t i = 0; i < size; i++) {
        bool is_newline = start->is_template && i + 1 < size && system[i] == '\\' && system[i + 1] == 'n';
        text[n++] = is_newline ? '\n' : system[i];
        i += is_newline;
    }
    n = put(text, n, around.after);
    status = sl_engine_tokenize(engine, text, n, false, out, NULL, err);
    sl_mem_free(&engine->budget, text);
    return status;
}

/* The system message that was given, as the template takes it. */
static sl_status take_system(const sl_engine *engine, const sl_chat_family *family, sl_chat_start *start, sl_err *err)
{
    sl_chat_trim(family->trims_system, family->trims_system || family->trims_system_end, &start->system,
                 &start->system_size);
    if (family->trims_system_end && start->system_size == 0)
        start->system = NULL;
    for (size_t i = 0; i < 2 && start->system && family->forbids[i]; i++)
        if (holds(start->system, start->system_size, family->forbids[i]))
            return sl_err_set(err, SL_REFUSED, "%s: the system message holds '%s', which the chat template (%s) takes "
                              "for a switch that is not supported", engine->path, family->forbids[i], family->name);
    return SL_OK;
}

/* The family in force, and the system message that a conversation begins with. */
static sl_status choose(const sl_engine *engine, sl_chat *chat, sl_chat_start *start, sl_err *err)
{
    char names[512];
    const char *template = engine->chat_template;
    const sl_chat_family *family = engine->chat_family;
    if (!family && !template)
        return sl_err_set(err, SL_REFUSED, "%s: the model has no chat template; --chat-template NAME picks one: %s",
                          engine->path, sl_chat_family_names(names, sizeof names));
    bool is_named = family != NULL;
    if (!family)
        family = sl_chat_family_of(template);
    if (!family)
        return sl_err_set(err, SL_REFUSED, "%s: the model's chat template is none of those known here; "
                          "--chat-template NAME picks one: %s", engine->path,
                          sl_chat_family_names(names, sizeof names));
    if (family->refusal)
        return sl_err_set(err, SL_REFUSED, "%s: the model's chat template (%s) %s; --chat-template NAME picks another, "
                          "%s is the nearest", engine->path, family->name, family->refusal,
                          family->kin ? family->kin : "chatml");
    chat->family = family;
    chat->lead = ends_in_space(family->user) ? " " : "";
    if (start->system && !sl_chat_takes_system(family, is_named ? NULL : template))
        return sl_err_set(err, SL_REFUSED, "%s: the chat template (%s) has no system messages%s%s", engine->path,
                          family->name, family->kin ? "; the nearest that takes one: --chat-template " : "",
                          family->kin ? family->kin : "");
    bool is_dated = false;
    sl_status status = start->system ? take_system(engine, family, start, err) : SL_OK;
    if (status != SL_OK)
        return status;
    if (!start->system && template && (!is_named || family->tail)) {
        start->system = sl_chat_default_system(family, template, &start->system_size, &is_dated);
        start->is_template = start->system != NULL;
    }
    if (is_dated && !start->goes_on)
        return sl_err_set(err, SL_REFUSED, "%s: the system message of the model's chat template (%s) holds today's "
                          "date, and a stored text would differ tomorrow; --system TEXT gives one", engine->path,
                          family->name);
    return SL_OK;
}

static sl_status init_head(sl_engine *engine, sl_chat_start *start, sl_chat *chat, sl_err *err)
{
    const sl_chat_family *f = chat->family;
    bool has_own = f->system[0] && (start->system || f->fixed);
    chat->is_joined = !f->system[0] && start->system;
    sl_status status = add_bos(engine, &chat->head, err);
    if (status == SL_OK)
        status = add_pieces(engine, f, (const char *const[]){f->start, has_own ? f->system[0] : f->user, NULL},
                            &chat->head, err);
    char joined[PIECE_BYTES];
    frame around = {ends_in_space(f->system[0] ? f->system[0] : "") ? " " : f->fixed ? f->fixed : "",
                    f->tail ? f->tail : ""};
    if (chat->is_joined) {
        snprintf(joined, sizeof joined, "%s%s", chat->lead, f->joined[0]);
        around = (frame){joined, f->joined[1]};
    }
    if (status == SL_OK && (has_own || chat->is_joined))
        status = add_system(engine, start, around, &chat->head, err);
    if (status == SL_OK && has_own)
        status = add_pieces(engine, f, (const char *const[]){f->system[1], f->user, NULL}, &chat->head, err);
    return status;
}

sl_status sl_chat_init(sl_engine *engine, const sl_chat_start *start, sl_chat *out, sl_err *err)
{
    sl_chat_start begin = start ? *start : (sl_chat_start){.system = NULL};
    sl_status status = choose(engine, out, &begin, err);
    if (status == SL_OK)
        status = init_head(engine, &begin, out, err);
    const sl_chat_family *f = out->family;
    if (status == SL_OK)
        status = add_bos(engine, &out->plain, err);
    if (status == SL_OK)
        status = add_pieces(engine, f, (const char *const[]){f->start, f->user, NULL}, &out->plain, err);
    if (status == SL_OK && f->system[0])
        status = add_bos(engine, &out->system_open, err);
    if (status == SL_OK && f->system[0])
        status = add_pieces(engine, f, (const char *const[]){f->start, f->system[0], NULL}, &out->system_open, err);
    if (status == SL_OK && f->system[0])
        status = add_pieces(engine, f, (const char *const[]){f->system[1], f->user, NULL}, &out->system_close, err);
    if (status == SL_OK)
        status = add_pieces(engine, f, (const char *const[]){f->ask, NULL}, &out->ask, err);
    if (status == SL_OK)
        status = add_pieces(engine, f, (const char *const[]){f->end, f->user, NULL}, &out->next, err);
    if (status == SL_OK && (out->ask.n == 0 || out->next.n == 0 || out->plain.n == 0))
        status = sl_err_set(err, SL_REFUSED, "%s: the vocabulary has no tokens for the chat template (%s)",
                            engine->path, f->name);
    return status;
}

void sl_chat_deinit(sl_engine *engine, sl_chat *chat)
{
    sl_tokens_free(engine, &chat->head);
    sl_tokens_free(engine, &chat->plain);
    sl_tokens_free(engine, &chat->system_open);
    sl_tokens_free(engine, &chat->system_close);
    sl_tokens_free(engine, &chat->ask);
    sl_tokens_free(engine, &chat->next);
}
