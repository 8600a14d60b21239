/* Attention for AVX2, FMA and F16C: the bits of attn_ref.c.
 * The tile is widened once per call; scores, softmax and outputs of each block of queries then run from the nearest
 * cache. Q8_0's are attn_blocks256.h's, few queries attn_few_avx2.c's. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/attn_blocks256.h"

/* ---- F16 ---- */

/* Accumulators of a register block: 8 leave room for queries and broadcasts in 16 registers and hide the latency of two
 * fma a cycle. */
enum { ACCUMULATORS = 8 };
#define EACH_ACCUMULATOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

typedef struct f16_tile {
    size_t head_dim;
    float *k; /* [D][64] */
    float *v; /* [64][D] */
} f16_tile;

/* Vectors of a block, keys (or dimensions) of a register block. */
enum { NV = 2, NK = ACCUMULATORS / NV };

AVX2_INLINE void score_f16(const f16_tile *t, const block *b, const bool masked)
{
    for (int key = 0; key < SL_TILE; key += NK) {
#define ZERO(i) __m256 acc##i = _mm256_setzero_ps();
#define STEP(i) acc##i = _mm256_fmadd_ps(_mm256_set1_ps(k[i / NV]), i % NV ? q1 : q0, acc##i);
#define STORE(i) _mm256_store_ps(b->s + (key + i / NV) * SL_LANES + i % NV * 8, acc##i);
        EACH_ACCUMULATOR(ZERO)
        const float *q = b->q, *k = t->k + key;
        if (b->next)
            sl_attn_fetch(b->next + (size_t)key * 4 * t->head_dim, NK * 4 * t->head_dim);
        if (masked && !(b->any >> key & ((1u << NK) - 1)))
            continue; /* the mask gives them their scores */
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

/* Where the keys from `key` on end that every query sees. */
static inline int run_end(uint64_t all, int key)
{
    uint64_t others = ~(all >> key);
    return others ? key + __builtin_ctzll(others) : SL_TILE;
}

/* Keys that no query sees are passed over. Where some do, the others' sums are kept: an fma with p = 0 would turn a sum
 * of -0 into +0. */
AVX2_INLINE void output_f16(const f16_tile *t, const block *b, const bool masked)
{
    for (size_t d = 0; d < t->head_dim; d += NK) {
#define ZERO(i) __m256 acc##i = _mm256_setzero_ps();
#define NEXT(i) _mm256_fmadd_ps(i % NV ? p1 : p0, _mm256_set1_ps(v[i / NV]), acc##i)
#define STEP(i) acc##i = NEXT(i);
#define STEP_SOME(i) acc##i = _mm256_blendv_ps(acc##i, NEXT(i), i % NV ? vis1 : vis0);
#define FOLD(i) fold_o(b, i % NV, d + (size_t)(i / NV), acc##i, masked);
        EACH_ACCUMULATOR(ZERO)
        for (int key = 0; key < SL_TILE && (!masked || b->any >> key); key++) {
            const int end = masked ? run_end(b->all, key) : SL_TILE;
            const float *v = t->v + d + (size_t)key * t->head_dim, *p = b->s + key * SL_LANES;
            for (; key < end; key++, v += t->head_dim, p += SL_LANES) {
                const __m256 p0 = _mm256_load_ps(p), p1 = _mm256_load_ps(p + 8);
                EACH_ACCUMULATOR(STEP)
                EACH_ACCUMULATOR(KEEP)
            }
            if (masked && key < SL_TILE && b->any >> key & 1) {
                const float *vis = b->vis + key * SL_LANES;
                const __m256 p0 = _mm256_load_ps(p), p1 = _mm256_load_ps(p + 8);
                const __m256 vis0 = _mm256_load_ps(vis), vis1 = _mm256_load_ps(vis + 8);
                EACH_ACCUMULATOR(STEP_SOME)
            }
        }
        EACH_ACCUMULATOR(FOLD)
#undef ZERO
#undef NEXT
#undef STEP
#undef STEP_SOME
#undef FOLD
    }
}

AVX2_INLINE void block_f16(const f16_tile *t, block *b, float softcap, const bool masked)
{
    score_f16(t, b, masked);
    softmax(b, softcap, NV, masked);
    output_f16(t, b, masked);
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
            block_f16(&t, &b, args->softcap, false);
        else if (seen == CUT_SOME)
            block_f16(&t, &b, args->softcap, true);
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
