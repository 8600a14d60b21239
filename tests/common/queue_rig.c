#include "common/queue_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char *rig_dir(void)
{
    const char *dir = getenv("SLUICE_KV_DIR");
    return dir && *dir ? dir : "/var/tmp";
}

/* Every 8 bytes differ from all others of the file. */
static uint64_t word_at(uint64_t off)
{
    uint64_t x = off / 8 + 1;
    x *= 0x9e3779b97f4a7c15U;
    return x ^ (x >> 29);
}

bool rig_is_right(const uint8_t *buf, uint64_t off, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = word_at(off + i);
        if (memcmp(buf + i, &word, sizeof word) != 0)
            return false;
    }
    return true;
}

static void keep_log(void *arg, sl_log_level level, const char *text)
{
    queue_rig *rig = arg;
    assert_int_equal(level, SL_LOG_LEVEL_INFO);
    assert_true(rig->n_log < RIG_LOG_LINES);
    snprintf(rig->log[rig->n_log++], sizeof *rig->log, "%s", text);
}

void rig_init(queue_rig *rig, fault_kind kind, int code, uint64_t n)
{
    memset(rig, 0, sizeof *rig);
    fault_vfs_init(&rig->fault, kind, code, n);
    sl_budget_init(&rig->budget, UINT64_MAX);
    rig->memory_bytes = RIG_FILE_BYTES;
    sl_err err;
    if (sl_mem_map(&rig->budget, rig->memory_bytes, "memory", &rig->memory, &err) != SL_OK)
        fail_msg("%s", err.text);
    const sl_vfs *vfs = &rig->fault.vfs;
    if (vfs->open_temp(vfs, rig_dir(), true, true, &rig->file, &rig->is_direct, &err) != SL_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < RIG_FILE_BYTES; i += 8) {
        uint64_t word = word_at(i);
        memcpy(rig->memory + i, &word, sizeof word);
    }
    if (sl_vfs_write(vfs, rig->file, "written", rig->memory, RIG_FILE_BYTES, 0, &err) != SL_OK)
        fail_msg("%s", err.text);
    memset(rig->memory, 0, rig->memory_bytes);
}

sl_status rig_open(queue_rig *rig, sl_io_engine engine, size_t depth, sl_err *err)
{
    sl_queue_options options = {
        .vfs = &rig->fault.vfs,
        .file = rig->file,
        .name = "some file",
        .memory = rig->memory,
        .memory_bytes = rig->memory_bytes,
        .depth = depth,
        .engine = engine,
        .budget = &rig->budget,
        .log = {keep_log, rig},
    };
    return sl_queue_create(&options, &rig->queue, err);
}

void rig_close(queue_rig *rig)
{
    sl_queue_destroy(rig->queue);
    rig->queue = NULL;
    assert_int_equal(rig->budget.used_bytes, RIG_FILE_BYTES);
    assert_int_equal(rig->fault.n_queues, 0);
}

void rig_deinit(queue_rig *rig)
{
    rig_close(rig);
    rig->fault.vfs.close(rig->file);
    assert_int_equal(rig->fault.n_open, 0);
    if (rig->memory_bytes == RIG_FILE_BYTES)
        sl_mem_unmap(&rig->budget, rig->memory, rig->memory_bytes);
    sl_budget_deinit(&rig->budget);
}

bool rig_has_system_queue(char *cause, size_t cause_bytes)
{
    queue_rig rig;
    sl_err err = {0};
    rig_init(&rig, FAULT_NONE, 0, 0);
    sl_status status = rig_open(&rig, SL_IO_ENGINE_URING, 1, &err);
    snprintf(cause, cause_bytes, "%s", err.text);
    rig_deinit(&rig);
    return status == SL_OK;
}

/* Reads of the file in an order that is not its own. */
static uint64_t off_of(size_t i, size_t n, size_t read_bytes)
{
    return (uint64_t)((i * 7 + 3) % n) * read_bytes;
}

bool rig_read_all(queue_rig *rig, size_t read_bytes, rig_result *result)
{
    enum { MOST = 1024, MOST_SLOTS = 64 };
    static bool has_ended[MOST];
    size_t n = RIG_FILE_BYTES / read_bytes, n_slots = sl_queue_room(rig->queue);
    size_t slots[MOST_SLOTS], n_free = 0, slot_of[MOST];
    memset(has_ended, 0, sizeof has_ended);
    memset(result, 0, sizeof *result);
    if (n > MOST || n % 7 == 0 || n_slots > MOST_SLOTS || n_slots * read_bytes > rig->memory_bytes)
        return false;
    for (size_t i = 0; i < n_slots; i++)
        slots[n_free++] = i;
    for (size_t next = 0, n_ended = 0; n_ended < n;) {
        sl_read reads[MOST_SLOTS];
        size_t n_reads = 0;
        for (; next < n && n_free > 0; next++) {
            slot_of[next] = slots[--n_free];
            reads[n_reads++] =
                (sl_read){rig->memory + slot_of[next] * read_bytes, read_bytes, off_of(next, n, read_bytes), next};
        }
        sl_queue_add(rig->queue, reads, n_reads);
        if (sl_queue_room(rig->queue) != n_free)
            return false;
        uint64_t tag = UINT64_MAX;
        sl_status status = SL_OK;
        sl_err err = {0};
        if (!sl_queue_wait(rig->queue, -1, &tag, &status, &err) || tag >= next || has_ended[tag])
            return false;
        has_ended[tag] = true;
        n_ended++;
        uint8_t *buf = rig->memory + slot_of[tag] * read_bytes;
        bool is_right = status == SL_OK && rig_is_right(buf, off_of((size_t)tag, n, read_bytes), read_bytes);
        result->n_right += is_right;
        result->n_wrong += status == SL_OK && !is_right;
        result->n_failed += status != SL_OK;
        if (status != SL_OK)
            result->err = err;
        memset(buf, 0xee, read_bytes);
        slots[n_free++] = slot_of[tag];
    }
    return sl_queue_room(rig->queue) == n_slots;
}
