#include "bench/machine.h"

#include <stdlib.h>
#include <string.h>

#include "api/measure.h"
#include "api/rates.h"
#include "platform/os.h"

enum {
    N_SLOTS = 2,
    MAX_SLOT_BYTES = 128 << 20,
    RING_SHARE = 6, /* of what is left, the ring takes one part in so many */
    /* What lives outside the budget's sight: touched stacks, heap fragmentation, tables of libc, page tables. */
    PROGRAM_MARGIN = 3 << 20,
    THREAD_MARGIN = 96 << 10,
    UNKNOWN_RSS = 16 << 20,
    PROBE_BYTES = 64 << 20, /* of the disk's measurement, at most */
    RATES_LIMIT = 64 << 20  /* of the rates' budget: of one block they take a quarter */
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void forward_log(void *arg, sl_log_level level, const char *text)
{
    const bench_machine *m = arg;
    m->options.listener.log(m->options.listener.arg, level == SL_LOG_LEVEL_WARNING, text);
}

bool bench_stop(void *machine)
{
    const bench_machine *m = machine;
    return m->options.listener.stop && m->options.listener.stop(m->options.listener.arg);
}

sl_status bench_cancelled(sl_err *err)
{
    return sl_err_set(err, SL_CANCELLED, "interrupted");
}

void bench_progress(const bench_machine *m, const char *name, const char *unit, uint64_t done, uint64_t total)
{
    if (m->options.listener.progress)
        m->options.listener.progress(m->options.listener.arg, name, unit, done, total);
}

static sl_status set_budget(bench_machine *m, sl_err *err)
{
    m->ram_bytes = m->options.ram_bytes ? m->options.ram_bytes : sl_os_free_memory_bytes() / 2;
    uint64_t now = sl_os_rss_bytes();
    m->program_bytes = (now ? now : UNKNOWN_RSS) + PROGRAM_MARGIN + m->options.n_threads * (uint64_t)THREAD_MARGIN;
    sl_budget_init(&m->budget, m->ram_bytes > m->program_bytes ? m->ram_bytes - m->program_bytes : 0);
    if (m->ram_bytes <= m->program_bytes)
        return sl_err_set(err, SL_REFUSED, "memory budget of %llu bytes is too small: the program alone needs %llu",
                          (unsigned long long)m->ram_bytes, (unsigned long long)m->program_bytes);
    return SL_OK;
}

static sl_status set_geometry(bench_machine *m, sl_err *err)
{
    const sl_bench_shape *shape = &m->options.shape;
    if (shape->n_kv_heads == 0 || shape->n_heads == 0 || shape->n_heads % shape->n_kv_heads != 0)
        return sl_err_set(err, SL_USAGE, "%u query heads are no multiple of %u KV heads", shape->n_heads,
                          shape->n_kv_heads);
    sl_status status = sl_mem_new(&m->budget, shape->n_layers, sizeof *m->layers, "layers", &m->layers, err);
    if (status != SL_OK)
        return status;
    for (uint32_t i = 0; i < shape->n_layers; i++)
        m->layers[i] = (sl_kv_layer){shape->n_kv_heads, shape->head_dim, 0};
    m->geom = (sl_geom){m->options.is_f16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, shape->n_layers, m->layers};
    return sl_geom_check(&m->geom, err);
}

static sl_io_engine engine_of(sl_bench_io io)
{
    return io == SL_BENCH_IO_URING  ? SL_IO_ENGINE_URING
           : io == SL_BENCH_IO_POOL ? SL_IO_ENGINE_POOL
                                    : SL_IO_ENGINE_AUTO;
}

static sl_status set_profile(bench_machine *m, sl_err *err)
{
    char notes[SL_NOTES_DIR_BYTES];
    if (!m->options.io_probe && sl_ioprobe_find(sl_notes_dir(notes), m->dir, &m->profile))
        return SL_OK;
    bench_progress(m, "measuring the disk", "", 0, 0);
    const sl_ioprobe_options options = {
        .dir = m->dir,
        .allow_ram_dir = m->options.allow_ram_dir,
        .memory_bytes = (size_t)min_u64(PROBE_BYTES, sl_budget_left(&m->budget) / 2),
        .engine = engine_of(m->options.io),
        .budget = &m->budget,
        .log = m->log,
        .stop = bench_stop,
        .arg = m,
    };
    sl_status status = sl_ioprobe_run(&options, &m->profile, err);
    sl_err unsaved;
    bool is_usual = m->options.io == SL_BENCH_IO_AUTO && options.memory_bytes == PROBE_BYTES;
    if (status == SL_OK && m->profile.is_steady && is_usual &&
        sl_ioprobe_save(sl_notes_dir(notes), m->dir, &m->profile, &unsaved) != SL_OK)
        sl_log_write(&m->log, SL_LOG_LEVEL_INFO, "%s", unsaved.text);
    return status;
}

static const char *dir_of(const sl_bench_options *options)
{
    const char *from_env = getenv("SLUICE_KV_DIR");
    return options->kv_dir ? options->kv_dir : from_env && *from_env ? from_env : "/var/tmp";
}

sl_status bench_machine_init(bench_machine *m, const sl_bench_options *options, bool uses_disk, sl_err *err)
{
    memset(m, 0, sizeof *m);
    m->options = *options;
    m->dir = dir_of(options);
    if (m->options.n_threads == 0)
        m->options.n_threads = sl_os_n_cpus();
    if (options->listener.log)
        m->log = (sl_log){forward_log, m};
    sl_status status = set_budget(m, err);
    if (status == SL_OK)
        status = sl_cpu_find(options->level ? options->level : getenv("SLUICE_CPU"), &m->kernel_level, err);
    if (status == SL_OK) {
        sl_kernels_init(&m->kernels, m->kernel_level);
        status = set_geometry(m, err);
    }
    if (status == SL_OK && options->trace_path)
        status = sl_trace_open(options->trace_path, &m->trace, err);
    if (status == SL_OK)
        status = sl_pool_create(m->options.n_threads, &m->budget, &m->pool, err);
    /* Of direct reads: nothing is known of buffered ones. */
    if (status == SL_OK && uses_disk && options->io != SL_BENCH_IO_BUFFERED)
        status = set_profile(m, err);
    return status;
}

sl_status bench_machine_deinit(bench_machine *m, sl_status status, sl_err *err)
{
    sl_pool_destroy(m->pool);
    sl_mem_free(&m->budget, m->layers);
    sl_err trace_err = {SL_OK, ""};
    if (sl_trace_close(m->trace, &trace_err) != SL_OK && status == SL_OK)
        status = sl_err_set(err, SL_FAILED, "%s", trace_err.text);
    sl_budget_deinit(&m->budget);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ sizes */

uint64_t bench_choose_ring(const bench_machine *m, uint64_t room, uint64_t kv_bytes)
{
    uint64_t least = N_SLOTS * (uint64_t)sl_geom_max_part_bytes(&m->geom);
    if (m->options.ring_bytes)
        return max_u64(m->options.ring_bytes, least);
    /* What flies, and beside it what is being computed on. */
    uint64_t flying = sl_io_profile_flight(&m->profile), wanted = flying + max_u64(flying / 2, least);
    uint64_t ring = max_u64(min_u64(room / RING_SHARE, N_SLOTS * (uint64_t)MAX_SLOT_BYTES), min_u64(room / 2, wanted));
    return max_u64(min_u64(ring, kv_bytes), least);
}

sl_kv_options bench_kv_options(bench_machine *m, uint64_t max_tokens, uint64_t ring_bytes, uint64_t resident_bytes)
{
    return (sl_kv_options){
        .geom = m->geom,
        .dir = m->dir,
        .allow_ram_dir = m->options.allow_ram_dir,
        .force_buffered = m->options.io == SL_BENCH_IO_BUFFERED,
        .max_tokens = max_tokens,
        .resident_bytes = resident_bytes,
        .slot_bytes = (size_t)(ring_bytes / N_SLOTS),
        .n_slots = N_SLOTS,
        .read_bytes = m->profile.read_bytes,
        .in_flight_bytes = m->profile.in_flight_bytes ? sl_io_profile_flight(&m->profile) : 0,
        .read_rate = m->options.read_rate,
        .io_engine = engine_of(m->options.io),
        .trace = m->trace,
        .budget = &m->budget,
        .log = m->log,
        .stop = bench_stop,
        .arg = m,
    };
}

size_t bench_row_floats(const bench_machine *m)
{
    return (size_t)m->options.shape.n_heads * m->options.shape.head_dim;
}

uint64_t bench_kv_bytes(const bench_machine *m, uint64_t tokens)
{
    return tokens * sl_geom_token_bytes(&m->geom);
}

/* ------------------------------------------------------------------------------------------------------------- rows */

void bench_row_init(const bench_machine *m, const char *mode, uint64_t tokens, size_t rows, sl_bench_row *row)
{
    *row = (sl_bench_row){
        .mode = mode,
        .kv_type = m->options.is_f16 ? "f16" : "q8_0",
        .shape = m->options.shape,
        .context_tokens = tokens,
        .rows = rows,
        .n_threads = m->options.n_threads,
        .kv_bytes = bench_kv_bytes(m, tokens),
        .ram_bytes = m->ram_bytes,
        .page_cache_bytes = -1,
        .io_mode = "memory",
        .io_engine = "none",
    };
}

/* Within BENCH_RATES_BYTES, whatever the budget has left: a sweep's points must not take more than they say. What does
 * not fit there has no rate. */
static sl_status measure_rates(bench_machine *m, size_t rows, double *memory_rate, double *keys_per_s, sl_err *err)
{
    sl_budget budget;
    sl_budget_init(&budget, min_u64(RATES_LIMIT, sl_budget_left(&m->budget)));
    const sl_rates_machine machine = {&m->kernels, m->pool, &budget, 0};
    const sl_rates_attn shape = {m->geom.type, m->options.shape.n_heads, m->options.shape.n_kv_heads,
                                 m->options.shape.head_dim, rows};
    sl_status status = sl_rates_memory(&machine, memory_rate, err);
    if (status == SL_OK)
        status = sl_rates_attention(&machine, &shape, keys_per_s, err);
    sl_budget_deinit(&budget);
    return status == SL_REFUSED ? SL_OK : status;
}

sl_status bench_row_floors(bench_machine *m, const bench_work *work, sl_bench_row *row, sl_err *err)
{
    double memory_rate = 0, keys_per_s = 0;
    sl_status status = measure_rates(m, work->rows, &memory_rate, &keys_per_s, err);
    if (status != SL_OK)
        return status;
    double read_rate = m->profile.read_rate, limit = (double)m->options.read_rate;
    if (work->best_read_rate > read_rate)
        read_rate = work->best_read_rate;
    if (limit > 0 && limit < read_rate)
        read_rate = limit;
    if (work->bytes_read > 0 && read_rate > 0)
        row->floor_disk_s = (double)work->bytes_read / read_rate;
    if (work->bytes_written > 0 && m->profile.write_rate > 0)
        row->floor_disk_s += (double)work->bytes_written / m->profile.write_rate;
    row->floor_memory_s = memory_rate > 0 ? (double)work->bytes_walked / memory_rate : 0;
    row->floor_compute_s = keys_per_s > 0 ? work->keys / keys_per_s : 0;
    /* A pass that was quicker than the short measurement says what the machine can do. */
    if (row->compute_s.least > 0 && row->floor_compute_s > row->compute_s.least)
        row->floor_compute_s = row->compute_s.least;
    double floor = row->floor_disk_s > row->floor_compute_s ? row->floor_disk_s : row->floor_compute_s;
    row->floor_s = row->floor_memory_s > floor ? row->floor_memory_s : floor;
    row->peak_rss_bytes = sl_os_peak_rss_bytes(); /* what measuring the rates took too: it is seen from outside */
    return SL_OK;
}

static void take_stats(const sl_kv *kv, bench_pass *pass, double sign)
{
    sl_kv_stats stats;
    sl_kv_get_stats(kv, &stats);
    pass->seconds += sign * sl_os_seconds();
    pass->wait_s += sign * stats.wait_s;
    pass->write_s += sign * stats.write_s;
    pass->busy_s += sign * stats.read_s;
    pass->bytes_read += sign > 0 ? stats.bytes_read : 0 - stats.bytes_read;
    pass->bytes_written += sign > 0 ? stats.bytes_written : 0 - stats.bytes_written;
}

void bench_pass_start(const sl_kv *kv, bench_pass *pass)
{
    memset(pass, 0, sizeof *pass);
    take_stats(kv, pass, -1);
}

void bench_pass_end(const sl_kv *kv, bench_pass *pass)
{
    take_stats(kv, pass, 1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

sl_bench_spread sl_bench_spread_of(double *values, size_t n)
{
    if (n == 0)
        return (sl_bench_spread){0, 0, 0};
    qsort(values, n, sizeof *values, by_value);
    double middle = n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
    return (sl_bench_spread){middle, values[0], values[n - 1]};
}
