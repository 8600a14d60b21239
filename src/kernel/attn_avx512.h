/* What the AVX-512 attention kernels for many queries share: a block of sixteen queries, softmax of a tile and the
 * fold. Lanes are queries. Private to this folder, x86-64 only. */
#ifndef SL_ATTN_AVX512_H
#define SL_ATTN_AVX512_H

#include "kernel/attn_few.h"
#include "kernel/avx512.h"

/* Accumulators of a register block, one key or dimension each: half of the 32 registers, and more than hide the
 * latency of two instructions a cycle. Each has a name, because gcc leaves an array of them in memory. */
enum { ACCUMULATORS = 16 };
#define EACH_ACCUMULATOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
/* Two blocks that see the whole tile go together, eight keys or dimensions each: what is broadcast serves both, so that
 * the loads do not take as long as the arithmetic, and the widened tile is read half as often. */
enum { PAIR_ACCUMULATORS = 8 };
#define EACH_PAIR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
/* gcc 12 without these: two register copies for every step, and spills (-fno-tree-coalesce-vars cures it too). */
#define KEEP(i) __asm__("" : "+v"(acc##i));
#define KEEP_PAIR(i) __asm__("" : "+v"(acc##i), "+v"(bcc##i));

/* One block's work; masked is a constant in most inlined copies. */
typedef struct block {
    const void *q;
    float *state;
    float *s;               /* [64][16] scores, then p */
    uint32_t *weight;       /* Q8_0: [32][16] pairs of P - 32768 of one group */
    bool masked;            /* by some of its queries some keys are not seen */
    __mmask16 vis[SL_TILE]; /* if masked: bit i: query i sees the key */
    __mmask16 seen;         /* if masked: bit i: query i sees any key */
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

AVX512_INLINE void softmax_cut(block *b, float softcap, const bool masked)
{
    if (softcap != 0.0f)
        maximum_of_scores(b, softcap, masked);
    else
        maximum_of_scores(b, 0.0f, masked);
    exp_and_sum(b);
    fold_m_l(b, masked);
}

AVX512_INLINE void softmax(block *b, float softcap)
{
    if (b->masked)
        softmax_cut(b, softcap, true);
    else
        softmax_cut(b, softcap, false);
}

/* ---- the tile's beginning ---- */

AVX512_INLINE void widen_f16(float *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        _mm512_store_ps(out + i, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)(in + 2 * i))));
}

/* Points b at block i; false if its queries see nothing of the tile. */
AVX512_INLINE bool block_start(block *b, const sl_tile_args *args, size_t i, size_t qblock_bytes)
{
    size_t left = args->n_queries - i * SL_LANES, n = left < SL_LANES ? left : SL_LANES;
    b->q = args->qblocks + i * qblock_bytes;
    b->next = i == 0 ? args->next : NULL;
    b->state = (float *)(void *)(args->states + i * args->state_stride);
    b->masked = false;
    if (!args->masks)
        return true;
    const uint64_t *masks = args->masks + i * SL_LANES;
    uint64_t all = UINT64_MAX, any = 0;
    for (size_t lane = 0; lane < n; lane++) {
        all &= masks[lane];
        any |= masks[lane];
    }
    if (any == 0 || all == UINT64_MAX)
        return any != 0;
    b->masked = true;
    __m512i low = _mm512_loadu_si512(masks), high = _mm512_loadu_si512(masks + 8);
    b->seen = (__mmask16)(_mm512_test_epi64_mask(low, low) | _mm512_test_epi64_mask(high, high) << 8);
    for (int t = 0; t < SL_TILE; t++) {
        const __m512i bit = _mm512_set1_epi64((long long)(1ull << t));
        b->vis[t] = (__mmask16)(_mm512_test_epi64_mask(low, bit) | _mm512_test_epi64_mask(high, bit) << 8);
    }
    return true;
}

#endif
