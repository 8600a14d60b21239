/* How the projections of the 256-bit levels go through a matrix: panel by panel, a block of groups at a time, decoded
 * once for up to 64 rows; a few rows multiply what they decode in registers. The driver (gemm_panels.c) knows no
 * instruction set; gemm_decode_avx2.c decodes; a level brings the products. */
#ifndef SL_GEMM_PANELS_H
#define SL_GEMM_PANELS_H

#include "kernel/kernel.h"

enum {
    SL_QUADS = 8,        /* of a group: four elements each */
    SL_PANEL_GROUPS = 8, /* of a block: 256 elements, a superblock of the K types */
    SL_PANEL_ROWS = 64,  /* that share a decoding */
    SL_PANEL_FEW = 3,    /* rows that do not need one */
    SL_HALF_PANEL = 8    /* outputs of a 256-bit vector */
};

/* Scales of a block's groups for sixteen outputs [group][half]; mw where the type has a minimum. 64-byte aligned. */
typedef struct sl_panel_heads {
    float ws[SL_PANEL_GROUPS][2][SL_HALF_PANEL], mw[SL_PANEL_GROUPS][2][SL_HALF_PANEL];
} sl_panel_heads;

/* A block, decoded; 64-byte aligned. */
typedef struct sl_panel_block {
    sl_panel_heads heads;
    /* [group][quad][half][output * 4 + element], unsigned with the type's offset left in; signed, without it: Q6_K,
     * Q2_K, Q3_K, IQ4_NL and IQ4_XS */
    uint8_t w[SL_PANEL_GROUPS][SL_QUADS][2][4 * SL_HALF_PANEL];
    /* Q6_K, Q2_K, Q3_K: [group][half of its elements][half]; see the two kinds of decoders */
    int32_t start[SL_PANEL_GROUPS][2][2][SL_HALF_PANEL], sub[SL_PANEL_GROUPS][2][2][SL_HALF_PANEL];
    int32_t minimums[SL_PANEL_GROUPS][2][SL_HALF_PANEL]; /* Q2_K: [group][half], two int16 an output */
} sl_panel_block;

/* Up to SL_PANEL_ROWS rows of quantised input. */
typedef struct sl_panel_rows {
    const uint8_t *rows;
    size_t stride, sum_off, q_off;
    size_t n;
} sl_panel_rows;

/* acc[r][output] += groups [first, first + n) of in's rows. */
typedef void (*sl_panel_block_fn)(float (*acc)[SL_PANEL], const sl_panel_block *block, size_t first, size_t n,
                                  const sl_panel_rows *in);
/* The same from packed groups of a whole panel; n may be any number, of the K types one of whole superblocks. */
typedef void (*sl_panel_packed_fn)(float (*acc)[SL_PANEL], const uint8_t *packed, size_t first, size_t n,
                                   const sl_panel_rows *in);
/* n packed groups of a whole panel; n <= SL_PANEL_GROUPS, for the K types one superblock. */
typedef void (*sl_panel_decode_fn)(sl_panel_block *out, const uint8_t *packed, size_t n);

/* A type at a level. */
typedef struct sl_panel_ops {
    sl_wtype type;
    sl_panel_packed_fn packed; /* up to SL_PANEL_FEW rows; any number where nothing decodes */
    sl_panel_decode_fn decode; /* or NULL */
    sl_panel_block_fn block;
} sl_panel_ops;

void sl_gemm_panels(const sl_gemm_args *args, const sl_panel_ops *ops);

/* gemm_decode_avx2.c */
void sl_panel_decode_q4_0(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q4_1(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q5_0(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q5_1(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q4_k(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q5_k(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_iq4_nl(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_iq4_xs(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_mxfp4(sl_panel_block *out, const uint8_t *packed, size_t n);
/* pairs: start: -128 * the sums of w, two int16 an output; sub: the sub-scale as two int16 */
void sl_panel_decode_q6_k_pairs(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q2_k_pairs(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q3_k_pairs(sl_panel_block *out, const uint8_t *packed, size_t n);
/* whole: start: -128 * the sum of w, int32; sub: the sub-scale as binary32 */
void sl_panel_decode_q6_k_whole(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q2_k_whole(sl_panel_block *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q3_k_whole(sl_panel_block *out, const uint8_t *packed, size_t n);

#endif
