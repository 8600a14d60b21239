/* sluice chat: a conversation on a terminal, or of lines from a pipe. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat_lines.h"
#include "chat_talk.h"
#include "draw_options.h"

typedef struct chat_options {
    cli_machine machine;
    const char *store, *system;
    cli_draw draw;
    cli_draft draft;
    int64_t n_predict, room;
} chat_options;

typedef struct chat_state {
    cli c;
    chat_options o;
    chat_talk talk;
    sl_engine *engine;
    sl_store *store;
    chat_lines *lines;
    char *message; /* lines of it so far */
    size_t n_message, most_bytes;
    bool is_over;
    int code; /* of the first message or command that failed, where nobody reads along */
} chat_state;

enum {
    FIRST_OPTIONS = 1,
    OWN_OPTIONS = 2,
    LEAST_PREDICT = 1,
    TOKEN_BYTES = 16, /* of text, at most as texts go: what is longer finds no room */
    MOST_MESSAGE_BYTES = 256 << 10 /* what is longer is a document */
};

/* --------------------------------------------------------------------------------------------------------- options */

static size_t fill_options(chat_options *o, sl_arg *out)
{
    const sl_arg first[FIRST_OPTIONS] = {
        {.name = "context", .letter = 'c', .kind = SL_ARG_KIND_STRING, .out = &o->store, .metavar = "BOOK.kv",
         .help = "a context file to talk about (sluice prefill --chat) or to go on with (/save); stays as it is"},
    };
    const sl_arg own[OWN_OPTIONS] = {
        {.name = "room", .kind = SL_ARG_KIND_TOKENS, .out = &o->room, .min = 64, .max = 1 << 24,
         .group = "Conversation", .help = "tokens planned for it, beyond the file's",
         .default_text = "what the trained context leaves, at most 16K"},
        {.name = "predict", .letter = 'n', .kind = SL_ARG_KIND_INT, .out = &o->n_predict, .min = LEAST_PREDICT,
         .max = 1 << 24, .help = "most tokens of an answer", .default_text = "512"},
    };
    size_t n = cli_model_options(&o->machine, out);
    n += cli_put_options(out + n, first, FIRST_OPTIONS);
    n += cli_template_options(&o->machine, &o->system, out + n);
    n += cli_put_options(out + n, own, OWN_OPTIONS);
    n += cli_draw_options(&o->draw, out + n);
    n += cli_draft_options(&o->draft, out + n);
    n += cli_compute_options(&o->machine, out + n);
    n += cli_io_options(&o->machine, out + n);
    n += cli_long_options(&o->machine, out + n);
    return n + cli_output_options(&o->machine, out + n);
}

static bool parse(chat_options *o, int argc, char **argv, int *exit_code, sl_err *err)
{
    *o = (chat_options){.n_predict = 512};
    sl_arg options[FIRST_OPTIONS + CLI_TEMPLATE_OPTIONS + OWN_OPTIONS + CLI_DRAW_OPTIONS + CLI_DRAFT_OPTIONS +
                   CLI_MACHINE_OPTIONS];
    const sl_args_table table = {
        .usage = "sluice chat -m MODEL.gguf [-c BOOK.kv] [options]",
        .about = "Holds a conversation in the model's chat template. Ctrl-C stops an answer, /help tells the commands. "
                 "What is said lies in memory and in an unnamed file until /save; BOOK.kv is never changed. Lines may "
                 "also come from a pipe; with --json each message gives one JSON object on a line of its own.",
        .options = options,
        .n_options = fill_options(o, options),
    };
    sl_args_result result;
    if (!cli_parse(&table, argc, argv, &result, exit_code, err))
        return false;
    sl_status status = cli_draw_check(&o->draw, err);
    if (status == SL_OK)
        status = cli_draft_read(&o->draft, &o->machine.engine, err);
    *exit_code = (int)status;
    return *exit_code == (int)SL_OK;
}

/* -------------------------------------------------------------------------------------------------------- messages */

/* A backslash at the end of a line takes it out; the message goes on in the next. Two stand for one. */
static bool take_backslash(const char *line, size_t *size)
{
    if (*size == 0 || line[*size - 1] != '\\')
        return false;
    *size -= 1;
    return *size == 0 || line[*size - 1] != '\\';
}

/* One line more; false: there is no room for it. */
static bool add_line(chat_state *s, const char *line, size_t size, bool is_first)
{
    size_t gap = is_first ? 0 : 1;
    if (s->n_message + gap + size > s->most_bytes)
        return false;
    char *grown = realloc(s->message, s->n_message + gap + size + 1);
    if (!grown)
        return false;
    s->message = grown;
    memcpy(grown + s->n_message, "\n", gap);
    memcpy(grown + s->n_message + gap, line, size);
    s->n_message += gap + size;
    grown[s->n_message] = '\0';
    return true;
}

/* A whole message, of one or more lines, in s->message. */
static chat_line read_message(chat_state *s)
{
    bool goes_on = true, fits = true;
    free(s->message);
    s->message = NULL;
    s->n_message = 0;
    for (bool is_first = true; goes_on; is_first = false) {
        const char *line = NULL;
        size_t size = 0;
        chat_line got = chat_lines_next(s->lines, is_first ? "> " : ". ", &line, &size);
        if (got == CHAT_LINE_CANCELLED || (got == CHAT_LINE_END && (is_first || chat_stop_is_final())))
            return got;
        if (got == CHAT_LINE_END) /* behind a backslash: nothing goes on */
            break;
        goes_on = got == CHAT_LINE_TEXT && take_backslash(line, &size);
        fits = fits && got != CHAT_LINE_TOO_LONG && add_line(s, line, size, is_first);
    }
    return fits ? CHAT_LINE_TEXT : CHAT_LINE_TOO_LONG;
}

/* -------------------------------------------------------------------------------------------------------- commands */

static const char help_text[] =
    "  /save NAME.kv  keep the conversation: 'sluice chat -c NAME.kv' goes on with it\n"
    "  /rewind [N]    take back the last question and its answer, or the last N\n"
    "  /stats         tokens, times, memory\n"
    "  /quit          leave (Ctrl-D does, too); what was not saved is gone\n"
    "  Ctrl-C         stop the answer, or forget the line\n"
    "  A line that ends with \\ goes on in the next; one that begins with // is a message that begins with /.\n";

static sl_status run_rewind(chat_state *s, const char *word, sl_err *err)
{
    int64_t n = 1;
    if (*word && (!sl_args_int(word, &n) || n < 1))
        return sl_text_error(err, SL_USAGE, "/rewind %s: how many questions? A number from 1 on", word);
    return chat_talk_rewind(&s->talk, (size_t)n, err);
}

static sl_status run_save(chat_state *s, const char *name, sl_err *err)
{
    if (!*name)
        return sl_text_error(err, SL_USAGE, "/save: under what name? /save NAME.kv");
    return chat_talk_save(&s->talk, name, err);
}

/* s->message is one, and is cut into its words. */
static sl_status run_command(chat_state *s, sl_err *err)
{
    char *end = s->message + strlen(s->message);
    while (end > s->message && strchr(" \t\r\n", end[-1]))
        *--end = '\0';
    char *word = s->message + strcspn(s->message, " \t");
    if (*word)
        *word++ = '\0';
    word += strspn(word, " \t");
    if (strcmp(s->message, "/rewind") == 0)
        return run_rewind(s, word, err);
    if (strcmp(s->message, "/save") == 0)
        return run_save(s, word, err);
    bool is_help = strcmp(s->message, "/help") == 0, is_stats = strcmp(s->message, "/stats") == 0;
    bool is_quit = strcmp(s->message, "/quit") == 0;
    if (*word || !(is_help || is_stats || is_quit))
        return sl_text_error(err, SL_USAGE, "%s%s%s: no such command (/help tells them; // begins a message with /)",
                             s->message, *word ? " " : "", word);
    if (is_help)
        fputs(help_text, stderr);
    if (is_stats)
        chat_talk_print_stats(&s->talk);
    s->is_over = s->is_over || is_quit;
    return SL_OK;
}

/* --------------------------------------------------------------------------------------------------------- the work */

static bool is_blank(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!strchr(" \t\r\n", text[i]) || text[i] == '\0')
            return false;
    return true;
}

static sl_status handle_message(chat_state *s, bool *is_question, sl_err *err)
{
    *is_question = false;
    if (is_blank(s->message, s->n_message))
        return SL_OK;
    bool is_command = s->message[0] == '/' && s->message[1] != '/';
    if (is_command)
        return run_command(s, err);
    *is_question = true;
    size_t skip = s->message[0] == '/' ? 1 : 0;
    return chat_talk_ask(&s->talk, s->message + skip, s->n_message - skip, err);
}

/* One line of it on stderr, and the conversation goes on. */
static sl_status tell(chat_state *s, bool is_question, const sl_err *why, sl_err *err)
{
    bool is_stopped = why->status == SL_CANCELLED;
    fprintf(stderr, "sluice: %s\n", is_stopped && is_question ? "stopped; the question is not part of the conversation"
                                    : is_stopped ? "stopped" : why->text);
    if (s->code == SL_OK && !chat_lines_is_terminal(s->lines))
        s->code = (int)why->status;
    return is_question && s->talk.is_json ? chat_talk_json_error(why, err) : SL_OK;
}

static sl_status too_long(const chat_state *s, sl_err *err)
{
    return sl_text_error(err, SL_REFUSED,
                         "the message is longer than %zu bytes: 'sluice prefill --chat' reads long texts",
                         s->most_bytes);
}

static sl_status converse(chat_state *s, sl_err *err)
{
    sl_status status = SL_OK;
    while (status == SL_OK && !s->is_over) {
        chat_line got = read_message(s);
        if (got == CHAT_LINE_END)
            break;
        if (got == CHAT_LINE_CANCELLED)
            continue;
        sl_err why = {SL_OK, ""};
        bool is_question = true;
        sl_status answered = got == CHAT_LINE_TEXT ? handle_message(s, &is_question, &why) : too_long(s, &why);
        if (answered != SL_OK)
            status = tell(s, is_question, &why, err);
        if (chat_stop(NULL) && (chat_stop_is_final() || !chat_lines_is_terminal(s->lines)))
            return sl_text_error(err, SL_CANCELLED, "interrupted");
        if (ferror(stdout))
            return sl_text_error(err, SL_FAILED, "cannot write to standard output");
    }
    if (status == SL_OK && chat_stop(NULL))
        status = sl_text_error(err, SL_CANCELLED, "interrupted");
    return status;
}

static void greet(const chat_state *s)
{
    size_t n = sl_context_n_tokens(s->talk.context);
    fprintf(stderr, "sluice: ");
    if (s->store)
        fprintf(stderr, "%zu tokens of %s, ", n, s->o.store);
    fprintf(stderr, "room for %zu; /help tells the commands, Ctrl-D leaves\n", chat_talk_room(&s->talk));
}

static sl_status start(chat_state *s, sl_err *err)
{
    const cli_machine *machine = &s->o.machine;
    FILE *out = machine->json ? stderr : stdout;
    sl_status status = s->o.store ? cli_expect_other_file("--trace", machine->engine.trace, s->o.store, err) : SL_OK;
    if (status == SL_OK) /* before the engine, which counts what is there */
        status = chat_lines_open(out, MOST_MESSAGE_BYTES, &s->lines, err);
    if (status == SL_OK)
        status = cli_open(&s->c, &machine->engine, &s->engine, err);
    if (status == SL_OK && s->o.store)
        status = cli_open_store(s->engine, s->o.store, true, &s->store, err);
    if (status != SL_OK)
        return status;
    s->talk = (chat_talk){
        .c = &s->c,
        .engine = s->engine,
        .store = s->store,
        .path = s->o.store,
        .system = s->o.system,
        .draft = &s->o.draft,
        .draw = {.predict_tokens = (size_t)s->o.n_predict},
        .text_out = out,
        .is_json = machine->json,
        .is_terminal = chat_lines_is_terminal(s->lines),
    };
    status = cli_draw_start(&s->o.draw, s->engine, &s->talk.draw, err);
    if (status == SL_OK)
        status = chat_talk_start(&s->talk, machine, (size_t)s->o.room, err);
    if (status != SL_OK)
        return status;
    s->most_bytes = chat_talk_room(&s->talk) * TOKEN_BYTES;
    if (s->most_bytes > MOST_MESSAGE_BYTES)
        s->most_bytes = MOST_MESSAGE_BYTES;
    return cli_interrupted(NULL) ? sl_text_error(err, SL_CANCELLED, "interrupted") : SL_OK;
}

int cmd_chat(int argc, char **argv, sl_err *err)
{
    chat_state s;
    memset(&s, 0, sizeof s);
    int code = SL_OK;
    if (!parse(&s.o, argc, argv, &code, err)) {
        cli_draft_free(&s.o.draft);
        return code;
    }
    cli_init(&s.c);
    s.c.verbose = s.o.machine.verbose;
    code = (int)start(&s, err);
    if (code == SL_OK && s.talk.is_terminal)
        greet(&s);
    if (code == SL_OK)
        code = (int)converse(&s, err);
    if (code == SL_OK)
        code = s.code;
    sl_progress_clear(&s.c.progress);
    chat_lines_close(s.lines);
    chat_talk_end(&s.talk);
    sl_store_close(s.store);
    free(s.message);
    cli_draft_free(&s.o.draft);
    return cli_close(s.engine, code, err);
}
