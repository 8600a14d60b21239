#include "tok/vocab.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "tok/quote.h"

/* The byte that a character of a byte-level spelling stands for; -1: none. */
static int byte_of_char(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c >= 256 && c <= 288) /* bytes 0..32 */
        return (int)(c - 256);
    if (c >= 289 && c <= 322) /* bytes 127..160 */
        return (int)(c - 289 + 127);
    return c == 323 ? 173 : -1;
}

/* Writes the bytes that a byte-level spelling stands for, at most `size`, to `out`; false when it is not one. */
static bool spelling_decode(const char *spelling, size_t size, char *out, size_t *out_size)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        uint32_t c = (uint8_t)spelling[i];
        if (c >= 0x80) { /* every character of a spelling is below U+0144: two bytes at most */
            if (c < 0xc2 || c > 0xc5 || i + 1 == size || ((uint8_t)spelling[i + 1] & 0xc0) != 0x80)
                return false;
            c = (c & 0x1f) << 6 | ((uint8_t)spelling[++i] & 0x3f);
        }
        int byte = byte_of_char(c);
        if (byte < 0)
            return false;
        out[n++] = (char)byte;
    }
    *out_size = n;
    return true;
}

/* A piece with its U+2581 as spaces. Returns the size, at most `size`. */
static size_t piece_decode(const char *spelling, size_t size, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < size;) {
        bool is_space = size - i >= 3 && memcmp(spelling + i, "\xe2\x96\x81", 3) == 0;
        out[n++] = is_space ? ' ' : spelling[i];
        i += is_space ? 3 : 1;
    }
    return n;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte that "<0xHH>" stands for; -1: it is not written so. */
static int byte_of_piece(sl_tok_text spelling)
{
    const char *s = spelling.data;
    if (spelling.size != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int high = hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

sl_tok_text sl_vocab_bytes(const sl_vocab *vocab, uint32_t id)
{
    return (sl_tok_text){vocab->bytes + vocab->offs[id], vocab->offs[id + 1] - vocab->offs[id]};
}

/* The slot of an equal token, or the free one where it would go. */
static uint32_t slot_find(const sl_vocab *vocab, const char *bytes, size_t size, bool is_literal)
{
    uint32_t slot = (uint32_t)sl_hash(bytes, size) & vocab->slot_mask;
    for (;; slot = (slot + 1) & vocab->slot_mask) {
        if (vocab->slots[slot] == 0)
            return slot;
        uint32_t id = vocab->slots[slot] - 1;
        sl_tok_text token = sl_vocab_bytes(vocab, id);
        if (token.size == size && vocab->is_literal[id] == is_literal && memcmp(token.data, bytes, size) == 0)
            return slot;
    }
}

int32_t sl_vocab_find(const sl_vocab *vocab, const char *bytes, size_t size, bool is_literal)
{
    if (size == 0)
        return -1;
    return (int32_t)vocab->slots[slot_find(vocab, bytes, size, is_literal)] - 1;
}

int32_t sl_vocab_find_spelling(const sl_vocab *vocab, const char *spelling, size_t size)
{
    char bytes[SL_VOCAB_SPELLING_MAX];
    size_t n_bytes;
    if (size > sizeof bytes)
        return -1;
    int32_t id = -1;
    if (vocab->is_pieces)
        id = sl_vocab_find(vocab, bytes, piece_decode(spelling, size, bytes), false);
    else if (spelling_decode(spelling, size, bytes, &n_bytes))
        id = sl_vocab_find(vocab, bytes, n_bytes, false);
    return id >= 0 ? id : sl_vocab_find(vocab, spelling, size, true);
}

static sl_status kinds_read(sl_vocab *vocab, const sl_tok_source *source, sl_err *err)
{
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        int kind = SL_TOK_KIND_NORMAL;
        if (source->next_kind && !source->next_kind(source->arg, &kind))
            return sl_err_set(err, SL_DAMAGED, "tokenizer: %" PRIu32 " token types for %" PRIu32 " tokens", id,
                              vocab->n_tokens);
        if (kind < SL_TOK_KIND_NORMAL || kind > SL_TOK_KIND_BYTE)
            return sl_err_set(err, SL_DAMAGED, "tokenizer: token %" PRIu32 " has type %d, known are 1 to 6", id, kind);
        vocab->kinds[id] = (uint8_t)kind;
    }
    return SL_OK;
}

static sl_status bytes_resize(sl_vocab *vocab, size_t used, size_t cap, sl_err *err)
{
    char *bytes;
    sl_status status = sl_mem_new(vocab->budget, cap, 1, "vocabulary", &bytes, err);
    if (status != SL_OK)
        return status;
    if (used > 0)
        memcpy(bytes, vocab->bytes, used);
    sl_mem_free(vocab->budget, vocab->bytes);
    vocab->bytes = bytes;
    return SL_OK;
}

static bool is_spelt_out(uint8_t kind)
{
    return kind == SL_TOK_KIND_CONTROL || kind == SL_TOK_KIND_USER_DEFINED || kind == SL_TOK_KIND_UNKNOWN;
}

/* A spelt-out token whose spelling is also the byte-level one of the same bytes (printable ASCII) is no literal:
 * merges may lead to it. */
static bool token_decode(const sl_vocab *vocab, uint8_t kind, sl_tok_text spelling, char *out, size_t *size)
{
    if (vocab->is_pieces && kind == SL_TOK_KIND_BYTE) {
        *out = (char)byte_of_piece(spelling);
        *size = 1;
        return true;
    }
    if (vocab->is_pieces && kind != SL_TOK_KIND_CONTROL && kind != SL_TOK_KIND_UNKNOWN) {
        *size = piece_decode(spelling.data, spelling.size, out);
        return kind == SL_TOK_KIND_USER_DEFINED;
    }
    bool is_bytes = !vocab->is_pieces && spelling_decode(spelling.data, spelling.size, out, size);
    if (is_bytes &&
        (!is_spelt_out(kind) || *size == 0 || (*size == spelling.size && memcmp(out, spelling.data, *size) == 0)))
        return false;
    memcpy(out, spelling.data, spelling.size);
    *size = spelling.size;
    return true;
}

static sl_status tokens_read(sl_vocab *vocab, const sl_tok_source *source, sl_err *err)
{
    size_t cap = 0, used = 0;
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        sl_tok_text spelling;
        if (!source->next_token(source->arg, &spelling))
            return sl_err_set(err, SL_DAMAGED, "tokenizer: %" PRIu32 " tokens found, %" PRIu32 " announced", id,
                              vocab->n_tokens);
        if (spelling.size > UINT32_MAX - used)
            return sl_err_set(err, SL_DAMAGED, "tokenizer: the first %" PRIu32 " tokens pass 4 GiB", id + 1);
        if (!vocab->bytes || spelling.size > cap - used) {
            cap = used + spelling.size + used / 2 + 65536;
            sl_status status = bytes_resize(vocab, used, cap, err);
            if (status != SL_OK)
                return status;
        }
        if (vocab->is_pieces && vocab->kinds[id] == SL_TOK_KIND_BYTE && byte_of_piece(spelling) < 0)
            return sl_err_set(err, SL_DAMAGED,
                              "tokenizer: token %" PRIu32 " \"%s\" is to be a byte, expected <0x00> to <0xFF>", id,
                              sl_quote_of(spelling).text);
        size_t size;
        vocab->is_literal[id] = token_decode(vocab, vocab->kinds[id], spelling, vocab->bytes + used, &size);
        used += size;
        vocab->offs[id + 1] = (uint32_t)used;
    }
    return bytes_resize(vocab, used, used, err);
}

static sl_status slots_fill(sl_vocab *vocab, sl_err *err)
{
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        sl_tok_text token = sl_vocab_bytes(vocab, id);
        if (token.size == 0 || (vocab->is_pieces && vocab->kinds[id] == SL_TOK_KIND_BYTE))
            continue;
        uint32_t slot = slot_find(vocab, token.data, token.size, vocab->is_literal[id]);
        if (vocab->slots[slot] != 0)
            return sl_err_set(err, SL_DAMAGED, "tokenizer: token %" PRIu32 " is spelt like token %" PRIu32, id,
                              vocab->slots[slot] - 1);
        vocab->slots[slot] = id + 1;
    }
    return SL_OK;
}

sl_status sl_vocab_init(sl_vocab *vocab, const sl_tok_source *source, sl_budget *budget, sl_err *err)
{
    vocab->budget = budget;
    vocab->is_pieces = sl_tok_is_pieces(source->model);
    if (source->n_tokens == 0 || source->n_tokens > INT32_MAX / 2)
        return sl_err_set(err, SL_DAMAGED, "tokenizer: %zu tokens, expected 1 to %d", source->n_tokens, INT32_MAX / 2);
    vocab->n_tokens = (uint32_t)source->n_tokens;
    size_t n = vocab->n_tokens, n_slots = 16;
    while (n_slots < 2 * n)
        n_slots *= 2;
    sl_status status = sl_mem_new(budget, n + 1, sizeof *vocab->offs, "vocabulary", &vocab->offs, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n, 1, "vocabulary", &vocab->kinds, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n, 1, "vocabulary", &vocab->is_literal, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n_slots, sizeof *vocab->slots, "vocabulary", &vocab->slots, err);
    if (status != SL_OK)
        return status;
    vocab->slot_mask = (uint32_t)(n_slots - 1);
    status = kinds_read(vocab, source, err);
    if (status == SL_OK)
        status = tokens_read(vocab, source, err);
    return status == SL_OK ? slots_fill(vocab, err) : status;
}

void sl_vocab_deinit(sl_vocab *vocab)
{
    sl_mem_free(vocab->budget, vocab->bytes);
    sl_mem_free(vocab->budget, vocab->offs);
    sl_mem_free(vocab->budget, vocab->kinds);
    sl_mem_free(vocab->budget, vocab->is_literal);
    sl_mem_free(vocab->budget, vocab->slots);
    memset(vocab, 0, sizeof *vocab);
}
