/* Shared by the Linux files only: what a file is, and the operations on an io_uring that linux.c puts into its table.
 * Each keeps the contract of the aio_ operation of the same name in vfs.h. */
#ifndef SL_LINUX_IMPL_H
#define SL_LINUX_IMPL_H

#include "platform/vfs.h"

struct sl_file {
    int fd;
    sl_file *overlay; /* owned; NULL: none */
    char *temp_path;  /* owned: of a file that waits for its name where there are no unnamed ones; NULL: none */
};

/* The descriptor and the offset in it. */
static inline int sl_linux_fd(const sl_file *file, uint64_t *off)
{
    if (*off < SL_OVERLAY_OFF || !file->overlay)
        return file->fd;
    *off -= SL_OVERLAY_OFF;
    return file->overlay->fd;
}

/* linux.c, for linux_named.c */
int sl_linux_set_direct(sl_file *file, bool direct);
bool sl_linux_is_in_memory(int fd);

/* linux_named.c: the operations of the same names */
sl_status sl_linux_open_named(const sl_vfs *vfs, const char *path, bool for_writing, bool direct, sl_file **out,
                              bool *is_direct, sl_err *err);
sl_status sl_linux_create_named(const sl_vfs *vfs, const char *path, bool direct, bool allow_ram, sl_file **out,
                                bool *is_direct, sl_err *err);
int sl_linux_publish(sl_file *file, const char *path, bool replace);
int sl_linux_sync(sl_file *file);
int64_t sl_linux_size(sl_file *file);
int sl_linux_set_size(sl_file *file, uint64_t bytes);
int sl_linux_clear(sl_file *file, uint64_t off, uint64_t bytes);
int sl_linux_share(sl_file *to, sl_file *from, uint64_t off, uint64_t bytes);
int sl_linux_lock(sl_file *file);

int sl_uring_open(const sl_vfs *vfs, const sl_aio_options *options, sl_aio **out, int *register_refused);
void sl_uring_close(sl_aio *aio);
int sl_uring_start(sl_aio *aio, const sl_aio_read *reads, size_t n);
int sl_uring_wait(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most);
void sl_uring_wake(sl_aio *aio);

#endif
