/* Projections for SME: the bits of gemm_ref.c.
 * Up to four blocks of sixteen rows of quantised input meet a panel of sixteen outputs, a tile of ZA each. A chunk of
 * groups at a time: input rows are turned once for all panels, so that four elements of a row share a lane; a panel's
 * weights become signed bytes once for all rows; streaming mode makes the integer products of all groups of the chunk;
 * outside, NEON scales them into the output. Few rows and a narrow last panel are the level's below.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#include "kernel/levels.h"

#if defined(__aarch64__) && defined(SLUICE_HAVE_SME)

#include <string.h>

#include "kernel/gemm_neon.h"
#include "kernel/sme.h"

enum {
    FEWEST_ROWS = 9,
    BLOCKS = 4, /* tiles of ZA */
    ROWS = BLOCKS * SME_ROWS,
    CHUNK = 8, /* groups; a superblock of the K types */
    QUADS = SL_GROUP / 4,
    PRODUCTS = CHUNK /* of Q6_K two a group, so half as many groups */
};

/* A chunk of a panel, and of up to ROWS rows. */
typedef struct work {
    _Alignas(64) int32_t products[PRODUCTS][ROWS][SL_PANEL];
    int8_t rows[BLOCKS][CHUNK * QUADS][SME_ROW_BYTES];
    int8_t weights[CHUNK * QUADS][SME_ROW_BYTES];
    float ws[CHUNK][SL_PANEL], mw[CHUNK][SL_PANEL];
    int32_t sub[CHUNK][2][SL_PANEL]; /* Q6_K: the scales of a group's halves */
} work;

typedef struct chunk {
    size_t first, n_groups; /* groups of the row */
    size_t n_products, product_quads;
    size_t n_blocks, n_rows;
} chunk;

/* ---- streaming mode ---- */

/* 64 bytes of sixteen rows at a time, by way of ZA: rows in, columns out. Rows that are not there become zeros. */
SME static void turn_rows(work *w, const chunk *c, const sl_neon_rows *in)
{
    const svbool_t all = svptrue_b32();
    const size_t n_quads = c->n_groups * QUADS;
    for (size_t row = 0; row < c->n_rows; row += SME_ROWS)
        for (size_t quad = 0; quad < n_quads; quad += SME_ROWS) {
            const uint8_t *q = in->rows + row * in->stride + in->q_off + c->first * SL_GROUP + 4 * quad;
            const uint32_t n = (uint32_t)(c->n_rows - row < SME_ROWS ? c->n_rows - row : SME_ROWS);
            const uint32_t n_turned = (uint32_t)(n_quads - quad < SME_ROWS ? n_quads - quad : SME_ROWS);
            int8_t *out = w->rows[row / SME_ROWS][quad];
            svzero_za();
            SME_EACH_ROW
            for (uint32_t i = 0; i < n; i++)
                svld1_hor_za32(0, i, all, q + i * in->stride);
            SME_EACH_ROW
            for (uint32_t i = 0; i < n_turned; i++)
                svst1_ver_za32(0, i, all, out + i * SME_ROW_BYTES);
        }
}

#define EACH_BLOCK(X, n) X(0, n) X(1, n) X(2, n) X(3, n)
#define MULTIPLY(block, n)                                                                                             \
    if (block < (n))                                                                                                   \
        svmopa_za32_s8_m(block, bytes, bytes, svld1_s8(bytes, w->rows[block][quad]), weights);
#define STORE(block, n)                                                                                                \
    if (block < (n))                                                                                                   \
        svst1_hor_za32(block, i, all, w->products[product][block * SME_ROWS + i]);

SME_INLINE void multiply_blocks(work *w, const chunk *c, const size_t n) __arm_streaming __arm_inout("za")
{
    const svbool_t bytes = svptrue_b8(), all = svptrue_b32();
    for (size_t product = 0, quad = 0; product < c->n_products; product++) {
        svzero_za();
        for (size_t end = quad + c->product_quads; quad < end; quad++) {
            const svint8_t weights = svld1_s8(bytes, w->weights[quad]);
            EACH_BLOCK(MULTIPLY, n)
        }
        SME_EACH_ROW
        for (uint32_t i = 0; i < SME_ROWS; i++) {
            EACH_BLOCK(STORE, n)
        }
    }
}

SME static void multiply(work *w, const chunk *c)
{
    switch (c->n_blocks) {
    case 1:
        multiply_blocks(w, c, 1);
        break;
    case 2:
        multiply_blocks(w, c, 2);
        break;
    case 3:
        multiply_blocks(w, c, 3);
        break;
    default:
        multiply_blocks(w, c, 4);
    }
}

/* ---- NEON ---- */

/* A chunk of a panel: signed bytes, scales and minimums. */
NEON_INLINE void decode(work *w, const chunk *c, const uint8_t *panel, sl_wtype type)
{
    const size_t groups = sl_neon_block_groups(type), block_bytes = sl_neon_block_bytes(type) * SL_PANEL;
    const int8x16_t offset = vdupq_n_s8((int8_t)sl_neon_offset(type));
    for (size_t i = 0; i < c->n_groups; i++) {
        const size_t g = c->first + i;
        const uint8_t *block = panel + g / groups * block_bytes;
        const uint8_t *group = block + g % groups * sl_neon_value_bytes(type) * SL_PANEL;
        for (size_t v = 0; v < SL_PANEL / 4; v++) {
            for (size_t quad = 0; quad < QUADS; quad++)
                vst1q_s8(w->weights[i * QUADS + quad] + 16 * v, vsubq_s8(sl_neon_quad(type, group, v, quad), offset));
            const sl_neon_scale s = sl_neon_scale_load(type, block, v, g % groups);
            vst1q_f32(w->ws[i] + 4 * v, s.ws);
            vst1q_f32(w->mw[i] + 4 * v, s.mw);
            if (type == SL_WTYPE_Q6_K) {
                int32x4_t sub[2];
                sl_neon_subscales(sub, type, block, v, g % groups);
                vst1q_s32(w->sub[i][0] + 4 * v, sub[0]);
                vst1q_s32(w->sub[i][1] + 4 * v, sub[1]);
            }
        }
    }
}

/* The integer sum of group i of a row, vector v. */
NEON_INLINE int32x4_t dot_of(const work *w, size_t i, size_t row, size_t v, sl_wtype type)
{
    if (type != SL_WTYPE_Q6_K)
        return vld1q_s32(w->products[i][row] + 4 * v);
    int32x4_t first = vmulq_s32(vld1q_s32(w->products[2 * i][row] + 4 * v), vld1q_s32(w->sub[i][0] + 4 * v));
    return vmlaq_s32(first, vld1q_s32(w->products[2 * i + 1][row] + 4 * v), vld1q_s32(w->sub[i][1] + 4 * v));
}

/* The outputs of n rows from `row` on take in a chunk; n is a constant. */
NEON_INLINE void scale_rows(const work *w, const chunk *c, const sl_neon_rows *in, size_t row, const size_t n,
                            float *out, size_t out_stride, sl_wtype type)
{
    enum { VECTORS = SL_PANEL / 4, MOST = 2 };
    float32x4_t acc[MOST][VECTORS];
    for (size_t r = 0; r < n; r++)
        for (size_t v = 0; v < VECTORS; v++)
            acc[r][v] = c->first == 0 ? vdupq_n_f32(0.0f) : vld1q_f32(out + r * out_stride + 4 * v);
    for (size_t i = 0; i < c->n_groups; i++)
        for (size_t v = 0; v < VECTORS; v++) {
            const float32x4_t ws = vld1q_f32(w->ws[i] + 4 * v), mw = vld1q_f32(w->mw[i] + 4 * v);
            for (size_t r = 0; r < n; r++) {
                const float scale = sl_neon_row_scale(in, row + r)[c->first + i];
                const float32x4_t dot = vcvtq_f32_s32(dot_of(w, i, row + r, v, type));
                acc[r][v] = vfmaq_f32(acc[r][v], dot, vmulq_n_f32(ws, scale));
                if (sl_neon_has_minimum(type))
                    acc[r][v] = vfmaq_n_f32(acc[r][v], mw, scale * sl_neon_row_sum(in, row + r)[c->first + i]);
            }
        }
    for (size_t r = 0; r < n; r++)
        for (size_t v = 0; v < VECTORS; v++)
            vst1q_f32(out + r * out_stride + 4 * v, acc[r][v]);
}

/* Whole panels for up to ROWS rows; out: of the first row. */
NEON_INLINE void multiply_rows(const sl_gemm_args *args, const sl_neon_rows *in, size_t n_rows, float *out,
                               sl_wtype type)
{
    const size_t n_groups = args->n_in / SL_GROUP, row_bytes = sl_wtype_row_bytes(type, args->n_in);
    const size_t end = args->first_out + args->n / SL_PANEL * SL_PANEL, stride = args->out_stride;
    const size_t halves = type == SL_WTYPE_Q6_K ? 2 : 1, most = PRODUCTS / halves;
    work w;
    for (size_t g = 0; g < n_groups; g += most) {
        const size_t n = n_groups - g < most ? n_groups - g : most;
        const chunk c = {g, n, n * halves, QUADS / halves, (n_rows + SME_ROWS - 1) / SME_ROWS, n_rows};
        turn_rows(&w, &c, in);
        for (size_t o = args->first_out; o < end; o += SL_PANEL) {
            decode(&w, &c, (const uint8_t *)args->packed + o * row_bytes, type);
            multiply(&w, &c);
            size_t r = 0;
            for (; r + 2 <= n_rows; r += 2)
                scale_rows(&w, &c, in, r, 2, out + r * stride + o, stride, type);
            if (r < n_rows)
                scale_rows(&w, &c, in, r, 1, out + r * stride + o, stride, type);
        }
    }
}

NEON_INLINE void gemm_panels(const sl_gemm_args *args, sl_wtype type, sl_gemm_fn below)
{
    const size_t left = args->n_rows % SME_ROWS, few = left < FEWEST_ROWS ? left : 0, n_rows = args->n_rows - few;
    const size_t narrow = args->n % SL_PANEL;
    sl_neon_rows in = {args->qrows, sl_qrow_bytes(args->n_in), sl_qrow_sum_off(args->n_in), sl_qrow_q_off(args->n_in)};
    for (size_t r = 0; r < n_rows; r += ROWS, in.rows += ROWS * in.stride)
        multiply_rows(args, &in, n_rows - r < ROWS ? n_rows - r : ROWS, args->out + r * args->out_stride, type);
    sl_gemm_args rest = *args;
    rest.first_out += args->n - narrow;
    rest.n = narrow;
    rest.n_rows = n_rows;
    if (narrow > 0 && n_rows > 0)
        below(&rest);
    if (few == 0)
        return;
    rest = *args;
    rest.qrows = (const uint8_t *)args->qrows + n_rows * in.stride;
    rest.out = args->out + n_rows * args->out_stride;
    rest.n_rows = few;
    below(&rest);
}

#define GEMM(TYPE, name)                                                                                               \
    NEON void sl_gemm_##name##_sme(const sl_gemm_args *args)                                                           \
    {                                                                                                                  \
        gemm_panels(args, SL_WTYPE_##TYPE, sl_gemm_##name##_i8mm);                                                     \
    }
GEMM(Q8_0, q8_0)
GEMM(Q4_0, q4_0)
GEMM(Q4_1, q4_1)
GEMM(Q5_0, q5_0)
GEMM(Q5_1, q5_1)
GEMM(Q4_K, q4_k)
GEMM(Q5_K, q5_k)
GEMM(Q6_K, q6_k)

#else
typedef int sl_gemm_sme_is_for_arm64;
#endif
