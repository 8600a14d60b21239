/* Attention tiles against blocks of 16 queries with 256-bit vectors: the bodies that AVX2 and AVX-VNNI share.
 * Lanes are queries: a block of 16 is two vectors (one of Q8_0 when at most 8 lanes are in use), keys and values are
 * broadcast, so no sum ever crosses lanes.
 * The tile is widened once per call; scores, softmax and outputs of each block of queries then run from the nearest
 * cache. */
#ifndef SL_ATTN_BLOCKS256_H
#define SL_ATTN_BLOCKS256_H

#if defined(__x86_64__)

#include <assert.h>
#include <string.h>

#include "kernel/attn_dot256.h"
#include "kernel/attn_few.h"

/* Accumulator i of a register block belongs to key (or dimension) i / nv and vector i % nv. Each has a name, because
 * gcc leaves an array of them in memory. */
enum { HALF_BLOCK = 8 };
#define EACH_DOT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
/* gcc 12 without this: two register copies for every step, and spills (-fno-tree-coalesce-vars cures it too). */
#define KEEP(i) __asm__("" : "+x"(acc##i));

/* One block's work: nv is its number of vectors, a constant in every inlined copy, as is masked. */
typedef struct block {
    const void *q;
    float *state;
    float *s;                 /* [64][16] scores, then p */
    float *vis;               /* [64][16] all ones where the key is visible */
    __m256 m[2], l[2];        /* of the tile */
    __m256 alpha[2], beta[2]; /* of the fold */
    __m256 scale[2];          /* Q8_0: of a group's output */
    __m256 seen[2];           /* all ones where the query sees any key */
    uint64_t any, all;        /* keys that any query sees, and that all see which see any */
    const uint8_t *next;      /* the tile to call into the cache while this block is scored, or NULL */
} block;

/* ---- masks ---- */

/* Fills vis and seen from 16 masks. */
BODY void expand_masks(block *b, const uint64_t *masks, const int nv)
{
    for (int j = 0; j < nv; j++) {
        uint32_t halves[2][8];
        for (int i = 0; i < 8; i++) {
            halves[0][i] = (uint32_t)masks[8 * j + i];
            halves[1][i] = (uint32_t)(masks[8 * j + i] >> 32);
        }
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)halves[0]);
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)halves[1]);
        __m256i none = _mm256_cmpeq_epi32(_mm256_or_si256(low, high), _mm256_setzero_si256());
        b->seen[j] = _mm256_castsi256_ps(_mm256_xor_si256(none, _mm256_set1_epi32(-1)));
        for (int t = 0; t < SL_TILE; t++) {
            __m256i at_sign = _mm256_sll_epi32(t < 32 ? low : high, _mm_cvtsi32_si128(31 - t % 32));
            _mm256_store_ps(b->vis + t * SL_LANES + 8 * j, _mm256_castsi256_ps(_mm256_srai_epi32(at_sign, 31)));
        }
    }
}

BODY __m256 keep_unseen(const block *b, int j, const float *old, __m256 value, const bool masked)
{
    return masked ? _mm256_blendv_ps(_mm256_load_ps(old), value, b->seen[j]) : value;
}

/* ---- softmax of a tile and the fold ---- */

/* Softcap, mask and maximum. A hidden key's score becomes -inf, from which p = +0 follows. */
BODY void maximum_of_scores(block *b, int j, float softcap, const bool masked)
{
    __m256 m = _mm256_set1_ps(-INFINITY);
    const __m256 cap = _mm256_set1_ps(softcap * SL_LOG2E);
    for (int t = 0; t < SL_TILE; t++) {
        float *at = b->s + t * SL_LANES + 8 * j;
        __m256 s = _mm256_load_ps(at);
        if (softcap != 0.0f)
            s = _mm256_mul_ps(cap, sl_avx2_tanh(s));
        if (masked)
            s = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), s, _mm256_load_ps(b->vis + t * SL_LANES + 8 * j));
        if (masked || softcap != 0.0f)
            _mm256_store_ps(at, s);
        m = _mm256_max_ps(s, m);
    }
    b->m[j] = _mm256_add_ps(m, _mm256_setzero_ps()); /* -0 becomes +0 */
}

BODY __m256 exp_in_place(float *at, __m256 m)
{
    __m256 p = sl_avx2_exp2(_mm256_sub_ps(_mm256_load_ps(at), m));
    _mm256_store_ps(at, p);
    return p;
}

BODY void exp_and_sum(block *b, int j)
{
    __m256 sum[8];
    for (int t = 0; t < 8; t++) {
        float *at = b->s + t * SL_LANES + 8 * j;
        __m256 low = exp_in_place(at, b->m[j]), high = exp_in_place(at + 8 * SL_LANES, b->m[j]);
        for (int u = SL_LANES; u < SL_TILE; u += SL_LANES) {
            low = _mm256_add_ps(low, exp_in_place(at + u * SL_LANES, b->m[j]));
            high = _mm256_add_ps(high, exp_in_place(at + (u + 8) * SL_LANES, b->m[j]));
        }
        sum[t] = _mm256_add_ps(low, high);
    }
    for (int t = 0; t < 4; t++)
        sum[t] = _mm256_add_ps(sum[t], sum[t + 4]);
    b->l[j] = _mm256_add_ps(_mm256_add_ps(sum[0], sum[2]), _mm256_add_ps(sum[1], sum[3]));
}

/* m and l of the state; alpha and beta for its o. */
BODY void fold_m_l(block *b, int j, const bool masked)
{
    float *m_at = b->state + 8 * j, *l_at = m_at + SL_LANES;
    __m256 m = _mm256_load_ps(m_at), m_new = _mm256_max_ps(b->m[j], m);
    b->alpha[j] = sl_avx2_exp2(_mm256_sub_ps(m, m_new));
    b->beta[j] = sl_avx2_exp2(_mm256_sub_ps(b->m[j], m_new));
    __m256 l = _mm256_fmadd_ps(_mm256_load_ps(l_at), b->alpha[j], _mm256_mul_ps(b->l[j], b->beta[j]));
    _mm256_store_ps(l_at, keep_unseen(b, j, l_at, l, masked));
    _mm256_store_ps(m_at, keep_unseen(b, j, m_at, m_new, masked));
}

BODY void fold_o(const block *b, int j, size_t d, __m256 o, const bool masked)
{
    float *at = b->state + (2 + d) * SL_LANES + 8 * (size_t)j;
    __m256 sum = _mm256_fmadd_ps(_mm256_load_ps(at), b->alpha[j], _mm256_mul_ps(o, b->beta[j]));
    _mm256_store_ps(at, keep_unseen(b, j, at, sum, masked));
}

BODY void softmax(block *b, float softcap, const int nv, const bool masked)
{
    for (int j = 0; j < nv; j++) {
        if (softcap != 0.0f)
            maximum_of_scores(b, j, softcap, masked);
        else
            maximum_of_scores(b, j, 0.0f, masked);
        exp_and_sum(b, j);
        fold_m_l(b, j, masked);
    }
}

BODY void widen_f16(float *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_store_ps(out + i, _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(in + 2 * i))));
}

/* ---- Q8_0 ---- */

typedef struct q8_tile {
    size_t head_dim;
    int16_t *k;     /* [64][D] */
    int16_t *v;     /* [D][64] */
    float *ks, *vs; /* [D/32][64] scales */
    float *vf;      /* [D/32][64] vs * (65535 / vmax), vmax over the whole tile */
    float vmax[SL_MAX_HEAD_DIM / SL_GROUP];
    int32_t *bias;    /* [D] 32768 * sum of v: what P - 32768 leaves out */
    uint32_t *weight; /* [32][16] pairs of P - 32768 of one group */
} q8_tile;

BODY __m256i pair_broadcast(const int16_t *pair)
{
    int32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return _mm256_set1_epi32(bits);
}

BODY __m256i pairs_load(const void *pairs)
{
    return _mm256_load_si256(pairs);
}

/* sum + the products of a broadcast pair with eight pairs */
BODY __m256i add_dot(__m256i sum, const int16_t *pair, __m256i pairs)
{
    return DOT(sum, pair_broadcast(pair), pairs);
}

/* s = fma(dot, ks * qs, s) */
BODY void add_score(float *at, __m256i dot, float ks, const float *qs, bool first)
{
    __m256 scale = _mm256_mul_ps(_mm256_set1_ps(ks), _mm256_load_ps(qs));
    __m256 before = first ? _mm256_setzero_ps() : _mm256_load_ps(at);
    _mm256_store_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, before));
}

/* Scores of keys [key, key + nk) from one group. */
BODY void score_keys(const q8_tile *t, const block *b, size_t g, int key, const int nk, const int nv)
{
#define ZERO(i) __m256i acc##i = _mm256_setzero_si256();
#define STEP(i)                                                                                                        \
    if (i < nk * nv)                                                                                                   \
        acc##i = add_dot(acc##i, k + (size_t)(i / nv) * t->head_dim, i % nv ? q1 : q0);
#define HOLD(i)                                                                                                        \
    if (i < nk * nv)                                                                                                   \
        KEEP(i)
#define STORE(i)                                                                                                       \
    if (i < nk * nv)                                                                                                   \
        add_score(s + i / nv * SL_LANES + i % nv * 8, acc##i, ks[i / nv], qs + i % nv * 8, g == 0);
    EACH_DOT(ZERO)
    const int16_t *q = (const int16_t *)b->q + g * SL_GROUP * SL_LANES;
    const int16_t *k = t->k + (size_t)key * t->head_dim + g * SL_GROUP;
    UNROLLED
    for (int e = 0; e < SL_GROUP; e += 2, q += 2 * SL_LANES, k += 2) {
        const __m256i q0 = pairs_load(q), q1 = pairs_load(q + 16);
        EACH_DOT(STEP)
        EACH_DOT(HOLD)
    }
    float *s = b->s + key * SL_LANES;
    const float *ks = t->ks + g * SL_TILE + key;
    const float *qs = (const float *)(const void *)((const uint8_t *)b->q + t->head_dim * SL_LANES * 2) + g * SL_LANES;
    EACH_DOT(STORE)
#undef ZERO
#undef STEP
#undef HOLD
#undef STORE
}

BODY void score_q8(const q8_tile *t, const block *b, const int nv, const bool masked)
{
    /* of a tile, the bytes to one key's group of K */
    const size_t share = sl_tile_bytes(SL_KV_TYPE_Q8_0, SL_GROUP) / SL_TILE;
    const int nk = DOTS / nv;
    for (int key = 0; key < SL_TILE; key += nk)
        for (size_t g = 0; g < t->head_dim / SL_GROUP; g++) {
            if (b->next)
                sl_attn_fetch(b->next + (g * SL_TILE + (size_t)key) * share, (size_t)nk * share);
            if (masked && !(b->any >> key & ((1u << nk) - 1)))
                continue; /* the mask gives them their scores */
            if (key + nk <= SL_TILE)
                score_keys(t, b, g, key, nk, nv);
            else
                score_keys(t, b, g, key, SL_TILE % nk, nv);
        }
}

/* The largest value scale among the keys that each query sees. */
BODY __m256 visible_vmax(const float *vs, const block *b, int j)
{
    __m256 vmax = _mm256_setzero_ps();
    for (int t = 0; t < SL_TILE; t++)
        vmax = _mm256_max_ps(_mm256_and_ps(_mm256_set1_ps(vs[t]), _mm256_load_ps(b->vis + t * SL_LANES + 8 * j)), vmax);
    return vmax;
}

/* rint(p * factor) - 32768 in the low 16 bits of each lane: the sum with 2^23 + 32768 rounds to an integer, to even in
 * a tie like rint, and its lowest bits are those of rint with bit 15 flipped. */
BODY __m256i weight_bits(const float *p, __m256 factor)
{
    return _mm256_castps_si256(
        _mm256_add_ps(_mm256_mul_ps(_mm256_load_ps(p), factor), _mm256_set1_ps(0x1p23f + 32768.0f)));
}

/* P - 32768 of group g, two keys to a 32-bit lane; returns vmax / 65535. */
BODY __m256 weights_q8(const q8_tile *t, const block *b, size_t g, int j, const bool masked)
{
    const __m256 full = _mm256_set1_ps(65535.0f);
    const float *vs = t->vs + g * SL_TILE, *vf = t->vf + g * SL_TILE;
    __m256 vmax = masked ? visible_vmax(vs, b, j) : _mm256_set1_ps(t->vmax[g]);
    __m256 inverse = _mm256_and_ps(_mm256_div_ps(full, vmax), _mm256_cmp_ps(vmax, _mm256_setzero_ps(), _CMP_GT_OQ));
    for (int key = 0; key < SL_TILE; key += 2) {
        __m256 f0 = masked ? _mm256_mul_ps(_mm256_set1_ps(vs[key]), inverse) : _mm256_set1_ps(vf[key]);
        __m256 f1 = masked ? _mm256_mul_ps(_mm256_set1_ps(vs[key + 1]), inverse) : _mm256_set1_ps(vf[key + 1]);
        const float *p = b->s + key * SL_LANES + 8 * j;
        __m256i low = weight_bits(p, f0), high = _mm256_slli_epi32(weight_bits(p + SL_LANES, f1), 16);
        _mm256_store_si256((__m256i *)(void *)(t->weight + key / 2 * SL_LANES + 8 * j),
                           _mm256_blend_epi16(low, high, 0xaa));
    }
    return _mm256_div_ps(vmax, full);
}

/* Dimensions [d, d + nd), of one group. */
BODY void output_dims(const q8_tile *t, const block *b, size_t d, const int nd, const int nv, const bool masked)
{
#define BIAS(i) __m256i acc##i = _mm256_set1_epi32(i < nd * nv ? t->bias[d + (size_t)(i / nv)] : 0);
#define STEP(i)                                                                                                        \
    if (i < nd * nv)                                                                                                   \
        acc##i = add_dot(acc##i, v + i / nv * SL_TILE, i % nv ? w1 : w0);
#define HOLD(i)                                                                                                        \
    if (i < nd * nv)                                                                                                   \
        KEEP(i)
#define FOLD(i)                                                                                                        \
    if (i < nd * nv)                                                                                                   \
        fold_o(b, i % nv, d + (size_t)(i / nv), _mm256_mul_ps(_mm256_cvtepi32_ps(acc##i), b->scale[i % nv]), masked);
    EACH_DOT(BIAS)
    const int16_t *v = t->v + d * SL_TILE;
    const uint32_t *w = t->weight;
    UNROLLED
    for (int key = 0; key < SL_TILE; key += 2, v += 2, w += SL_LANES) {
        const __m256i w0 = pairs_load(w), w1 = pairs_load(w + 8);
        EACH_DOT(STEP)
        EACH_DOT(HOLD)
    }
    EACH_DOT(FOLD)
#undef BIAS
#undef STEP
#undef HOLD
#undef FOLD
}

BODY void output_q8(const q8_tile *t, block *b, const int nv, const bool masked)
{
    const size_t nd = DOTS / (size_t)nv;
    for (size_t g = 0; g < t->head_dim / SL_GROUP; g++) {
        for (int j = 0; j < nv; j++)
            b->scale[j] = weights_q8(t, b, g, j, masked);
        size_t d = g * SL_GROUP, end = d + SL_GROUP;
        for (; d + nd <= end; d += nd)
            output_dims(t, b, d, (int)nd, nv, masked);
        if (SL_GROUP % nd != 0)
            output_dims(t, b, d, (int)(SL_GROUP % nd), nv, masked);
    }
}

BODY void block_q8(const q8_tile *t, block *b, float softcap, const int nv, const bool masked)
{
    score_q8(t, b, nv, masked);
    softmax(b, softcap, nv, masked);
    output_q8(t, b, nv, masked);
}

/* Largest of 64 scales, or 0. */
BODY float max_of(const float *vs)
{
    __m256 eight = _mm256_setzero_ps();
    for (int i = 0; i < SL_TILE; i += 8)
        eight = _mm256_max_ps(_mm256_load_ps(vs + i), eight);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

BODY void widen_q8(q8_tile *t, const uint8_t *tile)
{
    const size_t head_dim = t->head_dim, n = SL_TILE * head_dim, n_scales = head_dim / SL_GROUP * SL_TILE;
    const __m128i *k = (const __m128i *)(const void *)tile;
    const __m128i *v = (const __m128i *)(const void *)(tile + 68 * head_dim);
    for (size_t i = 0; i < n / 16; i++)
        _mm256_store_si256((__m256i *)(void *)t->k + i, _mm256_cvtepi8_epi16(_mm_load_si128(k + i)));
    for (size_t d = 0; d < head_dim; d++) {
        __m256i sum = _mm256_setzero_si256();
        for (size_t i = 4 * d; i < 4 * d + 4; i++) {
            __m256i wide = _mm256_cvtepi8_epi16(_mm_load_si128(v + i));
            _mm256_store_si256((__m256i *)(void *)t->v + i, wide);
            sum = _mm256_add_epi16(sum, wide);
        }
        sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        t->bias[d] = _mm_cvtsi128_si32(four) * 32768;
    }
    widen_f16(t->ks, tile + 64 * head_dim, n_scales);
    widen_f16(t->vs, tile + 132 * head_dim, n_scales);
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        const float *vs = t->vs + g * SL_TILE;
        float vmax = max_of(vs);
        float inverse = vmax > 0.0f ? 65535.0f / vmax : 0.0f;
        t->vmax[g] = vmax;
        for (size_t i = 0; i < SL_TILE; i++)
            t->vf[g * SL_TILE + i] = vs[i] * inverse;
    }
}

/* ---- the entries ---- */

typedef enum cut { CUT_NONE, CUT_SOME, CUT_ALL } cut;

/* How much of the tile n queries see: everything, a part, nothing. Sets any and all. */
BODY cut cut_of_masks(block *b, const uint64_t *masks, size_t n)
{
    uint64_t every = UINT64_MAX;
    b->all = UINT64_MAX;
    b->any = 0;
    for (size_t i = 0; i < n; i++) {
        every &= masks[i];
        b->all &= masks[i] ? masks[i] : UINT64_MAX;
        b->any |= masks[i];
    }
    return b->any == 0 ? CUT_ALL : every == UINT64_MAX ? CUT_NONE : CUT_SOME;
}

/* Points b at block i; CUT_ALL: nothing to do. */
BODY cut block_start(block *b, const sl_tile_args *args, size_t i, size_t qblock_bytes)
{
    size_t left = args->n_queries - i * SL_LANES, n = left < SL_LANES ? left : SL_LANES;
    b->q = args->qblocks + i * qblock_bytes;
    b->next = i == 0 ? args->next : NULL;
    b->state = (float *)(void *)(args->states + i * args->state_stride);
    if (!args->masks)
        return CUT_NONE;
    const uint64_t *masks = args->masks + i * SL_LANES;
    cut result = cut_of_masks(b, masks, n);
    if (result == CUT_SOME)
        expand_masks(b, masks, 2);
    return result;
}

/* Queries [0, n_queries) of the call. */
BODY void tile_q8(const sl_tile_args *args, size_t n_queries)
{
    const size_t head_dim = args->head_dim, n = SL_TILE * head_dim, n_scales = head_dim / SL_GROUP * SL_TILE;
    assert(head_dim % SL_GROUP == 0 && head_dim <= SL_MAX_HEAD_DIM);
    float *s = args->scratch, *ks = s + 2 * SL_TILE * SL_LANES;
    int16_t *k = (int16_t *)(void *)(ks + 3 * n_scales);
    q8_tile t = {.head_dim = head_dim, .k = k, .v = k + n, .ks = ks, .vs = ks + n_scales, .vf = ks + 2 * n_scales};
    t.bias = (int32_t *)(void *)(k + 2 * n);
    t.weight = (uint32_t *)t.bias + head_dim;
    widen_q8(&t, args->tile);
    block b = {.s = s, .vis = s + SL_TILE * SL_LANES};
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        cut seen = block_start(&b, args, i, sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim));
        bool half = n_queries - i * SL_LANES <= HALF_BLOCK;
        if (seen == CUT_NONE && half)
            block_q8(&t, &b, args->softcap, 1, false);
        else if (seen == CUT_NONE)
            block_q8(&t, &b, args->softcap, 2, false);
        else if (seen == CUT_SOME && half)
            block_q8(&t, &b, args->softcap, 1, true);
        else if (seen == CUT_SOME)
            block_q8(&t, &b, args->softcap, 2, true);
    }
}

#endif
#endif
