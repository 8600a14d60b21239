#include "store/kvfile.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "platform/os.h"

sl_status sl_kvfile_init(sl_kvfile *file, const sl_kvfile_options *options, sl_err *err)
{
    memset(file, 0, sizeof *file);
    file->vfs = options->vfs;
    file->dir = options->dir;
    file->log = options->log;
    file->trace = options->trace;
    file->budget = options->budget;
    file->allow_ram_dir = options->allow_ram_dir;
    file->force_buffered = options->force_buffered;
    if (options->base) {
        file->file = options->base;
        file->is_base = true;
        file->needs_own = options->over_base;
        file->is_direct = options->base_is_direct;
        snprintf(file->name, sizeof file->name, "%.190s", options->base_name);
    } else {
        snprintf(file->name, sizeof file->name, "cache file in %.180s", options->dir);
    }
    return sl_mem_map(file->budget, (size_t)2 * SL_SECTOR_BYTES, "direct I/O probe", &file->scratch, err);
}

void sl_kvfile_deinit(sl_kvfile *file)
{
    if (file->file && !file->is_base)
        file->vfs->close(file->file);
    file->file = NULL;
    sl_mem_unmap(file->budget, file->scratch, (size_t)2 * SL_SECTOR_BYTES);
    file->scratch = NULL;
}

/* `off` is where the first write goes: the probe's sector will be overwritten by it. */
static sl_status open_at(sl_kvfile *file, uint64_t off, sl_err *err)
{
    off &= ~SL_OVERLAY_OFF;
    bool is_direct = false;
    sl_file *opened = NULL;
    sl_status status = file->vfs->open_temp(file->vfs, file->dir, !file->force_buffered, file->allow_ram_dir, &opened,
                                            &is_direct, err);
    if (status != SL_OK)
        return status;
    if (is_direct) {
        status = sl_vfs_probe_direct(file->vfs, opened, file->name, file->scratch, off, &is_direct, err);
        file->bytes_written += SL_SECTOR_BYTES;
    }
    if (status != SL_OK) {
        file->vfs->close(opened);
        return status;
    }
    if (!is_direct && !file->force_buffered)
        sl_log_write(&file->log, SL_LOG_LEVEL_WARNING,
                     "%s: direct I/O does not work there; going through the page cache and dropping pages behind",
                     file->dir);
    if (!file->is_base) {
        file->is_direct = is_direct;
        file->file = opened;
        return SL_OK;
    }
    file->is_direct = file->is_direct && is_direct;
    file->needs_own = false;
    file->vfs->attach(file->file, opened);
    return SL_OK;
}

sl_status sl_kvfile_write(sl_kvfile *file, const void *buf, size_t bytes, uint64_t off, sl_err *err)
{
    double start = sl_os_seconds();
    sl_status status = SL_OK;
    if (!file->file || file->needs_own)
        status = open_at(file, off, err);
    if (status == SL_OK)
        status = sl_vfs_write(file->vfs, file->file, file->name, buf, bytes, off, err);
    if (status == SL_OK) {
        file->bytes_written += bytes;
        int failed = file->is_direct ? 0 : file->vfs->drop_cached(file->file, off, bytes);
        if (failed != 0)
            status = sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot write out %zu bytes at offset %" PRIu64,
                                      file->name, bytes, off);
    }
    double end = sl_os_seconds();
    file->write_s += end - start;
    sl_trace_span(file->trace, SL_TRACE_LANE_WRITE, "write", start, end,
                  (sl_trace_about){-1, -1, (int64_t)bytes, (int64_t)off});
    return status;
}

void sl_kvfile_forget(const sl_kvfile *file, size_t bytes, uint64_t off)
{
    if (!file->is_direct)
        (void)file->vfs->drop_cached(file->file, off, bytes);
}

sl_status sl_kvfile_reserve(sl_kvfile *file, uint64_t off, uint64_t bytes, sl_err *err)
{
    sl_status status = file->file && !file->needs_own ? SL_OK : open_at(file, off, err);
    if (status == SL_OK)
        (void)file->vfs->reserve(file->file, off, bytes);
    return status;
}

sl_status sl_kvfile_judge(const char *name, const sl_kvfile_part *part, sl_err *err)
{
    if (part->found == part->expected)
        return SL_OK;
    return sl_err_set(err, SL_DAMAGED,
                      "%s: layer %" PRIu32 ", segment %" PRIu64 ", offset %" PRIu64 " (%zu bytes): checksum %016" PRIx64
                      ", expected %016" PRIx64,
                      name, part->layer, part->part / SL_SEGMENT_PARTS, part->off & ~SL_OVERLAY_OFF, part->bytes,
                      part->found, part->expected);
}

const char *sl_kvfile_mode(const sl_kvfile *file)
{
    return !file->file ? "memory" : file->is_direct ? "direct" : "buffered";
}
