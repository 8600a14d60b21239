#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void sl_log_write(const sl_log *log, sl_log_level level, const char *fmt, ...)
{
    if (!log || !log->fn)
        return;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    log->fn(log->arg, level, text);
}
