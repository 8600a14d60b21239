/* Tiny random models, `llama`s and other families', from a seed: the same bytes on every machine. Keys and tensor names
 * are those that llama.cpp's converter writes. A build that runs out of memory ends the test program. */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/gguf_build.h"

/* ggml's numbers of the types that tiny models may have */
enum {
    TINY_TYPE_F32 = 0,
    TINY_TYPE_F16 = 1,
    TINY_TYPE_Q4_0 = 2,
    TINY_TYPE_Q4_1 = 3,
    TINY_TYPE_Q5_0 = 6,
    TINY_TYPE_Q5_1 = 7,
    TINY_TYPE_Q8_0 = 8,
    TINY_TYPE_Q4_K = 12,
    TINY_TYPE_Q5_K = 13,
    TINY_TYPE_Q6_K = 14,
    TINY_TYPE_BF16 = 30
};

#define TINY_OMIT_MAX 4

typedef struct tiny_model {
    uint64_t seed;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t hidden, ffn; /* with n_heads * head_dim multiples of 32 for the Q types, of 256 for the K types */
    uint32_t n_context;
    double rope_base, norm_eps;
    double rope_factor;             /* > 1: linear scaling */
    uint32_t weight_type, emb_type; /* of matrices; of token_embd (and of output) */
    bool separate_output;           /* output.weight, else the embedding serves */
    bool add_bos;
    const char *arch, *tok_model, *tok_pre; /* "llama", "gpt2", "smollm" */
    bool biases;           /* wherever the architecture may have them */
    uint32_t sliding_span; /* attention.sliding_window; 0: the file says nothing */
    const char *rope_type; /* rope.scaling.type of rope_factor; NULL: linear */
    bool long_factors;     /* rope_factors_long and rope_factors_short, of an original context of 256 tokens */
    uint32_t n_experts, n_used, expert_ffn; /* of mixtures; 0: none, and expert_ffn 0: ffn, of which no key speaks */
    bool flat_router;                       /* all zeros: every expert's logit is the same */
    const char *chat_template;              /* ChatML with a default system message; NULL: none */
    const char *omit[TINY_OMIT_MAX];        /* keys or tensors to leave out */
} tiny_model;

enum { TINY_TOK_END = 0, TINY_TOK_IM_START = 1, TINY_TOK_IM_END = 2, TINY_TOK_BYTES = 3 };

/* 2 layers, 4 heads on 2 KV heads of 32, hidden 128, ffn 192, context 8192, F32, tied. */
tiny_model tiny_model_of_seed(uint64_t seed);
/* One of a family: an architecture that the engine knows, with what only it has; 6 heads, so that they are not
 * hidden / head_dim, and as many layers as show its pattern. Sliding layers span 200 tokens. */
tiny_model tiny_model_of_arch(uint64_t seed, const char *arch);
/* The same with matrices and embedding of a type; for K types 8 heads, hidden 256 and ffn 256, so that it has rows. */
tiny_model tiny_model_of_type(uint64_t seed, uint32_t type);

/* 3 control tokens, the 256 bytes in order, then one token for each merge. */
size_t tiny_model_n_vocab(void);

/* Adds metadata and tensors; the caller may add more before it finishes the build. */
void tiny_model_build(const tiny_model *model, gguf_build *build);
/* Builds and writes; false: the file could not be written. */
bool tiny_model_write(const tiny_model *model, const char *path);

/* Writes n values (whole blocks) as the type has them, each type by a simple rule of its own; for tests that want
 * weights of their own. */
void tiny_encode(uint32_t type, const float *values, size_t n, gguf_bytes *out);

#endif
