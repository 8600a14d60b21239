/* Attention against naive softmax in binary64, and against the bound of docs/numerics.md, which is evaluated for each
 * query and dimension. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "numerics/measure.h"

enum { MOST_KEYS = 4096, SEGMENT_TILES = 64, SEEDS = 4 };

static void *new_aligned(size_t bytes)
{
    void *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!out)
        abort();
    memset(out, 0, (bytes + 63) / 64 * 64);
    return out;
}

static void store_tile(const sl_kernels *kernels, const measure_attn *a, size_t tile, uint8_t *out)
{
    memset(out, 0, sl_tile_bytes(a->type, a->head_dim));
    for (size_t key = tile * SL_TILE; key < (tile + 1) * SL_TILE && key < a->n_keys; key++)
        if (!sl_kernels_kv_pack(kernels, a->type)(out, key % SL_TILE, a->k + key * a->kv_stride,
                                                  a->v + key * a->kv_stride, a->head_dim))
            abort(); /* real models stay within binary16 */
}

static void reset_state(float *state, size_t head_dim)
{
    for (size_t i = 0; i < sl_state_bytes(head_dim) / sizeof(float); i++)
        state[i] = i < SL_LANES ? -INFINITY : 0.0f;
}

void measure_attend(const sl_kernels *kernels, const measure_attn *a)
{
    size_t D = a->head_dim, tile_bytes = sl_tile_bytes(a->type, D), state_bytes = sl_state_bytes(D);
    uint8_t *qblock = new_aligned(sl_qblock_bytes(a->type, D)), *tile = new_aligned(tile_bytes);
    void *segment = new_aligned(state_bytes), *total = new_aligned(state_bytes);
    void *scratch = new_aligned(sl_tile_scratch_bytes(a->type, D));
    reset_state(segment, D);
    reset_state(total, D);
    sl_kernels_attn_qpack(kernels, a->type)(qblock, a->q, a->n_queries, D, (float)(1.0 / log(2.0) / sqrt((double)D)));
    size_t n_tiles = (a->n_keys + SL_TILE - 1) / SL_TILE;
    for (size_t n = 0; n < n_tiles; n++) {
        uint8_t *at = a->tiles ? a->tiles + n * tile_bytes : tile;
        uint64_t masks[SL_LANES] = {0};
        store_tile(kernels, a, n, at);
        for (size_t i = 0; i < a->n_queries; i++)
            if (a->pos[i] >= n * SL_TILE)
                masks[i] = a->pos[i] >= n * SL_TILE + 63 ? UINT64_MAX : (UINT64_C(2) << (a->pos[i] - n * SL_TILE)) - 1;
        const sl_tile_args args = {.tile = at,
                                   .head_dim = D,
                                   .qblocks = qblock,
                                   .states = segment,
                                   .state_stride = state_bytes,
                                   .n_queries = a->n_queries,
                                   .masks = masks,
                                   .scratch = scratch};
        sl_kernels_attn_tile(kernels, a->type)(&args);
        if (n % SEGMENT_TILES == SEGMENT_TILES - 1 || n + 1 == n_tiles)
            kernels->attn_segfold(total, segment, state_bytes, 1, D);
    }
    kernels->attn_finish(total, a->out, a->n_queries, D);
    free(qblock);
    free(tile);
    free(segment);
    free(total);
    free(scratch);
}

/* ------------------------------------------------------------------------------------------------------- binary64 */

/* A stored element; *scale: of its group, 1 for F16. */
static double element(const measure_attn *a, bool is_v, size_t key, size_t d, double *scale)
{
    size_t D = a->head_dim, t = key % SL_TILE;
    const uint8_t *tile = a->tiles + key / SL_TILE * sl_tile_bytes(a->type, D);
    const uint16_t *halves = (const uint16_t *)(const void *)tile;
    if (a->type == SL_KV_TYPE_F16) {
        *scale = 1.0;
        return (double)sl_float_of_half(halves[is_v ? (64 + t) * D + d : d * SL_TILE + t]);
    }
    *scale = (double)sl_float_of_half(halves[(is_v ? 132 : 64) * D / 2 + d / SL_GROUP * SL_TILE + t]);
    return *scale * ((const int8_t *)tile)[is_v ? 68 * D + d * SL_TILE + t : t * D + d];
}

/* One query's softmax in binary64: weights[n], Σ = 1, and each tile's largest score. */
typedef struct softmax {
    double weights[MOST_KEYS], error[MOST_KEYS]; /* error: relative, of the weight, by the bound */
    double tile_share[MOST_KEYS / SL_TILE];      /* exp(tile's maximum - maximum) / Σ */
    double out[SL_MAX_HEAD_DIM], bound[SL_MAX_HEAD_DIM];
} softmax;

/* Bound of the error of a score in powers of two. */
static double score_bound(const measure_attn *a, const float *q, const double *k)
{
    size_t D = a->head_dim;
    double c = 1.0 / log(2.0) / sqrt((double)D), mass = 0.0, steps = 0.0;
    for (size_t g = 0; g < D; g += SL_GROUP) {
        double amax = 0.0, sum = 0.0;
        for (size_t d = g; d < g + SL_GROUP && d < D; d++) {
            amax = fmax(amax, fabs((double)q[d]));
            sum += fabs(k[d]);
            mass += fabs((double)q[d] * k[d]);
        }
        steps += amax * sum;
    }
    if (a->type == SL_KV_TYPE_F16)
        return (double)(D + 2) * MEASURE_U * c * mass;
    return c * (0.504 / 32767 * steps + (6.0 + (double)D / SL_GROUP) * MEASURE_U * mass);
}

/* stored: K and V of the tiles, else as they were given. Fills weights, tile_share and out. */
static void attend_exactly(const measure_attn *a, size_t query, bool stored, softmax *s)
{
    size_t D = a->head_dim, n = a->pos[query] + 1;
    double max = -INFINITY, sum = 0.0, scale, k[SL_MAX_HEAD_DIM];
    for (size_t t = 0; t < n; t++) {
        s->weights[t] = 0.0;
        for (size_t d = 0; d < D; d++) {
            k[d] = stored ? element(a, false, t, d, &scale) : (double)a->k[t * a->kv_stride + d];
            s->weights[t] += (double)a->q[query][d] * k[d];
        }
        s->weights[t] /= sqrt((double)D);
        s->error[t] = score_bound(a, a->q[query], k);
        max = fmax(max, s->weights[t]);
    }
    memset(s->tile_share, 0, sizeof s->tile_share);
    for (size_t t = 0; t < n; t++) {
        double below = s->weights[t] - max;
        /* the scores' error, exp2 of the difference and its rounding, l's sum, foldings whose maxima may all move */
        s->error[t] = log(2.0) * s->error[t] + 1.1e-7 + (fabs(below) + 7) * MEASURE_U +
                      (a->type == SL_KV_TYPE_F16 ? 64 * MEASURE_U : 0.0) +
                      (double)(SEGMENT_TILES + 1) * (2 * MEASURE_U + 1.1e-7) + fabs(below) * MEASURE_U;
        s->weights[t] = exp(below);
        s->tile_share[t / SL_TILE] = fmax(s->tile_share[t / SL_TILE], s->weights[t]);
        sum += s->weights[t];
    }
    memset(s->out, 0, sizeof s->out);
    for (size_t t = 0; t < n; t++) {
        s->weights[t] /= sum;
        for (size_t d = 0; d < D; d++)
            s->out[d] += s->weights[t] * (stored ? element(a, true, t, d, &scale) : (double)a->v[t * a->kv_stride + d]);
    }
    for (size_t i = 0; i * SL_TILE < n; i++)
        s->tile_share[i] /= sum;
}

/* Weights' errors, then, for Q8_0, the steps of P in each tile. */
static void bound_output(const measure_attn *a, size_t query, softmax *s)
{
    size_t n = a->pos[query] + 1;
    for (size_t d = 0; d < a->head_dim; d++) {
        s->bound[d] = 4 * MEASURE_U * fabs(s->out[d]);
        for (size_t first = 0; first < n; first += SL_TILE) {
            double vmax = 0.0, bytes = 0.0, scale;
            for (size_t t = first; t < first + SL_TILE && t < n; t++) {
                double v = element(a, true, t, d, &scale);
                s->bound[d] += s->weights[t] * s->error[t] * (fabs(v) + fabs(s->out[d]));
                vmax = fmax(vmax, scale);
                bytes += scale > 0.0 ? fabs(v) / scale : 0.0;
            }
            if (a->type == SL_KV_TYPE_Q8_0)
                s->bound[d] += 0.512 / 65535 * vmax * bytes * s->tile_share[first / SL_TILE];
        }
    }
}

static void add_attention(const sl_kernels *kernels, measure_attn *a, measure_sum *sum)
{
    static softmax exact, given;
    float out[SL_LANES][SL_MAX_HEAD_DIM];
    for (size_t i = 0; i < a->n_queries; i++)
        a->out[i] = out[i];
    a->tiles = new_aligned((a->n_keys + SL_TILE - 1) / SL_TILE * sl_tile_bytes(a->type, a->head_dim));
    measure_attend(kernels, a);
    for (size_t i = 0; i < a->n_queries; i++) {
        attend_exactly(a, i, false, &given);
        attend_exactly(a, i, true, &exact);
        bound_output(a, i, &exact);
        measure_add(sum, out[i], exact.out, given.out, exact.bound, a->head_dim);
    }
    free(a->tiles);
    a->tiles = NULL;
}

static void add_random(const sl_kernels *kernels, sl_kv_type type, size_t D, const measure_set sets[2], uint64_t seed,
                       measure_sum *sum)
{
    measure_attn a = {.type = type, .head_dim = D, .n_keys = MOST_KEYS, .n_queries = SL_LANES, .kv_stride = D};
    float *q = new_aligned(SL_LANES * D * sizeof *q), *k = new_aligned(MOST_KEYS * D * sizeof *k);
    float *v = new_aligned(MOST_KEYS * D * sizeof *v);
    measure_fill(q, SL_LANES, D, sets[0], 3 * seed);
    measure_fill(k, MOST_KEYS, D, sets[1], 3 * seed + 1);
    measure_fill(v, MOST_KEYS, D, sets[1], 3 * seed + 2);
    a.k = k;
    a.v = v;
    for (size_t i = 0; i < SL_LANES; i++) {
        a.q[i] = q + i * D;
        a.pos[i] = MOST_KEYS - 1;
    }
    add_attention(kernels, &a, sum);
    free(q);
    free(k);
    free(v);
}

/* The last sixteen positions, every head of the kept layers. */
static void add_real(const sl_kernels *kernels, sl_kv_type type, const real_rows *real, measure_sum *sum)
{
    const sl_hparams *hp = &real->weights->hp;
    for (size_t n = 0; n < REAL_LAYERS; n++)
        for (size_t h = 0; h < hp->n_heads; h++) {
            const real_layer *l = &real->layers[n];
            size_t kv = h / (hp->n_heads / hp->n_kv_heads) * hp->head_dim;
            measure_attn a = {.type = type,
                              .head_dim = hp->head_dim,
                              .n_keys = real->n,
                              .n_queries = SL_LANES,
                              .kv_stride = hp->n_kv_heads * hp->head_dim,
                              .k = l->k + kv,
                              .v = l->v + kv};
            for (size_t i = 0; i < SL_LANES; i++) {
                a.pos[i] = real->n - SL_LANES + i;
                a.q[i] = l->q + (a.pos[i] * hp->n_heads + h) * hp->head_dim;
            }
            add_attention(kernels, &a, sum);
        }
}

/* K and V as stored, against what was given: the error is the rounding to the stored type. */
static void add_stored(const sl_kernels *kernels, measure_attn *a, measure_sum *sum)
{
    double stored[SL_MAX_HEAD_DIM], given[SL_MAX_HEAD_DIM], bound[SL_MAX_HEAD_DIM], scale;
    float got[SL_MAX_HEAD_DIM];
    a->tiles = new_aligned((a->n_keys + SL_TILE - 1) / SL_TILE * sl_tile_bytes(a->type, a->head_dim));
    for (size_t n = 0; n * SL_TILE < a->n_keys; n++)
        store_tile(kernels, a, n, a->tiles + n * sl_tile_bytes(a->type, a->head_dim));
    for (size_t key = 0; key < a->n_keys; key++)
        for (int is_v = 0; is_v < 2; is_v++) {
            for (size_t d = 0; d < a->head_dim; d++) {
                stored[d] = element(a, is_v, key, d, &scale);
                got[d] = (float)stored[d]; /* exact: 11 bits by 7 */
                given[d] = (double)(is_v ? a->v : a->k)[key * a->kv_stride + d];
                bound[d] = a->type == SL_KV_TYPE_F16
                               ? fmax(0x1p-11 * fabs(given[d]), 0x1p-25)
                               : scale * (0.5 + 0x1p-15 + 127 * 0x1p-11) * (1 + 0x1p-10) + 0x1p-18;
            }
            measure_add(sum, got, given, NULL, bound, a->head_dim);
        }
    free(a->tiles);
    a->tiles = NULL;
}

static void measure_stored(const sl_kernels *kernels, const real_rows *real)
{
    enum { KEYS = 1024, D = 64 };
    static const char *const names[] = {"K and V rows, F16", "K and V rows, Q8_0"};
    static float k[KEYS][D], v[KEYS][D];
    for (int q8 = 0; q8 < 2; q8++)
        for (int set = 0; set < MEASURE_SET_COUNT; set++) {
            measure_attn a = {.type = q8 ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16, .head_dim = D, .n_keys = KEYS,
                              .kv_stride = D, .k = k[0], .v = v[0]};
            measure_sum sum = {0};
            if (set != MEASURE_SET_REAL) {
                measure_fill(k[0], KEYS, D, (measure_set)set, 31);
                measure_fill(v[0], KEYS, D, (measure_set)set, 32);
                add_stored(kernels, &a, &sum);
            }
            for (size_t n = 0; n < REAL_LAYERS && set == MEASURE_SET_REAL && real; n++) {
                const sl_hparams *hp = &real->weights->hp;
                a.n_keys = real->n * hp->n_kv_heads; /* heads lie behind each other */
                a.head_dim = a.kv_stride = hp->head_dim;
                a.k = real->layers[n].k;
                a.v = real->layers[n].v;
                if (a.type == SL_KV_TYPE_F16 || a.head_dim % SL_GROUP == 0)
                    add_stored(kernels, &a, &sum);
            }
            if (sum.size2 > 0.0)
                measure_print(names[q8], measure_set_name((measure_set)set), &sum);
        }
}

void measure_attention(const sl_kernels *kernels, const real_rows *real)
{
    measure_stored(kernels, real);
    static const struct {
        const char *name;
        measure_set sets[2]; /* of Q; of K and V */
    } cases[] = {{"normal", {MEASURE_SET_NORMAL, MEASURE_SET_NORMAL}},
                 {"outliers in Q", {MEASURE_SET_OUTLIER, MEASURE_SET_NORMAL}},
                 {"outliers in K, V", {MEASURE_SET_NORMAL, MEASURE_SET_OUTLIER}}};
    static const char *const names[2][2] = {{"attention F16, D = 64", "attention F16, D = 128"},
                                            {"attention Q8_0, D = 64", "attention Q8_0, D = 128"}};
    for (int q8 = 0; q8 < 2; q8++) {
        sl_kv_type type = q8 ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16;
        for (size_t wide = 0; wide < 2; wide++)
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                measure_sum sum = {0};
                for (uint64_t seed = 1; seed <= SEEDS; seed++)
                    add_random(kernels, type, wide ? 128 : 64, cases[i].sets, seed, &sum);
                measure_print(names[q8][wide], cases[i].name, &sum);
            }
        measure_sum sum = {0};
        if (real && (type == SL_KV_TYPE_F16 || real->weights->hp.head_dim % SL_GROUP == 0)) {
            add_real(kernels, type, real, &sum);
            measure_print(names[q8][0], measure_set_name(MEASURE_SET_REAL), &sum);
        }
    }
}
