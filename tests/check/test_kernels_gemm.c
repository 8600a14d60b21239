/* Projections: every entry at every level the processor has against the reference, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fpenv.h"
#include "check/check_gemm.h"
#include "kernel/kernel.h"
#include "kernel/levels.h"

typedef struct subject {
    sl_wtype type;
    sl_cpu_level level;
} subject;

typedef struct shape {
    size_t n_out, n_in, n_rows;
    cg_mode mode;
} shape;

#define TYPES(X)                                                                                                       \
    X(F32, f32) X(F16, f16) X(BF16, bf16) X(Q8_0, q8_0) X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1)        \
    X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k) X(Q2_K, q2_k) X(Q3_K, q3_k) X(IQ4_NL, iq4_nl) X(IQ4_XS, iq4_xs)         \
    X(MXFP4, mxfp4)

#define ENTRY(type, name) [SL_WTYPE_##type] = SL_KERNEL_ENTRY_gemm_##name,
static const size_t ENTRIES[] = {TYPES(ENTRY)};
#define REFERENCE(type, name) [SL_WTYPE_##type] = sl_gemm_##name##_ref,
static const sl_gemm_fn REFERENCES[] = {TYPES(REFERENCE)};
_Static_assert(sizeof ENTRIES / sizeof *ENTRIES == SL_WTYPE_COUNT, "a type without a check");

/* Whether the level has a version of its own: those are checked, and a level that the processor lacks is skipped. */
static bool has_version(sl_cpu_level level, size_t entry)
{
#define IS(name, type) || entry == SL_KERNEL_ENTRY_##name
#define LEVEL(lower, upper)                                                                                            \
    if (level == SL_CPU_LEVEL_##upper)                                                                                 \
        return false SL_KERNELS_##upper(IS);
    SL_KERNEL_LEVELS(LEVEL)
    return false;
}

/* Weights as packed bytes. Random bytes hold every value of every layout; only binary16, bfloat16 and binary32
 * numbers need taming, or NaN would hide the rest. */
static void fill_weights(sl_wtype type, uint8_t *packed, const shape *s)
{
    size_t bytes = s->n_out * sl_wtype_row_bytes(type, s->n_in);
    uint8_t extreme = type == SL_WTYPE_Q8_0 || type == SL_WTYPE_Q6_K ? 0x80 : cg_below(2) ? 0xff : 0;
    for (size_t i = 0; i < bytes; i++)
        packed[i] = s->mode == CG_MODE_EXTREME ? extreme : (uint8_t)cg_next();
    if (type == SL_WTYPE_F32) {
        for (size_t i = 0; i < bytes / 4; i++) {
            float value = cg_value(s->mode);
            memcpy(packed + 4 * i, &value, 4);
        }
        return;
    }
    for (size_t first = 0; first < s->n_out; first += SL_PANEL) {
        size_t w = s->n_out - first < SL_PANEL ? s->n_out - first : SL_PANEL;
        uint8_t *panel = packed + first * sl_wtype_row_bytes(type, s->n_in);
        size_t block_bytes = sl_wtype_row_bytes(type, sl_wtype_block_elems(type)) * w;
        size_t n_blocks = s->n_in / sl_wtype_block_elems(type);
        size_t numbers = sl_wtype_has_minimum(type) ? 2 * w : w;
        for (size_t g = 0; g < n_blocks; g++) {
            if (type == SL_WTYPE_Q6_K && s->mode == CG_MODE_EXTREME) /* -32, and a sub-scale of -128 */
                memset(panel + g * block_bytes, 0, 192 * w);
            for (size_t i = 0; i < numbers; i++) {
                float value = cg_value(s->mode);
                uint16_t bits = type == SL_WTYPE_BF16 ? (uint16_t)(sl_bits_of_float(value) >> 16)
                                                      : sl_half_of_float(value);
                if (type != SL_WTYPE_BF16 && s->mode == CG_MODE_WIDE) /* any finite binary16 */
                    bits = (uint16_t)(cg_next() & (cg_below(4) ? 0xbbffu : 0x83ffu));
                memcpy(panel + (g + 1) * block_bytes - 2 * (numbers - i), &bits, 2);
            }
        }
    }
}

typedef struct operands {
    cg_buf packed, x, qrows, want, got;
    sl_gemm_args args;
} operands;

static operands operands_make(sl_wtype type, const shape *s)
{
    operands op;
    size_t out_stride = s->n_out + cg_below(3);
    size_t x_stride = s->n_in + cg_below(3);
    op.packed = cg_alloc(s->n_out * sl_wtype_row_bytes(type, s->n_in));
    op.x = cg_alloc(((s->n_rows - 1) * x_stride + s->n_in) * sizeof(float));
    op.qrows = cg_alloc(sl_wtype_is_quantised(type) ? s->n_rows * sl_qrow_bytes(s->n_in) : 0);
    op.want = cg_alloc(((s->n_rows - 1) * out_stride + s->n_out) * sizeof(float));
    op.got = cg_alloc(op.want.size);
    fill_weights(type, op.packed.data, s);
    cg_fill(cg_floats(&op.x), op.x.size / sizeof(float), s->mode);
    for (size_t i = cg_below(2); i == 0 && s->mode == CG_MODE_EXTREME; i++) /* the largest sums */
        for (size_t k = 0; k < op.x.size / sizeof(float); k++)
            cg_floats(&op.x)[k] = 3.0f;
    if (op.qrows.size > 0)
        sl_qrow_ref(op.qrows.data, cg_floats(&op.x), x_stride, s->n_rows, s->n_in);
    op.args = (sl_gemm_args){.packed = op.packed.data, .n_out = s->n_out, .n_in = s->n_in, .n = s->n_out,
                             .qrows = op.qrows.data, .x = cg_floats(&op.x), .x_stride = x_stride,
                             .n_rows = s->n_rows, .out_stride = out_stride};
    return op;
}

static void operands_free(operands *op)
{
    cg_free(&op->packed);
    cg_free(&op->x);
    cg_free(&op->qrows);
    cg_free(&op->want);
    cg_free(&op->got);
}

static void compare(operands *op, const subject *who, sl_gemm_fn kernel)
{
    cg_prefill(&op->want);
    cg_prefill(&op->got);
    op->args.out = cg_floats(&op->want);
    REFERENCES[who->type](&op->args);
    op->args.out = cg_floats(&op->got);
    kernel(&op->args);
    size_t n = op->got.size / sizeof(float);
    size_t at = cg_differ(cg_floats(&op->want), cg_floats(&op->got), n);
    if (at < n)
        fail_msg("%s %s n_out %zu n_in %zu rows %zu range %zu+%zu stride %zu: element %zu is %a, not %a",
                 sl_wtype_name(who->type), sl_cpu_level_name(who->level), op->args.n_out, op->args.n_in,
                 op->args.n_rows, op->args.first_out, op->args.n, op->args.out_stride, at,
                 (double)cg_floats(&op->got)[at], (double)cg_floats(&op->want)[at]);
}

/* The whole matrix, then a random range of it. */
static void check_shape(const subject *who, sl_gemm_fn kernel, const shape *s)
{
    operands op = operands_make(who->type, s);
    compare(&op, who, kernel);
    op.args.first_out = cg_below((s->n_out + SL_PANEL - 1) / SL_PANEL) * SL_PANEL;
    size_t left = s->n_out - op.args.first_out;
    size_t n = (1 + cg_below((left + SL_PANEL - 1) / SL_PANEL)) * SL_PANEL;
    op.args.n = n < left ? n : left;
    compare(&op, who, kernel);
    operands_free(&op);
}

static sl_gemm_fn kernel_of(const subject *who)
{
    if (!sl_cpu_has(who->level))
        skip();
    sl_kernels kernels;
    sl_kernels_init(&kernels, who->level);
    assert_int_equal(kernels.level[ENTRIES[who->type]], who->level);
    return sl_kernels_gemm(&kernels, who->type);
}

static void small_shapes(void **state)
{
    const subject *who = *state;
    sl_gemm_fn kernel = kernel_of(who);
    size_t step = sl_wtype_block_elems(who->type);
    sl_fpenv saved = sl_fpenv_enter();
    for (size_t n_in = step; n_in <= (step < SL_SUPERBLOCK ? 160 : 1024); n_in += step)
        for (size_t round = 0; round < (step == 1 ? 2 : 40); round++) {
            shape s = {1 + cg_below(40), n_in, 1 + cg_below(9), (cg_mode)cg_below(CG_MODE_COUNT)};
            check_shape(who, kernel, &s);
        }
    sl_fpenv_leave(saved);
}

/* Every row count 1..9, around the row blocks, and 64. */
static void row_counts(void **state)
{
    const subject *who = *state;
    sl_gemm_fn kernel = kernel_of(who);
    static const size_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 17, 24, 25, 31, 33, 64};
    size_t n_in = sl_wtype_block_elems(who->type) < SL_SUPERBLOCK ? 96 : SL_SUPERBLOCK;
    sl_fpenv saved = sl_fpenv_enter();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int mode = 0; mode < CG_MODE_COUNT; mode++) {
            shape s = {35, n_in, counts[i], (cg_mode)mode};
            check_shape(who, kernel, &s);
        }
    sl_fpenv_leave(saved);
}

/* Lengths go up to whole blocks. */
static void real_shapes(void **state)
{
    const subject *who = *state;
    sl_gemm_fn kernel = kernel_of(who);
    const shape shapes[] = {{49152, 64, 1, CG_MODE_NORMAL}, {1536, 576, 2, CG_MODE_NORMAL},
                            {576, 1536, 3, CG_MODE_NORMAL}, {576, 576, 17, CG_MODE_WIDE},
                            {192, 576, 64, CG_MODE_NORMAL}, {64, 4096, 5, CG_MODE_EXTREME},
                            {40, 1536, 43, CG_MODE_NORMAL}, {33, 4064, 32, CG_MODE_EXTREME},
                            /* more rows, and more groups of many rows, than a blocked kernel takes at once */
                            {35, 1280, 133, CG_MODE_NORMAL}, {35, 8192, 64, CG_MODE_NORMAL}};
    size_t step = sl_wtype_block_elems(who->type);
    sl_fpenv saved = sl_fpenv_enter();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        shape s = shapes[i];
        s.n_in = (s.n_in + step - 1) / step * step;
        check_shape(who, kernel, &s);
    }
    sl_fpenv_leave(saved);
}

int main(void)
{
    cg_seed();
    enum { N_KINDS = 3, MOST = N_KINDS * SL_WTYPE_COUNT * SL_CPU_LEVEL_COUNT };
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[N_KINDS] = {{"small shapes", small_shapes}, {"row counts", row_counts}, {"real shapes", real_shapes}};
    static subject subjects[MOST];
    static char names[MOST][64];
    static struct CMUnitTest tests[MOST];
    size_t n = 0;
    for (int level = 0; level < SL_CPU_LEVEL_COUNT; level++)
        for (int type = 0; type < SL_WTYPE_COUNT; type++)
            for (size_t kind = 0; kind < N_KINDS && has_version((sl_cpu_level)level, ENTRIES[type]); kind++, n++) {
                subjects[n] = (subject){(sl_wtype)type, (sl_cpu_level)level};
                snprintf(names[n], sizeof names[n], "gemm %s %s: %s", sl_wtype_name((sl_wtype)type),
                         sl_cpu_level_name((sl_cpu_level)level), kinds[kind].name);
                tests[n] = (struct CMUnitTest){names[n], kinds[kind].run, NULL, NULL, &subjects[n]};
            }
    return cmocka_run_group_tests(tests, NULL, NULL); /* which passes over the empty places */
}
