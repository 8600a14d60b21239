/* A model file's hyper-parameters: read, bounded, and what changes a layer's result known or refused. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/weights.h"

enum { MAX_DIM = 1 << 24, MAX_LAYERS = 4096, MAX_EXPERTS = 4096 };

/* The file, and a key under its architecture's prefix. */
typedef struct reader {
    const sl_gguf *gguf;
    const sl_arch *arch;
    char key[96];
} reader;

static const char *key_of(reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch->name, name);
    return r->key;
}

static bool has(reader *r, const char *name)
{
    return sl_gguf_find(r->gguf, key_of(r, name)) != NULL;
}

static sl_status get_dim(reader *r, const char *name, uint32_t *out, sl_err *err)
{
    uint64_t value = 0;
    sl_status status = sl_gguf_get_uint(r->gguf, key_of(r, name), 1, MAX_DIM, &value, err);
    *out = (uint32_t)value;
    return status;
}

static sl_status get_dim_or(reader *r, const char *name, uint32_t fallback, uint32_t *out, sl_err *err)
{
    *out = fallback;
    return has(r, name) ? get_dim(r, name, out, err) : SL_OK;
}

static sl_status get_real_or(reader *r, const char *name, double high, float *out, sl_err *err)
{
    double value = 0.0;
    if (!has(r, name))
        return SL_OK;
    sl_status status = sl_gguf_get_float(r->gguf, key_of(r, name), &value, err);
    if (status == SL_OK && !(value >= 0.0 && value <= high))
        status = sl_err_set(err, SL_DAMAGED, "%s: %s is %g, expected 0 to %g", sl_gguf_path(r->gguf), r->key, value,
                            high);
    *out = (float)value;
    return status;
}

static sl_status read_dims(reader *r, sl_hparams *hp, sl_err *err)
{
    double eps = 0.0;
    uint32_t value_dim = 0;
    sl_status status = get_dim(r, "block_count", &hp->n_layers, err);
    if (status == SL_OK)
        status = get_dim(r, "embedding_length", &hp->n_embd, err);
    if (status == SL_OK)
        status = get_dim(r, "feed_forward_length", &hp->n_ff, err);
    if (status == SL_OK)
        status = get_dim(r, "context_length", &hp->n_ctx_train, err);
    if (status == SL_OK)
        status = get_dim(r, "attention.head_count", &hp->n_heads, err);
    if (status == SL_OK)
        status = get_dim_or(r, "attention.head_count_kv", hp->n_heads, &hp->n_kv_heads, err);
    if (status == SL_OK)
        status = get_dim_or(r, "attention.key_length", hp->n_embd / hp->n_heads, &hp->head_dim, err);
    if (status == SL_OK)
        status = get_dim_or(r, "attention.value_length", hp->head_dim, &value_dim, err);
    if (status == SL_OK && value_dim != hp->head_dim)
        status = sl_err_set(err, SL_REFUSED, "%s: %s is %u, keys have %u dimensions: not supported",
                            sl_gguf_path(r->gguf), r->key, value_dim, hp->head_dim);
    if (status == SL_OK)
        status = sl_gguf_get_float(r->gguf, key_of(r, "attention.layer_norm_rms_epsilon"), &eps, err);
    hp->norm_eps = (float)eps;
    return status;
}

static sl_status check_shape(reader *r, const sl_hparams *hp, sl_err *err)
{
    const char *path = sl_gguf_path(r->gguf);
    if (hp->n_layers > MAX_LAYERS)
        return sl_err_set(err, SL_DAMAGED, "%s: %s is %u, expected at most %d", path, key_of(r, "block_count"),
                          hp->n_layers, MAX_LAYERS);
    if (hp->n_heads % hp->n_kv_heads != 0)
        return sl_err_set(err, SL_DAMAGED, "%s: %s is %u, expected a multiple of head_count_kv = %u", path,
                          key_of(r, "attention.head_count"), hp->n_heads, hp->n_kv_heads);
    if (hp->head_dim == 0 || hp->head_dim % 16 != 0 || hp->head_dim > SL_MAX_HEAD_DIM)
        return sl_err_set(err, SL_REFUSED, "%s: head dimension %u is not supported (multiples of 16 up to %d are)",
                          path, hp->head_dim, SL_MAX_HEAD_DIM);
    if (!(hp->norm_eps > 0.0f))
        return sl_err_set(err, SL_DAMAGED, "%s: %s is %g, expected more than 0", path,
                          key_of(r, "attention.layer_norm_rms_epsilon"), (double)hp->norm_eps);
    return SL_OK;
}

/* Keys that would change what a layer computes, with the value that changes nothing (0 does neither). */
static sl_status refuse_unknown(reader *r, sl_err *err)
{
    static const char *const scales[] = {"logit_scale", "embedding_scale", "residual_scale"};
    bool is_causal = true;
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < sizeof scales / sizeof scales[0]; i++) {
        double value = 1.0;
        if (has(r, scales[i]))
            status = sl_gguf_get_float(r->gguf, key_of(r, scales[i]), &value, err);
        if (status == SL_OK && value != 1.0 && value != 0.0)
            status = sl_err_set(err, SL_REFUSED, "%s: %s is %g, which is not supported", sl_gguf_path(r->gguf),
                                r->key, value);
    }
    if (status == SL_OK && has(r, "attention.causal"))
        status = sl_gguf_get_bool(r->gguf, key_of(r, "attention.causal"), &is_causal, err);
    if (status == SL_OK && !is_causal)
        status = sl_err_set(err, SL_REFUSED, "%s: %s is false: this model does not continue texts",
                            sl_gguf_path(r->gguf), r->key);
    return status;
}

/* Keys of mixtures that work otherwise than by the best of a softmax, whose weights are made to add to 1. */
static sl_status refuse_unknown_mixture(reader *r, sl_err *err)
{
    static const struct {
        const char *key;
        uint64_t none; /* the other value, beside 0, that changes nothing */
    } counts[] = {{"expert_gating_func", 1},       {"expert_group_count", 1},         {"expert_group_used_count", 1},
                  {"expert_shared_count", 0},      {"expert_chunk_feed_forward_length", 0},
                  {"leading_dense_block_count", 0}, {"moe_every_n_layers", 1},        {"interleave_moe_layer_step", 1},
                  {"expert_shared_feed_forward_length", 0}};
    bool are_normed = true;
    float scale = 1.0f;
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < sizeof counts / sizeof counts[0]; i++) {
        uint64_t value = 0;
        if (has(r, counts[i].key))
            status = sl_gguf_get_uint(r->gguf, key_of(r, counts[i].key), 0, UINT32_MAX, &value, err);
        if (status == SL_OK && value != 0 && value != counts[i].none)
            status = sl_err_set(err, SL_REFUSED, "%s: %s is %" PRIu64 ", which is not supported",
                                sl_gguf_path(r->gguf), r->key, value);
    }
    if (status == SL_OK && has(r, "expert_weights_norm"))
        status = sl_gguf_get_bool(r->gguf, key_of(r, "expert_weights_norm"), &are_normed, err);
    if (status == SL_OK && !are_normed)
        status = sl_err_set(err, SL_REFUSED, "%s: %s is false, which is not supported", sl_gguf_path(r->gguf), r->key);
    if (status == SL_OK)
        status = get_real_or(r, "expert_weights_scale", 1e6, &scale, err);
    if (status == SL_OK && scale != 1.0f && scale != 0.0f)
        status = sl_err_set(err, SL_REFUSED, "%s: %s is %g, which is not supported", sl_gguf_path(r->gguf), r->key,
                            (double)scale);
    return status;
}

static sl_status read_experts(reader *r, sl_hparams *hp, sl_err *err)
{
    const bool mixes = r->arch->flags & SL_ARCH_MIXES;
    uint64_t n_experts = 0, n_used = 0;
    sl_status status = SL_OK;
    if (mixes || has(r, "expert_count"))
        status = sl_gguf_get_uint(r->gguf, key_of(r, "expert_count"), mixes ? 1 : 0, MAX_EXPERTS, &n_experts, err);
    if (status != SL_OK || n_experts == 0)
        return status;
    if (!mixes && !(r->arch->flags & SL_ARCH_MAY_MIX))
        return sl_err_set(err, SL_REFUSED, "%s: %s is %" PRIu64 ": mixtures of experts of architecture '%s' are not "
                          "supported", sl_gguf_path(r->gguf), r->key, n_experts, r->arch->name);
    status = sl_gguf_get_uint(r->gguf, key_of(r, "expert_used_count"), 1, n_experts, &n_used, err);
    hp->n_experts = (uint32_t)n_experts;
    hp->n_used = (uint32_t)n_used;
    if (status == SL_OK)
        status = get_dim_or(r, "expert_feed_forward_length", hp->n_ff, &hp->n_ff, err);
    return status == SL_OK ? refuse_unknown_mixture(r, err) : status;
}

/* The pattern as newer files have it: for each layer, whether it slides. Only the architecture's own is known. */
static sl_status check_slides(reader *r, const sl_gguf_value *value, const sl_hparams *hp, sl_err *err)
{
    const uint32_t period = r->arch->sliding_period;
    sl_gguf_iter iter = sl_gguf_iter_start(value);
    double slides = 0.0;
    if (value->item_type != SL_GGUF_TYPE_BOOL || value->n_items != hp->n_layers)
        return sl_err_set(err, SL_DAMAGED, "%s: %s is an array of %" PRIu64 " of type %s, expected %u of bool",
                          sl_gguf_path(r->gguf), r->key, value->n_items, sl_gguf_type_name(value->item_type),
                          hp->n_layers);
    for (uint32_t layer = 0; sl_gguf_iter_number(&iter, &slides); layer++)
        if ((slides != 0.0) != (period == 0 || layer % period != period - 1))
            return sl_err_set(err, SL_REFUSED, "%s: %s says that layer %u %s, which is not supported: of '%s' it %s",
                              sl_gguf_path(r->gguf), r->key, layer, slides != 0.0 ? "slides" : "does not slide",
                              r->arch->name, slides != 0.0 ? "does not" : "does");
    return SL_OK;
}

static sl_status read_pattern(reader *r, const sl_hparams *hp, sl_err *err)
{
    uint64_t period = r->arch->sliding_period;
    const sl_gguf_value *value = sl_gguf_find(r->gguf, key_of(r, "attention.sliding_window_pattern"));
    if (value && value->type == SL_GGUF_TYPE_ARRAY)
        return check_slides(r, value, hp, err);
    sl_status status = value ? sl_gguf_get_uint(r->gguf, r->key, 0, MAX_LAYERS, &period, err) : SL_OK;
    if (status == SL_OK && period != r->arch->sliding_period)
        status = sl_err_set(err, SL_REFUSED, "%s: %s is %" PRIu64 ", which is not supported (%u is)",
                            sl_gguf_path(r->gguf), r->key, period, r->arch->sliding_period);
    return status;
}

static sl_status read_sliding(reader *r, sl_hparams *hp, sl_err *err)
{
    uint64_t span = r->arch->sliding_default;
    sl_status status = SL_OK;
    if (has(r, "attention.sliding_window"))
        status = sl_gguf_get_uint(r->gguf, key_of(r, "attention.sliding_window"), 0, UINT32_MAX, &span, err);
    if (status == SL_OK && span > 0 && span < hp->n_ctx_train && !(r->arch->flags & SL_ARCH_SLIDES))
        status = sl_err_set(err, SL_REFUSED,
                            "%s: %s is %" PRIu64 ": which layers of architecture '%s' slide is not known",
                            sl_gguf_path(r->gguf), r->key, span, r->arch->name);
    if (status == SL_OK && span > 0)
        status = read_pattern(r, hp, err);
    hp->sliding_span = r->arch->flags & SL_ARCH_SLIDES ? (uint32_t)span : 0;
    return status;
}

static sl_status read_scales(reader *r, sl_hparams *hp, sl_err *err)
{
    hp->attn_softcap = r->arch->attn_softcap;
    hp->logit_softcap = r->arch->logit_softcap;
    if (r->arch->flags & SL_ARCH_EMBD_SCALE)
        hp->embd_scale = (float)sqrt((double)hp->n_embd);
    if (r->arch->wide_scale_layers == hp->n_layers)
        hp->attn_scale = (float)(1.0 / sqrt((double)(hp->n_embd / hp->n_heads)));
    sl_status status = get_real_or(r, "attention.scale", 1e6, &hp->attn_scale, err);
    if (status == SL_OK)
        status = get_real_or(r, "attn_logit_softcapping", 1e6, &hp->attn_softcap, err);
    return status == SL_OK ? get_real_or(r, "final_logit_softcapping", 1e6, &hp->logit_softcap, err) : status;
}

static sl_status read_vocabulary(const sl_gguf *gguf, sl_hparams *hp, sl_err *err)
{
    const sl_gguf_tensor *embedding = sl_gguf_tensor_find(gguf, "token_embd.weight");
    if (!embedding)
        return sl_err_set(err, SL_DAMAGED, "%s: tensor token_embd.weight is missing", sl_gguf_path(gguf));
    if (embedding->dims[1] > MAX_DIM)
        return sl_err_set(err, SL_DAMAGED, "%s: token_embd.weight has %" PRIu64 " rows, expected at most %d",
                          sl_gguf_path(gguf), embedding->dims[1], MAX_DIM);
    hp->n_vocab = (uint32_t)embedding->dims[1];
    return SL_OK;
}

sl_status sl_hparams_read(const sl_gguf *gguf, sl_hparams *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    sl_gguf_string name;
    sl_status status = sl_gguf_get_string(gguf, "general.architecture", &name, err);
    if (status != SL_OK)
        return status;
    reader r = {.gguf = gguf, .arch = sl_arch_find(name.data, name.size)};
    if (!r.arch)
        return sl_err_set(err, SL_REFUSED, "%s: architecture '%.*s' is not supported (known: %s)", sl_gguf_path(gguf),
                          (int)(name.size < 64 ? name.size : 64), name.data, sl_arch_names());
    out->arch = r.arch;
    status = refuse_unknown(&r, err);
    if (status == SL_OK)
        status = read_dims(&r, out, err);
    if (status == SL_OK)
        status = check_shape(&r, out, err);
    if (status == SL_OK)
        status = read_experts(&r, out, err);
    if (status == SL_OK)
        status = read_scales(&r, out, err);
    if (status == SL_OK)
        status = read_sliding(&r, out, err);
    if (status == SL_OK)
        status = sl_rope_read(gguf, r.arch, out->head_dim, out->n_ctx_train, &out->rope, err);
    return status == SL_OK ? read_vocabulary(gguf, out, err) : status;
}

bool sl_hparams_slides(const sl_hparams *hp, uint32_t layer)
{
    uint32_t period = hp->arch->sliding_period;
    return hp->sliding_span > 0 && (period == 0 || layer % period != period - 1);
}

uint32_t sl_hparams_n_sliding(const sl_hparams *hp)
{
    uint32_t n = 0;
    for (uint32_t i = 0; hp->sliding_span > 0 && i < hp->n_layers; i++)
        n += sl_hparams_slides(hp, i);
    return n;
}

bool sl_hparams_has_rope(const sl_hparams *hp, uint32_t layer)
{
    uint32_t period = hp->arch->no_rope_period;
    return period == 0 || layer % period != period - 1;
}

sl_kv_layer sl_hparams_kv_layer(const sl_hparams *hp, uint32_t layer)
{
    return (sl_kv_layer){hp->n_kv_heads, hp->head_dim, sl_hparams_slides(hp, layer) ? hp->sliding_span : 0};
}
