/* sluice repair: a damaged context file made whole again. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

typedef struct repair_state {
    cli c;
    cli_machine machine;
    bool dry_run;
    const char *path;
    bool has_begun; /* the JSON object */
    sl_json j;
} repair_state;

static const char *const fate_words[] = {
    [SL_STORE_FATE_REPAIRED] = "repaired",
    [SL_STORE_FATE_REPAIRABLE] = "would be repaired",
    [SL_STORE_FATE_LOST] = "lost",
};

/* Not before there is something to say: a refusal leaves stdout empty. */
static void begin_json(repair_state *r)
{
    if (r->has_begun)
        return;
    r->has_begun = true;
    sl_json_init(&r->j, stdout);
    sl_json_object_start(&r->j);
    sl_json_key(&r->j, "damaged");
    sl_json_array_start(&r->j);
}

static void print_fate(void *arg, const sl_store_damage *d, sl_store_fate fate)
{
    repair_state *r = arg;
    sl_progress_clear(&r->c.progress);
    if (!r->machine.json) {
        printf("%s: ", fate_words[fate]);
        cli_print_damage(d);
        return;
    }
    begin_json(r);
    sl_json_object_start(&r->j);
    sl_json_key(&r->j, "fate");
    sl_json_string(&r->j, fate_words[fate]);
    cli_json_damage(&r->j, d);
    sl_json_object_end(&r->j);
}

static void count(void *arg, bool computing, uint64_t done, uint64_t total)
{
    repair_state *r = arg;
    const sl_progress_state bytes = {"verifying", "MiB", done >> 20, total >> 20};
    const sl_progress_state tokens = {"repairing", "tokens", done, total};
    sl_progress_update(&r->c.progress, computing ? &tokens : &bytes, cli_seconds());
}

static bool parse(repair_state *r, int argc, char **argv, int *exit_code, sl_err *err)
{
    enum { OWN_OPTIONS = 1 };
    const sl_arg own[OWN_OPTIONS] = {
        {.name = "dry-run", .kind = SL_ARG_KIND_FLAG, .out = &r->dry_run, .group = "Repair",
         .help = "list what would be done, change nothing"},
    };
    sl_arg options[CLI_MODEL_OPTIONS + OWN_OPTIONS + CLI_COMPUTE_OPTIONS + CLI_IO_OPTIONS + CLI_OUTPUT_OPTIONS];
    size_t n = cli_model_options(&r->machine, options);
    memcpy(options + n, own, sizeof own);
    n += OWN_OPTIONS;
    sl_arg compute[CLI_COMPUTE_OPTIONS];
    cli_compute_options(&r->machine, compute);
    for (size_t i = 0; i < CLI_COMPUTE_OPTIONS; i++)
        if (strcmp(compute[i].name, "kv") != 0) /* the file says it */
            options[n++] = compute[i];
    sl_arg io[CLI_IO_OPTIONS];
    cli_io_options(&r->machine, io);
    for (size_t i = 0; i < CLI_IO_OPTIONS; i++)
        if (strcmp(io[i].name, "io-probe") != 0 && strcmp(io[i].name, "read-rate") != 0)
            options[n++] = io[i];
    n += cli_output_options(&r->machine, options + n);
    const sl_args_table table = {
        .usage = "sluice repair -m MODEL.gguf BOOK.kv [options]",
        .about = "Rewrites what is damaged in a context file and nothing else: records from their second copies, "
                 "unused bytes, and keys and values, computed again from the stored tokens with the model that made "
                 "the file. Stopped or killed, the same command goes on. Exit code 4 when something cannot be "
                 "repaired.",
        .options = options,
        .n_options = n,
        .min_words = 1,
        .max_words = 1,
        .words_name = "BOOK.kv",
    };
    sl_args_result result;
    if (!cli_parse(&table, argc, argv, &result, exit_code, err))
        return false;
    r->path = result.words[0];
    return true;
}

static void print_text(const repair_state *r, const sl_store_repaired *s, double seconds)
{
    char a[SL_TEXT_NUMBER_BYTES];
    if (s->is_finished)
        printf("%s: %llu tokens, finished", r->path, (unsigned long long)s->n_tokens);
    else
        printf("%s: %llu of %llu tokens, unfinished", r->path, (unsigned long long)s->n_tokens,
               (unsigned long long)s->intended_tokens);
    if (s->n_found == 0) {
        printf("; whole, nothing to repair\n");
        return;
    }
    printf("; %llu damaged, %llu repaired", (unsigned long long)s->n_found, (unsigned long long)s->n_repaired);
    if (s->n_lost > 0)
        printf(", %llu lost", (unsigned long long)s->n_lost);
    if (!r->dry_run)
        printf("; %llu tokens computed, %s written, %.1f s\n", (unsigned long long)s->tokens_computed,
               sl_text_format_size(s->bytes_written, a), seconds);
    else
        printf("; %llu tokens to be computed\n", (unsigned long long)s->tokens_damaged);
}

static sl_status print_json(repair_state *r, const sl_store_repaired *s, double seconds, sl_err *err)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"tokens", s->n_tokens},       {"intended_tokens", s->intended_tokens}, {"file_bytes", s->file_bytes},
                  {"found", s->n_found},         {"repaired", s->n_repaired},             {"lost", s->n_lost},
                  {"tokens_computed", s->tokens_computed}, {"tokens_damaged", s->tokens_damaged},
                  {"bytes_written", s->bytes_written}, {"peak_rss_bytes", s->peak_rss_bytes}};
    sl_json_array_end(&r->j);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(&r->j, counts[i].key);
        sl_json_uint(&r->j, counts[i].value);
    }
    sl_json_key(&r->j, "finished");
    sl_json_bool(&r->j, s->is_finished);
    sl_json_key(&r->j, "seconds");
    sl_json_double(&r->j, seconds);
    sl_json_object_end(&r->j);
    return sl_json_finish(&r->j, err);
}

static sl_status repair(repair_state *r, sl_engine *engine, sl_err *err)
{
    const sl_store_repair_options options = {
        .path = r->path,
        .dry_run = r->dry_run,
        .kv_dir = r->machine.kv_dir,
        .allow_ram_dir = r->machine.allow_ram_dir,
        .window_tokens = (size_t)r->machine.window,
        .ring_bytes = (uint64_t)r->machine.ring,
        .io = (sl_io)r->machine.io,
        .told = print_fate,
        .progress = count,
        .stop = cli_interrupted,
        .arg = r,
    };
    sl_store_repaired done;
    double begun = cli_seconds();
    sl_status status = sl_store_repair(engine, &options, &done, err);
    sl_progress_clear(&r->c.progress);
    /* Whole, or looked through as far as it goes: else nothing was found out. */
    bool is_judged = status == SL_OK || (status != SL_REFUSED && done.n_found > 0);
    if (!is_judged)
        return status;
    if (r->machine.json) {
        begin_json(r);
        sl_err why;
        sl_status written = print_json(r, &done, cli_seconds() - begun, &why);
        return status != SL_OK ? status : written;
    }
    print_text(r, &done, cli_seconds() - begun);
    return status;
}

int cmd_repair(int argc, char **argv, sl_err *err)
{
    repair_state r;
    int code = SL_OK;
    memset(&r, 0, sizeof r);
    if (!parse(&r, argc, argv, &code, err))
        return code;
    cli_init(&r.c);
    r.c.verbose = r.machine.verbose;
    sl_engine *engine = NULL;
    code = (int)cli_open(&r.c, &r.machine.engine, &engine, err);
    if (code == SL_OK)
        code = (int)repair(&r, engine, err);
    return cli_close(engine, code, err);
}
