/* Attention tiles over Q8_0 storage for AMX: the bits of attn_ref.c.
 * Lanes are queries. A key is 16-bit query times signed byte: two products, of the query's low bytes (unsigned) and
 * high bytes (signed), joined as low + 256 * high; P's two bytes likewise. Keys and values are read where they lie.
 * Tile instructions halve the rate of vector floating point for a while, but run beside it. So both are mixed all the
 * time: while a block is exponentiated, the block after it is scored and the block before it gets its outputs. A last
 * block of few queries, and F16, are the AVX-512 level's. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include <assert.h>
#include <string.h>

#include "kernel/amx.h"
#include "kernel/attn_few.h"

enum {
    MAX_GROUPS = SL_MAX_HEAD_DIM / SL_GROUP,
    KEY_BLOCKS = SL_TILE / AMX_ROWS,
    TILE_BYTES = AMX_ROWS * AMX_ROW_BYTES,
    PAIR_BYTES = 2 * TILE_BYTES, /* low, then high bytes or products */
    LAG = 2                      /* turns from the start of a product to its use */
};

typedef struct q8_tile {
    size_t head_dim, n_groups;
    const uint8_t *k, *v;
    float *ks, *vs;    /* [D/32][64] scales */
    float *vf;         /* [D/32][64] vs * (65535 / vmax), vmax over the whole tile */
    uint8_t *q;        /* [D/32][2][16][64] low, high bytes of queries; a group fills half of the rows, see split */
    uint8_t *products; /* [LAG][2][16][16] */
    float vmax[MAX_GROUPS], v_scale[MAX_GROUPS]; /* v_scale: vmax / 65535 */
    float softcap;
} q8_tile;

typedef enum product_kind { PRODUCT_NONE, PRODUCT_SCORE, PRODUCT_OUTPUT } product_kind;

/* One block's work. */
typedef struct block {
    const uint8_t *q;
    float *state;
    float *s;                   /* [64][16] scores */
    uint8_t *p;                 /* [D/32][2][16][64] low, high bytes of P, four keys to a 32-bit lane */
    bool masked;                /* by some of its queries some keys are not seen */
    __mmask16 vis[SL_TILE];     /* if masked: bit i: query i sees the key */
    __mmask16 seen;             /* bit i: query i sees any key */
    __m512 maxima[2];           /* of even and of odd keys */
    __m512 m, l;                /* of the tile */
    __m512 alpha, beta;         /* of the fold */
    __m512 inverse[MAX_GROUPS]; /* if masked: 65535 / vmax, vmax over the keys that the query sees */
    __m512 scale[MAX_GROUPS];   /* vmax / 65535 */
} block;

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

/* ---- tile instructions ---- */

/* A product of sixteen keys and a group of queries, or of sixteen dimensions of values and P. In registers 0, 1 low and
 * high bytes, which four or two turns share; in 2, 4, 5 left operand and products of even turns, in 3, 6, 7 of odd
 * ones. The processor does not rename tiles: what loads, clears or multiplies one waits for what came before, so that
 * between two instructions on a register there is always other work. */
AMX_INLINE void load_left(const uint8_t *at, size_t stride, bool odd)
{
    if (odd)
        AMX_LOAD(3, at, stride);
    else
        AMX_LOAD(2, at, stride);
}

AMX_INLINE void load_right(const uint8_t *at)
{
    AMX_LOAD(0, at, AMX_ROW_BYTES);
    AMX_LOAD(1, at + TILE_BYTES, AMX_ROW_BYTES);
}

AMX_INLINE void multiply(product_kind kind, bool odd)
{
    if (kind == PRODUCT_SCORE && odd) {
        AMX_DOT_SU(6, 3, 0);
        AMX_DOT_SS(7, 3, 1);
    } else if (kind == PRODUCT_SCORE) {
        AMX_DOT_SU(4, 2, 0);
        AMX_DOT_SS(5, 2, 1);
    } else if (odd) {
        AMX_DOT_SU(6, 3, 0);
        AMX_DOT_SU(7, 3, 1);
    } else {
        AMX_DOT_SU(4, 2, 0);
        AMX_DOT_SU(5, 2, 1);
    }
}

/* Clears them, too. */
AMX_INLINE void store_products(uint8_t *at, bool odd)
{
    if (odd) {
        AMX_STORE(6, at, AMX_ROW_BYTES);
        AMX_STORE(7, at + TILE_BYTES, AMX_ROW_BYTES);
        AMX_ZERO(6);
        AMX_ZERO(7);
    } else {
        AMX_STORE(4, at, AMX_ROW_BYTES);
        AMX_STORE(5, at + TILE_BYTES, AMX_ROW_BYTES);
        AMX_ZERO(4);
        AMX_ZERO(5);
    }
}

/* ---- scores ---- */

/* The scores of sixteen keys take in a group's products. After the last group: softcap, mask and maximum; a hidden
 * key's score becomes -inf, from which p = +0 follows. */
AMX_INLINE void add_scores(const q8_tile *t, block *b, const uint8_t *in, size_t product, float softcap)
{
    const size_t g = product / KEY_BLOCKS, keys = product % KEY_BLOCKS;
    const __m512 nothing = _mm512_set1_ps(-INFINITY), cap = _mm512_set1_ps(softcap * SL_LOG2E);
    const __m512 qs = _mm512_load_ps(b->q + t->head_dim * SL_LANES * 2 + g * SL_LANES * sizeof(float));
    const float *ks = t->ks + g * SL_TILE + keys * AMX_ROWS;
    const __mmask16 *vis = b->vis + keys * AMX_ROWS;
    const bool last = g + 1 == t->n_groups, masked = b->masked;
    float *at = b->s + keys * AMX_ROWS * SL_LANES;
    __m512 even = b->maxima[0], odd = b->maxima[1];
    for (int i = 0; i < AMX_ROWS; i++, at += SL_LANES, in += AMX_ROW_BYTES) {
        __m512 before = g == 0 ? _mm512_setzero_ps() : _mm512_load_ps(at);
        __m512 s = _mm512_fmadd_ps(join(in), _mm512_mul_ps(_mm512_set1_ps(ks[i]), qs), before);
        if (last) {
            if (softcap != 0.0f)
                s = _mm512_mul_ps(cap, sl_avx512_tanh(s));
            if (masked)
                s = _mm512_mask_mov_ps(nothing, vis[i], s);
            if (i % 2)
                odd = _mm512_max_ps(s, odd);
            else
                even = _mm512_max_ps(s, even);
        }
        _mm512_store_ps(at, s);
    }
    b->maxima[0] = even;
    b->maxima[1] = odd;
}

/* After the last product. */
AMX_INLINE void end_scores(block *b)
{
    __m512 m = _mm512_max_ps(b->maxima[0], b->maxima[1]);
    b->m = _mm512_add_ps(m, _mm512_setzero_ps()); /* -0 becomes +0 */
}

/* ---- P ---- */

/* vmax / 65535 of each group and, where keys are hidden, 65535 / vmax. */
AMX_INLINE void value_scales(const q8_tile *t, block *b)
{
    const __m512 full = _mm512_set1_ps(65535.0f);
    for (size_t g = 0; g < t->n_groups; g++) {
        if (!b->masked) {
            b->scale[g] = _mm512_set1_ps(t->v_scale[g]);
            continue;
        }
        const float *vs = t->vs + g * SL_TILE;
        __m512 vmax = _mm512_setzero_ps();
        for (int key = 0; key < SL_TILE; key++)
            vmax = _mm512_mask_max_ps(vmax, b->vis[key], _mm512_set1_ps(vs[key]), vmax);
        __mmask16 positive = _mm512_cmp_ps_mask(vmax, _mm512_setzero_ps(), _CMP_GT_OQ);
        b->inverse[g] = _mm512_maskz_div_ps(positive, full, vmax);
        b->scale[g] = _mm512_div_ps(vmax, full);
    }
}

/* P of one key in group g; at: the key's place in vs and vf. */
AMX_INLINE __m512i weight(const q8_tile *t, const block *b, __m512 p, size_t g, size_t at, const bool masked)
{
    __m512 factor = masked ? _mm512_mul_ps(_mm512_set1_ps(t->vs[at]), b->inverse[g]) : _mm512_set1_ps(t->vf[at]);
    return _mm512_cvtps_epi32(_mm512_mul_ps(p, factor));
}

/* p of eight keys from `key` on, added to sum; their P of all groups. */
AMX_INLINE void exponentiate(const q8_tile *t, const block *b, size_t key, __m512 sum[8], const bool masked)
{
    const float *s = b->s + key * SL_LANES;
    const __m512i order = split_order(false);
    __m512 p[8];
    for (int i = 0; i < 8; i++)
        p[i] = _mm512_sub_ps(_mm512_load_ps(s + i * SL_LANES), b->m);
    sl_avx512_exp2_eight(p);
    for (int i = 0; i < 8; i++)
        sum[i] = key < SL_LANES ? p[i] : _mm512_add_ps(sum[i], p[i]);
    for (size_t g = 0; g < t->n_groups; g++)
        for (size_t i = 0; i < 8; i += 4) {
            size_t at = g * SL_TILE + key + i;
            __m512i first =
                _mm512_packus_epi32(weight(t, b, p[i], g, at, masked), weight(t, b, p[i + 1], g, at + 1, masked));
            __m512i second = _mm512_packus_epi32(weight(t, b, p[i + 2], g, at + 2, masked),
                                                 weight(t, b, p[i + 3], g, at + 3, masked));
            store_split(b->p + g * PAIR_BYTES + (key + i) / 4 * AMX_ROW_BYTES, first, second, order);
        }
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
    b->alpha = sl_avx512_exp2(_mm512_sub_ps(m, m_new));
    b->beta = sl_avx512_exp2(_mm512_sub_ps(b->m, m_new));
    store_seen(b, l_at, _mm512_fmadd_ps(_mm512_load_ps(l_at), b->alpha, _mm512_mul_ps(b->l, b->beta)), b->masked);
    store_seen(b, m_at, m_new, b->masked);
}

/* Sixteen dimensions of o. */
AMX_INLINE void fold_o(const block *b, const uint8_t *in, size_t dims, const bool masked)
{
    const __m512 scale = b->scale[dims / 2], alpha = b->alpha, beta = b->beta;
    float *at = b->state + (2 + dims * 16) * SL_LANES;
    for (int i = 0; i < AMX_ROWS; i++, at += SL_LANES, in += AMX_ROW_BYTES) {
        __m512 o = _mm512_mul_ps(join(in), scale);
        store_seen(b, at, _mm512_fmadd_ps(_mm512_load_ps(at), alpha, _mm512_mul_ps(o, beta)), masked);
    }
}

/* ---- a block, the one before it and the one after it ---- */

typedef struct product {
    product_kind kind;
    size_t index; /* of SCORE: group * 4 + sixteen keys; of OUTPUT: sixteen dimensions */
} product;

/* Products on their way: started in one turn, stored in the next, used in the one after that. */
typedef struct stream {
    product started, stored;
    bool odd; /* the turn that comes */
    bool has_before, has_after;
    block *before, *after;
} stream;

AMX_INLINE void use_product(const q8_tile *t, const stream *s, const uint8_t *in)
{
    const size_t index = s->stored.index;
    if (s->stored.kind == PRODUCT_SCORE && t->softcap != 0.0f)
        add_scores(t, s->after, in, index, t->softcap);
    else if (s->stored.kind == PRODUCT_SCORE)
        add_scores(t, s->after, in, index, 0.0f);
    else if (s->stored.kind == PRODUCT_OUTPUT && s->before->masked)
        fold_o(s->before, in, index, true);
    else if (s->stored.kind == PRODUCT_OUTPUT)
        fold_o(s->before, in, index, false);
}

/* Starts `next`, stores what was started in the turn before, and uses what was stored then. Where each of these stands
 * among the others, and that products are cleared as soon as they are stored, is worth a third of the time when the
 * core's other thread is busy: docs/decisions.md. */
AMX_INLINE void turn(const q8_tile *t, stream *s, product next)
{
    uint8_t *at[2] = {t->products, t->products + PAIR_BYTES};
    const size_t i = next.index;
    const bool score = next.kind == PRODUCT_SCORE;
    if (score)
        load_left(t->k + i % KEY_BLOCKS * AMX_ROWS * t->head_dim + i / KEY_BLOCKS / 2 * AMX_ROW_BYTES, t->head_dim,
                  s->odd);
    else if (next.kind == PRODUCT_OUTPUT)
        load_left(t->v + i * TILE_BYTES, AMX_ROW_BYTES, s->odd);
    use_product(t, s, at[s->odd]);
    if (score && i % KEY_BLOCKS == 0)
        load_right(t->q + i / KEY_BLOCKS * PAIR_BYTES);
    else if (next.kind == PRODUCT_OUTPUT && i % 2 == 0)
        load_right(s->before->p + i / 2 * PAIR_BYTES);
    if (s->started.kind != PRODUCT_NONE)
        store_products(at[!s->odd], !s->odd);
    if (next.kind != PRODUCT_NONE)
        multiply(next.kind, s->odd);
    s->stored = s->started;
    s->started = next;
    s->odd = !s->odd;
}

/* Turn i of a block: of each group four scores, then two outputs, which share right operands; then none, until all are
 * used. */
AMX_INLINE product product_of_turn(const q8_tile *t, const stream *s, size_t i)
{
    if (i >= 6 * t->n_groups)
        return (product){PRODUCT_NONE, 0};
    if (i % 6 < 4)
        return (product){s->has_after ? PRODUCT_SCORE : PRODUCT_NONE, i / 6 * 4 + i % 6};
    return (product){s->has_before ? PRODUCT_OUTPUT : PRODUCT_NONE, i / 6 * 2 + i % 6 - 4};
}

/* p, l and P of a block, while the block after it is scored and the block before it gets its outputs. next: a tile to
 * call into the cache, or NULL. */
AMX_INLINE void softmax(const q8_tile *t, block *b, stream *s, const uint8_t *next, const bool masked)
{
    enum { STEPS = SL_TILE / 8 };
    const size_t share = sl_tile_bytes(SL_KV_TYPE_Q8_0, t->head_dim) / STEPS;
    const size_t n_turns = s->has_before || s->has_after ? 6 * t->n_groups + LAG : 0;
    __m512 sum[SL_LANES];
    for (size_t step = 0, i = 0; step < STEPS; step++) {
        const size_t eight = step / 4 * 8; /* of each sixteen keys, these eight */
        for (; i * STEPS < (step + 1) * n_turns; i++)
            turn(t, s, product_of_turn(t, s, i));
        exponentiate(t, b, step % 4 * SL_LANES + eight, sum + eight, masked);
        if (next)
            sl_attn_fetch(next + step * share, share);
    }
    for (int i = 0; i < 8; i++)
        sum[i] = _mm512_add_ps(sum[i], sum[i + 8]);
    for (int i = 0; i < 4; i++)
        sum[i] = _mm512_add_ps(sum[i], sum[i + 4]);
    b->l = _mm512_add_ps(_mm512_add_ps(sum[0], sum[2]), _mm512_add_ps(sum[1], sum[3]));
}

/* The first block's scores, or the last one's outputs: n products with nothing beside them. */
AMX_INLINE void products_alone(const q8_tile *t, stream *s, product_kind kind, size_t n)
{
    for (size_t i = 0; i < n + LAG; i++)
        turn(t, s, (product){i < n ? kind : PRODUCT_NONE, i});
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
        b->maxima[0] = b->maxima[1] = _mm512_set1_ps(-INFINITY);
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
        t->v_scale[g] = t->vmax[g] / 65535.0f;
        const __m512 inverse = _mm512_set1_ps(t->vmax[g] > 0.0f ? 65535.0f / t->vmax[g] : 0.0f);
        for (size_t i = 0; i < SL_TILE; i += SL_LANES)
            _mm512_store_ps(t->vf + g * SL_TILE + i, _mm512_mul_ps(_mm512_load_ps(t->vs + g * SL_TILE + i), inverse));
        uint8_t *zero = t->q + g * PAIR_BYTES + (g + 1) % 2 * (TILE_BYTES / 2);
        memset(zero, 0, TILE_BYTES / 2);
        memset(zero + TILE_BYTES, 0, TILE_BYTES / 2);
    }
}

/* s, p: room for two blocks' scores and P */
AMX_INLINE void run_blocks(const q8_tile *t, const sl_tile_args *args, float *s, uint8_t *p)
{
    block blocks[3], *now = blocks; /* block n is in n % 3 */
    stream products = {.before = blocks, .after = blocks};
    size_t i = 0;
    if (!next_block(now, args, &i))
        return;
    now->s = s;
    now->p = p;
    split_queries(t, now);
    products_alone(t, &products, PRODUCT_SCORE, KEY_BLOCKS * t->n_groups);
    for (size_t n = 1; now; n++) {
        end_scores(now);
        value_scales(t, now);
        block *after = products.after = blocks + n % 3;
        products.has_after = next_block(after, args, &i);
        if (products.has_after) {
            after->s = s + n % 2 * SL_TILE * SL_LANES;
            after->p = p + n % 2 * t->n_groups * PAIR_BYTES;
            split_queries(t, after);
        }
        const uint8_t *next = n == 1 ? args->next : NULL;
        if (now->masked)
            softmax(t, now, &products, next, true);
        else
            softmax(t, now, &products, next, false);
        fold_m_l(now);
        products.before = now;
        products.has_before = true;
        now = products.has_after ? after : NULL;
    }
    products_alone(t, &products, PRODUCT_OUTPUT, 2 * t->n_groups);
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
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_AMX_Q8);
    sl_tile_args rest = *args;
    rest.n_queries -= few;
    if (few >= SL_FOUR_LEAST)
        sl_attn_four_q8_amx(args, rest.n_queries);
    else if (few > 0)
        sl_attn_few_q8_avx512(args, rest.n_queries);
    if (rest.n_queries == 0)
        return;
    q8_tile t = {.head_dim = head_dim, .n_groups = n_groups, .softcap = args->softcap};
    t.k = args->tile;
    t.v = args->tile + 68 * head_dim;
    t.ks = args->scratch;
    t.vs = t.ks + n_groups * SL_TILE;
    t.vf = t.vs + n_groups * SL_TILE;
    float *s = t.vf + n_groups * SL_TILE;
    t.products = (uint8_t *)(s + 2 * SL_TILE * SL_LANES);
    t.q = t.products + LAG * PAIR_BYTES;
    uint8_t *p = t.q + n_groups * PAIR_BYTES;
    amx_configure(&config);
    AMX_ZERO(4);
    AMX_ZERO(5);
    AMX_ZERO(6);
    AMX_ZERO(7);
    setup(&t, args->tile);
    run_blocks(&t, &rest, s, p);
    amx_release();
}

#else
typedef int sl_attn_amx_is_for_x86;
#endif
