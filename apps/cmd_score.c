/* sluice score: log-probability of every token of a text, the best candidates, perplexity. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

typedef struct score_state {
    cli c;
    cli_machine machine;
    const char *logits_path, *store_path;
    int64_t top;
    sl_engine *engine;
    sl_context *context;
    sl_store *store;
    size_t store_tokens; /* of the file's, that the scored tokens follow */
    sl_tokens tokens;    /* of the text */
    int32_t *ids;        /* [n_ids] that are scored: before the text's, with a file, its last one */
    size_t n_ids;
    size_t n_vocab;
    sl_json j;
    FILE *logits;
    bool write_failed;
} score_state;

static bool parse(score_state *s, int argc, char **argv, int *exit_code, sl_err *err)
{
    enum { OWN_OPTIONS = 3 };
    const sl_arg own[OWN_OPTIONS] = {
        {.name = "context", .letter = 'c', .kind = SL_ARG_KIND_STRING, .out = &s->store_path, .metavar = "BOOK.kv",
         .help = "a context file that the text goes on from (sluice prefill); stays as it is"},
        {.name = "top", .kind = SL_ARG_KIND_INT, .out = &s->top, .min = 0, .max = 1 << 24, .group = "Scores",
         .help = "best candidates at each position", .default_text = "0"},
        {.name = "logits", .kind = SL_ARG_KIND_STRING, .out = &s->logits_path, .metavar = "FILE",
         .help = "write all logits there: binary32, [tokens][vocabulary]"},
    };
    sl_arg options[OWN_OPTIONS + CLI_MACHINE_OPTIONS];
    const sl_args_table table = {
        .usage = "sluice score -m MODEL.gguf [-c BOOK.kv] -f TEXT [options]",
        .about = "Reads a text as the model sees it and reports how likely each next token was; behind a context file, "
                 "all of the text's, the file's last token coming first. Columns: position, token id, log-probability "
                 "of the token that follows, best candidates as id:log-probability.",
        .options = options,
        .n_options = cli_machine_table(&s->machine, own, OWN_OPTIONS, options),
    };
    sl_args_result result;
    if (!cli_parse(&table, argc, argv, &result, exit_code, err))
        return false;
    const char *text = NULL;
    if (!s->machine.file)
        text = "nothing to read: give a text (-f)";
    else if (cli_is_context(s->machine.file))
        text = "the text (-f) is a context file: give it with -c, and what goes on from it with -f";
    *exit_code = text ? (int)sl_text_error(err, SL_USAGE, "%s", text) : (int)SL_OK;
    return text == NULL;
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
    if (s->machine.json)
        print_row_json(s, score);
    else
        print_row_text(s, score);
    return !s->write_failed && !cli_interrupted(NULL);
}

static void score_count(void *arg, size_t done_tokens, size_t total_tokens)
{
    score_state *s = arg;
    cli_count(&s->c, done_tokens, total_tokens);
}

static sl_status make_context(score_state *s, sl_err *err)
{
    sl_engine_info info;
    sl_engine_get_info(s->engine, &info);
    s->n_vocab = info.n_vocab;
    if ((uint64_t)s->top > info.n_vocab)
        s->top = info.n_vocab;
    sl_context_options options = cli_context_options(&s->machine, s->n_ids);
    if (s->store) {
        cli_use_store(&s->machine, s->store, &options);
        options.store_tokens = s->store_tokens;
    }
    options.score_best = (size_t)s->top;
    options.all_logits = true;
    return cli_make_context(&s->c, s->engine, &options, &s->context, err);
}

static sl_status open_store(score_state *s, sl_err *err)
{
    const sl_store_options options = {.path = s->store_path};
    sl_status status = cli_expect_other_file("--trace", s->machine.engine.trace, s->store_path, err);
    return status == SL_OK ? cli_open_store_of(s->engine, &options, &s->store, err) : status;
}

/* The first token of the text is foretold by the file's last one, whose logits are not stored: it is read again. */
static sl_status make_ids(score_state *s, sl_err *err)
{
    sl_store_info stored = {0};
    if (s->store)
        sl_store_get_info(s->store, &stored);
    const size_t n_before = stored.n_tokens > 1; /* a file of one token alone is taken as it is */
    s->ids = malloc((s->tokens.n + n_before) * sizeof *s->ids);
    if (!s->ids)
        return sl_text_error(err, SL_FAILED, "out of memory: tokens");
    s->store_tokens = (size_t)stored.n_tokens - n_before;
    if (n_before > 0)
        s->ids[0] = stored.ids[s->store_tokens];
    memcpy(s->ids + n_before, s->tokens.ids, s->tokens.n * sizeof *s->ids);
    s->n_ids = s->tokens.n + n_before;
    return SL_OK;
}

static sl_status read_text(score_state *s, sl_err *err)
{
    char *text = NULL;
    size_t size = 0;
    sl_status status = cli_read_document(s->machine.file, &s->machine.engine, &text, &size, err);
    if (status == SL_OK)
        status = cli_open(&s->c, &s->machine.engine, &s->engine, err);
    if (status == SL_OK && s->store_path)
        status = open_store(s, err);
    const sl_prompt prompt = {.document = text, .document_size = size, .whole = true, .stored = s->store != NULL};
    if (status == SL_OK)
        status = sl_engine_prompt(s->engine, &prompt, &s->tokens, err);
    free(text);
    return status == SL_OK ? make_ids(s, err) : status;
}

static sl_status score_all(score_state *s, sl_err *err)
{
    double perplexity = 0.0;
    s->c.phase = "scoring";
    sl_json_init(&s->j, stdout);
    if (s->machine.json) {
        sl_json_object_start(&s->j);
        sl_json_key(&s->j, "positions");
        sl_json_array_start(&s->j);
    }
    const sl_score_options options = {.n_best = (size_t)s->top, .row = on_row, .progress = score_count, .arg = s};
    sl_status status = sl_context_score(s->context, s->ids, s->n_ids, &options, &perplexity, err);
    sl_progress_clear(&s->c.progress);
    sl_stats stats;
    sl_context_get_stats(s->context, &stats);
    if (s->c.verbose)
        fprintf(stderr, "sluice: flash: %llu bytes walked, %llu read, %llu written, I/O %s\n",
                (unsigned long long)stats.bytes_visited, (unsigned long long)stats.bytes_read,
                (unsigned long long)stats.bytes_written, stats.io_mode);
    if (s->write_failed)
        return sl_text_error(err, SL_FAILED, "%s: cannot write", s->logits_path);
    if (status != SL_OK && !(status == SL_CANCELLED && s->machine.json))
        return status;
    if (!s->machine.json) {
        printf("perplexity %.6g over %zu tokens\n", perplexity, s->n_ids - 1);
        return SL_OK;
    }
    sl_json_array_end(&s->j);
    sl_json_key(&s->j, "perplexity"); /* null when there is none */
    sl_json_float(&s->j, status == SL_OK ? (float)perplexity : NAN);
    if (status == SL_CANCELLED) {
        sl_json_key(&s->j, "cancelled");
        sl_json_bool(&s->j, true);
    }
    sl_json_object_end(&s->j);
    sl_status written = sl_json_finish(&s->j, status == SL_OK ? err : NULL);
    return status == SL_OK ? written : status;
}

/* The logits must not take the place of what they are made from. */
static sl_status open_logits(score_state *s, sl_err *err)
{
    const char *inputs[] = {s->machine.engine.model, s->machine.file, s->store_path};
    for (int i = 0; i < 3; i++)
        if (inputs[i] && cli_expect_other_file("--logits", s->logits_path, inputs[i], err) != SL_OK)
            return SL_USAGE;
    s->logits = fopen(s->logits_path, "wb");
    return s->logits ? SL_OK : sl_text_error(err, SL_FAILED, "%s: cannot write", s->logits_path);
}

/* Interrupted before the first position: the object is there all the same. */
static sl_status print_nothing_json(sl_err *err)
{
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    sl_json_key(&j, "positions");
    sl_json_array_start(&j);
    sl_json_array_end(&j);
    sl_json_key(&j, "perplexity");
    sl_json_null(&j);
    sl_json_key(&j, "cancelled");
    sl_json_bool(&j, true);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

static sl_status work(score_state *s, sl_err *err)
{
    sl_status status = read_text(s, err);
    if (status == SL_OK)
        status = make_context(s, err);
    if (status == SL_CANCELLED && s->machine.json)
        return print_nothing_json(NULL) == SL_OK ? status : SL_FAILED;
    if (status == SL_OK && s->logits_path)
        status = open_logits(s, err);
    if (status != SL_OK)
        return status;
    status = score_all(s, err);
    if (s->logits && fclose(s->logits) != 0 && status == SL_OK)
        status = sl_text_error(err, SL_FAILED, "%s: cannot write", s->logits_path);
    struct stat made;
    if (s->logits && status != SL_OK && stat(s->logits_path, &made) == 0 && S_ISREG(made.st_mode))
        unlink(s->logits_path); /* half a file must not pass for a whole one */
    return status;
}

int cmd_score(int argc, char **argv, sl_err *err)
{
    score_state s;
    memset(&s, 0, sizeof s);
    int code = SL_OK;
    if (!parse(&s, argc, argv, &code, err))
        return code;
    cli_init(&s.c);
    s.c.verbose = s.machine.verbose;
    code = (int)work(&s, err);
    sl_progress_clear(&s.c.progress);
    sl_context_destroy(s.context);
    sl_store_close(s.store);
    free(s.ids);
    if (s.engine)
        sl_tokens_free(s.engine, &s.tokens);
    return cli_close(s.engine, code, err);
}
