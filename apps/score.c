/* sluice score: log-probability of every token of a text, the best candidates, perplexity. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct score_state {
    cli c;
    cli_engine_options engine_options;
    const char *file, *kv_dir, *logits_path;
    int64_t top, window, ring;
    double rope_scale;
    bool force_context, allow_ram_dir, json, verbose;
    int kv;
    sl_engine *engine;
    sl_context *context;
    sl_tokens tokens;
    size_t n_vocab;
    sl_json j;
    FILE *logits;
    bool write_failed;
} score_state;

static const char *const kv_choices[] = {"q8_0", "f16", NULL};

static bool parse(score_state *s, int argc, char **argv, int *exit_code, sl_err *err)
{
    const sl_arg options[] = {
        {.name = "model", .letter = 'm', .kind = SL_ARG_KIND_STRING, .out = &s->engine_options.model, .required = true,
         .metavar = "MODEL.gguf", .group = "Input", .help = "model file (GGUF)"},
        {.name = "file", .letter = 'f', .kind = SL_ARG_KIND_STRING, .out = &s->file, .required = true,
         .metavar = "TEXT", .help = "the text; - reads standard input"},
        {.name = "top", .kind = SL_ARG_KIND_INT, .out = &s->top, .min = 0, .max = 1 << 24, .group = "Output",
         .help = "best candidates at each position", .default_text = "0"},
        {.name = "json", .kind = SL_ARG_KIND_FLAG, .out = &s->json, .help = "one JSON object on stdout"},
        {.name = "logits", .kind = SL_ARG_KIND_STRING, .out = &s->logits_path, .metavar = "FILE",
         .help = "write all logits there: binary32, [tokens][vocabulary]"},
        {.name = "verbose", .letter = 'v', .kind = SL_ARG_KIND_FLAG, .out = &s->verbose,
         .help = "plan, kernels and memory on stderr"},
        {.name = "ram", .kind = SL_ARG_KIND_SIZE, .out = &s->engine_options.ram_bytes, .min = 1, .max = INT64_MAX,
         .group = "Machine", .help = "ceiling of the memory in use, weights included",
         .default_text = "half of what is free"},
        {.name = "kv", .kind = SL_ARG_KIND_CHOICE, .out = &s->kv, .choices = kv_choices,
         .help = "stored type of the cache", .default_text = "q8_0"},
        {.name = "kv-dir", .kind = SL_ARG_KIND_STRING, .out = &s->kv_dir, .metavar = "DIR",
         .help = "where the cache lies (an unnamed file)", .default_text = "$SLUICE_KV_DIR, else /var/tmp"},
        {.name = "allow-ram-dir", .kind = SL_ARG_KIND_FLAG, .out = &s->allow_ram_dir,
         .help = "accept a memory file system there"},
        {.name = "threads", .kind = SL_ARG_KIND_INT, .out = &s->engine_options.threads, .min = 1, .max = 1024,
         .help = "computing threads", .default_text = "all processors"},
        {.name = "window", .kind = SL_ARG_KIND_TOKENS, .out = &s->window, .min = 64, .max = 1 << 20,
         .help = "tokens taken through the layers together, a multiple of 64", .default_text = "from the budget"},
        {.name = "ring", .kind = SL_ARG_KIND_SIZE, .out = &s->ring, .min = 1, .max = INT64_MAX,
         .help = "memory of the read buffers together", .default_text = "from the budget"},
        {.name = "rope-scale", .kind = SL_ARG_KIND_FLOAT, .out = &s->rope_scale, .low = 1, .high = 1e6,
         .group = "Long contexts", .help = "stretch positions by this factor, and the trained context with them"},
        {.name = "force-context", .kind = SL_ARG_KIND_FLAG, .out = &s->force_context,
         .help = "go on beyond the trained context"},
    };
    const sl_args_table table = {
        .usage = "sluice score -m MODEL.gguf -f TEXT [options]",
        .about = "Reads a text as the model sees it and reports how likely each next token was.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
    };
    sl_args_result result;
    return cli_parse(&table, argc, argv, &result, exit_code, err);
}

static void print_row_json(score_state *s, const sl_score *score)
{
    sl_json_object_start(&s->j);
    sl_json_key(&s->j, "id");
    sl_json_int(&s->j, score->id);
    sl_json_key(&s->j, "logprob");
    if (score->has_next)
        sl_json_float(&s->j, score->next_logprob);
    else
        sl_json_null(&s->j);
    sl_json_key(&s->j, "top");
    sl_json_array_start(&s->j);
    for (size_t i = 0; i < score->n_best; i++) {
        sl_json_object_start(&s->j);
        sl_json_key(&s->j, "id");
        sl_json_int(&s->j, score->best[i]);
        sl_json_key(&s->j, "logit");
        sl_json_float(&s->j, score->logits[score->best[i]]);
        sl_json_key(&s->j, "logprob");
        sl_json_float(&s->j, score->best_logprobs[i]);
        sl_json_object_end(&s->j);
    }
    sl_json_array_end(&s->j);
    sl_json_object_end(&s->j);
}

static void print_row_text(score_state *s, const sl_score *score)
{
    sl_progress_clear(&s->c.progress);
    printf("%8llu %7d", (unsigned long long)score->position, score->id);
    if (score->has_next)
        printf(" %12.6f", (double)score->next_logprob);
    else
        printf(" %12s", "-");
    for (size_t i = 0; i < score->n_best; i++)
        printf("  %d:%.4f", score->best[i], (double)score->best_logprobs[i]);
    printf("\n");
}

static bool on_row(void *arg, const sl_score *score)
{
    score_state *s = arg;
    if (s->logits && fwrite(score->logits, sizeof *score->logits, s->n_vocab, s->logits) != s->n_vocab)
        s->write_failed = true;
    if (s->json)
        print_row_json(s, score);
    else
        print_row_text(s, score);
    return !s->write_failed && !cli_interrupted(NULL);
}

static sl_status make_context(score_state *s, sl_err *err)
{
    const sl_context_options options = {
        .cache = s->kv == 1 ? SL_CACHE_F16 : SL_CACHE_Q8_0,
        .kv_dir = s->kv_dir,
        .allow_ram_dir = s->allow_ram_dir,
        .prompt_tokens = s->tokens.n,
        .window_tokens = (size_t)s->window,
        .ring_bytes = (uint64_t)s->ring,
        .rope_scale = s->rope_scale,
        .force_context = s->force_context,
        .stop = cli_interrupted,
    };
    sl_status status = sl_context_create(s->engine, &options, &s->context, err);
    if (status == SL_OK && s->verbose)
        cli_print_plan(s->context);
    return status;
}

static sl_status read_text(score_state *s, sl_err *err)
{
    char *text = NULL;
    size_t size = 0;
    sl_status status = cli_read_document(s->file, &s->engine_options, &text, &size, err);
    if (status == SL_OK)
        status = cli_open(&s->c, &s->engine_options, false, &s->engine, err);
    const sl_prompt prompt = {.document = text, .document_size = size};
    if (status == SL_OK)
        status = sl_engine_prompt(s->engine, &prompt, &s->tokens, err);
    free(text);
    return status;
}

static sl_status score_all(score_state *s, sl_err *err)
{
    double perplexity = 0.0;
    s->c.phase = "scoring";
    sl_json_init(&s->j, stdout);
    if (s->json) {
        sl_json_object_start(&s->j);
        sl_json_key(&s->j, "positions");
        sl_json_array_start(&s->j);
    }
    sl_status status = sl_context_score(s->context, s->tokens.ids, s->tokens.n, (size_t)s->top, on_row, cli_count,
                                        &s->c, &perplexity, err);
    sl_progress_clear(&s->c.progress);
    if (s->write_failed)
        return sl_text_error(err, SL_FAILED, "%s: cannot write", s->logits_path);
    if (status != SL_OK)
        return status;
    if (!s->json) {
        printf("perplexity %.6g over %zu tokens\n", perplexity, s->tokens.n - 1);
        return SL_OK;
    }
    sl_json_array_end(&s->j);
    sl_json_key(&s->j, "perplexity");
    sl_json_float(&s->j, (float)perplexity);
    sl_json_object_end(&s->j);
    return sl_json_finish(&s->j, err);
}

static sl_status work(score_state *s, sl_err *err)
{
    sl_status status = read_text(s, err);
    if (status == SL_OK)
        status = make_context(s, err);
    if (status == SL_OK && s->logits_path && !(s->logits = fopen(s->logits_path, "wb")))
        status = sl_text_error(err, SL_FAILED, "%s: cannot write", s->logits_path);
    if (status != SL_OK)
        return status;
    sl_engine_info info;
    sl_engine_get_info(s->engine, &info);
    s->n_vocab = info.n_vocab;
    status = score_all(s, err);
    if (s->logits && fclose(s->logits) != 0 && status == SL_OK)
        status = sl_text_error(err, SL_FAILED, "%s: cannot write", s->logits_path);
    return status;
}

int cmd_score(int argc, char **argv, sl_err *err)
{
    score_state s;
    memset(&s, 0, sizeof s);
    int code = SL_OK;
    if (!parse(&s, argc, argv, &code, err))
        return code;
    cli_init(&s.c, s.json);
    s.c.verbose = s.verbose;
    code = work(&s, err);
    sl_progress_clear(&s.c.progress);
    sl_context_destroy(s.context);
    if (s.engine)
        sl_tokens_free(s.engine, &s.tokens);
    sl_engine_close(s.engine);
    return code;
}
