/* A conversation saved in a file of its own: byte for byte what prefill makes of its tokens, from memory, overlay and
 * the file below; the conversation goes on as if nothing had happened; within the budget. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sluice/sluice.h>

#include "common/effort.h"
#include "common/tiny_model.h"

enum { N_IDS = 7500, N_BASE = 4300, PATH_ROOM = 256 };

static char model_path[PATH_ROOM], base_path[PATH_ROOM], saved_path[PATH_ROOM], plain_path[PATH_ROOM];
static int32_t ids[N_IDS];

static void must(sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("status %d: %s", (int)status, err->text);
}

static void start_with(tiny_model model)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    static const char *const names[] = {"gguf", "base.kv", "saved.kv", "plain.kv"};
    char *const paths[] = {model_path, base_path, saved_path, plain_path};
    for (int i = 0; i < 4; i++) {
        snprintf(paths[i], PATH_ROOM, "%s/sluice-save-%ld.%s", dir ? dir : "/var/tmp", (long)getpid(), names[i]);
        unlink(paths[i]);
    }
    model.n_context = 16384;
    assert_true(tiny_model_write(&model, model_path));
    for (int i = 0; i < N_IDS; i++)
        ids[i] = 3 + (i * i + 5 * i) % 200;
}

static void start(void)
{
    start_with(tiny_model_of_seed(6));
}

static void stop(void)
{
    unlink(model_path);
    unlink(base_path);
    unlink(saved_path);
    unlink(plain_path);
}

static sl_engine *open_engine(uint64_t ram_bytes)
{
    const sl_engine_options options = {.model_path = model_path, .ram_bytes = ram_bytes, .n_threads = 2};
    sl_engine *engine = NULL;
    sl_err err = {SL_OK, ""};
    must(sl_engine_open(&options, &engine, &err), &err);
    return engine;
}

/* A file of these tokens by the way of prefill. */
static void make_file(sl_engine *engine, const char *path, const int32_t *tokens, size_t n)
{
    sl_err err = {SL_OK, ""};
    sl_context_options options = {.prompt_tokens = n, .allow_ram_dir = true};
    sl_store *store = NULL;
    sl_context *context = NULL;
    must(sl_store_create(engine, path, &options, &store, &err), &err);
    options.store = store;
    options.keep = true;
    must(sl_context_create(engine, &options, &context, &err), &err);
    must(sl_context_keep(context, tokens, n, NULL, NULL, &err), &err);
    sl_context_destroy(context);
    sl_store_close(store);
}

static void expect_same_files(const char *a, const char *b)
{
    enum { STEP = 1 << 16 };
    static uint8_t of_a[STEP], of_b[STEP];
    FILE *file_a = fopen(a, "rb"), *file_b = fopen(b, "rb");
    assert_true(file_a && file_b);
    for (size_t n = STEP; n > 0;) {
        n = fread(of_a, 1, STEP, file_a);
        assert_int_equal(fread(of_b, 1, STEP, file_b), n);
        assert_memory_equal(of_a, of_b, n);
    }
    fclose(file_a);
    fclose(file_b);
}

/* A conversation under way: with saves between its steps, or without. */
typedef struct talk {
    sl_engine *engine;
    sl_store *store;
    sl_context *context;
    bool saves;
    size_t room; /* tokens, over those of the file */
    size_t n_steps, n_saves;
} talk;

static void save(talk *t)
{
    sl_err err = {SL_OK, ""};
    bool is_skipped = EFFORT_IS_SMALL && t->n_steps++ % 2 == 0;
    if (!t->saves || is_skipped)
        return;
    must(sl_context_save(t->context, saved_path, NULL, NULL, &err), &err);
    make_file(t->engine, plain_path, sl_context_ids(t->context), sl_context_n_tokens(t->context));
    expect_same_files(saved_path, plain_path);
    unlink(plain_path);
    unlink(saved_path);
    t->n_saves++;
}

static void answer(talk *t)
{
    static const sl_draw_options draw = {.top_p = 1.0f, .predict_tokens = 12, .max_drafts = 3};
    sl_err err = {SL_OK, ""};
    sl_draw_result result;
    must(sl_context_generate(t->context, &draw, &result, &err), &err);
}

static void feed(talk *t, size_t from, size_t n)
{
    sl_err err = {SL_OK, ""};
    must(sl_context_feed(t->context, ids + from, n, NULL, NULL, &err), &err);
}

static void open_talk(talk *t, bool has_base, uint64_t ram_bytes)
{
    sl_err err = {SL_OK, ""};
    t->engine = open_engine(ram_bytes);
    const sl_store_options open = {.path = base_path};
    if (has_base)
        must(sl_store_open(t->engine, &open, &t->store, &err), &err);
    const sl_context_options options = {.prompt_tokens = t->room, .predict_tokens = 12, .max_drafts = 3, .talk = true,
                                        .store = t->store, .allow_ram_dir = true};
    must(sl_context_create(t->engine, &options, &t->context, &err), &err);
}

static void close_talk(talk *t)
{
    sl_context_destroy(t->context);
    sl_store_close(t->store);
    sl_engine_close(t->engine);
}

static void converse(talk *t)
{
    sl_err err = {SL_OK, ""};
    feed(t, N_BASE, 100);
    save(t);
    answer(t);
    save(t);
    feed(t, N_BASE + 200, 700);
    answer(t);
    must(sl_context_rewind(t->context, sl_context_n_tokens(t->context) - 650, &err), &err);
    save(t);
    feed(t, N_BASE + 900, 30);
    if (t->store) { /* below the file's own end, and below a whole segment */
        must(sl_context_rewind(t->context, 4000, &err), &err);
        save(t);
        feed(t, 4000, 300);
    }
    answer(t);
    save(t);
}

static void saved_is_what_prefill_makes(void **unused)
{
    (void)unused;
    start();
    sl_engine *engine = open_engine(UINT64_C(1) << 30);
    make_file(engine, base_path, ids, N_BASE);
    sl_engine_close(engine);
    for (int has_base = EFFORT_IS_SMALL ? 1 : 0; has_base < 2; has_base++) {
        talk with = {.saves = true, .room = 1500}, without = {.saves = false, .room = 1500};
        open_talk(&with, has_base, UINT64_C(1) << 30);
        open_talk(&without, has_base, UINT64_C(1) << 30);
        converse(&with);
        converse(&without);
        size_t n = sl_context_n_tokens(with.context);
        assert_int_equal(n, sl_context_n_tokens(without.context));
        assert_memory_equal(sl_context_ids(with.context), sl_context_ids(without.context), n * sizeof *ids);
        assert_int_equal(with.n_saves, EFFORT_IS_SMALL ? 2 : has_base ? 5 : 4);
        close_talk(&with);
        close_talk(&without);
    }
    stop();
}

/* Longer than what a talk keeps of sliding layers: what was dropped is computed again while it is saved. */
static void converse_long(talk *t)
{
    sl_err err = {SL_OK, ""};
    sl_stats before, after;
    for (size_t at = 0; at < N_IDS - 100; at += 1075)
        feed(t, at, 1075 < N_IDS - 100 - at ? 1075 : N_IDS - 100 - at);
    answer(t);
    sl_context_get_stats(t->context, &before);
    save(t);
    sl_context_get_stats(t->context, &after);
    assert_true(!t->saves || after.n_windows > before.n_windows + 1);
    feed(t, N_IDS - 100, 80);
    answer(t);
    must(sl_context_rewind(t->context, sl_context_n_tokens(t->context) - 70, &err), &err);
    feed(t, N_IDS - 20, 20);
    answer(t);
}

static void saved_is_whole_where_layers_dropped_parts(void **unused)
{
    (void)unused;
    if (EFFORT_IS_TINY)
        skip(); /* thousands of tokens, three times */
    tiny_model model = tiny_model_of_arch(6, "gemma2");
    model.n_layers = 2;
    start_with(model);
    talk with = {.saves = true, .room = N_IDS, .n_steps = 1 /* none is skipped */};
    talk without = {.saves = false, .room = N_IDS};
    open_talk(&with, false, UINT64_C(1) << 30);
    converse_long(&with);
    if (!EFFORT_IS_SMALL) {
        open_talk(&without, false, UINT64_C(1) << 30);
        converse_long(&without);
        size_t n = sl_context_n_tokens(with.context);
        assert_int_equal(n, sl_context_n_tokens(without.context));
        assert_memory_equal(sl_context_ids(with.context), sl_context_ids(without.context), n * sizeof *ids);
        close_talk(&without);
    }
    close_talk(&with);
    stop();
}

static bool stop_now(void *arg, uint64_t done, uint64_t total)
{
    size_t *n = arg;
    assert_true(done <= total);
    return ++*n < 3;
}

static void cancelled_or_refused_leaves_nothing(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    size_t n_told = 0;
    start();
    talk t = {.saves = true, .room = 1500};
    open_talk(&t, false, UINT64_C(1) << 30);
    assert_int_equal(sl_context_save(t.context, saved_path, NULL, NULL, &err), SL_USAGE);
    assert_non_null(strstr(err.text, "no tokens"));
    feed(&t, 0, 1200);
    assert_int_equal(sl_context_save(t.context, saved_path, stop_now, &n_told, &err), SL_CANCELLED);
    assert_int_equal(n_told, 3);
    assert_int_equal(access(saved_path, F_OK), -1);
    FILE *taken = fopen(saved_path, "wb");
    fclose(taken);
    assert_int_equal(sl_context_save(t.context, saved_path, NULL, NULL, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "exists already"));
    unlink(saved_path);
    assert_int_equal(sl_context_save(t.context, "/nonexistent/x.kv", NULL, NULL, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/nonexistent/x.kv"));
    answer(&t);
    save(&t);
    close_talk(&t);
    stop();
}

static sl_status try_talk(talk *t, uint64_t ram_bytes, sl_err *err)
{
    const sl_engine_options engine = {.model_path = model_path, .ram_bytes = ram_bytes, .n_threads = 2};
    const sl_store_options open = {.path = base_path};
    *t = (talk){.saves = false};
    sl_status status = sl_engine_open(&engine, &t->engine, err);
    if (status == SL_OK)
        status = sl_store_open(t->engine, &open, &t->store, err);
    const sl_context_options options = {.prompt_tokens = 1500, .predict_tokens = 12, .max_drafts = 3, .talk = true,
                                        .store = t->store, .allow_ram_dir = true};
    return status == SL_OK ? sl_context_create(t->engine, &options, &t->context, err) : status;
}

/* In the least memory in which a talk is possible saving finds its own. */
static void least_memory_is_enough(void **unused)
{
    (void)unused;
    enum { STEP = 128 << 10 };
    sl_err err = {SL_OK, ""};
    start();
    sl_engine *engine = open_engine(UINT64_C(1) << 30);
    make_file(engine, base_path, ids, N_BASE);
    sl_engine_close(engine);
    talk t;
    for (uint64_t ram = UINT64_C(16) << 20; try_talk(&t, ram, &err) != SL_OK; ram += STEP) {
        assert_int_equal(err.status, SL_REFUSED);
        close_talk(&t);
    }
    feed(&t, N_BASE, 300);
    answer(&t);
    must(sl_context_save(t.context, saved_path, NULL, NULL, &err), &err);
    if (!EFFORT_IS_SMALL) {
        engine = open_engine(UINT64_C(1) << 30);
        make_file(engine, plain_path, sl_context_ids(t.context), sl_context_n_tokens(t.context));
        expect_same_files(saved_path, plain_path);
        sl_engine_close(engine);
    }
    close_talk(&t);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_is_what_prefill_makes),
        cmocka_unit_test(saved_is_whole_where_layers_dropped_parts),
        cmocka_unit_test(cancelled_or_refused_leaves_nothing),
        cmocka_unit_test(least_memory_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
