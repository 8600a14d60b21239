/* SentencePiece's BPE: hand values, against a definition that merges the plain way, bad sources, failing memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/tok_pieces.h"

#define SP "\xe2\x96\x81" /* U+2581 */

enum { S = TOK_PIECES_FIRST, H, E, L, O, X, SX, HE, LL, LLO, SHE, HELLO, TABS, X2, X3, X4, E_ACUTE, TURN, XL, ANY };

static const tok_piece pieces[] = {
    {SP, 1, -100},   {"h", 1, -101},      {"e", 1, -102},       {"l", 1, -103},     {"o", 1, -104},
    {"x", 1, -105},  {SP "x", 1, -9},     {"he", 1, -3},        {"ll", 1, -2},      {"llo", 1, -5},
    {SP "he", 1, -6}, {"hello", 1, -7},   {"\t\t", 4, 0},       {"xx", 1, -8},      {"xxx", 5, -11},
    {"xxxx", 5, -10}, {"\xc3\xa9", 1, -50}, {"<|turn|>", 3, 0}, {"xl", 4, 0},
    {"hhehlhoeeleolooh", 1, -200}, /* never comes about; any two of these letters may stand side by side */
};

static sl_budget budget;

static tok_pieces of(const tok_piece *list, size_t n)
{
    return (tok_pieces){.pieces = list, .n_pieces = n};
}

static sl_tok *tok_new(bool prefix)
{
    tok_pieces p = of(pieces, sizeof pieces / sizeof *pieces);
    sl_tok_source source = tok_pieces_source(&p);
    sl_tok *tok;
    sl_err err = {0};
    source.add_space_prefix = prefix;
    if (sl_tok_create(&source, &budget, &tok, &err) != SL_OK)
        fail_msg("%s", err.text);
    return tok;
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

/* want: ids, ended by -1 */
static void expect(sl_tok *tok, const char *text, bool special, const int32_t *want)
{
    sl_ids ids = {0};
    sl_err err = {0};
    size_t n = 0;
    for (int again = 0; again < 2; again++) { /* the second time words are known */
        ids.n = 0;
        if (sl_tok_encode(tok, text, strlen(text), special, &ids, NULL, &err) != SL_OK)
            fail_msg("%s", err.text);
        for (n = 0; want[n] >= 0; n++)
            assert_true(n < ids.n && ids.ids[n] == want[n]);
        assert_int_equal(ids.n, n);
    }
    sl_ids_deinit(&ids, &budget);
}

#define IDS(...) ((const int32_t[]){__VA_ARGS__, -1})
#define BYTE(b) (TOK_PIECES_BYTES + (b))

static void pieces_merge_by_score(void **unused)
{
    (void)unused;
    sl_tok *tok = tok_new(false);
    assert_int_equal(ANY + 1, TOK_PIECES_FIRST + sizeof pieces / sizeof *pieces);
    expect(tok, "hello", false, IDS(HELLO));    /* ll, he, llo, then hello */
    expect(tok, " hello", false, IDS(SHE, LLO)); /* _he is better than hello */
    expect(tok, "ell", false, IDS(E, LL));
    expect(tok, "lll", false, IDS(LL, L)); /* of equal ones the leftmost */
    expect(tok, "xx", false, IDS(X2));
    expect(tok, SP "x", false, IDS(SX)); /* U+2581 is a space */
    expect(tok, "  x", false, IDS(S, SX));
    sl_tok_destroy(tok);
}

static void what_is_no_piece_is_bytes(void **unused)
{
    (void)unused;
    sl_tok *tok = tok_new(false);
    expect(tok, "h\xe2\x82\xac\n", false, IDS(H, BYTE(0xe2), BYTE(0x82), BYTE(0xac), BYTE('\n')));
    expect(tok, "\xc3\xa9", false, IDS(E_ACUTE));
    expect(tok, "<0x41>", false, IDS(BYTE('<'), BYTE('0'), X, BYTE('4'), BYTE('1'), BYTE('>'))); /* no byte's name */
    sl_tok_destroy(tok);
}

/* xxxx comes about by xx, then is taken apart as it was put together; xxx, by xx and x. */
static void unused_pieces_are_taken_apart(void **unused)
{
    (void)unused;
    sl_tok *tok = tok_new(false);
    expect(tok, "xxxx", false, IDS(X2, X2));
    expect(tok, "xxx", false, IDS(X2, X));
    sl_tok_destroy(tok);
}

/* Found by fuzzing: an unknown or control token of one letter stood for that letter in plain text. */
static void control_tokens_are_no_pieces(void **unused)
{
    (void)unused;
    const tok_piece list[] = {{SP, 1, -1}, {"q", 2, 0}, {"z", 3, 0}, {"z", 1, -2}};
    tok_pieces p = of(list, 4);
    sl_tok_source source = tok_pieces_source(&p);
    sl_tok *tok;
    sl_err err = {0};
    if (sl_tok_create(&source, &budget, &tok, &err) != SL_OK)
        fail_msg("%s", err.text);
    expect(tok, "qz", false, IDS(S, BYTE('q'), S + 3));
    expect(tok, "qz", true, IDS(S + 1, S + 2));
    sl_tok_destroy(tok);
}

static void user_defined_pieces_come_first(void **unused)
{
    (void)unused;
    sl_tok *tok = tok_new(false);
    expect(tok, "x\t\t\tx", false, IDS(X, TABS, BYTE('\t'), X));
    expect(tok, "xxll", false, IDS(X, XL, L));
    sl_tok_destroy(tok);
}

static void texts_begin_with_a_space_of_their_own(void **unused)
{
    (void)unused;
    sl_tok *tok = tok_new(true);
    sl_ids ids = {0};
    sl_err err = {0};
    expect(tok, "x", false, IDS(SX));
    expect(tok, " x", false, IDS(S, SX)); /* one more */
    expect(tok, "", false, IDS(-1));
    expect(tok, "x<|turn|>x<|turn|> x<|turn|><|turn|>", true, IDS(SX, TURN, SX, TURN, SX, TURN, TURN));
    expect(tok, "\t\tx", false, IDS(S, TABS, X));
    assert_int_equal(SL_OK, sl_tok_encode_more(tok, "x", 1, false, &ids, NULL, &err));
    assert_int_equal(1, ids.n);
    assert_int_equal(X, ids.ids[0]);
    ids.n = 0;
    assert_int_equal(SL_OK, sl_tok_encode(tok, "<|turn|>", 8, false, &ids, NULL, &err)); /* text, not the token */
    assert_true(ids.n > 3);
    sl_ids_deinit(&ids, &budget);
    /* and lose it again */
    const struct {
        int32_t before, id;
        const char *text;
    } cases[] = {{-1, SX, "x"}, {X, SX, " x"}, {TURN, SX, "x"}, {TURN, S, ""}, {TURN, X, "x"}, {-1, BYTE(' '), ""},
                 {X, BYTE(0xe2), "\xe2"}, {-1, TABS, "\t\t"}, {X, TURN, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sl_tok_text text = sl_tok_bytes_behind(tok, cases[i].before, cases[i].id, false);
        assert_int_equal(strlen(cases[i].text), text.size);
        assert_memory_equal(cases[i].text, text.data, text.size);
    }
    assert_int_equal(8, sl_tok_bytes_behind(tok, X, TURN, true).size);
    sl_tok_destroy(tok);
}

/* ------------------------------------------------------------------------------------- against the plain definition */

/* All neighbours looked at again for each merge; ids are found by spelling. Without unused pieces. */
static size_t merge_plainly(const char *text, int32_t *out)
{
    size_t starts[512], n = 0;
    for (size_t at = 0; text[at]; at++)
        starts[n++] = at;
    starts[n] = strlen(text);
    for (;;) {
        double best_score = -INFINITY;
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
                size_t size = starts[i + 2] - starts[i];
                if (pieces[k].kind == 1 && strlen(pieces[k].text) == size &&
                    memcmp(pieces[k].text, text + starts[i], size) == 0 && pieces[k].score > best_score) {
                    best_score = pieces[k].score;
                    best = i;
                }
            }
        if (best == n)
            break;
        memmove(starts + best + 1, starts + best + 2, (n - best - 1) * sizeof *starts);
        n--;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++)
            if (strlen(pieces[k].text) == starts[i + 1] - starts[i] &&
                memcmp(pieces[k].text, text + starts[i], starts[i + 1] - starts[i]) == 0)
                out[i] = (int32_t)(S + k);
    return n;
}

static void long_and_short_runs_are_the_definition(void **unused)
{
    (void)unused;
    sl_tok *tok = tok_new(false);
    uint32_t seed = 1;
    for (int round = 0; round < 3000; round++) {
        char text[301];
        int32_t want[512];
        size_t size = 1 + (round < 2000 ? (size_t)round % 90 : (size_t)round % 300);
        for (size_t i = 0; i < size; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = "hello"[seed >> 20 & 3 ? (seed >> 24) % 5 : 2];
        }
        text[size] = '\0';
        sl_ids ids = {0};
        sl_err err = {0};
        assert_int_equal(SL_OK, sl_tok_encode(tok, text, size, false, &ids, NULL, &err));
        assert_int_equal(merge_plainly(text, want), ids.n);
        assert_memory_equal(want, ids.ids, ids.n * sizeof *want);
        sl_ids_deinit(&ids, &budget);
    }
    sl_tok_destroy(tok);
}

/* Twice the text takes about twice the time, without a place to split it; quadratic it would take minutes. */
static void a_long_run_is_not_quadratic(void **unused)
{
    (void)unused;
    enum { SIZE = 1 << 20 };
    sl_tok *tok = tok_new(true);
    char *text = malloc(SIZE);
    sl_ids ids = {0};
    sl_err err = {0};
    assert_non_null(text);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = "hello"[i % 7 % 5];
    clock_t start = clock();
    assert_int_equal(SL_OK, sl_tok_encode(tok, text, SIZE, false, &ids, NULL, &err));
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("one run of 1 MiB: %.2f s\n", seconds);
    assert_true(seconds < 20);
    memset(text, 'l', SIZE);
    assert_int_equal(SL_OK, sl_tok_encode(tok, text, SIZE, false, &ids, NULL, &err));
    assert_int_equal(LL, ids.ids[ids.n - 1]);
    sl_ids_deinit(&ids, &budget);
    free(text);
    sl_tok_destroy(tok);
}

/* ------------------------------------------------------------------------------------------------------ bad sources */

static void refused(sl_tok_source source, sl_status want, const char *text)
{
    sl_err err = {0};
    sl_tok *tok;
    assert_int_equal(sl_tok_create(&source, &budget, &tok, &err), want);
    assert_null(tok);
    assert_string_equal(err.text, text);
    assert_int_equal(budget.used_bytes, 0);
}

static int32_t skipped; /* a token that the walk leaves out */

static bool token_but_one(void *arg, sl_tok_text *out)
{
    tok_pieces *p = arg;
    p->at_token += p->at_token == (size_t)skipped;
    return tok_pieces_token(arg, out);
}

static bool kind_but_one(void *arg, int *out)
{
    tok_pieces *p = arg;
    p->at_kind += p->at_kind == (size_t)skipped;
    return tok_pieces_kind(arg, out);
}

static void bad_sources_are_refused(void **unused)
{
    (void)unused;
    tok_pieces p = of(pieces, 5);
    sl_tok_source source = tok_pieces_source(&p);
    source.next_score = NULL;
    refused(source, SL_DAMAGED, "tokenizer: no scores (tokenizer.ggml.scores), which order the merges");
    source = tok_pieces_source(&p);
    source.next_kind = NULL;
    refused(source, SL_DAMAGED, "tokenizer: no token types (tokenizer.ggml.token_type), which tell bytes");
    source = tok_pieces_source(&p);
    source.n_tokens++;
    refused(source, SL_DAMAGED, "tokenizer: 264 token types for 265 tokens");
    const tok_piece nan[] = {{"a", 1, 0}, {"b", 1, NAN}}, infinite[] = {{"a", 1, -INFINITY}};
    p = of(nan, 2);
    refused(tok_pieces_source(&p), SL_DAMAGED, "tokenizer: token 260 has the score nan, expected a finite number");
    p = of(infinite, 1);
    refused(tok_pieces_source(&p), SL_DAMAGED, "tokenizer: token 259 has the score -inf, expected a finite number");
    const tok_piece bytes[] = {{"<0x4g>", 6, 0}}, small[] = {{"<0xaF>", 6, 0}}, twice[] = {{"<0x41>", 6, 0}};
    p = of(bytes, 1);
    refused(tok_pieces_source(&p), SL_DAMAGED,
            "tokenizer: token 259 \"<0x4g>\" is to be a byte, expected <0x00> to <0xFF>");
    p = of(small, 1);
    refused(tok_pieces_source(&p), SL_DAMAGED,
            "tokenizer: token 259 \"<0xaF>\" is to be a byte, expected <0x00> to <0xFF>");
    p = of(twice, 1);
    refused(tok_pieces_source(&p), SL_DAMAGED, "tokenizer: token 259 is spelt like token 68");
    const tok_piece same[] = {{"a", 1, 0}, {"a", 5, 0}}, kind[] = {{"a", 7, 0}};
    p = of(same, 2);
    refused(tok_pieces_source(&p), SL_DAMAGED, "tokenizer: token 260 is spelt like token 259");
    p = of(kind, 1);
    refused(tok_pieces_source(&p), SL_DAMAGED, "tokenizer: token 259 has type 7, known are 1 to 6");
    p = of(pieces, 5);
    skipped = TOK_PIECES_BYTES + 0x7f;
    source = tok_pieces_source(&p);
    source.n_tokens--;
    source.next_token = token_but_one;
    source.next_kind = kind_but_one;
    refused(source, SL_REFUSED,
            "tokenizer: no token for the byte 0x7f: a vocabulary without byte fallback is not supported");
}

/* The n-th allocation fails, n = 1, 2, ..., until all succeed. */
static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    char text[400];
    memset(text, 'x', sizeof text);
    bool is_done = false;
    for (int64_t n = 1; !is_done; n++) {
        tok_pieces p = of(pieces, sizeof pieces / sizeof *pieces);
        sl_tok_source source = tok_pieces_source(&p);
        sl_tok *tok;
        sl_ids ids = {0};
        sl_err err = {0};
        budget.fail_in = n;
        sl_status status = sl_tok_create(&source, &budget, &tok, &err);
        if (status == SL_OK)
            status = sl_tok_encode(tok, text, sizeof text, true, &ids, NULL, &err);
        is_done = budget.fail_in > 0;
        budget.fail_in = 0;
        assert_int_equal(status, is_done ? SL_OK : SL_FAILED);
        assert_true(is_done || ids.n == 0);
        sl_ids_deinit(&ids, &budget);
        sl_tok_destroy(tok);
        assert_int_equal(budget.used_bytes, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_merge_by_score),
        cmocka_unit_test(what_is_no_piece_is_bytes),
        cmocka_unit_test(unused_pieces_are_taken_apart),
        cmocka_unit_test(control_tokens_are_no_pieces),
        cmocka_unit_test(user_defined_pieces_come_first),
        cmocka_unit_test(texts_begin_with_a_space_of_their_own),
        cmocka_unit_test(long_and_short_runs_are_the_definition),
        cmocka_unit_test(a_long_run_is_not_quadratic),
        cmocka_unit_test(bad_sources_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
