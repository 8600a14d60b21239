/* Line editing with history, by libedit; a build without it has none (chat_edit_none.c). Thread rule: one thread. */
#ifndef SL_CHAT_EDIT_H
#define SL_CHAT_EDIT_H

#include "chat_lines.h"

typedef struct chat_edit chat_edit;

typedef enum chat_event { CHAT_EVENT_BYTE, CHAT_EVENT_CANCEL, CHAT_EVENT_REDRAW, CHAT_EVENT_END } chat_event;

/* On standard input, drawn to `out`; bytes come from `next`. NULL: there is none, or it cannot be had. */
chat_edit *chat_edit_create(FILE *out, chat_event (*next)(void *arg, unsigned char *out), void *arg);
void chat_edit_destroy(chat_edit *edit); /* NULL: nothing */
/* As chat_lines_next. Lines of some length go into the history. */
chat_line chat_edit_next(chat_edit *edit, const char *prompt, const char **text, size_t *size);

#endif
