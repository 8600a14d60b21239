/* A conversation: a context that grows by questions and answers, and what its commands do with it. Owns: the context,
 * where the questions stand in it, the last answer. The file below it is never changed. Thread rule: one thread. */
#ifndef SL_CHAT_TALK_H
#define SL_CHAT_TALK_H

#include "answer.h"
#include "cli.h"
#include "draft_options.h"

typedef struct chat_talk {
    cli *c;
    sl_engine *engine;   /* borrowed */
    sl_store *store;     /* borrowed; NULL: it started empty */
    sl_context *context; /* owned */
    const char *path;    /* of the store */
    const char *system;  /* the message that it begins with; NULL: the template's own, or the file's */
    sl_draw_options draw;
    const cli_draft *draft; /* borrowed */
    uint64_t read_rate;     /* the cap; 0: none */
    FILE *text_out;
    bool is_json, is_terminal; /* is_terminal: somebody reads along */
    size_t *questions; /* [n_questions] tokens before each that can be taken back */
    size_t n_questions, questions_cap;
    size_t n_asked; /* in this run */
    cli_answer answer; /* at hand, with is_json */
    bool has_text;
} chat_talk;

/* With engine, store, path, draw (all but drafting, token and arg), draft, text_out and the two flags filled in.
 * room_tokens: of the conversation beyond the file; 0: a default. */
sl_status chat_talk_start(chat_talk *t, const cli_machine *machine, size_t room_tokens, sl_err *err);
void chat_talk_end(chat_talk *t); /* a talk of zeros: nothing */

size_t chat_talk_room(const chat_talk *t); /* tokens that still fit */
/* The answer goes to text_out as it comes. Stopped by the user is no error. After an error the conversation is as it
 * was before, or has the question and what was drawn, and goes on. */
sl_status chat_talk_ask(chat_talk *t, const char *message, size_t size, sl_err *err);
/* SL_REFUSED: there are not so many. */
sl_status chat_talk_rewind(chat_talk *t, size_t n_questions, sl_err *err);
/* SL_REFUSED: nothing to save, or the name is taken. */
sl_status chat_talk_save(chat_talk *t, const char *path, sl_err *err);
void chat_talk_print_stats(const chat_talk *t);
/* A message that got no answer, for scripts: one object, as an answer is one. */
sl_status chat_talk_json_error(const sl_err *why, sl_err *err);

#endif
