/* The peaks' loops on Arm, and on everything else those of plain C. Instructions beyond the baseline are written
 * out as numbers: older compilers know no names for them in a file that is built for the baseline. */
#include "bench/peaks.h"

#if !defined(__x86_64__)

static uint64_t read_plain(const void *at, size_t bytes)
{
    const uint64_t *words = at;
    uint64_t sum[16] = {0};
    for (size_t i = 0; i < bytes / sizeof *words; i += 16)
        for (size_t j = 0; j < 16; j++)
            sum[j] += words[i + j];
    for (size_t j = 1; j < 16; j++)
        sum[0] ^= sum[j];
    return sum[0];
}

bench_reader bench_reader_find(sl_cpu_level level)
{
    (void)level;
    return read_plain;
}

#if defined(__aarch64__)
#include <arm_neon.h>

#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
enum { N_CHAINS = 16 };

#define CHAIN_F32(i) float32x4_t c##i = vdupq_n_f32((float)i);
#define CHAIN_S32(i) int32x4_t c##i = vdupq_n_s32(i);
#define KEEP(i) __asm__ volatile("" : "+w"(c##i));
#define LOOP(name, start, step)                                                                                        \
    static void name(size_t steps)                                                                                     \
    {                                                                                                                  \
        start for (size_t i = 0; i < steps; i++)                                                                       \
        {                                                                                                              \
            EACH_CHAIN(step)                                                                                           \
        }                                                                                                              \
        EACH_CHAIN(KEEP)                                                                                               \
    }

#define FMA(i) c##i = vfmaq_f32(c##i, a, a); KEEP(i)
LOOP(fma_neon, float32x4_t a = vdupq_n_f32(0.5f); EACH_CHAIN(CHAIN_F32), FMA)

#define SMLAL(i) c##i = vmlal_s16(c##i, a, a); KEEP(i)
LOOP(int16_neon, int16x4_t a = vdup_n_s16(3); EACH_CHAIN(CHAIN_S32), SMLAL)

/* v0 to v15 each += products of v16 with itself; a step is one of each. */
#define WORDS(word)                                                                                                    \
    ".inst " word " + 0\n\t.inst " word " + 1\n\t.inst " word " + 2\n\t.inst " word " + 3\n\t"                         \
    ".inst " word " + 4\n\t.inst " word " + 5\n\t.inst " word " + 6\n\t.inst " word " + 7\n\t"                         \
    ".inst " word " + 8\n\t.inst " word " + 9\n\t.inst " word " + 10\n\t.inst " word " + 11\n\t"                       \
    ".inst " word " + 12\n\t.inst " word " + 13\n\t.inst " word " + 14\n\t.inst " word " + 15"
#define NUMBER_LOOP(name, word)                                                                                        \
    static void name(size_t steps)                                                                                     \
    {                                                                                                                  \
        for (size_t i = 0; i < steps; i++)                                                                             \
            __asm__ volatile(WORDS(word)                                                                               \
                             :                                                                                         \
                             :                                                                                         \
                             : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", \
                               "v14", "v15");                                                                          \
    }

NUMBER_LOOP(int8_neon, "0x4e909600")   /* sdot vN.4s, v16.16b, v16.16b */
NUMBER_LOOP(matrix_i8mm, "0x4e90a600") /* smmla, likewise */

bench_loop bench_loop_find(sl_cpu_level level, bench_peak peak)
{
    static const bench_loop loops[] = {
        {fma_neon, N_CHAINS * 8}, {int16_neon, N_CHAINS * 8}, {int8_neon, N_CHAINS * 32}, {matrix_i8mm, N_CHAINS * 64}};
    bool has = peak == BENCH_PEAK_INT8     ? sl_cpu_has(SL_CPU_LEVEL_NEON)
               : peak == BENCH_PEAK_MATRIX ? level >= SL_CPU_LEVEL_I8MM && sl_cpu_has(SL_CPU_LEVEL_I8MM)
                                           : peak < BENCH_PEAK_MATRIX;
    return has ? loops[peak] : (bench_loop){NULL, 0};
}
#else
bench_loop bench_loop_find(sl_cpu_level level, bench_peak peak)
{
    (void)level;
    (void)peak;
    return (bench_loop){NULL, 0};
}
#endif
#endif
