/* Which entries each level above the reference has: the lists from which kernel.c fills the table and the checks
 * know what to expect. A level's function of entry NAME is sl_NAME_<level>. An entry that a level lacks keeps the
 * level below. */
#ifndef SL_KERNEL_LEVELS_H
#define SL_KERNEL_LEVELS_H

#include "kernel/ref.h"

#if defined(__x86_64__)

#define SL_KERNELS_AVX2(X)

#define SL_KERNELS_AVX512(X)

#define SL_KERNEL_PROTO_AVX2(name, type) SL_PROTO_##type(sl_##name##_avx2);
#define SL_KERNEL_PROTO_AVX512(name, type) SL_PROTO_##type(sl_##name##_avx512);
SL_KERNELS_AVX2(SL_KERNEL_PROTO_AVX2)
SL_KERNELS_AVX512(SL_KERNEL_PROTO_AVX512)
#undef SL_KERNEL_PROTO_AVX2
#undef SL_KERNEL_PROTO_AVX512

#else

#define SL_KERNELS_AVX2(X)
#define SL_KERNELS_AVX512(X)

#endif

#endif
