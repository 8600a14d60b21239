/* Chat templates: the tokens that stand around messages, and where a stored conversation stands among them.
 *
 * A chat text is  head USER ask ANSWER next USER ask ANSWER ...  USER holds no mark: special tokens come from the
 * template only. ANSWER holds no end mark: drawing stops at it. So the mark that ends a message ends it whatever else
 * was drawn, and everything follows from the tokens, front to back. */
#ifndef SL_API_CHAT_H
#define SL_API_CHAT_H

#include "api/engine.h"

/* Each piece is tokenised apart. Owned by caller: start from {0}, end with sl_chat_deinit. */
typedef struct sl_chat {
    sl_tokens head; /* BOS if the model file says so, the default system message, the first user message's head */
    sl_tokens ask;  /* the mark that ends a user message, the answer's head */
    sl_tokens next; /* the same mark after an answer, the next user message's head */
} sl_chat;

/* SL_REFUSED: no template, or one that is not known here. *n_dropped as in sl_engine_tokenize. */
sl_status sl_chat_init(sl_engine *engine, sl_chat *out, uint64_t *n_dropped, sl_err *err) SL_CHECK;
void sl_chat_deinit(sl_engine *engine, sl_chat *chat);

typedef enum sl_chat_part {
    SL_CHAT_PART_HEAD, SL_CHAT_PART_USER, SL_CHAT_PART_ASK, SL_CHAT_PART_ANSWER, SL_CHAT_PART_NEXT
} sl_chat_part;

/* HEAD -its end-> USER -the mark-> ASK -its end-> ANSWER -the mark-> NEXT -its end-> USER   (step, in chat.c) */
typedef struct sl_chat_place {
    sl_chat_part part;
    size_t done; /* tokens of that part so far; of a piece, fewer than it has */
} sl_chat_place;

/* The whole user messages behind an answer. */
typedef struct sl_chat_turns {
    size_t *offs; /* [cap] of the first ones: tokens before the message, the answer's end mark among them; borrowed */
    size_t n, cap; /* n counts all of them */
} sl_chat_turns;

/* Where ids [n] end. turns: NULL, or empty.
 * SL_REFUSED names the token that no text in this template has there. */
sl_status sl_chat_find(sl_engine *engine, const sl_chat *chat, const int32_t *ids, size_t n, sl_chat_turns *turns,
                       sl_chat_place *out, sl_err *err) SL_CHECK;

/* Appends what must stand between a text that ends at `place` and the next user message's text: the rest of a piece
 * that was cut, the end of an answer without one. Nothing where a user message is open. */
sl_status sl_chat_open_user(sl_engine *engine, const sl_chat *chat, sl_chat_place place, sl_tokens *out,
                            sl_err *err) SL_CHECK;

#endif
