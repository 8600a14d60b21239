/* Attention tiles over Q8_0 storage for SME: the bits of attn_ref.c.
 * Lanes are queries. A key is 16-bit query times signed byte: two products, of the query's low bytes (unsigned) and
 * high bytes (signed), joined as low + 256 * high; P's two bytes likewise. Keys and values are turned once per tile, so
 * that four dimensions of a key and four keys of a value's dimension share a lane.
 * Streaming mode is entered once per two groups of a block: for these groups' scores of one block and outputs of the
 * block before it. All floating point is NEON's, outside. A last block of few queries is the level's below. */
#include "kernel/levels.h"

#if defined(__aarch64__) && defined(SLUICE_HAVE_SME)

#include <assert.h>

#include "kernel/attn_neon.h"
#include "kernel/sme.h"

enum {
    FEWEST_QUERIES = 9,                  /* of a last block: fewer fill no more than two of NEON's vectors */
    PAIR = 2,                            /* groups whose products lie in memory at a time */
    KEY_QUADS = SL_TILE / 4,             /* of a tile */
    GROUP_QUADS = SL_GROUP / 4,          /* of a group's dimensions */
    LANE_BYTES = 4,
    P_BYTES = KEY_QUADS * SME_ROW_BYTES, /* low or high bytes of a group's P */
};

/* Low and high products of up to PAIR groups. */
typedef struct products {
    _Alignas(64) int32_t scores[PAIR][2][SL_TILE][SL_LANES];
    int32_t outputs[PAIR][2][SL_GROUP][SL_LANES];
} products;

typedef struct q8_tile {
    size_t head_dim, n_groups;
    uint8_t *k; /* [D/4][64][4] */
    uint8_t *v; /* [16][D][4] */
    uint8_t *q; /* [2][D/4][16][4] low, high bytes of a block's queries */
    uint8_t *p; /* [D/32][2][16][16][4] low, high bytes of a block's P */
    sl_neon_scales scales;
    products *products;
} q8_tile;

/* ---- streaming mode ---- */

/* Words turned by way of ZA: rows in, columns out. */
SME static void turn_tile(const q8_tile *t, const uint8_t *tile)
{
    const size_t words = t->head_dim / 4;
    const svbool_t all = svptrue_b32();
    for (size_t keys = 0; keys < SL_TILE; keys += SME_ROWS)
        for (size_t first = 0; first < words; first += SME_ROWS) {
            const size_t n = words - first < SME_ROWS ? words - first : SME_ROWS;
            const svbool_t some = svwhilelt_b32_u64(0, n);
            SME_EACH_ROW
            for (uint32_t i = 0; i < SME_ROWS; i++)
                svld1_hor_za32(0, i, some, tile + (keys + i) * t->head_dim + first * LANE_BYTES);
            SME_EACH_ROW
            for (uint32_t i = 0; i < n; i++)
                svst1_ver_za32(0, i, all, t->k + ((first + i) * SL_TILE + keys) * LANE_BYTES);
        }
    const uint8_t *v = tile + 68 * t->head_dim;
    for (size_t dims = 0; dims < t->head_dim; dims += SME_ROWS) {
        SME_EACH_ROW
        for (uint32_t i = 0; i < SME_ROWS; i++)
            svld1_hor_za32(0, i, all, v + (dims + i) * SL_TILE);
        SME_EACH_ROW
        for (uint32_t i = 0; i < KEY_QUADS; i++)
            svst1_ver_za32(0, i, all, t->v + (i * t->head_dim + dims) * LANE_BYTES);
    }
}

/* Tiles 0 and 1 hold low and high products of sixteen keys or dimensions, 2 and 3 of the next sixteen. */
SME_INLINE void store_products(int32_t *low, int32_t *high) __arm_streaming __arm_inout("za")
{
    const svbool_t all = svptrue_b32();
    SME_EACH_ROW
    for (uint32_t i = 0; i < SME_ROWS; i++, low += SL_LANES, high += SL_LANES) {
        svst1_hor_za32(0, i, all, low);
        svst1_hor_za32(1, i, all, high);
        svst1_hor_za32(2, i, all, low + SME_ROWS * SL_LANES);
        svst1_hor_za32(3, i, all, high + SME_ROWS * SL_LANES);
    }
}

/* `n` groups from `first` on: scores of the block whose queries are in t->q, outputs of the one whose P is in t->p. */
SME static void multiply(const q8_tile *t, size_t first, size_t n, bool scores, bool outputs)
{
    const svbool_t bytes = svptrue_b8();
    const uint8_t *high_q = t->q + t->head_dim / 4 * SME_ROW_BYTES;
    for (size_t g = 0; scores && g < n; g++)
        for (size_t keys = 0; keys < SL_TILE; keys += 2 * SME_ROWS) {
            const size_t quad = (first + g) * GROUP_QUADS;
            svzero_za();
            for (size_t i = quad; i < quad + GROUP_QUADS; i++) {
                const int8_t *k = (const int8_t *)t->k + (i * SL_TILE + keys) * LANE_BYTES;
                const svint8_t k0 = svld1_s8(bytes, k), k1 = svld1_s8(bytes, k + SME_ROW_BYTES);
                const svuint8_t low = svld1_u8(bytes, t->q + i * SME_ROW_BYTES);
                const svint8_t high = svld1_s8(bytes, (const int8_t *)high_q + i * SME_ROW_BYTES);
                svsumopa_za32_s8_m(0, bytes, bytes, k0, low);
                svmopa_za32_s8_m(1, bytes, bytes, k0, high);
                svsumopa_za32_s8_m(2, bytes, bytes, k1, low);
                svmopa_za32_s8_m(3, bytes, bytes, k1, high);
            }
            store_products(t->products->scores[g][0][keys], t->products->scores[g][1][keys]);
        }
    for (size_t g = 0; outputs && g < n; g++) {
        const uint8_t *p = t->p + (first + g) * 2 * P_BYTES;
        svzero_za();
        for (size_t i = 0; i < KEY_QUADS; i++, p += SME_ROW_BYTES) {
            const int8_t *v = (const int8_t *)t->v + (i * t->head_dim + (first + g) * SL_GROUP) * LANE_BYTES;
            const svint8_t v0 = svld1_s8(bytes, v), v1 = svld1_s8(bytes, v + SME_ROW_BYTES);
            const svuint8_t low = svld1_u8(bytes, p), high = svld1_u8(bytes, p + P_BYTES);
            svsumopa_za32_s8_m(0, bytes, bytes, v0, low);
            svsumopa_za32_s8_m(1, bytes, bytes, v0, high);
            svsumopa_za32_s8_m(2, bytes, bytes, v1, low);
            svsumopa_za32_s8_m(3, bytes, bytes, v1, high);
        }
        store_products(t->products->outputs[g][0][0], t->products->outputs[g][1][0]);
    }
}

/* ---- NEON: bytes ---- */

NEON static void split_queries(const q8_tile *t, const uint8_t *q)
{
    uint8_t *low = t->q, *high = t->q + t->head_dim / 4 * SME_ROW_BYTES;
    for (size_t i = 0; i < t->head_dim / 4; i++, q += 2 * SME_ROW_BYTES)
        for (size_t j = 0; j < SME_ROW_BYTES; j += 32, low += 32, high += 32) {
            /* two dimensions of eight queries, the next two of the same: low and high bytes apart */
            const uint8x16x2_t a = vld2q_u8(q + j), b = vld2q_u8(q + SME_ROW_BYTES + j);
            const uint16x8_t a0 = vreinterpretq_u16_u8(a.val[0]), a1 = vreinterpretq_u16_u8(a.val[1]);
            const uint16x8_t b0 = vreinterpretq_u16_u8(b.val[0]), b1 = vreinterpretq_u16_u8(b.val[1]);
            vst1q_u8(low, vreinterpretq_u8_u16(vzip1q_u16(a0, b0)));
            vst1q_u8(low + 16, vreinterpretq_u8_u16(vzip2q_u16(a0, b0)));
            vst1q_u8(high, vreinterpretq_u8_u16(vzip1q_u16(a1, b1)));
            vst1q_u8(high + 16, vreinterpretq_u8_u16(vzip2q_u16(a1, b1)));
        }
}

NEON_INLINE float32x4_t join(const int32_t *low, const int32_t *high)
{
    return vcvtq_f32_s32(vaddq_s32(vld1q_s32(low), vshlq_n_s32(vld1q_s32(high), 8)));
}

/* P of a block, vector j: four keys' 16-bit numbers to a lane of low and a lane of high bytes. */
NEON_INLINE void store_weights(const q8_tile *t, const sl_neon_block *b, size_t j, const bool masked)
{
    for (size_t g = 0; g < t->n_groups; g++) {
        uint8_t *low = t->p + g * 2 * P_BYTES + 16 * j;
        float32x4_t inverse = vdupq_n_f32(0.0f);
        if (masked)
            inverse = sl_neon_inverse(sl_neon_visible_vmax(&t->scales, b, g, j));
        for (size_t key = 0; key < SL_TILE; key += 4, low += SME_ROW_BYTES) {
            uint8x16_t pairs[2]; /* keys 0 and 2, 1 and 3 */
            sl_neon_weight_pairs(&t->scales, b, g, key, j, inverse, masked, pairs);
            vst1q_u8(low, vtrn1q_u8(pairs[0], pairs[1]));
            vst1q_u8(low + P_BYTES, vtrn2q_u8(pairs[0], pairs[1]));
        }
    }
}

/* ---- NEON: scores, the fold ---- */

/* The scores take in `n` groups' products. */
NEON static void add_scores(const q8_tile *t, const sl_neon_block *b, size_t first, size_t n)
{
    const float *qs = (const float *)(const void *)((const uint8_t *)b->q + t->head_dim * SL_LANES * sizeof(int16_t));
    for (size_t g = 0; g < n; g++) {
        const float *ks = t->scales.ks + (first + g) * SL_TILE, *q = qs + (first + g) * SL_LANES;
        const float32x4_t q4[SL_NEON_VECTORS] = {vld1q_f32(q), vld1q_f32(q + 4), vld1q_f32(q + 8), vld1q_f32(q + 12)};
        for (size_t key = 0; key < SL_TILE; key++) {
            const int32_t *low = t->products->scores[g][0][key], *high = t->products->scores[g][1][key];
            float *s = b->s + key * SL_LANES;
            for (size_t j = 0; j < SL_NEON_VECTORS; j++) {
                float32x4_t before = first + g == 0 ? vdupq_n_f32(0.0f) : vld1q_f32(s + 4 * j);
                vst1q_f32(s + 4 * j, vfmaq_f32(before, join(low + 4 * j, high + 4 * j), vmulq_n_f32(q4[j], ks[key])));
            }
        }
    }
}

NEON_INLINE void fold_outputs(const q8_tile *t, const sl_neon_block *b, size_t first, size_t n, const bool masked)
{
    for (size_t g = 0; g < n; g++)
        for (size_t j = 0; j < SL_NEON_VECTORS; j++) {
            float32x4_t vmax = vdupq_n_f32(t->scales.vmax[first + g]);
            if (masked)
                vmax = sl_neon_visible_vmax(&t->scales, b, first + g, j);
            const float32x4_t scale = vdivq_f32(vmax, vdupq_n_f32(65535.0f));
            for (size_t d = 0; d < SL_GROUP; d++) {
                const int32_t *low = t->products->outputs[g][0][d], *high = t->products->outputs[g][1][d];
                const float32x4_t o = vmulq_f32(join(low + 4 * j, high + 4 * j), scale);
                sl_neon_fold_o(b, j, (first + g) * SL_GROUP + d, o, masked);
            }
        }
}

/* ---- the entry ---- */

typedef struct work {
    _Alignas(64) float s[SL_TILE][SL_LANES];
    uint32_t vis[2][SL_TILE][SL_LANES];
    products products;
} work;

NEON static void finish_scores(const q8_tile *t, sl_neon_block *b, float softcap, const bool masked)
{
    if (masked)
        sl_neon_softmax(b, softcap, true);
    else
        sl_neon_softmax(b, softcap, false);
    for (size_t j = 0; j < SL_NEON_VECTORS; j++)
        if (masked)
            store_weights(t, b, j, true);
        else
            store_weights(t, b, j, false);
}

/* A block's scores beside the outputs of the one before it: NULL if there is none, or no more. */
NEON static void both(const q8_tile *t, const sl_neon_block *now, const sl_neon_block *before, const bool masked_before)
{
    if (now)
        split_queries(t, now->q);
    for (size_t g = 0; g < t->n_groups; g += PAIR) {
        const size_t n = t->n_groups - g < PAIR ? t->n_groups - g : PAIR;
        multiply(t, g, n, now != NULL, before != NULL);
        if (now)
            add_scores(t, now, g, n);
        if (before && masked_before)
            fold_outputs(t, before, g, n, true);
        else if (before)
            fold_outputs(t, before, g, n, false);
    }
}

NEON static void run_blocks(const q8_tile *t, const sl_tile_args *args, work *w)
{
    const size_t qblock_bytes = sl_qblock_bytes(SL_KV_TYPE_Q8_0, args->head_dim);
    sl_neon_block blocks[2], *before = NULL;
    bool masked_before = false;
    for (size_t i = 0, n = 0; i * SL_LANES < args->n_queries; i++) {
        sl_neon_block *now = blocks + n % 2;
        now->s = w->s[0];
        now->vis = w->vis[n % 2][0];
        const sl_neon_cut cut = sl_neon_block_start(now, args, i, args->n_queries, qblock_bytes);
        if (cut == SL_NEON_CUT_ALL)
            continue;
        now->nv = SL_NEON_VECTORS;
        both(t, now, before, masked_before);
        masked_before = cut == SL_NEON_CUT_SOME;
        finish_scores(t, now, args->softcap, masked_before);
        before = now;
        n++;
    }
    if (before)
        both(t, NULL, before, masked_before);
}

NEON void sl_attn_tile_q8_sme(const sl_tile_args *args)
{
    const size_t head_dim = args->head_dim, n_groups = head_dim / SL_GROUP;
    assert(head_dim % SL_GROUP == 0 && head_dim <= SL_MAX_HEAD_DIM);
    const size_t few = sl_attn_few(args->n_queries, FEWEST_QUERIES - 1), whole = args->n_queries - few;
    if (few > 0) {
        sl_tile_args rest = *args;
        rest.n_queries = few;
        rest.qblocks += whole / SL_LANES * sl_qblock_bytes(SL_KV_TYPE_Q8_0, head_dim);
        rest.states += whole / SL_LANES * args->state_stride;
        rest.masks = args->masks ? args->masks + whole : NULL;
        sl_attn_tile_q8_i8mm(&rest);
    }
    if (whole == 0)
        return;
    sl_tile_args rest = *args;
    rest.n_queries = whole;
    work w;
    q8_tile t = {.head_dim = head_dim, .n_groups = n_groups, .products = &w.products};
    t.k = args->scratch;
    t.v = t.k + SL_TILE * head_dim;
    t.q = t.v + SL_TILE * head_dim;
    t.p = t.q + 2 * SL_LANES * head_dim;
    t.scales.ks = (float *)(void *)(t.p + n_groups * 2 * P_BYTES);
    t.scales.vs = t.scales.ks + n_groups * SL_TILE;
    t.scales.vf = t.scales.vs + n_groups * SL_TILE;
    turn_tile(&t, args->tile);
    sl_neon_scales_load(&t.scales, args->tile, head_dim);
    run_blocks(&t, &rest, &w);
}

#else
typedef int sl_attn_sme_is_for_arm64;
#endif
