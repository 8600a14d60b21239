/* What the SME kernels share: their target, and how a function enters. arm64 with a compiler that knows SME only.
 * The vector length is 512 bits (sl_cpu_has asks for it), so a 32-bit tile of ZA is sixteen by sixteen. An outer
 * product of bytes adds to a tile: c[i][j] += sum over b of a[4i + b] * b[4j + b].
 * A function marked SME runs in streaming mode, where NEON is not allowed and most vector instructions are slow: it
 * moves operands in and products out, and nothing else. Entering and leaving costs what some dozens of outer products
 * do. ZA is the function's own; whatever the caller's caller had there is saved first, by the routine that the
 * compiler calls for it (sme.c holds our own, as not every C library has one). */
#ifndef SL_SME_H
#define SL_SME_H

#if defined(__aarch64__) && defined(SLUICE_HAVE_SME)

#include <arm_sme.h>

#define SME __attribute__((noinline, target("sme"))) __arm_new("za") __arm_locally_streaming
#define SME_INLINE static inline __attribute__((always_inline, target("sme"))) /* ... __arm_streaming */

/* In front of a loop over rows of ZA: clang 22, unrolling one with a second condition, took a wrong row. */
#define SME_EACH_ROW _Pragma("clang loop unroll(disable)")

enum { SME_ROWS = 16, SME_ROW_BYTES = 64, SME_TILE_BYTES = SME_ROWS * SME_ROW_BYTES };

#endif

#endif
