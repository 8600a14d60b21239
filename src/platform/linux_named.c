/* Linux: files that keep their names. Owns: the moment at which a file gets one. Refuses: what linux.c refuses.
 * A new file is unnamed (O_TMPFILE) until it is whole; linkat(2) then names it. Where there are no unnamed files it has
 * a temporary name beside its own, which a kill can leave behind. Facts: open(2), linkat(2), rename(2), renameat2(2),
 * fsync(2), fallocate(2), fcntl(2) (open file description locks), ioctl_ficlonerange(2). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "platform/linux_impl.h"
#include "platform/os.h"

/* FICLONERANGE, of a struct of one i64 and three u64: linux/fs.h has it, and names that others define. */
#define CLONE_RANGE _IOC(_IOC_WRITE, 0x94, 13, 32)

enum { NO_REPLACE = 1 }; /* RENAME_NOREPLACE of renameat2(2), which some C libraries have no function for */

static sl_file *wrap(int fd, bool direct, bool *is_direct)
{
    sl_file *file = calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->fd = fd;
    *is_direct = direct && sl_linux_set_direct(file, true) == 0;
    if (!*is_direct)
        (void)sl_linux_set_direct(file, false);
    return file;
}

sl_status sl_linux_open_named(const sl_vfs *vfs, const char *path, bool for_writing, bool direct, sl_file **out,
                              bool *is_direct, sl_err *err)
{
    (void)vfs;
    *out = NULL;
    *is_direct = false;
    int fd;
    do
        fd = open(path, (for_writing ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot be opened", path);
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return sl_err_set(err, SL_FAILED, "%s: not a regular file", path);
    }
    *out = wrap(fd, direct, is_direct);
    if (*out)
        return SL_OK;
    close(fd);
    return sl_err_set(err, SL_FAILED, "out of memory: %s", path);
}

/* With a temporary name beside `path`. */
static int open_beside(const char *path, char **temp_path)
{
    char name[PATH_MAX];
    int length = snprintf(name, sizeof name, "%s.new-XXXXXX", path);
    if (length < 0 || (size_t)length >= sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = mkostemp(name, O_CLOEXEC);
    *temp_path = fd >= 0 ? strdup(name) : NULL;
    if (fd >= 0 && !*temp_path) {
        (void)unlink(name);
        close(fd);
        errno = ENOMEM;
        return -1;
    }
    return fd;
}

static int open_waiting(const char *path, char **temp_path)
{
    char *folder = sl_os_folder_of(path);
    if (!folder) {
        errno = ENOMEM;
        return -1;
    }
    int fd;
    do
        fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    /* As in linux.c: the file system lacks it, or the kernel took the flags for something else. */
    struct stat info;
    bool is_lacking = fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT);
    if (is_lacking && stat(folder, &info) == 0)
        fd = open_beside(path, temp_path);
    free(folder);
    return fd;
}

sl_status sl_linux_create_named(const sl_vfs *vfs, const char *path, bool direct, bool allow_ram, sl_file **out,
                                bool *is_direct, sl_err *err)
{
    (void)vfs;
    *out = NULL;
    *is_direct = false;
    char *temp_path = NULL;
    int fd = open_waiting(path, &temp_path);
    if (fd < 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot be created", path);
    sl_status status = SL_OK;
    if (!allow_ram && sl_linux_is_in_memory(fd))
        status = sl_err_set(err, SL_REFUSED,
                            "%s: that folder keeps files in memory (tmpfs or ramfs), not on a disk; --allow-ram-dir "
                            "allows it",
                            path);
    sl_file *file = status == SL_OK ? wrap(fd, direct, is_direct) : NULL;
    if (status == SL_OK && !file)
        status = sl_err_set(err, SL_FAILED, "out of memory: %s", path);
    if (status != SL_OK) {
        if (temp_path)
            (void)unlink(temp_path);
        free(temp_path);
        close(fd);
        return status;
    }
    file->temp_path = temp_path;
    *out = file;
    return SL_OK;
}

/* 0 or errno */
static int sync_folder(const char *path)
{
    char *folder = sl_os_folder_of(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int cause = fd < 0 ? errno : fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    free(folder);
    return cause == EINVAL ? 0 : cause; /* some file systems know no such thing */
}

/* 0 or errno. An unnamed file gets `path`, which must be free. */
static int name_unnamed(int fd, const char *path)
{
    char link_path[64];
    snprintf(link_path, sizeof link_path, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, link_path, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0 ? errno : 0;
}

/* 0 or errno. The file gets a temporary name beside `path`: only a rename replaces. */
static int name_beside(sl_file *file, const char *path)
{
    char name[PATH_MAX];
    int cause = EEXIST;
    for (unsigned i = 0; cause == EEXIST && i < 1000; i++) {
        int length = snprintf(name, sizeof name, "%s.new-%ld-%u", path, (long)getpid(), i);
        if (length < 0 || (size_t)length >= sizeof name)
            return ENAMETOOLONG;
        cause = name_unnamed(file->fd, name);
    }
    if (cause == 0 && !(file->temp_path = strdup(name))) {
        (void)unlink(name);
        cause = ENOMEM;
    }
    return cause;
}

int sl_linux_publish(sl_file *file, const char *path, bool replace)
{
    int cause = 0;
    if (!file->temp_path && replace)
        cause = name_beside(file, path);
    else if (!file->temp_path)
        cause = name_unnamed(file->fd, path);
    if (cause == 0 && file->temp_path) {
        unsigned flags = replace ? 0 : NO_REPLACE;
        cause = syscall(SYS_renameat2, AT_FDCWD, file->temp_path, AT_FDCWD, path, flags) != 0 ? errno : 0;
        if (cause == EINVAL && !replace) /* a file system without the flag: link refuses what exists */
            cause = link(file->temp_path, path) != 0 ? errno : unlink(file->temp_path) != 0 ? errno : 0;
        if (cause == 0) {
            free(file->temp_path);
            file->temp_path = NULL;
        }
    }
    return cause == 0 ? -sync_folder(path) : -cause;
}

sl_status sl_os_rename(const char *from, const char *to, sl_err *err)
{
    int cause = rename(from, to) != 0 ? errno : sync_folder(to);
    return cause == 0 ? SL_OK : sl_err_set_errno(err, SL_FAILED, cause, "%s: cannot be named %s", from, to);
}

int sl_linux_sync(sl_file *file)
{
    int failed;
    do
        failed = fdatasync(file->fd);
    while (failed != 0 && errno == EINTR);
    return failed != 0 ? -errno : 0;
}

int64_t sl_linux_size(sl_file *file)
{
    struct stat info;
    return fstat(file->fd, &info) != 0 ? -(int64_t)errno : (int64_t)info.st_size;
}

int sl_linux_set_size(sl_file *file, uint64_t bytes)
{
    int failed;
    do
        failed = ftruncate(file->fd, (off_t)bytes);
    while (failed != 0 && errno == EINTR);
    return failed != 0 ? -errno : 0;
}

int sl_linux_clear(sl_file *file, uint64_t off, uint64_t bytes)
{
    int failed;
    do
        failed = fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)bytes);
    while (failed != 0 && errno == EINTR);
    return failed != 0 ? -errno : 0;
}

int sl_linux_share(sl_file *to, sl_file *from, uint64_t off, uint64_t bytes)
{
    struct {
        int64_t from_fd;
        uint64_t from_off, bytes, to_off;
    } range = {from->fd, off, bytes, off};
    int failed;
    do
        failed = ioctl(to->fd, CLONE_RANGE, &range);
    while (failed != 0 && errno == EINTR);
    int cause = failed != 0 ? errno : 0;
    /* Another file system, one that cannot, ranges that do not fit its blocks, a file that it does not do it for. */
    bool cannot = cause == EOPNOTSUPP || cause == ENOTTY || cause == EXDEV || cause == EINVAL || cause == ENOSYS ||
                  cause == EPERM || cause == ETXTBSY || cause == EISDIR;
    return cannot ? -EOPNOTSUPP : -cause;
}

int sl_linux_lock(sl_file *file)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int failed;
    do
        failed = fcntl(file->fd, F_OFD_SETLK, &all);
    while (failed != 0 && errno == EINTR);
    return failed != 0 ? -(errno == EACCES ? EAGAIN : errno) : 0;
}
