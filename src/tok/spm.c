#include "tok/spm.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tok/merge.h"

/* Unused pieces are tokens for taking apart: longer ones than any that was trained are left out. */
enum { UNUSED_BYTES = 128, PAIR_BITS = 20 };
static const uint32_t none = SL_MERGE_NONE;

/* Bytes of a character of valid UTF-8 by its first one. */
static size_t char_bytes(char lead)
{
    uint8_t byte = (uint8_t)lead;
    return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

static uint32_t char_pack(const char *at, size_t n_bytes)
{
    uint32_t packed = 0;
    for (size_t i = 0; i < n_bytes; i++)
        packed = packed << 8 | (uint8_t)at[i];
    return packed;
}

/* Bit of two neighbours. Two pairs that share a bit cost a longer run now and then, nothing else. */
static uint32_t pair_bit(uint32_t left, uint32_t right)
{
    return (uint32_t)((((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - PAIR_BITS));
}

/* ----------------------------------------------------------------------------------------------------------- making */

static bool is_mergeable(const sl_vocab *vocab, uint32_t id)
{
    if (vocab->kinds[id] == SL_TOK_KIND_UNUSED)
        return sl_vocab_bytes(vocab, id).size <= UNUSED_BYTES;
    return vocab->kinds[id] == SL_TOK_KIND_NORMAL;
}

static sl_status bytes_find(sl_spm *spm, sl_err *err)
{
    for (int byte = 0; byte < 256; byte++)
        spm->byte_ids[byte] = -1;
    for (uint32_t id = 0; id < spm->vocab->n_tokens; id++) {
        if (spm->vocab->kinds[id] != SL_TOK_KIND_BYTE)
            continue;
        int32_t *found = &spm->byte_ids[(uint8_t)*sl_vocab_bytes(spm->vocab, id).data];
        if (*found >= 0)
            return sl_err_set(err, SL_DAMAGED, "tokenizer: token %" PRIu32 " is spelt like token %" PRId32, id, *found);
        *found = (int32_t)id;
    }
    for (int byte = 0; byte < 256; byte++)
        if (spm->byte_ids[byte] < 0)
            return sl_err_set(err, SL_REFUSED, "tokenizer: no token for the byte 0x%02x: a vocabulary without byte "
                              "fallback is not supported", (unsigned)byte);
    return SL_OK;
}

static void pairs_note(sl_spm *spm)
{
    for (uint32_t id = 0; id < spm->vocab->n_tokens; id++) {
        sl_tok_text piece = sl_vocab_bytes(spm->vocab, id);
        if (!is_mergeable(spm->vocab, id) || sl_utf8_check(piece.data, piece.size) != piece.size)
            continue;
        if (piece.size > spm->longest_bytes)
            spm->longest_bytes = piece.size;
        uint32_t left = 0;
        for (size_t at = 0, n; at < piece.size; at += n) {
            n = char_bytes(piece.data[at]);
            uint32_t right = char_pack(piece.data + at, n), bit = pair_bit(left, right);
            if (at > 0)
                spm->pairs[bit / 64] |= UINT64_C(1) << bit % 64;
            left = right;
        }
    }
}

typedef struct scored {
    double score;
    uint32_t id;
} scored;

static int scored_compare(const void *a, const void *b)
{
    double x = ((const scored *)a)->score, y = ((const scored *)b)->score;
    return (x < y) - (x > y);
}

static sl_status ranks_read(sl_spm *spm, const sl_tok_source *source, sl_err *err)
{
    uint32_t n = spm->vocab->n_tokens;
    scored *all;
    sl_status status = sl_mem_new(spm->budget, n, sizeof *all, "scores", &all, err);
    for (uint32_t id = 0; id < n && status == SL_OK; id++) {
        all[id].id = id;
        if (!source->next_score(source->arg, &all[id].score))
            status = sl_err_set(err, SL_DAMAGED, "tokenizer: %" PRIu32 " scores for %" PRIu32 " tokens", id, n);
        else if (!isfinite(all[id].score))
            status = sl_err_set(err, SL_DAMAGED, "tokenizer: token %" PRIu32 " has the score %g, expected a finite "
                                "number", id, all[id].score);
    }
    if (status == SL_OK)
        qsort(all, n, sizeof *all, scored_compare);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n && status == SL_OK; i++) {
        if (i > 0 && all[i].score < all[i - 1].score)
            rank = i;
        spm->ranks[all[i].id] = is_mergeable(spm->vocab, all[i].id) ? rank : none;
    }
    sl_mem_free(spm->budget, all);
    return status;
}

sl_status sl_spm_init(sl_spm *spm, const sl_vocab *vocab, const sl_tok_source *source, sl_budget *budget, sl_err *err)
{
    spm->budget = budget;
    spm->vocab = vocab;
    if (!source->next_score)
        return sl_err_set(err, SL_DAMAGED, "tokenizer: no scores (tokenizer.ggml.scores), which order the merges");
    if (!source->next_kind)
        return sl_err_set(err, SL_DAMAGED, "tokenizer: no token types (tokenizer.ggml.token_type), which tell bytes");
    sl_status status = sl_mem_new(budget, vocab->n_tokens, sizeof *spm->ranks, "scores", &spm->ranks, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, (1u << PAIR_BITS) / 64, sizeof *spm->pairs, "vocabulary", &spm->pairs, err);
    if (status == SL_OK)
        status = bytes_find(spm, err);
    if (status == SL_OK)
        status = ranks_read(spm, source, err);
    if (status == SL_OK)
        pairs_note(spm);
    return status;
}

void sl_spm_deinit(sl_spm *spm)
{
    sl_mem_free(spm->budget, spm->ranks);
    sl_mem_free(spm->budget, spm->pairs);
    memset(spm, 0, sizeof *spm);
}

/* --------------------------------------------------------------------------------------------------------- encoding */

static bool may_join(const sl_spm *spm, uint32_t left, uint32_t right)
{
    uint32_t bit = pair_bit(left, right);
    return spm->pairs[bit / 64] >> bit % 64 & 1;
}

bool sl_spm_may_join(const sl_spm *spm, const char *left, const char *right)
{
    return may_join(spm, char_pack(left, char_bytes(*left)), char_pack(right, char_bytes(*right)));
}

size_t sl_spm_run(const sl_spm *spm, sl_tok_text text)
{
    uint32_t left = 0;
    for (size_t at = 0, n; at < text.size; at += n) {
        n = char_bytes(text.data[at]);
        uint32_t right = char_pack(text.data + at, n);
        if (at > 0 && !may_join(spm, left, right))
            return at;
        left = right;
    }
    return text.size;
}

/* What is being encoded; one symbol may not come about: the whole, when it is an unused piece that is taken apart. */
typedef struct run {
    const sl_spm *spm;
    const char *data;
    size_t size;
    bool is_apart;
} run;

static int32_t span_find(const run *r, uint32_t from, uint32_t end)
{
    size_t size = end - from;
    return size <= r->spm->longest_bytes ? sl_vocab_find(r->spm->vocab, r->data + from, size, false) : -1;
}

static uint32_t span_rank(const run *r, uint32_t from, uint32_t end)
{
    if (r->is_apart && end - from == r->size)
        return none;
    int32_t id = span_find(r, from, end);
    return id < 0 ? none : r->spm->ranks[id];
}

static sl_status run_encode(const run *r, sl_ids *out, sl_err *err);

static sl_status symbol_put(const run *r, uint32_t from, uint32_t end, sl_ids *out, sl_err *err)
{
    const sl_spm *spm = r->spm;
    int32_t id = span_find(r, from, end);
    bool is_char = end - from == char_bytes(r->data[from]);
    if (id >= 0 && spm->vocab->kinds[id] == SL_TOK_KIND_UNUSED && !is_char) {
        const run inner = {spm, r->data + from, end - from, true};
        return run_encode(&inner, out, err);
    }
    if (id >= 0)
        return sl_ids_push(out, id, spm->budget, err);
    sl_status status = SL_OK;
    for (uint32_t i = from; i < end && status == SL_OK; i++)
        status = sl_ids_push(out, spm->byte_ids[(uint8_t)r->data[i]], spm->budget, err);
    return status;
}

static uint32_t short_rank(const void *arg, const uint32_t *at)
{
    return span_rank(arg, at[0], at[2]);
}

static uint32_t short_join(const void *arg, uint32_t left, uint32_t rank)
{
    (void)arg;
    (void)rank;
    return left;
}

static uint32_t long_rank(void *arg, uint32_t left, uint32_t right, uint32_t end)
{
    (void)right;
    return span_rank(arg, left, end);
}

static sl_status encode_long(run *r, sl_ids *out, sl_err *err)
{
    if (r->size >= INT32_MAX)
        return sl_err_set(err, SL_FAILED, "tokenizer: %zu bytes without a place to split, the most is %d", r->size,
                          INT32_MAX);
    uint32_t n = (uint32_t)r->size, *arrays;
    sl_status status = sl_mem_new(r->spm->budget, n, SL_MERGE_ARRAYS * sizeof *arrays, "a long piece of text", &arrays,
                                  err);
    if (status != SL_OK)
        return status;
    const sl_merging merging = {.n = n, .next = arrays, .rest = arrays + n, .rank = long_rank, .arg = r};
    for (uint32_t at = 0, next; at < n; at = next) {
        next = at + (uint32_t)char_bytes(r->data[at]);
        arrays[at] = next < n ? next : none;
    }
    sl_merge_run(&merging);
    for (uint32_t at = 0; at != none && status == SL_OK; at = arrays[at])
        status = symbol_put(r, at, arrays[at] == none ? n : arrays[at], out, err);
    sl_mem_free(r->spm->budget, arrays);
    return status;
}

static sl_status run_encode(const run *r, sl_ids *out, sl_err *err)
{
    const sl_short_merging merging = {short_rank, short_join, r};
    uint32_t starts[SL_MERGE_SHORT + 1], n = 0;
    size_t at = 0;
    for (; at < r->size && n < SL_MERGE_SHORT; at += char_bytes(r->data[at]))
        starts[n++] = (uint32_t)at;
    if (at < r->size) {
        run copy = *r;
        return encode_long(&copy, out, err);
    }
    starts[n] = (uint32_t)at;
    n = sl_merge_short(&merging, starts, n);
    sl_status status = SL_OK;
    for (uint32_t i = 0; i < n && status == SL_OK; i++)
        status = symbol_put(r, starts[i], starts[i + 1], out, err);
    return status;
}

sl_status sl_spm_encode(const sl_spm *spm, sl_tok_text text, sl_ids *out, sl_err *err)
{
    const run r = {spm, text.data, text.size, false};
    return run_encode(&r, out, err);
}
