#include "tok/special.h"

#include <stdlib.h>
#include <string.h>

bool sl_special_is_hidden(const sl_vocab *vocab, uint32_t id)
{
    return vocab->kinds[id] == SL_TOK_KIND_CONTROL || vocab->kinds[id] == SL_TOK_KIND_UNKNOWN;
}

static int special_compare(const void *a, const void *b)
{
    const sl_tok_text *x = &((const sl_special *)a)->text, *y = &((const sl_special *)b)->text;
    int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
    return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

static bool is_matchable(const sl_vocab *vocab, uint32_t id)
{
    sl_tok_text text = sl_vocab_bytes(vocab, id);
    bool is_special = sl_special_is_hidden(vocab, id) || vocab->kinds[id] == SL_TOK_KIND_USER_DEFINED;
    return is_special && text.size > 0 && sl_utf8_check(text.data, text.size) == text.size;
}

sl_status sl_specials_init(sl_specials *specials, const sl_vocab *vocab, sl_budget *budget, sl_err *err)
{
    specials->budget = budget;
    size_t n = 0;
    for (uint32_t id = 0; id < vocab->n_tokens; id++)
        n += is_matchable(vocab, id);
    sl_status status = sl_mem_new(budget, n, sizeof *specials->items, "special tokens", &specials->items, err);
    if (status != SL_OK)
        return status;
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        if (!is_matchable(vocab, id))
            continue;
        sl_tok_text text = sl_vocab_bytes(vocab, id);
        specials->starts[(uint8_t)text.data[0]] = true;
        specials->items[specials->n++] = (sl_special){text, (int32_t)id, sl_special_is_hidden(vocab, id)};
    }
    qsort(specials->items, n, sizeof *specials->items, special_compare);
    return SL_OK;
}

void sl_specials_deinit(sl_specials *specials)
{
    sl_mem_free(specials->budget, specials->items);
    memset(specials, 0, sizeof *specials);
}

/* First of items[low..high), which agree in their first `depth` bytes, whose next byte is at least `byte`. */
static size_t special_bound(const sl_specials *specials, size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)specials->items[middle].text.data[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest special at the start of text; NULL: none. Narrows the sorted list byte by byte. */
static const sl_special *special_match(const sl_specials *specials, sl_tok_text text, unsigned which)
{
    const sl_special *longest = NULL;
    size_t low = 0, high = specials->n;
    for (size_t depth = 0; low < high; depth++) {
        /* those that end here stand first: one, or two of different kinds */
        while (low < high && specials->items[low].text.size == depth) {
            const sl_special *item = &specials->items[low++];
            if (which & (item->is_hidden ? SL_SPECIAL_HIDDEN : SL_SPECIAL_USER))
                longest = item;
        }
        if (depth == text.size)
            break;
        unsigned byte = (uint8_t)text.data[depth];
        low = special_bound(specials, low, high, depth, byte);
        high = special_bound(specials, low, high, depth, byte + 1);
    }
    return longest;
}

size_t sl_special_find(const sl_specials *specials, sl_tok_text text, size_t from, unsigned which,
                       const sl_special **out)
{
    *out = NULL;
    for (size_t at = from; at < text.size; at++) {
        if (!specials->starts[(uint8_t)text.data[at]])
            continue;
        *out = special_match(specials, (sl_tok_text){text.data + at, text.size - at}, which);
        if (*out)
            return at;
    }
    return text.size;
}
