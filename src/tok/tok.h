/* Tokenizers: text to ids and back. Byte-level BPE and SentencePiece's BPE, as the model file describes them.
 *
 * Owns: vocabulary, merges, scores, compiled split patterns, the words met last. Refuses: an unknown tokenizer model or
 * split pattern, by name; text that is not UTF-8, naming the byte offset. The input is plain data (sl_tok_source), so
 * that this layer knows nothing of model files. Thread rule: one thread at a time per tokenizer (encode reuses
 * scratch). */
#ifndef SL_TOK_H
#define SL_TOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

typedef struct sl_tok sl_tok;

typedef struct sl_tok_text {
    const char *data;
    size_t size;
} sl_tok_text;

typedef enum sl_tok_kind { /* GGUF's tokenizer.ggml.token_type */
    SL_TOK_KIND_NORMAL = 1, SL_TOK_KIND_UNKNOWN, SL_TOK_KIND_CONTROL, SL_TOK_KIND_USER_DEFINED, SL_TOK_KIND_UNUSED,
    SL_TOK_KIND_BYTE
} sl_tok_kind;

/* Borrowed during sl_tok_create only. next_* give the items in order, each walk on its own; false = no more. */
typedef struct sl_tok_source {
    sl_tok_text model;   /* tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece's BPE) */
    sl_tok_text pattern; /* tokenizer.ggml.pre: "smollm", "gpt-2", "default" ...; of gpt2 alone */
    size_t n_tokens, n_merges;
    bool (*next_token)(void *arg, sl_tok_text *out);
    bool (*next_merge)(void *arg, sl_tok_text *out); /* "left right"; of gpt2 alone */
    bool (*next_kind)(void *arg, int *out);          /* NULL: all normal (llama: refused) */
    bool (*next_score)(void *arg, double *out);      /* of llama alone, which merges the higher ones first */
    void *arg;
    int32_t bos_id, eos_id, eot_id; /* -1: none */
    bool add_bos, add_eos;
    bool add_space_prefix; /* of llama alone: a text begins with a space that is not its own */
} sl_tok_source;

/* Is this tokenizer.ggml.model one of SentencePiece's? */
bool sl_tok_is_pieces(sl_tok_text model);
/* What a file that does not say so means: does the text begin with BOS? */
bool sl_tok_default_bos(sl_tok_text model, sl_tok_text pattern);

sl_status sl_tok_create(const sl_tok_source *source, sl_budget *budget, sl_tok **out, sl_err *err) SL_CHECK;
void sl_tok_destroy(sl_tok *tok);

/* A growing list of ids; owned by caller: start from {0}, end with sl_ids_deinit. */
typedef struct sl_ids {
    int32_t *ids;
    size_t n, cap;
} sl_ids;
void sl_ids_deinit(sl_ids *list, sl_budget *budget);
sl_status sl_ids_push(sl_ids *list, int32_t id, sl_budget *budget, sl_err *err) SL_CHECK;

/* Appends the ids of text. special: control and user-defined tokens spelt out in the text become themselves (longest
 * match first, as the reference); else they are plain text (user-defined ones always match, as the reference). No
 * BOS or EOS is added. *n_dropped (may be NULL) += bytes that the vocabulary cannot spell and that were dropped.
 * SL_FAILED: not UTF-8. On error `out` has its old length. */
sl_status sl_tok_encode(sl_tok *tok, const char *text, size_t size, bool special, sl_ids *out, uint64_t *n_dropped,
                        sl_err *err) SL_CHECK;
/* The same for a text that goes on behind another one, not behind a control token: no space of the tokenizer's own is
 * put in front (sl_tok_source.add_space_prefix). Behind control tokens in the text a space that stands there is taken
 * for that one, as by Mistral's own tokenizer and Hugging Face's newer ones. */
sl_status sl_tok_encode_more(sl_tok *tok, const char *text, size_t size, bool special, sl_ids *out,
                             uint64_t *n_dropped, sl_err *err) SL_CHECK;

/* A text that comes in pieces, cut anywhere: the ids are those of the whole. What is held back is what may still change
 * with what follows: a word or a line in most texts (tok/cut.h says where a text may be cut), all of it at worst.
 * Owned by caller: start, put, end, and deinit whatever they returned. */
typedef struct sl_tok_feed {
    sl_tok *tok;
    bool special, has_lead;
    uint64_t n_before; /* bytes of the text in front of those that are held */
    char *held;
    size_t n_held, cap, n_searched;
    uint64_t n_dropped; /* as sl_tok_encode counts them */
} sl_tok_feed;

/* goes_on: the text goes on behind another one (sl_tok_encode_more). */
void sl_tok_feed_start(sl_tok_feed *feed, sl_tok *tok, bool goes_on, bool special);
/* Appends the ids that are known by now. SL_FAILED: not UTF-8; the offset counts from the text's beginning. After an
 * error the feed is of no more use, and out holds what was certain before it. */
sl_status sl_tok_feed_put(sl_tok_feed *feed, const char *text, size_t size, sl_ids *out, sl_err *err) SL_CHECK;
/* The text ends here: appends the rest. */
sl_status sl_tok_feed_end(sl_tok_feed *feed, sl_ids *out, sl_err *err) SL_CHECK;
void sl_tok_feed_deinit(sl_tok_feed *feed);

size_t sl_tok_n_tokens(const sl_tok *tok);
/* The bytes a token stands for (control tokens: none unless `special`). Borrowed until destroy. */
sl_tok_text sl_tok_bytes(const sl_tok *tok, int32_t id, bool special);
/* The space in front of a token that begins a text - behind nothing or a control token - is the tokenizer's own. */
bool sl_tok_adds_space(const sl_tok *tok);
/* sl_tok_bytes of a token behind another (-1: none), without a space that is the tokenizer's own. */
sl_tok_text sl_tok_bytes_behind(const sl_tok *tok, int32_t before, int32_t id, bool special);
bool sl_tok_is_control(const sl_tok *tok, int32_t id);
int32_t sl_tok_find(const sl_tok *tok, const char *text); /* id of a token by its spelling; -1 */
bool sl_tok_is_end(const sl_tok *tok, int32_t id);        /* generation stops at it: EOS, EOT, <|im_end|> ... */
int32_t sl_tok_bos(const sl_tok *tok);                    /* -1: none or not to be added */
int32_t sl_tok_bos_id(const sl_tok *tok);                 /* -1: none */
int32_t sl_tok_eos(const sl_tok *tok);

/* Streaming: holds back the bytes of an unfinished UTF-8 character. */
typedef struct sl_utf8_stream {
    char held[4];
    size_t n_held;
} sl_utf8_stream;
/* Feeds size bytes; calls emit with whole characters (invalid bytes become U+FFFD). */
void sl_utf8_stream_feed(sl_utf8_stream *stream, const char *data, size_t size,
                         void (*emit)(void *arg, const char *text, size_t size), void *arg);
/* Ends the text: what is held and incomplete comes out as one U+FFFD. */
void sl_utf8_stream_end(sl_utf8_stream *stream, void (*emit)(void *arg, const char *text, size_t size), void *arg);

/* Offset of the first byte that is not UTF-8 (RFC 3629), or size when all is well. */
size_t sl_utf8_check(const char *text, size_t size);

#endif
