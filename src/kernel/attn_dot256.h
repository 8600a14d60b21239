/* What the 256-bit attention kernels of AVX2 and AVX-VNNI differ in. A file for AVX-VNNI says the four macros below
 * before it includes their bodies. */
#ifndef SL_ATTN_DOT256_H
#define SL_ATTN_DOT256_H

#if defined(__x86_64__)

#include "kernel/avx2.h"

#ifndef BODY
/* static, always inlined, with the target */
#define BODY AVX2_INLINE
/* sum + the products of 16-bit pairs */
#define DOT(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
/* accumulators of a register block: DOT's latency times two a cycle, and no more than leave room for the operands */
#define DOTS 8
/* before the loops over a group's products */
#define UNROLLED
#endif

#endif
#endif
