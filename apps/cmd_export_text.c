/* sluice export-text: a context file's tokens back to text. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static bool print_bytes(void *arg, const char *bytes, size_t size)
{
    bool *has_failed = arg;
    *has_failed = fwrite(bytes, 1, size, stdout) != size;
    return !*has_failed && !cli_interrupted(NULL);
}

int cmd_export_text(int argc, char **argv, sl_err *err)
{
    cli_engine_options engine_options = {.vocab_only = true};
    bool special = false;
    const sl_arg options[] = {
        {.name = "model", .letter = 'm', .kind = SL_ARG_KIND_STRING, .out = &engine_options.model, .required = true,
         .metavar = "MODEL.gguf", .group = "Input", .help = "the model that it was made with, for the vocabulary"},
        {.name = "special", .kind = SL_ARG_KIND_FLAG, .out = &special, .help = "control tokens too, spelt out"},
    };
    const sl_args_table table = {
        .usage = "sluice export-text -m MODEL.gguf BOOK.kv [options]",
        .about = "Prints the text that a context file holds, as far as it is committed.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .min_words = 1,
        .max_words = 1,
        .words_name = "BOOK.kv",
    };
    sl_args_result result;
    int code = SL_OK;
    if (!cli_parse(&table, argc, argv, &result, &code, err))
        return code;
    cli c;
    cli_init(&c);
    sl_engine *engine = NULL;
    sl_store *store = NULL;
    bool has_failed = false;
    const sl_store_options open = {.path = result.words[0]};
    sl_status status = cli_open(&c, &engine_options, &engine, err);
    if (status == SL_OK)
        status = sl_store_open(engine, &open, &store, err);
    if (status == SL_OK)
        status = sl_store_get_text(store, special, print_bytes, &has_failed, err);
    if (has_failed || (status == SL_OK && fflush(stdout) != 0))
        status = sl_text_error(err, SL_FAILED, "cannot write to standard output");
    if (status == SL_OK) {
        sl_store_info info;
        sl_store_get_info(store, &info);
        cli_tell_unfinished("", open.path, &info);
    }
    sl_store_close(store);
    sl_engine_close(engine);
    return (int)status;
}
