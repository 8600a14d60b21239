/* Which level fills which entry of the kernel table: stated here once more, by hand, so that a kernel that silently
 * fell out of a level's list is noticed. A level that the processor lacks is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/kernel.h"

/* Which x86 level's version each x86 level has. */
static const struct {
    const char *name;
    sl_cpu_level avx2, avx512, amx; /* what the table holds when that level is asked for */
} wanted[] = {
    {"attn_qpack_f16", SL_CPU_LEVEL_REF, SL_CPU_LEVEL_REF, SL_CPU_LEVEL_REF},
    {"attn_qpack_q8", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2},
    {"attn_tile_f16", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"attn_tile_q8", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AMX},
    {"attn_segfold", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2},
    {"attn_finish", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2},
    {"kv_pack_f16", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2},
    {"kv_pack_q8", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX2},
    {"qrow", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"gemm_f32", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"gemm_f16", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"gemm_bf16", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"gemm_q8_0", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AMX},
    {"gemm_q4_0", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AMX},
    {"gemm_q4_1", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AMX},
    {"rmsnorm", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"rope_norm", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"silu_mul", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"add", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"exp2", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"sumexp", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"argmax", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
    {"finite", SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AVX512},
};

_Static_assert(sizeof wanted / sizeof wanted[0] == SL_KERNEL_COUNT, "an entry without an expectation");

static void expect_level(sl_cpu_level level)
{
    if (!sl_cpu_has(level))
        skip();
    sl_kernels kernels;
    sl_kernels_init(&kernels, level);
    for (size_t i = 0; i < SL_KERNEL_COUNT; i++) {
        assert_string_equal(wanted[i].name, sl_kernel_name(i));
        sl_cpu_level want = level == SL_CPU_LEVEL_AVX2     ? wanted[i].avx2
                            : level == SL_CPU_LEVEL_AVX512 ? wanted[i].avx512
                            : level == SL_CPU_LEVEL_AMX    ? wanted[i].amx
                                                           : SL_CPU_LEVEL_REF;
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
        cmocka_unit_test(ref_fills_the_table),
        cmocka_unit_test(avx2_fills_its_entries),
        cmocka_unit_test(avx512_fills_its_entries),
        cmocka_unit_test(amx_fills_its_entries),
        cmocka_unit_test(names_of_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
