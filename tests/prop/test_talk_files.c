/* What a session with questions and answers puts into its context file is what a prefill of the same tokens puts there,
 * byte for byte; given up, it changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/talk_rig.h"

static void append_and_compare(talk *t, const char *other, const tiny_ways *ways, size_t n_question, bool is_stopped)
{
    static int32_t all[TALK_MOST];
    sl_err err = {SL_OK, ""};
    talk_open_file(t, t->path, true);
    talk_open_session(t, ways, true, 0);
    if (n_question > 0) {
        talk_feed(t, n_question, 0);
        talk_answer got = {.most = is_stopped ? 7 : TALK_MOST_DRAWN + 1};
        talk_generate(t, t->session, 23, ways->max_drafts, talk_draw(t, 100), &got);
    }
    talk_must(t, sl_session_keep(t->session, NULL, 0, NULL, &err), &err);
    const size_t n = sl_session_n_tokens(t->session);
    assert_int_equal(n, sl_session_n_stored(t->session));
    memcpy(all, sl_session_ids(t->session), n * sizeof *all);
    assert_true(sl_durable_get(t->durable).is_finished);
    talk_close_session(t);
    talk_prefill_file(t, other, all, n);
    talk_expect_same_files(t, t->path, other);
}

/* A finished file, one with whole last segments, parts and tiles, an unfinished one; one answer after another. */
static void a_file_that_grew_by_answers_equals_a_prefill(void **unused)
{
    (void)unused;
    static const tiny_ways ways[] = {{2, 256, 2, 1, 30, 15, 0}, {1, 64, 2, 1, 0, 0, 0}};
    const size_t sizes[] = {1, 63, 64, 700, 1024, EFFORT_IS_SMALL ? 2048 : 4096, EFFORT_IS_SMALL ? 1999 : 4090};
    static talk t;
    static int32_t ids[TALK_MOST];
    char other[300];
    tiny_run run;
    tiny_model model = tiny_model_of_seed(32);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        talk_start(&t, &run, (sl_kv_type)(i % 2), talk_seed() + i);
        snprintf(other, sizeof other, "%s.other", t.path);
        talk_make_tokens(&t, ids, sizes[i]);
        talk_prefill_file(&t, t.path, ids, sizes[i]);
        t.doing = "nothing appended";
        append_and_compare(&t, other, &ways[i % 2], 0, false);
        t.doing = "an answer appended";
        append_and_compare(&t, other, &ways[i % 2], 1 + (size_t)talk_draw(&t, 100), false);
        t.doing = "and one that was stopped";
        append_and_compare(&t, other, &ways[1 - i % 2], 30, true);
        unlink(t.path);
        unlink(other);
    }
    tiny_run_close(&run);
}

/* Given up before the end: the file holds what it held, and the next one that appends to it makes it whole. */
static void an_append_that_is_given_up_changes_nothing(void **unused)
{
    (void)unused;
    static const tiny_ways ways = {2, 256, 2, 1, 30, 15, 0};
    static talk t;
    static int32_t ids[TALK_MOST];
    char other[300];
    tiny_run run;
    tiny_model model = tiny_model_of_seed(33);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t n = 400; n < 1800; n += EFFORT_IS_SMALL ? 600 : 199) {
        talk_start(&t, &run, (sl_kv_type)(n % 2), talk_seed() + n);
        snprintf(other, sizeof other, "%s.other", t.path);
        talk_make_tokens(&t, ids, n);
        talk_prefill_file(&t, t.path, ids, n);
        talk_prefill_file(&t, other, ids, n);
        talk_open_file(&t, t.path, true);
        talk_open_session(&t, &ways, true, 0);
        talk_feed(&t, 90, 0);
        talk_answer got = {.most = TALK_MOST_DRAWN + 1};
        talk_generate(&t, t.session, 30, 15, 4, &got);
        talk_close_session(&t);
        t.doing = "given up";
        talk_open_file(&t, t.path, false);
        assert_int_equal(n, sl_durable_get(t.durable).n_tokens);
        assert_memory_equal(ids, sl_durable_ids(t.durable), n * sizeof *ids);
        talk_open_session(&t, &ways, false, 0);
        memset(t.hashes, 0, sizeof t.hashes);
        talk_feed(&t, 40, 0);
        talk_ask(&t, 20, 0, 0);
        talk_close_session(&t);
        t.doing = "finished as it was";
        talk_open_file(&t, t.path, true);
        talk_open_session(&t, &ways, true, 0);
        sl_err err = {SL_OK, ""};
        talk_must(&t, sl_session_keep(t.session, NULL, 0, NULL, &err), &err);
        talk_close_session(&t);
        talk_expect_same_files(&t, t.path, other);
        unlink(t.path);
        unlink(other);
    }
    tiny_run_close(&run);
}

/* A prefill that was stopped between two commits: what it had committed goes on with a question and an answer. */
static void an_unfinished_file_takes_an_answer(void **unused)
{
    (void)unused;
    static const tiny_ways ways = {2, 256, 2, 1, 30, 15, 0};
    static talk t;
    static int32_t ids[TALK_MOST];
    char other[300];
    size_t n_committed = 0;
    tiny_run run;
    tiny_model model = tiny_model_of_seed(34);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (long asks = 4; asks < 40; asks += EFFORT_IS_SMALL ? 13 : 5) {
        sl_err err = {SL_OK, ""};
        talk_start(&t, &run, (sl_kv_type)(asks % 2), talk_seed() + (uint64_t)asks);
        snprintf(other, sizeof other, "%s.other", t.path);
        talk_make_tokens(&t, ids, 2300);
        talk_create_file(&t, t.path);
        t.commit_tokens = 192;
        talk_open_session(&t, &ways, true, 0);
        t.asks_left = asks;
        sl_status status = sl_session_keep(t.session, ids, 2300, NULL, &err);
        assert_int_equal(SL_CANCELLED, status);
        assert_false(sl_session_is_whole(t.session) && sl_session_has_logits(t.session));
        const size_t n = (size_t)sl_durable_get(t.durable).n_tokens;
        talk_close_session(&t);
        t.commit_tokens = 0;
        n_committed += n > 0;
        t.doing = "an answer behind what a stopped prefill left";
        if (n > 0)
            append_and_compare(&t, other, &ways, 50, false);
        unlink(t.path);
        unlink(other);
    }
    assert_true(n_committed > 1);
    tiny_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_grew_by_answers_equals_a_prefill),
        cmocka_unit_test(an_append_that_is_given_up_changes_nothing),
        cmocka_unit_test(an_unfinished_file_takes_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
