#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/fpenv.h"

struct sl_pool {
    sl_budget *budget;
    size_t n_threads; /* caller included */
    size_t n_started;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    /* under lock */
    uint64_t generation; /* one more for each run */
    bool open;           /* the run may have items left: a helper that wakes later sleeps on */
    size_t n_busy;       /* helpers inside the current run */
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
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
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
        pthread_mutex_lock(&pool->lock);
        pool->open = false;
        while (pool->n_busy > 0)
            pthread_cond_wait(&pool->done, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
    }
    sl_fpenv_leave(saved);
}
