/* The rival: the same tiles in a file that is mapped into memory, the same kernels over the mapping, the system's own
 * reading ahead. The rows' own tiles are left out: they are the same work on both sides, and next to none. */
#include <math.h>
#include <string.h>

#include "bench/cache.h"
#include "bench/rawfile.h"
#include "bench/synth.h"
#include "platform/os.h"

enum { MAX_CHUNK = 16, MAX_REPEATS = 64, SEED_Q = 0x51 };

typedef struct mapped {
    bench_machine *m;
    uint64_t tokens;
    size_t rows, group, n_blocks, chunk, n_chunks; /* group: queries of a row that share a KV head; blocks per head */
    size_t qblock_bytes, state_bytes, scratch_bytes, map_bytes;
    uint8_t *map, *qblocks, *segments, *totals, *scratch;
    float *q;
    size_t q_bytes;
    bench_rawfile file;
    /* the part being folded */
    const uint8_t *tiles;
    uint64_t first_token;
    uint32_t n_groups;
} mapped;

static size_t n_queries(const mapped *p)
{
    return p->rows * p->group;
}

static void measure(mapped *p)
{
    const sl_bench_shape *shape = &p->m->options.shape;
    sl_kv_type type = p->m->geom.type;
    p->group = shape->n_heads / shape->n_kv_heads;
    p->n_blocks = (n_queries(p) + SL_LANES - 1) / SL_LANES;
    size_t per_head = (4 * sl_pool_threads(p->m->pool) + shape->n_kv_heads - 1) / shape->n_kv_heads;
    p->chunk = (p->n_blocks + per_head - 1) / per_head;
    p->chunk = p->chunk < MAX_CHUNK ? p->chunk : MAX_CHUNK;
    p->n_chunks = (p->n_blocks + p->chunk - 1) / p->chunk;
    p->qblock_bytes = sl_qblock_bytes(type, shape->head_dim);
    p->state_bytes = sl_state_bytes(shape->head_dim);
    p->scratch_bytes = (sl_tile_scratch_bytes(type, shape->head_dim) + 63) & ~(size_t)63;
    p->map_bytes = p->n_blocks * shape->n_kv_heads * (p->qblock_bytes + 2 * p->state_bytes) +
                   sl_pool_threads(p->m->pool) * p->scratch_bytes;
    p->q_bytes = p->rows * bench_row_floats(p->m) * sizeof(float);
}

static sl_status make_rows(mapped *p, sl_err *err)
{
    measure(p);
    size_t blocks = p->n_blocks * p->m->options.shape.n_kv_heads;
    sl_status status = sl_mem_map(&p->m->budget, p->map_bytes, "attention states", &p->map, err);
    if (status == SL_OK)
        status = sl_mem_map(&p->m->budget, p->q_bytes, "queries", &p->q, err);
    if (status != SL_OK)
        return status;
    p->qblocks = p->map;
    p->segments = p->qblocks + blocks * p->qblock_bytes;
    p->totals = p->segments + blocks * p->state_bytes;
    p->scratch = p->totals + blocks * p->state_bytes;
    bench_fill_floats(p->m, p->q, p->rows * bench_row_floats(p->m), SEED_Q);
    return SL_OK;
}

static void reset(uint8_t *state, size_t head_dim)
{
    float *lanes = (float *)(void *)state;
    for (size_t i = 0; i < (2 + head_dim) * SL_LANES; i++)
        lanes[i] = i < SL_LANES ? -INFINITY : 0.0f;
}

/* Item: one block of one KV head. */
static void begin_block(void *arg, size_t item, size_t worker)
{
    (void)worker;
    const mapped *p = arg;
    size_t head_dim = p->m->options.shape.head_dim, head = item / p->n_blocks;
    size_t first = item % p->n_blocks * SL_LANES, left = n_queries(p) - first, n = left < SL_LANES ? left : SL_LANES;
    const float *q[SL_LANES];
    for (size_t i = 0; i < n; i++)
        q[i] = p->q + (first + i) / p->group * bench_row_floats(p->m) +
               (head * p->group + (first + i) % p->group) * head_dim;
    sl_kernels_attn_qpack(&p->m->kernels, p->m->geom.type)(p->qblocks + item * p->qblock_bytes, q, n, head_dim,
                                                           SL_LOG2E / sqrtf((float)head_dim));
    reset(p->segments + item * p->state_bytes, head_dim);
    reset(p->totals + item * p->state_bytes, head_dim);
}

/* Item: a chunk of blocks of one KV head over the part. */
static void fold_chunk(void *arg, size_t item, size_t worker)
{
    const mapped *p = arg;
    const sl_bench_shape *shape = &p->m->options.shape;
    size_t tile_bytes = sl_tile_bytes(p->m->geom.type, shape->head_dim), head = item / p->n_chunks;
    size_t first = item % p->n_chunks * p->chunk, left = p->n_blocks - first, n = left < p->chunk ? left : p->chunk;
    size_t block = head * p->n_blocks + first, queries = n_queries(p) - first * SL_LANES;
    sl_tile_args args = {
        .head_dim = shape->head_dim,
        .qblocks = p->qblocks + block * p->qblock_bytes,
        .states = p->segments + block * p->state_bytes,
        .state_stride = p->state_bytes,
        .n_queries = queries < n * SL_LANES ? queries : n * SL_LANES,
        .scratch = p->scratch + worker * p->scratch_bytes,
    };
    for (uint32_t g = 0; g < p->n_groups; g++) {
        args.tile = p->tiles + (g * shape->n_kv_heads + head) * tile_bytes;
        args.next = g + 1 < p->n_groups ? args.tile + shape->n_kv_heads * tile_bytes : NULL;
        sl_kernels_attn_tile(&p->m->kernels, p->m->geom.type)(&args);
    }
    if ((p->first_token + p->n_groups * (uint64_t)SL_TILE) % SL_SEGMENT_TOKENS == 0)
        p->m->kernels.attn_segfold(p->totals + block * p->state_bytes, args.states, p->state_bytes, n,
                                   shape->head_dim);
}

static uint64_t layer_bytes(const mapped *p)
{
    return p->tokens / SL_TILE * sl_geom_group_bytes(&p->m->geom, 0);
}

static sl_status run_pass(mapped *p, double *seconds, sl_err *err)
{
    const sl_bench_shape *shape = &p->m->options.shape;
    uint64_t parts = (p->tokens + SL_PART_TOKENS - 1) / SL_PART_TOKENS;
    uint64_t group_bytes = sl_geom_group_bytes(&p->m->geom, 0);
    sl_status status = bench_rawfile_forget(&p->file, err);
    const uint8_t *base = NULL;
    if (status == SL_OK)
        status = bench_rawfile_map(&p->file, &base, err);
    double start = sl_os_seconds();
    for (uint64_t layer = 0; status == SL_OK && layer < shape->n_layers; layer++) {
        sl_pool_run(p->m->pool, p->n_blocks * shape->n_kv_heads, begin_block, p);
        for (uint64_t part = 0; status == SL_OK && part < parts; part++) {
            uint64_t left = p->tokens / SL_TILE - part * SL_PART_TILES;
            p->tiles = base + layer * layer_bytes(p) + part * SL_PART_TILES * group_bytes;
            p->first_token = part * SL_PART_TOKENS;
            p->n_groups = left < SL_PART_TILES ? (uint32_t)left : (uint32_t)SL_PART_TILES;
            bench_progress(p->m, "mapped pass", "parts", layer * parts + part, parts * shape->n_layers);
            sl_pool_run(p->m->pool, p->n_chunks * shape->n_kv_heads, fold_chunk, p);
            status = bench_stop(p->m) ? bench_cancelled(err) : SL_OK;
        }
    }
    *seconds = sl_os_seconds() - start;
    return status;
}

static sl_status fill(mapped *p, sl_err *err)
{
    bench_machine *m = p->m;
    size_t bytes = sl_geom_max_part_bytes(&m->geom);
    uint64_t n_groups = p->tokens / SL_TILE, off = 0;
    uint8_t *groups = NULL;
    sl_status status = sl_mem_map(&m->budget, bytes, "random tiles", &groups, err);
    for (uint64_t layer = 0; layer < m->geom.n_layers; layer++)
        for (uint64_t part = 0; status == SL_OK && part * SL_PART_TILES < n_groups; part++) {
            uint64_t left = n_groups - part * SL_PART_TILES, n = left < SL_PART_TILES ? left : SL_PART_TILES;
            bench_progress(m, "writing the file", "MiB", off >> 20, layer_bytes(p) * m->geom.n_layers >> 20);
            bench_cache_tiles(m, groups, (size_t)n, layer, part);
            size_t now = (size_t)n * sl_geom_group_bytes(&m->geom, 0);
            status = bench_stop(m) ? bench_cancelled(err) : bench_rawfile_write(&p->file, groups, now, off, err);
            off += now;
        }
    sl_mem_unmap(&m->budget, groups, bytes);
    return status;
}

static sl_status work(mapped *p, sl_bench_row *row, sl_err *err)
{
    bench_machine *m = p->m;
    size_t n = m->options.n_repeats ? m->options.n_repeats : 3;
    n = n < MAX_REPEATS ? n : MAX_REPEATS;
    double times[MAX_REPEATS];
    if (p->tokens == 0 || p->tokens % SL_TILE != 0 || p->rows == 0)
        return sl_err_set(err, SL_USAGE, "a context of %llu tokens and %zu rows, expected a multiple of %d and a row",
                          (unsigned long long)p->tokens, p->rows, SL_TILE);
    sl_status status = make_rows(p, err);
    if (status == SL_OK)
        status = bench_rawfile_create(m->dir, &p->file, err);
    if (status == SL_OK)
        status = fill(p, err);
    for (size_t i = 0; status == SL_OK && i < n; i++)
        status = run_pass(p, &times[i], err);
    if (status != SL_OK)
        return status;
    bench_row_init(m, "mmap", p->tokens, p->rows, row);
    row->n_repeats = n;
    row->end_to_end_s = sl_bench_spread_of(times, n);
    row->verified_rows_per_s = (double)p->rows / row->end_to_end_s.median;
    row->bytes_read = row->kv_bytes;
    row->read_rate = (double)row->kv_bytes / row->end_to_end_s.median;
    row->io_mode = "mmap";
    row->peak_rss_bytes = sl_os_peak_rss_bytes();
    return SL_OK;
}

sl_status sl_bench_mmap(const sl_bench_options *options, uint64_t tokens, size_t rows, sl_bench_row *out, sl_err *err)
{
    bench_machine m;
    mapped p = {.m = &m, .tokens = tokens, .rows = rows};
    p.file.fd = -1;
    sl_status status = bench_machine_init(&m, options, false, err);
    if (status == SL_OK)
        status = work(&p, out, err);
    bench_rawfile_close(&p.file);
    sl_mem_unmap(&m.budget, p.q, p.q_bytes);
    sl_mem_unmap(&m.budget, p.map, p.map_bytes);
    return bench_machine_deinit(&m, status, err);
}
