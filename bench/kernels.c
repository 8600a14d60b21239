/* The cases of the kernel bench, and the rounds in which each is measured: probes, our kernel, probes, each peer. */
#include "bench/kernels.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bench/peer.h"
#include "platform/os.h"

enum {
    DEFAULT_REPEATS = 5,
    MAX_REPEATS = 64,
    MANY_ROWS_KEYS = 32 << 10,
    ONE_ROW_KEYS = 128 << 10,
    QUICK_KEYS = 4 << 10,
    MODEL_WIDTH = 4096, /* of the projections */
    QUICK_WIDTH = 1024,
    ROWS_TOGETHER = 64, /* of weights: whole panels here, whole tiles in a peer */
    PROBE_SHARE = 5     /* a probe takes a part in so many of a timing */
};

typedef struct bench_run {
    sl_bench_kernel_options o; /* with what is usual filled in */
    const sl_bench_kernel_sink *sink;
    sl_budget budget; /* of the block alone */
    uint8_t *block;
    size_t block_bytes;
} bench_run;

/* ----------------------------------------------------------------------------------------------------------- rounds */

typedef struct series {
    double seconds[MAX_REPEATS], compute[MAX_REPEATS], memory[MAX_REPEATS], matrix[MAX_REPEATS];
    double compute_share[MAX_REPEATS], memory_share[MAX_REPEATS], matrix_share[MAX_REPEATS], share[MAX_REPEATS];
    double peer[SL_BENCH_PEERS][MAX_REPEATS], ratio[SL_BENCH_PEERS][MAX_REPEATS];
} series;

typedef struct peer_set {
    bench_peer at[SL_BENCH_PEERS];
    size_t n;
} peer_set;

typedef struct peaks {
    double compute, memory, matrix;
} peaks;

static peaks probe(bench_prober *prober, const bench_case *c)
{
    peaks p = {bench_probe(prober, c->compute), bench_probe(prober, c->memory), 0};
    if (c->compute == BENCH_PEAK_INT16 || c->compute == BENCH_PEAK_INT8)
        p.matrix = bench_probe(prober, BENCH_PEAK_MATRIX);
    return p;
}

/* Seconds of one call; *n_runs grows until a timing is long enough. */
static sl_status time_case(bench_case *c, size_t *n_runs, double *seconds, sl_err *err)
{
    sl_status status = SL_OK;
    for (;;) {
        double start = sl_os_seconds();
        for (size_t i = 0; status == SL_OK && i < *n_runs; i++)
            status = c->run(c, err);
        double spent = sl_os_seconds() - start;
        *seconds = spent / (double)(*n_runs * c->calls_per_run);
        if (status != SL_OK || spent >= 0.7 * c->spec.seconds)
            return status;
        size_t more = spent > 0 ? (size_t)(c->spec.seconds / spent * (double)*n_runs) + 1 : 2 * *n_runs;
        *n_runs = more < 16 * *n_runs ? more : 16 * *n_runs;
    }
}

static void take_round(const bench_case *c, const peaks *before, const peaks *after, series *s, size_t i)
{
    s->compute[i] = 0.5 * (before->compute + after->compute);
    s->memory[i] = 0.5 * (before->memory + after->memory);
    s->matrix[i] = 0.5 * (before->matrix + after->matrix);
    double operations = c->operations / s->seconds[i], bytes = c->bytes / s->seconds[i];
    s->compute_share[i] = s->compute[i] > 0 ? operations / s->compute[i] : 0;
    s->memory_share[i] = s->memory[i] > 0 ? bytes / s->memory[i] : 0;
    s->matrix_share[i] = s->matrix[i] > 0 ? operations / s->matrix[i] : 0;
    s->share[i] = s->compute_share[i] > s->memory_share[i] ? s->compute_share[i] : s->memory_share[i];
}

static sl_status measure(bench_run *run, bench_case *c, bench_prober *prober, peer_set *peers, series *s,
                         sl_err *err)
{
    size_t n_runs = 1;
    double warm;
    sl_status status = c->run(c, err);
    if (status == SL_OK)
        status = time_case(c, &n_runs, &warm, err);
    probe(prober, c); /* the first one finds its length */
    for (size_t i = 0; status == SL_OK && i < run->o.n_repeats; i++) {
        if (run->o.listener.stop && run->o.listener.stop(run->o.listener.arg))
            return bench_cancelled(err);
        peaks before = probe(prober, c);
        status = time_case(c, &n_runs, &s->seconds[i], err);
        peaks after = probe(prober, c);
        take_round(c, &before, &after, s, i);
        for (size_t p = 0; p < peers->n; p++) {
            s->peer[p][i] = peers->at[p].child ? bench_peer_time(&peers->at[p], &run->o.listener) : -1;
            s->ratio[p][i] = s->peer[p][i] / s->seconds[i];
        }
    }
    return status;
}

/* --------------------------------------------------------------------------------------------------------- one case */

static void fill_row(const bench_run *run, const bench_case *c, series *s, sl_bench_kernel_row *row)
{
    static const char *const groups[] = {"peak", "attention", "projection", "vector"};
    size_t n = run->o.n_repeats;
    *row = c->row;
    row->group = groups[c->spec.group];
    row->n_threads = c->spec.n_threads;
    row->n_repeats = n;
    row->n_heads = c->spec.n_heads;
    row->n_kv_heads = c->spec.n_kv_heads;
    row->head_dim = c->spec.head_dim;
    row->keys = c->spec.keys;
    row->rows = c->spec.rows;
    row->n_in = c->row.n_in ? c->row.n_in : c->spec.n_in;
    row->n_out = c->spec.n_out;
    row->seconds = sl_bench_spread_of(s->seconds, n);
    row->gops = c->operations / row->seconds.median * 1e-9;
    row->gb_per_s = c->bytes / row->seconds.median * 1e-9;
    row->compute_peak = sl_bench_spread_of(s->compute, n).median * 1e-9;
    row->memory_peak = sl_bench_spread_of(s->memory, n).median * 1e-9;
    row->matrix_peak = sl_bench_spread_of(s->matrix, n).median * 1e-9;
    row->compute_share = sl_bench_spread_of(s->compute_share, n);
    row->memory_share = sl_bench_spread_of(s->memory_share, n);
    row->matrix_share = sl_bench_spread_of(s->matrix_share, n);
    row->share = sl_bench_spread_of(s->share, n);
    row->compute_name = c->compute < BENCH_PEAK_NONE ? bench_peak_name(c->compute) : NULL;
    row->memory_name = bench_peak_name(c->memory);
    bool is_compute = row->compute_share.median > row->memory_share.median;
    row->bound = is_compute ? row->compute_name : row->memory_name;
}

static void fill_peer(const bench_peer *peer, series *s, size_t p, size_t n, sl_bench_kernel_row *row)
{
    const char *name = peer->name[0] ? peer->name : peer->folder;
    size_t length = strlen(name) < sizeof row->peer ? strlen(name) : sizeof row->peer - 1;
    memcpy(row->peer, name, length);
    memcpy(row->peer_way, peer->way, sizeof row->peer_way);
    if (!peer->child)
        return;
    row->peer_seconds = sl_bench_spread_of(s->peer[p], n);
    row->ratio = sl_bench_spread_of(s->ratio[p], n);
}

static sl_status open_case(bench_case *c, sl_err *err)
{
    switch (c->spec.group) {
    case SL_BENCH_GROUP_ATTENTION:
        return bench_attn_open(c, err);
    case SL_BENCH_GROUP_PROJECTIONS:
        return bench_gemm_open(c, err);
    default:
        return bench_vector_open(c, err);
    }
}

void bench_case_close(bench_case *c)
{
    bench_cache_deinit(&c->cache);
    sl_mem_unmap(&c->m->budget, c->map, c->map_bytes);
    c->map = NULL;
}

static sl_bench_options machine_options(const bench_run *run, const bench_case_spec *spec)
{
    bool is_attn = spec->group == SL_BENCH_GROUP_ATTENTION;
    return (sl_bench_options){
        .shape = {is_attn ? (uint32_t)spec->n_layers : 1, is_attn ? spec->n_heads : 1, is_attn ? spec->n_kv_heads : 1,
                  is_attn ? spec->head_dim : 64},
        .is_f16 = spec->kv_type == SL_KV_TYPE_F16,
        .n_threads = spec->n_threads,
        .level = run->o.level,
        .listener = {.stop = run->o.listener.stop, .log = run->o.listener.log, .arg = run->o.listener.arg},
    };
}

static bench_prober prober_of(const bench_run *run, bench_machine *m)
{
    return (bench_prober){
        .level = m->kernel_level,
        .pool = m->pool,
        .block = run->block,
        .block_bytes = run->block_bytes,
        .seconds = run->o.seconds / PROBE_SHARE,
    };
}

static sl_status measure_case(bench_run *run, bench_case *c, peer_set *peers, sl_bench_kernel_row *rows, sl_err *err)
{
    static series s;
    bench_prober prober = prober_of(run, c->m);
    sl_status status = measure(run, c, &prober, peers, &s, err);
    if (status != SL_OK)
        return status;
    sl_bench_kernel_row row;
    fill_row(run, c, &s, &row);
    for (size_t p = 0; p < SL_BENCH_PEERS; p++)
        rows[p] = row;
    for (size_t p = 0; p < peers->n; p++)
        fill_peer(&peers->at[p], &s, p, run->o.n_repeats, &rows[p]);
    return SL_OK;
}

/* The peers first: what is forked must not hold our threads. */
static sl_status run_case(bench_run *run, const bench_case_spec *spec, sl_err *err)
{
    static bench_case c; /* with its rows, too large for a stack */
    static sl_bench_kernel_row rows[SL_BENCH_PEERS];
    peer_set peers = {.n = 0};
    if (spec->group == SL_BENCH_GROUP_ATTENTION || spec->group == SL_BENCH_GROUP_PROJECTIONS)
        for (; peers.n < run->o.n_peers; peers.n++)
            bench_peer_start(&peers.at[peers.n], run->o.peers[peers.n], spec, &run->o.listener);
    bench_machine m;
    sl_bench_options options = machine_options(run, spec);
    c = (bench_case){.spec = *spec, .m = &m};
    sl_status status = bench_machine_init(&m, &options, false, err);
    if (status == SL_OK)
        status = open_case(&c, err);
    if (status == SL_OK)
        status = measure_case(run, &c, &peers, rows, err);
    bench_case_close(&c);
    status = bench_machine_deinit(&m, status, err);
    for (size_t p = 0; p < peers.n; p++)
        bench_peer_stop(&peers.at[p]);
    return status == SL_OK ? run->sink->emit(run->sink->arg, rows, peers.n ? peers.n : 1, err) : status;
}

/* ------------------------------------------------------------------------------------------------------------ peaks */

static sl_status emit_peak(bench_run *run, bench_machine *m, bench_peak peak, bench_prober *prober, sl_err *err)
{
    double rates[MAX_REPEATS];
    if (bench_probe(prober, peak) <= 0)
        return SL_OK;
    for (size_t i = 0; i < run->o.n_repeats; i++)
        rates[i] = bench_probe(prober, peak) * 1e-9;
    sl_bench_kernel_row row = {
        .group = "peak",
        .name = bench_peak_name(peak),
        .level = sl_cpu_level_name(m->kernel_level),
        .n_threads = m->options.n_threads,
        .n_repeats = run->o.n_repeats,
        .share = sl_bench_spread_of(rates, run->o.n_repeats),
    };
    bool reads = peak == BENCH_PEAK_MEMORY || peak == BENCH_PEAK_CACHE;
    row.gops = reads ? 0 : row.share.median;
    row.gb_per_s = reads ? row.share.median : 0;
    return run->sink->emit(run->sink->arg, &row, 1, err);
}

static sl_status run_peaks(bench_run *run, const bench_case_spec *spec, sl_err *err)
{
    bench_machine m;
    sl_bench_options options = machine_options(run, spec);
    sl_status status = bench_machine_init(&m, &options, false, err);
    bench_prober prober = prober_of(run, &m);
    for (int peak = 0; status == SL_OK && peak < BENCH_PEAK_COUNT; peak++)
        status = emit_peak(run, &m, (bench_peak)peak, &prober, err);
    return bench_machine_deinit(&m, status, err);
}

/* ------------------------------------------------------------------------------------------------------------ cases */

typedef struct case_list {
    bench_case_spec *at;
    size_t n, capacity;
} case_list;

static void add_case(case_list *list, const bench_case_spec *spec)
{
    if (list->n < list->capacity)
        list->at[list->n] = *spec;
    list->n++;
}

static bool wants_type(const bench_run *run, const char *name)
{
    for (size_t i = 0; i < run->o.n_types; i++)
        if (strcasecmp(run->o.types[i], name) == 0)
            return true;
    return run->o.n_types == 0;
}

/* Few rows are bound by memory: contexts one after another, as layers are, so that no cache holds them. */
static void add_attention(const bench_run *run, bench_case_spec spec, case_list *list)
{
    const sl_bench_kernel_options *o = &run->o;
    uint64_t usual = o->quick ? QUICK_KEYS : spec.rows >= 16 ? MANY_ROWS_KEYS : ONE_ROW_KEYS;
    for (size_t k = 0; k < (o->n_keys ? o->n_keys : 1); k++) {
        spec.keys = o->n_keys ? o->keys[k] : usual;
        uint64_t bytes = spec.keys * spec.n_kv_heads * sl_tile_bytes(spec.kv_type, spec.head_dim) / SL_TILE;
        spec.n_layers = spec.rows < 16 && !o->quick ? (run->block_bytes + bytes - 1) / bytes : 1;
        add_case(list, &spec);
    }
}

static void list_attention(const bench_run *run, bench_case_spec spec, case_list *list)
{
    const sl_bench_kernel_options *o = &run->o;
    spec.group = SL_BENCH_GROUP_ATTENTION;
    for (int type = SL_KV_TYPE_COUNT - 1; type >= 0; type--)
        for (size_t d = 0; d < o->n_head_dims && wants_type(run, type == SL_KV_TYPE_F16 ? "f16" : "q8_0"); d++)
            for (size_t r = 0; r < o->n_rows; r++)
                for (size_t h = 0; h < o->n_heads; h++) {
                    spec.kv_type = (sl_kv_type)type;
                    spec.head_dim = o->head_dims[d];
                    if (type == SL_KV_TYPE_Q8_0 && spec.head_dim % SL_GROUP != 0)
                        continue; /* there is no such cache */
                    spec.rows = o->rows[r];
                    spec.n_heads = o->heads[h].n_heads;
                    spec.n_kv_heads = o->heads[h].n_kv_heads;
                    add_attention(run, spec, list);
                }
}

/* For few rows a matrix that no cache holds, for many one of a model. */
static void list_projections(const bench_run *run, bench_case_spec spec, case_list *list)
{
    const sl_bench_kernel_options *o = &run->o;
    spec.group = SL_BENCH_GROUP_PROJECTIONS;
    spec.n_in = o->quick ? QUICK_WIDTH : MODEL_WIDTH;
    for (int type = 0; type < SL_WTYPE_COUNT; type++)
        for (size_t r = 0; r < o->n_rows && wants_type(run, sl_wtype_name((sl_wtype)type)); r++) {
            spec.wtype = (sl_wtype)type;
            spec.rows = o->rows[r];
            size_t row_bytes = sl_wtype_row_bytes(spec.wtype, spec.n_in);
            bool is_large = spec.rows < 16 && !o->quick;
            spec.n_out = is_large ? run->block_bytes / row_bytes / ROWS_TOGETHER * ROWS_TOGETHER : spec.n_in;
            add_case(list, &spec);
        }
}

static void list_cases(const bench_run *run, case_list *list)
{
    list->n = 0;
    for (size_t t = 0; t < run->o.n_threads; t++) {
        bench_case_spec spec = {
            .n_threads = run->o.threads[t], .seconds = run->o.seconds, .verbose = run->o.verbose};
        if (run->o.wants[SL_BENCH_GROUP_PEAKS])
            add_case(list, &spec);
        if (run->o.wants[SL_BENCH_GROUP_ATTENTION])
            list_attention(run, spec, list);
        if (run->o.wants[SL_BENCH_GROUP_PROJECTIONS])
            list_projections(run, spec, list);
        spec.group = SL_BENCH_GROUP_VECTORS;
        for (spec.vector = 0; run->o.wants[spec.group] && spec.vector < bench_vectors_count(); spec.vector++)
            add_case(list, &spec);
    }
}

/* ------------------------------------------------------------------------------- refusals, before anything is made */

static sl_status check_level(const char *given, sl_err *err)
{
    sl_cpu_level level;
    sl_err found = {SL_OK, ""};
    sl_status status = sl_cpu_find(given ? given : getenv("SLUICE_CPU"), &level, &found);
    if (status == SL_OK)
        return SL_OK;
    const char *why = strchr(found.text, ':'); /* behind the variable's name and value */
    return given && why ? sl_err_set(err, status, "--level %.40s%s", given, why)
                        : sl_err_set(err, status, "%s", found.text);
}

static sl_status check_types(const sl_bench_kernel_options *o, sl_err *err)
{
    char known[256] = "";
    for (int type = 0; type < SL_WTYPE_COUNT; type++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", type ? ", " : "", sl_wtype_name((sl_wtype)type));
    }
    for (char *at = known; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    for (size_t i = 0; i < o->n_types; i++) {
        int type = 0;
        while (type < SL_WTYPE_COUNT && strcasecmp(o->types[i], sl_wtype_name((sl_wtype)type)) != 0)
            type++;
        if (type == SL_WTYPE_COUNT)
            return sl_err_set(err, SL_USAGE, "--type: '%.40s', expected %s", o->types[i], known);
    }
    return SL_OK;
}

static sl_status check_options(const sl_bench_kernel_options *o, sl_err *err)
{
    for (size_t i = 0; i < o->n_head_dims; i++)
        if (o->head_dims[i] == 0 || o->head_dims[i] % 16 != 0 || o->head_dims[i] > SL_MAX_HEAD_DIM)
            return sl_err_set(err, SL_USAGE, "--head-dim: %u is no multiple of 16 up to %d", o->head_dims[i],
                              (int)SL_MAX_HEAD_DIM);
    for (size_t i = 0; i < o->n_keys; i++)
        if (o->keys[i] == 0 || o->keys[i] % SL_TILE != 0)
            return sl_err_set(err, SL_USAGE, "--keys: %llu is no multiple of %d", (unsigned long long)o->keys[i],
                              (int)SL_TILE);
    sl_status status = check_types(o, err);
    return status == SL_OK ? check_level(o->level, err) : status;
}

/* Peers hold as much again; what memory cannot hold is said before they try. */
static sl_status check_cases(const bench_run *run, const case_list *list, sl_err *err)
{
    uint64_t room = sl_os_free_memory_bytes() / 2;
    for (size_t i = 0; run->o.n_keys > 0 && i < list->n; i++) {
        const bench_case_spec *s = &list->at[i];
        if (s->group != SL_BENCH_GROUP_ATTENTION)
            continue;
        uint64_t bytes = s->n_layers * s->keys / SL_TILE * s->n_kv_heads * sl_tile_bytes(s->kv_type, s->head_dim);
        if (bytes > room)
            return sl_err_set(err, SL_REFUSED,
                              "--keys %llu: K and V of %u heads take %llu MiB, and half of the free memory is %llu",
                              (unsigned long long)s->keys, s->n_kv_heads, (unsigned long long)(bytes >> 20),
                              (unsigned long long)(room >> 20));
    }
    return SL_OK;
}

static void set_usual(sl_bench_kernel_options *o)
{
    static const sl_bench_heads heads[] = {{32, 8}, {32, 2}, {32, 32}};
    bool any = false;
    for (int group = 0; group < SL_BENCH_GROUP_COUNT; group++)
        any = any || o->wants[group];
    for (int group = 0; !any && group < SL_BENCH_GROUP_COUNT; group++)
        o->wants[group] = true;
    if (o->n_threads == 0) {
        o->threads[o->n_threads++] = sl_os_n_cpus();
        if (o->threads[0] > 1 && !o->quick)
            o->threads[o->n_threads++] = 1;
    }
    for (size_t i = 0; i < 2 && (i == 0 || !o->quick) && o->n_head_dims <= i; i++)
        o->head_dims[o->n_head_dims++] = i == 0 ? 64 : 128;
    if (o->n_rows == 0) {
        o->rows[o->n_rows++] = 64;
        o->rows[o->n_rows++] = 1;
    }
    if (o->n_heads == 0) {
        o->n_heads = o->quick ? 1 : 3;
        memcpy(o->heads, heads, sizeof heads);
    }
    o->n_repeats = o->n_repeats ? o->n_repeats : DEFAULT_REPEATS;
    o->n_repeats = o->n_repeats < MAX_REPEATS ? o->n_repeats : MAX_REPEATS;
    o->seconds = o->seconds > 0 ? o->seconds : o->quick ? 0.01 : 0.1;
}

static sl_status run_all(bench_run *run, sl_err *err)
{
    case_list list = {0};
    list_cases(run, &list);
    size_t n = list.n;
    if (n == 0)
        return sl_err_set(err, SL_USAGE,
                          "nothing to measure: that work has no such --type (attention: f16, and q8_0 where --head-dim "
                          "is a multiple of %d)",
                          (int)SL_GROUP);
    sl_status status = sl_mem_new(&run->budget, n, sizeof *list.at, "cases", &list.at, err);
    if (status != SL_OK)
        return status;
    list.capacity = n;
    list_cases(run, &list);
    status = check_cases(run, &list, err);
    for (size_t i = 0; status == SL_OK && i < n; i++) {
        const sl_bench_listener *l = &run->o.listener;
        if (l->progress)
            l->progress(l->arg, "measuring", "cases", i, n);
        status = list.at[i].group == SL_BENCH_GROUP_PEAKS ? run_peaks(run, &list.at[i], err)
                                                          : run_case(run, &list.at[i], err);
    }
    sl_mem_free(&run->budget, list.at);
    return status;
}

sl_status sl_bench_kernel(const sl_bench_kernel_options *options, const sl_bench_kernel_sink *sink, sl_err *err)
{
    bench_run run = {.o = *options, .sink = sink};
    set_usual(&run.o);
    sl_status status = check_options(&run.o, err);
    if (status != SL_OK)
        return status;
    sl_budget_init(&run.budget, UINT64_MAX);
    run.block_bytes = run.o.quick ? (size_t)32 << 20 : bench_prober_block_bytes();
    status = sl_mem_map(&run.budget, run.block_bytes, "memory to measure", &run.block, err);
    if (status == SL_OK) {
        memset(run.block, 1, run.block_bytes);
        status = run_all(&run, err);
    }
    sl_mem_unmap(&run.budget, run.block, run.block_bytes);
    sl_budget_deinit(&run.budget);
    return status;
}
