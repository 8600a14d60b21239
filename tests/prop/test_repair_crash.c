/* Repair on a disk whose power fails and whose users are killed, at any call: what it leaves can be repaired as before,
 * and every byte is the damaged one or the right one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/disk_vfs.h"
#include "common/durable_rig.h"
#include "common/effort.h"
#include "store/durable_repair.h"

enum { MOST_TOKENS = 9000 };

typedef struct bench {
    durable_rig rig; /* the model of all bytes; its own file is not used */
    disk_vfs disk;
    uint64_t n_stored;
    uint8_t *whole, *spoilt;
    size_t bytes;
    uint64_t n_cuts, n_lost;
} bench;

static uint64_t draw(bench *b, uint64_t n)
{
    return kv_model_random(&b->rig.model, n);
}

static disk_file *file_of(bench *b)
{
    for (int i = 0; i < DISK_FILES; i++)
        if (b->disk.files[i].is_used && strcmp(b->disk.files[i].name, "book.kv") == 0)
            return &b->disk.files[i];
    fail_msg("no file");
    return NULL;
}

/* The rig's tokens in a file on the disk; unfinished: a commit of some of them is the last. */
static void make_file(bench *b, bool finished)
{
    sl_err err;
    const sl_durable_options options = {.vfs = &b->disk.vfs, .path = "book.kv", .for_writing = true,
                                        .max_tokens = b->rig.n_all, .budget = &b->rig.budget};
    durable_must(sl_durable_create(&options, &durable_rig_identity, &b->rig.model.geom, &b->rig.durable, &err), &err);
    const sl_kv_options kv = {.geom = b->rig.model.geom, .vfs = &b->disk.vfs, .dir = "nowhere",
                              .max_tokens = b->rig.n_all, .n_slots = 2, .durable = b->rig.durable, .keep = true,
                              .budget = &b->rig.budget};
    durable_must(sl_kv_create(&kv, &b->rig.kv, &err), &err);
    b->n_stored = finished ? b->rig.n_all : 1 + draw(b, b->rig.n_all);
    uint64_t first = draw(b, b->n_stored);
    if (!finished && first > 0) {
        durable_rig_append(&b->rig, first);
        durable_rig_commit(&b->rig);
    }
    durable_rig_append(&b->rig, b->n_stored - sl_kv_tokens(b->rig.kv, 0));
    durable_rig_commit(&b->rig);
    if (finished)
        durable_must(sl_kv_finish(b->rig.kv, &err), &err);
    durable_rig_close(&b->rig);
    disk_restart(&b->disk, true); /* all of it is on the disk */
    const disk_file *file = file_of(b);
    b->bytes = (size_t)file->size;
    b->whole = malloc(b->bytes);
    b->spoilt = malloc(b->bytes);
    assert_true(b->whole && b->spoilt);
    memcpy(b->whole, file->now, b->bytes);
    memcpy(b->spoilt, file->now, b->bytes);
}

static void flip(bench *b, uint64_t at)
{
    b->spoilt[at] ^= (uint8_t)(1u << draw(b, 8));
}

/* One copy of everything that has two; some parts. */
static void spoil(bench *b, bool finished)
{
    const sl_geom *geom = &b->rig.model.geom;
    sl_layout layout = sl_layout_of(geom);
    flip(b, draw(b, 2) * layout.superblock_bytes + draw(b, layout.superblock_bytes));
    uint64_t n_full = finished ? (b->n_stored + SL_SEGMENT_TOKENS - 1) / SL_SEGMENT_TOKENS
                               : b->n_stored / SL_SEGMENT_TOKENS;
    for (uint64_t segment = 0; segment < n_full; segment++)
        flip(b, sl_layout_record_off(&layout, segment) + draw(b, 2 * layout.record_bytes));
    if (finished)
        flip(b, b->bytes - 1 - draw(b, 2 * SL_FORMAT_END_BYTES));
    if (finished)
        flip(b, 2 * layout.superblock_bytes + SL_SECTOR_BYTES + draw(b, layout.commit_bytes - SL_SECTOR_BYTES));
    bool has_parts = draw(b, 3) != 0;
    for (uint64_t token = 0; has_parts && token < b->n_stored; token += SL_PART_TOKENS) {
        uint32_t layer = (uint32_t)draw(b, geom->n_layers);
        uint64_t left = b->n_stored - token, n = left < SL_PART_TOKENS ? left : SL_PART_TOKENS;
        uint64_t bytes = n / SL_TILE * sl_geom_group_bytes(geom, layer) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
        uint64_t off = sl_layout_segment_off(&layout, token / SL_SEGMENT_TOKENS) + sl_geom_block_off(geom, 0, layer) +
                       token % SL_SEGMENT_TOKENS / SL_PART_TOKENS * sl_geom_part_bytes(geom, layer);
        for (int i = 0; bytes > 0 && i < 3; i++)
            flip(b, off + draw(b, bytes));
    }
    disk_file *file = file_of(b);
    memcpy(file->now, b->spoilt, b->bytes);
    memcpy(file->safe, b->spoilt, b->bytes);
}

/* What a model would have computed. */
static sl_status put(bench *b, sl_repair *repair, const sl_repair_work *work, sl_err *err)
{
    const sl_geom *geom = &b->rig.model.geom;
    uint8_t *groups = aligned_alloc(SL_SECTOR_BYTES, sl_geom_max_part_bytes(geom));
    assert_non_null(groups);
    sl_status status = SL_OK;
    for (uint32_t layer = 0; status == SL_OK && layer < work->n_layers; layer++) {
        if (!sl_repair_wants(repair, layer))
            continue;
        size_t n_groups = (work->n_tokens + SL_TILE - 1) / SL_TILE;
        memset(groups, 0xee, sl_geom_max_part_bytes(geom));
        memcpy(groups, durable_rig_groups(&b->rig, layer, work->first_token),
               n_groups * sl_geom_group_bytes(geom, layer));
        status = sl_repair_put(repair, layer, groups, err);
    }
    free(groups);
    return status == SL_OK ? sl_repair_settle(repair, err) : status;
}

/* SL_OK: through. */
static sl_status run(bench *b, sl_err *err)
{
    sl_repair *repair = NULL;
    sl_repair_work work;
    const sl_repair_options options = {.vfs = &b->disk.vfs, .path = "book.kv", .force_buffered = draw(b, 2),
                                       .budget = &b->rig.budget};
    sl_status status = sl_repair_open(&options, &repair, err);
    if (status == SL_OK)
        status = sl_repair_look(repair, err);
    while (status == SL_OK && sl_repair_next(repair, &work))
        status = put(b, repair, &work, err);
    if (status == SL_OK)
        assert_int_equal(sl_repair_get(repair).n_lost, 0);
    sl_repair_close(repair);
    return status;
}

static void expect_either(bench *b)
{
    const disk_file *file = file_of(b);
    assert_int_equal(file->size, b->bytes);
    for (size_t i = 0; i < b->bytes; i++)
        if (file->now[i] != b->whole[i] && file->now[i] != b->spoilt[i])
            fail_msg("byte %zu is %02x, was %02x, should be %02x", i, file->now[i], b->spoilt[i], b->whole[i]);
}

static void repair_with_cuts(bench *b)
{
    sl_err err = {SL_OK, ""};
    uint64_t n_ops = 4 + draw(b, 60);
    for (int i = 0;; i++) {
        b->disk.cut_at = i < 4 ? b->disk.n_ops + 1 + draw(b, n_ops) : 0;
        if (run(b, &err) == SL_OK)
            break;
        if (!b->disk.is_dead)
            fail_msg("%s", err.text);
        b->n_cuts++;
        bool power = draw(b, 2) != 0;
        b->n_lost += power;
        disk_restart(&b->disk, power);
        expect_either(b);
    }
    b->disk.cut_at = 0;
    disk_restart(&b->disk, true); /* what it said to be done is on the disk */
    const disk_file *file = file_of(b);
    for (size_t i = 0; i < b->bytes; i++)
        if (file->now[i] != b->whole[i])
            fail_msg("byte %zu is %02x, expected %02x", i, file->now[i], b->whole[i]);
}

static void cut_at_any_call(void **unused)
{
    (void)unused;
    static bench b;
    uint64_t n_cuts = 0, n_lost = 0;
    for (int i = 0; i < EFFORT(40); i++) {
        uint64_t seed = durable_seed() + (uint64_t)i;
        memset(&b, 0, sizeof b);
        print_message("seed %lu\n", (unsigned long)seed);
        durable_rig_start(&b.rig, seed, 1 + (i < 4 ? (uint64_t)i * SL_SEGMENT_TOKENS / 2 : seed * 7919 % MOST_TOKENS));
        disk_init(&b.disk, seed);
        bool finished = i % 3 != 2;
        make_file(&b, finished);
        spoil(&b, finished);
        repair_with_cuts(&b);
        n_cuts += b.n_cuts;
        n_lost += b.n_lost;
        free(b.whole);
        free(b.spoilt);
        disk_deinit(&b.disk);
        durable_rig_stop(&b.rig);
    }
    print_message("%lu cuts, %lu of them of the power\n", (unsigned long)n_cuts, (unsigned long)n_lost);
    assert_true(n_lost > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cut_at_any_call)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
