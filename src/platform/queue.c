#include "platform/queue.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "platform/os.h"
#include "platform/readpool.h"
#include "platform/transfer.h"

enum {
    MOST_DEPTH = 1024,
    BATCH = 32,                 /* raw reads started, or ends collected, by one call */
    SYSTEM_FIXED_BYTES = 32768, /* rings of a system's queue and their heads, and for each read: */
    SYSTEM_READ_BYTES = 512     /* two submissions and four completions, for rounding up to a power of two */
};
static const size_t NOWHERE = SIZE_MAX;

/* A read on its way:  free -> pending (sl_queue_add) -> started (start_pending) -> pending again, if short or busy
 * (settle) -> finished (settle, finish) -> free (pop_finished). */
typedef struct entry {
    sl_read read;
    sl_transfer transfer;
    size_t next; /* in its list */
    bool is_started;
} entry;

typedef struct list {
    size_t first, last;
    size_t n;
} list;

struct sl_queue {
    sl_queue_options options;
    sl_aio *aio;
    int (*start)(sl_aio *aio, const sl_aio_read *reads, size_t n);
    int (*wait)(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most);
    void (*wake)(sl_aio *aio);
    void (*close)(sl_aio *aio);
    const char *engine;
    uint64_t counted_bytes; /* for the engine, against the budget */
    list free, pending, finished;
    size_t n_started;
    int start_tries, wait_tries; /* in a row, with nothing moving */
    double resume_at;            /* the device was busy: nothing is started before */
    int broken;                  /* errno: ends can no longer be learnt; every read fails */
    atomic_bool is_woken;
    pthread_mutex_t busy_lock;
    size_t n_busy; /* added and not yet seen to end */
    double busy_s, busy_since;
    entry entries[]; /* [depth] */
};

static void push(sl_queue *queue, list *to, size_t i)
{
    queue->entries[i].next = NOWHERE;
    if (to->n++ == 0)
        to->first = i;
    else
        queue->entries[to->last].next = i;
    to->last = i;
}

static size_t pop(sl_queue *queue, list *from)
{
    size_t i = from->first;
    from->first = queue->entries[i].next;
    from->n--;
    return i;
}

static void count_busy(sl_queue *queue, bool more)
{
    double now = sl_os_seconds();
    pthread_mutex_lock(&queue->busy_lock);
    if (more && queue->n_busy++ == 0)
        queue->busy_since = now;
    else if (!more && --queue->n_busy == 0)
        queue->busy_s += now - queue->busy_since;
    pthread_mutex_unlock(&queue->busy_lock);
}

static void finish(sl_queue *queue, size_t i, int cause)
{
    queue->entries[i].transfer.cause = cause;
    push(queue, &queue->finished, i);
    count_busy(queue, false);
}

static bool is_passing(int cause)
{
    return cause == EINTR || cause == EAGAIN || cause == EBUSY || cause == ENOMEM;
}

/* Raw reads for the first pending ones, which stay in their list. */
static size_t describe_pending(const sl_queue *queue, sl_aio_read *reads)
{
    size_t n = 0;
    for (size_t i = queue->pending.first; n < BATCH && n < queue->pending.n; i = queue->entries[i].next) {
        const entry *e = &queue->entries[i];
        size_t done = e->transfer.done;
        reads[n++] = (sl_aio_read){(uint8_t *)e->read.buf + done, e->read.bytes - done, e->read.off + done, i};
    }
    return n;
}

static void start_pending(sl_queue *queue)
{
    sl_aio_read reads[BATCH];
    while (queue->pending.n > 0) {
        if (queue->broken) {
            finish(queue, pop(queue, &queue->pending), queue->broken);
            continue;
        }
        if (queue->resume_at > 0 && sl_os_seconds() < queue->resume_at)
            return;
        queue->resume_at = 0;
        int n_started = queue->start(queue->aio, reads, describe_pending(queue, reads));
        for (int n = 0; n < n_started; n++) {
            queue->entries[pop(queue, &queue->pending)].is_started = true;
            queue->n_started++;
            queue->start_tries = 0;
        }
        if (n_started > 0)
            continue;
        /* While others are in flight, what they end with makes room; alone, there is a limit to patience. */
        int cause = n_started == 0 ? EAGAIN : -n_started;
        queue->start_tries += queue->n_started == 0;
        if (!is_passing(cause) || queue->start_tries >= SL_TRANSFER_TRIES) {
            queue->start_tries = 0;
            finish(queue, pop(queue, &queue->pending), cause);
        } else {
            queue->resume_at = sl_os_seconds() + SL_TRANSFER_PAUSE_S;
        }
    }
}

static void settle(sl_queue *queue, const sl_aio_done *done)
{
    assert(done->tag < queue->options.depth && queue->entries[done->tag].is_started);
    size_t i = (size_t)done->tag;
    entry *e = &queue->entries[i];
    e->is_started = false;
    queue->n_started--;
    if (sl_transfer_take(&e->transfer, done->moved)) {
        finish(queue, i, e->transfer.cause);
        return;
    }
    if (e->transfer.cause == EAGAIN)
        queue->resume_at = sl_os_seconds() + SL_TRANSFER_PAUSE_S;
    push(queue, &queue->pending, i);
}

/* Ends can no longer be learnt. What is in flight is given up: a caller that waited for ever would be worse. */
static void give_up(sl_queue *queue, int cause)
{
    queue->broken = cause;
    for (size_t i = 0; i < queue->options.depth; i++) {
        if (queue->entries[i].is_started) {
            queue->entries[i].is_started = false;
            finish(queue, i, cause);
        }
    }
    queue->n_started = 0;
}

/* Takes in what has ended; waits for the first end at most timeout_s (negative: for ever). */
static void collect(sl_queue *queue, double timeout_s)
{
    sl_aio_done done[BATCH];
    int n = queue->wait(queue->aio, timeout_s, done, BATCH);
    if (n >= 0) {
        queue->wait_tries = 0;
        for (int i = 0; i < n && !queue->broken; i++)
            settle(queue, &done[i]);
        return;
    }
    /* A signal is no failure, however many come. */
    if (n == -EINTR)
        return;
    if (++queue->wait_tries >= SL_TRANSFER_TRIES)
        give_up(queue, -n);
    else
        sl_transfer_pause();
}

static bool pop_finished(sl_queue *queue, uint64_t *tag, sl_status *status, sl_err *err)
{
    if (queue->finished.n == 0)
        return false;
    size_t i = pop(queue, &queue->finished);
    *tag = queue->entries[i].read.tag;
    *status = sl_transfer_end(&queue->entries[i].transfer, true, queue->options.name, err);
    push(queue, &queue->free, i);
    return true;
}

bool sl_queue_wait(sl_queue *queue, double timeout_s, uint64_t *tag, sl_status *status, sl_err *err)
{
    double end = timeout_s < 0 ? INFINITY : sl_os_seconds() + timeout_s;
    for (bool is_late = false;;) {
        if (pop_finished(queue, tag, status, err))
            return true;
        /* After the ends: one that comes with a wake must not be held back by it, and the wake is not lost by it. */
        if (is_late || atomic_exchange(&queue->is_woken, false))
            return false;
        start_pending(queue);
        if (queue->finished.n > 0)
            continue;
        double now = sl_os_seconds();
        double until = queue->pending.n > 0 && queue->resume_at < end ? queue->resume_at : end;
        double left = isinf(until) ? -1 : until > now ? until - now : 0;
        collect(queue, left);
        is_late = sl_os_seconds() >= end;
    }
}

void sl_queue_wake(sl_queue *queue)
{
    atomic_store(&queue->is_woken, true);
    queue->wake(queue->aio);
}

size_t sl_queue_room(const sl_queue *queue)
{
    return queue->free.n;
}

/* Looked at in debug builds only. */
static bool is_allowed(const sl_queue *queue, const sl_read *read)
{
    uintptr_t at = (uintptr_t)read->buf, memory = (uintptr_t)queue->options.memory;
    bool is_inside = !queue->options.memory || (at >= memory && read->bytes <= queue->options.memory_bytes &&
                                                at - memory <= queue->options.memory_bytes - read->bytes);
    return is_inside && read->bytes > 0 && at % SL_SECTOR_BYTES == 0 && read->bytes % SL_SECTOR_BYTES == 0 &&
           read->off % SL_SECTOR_BYTES == 0;
}

void sl_queue_add(sl_queue *queue, const sl_read *reads, size_t n)
{
    assert(n <= sl_queue_room(queue));
    for (size_t i = 0; i < n; i++) {
        assert(is_allowed(queue, &reads[i]));
        (void)is_allowed;
        size_t at = pop(queue, &queue->free);
        entry *e = &queue->entries[at];
        e->read = reads[i];
        e->transfer = (sl_transfer){.bytes = reads[i].bytes, .off = reads[i].off};
        push(queue, &queue->pending, at);
        count_busy(queue, true);
    }
    start_pending(queue);
}

double sl_queue_busy_s(const sl_queue *queue)
{
    /* Only the lock changes. */
    pthread_mutex_t *lock = (pthread_mutex_t *)&queue->busy_lock;
    pthread_mutex_lock(lock);
    double busy_s = queue->busy_s + (queue->n_busy > 0 ? sl_os_seconds() - queue->busy_since : 0);
    pthread_mutex_unlock(lock);
    return busy_s;
}

const char *sl_queue_engine(const sl_queue *queue)
{
    return queue->engine;
}

static uint64_t system_bytes(size_t depth)
{
    return SYSTEM_FIXED_BYTES + (uint64_t)depth * SYSTEM_READ_BYTES;
}

uint64_t sl_queue_bytes(size_t depth)
{
    enum { HEAD_BYTES = 64 }; /* of the heap block */
    uint64_t own = sizeof(sl_queue) + depth * sizeof(entry) + HEAD_BYTES;
    uint64_t pool = sl_readpool_bytes(depth), system = system_bytes(depth);
    return own + (pool > system ? pool : system);
}

/* A fallback: worth a line once, the first time that anybody listens. */
static void say_once(const sl_log *log, atomic_flag *said, int cause, const char *what)
{
    sl_err text;
    if (!log->fn || atomic_flag_test_and_set(said))
        return;
    (void)sl_err_set_errno(&text, SL_OK, cause, "%s", what);
    sl_log_write(log, SL_LOG_LEVEL_INFO, "%s", text.text);
}

/* *cause: 0, or the errno for which this system has no queue for us. */
static sl_status open_system(sl_queue *queue, const sl_aio_options *aio_options, int *cause, sl_err *err)
{
    static atomic_flag said_unregistered = ATOMIC_FLAG_INIT;
    const sl_queue_options *options = &queue->options;
    const sl_vfs *vfs = options->vfs;
    *cause = ENOSYS;
    if (!vfs->aio_open)
        return SL_OK;
    sl_status status = sl_budget_take(options->budget, system_bytes(options->depth), "queue of reads", err);
    if (status != SL_OK)
        return status;
    int refused = 0;
    int failed = vfs->aio_open(vfs, aio_options, &queue->aio, &refused);
    *cause = -failed;
    if (failed != 0) {
        sl_budget_give(options->budget, system_bytes(options->depth));
        return SL_OK;
    }
    queue->counted_bytes = system_bytes(options->depth);
    queue->start = vfs->aio_start;
    queue->wait = vfs->aio_wait;
    queue->wake = vfs->aio_wake;
    queue->close = vfs->aio_close;
    queue->engine = refused ? "io_uring, unregistered buffers" : vfs->aio_name;
    if (refused)
        say_once(&options->log, &said_unregistered, refused,
                 "io_uring reads into unregistered buffers: the system does not lock that much memory (ulimit -l)");
    return SL_OK;
}

static sl_status open_pool(sl_queue *queue, const sl_aio_options *aio_options, sl_err *err)
{
    const sl_queue_options *options = &queue->options;
    uint64_t bytes = sl_readpool_bytes(options->depth);
    sl_status status = sl_budget_take(options->budget, bytes, "pool of reading threads", err);
    if (status != SL_OK)
        return status;
    queue->counted_bytes = bytes;
    int refused = 0;
    int failed = sl_readpool_open(options->vfs, aio_options, &queue->aio, &refused);
    if (failed != 0)
        return sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot start threads that read it", options->name);
    queue->start = sl_readpool_start;
    queue->wait = sl_readpool_wait;
    queue->wake = sl_readpool_wake;
    queue->close = sl_readpool_close;
    queue->engine = "pread pool";
    return SL_OK;
}

static sl_status open_engine(sl_queue *queue, sl_err *err)
{
    static atomic_flag said_pool = ATOMIC_FLAG_INIT;
    const sl_queue_options *options = &queue->options;
    sl_aio_options aio_options = {options->file, options->memory, options->memory_bytes, options->depth};
    /* Before registration, which touches the memory. A disk that takes a few hundred pieces in one request was twice
     * as quick with pieces of 2 MiB as with pieces of 4 KiB. */
    if (options->memory && options->vfs->want_big_pages)
        options->vfs->want_big_pages(options->memory, options->memory_bytes);
    if (options->engine != SL_IO_ENGINE_POOL) {
        int cause;
        sl_status status = open_system(queue, &aio_options, &cause, err);
        if (status != SL_OK || cause == 0)
            return status;
        if (options->engine == SL_IO_ENGINE_URING)
            return sl_err_set_errno(err, SL_REFUSED, cause, "%s: io_uring cannot be had here", options->name);
        say_once(&options->log, &said_pool, cause, "a pool of threads reads: io_uring cannot be had here");
    }
    return open_pool(queue, &aio_options, err);
}

sl_status sl_queue_create(const sl_queue_options *options, sl_queue **out, sl_err *err)
{
    *out = NULL;
    if (options->depth < 1 || options->depth > MOST_DEPTH)
        return sl_err_set(err, SL_USAGE, "reads in flight: %zu, expected 1 to %d", options->depth, MOST_DEPTH);
    sl_queue *queue = NULL;
    size_t bytes = sizeof *queue + options->depth * sizeof(entry);
    sl_status status = sl_mem_new(options->budget, 1, bytes, "queue of reads", &queue, err);
    if (status != SL_OK)
        return status;
    queue->options = *options;
    pthread_mutex_init(&queue->busy_lock, NULL);
    atomic_init(&queue->is_woken, false);
    for (size_t i = 0; i < options->depth; i++)
        push(queue, &queue->free, i);
    status = open_engine(queue, err);
    if (status != SL_OK) {
        sl_queue_destroy(queue);
        return status;
    }
    *out = queue;
    return SL_OK;
}

void sl_queue_destroy(sl_queue *queue)
{
    if (!queue)
        return;
    while (queue->n_started > 0)
        collect(queue, -1);
    if (queue->aio)
        queue->close(queue->aio);
    pthread_mutex_destroy(&queue->busy_lock);
    sl_budget_give(queue->options.budget, queue->counted_bytes);
    sl_mem_free(queue->options.budget, queue);
}
