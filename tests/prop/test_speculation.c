/* Bursts against plain decoding, token for token and logit for logit: prompts of six kinds, temperatures, every
 * sampling option, drafters that are right, wrong, nearly right or mad, chains and trees, edges of tiles, segments and
 * slots, ends inside a burst. What follows shows that the keys and values that stay are the same, too.
 *
 * SLUICE_TEST_PROMPTS=200 runs every prompt, each with a quarter of the ways, by turns; else a share of both. */
#include <math.h>
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
#include "common/prompts.h"
#include "common/prophet.h"
#include "common/tiny_run.h"
#include "decode/model_drafter.h"

enum {
    MOST_PROMPT = 4300,
    MOST_DRAWN = 230,
    N_AFTER = 3, /* tokens read after the answer */
    N_DRAFTS = 7,
    N_OPTIONS = 6
};

static const size_t draft_counts[N_DRAFTS] = {1, 2, 7, 8, 63, 64, 200};

/* ------------------------------------------------------------------------------------------------------- one answer */

/* What is drawn, and how; all that may differ between two runs that must agree is in `way`. */
typedef struct text_case {
    const int32_t *prompt;
    size_t n_prompt, n_predict, n_context, stop_after; /* the last two 0: never */
    sl_sampling sampling;
    sl_kv_type type;
    int32_t end_id; /* of the text; -1: none */
} text_case;

typedef struct answer {
    int32_t ids[MOST_DRAWN];
    uint64_t logits[MOST_DRAWN]; /* hashes */
    float logprobs[MOST_DRAWN];
    int32_t second[MOST_DRAWN]; /* the best one that was not drawn */
    size_t n, n_told;
    sl_finish finish;
    size_t n_history, n_stored;
    uint64_t after; /* hash of the logits behind what was read after it */
    sl_generate_result result;
    const text_case *c;
    const sl_kernels *kernels;
    size_t n_vocab;
} answer;

static void note_drawn(void *arg, int32_t id, const float *logits)
{
    answer *a = arg;
    const sl_logprobs logprobs = sl_logprobs_of(a->kernels, logits, a->n_vocab);
    int32_t best[2];
    sl_logprobs_best(&logprobs, a->n_vocab, 2, best);
    assert_true(a->n < MOST_DRAWN);
    a->ids[a->n] = id;
    a->logits[a->n] = sl_hash(logits, a->n_vocab * sizeof *logits);
    a->logprobs[a->n] = sl_logprobs_get(&logprobs, id);
    a->second[a->n++] = best[0] == id ? best[1] : best[0];
}

static bool note_token(void *arg, int32_t id)
{
    answer *a = arg;
    assert_int_equal(id, a->ids[a->n - 1]);
    return ++a->n_told != a->c->stop_after;
}

static bool is_end(void *arg, int32_t id)
{
    return id == ((const answer *)arg)->c->end_id;
}

typedef struct way {
    const char *name;
    size_t drafts;
    const sl_drafter *drafter; /* NULL: those of the session's that follow */
    bool ngram, self, model, tree;
} way;

static const way plain_way = {.name = "none"};

/* A model that drafts for itself: mostly right. */
static sl_model_drafter *make_model_drafter(tiny_run *run, sl_pool *pool, size_t most)
{
    sl_err err = {SL_OK, ""};
    sl_model_drafter *drafter = NULL;
    const sl_model_drafter_options options = {
        .weights = run->weights,
        .kernels = &run->kernels,
        .pool = pool,
        .budget = &run->budget,
        .dir = "/var/tmp",
        .max_tokens = most,
        .window_tokens = 256,
    };
    if (sl_model_drafter_create(&options, &drafter, &err) != SL_OK)
        fail_msg("%s", err.text);
    return drafter;
}

static sl_status note_after(void *arg, uint64_t position, const float *logits, sl_err *err)
{
    (void)position;
    (void)err;
    answer *a = arg;
    a->after = a->after * 31 + sl_hash(logits, a->n_vocab * sizeof *logits);
    return SL_OK;
}

static void run_case(tiny_run *run, const text_case *c, const way *w, answer *out)
{
    static const int32_t after[N_AFTER] = {70, 71, 72};
    sl_err err = {SL_OK, ""};
    sl_pool *pool = NULL;
    sl_session *session = NULL;
    const size_t most = c->n_prompt + c->n_predict + N_AFTER;
    const tiny_ways ways = {2, 512, 2, 1, (c->n_prompt + w->drafts) % 3 * 45, w->drafts, 0};
    if (sl_pool_create(ways.threads, &run->budget, &pool, &err) != SL_OK)
        fail_msg("%s", err.text);
    sl_session_options options = tiny_session_options(run, c->type, &ways, most, pool);
    sl_model_drafter *model = w->model ? make_model_drafter(run, pool, most) : NULL;
    const sl_drafter model_drafter = model ? sl_model_drafter_drafter(model) : (sl_drafter){.name = NULL};
    options.talks = true;
    options.trees = w->tree;
    options.ngram = w->ngram;
    options.hot_tokens = w->self ? 128 : 0;
    options.drafters = &model_drafter;
    options.n_drafters = w->model ? 1 : 0;
    if (sl_session_create(&options, &session, &err) != SL_OK)
        fail_msg("%s", err.text);
    *out = (answer){.c = c, .kernels = &run->kernels, .n_vocab = run->weights->hp.n_vocab};
    const sl_generate_options generate = {
        .sampling = c->sampling,
        .n_predict = c->n_predict,
        .n_context = c->n_context ? c->n_context : most,
        .max_drafts = w->drafts,
        .may_branch = w->tree,
        .draft_auto = w->ngram && w->self && w->model,
        .drafter = w->drafter,
        .is_end = is_end,
        .drawn = note_drawn,
        .token = note_token,
        .arg = out,
    };
    const sl_feed_watch watch = {.logits = note_after, .arg = out};
    if (sl_session_feed(session, c->prompt, c->n_prompt, NULL, &err) != SL_OK ||
        sl_session_generate(session, &generate, &out->result, &err) != SL_OK)
        fail_msg("%s", err.text);
    out->finish = out->result.finish;
    out->n_history = sl_session_n_tokens(session);
    out->n_stored = sl_session_n_stored(session);
    for (uint32_t layer = 0; layer < run->weights->hp.n_layers; layer++)
        assert_int_equal(out->n_stored, sl_kv_tokens(sl_session_kv(session), layer));
    if (sl_session_feed(session, after, N_AFTER, &watch, &err) != SL_OK)
        fail_msg("%s", err.text);
    sl_session_destroy(session);
    sl_model_drafter_destroy(model);
    sl_pool_destroy(pool);
}

static void expect_same(const answer *want, const answer *got, const way *w)
{
    const text_case *c = want->c;
    for (size_t i = 0; i < want->n && i < got->n; i++)
        if (want->ids[i] != got->ids[i] || want->logits[i] != got->logits[i] ||
            memcmp(&want->logprobs[i], &got->logprobs[i], sizeof(float)) != 0)
            fail_msg("prompt of %zu, temp %g, %zu drafts by %s (%s): token %zu is %d with logprob %.9g, expected %d "
                     "with %.9g",
                     c->n_prompt, (double)c->sampling.temp, w->drafts, w->name, w->tree ? "tree" : "chain", i,
                     got->ids[i], (double)got->logprobs[i], want->ids[i], (double)want->logprobs[i]);
    if (want->n != got->n || want->n_told != got->n_told || want->finish != got->finish ||
        want->n_history != got->n_history || want->n_stored != got->n_stored || want->after != got->after)
        fail_msg("prompt of %zu, temp %g, %zu drafts by %s (%s): %zu drawn, %zu told, finish %d, %zu in the text, %zu "
                 "stored; expected %zu, %zu, %d, %zu, %zu; what follows %s",
                 c->n_prompt, (double)c->sampling.temp, w->drafts, w->name, w->tree ? "tree" : "chain", got->n,
                 got->n_told, (int)got->finish, got->n_history, got->n_stored, want->n, want->n_told, (int)want->finish,
                 want->n_history, want->n_stored, want->after == got->after ? "agrees" : "differs");
}

/* ------------------------------------------------------------------------------------------------------------- ways */

enum { N_DRAFTERS = 8 };

/* The session's own, as they are asked for and all of them with the choice between them; and prophets. */
static const struct {
    way way;
    sl_status (*propose)(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err);
} drafters[N_DRAFTERS] = {
    {{.name = "n-gram", .ngram = true}, NULL}, {{.name = "right"}, prophet_foretell},
    {{.name = "self", .self = true}, NULL},    {{.name = "wrong"}, prophet_mislead},
    {{.name = "tempting"}, prophet_tempt},     {{.name = "model", .model = true}, NULL},
    {{.name = "mad"}, prophet_rave},           {{.name = "auto", .ngram = true, .self = true, .model = true}, NULL},
};

/* Way k of all: drafters x numbers of drafts x chain or tree. */
enum { N_WAYS = N_DRAFTERS * N_DRAFTS * 2 };

static size_t n_accepted[N_DRAFTERS]; /* by way, of all answers */

static void compare_way(tiny_run *run, const answer *plain, size_t k)
{
    static answer got;
    const text_case *c = plain->c;
    prophet p = {plain->ids, plain->second, plain->n, c->n_prompt, run->weights->hp.n_vocab, 1 + 977 * k + c->n_prompt};
    const size_t kind = k % N_DRAFTERS;
    way w = drafters[kind].way;
    const sl_drafter drafter = {.name = w.name, .propose = drafters[kind].propose, .self = &p};
    w.drafts = draft_counts[k / N_DRAFTERS % N_DRAFTS];
    w.tree = k / N_DRAFTERS / N_DRAFTS % 2 > 0;
    w.drafter = drafter.propose ? &drafter : NULL;
    run_case(run, c, &w, &got);
    expect_same(plain, &got, &w);
    n_accepted[kind] += got.result.n_accepted;
}

/* ------------------------------------------------------------------------------------------------------------ cases */

static const int32_t bias_ids[] = {40, 41, 100, 40, 300 - 20};
static const float bias_values[] = {1.5f, -INFINITY, 0.75f, -0.25f, 2.0f};

/* Temperatures 0, 0.7 and 1.2, plain and with every option. */
static sl_sampling sampling_of(size_t i)
{
    static const float temps[3] = {0.0f, 0.7f, 1.2f};
    sl_sampling s = {.temp = temps[i % 3], .top_p = 1.0f, .seed = 7 + i};
    if (i / 3 % 2 == 0)
        return s;
    s.top_k = 60;
    s.top_p = 0.97f;
    s.min_p = 0.01f;
    s.penalty_last_n = i % 4 == 0 ? -1 : (int64_t)(1 + i % 80);
    s.repeat_penalty = 1.2f;
    s.presence_penalty = 0.3f;
    s.frequency_penalty = 0.2f;
    s.bias_ids = bias_ids;
    s.bias_values = bias_values;
    s.n_bias = sizeof bias_ids / sizeof *bias_ids;
    return s;
}

/* Bytes are tokens of the tiny vocabulary. */
static size_t spell(const char *text, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = TINY_TOK_BYTES + (unsigned char)text[i];
    return n;
}

static size_t n_prompts(void)
{
    const char *wanted = getenv("SLUICE_TEST_PROMPTS");
    const size_t n = wanted ? (size_t)strtoul(wanted, NULL, 10) : 24;
    return n < 1 ? 1 : EFFORT(n < PROMPTS ? n : PROMPTS);
}

static bool is_thorough(void)
{
    return getenv("SLUICE_TEST_PROMPTS") != NULL;
}

static void open_model(tiny_run *run)
{
    tiny_model model = tiny_model_of_seed(5);
    tiny_run_open(run, &model, sl_cpu_best());
}

static void every_prompt_is_answered_as_by_plain_decoding(void **unused)
{
    (void)unused;
    tiny_run run;
    open_model(&run);
    const size_t n = n_prompts(), n_ways = is_thorough() ? N_WAYS / 4 : EFFORT_IS_TINY ? 3 : 9;
    for (size_t i = 0; i < n; i++) {
        static int32_t prompt[PROMPT_BYTES];
        static char text[PROMPT_BYTES];
        static answer plain;
        const text_case c = {
            .prompt = prompt,
            .n_prompt = spell(text, prompt_make(i * PROMPTS / n, text), prompt),
            .n_predict = i % 5 == 1 ? 220 : 50 + i % 17,
            .sampling = sampling_of(i / 2 + i),
            .type = i % 3 == 2 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0,
            .end_id = -1,
        };
        run_case(&run, &c, &plain_way, &plain);
        assert_int_equal(SL_FINISH_LENGTH, plain.finish);
        for (size_t k = 0; k < n_ways; k++)
            compare_way(&run, &plain, (i * 31 + k * 45) % N_WAYS);
    }
    for (size_t kind = 0; kind < N_DRAFTERS; kind++)
        if ((n_accepted[kind] > 0) != (strcmp(drafters[kind].way.name, "wrong") != 0))
            fail_msg("%s: %zu drafts were accepted", drafters[kind].way.name, n_accepted[kind]);
    tiny_run_close(&run);
}

/* Prompts that end just before, at and behind the edges of tiles, of a segment and of slots, so that bursts cross
 * them. */
static void bursts_cross_every_edge(void **unused)
{
    (void)unused;
    static const size_t lengths[] = {1, 62, 63, 64, 65, 127, 128, 4030, 4090, 4095, 4096, 4097};
    static int32_t prompt[MOST_PROMPT];
    for (size_t i = 0; i < MOST_PROMPT; i++)
        prompt[i] = TINY_TOK_BYTES + (int32_t)(i * i / 7 % 26 + 'a');
    tiny_run run;
    open_model(&run);
    const size_t n_lengths = EFFORT_IS_TINY ? 3 : EFFORT_IS_SMALL ? 8 : sizeof lengths / sizeof *lengths;
    for (size_t i = 0; i < n_lengths; i++) {
        static answer plain;
        const text_case c = {
            .prompt = prompt,
            .n_prompt = lengths[i],
            .n_predict = 80,
            .sampling = sampling_of(i + 3),
            .type = i % 2 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0,
            .end_id = -1,
        };
        run_case(&run, &c, &plain_way, &plain);
        const size_t n_ways = is_thorough() ? N_WAYS / 2 : lengths[i] > 4000 ? 3 : 10;
        for (size_t k = 0; k < n_ways; k++)
            compare_way(&run, &plain, (i * 13 + k * 53) % N_WAYS);
    }
    tiny_run_close(&run);
}

/* The text ends inside a burst: by its length, the context's, an end token, a callback that says no (a stop string). */
static void texts_end_inside_a_burst(void **unused)
{
    (void)unused;
    static int32_t prompt[PROMPT_BYTES];
    static char text[PROMPT_BYTES];
    tiny_run run;
    open_model(&run);
    const size_t n = is_thorough() ? 60 : EFFORT(20);
    size_t n_reasons[4] = {0};
    for (size_t i = 0; i < n; i++) {
        static answer plain;
        text_case c = {
            .prompt = prompt,
            .n_prompt = spell(text, prompt_make(i, text), prompt),
            .n_predict = 70,
            .sampling = sampling_of(i),
            .type = SL_KV_TYPE_Q8_0,
            .end_id = -1,
        };
        run_case(&run, &c, &plain_way, &plain);
        const size_t at = 1 + i * 7 % 66;
        if (i % 4 == 0)
            c.n_predict = at;
        else if (i % 4 == 1)
            c.n_context = c.n_prompt + at;
        else if (i % 4 == 2)
            c.stop_after = at;
        else
            c.end_id = plain.ids[at];
        run_case(&run, &c, &plain_way, &plain);
        n_reasons[plain.finish]++;
        for (size_t k = 0; k < (is_thorough() ? N_WAYS / 4 : EFFORT_IS_TINY ? 2 : 8); k++)
            compare_way(&run, &plain, (i * 17 + k * 39) % N_WAYS);
    }
    for (int reason = 0; reason < 4; reason++)
        assert_true(n_reasons[reason] > 0);
    tiny_run_close(&run);
}

/* ------------------------------------------------------------------------------------------------- a poisoned token */

enum { POISON = TINY_TOK_BYTES }; /* the byte 0, which no prompt holds */

/* Every row through the token's embedding comes to NaNs. The packed layout is looked for, not known. */
static void poison(tiny_run *run)
{
    static float row[1024];
    sl_matrix *embedding = &run->weights->embedding;
    float *packed = (float *)(void *)embedding->packed;
    assert_int_equal(SL_WTYPE_F32, embedding->type);
    assert_true(embedding->n_in <= sizeof row / sizeof *row);
    sl_weight_row(embedding->type, embedding->packed, embedding->n_out, embedding->n_in, POISON, row);
    for (size_t i = 0; i < embedding->bytes / sizeof *packed; i++)
        for (size_t k = 0; k < embedding->n_in; k++)
            if (packed[i] == row[k])
                packed[i] = INFINITY;
}

/* The truth, but for one token of it, or for one beside it. */
static sl_status foretell_poison(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    sl_status status = prophet_foretell(self, ask, tree, err);
    if (status == SL_OK && tree->n > 0)
        tree->nodes[ask->n % tree->n].id = POISON;
    return status;
}

/* Plain decoding never computes a wrong draft's row: what the model makes of it must not end the text. Nor is it
 * computed again and again: once it is known, the drafts beside it are kept. */
static void a_draft_that_the_model_breaks_down_over_is_no_error(void **unused)
{
    (void)unused;
    static const int32_t banned[] = {POISON};
    static const float ban[] = {-INFINITY};
    static int32_t prompt[PROMPT_BYTES];
    static char text[PROMPT_BYTES];
    static answer plain, got;
    tiny_run run;
    tiny_model model = tiny_model_of_seed(5);
    model.separate_output = true;
    tiny_run_open(&run, &model, sl_cpu_best());
    poison(&run);
    for (size_t i = 0; i < 6; i++) {
        const text_case c = {
            .prompt = prompt,
            .n_prompt = spell(text, prompt_make(i, text), prompt),
            .n_predict = 40,
            .sampling = {.temp = 0.6f * (float)(i % 3),
                         .top_p = 1.0f,
                         .seed = i,
                         .bias_ids = banned,
                         .bias_values = ban,
                         .n_bias = 1},
            .type = i % 2 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0,
            .end_id = -1,
        };
        run_case(&run, &c, &plain_way, &plain);
        prophet p = {plain.ids, plain.second, plain.n, c.n_prompt, run.weights->hp.n_vocab, 1 + i};
        const sl_drafter drafter = {.name = "poisoned", .propose = foretell_poison, .self = &p};
        const way w = {.name = "poisoned", .drafts = 1 + 3 * i, .drafter = &drafter, .tree = i % 2 > 0};
        run_case(&run, &c, &w, &got);
        expect_same(&plain, &got, &w);
        if (w.drafts > 1 && got.result.n_accepted == 0)
            fail_msg("case %zu: no draft was kept beside the poisoned ones", i);
    }
    tiny_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_prompt_is_answered_as_by_plain_decoding),
        cmocka_unit_test(bursts_cross_every_edge),
        cmocka_unit_test(texts_end_inside_a_burst),
        cmocka_unit_test(a_draft_that_the_model_breaks_down_over_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
