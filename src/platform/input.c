/* Regular files opened for reading, by POSIX calls alone.
 * Owns: the descriptor and a copy of the path for messages. Refuses: directories, pipes, devices and sockets, by
 * name. */
#include "platform/input.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a path in a message: the rest of sl_err.text is for the cause. */
#define SHOWN_BYTES 256
/* Of one call: macOS refuses 2 GiB and more. */
#define MOST_BYTES ((size_t)1 << 30)

struct sl_input {
    int fd;
    char path[]; /* the end of a path too long to show */
};

static const char *shown(const char *path)
{
    size_t size = strlen(path);
    return size <= SHOWN_BYTES ? path : path + (size - SHOWN_BYTES);
}

static const char *kind_name(mode_t mode)
{
    if (S_ISDIR(mode))
        return "a directory";
    if (S_ISFIFO(mode))
        return "a pipe";
    if (S_ISSOCK(mode))
        return "a socket";
    return "a device";
}

sl_status sl_input_open(const char *path, sl_input **out, uint64_t *size_bytes, sl_err *err)
{
    *out = NULL;
    *size_bytes = 0;
    /* O_NONBLOCK: opening a pipe that nobody writes would wait for ever. It changes nothing for regular files. */
    int fd;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot be opened", shown(path));
    struct stat info;
    sl_status status = SL_OK;
    if (fstat(fd, &info) != 0)
        status = sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot be examined", shown(path));
    else if (!S_ISREG(info.st_mode))
        status =
            sl_err_set(err, SL_FAILED, "%s: is %s, a regular file is expected", shown(path), kind_name(info.st_mode));
    size_t shown_size = strlen(shown(path)) + 1;
    sl_input *input = status == SL_OK ? malloc(sizeof *input + shown_size) : NULL;
    if (status == SL_OK && !input)
        status = sl_err_set(err, SL_FAILED, "out of memory: opening %s", shown(path));
    if (status != SL_OK) {
        close(fd);
        return status;
    }
    input->fd = fd;
    memcpy(input->path, shown(path), shown_size);
    *out = input;
    *size_bytes = (uint64_t)info.st_size;
    return SL_OK;
}

sl_status sl_input_read_by(sl_input_pread transfer, sl_input *input, void *buf, size_t bytes, uint64_t off, sl_err *err)
{
    uint8_t *to = buf;
    if (off > INT64_MAX || bytes > INT64_MAX - off)
        return sl_err_set(err, SL_FAILED, "%s: offset %" PRIu64 " is beyond what a file can have", input->path, off);
    while (bytes > 0) {
        ssize_t moved = transfer(input->fd, to, bytes < MOST_BYTES ? bytes : MOST_BYTES, (off_t)off);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0)
            return sl_err_set_errno(err, SL_FAILED, errno, "%s: reading %zu bytes at offset %" PRIu64 " failed",
                                    input->path, bytes, off);
        if (moved == 0)
            return sl_err_set(err, SL_FAILED, "%s: ends at offset %" PRIu64 ", %zu more bytes are expected",
                              input->path, off, bytes);
        to += moved;
        off += (uint64_t)moved;
        bytes -= (size_t)moved;
    }
    return SL_OK;
}

sl_status sl_input_read(sl_input *input, void *buf, size_t bytes, uint64_t off, sl_err *err)
{
    return sl_input_read_by(pread, input, buf, bytes, off, err);
}

void sl_input_close(sl_input *input)
{
    if (!input)
        return;
    close(input->fd);
    free(input);
}
