#include "platform/readpool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "platform/os.h"

enum { STACK_BYTES = 256 << 10 };

struct sl_aio {
    const sl_vfs *vfs;
    sl_file *file;
    size_t depth;
    size_t n_threads;
    pthread_t threads[SL_READPOOL_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t has_read, has_done;
    /* under lock; both lists are rings of `depth` */
    sl_aio_read *reads; /* not begun */
    sl_aio_done *done;  /* not collected */
    size_t first_read, n_reads;
    size_t first_done, n_done;
    size_t n_in_flight; /* started and not collected */
    bool is_woken, is_stopping;
};

static void *reader_main(void *arg)
{
    sl_aio *aio = arg;
    pthread_mutex_lock(&aio->lock);
    for (;;) {
        while (!aio->is_stopping && aio->n_reads == 0)
            pthread_cond_wait(&aio->has_read, &aio->lock);
        if (aio->is_stopping)
            break;
        sl_aio_read read = aio->reads[aio->first_read];
        aio->first_read = (aio->first_read + 1) % aio->depth;
        aio->n_reads--;
        pthread_mutex_unlock(&aio->lock);
        int64_t moved = aio->vfs->pread(aio->file, read.buf, read.bytes, read.off);
        pthread_mutex_lock(&aio->lock);
        aio->done[(aio->first_done + aio->n_done++) % aio->depth] = (sl_aio_done){read.tag, moved};
        pthread_cond_signal(&aio->has_done);
    }
    pthread_mutex_unlock(&aio->lock);
    return NULL;
}

static size_t threads_of(size_t depth)
{
    return depth < SL_READPOOL_THREADS ? depth : SL_READPOOL_THREADS;
}

/* As many threads as the system gives; 0 or errno when it gives none. */
static int start_threads(sl_aio *aio)
{
    sigset_t all, saved;
    sigfillset(&all);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* A signal belongs to a thread of the program that uses us. */
    pthread_sigmask(SIG_SETMASK, &all, &saved);
    int failed = 0;
    while (failed == 0 && aio->n_threads < threads_of(aio->depth)) {
        failed = pthread_create(&aio->threads[aio->n_threads], &attr, reader_main, aio);
        aio->n_threads += failed == 0;
    }
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    pthread_attr_destroy(&attr);
    return aio->n_threads > 0 ? 0 : failed;
}

uint64_t sl_readpool_bytes(size_t depth)
{
    return sizeof(sl_aio) + depth * (sizeof(sl_aio_read) + sizeof(sl_aio_done)) + threads_of(depth) * STACK_BYTES;
}

int sl_readpool_open(const sl_vfs *vfs, const sl_aio_options *options, sl_aio **out, int *register_refused)
{
    *out = NULL;
    *register_refused = 0;
    assert(options->depth > 0);
    sl_aio *aio = calloc(1, sizeof *aio);
    if (!aio)
        return -ENOMEM;
    aio->vfs = vfs;
    aio->file = options->file;
    aio->depth = options->depth;
    pthread_mutex_init(&aio->lock, NULL);
    pthread_cond_init(&aio->has_read, NULL);
    sl_os_cond_init(&aio->has_done);
    aio->reads = calloc(aio->depth, sizeof *aio->reads);
    aio->done = calloc(aio->depth, sizeof *aio->done);
    int failed = aio->reads && aio->done ? start_threads(aio) : ENOMEM;
    if (failed != 0) {
        sl_readpool_close(aio);
        return -failed;
    }
    *out = aio;
    return 0;
}

void sl_readpool_close(sl_aio *aio)
{
    if (!aio)
        return;
    pthread_mutex_lock(&aio->lock);
    aio->is_stopping = true;
    pthread_cond_broadcast(&aio->has_read);
    pthread_mutex_unlock(&aio->lock);
    for (size_t i = 0; i < aio->n_threads; i++)
        pthread_join(aio->threads[i], NULL);
    pthread_cond_destroy(&aio->has_read);
    pthread_cond_destroy(&aio->has_done);
    pthread_mutex_destroy(&aio->lock);
    free(aio->reads);
    free(aio->done);
    free(aio);
}

int sl_readpool_start(sl_aio *aio, const sl_aio_read *reads, size_t n)
{
    pthread_mutex_lock(&aio->lock);
    size_t room = aio->depth - aio->n_in_flight;
    size_t n_started = n < room ? n : room;
    for (size_t i = 0; i < n_started; i++) {
        aio->reads[(aio->first_read + aio->n_reads++) % aio->depth] = reads[i];
        pthread_cond_signal(&aio->has_read);
    }
    aio->n_in_flight += n_started;
    pthread_mutex_unlock(&aio->lock);
    return n_started > 0 || n == 0 ? (int)n_started : -EAGAIN;
}

int sl_readpool_wait(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most)
{
    double deadline_s = timeout_s > 0 ? sl_os_seconds() + timeout_s : 0;
    pthread_mutex_lock(&aio->lock);
    bool in_time = timeout_s != 0;
    while (in_time && aio->n_done == 0 && !aio->is_woken) {
        if (timeout_s > 0)
            in_time = sl_os_cond_wait_until(&aio->has_done, &aio->lock, deadline_s);
        else
            pthread_cond_wait(&aio->has_done, &aio->lock);
    }
    size_t n = aio->n_done < most ? aio->n_done : most;
    for (size_t i = 0; i < n; i++)
        done[i] = aio->done[(aio->first_done + i) % aio->depth];
    aio->first_done = (aio->first_done + n) % aio->depth;
    aio->n_done -= n;
    aio->n_in_flight -= n;
    if (n == 0)
        aio->is_woken = false;
    pthread_mutex_unlock(&aio->lock);
    return (int)n;
}

void sl_readpool_wake(sl_aio *aio)
{
    pthread_mutex_lock(&aio->lock);
    aio->is_woken = true;
    pthread_cond_signal(&aio->has_done);
    pthread_mutex_unlock(&aio->lock);
}
