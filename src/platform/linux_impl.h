/* Shared by the Linux files only: what a file is, and the operations on an io_uring that linux.c puts into its table.
 * Each keeps the contract of the aio_ operation of the same name in vfs.h. */
#ifndef SL_LINUX_IMPL_H
#define SL_LINUX_IMPL_H

#include "platform/vfs.h"

struct sl_file {
    int fd;
};

int sl_uring_open(const sl_vfs *vfs, const sl_aio_options *options, sl_aio **out, int *register_refused);
void sl_uring_close(sl_aio *aio);
int sl_uring_start(sl_aio *aio, const sl_aio_read *reads, size_t n);
int sl_uring_wait(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most);
void sl_uring_wake(sl_aio *aio);

#endif
