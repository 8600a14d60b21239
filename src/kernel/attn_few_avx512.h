/* What the AVX-512 attention kernels for few queries share: one query's softmax of a tile, lanes being keys.
 * Private to this folder, x86-64 only. */
#ifndef SL_ATTN_FEW_AVX512_H
#define SL_ATTN_FEW_AVX512_H

#include "kernel/attn_few.h"
#include "kernel/avx512.h"

/* One query's part of the softmax. */
typedef struct few_softmax {
    __m512 s[4];  /* scores, then p: keys 0..15, 16..31, ... */
    float *state; /* at the query's lane */
    uint64_t mask;
    float alpha, beta; /* of the fold */
} few_softmax;

AVX512_INLINE __m512 few_halves(const uint8_t *in)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)in));
}

AVX512_INLINE float few_max_of_lanes(__m512 x)
{
    __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

AVX512_INLINE float few_tree_of_lanes(__m512 x)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

/* Softcap, mask, maximum, p and its sum; m and l of the state; alpha and beta for its o. */
AVX512_INLINE void few_softmax_run(few_softmax *f, float softcap)
{
    const __m512 nothing = _mm512_set1_ps(-INFINITY), cap = _mm512_set1_ps(softcap * SL_LOG2E);
    __m512 most = nothing, sum = _mm512_setzero_ps();
    for (int i = 0; i < 4; i++) {
        if (softcap != 0.0f)
            f->s[i] = _mm512_mul_ps(cap, sl_avx512_tanh(f->s[i]));
        /* a hidden key's score becomes -inf, from which p = +0 follows */
        f->s[i] = _mm512_mask_mov_ps(nothing, (__mmask16)(f->mask >> 16 * i), f->s[i]);
        most = _mm512_max_ps(f->s[i], most); /* passes over a NaN */
    }
    float m = few_max_of_lanes(most) + 0.0f; /* -0 becomes +0 */
    for (int i = 0; i < 4; i++) {
        f->s[i] = sl_avx512_exp2(_mm512_sub_ps(f->s[i], _mm512_set1_ps(m)));
        sum = _mm512_add_ps(sum, f->s[i]);
    }
    float l = few_tree_of_lanes(sum), before = f->state[0], m_new = m > before ? m : before;
    __m128 both = _mm_sub_ps(_mm_setr_ps(before, m, 0.0f, 0.0f), _mm_set1_ps(m_new));
    both = _mm512_castps512_ps128(sl_avx512_exp2(_mm512_zextps128_ps512(both)));
    f->alpha = _mm_cvtss_f32(both);
    f->beta = _mm_cvtss_f32(_mm_movehdup_ps(both));
    f->state[0] = m_new;
    f->state[SL_LANES] = fmaf(f->state[SL_LANES], f->alpha, l * f->beta);
}

#endif
