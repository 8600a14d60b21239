/* Lines of a conversation, typed with line editing and history or read from a pipe; Ctrl-C while they are awaited and
 * while an answer is made. Owns: from the first line on the handlers of SIGINT and SIGTERM (where lines are edited, of
 * SIGWINCH and SIGCONT, too), the line that was read last. Editing is libedit's, where the build has it, stdin and
 * `out` are terminals and TERM names one that can move its cursor. Thread rule: one at a time in a process. */
#ifndef SL_CHAT_LINES_H
#define SL_CHAT_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <sluice/status.h>

typedef struct chat_lines chat_lines;

typedef enum chat_line {
    CHAT_LINE_TEXT,
    CHAT_LINE_CANCELLED, /* Ctrl-C on a terminal: what was typed is forgotten */
    CHAT_LINE_TOO_LONG,  /* read to its end and dropped */
    CHAT_LINE_END,       /* of the input, or SIGTERM, or Ctrl-C where stdin is no terminal */
} chat_line;

/* out: where an edited line is drawn; borrowed. most_bytes: of a line. */
sl_status chat_lines_open(FILE *out, size_t most_bytes, chat_lines **lines, sl_err *err);
void chat_lines_close(chat_lines *lines); /* NULL: nothing */

/* Without its newline; terminated, and may hold NULs; borrowed until the next call. `prompt` is shown on a terminal. */
chat_line chat_lines_next(chat_lines *lines, const char *prompt, const char **text, size_t *size);
bool chat_lines_is_terminal(const chat_lines *lines); /* somebody types them */

/* A Ctrl-C asks what is at work to stop; it is forgotten when a line is awaited. Fits the library's `stop`. */
bool chat_stop(void *arg);
bool chat_stop_is_final(void); /* SIGTERM: not a stop but an end */

#endif
