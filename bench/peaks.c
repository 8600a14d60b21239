#include "bench/peaks.h"

#include <unistd.h>

#include "platform/os.h"

enum {
    ITEMS_PER_THREAD = 8, /* so that a thread with a busy neighbour costs its share */
    LOOP_STEPS = 512,     /* of one piece of work */
    PIECE_BYTES = 256 << 10,
    CACHE_BYTES = 16 << 10,
    CACHE_TURNS = 16,
    MOST_WORKERS = 256
};

static const uint64_t LEAST_BLOCK = UINT64_C(256) << 20, MOST_BLOCK = UINT64_C(2) << 30;

const char *bench_peak_name(bench_peak peak)
{
    static const char *const names[BENCH_PEAK_COUNT + 1] = {"fp32 fma",    "int16 dot", "int8 dot", "int8 matrix",
                                                            "memory read", "cache read", "none"};
    return names[peak];
}

size_t bench_prober_block_bytes(void)
{
    uint64_t bytes = LEAST_BLOCK;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0 && 2 * (uint64_t)cache > bytes)
        bytes = 2 * (uint64_t)cache;
#endif
    return (size_t)(bytes < MOST_BLOCK ? bytes / PIECE_BYTES * PIECE_BYTES : MOST_BLOCK);
}

typedef struct probe_work {
    const bench_prober *prober;
    bench_loop loop;
    bench_reader read;
    bench_peak peak;
    size_t pieces; /* of one item */
    uint64_t sums[MOST_WORKERS][8]; /* what was read must be used; a line each */
} probe_work;

static void run_pieces(void *arg, size_t item, size_t worker)
{
    probe_work *work = arg;
    const bench_prober *p = work->prober;
    uint64_t *sum = work->sums[worker % MOST_WORKERS];
    for (size_t i = 0; i < work->pieces; i++) {
        size_t piece = p->at + item * work->pieces + i;
        if (work->loop.run)
            work->loop.run(LOOP_STEPS);
        else if (work->peak == BENCH_PEAK_MEMORY)
            *sum += work->read(p->block + piece * PIECE_BYTES % p->block_bytes, PIECE_BYTES);
        else
            for (size_t turn = 0; turn < CACHE_TURNS; turn++)
                *sum += work->read(p->block + worker * CACHE_BYTES % p->block_bytes, CACHE_BYTES);
    }
}

static double piece_size(const probe_work *work)
{
    if (work->loop.run)
        return work->loop.operations * LOOP_STEPS;
    return work->peak == BENCH_PEAK_MEMORY ? (double)PIECE_BYTES : (double)CACHE_BYTES * CACHE_TURNS;
}

/* Seconds of work->pieces pieces for each item. */
static double run_probe(bench_prober *prober, probe_work *work)
{
    size_t n_items = ITEMS_PER_THREAD * sl_pool_threads(prober->pool);
    double start = sl_os_seconds();
    sl_pool_run(prober->pool, n_items, run_pieces, work);
    prober->at = (prober->at + n_items * work->pieces) % (prober->block_bytes / PIECE_BYTES);
    return sl_os_seconds() - start;
}

double bench_probe(bench_prober *prober, bench_peak peak)
{
    static probe_work work; /* 16 KiB: not on a stack */
    work = (probe_work){.prober = prober, .peak = peak, .read = bench_reader_find(prober->level)};
    bool reads = peak == BENCH_PEAK_MEMORY || peak == BENCH_PEAK_CACHE;
    if (peak < BENCH_PEAK_MEMORY)
        work.loop = bench_loop_find(prober->level, peak);
    if (peak >= BENCH_PEAK_NONE || (!reads && !work.loop.run))
        return 0;
    for (;;) {
        size_t *pieces = &prober->pieces[peak];
        work.pieces = *pieces = *pieces ? *pieces : 1;
        double seconds = run_probe(prober, &work), wanted = prober->seconds;
        double rate = (double)(ITEMS_PER_THREAD * sl_pool_threads(prober->pool) * work.pieces) * piece_size(&work);
        /* Too short: waking the threads was part of it. */
        if (seconds < 0.5 * wanted)
            *pieces = seconds > 0.125 * wanted ? (size_t)(wanted / seconds * (double)*pieces) + 1 : 4 * *pieces;
        else
            return rate / seconds;
    }
}
