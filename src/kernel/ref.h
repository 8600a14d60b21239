/* Prototypes of the kernels, private to this folder and the checks: the reference of every entry, and the shape
 * that any level's function of that entry has. kernel.h holds the contracts. */
#ifndef SL_KERNEL_REF_H
#define SL_KERNEL_REF_H

#include "kernel/kernel.h"

/* A prototype by the name of its function type: C cannot declare a function through a pointer type. */
#define SL_PROTO_sl_attn_qpack_fn(f) void f(void *qblock, const float *const *q, size_t n, size_t head_dim, float c)
#define SL_PROTO_sl_attn_tile_fn(f) void f(const sl_tile_args *args)
#define SL_PROTO_sl_attn_tiles_fn(f)                                                                                   \
    void f(const sl_tile_args *args, size_t n_tiles, size_t stride, sl_attn_tile_fn tile)
#define SL_PROTO_sl_attn_segfold_fn(f)                                                                                 \
    void f(uint8_t *totals, uint8_t *segments, size_t state_stride, size_t n_blocks, size_t head_dim)
#define SL_PROTO_sl_attn_finish_fn(f) void f(const uint8_t *total, float *const *out, size_t n, size_t head_dim)
#define SL_PROTO_sl_kv_pack_fn(f) bool f(uint8_t *tile, size_t key, const float *k, const float *v, size_t head_dim)
#define SL_PROTO_sl_qrow_fn(f) void f(void *out, const float *x, size_t x_stride, size_t n_rows, size_t n)
#define SL_PROTO_sl_gemm_fn(f) void f(const sl_gemm_args *args)
#define SL_PROTO_sl_rmsnorm_fn(f) void f(float *out, const float *x, const float *w, size_t n, float eps)
#define SL_PROTO_sl_rope_norm_fn(f) void f(float *x, const float *cos_tab, const float *sin_tab, size_t n_pairs)
#define SL_PROTO_sl_silu_mul_fn(f) void f(float *out, const float *gate, const float *up, size_t n)
#define SL_PROTO_sl_softcap_fn(f) void f(float *x, size_t n, float cap)
#define SL_PROTO_sl_add_fn(f) void f(float *x, const float *y, size_t n)
#define SL_PROTO_sl_exp2_fn(f) void f(float *out, const float *x, size_t n)
#define SL_PROTO_sl_sumexp_fn(f) float f(const float *x, size_t n, float max)
#define SL_PROTO_sl_argmax_fn(f) size_t f(const float *x, size_t n)
#define SL_PROTO_sl_finite_fn(f) bool f(const float *x, size_t n)

#define SL_KERNEL_PROTO_REF(name, type) SL_PROTO_##type(sl_##name##_ref);
SL_KERNEL_LIST(SL_KERNEL_PROTO_REF)
#undef SL_KERNEL_PROTO_REF

#endif
