/* Log lines travel by callback: the library prints nothing itself. */
#ifndef SL_LOG_H
#define SL_LOG_H

#include "base/err.h"

typedef enum sl_log_level { SL_LOG_LEVEL_INFO, SL_LOG_LEVEL_WARNING } sl_log_level;

/* `text` is one line without a newline, borrowed for the call. May be called from any thread. */
typedef void (*sl_log_fn)(void *arg, sl_log_level level, const char *text);

typedef struct sl_log {
    sl_log_fn fn; /* NULL: silent */
    void *arg;
} sl_log;

void sl_log_write(const sl_log *log, sl_log_level level, const char *fmt, ...) SL_PRINTF(3, 4);

#endif
