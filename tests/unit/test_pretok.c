/* tok/pretok.c: where texts are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tok/pretok.h"

typedef struct shown {
    char text[512];
    size_t n;
} shown;

static sl_status piece_show(void *arg, sl_tok_text piece, sl_err *err)
{
    (void)err;
    shown *out = arg;
    assert_true(piece.size > 0 && out->n + piece.size + 1 < sizeof out->text);
    out->n += (size_t)snprintf(out->text + out->n, sizeof out->text - out->n, "%s%.*s", out->n ? "|" : "",
                               (int)piece.size, piece.data);
    return SL_OK;
}

/* text: no '|' in it. */
static void assert_split(const char *pattern, const char *text, const char *want)
{
    sl_budget budget;
    sl_pretok *pretok;
    sl_err err = {0};
    shown out = {.n = 0};
    sl_budget_init(&budget, UINT64_MAX);
    assert_int_equal(sl_pretok_create((sl_tok_text){pattern, strlen(pattern)}, &budget, &pretok, &err), SL_OK);
    assert_int_equal(sl_pretok_split(pretok, (sl_tok_text){text, strlen(text)}, piece_show, &out, &err), SL_OK);
    assert_string_equal(out.text, want);
    sl_pretok_destroy(pretok);
    assert_int_equal(budget.used_bytes, 0);
    sl_budget_deinit(&budget);
}

static void test_gpt2_pattern(void **state)
{
    (void)state;
    assert_split("gpt-2", "Hello, world's 12345 things", "Hello|,| world|'s| 12345| things");
    assert_split("gpt-2", "I'm you're he'd IT'S", "I|'m| you|'re| he|'d| IT|'|S");
    assert_split("gpt-2", "a  b   c\n\n d \n", "a| | b|  | c|\n\n| d| \n");
    assert_split("gpt-2", "\xc3\xa9t\xc3\xa9 \xc2\xbd\xe2\x85\xa3 \xe2\x82\xac!",
                 "\xc3\xa9t\xc3\xa9| \xc2\xbd\xe2\x85\xa3| \xe2\x82\xac!");
    assert_split("gpt-2", "a\n", "a|\n");
    assert_split("gpt-2", "\na", "\n|a"); /* one white space that the look-ahead forbids */
    assert_split("gpt-2", "", "");
}

static void test_white_space_is_unicodes(void **state)
{
    (void)state;
    /* U+3000 and U+0085 are white space: all but the last part from the word */
    assert_split("gpt-2", "\xe3\x80\x80\xe3\x80\x80x", "\xe3\x80\x80|\xe3\x80\x80|x");
    assert_split("gpt-2", "a\xc2\x85\xc2\x85", "a|\xc2\x85\xc2\x85");
    /* U+180E and U+200B are none: they take the space before them, and stand with punctuation */
    assert_split("gpt-2", " \xe1\xa0\x8e!", " \xe1\xa0\x8e!");
    assert_split("gpt-2", " \xe2\x80\x8b-", " \xe2\x80\x8b-");
}

static void test_smollm_pattern(void **state)
{
    (void)state;
    assert_split("smollm", "in 1984, x2", "in| |1|9|8|4|,| x|2");
    assert_split("smollm", "a  7", "a|  |7"); /* pieces are cut apart: the digit is not seen behind the white space */
    assert_split("smollm", "\xc2\xbd\xe2\x85\xa3", "\xc2\xbd|\xe2\x85\xa3");
    assert_split("smollm", "'5s", "'|5|s"); /* no contraction across a digit */
}

static void test_default_pattern(void **state)
{
    (void)state;
    assert_split("default", "Hello, world 12345!", "Hello|,| world| |123|45|!");
    assert_split("default", "a+b == c's", "a|+|b| |==| c|'|s");
    assert_split("default", "x\xc2\xa7 \xd9\xa1\xd9\xa2\xd9\xa3\xd9\xa4",
                 "x|\xc2\xa7| |\xd9\xa1\xd9\xa2\xd9\xa3\xd9\xa4");
}

static void test_unknown_patterns_are_refused(void **state)
{
    (void)state;
    sl_budget budget;
    sl_pretok *pretok;
    sl_err err;
    sl_budget_init(&budget, UINT64_MAX);
    assert_int_equal(sl_pretok_create((sl_tok_text){"llama-bpe2", 10}, &budget, &pretok, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "tokenizer: unknown split pattern \"llama-bpe2\" (tokenizer.ggml.pre), known are "
                                     "default, gpt-2, smollm"));
    assert_null(pretok);
    assert_int_equal(sl_pretok_create((sl_tok_text){"", 0}, &budget, &pretok, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "tokenizer: no split pattern (tokenizer.ggml.pre) given, known are default, "));
    assert_int_equal(sl_pretok_create((sl_tok_text){"smol\nlm", 7}, &budget, &pretok, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "\"smol?lm\""));
    sl_budget_deinit(&budget);
}

static sl_status piece_refuse(void *arg, sl_tok_text piece, sl_err *err)
{
    int *n = arg;
    return ++*n == 3 ? sl_err_set(err, SL_CANCELLED, "stop at %.*s", (int)piece.size, piece.data) : SL_OK;
}

static void test_an_error_stops_the_split(void **state)
{
    (void)state;
    sl_budget budget;
    sl_pretok *pretok;
    sl_err err = {0};
    int n = 0;
    sl_budget_init(&budget, UINT64_MAX);
    assert_int_equal(sl_pretok_create((sl_tok_text){"smollm", 6}, &budget, &pretok, &err), SL_OK);
    assert_int_equal(sl_pretok_split(pretok, (sl_tok_text){"a1 bc d e 2", 11}, piece_refuse, &n, &err), SL_CANCELLED);
    assert_string_equal(err.text, "stop at  bc");
    assert_int_equal(n, 3);
    sl_pretok_destroy(pretok);
    sl_budget_deinit(&budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_pattern),
        cmocka_unit_test(test_white_space_is_unicodes),
        cmocka_unit_test(test_smollm_pattern),
        cmocka_unit_test(test_default_pattern),
        cmocka_unit_test(test_unknown_patterns_are_refused),
        cmocka_unit_test(test_an_error_stops_the_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
