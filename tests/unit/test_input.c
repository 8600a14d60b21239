/* Files for reading: whole transfers over interrupted and short ones, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "platform/input.h"

static char dir[] = "/tmp/test_input_XXXXXX";
static char path[64];

static int make_file(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/file", dir);
    FILE *file = fopen(path, "wb");
    if (!file)
        return -1;
    fputs("0123456789", file);
    return fclose(file);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path) != 0 || rmdir(dir) != 0;
}

static void test_read(void **state)
{
    (void)state;
    sl_input *input = NULL;
    uint64_t size = 0;
    sl_err err;
    char buf[16] = "";
    assert_int_equal(sl_input_open(path, &input, &size, &err), SL_OK);
    assert_int_equal(size, 10);
    assert_int_equal(sl_input_read(input, buf, 4, 3, &err), SL_OK);
    assert_memory_equal(buf, "3456", 4);
    assert_int_equal(sl_input_read(input, buf, 0, 99, &err), SL_OK);
    assert_int_equal(sl_input_read(input, buf, 4, 8, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/file: ends at offset 10, 2 more bytes are expected"));
    assert_int_equal(sl_input_read(input, buf, 1, UINT64_MAX, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "offset 18446744073709551615 is beyond"));
    sl_input_close(input);
    sl_input_close(NULL);
}

static int n_calls;

/* Every other call is interrupted, the others move one byte. */
static ssize_t pread_by_drops(int fd, void *buf, size_t bytes, off_t off)
{
    if (n_calls++ % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return pread(fd, buf, bytes < 1 ? bytes : 1, off);
}

static ssize_t pread_broken(int fd, void *buf, size_t bytes, off_t off)
{
    if (off < 5)
        return pread(fd, buf, bytes < 5 ? bytes : 5, off);
    errno = EIO;
    return -1;
}

static void fault_22_interrupted_and_short(void **state)
{
    (void)state;
    sl_input *input = NULL;
    uint64_t size;
    sl_err err;
    char buf[16] = "";
    assert_int_equal(sl_input_open(path, &input, &size, &err), SL_OK);
    n_calls = 0;
    assert_int_equal(sl_input_read_by(pread_by_drops, input, buf, 10, 0, &err), SL_OK);
    assert_memory_equal(buf, "0123456789", 10);
    assert_int_equal(n_calls, 20);
    assert_int_equal(sl_input_read_by(pread_broken, input, buf, 10, 0, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/file: reading 5 bytes at offset 5 failed: Input/output error"));
    sl_input_close(input);
}

static void refuse(const char *name, const char *expected)
{
    sl_input *input = NULL;
    uint64_t size = 1;
    sl_err err;
    assert_int_equal(sl_input_open(name, &input, &size, &err), SL_FAILED);
    if (!strstr(err.text, expected) || !strstr(err.text, name))
        fail_msg("\"%s\"; expected \"%s\"", err.text, expected);
    assert_null(input);
    assert_int_equal(size, 0);
}

static void test_refused(void **state)
{
    (void)state;
    char fifo[80];
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    refuse(fifo, "is a pipe, a regular file is expected"); /* and does not wait for a writer */
    assert_int_equal(unlink(fifo), 0);
    refuse(dir, "is a directory");
    refuse("/dev/null", "is a device");
    refuse("/nonexistent/file", "cannot be opened: No such file or directory");
}

static void test_unreadable(void **state)
{
    (void)state;
    if (geteuid() == 0) /* root may read anything */
        skip();
    assert_int_equal(chmod(path, 0), 0);
    refuse(path, "cannot be opened: Permission denied");
    assert_int_equal(chmod(path, 0600), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(fault_22_interrupted_and_short),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_unreadable),
    };
    return cmocka_run_group_tests_name("input", tests, make_file, remove_file);
}
