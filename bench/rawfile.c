#define _GNU_SOURCE /* O_DIRECT */
#include "bench/rawfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

sl_status bench_rawfile_create(const char *dir, bench_rawfile *out, sl_err *err)
{
    char path[4096];
    *out = (bench_rawfile){.fd = -1};
    int length = snprintf(path, sizeof path, "%s/sluice-bench-XXXXXX", dir);
    if (length < 0 || (size_t)length >= sizeof path)
        return sl_err_set(err, SL_USAGE, "%.80s...: the name is too long", dir);
    out->fd = mkstemp(path);
    if (out->fd < 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot make a temporary file", dir);
    unlink(path);
    fcntl(out->fd, F_SETFD, FD_CLOEXEC);
    return SL_OK;
}

static void unmap(bench_rawfile *file)
{
    if (file->map)
        munmap(file->map, (size_t)file->bytes);
    file->map = NULL;
}

void bench_rawfile_close(bench_rawfile *file)
{
    unmap(file);
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

sl_status bench_rawfile_write(bench_rawfile *file, const void *data, size_t bytes, uint64_t off, sl_err *err)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = pwrite(file->fd, at, bytes, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return sl_err_set_errno(err, SL_FAILED, n < 0 ? errno : EIO, "temporary file: writing at %llu",
                                    (unsigned long long)off);
        at += n;
        off += (uint64_t)n;
        bytes -= (size_t)n;
    }
    file->bytes = off > file->bytes ? off : file->bytes;
    return SL_OK;
}

sl_status bench_rawfile_forget(bench_rawfile *file, sl_err *err)
{
    unmap(file);
    if (fsync(file->fd) != 0 && errno != EINVAL && errno != EROFS)
        return sl_err_set_errno(err, SL_FAILED, errno, "temporary file: waiting for the disk");
#ifdef POSIX_FADV_DONTNEED
    int failed = posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (failed)
        return sl_err_set_errno(err, SL_FAILED, failed, "temporary file: emptying the page cache");
#endif
    return SL_OK;
}

sl_status bench_rawfile_map(bench_rawfile *file, const uint8_t **out, sl_err *err)
{
    *out = NULL;
    void *map = mmap(NULL, (size_t)file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (map == MAP_FAILED)
        return sl_err_set_errno(err, SL_FAILED, errno, "temporary file: mapping %llu bytes",
                                (unsigned long long)file->bytes);
    posix_madvise(map, (size_t)file->bytes, POSIX_MADV_SEQUENTIAL);
    file->map = map;
    *out = map;
    return SL_OK;
}

/* The store's file has no name and its descriptor is the store's own: the process's table of descriptors finds it. */
sl_status bench_rawfile_open_unnamed(uint64_t bytes, bool direct, bench_rawfile *out, sl_err *err)
{
    *out = (bench_rawfile){.fd = -1};
    int flags = O_RDONLY | O_CLOEXEC;
#ifdef O_DIRECT
    flags |= direct ? O_DIRECT : 0;
#else
    if (direct)
        return sl_err_set(err, SL_REFUSED, "this system has no O_DIRECT");
#endif
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return sl_err_set(err, SL_REFUSED, "this system does not list open files");
    struct dirent *entry;
    while (out->fd < 0 && (entry = readdir(dir)) != NULL) {
        struct stat info;
        char path[64];
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 0 ||
            (uint64_t)info.st_size < bytes)
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        out->fd = open(path, flags);
        out->bytes = bytes;
    }
    int reason = errno;
    closedir(dir);
    if (out->fd < 0)
        return sl_err_set_errno(err, SL_REFUSED, reason, "the file cannot be opened a second time");
    return SL_OK;
}

void bench_rawfile_path(const bench_rawfile *file, char *out, size_t capacity)
{
    snprintf(out, capacity, "/proc/%ld/fd/%d", (long)getpid(), file->fd);
}

sl_status bench_rawfile_read(const bench_rawfile *file, void *buf, size_t bytes, uint64_t off, size_t *moved,
                             sl_err *err)
{
    ssize_t n;
    do {
        n = pread(file->fd, buf, bytes, (off_t)off);
    } while (n < 0 && errno == EINTR);
    *moved = n > 0 ? (size_t)n : 0;
    if (n < 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "temporary file: reading at %llu", (unsigned long long)off);
    return SL_OK;
}

/* Its standard output; what does not fit is read and forgotten, so that the program does not hang. */
static void take_output(int fd, char *out, size_t capacity)
{
    size_t used = 0;
    for (;;) {
        char rest[4096];
        bool fits = used + 1 < capacity;
        ssize_t n = fits ? read(fd, out + used, capacity - 1 - used) : read(fd, rest, sizeof rest);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        used += fits ? (size_t)n : 0;
    }
    out[used] = '\0';
}

sl_status bench_run_program(char *const argv[], char *out, size_t capacity, sl_err *err)
{
    int ends[2];
    if (pipe(ends) != 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "cannot make a pipe");
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t child = -1;
    int failed = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed) {
        close(ends[0]);
        return sl_err_set_errno(err, failed == ENOENT ? SL_REFUSED : SL_FAILED, failed, "%s", argv[0]);
    }
    take_output(ends[0], out, capacity);
    close(ends[0]);
    int end = 0;
    while (waitpid(child, &end, 0) < 0 && errno == EINTR)
        continue;
    if (!WIFEXITED(end) || WEXITSTATUS(end) != 0)
        return sl_err_set(err, SL_FAILED, "%s ended with status %d", argv[0], end);
    return SL_OK;
}
