/* Any bytes as a model file: opened, everything in it walked and read, closed. No byte is asked for that the file
 * does not hold, and memory stays in proportion to the input. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "gguf/gguf.h"

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

static void walk_tensors(const sl_gguf *gguf, size_t file_bytes)
{
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
        if (tensor->bytes > 0)
            require(sl_gguf_read(gguf, tensor, tensor->bytes - 1, 1, &byte, &err) == SL_OK);
        require(sl_gguf_read(gguf, tensor, tensor->bytes, 1, &byte, &err) == SL_FAILED);
    }
    require(total <= file_bytes);
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
        walk_tensors(gguf, size);
        sl_gguf_close(gguf);
    }
    require(budget.used_bytes == 0);
    sl_budget_deinit(&budget);
    return 0;
}
