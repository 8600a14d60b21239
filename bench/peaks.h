/* What the machine itself can do, probed for a few milliseconds on all threads of a pool: the figures beside which a
 * kernel's stands. A peak is of the vectors of one level of kernels; AMX's products by tiles are a peak of their own.
 * Inside the bench. Thread rule: the thread that drives the pool. */
#ifndef SL_BENCH_PEAKS_H
#define SL_BENCH_PEAKS_H

#include "base/cpu.h"
#include "base/mem.h"
#include "base/thread.h"

typedef enum bench_peak {
    BENCH_PEAK_FMA,    /* binary32 multiply-adds, two operations each */
    BENCH_PEAK_INT16,  /* products of int16 into exact int32 sums: vpmaddwd and vpaddd, vpdpwssd, smlal */
    BENCH_PEAK_INT8,   /* of int8, likewise: vpmaddubsw, vpmaddwd and vpaddd, vpdpbusd, sdot */
    BENCH_PEAK_MATRIX, /* of int8 by tiles: tdpbssd, smmla; 0 below amx and i8mm */
    BENCH_PEAK_MEMORY, /* bytes read from a block larger than the caches */
    BENCH_PEAK_CACHE,  /* bytes read from 16 KiB of each thread's own */
    BENCH_PEAK_COUNT,
    BENCH_PEAK_NONE = BENCH_PEAK_COUNT
} bench_peak;

const char *bench_peak_name(bench_peak peak);

/* A loop of independent chains: more of them than latency and two units need. */
typedef struct bench_loop {
    void (*run)(size_t steps); /* NULL: the level has no such instruction */
    double operations;         /* of one step */
} bench_loop;
/* peaks_x86.c, peaks_arm.c */
bench_loop bench_loop_find(sl_cpu_level level, bench_peak peak);
/* Reads bytes, a multiple of 256, with the widest loads that the processor has (no wider than the level's). */
typedef uint64_t (*bench_reader)(const void *at, size_t bytes);
bench_reader bench_reader_find(sl_cpu_level level);

typedef struct bench_prober {
    sl_cpu_level level;
    sl_pool *pool;          /* borrowed */
    const uint8_t *block;   /* borrowed: for BENCH_PEAK_MEMORY, touched */
    size_t block_bytes, at; /* the next probe goes on where the last one ended */
    double seconds;         /* of one probe, about */
    size_t pieces[BENCH_PEAK_COUNT]; /* of work for one item, found out by the first probe; 0: not yet */
} bench_prober;

/* Larger than any cache that the system tells of, twice. */
size_t bench_prober_block_bytes(void);
/* Operations or bytes a second of all threads together; 0: there is no such peak at this level. */
double bench_probe(bench_prober *prober, bench_peak peak);

#endif
