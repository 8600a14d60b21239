/* The disk probe on devices of known behaviour, its limits, and the note that it leaves. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/fault_vfs.h"
#include "platform/os.h"
#include "store/ioprobe.h"

enum { MIB = 1 << 20, MAX_STREAMS = 16 };

static const char *scratch_dir(void)
{
    const char *dir = getenv("SLUICE_TEST_DIR");
    return dir ? dir : "/var/tmp";
}

/* -------------------------------------------------------------------------------------- a device of known behaviour */

/* Serves n_streams transfers at once, each at its own rate: all it can do needs n_streams reads in flight. */
typedef struct device {
    sl_vfs vfs;
    size_t n_streams;
    double stream_rate;
    double free_at[MAX_STREAMS];
    pthread_mutex_t lock;
    int fail_read_after; /* reads from now on until one fails; 0: never */
    double slow_from_s;  /* a tenth of the rate from this time on; 0: never */
    size_t longest_read;
} device;

struct sl_file {
    device *owner;
    sl_file *inner;
};

static void sleep_until(double when)
{
    double left = when - sl_os_seconds();
    if (left <= 0.0)
        return;
    struct timespec pause = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
    nanosleep(&pause, NULL);
}

static void serve(device *d, size_t bytes)
{
    pthread_mutex_lock(&d->lock);
    size_t first = 0;
    for (size_t i = 1; i < d->n_streams; i++)
        if (d->free_at[i] < d->free_at[first])
            first = i;
    double now = sl_os_seconds(), start = d->free_at[first] > now ? d->free_at[first] : now;
    double rate = d->slow_from_s > 0.0 && now > d->slow_from_s ? d->stream_rate / 10.0 : d->stream_rate;
    double end = d->free_at[first] = start + (double)bytes / rate;
    pthread_mutex_unlock(&d->lock);
    sleep_until(end);
}

static sl_status device_open(const sl_vfs *vfs, const char *dir, bool direct, bool allow_ram, sl_file **out,
                             bool *is_direct, sl_err *err)
{
    sl_file *file = calloc(1, sizeof *file);
    assert_non_null(file);
    file->owner = vfs->state;
    const sl_vfs *inner = sl_vfs_system();
    sl_status status = inner->open_temp(inner, dir, direct, allow_ram, &file->inner, is_direct, err);
    assert_int_equal(SL_OK, status);
    *out = file;
    return SL_OK;
}

static void device_close(sl_file *file)
{
    sl_vfs_system()->close(file->inner);
    free(file);
}

/* Small transfers are the real file's: the probe of direct I/O looks at what comes back. */
static int64_t device_pread(sl_file *file, void *buf, size_t bytes, uint64_t off)
{
    device *d = file->owner;
    if (bytes <= SL_SECTOR_BYTES)
        return sl_vfs_system()->pread(file->inner, buf, bytes, off);
    pthread_mutex_lock(&d->lock);
    d->longest_read = bytes > d->longest_read ? bytes : d->longest_read;
    bool fails = d->fail_read_after > 0 && --d->fail_read_after == 0;
    pthread_mutex_unlock(&d->lock);
    if (fails)
        return -EIO;
    serve(d, bytes);
    return (int64_t)bytes;
}

static int64_t device_pwrite(sl_file *file, const void *buf, size_t bytes, uint64_t off)
{
    if (bytes <= SL_SECTOR_BYTES)
        return sl_vfs_system()->pwrite(file->inner, buf, bytes, off);
    return (int64_t)bytes;
}

static int device_set_direct(sl_file *file, bool direct)
{
    return sl_vfs_system()->set_direct(file->inner, direct);
}

static int device_reserve(sl_file *file, uint64_t off, uint64_t bytes)
{
    (void)file;
    (void)off;
    (void)bytes;
    return 0;
}

static int device_drop_cached(sl_file *file, uint64_t off, uint64_t bytes)
{
    return sl_vfs_system()->drop_cached(file->inner, off, bytes);
}

static int64_t device_cached_bytes(sl_file *file)
{
    (void)file;
    return 0;
}

static void device_init(device *d, size_t n_streams, double stream_rate)
{
    memset(d, 0, sizeof *d);
    d->n_streams = n_streams;
    d->stream_rate = stream_rate;
    pthread_mutex_init(&d->lock, NULL);
    d->vfs = (sl_vfs){
        .open_temp = device_open,
        .close = device_close,
        .pread = device_pread,
        .pwrite = device_pwrite,
        .set_direct = device_set_direct,
        .reserve = device_reserve,
        .drop_cached = device_drop_cached,
        .cached_bytes = device_cached_bytes,
        .state = d,
    };
}

static sl_ioprobe_options options_for(const sl_vfs *vfs, sl_budget *budget)
{
    return (sl_ioprobe_options){
        .vfs = vfs, .dir = scratch_dir(), .seconds = 2.0, .engine = SL_IO_ENGINE_POOL, .budget = budget};
}

static sl_io_profile profile_of(device *d)
{
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    const sl_ioprobe_options options = options_for(&d->vfs, &budget);
    sl_io_profile profile;
    sl_err err = {SL_OK, ""};
    if (sl_ioprobe_run(&options, &profile, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_int_equal(0, (int)budget.used_bytes);
    assert_true(budget.peak_bytes <= 72 * (uint64_t)MIB); /* 64 of buffers, the threads beside them */
    sl_budget_deinit(&budget);
    return profile;
}

/* Sixteen streams: 4 MiB in reads of 256 KiB keep them all busy, 1 MiB only a quarter. Twice as much is no better; a
 * machine that others use may be taken in by one rung. */
/* The device's time is real: where other programs took the processors meanwhile, the probe was not steady or saw more
 * depth than there is to gain, and is asked again. */
static sl_io_profile steady_profile_of(device *d, size_t most_in_flight)
{
    enum { TRIES = 5 };
    sl_io_profile profile = profile_of(d);
    for (int i = 1; i < TRIES && (!profile.is_steady || profile.in_flight_bytes > most_in_flight); i++)
        profile = profile_of(d);
    if (!profile.is_steady) {
        print_message("this machine is too busy for a device whose time is real\n");
        skip();
    }
    return profile;
}

static void a_device_with_many_streams_wants_depth(void **unused)
{
    (void)unused;
    device d;
    device_init(&d, 16, 16e6);
    sl_io_profile profile = steady_profile_of(&d, 8 * MIB);
    assert_in_range(profile.in_flight_bytes, 4 * MIB, 8 * MIB);
    assert_int_equal(256 << 10, profile.read_bytes);
    assert_true(profile.read_rate > 0.75 * 256e6 && profile.read_rate < 1.05 * 256e6);
    assert_true(profile.write_rate > 0.0 && profile.is_steady);
    assert_int_equal(4 * MIB, d.longest_read); /* the whole ladder was tried */
}

static void a_device_with_one_stream_wants_little(void **unused)
{
    (void)unused;
    device d;
    device_init(&d, 1, 300e6);
    sl_io_profile profile = steady_profile_of(&d, 4 * MIB);
    assert_in_range(profile.in_flight_bytes, MIB, 4 * MIB);
    assert_true(profile.read_rate > 0.75 * 300e6 && profile.read_rate < 1.05 * 300e6);
}

/* Somebody else begins to use the disk half-way: what the sweep saw does not come again. */
static void a_busy_device_gets_the_defaults(void **unused)
{
    (void)unused;
    device d;
    device_init(&d, 2, 150e6);
    d.slow_from_s = sl_os_seconds() + 2.0 * 0.55;
    sl_io_profile profile = profile_of(&d);
    assert_false(profile.is_steady);
    assert_int_equal(MIB, profile.read_bytes);
    assert_int_equal(32 * MIB, profile.in_flight_bytes);
    assert_true(profile.read_rate > 0.7 * 300e6);
}

/* ------------------------------------------------------------------------------------------------------- the limits */

static void less_memory_means_fewer_ways(void **unused)
{
    (void)unused;
    device d;
    device_init(&d, 16, 64e6);
    sl_budget budget;
    sl_budget_init(&budget, 14 * MIB); /* 8 MiB and the threads; 16 would not fit */
    sl_ioprobe_options options = options_for(&d.vfs, &budget);
    options.seconds = 0.2;
    sl_io_profile profile;
    assert_int_equal(SL_OK, sl_ioprobe_run(&options, &profile, NULL));
    assert_true(profile.in_flight_bytes <= 8 * MIB);
    assert_int_equal(0, (int)budget.used_bytes);
    budget.limit_bytes = UINT64_MAX;
    options.memory_bytes = MIB;
    assert_int_equal(SL_OK, sl_ioprobe_run(&options, &profile, NULL));
    assert_int_equal(MIB, profile.in_flight_bytes);
    budget.limit_bytes = MIB / 2;
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_REFUSED, sl_ioprobe_run(&options, &profile, &err));
    assert_non_null(strstr(err.text, "memory"));
    assert_int_equal(0, (int)budget.used_bytes);
    sl_budget_deinit(&budget);
}

static bool stop_soon(void *arg)
{
    int *left = arg;
    return --*left < 0;
}

static void it_stops_when_asked(void **unused)
{
    (void)unused;
    device d;
    device_init(&d, 4, 64e6);
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    sl_ioprobe_options options = options_for(&d.vfs, &budget);
    const int asked[] = {0, 3, 100}; /* before writing, while writing, while reading */
    for (int i = 0; i < 3; i++) {
        int left = asked[i];
        options.stop = stop_soon;
        options.arg = &left;
        sl_io_profile profile;
        sl_err err = {SL_OK, ""};
        double start = sl_os_seconds();
        assert_int_equal(SL_CANCELLED, sl_ioprobe_run(&options, &profile, &err));
        assert_true(sl_os_seconds() - start < 3.0);
        assert_int_equal(0, (int)budget.used_bytes);
    }
    sl_budget_deinit(&budget);
}

static void a_failing_disk_is_named(void **unused)
{
    (void)unused;
    device d;
    device_init(&d, 4, 256e6);
    d.fail_read_after = 20;
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    sl_ioprobe_options options = options_for(&d.vfs, &budget);
    sl_io_profile profile;
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_FAILED, sl_ioprobe_run(&options, &profile, &err));
    assert_non_null(strstr(err.text, scratch_dir()));
    assert_non_null(strstr(err.text, strerror(EIO)));
    options.vfs = NULL;
    options.dir = "/nowhere/at/all";
    assert_int_equal(SL_FAILED, sl_ioprobe_run(&options, &profile, &err));
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
    assert_int_equal(0, (int)budget.used_bytes);
    sl_budget_deinit(&budget);
}

/* Every write that there is on the slowest disk fails once: the error is named and nothing is left open. */
static void a_full_disk_leaves_nothing(void **unused)
{
    (void)unused;
    for (uint64_t n = 1; n <= 5; n++) {
        fault_vfs fault;
        fault_vfs_init(&fault, FAULT_WRITE, ENOSPC, n);
        sl_budget budget;
        sl_budget_init(&budget, UINT64_MAX);
        sl_ioprobe_options options = options_for(&fault.vfs, &budget);
        options.seconds = 0.1;
        options.file_bytes = 32 * MIB;
        sl_io_profile profile;
        sl_err err = {SL_OK, ""};
        assert_int_equal(SL_FAILED, sl_ioprobe_run(&options, &profile, &err));
        assert_non_null(strstr(err.text, strerror(ENOSPC)));
        assert_int_equal(0, atomic_load(&fault.n_open));
        assert_int_equal(0, (int)budget.used_bytes);
        sl_budget_deinit(&budget);
    }
}

static void the_real_disk(void **unused)
{
    (void)unused;
    sl_budget budget;
    sl_budget_init(&budget, UINT64_MAX);
    sl_ioprobe_options options = options_for(NULL, &budget);
    options.engine = SL_IO_ENGINE_AUTO;
    options.seconds = 0.3;
    options.allow_ram_dir = true;
    options.file_bytes = 16 * MIB;
    sl_io_profile profile;
    sl_err err = {SL_OK, ""};
    if (sl_ioprobe_run(&options, &profile, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_true(profile.read_rate > 1e6 && profile.write_rate > 1e6);
    assert_true(profile.read_bytes <= profile.in_flight_bytes);
    sl_budget_deinit(&budget);
}

/* --------------------------------------------------------------------------------------------------------- the note */

static char notes[300];

static int make_notes(void **unused)
{
    (void)unused;
    snprintf(notes, sizeof notes, "%s/sluice-notes-XXXXXX", scratch_dir());
    return mkdtemp(notes) ? 0 : -1;
}

static int remove_notes(void **unused)
{
    (void)unused;
    char command[400];
    snprintf(command, sizeof command, "rm -rf '%s'", notes);
    return system(command);
}

static void note_path(char *out, size_t capacity)
{
    char name[SL_OS_DEVICE_NAME_BYTES];
    assert_true(sl_os_device_name(scratch_dir(), name));
    snprintf(out, capacity, "%s/io-%s.txt", notes, name);
}

static void write_note(const char *text)
{
    char path[500];
    note_path(path, sizeof path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static const sl_io_profile kept = {1 * MIB, 16 * MIB, 2.5e9, 1.25e9, true, true};

static void a_note_comes_back_as_it_was(void **unused)
{
    (void)unused;
    sl_io_profile found;
    sl_err err = {SL_OK, ""};
    assert_false(sl_ioprobe_find(notes, scratch_dir(), &found));
    if (sl_ioprobe_save(notes, scratch_dir(), &kept, &err) != SL_OK)
        fail_msg("%s", err.text);
    assert_true(sl_ioprobe_find(notes, scratch_dir(), &found));
    assert_int_equal(kept.read_bytes, found.read_bytes);
    assert_int_equal(kept.in_flight_bytes, found.in_flight_bytes);
    assert_true(kept.read_rate == found.read_rate && kept.write_rate == found.write_rate && found.is_direct);
    sl_io_profile other = kept; /* the newest counts */
    other.read_bytes = 4 * MIB;
    other.is_direct = false;
    assert_int_equal(SL_OK, sl_ioprobe_save(notes, scratch_dir(), &other, NULL));
    assert_true(sl_ioprobe_find(notes, scratch_dir(), &found));
    assert_int_equal(4 * MIB, found.read_bytes);
    assert_false(found.is_direct);
    assert_false(sl_ioprobe_find(notes, "/nowhere/at/all", &found));
}

static void a_note_that_is_not_right_is_none(void **unused)
{
    (void)unused;
    static const char good[] = "sluice-io=1\nread_bytes=1048576\nin_flight_bytes=16777216\nread_rate=2500000000\n"
                               "write_rate=1250000000\nis_direct=1\n";
    sl_io_profile found;
    assert_int_equal(SL_OK, sl_ioprobe_save(notes, scratch_dir(), &kept, NULL));
    write_note(good);
    assert_true(sl_ioprobe_find(notes, scratch_dir(), &found));
    for (size_t cut = 0; cut + 1 < sizeof good; cut++) { /* every way to be cut short */
        char text[sizeof good];
        snprintf(text, sizeof text, "%.*s", (int)cut, good);
        write_note(text);
        assert_false(sl_ioprobe_find(notes, scratch_dir(), &found));
    }
    static const struct {
        const char *from, *to;
    } changes[] = {
        {"io=1", "io=2"},           {"read_bytes=1048576", "read_bytes=1000"}, {"read_bytes=1048576", "read_bytes=0"},
        {"=16777216", "=524288"},   {"=16777216", "=99999999999999999999"},    {"=16777216", "=1073741824"},
        {"=2500000000", "=0"},      {"=2500000000", "=-5"},                    {"=2500000000", "=nan"},
        {"=1250000000", "=0"},      {"is_direct=1", "is_direct=2"},            {"write_rate", "writerate"},
        {"is_direct=1\n", "is_direct=1\nmore=1\n"}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char text[2 * sizeof good];
        const char *at = strstr(good, changes[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, changes[i].to, at + strlen(changes[i].from));
        write_note(text);
        if (sl_ioprobe_find(notes, scratch_dir(), &found))
            fail_msg("taken with %s", changes[i].to);
    }
    char large[4096];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    write_note(large);
    assert_false(sl_ioprobe_find(notes, scratch_dir(), &found));
}

static void a_folder_that_cannot_be_written_is_told(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    char file[400], below[500];
    snprintf(file, sizeof file, "%s/plain", notes);
    snprintf(below, sizeof below, "%s/deeper", file);
    FILE *plain = fopen(file, "w");
    assert_non_null(plain);
    fclose(plain);
    assert_int_equal(SL_FAILED, sl_ioprobe_save(below, scratch_dir(), &kept, &err)); /* below a file */
    assert_non_null(strstr(err.text, "plain"));
    assert_int_equal(SL_FAILED, sl_ioprobe_save("relative", scratch_dir(), &kept, &err));
    assert_int_equal(SL_FAILED, sl_ioprobe_save(NULL, scratch_dir(), &kept, &err));
    sl_io_profile found;
    assert_false(sl_ioprobe_find(NULL, scratch_dir(), &found));
    assert_false(sl_ioprobe_find(below, scratch_dir(), &found));
    struct stat info;
    snprintf(below, sizeof below, "%s/.cache/sluice", notes); /* made, for the user alone */
    assert_int_equal(SL_OK, sl_ioprobe_save(below, scratch_dir(), &kept, &err));
    assert_int_equal(0, stat(below, &info));
    assert_int_equal(0700, info.st_mode & 0777);
    assert_true(sl_ioprobe_find(below, scratch_dir(), &found));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_with_many_streams_wants_depth),
        cmocka_unit_test(a_device_with_one_stream_wants_little),
        cmocka_unit_test(a_busy_device_gets_the_defaults),
        cmocka_unit_test(less_memory_means_fewer_ways),
        cmocka_unit_test(it_stops_when_asked),
        cmocka_unit_test(a_failing_disk_is_named),
        cmocka_unit_test(a_full_disk_leaves_nothing),
        cmocka_unit_test(the_real_disk),
        cmocka_unit_test_setup_teardown(a_note_comes_back_as_it_was, make_notes, remove_notes),
        cmocka_unit_test_setup_teardown(a_note_that_is_not_right_is_none, make_notes, remove_notes),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_written_is_told, make_notes, remove_notes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
