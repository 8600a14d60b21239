/* What every measurement stands on: budget, threads, kernels, how the disk wants to be read, trace. Bench only. */
#ifndef SL_BENCH_MACHINE_H
#define SL_BENCH_MACHINE_H

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/trace.h"
#include "bench/bench.h"
#include "kernel/kernel.h"
#include "store/ioprobe.h"
#include "store/kv.h"

typedef struct bench_machine {
    sl_bench_options options;
    const char *dir;
    sl_budget budget;
    uint64_t ram_bytes, program_bytes; /* the ceiling; what the budget cannot see */
    sl_cpu_level kernel_level;
    sl_kernels kernels;
    sl_pool *pool;
    sl_trace *trace;
    sl_log log;
    sl_kv_layer *layers;
    sl_geom geom;
    sl_io_profile profile; /* zeros where nothing will be read */
} bench_machine;

/* In place: addresses of members are kept. uses_disk: the disk's profile is looked up, or measured. */
sl_status bench_machine_init(bench_machine *m, const sl_bench_options *options, bool uses_disk, sl_err *err) SL_CHECK;
/* status: that of the work; the trace is ended either way. */
sl_status bench_machine_deinit(bench_machine *m, sl_status status, sl_err *err) SL_CHECK;

bool bench_stop(void *machine);
void bench_progress(const bench_machine *m, const char *name, const char *unit, uint64_t done, uint64_t total);
sl_status bench_cancelled(sl_err *err);

/* Two slots: what was asked for; else a share of `room`, at least what keeps the disk busy, at most the cache. */
uint64_t bench_choose_ring(const bench_machine *m, uint64_t room, uint64_t kv_bytes);
/* What the store's options have in common in all measurements. */
sl_kv_options bench_kv_options(bench_machine *m, uint64_t max_tokens, uint64_t ring_bytes, uint64_t resident_bytes);

size_t bench_row_floats(const bench_machine *m); /* query floats of a row */
uint64_t bench_kv_bytes(const bench_machine *m, uint64_t tokens);

/* What is known before anything is measured. */
void bench_row_init(const bench_machine *m, const char *mode, uint64_t tokens, size_t rows, sl_bench_row *row);
/* Floors from this machine's rates: bytes read, written and walked, and key visits of all layers: stored tokens of one
 * layer, once for all the rows. Takes the peak memory, last. */
enum { BENCH_RATES_BYTES = 20 << 20 }; /* that measuring the rates takes */
typedef struct bench_work {
    uint64_t bytes_read, bytes_written, bytes_walked;
    double keys;
    size_t rows; /* computed together */
    double best_read_rate; /* that this run saw: the disk's remembered rate may be of a busier hour; 0: none */
} bench_work;
sl_status bench_row_floors(bench_machine *m, const bench_work *work, sl_bench_row *row, sl_err *err) SL_CHECK;

/* What the store counted in one pass. */
typedef struct bench_pass {
    double seconds, wait_s, write_s, busy_s;
    uint64_t bytes_read, bytes_written;
} bench_pass;
void bench_pass_start(const sl_kv *kv, bench_pass *pass);
void bench_pass_end(const sl_kv *kv, bench_pass *pass);

#endif
