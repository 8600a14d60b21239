/* Notes of the user's own and the names of file systems, by POSIX calls alone.
 * Owns nothing. Refuses: a folder that is not an absolute path. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "platform/os.h"

static bool note_path(const char *folder, const char *name, char *out, size_t capacity)
{
    int length = snprintf(out, capacity, "%s/%s", folder, name);
    return length > 0 && (size_t)length < capacity;
}

bool sl_os_note_find(const char *folder, const char *name, char *text, size_t capacity)
{
    char path[PATH_MAX];
    if (!note_path(folder, name, path, sizeof path))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    size_t used = 0;
    ssize_t got = 0;
    do {
        got = read(fd, text + used, capacity - used);
        used += got > 0 ? (size_t)got : 0;
    } while ((got > 0 && used < capacity) || (got < 0 && errno == EINTR));
    close(fd);
    if (got < 0 || used >= capacity)
        return false;
    text[used] = '\0';
    return true;
}

/* Every folder of the path that is missing, for the user alone, as the XDG Base Directory Specification asks. */
static bool make_folders(char *path)
{
    for (char *at = strchr(path + 1, '/');; at = strchr(at + 1, '/')) {
        if (at)
            *at = '\0';
        bool is_there = mkdir(path, 0700) == 0 || errno == EEXIST;
        if (at)
            *at = '/';
        if (!is_there || !at)
            return is_there;
    }
}

static bool write_all(int fd, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t moved = write(fd, text, left);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0)
            return false;
        text += moved;
        left -= (size_t)moved;
    }
    return true;
}

sl_status sl_os_note_save(const char *folder, const char *name, const char *text, sl_err *err)
{
    char made[PATH_MAX], path[PATH_MAX], beside[PATH_MAX + 16];
    if (folder[0] != '/' || !note_path(folder, name, path, sizeof path))
        return sl_err_set(err, SL_FAILED, "%s: is no folder for notes, an absolute path is expected", folder);
    snprintf(made, sizeof made, "%s", folder);
    if (!make_folders(made))
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot be made", folder);
    snprintf(beside, sizeof beside, "%s.XXXXXX", path);
    int fd = mkostemp(beside, O_CLOEXEC);
    if (fd < 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot be written", path);
    bool is_good = write_all(fd, text);
    int cause = errno;
    if (close(fd) != 0 && is_good) {
        is_good = false;
        cause = errno;
    }
    if (is_good && rename(beside, path) != 0) {
        is_good = false;
        cause = errno;
    }
    if (is_good)
        return SL_OK;
    unlink(beside);
    return sl_err_set_errno(err, SL_FAILED, cause, "%s: cannot be written", path);
}

bool sl_os_device_name(const char *dir, char out[SL_OS_DEVICE_NAME_BYTES])
{
    struct stat info;
    struct statvfs volume;
    if (stat(dir, &info) != 0 || statvfs(dir, &volume) != 0)
        return false;
    int length = snprintf(out, SL_OS_DEVICE_NAME_BYTES, "%" PRIx64 "-%" PRIx64 "-%" PRIx64, (uint64_t)info.st_dev,
                          (uint64_t)volume.f_fsid, (uint64_t)volume.f_blocks * (uint64_t)volume.f_frsize);
    return length > 0 && length < SL_OS_DEVICE_NAME_BYTES;
}
