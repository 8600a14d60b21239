/* Measuring on synthetic K and V: bursts, prefills and the ways to read a file. The library behind `sluice bench`.
 *
 * Owns: nothing between calls; each makes its cache, measures and leaves no file. Refuses: what the budget or the disk
 * cannot hold. What is timed, and what the columns mean: docs/bench.md.
 * Thread rule: one call at a time. */
#ifndef SL_BENCH_H
#define SL_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <sluice/status.h>

typedef struct sl_bench_shape {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
} sl_bench_shape;

/* Callbacks; any may be NULL. */
typedef struct sl_bench_listener {
    /* Work done of the phase `name` (a literal). */
    void (*progress)(void *arg, const char *name, const char *unit, uint64_t done, uint64_t total);
    void (*log)(void *arg, bool warning, const char *text);
    bool (*stop)(void *arg); /* true: SL_CANCELLED; asked before each part */
    void *arg;
} sl_bench_listener;

typedef enum sl_bench_io { SL_BENCH_IO_AUTO, SL_BENCH_IO_URING, SL_BENCH_IO_POOL, SL_BENCH_IO_BUFFERED } sl_bench_io;

typedef struct sl_bench_options {
    sl_bench_shape shape;
    bool is_f16;             /* stored type; else Q8_0 */
    uint64_t ram_bytes;      /* ceiling of the resident set; 0: half of what is free */
    int64_t resident_bytes;  /* of the cache, kept in memory; negative: what the ceiling leaves */
    uint64_t ring_bytes;     /* 0: from the ceiling */
    size_t window_tokens;    /* of a prefill, a multiple of 64; 0: from the ceiling, up to 4096 */
    size_t n_threads;        /* 0: as many as processors */
    const char *level;       /* of kernels; NULL: $SLUICE_CPU, else the best */
    uint64_t read_rate;      /* bytes a second; 0: all */
    sl_bench_io io;
    bool io_probe;           /* measure the disk anew */
    bool allow_ram_dir;
    const char *kv_dir;      /* NULL: $SLUICE_KV_DIR, else /var/tmp */
    const char *trace_path;  /* NULL: none */
    size_t n_repeats;        /* 0: 3 for bursts, 1 for prefills */
    sl_bench_listener listener;
} sl_bench_options;

typedef struct sl_bench_spread {
    double median, least, most;
} sl_bench_spread;
/* Sorts the values. */
sl_bench_spread sl_bench_spread_of(double *values, size_t n);

/* A figure that somebody else published. */
typedef struct sl_bench_published {
    uint64_t context_tokens, rows;
    char mode[16], kv_type[8];
    double end_to_end_s, compute_s, read_gb_per_s, throughput_per_s, peak_memory_mb; /* negative: not told */
} sl_bench_published;

/* One measured line; seconds, bytes, bytes a second. What a line does not have is 0. */
typedef struct sl_bench_row {
    const char *mode; /* "mode-a", "mode-b", "naive", "in-memory", "mmap"; static */
    const char *kv_type;
    sl_bench_shape shape;
    uint64_t context_tokens;
    uint64_t rows, n_repeats, n_threads;
    sl_bench_spread end_to_end_s;
    sl_bench_spread compute_s; /* a further pass: kernels and checksums over a filled ring, nothing read */
    sl_bench_spread read_s;    /* another one: the same reads with checksums (and a prefill's writes), no kernels */
    double wait_s;             /* the computing thread waited for flash */
    double write_s;            /* inside write calls */
    double floor_disk_s, floor_memory_s, floor_compute_s, floor_s; /* computed; the last is the largest */
    double read_rate;          /* of the streamed pass, while at least one read was in flight */
    double verified_rows_per_s, prompt_tokens_per_s;
    uint64_t kv_bytes;         /* of the context */
    uint64_t bytes_read, bytes_written; /* in the timed pass */
    uint64_t resident_bytes, ring_bytes, ram_bytes, peak_rss_bytes;
    int64_t page_cache_bytes;  /* of the cache's file, at the end; -1 unknown */
    size_t window_tokens;
    const char *io_mode, *io_engine;
    size_t read_bytes, in_flight_bytes;
    bool has_published;
    sl_bench_published published;
} sl_bench_row;

/* One cache of `tokens` tokens, then for each of n_rows row counts, in this order, `n_repeats` rounds of: a pass that
 * starts with an empty ring, nothing read ahead; the reads alone; the kernels alone. out: [n_rows]. */
sl_status sl_bench_burst(const sl_bench_options *options, uint64_t tokens, const size_t *rows, size_t n_rows,
                         sl_bench_row *out, sl_err *err);

/* The same at n_points budgets, from the least to one that holds the whole cache (or ram_bytes). out: [n_points]. */
sl_status sl_bench_ram_sweep(const sl_bench_options *options, uint64_t tokens, size_t rows, size_t n_points,
                             sl_bench_row *out, sl_err *err);

/* The same kernels over a mapping of a file in kv_dir that holds the same tiles; pages dropped before each pass. */
sl_status sl_bench_mmap(const sl_bench_options *options, uint64_t tokens, size_t rows, sl_bench_row *out, sl_err *err);

/* Mode A: `tokens` prompt rows through causal attention, window by window, K and V appended as they come. in_memory:
 * everything resident, no file. */
sl_status sl_bench_prefill(const sl_bench_options *options, uint64_t tokens, bool in_memory, sl_bench_row *out,
                           sl_err *err);

/* ---------------------------------------------------------------------------------------------- ways to read a file */

typedef struct sl_bench_reader {
    const char *name;        /* static */
    const char *note;        /* why there is no figure, or how it was run */
    sl_bench_spread rate;    /* bytes a second */
    double share;            /* of fio, the median of each round; 0 unknown */
    char text[192];          /* room for the note */
} sl_bench_reader;

enum { SL_BENCH_READERS = 6 };

/* A file of file_bytes, written through the store; every reader once a round. out: [SL_BENCH_READERS], this program's
 * reader first, fio last. */
sl_status sl_bench_flash(const sl_bench_options *options, uint64_t file_bytes, sl_bench_reader *out, sl_err *err);

/* ------------------------------------------------------------------------------------------------ published figures */

/* The lines of a CSV text as bench/m4-telemetry.csv; SL_DAMAGED names the line. *n: at most capacity. */
sl_status sl_bench_published_parse(const char *text, sl_bench_published *out, size_t capacity, size_t *n, sl_err *err);
/* The table built in. */
extern const char sl_bench_published_text[];
enum { SL_BENCH_PUBLISHED_MAX = 32 };
/* Adds to a row the published figure of the same context, mode, type and rows, where there is one. */
void sl_bench_published_match(const sl_bench_published *table, size_t n, sl_bench_row *row);

/* -------------------------------------------------------------------------------------------------------- reporting */

typedef enum sl_bench_field_kind {
    SL_BENCH_FIELD_TEXT,
    SL_BENCH_FIELD_COUNT,
    SL_BENCH_FIELD_NUMBER
} sl_bench_field_kind;

/* One column of JSON and CSV. */
typedef struct sl_bench_field {
    const char *name;
    sl_bench_field_kind kind;
    const char *text; /* TEXT; NULL: none */
    uint64_t count;   /* COUNT */
    double number;    /* NUMBER; NaN: none */
} sl_bench_field;

enum { SL_BENCH_FIELDS = 56 };
/* Fills in out[SL_BENCH_FIELDS]; returns how many, always the same names in the same order. */
size_t sl_bench_fields(const sl_bench_row *row, sl_bench_field *out);

/* One line of CSV, and before the first one the names. */
void sl_bench_print_csv_line(const sl_bench_field *fields, size_t n, bool is_first, FILE *file);
void sl_bench_print_csv(const sl_bench_row *rows, size_t n, FILE *file);
void sl_bench_print_table(const sl_bench_row *rows, size_t n, FILE *file);

/* Speed against context length and, where rows differ in their budget, against the budget. SL_FAILED: cannot write. */
sl_status sl_bench_write_svg(const sl_bench_row *rows, size_t n, const char *path, sl_err *err);

/* -------------------------------------------------------------------------------------------------------- isolation */

/* Runs fn in a child process, whose memory is counted alone, and takes over `bytes` bytes at `out` from it: no pointers
 * but static ones. The caller must have no other thread. */
sl_status sl_bench_isolate(sl_status (*fn)(void *arg, void *out, sl_err *err), void *arg, void *out, size_t bytes,
                           const sl_bench_listener *listener, sl_err *err);

#endif
