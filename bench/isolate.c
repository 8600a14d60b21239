/* Work in a child process: its peak memory is its own, and what it leaves behind goes with it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "bench/bench.h"

static bool send_all(int fd, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* A Ctrl-C that reached the parent alone is passed on, once. */
static bool receive_all(int fd, void *data, size_t bytes, pid_t child, const sl_bench_listener *listener)
{
    char *at = data;
    bool told = false;
    while (bytes > 0) {
        ssize_t n = read(fd, at, bytes);
        if (n < 0 && errno == EINTR) {
            if (!told && listener->stop && listener->stop(listener->arg))
                told = kill(child, SIGINT) == 0;
            continue;
        }
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static void work_in_child(sl_status (*fn)(void *arg, void *out, sl_err *err), void *arg, void *out, size_t bytes,
                          int fd)
{
    sl_err err = {SL_OK, ""};
    sl_status status = fn(arg, out, &err);
    err.status = status;
    bool sent = send_all(fd, &err, sizeof err) && (status != SL_OK || send_all(fd, out, bytes));
    _exit(sent ? 0 : 1);
}

sl_status sl_bench_isolate(sl_status (*fn)(void *arg, void *out, sl_err *err), void *arg, void *out, size_t bytes,
                           const sl_bench_listener *listener, sl_err *err)
{
    int ends[2];
    if (pipe(ends) != 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "cannot make a pipe");
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        work_in_child(fn, arg, out, bytes, ends[1]);
    }
    int fork_errno = errno;
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return sl_err_set_errno(err, SL_FAILED, fork_errno, "cannot start a process to measure in");
    }
    sl_err told = {SL_OK, ""};
    bool whole = receive_all(ends[0], &told, sizeof told, child, listener);
    if (whole && told.status == SL_OK)
        whole = receive_all(ends[0], out, bytes, child, listener);
    close(ends[0]);
    int end = 0;
    while (waitpid(child, &end, 0) < 0 && errno == EINTR)
        continue;
    if (!whole && WIFSIGNALED(end))
        return sl_err_set(err, SL_FAILED, "the measuring process ended by signal %d", WTERMSIG(end));
    if (!whole)
        return sl_err_set(err, SL_FAILED, "the measuring process ended before its work");
    return told.status == SL_OK ? SL_OK : sl_err_set(err, told.status, "%s", told.text);
}
