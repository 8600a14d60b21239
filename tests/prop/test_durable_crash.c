/* Contexts in a file on a disk whose power fails, whose users are killed and which gets full, at any call: what was
 * committed is there afterwards bit for bit, and going on ends in the file that was made in one go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/disk_vfs.h"
#include "common/effort.h"
#include "common/kv_model.h"
#include "store/durable.h"

enum { MAX_TOKENS = 9000 };

static const sl_identity identity = {
    .arithmetic_version = 1, .model = {7, 8}, .n_vocab = 100, .rope_base = 1e4, .name = "test"};

typedef struct bench {
    sl_budget budget;
    kv_model model; /* holds all tokens that will ever be appended */
    disk_vfs disk;
    uint64_t n_all, n_base; /* n_base: of the finished file to begin with; 0: none */
    int32_t ids[MAX_TOKENS];
    uint8_t *plain, *base; /* the finished files' bytes; of n_all and of n_base tokens */
    uint64_t plain_bytes, base_bytes;
    sl_durable *durable;
    sl_kv *kv;
    /* What the program was told. */
    bool is_named, is_finished;
    uint64_t committed;
    uint64_t n_cuts, n_kept, n_full; /* for the report: cuts, those after a commit; calls that found no space */
} bench;

static void must(sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("status %d: %s", (int)status, err->text);
}

static uint64_t seed_of_run(void)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 20261130;
}

static uint64_t random_below(bench *b, uint64_t n)
{
    return kv_model_random(&b->model, n);
}

static void close_both(bench *b)
{
    sl_kv_destroy(b->kv);
    sl_durable_close(b->durable);
    b->kv = NULL;
    b->durable = NULL;
}

static sl_status open_kv(bench *b, bool keep, sl_err *err)
{
    const sl_kv_options options = {.geom = b->model.geom,
                                   .vfs = &b->disk.vfs,
                                   .dir = "nowhere",
                                   .max_tokens = b->n_all,
                                   .resident_bytes = random_below(b, 3) << 18,
                                   .n_slots = 2,
                                   .durable = b->durable,
                                   .keep = keep,
                                   .budget = &b->budget};
    return sl_kv_create(&options, &b->kv, err);
}

static sl_durable_options options_for(bench *b, bool for_writing)
{
    return (sl_durable_options){.vfs = &b->disk.vfs,
                                .path = "book.kv",
                                .for_writing = for_writing,
                                .max_tokens = b->n_all,
                                .force_buffered = random_below(b, 2),
                                .budget = &b->budget};
}

static sl_status append_layer(bench *b, uint32_t layer, uint64_t to, sl_err *err)
{
    uint64_t at = sl_kv_tokens(b->kv, layer);
    uint8_t *groups = b->model.groups[layer] + at / SL_TILE * sl_geom_group_bytes(&b->model.geom, layer);
    return sl_kv_append(b->kv, layer, groups, to - at, err);
}

/* ---- checks ---- */

static void walk(bench *b, uint64_t n_tokens)
{
    sl_err err;
    must(sl_kv_pass_begin(b->kv, false, &err), &err);
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++) {
        size_t group_bytes = sl_geom_group_bytes(&b->model.geom, i);
        uint64_t groups = 0;
        sl_kv_part part;
        bool found = true;
        uint32_t n_tail = 0;
        assert_int_equal(sl_kv_tokens(b->kv, i), n_tokens);
        while (found) {
            must(sl_kv_next(b->kv, i, &part, &found, &err), &err);
            if (!found)
                break;
            assert_memory_equal(part.tiles, b->model.groups[i] + groups * group_bytes, part.n_groups * group_bytes);
            groups += part.n_groups;
            sl_kv_release(b->kv, &part);
        }
        assert_int_equal(groups, n_tokens / SL_TILE);
        (void)sl_kv_tail(b->kv, i, &n_tail);
        assert_int_equal(n_tail, n_tokens % SL_TILE);
    }
    must(sl_kv_pass_end(b->kv, &err), &err);
}

static void expect_bytes(const bench *b, const uint8_t *wanted, uint64_t bytes)
{
    const disk_file *file = disk_find(&b->disk, "book.kv");
    assert_non_null(file);
    assert_int_equal(file->size, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (file->now[i] != wanted[i])
            fail_msg("byte %lu: %02x, made in one go %02x", (unsigned long)i, file->now[i], wanted[i]);
}

static void expect_plain(const bench *b)
{
    expect_bytes(b, b->plain, b->plain_bytes);
}

/* A reader's view of what is there now. */
static void expect_committed(bench *b)
{
    sl_err err;
    const sl_durable_options options = options_for(b, false);
    if (!b->is_named && !disk_find(&b->disk, "book.kv"))
        return;
    must(sl_durable_open(&options, &b->durable, &err), &err);
    sl_durable_state state = sl_durable_get(b->durable);
    assert_true(state.n_tokens >= b->committed);
    assert_true(!b->is_finished || state.is_finished);
    assert_memory_equal(sl_durable_ids(b->durable), b->ids, state.n_tokens * sizeof *b->ids);
    must(open_kv(b, false, &err), &err);
    walk(b, state.n_tokens);
    close_both(b);
    if (state.is_finished && state.n_tokens == b->n_all && !state.note)
        expect_plain(b);
    else if (state.is_finished && !state.note)
        expect_bytes(b, b->base, b->base_bytes);
}

/* ---- a program's run ---- */

typedef enum step_kind { STEP_OPEN, STEP_OPEN_KV, STEP_APPEND, STEP_COMMIT, STEP_FINISH } step_kind;

static sl_status open_or_create(bench *b, sl_err *err)
{
    const sl_durable_options options = options_for(b, true);
    if (b->durable)
        return SL_OK;
    if (b->is_named || disk_find(&b->disk, "book.kv"))
        return sl_durable_open(&options, &b->durable, err);
    return sl_durable_create(&options, &identity, &b->model.geom, &b->durable, err);
}

static sl_status try_step(bench *b, step_kind kind, uint64_t to, sl_err *err)
{
    sl_status status = SL_OK;
    switch (kind) {
    case STEP_OPEN:
        return open_or_create(b, err);
    case STEP_OPEN_KV:
        return open_kv(b, true, err);
    case STEP_APPEND:
        for (uint32_t i = 0; status == SL_OK && i < b->model.geom.n_layers; i++)
            if (sl_kv_tokens(b->kv, i) < to)
                status = append_layer(b, i, to, err);
        return status;
    case STEP_COMMIT:
        return sl_kv_commit(b->kv, b->ids, b->n_all, err);
    case STEP_FINISH:
        return sl_kv_finish(b->kv, err);
    }
    return status;
}

/* Once more in the same handles, where there was no space and there is some now. */
static bool step(bench *b, step_kind kind, uint64_t to)
{
    sl_err err;
    b->disk.is_refused = false;
    sl_status status = try_step(b, kind, to, &err);
    if (status == SL_OK)
        return true;
    if (b->disk.is_dead)
        return false;
    if (!b->disk.is_refused)
        fail_msg("step %d: %s", (int)kind, err.text);
    b->n_full++;
    if (!strstr(err.text, "No space left") || !strstr(err.text, "book.kv"))
        fail_msg("step %d without space: %s", (int)kind, err.text);
    if (random_below(b, 2))
        return false;
    b->disk.full_from = 0;
    must(try_step(b, kind, to, &err), &err);
    return true;
}

/* Opens, goes on, commits at random, finishes; false: it ended somewhere. */
static bool go_on(bench *b)
{
    if (!step(b, STEP_OPEN, 0))
        return false;
    b->is_named = true;
    b->committed = sl_durable_get(b->durable).n_tokens;
    b->is_finished = false;
    if (!step(b, STEP_OPEN_KV, 0))
        return false;
    uint64_t most = random_below(b, 2) ? 3000 : 300;
    for (uint64_t at = b->committed; at < b->n_all;) {
        uint64_t n = 1 + random_below(b, most);
        at = at + n < b->n_all ? at + n : b->n_all;
        if (!step(b, STEP_APPEND, at))
            return false;
        if (at < b->n_all && random_below(b, 3) != 0)
            continue;
        if (!step(b, STEP_COMMIT, 0))
            return false;
        b->committed = at;
    }
    if (!step(b, STEP_FINISH, 0))
        return false;
    b->is_finished = true;
    return true;
}

/* ---- rounds ---- */

static uint8_t *make_plainly(bench *b, uint64_t n, uint64_t *bytes)
{
    uint64_t n_all = b->n_all;
    b->n_all = n;
    sl_err err;
    must(try_step(b, STEP_OPEN, 0, &err), &err);
    must(try_step(b, STEP_OPEN_KV, 0, &err), &err);
    must(try_step(b, STEP_APPEND, n, &err), &err);
    must(try_step(b, STEP_COMMIT, 0, &err), &err);
    must(try_step(b, STEP_FINISH, 0, &err), &err);
    close_both(b);
    b->n_all = n_all;
    const disk_file *file = disk_find(&b->disk, "book.kv");
    *bytes = file->size;
    uint8_t *copy = malloc((size_t)file->size);
    assert_non_null(copy);
    memcpy(copy, file->now, (size_t)file->size);
    disk_remove(&b->disk, "book.kv");
    return copy;
}

static void fill_model(bench *b)
{
    sl_err err;
    const sl_kv_options options = {.geom = b->model.geom, .dir = "/nowhere", .max_tokens = MAX_TOKENS,
                                   .resident_bytes = UINT64_MAX, .n_slots = 2, .budget = &b->budget};
    must(sl_kv_create(&options, &b->kv, &err), &err);
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++)
        must(kv_model_append(&b->model, b->kv, i, b->n_all, &err), &err);
    close_both(b);
    for (uint64_t i = 0; i < b->n_all; i++)
        b->ids[i] = (int32_t)random_below(b, 100);
}

/* grows: from a finished file of fewer tokens. */
static void start(bench *b, uint64_t seed, bool grows)
{
    static const uint64_t edges[] = {4096, 8192, 1024, 4160, 640, 5000};
    memset(b, 0, sizeof *b);
    sl_budget_init(&b->budget, UINT64_MAX);
    disk_init(&b->disk, seed);
    const sl_kv_layer layers[] = {{1, 32, 0}, {1, disk_random(&b->disk, 2) ? 32 : 64, 0}};
    const sl_geom geom = {disk_random(&b->disk, 3) ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16,
                          1 + (uint32_t)disk_random(&b->disk, 2), layers};
    kv_model_init(&b->model, &geom, MAX_TOKENS, seed);
    b->n_all = disk_random(&b->disk, 3) ? 2 + random_below(b, MAX_TOKENS - 1) : edges[random_below(b, 6)];
    fill_model(b);
    if (grows) {
        b->n_base = random_below(b, 4) || b->n_all <= 4096 ? 1 + random_below(b, b->n_all) : 4096;
        b->base = make_plainly(b, b->n_base, &b->base_bytes);
    }
    b->plain = make_plainly(b, b->n_all, &b->plain_bytes);
}

static void stop(bench *b)
{
    free(b->plain);
    free(b->base);
    kv_model_deinit(&b->model);
    disk_deinit(&b->disk);
    assert_int_equal(b->budget.used_bytes, 0);
    sl_budget_deinit(&b->budget);
}

/* The disk as it is before the program is first run. */
static void set_out(bench *b)
{
    disk_remove(&b->disk, "book.kv");
    b->is_named = b->is_finished = b->n_base > 0;
    b->committed = b->n_base;
    b->disk.cut_at = b->disk.full_from = 0;
    if (b->n_base == 0)
        return;
    sl_err err;
    bool is_direct;
    sl_file *file;
    must(b->disk.vfs.create_named(&b->disk.vfs, "book.kv", true, true, &file, &is_direct, &err), &err);
    for (uint64_t at = 0; at < b->base_bytes; at += SL_SECTOR_BYTES)
        assert_int_equal(b->disk.vfs.pwrite(file, b->base + at, SL_SECTOR_BYTES, at), SL_SECTOR_BYTES);
    assert_int_equal(b->disk.vfs.sync(file), 0);
    assert_int_equal(b->disk.vfs.publish(file, "book.kv", false), 0);
    b->disk.vfs.close(file);
}

static void check_after_cut(bench *b)
{
    disk_restart(&b->disk, random_below(b, 2) != 0);
    b->n_cuts++;
    expect_committed(b);
    b->n_kept += b->committed > b->n_base;
}

/* Cuts at random calls, until it is through; then one more, after which nothing may be missing. */
static void survive(bench *b, unsigned n_rounds)
{
    for (unsigned round = 0; round < n_rounds; round++) {
        set_out(b);
        for (bool is_done = false; !is_done;) {
            static const uint64_t within[] = {8, 8, 20, 120}; /* a file that grows begins with a commit */
            uint64_t n_calls = 1 + random_below(b, within[random_below(b, 4)]);
            b->disk.cut_at = random_below(b, 8) ? b->disk.n_ops + n_calls : 0;
            is_done = go_on(b);
            close_both(b);
            check_after_cut(b);
        }
        disk_restart(&b->disk, true);
        expect_committed(b);
        expect_plain(b);
    }
}

static void run_all(bool grows, void (*rounds)(bench *, unsigned), uint64_t offset)
{
    static bench b;
    uint64_t seed = seed_of_run() + offset, n_cuts = 0, n_kept = 0, n_full = 0;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 3 : 12); i++) {
        print_message("seed %lu\n", (unsigned long)(seed + i));
        start(&b, seed + i, grows);
        rounds(&b, EFFORT_IS_SMALL ? 2 : 4);
        n_cuts += b.n_cuts;
        n_kept += b.n_kept;
        n_full += b.n_full;
        stop(&b);
    }
    print_message("%lu ends, %lu of them after a commit; %lu calls without space\n", (unsigned long)n_cuts,
                  (unsigned long)n_kept, (unsigned long)n_full);
}

static void power_fails(void **unused)
{
    (void)unused;
    run_all(false, survive, 0);
}

static void power_fails_while_it_grows(void **unused)
{
    (void)unused;
    run_all(true, survive, 1000);
}

/* No space from a random call on; made in the middle, or before the program comes again. */
static void fill_up(bench *b, unsigned n_rounds)
{
    for (unsigned round = 0; round < n_rounds; round++) {
        set_out(b);
        for (bool is_done = false; !is_done;) {
            b->disk.full_from = random_below(b, 6) ? b->disk.n_ops + 1 + random_below(b, 80) : 0;
            is_done = go_on(b);
            close_both(b);
            b->disk.full_from = 0; /* even a reader needs a little, for what it puts over the file */
            expect_committed(b);
        }
        expect_plain(b);
        disk_restart(&b->disk, true);
        expect_committed(b);
        expect_plain(b);
    }
}

static void disk_gets_full(void **unused)
{
    (void)unused;
    run_all(false, fill_up, 2000);
    run_all(true, fill_up, 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(power_fails),
        cmocka_unit_test(power_fails_while_it_grows),
        cmocka_unit_test(disk_gets_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
