/* macOS: clock, memory, processors, disk space.
 * Facts: clock_gettime(3), sysctl(3), statfs(2), the kernel's headers mach/task_info.h and mach/vm_statistics.h. */
#include <errno.h>
#include <mach/mach.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/sysctl.h>
#include <time.h>

#include "platform/os.h"

double sl_os_seconds(void)
{
    /* Ticks of mach_absolute_time in nanoseconds; like Linux's monotonic clock it stands still while the machine
     * sleeps. */
    return 1e-9 * (double)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
}

void sl_os_cond_init(pthread_cond_t *cond)
{
    pthread_cond_init(cond, NULL);
}

bool sl_os_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double at_s)
{
    const double longest_s = 1e9;
    double left_s = at_s - sl_os_seconds();
    if (left_s <= 0)
        return false;
    left_s = left_s < longest_s ? left_s : longest_s;
    struct timespec left = {.tv_sec = (time_t)left_s};
    left.tv_nsec = (long)((left_s - (double)left.tv_sec) * 1e9);
    return pthread_cond_timedwait_relative_np(cond, lock, &left) == 0;
}

/* The footprint is what the system holds against a process, compressed pages and all; clean pages of files, which
 * the resident set has too, are not in it. */
static bool find_footprint(task_vm_info_data_t *info)
{
    mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
    return task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)info, &count) == KERN_SUCCESS &&
           count >= TASK_VM_INFO_REV3_COUNT;
}

uint64_t sl_os_peak_rss_bytes(void)
{
    task_vm_info_data_t info;
    return find_footprint(&info) && info.ledger_phys_footprint_peak > 0 ? (uint64_t)info.ledger_phys_footprint_peak : 0;
}

uint64_t sl_os_rss_bytes(void)
{
    task_vm_info_data_t info;
    return find_footprint(&info) ? info.phys_footprint : 0;
}

static uint64_t find_sysctl(const char *name)
{
    uint64_t value = 0; /* little-endian: a 32-bit answer lies at its beginning */
    size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, NULL, 0) == 0 ? value : 0;
}

/* What can be had without compressing or swapping: free pages, pages of files, memory that its owners let go. */
uint64_t sl_os_free_memory_bytes(void)
{
    vm_statistics64_data_t pages;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    vm_size_t page_bytes = 0;
    mach_port_t host = mach_host_self();
    bool is_known = host_page_size(host, &page_bytes) == KERN_SUCCESS &&
                    host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&pages, &count) == KERN_SUCCESS;
    mach_port_deallocate(mach_task_self(), host);
    if (!is_known)
        return find_sysctl("hw.memsize") / 4;
    /* Pages read ahead of need are counted both as free and as pages of files. */
    uint64_t n_free = (uint64_t)pages.free_count + pages.external_page_count + pages.purgeable_count;
    n_free -= pages.speculative_count < n_free ? pages.speculative_count : n_free;
    return n_free * page_bytes;
}

size_t sl_os_n_cpus(void)
{
    uint64_t n = find_sysctl("hw.activecpu");
    return n > 0 ? (size_t)n : 1;
}

sl_status sl_os_disk_free(const char *dir, uint64_t *out_bytes, sl_err *err)
{
    struct statfs info;
    *out_bytes = 0;
    if (statfs(dir, &info) != 0)
        return sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot tell the free disk space", dir);
    *out_bytes = (uint64_t)info.f_bavail * info.f_bsize;
    return SL_OK;
}
