/* Where the end of a text occurred before: an index of all its prefixes.
 *
 * Owns: every prefix of the text, named by its last token's index (an "end"), in the order of the reversed prefixes
 * (the last tokens are compared first), cut into blocks of up to 256; beside each end how many last tokens it shares
 * with the end before it in that order. Ends that share their last tokens stand together, so the longest match of the
 * text's end is one of its two neighbours, and all matches of that length stand around it. Two prefixes with the same
 * last token stand as those without it do, so a new one finds its place by comparing places, not texts: a token costs
 * the same, whatever the text repeats. Nothing here depends on how the text was cut and grown again.
 *
 * Bytes: 36 a token at most, 16 as a rule. The text itself is the caller's. Thread rule: one thread at a time. */
#ifndef SL_SUFFIX_H
#define SL_SUFFIX_H

#include <stdbool.h>

#include "base/mem.h"

typedef struct sl_suffix sl_suffix;

/* An earlier end, and how many last tokens it has in common with the text's. */
typedef struct sl_suffix_match {
    size_t end;
    size_t length;
} sl_suffix_match;

/* SL_REFUSED for more than INT32_MAX tokens. */
sl_status sl_suffix_create(size_t max_tokens, sl_budget *budget, sl_suffix **out, sl_err *err) SL_CHECK;
void sl_suffix_destroy(sl_suffix *suffix);
uint64_t sl_suffix_bytes(size_t max_tokens); /* for the plan */

size_t sl_suffix_n_tokens(const sl_suffix *suffix);
/* text [n], n <= max_tokens: its first tokens are those that are indexed; the others join. Borrowed for the call. */
void sl_suffix_extend(sl_suffix *suffix, const int32_t *text, size_t n);
/* Forgets all but the first n tokens. */
void sl_suffix_cut(sl_suffix *suffix, size_t n);

/* The longest match of the prefix that ends at `end`, with another one; the latest among equals. The text's own end is
 * the last. False: the prefix's last token stands nowhere else. */
bool sl_suffix_find(const sl_suffix *suffix, size_t end, sl_suffix_match *out);
/* The max longest matches of the text's end, in falling order of length; among equals those whose earlier tokens are
 * nearest in order. Returns how many there are. */
size_t sl_suffix_near(const sl_suffix *suffix, sl_suffix_match *out, size_t max);

#endif
