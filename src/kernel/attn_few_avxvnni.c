/* Attention tiles against few queries for AVX-VNNI: the bits of attn_ref.c. The work is attn_few256.h's. */
#include "kernel/attn_few.h"

#if defined(__x86_64__)

#include "kernel/avxvnni.h"

#define BODY AVXVNNI_INLINE
#define DOT(sum, a, b) _mm256_dpwssd_avx_epi32(sum, a, b)
#define DOTS 12
#define UNROLLED
#include "kernel/attn_few256.h"

AVXVNNI void sl_attn_few_q8_avxvnni(const sl_tile_args *args, size_t first)
{
    few_queries(args, first, SL_KV_TYPE_Q8_0);
}

#else
typedef int sl_attn_few_avxvnni_is_for_x86;
#endif
