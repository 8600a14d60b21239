/* Which level fills which entry of the kernel table: stated here once more, by hand, so that a kernel that silently
 * fell out of a level's list is noticed. A level that the processor lacks is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/kernel.h"

/* Which levels have a version of each entry, in words; both architectures. */
static const struct {
    const char *name, *levels;
} wanted[] = {
    {"attn_qpack_f16", "neon"},
    {"attn_qpack_q8", "avx2 neon"},
    {"attn_tile_f16", "avx2 avx512 neon sme"},
    {"attn_tile_q8", "avx2 avxvnni avx512 amx neon i8mm sme"},
    {"attn_tiles_q8", "avx512 amx"},
    {"attn_segfold", "avx2 neon"},
    {"attn_finish", "avx2 neon"},
    {"kv_pack_f16", "avx2 neon"},
    {"kv_pack_q8", "avx2 neon"},
    {"qrow", "avx2 avx512 neon"},
    {"gemm_f32", "avx2 avx512 neon"},
    {"gemm_f16", "avx2 avx512 neon"},
    {"gemm_bf16", "avx2 avx512 neon"},
    {"gemm_q8_0", "avx2 avxvnni avx512 amx neon i8mm sme"},
    {"gemm_q4_0", "avx2 avxvnni avx512 amx neon i8mm sme"},
    {"gemm_q4_1", "avx2 avxvnni avx512 amx neon i8mm sme"},
    {"gemm_q5_0", "avx2 avxvnni avx512 amx neon i8mm sme"},
    {"gemm_q5_1", "avx2 avxvnni avx512 amx neon i8mm sme"},
    {"gemm_q4_k", "avx2 avxvnni avx512 amx neon i8mm sme"},
    {"gemm_q5_k", "avx2 avxvnni avx512 amx neon i8mm sme"},
    {"gemm_q6_k", "avx2 avxvnni avx512 neon i8mm sme"},
    {"gemm_q2_k", "avx2 avxvnni neon"},
    {"gemm_q3_k", "avx2 avxvnni neon"},
    {"gemm_iq4_nl", "avx2 avxvnni neon"},
    {"gemm_iq4_xs", "avx2 avxvnni neon"},
    {"gemm_mxfp4", "avx2 avxvnni neon"},
    {"rmsnorm", "avx2 avx512 neon"},
    {"rope_norm", "avx2 avx512 neon"},
    {"rope_neox", "avx2 avx512 neon"},
    {"silu_mul", "avx2 avx512 neon"},
    {"gelu_mul", "avx2 avx512 neon"},
    {"softcap", "avx2 avx512 neon"},
    {"add", "avx2 avx512 neon"},
    {"exp2", "avx2 avx512 neon"},
    {"sumexp", "avx2 avx512 neon"},
    {"argmax", "avx2 avx512 neon"},
    {"finite", "avx2 avx512 neon"},
};

_Static_assert(sizeof wanted / sizeof wanted[0] == SL_KERNEL_COUNT, "an entry without an expectation");

/* For each level, the levels that it builds upon, nearest first. */
static const sl_cpu_level below[SL_CPU_LEVEL_COUNT][4] = {
    [SL_CPU_LEVEL_AVXVNNI] = {SL_CPU_LEVEL_AVX2},
    [SL_CPU_LEVEL_AVX512] = {SL_CPU_LEVEL_AVX2},
    [SL_CPU_LEVEL_AMX] = {SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX2},
    [SL_CPU_LEVEL_I8MM] = {SL_CPU_LEVEL_NEON},
    [SL_CPU_LEVEL_SME] = {SL_CPU_LEVEL_I8MM, SL_CPU_LEVEL_NEON},
};

static bool has_version(size_t entry, sl_cpu_level level)
{
    const char *name = sl_cpu_level_name(level);
    size_t n = strlen(name);
    for (const char *at = wanted[entry].levels; (at = strstr(at, name)) != NULL; at += n)
        if ((at == wanted[entry].levels || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

static sl_cpu_level expected(size_t entry, sl_cpu_level level)
{
    if (has_version(entry, level))
        return level;
    for (size_t i = 0; i < 4; i++)
        if (below[level][i] != SL_CPU_LEVEL_REF && has_version(entry, below[level][i]))
            return below[level][i];
    return SL_CPU_LEVEL_REF;
}

static void expect_level(sl_cpu_level level)
{
    if (!sl_cpu_has(level))
        skip();
    sl_kernels kernels;
    sl_kernels_init(&kernels, level);
    for (size_t i = 0; i < SL_KERNEL_COUNT; i++) {
        assert_string_equal(wanted[i].name, sl_kernel_name(i));
        sl_cpu_level want = expected(i, level);
        if (kernels.level[i] != want)
            fail_msg("%s: asked for %s, got %s, expected %s", wanted[i].name, sl_cpu_level_name(level),
                     sl_cpu_level_name(kernels.level[i]), sl_cpu_level_name(want));
    }
}

static void ref_fills_the_table(void **unused)
{
    (void)unused;
    expect_level(SL_CPU_LEVEL_REF);
}

static void avx2_fills_its_entries(void **unused)
{
    (void)unused;
    expect_level(SL_CPU_LEVEL_AVX2);
}

static void avxvnni_fills_its_entries(void **unused)
{
    (void)unused;
    expect_level(SL_CPU_LEVEL_AVXVNNI);
}

static void avx512_fills_its_entries(void **unused)
{
    (void)unused;
    expect_level(SL_CPU_LEVEL_AVX512);
}

static void amx_fills_its_entries(void **unused)
{
    (void)unused;
    expect_level(SL_CPU_LEVEL_AMX);
}

static void neon_fills_its_entries(void **unused)
{
    (void)unused;
    expect_level(SL_CPU_LEVEL_NEON);
}

static void i8mm_fills_its_entries(void **unused)
{
    (void)unused;
    expect_level(SL_CPU_LEVEL_I8MM);
}

static void sme_fills_its_entries(void **unused)
{
    (void)unused;
    expect_level(SL_CPU_LEVEL_SME);
}

static void names_of_levels(void **unused)
{
    (void)unused;
    sl_err err = {SL_OK, ""};
    sl_cpu_level level;
    assert_int_equal(SL_OK, sl_cpu_find(NULL, &level, &err));
    assert_int_equal(sl_cpu_best(), level);
    assert_int_equal(SL_OK, sl_cpu_find("ref", &level, &err));
    assert_int_equal(SL_CPU_LEVEL_REF, level);
    assert_int_equal(SL_USAGE, sl_cpu_find("avx1024", &level, &err));
    assert_non_null(strstr(err.text, "avx1024"));
    for (int i = 0; i < SL_CPU_LEVEL_COUNT; i++)
        if (!sl_cpu_has((sl_cpu_level)i)) {
            assert_int_equal(SL_REFUSED, sl_cpu_find(sl_cpu_level_name((sl_cpu_level)i), &level, &err));
            assert_non_null(strstr(err.text, sl_cpu_level_name((sl_cpu_level)i)));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ref_fills_the_table),       cmocka_unit_test(avx2_fills_its_entries),
        cmocka_unit_test(avxvnni_fills_its_entries), cmocka_unit_test(avx512_fills_its_entries),
        cmocka_unit_test(amx_fills_its_entries),     cmocka_unit_test(neon_fills_its_entries),
        cmocka_unit_test(i8mm_fills_its_entries),    cmocka_unit_test(sme_fills_its_entries),
        cmocka_unit_test(names_of_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
