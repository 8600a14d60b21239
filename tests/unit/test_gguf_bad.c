/* Wrong files: each is refused with one line that names the path, the field and what was found, and nothing stays
 * allocated. The tests called fault_N close faults that other engines' loaders have had. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/gguf_build.h"
#include "gguf/gguf_parse.h"

#define BUDGET_BYTES (1u << 20) /* whatever a file claims, its few bytes never justify more than this */

static sl_budget budget;

static sl_status try_image(const void *image, size_t bytes, sl_err *err)
{
    /* A heap copy of the exact size lets the address sanitizer see a read past the end. */
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(copy);
    if (bytes > 0)
        memcpy(copy, image, bytes);
    sl_gguf *gguf = NULL;
    err->text[0] = '\0';
    sl_status status = sl_gguf_open_memory(copy, bytes, &budget, &gguf, err);
    assert_true((status == SL_OK) == (gguf != NULL));
    sl_gguf_close(gguf);
    free(copy);
    assert_int_equal(budget.used_bytes, 0);
    return status;
}

static void refuse_image(const void *image, size_t bytes, const char *expected)
{
    sl_err err;
    sl_status status = try_image(image, bytes, &err);
    if (status != SL_DAMAGED || strncmp(err.text, "(memory): ", 10) != 0 || !strstr(err.text, expected) ||
        strchr(err.text, '\n'))
        fail_msg("status %d, \"%s\"; expected \"%s\"", (int)status, err.text, expected);
}

/* Finishes, expects a refusal, and clears the build. */
static void refuse(gguf_build *build, const char *expected)
{
    gguf_build_finish(build);
    refuse_image(build->file.data, build->file.size, expected);
    gguf_build_deinit(build);
}

/* A small file with everything in it. */
static void build_small(gguf_build *build)
{
    static const char *const words[] = {"a", "bc"};
    gguf_build_init(build);
    gguf_build_string(build, "general.architecture", "llama");
    gguf_build_uint(build, "general.alignment", SL_GGUF_TYPE_U32, 8);
    gguf_build_uint(build, "flag", SL_GGUF_TYPE_BOOL, 1);
    gguf_build_strings(build, "words", 2, words);
    gguf_build_array(build, "kinds", SL_GGUF_TYPE_I32, 2, "\1\0\0\0\2\0\0\0", 8);
    build->alignment = 8;
    gguf_build_tensor(build, "norm", 0, 1, (uint64_t[]){2}, "01234567", 8);
    gguf_build_tensor(build, "weight", 8, 2, (uint64_t[]){32, 1}, "0123456789abcdef0123456789abcdefXY", 34);
    gguf_build_finish(build);
}

static void fault_4_cut_at_every_byte(void **state)
{
    (void)state;
    gguf_build build;
    build_small(&build);
    sl_err err;
    assert_int_equal(try_image(build.file.data, build.file.size, &err), SL_OK);
    for (size_t n = 0; n < build.file.size; n++) {
        sl_status status = try_image(build.file.data, n, &err);
        if (status != SL_DAMAGED || strlen(err.text) < 20)
            fail_msg("cut to %zu bytes: status %d, \"%s\"", n, (int)status, err.text);
    }
    size_t size = build.file.size;
    refuse_image(build.file.data, 10, "cut short: header, n_tensors at offset 8 needs 8 bytes, the file ends at 10");
    refuse_image(build.file.data, size - 1, "tensor 'weight': data of 34 bytes at");
    refuse_image(build.file.data, size - 34 - 9, "tensor 'norm': data of 8 bytes at");
    gguf_build_deinit(&build);
}

/* Any byte with any of these values: an error or a file, never more. */
static void test_every_byte_changed(void **state)
{
    (void)state;
    static const uint8_t masks[] = {0x01, 0x80, 0xff, 0x40};
    gguf_build build;
    build_small(&build);
    for (size_t i = 0; i < build.file.size; i++) {
        for (size_t m = 0; m < sizeof masks; m++) {
            sl_err err;
            build.file.data[i] ^= masks[m];
            sl_status status = try_image(build.file.data, build.file.size, &err);
            build.file.data[i] ^= masks[m];
            assert_true(status == SL_OK || (status == SL_DAMAGED && err.text[0] != '\0'));
            if (i < 4)
                assert_int_equal(status, SL_DAMAGED);
        }
    }
    gguf_build_deinit(&build);
}

static void test_header_fields(void **state)
{
    (void)state;
    static const struct {
        size_t off, n;
        uint64_t value;
        const char *expected;
    } cases[] = {
        {0, 4, 0x47475546, "not a GGUF file (starts with 'FUGG')"},
        {4, 4, 0, "version at offset 4: 0 found, 2 or 3 expected"},
        {4, 4, 1, "version at offset 4: 1 found"},
        {4, 4, 4, "version at offset 4: 4 found"},
        {4, 4, 0x03000000, "a big-endian GGUF file (version 0x03000000 at offset 4)"},
        {4, 4, 0x02000000, "a big-endian GGUF file"},
        {8, 8, 3, "tensor"},
        {8, 8, 1000, "n_tensors at offset 8: 1000 found"},
        {16, 8, 6, "tensor 0, name length at offset"},
        {16, 8, 4, "tensor 'kinds', n_dims at offset 180: 9 found, 1 to 4 expected"},
        {16, 8, 1000, "n_kv at offset 16: 1000 found"},
    };
    gguf_build build;
    build_small(&build);
    uint8_t copy[512];
    assert_true(build.file.size <= sizeof copy);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(copy, build.file.data, build.file.size);
        for (size_t b = 0; b < cases[i].n; b++)
            copy[cases[i].off + b] = (uint8_t)(cases[i].value >> (8 * b));
        refuse_image(copy, build.file.size, cases[i].expected);
    }
    gguf_build_deinit(&build);
}

static void refuse_entry(uint32_t type, uint32_t n_dims, const uint64_t *dims, uint64_t off, const char *expected)
{
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_entry(&build, "w", type, n_dims, dims, off);
    uint8_t data[256] = {0};
    gguf_bytes_put(&build.data, data, sizeof data);
    refuse(&build, expected);
}

static void fault_1_dimensions_that_wrap(void **state)
{
    (void)state;
    const uint64_t huge = UINT64_MAX;
    refuse_entry(0, 1, (uint64_t[]){((uint64_t)1 << 42) + 1}, 0, "more than a file of");
    refuse_entry(0, 4, (uint64_t[]){((uint64_t)1 << 42) + 1, (uint64_t)1 << 42, 1, 1}, 0,
                 "more than 2^63 - 1 elements");
    refuse_entry(0, 4, (uint64_t[]){INT64_MAX, 2, 1, 1}, 0, "more than 2^63 - 1 elements");
    refuse_entry(0, 4, (uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 32, 1, 1}, 0, "more than 2^63 - 1 elements");
    refuse_entry(0, 1, (uint64_t[]){SIZE_MAX / 4}, 0, "more than a file of");
    refuse_entry(0, 1, (uint64_t[]){SIZE_MAX / 4 + 1}, 0, "more than a file of");
    refuse_entry(0, 4, (uint64_t[]){huge, huge, huge, huge}, 0, "dimensions 18446744073709551615 x");
    refuse_entry(999, 2, (uint64_t[]){INT64_MAX, 2}, 0, "more than 2^63 - 1 elements");
    refuse_entry(0, 2, (uint64_t[]){4, 0}, 0, "tensor 'w', dimension 1: 0 found, at least 1 expected");
    refuse_entry(0, 1, (uint64_t[]){0}, 0, "dimension 0: 0 found");
    refuse_entry(0, 0, (uint64_t[]){1}, 0, "tensor 'w', n_dims at offset");
    refuse_entry(0, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, "5 found, 1 to 4 expected");
    refuse_entry(8, 2, (uint64_t[]){33, 1}, 0, "of type Q8_0: rows of 33 elements found, a multiple of 32 expected");
    refuse_entry(12, 2, (uint64_t[]){32, 8}, 0, "of type Q4_K: rows of 32 elements found, a multiple of 256");
}

static void fault_2_counts_beyond_the_file(void **state)
{
    (void)state;
    const uint64_t many = (uint64_t)1 << 58;
    gguf_build build;
    build_small(&build);
    build.n_tensors = many;
    refuse(&build, "n_tensors at offset 8: 288230376151711744 found, a file of");
    build_small(&build);
    build.n_values = many;
    refuse(&build, "n_kv at offset 16: 288230376151711744 found, a file of");
    gguf_build_init(&build);
    gguf_build_raw(&build, "s", SL_GGUF_TYPE_STRING, "\0\0\0\0\0\1\0\0", 8);
    refuse(&build, "key 's', string at offset 45: 1099511627776 items of 1 bytes claimed, 0 bytes are left");
    gguf_build_init(&build);
    gguf_build_array(&build, "a", SL_GGUF_TYPE_F64, (uint64_t)1 << 61, "12345678", 8);
    refuse(&build, "key 'a', array at offset 49: 2305843009213693952 items of 8 bytes claimed, 8 bytes are left");
    gguf_build_init(&build);
    gguf_build_array(&build, "a", SL_GGUF_TYPE_STRING, UINT64_MAX, "12345678", 8);
    refuse(&build, "array of strings at offset 49: 18446744073709551615 items");
    gguf_build_init(&build);
    gguf_build_array(&build, "a", SL_GGUF_TYPE_STRING, 1, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    refuse(&build, "key 'a', string of an array");
    gguf_build_init(&build);
    gguf_bytes_uint(&build.values, (uint64_t)1 << 40, 8);
    gguf_bytes_put(&build.values, "keykeykeykey", 12);
    build.n_values = 1;
    refuse(&build, "key 0, name at offset 32: 1099511627776 items of 1 bytes claimed, 12 bytes are left");
}

static void refuse_alignment(sl_gguf_type type, uint64_t value, const char *expected)
{
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_uint(&build, "general.alignment", type, value);
    gguf_build_tensor(&build, "w", 0, 1, (uint64_t[]){2}, "01234567", 8);
    refuse(&build, expected);
}

static void fault_3_alignment(void **state)
{
    (void)state;
    static const uint64_t wrong[] = {0, 1, 3, 4, 24, 33, 131072, (uint64_t)1 << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char expected[128];
        snprintf(expected, sizeof expected, "key 'general.alignment' at offset 53: %llu found, a power of two from 8",
                 (unsigned long long)wrong[i]);
        refuse_alignment(SL_GGUF_TYPE_U32, wrong[i], expected);
    }
    refuse_alignment(SL_GGUF_TYPE_I32, 32, "key 'general.alignment' at offset 53: type i32 found, u32 expected");
    refuse_alignment(SL_GGUF_TYPE_U64, 32, "type u64 found, u32 expected");
    refuse_entry(0, 1, (uint64_t[]){2}, 16, "tensor 'w': data offset 16 found, a multiple of 32 expected");
}

static void fault_4_tensor_past_the_end(void **state)
{
    (void)state;
    refuse_entry(0, 1, (uint64_t[]){65}, 0, "tensor 'w': data of 260 bytes at");
    refuse_entry(0, 1, (uint64_t[]){64}, 32, "pass the file's end");
    refuse_entry(0, 1, (uint64_t[]){1}, 256, "pass the file's end");
    refuse_entry(0, 1, (uint64_t[]){1}, UINT64_MAX - 31, "pass the file's end");
    refuse_entry(999, 1, (uint64_t[]){1}, 288, "pass the file's end");
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_entry(&build, "w", 0, 1, (uint64_t[]){1}, 0);
    refuse(&build, "tensor 'w': data of 4 bytes"); /* no data section, not even the padding */
}

/* Found by fuzzing: a type of unknown size and no data section gave an offset beyond the file. */
static void test_unknown_type_past_the_end(void **state)
{
    (void)state;
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_entry(&build, "w", 999, 1, (uint64_t[]){1}, 0);
    refuse(&build, "tensor 'w': data of 1 bytes");
    refuse_entry(999, 1, (uint64_t[]){1}, 256, "pass the file's end");
}

static void fault_5_html_page(void **state)
{
    (void)state;
    static const char page[] = "<!DOCTYPE html><html><body>404</body></html>";
    refuse_image(page, sizeof page - 1,
                 "not a GGUF file (starts with '<!DO'); it looks like an HTML page saved under the model's name");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n";
    refuse_image(pointer, sizeof pointer - 1, "Git LFS pointer");
    refuse_image("", 0, "not a GGUF file (it is empty)");
    refuse_image("GG", 2, "not a GGUF file (starts with 'GG')");
    refuse_image("\n'\x80z", 4, "not a GGUF file (starts with '???z')");
}

static void test_names(void **state)
{
    (void)state;
    gguf_build build;
    char long_name[70];
    memset(long_name, 'n', sizeof long_name);
    long_name[65] = '\0';
    build_small(&build);
    gguf_build_uint(&build, "flag", SL_GGUF_TYPE_BOOL, 1);
    refuse(&build, "key 'flag' at offset");
    build_small(&build);
    gguf_build_tensor(&build, "norm", 0, 1, (uint64_t[]){2}, "01234567", 8);
    refuse(&build, "tensor 'norm' at offset");
    build_small(&build);
    gguf_build_uint(&build, "", SL_GGUF_TYPE_U8, 1);
    refuse(&build, "key 5, name length at offset");
    build_small(&build);
    gguf_build_uint(&build, "two\nlines", SL_GGUF_TYPE_U8, 1);
    refuse(&build, "key 'two?lines' at offset");
    build_small(&build);
    gguf_build_uint(&build, "rub\x7fout", SL_GGUF_TYPE_U8, 1);
    refuse(&build, "control byte 0x7f in the name");
    build_small(&build);
    gguf_build_tensor(&build, "\x1b[2J", 0, 1, (uint64_t[]){2}, "01234567", 8);
    refuse(&build, "tensor '?[2J' at offset");
    build_small(&build);
    gguf_build_entry(&build, long_name, 0, 1, (uint64_t[]){2}, 0);
    refuse(&build, "65 found, 1 to 64 expected");
}

static void test_value_types(void **state)
{
    (void)state;
    gguf_build build;
    gguf_build_init(&build);
    gguf_build_raw(&build, "k", 13, "12345678", 8);
    refuse(&build, "key 'k', value type at offset 33: 13 found, 0 to 12 expected");
    gguf_build_init(&build);
    gguf_build_array(&build, "k", SL_GGUF_TYPE_ARRAY, 1, "\0\0\0\0\1\0\0\0\0\0\0\0x", 13);
    refuse(&build, "key 'k', item type at offset 37: 9 found; arrays of arrays are not supported");
    gguf_build_init(&build);
    gguf_build_array(&build, "k", (sl_gguf_type)77, 0, "", 0);
    refuse(&build, "item type at offset 37: 77 found");
    gguf_build_init(&build);
    gguf_build_uint(&build, "k", SL_GGUF_TYPE_BOOL, 2);
    refuse(&build, "key 'k', bool at offset 37: 2 found, 0 or 1 expected");
    gguf_build_init(&build);
    gguf_build_array(&build, "k", SL_GGUF_TYPE_BOOL, 3, "\0\1\xff", 3);
    refuse(&build, "key 'k', bool at offset 51: 255 found");
}

static void test_overlap(void **state)
{
    (void)state;
    gguf_build build;
    build_small(&build);
    gguf_build_entry(&build, "again", 0, 1, (uint64_t[]){2}, 0);
    refuse(&build, "overlaps tensor");
    build_small(&build);
    gguf_build_entry(&build, "inside", 0, 1, (uint64_t[]){1}, 16);
    refuse(&build, "tensor 'inside' at offset");
}

/* One line with the path, whatever the path is made of. */
static void test_paths(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_gguf_bad_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char path[512], other[600];
    sl_err err;
    sl_gguf *gguf = NULL;
    assert_int_equal(sl_gguf_open(dir, &budget, &gguf, &err), SL_FAILED);
    assert_non_null(strstr(err.text, dir));
    assert_non_null(strstr(err.text, "is a directory, a regular file is expected"));
    snprintf(path, sizeof path, "%s/missing.gguf", dir);
    assert_int_equal(sl_gguf_open(path, &budget, &gguf, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "missing.gguf: cannot be opened: No such file or directory"));
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(sl_gguf_open(path, &budget, &gguf, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "missing.gguf: not a GGUF file (it is empty)"));
    char long_name[251];
    memset(long_name, 'x', sizeof long_name - 1);
    memcpy(long_name, "a\nb", 3);
    memcpy(long_name + 245, ".gguf", 6);
    snprintf(other, sizeof other, "%s/%s", dir, long_name);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(sl_gguf_open(other, &budget, &gguf, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "xxx.gguf: not a GGUF file (it is empty)"));
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(unlink(other), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_null(gguf);
    assert_int_equal(budget.used_bytes, 0);
}

/* The file is read twice: what the first walk allowed is not believed in the second. */
static void test_changed_between_the_walks(void **state)
{
    (void)state;
    gguf_build build;
    build_small(&build);
    sl_gguf gguf = {.budget = &budget, .file_bytes = build.file.size, .label = "changed", .image = build.file.data};
    sl_err err;
    assert_int_equal(sl_gguf_scan(&gguf, &err), SL_OK);
    gguf.meta = build.file.data;
    for (size_t i = 24; i < gguf.meta_bytes; i++) {
        build.file.data[i] ^= 0x80;
        sl_status status = sl_gguf_parse(&gguf, &err);
        build.file.data[i] ^= 0x80;
        assert_true(status == SL_OK || status == SL_DAMAGED || status == SL_FAILED);
        if (i == 31) /* the first key's length */
            assert_string_equal(err.text, "changed: the file changed while it was read");
        sl_mem_free(&budget, gguf.value_index.slots);
        sl_mem_free(&budget, gguf.tensor_index.slots);
        sl_mem_free(&budget, gguf.values);
        sl_mem_free(&budget, gguf.tensors);
    }
    gguf_build_deinit(&build);
    assert_int_equal(budget.used_bytes, 0);
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    gguf_build build;
    build_small(&build);
    sl_status status = SL_FAILED;
    int64_t n;
    for (n = 1; status != SL_OK && n < 50; n++) {
        sl_err err;
        budget.fail_in = n;
        status = try_image(build.file.data, build.file.size, &err);
        if (status != SL_OK) {
            assert_int_equal(status, SL_FAILED);
            assert_non_null(strstr(err.text, "out of memory"));
        }
    }
    budget.fail_in = 0;
    assert_true(n > 5 && n < 50);
    gguf_build_deinit(&build);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fault_1_dimensions_that_wrap),
        cmocka_unit_test(fault_2_counts_beyond_the_file),
        cmocka_unit_test(fault_3_alignment),
        cmocka_unit_test(fault_4_cut_at_every_byte),
        cmocka_unit_test(fault_4_tensor_past_the_end),
        cmocka_unit_test(fault_5_html_page),
        cmocka_unit_test(test_unknown_type_past_the_end),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_header_fields),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_value_types),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_changed_between_the_walks),
        cmocka_unit_test(test_every_allocation_fails),
    };
    sl_budget_init(&budget, BUDGET_BYTES);
    return cmocka_run_group_tests_name("gguf_bad", tests, NULL, NULL);
}
