/* Whole transfers and the probe, over any table of operations. Knows errno, not the operating system. */
#include "platform/vfs.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

enum { MAX_TRIES = 100 }; /* in a row without a byte moved */

typedef struct transfer {
    const sl_vfs *vfs;
    sl_file *file;
    uint8_t *read_to; /* one of the two */
    const uint8_t *write_from;
    size_t bytes;
    uint64_t off;
} transfer;

static int64_t move_once(const transfer *t, size_t done)
{
    if (t->read_to)
        return t->vfs->pread(t->file, t->read_to + done, t->bytes - done, t->off + done);
    return t->vfs->pwrite(t->file, t->write_from + done, t->bytes - done, t->off + done);
}

/* A busy device says EAGAIN: give it a millisecond instead of asking again at once. */
static void pause_for(int cause)
{
    if (cause == EAGAIN) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
}

/* 0 or errno; *out_done: bytes moved. ENODATA: nothing came, the file ends here (or the device took nothing). */
static int move_all(const transfer *t, size_t *out_done)
{
    size_t done = 0;
    int cause = 0;
    for (int tries = 0; done < t->bytes && tries < MAX_TRIES;) {
        int64_t moved = move_once(t, done);
        if (moved < 0 && moved != -EINTR && moved != -EAGAIN) {
            cause = (int)-moved;
            break;
        }
        if (moved < 0) {
            cause = (int)-moved;
            pause_for(cause);
            tries++;
            continue;
        }
        assert((uint64_t)moved <= t->bytes - done);
        if (moved == 0) {
            cause = ENODATA;
            break;
        }
        /* A direct transfer can only go on from a whole sector: what a short one moved beyond it is moved again. */
        size_t step = (size_t)moved & ~(size_t)(SL_SECTOR_BYTES - 1);
        cause = step == 0 ? EIO : 0;
        tries = step == 0 ? tries + 1 : 0;
        done += step;
    }
    *out_done = done;
    return done == t->bytes ? 0 : cause;
}

static bool is_sector_multiple(const transfer *t)
{
    uintptr_t at = t->read_to ? (uintptr_t)t->read_to : (uintptr_t)t->write_from;
    return at % SL_SECTOR_BYTES == 0 && t->off % SL_SECTOR_BYTES == 0 && t->bytes % SL_SECTOR_BYTES == 0;
}

static sl_status name_cause(const transfer *t, const char *name, size_t done, int cause, sl_err *err)
{
    const char *verb = t->read_to ? "read" : "write";
    if (cause == ENODATA)
        return sl_err_set(err, SL_FAILED, "%s: %s of %zu bytes at offset %" PRIu64 " stopped after %zu: %s", name, verb,
                          t->bytes, t->off, done, t->read_to ? "the file ends there" : "the device takes no more");
    return sl_err_set_errno(err, SL_FAILED, cause, "%s: cannot %s %zu bytes at offset %" PRIu64 " (%zu moved)", name,
                            verb, t->bytes, t->off, done);
}

static sl_status move_named(const transfer *t, const char *name, sl_err *err)
{
    assert(is_sector_multiple(t));
    (void)is_sector_multiple;
    size_t done = 0;
    int cause = move_all(t, &done);
    return cause == 0 ? SL_OK : name_cause(t, name, done, cause, err);
}

sl_status sl_vfs_read(const sl_vfs *vfs, sl_file *file, const char *name, void *buf, size_t bytes, uint64_t off,
                      sl_err *err)
{
    transfer t = {vfs, file, buf, NULL, bytes, off};
    return move_named(&t, name, err);
}

sl_status sl_vfs_write(const sl_vfs *vfs, sl_file *file, const char *name, const void *buf, size_t bytes, uint64_t off,
                       sl_err *err)
{
    transfer t = {vfs, file, NULL, buf, bytes, off};
    return move_named(&t, name, err);
}

static bool is_refusal(int cause)
{
    return cause == EINVAL || cause == EOPNOTSUPP || cause == ENOTSUP;
}

sl_status sl_vfs_probe_direct(const sl_vfs *vfs, sl_file *file, const char *name, void *scratch, uint64_t off,
                              bool *is_direct, sl_err *err)
{
    uint8_t *written = scratch;
    uint8_t *back = written + SL_SECTOR_BYTES;
    for (size_t i = 0; i < SL_SECTOR_BYTES; i++)
        written[i] = (uint8_t)(i * 7 + i / 256 + 1);
    memset(back, 0, SL_SECTOR_BYTES);
    *is_direct = false;
    transfer out = {vfs, file, NULL, written, SL_SECTOR_BYTES, off};
    transfer in = {vfs, file, back, NULL, SL_SECTOR_BYTES, off};
    size_t done;
    int cause = move_all(&out, &done);
    if (cause != 0 && !is_refusal(cause))
        return name_cause(&out, name, done, cause, err);
    if (cause == 0) {
        cause = move_all(&in, &done);
        if (cause != 0 && !is_refusal(cause))
            return name_cause(&in, name, done, cause, err);
    }
    if (cause == 0 && memcmp(written, back, SL_SECTOR_BYTES) != 0)
        return sl_err_set(err, SL_DAMAGED, "%s: offset %" PRIu64 " gave back other bytes than were written", name, off);
    if (cause == 0 && vfs->cached_bytes(file) <= 0) {
        *is_direct = true;
        return SL_OK;
    }
    int refused = vfs->set_direct(file, false);
    if (refused != 0)
        return sl_err_set_errno(err, SL_FAILED, -refused, "%s: cannot leave direct I/O", name);
    (void)vfs->drop_cached(file, off, SL_SECTOR_BYTES);
    return SL_OK;
}
