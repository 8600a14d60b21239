/* The one place that chooses: fills the kernel table. */
#include "kernel/kernel.h"

#include <assert.h>

#include "kernel/levels.h"

static void fill_ref(sl_kernels *kernels)
{
#define FILL(name, type)                                                                                               \
    kernels->name = sl_##name##_ref;                                                                                   \
    kernels->level[SL_KERNEL_ENTRY_##name] = SL_CPU_LEVEL_REF;
    SL_KERNEL_LIST(FILL)
#undef FILL
}

static void fill_avx2(sl_kernels *kernels)
{
    (void)kernels; /* other architectures have an empty list */
#define FILL(name, type)                                                                                               \
    kernels->name = sl_##name##_avx2;                                                                                  \
    kernels->level[SL_KERNEL_ENTRY_##name] = SL_CPU_LEVEL_AVX2;
    SL_KERNELS_AVX2(FILL)
#undef FILL
}

static void fill_avxvnni(sl_kernels *kernels)
{
    (void)kernels;
#define FILL(name, type)                                                                                               \
    kernels->name = sl_##name##_avxvnni;                                                                               \
    kernels->level[SL_KERNEL_ENTRY_##name] = SL_CPU_LEVEL_AVXVNNI;
    SL_KERNELS_AVXVNNI(FILL)
#undef FILL
}

static void fill_avx512(sl_kernels *kernels)
{
    (void)kernels;
#define FILL(name, type)                                                                                               \
    kernels->name = sl_##name##_avx512;                                                                                \
    kernels->level[SL_KERNEL_ENTRY_##name] = SL_CPU_LEVEL_AVX512;
    SL_KERNELS_AVX512(FILL)
#undef FILL
}

static void fill_amx(sl_kernels *kernels)
{
    (void)kernels;
#define FILL(name, type)                                                                                               \
    kernels->name = sl_##name##_amx;                                                                                   \
    kernels->level[SL_KERNEL_ENTRY_##name] = SL_CPU_LEVEL_AMX;
    SL_KERNELS_AMX(FILL)
#undef FILL
}

static void fill_neon(sl_kernels *kernels)
{
    (void)kernels;
#define FILL(name, type)                                                                                               \
    kernels->name = sl_##name##_neon;                                                                                  \
    kernels->level[SL_KERNEL_ENTRY_##name] = SL_CPU_LEVEL_NEON;
    SL_KERNELS_NEON(FILL)
#undef FILL
}

static void fill_i8mm(sl_kernels *kernels)
{
    (void)kernels;
#define FILL(name, type)                                                                                               \
    kernels->name = sl_##name##_i8mm;                                                                                  \
    kernels->level[SL_KERNEL_ENTRY_##name] = SL_CPU_LEVEL_I8MM;
    SL_KERNELS_I8MM(FILL)
#undef FILL
}

static void fill_sme(sl_kernels *kernels)
{
    (void)kernels;
#define FILL(name, type)                                                                                               \
    kernels->name = sl_##name##_sme;                                                                                   \
    kernels->level[SL_KERNEL_ENTRY_##name] = SL_CPU_LEVEL_SME;
    SL_KERNELS_SME(FILL)
#undef FILL
}

/* Whether a table for level `asked` takes `level`'s entries: those of its own architecture up to itself. AVX-VNNI is a
 * branch: processors with AVX-512 need not have it, and have a wider version of each of its entries. */
static bool takes(sl_cpu_level asked, sl_cpu_level level)
{
    bool arm = asked >= SL_CPU_LEVEL_NEON;
    if (level > asked || arm != (level >= SL_CPU_LEVEL_NEON))
        return false;
    return level != SL_CPU_LEVEL_AVXVNNI || asked == SL_CPU_LEVEL_AVXVNNI;
}

void sl_kernels_init(sl_kernels *kernels, sl_cpu_level level)
{
    assert(sl_cpu_has(level));
    fill_ref(kernels);
#define FILL_LEVEL(lower, upper)                                                                                       \
    if (takes(level, SL_CPU_LEVEL_##upper))                                                                            \
        fill_##lower(kernels);
    SL_KERNEL_LEVELS(FILL_LEVEL)
#undef FILL_LEVEL
}

const char *sl_kernel_name(size_t i)
{
#define NAME(name, type) #name,
    static const char *const names[SL_KERNEL_COUNT] = {SL_KERNEL_LIST(NAME)};
#undef NAME
    assert(i < SL_KERNEL_COUNT);
    return names[i];
}

sl_gemm_fn sl_kernels_gemm(const sl_kernels *kernels, sl_wtype type)
{
    const sl_gemm_fn by_type[SL_WTYPE_COUNT] = {
        [SL_WTYPE_F32] = kernels->gemm_f32,   [SL_WTYPE_F16] = kernels->gemm_f16,
        [SL_WTYPE_BF16] = kernels->gemm_bf16, [SL_WTYPE_Q8_0] = kernels->gemm_q8_0,
        [SL_WTYPE_Q4_0] = kernels->gemm_q4_0, [SL_WTYPE_Q4_1] = kernels->gemm_q4_1,
        [SL_WTYPE_Q5_0] = kernels->gemm_q5_0, [SL_WTYPE_Q5_1] = kernels->gemm_q5_1,
        [SL_WTYPE_Q4_K] = kernels->gemm_q4_k, [SL_WTYPE_Q5_K] = kernels->gemm_q5_k,
        [SL_WTYPE_Q6_K] = kernels->gemm_q6_k, [SL_WTYPE_Q2_K] = kernels->gemm_q2_k,
        [SL_WTYPE_Q3_K] = kernels->gemm_q3_k, [SL_WTYPE_IQ4_NL] = kernels->gemm_iq4_nl,
        [SL_WTYPE_IQ4_XS] = kernels->gemm_iq4_xs, [SL_WTYPE_MXFP4] = kernels->gemm_mxfp4,
    };
    assert(type < SL_WTYPE_COUNT);
    return by_type[type];
}

sl_attn_tile_fn sl_kernels_attn_tile(const sl_kernels *kernels, sl_kv_type type)
{
    return type == SL_KV_TYPE_F16 ? kernels->attn_tile_f16 : kernels->attn_tile_q8;
}

sl_attn_qpack_fn sl_kernels_attn_qpack(const sl_kernels *kernels, sl_kv_type type)
{
    return type == SL_KV_TYPE_F16 ? kernels->attn_qpack_f16 : kernels->attn_qpack_q8;
}

sl_kv_pack_fn sl_kernels_kv_pack(const sl_kernels *kernels, sl_kv_type type)
{
    return type == SL_KV_TYPE_F16 ? kernels->kv_pack_f16 : kernels->kv_pack_q8;
}
