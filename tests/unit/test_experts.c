/* Mixtures of experts in a file: what is wrong is refused by name before any weight is read, what is right is loaded,
 * and one model is told from another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/tiny_model.h"
#include "model/weights.h"

static sl_budget budget;

static tiny_model mixture(void)
{
    tiny_model model = tiny_model_of_arch(11, "qwen3moe");
    model.n_experts = 6;
    model.n_used = 2;
    model.expert_ffn = 40; /* no whole number of panels: experts must not share one */
    return model;
}

/* What loading says of the build; *weights = NULL: it was refused. */
static sl_status load(gguf_build *build, sl_weights **weights, sl_err *err)
{
    sl_gguf *gguf = NULL;
    gguf_build_finish(build);
    *weights = NULL;
    *err = (sl_err){SL_OK, ""};
    sl_status status = sl_gguf_open_memory(build->file.data, build->file.size, &budget, &gguf, err);
    if (status == SL_OK)
        status = sl_weights_load(gguf, &budget, NULL, NULL, weights, err);
    sl_gguf_close(gguf);
    gguf_build_deinit(build);
    return status;
}

static void expect(gguf_build *build, sl_status want, const char *text)
{
    sl_weights *weights;
    sl_err err;
    sl_status got = load(build, &weights, &err);
    sl_weights_destroy(weights);
    if (got != want || (text && !strstr(err.text, text)))
        fail_msg("status %d, expected %d with '%s': %s", (int)got, (int)want, text ? text : "", err.text);
}

static void expect_model(const tiny_model *model, sl_status want, const char *text)
{
    gguf_build build;
    gguf_build_init(&build);
    tiny_model_build(model, &build);
    expect(&build, want, text);
}

static void counts_are_checked(void **unused)
{
    (void)unused;
    tiny_model model = mixture();
    expect_model(&model, SL_OK, NULL);
    model.n_used = 7;
    expect_model(&model, SL_DAMAGED, "7 found, 1 to 6 expected");
    model.n_used = 0;
    expect_model(&model, SL_DAMAGED, "0 found, 1 to 6 expected");
    model.n_used = model.n_experts;
    expect_model(&model, SL_OK, NULL);
    model.omit[0] = "llama.expert_used_count";
    expect_model(&model, SL_DAMAGED, "expert_used_count");
    model = mixture();
    model.n_experts = 0;
    expect_model(&model, SL_DAMAGED, "expert_count");
    model = tiny_model_of_arch(11, "qwen3");
    model.n_experts = 4;
    model.n_used = 2;
    expect_model(&model, SL_REFUSED, "architecture 'qwen3'");
}

/* The model without one of its keys or tensors, and with another in its place. */
static void expect_other(const char *omit, const char *key, uint64_t value, sl_status want, const char *text)
{
    gguf_build build;
    tiny_model model = mixture();
    model.omit[0] = omit;
    gguf_build_init(&build);
    tiny_model_build(&model, &build);
    gguf_build_uint(&build, key, SL_GGUF_TYPE_U32, value);
    expect(&build, want, text);
}

static void numbers_without_limit_are_refused(void **unused)
{
    (void)unused;
    expect_other("llama.expert_count", "qwen3moe.expert_count", UINT32_MAX, SL_DAMAGED,
                 "4294967295 found, 1 to 4096 expected");
    expect_other("llama.expert_count", "qwen3moe.expert_count", 4096, SL_DAMAGED, "ffn_gate_inp.weight is 128 x 6");
    expect_other("llama.expert_feed_forward_length", "qwen3moe.expert_feed_forward_length", 0, SL_DAMAGED,
                 "0 found, 1 to 16777216 expected");
    expect_other("llama.expert_feed_forward_length", "qwen3moe.expert_feed_forward_length", 41, SL_DAMAGED,
                 "ffn_gate_exps.weight is 128 x 40 x 6 x 1, expected 128 x 41 x 6");
}

static void other_ways_of_mixing_are_refused(void **unused)
{
    (void)unused;
    expect_other(NULL, "qwen3moe.expert_gating_func", 2, SL_REFUSED, "expert_gating_func is 2");
    expect_other(NULL, "qwen3moe.expert_gating_func", 1, SL_OK, NULL);
    expect_other(NULL, "qwen3moe.expert_shared_count", 1, SL_REFUSED, "expert_shared_count is 1");
    expect_other(NULL, "qwen3moe.expert_group_count", 2, SL_REFUSED, "expert_group_count is 2");
    expect_other(NULL, "qwen3moe.leading_dense_block_count", 1, SL_REFUSED, "leading_dense_block_count is 1");
}

static void expect_tensor(const char *name, uint32_t n_dims, const uint64_t *dims, sl_status want, const char *text)
{
    static float zeros[1 << 18];
    size_t n = 1;
    gguf_build build;
    tiny_model model = mixture();
    model.omit[0] = name;
    for (uint32_t i = 0; i < n_dims; i++)
        n *= (size_t)dims[i];
    assert_true(n <= sizeof zeros / sizeof *zeros);
    gguf_build_init(&build);
    tiny_model_build(&model, &build);
    if (n_dims > 0)
        gguf_build_tensor(&build, name, TINY_TYPE_F32, n_dims, dims, zeros, n * sizeof *zeros);
    expect(&build, want, text);
}

static void shapes_are_checked(void **unused)
{
    (void)unused;
    static const char name[] = "blk.1.ffn_down_exps.weight";
    expect_tensor(name, 0, NULL, SL_DAMAGED, "tensor blk.1.ffn_down_exps.weight is missing");
    expect_tensor(name, 3, (uint64_t[]){40, 128, 5}, SL_DAMAGED, "is 40 x 128 x 5 x 1, expected 40 x 128 x 6");
    expect_tensor(name, 3, (uint64_t[]){128, 40, 6}, SL_DAMAGED, "is 128 x 40 x 6 x 1, expected 40 x 128 x 6");
    expect_tensor(name, 2, (uint64_t[]){40, 128 * 6}, SL_DAMAGED, "is 40 x 768 x 1 x 1, expected 40 x 128 x 6");
    expect_tensor(name, 4, (uint64_t[]){40, 128, 3, 2}, SL_DAMAGED, "is 40 x 128 x 3 x 2, expected 40 x 128 x 6");
    expect_tensor(name, 3, (uint64_t[]){40, 128, 6}, SL_OK, NULL);
    expect_tensor("blk.0.ffn_gate_inp.weight", 2, (uint64_t[]){128, 7}, SL_DAMAGED, "expected 128 x 6");
    expect_tensor("blk.0.ffn_gate_inp.weight", 0, NULL, SL_DAMAGED, "blk.0.ffn_gate_inp.weight is missing");
    expect_tensor("blk.0.ffn_gate_inp.bias", 1, (uint64_t[]){6}, SL_REFUSED, "blk.0.ffn_gate_inp.bias is not part");
}

static void experts_of_old_converters_are_refused_by_name(void **unused)
{
    (void)unused;
    static const float zeros[128 * 40];
    const uint64_t dims[] = {128, 40};
    gguf_build build;
    tiny_model model = mixture();
    model.omit[0] = "blk.1.ffn_gate_exps.weight";
    gguf_build_init(&build);
    tiny_model_build(&model, &build);
    gguf_build_tensor(&build, "blk.1.ffn_gate.0.weight", TINY_TYPE_F32, 2, dims, zeros, sizeof zeros);
    expect(&build, SL_REFUSED, "tensor blk.1.ffn_gate_exps.weight is missing, its experts are tensors of their own, as "
                               "old converters wrote them: convert the model again");
}

static sl_weights *load_type(uint32_t type)
{
    static const float zeros[40 * 128 * 6];
    gguf_build build;
    sl_err err;
    sl_weights *weights;
    tiny_model model = mixture();
    model.weight_type = type;
    model.n_layers = 1;
    model.omit[0] = "blk.0.ffn_down_exps.weight"; /* rows of 40, which no quantised type can have */
    gguf_build_init(&build);
    tiny_model_build(&model, &build);
    gguf_build_tensor(&build, model.omit[0], TINY_TYPE_F32, 3, (uint64_t[]){40, 128, 6}, zeros, sizeof zeros);
    if (load(&build, &weights, &err) != SL_OK)
        fail_msg("%s", err.text);
    return weights;
}

/* 40 rows are two panels and a half: an expert's rows are those of its slice of the tensor as F32, which is packed as
 * it lies, and within half a step in Q8_0. */
static void experts_are_packed_each_by_itself(void **unused)
{
    (void)unused;
    float exact[128], coarse[128];
    sl_weights *of[2] = {load_type(TINY_TYPE_F32), load_type(TINY_TYPE_Q8_0)};
    for (size_t expert = 0; expert < 6; expert++) {
        const sl_matrix a = sl_matrix_of_stack(&of[0]->layers[0].w_up, expert);
        const sl_matrix b = sl_matrix_of_stack(&of[1]->layers[0].w_up, expert);
        assert_int_equal(40, a.n_out);
        for (size_t row = 0; row < a.n_out; row++) {
            sl_weight_row(a.type, a.packed, a.n_out, a.n_in, row, exact);
            sl_weight_row(b.type, b.packed, b.n_out, b.n_in, row, coarse);
            for (size_t i = 0; i < a.n_in; i++)
                if (!(exact[i] - coarse[i] < 0.002f && coarse[i] - exact[i] < 0.002f))
                    fail_msg("expert %zu, row %zu, input %zu: %g, %g", expert, row, i, (double)exact[i],
                             (double)coarse[i]);
        }
    }
    sl_weights_destroy(of[0]);
    sl_weights_destroy(of[1]);
}

static void counts_are_part_of_the_fingerprint(void **unused)
{
    (void)unused;
    uint64_t found[2][2];
    for (uint32_t i = 0; i < 2; i++) {
        gguf_build build;
        sl_err err;
        sl_weights *weights;
        tiny_model model = mixture();
        model.n_used = 2 + i;
        gguf_build_init(&build);
        tiny_model_build(&model, &build);
        assert_int_equal(SL_OK, load(&build, &weights, &err));
        memcpy(found[i], weights->fingerprint, sizeof found[i]);
        sl_weights_destroy(weights);
    }
    assert_memory_not_equal(found[0], found[1], sizeof found[0]);
}

int main(void)
{
    sl_budget_init(&budget, UINT64_MAX);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_checked),
        cmocka_unit_test(numbers_without_limit_are_refused),
        cmocka_unit_test(other_ways_of_mixing_are_refused),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(experts_of_old_converters_are_refused_by_name),
        cmocka_unit_test(experts_are_packed_each_by_itself),
        cmocka_unit_test(counts_are_part_of_the_fingerprint),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_budget_deinit(&budget);
    return failed;
}
