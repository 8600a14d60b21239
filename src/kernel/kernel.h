/* The kernels: pure functions on host pointers. No I/O, no allocation, no errors, no state.
 *
 * Owns: the contracts below and the list of entries (kernel_list.h). The definition of every result is
 * section 4, written out as scalar C in attn_ref.c, gemm_ref.c and vec_ref.c; every other file must give the same
 * bits. docs/numerics.md states the rules and their error bounds.
 * Thread rule: all functions are reentrant; outputs of two calls must not overlap. The caller has entered
 * sl_fpenv. Buffers are 64-byte aligned where said. */
#ifndef SL_KERNEL_H
#define SL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/tile.h"

enum {
    SL_LANES = 16, /* queries of a query block; lanes of every sixteen-lane sum */
    SL_GROUP = 32, /* elements that share a scale in quantised rows, K and V, and weights (Q6_K: two sub-scales) */
    SL_PANEL = 16  /* output channels of a packed weight panel */
};

#define SL_LOG2E 1.44269504088896340736f /* binary32 of log2(e) */

/* ------------------------------------------------------------------------------------------------------------
 * Tile of one layer and one KV head: K then V of 64 tokens, D = head_dim. One layout for all instruction sets.
 *
 *  F16, 256*D bytes:   offset 0      K   [D][64] binary16     (dimension-major: lanes are keys)
 *                      128*D         V   [64][D] binary16     (token-major)
 *  Q8_0, 136*D bytes:  offset 0      K   [64][D] int8         (token-major)
 *  (D multiple of 32)  64*D          Ks  [D/32][64] binary16  scale of each key's group
 *                      68*D          V   [D][64] int8         (dimension-major)
 *                      132*D         Vs  [D/32][64] binary16
 * A token that is not there yet is all zero bytes. Every sub-array starts on a multiple of 64 bytes if the tile
 * does and D is a multiple of 16. D is a multiple of 16 up to SL_MAX_HEAD_DIM. Size: sl_tile_bytes in
 * base/tile.h. */

/* ------------------------------------------------------------------------------------------------------------
 * Query block: up to 16 queries of one KV head, lane-wise; 64-byte aligned. Lanes past the last are zero.
 *  F16:   float   q[D][16]                          (q * c, rounded once)
 *  Q8_0:  int16_t q[D/2][16][2], float qs[D/32][16] (qs = scale * c)
 * State: float m[16], l[16], o[D][16]; m = -inf, l = 0, o = 0 at the start. Two states a block: the segment's
 * and the total. */
size_t sl_qblock_bytes(sl_kv_type type, size_t head_dim);
size_t sl_state_bytes(size_t head_dim);

/* Scratch of one attn_tile call (64-byte aligned, contents undefined before and after). */
size_t sl_tile_scratch_bytes(sl_kv_type type, size_t head_dim);

/* One tile folded into the segment states of n_queries queries, which lie in consecutive blocks of 16. */
typedef struct sl_tile_args {
    const uint8_t *tile; /* 64-byte aligned */
    size_t head_dim;
    const uint8_t *qblocks; /* [ceil(n/16)] of sl_qblock_bytes */
    uint8_t *states;        /* [ceil(n/16)] at state_stride bytes, each sl_state_bytes */
    size_t state_stride;
    size_t n_queries;
    /* NULL: every key visible to every query. Else [ceil(n/16)*16], bit t = key t visible; a query with mask 0
     * keeps its state's bits, lanes past n_queries are ignored (their state may hold anything). */
    const uint64_t *masks;
    float softcap; /* 0: none. Else a: s = (a * log2 e) * tanh(s) */
    void *scratch;
    /* NULL, or the tile that these queries meet next: its bytes may be called into the cache meanwhile. */
    const uint8_t *next;
} sl_tile_args;

typedef void (*sl_attn_tile_fn)(const sl_tile_args *args);

/* n_tiles tiles, the first at args->tile, the others `stride` bytes apart behind it, folded one after another as by as
 * many calls of `tile`, which is the attn_tile of the same table and type; args->next is what follows the last. */
typedef void (*sl_attn_tiles_fn)(const sl_tile_args *args, size_t n_tiles, size_t stride, sl_attn_tile_fn tile);

/* q[i]: D floats of lane i, i < n <= 16; c = binary32 of log2(e) * the score's scale (softcap a: of scale / a). */
typedef void (*sl_attn_qpack_fn)(void *qblock, const float *const *q, size_t n, size_t head_dim, float c);

/* Folds each block's segment state into its total by the rule of segments, then resets the segment state.
 * A lane whose segment m is -inf leaves the total's bits unchanged. */
typedef void (*sl_attn_segfold_fn)(uint8_t *totals, uint8_t *segments, size_t state_stride, size_t n_blocks,
                                   size_t head_dim);

/* out[i][0..D) = o / l of lane i, i < n <= 16. */
typedef void (*sl_attn_finish_fn)(const uint8_t *total, float *const *out, size_t n, size_t head_dim);

/* Rounds one token's k and v (D floats each) to the stored type and writes them as key `key` of the tile.
 * Returns false, the tile's bytes of that token being undefined, on NaN, infinity or overflow of binary16. */
typedef bool (*sl_kv_pack_fn)(uint8_t *tile, size_t key, const float *k, const float *v, size_t head_dim);

/* ------------------------------------------------------------------------------------------------------------
 * Weights: matrix [n_out][n_in], n_in a multiple of 32 for the quantised types. Packed once at load, same size as
 * in GGUF, panel by panel of w = min(16, outputs left) outputs, so that a panel can be packed when it arrives.
 *
 *  F32, F16, BF16: as in GGUF: row after row.
 *  Q8_0, a panel's group, 34*w bytes:  q [8][w][4] int8   (element 4*i+b of output j at [i][j][b]),
 *                                      d [w] binary16
 *  Q4_0, 18*w bytes:  q [4][w][4], byte b of [i][j] = elements 8*i+b (low nibble) and 8*i+4+b (high nibble),
 *                     value + 8; d [w] binary16
 *  Q4_1, 20*w bytes:  q as Q4_0 (value unsigned); d [w] binary16; m [w] binary16
 *  Q5_0, 22*w bytes:  q as Q4_0 (low four bits); h [w][4], bit i of byte b of output j = fifth bit of element 4*i+b,
 *                     value + 16; d [w] binary16
 *  Q5_1, 24*w bytes:  q and h as Q5_0 (value unsigned); d [w] binary16; m [w] binary16
 *  A panel is its n_in/32 groups in order; panels in order.
 *
 * n_in a multiple of 256 for the K types, whose panel is its n_in/256 superblocks in order:
 *  Q4_K, 144*w bytes: 8 groups of q as Q4_0 (16*w bytes each); s [3][w] uint32: sixteen six-bit fields of output j,
 *                     field 2*g the scale and 2*g+1 the minimum of group g; field f < 15 in word f/5 from bit 6*(f%5),
 *                     field 15 in the top two bits of the three words, lowest first; d [w], dmin [w] binary16
 *  Q5_K, 176*w bytes: 8 groups of q and h as Q5_0 (20*w bytes each); s, d, dmin as Q4_K
 *  Q6_K, 210*w bytes: 8 groups of q as Q4_0 and h [2][w][4], bits 2*k and 2*k+1 of byte b of [i][j] = high two bits of
 *                     element 16*i+4*k+b, value + 32 (24*w bytes each); s [8][w][2] int8: of each group's elements
 *                     0..15 and 16..31; d [w] binary16
 *  Q2_K, 84*w bytes:  8 groups of q [2][w][4], bits 2*k and 2*k+1 of byte b of [i][j] = element 16*i+4*k+b (8*w bytes
 *                     each); s [8][w][2]: of each group's elements 0..15 and 16..31 a byte, low nibble the scale, high
 *                     nibble the minimum; d [w], dmin [w] binary16
 *  Q3_K, 110*w bytes: 8 groups of q as Q2_K and h as Q5_0, value + 4 (12*w bytes each); s [3][w] uint32 as Q4_K:
 *                     field f the scale of elements 16*f..16*f+15, + 32; d [w] binary16
 *  IQ4_NL, 18*w bytes: as Q4_0, each nibble an index into sixteen values (weight.c)
 *  IQ4_XS, 136*w bytes: 8 groups of q as IQ4_NL; scale of group g, + 32: its low four bits nibble g of l [w][4], its
 *                     high two bits those from bit 2*g on of h [w] uint16; d [w] binary16
 *  MXFP4, 17*w bytes: q as Q4_0, each nibble an index into sixteen values; e [w] bytes: d = 2^(e - 128)
 *  Product of a K type's group (the others: see gemm_ref.c): Q4_K, Q5_K: ws = d * scale, mw = -(dmin * minimum), as
 *  Q4_1; Q6_K, Q3_K: the integer sum takes the two scales in, ws = d; Q2_K, too, and a second integer sum the two
 *  minimums, mw = -dmin; IQ4_XS: ws = d * scale. */
typedef enum sl_wtype {
    SL_WTYPE_F32,
    SL_WTYPE_F16,
    SL_WTYPE_BF16,
    SL_WTYPE_Q8_0,
    SL_WTYPE_Q4_0,
    SL_WTYPE_Q4_1,
    SL_WTYPE_Q5_0,
    SL_WTYPE_Q5_1,
    SL_WTYPE_Q4_K,
    SL_WTYPE_Q5_K,
    SL_WTYPE_Q6_K,
    SL_WTYPE_Q2_K,
    SL_WTYPE_Q3_K,
    SL_WTYPE_IQ4_NL,
    SL_WTYPE_IQ4_XS,
    SL_WTYPE_MXFP4,
    SL_WTYPE_COUNT
} sl_wtype;

enum { SL_SUPERBLOCK = 256 }; /* elements of a K type's block */

/* Elements of one block, of which a row holds a whole number: 1, SL_GROUP, or SL_SUPERBLOCK for the K types. */
size_t sl_wtype_block_elems(sl_wtype type);
/* Bytes of one row of n elements, in GGUF and packed alike. */
size_t sl_wtype_row_bytes(sl_wtype type, size_t n);
bool sl_wtype_is_quantised(sl_wtype type);
bool sl_wtype_has_minimum(sl_wtype type); /* Q4_1, Q5_1, Q4_K, Q5_K, Q2_K */
const char *sl_wtype_name(sl_wtype type);

/* Packs one panel: `rows` = w consecutive GGUF rows of n_in elements (unaligned), to `panel` (w row-bytes). */
void sl_weight_pack_panel(sl_wtype type, void *panel, const void *rows, size_t w, size_t n_in);

/* One output's group of a packed panel, in numbers; quantised types. */
typedef struct sl_weight_group {
    int16_t q[SL_GROUP]; /* with its offset taken off; Q6_K, Q2_K, Q3_K: times its sub-scale, |q| <= 4096 */
    int16_t m[2];        /* of elements 0..15 and 16..31: 1, Q2_K: their minimum, 0..15 */
    float ws, mw;        /* element = ws * q + mw * m, mw where the type has a minimum */
} sl_weight_group;

/* Group g of output j of a panel of w outputs. The plain reading of the layouts above: for the reference, for tests. */
void sl_weight_group_read(sl_wtype type, const void *panel, size_t w, size_t j, size_t g, sl_weight_group *out);

/* One row of a packed matrix as floats: ws * q, or fma(ws, q, mw * m), rounded once. For embeddings. */
void sl_weight_row(sl_wtype type, const void *packed, size_t n_out, size_t n_in, size_t row, float *out);

/* A quantised input row of n elements: scale[n/32], sum[n/32] (exact sum of a group's q as float), q[n]. Rows of
 * a batch follow at sl_qrow_bytes(n) (a multiple of 64): float scale[], float sum[], int8_t q[] in this order,
 * each sub-array padded to 64 bytes. */
size_t sl_qrow_bytes(size_t n);
size_t sl_qrow_sum_off(size_t n);
size_t sl_qrow_q_off(size_t n);
/* x [n_rows][x_stride floats] to out (64-byte aligned). */
typedef void (*sl_qrow_fn)(void *out, const float *x, size_t x_stride, size_t n_rows, size_t n);

/* out[r][o] for o in [first_out, first_out + n): first_out a multiple of 16; n a multiple of 16 unless it ends
 * the matrix. Input: qrows for quantised types, else floats [n_rows][x_stride]. */
typedef struct sl_gemm_args {
    const void *packed; /* the whole matrix */
    size_t n_out, n_in; /* of the whole matrix */
    size_t first_out, n;
    const void *qrows;  /* quantised types: [n_rows] at sl_qrow_bytes(n_in) */
    const float *x;     /* other types */
    size_t x_stride;
    size_t n_rows;
    float *out; /* out[r * out_stride + o], o counted from the matrix's first output */
    size_t out_stride;
} sl_gemm_args;

typedef void (*sl_gemm_fn)(const sl_gemm_args *args);

/* ------------------------------------------------------------------------------------------------------------
 * Vectors. */

/* out = (x * (1 / sqrt(mean(x^2) + eps))) * w; out may be x. */
typedef void (*sl_rmsnorm_fn)(float *out, const float *x, const float *w, size_t n, float eps);
/* RoPE, NORM pairing: pairs (x[2i], x[2i+1]), i < n_pairs, in place: fma(x, c, -(y*s)), fma(x, s, y*c). */
typedef void (*sl_rope_norm_fn)(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs);
/* rope_neox has the same shape and NEOX pairing: pairs (x[i], x[n_pairs + i]). */
/* out = SiLU(gate) * up, and gelu_mul: GELU(gate) * up; out may be gate. */
typedef void (*sl_silu_mul_fn)(float *out, const float *gate, const float *up, size_t n);
/* x = cap * tanh(x / cap), cap > 0 */
typedef void (*sl_softcap_fn)(float *x, size_t n, float cap);
/* x += y */
typedef void (*sl_add_fn)(float *x, const float *y, size_t n);
/* out[i] = exp2(x[i]); out may be x. */
typedef void (*sl_exp2_fn)(float *out, const float *x, size_t n);
/* Sum over i of exp2((x[i] - max) * log2e), sixteen lanes and the tree. */
typedef float (*sl_sumexp_fn)(const float *x, size_t n, float max);
/* Index of the largest element, the lowest among equals; n >= 1; NaN absent. */
typedef size_t (*sl_argmax_fn)(const float *x, size_t n);
/* true when every element is finite */
typedef bool (*sl_finite_fn)(const float *x, size_t n);

#include "kernel/kernel_list.h"

typedef struct sl_kernels {
#define SL_KERNEL_FIELD(name, type) type name;
    SL_KERNEL_LIST(SL_KERNEL_FIELD)
#undef SL_KERNEL_FIELD
    /* [entry in list order]: the level that filled it */
    sl_cpu_level level[SL_KERNEL_COUNT];
} sl_kernels;

/* Fills the table: the reference first, then each level up to `level` overwrites. The one place that chooses. */
void sl_kernels_init(sl_kernels *kernels, sl_cpu_level level);

/* Name of entry i in list order. */
const char *sl_kernel_name(size_t i);

/* By type: the table's functions as arrays. */
sl_gemm_fn sl_kernels_gemm(const sl_kernels *kernels, sl_wtype type);
sl_attn_tile_fn sl_kernels_attn_tile(const sl_kernels *kernels, sl_kv_type type);
sl_attn_qpack_fn sl_kernels_attn_qpack(const sl_kernels *kernels, sl_kv_type type);
sl_kv_pack_fn sl_kernels_kv_pack(const sl_kernels *kernels, sl_kv_type type);

#endif
