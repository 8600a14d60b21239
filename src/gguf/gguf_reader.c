#include "gguf/gguf_reader.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "gguf/gguf_parse.h"
#include "platform/queue.h"

enum {
    DEPTH = 8,
    LEAST_READ_BYTES = 256 << 10,
    READS_OF_MEMORY = 6 /* a memory full of ranges is at most so many reads, and some for their ends: all in flight */
};

typedef struct model_file {
    char *path;
    sl_file *file;
    sl_queue *queue; /* NULL: not started */
    bool is_direct;
    uint64_t tail_off; /* whole sectors before it */
    size_t tail_bytes;
    uint8_t tail[SL_SECTOR_BYTES]; /* of the file as it was opened: no direct read ends in the middle of a sector */
} model_file;

/* free -> used (add) -> all of it asked for (pump) -> nothing in flight -> free (wait) */
typedef struct slot {
    sl_gguf_range range;
    uint8_t *buf;
    uint64_t off, end; /* of the direct reads: next one, end */
    size_t n_flying;
    bool is_used, has_failed;
} slot;

struct sl_gguf_reader {
    const sl_vfs *vfs;
    sl_budget *budget;
    size_t read_bytes;
    slot slots[SL_GGUF_READER_SLOTS];
    size_t next_slot; /* slots are given in turn, as far as they are free, and so asked for */
    sl_err cause;     /* of the last slot that failed */
    uint64_t bytes_read;
    double wait_s;
    size_t n_files;
    model_file files[]; /* [n_files] */
};

static uint64_t down_sector(uint64_t off)
{
    return off / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
}

size_t sl_gguf_range_room(const sl_gguf_range *range)
{
    return (size_t)(sl_up_sector(range->off + range->bytes) - down_sector(range->off));
}

uint64_t sl_gguf_reader_memory(size_t n_files)
{
    enum { HEADS_BYTES = 64, PATH_BYTES = 4096 }; /* of the heap; of a path, at most */
    return sizeof(sl_gguf_reader) + n_files * (sizeof(model_file) + PATH_BYTES) + HEADS_BYTES;
}

uint64_t sl_gguf_reader_queue_bytes(size_t n_files)
{
    return n_files * sl_queue_bytes(DEPTH);
}

const char *sl_gguf_reader_path(const sl_gguf_reader *reader, uint32_t part)
{
    return reader->files[part].path;
}

uint64_t sl_gguf_reader_bytes_read(const sl_gguf_reader *reader)
{
    return reader->bytes_read;
}

double sl_gguf_reader_wait_s(const sl_gguf_reader *reader)
{
    return reader->wait_s;
}

bool sl_gguf_reader_is_direct(const sl_gguf_reader *reader)
{
    for (size_t i = 0; i < reader->n_files; i++)
        if (!reader->files[i].is_direct)
            return false;
    return true;
}

/* --------------------------------------------------------------------------------------------------- open and close */

/* Like pread once, but not for a passing interruption. */
static int64_t read_once(const sl_vfs *vfs, sl_file *file, void *buf, size_t bytes, uint64_t off)
{
    int64_t moved;
    do
        moved = vfs->pread(file, buf, bytes, off);
    while (moved == -EINTR);
    return moved;
}

/* A file system that takes the flag may refuse the transfer all the same. */
static sl_status look_at(sl_gguf_reader *reader, model_file *file, sl_err *err)
{
    const sl_vfs *vfs = reader->vfs;
    uint8_t room[2 * SL_SECTOR_BYTES];
    uint8_t *sector = room + (SL_SECTOR_BYTES - (uintptr_t)room % SL_SECTOR_BYTES) % SL_SECTOR_BYTES;
    const int64_t size = vfs->size(file->file);
    if (size < 0)
        return sl_err_set_errno(err, SL_FAILED, (int)-size, "%s: cannot be examined", file->path);
    file->tail_off = down_sector((uint64_t)size);
    file->tail_bytes = (size_t)((uint64_t)size - file->tail_off);
    int64_t moved = read_once(vfs, file->file, sector, SL_SECTOR_BYTES, file->tail_off);
    if (file->is_direct && (moved == -EINVAL || moved == -EOPNOTSUPP)) {
        const int failed = vfs->set_direct(file->file, false);
        if (failed != 0)
            return sl_err_set_errno(err, SL_FAILED, -failed, "%s: direct I/O cannot be left off", file->path);
        file->is_direct = false;
        moved = read_once(vfs, file->file, sector, SL_SECTOR_BYTES, file->tail_off);
    }
    if (moved < 0)
        return sl_err_set_errno(err, SL_FAILED, (int)-moved, "%s: its last %zu bytes cannot be read", file->path,
                                file->tail_bytes);
    if ((uint64_t)moved < file->tail_bytes)
        return sl_err_set(err, SL_FAILED, "%s: of its last %zu bytes %lld came", file->path, file->tail_bytes,
                          (long long)moved);
    memcpy(file->tail, sector, file->tail_bytes);
    return SL_OK;
}

static sl_status open_file(sl_gguf_reader *reader, const sl_gguf *gguf, model_file *file, sl_err *err)
{
    const size_t bytes = strlen(gguf->path) + 1;
    sl_status status = sl_mem_new(reader->budget, bytes, 1, "path of a model", &file->path, err);
    if (status != SL_OK)
        return status;
    memcpy(file->path, gguf->path, bytes);
    status = reader->vfs->open_named(reader->vfs, file->path, false, true, &file->file, &file->is_direct, err);
    if (status == SL_OK)
        status = look_at(reader, file, err);
    if (status == SL_OK && file->tail_off + file->tail_bytes != gguf->file_bytes)
        status = sl_err_set(err, SL_FAILED, "%s: was changed while it was opened", file->path);
    return status;
}

sl_status sl_gguf_reader_open(const sl_gguf *gguf, const sl_vfs *vfs, sl_budget *budget, sl_gguf_reader **out,
                              sl_err *err)
{
    assert(gguf->input);
    *out = NULL;
    sl_gguf_reader *reader = NULL;
    const size_t n_files = gguf->n_parts + 1;
    sl_status status = sl_mem_new(budget, 1, sizeof *reader + n_files * sizeof reader->files[0], "reader of a model",
                                  &reader, err);
    if (status != SL_OK)
        return status;
    reader->vfs = vfs ? vfs : sl_vfs_system();
    reader->budget = budget;
    reader->n_files = n_files;
    for (size_t i = 0; status == SL_OK && i < n_files; i++)
        status = open_file(reader, i == 0 ? gguf : gguf->parts[i - 1], &reader->files[i], err);
    if (status != SL_OK) {
        sl_gguf_reader_close(reader);
        return status;
    }
    *out = reader;
    return SL_OK;
}

void sl_gguf_reader_close(sl_gguf_reader *reader)
{
    if (!reader)
        return;
    sl_gguf_reader_stop(reader);
    for (size_t i = 0; i < reader->n_files; i++) {
        if (reader->files[i].file)
            reader->vfs->close(reader->files[i].file);
        sl_mem_free(reader->budget, reader->files[i].path);
    }
    sl_mem_free(reader->budget, reader);
}

sl_status sl_gguf_reader_start(sl_gguf_reader *reader, uint8_t *memory, size_t memory_bytes, const sl_log *log,
                               sl_err *err)
{
    const size_t share = (size_t)sl_up_sector(memory_bytes / READS_OF_MEMORY);
    reader->read_bytes = share > LEAST_READ_BYTES ? share : LEAST_READ_BYTES;
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < reader->n_files; i++) {
        model_file *file = &reader->files[i];
        const sl_queue_options options = {
            .vfs = reader->vfs,
            .file = file->file,
            .name = file->path,
            .memory = memory,
            .memory_bytes = memory_bytes,
            .depth = DEPTH,
            .budget = reader->budget,
            .log = log ? *log : (sl_log){NULL, NULL},
        };
        status = sl_queue_create(&options, &file->queue, err);
    }
    if (status != SL_OK)
        sl_gguf_reader_stop(reader);
    return status;
}

void sl_gguf_reader_stop(sl_gguf_reader *reader)
{
    for (size_t i = 0; i < reader->n_files; i++) {
        sl_queue_destroy(reader->files[i].queue);
        reader->files[i].queue = NULL;
    }
    memset(reader->slots, 0, sizeof reader->slots);
}

/* --------------------------------------------------------------------------------------------------------- reading */

/* What of the range lies in the file's last, unfinished sector. */
static void copy_tail(const model_file *file, const sl_gguf_range *range, uint8_t *buf)
{
    if (range->off + range->bytes > file->tail_off)
        memcpy(buf + (file->tail_off - down_sector(range->off)), file->tail, file->tail_bytes);
}

/* End of the direct reads; the range lies in the file as it was opened. */
static uint64_t direct_end(const model_file *file, const sl_gguf_range *range)
{
    const uint64_t end = sl_up_sector(range->off + range->bytes);
    assert(range->off + range->bytes <= file->tail_off + file->tail_bytes);
    return end < file->tail_off ? end : file->tail_off;
}

/* As many reads as there is room for, of the slots in the order of their adding. */
static void pump(sl_gguf_reader *reader)
{
    for (size_t i = 0; i < SL_GGUF_READER_SLOTS; i++) {
        const size_t at = (reader->next_slot + i) % SL_GGUF_READER_SLOTS;
        slot *s = &reader->slots[at];
        sl_queue *queue = reader->files[s->range.part].queue;
        while (s->is_used && s->off < s->end && sl_queue_room(queue) > 0) {
            const uint64_t left = s->end - s->off;
            const size_t bytes = left < reader->read_bytes ? (size_t)left : reader->read_bytes;
            const sl_read read = {s->buf + (s->off - down_sector(s->range.off)), bytes, s->off, at};
            s->off += bytes;
            s->n_flying++;
            reader->bytes_read += bytes;
            sl_queue_add(queue, &read, 1);
        }
    }
}

size_t sl_gguf_reader_add(sl_gguf_reader *reader, const sl_gguf_range *range, uint8_t *buf)
{
    size_t at = reader->next_slot;
    for (size_t i = 0; reader->slots[at].is_used && i < SL_GGUF_READER_SLOTS; i++)
        at = (at + 1) % SL_GGUF_READER_SLOTS;
    const model_file *file = &reader->files[range->part];
    slot *s = &reader->slots[at];
    assert(!s->is_used && file->queue);
    *s = (slot){.range = *range, .buf = buf, .off = down_sector(range->off), .is_used = true};
    s->end = direct_end(file, range);
    reader->next_slot = (at + 1) % SL_GGUF_READER_SLOTS;
    copy_tail(file, range, buf);
    pump(reader);
    return at;
}

static void take_end(sl_gguf_reader *reader, uint64_t tag, sl_status status, const sl_err *cause)
{
    slot *s = &reader->slots[tag];
    s->n_flying--;
    if (status == SL_OK)
        return;
    if (!s->has_failed)
        reader->cause = *cause;
    s->has_failed = true;
    s->end = s->off; /* no more of it is asked for */
}

sl_status sl_gguf_reader_wait(sl_gguf_reader *reader, size_t at, const uint8_t **first, sl_err *err)
{
    slot *s = &reader->slots[at];
    const model_file *file = &reader->files[s->range.part];
    const double start_s = sl_os_seconds();
    assert(s->is_used);
    for (;;) {
        pump(reader);
        if (s->n_flying == 0 && s->off == s->end)
            break;
        uint64_t tag = 0;
        sl_status status = SL_OK;
        sl_err cause = {SL_OK, ""};
        if (sl_queue_wait(file->queue, -1, &tag, &status, &cause))
            take_end(reader, tag, status, &cause);
    }
    reader->wait_s += sl_os_seconds() - start_s;
    s->is_used = false;
    if (!file->is_direct && reader->vfs->drop_cached)
        (void)reader->vfs->drop_cached(file->file, down_sector(s->range.off), sl_gguf_range_room(&s->range));
    *first = s->buf + s->range.off % SL_SECTOR_BYTES;
    return s->has_failed ? sl_err_set(err, SL_FAILED, "%s", reader->cause.text) : SL_OK;
}

sl_status sl_gguf_reader_read(sl_gguf_reader *reader, const sl_gguf_range *range, uint8_t *buf, const uint8_t **at,
                              sl_err *err)
{
    const model_file *file = &reader->files[range->part];
    const uint64_t off = down_sector(range->off), end = direct_end(file, range);
    copy_tail(file, range, buf);
    *at = buf + range->off % SL_SECTOR_BYTES;
    reader->bytes_read += end > off ? end - off : 0;
    return end > off ? sl_vfs_read(reader->vfs, file->file, file->path, buf, (size_t)(end - off), off, err) : SL_OK;
}
