/* Attention tiles over F16 storage for AVX-512: the bits of attn_ref.c.
 * Lanes are queries: a block of 16 is one vector, keys and values are broadcast from memory, so no sum ever crosses
 * lanes. The tile is widened once per call. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <assert.h>

#include "kernel/attn_avx512.h"

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

/* ---- two blocks ---- */

AVX512_INLINE void score_pair_f16(const f16_tile *t, const block *b0, const block *b1)
{
    for (int key = 0; key < SL_TILE; key += PAIR_ACCUMULATORS) {
#define ZERO(i) __m512 acc##i = _mm512_setzero_ps(), bcc##i = _mm512_setzero_ps();
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        __m512 both = _mm512_set1_ps(k[i]);                                                                            \
        acc##i = _mm512_fmadd_ps(lanes0, both, acc##i);                                                                \
        bcc##i = _mm512_fmadd_ps(lanes1, both, bcc##i);                                                                \
    }
#define STORE(i)                                                                                                       \
    _mm512_store_ps(b0->s + (key + i) * SL_LANES, acc##i);                                                             \
    _mm512_store_ps(b1->s + (key + i) * SL_LANES, bcc##i);
        EACH_PAIR(ZERO)
        const float *q0 = b0->q, *q1 = b1->q, *k = t->k + key;
        if (b0->next)
            sl_attn_fetch(b0->next + (size_t)key * 4 * t->head_dim, PAIR_ACCUMULATORS * 4 * t->head_dim);
        for (size_t d = 0; d < t->head_dim; d++, q0 += SL_LANES, q1 += SL_LANES, k += SL_TILE) {
            const __m512 lanes0 = _mm512_load_ps(q0), lanes1 = _mm512_load_ps(q1);
            EACH_PAIR(STEP)
            EACH_PAIR(KEEP_PAIR)
        }
        EACH_PAIR(STORE)
#undef ZERO
#undef STEP
#undef STORE
    }
}

AVX512_INLINE void output_pair_f16(const f16_tile *t, const block *b0, const block *b1)
{
    for (size_t d = 0; d < t->head_dim; d += PAIR_ACCUMULATORS) {
#define ZERO(i) __m512 acc##i = _mm512_setzero_ps(), bcc##i = _mm512_setzero_ps();
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        __m512 both = _mm512_set1_ps(v[i]);                                                                            \
        acc##i = _mm512_fmadd_ps(p0, both, acc##i);                                                                    \
        bcc##i = _mm512_fmadd_ps(p1, both, bcc##i);                                                                    \
    }
#define FOLD(i)                                                                                                        \
    fold_o(b0, d + i, acc##i, false);                                                                                  \
    fold_o(b1, d + i, bcc##i, false);
        EACH_PAIR(ZERO)
        const float *v = t->v + d;
        for (int key = 0; key < SL_TILE; key++, v += t->head_dim) {
            const __m512 p0 = _mm512_load_ps(b0->s + key * SL_LANES), p1 = _mm512_load_ps(b1->s + key * SL_LANES);
            EACH_PAIR(STEP)
            EACH_PAIR(KEEP_PAIR)
        }
        EACH_PAIR(FOLD)
#undef ZERO
#undef STEP
#undef FOLD
    }
}

/* ---- the entry ---- */

AVX512_INLINE void block_alone(const f16_tile *t, block *b, float softcap)
{
    score_f16(t, b);
    softmax(b, softcap);
    if (b->masked)
        output_f16(t, b, true);
    else
        output_f16(t, b, false);
}

AVX512_INLINE void block_pair(const f16_tile *t, block b[2], float softcap)
{
    score_pair_f16(t, b, b + 1);
    softmax_cut(b, softcap, false);
    softmax_cut(b + 1, softcap, false);
    output_pair_f16(t, b, b + 1);
}

AVX512 void sl_attn_tile_f16_avx512(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_AVX512_F16), n_queries = args->n_queries - few;
    const size_t head_dim = args->head_dim, n = SL_TILE * head_dim;
    assert(head_dim % 16 == 0 && head_dim <= SL_MAX_HEAD_DIM);
    if (few > 0)
        sl_attn_few_f16_avx512(args, n_queries);
    if (n_queries == 0)
        return;
    float *k = args->scratch;
    const f16_tile t = {head_dim, k, k + n};
    widen_f16(t.k, args->tile, n);
    widen_f16(t.v, args->tile + 2 * n, n);
    block b[2] = {{.s = k + 2 * n}, {.s = k + 2 * n + SL_TILE * SL_LANES}};
    size_t waiting = 0;
    for (size_t i = 0; i * SL_LANES < n_queries; i++) {
        block *now = b + waiting;
        if (!block_start(now, args, i, sl_qblock_bytes(SL_KV_TYPE_F16, head_dim)))
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

#else
typedef int sl_attn_f16_avx512_is_for_x86;
#endif
