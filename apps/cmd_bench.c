/* sluice bench: the reader beside others, bursts and prefills on synthetic contexts, beside computed floors and
 * published figures; kernels beside the machine's peaks. The measuring itself is bench/'s. */
#include <string.h>

#include "cmd_bench.h"

enum { MAX_JOBS = 48, DEFAULT_TOKENS = 1 << 16, MOST_POINTS = 17 };

typedef enum job_kind { JOB_BURST, JOB_SWEEP, JOB_MMAP, JOB_PREFILL, JOB_IN_MEMORY } job_kind;

/* What shares one cache, and one process of its own when there are several. */
typedef struct job {
    bench_cmd *b;
    job_kind kind;
    uint64_t tokens;
    size_t rows[BENCH_CMD_LIST], n_rows;
    bool is_f16;
} job;

/* ----------------------------------------------------------------------------------------------------- listening */

static void draw(void *arg, const char *name, const char *unit, uint64_t done, uint64_t total)
{
    bench_cmd *b = arg;
    const sl_progress_state state = {name, unit, done, total};
    sl_progress_update(&b->c.progress, &state, cli_seconds());
}

static void log_line(void *arg, bool warning, const char *text)
{
    bench_cmd *b = arg;
    if (!warning && !b->c.verbose)
        return;
    sl_progress_clear(&b->c.progress);
    fprintf(stderr, "sluice: %s%s\n", warning ? "warning: " : "", text);
}

/* ------------------------------------------------------------------------------------------------------- options */

enum { SHAPE_OPTIONS = 5, WORK_OPTIONS = 9, PICTURE_OPTIONS = 2 };
enum { MOST_OPTIONS = SHAPE_OPTIONS + WORK_OPTIONS + PICTURE_OPTIONS + CLI_COMPUTE_OPTIONS + CLI_IO_OPTIONS +
                      CLI_OUTPUT_OPTIONS };

static const sl_bench_shape shapes[] = {{1, 32, 32, 64}, {16, 32, 2, 64}};

static size_t shape_options(bench_cmd *b, sl_arg *out)
{
    static const char *const shape_names[] = {"m4", "m4x16", NULL};
    const sl_arg options[SHAPE_OPTIONS] = {
        {.name = "shape", .kind = SL_ARG_KIND_CHOICE, .out = &b->shape, .choices = shape_names, .group = "Shape",
         .help = "m4: 1 layer, 32 KV heads; m4x16: 16 layers, 2 KV heads; both 32 heads of 64",
         .default_text = "m4"},
        {.name = "layers", .kind = SL_ARG_KIND_INT, .out = &b->layers, .min = 1, .max = 4096, .help = "layers"},
        {.name = "heads", .kind = SL_ARG_KIND_INT, .out = &b->heads, .min = 1, .max = 4096, .help = "query heads"},
        {.name = "kv-heads", .kind = SL_ARG_KIND_INT, .out = &b->kv_heads, .min = 1, .max = 4096, .help = "KV heads"},
        {.name = "head-dim", .kind = SL_ARG_KIND_INT, .out = &b->head_dim, .min = 16, .max = 256,
         .help = "dimensions of a head"},
    };
    memcpy(out, options, sizeof options);
    return SHAPE_OPTIONS;
}

/* Work of a burst or a prefill; those of the other kind are left out. Returns how many. */
static size_t work_options(bench_cmd *b, bool burst, sl_arg *out)
{
    const sl_arg options[] = {
        {.name = "tokens", .kind = SL_ARG_KIND_LIST, .out = &b->tokens, .group = "Work",
         .help = "length of the context; may be given again", .metavar = "TOKENS", .default_text = "64K"},
        {.name = "repeat", .kind = SL_ARG_KIND_INT, .out = &b->repeat, .min = 1, .max = 64,
         .help = "rounds", .default_text = burst ? "3" : "1"},
        {.name = "resident", .kind = SL_ARG_KIND_SIZE, .out = &b->resident,
         .help = "of the cache, kept in memory", .default_text = "what --ram leaves; without --ram 0"},
        {.name = "table", .kind = SL_ARG_KIND_FLAG, .out = &b->table,
         .help = "every row of the published table (with --tokens: those of these lengths)"},
    };
    const sl_arg burst_options[] = {
        {.name = "rows", .kind = SL_ARG_KIND_LIST, .out = &b->rows, .metavar = "N",
         .help = "rows of a pass; may be given again", .default_text = "64"},
        {.name = "mmap", .kind = SL_ARG_KIND_FLAG, .out = &b->mmap,
         .help = "the same kernels over a mapped file instead"},
        {.name = "ram-sweep", .kind = SL_ARG_KIND_INT, .out = &b->sweep, .min = 2, .max = MOST_POINTS,
         .metavar = "POINTS", .help = "that many budgets, from the least to the whole cache"},
    };
    const sl_arg memory = {.name = "in-memory", .kind = SL_ARG_KIND_FLAG, .out = &b->in_memory,
                           .help = "everything resident, no file"};
    const sl_arg pictures[PICTURE_OPTIONS] = {
        {.name = "csv", .kind = SL_ARG_KIND_FLAG, .out = &b->csv, .group = "Output", .help = "CSV on stdout"},
        {.name = "svg", .kind = SL_ARG_KIND_STRING, .out = &b->svg, .metavar = "FILE",
         .help = "a picture of speed against context and budget"},
    };
    size_t n = sizeof options / sizeof options[0];
    memcpy(out, options, sizeof options);
    if (burst) {
        memcpy(out + n, burst_options, sizeof burst_options);
        n += sizeof burst_options / sizeof burst_options[0];
    } else {
        out[n++] = memory;
    }
    memcpy(out + n, pictures, sizeof pictures);
    return n + PICTURE_OPTIONS;
}

static uint32_t or_else(int64_t given, uint32_t otherwise)
{
    return given > 0 ? (uint32_t)given : otherwise;
}

sl_status bench_cmd_fill(bench_cmd *b, sl_err *err)
{
    if (b->csv && b->m.json)
        return sl_text_error(err, SL_USAGE, "--csv and --json: one form at a time");
    if (cli_expect_other_output(b->m.engine.trace, err) != SL_OK)
        return SL_USAGE;
    const sl_bench_shape *shape = &shapes[b->shape];
    b->o = (sl_bench_options){
        .shape = {or_else(b->layers, shape->n_layers), or_else(b->heads, shape->n_heads),
                  or_else(b->kv_heads, shape->n_kv_heads), or_else(b->head_dim, shape->head_dim)},
        .is_f16 = b->m.kv == 1,
        .ram_bytes = (uint64_t)b->m.engine.ram_bytes,
        .resident_bytes = b->resident,
        .ring_bytes = (uint64_t)b->m.ring,
        .window_tokens = (size_t)b->m.window,
        .n_threads = (size_t)b->m.engine.threads,
        .read_rate = (uint64_t)b->m.read_rate,
        .io = (sl_bench_io)b->m.io, /* the same order as sl_io */
        .io_probe = b->m.io_probe,
        .allow_ram_dir = b->m.allow_ram_dir,
        .kv_dir = b->m.kv_dir,
        .trace_path = b->m.engine.trace,
        .n_repeats = (size_t)b->repeat,
        .listener = {draw, log_line, cli_interrupted, b},
    };
    b->c.verbose = b->m.verbose;
    return SL_OK;
}

sl_status bench_cmd_read_list(const char *option, const sl_arg_list *list, int64_t most, uint64_t *out, size_t *n,
                              sl_err *err)
{
    *n = 0;
    for (size_t i = 0; i < list->n_items; i++) {
        int64_t value = 0;
        if (i == BENCH_CMD_LIST)
            return sl_text_error(err, SL_USAGE, "--%s is given more than %d times", option, BENCH_CMD_LIST);
        if (!sl_args_size(list->items[i], &value) || value < 1 || value > most)
            return sl_text_error(err, SL_USAGE, "--%s: '%s' is no number from 1 to %lld", option, list->items[i],
                                 (long long)most);
        out[(*n)++] = (uint64_t)value;
    }
    return SL_OK;
}

static sl_status read_lists(bench_cmd *b, sl_err *err)
{
    uint64_t rows[BENCH_CMD_LIST];
    sl_status status = bench_cmd_read_list("tokens", &b->tokens, INT64_C(1) << 40, b->token_list, &b->n_tokens, err);
    if (status == SL_OK)
        status = bench_cmd_read_list("rows", &b->rows, 4096, rows, &b->n_row_counts, err);
    for (size_t i = 0; status == SL_OK && i < b->n_row_counts; i++)
        b->row_list[i] = (size_t)rows[i];
    if (b->n_tokens == 0 && !b->table)
        b->token_list[b->n_tokens++] = DEFAULT_TOKENS;
    if (b->n_row_counts == 0)
        b->row_list[b->n_row_counts++] = 64;
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- jobs */

static bool wants(const bench_cmd *b, uint64_t tokens)
{
    for (size_t i = 0; i < b->n_tokens; i++)
        if (b->token_list[i] == tokens)
            return true;
    return b->n_tokens == 0;
}

/* Row counts of one context and type share the cache: the last job takes another one in. */
static bool joins(job *last, const sl_bench_published *line)
{
    if (last->kind != JOB_BURST || last->tokens != line->context_tokens ||
        last->is_f16 != (strcmp(line->kv_type, "f16") == 0) || last->n_rows == BENCH_CMD_LIST)
        return false;
    last->rows[last->n_rows++] = (size_t)line->rows;
    return true;
}

static bool is_in_memory(const sl_bench_published *line)
{
    return strcmp(line->mode, "in-memory") == 0;
}

/* The published table's lines: what streams, then what is measured apart from it. */
static size_t table_jobs(bench_cmd *b, job *jobs)
{
    size_t n = 0;
    for (size_t i = 0; i < 2 * b->n_published; i++) {
        const sl_bench_published *line = &b->published[i % b->n_published];
        if (is_in_memory(line) != (i >= b->n_published) || !wants(b, line->context_tokens))
            continue;
        if (n > 0 && strcmp(line->mode, "mode-a") != 0 && joins(&jobs[n - 1], line))
            continue;
        jobs[n++] = (job){
            .b = b,
            .kind = is_in_memory(line)                   ? JOB_IN_MEMORY
                    : strcmp(line->mode, "mode-a") == 0 ? JOB_PREFILL
                                                         : JOB_BURST,
            .tokens = line->context_tokens,
            .rows = {(size_t)line->rows},
            .n_rows = 1,
            .is_f16 = strcmp(line->kv_type, "f16") == 0,
        };
    }
    return n;
}

static size_t list_jobs(bench_cmd *b, bool burst, job *jobs)
{
    size_t n = 0;
    for (size_t t = 0; t < b->n_tokens; t++) {
        job base = {.b = b, .tokens = b->token_list[t], .is_f16 = b->o.is_f16};
        base.kind = !burst ? b->in_memory ? JOB_IN_MEMORY : JOB_PREFILL : JOB_BURST;
        if (burst && !b->mmap && b->sweep == 0)
            for (size_t r = 0; r < b->n_row_counts; r++)
                base.rows[base.n_rows++] = b->row_list[r];
        if (!burst || base.n_rows > 0) {
            jobs[n++] = base;
            continue;
        }
        base.kind = b->mmap ? JOB_MMAP : JOB_SWEEP;
        base.n_rows = 1;
        for (size_t r = 0; r < b->n_row_counts && n < MAX_JOBS; r++) {
            base.rows[0] = b->row_list[r];
            jobs[n++] = base;
        }
    }
    return n;
}

static size_t rows_of(const job *j)
{
    return j->kind == JOB_BURST ? j->n_rows : j->kind == JOB_SWEEP ? (size_t)j->b->sweep : 1;
}

static sl_status measure_job(const job *j, sl_bench_row *out, sl_err *err)
{
    sl_bench_options o = j->b->o;
    o.is_f16 = j->is_f16;
    if (o.ram_bytes == 0 && j->kind != JOB_SWEEP && j->kind != JOB_IN_MEMORY) {
        o.ram_bytes = BENCH_CMD_RAM;
        o.resident_bytes = o.resident_bytes < 0 ? 0 : o.resident_bytes;
    }
    switch (j->kind) {
    case JOB_BURST:
        return sl_bench_burst(&o, j->tokens, j->rows, j->n_rows, out, err);
    case JOB_SWEEP:
        return sl_bench_ram_sweep(&o, j->tokens, j->rows[0], (size_t)j->b->sweep, out, err);
    case JOB_MMAP:
        return sl_bench_mmap(&o, j->tokens, j->rows[0], out, err);
    case JOB_PREFILL:
        return sl_bench_prefill(&o, j->tokens, false, out, err);
    case JOB_IN_MEMORY:
        o.ram_bytes = j->b->table ? 0 : o.ram_bytes; /* the table's --ram is for what streams */
        return sl_bench_prefill(&o, j->tokens, true, out, err);
    }
    return sl_text_error(err, SL_USAGE, "no such work");
}

/* In this process or in one of its own, which has its own copy of the progress line. */
static sl_status run_job(void *arg, void *out, sl_err *err)
{
    job *j = arg;
    sl_status status = measure_job(j, out, err);
    sl_progress_clear(&j->b->c.progress);
    return status;
}

/* ----------------------------------------------------------------------------------------------------- reporting */

sl_status bench_cmd_print_json(const sl_bench_field *fields, size_t n, sl_err *err)
{
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    for (size_t i = 0; i < n; i++) {
        sl_json_key(&j, fields[i].name);
        if (fields[i].kind == SL_BENCH_FIELD_COUNT)
            sl_json_uint(&j, fields[i].count);
        else if (fields[i].kind == SL_BENCH_FIELD_NUMBER)
            sl_json_double(&j, fields[i].number);
        else if (fields[i].text)
            sl_json_string(&j, fields[i].text);
        else
            sl_json_null(&j);
    }
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

/* Rows that are known now. */
static sl_status take_rows(bench_cmd *b, size_t n, sl_err *err)
{
    const sl_bench_shape *s = &b->o.shape;
    sl_bench_field fields[SL_BENCH_FIELDS];
    bool is_published = s->n_layers == 1 && s->n_heads == 32 && s->n_kv_heads == 32 && s->head_dim == 64;
    sl_status status = SL_OK;
    sl_progress_clear(&b->c.progress);
    for (size_t i = 0; status == SL_OK && i < n; i++) {
        sl_bench_row *row = &b->done[b->n_done++];
        if (is_published)
            sl_bench_published_match(b->published, b->n_published, row);
        if (b->m.json)
            status = bench_cmd_print_json(fields, sl_bench_fields(row, fields), err);
    }
    return status;
}

static sl_status run_jobs(bench_cmd *b, job *jobs, size_t n_jobs, sl_err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n_jobs; i++)
        total += rows_of(&jobs[i]);
    if (total == 0)
        return sl_text_error(err, SL_USAGE, "the published table has no such row");
    if (total > BENCH_CMD_ROWS)
        return sl_text_error(err, SL_USAGE, "%zu rows are asked for, at most %d can be", total, BENCH_CMD_ROWS);
    if (n_jobs > 1 && b->o.trace_path)
        return sl_text_error(err, SL_USAGE, "--trace records one context: give one --tokens, and no --table");
    for (size_t i = 0; i < n_jobs; i++) {
        sl_bench_row *out = &b->done[b->n_done];
        size_t n = rows_of(&jobs[i]);
        sl_status status = n_jobs == 1 ? run_job(&jobs[i], out, err)
                                       : sl_bench_isolate(run_job, &jobs[i], out, n * sizeof *out, &b->o.listener, err);
        if (status == SL_OK)
            status = take_rows(b, n, err);
        if (status != SL_OK)
            return status;
        b->o.io_probe = false; /* once is enough */
    }
    return SL_OK;
}

static sl_status report(bench_cmd *b, sl_err *err)
{
    if (b->csv)
        sl_bench_print_csv(b->done, b->n_done, stdout);
    else if (!b->m.json && b->n_done > 0)
        sl_bench_print_table(b->done, b->n_done, stdout);
    return b->svg && b->n_done > 0 ? sl_bench_write_svg(b->done, b->n_done, b->svg, err) : SL_OK;
}

static sl_status run_work(bench_cmd *b, bool burst, sl_err *err)
{
    static job jobs[MAX_JOBS];
    sl_status status = bench_cmd_fill(b, err);
    if (status == SL_OK)
        status = read_lists(b, err);
    if (status == SL_OK)
        status = sl_bench_published_parse(sl_bench_published_text, b->published, SL_BENCH_PUBLISHED_MAX,
                                          &b->n_published, err);
    if (status != SL_OK)
        return status;
    size_t n = b->table ? table_jobs(b, jobs) : list_jobs(b, burst, jobs);
    status = run_jobs(b, jobs, n, err);
    sl_progress_clear(&b->c.progress);
    /* What was measured before an end of another kind is not thrown away. */
    sl_status reported = report(b, status == SL_OK ? err : NULL);
    return status == SL_OK ? reported : status;
}

/* --------------------------------------------------------------------------------------------------- subcommands */

static const struct {
    const char *name, *usage, *about;
} parts[] = {
    {"flash", "sluice bench flash [options]",
     "Writes a file of random bytes, then reads it in turn by this program's reader, by plain reads, through the page "
     "cache, by mapping, and by fio where it is installed."},
    {"burst", "sluice bench burst [options]",
     "Mode B: a few rows over a long synthetic context on flash, beside its reads alone, its kernels alone and its "
     "floors."},
    {"prefill", "sluice bench prefill [options]",
     "Mode A: a synthetic prompt through causal attention, window by window, its K and V written as they come."},
    {"kernel", "sluice bench kernel [options]",
     "This machine's peaks, every kernel as a share of the peak that bounds it, and the same work in a llama.cpp or "
     "ik_llama.cpp library, where one is found."},
};

enum { FLASH, BURST, PREFILL, KERNEL, N_PARTS };

static int run_part(bench_cmd *b, int part, int argc, char **argv, sl_err *err)
{
    sl_arg options[MOST_OPTIONS];
    sl_args_table table = {.usage = parts[part].usage, .about = parts[part].about, .options = options};
    if (part == FLASH) {
        table.n_options = bench_flash_options(b, options);
    } else if (part == KERNEL) {
        table.n_options = bench_kernel_options(b, options);
    } else {
        table.n_options = shape_options(b, options);
        table.n_options += work_options(b, part == BURST, options + table.n_options);
    }
    if (part != KERNEL) {
        sl_arg *ram = options + table.n_options; /* the first of its group */
        table.n_options += cli_compute_options(&b->m, ram);
        ram->default_text = "384M; for --ram-sweep and --in-memory half of what is free";
        table.n_options += cli_io_options(&b->m, options + table.n_options);
    }
    sl_arg *output = options + table.n_options;
    table.n_options += cli_output_options(&b->m, output);
    if (part == KERNEL)
        output->group = NULL; /* its own options end in that group */
    sl_args_result result;
    int exit_code = SL_OK;
    if (!cli_parse(&table, argc, argv, &result, &exit_code, err))
        return exit_code;
    if (part == KERNEL)
        return (int)bench_kernel_run(b, err);
    return (int)(part == FLASH ? bench_flash_run(b, err) : run_work(b, part == BURST, err));
}

int cmd_bench(int argc, char **argv, sl_err *err)
{
    static bench_cmd b; /* too large for a stack */
    const char *names[N_PARTS];
    for (int i = 0; i < N_PARTS; i++)
        names[i] = parts[i].name;
    for (int i = 0; argc > 0 && i < N_PARTS; i++) {
        if (strcmp(argv[0], names[i]) != 0)
            continue;
        memset(&b, 0, sizeof b);
        b.resident = -1;
        b.file_size = INT64_C(4) << 30;
        cli_init(&b.c);
        return run_part(&b, i, argc - 1, argv + 1, err);
    }
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        puts("usage: sluice bench flash|burst|prefill|kernel [options]\n\n"
             "Measures this machine; no model is needed.\n");
        for (int i = 0; i < N_PARTS; i++)
            printf("  %-8s %s\n", names[i], parts[i].about);
        return SL_OK;
    }
    const char *nearest = argc > 0 ? sl_args_nearest(argv[0], names, N_PARTS) : NULL;
    int code = SL_USAGE;
    if (nearest)
        code = (int)sl_text_error(err, SL_USAGE, "unknown measurement '%s', did you mean '%s'?", argv[0], nearest);
    else
        code = (int)sl_text_error(err, SL_USAGE,
                                  "expected flash, burst, prefill or kernel (see 'sluice bench --help')");
    return code;
}
