/* Attention tiles over Q8_0 storage for AMX: the bits of attn_ref.c.
 * Lanes are queries. A key is 16-bit query times signed byte: two products, of the query's low bytes (unsigned) and
 * high bytes (signed), joined as low + 256 * high; P's two bytes likewise. Keys and values are read where they lie.
 * Tile and vector instructions overlap only where they are apart: the tile instructions of a block's scores run while
 * the block before is exponentiated, those of its values while the block before is folded, and those of score group
 * g + 2 while group g is converted. Few queries, and F16, are the AVX-512 level's. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <assert.h>
#include <string.h>

#include "kernel/amx.h"

enum {
    FEWEST_QUERIES = 12, /* below, a block of AVX-512 is as fast */
    MAX_GROUPS = SL_MAX_HEAD_DIM / SL_GROUP,
    KEY_BLOCKS = SL_TILE / AMX_ROWS,
    TILE_BYTES = AMX_ROWS * AMX_ROW_BYTES,
    PAIR_BYTES = 2 * TILE_BYTES,            /* low, then high bytes or products */
    GROUP_BYTES = KEY_BLOCKS * PAIR_BYTES,  /* products of a score group */
    AHEAD = 2                               /* score groups that tile instructions are ahead */
};

typedef struct q8_tile {
    size_t head_dim, n_groups;
    const uint8_t *k, *v;
    float *ks, *vs;    /* [D/32][64] scales */
    float *vf;         /* [D/32][64] vs * (65535 / vmax), vmax over the whole tile */
    float *s;          /* [64][16] scores */
    uint8_t *q;        /* [D/32][2][16][64] low, high bytes of queries; a group fills half of the rows, see split */
    uint8_t *p;        /* [D/32][2][16][64] low, high bytes of P, four keys to a 32-bit lane */
    uint8_t *products; /* [2][4][2][16][16] of keys: group g in g % 2 */
    uint8_t *outputs;  /* [D/16][2][16][16] of values */
    float vmax[MAX_GROUPS];
} q8_tile;

/* One block's work. */
typedef struct block {
    const uint8_t *q;
    float *state;
    bool masked;               /* by some of its queries some keys are not seen */
    __mmask16 vis[SL_TILE];    /* if masked: bit i: query i sees the key */
    __mmask16 seen;            /* bit i: query i sees any key */
    __m512 m, l;               /* of the tile */
    __m512 alpha, beta;        /* of the fold */
    __m512 inverse[MAX_GROUPS]; /* if masked: 65535 / vmax, vmax over the keys that the query sees */
    __m512 scale[MAX_GROUPS];  /* vmax / 65535 */
} block;

/* ---- scalar rules, sixteen at a time ---- */

/* sl_scalar_exp2 in fewer instructions than sl_avx512_exp2: x - rint(x) is exact, and so is taking it from x. */
AMX_INLINE __m512 exp2_16(__m512 x)
{
    __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(SL_EXP2_MIN), _CMP_GE_OQ);
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(SL_EXP2_C6), f, _mm512_set1_ps(SL_EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(SL_EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(in_range, p, _mm512_sub_ps(x, f));
}

AMX_INLINE __m512 tanh_16(__m512 y)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512 magnitude = _mm512_andnot_ps(sign, y);
    __m512 t = _mm512_mul_ps(y, y);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(SL_TANH_T3), t, _mm512_set1_ps(SL_TANH_T2));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(SL_TANH_T1));
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(y, t), p, y);
    __m512 x = _mm512_mul_ps(_mm512_add_ps(magnitude, magnitude), _mm512_set1_ps(SL_LOG2E));
    __m512 e = exp2_16(_mm512_min_ps(x, _mm512_set1_ps(SL_TANH_EXP_MAX)));
    __m512 large = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
    large = _mm512_or_ps(large, _mm512_and_ps(sign, y));
    __mmask16 near_zero = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(SL_TANH_SMALL), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(large, near_zero, small);
}

/* ---- bytes ---- */

/* In each 128 bits: the low bytes of eight 16-bit numbers in the order of `even`, then their high bytes. */
AMX_INLINE __m512i split_order(bool pairs)
{
    return pairs ? _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15))
                 : _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15));
}

/* Four 16-bit numbers of each lane, two to a register, to a row of low bytes and a row of high bytes. */
AMX_INLINE void store_split(uint8_t *low, __m512i first, __m512i second, __m512i order)
{
    first = _mm512_shuffle_epi8(first, order);
    second = _mm512_shuffle_epi8(second, order);
    _mm512_store_si512(low, _mm512_unpacklo_epi16(first, second));
    _mm512_store_si512(low + TILE_BYTES, _mm512_unpackhi_epi16(first, second));
}

/* low + 256 * high; a byte shuffle, because the shift would compete with floating point. */
AMX_INLINE __m512 join(const uint8_t *low)
{
    const __m512i up = _mm512_broadcast_i32x4(_mm_setr_epi8(-1, 0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1, 12, 13, 14));
    __m512i high = _mm512_shuffle_epi8(_mm512_load_si512(low + TILE_BYTES), up);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_load_si512(low), high));
}

/* A block's queries as right operands. A group is 32 bytes of the 64 of a key that a left operand takes: the first
 * half in even groups, the second in odd ones; the other half of its rows is zero since setup. */
AMX_INLINE void split_queries(const q8_tile *t, const block *b)
{
    const __m512i order = split_order(true);
    const uint8_t *q = b->q;
    for (size_t g = 0; g < t->n_groups; g++) {
        uint8_t *out = t->q + g * PAIR_BYTES + g % 2 * (TILE_BYTES / 2);
        for (int row = 0; row < AMX_ROWS / 2; row++, q += 2 * AMX_ROW_BYTES, out += AMX_ROW_BYTES)
            store_split(out, _mm512_load_si512(q), _mm512_load_si512(q + AMX_ROW_BYTES), order);
    }
}

/* ---- tile instructions: registers 0, 1 hold low and high bytes, 2, 3 left operands, 4 to 7 products ---- */

/* Four products a step in two registers each: what one step starts, a later one stores. */
AMX_INLINE void start_score(const q8_tile *t, size_t g, size_t keys)
{
    const uint8_t *q = t->q + g * PAIR_BYTES, *k = t->k + keys * AMX_ROWS * t->head_dim + g / 2 * AMX_ROW_BYTES;
    if (keys == 0) {
        AMX_LOAD(0, q, AMX_ROW_BYTES);
        AMX_LOAD(1, q + TILE_BYTES, AMX_ROW_BYTES);
    }
    if (keys % 2 == 0) {
        AMX_LOAD(2, k, t->head_dim);
        AMX_ZERO(4);
        AMX_ZERO(5);
        AMX_DOT_SU(4, 2, 0);
        AMX_DOT_SS(5, 2, 1);
    } else {
        AMX_LOAD(3, k, t->head_dim);
        AMX_ZERO(6);
        AMX_ZERO(7);
        AMX_DOT_SU(6, 3, 0);
        AMX_DOT_SS(7, 3, 1);
    }
}

AMX_INLINE void store_products(uint8_t *at, bool odd)
{
    if (odd) {
        AMX_STORE(6, at, AMX_ROW_BYTES);
        AMX_STORE(7, at + TILE_BYTES, AMX_ROW_BYTES);
    } else {
        AMX_STORE(4, at, AMX_ROW_BYTES);
        AMX_STORE(5, at + TILE_BYTES, AMX_ROW_BYTES);
    }
}

AMX_INLINE void end_score(const q8_tile *t, size_t g, size_t keys)
{
    store_products(t->products + g % AHEAD * GROUP_BYTES + keys * PAIR_BYTES, keys % 2);
}

/* Sixteen dimensions. */
AMX_INLINE void start_output(const q8_tile *t, size_t dims)
{
    const uint8_t *p = t->p + dims / 2 * PAIR_BYTES, *v = t->v + dims * TILE_BYTES;
    if (dims % 2 == 0) {
        AMX_LOAD(0, p, AMX_ROW_BYTES);
        AMX_LOAD(1, p + TILE_BYTES, AMX_ROW_BYTES);
        AMX_LOAD(2, v, AMX_ROW_BYTES);
        AMX_ZERO(4);
        AMX_ZERO(5);
        AMX_DOT_SU(4, 2, 0);
        AMX_DOT_SU(5, 2, 1);
    } else {
        AMX_LOAD(3, v, AMX_ROW_BYTES);
        AMX_ZERO(6);
        AMX_ZERO(7);
        AMX_DOT_SU(6, 3, 0);
        AMX_DOT_SU(7, 3, 1);
    }
}

AMX_INLINE void end_output(const q8_tile *t, size_t dims)
{
    store_products(t->outputs + dims * PAIR_BYTES, dims % 2);
}

/* ---- scores ---- */

typedef struct maxima {
    __m512 even, odd;
} maxima;

/* The scores of sixteen keys take in group g. After the last group: softcap, mask and maximum; a hidden key's score
 * becomes -inf, from which p = +0 follows. */
AMX_INLINE maxima add_group(const q8_tile *t, const block *b, size_t g, size_t keys, maxima m, float softcap)
{
    const __m512 nothing = _mm512_set1_ps(-INFINITY), cap = _mm512_set1_ps(softcap * SL_LOG2E);
    const __m512 qs = _mm512_load_ps(b->q + t->head_dim * SL_LANES * 2 + g * SL_LANES * sizeof(float));
    const uint8_t *products = t->products + g % AHEAD * GROUP_BYTES + keys * PAIR_BYTES;
    const float *ks = t->ks + g * SL_TILE + keys * AMX_ROWS;
    const __mmask16 *vis = b->vis + keys * AMX_ROWS;
    float *at = t->s + keys * AMX_ROWS * SL_LANES;
    const bool last = g + 1 == t->n_groups, masked = b->masked;
    for (int i = 0; i < AMX_ROWS; i++, at += SL_LANES, products += AMX_ROW_BYTES) {
        __m512 before = g == 0 ? _mm512_setzero_ps() : _mm512_load_ps(at);
        __m512 s = _mm512_fmadd_ps(join(products), _mm512_mul_ps(_mm512_set1_ps(ks[i]), qs), before);
        if (last) {
            if (softcap != 0.0f)
                s = _mm512_mul_ps(cap, tanh_16(s));
            if (masked)
                s = _mm512_mask_mov_ps(nothing, vis[i], s);
            if (i % 2)
                m.odd = _mm512_max_ps(s, m.odd);
            else
                m.even = _mm512_max_ps(s, m.even);
        }
        _mm512_store_ps(at, s);
    }
    return m;
}

/* Groups 0 and 1 have been multiplied; the others are on the way. */
AMX_INLINE void scores(const q8_tile *t, block *b, float softcap)
{
    maxima m = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    for (size_t g = 0; g < t->n_groups; g++) {
        bool more = g + AHEAD < t->n_groups;
        for (size_t keys = 0; keys < KEY_BLOCKS; keys++) {
            if (more)
                start_score(t, g + AHEAD, keys);
            m = add_group(t, b, g, keys, m, softcap);
            if (more)
                end_score(t, g + AHEAD, keys);
        }
    }
    b->m = _mm512_add_ps(_mm512_max_ps(m.even, m.odd), _mm512_setzero_ps()); /* -0 becomes +0 */
}

/* ---- P ---- */

/* vmax / 65535 of each group and, where keys are hidden, 65535 / vmax. */
AMX_INLINE void value_scales(const q8_tile *t, block *b)
{
    const __m512 full = _mm512_set1_ps(65535.0f);
    for (size_t g = 0; g < t->n_groups; g++) {
        __m512 vmax = _mm512_set1_ps(t->vmax[g]);
        if (b->masked) {
            const float *vs = t->vs + g * SL_TILE;
            vmax = _mm512_setzero_ps();
            for (int key = 0; key < SL_TILE; key++)
                vmax = _mm512_mask_max_ps(vmax, b->vis[key], _mm512_set1_ps(vs[key]), vmax);
            __mmask16 positive = _mm512_cmp_ps_mask(vmax, _mm512_setzero_ps(), _CMP_GT_OQ);
            b->inverse[g] = _mm512_maskz_div_ps(positive, full, vmax);
        }
        b->scale[g] = _mm512_div_ps(vmax, full);
    }
}

/* P of one key in group g; at: the key's place in vs and vf. */
AMX_INLINE __m512i weight(const q8_tile *t, const block *b, __m512 p, size_t g, size_t at, const bool masked)
{
    __m512 factor = masked ? _mm512_mul_ps(_mm512_set1_ps(t->vs[at]), b->inverse[g]) : _mm512_set1_ps(t->vf[at]);
    return _mm512_cvtps_epi32(_mm512_mul_ps(p, factor));
}

/* p of four keys from `key` on, added to sum; their P of all groups. */
AMX_INLINE void exponentiate(const q8_tile *t, const block *b, size_t key, __m512 sum[4], const bool masked)
{
    const float *s = t->s + key * SL_LANES;
    const __m512i order = split_order(false);
    __m512 p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = exp2_16(_mm512_sub_ps(_mm512_load_ps(s + i * SL_LANES), b->m));
        sum[i] = key < SL_LANES ? p[i] : _mm512_add_ps(sum[i], p[i]);
    }
    for (size_t g = 0; g < t->n_groups; g++) {
        size_t at = g * SL_TILE + key;
        __m512i first = _mm512_packus_epi32(weight(t, b, p[0], g, at, masked), weight(t, b, p[1], g, at + 1, masked));
        __m512i second =
            _mm512_packus_epi32(weight(t, b, p[2], g, at + 2, masked), weight(t, b, p[3], g, at + 3, masked));
        store_split(t->p + g * PAIR_BYTES + key / 4 * AMX_ROW_BYTES, first, second, order);
    }
}

/* p, l and P of a block, while the first groups of the block after it are multiplied: n_ahead of them. */
AMX_INLINE void softmax(const q8_tile *t, block *b, size_t n_ahead, const bool masked)
{
    __m512 sum[SL_LANES];
    for (size_t step = 0; step < SL_LANES; step++) {
        size_t quad = step / 4 * 4, product = step / 2; /* quad: of each sixteen keys, these four */
        bool ahead = product / KEY_BLOCKS < n_ahead;
        if (ahead && step % 2 == 0)
            start_score(t, product / KEY_BLOCKS, product % KEY_BLOCKS);
        exponentiate(t, b, step % 4 * SL_LANES + quad, sum + quad, masked);
        if (ahead && step % 2 == 1)
            end_score(t, product / KEY_BLOCKS, product % KEY_BLOCKS);
    }
    for (int i = 0; i < 8; i++)
        sum[i] = _mm512_add_ps(sum[i], sum[i + 8]);
    for (int i = 0; i < 4; i++)
        sum[i] = _mm512_add_ps(sum[i], sum[i + 4]);
    b->l = _mm512_add_ps(_mm512_add_ps(sum[0], sum[2]), _mm512_add_ps(sum[1], sum[3]));
}

/* ---- the fold ---- */

AMX_INLINE void store_seen(const block *b, float *at, __m512 value, const bool masked)
{
    if (masked)
        _mm512_mask_store_ps(at, b->seen, value);
    else
        _mm512_store_ps(at, value);
}

/* m and l of the state; alpha and beta for its o. */
AMX_INLINE void fold_m_l(block *b)
{
    float *m_at = b->state, *l_at = m_at + SL_LANES;
    __m512 m = _mm512_load_ps(m_at), m_new = _mm512_max_ps(b->m, m);
    b->alpha = exp2_16(_mm512_sub_ps(m, m_new));
    b->beta = exp2_16(_mm512_sub_ps(b->m, m_new));
    store_seen(b, l_at, _mm512_fmadd_ps(_mm512_load_ps(l_at), b->alpha, _mm512_mul_ps(b->l, b->beta)), b->masked);
    store_seen(b, m_at, m_new, b->masked);
}

/* Sixteen dimensions of o. */
AMX_INLINE void fold_o(const q8_tile *t, const block *b, size_t dims, const bool masked)
{
    const uint8_t *products = t->outputs + dims * PAIR_BYTES;
    const __m512 scale = b->scale[dims / 2], alpha = b->alpha, beta = b->beta;
    float *at = b->state + (2 + dims * 16) * SL_LANES;
    for (int i = 0; i < AMX_ROWS; i++, at += SL_LANES, products += AMX_ROW_BYTES) {
        __m512 o = _mm512_mul_ps(join(products), scale);
        store_seen(b, at, _mm512_fmadd_ps(_mm512_load_ps(at), alpha, _mm512_mul_ps(o, beta)), masked);
    }
}

/* Multiplies now's values while before's are folded; either may be NULL. */
AMX_INLINE void outputs(const q8_tile *t, const block *before, const block *now)
{
    for (size_t dims = 0; dims < 2 * t->n_groups; dims++) {
        if (now)
            start_output(t, dims);
        if (before && before->masked)
            fold_o(t, before, dims, true);
        else if (before)
            fold_o(t, before, dims, false);
        if (now)
            end_output(t, dims);
    }
}

/* ---- the entry ---- */

/* Sets b to the next block, from *i on, whose queries see anything of the tile; false if there is none. */
AMX_INLINE bool next_block(block *b, const sl_tile_args *args, size_t *i)
{
    for (; *i * SL_LANES < args->n_queries; ++*i) {
        size_t left = args->n_queries - *i * SL_LANES, n = left < SL_LANES ? left : SL_LANES;
        const uint64_t *masks = args->masks ? args->masks + *i * SL_LANES : NULL;
        uint64_t all = UINT64_MAX, any = masks ? 0 : UINT64_MAX;
        for (size_t lane = 0; masks && lane < n; lane++) {
            all &= masks[lane];
            any |= masks[lane];
        }
        if (any == 0)
            continue;
        b->q = args->qblocks + *i * sl_qblock_bytes(SL_KV_TYPE_Q8_0, args->head_dim);
        b->state = (float *)(void *)(args->states + *i * args->state_stride);
        b->masked = all != UINT64_MAX;
        ++*i;
        if (!b->masked)
            return true;
        __m512i low = _mm512_loadu_si512(masks), high = _mm512_loadu_si512(masks + 8);
        b->seen = (__mmask16)(_mm512_test_epi64_mask(low, low) | _mm512_test_epi64_mask(high, high) << 8);
        for (int t = 0; t < SL_TILE; t++) {
            const __m512i bit = _mm512_set1_epi64((long long)(1ull << t));
            b->vis[t] = (__mmask16)(_mm512_test_epi64_mask(low, bit) | _mm512_test_epi64_mask(high, bit) << 8);
        }
        return true;
    }
    return false;
}

AMX_INLINE __m512 load_halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)at));
}

/* Scales as floats, the rows of zeros beside the queries. */
AMX_INLINE void setup(q8_tile *t, const uint8_t *tile)
{
    const uint8_t *ks = tile + 64 * t->head_dim, *vs = tile + 132 * t->head_dim;
    for (size_t g = 0; g < t->n_groups; g++, ks += 2 * SL_TILE, vs += 2 * SL_TILE) {
        __m512 vmax = _mm512_setzero_ps();
        for (size_t i = 0; i < SL_TILE; i += SL_LANES) {
            __m512 scales = load_halves(vs + 2 * i);
            vmax = _mm512_max_ps(scales, vmax);
            _mm512_store_ps(t->vs + g * SL_TILE + i, scales);
            _mm512_store_ps(t->ks + g * SL_TILE + i, load_halves(ks + 2 * i));
        }
        t->vmax[g] = _mm512_reduce_max_ps(vmax);
        const __m512 inverse = _mm512_set1_ps(t->vmax[g] > 0.0f ? 65535.0f / t->vmax[g] : 0.0f);
        for (size_t i = 0; i < SL_TILE; i += SL_LANES)
            _mm512_store_ps(t->vf + g * SL_TILE + i, _mm512_mul_ps(_mm512_load_ps(t->vs + g * SL_TILE + i), inverse));
        uint8_t *zero = t->q + g * PAIR_BYTES + (g + 1) % 2 * (TILE_BYTES / 2);
        memset(zero, 0, TILE_BYTES / 2);
        memset(zero + TILE_BYTES, 0, TILE_BYTES / 2);
    }
}

AMX_INLINE void run_blocks(const q8_tile *t, const sl_tile_args *args)
{
    block blocks[3], *before = NULL, *now = blocks, *after = blocks + 1;
    const size_t n_ahead = t->n_groups < AHEAD ? t->n_groups : AHEAD;
    size_t i = 0;
    if (!next_block(now, args, &i))
        return;
    split_queries(t, now);
    for (size_t product = 0; product < n_ahead * KEY_BLOCKS; product++) {
        start_score(t, product / KEY_BLOCKS, product % KEY_BLOCKS);
        end_score(t, product / KEY_BLOCKS, product % KEY_BLOCKS);
    }
    while (now) {
        if (args->softcap != 0.0f)
            scores(t, now, args->softcap);
        else
            scores(t, now, 0.0f);
        value_scales(t, now);
        bool more = next_block(after, args, &i);
        if (more)
            split_queries(t, after);
        if (now->masked)
            softmax(t, now, more ? n_ahead : 0, true);
        else
            softmax(t, now, more ? n_ahead : 0, false);
        fold_m_l(now);
        outputs(t, before, now);
        block *spare = before ? before : blocks + 2;
        before = now;
        now = more ? after : NULL;
        after = spare;
    }
    outputs(t, before, NULL);
}

AMX void sl_attn_tile_q8_amx(const sl_tile_args *args)
{
    static const amx_config config = {
        .palette = AMX_PALETTE,
        .row_bytes = {AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES,
                      AMX_ROW_BYTES, AMX_ROW_BYTES},
        .rows = {AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS, AMX_ROWS}};
    const size_t head_dim = args->head_dim, n_groups = head_dim / SL_GROUP;
    assert(head_dim % SL_GROUP == 0 && head_dim <= SL_MAX_HEAD_DIM);
    if (args->n_queries < FEWEST_QUERIES) {
        sl_attn_tile_q8_avx512(args);
        return;
    }
    q8_tile t = {.head_dim = head_dim, .n_groups = n_groups, .k = args->tile, .v = args->tile + 68 * head_dim};
    t.s = args->scratch;
    t.ks = t.s + SL_TILE * SL_LANES;
    t.vs = t.ks + n_groups * SL_TILE;
    t.vf = t.vs + n_groups * SL_TILE;
    t.products = (uint8_t *)(t.vf + n_groups * SL_TILE);
    t.q = t.products + AHEAD * GROUP_BYTES;
    t.p = t.q + n_groups * PAIR_BYTES;
    t.outputs = t.p + n_groups * PAIR_BYTES;
    amx_configure(&config);
    setup(&t, args->tile);
    run_blocks(&t, args);
    amx_release();
}

#else
typedef int sl_attn_amx_is_for_x86;
#endif
