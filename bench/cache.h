/* A synthetic context and the passes over it, as a burst makes them. Inside the bench. */
#ifndef SL_BENCH_CACHE_H
#define SL_BENCH_CACHE_H

#include "attn/attn.h"
#include "bench/machine.h"

typedef struct bench_cache {
    bench_machine *m;
    uint64_t tokens;
    size_t max_rows;
    uint64_t fixed_bytes, ring_bytes, resident_bytes; /* planned */
    sl_kv *kv;
    sl_attn *attn; /* NULL: reads only */
    float *q, *out;     /* [max_rows][row floats] */
    uint8_t *own;       /* the rows' tile groups, the same for every layer */
    size_t own_bytes;
    uint64_t n_parts, done_parts; /* of a pass: for the progress line */
    const char *phase; /* a literal: progress and trace name passes by it */
} bench_cache;

/* Plans, then makes the cache with nothing in it. max_rows 0: no attention. resident: as the options'. In place. */
sl_status bench_cache_init(bench_cache *cache, bench_machine *m, uint64_t tokens, size_t max_rows, int64_t resident,
                           sl_err *err) SL_CHECK;
void bench_cache_deinit(bench_cache *cache);

/* Appends all tokens, random tiles, layer after layer, part by part. */
sl_status bench_cache_fill(bench_cache *cache, sl_err *err) SL_CHECK;
/* The same tiles that fill appends at part `part` of layer `layer`: [groups of the part]. */
void bench_cache_tiles(const bench_machine *m, uint8_t *groups, size_t n_groups, uint64_t layer, uint64_t part);

/* One pass, its clock started with an empty ring. */
sl_status bench_cache_attend(bench_cache *cache, size_t rows, bench_pass *pass, sl_err *err) SL_CHECK;
sl_status bench_cache_read(bench_cache *cache, bench_pass *pass, sl_err *err) SL_CHECK;

/* Of the last attended pass's output. */
uint64_t bench_cache_hash(const bench_cache *cache, size_t rows);

#endif
