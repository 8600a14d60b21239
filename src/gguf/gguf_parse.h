/* Inside of the gguf layer: how a file becomes its directory, in two walks.
 *
 *   sl_gguf_scan   streams through the file once and finds where the metadata end: every count and length is checked
 *                  against what the file holds before anything is allocated for it
 *   sl_gguf_parse  works on the metadata in memory: values, tensor directory, their meaning
 *
 * Two walks cost a second read of a few megabytes and save holding the metadata twice while a buffer grows. */
#ifndef SL_GGUF_PARSE_H
#define SL_GGUF_PARSE_H

#include "base/span.h"
#include "gguf/gguf.h"
#include "platform/os.h"

#define SL_GGUF_SHOWN_BYTES 200 /* of the path in a message */
#define SL_GGUF_NAME_BYTES 72   /* of a key or tensor name in a message */

/* Open addressing; a slot holds an item's index + 1, or 0. */
typedef struct sl_gguf_index {
    uint32_t *slots;
    size_t n_slots; /* a power of two, at least twice the number of items */
} sl_gguf_index;

struct sl_gguf {
    sl_budget *budget;
    sl_input *input;      /* or NULL and the image */
    const uint8_t *image; /* borrowed */
    uint64_t file_bytes;
    char *path;
    char label[SL_GGUF_SHOWN_BYTES + 8]; /* the path as messages show it */
    uint32_t version;
    uint64_t n_values, n_tensors; /* as the header says; the scan has seen them all */
    uint64_t alignment, data_off; /* tensor data begin at data_off */
    uint8_t *meta;                /* the file from its start to the tensor directory's end */
    size_t meta_bytes;
    sl_gguf_value *values;
    sl_gguf_tensor *tensors;
    sl_gguf_index value_index, tensor_index;
    sl_gguf **parts; /* [n_parts] the other files of a split model, in order; tensors then holds those of all */
    size_t n_parts;
};

/* gguf_scan.c: sets version, n_values, n_tensors, meta_bytes. */
sl_status sl_gguf_scan(sl_gguf *gguf, sl_err *err) SL_CHECK;
/* gguf_parse.c: fills values and tensors from meta. */
sl_status sl_gguf_parse(sl_gguf *gguf, sl_err *err) SL_CHECK;

/* Bytes of the file, from wherever they come. */
sl_status sl_gguf_fetch(const sl_gguf *gguf, void *buf, size_t bytes, uint64_t off, sl_err *err) SL_CHECK;
/* SL_DAMAGED with "PATH: " in front. */
sl_status sl_gguf_damaged(const sl_gguf *gguf, sl_err *err, const char *fmt, ...) SL_PRINTF(3, 4);
/* A name as messages show it: cut to size, control bytes and quotes replaced. Returns buf. */
const char *sl_gguf_show(char buf[SL_GGUF_NAME_BYTES], const void *name, size_t bytes);
/* Bytes of a scalar; 0 for strings, arrays and unknown numbers. */
size_t sl_gguf_type_bytes(uint32_t type);

/* gguf_split.c: opens the other files of a split model and takes their tensors in; nothing for a whole one. Refuses a
 * part that is not the first, that is missing, or that belongs to another model. */
sl_status sl_gguf_split_open(sl_gguf *gguf, sl_err *err) SL_CHECK;
/* gguf.c: one file, whatever it says of others. */
sl_status sl_gguf_open_one(const char *path, sl_budget *budget, sl_gguf **out, sl_err *err) SL_CHECK;

sl_status sl_gguf_index_create(const sl_gguf *gguf, uint64_t n_items, sl_gguf_index *index, sl_err *err) SL_CHECK;
/* Enters item i; false: its name is taken. */
bool sl_gguf_index_add(sl_gguf_index *index, const void *items, size_t item_bytes, size_t i);
/* Item of a table whose items begin with their name; the index's owner keeps it in step. */
const void *sl_gguf_index_find(const sl_gguf_index *index, const void *items, size_t item_bytes, const char *name,
                               size_t name_bytes);

#endif
