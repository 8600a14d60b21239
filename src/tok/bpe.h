/* Byte-pair encoding of one piece of text.
 *
 * Owns: the merges and their hash table. Refuses: merges of tokens that the vocabulary lacks.
 * Rule: a piece starts as one symbol per byte; then, again and again, the neighbours whose merge has the lowest rank
 * (its place in the list), the leftmost first, become one symbol. Bytes without a token of their own are dropped before
 * merging, so that their neighbours may merge: this is what the models' own tokenizers do (Hugging Face tokenizers,
 * models/bpe/model.rs, merge_word, with neither unk_token nor byte_fallback). A pair listed twice has its last rank,
 * as there. Thread rule: encoding is read-only and may run on any thread, with a list per thread. */
#ifndef SL_BPE_H
#define SL_BPE_H

#include "tok/vocab.h"

typedef struct sl_merge {
    uint32_t left, right, result; /* token ids */
} sl_merge;

typedef struct sl_bpe {
    sl_budget *budget;
    uint32_t n_merges;
    sl_merge *merges; /* [n_merges], by rank */
    uint32_t *slots;  /* [slot_mask + 1] rank + 1; 0: free */
    uint32_t slot_mask;
    int32_t byte_ids[256]; /* -1: the vocabulary lacks the byte */
} sl_bpe;

/* `bpe` is zeroed by the caller; after an error too it is ended by sl_bpe_deinit. Takes the merges of the source.
 * SL_DAMAGED: fewer merges than announced, or one whose parts or result are no tokens. */
sl_status sl_bpe_init(sl_bpe *bpe, const sl_vocab *vocab, const sl_tok_source *source, sl_budget *budget,
                      sl_err *err) SL_CHECK;
void sl_bpe_deinit(sl_bpe *bpe);

/* Appends the ids of a piece; *n_dropped += bytes without a token. A piece of n bytes takes O(n log n) time and, above
 * 64 bytes, 24 n bytes of memory for the time of the call. */
sl_status sl_bpe_encode(const sl_bpe *bpe, sl_tok_text piece, sl_ids *out, uint64_t *n_dropped, sl_err *err) SL_CHECK;

#endif
