/* sluice verify: whether a context file is whole. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

typedef struct verify_state {
    cli c;
    bool json;
    sl_json j;
} verify_state;

static void print_damage(void *arg, const sl_store_damage *d)
{
    verify_state *v = arg;
    sl_progress_clear(&v->c.progress);
    if (!v->json) {
        printf("damaged: ");
        cli_print_damage(d);
        return;
    }
    sl_json_object_start(&v->j);
    cli_json_damage(&v->j, d);
    sl_json_object_end(&v->j);
}

static bool count(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    verify_state *v = arg;
    const sl_progress_state state = {"verifying", "MiB", done_bytes >> 20, total_bytes >> 20};
    sl_progress_update(&v->c.progress, &state, cli_seconds());
    return !cli_interrupted(NULL);
}

static void print_text(const char *path, const sl_store_verified *r, double seconds)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES];
    if (r->is_finished)
        printf("%s: %llu tokens, finished", path, (unsigned long long)r->n_tokens);
    else
        printf("%s: %llu of %llu tokens, unfinished", path, (unsigned long long)r->n_tokens,
               (unsigned long long)r->intended_tokens);
    printf("; %s, %s/s", sl_text_format_size(r->file_bytes, a),
           sl_text_format_size(seconds > 0 ? (uint64_t)((double)r->file_bytes / seconds) : 0, b));
    if (r->outside_bytes > 0)
        printf("; %s outside the last commit", sl_text_format_size(r->outside_bytes, a));
    if (r->is_torn)
        printf("; a commit that was cut off has left something, which the next writer removes");
    printf(r->n_damaged ? "\n" : "; whole\n");
}

static sl_status print_json(sl_json *j, const sl_store_verified *r, double seconds, sl_err *err)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"tokens", r->n_tokens},         {"intended_tokens", r->intended_tokens},
                  {"file_bytes", r->file_bytes},   {"damaged_places", r->n_damaged},
                  {"outside_bytes", r->outside_bytes}};
    sl_json_array_end(j);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(j, counts[i].key);
        sl_json_uint(j, counts[i].value);
    }
    sl_json_key(j, "finished");
    sl_json_bool(j, r->is_finished);
    sl_json_key(j, "torn");
    sl_json_bool(j, r->is_torn);
    sl_json_key(j, "seconds");
    sl_json_double(j, seconds);
    sl_json_object_end(j);
    return sl_json_finish(j, err);
}

int cmd_verify(int argc, char **argv, sl_err *err)
{
    verify_state v;
    bool buffered = false;
    memset(&v, 0, sizeof v);
    const sl_arg options[] = {
        {.name = "buffered", .kind = SL_ARG_KIND_FLAG, .out = &buffered, .group = "Options",
         .help = "read through the page cache"},
        {.name = "json", .kind = SL_ARG_KIND_FLAG, .out = &v.json, .help = "one JSON object on stdout"},
    };
    const sl_args_table table = {
        .usage = "sluice verify BOOK.kv [options]",
        .about = "Reads a whole context file and lists what is damaged: both copies of superblock and records, "
                 "every part, bytes that should be zero. Exit code 4 when something is.",
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
    cli_init(&v.c);
    sl_json_init(&v.j, stdout);
    if (v.json) {
        sl_json_object_start(&v.j);
        sl_json_key(&v.j, "damaged");
        sl_json_array_start(&v.j);
    }
    const sl_store_verify_options verify = {result.words[0], buffered, print_damage, count, &v};
    sl_store_verified found;
    double begun = cli_seconds();
    sl_status status = sl_store_verify(&verify, &found, err);
    sl_progress_clear(&v.c.progress);
    bool is_read = status == SL_OK || (status == SL_DAMAGED && found.n_damaged > 0);
    if (v.json) {
        sl_err why;
        sl_status written = print_json(&v.j, &found, cli_seconds() - begun, &why);
        return status != SL_OK ? (int)status : (int)written;
    }
    if (is_read)
        print_text(result.words[0], &found, cli_seconds() - begun);
    return (int)status;
}
