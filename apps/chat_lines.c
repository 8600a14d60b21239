#include "chat_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat_edit.h"
#include "common/text.h"

enum { CHUNK_BYTES = 4096 };

struct chat_lines {
    chat_edit *edit; /* NULL: plain lines */
    FILE *out;
    bool is_terminal, at_end;
    size_t most_bytes;
    char chunk[CHUNK_BYTES]; /* read and not yet taken: [at, n) */
    size_t at, n;
    char *line;
    size_t n_line, line_cap;
};

/* --------------------------------------------------------------------------------------------------------- signals */

static volatile sig_atomic_t stop_asked, end_asked, window_changed;
static int wake[2] = {-1, -1}; /* a handler writes, who waits for input reads: no signal falls between two calls */

static void on_signal(int number)
{
    int error = errno;
    if (number == SIGTERM)
        end_asked = 1;
    if (number == SIGTERM || number == SIGINT)
        stop_asked = 1;
    else
        window_changed = 1;
    (void)!write(wake[1], "", 1);
    errno = error;
}

bool chat_stop(void *arg)
{
    (void)arg;
    return stop_asked != 0;
}

bool chat_stop_is_final(void)
{
    return end_asked != 0;
}

static void handle(int number, void (*handler)(int number), int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(number, &action, NULL);
}

static bool start_signals(bool is_editing)
{
    if (pipe(wake) != 0)
        return false;
    for (int i = 0; i < 2; i++) {
        fcntl(wake[i], F_SETFD, FD_CLOEXEC);
        fcntl(wake[i], F_SETFL, O_NONBLOCK);
    }
    handle(SIGINT, on_signal, 0);
    handle(SIGTERM, on_signal, (int)SA_RESETHAND);
    if (is_editing) {
        handle(SIGWINCH, on_signal, SA_RESTART);
        handle(SIGCONT, on_signal, SA_RESTART);
    }
    return true;
}

static void end_signals(void)
{
    if (wake[0] < 0)
        return;
    const int numbers[] = {SIGINT, SIGTERM, SIGWINCH, SIGCONT};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        handle(numbers[i], SIG_DFL, 0);
    for (int i = 0; i < 2; i++) {
        close(wake[i]);
        wake[i] = -1;
    }
}

/* A byte of standard input, or what happened instead. */
static chat_event next_byte(void *arg, unsigned char *out)
{
    chat_lines *l = arg;
    char drained[64];
    while (l->at == l->n) {
        struct pollfd both[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
        if (poll(both, 2, -1) < 0 && errno != EINTR)
            return CHAT_EVENT_END;
        while (read(wake[0], drained, sizeof drained) > 0)
            ;
        if (end_asked || (stop_asked && !l->is_terminal))
            return CHAT_EVENT_END;
        if (stop_asked) {
            stop_asked = 0;
            return CHAT_EVENT_CANCEL;
        }
        if (window_changed) {
            window_changed = 0;
            return CHAT_EVENT_REDRAW;
        }
        if (both[0].revents == 0)
            continue;
        ssize_t n = read(STDIN_FILENO, l->chunk, l->edit ? 1 : sizeof l->chunk);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            return CHAT_EVENT_END;
        l->at = 0;
        l->n = n > 0 ? (size_t)n : 0;
    }
    *out = (unsigned char)l->chunk[l->at++];
    return CHAT_EVENT_BYTE;
}

/* ----------------------------------------------------------------------------------------------------------- lines */

sl_status chat_lines_open(FILE *out, size_t most_bytes, chat_lines **lines, sl_err *err)
{
    chat_lines *l = calloc(1, sizeof *l);
    *lines = NULL;
    if (!l)
        return sl_text_error(err, SL_FAILED, "out of memory: lines");
    const char *term = getenv("TERM");
    l->out = out;
    l->most_bytes = most_bytes;
    l->is_terminal = isatty(STDIN_FILENO) == 1;
    bool can_edit = l->is_terminal && isatty(fileno(out)) == 1 && term && *term && strcmp(term, "dumb") != 0;
    l->edit = can_edit ? chat_edit_create(out, next_byte, l) : NULL;
    *lines = l;
    return SL_OK;
}

void chat_lines_close(chat_lines *lines)
{
    if (!lines)
        return;
    end_signals();
    chat_edit_destroy(lines->edit);
    free(lines->line);
    free(lines);
}

bool chat_lines_is_terminal(const chat_lines *lines)
{
    return lines->is_terminal;
}

static bool add_byte(chat_lines *l, unsigned char byte)
{
    if (l->n_line + 1 >= l->line_cap) {
        size_t cap = 2 * l->line_cap + 256;
        char *grown = realloc(l->line, cap);
        if (!grown)
            return false;
        l->line = grown;
        l->line_cap = cap;
    }
    l->line[l->n_line++] = (char)byte;
    l->line[l->n_line] = '\0';
    return true;
}

/* What the terminal had of the line is gone with its Ctrl-C. */
static chat_line next_plain(chat_lines *l)
{
    bool fits = true, has_any = false;
    unsigned char byte = 0;
    l->n_line = 0;
    for (;;) {
        chat_event event = next_byte(l, &byte);
        if (event == CHAT_EVENT_CANCEL)
            return CHAT_LINE_CANCELLED;
        if (event == CHAT_EVENT_REDRAW)
            continue;
        if (event == CHAT_EVENT_END && (chat_stop(NULL) || !has_any))
            return CHAT_LINE_END;
        if (event == CHAT_EVENT_END || byte == '\n')
            break;
        has_any = true;
        fits = fits && l->n_line < l->most_bytes && add_byte(l, byte);
    }
    return fits ? CHAT_LINE_TEXT : CHAT_LINE_TOO_LONG;
}

chat_line chat_lines_next(chat_lines *l, const char *prompt, const char **text, size_t *size)
{
    chat_line got = CHAT_LINE_END;
    *text = "";
    *size = 0;
    if (l->at_end || (wake[0] < 0 && !start_signals(l->edit != NULL)))
        return CHAT_LINE_END;
    stop_asked = end_asked;
    if (l->edit) {
        got = chat_edit_next(l->edit, prompt, text, size);
        if (got == CHAT_LINE_TEXT && *size > l->most_bytes)
            got = CHAT_LINE_TOO_LONG;
    } else {
        if (l->is_terminal && isatty(STDERR_FILENO) == 1)
            fprintf(stderr, "%s", prompt);
        got = next_plain(l);
        if (got == CHAT_LINE_TEXT && l->n_line > 0) {
            *text = l->line;
            *size = l->n_line;
        }
        if (got == CHAT_LINE_CANCELLED)
            fputc('\n', stderr);
    }
    l->at_end = got == CHAT_LINE_END;
    return got;
}
