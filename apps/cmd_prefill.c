/* sluice prefill: texts into a context file that survives, resumes and grows. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "texts.h"

enum { FIRST_OPTIONS = 4, OWN_OPTIONS = 4 };

typedef struct prefill_options {
    cli_machine machine;
    const char *output;
    sl_arg_list files;
    cli_texts texts;
    bool chat, file_header;
    double commit_s, drive_tb;
    int64_t commit_tokens, max_disk;
} prefill_options;

typedef struct prefill_state {
    cli c;
    prefill_options o;
    sl_engine *engine;
    sl_store *store;
    sl_context *context;
    sl_tokens text;
    char *folder; /* of the output */
} prefill_state;

static size_t put(sl_arg *out, const sl_arg *options, size_t n)
{
    memcpy(out, options, n * sizeof *options);
    return n;
}

static size_t fill_options(prefill_options *o, sl_arg *out)
{
    const sl_arg first[FIRST_OPTIONS] = {
        {.name = "file", .letter = 'f', .kind = SL_ARG_KIND_LIST, .out = &o->files, .metavar = "DOC.txt",
         .help = "a text, a folder of texts or - for standard input; may be repeated"},
        {.name = "file-header", .kind = SL_ARG_KIND_FLAG, .out = &o->file_header,
         .help = "before each text a line with its path, between two empty ones"},
        {.name = "output", .letter = 'o', .kind = SL_ARG_KIND_STRING, .out = &o->output, .required = true,
         .metavar = "BOOK.kv", .help = "the context file: made, resumed or extended"},
        {.name = "chat", .kind = SL_ARG_KIND_FLAG, .out = &o->chat,
         .help = "the texts begin one user message in the model's chat template"},
    };
    const sl_arg own[OWN_OPTIONS] = {
        {.name = "commit-seconds", .kind = SL_ARG_KIND_FLOAT, .out = &o->commit_s, .low = 0.01, .high = 1e6,
         .group = "Surviving", .help = "work that a crash may cost, at most", .default_text = "60"},
        {.name = "commit-tokens", .kind = SL_ARG_KIND_TOKENS, .out = &o->commit_tokens, .min = 64, .max = 1 << 24,
         .help = "likewise in tokens", .default_text = "4096"},
        {.name = "max-disk", .kind = SL_ARG_KIND_SIZE, .out = &o->max_disk, .min = 1 << 16, .max = INT64_MAX,
         .help = "the most that the context file may take", .default_text = "what is free"},
        {.name = "drive-tb", .kind = SL_ARG_KIND_FLOAT, .out = &o->drive_tb, .low = 0.001, .high = 1e9,
         .help = "terabytes that the drive is good for: says what share was written"},
    };
    size_t n = cli_model_options(&o->machine, out);
    n += put(out + n, first, FIRST_OPTIONS);
    n += put(out + n, own, OWN_OPTIONS);
    n += cli_compute_options(&o->machine, out + n);
    n += cli_io_options(&o->machine, out + n);
    n += cli_long_options(&o->machine, out + n);
    return n + cli_output_options(&o->machine, out + n);
}

static bool parse(prefill_options *o, int argc, char **argv, int *exit_code, sl_err *err)
{
    memset(o, 0, sizeof *o);
    sl_arg options[FIRST_OPTIONS + OWN_OPTIONS + CLI_MACHINE_OPTIONS];
    const sl_args_table table = {
        .usage = "sluice prefill -m MODEL.gguf -f DOC.txt [-f DOC.txt...] -o BOOK.kv [options]",
        .about = "Reads texts into a context file, in the order given; of a folder, the files under it in byte order "
                 "of names, without those that begin with a dot. Stopped or killed, the same command goes on from the "
                 "last commit; with more texts behind the same ones it extends the file. 'sluice run -c BOOK.kv' asks "
                 "it.",
        .options = options,
        .n_options = fill_options(o, options),
        .max_words = SL_ARGS_VALUES_MAX,
        .words_name = "[DOC...]",
    };
    sl_args_result result;
    if (!cli_parse(&table, argc, argv, &result, exit_code, err))
        return false;
    if (o->files.n_items == 0) {
        *exit_code = (int)sl_text_error(err, SL_USAGE, "nothing to read: give a text (-f)");
        return false;
    }
    *exit_code = (int)cli_texts_find(argc, argv, &o->files, &result, o->output, &o->texts, err);
    return *exit_code == SL_OK;
}

/* With the header line before it; *text is replaced. */
static sl_status put_header(const char *path, char **text, size_t *size, sl_err *err)
{
    const char *name = strcmp(path, "-") == 0 ? "(standard input)" : path;
    size_t n_head = strlen(name) + 3;
    char *whole = malloc(n_head + *size + 1);
    if (!whole)
        return sl_text_error(err, SL_FAILED, "out of memory: %s", path);
    snprintf(whole, n_head + 1, "\n%s\n\n", name);
    memcpy(whole + n_head, *text, *size + 1);
    free(*text);
    *text = whole;
    *size += n_head;
    return SL_OK;
}

/* Each file is tokenised apart: one more behind them changes nothing before it. */
static sl_status read_texts(prefill_state *p, sl_err *err)
{
    sl_status status = SL_OK;
    const cli_texts *texts = &p->o.texts;
    for (size_t i = 0; status == SL_OK && i < texts->n; i++) {
        char *text = NULL;
        size_t size = 0;
        uint64_t n_dropped = 0;
        status = cli_expect_other_file("--output", p->o.output, texts->paths[i], err);
        if (status == SL_OK)
            status = cli_read_document(texts->paths[i], &p->o.machine.engine, &text, &size, err);
        if (status == SL_OK && p->o.file_header)
            status = put_header(texts->paths[i], &text, &size, err);
        const sl_prompt first = {.document = text, .document_size = size, .chat = p->o.chat, .open = true};
        if (status == SL_OK && i == 0)
            status = sl_engine_prompt(p->engine, &first, &p->text, err);
        else if (status == SL_OK)
            status = sl_engine_tokenize(p->engine, text, size, false, &p->text, &n_dropped, err);
        free(text);
    }
    return status;
}

/* Before hours of work: the file will fit, on its disk and into what it may take. */
static sl_status check_space(const prefill_state *p, const sl_context_options *options, sl_err *err)
{
    sl_store_space space;
    char need[SL_TEXT_NUMBER_BYTES], have[SL_TEXT_NUMBER_BYTES];
    sl_status status = sl_store_get_space(p->engine, p->o.output, options, p->text.n, &space, err);
    if (status != SL_OK)
        return status;
    sl_text_format_size(space.file_bytes, need);
    if (p->o.max_disk > 0 && space.file_bytes > (uint64_t)p->o.max_disk)
        return sl_text_error(err, SL_REFUSED, "%s: %zu tokens take %s, --max-disk allows %s", p->o.output, p->text.n,
                             need, sl_text_format_size((uint64_t)p->o.max_disk, have));
    uint64_t more = space.file_bytes > space.present_bytes ? space.file_bytes - space.present_bytes : 0;
    if (more > space.free_bytes)
        return sl_text_error(err, SL_REFUSED, "%s: needs %s more on its disk, %s are free there", p->o.output,
                             sl_text_format_size(more, need), sl_text_format_size(space.free_bytes, have));
    return SL_OK;
}

/* Opens what is there, or makes it; *n_shared: tokens of the text that the file has. Anything else than a text that
 * begins with what is stored is refused. */
static sl_status open_store(prefill_state *p, const sl_context_options *options, size_t *n_shared, sl_err *err)
{
    struct stat info;
    *n_shared = 0;
    if (stat(p->o.output, &info) != 0)
        return sl_store_create(p->engine, p->o.output, options, &p->store, err);
    const sl_store_options store_options = {.path = p->o.output, .for_writing = true,
                                            .buffered = options->io == SL_IO_BUFFERED, .max_tokens = p->text.n};
    sl_status status = sl_store_open(p->engine, &store_options, &p->store, err);
    if (status != SL_OK)
        return status;
    sl_store_info stored;
    sl_store_get_info(p->store, &stored);
    if (stored.note)
        fprintf(stderr, "sluice: warning: %s: %s\n", p->o.output, stored.note);
    if (stored.is_chat != p->o.chat)
        return sl_text_error(err, SL_REFUSED, "%s: made %s --chat", p->o.output, stored.is_chat ? "with" : "without");
    size_t same = 0;
    while (same < stored.n_tokens && same < p->text.n && stored.ids[same] == p->text.ids[same])
        same++;
    if (same < stored.n_tokens)
        return sl_text_error(err, SL_REFUSED,
                             "%s holds another text: %llu tokens, the new one %zu; they differ from token %zu on",
                             p->o.output, (unsigned long long)stored.n_tokens, p->text.n, same);
    *n_shared = same;
    return SL_OK;
}

static sl_status print_result(const prefill_state *p, size_t n_shared, sl_err *err)
{
    sl_stats s;
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES];
    sl_context_get_stats(p->context, &s);
    if (p->o.machine.json) {
        sl_json j;
        sl_json_init(&j, stdout);
        sl_json_object_start(&j);
        const struct {
            const char *key;
            uint64_t value;
        } counts[] = {{"tokens", p->text.n}, {"tokens_kept", n_shared}, {"tokens_recomputed", s.prompt_tokens},
                      {"kv_bytes", s.kv_bytes}, {"bytes_written", s.bytes_written}, {"bytes_read", s.bytes_read},
                      {"commits", s.n_commits}, {"windows", s.n_windows}, {"peak_rss_bytes", s.peak_rss_bytes}};
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            sl_json_key(&j, counts[i].key);
            sl_json_uint(&j, counts[i].value);
        }
        sl_json_key(&j, "prefill_s");
        sl_json_double(&j, s.prefill_s);
        if (p->o.drive_tb > 0) {
            sl_json_key(&j, "drive_share");
            sl_json_double(&j, (double)s.bytes_written / (p->o.drive_tb * 1e12));
        }
        sl_json_object_end(&j);
        return sl_json_finish(&j, err);
    }
    fprintf(stderr, "  context     %zu tokens in %s, %zu of them kept\n", p->text.n, p->o.output, n_shared);
    fprintf(stderr, "  prefill     %zu tokens in %s, %.1f tokens/s\n", s.prompt_tokens,
            sl_text_format_time(s.prefill_s, a), s.prefill_s > 0 ? (double)s.prompt_tokens / s.prefill_s : 0.0);
    fprintf(stderr, "  flash       %s written (%s of cache), %s read, %zu commits\n",
            sl_text_format_size(s.bytes_written, a), sl_text_format_size(s.kv_bytes, b),
            sl_text_format_size(s.bytes_read, c), s.n_commits);
    if (p->o.drive_tb > 0)
        fprintf(stderr, "  drive       %.3g %% of the %g TB that it is good for\n",
                (double)s.bytes_written / (p->o.drive_tb * 1e10), p->o.drive_tb);
    fprintf(stderr, "  memory      peak %s\n", sl_text_format_size(s.peak_rss_bytes, a));
    return SL_OK;
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static sl_status work(prefill_state *p, sl_err *err)
{
    size_t n_shared = 0;
    p->folder = folder_of(p->o.output);
    if (!p->folder)
        return sl_text_error(err, SL_FAILED, "out of memory: %s", p->o.output);
    sl_status status = cli_open(&p->c, &p->o.machine.engine, &p->engine, err);
    if (status == SL_OK)
        status = read_texts(p, err);
    if (status != SL_OK)
        return status;
    sl_context_options options = cli_context_options(&p->o.machine, p->text.n);
    options.store_chat = p->o.chat;
    options.kv_dir = p->folder; /* nothing is written but the file */
    status = check_space(p, &options, err);
    if (status == SL_OK)
        status = open_store(p, &options, &n_shared, err);
    options.store = p->store;
    options.keep = true;
    options.commit_seconds = p->o.commit_s;
    options.commit_tokens = (size_t)p->o.commit_tokens;
    options.prompt_tokens = p->text.n - n_shared;
    if (status == SL_OK && n_shared == p->text.n && n_shared > 0) {
        sl_store_info info;
        sl_store_get_info(p->store, &info);
        if (info.is_finished) {
            fprintf(stderr, "sluice: %s holds this text already: %zu tokens\n", p->o.output, p->text.n);
            return SL_OK;
        }
    }
    if (status == SL_OK)
        status = cli_make_context(&p->c, p->engine, &options, &p->context, err);
    if (status != SL_OK)
        return status;
    p->c.phase = "prefill";
    status = sl_context_keep(p->context, p->text.ids + n_shared, p->text.n - n_shared, cli_count, &p->c, err);
    sl_progress_clear(&p->c.progress);
    if (status == SL_OK)
        return print_result(p, n_shared, err);
    sl_store_info info;
    sl_store_get_info(p->store, &info);
    fprintf(stderr, "sluice: %s: %llu of %zu tokens are committed; the same command goes on from there\n", p->o.output,
            (unsigned long long)info.n_tokens, p->text.n);
    return status;
}

int cmd_prefill(int argc, char **argv, sl_err *err)
{
    prefill_state p;
    memset(&p, 0, sizeof p);
    int code = SL_OK;
    if (!parse(&p.o, argc, argv, &code, err)) {
        cli_texts_free(&p.o.texts);
        return code;
    }
    cli_init(&p.c);
    p.c.verbose = p.o.machine.verbose;
    code = (int)work(&p, err);
    sl_progress_clear(&p.c.progress);
    sl_context_destroy(p.context);
    sl_store_close(p.store);
    cli_texts_free(&p.o.texts);
    free(p.folder);
    if (p.engine)
        sl_tokens_free(p.engine, &p.text);
    return cli_close(p.engine, code, err);
}
