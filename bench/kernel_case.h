/* One case of the kernel bench: something to run, what it costs, and the same for a peer. Inside the bench. */
#ifndef SL_BENCH_KERNEL_CASE_H
#define SL_BENCH_KERNEL_CASE_H

#include "bench/cache.h"
#include "bench/kernels.h"
#include "bench/peaks.h"

/* What a case is, in plain values: a peer in another process gets a copy. */
typedef struct bench_case_spec {
    sl_bench_group group;
    uint32_t n_heads, n_kv_heads, head_dim;
    sl_kv_type kv_type;
    uint64_t keys;
    size_t n_layers; /* attention: contexts in turn, so many that no cache holds them all */
    size_t rows;
    sl_wtype wtype;
    size_t n_in, n_out;
    size_t vector;   /* which */
    size_t n_threads;
    double seconds;  /* of one timing, about */
    bool verbose;
} bench_case_spec;

typedef struct bench_case {
    bench_case_spec spec;
    bench_machine *m;
    double operations, bytes;   /* of one call */
    bench_peak compute, memory; /* that bound it */
    size_t calls_per_run;
    sl_status (*run)(struct bench_case *c, sl_err *err); /* calls_per_run calls */
    sl_bench_kernel_row row;    /* name, level, type, shape */
    /* attention */
    bench_cache cache;
    /* projections and vectors: one mapping, cut up */
    uint8_t *map;
    size_t map_bytes;
    void *parts[4];
    size_t per_item;
} bench_case;

/* Makes spec's work; zeroed but for spec and m. close also takes a half-made one. kernel_attn.c, kernel_gemm.c,
 * kernel_vectors.c */
sl_status bench_attn_open(bench_case *c, sl_err *err) SL_CHECK;
sl_status bench_gemm_open(bench_case *c, sl_err *err) SL_CHECK;
sl_status bench_vector_open(bench_case *c, sl_err *err) SL_CHECK;
void bench_case_close(bench_case *c);

size_t bench_vectors_count(void);

/* The weight types' layouts in a model file, for synthetic rows and for peers. NULL: not known here. */
typedef struct bench_wtype {
    const char *name;
    int ggml_type, ggml_repacked; /* numbers of ggml.h's enum ggml_type; the second of a fork's, 0: none */
    size_t block, block_bytes;    /* elements, bytes */
    int scale_off[2];             /* of binary16 scales in a block; -1: none */
} bench_wtype;
const bench_wtype *bench_wtype_find(sl_wtype type);
/* n bytes of rows as a model file has them: random values, scales that are ordinary numbers. */
void bench_wtype_fill(sl_wtype type, uint8_t *rows, size_t bytes, uint64_t seed);

#endif
