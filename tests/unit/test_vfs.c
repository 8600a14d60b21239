/* The system's files, and whole transfers over faulty ones. Needs a directory on a disk: SLUICE_KV_DIR or /var/tmp. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* ---- files that keep their names ---- */

enum { NAME_BYTES = 4096 };
static char folder[NAME_BYTES - 64], name[NAME_BYTES], other_name[NAME_BYTES];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/vfs-XXXXXX", kv_dir());
    assert_non_null(mkdtemp(folder));
    snprintf(name, sizeof name, "%s/book.kv", folder);
    snprintf(other_name, sizeof other_name, "%s/other.kv", folder);
}

static int files_in_folder(void)
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void remove_folder(void)
{
    (void)unlink(name);
    (void)unlink(other_name);
    assert_int_equal(rmdir(folder), 0); /* nothing else was left */
}

/* One sector, filled with `byte`. */
static sl_file *create_file(const sl_vfs *vfs, uint8_t byte)
{
    bool is_direct;
    sl_err err = {0};
    sl_file *file = NULL;
    if (vfs->create_named(vfs, name, false, true, &file, &is_direct, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_false(is_direct);
    memset(back, byte, SL_SECTOR_BYTES);
    assert_int_equal(sl_vfs_write(vfs, file, name, back, SL_SECTOR_BYTES, 0, &err), SL_OK);
    return file;
}

static sl_file *open_existing(const sl_vfs *vfs, bool for_writing)
{
    bool is_direct;
    sl_err err = {0};
    sl_file *file = NULL;
    if (vfs->open_named(vfs, name, for_writing, false, &file, &is_direct, &err) != SL_OK)
        fail_msg("%s", err.text);
    return file;
}

static void expect_byte(const sl_vfs *vfs, uint8_t byte, uint64_t off)
{
    sl_err err = {0};
    sl_file *file = open_existing(vfs, false);
    assert_int_equal(sl_vfs_read(vfs, file, name, back, SL_SECTOR_BYTES, off, &err), SL_OK);
    for (size_t i = 0; i < SL_SECTOR_BYTES; i++)
        assert_int_equal(back[i], byte);
    vfs->close(file);
}

/* A name comes with publish, not before; a taken one is refused unless it is to be replaced. */
static void test_publish(void **state)
{
    (void)state;
    fault_vfs fault;
    fault_vfs_init(&fault, FAULT_NONE, 0, 1);
    const sl_vfs *vfs = &fault.vfs;
    make_folder();
    sl_file *first = create_file(vfs, 1);
    assert_int_not_equal(access(name, F_OK), 0);
    assert_int_equal(vfs->sync(first), 0);
    assert_int_equal(vfs->publish(first, name, false), 0);
    expect_byte(vfs, 1, 0);
    sl_file *second = create_file(vfs, 2);
    assert_int_equal(vfs->publish(second, name, false), -EEXIST);
    expect_byte(vfs, 1, 0);
    assert_int_equal(vfs->publish(second, name, true), 0);
    expect_byte(vfs, 2, 0);
    sl_file *third = create_file(vfs, 3);
    assert_int_equal(vfs->publish(third, other_name, true), 0); /* replace: the name may be free as well */
    vfs->close(create_file(vfs, 4));
    vfs->close(first);
    vfs->close(second);
    vfs->close(third);
    assert_int_equal(files_in_folder(), 2);
    assert_int_equal(fault.n_publishes, 4);
    assert_int_equal(fault.n_syncs, 1);
    assert_int_equal(fault.n_open, 0);
    remove_folder();
}

static void test_named_refusals(void **state)
{
    (void)state;
    const sl_vfs *vfs = sl_vfs_system();
    bool is_direct;
    sl_err err = {0};
    sl_file *file = NULL;
    make_folder();
    assert_int_equal(vfs->open_named(vfs, name, false, true, &file, &is_direct, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "book.kv"));
    assert_int_equal(vfs->open_named(vfs, folder, false, true, &file, &is_direct, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(vfs->create_named(vfs, "/nonexistent/book.kv", true, true, &file, &is_direct, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/nonexistent/book.kv"));
    assert_null(file);
    remove_folder();
}

static void test_lock(void **state)
{
    (void)state;
    const sl_vfs *vfs = sl_vfs_system();
    make_folder();
    sl_file *first = create_file(vfs, 1);
    assert_int_equal(vfs->lock(first), 0);
    assert_int_equal(vfs->publish(first, name, false), 0);
    sl_file *second = open_existing(vfs, true);
    assert_int_equal(vfs->lock(second), -EAGAIN);
    vfs->close(first);
    assert_int_equal(vfs->lock(second), 0);
    vfs->close(second);
    remove_folder();
}

static void test_sizes_and_zeros(void **state)
{
    (void)state;
    const sl_vfs *vfs = sl_vfs_system();
    sl_err err = {0};
    make_folder();
    sl_file *file = create_file(vfs, 1);
    assert_int_equal(sl_vfs_write(vfs, file, name, data, BYTES, 0, &err), SL_OK);
    assert_int_equal(vfs->size(file), BYTES);
    int failed = vfs->clear(file, 16384, 16384);
    assert_true(failed == 0 || failed == -EOPNOTSUPP);
    assert_int_equal(vfs->size(file), BYTES);
    assert_int_equal(vfs->set_size(file, BYTES + 16384), 0);
    assert_int_equal(vfs->publish(file, name, false), 0);
    if (failed == 0)
        for (uint64_t off = 16384; off < 32768; off += SL_SECTOR_BYTES)
            expect_byte(vfs, 0, off);
    expect_byte(vfs, 0, BYTES);
    assert_int_equal(sl_vfs_read(vfs, file, name, back, BYTES, 0, &err), SL_OK);
    assert_memory_equal(back, data, 16384);
    assert_memory_equal(back + 32768, data + 32768, BYTES - 32768);
    assert_int_equal(vfs->set_size(file, 8192), 0);
    assert_int_equal(vfs->size(file), 8192);
    vfs->close(file);
    remove_folder();
}

/* What is written over a file goes to the attached one and is gone with it. */
static void test_overlay(void **state)
{
    (void)state;
    fault_vfs fault;
    fault_vfs_init(&fault, FAULT_NONE, 0, 1);
    const sl_vfs *vfs = &fault.vfs;
    bool is_direct;
    sl_err err = {0};
    make_folder();
    sl_file *file = create_file(vfs, 1);
    assert_int_equal(vfs->publish(file, name, false), 0);
    vfs->close(file);
    file = open_existing(vfs, false);
    vfs->attach(file, open_file(vfs, false, &is_direct));
    assert_int_equal(sl_vfs_write(vfs, file, name, data, BYTES, SL_OVERLAY_OFF, &err), SL_OK);
    assert_int_equal(sl_vfs_read(vfs, file, name, back, BYTES, SL_OVERLAY_OFF, &err), SL_OK);
    assert_memory_equal(back, data, BYTES);
    assert_int_equal(vfs->size(file), SL_SECTOR_BYTES);
    assert_int_equal(fault.n_open, 2);
    vfs->close(file);
    assert_int_equal(fault.n_open, 0);
    expect_byte(vfs, 1, 0);
    remove_folder();
}

/* Whoever is killed between creating and naming leaves nothing, where there are unnamed files. */
static void test_killed_creator(void **state)
{
    (void)state;
    make_folder();
    pid_t child = fork();
    if (child == 0) {
        (void)create_file(sl_vfs_system(), 1);
        _exit(files_in_folder()); /* as a kill would: nobody tidies up */
    }
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    if (WEXITSTATUS(ended) == 0)
        assert_int_equal(files_in_folder(), 0);
    else
        print_message("no unnamed files in %s\n", kv_dir());
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (entry->d_name[0] != '.')
            assert_int_equal(unlinkat(dirfd(dir), entry->d_name, 0), 0);
    closedir(dir);
    remove_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_system), cmocka_unit_test(test_page_cache), cmocka_unit_test(test_transients),
        cmocka_unit_test(test_probe),  cmocka_unit_test(test_os),
        cmocka_unit_test(test_publish),
        cmocka_unit_test(test_named_refusals),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_sizes_and_zeros),
        cmocka_unit_test(test_overlay),
        cmocka_unit_test(test_killed_creator),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
