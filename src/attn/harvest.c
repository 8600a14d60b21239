#include "attn/harvest.h"

#include <assert.h>
#include <math.h>

enum { RUN_TILES = 16 }; /* whose exponentials are taken together */

void sl_harvest_begin(sl_harvest *harvest, size_t first_lane, size_t n_lanes, size_t first_tile, size_t end_tile)
{
    assert(n_lanes <= harvest->max_lanes && first_lane + n_lanes <= SL_LANES);
    harvest->first_lane = first_lane;
    harvest->n_lanes = n_lanes;
    harvest->end_tile = end_tile < harvest->max_tiles ? end_tile : harvest->max_tiles;
    harvest->first_tile = first_tile < harvest->end_tile ? first_tile : harvest->end_tile;
}

/* Tiles [first, first + n), n <= RUN_TILES. total: the block's m and l. */
static void masses_of_run(const sl_harvest *harvest, size_t head, const float *total, size_t first, size_t n,
                          float *masses)
{
    const float *total_m = total + harvest->first_lane, *total_l = total_m + SL_LANES;
    float shrink[RUN_TILES * SL_LANES], weight[RUN_TILES * SL_LANES], before[RUN_TILES * SL_LANES];
    size_t n_lanes = harvest->n_lanes;
    if (n == 0 || n_lanes == 0)
        return;
    const float *m = harvest->m + head * harvest->max_tiles * harvest->max_lanes;
    const float *l = harvest->l + head * harvest->max_tiles * harvest->max_lanes;
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < n_lanes; i++) {
            size_t at = (first + t) * harvest->max_lanes + i, out = t * n_lanes + i;
            bool is_first = first + t == harvest->first_tile || (first + t) % harvest->segment_tiles == 0;
            shrink[out] = (is_first ? -INFINITY : m[at - harvest->max_lanes]) - m[at];
            before[out] = is_first ? 0.0f : l[at - harvest->max_lanes];
            weight[out] = m[at] - total_m[i];
        }
    /* Of NaN (no key seen yet: -inf less -inf) exp2 makes 0, as is right. */
    harvest->kernels->exp2(shrink, shrink, n * n_lanes);
    harvest->kernels->exp2(weight, weight, n * n_lanes);
    for (size_t t = 0; t < n; t++) {
        float sum = 0.0f;
        for (size_t i = 0; i < n_lanes; i++) {
            size_t at = t * n_lanes + i;
            float added = l[(first + t) * harvest->max_lanes + i] - before[at] * shrink[at];
            sum += added > 0.0f ? added * weight[at] / total_l[i] : 0.0f;
        }
        masses[first + t] = sum / (float)n_lanes;
    }
}

void sl_harvest_masses(const sl_harvest *harvest, size_t head, const uint8_t *total, float *masses)
{
    for (size_t t = 0; t < harvest->first_tile; t++)
        masses[t] = 0.0f;
    for (size_t t = harvest->first_tile; t < harvest->end_tile; t += RUN_TILES) {
        size_t left = harvest->end_tile - t;
        masses_of_run(harvest, head, (const float *)(const void *)total, t, left < RUN_TILES ? left : RUN_TILES,
                      masses);
    }
}
