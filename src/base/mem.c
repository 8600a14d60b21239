#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* In front of each block of sl_mem_new, so that sl_mem_free knows what to give back; keeps malloc's alignment. */
typedef union heap_head {
    struct {
        size_t bytes; /* counted */
        bool is_map;
    } of;
    max_align_t align;
} heap_head;

/* From this size on a block is a mapping of its own: a heap would keep freed blocks resident, unseen by the budget. */
enum { MAP_FROM_BYTES = 128 << 10 };

enum { BIG_PAGE_BYTES = 2 << 20 }; /* of most processors; direct reads into them were 5 % quicker */

void sl_budget_init(sl_budget *budget, uint64_t limit_bytes)
{
    memset(budget, 0, sizeof *budget);
    budget->limit_bytes = limit_bytes;
    pthread_mutex_init(&budget->lock, NULL);
}

void sl_budget_deinit(sl_budget *budget)
{
    pthread_mutex_destroy(&budget->lock);
}

sl_status sl_budget_take(sl_budget *budget, uint64_t bytes, const char *what, sl_err *err)
{
    sl_status status = SL_OK;
    pthread_mutex_lock(&budget->lock);
    if (budget->fail_in > 0 && --budget->fail_in == 0) {
        status = sl_err_set(err, SL_FAILED, "out of memory: %s needs %" PRIu64 " bytes", what, bytes);
    } else if (bytes > budget->limit_bytes - budget->used_bytes) {
        status = sl_err_set(err, SL_REFUSED,
                            "memory budget too small: %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64 " are left",
                            what, bytes, budget->limit_bytes - budget->used_bytes, budget->limit_bytes);
    } else {
        budget->used_bytes += bytes;
        if (budget->used_bytes > budget->peak_bytes)
            budget->peak_bytes = budget->used_bytes;
    }
    pthread_mutex_unlock(&budget->lock);
    return status;
}

void sl_budget_give(sl_budget *budget, uint64_t bytes)
{
    pthread_mutex_lock(&budget->lock);
    assert(bytes <= budget->used_bytes);
    budget->used_bytes -= bytes;
    pthread_mutex_unlock(&budget->lock);
}

uint64_t sl_budget_left(sl_budget *budget)
{
    pthread_mutex_lock(&budget->lock);
    uint64_t left = budget->limit_bytes - budget->used_bytes;
    pthread_mutex_unlock(&budget->lock);
    return left;
}

static size_t map_bytes(size_t bytes)
{
    return (bytes + SL_MEM_ALIGN - 1) & ~(size_t)(SL_MEM_ALIGN - 1);
}

sl_status sl_mem_map(sl_budget *budget, size_t bytes, const char *what, void *out_ptr, sl_err *err)
{
    void **out = out_ptr;
    *out = NULL;
    if (bytes == 0)
        return SL_OK;
    if (bytes > SIZE_MAX / 2)
        return sl_err_set(err, SL_FAILED, "out of memory: %s needs %zu bytes", what, bytes);
    size_t size = map_bytes(bytes);
    sl_status status = sl_budget_take(budget, size, what, err);
    if (status != SL_OK)
        return status;
    /* Large blocks start where a big page can. A page of the system is smaller than either: map more, then cut both
     * ends off. */
    size_t align = size >= BIG_PAGE_BYTES ? (size_t)BIG_PAGE_BYTES : (size_t)SL_MEM_ALIGN;
    size_t wide = size + align;
    char *base = mmap(NULL, wide, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        int cause = errno;
        sl_budget_give(budget, size);
        return sl_err_set_errno(err, SL_FAILED, cause, "out of memory: %s needs %zu bytes", what, bytes);
    }
    size_t head = (align - (uintptr_t)base % align) % align;
    if (head > 0)
        munmap(base, head);
    if (wide - head > size)
        munmap(base + head + size, wide - head - size);
    *out = base + head;
    return SL_OK;
}

void sl_mem_unmap(sl_budget *budget, void *ptr, size_t bytes)
{
    if (!ptr)
        return;
    munmap(ptr, map_bytes(bytes));
    sl_budget_give(budget, map_bytes(bytes));
}

sl_status sl_mem_new(sl_budget *budget, size_t n, size_t item_bytes, const char *what, void *out_ptr, sl_err *err)
{
    void **out = out_ptr;
    heap_head *head = NULL;
    *out = NULL;
    if (item_bytes != 0 && n > (SIZE_MAX / 2 - sizeof *head) / item_bytes)
        return sl_err_set(err, SL_FAILED, "out of memory: %s needs %zu items of %zu bytes", what, n, item_bytes);
    size_t bytes = n * item_bytes + sizeof *head;
    sl_status status;
    if (bytes >= MAP_FROM_BYTES) {
        status = sl_mem_map(budget, bytes, what, &head, err);
    } else {
        status = sl_budget_take(budget, bytes, what, err);
        head = status == SL_OK ? calloc(1, bytes) : NULL;
        if (status == SL_OK && !head) {
            sl_budget_give(budget, bytes);
            status = sl_err_set(err, SL_FAILED, "out of memory: %s needs %zu bytes", what, bytes);
        }
    }
    if (status != SL_OK)
        return status;
    head->of.bytes = bytes;
    head->of.is_map = bytes >= MAP_FROM_BYTES;
    *out = head + 1;
    return SL_OK;
}

void sl_mem_free(sl_budget *budget, void *ptr)
{
    if (!ptr)
        return;
    heap_head *head = (heap_head *)ptr - 1;
    if (head->of.is_map) {
        sl_mem_unmap(budget, head, head->of.bytes);
        return;
    }
    sl_budget_give(budget, head->of.bytes);
    free(head);
}
