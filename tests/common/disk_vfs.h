/* A disk in memory whose power can fail: files with names, of which every change since the last sync may be lost, torn
 * (by 512 bytes) or overtaken by a later one; which can be full; whose user can be killed.
 * Thread rule: one thread changes; any may read. */
#ifndef TEST_DISK_VFS_H
#define TEST_DISK_VFS_H

#include <pthread.h>
#include <stdatomic.h>

#include "platform/vfs.h"

enum { DISK_FILES = 4, DISK_NAME_BYTES = 64 };

typedef struct disk_change {
    bool is_size;
    bool is_dropped; /* while a loss of power is worked out */
    uint64_t at;     /* offset of a sector, or the new size */
    uint8_t *bytes;  /* owned: [SL_SECTOR_BYTES], of a sector */
} disk_change;

typedef struct disk_file {
    bool is_used;
    char name[DISK_NAME_BYTES]; /* "": none yet */
    uint8_t *now, *safe;        /* as programs see it; what a loss of power leaves in any case */
    uint64_t size, safe_size;
    uint64_t longest; /* it has been: behind, both are zero */
    disk_change *changes; /* since the last sync, in order */
    size_t n_changes, room;
    int n_handles;
    bool is_locked;
} disk_file;

typedef struct disk_vfs {
    sl_vfs vfs; /* give this to the store */
    pthread_mutex_t lock;
    disk_file files[DISK_FILES];
    uint64_t random;
    uint64_t n_ops;     /* calls that change something, and syncs */
    uint64_t cut_at;    /* in that one everything ends: 0 never */
    uint64_t full_from; /* from that one on there is no space: 0 never */
    atomic_bool is_dead; /* it has ended: every call fails until disk_restart */
    bool shares;        /* ranges of files can share their blocks */
    bool is_refused;    /* a call failed for want of space since this was last cleared */
} disk_vfs;

void disk_init(disk_vfs *disk, uint64_t seed);
void disk_deinit(disk_vfs *disk);
uint64_t disk_random(disk_vfs *disk, uint64_t n); /* below n */

/* After everything is closed. power_lost: of the changes since the last sync a random subset comes through, in a random
 * order; else a process was killed: all that it changed stands, and a later loss of power may still take it. */
void disk_restart(disk_vfs *disk, bool power_lost);

/* The file of that name; NULL: none. */
const disk_file *disk_find(const disk_vfs *disk, const char *name);
void disk_remove(disk_vfs *disk, const char *name);

#endif
