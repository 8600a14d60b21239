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

#include "common/effort.h"
#include "common/fault_vfs.h"
#include "common/kv_model.h"
#include "store/durable.h"

enum { PATH_ROOM = 256, MAX_TOKENS = 10000 };

static const sl_identity identity = {
    .arithmetic_version = 1, .model = {7, 8}, .n_vocab = 100, .rope_base = 1e4, .name = "test"};

typedef struct bench {
    sl_budget budget;
    kv_model model; /* holds all tokens that will ever be appended */
    uint64_t n_all;
    int32_t ids[MAX_TOKENS];
    char path[PATH_ROOM], other[PATH_ROOM];
    sl_durable *durable;
    sl_kv *kv;
} bench;

static const char *test_dir(void)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    return dir && *dir ? dir : "/var/tmp";
}

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

/* All tokens, by way of an ephemeral context. */
static void fill_model(bench *b)
{
    sl_err err;
    const sl_kv_options options = {.geom = b->model.geom, .dir = test_dir(), .max_tokens = b->n_all, .n_slots = 2,
                                   .resident_bytes = UINT64_MAX, .budget = &b->budget};
    sl_kv *kv;
    must(sl_kv_create(&options, &kv, &err), &err);
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++)
        must(kv_model_append(&b->model, kv, i, b->n_all, &err), &err);
    sl_kv_destroy(kv);
    for (uint64_t i = 0; i < b->n_all; i++)
        b->ids[i] = (int32_t)kv_model_random(&b->model, 100);
}

static void start(bench *b, uint64_t seed, uint64_t n_all)
{
    static const uint32_t dims[] = {32, 64, 96};
    static uint64_t n_started;
    memset(b, 0, sizeof *b);
    sl_budget_init(&b->budget, UINT64_MAX);
    kv_model random = {.random = seed * 2 + 1};
    sl_kv_layer layers[3];
    uint32_t n_layers = 1 + (uint32_t)kv_model_random(&random, 3);
    for (uint32_t i = 0; i < n_layers; i++)
        layers[i] = (sl_kv_layer){1 + (uint32_t)kv_model_random(&random, 2), dims[kv_model_random(&random, 3)]};
    const sl_geom geom = {kv_model_random(&random, 2) ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, n_layers, layers};
    b->n_all = n_all ? n_all : 1 + kv_model_random(&random, MAX_TOKENS);
    kv_model_init(&b->model, &geom, MAX_TOKENS, seed);
    snprintf(b->path, sizeof b->path, "%s/durable-%ld-%lu.kv", test_dir(), (long)getpid(), (unsigned long)n_started);
    snprintf(b->other, sizeof b->other, "%s/durable-%ld-%lu.other.kv", test_dir(), (long)getpid(),
             (unsigned long)n_started++);
    fill_model(b);
}

static void stop(bench *b)
{
    unlink(b->path);
    unlink(b->other);
    kv_model_deinit(&b->model);
    assert_int_equal(b->budget.used_bytes, 0);
    sl_budget_deinit(&b->budget);
}

static void close_both(bench *b)
{
    sl_kv_destroy(b->kv);
    sl_durable_close(b->durable);
    b->kv = NULL;
    b->durable = NULL;
}

static void open_kv(bench *b, bool keep)
{
    sl_err err;
    uint64_t total = 0;
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++)
        total += b->n_all / SL_TILE * sl_geom_group_bytes(&b->model.geom, i);
    const sl_kv_options options = {.geom = b->model.geom,
                                   .dir = test_dir(),
                                   .max_tokens = b->n_all,
                                   .resident_bytes = kv_model_random(&b->model, 3) * total / 2,
                                   .n_slots = 2 + (size_t)kv_model_random(&b->model, 2),
                                   .durable = b->durable,
                                   .keep = keep,
                                   .budget = &b->budget};
    must(sl_kv_create(&options, &b->kv, &err), &err);
}

static void open_file(bench *b, const char *path, bool for_writing)
{
    sl_err err;
    const sl_durable_options options = {.path = path, .for_writing = for_writing, .max_tokens = b->n_all,
                                        .budget = &b->budget};
    must(sl_durable_open(&options, &b->durable, &err), &err);
}

static void create_file(bench *b, const char *path)
{
    sl_err err;
    const sl_durable_options options = {
        .path = path, .for_writing = true, .allow_ram = true, .max_tokens = b->n_all, .budget = &b->budget};
    must(sl_durable_create(&options, &identity, &b->model.geom, &b->durable, &err), &err);
}

static uint8_t *groups_at(const bench *b, uint32_t layer, uint64_t token)
{
    return b->model.groups[layer] + token / SL_TILE * sl_geom_group_bytes(&b->model.geom, layer);
}

/* The next n tokens of the model to every layer. */
static void append(bench *b, uint64_t n)
{
    sl_err err;
    uint64_t at = sl_kv_tokens(b->kv, 0);
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++) {
        must(sl_kv_append(b->kv, i, groups_at(b, i, at), n, &err), &err);
    }
}

/* Two walks: with adoption the second sees other places. Whole groups and the tail's tokens are the model's. */
static void walk(bench *b, uint64_t n_tokens)
{
    sl_err err;
    for (int pass = 0; pass < 2; pass++) {
        must(sl_kv_pass_begin(b->kv, pass == 0, &err), &err);
        for (uint32_t i = 0; i < b->model.geom.n_layers; i++) {
            size_t group_bytes = sl_geom_group_bytes(&b->model.geom, i);
            uint64_t groups = 0;
            sl_kv_part part;
            bool found;
            assert_int_equal(sl_kv_tokens(b->kv, i), n_tokens);
            for (;;) {
                must(sl_kv_next(b->kv, i, &part, &found, &err), &err);
                if (!found)
                    break;
                assert_int_equal(part.first_token, groups * SL_TILE);
                assert_memory_equal(part.tiles, b->model.groups[i] + groups * group_bytes, part.n_groups * group_bytes);
                groups += part.n_groups;
                sl_kv_release(b->kv, &part);
            }
            assert_int_equal(groups, n_tokens / SL_TILE);
        }
        must(sl_kv_pass_end(b->kv, &err), &err);
    }
}

static void check_ids(const bench *b, uint64_t n_tokens)
{
    assert_int_equal(sl_durable_get(b->durable).n_tokens, n_tokens);
    assert_memory_equal(sl_durable_ids(b->durable), b->ids, n_tokens * sizeof *b->ids);
}

static void commit(bench *b)
{
    sl_err err;
    must(sl_kv_commit(b->kv, b->ids, b->n_all, &err), &err);
}

/* In one go, without a commit but at the end. */
static void build_plainly(bench *b, const char *path)
{
    sl_err err;
    create_file(b, path);
    open_kv(b, true);
    append(b, b->n_all);
    commit(b);
    must(sl_kv_finish(b->kv, &err), &err);
    close_both(b);
}

static void expect_same_files(const char *a, const char *b)
{
    enum { STEP = 1 << 16 };
    static uint8_t of_a[STEP], of_b[STEP];
    struct stat info_a, info_b;
    assert_int_equal(stat(a, &info_a), 0);
    assert_int_equal(stat(b, &info_b), 0);
    assert_int_equal(info_a.st_size, info_b.st_size);
    FILE *file_a = fopen(a, "rb"), *file_b = fopen(b, "rb");
    assert_true(file_a && file_b);
    for (size_t n = STEP, at = 0; n > 0; at += n) {
        n = fread(of_a, 1, STEP, file_a);
        assert_int_equal(fread(of_b, 1, STEP, file_b), n);
        for (size_t i = 0; i < n; i++)
            if (of_a[i] != of_b[i])
                fail_msg("byte %zu: %02x and %02x", at + i, of_a[i], of_b[i]);
    }
    fclose(file_a);
    fclose(file_b);
}

static void reopen(bench *b, const char *path)
{
    close_both(b);
    open_file(b, path, true);
    open_kv(b, true);
}

/* Appends and commits at random, gives up at random without a word, comes again, until all is there. */
static void build_with_interruptions(bench *b, const char *path)
{
    sl_err err;
    uint64_t committed = 0;
    create_file(b, path);
    open_kv(b, true);
    while (sl_kv_tokens(b->kv, 0) < b->n_all) {
        uint64_t left = b->n_all - sl_kv_tokens(b->kv, 0);
        uint64_t most = kv_model_random(&b->model, 2) ? 3000 : 200, n = 1 + kv_model_random(&b->model, most);
        append(b, n < left ? n : left);
        if (kv_model_random(&b->model, 3) == 0) {
            commit(b);
            committed = sl_kv_tokens(b->kv, 0);
        }
        if (kv_model_random(&b->model, 4) == 0) {
            reopen(b, path);
            assert_false(sl_durable_get(b->durable).is_finished);
            check_ids(b, committed);
            if (kv_model_random(&b->model, 2))
                walk(b, committed);
        }
    }
    commit(b);
    if (kv_model_random(&b->model, 2) == 0) /* between the last commit and the finish */
        reopen(b, path);
    must(sl_kv_finish(b->kv, &err), &err);
    close_both(b);
}

static void interrupted_equals_plain(void **unused)
{
    (void)unused;
    static bench b;
    uint64_t seed = seed_of_run();
    for (int i = 0; i < (EFFORT_IS_SMALL ? 12 : 60); i++) {
        print_message("seed %lu\n", (unsigned long)(seed + (uint64_t)i));
        static const uint64_t edges[] = {1, 63, 64, 1024, 4096, 4097, 8192};
        start(&b, seed + (uint64_t)i, i < 7 ? edges[i] : 0);
        build_plainly(&b, b.other);
        build_with_interruptions(&b, b.path);
        expect_same_files(b.path, b.other);
        open_file(&b, b.path, false);
        assert_true(sl_durable_get(b.durable).is_finished);
        check_ids(&b, b.n_all);
        open_kv(&b, false);
        walk(&b, b.n_all);
        close_both(&b);
        stop(&b);
    }
}

/* What is put on top of a file that is only read does not change it, and reads back behind its tokens. */
static void overlay_leaves_the_file_alone(void **unused)
{
    (void)unused;
    static bench b;
    uint64_t seed = seed_of_run() + 1000;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 6 : 30); i++) {
        start(&b, seed + (uint64_t)i, 0);
        uint64_t n_all = b.n_all, n_base = 1 + kv_model_random(&b.model, n_all);
        b.n_all = n_base;
        build_plainly(&b, b.path);
        build_plainly(&b, b.other);
        b.n_all = n_all;
        open_file(&b, b.path, false);
        open_kv(&b, false);
        walk(&b, n_base);
        while (sl_kv_tokens(b.kv, 0) < n_all) {
            uint64_t left = n_all - sl_kv_tokens(b.kv, 0), n = 1 + kv_model_random(&b.model, 900);
            append(&b, n < left ? n : left);
            if (kv_model_random(&b.model, 3) == 0)
                walk(&b, sl_kv_tokens(b.kv, 0));
        }
        walk(&b, n_all);
        close_both(&b);
        expect_same_files(b.path, b.other);
        stop(&b);
    }
}

/* A finished file grows: as though it had been made so from the start. */
static void appended_equals_plain(void **unused)
{
    (void)unused;
    static bench b;
    uint64_t seed = seed_of_run() + 2000;
    sl_err err;
    for (int i = 0; i < (EFFORT_IS_SMALL ? 6 : 30); i++) {
        start(&b, seed + (uint64_t)i, 0);
        uint64_t n_all = b.n_all, n_base = 1 + kv_model_random(&b.model, n_all);
        b.n_all = n_base;
        build_plainly(&b, b.path);
        b.n_all = n_all;
        build_plainly(&b, b.other);
        for (int try = 0; try < 2; try++) {
            open_file(&b, b.path, true);
            check_ids(&b, n_base);
            open_kv(&b, true);
            append(&b, n_all - n_base);
            if (try == 0) { /* given up: the file holds what it held */
                close_both(&b);
                open_file(&b, b.path, false);
                check_ids(&b, n_base);
                open_kv(&b, false);
                walk(&b, n_base);
                close_both(&b);
                continue;
            }
            commit(&b);
            must(sl_kv_finish(b.kv, &err), &err);
            close_both(&b);
        }
        expect_same_files(b.path, b.other);
        stop(&b);
    }
}

/* Opens or makes, appends, commits twice, finishes: over a file system that fails once. */
static sl_status build_over(bench *b, const sl_vfs *vfs, uint64_t *committed, sl_err *err)
{
    sl_durable_options o = {.vfs = vfs, .path = b->path, .for_writing = true, .allow_ram = true,
                            .max_tokens = b->n_all, .budget = &b->budget};
    sl_status status = access(b->path, F_OK) == 0 ? sl_durable_open(&o, &b->durable, err)
                                                  : sl_durable_create(&o, &identity, &b->model.geom, &b->durable, err);
    const sl_kv_options kv = {.geom = b->model.geom, .vfs = vfs, .dir = test_dir(), .max_tokens = b->n_all,
                              .n_slots = 2, .durable = b->durable, .keep = true, .budget = &b->budget};
    status = status == SL_OK ? sl_kv_create(&kv, &b->kv, err) : status;
    for (uint64_t half = 1; status == SL_OK && half <= 2; half++) {
        uint64_t to = b->n_all * half / 2, at = sl_kv_tokens(b->kv, 0);
        for (uint32_t i = 0; status == SL_OK && at < to && i < b->model.geom.n_layers; i++)
            status = sl_kv_append(b->kv, i, groups_at(b, i, at), to - at, err);
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
    static bench b;
    sl_err err;
    start(&b, seed_of_run() + 3000, 4500);
    build_plainly(&b, b.other);
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
            close_both(&b);
            assert_int_equal(fault.n_open, 0);
            if (access(b.path, F_OK) == 0) {
                open_file(&b, b.path, false);
                check_ids(&b, sl_durable_get(b.durable).n_tokens);
                assert_true(sl_durable_get(b.durable).n_tokens >= committed);
            }
            close_both(&b);
            must(build_over(&b, NULL, &committed, &err), &err);
            close_both(&b);
            expect_same_files(b.path, b.other);
            unlink(b.path);
        }
    stop(&b);
}

static void refusals(void **unused)
{
    (void)unused;
    static bench b;
    sl_err err;
    start(&b, 3, 300);
    build_plainly(&b, b.path);
    sl_durable *second = NULL;
    sl_durable_options options = {
        .path = b.path, .for_writing = true, .allow_ram = true, .max_tokens = 300, .budget = &b.budget};
    assert_int_equal(sl_durable_create(&options, &identity, &b.model.geom, &second, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "exists"));
    open_file(&b, b.path, true);
    assert_int_equal(sl_durable_open(&options, &second, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "another process"));
    options.for_writing = false;
    must(sl_durable_open(&options, &second, &err), &err);
    sl_durable_close(second);
    close_both(&b);
    options.path = "/nonexistent/x.kv";
    assert_int_equal(sl_durable_open(&options, &second, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/nonexistent/x.kv"));
    stop(&b);
}

/* Every byte of a finished file is under a checksum or zero: a flipped bit in a part is found by the walk, one in a
 * record or superblock by opening, unless the other copy stands; none goes unseen or crashes. */
static void flipped_bits_are_found(void **unused)
{
    (void)unused;
    static bench b;
    start(&b, 5, 5000);
    build_plainly(&b, b.path);
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
            check_ids(&b, b.n_all);
            const sl_kv_options kv = {.geom = b.model.geom,
                                      .dir = test_dir(),
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
            close_both(&b);
        }
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    print_message("%u refused at opening, %u noted, %u found by the walk\n", n_refused, n_noted, n_walked);
    assert_true(n_walked > 0);
    stop(&b);
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
