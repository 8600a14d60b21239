#include "common/gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gguf_build_init(gguf_build *build)
{
    memset(build, 0, sizeof *build);
    build->version = 3;
    build->alignment = 32;
}

void gguf_build_deinit(gguf_build *build)
{
    free(build->values.data);
    free(build->tensors.data);
    free(build->data.data);
    free(build->file.data);
}

/* Room for `size` more bytes. */
static void reserve(gguf_bytes *bytes, size_t size)
{
    if (bytes->size + size <= bytes->cap)
        return;
    size_t cap = bytes->cap * 2 > bytes->size + size ? bytes->cap * 2 : bytes->size + size + 64;
    uint8_t *data = realloc(bytes->data, cap);
    if (!data)
        abort();
    bytes->data = data;
    bytes->cap = cap;
}

void gguf_bytes_put(gguf_bytes *bytes, const void *data, size_t size)
{
    reserve(bytes, size);
    if (size > 0)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

void gguf_bytes_uint(gguf_bytes *bytes, uint64_t value, size_t n_bytes)
{
    reserve(bytes, n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        bytes->data[bytes->size++] = (uint8_t)(value >> (8 * i));
}

void gguf_bytes_string(gguf_bytes *bytes, const void *data, size_t size)
{
    gguf_bytes_uint(bytes, size, 8);
    gguf_bytes_put(bytes, data, size);
}

static void pad(gguf_bytes *bytes, uint64_t alignment)
{
    while (bytes->size % alignment != 0)
        gguf_bytes_uint(bytes, 0, 1);
}

static gguf_bytes *begin_value(gguf_build *build, const char *key, uint32_t type)
{
    gguf_bytes_string(&build->values, key, strlen(key));
    gguf_bytes_uint(&build->values, type, 4);
    build->n_values++;
    return &build->values;
}

static size_t type_bytes(sl_gguf_type type)
{
    switch (type) {
    case SL_GGUF_TYPE_U8:
    case SL_GGUF_TYPE_I8:
    case SL_GGUF_TYPE_BOOL:
        return 1;
    case SL_GGUF_TYPE_U16:
    case SL_GGUF_TYPE_I16:
        return 2;
    case SL_GGUF_TYPE_U32:
    case SL_GGUF_TYPE_I32:
    case SL_GGUF_TYPE_F32:
        return 4;
    default:
        return 8;
    }
}

void gguf_build_uint(gguf_build *build, const char *key, sl_gguf_type type, uint64_t value)
{
    gguf_bytes_uint(begin_value(build, key, (uint32_t)type), value, type_bytes(type));
}

void gguf_build_float(gguf_build *build, const char *key, sl_gguf_type type, double value)
{
    float narrow = (float)value;
    uint64_t bits = 0;
    if (type == SL_GGUF_TYPE_F32) {
        uint32_t bits32;
        memcpy(&bits32, &narrow, sizeof bits32);
        bits = bits32;
    } else {
        memcpy(&bits, &value, sizeof bits);
    }
    gguf_bytes_uint(begin_value(build, key, (uint32_t)type), bits, type_bytes(type));
}

void gguf_build_text(gguf_build *build, const char *key, const void *data, size_t size)
{
    gguf_bytes_string(begin_value(build, key, SL_GGUF_TYPE_STRING), data, size);
}

void gguf_build_string(gguf_build *build, const char *key, const char *text)
{
    gguf_build_text(build, key, text, strlen(text));
}

void gguf_build_array(gguf_build *build, const char *key, sl_gguf_type item_type, uint64_t n, const void *items,
                      size_t bytes)
{
    gguf_bytes *to = begin_value(build, key, SL_GGUF_TYPE_ARRAY);
    gguf_bytes_uint(to, (uint64_t)item_type, 4);
    gguf_bytes_uint(to, n, 8);
    gguf_bytes_put(to, items, bytes);
}

void gguf_build_strings(gguf_build *build, const char *key, uint64_t n, const char *const *texts)
{
    gguf_build_array(build, key, SL_GGUF_TYPE_STRING, n, NULL, 0);
    for (uint64_t i = 0; i < n; i++)
        gguf_bytes_string(&build->values, texts[i], strlen(texts[i]));
}

void gguf_build_raw(gguf_build *build, const char *key, uint32_t type, const void *payload, size_t bytes)
{
    gguf_bytes_put(begin_value(build, key, type), payload, bytes);
}

void gguf_build_entry(gguf_build *build, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                      uint64_t off)
{
    gguf_bytes *to = &build->tensors;
    gguf_bytes_string(to, name, strlen(name));
    gguf_bytes_uint(to, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++)
        gguf_bytes_uint(to, dims[d], 8);
    gguf_bytes_uint(to, type, 4);
    gguf_bytes_uint(to, off, 8);
    build->n_tensors++;
}

void gguf_build_tensor(gguf_build *build, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                       const void *data, size_t bytes)
{
    pad(&build->data, build->alignment);
    gguf_build_entry(build, name, type, n_dims, dims, build->data.size);
    gguf_bytes_put(&build->data, data, bytes);
}

void gguf_build_finish(gguf_build *build)
{
    gguf_bytes *file = &build->file;
    file->size = 0;
    gguf_bytes_put(file, "GGUF", 4);
    gguf_bytes_uint(file, build->version, 4);
    gguf_bytes_uint(file, build->n_tensors, 8);
    gguf_bytes_uint(file, build->n_values, 8);
    gguf_bytes_put(file, build->values.data, build->values.size);
    gguf_bytes_put(file, build->tensors.data, build->tensors.size);
    if (build->data.size > 0)
        pad(file, build->alignment);
    gguf_bytes_put(file, build->data.data, build->data.size);
}

bool gguf_build_write(gguf_build *build, const char *path)
{
    gguf_build_finish(build);
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool ok = fwrite(build->file.data, 1, build->file.size, file) == build->file.size;
    return fclose(file) == 0 && ok;
}
