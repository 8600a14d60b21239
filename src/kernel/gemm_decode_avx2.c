/* Blocks of packed weights to bytes and binary32 scales (gemm_panels.h), for the 256-bit levels. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/gemm_quads.h"

AVX2_INLINE void decode_group(uint8_t (*w)[2][SL_HALF_BYTES], const uint8_t *group, sl_packing p)
{
    for (size_t h = 0; h < 2; h++)
        for (size_t i = 0; i < SL_QUADS / 2; i++) {
            __m256i pair[2];
            sl_quad_pair(pair, group, i, h, p);
            _mm256_store_si256((__m256i *)(void *)w[2 * i][h], pair[0]);
            _mm256_store_si256((__m256i *)(void *)w[2 * i + 1][h], pair[1]);
        }
}

AVX2_INLINE void decode_block(sl_panel_block *out, const uint8_t *packed, size_t n, sl_wtype type)
{
    const sl_packing p = sl_packing_of(type);
    sl_heads_of(&out->heads, packed, n, p);
    for (size_t g = 0; g < n; g++) {
        sl_prefetch_ahead(packed, g, type);
        decode_group(out->w[g], packed + g * sl_packing_step(p), p);
    }
}

AVX2 void sl_panel_decode_q4_0(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_Q4_0);
}

AVX2 void sl_panel_decode_q4_1(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_Q4_1);
}

AVX2 void sl_panel_decode_q5_0(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_Q5_0);
}

AVX2 void sl_panel_decode_q5_1(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_Q5_1);
}

AVX2 void sl_panel_decode_q4_k(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_Q4_K);
}

AVX2 void sl_panel_decode_q5_k(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_Q5_K);
}

AVX2 void sl_panel_decode_iq4_nl(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_IQ4_NL);
}

AVX2 void sl_panel_decode_iq4_xs(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_IQ4_XS);
}

AVX2 void sl_panel_decode_mxfp4(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_block(out, packed, n, SL_WTYPE_MXFP4);
}

/* A type with sub-scales: `pairs` as two int16 or as one number. */
AVX2_INLINE void decode_with_subs(sl_panel_block *out, const uint8_t *packed, size_t n, sl_wtype type, bool pairs)
{
    const sl_packing p = sl_packing_of(type);
    decode_block(out, packed, n, type);
    for (size_t g = 0; g < n; g++)
        for (size_t h = 0; h < 2; h++) {
            if (p.minimum)
                _mm256_store_si256((__m256i *)(void *)out->minimums[g][h], sl_minimums_of(packed, g, h, p));
            __m256i sub[2];
            sl_subs_of(sub, packed, g, h, p);
            for (size_t part = 0; part < 2; part++) {
                __m256i w[4];
                for (size_t k = 0; k < 4; k++)
                    w[k] = sl_load_256(out->w[g][4 * part + k][h]);
                __m256i start = pairs ? sl_start_pairs(w) : sl_start_whole(w);
                __m256i scale = pairs ? sl_twice_16(sub[part]) : _mm256_castps_si256(_mm256_cvtepi32_ps(sub[part]));
                _mm256_store_si256((__m256i *)(void *)out->start[g][part][h], start);
                _mm256_store_si256((__m256i *)(void *)out->sub[g][part][h], scale);
            }
        }
}

AVX2 void sl_panel_decode_q6_k_pairs(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_with_subs(out, packed, n, SL_WTYPE_Q6_K, true);
}

AVX2 void sl_panel_decode_q6_k_whole(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_with_subs(out, packed, n, SL_WTYPE_Q6_K, false);
}

AVX2 void sl_panel_decode_q2_k_pairs(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_with_subs(out, packed, n, SL_WTYPE_Q2_K, true);
}

AVX2 void sl_panel_decode_q2_k_whole(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_with_subs(out, packed, n, SL_WTYPE_Q2_K, false);
}

AVX2 void sl_panel_decode_q3_k_pairs(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_with_subs(out, packed, n, SL_WTYPE_Q3_K, true);
}

AVX2 void sl_panel_decode_q3_k_whole(sl_panel_block *out, const uint8_t *packed, size_t n)
{
    decode_with_subs(out, packed, n, SL_WTYPE_Q3_K, false);
}

#endif
