#include "attn/harvest.h"

#include <assert.h>

enum { RUN_TILES = 16 }; /* whose exponentials are taken together */

void sl_harvest_begin(sl_harvest *harvest, size_t first_lane, size_t n_lanes, size_t first_tile, size_t end_tile)
{
    assert(n_lanes <= harvest->max_lanes && first_lane + n_lanes <= SL_LANES);
    harvest->first_lane = first_lane;
    harvest->n_lanes = n_lanes;
    harvest->end_tile = end_tile < harvest->max_tiles ? end_tile : harvest->max_tiles;
    harvest->first_tile = first_tile < harvest->end_tile ? first_tile : harvest->end_tile;
}

/* Of tiles [first, first + n), n <= RUN_TILES: what share of the lanes' attention lies in their segment up to each,
 * mean over the lanes. total: the block's m and l. */
static void shares_of_run(const sl_harvest *harvest, size_t head, const float *total, size_t first, size_t n,
                          float *shares)
{
    const float *total_m = total + harvest->first_lane, *total_l = total_m + SL_LANES;
    const size_t n_lanes = harvest->n_lanes, stride = harvest->max_lanes;
    float weights[RUN_TILES * SL_LANES] = {0}, scale[SL_LANES];
    const float *m = harvest->m + (head * harvest->max_tiles + first) * stride;
    const float *l = harvest->l + (head * harvest->max_tiles + first) * stride;
    for (size_t i = 0; i < n_lanes; i++)
        scale[i] = 1.0f / (total_l[i] * (float)n_lanes);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < n_lanes; i++)
            weights[t * n_lanes + i] = m[t * stride + i] - total_m[i];
    /* Of NaN (no key seen at all: -inf less -inf) exp2 makes 0, as is right. */
    harvest->kernels->exp2(weights, weights, n * n_lanes);
    for (size_t t = 0; t < n; t++) {
        float sum = 0.0f;
        for (size_t i = 0; i < n_lanes; i++)
            sum += l[t * stride + i] * weights[t * n_lanes + i] * scale[i];
        shares[t] = sum;
    }
}

void sl_harvest_masses(const sl_harvest *harvest, size_t head, const uint8_t *total, float *masses)
{
    float shares[RUN_TILES], before = 0.0f;
    for (size_t t = 0; t < harvest->first_tile; t++)
        masses[t] = 0.0f;
    for (size_t first = harvest->first_tile; first < harvest->end_tile; first += RUN_TILES) {
        const size_t left = harvest->end_tile - first, n = left < RUN_TILES ? left : RUN_TILES;
        shares_of_run(harvest, head, (const float *)(const void *)total, first, n, shares);
        for (size_t t = 0; t < n; t++) {
            if ((first + t) % harvest->segment_tiles == 0)
                before = 0.0f;
            masses[first + t] = shares[t] > before ? shares[t] - before : 0.0f;
            before = shares[t];
        }
    }
}
