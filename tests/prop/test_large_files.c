/* Files past 2 and 4 GiB, a block more and a block less, and places past 1 TiB: sparse, so that they cost no disk.
 * Needs a directory on a disk: SLUICE_KV_DIR or /var/tmp. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "common/effort.h"
#include "platform/queue.h"
#include "store/durable_verify.h"
#include "store/kv.h"

enum { BLOCK = 1 << 22, PART = BLOCK / 4 };

#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)

static const sl_kv_layer layer = {4, 64, 0}; /* blocks of 4 MiB in F16 */
static const sl_geom geom = {SL_KV_TYPE_F16, 1, &layer};
static const sl_identity identity = {
    .arithmetic_version = 1, .model = {7, 8}, .n_vocab = 100, .rope_base = 1e4, .name = "test"};

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

/* Bytes that tell where they belong. */
static void mark(uint8_t *bytes, size_t n, uint64_t off)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = (off + i) * 0x9e3779b97f4a7c15u + 1;
        memcpy(bytes + i, &word, 8);
    }
}

/* ---- places in any file ---- */

static void read_by(const sl_vfs *vfs, sl_file *file, sl_io_engine engine, uint8_t *memory, uint64_t off)
{
    sl_err err;
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    const sl_queue_options options = {.vfs = vfs, .file = file, .name = "large", .memory = memory,
                                      .memory_bytes = 2 * BLOCK, .depth = 2, .engine = engine, .budget = &budget};
    sl_queue *queue;
    if (sl_queue_create(&options, &queue, &err) == SL_OK) { /* io_uring may be forbidden here */
        const sl_read reads[] = {{memory, BLOCK, off, 0}, {memory + BLOCK, BLOCK, off + BLOCK, 1}};
        memset(memory, 0, 2 * BLOCK);
        sl_queue_add(queue, reads, 2);
        for (int i = 0; i < 2; i++) {
            uint64_t tag;
            sl_status status = SL_FAILED;
            assert_true(sl_queue_wait(queue, -1, &tag, &status, &err));
            must(status, &err);
        }
        sl_queue_destroy(queue);
    } else {
        assert_int_equal(engine, SL_IO_ENGINE_URING);
        must(sl_vfs_read(vfs, file, "large", memory, 2 * BLOCK, off, &err), &err);
    }
    sl_budget_deinit(&budget);
}

/* A file that ends a block before `edge`, at it or a block behind: written, read, ended there. */
static void round_trip(uint64_t edge, int64_t blocks, bool direct, uint8_t *memory, uint8_t *wanted)
{
    const sl_vfs *vfs = sl_vfs_system();
    uint64_t end = edge + (uint64_t)(blocks * BLOCK), off = end - 2 * BLOCK;
    sl_file *file;
    bool is_direct;
    sl_err err;
    must(vfs->open_temp(vfs, folder(), direct, true, &file, &is_direct, &err), &err);
    int refused = vfs->set_size(file, end);
    if (refused) { /* a file system of smaller files */
        print_message("a file of %lu bytes: %s\n", (unsigned long)end, strerror(-refused));
        assert_true(refused == -EFBIG && edge > TIB);
        vfs->close(file);
        return;
    }
    mark(wanted, 2 * BLOCK, off);
    must(sl_vfs_write(vfs, file, "large", wanted, 2 * BLOCK, off, &err), &err);
    assert_int_equal(vfs->size(file), end);
    for (sl_io_engine engine = SL_IO_ENGINE_AUTO; engine <= SL_IO_ENGINE_POOL; engine++) {
        read_by(vfs, file, engine, memory, off);
        assert_memory_equal(memory, wanted, 2 * BLOCK);
    }
    /* Nothing went where the offset's low 31 or 32 bits would point, and nothing is behind the end. */
    static const int bits[] = {31, 32, 40};
    for (size_t i = 0; i < 3; i++) {
        uint64_t low = off & (((uint64_t)1 << bits[i]) - 1);
        if (low + 2 * BLOCK > off)
            continue;
        must(sl_vfs_read(vfs, file, "large", memory, 4096, low, &err), &err);
        for (size_t k = 0; k < 4096; k++)
            assert_int_equal(memory[k], 0);
    }
    assert_int_equal(sl_vfs_read(vfs, file, "large", memory, 4096, end, &err), SL_FAILED);
    char text[32];
    snprintf(text, sizeof text, "%lu", (unsigned long)end);
    if (!strstr(err.text, text) || !strstr(err.text, "the file ends there"))
        fail_msg("\"%s\" lacks %s", err.text, text);
    vfs->close(file);
}

static void any_file(void **unused)
{
    (void)unused;
    static const uint64_t edges[] = {2 * GIB, 4 * GIB, TIB + GIB, 3 * TIB};
    uint8_t *memory = aligned_alloc(4096, 2 * BLOCK), *wanted = aligned_alloc(4096, 2 * BLOCK);
    assert_true(memory && wanted);
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        for (int64_t blocks = -1; blocks <= 1; blocks++)
            for (int direct = 0; direct < 2; direct++)
                round_trip(edges[i], blocks, direct, memory, wanted);
    free(memory);
    free(wanted);
}

/* ---- where a context's things lie ---- */

static void layout(void **unused)
{
    (void)unused;
    static const sl_kv_layer kinds[] = {{1, 32, 0}, {3, 64, 0}, {8, 128, 0}, {32, 256, 0}};
    sl_kv_layer layers[80];
    for (size_t kind = 0; kind < 4; kind++) {
        for (size_t i = 0; i < 80; i++)
            layers[i] = kinds[kind];
        const sl_geom many = {SL_KV_TYPE_Q8_0, kind == 0 ? 1 : 80, layers};
        sl_layout at = sl_layout_of(&many);
        uint64_t most = sl_layout_max_segments(&at);
        assert_int_equal(at.blocks_bytes, sl_geom_segment_bytes(&many));
        uint64_t next = 0;
        for (uint64_t segment = 1; segment <= most; segment = next) {
            next = segment < most && 3 * segment > most ? most : 3 * segment;
            uint64_t off = sl_layout_segment_off(&at, segment - 1), end = sl_layout_finished_bytes(&at, segment);
            assert_true(off < (uint64_t)1 << 63 && end < (uint64_t)1 << 63);
            assert_int_equal((off - at.data_off) / at.stride, segment - 1);
            assert_int_equal((off - at.data_off) % at.stride, 0);
            assert_int_equal(sl_layout_record_off(&at, segment - 1), off + at.blocks_bytes);
            assert_true(end >= off + at.blocks_bytes + 2 * at.record_bytes && end <= off + at.stride + 4 * 4096);
            assert_int_equal(sl_geom_block_off(&many, segment - 1, 0) / (segment > 1 ? segment - 1 : 1),
                             segment > 1 ? at.blocks_bytes : 0);
        }
        assert_true(most > TIB / at.stride);
    }
}

/* ---- a finished context ---- */

typedef struct book {
    const sl_vfs *vfs;
    char path[256];
    sl_file *file;
    sl_layout at;
    uint64_t superblock, zero_part, n_segments;
    uint8_t *part, *record; /* [PART], [record_bytes] */
    sl_budget budget;
} book;

static void put(book *b, const void *bytes, size_t n, uint64_t off)
{
    sl_err err;
    must(sl_vfs_write(b->vfs, b->file, b->path, bytes, n, off, &err), &err);
}

/* Segments beside 2 and 4 GiB have bytes of their own, and the first ones, where a cut offset would point. */
static bool is_marked(const book *b, uint64_t segment)
{
    uint64_t off = sl_layout_segment_off(&b->at, segment), reach = 2 * b->at.stride;
    return segment < 2 || segment + 2 > b->n_segments || (off + reach > 2 * GIB && off < 2 * GIB + reach) ||
           (off + reach > 4 * GIB && off < 4 * GIB + reach);
}

static void put_segment(book *b, uint64_t segment, int32_t *ids, uint64_t *previous)
{
    uint64_t parts[4];
    for (unsigned i = 0; i < 4; i++) {
        uint64_t off = sl_layout_segment_off(&b->at, segment) + i * (uint64_t)PART;
        parts[i] = b->zero_part;
        if (!is_marked(b, segment))
            continue;
        mark(b->part, PART, off);
        put(b, b->part, PART, off);
        parts[i] = sl_hash(b->part, PART);
    }
    for (int32_t i = 0; i < 4096; i++)
        ids[i] = (int32_t)((segment * 7 + (uint64_t)i) % 100);
    sl_record record = {.segment = segment, .n_tokens = 4096, .superblock = b->superblock, .previous = *previous,
                        .parts = parts, .ids = ids};
    memset(b->record, 0, b->at.record_bytes);
    sl_record_encode(b->record, &geom, &record);
    for (unsigned copy = 0; copy < 2; copy++)
        put(b, b->record, b->at.record_bytes, sl_layout_record_off(&b->at, segment) + copy * b->at.record_bytes);
    *previous = record.checksum;
}

/* The largest file at or below `edge`, or one segment more. */
static void make_book(book *b, uint64_t edge, bool above)
{
    memset(b, 0, sizeof *b);
    b->vfs = sl_vfs_system();
    b->at = sl_layout_of(&geom);
    sl_budget_init(&b->budget, UINT64_MAX);
    while (sl_layout_finished_bytes(&b->at, b->n_segments + 1) <= edge)
        b->n_segments++;
    b->n_segments += above;
    snprintf(b->path, sizeof b->path, "%s/sluice_large_%ld.kv", folder(), (long)getpid());
    sl_err err;
    bool is_direct;
    must(b->vfs->create_named(b->vfs, b->path, true, true, &b->file, &is_direct, &err), &err);
    b->part = aligned_alloc(4096, PART);
    b->record = aligned_alloc(4096, b->at.record_bytes + b->at.superblock_bytes);
    int32_t *ids = malloc(4096 * sizeof *ids);
    assert_true(b->part && b->record && ids);
    uint64_t end = sl_layout_finished_bytes(&b->at, b->n_segments), previous = 0;
    assert_int_equal(b->vfs->set_size(b->file, end), 0);
    memset(b->record, 0, b->at.superblock_bytes);
    b->superblock = sl_superblock_encode(b->record, &identity, &geom);
    for (unsigned copy = 0; copy < 2; copy++)
        put(b, b->record, b->at.superblock_bytes, copy * b->at.superblock_bytes);
    memset(b->part, 0, PART);
    b->zero_part = sl_hash(b->part, PART);
    for (uint64_t segment = 0; segment < b->n_segments; segment++)
        put_segment(b, segment, ids, &previous);
    memset(b->part, 0, SL_FORMAT_END_BYTES);
    sl_end_encode(b->part, &(sl_end){.n_tokens = b->n_segments * 4096, .last = previous, .superblock = b->superblock});
    for (unsigned copy = 1; copy <= 2; copy++)
        put(b, b->part, SL_FORMAT_END_BYTES, end - copy * SL_FORMAT_END_BYTES);
    free(ids);
    assert_int_equal(b->vfs->publish(b->file, b->path, true), 0);
}

static void end_book(book *b)
{
    b->vfs->close(b->file);
    unlink(b->path);
    free(b->part);
    free(b->record);
    assert_int_equal(b->budget.used_bytes, 0);
    sl_budget_deinit(&b->budget);
}

static void count_damage(void *arg, const sl_damage *damage)
{
    (void)damage;
    ++*(int *)arg;
}

static void verify(book *b, uint64_t edge, bool also_damaged)
{
    int n_found = 0;
    sl_err err;
    sl_verify_result result;
    const sl_verify_options options = {.path = b->path, .budget = &b->budget, .found = count_damage, .arg = &n_found};
    must(sl_durable_verify(&options, &result, &err), &err);
    assert_true(result.is_finished && n_found == 0);
    assert_int_equal(result.n_tokens, b->n_segments * 4096);
    assert_int_equal(result.file_bytes, sl_layout_finished_bytes(&b->at, b->n_segments));
    assert_true(result.file_bytes + b->at.stride > edge && result.file_bytes <= edge + b->at.stride);
    if (!also_damaged)
        return;
    /* A bit beside the edge is found. */
    uint8_t *sector = b->part;
    uint64_t segment = (edge - b->at.data_off) / b->at.stride;
    segment = segment < b->n_segments ? segment : b->n_segments - 1;
    uint64_t off = sl_layout_segment_off(&b->at, segment) + 4096;
    must(sl_vfs_read(b->vfs, b->file, b->path, sector, 4096, off, &err), &err);
    sector[5] ^= 1;
    put(b, sector, 4096, off);
    assert_int_equal(sl_durable_verify(&options, &result, &err), SL_DAMAGED);
    assert_int_equal(n_found, 1);
    sector[5] ^= 1;
    put(b, sector, 4096, off);
}

/* Every part as the reader hands it over. */
static void walk(book *b)
{
    sl_err err;
    sl_durable *durable;
    const sl_durable_options how = {.path = b->path, .budget = &b->budget};
    must(sl_durable_open(&how, &durable, &err), &err);
    assert_int_equal(sl_durable_get(durable).n_tokens, b->n_segments * 4096);
    const sl_kv_options options = {.geom = geom, .dir = folder(), .allow_ram_dir = true, .n_slots = 2,
                                   .slot_bytes = 8 * PART, .max_tokens = b->n_segments * 4096, .durable = durable,
                                   .budget = &b->budget};
    sl_kv *kv;
    must(sl_kv_create(&options, &kv, &err), &err);
    must(sl_kv_pass_begin(kv, false, &err), &err);
    sl_kv_part part;
    bool found = true;
    uint64_t n_parts = 0;
    for (;; n_parts++) {
        must(sl_kv_next(kv, 0, &part, &found, &err), &err);
        if (!found)
            break;
        assert_int_equal(part.first_token, n_parts * 1024);
        uint64_t segment = n_parts / 4;
        memset(b->part, 0, PART);
        if (is_marked(b, segment))
            mark(b->part, PART, sl_layout_segment_off(&b->at, segment) + n_parts % 4 * PART);
        assert_memory_equal(part.tiles, b->part, PART);
        sl_kv_release(kv, &part);
    }
    assert_int_equal(n_parts, 4 * b->n_segments);
    must(sl_kv_pass_end(kv, &err), &err);
    sl_kv_destroy(kv);
    sl_durable_close(durable);
}

static void contexts(void **unused)
{
    (void)unused;
    int first = EFFORT_IS_SMALL ? 1 : 0, n = EFFORT_IS_SMALL ? 2 : 4;
    for (int i = first; i < n; i++) {
        static book b;
        uint64_t edge = (i < 2 ? 2 : 4) * GIB;
        make_book(&b, edge, i % 2);
        verify(&b, edge, i == 3);
        if (i == 3)
            walk(&b);
        end_book(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_file),
        cmocka_unit_test(layout),
        cmocka_unit_test(contexts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
