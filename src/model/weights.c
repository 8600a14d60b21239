#include "model/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/fingerprint.h"

enum { READ_BYTES = 1 << 20, MAX_DIM = 1 << 24, MAX_LAYERS = 4096 };

/* Weight types by ggml's type number. Adding one: a row here and its kernels. */
static const struct {
    uint32_t ggml_type;
    sl_wtype type;
} known_types[] = {
    {0, SL_WTYPE_F32},   {1, SL_WTYPE_F16},   {30, SL_WTYPE_BF16}, {8, SL_WTYPE_Q8_0},
    {2, SL_WTYPE_Q4_0},  {3, SL_WTYPE_Q4_1},  {6, SL_WTYPE_Q5_0},  {7, SL_WTYPE_Q5_1},
    {12, SL_WTYPE_Q4_K}, {13, SL_WTYPE_Q5_K}, {14, SL_WTYPE_Q6_K},
};

/* ---------------------------------------------------------------------------------------------- hyper-parameters */

static bool string_is(sl_gguf_string string, const char *text)
{
    return string.size == strlen(text) && memcmp(string.data, text, string.size) == 0;
}

static sl_status get_dim(const sl_gguf *gguf, const char *key, uint32_t *out, sl_err *err)
{
    uint64_t value = 0;
    sl_status status = sl_gguf_get_uint(gguf, key, 1, MAX_DIM, &value, err);
    *out = (uint32_t)value;
    return status;
}

static sl_status get_dim_or(const sl_gguf *gguf, const char *key, uint32_t fallback, uint32_t *out, sl_err *err)
{
    *out = fallback;
    return sl_gguf_find(gguf, key) ? get_dim(gguf, key, out, err) : SL_OK;
}

/* A factor without a type is linear, as is the older key: so llama.cpp reads them. */
static sl_status read_rope_scaling(const sl_gguf *gguf, sl_hparams *hp, sl_err *err)
{
    sl_gguf_string type = {"linear", 6};
    sl_status status = SL_OK;
    if (sl_gguf_find(gguf, "llama.rope.scaling.type"))
        status = sl_gguf_get_string(gguf, "llama.rope.scaling.type", &type, err);
    if (status != SL_OK || string_is(type, "none"))
        return status;
    if (!string_is(type, "linear"))
        return sl_err_set(err, SL_REFUSED, "%s: RoPE scaling '%.*s' is not supported (known: none, linear)",
                          sl_gguf_path(gguf), (int)(type.size < 64 ? type.size : 64), type.data);
    const char *key =
        sl_gguf_find(gguf, "llama.rope.scaling.factor") ? "llama.rope.scaling.factor" : "llama.rope.scale_linear";
    if (!sl_gguf_find(gguf, key))
        return SL_OK;
    status = sl_gguf_get_float(gguf, key, &hp->rope_factor, err);
    if (status == SL_OK && hp->rope_factor == 0.0) /* written by converters for "none" */
        hp->rope_factor = 1.0;
    if (status == SL_OK && !(hp->rope_factor >= 1.0 && hp->rope_factor <= 1e6))
        status =
            sl_err_set(err, SL_DAMAGED, "%s: %s is %g, expected 1 to 1e6", sl_gguf_path(gguf), key, hp->rope_factor);
    return status;
}

static sl_status read_rope(const sl_gguf *gguf, sl_hparams *hp, sl_err *err)
{
    hp->rope_base = 10000.0;
    hp->rope_factor = 1.0;
    sl_status status = SL_OK;
    if (sl_gguf_find(gguf, "llama.rope.freq_base"))
        status = sl_gguf_get_float(gguf, "llama.rope.freq_base", &hp->rope_base, err);
    if (status == SL_OK)
        status = get_dim_or(gguf, "llama.rope.dimension_count", hp->head_dim, &hp->rope_dims, err);
    if (status != SL_OK)
        return status;
    if (!(hp->rope_base >= 1.0 && hp->rope_base <= 1e15))
        return sl_err_set(err, SL_DAMAGED, "%s: llama.rope.freq_base is %g, expected 1 to 1e15", sl_gguf_path(gguf),
                          hp->rope_base);
    if (hp->rope_dims % 2 != 0 || hp->rope_dims > hp->head_dim)
        return sl_err_set(err, SL_DAMAGED, "%s: llama.rope.dimension_count is %u, expected even and at most %u",
                          sl_gguf_path(gguf), hp->rope_dims, hp->head_dim);
    return read_rope_scaling(gguf, hp, err);
}

static sl_status check_shape(const sl_gguf *gguf, const sl_hparams *hp, sl_err *err)
{
    const char *path = sl_gguf_path(gguf);
    if (hp->n_layers > MAX_LAYERS)
        return sl_err_set(err, SL_DAMAGED, "%s: llama.block_count is %u, expected at most %d", path, hp->n_layers,
                          MAX_LAYERS);
    if (hp->n_heads % hp->n_kv_heads != 0)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: llama.attention.head_count is %u, expected a multiple of head_count_kv = %u", path,
                          hp->n_heads, hp->n_kv_heads);
    if (hp->head_dim == 0 || hp->head_dim % 16 != 0 || hp->head_dim > SL_MAX_HEAD_DIM)
        return sl_err_set(err, SL_REFUSED, "%s: head dimension %u is not supported (multiples of 16 up to %d are)",
                          path, hp->head_dim, SL_MAX_HEAD_DIM);
    if (!(hp->norm_eps > 0.0f))
        return sl_err_set(err, SL_DAMAGED, "%s: llama.attention.layer_norm_rms_epsilon is %g, expected more than 0",
                          path, (double)hp->norm_eps);
    return SL_OK;
}

/* Keys that change what a layer computes: known or refused, never passed over. */
static sl_status read_scales(const sl_gguf *gguf, sl_hparams *hp, sl_err *err)
{
    double scale = 0.0, logit_scale = 1.0;
    uint64_t span = 0;
    sl_status status = SL_OK;
    if (sl_gguf_find(gguf, "llama.attention.scale"))
        status = sl_gguf_get_float(gguf, "llama.attention.scale", &scale, err);
    if (status == SL_OK && !(scale >= 0.0 && scale <= 1e6))
        status = sl_err_set(err, SL_DAMAGED, "%s: llama.attention.scale is %g, expected 0 to 1e6", sl_gguf_path(gguf),
                            scale);
    if (status == SL_OK && sl_gguf_find(gguf, "llama.logit_scale"))
        status = sl_gguf_get_float(gguf, "llama.logit_scale", &logit_scale, err);
    if (status == SL_OK && logit_scale != 1.0 && logit_scale != 0.0)
        status = sl_err_set(err, SL_REFUSED, "%s: llama.logit_scale is %g, which is not supported", sl_gguf_path(gguf),
                            logit_scale);
    if (status == SL_OK && sl_gguf_find(gguf, "llama.attention.sliding_window"))
        status = sl_gguf_get_uint(gguf, "llama.attention.sliding_window", 0, UINT32_MAX, &span, err);
    if (status == SL_OK && span > 0 && span < hp->n_ctx_train)
        status = sl_err_set(err, SL_REFUSED,
                            "%s: llama.attention.sliding_window is %" PRIu64 ": sliding windows are not supported",
                            sl_gguf_path(gguf), span);
    hp->attn_scale = (float)scale;
    return status;
}

static sl_status read_dims(const sl_gguf *gguf, sl_hparams *hp, sl_err *err)
{
    double eps = 0.0;
    sl_status status = get_dim(gguf, "llama.block_count", &hp->n_layers, err);
    if (status == SL_OK)
        status = get_dim(gguf, "llama.embedding_length", &hp->n_embd, err);
    if (status == SL_OK)
        status = get_dim(gguf, "llama.feed_forward_length", &hp->n_ff, err);
    if (status == SL_OK)
        status = get_dim(gguf, "llama.context_length", &hp->n_ctx_train, err);
    if (status == SL_OK)
        status = get_dim(gguf, "llama.attention.head_count", &hp->n_heads, err);
    if (status == SL_OK)
        status = get_dim_or(gguf, "llama.attention.head_count_kv", hp->n_heads, &hp->n_kv_heads, err);
    if (status == SL_OK)
        status = get_dim_or(gguf, "llama.attention.key_length", hp->n_embd / hp->n_heads, &hp->head_dim, err);
    if (status == SL_OK)
        status = sl_gguf_get_float(gguf, "llama.attention.layer_norm_rms_epsilon", &eps, err);
    hp->norm_eps = (float)eps;
    return status;
}

sl_status sl_hparams_read(const sl_gguf *gguf, sl_hparams *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    sl_gguf_string arch;
    sl_status status = sl_gguf_get_string(gguf, "general.architecture", &arch, err);
    if (status != SL_OK)
        return status;
    if (!string_is(arch, "llama"))
        return sl_err_set(err, SL_REFUSED, "%s: architecture '%.*s' is not supported (known: llama)",
                          sl_gguf_path(gguf), (int)(arch.size < 64 ? arch.size : 64), arch.data);
    uint64_t n_experts = 0;
    if (sl_gguf_find(gguf, "llama.expert_count"))
        status = sl_gguf_get_uint(gguf, "llama.expert_count", 0, MAX_DIM, &n_experts, err);
    if (status == SL_OK && n_experts > 0)
        status =
            sl_err_set(err, SL_REFUSED, "%s: llama.expert_count is %" PRIu64 ": mixtures of experts are not supported",
                       sl_gguf_path(gguf), n_experts);
    if (status != SL_OK)
        return status;
    status = read_dims(gguf, out, err);
    if (status == SL_OK)
        status = check_shape(gguf, out, err);
    if (status == SL_OK)
        status = read_scales(gguf, out, err);
    if (status == SL_OK)
        status = read_rope(gguf, out, err);
    if (status != SL_OK)
        return status;
    const sl_gguf_tensor *embedding = sl_gguf_tensor_find(gguf, "token_embd.weight");
    if (!embedding)
        return sl_err_set(err, SL_DAMAGED, "%s: tensor token_embd.weight is missing", sl_gguf_path(gguf));
    if (embedding->dims[1] > MAX_DIM)
        return sl_err_set(err, SL_DAMAGED, "%s: token_embd.weight has %" PRIu64 " rows, expected at most %d",
                          sl_gguf_path(gguf), embedding->dims[1], MAX_DIM);
    out->n_vocab = (uint32_t)embedding->dims[1];
    return SL_OK;
}

/* ------------------------------------------------------------------------------------------------ tensor directory */

/* Where each tensor goes: either a matrix or a vector of floats. */
typedef struct tensor_want {
    char name[64];
    size_t n_out; /* 0: a vector */
    size_t n_in;
    bool optional;
    size_t matrix_off, vector_off; /* of the field in its owner */
} tensor_want;

#define LAYER_WANTS 9

static void want(tensor_want *w, uint32_t layer, const char *name, size_t n_out, size_t n_in, size_t off)
{
    memset(w, 0, sizeof *w);
    snprintf(w->name, sizeof w->name, "blk.%u.%s.weight", layer, name);
    w->n_out = n_out;
    w->n_in = n_in;
    w->matrix_off = w->vector_off = off;
}

static void layer_wants(const sl_hparams *hp, uint32_t layer, tensor_want *w)
{
    size_t q = (size_t)hp->n_heads * hp->head_dim, kv = (size_t)hp->n_kv_heads * hp->head_dim;
    want(w++, layer, "attn_norm", 0, hp->n_embd, offsetof(sl_layer_weights, attn_norm));
    want(w++, layer, "attn_q", q, hp->n_embd, offsetof(sl_layer_weights, wq));
    want(w++, layer, "attn_k", kv, hp->n_embd, offsetof(sl_layer_weights, wk));
    want(w++, layer, "attn_v", kv, hp->n_embd, offsetof(sl_layer_weights, wv));
    want(w++, layer, "attn_output", hp->n_embd, q, offsetof(sl_layer_weights, wo));
    want(w++, layer, "ffn_norm", 0, hp->n_embd, offsetof(sl_layer_weights, ffn_norm));
    want(w++, layer, "ffn_gate", hp->n_ff, hp->n_embd, offsetof(sl_layer_weights, w_gate));
    want(w++, layer, "ffn_up", hp->n_ff, hp->n_embd, offsetof(sl_layer_weights, w_up));
    want(w, layer, "ffn_down", hp->n_embd, hp->n_ff, offsetof(sl_layer_weights, w_down));
}

#define MODEL_WANTS 4

static void model_wants(const sl_hparams *hp, tensor_want *w)
{
    const tensor_want wants[MODEL_WANTS] = {
        {"token_embd.weight", hp->n_vocab, hp->n_embd, false, offsetof(sl_weights, embedding), 0},
        {"output_norm.weight", 0, hp->n_embd, false, 0, offsetof(sl_weights, output_norm)},
        {"output.weight", hp->n_vocab, hp->n_embd, true, offsetof(sl_weights, own_output), 0},
        {"rope_freqs.weight", 0, hp->rope_dims / 2, true, 0, offsetof(sl_weights, rope_factors)},
    };
    memcpy(w, wants, sizeof wants);
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

/* Finds the wanted tensor and checks type and shape. *out = NULL when it is optional and absent. */
static sl_status find_tensor(const sl_gguf *gguf, const tensor_want *w, const sl_gguf_tensor **out, sl_wtype *type,
                             sl_err *err)
{
    const char *path = sl_gguf_path(gguf);
    const sl_gguf_tensor *tensor = *out = sl_gguf_tensor_find(gguf, w->name);
    if (!tensor)
        return w->optional ? SL_OK : sl_err_set(err, SL_DAMAGED, "%s: tensor %s is missing", path, w->name);
    if (!find_type(tensor->type, type)) {
        const char *name = sl_ggml_type_name(tensor->type);
        return sl_err_set(err, SL_REFUSED,
                          "%s: tensor %s has type %s (%u), which is not supported (F32, F16, BF16, Q8_0, Q4_0, Q4_1, "
                          "Q5_0, Q5_1, Q4_K, Q5_K, Q6_K are)",
                          path, w->name, name ? name : "unknown", tensor->type);
    }
    size_t n_out = w->n_out ? w->n_out : 1;
    if (tensor->dims[0] != w->n_in || tensor->dims[1] != n_out || tensor->dims[2] != 1 || tensor->dims[3] != 1)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 ", expected %zu x %zu",
                          path, w->name, tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3], w->n_in,
                          n_out);
    if (w->n_out == 0 && *type != SL_WTYPE_F32)
        return sl_err_set(err, SL_REFUSED, "%s: tensor %s has type %s, expected F32", path, w->name,
                          sl_wtype_name(*type));
    return SL_OK;
}

sl_status sl_weights_check(const sl_gguf *gguf, const sl_hparams *hp, sl_err *err)
{
    const sl_gguf_tensor *tensor;
    sl_wtype type;
    size_t n_known = 0;
    tensor_want wants[LAYER_WANTS > MODEL_WANTS ? LAYER_WANTS : MODEL_WANTS];
    model_wants(hp, wants);
    for (size_t i = 0; i < MODEL_WANTS; i++) {
        sl_status status = find_tensor(gguf, &wants[i], &tensor, &type, err);
        if (status != SL_OK)
            return status;
        n_known += tensor != NULL;
    }
    for (uint32_t layer = 0; layer < hp->n_layers; layer++) {
        layer_wants(hp, layer, wants);
        for (size_t i = 0; i < LAYER_WANTS; i++) {
            sl_status status = find_tensor(gguf, &wants[i], &tensor, &type, err);
            if (status != SL_OK)
                return status;
            n_known++;
        }
    }
    if (n_known == sl_gguf_n_tensors(gguf))
        return SL_OK;
    /* A tensor that nobody uses would be silently wrong text: name the first. */
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++) {
        const sl_gguf_tensor *odd = sl_gguf_tensor_at(gguf, i);
        bool known = false;
        model_wants(hp, wants);
        for (size_t k = 0; k < MODEL_WANTS && !known; k++)
            known = string_is(odd->name, wants[k].name);
        unsigned layer = 0;
        char name[64] = "";
        if (!known && odd->name.size < sizeof name) {
            memcpy(name, odd->name.data, odd->name.size);
            if (sscanf(name, "blk.%u.", &layer) == 1 && layer < hp->n_layers) {
                layer_wants(hp, layer, wants);
                for (size_t k = 0; k < LAYER_WANTS && !known; k++)
                    known = string_is(odd->name, wants[k].name);
            }
        }
        if (!known)
            return sl_err_set(err, SL_REFUSED, "%s: tensor %.*s is not part of the architecture 'llama' known here",
                              sl_gguf_path(gguf), (int)(odd->name.size < 64 ? odd->name.size : 64), odd->name.data);
    }
    return SL_OK;
}

/* --------------------------------------------------------------------------------------------------------- loading */

typedef struct loader {
    const sl_gguf *gguf;
    sl_weights *weights;
    uint8_t *buffer; /* READ_BYTES or one panel, whichever is more */
    size_t buffer_bytes;
    sl_weights_progress progress;
    void *arg;
    uint64_t done_bytes, total_bytes;
    sl_fingerprint *fingerprint; /* of everything that is read */
} loader;

static sl_status advance(loader *l, size_t bytes, sl_err *err)
{
    l->done_bytes += bytes;
    if (l->progress && !l->progress(l->arg, l->done_bytes, l->total_bytes))
        return sl_err_set(err, SL_CANCELLED, "cancelled while loading the model");
    return SL_OK;
}

static sl_status load_matrix(loader *l, const sl_gguf_tensor *tensor, sl_matrix *matrix, const char *name, sl_err *err)
{
    size_t row = sl_wtype_row_bytes(matrix->type, matrix->n_in);
    matrix->bytes = row * matrix->n_out;
    sl_status status = sl_mem_map(l->weights->budget, matrix->bytes, name, &matrix->packed, err);
    size_t rows_at_once = l->buffer_bytes / row / SL_PANEL * SL_PANEL;
    for (size_t first = 0; status == SL_OK && first < matrix->n_out; first += rows_at_once) {
        size_t n = matrix->n_out - first < rows_at_once ? matrix->n_out - first : rows_at_once;
        status = sl_gguf_read(l->gguf, tensor, (uint64_t)first * row, n * row, l->buffer, err);
        if (status != SL_OK)
            break;
        sl_fingerprint_add(l->fingerprint, l->buffer, n * row);
        for (size_t r = 0; r < n; r += SL_PANEL) {
            size_t w = n - r < SL_PANEL ? n - r : SL_PANEL;
            sl_weight_pack_panel(matrix->type, matrix->packed + (first + r) * row, l->buffer + r * row, w,
                                 matrix->n_in);
        }
        status = advance(l, n * row, err);
    }
    l->weights->bytes += matrix->bytes;
    return status;
}

static sl_status load_wants(loader *l, const tensor_want *wants, size_t n, void *owner, sl_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const sl_gguf_tensor *tensor;
        sl_wtype type = SL_WTYPE_F32;
        sl_status status = find_tensor(l->gguf, &wants[i], &tensor, &type, err);
        if (status == SL_OK && tensor)
            sl_fingerprint_add_tensor(l->fingerprint, tensor);
        if (status == SL_OK && tensor && wants[i].n_out) {
            sl_matrix *matrix = (sl_matrix *)(void *)((char *)owner + wants[i].matrix_off);
            *matrix = (sl_matrix){.type = type, .n_out = wants[i].n_out, .n_in = wants[i].n_in};
            status = load_matrix(l, tensor, matrix, wants[i].name, err);
        } else if (status == SL_OK && tensor) {
            float **vector = (float **)(void *)((char *)owner + wants[i].vector_off);
            status = sl_mem_new(l->weights->budget, wants[i].n_in, sizeof **vector, wants[i].name, vector, err);
            if (status == SL_OK)
                status = sl_gguf_read(l->gguf, tensor, 0, wants[i].n_in * sizeof **vector, *vector, err);
            if (status == SL_OK) {
                sl_fingerprint_add(l->fingerprint, *vector, wants[i].n_in * sizeof **vector);
                status = advance(l, wants[i].n_in * sizeof **vector, err);
            }
            l->weights->bytes += wants[i].n_in * sizeof **vector;
        }
        if (status != SL_OK)
            return status;
    }
    return SL_OK;
}

static sl_status load_all(loader *l, sl_err *err)
{
    sl_weights *weights = l->weights;
    tensor_want wants[LAYER_WANTS > MODEL_WANTS ? LAYER_WANTS : MODEL_WANTS];
    model_wants(&weights->hp, wants);
    sl_status status = load_wants(l, wants, MODEL_WANTS, weights, err);
    weights->output = weights->own_output.packed ? &weights->own_output : &weights->embedding;
    for (uint32_t i = 0; status == SL_OK && i < weights->hp.n_layers; i++) {
        layer_wants(&weights->hp, i, wants);
        status = load_wants(l, wants, LAYER_WANTS, &weights->layers[i], err);
    }
    for (uint32_t i = 0; status == SL_OK && weights->rope_factors && i < weights->hp.rope_dims / 2; i++)
        if (!(weights->rope_factors[i] >= 1e-3f && weights->rope_factors[i] <= 1e6f))
            status = sl_err_set(err, SL_DAMAGED, "%s: rope_freqs.weight[%u] is %g, expected 0.001 to 1e6",
                                sl_gguf_path(l->gguf), i, (double)weights->rope_factors[i]);
    return status;
}

size_t sl_weights_buffer_bytes(const sl_hparams *hp)
{
    size_t longest = hp->n_embd > hp->n_ff ? hp->n_embd : hp->n_ff;
    if (longest < (size_t)hp->n_heads * hp->head_dim)
        longest = (size_t)hp->n_heads * hp->head_dim;
    size_t panel = SL_PANEL * longest * sizeof(float);
    return panel > READ_BYTES ? panel : READ_BYTES;
}

sl_status sl_weights_load(const sl_gguf *gguf, sl_budget *budget, sl_weights_progress progress, void *arg,
                          sl_weights **out, sl_err *err)
{
    *out = NULL;
    sl_hparams hp;
    sl_status status = sl_hparams_read(gguf, &hp, err);
    if (status == SL_OK)
        status = sl_weights_check(gguf, &hp, err);
    if (status != SL_OK)
        return status;
    loader l = {.gguf = gguf, .progress = progress, .arg = arg, .buffer_bytes = sl_weights_buffer_bytes(&hp)};
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++)
        l.total_bytes += sl_gguf_tensor_at(gguf, i)->bytes;
    status = sl_mem_new(budget, 1, sizeof *l.weights, "weights", &l.weights, err);
    if (status != SL_OK)
        return status;
    l.weights->budget = budget;
    l.weights->hp = hp;
    status = sl_mem_new(budget, hp.n_layers, sizeof *l.weights->layers, "weights", &l.weights->layers, err);
    if (status == SL_OK)
        status = sl_mem_map(budget, l.buffer_bytes, "weight reading buffer", &l.buffer, err);
    if (status == SL_OK)
        status = sl_fingerprint_create(&hp, budget, &l.fingerprint, err);
    if (status == SL_OK)
        status = load_all(&l, err);
    if (status == SL_OK)
        sl_fingerprint_get(l.fingerprint, l.weights->fingerprint);
    sl_fingerprint_destroy(l.fingerprint, budget);
    sl_mem_unmap(budget, l.buffer, l.buffer_bytes);
    if (status != SL_OK) {
        sl_weights_destroy(l.weights);
        return status;
    }
    *out = l.weights;
    return SL_OK;
}

void sl_weights_destroy(sl_weights *weights)
{
    if (!weights)
        return;
    sl_budget *budget = weights->budget;
    for (uint32_t i = 0; weights->layers && i < weights->hp.n_layers; i++) {
        sl_layer_weights *layer = &weights->layers[i];
        sl_matrix *matrices[] = {&layer->wq,     &layer->wk,   &layer->wv,    &layer->wo,
                                 &layer->w_gate, &layer->w_up, &layer->w_down};
        for (size_t k = 0; k < sizeof matrices / sizeof matrices[0]; k++)
            sl_mem_unmap(budget, matrices[k]->packed, matrices[k]->bytes);
        sl_mem_free(budget, layer->attn_norm);
        sl_mem_free(budget, layer->ffn_norm);
    }
    sl_mem_unmap(budget, weights->embedding.packed, weights->embedding.bytes);
    sl_mem_unmap(budget, weights->own_output.packed, weights->own_output.bytes);
    sl_mem_free(budget, weights->output_norm);
    sl_mem_free(budget, weights->rope_factors);
    sl_mem_free(budget, weights->layers);
    sl_mem_free(budget, weights);
}
