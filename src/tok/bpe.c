#include "tok/bpe.h"

#include <inttypes.h>
#include <string.h>

#include "tok/merge.h"
#include "tok/quote.h"

static const uint32_t none = SL_MERGE_NONE; /* no merge, no neighbour */

static uint32_t pair_hash(uint32_t left, uint32_t right)
{
    /* Fibonacci hashing: the multiplier is 2^64 / golden ratio; the upper half is well mixed. */
    return (uint32_t)((((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
}

static uint32_t slot_find(const sl_bpe *bpe, uint32_t left, uint32_t right)
{
    uint32_t hash = pair_hash(left, right);
    uint32_t slot = (hash ^ hash >> 15) & bpe->slot_mask;
    for (;; slot = (slot + 1) & bpe->slot_mask) {
        if (bpe->slots[slot] == 0)
            return slot;
        const sl_merge *merge = &bpe->merges[bpe->slots[slot] - 1];
        if (merge->left == left && merge->right == right)
            return slot;
    }
}

/* Rank of the merge of two tokens; `none`: they do not merge. */
static uint32_t merge_find(const sl_bpe *bpe, uint32_t left, uint32_t right)
{
    return bpe->slots[slot_find(bpe, left, right)] - 1; /* a free slot holds 0: wraps to `none` */
}

/* Does token `result` stand for the bytes of `left` and `right`? Then encoding and decoding give the text back. */
static bool is_joined(const sl_vocab *vocab, const sl_merge *merge)
{
    sl_tok_text left = sl_vocab_bytes(vocab, merge->left), right = sl_vocab_bytes(vocab, merge->right);
    sl_tok_text result = sl_vocab_bytes(vocab, merge->result);
    return result.size == left.size + right.size && memcmp(result.data, left.data, left.size) == 0 &&
           memcmp(result.data + left.size, right.data, right.size) == 0;
}

/* One merge "left right". The space that parts them is not the first byte; byte-level spellings hold no other. */
static bool merge_parse(const sl_vocab *vocab, sl_tok_text text, sl_merge *out)
{
    char joined[SL_VOCAB_SPELLING_MAX];
    const char *space = text.size > 2 ? memchr(text.data + 1, ' ', text.size - 2) : NULL;
    if (!space || text.size - 1 > sizeof joined)
        return false;
    size_t left_size = (size_t)(space - text.data), right_size = text.size - left_size - 1;
    memcpy(joined, text.data, left_size);
    memcpy(joined + left_size, space + 1, right_size);
    int32_t left = sl_vocab_find_spelling(vocab, text.data, left_size);
    int32_t right = sl_vocab_find_spelling(vocab, space + 1, right_size);
    int32_t result = sl_vocab_find_spelling(vocab, joined, left_size + right_size);
    if (left < 0 || right < 0 || result < 0)
        return false;
    *out = (sl_merge){(uint32_t)left, (uint32_t)right, (uint32_t)result};
    return is_joined(vocab, out);
}

static sl_status merges_read(sl_bpe *bpe, const sl_vocab *vocab, const sl_tok_source *source, sl_err *err)
{
    for (uint32_t rank = 0; rank < bpe->n_merges; rank++) {
        sl_tok_text text;
        if (!source->next_merge(source->arg, &text))
            return sl_err_set(err, SL_DAMAGED, "tokenizer: %" PRIu32 " merges found, %" PRIu32 " announced", rank,
                              bpe->n_merges);
        sl_merge *merge = &bpe->merges[rank];
        if (!merge_parse(vocab, text, merge))
            return sl_err_set(err, SL_DAMAGED,
                              "tokenizer: merge %" PRIu32 " \"%s\" is not two tokens that make a third", rank,
                              sl_quote_of(text).text);
        bpe->slots[slot_find(bpe, merge->left, merge->right)] = rank + 1;
    }
    return SL_OK;
}

sl_status sl_bpe_init(sl_bpe *bpe, const sl_vocab *vocab, const sl_tok_source *source, sl_budget *budget, sl_err *err)
{
    bpe->budget = budget;
    if (source->n_merges > INT32_MAX / 2)
        return sl_err_set(err, SL_DAMAGED, "tokenizer: %zu merges, expected at most %d", source->n_merges,
                          INT32_MAX / 2);
    bpe->n_merges = (uint32_t)source->n_merges;
    size_t n_slots = 16;
    while (n_slots < 2 * (size_t)bpe->n_merges)
        n_slots *= 2;
    sl_status status = sl_mem_new(budget, bpe->n_merges, sizeof *bpe->merges, "merges", &bpe->merges, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n_slots, sizeof *bpe->slots, "merges", &bpe->slots, err);
    if (status != SL_OK)
        return status;
    bpe->slot_mask = (uint32_t)(n_slots - 1);
    for (int byte = 0; byte < 256; byte++) {
        char spelt = (char)byte;
        bpe->byte_ids[byte] = sl_vocab_find(vocab, &spelt, 1, false);
    }
    return merges_read(bpe, vocab, source, err);
}

void sl_bpe_deinit(sl_bpe *bpe)
{
    sl_mem_free(bpe->budget, bpe->merges);
    sl_mem_free(bpe->budget, bpe->slots);
    memset(bpe, 0, sizeof *bpe);
}

/* The first symbols of a piece; returns their number. */
static uint32_t symbols_start(const sl_bpe *bpe, sl_tok_text piece, uint32_t *ids)
{
    uint32_t n = 0;
    for (size_t i = 0; i < piece.size; i++) {
        int32_t id = bpe->byte_ids[(uint8_t)piece.data[i]];
        if (id >= 0)
            ids[n++] = (uint32_t)id;
    }
    return n;
}

static uint32_t short_rank(const void *arg, const uint32_t *at)
{
    return merge_find(arg, at[0], at[1]);
}

static uint32_t short_join(const void *arg, uint32_t left, uint32_t rank)
{
    (void)left;
    return ((const sl_bpe *)arg)->merges[rank].result;
}

/* A long piece: a symbol is known by its place among the first ones. */
typedef struct long_piece {
    const sl_bpe *bpe;
    uint32_t *ids; /* [n] */
} long_piece;

static uint32_t long_rank(void *arg, uint32_t left, uint32_t right, uint32_t end)
{
    (void)end;
    const long_piece *piece = arg;
    return merge_find(piece->bpe, piece->ids[left], piece->ids[right]);
}

static void long_join(void *arg, uint32_t left, uint32_t rank)
{
    const long_piece *piece = arg;
    piece->ids[left] = piece->bpe->merges[rank].result;
}

/* arrays [(SL_MERGE_ARRAYS + 1) * n], the first n the ids. Returns how many remain. */
static uint32_t merge_long(const sl_bpe *bpe, uint32_t *arrays, uint32_t n)
{
    long_piece piece = {bpe, arrays};
    const sl_merging merging = {.n = n, .next = arrays + n, .rest = arrays + 2 * (size_t)n, .rank = long_rank,
                                .join = long_join, .arg = &piece};
    for (uint32_t i = 0; i < n; i++)
        merging.next[i] = i + 1 < n ? i + 1 : none;
    sl_merge_run(&merging);
    uint32_t n_left = 0;
    for (uint32_t pos = 0; n > 0 && pos != none; pos = merging.next[pos])
        piece.ids[n_left++] = piece.ids[pos];
    return n_left;
}

static sl_status ids_append(const sl_bpe *bpe, const uint32_t *ids, uint32_t n, sl_ids *out, sl_err *err)
{
    sl_status status = SL_OK;
    for (uint32_t i = 0; i < n && status == SL_OK; i++)
        status = sl_ids_push(out, (int32_t)ids[i], bpe->budget, err);
    return status;
}

static sl_status encode_long(const sl_bpe *bpe, sl_tok_text text, sl_ids *out, uint64_t *n_dropped, sl_err *err)
{
    if (text.size >= INT32_MAX)
        return sl_err_set(err, SL_FAILED, "tokenizer: %zu bytes without a place to split, the most is %d", text.size,
                          INT32_MAX);
    uint32_t *arrays;
    sl_status status = sl_mem_new(bpe->budget, text.size, (SL_MERGE_ARRAYS + 1) * sizeof *arrays,
                                  "a long piece of text", &arrays, err);
    if (status != SL_OK)
        return status;
    uint32_t n = symbols_start(bpe, text, arrays);
    *n_dropped += text.size - n;
    status = ids_append(bpe, arrays, merge_long(bpe, arrays, n), out, err);
    sl_mem_free(bpe->budget, arrays);
    return status;
}

sl_status sl_bpe_encode(const sl_bpe *bpe, sl_tok_text piece, sl_ids *out, uint64_t *n_dropped, sl_err *err)
{
    if (piece.size > SL_MERGE_SHORT)
        return encode_long(bpe, piece, out, n_dropped, err);
    const sl_short_merging merging = {short_rank, short_join, bpe};
    uint32_t ids[SL_MERGE_SHORT + 1];
    uint32_t n = symbols_start(bpe, piece, ids);
    ids[n] = none;
    *n_dropped += piece.size - n;
    return ids_append(bpe, ids, sl_merge_short(&merging, ids, n), out, err);
}
