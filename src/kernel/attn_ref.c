/* The definition of attention, in scalar C: every other attn_*.c must give these bits.
 * Each rule is one function: score, quantised or not; the tile's sums; its output; the fold. The sizes of
 * query blocks, states and scratch are here too, because the layouts are. */
#include <assert.h>
#include <string.h>

#include "kernel/ref.h"
#include "kernel/scalar.h"

size_t sl_qblock_bytes(sl_kv_type type, size_t head_dim)
{
    return type == SL_KV_TYPE_F16 ? head_dim * SL_LANES * 4
                                  : head_dim * SL_LANES * 2 + head_dim / SL_GROUP * SL_LANES * 4;
}

size_t sl_state_bytes(size_t head_dim)
{
    return (head_dim + 2) * SL_LANES * sizeof(float);
}

/* Room for the tile widened once (F16: K and V as floats; Q8_0: as 16-bit integers, scales as floats twice over,
 * column sums) and for one block's scores, P and lane sums. */
size_t sl_tile_scratch_bytes(sl_kv_type type, size_t head_dim)
{
    size_t scores = SL_TILE * SL_LANES * sizeof(float), lanes = SL_LANES * SL_LANES * sizeof(float);
    if (type == SL_KV_TYPE_F16)
        return 2 * SL_TILE * head_dim * sizeof(float) + 2 * scores + lanes;
    size_t widened = 2 * SL_TILE * head_dim * sizeof(int16_t) + 3 * (head_dim / SL_GROUP) * SL_TILE * sizeof(float);
    return widened + head_dim * sizeof(int32_t) + 3 * scores + lanes;
}

/* ---- queries ---- */

void sl_attn_qpack_f16_ref(void *qblock, const float *const *q, size_t n, size_t head_dim, float c)
{
    float *out = qblock;
    memset(out, 0, sl_qblock_bytes(SL_KV_TYPE_F16, head_dim));
    for (size_t i = 0; i < n; i++)
        for (size_t d = 0; d < head_dim; d++)
            out[d * SL_LANES + i] = q[i][d] * c;
}

void sl_attn_qpack_q8_ref(void *qblock, const float *const *q, size_t n, size_t head_dim, float c)
{
    int16_t *out = qblock;
    float *qs = (float *)(void *)((uint8_t *)qblock + head_dim * SL_LANES * sizeof(int16_t));
    memset(out, 0, sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim));
    for (size_t i = 0; i < n; i++)
        for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
            const float *x = q[i] + g * SL_GROUP;
            float amax = sl_scalar_amax(x, SL_GROUP);
            if (amax < SL_AMAX_MIN)
                continue; /* zeros, scale 0 */
            float inverse = 32767.0f / amax;
            for (size_t e = 0; e < SL_GROUP; e++) {
                size_t d = g * SL_GROUP + e;
                out[d / 2 * 2 * SL_LANES + 2 * i + d % 2] = (int16_t)rintf(x[e] * inverse);
            }
            qs[g * SL_LANES + i] = amax / 32767.0f * c;
        }
}

/* ---- the tile's rules, for one query (one lane of a block) ---- */

static bool is_visible(uint64_t mask, size_t key)
{
    return mask >> key & 1;
}

static float with_softcap(float s, float softcap)
{
    return softcap != 0.0f ? softcap * SL_LOG2E * sl_scalar_tanh(s) : s;
}

static float score_f16(const uint8_t *tile, size_t head_dim, const float *q, size_t lane, size_t key)
{
    const uint16_t *k = (const uint16_t *)(const void *)tile;
    float s = 0.0f;
    for (size_t d = 0; d < head_dim; d++)
        s = fmaf(sl_float_of_half(k[d * SL_TILE + key]), q[d * SL_LANES + lane], s);
    return s;
}

static float score_q8(const uint8_t *tile, size_t head_dim, const int16_t *q, size_t lane, size_t key)
{
    const int8_t *k = (const int8_t *)tile + key * head_dim;
    const uint16_t *ks = (const uint16_t *)(const void *)(tile + 64 * head_dim);
    const float *qs = (const float *)(const void *)(q + head_dim * SL_LANES);
    float s = 0.0f;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        int32_t dot = 0;
        for (size_t d = g * SL_GROUP; d < (g + 1) * SL_GROUP; d++)
            dot += (int32_t)k[d] * q[d / 2 * 2 * SL_LANES + 2 * lane + d % 2];
        s = fmaf((float)dot, sl_float_of_half(ks[g * SL_TILE + key]) * qs[g * SL_LANES + lane], s);
    }
    return s;
}

typedef struct tile_sums {
    float m, l;
    float p[SL_TILE]; /* hidden: +0 */
} tile_sums;

/* From the scores of the visible keys. A maximum of zero is +0 whatever the zeros' signs, so that the order of
 * comparing does not show in the state. */
static void sums_of_scores(tile_sums *sums, const float *s, uint64_t mask)
{
    float m = -INFINITY;
    for (size_t t = 0; t < SL_TILE; t++)
        if (is_visible(mask, t))
            m = s[t] > m ? s[t] : m;
    m = m + 0.0f;
    for (size_t t = 0; t < SL_TILE; t++)
        sums->p[t] = is_visible(mask, t) ? sl_scalar_exp2(s[t] - m) : 0.0f;
    float lanes[SL_LANES];
    for (size_t t = 0; t < SL_LANES; t++) {
        lanes[t] = sums->p[t];
        for (size_t u = t + SL_LANES; u < SL_TILE; u += SL_LANES)
            lanes[t] = lanes[t] + sums->p[u];
    }
    sums->m = m;
    sums->l = sl_scalar_tree16(lanes);
}

static void output_f16(float *o, const uint8_t *tile, size_t head_dim, const float *p, uint64_t mask)
{
    const uint16_t *v = (const uint16_t *)(const void *)(tile + 128 * head_dim);
    for (size_t d = 0; d < head_dim; d++) {
        o[d] = 0.0f;
        for (size_t t = 0; t < SL_TILE; t++)
            if (is_visible(mask, t))
                o[d] = fmaf(p[t], sl_float_of_half(v[t * head_dim + d]), o[d]);
    }
}

static void output_q8(float *o, const uint8_t *tile, size_t head_dim, const float *p, uint64_t mask)
{
    const int8_t *v = (const int8_t *)tile + 68 * head_dim;
    const uint16_t *vs = (const uint16_t *)(const void *)(tile + 132 * head_dim);
    for (size_t g = 0; g < head_dim / SL_GROUP; g++, vs += SL_TILE) {
        float vmax = 0.0f;
        for (size_t t = 0; t < SL_TILE; t++)
            if (is_visible(mask, t) && sl_float_of_half(vs[t]) > vmax)
                vmax = sl_float_of_half(vs[t]);
        int32_t weight[SL_TILE] = {0};
        for (size_t t = 0; t < SL_TILE && vmax > 0.0f; t++)
            if (is_visible(mask, t))
                weight[t] = (int32_t)rintf(p[t] * (sl_float_of_half(vs[t]) * (65535.0f / vmax)));
        for (size_t d = g * SL_GROUP; d < (g + 1) * SL_GROUP; d++) {
            int32_t dot = 0;
            for (size_t t = 0; t < SL_TILE; t++)
                dot += weight[t] * v[d * SL_TILE + t];
            o[d] = (float)dot * (vmax / 65535.0f);
        }
    }
}

/* One lane of (m, l, o[D]), each at a stride of 16 floats, takes in another by the rule of tiles and segments. */
typedef struct part {
    float m, l;
    const float *o;
    size_t stride;
} part;

static void fold(float *state, size_t lane, const part *in, size_t head_dim)
{
    float *m = state + lane, *l = state + SL_LANES + lane, *o = state + 2 * SL_LANES + lane;
    float m_new = in->m > *m ? in->m : *m;
    float alpha = sl_scalar_exp2(*m - m_new), beta = sl_scalar_exp2(in->m - m_new);
    *m = m_new;
    *l = fmaf(*l, alpha, in->l * beta);
    for (size_t d = 0; d < head_dim; d++)
        o[d * SL_LANES] = fmaf(o[d * SL_LANES], alpha, in->o[d * in->stride] * beta);
}

static void tile_query(const sl_tile_args *args, sl_kv_type type, size_t query, uint64_t mask)
{
    size_t block = query / SL_LANES, lane = query % SL_LANES, head_dim = args->head_dim;
    const void *q = args->qblocks + block * sl_qblock_bytes(type, head_dim);
    float s[SL_TILE] = {0}, o[SL_MAX_HEAD_DIM];
    for (size_t t = 0; t < SL_TILE; t++)
        if (is_visible(mask, t))
            s[t] = with_softcap(type == SL_KV_TYPE_F16 ? score_f16(args->tile, head_dim, q, lane, t)
                                                       : score_q8(args->tile, head_dim, q, lane, t),
                                args->softcap);
    tile_sums sums;
    sums_of_scores(&sums, s, mask);
    if (type == SL_KV_TYPE_F16)
        output_f16(o, args->tile, head_dim, sums.p, mask);
    else
        output_q8(o, args->tile, head_dim, sums.p, mask);
    float *state = (float *)(void *)(args->states + block * args->state_stride);
    fold(state, lane, &(part){sums.m, sums.l, o, 1}, head_dim);
}

static void tile_queries(const sl_tile_args *args, sl_kv_type type)
{
    assert(args->head_dim <= SL_MAX_HEAD_DIM && args->head_dim % (type == SL_KV_TYPE_F16 ? 16 : SL_GROUP) == 0);
    for (size_t query = 0; query < args->n_queries; query++) {
        uint64_t mask = args->masks ? args->masks[query] : UINT64_MAX;
        if (mask != 0)
            tile_query(args, type, query, mask);
    }
}

void sl_attn_tile_f16_ref(const sl_tile_args *args)
{
    tile_queries(args, SL_KV_TYPE_F16);
}

void sl_attn_tile_q8_ref(const sl_tile_args *args)
{
    tile_queries(args, SL_KV_TYPE_Q8_0);
}

void sl_attn_tiles_q8_ref(const sl_tile_args *args, size_t n_tiles, size_t stride, sl_attn_tile_fn tile)
{
    sl_tile_args one = *args;
    for (size_t i = 0; i < n_tiles; i++, one.tile += stride) {
        one.next = i + 1 < n_tiles ? one.tile + stride : args->next;
        tile(&one);
    }
}

/* ---- segments and the end ---- */

void sl_attn_segfold_ref(uint8_t *totals, uint8_t *segments, size_t state_stride, size_t n_blocks, size_t head_dim)
{
    for (size_t b = 0; b < n_blocks; b++) {
        float *total = (float *)(void *)(totals + b * state_stride);
        float *segment = (float *)(void *)(segments + b * state_stride);
        for (size_t lane = 0; lane < SL_LANES; lane++) {
            const float *in = segment + lane;
            if (in[0] != -INFINITY)
                fold(total, lane, &(part){in[0], in[SL_LANES], in + 2 * SL_LANES, SL_LANES}, head_dim);
            segment[lane] = -INFINITY;
        }
        memset(segment + SL_LANES, 0, (head_dim + 1) * SL_LANES * sizeof(float));
    }
}

void sl_attn_finish_ref(const uint8_t *total, float *const *out, size_t n, size_t head_dim)
{
    const float *l = (const float *)(const void *)total + SL_LANES, *o = l + SL_LANES;
    for (size_t i = 0; i < n; i++)
        for (size_t d = 0; d < head_dim; d++)
            out[i][d] = o[d * SL_LANES + i] / l[i];
}

/* ---- keys and values ---- */

static bool half_is_finite(uint16_t half)
{
    return (half & 0x7c00u) != 0x7c00u;
}

bool sl_kv_pack_f16_ref(uint8_t *tile, size_t key, const float *k, const float *v, size_t head_dim)
{
    uint16_t *to_k = (uint16_t *)(void *)tile + key;
    uint16_t *to_v = (uint16_t *)(void *)(tile + 128 * head_dim) + key * head_dim;
    bool finite = true;
    for (size_t d = 0; d < head_dim; d++) {
        to_k[d * SL_TILE] = sl_half_of_float(k[d]);
        to_v[d] = sl_half_of_float(v[d]);
        finite = finite && half_is_finite(to_k[d * SL_TILE]) && half_is_finite(to_v[d]);
    }
    return finite;
}

/* 32 elements to signed bytes at `stride`; false when one is not finite or the scale passes binary16. */
static bool pack_group(int8_t *q, size_t stride, uint16_t *scale, const float *x)
{
    for (size_t e = 0; e < SL_GROUP; e++)
        if (!isfinite(x[e]))
            return false;
    float amax = sl_scalar_amax(x, SL_GROUP);
    float inverse = amax < SL_AMAX_MIN ? 0.0f : 127.0f / amax;
    *scale = amax < SL_AMAX_MIN ? 0 : sl_half_of_float(amax / 127.0f);
    for (size_t e = 0; e < SL_GROUP; e++)
        q[e * stride] = (int8_t)rintf(x[e] * inverse);
    return half_is_finite(*scale);
}

bool sl_kv_pack_q8_ref(uint8_t *tile, size_t key, const float *k, const float *v, size_t head_dim)
{
    int8_t *to_k = (int8_t *)tile + key * head_dim, *to_v = (int8_t *)tile + 68 * head_dim + key;
    uint16_t *ks = (uint16_t *)(void *)(tile + 64 * head_dim) + key;
    uint16_t *vs = (uint16_t *)(void *)(tile + 132 * head_dim) + key;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        size_t d = g * SL_GROUP;
        if (!pack_group(to_k + d, 1, ks + g * SL_TILE, k + d) ||
            !pack_group(to_v + d * SL_TILE, SL_TILE, vs + g * SL_TILE, v + d))
            return false;
    }
    return true;
}
