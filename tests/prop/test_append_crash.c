/* An append on a disk whose power fails, or whose user is killed, at any call: the file holds what it held or all that
 * was appended, also where the append crosses the end of a segment, and the same append then makes the file that a
 * prefill would have made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/disk_vfs.h"
#include "common/durable_rig.h"
#include "common/effort.h"

enum { MAX_TOKENS = 8300 };

typedef struct bench {
    sl_budget budget;
    kv_model model;
    disk_vfs disk;
    int32_t ids[MAX_TOKENS];
    uint8_t *plain; /* bytes of the file with n_tokens in one go */
    uint64_t plain_bytes, n_before, n_tokens;
    uint64_t n_old, n_new; /* times that was found */
} bench;

static sl_durable_options options_for(bench *b, const char *path, bool for_writing)
{
    return (sl_durable_options){.vfs = &b->disk.vfs, .path = path, .for_writing = for_writing,
                                .max_tokens = MAX_TOKENS, .budget = &b->budget};
}

static sl_status open_kv(bench *b, sl_durable *durable, sl_kv **out, sl_err *err)
{
    const sl_kv_options options = {.geom = b->model.geom, .vfs = &b->disk.vfs, .dir = "nowhere",
                                   .max_tokens = MAX_TOKENS, .durable = durable, .keep = true, .budget = &b->budget};
    return sl_kv_create(&options, out, err);
}

static sl_status end(bench *b, sl_kv *kv, uint64_t n_tokens, sl_err *err)
{
    sl_status status = sl_kv_commit(kv, b->ids, n_tokens, err);
    return status == SL_OK ? sl_kv_finish(kv, err) : status;
}

/* A file of the first n_tokens. */
static void build(bench *b, const char *path, uint64_t n_tokens)
{
    sl_err err;
    sl_durable *durable = NULL;
    sl_kv *kv = NULL;
    const sl_durable_options options = options_for(b, path, true);
    durable_must(sl_durable_create(&options, &durable_rig_identity, &b->model.geom, &durable, &err), &err);
    durable_must(open_kv(b, durable, &kv, &err), &err);
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++)
        durable_must(sl_kv_append(kv, i, b->model.groups[i], n_tokens, &err), &err);
    durable_must(end(b, kv, n_tokens, &err), &err);
    sl_kv_destroy(kv);
    sl_durable_close(durable);
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
    /* Mostly across the end of a segment, sometimes to it or from it. */
    b->n_before = seed % 4 == 3 ? 4096 : 4096 - 1 - kv_model_random(&b->model, 130);
    b->n_tokens = seed % 4 == 2 ? 4096 : 4097 + kv_model_random(&b->model, seed % 4 == 1 ? 4200 : 200);
    build(b, "plain.kv", b->n_tokens);
    const disk_file *file = disk_find(&b->disk, "plain.kv");
    b->plain = malloc((size_t)file->size);
    assert_non_null(b->plain);
    b->plain_bytes = file->size;
    memcpy(b->plain, file->now, (size_t)file->size);
    disk_remove(&b->disk, "plain.kv");
}

static void stop(bench *b)
{
    free(b->plain);
    kv_model_deinit(&b->model);
    disk_deinit(&b->disk);
    assert_int_equal(b->budget.used_bytes, 0);
    sl_budget_deinit(&b->budget);
}

/* What is missing up to n_tokens, in one commit, as a question and its answer are appended. */
static sl_status append(bench *b, sl_err *err)
{
    sl_durable *durable = NULL;
    sl_kv *kv = NULL;
    const sl_durable_options options = options_for(b, "book.kv", true);
    sl_status status = sl_durable_open(&options, &durable, err);
    if (status == SL_OK)
        status = open_kv(b, durable, &kv, err);
    uint64_t at = kv ? sl_kv_tokens(kv, 0) : 0;
    for (uint32_t i = 0; status == SL_OK && at < b->n_tokens && i < b->model.geom.n_layers; i++) {
        size_t group = sl_geom_group_bytes(&b->model.geom, i);
        status = sl_kv_append(kv, i, b->model.groups[i] + at / SL_TILE * group, b->n_tokens - at, err);
    }
    if (status == SL_OK)
        status = end(b, kv, b->n_tokens, err);
    sl_kv_destroy(kv);
    sl_durable_close(durable);
    return status;
}

static void expect_old_or_new(bench *b)
{
    sl_err err;
    sl_durable *durable = NULL;
    const sl_durable_options options = options_for(b, "book.kv", false);
    durable_must(sl_durable_open(&options, &durable, &err), &err);
    uint64_t n = sl_durable_get(durable).n_tokens;
    if (n != b->n_before && n != b->n_tokens)
        fail_msg("%lu tokens, before the append %lu, after it %lu", (unsigned long)n, (unsigned long)b->n_before,
                 (unsigned long)b->n_tokens);
    assert_memory_equal(sl_durable_ids(durable), b->ids, n * sizeof *b->ids);
    b->n_old += n == b->n_before;
    b->n_new += n == b->n_tokens;
    sl_durable_close(durable);
}

static void expect_plain(const bench *b)
{
    const disk_file *file = disk_find(&b->disk, "book.kv");
    assert_int_equal(file->size, b->plain_bytes);
    for (uint64_t i = 0; i < file->size; i++)
        if (file->now[i] != b->plain[i])
            fail_msg("byte %lu: %02x, made in one go %02x", (unsigned long)i, file->now[i], b->plain[i]);
}

static void ended_anywhere(void **unused)
{
    (void)unused;
    static bench b;
    sl_err err;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 2 : 8); i++) {
        start(&b, durable_seed() + 21000 + i);
        build(&b, "book.kv", b.n_before);
        uint64_t before = b.disk.n_ops;
        durable_must(append(&b, &err), &err);
        uint64_t n_ops = b.disk.n_ops - before;
        expect_plain(&b);
        for (uint64_t cut = 1; cut <= n_ops; cut++) {
            disk_remove(&b.disk, "book.kv");
            build(&b, "book.kv", b.n_before);
            b.disk.cut_at = b.disk.n_ops + cut;
            sl_status status = append(&b, &err);
            assert_true(b.disk.is_dead ? status == SL_FAILED : status == SL_OK);
            disk_restart(&b.disk, cut % 2);
            expect_old_or_new(&b);
            /* Killed again, at some call: still nothing between. */
            b.disk.cut_at = b.disk.n_ops + 1 + disk_random(&b.disk, n_ops);
            (void)append(&b, &err);
            disk_restart(&b.disk, cut % 3 == 0);
            expect_old_or_new(&b);
            durable_must(append(&b, &err), &err);
            expect_plain(&b);
        }
        print_message("%lu tokens to %lu, ended at each of %lu calls: %lu times the old ones, %lu times all\n",
                      (unsigned long)b.n_before, (unsigned long)b.n_tokens, (unsigned long)n_ops,
                      (unsigned long)b.n_old, (unsigned long)b.n_new);
        assert_true(b.n_old >= 5 && b.n_new >= 5);
        b.n_old = b.n_new = 0;
        stop(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ended_anywhere),
    };
    print_message("seed %lu\n", (unsigned long)durable_seed());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
