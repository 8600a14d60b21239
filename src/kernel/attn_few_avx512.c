/* Q8_0 attention tiles against few queries for AVX-512 with VNNI: the bits of attn_ref.c.
 * Lanes are keys. A 16-bit number is 256 * high + low, and a byte dot product takes 64 bytes as they lie: the low bytes
 * of a query or of P are its unsigned operand; a query's high bytes are signed, so there the keys become unsigned, as
 * k + 128, and 128 * the sum of high bytes is taken off. One query at a time: nothing is widened that two could share.
 */
#include "kernel/attn_few.h"

#if defined(__x86_64__)

#include "kernel/attn_few_avx512.h"

enum { MAX_GROUPS = SL_MAX_HEAD_DIM / SL_GROUP, MAX_PAIRS = MAX_GROUPS / 2 };

/* One query, out of its block. Pairs are of groups: 64 dimensions, the last one's second half perhaps absent. */
typedef struct few_query {
    _Alignas(64) float o[SL_MAX_HEAD_DIM]; /* of the tile, times beta */
    few_softmax soft;
    __m512i low[MAX_PAIRS], high[MAX_PAIRS], offset[MAX_PAIRS]; /* offset: -128 * the sums of high bytes */
    const float *qs;                                            /* a group's scale at g * SL_LANES */
} few_query;

/* ---- sums of lanes: of 2 and 4 vectors inside each 128 bits, then across ---- */

AVX512_INLINE __m512i add_2(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

AVX512_INLINE __m512i add_4(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

#define SUM_OF_FOUR(of, i) add_4(add_2(of(i), of((i) + 1)), add_2(of((i) + 2), of((i) + 3)))

/* Of a and b, each four sums in four quarters, the quarters 0 + 1 and 2 + 3: [a, a, b, b] by quarters. */
AVX512_INLINE __m512i add_neighbours(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* ---- scores ---- */

/* 64 bytes of one key, or 32 and zeros. */
AVX512_INLINE __m512i key_load(const uint8_t *k, bool whole)
{
    return whole ? _mm512_loadu_si512(k) : _mm512_zextsi256_si512(_mm256_load_si256((const __m256i *)(const void *)k));
}

AVX512_INLINE __m512i key_products(__m512i k, const few_query *f, size_t pair)
{
    __m512i shifted = _mm512_xor_si512(k, _mm512_set1_epi8((char)0x80)); /* k + 128 */
    __m512i sum = _mm512_dpbusd_epi32(f->offset[pair], shifted, f->high[pair]);
    return _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), f->low[pair], k);
}

/* s = fma(dot, ks * qs, s) */
AVX512_INLINE void add_score(few_query *f, const uint8_t *tile, size_t head_dim, size_t g, int sixteen, __m512i dot)
{
    __m512 ks = few_halves(tile + 64 * head_dim + g * 2 * SL_TILE + 32 * sixteen);
    __m512 scale = _mm512_mul_ps(ks, _mm512_set1_ps(f->qs[g * SL_LANES]));
    __m512 before = g == 0 ? _mm512_setzero_ps() : f->soft.s[sixteen];
    f->soft.s[sixteen] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, before);
}

/* Both groups of a pair, or the first only. */
AVX512_INLINE void scores_of_pair(few_query *f, const uint8_t *tile, size_t head_dim, size_t pair, const bool whole)
{
    for (int sixteen = 0; sixteen < 4; sixteen++) {
        const uint8_t *k = tile + (size_t)sixteen * 16 * head_dim + pair * 2 * SL_GROUP;
#define KEY(i) key_products(key_load(k + (i)*head_dim, whole), f, pair)
        /* [keys 0..3 of the first group, of the second, keys 4..7 of the first, of the second] */
        __m512i a = add_neighbours(SUM_OF_FOUR(KEY, 0), SUM_OF_FOUR(KEY, 4));
        __m512i b = add_neighbours(SUM_OF_FOUR(KEY, 8), SUM_OF_FOUR(KEY, 12));
#undef KEY
        add_score(f, tile, head_dim, 2 * pair, sixteen, _mm512_shuffle_i32x4(a, b, 0x88));
        if (whole)
            add_score(f, tile, head_dim, 2 * pair + 1, sixteen, _mm512_shuffle_i32x4(a, b, 0xdd));
    }
}

/* ---- the fold ---- */

AVX512_INLINE void fold_o(const few_query *f, size_t head_dim)
{
    float *at = f->soft.state + 2 * SL_LANES;
    for (size_t d = 0; d < head_dim; d += 8, at += 8 * SL_LANES)
        for (size_t i = 0; i < 8; i++) /* unrolled by the compiler */
            at[i * SL_LANES] = fmaf(at[i * SL_LANES], f->soft.alpha, f->o[d + i]);
}

/* ---- outputs ---- */

AVX512_INLINE __m512i bytes_joined(__m512i a, __m512i b, __m512i c, __m512i d)
{
    __m512i joined = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(a));
    joined = _mm512_inserti32x4(joined, _mm512_cvtepi32_epi8(b), 1);
    joined = _mm512_inserti32x4(joined, _mm512_cvtepi32_epi8(c), 2);
    return _mm512_inserti32x4(joined, _mm512_cvtepi32_epi8(d), 3);
}

/* The two bytes of P of one group, keys in order; returns vmax / 65535. */
AVX512_INLINE float weights(const few_query *f, const uint8_t *vs, __m512i *low, __m512i *high)
{
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < 4; i++)
        most = _mm512_mask_max_ps(most, (__mmask16)(f->soft.mask >> 16 * i), few_halves(vs + 32 * i), most);
    float vmax = few_max_of_lanes(most);
    const __m512 inverse = _mm512_set1_ps(vmax > 0.0f ? 65535.0f / vmax : 0.0f);
    __m512i p[4];
    for (int i = 0; i < 4; i++)
        p[i] = _mm512_cvtps_epi32(_mm512_mul_ps(f->soft.s[i], _mm512_mul_ps(few_halves(vs + 32 * i), inverse)));
    *low = bytes_joined(p[0], p[1], p[2], p[3]);
    *high = bytes_joined(_mm512_srli_epi32(p[0], 8), _mm512_srli_epi32(p[1], 8), _mm512_srli_epi32(p[2], 8),
                         _mm512_srli_epi32(p[3], 8));
    return vmax / 65535.0f;
}

AVX512_INLINE __m512i value_products(const uint8_t *v, __m512i low, __m512i high)
{
    __m512i values = _mm512_load_si512(v);
    __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), high, values);
    return _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), low, values);
}

AVX512_INLINE void outputs_of_group(few_query *f, const sl_tile_args *args, size_t g)
{
    const size_t head_dim = args->head_dim;
    __m512i low, high;
    float scale = weights(f, args->tile + 132 * head_dim + g * 2 * SL_TILE, &low, &high);
    for (size_t d = g * SL_GROUP; d < (g + 1) * SL_GROUP; d += 16) {
        const uint8_t *v = args->tile + 68 * head_dim + d * SL_TILE;
        sl_attn_fetch(args->next + 68 * head_dim + d * SL_TILE, 16 * SL_TILE);
#define DIMENSION(i) value_products(v + (i)*SL_TILE, low, high)
        __m512i a = add_neighbours(SUM_OF_FOUR(DIMENSION, 0), SUM_OF_FOUR(DIMENSION, 4));
        __m512i b = add_neighbours(SUM_OF_FOUR(DIMENSION, 8), SUM_OF_FOUR(DIMENSION, 12));
#undef DIMENSION
        __m512 o = _mm512_mul_ps(_mm512_cvtepi32_ps(add_neighbours(a, b)), _mm512_set1_ps(scale));
        _mm512_store_ps(f->o + d, _mm512_mul_ps(o, _mm512_set1_ps(f->soft.beta)));
    }
}

/* ---- the entry ---- */

/* Takes the query of `lane` out of its block. */
AVX512_INLINE void query_load(few_query *f, const uint8_t *block, size_t lane, size_t head_dim)
{
    const __m512i stride = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                              _mm512_set1_epi32(SL_LANES));
    const int32_t *pairs = (const int32_t *)(const void *)block + lane;
    f->qs = (const float *)(const void *)(block + head_dim * SL_LANES * sizeof(int16_t)) + lane;
    for (size_t g = 0; g < head_dim / SL_GROUP; g++, pairs += SL_GROUP / 2 * SL_LANES) {
        __m512i q = _mm512_i32gather_epi32(stride, pairs, 4); /* 32 numbers in order */
        __m256i low = _mm512_cvtepi16_epi8(q), high = _mm512_cvtepi16_epi8(_mm512_srli_epi16(q, 8));
        size_t pair = g / 2;
        f->low[pair] = g % 2 ? _mm512_inserti64x4(f->low[pair], low, 1) : _mm512_zextsi256_si512(low);
        f->high[pair] = g % 2 ? _mm512_inserti64x4(f->high[pair], high, 1) : _mm512_zextsi256_si512(high);
    }
    for (size_t pair = 0; 2 * SL_GROUP * pair < head_dim; pair++)
        f->offset[pair] =
            _mm512_sub_epi32(_mm512_setzero_si512(),
                             _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8((char)0x80), f->high[pair]));
}

AVX512 void sl_attn_few_q8_avx512(const sl_tile_args *call, size_t first)
{
    const size_t head_dim = call->head_dim;
    const uint8_t *block = call->qblocks + first / SL_LANES * sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim);
    sl_tile_args args = *call;
    few_query f;
    args.next = call->next ? call->next : call->tile;
    for (size_t query = first; query < args.n_queries; query++) {
        f.soft.mask = args.masks ? args.masks[query] : UINT64_MAX;
        if (f.soft.mask == 0)
            continue;
        f.soft.state = (float *)(void *)(args.states + query / SL_LANES * args.state_stride) + query % SL_LANES;
        query_load(&f, block, query % SL_LANES, head_dim);
        for (size_t pair = 0; 2 * SL_GROUP * pair < head_dim; pair++) {
            sl_attn_fetch(args.next + pair * 2 * SL_GROUP * SL_TILE, 2 * SL_GROUP * SL_TILE);
            if (2 * SL_GROUP * (pair + 1) <= head_dim)
                scores_of_pair(&f, args.tile, head_dim, pair, true);
            else
                scores_of_pair(&f, args.tile, head_dim, pair, false);
        }
        few_softmax_run(&f.soft, args.softcap);
        sl_attn_fetch(args.next + 64 * head_dim, 4 * head_dim);
        sl_attn_fetch(args.next + 132 * head_dim, 4 * head_dim);
        for (size_t g = 0; g < head_dim / SL_GROUP; g++)
            outputs_of_group(&f, &args, g);
        fold_o(&f, head_dim);
        args.next = args.tile; /* the next one is on its way */
    }
}

#else
typedef int sl_attn_few_avx512_is_for_x86;
#endif
