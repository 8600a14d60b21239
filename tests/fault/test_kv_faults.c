/* Every fault of the file or of memory, at every call in turn until the run passes: the right status, a text that
 * names file and cause, nothing leaked, nothing left behind, no hang. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/effort.h"
#include "common/fault_vfs.h"
#include "common/kv_model.h"

enum { MAX_TOKENS = 5000, SEED = 77 };

static char temp_dir[64];
static int n_warnings;

/* How runs read: parts as they come, or cut into many small reads in flight; by the system's queue or by a pool. */
static const struct way {
    size_t slot_bytes, read_bytes;
    sl_io_engine engine;
} ways[] = {
    {0, 0, SL_IO_ENGINE_AUTO},
    {256 << 10, 32 << 10, SL_IO_ENGINE_AUTO},
    {256 << 10, 32 << 10, SL_IO_ENGINE_POOL},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };
static const struct way *way = &ways[0];

static void count_warning(void *arg, sl_log_level level, const char *text)
{
    (void)arg;
    if (level == SL_LOG_LEVEL_WARNING)
        assert_non_null(strstr(text, "direct I/O"));
    n_warnings += level == SL_LOG_LEVEL_WARNING;
}

static const sl_kv_layer layers[2] = {{1, 32, 0}, {1, 32, 0}};

static sl_kv_options options_in(const char *dir, sl_budget *budget)
{
    return (sl_kv_options){
        .geom = {.type = SL_KV_TYPE_Q8_0, .n_layers = 2, .layers = layers},
        .dir = dir,
        .max_tokens = MAX_TOKENS,
        .n_slots = 2,
        .slot_bytes = way->slot_bytes,
        .read_bytes = way->read_bytes,
        .io_engine = way->engine,
        .resident_bytes = 3 * 70000, /* three parts or so */
        .budget = budget,
        .log = {count_warning, NULL},
    };
}

/* Three passes with appends behind each walk, then one that only walks, with a share raised on the way. */
static sl_status run(const sl_kv_options *options, sl_kv_stats *stats, sl_err *err)
{
    static const uint64_t steps[] = {2500, 100, 1900, 0};
    kv_model model;
    kv_model_init(&model, &options->geom, MAX_TOKENS, SEED);
    sl_kv *kv = NULL;
    sl_status status = sl_kv_create(options, &kv, err);
    for (int i = 0; i < 4 && status == SL_OK; i++) {
        uint64_t parts = 0;
        status = sl_kv_pass_begin(kv, i < 3, err);
        for (uint32_t l = 0; l < 2 && status == SL_OK; l++) {
            status = kv_model_walk(&model, kv, l, UINT64_MAX, &parts, err);
            if (status == SL_OK)
                status = kv_model_append(&model, kv, l, steps[i], err);
        }
        if (status == SL_OK)
            status = sl_kv_pass_end(kv, err);
        if (status == SL_OK && i == 1)
            status = sl_kv_set_resident(kv, 5 * 70000, err);
    }
    if (kv && stats)
        sl_kv_get_stats(kv, stats);
    sl_kv_destroy(kv);
    kv_model_deinit(&model);
    return status;
}

static void expect_empty(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            fail_msg("left behind: %s", entry->d_name);
    closedir(dir);
}

/* One run with one fault; *hits tells whether it happened. */
static sl_status run_fault(fault_kind kind, int code, uint64_t n, uint64_t n_in_row, uint64_t *hits, sl_kv_stats *stats,
                           sl_err *err)
{
    fault_vfs fault;
    fault_vfs_init(&fault, kind, code, n);
    if (n_in_row > 0)
        fault.n_in_row = n_in_row;
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    sl_kv_options options = options_in(temp_dir, &budget);
    options.vfs = &fault.vfs;
    options.force_buffered = kind == FAULT_WRITE_OUT;
    memset(err, 0, sizeof *err);
    sl_status status = run(&options, stats, err);
    *hits = fault.n_hits;
    assert_int_equal(fault.n_open, 0);
    assert_int_equal(fault.n_queues, 0);
    assert_int_equal(budget.used_bytes, 0);
    sl_budget_deinit(&budget);
    expect_empty(temp_dir);
    return status;
}

/* Which call fails after the n-th: every one, or, where effort is tiny, of the many reads some. */
static uint64_t next_call(fault_kind kind, uint64_t n)
{
    return n + (EFFORT_IS_TINY && n > 3 && (kind == FAULT_READ || kind == FAULT_ZERO_READ) ? 9 : 1);
}

/* The n-th call fails for good, n = 1, 2, ...: this status, and a text with all of these words. */
static void expect_failures(fault_kind kind, int code, sl_status status, const char *word1, const char *word2)
{
    uint64_t hits = 1, n = 1, n_failed = 0;
    for (; hits > 0; n = next_call(kind, n)) {
        sl_err err;
        sl_status got = run_fault(kind, code, n, 0, &hits, NULL, &err);
        n_failed += got != SL_OK;
        if (hits == 0) {
            assert_int_equal(got, SL_OK);
            break;
        }
        /* The page cache may refuse to let go of what was only read: no harm. */
        if (kind == FAULT_WRITE_OUT && got == SL_OK)
            continue;
        if (got != status)
            fail_msg("call %llu: status %d (%s)", (unsigned long long)n, (int)got, err.text);
        assert_int_equal(err.status, status);
        if (!strstr(err.text, temp_dir) || !strstr(err.text, word1) || !strstr(err.text, word2))
            fail_msg("call %llu: text \"%s\" lacks \"%s\" or \"%s\"", (unsigned long long)n, err.text, word1, word2);
    }
    assert_true(n_failed >= (kind == FAULT_OPEN ? 1 : 3));
}

/* What the seam itself gets over. */
static void expect_healing(fault_kind kind, int code, uint64_t n_in_row)
{
    uint64_t hits = 1, n = 1;
    for (; hits > 0; n = next_call(kind, n)) {
        sl_err err;
        if (run_fault(kind, code, n, n_in_row, &hits, NULL, &err) != SL_OK)
            fail_msg("call %llu: %s", (unsigned long long)n, err.text);
    }
    assert_true(n > 3);
}

static void test_errors(void **state)
{
    (void)state;
    for (way = ways; way < ways + N_WAYS; way++) {
        expect_failures(FAULT_READ, EIO, SL_FAILED, "cannot read", strerror(EIO));
        expect_failures(FAULT_ZERO_READ, 0, SL_FAILED, "the file ends there", "offset");
    }
    way = ways;
    expect_failures(FAULT_OPEN, EACCES, SL_FAILED, "cannot create", strerror(EACCES));
    expect_failures(FAULT_WRITE, EIO, SL_FAILED, "cannot write", strerror(EIO));
    expect_failures(FAULT_WRITE, ENOSPC, SL_FAILED, "offset", strerror(ENOSPC));
    expect_failures(FAULT_ZERO_WRITE, 0, SL_FAILED, "takes no more", "offset");
    expect_failures(FAULT_WRITE_OUT, ENOSPC, SL_FAILED, "cannot write out", strerror(ENOSPC));
}

static void test_flipped_bit(void **state)
{
    (void)state;
    for (way = ways; way < ways + N_WAYS; way++)
        expect_failures(FAULT_FLIPPED_BIT, 0, SL_DAMAGED, "offset", temp_dir);
    way = ways;
    sl_err err;
    uint64_t hits;
    assert_int_equal(run_fault(FAULT_FLIPPED_BIT, 0, 4, 0, &hits, NULL, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "layer "));
    assert_non_null(strstr(err.text, "segment "));
    assert_non_null(strstr(err.text, "checksum "));
}

static void test_transient(void **state)
{
    (void)state;
    for (way = ways; way < ways + N_WAYS; way++) {
        expect_healing(FAULT_READ, EINTR, 0);
        expect_healing(FAULT_READ, EAGAIN, 2);
        expect_healing(FAULT_SHORT_READ, 0, way == ways ? 0 : 3);
    }
    way = ways;
    expect_healing(FAULT_WRITE, EINTR, 5);
    expect_healing(FAULT_WRITE, EAGAIN, 0);
    expect_healing(FAULT_SHORT_WRITE, 0, 0);
}

/* Whether this system has a queue of reads of its own for us. */
static bool has_queue(void)
{
    sl_err err;
    sl_kv_stats stats;
    uint64_t hits;
    assert_int_equal(run_fault(FAULT_NONE, 0, 1, 0, &hits, &stats, &err), SL_OK);
    return strcmp(stats.io_engine, "pread pool") != 0;
}

/* What only the system's queue can do wrong. */
static void test_queue(void **state)
{
    (void)state;
    sl_err err;
    sl_kv_stats stats;
    uint64_t hits;
    if (!has_queue())
        skip();
    for (way = ways; way < ways + 2; way++) {
        expect_healing(FAULT_AIO_FEW_STARTED, 0, 0);
        expect_healing(FAULT_AIO_START, EAGAIN, 1);
        expect_healing(FAULT_AIO_START, ENOMEM, 1);
        expect_healing(FAULT_AIO_WAIT, EINTR, 2);
        expect_healing(FAULT_AIO_WAIT, EIO, 0);
        expect_failures(FAULT_AIO_START, EIO, SL_FAILED, "cannot read", strerror(EIO));
        assert_int_equal(run_fault(FAULT_AIO_SHUFFLED, 0, 1, 0, &hits, &stats, &err), SL_OK);
        assert_int_equal(run_fault(FAULT_AIO_OPEN, EPERM, 1, 0, &hits, &stats, &err), SL_OK);
        assert_string_equal(stats.io_engine, "pread pool");
        assert_int_equal(run_fault(FAULT_AIO_REGISTER, ENOMEM, 1, 0, &hits, &stats, &err), SL_OK);
        assert_non_null(strstr(stats.io_engine, "unregistered"));
    }
    static const struct way system_only = {0, 0, SL_IO_ENGINE_URING};
    way = &system_only;
    assert_int_equal(run_fault(FAULT_NONE, 0, 1, 0, &hits, &stats, &err), SL_OK);
    assert_int_equal(run_fault(FAULT_AIO_OPEN, ENOSYS, 1, 0, &hits, &stats, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, strerror(ENOSYS)));
    assert_non_null(strstr(err.text, temp_dir));
    way = ways;
}

/* A read that failed once: the pass is given up, the next ones are whole again, as often as one likes. */
static void test_goes_on_after_failure(void **state)
{
    (void)state;
    for (uint64_t n = 2; n < 12; n++) {
        way = &ways[n % N_WAYS];
        fault_vfs fault;
        fault_vfs_init(&fault, n % 2 ? FAULT_READ : FAULT_FLIPPED_BIT, EIO, n);
        sl_budget budget;
        sl_budget_init(&budget, UINT64_MAX);
        sl_kv_options options = options_in(temp_dir, &budget);
        options.vfs = &fault.vfs;
        kv_model model;
        kv_model_init(&model, &options.geom, MAX_TOKENS, SEED);
        sl_kv *kv = NULL;
        sl_err err;
        assert_int_equal(sl_kv_create(&options, &kv, &err), SL_OK);
        for (uint32_t l = 0; l < 2; l++)
            assert_int_equal(kv_model_append(&model, kv, l, 4500, &err), SL_OK);
        int n_failed = 0, n_whole = 0;
        for (int i = 0; i < 12; i++) {
            uint64_t parts = 0;
            assert_int_equal(sl_kv_pass_begin(kv, true, &err), SL_OK);
            sl_status status = kv_model_walk(&model, kv, 0, UINT64_MAX, &parts, &err);
            if (status == SL_OK)
                status = kv_model_walk(&model, kv, 1, UINT64_MAX, &parts, &err);
            n_failed += status != SL_OK;
            n_whole += status == SL_OK;
            assert_int_equal(sl_kv_pass_end(kv, &err), SL_OK);
            if (i % 3 == 2) /* once more */
                atomic_store(&fault.n_calls, 0);
        }
        assert_true(n_failed >= 2 && n_whole >= 6);
        sl_kv_destroy(kv);
        kv_model_deinit(&model);
        assert_int_equal(fault.n_open, 0);
        assert_int_equal(budget.used_bytes, 0);
        sl_budget_deinit(&budget);
    }
    way = ways;
}

/* A device that says EAGAIN for ever is given up, not waited for. */
static void test_endless_eagain(void **state)
{
    (void)state;
    sl_err err;
    uint64_t hits;
    assert_int_equal(run_fault(FAULT_READ, EAGAIN, 3, UINT64_MAX / 2, &hits, NULL, &err), SL_FAILED);
    assert_non_null(strstr(err.text, strerror(EAGAIN)));
}

static void test_direct_refused(void **state)
{
    (void)state;
    static const fault_kind kinds[] = {FAULT_DIRECT_AT_OPEN, FAULT_DIRECT_AT_WRITE, FAULT_DIRECT_AT_READ,
                                       FAULT_SILENTLY_CACHED};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        sl_err err;
        sl_kv_stats stats;
        uint64_t hits;
        n_warnings = 0;
        if (run_fault(kinds[i], EINVAL, 1, 0, &hits, &stats, &err) != SL_OK)
            fail_msg("kind %d: %s", (int)kinds[i], err.text);
        assert_string_equal(stats.io_mode, "buffered");
        assert_int_equal(n_warnings, 1);
        /* Dropped behind: at most a few pages that were just in use. */
        assert_in_range(stats.page_cache_bytes, 0, 64 << 10);
    }
}

/* The n-th allocation fails, n = 1, 2, ... until none does. */
static void test_allocations(void **state)
{
    (void)state;
    sl_status status = SL_FAILED;
    int64_t n = 1;
    for (; status != SL_OK; n++) {
        sl_budget budget;
        sl_budget_init(&budget, UINT64_MAX);
        budget.fail_in = n;
        sl_kv_options options = options_in(temp_dir, &budget);
        sl_err err = {0};
        status = run(&options, NULL, &err);
        if (budget.fail_in == 0) {
            assert_int_equal(status, SL_FAILED);
            assert_non_null(strstr(err.text, "out of memory"));
        }
        assert_int_equal(budget.used_bytes, 0);
        sl_budget_deinit(&budget);
        expect_empty(temp_dir);
    }
    assert_true(n > 10);
}

static void test_budget_too_small(void **state)
{
    (void)state;
    sl_budget budget;
    sl_budget_init(&budget, 1 << 20);
    sl_kv_options options = options_in(temp_dir, &budget);
    options.slot_bytes = 8 << 20;
    sl_err err = {0};
    assert_int_equal(run(&options, NULL, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "memory budget too small"));
    assert_int_equal(budget.used_bytes, 0);
    sl_budget_deinit(&budget);
}

static sl_status run_in(const char *dir, bool allow_ram_dir, sl_kv_stats *stats, sl_err *err)
{
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    sl_kv_options options = options_in(dir, &budget);
    options.allow_ram_dir = allow_ram_dir;
    memset(err, 0, sizeof *err);
    sl_status status = run(&options, stats, err);
    assert_int_equal(budget.used_bytes, 0);
    sl_budget_deinit(&budget);
    return status;
}

static void test_bad_dirs(void **state)
{
    (void)state;
    sl_err err;
    assert_int_equal(run_in("/nonexistent/dir", false, NULL, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/nonexistent/dir"));
    assert_non_null(strstr(err.text, strerror(ENOENT)));
    assert_int_equal(run_in("/proc/self/status", false, NULL, &err), SL_FAILED);
    assert_non_null(strstr(err.text, strerror(ENOTDIR)));
    if (geteuid() != 0) {
        assert_int_equal(run_in("/", false, NULL, &err), SL_FAILED);
        assert_non_null(strstr(err.text, strerror(EACCES)));
    }
}

static void test_tmpfs(void **state)
{
    (void)state;
    struct statfs info;
    if (statfs("/dev/shm", &info) != 0 || info.f_type != 0x01021994)
        skip();
    sl_err err;
    assert_int_equal(run_in("/dev/shm", false, NULL, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "/dev/shm"));
    assert_non_null(strstr(err.text, "--kv-dir"));
    assert_non_null(strstr(err.text, "--allow-ram-dir"));
    sl_kv_stats stats;
    assert_int_equal(run_in("/dev/shm", true, &stats, &err), SL_OK);
    assert_string_equal(stats.io_mode, "buffered");
}

/* A real ext4 of 64 MB with nothing left: needs root, mkfs and loop devices. */
static void test_full_disk(void **state)
{
    (void)state;
    char image[128], mount_dir[128];
    if (geteuid() != 0)
        skip();
    snprintf(image, sizeof image, "%s.img", temp_dir);
    snprintf(mount_dir, sizeof mount_dir, "%s.mnt", temp_dir);
    setenv("IMAGE", image, 1);
    setenv("MOUNT", mount_dir, 1);
    bool is_mounted = system("exec >/dev/null 2>&1; truncate -s 64M $IMAGE && mkfs.ext4 -q -F -m 0 $IMAGE && "
                             "mkdir $MOUNT && mount -o loop $IMAGE $MOUNT && "
                             "{ dd if=/dev/zero of=$MOUNT/filler bs=64k; "
                             "truncate -s -200K $MOUNT/filler; sync; }") == 0;
    sl_err err = {0};
    sl_status status = SL_OK;
    if (is_mounted)
        status = run_in(mount_dir, false, NULL, &err);
    (void)umount2(mount_dir, MNT_DETACH);
    rmdir(mount_dir);
    unlink(image);
    if (!is_mounted)
        skip();
    assert_int_equal(status, SL_FAILED);
    assert_non_null(strstr(err.text, mount_dir));
    assert_non_null(strstr(err.text, strerror(ENOSPC)));
}

int main(void)
{
    const char *base = getenv("SLUICE_KV_DIR");
    snprintf(temp_dir, sizeof temp_dir, "%.40s/sluice-fault-XXXXXX", base && *base ? base : "/var/tmp");
    if (!mkdtemp(temp_dir))
        return 1;
    printf("seed %d\n", (int)SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_flipped_bit),
        cmocka_unit_test(test_transient),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_endless_eagain),
        cmocka_unit_test(test_direct_refused),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_budget_too_small),
        cmocka_unit_test(test_bad_dirs),
        cmocka_unit_test(test_tmpfs),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_goes_on_after_failure),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(temp_dir);
    return failed;
}
