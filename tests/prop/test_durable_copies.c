/* Copies of records that are whole but not the file's: of two contexts of one geometry and identity every copy of a
 * record and of the end record is put into the other file. Which copy counts is judged by what fits: the tokens are the
 * file's, verification names the copy that does not fit, repairing and opening for writing make the file what it was,
 * and where nothing tells the two apart nothing is written. */
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
#include "store/durable_repair.h"

enum { MOST_PLACES = 8, COMMIT_PLACES = 4 };

static durable_rig rig;

typedef struct file_bytes {
    uint8_t *bytes;
    size_t n;
} file_bytes;

static file_bytes load(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    file_bytes out = {malloc((size_t)info.st_size), (size_t)info.st_size};
    int fd = open(path, O_RDONLY);
    assert_int_equal(pread(fd, out.bytes, out.n, 0), out.n);
    close(fd);
    return out;
}

static void put(const char *path, const uint8_t *bytes, size_t n, uint64_t off)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(pwrite(fd, bytes, n, (off_t)off), n);
    close(fd);
}

static bool is_same(const char *path, const file_bytes *wanted)
{
    file_bytes found = load(path);
    bool same = found.n == wanted->n && memcmp(found.bytes, wanted->bytes, found.n) == 0;
    free(found.bytes);
    return same;
}

/* ---- what the commands do ---- */

typedef struct told {
    int n, n_lost;
    uint64_t off;
} told;

static void found(void *arg, const sl_damage *damage)
{
    told *t = arg;
    t->n++;
    t->off = damage->off;
}

static void fate(void *arg, const sl_damage *damage, sl_fate what)
{
    found(arg, damage);
    ((told *)arg)->n_lost += what == SL_FATE_LOST;
}

static sl_status try_verify(told *out)
{
    sl_err err;
    sl_verify_result result;
    *out = (told){0, 0, 0};
    const sl_verify_options options = {.path = rig.path, .budget = &rig.budget, .found = found, .arg = out};
    return sl_durable_verify(&options, &result, &err);
}

static told try_repair(bool dry_run)
{
    sl_err err;
    sl_repair *repair = NULL;
    told out = {0, 0, 0};
    const sl_repair_options options = {.path = rig.path, .dry_run = dry_run, .budget = &rig.budget, .told = fate,
                                       .arg = &out};
    durable_must(sl_repair_open(&options, &repair, &err), &err);
    durable_must(sl_repair_look(repair, &err), &err);
    sl_repair_work work;
    assert_false(sl_repair_next(repair, &work));
    sl_repair_close(repair);
    return out;
}

/* Whether it opens; then its tokens are the file's. */
static bool try_open(bool for_writing, uint64_t n_tokens)
{
    sl_err err;
    sl_durable *durable = NULL;
    const sl_durable_options options = {.path = rig.path, .for_writing = for_writing, .budget = &rig.budget};
    sl_status status = sl_durable_open(&options, &durable, &err);
    if (status != SL_OK) {
        assert_int_equal(status, SL_DAMAGED);
        return false;
    }
    assert_int_equal(sl_durable_get(durable).n_tokens, n_tokens);
    assert_memory_equal(sl_durable_ids(durable), rig.ids, n_tokens * sizeof *rig.ids);
    sl_durable_close(durable);
    return true;
}

/* ---- two contexts ---- */

typedef struct pair {
    file_bytes ours, theirs;
    uint64_t n_tokens, n_segments, places[MOST_PLACES], sizes[MOST_PLACES]; /* first copies */
    size_t n_places;
    bool is_finished;
} pair;

static void build(const char *path, bool finish)
{
    sl_err err;
    durable_rig_create_file(&rig, path);
    durable_rig_open_kv(&rig, true);
    durable_rig_append(&rig, rig.n_all);
    durable_rig_commit(&rig);
    if (finish)
        durable_must(sl_kv_finish(rig.kv, &err), &err);
    durable_rig_close(&rig);
}

/* Contexts of as many tokens, equal ones before `differ`. Unfinished: the commits say so, or the records alone. */
static void begin(pair *p, uint64_t n_tokens, uint64_t differ, bool finish)
{
    *p = (pair){.n_tokens = n_tokens, .n_segments = (n_tokens + SL_SEGMENT_TOKENS - 1) / SL_SEGMENT_TOKENS,
                .is_finished = finish};
    durable_rig_start(&rig, durable_seed() + 23000 + n_tokens, n_tokens);
    for (uint64_t i = differ; i < n_tokens; i++)
        rig.ids[i] ^= 1;
    build(rig.other, finish);
    for (uint64_t i = differ; i < n_tokens; i++)
        rig.ids[i] ^= 1;
    build(rig.path, finish);
    p->ours = load(rig.path);
    p->theirs = load(rig.other);
    assert_int_equal(p->ours.n, p->theirs.n);
    const sl_layout layout = sl_layout_of(&rig.model.geom);
    uint64_t n_records = finish ? p->n_segments : n_tokens / SL_SEGMENT_TOKENS;
    for (uint64_t segment = differ / SL_SEGMENT_TOKENS; segment < n_records; segment++) {
        p->places[p->n_places] = sl_layout_record_off(&layout, segment);
        p->sizes[p->n_places++] = layout.record_bytes;
    }
    if (finish) {
        p->places[p->n_places] = sl_layout_segment_off(&layout, p->n_segments);
        p->sizes[p->n_places++] = SL_FORMAT_END_BYTES;
    }
}

static void end(pair *p)
{
    free(p->ours.bytes);
    free(p->theirs.bytes);
    durable_rig_stop(&rig);
}

static void swap_in(const pair *p, size_t place, int copy)
{
    uint64_t off = p->places[place] + (uint64_t)copy * p->sizes[place];
    put(rig.path, p->theirs.bytes + off, (size_t)p->sizes[place], off);
}

static void put_back(const pair *p)
{
    put(rig.path, p->ours.bytes, p->ours.n, 0);
}

/* ---- tests ---- */

/* So many copies are not the file's: all of it is still there. */
static void check_mended(const pair *p, int n_foreign)
{
    told t;
    file_bytes swapped = load(rig.path);
    assert_true(try_open(false, p->n_tokens));
    /* The last record behind a commit may be what a crash left: that is no damage. */
    bool is_trace = try_verify(&t) == SL_OK;
    assert_true(is_trace ? !p->is_finished : t.n == n_foreign);
    t = try_repair(true);
    assert_true(t.n == n_foreign && t.n_lost == 0);
    assert_true(is_same(rig.path, &swapped));
    t = try_repair(false);
    assert_true(t.n == n_foreign && t.n_lost == 0);
    assert_true(is_same(rig.path, &p->ours));
    assert_int_equal(try_verify(&t), SL_OK);
    put(rig.path, swapped.bytes, swapped.n, 0);
    assert_true(try_open(true, p->n_tokens));
    assert_true(is_same(rig.path, &p->ours));
    free(swapped.bytes);
}

/* Nothing tells what was there: everybody says so, nobody writes. */
static void check_lost(void)
{
    told t;
    file_bytes swapped = load(rig.path);
    assert_false(try_open(false, 0));
    assert_false(try_open(true, 0));
    assert_int_equal(try_verify(&t), SL_DAMAGED);
    assert_true(try_repair(true).n_lost > 0);
    assert_true(try_repair(false).n_lost > 0);
    assert_true(is_same(rig.path, &swapped));
    free(swapped.bytes);
}

static void try_all(uint64_t n_tokens, uint64_t differ, bool finish)
{
    static pair p;
    begin(&p, n_tokens, differ, finish);
    for (size_t place = 0; place < p.n_places; place++) {
        for (int copy = 0; copy < 2; copy++) {
            swap_in(&p, place, copy);
            check_mended(&p, 1);
            put_back(&p);
        }
        for (size_t second = place + 1; second < p.n_places && p.n_places > 2; second++) {
            swap_in(&p, place, (int)(second & 1));
            swap_in(&p, second, (int)(place & 1));
            check_mended(&p, 2);
            put_back(&p);
        }
    }
    end(&p);
}

static void one_foreign_copy(void **unused)
{
    (void)unused;
    try_all(3000, 0, true);
    try_all(4500, 100, true);
    if (EFFORT_IS_SMALL)
        return;
    try_all(4500, 0, true);
    try_all(4500, SL_SEGMENT_TOKENS, true);
    try_all(9000, 0, true);
    try_all(9000, 0, false);
    try_all(8192, 0, false);
}

/* Both copies of a record are the other's: the others stay as they are, also where one of them has a foreign copy that
 * fits this one. */
static void both_copies_are_foreign(void **unused)
{
    (void)unused;
    static pair p;
    begin(&p, EFFORT_IS_SMALL ? 5000 : 9000, 0, true);
    for (size_t place = 0; place < p.n_places; place++) {
        for (size_t beside = 0; beside < p.n_places; beside++) {
            swap_in(&p, place, 0);
            swap_in(&p, place, 1);
            if (beside + 1 == place)
                swap_in(&p, beside, 0);
            check_lost();
            put_back(&p);
        }
    }
    end(&p);
}

static void two_contexts_fit(void **unused)
{
    (void)unused;
    static pair p;
    begin(&p, 3000, 0, true);
    for (int which = 0; which < 4; which++) {
        swap_in(&p, 0, which & 1);
        swap_in(&p, 1, which >> 1);
        check_lost();
        put_back(&p);
    }
    end(&p);
    begin(&p, SL_SEGMENT_TOKENS, 0, false);
    swap_in(&p, 0, 1);
    check_lost();
    end(&p);
}

/* A damaged copy beside a foreign one is not written over: nothing better is left of it. */
static void damaged_and_foreign(void **unused)
{
    (void)unused;
    static pair p;
    begin(&p, 9000, 0, true);
    for (size_t place = 0; place < p.n_places; place++) {
        swap_in(&p, place, 1);
        uint8_t byte = p.ours.bytes[p.places[place] + 9] ^ 4;
        put(rig.path, &byte, 1, p.places[place] + 9);
        check_lost();
        put_back(&p);
    }
    end(&p);
}

/* A superblock of another model in one copy: the records tell which one is the file's. */
static void foreign_superblock(void **unused)
{
    (void)unused;
    static pair p;
    begin(&p, 4500, 0, true);
    const sl_layout layout = sl_layout_of(&rig.model.geom);
    size_t bytes = (size_t)layout.superblock_bytes;
    uint8_t *buf = malloc(bytes);
    sl_identity other = durable_rig_identity;
    other.model[0] ^= 1;
    (void)sl_superblock_encode(buf, &other, &rig.model.geom);
    for (uint64_t copy = 0; copy < 2; copy++) {
        put(rig.path, buf, bytes, copy * bytes);
        assert_true(try_open(false, p.n_tokens));
        told t;
        assert_int_equal(try_verify(&t), SL_DAMAGED);
        assert_true(t.n == 1 && t.off == copy * bytes);
        t = try_repair(false);
        assert_true(t.n == 1 && t.n_lost == 0);
        assert_true(is_same(rig.path, &p.ours));
    }
    free(buf);
    end(&p);
}

/* An end record that names the last record, and another number of tokens. */
static void end_of_other_tokens(void **unused)
{
    (void)unused;
    static pair p;
    static uint8_t buf[SL_FORMAT_END_BYTES];
    sl_err err;
    sl_end end_record;
    begin(&p, 4500, 0, true);
    uint64_t off = p.places[p.n_places - 1], mark = 0;
    memcpy(&mark, p.ours.bytes + off + 24, sizeof mark); /* where this runs numbers are little-endian */
    durable_must(sl_end_decode(p.ours.bytes + off, mark, &end_record, &err), &err);
    end_record.n_tokens -= 1;
    sl_end_encode(buf, &end_record);
    for (uint64_t copy = 0; copy < 2; copy++) {
        put(rig.path, buf, sizeof buf, off + copy * sizeof buf);
        check_mended(&p, 1);
    }
    put(rig.path, buf, sizeof buf, off);
    put(rig.path, buf, sizeof buf, off + sizeof buf);
    check_lost();
    end(&p);
}

/* ---- commit records ---- */

static void build_commits(const char *path, uint64_t n_commits, uint64_t step)
{
    durable_rig_create_file(&rig, path);
    durable_rig_open_kv(&rig, true);
    for (uint64_t i = 0; i < n_commits; i++) {
        durable_rig_append(&rig, step);
        durable_rig_commit(&rig);
    }
    durable_rig_close(&rig);
}

/* Two texts of one model, unfinished, with so many commits each; finish: ours is. */
static void begin_commits(pair *p, uint64_t ours, uint64_t theirs, uint64_t step, bool finish)
{
    *p = (pair){.n_tokens = ours * step};
    durable_rig_start(&rig, durable_seed() + 24000 + ours, 10 * step);
    for (uint64_t i = 0; i < rig.n_all; i++)
        rig.ids[i] ^= 1;
    build_commits(rig.other, theirs, step);
    for (uint64_t i = 0; i < rig.n_all; i++)
        rig.ids[i] ^= 1;
    build_commits(rig.path, ours, step);
    if (finish) {
        sl_err err;
        durable_rig_open_file(&rig, rig.path, true);
        durable_rig_open_kv(&rig, true);
        durable_must(sl_kv_finish(rig.kv, &err), &err);
        durable_rig_close(&rig);
    }
    p->ours = load(rig.path);
    p->theirs = load(rig.other);
}

/* False: that copy is the same in both. */
static bool swap_commit(const pair *p, unsigned copy)
{
    const sl_layout layout = sl_layout_of(&rig.model.geom);
    uint64_t off = sl_layout_area_off(&layout, copy / 2) + copy % 2 * layout.commit_bytes;
    put(rig.path, p->theirs.bytes + off, (size_t)layout.commit_bytes, off);
    return memcmp(p->ours.bytes + off, p->theirs.bytes + off, (size_t)layout.commit_bytes) != 0;
}

/* Behind a record its copy's room means nothing. */
static void expect_our_commits(const pair *p)
{
    const sl_layout layout = sl_layout_of(&rig.model.geom);
    file_bytes now = load(rig.path);
    for (unsigned copy = 0; copy < COMMIT_PLACES; copy++) {
        uint64_t off = sl_layout_area_off(&layout, copy / 2) + copy % 2 * layout.commit_bytes, bytes = 0;
        memcpy(&bytes, p->ours.bytes + off + 48, sizeof bytes);
        assert_memory_equal(now.bytes + off, p->ours.bytes + off, bytes);
    }
    free(now.bytes);
}

/* Nothing tells which of two is right: everybody says so, nobody writes. */
static void expect_undecided(void)
{
    told t;
    sl_err err;
    sl_repair *repair = NULL;
    file_bytes swapped = load(rig.path);
    assert_false(try_open(false, 0));
    assert_false(try_open(true, 0));
    assert_int_equal(try_verify(&t), SL_DAMAGED);
    const sl_repair_options options = {.path = rig.path, .budget = &rig.budget};
    durable_must(sl_repair_open(&options, &repair, &err), &err);
    assert_int_equal(sl_repair_look(repair, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "are whole and differ"));
    sl_repair_close(repair);
    assert_true(is_same(rig.path, &swapped));
    free(swapped.bytes);
}

/* A newer record of another text, whole, in any of the four places: the tokens are ours. */
static void foreign_commits(void **unused)
{
    (void)unused;
    static pair p;
    told t;
    for (uint64_t ours = 1; ours <= (EFFORT_IS_SMALL ? 2 : 4); ours++) {
        begin_commits(&p, ours, ours + 3, ours % 2 == 0 ? 300 : 900, false);
        for (unsigned copy = 0; copy < COMMIT_PLACES; copy++) {
            assert_true(swap_commit(&p, copy));
            assert_true(try_open(false, p.n_tokens) && try_open(true, p.n_tokens));
            assert_int_equal(try_verify(&t), SL_OK);
            t = try_repair(false);
            assert_true(t.n == 1 && t.n_lost == 0);
            expect_our_commits(&p);
            put_back(&p);
        }
        end(&p);
    }
}

/* Of one generation: what goes on from the commit before is ours. Before there was one nothing tells them apart. */
static void foreign_commits_of_one_generation(void **unused)
{
    (void)unused;
    static pair p;
    for (uint64_t n = 1; n <= 3; n++) {
        begin_commits(&p, n, n, 900, false);
        for (unsigned copy = 0; copy < COMMIT_PLACES; copy++) {
            if (swap_commit(&p, copy) && n == 1)
                expect_undecided();
            else
                assert_true(try_open(false, p.n_tokens));
            put_back(&p);
        }
        end(&p);
    }
}

static void a_foreign_commit_in_a_finished_file(void **unused)
{
    (void)unused;
    static pair p;
    told t;
    for (uint64_t theirs = 1; theirs <= 2; theirs++) {
        begin_commits(&p, 3, theirs, 900, true);
        for (unsigned copy = 0; copy < COMMIT_PLACES; copy++) {
            assert_true(swap_commit(&p, copy));
            assert_true(try_open(false, p.n_tokens));
            assert_int_equal(try_verify(&t), SL_OK);
            if (copy % 2 == 0)
                assert_true(try_open(true, p.n_tokens));
            else
                assert_int_equal(try_repair(false).n_lost, 0);
            assert_true(is_same(rig.path, &p.ours));
        }
        end(&p);
    }
}

/* A file that lost its end record, or a part of it. */
static void a_lost_end_record_is_made_again(void **unused)
{
    (void)unused;
    static pair p;
    const uint64_t n_tokens[] = {3000, 5000, SL_SEGMENT_TOKENS};
    for (int i = 0; i < 3; i++) {
        begin(&p, n_tokens[i], 0, true);
        for (uint64_t lost = 1; lost <= 2 * SL_FORMAT_END_BYTES; lost += 2 * SL_FORMAT_END_BYTES - 1) {
            assert_int_equal(truncate(rig.path, (off_t)(p.ours.n - lost)), 0);
            file_bytes shorter = load(rig.path);
            assert_false(try_open(false, 0));
            told t = try_repair(true);
            bool can = n_tokens[i] % SL_SEGMENT_TOKENS != 0;
            assert_true(t.n > 0 && (t.n_lost == 0) == can);
            assert_true(is_same(rig.path, &shorter));
            t = try_repair(false);
            assert_true((t.n_lost == 0) == can);
            assert_true(is_same(rig.path, can ? &p.ours : &shorter));
            assert_int_equal(try_verify(&t), can ? SL_OK : SL_DAMAGED);
            free(shorter.bytes);
            put_back(&p);
        }
        end(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_foreign_copy),    cmocka_unit_test(both_copies_are_foreign),
        cmocka_unit_test(two_contexts_fit),    cmocka_unit_test(damaged_and_foreign),
        cmocka_unit_test(foreign_superblock),
        cmocka_unit_test(foreign_commits),
        cmocka_unit_test(foreign_commits_of_one_generation),
        cmocka_unit_test(a_foreign_commit_in_a_finished_file),
        cmocka_unit_test(a_lost_end_record_is_made_again),  cmocka_unit_test(end_of_other_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
