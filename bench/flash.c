/* The ways to read one file, side by side: this program's reader against what others do, and against fio's best. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "bench/cache.h"
#include "bench/rawfile.h"
#include "platform/os.h"

enum { MAX_ROUNDS = 32, DEFAULT_ROUNDS = 5, BUFFER_BYTES = 4 << 20, PAGE_BYTES = 4096, N_BEST = 3,
       SMALL_BYTES = 64 << 20 };

/* In the order of the rows. */
typedef enum reader { OURS, PREAD_DIRECT, ONE_BUFFER, BUFFERED, MAPPED, FIO } reader;

typedef struct fio_way {
    int depth;
    const char *block;
    bool fixed; /* registered buffers */
    bool big;   /* its buffers may lie in big pages, as ours do */
    double rate;
} fio_way;

typedef struct flash {
    bench_machine *m;
    bench_cache cache;
    uint64_t bytes; /* of whole segments: blocks of this shape need no padding */
    bench_rawfile direct, buffered;
    uint8_t *buffer;
    uint64_t sum; /* so that no read can be left out */
    fio_way best[N_BEST]; /* falling; rate 0: none */
    size_t n_ways;        /* tried */
    double rates[SL_BENCH_READERS][MAX_ROUNDS];
    sl_bench_reader *out;
} flash;

/* -------------------------------------------------------------------------------------------------------------- fio */

/* Terse output, version 3: the sixth field is KiB read, the ninth milliseconds
 * (https://fio.readthedocs.io, "Terse output"). */
static bool rate_of(const char *terse, double *rate)
{
    double fields[9] = {0};
    for (int i = 0; i < 9; i++) {
        fields[i] = strtod(terse, NULL);
        terse = strchr(terse, ';');
        if (!terse)
            return false;
        terse++;
    }
    *rate = fields[8] > 0 ? fields[5] * 1024 / (fields[8] * 1e-3) : 0;
    return *rate > 0;
}

/* sweep_ms 0: the whole file once. */
static sl_status run_fio(const flash *f, const fio_way *way, int sweep_ms, double *rate, sl_err *err)
{
    char path[64], file[96], size[48], depth[32], block[32], fixed[32], runtime[48], text[8192] = "";
    bench_rawfile_path(&f->direct, path, sizeof path);
    snprintf(file, sizeof file, "--filename=%s", path);
    snprintf(size, sizeof size, "--size=%llu", (unsigned long long)f->bytes);
    snprintf(depth, sizeof depth, "--iodepth=%d", way->depth);
    snprintf(block, sizeof block, "--bs=%s", way->block);
    snprintf(fixed, sizeof fixed, "--fixedbufs=%d", way->fixed);
    snprintf(runtime, sizeof runtime, "--runtime=%dms", sweep_ms ? sweep_ms : 3600000);
    /* glibc's malloc, where fio takes its buffers from, asks for big pages when told so; another C library ignores it.
     * The engine first: fixedbufs is an option of its own. */
    char *const argv[] = {"env", way->big ? "GLIBC_TUNABLES=glibc.malloc.hugetlb=1" : "GLIBC_TUNABLES=", "fio",
                          "--name=sluice", "--ioengine=io_uring", file, size, depth, block, fixed, runtime,
                          "--readonly", "--rw=read", "--direct=1", "--output-format=terse", "--terse-version=3",
                          sweep_ms ? "--time_based" : NULL, NULL};
    sl_status status = bench_run_program(argv, text, sizeof text, err);
    if (status == SL_OK && !rate_of(text, rate))
        status = sl_err_set(err, SL_FAILED, "fio's output is not understood");
    return status;
}

static void keep_best(flash *f, fio_way way)
{
    for (size_t i = 0; i < N_BEST; i++)
        if (way.rate > f->best[i].rate) {
            fio_way worse = f->best[i];
            f->best[i] = way;
            way = worse;
        }
}

static bool has_fio(sl_err *err)
{
    char version[64];
    char *const argv[] = {"fio", "--version", NULL};
    return bench_run_program(argv, version, sizeof version, err) == SL_OK;
}

/* A second of each: depths and block sizes, plain and registered buffers (which an ordinary user may be refused), small
 * and big pages. The best few join the rounds: a second says little on a busy machine. Of a file that is read in less
 * time than fio starts in, a few ways for a moment. */
static sl_status sweep_fio(flash *f, sl_err *err)
{
    static const struct {
        int depth;
        const char *block;
    } shapes[] = {{1, "4m"}, {8, "4m"}, {32, "1m"}, {64, "256k"}, {64, "1m"}, {32, "4m"}};
    enum { N_WAYS = 4 * sizeof shapes / sizeof shapes[0] };
    if (!has_fio(err))
        return SL_REFUSED;
    sl_status status = SL_OK;
    bool is_small = f->bytes < SMALL_BYTES;
    for (int i = 0; i < N_WAYS; i += is_small ? 7 : 1) {
        fio_way way = {shapes[i / 4].depth, shapes[i / 4].block, i % 2 != 0, i / 2 % 2 != 0, 0};
        bench_progress(f->m, "sweeping fio", "runs", (uint64_t)i, N_WAYS);
        if (bench_stop(f->m))
            return bench_cancelled(err);
        status = run_fio(f, &way, is_small ? 50 : 1000, &way.rate, err);
        if (status == SL_OK) {
            keep_best(f, way);
            f->n_ways++;
        }
    }
    return f->n_ways > 0 ? SL_OK : status;
}

/* Each of the best few reads the whole file, turn by turn; the one with the best median stands for fio from here on. A
 * round that took the fastest of several runs would compare our one run with their luckiest. */
static sl_status choose_fio(flash *f, sl_err *err)
{
    enum { TURNS = 3 };
    double rates[N_BEST][TURNS];
    sl_status status = SL_OK;
    size_t n = 0;
    while (n < N_BEST && f->best[n].rate > 0)
        n++;
    if (f->bytes < SMALL_BYTES)
        return SL_OK;
    for (size_t turn = 0; status == SL_OK && turn < TURNS; turn++)
        for (size_t i = 0; status == SL_OK && i < n; i++) {
            bench_progress(f->m, "choosing fio's way", "runs", turn * n + i, n * TURNS);
            status = bench_stop(f->m) ? bench_cancelled(err) : run_fio(f, &f->best[i], 0, &rates[i][turn], err);
        }
    for (size_t i = 0; status == SL_OK && i < n; i++)
        f->best[i].rate = sl_bench_spread_of(rates[i], TURNS).median;
    for (size_t i = 1; status == SL_OK && i < n; i++)
        if (f->best[i].rate > f->best[0].rate)
            f->best[0] = f->best[i];
    return status;
}

/* ------------------------------------------------------------------------------------------------------- the others */

/* One call after another into one buffer; hashed between two calls where a user of the bytes would have to. */
static sl_status read_one_buffer(flash *f, const bench_rawfile *file, bool hashed, sl_err *err)
{
    for (uint64_t off = 0; off < f->bytes;) {
        uint64_t left = f->bytes - off;
        size_t want = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES, moved = 0;
        sl_status status = bench_stop(f->m) ? bench_cancelled(err)
                                            : bench_rawfile_read(file, f->buffer, want, off, &moved, err);
        if (status == SL_OK && moved == 0)
            status = sl_err_set(err, SL_FAILED, "the file ends at %llu", (unsigned long long)off);
        if (status != SL_OK)
            return status;
        f->sum += hashed ? sl_hash(f->buffer, moved) : f->buffer[0];
        off += moved;
    }
    return SL_OK;
}

static sl_status read_mapped(flash *f, sl_err *err)
{
    const uint8_t *map = NULL;
    sl_status status = bench_rawfile_map(&f->buffered, &map, err);
    for (uint64_t off = 0; status == SL_OK && off < f->bytes; off += PAGE_BYTES) {
        f->sum += map[off];
        if (off % (64 << 20) == 0 && bench_stop(f->m))
            status = bench_cancelled(err);
    }
    return status;
}

static sl_status read_once(flash *f, reader which, double *rate, sl_err *err)
{
    bench_pass pass = {0};
    sl_status status = SL_OK;
    if (which == BUFFERED || which == MAPPED)
        status = bench_rawfile_forget(&f->buffered, err);
    double start = sl_os_seconds();
    if (status == SL_OK && which == OURS)
        status = bench_cache_read(&f->cache, &pass, err);
    if (status == SL_OK && which == OURS && pass.bytes_read != f->bytes)
        status = sl_err_set(err, SL_FAILED, "the pass read %llu of %llu bytes", (unsigned long long)pass.bytes_read,
                            (unsigned long long)f->bytes);
    if (status == SL_OK && (which == PREAD_DIRECT || which == ONE_BUFFER))
        status = read_one_buffer(f, &f->direct, which == ONE_BUFFER, err);
    if (status == SL_OK && which == BUFFERED)
        status = read_one_buffer(f, &f->buffered, false, err);
    if (status == SL_OK && which == MAPPED)
        status = read_mapped(f, err);
    *rate = (double)f->bytes / (sl_os_seconds() - start);
    if (status == SL_OK && which == FIO)
        status = run_fio(f, &f->best[0], 0, rate, err);
    if (which == BUFFERED || which == MAPPED)
        status = status == SL_OK ? bench_rawfile_forget(&f->buffered, err) : status;
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- rounds */

static void name_rows(flash *f)
{
    static const char *const names[SL_BENCH_READERS] = {
        [OURS] = "sluice",         [PREAD_DIRECT] = "pread, direct", [ONE_BUFFER] = "pread, direct, hashed",
        [BUFFERED] = "read, cold", [MAPPED] = "mmap, cold",          [FIO] = "fio",
    };
    for (int i = 0; i < SL_BENCH_READERS; i++)
        f->out[i] = (sl_bench_reader){.name = names[i]};
}

/* Which rows can be measured here; the others say why not. */
static sl_status prepare(flash *f, bool can[SL_BENCH_READERS], sl_err *err)
{
    sl_err why = {SL_OK, ""};
    can[OURS] = true;
    can[PREAD_DIRECT] = can[ONE_BUFFER] = bench_rawfile_open_unnamed(f->bytes, true, &f->direct, &why) == SL_OK;
    if (!can[PREAD_DIRECT]) {
        snprintf(f->out[PREAD_DIRECT].text, sizeof f->out[PREAD_DIRECT].text, "%.180s", why.text);
        snprintf(f->out[ONE_BUFFER].text, sizeof f->out[ONE_BUFFER].text, "%.180s", why.text);
    }
    can[BUFFERED] = can[MAPPED] = bench_rawfile_open_unnamed(f->bytes, false, &f->buffered, &why) == SL_OK;
    if (!can[BUFFERED]) {
        snprintf(f->out[BUFFERED].text, sizeof f->out[BUFFERED].text, "%.180s", why.text);
        snprintf(f->out[MAPPED].text, sizeof f->out[MAPPED].text, "%.180s", why.text);
    }
    can[FIO] = can[PREAD_DIRECT];
    sl_status status = can[FIO] ? sweep_fio(f, &why) : SL_OK;
    if (can[FIO] && status == SL_OK)
        status = choose_fio(f, &why);
    if (status == SL_CANCELLED)
        return bench_cancelled(err);
    can[FIO] = can[FIO] && status == SL_OK;
    sl_bench_reader *fio = &f->out[FIO];
    if (can[FIO])
        snprintf(fio->text, sizeof fio->text,
                 "io_uring, the best of %zu ways: depth %d, blocks of %s%s%s",
                 f->n_ways, f->best[0].depth, f->best[0].block, f->best[0].fixed ? ", registered" : "",
                 f->best[0].big ? ", big pages" : "");
    else
        snprintf(fio->text, sizeof fio->text, "%.180s", status == SL_REFUSED ? "fio is not installed" : why.text);
    return SL_OK;
}

/* Ours and fio's one after the other, by turns the first. */
static sl_status run_round(flash *f, size_t round, size_t n, bool *can, sl_err *err)
{
    static const reader orders[2][SL_BENCH_READERS] = {
        {OURS, FIO, PREAD_DIRECT, ONE_BUFFER, BUFFERED, MAPPED},
        {FIO, OURS, MAPPED, BUFFERED, ONE_BUFFER, PREAD_DIRECT},
    };
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < SL_BENCH_READERS; i++) {
        reader which = orders[round % 2][i];
        sl_err why;
        bench_progress(f->m, "rounds", "readings", round * SL_BENCH_READERS + i, n * SL_BENCH_READERS);
        if (can[which])
            status = read_once(f, which, &f->rates[which][round], &why);
        if (which == FIO && status == SL_FAILED) { /* a rival that fails leaves the others' figures as they are */
            can[FIO] = false;
            snprintf(f->out[FIO].text, sizeof f->out[FIO].text, "%.180s", why.text);
            status = SL_OK;
        }
        if (status != SL_OK)
            status = sl_err_set(err, status, "%s", why.text);
    }
    return status;
}

static sl_status run_rounds(flash *f, sl_err *err)
{
    size_t n = f->m->options.n_repeats ? f->m->options.n_repeats : DEFAULT_ROUNDS;
    n = n < MAX_ROUNDS ? n : MAX_ROUNDS;
    bool can[SL_BENCH_READERS] = {false};
    sl_status status = prepare(f, can, err);
    for (size_t round = 0; status == SL_OK && round < n; round++)
        status = run_round(f, round, n, can, err);
    if (status != SL_OK)
        return status;
    for (int i = 0; i < SL_BENCH_READERS && can[FIO]; i++) {
        /* Round by round: what else the machine did fell on both. */
        double shares[MAX_ROUNDS];
        for (size_t round = 0; round < n; round++)
            shares[round] = f->rates[i][round] / f->rates[FIO][round];
        f->out[i].share = can[i] ? sl_bench_spread_of(shares, n).median : 0;
    }
    for (int i = 0; i < SL_BENCH_READERS; i++) /* last: it sorts */
        if (can[i])
            f->out[i].rate = sl_bench_spread_of(f->rates[i], n);
    return SL_OK;
}

static void describe(flash *f)
{
    sl_kv_stats stats;
    sl_kv_get_stats(f->cache.kv, &stats);
    snprintf(f->out[OURS].text, sizeof f->out[OURS].text, "%s, %s, reads of %zu KiB, %zu MiB in flight, checksummed",
             stats.io_mode, stats.io_engine ? stats.io_engine : "none", stats.read_bytes >> 10,
             stats.in_flight_bytes >> 20);
    if (!f->out[PREAD_DIRECT].text[0])
        snprintf(f->out[PREAD_DIRECT].text, sizeof f->out[PREAD_DIRECT].text, "one buffer of %d MiB",
                 BUFFER_BYTES >> 20);
    if (!f->out[ONE_BUFFER].text[0])
        snprintf(f->out[ONE_BUFFER].text, sizeof f->out[ONE_BUFFER].text, "the same, a checksum between two reads");
    if (!f->out[BUFFERED].text[0])
        snprintf(f->out[BUFFERED].text, sizeof f->out[BUFFERED].text, "through an empty page cache");
    if (!f->out[MAPPED].text[0])
        snprintf(f->out[MAPPED].text, sizeof f->out[MAPPED].text, "every page touched, advised sequential");
}

sl_status sl_bench_flash(const sl_bench_options *options, uint64_t file_bytes, sl_bench_reader *out, sl_err *err)
{
    bench_machine m;
    flash f = {.m = &m, .out = out};
    f.direct.fd = f.buffered.fd = -1;
    name_rows(&f);
    sl_status status = bench_machine_init(&m, options, true, err);
    uint64_t segment = status == SL_OK ? sl_geom_segment_bytes(&m.geom) : 1;
    uint64_t segments = (file_bytes + segment - 1) / segment;
    if (status == SL_OK)
        status = bench_cache_init(&f.cache, &m, segments * SL_SEGMENT_TOKENS, 0, 0, err);
    if (status == SL_OK)
        status = bench_cache_fill(&f.cache, err);
    f.bytes = segments * segment;
    if (status == SL_OK)
        status = sl_mem_map(&m.budget, BUFFER_BYTES, "buffer", &f.buffer, err);
    if (status == SL_OK)
        status = run_rounds(&f, err);
    if (status == SL_OK)
        describe(&f);
    bench_rawfile_close(&f.direct);
    bench_rawfile_close(&f.buffered);
    sl_mem_unmap(&m.budget, f.buffer, BUFFER_BYTES);
    bench_cache_deinit(&f.cache);
    return bench_machine_deinit(&m, status, err);
}
