/* What the parts of sluice bench share: the parsed command line and the rows measured so far. */
#ifndef SL_CMD_BENCH_H
#define SL_CMD_BENCH_H

#include "bench/bench.h"
#include "cli.h"

enum { BENCH_CMD_ROWS = 64, BENCH_CMD_LIST = 16 };

/* Where no ceiling is given. What streams has this one and keeps nothing in memory beside its ring; half of what is
 * free, as elsewhere, would hold the whole context on many machines and measure no flash. */
#define BENCH_CMD_RAM (UINT64_C(384) << 20)

typedef struct bench_cmd {
    cli c;
    cli_machine m;
    sl_bench_options o;
    int shape;
    int64_t layers, heads, kv_heads, head_dim, repeat, resident, file_size, sweep;
    sl_arg_list tokens, rows;
    bool table, mmap, in_memory, csv;
    const char *svg;
    uint64_t token_list[BENCH_CMD_LIST];
    size_t row_list[BENCH_CMD_LIST], n_tokens, n_row_counts;
    sl_bench_published published[SL_BENCH_PUBLISHED_MAX];
    size_t n_published;
    sl_bench_row done[BENCH_CMD_ROWS];
    size_t n_done;
} bench_cmd;

/* From the parsed command line to what the measuring takes. */
sl_status bench_cmd_fill(bench_cmd *b, sl_err *err);

/* "64K" -> 65536, at most BENCH_CMD_LIST of them. */
sl_status bench_cmd_read_list(const char *option, const sl_arg_list *list, int64_t most, uint64_t *out, size_t *n,
                              sl_err *err);
/* One object, one line. */
sl_status bench_cmd_print_json(const sl_bench_field *fields, size_t n, sl_err *err);

/* The options of `kernel` and its work. */
size_t bench_kernel_options(bench_cmd *b, sl_arg *out);
sl_status bench_kernel_run(bench_cmd *b, sl_err *err);

/* The options of `flash` and its work. */
size_t bench_flash_options(bench_cmd *b, sl_arg *out);
sl_status bench_flash_run(bench_cmd *b, sl_err *err);

#endif
