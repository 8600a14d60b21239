/* The vocabulary: what bytes each token stands for, and which token stands for given bytes.
 *
 * Owns: the tokens' bytes, kinds and a hash table of ids. Refuses: missing or repeated tokens, unknown kinds.
 * Byte-level spellings ("\u0120the" for " the") are kept as the bytes they mean. A token that is spelt out as it is -
 * a control or user-defined one, or one with a character that spells no byte - is "literal"; literal tokens and
 * byte-level ones are looked up apart, because both can come to the same bytes.
 * Source of the spelling: GPT-2's bytes_to_unicode (https://github.com/openai/gpt-2, src/encoder.py): bytes 33..126,
 * 161..172 and 174..255 are the characters of those numbers, the other 68 bytes, in order, U+0100..U+0143.
 * SentencePiece's pieces spell a space U+2581 and a byte <0xHH>: both are kept as what they mean. A byte's token is
 * looked up by no text: it stands for what no piece spells.
 * Source: https://github.com/google/sentencepiece, README (whitespace is treated as a basic symbol), byte_fallback.
 * Thread rule: reading from any thread. */
#ifndef SL_VOCAB_H
#define SL_VOCAB_H

#include "tok/tok.h"

typedef struct sl_vocab {
    sl_budget *budget;
    uint32_t n_tokens;
    char *bytes;         /* of all tokens, back to back */
    uint32_t *offs;      /* [n_tokens + 1] into bytes */
    uint8_t *kinds;      /* [n_tokens] sl_tok_kind */
    uint8_t *is_literal; /* [n_tokens] */
    uint32_t *slots;     /* [slot_mask + 1] id + 1; 0: free */
    uint32_t slot_mask;
    bool is_pieces; /* SentencePiece's; else byte-level spellings */
} sl_vocab;

/* `vocab` is zeroed by the caller; after an error too it is ended by sl_vocab_deinit. Takes the kinds and tokens of
 * the source. SL_DAMAGED: fewer items than announced, unknown kind, repeated token, more than 2^30 - 1 tokens or 2^32
 * bytes. */
sl_status sl_vocab_init(sl_vocab *vocab, const sl_tok_source *source, sl_budget *budget, sl_err *err) SL_CHECK;
void sl_vocab_deinit(sl_vocab *vocab);

/* Borrowed until deinit. id in [0, n_tokens). */
sl_tok_text sl_vocab_bytes(const sl_vocab *vocab, uint32_t id);
/* -1: none. */
int32_t sl_vocab_find(const sl_vocab *vocab, const char *bytes, size_t size, bool is_literal);
/* The same by spelling, as the model file writes it; byte-level tokens before literal ones. -1: none, or longer than
 * SL_VOCAB_SPELLING_MAX bytes. */
int32_t sl_vocab_find_spelling(const sl_vocab *vocab, const char *spelling, size_t size);
#define SL_VOCAB_SPELLING_MAX 4096u

#endif
