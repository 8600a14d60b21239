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

/* Slots for what a sliding layer's rows see at any moment, from `back` tokens before the newest on: tokens from the
 * span's beginning, which a tile's first row has, to the newest. */
static uint64_t turns_of(const sl_kv_layer *layer, const sl_slide *slide, uint64_t n_parts)
{
    if (!slide->drops || layer->span == 0 || layer->span / SL_PART_TOKENS >= n_parts ||
        slide->back_tokens / SL_PART_TOKENS >= n_parts)
        return 0;
    uint64_t tokens = layer->span + SL_TILE - 1 + slide->back_tokens;
    return (tokens + SL_PART_TOKENS - 1) / SL_PART_TOKENS + 1;
}

/* All but where it lies. */
static sl_parts_layer layer_of(const sl_geom *geom, uint32_t i, uint64_t n_parts, const sl_slide *slide)
{
    enum { POINT_PARTS = SL_POINT_TOKENS / SL_PART_TOKENS };
    sl_parts_layer of = {.n_slots = n_parts, .part_bytes = sl_geom_part_bytes(geom, i)};
    uint64_t n_turns = turns_of(&geom->layers[i], slide, n_parts), n_own = 0, n_kept = 0;
    if (slide->has_points && n_turns > 0) {
        n_kept = POINT_PARTS - sl_geom_first_part(&geom->layers[i], SL_POINT_TOKENS);
        uint64_t rest = n_parts % POINT_PARTS + n_kept;
        n_own = n_parts / POINT_PARTS * n_kept + (rest > POINT_PARTS ? rest - POINT_PARTS : 0);
    }
    if (n_turns == 0 || n_turns + n_own >= n_parts)
        return of;
    of.n_turns = n_turns;
    of.n_point_parts = n_kept;
    of.n_slots = n_turns + n_own;
    return of;
}

/* The last part may be a shorter one; slots that parts take turns in are whole. */
static uint64_t layer_bytes(const sl_parts_layer *of, const sl_geom *geom, uint32_t i, uint64_t max_groups)
{
    return of->n_turns > 0 ? of->n_slots * of->part_bytes : max_groups * sl_geom_group_bytes(geom, i);
}

uint64_t sl_parts_bytes(const sl_geom *geom, uint64_t max_tokens, const sl_slide *slide, uint64_t own_part)
{
    uint64_t bytes = 0, max_groups = max_tokens / SL_TILE;
    for (uint32_t i = 0; i < geom->n_layers && own_part < parts_of(max_tokens); i++) {
        const sl_parts_layer of = layer_of(geom, i, parts_of(max_tokens), slide);
        uint64_t all = layer_bytes(&of, geom, i, max_groups), own = all - own_part * of.part_bytes;
        bytes += of.n_turns > 0 ? all : own;
    }
    return bytes;
}

uint64_t sl_parts_seen_bytes(const sl_geom *geom, uint64_t max_tokens, const sl_slide *slide, uint64_t pos)
{
    uint64_t bytes = 0, max_groups = max_tokens / SL_TILE;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        const sl_parts_layer of = layer_of(geom, i, parts_of(max_tokens), slide);
        const sl_geom one = {geom->type, 1, &geom->layers[i]};
        uint64_t seen = sl_geom_seen_bytes(&one, pos, max_tokens), kept = layer_bytes(&of, geom, i, max_groups);
        bytes += seen < kept ? seen : kept;
    }
    return bytes;
}

static size_t part_bytes(const sl_parts *parts, uint32_t layer, uint64_t slot)
{
    const sl_parts_layer *of = &parts->layers[layer];
    return of->n_turns > 0 ? of->part_bytes
                           : sl_parts_capacity(parts, slot) * sl_geom_group_bytes(parts->geom, layer);
}

uint64_t sl_parts_table_bytes(const sl_geom *geom, uint64_t max_tokens)
{
    enum { HEAP_HEAD = 32, N_ARRAYS = 5 };
    bool slides = false;
    for (uint32_t i = 0; i < geom->n_layers; i++)
        slides = slides || geom->layers[i].span > 0;
    size_t of_part = sizeof(uint64_t) + sizeof(uint8_t *) + 1 + (slides ? sizeof(uint64_t) : 0);
    return geom->n_layers * (parts_of(max_tokens) * of_part + sizeof(sl_parts_layer)) + (uint64_t)HEAP_HEAD * N_ARRAYS;
}

/* In a file of its own: first the slots of layers whose parts take turns, then the others', segment after segment. */
static void lay_own(sl_parts *parts)
{
    const sl_geom *geom = parts->geom;
    uint64_t off = 0, stride = 0;
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        sl_parts_layer *of = &parts->layers[i];
        if (of->n_turns == 0) {
            stride += sl_geom_block_bytes(geom, i);
            continue;
        }
        of->off = off;
        of->stride = sl_geom_block_bytes(geom, i);
        off += (of->n_slots + SL_SEGMENT_PARTS - 1) / SL_SEGMENT_PARTS * of->stride;
    }
    for (uint32_t i = 0; i < geom->n_layers; i++) {
        sl_parts_layer *of = &parts->layers[i];
        if (of->n_turns > 0)
            continue;
        of->off = off;
        of->stride = stride;
        off += sl_geom_block_bytes(geom, i);
    }
}

void sl_parts_lay(sl_parts *parts, uint64_t data_off, uint64_t stride)
{
    for (uint32_t i = 0; i < parts->geom->n_layers; i++) {
        parts->layers[i].off = data_off + sl_geom_block_off(parts->geom, 0, i);
        parts->layers[i].stride = stride;
    }
}

static sl_status init_arrays(sl_parts *parts, size_t n_slots, size_t n_turns, sl_err *err)
{
    sl_budget *budget = parts->budget;
    sl_status status = sl_mem_new(budget, n_slots, sizeof *parts->checksums, "part checksums", &parts->checksums, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n_slots, sizeof *parts->memory, "part table", &parts->memory, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n_slots, sizeof *parts->places, "part table", &parts->places, err);
    if (status == SL_OK && n_turns > 0)
        status = sl_mem_new(budget, n_turns, sizeof *parts->held, "part table", &parts->held, err);
    for (size_t i = 0; status == SL_OK && i < n_turns; i++)
        parts->held[i] = UINT64_MAX;
    return status;
}

sl_status sl_parts_init(sl_parts *parts, const sl_geom *geom, uint64_t max_tokens, const sl_slide *slide,
                        sl_budget *budget, sl_err *err)
{
    memset(parts, 0, sizeof *parts);
    parts->geom = geom;
    parts->budget = budget;
    parts->max_groups = max_tokens / SL_TILE;
    parts->n_parts = parts_of(max_tokens);
    parts->own_part = UINT64_MAX;
    size_t n_slots = 0, n_turns = 0;
    sl_status status = sl_mem_new(budget, geom->n_layers, sizeof *parts->layers, "part table", &parts->layers, err);
    for (uint32_t i = 0; status == SL_OK && i < geom->n_layers; i++) {
        sl_parts_layer *of = &parts->layers[i];
        *of = layer_of(geom, i, parts->n_parts, slide);
        of->first = n_slots;
        of->first_turn = n_turns;
        n_slots += (size_t)of->n_slots;
        n_turns += (size_t)of->n_turns;
        parts->total_bytes += layer_bytes(of, geom, i, parts->max_groups);
    }
    if (status == SL_OK)
        lay_own(parts);
    if (status == SL_OK)
        status = init_arrays(parts, n_slots, n_turns, err);
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
    sl_mem_free(parts->budget, parts->layers);
    sl_mem_free(parts->budget, parts->held);
    sl_mem_free(parts->budget, parts->checksums);
    sl_mem_free(parts->budget, parts->memory);
    sl_mem_free(parts->budget, parts->places);
    parts->layers = NULL;
    parts->held = NULL;
    parts->checksums = NULL;
    parts->memory = NULL;
    parts->places = NULL;
}

/* NULL: the part has a slot of its own. */
static uint64_t *turn_of(const sl_parts *parts, uint32_t layer, uint64_t part)
{
    const sl_parts_layer *of = &parts->layers[layer];
    uint64_t slot = sl_parts_slot(of, part);
    return slot < of->n_turns ? &parts->held[of->first_turn + slot] : NULL;
}

bool sl_parts_holds(const sl_parts *parts, uint32_t layer, uint64_t part)
{
    const uint64_t *turn = turn_of(parts, layer, part);
    return !turn || *turn == part;
}

bool sl_parts_take_turn(sl_parts *parts, uint32_t layer, uint64_t part)
{
    uint64_t *turn = turn_of(parts, layer, part);
    if (!turn || *turn == part)
        return false;
    *turn = part;
    return true;
}

bool sl_parts_end_turn(sl_parts *parts, uint32_t layer, uint64_t part)
{
    uint64_t *turn = turn_of(parts, layer, part);
    if (!turn || *turn != part)
        return false;
    *turn = UINT64_MAX;
    return true;
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

/* Slots that parts take turns in are in use all the time: they have their places in the sequence from `first` on. */
static uint64_t slot_in_sequence(const sl_parts *parts, uint32_t layer, uint64_t first, uint64_t part)
{
    return parts->layers[layer].n_turns > 0 ? part - first : part;
}

static uint64_t sequence_end(const sl_parts *parts, uint64_t first)
{
    uint64_t end = parts->n_parts;
    for (uint32_t layer = 0; layer < parts->geom->n_layers; layer++) {
        const sl_parts_layer *of = &parts->layers[layer];
        uint64_t its_end = of->n_turns > 0 ? first + of->n_slots : 0;
        end = its_end > end ? its_end : end;
    }
    return end;
}

static bool is_free(const sl_parts *parts, choice of, uint32_t layer, uint64_t slot)
{
    const sl_parts_layer *l = &parts->layers[layer];
    return slot < l->n_slots && parts->places[l->first + slot] == SL_PLACE_FLASH &&
           (of == CHOICE_ALL || l->n_turns > 0 ||
            slot >= sl_geom_first_part(&parts->geom->layers[layer], parts->answer_from));
}

static uint64_t free_bytes(const sl_parts *parts, choice of, uint64_t first)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < parts->geom->n_layers; layer++) {
        uint64_t from = parts->layers[layer].n_turns > 0 ? 0 : first;
        for (uint64_t slot = from; slot < parts->layers[layer].n_slots; slot++)
            bytes += is_free(parts, of, layer, slot) ? part_bytes(parts, layer, slot) : 0;
    }
    return bytes;
}

/* Marks free slots from index `first` on along the sequence (part index first, so that every prefix of the context gets
 * its share) whenever their bytes times `share` have added up to one; returns the bytes marked, at most `most`. */
static uint64_t choose(sl_parts *parts, choice of, uint64_t first, double share, uint64_t most)
{
    uint64_t chosen = 0, end = sequence_end(parts, first);
    double credit = 0;
    for (uint64_t part = first; part < end; part++) {
        for (uint32_t i = 0; i < parts->geom->n_layers; i++) {
            uint32_t layer = rotated_layer(parts, part, i);
            uint64_t slot = slot_in_sequence(parts, layer, first, part);
            if (!is_free(parts, of, layer, slot))
                continue;
            size_t bytes = part_bytes(parts, layer, slot);
            credit += share * (double)bytes;
            if (credit < (double)bytes || bytes > most - chosen)
                continue;
            credit -= (double)bytes;
            parts->places[parts->layers[layer].first + slot] = PLACE_CHOSEN;
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
    uint64_t chosen = 0;
    if (parts->own_part < parts->n_parts) {
        choice own = free_bytes(parts, CHOICE_ALL, parts->own_part) <= most ? CHOICE_ALL : CHOICE_SEEN;
        chosen = choose(parts, own, parts->own_part, 1.0, most);
    }
    chosen += choose_evenly(parts, CHOICE_SEEN, most - chosen);
    return chosen + choose_evenly(parts, CHOICE_ALL, most - chosen);
}

/* Gives chosen parts their memory, or with NULL takes the choice back. */
static void settle(sl_parts *parts, uint8_t *memory)
{
    for (uint32_t layer = 0; layer < parts->geom->n_layers; layer++) {
        for (uint64_t slot = 0; slot < parts->layers[layer].n_slots; slot++) {
            size_t at = parts->layers[layer].first + (size_t)slot;
            if (parts->places[at] != PLACE_CHOSEN)
                continue;
            parts->places[at] = memory ? SL_PLACE_WANTED : SL_PLACE_FLASH;
            if (!memory)
                continue;
            parts->memory[at] = memory;
            memory += part_bytes(parts, layer, slot);
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
