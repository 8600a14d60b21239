/* Asks a question about a text. The first run reads the text into a context file, later ones only open that file:
 *   cc -std=c11 ask.c $(pkg-config --cflags --libs sluice) -o ask && ./ask model.gguf book.txt book.kv "Who speaks?" */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sluice/sluice.h>

static sl_err err;
static volatile sig_atomic_t is_stopped; /* Ctrl-C: what is committed stays, the same command goes on from there */
static void on_signal(int number) { is_stopped = number; }
static bool stop(void *arg) { (void)arg; return is_stopped != 0; }
static void progress(void *arg, size_t done, size_t n) { (void)arg; fprintf(stderr, "\r%zu of %zu tokens", done, n); }
static bool print(void *arg, int32_t id, const char *text, size_t size)
{ (void)arg; (void)id; return fwrite(text, 1, size, stdout) == size && fflush(stdout) == 0 && !is_stopped; }
static void check(sl_status status, const char *what)
{
    if (status != SL_OK && fprintf(stderr, "ask: %s\n", what) > 0)
        exit((int)status);
}
int main(int argc, char **argv)
{
    static char book[(16 << 20) + 1]; /* one byte more than a text may have */
    FILE *file = argc == 5 ? fopen(argv[2], "rb") : NULL;
    sl_engine *engine;
    sl_context *context;
    sl_store_info has; /* tokens: none of the text, what an earlier run has committed, or all of it */
    sl_tokens text = {0}, question = {0};
    check(file ? SL_OK : SL_USAGE, "needs MODEL.gguf TEXT CONTEXT.kv QUESTION");
    signal(SIGINT, on_signal);
    const sl_prompt document = {.document = book, .document_size = fread(book, 1, sizeof book, file), .open = true};
    check(document.document_size < sizeof book ? SL_OK : SL_REFUSED, "the text has more than 16 MiB");
    check(sl_engine_open(&(sl_engine_options){.model_path = argv[1]}, &engine, &err), err.text);
    check(sl_engine_prompt(engine, &document, &text, &err), err.text);
    sl_context_options options = {.prompt_tokens = text.n, .keep = true, .stop = stop};
    const sl_store_options there = {.path = argv[3], .for_writing = true, .max_tokens = text.n};
    check(access(argv[3], F_OK) == 0 ? sl_store_open(engine, &there, &options.store, &err)
                                     : sl_store_create(engine, argv[3], &options, &options.store, &err), err.text);
    sl_store_get_info(options.store, &has);
    bool is_other = has.n_tokens > text.n || memcmp(has.ids, text.ids, has.n_tokens * sizeof *has.ids) != 0;
    check(is_other ? SL_REFUSED : SL_OK, "the context file holds another text");
    options.prompt_tokens = text.n - has.n_tokens;
    if (!has.is_finished || options.prompt_tokens > 0) {
        check(sl_context_create(engine, &options, &context, &err), err.text);
        check(sl_context_keep(context, text.ids + has.n_tokens, options.prompt_tokens, progress, NULL, &err), err.text);
        sl_context_destroy(context);
    }
    const sl_prompt asked = {.question = argv[4], .question_size = strlen(argv[4]), .stored = true};
    check(sl_engine_prompt(engine, &asked, &question, &err), err.text);
    options = (sl_context_options){.prompt_tokens = question.n, .predict_tokens = 64, .store = options.store};
    check(sl_context_create(engine, &options, &context, &err), err.text); /* the question is on top, the file stays */
    check(sl_context_feed(context, question.ids, question.n, NULL, NULL, &err), err.text);
    const sl_draw_options draw = {.top_p = 1, .predict_tokens = 64, .token = print};
    check(sl_context_generate(context, &draw, &(sl_draw_result){0}, &err), err.text);
    sl_context_destroy(context), sl_store_close(options.store);
    sl_tokens_free(engine, &text), sl_tokens_free(engine, &question), sl_engine_close(engine);
    return puts("") < 0;
}
