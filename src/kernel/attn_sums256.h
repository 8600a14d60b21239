/* Bytes widened and sums across the lanes of 256-bit vectors, for one Q8_0 query or two: what attn_few256.h counts
 * with. */
#ifndef SL_ATTN_SUMS256_H
#define SL_ATTN_SUMS256_H

#if defined(__x86_64__)

#include "kernel/attn_dot256.h"

/* Queries that share what is widened, at most: more would share little more (a third of the work) and spill. */
enum { TOGETHER_Q8 = 2 };

/* A 32-bit vector for each of nq queries. */
typedef struct sums {
    __m256i of[TOGETHER_Q8];
} sums;

/* Even and odd signed bytes as 16-bit numbers. */
BODY __m256i even_bytes(__m256i x)
{
    return _mm256_maddubs_epi16(_mm256_set1_epi16(1), x); /* 1 * even + 0 * odd */
}

BODY __m256i odd_bytes(__m256i x)
{
    return _mm256_srai_epi16(x, 8);
}

/* Even and odd 16-bit numbers of 32 that lie in order. */
BODY void split_pairs(int16_t *out, __m256i a, __m256i b)
{
    __m256i even = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_slli_epi32(a, 16), 16),
                                      _mm256_srai_epi32(_mm256_slli_epi32(b, 16), 16));
    __m256i odd = _mm256_packs_epi32(_mm256_srai_epi32(a, 16), _mm256_srai_epi32(b, 16));
    _mm256_store_si256((__m256i *)(void *)out, _mm256_permute4x64_epi64(even, 0xd8));
    _mm256_store_si256((__m256i *)(void *)(out + 16), _mm256_permute4x64_epi64(odd, 0xd8));
}

/* The sums of eight vectors' lanes, in order, are three rounds of adding neighbours: of 2, 4 and 8 vectors. */
BODY sums add_2(sums a, sums b, const int nq)
{
    sums r = {{_mm256_setzero_si256()}};
    for (int j = 0; j < nq; j++)
        r.of[j] = _mm256_add_epi32(_mm256_unpacklo_epi32(a.of[j], b.of[j]), _mm256_unpackhi_epi32(a.of[j], b.of[j]));
    return r;
}

BODY sums add_4(sums a, sums b, const int nq)
{
    sums r = {{_mm256_setzero_si256()}};
    for (int j = 0; j < nq; j++)
        r.of[j] = _mm256_add_epi32(_mm256_blend_epi32(a.of[j], b.of[j], 0xcc), _mm256_alignr_epi8(b.of[j], a.of[j], 8));
    return r;
}

BODY sums add_8(sums a, sums b, const int nq)
{
    sums r = {{_mm256_setzero_si256()}};
    for (int j = 0; j < nq; j++)
        r.of[j] = _mm256_add_epi32(_mm256_blend_epi32(a.of[j], b.of[j], 0xf0),
                                   _mm256_permute2x128_si256(a.of[j], b.of[j], 0x21));
    return r;
}

#define SUM_OF_EIGHT(of, nq)                                                                                           \
    add_8(add_4(add_2(of(0), of(1), nq), add_2(of(2), of(3), nq), nq),                                                 \
          add_4(add_2(of(4), of(5), nq), add_2(of(6), of(7), nq), nq), nq)

#endif
#endif
