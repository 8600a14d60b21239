/* Memory with a budget.
 * Owns: the count of bytes handed out against a ceiling. Refuses: what would pass the ceiling, before asking
 * the system for it. Thread rule: all functions may be called from any thread. */
#ifndef SL_MEM_H
#define SL_MEM_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define SL_MEM_ALIGN 16384u /* of sl_mem_map: covers direct I/O on every platform */

typedef struct sl_budget {
    uint64_t limit_bytes; /* UINT64_MAX: none */
    uint64_t used_bytes;
    uint64_t peak_bytes;
    int64_t fail_in; /* test seam: the allocation that brings this from 1 to 0 fails; 0 = never */
    pthread_mutex_t lock;
} sl_budget;

void sl_budget_init(sl_budget *budget, uint64_t limit_bytes);
void sl_budget_deinit(sl_budget *budget);

/* Counts bytes that something else (a library, a stack) will use. */
sl_status sl_budget_take(sl_budget *budget, uint64_t bytes, const char *what, sl_err *err) SL_CHECK;
void sl_budget_give(sl_budget *budget, uint64_t bytes);
uint64_t sl_budget_left(sl_budget *budget);

/* Zeroed memory of its own mapping, aligned to SL_MEM_ALIGN; freeing returns it to the system at once.
 * `what` names it in the error. bytes = 0 gives NULL and SL_OK. Owned by caller until sl_mem_unmap. */
sl_status sl_mem_map(sl_budget *budget, size_t bytes, const char *what, void *out_ptr, sl_err *err) SL_CHECK;
void sl_mem_unmap(sl_budget *budget, void *ptr, size_t bytes);

/* Zeroed heap memory for n items; n * item_bytes is checked for overflow. Freed by sl_mem_free. n = 0 gives a
 * valid pointer. */
sl_status sl_mem_new(sl_budget *budget, size_t n, size_t item_bytes, const char *what, void *out_ptr,
                     sl_err *err) SL_CHECK;
void sl_mem_free(sl_budget *budget, void *ptr);

#endif
