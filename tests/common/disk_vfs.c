#include "common/disk_vfs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DISK_FILE_BYTES ((uint64_t)16 << 20) /* room in memory */

struct sl_file {
    disk_vfs *disk;
    disk_file *file;
    bool has_lock;
    sl_file *overlay; /* owned; NULL: none */
};

/* Where an offset belongs. */
static sl_file *handle_at(sl_file *handle, uint64_t *off)
{
    if (*off < SL_OVERLAY_OFF)
        return handle;
    *off -= SL_OVERLAY_OFF;
    return handle->overlay;
}

static void *need(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

uint64_t disk_random(disk_vfs *disk, uint64_t n)
{
    disk->random ^= disk->random << 13;
    disk->random ^= disk->random >> 7;
    disk->random ^= disk->random << 17;
    return (disk->random >> 16) % n;
}

/* ---- changes ---- */

static void remember(disk_file *file, bool is_size, uint64_t at, const uint8_t *bytes)
{
    if (file->n_changes == file->room) {
        file->room = file->room * 2 + 64;
        file->changes = need(realloc(file->changes, file->room * sizeof *file->changes));
    }
    disk_change *change = &file->changes[file->n_changes++];
    *change = (disk_change){.is_size = is_size, .at = at};
    if (bytes)
        change->bytes = memcpy(need(malloc(SL_SECTOR_BYTES)), bytes, SL_SECTOR_BYTES);
}

static void forget_changes(disk_file *file)
{
    for (size_t i = 0; i < file->n_changes; i++)
        free(file->changes[i].bytes);
    file->n_changes = 0;
}

static void resize(disk_file *file, uint64_t bytes)
{
    if (bytes > DISK_FILE_BYTES)
        abort();
    if (bytes == file->size)
        return;
    if (bytes < file->size)
        memset(file->now + bytes, 0, (size_t)(file->size - bytes));
    file->size = bytes;
    file->longest = bytes > file->longest ? bytes : file->longest;
    remember(file, true, bytes, NULL);
}

static void put_sector(disk_file *file, uint64_t at, const uint8_t *bytes)
{
    memcpy(file->now + at, bytes, SL_SECTOR_BYTES);
    remember(file, false, at, bytes);
}

/* ---- the end of everything ---- */

/* Whether this call is the last one; from then on it is over. 1: it is; -1: it was before; 0: go on. */
static int ends(disk_vfs *disk)
{
    if (disk->is_dead)
        return -1;
    disk->n_ops++;
    disk->is_dead = disk->cut_at != 0 && disk->n_ops >= disk->cut_at;
    return disk->is_dead;
}

static bool is_full(disk_vfs *disk)
{
    bool full = disk->full_from != 0 && disk->n_ops >= disk->full_from;
    disk->is_refused = disk->is_refused || full;
    return full;
}

/* A file system keeps the order of its own records: of the changes of size the first so many came through. What was
 * written into parts that were cut off is gone. */
static uint64_t settle_sizes(disk_vfs *disk, disk_file *file)
{
    size_t n_sizes = 0;
    for (size_t i = 0; i < file->n_changes; i++)
        n_sizes += file->changes[i].is_size;
    size_t kept = (size_t)disk_random(disk, n_sizes + 1);
    uint64_t size = file->safe_size;
    for (size_t i = 0; i < file->n_changes && kept > 0; i++) {
        if (!file->changes[i].is_size)
            continue;
        uint64_t to = file->changes[i].at;
        for (size_t j = 0; to < size && j < i; j++)
            if (!file->changes[j].is_size && file->changes[j].at >= to)
                file->changes[j].is_dropped = true;
        if (to < size)
            memset(file->safe + to, 0, (size_t)(size - to));
        size = to;
        kept--;
    }
    return size;
}

static void settle_sector(disk_vfs *disk, disk_file *file, const disk_change *change)
{
    enum { ATOM = 512 };
    bool is_torn = disk_random(disk, 4) == 0;
    for (size_t i = 0; i < SL_SECTOR_BYTES; i += ATOM)
        if (!is_torn || disk_random(disk, 2))
            memcpy(file->safe + change->at + i, change->bytes + i, ATOM);
}

static void lose_power(disk_vfs *disk, disk_file *file)
{
    static const unsigned percents[] = {0, 10, 50, 90, 100};
    unsigned percent = percents[disk_random(disk, 5)];
    uint64_t size = settle_sizes(disk, file);
    if (disk_random(disk, 2))
        for (size_t i = file->n_changes; i > 1; i--) {
            size_t other = (size_t)disk_random(disk, i);
            disk_change change = file->changes[i - 1];
            file->changes[i - 1] = file->changes[other];
            file->changes[other] = change;
        }
    for (size_t i = 0; i < file->n_changes; i++) {
        const disk_change *change = &file->changes[i];
        if (!change->is_size && !change->is_dropped && change->at < size && disk_random(disk, 100) < percent)
            settle_sector(disk, file, change);
    }
    file->safe_size = size;
    memset(file->safe + size, 0, (size_t)(file->longest - size));
    file->size = size;
    memcpy(file->now, file->safe, (size_t)file->longest);
    forget_changes(file);
}

static void remove_file(disk_file *file)
{
    forget_changes(file);
    free(file->changes);
    free(file->now);
    free(file->safe);
    memset(file, 0, sizeof *file);
}

void disk_restart(disk_vfs *disk, bool power_lost)
{
    for (int i = 0; i < DISK_FILES; i++) {
        disk_file *file = &disk->files[i];
        if (file->n_handles != 0)
            abort();
        if (file->is_used && power_lost)
            lose_power(disk, file);
    }
    disk->is_dead = false;
    disk->cut_at = 0;
}

/* ---- operations ---- */

static sl_file *new_handle(disk_vfs *disk, disk_file *file)
{
    sl_file *handle = need(calloc(1, sizeof *handle));
    handle->disk = disk;
    handle->file = file;
    file->n_handles++;
    return handle;
}

static sl_status disk_open_named(const sl_vfs *vfs, const char *path, bool for_writing, bool direct, sl_file **out,
                                 bool *is_direct, sl_err *err)
{
    disk_vfs *disk = vfs->state;
    (void)for_writing;
    *is_direct = direct;
    *out = NULL;
    disk_file *file = (disk_file *)(uintptr_t)disk_find(disk, path);
    if (disk->is_dead || !file)
        return sl_err_set_errno(err, SL_FAILED, disk->is_dead ? EIO : ENOENT, "%s: cannot be opened", path);
    *out = new_handle(disk, file);
    return SL_OK;
}

static sl_status disk_create_named(const sl_vfs *vfs, const char *path, bool direct, bool allow_ram, sl_file **out,
                                   bool *is_direct, sl_err *err)
{
    disk_vfs *disk = vfs->state;
    (void)allow_ram;
    *is_direct = direct;
    *out = NULL;
    int end = ends(disk);
    if (end != 0 || is_full(disk))
        return sl_err_set_errno(err, SL_FAILED, end ? EIO : ENOSPC, "%s: cannot be created", path);
    for (int i = 0; i < DISK_FILES; i++) {
        disk_file *file = &disk->files[i];
        if (file->is_used)
            continue;
        file->is_used = true;
        file->now = need(calloc(1, DISK_FILE_BYTES));
        file->safe = need(calloc(1, DISK_FILE_BYTES));
        *out = new_handle(disk, file);
        return SL_OK;
    }
    abort();
}

static sl_status disk_open_temp(const sl_vfs *vfs, const char *dir, bool direct, bool allow_ram, sl_file **out,
                                bool *is_direct, sl_err *err)
{
    return disk_create_named(vfs, dir, direct, allow_ram, out, is_direct, err);
}

static void disk_attach(sl_file *handle, sl_file *overlay)
{
    handle->overlay = overlay;
}

static int disk_publish(sl_file *handle, const char *path, bool replace)
{
    disk_vfs *disk = handle->disk;
    int end = ends(disk);
    if (end < 0 || (end > 0 && disk_random(disk, 2)))
        return -EIO;
    if (is_full(disk))
        return -ENOSPC;
    if (disk_find(disk, path) && !replace)
        return -EEXIST;
    if (disk_find(disk, path))
        disk_remove(disk, path);
    strncpy(handle->file->name, path, DISK_NAME_BYTES - 1);
    return end ? -EIO : 0;
}

static int disk_sync(sl_file *handle)
{
    disk_file *file = handle->file;
    if (ends(handle->disk) != 0)
        return -EIO;
    for (size_t i = 0; i < file->n_changes; i++) {
        const disk_change *change = &file->changes[i];
        if (!change->is_size)
            memcpy(file->safe + change->at, change->bytes, SL_SECTOR_BYTES);
        else if (change->at < file->safe_size)
            memset(file->safe + change->at, 0, (size_t)(file->safe_size - change->at));
        if (change->is_size)
            file->safe_size = change->at;
    }
    forget_changes(file);
    return 0;
}

static int64_t disk_size(sl_file *handle)
{
    return handle->disk->is_dead ? -EIO : (int64_t)handle->file->size;
}

static int disk_set_size(sl_file *handle, uint64_t bytes)
{
    disk_file *file = handle->file;
    int end = ends(handle->disk);
    if (end < 0)
        return -EIO;
    if (bytes > file->size && is_full(handle->disk))
        return -ENOSPC;
    pthread_mutex_lock(&handle->disk->lock);
    resize(file, bytes);
    pthread_mutex_unlock(&handle->disk->lock);
    return end ? -EIO : 0;
}

static int disk_clear(sl_file *handle, uint64_t off, uint64_t bytes)
{
    static const uint8_t zeros[SL_SECTOR_BYTES];
    disk_vfs *disk = handle->disk;
    int end = ends(disk);
    if (end < 0)
        return -EIO;
    if (is_full(disk))
        return -ENOSPC;
    if (end == 0 && disk_random(disk, 4) == 0)
        return -EOPNOTSUPP; /* then zeros are written */
    pthread_mutex_lock(&disk->lock);
    for (uint64_t at = off; at < off + bytes && at < handle->file->size; at += SL_SECTOR_BYTES)
        put_sector(handle->file, at, zeros);
    pthread_mutex_unlock(&disk->lock);
    return end ? -EIO : 0;
}

/* As though it were written: what shares blocks can be lost as well. */
static int disk_share(sl_file *to, sl_file *from, uint64_t off, uint64_t bytes)
{
    disk_vfs *disk = to->disk;
    if (!disk->shares)
        return -EOPNOTSUPP;
    int end = ends(disk);
    if (end < 0)
        return -EIO;
    if (is_full(disk))
        return -ENOSPC;
    pthread_mutex_lock(&disk->lock);
    if (off + bytes > to->file->size)
        resize(to->file, off + bytes);
    for (uint64_t at = off; at < off + bytes; at += SL_SECTOR_BYTES)
        put_sector(to->file, at, from->file->now + at);
    pthread_mutex_unlock(&disk->lock);
    return end ? -EIO : 0;
}

static int disk_lock(sl_file *handle)
{
    if (handle->file->is_locked)
        return -EAGAIN;
    handle->file->is_locked = true;
    handle->has_lock = true;
    return 0;
}

static void disk_close(sl_file *handle)
{
    if (!handle)
        return;
    disk_close(handle->overlay);
    if (handle->has_lock)
        handle->file->is_locked = false;
    handle->file->n_handles--;
    if (handle->file->n_handles == 0 && !handle->file->name[0])
        remove_file(handle->file);
    free(handle);
}

static int64_t disk_pread(sl_file *handle, void *buf, size_t bytes, uint64_t off)
{
    handle = handle_at(handle, &off);
    const disk_file *file = handle->file;
    if (handle->disk->is_dead)
        return -EIO;
    pthread_mutex_lock(&handle->disk->lock);
    uint64_t left = off < file->size ? file->size - off : 0;
    size_t moved = bytes < left ? bytes : (size_t)left;
    memcpy(buf, file->now + off, moved);
    pthread_mutex_unlock(&handle->disk->lock);
    return (int64_t)moved;
}

/* In the last call of all some of the sectors may have been reached. */
static int64_t disk_pwrite(sl_file *handle, const void *buf, size_t bytes, uint64_t off)
{
    handle = handle_at(handle, &off);
    disk_vfs *disk = handle->disk;
    int end = ends(disk);
    if (end < 0)
        return -EIO;
    if (is_full(disk))
        return -ENOSPC;
    if (end > 0)
        bytes = (size_t)disk_random(disk, bytes / SL_SECTOR_BYTES + 1) * SL_SECTOR_BYTES;
    pthread_mutex_lock(&disk->lock);
    if (bytes > 0 && off + bytes > handle->file->size)
        resize(handle->file, off + bytes);
    for (size_t i = 0; i < bytes; i += SL_SECTOR_BYTES)
        put_sector(handle->file, off + i, (const uint8_t *)buf + i);
    pthread_mutex_unlock(&disk->lock);
    return end ? -EIO : (int64_t)bytes;
}

static int disk_set_direct(sl_file *handle, bool direct)
{
    (void)handle, (void)direct;
    return 0;
}

static int disk_reserve(sl_file *handle, uint64_t off, uint64_t bytes)
{
    handle = handle_at(handle, &off);
    int end = ends(handle->disk);
    if (end < 0)
        return -EIO;
    if (is_full(handle->disk))
        return -ENOSPC;
    pthread_mutex_lock(&handle->disk->lock);
    if (off + bytes > handle->file->size)
        resize(handle->file, off + bytes);
    pthread_mutex_unlock(&handle->disk->lock);
    return end ? -EIO : 0;
}

static int disk_drop_cached(sl_file *handle, uint64_t off, uint64_t bytes)
{
    (void)off, (void)bytes;
    return handle->disk->is_dead ? -EIO : 0;
}

static int64_t disk_cached_bytes(sl_file *handle)
{
    (void)handle;
    return 0;
}

const disk_file *disk_find(const disk_vfs *disk, const char *name)
{
    for (int i = 0; i < DISK_FILES; i++)
        if (disk->files[i].is_used && strcmp(disk->files[i].name, name) == 0)
            return &disk->files[i];
    return NULL;
}

void disk_remove(disk_vfs *disk, const char *name)
{
    for (int i = 0; i < DISK_FILES; i++)
        if (disk->files[i].is_used && strcmp(disk->files[i].name, name) == 0)
            remove_file(&disk->files[i]);
}

void disk_init(disk_vfs *disk, uint64_t seed)
{
    memset(disk, 0, sizeof *disk);
    pthread_mutex_init(&disk->lock, NULL);
    disk->random = seed * 2 + 1;
    disk->vfs = (sl_vfs){
        .open_temp = disk_open_temp,
        .open_named = disk_open_named,
        .create_named = disk_create_named,
        .publish = disk_publish,
        .sync = disk_sync,
        .size = disk_size,
        .set_size = disk_set_size,
        .clear = disk_clear,
        .share = disk_share,
        .lock = disk_lock,
        .attach = disk_attach,
        .close = disk_close,
        .pread = disk_pread,
        .pwrite = disk_pwrite,
        .set_direct = disk_set_direct,
        .reserve = disk_reserve,
        .drop_cached = disk_drop_cached,
        .cached_bytes = disk_cached_bytes,
        .state = disk,
    };
}

void disk_deinit(disk_vfs *disk)
{
    for (int i = 0; i < DISK_FILES; i++)
        if (disk->files[i].is_used)
            remove_file(&disk->files[i]);
    pthread_mutex_destroy(&disk->lock);
}
