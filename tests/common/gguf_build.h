/* Builds GGUF images byte by byte, right ones and, where a test asks for it, wrong ones.
 * Source of the layout: ggml's gguf.md. A build that runs out of memory ends the test program. */
#ifndef GGUF_BUILD_H
#define GGUF_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf/gguf.h"

typedef struct gguf_bytes {
    uint8_t *data;
    size_t size, cap;
} gguf_bytes;

typedef struct gguf_build {
    uint32_t version;   /* 3 */
    uint64_t alignment; /* of tensor data: 32; the key general.alignment is the caller's to add */
    uint64_t n_values, n_tensors;
    gguf_bytes values, tensors, data; /* the three sections */
    gguf_bytes file;                  /* after gguf_build_finish */
} gguf_build;

void gguf_build_init(gguf_build *build);
void gguf_build_deinit(gguf_build *build);

void gguf_bytes_put(gguf_bytes *bytes, const void *data, size_t size);
void gguf_bytes_uint(gguf_bytes *bytes, uint64_t value, size_t n_bytes); /* little-endian */
void gguf_bytes_string(gguf_bytes *bytes, const void *data, size_t size);

/* Metadata. uint: any integer type or bool, two's complement; float: F32 or F64. */
void gguf_build_uint(gguf_build *build, const char *key, sl_gguf_type type, uint64_t value);
void gguf_build_float(gguf_build *build, const char *key, sl_gguf_type type, double value);
void gguf_build_string(gguf_build *build, const char *key, const char *text);
void gguf_build_text(gguf_build *build, const char *key, const void *data, size_t size); /* any bytes */
/* `items` are n scalars as they lie in the file. */
void gguf_build_array(gguf_build *build, const char *key, sl_gguf_type item_type, uint64_t n, const void *items,
                      size_t bytes);
void gguf_build_strings(gguf_build *build, const char *key, uint64_t n, const char *const *texts);
/* A value of which only the bytes are given, true or not. */
void gguf_build_raw(gguf_build *build, const char *key, uint32_t type, const void *payload, size_t bytes);

/* A tensor with its data, placed at the next aligned offset. */
void gguf_build_tensor(gguf_build *build, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                       const void *data, size_t bytes);
/* A directory entry alone, true or not. */
void gguf_build_entry(gguf_build *build, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims,
                      uint64_t off);

/* Lays out the file; build->file holds it until deinit. May be called again after more was added. */
void gguf_build_finish(gguf_build *build);
/* Finishes and writes; false: the file could not be written. */
bool gguf_build_write(gguf_build *build, const char *path);

#endif
