/* Chats: the tokens that stand around messages, and where a stored conversation stands among them.
 *
 * A chat text is  head USER ask ANSWER next USER ask ANSWER ...  USER holds no mark: special tokens come from the
 * template only. ANSWER holds no end mark: drawing stops at it. So the mark that ends a message ends it whatever else
 * was drawn, and everything follows from the tokens, front to back. Templates that end a user message in plain text
 * (Llama 2's [/INST]) refuse messages that spell it. */
#ifndef SL_API_CHAT_H
#define SL_API_CHAT_H

#include "api/chat_family.h"
#include "api/engine.h"

/* Each piece is tokenised apart. Owned by caller: start from {0}, end with sl_chat_deinit. */
typedef struct sl_chat {
    const sl_chat_family *family;
    const char *lead;  /* in front of a user message's text: a space or nothing */
    bool is_joined;    /* the head ends with the system message, inside the first user message */
    sl_tokens head;  /* BOS if model file or template say so, the system message, the first user message's head */
    sl_tokens plain; /* the same without a system message */
    sl_tokens system_open, system_close; /* around another conversation's system message; none: there can be none */
    sl_tokens ask;   /* what ends a user message, the answer's head */
    sl_tokens next;  /* the mark that ends an answer, the next user message's head */
} sl_chat;

/* What a conversation is to begin with. */
typedef struct sl_chat_start {
    const char *system; /* NULL: the template's own, if it has one */
    size_t system_size;
    bool is_template; /* private: it stands in the template */
    bool goes_on;     /* there is a conversation, which has its own: none is needed */
} sl_chat_start;

/* SL_REFUSED: no template, one that is not known here, or a system message where it has no place for one. start:
 * NULL is {0}. */
sl_status sl_chat_init(sl_engine *engine, const sl_chat_start *start, sl_chat *out, sl_err *err) SL_CHECK;
void sl_chat_deinit(sl_engine *engine, sl_chat *chat);

typedef enum sl_chat_part {
    SL_CHAT_PART_HEAD, SL_CHAT_PART_USER, SL_CHAT_PART_ASK, SL_CHAT_PART_ANSWER, SL_CHAT_PART_NEXT
} sl_chat_part;

/* HEAD -its end-> USER -what ends it-> ASK -its end-> ANSWER -the mark-> NEXT -its end-> USER   (step, in
 * chat_find.c) */
typedef struct sl_chat_place {
    sl_chat_part part;
    size_t done; /* tokens of that part so far; of a piece, fewer than it has */
} sl_chat_place;

/* The whole user messages behind an answer. */
typedef struct sl_chat_turns {
    size_t *offs; /* [cap] of the first ones: tokens before the message, the answer's end mark among them; borrowed */
    size_t n, cap; /* n counts all of them */
} sl_chat_turns;

/* Where ids [n] end. turns: NULL, or empty. The system message may be another one than chat's.
 * SL_REFUSED names the token that no text in this template has there. */
sl_status sl_chat_find(sl_engine *engine, const sl_chat *chat, const int32_t *ids, size_t n, sl_chat_turns *turns,
                       sl_chat_place *out, sl_err *err) SL_CHECK;

/* Does a text that begins with ids begin as chat does, as far as it goes? */
bool sl_chat_has_head(const sl_chat *chat, const int32_t *ids, size_t n);

/* Appends what must stand between a text that ends at `place` and the next user message's text: the rest of a piece
 * that was cut, the end of an answer without one. Nothing where a user message is open. */
sl_status sl_chat_open_user(sl_engine *engine, const sl_chat *chat, sl_chat_place place, sl_tokens *out,
                            sl_err *err) SL_CHECK;

/* SL_REFUSED: a message of that text would end where it spells the template's own end of messages. */
sl_status sl_chat_check_text(const sl_engine *engine, const sl_chat *chat, const char *text, size_t size,
                             sl_err *err) SL_CHECK;

/* Appends ids [n] (prompt.c). */
sl_status sl_tokens_add(sl_engine *engine, const int32_t *ids, size_t n, sl_tokens *out, sl_err *err) SL_CHECK;

/* Takes the white space at the text's beginning (first), its end (last) away. */
void sl_chat_trim(bool first, bool last, const char **text, size_t *size);

#endif
