#include "attn/hot.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "attn/hot_impl.h"

enum {
    LEAST_SLOTS = 2,
    /* Rows that are looked at, at most: what several rows agree upon holds for the next ones better than what one row
     * happens to look at. */
    MAX_ROWS = 4,
    /* Rows of which at least one is looked at. */
    ROWS_PER_LOOK = 4,
    /* Tiles x heads planned sooner by one thread than by many. */
    TOO_LITTLE = 512
};

/* What is left of a tile's mean from pass to pass. */
static const float FADE = 0.75f;

static size_t pad64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Of the tables, and of tiles, means, notes and scratch. Pointers are set where the memory is there. */
static size_t lay_out_table(sl_hot *hot)
{
    const size_t n_layers = hot->options.geom.n_layers;
    const size_t per_head = hot->n_slots * (sizeof(int32_t) + sizeof(sl_hot_missing));
    const size_t heads_off = n_layers * (2 * sizeof(size_t) + sizeof(sl_hot_looks));
    const size_t slots_off = heads_off + hot->n_all_heads * sizeof(sl_hot_head);
    if (hot->table) {
        hot->n_tiles = (size_t *)(void *)hot->table;
        hot->first_head = hot->n_tiles + n_layers;
        hot->looks = (sl_hot_looks *)(void *)(hot->first_head + n_layers);
        hot->heads = (sl_hot_head *)(void *)(hot->table + heads_off);
        for (size_t i = 0; i < hot->n_all_heads; i++) {
            hot->heads[i].tiles = (int32_t *)(void *)(hot->table + slots_off + i * per_head);
            hot->heads[i].missing = (sl_hot_missing *)(void *)(hot->heads[i].tiles + hot->n_slots);
        }
    }
    return slots_off + hot->n_all_heads * per_head;
}

static size_t lay_out_map(sl_hot *hot)
{
    const sl_geom *geom = &hot->options.geom;
    const size_t threads = sl_pool_threads(hot->options.pool), n_tiles = hot->max_tiles;
    size_t off = 0, head = 0;
    for (uint32_t layer = 0; layer < geom->n_layers; layer++) {
        const size_t bytes = hot->n_slots * sl_tile_bytes(geom->type, geom->layers[layer].head_dim);
        if (hot->map)
            hot->first_head[layer] = head;
        for (uint32_t h = 0; h < geom->layers[layer].n_kv_heads; h++, off += bytes, head++)
            if (hot->map)
                hot->heads[head].data = hot->map + off;
    }
    const size_t means = off, note_bytes = pad64(sl_harvest_bytes(hot->max_heads, n_tiles, hot->max_lanes));
    off += pad64(hot->n_all_heads * n_tiles * sizeof(float));
    const size_t notes = off, scratch = notes + 2 * note_bytes, marks = scratch + 2 * threads * n_tiles * sizeof(float);
    if (hot->map) {
        for (size_t i = 0; i < hot->n_all_heads; i++)
            hot->heads[i].means = (float *)(void *)(hot->map + means) + i * n_tiles;
        hot->harvest.m = (float *)(void *)(hot->map + notes);
        hot->harvest.l = (float *)(void *)(hot->map + notes + note_bytes);
        hot->scratch = (float *)(void *)(hot->map + scratch);
        hot->marks = hot->map + marks;
    }
    return marks + threads * n_tiles;
}

static void measure(const sl_hot_options *options, sl_hot *hot)
{
    hot->options = *options;
    hot->max_tiles = (size_t)(options->max_tokens / SL_TILE) + 1;
    hot->n_slots = (options->hot_tokens + SL_TILE - 1) / SL_TILE;
    hot->n_slots = hot->n_slots < hot->max_tiles ? hot->n_slots : hot->max_tiles;
    hot->n_slots = hot->n_slots > LEAST_SLOTS ? hot->n_slots : LEAST_SLOTS;
    for (uint32_t i = 0; i < options->geom.n_layers; i++) {
        const size_t n = options->geom.layers[i].n_kv_heads, lanes = MAX_ROWS * (options->n_heads / n);
        hot->n_all_heads += n;
        hot->max_heads = n > hot->max_heads ? n : hot->max_heads;
        hot->max_lanes = lanes > hot->max_lanes ? lanes : hot->max_lanes;
    }
    hot->max_lanes = hot->max_lanes < SL_LANES ? hot->max_lanes : SL_LANES;
    assert(hot->max_lanes % SL_HARVEST_STEP == 0);
}

uint64_t sl_hot_bytes(const sl_hot_options *options)
{
    sl_hot hot = {0};
    measure(options, &hot);
    return lay_out_table(&hot) + lay_out_map(&hot) + sizeof hot + SL_MEM_ALIGN + 128;
}

sl_status sl_hot_create(const sl_hot_options *options, sl_hot **out, sl_err *err)
{
    *out = NULL;
    sl_hot *hot = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *hot, "hot set", &hot, err);
    if (status != SL_OK)
        return status;
    measure(options, hot);
    hot->map_bytes = lay_out_map(hot);
    status = sl_mem_new(options->budget, 1, lay_out_table(hot), "hot set", &hot->table, err);
    if (status == SL_OK) {
        lay_out_table(hot);
        status = sl_mem_map(options->budget, hot->map_bytes, "tiles of the hot set", &hot->map, err);
    }
    if (status != SL_OK) {
        sl_hot_destroy(hot);
        return status;
    }
    lay_out_map(hot);
    hot->harvest.kernels = options->kernels;
    hot->harvest.max_tiles = hot->max_tiles;
    hot->harvest.max_lanes = hot->max_lanes;
    hot->harvest.segment_tiles = SL_SEGMENT_TOKENS / SL_TILE;
    for (uint32_t layer = 0; layer < options->geom.n_layers; layer++)
        hot->looks[layer].is_new = true;
    for (size_t i = 0; i < hot->n_all_heads; i++)
        memset(hot->heads[i].tiles, 0xff, hot->n_slots * sizeof *hot->heads[i].tiles);
    *out = hot;
    return SL_OK;
}

void sl_hot_destroy(sl_hot *hot)
{
    if (!hot)
        return;
    sl_mem_unmap(hot->options.budget, hot->map, hot->map_bytes);
    sl_mem_free(hot->options.budget, hot->table);
    sl_mem_free(hot->options.budget, hot);
}

/* ------------------------------------------------------------------------------------------------------- in a pass */

static bool is_looked_at(sl_hot *hot, const sl_hot_rows *rows)
{
    sl_hot_looks *looks = &hot->looks[rows->layer];
    const size_t before = looks->n_rows + rows->layer;
    looks->n_rows += rows->n_rows;
    if (before / ROWS_PER_LOOK == (before + rows->n_rows) / ROWS_PER_LOOK && !looks->is_new)
        return false;
    looks->is_new = false;
    looks->is_unplanned = true;
    return true;
}

const sl_harvest *sl_hot_begin(sl_hot *hot, const sl_hot_rows *rows, size_t *block)
{
    const size_t n_queries = rows->n_rows * rows->group, end = (size_t)(rows->first_pos + rows->n_rows);
    hot->layer = rows->layer;
    *block = 0;
    if (!is_looked_at(hot, rows))
        return NULL;
    if (rows->is_burst) {
        const size_t n = n_queries < hot->max_lanes ? n_queries : hot->max_lanes;
        sl_harvest_begin(&hot->harvest, 0, n, rows->first_tile, (size_t)(rows->first_pos / SL_TILE));
        return &hot->harvest;
    }
    *block = (n_queries - 1) / SL_LANES;
    const size_t filled = n_queries - *block * SL_LANES, n = filled < hot->max_lanes ? filled : hot->max_lanes;
    sl_harvest_begin(&hot->harvest, filled - n, n, rows->first_tile, (end + SL_TILE - 1) / SL_TILE);
    return &hot->harvest;
}

void sl_hot_take(sl_hot *hot, size_t head_idx, size_t first_tile, size_t n, const uint8_t *tiles, size_t stride)
{
    sl_hot_head *head = sl_hot_head_of(hot, hot->layer, head_idx);
    if (head->n_missing == 0)
        return;
    const size_t bytes = sl_tile_bytes(hot->options.geom.type, hot->options.geom.layers[hot->layer].head_dim);
    size_t low = 0, high = head->n_missing;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if ((size_t)head->missing[mid].tile < first_tile)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < head->n_missing && (size_t)head->missing[low].tile < first_tile + n; low++) {
        const sl_hot_missing found = head->missing[low];
        if (head->tiles[found.slot] == found.tile)
            continue;
        memcpy(head->data + (size_t)found.slot * bytes, tiles + ((size_t)found.tile - first_tile) * stride, bytes);
        head->tiles[found.slot] = found.tile;
    }
}

void sl_hot_rank(sl_hot *hot, size_t worker, size_t head_idx, const uint8_t *total)
{
    float *means = sl_hot_head_of(hot, hot->layer, head_idx)->means;
    float *masses = hot->scratch + worker * 2 * hot->max_tiles;
    sl_harvest_masses(&hot->harvest, head_idx, total, masses);
    for (size_t t = 0; t < hot->harvest.end_tile; t++)
        means[t] = means[t] * FADE + (isfinite(masses[t]) ? masses[t] : 0.0f);
}

/* --------------------------------------------------------------------------------------------------- between passes */

typedef struct plan_work {
    sl_hot *hot;
    uint32_t layer;
    sl_hot_new fresh;
} plan_work;

static void plan_item(void *arg, size_t item, size_t worker)
{
    const plan_work *work = arg;
    sl_hot_plan(work->hot, work->layer, item, worker, &work->fresh);
}

static void plan_layer(sl_hot *hot, uint32_t layer, sl_hot_new fresh)
{
    hot->looks[layer].is_unplanned = false;
    plan_work work = {hot, layer, fresh};
    const size_t n = hot->options.geom.layers[layer].n_kv_heads;
    if (n * hot->n_tiles[layer] < TOO_LITTLE)
        sl_pool_run_alone(hot->options.pool, n, plan_item, &work);
    else
        sl_pool_run(hot->options.pool, n, plan_item, &work);
}

void sl_hot_append(sl_hot *hot, uint32_t layer, uint64_t first_pos, const uint8_t *groups, uint64_t n_new)
{
    const size_t n_tiles = (size_t)((first_pos + n_new) / SL_TILE);
    assert(n_tiles <= hot->max_tiles);
    if (n_tiles == hot->n_tiles[layer] && !hot->looks[layer].is_unplanned)
        return;
    hot->n_tiles[layer] = n_tiles;
    plan_layer(hot, layer, (sl_hot_new){groups, (size_t)(first_pos / SL_TILE)});
}

void sl_hot_settle(sl_hot *hot, uint64_t n_tokens)
{
    const size_t n_tiles = (size_t)(n_tokens / SL_TILE);
    assert(n_tiles <= hot->max_tiles);
    bool is_so = true;
    for (uint32_t layer = 0; layer < hot->options.geom.n_layers; layer++)
        is_so = is_so && hot->n_tiles[layer] == n_tiles;
    if (is_so)
        return;
    for (size_t i = 0; i < hot->n_all_heads; i++) {
        sl_hot_head *head = &hot->heads[i];
        for (size_t slot = 0; slot < hot->n_slots; slot++)
            if (head->tiles[slot] >= 0 && (size_t)head->tiles[slot] >= n_tiles)
                head->tiles[slot] = -1;
        memset(head->means + n_tiles, 0, (hot->max_tiles - n_tiles) * sizeof *head->means);
    }
    for (uint32_t layer = 0; layer < hot->options.geom.n_layers; layer++) {
        hot->n_tiles[layer] = n_tiles;
        hot->looks[layer].is_new = true;
        plan_layer(hot, layer, (sl_hot_new){NULL, 0});
    }
}

void sl_hot_count(const sl_hot *hot, size_t *present, size_t *wanted)
{
    *present = *wanted = 0;
    for (size_t i = 0; i < hot->n_all_heads; i++) {
        const sl_hot_head *head = &hot->heads[i];
        *wanted += head->n_wanted;
        *present += head->n_wanted;
        for (size_t m = 0; m < head->n_missing; m++)
            *present -= head->tiles[head->missing[m].slot] != head->missing[m].tile;
    }
}

sl_hot_view sl_hot_get(const sl_hot *hot, uint32_t layer, size_t head_idx)
{
    const sl_hot_head *head = sl_hot_head_of(hot, layer, head_idx);
    return (sl_hot_view){hot->n_slots, head->tiles, head->data};
}
