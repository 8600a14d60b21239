#include "common/fault_vfs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The store sees only this; `inner` is the system's. */
struct sl_file {
    fault_vfs *fault;
    sl_file *inner;
    sl_file *overlay; /* attached; its inner one belongs to this one's */
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

static sl_file *wrap(fault_vfs *fault, sl_file *inner, bool is_direct)
{
    sl_file *file = calloc(1, sizeof *file);
    if (!file)
        abort();
    file->fault = fault;
    file->inner = inner;
    file->is_direct = is_direct;
    atomic_fetch_add(&fault->n_open, 1);
    return file;
}

static sl_status fault_open_temp(const sl_vfs *vfs, const char *dir, bool direct, bool allow_ram, sl_file **out,
                                 bool *is_direct, sl_err *err)
{
    fault_vfs *fault = vfs->state;
    *out = NULL;
    *is_direct = false;
    if (fault->kind == FAULT_OPEN && hits(fault))
        return sl_err_set_errno(err, SL_FAILED, fault->code, "%s: cannot create the cache file there", dir);
    const sl_vfs *system = sl_vfs_system();
    sl_file *inner = NULL;
    sl_status status = system->open_temp(system, dir, direct && fault->kind != FAULT_DIRECT_AT_OPEN, allow_ram, &inner,
                                         is_direct, err);
    if (status == SL_OK)
        *out = wrap(fault, inner, *is_direct);
    return status;
}

static sl_status fault_open_named(const sl_vfs *vfs, const char *path, bool for_writing, bool direct, sl_file **out,
                                  bool *is_direct, sl_err *err)
{
    fault_vfs *fault = vfs->state;
    *out = NULL;
    *is_direct = false;
    if (fault->kind == FAULT_OPEN && hits(fault))
        return sl_err_set_errno(err, SL_FAILED, fault->code, "%s: cannot be opened", path);
    const sl_vfs *system = sl_vfs_system();
    sl_file *inner = NULL;
    sl_status status = system->open_named(system, path, for_writing, direct && fault->kind != FAULT_DIRECT_AT_OPEN,
                                          &inner, is_direct, err);
    if (status == SL_OK)
        *out = wrap(fault, inner, *is_direct);
    return status;
}

static sl_status fault_create_named(const sl_vfs *vfs, const char *path, bool direct, bool allow_ram, sl_file **out,
                                    bool *is_direct, sl_err *err)
{
    fault_vfs *fault = vfs->state;
    *out = NULL;
    *is_direct = false;
    if (fault->kind == FAULT_OPEN && hits(fault))
        return sl_err_set_errno(err, SL_FAILED, fault->code, "%s: cannot be created", path);
    const sl_vfs *system = sl_vfs_system();
    sl_file *inner = NULL;
    sl_status status = system->create_named(system, path, direct && fault->kind != FAULT_DIRECT_AT_OPEN, allow_ram,
                                            &inner, is_direct, err);
    if (status == SL_OK)
        *out = wrap(fault, inner, *is_direct);
    return status;
}

static int fault_publish(sl_file *file, const char *path, bool replace)
{
    fault_vfs *fault = file->fault;
    atomic_fetch_add(&fault->n_publishes, 1);
    if (fault->kind == FAULT_PUBLISH && hits(fault))
        return -fault->code;
    return sl_vfs_system()->publish(file->inner, path, replace);
}

static int fault_sync(sl_file *file)
{
    fault_vfs *fault = file->fault;
    atomic_fetch_add(&fault->n_syncs, 1);
    if (fault->kind == FAULT_SYNC && hits(fault))
        return -fault->code;
    return sl_vfs_system()->sync(file->inner);
}

static int64_t fault_size(sl_file *file)
{
    return sl_vfs_system()->size(file->inner);
}

static int fault_set_size(sl_file *file, uint64_t bytes)
{
    fault_vfs *fault = file->fault;
    if (fault->kind == FAULT_SET_SIZE && hits(fault))
        return -fault->code;
    return sl_vfs_system()->set_size(file->inner, bytes);
}

static int fault_clear(sl_file *file, uint64_t off, uint64_t bytes)
{
    fault_vfs *fault = file->fault;
    atomic_fetch_add(&fault->n_clears, 1);
    if (fault->kind == FAULT_CLEAR && hits(fault))
        return -fault->code;
    return sl_vfs_system()->clear(file->inner, off, bytes);
}

static int copy_range(sl_file *to, sl_file *from, uint64_t off, uint64_t bytes)
{
    enum { STEP = 1 << 20 };
    uint8_t *buf = aligned_alloc(SL_SECTOR_BYTES, STEP);
    int64_t moved = buf ? 1 : -ENOMEM;
    for (uint64_t end = off + bytes; moved > 0 && off < end; off += (uint64_t)moved) {
        size_t n = end - off < STEP ? (size_t)(end - off) : STEP;
        moved = sl_vfs_system()->pread(from->inner, buf, n, off);
        if (moved > 0)
            moved = sl_vfs_system()->pwrite(to->inner, buf, (size_t)moved, off);
    }
    free(buf);
    return moved < 0 ? (int)moved : moved == 0 ? -EIO : 0;
}

static int fault_share(sl_file *to, sl_file *from, uint64_t off, uint64_t bytes)
{
    fault_vfs *fault = to->fault;
    if (fault->kind == FAULT_SHARE && hits(fault))
        return -fault->code;
    int failed = fault->shares_by_copying ? copy_range(to, from, off, bytes)
                 : sl_vfs_system()->share ? sl_vfs_system()->share(to->inner, from->inner, off, bytes)
                                          : -EOPNOTSUPP;
    if (failed == 0)
        atomic_fetch_add(&fault->n_shares, 1);
    return failed;
}

static int fault_lock(sl_file *file)
{
    return sl_vfs_system()->lock(file->inner);
}

static void fault_attach(sl_file *file, sl_file *overlay)
{
    file->overlay = overlay;
    sl_vfs_system()->attach(file->inner, overlay->inner);
}

static void fault_close(sl_file *file)
{
    if (!file)
        return;
    atomic_fetch_sub(&file->fault->n_open, file->overlay ? 2 : 1);
    sl_vfs_system()->close(file->inner);
    free(file->overlay);
    free(file);
}

/* Whether this read is the one to fail. */
static bool hits_read(const sl_file *file)
{
    fault_vfs *fault = file->fault;
    bool is_read = fault->kind == FAULT_READ || fault->kind == FAULT_SHORT_READ || fault->kind == FAULT_ZERO_READ ||
                   fault->kind == FAULT_FLIPPED_BIT || (fault->kind == FAULT_DIRECT_AT_READ && file->is_direct);
    return is_read && hits(fault);
}

/* What a read that really moved so much shall have given. */
static int64_t spoil_read(const fault_vfs *fault, uint8_t *buf, int64_t moved)
{
    switch (fault->kind) {
    case FAULT_READ:
        return -(int64_t)fault->code;
    case FAULT_DIRECT_AT_READ:
        return -EINVAL;
    case FAULT_ZERO_READ:
        return 0;
    case FAULT_SHORT_READ:
        return moved > 1 ? moved / 2 : moved;
    default:
        if (moved > 0)
            buf[(size_t)moved * 5 / 7] ^= 0x10;
        return moved;
    }
}

static int64_t fault_pread(sl_file *file, void *buf, size_t bytes, uint64_t off)
{
    bool is_hit = hits_read(file);
    bool is_refused = is_hit && file->fault->kind != FAULT_SHORT_READ && file->fault->kind != FAULT_FLIPPED_BIT;
    int64_t moved = is_refused ? 0 : sl_vfs_system()->pread(file->inner, buf, bytes, off);
    return is_hit ? spoil_read(file->fault, buf, moved) : moved;
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

/* A queue over the system's. Its own tags are indices of `reads`. */
struct sl_aio {
    sl_file *file;
    sl_aio *inner;
    size_t depth;
    sl_aio_read *reads; /* [depth] */
    bool *is_used;      /* [depth] */
    sl_aio_done *held;  /* [depth] ends not passed on, in order of arrival; reads by index */
    size_t n_held, n_in_flight;
    uint64_t random;
};

static void *need(size_t n, size_t bytes)
{
    void *memory = calloc(n, bytes);
    if (!memory)
        abort();
    return memory;
}

static int fault_aio_open(const sl_vfs *vfs, const sl_aio_options *options, sl_aio **out, int *register_refused)
{
    fault_vfs *fault = vfs->state;
    const sl_vfs *inner = sl_vfs_system();
    *out = NULL;
    if (fault->kind == FAULT_AIO_OPEN) {
        atomic_fetch_add(&fault->n_hits, 1);
        return -fault->code;
    }
    sl_aio_options inner_options = *options;
    inner_options.file = options->file->inner;
    if (fault->kind == FAULT_AIO_REGISTER) {
        inner_options.memory = NULL;
        inner_options.memory_bytes = 0;
    }
    sl_aio *aio = need(1, sizeof *aio);
    int failed = inner->aio_open(inner, &inner_options, &aio->inner, register_refused);
    if (failed != 0) {
        free(aio);
        return failed;
    }
    if (fault->kind == FAULT_AIO_REGISTER) {
        *register_refused = fault->code;
        atomic_fetch_add(&fault->n_hits, 1);
    }
    aio->file = options->file;
    aio->depth = options->depth;
    aio->random = 88172645463325252U;
    aio->reads = need(aio->depth, sizeof *aio->reads);
    aio->is_used = need(aio->depth, sizeof *aio->is_used);
    aio->held = need(aio->depth, sizeof *aio->held);
    atomic_fetch_add(&fault->n_queues, 1);
    *out = aio;
    return 0;
}

static void fault_aio_close(sl_aio *aio)
{
    if (!aio)
        return;
    atomic_fetch_sub(&aio->file->fault->n_queues, 1);
    sl_vfs_system()->aio_close(aio->inner);
    free(aio->reads);
    free(aio->is_used);
    free(aio->held);
    free(aio);
}

static int fault_aio_start(sl_aio *aio, const sl_aio_read *reads, size_t n)
{
    fault_vfs *fault = aio->file->fault;
    bool is_start = fault->kind == FAULT_AIO_START || fault->kind == FAULT_AIO_FEW_STARTED;
    bool is_hit = is_start && hits(fault);
    if (is_hit && fault->kind == FAULT_AIO_START)
        return -fault->code;
    int n_started = 0;
    for (size_t i = 0; i < n && (i == 0 || !is_hit); i++) {
        size_t at = 0;
        while (at < aio->depth && aio->is_used[at])
            at++;
        if (at == aio->depth)
            abort(); /* more in flight than agreed */
        sl_aio_read read = reads[i];
        read.tag = at;
        int failed = sl_vfs_system()->aio_start(aio->inner, &read, 1);
        if (failed != 1)
            return n_started > 0 ? n_started : failed;
        aio->reads[at] = reads[i];
        aio->is_used[at] = true;
        aio->n_in_flight++;
        n_started++;
    }
    return n_started;
}

/* Passes the held end on. */
static sl_aio_done pass_on(sl_aio *aio, size_t i)
{
    size_t at = (size_t)aio->held[i].tag;
    sl_aio_done done = {aio->reads[at].tag, aio->held[i].moved};
    if (hits_read(aio->file))
        done.moved = spoil_read(aio->file->fault, aio->reads[at].buf, done.moved);
    aio->is_used[at] = false;
    aio->n_in_flight--;
    aio->n_held--;
    memmove(&aio->held[i], &aio->held[i + 1], (aio->n_held - i) * sizeof *aio->held);
    return done;
}

static size_t random_below(sl_aio *aio, size_t n)
{
    aio->random ^= aio->random << 13;
    aio->random ^= aio->random >> 7;
    aio->random ^= aio->random << 17;
    return (size_t)(aio->random % n);
}

static int fault_aio_wait(sl_aio *aio, double timeout_s, sl_aio_done *done, size_t most)
{
    fault_vfs *fault = aio->file->fault;
    bool is_shuffled = fault->kind == FAULT_AIO_SHUFFLED;
    if (fault->kind == FAULT_AIO_WAIT && hits(fault))
        return -fault->code;
    size_t room = aio->depth - aio->n_held;
    int n = room == 0
                ? 0
                : sl_vfs_system()->aio_wait(aio->inner, aio->n_held > 0 ? 0 : timeout_s, aio->held + aio->n_held, room);
    aio->n_held += n > 0 ? (size_t)n : 0;
    if (aio->n_held == 0)
        return n;
    if (!is_shuffled) {
        size_t n_passed = 0;
        while (n_passed < most && aio->n_held > 0)
            done[n_passed++] = pass_on(aio, 0);
        return (int)n_passed;
    }
    /* Others may overtake: give them the time. */
    while (aio->n_held < aio->n_in_flight && random_below(aio, 4) != 0) {
        n = sl_vfs_system()->aio_wait(aio->inner, 0.002, aio->held + aio->n_held, aio->depth - aio->n_held);
        aio->n_held += n > 0 ? (size_t)n : 0;
    }
    size_t i = random_below(aio, aio->n_held);
    if (i > 0)
        atomic_fetch_add(&fault->n_hits, 1);
    done[0] = pass_on(aio, i);
    return 1;
}

static void fault_aio_wake(sl_aio *aio)
{
    sl_vfs_system()->aio_wake(aio->inner);
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
        .open_named = fault_open_named,
        .create_named = fault_create_named,
        .publish = fault_publish,
        .sync = fault_sync,
        .size = fault_size,
        .set_size = fault_set_size,
        .clear = fault_clear,
        .share = fault_share,
        .lock = fault_lock,
        .attach = fault_attach,
        .close = fault_close,
        .pread = fault_pread,
        .pwrite = fault_pwrite,
        .set_direct = fault_set_direct,
        .reserve = fault_reserve,
        .drop_cached = fault_drop_cached,
        .cached_bytes = fault_cached_bytes,
        .want_big_pages = sl_vfs_system()->want_big_pages,
        .state = fault,
    };
    const sl_vfs *inner = sl_vfs_system();
    if (inner->aio_open) {
        fault->vfs.aio_open = fault_aio_open;
        fault->vfs.aio_close = fault_aio_close;
        fault->vfs.aio_start = fault_aio_start;
        fault->vfs.aio_wait = fault_aio_wait;
        fault->vfs.aio_wake = fault_aio_wake;
        fault->vfs.aio_name = inner->aio_name;
    }
}
