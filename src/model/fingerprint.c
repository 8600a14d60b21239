#include "model/fingerprint.h"

#include <string.h>

#include "base/hash.h"

struct sl_fingerprint {
    XXH3_state_t *state;
};

/* Field by field: a struct's padding says nothing. What only some models have is added where it is there, so that the
 * others keep the fingerprint they had before it was known. */
static void add_hparams(sl_fingerprint *fingerprint, const sl_hparams *hp)
{
    const sl_rope *rope = &hp->rope;
    const uint32_t counts[] = {hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim,
                               hp->n_embd,   hp->n_ff,    hp->n_vocab,    rope->dims};
    const double reals[] = {(double)hp->norm_eps, (double)hp->attn_scale, rope->base, rope->factor};
    sl_fingerprint_add(fingerprint, counts, sizeof counts);
    sl_fingerprint_add(fingerprint, reals, sizeof reals);
    if (strcmp(hp->arch->name, "llama") != 0)
        sl_fingerprint_add(fingerprint, hp->arch->name, strlen(hp->arch->name) + 1);
    const double more[] = {(double)hp->attn_softcap, (double)hp->logit_softcap, (double)hp->embd_scale,
                           (double)hp->sliding_span};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        if (more[i] != 0.0) {
            sl_fingerprint_add(fingerprint, more, sizeof more);
            break;
        }
    const uint32_t experts[] = {hp->n_experts, hp->n_used};
    if (hp->n_experts > 0)
        sl_fingerprint_add(fingerprint, experts, sizeof experts);
    const uint64_t turns = sl_rope_hash(rope, NULL);
    if (turns != 0)
        sl_fingerprint_add(fingerprint, &turns, sizeof turns);
}

sl_status sl_fingerprint_create(const sl_hparams *hp, sl_budget *budget, sl_fingerprint **out, sl_err *err)
{
    *out = NULL;
    sl_fingerprint *fingerprint = NULL;
    sl_status status = sl_mem_new(budget, 1, sizeof *fingerprint, "fingerprint", &fingerprint, err);
    if (status != SL_OK)
        return status;
    status = sl_hash_create(budget, &fingerprint->state, err);
    if (status != SL_OK) {
        sl_mem_free(budget, fingerprint);
        return status;
    }
    XXH3_128bits_reset(fingerprint->state);
    add_hparams(fingerprint, hp);
    *out = fingerprint;
    return SL_OK;
}

void sl_fingerprint_destroy(sl_fingerprint *fingerprint, sl_budget *budget)
{
    if (!fingerprint)
        return;
    sl_hash_destroy(budget, fingerprint->state);
    sl_mem_free(budget, fingerprint);
}

void sl_fingerprint_add(sl_fingerprint *fingerprint, const void *data, size_t bytes)
{
    XXH3_128bits_update(fingerprint->state, data, bytes);
}

void sl_fingerprint_add_tensor(sl_fingerprint *fingerprint, const sl_gguf_tensor *tensor)
{
    sl_fingerprint_add(fingerprint, tensor->name.data, tensor->name.size);
    sl_fingerprint_add(fingerprint, &tensor->type, sizeof tensor->type);
    sl_fingerprint_add(fingerprint, tensor->dims, sizeof tensor->dims);
}

void sl_fingerprint_get(const sl_fingerprint *fingerprint, uint64_t out[2])
{
    XXH128_hash_t found = XXH3_128bits_digest(fingerprint->state);
    out[0] = found.low64;
    out[1] = found.high64;
}
