/* Damaged context files of random geometries, finished and not: repair makes them byte for byte what they were,
 * whatever was hit of what a second copy or the token ids can bring back. SLUICE_TEST_FLIPS: single flipped bits of one
 * finished file (default 60). */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sluice/sluice.h>

#include "common/effort.h"
#include "common/tiny_model.h"
#include "store/format.h"

enum { MAX_TOKENS = 9000, MAX_LAYERS = 4, WINDOW = 256 };

typedef struct bench {
    uint64_t random;
    char model_path[256], path[256];
    sl_engine *engine;
    sl_cache cache;
    sl_kv_layer layers[MAX_LAYERS];
    sl_geom geom;
    sl_layout layout;
    size_t n_tokens, n_done;
    int32_t ids[MAX_TOKENS];
    uint8_t *whole, *spoilt; /* [bytes] the file as it was; as it is given to repair */
    size_t bytes;
    size_t n_stops; /* a prefill ends after so many questions whether to; 0: never */
    uint64_t n_told, n_parts;
} bench;

static uint64_t seed_of_run(void)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 20261130;
}

/* xorshift64*; below n */
static uint64_t draw(bench *b, uint64_t n)
{
    b->random ^= b->random >> 12;
    b->random ^= b->random << 25;
    b->random ^= b->random >> 27;
    return (b->random * UINT64_C(2685821657736338717) >> 11) % n;
}

static void must(sl_status status, const sl_err *err)
{
    if (status != SL_OK)
        fail_msg("status %d: %s", (int)status, err->text);
}

static uint8_t *load(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*bytes);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

static void save(const char *path, const uint8_t *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void expect_bytes(const bench *b, const uint8_t *wanted, const char *when)
{
    size_t bytes = 0;
    uint8_t *now = load(b->path, &bytes);
    assert_int_equal(bytes, b->bytes);
    for (size_t i = 0; i < bytes; i++)
        if (now[i] != wanted[i])
            fail_msg("%s: byte %zu is %02x, expected %02x", when, i, now[i], wanted[i]);
    free(now);
}

/* ---- a file ---- */

static bool stop(void *arg)
{
    bench *b = arg;
    return b->n_stops > 0 && --b->n_stops == 0;
}

static sl_context_options context_options(bench *b, size_t n_tokens)
{
    return (sl_context_options){.cache = b->cache, .allow_ram_dir = true, .prompt_tokens = n_tokens,
                                .window_tokens = WINDOW, .commit_tokens = WINDOW, .stop = stop, .arg = b};
}

/* Goes on with the file to all tokens; false: stopped. */
static bool prefill(bench *b)
{
    sl_err err = {SL_OK, ""};
    sl_store *store = NULL;
    sl_context *context = NULL;
    sl_context_options options = context_options(b, b->n_tokens);
    const sl_store_options open = {.path = b->path, .for_writing = true, .max_tokens = b->n_tokens};
    must(access(b->path, F_OK) == 0 ? sl_store_open(b->engine, &open, &store, &err)
                                    : sl_store_create(b->engine, b->path, &options, &store, &err), &err);
    sl_store_info info;
    sl_store_get_info(store, &info);
    size_t n_kept = (size_t)info.n_tokens;
    options.prompt_tokens -= n_kept;
    options.store = store;
    options.keep = true;
    must(sl_context_create(b->engine, &options, &context, &err), &err);
    sl_status status = sl_context_keep(context, b->ids + n_kept, b->n_tokens - n_kept, NULL, NULL, &err);
    if (status != SL_CANCELLED)
        must(status, &err);
    sl_context_destroy(context);
    sl_store_close(store);
    return status == SL_OK;
}

static void start(bench *b, uint64_t seed, size_t n_tokens)
{
    static unsigned n_started;
    const char *dir = getenv("SLUICE_TEST_DIR");
    memset(b, 0, sizeof *b);
    b->random = seed * 2 + 1;
    tiny_model model = tiny_model_of_seed(seed);
    model.n_layers = 1 + (uint32_t)draw(b, MAX_LAYERS);
    model.n_kv_heads = 1 + (uint32_t)draw(b, 3);
    model.n_heads = model.n_kv_heads * (1 + (uint32_t)draw(b, 2));
    model.head_dim = 32u << draw(b, 2);
    model.hidden = model.ffn = 64;
    model.n_context = 16384;
    dir = dir ? dir : "/var/tmp";
    snprintf(b->model_path, sizeof b->model_path, "%s/repair-%ld-%u.gguf", dir, (long)getpid(), n_started);
    snprintf(b->path, sizeof b->path, "%s/repair-%ld-%u.kv", dir, (long)getpid(), n_started++);
    assert_true(tiny_model_write(&model, b->model_path));
    const sl_engine_options options = {.model_path = b->model_path, .ram_bytes = UINT64_C(1) << 30, .n_threads = 2};
    sl_err err = {SL_OK, ""};
    must(sl_engine_open(&options, &b->engine, &err), &err);
    b->cache = draw(b, 2) ? SL_CACHE_F16 : SL_CACHE_Q8_0;
    for (uint32_t i = 0; i < model.n_layers; i++)
        b->layers[i] = (sl_kv_layer){model.n_kv_heads, model.head_dim, 0};
    b->geom = (sl_geom){b->cache == SL_CACHE_F16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, model.n_layers, b->layers};
    b->layout = sl_layout_of(&b->geom);
    b->n_tokens = n_tokens ? n_tokens : 1 + (size_t)draw(b, MAX_TOKENS);
    for (size_t i = 0; i < b->n_tokens; i++)
        b->ids[i] = (int32_t)draw(b, tiny_model_n_vocab());
    print_message("seed %" PRIu64 ": %u layers, %u KV heads of %u, %s, %zu tokens\n", seed, model.n_layers,
                  model.n_kv_heads, model.head_dim, b->cache == SL_CACHE_F16 ? "f16" : "q8_0", b->n_tokens);
}

static void take_whole(bench *b)
{
    b->whole = load(b->path, &b->bytes);
    b->spoilt = malloc(b->bytes);
    assert_non_null(b->spoilt);
    memcpy(b->spoilt, b->whole, b->bytes);
}

static void finish(bench *b)
{
    sl_engine_close(b->engine);
    unlink(b->path);
    unlink(b->model_path);
    free(b->whole);
    free(b->spoilt);
}

/* ---- damage ---- */

static void told(void *arg, const sl_store_damage *damage, sl_store_fate fate)
{
    bench *b = arg;
    b->n_told++;
    b->n_parts += strcmp(damage->what, "part") == 0;
    if (fate == SL_STORE_FATE_LOST)
        fail_msg("lost: %s, offset %" PRIu64, damage->what, damage->off);
}

static sl_status repair(bench *b, bool dry_run, sl_store_repaired *out, sl_err *err)
{
    static const size_t windows[] = {64, 192, 1024, 0};
    b->n_told = b->n_parts = 0;
    const sl_store_repair_options options = {.path = b->path, .dry_run = dry_run, .allow_ram_dir = true,
                                             .window_tokens = windows[draw(b, 4)], .told = told, .arg = b};
    return sl_store_repair(b->engine, &options, out, err);
}

/* Where a flip can be undone: not in a copy of which the other one is given up, chosen once for each `round`. */
static bool is_allowed(const bench *b, size_t at, uint64_t choice)
{
    const sl_layout *layout = &b->layout;
    if (at < 2 * layout->superblock_bytes)
        return (at < layout->superblock_bytes) == (choice % 2 == 0);
    if (at >= b->bytes - (size_t)2 * SL_FORMAT_END_BYTES)
        return (at >= b->bytes - SL_FORMAT_END_BYTES) == (choice % 2 == 0);
    for (uint64_t segment = 0; sl_layout_segment_off(layout, segment + 1) < b->bytes; segment++) {
        uint64_t record = sl_layout_record_off(layout, segment);
        if (at >= record && at < record + 2 * layout->record_bytes)
            return (at < record + layout->record_bytes) == ((choice + segment) % 2 == 0);
    }
    return true;
}

/* Offset of a layer's part that the token is in. */
static size_t part_off(const bench *b, uint32_t layer, size_t token)
{
    return (size_t)(sl_layout_segment_off(&b->layout, token / SL_SEGMENT_TOKENS) +
                    sl_geom_block_off(&b->geom, 0, layer) +
                    token % SL_SEGMENT_TOKENS / SL_PART_TOKENS * sl_geom_part_bytes(&b->geom, layer));
}

/* Bits here and there, a sector of rubbish, the byte behind the last tile group, or the beginnings of all parts of a
 * layer. */
static void spoil(bench *b)
{
    uint64_t choice = draw(b, 2), n = 1 + draw(b, 40);
    size_t data_off = (size_t)b->layout.data_off;
    for (uint64_t i = 0; i < n; i++) {
        size_t at = (size_t)draw(b, draw(b, 4) ? b->bytes : data_off);
        if (is_allowed(b, at, choice))
            b->spoilt[at] ^= (uint8_t)(1u << draw(b, 8));
    }
    size_t sector = (data_off + (size_t)draw(b, b->bytes - data_off)) / 4096 * 4096;
    if (draw(b, 2) && is_allowed(b, sector, choice))
        for (size_t i = 0; i < 4096; i++)
            b->spoilt[sector + i] = (uint8_t)draw(b, 256);
    uint32_t layer = (uint32_t)draw(b, b->geom.n_layers);
    for (size_t token = 0; n > 30 && token < b->n_tokens; token += SL_PART_TOKENS)
        b->spoilt[part_off(b, layer, token) + draw(b, 64)] ^= 1;
    size_t groups = ((b->n_tokens - 1) % SL_PART_TOKENS) / SL_TILE + 1;
    if (draw(b, 2) && groups < SL_PART_TILES)
        b->spoilt[part_off(b, layer, b->n_tokens - 1) + groups * sl_geom_group_bytes(&b->geom, layer)] ^= 2;
    save(b->path, b->spoilt, b->bytes);
}

static void damage_and_repair(bench *b)
{
    sl_err err = {SL_OK, ""};
    sl_store_repaired dry, done;
    spoil(b);
    bool is_hit = memcmp(b->spoilt, b->whole, b->bytes) != 0;
    sl_status status = repair(b, true, &dry, &err);
    assert_int_equal(status, is_hit ? SL_DAMAGED : SL_OK);
    assert_int_equal(dry.bytes_written, 0);
    expect_bytes(b, b->spoilt, "dry run");
    must(repair(b, false, &done, &err), &err);
    assert_int_equal(done.n_found, dry.n_found);
    assert_int_equal(done.n_repaired, done.n_found);
    assert_int_equal(b->n_told, done.n_found);
    assert_int_equal(done.tokens_computed, dry.tokens_damaged);
    expect_bytes(b, b->whole, "repaired");
    memcpy(b->spoilt, b->whole, b->bytes);
    must(repair(b, false, &done, &err), &err);
    assert_int_equal(done.n_found, 0);
    assert_int_equal(done.bytes_written, 0);
}

static void finished_files(void **unused)
{
    (void)unused;
    static bench b;
    static const size_t edges[] = {1, 63, 64, 1024, 1025, 4096, 4097, 8192};
    for (int i = 0; i < (EFFORT_IS_SMALL ? 1 : 12); i++) {
        start(&b, seed_of_run() + (uint64_t)i, i % 3 == 0 ? edges[(seed_of_run() + (uint64_t)i) % 8] : 0);
        assert_true(prefill(&b));
        take_whole(&b);
        for (int k = 0; k < (EFFORT_IS_SMALL ? 1 : 3); k++)
            damage_and_repair(&b);
        finish(&b);
    }
}

/* ---- unfinished files ---- */

/* Bits of what the last commit covers: one copy of each record, parts as far as they are whole sectors of full tile
 * groups. */
static void spoil_committed(bench *b, size_t n_committed)
{
    uint64_t choice = draw(b, 2);
    b->spoilt[draw(b, 100) + choice * (size_t)b->layout.superblock_bytes] ^= 4;
    for (uint64_t segment = 0; segment < n_committed / SL_SEGMENT_TOKENS; segment++)
        b->spoilt[sl_layout_record_off(&b->layout, segment) + draw(b, 2) * b->layout.record_bytes + draw(b, 60)] ^= 8;
    for (size_t token = 0; token < n_committed; token += SL_PART_TOKENS) {
        uint32_t layer = (uint32_t)draw(b, b->geom.n_layers);
        size_t left = n_committed - token, groups = (left < SL_PART_TOKENS ? left : SL_PART_TOKENS) / SL_TILE;
        size_t bytes = groups * sl_geom_group_bytes(&b->geom, layer) / 4096 * 4096;
        if (bytes > 0)
            b->spoilt[part_off(b, layer, token) + draw(b, bytes)] ^= 16;
    }
    /* The newest commit record: the area of the larger generation. */
    uint64_t areas[2] = {sl_layout_area_off(&b->layout, 0), sl_layout_area_off(&b->layout, 1)};
    uint64_t newest = b->whole[areas[1] + 8] > b->whole[areas[0] + 8] ? areas[1] : areas[0];
    if (b->whole[newest] != 0)
        b->spoilt[newest + draw(b, 2) * b->layout.commit_bytes + draw(b, 60)] ^= 32;
    save(b->path, b->spoilt, b->bytes);
}

static void unfinished_files(void **unused)
{
    (void)unused;
    static bench b;
    uint64_t n_stopped = 0;
    for (int i = 0; i < 8 && !(EFFORT_IS_SMALL && n_stopped > 0); i++) {
        start(&b, seed_of_run() + 1000 + (uint64_t)i, 0);
        assert_true(prefill(&b));
        size_t plain_bytes = 0;
        uint8_t *plain = load(b.path, &plain_bytes);
        unlink(b.path);
        b.n_stops = 1 + (size_t)draw(&b, b.n_tokens / WINDOW * b.geom.n_layers + 1);
        if (!prefill(&b)) {
            sl_err err = {SL_OK, ""};
            sl_store_repaired done;
            n_stopped++;
            must(repair(&b, false, &done, &err), &err);
            take_whole(&b);
            spoil_committed(&b, (size_t)done.n_tokens);
            must(repair(&b, false, &done, &err), &err);
            assert_true(done.n_repaired > 0);
            expect_bytes(&b, b.whole, "unfinished and repaired");
        }
        b.n_stops = 0;
        assert_true(prefill(&b));
        b.bytes = plain_bytes;
        expect_bytes(&b, plain, "went on");
        free(plain);
        finish(&b);
    }
    assert_true(n_stopped > 0);
}

/* ---- single bits ---- */

static void ignore(void *arg, const sl_store_damage *damage)
{
    bench *b = arg;
    b->n_parts += strcmp(damage->what, "part") == 0;
}

/* A question's way through the file: every part is read. */
static sl_status ask(bench *b, sl_err *err)
{
    sl_store *store = NULL;
    sl_context *context = NULL;
    const sl_store_options open = {.path = b->path};
    sl_context_options options = context_options(b, 1);
    sl_status status = sl_store_open(b->engine, &open, &store, err);
    options.store = store;
    if (status == SL_OK)
        status = sl_context_create(b->engine, &options, &context, err);
    const int32_t id = 5;
    if (status == SL_OK)
        status = sl_context_feed(context, &id, 1, NULL, NULL, err);
    sl_context_destroy(context);
    sl_store_close(store);
    return status;
}

static void single_bits(void **unused)
{
    (void)unused;
    static bench b;
    const char *text = getenv("SLUICE_TEST_FLIPS");
    int n = text ? atoi(text) : (EFFORT_IS_SMALL ? 2 : 60), n_parts = 0;
    start(&b, seed_of_run() + 2000, 5000);
    assert_true(prefill(&b));
    take_whole(&b);
    for (int i = 0; i < n; i++) {
        sl_err err = {SL_OK, ""};
        size_t at = (size_t)draw(&b, b.bytes);
        b.spoilt[at] ^= (uint8_t)(1u << draw(&b, 8));
        save(b.path, b.spoilt, b.bytes);
        b.n_parts = 0;
        const sl_store_verify_options verify = {.path = b.path, .found = ignore, .arg = &b};
        sl_store_verified found;
        assert_int_equal(sl_store_verify(&verify, &found, &err), SL_DAMAGED);
        assert_int_equal(found.n_damaged, 1);
        n_parts += b.n_parts > 0;
        assert_int_equal(ask(&b, &err), b.n_parts > 0 ? SL_DAMAGED : SL_OK);
        sl_store_repaired done;
        must(repair(&b, false, &done, &err), &err);
        expect_bytes(&b, b.whole, "one bit");
        b.spoilt[at] = b.whole[at];
    }
    print_message("%d bits, %d in parts\n", n, n_parts);
    assert_true(n < 50 || n_parts > n / 8);
    finish(&b);
}

/* ---- what cannot be ---- */

/* A part whose checksum is another's: nothing is written. A record that says so has to be forged. */
static void another_checksum_is_refused(void **unused)
{
    (void)unused;
    static bench b;
    sl_err err = {SL_OK, ""};
    start(&b, seed_of_run() + 3000, 700);
    assert_true(prefill(&b));
    take_whole(&b);
    uint8_t *buf = aligned_alloc(4096, (size_t)b.layout.record_bytes + 16384);
    assert_non_null(buf);
    uint64_t off = sl_layout_record_off(&b.layout, 0), mark = 0;
    memcpy(&mark, b.whole + b.layout.superblock_bytes - 8, sizeof mark);
    memcpy(buf, b.whole + off, (size_t)b.layout.record_bytes);
    sl_record record;
    must(sl_record_decode(buf, &b.geom, 0, mark, &record, &err), &err);
    uint64_t parts[MAX_LAYERS * SL_SEGMENT_PARTS];
    memcpy(parts, record.parts, b.geom.n_layers * SL_SEGMENT_PARTS * sizeof *parts);
    parts[0] ^= 1;
    record.parts = parts;
    int32_t ids[700];
    memcpy(ids, record.ids, sizeof ids);
    record.ids = ids;
    sl_record_encode(buf, &b.geom, &record);
    for (size_t copy = 0; copy < 2; copy++)
        memcpy(b.spoilt + off + copy * b.layout.record_bytes, buf, (size_t)b.layout.record_bytes);
    free(buf);
    const sl_end end = {b.n_tokens, record.checksum, mark};
    for (size_t copy = 1; copy <= 2; copy++)
        sl_end_encode(b.spoilt + b.bytes - copy * SL_FORMAT_END_BYTES, &end);
    save(b.path, b.spoilt, b.bytes);
    sl_store_repaired done;
    assert_int_equal(repair(&b, false, &done, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "layer 0, segment 0"));
    assert_non_null(strstr(err.text, "checksum"));
    expect_bytes(&b, b.spoilt, "refused");
    finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finished_files),
        cmocka_unit_test(unfinished_files),
        cmocka_unit_test(single_bits),
        cmocka_unit_test(another_checksum_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
