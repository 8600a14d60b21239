/* Mode A: a prompt's rows window by window through causal attention, their K and V appended as they come; on flash or
 * with everything resident. */
#include <string.h>

#include "attn/attn.h"
#include "bench/machine.h"
#include "bench/synth.h"

enum { MOST_WINDOW = 4096, SLACK_BYTES = 256 << 10, MAX_REPEATS = 16 };

/* What of the work is done: all; kernels and checksums, nothing read and nothing written; reads and writes with
 * checksums, no kernels. */
typedef enum prefill_way { WHOLE, COMPUTE, TRANSFERS } prefill_way;

typedef struct prefill {
    bench_machine *m;
    uint64_t tokens;
    bool in_memory;
    size_t window;
    uint64_t ring_bytes, resident_bytes;
    sl_attn *attn;
    float *q;
    uint8_t *own;
    size_t own_bytes, q_bytes;
    /* one run */
    prefill_way way;
    sl_kv *kv;
    sl_vfs discarding; /* used by kv */
    uint64_t pos;
} prefill;

static sl_attn_options attn_options(bench_machine *m, size_t rows)
{
    return (sl_attn_options){
        .kernels = &m->kernels,
        .pool = m->pool,
        .budget = &m->budget,
        .geom = m->geom,
        .n_heads = m->options.shape.n_heads,
        .max_rows = rows,
        .trace = m->trace,
    };
}

static uint64_t window_bytes(bench_machine *m, size_t rows)
{
    sl_attn_options attn = attn_options(m, rows);
    return sl_attn_bytes(&attn) + rows * bench_row_floats(m) * sizeof(float) +
           rows / SL_TILE * sl_geom_group_bytes(&m->geom, 0);
}

/* Ring, then the largest window of which a whole number makes a segment, then resident parts. */
static sl_status plan(prefill *p, sl_err *err)
{
    bench_machine *m = p->m;
    uint64_t kv_bytes = bench_kv_bytes(m, p->tokens), left = sl_budget_left(&m->budget);
    uint64_t fixed = sl_kv_table_bytes(&m->geom, p->tokens) + SLACK_BYTES + (p->in_memory ? kv_bytes : 0);
    uint64_t room = left > fixed ? left - fixed : 0;
    p->ring_bytes = p->in_memory ? 0 : bench_choose_ring(m, room, kv_bytes);
    room = room > p->ring_bytes ? room - p->ring_bytes : 0;
    size_t window = m->options.window_tokens ? m->options.window_tokens : MOST_WINDOW;
    while (!m->options.window_tokens && window > SL_TILE && (window_bytes(m, window) > room || window >= 2 * p->tokens))
        window /= 2;
    if (window > p->tokens)
        window = (size_t)p->tokens;
    if (window_bytes(m, window) > room)
        return sl_err_set(err, SL_REFUSED,
                          "memory budget of %.0f MiB is too small: program %.0f MiB, tables and resident context %.0f, "
                          "ring %.0f, a window of %zu rows %.0f",
                          (double)m->ram_bytes / (1 << 20), (double)m->program_bytes / (1 << 20),
                          (double)fixed / (1 << 20), (double)p->ring_bytes / (1 << 20), window,
                          (double)window_bytes(m, window) / (1 << 20));
    p->window = window;
    room -= window_bytes(m, window);
    uint64_t wanted = m->options.resident_bytes < 0 ? room : (uint64_t)m->options.resident_bytes;
    p->resident_bytes = p->in_memory ? kv_bytes : wanted < kv_bytes ? wanted : kv_bytes;
    return SL_OK;
}

static sl_status make_rows(prefill *p, sl_err *err)
{
    bench_machine *m = p->m;
    sl_attn_options options = attn_options(m, p->window);
    p->q_bytes = p->window * bench_row_floats(m) * sizeof(float);
    p->own_bytes = p->window / SL_TILE * sl_geom_group_bytes(&m->geom, 0);
    sl_status status = sl_attn_create(&options, &p->attn, err);
    if (status == SL_OK)
        status = sl_mem_map(&m->budget, p->q_bytes, "queries", &p->q, err);
    if (status == SL_OK)
        status = sl_mem_map(&m->budget, p->own_bytes, "own tiles", &p->own, err);
    return status;
}

static bool stop_or_count(void *arg)
{
    prefill *p = arg;
    static const char *const names[] = {"prefill", "kernels alone", "transfers alone"};
    uint64_t all = p->tokens / p->window * (p->tokens / p->window) / 2 + 1;
    uint64_t now = p->pos / p->window * (p->pos / p->window) / 2;
    bench_progress(p->m, names[p->way], "", now < all ? now : all - 1, all);
    return bench_stop(p->m);
}

/* ----------------------------------------------------------------------------------------------- nothing is written */

/* Writes of whole sectors go nowhere, but for single ones: the file's probe reads its own back. */
static int64_t write_nothing(sl_file *file, const void *buf, size_t bytes, uint64_t off)
{
    if (bytes == SL_SECTOR_BYTES)
        return sl_vfs_system()->pwrite(file, buf, bytes, off);
    return (int64_t)bytes;
}

static int reserve_nothing(sl_file *file, uint64_t off, uint64_t bytes)
{
    (void)file;
    (void)off;
    (void)bytes;
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- one window */

static sl_status walk(prefill *p, uint32_t layer, sl_err *err)
{
    bool found = true;
    sl_status status = SL_OK;
    while (status == SL_OK && found) {
        sl_kv_part part;
        status = stop_or_count(p) ? bench_cancelled(err) : sl_kv_next(p->kv, layer, &part, &found, err);
        if (status == SL_OK && found)
            sl_kv_release(p->kv, &part);
    }
    return status;
}

static sl_status run_layer(prefill *p, uint32_t layer, size_t n, sl_err *err)
{
    bench_machine *m = p->m;
    size_t stride = bench_row_floats(m);
    uint64_t seed = (layer * (p->tokens / SL_TILE + 1) + p->pos / SL_TILE) << 20;
    sl_status status;
    if (p->way == TRANSFERS) {
        bench_fill_groups(m, p->own, n / SL_TILE, seed);
        status = walk(p, layer, err);
    } else {
        const sl_attn_rows rows = {
            .layer = layer,
            .first_pos = p->pos,
            .n_rows = n,
            .q = p->q,
            .q_stride = stride,
            .out = p->q,
            .out_stride = stride,
            .own_groups = p->own,
            .stop = stop_or_count,
            .arg = p,
        };
        bench_fill_floats(m, p->q, n * stride, seed);
        bench_pack_rows(m, p->own, 0, n, seed);
        status = sl_attn_run(p->attn, p->kv, &rows, err);
    }
    return status == SL_OK ? sl_kv_append(p->kv, layer, p->own, n, err) : status;
}

static sl_status run_window(prefill *p, size_t n, sl_err *err)
{
    double start_s = sl_trace_now(p->m->trace);
    sl_status status = sl_kv_pass_begin(p->kv, p->pos + n < p->tokens, err);
    for (uint32_t layer = 0; status == SL_OK && layer < p->m->geom.n_layers; layer++)
        status = run_layer(p, layer, n, err);
    if (status == SL_OK)
        status = sl_kv_pass_end(p->kv, err);
    sl_trace_span(p->m->trace, SL_TRACE_LANE_PASS, "window", start_s, sl_trace_now(p->m->trace),
                  (sl_trace_about){-1, -1, -1, -1});
    return status;
}

/* A whole prompt into a fresh cache, which the caller destroys. Clock: from the first window's random rows to the last
 * append. */
static sl_status run(prefill *p, prefill_way way, bench_pass *pass, sl_err *err)
{
    p->discarding = *sl_vfs_system();
    p->discarding.pwrite = write_nothing;
    p->discarding.reserve = reserve_nothing;
    sl_kv_options options = bench_kv_options(p->m, p->tokens, p->ring_bytes, p->resident_bytes);
    options.vfs = way == COMPUTE ? &p->discarding : NULL;
    p->way = way;
    p->pos = 0;
    sl_status status = sl_kv_create(&options, &p->kv, err);
    if (status == SL_OK && way == COMPUTE)
        status = sl_kv_set_rehearsal(p->kv, true, err);
    if (status != SL_OK)
        return status;
    if (way == COMPUTE) {
        /* Valid tiles of the last run's last layer. */
        sl_kv_fill_ring(p->kv, p->own, (size_t)(p->window / SL_TILE * sl_geom_group_bytes(&p->m->geom, 0)));
    }
    bench_pass_start(p->kv, pass);
    while (status == SL_OK && p->pos < p->tokens) {
        uint64_t left = p->tokens - p->pos;
        size_t n = left < p->window ? (size_t)left : p->window;
        status = run_window(p, n, err);
        p->pos += n;
    }
    bench_pass_end(p->kv, pass);
    return status;
}

/* --------------------------------------------------------------------------------------------------- the three runs */

static void take_stats(prefill *p, const bench_pass *pass, sl_bench_row *row)
{
    sl_kv_stats stats;
    sl_kv_get_stats(p->kv, &stats);
    row->wait_s = pass->wait_s;
    row->write_s = pass->write_s;
    row->bytes_read = pass->bytes_read;
    row->bytes_written = pass->bytes_written;
    row->read_rate = pass->busy_s > 0 ? (double)pass->bytes_read / pass->busy_s : 0;
    row->resident_bytes = stats.bytes_resident;
    row->page_cache_bytes = stats.page_cache_bytes;
    row->io_mode = stats.io_mode;
    row->io_engine = stats.io_engine ? stats.io_engine : "none";
    row->read_bytes = stats.read_bytes;
    row->in_flight_bytes = stats.in_flight_bytes;
}

static sl_status run_once(prefill *p, prefill_way way, double *seconds, sl_bench_row *row, sl_err *err)
{
    bench_pass pass = {0};
    sl_status status = run(p, way, &pass, err);
    *seconds = pass.seconds;
    if (status == SL_OK && way == WHOLE)
        take_stats(p, &pass, row);
    sl_kv_destroy(p->kv);
    p->kv = NULL;
    return status;
}

static sl_status measure(prefill *p, sl_bench_row *row, sl_err *err)
{
    size_t n = p->m->options.n_repeats ? p->m->options.n_repeats : 1;
    n = n < MAX_REPEATS ? n : MAX_REPEATS;
    double times[3][MAX_REPEATS] = {{0}};
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < n; i++) {
        status = run_once(p, WHOLE, &times[WHOLE][i], row, err);
        /* With nothing streamed there is nothing to take apart. */
        times[COMPUTE][i] = times[WHOLE][i];
        if (status == SL_OK && !p->in_memory)
            status = run_once(p, COMPUTE, &times[COMPUTE][i], row, err);
        if (status == SL_OK && !p->in_memory)
            status = run_once(p, TRANSFERS, &times[TRANSFERS][i], row, err);
    }
    row->n_repeats = n;
    row->end_to_end_s = sl_bench_spread_of(times[WHOLE], n);
    row->compute_s = sl_bench_spread_of(times[COMPUTE], n);
    row->read_s = sl_bench_spread_of(times[TRANSFERS], n);
    double whole = row->end_to_end_s.median;
    row->verified_rows_per_s = row->prompt_tokens_per_s = whole > 0 ? (double)p->tokens / whole : 0;
    return status;
}

/* Each window's rows visit what is stored, and half of their own. */
static double key_visits(const prefill *p)
{
    double keys = 0;
    for (uint64_t pos = 0; pos < p->tokens; pos += p->window) {
        double n = (double)(p->tokens - pos < p->window ? p->tokens - pos : p->window);
        keys += ((double)pos + 0.5 * n) * n / (double)p->window;
    }
    return keys * p->m->geom.n_layers;
}

static sl_status work(prefill *p, sl_bench_row *row, sl_err *err)
{
    bench_machine *m = p->m;
    if (p->tokens == 0 || p->tokens % SL_TILE != 0 || m->options.window_tokens % SL_TILE != 0)
        return sl_err_set(err, SL_USAGE, "prompt and window are %llu and %zu tokens, expected multiples of %d",
                          (unsigned long long)p->tokens, m->options.window_tokens, SL_TILE);
    sl_status status = plan(p, err);
    if (status == SL_OK)
        status = make_rows(p, err);
    if (status != SL_OK)
        return status;
    bench_row_init(m, p->in_memory ? "in-memory" : "mode-a", p->tokens, (size_t)p->tokens, row);
    row->window_tokens = p->window;
    row->ring_bytes = p->ring_bytes;
    status = measure(p, row, err);
    if (status != SL_OK)
        return status;
    double keys = key_visits(p);
    const bench_work floors = {row->bytes_read, row->bytes_written,
                               (uint64_t)(keys * (double)sl_geom_token_bytes(&m->geom) / m->geom.n_layers), keys,
                               p->window, 0};
    sl_mem_unmap(&m->budget, p->own, p->own_bytes); /* room for the rates' own data */
    p->own = NULL;
    return bench_row_floors(m, &floors, row, err);
}

sl_status sl_bench_prefill(const sl_bench_options *options, uint64_t tokens, bool in_memory, sl_bench_row *out,
                           sl_err *err)
{
    bench_machine m;
    prefill p = {.m = &m, .tokens = tokens, .in_memory = in_memory};
    sl_status status = bench_machine_init(&m, options, !in_memory, err);
    if (status == SL_OK)
        status = work(&p, out, err);
    sl_attn_destroy(p.attn);
    sl_mem_unmap(&m.budget, p.q, p.q_bytes);
    sl_mem_unmap(&m.budget, p.own, p.own_bytes);
    return bench_machine_deinit(&m, status, err);
}
