/* GGUF model files, versions 2 and 3 (format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
 *
 * Owns: the open file, the others of a split model (NAME-00001-of-0000N.gguf), metadata and tensor directory in
 * memory. Refuses: whatever could make a reader over-read,
 * over-allocate or wrap, before any allocation that the file's own size does not justify. Tensor data are read on
 * demand, never mapped. Thread rule: an open file may be read from any thread; open and close by one. */
#ifndef SL_GGUF_H
#define SL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

typedef struct sl_gguf sl_gguf;

typedef enum sl_gguf_type { /* the format's numbers */
    SL_GGUF_TYPE_U8, SL_GGUF_TYPE_I8, SL_GGUF_TYPE_U16, SL_GGUF_TYPE_I16, SL_GGUF_TYPE_U32, SL_GGUF_TYPE_I32,
    SL_GGUF_TYPE_F32, SL_GGUF_TYPE_BOOL, SL_GGUF_TYPE_STRING, SL_GGUF_TYPE_ARRAY, SL_GGUF_TYPE_U64,
    SL_GGUF_TYPE_I64, SL_GGUF_TYPE_F64
} sl_gguf_type;

typedef struct sl_gguf_string {
    const char *data; /* borrowed until sl_gguf_close; not terminated, any bytes */
    size_t size;
} sl_gguf_string;

typedef struct sl_gguf_value {
    sl_gguf_string key;
    sl_gguf_type type;
    sl_gguf_type item_type; /* of an array; a scalar's own type */
    uint64_t n_items;       /* of an array; 1 for scalars */
    const uint8_t *data;    /* private: first payload byte */
    size_t data_bytes;
} sl_gguf_value;

typedef struct sl_gguf_tensor {
    sl_gguf_string name;
    uint32_t type;     /* ggml's type number */
    uint32_t n_dims;   /* 1..4 */
    uint64_t dims[4];  /* dims[0] = elements of a row; absent ones are 1 */
    uint64_t file_off; /* of the first byte, from the start of the file */
    uint32_t part;     /* of a split model: which file, 0 the first */
    uint64_t bytes;    /* 0 when the type is unknown to this program; the sum over all is at most the file's size */
} sl_gguf_tensor;

/* path: of a split model the first file; the others lie beside it. Errors: SL_FAILED (cannot read), SL_DAMAGED (not a
 * GGUF, cut, inconsistent), SL_USAGE (a later file of a split model), each naming path and field. */
sl_status sl_gguf_open(const char *path, sl_budget *budget, sl_gguf **out, sl_err *err) SL_CHECK;
/* The same from a file's image, borrowed until sl_gguf_close; its path is "(memory)". */
sl_status sl_gguf_open_memory(const void *image, size_t bytes, sl_budget *budget, sl_gguf **out, sl_err *err) SL_CHECK;
void sl_gguf_close(sl_gguf *gguf);

/* Pointers that these return are borrowed until sl_gguf_close. */
uint32_t sl_gguf_version(const sl_gguf *gguf);
const char *sl_gguf_path(const sl_gguf *gguf);
uint64_t sl_gguf_file_bytes(const sl_gguf *gguf); /* of all its files */
size_t sl_gguf_n_values(const sl_gguf *gguf);
const sl_gguf_value *sl_gguf_value_at(const sl_gguf *gguf, size_t i);
size_t sl_gguf_n_tensors(const sl_gguf *gguf);
const sl_gguf_tensor *sl_gguf_tensor_at(const sl_gguf *gguf, size_t i);
const sl_gguf_tensor *sl_gguf_tensor_find(const sl_gguf *gguf, const char *name); /* NULL: none */

/* NULL: no such key. */
const sl_gguf_value *sl_gguf_find(const sl_gguf *gguf, const char *key);
/* Scalars with conversion between integer widths; SL_DAMAGED, naming key, type found and expected, when the key is
 * missing, of another kind, or out of range [min, max]. */
sl_status sl_gguf_get_uint(const sl_gguf *gguf, const char *key, uint64_t min, uint64_t max, uint64_t *out,
                           sl_err *err) SL_CHECK;
sl_status sl_gguf_get_float(const sl_gguf *gguf, const char *key, double *out, sl_err *err) SL_CHECK; /* finite */
sl_status sl_gguf_get_bool(const sl_gguf *gguf, const char *key, bool *out, sl_err *err) SL_CHECK;
sl_status sl_gguf_get_string(const sl_gguf *gguf, const char *key, sl_gguf_string *out, sl_err *err) SL_CHECK;

/* Walks an array's items in order; a scalar is walked as one item. Strings: *_string; numbers and bools: *_number (as
 * double, exact to 2^53). False: no more items, or items of the other kind. */
typedef struct sl_gguf_iter {
    const sl_gguf_value *value;
    uint64_t i;
    size_t pos;
} sl_gguf_iter;
sl_gguf_iter sl_gguf_iter_start(const sl_gguf_value *array);
bool sl_gguf_iter_string(sl_gguf_iter *iter, sl_gguf_string *out);
bool sl_gguf_iter_number(sl_gguf_iter *iter, double *out);

/* Reads [off, off + bytes) of a tensor's data. */
sl_status sl_gguf_read(const sl_gguf *gguf, const sl_gguf_tensor *tensor, uint64_t off, size_t bytes, void *out,
                       sl_err *err) SL_CHECK;

const char *sl_gguf_type_name(sl_gguf_type type);
/* ggml's name of a tensor type ("Q4_1"), also for types that cannot be computed with; NULL: unknown number. */
const char *sl_ggml_type_name(uint32_t type);
/* Elements and bytes of one block; false (and zeros): unknown number. */
bool sl_ggml_type_block(uint32_t type, uint32_t *n_elements, uint32_t *n_bytes);

#endif
