#include "platform/transfer.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "platform/vfs.h"

void sl_transfer_pause(void)
{
    struct timespec pause = {0, (long)(SL_TRANSFER_PAUSE_S * 1e9)};
    nanosleep(&pause, NULL);
}

bool sl_transfer_take(sl_transfer *transfer, int64_t moved)
{
    if (moved < 0) {
        transfer->cause = (int)-moved;
        transfer->tries++;
        bool is_passing = transfer->cause == EINTR || transfer->cause == EAGAIN;
        return !is_passing || transfer->tries >= SL_TRANSFER_TRIES;
    }
    assert((uint64_t)moved <= transfer->bytes - transfer->done);
    if (moved == 0) {
        transfer->cause = ENODATA;
        return true;
    }
    /* A direct transfer can only go on from a whole sector: what a short one moved beyond it is moved again. */
    size_t step = (size_t)moved & ~(size_t)(SL_SECTOR_BYTES - 1);
    transfer->done += step;
    transfer->tries = step == 0 ? transfer->tries + 1 : 0;
    transfer->cause = step == 0 ? EIO : 0;
    return transfer->done == transfer->bytes || transfer->tries >= SL_TRANSFER_TRIES;
}

sl_status sl_transfer_end(const sl_transfer *transfer, bool is_read, const char *name, sl_err *err)
{
    const char *verb = is_read ? "read" : "write";
    if (transfer->cause == 0)
        return SL_OK;
    if (transfer->cause == ENODATA)
        return sl_err_set(err, SL_FAILED, "%s: %s of %zu bytes at offset %" PRIu64 " stopped after %zu: %s", name, verb,
                          transfer->bytes, transfer->off, transfer->done,
                          is_read ? "the file ends there" : "the device takes no more");
    return sl_err_set_errno(err, SL_FAILED, transfer->cause,
                            "%s: cannot %s %zu bytes at offset %" PRIu64 " (%zu moved)", name, verb, transfer->bytes,
                            transfer->off, transfer->done);
}
