/* The public API's conversations: order of calls, what a refused or a cancelled one leaves, rewinding, what is counted;
 * a context file that is kept after an answer, and scored behind. */
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

#include "base/hash.h"
#include "common/tiny_model.h"

enum { N_IDS = 1500 };

static char path[256], kv_path[256];
static int32_t ids[N_IDS];
static const sl_draw_options plain_draw = {.top_p = 1.0f, .predict_tokens = 12, .max_drafts = 3};

static sl_engine *open_engine(uint32_t n_context)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(path, sizeof path, "%s/sluice-api-talk-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    snprintf(kv_path, sizeof kv_path, "%s/sluice-api-talk-%ld.kv", dir ? dir : "/var/tmp", (long)getpid());
    tiny_model model = tiny_model_of_seed(6);
    model.n_context = n_context;
    assert_true(tiny_model_write(&model, path));
    const sl_engine_options options = {.model_path = path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 2};
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    sl_status status = sl_engine_open(&options, &engine, &err);
    unlink(path);
    if (status != SL_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < N_IDS; i++)
        ids[i] = 3 + (i * i + 5 * i) % 200;
    return engine;
}

static sl_context *open_context(sl_engine *engine, const sl_context_options *options)
{
    sl_context *context = NULL;
    sl_err err = {SL_OK, ""};
    if (sl_context_create(engine, options, &context, &err) != SL_OK)
        fail_msg("%s", err.text);
    return context;
}

static sl_context_options talk_options(void)
{
    return (sl_context_options){.prompt_tokens = 800, .predict_tokens = 12, .max_drafts = 3, .talk = true};
}

static void feed(sl_context *context, const int32_t *what, size_t n)
{
    sl_err err = {SL_OK, ""};
    if (sl_context_feed(context, what, n, NULL, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
}

static sl_draw_result answer(sl_context *context)
{
    sl_err err = {SL_OK, ""};
    sl_draw_result result;
    if (sl_context_generate(context, &plain_draw, &result, &err) != SL_OK)
        fail_msg("%s", err.text);
    return result;
}

static void a_talk_has_its_order(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    sl_draw_result result;
    sl_engine *engine = open_engine(8192);
    const sl_context_options options = talk_options();
    sl_context *context = open_context(engine, &options);
    assert_int_equal(0, sl_context_n_tokens(context));
    assert_int_equal(SL_OK, sl_context_settle(context, &err));
    assert_int_equal(SL_USAGE, sl_context_rewind(context, 1, &err));
    assert_int_equal(SL_USAGE, sl_context_generate(context, &plain_draw, &result, &err));
    feed(context, ids, 200);
    size_t n_drawn = answer(context).n_tokens;
    assert_int_equal(200 + n_drawn, sl_context_n_tokens(context));
    assert_memory_equal(ids, sl_context_ids(context), 200 * sizeof *ids);
    assert_int_equal(SL_USAGE, sl_context_generate(context, &plain_draw, &result, &err));
    assert_int_equal(SL_OK, sl_context_settle(context, &err));
    n_drawn += answer(context).n_tokens; /* it goes on where it was */
    feed(context, ids + 200, 5);
    assert_int_equal(205 + n_drawn, sl_context_n_tokens(context));
    assert_int_equal(SL_USAGE, sl_context_rewind(context, 206 + n_drawn, &err));
    assert_non_null(strstr(err.text, "expected 1 to"));
    assert_int_equal(SL_USAGE, sl_context_rewind(context, 0, &err));
    answer(context); /* what was refused has changed nothing */
    assert_int_equal(SL_OK, sl_context_rewind(context, 150, &err));
    assert_int_equal(150, sl_context_n_tokens(context));
    assert_int_equal(SL_USAGE, sl_context_generate(context, &plain_draw, &result, &err));
    assert_non_null(strstr(err.text, "drawn from"));
    assert_int_equal(SL_OK, sl_context_settle(context, &err)); /* nothing to do, and no logits come of it */
    assert_int_equal(SL_USAGE, sl_context_generate(context, &plain_draw, &result, &err));
    feed(context, ids, 1);
    answer(context);
    assert_int_equal(SL_USAGE, sl_context_keep(context, NULL, 0, NULL, NULL, &err));
    const int32_t bad[1] = {1 << 20};
    assert_int_equal(SL_USAGE, sl_context_feed(context, bad, 1, NULL, NULL, &err));
    feed(context, ids, 1);
    sl_context_destroy(context);

    sl_context_options once = options;
    once.talk = false;
    context = open_context(engine, &once);
    feed(context, ids, 20);
    assert_int_equal(SL_USAGE, sl_context_settle(context, &err));
    assert_int_equal(SL_USAGE, sl_context_rewind(context, 10, &err));
    answer(context);
    assert_int_equal(SL_USAGE, sl_context_settle(context, &err));
    assert_int_equal(SL_USAGE, sl_context_feed(context, ids, 1, NULL, NULL, &err));
    sl_context_destroy(context);
    sl_engine_close(engine);
}

static void what_does_not_fit_is_refused_and_the_talk_goes_on(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    sl_engine *engine = open_engine(300);
    sl_context_options options = talk_options();
    options.prompt_tokens = 100000; /* more than the model was trained for: what that leaves */
    sl_plan plan;
    sl_context *context = open_context(engine, &options);
    sl_context_get_plan(context, &plan);
    assert_int_equal(300, plan.max_tokens);
    assert_int_equal(plan.resident_bytes, plan.decode_resident_bytes);
    feed(context, ids, 290);
    assert_int_equal(SL_REFUSED, sl_context_feed(context, ids, 11, NULL, NULL, &err));
    assert_non_null(strstr(err.text, "context is full"));
    sl_draw_result result = answer(context); /* the logits are still there */
    assert_int_equal(SL_FINISH_REASON_CONTEXT, result.reason);
    assert_int_equal(10, result.n_tokens);
    assert_int_equal(SL_REFUSED, sl_context_feed(context, ids, 1, NULL, NULL, &err));
    assert_int_equal(SL_OK, sl_context_settle(context, &err));
    assert_int_equal(SL_OK, sl_context_rewind(context, 100, &err));
    feed(context, ids, 50);
    answer(context);
    sl_context_destroy(context);
    sl_engine_close(engine);
}

typedef struct stopper {
    long asks_left; /* 0: yes from now on; negative: never */
} stopper;

static bool stops(void *arg)
{
    stopper *s = arg;
    if (s->asks_left > 0)
        s->asks_left--;
    return s->asks_left == 0;
}

static void what_is_cancelled_can_be_taken_up_again(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    sl_engine *engine = open_engine(8192);
    stopper stop = {-1};
    sl_context_options options = talk_options();
    options.stop = stops;
    options.arg = &stop;
    for (long asks = 1; asks < 7; asks++) {
        sl_context *context = open_context(engine, &options);
        stop.asks_left = -1;
        feed(context, ids, 100);
        size_t n = 100 + answer(context).n_tokens;
        stop.asks_left = asks;
        sl_status status = sl_context_feed(context, ids, 300, NULL, NULL, &err);
        if (stop.asks_left == 0) {
            assert_int_equal(SL_CANCELLED, status);
            assert_int_equal(n, sl_context_n_tokens(context));
            stop.asks_left = -1;
            assert_int_equal(SL_OK, sl_context_rewind(context, 50, &err));
            feed(context, ids, 300);
        }
        stop.asks_left = asks;
        sl_draw_result result = answer(context);
        if (stop.asks_left == 0)
            assert_int_equal(SL_FINISH_REASON_CANCELLED, result.reason);
        stop.asks_left = -1;
        feed(context, ids, 3);
        answer(context);
        sl_context_destroy(context);
    }
    sl_engine_close(engine);
}

static void answers_add_up(void **unused)
{
    (void)unused;
    sl_engine *engine = open_engine(8192);
    const sl_context_options options = talk_options();
    sl_context *context = open_context(engine, &options);
    sl_stats stats;
    size_t n_drawn = 0, n_passes = 0;
    for (int turn = 0; turn < 4; turn++) {
        feed(context, ids + 70 * turn, 70);
        n_drawn += answer(context).n_tokens;
        sl_context_get_stats(context, &stats);
        assert_int_equal(n_drawn, stats.n_tokens);
        assert_int_equal(70 * (turn + 1), stats.prompt_tokens);
        assert_true(stats.n_passes >= n_passes && stats.n_rows >= stats.n_passes);
        n_passes = stats.n_passes;
    }
    assert_true(stats.n_windows >= 4 && stats.prefill_s > 0.0 && stats.decode_s > 0.0);
    sl_context_destroy(context);
    sl_engine_close(engine);
}

/* ------------------------------------------------------------------------------------------------- context files */

static sl_store *make_file(sl_engine *engine, size_t n)
{
    sl_err err = {SL_OK, ""};
    sl_context_options options = {.prompt_tokens = n, .keep = true, .allow_ram_dir = true};
    sl_store *store = NULL;
    unlink(kv_path);
    if (sl_store_create(engine, kv_path, &options, &store, &err) != SL_OK)
        fail_msg("%s", err.text);
    options.store = store;
    sl_context *context = open_context(engine, &options);
    assert_int_equal(SL_OK, sl_context_keep(context, ids, n, NULL, NULL, &err));
    sl_context_destroy(context);
    return store;
}

static sl_store *open_file(sl_engine *engine, bool for_writing, uint64_t more_tokens)
{
    sl_err err = {SL_OK, ""};
    const sl_store_options options = {.path = kv_path, .for_writing = for_writing, .more_tokens = more_tokens};
    sl_store *store = NULL;
    if (sl_store_open(engine, &options, &store, &err) != SL_OK)
        fail_msg("%s", err.text);
    return store;
}

static void an_answer_is_kept_in_its_file(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    sl_engine *engine = open_engine(8192);
    sl_store_close(make_file(engine, 1100));
    sl_context_options options = talk_options();
    options.prompt_tokens = 30;
    options.keep = true;
    options.allow_ram_dir = true;
    sl_context *context = NULL;
    options.store = open_file(engine, true, 42);
    assert_int_equal(SL_USAGE, sl_context_create(engine, &options, &context, &err)); /* talk and keep */
    options.talk = false;
    options.store_tokens = 100;
    assert_int_equal(SL_USAGE, sl_context_create(engine, &options, &context, &err));
    options.store_tokens = 0;
    options.prompt_tokens = 5000;
    assert_int_equal(SL_USAGE, sl_context_create(engine, &options, &context, &err));
    /* as far as the file's segments go, and 42 */
    assert_non_null(strstr(err.text, "opened for 4138 tokens, 6112 are planned"));
    options.prompt_tokens = 30;
    context = open_context(engine, &options);
    feed(context, ids + 1100, 20);
    size_t n = 1120 + answer(context).n_tokens;
    assert_int_equal(SL_USAGE, sl_context_rewind(context, 1000, &err));
    assert_int_equal(SL_OK, sl_context_keep(context, ids + 1120, 4, NULL, NULL, &err));
    n += 4;
    assert_int_equal(SL_USAGE, sl_context_feed(context, ids, 1, NULL, NULL, &err));
    sl_store_info info;
    sl_store_get_info(options.store, &info);
    assert_int_equal(n, info.n_tokens);
    assert_true(info.is_finished);
    assert_memory_equal(sl_context_ids(context), info.ids, n * sizeof *ids);
    sl_context_destroy(context);
    sl_store_close(options.store);
    options.store = open_file(engine, false, 0);
    assert_int_equal(SL_USAGE, sl_context_create(engine, &options, &context, &err));
    assert_non_null(strstr(err.text, "not opened for writing"));
    sl_store_close(options.store);
    unlink(kv_path);
    sl_engine_close(engine);
}

typedef struct scored {
    uint64_t hashes[N_IDS];
    float next[N_IDS];
    uint64_t first;
    size_t n;
} scored;

static bool note_row(void *arg, const sl_score *score)
{
    scored *s = arg;
    if (s->n == 0)
        s->first = score->position;
    assert_int_equal(s->first + s->n, score->position);
    assert_int_equal(ids[score->position], score->id);
    s->hashes[score->position] = sl_hash(score->logits, tiny_model_n_vocab() * sizeof *score->logits);
    s->next[score->position] = score->has_next ? score->next_logprob : 0.0f;
    s->n++;
    return true;
}

static void scoring_behind_a_file_equals_scoring_it_all(void **unused)
{
    (void)unused;
    static scored all, rest;
    sl_err err = {SL_OK, ""};
    sl_engine *engine = open_engine(8192);
    double whole = 0.0, perplexity = 0.0, sum = 0.0;
    sl_context_options options = {.prompt_tokens = N_IDS, .all_logits = true};
    const sl_score_options score_all = {.row = note_row, .arg = &all}, score_rest = {.row = note_row, .arg = &rest};
    sl_context *context = open_context(engine, &options);
    assert_int_equal(SL_OK, sl_context_score(context, ids, N_IDS, &score_all, &whole, &err));
    sl_context_destroy(context);
    options.store = make_file(engine, 1200);
    const size_t starts[] = {1200, 1199, 1024, 777, 1};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        const size_t n = starts[i];
        options.store_tokens = n == 1200 ? 0 : n;
        options.prompt_tokens = N_IDS - n;
        memset(&rest, 0, sizeof rest);
        context = open_context(engine, &options);
        assert_int_equal(SL_OK, sl_context_score(context, ids + n, N_IDS - n, &score_rest, &perplexity, &err));
        sl_context_destroy(context);
        assert_int_equal(n, rest.first);
        assert_int_equal(N_IDS - n, rest.n);
        assert_memory_equal(all.hashes + n, rest.hashes + n, (N_IDS - n) * sizeof *rest.hashes);
        sum = 0.0;
        for (size_t pos = n; pos + 1 < N_IDS; pos++)
            sum += (double)all.next[pos];
        assert_true(fabs(perplexity - exp(-sum / (double)(N_IDS - n - 1))) < 1e-9 * perplexity);
    }
    options.store_tokens = 1201;
    assert_int_equal(SL_REFUSED, sl_context_create(engine, &options, &context, &err));
    assert_non_null(strstr(err.text, "it holds 1200 tokens, 1201 were asked for"));
    sl_store_close(options.store);
    unlink(kv_path);
    sl_engine_close(engine);
}

static bool no_row(void *arg, const sl_score *score)
{
    (void)arg, (void)score;
    return true;
}

static void what_is_missing_is_a_usage_error(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    sl_engine *engine = open_engine(8192);
    const sl_context_options options = {.prompt_tokens = 6, .predict_tokens = 4};
    sl_context *context = NULL;
    sl_store *store = NULL;
    double perplexity;
    assert_int_equal(SL_OK, sl_context_create(engine, &options, &context, &err));
    const sl_score_options no_rows = {.n_best = 0}, score = {.row = no_row};
    assert_int_equal(SL_USAGE, sl_context_score(context, ids, 6, &no_rows, &perplexity, &err));
    assert_int_equal(SL_USAGE, sl_context_score(context, ids, 6, NULL, &perplexity, &err));
    assert_int_equal(SL_USAGE, sl_context_score(context, ids, 6, &score, NULL, &err));
    assert_int_equal(SL_OK, sl_context_feed(context, ids, 6, NULL, NULL, &err));
    assert_int_equal(SL_USAGE, sl_context_save(context, NULL, NULL, NULL, &err));
    sl_context_destroy(context);
    const sl_store_fork_options fork = {.from = "/nowhere/a", .to = "/nowhere/b"}, no_name = {.from = "/nowhere/a"};
    sl_store_forked forked;
    assert_int_equal(SL_USAGE, sl_store_fork(&fork, NULL, &err));
    assert_int_equal(SL_USAGE, sl_store_fork(&no_name, &forked, &err));
    const sl_store_options nothing = {.path = NULL};
    assert_int_equal(SL_USAGE, sl_store_open(NULL, &nothing, &store, &err));
    const sl_store_verify_options verify = {.path = NULL};
    sl_store_verified verified;
    assert_int_equal(SL_USAGE, sl_store_verify(&verify, &verified, &err));
    const sl_store_repair_options repair = {.path = NULL};
    sl_store_repaired repaired;
    assert_int_equal(SL_USAGE, sl_store_repair(engine, &repair, &repaired, &err));
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_a_usage_error),
        cmocka_unit_test(a_talk_has_its_order),
        cmocka_unit_test(what_does_not_fit_is_refused_and_the_talk_goes_on),
        cmocka_unit_test(what_is_cancelled_can_be_taken_up_again),
        cmocka_unit_test(answers_add_up),
        cmocka_unit_test(an_answer_is_kept_in_its_file),
        cmocka_unit_test(scoring_behind_a_file_equals_scoring_it_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
