/* A fork on a disk whose power fails, or whose user is killed, at any call: what it was made from stays as it was, and
 * the new name is nobody's, with nothing left of the work, or a whole file's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/disk_vfs.h"
#include "common/durable_rig.h"
#include "common/effort.h"

enum { MAX_TOKENS = 9000 };

typedef struct bench {
    sl_budget budget;
    kv_model model;
    disk_vfs disk;
    int32_t ids[MAX_TOKENS];
    uint8_t *book, *plain; /* bytes of the file with all tokens, and of the one with the first n_tokens */
    uint64_t book_bytes, plain_bytes, n_tokens;
    uint64_t n_unnamed, n_named;
} bench;

static sl_durable_options options_for(bench *b, const char *path, bool for_writing)
{
    return (sl_durable_options){.vfs = &b->disk.vfs, .path = path, .for_writing = for_writing, .name_last = for_writing,
                                .max_tokens = MAX_TOKENS, .budget = &b->budget};
}

static sl_status open_kv(bench *b, sl_durable *durable, sl_kv **out, sl_err *err)
{
    const sl_kv_options options = {.geom = b->model.geom, .vfs = &b->disk.vfs, .dir = "nowhere",
                                   .max_tokens = MAX_TOKENS, .durable = durable, .keep = true, .budget = &b->budget};
    return sl_kv_create(&options, out, err);
}

static sl_status end(bench *b, sl_durable *durable, sl_kv *kv, sl_err *err)
{
    sl_status status = sl_kv_commit(kv, b->ids, b->n_tokens, err);
    if (status == SL_OK)
        status = sl_kv_finish(kv, err);
    return status == SL_OK ? sl_durable_publish(durable, false, err) : status;
}

/* A file of the first n_tokens; its bytes. */
static uint8_t *build(bench *b, const char *path, uint64_t *bytes)
{
    sl_err err;
    sl_durable *durable = NULL;
    sl_kv *kv = NULL;
    const sl_durable_options options = options_for(b, path, true);
    durable_must(sl_durable_create(&options, &durable_rig_identity, &b->model.geom, &durable, &err), &err);
    durable_must(open_kv(b, durable, &kv, &err), &err);
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++)
        durable_must(sl_kv_append(kv, i, b->model.groups[i], b->n_tokens, &err), &err);
    durable_must(end(b, durable, kv, &err), &err);
    sl_kv_destroy(kv);
    sl_durable_close(durable);
    const disk_file *file = disk_find(&b->disk, path);
    uint8_t *copy = malloc((size_t)file->size);
    assert_non_null(copy);
    *bytes = file->size;
    return memcpy(copy, file->now, (size_t)file->size);
}

static void start(bench *b, uint64_t seed)
{
    sl_err err;
    memset(b, 0, sizeof *b);
    sl_budget_init(&b->budget, UINT64_MAX);
    disk_init(&b->disk, seed);
    const sl_kv_layer layers[] = {{1, 32, 0}, {2, 32, 0}};
    const sl_geom geom = {seed % 2 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, 1 + (uint32_t)(seed % 3 > 0), layers};
    kv_model_init(&b->model, &geom, MAX_TOKENS, seed);
    const sl_kv_options options = {.geom = b->model.geom, .vfs = &b->disk.vfs, .dir = "nowhere",
                                   .max_tokens = MAX_TOKENS, .resident_bytes = UINT64_MAX, .n_slots = 2,
                                   .budget = &b->budget};
    sl_kv *kv = NULL;
    durable_must(sl_kv_create(&options, &kv, &err), &err);
    for (uint32_t i = 0; i < geom.n_layers; i++)
        durable_must(kv_model_append(&b->model, kv, i, MAX_TOKENS, &err), &err);
    sl_kv_destroy(kv);
    for (size_t i = 0; i < MAX_TOKENS; i++)
        b->ids[i] = (int32_t)kv_model_random(&b->model, 100);
    b->n_tokens = MAX_TOKENS;
    b->book = build(b, "book.kv", &b->book_bytes);
    b->n_tokens = durable_rig_cut(&b->model, MAX_TOKENS);
    b->plain = build(b, "plain.kv", &b->plain_bytes);
    disk_remove(&b->disk, "plain.kv");
}

static void stop(bench *b)
{
    free(b->book);
    free(b->plain);
    kv_model_deinit(&b->model);
    disk_deinit(&b->disk);
    assert_int_equal(b->budget.used_bytes, 0);
    sl_budget_deinit(&b->budget);
}

static sl_status fork_book(bench *b, sl_err *err)
{
    sl_durable *from = NULL, *to = NULL;
    sl_kv *kv = NULL;
    sl_durable_cloned cloned;
    const sl_durable_options reading = options_for(b, "book.kv", false), writing = options_for(b, "fork.kv", true);
    sl_status status = sl_durable_open(&reading, &from, err);
    if (status == SL_OK)
        status = sl_durable_create(&writing, &durable_rig_identity, &b->model.geom, &to, err);
    if (status == SL_OK)
        status = sl_durable_clone(to, from, b->n_tokens / SL_SEGMENT_TOKENS, NULL, &cloned, err);
    if (status == SL_OK)
        status = open_kv(b, to, &kv, err);
    if (status == SL_OK)
        status = sl_kv_append_stored(kv, from, b->n_tokens, NULL, err);
    if (status == SL_OK)
        status = end(b, to, kv, err);
    sl_kv_destroy(kv);
    sl_durable_close(to);
    sl_durable_close(from);
    return status;
}

static void expect_bytes(const bench *b, const char *path, const uint8_t *wanted, uint64_t bytes)
{
    const disk_file *file = disk_find(&b->disk, path);
    assert_non_null(file);
    assert_int_equal(file->size, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (file->now[i] != wanted[i])
            fail_msg("%s, byte %lu: %02x, made in one go %02x", path, (unsigned long)i, file->now[i], wanted[i]);
}

static void check(bench *b)
{
    int n_used = 0;
    bool is_named = disk_find(&b->disk, "fork.kv") != NULL;
    for (int i = 0; i < DISK_FILES; i++)
        n_used += b->disk.files[i].is_used;
    expect_bytes(b, "book.kv", b->book, b->book_bytes);
    assert_int_equal(n_used, is_named ? 2 : 1);
    if (is_named)
        expect_bytes(b, "fork.kv", b->plain, b->plain_bytes);
    b->n_named += is_named;
    b->n_unnamed += !is_named;
    disk_remove(&b->disk, "fork.kv");
}

static void ended_anywhere(void **unused)
{
    (void)unused;
    static bench b;
    sl_err err;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 2 : 6); i++) {
        start(&b, durable_seed() + 18000 + i);
        b.disk.shares = i % 2 == 0;
        uint64_t before = b.disk.n_ops;
        durable_must(fork_book(&b, &err), &err);
        uint64_t n_ops = b.disk.n_ops - before;
        check(&b);
        for (uint64_t cut = 1; cut <= n_ops; cut++) {
            b.disk.cut_at = b.disk.n_ops + cut;
            sl_status status = fork_book(&b, &err);
            assert_true(b.disk.is_dead ? status == SL_FAILED : status == SL_OK);
            disk_restart(&b.disk, cut % 2);
            check(&b);
        }
        print_message("%lu tokens, ended at each of %lu calls: %lu times no file, %lu times a whole one\n",
                      (unsigned long)b.n_tokens, (unsigned long)n_ops, (unsigned long)b.n_unnamed,
                      (unsigned long)b.n_named);
        assert_true(b.n_unnamed >= n_ops * 3 / 4 && b.n_named >= 1); /* how zeros are written is drawn, too */
        b.n_named = b.n_unnamed = 0;
        stop(&b);
    }
}

/* No room at some call: told, nothing left, and there is room again. */
static void disk_gets_full(void **unused)
{
    (void)unused;
    static bench b;
    sl_err err;
    start(&b, durable_seed() + 19000);
    for (uint64_t step = 1, n_failed = 1; n_failed > 0; step += EFFORT_IS_SMALL ? 5 : 1) {
        b.disk.full_from = b.disk.n_ops + step;
        sl_status status = fork_book(&b, &err);
        b.disk.full_from = 0;
        n_failed = status != SL_OK;
        assert_true(status == SL_OK || (status == SL_FAILED && strstr(err.text, "No space")));
        check(&b);
    }
    stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ended_anywhere), cmocka_unit_test(disk_gets_full)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
