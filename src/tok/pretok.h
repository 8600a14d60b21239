/* Splitting text into the pieces that byte-pair encoding works on.
 *
 * Owns: the compiled patterns. Refuses: unknown pattern names. Each name is a list of expressions; the first cuts the
 * text, each further one cuts every piece of the one before, apart from its neighbours. What an expression does not
 * match, between two matches, is a piece too.
 * Source of the lists: llama.cpp, src/llama-vocab.cpp, llm_tokenizer_bpe. Thread rule: one thread at a time. */
#ifndef SL_PRETOK_H
#define SL_PRETOK_H

#include "tok/tok.h"

typedef struct sl_pretok sl_pretok;

/* SL_REFUSED: no such pattern. */
sl_status sl_pretok_create(sl_tok_text name, sl_budget *budget, sl_pretok **out, sl_err *err) SL_CHECK;
void sl_pretok_destroy(sl_pretok *pretok);

/* Calls `fn` for each piece, in order; stops at the first error, which is returned. text: UTF-8. */
typedef sl_status (*sl_pretok_fn)(void *arg, sl_tok_text piece, sl_err *err);
sl_status sl_pretok_split(sl_pretok *pretok, sl_tok_text text, sl_pretok_fn fn, void *arg, sl_err *err) SL_CHECK;

/* Rules that go by the pattern's name. Is a piece that is a token itself that token, whatever the merges say? */
bool sl_pretok_ignores_merges(sl_tok_text name);
/* Do texts begin with BOS where the file does not say? */
bool sl_pretok_default_bos(sl_tok_text name);

#endif
