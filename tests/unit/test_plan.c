/* Plans of a real engine, and measuring, by what must hold of any machine. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sluice/sluice.h>

#include "api/estimate.h"
#include "api/rates.h"
#include "base/cpu.h"
#include "common/effort.h"
#include "common/tiny_model.h"

enum { MIB = 1 << 20 };

/* -------------------------------------------------------------------------------------------------------- measuring */

typedef struct machine {
    sl_kernels kernels;
    sl_budget budget;
    sl_pool *pool;
    sl_rates_machine rates;
} machine;

static void machine_init(machine *m)
{
    sl_kernels_init(&m->kernels, sl_cpu_best());
    sl_budget_init(&m->budget, 48 * MIB);
    assert_int_equal(SL_OK, sl_pool_create(2, &m->budget, &m->pool, NULL));
    m->rates = (sl_rates_machine){&m->kernels, m->pool, &m->budget, 0.002};
}

static void machine_deinit(machine *m)
{
    sl_pool_destroy(m->pool);
    assert_int_equal(0, (int)m->budget.used_bytes);
    sl_budget_deinit(&m->budget);
}

static void rates_of_every_type_are_rates(void **unused)
{
    (void)unused;
    machine m;
    machine_init(&m);
    uint64_t before = m.budget.used_bytes;
    double rate = 0.0;
    sl_err err = {SL_OK, ""};
    for (int type = 0; type < SL_WTYPE_COUNT; type++) {
        const size_t rows[] = {1, 5, 16, 128, 300};
        for (size_t i = 0; i < 5; i++) {
            if (sl_rates_projection(&m.rates, (sl_wtype)type, rows[i], &rate, &err) != SL_OK)
                fail_msg("%s", err.text);
            assert_true(isfinite(rate) && rate > 1e6 && rate < 1e15);
            assert_int_equal(before, m.budget.used_bytes);
        }
    }
    const sl_rates_attn shapes[] = {{SL_KV_TYPE_Q8_0, 9, 3, 64, 1},    {SL_KV_TYPE_Q8_0, 32, 32, 64, 64},
                                    {SL_KV_TYPE_F16, 4, 2, 16, 7},     {SL_KV_TYPE_Q8_0, 64, 8, 128, 256},
                                    {SL_KV_TYPE_F16, 128, 1, 256, 256}, {SL_KV_TYPE_Q8_0, 1, 1, 32, 4096}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (sl_rates_attention(&m.rates, &shapes[i], &rate, &err) != SL_OK)
            fail_msg("%s", err.text);
        assert_true(isfinite(rate) && rate > 1.0 && rate < 1e12);
        assert_int_equal(before, m.budget.used_bytes);
    }
    assert_int_equal(SL_OK, sl_rates_memory(&m.rates, &rate, &err));
    assert_true(isfinite(rate) && rate > 1e8 && rate < 1e14);
    assert_int_equal(before, m.budget.used_bytes);
    machine_deinit(&m);
}

/* What is measured is what is asked for: 16 times the rows take clearly longer for the same keys. */
static void more_rows_take_longer(void **unused)
{
    (void)unused;
    machine m;
    machine_init(&m);
    m.rates.seconds = 0.05;
    sl_rates_attn shape = {SL_KV_TYPE_Q8_0, 8, 8, 64, 16};
    double some = 0.0, many = 0.0;
    assert_int_equal(SL_OK, sl_rates_attention(&m.rates, &shape, &some, NULL));
    shape.n_rows = 256;
    assert_int_equal(SL_OK, sl_rates_attention(&m.rates, &shape, &many, NULL));
    assert_true(many < some / 3.0);
    shape.n_rows = 4096; /* more than is measured: by proportion */
    double most = 0.0;
    assert_int_equal(SL_OK, sl_rates_attention(&m.rates, &shape, &most, NULL));
    assert_true(most < many / 5.0 && most > many / 50.0);
    machine_deinit(&m);
}

static void too_little_memory_is_refused(void **unused)
{
    (void)unused;
    machine m;
    machine_init(&m);
    uint64_t limit = m.budget.limit_bytes;
    m.budget.limit_bytes = m.budget.used_bytes + 4096;
    double rate = 1.0;
    sl_err err = {SL_OK, ""};
    const sl_rates_attn shape = {SL_KV_TYPE_Q8_0, 9, 3, 64, 16};
    assert_int_equal(SL_REFUSED, sl_rates_attention(&m.rates, &shape, &rate, &err));
    assert_true(rate == 0.0);
    assert_int_equal(SL_REFUSED, sl_rates_projection(&m.rates, SL_WTYPE_Q4_0, 16, &rate, &err));
    assert_int_equal(SL_REFUSED, sl_rates_memory(&m.rates, &rate, &err));
    m.budget.limit_bytes = limit;
    machine_deinit(&m);
}

/* ---------------------------------------------------------------------------------------------------- whole engines */

static char path[300];

static sl_engine *open_model(const tiny_model *model, uint64_t ram_bytes, bool plan_only)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(path, sizeof path, "%s/sluice-plan-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    assert_true(tiny_model_write(model, path));
    const sl_engine_options options = {.model_path = path, .ram_bytes = ram_bytes, .n_threads = 2,
                                       .plan_only = plan_only};
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    sl_status status = sl_engine_open(&options, &engine, &err);
    unlink(path);
    if (status != SL_OK)
        fail_msg("%s", err.text);
    return engine;
}

static sl_engine *open_engine(uint64_t ram_bytes, bool plan_only)
{
    tiny_model model = tiny_model_of_seed(3);
    return open_model(&model, ram_bytes, plan_only);
}

static sl_context_options context_options(size_t prompt_tokens)
{
    return (sl_context_options){.prompt_tokens = prompt_tokens, .predict_tokens = 16, .max_drafts = 7,
                                .io = SL_IO_BUFFERED, .force_context = true}; /* buffered: the disk is not measured */
}

static sl_plan plan_of(sl_engine *engine, const sl_context_options *options, sl_status expected, sl_estimate *estimate)
{
    sl_plan plan;
    sl_err err = {SL_OK, ""};
    if (sl_engine_plan(engine, options, 8, &plan, estimate, &err) != expected)
        fail_msg("status %d, expected %d: %s", (int)err.status, (int)expected, err.text);
    if (expected == SL_REFUSED)
        assert_non_null(strstr(err.text, "too small"));
    return plan;
}

/* By which the process itself grows between two openings. */
static uint64_t growth_bytes(void)
{
    return EFFORT_IS_SMALL ? 64 * (uint64_t)MIB : 3 * (uint64_t)MIB;
}

static void assert_close(uint64_t a, uint64_t b)
{
    if (a > b + growth_bytes() || b > a + growth_bytes())
        fail_msg("%llu and %llu", (unsigned long long)a, (unsigned long long)b);
}

static void a_plan_without_weights_is_the_plan(void **unused)
{
    (void)unused;
    const sl_context_options options = context_options(100000);
    const uint64_t rams[] = {256 * (uint64_t)MIB, 64 * (uint64_t)MIB};
    for (size_t i = 0; i < (EFFORT_IS_SMALL ? 1 : 2); i++) {
        sl_engine *bare = open_engine(rams[i], true), *whole = open_engine(rams[i], false);
        sl_plan a = plan_of(bare, &options, SL_OK, NULL), b = plan_of(whole, &options, SL_OK, NULL), c;
        sl_context *context = NULL;
        assert_int_equal(SL_OK, sl_context_create(whole, &options, &context, NULL));
        sl_context_get_plan(context, &c);
        sl_context_destroy(context);
        assert_int_equal(b.resident_bytes / MIB, c.resident_bytes / MIB);
        assert_int_equal(a.weight_bytes, b.weight_bytes);
        assert_int_equal(a.kv_bytes, 100016 * a.kv_token_bytes);
        assert_int_equal(a.kv_bytes, b.kv_bytes);
        assert_int_equal(a.window_tokens, b.window_tokens);
        assert_close(a.resident_bytes, b.resident_bytes);
        assert_close(a.needed_bytes, b.needed_bytes);
        assert_true(a.decode_resident_bytes >= a.resident_bytes && a.decode_resident_bytes <= a.kv_bytes);
        uint64_t all = b.program_bytes + b.weight_bytes + b.table_bytes + b.ring_bytes + b.window_bytes +
                       b.resident_bytes;
        assert_true(all <= b.ram_bytes);
        sl_engine_close(bare);
        sl_engine_close(whole);
    }
}

/* What the refusal names does. Runs first: the process has not grown yet. */
static void the_needed_figure_is_enough(void **unused)
{
    (void)unused;
    const sl_context_options options = context_options(8192);
    sl_engine *engine = open_engine(1 * MIB, true);
    sl_plan plan = plan_of(engine, &options, SL_REFUSED, NULL);
    sl_engine_close(engine);
    assert_true(plan.needed_bytes > plan.ram_bytes && plan.kv_bytes > 0 && plan.disk_bytes > plan.kv_bytes - MIB);
    engine = open_engine(plan.needed_bytes + growth_bytes(), false);
    sl_context *context = NULL;
    sl_err err = {SL_OK, ""};
    if (sl_context_create(engine, &options, &context, &err) != SL_OK)
        fail_msg("%s", err.text);
    sl_context_destroy(context);
    sl_engine_close(engine);
}

static void a_refusal_comes_with_times(void **unused)
{
    (void)unused;
    const sl_context_options options = context_options(8192);
    sl_engine *engine = open_engine(1 * MIB, true);
    sl_estimate e;
    sl_plan plan = plan_of(engine, &options, SL_REFUSED, &e);
    sl_engine_close(engine);
    assert_true(e.pass_compute_s > 0.0 && e.written_bytes == plan.max_tokens / 64 * 64 * plan.kv_token_bytes);
}

/* Little memory but a ring's, and so all that is kept is on the disk. A sanitizer's own memory would make room. */
static void expect_all_on_disk(const tiny_model *model, sl_context_options options, const sl_plan *much,
                               uint64_t n_layers)
{
    if (EFFORT_IS_SMALL)
        return;
    sl_estimate e;
    options.ring_bytes = 2 * 1024 * much->kv_token_bytes / n_layers;
    sl_engine *engine = open_model(model, 1 * MIB, true);
    const uint64_t needed = plan_of(engine, &options, SL_REFUSED, NULL).needed_bytes;
    sl_engine_close(engine);
    engine = open_model(model, needed + growth_bytes(), true);
    const sl_plan little = plan_of(engine, &options, SL_OK, &e);
    sl_engine_close(engine);
    assert_int_equal(much->kept_bytes + n_layers * 4096, little.disk_bytes);
    assert_true(e.written_bytes > little.disk_bytes && e.written_bytes <= little.kv_bytes);
}

/* Layers of 200 tokens, and those that see all. A talk's end is its room's end: nobody knows where it will be. */
static void an_answer_sees_the_end_of_what_slides(void **unused)
{
    (void)unused;
    tiny_model model = tiny_model_of_arch(4, "gemma3");
    sl_engine *engine = open_model(&model, 256 * (uint64_t)MIB, true);
    sl_engine_info info;
    sl_engine_get_info(engine, &info);
    assert_true(info.sliding_span == 200 && info.n_sliding_layers > 0 && info.n_sliding_layers < info.n_layers);
    uint64_t n_sliding = info.n_sliding_layers, n_whole = info.n_layers - n_sliding;
    sl_context_options options = context_options(20 * 1024);
    options.predict_tokens = 4 * 1024;
    sl_plan plan = plan_of(engine, &options, SL_OK, NULL);
    uint64_t part = 1024 * plan.kv_token_bytes / info.n_layers;
    assert_int_equal(24 * part * info.n_layers, plan.kv_bytes);
    assert_int_equal((24 * n_whole + n_sliding) * part, plan.walked_bytes); /* from token 24,377 on */
    /* of what slides, the answer keeps two parts at a time */
    assert_int_equal((24 * n_whole + 2 * n_sliding) * part, plan.answer_bytes);
    assert_int_equal(plan.answer_bytes, plan.kept_bytes);
    expect_all_on_disk(&model, options, &plan, info.n_layers);
    /* a talk's window of 1,024, the span and 4,096 tokens to take back: seven parts */
    options.ring_bytes = 0;
    options.talk = true;
    plan = plan_of(engine, &options, SL_OK, NULL);
    assert_int_equal(plan.walked_bytes, plan.answer_bytes);
    assert_int_equal((24 * n_whole + 7 * n_sliding) * part, plan.kept_bytes);
    sl_engine_close(engine);
}

static void the_ring_holds_what_is_in_flight(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine(UINT64_C(1) << 30, true);
    sl_context_options options = context_options(4 << 20);
    sl_plan plan = plan_of(engine, &options, SL_OK, NULL);
    assert_true(plan.ring_bytes >= 48 * MIB); /* 32 in flight where nothing is known, and half of it beside */
    options.ring_bytes = 6 * MIB; /* whoever asks gets what he asked for */
    plan = plan_of(engine, &options, SL_OK, NULL);
    assert_int_equal(6 * MIB, plan.ring_bytes);
    sl_engine_close(engine);
}

static void an_estimate_needs_measuring_once(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine(256 * (uint64_t)MIB, false);
    const sl_context_options options = context_options(2000);
    sl_context *context = NULL;
    assert_int_equal(SL_OK, sl_context_create(engine, &options, &context, NULL));
    sl_estimate e, again;
    sl_context_estimate(context, 0, &e);
    assert_true(e.prefill_compute_s == 0.0 && e.rows == 8);
    plan_of(engine, &options, SL_OK, &again);
    assert_true(again.prefill_compute_s > 0.0 && again.memory_rate > 0.0);
    sl_context_estimate(context, 3, &e);
    assert_true(e.prefill_compute_s > 0.0 && e.rows == 3);
    sl_plan plan;
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_USAGE, sl_engine_plan(engine, &options, 0, &plan, &e, &err));
    assert_int_equal(SL_USAGE, sl_engine_plan(engine, &options, 257, &plan, &e, &err));
    sl_context_destroy(context);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_needed_figure_is_enough),
        cmocka_unit_test(rates_of_every_type_are_rates),
        cmocka_unit_test(more_rows_take_longer),
        cmocka_unit_test(too_little_memory_is_refused),
        cmocka_unit_test(a_plan_without_weights_is_the_plan),
        cmocka_unit_test(a_refusal_comes_with_times),
        cmocka_unit_test(an_answer_sees_the_end_of_what_slides),
        cmocka_unit_test(the_ring_holds_what_is_in_flight),
        cmocka_unit_test(an_estimate_needs_measuring_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
