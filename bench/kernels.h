/* The library behind `sluice bench kernel`: this machine's peaks, every kernel as a share of the peak that bounds it,
 * and the same work in a ggml library found on the machine. What is timed, and what the columns mean: docs/bench.md.
 *
 * Owns: nothing between calls. Refuses: what memory cannot hold, a level that the processor lacks.
 * Thread rule: one call at a time, and no other thread in the process while it runs (peers are forked). */
#ifndef SL_BENCH_KERNELS_H
#define SL_BENCH_KERNELS_H

#include "bench/bench.h"

typedef enum sl_bench_group {
    SL_BENCH_GROUP_PEAKS,
    SL_BENCH_GROUP_ATTENTION,
    SL_BENCH_GROUP_PROJECTIONS,
    SL_BENCH_GROUP_VECTORS,
    SL_BENCH_GROUP_COUNT
} sl_bench_group;

enum { SL_BENCH_PEERS = 4, SL_BENCH_KERNEL_LIST = 16 };

typedef struct sl_bench_heads {
    uint32_t n_heads, n_kv_heads;
} sl_bench_heads;

/* Empty lists and zeros: what is usual. */
typedef struct sl_bench_kernel_options {
    const char *level; /* NULL: $SLUICE_CPU, else the best */
    size_t threads[SL_BENCH_KERNEL_LIST], n_threads;      /* the machine's, then 1 */
    uint64_t keys[SL_BENCH_KERNEL_LIST];                  /* 32K for many rows, 128K for one */
    size_t n_keys;
    size_t rows[SL_BENCH_KERNEL_LIST], n_rows;            /* 64, 1 */
    sl_bench_heads heads[SL_BENCH_KERNEL_LIST];           /* 32/2, 32/8, 32/32 */
    size_t n_heads;
    uint32_t head_dims[SL_BENCH_KERNEL_LIST];             /* 64, 128 */
    size_t n_head_dims;
    const char *types[SL_BENCH_KERNEL_LIST];              /* of K and V, and of weights; every one */
    size_t n_types;
    bool wants[SL_BENCH_GROUP_COUNT];
    size_t n_repeats;  /* 5 */
    double seconds;    /* of one timing, about: 0.1 */
    bool quick;        /* one shape, small, few timings: whether all works, and roughly how fast */
    const char *peers[SL_BENCH_PEERS]; /* folders of libraries, from sl_bench_peers_find or the user */
    size_t n_peers;
    bool verbose;      /* what the peers print is not thrown away */
    sl_bench_listener listener;
} sl_bench_kernel_options;

/* One measured case, beside one peer if there is any: a case with two peers makes two rows with the same figures. */
typedef struct sl_bench_kernel_row {
    const char *group; /* "peak", "attention", "projection", "vector"; as the next four static */
    const char *name;  /* "int16 dot"; "attention"; of the kernel's entry */
    const char *level; /* that filled the entry; of a peak: whose vectors */
    const char *type;  /* of K and V or of the weights; NULL: none */
    const char *bound; /* the peak that allows the least, of the two beside */
    size_t n_threads, n_repeats;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint64_t keys;
    size_t rows, n_in, n_out; /* a vector has n_in elements */
    sl_bench_spread seconds;  /* of one call, in the threads' common time */
    double gops, gb_per_s;    /* from the median: operations (of a vector: elements) and bytes */
    /* Probed right before and after each timing, in 1e9 a second; 0: not of this case. */
    double compute_peak, memory_peak, matrix_peak;
    const char *compute_name, *memory_name;
    sl_bench_spread compute_share, memory_share, matrix_share; /* of them, each timing by its own probes */
    sl_bench_spread share; /* of the bound; a peak: its rate, in 1e9 a second */
    char peer[64];         /* "" none */
    char peer_way[96];     /* what of the library was compared: layout, repacking; or why there is no figure */
    sl_bench_spread peer_seconds, ratio; /* theirs by ours, of the same round: more than 1 means that ours is faster */
} sl_bench_kernel_row;

/* $SLUICE_PEER, whatever is there ("none": none); without it the first folder with a ggml library of the usual places.
 * Strings: the environment's, or static, overwritten by the next call. */
size_t sl_bench_peers_find(const char *out[SL_BENCH_PEERS]);

/* Calls `emit` with each case's rows as soon as they are known. */
typedef struct sl_bench_kernel_sink {
    sl_status (*emit)(void *arg, const sl_bench_kernel_row *rows, size_t n, sl_err *err);
    void *arg;
} sl_bench_kernel_sink;
sl_status sl_bench_kernel(const sl_bench_kernel_options *options, const sl_bench_kernel_sink *sink, sl_err *err);

/* kernel_report.c. Always the same names in the same order; out: [SL_BENCH_FIELDS]. */
size_t sl_bench_kernel_fields(const sl_bench_kernel_row *row, sl_bench_field *out);
/* A line for people; a heading where its group is not the one of `before` (NULL: none). */
void sl_bench_kernel_print(const sl_bench_kernel_row *row, const sl_bench_kernel_row *before, FILE *file);

#endif
