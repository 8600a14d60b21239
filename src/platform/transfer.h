/* A whole transfer made of raw ones: takes in what each raw one gave, tells whether to go on, names the end.
 * Shared by the blocking transfers (vfs.c) and the asynchronous ones (queue.c); holds no resource.
 * Thread rule: one thread at a time. */
#ifndef SL_TRANSFER_H
#define SL_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Raw transfers in a row that moved nothing; between two that found the device busy SL_TRANSFER_PAUSE_S go by. */
#define SL_TRANSFER_TRIES 100
#define SL_TRANSFER_PAUSE_S 0.001

typedef struct sl_transfer {
    size_t bytes; /* more than 0 */
    uint64_t off;
    size_t done; /* whole sectors: the next raw transfer begins here */
    int tries;
    int cause; /* of the last raw transfer: 0 or errno; ENODATA: nothing came, the file ends there */
} sl_transfer;

/* Takes in one raw result: bytes moved or -errno. True: the transfer has ended, well if cause is 0. */
bool sl_transfer_take(sl_transfer *transfer, int64_t moved);

/* The end of a transfer as a status; the text names file, offset and cause. */
sl_status sl_transfer_end(const sl_transfer *transfer, bool is_read, const char *name, sl_err *err) SL_CHECK;

/* Gives a busy device time instead of asking again at once. */
void sl_transfer_pause(void);

#endif
