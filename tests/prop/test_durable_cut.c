/* The first tokens of a context, whatever their number: read alone, or kept when the rest is forgotten. They are then,
 * bit for bit, the context that was never longer. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/durable_rig.h"
#include "common/effort.h"
#include "common/fault_vfs.h"

static void append_up_to(durable_rig *b, uint64_t n)
{
    while (sl_kv_tokens(b->kv, 0) < n) {
        uint64_t left = n - sl_kv_tokens(b->kv, 0), some = 1 + kv_model_random(&b->model, 1500);
        durable_rig_append(b, some < left ? some : left);
        if (kv_model_random(&b->model, 3) == 0)
            durable_rig_walk(b, sl_kv_tokens(b->kv, 0));
    }
}

/* All tokens in the file, finished or not: an unfinished one keeps pieces in its commit record. */
static void make_file(durable_rig *b, bool is_finished)
{
    sl_err err;
    durable_rig_create_file(b, b->path);
    durable_rig_open_kv(b, true);
    durable_rig_append(b, b->n_all);
    durable_rig_commit(b);
    if (is_finished)
        durable_must(sl_kv_finish(b->kv, &err), &err);
    durable_rig_close(b);
}

/* path as it is now, in `other`. */
static void make_copy(const durable_rig *b)
{
    enum { STEP = 1 << 16 };
    static uint8_t buf[STEP];
    FILE *from = fopen(b->path, "rb"), *to = fopen(b->other, "wb");
    assert_true(from && to);
    for (size_t n; (n = fread(buf, 1, STEP, from)) > 0;)
        assert_int_equal(fwrite(buf, 1, n, to), n);
    fclose(from);
    assert_int_equal(fclose(to), 0);
}

static void first_tokens_alone(void **unused)
{
    (void)unused;
    static durable_rig b;
    uint64_t seed = durable_seed() + 5000;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 6 : 24); i++) {
        print_message("seed %lu\n", (unsigned long)(seed + (uint64_t)i));
        durable_rig_start(&b, seed + (uint64_t)i, 0);
        make_file(&b, i % 2 == 0);
        for (int k = 0; k < 6; k++) {
            uint64_t n = k == 0 ? b.n_all : durable_rig_cut(&b.model, b.n_all);
            durable_rig_open_file(&b, b.path, false);
            durable_rig_open_prefix(&b, n);
            durable_rig_walk(&b, n);
            append_up_to(&b, b.n_all);
            durable_rig_walk(&b, b.n_all);
            durable_rig_close(&b);
        }
        durable_rig_stop(&b);
    }
}

/* Whether opening the first n tokens and walking over them finds damage. */
static bool is_damage_found(durable_rig *b, uint64_t n)
{
    sl_err err;
    durable_rig_open_file(b, b->path, false);
    const sl_kv_options options = {.geom = b->model.geom, .dir = durable_test_dir(), .max_tokens = b->n_all,
                                   .n_slots = 2, .durable = b->durable, .durable_tokens = n, .budget = &b->budget};
    sl_status status = sl_kv_create(&options, &b->kv, &err);
    if (status == SL_OK)
        durable_must(sl_kv_pass_begin(b->kv, false, &err), &err);
    for (uint32_t i = 0; status == SL_OK && i < b->model.geom.n_layers; i++) {
        sl_kv_part part;
        bool found = true;
        while (found && (status = sl_kv_next(b->kv, i, &part, &found, &err)) == SL_OK)
            if (found)
                sl_kv_release(b->kv, &part);
    }
    durable_rig_close(b);
    assert_true(status == SL_OK || status == SL_DAMAGED);
    return status == SL_DAMAGED;
}

/* The part that n lies in is verified whole, behind n too; parts behind it are not looked at. */
static void damage_counts_to_the_end_of_the_part(void **unused)
{
    (void)unused;
    static durable_rig b;
    uint64_t seed = durable_seed() + 6000;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 3 : 10); i++) {
        durable_rig_start(&b, seed + (uint64_t)i, 3000 + kv_model_random(&(kv_model){.random = seed * 2 + 1}, 4000));
        durable_rig_build(&b, b.path);
        for (int k = 0; k < 8; k++) {
            uint64_t n = durable_rig_cut(&b.model, b.n_all), at = kv_model_random(&b.model, b.n_all);
            uint64_t part = at / SL_PART_TOKENS, n_parts = (n + SL_PART_TOKENS - 1) / SL_PART_TOKENS;
            uint32_t layer = (uint32_t)kv_model_random(&b.model, b.model.geom.n_layers);
            sl_layout layout = sl_layout_of(&b.model.geom);
            off_t off = (off_t)(sl_layout_segment_off(&layout, at / SL_SEGMENT_TOKENS) +
                                sl_geom_block_off(&b.model.geom, 0, layer) +
                                at % SL_SEGMENT_TOKENS / SL_TILE * sl_geom_group_bytes(&b.model.geom, layer));
            int fd = open(b.path, O_RDWR);
            uint8_t byte = 0, flipped;
            assert_int_equal(pread(fd, &byte, 1, off), 1);
            flipped = byte ^ 4;
            assert_int_equal(pwrite(fd, &flipped, 1, off), 1);
            assert_int_equal(is_damage_found(&b, n), part < n_parts);
            assert_int_equal(pwrite(fd, &byte, 1, off), 1);
            close(fd);
        }
        durable_rig_stop(&b);
    }
}

/* Cut and grown at random, in its own file, in memory and below where the durable file ends: as the model. */
static void cut_and_grow(durable_rig *b)
{
    sl_err err;
    for (int step = 0; step < 12; step++) {
        uint64_t n = sl_kv_tokens(b->kv, 0);
        uint64_t keep = n == 0 ? 0 : kv_model_random(&b->model, 8) == 0 ? 0 : durable_rig_cut(&b->model, n);
        bool is_ahead = kv_model_random(&b->model, 2); /* parts of another pass are on their way when it is cut */
        if (is_ahead && n > 0) {
            durable_must(sl_kv_pass_begin(b->kv, true, &err), &err);
            durable_must(sl_kv_pass_end(b->kv, &err), &err);
        }
        durable_must(sl_kv_truncate(b->kv, keep, &err), &err);
        if (kv_model_random(&b->model, 2))
            durable_rig_walk(b, keep);
        uint64_t to = keep + kv_model_random(&b->model, b->n_all - keep + 1);
        append_up_to(b, to);
        durable_rig_walk(b, to);
    }
}

static void cut_equals_plain(void **unused)
{
    (void)unused;
    static durable_rig b;
    uint64_t seed = durable_seed() + 7000;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 8 : 40); i++) {
        print_message("seed %lu\n", (unsigned long)(seed + (uint64_t)i));
        durable_rig_start(&b, seed + (uint64_t)i, 0);
        if (i % 4 == 0) { /* ephemeral */
            durable_rig_open_kv(&b, false);
            append_up_to(&b, b.n_all);
            cut_and_grow(&b);
        } else {
            uint64_t n_all = b.n_all;
            b.n_all = 1 + kv_model_random(&b.model, n_all);
            make_file(&b, i % 2 == 0);
            make_copy(&b);
            b.n_all = n_all;
            durable_rig_open_file(&b, b.path, false);
            durable_rig_open_kv(&b, false);
            cut_and_grow(&b);
            durable_rig_close(&b);
            durable_rig_same_files(b.path, b.other);
        }
        durable_rig_close(&b);
        durable_rig_stop(&b);
    }
}

/* A window that was given up half way: some layers have its rows, others not. */
static void uneven_layers_are_cut(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 6 : 20); i++) {
        durable_rig_start(&b, durable_seed() + 8000 + i, 0);
        durable_rig_open_kv(&b, false);
        uint64_t n = kv_model_random(&b.model, b.n_all), some = b.n_all - n;
        append_up_to(&b, n);
        durable_must(sl_kv_pass_begin(b.kv, true, &err), &err);
        sl_kv_part part;
        bool found = true;
        while (found) {
            durable_must(sl_kv_next(b.kv, 0, &part, &found, &err), &err);
            if (found)
                sl_kv_release(b.kv, &part);
        }
        durable_must(sl_kv_append(b.kv, 0, durable_rig_groups(&b, 0, n), some, &err), &err);
        assert_int_equal(sl_kv_truncate(b.kv, n, &err), SL_USAGE); /* the pass has not ended */
        durable_must(sl_kv_pass_end(b.kv, &err), &err);
        durable_must(sl_kv_truncate(b.kv, n, &err), &err);
        durable_rig_walk(&b, n);
        append_up_to(&b, b.n_all);
        durable_rig_walk(&b, b.n_all);
        durable_rig_close(&b);
        durable_rig_stop(&b);
    }
}

/* A prefill that is stopped amid a window: what its layers have of that is cut off, the rest is committed, and whoever
 * goes on makes the file that one in one go makes. */
static void a_kept_window_that_was_given_up(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 6 : 20); i++) {
        durable_rig_start(&b, durable_seed() + 30000 + i, 0);
        durable_rig_build(&b, b.other);
        uint64_t committed = kv_model_random(&b.model, b.n_all), kept = committed + 1 +
                 kv_model_random(&b.model, b.n_all - committed), some = kv_model_random(&b.model, b.n_all - kept + 1);
        durable_rig_create_file(&b, b.path);
        durable_rig_open_kv(&b, true);
        append_up_to(&b, committed);
        durable_rig_commit(&b);
        append_up_to(&b, kept);
        durable_must(sl_kv_pass_begin(b.kv, true, &err), &err);
        durable_must(sl_kv_pass_end(b.kv, &err), &err);
        uint32_t ahead = 1 + (uint32_t)kv_model_random(&b.model, b.model.geom.n_layers);
        for (uint32_t k = 0; k < ahead; k++)
            durable_must(sl_kv_append(b.kv, k, durable_rig_groups(&b, k, kept), some, &err), &err);
        if (committed > 0)
            assert_int_equal(sl_kv_truncate(b.kv, committed - 1, &err), SL_USAGE);
        durable_must(sl_kv_truncate(b.kv, kept, &err), &err);
        durable_rig_commit(&b);
        durable_rig_close(&b);
        durable_rig_open_file(&b, b.path, true);
        durable_rig_check_ids(&b, kept);
        durable_rig_open_kv(&b, true);
        durable_rig_walk(&b, kept);
        append_up_to(&b, b.n_all);
        durable_rig_commit(&b);
        durable_must(sl_kv_finish(b.kv, &err), &err);
        durable_rig_close(&b);
        durable_rig_same_files(b.path, b.other);
        durable_rig_stop(&b);
    }
}

/* A cut that cannot read what it keeps says so, and so does everything afterwards. */
static void failed_cut_is_told(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    durable_rig_start(&b, durable_seed() + 9000, 5000);
    durable_rig_build(&b, b.path);
    durable_rig_open_file(&b, b.path, false);
    const sl_kv_options options = {.geom = b.model.geom, .dir = durable_test_dir(), .max_tokens = b.n_all,
                                   .n_slots = 2, .durable = b.durable, .budget = &b.budget};
    durable_must(sl_kv_create(&options, &b.kv, &err), &err);
    int fd = open(b.path, O_RDWR);
    const uint8_t junk = 0xa5;
    sl_layout layout = sl_layout_of(&b.model.geom);
    assert_int_equal(pwrite(fd, &junk, 1, (off_t)sl_layout_segment_off(&layout, 0) + 70), 1);
    close(fd);
    assert_int_equal(sl_kv_truncate(b.kv, 100, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "layer 0, segment 0"));
    assert_int_equal(sl_kv_truncate(b.kv, 50, &err), SL_FAILED);
    assert_int_equal(sl_kv_pass_begin(b.kv, false, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "open it again"));
    durable_rig_close(&b);
    durable_rig_open_file(&b, b.path, true);
    durable_rig_open_kv(&b, true);
    assert_int_equal(sl_kv_truncate(b.kv, 4500, &err), SL_USAGE); /* kept tokens stay */
    durable_rig_close(&b);
    durable_rig_stop(&b);
}

/* A reader whose own tokens fit the memory that it may use needs no disk; one that needs it says which. */
static void reader_on_a_full_disk(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 4 : 12); i++) {
        durable_rig_start(&b, durable_seed() + 20000 + i, 0);
        uint64_t n_all = b.n_all, own_bytes = 0;
        b.n_all = 1 + kv_model_random(&b.model, n_all);
        uint64_t n_base = b.n_all, first_own = n_base / SL_PART_TOKENS * SL_PART_TOKENS;
        make_file(&b, i % 2 == 0);
        b.n_all = n_all;
        for (uint32_t k = 0; k < b.model.geom.n_layers; k++)
            own_bytes += (n_all - first_own) / SL_TILE * sl_geom_group_bytes(&b.model.geom, k);
        fault_vfs vfs;
        fault_vfs_init(&vfs, FAULT_OPEN, ENOSPC, UINT64_MAX / 2);
        const sl_durable_options options = {.vfs = &vfs.vfs, .path = b.path, .max_tokens = n_all,
                                            .budget = &b.budget};
        durable_must(sl_durable_open(&options, &b.durable, &err), &err);
        vfs.n = atomic_load(&vfs.n_calls) + 1;
        vfs.n_in_row = UINT64_MAX / 4;
        sl_kv_options kv = {.geom = b.model.geom, .vfs = &vfs.vfs, .dir = durable_test_dir(), .max_tokens = n_all,
                            .resident_bytes = own_bytes, .n_slots = 2, .durable = b.durable, .budget = &b.budget};
        durable_must(sl_kv_create(&kv, &b.kv, &err), &err);
        append_up_to(&b, n_all);
        durable_rig_walk(&b, n_all);
        durable_must(sl_kv_truncate(b.kv, n_base, &err), &err);
        append_up_to(&b, n_all);
        durable_rig_walk(&b, n_all);
        sl_kv_destroy(b.kv);
        assert_int_equal(vfs.n_hits, 0);
        kv.resident_bytes = 0;
        sl_status status = sl_kv_create(&kv, &b.kv, &err);
        for (uint32_t k = 0; status == SL_OK && k < b.model.geom.n_layers; k++)
            status = sl_kv_append(b.kv, k, durable_rig_groups(&b, k, n_base), n_all - n_base, &err);
        if (vfs.n_hits > 0)
            assert_true(status == SL_FAILED && strstr(err.text, strerror(ENOSPC)));
        durable_rig_close(&b);
        durable_rig_stop(&b);
    }
}

/* A file's open part comes in by a tile group of each layer, however large that is: the plan's figure holds it. */
static void large_groups_are_taken_over_within_the_plan(void **unused)
{
    (void)unused;
    enum { N = 300 };
    static int32_t ids[N];
    const sl_kv_layer wide = {.n_kv_heads = 16, .head_dim = 128};
    const sl_geom geom = {SL_KV_TYPE_F16, 1, &wide};
    char path[DURABLE_RIG_PATH];
    sl_err err;
    sl_budget budget;
    kv_model model;
    sl_kv *kv = NULL;
    sl_budget_init(&budget, UINT64_MAX);
    kv_model_init(&model, &geom, N, durable_seed());
    snprintf(path, sizeof path, "%s/wide-%ld.kv", durable_test_dir(), (long)getpid());
    sl_durable_options file = {
        .path = path, .for_writing = true, .allow_ram = true, .max_tokens = N, .budget = &budget};
    sl_kv_options options = {.geom = geom, .dir = durable_test_dir(), .max_tokens = N, .n_slots = 2, .keep = true,
                             .budget = &budget};
    durable_must(sl_durable_create(&file, &durable_rig_identity, &geom, &options.durable, &err), &err);
    durable_must(sl_kv_create(&options, &kv, &err), &err);
    durable_must(kv_model_append(&model, kv, 0, N, &err), &err);
    durable_must(sl_kv_commit(kv, ids, N, &err), &err);
    durable_must(sl_kv_finish(kv, &err), &err);
    sl_kv_destroy(kv);
    sl_durable_close(options.durable);
    file.for_writing = options.keep = false;
    durable_must(sl_durable_open(&file, &options.durable, &err), &err);
    uint64_t ring_bytes = 2 * sl_geom_max_part_bytes(&geom) + SL_SECTOR_BYTES;
    budget.limit_bytes = budget.used_bytes + sl_kv_table_bytes(&geom, N) + ring_bytes;
    durable_must(sl_kv_create(&options, &kv, &err), &err);
    sl_kv_destroy(kv);
    sl_durable_close(options.durable);
    unlink(path);
    kv_model_deinit(&model);
    sl_budget_deinit(&budget);
}

static void refusals(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    durable_rig_start(&b, 3, 300);
    durable_rig_build(&b, b.path);
    durable_rig_open_file(&b, b.path, true);
    sl_kv_options options = {.geom = b.model.geom, .dir = durable_test_dir(), .max_tokens = 300, .n_slots = 2,
                             .durable = b.durable, .durable_tokens = 301, .budget = &b.budget};
    assert_int_equal(sl_kv_create(&options, &b.kv, &err), SL_USAGE);
    assert_non_null(strstr(err.text, "301 tokens wanted, it holds 300"));
    options.durable_tokens = 200;
    options.keep = true;
    assert_int_equal(sl_kv_create(&options, &b.kv, &err), SL_USAGE);
    durable_rig_close(&b);
    durable_rig_stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_tokens_alone),
        cmocka_unit_test(damage_counts_to_the_end_of_the_part),
        cmocka_unit_test(cut_equals_plain),
        cmocka_unit_test(uneven_layers_are_cut),
        cmocka_unit_test(a_kept_window_that_was_given_up),
        cmocka_unit_test(failed_cut_is_told),
        cmocka_unit_test(reader_on_a_full_disk),
        cmocka_unit_test(large_groups_are_taken_over_within_the_plan),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
