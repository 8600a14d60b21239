/* A second model that drafts, through the public API: which ones are taken, what they take, that they change nothing;
 * and what the plan makes of drafters where memory is short. */
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

#include "common/tiny_model.h"

enum { N_IDS = 300, PREDICT = 60 };

static char model_path[256], draft_path[256];

static void write_models(void)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(model_path, sizeof model_path, "%s/sluice-model-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    snprintf(draft_path, sizeof draft_path, "%s/sluice-draft-%ld.gguf", dir ? dir : "/var/tmp", (long)getpid());
    const tiny_model model = tiny_model_of_seed(8);
    tiny_model draft = tiny_model_of_seed(9);
    draft.n_layers = 1;
    draft.rope_base = 5000.0;
    assert_true(tiny_model_write(&model, model_path));
    assert_true(tiny_model_write(&draft, draft_path));
}

static sl_status open_engine(const char *draft, uint64_t ram_bytes, sl_engine **out, sl_err *err)
{
    const sl_engine_options options = {.model_path = model_path, .draft_model_path = draft, .ram_bytes = ram_bytes,
                                       .n_threads = 2};
    return sl_engine_open(&options, out, err);
}

static sl_engine *engine_of(const char *draft, uint64_t ram_bytes)
{
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    if (open_engine(draft, ram_bytes, &engine, &err) != SL_OK)
        fail_msg("%s", err.text);
    return engine;
}

/* The byte `at` bytes behind the first place in the draft model's file where `what` stands becomes another. */
static void change_draft(const void *what, size_t size, size_t at, char byte)
{
    FILE *file = fopen(draft_path, "r+b");
    assert_non_null(file);
    static char all[4 << 20];
    const size_t n = fread(all, 1, sizeof all, file);
    size_t found = 0;
    while (found + size <= n && memcmp(all + found, what, size) != 0)
        found++;
    assert_true(found + size + at <= n);
    assert_int_equal(0, fseek(file, (long)(found + at), SEEK_SET));
    assert_int_equal(1, fwrite(&byte, 1, 1, file));
    assert_int_equal(0, fclose(file));
}

static void expect_refusal(const char *text)
{
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_REFUSED, open_engine(draft_path, UINT64_C(1) << 30, &engine, &err));
    assert_null(engine);
    if (!strstr(err.text, text) || !strstr(err.text, draft_path))
        fail_msg("%s", err.text);
}

static void another_vocabulary_is_refused(void **unused)
{
    (void)unused;
    /* a string of a GGUF array: its length in eight bytes, then its bytes */
    static const char token[] = "\x0c\0\0\0\0\0\0\0<|im_start|>";
    static const char key[] = "tokenizer.ggml.eos_token_id";
    write_models();
    char text[1024];
    change_draft(token, sizeof token - 1, 8 + 5, '5');
    snprintf(text, sizeof text, "token 1 is '<|im_5tart|>' in %s, '<|im_start|>' in %s", draft_path, model_path);
    expect_refusal(text);
    write_models();
    change_draft(token, sizeof token - 1, 8 + 5, '\x80');
    expect_refusal("token 1 is '<|im_<0x80>tart|>' in ");
    write_models();
    change_draft(key, sizeof key - 1, sizeof key - 1 + 4, 7);
    snprintf(text, sizeof text, "tokenizer.ggml.eos_token_id is 7 in %s, ", draft_path);
    expect_refusal(text);
    unlink(model_path);
    unlink(draft_path);
}

static void what_is_no_model_is_refused(void **unused)
{
    (void)unused;
    write_models();
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    assert_int_not_equal(SL_OK, open_engine("/nowhere/at.gguf", UINT64_C(1) << 30, &engine, &err));
    assert_non_null(strstr(err.text, "/nowhere/at.gguf"));
    engine = engine_of(NULL, UINT64_C(1) << 30);
    sl_context *context = NULL;
    sl_context_options options = {.prompt_tokens = 10, .predict_tokens = 10, .max_drafts = 3,
                                  .drafters = SL_DRAFT_WITH_MODEL};
    assert_int_equal(SL_USAGE, sl_context_create(engine, &options, &context, &err));
    assert_non_null(strstr(err.text, "without one"));
    options.drafters = 64;
    assert_int_equal(SL_USAGE, sl_context_create(engine, &options, &context, &err));
    options.drafters = SL_DRAFT_WITH_NGRAM;
    options.hot_tokens = 1024;
    assert_int_equal(SL_USAGE, sl_context_create(engine, &options, &context, &err));
    assert_non_null(strstr(err.text, "hot set"));
    sl_engine_close(engine);
    unlink(model_path);
    unlink(draft_path);
}

typedef struct told {
    int32_t ids[N_IDS + PREDICT + 8];
    size_t n;
    sl_stats stats;
    sl_plan plan;
} told;

static void tell(sl_engine *engine, unsigned drafters, bool is_auto, sl_draft_shape shape, told *out)
{
    sl_context_options options = {.prompt_tokens = N_IDS, .predict_tokens = PREDICT, .max_drafts = drafters ? 7 : 0,
                                  .drafters = drafters, .draft_auto = is_auto};
    const sl_draw_options draw = {.top_p = 1.0f, .predict_tokens = PREDICT, .max_drafts = options.max_drafts,
                                  .draft_auto = is_auto, .draft_shape = shape};
    sl_context *context = NULL;
    sl_draw_result result;
    sl_err err = {SL_OK, ""};
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++)
        ids[i] = 3 + (i * i + 5 * i) % 200;
    if (sl_context_create(engine, &options, &context, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(SL_OK, sl_context_feed(context, ids, N_IDS, NULL, NULL, &err));
    if (sl_context_generate(context, &draw, &result, &err) != SL_OK)
        fail_msg("%s", err.text);
    out->n = sl_context_n_tokens(context);
    memcpy(out->ids, sl_context_ids(context), out->n * sizeof *out->ids);
    sl_context_get_stats(context, &out->stats);
    sl_context_get_plan(context, &out->plan);
    sl_context_destroy(context);
}

static const sl_drafter_stats *drafter_of(const sl_stats *stats, const char *name)
{
    for (size_t i = 0; i < stats->n_drafters; i++)
        if (strcmp(stats->drafters[i].name, name) == 0)
            return &stats->drafters[i];
    fail_msg("no drafter %s", name);
    return NULL;
}

static void drafts_change_no_token(void **unused)
{
    (void)unused;
    static told plain, drafted;
    write_models();
    const char *const drafts[] = {draft_path, model_path}; /* another model; the model itself, which is always right */
    const unsigned all = SL_DRAFT_WITH_NGRAM | SL_DRAFT_WITH_SELF | SL_DRAFT_WITH_MODEL;
    for (size_t i = 0; i < 2; i++) {
        sl_engine *engine = engine_of(drafts[i], UINT64_C(1) << 30);
        tell(engine, 0, false, SL_DRAFT_SHAPE_AUTO, &plain);
        assert_int_equal(0, plain.stats.n_drafters + plain.plan.drafters);
        for (unsigned with = 1; with <= all; with++) {
            const bool is_auto = with % 2 != 0;
            tell(engine, with, is_auto, with % 3 ? SL_DRAFT_SHAPE_AUTO : SL_DRAFT_SHAPE_TREE, &drafted);
            assert_int_equal(plain.n, drafted.n);
            assert_memory_equal(plain.ids, drafted.ids, plain.n * sizeof *plain.ids);
            assert_int_equal(with, drafted.plan.drafters);
        }
        tell(engine, SL_DRAFT_WITH_MODEL, false, SL_DRAFT_SHAPE_CHAIN, &drafted);
        const sl_drafter_stats *model = drafter_of(&drafted.stats, "model");
        size_t n_verified = 0, n_accepted = 0;
        for (size_t depth = 0; depth < SL_STATS_DEPTHS; depth++) {
            n_verified += model->n_verified[depth];
            n_accepted += model->n_accepted[depth];
        }
        assert_int_equal(drafted.stats.n_drafted, n_verified);
        assert_int_equal(drafted.stats.n_accepted, n_accepted);
        assert_true(n_verified > PREDICT / 2 && model->n_asked > 0);
        if (i == 1)
            assert_int_equal(n_verified, n_accepted);
        assert_true(drafted.plan.draft_bytes > 0);
        sl_engine_close(engine);
    }
    unlink(model_path);
    unlink(draft_path);
}

/* LongRoPE: 360 tokens are more than the original 256, for the draft model as for the model. */
static void a_draft_model_takes_the_same_set(void **unused)
{
    (void)unused;
    static told drafted;
    write_models();
    tiny_model model = tiny_model_of_arch(8, "phi3");
    model.long_factors = true;
    assert_true(tiny_model_write(&model, model_path));
    sl_engine *engine = engine_of(model_path, UINT64_C(1) << 30);
    tell(engine, SL_DRAFT_WITH_MODEL, false, SL_DRAFT_SHAPE_CHAIN, &drafted);
    assert_true(drafted.stats.n_drafted > PREDICT / 2);
    assert_int_equal(drafted.stats.n_drafted, drafted.stats.n_accepted);
    sl_engine_close(engine);
    unlink(model_path);
    unlink(draft_path);
}

/* Few megabytes: fewer drafts rather than no context. A budget of its weights alone is too small for a draft model. */
static void memory_decides(void **unused)
{
    (void)unused;
    write_models();
    sl_engine *engine = engine_of(NULL, UINT64_C(1) << 30);
    sl_engine_close(engine); /* the process has grown by what it will */
    sl_engine_options planning = {.model_path = model_path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 2,
                                  .plan_only = true};
    sl_context_options options = {.prompt_tokens = 4096, .predict_tokens = 1000, .max_drafts = 255,
                                  .draft_auto = true, .io = SL_IO_BUFFERED};
    sl_plan plan, least;
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_OK, sl_engine_open(&planning, &engine, &err));
    assert_int_equal(SL_OK, sl_engine_plan(engine, &options, 64, &plan, NULL, &err));
    assert_int_equal(255, plan.max_drafts);
    assert_int_equal(SL_DRAFT_WITH_NGRAM, plan.drafters); /* all of the cache stays in memory: no hot set */
    const uint64_t wanted = plan.needed_bytes;
    options.max_drafts = 1;
    assert_int_equal(SL_OK, sl_engine_plan(engine, &options, 64, &least, NULL, &err));
    sl_engine_close(engine);
    assert_true(wanted > least.needed_bytes);

    planning.ram_bytes = (wanted + least.needed_bytes) / 2;
    options.max_drafts = 255;
    assert_int_equal(SL_OK, sl_engine_open(&planning, &engine, &err));
    if (sl_engine_plan(engine, &options, 64, &plan, NULL, &err) != SL_OK)
        fail_msg("of %llu and %llu: %s", (unsigned long long)wanted, (unsigned long long)least.needed_bytes, err.text);
    assert_in_range(plan.max_drafts, 1, 127);
    options.draft_auto = false;
    assert_int_equal(SL_REFUSED, sl_engine_plan(engine, &options, 64, &plan, NULL, &err));
    sl_engine_close(engine);
    unlink(model_path);
    unlink(draft_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_decides),
        cmocka_unit_test(another_vocabulary_is_refused),
        cmocka_unit_test(what_is_no_model_is_refused),
        cmocka_unit_test(drafts_change_no_token),
        cmocka_unit_test(a_draft_model_takes_the_same_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
