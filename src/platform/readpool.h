/* A pool of preading threads that looks like a system's queue of raw reads: for systems that have none or forbid it.
 * Owns: its threads. Each operation keeps the contract of the aio_ operation of the same name in vfs.h. */
#ifndef SL_READPOOL_H
#define SL_READPOOL_H

#include "platform/vfs.h"

enum { SL_READPOOL_THREADS = 16 }; /* at most: further reads wait for one */

int sl_readpool_open(const sl_vfs *vfs, const sl_aio_options *options, sl_aio **out, int *register_refused);
void sl_readpool_close(sl_aio *aio);
int sl_readpool_start(sl_aio *aio, const sl_aio_read *reads, size_t n);
int sl_readpool_wait(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most);
void sl_readpool_wake(sl_aio *aio);

/* Memory of a pool of that depth, stacks included. */
uint64_t sl_readpool_bytes(size_t depth);

#endif
