/* The reader and the thread that drives it: whose the log is, how a long wait ends, what is tried once only, what a
 * rehearsal hands out, and that a part held for long does not stop what is behind it. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/fault_vfs.h"
#include "common/kv_model.h"
#include "platform/os.h"

enum {
    PART_BYTES = 139264, /* of the layers below, 1024 tokens */
    HELD = 3,            /* the part that is held for long */
    IN_RING = 32,        /* parts */
    IN_READ = 4          /* parts */
};

static const sl_kv_layer layers[2] = {{1, 64, 0}, {1, 64, 0}};

typedef struct setup {
    sl_budget budget;
    kv_model model;
    sl_kv *kv;
    sl_kv_options options;
} setup;

static void start(setup *s, uint32_t n_layers, uint64_t max_tokens)
{
    memset(s, 0, sizeof *s);
    const char *dir = getenv("SLUICE_KV_DIR");
    sl_geom geom = {SL_KV_TYPE_Q8_0, n_layers, layers};
    sl_budget_init(&s->budget, UINT64_MAX);
    kv_model_init(&s->model, &geom, max_tokens, 12);
    s->options = (sl_kv_options){.geom = geom,
                                 .dir = dir && *dir ? dir : "/var/tmp",
                                 .max_tokens = max_tokens,
                                 .n_slots = 2,
                                 .slot_bytes = IN_RING / 2 * PART_BYTES,
                                 .budget = &s->budget};
}

static void must(sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("status %d: %s", (int)status, err->text);
}

static void create(setup *s, uint64_t n_tokens)
{
    sl_err err = {0};
    must(sl_kv_create(&s->options, &s->kv, &err), &err);
    for (uint32_t l = 0; l < s->model.geom.n_layers; l++)
        must(kv_model_append(&s->model, s->kv, l, n_tokens, &err), &err);
}

static void finish(setup *s)
{
    sl_kv_destroy(s->kv);
    kv_model_deinit(&s->model);
    assert_int_equal(s->budget.used_bytes, 0);
    sl_budget_deinit(&s->budget);
}

static sl_status pass(setup *s, sl_err *err)
{
    sl_status status = SL_OK;
    uint64_t parts = 0;
    must(sl_kv_pass_begin(s->kv, false, err), err);
    for (uint32_t l = 0; l < s->model.geom.n_layers && status == SL_OK; l++)
        status = kv_model_walk(&s->model, s->kv, l, UINT64_MAX, &parts, err);
    sl_err end_err = {0};
    must(sl_kv_pass_end(s->kv, &end_err), &end_err);
    return status;
}

typedef struct listener {
    pthread_t driver;
    int n_lines, n_foreign;
    char text[300];
} listener;

static void listen(void *arg, sl_log_level level, const char *text)
{
    (void)level;
    listener *heard = arg;
    heard->n_lines++;
    heard->n_foreign += !pthread_equal(pthread_self(), heard->driver);
    strncpy(heard->text, text, sizeof heard->text - 1);
}

/* Each fallback is said once a process: nothing before this test may cause one. */
static void test_log_by_the_driver(void **state)
{
    (void)state;
    static const struct {
        fault_kind kind;
        int code;
    } cases[] = {{FAULT_AIO_REGISTER, ENOMEM}, {FAULT_AIO_OPEN, EPERM}};
    if (!sl_vfs_system()->aio_open)
        skip();
    for (size_t i = 0; i < 2; i++) {
        setup s;
        sl_err err = {0};
        listener heard = {.driver = pthread_self()};
        fault_vfs fault;
        fault_vfs_init(&fault, cases[i].kind, cases[i].code, 1);
        start(&s, 2, 4 * SL_PART_TOKENS);
        s.options.vfs = &fault.vfs;
        s.options.log = (sl_log){listen, &heard};
        create(&s, 4 * SL_PART_TOKENS);
        must(pass(&s, &err), &err);
        must(pass(&s, &err), &err);
        assert_true(atomic_load(&fault.n_hits) > 0);
        assert_int_equal(heard.n_foreign, 0);
        assert_int_equal(heard.n_lines, 1);
        assert_non_null(strstr(heard.text, "io_uring"));
        finish(&s);
    }
}

static bool stop_at_third(void *arg)
{
    return ++*(int *)arg >= 3;
}

static bool never(void *arg)
{
    ++*(int *)arg;
    return false;
}

/* The rate lets the first read pass and the next one after many seconds. */
static void test_a_wait_is_cancelled(void **state)
{
    (void)state;
    static const sl_io_engine engines[] = {SL_IO_ENGINE_AUTO, SL_IO_ENGINE_POOL};
    for (size_t e = 0; e < 2; e++) {
        setup s;
        sl_err err = {0};
        int n_asked = 0;
        start(&s, 1, 4 * SL_PART_TOKENS);
        s.options.read_rate = 4096;
        s.options.io_engine = engines[e];
        s.options.stop = stop_at_third;
        s.options.arg = &n_asked;
        create(&s, 4 * SL_PART_TOKENS);
        double start_s = sl_os_seconds();
        assert_int_equal(pass(&s, &err), SL_CANCELLED);
        assert_non_null(strstr(err.text, "cancelled"));
        assert_int_equal(n_asked, 3);
        finish(&s);
        assert_true(sl_os_seconds() - start_s < 3);
    }
    setup s; /* asked, and in vain: the part comes */
    sl_err err = {0};
    int n_asked = 0;
    start(&s, 1, SL_PART_TOKENS);
    s.options.read_rate = 150000;
    s.options.stop = never;
    s.options.arg = &n_asked;
    create(&s, SL_PART_TOKENS);
    must(pass(&s, &err), &err);
    assert_true(n_asked > 0);
    finish(&s);
}

/* Layer after layer, pass after pass asks for parts and grows: the system is asked for its queue once. */
static void test_refused_once(void **state)
{
    (void)state;
    if (!sl_vfs_system()->aio_open)
        skip();
    setup s;
    fault_vfs fault;
    fault_vfs_init(&fault, FAULT_AIO_OPEN, EPERM, 1);
    start(&s, 2, 8 * SL_PART_TOKENS);
    s.options.vfs = &fault.vfs;
    s.options.io_engine = SL_IO_ENGINE_URING;
    create(&s, 2 * SL_PART_TOKENS);
    for (int i = 0; i < 3; i++) {
        sl_err err = {0};
        assert_int_equal(pass(&s, &err), SL_REFUSED);
        assert_non_null(strstr(err.text, "io_uring"));
        for (uint32_t l = 0; l < 2; l++)
            must(kv_model_append(&s.model, s.kv, l, SL_PART_TOKENS, &err), &err);
    }
    assert_int_equal(atomic_load(&fault.n_hits), 1);
    finish(&s);
}

/* A context of which nothing was read: the kernels shall meet tiles all the same. */
static void test_rehearsal_of_a_pattern(void **state)
{
    (void)state;
    enum { PATTERN_BYTES = 4096, N_PARTS = 8 };
    uint8_t pattern[PATTERN_BYTES];
    for (size_t i = 0; i < PATTERN_BYTES; i++)
        pattern[i] = (uint8_t)(i * 7 + i / 256);
    setup s;
    sl_err err = {0};
    start(&s, 2, N_PARTS * SL_PART_TOKENS);
    s.options.slot_bytes = 3 * PART_BYTES; /* round and round */
    create(&s, N_PARTS * SL_PART_TOKENS);
    sl_kv_fill_ring(s.kv, pattern, sizeof pattern);
    must(sl_kv_set_rehearsal(s.kv, true, &err), &err);
    for (int n_passes = 0; n_passes < 2; n_passes++) {
        must(sl_kv_pass_begin(s.kv, true, &err), &err);
        for (uint32_t l = 0; l < 2; l++) {
            uint64_t n_parts = 0;
            sl_kv_part part;
            for (bool found = true;; n_parts++) {
                must(sl_kv_next(s.kv, l, &part, &found, &err), &err);
                if (!found)
                    break;
                for (size_t at = 0; at < PART_BYTES; at += PATTERN_BYTES)
                    assert_memory_equal(part.tiles + at, pattern, PATTERN_BYTES);
                sl_kv_release(s.kv, &part);
            }
            assert_int_equal(n_parts, N_PARTS);
        }
        must(sl_kv_pass_end(s.kv, &err), &err);
    }
    must(sl_kv_set_rehearsal(s.kv, false, &err), &err);
    must(pass(&s, &err), &err);
    finish(&s);
}

/* The last read of the first round takes until the first one of the next round has begun. */
static atomic_bool has_gone_round, has_given_up;

static int64_t slow_pread(sl_file *file, void *buf, size_t bytes, uint64_t off)
{
    const uint64_t last = (uint64_t)(IN_RING - IN_READ) * PART_BYTES, next = (uint64_t)IN_RING * PART_BYTES;
    if (off == next)
        atomic_store(&has_gone_round, true);
    double start_s = sl_os_seconds();
    while (off == last && !atomic_load(&has_gone_round)) {
        nanosleep(&(struct timespec){0, 2000000}, NULL);
        if (sl_os_seconds() - start_s > 10) {
            atomic_store(&has_given_up, true);
            break;
        }
    }
    return sl_vfs_system()->pread(file, buf, bytes, off);
}

/* Parts 32 to 34 lie before the held one and are less than a read. Nothing will ever come between: they are read at
 * once, while other reads are under way, and the walk goes on behind the held part. */
static void test_held_part_ends_a_run(void **state)
{
    (void)state;
    enum { N_PARTS = 40, N_TAKEN = 2 * IN_READ };
    sl_vfs vfs = *sl_vfs_system();
    vfs.pread = slow_pread;
    setup s;
    sl_err err = {0};
    start(&s, 1, N_PARTS * SL_PART_TOKENS);
    s.options.vfs = &vfs;
    s.options.io_engine = SL_IO_ENGINE_POOL;
    s.options.read_bytes = IN_READ * PART_BYTES;
    create(&s, N_PARTS * SL_PART_TOKENS);
    atomic_store(&has_gone_round, false);
    atomic_store(&has_given_up, false);
    must(sl_kv_pass_begin(s.kv, false, &err), &err);
    sl_kv_part parts[N_PARTS];
    bool found = true;
    for (int i = 0; i < N_TAKEN; i++)
        must(sl_kv_next(s.kv, 0, &parts[i], &found, &err), &err);
    for (int i = 0; i < N_TAKEN; i++)
        if (i != HELD)
            sl_kv_release(s.kv, &parts[i]);
    for (int i = N_TAKEN; i < N_PARTS; i++) {
        must(sl_kv_next(s.kv, 0, &parts[i], &found, &err), &err);
        assert_true(found);
        assert_memory_equal(parts[i].tiles, s.model.groups[0] + (size_t)i * PART_BYTES, PART_BYTES);
        sl_kv_release(s.kv, &parts[i]);
    }
    assert_memory_equal(parts[HELD].tiles, s.model.groups[0] + (size_t)HELD * PART_BYTES, PART_BYTES);
    sl_kv_release(s.kv, &parts[HELD]);
    assert_true(atomic_load(&has_gone_round));
    assert_false(atomic_load(&has_given_up));
    must(sl_kv_pass_end(s.kv, &err), &err);
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_by_the_driver),
        cmocka_unit_test(test_a_wait_is_cancelled),
        cmocka_unit_test(test_refused_once),
        cmocka_unit_test(test_rehearsal_of_a_pattern),
        cmocka_unit_test(test_held_part_ends_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
