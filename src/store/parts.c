#include "store/parts.h"

#include <string.h>

enum { PLACE_CHOSEN = 3 }; /* between choosing and having the memory, inside sl_parts_raise only */

struct sl_parts_region {
    uint8_t *memory;
    size_t bytes;
    sl_parts_region *next;
};

static uint64_t parts_of(uint64_t max_tokens)
{
    uint64_t groups = max_tokens / SL_TILE;
    return (groups + SL_PART_TILES - 1) / SL_PART_TILES;
}

static size_t part_bytes(const sl_parts *parts, uint32_t layer, uint64_t part)
{
    return sl_parts_capacity(parts, part) * sl_geom_group_bytes(parts->geom, layer);
}

uint64_t sl_parts_table_bytes(const sl_geom *geom, uint64_t max_tokens)
{
    enum { HEAP_HEAD = 32, N_ARRAYS = 3 };
    return parts_of(max_tokens) * geom->n_layers * (sizeof(uint64_t) + sizeof(uint8_t *) + 1) +
           (uint64_t)HEAP_HEAD * N_ARRAYS;
}

sl_status sl_parts_init(sl_parts *parts, const sl_geom *geom, uint64_t max_tokens, sl_budget *budget, sl_err *err)
{
    memset(parts, 0, sizeof *parts);
    parts->geom = geom;
    parts->budget = budget;
    parts->max_groups = max_tokens / SL_TILE;
    parts->n_parts = parts_of(max_tokens);
    parts->stride = sl_geom_segment_bytes(geom);
    parts->own_part = UINT64_MAX;
    for (uint32_t layer = 0; layer < geom->n_layers; layer++)
        parts->total_bytes += parts->max_groups * sl_geom_group_bytes(geom, layer);
    size_t n = (size_t)(parts->n_parts * geom->n_layers);
    sl_status status = sl_mem_new(budget, n, sizeof *parts->checksums, "part checksums", &parts->checksums, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n, sizeof *parts->memory, "part table", &parts->memory, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n, sizeof *parts->places, "part table", &parts->places, err);
    if (status != SL_OK)
        sl_parts_deinit(parts);
    return status;
}

void sl_parts_deinit(sl_parts *parts)
{
    while (parts->regions) {
        sl_parts_region *region = parts->regions;
        parts->regions = region->next;
        sl_mem_unmap(parts->budget, region->memory, region->bytes);
        sl_mem_free(parts->budget, region);
    }
    sl_mem_free(parts->budget, parts->checksums);
    sl_mem_free(parts->budget, parts->memory);
    sl_mem_free(parts->budget, parts->places);
    parts->checksums = NULL;
    parts->memory = NULL;
    parts->places = NULL;
}

/* The layer that comes i-th among the parts of index `part`: each index starts elsewhere (golden section of the number
 * of layers), so that an even choice along the sequence does not fall on the same layers again and again. */
static uint32_t rotated_layer(const sl_parts *parts, uint64_t part, uint32_t i)
{
    uint64_t n = parts->geom->n_layers;
    uint64_t step = (n * 618 + 500) / 1000;
    return (uint32_t)((i + part % n * step) % n);
}

/* Of which parts is chosen: those that an answer's rows see, or all. */
typedef enum choice { CHOICE_SEEN, CHOICE_ALL } choice;

static bool is_free(const sl_parts *parts, choice of, uint32_t layer, uint64_t part)
{
    return parts->places[sl_parts_at(parts, layer, part)] == SL_PLACE_FLASH &&
           (of == CHOICE_ALL || part >= sl_geom_first_part(&parts->geom->layers[layer], parts->answer_from));
}

static uint64_t free_bytes(const sl_parts *parts, choice of, uint64_t first)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < parts->geom->n_layers; layer++)
        for (uint64_t part = first; part < parts->n_parts; part++)
            bytes += is_free(parts, of, layer, part) ? part_bytes(parts, layer, part) : 0;
    return bytes;
}

/* Marks free parts from index `first` on along the sequence (part index first, so that every prefix of the context gets
 * its share) whenever their bytes times `share` have added up to one; returns the bytes marked, at most `most`. */
static uint64_t choose(sl_parts *parts, choice of, uint64_t first, double share, uint64_t most)
{
    uint64_t chosen = 0;
    double credit = 0;
    for (uint64_t part = first; part < parts->n_parts; part++) {
        for (uint32_t i = 0; i < parts->geom->n_layers; i++) {
            uint32_t layer = rotated_layer(parts, part, i);
            size_t bytes = part_bytes(parts, layer, part);
            if (!is_free(parts, of, layer, part))
                continue;
            credit += share * (double)bytes;
            if (credit < (double)bytes || bytes > most - chosen)
                continue;
            credit -= (double)bytes;
            parts->places[sl_parts_at(parts, layer, part)] = PLACE_CHOSEN;
            chosen += bytes;
        }
    }
    return chosen;
}

/* The same along the whole sequence, evenly; what rounding leaves over still holds some smaller part. */
static uint64_t choose_evenly(sl_parts *parts, choice of, uint64_t most)
{
    uint64_t left = free_bytes(parts, of, 0);
    double share = most < left ? (double)most / (double)left : 1.0;
    uint64_t chosen = choose(parts, of, 0, share, most);
    return chosen + choose(parts, of, 0, 1.0, most - chosen);
}

/* Marks up to `most` bytes of free parts. What would be written to a file over another one comes first: where it all
 * fits there need be no such file. */
static uint64_t choose_parts(sl_parts *parts, uint64_t most)
{
    choice own = free_bytes(parts, CHOICE_ALL, parts->own_part) <= most ? CHOICE_ALL : CHOICE_SEEN;
    uint64_t chosen = choose(parts, own, parts->own_part, 1.0, most);
    chosen += choose_evenly(parts, CHOICE_SEEN, most - chosen);
    return chosen + choose_evenly(parts, CHOICE_ALL, most - chosen);
}

/* Gives chosen parts their memory, or with NULL takes the choice back. */
static void settle(sl_parts *parts, uint8_t *memory)
{
    for (uint32_t layer = 0; layer < parts->geom->n_layers; layer++) {
        for (uint64_t part = 0; part < parts->n_parts; part++) {
            size_t at = sl_parts_at(parts, layer, part);
            if (parts->places[at] != PLACE_CHOSEN)
                continue;
            parts->places[at] = memory ? SL_PLACE_WANTED : SL_PLACE_FLASH;
            if (!memory)
                continue;
            parts->memory[at] = memory;
            memory += part_bytes(parts, layer, part);
        }
    }
}

sl_status sl_parts_raise(sl_parts *parts, uint64_t resident_bytes, sl_err *err)
{
    if (resident_bytes <= parts->chosen_bytes || parts->chosen_bytes == parts->total_bytes)
        return SL_OK;
    uint64_t chosen = choose_parts(parts, resident_bytes - parts->chosen_bytes);
    if (chosen == 0)
        return SL_OK;
    sl_parts_region *region = NULL;
    sl_status status = sl_mem_new(parts->budget, 1, sizeof *region, "resident parts", &region, err);
    if (status == SL_OK)
        status = sl_mem_map(parts->budget, (size_t)chosen, "resident parts", &region->memory, err);
    if (status != SL_OK) {
        settle(parts, NULL);
        sl_mem_free(parts->budget, region);
        return status;
    }
    region->bytes = (size_t)chosen;
    region->next = parts->regions;
    parts->regions = region;
    parts->chosen_bytes += chosen;
    settle(parts, region->memory);
    return SL_OK;
}
