/* Tokens that are looked for in the text itself, before any splitting: control, unknown and user-defined ones.
 *
 * Owns: the list of them. The longest at a place counts, the leftmost place first. A spelling that is not UTF-8 cannot
 * stand in a text that is; matched byte by byte it would cut characters: it is not looked for.
 * Thread rule: reading from any thread. */
#ifndef SL_SPECIAL_H
#define SL_SPECIAL_H

#include "tok/vocab.h"

typedef struct sl_special {
    sl_tok_text text; /* borrowed from the vocabulary */
    int32_t id;
    bool is_hidden; /* control or unknown: never part of a text that people read */
} sl_special;

typedef struct sl_specials {
    sl_budget *budget;
    sl_special *items; /* [n], by their bytes, so that those with a common beginning stand together */
    size_t n;
    bool starts[256]; /* does any begin with this byte? */
} sl_specials;

/* Which ones are looked for. */
enum { SL_SPECIAL_HIDDEN = 1, SL_SPECIAL_USER = 2 };

/* `specials` is zeroed by the caller; after an error too it is ended by sl_specials_deinit. */
sl_status sl_specials_init(sl_specials *specials, const sl_vocab *vocab, sl_budget *budget, sl_err *err) SL_CHECK;
void sl_specials_deinit(sl_specials *specials);

/* Offset of the first one at or after `from`, and which; text.size and NULL: none. */
size_t sl_special_find(const sl_specials *specials, sl_tok_text text, size_t from, unsigned which,
                       const sl_special **out);

/* Control or unknown. */
bool sl_special_is_hidden(const sl_vocab *vocab, uint32_t id);

#endif
