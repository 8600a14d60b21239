/* Faults seen from a session: memory and file fail at the n-th call, weights give what is not a number. Each ends in
 * the right status with a named cause; nothing leaks, nothing hangs; without a fault the text is as ever. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/effort.h"
#include "common/fault_vfs.h"
#include "common/tiny_run.h"

enum { N_PROMPT = EFFORT_IS_SMALL ? 600 : 1500, N_PREDICT = 12 };

static int32_t prompt[N_PROMPT];
static sl_io_engine engine; /* of the sessions to come */
static const tiny_ways streamed = {2, N_PROMPT / 3 / 64 * 64, 2, 1, 20, 3, SL_CPU_LEVEL_REF};

static size_t n_warnings;

static void note_line(void *arg, sl_log_level level, const char *text)
{
    (void)arg;
    (void)text;
    n_warnings += level == SL_LOG_LEVEL_WARNING;
}

typedef struct drawn {
    int32_t ids[N_PREDICT];
    size_t n;
    const char *io_mode; /* at the end */
    sl_budget *fail; /* its next allocation fails from the fourth token on; NULL: no */
} drawn;

static bool note_token(void *arg, int32_t id)
{
    drawn *d = arg;
    d->ids[d->n++] = id;
    if (d->fail && d->n == 4)
        d->fail->fail_in = 1;
    return true;
}

static const int32_t bias_id = 40;
static const float bias_value = 0.5f;

/* Everything from the session on; what is made is destroyed again. */
static sl_status run_all(tiny_run *run, const sl_vfs *vfs, drawn *out, sl_err *err)
{
    sl_pool *pool = NULL;
    sl_session *session = NULL;
    out->n = 0;
    sl_status status = sl_pool_create(streamed.threads, &run->budget, &pool, err);
    if (status != SL_OK)
        return status;
    sl_session_options options =
        tiny_session_options(run, SL_KV_TYPE_Q8_0, &streamed, N_PROMPT + N_PREDICT, pool);
    options.kv.vfs = vfs;
    options.kv.io_engine = engine;
    options.kv.log.fn = note_line;
    n_warnings = 0;
    status = sl_session_create(&options, &session, err);
    if (status == SL_OK)
        status = sl_session_feed(session, prompt, N_PROMPT, NULL, err);
    const sl_generate_options generate = {
        .sampling = {.temp = 0.9f, .top_p = 1.0f, .seed = 3, .penalty_last_n = -1, .presence_penalty = 0.1f,
                     .bias_ids = &bias_id, .bias_values = &bias_value, .n_bias = 1},
        .n_predict = N_PREDICT,
        .n_context = N_PROMPT + N_PREDICT,
        .max_drafts = streamed.max_drafts,
        .token = note_token,
        .arg = out,
    };
    sl_generate_result result;
    if (status == SL_OK)
        status = sl_session_generate(session, &generate, &result, err);
    if (session) {
        sl_kv_stats stats;
        sl_kv_get_stats(sl_session_kv(session), &stats);
        out->io_mode = stats.io_mode;
    }
    tiny_session_end(session, pool);
    return status;
}

static void open_model(tiny_run *run)
{
    tiny_model model = tiny_model_of_seed(21);
    tiny_run_open(run, &model, sl_cpu_best());
    for (size_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 3 + (int32_t)((i * i + 7 * i) % 256);
}

static void memory_fails_at_every_place(void **unused)
{
    (void)unused;
    tiny_run run;
    open_model(&run);
    uint64_t used = run.budget.used_bytes;
    drawn plain = {.n = 0}, got = {.n = 0};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_OK, run_all(&run, NULL, &plain, &err));
    for (int64_t n = 1;; n++) {
        run.budget.fail_in = n;
        sl_status status = run_all(&run, NULL, &got, &err);
        assert_int_equal(used, run.budget.used_bytes);
        if (run.budget.fail_in > 0) { /* fewer allocations than n: all went well */
            assert_int_equal(SL_OK, status);
            assert_true(n > 20);
            break;
        }
        assert_int_equal(SL_FAILED, status);
        assert_non_null(strstr(err.text, "out of memory"));
    }
    run.budget.fail_in = 0;
    assert_memory_equal(plain.ids, got.ids, sizeof plain.ids);
    tiny_run_close(&run);
}

static void a_drawn_token_allocates_nothing(void **unused)
{
    (void)unused;
    tiny_run run;
    open_model(&run);
    drawn got = {.n = 0, .fail = &run.budget};
    sl_err err = {SL_OK, ""};
    if (run_all(&run, NULL, &got, &err) != SL_OK)
        fail_msg("an allocation after the fourth token: %s", err.text);
    assert_int_equal(1, run.budget.fail_in); /* nobody asked */
    run.budget.fail_in = 0;
    tiny_run_close(&run);
}

/* The n-th transfer fails, for every n until the run passes. */
static void transfers_fail(tiny_run *run, fault_kind kind, int code, sl_status want, const char *word)
{
    drawn plain = {.n = 0}, got = {.n = 0};
    sl_err err = {SL_OK, ""};
    uint64_t used = run->budget.used_bytes;
    assert_int_equal(SL_OK, run_all(run, NULL, &plain, &err));
    uint64_t step = EFFORT_IS_SMALL ? 17 : 1;
    for (uint64_t n = 1;; n += step) {
        fault_vfs fault;
        fault_vfs_init(&fault, kind, code, n);
        engine = n % 2 ? SL_IO_ENGINE_AUTO : SL_IO_ENGINE_POOL;
        sl_status status = run_all(run, &fault.vfs, &got, &err);
        assert_int_equal(used, run->budget.used_bytes);
        assert_int_equal(0, fault.n_open);
        if (fault.n_hits == 0) {
            assert_int_equal(SL_OK, status);
            assert_true(n > 3);
            break;
        }
        /* A fault in what was read ahead and never used harms nothing. */
        if (status == SL_OK) {
            assert_memory_equal(plain.ids, got.ids, sizeof plain.ids);
            continue;
        }
        assert_int_equal(want, status);
        if (!strstr(err.text, word))
            fail_msg("'%s' expected in: %s", word, err.text);
    }
}

static void files_fail_at_every_place(void **unused)
{
    (void)unused;
    tiny_run run;
    open_model(&run);
    transfers_fail(&run, FAULT_READ, EIO, SL_FAILED, "Input/output error");
    transfers_fail(&run, FAULT_WRITE, ENOSPC, SL_FAILED, "No space left");
    transfers_fail(&run, FAULT_FLIPPED_BIT, 0, SL_DAMAGED, "offset");
    tiny_run_close(&run);
}

/* Faults that a whole transfer gets over: the text is as ever. */
static void what_passes_leaves_the_text(void **unused)
{
    (void)unused;
    static const struct {
        fault_kind kind;
        int code;
        uint64_t n_in_row;
    } faults[] = {
        {FAULT_SHORT_READ, 0, 9},     {FAULT_SHORT_WRITE, 0, 9},       {FAULT_READ, EINTR, 5},
        {FAULT_READ, EAGAIN, 5},      {FAULT_WRITE, EINTR, 5},         {FAULT_WRITE, EAGAIN, 5},
        {FAULT_AIO_OPEN, ENOSYS, 0},  {FAULT_AIO_OPEN, EPERM, 0},      {FAULT_AIO_REGISTER, ENOMEM, 0},
        {FAULT_AIO_SHUFFLED, 0, 0},   {FAULT_AIO_START, EAGAIN, 5},    {FAULT_AIO_FEW_STARTED, 0, 1 << 20},
        {FAULT_AIO_WAIT, EINTR, 5},
    };
    tiny_run run;
    open_model(&run);
    drawn plain = {.n = 0}, got = {.n = 0};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_OK, run_all(&run, NULL, &plain, &err));
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        for (uint64_t n = 1; n < 60; n += EFFORT_IS_SMALL ? 29 : 13) {
            fault_vfs fault;
            fault_vfs_init(&fault, faults[i].kind, faults[i].code, n);
            fault.n_in_row = faults[i].n_in_row;
            engine = n % 2 ? SL_IO_ENGINE_AUTO : SL_IO_ENGINE_POOL;
            if (run_all(&run, &fault.vfs, &got, &err) != SL_OK)
                fail_msg("fault %zu at %d: %s", i, (int)n, err.text);
            assert_memory_equal(plain.ids, got.ids, sizeof plain.ids);
            assert_int_equal(0, fault.n_open);
            assert_int_equal(0, fault.n_queues);
            if (faults[i].kind <= FAULT_ZERO_WRITE && n == 1)
                assert_true(fault.n_hits > 0);
        }
    }
    tiny_run_close(&run);
}

static void direct_io_refused_anywhere_is_said_once(void **unused)
{
    (void)unused;
    static const fault_kind kinds[] = {FAULT_DIRECT_AT_OPEN, FAULT_DIRECT_AT_WRITE, FAULT_DIRECT_AT_READ,
                                       FAULT_SILENTLY_CACHED};
    tiny_run run;
    open_model(&run);
    drawn plain = {.n = 0}, got = {.n = 0};
    sl_err err = {SL_OK, ""};
    engine = SL_IO_ENGINE_AUTO;
    assert_int_equal(SL_OK, run_all(&run, NULL, &plain, &err));
    assert_string_equal("direct", plain.io_mode);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        fault_vfs fault;
        fault_vfs_init(&fault, kinds[i], EINVAL, 1);
        fault.n_in_row = UINT64_MAX / 2;
        engine = i % 2 ? SL_IO_ENGINE_AUTO : SL_IO_ENGINE_POOL;
        if (run_all(&run, &fault.vfs, &got, &err) != SL_OK)
            fail_msg("refusal %zu: %s", i, err.text);
        assert_memory_equal(plain.ids, got.ids, sizeof plain.ids);
        assert_string_equal("buffered", got.io_mode);
        assert_int_equal(1, n_warnings);
    }
    tiny_run_close(&run);
}

/* From the n-th call on, for ever: an end with a name, not a hang. */
static void what_stays_is_named(void **unused)
{
    (void)unused;
    static const struct {
        fault_kind kind;
        int code;
        const char *word;
    } faults[] = {
        {FAULT_READ, EIO, "Input/output error"},
        {FAULT_READ, EAGAIN, "temporarily unavailable"},
        {FAULT_READ, EINTR, "Interrupted"},
        {FAULT_ZERO_READ, 0, "the file ends there"},
        {FAULT_WRITE, ENOSPC, "No space left"},
        {FAULT_WRITE, EAGAIN, "temporarily unavailable"},
        {FAULT_ZERO_WRITE, 0, "takes no more"},
    };
    tiny_run run;
    open_model(&run);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        for (uint64_t n = 1; n < 8; n += 3) {
            fault_vfs fault;
            drawn got = {.n = 0};
            sl_err err = {SL_OK, ""};
            fault_vfs_init(&fault, faults[i].kind, faults[i].code, n);
            fault.n_in_row = UINT64_MAX / 2;
            engine = n % 2 ? SL_IO_ENGINE_AUTO : SL_IO_ENGINE_POOL;
            uint64_t used = run.budget.used_bytes;
            assert_int_equal(SL_FAILED, run_all(&run, &fault.vfs, &got, &err));
            if (!strstr(err.text, faults[i].word) || !strstr(err.text, "offset"))
                fail_msg("'%s' and an offset expected in: %s", faults[i].word, err.text);
            assert_int_equal(used, run.budget.used_bytes);
            assert_int_equal(0, fault.n_open);
            assert_int_equal(0, fault.n_queues);
        }
    }
    tiny_run_close(&run);
}

static void expect_named(tiny_run *run, const char *layer)
{
    drawn got = {.n = 0};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_FAILED, run_all(run, NULL, &got, &err));
    assert_non_null(strstr(err.text, layer));
    assert_non_null(strstr(err.text, "position 0"));
    assert_int_equal(0, got.n);
}

static void what_is_no_number_ends_the_run(void **unused)
{
    (void)unused;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e38f};
    tiny_run run;
    open_model(&run);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float *norms[] = {&run.weights->layers[1].attn_norm[5], &run.weights->layers[0].ffn_norm[0]};
        for (size_t k = 0; k < 2; k++) {
            float good = *norms[k];
            *norms[k] = bad[i];
            expect_named(&run, k == 0 ? "layer 1" : "layer 0");
            *norms[k] = good;
        }
    }
    run.weights->output_norm[3] = NAN;
    drawn got = {.n = 0};
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_FAILED, run_all(&run, NULL, &got, &err));
    char want[64];
    snprintf(want, sizeof want, "logits are not finite: position %d", N_PROMPT - 1);
    assert_non_null(strstr(err.text, want));
    tiny_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_fails_at_every_place),
        cmocka_unit_test(a_drawn_token_allocates_nothing),
        cmocka_unit_test(files_fail_at_every_place),
        cmocka_unit_test(what_passes_leaves_the_text),
        cmocka_unit_test(direct_io_refused_anywhere_is_said_once),
        cmocka_unit_test(what_stays_is_named),
        cmocka_unit_test(what_is_no_number_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
