#include "base/cpu.h"

#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#if defined(SLUICE_HAVE_SME)
#include <stdatomic.h>
#include <sys/prctl.h>
#endif
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

static const char *const level_names[SL_CPU_LEVEL_COUNT] = {"ref", "avx2", "avxvnni", "avx512",
                                                            "amx", "neon", "i8mm",    "sme"};

const char *sl_cpu_level_name(sl_cpu_level level)
{
    return level_names[level];
}

#if defined(__aarch64__)
/* One bit of what Linux says of the processor (bits of its uapi asm/hwcap.h, written out because older C libraries lack
 * the newer names), or one name of macOS's sysctl. */
typedef struct feature {
    unsigned long which; /* AT_HWCAP or AT_HWCAP2 */
    unsigned bit;
    const char *sysctl;
} feature;

#if defined(__linux__)
static const feature DOT_PRODUCT = {AT_HWCAP, 20, NULL}, INT8_MATRIX = {AT_HWCAP2, 13, NULL};
#if defined(SLUICE_HAVE_SME)
static const feature SME = {AT_HWCAP2, 23, NULL}, SME_INT8 = {AT_HWCAP2, 26, NULL};
#endif

static bool has_feature(const feature *f)
{
    return (getauxval(f->which) >> f->bit & 1) != 0;
}
#elif defined(__APPLE__)
static const feature DOT_PRODUCT = {0, 0, "hw.optional.arm.FEAT_DotProd"},
                     INT8_MATRIX = {0, 0, "hw.optional.arm.FEAT_I8MM"};
#if defined(SLUICE_HAVE_SME)
static const feature SME = {0, 0, "hw.optional.arm.FEAT_SME"}, SME_INT8 = {0, 0, "hw.optional.arm.SME_I8I32"};
#endif

static bool has_feature(const feature *f)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(f->sysctl, &value, &size, NULL, 0) == 0 && value != 0;
}
#else
static const feature DOT_PRODUCT, INT8_MATRIX;
#if defined(SLUICE_HAVE_SME)
static const feature SME, SME_INT8;
#endif

static bool has_feature(const feature *f)
{
    (void)f;
    return false;
}
#endif

#if defined(SLUICE_HAVE_SME)
enum { SME_BYTES = 64 }; /* what the kernels are written for */

/* Length of a vector in streaming mode; allowed outside it. "rdsvl x0, #1", in numbers for assemblers without SME. */
static uint64_t sme_bytes(void)
{
    register uint64_t bytes __asm__("x0");
    __asm__ volatile(".inst 0x04bf5820" : "=r"(bytes));
    return bytes;
}

#if defined(__linux__)
static atomic_bool sme_is_taken;

/* Whether the calling thread has the length, or gets it: Linux keeps one for each thread, starts a process with a
 * default of its own (32 where nobody set it) and a thread with its creator's. What was there comes back when the
 * processor has no such length. Numbers of its uapi linux/prctl.h, which older C libraries lack; a length is the low
 * half, above it is whether programs that are executed inherit it, which stays as it is. */
static bool take_sme_length(void)
{
    enum { SET_LENGTH = 63, GET_LENGTH = 64, LENGTH = 0xffff };
    if (sme_bytes() == SME_BYTES)
        return true;
    const int before = prctl(GET_LENGTH);
    if (before < 0)
        return false;
    if (prctl(SET_LENGTH, (unsigned long)(before & ~LENGTH) | SME_BYTES) >= 0 && sme_bytes() == SME_BYTES)
        return true;
    (void)prctl(SET_LENGTH, (unsigned long)before);
    return false;
}

static bool may_use_sme(void)
{
    if (!take_sme_length())
        return false;
    atomic_store_explicit(&sme_is_taken, true, memory_order_relaxed);
    return true;
}

void sl_cpu_prepare_thread(void)
{
    if (atomic_load_explicit(&sme_is_taken, memory_order_relaxed))
        (void)take_sme_length(); /* what one thread got is there for all */
}
#else
static bool may_use_sme(void)
{
    return sme_bytes() == SME_BYTES;
}
#endif
#endif
#endif

#if defined(__x86_64__)
/* Leaf 7.1, EAX 4; the state it needs is AVX's. */
static bool has_avxvnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

/* clang 14 knows no name for this bit; the state it needs is AVX's, which "avx2" has been asked for. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29);
}

#if defined(__linux__)
/* AMX-TILE and AMX-INT8 (leaf 7, EDX 24 and 25), and an operating system that saves the tiles' configuration and data
 * (XCR0 17 and 18; OSXSAVE, leaf 1 ECX 27, allows reading it). */
static bool has_tiles(void)
{
    const unsigned tiles = 3u << 24, saved = 3u << 17;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27))
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & tiles) != tiles)
        return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & saved) == saved;
}

/* Tile data is saved only for processes that asked (it makes every signal frame 8 KiB larger). A second request is
 * granted like the first; the answer is kept because the question is asked often. */
static bool may_use_tiles(void)
{
    enum { UNKNOWN, NO, YES, REQUEST = 0x1023, TILE_DATA = 18 };
    static atomic_int answer = UNKNOWN;
    int known = atomic_load(&answer);
    if (known == UNKNOWN) {
        known = has_tiles() && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? YES : NO;
        atomic_store(&answer, known);
    }
    return known == YES;
}
#else
static bool may_use_tiles(void)
{
    return false;
}
#endif
#endif

#if !(defined(__aarch64__) && defined(__linux__) && defined(SLUICE_HAVE_SME))
void sl_cpu_prepare_thread(void)
{
}
#endif

bool sl_cpu_has(sl_cpu_level level)
{
    switch (level) {
    case SL_CPU_LEVEL_REF:
        return true;
#if defined(__x86_64__)
    case SL_CPU_LEVEL_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case SL_CPU_LEVEL_AVXVNNI:
        return sl_cpu_has(SL_CPU_LEVEL_AVX2) && has_avxvnni();
    case SL_CPU_LEVEL_AVX512:
        return sl_cpu_has(SL_CPU_LEVEL_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    case SL_CPU_LEVEL_AMX:
        return sl_cpu_has(SL_CPU_LEVEL_AVX512) && may_use_tiles();
#endif
#if defined(__aarch64__)
    case SL_CPU_LEVEL_NEON:
        return has_feature(&DOT_PRODUCT);
    case SL_CPU_LEVEL_I8MM:
        return sl_cpu_has(SL_CPU_LEVEL_NEON) && has_feature(&INT8_MATRIX);
#if defined(SLUICE_HAVE_SME)
    case SL_CPU_LEVEL_SME:
        return sl_cpu_has(SL_CPU_LEVEL_I8MM) && has_feature(&SME) && has_feature(&SME_INT8) && may_use_sme();
#endif
#endif
    default:
        return false;
    }
}

sl_cpu_level sl_cpu_best(void)
{
    for (int level = SL_CPU_LEVEL_COUNT - 1; level > 0; level--)
        if (sl_cpu_has((sl_cpu_level)level))
            return (sl_cpu_level)level;
    return SL_CPU_LEVEL_REF;
}

sl_status sl_cpu_find(const char *name, sl_cpu_level *out, sl_err *err)
{
    if (!name || !*name) {
        *out = sl_cpu_best();
        return SL_OK;
    }
    for (int level = 0; level < SL_CPU_LEVEL_COUNT; level++) {
        if (strcmp(name, level_names[level]) != 0)
            continue;
        if (!sl_cpu_has((sl_cpu_level)level))
            return sl_err_set(err, SL_REFUSED, "SLUICE_CPU=%s: this processor lacks it", name);
        *out = (sl_cpu_level)level;
        return SL_OK;
    }
    return sl_err_set(err, SL_USAGE,
                      "SLUICE_CPU=%s: unknown level, expected ref, avx2, avxvnni, avx512, amx, neon, i8mm or sme",
                      name);
}
