/* sluice tokenize: the token ids of a text. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct tokenize_options {
    cli_engine_options engine;
    const char *file;
    bool special, json;
} tokenize_options;

static bool parse(tokenize_options *o, int argc, char **argv, int *exit_code, sl_err *err)
{
    memset(o, 0, sizeof *o);
    const sl_arg options[] = {
        {.name = "model", .letter = 'm', .kind = SL_ARG_KIND_STRING, .out = &o->engine.model, .required = true,
         .metavar = "MODEL.gguf", .group = "Input", .help = "model file (GGUF)"},
        {.name = "file", .letter = 'f', .kind = SL_ARG_KIND_STRING, .out = &o->file, .required = true,
         .metavar = "TEXT", .help = "the text; - reads standard input"},
        {.name = "special", .kind = SL_ARG_KIND_FLAG, .out = &o->special,
         .help = "control tokens spelt out in the text become themselves"},
        {.name = "json", .kind = SL_ARG_KIND_FLAG, .out = &o->json, .group = "Output",
         .help = "one JSON object on stdout"},
    };
    const sl_args_table table = {
        .usage = "sluice tokenize -m MODEL.gguf -f TEXT [options]",
        .about = "Prints the ids of a text's tokens, one a line. No BOS or EOS is added.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    sl_args_result result;
    return cli_parse(&table, argc, argv, &result, exit_code, err);
}

static sl_status print_ids(const tokenize_options *o, const sl_tokens *tokens, sl_err *err)
{
    if (!o->json) {
        for (size_t i = 0; i < tokens->n; i++)
            printf("%d\n", tokens->ids[i]);
        return SL_OK;
    }
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    sl_json_key(&j, "tokens");
    sl_json_array_start(&j);
    for (size_t i = 0; i < tokens->n; i++)
        sl_json_int(&j, tokens->ids[i]);
    sl_json_array_end(&j);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

int cmd_tokenize(int argc, char **argv, sl_err *err)
{
    tokenize_options o;
    int code = SL_OK;
    if (!parse(&o, argc, argv, &code, err))
        return code;
    o.engine.vocab_only = true;
    cli c;
    cli_init(&c);
    char *text = NULL;
    size_t size = 0;
    sl_engine *engine = NULL;
    sl_tokens tokens = {0};
    uint64_t n_dropped = 0;
    sl_status status = cli_read_text(o.file, UINT64_C(1) << 40, &text, &size, err);
    if (status == SL_OK)
        status = cli_open(&c, &o.engine, &engine, err);
    if (status == SL_OK)
        status = sl_engine_tokenize(engine, text, size, o.special, &tokens, &n_dropped, err);
    if (status == SL_OK && n_dropped > 0)
        fprintf(stderr, "sluice: warning: %llu bytes of the text are not in the model's vocabulary and were dropped\n",
                (unsigned long long)n_dropped);
    if (status == SL_OK && cli_interrupted(NULL))
        status = sl_text_error(err, SL_CANCELLED, "interrupted");
    if (status == SL_OK)
        status = print_ids(&o, &tokens, err);
    if (engine)
        sl_tokens_free(engine, &tokens);
    sl_engine_close(engine);
    free(text);
    return (int)status;
}
