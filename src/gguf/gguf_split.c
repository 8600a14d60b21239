/* Split models: one GGUF in several files. The first holds the metadata, each a directory of its own tensors.
 * Source of the keys and of the names (NAME-00001-of-00003.gguf): llama.cpp, tools/gguf-split, llama_split_path. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "gguf/gguf_parse.h"

enum { MOST_PARTS = 1024, PATH_BYTES = 4096 };

/* Number and count of one file; 0 and 1 where it says nothing. */
static sl_status read_split(const sl_gguf *gguf, uint64_t *number, uint64_t *count, sl_err *err)
{
    *number = 0;
    *count = 1;
    if (!sl_gguf_find(gguf, "split.count"))
        return SL_OK;
    sl_status status = sl_gguf_get_uint(gguf, "split.count", 0, MOST_PARTS, count, err);
    if (status != SL_OK || *count <= 1)
        return status;
    return sl_gguf_get_uint(gguf, "split.no", 0, *count - 1, number, err);
}

/* The path of part `number` (from 0) of those that the first one's path begins; false: that is not named so. */
static bool part_path(const char *first, uint64_t number, uint64_t count, char out[PATH_BYTES])
{
    char end[64];
    int n = snprintf(end, sizeof end, "-00001-of-%05" PRIu64 ".gguf", count);
    size_t size = strlen(first);
    if (n < 0 || size < (size_t)n || size >= PATH_BYTES - 64 || strcmp(first + size - (size_t)n, end) != 0)
        return false;
    snprintf(out, PATH_BYTES, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)(size - (size_t)n), first, number + 1,
             count);
    return true;
}

static sl_status open_part(sl_gguf *gguf, uint64_t number, uint64_t count, sl_err *err)
{
    char path[PATH_BYTES];
    if (!part_path(gguf->path, number, count, path))
        return sl_gguf_damaged(gguf, err,
                               "the first of %" PRIu64 " files of a split model; its name ends with "
                               "-00001-of-%05" PRIu64 ".gguf, by which the others are found",
                               count, count);
    sl_gguf *part = NULL;
    uint64_t its_number = 0, its_count = 0;
    sl_status status = sl_gguf_open_one(path, gguf->budget, &part, err);
    if (status == SL_OK)
        gguf->parts[gguf->n_parts++] = part;
    if (status == SL_OK)
        status = read_split(part, &its_number, &its_count, err);
    if (status == SL_OK && (its_number != number || its_count != count))
        status = sl_gguf_damaged(part, err, "file %" PRIu64 " of %" PRIu64 " by its own account, %" PRIu64
                                 " of %" PRIu64 " expected", its_number + 1, its_count, number + 1, count);
    return status;
}

/* One directory of all files' tensors, in the order of the files. */
static sl_status join_tensors(sl_gguf *gguf, sl_err *err)
{
    uint64_t n = gguf->n_tensors;
    for (size_t i = 0; i < gguf->n_parts; i++)
        n += gguf->parts[i]->n_tensors;
    sl_gguf_tensor *all;
    sl_gguf_index index = {NULL, 0};
    sl_status status = sl_mem_new(gguf->budget, (size_t)n, sizeof *all, "tensor directory", &all, err);
    if (status != SL_OK)
        return status;
    status = sl_gguf_index_create(gguf, n, &index, err);
    size_t at = 0;
    for (size_t p = 0; p <= gguf->n_parts && status == SL_OK; p++) {
        const sl_gguf *file = p == 0 ? gguf : gguf->parts[p - 1];
        for (size_t i = 0; i < file->n_tensors && status == SL_OK; i++, at++) {
            char shown[SL_GGUF_NAME_BYTES];
            all[at] = file->tensors[i];
            all[at].part = (uint32_t)p;
            if (!sl_gguf_index_add(&index, all, sizeof *all, at))
                status = sl_gguf_damaged(file, err, "tensor '%s' is in an earlier file of the model, too",
                                         sl_gguf_show(shown, all[at].name.data, all[at].name.size));
        }
    }
    if (status != SL_OK) {
        sl_mem_free(gguf->budget, index.slots);
        sl_mem_free(gguf->budget, all);
        return status;
    }
    sl_mem_free(gguf->budget, gguf->tensor_index.slots);
    sl_mem_free(gguf->budget, gguf->tensors);
    gguf->tensor_index = index;
    gguf->tensors = all;
    gguf->n_tensors = n;
    return SL_OK;
}

sl_status sl_gguf_split_open(sl_gguf *gguf, sl_err *err)
{
    uint64_t number, count, n_tensors = 0;
    sl_status status = read_split(gguf, &number, &count, err);
    if (status != SL_OK || count <= 1)
        return status;
    if (number != 0)
        return sl_err_set(err, SL_USAGE, "%s: file %" PRIu64 " of %" PRIu64 " of a split model, give the first",
                          gguf->label, number + 1, count);
    status = sl_mem_new(gguf->budget, (size_t)count - 1, sizeof *gguf->parts, "files of a split model", &gguf->parts,
                        err);
    for (uint64_t i = 1; i < count && status == SL_OK; i++)
        status = open_part(gguf, i, count, err);
    if (status == SL_OK)
        status = join_tensors(gguf, err);
    if (status == SL_OK && sl_gguf_find(gguf, "split.tensors.count"))
        status = sl_gguf_get_uint(gguf, "split.tensors.count", 0, INT32_MAX, &n_tensors, err);
    if (status == SL_OK && n_tensors != 0 && n_tensors != gguf->n_tensors)
        status = sl_gguf_damaged(gguf, err, "%" PRIu64 " tensors in its %" PRIu64 " files, split.tensors.count says %"
                                 PRIu64, gguf->n_tensors, count, n_tensors);
    return status;
}
