/* sluice run: prefill a text into a cache on flash, answer a question about it by bursts, print what was measured. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct run_options {
    cli_machine machine;
    const char *question, *store;
    int64_t n_predict, seed, top_k, drafts;
    double temp, top_p, min_p;
    bool chat;
} run_options;

typedef struct run_state {
    cli c;
    run_options o;
    sl_engine *engine;
    sl_context *context;
    sl_store *store;
    char *document;
    size_t document_bytes;
    sl_tokens prompt;
    FILE *text_out; /* stdout; stderr with --json */
    char *text;     /* the answer, with --json */
    size_t n_text, text_cap;
    int32_t *ids;
    size_t n_ids;
    bool out_of_memory;
} run_state;

enum { OWN_OPTIONS = 10 };

static size_t fill_options(run_options *o, sl_arg *out)
{
    const sl_arg own[OWN_OPTIONS] = {
        {.name = "context", .letter = 'c', .kind = SL_ARG_KIND_STRING, .out = &o->store, .metavar = "BOOK.kv",
         .help = "a context file in place of the document (sluice prefill); stays as it is"},
        {.name = "prompt", .letter = 'p', .kind = SL_ARG_KIND_STRING, .out = &o->question, .allow_empty = true,
         .metavar = "TEXT", .help = "the question; stands after the document and a blank line"},
        {.name = "chat", .kind = SL_ARG_KIND_FLAG, .out = &o->chat,
         .help = "one user message in the model's chat template"},
        {.name = "predict", .letter = 'n', .kind = SL_ARG_KIND_INT, .out = &o->n_predict, .min = 0, .max = 1 << 24,
         .group = "Answer", .help = "most tokens to generate", .default_text = "128"},
        {.name = "temp", .kind = SL_ARG_KIND_FLOAT, .out = &o->temp, .low = 0, .high = 1000,
         .help = "temperature; 0 takes the likeliest token", .default_text = "0"},
        {.name = "top-k", .kind = SL_ARG_KIND_INT, .out = &o->top_k, .min = 0, .max = 1 << 24,
         .help = "keep the k likeliest tokens; 0 keeps all", .default_text = "0"},
        {.name = "top-p", .kind = SL_ARG_KIND_FLOAT, .out = &o->top_p, .low = 1e-6, .high = 1,
         .help = "keep the likeliest tokens up to this share", .default_text = "1"},
        {.name = "min-p", .kind = SL_ARG_KIND_FLOAT, .out = &o->min_p, .low = 0, .high = 1,
         .help = "keep tokens at least this likely, the likeliest being 1", .default_text = "0"},
        {.name = "seed", .kind = SL_ARG_KIND_INT, .out = &o->seed, .min = 0, .max = INT64_MAX,
         .help = "of the random numbers", .default_text = "1"},
        {.name = "draft", .kind = SL_ARG_KIND_INT, .out = &o->drafts, .min = 0, .max = 255,
         .help = "drafted tokens verified per pass; never changes the text", .default_text = "15"},
    };
    return cli_machine_table(&o->machine, own, OWN_OPTIONS, out);
}

static bool parse(run_options *o, int argc, char **argv, int *exit_code, sl_err *err)
{
    *o = (run_options){.n_predict = 128, .seed = 1, .drafts = 15, .top_p = 1.0};
    sl_arg options[OWN_OPTIONS + CLI_MACHINE_OPTIONS];
    const sl_args_table table = {
        .usage = "sluice run -m MODEL.gguf -f DOC.txt -p \"question\" [options]",
        .about = "Reads a document into a KV cache on flash and answers a question about it. The answer goes to "
                 "stdout as it comes, what was measured to stderr.",
        .options = options,
        .n_options = fill_options(o, options),
    };
    sl_args_result result;
    if (!cli_parse(&table, argc, argv, &result, exit_code, err))
        return false;
    if (o->store && (o->machine.file || !o->question || !*o->question)) {
        const char *text = o->machine.file ? "a document (-f) or a context (-c), not both"
                                           : "a context (-c) needs a question (-p)";
        *exit_code = (int)sl_text_error(err, SL_USAGE, "%s", text);
        return false;
    }
    if (!o->machine.file && !o->question && !o->store) {
        *exit_code = (int)sl_text_error(err, SL_USAGE, "nothing to read: give a document (-f) or a question (-p)");
        return false;
    }
    return true;
}

/* ----------------------------------------------------------------------------------------------------- the work */

static bool keep(run_state *r, int32_t id, const char *text, size_t size)
{
    if (id >= 0)
        r->ids[r->n_ids++] = id;
    if (r->n_text + size > r->text_cap) {
        size_t cap = 2 * r->text_cap + size + 256;
        char *grown = realloc(r->text, cap);
        if (!grown) {
            r->out_of_memory = true;
            return false;
        }
        r->text = grown;
        r->text_cap = cap;
    }
    if (size > 0)
        memcpy(r->text + r->n_text, text, size);
    r->n_text += size;
    return true;
}

static bool on_token(void *arg, int32_t id, const char *text, size_t size)
{
    run_state *r = arg;
    fwrite(text, 1, size, r->text_out);
    fflush(r->text_out);
    return keep(r, id, text, size) && !cli_interrupted(NULL);
}

static sl_status read_prompt(run_state *r, sl_err *err)
{
    sl_store_info stored = {0};
    if (r->store)
        sl_store_get_info(r->store, &stored);
    const sl_prompt prompt = {
        .document = r->document,
        .document_size = r->document_bytes,
        .question = r->o.question,
        .question_size = r->o.question ? strlen(r->o.question) : 0,
        .chat = r->o.chat,
        .stored = r->store != NULL,
        .stored_ids = stored.ids,
        .n_stored = (size_t)stored.n_tokens,
    };
    sl_status status = sl_engine_prompt(r->engine, &prompt, &r->prompt, err);
    free(r->document);
    r->document = NULL;
    return status;
}

static sl_status make_context(run_state *r, sl_err *err)
{
    sl_context_options options = cli_context_options(&r->o.machine, r->prompt.n);
    options.predict_tokens = (size_t)r->o.n_predict;
    options.max_drafts = (size_t)r->o.drafts;
    options.store = r->store;
    if (r->store) {
        sl_store_info info;
        sl_store_get_info(r->store, &info);
        options.cache = info.cache;
        options.rope_scale = info.rope_scale > 1.0 ? info.rope_scale : options.rope_scale;
    }
    return cli_make_context(&r->c, r->engine, &options, &r->context, err);
}

static sl_status answer(run_state *r, sl_draw_result *result, sl_err *err)
{
    const sl_draw_options options = {
        .temp = (float)r->o.temp,
        .top_k = (uint32_t)r->o.top_k,
        .top_p = (float)r->o.top_p,
        .min_p = (float)r->o.min_p,
        .seed = (uint64_t)r->o.seed,
        .predict_tokens = (size_t)r->o.n_predict,
        .max_drafts = (size_t)r->o.drafts,
        .token = on_token,
        .arg = r,
    };
    r->ids = calloc((size_t)r->o.n_predict + 1, sizeof *r->ids);
    if (!r->ids)
        return sl_text_error(err, SL_FAILED, "out of memory: answer");
    sl_status status = sl_context_generate(r->context, &options, result, err);
    if (status == SL_OK && r->out_of_memory)
        status = sl_text_error(err, SL_FAILED, "out of memory: answer");
    return status;
}

/* ---------------------------------------------------------------------------------------------------- reporting */

static const char *const reasons[] = {"stop", "length", "context", "cancelled"};

static double per(double amount, double seconds)
{
    return seconds > 0.0 ? amount / seconds : 0.0;
}

/* Of a run that ended before it had a context, too: all zeros. The estimate is for as many rows as the passes had. */
static void get_results(const run_state *r, sl_stats *stats, sl_plan *plan, sl_estimate *estimated)
{
    memset(stats, 0, sizeof *stats);
    memset(plan, 0, sizeof *plan);
    memset(estimated, 0, sizeof *estimated);
    if (!r->context)
        return;
    sl_context_get_stats(r->context, stats);
    sl_context_get_plan(r->context, plan);
    size_t rows = stats->n_passes && stats->n_rows ? (stats->n_rows + stats->n_passes / 2) / stats->n_passes : 0;
    sl_context_estimate(r->context, rows, estimated);
}

static void json_text(sl_json *j, const char *key, const char *text)
{
    sl_json_key(j, key);
    if (text)
        sl_json_string(j, text);
    else
        sl_json_null(j);
}

static sl_status print_json(run_state *r, const sl_draw_result *result, sl_err *err)
{
    sl_stats s;
    sl_plan plan;
    sl_estimate estimated;
    get_results(r, &s, &plan, &estimated);
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    sl_json_key(&j, "text");
    sl_json_bytes(&j, r->text ? r->text : "", r->n_text);
    sl_json_key(&j, "tokens");
    sl_json_array_start(&j);
    for (size_t i = 0; i < r->n_ids; i++)
        sl_json_int(&j, r->ids[i]);
    sl_json_array_end(&j);
    sl_json_key(&j, "finish_reason");
    sl_json_string(&j, reasons[result->reason]);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"prompt_tokens", s.prompt_tokens}, {"stored_tokens", s.stored_tokens},
        {"kv_bytes", s.kv_bytes}, {"resident_bytes", s.resident_bytes},
        {"bytes_read", s.bytes_read},
        {"bytes_written", s.bytes_written}, {"bytes_visited", s.bytes_visited}, {"windows", s.n_windows},
        {"passes", s.n_passes}, {"rows", s.n_rows}, {"drafted", s.n_drafted}, {"accepted", s.n_accepted},
        {"peak_rss_bytes", s.peak_rss_bytes}, {"read_bytes", s.read_bytes}, {"in_flight_bytes", s.in_flight_bytes},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(&j, counts[i].key);
        sl_json_uint(&j, counts[i].value);
    }
    const struct {
        const char *key;
        double value;
    } measures[] = {
        {"prefill_s", s.prefill_s}, {"decode_s", s.decode_s}, {"wait_s", s.wait_s}, {"compute_s", s.compute_s},
        {"read_s", s.read_s}, {"write_s", s.write_s},
        {"verified_rows_per_s", per((double)s.n_rows, s.decode_s)},
        {"accepted_tokens_per_s", per((double)s.n_tokens, s.decode_s)},
        {"tokens_per_pass", s.n_passes && s.n_tokens ? (double)(s.n_tokens - 1) / (double)s.n_passes : 0.0},
    };
    for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++) {
        sl_json_key(&j, measures[i].key);
        sl_json_double(&j, measures[i].value);
    }
    sl_json_key(&j, "page_cache_growth_bytes");
    if (s.page_cache_growth_bytes < 0)
        sl_json_null(&j);
    else
        sl_json_int(&j, s.page_cache_growth_bytes);
    json_text(&j, "io_mode", s.io_mode);
    json_text(&j, "io_engine", s.io_engine);
    sl_json_key(&j, "estimate");
    cli_json_estimate(&j, &estimated);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

/* The floor is what a pass's bytes take at the disk's best: as measured on its own or as seen in this run, or at the
 * rate that it was held to. */
static void print_flash(const sl_stats *s, const sl_estimate *estimated, uint64_t limit)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES];
    double seen = per((double)s->bytes_read, s->read_s);
    double best = estimated->disk_read_rate > seen ? estimated->disk_read_rate : seen;
    if (limit > 0 && (double)limit < best)
        best = (double)limit;
    double per_pass = s->n_passes ? (double)s->decode_bytes_read / (double)s->n_passes : 0.0;
    fprintf(stderr, "  flash       %s read, at %s while reads were in flight, I/O %s, %s; page cache grew by %s\n",
            sl_text_format_size(s->bytes_read, a), sl_text_format_rate(seen, b), s->io_mode, s->io_engine,
            s->page_cache_growth_bytes < 0 ? "?" : sl_text_format_size((uint64_t)s->page_cache_growth_bytes, c));
    if (s->n_passes == 0)
        return;
    fprintf(stderr, "  a pass      %s measured", sl_text_format_time(s->decode_s / (double)s->n_passes, a));
    fprintf(stderr, "; disk floor %s (%s at %s)\n", sl_text_format_time(best > 0.0 ? per_pass / best : 0.0, a),
            sl_text_format_size((uint64_t)per_pass, b), sl_text_format_rate(best, c));
}

static void print_table(run_state *r, const sl_draw_result *result)
{
    sl_stats s;
    sl_plan plan;
    sl_estimate estimated;
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES];
    get_results(r, &s, &plan, &estimated);
    fprintf(stderr, "\n");
    if (s.stored_tokens > 0)
        fprintf(stderr, "  context     %zu tokens from %s\n", s.stored_tokens, r->o.store);
    fprintf(stderr, "  prompt      %zu tokens in %s, %.1f tokens/s, %zu windows of %zu\n", s.prompt_tokens,
            sl_text_format_time(s.prefill_s, a), per((double)s.prompt_tokens, s.prefill_s), s.n_windows,
            plan.window_tokens);
    fprintf(stderr, "  answer      %zu tokens in %s (%s): %.2f accepted tokens/s\n", s.n_tokens,
            sl_text_format_time(s.decode_s, a), reasons[result->reason], per((double)s.n_tokens, s.decode_s));
    fprintf(stderr, "  bursts      %zu passes, %zu verified rows (%.1f rows/s), %zu of %zu drafts kept, %.2f tokens a "
                    "pass\n",
            s.n_passes, s.n_rows, per((double)s.n_rows, s.decode_s), s.n_accepted, s.n_drafted,
            s.n_passes ? (double)(s.n_tokens - 1) / (double)s.n_passes : 0.0);
    fprintf(stderr, "  cache       %s, of which %s in memory at the end; written %s\n",
            sl_text_format_size(s.kv_bytes, a),
            sl_text_format_size(s.resident_bytes, b), sl_text_format_size(s.bytes_written, c));
    if (s.bytes_read + s.bytes_written == 0)
        fprintf(stderr, "  flash       not used: the cache fits in memory\n");
    else
        print_flash(&s, &estimated, (uint64_t)r->o.machine.read_rate);
    fprintf(stderr, "  time        computing %s, waiting for flash %s, writing %s\n",
            sl_text_format_time(s.compute_s, a), sl_text_format_time(s.wait_s, b), sl_text_format_time(s.write_s, c));
    fprintf(stderr, "  memory      peak %s of %s\n", sl_text_format_size(s.peak_rss_bytes, a),
            sl_text_format_size(plan.ram_bytes, b));
    cli_print_comparison(&plan, &estimated, &s);
}

static sl_status start(run_state *r, sl_err *err)
{
    sl_status status = SL_OK;
    const cli_machine *m = &r->o.machine;
    if (m->file)
        status = cli_read_document(m->file, &m->engine, &r->document, &r->document_bytes, err);
    if (status == SL_OK)
        status = cli_open(&r->c, &m->engine, &r->engine, err);
    if (status == SL_OK && r->o.store)
        status = cli_open_store(r->engine, r->o.store, r->o.chat, &r->store, err);
    if (status == SL_OK)
        status = read_prompt(r, err);
    return status == SL_OK ? make_context(r, err) : status;
}

static sl_status work(run_state *r, sl_err *err)
{
    const cli_machine *m = &r->o.machine;
    sl_draw_result result = {SL_FINISH_REASON_CANCELLED, 0};
    sl_status status = start(r, err);
    if (status == SL_OK) {
        r->c.phase = "prefill";
        status = sl_context_feed(r->context, r->prompt.ids, r->prompt.n, cli_count, &r->c, err);
        sl_progress_clear(&r->c.progress);
    }
    if (status == SL_OK)
        status = answer(r, &result, err);
    if (status == SL_CANCELLED) /* before the answer: the object says so, with no text */
        return m->json && print_json(r, &result, NULL) != SL_OK ? SL_FAILED : status;
    if (status != SL_OK)
        return status;
    if (r->n_text > 0 && r->text[r->n_text - 1] != '\n')
        fputc('\n', r->text_out);
    if (m->json)
        status = print_json(r, &result, err);
    else
        print_table(r, &result);
    if (status == SL_OK && result.reason == SL_FINISH_REASON_CANCELLED)
        return sl_text_error(err, SL_CANCELLED, "interrupted");
    return status;
}

int cmd_run(int argc, char **argv, sl_err *err)
{
    run_state r;
    memset(&r, 0, sizeof r);
    int code = SL_OK;
    if (!parse(&r.o, argc, argv, &code, err))
        return code;
    cli_init(&r.c);
    r.c.verbose = r.o.machine.verbose;
    r.text_out = r.o.machine.json ? stderr : stdout;
    code = (int)work(&r, err);
    sl_progress_clear(&r.c.progress);
    free(r.document);
    free(r.text);
    free(r.ids);
    sl_context_destroy(r.context);
    sl_store_close(r.store);
    if (r.engine)
        sl_tokens_free(r.engine, &r.prompt);
    return cli_close(r.engine, code, err);
}
