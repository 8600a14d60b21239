/* The seam under sl_input_read: tests put in a transfer that is interrupted, short or failing. */
#ifndef SL_INPUT_H
#define SL_INPUT_H

#include <sys/types.h>

#include "platform/os.h"

/* As pread(2). */
typedef ssize_t (*sl_input_pread)(int fd, void *buf, size_t bytes, off_t off);

/* sl_input_read by way of the given transfer. */
sl_status sl_input_read_by(sl_input_pread transfer, sl_input *input, void *buf, size_t bytes, uint64_t off,
                           sl_err *err) SL_CHECK;

#endif
