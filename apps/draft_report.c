#include "draft_report.h"

static double per(double amount, double seconds)
{
    return seconds > 0.0 ? amount / seconds : 0.0;
}

double cli_best_read_rate(const sl_stats *s, const sl_estimate *estimate, uint64_t limit)
{
    const double seen = per((double)s->bytes_read, s->read_s);
    const double best = estimate->disk_read_rate > seen ? estimate->disk_read_rate : seen;
    return limit > 0 && (double)limit < best ? (double)limit : best;
}

double cli_pass_disk_s(const sl_stats *s, const sl_estimate *estimate, uint64_t limit)
{
    const double bytes = s->n_passes ? (double)s->decode_bytes_read / (double)s->n_passes : 0.0;
    return per(bytes, cli_best_read_rate(s, estimate, limit)) +
           per((double)estimate->weight_bytes, cli_best_read_rate(s, estimate, 0));
}

cli_plain_floor cli_plain_floor_of(const sl_stats *s, const sl_estimate *one_row, uint64_t limit)
{
    const double compute_s = one_row->pass_compute_s, memory_s = one_row->pass_memory_s;
    return (cli_plain_floor){cli_pass_disk_s(s, one_row, limit),
                             compute_s <= 0.0 || compute_s > memory_s ? compute_s : memory_s};
}

/* Of a token of plain decoding. */
static double floor_s(cli_plain_floor floor)
{
    return floor.disk_s > floor.compute_s ? floor.disk_s : floor.compute_s;
}

static size_t sum_of(const size_t counts[SL_STATS_DEPTHS])
{
    size_t sum = 0;
    for (size_t i = 0; i < SL_STATS_DEPTHS; i++)
        sum += counts[i];
    return sum;
}

/* ------------------------------------------------------------------------------------------------------------ table */

/* "n-gram 40 of 52 kept (90 % of the first, 81 2nd, 70 4th, 66 8th, 60 16th on), 0.01 s" */
static void print_drafter(const sl_drafter_stats *d)
{
    static const struct {
        size_t depth;
        const char *name;
    } shown[] = {{0, "first"}, {1, "2nd"}, {3, "4th"}, {7, "8th"}, {15, "16th on"}};
    char time[SL_TEXT_NUMBER_BYTES];
    fprintf(stderr, "%s %zu of %zu kept", d->name, sum_of(d->n_accepted), sum_of(d->n_verified));
    const char *before = " (";
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        const size_t n = d->n_verified[shown[i].depth];
        if (n == 0)
            continue;
        fprintf(stderr, "%s%.0f %% %s", before, 100.0 * (double)d->n_accepted[shown[i].depth] / (double)n,
                shown[i].name);
        before = ", ";
    }
    fprintf(stderr, "%s, %s", before[0] == ',' ? ")" : "", sl_text_format_time(d->seconds, time));
}

void cli_print_drafting(const sl_stats *s, cli_plain_floor floor)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES];
    if (s->n_drafted == 0 || s->n_passes == 0)
        return;
    const char *before = "  drafting    ";
    for (size_t i = 0; i < s->n_drafters; i++) {
        if (s->drafters[i].n_asked == 0)
            continue;
        fputs(before, stderr);
        print_drafter(&s->drafters[i]);
        before = "; ";
    }
    fprintf(stderr, "%s  burst time  drafting %s, passes %s, drawing and keeping %s; %zu of %zu passes branched\n",
            before[0] == ';' ? "\n" : "", sl_text_format_time(s->draft_s, a), sl_text_format_time(s->pass_s, b),
            sl_text_format_time(s->accept_s, c), s->n_tree_passes, s->n_passes);
    const double all_s = floor_s(floor) * (double)s->n_tokens;
    if (all_s <= 0.0)
        return;
    fprintf(stderr, "  plain       a token a pass would take %s at least (a pass: disk %s, computing %s)",
            sl_text_format_time(all_s, a), sl_text_format_time(floor.disk_s, b),
            floor.compute_s > 0.0 ? sl_text_format_time(floor.compute_s, c) : "not measured");
    if (all_s >= s->decode_s)
        fprintf(stderr, ", %.2f times as long as with drafts", per(all_s, s->decode_s));
    else if (floor.compute_s > 0.0)
        fprintf(stderr, "; with drafts it took %.2f times that", per(s->decode_s, all_s));
    fputc('\n', stderr);
}

/* ------------------------------------------------------------------------------------------------------------- JSON */

static void json_double(sl_json *j, const char *key, double value)
{
    sl_json_key(j, key);
    sl_json_double(j, value);
}

static void json_known(sl_json *j, const char *key, double value)
{
    sl_json_key(j, key);
    if (value > 0.0)
        sl_json_double(j, value);
    else
        sl_json_null(j);
}

static void json_uint(sl_json *j, const char *key, uint64_t value)
{
    sl_json_key(j, key);
    sl_json_uint(j, value);
}

static void json_depths(sl_json *j, const char *key, const size_t counts[SL_STATS_DEPTHS])
{
    sl_json_key(j, key);
    sl_json_array_start(j);
    for (size_t i = 0; i < SL_STATS_DEPTHS; i++)
        sl_json_uint(j, counts[i]);
    sl_json_array_end(j);
}

void cli_json_drafting(sl_json *j, const sl_stats *s, cli_plain_floor floor)
{
    sl_json_key(j, "drafters");
    sl_json_array_start(j);
    for (size_t i = 0; i < s->n_drafters; i++) {
        const sl_drafter_stats *d = &s->drafters[i];
        sl_json_object_start(j);
        sl_json_key(j, "name");
        sl_json_string(j, d->name);
        json_uint(j, "asked", d->n_asked);
        json_double(j, "seconds", d->seconds);
        json_depths(j, "verified_at", d->n_verified);
        json_depths(j, "accepted_at", d->n_accepted);
        sl_json_object_end(j);
    }
    sl_json_array_end(j);
    json_double(j, "draft_s", s->draft_s);
    json_double(j, "pass_s", s->pass_s);
    json_double(j, "accept_s", s->accept_s);
    json_uint(j, "tree_passes", s->n_tree_passes);
    json_known(j, "plain_disk_s", floor.disk_s * (double)s->n_tokens);
    json_known(j, "plain_compute_s", floor.compute_s * (double)s->n_tokens);
}

void cli_drafting_since(sl_stats *now, const sl_stats *before)
{
    for (size_t i = 0; i < before->n_drafters; i++) {
        sl_drafter_stats *d = &now->drafters[i];
        const sl_drafter_stats *then = &before->drafters[i];
        d->n_asked -= then->n_asked;
        d->seconds -= then->seconds;
        for (size_t depth = 0; depth < SL_STATS_DEPTHS; depth++) {
            d->n_verified[depth] -= then->n_verified[depth];
            d->n_accepted[depth] -= then->n_accepted[depth];
        }
    }
    now->draft_s -= before->draft_s;
    now->pass_s -= before->pass_s;
    now->accept_s -= before->accept_s;
    now->n_tree_passes -= before->n_tree_passes;
}
