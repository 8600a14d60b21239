/* macOS: files that keep their names. Owns: the moment at which a file gets one. Refuses: what macos.c refuses.
 * There are no unnamed files here: a new one has a temporary name beside its own until it is whole, which a kill can
 * leave behind. Facts: open(2), rename(2) (renamex_np), link(2), flock(2), fcntl(2) (F_FULLFSYNC, F_PUNCHHOLE). */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "platform/macos_impl.h"
#include "platform/os.h"

/* Takes the descriptor over; on error it is closed. */
static sl_status wrap(int fd, const char *path, bool direct, sl_file **out, bool *is_direct, sl_err *err)
{
    sl_file *file = sl_macos_new_file();
    if (!file) {
        close(fd);
        return sl_err_set(err, SL_FAILED, "out of memory: %s", path);
    }
    file->fd = fd;
    struct stat info;
    if (fstat(fd, &info) == 0)
        file->reserved_end = (uint64_t)info.st_size;
    *is_direct = direct && sl_macos_set_direct(file, true) == 0;
    if (!*is_direct)
        (void)sl_macos_set_direct(file, false);
    *out = file;
    return SL_OK;
}

sl_status sl_macos_open_named(const sl_vfs *vfs, const char *path, bool for_writing, bool direct, sl_file **out,
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
    return wrap(fd, path, direct, out, is_direct, err);
}

/* A descriptor of a new file beside `path`, with its name; -1 and errno. */
static int open_beside(const char *path, char **temp_path)
{
    char name[PATH_MAX];
    int fd = -1;
    errno = EEXIST;
    for (unsigned i = 0; fd < 0 && errno == EEXIST && i < 1000; i++) {
        int length = snprintf(name, sizeof name, "%s.new-%ld-%u", path, (long)getpid(), i);
        if (length < 0 || (size_t)length >= sizeof name) {
            errno = ENAMETOOLONG;
            return -1;
        }
        do
            fd = open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
        while (fd < 0 && errno == EINTR);
    }
    if (fd < 0)
        return -1;
    *temp_path = strdup(name);
    if (*temp_path)
        return fd;
    (void)unlink(name);
    close(fd);
    errno = ENOMEM;
    return -1;
}

sl_status sl_macos_create_named(const sl_vfs *vfs, const char *path, bool direct, bool allow_ram, sl_file **out,
                                bool *is_direct, sl_err *err)
{
    (void)vfs;
    *out = NULL;
    *is_direct = false;
    char *temp_path = NULL;
    int fd = open_beside(path, &temp_path);
    if (fd < 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot be created", path);
    sl_status status = SL_OK;
    if (!allow_ram && sl_macos_is_in_memory(fd)) {
        close(fd);
        status = sl_err_set(err, SL_REFUSED,
                            "%s: that folder keeps files in memory (tmpfs), not on a disk; --allow-ram-dir allows it",
                            path);
    } else {
        status = wrap(fd, path, direct, out, is_direct, err);
    }
    if (status == SL_OK) {
        (*out)->temp_path = temp_path;
        return SL_OK;
    }
    (void)unlink(temp_path);
    free(temp_path);
    return status;
}

/* 0 or errno. fsync alone leaves bytes in the disk's own memory. */
static int flush_out(int fd)
{
    int failed;
    do
        failed = fcntl(fd, F_FULLFSYNC);
    while (failed < 0 && errno == EINTR);
    if (failed >= 0)
        return 0;
    if (errno != ENOTSUP && errno != ENOTTY && errno != EINVAL && errno != ENODEV)
        return errno;
    return fsync(fd) != 0 ? errno : 0;
}

/* 0 or errno */
static int sync_folder(const char *path)
{
    char *folder = sl_os_folder_of(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int failed = fd < 0 ? errno : 0;
    free(folder);
    if (fd < 0)
        return failed;
    int cause = flush_out(fd);
    close(fd);
    return cause == EINVAL || cause == ENOTSUP ? 0 : cause; /* some file systems know no such thing */
}

int sl_macos_publish(sl_file *file, const char *path, bool replace)
{
    int cause = 0;
    if (!file->temp_path)
        return -EINVAL;
    if (replace) {
        cause = rename(file->temp_path, path) != 0 ? errno : 0;
    } else {
        cause = renamex_np(file->temp_path, path, RENAME_EXCL) != 0 ? errno : 0;
        if (cause == ENOTSUP || cause == EINVAL) /* a file system without the flag: link refuses what exists */
            cause = link(file->temp_path, path) != 0 ? errno : unlink(file->temp_path) != 0 ? errno : 0;
    }
    if (cause != 0)
        return -cause;
    free(file->temp_path);
    file->temp_path = NULL;
    return -sync_folder(path);
}

sl_status sl_os_rename(const char *from, const char *to, sl_err *err)
{
    int cause = rename(from, to) != 0 ? errno : sync_folder(to);
    return cause == 0 ? SL_OK : sl_err_set_errno(err, SL_FAILED, cause, "%s: cannot be named %s", from, to);
}

int sl_macos_sync(sl_file *file)
{
    return -flush_out(file->fd);
}

int64_t sl_macos_size(sl_file *file)
{
    struct stat info;
    return fstat(file->fd, &info) != 0 ? -(int64_t)errno : (int64_t)info.st_size;
}

int sl_macos_set_size(sl_file *file, uint64_t bytes)
{
    int failed;
    do
        failed = ftruncate(file->fd, (off_t)bytes);
    while (failed != 0 && errno == EINTR);
    if (failed != 0)
        return -errno;
    /* What was reserved behind the new end went with it. */
    if (file->reserved_end > bytes)
        file->reserved_end = bytes;
    return 0;
}

int sl_macos_clear(sl_file *file, uint64_t off, uint64_t bytes)
{
    fpunchhole_t hole = {.fp_offset = (off_t)off, .fp_length = (off_t)bytes};
    int failed;
    do
        failed = fcntl(file->fd, F_PUNCHHOLE, &hole);
    while (failed < 0 && errno == EINTR);
    if (failed >= 0)
        return 0;
    /* EINVAL: blocks larger than a sector, whose edges the range does not meet. */
    return errno == ENOTSUP || errno == EINVAL || errno == ENOTTY ? -EOPNOTSUPP : -errno;
}

int sl_macos_lock(sl_file *file)
{
    int failed;
    do
        failed = flock(file->fd, LOCK_EX | LOCK_NB);
    while (failed != 0 && errno == EINTR);
    return failed != 0 ? -(errno == EWOULDBLOCK ? EAGAIN : errno) : 0;
}
