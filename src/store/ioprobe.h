/* How a device wants to be read: found by a short measurement in the folder of the cache, remembered per device.
 * Owns: an unnamed file while it measures; one small text file per device in the user's cache folder.
 * Refuses: memory file systems. Thread rule: any thread; one measurement at a time. */
#ifndef SL_IOPROBE_H
#define SL_IOPROBE_H

#include "base/log.h"
#include "base/mem.h"
#include "platform/queue.h"
#include "platform/vfs.h"

typedef struct sl_io_profile {
    size_t read_bytes;      /* of one read */
    size_t in_flight_bytes; /* the least with which the device gave its best, within 3 % */
    double read_rate, write_rate; /* bytes a second: sequential, this program's own transfers */
    bool is_direct;
    /* false: rounds of the same reading differed by more than half, others use the disk; read_bytes and in_flight_bytes
     * are then the defaults, the rates the best that was seen. Not to be remembered. */
    bool is_steady;
} sl_io_profile;

/* What a reader of this device keeps in flight, as far as its ring has room: what the device needs, but no less than
 * 32 MiB, so that it does not run dry while the reader looks at what has come, or while others use the device: a probe
 * of two seconds cannot foresee them, and more in flight never hurt where less was enough. */
static inline size_t sl_io_profile_flight(const sl_io_profile *profile)
{
    const size_t least = (size_t)32 << 20;
    return profile->in_flight_bytes > least ? profile->in_flight_bytes : least;
}

typedef struct sl_ioprobe_options {
    const sl_vfs *vfs; /* NULL: the system's */
    const char *dir;
    bool allow_ram_dir;
    size_t memory_bytes; /* that buffers may take; 0: 64 MiB */
    uint64_t file_bytes; /* written, then read again and again; 0: 256 MiB, less where the disk is nearly full */
    double seconds;      /* about, in all; 0: 2 */
    sl_io_engine engine;
    sl_budget *budget;
    sl_log log;
    bool (*stop)(void *arg); /* NULL: never. true: SL_CANCELLED */
    void *arg;
} sl_ioprobe_options;

sl_status sl_ioprobe_run(const sl_ioprobe_options *options, sl_io_profile *out, sl_err *err) SL_CHECK;

/* What was measured earlier for the device under `dir`, by the notes in the folder `notes` (NULL: none). A missing, old
 * or unreadable note is a miss. */
bool sl_ioprobe_find(const char *notes, const char *dir, sl_io_profile *out);
/* Remembers it; a folder that cannot be written is told and harms nothing else. */
sl_status sl_ioprobe_save(const char *notes, const char *dir, const sl_io_profile *profile, sl_err *err) SL_CHECK;

#endif
