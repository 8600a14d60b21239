/* Attention tiles against few queries: the path that attn_tile takes when a query block holds at most so many that
 * most lanes of a vector of queries would be empty. Private to this folder and the checks.
 * It reads the tile as it lies and leaves the scratch alone. */
#ifndef SL_ATTN_FEW_H
#define SL_ATTN_FEW_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernel/kernel.h"

/* Most queries of a call's last block that take this path. AVX2: where bench/bench_attn.c sees the two paths meet.
 * AVX-512 and AMX: measured on a Sapphire Rapids server, where the two paths meet. */
enum { SL_FEW_AVX2_F16 = 8, SL_FEW_AVX2_Q8 = 5, SL_FEW_AVXVNNI_Q8 = 4 };
enum { SL_FEW_AVX512_F16 = 12, SL_FEW_AVX512_Q8 = 4, SL_FEW_AMX_Q8 = 4 };
/* AVX-512 and AMX: so many of them, or more, go four at a time (attn_four.h), fewer one by one. Measured there, too. */
enum { SL_FOUR_LEAST = 3 };
/* NEON, I8MM: by counting instructions; four queries fill a vector of the other path. */
enum { SL_FEW_NEON_F16 = 3, SL_FEW_NEON_Q8 = 3, SL_FEW_I8MM_Q8 = 2 };

/* How many of n queries take it: all of the last block or none. */
static inline size_t sl_attn_few(size_t n, size_t most)
{
    size_t last = n % SL_LANES;
    return last <= most ? last : 0;
}

#if defined(__x86_64__)
/* Calls bytes of the next tile into the cache, line by line: the processor's own prefetching stops at every page, and a
 * tile is a few pages. Always inlined: gcc 12 takes a function that only prefetches for one without effect, and drops
 * the call. */
__attribute__((always_inline)) static inline void sl_attn_fetch(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)at + i, _MM_HINT_T0);
}

/* No further than the second level: of lines on their way into the first only sixteen or so find room, and the rest
 * would hold up the loads behind them. For kernels that pass over a tile nearly as fast as memory gives it. */
__attribute__((always_inline)) static inline void sl_attn_fetch_outer(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)at + i, _MM_HINT_T1);
}

/* Queries [first, args->n_queries), all of one block, against the tile: with AVX2, FMA and F16C. */
void sl_attn_few_f16_avx2(const sl_tile_args *args, size_t first);
void sl_attn_few_q8_avx2(const sl_tile_args *args, size_t first);
/* With AVX-VNNI. */
void sl_attn_few_q8_avxvnni(const sl_tile_args *args, size_t first);
/* With AVX-512 and VNNI. */
void sl_attn_few_f16_avx512(const sl_tile_args *args, size_t first);
void sl_attn_few_q8_avx512(const sl_tile_args *args, size_t first);
void sl_attn_four_q8_avx512(const sl_tile_args *args, size_t first);
/* With AMX, too. */
void sl_attn_four_q8_amx(const sl_tile_args *args, size_t first);
#elif defined(__aarch64__)
__attribute__((always_inline)) static inline void sl_attn_fetch(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(at + i);
}

/* With Advanced SIMD's dot products. */
void sl_attn_few_f16_neon(const sl_tile_args *args, size_t first);
void sl_attn_few_q8_neon(const sl_tile_args *args, size_t first);
#endif

#endif
