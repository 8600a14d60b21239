/* What the processor can do, and the level of kernels to use. */
#ifndef SL_CPU_H
#define SL_CPU_H

#include <stdbool.h>

#include "base/err.h"

/* In rising order on each architecture; SL_CPU_LEVEL_REF runs everywhere. */
typedef enum sl_cpu_level {
    SL_CPU_LEVEL_REF,
    SL_CPU_LEVEL_AVX2,    /* AVX2, FMA, F16C */
    SL_CPU_LEVEL_AVXVNNI, /* AVX2 and the 256-bit dot products of AVX-VNNI */
    SL_CPU_LEVEL_AVX512,  /* F, BW, VL, DQ, VNNI */
    SL_CPU_LEVEL_AMX,     /* AVX512 and tiles of int8 */
    SL_CPU_LEVEL_NEON,    /* Arm: Advanced SIMD with dot products */
    SL_CPU_LEVEL_I8MM,    /* NEON and int8 matrix products */
    SL_CPU_LEVEL_SME,     /* I8MM and the Scalable Matrix Extension with int8 outer products */
    SL_CPU_LEVEL_COUNT
} sl_cpu_level;

const char *sl_cpu_level_name(sl_cpu_level level);
/* Asked for AMX, and the processor has it: also asks Linux, once per process and for all of its threads, to let the
 * process use tiles. Asked for SME: also sets the vector length of streaming mode to 64 bytes for the calling thread
 * and those it starts later, if the processor has that length. Any thread. */
bool sl_cpu_has(sl_cpu_level level);
/* For a thread that will compute: what sl_cpu_has has set for the asking thread is set for this one, which may be
 * older. sl_fpenv_enter calls it. */
void sl_cpu_prepare_thread(void);
sl_cpu_level sl_cpu_best(void);

/* `name` is SLUICE_CPU's value: NULL or "" means the best. Unknown or missing levels are refused by name. */
sl_status sl_cpu_find(const char *name, sl_cpu_level *out, sl_err *err) SL_CHECK;

#endif
