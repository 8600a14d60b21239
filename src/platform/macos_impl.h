/* Shared by the macOS files only: what a file is, and the operations that macos.c puts into its table. Each keeps the
 * contract of the operation of the same name in vfs.h. */
#ifndef SL_MACOS_IMPL_H
#define SL_MACOS_IMPL_H

#include <pthread.h>

#include "platform/vfs.h"

struct sl_file {
    int fd;
    bool is_direct;
    uint64_t reserved_end; /* disk space was asked for up to here */
    pthread_mutex_t lock;  /* of page and of direct writes */
    uint8_t *page;         /* one page, aligned to its size */
    sl_file *overlay;      /* owned; NULL: none */
    char *temp_path;       /* owned: the name of a file that waits for its own; NULL: none */
};

/* The file that an offset is meant for, and the offset in it. */
static inline sl_file *sl_macos_at(sl_file *file, uint64_t *off)
{
    if (*off < SL_OVERLAY_OFF || !file->overlay)
        return file;
    *off -= SL_OVERLAY_OFF;
    return file->overlay;
}

/* macos.c, for macos_named.c */
sl_file *sl_macos_new_file(void); /* fd -1; NULL: no memory */
void sl_macos_close(sl_file *file);
int sl_macos_set_direct(sl_file *file, bool direct);
bool sl_macos_is_in_memory(int fd);

/* macos_named.c */
sl_status sl_macos_open_named(const sl_vfs *vfs, const char *path, bool for_writing, bool direct, sl_file **out,
                              bool *is_direct, sl_err *err);
sl_status sl_macos_create_named(const sl_vfs *vfs, const char *path, bool direct, bool allow_ram, sl_file **out,
                                bool *is_direct, sl_err *err);
int sl_macos_publish(sl_file *file, const char *path, bool replace);
int sl_macos_sync(sl_file *file);
int64_t sl_macos_size(sl_file *file);
int sl_macos_set_size(sl_file *file, uint64_t bytes);
int sl_macos_clear(sl_file *file, uint64_t off, uint64_t bytes);
int sl_macos_lock(sl_file *file);

#endif
