/* A thousand engines and contexts made, used and destroyed in one process: descriptors, mappings, threads, files and
 * resident memory are at the end what they were after the first few. Half of them stream through a real file. */
#include <dirent.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <sluice/sluice.h>

#include "common/effort.h"
#include "common/tiny_model.h"

enum {
    N_CYCLES = EFFORT_IS_SMALL ? 100 : 1000,
    N_FIRST = 10,   /* after these everything that is made once has been made */
    N_TOKENS = 128, /* of a prompt: two tile groups */
    /* Tokens that a streaming context is made for: its budget holds a small share of them, although a sanitizer's own
     * memory comes and goes within it. */
    N_LONG = EFFORT_IS_SMALL ? 1 << 18 : 16384,
    SPARE_MIB = EFFORT_IS_SMALL ? 160 : 2,
    NOISE_BYTES = 2 << 20
};

static char folder[200], model_path[256];
static uint64_t ram_bytes;
static int n_asked; /* how often `stop` was */

/* What a process holds. */
typedef struct holdings {
    size_t n_fds, n_maps, n_threads, n_files;
    uint64_t rss_bytes;
} holdings;

static size_t n_entries(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    size_t n = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n;
}

static size_t count_lines(const char *path, const char *key, uint64_t *kib)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[1024];
    size_t n = 0;
    while (fgets(line, sizeof line, file)) {
        n += strchr(line, '\n') != NULL;
        if (key && strncmp(line, key, strlen(key)) == 0)
            *kib = strtoull(line + strlen(key), NULL, 10);
    }
    fclose(file);
    return n;
}

static holdings look(void)
{
    holdings now = {.n_fds = n_entries("/proc/self/fd"),
                    .n_maps = count_lines("/proc/self/maps", NULL, NULL),
                    .n_threads = n_entries("/proc/self/task"),
                    .n_files = n_entries(folder)};
    uint64_t kib = 0;
    (void)count_lines("/proc/self/status", "VmRSS:", &kib);
    now.rss_bytes = kib * 1024;
    return now;
}

/* A thread that was joined, or the kernel's own of a closed queue, may take a moment to leave the list. */
static holdings look_calmly(size_t n_threads)
{
    holdings now = look();
    for (int i = 0; i < 200 && now.n_threads > n_threads; i++) {
        struct timespec pause = {0, 10000000};
        nanosleep(&pause, NULL);
        now = look();
    }
    return now;
}

static bool stop_later(void *arg)
{
    (void)arg;
    return --n_asked <= 0;
}

static sl_context_options context_options(bool is_streaming, bool is_cancelled)
{
    return (sl_context_options){
        .cache = SL_CACHE_Q8_0,
        .kv_dir = folder,
        .prompt_tokens = is_streaming ? N_LONG - 8 : N_TOKENS,
        .predict_tokens = 2,
        .window_tokens = 64,
        .max_drafts = 3,
        .stop = is_cancelled ? stop_later : NULL,
    };
}

static void use(sl_context *context, bool is_streaming, bool is_cancelled)
{
    int32_t ids[N_TOKENS];
    for (size_t i = 0; i < N_TOKENS; i++)
        ids[i] = 3 + (int32_t)((i * i + 5 * i) % 256);
    sl_err err = {SL_OK, ""};
    n_asked = 5;
    sl_status status = sl_context_feed(context, ids, N_TOKENS, NULL, NULL, &err);
    if (is_cancelled) {
        assert_int_equal(SL_CANCELLED, status);
        return;
    }
    if (status != SL_OK)
        fail_msg("feed: %s", err.text);
    const sl_draw_options draw = {.top_p = 1.0f, .predict_tokens = 2, .max_drafts = 3};
    sl_draw_result result;
    if (sl_context_generate(context, &draw, &result, &err) != SL_OK)
        fail_msg("generate: %s", err.text);
    sl_stats stats;
    sl_context_get_stats(context, &stats);
    if (is_streaming) {
        assert_true(stats.bytes_written > 0);
        assert_true(stats.bytes_read > 0);
    } else {
        assert_int_equal(0, stats.bytes_read);
    }
}

static sl_status open_engine(sl_engine **out, sl_err *err)
{
    const sl_engine_options options = {.model_path = model_path, .ram_bytes = ram_bytes, .n_threads = 2};
    return sl_engine_open(&options, out, err);
}

/* Every other one streams; some are cancelled in the middle, some never used, some engines carry two contexts. */
static void cycle(int i)
{
    bool is_streaming = i % 2 == 1, is_cancelled = i % 10 == 5 || i % 10 == 6;
    sl_engine *engine = NULL;
    sl_context *context = NULL;
    sl_err err = {SL_OK, ""};
    if (open_engine(&engine, &err) != SL_OK)
        fail_msg("cycle %d: %s", i, err.text);
    sl_context_options options = context_options(is_streaming, is_cancelled);
    for (int k = 0; k < (i % 20 == 3 ? 2 : 1); k++) {
        if (sl_context_create(engine, &options, &context, &err) != SL_OK)
            fail_msg("cycle %d: %s", i, err.text);
        if (i % 20 != 18)
            use(context, is_streaming, is_cancelled);
        sl_context_destroy(context);
    }
    sl_engine_close(engine);
}

/* The least budget with which a long context can be made, as the refusal tells it. */
static void find_least_ram(void)
{
    sl_engine *engine = NULL;
    sl_context *context = NULL;
    sl_err err = {SL_OK, ""};
    uint64_t mib = 0;
    ram_bytes = UINT64_C(1) << 30;
    if (open_engine(&engine, &err) != SL_OK)
        fail_msg("%s", err.text);
    sl_engine_info info;
    sl_engine_get_info(engine, &info);
    sl_engine_close(engine);
    sl_context_options options = context_options(true, false);
    /* Up from what surely does not do */
    for (ram_bytes = info.weight_bytes + (8 << 20); mib == 0; ram_bytes += 1 << 20) {
        if (open_engine(&engine, &err) != SL_OK)
            continue;
        sl_status status = sl_context_create(engine, &options, &context, &err);
        if (status == SL_OK)
            mib = (ram_bytes >> 20) + SPARE_MIB;
        sl_context_destroy(context);
        sl_engine_close(engine);
        context = NULL;
    }
    ram_bytes = mib << 20;
}

static void expect_same(const holdings *first, const holdings *last)
{
    assert_int_equal(first->n_fds, last->n_fds);
    assert_int_equal(first->n_threads, last->n_threads);
    assert_int_equal(0, last->n_files);
    if (EFFORT_IS_SMALL) /* it maps what it likes, keeps freed blocks for a while, and looks for leaks itself */
        return;
    assert_int_equal(first->n_maps, last->n_maps);
    if (last->rss_bytes > first->rss_bytes + NOISE_BYTES)
        fail_msg("resident: %" PRIu64 " bytes, %" PRIu64 " at first", last->rss_bytes, first->rss_bytes);
}

static void a_thousand_cycles_leave_nothing(void **unused)
{
    (void)unused;
    find_least_ram();
    holdings first = {0};
    for (int i = 0; i < N_CYCLES; i++) {
        if (i == N_FIRST)
            first = look_calmly(1);
        cycle(i);
        assert_int_equal(0, n_entries(folder));
    }
    holdings last = look_calmly(first.n_threads);
    print_message("%d cycles under %" PRIu64 " MiB: %zu descriptors, %zu mappings, %zu threads, %.1f MiB\n", N_CYCLES,
                  ram_bytes >> 20, last.n_fds, last.n_maps, last.n_threads, (double)last.rss_bytes / (1 << 20));
    expect_same(&first, &last);
}

static int set_up(void **unused)
{
    (void)unused;
    const char *dir = getenv("SLUICE_TEST_DIR");
    dir = dir ? dir : "/var/tmp";
    snprintf(folder, sizeof folder, "%s/sluice-cycles-XXXXXX", dir);
    snprintf(model_path, sizeof model_path, "%s/sluice-cycles-%ld.gguf", dir, (long)getpid());
    tiny_model model = tiny_model_of_seed(7);
    model.n_heads = model.n_kv_heads = 4;
    model.head_dim = 128;
    model.n_context = N_LONG;
    model.weight_type = model.emb_type = TINY_TYPE_Q8_0;
    return mkdtemp(folder) && tiny_model_write(&model, model_path) ? 0 : -1;
}

static int tear_down(void **unused)
{
    (void)unused;
    unlink(model_path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thousand_cycles_leave_nothing)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
