/* Whatever the geometry, the sizes of appends, the ring and the resident share: a walk gives back what was appended,
 * and the counts of bytes are true. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/effort.h"
#include "common/fault_vfs.h"
#include "common/kv_model.h"

static const char *kv_dir(void)
{
    const char *dir = getenv("SLUICE_KV_DIR");
    return dir && *dir ? dir : "/var/tmp";
}

static uint64_t base_seed(void)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    static uint64_t seed;
    if (seed == 0)
        seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
    return seed;
}

typedef struct setup {
    sl_budget budget;
    kv_model model;
    sl_kv *kv;
    sl_kv_layer layers[KV_MODEL_LAYERS];
    sl_kv_options options;
    fault_vfs shuffled;
} setup;

static sl_geom random_geom(setup *s, uint64_t seed)
{
    kv_model dice = {.random = seed * 2 + 1};
    sl_geom geom = {.type = kv_model_random(&dice, 2) ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16};
    geom.n_layers = 1 + (uint32_t)kv_model_random(&dice, KV_MODEL_LAYERS);
    geom.layers = s->layers;
    bool is_mixed = kv_model_random(&dice, 3) == 0;
    for (uint32_t i = 0; i < geom.n_layers; i++) {
        uint32_t dims[2] = {geom.type == SL_KV_TYPE_Q8_0 ? 32 : 16, 32};
        s->layers[i] = i > 0 && !is_mixed
                           ? s->layers[0]
                           : (sl_kv_layer){1 + (uint32_t)kv_model_random(&dice, 2), dims[kv_model_random(&dice, 2)], 0};
    }
    return geom;
}

static void start(setup *s, const sl_geom *geom, uint64_t max_tokens, uint64_t seed)
{
    sl_budget_init(&s->budget, UINT64_MAX);
    kv_model_init(&s->model, geom, max_tokens, seed);
    s->options =
        (sl_kv_options){.geom = *geom, .dir = kv_dir(), .max_tokens = max_tokens, .n_slots = 2, .budget = &s->budget};
    s->options.geom.layers = s->model.layers;
}

static void create(setup *s)
{
    sl_err err = {0};
    if (sl_kv_create(&s->options, &s->kv, &err) != SL_OK)
        fail_msg("create: %s", err.text);
}

static void finish(setup *s)
{
    sl_kv_destroy(s->kv);
    kv_model_deinit(&s->model);
    assert_int_equal(s->budget.used_bytes, 0);
    sl_budget_deinit(&s->budget);
}

static void must(sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("status %d: %s", (int)status, err->text);
}

static uint64_t room(const setup *s, uint32_t layer, uint64_t wanted)
{
    uint64_t left = s->model.max_tokens - s->model.tokens[layer];
    return wanted < left ? wanted : left;
}

/* A pass that appends n tokens to every layer behind its walk (0: none). */
static void pass(setup *s, uint64_t n_new, bool will_follow)
{
    sl_err err = {0};
    uint64_t parts = 0;
    must(sl_kv_pass_begin(s->kv, will_follow, &err), &err);
    for (uint32_t l = 0; l < s->model.geom.n_layers; l++) {
        must(kv_model_walk(&s->model, s->kv, l, UINT64_MAX, &parts, &err), &err);
        if (n_new > 0)
            must(kv_model_append(&s->model, s->kv, l, room(s, l, n_new), &err), &err);
    }
    must(sl_kv_pass_end(s->kv, &err), &err);
}

static void append_all(setup *s, uint64_t n_new)
{
    sl_err err = {0};
    for (uint32_t l = 0; l < s->model.geom.n_layers; l++)
        must(kv_model_append(&s->model, s->kv, l, room(s, l, n_new), &err), &err);
}

static uint64_t random_step(kv_model *model)
{
    static const uint64_t steps[] = {1, 3, 63, 64, 65, 200, 1000, 1024, 1025, 2048, 4096};
    return steps[kv_model_random(model, sizeof steps / sizeof *steps)];
}

/* How to read: sizes, engine, order of ends. */
static void random_reader(setup *s)
{
    kv_model *model = &s->model;
    s->options.read_bytes = kv_model_random(model, 2) ? 0 : (size_t)4096 << kv_model_random(model, 10);
    s->options.in_flight_bytes = kv_model_random(model, 2) ? 0 : (size_t)4096 << kv_model_random(model, 10);
    s->options.io_engine = kv_model_random(model, 3) ? SL_IO_ENGINE_AUTO : SL_IO_ENGINE_POOL;
    fault_vfs_init(&s->shuffled, FAULT_AIO_SHUFFLED, 0, 1);
    if (kv_model_random(model, 2))
        s->options.vfs = &s->shuffled.vfs;
}

/* Only announced passes, each walked to its end: every byte read is walked, but for what a growth takes back: of
 * layers that grow between passes, after a pass without growth, one ring at most. */
static void run_steady(uint64_t seed)
{
    setup s;
    memset(&s, 0, sizeof s);
    sl_geom geom = random_geom(&s, seed);
    start(&s, &geom, 1 + seed * 7919 % 9000, seed);
    kv_model *model = &s.model;
    uint64_t total = sl_geom_token_bytes(&geom) * model->max_tokens;
    s.options.n_slots = 2 + kv_model_random(model, 3);
    s.options.slot_bytes = kv_model_random(model, 2) ? 0 : kv_model_random(model, 8 * sl_geom_max_part_bytes(&geom));
    random_reader(&s);
    s.options.resident_bytes = kv_model_random(model, 2) ? 0 : kv_model_random(model, total);
    s.options.force_buffered = kv_model_random(model, 8) == 0;
    model->n_held = 1 + (uint32_t)kv_model_random(model, s.options.n_slots);
    create(&s);
    uint64_t visited = 0, ring = s.options.n_slots * (s.options.slot_bytes + sl_geom_max_part_bytes(&geom)), lost = 0;
    bool always_inside = kv_model_random(model, 3) == 0;
    while (model->tokens[0] < model->max_tokens) {
        visited += kv_model_flash_bytes(model);
        bool is_burst = !always_inside && kv_model_random(model, 2) == 0;
        lost += always_inside ? 0 : ring;
        pass(&s, is_burst ? 0 : random_step(model), true);
        if (is_burst)
            append_all(&s, 1 + kv_model_random(model, 300));
    }
    visited += kv_model_flash_bytes(model);
    pass(&s, 0, false);
    sl_kv_stats stats;
    sl_kv_get_stats(s.kv, &stats);
    assert_in_range(stats.bytes_read, stats.bytes_visited, stats.bytes_visited + lost);
    if (s.options.resident_bytes == 0) {
        assert_int_equal(stats.bytes_visited, visited);
        assert_in_range(stats.bytes_written, kv_model_flash_bytes(model), kv_model_full_bytes(model) + SL_SECTOR_BYTES);
    }
    assert_true(stats.bytes_resident <= s.options.resident_bytes);
    if (strcmp(stats.io_mode, "direct") == 0)
        assert_int_equal(stats.page_cache_bytes, 0);
    finish(&s);
}

/* Anything the contract allows: passes given up, growth after growth, a growing resident share. */
static void run_wild(uint64_t seed)
{
    setup s;
    memset(&s, 0, sizeof s);
    sl_geom geom = random_geom(&s, seed);
    start(&s, &geom, 2000 + seed * 7919 % 7000, seed);
    kv_model *model = &s.model;
    uint64_t total = sl_geom_token_bytes(&geom) * model->max_tokens;
    s.options.n_slots = 2 + kv_model_random(model, 2);
    s.options.slot_bytes = kv_model_random(model, 6 * sl_geom_max_part_bytes(&geom));
    s.options.resident_bytes = kv_model_random(model, 2) ? 0 : kv_model_random(model, total);
    random_reader(&s);
    create(&s);
    sl_err err = {0};
    for (int step = 0; step < 60; step++) {
        switch (kv_model_random(model, 6)) {
        case 0:
            append_all(&s, 1 + kv_model_random(model, 400));
            break;
        case 1: { /* given up somewhere */
            uint64_t parts = 0;
            must(sl_kv_pass_begin(s.kv, kv_model_random(model, 2), &err), &err);
            uint32_t last = (uint32_t)kv_model_random(model, geom.n_layers);
            for (uint32_t l = 0; l <= last; l++)
                must(kv_model_walk(model, s.kv, l, l < last ? UINT64_MAX : kv_model_random(model, 4), &parts, &err),
                     &err);
            must(sl_kv_pass_end(s.kv, &err), &err);
            break;
        }
        case 2: /* one layer grows alone, perhaps by nothing */
            must(kv_model_append(model, s.kv, (uint32_t)kv_model_random(model, geom.n_layers), 0, &err), &err);
            break;
        case 3:
            if (kv_model_random(model, 4) == 0)
                must(sl_kv_set_resident(s.kv, kv_model_random(model, total + total / 4), &err), &err);
            break;
        default:
            pass(&s, kv_model_random(model, 2) ? 0 : random_step(model) % 512, kv_model_random(model, 2));
        }
    }
    finish(&s);
}

static void test_steady(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 20 : 60); i++)
        run_steady(base_seed() + i);
}

static void test_wild(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 15 : 40); i++)
        run_wild(base_seed() + i);
}

static const sl_kv_layer two_layers[2] = {{1, 32, 0}, {2, 32, 0}};
static const sl_geom two = {SL_KV_TYPE_Q8_0, 2, two_layers};

/* A context that fits its share touches no disk: the directory need not even exist. */
static void test_all_resident(void **state)
{
    (void)state;
    setup s;
    memset(&s, 0, sizeof s);
    start(&s, &two, 5000, base_seed());
    s.options.dir = "/nonexistent";
    s.options.resident_bytes = sl_geom_token_bytes(&two) * 5000;
    create(&s);
    for (int i = 0; i < 6; i++)
        pass(&s, 900, true);
    sl_kv_stats stats;
    sl_kv_get_stats(s.kv, &stats);
    assert_string_equal(stats.io_mode, "memory");
    assert_int_equal(stats.bytes_written + stats.bytes_read + stats.bytes_visited, 0);
    assert_int_equal(stats.bytes_resident, kv_model_full_bytes(&s.model));
    assert_int_equal(stats.n_passes, 6);
    finish(&s);
}

/* More memory, fewer bytes read: smoothly, in every prefix of the context, and never more than the share. */
static void test_share(void **state)
{
    (void)state;
    uint64_t total = sl_geom_token_bytes(&two) * 16384;
    for (uint64_t prefix = 4096; prefix <= 16384; prefix *= 2) {
        uint64_t last = UINT64_MAX;
        for (uint64_t eighths = 0; eighths <= 8; eighths++) {
            setup s;
            memset(&s, 0, sizeof s);
            start(&s, &two, 16384, base_seed());
            s.options.resident_bytes = total * eighths / 8;
            create(&s);
            append_all(&s, prefix);
            pass(&s, 0, false);
            sl_kv_stats stats;
            sl_kv_get_stats(s.kv, &stats);
            uint64_t full = kv_model_full_bytes(&s.model);
            uint64_t ideal = full - full * eighths / 8;
            uint64_t slack = 2 * sl_geom_max_part_bytes(&two);
            assert_true(stats.bytes_visited <= ideal + slack && stats.bytes_visited + slack >= ideal);
            assert_true(stats.bytes_visited <= last);
            assert_true(stats.bytes_resident <= s.options.resident_bytes);
            last = stats.bytes_visited;
            finish(&s);
        }
        assert_int_equal(last, 0);
    }
}

/* A raised share fills with the next pass and spares the one after; a budget that cannot hold it refuses. */
static void test_raise(void **state)
{
    (void)state;
    setup s;
    memset(&s, 0, sizeof s);
    start(&s, &two, 8192, base_seed());
    create(&s);
    append_all(&s, 8000);
    pass(&s, 0, true);
    sl_kv_stats before, middle, after;
    sl_kv_get_stats(s.kv, &before);
    sl_err err = {0};
    s.budget.limit_bytes = s.budget.used_bytes + 1000;
    assert_int_equal(sl_kv_set_resident(s.kv, UINT64_MAX, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "resident parts"));
    s.budget.limit_bytes = UINT64_MAX;
    must(sl_kv_set_resident(s.kv, UINT64_MAX, &err), &err);
    /* What the reader took before the raise joins a pass later. */
    pass(&s, 0, true);
    pass(&s, 0, false);
    sl_kv_get_stats(s.kv, &middle);
    assert_true(middle.bytes_read >= before.bytes_read);
    pass(&s, 0, false);
    sl_kv_get_stats(s.kv, &after);
    uint64_t open_bytes = 0; /* an open part joins when it is full */
    for (uint32_t l = 0; l < 2; l++)
        open_bytes += s.model.tokens[l] % SL_PART_TOKENS / SL_TILE * sl_geom_group_bytes(&two, l);
    assert_in_range(after.bytes_read - middle.bytes_read, 0, open_bytes);
    assert_true(after.bytes_resident >= kv_model_full_bytes(&s.model) - open_bytes);
    finish(&s);
}

/* The plan's figure covers what creating takes. */
static void test_table_bytes(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 1000, 100000, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sl_budget budget;
        sl_budget_init(&budget, UINT64_MAX);
        sl_kv_options options = {.geom = two, .dir = kv_dir(), .max_tokens = sizes[i], .n_slots = 3, .budget = &budget};
        sl_kv *kv = NULL;
        sl_err err = {0};
        must(sl_kv_create(&options, &kv, &err), &err);
        uint64_t ring = 3 * sl_geom_max_part_bytes(&two) + 4096;
        assert_true(budget.used_bytes <= sl_kv_table_bytes(&two, sizes[i]) + ring);
        if (sizes[i] >= SL_TILE) /* below, nothing can reach flash: no reader */
            assert_true(budget.used_bytes + (64 << 10) >= sl_kv_table_bytes(&two, sizes[i]));
        sl_kv_destroy(kv);
        assert_int_equal(budget.used_bytes, 0);
        sl_budget_deinit(&budget);
    }
}

/* Destroyed while parts are held and others are being read. */
static void test_destroy_midway(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 20; n++) {
        setup s;
        memset(&s, 0, sizeof s);
        start(&s, &two, 8192, base_seed() + n);
        s.options.n_slots = 4;
        create(&s);
        append_all(&s, 8192);
        sl_err err = {0};
        must(sl_kv_pass_begin(s.kv, true, &err), &err);
        for (uint64_t i = 0; i < n % 4; i++) {
            sl_kv_part part;
            bool found;
            must(sl_kv_next(s.kv, 0, &part, &found, &err), &err);
            assert_true(found);
        }
        if (n >= 10)
            must(sl_kv_pass_end(s.kv, &err), &err);
        finish(&s);
    }
}

static void expect_usage(sl_status status, const sl_err *err, const char *word)
{
    assert_int_equal(status, SL_USAGE);
    if (!strstr(err->text, word))
        fail_msg("\"%s\" lacks \"%s\"", err->text, word);
}

static void test_misuse(void **state)
{
    (void)state;
    setup s;
    memset(&s, 0, sizeof s);
    start(&s, &two, 3000, base_seed());
    sl_err err = {0};
    s.options.n_slots = 1;
    expect_usage(sl_kv_create(&s.options, &s.kv, &err), &err, "ring slots");
    s.options.n_slots = 2;
    s.options.max_tokens = UINT64_MAX;
    expect_usage(sl_kv_create(&s.options, &s.kv, &err), &err, "more than a file can hold");
    s.options.max_tokens = 3000;
    create(&s);
    append_all(&s, 2500);
    sl_kv_part part;
    bool found = true;
    expect_usage(sl_kv_next(s.kv, 0, &part, &found, &err), &err, "outside a pass");
    assert_false(found);
    expect_usage(sl_kv_pass_end(s.kv, &err), &err, "not begun");
    must(sl_kv_pass_begin(s.kv, false, &err), &err);
    expect_usage(sl_kv_pass_begin(s.kv, false, &err), &err, "inside pass 1");
    expect_usage(sl_kv_next(s.kv, 1, &part, &found, &err), &err, "layer 0 has parts left");
    expect_usage(sl_kv_next(s.kv, 2, &part, &found, &err), &err, "layer 2 of 2");
    expect_usage(kv_model_append(&s.model, s.kv, 0, 5, &err), &err, "before its parts have been walked");
    must(sl_kv_pass_end(s.kv, &err), &err);
    assert_int_equal(kv_model_append(&s.model, s.kv, 0, 501, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "3000"));
    pass(&s, 500, false);
    pass(&s, 0, false);
    finish(&s);
}

int main(void)
{
    printf("seed %llu\n", (unsigned long long)base_seed());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady),         cmocka_unit_test(test_wild),   cmocka_unit_test(test_all_resident),
        cmocka_unit_test(test_share),          cmocka_unit_test(test_raise),  cmocka_unit_test(test_table_bytes),
        cmocka_unit_test(test_destroy_midway), cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
