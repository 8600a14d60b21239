/* macOS: files with uncached I/O, read ahead on a serial dispatch queue.
 * Owns: file descriptors, one page a file for widened writes, queues. Refuses: directories on memory file systems (a
 * disk made of memory, hdiutil's ram://, carries an ordinary file system and is not recognised).
 * Facts: fcntl(2), mincore(2), msync(2), statfs(2), dispatch_queue_create(3), dispatch_semaphore_create(3); the
 * kernel's cluster layer (XNU 11417, bsd/vfs/vfs_cluster.c).
 *
 * Sectors and pages. Under F_NOCACHE the kernel reads straight into the caller's memory when offset and memory are
 * multiples of the device's block, 512 or 4,096 bytes: reads of whole sectors are taken as they come. It writes
 * straight from there only whole pages of 16 KiB at multiples of 16 KiB; anything else passes through the page cache
 * and stays there for a while. So a direct write is widened: the pages that it covers go as they are, and each end
 * that fills only a part of a page becomes a read and a write of that page (pwrite_in_page). */
#include <assert.h>
#include <dispatch/dispatch.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "platform/macos_impl.h"

enum {
    PAGE_BYTES = 16384,   /* also where the processor's page is smaller: XNU's least direct write */
    MOST_BYTES = 1 << 30, /* of one system call, which refuses 2 GiB and more */
    PIECE_BYTES = 64 << 20
};

int sl_macos_set_direct(sl_file *file, bool direct)
{
    if (fcntl(file->fd, F_NOCACHE, direct ? 1 : 0) < 0)
        return -errno;
    file->is_direct = direct;
    /* Read-ahead of the system would fetch bytes that nobody asked for; the schedule reads ahead itself. */
    (void)fcntl(file->fd, F_RDAHEAD, 0);
    return 0;
}

/* A named file that is unlinked at once: there are no unnamed ones here. */
static int open_unlinked(const char *dir)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/.sluice-XXXXXX", dir);
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0 && unlink(path) < 0) {
        int cause = errno;
        close(fd);
        errno = cause;
        return -1;
    }
    return fd;
}

bool sl_macos_is_in_memory(int fd)
{
    struct statfs info;
    return fstatfs(fd, &info) == 0 && strcmp(info.f_fstypename, "tmpfs") == 0;
}

void sl_macos_close(sl_file *file)
{
    if (!file)
        return;
    sl_macos_close(file->overlay);
    if (file->temp_path)
        (void)unlink(file->temp_path);
    free(file->temp_path);
    if (file->fd >= 0)
        close(file->fd);
    pthread_mutex_destroy(&file->lock);
    free(file->page);
    free(file);
}

sl_file *sl_macos_new_file(void)
{
    sl_file *file = calloc(1, sizeof *file);
    void *page = NULL;
    if (!file || posix_memalign(&page, PAGE_BYTES, PAGE_BYTES) != 0) {
        free(file);
        return NULL;
    }
    file->fd = -1;
    file->page = page;
    pthread_mutex_init(&file->lock, NULL);
    return file;
}

static sl_status file_open_temp(const sl_vfs *vfs, const char *dir, bool direct, bool allow_ram, sl_file **out,
                                bool *is_direct, sl_err *err)
{
    (void)vfs;
    *out = NULL;
    *is_direct = false;
    sl_file *file = sl_macos_new_file();
    if (!file)
        return sl_err_set(err, SL_FAILED, "out of memory: file in %s", dir);
    file->fd = open_unlinked(dir);
    if (file->fd < 0) {
        int cause = errno;
        sl_macos_close(file);
        return sl_err_set_errno(err, SL_FAILED, cause, "%s: cannot create the cache file there", dir);
    }
    if (!allow_ram && sl_macos_is_in_memory(file->fd)) {
        sl_macos_close(file);
        return sl_err_set(err, SL_REFUSED,
                          "%s keeps files in memory (tmpfs), not on a disk: choose another directory with --kv-dir, or "
                          "allow it with --allow-ram-dir",
                          dir);
    }
    *is_direct = direct && sl_macos_set_direct(file, true) == 0;
    if (!*is_direct)
        (void)sl_macos_set_direct(file, false);
    *out = file;
    return SL_OK;
}

static void file_attach(sl_file *file, sl_file *overlay)
{
    file->overlay = overlay;
}

static int64_t file_pread(sl_file *file, void *buf, size_t bytes, uint64_t off)
{
    file = sl_macos_at(file, &off);
    ssize_t moved = pread(file->fd, buf, bytes < MOST_BYTES ? bytes : MOST_BYTES, (off_t)off);
    return moved < 0 ? -(int64_t)errno : (int64_t)moved;
}

static int64_t pwrite_plain(sl_file *file, const void *buf, size_t bytes, uint64_t off)
{
    ssize_t moved = pwrite(file->fd, buf, bytes < MOST_BYTES ? bytes : MOST_BYTES, (off_t)off);
    return moved < 0 ? -(int64_t)errno : (int64_t)moved;
}

/* Reads the page of the file at off; zeros after the file's end. Bytes that the file had, or -errno. */
static int64_t fill_page(sl_file *file, uint64_t off)
{
    size_t got = 0;
    while (got < PAGE_BYTES) {
        int64_t moved = file_pread(file, file->page + got, PAGE_BYTES - got, off + got);
        if (moved < 0)
            return moved;
        if (moved == 0)
            break;
        got += (size_t)moved;
    }
    memset(file->page + got, 0, PAGE_BYTES - got);
    return (int64_t)got;
}

/* A write that lies inside one page, by way of the whole page. The lock is held. */
static int64_t pwrite_in_page(sl_file *file, const void *buf, size_t bytes, uint64_t off)
{
    size_t head = (size_t)(off % PAGE_BYTES);
    uint64_t page_off = off - head;
    int64_t had = fill_page(file, page_off);
    if (had < 0)
        return had;
    memcpy(file->page + head, buf, bytes);
    int64_t moved = pwrite_plain(file, file->page, PAGE_BYTES, page_off);
    if (moved <= 0)
        return moved;
    size_t end = head + bytes < (size_t)moved ? head + bytes : (size_t)moved;
    size_t file_end = end > (size_t)had ? end : (size_t)had;
    if (file_end < (size_t)moved && ftruncate(file->fd, (off_t)(page_off + file_end)) != 0)
        return -errno;
    /* A short write may have ended before it came to these bytes: ask again. */
    return end > head ? (int64_t)(end - head) : -EINTR;
}

/* A direct write is cut at pages: what comes back short is continued by the caller, as after any short write. One at
 * a time: a widened one puts back what it found around its bytes, and the file's end where it found it. */
static int64_t file_pwrite(sl_file *file, const void *buf, size_t bytes, uint64_t off)
{
    file = sl_macos_at(file, &off);
    if (!file->is_direct)
        return pwrite_plain(file, buf, bytes, off);
    size_t head = (size_t)(off % PAGE_BYTES);
    int64_t moved;
    pthread_mutex_lock(&file->lock);
    if (head == 0 && bytes >= PAGE_BYTES)
        moved = pwrite_plain(file, buf, bytes - bytes % PAGE_BYTES, off);
    else
        moved = pwrite_in_page(file, buf, bytes < PAGE_BYTES - head ? bytes : PAGE_BYTES - head, off);
    pthread_mutex_unlock(&file->lock);
    return moved;
}

/* The system lengthens what a file has, it knows no ranges: the space between the furthest end asked for so far and
 * this one. */
static int file_reserve(sl_file *file, uint64_t off, uint64_t bytes)
{
    file = sl_macos_at(file, &off);
    uint64_t end = off + bytes;
    if (end <= file->reserved_end)
        return 0;
    fstore_t more = {.fst_flags = F_ALLOCATECONTIG | F_ALLOCATEALL,
                     .fst_posmode = F_PEOFPOSMODE,
                     .fst_length = (off_t)(end - file->reserved_end)};
    int failed = fcntl(file->fd, F_PREALLOCATE, &more);
    if (failed < 0) {
        more.fst_flags = F_ALLOCATEALL; /* not in one piece, then */
        failed = fcntl(file->fd, F_PREALLOCATE, &more);
    }
    if (failed < 0)
        return errno == ENOTSUP || errno == EINVAL ? -EOPNOTSUPP : -errno;
    file->reserved_end = end;
    return 0;
}

static int file_drop_cached(sl_file *file, uint64_t off, uint64_t bytes)
{
    /* As on Linux: handed to the disk, not yet flushed out of the disk's own memory. What a run must find again after
     * a loss of power is for sync. */
    file = sl_macos_at(file, &off);
    if (fsync(file->fd) != 0)
        return -errno;
    size_t head = (size_t)(off % PAGE_BYTES);
    void *map = mmap(NULL, (size_t)bytes + head, PROT_READ, MAP_SHARED, file->fd, (off_t)(off - head));
    if (map == MAP_FAILED)
        return -errno;
    int cause = msync(map, (size_t)bytes + head, MS_SYNC | MS_INVALIDATE) != 0 ? errno : 0;
    munmap(map, (size_t)bytes + head);
    return -cause;
}

/* Maps piece by piece, which brings nothing in, and asks which pages are in memory. */
static int64_t cached_in(int fd)
{
    enum { LEAST_PAGE = 4096 };
    struct stat info;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *in_core = malloc(PIECE_BYTES / LEAST_PAGE);
    int64_t cached = in_core && fstat(fd, &info) == 0 ? 0 : -1;
    for (off_t off = 0; cached >= 0 && off < info.st_size; off += PIECE_BYTES) {
        size_t length = info.st_size - off < PIECE_BYTES ? (size_t)(info.st_size - off) : (size_t)PIECE_BYTES;
        void *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, off);
        if (map == MAP_FAILED || mincore(map, length, in_core) != 0) {
            cached = -1;
        } else {
            for (size_t i = 0; i < (length + page - 1) / page; i++)
                cached += (in_core[i] & MINCORE_INCORE) ? (int64_t)page : 0;
        }
        if (map != MAP_FAILED)
            munmap(map, length);
    }
    free(in_core);
    return cached;
}

static int64_t file_cached_bytes(sl_file *file)
{
    if (file->overlay) {
        int64_t over = cached_in(file->overlay->fd), base = cached_in(file->fd);
        return over < 0 || base < 0 ? -1 : over + base;
    }
    return cached_in(file->fd);
}

/* Reading ahead. One serial queue: the reads happen one after another, in the order of the schedule, and the kernel
 * itself keeps several pieces of one large direct read in flight. A read goes free -> queued (aio_start) -> done
 * (read_on_queue) -> free (aio_wait). */
typedef struct aio_task {
    sl_aio *aio;
    sl_aio_read read;
    int64_t moved;
    struct aio_task *next; /* free, or done after this one */
} aio_task;

struct sl_aio {
    sl_file *file;
    dispatch_queue_t queue;
    dispatch_semaphore_t events; /* one for each read that is done and one for a wake, until aio_wait takes them */
    pthread_mutex_t lock;        /* of what follows */
    aio_task *free, *done;
    aio_task **done_end;
    bool is_woken;
    aio_task tasks[]; /* [depth] */
};

static void read_on_queue(void *context)
{
    aio_task *task = context;
    sl_aio *aio = task->aio;
    int64_t moved = file_pread(aio->file, task->read.buf, task->read.bytes, task->read.off);
    pthread_mutex_lock(&aio->lock);
    task->moved = moved;
    task->next = NULL;
    *aio->done_end = task;
    aio->done_end = &task->next;
    /* Under the lock, so that whoever sees the read done can also take its event. */
    dispatch_semaphore_signal(aio->events);
    pthread_mutex_unlock(&aio->lock);
}

static void nothing(void *context)
{
    (void)context;
}

static void aio_close(sl_aio *aio)
{
    if (!aio)
        return;
    /* The last read is done, but its function may not have returned yet. */
    if (aio->queue) {
        dispatch_sync_f(aio->queue, NULL, nothing);
        dispatch_release(aio->queue);
    }
    if (aio->events)
        dispatch_release(aio->events);
    pthread_mutex_destroy(&aio->lock);
    free(aio);
}

static int aio_open(const sl_vfs *vfs, const sl_aio_options *options, sl_aio **out, int *register_refused)
{
    (void)vfs;
    *register_refused = 0; /* there is nothing to register */
    *out = NULL;
    sl_aio *aio = calloc(1, sizeof *aio + options->depth * sizeof(aio_task));
    if (!aio)
        return -ENOMEM;
    pthread_mutex_init(&aio->lock, NULL);
    aio->file = options->file;
    aio->done_end = &aio->done;
    for (size_t i = 0; i < options->depth; i++) {
        aio->tasks[i].aio = aio;
        aio->tasks[i].next = aio->free;
        aio->free = &aio->tasks[i];
    }
    /* Somebody waits for these reads: they must not be throttled like housekeeping. */
    dispatch_queue_attr_t kind =
        dispatch_queue_attr_make_with_qos_class(DISPATCH_QUEUE_SERIAL, QOS_CLASS_USER_INITIATED, 0);
    aio->queue = dispatch_queue_create("sluice.read", kind);
    aio->events = dispatch_semaphore_create(0);
    if (!aio->queue || !aio->events) {
        aio_close(aio);
        return -ENOMEM;
    }
    *out = aio;
    return 0;
}

static int aio_start(sl_aio *aio, const sl_aio_read *reads, size_t n)
{
    int n_started = 0;
    for (size_t i = 0; i < n; i++) {
        pthread_mutex_lock(&aio->lock);
        aio_task *task = aio->free;
        if (task)
            aio->free = task->next;
        pthread_mutex_unlock(&aio->lock);
        if (!task)
            break;
        task->read = reads[i];
        dispatch_async_f(aio->queue, task, read_on_queue);
        n_started++;
    }
    return n_started;
}

static dispatch_time_t time_limit(double timeout_s)
{
    static const double most_s = 1e6; /* eleven days: the count of nanoseconds must not overflow */
    if (timeout_s < 0)
        return DISPATCH_TIME_FOREVER;
    return dispatch_time(DISPATCH_TIME_NOW, (int64_t)((timeout_s < most_s ? timeout_s : most_s) * 1e9));
}

static int aio_wait(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most)
{
    assert(most > 0 && most <= INT_MAX);
    if (dispatch_semaphore_wait(aio->events, time_limit(timeout_s)) != 0)
        return 0;
    size_t n = 0;
    pthread_mutex_lock(&aio->lock);
    size_t n_events = aio->is_woken ? 1 : 0;
    aio->is_woken = false;
    while (n < most && aio->done) {
        aio_task *task = aio->done;
        aio->done = task->next;
        if (!aio->done)
            aio->done_end = &aio->done;
        done[n++] = (sl_aio_done){task->read.tag, task->moved};
        task->next = aio->free;
        aio->free = task;
    }
    pthread_mutex_unlock(&aio->lock);
    /* One event was taken by the wait above; the others are there, so this never waits. */
    for (n_events += n; n_events > 1; n_events--)
        (void)dispatch_semaphore_wait(aio->events, DISPATCH_TIME_NOW);
    return (int)n;
}

static void aio_wake(sl_aio *aio)
{
    pthread_mutex_lock(&aio->lock);
    if (!aio->is_woken)
        dispatch_semaphore_signal(aio->events);
    aio->is_woken = true;
    pthread_mutex_unlock(&aio->lock);
}

const sl_vfs *sl_vfs_system(void)
{
    static const sl_vfs system_vfs = {
        .open_temp = file_open_temp,
        .open_named = sl_macos_open_named,
        .create_named = sl_macos_create_named,
        .publish = sl_macos_publish,
        .sync = sl_macos_sync,
        .size = sl_macos_size,
        .set_size = sl_macos_set_size,
        .clear = sl_macos_clear,
        .lock = sl_macos_lock,
        .attach = file_attach,
        .close = sl_macos_close,
        .pread = file_pread,
        .pwrite = file_pwrite,
        .set_direct = sl_macos_set_direct,
        .reserve = file_reserve,
        .drop_cached = file_drop_cached,
        .cached_bytes = file_cached_bytes,
        .aio_open = aio_open,
        .aio_close = aio_close,
        .aio_start = aio_start,
        .aio_wait = aio_wait,
        .aio_wake = aio_wake,
        .aio_name = "dispatch",
    };
    return &system_vfs;
}
