/* The same work in somebody else's library, in a child process: what crashes there ends that child only, and while our
 * own kernels are timed it is stopped, so that its threads, which may spin, take nothing. Inside the bench. */
#ifndef SL_BENCH_PEER_H
#define SL_BENCH_PEER_H

#include <sys/types.h>

#include "bench/kernel_case.h"

typedef struct bench_peer {
    const char *folder; /* borrowed */
    pid_t child;        /* 0: none */
    int to, from;       /* pipes */
    char name[64];
    char way[96];       /* what is compared, or why nothing can be */
} bench_peer;

/* Forks; the child loads the library and makes the work. False: it cannot, and `way` says why. The process must have
 * one thread. listener->stop is asked now and then. */
bool bench_peer_start(bench_peer *peer, const char *folder, const bench_case_spec *spec,
                      const sl_bench_listener *listener);
/* Seconds of one call in a fresh timing; negative: the child has ended. */
double bench_peer_time(bench_peer *peer, const sl_bench_listener *listener);
void bench_peer_stop(bench_peer *peer);

/* peer_ggml.c: what the child does, on its side of the pipes. */
typedef struct bench_peer_reply {
    bool ok;
    double seconds;
    char name[64], way[96];
} bench_peer_reply;
typedef struct bench_ggml bench_ggml;
/* NULL: reply->way says why. plain_only: no repacking of weights (what it was tried with has crashed before). */
bench_ggml *bench_ggml_open(const char *folder, const bench_case_spec *spec, bool plain_only, bench_peer_reply *reply);
/* Fills in seconds. */
void bench_ggml_time(bench_ggml *ggml, bench_peer_reply *reply);

#endif
