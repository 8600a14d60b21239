#include "store/ioprobe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/os.h"

enum {
    MIB = 1 << 20,
    WRITE_BYTES = 4 * MIB, /* of one write; the file is a multiple */
    MIN_FILE_BYTES = 16 * MIB,
    FREE_SHARE = 4,   /* the file takes one part in so many of what the disk has left */
    MAX_DEPTH = 128,  /* reads in flight: as many as the stream ever has */
    DEFAULT_READ_BYTES = MIB, /* where the disk cannot be known */
    DEFAULT_FLIGHT_BYTES = 32 * MIB,
    SLACK = 256 << 10 /* of the budget: alignment, the queue's small change */
};

/* Of the time: writing, one sweep over all ways, the better ones again. */
static const double write_share = 0.3, sweep_share = 0.4, again_share = 0.3;

static const size_t read_sizes[] = {256 << 10, MIB, 4 * MIB};
static const size_t flight_sizes[] = {MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB};

enum { N_READS = 3, N_FLIGHTS = 6, MAX_WAYS = N_READS * N_FLIGHTS, MAX_ROUNDS = 3, MAX_AGAIN = 6 };

/* One way to read. */
typedef struct way {
    size_t read_bytes, in_flight_bytes;
    double rates[MAX_ROUNDS]; /* bytes a second, measured so far */
    size_t n_rates;
} way;

typedef struct probe {
    const sl_ioprobe_options *options;
    const sl_vfs *vfs;
    sl_file *file;
    sl_queue *queue;
    uint8_t *memory;
    size_t memory_bytes;
    uint64_t file_bytes; /* written */
    uint64_t next_off;   /* of the next read: ways follow one another through the file, so that none reads what the
                          * one before has just fetched */
    double seconds;      /* of the whole, about */
    double start_s;
    bool is_direct;
    way ways[MAX_WAYS];
    size_t n_ways;
} probe;

static bool is_stopped(const probe *p)
{
    return p->options->stop && p->options->stop(p->options->arg);
}

/* --------------------------------------------------------------------------------------------------------- the file */

/* The largest rung of the ladder that the caller and the budget allow. */
static size_t choose_memory(const probe *p)
{
    size_t most = p->options->memory_bytes ? p->options->memory_bytes : flight_sizes[N_FLIGHTS - 1];
    uint64_t left = sl_budget_left(p->options->budget);
    for (size_t i = N_FLIGHTS - 1; i > 0; i--) {
        uint64_t need = flight_sizes[i] + sl_queue_bytes(MAX_DEPTH) + SLACK;
        if (flight_sizes[i] <= most && need <= left)
            return flight_sizes[i];
    }
    return flight_sizes[0];
}

static sl_status choose_file(probe *p, sl_err *err)
{
    uint64_t most = 0, wanted = p->options->file_bytes ? p->options->file_bytes : (uint64_t)256 * MIB;
    sl_status status = sl_os_disk_free(p->options->dir, &most, err);
    if (status != SL_OK)
        return status;
    uint64_t bytes = wanted < most / FREE_SHARE ? wanted : most / FREE_SHARE;
    p->file_bytes = bytes / WRITE_BYTES * WRITE_BYTES;
    if (p->file_bytes >= MIN_FILE_BYTES)
        return SL_OK;
    return sl_err_set(err, SL_REFUSED,
                      "%s: measuring the disk takes a file of %d bytes or more, at most a quarter of the %" PRIu64
                      " that are free",
                      p->options->dir, MIN_FILE_BYTES, most);
}

static sl_status open_file(probe *p, sl_err *err)
{
    const sl_ioprobe_options *o = p->options;
    bool opened_direct = false;
    sl_status status = p->vfs->open_temp(p->vfs, o->dir, true, o->allow_ram_dir, &p->file, &opened_direct, err);
    if (status == SL_OK && opened_direct)
        status = sl_vfs_probe_direct(p->vfs, p->file, o->dir, p->memory, 0, &p->is_direct, err);
    if (status != SL_OK)
        return status;
    int reserved = p->vfs->reserve(p->file, 0, p->file_bytes);
    if (reserved == -ENOSPC)
        return sl_err_set_errno(err, SL_REFUSED, ENOSPC, "%s: no room for a file of %" PRIu64 " bytes", o->dir,
                                p->file_bytes);
    return SL_OK;
}

/* Bytes that neither compress nor repeat: some disks store less of others, and read them faster. */
static void fill(uint8_t *memory, size_t bytes)
{
    uint64_t x = UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < bytes; i += sizeof x) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(memory + i, &x, sizeof x);
    }
}

/* Writes until the file is full or its share of the time is used; what was written is the file. */
static sl_status write_file(probe *p, double *rate, sl_err *err)
{
    size_t step = p->memory_bytes < WRITE_BYTES ? p->memory_bytes : WRITE_BYTES;
    fill(p->memory, step);
    double start = sl_os_seconds(), spent = 0.0;
    uint64_t off = 0;
    while (off < p->file_bytes &&
           (off < MIN_FILE_BYTES || off % WRITE_BYTES != 0 || spent < p->seconds * write_share)) {
        if (is_stopped(p))
            return sl_err_set(err, SL_CANCELLED, "cancelled while measuring the disk");
        for (size_t at = 0; at < step; at += SL_SECTOR_BYTES) {
            uint64_t mark = off + at;
            memcpy(p->memory + at, &mark, sizeof mark);
        }
        sl_status status = sl_vfs_write(p->vfs, p->file, p->options->dir, p->memory, step, off, err);
        if (status != SL_OK)
            return status;
        off += step;
        if (!p->is_direct)
            (void)p->vfs->drop_cached(p->file, off - step, step);
        spent = sl_os_seconds() - start;
    }
    p->file_bytes = off;
    *rate = spent > 0.0 ? (double)off / spent : 0.0;
    return SL_OK;
}

/* -------------------------------------------------------------------------------------------------------- measuring */

/* A stretch of reading under way: as many reads in flight as the way says, until the time is over. */
typedef struct stretch {
    const way *w;
    double start_s, end_s; /* of the last read that is counted */
    uint64_t done_bytes;
    size_t n_flying;
} stretch;

static void start_read(probe *p, stretch *s, uint64_t place)
{
    size_t bytes = s->w->read_bytes;
    if (p->next_off + bytes > p->file_bytes)
        p->next_off = 0;
    const sl_read read = {p->memory + (size_t)place * bytes, bytes, p->next_off, place};
    p->next_off += bytes;
    sl_queue_add(p->queue, &read, 1);
    s->n_flying++;
}

/* Takes one finished read, if one ends in time. */
static sl_status finish_read(probe *p, stretch *s, double timeout_s, uint64_t *place, bool *found, sl_err *err)
{
    sl_status status = SL_OK;
    *found = sl_queue_wait(p->queue, timeout_s, place, &status, err);
    if (!*found)
        return SL_OK;
    s->n_flying--;
    if (status != SL_OK)
        return status;
    s->done_bytes += s->w->read_bytes;
    s->end_s = sl_os_seconds();
    return SL_OK;
}

/* Reads for `seconds` in the given way. What is in flight at the end is waited for, and counted only where little else
 * could be: the disk is then idler than it would be in a long run. */
static sl_status measure(probe *p, way *w, double seconds, sl_err *err)
{
    enum { FEW = 4 };
    stretch s = {.w = w, .start_s = sl_os_seconds()};
    for (uint64_t place = 0; place < w->in_flight_bytes / w->read_bytes; place++)
        start_read(p, &s, place);
    uint64_t counted = 0;
    double counted_s = 0.0, deadline = s.start_s + seconds;
    while (s.n_flying > 0) {
        enum { ASK_STOP_EVERY_MS = 50 };
        uint64_t place = 0;
        bool found = false;
        sl_status status = finish_read(p, &s, ASK_STOP_EVERY_MS / 1000.0, &place, &found, err);
        if (status != SL_OK)
            return status;
        if (is_stopped(p))
            return sl_err_set(err, SL_CANCELLED, "cancelled while measuring the disk");
        bool is_over = sl_os_seconds() >= deadline;
        if (found && (!is_over || s.done_bytes <= FEW * w->read_bytes)) {
            counted = s.done_bytes;
            counted_s = s.end_s - s.start_s;
        }
        if (found && !is_over)
            start_read(p, &s, place);
    }
    w->rates[w->n_rates++] = counted_s > 0.0 ? (double)counted / counted_s : 0.0;
    if (!p->is_direct)
        (void)p->vfs->drop_cached(p->file, 0, p->file_bytes);
    return SL_OK;
}

static void list_ways(probe *p)
{
    for (size_t f = 0; f < N_FLIGHTS; f++)
        for (size_t r = 0; r < N_READS; r++)
            if (flight_sizes[f] <= p->memory_bytes && read_sizes[r] <= flight_sizes[f] &&
                flight_sizes[f] / read_sizes[r] <= MAX_DEPTH)
                p->ways[p->n_ways++] = (way){.read_bytes = read_sizes[r], .in_flight_bytes = flight_sizes[f]};
}

/* The best of what was measured: what others take of the disk makes it less, never more. */
static double rate_of(const way *w)
{
    double best = 0.0;
    for (size_t i = 0; i < w->n_rates; i++)
        best = w->rates[i] > best ? w->rates[i] : best;
    return best;
}

static double median_of(const way *w)
{
    double sorted[MAX_ROUNDS] = {0};
    for (size_t i = 0; i < w->n_rates; i++) {
        size_t at = i;
        for (; at > 0 && sorted[at - 1] > w->rates[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = w->rates[i];
    }
    return w->n_rates > 0 ? sorted[w->n_rates / 2] : 0.0;
}

static bool is_steady(const way *w)
{
    const double least_share = 0.5;
    for (size_t i = 0; i < w->n_rates; i++)
        if (w->rates[i] < least_share * rate_of(w))
            return false;
    return true;
}

/* The way with the least in flight whose rate, measured `n_rates` times, is within `within` of the best, in its best
 * and in its middle round: where rounds differ by more than ways do, luck shall not choose a shallow one. Of equals the
 * fastest. */
static const way *least_way(const probe *p, double within, size_t n_rates)
{
    double best = 0.0, best_median = 0.0;
    for (size_t i = 0; i < p->n_ways; i++) {
        const way *w = &p->ways[i];
        if (w->n_rates >= n_rates && rate_of(w) > best)
            best = rate_of(w);
        if (w->n_rates >= n_rates && median_of(w) > best_median)
            best_median = median_of(w);
    }
    const way *chosen = NULL, *fallback = NULL;
    for (size_t i = 0; i < p->n_ways; i++) {
        const way *w = &p->ways[i];
        if (w->n_rates < n_rates)
            continue;
        if (!fallback || median_of(w) > median_of(fallback))
            fallback = w;
        if (rate_of(w) < (1.0 - within) * best || median_of(w) < (1.0 - within) * best_median)
            continue;
        if (!chosen || w->in_flight_bytes < chosen->in_flight_bytes ||
            (w->in_flight_bytes == chosen->in_flight_bytes && rate_of(w) > rate_of(chosen)))
            chosen = w;
    }
    return chosen ? chosen : fallback;
}

/* Which ways deserve more time: the fastest, and those with less in flight that came near it. Returns how many. */
static size_t pick_again(probe *p, way *again[MAX_AGAIN])
{
    const double near = 0.12;
    way *best = &p->ways[0];
    for (size_t i = 1; i < p->n_ways; i++)
        if (rate_of(&p->ways[i]) > rate_of(best))
            best = &p->ways[i];
    size_t n = 0;
    again[n++] = best;
    for (size_t i = 0; i < p->n_ways && n < MAX_AGAIN; i++) { /* in rising order of what is in flight */
        way *w = &p->ways[i];
        if (w != best && w->in_flight_bytes <= best->in_flight_bytes && rate_of(w) >= (1.0 - near) * rate_of(best))
            again[n++] = w;
    }
    return n;
}

/* A slow disk takes its time to finish what a deep queue holds: the deepest ways are then not tried. */
static bool is_late(const probe *p, double share)
{
    const double patience = 1.5;
    return sl_os_seconds() - p->start_s > patience * share * p->seconds;
}

static sl_status sweep(probe *p, sl_io_profile *out, sl_err *err)
{
    list_ways(p);
    sl_status status = SL_OK;
    size_t n = 0, n_rounds = 1;
    for (; status == SL_OK && n < p->n_ways && (n < N_READS || !is_late(p, write_share + sweep_share)); n++)
        status = measure(p, &p->ways[n], p->seconds * sweep_share / (double)p->n_ways, err);
    p->n_ways = n;
    /* The same again, in turn: what another program took from one round it does not take from all. */
    way *again[MAX_AGAIN];
    n = status == SL_OK ? pick_again(p, again) : 0;
    for (; status == SL_OK && n_rounds < MAX_ROUNDS && (n_rounds == 1 || !is_late(p, 1.0)); n_rounds++)
        for (size_t i = 0; status == SL_OK && i < n; i++)
            status = measure(p, again[i], p->seconds * again_share / (double)(n * (MAX_ROUNDS - 1)), err);
    if (status != SL_OK)
        return status;
    const way *chosen = least_way(p, 0.03, n_rounds);
    out->read_bytes = chosen->read_bytes;
    out->in_flight_bytes = chosen->in_flight_bytes;
    out->read_rate = rate_of(chosen);
    out->is_steady = is_steady(chosen);
    if (!out->is_steady) {
        out->read_bytes = DEFAULT_READ_BYTES;
        out->in_flight_bytes = p->memory_bytes < DEFAULT_FLIGHT_BYTES ? p->memory_bytes : DEFAULT_FLIGHT_BYTES;
    }
    return SL_OK;
}

static sl_status run(probe *p, sl_io_profile *out, sl_err *err)
{
    const sl_ioprobe_options *o = p->options;
    sl_status status = choose_file(p, err);
    if (status != SL_OK)
        return status;
    p->memory_bytes = choose_memory(p);
    status = sl_mem_map(o->budget, p->memory_bytes, "buffers to measure the disk", &p->memory, err);
    /* Before any of it is touched: every way is measured on pages like the reader's. */
    if (status == SL_OK && p->vfs->want_big_pages)
        p->vfs->want_big_pages(p->memory, p->memory_bytes);
    if (status == SL_OK)
        status = open_file(p, err);
    if (status == SL_OK)
        status = write_file(p, &out->write_rate, err);
    const sl_queue_options queue = {
        .vfs = p->vfs,
        .file = p->file,
        .name = o->dir,
        .memory = p->memory,
        .memory_bytes = p->memory_bytes,
        .depth = MAX_DEPTH,
        .engine = o->engine,
        .budget = o->budget,
        .log = o->log,
    };
    if (status == SL_OK)
        status = sl_queue_create(&queue, &p->queue, err);
    if (status == SL_OK)
        status = sweep(p, out, err);
    out->is_direct = p->is_direct;
    return status;
}

sl_status sl_ioprobe_run(const sl_ioprobe_options *options, sl_io_profile *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    probe p = {
        .options = options,
        .vfs = options->vfs ? options->vfs : sl_vfs_system(),
        .seconds = options->seconds > 0.0 ? options->seconds : 2.0,
        .start_s = sl_os_seconds(),
    };
    sl_status status = run(&p, out, err);
    sl_queue_destroy(p.queue);
    if (p.file)
        p.vfs->close(p.file);
    sl_mem_unmap(options->budget, p.memory, p.memory_bytes);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- the note */

/* Lines key=value, all of them, in this order, numbers whole:
 *
 *   sluice-io=1            version of the note
 *   read_bytes=1048576
 *   in_flight_bytes=33554432
 *   read_rate=2700000000   bytes a second
 *   write_rate=1200000000
 *   is_direct=1 */
static const char *const note_keys[] = {"sluice-io", "read_bytes", "in_flight_bytes", "read_rate", "write_rate",
                                        "is_direct"};
enum { N_KEYS = 6, NOTE_VERSION = 1, NOTE_BYTES = 1024 };

static bool note_name(const char *dir, char *out, size_t capacity)
{
    char device[SL_OS_DEVICE_NAME_BYTES];
    if (!sl_os_device_name(dir, device))
        return false;
    int length = snprintf(out, capacity, "io-%s.txt", device);
    return length > 0 && (size_t)length < capacity;
}

static bool parse_note(const char *text, uint64_t values[N_KEYS])
{
    for (size_t i = 0; i < N_KEYS; i++) {
        size_t size = strlen(note_keys[i]);
        if (strncmp(text, note_keys[i], size) != 0 || text[size] != '=' || text[size + 1] < '0' || text[size + 1] > '9')
            return false;
        char *end = NULL;
        errno = 0;
        values[i] = strtoull(text + size + 1, &end, 10);
        if (errno != 0 || *end != '\n')
            return false;
        text = end + 1;
    }
    return *text == '\0';
}

bool sl_ioprobe_find(const char *notes, const char *dir, sl_io_profile *out)
{
    const uint64_t most_rate = UINT64_C(1) << 50;
    char name[2 * SL_OS_DEVICE_NAME_BYTES], text[NOTE_BYTES];
    uint64_t v[N_KEYS];
    memset(out, 0, sizeof *out);
    if (!notes || !note_name(dir, name, sizeof name) || !sl_os_note_find(notes, name, text, sizeof text) ||
        !parse_note(text, v))
        return false;
    uint64_t most = flight_sizes[N_FLIGHTS - 1];
    if (v[0] != NOTE_VERSION || v[1] == 0 || v[1] % SL_SECTOR_BYTES != 0 || v[1] > v[2] || v[2] > most || v[3] == 0 ||
        v[3] > most_rate || v[4] == 0 || v[4] > most_rate || v[5] > 1)
        return false;
    *out = (sl_io_profile){(size_t)v[1], (size_t)v[2], (double)v[3], (double)v[4], v[5] == 1, true};
    return true;
}

sl_status sl_ioprobe_save(const char *notes, const char *dir, const sl_io_profile *profile, sl_err *err)
{
    char name[2 * SL_OS_DEVICE_NAME_BYTES], text[NOTE_BYTES];
    if (!notes)
        return sl_err_set(err, SL_FAILED, "no folder for notes: neither XDG_CACHE_HOME nor HOME names one");
    if (!note_name(dir, name, sizeof name))
        return sl_err_set(err, SL_FAILED, "%s: cannot tell which disk it lies on", dir);
    const uint64_t v[N_KEYS] = {NOTE_VERSION,
                                profile->read_bytes,
                                profile->in_flight_bytes,
                                (uint64_t)profile->read_rate,
                                (uint64_t)profile->write_rate,
                                profile->is_direct};
    int used = 0;
    for (size_t i = 0; i < N_KEYS; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s=%" PRIu64 "\n", note_keys[i], v[i]);
    return sl_os_note_save(notes, name, text, err);
}
