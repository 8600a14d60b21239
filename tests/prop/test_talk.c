/* Conversations: feeds, answers, rewinds and stops in any order give what a fresh session gives of the same tokens, bit
 * for bit, wherever the bytes lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/talk_rig.h"

enum { N_TURNS = EFFORT_IS_SMALL ? 10 : 22 };

static size_t one_conversation(tiny_run *run, sl_kv_type type, const tiny_ways *ways, const sl_slide *slide,
                               size_t n_file, uint64_t seed)
{
    static talk t;
    static int32_t ids[TALK_MOST];
    talk_start(&t, run, type, seed);
    t.slide = *slide;
    uint64_t n_taken = 0;
    if (n_file > 0) {
        talk_make_tokens(&t, ids, n_file);
        talk_prefill_file(&t, t.path, ids, n_file);
        talk_open_file(&t, t.path, false);
        n_taken = talk_draw(&t, 3) == 0 ? talk_place(&t, 1, n_file) : 0;
    }
    talk_open_session(&t, ways, false, n_taken);
    assert_int_equal(n_taken > 0 ? n_taken : n_file, sl_session_n_tokens(t.session));
    for (int turn = 0; turn < N_TURNS; turn++)
        talk_take_turn(&t);
    talk_close_session(&t);
    unlink(t.path);
    return t.n_recomputed;
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
    static const sl_slide all = {0};
    const uint64_t seed = talk_seed();
    tiny_run run;
    tiny_model model = tiny_model_of_seed(31);
    print_message("seed %llu\n", (unsigned long long)seed);
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        one_conversation(&run, (sl_kv_type)(i % 2), &ways[i], &all, 0, seed + i);
        one_conversation(&run, (sl_kv_type)(i % 2), &ways[i], &all, 70 + (i * 777 + seed) % 2000, seed + 100 + i);
    }
    tiny_run_close(&run);
}

/* Layers that slide by 200 tokens keep a part or two: what was taken back too far is computed again. */
static void so_does_what_keeps_only_its_window(void **unused)
{
    (void)unused;
    static const tiny_ways ways[] = {{1, 128, 2, 1, 0, 7, 0}, {2, 64, 2, 2, 60, 15, 0}};
    const uint64_t seed = talk_seed();
    tiny_run run;
    tiny_model model = tiny_model_of_arch(32, "gemma2");
    size_t n_recomputed = 0;
    tiny_run_open(&run, &model, sl_cpu_best());
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const sl_slide slide = {.drops = true, .back_tokens = ways[i].window_rows, .has_points = i == 1};
        n_recomputed += one_conversation(&run, (sl_kv_type)(1 - i), &ways[i], &slide, 0, seed + i);
        n_recomputed += one_conversation(&run, (sl_kv_type)i, &ways[i], &slide, 2300, seed + 100 + i);
    }
    tiny_run_close(&run);
    assert_true(EFFORT_IS_SMALL || n_recomputed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_and_rewinds_equal_a_fresh_session),
        cmocka_unit_test(so_does_what_keeps_only_its_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
