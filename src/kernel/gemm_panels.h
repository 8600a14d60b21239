/* How the projections of the 256-bit levels go through a matrix: panel by panel, a block of groups at a time, decoded
 * once for up to 64 rows. The driver (gemm_panels.c) knows no instruction set; a level brings the products.
 * An inlined helper takes more than six parameters where they are the registers of its caller's loop. */
#ifndef SL_GEMM_PANELS_H
#define SL_GEMM_PANELS_H

#include "kernel/kernel.h"

enum {
    SL_QUADS = 8,         /* four elements each: a group */
    SL_PANEL_GROUPS = 8,  /* decoded at a time: 256 elements, a superblock of the K types */
    SL_PANEL_ROWS = 64,   /* that share a decoding */
    SL_HALF_PANEL = 8     /* outputs of a 256-bit vector */
};

/* A group of sixteen outputs, decoded; 64-byte aligned. A missing output (a narrow last panel) is all zero. */
typedef struct sl_panel_group {
    /* [quad][half][output * 4 + element], unsigned with the type's offset left in (Q6_K: signed, without it) */
    uint8_t w[SL_QUADS][2][4 * SL_HALF_PANEL];
    float ws[2][SL_HALF_PANEL], mw[2][SL_HALF_PANEL]; /* mw: types with a minimum */
    /* Q6_K, of each half of the group's elements [2][half]; what they hold is the level's matter. */
    int32_t start[2][2][SL_HALF_PANEL], sub[2][2][SL_HALF_PANEL];
} sl_panel_group;

/* Up to SL_PANEL_ROWS rows of quantised input. */
typedef struct sl_panel_rows {
    const uint8_t *rows;
    size_t stride, sum_off, q_off;
    size_t n;
} sl_panel_rows;

/* acc[r][output] += groups [first, first + n) of in's rows. `weights` is the first of n sl_panel_group, or of the
 * packed groups where nothing decodes them. */
typedef void (*sl_panel_multiply_fn)(float (*acc)[SL_PANEL], const void *weights, size_t first, size_t n,
                                     const sl_panel_rows *in);
/* n packed groups of a whole panel; n <= SL_PANEL_GROUPS, for the K types one superblock. */
typedef void (*sl_panel_decode_fn)(sl_panel_group *out, const uint8_t *packed, size_t n);

/* A type at a level. */
typedef struct sl_panel_ops {
    sl_wtype type;
    sl_panel_decode_fn decode; /* NULL: multiply reads packed groups */
    sl_panel_multiply_fn multiply;
} sl_panel_ops;

void sl_gemm_panels(const sl_gemm_args *args, const sl_panel_ops *ops);

/* gemm_decode_avx2.c */
void sl_panel_decode_q4_0(sl_panel_group *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q4_1(sl_panel_group *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q5_0(sl_panel_group *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q5_1(sl_panel_group *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q4_k(sl_panel_group *out, const uint8_t *packed, size_t n);
void sl_panel_decode_q5_k(sl_panel_group *out, const uint8_t *packed, size_t n);
/* start: -128 * the sums of w, two int16 an output; sub: the sub-scale as two int16 */
void sl_panel_decode_q6_k_pairs(sl_panel_group *out, const uint8_t *packed, size_t n);
/* start: -128 * the sum of w, int32; sub: the sub-scale as binary32 */
void sl_panel_decode_q6_k_whole(sl_panel_group *out, const uint8_t *packed, size_t n);

#endif
