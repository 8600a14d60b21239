#include "common/talk_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"

const tiny_ways talk_plain_ways = {1, 256, 2, 1, 100, 0, SL_CPU_LEVEL_REF};

uint64_t talk_draw(talk *t, uint64_t n)
{
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return t->random % n;
}

uint64_t talk_seed(void)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 20261130;
}

void talk_must(const talk *t, sl_status status, const sl_err *err)
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

void talk_close_session(talk *t)
{
    tiny_session_end(t->session, t->pool);
    sl_durable_close(t->durable);
    t->session = NULL;
    t->durable = NULL;
}

void talk_open_session(talk *t, const tiny_ways *ways, bool keep, uint64_t durable_tokens)
{
    sl_err err = {SL_OK, ""};
    talk_must(t, sl_pool_create(ways->threads, &t->run->budget, &t->pool, &err), &err);
    sl_session_options options = tiny_session_options(t->run, t->type, ways, TALK_MOST, t->pool);
    options.kv.durable = t->durable;
    options.kv.durable_tokens = durable_tokens;
    options.kv.keep = keep;
    options.kv.slide = keep ? (sl_slide){0} : t->slide;
    options.talks = true;
    options.commit_tokens = t->commit_tokens;
    options.stop = asked_to_stop;
    options.arg = t;
    t->asks_left = -1;
    t->max_drafts = ways->max_drafts;
    talk_must(t, sl_session_create(&options, &t->session, &err), &err);
}

static sl_durable_options file_options(talk *t, const char *path)
{
    return (sl_durable_options){.path = path, .for_writing = true, .allow_ram = true, .max_tokens = TALK_MOST,
                                .budget = &t->run->budget};
}

void talk_create_file(talk *t, const char *path)
{
    sl_err err = {SL_OK, ""};
    const sl_identity identity = {.arithmetic_version = 1, .n_vocab = t->run->weights->hp.n_vocab, .name = "tiny"};
    const sl_geom geom = {t->type, t->run->weights->hp.n_layers, t->run->layers};
    const sl_durable_options options = file_options(t, path);
    unlink(path);
    talk_must(t, sl_durable_create(&options, &identity, &geom, &t->durable, &err), &err);
}

void talk_open_file(talk *t, const char *path, bool for_writing)
{
    sl_err err = {SL_OK, ""};
    sl_durable_options options = file_options(t, path);
    options.for_writing = for_writing;
    talk_must(t, sl_durable_open(&options, &t->durable, &err), &err);
}

void talk_prefill_file(talk *t, const char *path, const int32_t *ids, size_t n)
{
    sl_err err = {SL_OK, ""};
    talk_create_file(t, path);
    talk_open_session(t, &talk_plain_ways, true, 0);
    talk_must(t, sl_session_keep(t->session, ids, n, NULL, &err), &err);
    talk_close_session(t);
}

void talk_expect_same_files(const talk *t, const char *a, const char *b)
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

void talk_make_tokens(talk *t, int32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool repeats = i > 40 && (i / 20) % 3 == 0; /* so that drafts are kept now and then */
        out[i] = repeats ? out[i - 40] : 3 + (int32_t)talk_draw(t, 40);
    }
}

static void expect_even(const talk *t, size_t n_stored)
{
    for (uint32_t layer = 0; layer < t->run->weights->hp.n_layers; layer++)
        assert_int_equal(n_stored, sl_kv_tokens(sl_session_kv(t->session), layer));
    assert_int_equal(n_stored, sl_session_n_stored(t->session));
}

void talk_feed(talk *t, size_t n, long asks)
{
    static int32_t ids[TALK_MOST_FED];
    sl_err err = {SL_OK, ""};
    const size_t before = sl_session_n_tokens(t->session), unfed = before - sl_session_n_stored(t->session);
    talk_make_tokens(t, ids, n);
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
        assert_in_range(n_stored, t->slide.drops ? 0 : before - unfed, before);
        expect_even(t, n_stored);
        return;
    }
    talk_must(t, status, &err);
    assert_int_equal(before + n, sl_session_n_tokens(t->session));
    assert_true(sl_session_has_logits(t->session) || n + unfed == 0);
    expect_even(t, before + n);
}


static bool note_token(void *arg, int32_t id)
{
    talk_answer *a = arg;
    a->ids[a->n++] = id;
    return a->n < a->most;
}

sl_generate_result talk_generate(talk *t, sl_session *session, size_t n_predict, size_t drafts, uint64_t seed,
                                 talk_answer *out)
{
    sl_err err = {SL_OK, ""};
    sl_generate_result result;
    const sl_generate_options options = {
        .sampling = {.temp = seed % 2 ? 0.7f : 0.0f, .top_p = 1.0f, .seed = seed},
        .n_predict = n_predict,
        .n_context = TALK_MOST,
        .max_drafts = drafts,
        .token = note_token,
        .arg = out,
    };
    out->n = 0;
    talk_must(t, sl_session_generate(session, &options, &result, &err), &err);
    return result;
}

/* What the text so far gives in a session that knows nothing else: every position's logits, then the answer. */
static void expect_fresh(talk *t, const int32_t *ids, size_t n, size_t n_predict, uint64_t seed, const talk_answer *got)
{
    sl_err err = {SL_OK, ""};
    sl_pool *pool;
    static talk oracle;
    oracle.run = t->run;
    sl_session *session = tiny_session(t->run, t->type, &talk_plain_ways, TALK_MOST, &pool);
    const sl_feed_watch watch = {.logits = note_logits, .arg = &oracle};
    talk_must(t, sl_session_feed(session, ids, n, &watch, &err), &err);
    for (size_t pos = 0; pos < n; pos++)
        if (t->hashes[pos] != 0 && t->hashes[pos] != oracle.hashes[pos])
            fail_msg("%s: of %zu tokens, position %zu has other logits", t->doing, n, pos);
    talk_answer want = {.most = TALK_MOST_DRAWN};
    if (n_predict > 0)
        talk_generate(t, session, n_predict, 0, seed, &want);
    for (size_t i = 0; i < got->n; i++)
        if (got->ids[i] != want.ids[i])
            fail_msg("%s: behind %zu tokens, token %zu of the answer is %d, expected %d", t->doing, n, i, got->ids[i],
                     want.ids[i]);
    tiny_session_end(session, pool);
}

void talk_ask(talk *t, size_t n_predict, size_t most, long asks)
{
    static int32_t before_ids[TALK_MOST];
    const size_t before = sl_session_n_tokens(t->session);
    const uint64_t seed = talk_draw(t, 1000);
    talk_answer got = {.most = most > 0 ? most : TALK_MOST_DRAWN + 1};
    memcpy(before_ids, sl_session_ids(t->session), before * sizeof *before_ids);
    t->asks_left = asks > 0 ? asks : -1;
    const size_t drafts = talk_draw(t, 2) ? t->max_drafts : 0;
    sl_generate_result result = talk_generate(t, t->session, n_predict, drafts, seed, &got);
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

size_t talk_place(talk *t, size_t least, size_t n)
{
    size_t at = n;
    switch (talk_draw(t, 5)) {
    case 0:
        at = n - talk_draw(t, n < 30 ? n : 30);
        break;
    case 1:
        at = talk_draw(t, n / 64 + 1) * 64;
        break;
    case 2:
        at = talk_draw(t, n / 1024 + 1) * 1024;
        break;
    default:
        at = least + talk_draw(t, n - least + 1);
    }
    return at < least ? least : at;
}

static void talk_rewind_to(talk *t, size_t n)
{
    sl_err err = {SL_OK, ""};
    const size_t before = sl_session_n_tokens(t->session), n_stored = sl_session_n_stored(t->session);
    talk_must(t, sl_session_rewind(t->session, n, &err), &err);
    assert_int_equal(n, sl_session_n_tokens(t->session));
    const size_t n_want = n < n_stored ? n : n_stored, n_now = sl_session_n_stored(t->session);
    if (t->slide.drops) /* what was dropped is computed again */
        assert_true(n_now == n_want || (n_now < n_want && n_want + t->slide.back_tokens < n_stored) || n_stored < n);
    else
        assert_int_equal(n_want, n_now);
    if (n < before)
        assert_false(sl_session_has_logits(t->session));
    expect_even(t, n_now);
    t->n_recomputed += n_want - n_now;
}

void talk_take_turn(talk *t)
{
    const size_t n = sl_session_n_tokens(t->session);
    const uint64_t kind = talk_draw(t, 10);
    size_t n_fed = 1 + (size_t)talk_draw(t, talk_draw(t, 2) ? TALK_MOST_FED : 20);
    if (n + n_fed + TALK_MOST_DRAWN > TALK_MOST) {
        t->doing = "rewind of what is full";
        talk_rewind_to(t, talk_place(t, 1, n / 2));
        return;
    }
    if (kind < 6) {
        t->doing = "a question and its answer";
        talk_feed(t, n_fed, 0);
        talk_ask(t, 1 + (size_t)talk_draw(t, TALK_MOST_DRAWN - 1), kind == 0 ? 1 + (size_t)talk_draw(t, 20) : 0, 0);
    } else if (kind == 6) {
        t->doing = "a feed that is stopped";
        talk_feed(t, n_fed, 1 + (long)talk_draw(t, 12));
    } else if (kind == 7) {
        t->doing = "an answer that is stopped in a pass";
        talk_feed(t, n_fed, 0);
        talk_ask(t, TALK_MOST_DRAWN, 0, 1 + (long)talk_draw(t, 40));
    } else if (kind == 8) {
        t->doing = "settling, and going on from there";
        talk_feed(t, 0, 0);
        if (sl_session_has_logits(t->session))
            talk_ask(t, 1 + (size_t)talk_draw(t, 20), 0, 0);
    } else if (n > 0) {
        t->doing = "rewind";
        talk_rewind_to(t, talk_place(t, 1, n));
    }
}

void talk_start(talk *t, tiny_run *run, sl_kv_type type, uint64_t seed)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    memset(t, 0, sizeof *t);
    t->run = run;
    t->type = type;
    t->random = seed * 2 + 1;
    t->doing = "start";
    snprintf(t->path, sizeof t->path, "%s/sluice-talk-%ld.kv", dir ? dir : "/var/tmp", (long)getpid());
    for (int i = 0; i < 8; i++)
        (void)talk_draw(t, 2);
}
