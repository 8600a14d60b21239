/* Attention for AVX2, FMA and F16C: the bits of attn_ref.c.
 * The tile is widened once per call; scores, softmax and outputs of each block of queries then run from the nearest
 * cache. Q8_0's are attn_blocks256.h's, few queries attn_few_avx2.c's. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/attn_blocks256.h"

/* ---- F16 ---- */

typedef struct f16_tile {
    size_t head_dim;
    float *k; /* [D][64] */
    float *v; /* [64][D] */
} f16_tile;

AVX2_INLINE void score_f16(const f16_tile *t, const block *b, const int nv)
{
    for (int key = 0; key < SL_TILE; key += ACCUMULATORS / nv) {
#define ZERO(i) __m256 acc##i = _mm256_setzero_ps();
#define STEP(i) acc##i = _mm256_fmadd_ps(_mm256_set1_ps(k[i / nv]), i % nv ? q1 : q0, acc##i);
#define STORE(i) _mm256_store_ps(b->s + (key + i / nv) * SL_LANES + i % nv * 8, acc##i);
        EACH_ACCUMULATOR(ZERO)
        const float *q = b->q, *k = t->k + key;
        if (b->next)
            sl_attn_fetch(b->next + (size_t)key * 4 * t->head_dim, (size_t)(ACCUMULATORS / nv) * 4 * t->head_dim);
        for (size_t d = 0; d < t->head_dim; d++, q += SL_LANES, k += SL_TILE) {
            const __m256 q0 = _mm256_load_ps(q), q1 = _mm256_load_ps(q + 8);
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
AVX2_INLINE __m256 add_visible(__m256 sum, __m256 p, float v, __m256 vis, const bool masked)
{
    __m256 next = _mm256_fmadd_ps(p, _mm256_set1_ps(v), sum);
    return masked ? _mm256_blendv_ps(sum, next, vis) : next;
}

AVX2_INLINE void output_f16(const f16_tile *t, const block *b, const int nv, const bool masked)
{
    for (size_t d = 0; d < t->head_dim; d += (size_t)(ACCUMULATORS / nv)) {
#define ZERO(i) __m256 acc##i = _mm256_setzero_ps();
#define STEP(i) acc##i = add_visible(acc##i, i % nv ? p1 : p0, v[i / nv], i % nv ? vis1 : vis0, masked);
#define FOLD(i) fold_o(b, i % nv, d + (size_t)(i / nv), acc##i, masked);
        EACH_ACCUMULATOR(ZERO)
        const float *v = t->v + d, *p = b->s, *vis = masked ? b->vis : b->s;
        for (int key = 0; key < SL_TILE; key++, v += t->head_dim, p += SL_LANES, vis += SL_LANES) {
            const __m256 p0 = _mm256_load_ps(p), p1 = _mm256_load_ps(p + 8);
            const __m256 vis0 = _mm256_load_ps(vis), vis1 = _mm256_load_ps(vis + 8);
            EACH_ACCUMULATOR(STEP)
            EACH_ACCUMULATOR(KEEP)
        }
        EACH_ACCUMULATOR(FOLD)
#undef ZERO
#undef STEP
#undef FOLD
    }
}

AVX2_INLINE void block_f16(const f16_tile *t, block *b, float softcap, const int nv, const bool masked)
{
    score_f16(t, b, nv);
    softmax(b, softcap, nv, masked);
    output_f16(t, b, nv, masked);
}

/* ---- the entries ---- */

AVX2 void sl_attn_tile_f16_avx2(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_AVX2_F16), n_queries = args->n_queries - few;
    const size_t head_dim = args->head_dim, n = SL_TILE * head_dim;
    assert(head_dim % 16 == 0 && head_dim <= SL_MAX_HEAD_DIM);
    if (few > 0)
        sl_attn_few_f16_avx2(args, n_queries);
    if (n_queries == 0)
        return;
    float *k = args->scratch, *s = k + 2 * n;
    const f16_tile t = {head_dim, k, k + n};
    widen_f16(t.k, args->tile, n);
    widen_f16(t.v, args->tile + 2 * n, n);
    block b = {.s = s, .vis = s + SL_TILE * SL_LANES};
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        cut seen = block_start(&b, args, i, sl_qblock_bytes(SL_KV_TYPE_F16, head_dim));
        if (seen == CUT_NONE)
            block_f16(&t, &b, args->softcap, 2, false);
        else if (seen == CUT_SOME)
            block_f16(&t, &b, args->softcap, 2, true);
    }
}

AVX2 void sl_attn_tile_q8_avx2(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_AVX2_Q8);
    if (few > 0)
        sl_attn_few_q8_avx2(args, args->n_queries - few);
    if (few < args->n_queries)
        tile_q8(args, args->n_queries - few);
}

#else
typedef int sl_attn_avx2_is_for_x86;
#endif
