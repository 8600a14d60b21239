/* sluice fork: the first tokens of a context file in a file of their own. */
#include <stdio.h>

#include "cli.h"
#include "file_access.h"

typedef struct fork_state {
    cli c;
    const char *from, *to;
    int64_t at;
    bool has_at, allow_ram_dir, json;
    int io; /* sl_io */
} fork_state;

static bool on_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    fork_state *f = arg;
    const sl_progress_state state = {"forking", "MiB", done_bytes >> 20, total_bytes >> 20};
    sl_progress_update(&f->c.progress, &state, cli_seconds());
    return !cli_interrupted(NULL);
}

static sl_status print_json(const sl_store_forked *forked, double seconds, sl_err *err)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"tokens", forked->n_tokens},
                  {"source_tokens", forked->from_tokens},
                  {"shared_bytes", forked->shared_bytes},
                  {"copied_bytes", forked->copied_bytes},
                  {"bytes_written", forked->bytes_written}};
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(&j, counts[i].key);
        sl_json_uint(&j, counts[i].value);
    }
    sl_json_key(&j, "seconds");
    sl_json_double(&j, seconds);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

static sl_status print_result(const fork_state *f, const sl_store_forked *forked, double seconds, sl_err *err)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES];
    if (f->json)
        return print_json(forked, seconds, err);
    fprintf(stderr, "  context     the first %llu of %llu tokens, in %s\n", (unsigned long long)forked->n_tokens,
            (unsigned long long)forked->from_tokens, f->to);
    fprintf(stderr, "  disk        %s shared, %s copied, %s written\n", sl_text_format_size(forked->shared_bytes, a),
            sl_text_format_size(forked->copied_bytes, b), sl_text_format_size(forked->bytes_written, c));
    fprintf(stderr, "  time        %s\n", sl_text_format_time(seconds, a));
    return SL_OK;
}

static sl_status work(fork_state *f, sl_err *err)
{
    const sl_store_fork_options options = {
        .from = f->from,
        .to = f->to,
        .n_tokens = f->has_at ? (uint64_t)f->at : SL_STORE_ALL,
        .buffered = f->io == SL_IO_BUFFERED,
        .allow_ram_dir = f->allow_ram_dir,
        .progress = on_progress,
        .arg = f,
    };
    sl_store_forked forked;
    double start_s = cli_seconds();
    file_access access;
    file_access_begin(&access, f->from);
    sl_status status = sl_store_fork(&options, &forked, err);
    file_access_end(&access, status == SL_OK ? f->to : NULL);
    sl_progress_clear(&f->c.progress);
    if (status == SL_CANCELLED)
        return sl_text_error(err, SL_CANCELLED, "interrupted; there is no %s", f->to);
    if (forked.from_intended_tokens > forked.from_tokens)
        fprintf(stderr, "sluice: %s is unfinished: %llu of %llu tokens\n", f->from,
                (unsigned long long)forked.from_tokens, (unsigned long long)forked.from_intended_tokens);
    return status == SL_OK ? print_result(f, &forked, cli_seconds() - start_s, err) : status;
}

int cmd_fork(int argc, char **argv, sl_err *err)
{
    static const char *const io_names[] = {"direct", "buffered", NULL};
    static const int io_values[] = {SL_IO_AUTO, SL_IO_BUFFERED};
    fork_state f = {.at = 0};
    int io = 0;
    const sl_arg options[] = {
        {.name = "at", .kind = SL_ARG_KIND_TOKENS, .out = &f.at, .given = &f.has_at, .metavar = "N", .group = "Fork",
         .help = "only the first N tokens", .default_text = "all"},
        {.name = "allow-ram-dir", .kind = SL_ARG_KIND_FLAG, .out = &f.allow_ram_dir,
         .help = "also where files are kept in memory"},
        {.name = "io", .kind = SL_ARG_KIND_CHOICE, .out = &io, .choices = io_names,
         .help = "buffered: through the page cache, which forgets it again"},
        {.name = "json", .kind = SL_ARG_KIND_FLAG, .out = &f.json, .group = "Output",
         .help = "the result as JSON on standard output"},
    };
    const sl_args_table table = {
        .usage = "sluice fork BOOK.kv NEW.kv [--at N] [options]",
        .about = "Makes a context file of another's tokens, or of its first N: the file that prefill would have made "
                 "of them. Whole segments of 4,096 tokens share their disk space with the first file where the file "
                 "system can (btrfs, xfs), the rest is copied. NEW.kv appears when it is whole.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .min_words = 2,
        .max_words = 2,
        .words_name = "BOOK.kv NEW.kv",
    };
    sl_args_result result;
    int code = SL_OK;
    if (!cli_parse(&table, argc, argv, &result, &code, err))
        return code;
    f.io = io_values[io];
    f.from = result.words[0];
    f.to = result.words[1];
    cli_init(&f.c);
    return (int)work(&f, err);
}
