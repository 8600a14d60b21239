/* sluice prefill: texts into a context file that survives, resumes and grows. */
#include <stdlib.h>
#include <string.h>

#include "prefill_file.h"
#include "texts.h"

enum { FIRST_OPTIONS = 5, OWN_OPTIONS = 4 };

typedef struct prefill_options {
    cli_machine machine;
    const char *output, *system;
    sl_arg_list files;
    cli_texts texts;
    bool chat, file_header, replace;
    double commit_s, drive_tb;
    int64_t commit_tokens, max_disk;
} prefill_options;

typedef struct prefill_state {
    cli c;
    prefill_options o;
    sl_engine *engine;
    prefill_file file;
    sl_context *context;
    sl_tokens text;
    char *folder; /* of the output */
    char note[96]; /* of the progress */
} prefill_state;

static size_t fill_options(prefill_options *o, sl_arg *out)
{
    const sl_arg first[FIRST_OPTIONS] = {
        {.name = "file", .letter = 'f', .kind = SL_ARG_KIND_LIST, .out = &o->files, .metavar = "DOC.txt",
         .help = "a text, a folder of texts, a pattern ('*.txt') or - for standard input; up to 256 times"},
        {.name = "file-header", .kind = SL_ARG_KIND_FLAG, .out = &o->file_header,
         .help = "before each text a line with its path, between two empty ones"},
        {.name = "output", .letter = 'o', .kind = SL_ARG_KIND_STRING, .out = &o->output, .required = true,
         .metavar = "BOOK.kv", .help = "the context file: made, resumed or extended"},
        {.name = "chat", .kind = SL_ARG_KIND_FLAG, .out = &o->chat,
         .help = "the texts begin one user message in the model's chat template"},
        {.name = "replace", .kind = SL_ARG_KIND_FLAG, .out = &o->replace,
         .help = "of a file with another text keep what both begin with: made beside it, in its place at the end"},
    };
    const sl_arg own[OWN_OPTIONS] = {
        {.name = "commit-seconds", .kind = SL_ARG_KIND_FLOAT, .out = &o->commit_s, .low = 0.01, .high = 1e6,
         .group = "Surviving", .help = "work that a crash may cost, at most", .default_text = "60"},
        {.name = "commit-tokens", .kind = SL_ARG_KIND_TOKENS, .out = &o->commit_tokens, .min = 64, .max = 1 << 24,
         .help = "likewise in tokens", .default_text = "4096"},
        {.name = "max-disk", .kind = SL_ARG_KIND_SIZE, .out = &o->max_disk, .min = 1 << 16, .max = INT64_MAX,
         .help = "the most that the context file may take, with the one that it replaces",
         .default_text = "what is free"},
        {.name = "drive-tb", .kind = SL_ARG_KIND_FLOAT, .out = &o->drive_tb, .low = 0.001, .high = 1e9,
         .help = "size of the drive in terabytes: says how many times what is written fills it"},
    };
    size_t n = cli_model_options(&o->machine, out);
    n += cli_put_options(out + n, first, FIRST_OPTIONS);
    n += cli_template_options(&o->machine, &o->system, out + n);
    n += cli_put_options(out + n, own, OWN_OPTIONS);
    n += cli_compute_options(&o->machine, out + n);
    n += cli_io_options(&o->machine, out + n);
    n += cli_long_options(&o->machine, out + n);
    return n + cli_output_options(&o->machine, out + n);
}

static bool parse(prefill_options *o, int argc, char **argv, int *exit_code, sl_err *err)
{
    memset(o, 0, sizeof *o);
    sl_arg options[FIRST_OPTIONS + CLI_TEMPLATE_OPTIONS + OWN_OPTIONS + CLI_MACHINE_OPTIONS];
    const sl_args_table table = {
        .usage = "sluice prefill -m MODEL.gguf -f DOC.txt [-f DOC.txt...] -o BOOK.kv [options]",
        .about = "Reads texts into a context file, in the order given; of a folder, the files under it in byte order "
                 "of names, links to files included, without those that begin with a dot; of a pattern in quotes, "
                 "what matches in byte order. Stopped or killed, the same command goes on from the last commit; with "
                 "more texts behind the same ones it extends the file; another text is refused, or replaces it "
                 "(--replace). 'sluice run -c BOOK.kv' asks it.",
        .options = options,
        .n_options = fill_options(o, options),
        .max_words = SL_ARGS_VALUES_MAX,
        .words_name = "[DOC...]",
    };
    sl_args_result result;
    if (!cli_parse(&table, argc, argv, &result, exit_code, err))
        return false;
    if (o->files.n_items + result.n_words == 0) {
        *exit_code = (int)sl_text_error(err, SL_USAGE, "nothing to read: give a text (-f)");
        return false;
    }
    if (strcmp(o->output, "-") == 0) {
        *exit_code = (int)sl_text_error(err, SL_USAGE, "-o - : a context file needs a name (./- is one)");
        return false;
    }
    *exit_code = (int)cli_template_check(&o->machine, o->system, o->chat, err);
    if (*exit_code != SL_OK)
        return false;
    char *beside = prefill_beside(o->output);
    const char *const outputs[2] = {o->output, beside};
    *exit_code = (int)cli_texts_find(argc, argv, &o->files, &result, outputs, &o->texts, err);
    free(beside);
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

/* Each file is tokenised apart: one more behind them changes nothing before it. An empty one is nothing. */
static sl_status read_text(prefill_state *p, const char *path, bool is_first, sl_err *err)
{
    char *text = NULL;
    size_t size = 0;
    sl_err why = {SL_OK, ""};
    sl_status status = cli_expect_other_file("--output", p->o.output, path, err);
    if (status == SL_OK)
        status = cli_read_document(path, &p->o.machine.engine, &text, &size, err);
    if (status == SL_OK && cli_is_context(path))
        status = sl_text_error(err, SL_USAGE, "%s is a context file; its text: sluice export-text", path);
    size_t good = status == SL_OK ? sl_text_utf8_prefix(text, size) : 0;
    if (status == SL_OK && good < size)
        status = sl_text_error(err, SL_FAILED, "%s: the document is not UTF-8: byte 0x%02x at offset %zu", path,
                               (unsigned)(unsigned char)text[good], good);
    if (status == SL_OK && p->o.file_header)
        status = put_header(path, &text, &size, err);
    if (status == SL_OK && size > 0) {
        const char *system = is_first ? p->o.system : NULL;
        const sl_prompt prompt = {.document = text, .document_size = size, .chat = is_first && p->o.chat,
                                  .system = system, .system_size = system ? strlen(system) : 0,
                                  .stored = !is_first, .open = true};
        status = sl_engine_prompt(p->engine, &prompt, &p->text, &why);
        if (status != SL_OK)
            status = sl_text_error(err, status, "%s: %s", path, why.text);
    }
    free(text);
    return status;
}

static sl_status read_texts(prefill_state *p, sl_err *err)
{
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < p->o.texts.n; i++)
        status = read_text(p, p->o.texts.paths[i], p->text.n == 0, err);
    if (status == SL_OK && p->text.n == 0)
        return sl_text_error(err, SL_USAGE, "the texts are empty");
    return status;
}

/* ---------------------------------------------------------------------------------------------------- reporting */

static double drive_writes(const prefill_state *p, uint64_t bytes)
{
    return (double)bytes / (p->o.drive_tb * 1e12);
}

/* Before the work. */
static void print_space(const prefill_state *p)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES], d[SL_TEXT_NUMBER_BYTES];
    const sl_store_space *s = &p->file.space;
    fprintf(stderr, "sluice: %s: %zu tokens, %zu are there; takes %s on its disk, has %s, %s are free; about %s to be "
                    "written",
            p->file.path, p->text.n, p->file.n_kept, sl_text_format_size(s->file_bytes, a),
            sl_text_format_size(s->present_bytes, b),
            s->free_bytes == UINT64_MAX ? "?" : sl_text_format_size(s->free_bytes, c),
            sl_text_format_size(s->written_bytes, d));
    if (p->o.drive_tb > 0)
        fprintf(stderr, ", %.3g drive writes of %g TB", drive_writes(p, s->written_bytes), p->o.drive_tb);
    fputc('\n', stderr);
}

static bool on_copy(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    prefill_state *p = arg;
    const sl_progress_state state = {"taking over", "MiB", done_bytes >> 20, total_bytes >> 20};
    sl_progress_update(&p->c.progress, &state, cli_seconds());
    return !cli_interrupted(NULL);
}

static void on_progress(void *arg, size_t done_tokens, size_t total_tokens)
{
    prefill_state *p = arg;
    sl_stats s;
    sl_store_info stored;
    char written[SL_TEXT_NUMBER_BYTES];
    sl_context_get_stats(p->context, &s);
    sl_store_get_info(p->file.store, &stored);
    snprintf(p->note, sizeof p->note, "%.0f%% committed, %s written",
             100.0 * (double)stored.n_tokens / (double)p->text.n, sl_text_format_size(s.bytes_written, written));
    p->c.progress.note = p->note;
    cli_count(&p->c, p->file.n_kept + done_tokens, p->file.n_kept + total_tokens);
}

static sl_status print_json(const prefill_state *p, const sl_stats *s, sl_err *err)
{
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"tokens", p->text.n}, {"tokens_kept", p->file.n_kept}, {"tokens_recomputed", s->prompt_tokens},
                  {"tokens_taken_over", p->file.shared.n_tokens}, {"shared_bytes", p->file.shared.shared_bytes},
                  {"copied_bytes", p->file.shared.copied_bytes}, {"disk_bytes", p->file.space.file_bytes},
                  {"disk_free_bytes", p->file.space.free_bytes}, {"estimated_bytes", p->file.space.written_bytes},
                  {"kv_bytes", s->kv_bytes}, {"bytes_written", s->bytes_written}, {"bytes_read", s->bytes_read},
                  {"commits", s->n_commits}, {"windows", s->n_windows}, {"peak_rss_bytes", s->peak_rss_bytes}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(&j, counts[i].key);
        sl_json_uint(&j, counts[i].value);
    }
    sl_json_key(&j, "prefill_s");
    sl_json_double(&j, s->prefill_s);
    if (p->o.drive_tb > 0) {
        sl_json_key(&j, "drive_writes");
        sl_json_double(&j, drive_writes(p, s->bytes_written + p->file.shared.copied_bytes));
    }
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

/* s: zeros where nothing was to be done. */
static sl_status print_result(const prefill_state *p, const sl_stats *s, sl_err *err)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES];
    if (p->o.machine.json)
        return print_json(p, s, err);
    fprintf(stderr, "  context     %zu tokens in %s: %zu kept, %zu recomputed\n", p->text.n, p->o.output,
            p->file.n_kept, s->prompt_tokens);
    if (!p->context)
        return SL_OK;
    fprintf(stderr, "  prefill     %zu tokens in %s, %.1f tokens/s\n", s->prompt_tokens,
            sl_text_format_time(s->prefill_s, a), s->prefill_s > 0 ? (double)s->prompt_tokens / s->prefill_s : 0.0);
    fprintf(stderr, "  flash       %s written (%s of cache), %s read, %zu commits\n",
            sl_text_format_size(s->bytes_written, a), sl_text_format_size(s->kv_bytes, b),
            sl_text_format_size(s->bytes_read, c), s->n_commits);
    if (p->o.drive_tb > 0)
        fprintf(stderr, "  drive       %.3g drive writes of %g TB\n",
                drive_writes(p, s->bytes_written + p->file.shared.copied_bytes), p->o.drive_tb);
    sl_plan plan;
    sl_context_get_plan(p->context, &plan);
    fprintf(stderr, "  memory      peak %s of %s\n", sl_text_format_size(s->peak_rss_bytes, a),
            sl_text_format_size(plan.ram_bytes, b));
    return SL_OK;
}

/* ----------------------------------------------------------------------------------------------------- the work */

static sl_status open_file(prefill_state *p, sl_context_options *options, sl_err *err)
{
    const prefill_request request = {
        .engine = p->engine,
        .options = options,
        .any_cache = p->o.machine.kv < 0,
        .output = p->o.output,
        .ids = p->text.ids,
        .n = p->text.n,
        .replace = p->o.replace,
        .max_disk = (uint64_t)p->o.max_disk,
        .progress = on_copy,
        .arg = p,
    };
    sl_status status = prefill_file_open(&p->file, &request, err);
    sl_progress_clear(&p->c.progress);
    return status;
}

/* Reads in what the file lacks; *stats is of this run. */
static sl_status fill_file(prefill_state *p, sl_context_options *options, sl_stats *stats, sl_err *err)
{
    options->store = p->file.store;
    options->keep = true;
    options->prompt_tokens = p->text.n - p->file.n_kept;
    sl_status status = cli_make_context(&p->c, p->engine, options, &p->context, err);
    if (status != SL_OK) {
        prefill_file_drop(&p->file);
        return status;
    }
    p->c.phase = "prefill";
    print_space(p);
    status = sl_context_keep(p->context, p->text.ids + p->file.n_kept, options->prompt_tokens, on_progress, p, err);
    sl_progress_clear(&p->c.progress);
    p->c.progress.note = NULL;
    sl_context_get_stats(p->context, stats);
    if (status == SL_OK)
        return status;
    sl_store_info info;
    sl_store_get_info(p->file.store, &info);
    fprintf(stderr, "sluice: %s: %llu of %zu tokens are committed; the same command goes on from there\n", p->file.path,
            (unsigned long long)info.n_tokens, p->text.n);
    return status;
}

static sl_status work(prefill_state *p, sl_err *err)
{
    sl_stats stats = {0};
    p->folder = cli_folder_of(p->o.output);
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
    options.commit_seconds = p->o.commit_s;
    options.commit_tokens = (size_t)p->o.commit_tokens;
    status = open_file(p, &options, err);
    if (status != SL_OK)
        return status;
    sl_store_info info;
    sl_store_get_info(p->file.store, &info);
    if (info.is_finished && p->file.n_kept == p->text.n)
        fprintf(stderr, "sluice: %s holds this text already: %zu tokens\n", p->file.path, p->text.n);
    else
        status = fill_file(p, &options, &stats, err);
    if (status == SL_OK)
        status = prefill_file_end(&p->file, err);
    return status == SL_OK ? print_result(p, &stats, err) : status;
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
    prefill_file_close(&p.file);
    cli_texts_free(&p.o.texts);
    free(p.folder);
    if (p.engine)
        sl_tokens_free(p.engine, &p.text);
    return cli_close(p.engine, code, err);
}
