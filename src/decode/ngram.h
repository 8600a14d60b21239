/* N-gram drafter: what followed the places where the end of the text occurred before.
 *
 * A chain is what followed the longest match, the latest of equals; where it runs into the text's end, the text
 * repeats itself, and so does the proposal. A tree takes the 64 longest matches: each has its continuation, and they
 * part where these differ; a match weighs half of one that is a token longer. A node's p is how often matches of that
 * length came true lately.
 *
 * A text that copies another with changes has short matches behind each change. There the place that the copy had
 * reached counts too, as though other tokens had been replaced one for one: a match of 8 tokens or more, up to 8 tokens
 * ago, makes one of 6 tokens, less 2 for each further token that differs since.
 *
 * Owns: the index (suffix.h), what came true. Thread rule: one thread at a time. */
#ifndef SL_NGRAM_H
#define SL_NGRAM_H

#include "base/mem.h"
#include "decode/drafter.h"

typedef struct sl_ngram sl_ngram;

/* SL_REFUSED for more than INT32_MAX tokens. */
sl_status sl_ngram_create(size_t max_tokens, sl_budget *budget, sl_ngram **out, sl_err *err) SL_CHECK;
void sl_ngram_destroy(sl_ngram *ngram);
uint64_t sl_ngram_bytes(size_t max_tokens); /* for the plan */
/* Its `settled` indexes what is new, at once, and forgets what was cut: proposals are then those of a drafter that
 * never knew of it. */
sl_drafter sl_ngram_drafter(sl_ngram *ngram); /* borrowed until destroy */

#endif
