/* tok/cut.c and sl_tok_feed: a text that comes in pieces, cut anywhere, has the ids of the whole; errors too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/effort.h"
#include "common/tok_pieces.h"
#include "common/tok_tiny.h"

enum { TEXT_BYTES = 600, ROUNDS = EFFORT_IS_SMALL ? 60 : 400 };

static const char *const patterns[] = {"default", "gpt-2", "smollm", "falcon", "llama-bpe", "qwen2", "qwen35", "tekken",
                                       "gpt-4o", "deepseek-v3", "deepseek-coder"};
static sl_budget budget;
static uint32_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* Characters of every kind that the patterns tell apart: letters, a mark, digits, signs, white space of all widths. */
static const char *const snippets[] = {"a", "T", "s", "aT", " ", " ", "  ", "\n", "\n", "\n\n", "\r\n", "\r", "!", "/",
                                       "'s", "'", "1", "12", "\xc3\xa9", "\xe3\x80\x82", "\xe4\xb8\xad", "\xe3\x80\x80",
                                       "\xe2\x80\xa8", "\xc2\xa0", "\xc2\x85", "\xcc\x81", "a\na", "a a", "a\n-", "<s>",
                                       "<s>\n", "<s> a", "\xf0\x9f\x98\x80", "T a T"};
enum { N_SNIPPETS = sizeof snippets / sizeof *snippets };

static size_t make_text(char *out)
{
    size_t n = 0, n_snippets = draw(60);
    for (size_t i = 0; i < n_snippets; i++) {
        const char *text = snippets[draw(N_SNIPPETS)];
        memcpy(out + n, text, strlen(text));
        n += strlen(text);
    }
    return n;
}

static sl_status encode_fed(sl_tok *tok, const char *text, size_t size, bool goes_on, bool special, sl_ids *out,
                            uint64_t *n_dropped, sl_err *err)
{
    sl_tok_feed feed;
    sl_status status = SL_OK;
    const uint32_t most = 1 + draw(draw(2) ? 4 : 60);
    sl_tok_feed_start(&feed, tok, goes_on, special);
    for (size_t at = 0, n; at < size && status == SL_OK; at += n) {
        n = draw(most + 1);
        n = n < size - at ? n : size - at;
        char *apart = malloc(n + 1); /* a sanitizer sees what is read beyond the piece */
        assert_non_null(apart);
        memcpy(apart, text + at, n);
        status = sl_tok_feed_put(&feed, apart, n, out, err);
        free(apart);
    }
    if (status == SL_OK)
        status = sl_tok_feed_end(&feed, out, err);
    *n_dropped = feed.n_dropped;
    sl_tok_feed_deinit(&feed);
    return status;
}

static void assert_same(sl_tok *tok, const char *text, size_t size, bool goes_on, bool special)
{
    sl_ids whole = {0}, fed = {0};
    sl_err err = {0}, fed_err = {0};
    uint64_t n_dropped = 0, n_fed_dropped = 0;
    sl_status status = goes_on ? sl_tok_encode_more(tok, text, size, special, &whole, &n_dropped, &err)
                               : sl_tok_encode(tok, text, size, special, &whole, &n_dropped, &err);
    assert_int_equal(encode_fed(tok, text, size, goes_on, special, &fed, &n_fed_dropped, &fed_err), status);
    assert_string_equal(err.text, fed_err.text);
    if (status == SL_OK) {
        if (whole.n != fed.n || (whole.n > 0 && memcmp(whole.ids, fed.ids, whole.n * sizeof *whole.ids) != 0))
            fail_msg("%zu ids in pieces, %zu of the whole '%.*s'", fed.n, whole.n, (int)size, text);
        assert_int_equal(n_dropped, n_fed_dropped);
    }
    sl_ids_deinit(&whole, &budget);
    sl_ids_deinit(&fed, &budget);
}

static void assert_all_texts(sl_tok *tok)
{
    char text[TEXT_BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = make_text(text);
        assert_same(tok, text, size, round & 1, round & 2);
        if (size == 0)
            continue;
        text[draw((uint32_t)size)] = (char)(0x80 + draw(128)); /* most often no UTF-8 */
        assert_same(tok, text, size, round & 1, round & 2);
    }
}

/* Every pair of bytes of the texts is a token: where words end shows in the ids. */
typedef struct pairs {
    char bytes[64];
    char spelt[64 * 64][8], parted[64 * 64][10];
    tok_tiny_item items[64 * 64 + 4];
    const char *merges[64 * 64];
    size_t n_bytes, n;
} pairs;

static void pairs_make(pairs *p, const char *special)
{
    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < N_SNIPPETS; i++)
        for (const char *c = snippets[i]; *c; c++)
            if (*c != '\x85' && !memchr(p->bytes, *c, p->n_bytes)) /* lacking, below */
                p->bytes[p->n_bytes++] = *c;
    assert_true(p->n_bytes < 64);
    for (size_t i = 0; i < p->n_bytes; i++) {
        for (size_t k = 0; k < p->n_bytes; k++, p->n++) {
            char left[4], right[4];
            sl_tok_text l = tok_tiny_spell(left, (uint8_t)p->bytes[i]), r = tok_tiny_spell(right, (uint8_t)p->bytes[k]);
            snprintf(p->spelt[p->n], sizeof p->spelt[0], "%.*s%.*s", (int)l.size, left, (int)r.size, right);
            snprintf(p->parted[p->n], sizeof p->parted[0], "%.*s %.*s", (int)l.size, left, (int)r.size, right);
            p->items[p->n] = (tok_tiny_item){p->spelt[p->n], SL_TOK_KIND_NORMAL};
            p->merges[p->n] = p->parted[p->n];
        }
    }
    p->items[p->n] = (tok_tiny_item){"<s>", SL_TOK_KIND_CONTROL};
    p->items[p->n + 1] = (tok_tiny_item){special, SL_TOK_KIND_USER_DEFINED};
}

static sl_tok *tok_of_pairs(const pairs *p, const char *pattern)
{
    tok_tiny tiny = {.tokens = p->items, .n_tokens = p->n + 2, .merges = p->merges, .n_merges = p->n,
                     .lacking = "\x85"};
    sl_tok_source source = tok_tiny_source(&tiny, pattern);
    sl_tok *tok;
    sl_err err = {0};
    if (sl_tok_create(&source, &budget, &tok, &err) != SL_OK)
        fail_msg("%s: %s", pattern, err.text);
    return tok;
}

static void words_in_pieces_are_those_of_the_whole(void **unused)
{
    (void)unused;
    static pairs p;
    static const char *const specials[] = {"<|x|>", "a a", "\na", "a\n", "  "}; /* the second and third lie across */
    for (size_t s = 0; s < sizeof specials / sizeof *specials; s++) {
        pairs_make(&p, specials[s]);
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
            sl_tok *tok = tok_of_pairs(&p, patterns[i]);
            assert_all_texts(tok);
            sl_tok_destroy(tok);
        }
    }
}

/* Pieces that go on across a space or a line's end, and a control token behind which the text begins anew. */
static void pieces_in_pieces_are_those_of_the_whole(void **unused)
{
    (void)unused;
    static const tok_piece plain[] = {{"\xe2\x96\x81", 1, -9}, {"\xe2\x96\x81""a", 1, -1}, {"a", 1, -8},
                                      {"T", 1, -8}, {"a""\xe2\x96\x81", 1, -2}, {"\n", 1, -5}, {"\n""a", 1, -3},
                                      {"\n\n", 4, 0}, {"<s>\n", 3, 0}, {"\xe4\xb8\xad", 1, -4}, {"a\n", 1, -2}};
    enum { N = sizeof plain / sizeof *plain };
    for (size_t n = 0; n < 2 * N; n++) {
        tok_pieces p = {.pieces = plain, .n_pieces = 1 + n / 2};
        sl_tok_source source = tok_pieces_source(&p);
        source.add_space_prefix = n & 1;
        sl_tok *tok;
        sl_err err = {0};
        if (sl_tok_create(&source, &budget, &tok, &err) != SL_OK)
            fail_msg("%s", err.text);
        assert_all_texts(tok);
        sl_tok_destroy(tok);
    }
}

/* What is held of usual texts is a word or a line, whatever has come before. */
static void little_is_held(void **unused)
{
    (void)unused;
    static pairs p;
    static const char *const texts[] = {"some words in a row ", "x = 1;\n", "\xe4\xb8\xad\xe3\x80\x82\n",
                                        "word, (word)\r\nword word"};
    pairs_make(&p, "<|x|>");
    sl_tok *tok = tok_of_pairs(&p, "llama-bpe");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sl_tok_feed feed;
        sl_ids ids = {0};
        sl_err err = {0};
        sl_tok_feed_start(&feed, tok, false, false);
        for (int round = 0; round < 2000; round++) {
            assert_int_equal(sl_tok_feed_put(&feed, texts[i], strlen(texts[i]), &ids, &err), SL_OK);
            assert_true(feed.n_held < 60);
        }
        assert_int_equal(sl_tok_feed_end(&feed, &ids, &err), SL_OK);
        sl_tok_feed_deinit(&feed);
        sl_ids_deinit(&ids, &budget);
    }
    sl_tok_destroy(tok);
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    static pairs p;
    static const char text[] = "aaaaaaaaaa aaa\naaaaaaaa";
    pairs_make(&p, "<|x|>");
    sl_tok *tok = tok_of_pairs(&p, "gpt-2");
    bool is_done = false;
    for (int64_t n = 1; !is_done; n++) {
        sl_tok_feed feed;
        sl_ids ids = {0};
        sl_err err = {0};
        sl_status status = SL_OK;
        budget.fail_in = n;
        sl_tok_feed_start(&feed, tok, false, false);
        for (size_t at = 0; at + 1 < sizeof text && status == SL_OK; at++)
            status = sl_tok_feed_put(&feed, text + at, 1, &ids, &err);
        if (status == SL_OK)
            status = sl_tok_feed_end(&feed, &ids, &err);
        is_done = budget.fail_in > 0;
        budget.fail_in = 0;
        assert_true(status == SL_OK ? is_done : strstr(err.text, "out of memory") != NULL);
        assert_true(n > 1 || status != SL_OK);
        sl_tok_feed_deinit(&feed);
        sl_ids_deinit(&ids, &budget);
    }
    sl_tok_destroy(tok);
}

static int setup(void **state)
{
    (void)state;
    sl_budget_init(&budget, UINT64_MAX);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return budget.used_bytes == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(words_in_pieces_are_those_of_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(pieces_in_pieces_are_those_of_the_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(little_is_held, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_allocation_fails, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
