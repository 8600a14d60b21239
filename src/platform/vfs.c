/* Whole transfers and the probe, over any table of operations. Knows errno, not the operating system. */
#include "platform/vfs.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "platform/transfer.h"

typedef struct movement {
    const sl_vfs *vfs;
    sl_file *file;
    uint8_t *read_to; /* one of the two */
    const uint8_t *write_from;
    sl_transfer transfer;
} movement;

static int64_t move_once(const movement *m)
{
    size_t done = m->transfer.done;
    size_t bytes = m->transfer.bytes - done;
    uint64_t off = m->transfer.off + done;
    if (m->read_to)
        return m->vfs->pread(m->file, m->read_to + done, bytes, off);
    return m->vfs->pwrite(m->file, m->write_from + done, bytes, off);
}

/* 0 or errno. */
static int move_all(movement *m)
{
    while (m->transfer.bytes > 0 && !sl_transfer_take(&m->transfer, move_once(m))) {
        if (m->transfer.cause == EAGAIN)
            sl_transfer_pause();
    }
    return m->transfer.cause;
}

static sl_status name_cause(const movement *m, const char *name, sl_err *err)
{
    return sl_transfer_end(&m->transfer, m->read_to != NULL, name, err);
}

static bool is_sector_multiple(const movement *m)
{
    uintptr_t at = m->read_to ? (uintptr_t)m->read_to : (uintptr_t)m->write_from;
    return at % SL_SECTOR_BYTES == 0 && m->transfer.off % SL_SECTOR_BYTES == 0 &&
           m->transfer.bytes % SL_SECTOR_BYTES == 0;
}

static sl_status move_named(movement *m, const char *name, sl_err *err)
{
    assert(is_sector_multiple(m));
    (void)is_sector_multiple;
    (void)move_all(m);
    return name_cause(m, name, err);
}

sl_status sl_vfs_read(const sl_vfs *vfs, sl_file *file, const char *name, void *buf, size_t bytes, uint64_t off,
                      sl_err *err)
{
    movement m = {vfs, file, buf, NULL, {.bytes = bytes, .off = off}};
    return move_named(&m, name, err);
}

sl_status sl_vfs_write(const sl_vfs *vfs, sl_file *file, const char *name, const void *buf, size_t bytes, uint64_t off,
                       sl_err *err)
{
    movement m = {vfs, file, NULL, buf, {.bytes = bytes, .off = off}};
    return move_named(&m, name, err);
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
    movement out = {vfs, file, NULL, written, {.bytes = SL_SECTOR_BYTES, .off = off}};
    movement in = {vfs, file, back, NULL, {.bytes = SL_SECTOR_BYTES, .off = off}};
    int cause = move_all(&out);
    if (cause != 0 && !is_refusal(cause))
        return name_cause(&out, name, err);
    if (cause == 0) {
        cause = move_all(&in);
        if (cause != 0 && !is_refusal(cause))
            return name_cause(&in, name, err);
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
