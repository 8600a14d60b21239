/* The kernel bench's rows as columns and as lines for people. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench/kernels.h"

static void text(sl_bench_field **at, const char *name, const char *value)
{
    *(*at)++ = (sl_bench_field){.name = name, .kind = SL_BENCH_FIELD_TEXT, .text = value && *value ? value : NULL};
}

static void count(sl_bench_field **at, const char *name, uint64_t value)
{
    *(*at)++ = (sl_bench_field){.name = name, .kind = SL_BENCH_FIELD_COUNT, .count = value};
}

/* 0: the row has none. */
static void number(sl_bench_field **at, const char *name, double value)
{
    *(*at)++ =
        (sl_bench_field){.name = name, .kind = SL_BENCH_FIELD_NUMBER, .number = value > 0 ? value : (double)NAN};
}

size_t sl_bench_kernel_fields(const sl_bench_kernel_row *row, sl_bench_field *out)
{
    sl_bench_field *at = out;
    text(&at, "group", row->group);
    text(&at, "name", row->name);
    text(&at, "level", row->level);
    text(&at, "type", row->type);
    count(&at, "threads", row->n_threads);
    count(&at, "repeats", row->n_repeats);
    count(&at, "heads", row->n_heads);
    count(&at, "kv_heads", row->n_kv_heads);
    count(&at, "head_dim", row->head_dim);
    count(&at, "keys", row->keys);
    count(&at, "rows", row->rows);
    count(&at, "n_in", row->n_in);
    count(&at, "n_out", row->n_out);
    number(&at, "seconds", row->seconds.median);
    number(&at, "min_s", row->seconds.least);
    number(&at, "max_s", row->seconds.most);
    number(&at, "gops", row->gops);
    number(&at, "gb_per_s", row->gb_per_s);
    text(&at, "bound", row->bound);
    number(&at, "share", row->share.median);
    number(&at, "min_share", row->share.least);
    number(&at, "max_share", row->share.most);
    text(&at, "compute_bound", row->compute_name);
    number(&at, "compute_peak_gops", row->compute_peak);
    number(&at, "compute_share", row->compute_share.median);
    text(&at, "memory_bound", row->memory_name);
    number(&at, "memory_peak_gb_per_s", row->memory_peak);
    number(&at, "memory_share", row->memory_share.median);
    number(&at, "matrix_peak_gops", row->matrix_peak);
    number(&at, "matrix_share", row->matrix_share.median);
    text(&at, "peer", row->peer);
    text(&at, "peer_way", row->peer_way);
    number(&at, "peer_s", row->peer_seconds.median);
    number(&at, "peer_min_s", row->peer_seconds.least);
    number(&at, "peer_max_s", row->peer_seconds.most);
    number(&at, "ratio", row->ratio.median);
    number(&at, "min_ratio", row->ratio.least);
    number(&at, "max_ratio", row->ratio.most);
    return (size_t)(at - out);
}

static void print_heading(const sl_bench_kernel_row *row, FILE *file)
{
    if (strcmp(row->group, "peak") == 0)
        fprintf(file, "\n%-12s %-8s %7s %11s %10s %10s\n", "peak", "level", "threads", "Gop/s, GB/s", "min", "max");
    else if (strcmp(row->group, "vector") == 0)
        fprintf(file, "\n%-12s %-8s %7s %11s %9s %9s %8s\n", "vector", "level", "threads", "Gelement/s", "GB/s",
                "peak", "share");
    else
        fprintf(file, "\n%-10s %-8s %7s %-22s %4s %10s %8s %8s  %-12s %8s %6s %6s %6s | %9s %6s  %s\n", row->group,
                "level", "threads", "shape", "rows", "seconds", "Gop/s", "GB/s", "bound by", "peak", "share", "min",
                "max", "peer s", "ratio", "peer");
}

static void print_shape(const sl_bench_kernel_row *row, FILE *file)
{
    char shape[40];
    if (row->n_heads > 0)
        snprintf(shape, sizeof shape, "%" PRIu32 "/%" PRIu32 "x%" PRIu32 " x %" PRIu64, row->n_heads, row->n_kv_heads,
                 row->head_dim, row->keys);
    else
        snprintf(shape, sizeof shape, "%zu x %zu", row->n_out, row->n_in);
    fprintf(file, "%-10s %-8s %7zu %-22s %4zu", row->type, row->level, row->n_threads, shape, row->rows);
}

void sl_bench_kernel_print(const sl_bench_kernel_row *row, const sl_bench_kernel_row *before, FILE *file)
{
    if (!before || strcmp(before->group, row->group) != 0)
        print_heading(row, file);
    if (strcmp(row->group, "peak") == 0) {
        fprintf(file, "%-12s %-8s %7zu %11.1f %10.1f %10.1f\n", row->name, row->level, row->n_threads,
                row->share.median, row->share.least, row->share.most);
        return;
    }
    if (strcmp(row->group, "vector") == 0) {
        fprintf(file, "%-12s %-8s %7zu %11.3f %9.1f %9.1f %8.3f\n", row->name, row->level, row->n_threads, row->gops,
                row->gb_per_s, row->memory_peak, row->memory_share.median);
        return;
    }
    bool is_compute = row->bound == row->compute_name;
    print_shape(row, file);
    fprintf(file, " %10.4g %8.1f %8.2f  %-12s %8.1f %6.3f %6.3f %6.3f |", row->seconds.median, row->gops,
            row->gb_per_s, row->bound, is_compute ? row->compute_peak : row->memory_peak, row->share.median,
            row->share.least, row->share.most);
    if (row->ratio.median > 0)
        fprintf(file, " %9.4g %6.2f ", row->peer_seconds.median, row->ratio.median);
    else
        fprintf(file, " %9s %6s ", "-", "-");
    fprintf(file, " %s%s%s\n", row->peer, *row->peer ? ": " : "", row->peer_way);
}
