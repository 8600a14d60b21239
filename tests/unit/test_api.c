/* The public API on a tiny model: prompts and chat templates, order of calls, scoring, RoPE scaling, plans, traces.
 * Longer than most files: all of it shares one model, one set of options and one file. */
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
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "common/tiny_model.h"
#include "platform/os.h"

static char path[256];

static float rope_freqs; /* 0: none; else every factor of the tensor rope_freqs.weight */

static void write_model(const tiny_model *model)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(path, sizeof path, "%s/sluice-api-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    gguf_build build;
    gguf_build_init(&build);
    tiny_model_build(model, &build);
    if (rope_freqs > 0.0f) {
        float factors[16];
        const uint64_t dims[1] = {16};
        for (int i = 0; i < 16; i++)
            factors[i] = rope_freqs;
        gguf_build_tensor(&build, "rope_freqs.weight", TINY_TYPE_F32, 1, dims, factors, sizeof factors);
    }
    assert_true(gguf_build_write(&build, path));
    gguf_build_deinit(&build);
}

#if defined(__x86_64__)
static unsigned caller_mode; /* bits of MXCSR that the caller sets once the model is written */
#endif

static void set_caller_mode(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | caller_mode);
#endif
}

static sl_engine *open_engine(const tiny_model *model, bool vocab_only)
{
    write_model(model);
    set_caller_mode();
    const sl_engine_options options = {
        .model_path = path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 2, .vocab_only = vocab_only};
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    sl_status status = sl_engine_open(&options, &engine, &err);
    unlink(path);
    if (status != SL_OK)
        fail_msg("%s", err.text);
    return engine;
}

static sl_tokens tokens_of(sl_engine *engine, const char *text, bool special)
{
    sl_tokens tokens = {0};
    sl_err err = {SL_OK, ""};
    if (sl_engine_tokenize(engine, text, strlen(text), special, &tokens, NULL, &err) != SL_OK)
        fail_msg("%s", err.text);
    return tokens;
}

static sl_tokens prompt_of(sl_engine *engine, const char *document, const char *question, bool chat)
{
    const sl_prompt prompt = {.document = document,
                              .document_size = document ? strlen(document) : 0,
                              .question = question,
                              .question_size = question ? strlen(question) : 0,
                              .chat = chat};
    sl_tokens tokens = {0};
    sl_err err = {SL_OK, ""};
    if (sl_engine_prompt(engine, &prompt, &tokens, &err) != SL_OK)
        fail_msg("%s", err.text);
    return tokens;
}

/* Takes the tokens of `text` off the front of `all`. */
static void expect_front(sl_engine *engine, sl_tokens *all, size_t *at, const char *text, bool special)
{
    sl_tokens part = tokens_of(engine, text, special);
    assert_true(part.n <= all->n - *at);
    assert_memory_equal(part.ids, all->ids + *at, part.n * sizeof *part.ids);
    *at += part.n;
    sl_tokens_free(engine, &part);
}

static void prompt_pieces_are_tokenised_apart(void **unused)
{
    (void)unused;
    tiny_model model = tiny_model_of_seed(1);
    sl_engine *engine = open_engine(&model, true);
    /* the document would merge with what follows if they were one text */
    static const char document[] = "the cat<|im_end|>\n";
    const char *questions[] = {"\nthe dog?", "who?"};
    for (int i = 0; i < 2; i++) {
        char with_gap[64];
        snprintf(with_gap, sizeof with_gap, "\n\n%s", questions[i]);
        sl_tokens all = prompt_of(engine, document, questions[i], false);
        size_t at = 0;
        expect_front(engine, &all, &at, document, false);
        expect_front(engine, &all, &at, with_gap, false);
        assert_int_equal(all.n, at);
        sl_tokens_free(engine, &all);
        all = prompt_of(engine, document, questions[i], true);
        at = 0;
        expect_front(engine, &all, &at, "<|im_start|>system\n", true);
        while (all.ids[at] != TINY_TOK_IM_END) /* the template's own system message */
            at++;
        expect_front(engine, &all, &at, "<|im_end|>\n<|im_start|>user\n", true);
        expect_front(engine, &all, &at, document, false);
        expect_front(engine, &all, &at, with_gap, false);
        expect_front(engine, &all, &at, "<|im_end|>\n<|im_start|>assistant\n", true);
        assert_int_equal(all.n, at);
        sl_tokens_free(engine, &all);
    }
    sl_tokens question = prompt_of(engine, NULL, "who?", false), plain = tokens_of(engine, "who?", false);
    assert_int_equal(plain.n, question.n);
    sl_tokens_free(engine, &question);
    sl_tokens_free(engine, &plain);
    sl_engine_close(engine);
}

static void an_empty_prompt_and_a_foreign_template_are_refused(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    sl_tokens tokens = {0};
    tiny_model model = tiny_model_of_seed(1);
    sl_engine *engine = open_engine(&model, true);
    const sl_prompt empty = {.document = "", .chat = true};
    assert_int_equal(SL_USAGE, sl_engine_prompt(engine, &empty, &tokens, &err));
    assert_non_null(strstr(err.text, "empty"));
    sl_tokens_free(engine, &tokens);
    sl_engine_close(engine);
    model.chat_template = "[INST] {{ messages[0]['content'] }} [/INST]";
    engine = open_engine(&model, true);
    const sl_prompt chat = {.question = "hi", .question_size = 2, .chat = true};
    assert_int_equal(SL_REFUSED, sl_engine_prompt(engine, &chat, &tokens, &err));
    assert_non_null(strstr(err.text, "template"));
    sl_tokens_free(engine, &tokens);
    sl_engine_close(engine);
}

static void bos_as_the_file_says(void **unused)
{
    (void)unused;
    tiny_model model = tiny_model_of_seed(1);
    sl_engine *engine = open_engine(&model, true);
    sl_tokens plain = prompt_of(engine, "the cat", NULL, false);
    model.add_bos = true;
    sl_engine *with = open_engine(&model, true);
    sl_tokens more = prompt_of(with, "the cat", NULL, false);
    assert_int_equal(plain.n + 1, more.n);
    assert_memory_equal(plain.ids, more.ids + 1, plain.n * sizeof *plain.ids);
    sl_tokens_free(with, &more);
    sl_engine_close(with);
    sl_tokens_free(engine, &plain);
    sl_engine_close(engine);
}

static sl_context_options context_options(size_t prompt_tokens, size_t predict_tokens)
{
    return (sl_context_options){
        .prompt_tokens = prompt_tokens, .predict_tokens = predict_tokens, .max_drafts = 3, .score_best = 2};
}

static const int32_t ids[6] = {10, 20, 30, 40, 50, 60};

static bool no_row(void *arg, const sl_score *score)
{
    (void)arg;
    (void)score;
    return true;
}

static void calls_out_of_order_are_usage_errors(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    tiny_model model = tiny_model_of_seed(1);
    sl_engine *vocabulary = open_engine(&model, true);
    const sl_context_options options = context_options(6, 4);
    sl_context *context = NULL;
    assert_int_equal(SL_USAGE, sl_context_create(vocabulary, &options, &context, &err));
    sl_engine_close(vocabulary);

    sl_engine *engine = open_engine(&model, false);
    assert_int_equal(SL_OK, sl_context_create(engine, &options, &context, &err));
    sl_draw_options draw = {.top_p = 1.0f, .predict_tokens = 4, .max_drafts = 3};
    sl_draw_result result;
    sl_score_options score = {.row = no_row};
    double perplexity;
    assert_int_equal(SL_USAGE, sl_context_generate(context, &draw, &result, &err));
    assert_int_equal(SL_USAGE, sl_context_feed(context, ids, 0, NULL, NULL, &err));
    assert_int_equal(SL_OK, sl_context_feed(context, ids, 4, NULL, NULL, &err));
    assert_int_equal(SL_USAGE, sl_context_score(context, ids, 6, &score, &perplexity, &err));
    assert_int_equal(SL_OK, sl_context_feed(context, ids + 4, 2, NULL, NULL, &err));
    draw.max_drafts = 4;
    assert_int_equal(SL_USAGE, sl_context_generate(context, &draw, &result, &err));
    draw.max_drafts = 3;
    draw.predict_tokens = 5;
    assert_int_equal(SL_USAGE, sl_context_generate(context, &draw, &result, &err));
    draw.predict_tokens = 4;
    assert_int_equal(SL_OK, sl_context_generate(context, &draw, &result, &err));
    assert_int_equal(SL_USAGE, sl_context_generate(context, &draw, &result, &err));
    assert_int_equal(SL_USAGE, sl_context_feed(context, ids, 1, NULL, NULL, &err));
    sl_context_destroy(context);

    assert_int_equal(SL_OK, sl_context_create(engine, &options, &context, &err));
    const int32_t bad[1] = {1 << 20};
    assert_int_equal(SL_USAGE, sl_context_feed(context, bad, 1, NULL, NULL, &err));
    static int32_t many[64];
    assert_int_equal(SL_REFUSED, sl_context_feed(context, many, 64, NULL, NULL, &err));
    assert_int_equal(SL_USAGE, sl_context_feed(context, ids, 1, NULL, NULL, &err)); /* broken */
    sl_context_destroy(context);
    sl_engine_close(engine);
}

typedef struct scored {
    float last[2];   /* best two log-probabilities at the last position */
    float next[6];
    size_t n;
} scored;

static bool note_row(void *arg, const sl_score *score)
{
    scored *s = arg;
    if (score->has_next)
        s->next[score->position] = score->next_logprob;
    memcpy(s->last, score->best_logprobs, sizeof s->last);
    s->n++;
    return true;
}

static scored score_ids(const tiny_model *model, double rope_scale, double *perplexity)
{
    sl_err err = {SL_OK, ""};
    sl_engine *engine = open_engine(model, false);
    sl_context_options options = context_options(6, 0);
    options.rope_scale = rope_scale;
    sl_context *context = NULL;
    scored s = {.n = 0};
    const sl_score_options score = {.n_best = 2, .row = note_row, .arg = &s};
    sl_status status = sl_context_create(engine, &options, &context, &err);
    if (status == SL_OK)
        status = sl_context_score(context, ids, 6, &score, perplexity, &err);
    if (status != SL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(6, s.n);
    sl_context_destroy(context);
    sl_engine_close(engine);
    return s;
}

static void perplexity_is_that_of_the_logprobs(void **unused)
{
    (void)unused;
    tiny_model model = tiny_model_of_seed(4);
    double perplexity, sum = 0.0;
    scored s = score_ids(&model, 0.0, &perplexity);
    for (int i = 0; i < 5; i++)
        sum += (double)s.next[i];
    assert_true(fabs(perplexity - exp(-sum / 5)) < 1e-9 * perplexity);
}

/* The file's linear factor, the option, and frequency factors of the file say the same when they are powers of two. */
static void rope_scaling_by_file_and_by_option_agree(void **unused)
{
    (void)unused;
    double perplexity;
    tiny_model model = tiny_model_of_seed(4);
    scored plain = score_ids(&model, 0.0, &perplexity), by_option = score_ids(&model, 2.0, &perplexity);
    model.rope_factor = 2.0;
    scored by_file = score_ids(&model, 0.0, &perplexity);
    assert_memory_equal(&by_option, &by_file, sizeof by_file);
    assert_memory_not_equal(&plain, &by_file, sizeof by_file);
    model.rope_factor = 1.0;
    rope_freqs = 2.0f;
    scored by_tensor = score_ids(&model, 0.0, &perplexity);
    rope_freqs = 0.0f;
    assert_memory_equal(&by_option, &by_tensor, sizeof by_tensor);
}

#if defined(__x86_64__)
typedef struct drawn_ids {
    int32_t ids[40];
    size_t n;
} drawn_ids;

static bool note_id(void *arg, int32_t id, const char *text, size_t size)
{
    (void)text;
    (void)size;
    drawn_ids *d = arg;
    if (id >= 0)
        d->ids[d->n++] = id;
    return true;
}

static drawn_ids draw_some(void)
{
    sl_err err = {SL_OK, ""};
    tiny_model model = tiny_model_of_seed(4);
    sl_engine *engine = open_engine(&model, false);
    const sl_context_options options = context_options(6, 40);
    const sl_draw_options draw = {.temp = 1.1f, .top_p = 0.95f, .seed = 5, .predict_tokens = 40, .max_drafts = 3};
    drawn_ids d = {.n = 0};
    sl_draw_options with = draw;
    with.token = note_id;
    with.arg = &d;
    sl_context *context = NULL;
    sl_draw_result result;
    assert_int_equal(SL_OK, sl_context_create(engine, &options, &context, &err));
    assert_int_equal(SL_OK, sl_context_feed(context, ids, 6, NULL, NULL, &err));
    assert_int_equal(SL_OK, sl_context_generate(context, &with, &result, &err));
    sl_context_destroy(context);
    sl_engine_close(engine);
    return d;
}
#endif

/* Flushing of denormals and another rounding, set by whoever calls: the same bits, and the word is as it was. */
static void a_callers_control_word_changes_nothing(void **unused)
{
    (void)unused;
#if defined(__x86_64__)
    double perplexity;
    tiny_model model = tiny_model_of_seed(4);
    scored plain = score_ids(&model, 0.0, &perplexity);
    drawn_ids plain_ids = draw_some();
    const unsigned word = _mm_getcsr(), modes[] = {0x8040u, 0x8040u | 0x6000u, 0x2000u, 0x4000u};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        caller_mode = modes[i];
        scored got = score_ids(&model, 0.0, &perplexity);
        unsigned after = _mm_getcsr();
        _mm_setcsr(word);
        drawn_ids got_ids = draw_some();
        assert_int_equal(after & ~0x3fu, _mm_getcsr() & ~0x3fu);
        _mm_setcsr(word);
        caller_mode = 0;
        assert_int_equal((word | modes[i]) & ~0x3fu, after & ~0x3fu);
        assert_memory_equal(&plain, &got, sizeof got);
        assert_memory_equal(&plain_ids, &got_ids, sizeof got_ids);
    }
#else
    skip();
#endif
}

static void a_prompt_beyond_the_trained_context_is_refused(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    tiny_model model = tiny_model_of_seed(4);
    model.n_context = 100;
    sl_engine *engine = open_engine(&model, false);
    sl_context_options options = context_options(101, 10);
    sl_context *context = NULL;
    assert_int_equal(SL_REFUSED, sl_context_create(engine, &options, &context, &err));
    assert_non_null(strstr(err.text, "--rope-scale"));
    options.force_context = true;
    assert_int_equal(SL_OK, sl_context_create(engine, &options, &context, &err));
    sl_context_destroy(context);
    options.force_context = false;
    options.rope_scale = 2.0;
    assert_int_equal(SL_OK, sl_context_create(engine, &options, &context, &err));
    sl_context_destroy(context);
    /* room for four more: generation stops there and says why */
    options = context_options(96, 10);
    static int32_t long_text[96];
    for (int i = 0; i < 96; i++)
        long_text[i] = 3 + i;
    assert_int_equal(SL_OK, sl_context_create(engine, &options, &context, &err));
    assert_int_equal(SL_OK, sl_context_feed(context, long_text, 96, NULL, NULL, &err));
    const sl_draw_options draw = {.temp = 0.7f, .top_p = 1.0f, .seed = 5, .predict_tokens = 10, .max_drafts = 3};
    sl_draw_result result;
    assert_int_equal(SL_OK, sl_context_generate(context, &draw, &result, &err));
    assert_int_equal(SL_FINISH_REASON_CONTEXT, result.reason);
    assert_int_equal(4, result.n_tokens);
    sl_context_destroy(context);
    sl_engine_close(engine);
}

static void a_plan_only_engine_makes_no_contexts(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    tiny_model model = tiny_model_of_seed(1);
    write_model(&model);
    const sl_engine_options engine_options = {.model_path = path, .n_threads = 1, .plan_only = true};
    sl_engine *engine = NULL;
    assert_int_equal(SL_OK, sl_engine_open(&engine_options, &engine, &err));
    sl_context_options options = context_options(6, 4);
    sl_context *context = NULL;
    assert_int_equal(SL_USAGE, sl_context_create(engine, &options, &context, &err));
    assert_non_null(strstr(err.text, "planning"));
    sl_engine_info info;
    sl_engine_get_info(engine, &info);
    assert_true(info.weight_bytes > 0 && info.n_layers == 2 && info.n_vocab == tiny_model_n_vocab());
    options.prompt_tokens = (size_t)1 << 30; /* far beyond the trained context: a plan is about sizes */
    options.io = SL_IO_BUFFERED;
    options.kv_dir = "/nowhere/at/all";
    sl_plan plan;
    assert_int_equal(SL_REFUSED, sl_engine_plan(engine, &options, 4, &plan, NULL, &err));
    assert_true(plan.max_tokens == ((size_t)1 << 30) + 4 && plan.kv_bytes == plan.max_tokens * plan.kv_token_bytes);
    sl_engine_close(engine);
    sl_engine *vocabulary = open_engine(&model, true);
    assert_int_equal(SL_USAGE, sl_engine_plan(vocabulary, &options, 4, &plan, NULL, &err));
    sl_engine_close(vocabulary);
}

typedef struct log_lines {
    size_t n_warnings;
    char last[256];
} log_lines;

static void keep_log(void *arg, bool warning, const char *text)
{
    log_lines *lines = arg;
    if (!warning)
        return;
    lines->n_warnings++;
    snprintf(lines->last, sizeof lines->last, "%s", text);
}

static void more_threads_than_processors_are_told_once(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    tiny_model model = tiny_model_of_seed(1);
    write_model(&model);
    log_lines lines = {0};
    sl_engine_options options = {.model_path = path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 1, .log = keep_log,
                                 .arg = &lines};
    sl_engine *engine = NULL;
    assert_int_equal(SL_OK, sl_engine_open(&options, &engine, &err));
    sl_engine_close(engine);
    assert_int_equal(0, lines.n_warnings);
    char number[32];
    options.n_threads = (uint32_t)sl_os_n_cpus() + 3;
    snprintf(number, sizeof number, "%u", options.n_threads);
    assert_int_equal(SL_OK, sl_engine_open(&options, &engine, &err));
    sl_engine_close(engine);
    unlink(path);
    assert_int_equal(1, lines.n_warnings);
    assert_non_null(strstr(lines.last, number));
}

static void a_trace_is_written_and_ended(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    tiny_model model = tiny_model_of_seed(1);
    write_model(&model);
    char trace_path[300];
    snprintf(trace_path, sizeof trace_path, "%s.trace.json", path);
    sl_engine_options options = {.model_path = path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 2,
                                 .trace_path = "/nowhere/at/all"};
    sl_engine *engine = NULL;
    assert_int_equal(SL_FAILED, sl_engine_open(&options, &engine, &err));
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
    options.trace_path = trace_path;
    assert_int_equal(SL_OK, sl_engine_open(&options, &engine, &err));
    unlink(path);
    const sl_context_options context_of = context_options(6, 4);
    sl_context *context = NULL;
    assert_int_equal(SL_OK, sl_context_create(engine, &context_of, &context, &err));
    assert_int_equal(SL_OK, sl_context_feed(context, ids, 6, NULL, NULL, &err));
    sl_context_destroy(context);
    sl_engine_close(engine);
    static char text[1 << 20];
    FILE *file = fopen(trace_path, "r");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    unlink(trace_path);
    text[n] = '\0';
    assert_non_null(strstr(text, "\"layer\""));
    while (n > 0 && text[n - 1] == '\n')
        n--;
    assert_true(n > 0 && (text[n - 1] == '}' || text[n - 1] == ']'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_only_engine_makes_no_contexts),
        cmocka_unit_test(more_threads_than_processors_are_told_once),
        cmocka_unit_test(a_trace_is_written_and_ended),
        cmocka_unit_test(prompt_pieces_are_tokenised_apart),
        cmocka_unit_test(an_empty_prompt_and_a_foreign_template_are_refused),
        cmocka_unit_test(bos_as_the_file_says),
        cmocka_unit_test(calls_out_of_order_are_usage_errors),
        cmocka_unit_test(perplexity_is_that_of_the_logprobs),
        cmocka_unit_test(rope_scaling_by_file_and_by_option_agree),
        cmocka_unit_test(a_callers_control_word_changes_nothing),
        cmocka_unit_test(a_prompt_beyond_the_trained_context_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
