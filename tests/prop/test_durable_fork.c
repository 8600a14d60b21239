/* One context's tokens in a file of their own: taken over from another file, shared or copied, or from a context that
 * goes on. The new file is byte for byte the one that was made from the tokens alone, and has its name last. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/durable_rig.h"
#include "common/effort.h"
#include "common/fault_vfs.h"

/* A copy under way: which file, what may go wrong. */
typedef struct fork_run {
    durable_rig *b;
    const sl_vfs *vfs;
    char target[DURABLE_RIG_PATH];
    uint64_t n_tokens;
    sl_durable *to;
    sl_kv *kv;
    sl_durable_cloned cloned;
    sl_durable_watch watch;
} fork_run;

static fork_run new_run(durable_rig *b, const sl_vfs *vfs, uint64_t n_tokens)
{
    fork_run run = {.b = b, .vfs = vfs, .n_tokens = n_tokens};
    snprintf(run.target, sizeof run.target, "%.240s.fork", b->path);
    return run;
}

static sl_status create_target(fork_run *run, sl_err *err)
{
    const sl_durable_options options = {.vfs = run->vfs, .path = run->target, .for_writing = true, .allow_ram = true,
                                        .name_last = true, .max_tokens = run->n_tokens, .budget = &run->b->budget};
    return sl_durable_create(&options, &durable_rig_identity, &run->b->model.geom, &run->to, err);
}

static sl_status open_target(fork_run *run, sl_err *err)
{
    const sl_kv_options options = {.geom = run->b->model.geom, .vfs = run->vfs, .dir = durable_test_dir(),
                                   .max_tokens = run->n_tokens, .n_slots = 2, .durable = run->to, .keep = true,
                                   .budget = &run->b->budget};
    return sl_kv_create(&options, &run->kv, err);
}

static sl_status end_target(fork_run *run, const int32_t *ids, sl_err *err)
{
    sl_status status = sl_kv_commit(run->kv, ids, run->n_tokens, err);
    if (status == SL_OK)
        status = sl_kv_finish(run->kv, err);
    return status == SL_OK ? sl_durable_publish(run->to, false, err) : status;
}

static void close_target(fork_run *run)
{
    sl_kv_destroy(run->kv);
    sl_durable_close(run->to);
    run->kv = NULL;
    run->to = NULL;
}

/* From the open file of the rig. */
static sl_status fork_file(fork_run *run, sl_err *err)
{
    sl_status status = create_target(run, err);
    if (status == SL_OK)
        status = sl_durable_clone(run->to, run->b->durable, run->n_tokens / SL_SEGMENT_TOKENS, &run->watch,
                                  &run->cloned, err);
    if (status == SL_OK)
        status = open_target(run, err);
    if (status == SL_OK)
        status = sl_kv_append_stored(run->kv, run->b->durable, run->n_tokens, &run->watch, err);
    if (status == SL_OK)
        status = end_target(run, sl_durable_ids(run->b->durable), err);
    return status;
}

/* From the rig's context, which may have a file below. */
static sl_status save_context(fork_run *run, sl_err *err)
{
    durable_rig *b = run->b;
    uint64_t base = sl_kv_base_tokens(b->kv) < run->n_tokens ? sl_kv_base_tokens(b->kv) : run->n_tokens;
    sl_status status = create_target(run, err);
    if (status == SL_OK && b->durable)
        status = sl_durable_clone(run->to, b->durable, base / SL_SEGMENT_TOKENS, &run->watch, &run->cloned, err);
    if (status == SL_OK)
        status = open_target(run, err);
    if (status == SL_OK)
        status = sl_kv_copy(run->kv, b->kv, run->n_tokens, &run->watch, err);
    return status == SL_OK ? end_target(run, b->ids, err) : status;
}

static void open_over(durable_rig *b, const sl_vfs *vfs, const char *path)
{
    sl_err err;
    const sl_durable_options options = {.vfs = vfs, .path = path, .max_tokens = b->n_all, .budget = &b->budget};
    durable_must(sl_durable_open(&options, &b->durable, &err), &err);
}

static void make_source(durable_rig *b, bool is_finished)
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

/* `other`: the first n tokens, plainly. */
static void make_plain(durable_rig *b, uint64_t n)
{
    uint64_t n_all = b->n_all;
    b->n_all = n;
    durable_rig_build(b, b->other);
    b->n_all = n_all;
}

static void forked_equals_plain(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    uint64_t seed = durable_seed() + 10000;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 6 : 24); i++) {
        print_message("seed %lu\n", (unsigned long)(seed + (uint64_t)i));
        durable_rig_start(&b, seed + (uint64_t)i, 0);
        make_source(&b, i % 3 != 0);
        fault_vfs vfs;
        fault_vfs_init(&vfs, FAULT_NONE, 0, 0);
        for (int k = 0; k < 3; k++) {
            uint64_t n = k == 0 ? b.n_all : durable_rig_cut(&b.model, b.n_all);
            fork_run run = new_run(&b, &vfs.vfs, n);
            vfs.shares_by_copying = kv_model_random(&b.model, 2);
            make_plain(&b, n);
            open_over(&b, &vfs.vfs, b.path);
            durable_must(fork_file(&run, &err), &err);
            uint64_t whole = n / SL_SEGMENT_TOKENS * sl_layout_of(&b.model.geom).blocks_bytes;
            assert_int_equal(run.cloned.shared_bytes, vfs.shares_by_copying ? whole : 0);
            assert_int_equal(run.cloned.copied_bytes, vfs.shares_by_copying ? 0 : whole);
            close_target(&run);
            durable_rig_close(&b);
            durable_rig_same_files(run.target, b.other);
            unlink(run.target);
            unlink(b.other);
        }
        assert_int_equal(vfs.n_open, 0);
        durable_rig_stop(&b);
    }
}

/* What is in memory, in the overlay and in the file below, after growing and being cut, goes into a file; the context
 * goes on. */
static void saved_equals_plain(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    uint64_t seed = durable_seed() + 11000;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 6 : 24); i++) {
        print_message("seed %lu\n", (unsigned long)(seed + (uint64_t)i));
        durable_rig_start(&b, seed + (uint64_t)i, 0);
        uint64_t n_all = b.n_all;
        if (i % 3 != 0) {
            b.n_all = 1 + kv_model_random(&b.model, n_all);
            make_source(&b, i % 2 == 0);
            b.n_all = n_all;
            durable_rig_open_file(&b, b.path, false);
        }
        durable_rig_open_kv(&b, false);
        for (int k = 0; k < 3; k++) {
            uint64_t at = sl_kv_tokens(b.kv, 0);
            if (at > 0 && kv_model_random(&b.model, 2))
                durable_must(sl_kv_truncate(b.kv, durable_rig_cut(&b.model, at), &err), &err);
            at = sl_kv_tokens(b.kv, 0);
            durable_rig_append(&b, kv_model_random(&b.model, n_all - at + 1));
            if (kv_model_random(&b.model, 2))
                durable_rig_walk(&b, sl_kv_tokens(b.kv, 0));
            at = sl_kv_tokens(b.kv, 0);
            if (at == 0)
                continue;
            fork_run run = new_run(&b, NULL, at);
            durable_must(save_context(&run, &err), &err);
            close_target(&run);
            durable_rig_walk(&b, at);
            sl_kv *kv = b.kv;
            sl_durable *durable = b.durable;
            b.kv = NULL;
            b.durable = NULL;
            make_plain(&b, at);
            b.kv = kv;
            b.durable = durable;
            durable_rig_same_files(run.target, b.other);
            unlink(run.target);
            unlink(b.other);
        }
        durable_rig_append(&b, n_all - sl_kv_tokens(b.kv, 0));
        durable_rig_walk(&b, n_all);
        durable_rig_close(&b);
        durable_rig_stop(&b);
    }
}

/* Cloning that was cut off between segments goes on where it was, named or not. */
static void clone_goes_on(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    durable_rig_start(&b, durable_seed() + 12000, 9000);
    make_source(&b, true);
    durable_rig_open_file(&b, b.path, false);
    fork_run run = new_run(&b, NULL, 9000);
    const sl_durable_options options = {.path = run.target, .for_writing = true, .allow_ram = true,
                                        .max_tokens = 9000, .budget = &b.budget};
    durable_must(sl_durable_create(&options, &durable_rig_identity, &b.model.geom, &run.to, &err), &err);
    durable_must(sl_durable_clone(run.to, b.durable, 1, NULL, &run.cloned, &err), &err);
    sl_durable_close(run.to);
    durable_must(sl_durable_open(&options, &run.to, &err), &err);
    assert_int_equal(sl_durable_get(run.to).n_tokens, SL_SEGMENT_TOKENS);
    durable_must(sl_durable_clone(run.to, b.durable, 2, NULL, &run.cloned, &err), &err);
    assert_int_equal(run.cloned.shared_bytes + run.cloned.copied_bytes, sl_layout_of(&b.model.geom).blocks_bytes);
    durable_must(sl_durable_clone(run.to, b.durable, 2, NULL, &run.cloned, &err), &err);
    assert_int_equal(sl_durable_clone(run.to, b.durable, 3, NULL, &run.cloned, &err), SL_USAGE);
    durable_must(open_target(&run, &err), &err);
    durable_must(sl_kv_append_stored(run.kv, b.durable, 9000, NULL, &err), &err);
    durable_must(sl_kv_commit(run.kv, b.ids, 9000, &err), &err);
    durable_must(sl_kv_finish(run.kv, &err), &err);
    close_target(&run);
    durable_rig_close(&b);
    durable_rig_same_files(run.target, b.path);
    unlink(run.target);
    durable_rig_stop(&b);
}

static bool stop_later(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *left = arg;
    assert_true(done <= total);
    return (*left)-- > 1;
}

/* Cancelled or failed anywhere: nothing has the name, nothing is left open, and what is there is told. */
static void nothing_is_left_behind(void **unused)
{
    (void)unused;
    static const struct {
        fault_kind kind;
        int code;
        bool shares;
    } kinds[] = {{FAULT_NONE, 0, true},        {FAULT_NONE, 0, false},    {FAULT_SYNC, EIO, false},
                 {FAULT_WRITE, ENOSPC, false}, {FAULT_SHARE, ENOSPC, true}, {FAULT_PUBLISH, ENOSPC, true},
                 {FAULT_READ, EIO, false},     {FAULT_SET_SIZE, EFBIG, true}};
    static durable_rig b;
    sl_err err;
    durable_rig_start(&b, durable_seed() + 13000, 9000);
    make_source(&b, true);
    make_plain(&b, 8300);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        bool is_through = false;
        for (uint64_t n = 1; !is_through; n += EFFORT_IS_SMALL ? 3 : 1) {
            fault_vfs vfs;
            uint64_t left = kinds[k].kind == FAULT_NONE ? n : UINT64_MAX;
            fault_vfs_init(&vfs, kinds[k].kind, kinds[k].code, UINT64_MAX / 2);
            vfs.shares_by_copying = kinds[k].shares;
            open_over(&b, &vfs.vfs, b.path);
            vfs.n = atomic_load(&vfs.n_calls) + n;
            fork_run run = new_run(&b, &vfs.vfs, 8300);
            run.watch = (sl_durable_watch){stop_later, &left};
            sl_status status = fork_file(&run, &err);
            close_target(&run);
            durable_rig_close(&b);
            assert_int_equal(vfs.n_open, 0);
            is_through = status == SL_OK;
            if (is_through) {
                durable_rig_same_files(run.target, b.other);
                unlink(run.target);
                continue;
            }
            assert_int_equal(status, kinds[k].kind == FAULT_NONE ? SL_CANCELLED : SL_FAILED);
            assert_true(kinds[k].kind == FAULT_NONE || strstr(err.text, strerror(kinds[k].code)));
            assert_int_equal(access(run.target, F_OK), -1);
        }
    }
    durable_rig_stop(&b);
}

/* A damaged part is not copied. A name that is taken is kept. */
static void damage_and_taken_names(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    durable_rig_start(&b, durable_seed() + 14000, 9000);
    make_source(&b, true);
    sl_layout layout = sl_layout_of(&b.model.geom);
    for (uint64_t segment = 0; segment < 3; segment++) {
        off_t off = (off_t)sl_layout_segment_off(&layout, segment) + 100;
        int fd = open(b.path, O_RDWR);
        uint8_t byte = 0, flipped;
        assert_int_equal(pread(fd, &byte, 1, off), 1);
        flipped = byte ^ 1;
        assert_int_equal(pwrite(fd, &flipped, 1, off), 1);
        fault_vfs vfs;
        fault_vfs_init(&vfs, FAULT_NONE, 0, 0);
        open_over(&b, &vfs.vfs, b.path);
        fork_run run = new_run(&b, &vfs.vfs, 9000);
        vfs.vfs.share = NULL; /* a system without it */
        assert_int_equal(fork_file(&run, &err), SL_DAMAGED);
        assert_non_null(strstr(err.text, b.path));
        close_target(&run);
        assert_int_equal(access(run.target, F_OK), -1);
        durable_rig_close(&b);
        assert_int_equal(pwrite(fd, &byte, 1, off), 1);
        close(fd);
    }
    durable_rig_open_file(&b, b.path, false);
    fork_run run = new_run(&b, NULL, 9000);
    FILE *taken = fopen(run.target, "wb");
    assert_non_null(taken);
    fputs("mine", taken);
    fclose(taken);
    assert_int_equal(fork_file(&run, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "exists already"));
    close_target(&run);
    char text[8] = "";
    taken = fopen(run.target, "rb");
    assert_int_equal(fread(text, 1, sizeof text, taken), 4);
    fclose(taken);
    assert_string_equal(text, "mine");
    unlink(run.target);
    durable_rig_close(&b);
    durable_rig_stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forked_equals_plain),    cmocka_unit_test(saved_equals_plain),
        cmocka_unit_test(clone_goes_on),          cmocka_unit_test(nothing_is_left_behind),
        cmocka_unit_test(damage_and_taken_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
