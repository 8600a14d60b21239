/* Token ids of a mixed text against the model's own tokenizer (tests/golden/README.md). Needs the demo model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "common/tok_from_gguf.h"

#ifndef GOLDEN_DIR
#error "GOLDEN_DIR: the folder of the golden files"
#endif

typedef struct golden {
    bool is_present;
    sl_budget budget;
    sl_gguf *gguf;
    char *text;
    size_t text_bytes;
    FILE *values;
} golden;

static golden shared;

static int setup(void **state)
{
    (void)state;
    char path[4096];
    sl_err err;
    sl_budget_init(&shared.budget, UINT64_MAX);
    shared.is_present = demo_model_find(path, sizeof path);
    if (!shared.is_present)
        return 0;
    FILE *file = fopen(GOLDEN_DIR "/tok_mixed.txt", "rb");
    shared.values = fopen(GOLDEN_DIR "/tok_mixed.golden", "r");
    shared.text = malloc(2000000);
    if (!file || !shared.values || !shared.text)
        return -1;
    shared.text_bytes = fread(shared.text, 1, 2000000, file);
    fclose(file);
    if (sl_gguf_open(path, &shared.budget, &shared.gguf, &err) != SL_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sl_gguf_close(shared.gguf);
    free(shared.text);
    if (shared.values)
        fclose(shared.values);
    return 0;
}

/* The next line that starts with `key`, without it; NULL: none. */
static char *line_next(char *line, size_t size, const char *key)
{
    while (fgets(line, (int)size, shared.values))
        if (strncmp(line, key, strlen(key)) == 0)
            return line + strlen(key);
    return NULL;
}

static sl_tok *tok_new(const char *pattern)
{
    sl_tok *tok;
    sl_err err = {0};
    if (tok_from_gguf(shared.gguf, pattern, &shared.budget, &tok, &err) != SL_OK)
        fail_msg("%s", err.text);
    return tok;
}

/* Encodes [off, off + size) of the text and compares number and hash of the ids. */
static void assert_range(sl_tok *tok, size_t off, size_t size, bool special, const char *want)
{
    sl_ids ids = {0};
    sl_err err = {0};
    size_t want_n;
    uint64_t want_hash;
    assert_int_equal(sscanf(want, "%zu %" SCNx64, &want_n, &want_hash), 2);
    if (sl_tok_encode(tok, shared.text + off, size, special, &ids, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
    uint64_t hash = sl_hash(ids.ids, ids.n * sizeof *ids.ids);
    if (ids.n != want_n || hash != want_hash)
        fail_msg("bytes %zu..%zu: %zu ids with hash %016" PRIx64 ", expected %zu with %016" PRIx64, off, off + size,
                 ids.n, hash, want_n, want_hash);
    sl_ids_deinit(&ids, &shared.budget);
}

static void test_text_is_the_golden_one(void **state)
{
    (void)state;
    char line[256];
    size_t bytes;
    uint64_t hash;
    if (!shared.is_present)
        skip();
    rewind(shared.values);
    assert_int_equal(sscanf(line_next(line, sizeof line, "text "), "%zu %" SCNx64, &bytes, &hash), 2);
    assert_int_equal(shared.text_bytes, bytes);
    assert_true(sl_hash(shared.text, bytes) == hash);
}

static void test_first_ids_and_dropped_bytes(void **state)
{
    (void)state;
    static char line[8192];
    sl_ids ids = {0};
    uint64_t n_dropped = 0, want_dropped;
    size_t n = 0;
    if (!shared.is_present)
        skip();
    sl_tok *tok = tok_new(NULL);
    assert_int_equal(sl_tok_encode(tok, shared.text, shared.text_bytes, false, &ids, &n_dropped, NULL), SL_OK);
    rewind(shared.values);
    char *at = line_next(line, sizeof line, "first ");
    for (char *end; strtol(at, &end, 10), end != at; at = end, n++)
        assert_int_equal(ids.ids[n], strtol(at, NULL, 10));
    assert_int_equal(n, 200);
    assert_int_equal(sscanf(line_next(line, sizeof line, "dropped "), "%" SCNu64, &want_dropped), 1);
    assert_int_equal(n_dropped, want_dropped);
    sl_ids_deinit(&ids, &shared.budget);
    sl_tok_destroy(tok);
}

static void test_blocks(void **state)
{
    (void)state;
    char line[256], *at;
    size_t n_blocks = 0, covered = 0;
    if (!shared.is_present)
        skip();
    sl_tok *tok = tok_new(NULL);
    rewind(shared.values);
    while ((at = line_next(line, sizeof line, "block ")) != NULL) {
        size_t off, size;
        int used = 0;
        assert_int_equal(sscanf(at, "%zu %zu %n", &off, &size, &used), 2);
        assert_int_equal(off, covered);
        assert_range(tok, off, size, false, at + used);
        covered += size;
        n_blocks++;
    }
    assert_true(n_blocks > 100);
    assert_int_equal(covered, shared.text_bytes);
    sl_tok_destroy(tok);
}

static void test_whole_text_with_every_pattern(void **state)
{
    (void)state;
    char line[256], *at;
    int n_patterns = 0;
    if (!shared.is_present)
        skip();
    rewind(shared.values);
    for (; (at = line_next(line, sizeof line, "whole ")) != NULL; n_patterns++) {
        char pattern[32];
        int special, used = 0;
        assert_int_equal(sscanf(at, "%31s %d %n", pattern, &special, &used), 2);
        sl_tok *tok = tok_new(pattern);
        assert_range(tok, 0, shared.text_bytes, special != 0, at + used);
        sl_tok_destroy(tok);
    }
    assert_int_equal(n_patterns, 4);
}

/* A text without lacking bytes comes back as it was. */
static void test_decoded_text_is_the_text(void **state)
{
    (void)state;
    sl_ids ids = {0};
    uint64_t n_dropped = 0;
    if (!shared.is_present)
        skip();
    sl_tok *tok = tok_new(NULL);
    assert_int_equal(sl_tok_encode(tok, shared.text, shared.text_bytes, false, &ids, &n_dropped, NULL), SL_OK);
    size_t at = 0;
    uint64_t n_missing = 0;
    for (size_t i = 0; i < ids.n; i++) {
        sl_tok_text bytes = sl_tok_bytes(tok, ids.ids[i], false);
        for (size_t k = 0; k < bytes.size; k++, at++) /* a dropped byte is skipped over */
            for (; at < shared.text_bytes && shared.text[at] != bytes.data[k]; at++)
                n_missing++;
    }
    n_missing += shared.text_bytes - at;
    assert_int_equal(n_missing, n_dropped);
    sl_ids_deinit(&ids, &shared.budget);
    sl_tok_destroy(tok);
}

static void test_memory_of_the_demo_vocabulary(void **state)
{
    (void)state;
    if (!shared.is_present)
        skip();
    uint64_t before = shared.budget.used_bytes;
    sl_tok *tok = tok_new(NULL);
    uint64_t used = shared.budget.used_bytes - before;
    print_message("tokenizer: %" PRIu64 " bytes\n", used);
    assert_true(used < 6 << 20);
    sl_tok_destroy(tok);
    assert_int_equal(shared.budget.used_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_the_golden_one),
        cmocka_unit_test(test_first_ids_and_dropped_bytes),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_whole_text_with_every_pattern),
        cmocka_unit_test(test_decoded_text_is_the_text),
        cmocka_unit_test(test_memory_of_the_demo_vocabulary),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
