/* Plans and estimates as the subcommands print them. */
#include "cli.h"

static void print_plan(const sl_context *context)
{
    sl_plan p;
    sl_context_get_plan(context, &p);
    const sl_plan *plan = &p;
    char text[7][SL_TEXT_NUMBER_BYTES];
    fprintf(stderr,
            "sluice: plan: of %s: program %s, weights %s, tables %s, ring %s, window of %zu tokens %s, resident %s\n",
            sl_text_format_size(plan->ram_bytes, text[0]), sl_text_format_size(plan->program_bytes, text[1]),
            sl_text_format_size(plan->weight_bytes, text[2]), sl_text_format_size(plan->table_bytes, text[3]),
            sl_text_format_size(plan->ring_bytes, text[4]), plan->window_tokens,
            sl_text_format_size(plan->window_bytes, text[5]), sl_text_format_size(plan->resident_bytes, text[6]));
    const bool drops = plan->kept_bytes < plan->max_tokens / 64 * 64 * plan->kv_token_bytes;
    fprintf(stderr, "sluice: plan: cache of %zu tokens %s (%llu bytes a token%s%s), disk %s\n", plan->max_tokens,
            sl_text_format_size(plan->kv_bytes, text[0]), (unsigned long long)plan->kv_token_bytes,
            drops ? "; of them at once " : "", drops ? sl_text_format_size(plan->kept_bytes, text[2]) : "",
            sl_text_format_size(plan->disk_bytes, text[1]));
    if (plan->weight_buffer_bytes > 0)
        fprintf(stderr, "sluice: plan: of %s of weights, %s stay in memory, buffers take %s: a pass reads up to %s "
                        "of the model file, and %s a row; all stay from %lluM on\n",
                sl_text_format_size(plan->file_weight_bytes, text[0]), sl_text_format_size(plan->weight_bytes, text[1]),
                sl_text_format_size(plan->weight_buffer_bytes, text[2]),
                sl_text_format_size(plan->weight_pass_bytes + plan->weight_logit_bytes, text[3]),
                sl_text_format_size(plan->weight_row_bytes, text[4]),
                (unsigned long long)((plan->whole_bytes + (1 << 20) - 1) >> 20));
    if (plan->max_drafts == 0)
        return;
    fprintf(stderr, "sluice: plan: up to %zu drafts a burst, by%s%s", plan->max_drafts,
            plan->drafters & SL_DRAFT_WITH_NGRAM ? " n-gram" : "", plan->drafters & SL_DRAFT_WITH_SELF ? " self" : "");
    if (plan->drafters & SL_DRAFT_WITH_SELF)
        fprintf(stderr, " (%zu hot tokens)", plan->hot_tokens);
    if (plan->drafters & SL_DRAFT_WITH_MODEL)
        fprintf(stderr, " model (%s)", sl_text_format_size(plan->draft_bytes, text[2]));
    if (plan->no_self)
        fprintf(stderr, "; not by self: %s", plan->no_self);
    fputc('\n', stderr);
}

/* Something goes to the disk, and nobody has measured it. */
static bool is_disk_unknown(const sl_estimate *e)
{
    return (e->pass_bytes + e->weight_bytes + e->written_bytes > 0) && e->disk_read_rate <= 0.0;
}

static void print_estimate(const sl_estimate *e, size_t predict_tokens)
{
    char text[3][SL_TEXT_NUMBER_BYTES], pass[96] = "";
    if (predict_tokens > 1)
        snprintf(pass, sizeof pass, ", then %s a pass of up to %zu rows", sl_text_format_time(e->pass_s, text[0]),
                 e->rows);
    fprintf(stderr, "sluice: estimate: prompt read in %s%s; %s to be written%s\n",
            sl_text_format_time(e->first_token_s, text[1]), pass, sl_text_format_size(e->written_bytes, text[2]),
            is_disk_unknown(e) ? "; the disk is not measured and left out (--io-probe)" : "");
}

static sl_status look_ahead(const cli *c, sl_engine *engine, const sl_context_options *o, sl_err *err)
{
    enum { LONG_TOKENS = 2048 };
    const double long_s = 10.0;
    /* A talk's times would be those of a room that is filled in one go. */
    if (o->talk || (o->prompt_tokens <= LONG_TOKENS && !c->verbose))
        return SL_OK;
    sl_plan plan;
    sl_estimate e;
    sl_status status = sl_engine_plan(engine, o, o->max_drafts + 1, &plan, &e, err);
    /* At the latest: no draft is kept. */
    double whole_s = e.first_token_s + (o->predict_tokens > 1 ? (double)(o->predict_tokens - 1) * e.pass_s : 0.0);
    if (status == SL_OK && (c->verbose || whole_s >= long_s))
        print_estimate(&e, o->predict_tokens);
    return status;
}

sl_status cli_make_context(const cli *c, sl_engine *engine, const sl_context_options *options, sl_context **out,
                           sl_err *err)
{
    sl_status status = look_ahead(c, engine, options, err);
    if (status == SL_OK)
        status = sl_context_create(engine, options, out, err);
    if (status == SL_OK && c->verbose)
        print_plan(*out);
    return status;
}

static uint64_t planned_bytes(const sl_plan *p)
{
    return p->program_bytes + p->weight_bytes + p->weight_buffer_bytes + p->draft_bytes + p->table_bytes +
           p->ring_bytes + p->window_bytes + p->resident_bytes;
}

static void print_pair(const char *what, const char *estimated, const char *measured)
{
    fprintf(stderr, "    %-14s%12s%12s\n", what, estimated, measured);
}

void cli_print_comparison(const sl_plan *plan, const sl_estimate *e, const sl_stats *s)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], pass[48];
    if (e->prefill_s <= 0.0)
        return;
    snprintf(pass, sizeof pass, "pass, %zu rows", e->rows);
    fprintf(stderr, "  %-16s%12s%12s\n", is_disk_unknown(e) ? "(disk left out)" : "", "estimated", "measured");
    print_pair("prompt", sl_text_format_time(e->prefill_s, a), sl_text_format_time(s->prefill_s, b));
    if (s->n_passes > 0)
        print_pair(pass, sl_text_format_time(e->pass_s, a),
                   sl_text_format_time(s->decode_s / (double)s->n_passes, b));
    print_pair("written", sl_text_format_size(e->written_bytes, a), sl_text_format_size(s->bytes_written, b));
    print_pair("memory", sl_text_format_size(planned_bytes(plan), a), sl_text_format_size(s->peak_rss_bytes, b));
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

static void json_known(sl_json *json, const char *key, double value)
{
    sl_json_key(json, key);
    if (value > 0.0)
        sl_json_double(json, value);
    else
        sl_json_null(json);
}

void cli_json_weights(sl_json *json, const sl_plan *plan)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"weights_resident_bytes", plan->weight_bytes},
        {"weights_file_bytes", plan->file_weight_bytes ? plan->file_weight_bytes : plan->weight_bytes},
        {"weights_buffer_bytes", plan->weight_buffer_bytes},
        {"weights_pass_bytes", plan->weight_pass_bytes},
        {"weights_logit_bytes", plan->weight_logit_bytes},
        {"weights_row_bytes", plan->weight_row_bytes},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(json, counts[i].key);
        sl_json_uint(json, counts[i].value);
    }
}

void cli_json_estimate(sl_json *json, const sl_estimate *e)
{
    const struct {
        const char *key;
        double value;
    } measured[] = {
        {"disk_read_rate", e->disk_read_rate}, {"disk_write_rate", e->disk_write_rate},
        {"memory_rate", e->memory_rate}, {"read_bytes", (double)e->read_bytes},
        {"in_flight_bytes", (double)e->in_flight_bytes}, {"prefill_compute_s", e->prefill_compute_s},
        {"prefill_s", e->prefill_s}, {"first_token_s", e->first_token_s}, {"pass_memory_s", e->pass_memory_s},
        {"pass_compute_s", e->pass_compute_s}, {"pass_s", e->pass_s}, {"crossover_rows", (double)e->crossover_rows},
    };
    /* nothing to read or write takes no time; what the disk has not been measured for is not known */
    const struct {
        const char *key;
        uint64_t bytes;
        double value;
    } flash[] = {
        {"prefill_read_s", e->read_bytes_prefill + e->weight_bytes_prefill, e->prefill_read_s},
        {"prefill_write_s", e->written_bytes, e->prefill_write_s},
        {"pass_disk_s", e->pass_bytes + e->weight_bytes, e->pass_disk_s},
        {"weight_pass_s", e->weight_bytes, e->weight_pass_s},
        {"weight_row_s", e->weight_bytes, e->rows > 0 ? e->weight_pass_s / (double)e->rows : 0.0},
    };
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"rows", e->rows},
        {"pass_bytes", e->pass_bytes},
        {"read_bytes_prefill", e->read_bytes_prefill},
        {"written_bytes", e->written_bytes},
        {"weight_bytes", e->weight_bytes},
        {"weight_bytes_prefill", e->weight_bytes_prefill},
    };
    sl_json_object_start(json);
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++)
        json_known(json, measured[i].key, measured[i].value);
    for (size_t i = 0; i < sizeof flash / sizeof flash[0]; i++) {
        sl_json_key(json, flash[i].key);
        if (flash[i].bytes > 0 && flash[i].value <= 0.0)
            sl_json_null(json);
        else
            sl_json_double(json, flash[i].value);
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(json, counts[i].key);
        sl_json_uint(json, counts[i].value);
    }
    sl_json_key(json, "disk_remembered");
    sl_json_bool(json, e->disk_remembered);
    sl_json_object_end(json);
}
