/* Attention tiles over F16 storage for SME: the bits of attn_ref.c.
 * Lanes are queries. An outer product of binary32 numbers adds to each element of a tile of ZA with one rounding, so
 * that as many of them, in order, are a fused chain for sixteen keys (or dimensions) by sixteen queries: over the
 * dimensions a score, over the keys an output. They round and keep denormals as FPCR says. A key that a query does not
 * see is left out of its chain by the predicate of columns.
 * Streaming mode is entered once per block, for its scores and the outputs of the block before it; all else is NEON's,
 * outside. A last block of few queries is the level's below. */
#include "kernel/levels.h"

#if defined(__aarch64__) && defined(SLUICE_HAVE_SME)

#include <assert.h>

#include "kernel/attn_neon.h"
#include "kernel/sme.h"

enum { FEWEST_QUERIES = 9, WIDE = 4 * SME_ROWS /* rows of all four tiles */ };

typedef struct f16_tile {
    size_t head_dim;
    float *k, *v; /* [D][64], [64][D] */
    float *o;     /* [D][16] outputs of a block */
} f16_tile;

/* ---- streaming mode ---- */

SME_INLINE void score(const f16_tile *t, const float *q, float *s) __arm_streaming __arm_inout("za")
{
    const svbool_t all = svptrue_b32();
    const float *k = t->k;
    svzero_za();
    for (size_t d = 0; d < t->head_dim; d++, q += SL_LANES, k += SL_TILE) {
        const svfloat32_t queries = svld1_f32(all, q);
        svmopa_za32_f32_m(0, all, all, svld1_f32(all, k), queries);
        svmopa_za32_f32_m(1, all, all, svld1_f32(all, k + SME_ROWS), queries);
        svmopa_za32_f32_m(2, all, all, svld1_f32(all, k + 2 * SME_ROWS), queries);
        svmopa_za32_f32_m(3, all, all, svld1_f32(all, k + 3 * SME_ROWS), queries);
    }
    SME_EACH_ROW
    for (uint32_t i = 0; i < SME_ROWS; i++, s += SL_LANES) {
        svst1_hor_za32(0, i, all, s);
        svst1_hor_za32(1, i, all, s + SME_ROWS * SL_LANES);
        svst1_hor_za32(2, i, all, s + 2 * SME_ROWS * SL_LANES);
        svst1_hor_za32(3, i, all, s + 3 * SME_ROWS * SL_LANES);
    }
}

/* Outputs of dimensions [first, first + n), n at most WIDE; vis: NULL or which queries see each key. */
SME_INLINE void output(const f16_tile *t, const float *p, const uint32_t *vis, size_t first, size_t n)
    __arm_streaming __arm_inout("za")
{
    const svbool_t all = svptrue_b32();
    const svbool_t d0 = svwhilelt_b32_u64(0, n), d1 = svwhilelt_b32_u64(SME_ROWS, n);
    const svbool_t d2 = svwhilelt_b32_u64(2 * SME_ROWS, n), d3 = svwhilelt_b32_u64(3 * SME_ROWS, n);
    const float *v = t->v + first;
    svzero_za();
    for (size_t key = 0; key < SL_TILE; key++, p += SL_LANES, v += t->head_dim) {
        const svfloat32_t weights = svld1_f32(all, p);
        const svbool_t seen = vis ? svcmpne_n_u32(all, svld1_u32(all, vis + key * SL_LANES), 0) : all;
        svmopa_za32_f32_m(0, d0, seen, svld1_f32(d0, v), weights);
        svmopa_za32_f32_m(1, d1, seen, svld1_f32(d1, v + SME_ROWS), weights);
        svmopa_za32_f32_m(2, d2, seen, svld1_f32(d2, v + 2 * SME_ROWS), weights);
        svmopa_za32_f32_m(3, d3, seen, svld1_f32(d3, v + 3 * SME_ROWS), weights);
    }
    float *o = t->o + first * SL_LANES;
    const size_t block = SME_ROWS * SL_LANES;
    SME_EACH_ROW
    for (uint32_t i = 0; i < SME_ROWS; i++, o += SL_LANES) {
        svst1_hor_za32(0, i, all, o);
        if (n > SME_ROWS)
            svst1_hor_za32(1, i, all, o + block);
        if (n > 2 * SME_ROWS)
            svst1_hor_za32(2, i, all, o + 2 * block);
        if (n > 3 * SME_ROWS)
            svst1_hor_za32(3, i, all, o + 3 * block);
    }
}

/* Scores of a block from q to s, if q is there; outputs of a block from p, if p is. */
SME static void multiply(const f16_tile *t, const float *q, float *s, const float *p, const uint32_t *vis)
{
    if (q)
        score(t, q, s);
    for (size_t d = 0; p && d < t->head_dim; d += WIDE)
        output(t, p, vis, d, t->head_dim - d < WIDE ? t->head_dim - d : WIDE);
}

/* ---- NEON ---- */

NEON static void widen(const f16_tile *t, const uint8_t *tile)
{
    const uint8_t *v = tile + 2 * SL_TILE * t->head_dim;
    for (size_t i = 0; i < SL_TILE * t->head_dim; i += 4) {
        vst1q_f32(t->k + i, sl_neon_halves(tile + 2 * i));
        vst1q_f32(t->v + i, sl_neon_halves(v + 2 * i));
    }
}

NEON_INLINE void fold_outputs(const f16_tile *t, const sl_neon_block *b, const bool masked)
{
    for (size_t d = 0; d < t->head_dim; d++)
        for (size_t j = 0; j < SL_NEON_VECTORS; j++)
            sl_neon_fold_o(b, j, d, vld1q_f32(t->o + d * SL_LANES + 4 * j), masked);
}

/* A block's scores beside the outputs of the one before it: NULL if there is none, or no more. */
NEON static void both(const f16_tile *t, const sl_neon_block *now, const sl_neon_block *before, bool masked_before)
{
    multiply(t, now ? now->q : NULL, now ? now->s : NULL, before ? before->s : NULL,
             before && masked_before ? before->vis : NULL);
    if (before && masked_before)
        fold_outputs(t, before, true);
    else if (before)
        fold_outputs(t, before, false);
}

typedef struct work {
    _Alignas(64) float s[2][SL_TILE][SL_LANES];
    uint32_t vis[2][SL_TILE][SL_LANES];
    float o[SL_MAX_HEAD_DIM][SL_LANES];
} work;

NEON static void run_blocks(const f16_tile *t, const sl_tile_args *args, size_t n_queries, work *w)
{
    const size_t qblock_bytes = sl_qblock_bytes(SL_KV_TYPE_F16, args->head_dim);
    sl_neon_block blocks[2], *before = NULL;
    bool masked_before = false;
    for (size_t i = 0, n = 0; i * SL_LANES < n_queries; i++) {
        sl_neon_block *now = blocks + n % 2;
        now->s = w->s[n % 2][0];
        now->vis = w->vis[n % 2][0];
        const sl_neon_cut cut = sl_neon_block_start(now, args, i, n_queries, qblock_bytes);
        if (cut == SL_NEON_CUT_ALL)
            continue;
        now->nv = SL_NEON_VECTORS;
        both(t, now, before, masked_before);
        masked_before = cut == SL_NEON_CUT_SOME;
        if (masked_before)
            sl_neon_softmax(now, args->softcap, true);
        else
            sl_neon_softmax(now, args->softcap, false);
        before = now;
        n++;
    }
    if (before)
        both(t, NULL, before, masked_before);
}

NEON void sl_attn_tile_f16_sme(const sl_tile_args *args)
{
    const size_t head_dim = args->head_dim;
    assert(head_dim % SME_ROWS == 0 && head_dim <= SL_MAX_HEAD_DIM);
    const size_t few = sl_attn_few(args->n_queries, FEWEST_QUERIES - 1), whole = args->n_queries - few;
    if (few > 0) {
        sl_tile_args rest = *args;
        rest.n_queries = few;
        rest.qblocks += whole / SL_LANES * sl_qblock_bytes(SL_KV_TYPE_F16, head_dim);
        rest.states += whole / SL_LANES * args->state_stride;
        rest.masks = args->masks ? args->masks + whole : NULL;
        sl_attn_tile_f16_neon(&rest);
    }
    if (whole == 0)
        return;
    work w;
    f16_tile t = {.head_dim = head_dim, .k = args->scratch, .o = w.o[0]};
    t.v = t.k + SL_TILE * head_dim;
    widen(&t, args->tile);
    run_blocks(&t, args, whole, &w);
}

#else
typedef int sl_attn_f16_sme_is_for_arm64;
#endif
