/* What the architectures differ in: one row each. CONTRIBUTING.md shows how to add one.
 *
 * Owns: the table. A row says which tensors a file of the architecture has, and what a layer does with them; the graph
 * and the loader know no architecture by name. Read-only. */
#ifndef SL_ARCH_H
#define SL_ARCH_H

#include <stddef.h>
#include <stdint.h>

enum {
    SL_ARCH_NEOX = 1 << 0,           /* RoPE turns pairs (i, i + dims / 2); else neighbours (2i, 2i + 1) */
    SL_ARCH_GELU = 1 << 1,           /* GELU(gate) * up; else SiLU */
    SL_ARCH_QKV_BIAS = 1 << 2,       /* biases behind queries, keys and values */
    SL_ARCH_BIASES = 1 << 3,         /* any matrix of a layer may have a bias */
    SL_ARCH_QK_NORM = 1 << 4,        /* each head's query and key are normed before RoPE */
    SL_ARCH_FUSED_QKV = 1 << 5,      /* attn_qkv holds queries, keys, values one after another */
    SL_ARCH_FUSED_GATE_UP = 1 << 6,  /* ffn_up holds gate, up */
    SL_ARCH_POST_NORMS = 1 << 7,     /* attention's and the feed-forward's outputs are normed before they are added */
    SL_ARCH_EMBD_SCALE = 1 << 8,     /* embeddings times sqrt(n_embd) */
    SL_ARCH_SLIDES = 1 << 9,         /* attention.sliding_window counts; else a file that has one is refused */
    SL_ARCH_LONG_FACTORS = 1 << 10,  /* may have rope_factors_long and rope_factors_short */
    SL_ARCH_MAY_MIX = 1 << 11,       /* with expert_count, every feed-forward is a mixture of experts */
    SL_ARCH_MIXES = 1 << 12,         /* every feed-forward is one: expert_count must be there */
};

typedef struct sl_arch {
    const char *name; /* general.architecture, and the prefix of its keys */
    unsigned flags;
    uint32_t sliding_period;   /* of so many layers in a row the last sees the whole text; 0: all slide */
    uint32_t sliding_default;  /* span where the file says nothing; 0: none */
    uint32_t no_rope_period;   /* of so many layers in a row the last has no RoPE; 0: all have it */
    double sliding_rope_base;  /* of sliding layers, without any scaling; 0: as the others */
    uint32_t wide_scale_layers; /* the model of so many layers divides scores by sqrt(n_embd / heads); 0: none does */
    float attn_softcap, logit_softcap; /* where the file says nothing; 0: none */
} sl_arch;

const sl_arch *sl_arch_find(const char *name, size_t size); /* NULL: unknown */

/* All names, separated by ", ": for messages. */
const char *sl_arch_names(void);

#endif
