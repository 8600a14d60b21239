#include "base/fpenv.h"

#include "base/cpu.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

/* MXCSR: FTZ is bit 15, rounding 13-14, DAZ bit 6; the exception masks (7-12) are the caller's business. */
#define MXCSR_OURS ((1u << 15) | (3u << 13) | (1u << 6))

sl_fpenv sl_fpenv_enter(void)
{
    unsigned word = _mm_getcsr();
    _mm_setcsr(word & ~MXCSR_OURS);
    return (sl_fpenv){word};
}

void sl_fpenv_leave(sl_fpenv saved)
{
    _mm_setcsr((unsigned)saved.word);
}

#elif defined(__aarch64__)

/* FPCR: AHP 26, DN 25, FZ 24, rounding 22-23, FZ16 19; NEP, AH, FIZ 0-2. */
#define FPCR_OURS (7ull | (1ull << 26) | (1ull << 25) | (1ull << 24) | (3ull << 22) | (1ull << 19))

sl_fpenv sl_fpenv_enter(void)
{
    sl_cpu_prepare_thread();
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    __asm__ volatile("msr fpcr, %0" : : "r"(word & ~FPCR_OURS) : "memory");
    return (sl_fpenv){word};
}

void sl_fpenv_leave(sl_fpenv saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(saved.word) : "memory");
}

#else
#error "sluice knows the floating-point control word of x86-64 and arm64 only"
#endif
