/* N-gram drafter: what followed the longest earlier occurrence of the text's end.
 *
 * Owns: for each token the previous place with the same last two tokens (hash chains, as in LZ77 compressors); grows
 * with the history, 4 bytes a token and as much again for the heads. Of the most recent places on a chain the longest
 * match wins, the most recent among equals. Thread rule: one thread at a time. */
#ifndef SL_NGRAM_H
#define SL_NGRAM_H

#include "base/mem.h"
#include "decode/drafter.h"

typedef struct sl_ngram sl_ngram;

sl_status sl_ngram_create(size_t max_tokens, sl_budget *budget, sl_ngram **out, sl_err *err) SL_CHECK;
void sl_ngram_destroy(sl_ngram *ngram);
uint64_t sl_ngram_bytes(size_t max_tokens);
/* The history will have only its first n tokens of now, then others: the index is as if it had never had more. Called
 * while history [as proposed from] still holds what is forgotten. */
void sl_ngram_rewind(sl_ngram *ngram, const int32_t *history, size_t n);
sl_drafter sl_ngram_drafter(sl_ngram *ngram); /* borrowed until destroy */

#endif
