/* Attention for AVX-VNNI: the bits of attn_ref.c. The 256-bit bodies with one instruction for a product and its sum. */
#include "kernel/levels.h"

#if defined(__x86_64__)

#include "kernel/avxvnni.h"

#define BODY AVXVNNI_INLINE
#define DOT(sum, a, b) _mm256_dpwssd_avx_epi32(sum, a, b)
#define DOTS 12
#if defined(__clang__) /* unrolls by itself */
#define UNROLLED
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#include "kernel/attn_blocks256.h"

AVXVNNI void sl_attn_tile_q8_avxvnni(const sl_tile_args *args)
{
    const size_t few = sl_attn_few(args->n_queries, SL_FEW_AVXVNNI_Q8);
    if (few > 0)
        sl_attn_few_q8_avxvnni(args, args->n_queries - few);
    if (few < args->n_queries)
        tile_q8(args, args->n_queries - few);
}

#else
typedef int sl_attn_avxvnni_is_for_x86;
#endif
