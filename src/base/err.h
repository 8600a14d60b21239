/* The error pattern. A fallible function returns sl_status and takes `sl_err *err` last (may be NULL).
 * The text is written once, where the fault is found: what, where, value found, value expected. */
#ifndef SL_ERR_H
#define SL_ERR_H

#include <sluice/status.h>

#if defined(__GNUC__)
#define SL_PRINTF(fmt_idx, arg_idx) __attribute__((format(printf, fmt_idx, arg_idx)))
#define SL_CHECK __attribute__((warn_unused_result))
#else
#define SL_PRINTF(fmt_idx, arg_idx)
#define SL_CHECK
#endif

/* Writes the text and returns `status`, so that `return sl_err_set(err, SL_FAILED, ...)` reads well. */
sl_status sl_err_set(sl_err *err, sl_status status, const char *fmt, ...) SL_PRINTF(3, 4);

/* Appends ": strerror(errno_value)" to a formatted text. */
sl_status sl_err_set_errno(sl_err *err, sl_status status, int errno_value, const char *fmt, ...) SL_PRINTF(4, 5);

#endif
