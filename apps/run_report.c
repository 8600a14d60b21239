/* What a run measured: a table for people, one JSON object for programs. */
#include <string.h>

#include "draft_report.h"
#include "run.h"

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

static cli_plain_floor plain_floor(const run_state *r, const sl_stats *s)
{
    sl_estimate one_row;
    memset(&one_row, 0, sizeof one_row);
    if (r->context)
        sl_context_estimate(r->context, 1, &one_row);
    return cli_plain_floor_of(s, &one_row, (uint64_t)r->o.machine.read_rate);
}

/* What the file holds now and did not before. */
static size_t n_appended(const run_state *r, const sl_stats *s)
{
    return r->is_kept ? sl_context_n_tokens(r->context) - s->stored_tokens : 0;
}

static void json_text(sl_json *j, const char *key, const char *text)
{
    sl_json_key(j, key);
    if (text)
        sl_json_string(j, text);
    else
        sl_json_null(j);
}

static void print_counts(sl_json *j, const run_state *r, const sl_stats *s)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"prompt_tokens", s->prompt_tokens}, {"stored_tokens", s->stored_tokens},
        {"kv_bytes", s->kv_bytes}, {"resident_bytes", s->resident_bytes},
        {"bytes_read", s->bytes_read},
        {"bytes_written", s->bytes_written}, {"bytes_visited", s->bytes_visited},
        {"weights_bytes_read", s->weight_bytes_read}, {"windows", s->n_windows},
        {"passes", s->n_passes}, {"rows", s->n_rows}, {"drafted", s->n_drafted}, {"accepted", s->n_accepted},
        {"peak_rss_bytes", s->peak_rss_bytes}, {"read_bytes", s->read_bytes},
        {"in_flight_bytes", s->in_flight_bytes},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(j, counts[i].key);
        sl_json_uint(j, counts[i].value);
    }
    if (!r->o.append)
        return;
    sl_json_key(j, "appended_tokens");
    sl_json_uint(j, n_appended(r, s));
}

static void print_measures(sl_json *j, const run_state *r, const sl_stats *s)
{
    const struct {
        const char *key;
        double value;
    } measures[] = {
        {"prefill_s", s->prefill_s}, {"decode_s", s->decode_s}, {"wait_s", s->wait_s}, {"compute_s", s->compute_s},
        {"weights_wait_s", s->weight_wait_s},
        {"read_s", s->read_s}, {"write_s", s->write_s},
        {"verified_rows_per_s", per((double)s->n_rows, s->decode_s)},
        {"accepted_tokens_per_s", per((double)s->n_tokens, s->decode_s)},
        {"tokens_per_pass", s->n_passes && s->n_tokens ? (double)(s->n_tokens - 1) / (double)s->n_passes : 0.0},
    };
    for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++) {
        sl_json_key(j, measures[i].key);
        sl_json_double(j, measures[i].value);
    }
    sl_json_key(j, "first_token_s");
    if (r->first_token_s > 0.0)
        sl_json_double(j, r->first_token_s);
    else
        sl_json_null(j);
    sl_json_key(j, "page_cache_growth_bytes");
    if (s->page_cache_growth_bytes < 0)
        sl_json_null(j);
    else
        sl_json_int(j, s->page_cache_growth_bytes);
}

sl_status run_print_json(run_state *r, const sl_draw_result *result, sl_err *err)
{
    sl_stats s;
    sl_plan plan;
    sl_estimate estimated;
    get_results(r, &s, &plan, &estimated);
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    cli_answer_json(&j, &r->answer, r->engine, result->reason);
    print_counts(&j, r, &s);
    cli_json_weights(&j, &plan);
    print_measures(&j, r, &s);
    cli_json_drafting(&j, &s, plain_floor(r, &s));
    json_text(&j, "io_mode", s.io_mode);
    json_text(&j, "io_engine", s.io_engine);
    sl_json_key(&j, "estimate");
    cli_json_estimate(&j, &estimated);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

/* The floor is what a pass's bytes, of cache and weights, take at the disk's best. */
static void print_flash(const sl_stats *s, const sl_estimate *estimated, uint64_t limit)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES];
    double seen = per((double)s->bytes_read, s->read_s);
    double best = cli_best_read_rate(s, estimated, limit);
    double per_pass = s->n_passes ? (double)s->decode_bytes_read / (double)s->n_passes : 0.0;
    per_pass += (double)estimated->weight_bytes;
    fprintf(stderr, "  flash       %s read, at %s while reads were in flight, I/O %s, %s; page cache grew by %s\n",
            sl_text_format_size(s->bytes_read, a), sl_text_format_rate(seen, b), s->io_mode, s->io_engine,
            s->page_cache_growth_bytes < 0 ? "?" : sl_text_format_size((uint64_t)s->page_cache_growth_bytes, c));
    if (s->n_passes == 0)
        return;
    fprintf(stderr, "  a pass      %s measured", sl_text_format_time(s->decode_s / (double)s->n_passes, a));
    fprintf(stderr, "; disk floor %s (%s at %s)\n", sl_text_format_time(cli_pass_disk_s(s, estimated, limit), a),
            sl_text_format_size((uint64_t)per_pass, b), sl_text_format_rate(best, c));
}

void run_print_table(run_state *r, const sl_draw_result *result)
{
    sl_stats s;
    sl_plan plan;
    sl_estimate estimated;
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES], d[SL_TEXT_NUMBER_BYTES];
    get_results(r, &s, &plan, &estimated);
    fprintf(stderr, "\n");
    if (s.stored_tokens > 0)
        fprintf(stderr, "  context     %zu tokens from %s\n", s.stored_tokens, r->o.store);
    fprintf(stderr, "  prompt      %zu tokens in %s, %.1f tokens/s, %zu windows of %zu\n", s.prompt_tokens,
            sl_text_format_time(s.prefill_s, a), per((double)s.prompt_tokens, s.prefill_s), s.n_windows,
            plan.window_tokens);
    fprintf(stderr, "  answer      %zu tokens in %s (%s): %.2f accepted tokens/s\n", s.n_tokens,
            sl_text_format_time(s.decode_s, a), cli_finish_reason(result->reason), per((double)s.n_tokens, s.decode_s));
    if (r->first_token_s > 0.0)
        fprintf(stderr, "  first token %s after the start\n", sl_text_format_time(r->first_token_s, a));
    fprintf(stderr, "  bursts      %zu passes, %zu verified rows (%.1f rows/s), %zu of %zu drafts kept, %.2f tokens a "
                    "pass\n",
            s.n_passes, s.n_rows, per((double)s.n_rows, s.decode_s), s.n_accepted, s.n_drafted,
            s.n_passes ? (double)(s.n_tokens - 1) / (double)s.n_passes : 0.0);
    cli_print_drafting(&s, plain_floor(r, &s));
    fprintf(stderr, "  cache       %s, of which %s in memory at the end; written %s\n",
            sl_text_format_size(s.kv_bytes, a),
            sl_text_format_size(s.resident_bytes, b), sl_text_format_size(s.bytes_written, c));
    if (s.bytes_read + s.bytes_written == 0)
        fprintf(stderr, "  flash       not used: the cache fits in memory\n");
    else
        print_flash(&s, &estimated, (uint64_t)r->o.machine.read_rate);
    if (plan.weight_buffer_bytes > 0)
        fprintf(stderr, "  weights     %s of %s in memory; %s read from the model file, waited for them %s\n",
                sl_text_format_size(plan.weight_bytes, a), sl_text_format_size(plan.file_weight_bytes, b),
                sl_text_format_size(s.weight_bytes_read, c), sl_text_format_time(s.weight_wait_s, d));
    fprintf(stderr, "  time        computing %s, waiting for flash %s, writing %s\n",
            sl_text_format_time(s.compute_s, a), sl_text_format_time(s.wait_s, b), sl_text_format_time(s.write_s, c));
    fprintf(stderr, "  memory      peak %s of %s\n", sl_text_format_size(s.peak_rss_bytes, a),
            sl_text_format_size(plan.ram_bytes, b));
    if (r->is_kept)
        fprintf(stderr, "  appended    %zu tokens; %s holds %zu now\n", n_appended(r, &s), r->o.store,
                sl_context_n_tokens(r->context));
    cli_print_comparison(&plan, &estimated, &s);
}
