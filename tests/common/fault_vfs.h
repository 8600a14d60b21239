/* The system's files with one fault, at the n-th call of its kind. The faults of reads come at the n-th blocking read
 * or at the n-th end of an asynchronous one; both count together. */
#ifndef TEST_FAULT_VFS_H
#define TEST_FAULT_VFS_H

#include <stdatomic.h>

#include "platform/vfs.h"

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_OPEN,       /* error `code`: of temporary and named files */
    FAULT_READ,       /* error `code` */
    FAULT_WRITE,      /* error `code` */
    FAULT_SHORT_READ, /* half of the bytes, at least one */
    FAULT_SHORT_WRITE,
    FAULT_ZERO_READ, /* as at the end of a file */
    FAULT_ZERO_WRITE,
    FAULT_FLIPPED_BIT,     /* in what is read */
    FAULT_DIRECT_AT_OPEN,  /* O_DIRECT refused at open (n is ignored, like in the next three) */
    FAULT_DIRECT_AT_WRITE, /* EINVAL for direct writes */
    FAULT_DIRECT_AT_READ,  /* EINVAL for direct reads */
    FAULT_SILENTLY_CACHED, /* direct accepted, pages cached all the same */
    FAULT_WRITE_OUT,       /* the n-th drop of cached pages fails with `code`: writing out failed */
    FAULT_AIO_OPEN,        /* no asynchronous queue, now and ever: `code` (n is ignored, like in the next two) */
    FAULT_AIO_REGISTER,    /* memory and file are not registered: `code` */
    FAULT_AIO_SHUFFLED,    /* ends arrive one by one in a shuffled order */
    FAULT_AIO_START,       /* the n-th start refused with `code` */
    FAULT_AIO_FEW_STARTED, /* the n-th start takes one read only */
    FAULT_AIO_WAIT,        /* the n-th wait fails with `code` */
    FAULT_SYNC,            /* the n-th sync fails with `code`, and so the next three */
    FAULT_PUBLISH,
    FAULT_CLEAR,
    FAULT_SET_SIZE,
    FAULT_SHARE
} fault_kind;

typedef struct fault_vfs {
    sl_vfs vfs; /* give this to the store */
    fault_kind kind;
    int code;                      /* errno */
    uint64_t n;                    /* the n-th call fails, from 1 */
    uint64_t n_in_row;             /* and so many more */
    atomic_uint_least64_t n_calls; /* of the kind */
    atomic_uint_least64_t n_hits;  /* faults that happened */
    atomic_int n_open;             /* files open now */
    atomic_uint_least64_t n_syncs, n_publishes, n_clears; /* calls, of whatever kind the fault is */
    bool shares_by_copying;        /* sharing works, whatever the file system is */
    atomic_uint_least64_t n_shares; /* of ranges, that worked */
    atomic_int n_queues;           /* asynchronous queues open now */
} fault_vfs;

void fault_vfs_init(fault_vfs *fault, fault_kind kind, int code, uint64_t n);

#endif
