/* Conversations: feeds, answers, rewinds and stops in any order give what a fresh session gives of the same tokens, bit
 * for bit, wherever the bytes lie; what such a session puts into its file is what a prefill puts there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "common/effort.h"
#include "common/tiny_run.h"
#include "store/durable.h"

enum {
    MOST = EFFORT_IS_SMALL ? 2600 : 5200, /* tokens of a context */
    N_TURNS = EFFORT_IS_SMALL ? 10 : 22,
    MOST_FED = 700,
    MOST_DRAWN = 60
};

/* ------------------------------------------------------------------------------------------------------- the bench */

typedef struct talk {
    tiny_run *run;
    sl_pool *pool;
    sl_session *session;
    sl_durable *durable;
    char path[256];
    sl_kv_type type;
    size_t max_drafts;
    uint64_t random;
    long asks_left;        /* of `stop`, before it says yes; negative: never */
    uint64_t hashes[MOST]; /* of each position's logits, as they were seen; 0: a burst stored that token */
    const char *doing;
} talk;

static uint64_t draw(talk *t, uint64_t n)
{
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return t->random % n;
}

static uint64_t seed_of_tests(void)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 20261130;
}

static void must(const talk *t, sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("%s: status %d: %s", t->doing, (int)status, err->text);
}

static bool asked_to_stop(void *arg)
{
    talk *t = arg;
    if (t->asks_left > 0)
        t->asks_left--;
    return t->asks_left == 0;
}

static sl_status note_logits(void *arg, uint64_t position, const float *logits, sl_err *err)
{
    (void)err;
    talk *t = arg;
    t->hashes[position] = sl_hash(logits, t->run->weights->hp.n_vocab * sizeof *logits);
    return SL_OK;
}

static void close_session(talk *t)
{
    tiny_session_end(t->session, t->pool);
    sl_durable_close(t->durable);
    t->session = NULL;
    t->durable = NULL;
}

/* Over t->durable, if it is there. */
static void open_session(talk *t, const tiny_ways *ways, bool keep, uint64_t durable_tokens)
{
    sl_err err = {SL_OK, ""};
    must(t, sl_pool_create(ways->threads, &t->run->budget, &t->pool, &err), &err);
    sl_session_options options = tiny_session_options(t->run, t->type, ways, MOST, t->pool);
    options.kv.durable = t->durable;
    options.kv.durable_tokens = durable_tokens;
    options.kv.keep = keep;
    options.talks = true;
    options.stop = asked_to_stop;
    options.arg = t;
    t->asks_left = -1;
    t->max_drafts = ways->max_drafts;
    must(t, sl_session_create(&options, &t->session, &err), &err);
}

static sl_durable_options file_options(talk *t, const char *path)
{
    return (sl_durable_options){.path = path, .for_writing = true, .allow_ram = true, .max_tokens = MOST,
                                .budget = &t->run->budget};
}

static void create_file(talk *t, const char *path)
{
    sl_err err = {SL_OK, ""};
    const sl_identity identity = {.arithmetic_version = 1, .n_vocab = t->run->weights->hp.n_vocab, .name = "tiny"};
    const sl_geom geom = {t->type, t->run->weights->hp.n_layers, t->run->layers};
    const sl_durable_options options = file_options(t, path);
    unlink(path);
    must(t, sl_durable_create(&options, &identity, &geom, &t->durable, &err), &err);
}

static void open_file(talk *t, const char *path, bool for_writing)
{
    sl_err err = {SL_OK, ""};
    sl_durable_options options = file_options(t, path);
    options.for_writing = for_writing;
    must(t, sl_durable_open(&options, &t->durable, &err), &err);
}

static const tiny_ways plain_ways = {1, 256, 2, 1, 100, 0, SL_CPU_LEVEL_REF};

/* A finished file of these tokens, in one go. */
static void prefill_file(talk *t, const char *path, const int32_t *ids, size_t n)
{
    sl_err err = {SL_OK, ""};
    create_file(t, path);
    open_session(t, &plain_ways, true, 0);
    must(t, sl_session_keep(t->session, ids, n, NULL, &err), &err);
    close_session(t);
}

static void expect_same_files(const talk *t, const char *a, const char *b)
{
    FILE *files[2] = {fopen(a, "rb"), fopen(b, "rb")};
    assert_non_null(files[0]);
    assert_non_null(files[1]);
    for (uint64_t off = 0;; off++) {
        int x = getc(files[0]), y = getc(files[1]);
        if (x != y)
            fail_msg("%s: %s and %s differ at byte %llu", t->doing, a, b, (unsigned long long)off);
        if (x == EOF)
            break;
    }
    fclose(files[0]);
    fclose(files[1]);
}

/* --------------------------------------------------------------------------------------------------------- turns */

static void make_tokens(talk *t, int32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool repeats = i > 40 && (i / 20) % 3 == 0; /* so that drafts are kept now and then */
        out[i] = repeats ? out[i - 40] : 3 + (int32_t)draw(t, 40);
    }
}

static void expect_even(const talk *t, size_t n_stored)
{
    for (uint32_t layer = 0; layer < t->run->weights->hp.n_layers; layer++)
        assert_int_equal(n_stored, sl_kv_tokens(sl_session_kv(t->session), layer));
    assert_int_equal(n_stored, sl_session_n_stored(t->session));
}

/* n tokens; stopped by the `asks`-th question, 0: not. */
static void feed(talk *t, size_t n, long asks)
{
    static int32_t ids[MOST_FED];
    sl_err err = {SL_OK, ""};
    const size_t before = sl_session_n_tokens(t->session), unfed = before - sl_session_n_stored(t->session);
    make_tokens(t, ids, n);
    t->asks_left = asks > 0 ? asks : -1;
    const sl_feed_watch watch = {.logits = note_logits, .arg = t};
    sl_status status = sl_session_feed(t->session, ids, n, &watch, &err);
    const bool was_stopped = t->asks_left == 0;
    t->asks_left = -1;
    assert_true(sl_session_is_whole(t->session));
    if (was_stopped) {
        assert_int_equal(SL_CANCELLED, status);
        assert_int_equal(before, sl_session_n_tokens(t->session));
        assert_false(sl_session_has_logits(t->session));
        size_t n_stored = sl_session_n_stored(t->session);
        assert_in_range(n_stored, before - unfed, before);
        expect_even(t, n_stored);
        return;
    }
    must(t, status, &err);
    assert_int_equal(before + n, sl_session_n_tokens(t->session));
    assert_true(sl_session_has_logits(t->session) || n + unfed == 0);
    expect_even(t, before + n);
}

typedef struct answer {
    int32_t ids[MOST_DRAWN];
    size_t n, most; /* most: the callback stops behind so many */
} answer;

static bool note_token(void *arg, int32_t id)
{
    answer *a = arg;
    a->ids[a->n++] = id;
    return a->n < a->most;
}

static sl_generate_result generate(talk *t, sl_session *session, size_t n_predict, size_t drafts, uint64_t seed,
                                   answer *out)
{
    sl_err err = {SL_OK, ""};
    sl_generate_result result;
    const sl_generate_options options = {
        .sampling = {seed % 2 ? 0.7f : 0.0f, 0, 1.0f, 0.0f, seed},
        .n_predict = n_predict,
        .n_context = MOST,
        .max_drafts = drafts,
        .token = note_token,
        .arg = out,
    };
    out->n = 0;
    must(t, sl_session_generate(session, &options, &result, &err), &err);
    return result;
}

/* What the text so far gives in a session that knows nothing else: every position's logits, then the answer. */
static void expect_fresh(talk *t, const int32_t *ids, size_t n, size_t n_predict, uint64_t seed, const answer *got)
{
    sl_err err = {SL_OK, ""};
    sl_pool *pool;
    static talk oracle;
    oracle.run = t->run;
    sl_session *session = tiny_session(t->run, t->type, &plain_ways, MOST, &pool);
    const sl_feed_watch watch = {.logits = note_logits, .arg = &oracle};
    must(t, sl_session_feed(session, ids, n, &watch, &err), &err);
    for (size_t pos = 0; pos < n; pos++)
        if (t->hashes[pos] != 0 && t->hashes[pos] != oracle.hashes[pos])
            fail_msg("%s: of %zu tokens, position %zu has other logits", t->doing, n, pos);
    answer want = {.most = MOST_DRAWN};
    if (n_predict > 0)
        generate(t, session, n_predict, 0, seed, &want);
    for (size_t i = 0; i < got->n; i++)
        if (got->ids[i] != want.ids[i])
            fail_msg("%s: behind %zu tokens, token %zu of the answer is %d, expected %d", t->doing, n, i, got->ids[i],
                     want.ids[i]);
    tiny_session_end(session, pool);
}

/* An answer to what was fed, stopped behind `most` tokens (0: not) or by the `asks`-th question; then compared. */
static void ask(talk *t, size_t n_predict, size_t most, long asks)
{
    static int32_t before_ids[MOST];
    const size_t before = sl_session_n_tokens(t->session);
    const uint64_t seed = draw(t, 1000);
    answer got = {.most = most > 0 ? most : MOST_DRAWN + 1};
    memcpy(before_ids, sl_session_ids(t->session), before * sizeof *before_ids);
    t->asks_left = asks > 0 ? asks : -1;
    sl_generate_result result = generate(t, t->session, n_predict, draw(t, 2) ? t->max_drafts : 0, seed, &got);
    const bool was_stopped = t->asks_left == 0 || (most > 0 && got.n == most);
    t->asks_left = -1;
    assert_true(sl_session_is_whole(t->session));
    assert_int_equal(got.n, result.n_tokens);
    assert_int_equal(before + got.n, sl_session_n_tokens(t->session));
    if (!was_stopped && result.finish == SL_FINISH_LENGTH)
        assert_int_equal(n_predict, got.n);
    if (got.n > 0) {
        assert_false(sl_session_has_logits(t->session));
        size_t n_stored = sl_session_n_stored(t->session);
        assert_int_equal(before + got.n - 1, n_stored);
        expect_even(t, n_stored);
        memset(t->hashes + before, 0, got.n * sizeof *t->hashes);
    }
    expect_fresh(t, before_ids, before, n_predict, seed, &got);
}

/* Near the last token, at an edge of tile or part, anywhere; `least` at least. */
static size_t place(talk *t, size_t least, size_t n)
{
    size_t at = n;
    switch (draw(t, 5)) {
    case 0:
        at = n - draw(t, n < 30 ? n : 30);
        break;
    case 1:
        at = draw(t, n / 64 + 1) * 64;
        break;
    case 2:
        at = draw(t, n / 1024 + 1) * 1024;
        break;
    default:
        at = least + draw(t, n - least + 1);
    }
    return at < least ? least : at;
}

static void rewind_to(talk *t, size_t n)
{
    sl_err err = {SL_OK, ""};
    const size_t before = sl_session_n_tokens(t->session), n_stored = sl_session_n_stored(t->session);
    must(t, sl_session_rewind(t->session, n, &err), &err);
    assert_int_equal(n, sl_session_n_tokens(t->session));
    assert_int_equal(n < n_stored ? n : n_stored, sl_session_n_stored(t->session));
    if (n < before)
        assert_false(sl_session_has_logits(t->session));
    expect_even(t, n < n_stored ? n : n_stored);
}

static void take_turn(talk *t)
{
    const size_t n = sl_session_n_tokens(t->session);
    const uint64_t kind = draw(t, 10);
    size_t n_fed = 1 + (size_t)draw(t, draw(t, 2) ? MOST_FED : 20);
    if (n + n_fed + MOST_DRAWN > MOST) {
        t->doing = "rewind of what is full";
        rewind_to(t, place(t, 1, n / 2));
        return;
    }
    if (kind < 6) {
        t->doing = "a question and its answer";
        feed(t, n_fed, 0);
        ask(t, 1 + (size_t)draw(t, MOST_DRAWN - 1), kind == 0 ? 1 + (size_t)draw(t, 20) : 0, 0);
    } else if (kind == 6) {
        t->doing = "a feed that is stopped";
        feed(t, n_fed, 1 + (long)draw(t, 12));
    } else if (kind == 7) {
        t->doing = "an answer that is stopped in a pass";
        feed(t, n_fed, 0);
        ask(t, MOST_DRAWN, 0, 1 + (long)draw(t, 40));
    } else if (kind == 8) {
        t->doing = "settling, and going on from there";
        feed(t, 0, 0);
        if (sl_session_has_logits(t->session))
            ask(t, 1 + (size_t)draw(t, 20), 0, 0);
    } else if (n > 0) {
        t->doing = "rewind";
        rewind_to(t, place(t, 1, n));
    }
}

static void start(talk *t, tiny_run *run, sl_kv_type type, uint64_t seed)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    memset(t, 0, sizeof *t);
    t->run = run;
    t->type = type;
    t->random = seed * 2 + 1;
    t->doing = "start";
    snprintf(t->path, sizeof t->path, "%s/sluice-talk-%ld.kv", dir ? dir : "/var/tmp", (long)getpid());
    for (int i = 0; i < 8; i++)
        (void)draw(t, 2);
}

static void one_conversation(tiny_run *run, sl_kv_type type, const tiny_ways *ways, size_t n_file, uint64_t seed)
{
    static talk t;
    static int32_t ids[MOST];
    start(&t, run, type, seed);
    uint64_t n_taken = 0;
    if (n_file > 0) {
        make_tokens(&t, ids, n_file);
        prefill_file(&t, t.path, ids, n_file);
        open_file(&t, t.path, false);
        n_taken = draw(&t, 3) == 0 ? place(&t, 1, n_file) : 0;
    }
    open_session(&t, ways, false, n_taken);
    assert_int_equal(n_taken > 0 ? n_taken : n_file, sl_session_n_tokens(t.session));
    for (int turn = 0; turn < N_TURNS; turn++)
        take_turn(&t);
    close_session(&t);
    unlink(t.path);
}

static void turns_and_rewinds_equal_a_fresh_session(void **unused)
{
    (void)unused;
    static const tiny_ways ways[] = {
        {2, 512, 2, 1, 0, 15, 0},
        {1, 64, 2, 1, 40, 15, 0},
        {2, 1024, 3, 1, 100, 15, 0},
        {1, 128, 2, 2, 20, 0, 0},
    };
    const uint64_t seed = seed_of_tests();
    tiny_run run;
    tiny_model model = tiny_model_of_seed(31);
    print_message("seed %llu\n", (unsigned long long)seed);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        one_conversation(&run, (sl_kv_type)(i % 2), &ways[i], 0, seed + i);
        one_conversation(&run, (sl_kv_type)(i % 2), &ways[i], 70 + (i * 777 + seed) % 2000, seed + 100 + i);
    }
    tiny_run_close(&run);
}

/* ------------------------------------------------------------------------------------------------- growing a file */

static void append_and_compare(talk *t, const char *other, const tiny_ways *ways, size_t n_question, bool is_stopped)
{
    static int32_t all[MOST];
    sl_err err = {SL_OK, ""};
    open_file(t, t->path, true);
    open_session(t, ways, true, 0);
    if (n_question > 0) {
        feed(t, n_question, 0);
        answer got = {.most = is_stopped ? 7 : MOST_DRAWN + 1};
        generate(t, t->session, 23, ways->max_drafts, draw(t, 100), &got);
    }
    must(t, sl_session_keep(t->session, NULL, 0, NULL, &err), &err);
    const size_t n = sl_session_n_tokens(t->session);
    assert_int_equal(n, sl_session_n_stored(t->session));
    memcpy(all, sl_session_ids(t->session), n * sizeof *all);
    assert_true(sl_durable_get(t->durable).is_finished);
    close_session(t);
    prefill_file(t, other, all, n);
    expect_same_files(t, t->path, other);
}

/* A finished file, one with whole last segments, parts and tiles, an unfinished one; one answer after another. */
static void a_file_that_grew_by_answers_equals_a_prefill(void **unused)
{
    (void)unused;
    static const tiny_ways ways[] = {{2, 256, 2, 1, 30, 15, 0}, {1, 64, 2, 1, 0, 0, 0}};
    const size_t sizes[] = {1, 63, 64, 700, 1024, EFFORT_IS_SMALL ? 2048 : 4096, EFFORT_IS_SMALL ? 1999 : 4090};
    static talk t;
    static int32_t ids[MOST];
    char other[300];
    tiny_run run;
    tiny_model model = tiny_model_of_seed(32);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        start(&t, &run, (sl_kv_type)(i % 2), seed_of_tests() + i);
        snprintf(other, sizeof other, "%s.other", t.path);
        make_tokens(&t, ids, sizes[i]);
        prefill_file(&t, t.path, ids, sizes[i]);
        t.doing = "nothing appended";
        append_and_compare(&t, other, &ways[i % 2], 0, false);
        t.doing = "an answer appended";
        append_and_compare(&t, other, &ways[i % 2], 1 + (size_t)draw(&t, 100), false);
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
    static int32_t ids[MOST];
    char other[300];
    tiny_run run;
    tiny_model model = tiny_model_of_seed(33);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t n = 400; n < 1800; n += EFFORT_IS_SMALL ? 600 : 199) {
        start(&t, &run, (sl_kv_type)(n % 2), seed_of_tests() + n);
        snprintf(other, sizeof other, "%s.other", t.path);
        make_tokens(&t, ids, n);
        prefill_file(&t, t.path, ids, n);
        prefill_file(&t, other, ids, n);
        open_file(&t, t.path, true);
        open_session(&t, &ways, true, 0);
        feed(&t, 90, 0);
        answer got = {.most = MOST_DRAWN + 1};
        generate(&t, t.session, 30, 15, 4, &got);
        close_session(&t);
        t.doing = "given up";
        open_file(&t, t.path, false);
        assert_int_equal(n, sl_durable_get(t.durable).n_tokens);
        assert_memory_equal(ids, sl_durable_ids(t.durable), n * sizeof *ids);
        open_session(&t, &ways, false, 0);
        memset(t.hashes, 0, sizeof t.hashes);
        feed(&t, 40, 0);
        ask(&t, 20, 0, 0);
        close_session(&t);
        t.doing = "finished as it was";
        open_file(&t, t.path, true);
        open_session(&t, &ways, true, 0);
        sl_err err = {SL_OK, ""};
        must(&t, sl_session_keep(t.session, NULL, 0, NULL, &err), &err);
        close_session(&t);
        expect_same_files(&t, t.path, other);
        unlink(t.path);
        unlink(other);
    }
    tiny_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_and_rewinds_equal_a_fresh_session),
        cmocka_unit_test(a_file_that_grew_by_answers_equals_a_prefill),
        cmocka_unit_test(an_append_that_is_given_up_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
