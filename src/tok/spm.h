/* SentencePiece's BPE of one run of text: by the pieces' scores.
 *
 * Owns: the pieces' order, the bytes' tokens, what may stand side by side in a piece. Refuses: scores that are missing
 * or no numbers, a vocabulary without the 256 bytes.
 * Rule: a run starts as its characters; then, again and again, the neighbours that make the piece of the highest score,
 * the leftmost first, become one. A piece marked as unused may come about on the way, but is taken apart again at the
 * end, as it was put together. What is no piece becomes the tokens of its bytes.
 * Source: https://github.com/google/sentencepiece, src/bpe_model.cc, and byte_fallback in
 * src/sentencepiece_processor.cc. Texts are those of vocab.h: a space is a space, not U+2581.
 * Thread rule: encoding is read-only and may run on any thread, with a list per thread. */
#ifndef SL_SPM_H
#define SL_SPM_H

#include "tok/vocab.h"

typedef struct sl_spm {
    sl_budget *budget;
    const sl_vocab *vocab;
    uint32_t *ranks;       /* [n_tokens] place of a piece's score among all, highest first; equal ones have one */
    size_t longest_bytes;  /* of a piece */
    int32_t byte_ids[256];
    uint64_t *pairs;       /* a bit for each hash of two characters that stand side by side in some piece */
} sl_spm;

/* `spm` is zeroed by the caller; after an error too it is ended by sl_spm_deinit. `vocab` must outlive it. Takes the
 * scores of the source. SL_DAMAGED: too few, one that is no finite number, a byte without a token or with two. */
sl_status sl_spm_init(sl_spm *spm, const sl_vocab *vocab, const sl_tok_source *source, sl_budget *budget,
                      sl_err *err) SL_CHECK;
void sl_spm_deinit(sl_spm *spm);

/* Bytes of the first run of text (UTF-8): it ends where no piece could go on, so that each run may be encoded apart. */
size_t sl_spm_run(const sl_spm *spm, sl_tok_text text);

/* Could a piece go on from the character at `left` to the one at `right`? False: runs end between the two. */
bool sl_spm_may_join(const sl_spm *spm, const char *left, const char *right);

/* Appends the ids of a run of n bytes: O(n log n) time and, above 64 characters, 20 n bytes of memory for the time of
 * the call. */
sl_status sl_spm_encode(const sl_spm *spm, sl_tok_text run, sl_ids *out, sl_err *err) SL_CHECK;

#endif
