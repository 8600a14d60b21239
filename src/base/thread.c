#if defined(__linux__)
#define _GNU_SOURCE
#include <sched.h>
#endif

#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fpenv.h"

/* How long a thread looks for the next run, or for the end of this one, before it sleeps. The runs of one pass follow
 * each other within a few microseconds, while waking a thread takes 50 and more on a virtual processor: a row's pass of
 * 200 runs would otherwise be computed by one thread alone. */
enum { LOOK_NS = 50000, PAUSES = 8 };

struct sl_pool {
    sl_budget *budget;
    size_t n_threads; /* caller included */
    size_t n_started;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    bool may_look; /* each thread can have a processor: looking takes nobody's */
    /* written under lock; the atomic ones are looked at without */
    atomic_uint_fast64_t generation; /* one more for each run */
    bool open;                       /* the run may have items left: a helper that wakes later sleeps on */
    atomic_size_t n_busy;            /* helpers inside the current run */
    size_t n_numbered;
    bool stopping;
    /* the current run */
    sl_pool_task task;
    void *arg;
    size_t n_items;
    atomic_size_t next_item;
};

static void work(sl_pool *pool, size_t worker)
{
    for (;;) {
        size_t item = atomic_fetch_add_explicit(&pool->next_item, 1, memory_order_relaxed);
        if (item >= pool->n_items)
            return;
        pool->task(pool->arg, item, worker);
    }
}

static void pause_briefly(void)
{
    for (int i = 0; i < PAUSES; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb");
#endif
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Whether there is something to sleep for: true while no run is newer than the one seen. */
static bool is_idle(const sl_pool *pool, uint64_t seen)
{
    return atomic_load_explicit(&pool->generation, memory_order_acquire) == seen;
}

static bool is_unfinished(const sl_pool *pool, uint64_t unused)
{
    (void)unused;
    return atomic_load_explicit(&pool->n_busy, memory_order_acquire) > 0;
}

/* Looks on while the state holds, for LOOK_NS at most. Only the lock says what is so: this merely saves the sleep. */
static void look(const sl_pool *pool, bool (*holds)(const sl_pool *pool, uint64_t seen), uint64_t seen)
{
    if (!pool->may_look || !holds(pool, seen))
        return;
    uint64_t end_ns = now_ns() + LOOK_NS;
    do
        pause_briefly();
    while (holds(pool, seen) && now_ns() < end_ns);
}

static void *helper_main(void *arg)
{
    sl_pool *pool = arg;
    (void)sl_fpenv_enter();
    pthread_mutex_lock(&pool->lock);
    size_t worker = ++pool->n_numbered;
    uint64_t seen = 0;
    for (;;) {
        while (!pool->stopping && (pool->generation == seen || !pool->open))
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->stopping)
            break;
        seen = pool->generation;
        pool->n_busy++;
        pthread_mutex_unlock(&pool->lock);
        work(pool, worker);
        pthread_mutex_lock(&pool->lock);
        if (--pool->n_busy == 0)
            pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
        look(pool, is_idle, seen);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* That this process may use; 0: unknown. */
static long n_processors(void)
{
#if defined(__linux__)
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (long)CPU_COUNT(&set) : 0;
#else
    return sysconf(_SC_NPROCESSORS_ONLN);
#endif
}

sl_status sl_pool_create(size_t n_threads, sl_budget *budget, sl_pool **out, sl_err *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > 4096)
        return sl_err_set(err, SL_USAGE, "threads: %zu, expected 1 to 4096", n_threads);
    sl_pool *pool = NULL;
    sl_status status = sl_mem_new(budget, 1, sizeof *pool, "thread pool", &pool, err);
    if (status != SL_OK)
        return status;
    pool->budget = budget;
    pool->n_threads = n_threads;
    pool->may_look = n_processors() >= (long)n_threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    status = sl_mem_new(budget, n_threads - 1, sizeof *pool->threads, "thread pool", &pool->threads, err);
    while (status == SL_OK && pool->n_started < n_threads - 1) {
        int failed = pthread_create(&pool->threads[pool->n_started], NULL, helper_main, pool);
        if (failed)
            status = sl_err_set_errno(err, SL_FAILED, failed, "cannot start thread %zu of %zu", pool->n_started + 2,
                                      n_threads);
        else
            pool->n_started++;
    }
    if (status != SL_OK) {
        sl_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return SL_OK;
}

void sl_pool_destroy(sl_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    sl_mem_free(pool->budget, pool->threads);
    sl_mem_free(pool->budget, pool);
}

size_t sl_pool_threads(const sl_pool *pool)
{
    return pool->n_threads;
}

void sl_pool_run(sl_pool *pool, size_t n_items, sl_pool_task task, void *arg)
{
    if (n_items == 0)
        return;
    sl_fpenv saved = sl_fpenv_enter();
    bool alone = n_items == 1 || pool->n_threads == 1;
    pthread_mutex_lock(&pool->lock);
    assert(pool->n_busy == 0);
    pool->task = task;
    pool->arg = arg;
    pool->n_items = n_items;
    atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
    if (!alone) {
        pool->open = true;
        pool->generation++;
        pthread_cond_broadcast(&pool->wake);
    }
    pthread_mutex_unlock(&pool->lock);
    work(pool, 0);
    if (!alone) {
        /* Every item is taken. Who has taken one is waited for; who has not woken up yet is not. */
        look(pool, is_unfinished, 0);
        pthread_mutex_lock(&pool->lock);
        pool->open = false;
        while (pool->n_busy > 0)
            pthread_cond_wait(&pool->done, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
    }
    sl_fpenv_leave(saved);
}

void sl_pool_run_alone(sl_pool *pool, size_t n_items, sl_pool_task task, void *arg)
{
    (void)pool;
    sl_fpenv saved = sl_fpenv_enter();
    for (size_t item = 0; item < n_items; item++)
        task(arg, item, 0);
    sl_fpenv_leave(saved);
}
