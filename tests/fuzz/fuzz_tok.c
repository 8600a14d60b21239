/* Any bytes as a text for one of the small tokenizers below, or - when the first byte says so - as vocabulary, merges
 * and text. What is encoded decodes to the text, less the bytes that were dropped, and streaming changes nothing.
 *
 * First byte: bits 0-1 the pattern, bit 2 special tokens, bit 3 a vocabulary that lacks bytes, bit 4 vocabulary from
 * the input: lines "kind digit, spelling" up to an empty one, merges up to an empty one, text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/tok_tiny.h"
#include "fuzz/fuzz.h"

static void require(bool truth)
{
    if (!truth)
        abort();
}

static const char *const patterns[] = {"smollm", "gpt-2", "default", "smollm"};

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
    static sl_tok *made[16];
    if (!made[mode & 15]) {
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
        sl_tok_source source = tok_tiny_source(&tiny, patterns[mode & 3]);
        require(sl_tok_create(&source, &kept, &made[mode & 15], NULL) == SL_OK);
    }
    return made[mode & 15];
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

static void check_text(sl_tok *tok, sl_tok_text text, bool special, sl_budget *budget)
{
    sl_ids ids = {0};
    sl_err err = {SL_OK, ""};
    uint64_t n_dropped = 0;
    sl_status status = sl_tok_encode(tok, text.data, text.size, special, &ids, &n_dropped, &err);
    bool is_utf8 = sl_utf8_check(text.data, text.size) == text.size;
    require(status == (is_utf8 ? SL_OK : SL_FAILED));
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
    source.pattern = (sl_tok_text){patterns[mode & 3], strlen(patterns[mode & 3])};
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    sl_tok_text text = {(const char *)data + 1, size - 1};
    if (data[0] & 16) {
        check_source(text, data[0]);
    } else {
        check_text(tok_of(data[0]), text, data[0] & 4, &kept);
    }
    return 0;
}
