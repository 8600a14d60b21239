#include "bench/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include "platform/os.h"

enum { LOADING_S = 60 }; /* that loading a library may take, and again for each GiB that its work has */

/* ------------------------------------------------------------------------------------------------- where to look */

#if defined(__APPLE__)
#define LIBRARY_NAMES {"libggml-base.dylib", "libggml.dylib"}
#else
#define LIBRARY_NAMES {"libggml-base.so", "libggml.so"}
#endif

static bool has_library(const char *folder)
{
    static const char *const names[] = LIBRARY_NAMES;
    char path[600];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (access(path, R_OK) == 0)
            return true;
    }
    return false;
}

static size_t add_folder(const char *folder, char found[SL_BENCH_PEERS][512], size_t n)
{
    if (n == SL_BENCH_PEERS || strlen(folder) >= sizeof found[0] || !has_library(folder))
        return n;
    snprintf(found[n], sizeof found[n], "%s", folder);
    return n + 1;
}

/* $SLUICE_PEER as it is: what it lacks, the row says. Else where pip leaves llama-cpp-python, and where cmake --install
 * does ggml. */
size_t sl_bench_peers_find(const char *out[SL_BENCH_PEERS])
{
    static char found[SL_BENCH_PEERS][512];
    static const char *const patterns[] = {
        "/lib/python3*/site-packages/llama_cpp/lib",
        "/lib/python3*/dist-packages/llama_cpp/lib",
        "/lib",
    };
    const char *named = getenv("SLUICE_PEER"), *home = getenv("HOME"), *environment = getenv("VIRTUAL_ENV");
    char local[512], pattern[600];
    if (named && *named) {
        out[0] = named;
        return strcmp(named, "none") != 0;
    }
    snprintf(local, sizeof local, "%s/.local", home ? home : "");
    const char *const roots[] = {environment ? environment : "", local, "/usr/local", "/usr"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof roots / sizeof roots[0] && n == 0; i++)
        for (size_t k = 0; k < sizeof patterns / sizeof patterns[0] && n == 0 && roots[i][0]; k++) {
            glob_t hits;
            snprintf(pattern, sizeof pattern, "%s%s", roots[i], patterns[k]);
            if (glob(pattern, 0, NULL, &hits) == 0) {
                for (size_t h = 0; h < hits.gl_pathc && n == 0; h++)
                    n = add_folder(hits.gl_pathv[h], found, n);
                globfree(&hits);
            }
        }
    for (size_t i = 0; i < n; i++)
        out[i] = found[i];
    return n;
}

/* ----------------------------------------------------------------------------------------------------- the child */

static bool move_all(int fd, void *data, size_t bytes, bool sends)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t n = sends ? write(fd, at, bytes) : read(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* A parent that is killed cannot wake the child that it has stopped: the child must not outlive it. */
static void die_with(pid_t parent)
{
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (getppid() != parent)
        _exit(1);
}

/* Its prints go nowhere, a Ctrl-C ends it, and no debugger is called for a failed assertion. */
static void settle(bool verbose)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    setenv("GGML_NO_BACKTRACE", "1", 1);
    int nowhere = verbose ? -1 : open("/dev/null", O_WRONLY);
    if (nowhere >= 0) {
        dup2(nowhere, STDERR_FILENO);
        dup2(nowhere, STDOUT_FILENO);
    } else {
        dup2(STDERR_FILENO, STDOUT_FILENO);
    }
}

static void serve(const char *folder, const bench_case_spec *spec, bool plain_only, const int ends[2])
{
    bench_peer_reply reply = {0};
    char request;
    settle(spec->verbose);
    bench_ggml *ggml = bench_ggml_open(folder, spec, plain_only, &reply);
    reply.ok = ggml != NULL;
    bool more = move_all(ends[1], &reply, sizeof reply, true) && ggml;
    while (more && move_all(ends[0], &request, 1, false)) {
        bench_ggml_time(ggml, &reply);
        more = move_all(ends[1], &reply, sizeof reply, true);
    }
    _exit(0);
}

static void start(bench_peer *peer, const bench_case_spec *spec, bool plain_only)
{
    int down[2], up[2];
    if (pipe(down) != 0)
        return;
    if (pipe(up) != 0) {
        close(down[0]);
        close(down[1]);
        return;
    }
    peer->to = down[1];
    peer->from = up[0];
    fflush(NULL);
    pid_t parent = getpid();
    peer->child = fork();
    if (peer->child == 0) {
        die_with(parent);
        close(down[1]);
        close(up[0]);
        serve(peer->folder, spec, plain_only, (const int[2]){down[0], up[1]});
    }
    close(down[0]);
    close(up[1]);
    if (peer->child < 0) {
        peer->child = 0;
        close(peer->to);
        close(peer->from);
    }
}

/* ---------------------------------------------------------------------------------------------------- the parent */

static void say_end(bench_peer *peer)
{
    int end = 0;
    while (waitpid(peer->child, &end, 0) < 0 && errno == EINTR)
        continue;
    if (WIFSIGNALED(end))
        snprintf(peer->way, sizeof peer->way, "ended by signal %d (%s)", WTERMSIG(end), strsignal(WTERMSIG(end)));
    else
        snprintf(peer->way, sizeof peer->way, "ended with exit code %d", WEXITSTATUS(end));
    close(peer->to);
    close(peer->from);
    peer->child = 0;
}

/* False: the child has ended, has been silent for `limit_s` seconds, or the user wants an end. */
static bool receive(bench_peer *peer, double limit_s, const sl_bench_listener *listener, bench_peer_reply *reply)
{
    struct pollfd waits = {peer->from, POLLIN, 0};
    double end = sl_os_seconds() + limit_s;
    while (poll(&waits, 1, 200) <= 0) {
        if (sl_os_seconds() > end) {
            bench_peer_stop(peer);
            snprintf(peer->way, sizeof peer->way, "not ready within %.0f s", limit_s);
            return false;
        }
        if (listener->stop && listener->stop(listener->arg)) {
            kill(peer->child, SIGKILL);
            break;
        }
    }
    bool received = move_all(peer->from, reply, sizeof *reply, false);
    if (!received)
        say_end(peer);
    else if (kill(peer->child, SIGSTOP) != 0)
        received = false;
    return received;
}

static double loading_limit_s(const bench_case_spec *spec)
{
    double items = spec->group == SL_BENCH_GROUP_ATTENTION
                       ? 2.0 * (double)spec->n_layers * (double)spec->keys * spec->n_kv_heads * spec->head_dim
                       : (double)spec->n_in * (double)spec->n_out;
    return LOADING_S * (1 + floor(items * sizeof(float) / (1 << 30)));
}

bool bench_peer_start(bench_peer *peer, const char *folder, const bench_case_spec *spec,
                      const sl_bench_listener *listener)
{
    bench_peer_reply reply;
    *peer = (bench_peer){.folder = folder};
    /* Once more without what may have ended it. */
    for (int plain_only = 0; plain_only < 2; plain_only++) {
        snprintf(peer->way, sizeof peer->way, "no process could be started");
        start(peer, spec, plain_only != 0);
        if (!peer->child)
            return false;
        double limit_s = loading_limit_s(spec), since = sl_os_seconds();
        if (receive(peer, limit_s, listener, &reply)) {
            memcpy(peer->name, reply.name, sizeof peer->name);
            memcpy(peer->way, reply.way, sizeof peer->way);
            if (!reply.ok)
                bench_peer_stop(peer);
            return reply.ok;
        }
        if (sl_os_seconds() - since > limit_s || (listener->stop && listener->stop(listener->arg)))
            return false;
    }
    return false;
}

void bench_peer_stop(bench_peer *peer)
{
    if (!peer->child)
        return;
    kill(peer->child, SIGKILL);
    while (waitpid(peer->child, NULL, 0) < 0 && errno == EINTR)
        continue;
    close(peer->to);
    close(peer->from);
    peer->child = 0;
}

/* A child that has ended in the meantime is an answer, not a signal. */
static bool ask(const bench_peer *peer)
{
    char request = 't';
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    bool sent = move_all(peer->to, &request, 1, true);
    signal(SIGPIPE, before);
    return sent;
}

double bench_peer_time(bench_peer *peer, const sl_bench_listener *listener)
{
    bench_peer_reply reply;
    if (!peer->child || kill(peer->child, SIGCONT) != 0)
        return -1;
    if (!ask(peer)) {
        say_end(peer);
        return -1;
    }
    return receive(peer, INFINITY, listener, &reply) ? reply.seconds : -1;
}
