/* Every entry of the kernel table, once: makes the table, the choice and the check's list. A kernel that is
 * not here cannot be reached, and one without a check does not link. X(name, function type) */
#ifndef SL_KERNEL_LIST_H
#define SL_KERNEL_LIST_H

#define SL_KERNEL_LIST(X)              \
    X(attn_qpack_f16, sl_attn_qpack_fn) \
    X(attn_qpack_q8, sl_attn_qpack_fn)  \
    X(attn_tile_f16, sl_attn_tile_fn)   \
    X(attn_tile_q8, sl_attn_tile_fn)    \
    X(attn_tiles_q8, sl_attn_tiles_fn)  \
    X(attn_segfold, sl_attn_segfold_fn) \
    X(attn_finish, sl_attn_finish_fn)   \
    X(kv_pack_f16, sl_kv_pack_fn)       \
    X(kv_pack_q8, sl_kv_pack_fn)        \
    X(qrow, sl_qrow_fn)                 \
    X(gemm_f32, sl_gemm_fn)             \
    X(gemm_f16, sl_gemm_fn)             \
    X(gemm_bf16, sl_gemm_fn)            \
    X(gemm_q8_0, sl_gemm_fn)            \
    X(gemm_q4_0, sl_gemm_fn)            \
    X(gemm_q4_1, sl_gemm_fn)            \
    X(gemm_q5_0, sl_gemm_fn)            \
    X(gemm_q5_1, sl_gemm_fn)            \
    X(gemm_q4_k, sl_gemm_fn)            \
    X(gemm_q5_k, sl_gemm_fn)            \
    X(gemm_q6_k, sl_gemm_fn)            \
    X(gemm_q2_k, sl_gemm_fn)            \
    X(gemm_q3_k, sl_gemm_fn)            \
    X(gemm_iq4_nl, sl_gemm_fn)          \
    X(gemm_iq4_xs, sl_gemm_fn)          \
    X(gemm_mxfp4, sl_gemm_fn)           \
    X(rmsnorm, sl_rmsnorm_fn)           \
    X(rope_norm, sl_rope_norm_fn)       \
    X(rope_neox, sl_rope_norm_fn)       \
    X(silu_mul, sl_silu_mul_fn)         \
    X(gelu_mul, sl_silu_mul_fn)         \
    X(softcap, sl_softcap_fn)           \
    X(add, sl_add_fn)                   \
    X(exp2, sl_exp2_fn)                 \
    X(sumexp, sl_sumexp_fn)             \
    X(argmax, sl_argmax_fn)             \
    X(finite, sl_finite_fn)

enum {
#define SL_KERNEL_ENUM(name, type) SL_KERNEL_ENTRY_##name,
    SL_KERNEL_LIST(SL_KERNEL_ENUM)
#undef SL_KERNEL_ENUM
    SL_KERNEL_COUNT
};

#endif
