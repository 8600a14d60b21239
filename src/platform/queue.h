/* Many reads of one file in flight at once. Whole reads: what comes back short, interrupted or busy is asked for again
 * inside; a read ends with all its bytes or with one named error.
 *
 * Owns: the system's queue (io_uring through the table of operations) or, where that is missing or forbidden, a pool of
 * preading threads. Refuses: nothing that the file would give to a plain read.
 * Thread rule: one thread adds and waits; sl_queue_wake from any thread. */
#ifndef SL_QUEUE_H
#define SL_QUEUE_H

#include "base/log.h"
#include "base/mem.h"
#include "platform/vfs.h"

typedef struct sl_queue sl_queue;

typedef enum sl_io_engine { SL_IO_ENGINE_AUTO, SL_IO_ENGINE_URING, SL_IO_ENGINE_POOL } sl_io_engine;

typedef struct sl_queue_options {
    const sl_vfs *vfs;
    sl_file *file;    /* borrowed, outlives the queue */
    const char *name; /* in errors; borrowed */
    uint8_t *memory;  /* every buffer lies in here: registered with the system once, where it lets us; best untouched
                         so far, so that it can be given big pages */
    size_t memory_bytes;
    size_t depth;        /* most reads in flight, 1 or more */
    sl_io_engine engine; /* AUTO: the system's queue, else the pool. URING: SL_REFUSED where it cannot be had */
    sl_budget *budget;
    sl_log log; /* a fallback is said here, once a process for each kind */
} sl_queue_options;

sl_status sl_queue_create(const sl_queue_options *options, sl_queue **out, sl_err *err) SL_CHECK;
void sl_queue_destroy(sl_queue *queue); /* waits for what is in flight */

/* Memory that a queue of that depth takes. For the plan. */
uint64_t sl_queue_bytes(size_t depth);

typedef struct sl_read {
    void *buf; /* buffer, offset and length are multiples of a sector; untouched by others until done */
    size_t bytes;
    uint64_t off;
    uint64_t tag; /* the caller's */
} sl_read;

size_t sl_queue_room(const sl_queue *queue); /* reads that can be added now */
/* Starts n <= room reads; they may finish in any order. An error to start is the read's own. */
void sl_queue_add(sl_queue *queue, const sl_read *reads, size_t n);

/* Waits, without spinning, until a read is finished, the queue is woken, or timeout_s (negative: never; 0: do not
 * wait). True: *tag is that of a finished read and *status its end, with the text in err. False: woken or timed out. */
bool sl_queue_wait(sl_queue *queue, double timeout_s, uint64_t *tag, sl_status *status, sl_err *err);
/* Ends the wait under way or the next one. */
void sl_queue_wake(sl_queue *queue);

/* Seconds with at least one read in flight, so far: from its adding until its end was learnt. From any thread. */
double sl_queue_busy_s(const sl_queue *queue);
/* "io_uring", "io_uring, unregistered buffers", "pread pool", "dispatch"; static */
const char *sl_queue_engine(const sl_queue *queue);

#endif
