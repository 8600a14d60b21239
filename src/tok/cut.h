/* Places where a text may be cut so that its parts, encoded apart, give the ids of the whole.
 *
 * Owns nothing. Two kinds of place are known to be safe with every split pattern of pretok.c, because no expression
 * matches across them and what each matches on either side does not depend on the other side: in front of a space
 * between two ASCII letters, and behind a line's end between a character that is no white space and one that is neither
 * white space nor a slash (which some patterns take along with the line's end). Pieces (spm.h) must not go on across
 * the place, and no special token may lie across it: a vocabulary that has one which could gives up that kind of place.
 * Thread rule: reading from any thread. */
#ifndef SL_CUT_H
#define SL_CUT_H

#include "tok/special.h"
#include "tok/spm.h"

typedef struct sl_cuts {
    const sl_spm *spm; /* NULL: byte-level */
    bool at_words, at_lines;
} sl_cuts;

/* adds_space: the tokenizer puts a space of its own in front of a text that stands behind a control token. */
void sl_cuts_init(sl_cuts *cuts, const sl_specials *specials, const sl_spm *spm, bool adds_space);

/* The last such place in a text of which more may come, no earlier than `from`; 0: none. */
size_t sl_cut_last(const sl_cuts *cuts, sl_tok_text text, size_t from);

#endif
