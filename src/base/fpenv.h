/* The floating-point control word of a computing thread.
 * Denormals are kept, rounding is to nearest even. Whoever computes enters first and
 * restores the caller's word when done. Entering also prepares the thread (sl_cpu_prepare_thread). */
#ifndef SL_FPENV_H
#define SL_FPENV_H

#include <stdint.h>

typedef struct sl_fpenv {
    uint64_t word;
} sl_fpenv;

sl_fpenv sl_fpenv_enter(void);
void sl_fpenv_leave(sl_fpenv saved);

#endif
