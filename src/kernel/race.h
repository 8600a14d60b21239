/* What a kernel of one instruction set reads and writes, told to the thread sanitizer by whoever calls it: those files
 * are built without it, because there each load of 32 bytes would be a call that takes longer than the kernel. Nothing
 * in other builds. Source of the two functions: the interface that the compilers' own instrumentation calls. */
#ifndef SL_RACE_H
#define SL_RACE_H

#include "kernel/kernel.h"

#if defined(__SANITIZE_THREAD__)
#define SL_RACE_IS_TOLD 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SL_RACE_IS_TOLD 1
#endif
#endif

#ifdef SL_RACE_IS_TOLD

void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes);

static inline void sl_race_read(const void *address, size_t bytes)
{
    __tsan_read_range((void *)(uintptr_t)address, bytes);
}

static inline void sl_race_write(void *address, size_t bytes)
{
    __tsan_write_range(address, bytes);
}

#else

static inline void sl_race_read(const void *address, size_t bytes)
{
    (void)address;
    (void)bytes;
}

static inline void sl_race_write(void *address, size_t bytes)
{
    (void)address;
    (void)bytes;
}

#endif

/* The queries' tile, and their states. Not the queries: they were packed before any item began. */
static inline void sl_race_tile(const sl_tile_args *args, sl_kv_type type)
{
    sl_race_read(args->tile, sl_tile_bytes(type, args->head_dim));
    for (size_t i = 0; i * SL_LANES < args->n_queries; i++)
        sl_race_write(args->states + i * args->state_stride, sl_state_bytes(args->head_dim));
}

/* A matrix product's rows in and out. Not the matrix: it stays as it was loaded. */
static inline void sl_race_product(const sl_gemm_args *args)
{
    for (size_t r = 0; r < args->n_rows; r++) {
        sl_race_read(args->x + r * args->x_stride, args->n_in * sizeof *args->x);
        sl_race_write(args->out + r * args->out_stride + args->first_out, args->n * sizeof *args->out);
    }
}

#endif
