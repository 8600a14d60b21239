/* Q8_0 attention tiles against four queries at a time (attn_four.h) for AMX: the bits of attn_ref.c. One left operand
 * of sixteen keys, or dimensions, as they lie meets all of their bytes. */
#include "kernel/attn_few.h"

#if defined(__x86_64__)

#include "kernel/amx.h"
#include "kernel/attn_four.h"

enum { TILE_BYTES = AMX_ROWS * AMX_ROW_BYTES, BLOCKS = SL_TILE / AMX_ROWS };

/* [64][16] products of one pair */
typedef int32_t products[SL_TILE][SL_LANES];

/* ---- tile instructions: 64 keys or dimensions times a pair of groups ---- */

AMX_INLINE void score_products(few_work *w, size_t pair)
{
    const size_t stride = w->head_dim;
    const uint8_t *k = w->tile + pair * AMX_ROW_BYTES, *k1 = k + AMX_ROWS * stride, *k2 = k1 + AMX_ROWS * stride;
    const uint8_t *k3 = k2 + AMX_ROWS * stride;
    AMX_LOAD(2, w->q[pair][0], AMX_ROW_BYTES);
    AMX_LOAD(3, w->q[pair][1], AMX_ROW_BYTES);
#define LOW(c, a, from)                                                                                                \
    AMX_LOAD(a, from, stride);                                                                                         \
    AMX_ZERO(c);                                                                                                       \
    AMX_DOT_SU(c, a, 2);
#define HIGH(c, a, from)                                                                                               \
    AMX_LOAD(a, from, stride);                                                                                         \
    AMX_DOT_SS(c, a, 3);
    LOW(4, 0, k) LOW(5, 1, k1) LOW(6, 0, k2) LOW(7, 1, k3) HIGH(4, 0, k) HIGH(5, 1, k1) HIGH(6, 0, k2) HIGH(7, 1, k3)
#undef LOW
#undef HIGH
}

AMX_INLINE void output_products(few_work *w, size_t pair)
{
    const uint8_t *v = w->tile + 68 * w->head_dim + pair * BLOCKS * TILE_BYTES;
    AMX_LOAD(2, w->p[pair], AMX_ROW_BYTES);
#define PRODUCT(c, a, from)                                                                                            \
    AMX_LOAD(a, from, AMX_ROW_BYTES);                                                                                  \
    AMX_ZERO(c);                                                                                                       \
    AMX_DOT_SU(c, a, 2);
    PRODUCT(4, 0, v)
    PRODUCT(5, 1, v + TILE_BYTES)
    if (2 * pair + 1 < w->n_groups) {
        PRODUCT(6, 0, v + 2 * TILE_BYTES)
        PRODUCT(7, 1, v + 3 * TILE_BYTES)
    }
#undef PRODUCT
}

AMX_INLINE void store_products(products out)
{
    AMX_STORE(4, out[0], AMX_ROW_BYTES);
    AMX_STORE(5, out[16], AMX_ROW_BYTES);
    AMX_STORE(6, out[32], AMX_ROW_BYTES);
    AMX_STORE(7, out[48], AMX_ROW_BYTES);
}

/* ---- scores ---- */

/* low + 256 * high */
AMX_INLINE __m512i join(__m512i low, __m512i high)
{
    const __m512i up = _mm512_broadcast_i32x4(_mm_setr_epi8(-1, 0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1, 12, 13, 14));
    return _mm512_add_epi32(low, _mm512_shuffle_epi8(high, up));
}

/* Scores of all keys take in a pair's products, or of its first group only. */
AMX_INLINE void add_scores(few_work *w, products from, size_t pair, const bool whole)
{
    const uint8_t *ks = w->tile + 64 * w->head_dim + pair * 4 * SL_TILE;
    const __m512 qs0 = _mm512_broadcast_f32x4(_mm_load_ps(w->qs + 2 * pair * SL_LANES));
    const __m512 qs1 = whole ? _mm512_broadcast_f32x4(_mm_load_ps(w->qs + (2 * pair + 1) * SL_LANES)) : qs0;
    for (int sixteen = 0; sixteen < BLOCKS; sixteen++, ks += 32) {
        const __m512 ks0 = few_halves(ks), ks1 = whole ? few_halves(ks + 2 * SL_TILE) : ks0;
        for (int i = 0; i < 4; i++) {
            const int32_t *in = from[16 * sixteen + 4 * i];
            __m512i a = _mm512_load_si512(in), b = _mm512_load_si512(in + SL_LANES);
            __m512i c = _mm512_load_si512(in + 2 * SL_LANES), d = _mm512_load_si512(in + 3 * SL_LANES);
            /* by quarters: key 0 of the first group, of the second, key 1 of the first, of the second */
            __m512i ab = join(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
            __m512i cd = join(_mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xdd));
            __m512 s = pair == 0 ? _mm512_setzero_ps() : _mm512_load_ps(w->s[4 * sixteen + i]);
            __m512 dot = _mm512_cvtepi32_ps(_mm512_shuffle_i32x4(ab, cd, 0x88));
            s = _mm512_fmadd_ps(dot, _mm512_mul_ps(of_quad(ks0, i), qs0), s);
            if (whole) {
                dot = _mm512_cvtepi32_ps(_mm512_shuffle_i32x4(ab, cd, 0xdd));
                s = _mm512_fmadd_ps(dot, _mm512_mul_ps(of_quad(ks1, i), qs1), s);
            }
            _mm512_store_ps(w->s[4 * sixteen + i], s);
        }
    }
}

/* ---- the fold ---- */

AMX_INLINE void fold_group(const few_work *w, products from, size_t g, const bool masked)
{
    const __m128 scale = w->scale[g], alpha = w->alpha, beta = w->beta;
    const int32_t *in = from[g % 2 * SL_GROUP] + g % 2 * 8;
    float *at = w->state + (2 + g * SL_GROUP) * SL_LANES;
    for (int i = 0; i < SL_GROUP; i++, at += SL_LANES, in += SL_LANES) {
        __m128i low = _mm_load_si128((const __m128i *)(const void *)in);
        __m128i high = _mm_load_si128((const __m128i *)(const void *)(in + 4));
        __m128 o = _mm_cvtepi32_ps(_mm_add_epi32(low, _mm_slli_epi32(high, 8)));
        o = _mm_mul_ps(_mm_mul_ps(o, scale), beta);
        o = _mm_fmadd_ps(_mm_load_ps(at), alpha, o);
        if (masked)
            _mm_mask_store_ps(at, w->seen, o);
        else
            _mm_store_ps(at, o);
    }
}

/* ---- the entry ---- */

AMX_INLINE void four_queries(few_work *w, float softcap, const bool masked)
{
    const uint8_t *next = w->next;
    _Alignas(64) products out;
    for (size_t pair = 0; pair < w->n_pairs; pair++) {
        score_products(w, pair);
        store_products(out);
        sl_attn_fetch_outer(next + pair * 2 * SL_GROUP * SL_TILE, 2 * SL_GROUP * SL_TILE);
        if (2 * pair + 1 < w->n_groups)
            add_scores(w, out, pair, true);
        else
            add_scores(w, out, pair, false);
    }
    four_softmax(w, softcap, masked);
    for (size_t pair = 0; pair < w->n_pairs; pair++) {
        weights_of_pair(w, pair, masked);
        output_products(w, pair);
        store_products(out);
        sl_attn_fetch_outer(next + 68 * w->head_dim + pair * 2 * SL_GROUP * SL_TILE, 2 * SL_GROUP * SL_TILE);
        for (size_t g = 2 * pair; g < 2 * pair + 2 && g < w->n_groups; g++)
            fold_group(w, out, g, masked);
    }
    four_fetch_scales(w);
}

AMX void sl_attn_four_q8_amx(const sl_tile_args *args, size_t first)
{
    static const amx_config config = {
        .palette = AMX_PALETTE,
        .row_bytes = {AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES,
                      AMX_ROW_BYTES, AMX_ROW_BYTES},
        .rows = {AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS}};
    amx_configure(&config);
    four_run(args, first, four_queries);
    amx_release();
}

#else
typedef int sl_attn_four_amx_is_for_x86;
#endif
