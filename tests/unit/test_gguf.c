/* Right files: every accessor, every type, sizes, speed and memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/gguf_build.h"

static sl_budget budget;

static void check_text(sl_gguf_string found, const char *expected)
{
    assert_int_equal(found.size, strlen(expected));
    assert_memory_equal(found.data, expected, found.size);
}

static sl_gguf *open_build(gguf_build *build)
{
    sl_gguf *gguf = NULL;
    sl_err err = {SL_OK, ""};
    gguf_build_finish(build);
    sl_status status = sl_gguf_open_memory(build->file.data, build->file.size, &budget, &gguf, &err);
    if (status != SL_OK)
        fail_msg("%s", err.text);
    return gguf;
}

static void close_all(sl_gguf *gguf, gguf_build *build)
{
    sl_gguf_close(gguf);
    gguf_build_deinit(build);
    assert_int_equal(budget.used_bytes, 0);
}

/* One of each; integers at both ends of their range. */
static void build_scalars(gguf_build *build)
{
    gguf_build_init(build);
    gguf_build_uint(build, "u8", SL_GGUF_TYPE_U8, 255);
    gguf_build_uint(build, "i8", SL_GGUF_TYPE_I8, (uint64_t)-128);
    gguf_build_uint(build, "u16", SL_GGUF_TYPE_U16, 65535);
    gguf_build_uint(build, "i16", SL_GGUF_TYPE_I16, 32767);
    gguf_build_uint(build, "u32", SL_GGUF_TYPE_U32, UINT32_MAX);
    gguf_build_uint(build, "i32", SL_GGUF_TYPE_I32, (uint64_t)-1);
    gguf_build_uint(build, "u64", SL_GGUF_TYPE_U64, UINT64_MAX);
    gguf_build_uint(build, "i64", SL_GGUF_TYPE_I64, (uint64_t)INT64_MIN);
    gguf_build_float(build, "f32", SL_GGUF_TYPE_F32, 0.15625);
    gguf_build_float(build, "f64", SL_GGUF_TYPE_F64, 1e300);
    gguf_build_float(build, "inf", SL_GGUF_TYPE_F32, INFINITY);
    gguf_build_uint(build, "true", SL_GGUF_TYPE_BOOL, 1);
    gguf_build_uint(build, "false", SL_GGUF_TYPE_BOOL, 0);
    gguf_build_string(build, "string", "caf\xc3\xa9");
    gguf_build_string(build, "empty", "");
}

static void test_scalars(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint64_t value;
    } right[] = {{"u8", 255}, {"u16", 65535}, {"i16", 32767}, {"u32", UINT32_MAX}, {"u64", UINT64_MAX}};
    static const char *const negative[][2] = {
        {"i8", "-128 found"}, {"i32", "-1 found"}, {"i64", "-9223372036854775808 found"}};
    gguf_build build;
    build_scalars(&build);
    sl_gguf *gguf = open_build(&build);
    sl_err err;
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_int_equal(sl_gguf_get_uint(gguf, right[i].key, 0, UINT64_MAX, &number, &err), SL_OK);
        assert_true(number == right[i].value);
    }
    for (size_t i = 0; i < sizeof negative / sizeof *negative; i++) {
        assert_int_equal(sl_gguf_get_uint(gguf, negative[i][0], 0, UINT64_MAX, &number, &err), SL_DAMAGED);
        assert_non_null(strstr(err.text, negative[i][1]));
    }
    double real = 0;
    assert_int_equal(sl_gguf_get_float(gguf, "f32", &real, &err), SL_OK);
    assert_true(real == 0.15625);
    assert_int_equal(sl_gguf_get_float(gguf, "f64", &real, &err), SL_OK);
    assert_true(real == 1e300);
    bool yes = false;
    assert_int_equal(sl_gguf_get_bool(gguf, "true", &yes, &err), SL_OK);
    assert_true(yes);
    assert_int_equal(sl_gguf_get_bool(gguf, "false", &yes, &err), SL_OK);
    assert_false(yes);
    sl_gguf_string text;
    assert_int_equal(sl_gguf_get_string(gguf, "string", &text, &err), SL_OK);
    check_text(text, "caf\xc3\xa9");
    assert_int_equal(sl_gguf_get_string(gguf, "empty", &text, &err), SL_OK);
    check_text(text, "");
    close_all(gguf, &build);
}

static void test_wrong_kind_is_named(void **state)
{
    (void)state;
    gguf_build build;
    build_scalars(&build);
    gguf_build_array(&build, "array", SL_GGUF_TYPE_U8, 2, "ab", 2);
    sl_gguf *gguf = open_build(&build);
    sl_err err;
    uint64_t number;
    double real;
    bool yes;
    sl_gguf_string text;
    assert_int_equal(sl_gguf_get_uint(gguf, "f32", 0, 9, &number, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "key 'f32'"));
    assert_non_null(strstr(err.text, "type f32 found, an integer expected"));
    assert_int_equal(sl_gguf_get_uint(gguf, "true", 0, 9, &number, &err), SL_DAMAGED);
    assert_int_equal(sl_gguf_get_uint(gguf, "array", 0, 9, &number, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "type array of u8 found"));
    assert_int_equal(sl_gguf_get_uint(gguf, "u8", 256, 300, &number, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "255 found, 256 to 300 expected"));
    assert_int_equal(sl_gguf_get_uint(gguf, "u8", 0, 254, &number, &err), SL_DAMAGED);
    assert_int_equal(sl_gguf_get_float(gguf, "u8", &real, &err), SL_DAMAGED);
    assert_int_equal(sl_gguf_get_float(gguf, "inf", &real, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "a finite number expected"));
    assert_int_equal(sl_gguf_get_bool(gguf, "u8", &yes, &err), SL_DAMAGED);
    assert_int_equal(sl_gguf_get_string(gguf, "array", &text, &err), SL_DAMAGED);
    assert_int_equal(sl_gguf_get_string(gguf, "no such", &text, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "(memory): key 'no such' is missing, string expected"));
    close_all(gguf, &build);
}

static void test_arrays(void **state)
{
    (void)state;
    static const char *const words[] = {"one", "", "three"};
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_strings(&build, "words", 3, words);
    gguf_build_strings(&build, "none", 0, NULL);
    gguf_build_array(&build, "i16s", SL_GGUF_TYPE_I16, 2, "\xff\xff\x02\x01", 4);
    gguf_build_array(&build, "f32s", SL_GGUF_TYPE_F32, 1, "\0\0\x80\x3f", 4);
    gguf_build_array(&build, "bools", SL_GGUF_TYPE_BOOL, 2, "\1\0", 2);
    gguf_build_uint(&build, "scalar", SL_GGUF_TYPE_U32, 7);
    gguf_build_string(&build, "text", "x");
    sl_gguf *gguf = open_build(&build);
    const sl_gguf_value *value = sl_gguf_find(gguf, "words");
    assert_int_equal(value->n_items, 3);
    sl_gguf_iter iter = sl_gguf_iter_start(value);
    sl_gguf_string text;
    double number;
    assert_false(sl_gguf_iter_number(&iter, &number));
    for (size_t i = 0; i < 3; i++) {
        assert_true(sl_gguf_iter_string(&iter, &text));
        check_text(text, words[i]);
    }
    assert_false(sl_gguf_iter_string(&iter, &text));
    iter = sl_gguf_iter_start(sl_gguf_find(gguf, "none"));
    assert_false(sl_gguf_iter_string(&iter, &text));
    static const struct {
        const char *key;
        double items[2];
        size_t n;
    } numbers[] = {{"i16s", {-1, 258}, 2}, {"f32s", {1}, 1}, {"bools", {1, 0}, 2}, {"scalar", {7}, 1}};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        iter = sl_gguf_iter_start(sl_gguf_find(gguf, numbers[k].key));
        assert_false(sl_gguf_iter_string(&iter, &text));
        for (size_t i = 0; i < numbers[k].n; i++) {
            assert_true(sl_gguf_iter_number(&iter, &number));
            assert_true(number == numbers[k].items[i]);
        }
        assert_false(sl_gguf_iter_number(&iter, &number));
    }
    iter = sl_gguf_iter_start(sl_gguf_find(gguf, "text"));
    assert_true(sl_gguf_iter_string(&iter, &text));
    check_text(text, "x");
    assert_false(sl_gguf_iter_string(&iter, &text));
    close_all(gguf, &build);
}

static void test_tensors(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        const char *name;
        size_t bytes; /* of 64 x 3 elements */
    } types[] = {{0, "F32", 768},  {1, "F16", 384},  {30, "BF16", 384}, {8, "Q8_0", 204},
                 {2, "Q4_0", 108}, {3, "Q4_1", 120}, {6, "Q5_0", 132},  {7, "Q5_1", 144}};
    enum { N_TYPES = sizeof types / sizeof *types };
    for (uint32_t version = 2; version <= 3; version++) {
        gguf_build build;
        gguf_build_init(&build);
        build.version = version;
        build.alignment = version == 2 ? 32 : 4096;
        if (version == 3)
            gguf_build_uint(&build, "general.alignment", SL_GGUF_TYPE_U32, 4096);
        uint8_t data[768 + N_TYPES];
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (uint8_t)(i * 7 + version);
        for (size_t t = 0; t < N_TYPES; t++)
            gguf_build_tensor(&build, types[t].name, types[t].type, 2, (uint64_t[]){64, 3}, data + t, types[t].bytes);
        gguf_build_entry(&build, "from the future", 999, 1, (uint64_t[]){5}, 0);
        sl_gguf *gguf = open_build(&build);
        assert_int_equal(sl_gguf_version(gguf), version);
        assert_int_equal(sl_gguf_file_bytes(gguf), build.file.size);
        assert_int_equal(sl_gguf_n_tensors(gguf), N_TYPES + 1);
        for (size_t t = 0; t < N_TYPES; t++) {
            const sl_gguf_tensor *tensor = sl_gguf_tensor_find(gguf, types[t].name);
            assert_ptr_equal(tensor, sl_gguf_tensor_at(gguf, t));
            assert_string_equal(sl_ggml_type_name(tensor->type), types[t].name);
            assert_int_equal(tensor->n_dims, 2);
            assert_int_equal(tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3], 192);
            assert_int_equal(tensor->bytes, types[t].bytes);
            assert_int_equal(tensor->file_off % build.alignment, 0);
            uint8_t got[768];
            sl_err err;
            assert_int_equal(sl_gguf_read(gguf, tensor, 0, types[t].bytes, got, &err), SL_OK);
            assert_memory_equal(got, data + t, types[t].bytes);
            assert_int_equal(sl_gguf_read(gguf, tensor, types[t].bytes - 5, 5, got, &err), SL_OK);
            assert_memory_equal(got, data + t + types[t].bytes - 5, 5);
            assert_int_equal(sl_gguf_read(gguf, tensor, types[t].bytes - 5, 6, got, &err), SL_FAILED);
            assert_int_equal(sl_gguf_read(gguf, tensor, UINT64_MAX, 1, got, &err), SL_FAILED);
            assert_non_null(strstr(err.text, types[t].name));
        }
        assert_int_equal(sl_gguf_tensor_find(gguf, "from the future")->bytes, 0);
        assert_null(sl_ggml_type_name(999));
        assert_null(sl_gguf_tensor_find(gguf, "F3"));
        assert_null(sl_gguf_tensor_find(gguf, ""));
        close_all(gguf, &build);
    }
}

static void test_values_in_order(void **state)
{
    (void)state;
    gguf_build build;
    build_scalars(&build);
    sl_gguf *gguf = open_build(&build);
    assert_int_equal(sl_gguf_n_values(gguf), 15);
    check_text(sl_gguf_value_at(gguf, 0)->key, "u8");
    check_text(sl_gguf_value_at(gguf, 14)->key, "empty");
    assert_int_equal(sl_gguf_value_at(gguf, 1)->type, SL_GGUF_TYPE_I8);
    assert_string_equal(sl_gguf_type_name(SL_GGUF_TYPE_F64), "f64");
    assert_string_equal(sl_gguf_type_name((sl_gguf_type)13), "unknown");
    assert_string_equal(sl_gguf_path(gguf), "(memory)");
    close_all(gguf, &build);
}

static void test_empty_directory(void **state)
{
    (void)state;
    gguf_build build;
    gguf_build_init(&build);
    sl_gguf *gguf = open_build(&build);
    assert_int_equal(sl_gguf_n_values(gguf), 0);
    assert_int_equal(sl_gguf_n_tensors(gguf), 0);
    assert_null(sl_gguf_find(gguf, "x"));
    assert_null(sl_gguf_tensor_find(gguf, "x"));
    close_all(gguf, &build);
}

/* Tensors need not lie in the order of the directory. */
static void test_tensors_in_any_order(void **state)
{
    (void)state;
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_entry(&build, "second", 0, 1, (uint64_t[]){8}, 32);
    gguf_build_entry(&build, "first", 0, 1, (uint64_t[]){8}, 0);
    gguf_bytes_put(&build.data, "0123456789abcdef0123456789abcdefGHIJKLMNOPQRSTUVGHIJKLMNOPQRSTUV", 64);
    sl_gguf *gguf = open_build(&build);
    char got[4];
    sl_err err;
    assert_int_equal(sl_gguf_read(gguf, sl_gguf_tensor_find(gguf, "second"), 0, 4, got, &err), SL_OK);
    assert_memory_equal(got, "GHIJ", 4);
    close_all(gguf, &build);
}

/* A vocabulary of 256K tokens opens at once, in less than one and a half times its own size. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { N = 262144 };
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_array(&build, "tokenizer.ggml.tokens", SL_GGUF_TYPE_STRING, N, NULL, 0);
    for (size_t i = 0; i < N; i++) {
        char word[32];
        int n = snprintf(word, sizeof word, "token%zu", i * 2654435761u);
        gguf_bytes_string(&build.values, word, (size_t)n);
    }
    char path[] = "/tmp/test_gguf_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(gguf_build_write(&build, path));
    budget.peak_bytes = 0;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    sl_gguf *gguf = NULL;
    sl_err err = {SL_OK, ""};
    sl_status status = sl_gguf_open(path, &budget, &gguf, &err);
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_int_equal(unlink(path), 0);
    if (status != SL_OK)
        fail_msg("%s", err.text);
    assert_string_equal(sl_gguf_path(gguf), path);
    assert_true(budget.peak_bytes < build.file.size + build.file.size / 2);
    /* Milliseconds; the bound only catches something quadratic, also under sanitizers on a busy machine. */
    assert_true(after.tv_sec - before.tv_sec < 5);
    sl_gguf_iter iter = sl_gguf_iter_start(sl_gguf_find(gguf, "tokenizer.ggml.tokens"));
    sl_gguf_string text;
    size_t n = 0;
    while (sl_gguf_iter_string(&iter, &text))
        n++;
    assert_int_equal(n, N);
    check_text(text, "token695841753695823");
    close_all(gguf, &build);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_wrong_kind_is_named),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_values_in_order),
        cmocka_unit_test(test_empty_directory),
        cmocka_unit_test(test_tensors_in_any_order),
        cmocka_unit_test(test_large_vocabulary),
    };
    sl_budget_init(&budget, UINT64_MAX);
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
