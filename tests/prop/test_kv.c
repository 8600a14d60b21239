/* Whatever the geometry, the sizes of appends, the ring and the resident share: a walk gives back what was appended,
 * and the counts of bytes are true. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

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
        s->layers[i] = i > 0 && !is_mixed ? s->layers[0]
                                          : (sl_kv_layer){1 + (uint32_t)kv_model_random(&dice, 2),
                                                          dims[kv_model_random(&dice, 2)]};
    }
    return geom;
}

static void start(setup *s, const sl_geom *geom, uint64_t max_tokens, uint64_t seed)
{
    sl_budget_init(&s->budget, UINT64_MAX);
    kv_model_init(&s->model, geom, max_tokens, seed);
    s->options = (sl_kv_options){.geom = *geom,
                                 .dir = kv_dir(),
                                 .max_tokens = max_tokens,
                                 .n_slots = 2,
                                 .budget = &s->budget};
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

/* Only announced passes, each walked to its end: every byte read is walked. */
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
    s.options.read_bytes = kv_model_random(model, 2) ? 0 : (size_t)4096 << kv_model_random(model, 10);
    s.options.resident_bytes = kv_model_random(model, 2) ? 0 : kv_model_random(model, total);
    s.options.force_buffered = kv_model_random(model, 8) == 0;
    model->n_held = 1 + (uint32_t)kv_model_random(model, s.options.n_slots);
    create(&s);
    uint64_t visited = 0;
    while (model->tokens[0] < model->max_tokens) {
        visited += kv_model_flash_bytes(model);
        bool is_burst = kv_model_random(model, 2) == 0;
        pass(&s, is_burst ? 0 : random_step(model), true);
        if (is_burst)
            append_all(&s, 1 + kv_model_random(model, 300));
    }
    visited += kv_model_flash_bytes(model);
    pass(&s, 0, false);
    sl_kv_stats stats;
    sl_kv_get_stats(s.kv, &stats);
    assert_int_equal(stats.bytes_read, stats.bytes_visited);
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
    for (uint64_t i = 0; i < 60; i++)
        run_steady(base_seed() + i);
}

static void test_wild(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 40; i++)
        run_wild(base_seed() + i);
}

int main(void)
{
    printf("seed %llu\n", (unsigned long long)base_seed());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady),
        cmocka_unit_test(test_wild),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
