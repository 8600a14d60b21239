/* One arithmetic, end to end on tiny models: the logits of a text do not depend on window, ring, budget, threads or
 * instruction set; what is drawn does not depend on drafts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "common/effort.h"
#include "common/tiny_run.h"

enum {
    LONG = EFFORT_IS_SMALL ? 1300 : 5300,
    SHORT = EFFORT_IS_SMALL ? 70 : 150,
    MOST = 400,
    N_READ = EFFORT_IS_SMALL ? 500 : 1500, /* then drawn: */
    N_DRAWN = EFFORT_IS_SMALL ? 60 : 200
};

static int32_t text[LONG]; /* a text with repetitions, so that the n-gram drafter has work */

static void make_text(size_t n_vocab)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < LONG; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bool repeats = i > 300 && (i / 50) % 3 == 0;
        text[i] = repeats ? text[i - 250] : 3 + (int32_t)(state % (n_vocab - 3));
    }
}

/* ----------------------------------------------------------------------------------------------------- logits */

typedef struct trace {
    uint64_t *hashes; /* [n] of each position's logits */
    size_t n_vocab;
} trace;

static sl_status note_logits(void *arg, uint64_t position, const float *logits, sl_err *err)
{
    (void)err;
    trace *t = arg;
    t->hashes[position] = sl_hash(logits, t->n_vocab * sizeof *logits);
    return SL_OK;
}

static void score(tiny_run *run, sl_kv_type type, const tiny_ways *ways, size_t n, uint64_t *hashes)
{
    sl_err err = {SL_OK, ""};
    sl_pool *pool;
    sl_session *session = tiny_session(run, type, ways, n, &pool);
    trace t = {hashes, run->weights->hp.n_vocab};
    const sl_feed_watch watch = {.logits = note_logits, .arg = &t};
    memset(hashes, 0, n * sizeof *hashes);
    if (sl_session_feed(session, text, n, &watch, &err) != SL_OK)
        fail_msg("feed: %s", err.text);
    tiny_session_end(session, pool);
}

static const tiny_ways base_ways = {1, 256, 2, 1, 100, 0, SL_CPU_LEVEL_REF};

static void compare_ways(tiny_run *run, sl_kv_type type, const tiny_ways *ways, size_t n_ways, size_t n)
{
    uint64_t *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    assert_non_null(want);
    assert_non_null(got);
    score(run, type, &base_ways, n, want);
    for (size_t i = 0; i < n_ways; i++) {
        score(run, type, &ways[i], n, got);
        for (size_t pos = 0; pos < n; pos++)
            if (got[pos] != want[pos])
                fail_msg("KV type %d, %zu threads, window %zu, %zu slots of %zu parts, %d %% resident: position %zu "
                         "differs",
                         (int)type, ways[i].threads, ways[i].window_rows, ways[i].n_slots, ways[i].slot_parts,
                         (int)ways[i].resident_percent, pos);
    }
    free(want);
    free(got);
}

static void logits_do_not_depend_on_the_way(void **unused)
{
    (void)unused;
    static const tiny_ways ways[] = {
        {1, 64, 2, 1, 0, 0, 0},   {2, 4096, 2, 1, 0, 0, 0},   {3, 1024, 2, 2, 30, 0, 0},
        {7, 192, 3, 1, 70, 0, 0}, {2, 2048, 2, 4, 100, 0, 0},
    };
    tiny_run run;
    tiny_model model = tiny_model_of_seed(7);
    model.weight_type = TINY_TYPE_Q4_1;
    model.emb_type = TINY_TYPE_Q8_0;
    tiny_run_open(&run, &model, sl_cpu_best());
    for (int type = 0; type < SL_KV_TYPE_COUNT; type++)
        compare_ways(&run, (sl_kv_type)type, ways, EFFORT_IS_SMALL ? 3 : sizeof ways / sizeof ways[0], LONG);
    tiny_run_close(&run);
}

static void every_level_gives_the_same_logits(void **unused)
{
    (void)unused;
    static const uint32_t types[] = {TINY_TYPE_F32,  TINY_TYPE_F16,  TINY_TYPE_BF16, TINY_TYPE_Q8_0,
                                     TINY_TYPE_Q4_0, TINY_TYPE_Q4_1, TINY_TYPE_Q5_0, TINY_TYPE_Q5_1,
                                     TINY_TYPE_Q4_K, TINY_TYPE_Q5_K, TINY_TYPE_Q6_K};
    static uint64_t want[MOST], got[MOST];
    int n_compared = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i += EFFORT_IS_SMALL ? 5 : 1)
        for (int type = 0; type < SL_KV_TYPE_COUNT; type++)
            for (int level = 0; level < SL_CPU_LEVEL_COUNT; level++) {
                if (!sl_cpu_has((sl_cpu_level)level))
                    continue;
                tiny_run run;
                tiny_model model = tiny_model_of_type(11 + i, types[i]);
                model.separate_output = i % 2 == 1;
                tiny_run_open(&run, &model, (sl_cpu_level)level);
                score(&run, (sl_kv_type)type, &base_ways, SHORT, level == 0 ? want : got);
                tiny_run_close(&run);
                if (level > 0 && memcmp(want, got, SHORT * sizeof *want) != 0)
                    fail_msg("weight type %u, KV type %d, level %s: logits differ", types[i], type,
                             sl_cpu_level_name((sl_cpu_level)level));
                n_compared += level > 0;
            }
    if (n_compared == 0)
        skip();
}

/* ---------------------------------------------------------------------------------------------------- speculation */

typedef struct drawn {
    int32_t ids[MOST];
    size_t n;
} drawn;

static bool note_token(void *arg, int32_t id)
{
    drawn *d = arg;
    d->ids[d->n++] = id;
    return true;
}

typedef struct oracle {
    const drawn *truth;
    size_t n_prompt;
    bool right;
} oracle;

/* Always right, or always wrong. */
static sl_status foretell(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    (void)err;
    const oracle *o = self;
    for (size_t i = 0; i < ask->max_nodes; i++) {
        size_t at = ask->n - o->n_prompt + i;
        int32_t id = at < o->truth->n ? o->truth->ids[at] : 0;
        sl_draft_tree_add(tree, o->right ? id : id ^ 1, (int32_t)i - 1, 0.0f);
    }
    return SL_OK;
}

typedef struct case_of {
    float temp;
    uint32_t top_k;
    float top_p, min_p;
    uint64_t seed;
    sl_kv_type type;
    size_t n_prompt, n_predict;
} case_of;

/* chosen: numbers of drafts by what they yield, in trees. */
static sl_generate_result draw(tiny_run *run, const case_of *c, size_t drafts, const sl_drafter *drafter, bool chosen,
                               drawn *out)
{
    sl_err err = {SL_OK, ""};
    sl_pool *pool;
    const tiny_ways ways = {2, 512, 2, 1, drafts % 3 * 40, drafts, 0};
    sl_session *session = tiny_session(run, c->type, &ways, c->n_prompt + c->n_predict, &pool);
    out->n = 0;
    if (sl_session_feed(session, text, c->n_prompt, NULL, &err) != SL_OK)
        fail_msg("feed: %s", err.text);
    const sl_generate_options options = {
        .sampling = {.temp = c->temp, .top_k = c->top_k, .top_p = c->top_p, .min_p = c->min_p, .seed = c->seed},
        .n_predict = c->n_predict,
        .n_context = c->n_prompt + c->n_predict,
        .max_drafts = drafts,
        .draft_auto = chosen,
        .may_branch = chosen,
        .drafter = drafter,
        .token = note_token,
        .arg = out,
    };
    sl_generate_result result;
    if (sl_session_generate(session, &options, &result, &err) != SL_OK)
        fail_msg("generate: %s", err.text);
    assert_int_equal(out->n, c->n_predict);
    assert_int_equal(SL_FINISH_LENGTH, result.finish);
    /* Every token but the last is in the store, and nothing else. */
    for (uint32_t layer = 0; layer < run->weights->hp.n_layers; layer++)
        assert_int_equal(c->n_prompt + c->n_predict - 1, sl_kv_tokens(sl_session_kv(session), layer));
    tiny_session_end(session, pool);
    return result;
}

static void expect_same(const drawn *want, const drawn *got, const case_of *c, size_t drafts, const char *drafter)
{
    for (size_t i = 0; i < want->n; i++)
        if (want->ids[i] != got->ids[i])
            fail_msg("temp %g, %zu drafts by %s, prompt %zu: token %zu differs", (double)c->temp, drafts, drafter,
                     c->n_prompt, i);
}

static void speculation_never_changes_the_text(void **unused)
{
    (void)unused;
    static const case_of cases[] = {
        {0.0f, 0, 1.0f, 0.0f, 1, SL_KV_TYPE_Q8_0, EFFORT_IS_SMALL ? 100 : 1000, 90},
        {0.8f, 0, 1.0f, 0.0f, 2, SL_KV_TYPE_Q8_0, EFFORT_IS_SMALL ? 310 : 4090, 90},
        {1.2f, 40, 0.9f, 0.0f, 3, SL_KV_TYPE_F16, 63, 90},
        {1.2f, 0, 1.0f, 0.05f, 4, SL_KV_TYPE_Q8_0, 1, 140},
        {0.8f, 0, 0.95f, 0.0f, 5, SL_KV_TYPE_F16, 2047, 300},
    };
    static const size_t drafts[] = {1, 2, 8, 63, 255};
    tiny_run run;
    tiny_model model = tiny_model_of_seed(5);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t i = 0; i < (EFFORT_IS_SMALL ? 2 : sizeof cases / sizeof cases[0]); i++) {
        static drawn plain, got;
        const case_of *c = &cases[i];
        sl_generate_result result = draw(&run, c, 0, NULL, false, &plain);
        assert_int_equal(c->n_predict - 1, result.n_passes);
        for (size_t k = 0; k < sizeof drafts / sizeof drafts[0]; k += EFFORT_IS_SMALL ? 3 : 1) {
            size_t n = drafts[k];
            draw(&run, c, n, NULL, false, &got);
            expect_same(&plain, &got, c, n, "n-gram");
            draw(&run, c, n, NULL, true, &got);
            expect_same(&plain, &got, c, n, "n-gram, as chosen");
            oracle right = {&plain, c->n_prompt, true}, wrong = {&plain, c->n_prompt, false};
            const sl_drafter by_right = {.name = "right", .propose = foretell, .self = &right},
                             by_wrong = {.name = "wrong", .propose = foretell, .self = &wrong};
            result = draw(&run, c, n, &by_right, false, &got);
            expect_same(&plain, &got, c, n, "always right");
            assert_int_equal((c->n_predict - 1 + n) / (n + 1), result.n_passes);
            result = draw(&run, c, n, &by_wrong, false, &got);
            expect_same(&plain, &got, c, n, "always wrong");
            assert_int_equal(c->n_predict - 1, result.n_passes);
            assert_int_equal(0, result.n_accepted);
        }
    }
    tiny_run_close(&run);
}

/* ------------------------------------------------------------------------------ decoding = prefill of the same text */

typedef struct redraw {
    sl_sampler *sampler;
    size_t n_prompt;
    const int32_t *ids;
    size_t n;
} redraw;

static sl_status redraw_row(void *arg, uint64_t position, const float *logits, sl_err *err)
{
    redraw *r = arg;
    if (position + 1 < r->n_prompt || position + 1 >= r->n)
        return SL_OK;
    int32_t id = sl_sampler_draw(r->sampler, logits, r->ids, (size_t)position + 1);
    if (id != r->ids[position + 1])
        return sl_err_set(err, SL_FAILED, "position %d: prefill draws %d, decoding drew %d", (int)position + 1, id,
                          r->ids[position + 1]);
    return SL_OK;
}

static void decoding_equals_prefill(void **unused)
{
    (void)unused;
    tiny_run run;
    tiny_model model = tiny_model_of_seed(3);
    model.weight_type = TINY_TYPE_Q4_0;
    tiny_run_open(&run, &model, sl_cpu_best());
    static drawn plain;
    const case_of c = {1.0f, 0, 1.0f, 0.0f, 9, SL_KV_TYPE_Q8_0, N_READ, N_DRAWN};
    draw(&run, &c, 8, NULL, false, &plain);
    static int32_t all[N_READ + N_DRAWN];
    memcpy(all, text, N_READ * sizeof *all);
    memcpy(all + N_READ, plain.ids, N_DRAWN * sizeof *all);
    sl_err err = {SL_OK, ""};
    sl_pool *pool;
    const sl_sampling sampling = {.temp = 1.0f, .top_p = 1.0f, .seed = 9};
    redraw r = {NULL, N_READ, all, N_READ + N_DRAWN};
    assert_int_equal(
        SL_OK, sl_sampler_create(&sampling, run.weights->hp.n_vocab, &run.kernels, &run.budget, &r.sampler, &err));
    sl_session *session = tiny_session(&run, SL_KV_TYPE_Q8_0, &base_ways, N_READ + N_DRAWN, &pool);
    const sl_feed_watch watch = {.logits = redraw_row, .arg = &r};
    if (sl_session_feed(session, all, N_READ + N_DRAWN, &watch, &err) != SL_OK)
        fail_msg("%s", err.text);
    tiny_session_end(session, pool);
    sl_sampler_destroy(r.sampler);
    tiny_run_close(&run);
}

int main(void)
{
    make_text(tiny_model_n_vocab());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_do_not_depend_on_the_way),
        cmocka_unit_test(every_level_gives_the_same_logits),
        cmocka_unit_test(speculation_never_changes_the_text),
        cmocka_unit_test(decoding_equals_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
