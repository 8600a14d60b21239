/* The unnamed file behind an ephemeral context, opened by its first write.
 * Owns: the file. Refuses: memory file systems (unless allowed). Decides once, by a transfer, between direct and
 * buffered I/O. Thread rule: one thread writes; any may read what has been written, once told so under a lock. */
#ifndef SL_KVFILE_H
#define SL_KVFILE_H

#include "base/log.h"
#include "base/mem.h"
#include "base/trace.h"
#include "platform/vfs.h"
#include "store/geom.h"

typedef struct sl_kvfile {
    const sl_vfs *vfs;
    const char *dir; /* borrowed */
    sl_log log;
    sl_trace *trace; /* borrowed */
    sl_budget *budget;
    bool allow_ram_dir, force_buffered;
    bool is_direct;
    sl_file *file;    /* NULL until the first write of an ephemeral context */
    bool is_base;     /* `file` is a kept context's, borrowed */
    bool needs_own;   /* and the first write attaches an unnamed one of this context's own to it */
    uint8_t *scratch; /* 2 sectors for the probe */
    uint64_t bytes_written;
    double write_s;
    char name[200]; /* in errors */
} sl_kvfile;

typedef struct sl_kvfile_options {
    const sl_vfs *vfs;
    const char *dir; /* borrowed for the file's life */
    sl_log log;
    sl_trace *trace; /* borrowed */
    sl_budget *budget;
    bool allow_ram_dir, force_buffered;
    sl_file *base; /* a kept context's, borrowed; NULL: none */
    const char *base_name;
    bool base_is_direct;
    bool over_base; /* writes go to an unnamed file over it (SL_OVERLAY_OFF), else into it */
} sl_kvfile_options;

sl_status sl_kvfile_init(sl_kvfile *file, const sl_kvfile_options *options, sl_err *err) SL_CHECK;
void sl_kvfile_deinit(sl_kvfile *file);

/* A sector-aligned transfer of whole sectors. In buffered mode the page cache forgets the bytes before it returns. */
sl_status sl_kvfile_write(sl_kvfile *file, const void *buf, size_t bytes, uint64_t off, sl_err *err) SL_CHECK;
/* After a read through a queue: in buffered mode the page cache forgets the bytes. */
void sl_kvfile_forget(const sl_kvfile *file, size_t bytes, uint64_t off);

/* Asks for disk space in one piece before the write at `off`; opens the file. A file system that cannot, or has none
 * left, is found out by that write. */
sl_status sl_kvfile_reserve(sl_kvfile *file, uint64_t off, uint64_t bytes, sl_err *err) SL_CHECK;

/* What was read of a part, and its checksums. */
typedef struct sl_kvfile_part {
    uint32_t layer;
    uint64_t part, off;
    size_t bytes;
    uint64_t found, expected;
} sl_kvfile_part;
/* SL_OK, or SL_DAMAGED with the file's name, layer, segment and offset. */
sl_status sl_kvfile_judge(const char *name, const sl_kvfile_part *part, sl_err *err) SL_CHECK;

const char *sl_kvfile_mode(const sl_kvfile *file); /* "memory", "direct", "buffered" */

#endif
