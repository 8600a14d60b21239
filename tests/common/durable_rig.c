#include "common/durable_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

const sl_identity durable_rig_identity = {
    .arithmetic_version = 1, .model = {7, 8}, .n_vocab = 100, .rope_base = 1e4, .name = "test"};

const char *durable_test_dir(void)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    return dir && *dir ? dir : "/var/tmp";
}

void durable_must(sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("status %d: %s", (int)status, err->text);
}

uint64_t durable_seed(void)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 20261130;
}

/* All tokens, by way of an ephemeral context. */
static void fill_model(durable_rig *b)
{
    sl_err err;
    const sl_kv_options options = {.geom = b->model.geom, .dir = durable_test_dir(), .max_tokens = b->n_all,
                                   .n_slots = 2, .resident_bytes = UINT64_MAX, .budget = &b->budget};
    sl_kv *kv;
    durable_must(sl_kv_create(&options, &kv, &err), &err);
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++)
        durable_must(kv_model_append(&b->model, kv, i, b->n_all, &err), &err);
    sl_kv_destroy(kv);
    for (uint64_t i = 0; i < b->n_all; i++)
        b->ids[i] = (int32_t)kv_model_random(&b->model, 100);
}

void durable_rig_start(durable_rig *b, uint64_t seed, uint64_t n_all)
{
    static const uint32_t dims[] = {32, 64, 96};
    static unsigned long n_started;
    memset(b, 0, sizeof *b);
    sl_budget_init(&b->budget, UINT64_MAX);
    kv_model random = {.random = seed * 2 + 1};
    sl_kv_layer layers[3];
    uint32_t n_layers = 1 + (uint32_t)kv_model_random(&random, 3);
    for (uint32_t i = 0; i < n_layers; i++)
        layers[i] = (sl_kv_layer){1 + (uint32_t)kv_model_random(&random, 2), dims[kv_model_random(&random, 3)], 0};
    const sl_geom geom = {kv_model_random(&random, 2) ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, n_layers, layers};
    b->n_all = n_all ? n_all : 1 + kv_model_random(&random, DURABLE_RIG_TOKENS);
    kv_model_init(&b->model, &geom, DURABLE_RIG_TOKENS, seed);
    unsigned long run = n_started++;
    snprintf(b->path, sizeof b->path, "%s/durable-%ld-%lu.kv", durable_test_dir(), (long)getpid(), run);
    snprintf(b->other, sizeof b->other, "%s/durable-%ld-%lu.other.kv", durable_test_dir(), (long)getpid(), run);
    fill_model(b);
}

void durable_rig_stop(durable_rig *b)
{
    unlink(b->path);
    unlink(b->other);
    kv_model_deinit(&b->model);
    assert_int_equal(b->budget.used_bytes, 0);
    sl_budget_deinit(&b->budget);
}

void durable_rig_close(durable_rig *b)
{
    sl_kv_destroy(b->kv);
    sl_durable_close(b->durable);
    b->kv = NULL;
    b->durable = NULL;
}

static void open_kv(durable_rig *b, bool keep, uint64_t durable_tokens)
{
    sl_err err;
    uint64_t total = 0;
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++)
        total += b->n_all / SL_TILE * sl_geom_group_bytes(&b->model.geom, i);
    const sl_kv_options options = {.geom = b->model.geom,
                                   .dir = durable_test_dir(),
                                   .max_tokens = b->n_all,
                                   .resident_bytes = kv_model_random(&b->model, 3) * total / 2,
                                   .n_slots = 2 + (size_t)kv_model_random(&b->model, 2),
                                   .durable = b->durable,
                                   .durable_tokens = durable_tokens,
                                   .keep = keep,
                                   .budget = &b->budget};
    durable_must(sl_kv_create(&options, &b->kv, &err), &err);
}

void durable_rig_open_kv(durable_rig *b, bool keep)
{
    open_kv(b, keep, 0);
}

void durable_rig_open_prefix(durable_rig *b, uint64_t n_tokens)
{
    open_kv(b, false, n_tokens);
}

void durable_rig_open_file(durable_rig *b, const char *path, bool for_writing)
{
    sl_err err;
    const sl_durable_options options = {.path = path, .for_writing = for_writing, .max_tokens = b->n_all,
                                        .budget = &b->budget};
    durable_must(sl_durable_open(&options, &b->durable, &err), &err);
}

void durable_rig_create_file(durable_rig *b, const char *path)
{
    sl_err err;
    const sl_durable_options options = {
        .path = path, .for_writing = true, .allow_ram = true, .max_tokens = b->n_all, .budget = &b->budget};
    durable_must(sl_durable_create(&options, &durable_rig_identity, &b->model.geom, &b->durable, &err), &err);
}

uint8_t *durable_rig_groups(const durable_rig *b, uint32_t layer, uint64_t token)
{
    return b->model.groups[layer] + token / SL_TILE * sl_geom_group_bytes(&b->model.geom, layer);
}

void durable_rig_append(durable_rig *b, uint64_t n)
{
    sl_err err;
    uint64_t at = sl_kv_tokens(b->kv, 0);
    for (uint32_t i = 0; i < b->model.geom.n_layers; i++) {
        durable_must(sl_kv_append(b->kv, i, durable_rig_groups(b, i, at), n, &err), &err);
    }
}

static void check_tail(const durable_rig *b, uint32_t layer, uint64_t n_tokens)
{
    uint32_t n_tail = 0;
    const uint8_t *tail = sl_kv_tail(b->kv, layer, &n_tail);
    assert_int_equal(n_tail, n_tokens % SL_TILE);
    uint8_t *wanted = malloc(sl_geom_group_bytes(&b->model.geom, layer));
    assert_non_null(wanted);
    kv_model_tail(&b->model, layer, n_tokens, wanted);
    if (n_tail > 0)
        assert_memory_equal(tail, wanted, sl_geom_group_bytes(&b->model.geom, layer));
    free(wanted);
}

void durable_rig_walk(durable_rig *b, uint64_t n_tokens)
{
    sl_err err;
    for (int pass = 0; pass < 2; pass++) {
        durable_must(sl_kv_pass_begin(b->kv, pass == 0, &err), &err);
        for (uint32_t i = 0; i < b->model.geom.n_layers; i++) {
            size_t group_bytes = sl_geom_group_bytes(&b->model.geom, i);
            uint64_t groups = 0;
            sl_kv_part part;
            bool found;
            assert_int_equal(sl_kv_tokens(b->kv, i), n_tokens);
            for (;;) {
                durable_must(sl_kv_next(b->kv, i, &part, &found, &err), &err);
                if (!found)
                    break;
                assert_int_equal(part.first_token, groups * SL_TILE);
                assert_memory_equal(part.tiles, b->model.groups[i] + groups * group_bytes, part.n_groups * group_bytes);
                groups += part.n_groups;
                sl_kv_release(b->kv, &part);
            }
            assert_int_equal(groups, n_tokens / SL_TILE);
            check_tail(b, i, n_tokens);
        }
        durable_must(sl_kv_pass_end(b->kv, &err), &err);
    }
}

void durable_rig_check_ids(const durable_rig *b, uint64_t n_tokens)
{
    assert_int_equal(sl_durable_get(b->durable).n_tokens, n_tokens);
    assert_memory_equal(sl_durable_ids(b->durable), b->ids, n_tokens * sizeof *b->ids);
}

void durable_rig_commit(durable_rig *b)
{
    sl_err err;
    durable_must(sl_kv_commit(b->kv, b->ids, b->n_all, &err), &err);
}

void durable_rig_build(durable_rig *b, const char *path)
{
    sl_err err;
    durable_rig_create_file(b, path);
    durable_rig_open_kv(b, true);
    durable_rig_append(b, b->n_all);
    durable_rig_commit(b);
    durable_must(sl_kv_finish(b->kv, &err), &err);
    durable_rig_close(b);
}

void durable_rig_same_files(const char *a, const char *b)
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

uint64_t durable_rig_cut(kv_model *model, uint64_t n)
{
    static const uint64_t edges[] = {SL_TILE, SL_PART_TOKENS, SL_SEGMENT_TOKENS};
    uint64_t edge = edges[kv_model_random(model, 3)], at = 1 + kv_model_random(model, n);
    if (kv_model_random(model, 2) && at > edge)
        at = at / edge * edge + kv_model_random(model, 2);
    return at < n ? at : n;
}
