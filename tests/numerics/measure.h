/* What the numerics' figures are measured with: sets of numbers, errors summed up, and the rows of a real model.
 *
 *   measure_numerics [MODEL.gguf TEXT]
 *
 * prints the table of docs/numerics.md: each rule's result by the processor's kernels (whose bits are the reference's)
 * against binary64, on random normal numbers, the same with outlying channels, and what a model computes of a text. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/kernel.h"
#include "model/weights.h"

#define MEASURE_U 0x1p-24 /* the rounding unit of binary32 */

typedef enum measure_set {
    MEASURE_SET_NORMAL,
    MEASURE_SET_OUTLIER, /* one channel of 64 is thirty times the others, the same in every row */
    MEASURE_SET_REAL,
    MEASURE_SET_COUNT
} measure_set;

const char *measure_set_name(measure_set set);

/* rows [n_rows][n] of a random set, from a seed. */
void measure_fill(float *rows, size_t n_rows, size_t n, measure_set set, uint64_t seed);

/* Errors of one line of the table. */
typedef struct measure_sum {
    double error2, size2;  /* sums of squares: of the arithmetic's error, of the exact results */
    double rounding2;      /* of the error when what was rounded on the way in counts, too */
    double worst_row;      /* largest relative rms error of a row */
    double worst_of_bound; /* largest |error| / bound */
} measure_sum;

/* One row's results. exact: what the arithmetic should give; given: the same of the numbers before they were rounded to
 * the stored type or to 8 bits (NULL: none were). bound: of each |error|. */
void measure_add(measure_sum *sum, const float *got, const double *exact, const double *given, const double *bound,
                 size_t n);
/* One row of the table. */
void measure_print(const char *rule, const char *data, const measure_sum *sum);

enum { REAL_LAYERS = 4, REAL_TOKENS = 2048 };

/* Rows of some layers as the model computes them, [n] each. */
typedef struct real_layer {
    size_t layer;
    float *x;       /* [n_embd], before the attention's norm */
    float *q_plain; /* [n_heads * head_dim], before RoPE */
    float *q, *k;   /* after RoPE; k [n_kv_heads * head_dim] */
    float *v;
    float *gate, *up, *mid; /* [n_ff]; mid = SiLU(gate) * up */
} real_layer;

typedef struct real_rows {
    sl_budget budget;
    sl_weights *weights;
    size_t n;
    double *freq; /* [rope_dims / 2] */
    real_layer layers[REAL_LAYERS];
    float *logits; /* of the last token */
} real_rows;

/* The first REAL_TOKENS tokens of the text through all layers, F16 cache. false: something is missing, and was said. */
bool real_rows_make(const char *model, const char *text, const sl_kernels *kernels, real_rows *out);

/* Attention of at most 16 queries of one KV head, each over the keys up to its position. */
typedef struct measure_attn {
    sl_kv_type type;
    size_t head_dim, n_keys, n_queries, kv_stride;
    const float *k, *v; /* a key's D floats at kv_stride */
    const float *q[SL_LANES];
    size_t pos[SL_LANES];
    float *out[SL_LANES];
    uint8_t *tiles; /* NULL, or room for what is stored, [ceil(n_keys/64)] of sl_tile_bytes, 64-byte aligned */
} measure_attn;

void measure_attend(const sl_kernels *kernels, const measure_attn *a);

/* The parts of the table; real: NULL without a model. */
void measure_attention(const sl_kernels *kernels, const real_rows *real);
void measure_projections(const sl_kernels *kernels, const real_rows *real);
void measure_vectors(const sl_kernels *kernels, const real_rows *real);

#endif
