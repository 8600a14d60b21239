/* Where a finished file ends is known: one that was cut off is not taken for a shorter one, wherever the cut fell; one
 * copy of the end record is enough, and a writer makes the other one again. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/durable_rig.h"
#include "common/effort.h"
#include "store/durable_verify.h"

/* What a verification told. */
typedef struct told {
    int n, n_end, copy; /* things; of them about the end; the copy of the last one */
} told;

static void count(void *arg, const sl_damage *damage)
{
    told *t = arg;
    t->n++;
    t->n_end += strstr(damage->what, "end ") != NULL;
    t->copy = damage->copy;
}

static sl_status verify(durable_rig *b, told *out)
{
    sl_err err;
    *out = (told){0, 0, -1};
    const sl_verify_options options = {.path = b->path, .budget = &b->budget, .found = count, .arg = out};
    sl_verify_result result;
    return sl_durable_verify(&options, &result, &err);
}

static sl_status try_open(durable_rig *b, bool for_writing, bool *has_note, sl_err *err)
{
    const sl_durable_options options = {.path = b->path, .for_writing = for_writing, .max_tokens = b->n_all,
                                        .budget = &b->budget};
    sl_durable *durable = NULL;
    sl_status status = sl_durable_open(&options, &durable, err);
    *has_note = status == SL_OK && sl_durable_get(durable).note != NULL;
    if (status == SL_OK)
        assert_int_equal(sl_durable_get(durable).n_tokens, b->n_all);
    sl_durable_close(durable);
    return status;
}

static void flip(const durable_rig *b, uint64_t at)
{
    int fd = open(b->path, O_RDWR);
    uint8_t byte = 0;
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 2;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static uint64_t size_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (uint64_t)info.st_size;
}

static void cut_off_is_seen(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    for (uint64_t i = 0; i < (EFFORT_IS_SMALL ? 3 : 8); i++) {
        kv_model random = {.random = i + 1};
        durable_rig_start(&b, durable_seed() + 15000 + i, i % 2 ? 8192 : 4097 + kv_model_random(&random, 4000));
        durable_rig_build(&b, b.path);
        durable_rig_build(&b, b.other);
        const sl_layout layout = sl_layout_of(&b.model.geom);
        uint64_t size = size_of(b.path);
        assert_int_equal(size, sl_layout_finished_bytes(&layout, 2));
        uint64_t cuts[] = {sl_layout_segment_off(&layout, 2), sl_layout_segment_off(&layout, 2) + SL_FORMAT_END_BYTES,
                           sl_layout_segment_off(&layout, 1), sl_layout_finished_bytes(&layout, 1), layout.data_off,
                           sl_layout_segment_off(&layout, 1) + SL_SECTOR_BYTES *
                               kv_model_random(&b.model, layout.stride / SL_SECTOR_BYTES)};
        bool has_note;
        told t;
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            int fd = open(b.path, O_RDWR);
            assert_int_equal(ftruncate(fd, (off_t)cuts[c]), 0);
            close(fd);
            assert_int_equal(try_open(&b, false, &has_note, &err), SL_DAMAGED);
            assert_non_null(strstr(err.text, "cut off"));
            assert_int_equal(try_open(&b, true, &has_note, &err), SL_DAMAGED);
            assert_int_equal(verify(&b, &t), SL_DAMAGED);
            assert_true(t.n_end >= 1);
            unlink(b.path);
            durable_rig_build(&b, b.path);
        }
        durable_rig_same_files(b.path, b.other);
        durable_rig_stop(&b);
    }
}

/* Checksums are right over whatever a writer was given: ids are looked at when a file is opened. */
static void ids_are_of_the_vocabulary(void **unused)
{
    (void)unused;
    static const int32_t bad[] = {100, -1, INT32_MAX, INT32_MIN};
    static durable_rig b;
    sl_err err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        durable_rig_start(&b, durable_seed() + 17000 + i, 4097 + 100 * i);
        b.ids[4096 * (i % 2) + 3] = bad[i];
        durable_rig_build(&b, b.path);
        bool has_note;
        told t;
        assert_int_equal(try_open(&b, false, &has_note, &err), SL_DAMAGED);
        assert_non_null(strstr(err.text, i % 2 ? "token 4099 has id" : "token 3 has id"));
        assert_int_equal(try_open(&b, true, &has_note, &err), SL_DAMAGED);
        assert_int_equal(verify(&b, &t), SL_DAMAGED);
        assert_int_equal(t.n, 1);
        durable_rig_stop(&b);
    }
}

/* A write that a full disk cut short ends within a sector on file systems of small blocks: what is committed counts,
 * and the file is finished all the same. Of a finished file one byte more is too many. */
static void odd_sizes(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err = {SL_OK, ""};
    told t;
    bool has_note;
    durable_rig_start(&b, durable_seed() + 17000, 5000);
    durable_rig_build(&b, b.other);
    durable_rig_create_file(&b, b.path);
    durable_rig_open_kv(&b, true);
    durable_rig_append(&b, 4500);
    durable_rig_commit(&b);
    durable_rig_close(&b);
    int fd = open(b.path, O_RDWR);
    assert_int_equal(ftruncate(fd, (off_t)size_of(b.path) + 9000), 0);
    assert_int_equal(pwrite(fd, "short", 5, (off_t)size_of(b.path) - 5), 5);
    assert_int_not_equal(size_of(b.path) % SL_SECTOR_BYTES, 0);
    durable_must(verify(&b, &t), &err);
    durable_rig_open_file(&b, b.path, false);
    durable_rig_check_ids(&b, 4500);
    durable_rig_open_kv(&b, false);
    durable_rig_walk(&b, 4500);
    durable_rig_close(&b);
    durable_rig_open_file(&b, b.path, true);
    durable_rig_open_kv(&b, true);
    durable_rig_append(&b, 500);
    durable_rig_commit(&b);
    durable_must(sl_kv_finish(b.kv, &err), &err);
    durable_rig_close(&b);
    durable_rig_same_files(b.path, b.other);
    assert_int_equal(pwrite(fd, "", 1, (off_t)size_of(b.path)), 1);
    close(fd);
    assert_int_equal(try_open(&b, false, &has_note, &err), SL_DAMAGED);
    assert_int_equal(verify(&b, &t), SL_DAMAGED);
    assert_int_equal(t.n_end, 1);
    durable_rig_stop(&b);
}

static void one_copy_is_enough(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    bool has_note;
    told t;
    durable_rig_start(&b, durable_seed() + 16000, 4500);
    durable_rig_build(&b, b.path);
    durable_rig_build(&b, b.other);
    uint64_t end = size_of(b.path) - 2 * SL_FORMAT_END_BYTES;
    for (uint64_t at = 0; at < SL_FORMAT_END_BYTES; at += EFFORT_IS_SMALL ? 1021 : 97) {
        for (int copy = 0; copy < 2; copy++) {
            flip(&b, end + (uint64_t)copy * SL_FORMAT_END_BYTES + at);
            assert_int_equal(verify(&b, &t), SL_DAMAGED);
            assert_true(t.n == 1 && t.n_end == 1 && t.copy == copy);
            durable_must(try_open(&b, false, &has_note, &err), &err);
            assert_true(has_note);
            durable_must(try_open(&b, true, &has_note, &err), &err); /* makes it again */
            durable_must(verify(&b, &t), &err);
            durable_must(try_open(&b, false, &has_note, &err), &err);
            assert_false(has_note);
        }
        durable_rig_same_files(b.path, b.other);
    }
    flip(&b, end + 9);
    flip(&b, end + SL_FORMAT_END_BYTES + 9);
    assert_int_equal(try_open(&b, true, &has_note, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "cut off"));
    assert_int_equal(verify(&b, &t), SL_DAMAGED);
    assert_true(t.n == 1 && t.n_end == 1);
    durable_rig_stop(&b);
}

/* Whole, but of other records: a segment put together with another file's end. */
static void foreign_end_is_refused(void **unused)
{
    (void)unused;
    static durable_rig b;
    static uint8_t end[2 * SL_FORMAT_END_BYTES];
    sl_err err;
    bool has_note;
    told t;
    durable_rig_start(&b, durable_seed() + 17000, 4500);
    durable_rig_build(&b, b.path);
    b.n_all = 4600;
    durable_rig_build(&b, b.other);
    b.n_all = 4500;
    off_t off = (off_t)(size_of(b.path) - sizeof end);
    int from = open(b.other, O_RDONLY), to = open(b.path, O_RDWR);
    assert_int_equal(pread(from, end, sizeof end, off), sizeof end);
    assert_int_equal(pwrite(to, end, sizeof end, off), sizeof end);
    close(from);
    close(to);
    assert_int_equal(try_open(&b, true, &has_note, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, "tells of 4600 tokens"));
    assert_int_equal(verify(&b, &t), SL_DAMAGED);
    assert_true(t.n == 1 && t.n_end == 1);
    durable_rig_stop(&b);
}

/* The reader's n-th read finds that the file has grown meanwhile, to the end of its segment, by a writer who has not
 * finished or has. */
static struct {
    durable_rig *writer;
    uint64_t n_reads, at;
    bool finishes;
} meanwhile;

static int64_t read_meanwhile(sl_file *file, void *buf, size_t bytes, uint64_t off)
{
    durable_rig *b = meanwhile.writer;
    sl_err err;
    if (++meanwhile.n_reads == meanwhile.at) {
        durable_rig_open_file(b, b->path, true);
        durable_rig_open_kv(b, true);
        durable_rig_append(b, b->n_all - sl_kv_tokens(b->kv, 0));
        durable_rig_commit(b);
        if (meanwhile.finishes)
            durable_must(sl_kv_finish(b->kv, &err), &err);
        durable_rig_close(b);
    }
    return sl_vfs_system()->pread(file, buf, bytes, off);
}

static void growing_file_is_not_called_damaged(void **unused)
{
    (void)unused;
    static durable_rig b;
    sl_err err;
    sl_vfs vfs = *sl_vfs_system();
    vfs.pread = read_meanwhile;
    durable_rig_start(&b, durable_seed() + 21000, SL_SEGMENT_TOKENS);
    for (int finishes = 0; finishes < 2; finishes++) {
        meanwhile.writer = &b;
        meanwhile.finishes = finishes;
        meanwhile.n_reads = UINT64_MAX / 2;
        for (meanwhile.at = 1; meanwhile.n_reads >= meanwhile.at; meanwhile.at++) {
            b.n_all = 4000;
            durable_rig_build(&b, b.path);
            b.n_all = SL_SEGMENT_TOKENS;
            meanwhile.n_reads = 0;
            const sl_durable_options options = {.vfs = &vfs, .path = b.path, .max_tokens = b.n_all,
                                                .budget = &b.budget};
            sl_durable *reader = NULL;
            durable_must(sl_durable_open(&options, &reader, &err), &err);
            uint64_t n = sl_durable_get(reader).n_tokens;
            assert_true(n == 4000 || n == SL_SEGMENT_TOKENS);
            assert_memory_equal(sl_durable_ids(reader), b.ids, n * sizeof *b.ids);
            sl_durable_close(reader);
            unlink(b.path);
        }
    }
    durable_rig_stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_off_is_seen),
        cmocka_unit_test(ids_are_of_the_vocabulary),
        cmocka_unit_test(odd_sizes),
        cmocka_unit_test(one_copy_is_enough),
        cmocka_unit_test(foreign_end_is_refused),
        cmocka_unit_test(growing_file_is_not_called_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
