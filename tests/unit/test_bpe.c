/* tok/bpe.c: merging, against hand values and against the rule carried out naively. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/tok_tiny.h"
#include "tok/bpe.h"

typedef struct fixture {
    sl_budget budget;
    sl_vocab vocab;
    sl_bpe bpe;
} fixture;

static void fixture_init(fixture *f, tok_tiny *tiny)
{
    sl_err err = {0};
    memset(f, 0, sizeof *f);
    sl_budget_init(&f->budget, UINT64_MAX);
    sl_tok_source source = tok_tiny_source(tiny, "gpt-2");
    if (sl_vocab_init(&f->vocab, &source, &f->budget, &err) != SL_OK ||
        sl_bpe_init(&f->bpe, &f->vocab, &source, &f->budget, &err) != SL_OK)
        fail_msg("%s", err.text);
}

static void fixture_deinit(fixture *f)
{
    sl_bpe_deinit(&f->bpe);
    sl_vocab_deinit(&f->vocab);
    assert_int_equal(f->budget.used_bytes, 0);
    sl_budget_deinit(&f->budget);
}

/* Encodes one piece; the tokens' bytes, parted by '|', must be `want`. */
static void assert_piece(fixture *f, const char *piece, const char *want, uint64_t want_dropped)
{
    sl_ids ids = {0};
    sl_err err = {0};
    uint64_t n_dropped = 0;
    char got[512] = "";
    size_t n = 0;
    assert_int_equal(sl_bpe_encode(&f->bpe, (sl_tok_text){piece, strlen(piece)}, &ids, &n_dropped, &err), SL_OK);
    for (size_t i = 0; i < ids.n; i++) {
        sl_tok_text token = sl_vocab_bytes(&f->vocab, (uint32_t)ids.ids[i]);
        assert_true(n + token.size + 1 < sizeof got);
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%.*s", i ? "|" : "", (int)token.size, token.data);
    }
    assert_string_equal(got, want);
    assert_int_equal(n_dropped, want_dropped);
    sl_ids_deinit(&ids, &f->budget);
}

static void test_lowest_rank_goes_first(void **state)
{
    (void)state;
    static const tok_tiny_item tokens[] = {{"bc", 1},
                                           {"ab", 1},
                                           {"abc", 1},
                                           {"\xc4\xa0"
                                            "a",
                                            1},
                                           {"\xc3\x83\xc2\xa9", 1}};
    static const char *const merges[] = {"b c", "a b", "ab c", "\xc4\xa0 a", "\xc3\x83 \xc2\xa9"};
    tok_tiny tiny = {.tokens = tokens, .n_tokens = 5, .merges = merges, .n_merges = 5};
    fixture f;
    fixture_init(&f, &tiny);
    assert_piece(&f, "abc", "a|bc", 0); /* "b c" comes before "a b" */
    assert_piece(&f, "abab", "ab|ab", 0);
    assert_piece(&f, " abc", " a|bc", 0);
    assert_piece(&f, "\xc3\xa9x", "\xc3\xa9|x", 0); /* two bytes, one character */
    assert_piece(&f, "z", "z", 0);
    assert_piece(&f, "", "", 0);
    fixture_deinit(&f);
}

static void test_leftmost_of_equal_rank_goes_first(void **state)
{
    (void)state;
    static const tok_tiny_item tokens[] = {{"aa", 1}};
    static const char *const merges[] = {"a a"};
    tok_tiny tiny = {.tokens = tokens, .n_tokens = 1, .merges = merges, .n_merges = 1};
    fixture f;
    fixture_init(&f, &tiny);
    assert_piece(&f, "aaaaa", "aa|aa|a", 0);
    fixture_deinit(&f);
}

static void test_pair_listed_twice_has_its_last_rank(void **state)
{
    (void)state;
    static const tok_tiny_item tokens[] = {{"ab", 1}, {"bc", 1}};
    static const char *const merges[] = {"a b", "b c", "a b"};
    tok_tiny tiny = {.tokens = tokens, .n_tokens = 2, .merges = merges, .n_merges = 3};
    fixture f;
    fixture_init(&f, &tiny);
    assert_piece(&f, "abc", "a|bc", 0);
    fixture_deinit(&f);
}

static void test_neighbours_of_a_dropped_byte_merge(void **state)
{
    (void)state;
    static const tok_tiny_item tokens[] = {{"!!", 1}};
    static const char *const merges[] = {"! !"};
    tok_tiny tiny = {.lacking = "\x04\x05", .tokens = tokens, .n_tokens = 1, .merges = merges, .n_merges = 1};
    fixture f;
    fixture_init(&f, &tiny);
    assert_piece(&f, "!\x04!", "!!", 1);
    assert_piece(&f, "\x04\x05", "", 2);
    char wide[201];
    memset(wide, 4, 200);
    wide[200] = '\0';
    assert_piece(&f, wide, "", 200);
    wide[0] = wide[199] = '!';
    assert_piece(&f, wide, "!!", 198);
    fixture_deinit(&f);
}

/* The rule itself: look at every pair, merge the best, again. */
static size_t merge_naively(const sl_bpe *bpe, int32_t *ids, size_t n)
{
    for (;;) {
        size_t best = SIZE_MAX, best_rank = SIZE_MAX;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t rank = 0; rank < bpe->n_merges && rank < best_rank; rank++)
                if ((int32_t)bpe->merges[rank].left == ids[i] && (int32_t)bpe->merges[rank].right == ids[i + 1]) {
                    best = i;
                    best_rank = rank;
                }
        if (best == SIZE_MAX)
            return n;
        ids[best] = (int32_t)bpe->merges[best_rank].result;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

enum { N_RANDOM = 60, MAX_TEXT = 300 };

/* Random merges over "abcd": each joins two tokens that exist already. */
static size_t random_merges(tok_tiny_item *tokens, const char **merges, char (*spelt)[80], char (*pairs)[80])
{
    size_t n = 0;
    for (int tries = 0; tries < 400 && n < N_RANDOM; tries++) {
        char left[40] = {(char)('a' + rand() % 4)}, right[40] = {(char)('a' + rand() % 4)};
        if (n > 0 && rand() % 2)
            snprintf(left, sizeof left, "%.19s", spelt[(size_t)rand() % n]);
        if (n > 0 && rand() % 3 == 0)
            snprintf(right, sizeof right, "%.19s", spelt[(size_t)rand() % n]);
        snprintf(spelt[n], 80, "%s%s", left, right);
        snprintf(pairs[n], 80, "%s %s", left, right);
        bool is_new = strlen(spelt[n]) < 19;
        for (size_t i = 0; i < n; i++)
            is_new = is_new && strcmp(spelt[i], spelt[n]) != 0;
        if (!is_new)
            continue;
        tokens[n] = (tok_tiny_item){spelt[n], SL_TOK_KIND_NORMAL};
        merges[n] = pairs[n];
        n++;
    }
    for (size_t i = n; i > 1; i--) { /* rank does not follow from length */
        size_t k = (size_t)rand() % i;
        const char *merge = merges[i - 1];
        merges[i - 1] = merges[k];
        merges[k] = merge;
    }
    return n;
}

static void test_short_and_long_pieces_follow_the_rule(void **state)
{
    (void)state;
    static char spelt[N_RANDOM][80], pairs[N_RANDOM][80];
    for (int round = 0; round < 200; round++) {
        tok_tiny_item tokens[N_RANDOM];
        const char *merges[N_RANDOM];
        size_t n = random_merges(tokens, merges, spelt, pairs);
        tok_tiny tiny = {.tokens = tokens, .n_tokens = n, .merges = merges, .n_merges = n};
        tiny.lacking = round % 2 ? NULL : "\x01";
        fixture f;
        fixture_init(&f, &tiny);
        for (int k = 0; k < 6; k++) {
            char text[MAX_TEXT];
            int32_t want[MAX_TEXT];
            size_t size = k < 4 ? (size_t)rand() % MAX_TEXT : (size_t)(62 + rand() % 5), n_want = 0;
            uint64_t n_dropped = 0;
            sl_ids ids = {0};
            for (size_t i = 0; i < size; i++) {
                text[i] = (char)(rand() % 20 ? 'a' + rand() % (k % 2 ? 2 : 4) : 1);
                if (f.bpe.byte_ids[(uint8_t)text[i]] >= 0)
                    want[n_want++] = f.bpe.byte_ids[(uint8_t)text[i]];
            }
            assert_int_equal(sl_bpe_encode(&f.bpe, (sl_tok_text){text, size}, &ids, &n_dropped, NULL), SL_OK);
            assert_int_equal(n_dropped, size - n_want);
            n_want = merge_naively(&f.bpe, want, n_want);
            assert_int_equal(ids.n, n_want);
            if (n_want > 0)
                assert_memory_equal(ids.ids, want, n_want * sizeof *want);
            sl_ids_deinit(&ids, &f.budget);
        }
        fixture_deinit(&f);
    }
}

static void test_a_megabyte_of_one_letter_is_not_quadratic(void **state)
{
    (void)state;
    static const tok_tiny_item tokens[] = {{"aa", 1}, {"aaaa", 1}};
    static const char *const merges[] = {"a a", "aa aa"};
    tok_tiny tiny = {.tokens = tokens, .n_tokens = 2, .merges = merges, .n_merges = 2};
    fixture f;
    sl_ids ids = {0};
    uint64_t n_dropped = 0;
    size_t size = 1 << 20;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, 'a', size);
    fixture_init(&f, &tiny);
    clock_t start = clock();
    assert_int_equal(sl_bpe_encode(&f.bpe, (sl_tok_text){text, size}, &ids, &n_dropped, NULL), SL_OK);
    assert_true(clock() - start < 60 * CLOCKS_PER_SEC); /* a second; quadratic: an hour */
    assert_int_equal(ids.n, size / 4);
    assert_true(f.budget.peak_bytes < 32 * size);
    sl_ids_deinit(&ids, &f.budget);
    fixture_deinit(&f);
    free(text);
}

static void test_bad_merges_are_refused(void **state)
{
    (void)state;
    /* The second token is spelt out: it stands for "a", U+0120, not for "a ". */
    static const tok_tiny_item tokens[] = {{"ab", 1}, {"a\xc4\xa0", SL_TOK_KIND_USER_DEFINED}};
    static const struct {
        const char *merge, *shown;
    } bad[] = {{"a c", "a c"},    {"ab q!", "ab q!"}, {"ab", "ab"},   {"", ""},
               {"a b\n", "a b?"}, {"ab ", "ab "},     {" ab", " ab"}, {"a \xc4\xa0", "a ??"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *merges[] = {"a b", bad[i].merge};
        char want[128];
        tok_tiny tiny = {.tokens = tokens, .n_tokens = 2, .merges = merges, .n_merges = 2};
        fixture f = {0};
        sl_err err = {0};
        sl_budget_init(&f.budget, UINT64_MAX);
        sl_tok_source source = tok_tiny_source(&tiny, "gpt-2");
        assert_int_equal(sl_vocab_init(&f.vocab, &source, &f.budget, &err), SL_OK);
        assert_int_equal(sl_bpe_init(&f.bpe, &f.vocab, &source, &f.budget, &err), SL_DAMAGED);
        snprintf(want, sizeof want, "tokenizer: merge 1 \"%s\" is not two tokens that make a third", bad[i].shown);
        assert_string_equal(err.text, want);
        fixture_deinit(&f);
    }
}

int main(void)
{
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    srand(seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowest_rank_goes_first),
        cmocka_unit_test(test_leftmost_of_equal_rank_goes_first),
        cmocka_unit_test(test_pair_listed_twice_has_its_last_rank),
        cmocka_unit_test(test_neighbours_of_a_dropped_byte_merge),
        cmocka_unit_test(test_short_and_long_pieces_follow_the_rule),
        cmocka_unit_test(test_a_megabyte_of_one_letter_is_not_quadratic),
        cmocka_unit_test(test_bad_merges_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
