/* tok/tok.c and tok/vocab.c: special tokens, bytes and ids, bad sources, failing memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/tok_tiny.h"

enum { N_BYTES = 256, END = N_BYTES, END_TURN, USER_SPACES, USER_E, START, START_LONG, PAD, HE, HELLO, UNKNOWN };

static const tok_tiny_item tokens[] = {
    {"<|endoftext|>", SL_TOK_KIND_CONTROL},
    {"<|im_end|>", SL_TOK_KIND_CONTROL},
    {"  ", SL_TOK_KIND_USER_DEFINED},       /* bytes that "\u0120\u0120" would have too */
    {"\xc3\xa9", SL_TOK_KIND_USER_DEFINED}, /* a character spelt out: not the byte 0xe9 */
    {"<s>", SL_TOK_KIND_CONTROL},
    {"<s>>", SL_TOK_KIND_USER_DEFINED},
    {"", SL_TOK_KIND_UNUSED},
    {"he", SL_TOK_KIND_NORMAL},
    {"\xc4\xa0hello", SL_TOK_KIND_NORMAL},
    {"<unk>", SL_TOK_KIND_UNKNOWN},
};
static const char *const merges[] = {"h e"};

static tok_tiny tiny_of(void)
{
    return (tok_tiny){.tokens = tokens, .n_tokens = sizeof tokens / sizeof *tokens, .merges = merges, .n_merges = 1};
}

static sl_budget budget;

static sl_tok *tok_new(void)
{
    tok_tiny tiny = tiny_of();
    sl_tok_source source = tok_tiny_source(&tiny, "gpt-2");
    sl_tok *tok;
    sl_err err = {0};
    source.bos_id = START;
    source.eos_id = END_TURN;
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
static void assert_ids(sl_tok *tok, const char *text, bool special, const int32_t *want)
{
    sl_ids ids = {0};
    sl_err err = {0};
    size_t n = 0;
    if (sl_tok_encode(tok, text, strlen(text), special, &ids, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
    for (; want[n] >= 0; n++)
        assert_true(n < ids.n && ids.ids[n] == want[n]);
    assert_int_equal(ids.n, n);
    sl_ids_deinit(&ids, &budget);
}

static void test_special_tokens(void **state)
{
    (void)state;
    sl_tok *tok = tok_new();
    assert_ids(tok, "he<s>he", true, (int32_t[]){HE, START, HE, -1});
    assert_ids(tok, "<s>", false, (int32_t[]){'<', 's', '>', -1});
    assert_ids(tok, "<s>>", true, (int32_t[]){START_LONG, -1});  /* the longest */
    assert_ids(tok, "<s>>", false, (int32_t[]){START_LONG, -1}); /* user-defined: always */
    assert_ids(tok, "<<s>", true, (int32_t[]){'<', START, -1});
    assert_ids(tok, "<s", true, (int32_t[]){'<', 's', -1});
    assert_ids(tok, "<s><|im_end|>", true, (int32_t[]){START, END_TURN, -1});
    assert_ids(tok, "<unk>", true, (int32_t[]){UNKNOWN, -1});
    assert_ids(tok, "a  b", false, (int32_t[]){'a', USER_SPACES, 'b', -1});
    assert_ids(tok, "x\xc3\xa9", false, (int32_t[]){'x', USER_E, -1});
    assert_ids(tok, "", true, (int32_t[]){-1});
    sl_tok_destroy(tok);
}

static void test_bytes_of_tokens(void **state)
{
    (void)state;
    sl_tok *tok = tok_new();
    sl_tok_text text = sl_tok_bytes(tok, HELLO, false);
    assert_int_equal(text.size, 6);
    assert_memory_equal(text.data, " hello", 6);
    for (int32_t byte = 0; byte < 256; byte++) {
        text = sl_tok_bytes(tok, byte, false);
        assert_int_equal(text.size, 1);
        assert_int_equal((uint8_t)text.data[0], byte);
    }
    assert_int_equal(sl_tok_bytes(tok, END, false).size, 0);
    assert_int_equal(sl_tok_bytes(tok, UNKNOWN, false).size, 0);
    assert_int_equal(sl_tok_bytes(tok, PAD, true).size, 0);
    text = sl_tok_bytes(tok, END, true);
    assert_int_equal(text.size, 13);
    assert_memory_equal(text.data, "<|endoftext|>", 13);
    text = sl_tok_bytes(tok, USER_E, false);
    assert_int_equal(text.size, 2);
    assert_memory_equal(text.data, "\xc3\xa9", 2);
    assert_int_equal(sl_tok_bytes(tok, -1, true).size, 0);
    assert_int_equal(sl_tok_bytes(tok, 100000, true).size, 0);
    sl_tok_destroy(tok);
}

static void test_finding_and_ends(void **state)
{
    (void)state;
    sl_tok *tok = tok_new();
    assert_int_equal(sl_tok_n_tokens(tok), N_BYTES + sizeof tokens / sizeof *tokens);
    assert_int_equal(sl_tok_find(tok, "<|im_end|>"), END_TURN);
    assert_int_equal(sl_tok_find(tok, "\xc4\xa0hello"), HELLO);
    assert_int_equal(sl_tok_find(tok, "  "), USER_SPACES);
    assert_int_equal(sl_tok_find(tok, "\xc4\xa0"), ' ');
    assert_int_equal(sl_tok_find(tok, "nothing"), -1);
    assert_int_equal(sl_tok_find(tok, ""), -1);
    assert_true(sl_tok_is_end(tok, END_TURN));
    assert_true(sl_tok_is_end(tok, END));
    assert_false(sl_tok_is_end(tok, START));
    assert_false(sl_tok_is_end(tok, HE));
    assert_false(sl_tok_is_end(tok, -1));
    assert_int_equal(sl_tok_bos(tok), -1); /* add_bos is not set */
    assert_int_equal(sl_tok_eos(tok), END_TURN);
    sl_tok_destroy(tok);
}

static void test_bos_only_when_wanted(void **state)
{
    (void)state;
    tok_tiny tiny = tiny_of();
    sl_tok_source source = tok_tiny_source(&tiny, "smollm");
    sl_tok *tok;
    source.bos_id = START;
    source.add_bos = true;
    source.eot_id = HE;
    assert_int_equal(sl_tok_create(&source, &budget, &tok, NULL), SL_OK);
    assert_int_equal(sl_tok_bos(tok), START);
    assert_int_equal(sl_tok_eos(tok), -1);
    assert_true(sl_tok_is_end(tok, HE));
    sl_tok_destroy(tok);
}

static void test_text_that_is_not_utf8(void **state)
{
    (void)state;
    sl_tok *tok = tok_new();
    sl_ids ids = {0};
    sl_err err = {0};
    uint64_t n_dropped = 7;
    assert_int_equal(sl_ids_push(&ids, 42, &budget, &err), SL_OK);
    assert_int_equal(sl_tok_encode(tok, "hello \xff", 7, false, &ids, &n_dropped, &err), SL_FAILED);
    assert_string_equal(err.text, "text is not UTF-8: byte 0xff at offset 6");
    assert_int_equal(ids.n, 1);
    assert_int_equal(n_dropped, 7);
    sl_ids_deinit(&ids, &budget);
    sl_tok_destroy(tok);
}

/* Found by fuzzing: a user-defined token that is a lone continuation byte cut characters in two. */
static void test_special_that_is_no_utf8(void **state)
{
    (void)state;
    static const tok_tiny_item odd[] = {{"\xa9", SL_TOK_KIND_USER_DEFINED}, {"\xc3\xa9", SL_TOK_KIND_USER_DEFINED},
                                        {"he", SL_TOK_KIND_NORMAL}};
    tok_tiny tiny = {.tokens = odd, .n_tokens = 3, .merges = merges, .n_merges = 1};
    sl_tok_source source = tok_tiny_source(&tiny, "gpt-2");
    sl_err err = {0};
    sl_tok *tok;
    sl_ids ids = {0};
    assert_int_equal(sl_tok_create(&source, &budget, &tok, &err), SL_OK);
    assert_int_equal(sl_tok_encode(tok, "\xc2\xa9\xc3\xa9", 4, false, &ids, NULL, &err), SL_OK);
    assert_int_equal(ids.n, 3); /* two bytes of U+00A9, then the token of U+00E9 */
    assert_int_equal(ids.ids[2], 257);
    sl_ids_deinit(&ids, &budget);
    sl_tok_destroy(tok);
}

static void assert_refused(sl_tok_source *source, const char *want)
{
    sl_err err = {0};
    sl_tok *tok;
    /* what this program does not know is refused, what contradicts itself is damaged */
    sl_status status = sl_tok_create(source, &budget, &tok, &err);
    assert_int_equal(status, strstr(want, "unknown") || strstr(want, "no merges") ? SL_REFUSED : SL_DAMAGED);
    assert_null(tok);
    assert_string_equal(err.text, want);
    assert_int_equal(budget.used_bytes, 0);
}

static void test_bad_sources(void **state)
{
    (void)state;
    tok_tiny tiny = tiny_of();
    sl_tok_source source = tok_tiny_source(&tiny, "gpt-2");
    source.model = (sl_tok_text){"t5", 2};
    assert_refused(&source, "tokenizer: unknown kind \"t5\" (tokenizer.ggml.model), known are gpt2, llama");
    source = tok_tiny_source(&tiny, "qwen7");
    assert_refused(&source, "tokenizer: unknown split pattern \"qwen7\" (tokenizer.ggml.pre), known are default, "
                            "gpt-2, smollm, falcon, llama-bpe, qwen2, qwen35, tekken, gpt-4o, deepseek-v3, "
                            "deepseek-coder");
    source = tok_tiny_source(&tiny, "gpt-2");
    source.n_merges = 0;
    assert_refused(&source, "tokenizer: no merges (tokenizer.ggml.merges), which gpt2 works by");
    source = tok_tiny_source(&tiny, "gpt-2");
    source.n_tokens++;
    source.next_kind = NULL;
    assert_refused(&source, "tokenizer: 266 tokens found, 267 announced");
    source = tok_tiny_source(&tiny, "gpt-2");
    source.n_tokens++;
    assert_refused(&source, "tokenizer: 266 token types for 267 tokens");
    source = tok_tiny_source(&tiny, "gpt-2");
    source.n_tokens = 0;
    assert_refused(&source, "tokenizer: 0 tokens, expected 1 to 1073741823");
    source = tok_tiny_source(&tiny, "gpt-2");
    source.n_merges = 2;
    assert_refused(&source, "tokenizer: 1 merges found, 2 announced");
    source = tok_tiny_source(&tiny, "gpt-2");
    source.eos_id = 266;
    assert_refused(&source, "tokenizer: EOS token 266 is not one of the 266 tokens");
    static const tok_tiny_item odd[] = {{"ab", 9}}, twice[] = {{"ab", 1}, {"x", 1}};
    tok_tiny other = {.tokens = odd, .n_tokens = 1};
    source = tok_tiny_source(&other, "gpt-2");
    assert_refused(&source, "tokenizer: token 256 has type 9, known are 1 to 6");
    other = (tok_tiny){.tokens = twice, .n_tokens = 2};
    source = tok_tiny_source(&other, "gpt-2");
    assert_refused(&source, "tokenizer: token 257 is spelt like token 120");
}

/* The n-th allocation fails, n = 1, 2, ..., until all succeed: the right status, nothing kept. */
static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    char text[400];
    memset(text, 'h', sizeof text); /* one long piece */
    bool is_done = false;
    for (int64_t n = 1; !is_done; n++) {
        tok_tiny tiny = tiny_of();
        sl_tok_source source = tok_tiny_source(&tiny, "default");
        sl_tok *tok;
        sl_ids ids = {0};
        sl_err err = {0};
        budget.fail_in = n;
        sl_status status = sl_tok_create(&source, &budget, &tok, &err);
        assert_true((status == SL_OK) == (tok != NULL));
        if (status == SL_OK)
            status = sl_tok_encode(tok, text, sizeof text, true, &ids, NULL, &err);
        is_done = budget.fail_in > 0;
        budget.fail_in = 0;
        if (status != SL_OK) {
            assert_int_equal(status, SL_FAILED);
            assert_non_null(strstr(err.text, "out of memory"));
            assert_int_equal(ids.n, 0);
        } else {
            assert_int_equal(ids.n, sizeof text);
        }
        sl_ids_deinit(&ids, &budget);
        sl_tok_destroy(tok);
        assert_int_equal(budget.used_bytes, 0);
        assert_true(n < 1000);
    }
}

static void test_a_budget_too_small_is_refused(void **state)
{
    (void)state;
    sl_budget small;
    tok_tiny tiny = tiny_of();
    sl_err err = {0};
    for (uint64_t limit = 0; limit < 4000; limit += 100) {
        sl_tok_source source = tok_tiny_source(&tiny, "gpt-2");
        sl_tok *tok;
        sl_budget_init(&small, limit);
        assert_int_equal(sl_tok_create(&source, &small, &tok, &err), SL_REFUSED);
        assert_non_null(strstr(err.text, "memory budget too small"));
        assert_int_equal(small.used_bytes, 0);
        sl_budget_deinit(&small);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_bytes_of_tokens),
        cmocka_unit_test(test_finding_and_ends),
        cmocka_unit_test(test_bos_only_when_wanted),
        cmocka_unit_test(test_text_that_is_not_utf8),
        cmocka_unit_test(test_special_that_is_no_utf8),
        cmocka_unit_test(test_bad_sources),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_a_budget_too_small_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
