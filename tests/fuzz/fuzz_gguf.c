/* Any bytes as a model file: opened, everything in it walked and read, closed. No byte is asked for that the file
 * does not hold, and memory stays in proportion to the input. Then once more with some bytes changed between the two
 * walks of the parser, as by another program that writes to the file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "fuzz/fuzz.h"
#include "gguf/gguf_parse.h"

static void require(bool truth)
{
    if (!truth)
        abort();
}

static void walk_values(const sl_gguf *gguf)
{
    for (size_t i = 0; i < sl_gguf_n_values(gguf); i++) {
        const sl_gguf_value *value = sl_gguf_value_at(gguf, i);
        sl_gguf_iter iter = sl_gguf_iter_start(value);
        sl_gguf_string text;
        double number;
        uint64_t n = 0;
        volatile char last = 0;
        while (sl_gguf_iter_string(&iter, &text)) {
            last = text.size > 0 ? text.data[text.size - 1] : 0;
            n++;
        }
        while (sl_gguf_iter_number(&iter, &number))
            n++;
        (void)last;
        require(n == value->n_items);
        char key[128];
        if (value->key.size >= sizeof key)
            continue;
        memcpy(key, value->key.data, value->key.size);
        key[value->key.size] = '\0';
        sl_err err;
        uint64_t integer;
        double real;
        bool yes;
        int kinds = sl_gguf_get_uint(gguf, key, 0, UINT64_MAX, &integer, &err) == SL_OK;
        kinds += sl_gguf_get_float(gguf, key, &real, &err) == SL_OK;
        kinds += sl_gguf_get_bool(gguf, key, &yes, &err) == SL_OK;
        kinds += sl_gguf_get_string(gguf, key, &text, &err) == SL_OK;
        require(kinds <= 1 && sl_gguf_find(gguf, key) == value);
    }
}

static void walk_tensors(const sl_gguf *gguf, bool has_data)
{
    uint64_t file_bytes = sl_gguf_file_bytes(gguf);
    uint64_t total = 0;
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++) {
        const sl_gguf_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        char byte;
        sl_err err;
        require(tensor->file_off <= file_bytes && tensor->bytes <= file_bytes - tensor->file_off);
        require(tensor->n_dims >= 1 && tensor->n_dims <= 4);
        for (size_t d = 0; d < 4; d++)
            require(tensor->dims[d] >= 1);
        total += tensor->bytes;
        if (has_data && tensor->bytes > 0)
            require(sl_gguf_read(gguf, tensor, tensor->bytes - 1, 1, &byte, &err) == SL_OK);
        require(sl_gguf_read(gguf, tensor, tensor->bytes, 1, &byte, &err) == SL_FAILED);
    }
    require(total <= file_bytes);
}

/* The second walk over other bytes than the first one saw; where they change follows from the input. */
static void parse_changed(const sl_gguf *opened, sl_budget *budget)
{
    sl_gguf gguf = {.budget = budget,
                    .file_bytes = opened->file_bytes,
                    .label = "changed",
                    .n_values = opened->n_values,
                    .n_tensors = opened->n_tensors,
                    .meta_bytes = opened->meta_bytes};
    sl_err err = {SL_OK, ""};
    uint64_t random = sl_hash(opened->meta, opened->meta_bytes);
    require(sl_mem_new(budget, gguf.meta_bytes, 1, "copy", &gguf.meta, &err) == SL_OK);
    memcpy(gguf.meta, opened->meta, gguf.meta_bytes);
    for (size_t i = 0; i <= random % 4; i++)
        gguf.meta[(random >> (8 * i)) % gguf.meta_bytes] ^= (uint8_t)(1u << (random >> (60 - 3 * i) & 7));
    sl_status status = sl_gguf_parse(&gguf, &err);
    require(status == SL_OK || ((status == SL_DAMAGED || status == SL_FAILED) && err.text[0] != '\0'));
    if (status == SL_OK) {
        walk_values(&gguf);
        walk_tensors(&gguf, false);
    }
    sl_mem_free(budget, gguf.value_index.slots);
    sl_mem_free(budget, gguf.tensor_index.slots);
    sl_mem_free(budget, gguf.values);
    sl_mem_free(budget, gguf.tensors);
    sl_mem_free(budget, gguf.meta);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_budget budget;
    sl_gguf *gguf = NULL;
    sl_err err = {SL_OK, ""};
    sl_budget_init(&budget, UINT64_MAX);
    sl_status status = sl_gguf_open_memory(data, size, &budget, &gguf, &err);
    require((status == SL_OK) == (gguf != NULL));
    require(status == SL_OK || (status == SL_DAMAGED && err.text[0] != '\0' && !strchr(err.text, '\n')));
    require(budget.peak_bytes <= 70000 + 16 * (uint64_t)size);
    if (gguf) {
        walk_values(gguf);
        walk_tensors(gguf, true);
        parse_changed(gguf, &budget);
        sl_gguf_close(gguf);
    }
    require(budget.used_bytes == 0);
    sl_budget_deinit(&budget);
    return 0;
}
