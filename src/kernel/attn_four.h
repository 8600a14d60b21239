/* Q8_0 attention tiles against four queries of a block at once: what the versions for AVX-512 and AMX share. They
 * differ in how the products of bytes are made. A run of tiles is folded in turn: the queries are split once, and their
 * state is at hand until the last.
 * A lane of a vector of scores is one of four keys and one of four queries. A row of an operand holds four dimensions
 * (or keys) of 4 queries x 2 bytes x 2 groups: what one row of keys (or dimensions) as they lie, 64 bytes, meets.
 * Private to this folder, x86-64 only. */
#ifndef SL_ATTN_FOUR_H
#define SL_ATTN_FOUR_H

#include <string.h>

#include "kernel/attn_few_avx512.h"

enum {
    FOUR_GROUPS = SL_MAX_HEAD_DIM / SL_GROUP,
    FOUR_PAIRS = FOUR_GROUPS / 2,
    FOUR_ROWS = 16, /* of an operand: four dimensions or keys each */
    FOUR_ROW_BYTES = 64,
    FOUR_QUADS = SL_TILE / 4 /* of keys */
};

/* Four queries' work. A pair is of groups: 64 dimensions, the last one's second half perhaps absent. */
typedef struct few_work {
    _Alignas(64) uint8_t
        q[FOUR_PAIRS][2][FOUR_ROWS * FOUR_ROW_BYTES];  /* low bytes in columns 0..3, 8..11, high in 4..7, 12..15 */
    uint8_t p[FOUR_PAIRS][FOUR_ROWS * FOUR_ROW_BYTES]; /* columns: low, high of the first group, of the second */
    float s[FOUR_QUADS][SL_LANES];                     /* lane 4 * i + j: key i of the quad, query j; then p */
    float vs[FOUR_GROUPS][SL_TILE];                    /* value scales */
    __m128 scale[FOUR_GROUPS];                         /* vmax / 65535 */
    __mmask16 vis[FOUR_QUADS];                         /* if masked */
    __m512 m;
    __m128 alpha, beta;
    float o[SL_MAX_HEAD_DIM / 4][SL_LANES]; /* of the state; lane 4 * i + j: dimension i of the four, query j */
    __m128 m_state, l_state;
    const uint8_t *tile, *next; /* next: to be called into the cache */
    const float *qs;            /* a group's scales at g * SL_LANES */
    size_t head_dim, n_groups, n_pairs;
    __mmask8 seen; /* bit j: query j sees any key */
} few_work;

/* Of sixteen keys' scales, the lanes of quad `quad` (0 to 3). */
AVX512_INLINE __m512 of_quad(__m512 scales, int quad)
{
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(4 * quad)), scales);
}

AVX512_INLINE __m512 max_of_keys(__m512 x)
{
    x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
    return _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1));
}

/* ---- queries ---- */

/* q: the four queries' pairs of a block */
AVX512_INLINE void split_queries(few_work *w, const uint8_t *q)
{
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    memset(w->q, 0, w->n_pairs * sizeof w->q[0]);
    for (size_t i = 0; i < w->head_dim / 4; i++, q += 2 * FOUR_ROW_BYTES) {
        __m128i first = _mm_load_si128((const __m128i *)(const void *)q);
        __m128i second = _mm_load_si128((const __m128i *)(const void *)(q + FOUR_ROW_BYTES));
        __m128i a = _mm_shuffle_epi8(_mm_unpacklo_epi32(first, second), order);
        __m128i b = _mm_shuffle_epi8(_mm_unpackhi_epi32(first, second), order);
        size_t at = i % FOUR_ROWS * FOUR_ROW_BYTES + (i % FOUR_ROWS < FOUR_ROWS / 2 ? 0 : 32);
        _mm_store_si128((__m128i *)(void *)(w->q[i / FOUR_ROWS][0] + at), _mm_unpacklo_epi64(a, b));
        _mm_store_si128((__m128i *)(void *)(w->q[i / FOUR_ROWS][1] + at + 16), _mm_unpackhi_epi64(a, b));
    }
}

/* ---- softmax ---- */

/* Bit 4 * i + j of vis[quad]: key i of the quad is visible to query j. */
AVX512_INLINE void read_masks(few_work *w, const uint64_t *masks)
{
    const __m512i bit = _mm512_setr_epi32(1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8);
    __m128i low = _mm256_cvtepi64_epi32(_mm256_loadu_si256((const __m256i *)(const void *)masks));
    __m128i high =
        _mm256_cvtepi64_epi32(_mm256_srli_epi64(_mm256_loadu_si256((const __m256i *)(const void *)masks), 32));
    __m512i lanes[2] = {_mm512_broadcast_i32x4(low), _mm512_broadcast_i32x4(high)};
    for (unsigned quad = 0; quad < FOUR_QUADS; quad++)
        w->vis[quad] = _mm512_test_epi32_mask(_mm512_srli_epi32(lanes[quad / 8], 4 * (quad % 8)), bit);
}

/* Softcap, mask, maximum, p and its sum; m and l of the state; alpha and beta for its o. */
AVX512_INLINE void softmax(few_work *w, float softcap, const bool masked)
{
    const __m512 nothing = _mm512_set1_ps(-INFINITY), cap = _mm512_set1_ps(softcap * SL_LOG2E);
    __m512 m[2] = {nothing, nothing}, sum[4];
    for (int quad = 0; quad < FOUR_QUADS; quad++) {
        __m512 s = _mm512_load_ps(w->s[quad]);
        if (softcap != 0.0f)
            s = _mm512_mul_ps(cap, sl_avx512_tanh(s));
        /* a hidden key's score becomes -inf, from which p = +0 follows */
        if (masked)
            s = _mm512_mask_mov_ps(nothing, w->vis[quad], s);
        if (masked || softcap != 0.0f)
            _mm512_store_ps(w->s[quad], s);
        m[quad % 2] = _mm512_max_ps(s, m[quad % 2]);
    }
    w->m = _mm512_add_ps(max_of_keys(_mm512_max_ps(m[0], m[1])), _mm512_setzero_ps()); /* -0 becomes +0 */
    for (int quad = 0; quad < FOUR_QUADS; quad++) {
        __m512 p = sl_avx512_exp2(_mm512_sub_ps(_mm512_load_ps(w->s[quad]), w->m));
        _mm512_store_ps(w->s[quad], p);
        sum[quad % 4] = quad < 4 ? p : _mm512_add_ps(sum[quad % 4], p);
    }
    /* lane t of the sixteen is key t % 4 of quads t / 4: the tree is +8, +4, then inside a vector */
    __m512 l = _mm512_add_ps(_mm512_add_ps(sum[0], sum[2]), _mm512_add_ps(sum[1], sum[3]));
    l = _mm512_add_ps(l, _mm512_shuffle_f32x4(l, l, 0x4e));
    l = _mm512_add_ps(l, _mm512_shuffle_f32x4(l, l, 0xb1));
    __m128 before = w->m_state, tile_m = _mm512_castps512_ps128(w->m), m_new = _mm_max_ps(tile_m, before);
    __m512 x = _mm512_castps128_ps512(_mm_sub_ps(before, m_new));
    x = sl_avx512_exp2(_mm512_insertf32x4(x, _mm_sub_ps(tile_m, m_new), 1));
    w->alpha = _mm512_castps512_ps128(x);
    w->beta = _mm512_extractf32x4_ps(x, 1);
    w->l_state = _mm_fmadd_ps(w->l_state, w->alpha, _mm_mul_ps(_mm512_castps512_ps128(l), w->beta));
    w->m_state = m_new;
}

/* ---- P ---- */

/* Of one group: by which p is multiplied, for sixteen keys (vs) or, where keys are hidden, lane by lane (inverse). */
typedef struct factors {
    __m512 vf[4], inverse;
} factors;

AVX512_INLINE factors factors_of(few_work *w, size_t g, const bool masked)
{
    const uint8_t *in = w->tile + 132 * w->head_dim + g * 2 * SL_TILE;
    const __m512 full = _mm512_set1_ps(65535.0f);
    factors f;
    for (int i = 0; i < 4; i++)
        f.vf[i] = few_halves(in + 32 * i);
    __m512 vmax = _mm512_setzero_ps();
    if (masked) {
        for (int quad = 0; quad < FOUR_QUADS; quad++)
            vmax = _mm512_mask_max_ps(vmax, w->vis[quad], of_quad(f.vf[quad / 4], quad % 4), vmax);
        vmax = max_of_keys(vmax);
    } else {
        for (int i = 0; i < 4; i++)
            vmax = _mm512_max_ps(f.vf[i], vmax);
        vmax = _mm512_set1_ps(_mm512_reduce_max_ps(vmax));
    }
    __mmask16 positive = _mm512_cmp_ps_mask(vmax, _mm512_setzero_ps(), _CMP_GT_OQ);
    f.inverse = _mm512_maskz_div_ps(positive, full, vmax);
    w->scale[g] = _mm_div_ps(_mm512_castps512_ps128(vmax), _mm512_castps512_ps128(full));
    if (!masked)
        for (int i = 0; i < 4; i++)
            f.vf[i] = _mm512_mul_ps(f.vf[i], f.inverse);
    return f;
}

AVX512_INLINE __m512i weight(const few_work *w, const factors *f, int quad, const bool masked)
{
    __m512 factor = of_quad(f->vf[quad / 4], quad % 4);
    if (masked)
        factor = _mm512_mul_ps(factor, f->inverse);
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(w->s[quad]), factor));
}

/* P of a pair of groups as a right operand. */
AVX512_INLINE void weights_of_pair(few_work *w, size_t pair, const bool masked)
{
    /* 16-bit numbers, from [key][group][query] to [group][query][key] */
    const __m512i keys_last = _mm512_set_epi16(31, 23, 15, 7, 30, 22, 14, 6, 29, 21, 13, 5, 28, 20, 12, 4, 27, 19, 11,
                                               3, 26, 18, 10, 2, 25, 17, 9, 1, 24, 16, 8, 0);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    /* 32-bit lanes, from [group][two queries][byte][query] to [group][byte][query] */
    const __m512i columns = _mm512_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const bool whole = 2 * pair + 1 < w->n_groups;
    const factors first = factors_of(w, 2 * pair, masked);
    const factors second = whole ? factors_of(w, 2 * pair + 1, masked) : first;
    for (int quad = 0; quad < FOUR_QUADS; quad++) {
        __m512i p = _mm512_packus_epi32(weight(w, &first, quad, masked), weight(w, &second, quad, masked));
        p = _mm512_shuffle_epi8(_mm512_permutexvar_epi16(keys_last, p), bytes);
        _mm512_store_si512(w->p[pair] + quad * FOUR_ROW_BYTES, _mm512_permutexvar_epi32(columns, p));
    }
}

/* ---- the fold ---- */

/* Four dimensions from d on: out, without its scale, joins o. */
AVX512_INLINE void four_fold(few_work *w, size_t d, __m512i out)
{
    const __m512 scale = _mm512_broadcast_f32x4(w->scale[d / SL_GROUP]), alpha = _mm512_broadcast_f32x4(w->alpha);
    __m512 o = _mm512_mul_ps(_mm512_cvtepi32_ps(out), scale);
    o = _mm512_mul_ps(o, _mm512_broadcast_f32x4(w->beta));
    _mm512_store_ps(w->o[d / 4], _mm512_fmadd_ps(_mm512_load_ps(w->o[d / 4]), alpha, o));
}

AVX512_INLINE void state_load(few_work *w, const float *state)
{
    w->m_state = _mm_loadu_ps(state);
    w->l_state = _mm_loadu_ps(state + SL_LANES);
    for (size_t d = 0; d < w->head_dim; d++)
        _mm_store_ps(w->o[d / 4] + d % 4 * 4, _mm_loadu_ps(state + (2 + d) * SL_LANES));
}

AVX512_INLINE void state_store(const few_work *w, float *state)
{
    _mm_mask_storeu_ps(state, w->seen, w->m_state);
    _mm_mask_storeu_ps(state + SL_LANES, w->seen, w->l_state);
    for (size_t d = 0; d < w->head_dim; d++)
        _mm_mask_storeu_ps(state + (2 + d) * SL_LANES, w->seen, _mm_load_ps(w->o[d / 4] + d % 4 * 4));
}

/* ---- the loop over queries ---- */

/* Tiles that lie `stride` bytes apart. */
typedef struct four_tiles {
    const uint8_t *first, *next; /* next: behind the last, or NULL */
    size_t n, stride;
} four_tiles;

/* Tile i of them, or what comes behind. */
AVX512_INLINE const uint8_t *four_tile(const four_tiles *tiles, size_t i)
{
    if (i < tiles->n)
        return tiles->first + i * tiles->stride;
    return tiles->next ? tiles->next : tiles->first;
}

typedef void (*four_fn)(few_work *w, const four_tiles *tiles, float softcap, bool masked);

/* Queries [first, n_queries), all of one block, against args->tile and those that follow it. `four` is called with
 * constants, so that it is inlined. */
AVX512_INLINE void four_run(const sl_tile_args *args, size_t first, size_t n_tiles, size_t stride, four_fn four)
{
    const size_t head_dim = args->head_dim;
    const uint8_t *block = args->qblocks + first / SL_LANES * sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim);
    few_work w; /* not zeroed: it is large */
    four_tiles tiles = {args->tile, args->next, n_tiles, stride};
    w.head_dim = head_dim;
    w.n_groups = head_dim / SL_GROUP;
    w.n_pairs = (w.n_groups + 1) / 2;
    for (size_t query = first; query < args->n_queries; query += 4) {
        uint64_t masks[4], all = UINT64_MAX;
        w.seen = 0;
        for (size_t j = 0; j < 4; j++) {
            masks[j] = args->masks && query + j < args->n_queries ? args->masks[query + j] : UINT64_MAX;
            w.seen |= (__mmask8)((masks[j] != 0) << j);
            all &= masks[j];
        }
        if (w.seen == 0)
            continue;
        float *state = (float *)(void *)(args->states + query / SL_LANES * args->state_stride) + query % SL_LANES;
        state_load(&w, state);
        w.qs = (const float *)(const void *)(block + head_dim * SL_LANES * sizeof(int16_t)) + query % SL_LANES;
        split_queries(&w, block + query % SL_LANES * 4);
        if (all == UINT64_MAX)
            four(&w, &tiles, args->softcap, false);
        else {
            read_masks(&w, masks);
            four(&w, &tiles, args->softcap, true);
        }
        state_store(&w, state);
        tiles.next = NULL; /* it is on its way */
    }
}

AVX512_INLINE void four_softmax(few_work *w, float softcap, const bool masked)
{
    if (softcap != 0.0f)
        softmax(w, softcap, masked);
    else
        softmax(w, 0.0f, masked);
}

/* Calls the next tile's scales into the cache. */
AVX512_INLINE void four_fetch_scales(const few_work *w)
{
    sl_attn_fetch_outer(w->next + 64 * w->head_dim, 4 * w->head_dim);
    sl_attn_fetch_outer(w->next + 132 * w->head_dim, 4 * w->head_dim);
}

#endif
