#include "tok/words.h"

#include <string.h>

#include "base/hash.h"

enum { N_WORDS = 8192, WORD_BYTES = 24, WORD_IDS = 8 };

struct sl_word {
    int32_t ids[WORD_IDS];
    uint8_t n_ids, size; /* size 0: free */
    char text[WORD_BYTES];
};

sl_status sl_words_init(sl_words *words, sl_budget *budget, sl_err *err)
{
    words->budget = budget;
    return sl_mem_new(budget, N_WORDS, sizeof *words->slots, "words met", &words->slots, err);
}

void sl_words_deinit(sl_words *words)
{
    sl_mem_free(words->budget, words->slots);
    memset(words, 0, sizeof *words);
}

static sl_word *slot_of(const sl_words *words, sl_tok_text word)
{
    return &words->slots[sl_hash(word.data, word.size) % N_WORDS];
}

const int32_t *sl_words_find(const sl_words *words, sl_tok_text word, size_t *n)
{
    if (word.size > WORD_BYTES || word.size == 0)
        return NULL;
    const sl_word *slot = slot_of(words, word);
    if (slot->size != word.size || memcmp(slot->text, word.data, word.size) != 0)
        return NULL;
    *n = slot->n_ids;
    return slot->ids;
}

void sl_words_put(sl_words *words, sl_tok_text word, const int32_t *ids, size_t n)
{
    if (word.size > WORD_BYTES || word.size == 0 || n > WORD_IDS)
        return;
    sl_word *slot = slot_of(words, word);
    slot->size = (uint8_t)word.size;
    slot->n_ids = (uint8_t)n;
    memcpy(slot->text, word.data, word.size);
    if (n > 0)
        memcpy(slot->ids, ids, n * sizeof *ids);
}
