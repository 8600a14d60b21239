/* sluice plan: what a context of some length will take in memory, on disk and in time, before it is made. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct plan_state {
    cli c;
    cli_machine machine;
    int64_t tokens, rows;
    double drive_tb;
    sl_engine *engine;
    sl_engine_info info;
    sl_plan plan;
    sl_estimate estimate;
    bool has_rows; /* rows was given */
    sl_store_space file; /* of a context file of as many tokens */
} plan_state;

static bool parse(plan_state *s, int argc, char **argv, int *exit_code, sl_err *err)
{
    enum { OWN_OPTIONS = 3 };
    s->rows = 64;
    const sl_arg own[OWN_OPTIONS] = {
        {.name = "tokens", .kind = SL_ARG_KIND_TOKENS, .out = &s->tokens, .required = true, .min = 1,
         .max = INT64_C(1) << 40, .help = "length of the whole context, answer included"},
        {.name = "rows", .kind = SL_ARG_KIND_INT, .out = &s->rows, .given = &s->has_rows, .min = 1, .max = 256,
         .help = "rows that a pass over it serves: the last token and its drafts", .default_text = "64"},
        {.name = "drive-tb", .kind = SL_ARG_KIND_FLOAT, .out = &s->drive_tb, .low = 0.001, .high = 1e9,
         .help = "size of the drive in terabytes: says how many times what is written fills it"},
    };
    sl_arg options[OWN_OPTIONS + CLI_MACHINE_OPTIONS];
    size_t n = cli_model_options(&s->machine, options);
    memcpy(options + n, own, sizeof own);
    n += OWN_OPTIONS;
    n += cli_compute_options(&s->machine, options + n);
    n += cli_io_options(&s->machine, options + n);
    n += cli_long_options(&s->machine, options + n);
    n += cli_output_options(&s->machine, options + n);
    const sl_args_table table = {
        .usage = "sluice plan -m MODEL.gguf --tokens 1M [options]",
        .about = "Tells what a context of that length will take: memory by part, disk, bytes written, and times from "
                 "measured rates of this machine. Loads no weights, so that the model may be larger than memory. Exit "
                 "code 3 when the plan cannot work.",
        .options = options,
        .n_options = n,
    };
    sl_args_result result;
    return cli_parse(&table, argc, argv, &result, exit_code, err);
}

static const char *kv_dir(const plan_state *s)
{
    const char *from_env = getenv("SLUICE_KV_DIR");
    return s->machine.kv_dir ? s->machine.kv_dir : from_env && *from_env ? from_env : "/var/tmp";
}

static bool is_beyond_training(const plan_state *s)
{
    double stretch = s->machine.rope_scale > 1.0 ? s->machine.rope_scale : 1.0;
    return (double)s->tokens > stretch * (double)s->info.n_ctx_train;
}

/* ------------------------------------------------------------------------------------------------------------ table */

static void print_size(const char *what, uint64_t bytes)
{
    char text[SL_TEXT_NUMBER_BYTES];
    printf("  %-32s%12s\n", what, sl_text_format_size(bytes, text));
}

/* "-" for what is not known. */
static void print_time(const char *what, double seconds)
{
    char text[SL_TEXT_NUMBER_BYTES];
    printf("  %-32s%12s\n", what, seconds > 0.0 ? sl_text_format_time(seconds, text) : "-");
}

static void print_rate(const char *what, double rate)
{
    char text[SL_TEXT_NUMBER_BYTES];
    printf("  %-32s%12s\n", what, rate > 0.0 ? sl_text_format_rate(rate, text) : "-");
}

static double drive_writes(const plan_state *s, uint64_t bytes)
{
    return (double)bytes / (s->drive_tb * 1e12);
}

static void print_drive(const plan_state *s, uint64_t bytes)
{
    char what[64];
    if (s->drive_tb <= 0)
        return;
    snprintf(what, sizeof what, "drive writes of %g TB", s->drive_tb);
    printf("  %-32s%12.3g\n", what, drive_writes(s, bytes));
}

static void print_sizes(const plan_state *s)
{
    const sl_plan *p = &s->plan;
    char text[4][SL_TEXT_NUMBER_BYTES], window[64];
    printf("model    %u layers, %u heads on %u KV heads of %u, trained for %u tokens\n", s->info.n_layers,
           s->info.n_heads, s->info.n_kv_heads, s->info.head_dim, s->info.n_ctx_train);
    printf("context  %zu tokens in %s: %llu bytes a token, %s a layer, %s in all\n", p->max_tokens,
           s->machine.kv == 1 ? "f16" : "q8_0", (unsigned long long)p->kv_token_bytes,
           sl_text_format_size(p->kv_bytes / s->info.n_layers, text[0]), sl_text_format_size(p->kv_bytes, text[1]));
    if (s->info.n_sliding_layers > 0)
        printf("         %u layers slide, rows see %u tokens: %s are kept, a pass at the end reads %s\n",
               s->info.n_sliding_layers, s->info.sliding_span, sl_text_format_size(p->kept_bytes, text[3]),
               sl_text_format_size(p->walked_bytes, text[2]));
    if (is_beyond_training(s))
        printf("         (longer than the model was trained for: a run wants --rope-scale or --force-context)\n");
    printf("memory\n");
    print_size("budget (--ram)", p->ram_bytes);
    print_size("program", p->program_bytes);
    print_size("weights", p->weight_bytes);
    if (p->weight_buffer_bytes > 0)
        print_size("buffers for the other weights", p->weight_buffer_bytes);
    print_size("tokenizer and tables", p->table_bytes);
    print_size("ring of read buffers", p->ring_bytes);
    snprintf(window, sizeof window, "window of %zu tokens", p->window_tokens);
    print_size(window, p->window_bytes);
    print_size("cache held while reading", p->resident_bytes);
    print_size("cache held while answering", p->decode_resident_bytes);
    print_size("least budget that could work", p->needed_bytes);
    if (p->weight_buffer_bytes > 0)
        print_size("least that holds all weights", p->whole_bytes);
    printf("disk     %s\n", kv_dir(s));
    print_size("needed", p->disk_bytes);
    if (p->disk_free_bytes == UINT64_MAX)
        printf("  %-32s%12s\n", "free", "unknown");
    else
        print_size("free", p->disk_free_bytes);
    print_size("to be written", s->estimate.written_bytes);
    print_drive(s, s->estimate.written_bytes);
    printf("file     a context file (sluice prefill)\n");
    print_size("needed", s->file.file_bytes);
    print_size("to be written", s->file.written_bytes);
    print_drive(s, s->file.written_bytes);
}

/* Of a pass's disk time, the part of weights that do not stay in memory; a token without drafts is a pass of a row. */
static void print_weights(const plan_state *s)
{
    const sl_estimate *e = &s->estimate;
    const sl_plan *p = &s->plan;
    const double rows = (double)e->rows, rate = e->disk_read_rate;
    const uint64_t token = p->weight_pass_bytes + p->weight_logit_bytes + p->weight_row_bytes;
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES];
    printf("    %s of weights%s%s\n", sl_text_format_size(e->weight_bytes, a), rate > 0.0 ? ", " : "",
           rate > 0.0 ? sl_text_format_time(e->weight_pass_s, b) : "");
    printf("    of it a row %s%s%s\n", sl_text_format_size((uint64_t)((double)e->weight_bytes / rows), a),
           rate > 0.0 ? ", " : "", rate > 0.0 ? sl_text_format_time(e->weight_pass_s / rows, b) : "");
    printf("    a token without drafts: %s%s%s\n", sl_text_format_size(token, a), rate > 0.0 ? ", " : "",
           rate > 0.0 ? sl_text_format_time((double)token / rate, b) : "");
}

static void print_times(const plan_state *s)
{
    const sl_estimate *e = &s->estimate;
    char text[SL_TEXT_NUMBER_BYTES];
    printf("rates    measured, %u threads\n", s->info.n_threads);
    print_rate("disk, reading", e->disk_read_rate);
    if (e->disk_remembered)
        printf("    the disk as an earlier run measured it; --io-probe measures anew\n");
    if (e->in_flight_bytes > 0)
        printf("    reads of %zu KiB, %zu MiB in flight\n", e->read_bytes >> 10, e->in_flight_bytes >> 20);
    print_rate("disk, writing", e->disk_write_rate);
    print_rate("memory", e->memory_rate);
    printf("reading the prompt; floors\n");
    print_time("computing", e->prefill_compute_s);
    if (e->read_bytes_prefill + e->weight_bytes_prefill > 0)
        print_time("disk, reading", e->prefill_read_s);
    if (e->read_bytes_prefill > 0) {
        printf("    %s of the cache, again\n", sl_text_format_size(e->read_bytes_prefill, text));
    }
    if (e->weight_bytes_prefill > 0)
        printf("    %s of the model file, in windows of %zu tokens\n",
               sl_text_format_size(e->weight_bytes_prefill, text), s->plan.window_tokens);
    if (e->written_bytes > 0)
        print_time("disk, writing the cache", e->prefill_write_s);
    print_time("first token after", e->first_token_s);
    printf("a pass over the whole context, %zu rows; floors\n", e->rows);
    if (e->pass_bytes + e->weight_bytes > 0)
        print_time("disk", e->pass_disk_s);
    if (e->pass_bytes > 0)
        printf("    %s%s\n", sl_text_format_size(e->pass_bytes, text), e->weight_bytes > 0 ? " of the cache" : "");
    if (e->weight_bytes > 0)
        print_weights(s);
    print_time("memory", e->pass_memory_s);
    print_time("computing", e->pass_compute_s);
    print_time("the largest of them", e->pass_s);
    if (e->crossover_rows > 0)
        printf("  compute-bound from %zu rows on\n", e->crossover_rows);
    else if (e->pass_disk_s > 0.0 && e->pass_compute_s > 0.0)
        printf("  disk-bound with any number of rows up to 256\n");
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

static sl_status print_json(const plan_state *s, const sl_err *problem, sl_err *err)
{
    const sl_plan *p = &s->plan;
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"tokens", (uint64_t)s->tokens}, {"rows", (uint64_t)s->rows}, {"trained_tokens", s->info.n_ctx_train},
        {"layers", s->info.n_layers}, {"heads", s->info.n_heads}, {"kv_heads", s->info.n_kv_heads},
        {"head_dim", s->info.head_dim}, {"threads", s->info.n_threads}, {"kv_token_bytes", p->kv_token_bytes},
        {"sliding_layers", s->info.n_sliding_layers}, {"sliding_span", s->info.sliding_span},
        {"kv_layer_bytes", p->kv_bytes / s->info.n_layers}, {"kv_bytes", p->kv_bytes},
        {"kept_bytes", p->kept_bytes}, {"walked_bytes", p->walked_bytes}, {"answer_bytes", p->answer_bytes},
        {"ram_bytes", p->ram_bytes}, {"program_bytes", p->program_bytes}, {"weight_bytes", p->weight_bytes},
        {"table_bytes", p->table_bytes}, {"ring_bytes", p->ring_bytes},
        {"window_tokens", p->window_tokens}, {"window_bytes", p->window_bytes},
        {"resident_bytes", p->resident_bytes}, {"decode_resident_bytes", p->decode_resident_bytes},
        {"needed_bytes", p->needed_bytes}, {"whole_bytes", p->whole_bytes},
        {"disk_bytes", p->disk_bytes}, {"disk_free_bytes", p->disk_free_bytes},
        {"file_bytes", s->file.file_bytes}, {"file_written_bytes", s->file.written_bytes},
    };
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    sl_json_key(&j, "works");
    sl_json_bool(&j, !problem);
    sl_json_key(&j, "problem");
    if (problem)
        sl_json_string(&j, problem->text);
    else
        sl_json_null(&j);
    sl_json_key(&j, "beyond_training");
    sl_json_bool(&j, is_beyond_training(s));
    sl_json_key(&j, "kv_type");
    sl_json_string(&j, s->machine.kv == 1 ? "f16" : "q8_0");
    sl_json_key(&j, "kv_dir");
    sl_json_string(&j, kv_dir(s));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(&j, counts[i].key);
        sl_json_uint(&j, counts[i].value);
    }
    if (s->drive_tb > 0) {
        sl_json_key(&j, "drive_writes");
        sl_json_double(&j, drive_writes(s, s->estimate.written_bytes));
        sl_json_key(&j, "file_drive_writes");
        sl_json_double(&j, drive_writes(s, s->file.written_bytes));
    }
    cli_json_weights(&j, p);
    sl_json_key(&j, "estimate");
    cli_json_estimate(&j, &s->estimate);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

static sl_status print_cancelled_json(void)
{
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    sl_json_key(&j, "cancelled");
    sl_json_bool(&j, true);
    sl_json_object_end(&j);
    return sl_json_finish(&j, NULL);
}

/* ------------------------------------------------------------------------------------------------------------- work */

/* The answer's part of the context is as long as one burst: what it is does not move the sums. */
static sl_context_options context_options(const plan_state *s)
{
    size_t answer = (size_t)(s->rows < s->tokens ? s->rows : s->tokens - 1);
    sl_context_options options = cli_context_options(&s->machine, (size_t)s->tokens - answer);
    options.predict_tokens = answer;
    options.max_drafts = (size_t)s->rows - 1;
    options.draft_auto = !s->has_rows; /* as a run by itself has fewer where memory is short */
    return options;
}

static sl_status work(plan_state *s, sl_err *err)
{
    s->machine.engine.plan_only = true;
    sl_status status = cli_open(&s->c, &s->machine.engine, &s->engine, err);
    if (status != SL_OK)
        return status;
    sl_engine_get_info(s->engine, &s->info);
    const sl_context_options options = context_options(s);
    status = sl_engine_plan(s->engine, &options, (size_t)s->rows, &s->plan, &s->estimate, err);
    if (status == SL_CANCELLED && s->machine.json)
        return print_cancelled_json() == SL_OK ? status : SL_FAILED;
    /* A refusal comes with all that is known, unless it came before anything was. */
    if (status != SL_OK && !(status == SL_REFUSED && s->plan.kv_bytes > 0))
        return status;
    sl_err found = *err;
    if (sl_store_get_space(s->engine, NULL, &options, (uint64_t)s->tokens, &s->file, err) != SL_OK)
        return SL_FAILED;
    *err = found;
    if (s->machine.json) {
        sl_err cause = *err;
        sl_status written = print_json(s, status == SL_OK ? NULL : &cause, status == SL_OK ? err : NULL);
        return status == SL_OK ? written : status;
    }
    print_sizes(s);
    print_times(s);
    fflush(stdout);
    return status;
}

int cmd_plan(int argc, char **argv, sl_err *err)
{
    plan_state s;
    memset(&s, 0, sizeof s);
    int code = SL_OK;
    if (!parse(&s, argc, argv, &code, err))
        return code;
    cli_init(&s.c);
    s.c.verbose = s.machine.verbose;
    code = (int)work(&s, err);
    sl_progress_clear(&s.c.progress);
    return cli_close(s.engine, code, err);
}
