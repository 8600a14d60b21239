/* Any bytes as a text for one of the small tokenizers below, or - when the first byte says so - as vocabulary, merges
 * and text. What is encoded decodes to the text, less the bytes that were dropped, and streaming changes nothing.
 *
 * First byte: bits 0-1 the pattern, bit 2 special tokens, bit 3 a vocabulary that lacks bytes (of SentencePiece: no
 * space of its own), bit 4 vocabulary from the input: lines "kind digit, spelling" up to an empty one, merges up to an
 * empty one, text; bit 5 SentencePiece: lines "kind digit, score letter, spelling", the 256 bytes before them, no
 * merges; bit 6 more patterns. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/tok_pieces.h"
#include "common/tok_tiny.h"
#include "fuzz/fuzz.h"

static void require(bool truth)
{
    if (!truth)
        abort();
}

static const char *const patterns[] = {"smollm", "gpt-2", "default", "deepseek-coder",
                                       "llama-bpe", "tekken", "gpt-4o", "deepseek-v3"};

static const char *pattern_of(unsigned mode)
{
    return patterns[(mode & 3) | (mode & 64 ? 4 : 0)];
}

static const tok_tiny_item tokens[] = {
    {"<|im_end|>", SL_TOK_KIND_CONTROL},
    {"<|im", SL_TOK_KIND_CONTROL},
    {"  ", SL_TOK_KIND_USER_DEFINED},
    {"th", 1},
    {"\xc4\xa0th", 1},
    {"the", 1},
    {"\xc4\xa0t", 1},
    {"aa", 1},
    {"aaaa", 1},
    {"aaa", 1},
    {"!!", 1},
    {"in", 1},
    {"\xc3\x83\xc2\xa9", 1},
    {"\xc3\xa2\xc4\xa4", 1},
    {"\xc4\xa0\xc4\xa0", 1},
    {"\xc4\x8a\xc4\x8a", 1},
    {"ing", 1},
};
static const char *const merges[] = {
    "t h",
    "\xc4\xa0 t",
    "\xc4\xa0t h",
    "th e",
    "aa aa",
    "a a",
    "aa a",
    "! !",
    "i n",
    "\xc3\x83 \xc2\xa9",
    "\xc3\xa2 \xc4\xa4",
    "\xc4\xa0 \xc4\xa0",
    "\xc4\x8a \xc4\x8a",
    "in g",
};

static sl_budget kept; /* of the tokenizers that are kept from input to input */

static sl_tok *tok_of(unsigned mode)
{
    static sl_tok *made[32];
    unsigned which = (mode & 15) | (mode & 64 ? 16 : 0);
    if (!made[which]) {
        tok_tiny tiny = {.tokens = tokens, .n_tokens = sizeof tokens / sizeof *tokens};
        tiny.merges = merges;
        tiny.n_merges = sizeof merges / sizeof *merges;
        tiny.lacking = mode & 8 ? "\x04\x05!q\xf1" : NULL;
        if (mode & 8) { /* without '!' there is no "! !" */
            tiny.merges = merges + 8;
            tiny.n_merges -= 8;
        }
        if (kept.limit_bytes == 0)
            sl_budget_init(&kept, UINT64_MAX);
        sl_tok_source source = tok_tiny_source(&tiny, pattern_of(mode));
        require(sl_tok_create(&source, &kept, &made[which], NULL) == SL_OK);
    }
    return made[which];
}

typedef struct sink {
    char *text;
    size_t size, cap;
} sink;

static void sink_emit(void *arg, const char *text, size_t size)
{
    sink *out = arg;
    require(size > 0 && size <= out->cap - out->size && sl_utf8_check(text, size) == size);
    memcpy(out->text + out->size, text, size);
    out->size += size;
}

/* The tokens' bytes through the stream: the text, when no byte was dropped. */
static void check_decoded(const sl_tok *tok, const sl_ids *ids, sl_tok_text text, uint64_t n_dropped)
{
    sl_utf8_stream stream = {0};
    sink out = {.cap = 3 * text.size + 8};
    out.text = malloc(out.cap);
    require(out.text != NULL);
    size_t n_bytes = 0;
    for (size_t i = 0; i < ids->n; i++) {
        sl_tok_text bytes = sl_tok_bytes(tok, ids->ids[i], true);
        require(bytes.size > 0);
        n_bytes += bytes.size;
        sl_utf8_stream_feed(&stream, bytes.data, bytes.size, sink_emit, &out);
    }
    sl_utf8_stream_end(&stream, sink_emit, &out);
    require(n_bytes + n_dropped == text.size);
    if (n_dropped == 0)
        require(out.size == text.size && memcmp(out.text, text.data, text.size) == 0);
    free(out.text);
}

/* In pieces of growing size: the ids, or the error, of the whole. */
static void check_fed(sl_tok *tok, sl_tok_text text, bool special, const sl_ids *whole, const sl_err *whole_err,
                      sl_budget *budget)
{
    sl_ids ids = {0};
    sl_err err = {SL_OK, ""};
    sl_status status = SL_OK;
    sl_tok_feed feed;
    sl_tok_feed_start(&feed, tok, false, special);
    for (size_t at = 0, n = 1; at < text.size && status == SL_OK; at += n, n = n % 7 + 1) {
        n = n < text.size - at ? n : text.size - at;
        status = sl_tok_feed_put(&feed, text.data + at, n, &ids, &err);
    }
    if (status == SL_OK)
        status = sl_tok_feed_end(&feed, &ids, &err);
    sl_tok_feed_deinit(&feed);
    require(status == whole_err->status && strcmp(err.text, whole_err->text) == 0);
    if (status == SL_OK)
        require(ids.n == whole->n && (ids.n == 0 || memcmp(ids.ids, whole->ids, ids.n * sizeof *ids.ids) == 0));
    sl_ids_deinit(&ids, budget);
}

static void check_text(sl_tok *tok, sl_tok_text text, bool special, sl_budget *budget)
{
    sl_ids ids = {0};
    sl_err err = {SL_OK, ""};
    uint64_t n_dropped = 0;
    sl_status status = sl_tok_encode(tok, text.data, text.size, special, &ids, &n_dropped, &err);
    bool is_utf8 = sl_utf8_check(text.data, text.size) == text.size;
    require(status == (is_utf8 ? SL_OK : SL_FAILED));
    check_fed(tok, text, special, &ids, &err, budget);
    if (is_utf8)
        check_decoded(tok, &ids, text, n_dropped);
    else
        require(ids.n == 0 && strstr(err.text, "not UTF-8"));
    sl_ids_deinit(&ids, budget);
}

/* Vocabulary and merges as lines of the input. */
typedef struct lines {
    sl_tok_text rest, kinds, tokens, merges;
} lines;

static bool line_next(sl_tok_text *rest, sl_tok_text *out)
{
    const char *end = rest->size > 0 ? memchr(rest->data, '\n', rest->size) : NULL;
    size_t size = end ? (size_t)(end - rest->data) : rest->size;
    *out = (sl_tok_text){rest->data, size};
    rest->data += size + (end ? 1 : 0);
    rest->size -= size + (end ? 1 : 0);
    return size > 0;
}

static bool lines_token(void *arg, sl_tok_text *out)
{
    bool is_one = line_next(&((lines *)arg)->tokens, out);
    *out = (sl_tok_text){out->data + is_one, out->size - is_one};
    return is_one;
}

static bool lines_kind(void *arg, int *out)
{
    sl_tok_text line;
    bool is_one = line_next(&((lines *)arg)->kinds, &line);
    *out = is_one ? line.data[0] - '0' : 0;
    return is_one;
}

static bool lines_merge(void *arg, sl_tok_text *out)
{
    return line_next(&((lines *)arg)->merges, out);
}

static void check_source(sl_tok_text input, unsigned mode)
{
    lines all = {input, input, input, input};
    sl_tok_text line;
    sl_tok_source source = {.model = {"gpt2", 4}, .bos_id = -1, .eos_id = -1, .eot_id = -1, .arg = &all};
    source.pattern = (sl_tok_text){pattern_of(mode), strlen(pattern_of(mode))};
    source.next_token = lines_token;
    source.next_kind = lines_kind;
    source.next_merge = lines_merge;
    while (line_next(&all.rest, &line))
        source.n_tokens++;
    all.merges = all.rest;
    while (line_next(&all.rest, &line))
        source.n_merges++;
    sl_budget budget;
    sl_err err = {SL_OK, ""};
    sl_tok *tok;
    sl_budget_init(&budget, UINT64_MAX);
    sl_status status = sl_tok_create(&source, &budget, &tok, &err);
    bool is_refusal = status == SL_DAMAGED || status == SL_REFUSED;
    require(status == SL_OK || (is_refusal && !tok && err.text[0] != '\0' && !strchr(err.text, '\n')));
    if (tok) {
        check_text(tok, all.rest, false, &budget);
        check_text(tok, all.rest, true, &budget);
    }
    sl_tok_destroy(tok);
    require(budget.used_bytes == 0);
    sl_budget_deinit(&budget);
}

/* ---------------------------------------------------------------------------------------------------- SentencePiece */

static const tok_piece pieces[] = {
    {"\xe2\x96\x81", 1, -1},     {"t", 1, -20},          {"h", 1, -21},           {"e", 1, -22},
    {"th", 1, -2},              {"the", 1, -3},         {"\xe2\x96\x81the", 1, -4}, {"\xe2\x96\x81\xe2\x96\x81", 1, -5},
    {"\xe2\x96\x81t", 1, -6},  {"aa", 1, -7},          {"aaaa", 5, -8},         {"aaa", 5, -9},
    {"a", 1, -23},              {"\n\n", 4, 0},         {"<|im_end|>", 3, 0},    {"<|im", 3, 0},
    {"\xc3\xa9", 1, -10},       {"he\xe2\x96\x81", 4, 0},
};

/* The bytes of the tokens are the text with its spaces as spaces, behind one of the tokenizer's own. */
static void check_pieces_text(sl_tok *tok, sl_tok_text text, bool special, sl_budget *budget)
{
    sl_ids ids = {0};
    bool is_utf8 = sl_utf8_check(text.data, text.size) == text.size;
    char *spaces = malloc(text.size + 1), *got = NULL;
    require(spaces != NULL);
    require(sl_tok_encode(tok, text.data, text.size, special, &ids, NULL, NULL) == (is_utf8 ? SL_OK : SL_FAILED));
    size_t n = 0, n_got = 0;
    for (size_t i = 0; i < text.size; n++) {
        bool is_space = text.size - i >= 3 && memcmp(text.data + i, "\xe2\x96\x81", 3) == 0;
        spaces[n] = is_space ? ' ' : text.data[i];
        i += is_space ? 3 : 1;
    }
    for (size_t i = 0; i < ids.n; i++) {
        sl_tok_text bytes = sl_tok_bytes_behind(tok, i == 0 ? -1 : ids.ids[i - 1], ids.ids[i], true);
        require(n_got + bytes.size <= n);
        n_got += bytes.size;
    }
    if (is_utf8 && !special) {
        got = malloc(n_got + 1);
        require(got != NULL && n_got == n);
        for (size_t i = 0, at = 0; i < ids.n; i++) {
            sl_tok_text bytes = sl_tok_bytes_behind(tok, i == 0 ? -1 : ids.ids[i - 1], ids.ids[i], false);
            memcpy(got + at, bytes.data, bytes.size);
            at += bytes.size;
        }
        require(memcmp(got, spaces, n) == 0);
    }
    free(got);
    free(spaces);
    sl_ids_deinit(&ids, budget);
}

/* The bytes' tokens and the input's lines, which begin with kind and score. */
typedef struct piece_lines {
    sl_tok_text tokens, kinds, scores;
    size_t at_token, at_kind, at_score;
    char spelling[8];
} piece_lines;

static bool piece_line(sl_tok_text *rest, sl_tok_text *out)
{
    return line_next(rest, out) && out->size >= 2;
}

static bool piece_token(void *arg, sl_tok_text *out)
{
    piece_lines *p = arg;
    size_t i = p->at_token++;
    if (i < 256) {
        snprintf(p->spelling, sizeof p->spelling, "<0x%02X>", (unsigned)i & 255u);
        *out = (sl_tok_text){p->spelling, 6};
        return true;
    }
    bool is_one = piece_line(&p->tokens, out);
    *out = is_one ? (sl_tok_text){out->data + 2, out->size - 2} : *out;
    return is_one;
}

static bool piece_kind(void *arg, int *out)
{
    piece_lines *p = arg;
    sl_tok_text line;
    bool is_byte = p->at_kind++ < 256, is_one = is_byte || piece_line(&p->kinds, &line);
    *out = is_byte ? SL_TOK_KIND_BYTE : is_one ? line.data[0] - '0' : 0;
    return is_one;
}

static bool piece_score(void *arg, double *out)
{
    piece_lines *p = arg;
    sl_tok_text line;
    bool is_byte = p->at_score++ < 256, is_one = is_byte || piece_line(&p->scores, &line);
    *out = is_byte || !is_one ? 0.0 : line.data[1] == '!' ? (double)NAN : (double)line.data[1];
    return is_one;
}

static void check_pieces_source(sl_tok_text input, unsigned mode)
{
    piece_lines all = {.tokens = input, .kinds = input, .scores = input};
    sl_tok_text rest = input, line;
    sl_tok_source source = {.model = {"llama", 5}, .n_tokens = 256, .bos_id = -1, .eos_id = -1, .eot_id = -1};
    source.next_token = piece_token;
    source.next_kind = piece_kind;
    source.next_score = piece_score;
    source.arg = &all;
    source.add_space_prefix = !(mode & 8);
    while (line_next(&rest, &line))
        source.n_tokens++;
    sl_budget budget;
    sl_err err = {SL_OK, ""};
    sl_tok *tok;
    sl_budget_init(&budget, UINT64_MAX);
    sl_status status = sl_tok_create(&source, &budget, &tok, &err);
    bool is_refusal = status == SL_DAMAGED || status == SL_REFUSED;
    require(status == SL_OK || (is_refusal && !tok && err.text[0] != '\0' && !strchr(err.text, '\n')));
    if (tok) {
        check_pieces_text(tok, rest, false, &budget);
        check_pieces_text(tok, rest, true, &budget);
    }
    sl_tok_destroy(tok);
    require(budget.used_bytes == 0);
    sl_budget_deinit(&budget);
}

static void check_pieces(sl_tok_text text, unsigned mode)
{
    static sl_tok *made[2];
    unsigned which = mode & 8 ? 1 : 0;
    if (kept.limit_bytes == 0)
        sl_budget_init(&kept, UINT64_MAX);
    if (!made[which]) {
        tok_pieces p = {.pieces = pieces, .n_pieces = sizeof pieces / sizeof *pieces};
        sl_tok_source source = tok_pieces_source(&p);
        source.add_space_prefix = which == 0;
        require(sl_tok_create(&source, &kept, &made[which], NULL) == SL_OK);
    }
    check_pieces_text(made[which], text, mode & 4, &kept);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    sl_tok_text text = {(const char *)data + 1, size - 1};
    if (data[0] & 32 && data[0] & 16) {
        check_pieces_source(text, data[0]);
    } else if (data[0] & 32) {
        check_pieces(text, data[0]);
    } else if (data[0] & 16) {
        check_source(text, data[0]);
    } else {
        check_text(tok_of(data[0]), text, data[0] & 4, &kept);
    }
    return 0;
}
