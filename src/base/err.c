#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void write_text(sl_err *err, sl_status status, const char *fmt, va_list args) SL_PRINTF(3, 0);

static void write_text(sl_err *err, sl_status status, const char *fmt, va_list args)
{
    err->status = status;
    vsnprintf(err->text, sizeof err->text, fmt, args);
}

sl_status sl_err_set(sl_err *err, sl_status status, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        write_text(err, status, fmt, args);
        va_end(args);
    }
    return status;
}

sl_status sl_err_set_errno(sl_err *err, sl_status status, int errno_value, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        write_text(err, status, fmt, args);
        va_end(args);
        size_t used = strlen(err->text);
        char reason[128] = "";
        if (strerror_r(errno_value, reason, sizeof reason) != 0)
            snprintf(reason, sizeof reason, "errno %d", errno_value);
        snprintf(err->text + used, sizeof err->text - used, ": %s", reason);
    }
    return status;
}
