/* Attention tiles for AVX-512 with VNNI: the bits of attn_ref.c.
 * Lanes are queries: a block of 16 is one vector, keys and values are broadcast from memory by the instruction that
 * uses them, so no sum ever crosses lanes. The tile is widened once per call. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <assert.h>
#include <string.h>

#include "kernel/attn_few.h"
#include "kernel/avx512.h"

/* Accumulators of a register block, one key or dimension each: half of the 32 registers, and more than hide the
 * latency of two instructions a cycle. Each has a name, because gcc leaves an array of them in memory. */
enum { ACCUMULATORS = 16 };
#define EACH_ACCUMULATOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
/* gcc 12 without this: two register copies for every step, and spills (-fno-tree-coalesce-vars cures it too). */
#define KEEP(i) __asm__("" : "+v"(acc##i));

/* One block's work; masked is a constant in every inlined copy. */
typedef struct block {
    const void *q;
    float *state;
    float *s;               /* [64][16] scores, then p */
    __mmask16 vis[SL_TILE]; /* bit i: query i sees the key */
    __mmask16 seen;         /* bit i: query i sees any key */
    __m512 m, l;            /* of the tile */
    __m512 alpha, beta;     /* of the fold */
    const uint8_t *next;    /* the tile to call into the cache while this block is scored, or NULL */
} block;

/* ---- softmax of a tile and the fold ---- */

/* Softcap, mask and maximum. A hidden key's score becomes -inf, from which p = +0 follows. */
AVX512_INLINE void maximum_of_scores(block *b, float softcap, const bool masked)
{
    const __m512 nothing = _mm512_set1_ps(-INFINITY), cap = _mm512_set1_ps(softcap * SL_LOG2E);
    __m512 m = nothing;
    for (int t = 0; t < SL_TILE; t++) {
        float *at = b->s + t * SL_LANES;
        __m512 s = _mm512_load_ps(at);
        if (softcap != 0.0f)
            s = _mm512_mul_ps(cap, sl_avx512_tanh(s));
        if (masked)
            s = _mm512_mask_mov_ps(nothing, b->vis[t], s);
        if (masked || softcap != 0.0f)
            _mm512_store_ps(at, s);
        m = _mm512_max_ps(s, m);
    }
    b->m = _mm512_add_ps(m, _mm512_setzero_ps()); /* -0 becomes +0 */
}

AVX512_INLINE __m512 exp_in_place(float *at, __m512 m)
{
    __m512 p = sl_avx512_exp2(_mm512_sub_ps(_mm512_load_ps(at), m));
    _mm512_store_ps(at, p);
    return p;
}

AVX512_INLINE void exp_and_sum(block *b)
{
    __m512 sum[8];
    for (int t = 0; t < 8; t++) {
        float *at = b->s + t * SL_LANES;
        __m512 low = exp_in_place(at, b->m), high = exp_in_place(at + 8 * SL_LANES, b->m);
        for (int u = SL_LANES; u < SL_TILE; u += SL_LANES) {
            low = _mm512_add_ps(low, exp_in_place(at + u * SL_LANES, b->m));
            high = _mm512_add_ps(high, exp_in_place(at + (u + 8) * SL_LANES, b->m));
        }
        sum[t] = _mm512_add_ps(low, high);
    }
    for (int t = 0; t < 4; t++)
        sum[t] = _mm512_add_ps(sum[t], sum[t + 4]);
    b->l = _mm512_add_ps(_mm512_add_ps(sum[0], sum[2]), _mm512_add_ps(sum[1], sum[3]));
}

AVX512_INLINE void store_seen(const block *b, float *at, __m512 value, const bool masked)
{
    if (masked)
        _mm512_mask_store_ps(at, b->seen, value);
    else
        _mm512_store_ps(at, value);
}

/* m and l of the state; alpha and beta for its o. */
AVX512_INLINE void fold_m_l(block *b, const bool masked)
{
    float *m_at = b->state, *l_at = m_at + SL_LANES;
    __m512 m = _mm512_load_ps(m_at), m_new = _mm512_max_ps(b->m, m);
    b->alpha = sl_avx512_exp2(_mm512_sub_ps(m, m_new));
    b->beta = sl_avx512_exp2(_mm512_sub_ps(b->m, m_new));
    store_seen(b, l_at, _mm512_fmadd_ps(_mm512_load_ps(l_at), b->alpha, _mm512_mul_ps(b->l, b->beta)), masked);
    store_seen(b, m_at, m_new, masked);
}

AVX512_INLINE void fold_o(const block *b, size_t d, __m512 o, const bool masked)
{
    float *at = b->state + (2 + d) * SL_LANES;
    store_seen(b, at, _mm512_fmadd_ps(_mm512_load_ps(at), b->alpha, _mm512_mul_ps(o, b->beta)), masked);
}

AVX512_INLINE void softmax(block *b, float softcap, const bool masked)
{
    if (softcap != 0.0f)
        maximum_of_scores(b, softcap, masked);
    else
        maximum_of_scores(b, 0.0f, masked);
    exp_and_sum(b);
    fold_m_l(b, masked);
}

/* ---- F16 ---- */

typedef struct f16_tile {
    size_t head_dim;
    float *k; /* [D][64] */
    float *v; /* [64][D] */
} f16_tile;

AVX512_INLINE void score_f16(const f16_tile *t, const block *b)
{
    for (int key = 0; key < SL_TILE; key += ACCUMULATORS) {
#define ZERO(i) __m512 acc##i = _mm512_setzero_ps();
#define STEP(i) acc##i = _mm512_fmadd_ps(lanes, _mm512_set1_ps(k[i]), acc##i);
#define STORE(i) _mm512_store_ps(b->s + (key + i) * SL_LANES, acc##i);
        EACH_ACCUMULATOR(ZERO)
        const float *q = b->q, *k = t->k + key;
        if (b->next)
            sl_attn_fetch(b->next + (size_t)key * 4 * t->head_dim, ACCUMULATORS * 4 * t->head_dim);
        for (size_t d = 0; d < t->head_dim; d++, q += SL_LANES, k += SL_TILE) {
            const __m512 lanes = _mm512_load_ps(q);
            EACH_ACCUMULATOR(STEP)
            EACH_ACCUMULATOR(KEEP)
        }
        EACH_ACCUMULATOR(STORE)
#undef ZERO
#undef STEP
#undef STORE
    }
}

/* sum + p * v where the key is visible: an fma with p = 0 would turn a sum of -0 into +0. */
AVX512_INLINE __m512 add_visible(__m512 sum, __m512 p, float v, __mmask16 vis, const bool masked)
{
    return masked ? _mm512_mask3_fmadd_ps(p, _mm512_set1_ps(v), sum, vis) : _mm512_fmadd_ps(p, _mm512_set1_ps(v), sum);
}

AVX512_INLINE void output_f16(const f16_tile *t, const block *b, const bool masked)
{
    for (size_t d = 0; d < t->head_dim; d += ACCUMULATORS) {
#define ZERO(i) __m512 acc##i = _mm512_setzero_ps();
#define STEP(i) acc##i = add_visible(acc##i, p, v[i], vis, masked);
#define FOLD(i) fold_o(b, d + i, acc##i, masked);
        EACH_ACCUMULATOR(ZERO)
        const float *v = t->v + d;
        for (int key = 0; key < SL_TILE; key++, v += t->head_dim) {
            const __m512 p = _mm512_load_ps(b->s + key * SL_LANES);
            const __mmask16 vis = masked ? b->vis[key] : 0xffff;
            EACH_ACCUMULATOR(STEP)
            EACH_ACCUMULATOR(KEEP)
        }
        EACH_ACCUMULATOR(FOLD)
#undef ZERO
#undef STEP
#undef FOLD
    }
}

AVX512_INLINE void block_f16(const f16_tile *t, block *b, float softcap, const bool masked)
{
    score_f16(t, b);
    softmax(b, softcap, masked);
    output_f16(t, b, masked);
}

AVX512 static void widen_f16(float *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        _mm512_store_ps(out + i, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)(in + 2 * i))));
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

AVX512_INLINE __m512i pair_broadcast(const int16_t *pair)
{
    int32_t bits;
    memcpy(&bits, pair, sizeof bits);
    return _mm512_set1_epi32(bits);
}

/* sum + the products of a broadcast pair with sixteen pairs */
AVX512_INLINE __m512i add_dot(__m512i sum, const int16_t *pair, __m512i pairs)
{
    return _mm512_dpwssd_epi32(sum, pairs, pair_broadcast(pair));
}

/* s = fma(dot, ks * qs, s) */
AVX512_INLINE void add_score(float *at, __m512i dot, float ks, __m512 qs, bool first)
{
    __m512 before = first ? _mm512_setzero_ps() : _mm512_load_ps(at);
    __m512 scale = _mm512_mul_ps(_mm512_set1_ps(ks), qs);
    _mm512_store_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, before));
}

AVX512_INLINE void score_q8(const q8_tile *t, const block *b)
{
    /* of a tile, the bytes to one key's group of K */
    const size_t head_dim = t->head_dim, share = sl_tile_bytes(SL_KV_TYPE_Q8_0, SL_GROUP) / SL_TILE;
    const float *qs = (const float *)(const void *)((const uint8_t *)b->q + head_dim * SL_LANES * 2);
    for (int key = 0; key < SL_TILE; key += ACCUMULATORS)
        for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
#define ZERO(i) __m512i acc##i = _mm512_setzero_si512();
#define STEP(i) acc##i = add_dot(acc##i, k + i * head_dim, pairs);
#define STORE(i) add_score(s + i * SL_LANES, acc##i, ks[i], q_scale, g == 0);
            EACH_ACCUMULATOR(ZERO)
            if (b->next)
                sl_attn_fetch(b->next + (g * SL_TILE + (size_t)key) * share, ACCUMULATORS * share);
            const int16_t *q = (const int16_t *)b->q + g * SL_GROUP * SL_LANES;
            const int16_t *k = t->k + (size_t)key * head_dim + g * SL_GROUP;
            for (int e = 0; e < SL_GROUP; e += 2, q += 2 * SL_LANES, k += 2) {
                const __m512i pairs = _mm512_load_si512(q);
                EACH_ACCUMULATOR(STEP)
                EACH_ACCUMULATOR(KEEP)
            }
            float *s = b->s + key * SL_LANES;
            const float *ks = t->ks + g * SL_TILE + key;
            const __m512 q_scale = _mm512_load_ps(qs + g * SL_LANES);
            EACH_ACCUMULATOR(STORE)
#undef ZERO
#undef STEP
#undef STORE
        }
}

/* P - 32768 of group g, two keys to a 32-bit lane; returns vmax / 65535, vmax over the keys that a query sees. */
AVX512_INLINE __m512 weights_q8(const q8_tile *t, const block *b, size_t g, const bool masked)
{
    const __m512 full = _mm512_set1_ps(65535.0f);
    const float *vs = t->vs + g * SL_TILE, *vf = t->vf + g * SL_TILE;
    __m512 vmax = _mm512_set1_ps(t->vmax[g]);
    if (masked) {
        vmax = _mm512_setzero_ps();
        for (int key = 0; key < SL_TILE; key++)
            vmax = _mm512_mask_max_ps(vmax, b->vis[key], _mm512_set1_ps(vs[key]), vmax);
    }
    __mmask16 positive = _mm512_cmp_ps_mask(vmax, _mm512_setzero_ps(), _CMP_GT_OQ);
    __m512 inverse = _mm512_maskz_div_ps(positive, full, vmax);
    for (int key = 0; key < SL_TILE; key += 2) {
        __m512 f0 = masked ? _mm512_mul_ps(_mm512_set1_ps(vs[key]), inverse) : _mm512_set1_ps(vf[key]);
        __m512 f1 = masked ? _mm512_mul_ps(_mm512_set1_ps(vs[key + 1]), inverse) : _mm512_set1_ps(vf[key + 1]);
        const float *p = b->s + key * SL_LANES;
        __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(p), f0));
        __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(p + SL_LANES), f1));
        __m512i pair = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
        /* flipping bit 15 of a 16-bit P is P - 32768 as a signed number */
        _mm512_store_si512(t->weight + key / 2 * SL_LANES,
                           _mm512_xor_si512(pair, _mm512_set1_epi32((int32_t)0x80008000u)));
    }
    return _mm512_div_ps(vmax, full);
}

AVX512_INLINE void output_q8(const q8_tile *t, const block *b, const bool masked)
{
    __m512 scale = _mm512_setzero_ps();
    for (size_t d = 0; d < t->head_dim; d += ACCUMULATORS) {
        if (d % SL_GROUP == 0)
            scale = weights_q8(t, b, d / SL_GROUP, masked);
#define BIAS(i) __m512i acc##i = _mm512_set1_epi32(t->bias[d + i]);
#define STEP(i) acc##i = add_dot(acc##i, v + i * SL_TILE, pairs);
#define FOLD(i) fold_o(b, d + i, _mm512_mul_ps(_mm512_cvtepi32_ps(acc##i), scale), masked);
        EACH_ACCUMULATOR(BIAS)
        const int16_t *v = t->v + d * SL_TILE;
        const uint32_t *w = t->weight;
        for (int key = 0; key < SL_TILE; key += 2, v += 2, w += SL_LANES) {
            const __m512i pairs = _mm512_load_si512(w);
            EACH_ACCUMULATOR(STEP)
            EACH_ACCUMULATOR(KEEP)
        }
        EACH_ACCUMULATOR(FOLD)
#undef BIAS
#undef STEP
#undef FOLD
    }
}

AVX512_INLINE void block_q8(const q8_tile *t, block *b, float softcap, const bool masked)
{
    score_q8(t, b);
    softmax(b, softcap, masked);
    output_q8(t, b, masked);
}

AVX512 static void widen_q8(q8_tile *t, const uint8_t *tile)
{
    const size_t head_dim = t->head_dim, n_scales = head_dim / SL_GROUP * SL_TILE;
    const __m256i *k = (const __m256i *)(const void *)tile;
    const __m256i *v = (const __m256i *)(const void *)(tile + 68 * head_dim);
    for (size_t i = 0; i < 2 * head_dim; i++)
        _mm512_store_si512(t->k + 32 * i, _mm512_cvtepi8_epi16(_mm256_load_si256(k + i)));
    for (size_t d = 0; d < head_dim; d++) {
        __m512i low = _mm512_cvtepi8_epi16(_mm256_load_si256(v + 2 * d));
        __m512i high = _mm512_cvtepi8_epi16(_mm256_load_si256(v + 2 * d + 1));
        _mm512_store_si512(t->v + d * SL_TILE, low);
        _mm512_store_si512(t->v + d * SL_TILE + 32, high);
        __m512i sum = _mm512_madd_epi16(_mm512_add_epi16(low, high), _mm512_set1_epi16(1));
        t->bias[d] = _mm512_reduce_add_epi32(sum) * 32768;
    }
    widen_f16(t->ks, tile + 64 * head_dim, n_scales);
    widen_f16(t->vs, tile + 132 * head_dim, n_scales);
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        const float *vs = t->vs + g * SL_TILE;
        float vmax = 0.0f;
        for (size_t i = 0; i < SL_TILE; i++)
            vmax = vs[i] > vmax ? vs[i] : vmax;
        float inverse = vmax > 0.0f ? 65535.0f / vmax : 0.0f;
        t->vmax[g] = vmax;
        for (size_t i = 0; i < SL_TILE; i++)
            t->vf[g * SL_TILE + i] = vs[i] * inverse;
    }
}

/* ---- the entries ---- */

typedef enum cut { CUT_NONE, CUT_SOME, CUT_ALL } cut;

/* Points b at block i, and says how much of the tile its queries see: everything, a part, nothing (no work). */
AVX512_INLINE cut block_start(block *b, const sl_tile_args *args, size_t i, size_t qblock_bytes)
{
    size_t left = args->n_queries - i * SL_LANES, n = left < SL_LANES ? left : SL_LANES;
    b->q = args->qblocks + i * qblock_bytes;
    b->next = i == 0 ? args->next : NULL;
    b->state = (float *)(void *)(args->states + i * args->state_stride);
    if (!args->masks)
        return CUT_NONE;
    const uint64_t *masks = args->masks + i * SL_LANES;
    uint64_t all = UINT64_MAX, any = 0;
    for (size_t lane = 0; lane < n; lane++) {
        all &= masks[lane];
        any |= masks[lane];
    }
    if (any == 0)
        return CUT_ALL;
    if (all == UINT64_MAX)
        return CUT_NONE;
    __m512i low = _mm512_loadu_si512(masks), high = _mm512_loadu_si512(masks + 8);
    b->seen = (__mmask16)(_mm512_test_epi64_mask(low, low) | _mm512_test_epi64_mask(high, high) << 8);
    for (int t = 0; t < SL_TILE; t++) {
        const __m512i bit = _mm512_set1_epi64((long long)(1ull << t));
        b->vis[t] = (__mmask16)(_mm512_test_epi64_mask(low, bit) | _mm512_test_epi64_mask(high, bit) << 8);
    }
    return CUT_SOME;
}

AVX512 void sl_attn_tile_f16_avx512(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_AVX512_F16), n_queries = args->n_queries - few;
    const size_t head_dim = args->head_dim, n = SL_TILE * head_dim;
    assert(head_dim % 16 == 0 && head_dim <= SL_MAX_HEAD_DIM);
    if (few > 0)
        sl_attn_few_f16_avx2(args, n_queries);
    if (n_queries == 0)
        return;
    float *k = args->scratch;
    const f16_tile t = {head_dim, k, k + n};
    widen_f16(t.k, args->tile, n);
    widen_f16(t.v, args->tile + 2 * n, n);
    block b = {.s = k + 2 * n};
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        cut seen = block_start(&b, args, i, sl_qblock_bytes(SL_KV_TYPE_F16, head_dim));
        if (seen == CUT_NONE)
            block_f16(&t, &b, args->softcap, false);
        else if (seen == CUT_SOME)
            block_f16(&t, &b, args->softcap, true);
    }
}

AVX512 void sl_attn_tile_q8_avx512(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_AVX512_Q8), n_queries = args->n_queries - few;
    const size_t head_dim = args->head_dim, n = SL_TILE * head_dim, n_scales = head_dim / SL_GROUP * SL_TILE;
    assert(head_dim % SL_GROUP == 0 && head_dim <= SL_MAX_HEAD_DIM);
    if (few > 0)
        sl_attn_few_q8_avx512(args, n_queries);
    if (n_queries == 0)
        return;
    float *s = args->scratch, *ks = s + SL_TILE * SL_LANES;
    int16_t *k = (int16_t *)(void *)(ks + 3 * n_scales);
    q8_tile t = {.head_dim = head_dim, .k = k, .v = k + n, .ks = ks, .vs = ks + n_scales, .vf = ks + 2 * n_scales};
    t.bias = (int32_t *)(void *)(k + 2 * n);
    t.weight = (uint32_t *)t.bias + head_dim;
    widen_q8(&t, args->tile);
    block b = {.s = s};
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        cut seen = block_start(&b, args, i, sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim));
        if (seen == CUT_NONE)
            block_q8(&t, &b, args->softcap, false);
        else if (seen == CUT_SOME)
            block_q8(&t, &b, args->softcap, true);
    }
}

#else
typedef int sl_attn_avx512_is_for_x86;
#endif
