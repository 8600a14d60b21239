/* Files, as the store sees them: a table of operations, so that tests can wrap it and make the n-th call fail.
 * Owns nothing itself. One implementation per operating system (linux.c, macos.c).
 * Every transfer that returns SL_OK moved exactly the bytes asked for: short reads and EINTR are dealt with inside. */
#ifndef SL_VFS_H
#define SL_VFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define SL_SECTOR_BYTES 4096u /* of the format; offset, length and buffer of a direct transfer are multiples */

/* Offsets from here on are in the file that was attached to another: two files behind one handle and one queue. */
#define SL_OVERLAY_OFF ((uint64_t)1 << 62)

static inline uint64_t sl_up_sector(uint64_t bytes)
{
    return (bytes + SL_SECTOR_BYTES - 1) / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
}

typedef struct sl_file sl_file;
typedef struct sl_aio sl_aio; /* the system's queue of raw reads of one file */

/* One raw read: like pread once. */
typedef struct sl_aio_read {
    void *buf;
    size_t bytes;
    uint64_t off;
    uint64_t tag; /* the caller's, less than 2^63 */
} sl_aio_read;

typedef struct sl_aio_done {
    uint64_t tag;
    int64_t moved; /* bytes, or -errno */
} sl_aio_done;

typedef struct sl_aio_options {
    sl_file *file;
    uint8_t *memory; /* to register: all buffers lie in it; NULL: none */
    size_t memory_bytes;
    size_t depth;
} sl_aio_options;

typedef struct sl_vfs sl_vfs;
struct sl_vfs {
    /* Opens an unnamed file in `dir` for reading and writing (O_TMPFILE, else created and unlinked at once), with
     * direct I/O if `direct`. SL_REFUSED when the file system keeps files in memory and !allow_ram. A refused
     * O_DIRECT at open is SL_OK with *is_direct = false. */
    sl_status (*open_temp)(const sl_vfs *vfs, const char *dir, bool direct, bool allow_ram, sl_file **out,
                           bool *is_direct, sl_err *err);
    /* Opens an existing file, for reading or for both; direct and *is_direct as in open_temp. SL_FAILED names why. */
    sl_status (*open_named)(const sl_vfs *vfs, const char *path, bool for_writing, bool direct, sl_file **out,
                            bool *is_direct, sl_err *err);
    /* A new file in the folder of `path`, without that name until publish; closed before, it is gone. As open_temp. */
    sl_status (*create_named)(const sl_vfs *vfs, const char *path, bool direct, bool allow_ram, sl_file **out,
                              bool *is_direct, sl_err *err);
    /* Gives the name; when it returns 0, name and folder are on the disk. -EEXIST: taken, and !replace. */
    int (*publish)(sl_file *file, const char *path, bool replace);
    int (*sync)(sl_file *file); /* 0 or -errno: what was written and the file's size are on the disk */
    int64_t (*size)(sl_file *file); /* bytes or -errno */
    int (*set_size)(sl_file *file, uint64_t bytes); /* 0 or -errno */
    /* The range reads as zeros from now on, its disk space is given back; -EOPNOTSUPP where the file system cannot. */
    int (*clear)(sl_file *file, uint64_t off, uint64_t bytes);
    /* The range of `to` has the bytes of `from`'s range of the same place, and shares its disk space until either is
     * written. 0 or -errno; -EOPNOTSUPP where these two files cannot. NULL: this system has no such thing. */
    int (*share)(sl_file *to, sl_file *from, uint64_t off, uint64_t bytes);
    /* For one writer: 0; -EAGAIN while another handle, of any process, holds it. Ends with the handle. */
    int (*lock)(sl_file *file);
    /* From now on transfers at SL_OVERLAY_OFF + x go to `overlay` at x. It is closed with `file`. */
    void (*attach)(sl_file *file, sl_file *overlay);
    void (*close)(sl_file *file);
    /* Raw transfers: like pread and pwrite once: bytes moved, or -errno. The seam for faults. */
    int64_t (*pread)(sl_file *file, void *buf, size_t bytes, uint64_t off);
    int64_t (*pwrite)(sl_file *file, const void *buf, size_t bytes, uint64_t off);
    /* 0 or -errno */
    int (*set_direct)(sl_file *file, bool direct);
    /* Disk space for a range, now, in one piece if possible; -EOPNOTSUPP where the file system cannot. */
    int (*reserve)(sl_file *file, uint64_t off, uint64_t bytes);
    /* Waits until the range is on the disk and lets the page cache forget it. */
    int (*drop_cached)(sl_file *file, uint64_t off, uint64_t bytes);
    /* Bytes of the file in the page cache; -1 unknown. */
    int64_t (*cached_bytes)(sl_file *file);
    /* Asks for big pages behind memory that will receive direct reads and was not touched yet: fewer pieces for the
     * device. A wish: nothing depends on it. NULL: this system has no such wish. */
    void (*want_big_pages)(void *memory, size_t bytes);
    /* The asynchronous operations; aio_open NULL: this system has none. Raw, the seam for faults: short reads, EINTR
     * and EAGAIN come through. One thread drives a queue; aio_wake from any. */
    /* 0 or -errno (ENOSYS, EPERM: missing, forbidden). *register_refused: 0, or the errno with which the system
     * would not register memory and file: reads work all the same. */
    int (*aio_open)(const sl_vfs *vfs, const sl_aio_options *options, sl_aio **out, int *register_refused);
    void (*aio_close)(sl_aio *aio); /* nothing is in flight */
    /* Starts the first of the reads, at most depth in flight: how many were started, or -errno: none was. */
    int (*aio_start)(sl_aio *aio, const sl_aio_read *reads, size_t n);
    /* Waits for at least one end, a wake or the timeout (seconds; negative: none): how many were filled in, or
     * -errno. 0 may also be a stray wake. */
    int (*aio_wait)(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most);
    void (*aio_wake)(sl_aio *aio); /* ends the wait under way or the next one */
    const char *aio_name;          /* "io_uring" */
    void *state;
};

/* The operating system's own. Static lifetime. */
const sl_vfs *sl_vfs_system(void);

/* Whole transfers over the raw ones: retry EINTR and EAGAIN (bounded), continue after short ones (on a whole
 * sector), name `name`, offset and cause. Zero bytes at or past the end of the file is an error. Buffer, offset and
 * length are multiples of a sector, in buffered mode too (debug builds assert it): many disks accept less, some not. */
sl_status sl_vfs_read(const sl_vfs *vfs, sl_file *file, const char *name, void *buf, size_t bytes, uint64_t off,
                      sl_err *err) SL_CHECK;
sl_status sl_vfs_write(const sl_vfs *vfs, sl_file *file, const char *name, const void *buf, size_t bytes, uint64_t off,
                       sl_err *err) SL_CHECK;

/* Finds out by a transfer whether a file opened with direct I/O really has it: writes one sector at `off` (a place
 * that will be overwritten), reads it back and looks whether it stayed in the page cache. `scratch`: 2 sectors,
 * aligned to a sector. *is_direct = false when the file system refuses (EINVAL, EOPNOTSUPP) or caches all the same;
 * the file is then switched to buffered. Any other failure is an error; SL_DAMAGED when other bytes come back. */
sl_status sl_vfs_probe_direct(const sl_vfs *vfs, sl_file *file, const char *name, void *scratch, uint64_t off,
                              bool *is_direct, sl_err *err) SL_CHECK;

#endif
