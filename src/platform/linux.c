/* Linux: files with direct I/O. Owns: file descriptors. Refuses: directories on memory file systems.
 * Facts: open(2), fcntl(2), fallocate(2), sync_file_range(2), posix_fadvise(2), mincore(2), cachestat(2). */
#define _GNU_SOURCE
#include "platform/vfs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "platform/linux_impl.h"

#define TMPFS_MAGIC_NUMBER 0x01021994
#define RAMFS_MAGIC_NUMBER 0x858458f6
#define CACHESTAT_NUMBER 451 /* the same on every architecture since Linux 6.5 */

int sl_linux_set_direct(sl_file *file, bool direct)
{
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0)
        return -errno;
    flags = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
    if (fcntl(file->fd, F_SETFL, flags) < 0)
        return -errno;
    /* Read-ahead of the system would fetch bytes that nobody asked for; the schedule reads ahead itself. */
    if (!direct)
        (void)posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM);
    return 0;
}

/* A named file that is unlinked at once, for file systems without O_TMPFILE. */
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

static int open_unnamed(const char *dir)
{
    int fd;
    do
        fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    while (fd < 0 && errno == EINTR);
    /* EOPNOTSUPP: the file system lacks it; EISDIR, ENOENT: the kernel took the flags for something else. */
    struct stat info;
    bool is_lacking = fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT);
    if (is_lacking && stat(dir, &info) == 0)
        fd = open_unlinked(dir);
    return fd;
}

bool sl_linux_is_in_memory(int fd)
{
    struct statfs info;
    if (fstatfs(fd, &info) != 0)
        return false;
    unsigned long type = (unsigned long)info.f_type & 0xffffffffUL;
    return type == TMPFS_MAGIC_NUMBER || type == RAMFS_MAGIC_NUMBER;
}

static sl_status file_open_temp(const sl_vfs *vfs, const char *dir, bool direct, bool allow_ram, sl_file **out,
                                bool *is_direct, sl_err *err)
{
    (void)vfs;
    *out = NULL;
    *is_direct = false;
    sl_file *file = calloc(1, sizeof *file);
    if (!file)
        return sl_err_set(err, SL_FAILED, "out of memory: file in %s", dir);
    file->fd = open_unnamed(dir);
    if (file->fd < 0) {
        int cause = errno;
        free(file);
        return sl_err_set_errno(err, SL_FAILED, cause, "%s: cannot create the cache file there", dir);
    }
    if (!allow_ram && sl_linux_is_in_memory(file->fd)) {
        close(file->fd);
        free(file);
        return sl_err_set(err, SL_REFUSED,
                          "%s keeps files in memory (tmpfs or ramfs), not on a disk: choose another directory with "
                          "--kv-dir, or allow it with --allow-ram-dir",
                          dir);
    }
    *is_direct = direct && sl_linux_set_direct(file, true) == 0;
    if (!*is_direct)
        (void)sl_linux_set_direct(file, false);
    *out = file;
    return SL_OK;
}

static void file_close(sl_file *file)
{
    if (!file)
        return;
    file_close(file->overlay);
    if (file->temp_path)
        (void)unlink(file->temp_path);
    free(file->temp_path);
    close(file->fd);
    free(file);
}

static void file_attach(sl_file *file, sl_file *overlay)
{
    file->overlay = overlay;
}

static int64_t file_pread(sl_file *file, void *buf, size_t bytes, uint64_t off)
{
    int fd = sl_linux_fd(file, &off);
    ssize_t moved = pread(fd, buf, bytes, (off_t)off);
    return moved < 0 ? -(int64_t)errno : (int64_t)moved;
}

static int64_t file_pwrite(sl_file *file, const void *buf, size_t bytes, uint64_t off)
{
    int fd = sl_linux_fd(file, &off);
    ssize_t moved = pwrite(fd, buf, bytes, (off_t)off);
    return moved < 0 ? -(int64_t)errno : (int64_t)moved;
}

static int file_reserve(sl_file *file, uint64_t off, uint64_t bytes)
{
    int failed, fd = sl_linux_fd(file, &off);
    do
        failed = fallocate(fd, 0, (off_t)off, (off_t)bytes);
    while (failed < 0 && errno == EINTR);
    return failed < 0 ? -errno : 0;
}

static int file_drop_cached(sl_file *file, uint64_t off, uint64_t bytes)
{
    /* Dirty pages cannot be forgotten: out with them first. */
    unsigned flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    int fd = sl_linux_fd(file, &off);
    int cause = sync_file_range(fd, (off_t)off, (off_t)bytes, flags) != 0 ? errno : 0;
    /* Only where it does not exist: an error of the disk is told once, fdatasync would not tell it again. */
    if (cause == ENOSYS || cause == EINVAL || cause == ESPIPE || cause == EOPNOTSUPP)
        cause = fdatasync(fd) != 0 ? errno : 0;
    if (cause != 0)
        return -cause;
    return -posix_fadvise(fd, (off_t)off, (off_t)bytes, POSIX_FADV_DONTNEED);
}

/* For kernels without cachestat: map piece by piece and ask which pages are in memory. */
static int64_t cached_by_mincore(int fd, uint64_t size)
{
    enum { PIECE = 64 << 20, MIN_PAGE = 4096 };
    static const size_t vec_bytes = PIECE / MIN_PAGE;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *vec = malloc(vec_bytes);
    int64_t cached = vec ? 0 : -1;
    for (uint64_t off = 0; vec && cached >= 0 && off < size; off += PIECE) {
        size_t length = size - off < PIECE ? (size_t)(size - off) : PIECE;
        void *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, (off_t)off);
        if (map == MAP_FAILED || mincore(map, length, vec) != 0) {
            cached = -1;
        } else {
            for (size_t i = 0; i < (length + page - 1) / page; i++)
                cached += (vec[i] & 1) ? (int64_t)page : 0;
        }
        if (map != MAP_FAILED)
            munmap(map, length);
    }
    free(vec);
    return cached;
}

static int64_t file_cached_bytes(sl_file *file)
{
    if (file->overlay) {
        int64_t over = file_cached_bytes(file->overlay);
        int64_t base = file_cached_bytes(&(sl_file){.fd = file->fd});
        return over < 0 || base < 0 ? -1 : over + base;
    }
    struct {
        uint64_t off, len;
    } range = {0, 0}; /* len 0: to the end */
    struct {
        uint64_t nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted;
    } pages = {0, 0, 0, 0, 0};
    if (syscall(CACHESTAT_NUMBER, file->fd, &range, &pages, 0U) == 0)
        return (int64_t)pages.nr_cache * sysconf(_SC_PAGESIZE);
    struct stat info;
    if (fstat(file->fd, &info) != 0)
        return -1;
    return cached_by_mincore(file->fd, (uint64_t)info.st_size);
}

/* Only whole big pages inside the range come of it: never more is resident than the range. */
static void file_want_big_pages(void *memory, size_t bytes)
{
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
}

const sl_vfs *sl_vfs_system(void)
{
    static const sl_vfs system_vfs = {
        .open_temp = file_open_temp,
        .open_named = sl_linux_open_named,
        .create_named = sl_linux_create_named,
        .publish = sl_linux_publish,
        .sync = sl_linux_sync,
        .size = sl_linux_size,
        .set_size = sl_linux_set_size,
        .clear = sl_linux_clear,
        .share = sl_linux_share,
        .lock = sl_linux_lock,
        .attach = file_attach,
        .close = file_close,
        .pread = file_pread,
        .pwrite = file_pwrite,
        .set_direct = sl_linux_set_direct,
        .reserve = file_reserve,
        .drop_cached = file_drop_cached,
        .cached_bytes = file_cached_bytes,
        .want_big_pages = file_want_big_pages,
#ifdef SLUICE_LIBURING
        .aio_open = sl_uring_open,
        .aio_close = sl_uring_close,
        .aio_start = sl_uring_start,
        .aio_wait = sl_uring_wait,
        .aio_wake = sl_uring_wake,
        .aio_name = "io_uring",
#endif
    };
    return &system_vfs;
}
