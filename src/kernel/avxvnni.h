/* What the AVX-VNNI kernels share: their target. x86-64 only. */
#ifndef SL_AVXVNNI_H
#define SL_AVXVNNI_H

#include <immintrin.h>

#define AVXVNNI __attribute__((target("avx2,fma,f16c,avxvnni")))
#define AVXVNNI_INLINE static inline __attribute__((always_inline, target("avx2,fma,f16c,avxvnni")))

#endif
