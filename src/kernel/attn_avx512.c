/* Attention tiles over Q8_0 storage for AVX-512 with VNNI: the bits of attn_ref.c.
 * Lanes are queries: a block of 16 is one vector, keys and values are broadcast from memory, so no sum ever crosses
 * lanes. The tile is widened once per call. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <assert.h>
#include <string.h>

#include "kernel/attn_avx512.h"

typedef struct q8_tile {
    size_t head_dim;
    int16_t *k;     /* [D/32][64][32] */
    int16_t *v;     /* [D][64] */
    float *ks, *vs; /* [D/32][64] scales */
    float *vf;      /* [D/32][64] vs * (65535 / vmax), vmax over the whole tile */
    float vmax[SL_MAX_HEAD_DIM / SL_GROUP];
    int32_t *bias; /* [D] 32768 * sum of v: what P - 32768 leaves out */
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
#define STEP(i) acc##i = add_dot(acc##i, k + i * SL_GROUP, pairs);
#define STORE(i) add_score(s + i * SL_LANES, acc##i, ks[i], q_scale, g == 0);
            EACH_ACCUMULATOR(ZERO)
            if (b->next)
                sl_attn_fetch(b->next + (g * SL_TILE + (size_t)key) * share, ACCUMULATORS * share);
            const int16_t *q = (const int16_t *)b->q + g * SL_GROUP * SL_LANES;
            const int16_t *k = t->k + (g * SL_TILE + (size_t)key) * SL_GROUP;
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

/* P - 32768 of group g, two keys to a 32-bit lane. Adding 2^23 + 2^15 rounds to an integer, to even as ever, and leaves
 * it in the number's low bits; of P + 32768 the low sixteen are P - 32768 as a signed number. Returns vmax / 65535,
 * vmax over the keys that a query sees. */
AVX512_INLINE __m512 weights_q8(const q8_tile *t, const block *b, size_t g, const bool masked)
{
    const __m512 full = _mm512_set1_ps(65535.0f), round = _mm512_set1_ps(0x1.01p23f);
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
        __m512i low = _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(p), f0), round));
        __m512i high = _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(p + SL_LANES), f1), round));
        _mm512_store_si512(b->weight + key / 2 * SL_LANES,
                           _mm512_mask_blend_epi16(0xaaaaaaaau, low, _mm512_slli_epi32(high, 16)));
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
        const uint32_t *w = b->weight;
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

/* ---- two blocks ---- */

AVX512_INLINE void score_pair_q8(const q8_tile *t, const block *b0, const block *b1)
{
    const size_t head_dim = t->head_dim, share = sl_tile_bytes(SL_KV_TYPE_Q8_0, SL_GROUP) / SL_TILE;
    const float *qs0 = (const float *)(const void *)((const uint8_t *)b0->q + head_dim * SL_LANES * 2);
    const float *qs1 = (const float *)(const void *)((const uint8_t *)b1->q + head_dim * SL_LANES * 2);
    for (int key = 0; key < SL_TILE; key += PAIR_ACCUMULATORS)
        for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
#define ZERO(i) __m512i acc##i = _mm512_setzero_si512(), bcc##i = _mm512_setzero_si512();
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        __m512i both = pair_broadcast(k + i * SL_GROUP);                                                               \
        acc##i = _mm512_dpwssd_epi32(acc##i, pairs0, both);                                                            \
        bcc##i = _mm512_dpwssd_epi32(bcc##i, pairs1, both);                                                            \
    }
#define STORE(i)                                                                                                       \
    add_score(b0->s + (key + i) * SL_LANES, acc##i, ks[i], scale0, g == 0);                                            \
    add_score(b1->s + (key + i) * SL_LANES, bcc##i, ks[i], scale1, g == 0);
            EACH_PAIR(ZERO)
            if (b0->next)
                sl_attn_fetch(b0->next + (g * SL_TILE + (size_t)key) * share, PAIR_ACCUMULATORS * share);
            const int16_t *q0 = (const int16_t *)b0->q + g * SL_GROUP * SL_LANES;
            const int16_t *q1 = (const int16_t *)b1->q + g * SL_GROUP * SL_LANES;
            const int16_t *k = t->k + (g * SL_TILE + (size_t)key) * SL_GROUP;
            for (int e = 0; e < SL_GROUP; e += 2, q0 += 2 * SL_LANES, q1 += 2 * SL_LANES, k += 2) {
                const __m512i pairs0 = _mm512_load_si512(q0), pairs1 = _mm512_load_si512(q1);
                EACH_PAIR(STEP)
                EACH_PAIR(KEEP_PAIR)
            }
            const float *ks = t->ks + g * SL_TILE + key;
            const __m512 scale0 = _mm512_load_ps(qs0 + g * SL_LANES), scale1 = _mm512_load_ps(qs1 + g * SL_LANES);
            EACH_PAIR(STORE)
#undef ZERO
#undef STEP
#undef STORE
        }
}

AVX512_INLINE void output_pair_q8(const q8_tile *t, const block *b0, const block *b1)
{
    __m512 scale0 = _mm512_setzero_ps(), scale1 = scale0;
    for (size_t d = 0; d < t->head_dim; d += PAIR_ACCUMULATORS) {
        if (d % SL_GROUP == 0) {
            scale0 = weights_q8(t, b0, d / SL_GROUP, false);
            scale1 = weights_q8(t, b1, d / SL_GROUP, false);
        }
#define BIAS(i) __m512i acc##i = _mm512_set1_epi32(t->bias[d + i]), bcc##i = acc##i;
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        __m512i both = pair_broadcast(v + i * SL_TILE);                                                                \
        acc##i = _mm512_dpwssd_epi32(acc##i, pairs0, both);                                                            \
        bcc##i = _mm512_dpwssd_epi32(bcc##i, pairs1, both);                                                            \
    }
#define FOLD(i)                                                                                                        \
    fold_o(b0, d + i, _mm512_mul_ps(_mm512_cvtepi32_ps(acc##i), scale0), false);                                       \
    fold_o(b1, d + i, _mm512_mul_ps(_mm512_cvtepi32_ps(bcc##i), scale1), false);
        EACH_PAIR(BIAS)
        const int16_t *v = t->v + d * SL_TILE;
        const uint32_t *w0 = b0->weight, *w1 = b1->weight;
        for (int key = 0; key < SL_TILE; key += 2, v += 2, w0 += SL_LANES, w1 += SL_LANES) {
            const __m512i pairs0 = _mm512_load_si512(w0), pairs1 = _mm512_load_si512(w1);
            EACH_PAIR(STEP)
            EACH_PAIR(KEEP_PAIR)
        }
        EACH_PAIR(FOLD)
#undef BIAS
#undef STEP
#undef FOLD
    }
}

/* ---- the tile's beginning ---- */

AVX512 static void widen_q8(q8_tile *t, const uint8_t *tile)
{
    const size_t head_dim = t->head_dim, n_scales = head_dim / SL_GROUP * SL_TILE;
    const __m256i *k = (const __m256i *)(const void *)tile;
    const __m256i *v = (const __m256i *)(const void *)(tile + 68 * head_dim);
    for (size_t g = 0; g < head_dim / SL_GROUP; g++)
        for (size_t key = 0; key < SL_TILE; key++) {
            __m256i bytes = _mm256_load_si256(k + key * (head_dim / SL_GROUP) + g);
            _mm512_store_si512(t->k + (g * SL_TILE + key) * SL_GROUP, _mm512_cvtepi8_epi16(bytes));
        }
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

/* ---- the entry ---- */

AVX512_INLINE void block_alone(const q8_tile *t, block *b, float softcap)
{
    score_q8(t, b);
    softmax(b, softcap);
    if (b->masked)
        output_q8(t, b, true);
    else
        output_q8(t, b, false);
}

AVX512_INLINE void block_pair(const q8_tile *t, block b[2], float softcap)
{
    score_pair_q8(t, b, b + 1);
    softmax_cut(b, softcap, false);
    softmax_cut(b + 1, softcap, false);
    output_pair_q8(t, b, b + 1);
}

/* Widens the tile into the scratch and takes whole blocks. */
AVX512_INLINE void blocks_run(const sl_tile_args *args, size_t n_queries)
{
    const size_t head_dim = args->head_dim, n = SL_TILE * head_dim, n_scales = head_dim / SL_GROUP * SL_TILE;
    float *s = args->scratch, *ks = s + 2 * SL_TILE * SL_LANES;
    int16_t *k = (int16_t *)(void *)(ks + 3 * n_scales);
    q8_tile t = {.head_dim = head_dim, .k = k, .v = k + n, .ks = ks, .vs = ks + n_scales, .vf = ks + 2 * n_scales};
    t.bias = (int32_t *)(void *)(k + 2 * n);
    uint32_t *weight = (uint32_t *)t.bias + head_dim;
    widen_q8(&t, args->tile);
    block b[2] = {{.s = s, .weight = weight}, {.s = s + SL_TILE * SL_LANES, .weight = weight + SL_TILE / 2 * SL_LANES}};
    size_t waiting = 0;
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        block *now = b + waiting;
        if (!block_start(now, args, i, sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim)))
            continue;
        if (now->masked)
            block_alone(&t, now, args->softcap);
        else if (++waiting == 2) {
            block_pair(&t, b, args->softcap);
            waiting = 0;
        }
    }
    if (waiting)
        block_alone(&t, b, args->softcap);
}

AVX512 void sl_attn_tile_q8_avx512(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_AVX512_Q8), n_queries = args->n_queries - few;
    assert(args->head_dim % SL_GROUP == 0 && args->head_dim <= SL_MAX_HEAD_DIM);
    if (few >= SL_FOUR_LEAST)
        sl_attn_four_q8_avx512(args, n_queries);
    else if (few > 0)
        sl_attn_few_q8_avx512(args, n_queries);
    if (n_queries > 0)
        blocks_run(args, n_queries);
}

#else
typedef int sl_attn_avx512_is_for_x86;
#endif
