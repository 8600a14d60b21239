#include "base/cpu.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const level_names[SL_CPU_LEVEL_COUNT] = {"ref", "avx2", "avx512"};

const char *sl_cpu_level_name(sl_cpu_level level)
{
    return level_names[level];
}

#if defined(__x86_64__)
/* clang 14 knows no name for this bit; the state it needs is AVX's, which "avx2" has been asked for. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29);
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
    case SL_CPU_LEVEL_AVX512:
        return sl_cpu_has(SL_CPU_LEVEL_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
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
    *out = sl_cpu_best();
    if (!name || !*name)
        return SL_OK;
    for (int level = 0; level < SL_CPU_LEVEL_COUNT; level++) {
        if (strcmp(name, level_names[level]) != 0)
            continue;
        if (!sl_cpu_has((sl_cpu_level)level))
            return sl_err_set(err, SL_REFUSED, "SLUICE_CPU=%s: this processor lacks it", name);
        *out = (sl_cpu_level)level;
        return SL_OK;
    }
    return sl_err_set(err, SL_USAGE, "SLUICE_CPU=%s: unknown level, expected ref, avx2 or avx512", name);
}
