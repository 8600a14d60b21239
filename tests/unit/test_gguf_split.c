/* Split models: three files read as one; parts that are missing, foreign, named or numbered wrongly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/gguf_build.h"

enum { N_PARTS = 3, N_EACH = 2 };

static char dir[200];
static sl_budget budget;

typedef struct part {
    uint64_t number, count, n_tensors; /* as it says */
    uint64_t first;                    /* number of its first tensor */
    bool has_split;
} part;

static void part_path(char *out, size_t size, int number)
{
    snprintf(out, size, "%s/m-%05d-of-%05d.gguf", dir, number + 1, N_PARTS);
}

/* Tensor i is 8 floats i, i + 1, ... */
static void part_write(const char *path, part p)
{
    gguf_build build;
    gguf_build_init(&build);
    if (p.has_split) {
        gguf_build_uint(&build, "split.no", SL_GGUF_TYPE_U16, p.number);
        gguf_build_uint(&build, "split.count", SL_GGUF_TYPE_U16, p.count);
        gguf_build_uint(&build, "split.tensors.count", SL_GGUF_TYPE_I32, p.n_tensors);
    }
    if (p.number == 0)
        gguf_build_string(&build, "general.architecture", "llama");
    for (uint64_t i = p.first; i < p.first + N_EACH; i++) {
        char name[16];
        float data[8];
        const uint64_t dims[] = {8};
        snprintf(name, sizeof name, "t%d", (int)i);
        for (int k = 0; k < 8; k++)
            data[k] = (float)((int)i + k);
        gguf_build_tensor(&build, name, 0, 1, dims, data, sizeof data);
    }
    assert_true(gguf_build_write(&build, path));
    gguf_build_deinit(&build);
}

static void write_all(void)
{
    for (int i = 0; i < N_PARTS; i++) {
        char path[256];
        part_path(path, sizeof path, i);
        part_write(path, (part){(uint64_t)i, N_PARTS, N_PARTS * N_EACH, (uint64_t)(i * N_EACH), true});
    }
}

static int setup(void **state)
{
    (void)state;
    const char *base = getenv("SLUICE_TEST_DIR");
    snprintf(dir, sizeof dir, "%s/sluice-split-XXXXXX", base ? base : "/var/tmp");
    sl_budget_init(&budget, UINT64_MAX);
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < N_PARTS; i++) {
        char path[256];
        part_path(path, sizeof path, i);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}

static void three_files_are_one_model(void **unused)
{
    (void)unused;
    char path[256];
    sl_gguf *gguf;
    sl_err err = {SL_OK, ""};
    uint64_t bytes = 0;
    write_all();
    for (int i = 0; i < N_PARTS; i++) {
        part_path(path, sizeof path, i);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        fseek(file, 0, SEEK_END);
        bytes += (uint64_t)ftell(file);
        fclose(file);
    }
    part_path(path, sizeof path, 0);
    if (sl_gguf_open(path, &budget, &gguf, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(sl_gguf_n_tensors(gguf), N_PARTS * N_EACH);
    assert_true(sl_gguf_file_bytes(gguf) == bytes);
    for (int i = 0; i < N_PARTS * N_EACH; i++) {
        char name[16];
        float data[8];
        snprintf(name, sizeof name, "t%d", i);
        const sl_gguf_tensor *tensor = sl_gguf_tensor_find(gguf, name);
        assert_non_null(tensor);
        assert_ptr_equal(tensor, sl_gguf_tensor_at(gguf, (size_t)i));
        assert_int_equal(sl_gguf_read(gguf, tensor, 4, 28, data + 1, &err), SL_OK);
        for (int k = 1; k < 8; k++)
            assert_true(data[k] == (float)(i + k));
        assert_int_equal(sl_gguf_read(gguf, tensor, 4, 32, data, &err), SL_FAILED);
    }
    assert_null(sl_gguf_tensor_find(gguf, "t6"));
    sl_gguf_close(gguf);
    assert_int_equal(budget.used_bytes, 0);
}

static void expect_refused(int opened, sl_status want, const char *text)
{
    char path[256];
    sl_gguf *gguf;
    sl_err err = {SL_OK, ""};
    part_path(path, sizeof path, opened);
    assert_int_equal(sl_gguf_open(path, &budget, &gguf, &err), want);
    assert_null(gguf);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" lacks \"%s\"", err.text, text);
    assert_int_equal(budget.used_bytes, 0);
}

static void wrong_parts_are_refused(void **unused)
{
    (void)unused;
    char first[256], second[256], other[256];
    part_path(first, sizeof first, 0);
    part_path(second, sizeof second, 1);
    write_all();
    expect_refused(1, SL_USAGE, "file 2 of 3 of a split model, give the first");
    unlink(second);
    expect_refused(0, SL_FAILED, "m-00002-of-00003.gguf: cannot be opened");
    part_write(second, (part){2, N_PARTS, 6, 2, true});
    expect_refused(0, SL_DAMAGED, "file 3 of 3 by its own account, 2 of 3 expected");
    part_write(second, (part){1, 2, 6, 2, true});
    expect_refused(0, SL_DAMAGED, "file 2 of 2 by its own account, 2 of 3 expected");
    part_write(second, (part){1, N_PARTS, 6, 2, false}); /* says nothing of a split */
    expect_refused(0, SL_DAMAGED, "file 1 of 1 by its own account, 2 of 3 expected");
    part_write(second, (part){1, N_PARTS, 6, 1, true}); /* t1 again */
    expect_refused(0, SL_DAMAGED, "tensor 't1' is in an earlier file of the model, too");
    write_all();
    part_write(first, (part){0, N_PARTS, 7, 0, true});
    expect_refused(0, SL_DAMAGED, "6 tensors in its 3 files, split.tensors.count says 7");
    part_write(first, (part){0, 1025, 6, 0, true});
    expect_refused(0, SL_DAMAGED, "1025 found, 0 to 1024 expected");
    part_write(first, (part){5, N_PARTS, 6, 0, true});
    expect_refused(0, SL_DAMAGED, "5 found, 0 to 2 expected");
    write_all();
    snprintf(other, sizeof other, "%s/model.gguf", dir);
    assert_int_equal(rename(first, other), 0);
    sl_gguf *gguf;
    sl_err err = {SL_OK, ""};
    assert_int_equal(sl_gguf_open(other, &budget, &gguf, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "its name ends with -00001-of-00003.gguf"));
    unlink(other);
    assert_int_equal(budget.used_bytes, 0);
}

/* The n-th allocation fails, n = 1, 2, ..., until all succeed. */
static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    char path[256];
    part_path(path, sizeof path, 0);
    write_all();
    bool is_done = false;
    for (int64_t n = 1; !is_done; n++) {
        sl_gguf *gguf;
        sl_err err = {SL_OK, ""};
        budget.fail_in = n;
        sl_status status = sl_gguf_open(path, &budget, &gguf, &err);
        is_done = budget.fail_in > 0;
        budget.fail_in = 0;
        assert_int_equal(status, is_done ? SL_OK : SL_FAILED);
        sl_gguf_close(gguf);
        assert_int_equal(budget.used_bytes, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_files_are_one_model),
        cmocka_unit_test(wrong_parts_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
