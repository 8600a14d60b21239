/* One arithmetic for every architecture: logits do not depend on window, ring, budget, threads or instruction set, what
 * is drawn does not depend on drafts, and what a sliding layer cannot see changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "common/effort.h"
#include "common/tiny_run.h"

enum {
    LONG = EFFORT_IS_SMALL ? 1200 : 2700, /* more than a part, and many spans */
    SHORT = EFFORT_IS_SMALL ? 70 : 260,
    N_READ = EFFORT_IS_SMALL ? 230 : 1070,
    N_DRAWN = EFFORT_IS_SMALL ? 30 : 90
};

static const char *const archs[] = {"llama",  "qwen2",  "qwen3",   "phi3", "gemma2",
                                    "gemma3", "smollm3", "glm4", "qwen3moe", "mixtral"};
/* Where effort is tiny: the two whose layers slide. */
enum { N_ARCHS = sizeof archs / sizeof archs[0], ARCH_STEP = EFFORT_IS_TINY ? 5 : 1 };

static int32_t text[LONG]; /* repeats itself, so that the n-gram drafter has work */

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

/* The i-th family: weights quantised, llama sliding as Mistral does. */
static tiny_model model_of(size_t i)
{
    const bool is_mixtral = strcmp(archs[i], "mixtral") == 0; /* a llama with experts */
    tiny_model model = tiny_model_of_arch(30 + i, is_mixtral ? "llama" : archs[i]);
    if (is_mixtral) {
        model.n_experts = 5;
        model.n_used = 2;
    }
    model.weight_type = i % 2 ? TINY_TYPE_Q4_1 : TINY_TYPE_Q8_0;
    model.separate_output = i % 3 == 1;
    if (strcmp(archs[i], "llama") == 0)
        model.sliding_span = 333;
    return model;
}

typedef struct trace {
    uint64_t hashes[LONG]; /* of each position's logits */
    size_t n_vocab;
} trace;

static sl_status note_logits(void *arg, uint64_t position, const float *logits, sl_err *err)
{
    (void)err;
    trace *t = arg;
    t->hashes[position] = sl_hash(logits, t->n_vocab * sizeof *logits);
    return SL_OK;
}

static void score(tiny_run *run, sl_kv_type type, const tiny_ways *ways, size_t n, trace *out)
{
    sl_err err = {SL_OK, ""};
    sl_pool *pool;
    sl_session *session = tiny_session(run, type, ways, n, &pool);
    out->n_vocab = run->weights->hp.n_vocab;
    const sl_feed_watch watch = {.logits = note_logits, .arg = out};
    memset(out->hashes, 0, sizeof out->hashes);
    if (sl_session_feed(session, text, n, &watch, &err) != SL_OK)
        fail_msg("feed: %s", err.text);
    tiny_session_end(session, pool);
}

static void expect_same(const trace *want, const trace *got, size_t n, const char *arch, size_t way)
{
    for (size_t pos = 0; pos < n; pos++)
        if (got->hashes[pos] != want->hashes[pos])
            fail_msg("%s, way %zu: position %zu differs", arch, way, pos);
}

static void logits_do_not_depend_on_the_way(void **unused)
{
    (void)unused;
    static const tiny_ways base = {1, 4096, 2, 1, 100, 0, 0};
    static const tiny_ways ways[] = {{2, 64, 2, 1, 0, 0, 0}, {3, 192, 3, 1, 40, 0, 0}, {2, 1024, 2, 2, 0, 0, 0}};
    static trace want, got;
    for (size_t i = 0; i < N_ARCHS; i += ARCH_STEP) {
        tiny_run run;
        tiny_model model = model_of(i);
        tiny_run_open(&run, &model, sl_cpu_best());
        for (int type = 0; type < SL_KV_TYPE_COUNT; type++) {
            score(&run, (sl_kv_type)type, &base, LONG, &want);
            for (size_t w = 0; w < (EFFORT_IS_SMALL ? 1 : sizeof ways / sizeof ways[0]); w++) {
                score(&run, (sl_kv_type)type, &ways[w], LONG, &got);
                expect_same(&want, &got, LONG, archs[i], w);
            }
        }
        tiny_run_close(&run);
    }
}

static void every_level_gives_the_same_logits(void **unused)
{
    (void)unused;
    static const tiny_ways base = {1, 256, 2, 1, 100, 0, 0};
    static trace want, got;
    int n_compared = 0;
    for (size_t i = 0; i < N_ARCHS; i += ARCH_STEP)
        for (int level = 0; level < SL_CPU_LEVEL_COUNT; level++) {
            if (!sl_cpu_has((sl_cpu_level)level))
                continue;
            tiny_run run;
            tiny_model model = model_of(i);
            tiny_run_open(&run, &model, (sl_cpu_level)level);
            score(&run, SL_KV_TYPE_Q8_0, &base, SHORT, level == 0 ? &want : &got);
            tiny_run_close(&run);
            if (level > 0)
                expect_same(&want, &got, SHORT, archs[i], (size_t)level);
            n_compared += level > 0;
        }
    if (n_compared == 0)
        skip();
}

/* ---------------------------------------------------------------------------------------------------- speculation */

typedef struct drawn {
    int32_t ids[N_DRAWN];
    size_t n;
} drawn;

static bool note_token(void *arg, int32_t id)
{
    drawn *d = arg;
    assert_true(d->n < N_DRAWN);
    d->ids[d->n++] = id;
    return true;
}

static void draw(tiny_run *run, size_t drafts, drawn *out)
{
    sl_err err = {SL_OK, ""};
    sl_pool *pool;
    const tiny_ways ways = {2, 512, 2, 1, 0, drafts, 0};
    sl_session *session = tiny_session(run, SL_KV_TYPE_F16, &ways, N_READ + N_DRAWN, &pool);
    out->n = 0;
    if (sl_session_feed(session, text, N_READ, NULL, &err) != SL_OK)
        fail_msg("feed: %s", err.text);
    const sl_generate_options options = {.sampling = {.temp = 0.4f, .top_k = 4, .top_p = 1.0f, .seed = 5},
                                         .n_predict = N_DRAWN,
                                         .n_context = N_READ + N_DRAWN,
                                         .max_drafts = drafts,
                                         .token = note_token,
                                         .arg = out};
    sl_generate_result result;
    if (sl_session_generate(session, &options, &result, &err) != SL_OK)
        fail_msg("generate: %s", err.text);
    tiny_session_end(session, pool);
}

static void drafts_do_not_change_the_text(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < N_ARCHS; i += ARCH_STEP) {
        tiny_run run;
        tiny_model model = model_of(i);
        tiny_run_open(&run, &model, sl_cpu_best());
        drawn plain, drafted;
        draw(&run, 0, &plain);
        draw(&run, 11, &drafted);
        tiny_run_close(&run);
        assert_int_equal(N_DRAWN, plain.n);
        assert_int_equal(N_DRAWN, drafted.n);
        assert_memory_equal(plain.ids, drafted.ids, sizeof plain.ids);
    }
}

/* ------------------------------------------------------------------------------------------------------ mixtures */

/* Equal logits choose the lower ids: a model of five experts is then one of its first two, which have the same weights
 * whatever follows them. */
static void among_equal_experts_the_first_are_taken(void **unused)
{
    (void)unused;
    static const tiny_ways ways = {1, 64, 2, 1, 0, 0, 0};
    static trace got[2];
    for (size_t i = 0; i < 2; i++) {
        tiny_run run;
        tiny_model model = tiny_model_of_arch(3, "qwen3moe");
        model.flat_router = true;
        model.n_used = 2;
        model.n_experts = i == 0 ? 5 : 2;
        tiny_run_open(&run, &model, sl_cpu_best());
        score(&run, SL_KV_TYPE_Q8_0, &ways, SHORT, &got[i]);
        tiny_run_close(&run);
    }
    expect_same(&got[0], &got[1], SHORT, "qwen3moe", 0);
}

/* ------------------------------------------------------------------------------------------------------- the span */

/* Layers x (span - 1) tokens back nothing can come from, where every layer slides; a token nearer does count. */
static void a_row_sees_its_span_and_no_more(void **unused)
{
    (void)unused;
    enum { SPAN = 100, FAR = 400, LAST = FAR + 2 * (SPAN - 1) };
    static const tiny_ways ways = {1, 64, 2, 1, 0, 0, 0};
    static trace want, got;
    tiny_run run;
    tiny_model model = tiny_model_of_arch(3, "llama");
    model.sliding_span = SPAN;
    tiny_run_open(&run, &model, sl_cpu_best());
    assert_int_equal(2, run.weights->hp.n_layers);
    score(&run, SL_KV_TYPE_Q8_0, &ways, LAST + 2, &want);
    int32_t saved = text[FAR];
    text[FAR] = saved == 5 ? 6 : 5;
    score(&run, SL_KV_TYPE_Q8_0, &ways, LAST + 2, &got);
    text[FAR] = saved;
    tiny_run_close(&run);
    for (size_t pos = 0; pos < LAST + 2; pos++) {
        bool is_same = want.hashes[pos] == got.hashes[pos];
        if (is_same != (pos < FAR || pos > LAST))
            fail_msg("token %d changed: position %zu is %s", (int)FAR, pos, is_same ? "the same" : "another");
    }
}

int main(void)
{
    make_text(tiny_model_n_vocab());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_do_not_depend_on_the_way),
        cmocka_unit_test(every_level_gives_the_same_logits),
        cmocka_unit_test(drafts_do_not_change_the_text),
        cmocka_unit_test(among_equal_experts_the_first_are_taken),
        cmocka_unit_test(a_row_sees_its_span_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
