/* Faults in a conversation: memory and file fail at the n-th call. Whatever fails, the session is as it was before the
 * call and goes on to the same text; or it says that it cannot, and is destroyed. Nothing leaks. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/effort.h"
#include "common/fault_vfs.h"
#include "common/tiny_run.h"

enum { N_FIRST = EFFORT_IS_SMALL ? 500 : 1300, N_SECOND = 90, N_PREDICT = 9, N_CUT = N_FIRST - 230, N_TEXTS = 2 };

static int32_t text[N_FIRST + N_SECOND];
static const tiny_ways streamed = {2, 256, 2, 1, 20, 3, SL_CPU_LEVEL_REF};

typedef struct told {
    int32_t ids[N_TEXTS][N_PREDICT];
    size_t n_answers, n_ids;
    size_t n_again;  /* calls that failed and went well the second time */
    bool was_broken; /* a rewind failed: nothing came after it */
} told;

static bool note_token(void *arg, int32_t id)
{
    told *t = arg;
    t->ids[t->n_answers][t->n_ids++] = id;
    return true;
}

static sl_status answer_once(sl_session *session, told *t, sl_err *err)
{
    const sl_generate_options generate = {
        .sampling = {.temp = 0.9f, .top_p = 1.0f, .seed = 3},
        .n_predict = N_PREDICT,
        .n_context = N_FIRST + N_SECOND + N_PREDICT,
        .max_drafts = streamed.max_drafts,
        .token = note_token,
        .arg = t,
    };
    sl_generate_result result;
    t->n_ids = 0;
    return sl_session_generate(session, &generate, &result, err);
}

/* Again, once; an answer as the header says: from the token before. */
static sl_status answer(sl_session *session, told *t, sl_err *err)
{
    const size_t n = sl_session_n_tokens(session);
    sl_status status = answer_once(session, t, err);
    if (status != SL_OK && sl_session_is_whole(session)) {
        const int32_t last = sl_session_ids(session)[n - 1];
        assert_true(sl_session_n_stored(session) >= n);
        assert_int_equal(n + t->n_ids, sl_session_n_tokens(session));
        t->n_again++;
        status = sl_session_rewind(session, n - 1, err);
        if (status == SL_OK)
            status = sl_session_feed(session, &last, 1, NULL, err);
        if (status == SL_OK)
            status = answer_once(session, t, err);
    }
    t->n_answers += status == SL_OK;
    return status;
}

static sl_status feed(sl_session *session, told *t, const int32_t *ids, size_t n, sl_err *err)
{
    const size_t before = sl_session_n_tokens(session);
    sl_status status = sl_session_feed(session, ids, n, NULL, err);
    if (status != SL_OK && sl_session_is_whole(session)) {
        assert_int_equal(before, sl_session_n_tokens(session));
        assert_false(sl_session_has_logits(session));
        t->n_again++;
        status = sl_session_feed(session, ids, n, NULL, err);
    }
    return status;
}

static sl_status converse(tiny_run *run, const sl_vfs *vfs, told *t, sl_err *err)
{
    sl_pool *pool = NULL;
    sl_session *session = NULL;
    memset(t, 0, sizeof *t);
    sl_status status = sl_pool_create(streamed.threads, &run->budget, &pool, err);
    if (status != SL_OK)
        return status;
    sl_session_options options =
        tiny_session_options(run, SL_KV_TYPE_Q8_0, &streamed, N_FIRST + N_SECOND + N_PREDICT, pool);
    options.kv.vfs = vfs;
    options.talks = true;
    status = sl_session_create(&options, &session, err);
    if (status == SL_OK)
        status = feed(session, t, text, N_FIRST, err);
    if (status == SL_OK)
        status = answer(session, t, err);
    if (status == SL_OK)
        status = sl_session_rewind(session, N_CUT, err);
    if (status == SL_OK)
        status = feed(session, t, text + N_FIRST, N_SECOND, err);
    if (status == SL_OK)
        status = answer(session, t, err);
    t->was_broken = session && !sl_session_is_whole(session);
    tiny_session_end(session, pool);
    return status;
}

static void open_model(tiny_run *run)
{
    tiny_model model = tiny_model_of_seed(41);
    tiny_run_open(run, &model, sl_cpu_best());
    for (size_t i = 0; i < N_FIRST + N_SECOND; i++)
        text[i] = 3 + (int32_t)((i * i + 11 * i) % 200);
}

static void expect_same(const told *want, const told *got)
{
    assert_int_equal(N_TEXTS, got->n_answers);
    assert_memory_equal(want->ids, got->ids, sizeof want->ids);
}

static void memory_fails_at_every_place(void **unused)
{
    (void)unused;
    tiny_run run;
    told plain, got;
    sl_err err = {SL_OK, ""};
    size_t n_again = 0;
    open_model(&run);
    const uint64_t used = run.budget.used_bytes;
    assert_int_equal(SL_OK, converse(&run, NULL, &plain, &err));
    for (int64_t n = 1;; n++) {
        run.budget.fail_in = n;
        sl_status status = converse(&run, NULL, &got, &err);
        assert_int_equal(used, run.budget.used_bytes);
        if (status == SL_OK)
            expect_same(&plain, &got);
        else
            assert_non_null(strstr(err.text, "out of memory"));
        n_again += status == SL_OK && got.n_again > 0;
        if (run.budget.fail_in > 0) { /* fewer allocations than n */
            assert_int_equal(SL_OK, status);
            break;
        }
    }
    assert_true(n_again > 5);
    run.budget.fail_in = 0;
    tiny_run_close(&run);
}

static void files_fail_at_every_place(void **unused)
{
    (void)unused;
    static const struct {
        fault_kind kind;
        int code;
    } faults[] = {{FAULT_WRITE, ENOSPC}, {FAULT_READ, EIO}, {FAULT_FLIPPED_BIT, 0}};
    tiny_run run;
    told plain, got;
    sl_err err = {SL_OK, ""};
    open_model(&run);
    const uint64_t used = run.budget.used_bytes;
    assert_int_equal(SL_OK, converse(&run, NULL, &plain, &err));
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        size_t n_again = 0;
        for (uint64_t n = 1;; n += EFFORT_IS_SMALL ? 11 : 3) {
            fault_vfs fault;
            fault_vfs_init(&fault, faults[i].kind, faults[i].code, n);
            sl_status status = converse(&run, &fault.vfs, &got, &err);
            assert_int_equal(used, run.budget.used_bytes);
            assert_int_equal(0, fault.n_open);
            if (status == SL_OK)
                expect_same(&plain, &got);
            else if (!got.was_broken)
                fail_msg("kind %d at %d: %s", (int)faults[i].kind, (int)n, err.text);
            n_again += status == SL_OK && got.n_again > 0;
            if (fault.n_hits == 0)
                break;
        }
        assert_true(n_again > 0);
    }
    tiny_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_fails_at_every_place),
        cmocka_unit_test(files_fail_at_every_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
