/* The system's files, and whole transfers over faulty ones. Needs a directory on a disk: SLUICE_KV_DIR or /var/tmp. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/fault_vfs.h"
#include "platform/os.h"

enum { BYTES = 64 * 4096 };

static uint8_t *data, *back; /* [BYTES] each, aligned to a sector */

static const char *kv_dir(void)
{
    const char *dir = getenv("SLUICE_KV_DIR");
    return dir && *dir ? dir : "/var/tmp";
}

static int set_up(void **state)
{
    (void)state;
    data = aligned_alloc(4096, BYTES);
    back = aligned_alloc(4096, BYTES);
    if (!data || !back)
        return 1;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 31 + i / 4096);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(data);
    free(back);
    return 0;
}

static sl_file *open_file(const sl_vfs *vfs, bool direct, bool *is_direct)
{
    sl_file *file = NULL;
    sl_err err = {0};
    if (vfs->open_temp(vfs, kv_dir(), direct, true, &file, is_direct, &err) != SL_OK)
        fail_msg("%s", err.text);
    return file;
}

/* Bytes come back; the text names file, offset and end when more is asked for than there is. */
static void round_trip(const sl_vfs *vfs, bool direct)
{
    bool is_direct;
    sl_err err = {0};
    sl_file *file = open_file(vfs, direct, &is_direct);
    if (is_direct)
        assert_int_equal(sl_vfs_probe_direct(vfs, file, "probe", back, 0, &is_direct, &err), SL_OK);
    memset(back, 0, BYTES);
    if (sl_vfs_write(vfs, file, "some file", data, BYTES, 8192, &err) != SL_OK)
        fail_msg("%s", err.text);
    if (sl_vfs_read(vfs, file, "some file", back, BYTES, 8192, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_memory_equal(data, back, BYTES);
    if (is_direct)
        assert_int_equal(vfs->cached_bytes(file), 0);
    assert_int_equal(sl_vfs_read(vfs, file, "some file", back, BYTES, 12288, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "some file"));
    assert_non_null(strstr(err.text, "offset 12288"));
    assert_non_null(strstr(err.text, "the file ends there"));
    vfs->close(file);
}

static void test_system(void **state)
{
    (void)state;
    round_trip(sl_vfs_system(), true);
    round_trip(sl_vfs_system(), false);
}

static void test_page_cache(void **state)
{
    (void)state;
    const sl_vfs *vfs = sl_vfs_system();
    bool is_direct;
    sl_err err = {0};
    sl_file *file = open_file(vfs, false, &is_direct);
    assert_false(is_direct);
    assert_int_equal(sl_vfs_write(vfs, file, "f", data, BYTES, 0, &err), SL_OK);
    assert_int_equal(vfs->cached_bytes(file), BYTES);
    assert_int_equal(vfs->drop_cached(file, 0, BYTES), 0);
    assert_in_range(vfs->cached_bytes(file), 0, BYTES / 2); /* a tmpfs would keep all */
    vfs->close(file);
}

/* Every n-th raw call interrupted, busy or short. */
static void test_transients(void **state)
{
    (void)state;
    static const struct {
        fault_kind kind;
        int code;
    } cases[] = {{FAULT_READ, EINTR},   {FAULT_WRITE, EINTR},  {FAULT_READ, EAGAIN},
                 {FAULT_WRITE, EAGAIN}, {FAULT_SHORT_READ, 0}, {FAULT_SHORT_WRITE, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (uint64_t n = 1; n <= 3; n++) {
            fault_vfs fault;
            fault_vfs_init(&fault, cases[i].kind, cases[i].code, n);
            fault.n_in_row = 2;
            round_trip(&fault.vfs, true);
            round_trip(&fault.vfs, false);
            assert_true(fault.n_hits > 0);
            assert_int_equal(fault.n_open, 0);
        }
    }
}

static void expect_probe(fault_kind kind, sl_status status, bool expected)
{
    fault_vfs fault;
    fault_vfs_init(&fault, kind, EIO, 1);
    bool is_direct;
    sl_err err = {0};
    sl_file *file = open_file(&fault.vfs, true, &is_direct);
    if (is_direct) {
        assert_int_equal(sl_vfs_probe_direct(&fault.vfs, file, "f", back, 4096, &is_direct, &err), status);
        if (status == SL_OK)
            assert_int_equal(is_direct, expected);
        else
            assert_non_null(strstr(err.text, "offset 4096"));
    } else {
        print_message("no O_DIRECT in %s\n", kv_dir());
    }
    fault.vfs.close(file);
}

static void test_probe(void **state)
{
    (void)state;
    expect_probe(FAULT_DIRECT_AT_WRITE, SL_OK, false);
    expect_probe(FAULT_DIRECT_AT_READ, SL_OK, false);
    expect_probe(FAULT_SILENTLY_CACHED, SL_OK, false);
    expect_probe(FAULT_READ, SL_FAILED, false);
    expect_probe(FAULT_WRITE, SL_FAILED, false);
    expect_probe(FAULT_FLIPPED_BIT, SL_DAMAGED, false);
}

static void test_os(void **state)
{
    (void)state;
    double start = sl_os_seconds();
    assert_true(sl_os_seconds() >= start);
    assert_true(sl_os_rss_bytes() > 0);
    assert_true(sl_os_peak_rss_bytes() >= sl_os_rss_bytes() / 2);
    assert_true(sl_os_free_memory_bytes() > 0);
    assert_true(sl_os_n_cpus() >= 1);
    uint64_t bytes = 0;
    sl_err err = {0};
    assert_int_equal(sl_os_disk_free(kv_dir(), &bytes, &err), SL_OK);
    assert_true(bytes > 0);
    assert_int_equal(sl_os_disk_free("/nonexistent", &bytes, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/nonexistent"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_system), cmocka_unit_test(test_page_cache), cmocka_unit_test(test_transients),
        cmocka_unit_test(test_probe),  cmocka_unit_test(test_os),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
