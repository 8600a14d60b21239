/* The open file and what is asked of it. */
#include "gguf/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "gguf/gguf_parse.h"

sl_status sl_gguf_damaged(const sl_gguf *gguf, sl_err *err, const char *fmt, ...)
{
    char text[sizeof err->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return sl_err_set(err, SL_DAMAGED, "%s: %s", gguf->label, text);
}

const char *sl_gguf_show(char buf[SL_GGUF_NAME_BYTES], const void *name, size_t bytes)
{
    const unsigned char *from = name;
    size_t max = SL_GGUF_NAME_BYTES - 4; /* "..." and the end */
    size_t n = bytes < max ? bytes : max;
    for (size_t i = 0; i < n; i++)
        buf[i] = from[i] < 0x20 || from[i] >= 0x7f || from[i] == '\'' ? '?' : (char)from[i];
    memcpy(buf + n, bytes > max ? "..." : "", bytes > max ? 4 : 1);
    return buf;
}

sl_status sl_gguf_fetch(const sl_gguf *gguf, void *buf, size_t bytes, uint64_t off, sl_err *err)
{
    if (gguf->input)
        return sl_input_read(gguf->input, buf, bytes, off, err);
    if (off > gguf->file_bytes || bytes > gguf->file_bytes - off)
        return sl_err_set(err, SL_FAILED, "%s: %zu bytes at offset %" PRIu64 " pass the end", gguf->label, bytes, off);
    if (bytes > 0)
        memcpy(buf, gguf->image + off, bytes);
    return SL_OK;
}

/* A long path is shown by its end, which is what tells two model files apart. */
static void set_label(sl_gguf *gguf)
{
    size_t n = strlen(gguf->path);
    const char *from = n > SL_GGUF_SHOWN_BYTES ? gguf->path + (n - SL_GGUF_SHOWN_BYTES) : gguf->path;
    snprintf(gguf->label, sizeof gguf->label, "%s%s", from != gguf->path ? "..." : "", from);
    for (char *c = gguf->label; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

static sl_status create(const char *path, sl_budget *budget, sl_gguf **out, sl_err *err)
{
    sl_status status = sl_mem_new(budget, 1, sizeof **out, "model file", out, err);
    if (status != SL_OK)
        return status;
    sl_gguf *gguf = *out;
    gguf->budget = budget;
    status = sl_mem_new(budget, strlen(path) + 1, 1, "model file path", &gguf->path, err);
    if (status != SL_OK)
        return status;
    memcpy(gguf->path, path, strlen(path) + 1);
    set_label(gguf);
    return SL_OK;
}

static sl_status load(sl_gguf *gguf, sl_err *err)
{
    sl_status status = sl_gguf_scan(gguf, err);
    if (status == SL_OK)
        status = sl_mem_new(gguf->budget, gguf->meta_bytes, 1, "model metadata", &gguf->meta, err);
    if (status == SL_OK)
        status = sl_gguf_fetch(gguf, gguf->meta, gguf->meta_bytes, 0, err);
    if (status == SL_OK)
        status = sl_gguf_parse(gguf, err);
    return status;
}

sl_status sl_gguf_open_one(const char *path, sl_budget *budget, sl_gguf **out, sl_err *err)
{
    sl_gguf *gguf = NULL;
    *out = NULL;
    sl_status status = create(path, budget, &gguf, err);
    if (status == SL_OK)
        status = sl_input_open(path, &gguf->input, &gguf->file_bytes, err);
    if (status == SL_OK)
        status = load(gguf, err);
    if (status == SL_OK)
        *out = gguf;
    else
        sl_gguf_close(gguf);
    return status;
}

sl_status sl_gguf_open(const char *path, sl_budget *budget, sl_gguf **out, sl_err *err)
{
    sl_status status = sl_gguf_open_one(path, budget, out, err);
    if (status == SL_OK)
        status = sl_gguf_split_open(*out, err);
    if (status != SL_OK) {
        sl_gguf_close(*out);
        *out = NULL;
    }
    return status;
}

sl_status sl_gguf_open_memory(const void *image, size_t bytes, sl_budget *budget, sl_gguf **out, sl_err *err)
{
    sl_gguf *gguf = NULL;
    *out = NULL;
    sl_status status = create("(memory)", budget, &gguf, err);
    if (status == SL_OK) {
        gguf->image = image;
        gguf->file_bytes = bytes;
        status = load(gguf, err);
    }
    if (status == SL_OK)
        *out = gguf;
    else
        sl_gguf_close(gguf);
    return status;
}

void sl_gguf_close(sl_gguf *gguf)
{
    if (!gguf)
        return;
    sl_budget *budget = gguf->budget;
    for (size_t i = 0; i < gguf->n_parts; i++)
        sl_gguf_close(gguf->parts[i]);
    sl_mem_free(budget, gguf->parts);
    sl_input_close(gguf->input);
    sl_mem_free(budget, gguf->value_index.slots);
    sl_mem_free(budget, gguf->tensor_index.slots);
    sl_mem_free(budget, gguf->values);
    sl_mem_free(budget, gguf->tensors);
    sl_mem_free(budget, gguf->meta);
    sl_mem_free(budget, gguf->path);
    sl_mem_free(budget, gguf);
}

uint32_t sl_gguf_version(const sl_gguf *gguf)
{
    return gguf->version;
}

const char *sl_gguf_path(const sl_gguf *gguf)
{
    return gguf->path;
}

uint64_t sl_gguf_file_bytes(const sl_gguf *gguf)
{
    uint64_t bytes = gguf->file_bytes;
    for (size_t i = 0; i < gguf->n_parts; i++)
        bytes += gguf->parts[i]->file_bytes;
    return bytes;
}

size_t sl_gguf_n_values(const sl_gguf *gguf)
{
    return (size_t)gguf->n_values;
}

const sl_gguf_value *sl_gguf_value_at(const sl_gguf *gguf, size_t i)
{
    return &gguf->values[i];
}

size_t sl_gguf_n_tensors(const sl_gguf *gguf)
{
    return (size_t)gguf->n_tensors;
}

const sl_gguf_tensor *sl_gguf_tensor_at(const sl_gguf *gguf, size_t i)
{
    return &gguf->tensors[i];
}

const sl_gguf_tensor *sl_gguf_tensor_find(const sl_gguf *gguf, const char *name)
{
    return sl_gguf_index_find(&gguf->tensor_index, gguf->tensors, sizeof *gguf->tensors, name, strlen(name));
}

const sl_gguf_value *sl_gguf_find(const sl_gguf *gguf, const char *key)
{
    return sl_gguf_index_find(&gguf->value_index, gguf->values, sizeof *gguf->values, key, strlen(key));
}

/* "array of u32 found" and the like: a value is there, but of another kind. */
static sl_status wrong_type(const sl_gguf *gguf, const sl_gguf_value *value, const char *expected, sl_err *err)
{
    char shown[SL_GGUF_NAME_BYTES];
    bool is_array = value->type == SL_GGUF_TYPE_ARRAY;
    return sl_gguf_damaged(gguf, err, "key '%s' at offset %zu: type %s%s found, %s expected",
                           sl_gguf_show(shown, value->key.data, value->key.size), (size_t)(value->data - gguf->meta),
                           is_array ? "array of " : "", sl_gguf_type_name(value->item_type), expected);
}

static sl_status find_or_say(const sl_gguf *gguf, const char *key, const char *expected, const sl_gguf_value **out,
                             sl_err *err)
{
    char shown[SL_GGUF_NAME_BYTES];
    *out = sl_gguf_find(gguf, key);
    if (*out)
        return SL_OK;
    return sl_gguf_damaged(gguf, err, "key '%s' is missing, %s expected", sl_gguf_show(shown, key, strlen(key)),
                           expected);
}

static bool is_signed(sl_gguf_type type)
{
    return type == SL_GGUF_TYPE_I8 || type == SL_GGUF_TYPE_I16 || type == SL_GGUF_TYPE_I32 || type == SL_GGUF_TYPE_I64;
}

static bool is_unsigned(sl_gguf_type type)
{
    return type == SL_GGUF_TYPE_U8 || type == SL_GGUF_TYPE_U16 || type == SL_GGUF_TYPE_U32 || type == SL_GGUF_TYPE_U64;
}

/* Two's complement of n_bytes, widened without a conversion that the implementation may define. */
static int64_t widen(uint64_t raw, size_t n_bytes)
{
    uint64_t sign = (uint64_t)1 << (8 * n_bytes - 1);
    if ((raw & sign) == 0)
        return (int64_t)raw;
    return -(int64_t)(sign - 1 - (raw & (sign - 1))) - 1;
}

sl_status sl_gguf_get_uint(const sl_gguf *gguf, const char *key, uint64_t min, uint64_t max, uint64_t *out, sl_err *err)
{
    const sl_gguf_value *value;
    sl_status status = find_or_say(gguf, key, "an integer", &value, err);
    if (status != SL_OK)
        return status;
    if (!is_unsigned(value->type) && !is_signed(value->type))
        return wrong_type(gguf, value, "an integer", err);
    sl_span span = sl_span_of(value->data, value->data_bytes);
    uint64_t raw = sl_span_uint(&span, value->data_bytes);
    bool negative = is_signed(value->type) && widen(raw, value->data_bytes) < 0;
    char found[24];
    if (negative)
        snprintf(found, sizeof found, "%" PRId64, widen(raw, value->data_bytes));
    else
        snprintf(found, sizeof found, "%" PRIu64, raw);
    if (negative || raw < min || raw > max)
        return sl_gguf_damaged(gguf, err, "key '%s' at offset %zu: %s found, %" PRIu64 " to %" PRIu64 " expected", key,
                               (size_t)(value->data - gguf->meta), found, min, max);
    *out = raw;
    return SL_OK;
}

/* A scalar of any numeric type, or a bool, as binary64. */
static double number_at(const uint8_t *data, size_t bytes, sl_gguf_type type)
{
    sl_span span = sl_span_of(data, bytes);
    uint64_t raw = sl_span_uint(&span, bytes);
    if (type == SL_GGUF_TYPE_F32)
        return (double)sl_float_of_bits((uint32_t)raw);
    if (type == SL_GGUF_TYPE_F64) {
        double value;
        memcpy(&value, &raw, sizeof value);
        return value;
    }
    return is_signed(type) ? (double)widen(raw, bytes) : (double)raw;
}

sl_status sl_gguf_get_float(const sl_gguf *gguf, const char *key, double *out, sl_err *err)
{
    const sl_gguf_value *value;
    sl_status status = find_or_say(gguf, key, "f32 or f64", &value, err);
    if (status != SL_OK)
        return status;
    if (value->type != SL_GGUF_TYPE_F32 && value->type != SL_GGUF_TYPE_F64)
        return wrong_type(gguf, value, "f32 or f64", err);
    double number = number_at(value->data, value->data_bytes, value->type);
    if (!isfinite(number))
        return sl_gguf_damaged(gguf, err, "key '%s' at offset %zu: %g found, a finite number expected", key,
                               (size_t)(value->data - gguf->meta), number);
    *out = number;
    return SL_OK;
}

sl_status sl_gguf_get_bool(const sl_gguf *gguf, const char *key, bool *out, sl_err *err)
{
    const sl_gguf_value *value;
    sl_status status = find_or_say(gguf, key, "bool", &value, err);
    if (status == SL_OK && value->type != SL_GGUF_TYPE_BOOL)
        status = wrong_type(gguf, value, "bool", err);
    if (status == SL_OK)
        *out = value->data[0] != 0;
    return status;
}

sl_status sl_gguf_get_string(const sl_gguf *gguf, const char *key, sl_gguf_string *out, sl_err *err)
{
    const sl_gguf_value *value;
    sl_status status = find_or_say(gguf, key, "string", &value, err);
    if (status == SL_OK && value->type != SL_GGUF_TYPE_STRING)
        status = wrong_type(gguf, value, "string", err);
    if (status == SL_OK)
        *out = (sl_gguf_string){(const char *)value->data + 8, value->data_bytes - 8};
    return status;
}

sl_gguf_iter sl_gguf_iter_start(const sl_gguf_value *array)
{
    return (sl_gguf_iter){array, 0, 0};
}

bool sl_gguf_iter_string(sl_gguf_iter *iter, sl_gguf_string *out)
{
    const sl_gguf_value *value = iter->value;
    if (value->item_type != SL_GGUF_TYPE_STRING || iter->i >= value->n_items)
        return false;
    sl_span span = sl_span_of(value->data, value->data_bytes);
    span.pos = iter->pos;
    uint64_t n = sl_span_u64(&span);
    const uint8_t *at = sl_span_take(&span, n);
    if (!at)
        return false;
    *out = (sl_gguf_string){(const char *)at, (size_t)n};
    iter->pos = span.pos;
    iter->i++;
    return true;
}

bool sl_gguf_iter_number(sl_gguf_iter *iter, double *out)
{
    const sl_gguf_value *value = iter->value;
    size_t item_bytes = sl_gguf_type_bytes((uint32_t)value->item_type);
    if (item_bytes == 0 || iter->i >= value->n_items)
        return false;
    *out = number_at(value->data + iter->pos, item_bytes, value->item_type);
    iter->pos += item_bytes;
    iter->i++;
    return true;
}

sl_status sl_gguf_read(const sl_gguf *gguf, const sl_gguf_tensor *tensor, uint64_t off, size_t bytes, void *out,
                       sl_err *err)
{
    char shown[SL_GGUF_NAME_BYTES];
    if (off > tensor->bytes || bytes > tensor->bytes - off)
        return sl_err_set(err, SL_FAILED, "%s: tensor '%s': %zu bytes at %" PRIu64 " asked for, it has %" PRIu64,
                          gguf->label, sl_gguf_show(shown, tensor->name.data, tensor->name.size), bytes, off,
                          tensor->bytes);
    const sl_gguf *file = tensor->part == 0 ? gguf : gguf->parts[tensor->part - 1];
    return sl_gguf_fetch(file, out, bytes, tensor->file_off + off, err);
}
