/* Projections: rows x a matrix, its panels divided over the pool as the layer graph divides them, the rows' own
 * quantisation included. */
#include <string.h>

#include "bench/kernel_case.h"
#include "bench/synth.h"

/* ggml.h's numbers; the repacked ones are those of github.com/ikawrakow/ik_llama.cpp. */
static const bench_wtype wtypes[] = {
    {"F32", 0, 0, 1, 4, {-1, -1}},
    {"F16", 1, 0, 1, 2, {-1, -1}},
    {"BF16", 30, 230, 1, 2, {-1, -1}},
    {"Q8_0", 8, 208, 32, 34, {0, -1}},
    {"Q4_0", 2, 202, 32, 18, {0, -1}},
    {"Q4_1", 3, 0, 32, 20, {0, 2}},
    {"Q5_0", 6, 206, 32, 22, {0, -1}},
    {"Q5_1", 7, 0, 32, 24, {0, 2}},
    {"Q4_K", 12, 212, 256, 144, {0, 2}},
    {"Q5_K", 13, 213, 256, 176, {0, 2}},
    {"Q6_K", 14, 214, 256, 210, {208, -1}},
    {"Q2_K", 10, 210, 256, 84, {80, 82}},
    {"Q3_K", 11, 211, 256, 110, {108, -1}},
    {"IQ4_NL", 20, 220, 32, 18, {0, -1}},
    {"IQ4_XS", 23, 223, 256, 136, {0, -1}},
    {"MXFP4", 39, 0, 32, 17, {-1, -1}},
};

const bench_wtype *bench_wtype_find(sl_wtype type)
{
    for (size_t i = 0; i < sizeof wtypes / sizeof wtypes[0]; i++)
        if (strcmp(wtypes[i].name, sl_wtype_name(type)) == 0)
            return &wtypes[i];
    return NULL;
}

/* The last byte of a number is its sign and high exponent bits. */
void bench_wtype_fill(sl_wtype type, uint8_t *rows, size_t bytes, uint64_t seed)
{
    const bench_wtype *w = bench_wtype_find(type);
    bench_fill_bytes(rows, bytes, seed);
    for (size_t at = 0; at + w->block_bytes <= bytes; at += w->block_bytes) {
        for (int i = 0; i < 2 && w->scale_off[i] >= 0; i++)
            rows[at + (size_t)w->scale_off[i] + 1] = 0x20; /* about 0.01 */
        if (type == SL_WTYPE_MXFP4)
            rows[at] = 120; /* 2^-8 */
        if (w->block == 1)
            rows[at + w->block_bytes - 1] = type == SL_WTYPE_F16 ? 0x30 : 0x3e;
    }
}

enum { PACKED, QROWS, X, OUT };

static void quantise_row(void *arg, size_t row, size_t worker)
{
    (void)worker;
    bench_case *c = arg;
    size_t n_in = c->spec.n_in;
    c->m->kernels.qrow((uint8_t *)c->parts[QROWS] + row * sl_qrow_bytes(n_in),
                       (const float *)c->parts[X] + row * n_in, n_in, 1, n_in);
}

static void multiply_panels(void *arg, size_t item, size_t worker)
{
    (void)worker;
    bench_case *c = arg;
    size_t first = item * c->per_item * SL_PANEL, n = c->per_item * SL_PANEL, left = c->spec.n_out - first;
    const sl_gemm_args args = {
        .packed = c->parts[PACKED],
        .n_out = c->spec.n_out,
        .n_in = c->spec.n_in,
        .first_out = first,
        .n = n < left ? n : left,
        .qrows = c->parts[QROWS],
        .x = c->parts[X],
        .x_stride = c->spec.n_in,
        .n_rows = c->spec.rows,
        .out = c->parts[OUT],
        .out_stride = c->spec.n_out,
    };
    sl_kernels_gemm(&c->m->kernels, c->spec.wtype)(&args);
}

static sl_status run_product(bench_case *c, sl_err *err)
{
    (void)err;
    size_t panels = c->spec.n_out / SL_PANEL;
    if (sl_wtype_is_quantised(c->spec.wtype))
        sl_pool_run(c->m->pool, c->spec.rows, quantise_row, c);
    sl_pool_run(c->m->pool, (panels + c->per_item - 1) / c->per_item, multiply_panels, c);
    return SL_OK;
}

static size_t pad64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static const char *lower_name(sl_wtype type)
{
    static char names[SL_WTYPE_COUNT][8];
    const char *from = sl_wtype_name(type);
    for (size_t i = 0; from[i] && i < sizeof names[0] - 1; i++)
        names[type][i] = from[i] >= 'A' && from[i] <= 'Z' ? (char)(from[i] - 'A' + 'a') : from[i];
    return names[type];
}

/* The level of the type's entry: entries gemm_* stand in the list in any order, so they are found by name. */
static const char *level_of(const sl_kernels *kernels, const char *type)
{
    for (size_t i = 0; i < SL_KERNEL_COUNT; i++)
        if (strncmp(sl_kernel_name(i), "gemm_", 5) == 0 && strcmp(sl_kernel_name(i) + 5, type) == 0)
            return sl_cpu_level_name(kernels->level[i]);
    return "none";
}

/* One panel, made once and copied: no kernel's time depends on the numbers. */
static sl_status fill(bench_case *c, sl_err *err)
{
    const bench_case_spec *s = &c->spec;
    size_t panel = SL_PANEL * sl_wtype_row_bytes(s->wtype, s->n_in);
    uint8_t *rows = NULL, *packed = c->parts[PACKED];
    sl_status status = sl_mem_new(&c->m->budget, panel, 1, "weights to measure", &rows, err);
    if (status != SL_OK)
        return status;
    bench_wtype_fill(s->wtype, rows, panel, 7);
    sl_weight_pack_panel(s->wtype, packed, rows, SL_PANEL, s->n_in);
    sl_mem_free(&c->m->budget, rows);
    for (size_t i = 1; i < s->n_out / SL_PANEL; i++)
        memcpy(packed + i * panel, packed, panel);
    bench_fill_floats(c->m, c->parts[X], s->rows * s->n_in, 8);
    return SL_OK;
}

sl_status bench_gemm_open(bench_case *c, sl_err *err)
{
    const bench_case_spec *s = &c->spec;
    bool quantised = sl_wtype_is_quantised(s->wtype);
    size_t matrix = s->n_out * sl_wtype_row_bytes(s->wtype, s->n_in);
    const size_t bytes[4] = {pad64(matrix), s->rows * sl_qrow_bytes(s->n_in), s->rows * pad64(s->n_in * sizeof(float)),
                             s->rows * s->n_out * sizeof(float)};
    for (size_t i = 0; i < 4; i++)
        c->map_bytes += bytes[i];
    sl_status status = sl_mem_map(&c->m->budget, c->map_bytes, "projection to measure", &c->map, err);
    if (status != SL_OK)
        return status;
    uint8_t *at = c->map;
    for (size_t i = 0; i < 4; i++) {
        c->parts[i] = at;
        at += bytes[i];
    }
    bool many = s->rows >= SL_LANES; /* as `multiply` of src/model/graph.c */
    size_t panels = s->n_out / SL_PANEL / ((many ? 4 : 8) * sl_pool_threads(c->m->pool)) + 1;
    c->per_item = many ? (panels + 1) / 2 * 2 : panels;
    c->run = run_product;
    c->calls_per_run = 1;
    c->operations = 2.0 * (double)s->rows * (double)s->n_in * (double)s->n_out;
    c->bytes = (double)matrix;
    c->compute = quantised ? BENCH_PEAK_INT8 : BENCH_PEAK_FMA;
    c->memory = BENCH_PEAK_MEMORY;
    c->row.name = "projection";
    c->row.type = lower_name(s->wtype);
    c->row.level = level_of(&c->m->kernels, c->row.type);
    return fill(c, err);
}
