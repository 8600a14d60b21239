/* Linux: clock, memory, processors, disk space.
 * Facts: proc(5), sched_getaffinity(2), statvfs(3), the kernel's cgroup-v1/memory and cgroup-v2 documentation. */
#define _GNU_SOURCE
#include "platform/os.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

double sl_os_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void sl_os_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool sl_os_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double at_s)
{
    const double latest_s = 1e15;
    at_s = at_s < latest_s ? at_s : latest_s;
    struct timespec at = {.tv_sec = (time_t)at_s};
    at.tv_nsec = (long)((at_s - (double)at.tv_sec) * 1e9);
    return pthread_cond_timedwait(cond, lock, &at) == 0;
}

/* The beginning of a small text file, terminated; false when it cannot be read. */
static bool read_text(const char *path, char *text, size_t capacity)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t used = 0;
    for (;;) {
        ssize_t got = read(fd, text + used, capacity - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    close(fd);
    text[used] = '\0';
    return used > 0;
}

/* The number after `key` at the start of a line; false when there is none. */
static bool find_number(const char *text, const char *key, uint64_t *out)
{
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) != 0)
            continue;
        const char *at = line + length;
        while (*at == ' ' || *at == '\t')
            at++;
        if (!isdigit((unsigned char)*at))
            return false;
        *out = strtoull(at, NULL, 10);
        return true;
    }
    return false;
}

static uint64_t kib_of(const char *path, const char *key)
{
    char text[8192];
    uint64_t kib = 0;
    if (!read_text(path, text, sizeof text) || !find_number(text, key, &kib))
        return 0;
    return kib * 1024;
}

uint64_t sl_os_peak_rss_bytes(void)
{
    return kib_of("/proc/self/status", "VmHWM:");
}

uint64_t sl_os_rss_bytes(void)
{
    return kib_of("/proc/self/status", "VmRSS:");
}

/* A file that holds one number; false when it is absent or says "max". */
static bool number_of(const char *folder, const char *name, uint64_t *out)
{
    char path[PATH_MAX + 64], text[64];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length > 0 && (size_t)length < sizeof path && read_text(path, text, sizeof text) &&
           find_number(text, "", out);
}

typedef struct cgroup_names {
    const char *root, *limit, *usage, *inactive;
} cgroup_names;

/* Bytes that one group still has. Cached file pages nobody uses go first when memory is wanted: not counted as
 * used, as MemAvailable does for the machine. */
static uint64_t group_free(const char *folder, const cgroup_names *names)
{
    uint64_t limit, usage, inactive = 0;
    if (!number_of(folder, names->limit, &limit) || !number_of(folder, names->usage, &usage))
        return UINT64_MAX;
    char path[PATH_MAX + 64], text[8192];
    int length = snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (length > 0 && (size_t)length < sizeof path && read_text(path, text, sizeof text))
        (void)find_number(text, names->inactive, &inactive);
    usage = inactive < usage ? usage - inactive : 0;
    return usage < limit ? limit - usage : 0;
}

/* A limit may sit on the group or on any above it: the smallest counts. */
static uint64_t groups_free(const char *group, const cgroup_names *names)
{
    char folder[PATH_MAX];
    int length = snprintf(folder, sizeof folder, "%s%s", names->root, group);
    if (length < 0 || (size_t)length >= sizeof folder)
        return UINT64_MAX;
    uint64_t least = UINT64_MAX;
    size_t root_length = strlen(names->root);
    for (;;) {
        uint64_t left = group_free(folder, names);
        least = left < least ? left : least;
        if (strlen(folder) <= root_length)
            return least;
        *strrchr(folder, '/') = '\0';
    }
}

static uint64_t cgroup_free(void)
{
    static const cgroup_names v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
    static const cgroup_names v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_inactive_file"};
    char text[8192];
    if (!read_text("/proc/self/cgroup", text, sizeof text))
        return UINT64_MAX;
    /* lines "id:controllers:path"; v2 has id 0 and no controllers */
    uint64_t least = UINT64_MAX;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        const cgroup_names *names = controllers[1] == '\0' ? &v2 : strstr(controllers + 1, "memory") ? &v1 : NULL;
        if (!names)
            continue;
        uint64_t left = groups_free(strcmp(path, "/") == 0 ? "" : path, names);
        least = left < least ? left : least;
    }
    return least;
}

uint64_t sl_os_free_memory_bytes(void)
{
    uint64_t machine = kib_of("/proc/meminfo", "MemAvailable:");
    if (machine == 0)
        machine = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t group = cgroup_free();
    return group < machine ? group : machine;
}

size_t sl_os_n_cpus(void)
{
    enum { MAX_CPUS = 16384 };
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    int n = 0;
    if (set && sched_getaffinity(0, bytes, set) == 0)
        n = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    return n > 0 ? (size_t)n : 1;
}

sl_status sl_os_disk_free(const char *dir, uint64_t *out_bytes, sl_err *err)
{
    struct statvfs info;
    *out_bytes = 0;
    if (statvfs(dir, &info) != 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot tell the free disk space", dir);
    /* ramfs counts nothing: no blocks at all means unknown, not full. */
    *out_bytes = info.f_blocks == 0 ? UINT64_MAX : (uint64_t)info.f_bavail * (uint64_t)info.f_frsize;
    return SL_OK;
}
