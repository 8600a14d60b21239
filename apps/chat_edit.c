/* https://man.netbsd.org/editline.3 */
#include "chat_edit.h"

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 200, REMEMBERED_BYTES = 4096 };

struct chat_edit {
    EditLine *el;
    History *history;
    const char *prompt;
    chat_event (*next)(void *arg, unsigned char *out);
    void *arg;
    bool is_cancelled, is_over;
};

static chat_edit *edit_of(EditLine *el)
{
    void *data = NULL;
    el_get(el, EL_CLIENTDATA, &data);
    return data;
}

static char *show_prompt(EditLine *el)
{
    static char text[32];
    snprintf(text, sizeof text, "%s", edit_of(el)->prompt);
    return text;
}

static unsigned char cancel_line(EditLine *el, int key)
{
    (void)key;
    edit_of(el)->is_cancelled = true;
    return CC_NEWLINE;
}

/* After Ctrl-Z and fg, or in a window of another size: the terminal's mode again, and the line. */
static void redraw(EditLine *el)
{
    el_set(el, EL_PREP_TERM, 0);
    el_set(el, EL_PREP_TERM, 1);
    el_resize(el);
    el_set(el, EL_REFRESH);
}

/* libedit's own reading goes on after a signal; here one is an answer. One character, of one or more bytes. */
static int read_character(EditLine *el, wchar_t *out)
{
    chat_edit *e = edit_of(el);
    mbstate_t state;
    memset(&state, 0, sizeof state);
    for (;;) {
        unsigned char byte = 0;
        chat_event event = e->next(e->arg, &byte);
        if (event == CHAT_EVENT_REDRAW) {
            redraw(el);
            continue;
        }
        if (event == CHAT_EVENT_END) {
            e->is_over = true;
            return 0;
        }
        if (event == CHAT_EVENT_CANCEL) {
            *out = L'\x03'; /* bound to cancel_line */
            return 1;
        }
        char c = (char)byte;
        size_t n = mbrtowc(out, &c, 1, &state);
        if (n == 1 || n == 0)
            return 1;
        if (n == (size_t)-1)
            memset(&state, 0, sizeof state); /* no character begins or goes on so */
    }
}

/* Characters beyond ASCII are edited as such whatever the locale's other habits are. */
static void take_locale(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

chat_edit *chat_edit_create(FILE *out, chat_event (*next)(void *arg, unsigned char *out), void *arg)
{
    chat_edit *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    take_locale();
    e->next = next;
    e->arg = arg;
    e->prompt = "";
    e->history = history_init();
    e->el = el_init("sluice", stdin, out, stderr);
    if (!e->el || !e->history) {
        chat_edit_destroy(e);
        return NULL;
    }
    HistEvent event;
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, show_prompt);
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_SIGNAL, 0);
    el_source(e->el, NULL); /* ~/.editrc */
    el_set(e->el, EL_GETCFN, read_character);
    el_wset(e->el, EL_ADDFN, L"sluice-cancel", L"forget the line", cancel_line); /* el_set leaks its copies */
    el_set(e->el, EL_BIND, "^C", "sluice-cancel", NULL);
    el_set(e->el, EL_BIND, "-a", "^C", "sluice-cancel", NULL);
    return e;
}

void chat_edit_destroy(chat_edit *e)
{
    if (!e)
        return;
    if (e->el)
        el_end(e->el);
    if (e->history)
        history_end(e->history);
    free(e);
}

chat_line chat_edit_next(chat_edit *e, const char *prompt, const char **text, size_t *size)
{
    e->prompt = prompt;
    e->is_cancelled = false;
    int n = 0;
    el_resize(e->el);
    const char *line = el_gets(e->el, &n);
    if (e->is_cancelled)
        return CHAT_LINE_CANCELLED;
    if (!line || n <= 0 || e->is_over)
        return CHAT_LINE_END;
    size_t length = (size_t)n;
    HistEvent event;
    bool is_blank = strspn(line, " \t\n") == length;
    if (!is_blank && length <= REMEMBERED_BYTES)
        history(e->history, &event, H_ENTER, line);
    if (line[length - 1] == '\n')
        length--;
    *text = line;
    *size = length;
    return CHAT_LINE_TEXT;
}
