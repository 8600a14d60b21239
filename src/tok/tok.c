#include "tok/tok.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tok/bpe.h"
#include "tok/pretok.h"
#include "tok/quote.h"
#include "tok/vocab.h"

/* A token that is looked for in the text itself, before any splitting. */
typedef struct special {
    sl_tok_text text; /* borrowed from the vocabulary */
    int32_t id;
    bool is_always; /* user-defined: matched even in plain text */
} special;

struct sl_tok {
    sl_budget *budget;
    sl_vocab vocab;
    sl_bpe bpe;
    sl_pretok *pretok;
    special *specials; /* [n_specials], by their bytes, so that those with a common beginning stand together */
    size_t n_specials;
    bool starts_special[256]; /* does any special begin with this byte? */
    int32_t bos_id, eos_id, eot_id;
    bool add_bos;
};

void sl_ids_deinit(sl_ids *list, sl_budget *budget)
{
    sl_mem_free(budget, list->ids);
    *list = (sl_ids){0};
}

sl_status sl_ids_push(sl_ids *list, int32_t id, sl_budget *budget, sl_err *err)
{
    if (list->n == list->cap) {
        size_t cap = list->cap + list->cap / 2 + 64;
        int32_t *ids;
        sl_status status = sl_mem_new(budget, cap, sizeof *ids, "token ids", &ids, err);
        if (status != SL_OK)
            return status;
        if (list->n > 0)
            memcpy(ids, list->ids, list->n * sizeof *ids);
        sl_mem_free(budget, list->ids);
        list->ids = ids;
        list->cap = cap;
    }
    list->ids[list->n++] = id;
    return SL_OK;
}

/* Control and unknown tokens: never part of a text that people read. */
static bool is_hidden(const sl_tok *tok, uint32_t id)
{
    return tok->vocab.kinds[id] == SL_TOK_KIND_CONTROL || tok->vocab.kinds[id] == SL_TOK_KIND_UNKNOWN;
}

static bool is_special(const sl_tok *tok, uint32_t id)
{
    return is_hidden(tok, id) || tok->vocab.kinds[id] == SL_TOK_KIND_USER_DEFINED;
}

static int special_compare(const void *a, const void *b)
{
    const sl_tok_text *x = &((const special *)a)->text, *y = &((const special *)b)->text;
    int order = memcmp(x->data, y->data, x->size < y->size ? x->size : y->size);
    return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

/* A spelling that is not UTF-8 cannot stand in a text that is; matched byte by byte it would cut characters. */
static bool is_matchable(const sl_tok *tok, uint32_t id)
{
    sl_tok_text text = sl_vocab_bytes(&tok->vocab, id);
    return is_special(tok, id) && text.size > 0 && sl_utf8_check(text.data, text.size) == text.size;
}

static sl_status specials_fill(sl_tok *tok, sl_err *err)
{
    size_t n = 0;
    for (uint32_t id = 0; id < tok->vocab.n_tokens; id++)
        n += is_matchable(tok, id);
    sl_status status = sl_mem_new(tok->budget, n, sizeof *tok->specials, "special tokens", &tok->specials, err);
    if (status != SL_OK)
        return status;
    for (uint32_t id = 0; id < tok->vocab.n_tokens; id++) {
        sl_tok_text text = sl_vocab_bytes(&tok->vocab, id);
        if (!is_matchable(tok, id))
            continue;
        tok->starts_special[(uint8_t)text.data[0]] = true;
        tok->specials[tok->n_specials++] = (special){text, (int32_t)id, !is_hidden(tok, id)};
    }
    qsort(tok->specials, n, sizeof *tok->specials, special_compare);
    return SL_OK;
}

static sl_status id_check(const sl_tok *tok, const char *name, int32_t id, sl_err *err)
{
    if (id >= -1 && id < (int32_t)tok->vocab.n_tokens)
        return SL_OK;
    return sl_err_set(err, SL_DAMAGED, "tokenizer: %s token %" PRId32 " is not one of the %" PRIu32 " tokens", name, id,
                      tok->vocab.n_tokens);
}

static sl_status parts_init(sl_tok *tok, const sl_tok_source *source, sl_err *err)
{
    sl_status status = sl_pretok_create(source->pattern, tok->budget, &tok->pretok, err);
    if (status == SL_OK)
        status = sl_vocab_init(&tok->vocab, source, tok->budget, err);
    if (status == SL_OK)
        status = sl_bpe_init(&tok->bpe, &tok->vocab, source, tok->budget, err);
    if (status == SL_OK)
        status = specials_fill(tok, err);
    if (status == SL_OK)
        status = id_check(tok, "BOS", source->bos_id, err);
    if (status == SL_OK)
        status = id_check(tok, "EOS", source->eos_id, err);
    if (status == SL_OK)
        status = id_check(tok, "EOT", source->eot_id, err);
    return status;
}

sl_status sl_tok_create(const sl_tok_source *source, sl_budget *budget, sl_tok **out, sl_err *err)
{
    *out = NULL;
    if (source->model.size != 4 || memcmp(source->model.data, "gpt2", 4) != 0)
        return sl_err_set(err, SL_REFUSED, "tokenizer: unknown kind \"%s\" (tokenizer.ggml.model), known is gpt2",
                          sl_quote_of(source->model).text);
    sl_tok *tok;
    sl_status status = sl_mem_new(budget, 1, sizeof *tok, "tokenizer", &tok, err);
    if (status != SL_OK)
        return status;
    tok->budget = budget;
    tok->bos_id = source->bos_id;
    tok->eos_id = source->eos_id;
    tok->eot_id = source->eot_id;
    tok->add_bos = source->add_bos;
    status = parts_init(tok, source, err);
    if (status != SL_OK) {
        sl_tok_destroy(tok);
        return status;
    }
    *out = tok;
    return SL_OK;
}

void sl_tok_destroy(sl_tok *tok)
{
    if (!tok)
        return;
    sl_mem_free(tok->budget, tok->specials);
    sl_bpe_deinit(&tok->bpe);
    sl_vocab_deinit(&tok->vocab);
    sl_pretok_destroy(tok->pretok);
    sl_mem_free(tok->budget, tok);
}

/* First of specials[low..high), which agree in their first `depth` bytes, whose next byte is at least `byte`. */
static size_t special_bound(const sl_tok *tok, size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)tok->specials[middle].text.data[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest special at the start of text; NULL: none. Narrows the sorted list byte by byte. */
static const special *special_match(const sl_tok *tok, sl_tok_text text, bool with_control)
{
    const special *longest = NULL;
    size_t low = 0, high = tok->n_specials;
    for (size_t depth = 0; low < high; depth++) {
        const special *first = &tok->specials[low];
        if (first->text.size == depth) { /* spellings differ, so only one ends here, and it stands first */
            if (with_control || first->is_always)
                longest = first;
            low++;
        }
        if (depth == text.size)
            break;
        unsigned byte = (uint8_t)text.data[depth];
        low = special_bound(tok, low, high, depth, byte);
        high = special_bound(tok, low, high, depth, byte + 1);
    }
    return longest;
}

/* Offset of the first special at or after `from`, and which; text.size and NULL: none. */
static size_t special_find(const sl_tok *tok, sl_tok_text text, size_t from, bool with_control, const special **out)
{
    *out = NULL;
    for (size_t at = from; at < text.size; at++) {
        if (!tok->starts_special[(uint8_t)text.data[at]])
            continue;
        *out = special_match(tok, (sl_tok_text){text.data + at, text.size - at}, with_control);
        if (*out)
            return at;
    }
    return text.size;
}

typedef struct encoding {
    const sl_bpe *bpe;
    sl_ids *out;
    uint64_t n_dropped;
} encoding;

static sl_status piece_encode(void *arg, sl_tok_text piece, sl_err *err)
{
    encoding *enc = arg;
    return sl_bpe_encode(enc->bpe, piece, enc->out, &enc->n_dropped, err);
}

sl_status sl_tok_encode(sl_tok *tok, const char *text, size_t size, bool special_tokens, sl_ids *out,
                        uint64_t *n_dropped, sl_err *err)
{
    size_t valid = sl_utf8_check(text, size);
    if (valid != size)
        return sl_err_set(err, SL_FAILED, "text is not UTF-8: byte 0x%02x at offset %zu", (uint8_t)text[valid], valid);
    const size_t n_before = out->n;
    encoding enc = {&tok->bpe, out, 0};
    sl_status status = SL_OK;
    for (size_t at = 0; at < size && status == SL_OK;) {
        const special *found;
        size_t end = special_find(tok, (sl_tok_text){text, size}, at, special_tokens, &found);
        status = sl_pretok_split(tok->pretok, (sl_tok_text){text + at, end - at}, piece_encode, &enc, err);
        if (status == SL_OK && found)
            status = sl_ids_push(out, found->id, tok->budget, err);
        at = found ? end + found->text.size : end;
    }
    if (status != SL_OK)
        out->n = n_before;
    else if (n_dropped)
        *n_dropped += enc.n_dropped;
    return status;
}

size_t sl_tok_n_tokens(const sl_tok *tok)
{
    return tok->vocab.n_tokens;
}

static bool has_id(const sl_tok *tok, int32_t id)
{
    return id >= 0 && (uint32_t)id < tok->vocab.n_tokens;
}

sl_tok_text sl_tok_bytes(const sl_tok *tok, int32_t id, bool special_tokens)
{
    if (!has_id(tok, id) || (is_hidden(tok, (uint32_t)id) && !special_tokens))
        return (sl_tok_text){"", 0};
    return sl_vocab_bytes(&tok->vocab, (uint32_t)id);
}

int32_t sl_tok_find(const sl_tok *tok, const char *text)
{
    return sl_vocab_find_spelling(&tok->vocab, text, strlen(text));
}

bool sl_tok_is_end(const sl_tok *tok, int32_t id)
{
    static const char *const names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "</s>"};
    if (!has_id(tok, id))
        return false;
    if (id == tok->eos_id || id == tok->eot_id)
        return true;
    if (tok->vocab.kinds[id] != SL_TOK_KIND_CONTROL)
        return false;
    sl_tok_text text = sl_vocab_bytes(&tok->vocab, (uint32_t)id);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == text.size && memcmp(names[i], text.data, text.size) == 0)
            return true;
    return false;
}

int32_t sl_tok_bos(const sl_tok *tok)
{
    return tok->add_bos ? tok->bos_id : -1;
}

int32_t sl_tok_eos(const sl_tok *tok)
{
    return tok->eos_id;
}
