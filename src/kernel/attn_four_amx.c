/* Q8_0 attention tiles against four queries at a time (attn_four.h) for AMX: the bits of attn_ref.c. One left operand
 * of sixteen keys, or dimensions, as they lie meets all of their bytes. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/amx.h"
#include "kernel/attn_few.h"
#include "kernel/attn_four.h"

enum { TILE_BYTES = AMX_ROWS * AMX_ROW_BYTES, BLOCKS = SL_TILE / AMX_ROWS };

/* [64][16] products of one pair */
typedef int32_t products[SL_TILE][SL_LANES];

/* ---- tile instructions: 64 keys or dimensions times a pair of groups ---- */

/* Of a tile's keys, which need not be the tile of w. */
AMX_INLINE void score_products(const few_work *w, const uint8_t *tile, size_t pair)
{
    const size_t stride = w->head_dim;
    const uint8_t *k = tile + pair * AMX_ROW_BYTES, *k1 = k + AMX_ROWS * stride, *k2 = k1 + AMX_ROWS * stride;
    const uint8_t *k3 = k2 + AMX_ROWS * stride;
    AMX_LOAD(2, w->q[pair][0], AMX_ROW_BYTES);
    AMX_LOAD(3, w->q[pair][1], AMX_ROW_BYTES);
#define PRODUCT(c, a, from)                                                                                            \
    AMX_LOAD(a, from, stride);                                                                                         \
    AMX_ZERO(c);                                                                                                       \
    AMX_DOT_SU(c, a, 2);                                                                                               \
    AMX_DOT_SS(c, a, 3);
    PRODUCT(4, 0, k) PRODUCT(5, 1, k1) PRODUCT(6, 0, k2) PRODUCT(7, 1, k3)
#undef PRODUCT
}

AMX_INLINE void output_products(const few_work *w, size_t pair)
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

/* A product's row holds low and high bytes of the first group, then of the second: [quarter] those of four rows. */
AMX_INLINE void fold_group(few_work *w, products from, size_t g)
{
    const int32_t *in = from[g % 2 * SL_GROUP];
    for (size_t i = 0; i < SL_GROUP; i += 4, in += 4 * SL_LANES) {
        __m512i a = _mm512_load_si512(in), b = _mm512_load_si512(in + SL_LANES);
        __m512i c = _mm512_load_si512(in + 2 * SL_LANES), d = _mm512_load_si512(in + 3 * SL_LANES);
        __m512i ab = g % 2 ? _mm512_shuffle_i32x4(a, b, 0xee) : _mm512_shuffle_i32x4(a, b, 0x44);
        __m512i cd = g % 2 ? _mm512_shuffle_i32x4(c, d, 0xee) : _mm512_shuffle_i32x4(c, d, 0x44);
        __m512i out = join(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
        four_fold(w, g * SL_GROUP + i, out);
    }
}

/* ---- the entry ---- */

/* Softmax and outputs of w's tile, whose scores are complete. */
AMX_INLINE void fold_tile(few_work *w, products out, float softcap, const bool masked)
{
    four_softmax(w, softcap, masked);
    for (size_t pair = 0; pair < w->n_pairs; pair++) {
        weights_of_pair(w, pair, masked);
        output_products(w, pair);
        store_products(out);
        sl_attn_fetch_outer(w->next + 68 * w->head_dim + pair * 2 * SL_GROUP * SL_TILE, 2 * SL_GROUP * SL_TILE);
        fold_group(w, out, 2 * pair);
        if (2 * pair + 1 < w->n_groups)
            fold_group(w, out, 2 * pair + 1);
    }
    four_fetch_scales(w);
}

/* Products take their time: those of the pair after, or of the tile after, are begun before a pair's are used. */
AMX_INLINE void four_queries(few_work *w, const four_tiles *tiles, float softcap, const bool masked)
{
    _Alignas(64) products out[3];
    size_t turn = 0;
    score_products(w, tiles->first, 0);
    store_products(out[turn]);
    for (size_t i = 0; i < tiles->n; i++) {
        w->tile = four_tile(tiles, i);
        w->next = four_tile(tiles, i + 2); /* the tile after is read already */
        for (size_t pair = 0; pair < w->n_pairs; pair++, turn = 1 - turn) {
            if (pair + 1 < w->n_pairs)
                score_products(w, w->tile, pair + 1);
            else if (i + 1 < tiles->n)
                score_products(w, four_tile(tiles, i + 1), 0);
            store_products(out[1 - turn]);
            sl_attn_fetch_outer(w->next + pair * 2 * SL_GROUP * SL_TILE, 2 * SL_GROUP * SL_TILE);
            if (2 * pair + 1 < w->n_groups)
                add_scores(w, out[turn], pair, true);
            else
                add_scores(w, out[turn], pair, false);
        }
        fold_tile(w, out[2], softcap, masked);
    }
}

AMX_INLINE void run(const sl_tile_args *args, size_t first, size_t n_tiles, size_t stride)
{
    static const amx_config config = {
        .palette = AMX_PALETTE,
        .row_bytes = {AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES,
                      AMX_ROW_BYTES, AMX_ROW_BYTES},
        .rows = {AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS}};
    amx_configure(&config);
    four_run(args, first, n_tiles, stride, four_queries);
    amx_release();
}

AMX void sl_attn_four_q8_amx(const sl_tile_args *args, size_t first)
{
    run(args, first, 1, 0);
}

AMX void sl_attn_tiles_q8_amx(const sl_tile_args *args, size_t n_tiles, size_t stride, sl_attn_tile_fn tile)
{
    if (args->n_queries < SL_FOUR_LEAST || args->n_queries > SL_FEW_AMX_Q8)
        sl_attn_tiles_q8_ref(args, n_tiles, stride, tile);
    else
        run(args, 0, n_tiles, stride);
}

#else
typedef int sl_attn_four_amx_is_for_x86;
#endif
