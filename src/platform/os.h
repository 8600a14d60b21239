/* What only the operating system can tell: clocks, memory, processors. Thread rule: any thread. */
#ifndef SL_OS_H
#define SL_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

double sl_os_seconds(void);             /* monotonic */
uint64_t sl_os_peak_rss_bytes(void);    /* VmHWM; 0 unknown */
uint64_t sl_os_rss_bytes(void);         /* VmRSS; 0 unknown */
uint64_t sl_os_free_memory_bytes(void); /* the smaller of what the machine and the memory cgroup have free */
size_t sl_os_n_cpus(void);              /* this process may use */
/* Free bytes of the file system of `dir` for this user; UINT64_MAX: it does not count them. */
sl_status sl_os_disk_free(const char *dir, uint64_t *out_bytes, sl_err *err) SL_CHECK;

/* A condition variable whose timeouts go by sl_os_seconds. Destroyed by pthread_cond_destroy. */
void sl_os_cond_init(pthread_cond_t *cond);
/* As pthread_cond_wait, until at_s at the latest; false: that time has come. */
bool sl_os_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double at_s);

/* A regular file opened for reading (a directory, a device: refused by name). Positions are explicit. */
typedef struct sl_input sl_input;
sl_status sl_input_open(const char *path, sl_input **out, uint64_t *size_bytes, sl_err *err) SL_CHECK;
/* Exactly `bytes` or an error that names path and offset. */
sl_status sl_input_read(sl_input *input, void *buf, size_t bytes, uint64_t off, sl_err *err) SL_CHECK;
void sl_input_close(sl_input *input);

/* Notes: small texts that one run leaves for the next, in a folder of the user's. */
/* The whole note, terminated; false when there is none, it cannot be read, or it is longer than capacity - 1. */
bool sl_os_note_find(const char *folder, const char *name, char *text, size_t capacity);
/* Written beside and renamed over: readers see the old text or the new one. Makes the folder, an absolute path. */
sl_status sl_os_note_save(const char *folder, const char *name, const char *text, sl_err *err) SL_CHECK;

/* A name, fit for a note's, of the file system that `dir` lies on: device number, identity and size. False: `dir`
 * cannot be examined. */
enum { SL_OS_DEVICE_NAME_BYTES = 80 };
bool sl_os_device_name(const char *dir, char out[SL_OS_DEVICE_NAME_BYTES]);

/* The folder that a path's last name lies in, as a string of its own; NULL: no memory. */
char *sl_os_folder_of(const char *path);
/* Whether the name is taken, by a link that leads nowhere too. */
bool sl_os_is_taken(const char *path);
/* The file that a path leads to: which one it is, and its bytes on the disk. False: none that can be looked at. */
typedef struct sl_os_file {
    uint64_t device, number, disk_bytes;
} sl_os_file;
bool sl_os_look(const char *path, sl_os_file *out);
bool sl_os_is_same(const sl_os_file *a, const sl_os_file *b);

/* Gives a file another name in the same folder, in place of a file that has it: at every moment the name is the one
 * file's or the other's. On the disk when it returns SL_OK. */
sl_status sl_os_rename(const char *from, const char *to, sl_err *err) SL_CHECK;

#endif
