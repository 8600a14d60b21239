/* A record of who did what when, in the Chrome trace event format (opens in Perfetto and chrome://tracing).
 * Owns: the file. Refuses: nothing while events come; the first failed write is told at the end.
 * Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
 * Thread rule: sl_trace_span from any thread; open and close by the owner. A NULL trace takes all and does nothing. */
#ifndef SL_TRACE_H
#define SL_TRACE_H

#include <stdint.h>

#include "base/err.h"

typedef struct sl_trace sl_trace;

typedef enum sl_trace_lane {
    SL_TRACE_LANE_PASS,   /* one span a pass, a span a layer inside */
    SL_TRACE_LANE_KERNEL, /* attention over a part, projections */
    SL_TRACE_LANE_WAIT,   /* the driving thread waits for a part */
    SL_TRACE_LANE_CHECK,  /* checksums, by the reader thread */
    SL_TRACE_LANE_READ,   /* reads in flight: they overlap, so each is an asynchronous event */
    SL_TRACE_LANE_WRITE,
    SL_TRACE_LANE_COUNT
} sl_trace_lane;

/* What a span was about; -1: says nothing. */
typedef struct sl_trace_about {
    int64_t layer, part, bytes, off;
} sl_trace_about;

/* An existing file is overwritten. */
sl_status sl_trace_open(const char *path, sl_trace **out, sl_err *err) SL_CHECK;
/* Ends the file; SL_FAILED when any write failed. Frees the trace either way. */
sl_status sl_trace_close(sl_trace *trace, sl_err *err) SL_CHECK;

/* The clock of the spans, the same as sl_os_seconds: for layers that see no platform. 0 without a trace. */
double sl_trace_now(const sl_trace *trace);

/* `name`: a literal. Seconds of the monotonic clock. */
void sl_trace_span(sl_trace *trace, sl_trace_lane lane, const char *name, double start_s, double end_s,
                   sl_trace_about about);

#endif
