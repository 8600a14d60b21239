/* Contexts in a file: whatever the appends, the commits, the interruptions and the residents, what was committed comes
 * back, and the finished file is byte for byte the one that was made in one go. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/durable_rig.h"
#include "common/effort.h"
#include "common/fault_vfs.h"

static void reopen(durable_rig *b, const char *path)
{
    durable_rig_close(b);
    durable_rig_open_file(b, path, true);
    durable_rig_open_kv(b, true);
}

/* Appends and commits at random, gives up at random without a word, comes again, until all is there. */
static void build_with_interruptions(durable_rig *b, const char *path)
{
    sl_err err;
    uint64_t committed = 0;
    durable_rig_create_file(b, path);
    durable_rig_open_kv(b, true);
    while (sl_kv_tokens(b->kv, 0) < b->n_all) {
        uint64_t left = b->n_all - sl_kv_tokens(b->kv, 0);
        uint64_t most = kv_model_random(&b->model, 2) ? 3000 : 200, n = 1 + kv_model_random(&b->model, most);
        durable_rig_append(b, n < left ? n : left);
        if (kv_model_random(&b->model, 3) == 0) {
            durable_rig_commit(b);
            committed = sl_kv_tokens(b->kv, 0);
        }
        if (kv_model_random(&b->model, 4) == 0) {
            reopen(b, path);
            assert_false(sl_durable_get(b->durable).is_finished);
            durable_rig_check_ids(b, committed);
            if (kv_model_random(&b->model, 2))
                durable_rig_walk(b, committed);
        }
    }
    durable_rig_commit(b);
    if (kv_model_random(&b->model, 2) == 0) /* between the last commit and the finish */
        reopen(b, path);
    durable_must(sl_kv_finish(b->kv, &err), &err);
    durable_rig_close(b);
}

static void interrupted_equals_plain(void **unused)
{
    (void)unused;
    static durable_rig b;
    uint64_t seed = durable_seed();
    for (int i = 0; i < (EFFORT_IS_SMALL ? 12 : 60); i++) {
        print_message("seed %lu\n", (unsigned long)(seed + (uint64_t)i));
        static const uint64_t edges[] = {1, 63, 64, 1024, 4096, 4097, 8192};
        durable_rig_start(&b, seed + (uint64_t)i, i < 7 ? edges[i] : 0);
        durable_rig_build(&b, b.other);
        build_with_interruptions(&b, b.path);
        durable_rig_same_files(b.path, b.other);
        durable_rig_open_file(&b, b.path, false);
        assert_true(sl_durable_get(b.durable).is_finished);
        durable_rig_check_ids(&b, b.n_all);
        durable_rig_open_kv(&b, false);
        durable_rig_walk(&b, b.n_all);
        durable_rig_close(&b);
        durable_rig_stop(&b);
    }
}

/* What is put on top of a file that is only read does not change it, and reads back behind its tokens. */
static void overlay_leaves_the_file_alone(void **unused)
{
    (void)unused;
    static durable_rig b;
    uint64_t seed = durable_seed() + 1000;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 6 : 30); i++) {
        durable_rig_start(&b, seed + (uint64_t)i, 0);
        uint64_t n_all = b.n_all, n_base = 1 + kv_model_random(&b.model, n_all);
        b.n_all = n_base;
        durable_rig_build(&b, b.path);
        durable_rig_build(&b, b.other);
        b.n_all = n_all;
        durable_rig_open_file(&b, b.path, false);
        durable_rig_open_kv(&b, false);
        durable_rig_walk(&b, n_base);
        while (sl_kv_tokens(b.kv, 0) < n_all) {
            uint64_t left = n_all - sl_kv_tokens(b.kv, 0), n = 1 + kv_model_random(&b.model, 900);
            durable_rig_append(&b, n < left ? n : left);
            if (kv_model_random(&b.model, 3) == 0)
                durable_rig_walk(&b, sl_kv_tokens(b.kv, 0));
        }
        durable_rig_walk(&b, n_all);
        durable_rig_close(&b);
        durable_rig_same_files(b.path, b.other);
        durable_rig_stop(&b);
    }
}

/* A finished file grows: as though it had been made so from the start. */
static void appended_equals_plain(void **unused)
{
    (void)unused;
    static durable_rig b;
    uint64_t seed = durable_seed() + 2000;
    sl_err err;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 6 : 30); i++) {
        durable_rig_start(&b, seed + (uint64_t)i, 0);
        uint64_t n_all = b.n_all, n_base = 1 + kv_model_random(&b.model, n_all);
        b.n_all = n_base;
        durable_rig_build(&b, b.path);
        b.n_all = n_all;
        durable_rig_build(&b, b.other);
        for (int try = 0; try < 2; try++) {
            durable_rig_open_file(&b, b.path, true);
            durable_rig_check_ids(&b, n_base);
            durable_rig_open_kv(&b, true);
            durable_rig_append(&b, n_all - n_base);
            if (try == 0) { /* given up: the file holds what it held */
                durable_rig_close(&b);
                durable_rig_open_file(&b, b.path, false);
                durable_rig_check_ids(&b, n_base);
                durable_rig_open_kv(&b, false);
                durable_rig_walk(&b, n_base);
                durable_rig_close(&b);
                continue;
            }
            durable_rig_commit(&b);
            durable_must(sl_kv_finish(b.kv, &err), &err);
            durable_rig_close(&b);
        }
        durable_rig_same_files(b.path, b.other);
        durable_rig_stop(&b);
    }
}

/* Opens or makes, appends, commits twice, finishes: over a file system that fails once. */
static sl_status build_over(durable_rig *b, const sl_vfs *vfs, uint64_t *committed, sl_err *err)
{
    sl_durable_options o = {.vfs = vfs, .path = b->path, .for_writing = true, .allow_ram = true,
                            .max_tokens = b->n_all, .budget = &b->budget};
    sl_status status = access(b->path, F_OK) == 0
                           ? sl_durable_open(&o, &b->durable, err)
                           : sl_durable_create(&o, &durable_rig_identity, &b->model.geom, &b->durable, err);
    const sl_kv_options kv = {.geom = b->model.geom, .vfs = vfs, .dir = durable_test_dir(), .max_tokens = b->n_all,
                              .n_slots = 2, .durable = b->durable, .keep = true, .budget = &b->budget};
    status = status == SL_OK ? sl_kv_create(&kv, &b->kv, err) : status;
    for (uint64_t half = 1; status == SL_OK && half <= 2; half++) {
        uint64_t to = b->n_all * half / 2, at = sl_kv_tokens(b->kv, 0);
        for (uint32_t i = 0; status == SL_OK && at < to && i < b->model.geom.n_layers; i++)
            status = sl_kv_append(b->kv, i, durable_rig_groups(b, i, at), to - at, err);
        if (status == SL_OK)
            status = sl_kv_commit(b->kv, b->ids, b->n_all, err);
        *committed = status == SL_OK ? to > at ? to : at : *committed;
    }
    return status == SL_OK ? sl_kv_finish(b->kv, err) : status;
}

/* Told with cause and file; what was committed stands; the next run ends the same. A failed sync is not asked again. */
static void one_fault_loses_nothing(void **unused)
{
    (void)unused;
    static const struct {
        fault_kind kind;
        int code;
    } kinds[] = {{FAULT_SYNC, EIO}, {FAULT_PUBLISH, ENOSPC}, {FAULT_SET_SIZE, EFBIG}, {FAULT_CLEAR, EIO},
                 {FAULT_OPEN, EMFILE}, {FAULT_WRITE, ENOSPC}, {FAULT_CLEAR, EOPNOTSUPP}};
    static durable_rig b;
    sl_err err;
    durable_rig_start(&b, durable_seed() + 3000, 4500);
    durable_rig_build(&b, b.other);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (uint64_t n = 1, hits = 1; hits > 0; n += EFFORT_IS_SMALL ? 3 : 1) {
            fault_vfs fault;
            uint64_t committed = 0;
            fault_vfs_init(&fault, kinds[k].kind, kinds[k].code, n);
            sl_status status = build_over(&b, &fault.vfs, &committed, &err);
            hits = fault.n_hits;
            if (status != SL_OK && (!strstr(err.text, b.path) || !strstr(err.text, strerror(kinds[k].code))))
                fail_msg("kind %d, call %lu: %s", (int)kinds[k].kind, (unsigned long)n, err.text);
            assert_int_equal(status == SL_OK, hits == 0 || kinds[k].code == EOPNOTSUPP);
            if (status != SL_OK && kinds[k].kind == FAULT_SYNC && b.kv)
                assert_int_equal(sl_kv_commit(b.kv, b.ids, b.n_all, &err), SL_FAILED);
            durable_rig_close(&b);
            assert_int_equal(fault.n_open, 0);
            if (access(b.path, F_OK) == 0) {
                durable_rig_open_file(&b, b.path, false);
                durable_rig_check_ids(&b, sl_durable_get(b.durable).n_tokens);
                assert_true(sl_durable_get(b.durable).n_tokens >= committed);
            }
            durable_rig_close(&b);
            durable_must(build_over(&b, NULL, &committed, &err), &err);
            durable_rig_close(&b);
            durable_rig_same_files(b.path, b.other);
            unlink(b.path);
        }
    durable_rig_stop(&b);
}

static void refusals(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    durable_rig_start(&b, 3, 300);
    durable_rig_build(&b, b.path);
    sl_durable *second = NULL;
    sl_durable_options options = {
        .path = b.path, .for_writing = true, .allow_ram = true, .max_tokens = 300, .budget = &b.budget};
    assert_int_equal(sl_durable_create(&options, &durable_rig_identity, &b.model.geom, &second, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "exists"));
    durable_rig_open_file(&b, b.path, true);
    assert_int_equal(sl_durable_open(&options, &second, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "another process"));
    options.for_writing = false;
    durable_must(sl_durable_open(&options, &second, &err), &err);
    sl_durable_close(second);
    durable_rig_close(&b);
    options.path = "/nonexistent/x.kv";
    assert_int_equal(sl_durable_open(&options, &second, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/nonexistent/x.kv"));
    durable_rig_stop(&b);
}

/* Every byte of a finished file is under a checksum or zero: a flipped bit in a part is found by the walk, one in a
 * record or superblock by opening, unless the other copy stands; none goes unseen or crashes. */
static void flipped_bits_are_found(void **unused)
{
    (void)unused;
    static durable_rig b;
    durable_rig_start(&b, 5, 5000);
    durable_rig_build(&b, b.path);
    int fd = open(b.path, O_RDWR);
    struct stat info;
    assert_true(fd >= 0 && fstat(fd, &info) == 0);
    unsigned n_refused = 0, n_noted = 0, n_walked = 0;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 60 : 400); i++) {
        off_t at = (off_t)kv_model_random(&b.model, (uint64_t)info.st_size);
        uint8_t byte, flipped;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        flipped = byte ^ (uint8_t)(1u << kv_model_random(&b.model, 8));
        assert_int_equal(pwrite(fd, &flipped, 1, at), 1);
        sl_err err;
        const sl_durable_options options = {
            .path = b.path, .allow_ram = true, .max_tokens = b.n_all, .budget = &b.budget};
        sl_status status = sl_durable_open(&options, &b.durable, &err);
        if (status != SL_OK) {
            assert_int_equal(status == SL_DAMAGED || status == SL_REFUSED, 1);
            n_refused++;
        } else {
            n_noted += sl_durable_get(b.durable).note != NULL;
            durable_rig_check_ids(&b, b.n_all);
            const sl_kv_options kv = {.geom = b.model.geom,
                                      .dir = durable_test_dir(),
                                      .max_tokens = b.n_all,
                                      .n_slots = 2,
                                      .durable = b.durable,
                                      .budget = &b.budget};
            status = sl_kv_create(&kv, &b.kv, &err);
            if (status == SL_OK)
                status = sl_kv_pass_begin(b.kv, false, &err);
            for (uint32_t l = 0; status == SL_OK && l < b.model.geom.n_layers; l++) {
                sl_kv_part part;
                bool found = true;
                while (found && (status = sl_kv_next(b.kv, l, &part, &found, &err)) == SL_OK)
                    if (found)
                        sl_kv_release(b.kv, &part);
            }
            n_walked += status == SL_DAMAGED;
            durable_rig_close(&b);
        }
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    print_message("%u refused at opening, %u noted, %u found by the walk\n", n_refused, n_noted, n_walked);
    assert_true(n_walked > 0);
    durable_rig_stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interrupted_equals_plain), cmocka_unit_test(overlay_leaves_the_file_alone),
        cmocka_unit_test(appended_equals_plain),    cmocka_unit_test(refusals),
        cmocka_unit_test(one_fault_loses_nothing),  cmocka_unit_test(flipped_bits_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
