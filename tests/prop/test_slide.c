/* Sliding layers that keep only what rows can see (sl_slide): what a walk hands over is what was appended, parts take
 * turns in a few slots of memory and file, a context is cut back to what is kept, over a file too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/effort.h"
#include "common/kv_model.h"
#include "store/durable.h"
#include "store/parts.h"

enum { SPAN = 322, BACK = 705, MOST_STEP = 4096, MOST = 3 * SL_POINT_TOKENS / 2 };

/* Layers 0 and 2 slide, one of them so far that it keeps everything for most of the time; its window leaves a part just
 * before another one begins, which takes its slot. */
static const sl_kv_layer layers[] = {{1, 32, SPAN}, {1, 32, 0}, {1, 64, 5 * SL_PART_TOKENS - SL_TILE + 1}, {2, 32, 0}};
static const sl_geom geom = {SL_KV_TYPE_Q8_0, 4, layers};

static uint64_t most_off; /* of the unnamed file, written */

typedef struct setup {
    sl_budget budget;
    kv_model model;
    sl_vfs vfs; /* the system's, but for `write` */
    sl_kv *kv;
    sl_durable *durable;
    char path[256];
    uint64_t max_tokens;
    sl_slide slide;
} setup;

static const char *folder(void)
{
    const char *dir = getenv("SLUICE_KV_DIR");
    return dir && *dir ? dir : "/var/tmp";
}

static void must(sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("status %d: %s", (int)status, err->text);
}

static int64_t noting_write(sl_file *file, const void *buf, size_t bytes, uint64_t off)
{
    const uint64_t end = (off & ~SL_OVERLAY_OFF) + bytes;
    most_off = end > most_off ? end : most_off;
    return sl_vfs_system()->pwrite(file, buf, bytes, off);
}

static void start(setup *s, uint64_t max_tokens, const sl_slide *slide, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    sl_budget_init(&s->budget, UINT64_MAX);
    kv_model_init(&s->model, &geom, max_tokens, seed);
    s->model.n_held = 1;
    s->vfs = *sl_vfs_system();
    s->vfs.pwrite = noting_write;
    s->max_tokens = max_tokens;
    s->slide = *slide;
    snprintf(s->path, sizeof s->path, "%s/sluice-slide-%ld.kv", folder(), (long)getpid());
    most_off = 0;
}

static void open_kv(setup *s, unsigned resident_percent)
{
    sl_err err = {SL_OK, ""};
    const sl_kv_options options = {
        .geom = geom,
        .vfs = &s->vfs,
        .dir = folder(),
        .allow_ram_dir = true,
        .max_tokens = s->max_tokens,
        .resident_bytes = sl_parts_bytes(&geom, s->max_tokens, &s->slide, 0) * resident_percent / 100,
        .slide = s->slide,
        .n_slots = resident_percent % 50 == 0 ? 80 : 3, /* room to run far ahead into the next pass, or none */
        .durable = s->durable,
        .budget = &s->budget,
    };
    must(sl_kv_create(&options, &s->kv, &err), &err);
}

static void finish(setup *s)
{
    sl_kv_destroy(s->kv);
    sl_durable_close(s->durable);
    unlink(s->path);
    kv_model_deinit(&s->model);
    assert_int_equal(0, (int)s->budget.used_bytes);
    sl_budget_deinit(&s->budget);
}

/* What rows behind the stored tokens see, of every layer in order; each grows by n behind its walk. */
static void pass(setup *s, uint64_t n, bool will_follow)
{
    sl_err err = {SL_OK, ""};
    must(sl_kv_pass_begin(s->kv, will_follow, &err), &err);
    for (uint32_t layer = 0; layer < geom.n_layers; layer++) {
        const size_t group_bytes = sl_geom_group_bytes(&geom, layer);
        const uint64_t n_groups = s->model.tokens[layer] / SL_TILE;
        uint64_t at = sl_geom_first_part(&layers[layer], n_groups * SL_TILE) * SL_PART_TILES;
        sl_kv_part part;
        bool found = false;
        for (;;) {
            must(sl_kv_next(s->kv, layer, &part, &found, &err), &err);
            if (!found)
                break;
            /* The walk may begin earlier, with what was seen when it was planned. */
            const uint64_t first = part.first_token / SL_TILE;
            assert_true(first <= at && first + part.n_groups <= n_groups);
            assert_memory_equal(part.tiles, s->model.groups[layer] + first * group_bytes, part.n_groups * group_bytes);
            at = first + part.n_groups;
            sl_kv_release(s->kv, &part);
        }
        assert_true(at >= n_groups);
        if (n > 0)
            must(kv_model_append(&s->model, s->kv, layer, n, &err), &err);
    }
    must(sl_kv_pass_end(s->kv, &err), &err);
}

static void truncate_to(setup *s, uint64_t n)
{
    sl_err err = {SL_OK, ""};
    must(sl_kv_truncate(s->kv, n, &err), &err);
    for (uint32_t layer = 0; layer < geom.n_layers; layer++) {
        const size_t group_bytes = sl_geom_group_bytes(&geom, layer);
        uint8_t *group = s->model.groups[layer] + n / SL_TILE * group_bytes;
        uint8_t *cut = malloc(group_bytes);
        assert_non_null(cut);
        assert_int_equal(n, sl_kv_tokens(s->kv, layer));
        kv_model_tail(&s->model, layer, n, cut);
        memcpy(group, cut, group_bytes);
        memset(group + group_bytes, 0, (s->max_tokens / SL_TILE - n / SL_TILE) * group_bytes);
        s->model.tokens[layer] = n;
        free(cut);
    }
}

static uint64_t step(setup *s, uint64_t most)
{
    static const uint64_t steps[] = {1, 5, 64, 100, 600, 1024, 1500, 4096};
    const uint64_t n = steps[kv_model_random(&s->model, sizeof steps / sizeof *steps)];
    const uint64_t left = s->max_tokens - s->model.tokens[0];
    return n < most ? (n < left ? n : left) : (most < left ? most : left);
}

static uint64_t own_bytes(const setup *s)
{
    uint64_t block_rests = 0; /* of a file of its own, the last blocks of all layers may be cut short */
    for (uint32_t i = 0; i < geom.n_layers; i++)
        block_rests += 2 * sl_geom_block_bytes(&geom, i);
    return sl_parts_bytes(&geom, s->max_tokens, &s->slide, 0) + block_rests;
}

/* Passes of all sizes, with and without read-ahead and memory; nothing is ever taken back. */
static void a_walk_gives_back_what_rows_see(void **unused)
{
    (void)unused;
    const sl_slide slide = {.drops = true};
    const uint64_t most = EFFORT_IS_SMALL ? 12000 : 26000;
    for (unsigned percent = 0; percent <= 100; percent += 25) {
        setup s;
        start(&s, most, &slide, 7 + percent);
        open_kv(&s, percent);
        while (s.model.tokens[0] < most) {
            pass(&s, step(&s, MOST_STEP), kv_model_random(&s.model, 4) > 0);
            for (uint64_t i = kv_model_random(&s.model, 3); i > 0; i--) { /* an answer: rows come between passes */
                sl_err err = {SL_OK, ""};
                const uint64_t n = step(&s, 100);
                pass(&s, 0, true);
                for (uint32_t layer = 0; layer < geom.n_layers; layer++)
                    must(kv_model_append(&s.model, s.kv, layer, n, &err), &err);
            }
        }
        pass(&s, 0, false);
        if (most_off > own_bytes(&s))
            fail_msg("%u %%: the file has %llu bytes, planned were %llu", percent, (unsigned long long)most_off,
                     (unsigned long long)own_bytes(&s));
        assert_true(percent < 100 || most_off == 0);
        finish(&s);
    }
}

/* Pass after pass of rows that come between them: what is read ahead into the next one, and where its walk begins, is
 * of before they came. */
static void an_answer_slides_on(void **unused)
{
    (void)unused;
    const sl_slide slide = {.drops = true};
    const uint64_t most = EFFORT_IS_SMALL ? 6300 : 9500;
    for (unsigned percent = 0; percent <= 50; percent += 50) {
        setup s;
        sl_err err = {SL_OK, ""};
        start(&s, most, &slide, 17 + percent);
        open_kv(&s, percent);
        pass(&s, 5000, true);
        while (s.model.tokens[0] < most) {
            pass(&s, 0, true);
            const uint64_t left = most - s.model.tokens[0], n = 60 + kv_model_random(&s.model, 60);
            for (uint32_t layer = 0; layer < geom.n_layers; layer++)
                must(kv_model_append(&s.model, s.kv, layer, n < left ? n : left, &err), &err);
        }
        pass(&s, 0, false);
        finish(&s);
    }
}

/* Any cut so far back as is promised; farther ones to where a window was kept, else to nothing. */
static void a_cut_finds_what_is_kept(void **unused)
{
    (void)unused;
    const sl_slide slide = {.drops = true, .back_tokens = BACK, .has_points = true};
    for (unsigned percent = 0; percent <= 60; percent += 60) {
        setup s;
        start(&s, MOST, &slide, 11 + percent);
        open_kv(&s, percent);
        /* The farthest cut, from a part's first tile to where rows see the last token two parts before. */
        pass(&s, 2 * SL_PART_TOKENS + SL_TILE, true);
        assert_int_equal(s.model.tokens[0] - BACK, sl_kv_find_point(s.kv, s.model.tokens[0] - BACK));
        truncate_to(&s, s.model.tokens[0] - BACK);
        pass(&s, 0, true);
        /* With the fourth part the first one goes: what needs one token of it is no point. */
        const uint64_t first_point = SL_PART_TOKENS + SPAN + SL_TILE - 2;
        pass(&s, 3 * SL_PART_TOKENS + 1 - s.model.tokens[0], true);
        pass(&s, SL_TILE, true);
        assert_int_equal(0, sl_kv_find_point(s.kv, first_point - 1));
        assert_int_equal(first_point, sl_kv_find_point(s.kv, first_point));
        uint64_t n_nothing = 0;
        for (int turn = 0; turn < (EFFORT_IS_SMALL ? 40 : 120); turn++) {
            pass(&s, step(&s, MOST_STEP), true);
            const uint64_t n = s.model.tokens[0];
            if (turn % 5 != 4)
                continue;
            const bool is_far = turn % 20 == 19 && n > SPAN + 4 * MOST_STEP;
            const uint64_t back = is_far ? 3 * MOST_STEP + SPAN : kv_model_random(&s.model, BACK);
            const uint64_t wanted = back < n ? n - back : 0, point = sl_kv_find_point(s.kv, wanted);
            if (!is_far)
                assert_int_equal(wanted, point);
            if (is_far && point < wanted) {
                sl_err err = {SL_OK, ""};
                assert_int_equal(SL_USAGE, sl_kv_truncate(s.kv, wanted, &err));
                assert_non_null(strstr(err.text, "sliding layers was dropped"));
                assert_int_equal(wanted / SL_POINT_TOKENS * SL_POINT_TOKENS, point);
                n_nothing += point == 0;
            }
            truncate_to(&s, point);
            pass(&s, 0, true);
        }
        assert_true(EFFORT_IS_SMALL || n_nothing > 0);
        while (s.model.tokens[0] < MOST)
            pass(&s, step(&s, MOST_STEP), true);
        const uint64_t point = sl_kv_find_point(s.kv, MOST - 3 * MOST_STEP);
        assert_int_equal(SL_POINT_TOKENS, point);
        truncate_to(&s, point);
        pass(&s, 900, false);
        pass(&s, 0, false);
        assert_true(most_off <= own_bytes(&s));
        finish(&s);
    }
}

/* ---- over a file ---- */

static void make_file(setup *s, uint64_t n_tokens)
{
    static int32_t ids[MOST];
    sl_err err = {SL_OK, ""};
    const sl_identity identity = {.arithmetic_version = 1, .n_vocab = 10, .name = "slide"};
    const sl_durable_options options = {.path = s->path, .for_writing = true, .allow_ram = true,
                                        .max_tokens = s->max_tokens, .budget = &s->budget};
    unlink(s->path);
    must(sl_durable_create(&options, &identity, &geom, &s->durable, &err), &err);
    const sl_kv_options kv = {.geom = geom, .dir = folder(), .max_tokens = s->max_tokens, .durable = s->durable,
                              .keep = true, .budget = &s->budget};
    must(sl_kv_create(&kv, &s->kv, &err), &err);
    for (uint64_t at = 0; at < n_tokens; at += 1024)
        for (uint32_t layer = 0; layer < geom.n_layers; layer++)
            must(kv_model_append(&s->model, s->kv, layer, n_tokens - at < 1024 ? n_tokens - at : 1024, &err), &err);
    must(sl_kv_commit(s->kv, ids, n_tokens, &err), &err);
    must(sl_kv_finish(s->kv, &err), &err);
    sl_kv_destroy(s->kv);
    sl_durable_close(s->durable);
    sl_durable_options reading = options;
    reading.for_writing = false;
    must(sl_durable_open(&reading, &s->durable, &err), &err);
}

static void a_file_below_keeps_everything(void **unused)
{
    (void)unused;
    enum { HELD = 9500, ROOM = 20000 };
    const sl_slide slide = {.drops = true, .back_tokens = BACK};
    for (unsigned percent = 0; percent <= 100; percent += 50) {
        setup s;
        start(&s, ROOM, &slide, 13 + percent);
        make_file(&s, HELD);
        open_kv(&s, percent);
        pass(&s, 0, true);
        pass(&s, 0, true);
        pass(&s, 6000, true);
        pass(&s, 0, true);
        /* dropped; the file's whole parts are not */
        assert_int_equal(HELD / 1024 * 1024, sl_kv_find_point(s.kv, 10500));
        assert_int_equal(8000, sl_kv_find_point(s.kv, 8000));
        truncate_to(&s, 8000);
        pass(&s, 70, true);
        pass(&s, 5000, true);
        pass(&s, 0, true);
        assert_int_equal(5000, sl_kv_find_point(s.kv, 5000));
        truncate_to(&s, 5000);
        pass(&s, 0, true);
        pass(&s, 300, true);
        pass(&s, 0, false);
        finish(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_walk_gives_back_what_rows_see),
        cmocka_unit_test(an_answer_slides_on),
        cmocka_unit_test(a_cut_finds_what_is_kept),
        cmocka_unit_test(a_file_below_keeps_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
