/* Bursts: K rows over a whole stored context, at one budget or at many. */
#include <stdlib.h>

#include "bench/cache.h"

enum { DEFAULT_REPEATS = 3, MAX_REPEATS = 64 };

static size_t repeats_of(const sl_bench_options *options)
{
    size_t n = options->n_repeats ? options->n_repeats : DEFAULT_REPEATS;
    return n < MAX_REPEATS ? n : MAX_REPEATS;
}

typedef struct rounds {
    double whole[MAX_REPEATS], compute[MAX_REPEATS], read[MAX_REPEATS], wait[MAX_REPEATS], rate[MAX_REPEATS];
    uint64_t hash; /* of the output, the same in every round */
    bench_pass last;
} rounds;

static sl_status rehearse(bench_cache *cache, size_t rows, double *seconds, sl_err *err)
{
    bench_pass pass = {0};
    sl_status status = sl_kv_set_rehearsal(cache->kv, true, err);
    if (status == SL_OK)
        status = bench_cache_attend(cache, rows, &pass, err);
    *seconds = pass.seconds;
    sl_status after = sl_kv_set_rehearsal(cache->kv, false, status == SL_OK ? err : NULL);
    return status == SL_OK ? after : status;
}

/* The three passes in turn, so that what the machine does besides falls on all of them. */
static sl_status run_round(bench_cache *cache, size_t rows, size_t i, rounds *r, sl_err *err)
{
    bench_pass read = {0};
    cache->phase = "pass";
    sl_status status = bench_cache_attend(cache, rows, &r->last, err);
    if (status != SL_OK)
        return status;
    uint64_t hash = bench_cache_hash(cache, rows);
    if (i > 0 && hash != r->hash)
        return sl_err_set(err, SL_FAILED, "two passes over the same context gave different bits");
    r->hash = hash;
    cache->phase = "reads alone";
    status = bench_cache_read(cache, &read, err);
    cache->phase = "kernels alone";
    if (status == SL_OK)
        status = rehearse(cache, rows, &r->compute[i], err);
    r->whole[i] = r->last.seconds;
    r->wait[i] = r->last.wait_s;
    r->rate[i] = r->last.busy_s > 0 ? (double)r->last.bytes_read / r->last.busy_s : 0;
    r->read[i] = read.seconds;
    return status;
}

static void take_rounds(const bench_cache *cache, rounds *r, size_t n, sl_bench_row *row)
{
    row->n_repeats = n;
    row->end_to_end_s = sl_bench_spread_of(r->whole, n);
    row->compute_s = sl_bench_spread_of(r->compute, n);
    row->read_s = sl_bench_spread_of(r->read, n);
    row->wait_s = sl_bench_spread_of(r->wait, n).median;
    row->read_rate = sl_bench_spread_of(r->rate, n).median;
    row->write_s = r->last.write_s;
    row->bytes_read = r->last.bytes_read;
    row->bytes_written = r->last.bytes_written;
    row->verified_rows_per_s = row->end_to_end_s.median > 0 ? (double)row->rows / row->end_to_end_s.median : 0;
    row->ring_bytes = cache->ring_bytes;
    sl_kv_stats stats;
    sl_kv_get_stats(cache->kv, &stats);
    row->resident_bytes = stats.bytes_resident;
    row->page_cache_bytes = stats.page_cache_bytes;
    row->io_mode = stats.io_mode;
    row->io_engine = stats.io_engine ? stats.io_engine : "none";
    row->read_bytes = stats.read_bytes;
    row->in_flight_bytes = stats.in_flight_bytes;
}

static sl_status measure(bench_cache *cache, size_t rows, sl_bench_row *row, uint64_t *hash, sl_err *err)
{
    bench_machine *m = cache->m;
    rounds *r = NULL;
    size_t n = repeats_of(&m->options);
    sl_status status = sl_mem_new(&m->budget, 1, sizeof *r, "rounds", &r, err);
    if (status != SL_OK)
        return status;
    bench_row_init(m, rows == 1 ? "naive" : "mode-b", cache->tokens, rows, row);
    for (size_t i = 0; status == SL_OK && i < n; i++)
        status = run_round(cache, rows, i, r, err);
    if (status == SL_OK) {
        take_rounds(cache, r, n, row);
        *hash = r->hash;
        const bench_work work = {row->bytes_read, row->bytes_written, row->kv_bytes,
                                 (double)cache->tokens * m->geom.n_layers, rows,
                                 row->read_s.least > 0 ? (double)row->bytes_read / row->read_s.least : 0};
        status = bench_row_floors(m, &work, row, err);
    }
    sl_mem_free(&m->budget, r);
    return status;
}

static sl_status check_rows(const size_t *rows, size_t n_rows, size_t *most, sl_err *err)
{
    *most = 0;
    for (size_t i = 0; i < n_rows; i++) {
        if (rows[i] == 0 || rows[i] > 4096)
            return sl_err_set(err, SL_USAGE, "%zu rows, expected 1 to 4096", rows[i]);
        *most = rows[i] > *most ? rows[i] : *most;
    }
    return SL_OK;
}

sl_status sl_bench_burst(const sl_bench_options *options, uint64_t tokens, const size_t *rows, size_t n_rows,
                         sl_bench_row *out, sl_err *err)
{
    size_t most = 0;
    sl_status status = check_rows(rows, n_rows, &most, err);
    if (status != SL_OK)
        return status;
    bench_machine m;
    bench_cache cache = {0};
    uint64_t hash = 0;
    status = bench_machine_init(&m, options, true, err);
    if (status == SL_OK)
        status = bench_cache_init(&cache, &m, tokens, most, options->resident_bytes, err);
    if (status == SL_OK)
        status = bench_cache_fill(&cache, err);
    for (size_t i = 0; status == SL_OK && i < n_rows; i++)
        status = measure(&cache, rows[i], &out[i], &hash, err);
    bench_cache_deinit(&cache);
    return bench_machine_deinit(&m, status, err);
}

/* One point of the sweep: the share is raised, a pass that is not timed takes the parts in. */
static sl_status measure_point(bench_cache *cache, size_t rows, uint64_t resident, sl_bench_row *row, uint64_t *hash,
                               sl_err *err)
{
    bench_pass pass;
    cache->phase = "taking parts in";
    sl_status status = sl_kv_set_resident(cache->kv, resident, err);
    if (status == SL_OK)
        status = bench_cache_read(cache, &pass, err);
    if (status == SL_OK)
        status = measure(cache, rows, row, hash, err);
    row->ram_bytes = cache->m->program_bytes + cache->fixed_bytes + cache->ring_bytes + resident;
    return status;
}

sl_status sl_bench_ram_sweep(const sl_bench_options *options, uint64_t tokens, size_t rows, size_t n_points,
                             sl_bench_row *out, sl_err *err)
{
    size_t most = 0;
    sl_status status = check_rows(&rows, 1, &most, err);
    if (status == SL_OK && n_points < 2)
        status = sl_err_set(err, SL_USAGE, "%zu budgets make no curve", n_points);
    if (status != SL_OK)
        return status;
    bench_machine m;
    bench_cache cache = {0};
    uint64_t first_hash = 0;
    status = bench_machine_init(&m, options, true, err);
    /* From the least on: a ring that keeps the disk busy, no larger. */
    if (m.options.ring_bytes == 0)
        m.options.ring_bytes = sl_io_profile_flight(&m.profile) * 3 / 2;
    if (status == SL_OK)
        status = bench_cache_init(&cache, &m, tokens, most, 0, err);
    if (status == SL_OK)
        status = bench_cache_fill(&cache, err);
    uint64_t kv_bytes = bench_kv_bytes(&m, tokens), room = status == SL_OK ? sl_budget_left(&m.budget) : 0;
    uint64_t slack = 2 * n_points * SL_MEM_ALIGN; /* a mapping for each point, and its table */
    uint64_t top = kv_bytes + slack < room ? kv_bytes : room > slack ? room - slack : 0;
    for (size_t i = 0; status == SL_OK && i < n_points; i++) {
        uint64_t hash = 0, resident = top == kv_bytes && i == n_points - 1 ? kv_bytes : top / (n_points - 1) * i;
        status = measure_point(&cache, rows, resident, &out[i], &hash, err);
        if (status == SL_OK && i > 0 && hash != first_hash)
            status = sl_err_set(err, SL_FAILED, "another budget gave different bits");
        first_hash = hash;
    }
    bench_cache_deinit(&cache);
    return bench_machine_deinit(&m, status, err);
}
