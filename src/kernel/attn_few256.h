/* Attention tiles against few queries with 256-bit vectors: the bodies that AVX2 and AVX-VNNI share.
 * Lanes are keys (scores, softmax, Q8_0's outputs) or dimensions (F16's outputs), so that one query fills the vectors.
 * The tile is read as it lies and widened in registers, for one query to four at once: `nq`, a constant in every
 * inlined copy. A query that sees only a part of the tile goes alone. */
#ifndef SL_ATTN_FEW256_H
#define SL_ATTN_FEW256_H

#include "kernel/attn_few.h"

#if defined(__x86_64__)

#include "kernel/attn_sums256.h"

/* Queries that share what is widened, at most. */
enum { TOGETHER = 4 };

/* One query, out of its block. */
typedef struct few_query {
    _Alignas(32) float s[SL_TILE]; /* scores, then p */
    float o[SL_MAX_HEAD_DIM];      /* of the tile, times beta */
    int16_t q8[SL_MAX_HEAD_DIM];   /* Q8_0: each group's even dimensions, then the odd ones */
    int16_t weight[SL_TILE];       /* P - 32768 of one group: even keys of 0..31, odd ones, then of 32..63 */
    /* Q8_0: of each group, 65535 / vmax (or 0) and vmax / 65535 */
    float inverse[SL_MAX_HEAD_DIM / SL_GROUP], unit[SL_MAX_HEAD_DIM / SL_GROUP];
    const float *qs;               /* Q8_0: a group's scale at g * SL_LANES */
    const float *qf;               /* F16: dimension d at d * SL_LANES */
    float *state;                  /* at its lane */
    uint64_t mask;
    float m, l, alpha, beta;
} few_query;

BODY __m256 halves_8(const uint8_t *in)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)in));
}

/* ---- softmax and the fold, one query ---- */

BODY __m256 visible_8(uint64_t mask, int key)
{
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i eight = _mm256_set1_epi32((int)(mask >> key & 0xff));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(eight, bits), bits));
}

BODY float max_of_lanes(__m256 x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

/* Softcap, mask and maximum. A hidden key's score becomes -inf, from which p = +0 follows. */
BODY void maximum_of_scores(few_query *f, float softcap, const bool masked)
{
    const __m256 nothing = _mm256_set1_ps(-INFINITY), cap = _mm256_set1_ps(softcap * SL_LOG2E);
    __m256 m = nothing;
    for (int key = 0; key < SL_TILE; key += 8) {
        __m256 s = _mm256_load_ps(f->s + key);
        if (softcap != 0.0f)
            s = _mm256_mul_ps(cap, sl_avx2_tanh(s));
        if (masked)
            s = _mm256_blendv_ps(nothing, s, visible_8(f->mask, key));
        if (masked || softcap != 0.0f)
            _mm256_store_ps(f->s + key, s);
        m = _mm256_max_ps(s, m); /* passes over a NaN */
    }
    f->m = max_of_lanes(m) + 0.0f; /* -0 becomes +0 */
}

BODY void exp_and_sum(few_query *f)
{
    const __m256 m = _mm256_set1_ps(f->m);
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps(); /* lanes 0..7 and 8..15; +0 + p is p */
    for (int key = 0; key < SL_TILE; key += SL_LANES) {
        __m256 p0 = sl_avx2_exp2(_mm256_sub_ps(_mm256_load_ps(f->s + key), m));
        __m256 p1 = sl_avx2_exp2(_mm256_sub_ps(_mm256_load_ps(f->s + key + 8), m));
        _mm256_store_ps(f->s + key, p0);
        _mm256_store_ps(f->s + key + 8, p1);
        low = _mm256_add_ps(low, p0);
        high = _mm256_add_ps(high, p1);
    }
    __m256 eight = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    f->l = _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

/* m and l of the state; alpha and beta for its o. */
BODY void fold_m_l(few_query *f)
{
    float m = f->state[0], m_new = f->m > m ? f->m : m;
    __m256 both = sl_avx2_exp2(_mm256_sub_ps(_mm256_setr_ps(m, f->m, 0, 0, 0, 0, 0, 0), _mm256_set1_ps(m_new)));
    f->alpha = _mm256_cvtss_f32(both);
    f->beta = _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(both)));
    f->state[0] = m_new;
    f->state[SL_LANES] = fmaf(f->state[SL_LANES], f->alpha, f->l * f->beta);
}

/* Of nq queries side by side: each step waits long for its sum or maximum of lanes. */
BODY void softmax(few_query *f, float softcap, const int nq, const bool masked)
{
    for (int j = 0; j < nq; j++)
        if (softcap != 0.0f)
            maximum_of_scores(f + j, softcap, masked);
        else
            maximum_of_scores(f + j, 0.0f, masked);
    for (int j = 0; j < nq; j++)
        exp_and_sum(f + j);
    for (int j = 0; j < nq; j++)
        fold_m_l(f + j);
}

BODY void fold_o(const few_query *f, size_t head_dim)
{
    float *at = f->state + 2 * SL_LANES;
    for (size_t d = 0; d < head_dim; d += 8, at += 8 * SL_LANES)
        for (size_t i = 0; i < 8; i++) /* unrolled by the compiler */
            at[i * SL_LANES] = fmaf(at[i * SL_LANES], f->alpha, f->o[d + i]);
}

/* Ends what the compiler may mix: gcc 12 would compute all eight products before adding two, and spill, or keep one
 * accumulator of a loop in memory. */
#define KEEP(x) __asm__ volatile("" : "+x"(x))

/* ---- F16 ---- */

/* Accumulators enough to hide the latency of two fma a cycle; i belongs to vector i / nq and query i % nq. Each has a
 * name, because gcc leaves an array of them in memory. */
#define EACH_ACCUMULATOR(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define ZERO(i) __m256 acc##i = _mm256_setzero_ps();
#if defined(__clang__) /* keeps them in registers, and does worse when told to */
#define HOLD(i)
#else
#define HOLD(i)                                                                                                        \
    if (i < nv * nq)                                                                                                   \
        KEEP(acc##i);
#endif

/* Vectors of keys or dimensions that nq queries take at a time: twelve accumulators for three queries, which clang 14
 * would spill. */
BODY int vectors_f16(const int nq)
{
#if defined(__clang__)
    return 8 / nq;
#else
    return nq == 3 ? 4 : 8 / nq;
#endif
}

BODY void scores_f16(few_query *f, const sl_tile_args *args, const int nq)
{
    const int nv = vectors_f16(nq);
    for (int key = 0; key < SL_TILE; key += 8 * nv) {
#define STEP(i)                                                                                                        \
    if (i < nv * nq)                                                                                                   \
        acc##i = _mm256_fmadd_ps(halves_8(k + 16 * (i / nq)), _mm256_broadcast_ss(f[i % nq].qf + d * SL_LANES), acc##i);
#define STORE(i)                                                                                                       \
    if (i < nv * nq)                                                                                                   \
        _mm256_store_ps(f[i % nq].s + key + 8 * (i / nq), acc##i);
        EACH_ACCUMULATOR(ZERO)
        const uint8_t *k = args->tile + 2 * key, *next = args->next + 2 * key;
        for (size_t d = 0; d < args->head_dim; d++, k += 2 * SL_TILE, next += 2 * SL_TILE) {
            EACH_ACCUMULATOR(STEP)
            EACH_ACCUMULATOR(HOLD)
            sl_attn_fetch(next, (size_t)(16 * nv));
        }
        EACH_ACCUMULATOR(STORE)
#undef STEP
#undef STORE
    }
}

/* Dimensions [d, d + 8 * vectors_f16(nq)). masked: of the one query, whose sum passes over a hidden key, because an fma
 * with p = 0 would turn a sum of -0 into +0. */
BODY void output_dims_f16(few_query *f, const sl_tile_args *args, size_t d, const int nq, const bool masked)
{
    const int nv = vectors_f16(nq);
#define STEP(i)                                                                                                        \
    if (i < nv * nq)                                                                                                   \
        acc##i = _mm256_fmadd_ps(_mm256_broadcast_ss(f[i % nq].s + key), halves_8(v + 16 * (i / nq)), acc##i);
#define STORE(i)                                                                                                       \
    if (i < nv * nq)                                                                                                   \
        _mm256_store_ps(f[i % nq].o + d + 8 * (i / nq), _mm256_mul_ps(acc##i, _mm256_set1_ps(f[i % nq].beta)));
    EACH_ACCUMULATOR(ZERO)
    const size_t v_off = 128 * args->head_dim + 2 * d;
    const uint8_t *v = args->tile + v_off, *next = args->next + v_off;
    for (int key = 0; key < SL_TILE; key++, v += 2 * args->head_dim, next += 2 * args->head_dim) {
        sl_attn_fetch(next, (size_t)(16 * nv));
        if (masked && !(f->mask >> key & 1))
            continue;
        EACH_ACCUMULATOR(STEP)
        EACH_ACCUMULATOR(HOLD)
    }
    EACH_ACCUMULATOR(STORE)
#undef STEP
#undef STORE
}

/* One query, 16 dimensions: for small heads. */
BODY void output_16_dims_f16(few_query *f, const sl_tile_args *args, size_t d)
{
    const __m256 beta = _mm256_set1_ps(f->beta);
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    const uint8_t *v = args->tile + 128 * args->head_dim + 2 * d;
    for (int key = 0; key < SL_TILE; key++, v += 2 * args->head_dim) {
        if (!(f->mask >> key & 1))
            continue;
        const __m256 p = _mm256_broadcast_ss(f->s + key);
        low = _mm256_fmadd_ps(p, halves_8(v), low);
        high = _mm256_fmadd_ps(p, halves_8(v + 16), high);
    }
    _mm256_store_ps(f->o + d, _mm256_mul_ps(low, beta));
    _mm256_store_ps(f->o + d + 8, _mm256_mul_ps(high, beta));
}

BODY void outputs_f16(few_query *f, const sl_tile_args *args, const int nq, const bool masked)
{
    const size_t head_dim = args->head_dim, width = (size_t)(8 * vectors_f16(nq));
    if (head_dim < width)
        for (size_t d = 0; d < head_dim; d += 16)
            for (int j = 0; j < nq; j++)
                output_16_dims_f16(f + j, args, d);
    else
        for (size_t d = 0; d < head_dim; d += width) /* the last dimensions may be computed twice */
            output_dims_f16(f, args, d + width <= head_dim ? d : head_dim - width, nq, masked);
}

BODY void queries_f16(few_query *f, const sl_tile_args *args, const int nq, const bool masked)
{
    scores_f16(f, args, nq);
    softmax(f, args->softcap, nq, masked);
    outputs_f16(f, args, nq, masked);
    for (int j = 0; j < nq; j++)
        fold_o(f + j, args->head_dim);
}

/* ---- Q8_0 ---- */

/* Products of one key's group with each query's. */
BODY sums key_products(const uint8_t *k, const sums *even, const sums *odd, const int nq)
{
    __m256i x = _mm256_load_si256((const __m256i *)(const void *)k), x_even = even_bytes(x), x_odd = odd_bytes(x);
    sums r = {{_mm256_setzero_si256()}};
    for (int j = 0; j < nq; j++)
        r.of[j] = DOT(_mm256_madd_epi16(x_even, even->of[j]), x_odd, odd->of[j]);
    for (int j = 0; j < nq; j++)
        KEEP(r.of[j]);
    return r;
}

BODY void scores_q8(few_query *f, const sl_tile_args *args, const int nq)
{
    const uint8_t *tile = args->tile, *next = args->next;
    const size_t head_dim = args->head_dim;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        sums even, odd;
        for (int j = 0; j < nq; j++) {
            even.of[j] = _mm256_load_si256((const __m256i *)(const void *)(f[j].q8 + g * SL_GROUP));
            odd.of[j] = _mm256_load_si256((const __m256i *)(const void *)(f[j].q8 + g * SL_GROUP + 16));
        }
        const uint8_t *ks = tile + 64 * head_dim + g * 2 * SL_TILE;
        for (size_t key = 0; key < SL_TILE; key += 8, next += 8 * SL_GROUP) {
            sl_attn_fetch(next, 8 * SL_GROUP);
            const uint8_t *k = tile + key * head_dim + g * SL_GROUP;
#define KEY(i) key_products(k + (i)*head_dim, &even, &odd, nq)
            sums dot = SUM_OF_EIGHT(KEY, nq);
#undef KEY
            __m256 k_scale = halves_8(ks + 2 * key);
            for (int j = 0; j < nq; j++) {
                __m256 before = g == 0 ? _mm256_setzero_ps() : _mm256_load_ps(f[j].s + key);
                __m256 scale = _mm256_mul_ps(k_scale, _mm256_set1_ps(f[j].qs[g * SL_LANES]));
                _mm256_store_ps(f[j].s + key, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot.of[j]), scale, before));
            }
        }
    }
}

/* vmax of each group. Before the softmax, because it needs no score and takes as long to wait for. */
BODY void scales_q8(few_query *f, const uint8_t *vs, size_t n_groups, const bool masked)
{
    for (size_t g = 0; g < n_groups; g++, vs += 2 * SL_TILE) {
        __m256 most = _mm256_setzero_ps();
        for (int key = 0; key < SL_TILE; key += 8) {
            __m256 scale = halves_8(vs + 2 * key);
            most = _mm256_max_ps(masked ? _mm256_and_ps(scale, visible_8(f->mask, key)) : scale, most);
        }
        float vmax = max_of_lanes(most);
        f->inverse[g] = vmax > 0.0f ? 65535.0f / vmax : 0.0f;
        f->unit[g] = vmax / 65535.0f;
    }
}

/* P - 32768 of group g. */
BODY void weights_q8(few_query *f, const uint8_t *vs, size_t g)
{
    const __m256 inverse = _mm256_set1_ps(f->inverse[g]);
    const __m256i middle = _mm256_set1_epi32(32768);
    for (int key = 0; key < SL_TILE; key += 32) {
        __m256i p[4];
        for (int i = 0; i < 4; i++) {
            __m256 factor = _mm256_mul_ps(halves_8(vs + 2 * (key + 8 * i)), inverse);
            __m256 exact = _mm256_mul_ps(_mm256_load_ps(f->s + key + 8 * i), factor);
            p[i] = _mm256_sub_epi32(_mm256_cvtps_epi32(exact), middle);
        }
        __m256i a = _mm256_permute4x64_epi64(_mm256_packs_epi32(p[0], p[1]), 0xd8);
        __m256i b = _mm256_permute4x64_epi64(_mm256_packs_epi32(p[2], p[3]), 0xd8);
        split_pairs(f->weight + key, a, b);
    }
}

BODY __m256i weight_load(const few_query *f, int i)
{
    return _mm256_load_si256((const __m256i *)(const void *)f->weight + i);
}

/* Products of one dimension's 64 values with each query's P. */
BODY sums value_products(const uint8_t *v, const few_query *f, const int nq)
{
    __m256i x0 = _mm256_load_si256((const __m256i *)(const void *)v);
    __m256i x1 = _mm256_load_si256((const __m256i *)(const void *)(v + 32));
    __m256i even0 = even_bytes(x0), odd0 = odd_bytes(x0), even1 = even_bytes(x1), odd1 = odd_bytes(x1);
    /* -32768 * the sum of v, to be taken off: what P - 32768 leaves out */
    __m256i column = _mm256_add_epi16(_mm256_add_epi16(even0, odd0), _mm256_add_epi16(even1, odd1));
    column = _mm256_madd_epi16(column, _mm256_set1_epi16(-32768));
    sums r = {{_mm256_setzero_si256()}};
    for (int j = 0; j < nq; j++) {
        __m256i low = _mm256_madd_epi16(even0, weight_load(f + j, 0));
        __m256i high = _mm256_madd_epi16(even1, weight_load(f + j, 2));
        low = DOT(low, odd0, weight_load(f + j, 1));
        high = DOT(high, odd1, weight_load(f + j, 3));
        r.of[j] = _mm256_sub_epi32(_mm256_add_epi32(low, high), column);
        KEEP(r.of[j]);
    }
    return r;
}

BODY void outputs_q8(few_query *f, const sl_tile_args *args, const int nq)
{
    const uint8_t *tile = args->tile;
    const size_t head_dim = args->head_dim;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++) {
        for (int j = 0; j < nq; j++)
            weights_q8(f + j, tile + 132 * head_dim + g * 2 * SL_TILE, g);
        sl_attn_fetch(args->next + 64 * head_dim + g * 2 * SL_TILE, 2 * SL_TILE);
        sl_attn_fetch(args->next + 132 * head_dim + g * 2 * SL_TILE, 2 * SL_TILE);
        for (size_t d = g * SL_GROUP; d < (g + 1) * SL_GROUP; d += 8) {
            sl_attn_fetch(args->next + 68 * head_dim + d * SL_TILE, 8 * SL_TILE);
            const uint8_t *v = tile + 68 * head_dim + d * SL_TILE;
#define DIMENSION(i) value_products(v + (i)*SL_TILE, f, nq)
            sums dot = SUM_OF_EIGHT(DIMENSION, nq);
#undef DIMENSION
            for (int j = 0; j < nq; j++) {
                __m256 o = _mm256_mul_ps(_mm256_cvtepi32_ps(dot.of[j]), _mm256_set1_ps(f[j].unit[g]));
                _mm256_store_ps(f[j].o + d, _mm256_mul_ps(o, _mm256_set1_ps(f[j].beta)));
            }
        }
    }
}

BODY void queries_q8(few_query *f, const sl_tile_args *args, const int nq, const bool masked)
{
    scores_q8(f, args, nq);
    for (int j = 0; j < nq; j++)
        scales_q8(f + j, args->tile + 132 * args->head_dim, args->head_dim / SL_GROUP, masked);
    softmax(f, args->softcap, nq, masked);
    outputs_q8(f, args, nq);
    for (int j = 0; j < nq; j++)
        fold_o(f + j, args->head_dim);
}

/* ---- the entries ---- */

/* Takes the query of `lane` out of its block. */
BODY void query_load(few_query *f, const uint8_t *block, size_t lane, size_t head_dim, const sl_kv_type type)
{
    f->qf = (const float *)(const void *)block + lane;
    if (type == SL_KV_TYPE_F16)
        return;
    const uint32_t *pairs = (const uint32_t *)(const void *)block + lane;
    f->qs = (const float *)(const void *)(block + head_dim * SL_LANES * sizeof(int16_t)) + lane;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++, pairs += SL_GROUP / 2 * SL_LANES) {
#define PAIR(i) (int)pairs[(i)*SL_LANES]
        __m256i a = _mm256_setr_epi32(PAIR(0), PAIR(1), PAIR(2), PAIR(3), PAIR(4), PAIR(5), PAIR(6), PAIR(7));
        __m256i b = _mm256_setr_epi32(PAIR(8), PAIR(9), PAIR(10), PAIR(11), PAIR(12), PAIR(13), PAIR(14), PAIR(15));
#undef PAIR
        split_pairs(f->q8 + g * SL_GROUP, a, b);
    }
}

/* Points f at query `query` of the call; false when it sees nothing of the tile. */
static bool query_start(few_query *f, const sl_tile_args *args, size_t query)
{
    f->mask = args->masks ? args->masks[query] : UINT64_MAX;
    f->state = (float *)(void *)(args->states + query / SL_LANES * args->state_stride) + query % SL_LANES;
    return f->mask != 0;
}

BODY void queries(few_query *f, const sl_tile_args *args, sl_kv_type type, const int nq, const bool masked)
{
    if (type == SL_KV_TYPE_F16)
        queries_f16(f, args, nq, masked);
    else
        queries_q8(f, args, nq, masked);
}

/* n <= TOGETHER queries that see the whole tile. */
BODY void whole_queries(few_query *f, const sl_tile_args *args, sl_kv_type type, int n)
{
    if (n == 1)
        queries(f, args, type, 1, false);
    else if (n == 2)
        queries(f, args, type, 2, false);
    else if (n == 3 && type == SL_KV_TYPE_F16)
        queries_f16(f, args, 3, false);
    else if (n == 4 && type == SL_KV_TYPE_F16)
        queries_f16(f, args, 4, false);
}

/* type: a constant in both copies */
BODY void few_queries(const sl_tile_args *call, size_t first, const sl_kv_type type)
{
    const uint8_t *block = call->qblocks + first / SL_LANES * sl_qblock_bytes(type, call->head_dim);
    sl_tile_args args = *call;
    few_query f[TOGETHER];
    const int together = type == SL_KV_TYPE_F16 ? TOGETHER : TOGETHER_Q8;
    int n = 0; /* waiting in f, which see the whole tile */
    args.next = call->next ? call->next : call->tile;
    for (size_t query = first; query < args.n_queries; query++) {
        if (!query_start(&f[n], &args, query))
            continue;
        query_load(&f[n], block, query % SL_LANES, args.head_dim, type);
        if (f[n].mask != UINT64_MAX)
            queries(&f[n], &args, type, 1, true);
        else if (++n == together) {
            whole_queries(f, &args, type, n);
            args.next = args.tile; /* the next one is on its way */
            n = 0;
        }
    }
    whole_queries(f, &args, type, n);
}

#endif
#endif
