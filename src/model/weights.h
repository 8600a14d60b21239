/* A model's parameters: hyper-parameters, one packed copy of every tensor, or of those that memory has room for.
 *
 * Owns: the weights in memory. Refuses: an architecture, tensor type, RoPE rule or tensor that it does not know, by
 * name, and any that is missing or of the wrong shape. Thread rule: read-only after loading, but for what streams from
 * the file (weight_stream.h), which the thread that drives passes changes. */
#ifndef SL_WEIGHTS_H
#define SL_WEIGHTS_H

#include "base/log.h"
#include "base/mem.h"
#include "gguf/gguf.h"
#include "kernel/kernel.h"
#include "model/arch.h"
#include "model/rope.h"
#include "store/geom.h"

typedef struct sl_matrix {
    sl_wtype type;
    size_t n_out, n_in;
    size_t n_stacked; /* so many such matrices, each packed behind the one before: the experts'; else 1 */
    size_t bytes;     /* of all of them */
    uint8_t *packed;  /* kernel.h's layout; owned by the weights. NULL: on flash only (weight_stream.h) */
    uint64_t file_off; /* where the file has it, row by row; */
    uint32_t part;     /* of a split model, which file */
    bool is_own;       /* packed is a mapping of its own, no place in a buffer */
    bool stays;        /* should be one: what sl_weights_choose chose last */
    uint64_t *sums;    /* [panels, stack by stack] checksums of each one's bytes in the file; NULL: not taken */
} sl_matrix;

/* What an architecture lacks is NULL, and a matrix without bytes. */
typedef struct sl_layer_weights {
    float *attn_norm; /* [n_embd] */
    sl_matrix wq;     /* [n_heads * head_dim][n_embd] */
    sl_matrix wk, wv; /* [n_kv_heads * head_dim][n_embd] */
    sl_matrix wo;     /* [n_embd][n_heads * head_dim] */
    float *bq, *bk, *bv, *bo;         /* a bias for each of their outputs */
    float *q_norm, *k_norm;           /* [head_dim] */
    float *attn_post_norm;            /* [n_embd] */
    float *ffn_norm;                  /* [n_embd] */
    sl_matrix w_gate, w_up;           /* [n_ff][n_embd] */
    sl_matrix w_down;                 /* [n_embd][n_ff] */
    float *b_gate, *b_up, *b_down;
    sl_matrix router; /* [n_experts][n_embd]; of mixtures, whose w_gate, w_up and w_down are stacks of n_experts */
    float *ffn_post_norm; /* [n_embd] */
} sl_layer_weights;

typedef struct sl_hparams {
    const sl_arch *arch;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t n_embd, n_ff, n_vocab; /* n_ff: of one expert */
    uint32_t n_experts, n_used;     /* experts of a layer, and of a row; 0: no mixture */
    uint32_t n_ctx_train;
    float norm_eps;
    float attn_scale;                   /* of the scores; 0: 1 / sqrt(head_dim) */
    float attn_softcap, logit_softcap;  /* 0: none */
    float embd_scale;                   /* of embeddings; 0: none */
    uint32_t sliding_span; /* a sliding layer's row sees itself and the span - 1 tokens before it; 0: no layer slides */
    sl_rope rope;          /* as the file has it */
} sl_hparams;

bool sl_hparams_slides(const sl_hparams *hp, uint32_t layer);
uint32_t sl_hparams_n_sliding(const sl_hparams *hp); /* layers that slide */
bool sl_hparams_has_rope(const sl_hparams *hp, uint32_t layer);
sl_kv_layer sl_hparams_kv_layer(const sl_hparams *hp, uint32_t layer);

typedef struct sl_weight_stream sl_weight_stream;

typedef struct sl_weights {
    sl_hparams hp;
    sl_matrix embedding; /* [n_vocab][n_embd] */
    sl_matrix *output;   /* &embedding when tied */
    sl_matrix own_output;
    float *output_norm; /* [n_embd] */
    float *rope_factors, *rope_long, *rope_short; /* [rope.dims / 2], divide each frequency; NULL: none */
    sl_layer_weights *layers;
    uint64_t bytes;        /* of all tensors */
    uint64_t matrix_bytes; /* of those that need not stay; sl_weights_choose counts them */
    uint64_t fixed_bytes; /* that they take of the budget whatever stays: tables, vectors, checksums */
    size_t n_files;  /* of the model */
    sl_weight_stream *stream; /* NULL: all matrices are in memory, for good */
    uint64_t fingerprint[2]; /* XXH3-128 of hyper-parameters and tensors, in the order of loading: what makes two files
                                the same model */
    sl_budget *budget;
} sl_weights;

/* One matrix of a stack, which keeps owning the bytes. */
sl_matrix sl_matrix_of_stack(const sl_matrix *stack, size_t index);

/* The divisors of the rule's frequencies; NULL: none. */
const float *sl_weights_rope_divisors(const sl_weights *weights, sl_rope_kind kind);

/* Progress: bytes read so far of all; returns false to stop (SL_CANCELLED). */
typedef bool (*sl_weights_progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/* Reads and checks the hyper-parameters alone. Errors: SL_REFUSED for what is unknown to this program, SL_DAMAGED for
 * what is wrong in the file. */
sl_status sl_hparams_read(const sl_gguf *gguf, sl_hparams *out, sl_err *err) SL_CHECK;
/* Checks every tensor of the file: known, of a known type, of the right shape, none missing. Reads no data. */
sl_status sl_weights_check(const sl_gguf *gguf, const sl_hparams *hp, sl_err *err) SL_CHECK;
/* All of them in memory. */
sl_status sl_weights_load(const sl_gguf *gguf, sl_budget *budget, sl_weights_progress progress, void *arg,
                          sl_weights **out, sl_err *err) SL_CHECK;

typedef struct sl_weights_options {
    sl_budget *budget;
    /* Of the budget for the weights: what it has no room for is read, checked and dropped (weight_stream.h) */
    uint64_t room_bytes;
    bool only_describe; /* read nothing: types, shapes and places alone, as a plan needs them */
    const struct sl_vfs *vfs; /* by which weights are read later; NULL: the system's */
    const sl_log *log;        /* borrowed for good; NULL: silent */
    sl_weights_progress progress;
    void *arg;
} sl_weights_options;

/* Weights that need not stay in memory. gguf: from a path, not from memory. */
sl_status sl_weights_open(const sl_gguf *gguf, const sl_weights_options *options, sl_weights **out,
                          sl_err *err) SL_CHECK;
/* Bytes of the buffer that loading reads through, freed at its end. For the plan. */
size_t sl_weights_buffer_bytes(const sl_hparams *hp);
void sl_weights_destroy(sl_weights *weights);

#endif
