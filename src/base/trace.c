#include "base/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    BUFFER_BYTES = 32 << 10, /* between the events and the file: outside any budget, part of the program's margin */
    EVENT_BYTES = 512        /* of one event's text, or of the two of an asynchronous one */
};

struct sl_trace {
    FILE *file;
    char *path;
    pthread_mutex_t lock;
    /* under lock from here on */
    uint64_t n_async;
    int failure; /* errno of the first failed write; 0: none */
    char buffer[BUFFER_BYTES];
};

static const char *const lane_names[SL_TRACE_LANE_COUNT] = {"passes",       "kernels", "waiting for flash",
                                                            "checksums", "reads",   "writes"};

/* Under the lock, or before the trace is shared. */
static void put(sl_trace *trace, const char *text, size_t bytes)
{
    if (trace->failure != 0)
        return;
    errno = 0;
    if (fwrite(text, 1, bytes, trace->file) != bytes)
        trace->failure = errno != 0 ? errno : EIO;
}

/* Every event after the first follows a comma, so that the array is whole whenever the closing bracket comes. (Readers
 * of the format accept a missing one too: the trace of a killed process opens.) */
static void put_lanes(sl_trace *trace)
{
    char text[EVENT_BYTES];
    int n = snprintf(text, sizeof text,
                     "[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"sluice\"}}");
    put(trace, text, (size_t)n);
    for (int i = 0; i < SL_TRACE_LANE_COUNT; i++) {
        n = snprintf(text, sizeof text,
                     ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}"
                     ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_sort_index\","
                     "\"args\":{\"sort_index\":%d}}",
                     i + 1, lane_names[i], i + 1, i + 1);
        put(trace, text, (size_t)n);
    }
}

static char *copy_of(const char *text)
{
    size_t bytes = 1;
    while (text[bytes - 1])
        bytes++;
    char *copy = malloc(bytes);
    for (size_t i = 0; copy && i < bytes; i++)
        copy[i] = text[i];
    return copy;
}

sl_status sl_trace_open(const char *path, sl_trace **out, sl_err *err)
{
    *out = NULL;
    sl_trace *trace = calloc(1, sizeof *trace);
    if (trace)
        trace->path = copy_of(path);
    if (!trace || !trace->path) {
        free(trace);
        return sl_err_set(err, SL_FAILED, "out of memory: trace");
    }
    /* Not blocking: a pipe that nobody reads is refused instead of waited for. */
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0666);
    trace->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!trace->file) {
        sl_status status = sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot open the trace for writing", path);
        if (fd >= 0)
            close(fd);
        free(trace->path);
        free(trace);
        return status;
    }
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    setvbuf(trace->file, trace->buffer, _IOFBF, sizeof trace->buffer);
    pthread_mutex_init(&trace->lock, NULL);
    put_lanes(trace);
    *out = trace;
    return SL_OK;
}

sl_status sl_trace_close(sl_trace *trace, sl_err *err)
{
    if (!trace)
        return SL_OK;
    put(trace, "\n]\n", 3);
    errno = 0;
    if (fclose(trace->file) != 0 && trace->failure == 0)
        trace->failure = errno != 0 ? errno : EIO;
    sl_status status = SL_OK;
    if (trace->failure != 0)
        status = sl_err_set_errno(err, SL_FAILED, trace->failure, "%s: the trace is not complete", trace->path);
    pthread_mutex_destroy(&trace->lock);
    free(trace->path);
    free(trace);
    return status;
}

typedef struct text_time {
    char text[32];
} text_time;

/* Microseconds with three digits behind the point, which is a point whatever the caller's locale says. */
static text_time microseconds(double seconds)
{
    text_time out;
    long long ns = llrint(seconds * 1e9);
    ns = ns > 0 ? ns : 0;
    snprintf(out.text, sizeof out.text, "%lld.%03lld", ns / 1000, ns % 1000);
    return out;
}

/* {"layer":1,...}: what is known of the four. */
static size_t put_about(char *text, size_t room, sl_trace_about about)
{
    const struct {
        const char *key;
        int64_t value;
    } facts[] = {{"layer", about.layer}, {"part", about.part}, {"bytes", about.bytes}, {"off", about.off}};
    size_t n = 0;
    const char *before = "";
    text[n++] = '{';
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        if (facts[i].value < 0)
            continue;
        n += (size_t)snprintf(text + n, room - n, "%s\"%s\":%" PRId64, before, facts[i].key, facts[i].value);
        before = ",";
    }
    text[n++] = '}';
    text[n] = '\0';
    return n;
}

double sl_trace_now(const sl_trace *trace)
{
    struct timespec now;
    if (!trace || clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        return 0.0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void sl_trace_span(sl_trace *trace, sl_trace_lane lane, const char *name, double start_s, double end_s,
                   sl_trace_about about)
{
    if (!trace)
        return;
    char facts[160], text[EVENT_BYTES];
    put_about(facts, sizeof facts, about);
    text_time start = microseconds(start_s), end = microseconds(end_s);
    pthread_mutex_lock(&trace->lock);
    int n;
    if (lane == SL_TRACE_LANE_READ) {
        unsigned long long id = ++trace->n_async;
        n = snprintf(text, sizeof text,
                     ",\n{\"ph\":\"b\",\"cat\":\"read\",\"id\":%llu,\"pid\":1,\"tid\":%d,\"name\":\"%.32s\",\"ts\":%s,"
                     "\"args\":%s}"
                     ",\n{\"ph\":\"e\",\"cat\":\"read\",\"id\":%llu,\"pid\":1,\"tid\":%d,\"name\":\"%.32s\",\"ts\":%s}",
                     id, (int)lane + 1, name, start.text, facts, id, (int)lane + 1, name, end.text);
    } else {
        n = snprintf(text, sizeof text,
                     ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%.32s\",\"ts\":%s,\"dur\":%s,\"args\":%s}",
                     (int)lane + 1, name, start.text, microseconds(end_s > start_s ? end_s - start_s : 0.0).text,
                     facts);
    }
    put(trace, text, (size_t)n);
    pthread_mutex_unlock(&trace->lock);
}
