/* Attention tiles against few queries for AVX2, FMA and F16C: the bits of attn_ref.c. The work is attn_few256.h's. */
#include "kernel/attn_few.h"

#if defined(__x86_64__)

#include "kernel/attn_few256.h"

AVX2 void sl_attn_few_f16_avx2(const sl_tile_args *args, size_t first)
{
    few_queries(args, first, SL_KV_TYPE_F16);
}

AVX2 void sl_attn_few_q8_avx2(const sl_tile_args *args, size_t first)
{
    few_queries(args, first, SL_KV_TYPE_Q8_0);
}

#else
typedef int sl_attn_few_avx2_is_for_x86;
#endif
