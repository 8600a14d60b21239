/* The queue of reads over both engines: every depth, every fault, wakes, timeouts, its budget. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pthread.h>

#include <cmocka.h>

#include "common/queue_rig.h"
#include "platform/os.h"

enum { READ = 64 << 10, N_READS = RIG_FILE_BYTES / READ };

static sl_io_engine engines[2] = {SL_IO_ENGINE_POOL, SL_IO_ENGINE_URING};
static size_t n_engines = 1; /* both where the system has a queue */

static int set_up(void **state)
{
    (void)state;
    char cause[512];
    n_engines = rig_has_system_queue(cause, sizeof cause) ? 2 : 1;
    if (n_engines == 1)
        print_message("the pool only: %s\n", cause);
    return 0;
}

static void open_queue(queue_rig *rig, sl_io_engine engine, size_t depth)
{
    sl_err err = {0};
    if (rig_open(rig, engine, depth, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(sl_queue_room(rig->queue), depth);
    assert_in_range(rig->budget.used_bytes, RIG_FILE_BYTES + 1, RIG_FILE_BYTES + sl_queue_bytes(depth));
    bool is_uring = strncmp(sl_queue_engine(rig->queue), "io_uring", 8) == 0;
    assert_int_equal(is_uring, engine == SL_IO_ENGINE_URING);
}

static void test_depths(void **state)
{
    (void)state;
    static const size_t depths[] = {1, 2, 3, 7, 16, 33, 64};
    queue_rig rig;
    rig_init(&rig, FAULT_NONE, 0, 0);
    for (size_t e = 0; e < n_engines; e++) {
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
            open_queue(&rig, engines[e], depths[d]);
            double start = sl_os_seconds();
            rig_result result;
            assert_true(rig_read_all(&rig, READ, &result));
            assert_int_equal(result.n_right, N_READS);
            double busy_s = sl_queue_busy_s(rig.queue);
            assert_true(busy_s > 0 && busy_s <= sl_os_seconds() - start);
            assert_true(sl_queue_busy_s(rig.queue) == busy_s); /* nothing in flight: it stands still */
            rig_close(&rig);
        }
    }
    if (rig.is_direct)
        assert_int_equal(rig.fault.vfs.cached_bytes(rig.file), 0);
    rig_deinit(&rig);
}

static void test_depth_refused(void **state)
{
    (void)state;
    queue_rig rig;
    sl_err err = {0};
    rig_init(&rig, FAULT_NONE, 0, 0);
    assert_int_equal(rig_open(&rig, SL_IO_ENGINE_POOL, 0, &err), SL_USAGE);
    assert_int_equal(rig_open(&rig, SL_IO_ENGINE_POOL, 1025, &err), SL_USAGE);
    assert_non_null(strstr(err.text, "1025"));
    rig_deinit(&rig);
}

typedef struct fault_case {
    fault_kind kind;
    int code;
    uint64_t n_in_row; /* beyond the first */
    bool is_system;    /* of the system's queue only */
    size_t n_failed;   /* reads */
    const char *text;  /* of a failure */
} fault_case;

/* All reads in flight at once with the n-th raw operation faulty; the others must come to no harm. */
static void run_case(const fault_case *c, sl_io_engine engine, uint64_t n)
{
    queue_rig rig;
    rig_init(&rig, c->kind, c->code, n);
    if (c->n_in_row > 0)
        rig.fault.n_in_row = c->n_in_row;
    open_queue(&rig, engine, 8);
    rig_result result;
    assert_true(rig_read_all(&rig, READ, &result));
    assert_int_equal(result.n_failed, c->n_failed);
    assert_int_equal(result.n_right, N_READS - c->n_failed);
    assert_true(rig.fault.n_hits > 0);
    if (c->n_failed > 0) {
        assert_int_equal(result.err.status, SL_FAILED);
        assert_non_null(strstr(result.err.text, "some file: "));
        assert_non_null(strstr(result.err.text, "65536 bytes at offset "));
        if (!strstr(result.err.text, c->text))
            fail_msg("'%s' in: %s", c->text, result.err.text);
    }
    rig_deinit(&rig);
}

static void run_cases(const fault_case *cases, size_t n_cases)
{
    for (size_t e = 0; e < n_engines; e++) {
        for (size_t i = 0; i < n_cases; i++) {
            if (cases[i].is_system && engines[e] == SL_IO_ENGINE_POOL)
                continue;
            for (uint64_t n = 1; n <= 7; n += 3)
                run_case(&cases[i], engines[e], n);
        }
    }
}

static void test_transients(void **state)
{
    (void)state;
    static const fault_case cases[] = {
        {FAULT_READ, EINTR, 2, false, 0, NULL},         {FAULT_READ, EAGAIN, 2, false, 0, NULL},
        {FAULT_READ, EINTR, 40, false, 0, NULL},        {FAULT_SHORT_READ, 0, 5, false, 0, NULL},
        {FAULT_SHORT_READ, 0, 50, false, 0, NULL},      {FAULT_AIO_START, EAGAIN, 3, true, 0, NULL},
        {FAULT_AIO_START, EBUSY, 3, true, 0, NULL},     {FAULT_AIO_START, EINTR, 3, true, 0, NULL},
        {FAULT_AIO_FEW_STARTED, 0, 9, true, 0, NULL},   {FAULT_AIO_WAIT, EINTR, 300, true, 0, NULL},
        {FAULT_AIO_WAIT, EAGAIN, 3, true, 0, NULL},     {FAULT_AIO_SHUFFLED, 0, 0, true, 0, NULL},
        {FAULT_AIO_REGISTER, ENOMEM, 0, true, 0, NULL},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_errors(void **state)
{
    (void)state;
    static const fault_case cases[] = {
        {FAULT_READ, EIO, 0, false, 1, "cannot read 65536 bytes"},
        {FAULT_READ, ENOMEM, 2, false, 3, "Cannot allocate memory"},
        {FAULT_ZERO_READ, 0, 0, false, 1, "the file ends there"},
        {FAULT_AIO_START, EIO, 0, true, 1, "Input/output error"},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

/* What never ends by itself ends with every read named. */
static void test_for_ever(void **state)
{
    (void)state;
    static const fault_case cases[] = {
        {FAULT_READ, EAGAIN, UINT64_MAX / 2, false, N_READS, "temporarily unavailable"},
        {FAULT_READ, EINTR, UINT64_MAX / 2, false, N_READS, "Interrupted"},
        {FAULT_READ, EIO, UINT64_MAX / 2, false, N_READS, "Input/output error"},
        {FAULT_ZERO_READ, 0, UINT64_MAX / 2, false, N_READS, "stopped after 0"},
        {FAULT_AIO_WAIT, EIO, UINT64_MAX / 2, true, N_READS, "Input/output error"},
        {FAULT_AIO_START, EINVAL, UINT64_MAX / 2, true, N_READS, "Invalid argument"},
    };
    for (size_t e = 0; e < n_engines; e++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (!cases[i].is_system || engines[e] == SL_IO_ENGINE_URING)
                run_case(&cases[i], engines[e], 1);
}

/* A tenth of a second of patience for each read that cannot even be started. */
static void test_start_busy_for_ever(void **state)
{
    (void)state;
    if (n_engines < 2)
        skip();
    queue_rig rig;
    sl_err err = {0};
    rig_init(&rig, FAULT_AIO_START, EAGAIN, 1);
    rig.fault.n_in_row = UINT64_MAX / 2;
    open_queue(&rig, SL_IO_ENGINE_URING, 4);
    sl_read read = {rig.memory, READ, 3 * READ, 77};
    uint64_t tag = 0;
    sl_status status = SL_OK;
    sl_queue_add(rig.queue, &read, 1);
    assert_false(sl_queue_wait(rig.queue, 0.01, &tag, &status, &err));
    assert_true(sl_queue_wait(rig.queue, 30, &tag, &status, &err));
    assert_int_equal(tag, 77);
    assert_int_equal(status, SL_FAILED);
    assert_non_null(strstr(err.text, "offset 196608"));
    assert_non_null(strstr(err.text, "temporarily unavailable"));
    assert_in_range(rig.fault.n_hits, 20, 200);
    rig_deinit(&rig);
}

static void test_direct_refused_at_read(void **state)
{
    (void)state;
    for (size_t e = 0; e < n_engines; e++) {
        queue_rig rig;
        rig_init(&rig, FAULT_DIRECT_AT_READ, 0, 1);
        if (rig.is_direct) {
            open_queue(&rig, engines[e], 4);
            rig_result result;
            assert_true(rig_read_all(&rig, READ, &result));
            assert_int_equal(result.n_failed, N_READS);
            assert_non_null(strstr(result.err.text, "Invalid argument"));
        }
        rig_deinit(&rig);
    }
}

/* Not the queue's to notice: it must be passed on, so that the checksum can. */
static void test_flipped_bit(void **state)
{
    (void)state;
    for (size_t e = 0; e < n_engines; e++) {
        queue_rig rig;
        rig_init(&rig, FAULT_FLIPPED_BIT, 0, 5);
        open_queue(&rig, engines[e], 4);
        rig_result result;
        assert_true(rig_read_all(&rig, READ, &result));
        assert_int_equal(result.n_wrong, 1);
        assert_int_equal(result.n_right, N_READS - 1);
        rig_deinit(&rig);
    }
}

static void test_shuffled(void **state)
{
    (void)state;
    if (n_engines < 2)
        skip();
    queue_rig rig;
    rig_init(&rig, FAULT_AIO_SHUFFLED, 0, 0);
    open_queue(&rig, SL_IO_ENGINE_URING, 16);
    rig_result result;
    assert_true(rig_read_all(&rig, READ, &result));
    assert_int_equal(result.n_right, N_READS);
    assert_true(rig.fault.n_hits > 10);
    rig_deinit(&rig);
}

/* Past the end, partly and wholly; on a real file, no fault. */
static void test_end_of_file(void **state)
{
    (void)state;
    for (size_t e = 0; e < n_engines; e++) {
        queue_rig rig;
        rig_init(&rig, FAULT_NONE, 0, 0);
        open_queue(&rig, engines[e], 2);
        static const char *const expected[2] = {"stopped after 8192", "stopped after 0"};
        for (size_t i = 0; i < 2; i++) {
            sl_read read = {rig.memory, READ, RIG_FILE_BYTES - 8192 + i * 8192, i};
            uint64_t tag;
            sl_status status = SL_OK;
            sl_err err = {0};
            sl_queue_add(rig.queue, &read, 1);
            assert_true(sl_queue_wait(rig.queue, -1, &tag, &status, &err));
            assert_int_equal(status, SL_FAILED);
            assert_non_null(strstr(err.text, expected[i]));
            assert_non_null(strstr(err.text, "the file ends there"));
        }
        rig_deinit(&rig);
    }
}

static double cpu_seconds(void)
{
    struct timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void test_timeout(void **state)
{
    (void)state;
    for (size_t e = 0; e < n_engines; e++) {
        queue_rig rig;
        rig_init(&rig, FAULT_NONE, 0, 0);
        open_queue(&rig, engines[e], 4);
        uint64_t tag;
        sl_status status;
        double start = sl_os_seconds();
        assert_false(sl_queue_wait(rig.queue, 0, &tag, &status, NULL));
        assert_true(sl_os_seconds() - start < 0.2);
        double cpu = cpu_seconds();
        start = sl_os_seconds();
        assert_false(sl_queue_wait(rig.queue, 0.3, &tag, &status, NULL));
        assert_true(sl_os_seconds() - start >= 0.29);
        assert_true(cpu_seconds() - cpu < 0.1); /* it slept */
        /* 0 looks at what has ended. */
        sl_read read = {rig.memory, READ, 0, 1};
        sl_queue_add(rig.queue, &read, 1);
        while (!sl_queue_wait(rig.queue, 0, &tag, &status, NULL))
            assert_true(sl_os_seconds() - start < 60);
        assert_int_equal(status, SL_OK);
        assert_true(rig_is_right(rig.memory, 0, READ));
        rig_deinit(&rig);
    }
}

static void *wake_soon(void *arg)
{
    struct timespec pause = {0, 50000000};
    nanosleep(&pause, NULL);
    sl_queue_wake(arg);
    return NULL;
}

static void test_wake(void **state)
{
    (void)state;
    for (size_t e = 0; e < n_engines; e++) {
        queue_rig rig;
        rig_init(&rig, FAULT_NONE, 0, 0);
        open_queue(&rig, engines[e], 4);
        uint64_t tag = 0;
        sl_status status = SL_FAILED;
        for (int i = 0; i < 3; i++) {
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, wake_soon, rig.queue), 0);
            assert_false(sl_queue_wait(rig.queue, -1, &tag, &status, NULL));
            pthread_join(thread, NULL);
        }
        /* Before the wait: the next one ends, the one after it sleeps. Several wakes are one. */
        sl_queue_wake(rig.queue);
        sl_queue_wake(rig.queue);
        double start = sl_os_seconds();
        assert_false(sl_queue_wait(rig.queue, 20, &tag, &status, NULL));
        assert_true(sl_os_seconds() - start < 10);
        assert_false(sl_queue_wait(rig.queue, 0.1, &tag, &status, NULL));
        assert_true(sl_os_seconds() - start >= 0.1);
        /* Beside a read: neither is lost. */
        sl_read read = {rig.memory, READ, READ, 9};
        sl_queue_add(rig.queue, &read, 1);
        sl_queue_wake(rig.queue);
        int n_ends = 0, n_wakes = 0;
        while (n_ends + n_wakes < 2)
            *(sl_queue_wait(rig.queue, -1, &tag, &status, NULL) ? &n_ends : &n_wakes) += 1;
        assert_int_equal(n_ends, 1);
        assert_int_equal(tag, 9);
        assert_int_equal(status, SL_OK);
        rig_deinit(&rig);
    }
}

typedef struct waker {
    sl_queue *queue;
    atomic_bool is_stopping;
} waker;

static void *wake_often(void *arg)
{
    waker *w = arg;
    while (!atomic_load(&w->is_stopping)) {
        sl_queue_wake(w->queue);
        (void)sl_queue_busy_s(w->queue);
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Wakes from another thread all the while: no end is lost, none comes twice. */
static void test_wakes_while_reading(void **state)
{
    (void)state;
    for (size_t e = 0; e < n_engines; e++) {
        queue_rig rig;
        rig_init(&rig, FAULT_NONE, 0, 0);
        open_queue(&rig, engines[e], 8);
        waker w = {.queue = rig.queue};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wake_often, &w), 0);
        bool has_come[N_READS] = {false};
        size_t n_added = 0, n_ended = 0;
        while (n_ended < N_READS) {
            for (; n_added < N_READS && sl_queue_room(rig.queue) > 0; n_added++) {
                sl_read read = {rig.memory + n_added * READ, READ, n_added * READ, n_added};
                sl_queue_add(rig.queue, &read, 1);
            }
            uint64_t tag;
            sl_status status;
            if (!sl_queue_wait(rig.queue, -1, &tag, &status, NULL))
                continue;
            assert_int_equal(status, SL_OK);
            assert_false(has_come[tag]);
            has_come[tag] = true;
            n_ended++;
        }
        atomic_store(&w.is_stopping, true);
        pthread_join(thread, NULL);
        assert_true(rig_is_right(rig.memory, 0, RIG_FILE_BYTES));
        rig_deinit(&rig);
    }
}

/* Destroying waits: afterwards nothing more is written into the memory. */
static void test_destroy_in_flight(void **state)
{
    (void)state;
    queue_rig rig;
    rig_init(&rig, FAULT_NONE, 0, 0);
    for (size_t e = 0; e < n_engines; e++) {
        for (int round = 0; round < 20; round++) {
            open_queue(&rig, engines[e], 24);
            for (size_t i = 0; i < 24; i++) {
                sl_read read = {rig.memory + i * READ, READ, i * READ, i};
                sl_queue_add(rig.queue, &read, 1);
            }
            rig_close(&rig);
            memset(rig.memory, 0xee, rig.memory_bytes);
            struct timespec pause = {0, 2000000};
            nanosleep(&pause, NULL);
            for (size_t i = 0; i < rig.memory_bytes; i++)
                if (rig.memory[i] != 0xee)
                    fail_msg("round %d: byte %zu written after the end", round, i);
        }
    }
    rig_deinit(&rig);
}

static void test_budget(void **state)
{
    (void)state;
    assert_true(sl_queue_bytes(1) < sl_queue_bytes(64));
    for (size_t e = 0; e < n_engines; e++) {
        queue_rig rig;
        sl_err err = {0};
        rig_init(&rig, FAULT_NONE, 0, 0);
        int64_t n = 1;
        for (; n < 100; n++) {
            rig.budget.fail_in = n;
            sl_status status = rig_open(&rig, engines[e], 8, &err);
            if (status == SL_OK)
                break;
            assert_int_equal(status, SL_FAILED);
            assert_non_null(strstr(err.text, "out of memory"));
            rig_close(&rig);
        }
        rig.budget.fail_in = 0;
        assert_in_range(n, 2, 10);
        rig_close(&rig);
        rig.budget.limit_bytes = RIG_FILE_BYTES + 4096;
        assert_int_equal(rig_open(&rig, engines[e], 64, &err), SL_REFUSED);
        assert_non_null(strstr(err.text, "memory budget too small"));
        rig.budget.limit_bytes = RIG_FILE_BYTES + sl_queue_bytes(64);
        open_queue(&rig, engines[e], 64);
        rig_deinit(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_depths),
        cmocka_unit_test(test_depth_refused),
        cmocka_unit_test(test_transients),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_for_ever),
        cmocka_unit_test(test_start_busy_for_ever),
        cmocka_unit_test(test_direct_refused_at_read),
        cmocka_unit_test(test_flipped_bit),
        cmocka_unit_test(test_shuffled),
        cmocka_unit_test(test_end_of_file),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_wake),
        cmocka_unit_test(test_wakes_while_reading),
        cmocka_unit_test(test_destroy_in_flight),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
