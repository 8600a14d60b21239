#include "common/fault_vfs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The store sees only this; `inner` is the system's. */
struct sl_file {
    fault_vfs *fault;
    sl_file *inner;
    bool is_direct;
};

static bool hits(fault_vfs *fault)
{
    uint64_t call = atomic_fetch_add(&fault->n_calls, 1) + 1;
    bool is_hit = call >= fault->n && call <= fault->n + fault->n_in_row;
    if (is_hit)
        atomic_fetch_add(&fault->n_hits, 1);
    return is_hit;
}

static sl_status fault_open_temp(const sl_vfs *vfs, const char *dir, bool direct, bool allow_ram, sl_file **out,
                                 bool *is_direct, sl_err *err)
{
    fault_vfs *fault = vfs->state;
    *out = NULL;
    *is_direct = false;
    if (fault->kind == FAULT_OPEN && hits(fault))
        return sl_err_set_errno(err, SL_FAILED, fault->code, "%s: cannot create the cache file there", dir);
    sl_file *file = calloc(1, sizeof *file);
    if (!file)
        abort();
    file->fault = fault;
    const sl_vfs *inner = sl_vfs_system();
    sl_status status = inner->open_temp(inner, dir, direct && fault->kind != FAULT_DIRECT_AT_OPEN, allow_ram,
                                        &file->inner, is_direct, err);
    if (status != SL_OK) {
        free(file);
        return status;
    }
    file->is_direct = *is_direct;
    atomic_fetch_add(&fault->n_open, 1);
    *out = file;
    return SL_OK;
}

static void fault_close(sl_file *file)
{
    if (!file)
        return;
    atomic_fetch_sub(&file->fault->n_open, 1);
    sl_vfs_system()->close(file->inner);
    free(file);
}

static int64_t fault_pread(sl_file *file, void *buf, size_t bytes, uint64_t off)
{
    fault_vfs *fault = file->fault;
    const sl_vfs *inner = sl_vfs_system();
    bool is_read = fault->kind == FAULT_READ || fault->kind == FAULT_SHORT_READ || fault->kind == FAULT_ZERO_READ ||
                   fault->kind == FAULT_FLIPPED_BIT;
    if (fault->kind == FAULT_DIRECT_AT_READ && file->is_direct && hits(fault))
        return -EINVAL;
    if (!is_read || !hits(fault))
        return inner->pread(file->inner, buf, bytes, off);
    if (fault->kind == FAULT_READ)
        return -(int64_t)fault->code;
    if (fault->kind == FAULT_ZERO_READ)
        return 0;
    int64_t moved = inner->pread(file->inner, buf, bytes, off);
    if (moved <= 0)
        return moved;
    if (fault->kind == FAULT_SHORT_READ)
        return moved > 1 ? moved / 2 : moved;
    ((uint8_t *)buf)[(size_t)moved * 5 / 7] ^= 0x10;
    return moved;
}

static int64_t fault_pwrite(sl_file *file, const void *buf, size_t bytes, uint64_t off)
{
    fault_vfs *fault = file->fault;
    const sl_vfs *inner = sl_vfs_system();
    bool is_write = fault->kind == FAULT_WRITE || fault->kind == FAULT_SHORT_WRITE || fault->kind == FAULT_ZERO_WRITE;
    if (fault->kind == FAULT_DIRECT_AT_WRITE && file->is_direct && hits(fault))
        return -EINVAL;
    if (!is_write || !hits(fault))
        return inner->pwrite(file->inner, buf, bytes, off);
    if (fault->kind == FAULT_WRITE)
        return -(int64_t)fault->code;
    if (fault->kind == FAULT_ZERO_WRITE)
        return 0;
    int64_t moved = inner->pwrite(file->inner, buf, bytes, off);
    return moved > 1 ? moved / 2 : moved;
}

static int fault_set_direct(sl_file *file, bool direct)
{
    int failed = sl_vfs_system()->set_direct(file->inner, direct);
    if (failed == 0)
        file->is_direct = direct;
    return failed;
}

static int fault_reserve(sl_file *file, uint64_t off, uint64_t bytes)
{
    return sl_vfs_system()->reserve(file->inner, off, bytes);
}

static int fault_drop_cached(sl_file *file, uint64_t off, uint64_t bytes)
{
    fault_vfs *fault = file->fault;
    if (fault->kind == FAULT_WRITE_OUT && hits(fault))
        return -fault->code;
    return sl_vfs_system()->drop_cached(file->inner, off, bytes);
}

static int64_t fault_cached_bytes(sl_file *file)
{
    if (file->fault->kind == FAULT_SILENTLY_CACHED && file->is_direct)
        return SL_SECTOR_BYTES;
    return sl_vfs_system()->cached_bytes(file->inner);
}

void fault_vfs_init(fault_vfs *fault, fault_kind kind, int code, uint64_t n)
{
    memset(fault, 0, sizeof *fault);
    fault->kind = kind;
    fault->code = code;
    fault->n = n;
    /* Refused direct I/O stays refused. */
    fault->n_in_row = kind == FAULT_DIRECT_AT_WRITE || kind == FAULT_DIRECT_AT_READ ? UINT64_MAX / 2 : 0;
    fault->vfs = (sl_vfs){
        .open_temp = fault_open_temp,
        .close = fault_close,
        .pread = fault_pread,
        .pwrite = fault_pwrite,
        .set_direct = fault_set_direct,
        .reserve = fault_reserve,
        .drop_cached = fault_drop_cached,
        .cached_bytes = fault_cached_bytes,
        .state = fault,
    };
}
