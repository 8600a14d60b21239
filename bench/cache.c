#include "bench/cache.h"

#include <string.h>

#include "base/hash.h"
#include "bench/synth.h"

enum {
    SEED_Q = 0x51, SEED_OWN = 0x4f, /* rows; tiles take their own numbers */
    SLACK_BYTES = 256 << 10         /* alignment of a handful of mappings */
};

static uint64_t part_groups(uint64_t tokens, uint64_t part)
{
    uint64_t groups = tokens / SL_TILE - part * SL_PART_TILES;
    return groups < SL_PART_TILES ? groups : SL_PART_TILES;
}

static uint64_t parts_of(uint64_t tokens)
{
    return (tokens / SL_TILE + SL_PART_TILES - 1) / SL_PART_TILES;
}

static sl_attn_options attn_options(bench_machine *m, size_t max_rows)
{
    return (sl_attn_options){
        .kernels = &m->kernels,
        .pool = m->pool,
        .budget = &m->budget,
        .geom = m->geom,
        .n_heads = m->options.shape.n_heads,
        .max_rows = max_rows,
        .trace = m->trace,
    };
}

/* Everything but ring and resident parts; what only filling needs counts too, and then serves to measure rates. */
static uint64_t fixed_bytes(bench_cache *cache)
{
    bench_machine *m = cache->m;
    uint64_t part = sl_geom_max_part_bytes(&m->geom), passing = part > BENCH_RATES_BYTES ? part : BENCH_RATES_BYTES;
    uint64_t bytes = sl_kv_table_bytes(&m->geom, cache->tokens) + passing + SLACK_BYTES;
    if (cache->max_rows == 0)
        return bytes;
    sl_attn_options attn = attn_options(m, cache->max_rows);
    return bytes + sl_attn_bytes(&attn) + 2 * cache->max_rows * bench_row_floats(m) * sizeof(float) + cache->own_bytes;
}

static sl_status plan(bench_cache *cache, int64_t resident, sl_err *err)
{
    bench_machine *m = cache->m;
    uint64_t left = sl_budget_left(&m->budget), kv_bytes = bench_kv_bytes(m, cache->tokens);
    cache->fixed_bytes = fixed_bytes(cache);
    uint64_t room = left > cache->fixed_bytes ? left - cache->fixed_bytes : 0;
    uint64_t wanted = resident < 0 ? room : (uint64_t)resident;
    /* Held whole, a cache needs no ring. */
    cache->ring_bytes = wanted >= kv_bytes ? 0 : bench_choose_ring(m, room, kv_bytes);
    uint64_t least = cache->ring_bytes + (resident < 0 ? 0 : wanted < kv_bytes ? wanted : kv_bytes);
    if (least > room || (resident < 0 && cache->ring_bytes > room))
        return sl_err_set(err, SL_REFUSED,
                          "memory budget of %.0f MiB is too small: program %.0f MiB, rows and tables %.0f, ring and "
                          "resident parts %.0f",
                          (double)m->ram_bytes / (1 << 20), (double)m->program_bytes / (1 << 20),
                          (double)cache->fixed_bytes / (1 << 20), (double)least / (1 << 20));
    cache->resident_bytes = resident < 0 ? room - cache->ring_bytes : wanted;
    if (cache->resident_bytes > kv_bytes)
        cache->resident_bytes = kv_bytes;
    return SL_OK;
}

static sl_status make_rows(bench_cache *cache, sl_err *err)
{
    bench_machine *m = cache->m;
    size_t floats = cache->max_rows * bench_row_floats(m);
    sl_attn_options options = attn_options(m, cache->max_rows);
    sl_status status = sl_attn_create(&options, &cache->attn, err);
    if (status == SL_OK)
        status = sl_mem_map(&m->budget, floats * sizeof(float), "queries", &cache->q, err);
    if (status == SL_OK)
        status = sl_mem_map(&m->budget, floats * sizeof(float), "outputs", &cache->out, err);
    if (status == SL_OK)
        status = sl_mem_map(&m->budget, cache->own_bytes, "own tiles", &cache->own, err);
    if (status != SL_OK)
        return status;
    bench_fill_floats(m, cache->q, floats, SEED_Q);
    bench_pack_rows(m, cache->own, 0, cache->max_rows, SEED_OWN);
    return SL_OK;
}

sl_status bench_cache_init(bench_cache *cache, bench_machine *m, uint64_t tokens, size_t max_rows, int64_t resident,
                           sl_err *err)
{
    *cache = (bench_cache){.m = m, .tokens = tokens, .max_rows = max_rows};
    if (tokens == 0 || tokens % SL_TILE != 0)
        return sl_err_set(err, SL_USAGE, "a context of %llu tokens, expected a multiple of %d",
                          (unsigned long long)tokens, SL_TILE);
    cache->n_parts = parts_of(tokens) * m->geom.n_layers;
    cache->own_bytes = (max_rows + SL_TILE - 1) / SL_TILE * sl_geom_group_bytes(&m->geom, 0);
    sl_status status = plan(cache, resident, err);
    if (status != SL_OK)
        return status;
    sl_kv_options options = bench_kv_options(m, tokens, cache->ring_bytes, cache->resident_bytes);
    status = sl_kv_create(&options, &cache->kv, err);
    if (status == SL_OK && max_rows > 0)
        status = make_rows(cache, err);
    return status;
}

void bench_cache_deinit(bench_cache *cache)
{
    if (!cache->m)
        return;
    sl_budget *budget = &cache->m->budget;
    size_t bytes = cache->max_rows * bench_row_floats(cache->m) * sizeof(float);
    sl_kv_destroy(cache->kv);
    sl_attn_destroy(cache->attn);
    sl_mem_unmap(budget, cache->q, bytes);
    sl_mem_unmap(budget, cache->out, bytes);
    sl_mem_unmap(budget, cache->own, cache->own_bytes);
    memset(cache, 0, sizeof *cache);
}

void bench_cache_tiles(const bench_machine *m, uint8_t *groups, size_t n_groups, uint64_t layer, uint64_t part)
{
    bench_fill_groups(m, groups, n_groups, (layer << 40 | part) * SL_PART_TILES);
}

sl_status bench_cache_fill(bench_cache *cache, sl_err *err)
{
    bench_machine *m = cache->m;
    size_t bytes = sl_geom_max_part_bytes(&m->geom);
    uint64_t n_parts = parts_of(cache->tokens), all_bytes = bench_kv_bytes(m, cache->tokens);
    uint8_t *groups = NULL;
    sl_status status = sl_mem_map(&m->budget, bytes, "random tiles", &groups, err);
    for (uint64_t part = 0; status == SL_OK && part < n_parts; part++) {
        uint64_t n_groups = part_groups(cache->tokens, part);
        bench_progress(m, "writing the cache", "MiB", all_bytes * part / n_parts >> 20, all_bytes >> 20);
        for (uint32_t layer = 0; status == SL_OK && layer < m->geom.n_layers; layer++) {
            bench_cache_tiles(m, groups, n_groups, layer, part);
            status = bench_stop(m) ? bench_cancelled(err)
                                   : sl_kv_append(cache->kv, layer, groups, n_groups * SL_TILE, err);
        }
    }
    sl_mem_unmap(&m->budget, groups, bytes);
    return status;
}

/* Asked before each part: counts them too. */
static bool stop_or_count(void *arg)
{
    bench_cache *cache = arg;
    if (cache->phase && cache->done_parts < cache->n_parts)
        bench_progress(cache->m, cache->phase, "parts", cache->done_parts++, cache->n_parts);
    return bench_stop(cache->m);
}

static sl_status attend_layers(bench_cache *cache, size_t rows, sl_err *err)
{
    size_t stride = bench_row_floats(cache->m);
    sl_status status = SL_OK;
    for (uint32_t layer = 0; status == SL_OK && layer < cache->m->geom.n_layers; layer++) {
        const sl_attn_rows work = {
            .layer = layer,
            .first_pos = cache->tokens,
            .n_rows = rows,
            .q = cache->q,
            .q_stride = stride,
            .out = cache->out,
            .out_stride = stride,
            .own_groups = cache->own,
            .stop = stop_or_count,
            .arg = cache,
        };
        status = sl_attn_run(cache->attn, cache->kv, &work, err);
    }
    return status;
}

static sl_status read_layers(bench_cache *cache, sl_err *err)
{
    sl_status status = SL_OK;
    for (uint32_t layer = 0; status == SL_OK && layer < cache->m->geom.n_layers; layer++) {
        bool found = true;
        while (status == SL_OK && found) {
            sl_kv_part part;
            status = stop_or_count(cache) ? bench_cancelled(err) : sl_kv_next(cache->kv, layer, &part, &found, err);
            if (status == SL_OK && found)
                sl_kv_release(cache->kv, &part);
        }
    }
    return status;
}

/* No pass is announced to follow, so that nothing of this one was read before its clock started. */
static sl_status run_pass(bench_cache *cache, size_t rows, bench_pass *pass, sl_err *err)
{
    cache->done_parts = 0;
    double start_s = sl_trace_now(cache->m->trace);
    bench_pass_start(cache->kv, pass);
    sl_status status = sl_kv_pass_begin(cache->kv, false, err);
    if (status == SL_OK)
        status = rows > 0 ? attend_layers(cache, rows, err) : read_layers(cache, err);
    if (status == SL_OK)
        status = sl_kv_pass_end(cache->kv, err);
    bench_pass_end(cache->kv, pass);
    sl_trace_span(cache->m->trace, SL_TRACE_LANE_PASS, cache->phase ? cache->phase : "pass", start_s,
                  sl_trace_now(cache->m->trace), (sl_trace_about){-1, -1, (int64_t)pass->bytes_read, -1});
    return status;
}

sl_status bench_cache_attend(bench_cache *cache, size_t rows, bench_pass *pass, sl_err *err)
{
    return run_pass(cache, rows, pass, err);
}

sl_status bench_cache_read(bench_cache *cache, bench_pass *pass, sl_err *err)
{
    return run_pass(cache, 0, pass, err);
}

uint64_t bench_cache_hash(const bench_cache *cache, size_t rows)
{
    return sl_hash(cache->out, rows * bench_row_floats(cache->m) * sizeof(float));
}
