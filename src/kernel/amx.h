/* What the AMX kernels share: their target and the tile instructions. x86-64 only.
 * The instructions are written out, because gcc 12's intrinsics do not say that a tile load or a configuration reads
 * memory: it may drop or move the stores before it. Register numbers are literals.
 * A function configures the tiles when it starts and releases them before it returns: nobody else sees their state,
 * and a thread that waits has none to be saved. A product adds to c: c[i][j] += sum over r and b of a[i][4r + b] *
 * b[r][j][b], sixteen by sixteen 32-bit sums of 64 (or fewer) products of bytes. */
#ifndef SL_AMX_H
#define SL_AMX_H

#include "kernel/avx512.h"

#define AMX_TARGET "amx-tile,amx-int8,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
#define AMX __attribute__((target(AMX_TARGET)))
#define AMX_INLINE static inline __attribute__((always_inline, target(AMX_TARGET)))

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_ROW_BYTES = 64, AMX_PALETTE = 1 };

/* The 64 bytes that ldtilecfg reads. */
typedef struct amx_config {
    uint8_t palette, start_row, reserved0[14];
    uint16_t row_bytes[AMX_TILES], reserved1[8];
    uint8_t rows[AMX_TILES], reserved2[8];
} amx_config;

_Static_assert(sizeof(amx_config) == 64, "the processor's layout");

AMX_INLINE void amx_configure(const amx_config *config)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*config));
}

AMX_INLINE void amx_release(void)
{
    __asm__ volatile("tilerelease");
}

#define AMX_LOAD(tile, at, stride)                                                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"((size_t)(stride)) : "memory")
#define AMX_STORE(tile, at, stride)                                                                                    \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(at), "r"((size_t)(stride)) : "memory")
#define AMX_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
/* c += a * b: a signed, b signed or unsigned */
#define AMX_DOT_SS(c, a, b) __asm__ volatile("tdpbssd %tmm" #b ", %tmm" #a ", %tmm" #c)
#define AMX_DOT_SU(c, a, b) __asm__ volatile("tdpbsud %tmm" #b ", %tmm" #a ", %tmm" #c)

#endif
