/* The queue of reads against a real system that refuses: locked memory, io_uring forbidden, signals, a file cut short.
 * What changes the process for good runs in a child. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/queue_rig.h"
#include "platform/os.h"

#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

enum { READ = 64 << 10, N_READS = RIG_FILE_BYTES / READ };

/* In a child: the line that failed is its result. */
#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return __LINE__;                                                                                           \
    } while (0)
enum { CHILD_SKIPS = -1 };

static void run_child(int (*body)(queue_rig *rig, int arg), int arg)
{
    queue_rig rig;
    rig_init(&rig, FAULT_NONE, 0, 0);
    int result[2], line = -2;
    assert_int_equal(pipe(result), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        line = body(&rig, arg);
        _exit(write(result[1], &line, sizeof line) != sizeof line);
    }
    close(result[1]);
    ssize_t got = read(result[0], &line, sizeof line);
    close(result[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    rig_deinit(&rig);
    if (got != sizeof line)
        fail_msg("the child ended with status %#x", (unsigned)status);
    if (line == CHILD_SKIPS)
        skip();
    if (line != 0)
        fail_msg("failed in the child, line %d", line);
}

static bool has_system_queue(void)
{
    char cause[512];
    bool has = rig_has_system_queue(cause, sizeof cause);
    if (!has)
        print_message("%s\n", cause);
    return has;
}

static bool reads_well(queue_rig *rig, size_t read_bytes)
{
    rig_result result;
    return rig_read_all(rig, read_bytes, &result) && result.n_right == RIG_FILE_BYTES / read_bytes;
}

/* 8 MiB may be locked, as for users by default, and no capability lifts that. */
static int be_ordinary(void)
{
    struct rlimit limit = {8 << 20, 8 << 20};
    NEED(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (geteuid() == 0)
        NEED(setgid(65534) == 0 && setuid(65534) == 0);
    return 0;
}

static int ordinary_user(queue_rig *rig, int arg)
{
    (void)arg;
    int line = be_ordinary();
    NEED(line == 0);
    sl_err err = {0};
    uint8_t *small = rig->memory;
    enum { BIG = 64 << 20, SMALL = 2 << 20 };
    uint8_t *big = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(big != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        rig->memory = big;
        rig->memory_bytes = BIG;
        NEED(rig_open(rig, SL_IO_ENGINE_AUTO, 16, &err) == SL_OK);
        NEED(strcmp(sl_queue_engine(rig->queue), "io_uring, unregistered buffers") == 0);
        NEED(reads_well(rig, READ));
        sl_queue_destroy(rig->queue);
    }
    NEED(rig->n_log == 1); /* once */
    NEED(strstr(rig->log[0], "unregistered buffers") && strstr(rig->log[0], "Cannot allocate memory"));
    /* What fits is registered, and given back when the queue is gone, not some time later. */
    for (int i = 0; i < 100; i++) {
        rig->memory = small;
        rig->memory_bytes = SMALL;
        NEED(rig_open(rig, SL_IO_ENGINE_URING, 16, &err) == SL_OK);
        NEED(strcmp(sl_queue_engine(rig->queue), "io_uring") == 0);
        NEED(i % 10 != 0 || reads_well(rig, READ));
        sl_queue_destroy(rig->queue);
    }
    NEED(rig->n_log == 1);
    return 0;
}

static void test_ordinary_user(void **state)
{
    (void)state;
    if (!has_system_queue())
        skip();
    run_child(ordinary_user, 0);
}

#ifdef __linux__
/* The system call ends with `code`, as in many containers. */
static bool forbid(long number, int code)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

enum { SETUP_NUMBER = 425, ENTER_NUMBER = 426, REGISTER_NUMBER = 427 }; /* io_uring_..., on every architecture */

static int no_ring(queue_rig *rig, int number, int code, const char *cause)
{
    if (!forbid(number, code))
        return CHILD_SKIPS;
    sl_err err = {0};
    NEED(rig_open(rig, SL_IO_ENGINE_URING, 4, &err) == SL_REFUSED);
    NEED(strstr(err.text, "io_uring cannot be had here") && strstr(err.text, cause));
    NEED(rig->n_log == 0);
    for (int i = 0; i < 3; i++) {
        NEED(rig_open(rig, SL_IO_ENGINE_AUTO, 4, &err) == SL_OK);
        NEED(strcmp(sl_queue_engine(rig->queue), "pread pool") == 0);
        NEED(reads_well(rig, READ));
        sl_queue_destroy(rig->queue);
    }
    NEED(rig->n_log == 1);
    NEED(strstr(rig->log[0], "pool of threads") && strstr(rig->log[0], cause));
    return 0;
}

static int forbidden_setup(queue_rig *rig, int code)
{
    return no_ring(rig, SETUP_NUMBER, code, code == EPERM ? "not permitted" : "not implemented");
}

static int forbidden_enter(queue_rig *rig, int code)
{
    return no_ring(rig, ENTER_NUMBER, code, "not permitted");
}

static int forbidden_register(queue_rig *rig, int code)
{
    if (!forbid(REGISTER_NUMBER, code))
        return CHILD_SKIPS;
    sl_err err = {0};
    NEED(rig_open(rig, SL_IO_ENGINE_URING, 4, &err) == SL_OK);
    NEED(strcmp(sl_queue_engine(rig->queue), "io_uring, unregistered buffers") == 0);
    NEED(rig->n_log == 1 && strstr(rig->log[0], "not permitted"));
    NEED(reads_well(rig, READ));
    sl_queue_destroy(rig->queue);
    return 0;
}

static void test_forbidden(void **state)
{
    (void)state;
    if (!has_system_queue())
        skip();
    run_child(forbidden_setup, EPERM);
    run_child(forbidden_setup, ENOSYS);
    run_child(forbidden_enter, EPERM);
    run_child(forbidden_register, EPERM);
}

/* More than one registered buffer can hold. The same 64 MiB stand at every place of it, so that it costs no more. */
static void test_over_one_gib(void **state)
{
    (void)state;
    const size_t piece = 64 << 20, gib = (size_t)1 << 30, bytes = gib + piece;
    if (!has_system_queue() || sizeof(size_t) < 8)
        skip();
    queue_rig rig;
    sl_err err = {0};
    rig_init(&rig, FAULT_NONE, 0, 0);
    int fd = memfd_create("memory", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)piece), 0);
    uint8_t *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    for (size_t off = 0; off < bytes; off += piece) {
        void *at = mmap(memory + off, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        assert_true(at == memory + off);
    }
    uint8_t *whole = rig.memory;
    rig.memory = memory;
    rig.memory_bytes = bytes;
    assert_int_equal(rig_open(&rig, SL_IO_ENGINE_URING, 4, &err), SL_OK);
    print_message("%s\n", sl_queue_engine(rig.queue));
    if (geteuid() == 0)
        assert_string_equal(sl_queue_engine(rig.queue), "io_uring");
    /* In the first piece, in the second, at both sides of the border and across it. */
    const size_t at[] = {0, gib, gib + piece - READ, gib - READ, gib - READ / 2};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        sl_read read = {memory + at[i], READ, (i + 1) * READ, i};
        uint64_t tag;
        sl_status status = SL_FAILED;
        sl_queue_add(rig.queue, &read, 1);
        assert_true(sl_queue_wait(rig.queue, -1, &tag, &status, &err));
        assert_int_equal(status, SL_OK);
        assert_true(rig_is_right(memory + at[i], (i + 1) * READ, READ));
    }
    rig_close(&rig);
    munmap(memory, bytes);
    close(fd);
    rig.memory = whole;
    rig.memory_bytes = RIG_FILE_BYTES;
    rig_deinit(&rig);
}

/* Whether /proc/self/smaps has the flag for the mapping that begins at `memory`. */
static bool has_mapping_flag(const void *memory, const char *flag)
{
    char line[4096], start[32];
    bool is_inside = false, has = false;
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)memory);
    FILE *file = fopen("/proc/self/smaps", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "VmFlags:", 8) == 0) {
            has |= is_inside && strstr(line, flag);
            is_inside = false;
        }
        is_inside |= strncmp(line, start, strlen(start)) == 0;
    }
    if (file)
        fclose(file);
    return has;
}

/* A disk was twice as quick with big pages: that they are asked for must not get lost. */
static void test_big_pages(void **state)
{
    (void)state;
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) != 0 || access("/proc/self/smaps", R_OK) != 0)
        skip();
    for (int e = 0; e <= has_system_queue(); e++) {
        queue_rig rig;
        sl_err err = {0};
        rig_init(&rig, FAULT_NONE, 0, 0);
        assert_false(has_mapping_flag(rig.memory, " hg"));
        assert_int_equal(rig_open(&rig, e ? SL_IO_ENGINE_URING : SL_IO_ENGINE_POOL, 4, &err), SL_OK);
        assert_true(has_mapping_flag(rig.memory, " hg"));
        rig_deinit(&rig);
    }
}
#endif

static void on_signal(int number)
{
    (void)number;
}

/* Real interruptions, two thousand a second. */
static int interrupted(queue_rig *rig, int engine)
{
    struct sigaction action = {.sa_handler = on_signal}; /* calls are not restarted */
    struct itimerval often = {{0, 500}, {0, 500}};
    sl_err err = {0};
    NEED(rig_open(rig, (sl_io_engine)engine, 4, &err) == SL_OK);
    NEED(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 5; i++)
        NEED(reads_well(rig, READ));
    uint64_t tag;
    sl_status status;
    double start = sl_os_seconds();
    NEED(!sl_queue_wait(rig->queue, 0.2, &tag, &status, &err));
    double seconds = sl_os_seconds() - start;
    NEED(seconds >= 0.19 && seconds < 10);
    sl_queue_destroy(rig->queue);
    return 0;
}

static void test_interrupted(void **state)
{
    (void)state;
    run_child(interrupted, SL_IO_ENGINE_POOL);
    if (has_system_queue())
        run_child(interrupted, SL_IO_ENGINE_URING);
}

static size_t count_entries(const char *folder)
{
    size_t n = 0;
    DIR *dir = opendir(folder);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static size_t count_lines(const char *path)
{
    size_t n = 0;
    FILE *file = fopen(path, "r");
    for (int c = file ? getc(file) : EOF; c != EOF; c = getc(file))
        n += c == '\n';
    if (file)
        fclose(file);
    return n;
}

/* Made, used and destroyed again and again: nothing is left. */
static int cycles(queue_rig *rig, int engine)
{
    sl_err err = {0};
    size_t n_fds = 0, n_threads = 0, n_maps = 0;
    uint64_t used_bytes = rig->budget.used_bytes;
    for (int i = 0; i < 300; i++) {
        NEED(rig_open(rig, (sl_io_engine)engine, 8, &err) == SL_OK);
        NEED(i % 30 != 0 || reads_well(rig, READ));
        sl_queue_destroy(rig->queue);
        NEED(rig->budget.used_bytes == used_bytes);
        if (i == 50) {
            n_fds = count_entries("/proc/self/fd");
            n_threads = count_entries("/proc/self/task");
            n_maps = count_lines("/proc/self/maps");
        }
    }
    NEED(count_entries("/proc/self/fd") == n_fds);
    NEED(count_lines("/proc/self/maps") < n_maps + 100); /* allocators keep some */
    /* The kernel's own workers stay some seconds. */
    for (int i = 0; i < 100 && count_entries("/proc/self/task") > n_threads; i++)
        usleep(100000);
    NEED(count_entries("/proc/self/task") <= n_threads);
    return 0;
}

static void test_cycles(void **state)
{
    (void)state;
    run_child(cycles, SL_IO_ENGINE_POOL);
    if (has_system_queue())
        run_child(cycles, SL_IO_ENGINE_URING);
}

static void *add_and_go(void *arg)
{
    queue_rig *rig = arg;
    for (size_t i = 0; i < 16; i++) {
        sl_read read = {rig->memory + i * READ, READ, i * READ, i};
        sl_queue_add(rig->queue, &read, 1);
    }
    return NULL;
}

/* The thread that started the reads is gone: whoever destroys the queue must not wait for ever. */
static void test_driver_gone(void **state)
{
    (void)state;
    for (int e = 0; e <= has_system_queue(); e++) {
        queue_rig rig;
        sl_err err = {0};
        rig_init(&rig, FAULT_NONE, 0, 0);
        assert_int_equal(rig_open(&rig, e ? SL_IO_ENGINE_URING : SL_IO_ENGINE_POOL, 16, &err), SL_OK);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, add_and_go, &rig), 0);
        pthread_join(thread, NULL);
        rig_deinit(&rig);
    }
}

static void test_buffered(void **state)
{
    (void)state;
    for (int e = 0; e <= has_system_queue(); e++) {
        queue_rig rig;
        sl_err err = {0};
        rig_init(&rig, FAULT_NONE, 0, 0);
        assert_int_equal(rig.fault.vfs.set_direct(rig.file, false), 0);
        assert_int_equal(rig_open(&rig, e ? SL_IO_ENGINE_URING : SL_IO_ENGINE_POOL, 16, &err), SL_OK);
        assert_true(reads_well(&rig, READ));
        assert_true(reads_well(&rig, READ)); /* now from the page cache */
        rig_deinit(&rig);
    }
}

/* The one open file of ours without a name. */
static int find_file(void)
{
    for (int fd = 3; fd < 256; fd++) {
        char link[64], target[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        if (strncmp(target, rig_dir(), strlen(rig_dir())) == 0 && strstr(target, "(deleted)"))
            return fd;
    }
    return -1;
}

/* The disk pulled away: the file ends earlier than it did. */
static void test_truncated(void **state)
{
    (void)state;
    for (int e = 0; e <= has_system_queue(); e++) {
        queue_rig rig;
        sl_err err = {0};
        rig_init(&rig, FAULT_NONE, 0, 0);
        int fd = find_file();
        if (fd < 0) {
            rig_deinit(&rig);
            skip();
        }
        assert_int_equal(rig_open(&rig, e ? SL_IO_ENGINE_URING : SL_IO_ENGINE_POOL, 16, &err), SL_OK);
        assert_int_equal(ftruncate(fd, RIG_FILE_BYTES / 2 + 4096), 0);
        rig_result result;
        assert_true(rig_read_all(&rig, READ, &result));
        assert_int_equal(result.n_right, N_READS / 2);
        assert_int_equal(result.n_failed, N_READS / 2);
        assert_non_null(strstr(result.err.text, "the file ends there"));
        rig_deinit(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* Before others are refused registration in this process: it is said once. */
        cmocka_unit_test(test_ordinary_user),
#ifdef __linux__
        cmocka_unit_test(test_forbidden),     cmocka_unit_test(test_over_one_gib), cmocka_unit_test(test_big_pages),
#endif
        cmocka_unit_test(test_interrupted),  cmocka_unit_test(test_cycles),
        cmocka_unit_test(test_driver_gone),   cmocka_unit_test(test_buffered),     cmocka_unit_test(test_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
