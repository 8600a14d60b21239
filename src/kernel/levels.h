/* Which entries each level above the reference has: the lists from which kernel.c fills the table and the checks
 * know what to expect. A level's function of entry NAME is sl_NAME_<level>. An entry that a level lacks keeps the
 * level below. */
#ifndef SL_KERNEL_LEVELS_H
#define SL_KERNEL_LEVELS_H

#include "kernel/ref.h"

/* gemm_avx2.c, gemm_avxvnni.c, gemm_neon.c: types that no other level has */
#define SL_KERNELS_SMALL_TYPES(X)                                                                                      \
    X(gemm_q2_k, sl_gemm_fn) X(gemm_q3_k, sl_gemm_fn) X(gemm_iq4_nl, sl_gemm_fn) X(gemm_iq4_xs, sl_gemm_fn)            \
    X(gemm_mxfp4, sl_gemm_fn)

#if defined(__x86_64__)

/* attn_avx2.c, attn_pack_avx2.c; attn_avx512.c, attn_f16_avx512.c */
#define SL_KERNELS_ATTN_AVX2(X)                                                                                        \
    X(attn_qpack_q8, sl_attn_qpack_fn)                                                                                 \
    X(attn_tile_f16, sl_attn_tile_fn)                                                                                  \
    X(attn_tile_q8, sl_attn_tile_fn)                                                                                   \
    X(attn_segfold, sl_attn_segfold_fn)                                                                                \
    X(attn_finish, sl_attn_finish_fn)                                                                                  \
    X(kv_pack_f16, sl_kv_pack_fn)                                                                                      \
    X(kv_pack_q8, sl_kv_pack_fn)

/* attn_avxvnni.c */
#define SL_KERNELS_ATTN_AVXVNNI(X) X(attn_tile_q8, sl_attn_tile_fn)

#define SL_KERNELS_ATTN_AVX512(X)                                                                                      \
    X(attn_tile_f16, sl_attn_tile_fn) X(attn_tile_q8, sl_attn_tile_fn) X(attn_tiles_q8, sl_attn_tiles_fn)

/* gemm_avx2.c, gemm_float_avx2.c, vec_avx2.c */
#define SL_KERNELS_GEMM_AVX2(X)                                                                                        \
    X(qrow, sl_qrow_fn)                                                                                                \
    X(gemm_f32, sl_gemm_fn)                                                                                            \
    X(gemm_f16, sl_gemm_fn)                                                                                            \
    X(gemm_bf16, sl_gemm_fn)                                                                                           \
    X(gemm_q8_0, sl_gemm_fn)                                                                                           \
    X(gemm_q4_0, sl_gemm_fn)                                                                                           \
    X(gemm_q4_1, sl_gemm_fn)                                                                                           \
    X(rmsnorm, sl_rmsnorm_fn)                                                                                          \
    X(rope_norm, sl_rope_norm_fn)                                                                                      \
    X(rope_neox, sl_rope_norm_fn)                                                                                      \
    X(silu_mul, sl_silu_mul_fn)                                                                                        \
    X(gelu_mul, sl_silu_mul_fn)                                                                                        \
    X(softcap, sl_softcap_fn)                                                                                          \
    X(add, sl_add_fn)                                                                                                  \
    X(exp2, sl_exp2_fn)                                                                                                \
    X(sumexp, sl_sumexp_fn)                                                                                            \
    X(argmax, sl_argmax_fn)                                                                                            \
    X(finite, sl_finite_fn)

/* gemm_avx2.c, gemm_avx512.c: the other quantised types */
#define SL_KERNELS_TYPES_AVX2(X)                                                                                       \
    X(gemm_q5_0, sl_gemm_fn)                                                                                           \
    X(gemm_q5_1, sl_gemm_fn)                                                                                           \
    X(gemm_q4_k, sl_gemm_fn)                                                                                           \
    X(gemm_q5_k, sl_gemm_fn)                                                                                           \
    X(gemm_q6_k, sl_gemm_fn)

/* gemm_avx512.c, gemm_float_avx512.c, vec_avx512.c: a version of each, too */
#define SL_KERNELS_GEMM_AVX512(X) SL_KERNELS_GEMM_AVX2(X) SL_KERNELS_TYPES_AVX2(X)

/* gemm_avxvnni.c */
#define SL_KERNELS_GEMM_AVXVNNI(X)                                                                                     \
    X(gemm_q8_0, sl_gemm_fn)                                                                                           \
    X(gemm_q4_0, sl_gemm_fn)                                                                                           \
    X(gemm_q4_1, sl_gemm_fn)                                                                                           \
    X(gemm_q5_0, sl_gemm_fn)                                                                                           \
    X(gemm_q5_1, sl_gemm_fn)                                                                                           \
    X(gemm_q4_k, sl_gemm_fn)                                                                                           \
    X(gemm_q5_k, sl_gemm_fn)                                                                                           \
    X(gemm_q6_k, sl_gemm_fn)

/* avxvnni: what the 256-bit dot products change; an entry that is not here is AVX2's. */
#define SL_KERNELS_AVXVNNI(X) SL_KERNELS_ATTN_AVXVNNI(X) SL_KERNELS_GEMM_AVXVNNI(X) SL_KERNELS_SMALL_TYPES(X)

/* attn_amx.c, gemm_amx.c */
#define SL_KERNELS_AMX(X)                                                                                              \
    X(attn_tile_q8, sl_attn_tile_fn)                                                                                   \
    X(attn_tiles_q8, sl_attn_tiles_fn)                                                                                 \
    X(gemm_q8_0, sl_gemm_fn)                                                                                           \
    X(gemm_q4_0, sl_gemm_fn)                                                                                           \
    X(gemm_q4_1, sl_gemm_fn)                                                                                           \
    X(gemm_q5_0, sl_gemm_fn)                                                                                           \
    X(gemm_q5_1, sl_gemm_fn)                                                                                           \
    X(gemm_q4_k, sl_gemm_fn)                                                                                           \
    X(gemm_q5_k, sl_gemm_fn)

#define SL_KERNELS_AVX2(X)                                                                                             \
    SL_KERNELS_ATTN_AVX2(X) SL_KERNELS_GEMM_AVX2(X) SL_KERNELS_TYPES_AVX2(X) SL_KERNELS_SMALL_TYPES(X)
#define SL_KERNELS_AVX512(X) SL_KERNELS_ATTN_AVX512(X) SL_KERNELS_GEMM_AVX512(X)

#else

#define SL_KERNELS_AVX2(X)
#define SL_KERNELS_AVXVNNI(X)
#define SL_KERNELS_AVX512(X)
#define SL_KERNELS_AMX(X)

#endif

#if defined(__aarch64__)

/* attn_neon.c, attn_pack_neon.c; gemm_neon.c; vec_neon.c: a version of every entry */
#define SL_KERNELS_ATTN_NEON(X)                                                                                        \
    X(attn_qpack_f16, sl_attn_qpack_fn) X(attn_qpack_q8, sl_attn_qpack_fn) X(attn_tile_f16, sl_attn_tile_fn)           \
    X(attn_tile_q8, sl_attn_tile_fn) X(attn_segfold, sl_attn_segfold_fn) X(attn_finish, sl_attn_finish_fn)             \
    X(kv_pack_f16, sl_kv_pack_fn) X(kv_pack_q8, sl_kv_pack_fn)

#define SL_KERNELS_GEMM_NEON(X)                                                                                        \
    X(qrow, sl_qrow_fn) X(gemm_f32, sl_gemm_fn) X(gemm_f16, sl_gemm_fn) X(gemm_bf16, sl_gemm_fn)                       \
    X(gemm_q8_0, sl_gemm_fn) X(gemm_q4_0, sl_gemm_fn) X(gemm_q4_1, sl_gemm_fn) X(gemm_q5_0, sl_gemm_fn)                \
    X(gemm_q5_1, sl_gemm_fn) X(gemm_q4_k, sl_gemm_fn) X(gemm_q5_k, sl_gemm_fn) X(gemm_q6_k, sl_gemm_fn)

#define SL_KERNELS_VEC_NEON(X)                                                                                         \
    X(rmsnorm, sl_rmsnorm_fn) X(rope_norm, sl_rope_norm_fn) X(rope_neox, sl_rope_norm_fn)                              \
    X(silu_mul, sl_silu_mul_fn) X(gelu_mul, sl_silu_mul_fn) X(softcap, sl_softcap_fn) X(add, sl_add_fn)                \
    X(exp2, sl_exp2_fn) X(sumexp, sl_sumexp_fn) X(argmax, sl_argmax_fn) X(finite, sl_finite_fn)

#define SL_KERNELS_NEON(X)                                                                                             \
    SL_KERNELS_ATTN_NEON(X) SL_KERNELS_GEMM_NEON(X) SL_KERNELS_SMALL_TYPES(X) SL_KERNELS_VEC_NEON(X)

/* attn_i8mm.c, gemm_i8mm.c: what int8 matrix products change */
#define SL_KERNELS_I8MM(X)                                                                                             \
    X(attn_tile_q8, sl_attn_tile_fn) X(gemm_q8_0, sl_gemm_fn) X(gemm_q4_0, sl_gemm_fn) X(gemm_q4_1, sl_gemm_fn)        \
    X(gemm_q5_0, sl_gemm_fn) X(gemm_q5_1, sl_gemm_fn) X(gemm_q4_k, sl_gemm_fn) X(gemm_q5_k, sl_gemm_fn)                \
    X(gemm_q6_k, sl_gemm_fn)

#if defined(SLUICE_HAVE_SME) /* set by the build where the compiler knows SME */
/* attn_sme.c, attn_f16_sme.c, gemm_sme.c */
#define SL_KERNELS_SME(X)                                                                                              \
    X(attn_tile_f16, sl_attn_tile_fn) X(attn_tile_q8, sl_attn_tile_fn) X(gemm_q8_0, sl_gemm_fn)                        \
    X(gemm_q4_0, sl_gemm_fn) X(gemm_q4_1, sl_gemm_fn) X(gemm_q5_0, sl_gemm_fn) X(gemm_q5_1, sl_gemm_fn)                \
    X(gemm_q4_k, sl_gemm_fn) X(gemm_q5_k, sl_gemm_fn) X(gemm_q6_k, sl_gemm_fn)
#else
#define SL_KERNELS_SME(X)
#endif

#else

#define SL_KERNELS_NEON(X)
#define SL_KERNELS_I8MM(X)
#define SL_KERNELS_SME(X)

#endif

/* X(level, LEVEL): every level above the reference, its list SL_KERNELS_LEVEL, in rising order on each architecture */
#define SL_KERNEL_LEVELS(X)                                                                                            \
    X(avx2, AVX2) X(avxvnni, AVXVNNI) X(avx512, AVX512) X(amx, AMX) X(neon, NEON) X(i8mm, I8MM) X(sme, SME)

#define SL_KERNEL_PROTO_AVX2(name, type) SL_PROTO_##type(sl_##name##_avx2);
#define SL_KERNEL_PROTO_AVXVNNI(name, type) SL_PROTO_##type(sl_##name##_avxvnni);
#define SL_KERNEL_PROTO_AVX512(name, type) SL_PROTO_##type(sl_##name##_avx512);
#define SL_KERNEL_PROTO_AMX(name, type) SL_PROTO_##type(sl_##name##_amx);
#define SL_KERNEL_PROTO_NEON(name, type) SL_PROTO_##type(sl_##name##_neon);
#define SL_KERNEL_PROTO_I8MM(name, type) SL_PROTO_##type(sl_##name##_i8mm);
#define SL_KERNEL_PROTO_SME(name, type) SL_PROTO_##type(sl_##name##_sme);
SL_KERNELS_AVX2(SL_KERNEL_PROTO_AVX2)
SL_KERNELS_AVXVNNI(SL_KERNEL_PROTO_AVXVNNI)
SL_KERNELS_AVX512(SL_KERNEL_PROTO_AVX512)
SL_KERNELS_AMX(SL_KERNEL_PROTO_AMX)
SL_KERNELS_NEON(SL_KERNEL_PROTO_NEON)
SL_KERNELS_I8MM(SL_KERNEL_PROTO_I8MM)
SL_KERNELS_SME(SL_KERNEL_PROTO_SME)
#undef SL_KERNEL_PROTO_AVX2
#undef SL_KERNEL_PROTO_AVXVNNI
#undef SL_KERNEL_PROTO_AVX512
#undef SL_KERNEL_PROTO_AMX
#undef SL_KERNEL_PROTO_NEON
#undef SL_KERNEL_PROTO_I8MM
#undef SL_KERNEL_PROTO_SME

#endif
