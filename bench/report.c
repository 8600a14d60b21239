/* Rows as columns: CSV, the fields of a JSON object, the table for people. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench/bench.h"

static void text(sl_bench_field **at, const char *name, const char *value)
{
    *(*at)++ = (sl_bench_field){.name = name, .kind = SL_BENCH_FIELD_TEXT, .text = value};
}

static void count(sl_bench_field **at, const char *name, uint64_t value)
{
    *(*at)++ = (sl_bench_field){.name = name, .kind = SL_BENCH_FIELD_COUNT, .count = value};
}

static void number(sl_bench_field **at, const char *name, double value)
{
    *(*at)++ = (sl_bench_field){.name = name, .kind = SL_BENCH_FIELD_NUMBER, .number = value};
}

/* A figure that may be absent. */
static void maybe(sl_bench_field **at, const char *name, bool has, double value)
{
    number(at, name, has && value >= 0 ? value : (double)NAN);
}

static void published(sl_bench_field **at, const sl_bench_row *row)
{
    const sl_bench_published *p = &row->published;
    bool has = row->has_published;
    maybe(at, "published_end_to_end_s", has, p->end_to_end_s);
    maybe(at, "published_compute_s", has, p->compute_s);
    maybe(at, "published_read_gb_per_s", has, p->read_gb_per_s);
    maybe(at, "published_throughput_per_s", has, p->throughput_per_s);
    maybe(at, "published_peak_memory_mb", has, p->peak_memory_mb);
}

size_t sl_bench_fields(const sl_bench_row *row, sl_bench_field *out)
{
    sl_bench_field *at = out;
    count(&at, "context_tokens", row->context_tokens);
    text(&at, "mode", row->mode);
    text(&at, "kv_type", row->kv_type);
    count(&at, "rows", row->rows);
    count(&at, "layers", row->shape.n_layers);
    count(&at, "heads", row->shape.n_heads);
    count(&at, "kv_heads", row->shape.n_kv_heads);
    count(&at, "head_dim", row->shape.head_dim);
    count(&at, "threads", row->n_threads);
    count(&at, "repeats", row->n_repeats);
    number(&at, "end_to_end_s", row->end_to_end_s.median);
    number(&at, "end_to_end_min_s", row->end_to_end_s.least);
    number(&at, "end_to_end_max_s", row->end_to_end_s.most);
    number(&at, "compute_s", row->compute_s.median);
    number(&at, "compute_min_s", row->compute_s.least);
    number(&at, "compute_max_s", row->compute_s.most);
    number(&at, "read_s", row->read_s.median);
    number(&at, "read_min_s", row->read_s.least);
    number(&at, "read_max_s", row->read_s.most);
    number(&at, "wait_s", row->wait_s);
    number(&at, "write_s", row->write_s);
    number(&at, "floor_s", row->floor_s);
    number(&at, "floor_disk_s", row->floor_disk_s);
    number(&at, "floor_memory_s", row->floor_memory_s);
    number(&at, "floor_compute_s", row->floor_compute_s);
    number(&at, "read_gb_per_s", row->read_rate / 1e9);
    number(&at, "verified_rows_per_s", row->verified_rows_per_s);
    number(&at, "prompt_tokens_per_s", row->prompt_tokens_per_s);
    count(&at, "kv_bytes", row->kv_bytes);
    count(&at, "bytes_read", row->bytes_read);
    count(&at, "bytes_written", row->bytes_written);
    count(&at, "resident_bytes", row->resident_bytes);
    count(&at, "ring_bytes", row->ring_bytes);
    count(&at, "window_tokens", row->window_tokens);
    count(&at, "ram_bytes", row->ram_bytes);
    count(&at, "peak_rss_bytes", row->peak_rss_bytes);
    maybe(&at, "page_cache_bytes", true, (double)row->page_cache_bytes);
    text(&at, "io_mode", row->io_mode);
    text(&at, "io_engine", row->io_engine);
    count(&at, "read_bytes", row->read_bytes);
    count(&at, "in_flight_bytes", row->in_flight_bytes);
    published(&at, row);
    return (size_t)(at - out);
}

void sl_bench_print_csv_line(const sl_bench_field *fields, size_t n, bool is_first, FILE *file)
{
    for (size_t f = 0; is_first && f < n; f++)
        fprintf(file, "%s%s", f ? "," : "", fields[f].name);
    fputs(is_first ? "\n" : "", file);
    for (size_t f = 0; f < n; f++) {
        const sl_bench_field *field = &fields[f];
        fputs(f ? "," : "", file);
        if (field->kind == SL_BENCH_FIELD_COUNT)
            fprintf(file, "%" PRIu64, field->count);
        else if (field->kind == SL_BENCH_FIELD_NUMBER && !isnan(field->number))
            fprintf(file, "%.6g", field->number);
        else if (field->kind == SL_BENCH_FIELD_TEXT && field->text) /* "io_uring, unregistered buffers" */
            fprintf(file, strchr(field->text, ',') ? "\"%s\"" : "%s", field->text);
    }
    fputc('\n', file);
}

void sl_bench_print_csv(const sl_bench_row *rows, size_t n, FILE *file)
{
    sl_bench_field fields[SL_BENCH_FIELDS];
    for (size_t i = 0; i < n; i++)
        sl_bench_print_csv_line(fields, sl_bench_fields(&rows[i], fields), i == 0, file);
}

static const char *tokens_text(uint64_t tokens, char out[24])
{
    if (tokens % (1 << 20) == 0)
        snprintf(out, 24, "%" PRIu64 "M", tokens >> 20);
    else if (tokens % 1024 == 0)
        snprintf(out, 24, "%" PRIu64 "K", tokens >> 10);
    else
        snprintf(out, 24, "%" PRIu64, tokens);
    return out;
}

static void print_seconds(double seconds, FILE *file)
{
    if (seconds > 0)
        fprintf(file, " %9.4g", seconds);
    else
        fprintf(file, " %9s", "-");
}

void sl_bench_print_table(const sl_bench_row *rows, size_t n, FILE *file)
{
    fprintf(file, "%7s %-9s %-4s %5s %9s %9s %9s %9s | %9s %9s | %6s %9s %8s %8s | %9s %9s\n", "context", "mode", "kv",
            "rows", "end-to-end", "compute", "read", "wait", "disk fl.", "comp. fl.", "GB/s", "rows/s", "resident",
            "peak", "published", "rows/s");
    fprintf(file, "%7s %-9s %-4s %5s %9s %9s %9s %9s | %9s %9s | %6s %9s %8s %8s | %9s %9s\n", "tokens", "", "", "",
            "s", "s", "s", "s", "s", "s", "", "", "MB", "MB", "s", "");
    for (size_t i = 0; i < n; i++) {
        const sl_bench_row *row = &rows[i];
        char tokens[24], row_count[24];
        fprintf(file, "%7s %-9s %-4s %5s", tokens_text(row->context_tokens, tokens), row->mode, row->kv_type,
                tokens_text(row->rows, row_count));
        print_seconds(row->end_to_end_s.median, file);
        print_seconds(row->compute_s.median, file);
        print_seconds(row->read_s.median, file);
        print_seconds(row->wait_s, file);
        fputs(" |", file);
        print_seconds(row->floor_disk_s, file);
        print_seconds(row->floor_compute_s, file);
        fprintf(file, " | %6.2f %9.4g %8.1f %8.1f |", row->read_rate / 1e9, row->verified_rows_per_s,
                (double)row->resident_bytes / 1e6, (double)row->peak_rss_bytes / 1e6);
        print_seconds(row->has_published ? row->published.end_to_end_s : 0, file);
        print_seconds(row->has_published ? row->published.throughput_per_s : 0, file);
        fputc('\n', file);
    }
}
