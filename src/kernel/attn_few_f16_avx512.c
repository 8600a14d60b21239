/* F16 attention tiles against few queries for AVX-512: the bits of attn_ref.c.
 * Lanes are keys (scores, softmax) or dimensions (outputs). The tile is read as it lies and widened in registers, for
 * one, two or four queries at once: `nq`, a constant in every inlined copy. A query that sees only a part of the tile
 * goes alone. */
#include "kernel/attn_few.h"

#if defined(__x86_64__)

#include "kernel/attn_few_avx512.h"

enum { TOGETHER = 4, VECTORS = 4 /* of keys in a tile; of dimensions at a time */ };

typedef struct few_query {
    _Alignas(64) float p[SL_TILE];
    float o[SL_MAX_HEAD_DIM]; /* of the tile, times beta */
    few_softmax soft;
    const float *q; /* dimension d at d * SL_LANES */
} few_query;

/* Scores: a chain over the dimensions for each of 64 keys. */
AVX512_INLINE void scores(few_query *f, const sl_tile_args *args, const int nq)
{
    const uint8_t *k = args->tile;
    __m512 s[TOGETHER][VECTORS];
    for (int i = 0; i < nq; i++)
        for (int v = 0; v < VECTORS; v++)
            s[i][v] = _mm512_setzero_ps();
    for (size_t d = 0; d < args->head_dim; d++, k += 2 * SL_TILE) {
        sl_attn_fetch(args->next + d * 2 * SL_TILE, 2 * SL_TILE);
        const __m512 keys[VECTORS] = {few_halves(k), few_halves(k + 32), few_halves(k + 64), few_halves(k + 96)};
        for (int i = 0; i < nq; i++) {
            const __m512 q = _mm512_set1_ps(f[i].q[d * SL_LANES]);
            for (int v = 0; v < VECTORS; v++)
                s[i][v] = _mm512_fmadd_ps(keys[v], q, s[i][v]);
        }
    }
    for (int i = 0; i < nq; i++)
        for (int v = 0; v < VECTORS; v++)
            f[i].soft.s[v] = s[i][v];
}

/* Outputs of n vectors of dimensions from d on: a chain over the keys that are visible. */
AVX512_INLINE void outputs(few_query *f, const sl_tile_args *args, size_t d, const int nq, const int n,
                           const bool masked)
{
    const uint8_t *v = args->tile + (64 * args->head_dim + d) * 2;
    const uint8_t *next = args->next + (64 * args->head_dim + d) * 2;
    const size_t row_bytes = 2 * args->head_dim;
    __m512 o[TOGETHER][VECTORS];
    for (int i = 0; i < nq; i++)
        for (int u = 0; u < n; u++)
            o[i][u] = _mm512_setzero_ps();
    for (size_t key = 0; key < SL_TILE; key++, v += row_bytes, next += row_bytes) {
        sl_attn_fetch(next, 32 * (size_t)n);
        if (masked && !(f->soft.mask >> key & 1))
            continue; /* an fma with p = 0 would turn a sum of -0 into +0 */
        for (int u = 0; u < n; u++) {
            const __m512 values = few_halves(v + 32 * u);
            for (int i = 0; i < nq; i++)
                o[i][u] = _mm512_fmadd_ps(_mm512_set1_ps(f[i].p[key]), values, o[i][u]);
        }
    }
    for (int i = 0; i < nq; i++)
        for (int u = 0; u < n; u++)
            _mm512_store_ps(f[i].o + d + 16 * u, _mm512_mul_ps(o[i][u], _mm512_set1_ps(f[i].soft.beta)));
}

/* o of neighbouring lanes. */
AVX512_INLINE void fold_o(const few_query *f, size_t head_dim, const int nq)
{
    float *at = f->soft.state + 2 * SL_LANES;
    if (nq == TOGETHER) {
        const __m128 alpha = _mm_setr_ps(f[0].soft.alpha, f[1].soft.alpha, f[2].soft.alpha, f[3].soft.alpha);
        for (size_t d = 0; d < head_dim; d += 4, at += 4 * SL_LANES) {
            __m128 o0 = _mm_load_ps(f[0].o + d), o1 = _mm_load_ps(f[1].o + d);
            __m128 o2 = _mm_load_ps(f[2].o + d), o3 = _mm_load_ps(f[3].o + d);
            _MM_TRANSPOSE4_PS(o0, o1, o2, o3);
            const __m128 o[4] = {o0, o1, o2, o3};
            for (size_t i = 0; i < 4; i++)
                _mm_storeu_ps(at + i * SL_LANES, _mm_fmadd_ps(_mm_loadu_ps(at + i * SL_LANES), alpha, o[i]));
        }
        return;
    }
    for (size_t d = 0; d < head_dim; d++, at += SL_LANES)
        for (int i = 0; i < nq; i++)
            at[i] = fmaf(at[i], f[i].soft.alpha, f[i].o[d]);
}

/* nq queries of neighbouring lanes. */
AVX512_INLINE void queries(few_query *f, const sl_tile_args *args, const int nq, const bool masked)
{
    scores(f, args, nq);
    for (int i = 0; i < nq; i++) {
        if (args->softcap != 0.0f)
            few_softmax_run(&f[i].soft, args->softcap);
        else
            few_softmax_run(&f[i].soft, 0.0f);
        for (int v = 0; v < VECTORS; v++)
            _mm512_store_ps(f[i].p + 16 * v, f[i].soft.s[v]);
    }
    size_t d = 0;
    for (; d + 16 * VECTORS <= args->head_dim; d += 16 * VECTORS)
        outputs(f, args, d, nq, VECTORS, masked);
    for (; d < args->head_dim; d += 16)
        outputs(f, args, d, nq, 1, masked);
    fold_o(f, args->head_dim, nq);
}

AVX512 void sl_attn_few_f16_avx512(const sl_tile_args *call, size_t first)
{
    const float *block =
        (const float *)(const void *)(call->qblocks +
                                      first / SL_LANES * sl_qblock_bytes(SL_KV_TYPE_F16, call->head_dim));
    float *state = (float *)(void *)(call->states + first / SL_LANES * call->state_stride);
    sl_tile_args args = *call;
    few_query f[TOGETHER];
    args.next = call->next ? call->next : call->tile;
    for (size_t lane = 0, n = args.n_queries - first, taken; lane < n; lane += taken) {
        size_t left = n - lane;
        uint64_t all = UINT64_MAX;
        taken = left > 2 ? TOGETHER : left; /* perhaps a lane without a query: no harm in computing it */
        for (size_t i = 0; i < taken; i++) {
            f[i].q = block + lane + i;
            f[i].soft.state = state + lane + i;
            f[i].soft.mask = args.masks && i < left ? args.masks[first + lane + i] : UINT64_MAX;
            all &= f[i].soft.mask;
        }
        if (taken == 1 || all != UINT64_MAX) {
            taken = 1;
            if (f->soft.mask == 0)
                continue;
            if (f->soft.mask == UINT64_MAX)
                queries(f, &args, 1, false);
            else
                queries(f, &args, 1, true);
        } else if (taken == 2)
            queries(f, &args, 2, false);
        else
            queries(f, &args, TOGETHER, false);
        args.next = args.tile; /* the next one is on its way */
    }
}

#else
typedef int sl_attn_few_f16_avx512_is_for_x86;
#endif
