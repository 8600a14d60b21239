/* A pool of computing threads.
 * Owns: its threads. Refuses: nesting (a task must not call sl_pool_run). An idle thread looks for the next run for
 * 50 microseconds at most, then sleeps on a condition variable. Thread rule: one thread at a time calls sl_pool_run on
 * a given pool. */
#ifndef SL_THREAD_H
#define SL_THREAD_H

#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"

typedef struct sl_pool sl_pool;

/* item in [0, n_items); worker in [0, sl_pool_threads): two calls with one worker index never overlap. */
typedef void (*sl_pool_task)(void *arg, size_t item, size_t worker);

/* n_threads >= 1 counts the caller of sl_pool_run, which works too. Every worker enters sl_fpenv. */
sl_status sl_pool_create(size_t n_threads, sl_budget *budget, sl_pool **out, sl_err *err) SL_CHECK;
void sl_pool_destroy(sl_pool *pool);
size_t sl_pool_threads(const sl_pool *pool);

/* Runs the task once for each item, taken in order by whichever thread is free; returns when all are done. The
 * caller's control word is set for its share and restored. */
void sl_pool_run(sl_pool *pool, size_t n_items, sl_pool_task task, void *arg);

/* The same by the caller alone (worker 0): for work that is done sooner than shared. */
void sl_pool_run_alone(sl_pool *pool, size_t n_items, sl_pool_task task, void *arg);

#endif
