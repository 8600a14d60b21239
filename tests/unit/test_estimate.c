/* Estimates: the arithmetic by hand values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <sluice/sluice.h>

#include "api/estimate.h"
#include "model/arch.h"
#include "store/geom.h"

static void assert_near(double expected, double found)
{
    if (!(fabs(found - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.17g, expected %.17g", found, expected);
}

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

/* The same of a layer that slides: a walk begins with the part that the span of a window's first row begins in. */
static uint64_t slid_by_walk(uint64_t prompt, uint64_t window, uint64_t span)
{
    uint64_t sum = 0;
    for (uint64_t pos = 0; pos < prompt;) {
        uint64_t rows = window, edge = SL_SEGMENT_TOKENS - pos % SL_SEGMENT_TOKENS;
        if (edge < rows)
            rows = edge;
        if (rows > prompt - pos)
            rows = prompt - pos;
        uint64_t first_seen = pos + 1 > span ? pos + 1 - span : 0;
        sum += pos - first_seen / SL_PART_TOKENS * SL_PART_TOKENS;
        pos += rows;
    }
    return sum;
}

static void a_sliding_layer_is_walked_from_its_span_on(void **unused)
{
    (void)unused;
    assert_int_equal(0, sl_estimate_slid_tokens(4096, 4096, 512));
    assert_int_equal(1024, sl_estimate_slid_tokens(4097, 4096, 512)); /* its span begins at token 3,585 */
    assert_int_equal(1024 + 1024, sl_estimate_slid_tokens(3 * 4096, 4096, 512));
    assert_int_equal(2048, sl_estimate_slid_tokens(4097, 4096, 2049)); /* at token 2,048, */
    assert_int_equal(3072, sl_estimate_slid_tokens(4097, 4096, 2050)); /* at 2,047 */
    assert_int_equal(2048, sl_estimate_slid_tokens(4097, 4096, 1026));
    const uint64_t windows[] = {64, 448, 1024, 4096, 8192};
    const uint64_t spans[] = {1, 64, 512, 1024, 1025, 4095, 4096, 4097, 9000, 60000};
    uint32_t seed = 7;
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++)
        for (size_t s = 0; s < sizeof spans / sizeof spans[0]; s++)
            for (int i = 0; i < 60; i++) {
                seed = seed * 1664525u + 1013904223u;
                uint64_t prompt = seed >> (12 + i % 12);
                assert_int_equal(slid_by_walk(prompt, windows[w], spans[s]),
                                 sl_estimate_slid_tokens(prompt, windows[w], spans[s]));
            }
    assert_int_equal(sl_estimate_stored_tokens(99999, 64), sl_estimate_slid_tokens(99999, 64, 0));
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
    s->plan = (sl_plan){.kv_bytes = 819200, .kept_bytes = 819200, .kv_token_bytes = 100, .resident_bytes = 204800,
                        .decode_resident_bytes = 409600, .window_tokens = 4096, .max_tokens = 8192,
                        .walked_bytes = 819200, .answer_bytes = 819200};
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

/* Gemma 3's pattern: of 12 layers two see all, ten their last 512 tokens. 8,192 tokens of 1,200 bytes, 7,168 of which
 * are fed: the answer sees two layers whole and of ten the parts from token 6,144 on. */
static void what_slides_is_not_counted_whole(void **unused)
{
    (void)unused;
    sample s;
    sample_init(&s);
    s.hp.arch = sl_arch_find("gemma3", 6);
    s.hp.n_layers = 12;
    s.hp.sliding_span = 512;
    s.in.prompt_tokens = 7168;
    uint64_t whole = 2 * 8192 * 100, end = 10 * 1024 * 100, answer = whole + 10 * 2048 * 100;
    s.plan = (sl_plan){.kv_bytes = 8192 * 1200, .kept_bytes = 8192 * 1200, .kv_token_bytes = 1200,
                       .walked_bytes = whole + end, .answer_bytes = answer, .window_tokens = 4096, .max_tokens = 8192};
    s.plan.resident_bytes = s.plan.decode_resident_bytes = answer / 4;
    sl_estimate e;
    sl_estimate_make(&s.in, &e);
    /* the second window begins at 4,096: two layers are read whole, three quarters of them from flash; of ten the part
     * before, which is not for memory */
    assert_int_equal(4096 * 200 * 3 / 4 + 1024 * 1000, e.read_bytes_prefill);
    assert_int_equal((whole + end) * 3 / 4, e.pass_bytes);
    assert_near((double)(whole + end + 180800) / 1e6, e.pass_memory_s);
    assert_near(10 * ((2 * 8192.0 + 10 * 576.0) * 1e-6 + 6e-3), e.pass_compute_s);
    double seen = 7168.0 * 7169.0 / 2 + 7168 * 32, slid = 512.0 * 513 / 2 + 6656.0 * 512 + 7168 * 32 + 6656 * 32;
    assert_near((2 * seen + 10 * slid) * 1e-6 + 7168 * 4e-3, e.prefill_compute_s);
    assert_int_equal(8192 * 1200 - answer / 4, e.written_bytes);
    /* half of what no answer sees in memory, too */
    s.plan.resident_bytes = s.plan.decode_resident_bytes = answer + (s.plan.kv_bytes - answer) / 2;
    sl_estimate_make(&s.in, &e);
    assert_int_equal(1024 * 1000 / 2, e.read_bytes_prefill);
    assert_int_equal(0, e.pass_bytes);
    s.plan.resident_bytes = s.plan.kv_bytes;
    sl_estimate_make(&s.in, &e);
    assert_true(e.read_bytes_prefill == 0 && e.written_bytes == 0);
    /* of what slides only two parts are there at a time: memory for a quarter holds a quarter of what is written */
    s.plan.kept_bytes = s.plan.answer_bytes = answer;
    s.plan.resident_bytes = s.plan.decode_resident_bytes = answer / 4;
    sl_estimate_make(&s.in, &e);
    assert_int_equal(8192 * 1200 * 3 / 4, e.written_bytes);
    assert_int_equal(4096 * 200 * 3 / 4 + 1024 * 1000 * 3 / 4, e.read_bytes_prefill);
    assert_int_equal((whole + end) * 3 / 4, e.pass_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_tokens_as_the_windows_find_them),
        cmocka_unit_test(no_number_of_tokens_wraps),
        cmocka_unit_test(a_sliding_layer_is_walked_from_its_span_on),
        cmocka_unit_test(times_between_and_beyond_the_points),
        cmocka_unit_test(every_figure_by_hand),
        cmocka_unit_test(on_top_of_a_file),
        cmocka_unit_test(the_rows_that_outlast_the_disk),
        cmocka_unit_test(a_cap_stands_for_a_faster_disk),
        cmocka_unit_test(what_is_not_measured_is_left_out),
        cmocka_unit_test(what_slides_is_not_counted_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
