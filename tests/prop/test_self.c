/* The self drafter in sessions: whatever it proposes, the text is that of plain decoding; it stands in the plan; it
 * allocates nothing per token; rewinds, stops and texts that go on leave it right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/effort.h"
#include "common/tiny_run.h"

enum { N_READ = EFFORT_IS_SMALL ? 700 : 2300, N_DRAWN = EFFORT_IS_SMALL ? 40 : 150, MOST = N_READ + 2 * N_DRAWN + 700 };

static int32_t text[MOST];

static void make_text(size_t n_vocab)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < MOST; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text[i] = 3 + (int32_t)(state % (n_vocab - 3));
    }
}

typedef struct way {
    sl_kv_type type;
    float temp;
    size_t drafts, hot_tokens, threads;
    bool talks;
} way;

typedef struct drawn {
    int32_t ids[3 * N_DRAWN];
    size_t n, stop_at; /* stop_at 0: never */
    sl_budget *fail;   /* its next allocation fails from the second token on */
} drawn;

static bool note_token(void *arg, int32_t id)
{
    drawn *d = arg;
    assert_true(d->n < sizeof d->ids / sizeof d->ids[0]);
    d->ids[d->n++] = id;
    if (d->fail && d->n == 2)
        d->fail->fail_in = 1;
    return d->n != d->stop_at;
}

static sl_session *open_session(tiny_run *run, const way *w, sl_pool **pool)
{
    sl_err err = {SL_OK, ""};
    sl_session *session = NULL;
    const tiny_ways ways = {w->threads, 512, 2, 1, 20, w->drafts, 0};
    assert_int_equal(SL_OK, sl_pool_create(w->threads, &run->budget, pool, &err));
    sl_session_options options = tiny_session_options(run, w->type, &ways, MOST, *pool);
    options.ngram = false;
    options.hot_tokens = w->hot_tokens;
    options.talks = w->talks;
    options.kv.resident_bytes = 0;
    const uint64_t before = run->budget.used_bytes;
    const uint64_t ring = options.kv.n_slots * options.kv.slot_bytes;
    if (sl_session_create(&options, &session, &err) != SL_OK)
        fail_msg("session: %s", err.text);
    /* What it takes is what the plan says, the ring and the store's tables aside. */
    assert_in_range(run->budget.used_bytes - before, 1,
                    sl_session_bytes(&options) + ring + sl_kv_table_bytes(&options.kv.geom, MOST) + (1 << 20));
    return session;
}

static const sl_drafter *self_of(const sl_session *session)
{
    size_t n = 0;
    const sl_drafter *drafters = sl_session_drafters(session, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(drafters[i].name, "self") == 0)
            return &drafters[i];
    return NULL;
}

static sl_generate_result generate(sl_session *session, const way *w, size_t n_predict, drawn *d)
{
    sl_err err = {SL_OK, ""};
    const sl_generate_options options = {.sampling = {.temp = w->temp, .top_p = 0.9f, .seed = 7},
                                         .n_predict = n_predict,
                                         .n_context = MOST,
                                         .max_drafts = w->drafts,
                                         .drafter = self_of(session),
                                         .token = note_token,
                                         .arg = d};
    sl_generate_result result;
    if (sl_session_generate(session, &options, &result, &err) != SL_OK)
        fail_msg("generate: %s", err.text);
    return result;
}

static void feed(sl_session *session, size_t from, size_t n)
{
    sl_err err = {SL_OK, ""};
    if (sl_session_feed(session, text + from, n, NULL, &err) != SL_OK)
        fail_msg("feed: %s", err.text);
}

/* Reads, draws, reads, draws, takes back and draws again; or reads and draws. */
static sl_generate_result run_text(tiny_run *run, const way *w, drawn *d)
{
    sl_pool *pool;
    sl_session *session = open_session(run, w, &pool);
    assert_true((self_of(session) != NULL) == (w->hot_tokens > 0 && w->drafts > 0));
    d->n = 0;
    feed(session, 0, N_READ);
    sl_generate_result result = generate(session, w, N_DRAWN, d);
    if (w->talks) {
        sl_err err = {SL_OK, ""};
        feed(session, N_READ, 300);
        assert_int_equal(SL_OK, sl_session_rewind(session, N_READ + N_DRAWN / 2 + 100, &err));
        feed(session, N_READ + 300, 130);
        d->stop_at = d->n + 20;
        generate(session, w, 30, d);
        d->stop_at = 0;
        assert_int_equal(SL_OK, sl_session_rewind(session, N_READ / 2, &err));
        feed(session, 10, 400);
        generate(session, w, 30, d);
    }
    tiny_session_end(session, pool);
    return result;
}

static void the_text_is_that_of_plain_decoding(void **unused)
{
    (void)unused;
    static const way ways[] = {
        {SL_KV_TYPE_Q8_0, 0.0f, 1, 256, 1, false},  {SL_KV_TYPE_F16, 0.0f, 8, 1024, 2, true},
        {SL_KV_TYPE_Q8_0, 0.8f, 16, 512, 3, true},  {SL_KV_TYPE_Q8_0, 0.0f, 63, 4096, 2, true},
        {SL_KV_TYPE_F16, 1.2f, 200, 1024, 2, true}, {SL_KV_TYPE_Q8_0, 0.0f, 7, 1, 2, false},
    };
    tiny_run run;
    tiny_model model = tiny_model_of_seed(5);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i += EFFORT_IS_SMALL ? 2 : 1) {
        static drawn plain, got;
        way w = ways[i], none = ways[i];
        none.drafts = 0;
        none.threads = 1;
        run_text(&run, &none, &plain);
        const sl_generate_result result = run_text(&run, &w, &got);
        assert_int_equal(plain.n, got.n);
        for (size_t t = 0; t < plain.n; t++)
            if (plain.ids[t] != got.ids[t])
                fail_msg("way %zu: token %zu is %d, plain decoding draws %d", i, t, got.ids[t], plain.ids[t]);
        assert_true(result.n_drafted > 0);
        /* A hot set of everything guesses what the model draws, but for rounding. */
        if (w.hot_tokens >= 4096)
            assert_true(result.n_accepted * 10 >= result.n_drafted * 9);
    }
    tiny_run_close(&run);
}

static void a_drawn_token_allocates_nothing(void **unused)
{
    (void)unused;
    tiny_run run;
    tiny_model model = tiny_model_of_seed(5);
    tiny_run_open(&run, &model, sl_cpu_best());
    const way w = {SL_KV_TYPE_Q8_0, 0.7f, 8, 512, 2, false};
    static drawn d;
    d = (drawn){.fail = &run.budget};
    run_text(&run, &w, &d);
    assert_int_equal(1, run.budget.fail_in); /* nobody asked */
    run.budget.fail_in = 0;
    tiny_run_close(&run);
}

/* Every allocation of its making fails once: the right status, nothing left behind. */
static void a_failed_allocation_is_told(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    tiny_run run;
    tiny_model model = tiny_model_of_seed(5);
    tiny_run_open(&run, &model, sl_cpu_best());
    const tiny_ways ways = {1, 256, 2, 1, 0, 8, 0};
    sl_pool *pool;
    assert_int_equal(SL_OK, sl_pool_create(1, &run.budget, &pool, &err));
    sl_session_options options = tiny_session_options(&run, SL_KV_TYPE_Q8_0, &ways, MOST, pool);
    options.hot_tokens = 512;
    const uint64_t before = run.budget.used_bytes;
    for (int64_t n = 1;; n++) {
        sl_session *session = NULL;
        run.budget.fail_in = n;
        const sl_status status = sl_session_create(&options, &session, &err);
        if (status == SL_OK) {
            assert_true(n > 10);
            sl_session_destroy(session);
            break;
        }
        assert_int_equal(SL_FAILED, status);
        assert_non_null(strstr(err.text, "out of memory"));
        assert_int_equal(before, run.budget.used_bytes);
    }
    run.budget.fail_in = 0;
    sl_pool_destroy(pool);
    tiny_run_close(&run);
}

int main(void)
{
    make_text(tiny_model_n_vocab());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_that_of_plain_decoding),
        cmocka_unit_test(a_drawn_token_allocates_nothing),
        cmocka_unit_test(a_failed_allocation_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
