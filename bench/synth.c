#include "bench/synth.h"

#include <string.h>

/* splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014): any number is a
 * good seed, and its value follows from seed and step alone. */
static uint64_t next_u64(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t seed_of(uint64_t a, uint64_t b)
{
    uint64_t state = a ^ b * UINT64_C(0xd1342543de82ef95);
    return next_u64(&state);
}

static void random_bytes(uint8_t *out, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = next_u64(state);
        memcpy(out + i, &word, n - i < 8 ? n - i : 8);
    }
}

/* -128 does not occur in what is stored. */
static void random_int8(uint8_t *out, size_t n, uint64_t *state)
{
    random_bytes(out, n, state);
    for (size_t i = 0; i < n; i++)
        out[i] = out[i] == 0x80 ? 0x7f : out[i];
}

/* 2^-7 to 2^-6. */
static void random_scales(uint8_t *out, size_t n, uint64_t *state)
{
    random_bytes(out, n * 2, state);
    for (size_t i = 0; i < n; i++)
        out[2 * i + 1] = (uint8_t)(0x20 | (out[2 * i + 1] & 0x03));
}

/* Both signs, 2^-4 to 1. */
static void random_half(uint8_t *out, size_t n, uint64_t *state)
{
    random_bytes(out, n * 2, state);
    for (size_t i = 0; i < n; i++) {
        uint8_t high = out[2 * i + 1];
        out[2 * i + 1] = (uint8_t)((high & 0x83) | ((11 + (high >> 2 & 3)) << 2));
    }
}

static void random_tile(uint8_t *tile, sl_kv_type type, size_t head_dim, uint64_t *state)
{
    if (type == SL_KV_TYPE_F16) {
        random_half(tile, 2 * SL_TILE * head_dim, state);
        return;
    }
    size_t values = SL_TILE * head_dim, scales = SL_TILE * head_dim / SL_GROUP;
    random_int8(tile, values, state);
    random_scales(tile + values, scales, state);
    random_int8(tile + values + 2 * scales, values, state);
    random_scales(tile + 2 * values + 2 * scales, scales, state);
}

typedef struct fill_work {
    const bench_machine *m;
    uint8_t *groups;
    float *floats;
    size_t n, first_token;
    uint64_t seed;
} fill_work;

static void fill_group(void *arg, size_t item, size_t worker)
{
    (void)worker;
    const fill_work *work = arg;
    const sl_bench_shape *shape = &work->m->options.shape;
    size_t tile_bytes = sl_tile_bytes(work->m->geom.type, shape->head_dim);
    uint64_t state = seed_of(work->seed + item, 1);
    for (size_t head = 0; head < shape->n_kv_heads; head++)
        random_tile(work->groups + (item * shape->n_kv_heads + head) * tile_bytes, work->m->geom.type, shape->head_dim,
                    &state);
}

void bench_fill_groups(const bench_machine *m, uint8_t *groups, size_t n_groups, uint64_t seed)
{
    fill_work work = {.m = m, .groups = groups, .n = n_groups, .seed = seed};
    sl_pool_run(m->pool, n_groups, fill_group, &work);
}

enum { FLOATS_PER_ITEM = 1 << 14 };

static void random_floats(float *out, size_t n, uint64_t *state)
{
    const float scale = 1.7320508f * 0x1p-23f; /* unit variance */
    for (size_t i = 0; i < n; i += 2) {
        uint64_t word = next_u64(state);
        out[i] = (float)((int32_t)word >> 8) * scale;
        if (i + 1 < n)
            out[i + 1] = (float)((int32_t)(word >> 32) >> 8) * scale;
    }
}

static void fill_floats(void *arg, size_t item, size_t worker)
{
    (void)worker;
    const fill_work *work = arg;
    size_t first = item * FLOATS_PER_ITEM, left = work->n - first;
    uint64_t state = seed_of(work->seed + item, 2);
    random_floats(work->floats + first, left < FLOATS_PER_ITEM ? left : FLOATS_PER_ITEM, &state);
}

void bench_fill_floats(const bench_machine *m, float *out, size_t n, uint64_t seed)
{
    fill_work work = {.m = m, .floats = out, .n = n, .seed = seed};
    sl_pool_run(m->pool, (n + FLOATS_PER_ITEM - 1) / FLOATS_PER_ITEM, fill_floats, &work);
}

void bench_fill_bytes(uint8_t *out, size_t n, uint64_t seed)
{
    uint64_t state = seed_of(seed, 4);
    random_bytes(out, n, &state);
}

static void pack_row(void *arg, size_t item, size_t worker)
{
    (void)worker;
    const fill_work *work = arg;
    const sl_bench_shape *shape = &work->m->options.shape;
    sl_kv_pack_fn pack = sl_kernels_kv_pack(&work->m->kernels, work->m->geom.type);
    size_t tile_bytes = sl_tile_bytes(work->m->geom.type, shape->head_dim);
    size_t token = work->first_token + item;
    uint8_t *group = work->groups + token / SL_TILE * shape->n_kv_heads * tile_bytes;
    uint64_t state = seed_of(work->seed + item, 3);
    float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
    for (size_t head = 0; head < shape->n_kv_heads; head++) {
        random_floats(k, shape->head_dim, &state);
        random_floats(v, shape->head_dim, &state);
        pack(group + head * tile_bytes, token % SL_TILE, k, v, shape->head_dim);
    }
}

void bench_pack_rows(const bench_machine *m, uint8_t *groups, size_t first_token, size_t n_rows, uint64_t seed)
{
    fill_work work = {.m = m, .groups = groups, .n = n_rows, .first_token = first_token, .seed = seed};
    sl_pool_run(m->pool, n_rows, pack_row, &work);
}
