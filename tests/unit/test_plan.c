/* Plans and estimates: the arithmetic by hand values, measuring by what must hold of any machine. */
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
#include "store/geom.h"

enum { MIB = 1 << 20 };

static void assert_near(double expected, double found)
{
    if (!(fabs(found - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.17g, expected %.17g", found, expected);
}

/* ------------------------------------------------------------------------------------------------------- arithmetic */

/* As decode/session.c cuts a prompt into windows. */
static uint64_t stored_by_walk(uint64_t prompt, uint64_t window)
{
    uint64_t sum = 0;
    for (uint64_t pos = 0; pos < prompt;) {
        uint64_t rows = window, edge = SL_SEGMENT_TOKENS - pos % SL_SEGMENT_TOKENS;
        if (edge < rows)
            rows = edge;
        if (rows > prompt - pos)
            rows = prompt - pos;
        sum += pos;
        pos += rows;
    }
    return sum;
}

static void stored_tokens_as_the_windows_find_them(void **unused)
{
    (void)unused;
    assert_int_equal(0, sl_estimate_stored_tokens(0, 64));
    assert_int_equal(0, sl_estimate_stored_tokens(64, 64));
    assert_int_equal(64, sl_estimate_stored_tokens(65, 64));
    assert_int_equal(4096 + 8192, sl_estimate_stored_tokens(3 * 4096, 4096));
    const uint64_t windows[] = {64, 128, 448, 1024, 1408, 2048, 4096, 8192, 1 << 20};
    uint32_t seed = 5;
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        for (int i = 0; i < 200; i++) {
            seed = seed * 1664525u + 1013904223u;
            uint64_t prompt = seed >> (8 + i % 16);
            assert_int_equal(stored_by_walk(prompt, windows[w]), sl_estimate_stored_tokens(prompt, windows[w]));
        }
    }
    /* a million tokens by segments: 4096 * (0 + 1 + ... + 255) */
    assert_int_equal(UINT64_C(4096) * 255 * 256 / 2, sl_estimate_stored_tokens(1 << 20, 4096));
}

/* Where the sum does not fit 64 bits it stays large: more tokens are never less. */
static void no_number_of_tokens_wraps(void **unused)
{
    (void)unused;
    for (uint64_t window = 64; window <= 4096; window *= 8) {
        uint64_t before = 0;
        for (int half_bits = 20; half_bits <= 80; half_bits++) {
            uint64_t n = (half_bits % 2 ? UINT64_C(3) : UINT64_C(2)) << (half_bits / 2 - 1);
            uint64_t stored = sl_estimate_stored_tokens(n, window);
            if (stored < before)
                fail_msg("%llu tokens: %llu after %llu", (unsigned long long)n, (unsigned long long)stored,
                         (unsigned long long)before);
            before = stored;
        }
    }
}

static void times_between_and_beyond_the_points(void **unused)
{
    (void)unused;
    /* a key takes 1, 1, 2, 8, 32 microseconds at 1, 4, 16, 64, 256 rows */
    const double keys[SL_ATTN_POINTS] = {1e6, 1e6, 5e5, 125e3, 31250};
    assert_near(1.0, sl_estimate_attn_s(keys, 1e6, 1));
    assert_near(1.0, sl_estimate_attn_s(keys, 1e6, 3));
    assert_near(1.5, sl_estimate_attn_s(keys, 1e6, 10));
    assert_near(8.0, sl_estimate_attn_s(keys, 1e6, 64));
    assert_near(20.0, sl_estimate_attn_s(keys, 1e6, 160));
    assert_near(32.0 * 16, sl_estimate_attn_s(keys, 1e6, 4096));
    const double noisy[SL_ATTN_POINTS] = {1e6, 2e6, 2e6, 2e6, 5e5}; /* more rows in less time: not believed */
    assert_near(1.0, sl_estimate_attn_s(noisy, 1e6, 64));
    assert_near(1.5, sl_estimate_attn_s(noisy, 1e6, 160));
    const double missing[SL_ATTN_POINTS] = {1e6, 0.0, 1e6, 1e6, 1e6};
    assert_true(sl_estimate_attn_s(missing, 1e6, 1) == 0.0);

    /* 1e9 a second one at a time, 4e9 in sixteens, 8e9 in 128s: 1, 4 and 16 seconds */
    const double madds[SL_GEMM_POINTS] = {1e9, 4e9, 8e9};
    assert_near(1.0, sl_estimate_madds_s(madds, 1e9, 1));
    assert_near(4.0, sl_estimate_madds_s(madds, 1e9, 16));
    assert_near(10.0, sl_estimate_madds_s(madds, 1e9, 72));
    assert_near(64.0, sl_estimate_madds_s(madds, 1e9, 512));
}

/* Two layers; a row's key costs a microsecond, a madd a nanosecond, whatever the rows. 8,192 tokens of 100 bytes, a
 * quarter of which is held while reading and half while answering. */
typedef struct sample {
    sl_hparams hp;
    sl_model_work work;
    sl_plan plan;
    sl_machine_rates rates;
    sl_io_profile io;
    sl_estimate_input in;
} sample;

static void sample_init(sample *s)
{
    memset(s, 0, sizeof *s);
    s->hp.n_layers = 2;
    s->work.pass_bytes = 180800;
    s->work.madds[SL_WTYPE_Q8_0] = 3e6;
    s->work.madds[SL_WTYPE_F32] = 1e6;
    s->work.logit_type = SL_WTYPE_F16;
    s->work.logit_madds = 2e6;
    s->plan = (sl_plan){.kv_bytes = 819200, .kv_token_bytes = 100, .resident_bytes = 204800,
                        .decode_resident_bytes = 409600, .window_tokens = 4096, .max_tokens = 8192};
    for (size_t i = 0; i < SL_ATTN_POINTS; i++)
        s->rates.keys[SL_KV_TYPE_Q8_0][i] = 1e6 / (double)sl_attn_point_rows[i];
    const sl_wtype types[] = {SL_WTYPE_Q8_0, SL_WTYPE_F32, SL_WTYPE_F16};
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < SL_GEMM_POINTS; i++)
            s->rates.madds[types[t]][i] = 1e9;
    s->rates.memory = 1e6;
    s->io = (sl_io_profile){1 << 20, 8 << 20, 1e4, 1e5, true, true};
    s->in = (sl_estimate_input){&s->hp, &s->work, &s->plan, &s->rates, &s->io, SL_KV_TYPE_Q8_0, 8192, 10, 0, false, 0,
                                false};
}

/* 4,096 tokens of a file and as many on top of them. */
static void on_top_of_a_file(void **unused)
{
    (void)unused;
    sample s;
    sample_init(&s);
    s.in.prompt_tokens = s.in.stored_tokens = 4096;
    sl_estimate e;
    sl_estimate_make(&s.in, &e);
    double attention = (4096.0 * 4097.0 / 2 + 4096.0 * 32 + 4096.0 * 4096.0) * 2 * 1e-6;
    assert_near(attention + 4096 * 4e6 * 1e-9, e.prefill_compute_s);
    assert_int_equal(4096 * 75, e.read_bytes_prefill); /* by one window */
    assert_int_equal(4096 * 75, e.written_bytes);
    s.in.stored_tokens = 4096 + 1023; /* an open part is written again */
    sl_estimate_make(&s.in, &e);
    assert_int_equal(4096 * 75, e.written_bytes);
    s.in.keeps = true;
    sl_estimate_make(&s.in, &e);
    assert_int_equal(4096 * 100, e.written_bytes); /* what stays in memory, too */
    assert_near(4096 * 100 / 1e5, e.prefill_write_s);
}

static void every_figure_by_hand(void **unused)
{
    (void)unused;
    sample s;
    sample_init(&s);
    sl_estimate e;
    sl_estimate_make(&s.in, &e);
    /* 8192 * 8193 / 2 keys and half a tile for each row, two layers; 4 and 0 million madds a row */
    double attention = (8192.0 * 8193.0 / 2 + 8192.0 * 32) * 2 * 1e-6, projections = 8192 * 4e6 * 1e-9;
    assert_near(attention + projections, e.prefill_compute_s);
    /* the second window finds 4,096 tokens, three quarters of them on flash */
    assert_int_equal(4096 * 75, e.read_bytes_prefill);
    assert_near(4096 * 75 / 1e4, e.prefill_read_s);
    assert_near(8192 * 75 / 1e5, e.prefill_write_s);
    assert_int_equal(819200 - 204800, e.written_bytes);
    assert_near(attention + projections + 6.144, e.prefill_s); /* computing outlasts reading */
    assert_near(e.prefill_s + 2e-3, e.first_token_s);
    assert_int_equal(409600, e.pass_bytes);
    assert_near(40.96, e.pass_disk_s);
    assert_near(1.0, e.pass_memory_s); /* 819,200 of the cache, 180,800 of weights */
    double a_row = 8192 * 2e-6 + 4e-3 + 2e-3;
    assert_near(10 * a_row, e.pass_compute_s);
    assert_near(40.96, e.pass_s);
    assert_int_equal(0, e.crossover_rows); /* 256 rows compute for 5.7 s */
    assert_int_equal(10, e.rows);
    assert_near(1e4, e.disk_read_rate);
    assert_int_equal(32 << 20, e.in_flight_bytes);
    s.in.all_logits = true; /* scoring: 8,192 times 2 ms */
    sl_estimate more;
    sl_estimate_make(&s.in, &more);
    assert_near(e.prefill_compute_s + 8192 * 2e-3, more.prefill_compute_s);
}

static void the_rows_that_outlast_the_disk(void **unused)
{
    (void)unused;
    sample s;
    sample_init(&s);
    sl_estimate e;
    double a_row = 8192 * 2e-6 + 4e-3 + 2e-3; /* 22.384 ms */
    const double rates[] = {409600 / (a_row * 7.5), 409600 / (a_row * 0.5), 409600 / (a_row * 255.5),
                            409600 / (a_row * 256.5)};
    const size_t rows[] = {8, 1, 256, 0};
    for (size_t i = 0; i < 4; i++) {
        s.io.read_rate = rates[i];
        sl_estimate_make(&s.in, &e);
        assert_int_equal(rows[i], e.crossover_rows);
    }
    s.plan.decode_resident_bytes = s.plan.kv_bytes; /* nothing is read: never bound by the disk */
    sl_estimate_make(&s.in, &e);
    assert_int_equal(1, e.crossover_rows);
    assert_int_equal(0, e.pass_bytes);
}

static void a_cap_stands_for_a_faster_disk(void **unused)
{
    (void)unused;
    sample s;
    sample_init(&s);
    sl_estimate e;
    s.in.read_rate = 5000;
    sl_estimate_make(&s.in, &e);
    assert_near(409600 / 5e3, e.pass_disk_s);
    assert_near(1e5, e.disk_write_rate); /* writing is not capped */
    s.in.read_rate = 20000; /* the disk does not reach it */
    sl_estimate_make(&s.in, &e);
    assert_near(409600 / 1e4, e.pass_disk_s);
    s.in.io = NULL; /* nothing is known but the cap */
    sl_estimate_make(&s.in, &e);
    assert_near(409600 / 2e4, e.pass_disk_s);
    assert_true(e.prefill_write_s == 0.0);
}

static void what_is_not_measured_is_left_out(void **unused)
{
    (void)unused;
    sample s;
    sample_init(&s);
    sl_estimate e;
    s.in.io = NULL;
    sl_estimate_make(&s.in, &e);
    assert_true(e.pass_disk_s == 0.0 && e.prefill_read_s == 0.0 && e.disk_read_rate == 0.0);
    assert_near(e.prefill_compute_s, e.prefill_s);
    assert_near(1.0, e.pass_s); /* of memory and computing */
    assert_int_equal(0, e.crossover_rows);
    assert_int_equal(409600, e.pass_bytes); /* sizes need no rate */
    sample_init(&s);
    s.rates.madds[SL_WTYPE_F32][0] = 0.0;
    sl_estimate_make(&s.in, &e);
    assert_true(e.prefill_compute_s == 0.0 && e.prefill_s == 0.0 && e.first_token_s == 0.0);
    assert_near(40.96, e.pass_s);
    memset(&s.plan, 0, sizeof s.plan); /* refused before anything was planned */
    sl_estimate_make(&s.in, &e);
    assert_true(e.pass_s == 0.0 && e.written_bytes == 0);
}

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

static sl_engine *open_engine(uint64_t ram_bytes, bool plan_only)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(path, sizeof path, "%s/sluice-plan-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    tiny_model model = tiny_model_of_seed(3);
    assert_true(tiny_model_write(&model, path));
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

static sl_context_options context_options(size_t prompt_tokens)
{
    return (sl_context_options){.prompt_tokens = prompt_tokens, .predict_tokens = 16, .max_drafts = 7,
                                .io = SL_IO_BUFFERED, .force_context = true}; /* buffered: the disk is not measured */
}

static sl_plan plan_of(sl_engine *engine, const sl_context_options *options, sl_status expected, sl_estimate *estimate)
{
    sl_plan plan;
    sl_err err = {SL_OK, ""};
    assert_int_equal(expected, sl_engine_plan(engine, options, 8, &plan, estimate, &err));
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
        cmocka_unit_test(stored_tokens_as_the_windows_find_them),
        cmocka_unit_test(no_number_of_tokens_wraps),
        cmocka_unit_test(times_between_and_beyond_the_points),
        cmocka_unit_test(every_figure_by_hand),
        cmocka_unit_test(on_top_of_a_file),
        cmocka_unit_test(the_rows_that_outlast_the_disk),
        cmocka_unit_test(a_cap_stands_for_a_faster_disk),
        cmocka_unit_test(what_is_not_measured_is_left_out),
        cmocka_unit_test(rates_of_every_type_are_rates),
        cmocka_unit_test(more_rows_take_longer),
        cmocka_unit_test(too_little_memory_is_refused),
        cmocka_unit_test(a_plan_without_weights_is_the_plan),
        cmocka_unit_test(a_refusal_comes_with_times),
        cmocka_unit_test(the_ring_holds_what_is_in_flight),
        cmocka_unit_test(an_estimate_needs_measuring_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
