#include "model/tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Weight types by ggml's type number. Adding one: a row here and its kernels. */
static const struct {
    uint32_t ggml_type;
    sl_wtype type;
} known_types[] = {
    {0, SL_WTYPE_F32},   {1, SL_WTYPE_F16},   {30, SL_WTYPE_BF16}, {8, SL_WTYPE_Q8_0},
    {2, SL_WTYPE_Q4_0},  {3, SL_WTYPE_Q4_1},  {6, SL_WTYPE_Q5_0},  {7, SL_WTYPE_Q5_1},
    {12, SL_WTYPE_Q4_K}, {13, SL_WTYPE_Q5_K}, {14, SL_WTYPE_Q6_K},
    {10, SL_WTYPE_Q2_K}, {11, SL_WTYPE_Q3_K}, {20, SL_WTYPE_IQ4_NL}, {23, SL_WTYPE_IQ4_XS},
    {39, SL_WTYPE_MXFP4},
};

/* ------------------------------------------------------------------------------------------------- what is wanted */

static sl_tensor_want *add(sl_tensor_wants *wants, const char *name, size_t n_in, size_t off)
{
    sl_tensor_want *w = &wants->items[wants->n++];
    *w = (sl_tensor_want){.n_in = n_in, .n_stacked = 1, .off = off};
    snprintf(w->name, sizeof w->name, "%s", name);
    return w;
}

static void vector(sl_tensor_wants *wants, const char *name, size_t n, size_t off, bool optional)
{
    add(wants, name, n, off)->optional = optional;
}

static sl_tensor_want *matrix(sl_tensor_wants *wants, const char *name, size_t n_out, size_t n_in, size_t off)
{
    sl_tensor_want *w = add(wants, name, n_in, off);
    w->n_out = w->tensor_out = n_out;
    return w;
}

/* The matrices added last, n of them, are one tensor: their rows follow each other in it. */
static void fuse(sl_tensor_wants *wants, size_t n)
{
    size_t rows = 0;
    sl_tensor_want *first = &wants->items[wants->n - n];
    for (size_t i = 0; i < n; i++) {
        first[i].first_out = rows;
        rows += first[i].n_out;
    }
    for (size_t i = 0; i < n; i++)
        first[i].tensor_out = rows;
}

void sl_tensor_wants_of_model(const sl_hparams *hp, sl_tensor_wants *out)
{
    const size_t pairs = hp->rope.dims / 2;
    out->n = 0;
    matrix(out, "token_embd.weight", hp->n_vocab, hp->n_embd, offsetof(sl_weights, embedding));
    vector(out, "output_norm.weight", hp->n_embd, offsetof(sl_weights, output_norm), false);
    matrix(out, "output.weight", hp->n_vocab, hp->n_embd, offsetof(sl_weights, own_output))->optional = true;
    vector(out, "rope_freqs.weight", pairs, offsetof(sl_weights, rope_factors), true);
    if (hp->arch->flags & SL_ARCH_LONG_FACTORS) {
        const bool are_optional = hp->rope.kind != SL_ROPE_KIND_LONG_SHORT;
        vector(out, "rope_factors_long.weight", pairs, offsetof(sl_weights, rope_long), are_optional);
        vector(out, "rope_factors_short.weight", pairs, offsetof(sl_weights, rope_short), are_optional);
    }
}

static void attention_wants(const sl_hparams *hp, sl_tensor_wants *w)
{
    const unsigned flags = hp->arch->flags;
    const size_t embd = hp->n_embd, q = (size_t)hp->n_heads * hp->head_dim, kv = (size_t)hp->n_kv_heads * hp->head_dim;
    const bool is_fused = flags & SL_ARCH_FUSED_QKV;
    vector(w, "attn_norm.weight", embd, offsetof(sl_layer_weights, attn_norm), false);
    matrix(w, is_fused ? "attn_qkv.weight" : "attn_q.weight", q, embd, offsetof(sl_layer_weights, wq));
    matrix(w, is_fused ? "attn_qkv.weight" : "attn_k.weight", kv, embd, offsetof(sl_layer_weights, wk));
    matrix(w, is_fused ? "attn_qkv.weight" : "attn_v.weight", kv, embd, offsetof(sl_layer_weights, wv));
    if (is_fused)
        fuse(w, 3);
    matrix(w, "attn_output.weight", embd, q, offsetof(sl_layer_weights, wo));
    if (flags & (SL_ARCH_QKV_BIAS | SL_ARCH_BIASES)) {
        const bool are_optional = !(flags & SL_ARCH_QKV_BIAS);
        vector(w, "attn_q.bias", q, offsetof(sl_layer_weights, bq), are_optional);
        vector(w, "attn_k.bias", kv, offsetof(sl_layer_weights, bk), are_optional);
        vector(w, "attn_v.bias", kv, offsetof(sl_layer_weights, bv), are_optional);
    }
    if (flags & SL_ARCH_BIASES)
        vector(w, "attn_output.bias", embd, offsetof(sl_layer_weights, bo), true);
    if (flags & SL_ARCH_QK_NORM) {
        vector(w, "attn_q_norm.weight", hp->head_dim, offsetof(sl_layer_weights, q_norm), false);
        vector(w, "attn_k_norm.weight", hp->head_dim, offsetof(sl_layer_weights, k_norm), false);
    }
    if (flags & SL_ARCH_POST_NORMS)
        vector(w, "post_attention_norm.weight", embd, offsetof(sl_layer_weights, attn_post_norm), false);
}

static void feed_forward_wants(const sl_hparams *hp, sl_tensor_wants *w)
{
    const unsigned flags = hp->arch->flags;
    const size_t embd = hp->n_embd, ff = hp->n_ff;
    const bool is_fused = flags & SL_ARCH_FUSED_GATE_UP;
    vector(w, "ffn_norm.weight", embd, offsetof(sl_layer_weights, ffn_norm), false);
    matrix(w, is_fused ? "ffn_up.weight" : "ffn_gate.weight", ff, embd, offsetof(sl_layer_weights, w_gate));
    matrix(w, "ffn_up.weight", ff, embd, offsetof(sl_layer_weights, w_up));
    if (is_fused)
        fuse(w, 2);
    matrix(w, "ffn_down.weight", embd, ff, offsetof(sl_layer_weights, w_down));
    if (flags & SL_ARCH_BIASES) {
        vector(w, "ffn_down.bias", embd, offsetof(sl_layer_weights, b_down), true);
        if (!is_fused) {
            vector(w, "ffn_gate.bias", ff, offsetof(sl_layer_weights, b_gate), true);
            vector(w, "ffn_up.bias", ff, offsetof(sl_layer_weights, b_up), true);
        }
    }
    if (flags & SL_ARCH_POST_NORMS)
        vector(w, "post_ffw_norm.weight", embd, offsetof(sl_layer_weights, ffn_post_norm), false);
}

static void mixture_wants(const sl_hparams *hp, sl_tensor_wants *w)
{
    const size_t embd = hp->n_embd, ff = hp->n_ff, n = hp->n_experts;
    vector(w, "ffn_norm.weight", embd, offsetof(sl_layer_weights, ffn_norm), false);
    matrix(w, "ffn_gate_inp.weight", n, embd, offsetof(sl_layer_weights, router));
    matrix(w, "ffn_gate_exps.weight", ff, embd, offsetof(sl_layer_weights, w_gate))->n_stacked = n;
    matrix(w, "ffn_up_exps.weight", ff, embd, offsetof(sl_layer_weights, w_up))->n_stacked = n;
    matrix(w, "ffn_down_exps.weight", embd, ff, offsetof(sl_layer_weights, w_down))->n_stacked = n;
}

void sl_tensor_wants_of_layer(const sl_hparams *hp, uint32_t layer, sl_tensor_wants *out)
{
    out->n = 0;
    attention_wants(hp, out);
    if (hp->n_experts > 0)
        mixture_wants(hp, out);
    else
        feed_forward_wants(hp, out);
    for (size_t i = 0; i < out->n; i++) {
        char name[sizeof out->items[i].name - 16];
        memcpy(name, out->items[i].name, sizeof name);
        snprintf(out->items[i].name, sizeof out->items[i].name, "blk.%u.%s", layer, name);
    }
}

/* -------------------------------------------------------------------------------------------------- what is there */

static sl_status refuse_type(const char *path, const char *tensor, uint32_t ggml_type, sl_err *err)
{
    char known[256] = "";
    const char *name = sl_ggml_type_name(ggml_type);
    for (size_t i = 0, n = 0; i < sizeof known_types / sizeof known_types[0] && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i > 0 ? ", " : "",
                              sl_wtype_name(known_types[i].type));
    return sl_err_set(err, SL_REFUSED, "%s: tensor %s has type %s (%u), which is not supported (%s are)", path, tensor,
                      name ? name : "unknown", ggml_type, known);
}

static bool find_type(uint32_t ggml_type, sl_wtype *out)
{
    for (size_t i = 0; i < sizeof known_types / sizeof known_types[0]; i++) {
        if (known_types[i].ggml_type == ggml_type) {
            *out = known_types[i].type;
            return true;
        }
    }
    return false;
}

/* Is there "blk.N.ffn_gate.0.weight", the first expert's, beside no "blk.N.ffn_gate_exps.weight"? */
static bool has_single_experts(const sl_gguf *gguf, const char *name)
{
    static const char ending[] = "_exps.weight";
    char single[sizeof ((sl_tensor_want *)0)->name + 8];
    const size_t n = strlen(name), stem = n < sizeof ending ? 0 : n - (sizeof ending - 1);
    if (stem == 0 || strcmp(name + stem, ending) != 0)
        return false;
    snprintf(single, sizeof single, "%.*s.0.weight", (int)stem, name);
    return sl_gguf_tensor_find(gguf, single) != NULL;
}

sl_status sl_tensor_want_find(const sl_gguf *gguf, const sl_tensor_want *w, const sl_gguf_tensor **out, sl_wtype *type,
                              sl_err *err)
{
    const char *path = sl_gguf_path(gguf);
    const sl_gguf_tensor *tensor = *out = sl_gguf_tensor_find(gguf, w->name);
    if (!tensor && w->n_stacked > 1 && has_single_experts(gguf, w->name))
        return sl_err_set(err, SL_REFUSED, "%s: tensor %s is missing, its experts are tensors of their own, as old "
                          "converters wrote them: convert the model again", path, w->name);
    if (!tensor)
        return w->optional ? SL_OK : sl_err_set(err, SL_DAMAGED, "%s: tensor %s is missing", path, w->name);
    if (!find_type(tensor->type, type))
        return refuse_type(path, w->name, tensor->type, err);
    size_t n_out = w->n_out ? w->tensor_out : 1;
    const uint64_t *dims = tensor->dims;
    if (dims[0] != w->n_in || dims[1] != n_out || dims[2] != w->n_stacked || dims[3] != 1)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                          ", expected %zu x %zu x %zu",
                          path, w->name, dims[0], dims[1], dims[2], dims[3], w->n_in, n_out, w->n_stacked);
    if (w->n_out == 0 && *type != SL_WTYPE_F32)
        return sl_err_set(err, SL_REFUSED, "%s: tensor %s has type %s, expected F32", path, w->name,
                          sl_wtype_name(*type));
    return SL_OK;
}

static bool string_is(sl_gguf_string string, const char *text)
{
    return string.size == strlen(text) && memcmp(string.data, text, string.size) == 0;
}

static bool holds(const sl_tensor_wants *wants, sl_gguf_string name)
{
    for (size_t i = 0; i < wants->n; i++)
        if (string_is(name, wants->items[i].name))
            return true;
    return false;
}

static bool is_known(const sl_hparams *hp, sl_gguf_string name)
{
    sl_tensor_wants wants;
    sl_tensor_wants_of_model(hp, &wants);
    if (holds(&wants, name))
        return true;
    unsigned layer = 0;
    char text[sizeof wants.items[0].name] = "";
    if (name.size >= sizeof text)
        return false;
    memcpy(text, name.data, name.size);
    if (sscanf(text, "blk.%u.", &layer) != 1 || layer >= hp->n_layers)
        return false;
    sl_tensor_wants_of_layer(hp, layer, &wants);
    return holds(&wants, name);
}

/* *n_known counts tensors. */
static sl_status check_wants(const sl_gguf *gguf, const sl_tensor_wants *wants, size_t *n_known, sl_err *err)
{
    for (size_t i = 0; i < wants->n; i++) {
        const sl_gguf_tensor *tensor;
        sl_wtype type;
        sl_status status = sl_tensor_want_find(gguf, &wants->items[i], &tensor, &type, err);
        if (status != SL_OK)
            return status;
        *n_known += tensor != NULL && wants->items[i].first_out == 0;
    }
    return SL_OK;
}

sl_status sl_weights_check(const sl_gguf *gguf, const sl_hparams *hp, sl_err *err)
{
    size_t n_known = 0;
    sl_tensor_wants wants;
    sl_tensor_wants_of_model(hp, &wants);
    sl_status status = check_wants(gguf, &wants, &n_known, err);
    for (uint32_t layer = 0; status == SL_OK && layer < hp->n_layers; layer++) {
        sl_tensor_wants_of_layer(hp, layer, &wants);
        status = check_wants(gguf, &wants, &n_known, err);
    }
    if (status != SL_OK || n_known == sl_gguf_n_tensors(gguf))
        return status;
    /* A tensor that nobody uses would be silently wrong text: name the first. */
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++) {
        sl_gguf_string odd = sl_gguf_tensor_at(gguf, i)->name;
        if (!is_known(hp, odd))
            return sl_err_set(err, SL_REFUSED, "%s: tensor %.*s is not part of the architecture '%s' known here",
                              sl_gguf_path(gguf), (int)(odd.size < 64 ? odd.size : 64), odd.data, hp->arch->name);
    }
    return SL_OK;
}
