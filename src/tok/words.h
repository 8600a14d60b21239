/* The words met last and their tokens: text repeats itself, and merging takes far longer than looking a word up.
 *
 * Owns: one table of fixed size, a word to a place. Refuses: long words, words of many tokens (they are not kept).
 * Thread rule: one thread at a time. */
#ifndef SL_WORDS_H
#define SL_WORDS_H

#include "tok/tok.h"

typedef struct sl_word sl_word;

typedef struct sl_words {
    sl_budget *budget;
    sl_word *slots; /* [SL_WORDS] */
} sl_words;

/* `words` is zeroed by the caller; after an error too it is ended by sl_words_deinit. */
sl_status sl_words_init(sl_words *words, sl_budget *budget, sl_err *err) SL_CHECK;
void sl_words_deinit(sl_words *words);

/* The word's ids, borrowed until the next put; NULL: not kept. */
const int32_t *sl_words_find(const sl_words *words, sl_tok_text word, size_t *n);
void sl_words_put(sl_words *words, sl_tok_text word, const int32_t *ids, size_t n);

#endif
