/* The maker of tiny models: what it writes is what the parser reads, each type holds the same weights within its
 * step, and one seed gives one file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/tiny_model.h"
#include "kernel/kernel.h"

static const uint32_t types[] = {TINY_TYPE_F32,  TINY_TYPE_F16,  TINY_TYPE_BF16, TINY_TYPE_Q8_0,
                                 TINY_TYPE_Q4_0, TINY_TYPE_Q4_1, TINY_TYPE_Q5_0, TINY_TYPE_Q5_1,
                                 TINY_TYPE_Q4_K, TINY_TYPE_Q5_K, TINY_TYPE_Q6_K};
enum { N_TYPES = sizeof types / sizeof *types };

static sl_budget budget;

static sl_gguf *open_model(const tiny_model *model, gguf_build *build)
{
    sl_gguf *gguf = NULL;
    sl_err err = {SL_OK, ""};
    gguf_build_init(build);
    tiny_model_build(model, build);
    gguf_build_finish(build);
    if (sl_gguf_open_memory(build->file.data, build->file.size, &budget, &gguf, &err) != SL_OK)
        fail_msg("%s", err.text);
    return gguf;
}

/* The values of a row of 256 as the engine reads them (tests/check holds that reading against the format). */
static void decode(uint32_t type, const uint8_t *row, float *out)
{
    static uint8_t packed[256 * sizeof(float)];
    int wtype = 0;
    while (strcmp(sl_wtype_name((sl_wtype)wtype), sl_ggml_type_name(type)) != 0)
        assert_true(++wtype < SL_WTYPE_COUNT);
    sl_weight_pack_panel((sl_wtype)wtype, packed, row, 1, 256);
    sl_weight_row((sl_wtype)wtype, packed, 1, 256, 0, out);
}

static void test_types_hold_the_weights(void **state)
{
    (void)state;
    /* of the block's largest; Q4_K and Q5_K lose a little where the minimum is small */
    static const double bounds[] = {1e-7, 1e-3, 8e-3, 8e-3, 0.15, 0.1, 0.08, 0.05, 0.12, 0.08, 0.05};
    float values[256], found[256];
    for (size_t i = 0; i < 256; i++)
        values[i] = sinf((float)i * 1.7f) * (i < 32 ? 0 : (float)(i / 32) * 0.1f);
    for (size_t t = 0; t < N_TYPES; t++) {
        uint32_t n_elements, n_bytes;
        gguf_bytes out = {0};
        assert_true(sl_ggml_type_block(types[t], &n_elements, &n_bytes));
        tiny_encode(types[t], values, 256, &out);
        assert_int_equal(out.size, 256 / n_elements * n_bytes);
        decode(types[t], out.data, found);
        for (size_t i = 0; i < 256; i++) {
            double largest = (n_elements == 256 ? 7 : (double)(i / 32)) * 0.1;
            if (!(fabs((double)found[i] - (double)values[i]) <= bounds[t] * largest))
                fail_msg("%s, element %zu: %g, expected %g", sl_ggml_type_name(types[t]), i, (double)found[i],
                         (double)values[i]);
        }
        free(out.data);
    }
}

static void test_every_type_opens(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        tiny_model model = tiny_model_of_type(7, types[t]);
        gguf_build build;
        model.separate_output = t % 2 != 0;
        sl_gguf *gguf = open_model(&model, &build);
        assert_int_equal(sl_gguf_n_tensors(gguf), 2 + 9 * 2 + t % 2);
        assert_int_equal(sl_gguf_tensor_find(gguf, "blk.1.ffn_down.weight")->type, types[t]);
        assert_int_equal(sl_gguf_tensor_find(gguf, "blk.1.ffn_norm.weight")->type, TINY_TYPE_F32);
        assert_int_equal(sl_gguf_tensor_find(gguf, "token_embd.weight")->dims[1], tiny_model_n_vocab());
        assert_true((sl_gguf_tensor_find(gguf, "output.weight") != NULL) == model.separate_output);
        sl_err err;
        uint64_t number;
        assert_int_equal(sl_gguf_get_uint(gguf, "llama.attention.head_count_kv", 2, 2, &number, &err), SL_OK);
        assert_null(sl_gguf_find(gguf, "llama.attention.key_length"));
        sl_gguf_close(gguf);
        gguf_build_deinit(&build);
    }
}

static void test_shapes_and_omissions(void **state)
{
    (void)state;
    tiny_model model = tiny_model_of_seed(1);
    gguf_build build;
    model.head_dim = 64;
    model.rope_factor = 4;
    model.chat_template = NULL;
    model.omit[0] = "llama.block_count";
    model.omit[1] = "blk.0.attn_v.weight";
    model.omit[2] = "tokenizer.ggml.merges";
    sl_gguf *gguf = open_model(&model, &build);
    for (size_t i = 0; i < 3; i++) {
        assert_null(sl_gguf_find(gguf, model.omit[i]));
        assert_null(sl_gguf_tensor_find(gguf, model.omit[i]));
    }
    assert_null(sl_gguf_find(gguf, "tokenizer.chat_template"));
    assert_non_null(sl_gguf_find(gguf, "llama.rope.scaling.factor"));
    uint64_t number;
    sl_err err;
    assert_int_equal(sl_gguf_get_uint(gguf, "llama.attention.key_length", 64, 64, &number, &err), SL_OK);
    const sl_gguf_tensor *query = sl_gguf_tensor_find(gguf, "blk.0.attn_q.weight");
    assert_int_equal(query->dims[0], 128);
    assert_int_equal(query->dims[1], 256);
    sl_gguf_close(gguf);
    gguf_build_deinit(&build);
}

/* Every token is distinct, every byte has one, and both parts of each merge and their union are tokens. */
static void test_vocabulary(void **state)
{
    (void)state;
    tiny_model model = tiny_model_of_seed(1);
    gguf_build build;
    sl_gguf *gguf = open_model(&model, &build);
    sl_gguf_string tokens[320], merge;
    size_t n = 0, n_merges = 0;
    sl_gguf_iter iter = sl_gguf_iter_start(sl_gguf_find(gguf, "tokenizer.ggml.tokens"));
    while (n < 320 && sl_gguf_iter_string(&iter, &tokens[n])) {
        for (size_t i = 0; i < n; i++)
            assert_false(tokens[i].size == tokens[n].size &&
                         memcmp(tokens[i].data, tokens[n].data, tokens[n].size) == 0);
        n++;
    }
    assert_int_equal(n, tiny_model_n_vocab());
    assert_memory_equal(tokens[TINY_TOK_BYTES].data, "\xc4\x80", 2);        /* byte 0: U+0100 */
    assert_memory_equal(tokens[TINY_TOK_BYTES + ' '].data, "\xc4\xa0", 2);  /* space: U+0120 */
    assert_memory_equal(tokens[TINY_TOK_BYTES + 0x7f].data, "\xc4\xa1", 2); /* the first after it: U+0121 */
    assert_memory_equal(tokens[TINY_TOK_BYTES + 0xad].data, "\xc5\x83", 2); /* the last odd one: U+0143 */
    assert_memory_equal(tokens[TINY_TOK_BYTES + 0xff].data, "\xc3\xbf", 2); /* itself */
    assert_memory_equal(tokens[TINY_TOK_BYTES + 'a'].data, "a", 1);
    iter = sl_gguf_iter_start(sl_gguf_find(gguf, "tokenizer.ggml.merges"));
    while (sl_gguf_iter_string(&iter, &merge)) {
        const char *space = memchr(merge.data, ' ', merge.size);
        assert_non_null(space);
        size_t left = (size_t)(space - merge.data), right = merge.size - left - 1;
        const sl_gguf_string *joined = &tokens[TINY_TOK_BYTES + 256 + n_merges++];
        assert_int_equal(joined->size, left + right);
        assert_memory_equal(joined->data, merge.data, left);
        assert_memory_equal(joined->data + left, space + 1, right);
        int found = 0;
        for (size_t i = 0; i < TINY_TOK_BYTES + 256 + n_merges - 1; i++) {
            found += tokens[i].size == left && memcmp(tokens[i].data, merge.data, left) == 0;
            found += 2 * (tokens[i].size == right && memcmp(tokens[i].data, space + 1, right) == 0);
        }
        assert_int_equal(found, 3);
    }
    assert_int_equal(TINY_TOK_BYTES + 256 + n_merges, n);
    sl_gguf_close(gguf);
    gguf_build_deinit(&build);
}

static void test_one_seed_one_file(void **state)
{
    (void)state;
    tiny_model model = tiny_model_of_seed(3);
    gguf_build first, second, other;
    sl_gguf_close(open_model(&model, &first));
    sl_gguf_close(open_model(&model, &second));
    assert_int_equal(first.file.size, second.file.size);
    assert_memory_equal(first.file.data, second.file.data, first.file.size);
    model.seed = 4;
    sl_gguf_close(open_model(&model, &other));
    assert_int_equal(first.file.size, other.file.size);
    assert_memory_not_equal(first.file.data, other.file.data, first.file.size);
    char path[] = "/tmp/test_tiny_model_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(tiny_model_write(&model, path));
    sl_gguf *gguf = NULL;
    sl_err err;
    sl_status status = sl_gguf_open(path, &budget, &gguf, &err);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(status, SL_OK);
    assert_int_equal(sl_gguf_file_bytes(gguf), other.file.size);
    sl_gguf_close(gguf);
    assert_false(tiny_model_write(&model, "/nonexistent/model.gguf"));
    gguf_build_deinit(&first);
    gguf_build_deinit(&second);
    gguf_build_deinit(&other);
    assert_int_equal(budget.used_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_hold_the_weights), cmocka_unit_test(test_every_type_opens),
        cmocka_unit_test(test_shapes_and_omissions),   cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_one_seed_one_file),
    };
    sl_budget_init(&budget, UINT64_MAX);
    return cmocka_run_group_tests_name("tiny_model", tests, NULL, NULL);
}
