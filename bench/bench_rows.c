/* Few rows over a context in memory, through the whole path (src/attn/attn.c): how fast the threads walk over tile
 * bytes, by KV heads, queries a head and threads. One layer. Wall-clock time; median of nine passes, with minimum and
 * maximum.
 *
 *   bench_rows [tokens]      default 65536
 *
 * CSV on stdout: type,head_dim,kv_heads,group,rows,threads,gb_per_s_min,gb_per_s,gb_per_s_max,us_per_part. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "platform/os.h"

enum { REPEATS = 9 };

typedef struct shape {
    sl_kv_type type;
    uint32_t head_dim, n_kv_heads, group;
    size_t n_rows, n_threads;
    uint64_t n_tokens;
} shape;

typedef struct context {
    sl_kv_layer layer;
    sl_budget budget;
    sl_kernels kernels;
    sl_pool *pool;
    sl_kv *kv;
    sl_attn *attn;
    uint8_t *part; /* one part's tiles, appended over and over; the own groups too */
    float *rows;   /* [n_rows][n_heads * head_dim] queries, overwritten by outputs */
} context;

static sl_err error;

static void must(sl_status status)
{
    if (status == SL_OK)
        return;
    fprintf(stderr, "bench_rows: %s\n", error.text);
    exit(1);
}

static float uniform(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * 0x1p-23f - 1.0f;
}

static size_t part_bytes(const shape *s)
{
    return SL_PART_TILES * s->n_kv_heads * sl_tile_bytes(s->type, s->head_dim);
}

static void fill_part(const context *c, const shape *s)
{
    float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
    for (size_t i = 0; i < (size_t)SL_PART_TOKENS * s->n_kv_heads; i++) {
        for (size_t d = 0; d < s->head_dim; d++) {
            k[d] = uniform();
            v[d] = uniform();
        }
        size_t tile = i / (SL_TILE * s->n_kv_heads) * s->n_kv_heads + i % s->n_kv_heads;
        uint8_t *at = c->part + tile * sl_tile_bytes(s->type, s->head_dim);
        if (!sl_kernels_kv_pack(&c->kernels, s->type)(at, i / s->n_kv_heads % SL_TILE, k, v, s->head_dim))
            exit(1);
    }
}

static void context_open(context *c, const shape *s)
{
    c->layer = (sl_kv_layer){s->n_kv_heads, s->head_dim, 0};
    const sl_geom geom = {s->type, 1, &c->layer};
    size_t width = s->n_kv_heads * s->group * s->head_dim;
    sl_budget_init(&c->budget, UINT64_MAX);
    sl_kernels_init(&c->kernels, sl_cpu_best());
    must(sl_pool_create(s->n_threads, &c->budget, &c->pool, &error));
    c->part = aligned_alloc(64, part_bytes(s));
    c->rows = malloc(s->n_rows * width * sizeof *c->rows);
    if (!c->part || !c->rows)
        exit(1);
    for (size_t i = 0; i < s->n_rows * width; i++)
        c->rows[i] = 4.0f * uniform();
    fill_part(c, s);
    const sl_kv_options kv = {.geom = geom,
                              .dir = "/var/tmp",
                              .max_tokens = s->n_tokens + s->n_rows,
                              .resident_bytes = s->n_tokens / SL_PART_TOKENS * part_bytes(s),
                              .slot_bytes = part_bytes(s),
                              .n_slots = 2,
                              .budget = &c->budget};
    must(sl_kv_create(&kv, &c->kv, &error));
    for (uint64_t at = 0; at < s->n_tokens; at += SL_PART_TOKENS)
        must(sl_kv_append(c->kv, 0, c->part, SL_PART_TOKENS, &error));
    const sl_attn_options attn = {.kernels = &c->kernels,
                                  .pool = c->pool,
                                  .budget = &c->budget,
                                  .geom = geom,
                                  .n_heads = s->n_kv_heads * s->group,
                                  .max_rows = s->n_rows};
    must(sl_attn_create(&attn, &c->attn, &error));
}

static void context_close(context *c)
{
    sl_attn_destroy(c->attn);
    sl_kv_destroy(c->kv);
    sl_pool_destroy(c->pool);
    free(c->part);
    free(c->rows);
    sl_budget_deinit(&c->budget);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const shape *s)
{
    context c = {0};
    context_open(&c, s);
    size_t width = s->n_kv_heads * s->group * s->head_dim;
    const sl_attn_rows rows = {.first_pos = s->n_tokens,
                               .n_rows = s->n_rows,
                               .q = c.rows,
                               .q_stride = width,
                               .out = c.rows,
                               .out_stride = width,
                               .own_groups = c.part};
    double seconds[REPEATS], parts = (double)(s->n_tokens / SL_PART_TOKENS), bytes = parts * (double)part_bytes(s);
    for (int i = 0; i < REPEATS; i++) {
        must(sl_kv_pass_begin(c.kv, true, &error));
        double start_s = sl_os_seconds();
        must(sl_attn_run(c.attn, c.kv, &rows, &error));
        seconds[i] = sl_os_seconds() - start_s;
        must(sl_kv_pass_end(c.kv, &error));
    }
    qsort(seconds, REPEATS, sizeof *seconds, by_value);
    printf("%s,%u,%u,%u,%zu,%zu,%.2f,%.2f,%.2f,%.1f\n", s->type == SL_KV_TYPE_F16 ? "f16" : "q8_0", s->head_dim,
           s->n_kv_heads, s->group, s->n_rows, s->n_threads, bytes / seconds[REPEATS - 1] / 1e9,
           bytes / seconds[REPEATS / 2] / 1e9, bytes / seconds[0] / 1e9, seconds[REPEATS / 2] / parts * 1e6);
    fflush(stdout);
    context_close(&c);
}

int main(int argc, char **argv)
{
    const uint32_t heads[] = {1, 2, 3, 8}, groups[] = {1, 3, 8};
    const size_t rows[] = {1, 4}, threads[] = {1, 2};
    const uint64_t n_parts = (argc > 1 ? strtoull(argv[1], NULL, 10) : 65536) / SL_PART_TOKENS;
    puts("type,head_dim,kv_heads,group,rows,threads,gb_per_s_min,gb_per_s,gb_per_s_max,us_per_part");
    for (size_t i = 0; i < 2 * 4 * 3 * 2 * 2; i++) {
        const shape s = {.type = i < 48 ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16,
                         .head_dim = 64,
                         .n_kv_heads = heads[i / 12 % 4],
                         .group = groups[i / 4 % 3],
                         .n_rows = rows[i / 2 % 2],
                         .n_threads = threads[i % 2],
                         .n_tokens = n_parts * SL_PART_TOKENS};
        measure(&s);
    }
    return 0;
}
