/* What this machine computes, measured in a fraction of a second with the kernels and threads of the run: for floors
 * and time estimates. Owns nothing. Thread rule: the thread that drives the pool. */
#ifndef SL_RATES_H
#define SL_RATES_H

#include "base/mem.h"
#include "base/thread.h"
#include "kernel/kernel.h"

typedef struct sl_rates_machine {
    const sl_kernels *kernels; /* borrowed, as the next two */
    sl_pool *pool;
    sl_budget *budget;
    double seconds; /* for one measurement, about; 0: 0.05 */
} sl_rates_machine;

/* Bytes a second that all threads together read from memory (a block far larger than the caches, as far as the budget
 * allows). */
sl_status sl_rates_memory(const sl_rates_machine *machine, double *bytes_per_s, sl_err *err) SL_CHECK;

typedef struct sl_rates_attn {
    sl_kv_type type;
    uint32_t n_heads, n_kv_heads, head_dim;
    size_t n_rows;
} sl_rates_attn;

/* Keys a second: stored tokens of one layer that all its heads fold for n_rows rows (4 * n_rows * n_heads * head_dim
 * operations each). */
sl_status sl_rates_attention(const sl_rates_machine *machine, const sl_rates_attn *shape, double *keys_per_s,
                             sl_err *err) SL_CHECK;

/* Multiply-adds a second of a projection with weights of that type for n_rows rows. */
sl_status sl_rates_projection(const sl_rates_machine *machine, sl_wtype type, size_t n_rows,
                              double *madds_per_s, sl_err *err) SL_CHECK;

#endif
