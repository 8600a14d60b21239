/* How often each token stands among the last ones of a text, for the sampler's penalties.
 *
 * Owns: a count per token of the vocabulary, and a copy of the last SL_RECENT_TAIL tokens that it has counted, by which
 * it sees what has changed. Thread rule: one thread at a time. No allocation after creation. */
#ifndef SL_RECENT_H
#define SL_RECENT_H

#include "base/mem.h"

/* More than a burst can draft. */
enum { SL_RECENT_TAIL = 512 };

typedef struct sl_recent sl_recent;

/* last_n: tokens of the window; SIZE_MAX: all. */
sl_status sl_recent_create(size_t last_n, size_t n_vocab, sl_budget *budget, sl_recent **out, sl_err *err) SL_CHECK;
void sl_recent_destroy(sl_recent *recent);
uint64_t sl_recent_bytes(size_t n_vocab);

/* Counts [n_vocab] over the last last_n of history[0..n), ids of the vocabulary; borrowed until the next call.
 *
 * It follows one text: from call to call that may grow, lose tokens, and have others among the last SL_RECENT_TAIL that
 * it had. What lies before those is taken to be the same, unless the first of them is another or the text has become
 * shorter than that: then all is counted anew. Else the cost is that of what has changed, and SL_RECENT_TAIL
 * comparisons. */
const uint32_t *sl_recent_count(sl_recent *recent, const int32_t *history, size_t n);

#endif
