#include "tok/tok.h"

#include <inttypes.h>
#include <string.h>

#include "tok/bpe.h"
#include "tok/cut.h"
#include "tok/pretok.h"
#include "tok/quote.h"
#include "tok/special.h"
#include "tok/spm.h"
#include "tok/words.h"

struct sl_tok {
    sl_budget *budget;
    sl_vocab vocab;
    sl_bpe bpe;         /* byte-level BPE */
    sl_pretok *pretok;
    sl_spm spm;         /* SentencePiece, where vocab.is_pieces */
    sl_specials specials;
    sl_words words;
    sl_cuts cuts;
    int32_t bos_id, eos_id, eot_id;
    bool add_bos, add_space_prefix;
    bool ignores_merges; /* a word that is a token is that token */
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

static sl_status id_check(const sl_tok *tok, const char *name, int32_t id, sl_err *err)
{
    if (id >= -1 && id < (int32_t)tok->vocab.n_tokens)
        return SL_OK;
    return sl_err_set(err, SL_DAMAGED, "tokenizer: %s token %" PRId32 " is not one of the %" PRIu32 " tokens", name, id,
                      tok->vocab.n_tokens);
}

/* What one of the two kinds needs. */
static sl_status kind_init(sl_tok *tok, const sl_tok_source *source, sl_err *err)
{
    if (tok->vocab.is_pieces)
        return sl_spm_init(&tok->spm, &tok->vocab, source, tok->budget, err);
    if (source->n_merges == 0)
        return sl_err_set(err, SL_REFUSED, "tokenizer: no merges (tokenizer.ggml.merges), which gpt2 works by");
    return sl_bpe_init(&tok->bpe, &tok->vocab, source, tok->budget, err);
}

static sl_status parts_init(sl_tok *tok, const sl_tok_source *source, sl_err *err)
{
    sl_status status = SL_OK;
    if (!sl_tok_is_pieces(source->model))
        status = sl_pretok_create(source->pattern, tok->budget, &tok->pretok, err);
    if (status == SL_OK)
        status = sl_vocab_init(&tok->vocab, source, tok->budget, err);
    if (status == SL_OK)
        status = kind_init(tok, source, err);
    if (status == SL_OK)
        status = sl_specials_init(&tok->specials, &tok->vocab, tok->budget, err);
    if (status == SL_OK)
        status = sl_words_init(&tok->words, tok->budget, err);
    if (status == SL_OK)
        status = id_check(tok, "BOS", source->bos_id, err);
    if (status == SL_OK)
        status = id_check(tok, "EOS", source->eos_id, err);
    if (status == SL_OK)
        status = id_check(tok, "EOT", source->eot_id, err);
    return status;
}

static bool is_text(sl_tok_text text, const char *what)
{
    return text.size == strlen(what) && memcmp(text.data, what, text.size) == 0;
}

bool sl_tok_is_pieces(sl_tok_text model)
{
    return is_text(model, "llama");
}

bool sl_tok_default_bos(sl_tok_text model, sl_tok_text pattern)
{
    return sl_tok_is_pieces(model) || sl_pretok_default_bos(pattern);
}

sl_status sl_tok_create(const sl_tok_source *source, sl_budget *budget, sl_tok **out, sl_err *err)
{
    *out = NULL;
    if (!is_text(source->model, "gpt2") && !sl_tok_is_pieces(source->model))
        return sl_err_set(err, SL_REFUSED,
                          "tokenizer: unknown kind \"%s\" (tokenizer.ggml.model), known are gpt2, llama",
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
    tok->ignores_merges = !sl_tok_is_pieces(source->model) && sl_pretok_ignores_merges(source->pattern);
    tok->add_space_prefix = source->add_space_prefix && sl_tok_is_pieces(source->model);
    status = parts_init(tok, source, err);
    if (status != SL_OK) {
        sl_tok_destroy(tok);
        return status;
    }
    sl_cuts_init(&tok->cuts, &tok->specials, tok->vocab.is_pieces ? &tok->spm : NULL, tok->add_space_prefix);
    *out = tok;
    return SL_OK;
}

void sl_tok_destroy(sl_tok *tok)
{
    if (!tok)
        return;
    sl_words_deinit(&tok->words);
    sl_specials_deinit(&tok->specials);
    sl_spm_deinit(&tok->spm);
    sl_bpe_deinit(&tok->bpe);
    sl_vocab_deinit(&tok->vocab);
    sl_pretok_destroy(tok->pretok);
    sl_mem_free(tok->budget, tok);
}

/* --------------------------------------------------------------------------------------------------------- encoding */

typedef struct encoding {
    sl_tok *tok;
    bool special;
    sl_ids *out;
    uint64_t n_dropped, n_before; /* bytes in front of the text, for messages */
} encoding;

/* A word apart: what is encoded of it depends on nothing else. */
static sl_status word_encode(void *arg, sl_tok_text word, sl_err *err)
{
    encoding *enc = arg;
    sl_tok *tok = enc->tok;
    size_t n = 0, before = enc->out->n;
    const int32_t *known = sl_words_find(&tok->words, word, &n);
    sl_status status = SL_OK;
    for (size_t i = 0; known && i < n && status == SL_OK; i++)
        status = sl_ids_push(enc->out, known[i], tok->budget, err);
    if (known)
        return status;
    uint64_t n_dropped = 0;
    int32_t whole = tok->ignores_merges ? sl_vocab_find(&tok->vocab, word.data, word.size, false) : -1;
    if (whole >= 0)
        return sl_ids_push(enc->out, whole, tok->budget, err);
    if (tok->vocab.is_pieces)
        status = sl_spm_encode(&tok->spm, word, enc->out, err);
    else
        status = sl_bpe_encode(&tok->bpe, word, enc->out, &n_dropped, err);
    enc->n_dropped += n_dropped;
    if (status == SL_OK && n_dropped == 0)
        sl_words_put(&tok->words, word, enc->out->ids + before, enc->out->n - before);
    return status;
}

/* Byte-level: special tokens first, what stands between them is split by the pattern. */
static sl_status encode_bytes(encoding *enc, sl_tok_text text, sl_err *err)
{
    sl_status status = SL_OK;
    unsigned which = SL_SPECIAL_USER | (enc->special ? SL_SPECIAL_HIDDEN : 0u);
    for (size_t at = 0; at < text.size && status == SL_OK;) {
        const sl_special *found;
        size_t end = sl_special_find(&enc->tok->specials, text, at, which, &found);
        status = sl_pretok_split(enc->tok->pretok, (sl_tok_text){text.data + at, end - at}, word_encode, enc, err);
        if (status == SL_OK && found)
            status = sl_ids_push(enc->out, found->id, enc->tok->budget, err);
        at = found ? end + found->text.size : end;
    }
    return status;
}

/* Pieces, of a text whose spaces are spaces already: user-defined ones first, as they stand. */
static sl_status encode_plain(encoding *enc, sl_tok_text text, sl_err *err)
{
    sl_status status = SL_OK;
    for (size_t at = 0; at < text.size && status == SL_OK;) {
        const sl_special *found;
        size_t end = sl_special_find(&enc->tok->specials, text, at, SL_SPECIAL_USER, &found);
        for (size_t n; at < end && status == SL_OK; at += n) {
            const sl_tok_text rest = {text.data + at, end - at};
            n = sl_spm_run(&enc->tok->spm, rest);
            status = word_encode(enc, (sl_tok_text){rest.data, n}, err);
        }
        if (status == SL_OK && found)
            status = sl_ids_push(enc->out, found->id, enc->tok->budget, err);
        at = found ? end + found->text.size : end;
    }
    return status;
}

/* Copies text, each U+2581 as the space that it stands for; returns the size. */
static size_t spaces_copy(sl_tok_text text, char *out)
{
    size_t n = 0;
    for (size_t at = 0; at < text.size;) {
        const char *next = memchr(text.data + at, 0xe2, text.size - at);
        size_t plain = next ? (size_t)(next - text.data) - at : text.size - at;
        memcpy(out + n, text.data + at, plain);
        n += plain;
        at += plain;
        if (!next)
            break;
        bool is_space = text.size - at >= 3 && memcmp(next, "\xe2\x96\x81", 3) == 0;
        out[n++] = is_space ? ' ' : *next;
        at += is_space ? 3 : 1;
    }
    return n;
}

/* A text without control tokens; has_lead: the tokenizer's own space stands in front. */
static sl_status encode_fragment(encoding *enc, sl_tok_text text, bool has_lead, sl_err *err)
{
    if (text.size == 0)
        return SL_OK;
    if (!has_lead && !memchr(text.data, 0xe2, text.size))
        return encode_plain(enc, text, err);
    char *copy;
    sl_status status = sl_mem_new(enc->tok->budget, text.size + 1, 1, "a text's spaces", &copy, err);
    if (status != SL_OK)
        return status;
    copy[0] = ' ';
    size_t n = spaces_copy(text, copy + has_lead);
    status = encode_plain(enc, (sl_tok_text){copy, n + has_lead}, err);
    sl_mem_free(enc->tok->budget, copy);
    return status;
}

/* Pieces: control tokens first, if asked for; behind each the text begins anew. */
static sl_status encode_pieces(encoding *enc, sl_tok_text text, bool has_lead, sl_err *err)
{
    sl_status status = SL_OK;
    for (size_t at = 0; at < text.size && status == SL_OK;) {
        const sl_special *found = NULL;
        size_t end = text.size;
        if (enc->special)
            end = sl_special_find(&enc->tok->specials, text, at, SL_SPECIAL_HIDDEN, &found);
        status = encode_fragment(enc, (sl_tok_text){text.data + at, end - at}, has_lead, err);
        if (status == SL_OK && found)
            status = sl_ids_push(enc->out, found->id, enc->tok->budget, err);
        at = found ? end + found->text.size : end;
        has_lead = enc->tok->add_space_prefix && at < text.size && text.data[at] != ' ';
    }
    return status;
}

static sl_status encode(encoding *enc, sl_tok_text text, bool has_lead, uint64_t *n_dropped, sl_err *err)
{
    size_t valid = sl_utf8_check(text.data, text.size);
    if (valid != text.size)
        return sl_err_set(err, SL_FAILED, "text is not UTF-8: byte 0x%02x at offset %" PRIu64,
                          (uint8_t)text.data[valid], enc->n_before + valid);
    const size_t n_before = enc->out->n;
    sl_status status = enc->tok->vocab.is_pieces ? encode_pieces(enc, text, has_lead, err)
                                                 : encode_bytes(enc, text, err);
    if (status != SL_OK)
        enc->out->n = n_before;
    else if (n_dropped)
        *n_dropped += enc->n_dropped;
    return status;
}

sl_status sl_tok_encode(sl_tok *tok, const char *text, size_t size, bool special, sl_ids *out, uint64_t *n_dropped,
                        sl_err *err)
{
    encoding enc = {tok, special, out, 0, 0};
    return encode(&enc, (sl_tok_text){text, size}, tok->add_space_prefix, n_dropped, err);
}

sl_status sl_tok_encode_more(sl_tok *tok, const char *text, size_t size, bool special, sl_ids *out,
                             uint64_t *n_dropped, sl_err *err)
{
    encoding enc = {tok, special, out, 0, 0};
    return encode(&enc, (sl_tok_text){text, size}, false, n_dropped, err);
}

/* ------------------------------------------------------------------------------------------------------- in pieces */

void sl_tok_feed_start(sl_tok_feed *feed, sl_tok *tok, bool goes_on, bool special)
{
    *feed = (sl_tok_feed){.tok = tok, .special = special, .has_lead = !goes_on && tok->add_space_prefix};
}

void sl_tok_feed_deinit(sl_tok_feed *feed)
{
    sl_mem_free(feed->tok->budget, feed->held);
    feed->held = NULL;
}

static sl_status feed_encode(sl_tok_feed *feed, sl_tok_text text, sl_ids *out, sl_err *err)
{
    if (text.size == 0)
        return SL_OK;
    encoding enc = {feed->tok, feed->special, out, 0, feed->n_before};
    sl_status status = encode(&enc, text, feed->has_lead, &feed->n_dropped, err);
    feed->has_lead = false;
    feed->n_before += text.size;
    return status;
}

static sl_status feed_hold(sl_tok_feed *feed, const char *text, size_t size, sl_err *err)
{
    if (size == 0)
        return SL_OK;
    if (size > feed->cap - feed->n_held) {
        size_t cap = feed->n_held + size + feed->cap;
        char *held;
        sl_status status = sl_mem_new(feed->tok->budget, cap, 1, "a text's end", &held, err);
        if (status != SL_OK)
            return status;
        if (feed->n_held > 0)
            memcpy(held, feed->held, feed->n_held);
        sl_mem_free(feed->tok->budget, feed->held);
        feed->held = held;
        feed->cap = cap;
    }
    memcpy(feed->held + feed->n_held, text, size);
    feed->n_held += size;
    return SL_OK;
}

sl_status sl_tok_feed_put(sl_tok_feed *feed, const char *text, size_t size, sl_ids *out, sl_err *err)
{
    const bool was_held = feed->n_held > 0;
    sl_status status = was_held ? feed_hold(feed, text, size, err) : SL_OK;
    if (status != SL_OK)
        return status;
    const sl_tok_text all = was_held ? (sl_tok_text){feed->held, feed->n_held} : (sl_tok_text){text, size};
    const size_t end = sl_cut_last(&feed->tok->cuts, all, feed->n_searched);
    status = feed_encode(feed, (sl_tok_text){all.data, end}, out, err);
    if (status != SL_OK)
        return status;
    if (was_held && end > 0) {
        feed->n_held -= end;
        memmove(feed->held, feed->held + end, feed->n_held);
    } else if (!was_held) {
        status = feed_hold(feed, text + end, size - end, err);
    }
    /* A place too near the end to be known may turn out to be one: its character may not be all there. */
    feed->n_searched = feed->n_held > 8 ? feed->n_held - 8 : 0;
    return status;
}

sl_status sl_tok_feed_end(sl_tok_feed *feed, sl_ids *out, sl_err *err)
{
    sl_status status = feed_encode(feed, (sl_tok_text){feed->held, feed->n_held}, out, err);
    feed->n_held = 0;
    return status;
}

/* --------------------------------------------------------------------------------------------------- what they are */

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
    if (!has_id(tok, id) || (!special_tokens && sl_special_is_hidden(&tok->vocab, (uint32_t)id)))
        return (sl_tok_text){"", 0};
    return sl_vocab_bytes(&tok->vocab, (uint32_t)id);
}

bool sl_tok_adds_space(const sl_tok *tok)
{
    return tok->add_space_prefix;
}

sl_tok_text sl_tok_bytes_behind(const sl_tok *tok, int32_t before, int32_t id, bool special_tokens)
{
    sl_tok_text bytes = sl_tok_bytes(tok, id, special_tokens);
    bool begins = before < 0 || sl_tok_is_control(tok, before);
    bool is_own = tok->add_space_prefix && begins && bytes.size > 0 && bytes.data[0] == ' ' &&
                  !sl_special_is_hidden(&tok->vocab, (uint32_t)id);
    return is_own ? (sl_tok_text){bytes.data + 1, bytes.size - 1} : bytes;
}

bool sl_tok_is_control(const sl_tok *tok, int32_t id)
{
    return has_id(tok, id) && sl_special_is_hidden(&tok->vocab, (uint32_t)id);
}

int32_t sl_tok_find(const sl_tok *tok, const char *text)
{
    return sl_vocab_find_spelling(&tok->vocab, text, strlen(text));
}

bool sl_tok_is_end(const sl_tok *tok, int32_t id)
{
    static const char *const names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "</s>", "<|eom_id|>",
                                        "<end_of_turn>", "<|end_of_text|>"};
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

int32_t sl_tok_bos_id(const sl_tok *tok)
{
    return tok->bos_id;
}

int32_t sl_tok_eos(const sl_tok *tok)
{
    return tok->eos_id;
}
