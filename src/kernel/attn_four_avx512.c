/* Q8_0 attention tiles against four queries at a time (attn_four.h) for AVX-512 with VNNI: the bits of attn_ref.c.
 * A lane of a vector is one of four keys (or dimensions) and one of four queries: 32 bits of a key's bytes are spread
 * over four lanes by a shuffle, the queries' are repeated by a broadcast from memory. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/attn_four.h"

/* By 16 bytes, of four rows of 64 bytes: [i] = the i-th sixteen of every row. */
typedef struct rows_of_four {
    __m512i sixteen[4];
} rows_of_four;

AVX512_INLINE __m512i row_load(const uint8_t *row, bool whole)
{
    return whole ? _mm512_loadu_si512(row)
                 : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)row));
}

AVX512_INLINE rows_of_four rows_load(const uint8_t *row, size_t stride, bool whole)
{
    __m512i a = row_load(row, whole), b = row_load(row + stride, whole);
    __m512i c = row_load(row + 2 * stride, whole), d = row_load(row + 3 * stride, whole);
    __m512i ab = _mm512_shuffle_i32x4(a, b, 0x88), cd = _mm512_shuffle_i32x4(c, d, 0x88);
    __m512i ab_odd = _mm512_shuffle_i32x4(a, b, 0xdd), cd_odd = _mm512_shuffle_i32x4(c, d, 0xdd);
    return (rows_of_four){{_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab_odd, cd_odd, 0x88),
                           _mm512_shuffle_i32x4(ab, cd, 0xdd), _mm512_shuffle_i32x4(ab_odd, cd_odd, 0xdd)}};
}

/* Sixteen bytes of an operand's row, for every key or dimension. */
AVX512_INLINE __m512i repeated(const uint8_t *at)
{
    return _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)at));
}

/* ---- scores ---- */

/* -128 * the sums of a group's high bytes: the keys of their products are k + 128. */
AVX512_INLINE __m512i offset_of(const few_work *w, size_t g)
{
    const uint8_t *high = w->q[g / 2][1] + g % 2 * (FOUR_ROWS / 2 * FOUR_ROW_BYTES + 32) + 16;
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < FOUR_ROWS / 2; i++, high += FOUR_ROW_BYTES)
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)0x80), repeated(high));
    return _mm512_sub_epi32(_mm512_setzero_si512(), sum);
}

/* Dot products of a group with four keys, of which a and b are 32 dimensions; q: the group's rows of low bytes. */
AVX512_INLINE __m512 dot_of_keys(const uint8_t *low, const uint8_t *high, __m512i a, __m512i b, __m512i offset)
{
    __m512i sum = _mm512_setzero_si512(), sum_high = offset;
#define STEP(keys, i, row)                                                                                             \
    {                                                                                                                  \
        __m512i k = _mm512_shuffle_epi32(keys, (i)*0x55);                                                              \
        sum = _mm512_dpbusd_epi32(sum, repeated(low + (row)*FOUR_ROW_BYTES), k);                                       \
        k = _mm512_xor_si512(k, _mm512_set1_epi8((char)0x80));                                                         \
        sum_high = _mm512_dpbusd_epi32(sum_high, k, repeated(high + (row)*FOUR_ROW_BYTES));                            \
    }
    STEP(a, 0, 0)
    STEP(a, 1, 1) STEP(a, 2, 2) STEP(a, 3, 3) STEP(b, 0, 4) STEP(b, 1, 5) STEP(b, 2, 6) STEP(b, 3, 7)
#undef STEP
        return _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_slli_epi32(sum_high, 8)));
}

/* Scores of all keys take in a pair's products, or of its first group only. */
AVX512_INLINE void add_scores(few_work *w, size_t pair, const bool whole)
{
    const uint8_t *ks = w->tile + 64 * w->head_dim + pair * 4 * SL_TILE, *k = w->tile + pair * FOUR_ROW_BYTES;
    const uint8_t *low = w->q[pair][0], *high = w->q[pair][1] + 16;
    const size_t second = FOUR_ROWS / 2 * FOUR_ROW_BYTES + 32;
    const __m512 qs0 = _mm512_broadcast_f32x4(_mm_loadu_ps(w->qs + 2 * pair * SL_LANES));
    const __m512 qs1 = whole ? _mm512_broadcast_f32x4(_mm_loadu_ps(w->qs + (2 * pair + 1) * SL_LANES)) : qs0;
    const __m512i offset0 = offset_of(w, 2 * pair), offset1 = whole ? offset_of(w, 2 * pair + 1) : offset0;
    for (int quad = 0; quad < FOUR_QUADS; quad++, k += 4 * w->head_dim) {
        const rows_of_four keys = rows_load(k, w->head_dim, whole);
        __m512 s = pair == 0 ? _mm512_setzero_ps() : _mm512_load_ps(w->s[quad]);
        __m512 scale = _mm512_mul_ps(of_quad(few_halves(ks + quad / 4 * 32), quad % 4), qs0);
        s = _mm512_fmadd_ps(dot_of_keys(low, high, keys.sixteen[0], keys.sixteen[1], offset0), scale, s);
        if (whole) {
            scale = _mm512_mul_ps(of_quad(few_halves(ks + 2 * SL_TILE + quad / 4 * 32), quad % 4), qs1);
            s = _mm512_fmadd_ps(dot_of_keys(low + second, high + second, keys.sixteen[2], keys.sixteen[3], offset1),
                                scale, s);
        }
        _mm512_store_ps(w->s[quad], s);
    }
}

/* ---- outputs ---- */

/* Dot products of P with four dimensions. */
AVX512_INLINE __m512i dot_of_values(const uint8_t *p, const rows_of_four *values)
{
    __m512i sum = _mm512_setzero_si512(), sum_high = sum;
#define STEP(i, row)                                                                                                   \
    {                                                                                                                  \
        __m512i v = _mm512_shuffle_epi32(values->sixteen[(row) / 4], (i)*0x55);                                        \
        sum = _mm512_dpbusd_epi32(sum, repeated(p + (row)*FOUR_ROW_BYTES), v);                                         \
        sum_high = _mm512_dpbusd_epi32(sum_high, repeated(p + (row)*FOUR_ROW_BYTES + 16), v);                          \
    }
    STEP(0, 0)
    STEP(1, 1) STEP(2, 2) STEP(3, 3) STEP(0, 4) STEP(1, 5) STEP(2, 6) STEP(3, 7) STEP(0, 8) STEP(1, 9) STEP(2, 10)
        STEP(3, 11) STEP(0, 12) STEP(1, 13) STEP(2, 14) STEP(3, 15)
#undef STEP
            return _mm512_add_epi32(sum, _mm512_slli_epi32(sum_high, 8));
}

AVX512_INLINE void outputs_of_group(few_work *w, size_t g)
{
    const uint8_t *v = w->tile + 68 * w->head_dim + g * SL_GROUP * SL_TILE, *p = w->p[g / 2] + g % 2 * 32;
    for (size_t i = 0; i < SL_GROUP; i += 4, v += 4 * SL_TILE) {
        const rows_of_four values = rows_load(v, SL_TILE, true);
        four_fold(w, g * SL_GROUP + i, dot_of_values(p, &values));
    }
}

/* ---- the entry ---- */

AVX512_INLINE void fold_tile(few_work *w, float softcap, const bool masked)
{
    for (size_t pair = 0; pair < w->n_pairs; pair++) {
        sl_attn_fetch_outer(w->next + pair * 2 * SL_GROUP * SL_TILE, 2 * SL_GROUP * SL_TILE);
        if (2 * pair + 1 < w->n_groups)
            add_scores(w, pair, true);
        else
            add_scores(w, pair, false);
    }
    four_softmax(w, softcap, masked);
    for (size_t pair = 0; pair < w->n_pairs; pair++) {
        weights_of_pair(w, pair, masked);
        sl_attn_fetch_outer(w->next + 68 * w->head_dim + pair * 2 * SL_GROUP * SL_TILE, 2 * SL_GROUP * SL_TILE);
        for (size_t g = 2 * pair; g < 2 * pair + 2 && g < w->n_groups; g++)
            outputs_of_group(w, g);
    }
    four_fetch_scales(w);
}

AVX512_INLINE void four_queries(few_work *w, const four_tiles *tiles, float softcap, const bool masked)
{
    for (size_t i = 0; i < tiles->n; i++) {
        w->tile = four_tile(tiles, i);
        w->next = four_tile(tiles, i + 1);
        fold_tile(w, softcap, masked);
    }
}

AVX512 void sl_attn_four_q8_avx512(const sl_tile_args *args, size_t first)
{
    four_run(args, first, 1, 0, four_queries);
}

AVX512 void sl_attn_tiles_q8_avx512(const sl_tile_args *args, size_t n_tiles, size_t stride, sl_attn_tile_fn tile)
{
    if (args->n_queries < SL_FOUR_LEAST || args->n_queries > SL_FEW_AVX512_Q8)
        sl_attn_tiles_q8_ref(args, n_tiles, stride, tile);
    else
        four_run(args, 0, n_tiles, stride, four_queries);
}

#else
typedef int sl_attn_four_avx512_is_for_x86;
#endif
