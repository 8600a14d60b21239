/* The second walk: what the metadata mean. The scan has proved that every length lies inside the buffer; the spans
 * here check again, because a file may change between two reads. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "gguf/gguf_parse.h"

#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MIN 8u
#define ALIGNMENT_MAX 65536u

static const sl_gguf_string *name_of(const void *items, size_t item_bytes, size_t i)
{
    /* The name is the first member of both kinds of item. */
    return (const sl_gguf_string *)(const void *)((const char *)items + i * item_bytes);
}

/* The slot that holds the name, or the free one where it belongs. */
static size_t slot_of(const sl_gguf_index *index, const void *items, size_t item_bytes, const char *name,
                      size_t name_bytes)
{
    size_t mask = index->n_slots - 1;
    size_t slot = (size_t)sl_hash(name, name_bytes) & mask;
    while (index->slots[slot] != 0) {
        const sl_gguf_string *other = name_of(items, item_bytes, index->slots[slot] - 1u);
        if (other->size == name_bytes && memcmp(other->data, name, name_bytes) == 0)
            break;
        slot = (slot + 1) & mask;
    }
    return slot;
}

const void *sl_gguf_index_find(const sl_gguf_index *index, const void *items, size_t item_bytes, const char *name,
                               size_t name_bytes)
{
    uint32_t found = index->slots[slot_of(index, items, item_bytes, name, name_bytes)];
    return found != 0 ? name_of(items, item_bytes, found - 1u) : NULL;
}

bool sl_gguf_index_add(sl_gguf_index *index, const void *items, size_t item_bytes, size_t i)
{
    const sl_gguf_string *name = name_of(items, item_bytes, i);
    size_t slot = slot_of(index, items, item_bytes, name->data, name->size);
    if (index->slots[slot] != 0)
        return false;
    index->slots[slot] = (uint32_t)i + 1u;
    return true;
}

sl_status sl_gguf_index_create(const sl_gguf *gguf, uint64_t n_items, sl_gguf_index *index, sl_err *err)
{
    index->n_slots = 4;
    while (index->n_slots < 2 * n_items)
        index->n_slots *= 2;
    return sl_mem_new(gguf->budget, index->n_slots, sizeof *index->slots, "model file index", &index->slots, err);
}

static sl_gguf_string take_string(sl_span *span)
{
    uint64_t n = sl_span_u64(span);
    const uint8_t *at = sl_span_take(span, n);
    return at ? (sl_gguf_string){(const char *)at, (size_t)n} : (sl_gguf_string){"", 0};
}

/* No control bytes in a key or tensor name: names are printed, and looked up as C strings. */
static sl_status take_name(const sl_gguf *gguf, sl_span *span, const char *kind, sl_gguf_string *out, sl_err *err)
{
    char shown[SL_GGUF_NAME_BYTES];
    *out = take_string(span);
    for (size_t i = 0; i < out->size; i++) {
        unsigned byte = (unsigned char)out->data[i];
        if (byte < 0x20 || byte == 0x7f)
            return sl_gguf_damaged(gguf, err, "%s '%s' at offset %zu: control byte 0x%02x in the name", kind,
                                   sl_gguf_show(shown, out->data, out->size), span->pos - out->size, byte);
    }
    return SL_OK;
}

/* Moves past the items and notes where they lie. */
static void take_items(sl_span *span, sl_gguf_value *value)
{
    size_t start = span->pos;
    size_t item_bytes = sl_gguf_type_bytes((uint32_t)value->item_type);
    value->data = span->data + start;
    if (item_bytes > 0) {
        if (value->n_items > span->size / item_bytes)
            span->failed = true;
        else
            (void)sl_span_take(span, value->n_items * item_bytes);
    } else if (value->item_type == SL_GGUF_TYPE_STRING) {
        for (uint64_t i = 0; i < value->n_items && !span->failed; i++)
            (void)take_string(span);
    } else {
        span->failed = true;
    }
    value->data_bytes = span->failed ? 0 : span->pos - start;
}

/* Bools are one byte, 0 or 1; any other value is a sign of damage. */
static sl_status check_bools(const sl_gguf *gguf, const sl_gguf_value *value, sl_err *err)
{
    char shown[SL_GGUF_NAME_BYTES];
    if (value->item_type != SL_GGUF_TYPE_BOOL)
        return SL_OK;
    for (size_t i = 0; i < value->data_bytes; i++)
        if (value->data[i] > 1)
            return sl_gguf_damaged(gguf, err, "key '%s', bool at offset %zu: %u found, 0 or 1 expected",
                                   sl_gguf_show(shown, value->key.data, value->key.size),
                                   (size_t)(value->data - gguf->meta) + i, (unsigned)value->data[i]);
    return SL_OK;
}

static sl_status changed(const sl_gguf *gguf, sl_err *err)
{
    return sl_err_set(err, SL_FAILED, "%s: the file changed while it was read", gguf->label);
}

static sl_status parse_values(sl_gguf *gguf, sl_span *span, sl_err *err)
{
    char shown[SL_GGUF_NAME_BYTES];
    for (size_t i = 0; i < gguf->n_values; i++) {
        sl_gguf_value *value = &gguf->values[i];
        size_t at = span->pos;
        sl_status status = take_name(gguf, span, "key", &value->key, err);
        if (status != SL_OK)
            return status;
        uint32_t type = sl_span_u32(span);
        value->type = (sl_gguf_type)type;
        value->item_type = value->type;
        value->n_items = 1;
        if (type == SL_GGUF_TYPE_ARRAY) {
            value->item_type = (sl_gguf_type)sl_span_u32(span);
            value->n_items = sl_span_u64(span);
        }
        take_items(span, value);
        if (span->failed)
            return changed(gguf, err);
        status = check_bools(gguf, value, err);
        if (status != SL_OK)
            return status;
        if (!sl_gguf_index_add(&gguf->value_index, gguf->values, sizeof *gguf->values, i))
            return sl_gguf_damaged(gguf, err, "key '%s' at offset %zu appears twice",
                                   sl_gguf_show(shown, value->key.data, value->key.size), at);
    }
    return SL_OK;
}

static sl_status parse_alignment(sl_gguf *gguf, sl_err *err)
{
    gguf->alignment = ALIGNMENT_DEFAULT;
    const sl_gguf_value *value = sl_gguf_find(gguf, "general.alignment");
    if (!value)
        return SL_OK;
    size_t at = (size_t)(value->data - gguf->meta);
    if (value->type != SL_GGUF_TYPE_U32)
        return sl_gguf_damaged(gguf, err, "key 'general.alignment' at offset %zu: type %s found, u32 expected", at,
                               sl_gguf_type_name(value->type));
    sl_span span = sl_span_of(value->data, value->data_bytes);
    uint32_t alignment = sl_span_u32(&span);
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)
        return sl_gguf_damaged(gguf, err,
                               "key 'general.alignment' at offset %zu: %" PRIu32
                               " found, a power of two from %u to %u expected",
                               at, alignment, ALIGNMENT_MIN, ALIGNMENT_MAX);
    gguf->alignment = alignment;
    return SL_OK;
}

/* Sets bytes (0 for an unknown type) from dims and type; refuses every product that a reader might wrap. */
static sl_status size_tensor(const sl_gguf *gguf, sl_gguf_tensor *tensor, const char *name, sl_err *err)
{
    uint64_t n_elements = 1;
    for (uint32_t d = 0; d < 4; d++) {
        uint64_t dim = tensor->dims[d];
        if (dim == 0)
            return sl_gguf_damaged(gguf, err, "tensor '%s', dimension %" PRIu32 ": 0 found, at least 1 expected", name,
                                   d);
        if (dim > INT64_MAX / n_elements)
            return sl_gguf_damaged(gguf, err,
                                   "tensor '%s': dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                                   " have more than 2^63 - 1 elements",
                                   name, tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3]);
        n_elements *= dim;
    }
    uint32_t block_elements, block_bytes;
    tensor->bytes = 0;
    if (!sl_ggml_type_block(tensor->type, &block_elements, &block_bytes))
        return SL_OK;
    if (tensor->dims[0] % block_elements != 0)
        return sl_gguf_damaged(
            gguf, err, "tensor '%s' of type %s: rows of %" PRIu64 " elements found, a multiple of %" PRIu32 " expected",
            name, sl_ggml_type_name(tensor->type), tensor->dims[0], block_elements);
    uint64_t n_blocks = n_elements / block_elements;
    if (n_blocks > gguf->file_bytes / block_bytes)
        return sl_gguf_damaged(gguf, err,
                               "tensor '%s' of type %s: %" PRIu64 " elements found, more than a file of %" PRIu64
                               " bytes can hold",
                               name, sl_ggml_type_name(tensor->type), n_elements, gguf->file_bytes);
    tensor->bytes = n_blocks * block_bytes;
    return SL_OK;
}

static sl_status place_tensor(const sl_gguf *gguf, sl_gguf_tensor *tensor, const char *name, sl_err *err)
{
    uint64_t off = tensor->file_off; /* from the start of the tensor data as yet */
    if (off % gguf->alignment != 0)
        return sl_gguf_damaged(gguf, err,
                               "tensor '%s': data offset %" PRIu64 " found, a multiple of %" PRIu64 " expected", name,
                               off, gguf->alignment);
    uint64_t data_bytes = gguf->file_bytes > gguf->data_off ? gguf->file_bytes - gguf->data_off : 0;
    uint64_t least = tensor->bytes > 0 ? tensor->bytes : 1; /* also of a type whose size nobody here knows */
    if (off > data_bytes || least > data_bytes - off)
        return sl_gguf_damaged(gguf, err,
                               "tensor '%s': data of %" PRIu64 " bytes at %" PRIu64 " + %" PRIu64
                               " pass the file's end at %" PRIu64,
                               name, least, gguf->data_off, off, gguf->file_bytes);
    tensor->file_off = gguf->data_off + off;
    return SL_OK;
}

static sl_status parse_tensors(sl_gguf *gguf, sl_span *span, sl_err *err)
{
    char shown[SL_GGUF_NAME_BYTES];
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        sl_gguf_tensor *tensor = &gguf->tensors[i];
        size_t at = span->pos;
        sl_status status = take_name(gguf, span, "tensor", &tensor->name, err);
        if (status != SL_OK)
            return status;
        tensor->n_dims = sl_span_u32(span);
        if (span->failed || tensor->n_dims < 1 || tensor->n_dims > 4)
            return changed(gguf, err);
        for (uint32_t d = 0; d < 4; d++)
            tensor->dims[d] = d < tensor->n_dims ? sl_span_u64(span) : 1;
        tensor->type = sl_span_u32(span);
        tensor->file_off = sl_span_u64(span);
        if (span->failed)
            return changed(gguf, err);
        const char *name = sl_gguf_show(shown, tensor->name.data, tensor->name.size);
        status = size_tensor(gguf, tensor, name, err);
        if (status == SL_OK)
            status = place_tensor(gguf, tensor, name, err);
        if (status != SL_OK)
            return status;
        if (!sl_gguf_index_add(&gguf->tensor_index, gguf->tensors, sizeof *gguf->tensors, i))
            return sl_gguf_damaged(gguf, err, "tensor '%s' at offset %zu appears twice", name, at);
    }
    return SL_OK;
}

static int by_place(const void *a, const void *b)
{
    const sl_gguf_tensor *left = *(const sl_gguf_tensor *const *)a;
    const sl_gguf_tensor *right = *(const sl_gguf_tensor *const *)b;
    if (left->file_off != right->file_off)
        return left->file_off < right->file_off ? -1 : 1;
    return (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

/* No byte belongs to two tensors: else a small file could ask for any amount of memory. */
static sl_status check_overlap(const sl_gguf *gguf, sl_err *err)
{
    const sl_gguf_tensor **sorted;
    sl_status status =
        sl_mem_new(gguf->budget, (size_t)gguf->n_tensors, sizeof *sorted, "tensor directory", &sorted, err);
    if (status != SL_OK)
        return status;
    for (size_t i = 0; i < gguf->n_tensors; i++)
        sorted[i] = &gguf->tensors[i];
    qsort(sorted, (size_t)gguf->n_tensors, sizeof *sorted, by_place);
    for (size_t i = 1; i < gguf->n_tensors && status == SL_OK; i++) {
        const sl_gguf_tensor *before = sorted[i - 1], *after = sorted[i];
        char name[SL_GGUF_NAME_BYTES], other[SL_GGUF_NAME_BYTES];
        if (after->file_off - before->file_off < before->bytes)
            status = sl_gguf_damaged(gguf, err, "tensor '%s' at offset %" PRIu64 " overlaps tensor '%s' at %" PRIu64,
                                     sl_gguf_show(name, after->name.data, after->name.size), after->file_off,
                                     sl_gguf_show(other, before->name.data, before->name.size), before->file_off);
    }
    sl_mem_free(gguf->budget, sorted);
    return status;
}

sl_status sl_gguf_parse(sl_gguf *gguf, sl_err *err)
{
    sl_status status =
        sl_mem_new(gguf->budget, (size_t)gguf->n_values, sizeof *gguf->values, "model metadata", &gguf->values, err);
    if (status == SL_OK)
        status = sl_mem_new(gguf->budget, (size_t)gguf->n_tensors, sizeof *gguf->tensors, "tensor directory",
                            &gguf->tensors, err);
    if (status == SL_OK)
        status = sl_gguf_index_create(gguf, gguf->n_values, &gguf->value_index, err);
    if (status == SL_OK)
        status = sl_gguf_index_create(gguf, gguf->n_tensors, &gguf->tensor_index, err);
    sl_span span = sl_span_of(gguf->meta, gguf->meta_bytes);
    (void)sl_span_take(&span, 24); /* the header */
    if (status == SL_OK)
        status = parse_values(gguf, &span, err);
    if (status == SL_OK)
        status = parse_alignment(gguf, err);
    if (status != SL_OK)
        return status;
    gguf->data_off = (gguf->meta_bytes + gguf->alignment - 1) & ~(gguf->alignment - 1);
    status = parse_tensors(gguf, &span, err);
    return status == SL_OK ? check_overlap(gguf, err) : status;
}
