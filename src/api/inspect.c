/* Looking into a model file without loading it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/engine.h"
#include "store/parts.h"

enum { TEXT_BYTES = 160, MAX_ITEMS = 4 };

/* Appends at most what fits, always terminated. */
static void append(char *text, size_t cap, const char *piece)
{
    size_t used = strlen(text);
    snprintf(text + used, cap - used, "%s", piece);
}

/* Printable on one line: control bytes become spaces. */
static void append_string(char *text, size_t cap, sl_gguf_string string)
{
    size_t used = strlen(text), room = cap - used - 1;
    size_t n = string.size < room ? string.size : room;
    for (size_t i = 0; i < n; i++)
        text[used + i] = (unsigned char)string.data[i] < 32 || string.data[i] == 127 ? ' ' : string.data[i];
    text[used + n] = 0;
    if (n < string.size && cap > 4)
        memcpy(text + cap - 4, "...", 4);
}

/* Scalars read like an array of one. */
static void describe(const sl_gguf_value *value, char *text, size_t cap)
{
    bool is_array = value->type == SL_GGUF_TYPE_ARRAY;
    sl_gguf_type type = is_array ? value->item_type : value->type;
    text[0] = 0;
    sl_gguf_iter iter = sl_gguf_iter_start(value);
    for (uint64_t i = 0; i < value->n_items && i < MAX_ITEMS; i++) {
        char piece[40] = "";
        sl_gguf_string string;
        double number = 0.0;
        if (i > 0)
            append(text, cap, ", ");
        if (type == SL_GGUF_TYPE_STRING && sl_gguf_iter_string(&iter, &string)) {
            append_string(text, is_array && strlen(text) + 24 < cap ? strlen(text) + 24 : cap, string);
        } else if (sl_gguf_iter_number(&iter, &number)) {
            if (type == SL_GGUF_TYPE_BOOL)
                snprintf(piece, sizeof piece, "%s", number != 0.0 ? "true" : "false");
            else if (type == SL_GGUF_TYPE_F32 || type == SL_GGUF_TYPE_F64)
                snprintf(piece, sizeof piece, "%.9g", number);
            else
                snprintf(piece, sizeof piece, "%.0f", number);
            append(text, cap, piece);
        }
    }
    if (value->n_items > MAX_ITEMS) {
        char more[40];
        snprintf(more, sizeof more, ", ... %" PRIu64 " items", value->n_items);
        append(text, cap, more);
    }
}

static void visit_values(const sl_gguf *gguf, const sl_model_visitor *visitor)
{
    for (size_t i = 0; i < sl_gguf_n_values(gguf); i++) {
        const sl_gguf_value *value = sl_gguf_value_at(gguf, i);
        char text[TEXT_BYTES], type[40];
        bool is_array = value->type == SL_GGUF_TYPE_ARRAY;
        snprintf(type, sizeof type, "%s%s", sl_gguf_type_name(is_array ? value->item_type : value->type),
                 is_array ? "[]" : "");
        describe(value, text, sizeof text);
        visitor->value(visitor->arg, value->key.data, value->key.size, type, text);
    }
}

static void visit_tensors(const sl_gguf *gguf, const sl_model_visitor *visitor, sl_model_summary *out)
{
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(gguf, i);
        char unknown[24];
        snprintf(unknown, sizeof unknown, "type %" PRIu32, t->type);
        const char *type = sl_ggml_type_name(t->type);
        out->n_parameters += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        out->tensor_bytes += t->bytes;
        if (visitor->tensor)
            visitor->tensor(visitor->arg, t->name.data, t->name.size, type ? type : unknown, t->dims, t->bytes);
    }
}

/* The cache of one type, layer by layer; zeros where the model cannot have it. */
static void sum_cache(const sl_hparams *hp, sl_kv_type type, uint64_t *token_bytes, uint64_t *walked_bytes,
                      uint64_t *kept_bytes)
{
    const sl_slide slide = {.drops = true};
    *token_bytes = *walked_bytes = *kept_bytes = 0;
    for (uint32_t i = 0; i < hp->n_layers; i++) {
        sl_kv_layer layer = sl_hparams_kv_layer(hp, i);
        sl_geom geom = {type, 1, &layer};
        if (sl_geom_check(&geom, NULL) != SL_OK)
            return;
        *token_bytes += sl_geom_token_bytes(&geom);
        *walked_bytes += sl_geom_seen_bytes(&geom, hp->n_ctx_train, hp->n_ctx_train);
        *kept_bytes += sl_parts_bytes(&geom, hp->n_ctx_train, &slide, 0);
    }
}

static void visit_layers(const sl_hparams *hp, const sl_model_visitor *visitor, sl_model_summary *out)
{
    sum_cache(hp, SL_KV_TYPE_F16, &out->kv_token_bytes_f16, &out->kv_walked_bytes_f16, &out->kv_kept_bytes_f16);
    sum_cache(hp, SL_KV_TYPE_Q8_0, &out->kv_token_bytes_q8_0, &out->kv_walked_bytes_q8_0, &out->kv_kept_bytes_q8_0);
    out->n_ctx_train = hp->n_ctx_train;
    out->n_layers = hp->n_layers;
    out->n_sliding_layers = sl_hparams_n_sliding(hp);
    out->sliding_span = hp->sliding_span;
    for (uint32_t i = 0; visitor->layer && i < hp->n_layers; i++)
        visitor->layer(visitor->arg, i, sl_hparams_kv_layer(hp, i).span);
}

sl_status sl_model_inspect(const char *path, const sl_model_visitor *visitor, sl_model_summary *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    sl_gguf *gguf = NULL;
    sl_status status = sl_gguf_open(path, &budget, &gguf, err);
    if (status == SL_OK) {
        out->gguf_version = sl_gguf_version(gguf);
        out->file_bytes = sl_gguf_file_bytes(gguf);
        out->n_tensors = sl_gguf_n_tensors(gguf);
        if (visitor->value)
            visit_values(gguf, visitor);
        visit_tensors(gguf, visitor, out);
        sl_hparams hp;
        sl_err problem = {SL_OK, ""};
        if (sl_hparams_read(gguf, &hp, &problem) == SL_OK && sl_weights_check(gguf, &hp, &problem) == SL_OK)
            visit_layers(&hp, visitor, out);
        memcpy(out->problem, problem.text, sizeof out->problem);
    }
    sl_gguf_close(gguf);
    sl_budget_deinit(&budget);
    return status;
}
