/* A file of known bytes, memory to read it into and a queue between: for the tests of sl_queue. */
#ifndef TEST_QUEUE_RIG_H
#define TEST_QUEUE_RIG_H

#include "common/fault_vfs.h"
#include "platform/queue.h"

enum { RIG_FILE_BYTES = 4 << 20, RIG_LOG_LINES = 8 };

typedef struct queue_rig {
    fault_vfs fault;
    sl_budget budget;
    sl_file *file;
    bool is_direct;
    uint8_t *memory; /* [memory_bytes]; whole file too, unless set otherwise before rig_open */
    size_t memory_bytes;
    sl_queue *queue;
    char log[RIG_LOG_LINES][512];
    size_t n_log;
} queue_rig;

const char *rig_dir(void);

/* The file and the memory; fails the test on an error. */
void rig_init(queue_rig *rig, fault_kind kind, int code, uint64_t n);
/* The queue, over the rig's memory. */
sl_status rig_open(queue_rig *rig, sl_io_engine engine, size_t depth, sl_err *err);
void rig_close(queue_rig *rig); /* the queue; NULL allowed; the budget must be as before */
void rig_deinit(queue_rig *rig);

/* The bytes of [off, off + bytes) as they were written? */
bool rig_is_right(const uint8_t *buf, uint64_t off, size_t bytes);
/* Whether this system has a queue of its own that lets us in; `cause`: why not. */
bool rig_has_system_queue(char *cause, size_t cause_bytes);

typedef struct rig_result {
    size_t n_right, n_wrong, n_failed; /* reads */
    sl_err err;                        /* of the last that failed */
} rig_result;

/* Reads the whole file by reads of `read_bytes`, as many in flight as the queue has room for. Each tag must come back
 * once. A plain function, so that children can use it: false when that was not so. */
bool rig_read_all(queue_rig *rig, size_t read_bytes, rig_result *result);

#endif
