/* sluice bench kernel: options and reports. */
#include <stdlib.h>
#include <string.h>

#include "bench/kernels.h"
#include "cmd_bench.h"

enum { OWN_OPTIONS = 13 };

static struct {
    sl_bench_kernel_options o;
    sl_arg_list threads, keys, rows, heads, head_dims, types, peers;
    const char *level;
    int only;
    int64_t repeat;
    double seconds;
    bool quick, has_last;
    sl_bench_kernel_row last; /* shown */
} k;

static const char *const groups[] = {"peaks", "attention", "projections", "vectors", "all", NULL};

size_t bench_kernel_options(bench_cmd *b, sl_arg *out)
{
    const sl_arg options[OWN_OPTIONS] = {
        {.name = "only", .kind = SL_ARG_KIND_CHOICE, .out = &k.only, .choices = groups, .group = "Work",
         .help = "what is measured", .default_text = "all"},
        {.name = "level", .kind = SL_ARG_KIND_STRING, .out = &k.level, .metavar = "NAME",
         .help = "level of kernels", .default_text = "SLUICE_CPU, else the best"},
        {.name = "threads", .kind = SL_ARG_KIND_LIST, .out = &k.threads, .metavar = "N",
         .help = "computing threads; may be given again", .default_text = "as many as processors, then 1"},
        {.name = "heads", .kind = SL_ARG_KIND_LIST, .out = &k.heads, .metavar = "Q/KV",
         .help = "query heads and KV heads; may be given again", .default_text = "32/8, 32/2 and 32/32"},
        {.name = "head-dim", .kind = SL_ARG_KIND_LIST, .out = &k.head_dims, .metavar = "N",
         .help = "dimensions of a head, a multiple of 16 up to 256 (q8_0: of 32); may be given again",
         .default_text = "64 and 128"},
        {.name = "keys", .kind = SL_ARG_KIND_LIST, .out = &k.keys, .metavar = "TOKENS",
         .help = "keys of a context, a multiple of 64; may be given again",
         .default_text = "32K, for fewer than 16 rows 128K"},
        {.name = "rows", .kind = SL_ARG_KIND_LIST, .out = &k.rows, .metavar = "N",
         .help = "rows computed together; may be given again", .default_text = "64 and 1"},
        {.name = "type", .kind = SL_ARG_KIND_LIST, .out = &k.types, .metavar = "NAME",
         .help = "of K and V (f16, q8_0) and of weights (these, q4_k and others); may be given again",
         .default_text = "every one"},
        {.name = "peer", .kind = SL_ARG_KIND_LIST, .out = &k.peers, .metavar = "FOLDER",
         .help = "of a ggml library to compare with, or none; may be given again",
         .default_text = "SLUICE_PEER, else where pip or cmake installs one"},
        {.name = "repeat", .kind = SL_ARG_KIND_INT, .out = &k.repeat, .min = 1, .max = 64, .help = "rounds",
         .default_text = "5"},
        {.name = "seconds", .kind = SL_ARG_KIND_FLOAT, .out = &k.seconds, .low = 0.001, .high = 60,
         .help = "of one timing, about", .default_text = "0.1"},
        {.name = "quick", .kind = SL_ARG_KIND_FLAG, .out = &k.quick, .help = "small shapes, short timings"},
        {.name = "csv", .kind = SL_ARG_KIND_FLAG, .out = &b->csv, .group = "Output", .help = "CSV on stdout"},
    };
    k.only = SL_BENCH_GROUP_COUNT;
    memcpy(out, options, sizeof options);
    return OWN_OPTIONS;
}

/* "32/8" */
static sl_status read_heads(sl_err *err)
{
    for (size_t i = 0; i < k.heads.n_items; i++) {
        const char *item = k.heads.items[i], *slash = strchr(item, '/');
        char first[16] = "";
        int64_t q = 0, kv = 0;
        if (slash && (size_t)(slash - item) < sizeof first)
            memcpy(first, item, (size_t)(slash - item));
        if (i == SL_BENCH_KERNEL_LIST || !sl_args_int(first, &q) || !sl_args_int(slash + 1, &kv) || kv < 1 ||
            q > 4096 || q < kv || q % kv != 0)
            return sl_text_error(err, SL_USAGE, "--heads: '%s', expected Q/KV, Q a multiple of KV, as 32/8", item);
        k.o.heads[k.o.n_heads++] = (sl_bench_heads){(uint32_t)q, (uint32_t)kv};
    }
    return SL_OK;
}

static sl_status read_peers(sl_err *err)
{
    if (k.peers.n_items == 0) {
        k.o.n_peers = sl_bench_peers_find(k.o.peers);
        return SL_OK;
    }
    for (size_t i = 0; i < k.peers.n_items; i++) {
        if (strcmp(k.peers.items[i], "none") == 0)
            continue;
        if (k.o.n_peers == SL_BENCH_PEERS)
            return sl_text_error(err, SL_USAGE, "--peer is given more than %d times", SL_BENCH_PEERS);
        k.o.peers[k.o.n_peers++] = k.peers.items[i];
    }
    return SL_OK;
}

static sl_status read_numbers(sl_err *err)
{
    uint64_t list[BENCH_CMD_LIST];
    size_t n = 0;
    sl_status status = bench_cmd_read_list("threads", &k.threads, 4096, list, &k.o.n_threads, err);
    for (size_t i = 0; status == SL_OK && i < k.o.n_threads; i++)
        k.o.threads[i] = (size_t)list[i];
    if (status == SL_OK)
        status = bench_cmd_read_list("rows", &k.rows, 4096, list, &k.o.n_rows, err);
    for (size_t i = 0; status == SL_OK && i < k.o.n_rows; i++)
        k.o.rows[i] = (size_t)list[i];
    if (status == SL_OK)
        status = bench_cmd_read_list("head-dim", &k.head_dims, 256, list, &n, err);
    for (size_t i = 0; status == SL_OK && i < n; i++)
        k.o.head_dims[k.o.n_head_dims++] = (uint32_t)list[i];
    if (status == SL_OK)
        status = bench_cmd_read_list("keys", &k.keys, INT64_C(1) << 32, k.o.keys, &k.o.n_keys, err);
    return status;
}

static sl_status show(void *arg, const sl_bench_kernel_row *rows, size_t n, sl_err *err)
{
    bench_cmd *b = arg;
    sl_bench_field fields[SL_BENCH_FIELDS];
    sl_status status = SL_OK;
    sl_progress_clear(&b->c.progress);
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        size_t n_fields = sl_bench_kernel_fields(&rows[i], fields);
        if (b->m.json)
            status = bench_cmd_print_json(fields, n_fields, err);
        else if (b->csv)
            sl_bench_print_csv_line(fields, n_fields, !k.has_last, stdout);
        else
            sl_bench_kernel_print(&rows[i], k.has_last ? &k.last : NULL, stdout);
        k.last = rows[i];
        k.has_last = true;
    }
    fflush(stdout);
    return status;
}

sl_status bench_kernel_run(bench_cmd *b, sl_err *err)
{
    sl_status status = bench_cmd_fill(b, err);
    if (status == SL_OK)
        status = read_numbers(err);
    if (status == SL_OK)
        status = read_heads(err);
    if (status == SL_OK)
        status = read_peers(err);
    if (k.types.n_items > SL_BENCH_KERNEL_LIST)
        return sl_text_error(err, SL_USAGE, "--type is given more than %d times", SL_BENCH_KERNEL_LIST);
    if (status != SL_OK)
        return status;
    for (size_t i = 0; i < k.types.n_items; i++)
        k.o.types[k.o.n_types++] = k.types.items[i];
    if (k.only < SL_BENCH_GROUP_COUNT)
        k.o.wants[k.only] = true;
    k.o.level = k.level;
    k.o.n_repeats = (size_t)k.repeat;
    k.o.seconds = k.seconds;
    k.o.quick = k.quick;
    k.o.verbose = b->m.verbose;
    k.o.listener = b->o.listener;
    const sl_bench_kernel_sink sink = {show, b};
    status = sl_bench_kernel(&k.o, &sink, err);
    sl_progress_clear(&b->c.progress);
    return status;
}
