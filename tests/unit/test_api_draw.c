/* What the public API hands out of an answer: stop strings wherever tokens and bursts begin, log-probabilities, options
 * that are refused. Drafts come from a prophet in place of the session's own drafters, so that bursts are long. */
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

#include "api/context.h"
#include "common/effort.h"
#include "common/prompts.h"
#include "common/tiny_model.h"
#include "decode/session_impl.h"

enum { MOST_DRAWN = 90, MOST_TEXT = 4096, N_BEST = 3, N_AFTER = 12 };

static sl_engine *engine;

static void open_engine(void)
{
    char path[256];
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(path, sizeof path, "%s/sluice-draw-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    const tiny_model model = tiny_model_of_seed(5);
    assert_true(tiny_model_write(&model, path));
    const sl_engine_options options = {.model_path = path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 2};
    sl_err err = {SL_OK, ""};
    const sl_status status = sl_engine_open(&options, &engine, &err);
    unlink(path);
    if (status != SL_OK)
        fail_msg("%s", err.text);
}

/* -------------------------------------------------------------------------------------------------------- an answer */

typedef struct answer {
    char text[MOST_TEXT];
    size_t n_text, n_sure; /* n_sure: without a character at the end that never became whole */
    int32_t ids[MOST_DRAWN];
    float logprobs[MOST_DRAWN][1 + N_BEST];
    int32_t best[MOST_DRAWN][N_BEST];
    size_t text_at[MOST_DRAWN]; /* n_text before the token's callback */
    size_t n, n_logprobs, say_no_at;
    sl_draw_result result;
    int32_t all[PROMPT_BYTES + MOST_DRAWN + 1]; /* of the context, afterwards */
    size_t n_all;
    int32_t after[N_AFTER]; /* drawn behind one token more */
    size_t n_after;
} answer;

static bool on_token(void *arg, int32_t id, const char *text, size_t size)
{
    answer *a = arg;
    assert_true(a->n_text + size < MOST_TEXT);
    if (id >= 0) {
        a->text_at[a->n] = a->n_text;
        a->ids[a->n++] = id;
        assert_int_equal(a->n, a->n_logprobs);
    }
    memcpy(a->text + a->n_text, text, size);
    a->n_text += size;
    a->n_sure = id >= 0 ? a->n_text : a->n_sure;
    return a->say_no_at == 0 || a->n < a->say_no_at;
}

static void on_logprobs(void *arg, const sl_token_logprobs *token)
{
    answer *a = arg;
    assert_int_equal(N_BEST, token->n_best);
    a->logprobs[a->n_logprobs][0] = token->logprob;
    memcpy(a->logprobs[a->n_logprobs] + 1, token->best_logprobs, N_BEST * sizeof(float));
    memcpy(a->best[a->n_logprobs++], token->best, N_BEST * sizeof(int32_t));
}

static bool on_after(void *arg, int32_t id, const char *text, size_t size)
{
    (void)text;
    (void)size;
    answer *a = arg;
    if (id >= 0)
        a->after[a->n_after++] = id;
    return true;
}

/* Foretells what plain decoding drew; now and then it errs. */
typedef struct prophet {
    const answer *truth;
    size_t n_prompt;
} prophet;

static sl_status foretell(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    (void)err;
    const prophet *p = self;
    for (size_t i = 0; i < ask->max_nodes && i < ask->max_depth; i++) {
        const size_t at = ask->n - p->n_prompt + i;
        const int32_t id = at < p->truth->n ? p->truth->ids[at] : 65;
        sl_draft_tree_add(tree, at % 23 == 22 ? id ^ 1 : id, (int32_t)i - 1, 0.9f);
    }
    return SL_OK;
}

static void run(const sl_tokens *prompt, const sl_draw_options *draw, const answer *truth, answer *out)
{
    sl_err err = {SL_OK, ""};
    sl_context *context = NULL;
    const sl_context_options options = {.allow_ram_dir = true, .prompt_tokens = prompt->n + MOST_DRAWN + 8,
                                        .predict_tokens = MOST_DRAWN, .max_drafts = draw->max_drafts, .talk = true};
    if (sl_context_create(engine, &options, &context, &err) != SL_OK)
        fail_msg("%s", err.text);
    prophet p = {truth, prompt->n};
    if (truth) {
        sl_session *session = context->session;
        for (size_t i = 0; i < session->n_drafters; i++)
            session->drafters[i] = (sl_drafter){.name = "prophet", .propose = foretell, .self = &p};
    }
    sl_draw_options o = *draw;
    o.n_logprobs = N_BEST;
    o.logprobs = on_logprobs;
    o.token = on_token;
    o.arg = out;
    if (sl_context_feed(context, prompt->ids, prompt->n, NULL, NULL, &err) != SL_OK ||
        sl_context_generate(context, &o, &out->result, &err) != SL_OK)
        fail_msg("%s", err.text);
    out->n_all = sl_context_n_tokens(context);
    memcpy(out->all, sl_context_ids(context), out->n_all * sizeof *out->all);
    /* What follows depends on every key and value that was kept. */
    const sl_draw_options more = {.temp = 1.0f, .top_p = 1.0f, .seed = 5, .predict_tokens = N_AFTER, .token = on_after,
                                  .arg = out};
    sl_draw_result ignored;
    if (sl_context_feed(context, (const int32_t[]){70}, 1, NULL, NULL, &err) != SL_OK ||
        sl_context_generate(context, &more, &ignored, &err) != SL_OK)
        fail_msg("%s", err.text);
    sl_context_destroy(context);
}

static void expect_same(const answer *want, const answer *got)
{
    assert_int_equal(want->result.reason, got->result.reason);
    assert_int_equal(want->result.n_tokens, got->result.n_tokens);
    assert_int_equal(want->n, got->n);
    assert_memory_equal(want->ids, got->ids, want->n * sizeof *want->ids);
    assert_memory_equal(want->logprobs, got->logprobs, want->n * sizeof *want->logprobs);
    assert_memory_equal(want->best, got->best, want->n * sizeof *want->best);
    assert_int_equal(want->n_text, got->n_text);
    assert_memory_equal(want->text, got->text, want->n_text);
    assert_memory_equal(want->text_at, got->text_at, want->n * sizeof *want->text_at);
    assert_int_equal(want->n_all, got->n_all);
    assert_memory_equal(want->all, got->all, want->n_all * sizeof *want->all);
    assert_int_equal(want->n_after, got->n_after);
    assert_memory_equal(want->after, got->after, want->n_after * sizeof *want->after);
}

static sl_tokens prompt_of(size_t i)
{
    char text[PROMPT_BYTES];
    sl_tokens prompt = {0};
    sl_err err = {SL_OK, ""};
    const size_t size = prompt_make(i, text);
    if (sl_engine_tokenize(engine, text, size, false, &prompt, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
    return prompt;
}

/* Three in four go on to their full length. No text holds a zero: what stands behind it could not be a stop string. */
static sl_draw_options draw_of(size_t i)
{
    static const int32_t ids[3] = {TINY_TOK_BYTES, TINY_TOK_END, TINY_TOK_IM_END};
    static const float banned[3] = {-INFINITY, -INFINITY, -INFINITY};
    return (sl_draw_options){.temp = i % 3 ? 0.5f * (float)(i % 3) : 0.0f, .top_p = 1.0f, .seed = i,
                             .penalty_last_n = -1, .presence_penalty = i % 2 ? 0.5f : 0.0f,
                             .bias_ids = ids, .bias_values = banned, .n_bias = i % 4 == 3 ? 1 : 3,
                             .predict_tokens = MOST_DRAWN};
}

/* ------------------------------------------------------------------------------------------------------------ stops */

static bool is_start(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

/* A piece of the text, of whole characters and from about `at` on. */
static void cut_piece(const answer *a, size_t at, size_t n_chars, char out[64])
{
    while (at > 0 && !is_start(a->text[at]))
        at--;
    size_t end = at;
    for (size_t i = 0; i < n_chars && end < a->n_text; i++)
        do
            end++;
        while (end < a->n_text && !is_start(a->text[end]));
    memcpy(out, a->text + at, end - at);
    out[end - at] = '\0';
}

/* Where the text is cut: before the stop string that ends first, the longest if several do. */
static size_t cut_at(const answer *a, const char *const *stops, size_t n_stops)
{
    for (size_t end = 1; end <= a->n_sure; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n_stops; i++) {
            const size_t size = strlen(stops[i]);
            if (size <= end && size > longest && memcmp(a->text + end - size, stops[i], size) == 0)
                longest = size;
        }
        if (longest > 0)
            return end - longest;
    }
    return a->n_text;
}

static void a_stop_string_ends_the_text_before_it(void **unused)
{
    (void)unused;
    static const size_t drafts[] = {1, 7, 63, 80};
    size_t n_inside = 0;
    for (size_t i = 0; i < (size_t)EFFORT(48); i++) {
        static answer whole, plain, got;
        memset(&whole, 0, sizeof whole);
        memset(&plain, 0, sizeof plain);
        sl_tokens prompt = prompt_of(i);
        sl_draw_options draw = draw_of(i);
        run(&prompt, &draw, NULL, &whole);
        char piece[64], begun[64];
        if (whole.n_sure == 0) { /* ended at once */
            sl_tokens_free(engine, &prompt);
            continue;
        }
        cut_piece(&whole, i * 37 % whole.n_sure, 1 + i % 5, piece);
        cut_piece(&whole, i * 11 % whole.n_sure, 1 + i % 3, begun);
        strcat(begun, "\x01\x02never");
        const char *stops[] = {begun, piece, "nor this"};
        draw.stops = stops;
        draw.n_stops = 3;
        run(&prompt, &draw, NULL, &plain);
        const size_t cut = cut_at(&whole, stops, 3);
        assert_int_equal(cut, plain.n_text);
        assert_memory_equal(whole.text, plain.text, cut);
        if (cut == whole.n_text) { /* the piece ends with a character that never became whole */
            sl_tokens_free(engine, &prompt);
            continue;
        }
        assert_int_equal(SL_FINISH_REASON_STOP, plain.result.reason);
        /* the tokens up to the one that completed the string, and no other */
        assert_int_equal(plain.n, plain.result.n_tokens);
        assert_memory_equal(whole.ids, plain.ids, plain.n * sizeof *plain.ids);
        assert_int_equal(prompt.n + plain.n, plain.n_all);
        assert_true(plain.text_at[plain.n - 1] <= cut);
        for (size_t k = 0; k < sizeof drafts / sizeof *drafts; k++) {
            memset(&got, 0, sizeof got);
            draw.max_drafts = drafts[k];
            run(&prompt, &draw, &whole, &got);
            expect_same(&plain, &got);
        }
        n_inside += plain.n > 2 && plain.n < whole.n - 1;
        sl_tokens_free(engine, &prompt);
    }
    assert_true(n_inside > 3);
}

/* What could be the beginning is held back, and handed out when it is none: with the next token, or at the end. */
static void what_is_held_back_comes_in_the_end(void **unused)
{
    (void)unused;
    static answer whole, got;
    for (size_t i = 0; i < 12; i++) {
        memset(&whole, 0, sizeof whole);
        memset(&got, 0, sizeof got);
        sl_tokens prompt = prompt_of(i);
        sl_draw_options draw = draw_of(i);
        draw.predict_tokens = 30 + i;
        run(&prompt, &draw, NULL, &whole);
        char begun[64];
        cut_piece(&whole, whole.n_text - 1, 1, begun); /* the last character, and more that never comes */
        strcat(begun, "\x01\x02never");
        const char *stops[] = {begun};
        draw.stops = stops;
        draw.n_stops = 1;
        got.say_no_at = i % 2 ? 20 : 0;
        run(&prompt, &draw, NULL, &got);
        const bool is_cut = i % 2 && whole.n >= 20;
        assert_int_equal(is_cut ? SL_FINISH_REASON_CANCELLED : whole.result.reason, got.result.reason);
        assert_true(is_cut ? got.n_text >= whole.text_at[20] : got.n_text == whole.n_text);
        assert_memory_equal(whole.text, got.text, is_cut ? whole.text_at[20] : whole.n_text);
        sl_tokens_free(engine, &prompt);
    }
}

/* ------------------------------------------------------------------------------------------------ log-probabilities */

typedef struct scores {
    size_t n_prompt;
    const answer *a;
    size_t n;
} scores;

static bool on_score(void *arg, const sl_score *score)
{
    scores *s = arg;
    if (score->position + 1 < s->n_prompt || !score->has_next)
        return true;
    const size_t at = (size_t)score->position + 1 - s->n_prompt;
    assert_memory_equal(&score->next_logprob, &s->a->logprobs[at][0], sizeof(float));
    assert_memory_equal(score->best, s->a->best[at], N_BEST * sizeof(int32_t));
    assert_memory_equal(score->best_logprobs, s->a->logprobs[at] + 1, N_BEST * sizeof(float));
    s->n++;
    return true;
}

/* Whatever the penalties and biases are: they are by the raw logits. */
static void logprobs_are_those_of_scoring(void **unused)
{
    (void)unused;
    static answer a;
    memset(&a, 0, sizeof a);
    sl_tokens prompt = prompt_of(1);
    sl_draw_options draw = draw_of(1);
    const int32_t ids[2] = {80, 90};
    const float values[2] = {3.0f, -INFINITY};
    draw.repeat_penalty = 1.5f;
    draw.bias_ids = ids;
    draw.bias_values = values;
    draw.n_bias = 2;
    run(&prompt, &draw, NULL, &a);
    sl_err err = {SL_OK, ""};
    sl_context *context = NULL;
    const sl_context_options options = {.allow_ram_dir = true, .prompt_tokens = a.n_all, .score_best = N_BEST};
    if (sl_context_create(engine, &options, &context, &err) != SL_OK)
        fail_msg("%s", err.text);
    scores s = {prompt.n, &a, 0};
    const sl_score_options score = {.n_best = N_BEST, .row = on_score, .arg = &s};
    double perplexity = 0.0;
    if (sl_context_score(context, a.all, a.n_all, &score, &perplexity, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(a.n, s.n);
    sl_context_destroy(context);
    sl_tokens_free(engine, &prompt);
}

/* --------------------------------------------------------------------------------------------------------- refusals */

static void bad_options_change_nothing(void **unused)
{
    (void)unused;
    sl_tokens prompt = prompt_of(0);
    sl_context *context = NULL;
    sl_err err = {SL_OK, ""};
    const sl_context_options options = {.allow_ram_dir = true, .prompt_tokens = prompt.n, .predict_tokens = 8};
    const char *empty[] = {""};
    const int32_t foreign[] = {1 << 20};
    const float one[] = {1.0f};
    const sl_draw_options bad[] = {
        {.top_p = 1.0f, .predict_tokens = 8, .stops = empty, .n_stops = 1},
        {.top_p = 1.0f, .predict_tokens = 8, .bias_ids = foreign, .bias_values = one, .n_bias = 1},
        {.top_p = 1.0f, .predict_tokens = 8, .n_logprobs = SL_LOGPROBS_MAX + 1},
        {.top_p = 0.0f, .predict_tokens = 8},
        {.top_p = 1.0f, .predict_tokens = 8, .repeat_penalty = 1000.0f},
    };
    static const char *const words[] = {"stop string 1", "1048576", "101", "top-p", "repetition penalty"};
    if (sl_context_create(engine, &options, &context, &err) != SL_OK ||
        sl_context_feed(context, prompt.ids, prompt.n, NULL, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
    sl_draw_result result;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(SL_USAGE, sl_engine_check_draw(engine, &bad[i], &err));
        assert_int_equal(SL_USAGE, sl_context_generate(context, &bad[i], &result, &err));
        assert_non_null(strstr(err.text, words[i]));
    }
    const sl_draw_options good = {.top_p = 1.0f, .predict_tokens = 8};
    if (sl_context_generate(context, &good, &result, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(8, result.n_tokens);
    sl_context_destroy(context);
    sl_tokens_free(engine, &prompt);
}

int main(void)
{
    open_engine();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_string_ends_the_text_before_it),
        cmocka_unit_test(what_is_held_back_comes_in_the_end),
        cmocka_unit_test(logprobs_are_those_of_scoring),
        cmocka_unit_test(bad_options_change_nothing),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_engine_close(engine);
    return failed;
}
