/* The reader: what is held stays, what is promised about reading ahead, rate, rehearsal and traces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/fault_vfs.h"
#include "common/kv_model.h"
#include "platform/os.h"

enum { PART_BYTES = 139264 }; /* of the layers below, 1024 tokens */

static const sl_kv_layer layers[3] = {{1, 64, 0}, {1, 64, 0}, {1, 64, 0}};
static const sl_io_engine engines[2] = {SL_IO_ENGINE_AUTO, SL_IO_ENGINE_POOL};

static const char *kv_dir(void)
{
    const char *dir = getenv("SLUICE_KV_DIR");
    return dir && *dir ? dir : "/var/tmp";
}

typedef struct setup {
    sl_budget budget;
    kv_model model;
    sl_kv *kv;
    sl_kv_options options;
} setup;

static void start(setup *s, uint32_t n_layers, uint64_t max_tokens)
{
    memset(s, 0, sizeof *s);
    sl_geom geom = {SL_KV_TYPE_Q8_0, n_layers, layers};
    sl_budget_init(&s->budget, UINT64_MAX);
    kv_model_init(&s->model, &geom, max_tokens, 11);
    s->options = (sl_kv_options){.geom = geom,
                                 .dir = kv_dir(),
                                 .max_tokens = max_tokens,
                                 .n_slots = 2,
                                 .slot_bytes = 16 * PART_BYTES,
                                 .budget = &s->budget};
}

static void must(sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("status %d: %s", (int)status, err->text);
}

static void append_all(setup *s, uint64_t n_new)
{
    sl_err err = {0};
    for (uint32_t l = 0; l < s->model.geom.n_layers; l++)
        must(kv_model_append(&s->model, s->kv, l, n_new, &err), &err);
}

static void create(setup *s, uint64_t n_tokens)
{
    sl_err err = {0};
    must(sl_kv_create(&s->options, &s->kv, &err), &err);
    append_all(s, n_tokens);
}

static void finish(setup *s)
{
    sl_kv_destroy(s->kv);
    kv_model_deinit(&s->model);
    assert_int_equal(s->budget.used_bytes, 0);
    sl_budget_deinit(&s->budget);
}

static void pass(setup *s, bool will_follow)
{
    sl_err err = {0};
    uint64_t parts = 0;
    must(sl_kv_pass_begin(s->kv, will_follow, &err), &err);
    for (uint32_t l = 0; l < s->model.geom.n_layers; l++)
        must(kv_model_walk(&s->model, s->kv, l, UINT64_MAX, &parts, &err), &err);
    must(sl_kv_pass_end(s->kv, &err), &err);
}

/* Walks without looking at the bytes; the seconds until the first part in *first_s. */
static void walk(setup *s, double *first_s)
{
    sl_err err = {0};
    double start_s = sl_os_seconds();
    *first_s = 0;
    must(sl_kv_pass_begin(s->kv, false, &err), &err);
    for (uint32_t l = 0; l < s->model.geom.n_layers; l++) {
        bool found = true;
        for (uint64_t i = 0; found; i++) {
            sl_kv_part part;
            must(sl_kv_next(s->kv, l, &part, &found, &err), &err);
            if (!found)
                break;
            if (*first_s <= 0)
                *first_s = sl_os_seconds() - start_s;
            assert_int_equal(part.first_token, i * SL_PART_TOKENS);
            assert_int_equal(part.layer, l);
            sl_kv_release(s->kv, &part);
        }
    }
    must(sl_kv_pass_end(s->kv, &err), &err);
}

static sl_kv_stats stats_of(const setup *s)
{
    sl_kv_stats stats;
    sl_kv_get_stats(s->kv, &stats);
    return stats;
}

static void pause_s(double seconds)
{
    struct timespec span = {0, (long)(seconds * 1e9)};
    nanosleep(&span, NULL);
}

/* The reader has read so much, soon, and goes no further. */
static void expect_read(const setup *s, uint64_t bytes)
{
    for (int i = 0; i < 3000 && stats_of(s).bytes_read < bytes; i++)
        pause_s(0.01);
    pause_s(0.02);
    assert_int_equal(stats_of(s).bytes_read, bytes);
}

/* As many parts as the ring has room for but one are held, in any ring, while the reader runs ahead into the rest. */
static void test_held(void **state)
{
    (void)state;
    for (uint64_t in_ring = 2; in_ring <= 14; in_ring += 3) {
        for (int e = 0; e < 2; e++) {
            setup s;
            start(&s, 1, 8 * SL_PART_TOKENS);
            s.options.slot_bytes = (size_t)in_ring * PART_BYTES / 2 / 4096 * 4096;
            s.options.io_engine = engines[e];
            s.options.read_bytes = 64 << 10;
            uint64_t fits = 2 * s.options.slot_bytes / PART_BYTES;
            s.model.n_held = 100;
            create(&s, 8 * SL_PART_TOKENS);
            sl_err err = {0};
            uint64_t n = fits < 8 ? fits : 8, parts = 0;
            must(sl_kv_pass_begin(s.kv, true, &err), &err);
            /* The model compares each when it comes and all of them at the end, before it releases them. */
            must(kv_model_walk(&s.model, s.kv, 0, n, &parts, &err), &err);
            assert_int_equal(parts, n);
            must(sl_kv_pass_end(s.kv, &err), &err);
            s.model.n_held = 1;
            pass(&s, false);
            finish(&s);
        }
    }
}

/* The same, but the reader has all the time it wants to do harm. */
static void test_held_long(void **state)
{
    (void)state;
    setup s;
    start(&s, 1, 8 * SL_PART_TOKENS);
    s.options.slot_bytes = 2 * PART_BYTES;
    create(&s, 8 * SL_PART_TOKENS);
    sl_err err = {0};
    sl_kv_part held[3];
    must(sl_kv_pass_begin(s.kv, true, &err), &err);
    bool found;
    for (int i = 0; i < 3; i++)
        must(sl_kv_next(s.kv, 0, &held[i], &found, &err), &err);
    /* The middle one goes: its room is taken for the fifth part, round the others. */
    sl_kv_release(s.kv, &held[1]);
    expect_read(&s, UINT64_C(5) * PART_BYTES);
    for (int i = 0; i < 3000 && !sl_kv_is_ready(s.kv, 0); i++)
        pause_s(0.01);
    assert_true(sl_kv_is_ready(s.kv, 0));
    for (int i = 0; i < 3; i += 2)
        assert_memory_equal(held[i].tiles, s.model.groups[0] + (size_t)i * PART_BYTES, PART_BYTES);
    sl_kv_release(s.kv, &held[2]);
    sl_kv_release(s.kv, &held[0]);
    bool found_more = true;
    for (int i = 3; i < 8; i++) {
        must(sl_kv_next(s.kv, 0, &held[0], &found, &err), &err);
        assert_memory_equal(held[0].tiles, s.model.groups[0] + (size_t)i * PART_BYTES, PART_BYTES);
        sl_kv_release(s.kv, &held[0]);
    }
    assert_true(sl_kv_is_ready(s.kv, 0));
    must(sl_kv_next(s.kv, 0, &held[0], &found_more, &err), &err);
    assert_false(found_more);
    must(sl_kv_pass_end(s.kv, &err), &err);
    pass(&s, false);
    finish(&s);
}

/* Passes that verify drafts: the whole next pass is read while tokens are being accepted. A few tokens change nothing
 * of it, a new tile group takes back what lies behind. */
static void test_runs_ahead(void **state)
{
    (void)state;
    setup s;
    start(&s, 3, 4000);
    create(&s, 2048 + 64);
    uint64_t full = kv_model_flash_bytes(&s.model), used = s.budget.used_bytes;
    pass(&s, true);
    pass(&s, true);
    expect_read(&s, 3 * full);
    append_all(&s, 5);
    pass(&s, true);
    expect_read(&s, 4 * full);
    append_all(&s, 60);
    uint64_t grown = kv_model_flash_bytes(&s.model);
    pass(&s, false);
    /* Layer 0's closed parts were kept. */
    expect_read(&s, 4 * full + grown - UINT64_C(2) * PART_BYTES);
    assert_int_equal(s.budget.used_bytes, used);
    assert_int_equal(s.budget.peak_bytes, used);
    finish(&s);
}

/* Windows: every layer grows behind its walk, so nothing is read that would be lost. */
static void test_waits_for_growth(void **state)
{
    (void)state;
    setup s;
    start(&s, 3, 16 * SL_PART_TOKENS);
    create(&s, 0);
    sl_err err = {0};
    uint64_t parts = 0;
    for (int i = 0; i < 5; i++) {
        must(sl_kv_pass_begin(s.kv, true, &err), &err);
        for (uint32_t l = 0; l < 3; l++) {
            must(kv_model_walk(&s.model, s.kv, l, UINT64_MAX, &parts, &err), &err);
            pause_s(0.005);
            must(kv_model_append(&s.model, s.kv, l, 700, &err), &err);
        }
        must(sl_kv_pass_end(s.kv, &err), &err);
    }
    pass(&s, false);
    sl_kv_stats stats = stats_of(&s);
    assert_int_equal(stats.bytes_read, stats.bytes_visited);
    finish(&s);
}

/* The rate holds, sleeping; the first parts do not wait for the last. */
static void test_rate(void **state)
{
    (void)state;
    static const uint64_t rate = 10000000;
    for (int e = 0; e < 2; e++) {
        setup s;
        start(&s, 3, 8 * SL_PART_TOKENS);
        s.options.read_rate = rate;
        s.options.io_engine = engines[e];
        create(&s, 8 * SL_PART_TOKENS);
        double first_s, start_s = sl_os_seconds();
        clock_t cpu = clock();
        walk(&s, &first_s);
        double cpu_s = (double)(clock() - cpu) / CLOCKS_PER_SEC, wall_s = sl_os_seconds() - start_s;
        sl_kv_stats stats = stats_of(&s);
        double expected_s = (double)(stats.bytes_read - stats.read_bytes) / (double)rate;
        assert_int_equal(stats.bytes_read, 24 * PART_BYTES);
        if (wall_s < 0.98 * expected_s || wall_s > 3 * expected_s + 2)
            fail_msg("%.3f s, expected %.3f", wall_s, expected_s);
        if (cpu_s > 0.4 * wall_s)
            fail_msg("%.3f s of computing in %.3f s", cpu_s, wall_s);
        assert_true(first_s < wall_s / 2);
        finish(&s);
    }
}

static void rehearse(setup *s, bool on)
{
    sl_err err = {0};
    must(sl_kv_set_rehearsal(s->kv, on, &err), &err);
}

/* Nothing is read, everything is walked, no junk stays: neither in the ring nor among the resident parts. */
static void test_rehearsal(void **state)
{
    (void)state;
    setup s;
    start(&s, 3, 5000);
    s.options.slot_bytes = 5 * PART_BYTES;
    create(&s, 4500);
    uint64_t full = kv_model_flash_bytes(&s.model);
    sl_err err = {0};
    double first_s;
    /* Before there is any queue of reads. */
    rehearse(&s, true);
    walk(&s, &first_s);
    assert_string_equal(stats_of(&s).io_engine, "none");
    assert_int_equal(stats_of(&s).bytes_read, 0);
    rehearse(&s, false);
    for (int i = 0; i < 4; i++) {
        pass(&s, i % 2 == 0); /* read ahead, or not, when the rehearsal begins */
        rehearse(&s, true);
        pause_s(0.03);
        sl_kv_stats before = stats_of(&s);
        if (i == 2)
            must(sl_kv_set_resident(s.kv, 5 * PART_BYTES, &err), &err);
        for (int j = 0; j < 3; j++)
            walk(&s, &first_s);
        sl_kv_stats after = stats_of(&s);
        assert_int_equal(after.bytes_read, before.bytes_read);
        assert_int_equal(after.bytes_resident, before.bytes_resident);
        if (i < 3) /* then some are resident */
            assert_int_equal(after.bytes_visited, before.bytes_visited + 3 * full);
        assert_int_equal(after.n_passes, before.n_passes + 3);
        rehearse(&s, false);
    }
    pass(&s, false);
    pass(&s, false);
    assert_true(stats_of(&s).bytes_resident > 0);
    must(sl_kv_pass_begin(s.kv, false, &err), &err);
    assert_int_equal(sl_kv_set_rehearsal(s.kv, true, &err), SL_USAGE);
    assert_non_null(strstr(err.text, "inside pass"));
    finish(&s);
}

/* Sizes in force follow what was asked, the ring and the rate. */
static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        size_t read, in_flight, slot;
        uint64_t rate;
        size_t read_in_force, in_flight_in_force;
    } cases[] = {
        {0, 0, 64 << 20, 0, 1 << 20, 32 << 20},   {0, 0, 64 << 20, 8 << 20, 102 * 4096, 32 << 20},
        {0, 0, 4 << 20, 0, 1 << 20, 8 << 20},     {4 << 20, 16 << 20, 64 << 20, 0, 4 << 20, 16 << 20},
        {4096, 0, 64 << 20, 0, 4096, 128 * 4096}, {256 << 10, 4096, 64 << 20, 0, 256 << 10, 256 << 10},
        {0, 0, 0, 0, 64 << 10, 2 * PART_BYTES},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup s;
        start(&s, 1, 2000);
        s.options.read_bytes = cases[i].read;
        s.options.in_flight_bytes = cases[i].in_flight;
        s.options.slot_bytes = cases[i].slot;
        s.options.read_rate = cases[i].rate;
        create(&s, 1500);
        assert_string_equal(stats_of(&s).io_engine, "none");
        pass(&s, false);
        assert_int_equal(stats_of(&s).read_bytes, cases[i].read_in_force);
        assert_int_equal(stats_of(&s).in_flight_bytes, cases[i].in_flight_in_force);
        assert_string_not_equal(stats_of(&s).io_engine, "none");
        assert_true(stats_of(&s).read_s > 0);
        finish(&s);
    }
    setup s;
    start(&s, 1, 2000);
    s.options.read_bytes = 5000;
    sl_err err = {0};
    assert_int_equal(sl_kv_create(&s.options, &s.kv, &err), SL_USAGE);
    assert_non_null(strstr(err.text, "multiple of 4096"));
    finish(&s);
}

static bool has_text(const char *path, const char *text)
{
    static char content[1 << 20];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(content, 1, sizeof content - 1, file);
    content[n] = 0;
    fclose(file);
    return strstr(content, text) != NULL;
}

static void test_trace(void **state)
{
    (void)state;
    static const char *const names[] = {"\"read\"", "\"checksum\"", "\"wait\"", "\"write\""};
    char path[200];
    snprintf(path, sizeof path, "%.150s/sluice-trace-XXXXXX", kv_dir());
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    setup s;
    sl_err err = {0};
    start(&s, 1, 5000);
    s.options.read_rate = 4000000; /* there is something to wait for */
    must(sl_trace_open(path, &s.options.trace, &err), &err);
    create(&s, 4500);
    pass(&s, true);
    pass(&s, false);
    sl_trace *trace = s.options.trace;
    finish(&s);
    must(sl_trace_close(trace, &err), &err);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!has_text(path, names[i]))
            fail_msg("no span %s", names[i]);
    unlink(path);
}

/* One read of one part at a time, the n-th of them bad: n - 1 parts come, then the error that names the place. The next
 * pass is whole. */
static void test_error_at_its_place(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 8; n++) {
        setup s;
        start(&s, 1, 8 * SL_PART_TOKENS);
        fault_vfs fault;
        fault_vfs_init(&fault, n % 2 ? FAULT_READ : FAULT_FLIPPED_BIT, 5, n + 1); /* the first read is the probe's */
        s.options.vfs = &fault.vfs;
        s.options.read_bytes = s.options.in_flight_bytes = PART_BYTES;
        create(&s, 8 * SL_PART_TOKENS);
        sl_err err = {0};
        uint64_t parts = 0;
        must(sl_kv_pass_begin(s.kv, false, &err), &err);
        sl_status status = kv_model_walk(&s.model, s.kv, 0, UINT64_MAX, &parts, &err);
        char place[64];
        snprintf(place, sizeof place, "offset %llu", (unsigned long long)(n - 1) * PART_BYTES);
        assert_int_equal(status, n % 2 ? SL_FAILED : SL_DAMAGED);
        if (parts != n - 1 || !strstr(err.text, place))
            fail_msg("bad part %llu: %llu parts, \"%s\"", (unsigned long long)n, (unsigned long long)parts, err.text);
        must(sl_kv_pass_end(s.kv, &err), &err);
        pass(&s, false);
        finish(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_held_long),
        cmocka_unit_test(test_runs_ahead),
        cmocka_unit_test(test_waits_for_growth),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_rehearsal),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_error_at_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
