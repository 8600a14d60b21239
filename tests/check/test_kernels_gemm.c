/* Projections: every entry at every level the processor has against the reference, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fpenv.h"
#include "check/check_gemm.h"
#include "kernel/kernel.h"
#include "kernel/ref.h"

typedef struct subject {
    sl_wtype type;
    sl_cpu_level level;
} subject;

typedef struct shape {
    size_t n_out, n_in, n_rows;
    cg_mode mode;
} shape;

static const size_t ENTRIES[SL_WTYPE_COUNT] = {
    [SL_WTYPE_F32] = SL_KERNEL_ENTRY_gemm_f32,   [SL_WTYPE_F16] = SL_KERNEL_ENTRY_gemm_f16,
    [SL_WTYPE_BF16] = SL_KERNEL_ENTRY_gemm_bf16, [SL_WTYPE_Q8_0] = SL_KERNEL_ENTRY_gemm_q8_0,
    [SL_WTYPE_Q4_0] = SL_KERNEL_ENTRY_gemm_q4_0, [SL_WTYPE_Q4_1] = SL_KERNEL_ENTRY_gemm_q4_1,
};

static const sl_gemm_fn REFERENCES[SL_WTYPE_COUNT] = {
    [SL_WTYPE_F32] = sl_gemm_f32_ref,   [SL_WTYPE_F16] = sl_gemm_f16_ref,   [SL_WTYPE_BF16] = sl_gemm_bf16_ref,
    [SL_WTYPE_Q8_0] = sl_gemm_q8_0_ref, [SL_WTYPE_Q4_0] = sl_gemm_q4_0_ref, [SL_WTYPE_Q4_1] = sl_gemm_q4_1_ref,
};

/* Weights as packed bytes. Random bytes hold every value of every layout; only binary16, bfloat16 and binary32
 * numbers need taming, or NaN would hide the rest. */
static void fill_weights(sl_wtype type, uint8_t *packed, const shape *s)
{
    size_t bytes = s->n_out * sl_wtype_row_bytes(type, s->n_in);
    for (size_t i = 0; i < bytes; i++)
        packed[i] = (uint8_t)(s->mode == CG_MODE_EXTREME ? (type == SL_WTYPE_Q8_0 ? 0x80 : 0xff) : cg_next());
    if (type == SL_WTYPE_F32) {
        for (size_t i = 0; i < bytes / 4; i++) {
            float value = cg_value(s->mode);
            memcpy(packed + 4 * i, &value, 4);
        }
        return;
    }
    size_t head = type == SL_WTYPE_Q4_1 ? 4 : 2;
    for (size_t first = 0; first < s->n_out; first += SL_PANEL) {
        size_t w = s->n_out - first < SL_PANEL ? s->n_out - first : SL_PANEL;
        uint8_t *panel = packed + first * sl_wtype_row_bytes(type, s->n_in);
        size_t group_bytes = sl_wtype_is_quantised(type) ? sl_wtype_row_bytes(type, SL_GROUP) * w : 2;
        size_t n_groups = w * sl_wtype_row_bytes(type, s->n_in) / group_bytes;
        size_t numbers = sl_wtype_is_quantised(type) ? head * w / 2 : 1;
        for (size_t g = 0; g < n_groups; g++)
            for (size_t i = 0; i < numbers; i++) {
                float value = cg_value(s->mode);
                uint16_t bits = type == SL_WTYPE_BF16 ? (uint16_t)(sl_bits_of_float(value) >> 16)
                                                      : sl_half_of_float(value);
                if (type != SL_WTYPE_BF16 && s->mode == CG_MODE_WIDE) /* any finite binary16 */
                    bits = (uint16_t)(cg_next() & (cg_below(4) ? 0xbbffu : 0x83ffu));
                memcpy(panel + (g + 1) * group_bytes - 2 * (numbers - i), &bits, 2);
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
    bool lacks = who->level == SL_CPU_LEVEL_AMX && !sl_wtype_is_quantised(who->type); /* no products of floats */
    assert_int_equal(kernels.level[ENTRIES[who->type]], lacks ? SL_CPU_LEVEL_AVX512 : who->level);
    return sl_kernels_gemm(&kernels, who->type);
}

static void small_shapes(void **state)
{
    const subject *who = *state;
    sl_gemm_fn kernel = kernel_of(who);
    size_t step = sl_wtype_is_quantised(who->type) ? SL_GROUP : 1;
    sl_fpenv saved = sl_fpenv_enter();
    for (size_t n_in = step; n_in <= 160; n_in += step)
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
    sl_fpenv saved = sl_fpenv_enter();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int mode = 0; mode < CG_MODE_COUNT; mode++) {
            shape s = {35, 96, counts[i], (cg_mode)mode};
            check_shape(who, kernel, &s);
        }
    sl_fpenv_leave(saved);
}

static void real_shapes(void **state)
{
    const subject *who = *state;
    sl_gemm_fn kernel = kernel_of(who);
    const shape shapes[] = {{49152, 64, 1, CG_MODE_NORMAL}, {1536, 576, 2, CG_MODE_NORMAL},
                            {576, 1536, 3, CG_MODE_NORMAL}, {576, 576, 17, CG_MODE_WIDE},
                            {192, 576, 64, CG_MODE_NORMAL}, {64, 4096, 5, CG_MODE_EXTREME},
                            {40, 1536, 43, CG_MODE_NORMAL}, {33, 4064, 32, CG_MODE_EXTREME}};
    sl_fpenv saved = sl_fpenv_enter();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(who, kernel, &shapes[i]);
    sl_fpenv_leave(saved);
}

int main(void)
{
    cg_seed();
    static const sl_cpu_level levels[] = {SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AMX};
    enum { N_LEVELS = sizeof levels / sizeof *levels, N_TESTS = 3 * SL_WTYPE_COUNT * N_LEVELS };
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[3] = {{"small shapes", small_shapes}, {"row counts", row_counts}, {"real shapes", real_shapes}};
    static subject subjects[N_TESTS];
    static char names[N_TESTS][64];
    static struct CMUnitTest tests[N_TESTS];
    for (size_t i = 0; i < N_TESTS; i++) {
        subjects[i] = (subject){(sl_wtype)(i / 3 % SL_WTYPE_COUNT), levels[i / 3 / SL_WTYPE_COUNT]};
        snprintf(names[i], sizeof names[i], "gemm %s %s: %s", sl_wtype_name(subjects[i].type),
                 sl_cpu_level_name(subjects[i].level), kinds[i % 3].name);
        tests[i] = (struct CMUnitTest){names[i], kinds[i % 3].run, NULL, NULL, &subjects[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
