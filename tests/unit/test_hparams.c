/* model/hparams.c: which layers slide, as files say it: by a period, or by a bool for each layer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/tiny_model.h"
#include "model/weights.h"

static const char key[] = "gemma3.attention.sliding_window_pattern";

static sl_status read_build(gguf_build *build, sl_hparams *out, sl_err *err)
{
    sl_budget budget;
    sl_gguf *gguf = NULL;
    sl_budget_init(&budget, UINT64_MAX);
    gguf_build_finish(build);
    sl_status status = sl_gguf_open_memory(build->file.data, build->file.size, &budget, &gguf, err);
    if (status == SL_OK)
        status = sl_hparams_read(gguf, out, err);
    sl_gguf_close(gguf);
    gguf_build_deinit(build);
    assert_int_equal(budget.used_bytes, 0);
    sl_budget_deinit(&budget);
    return status;
}

static void start(gguf_build *build)
{
    const tiny_model model = tiny_model_of_arch(5, "gemma3");
    assert_int_equal(model.n_layers, 7);
    gguf_build_init(build);
    tiny_model_build(&model, build);
}

static void expect_array(sl_gguf_type type, const uint8_t *slides, uint64_t n, sl_status want, const char *text)
{
    gguf_build build;
    sl_hparams hp;
    sl_err err = {SL_OK, ""};
    start(&build);
    gguf_build_array(&build, key, type, n, slides, (size_t)n);
    if (read_build(&build, &hp, &err) != want || !strstr(err.text, text))
        fail_msg("status %d, expected %d with '%s': %s", (int)err.status, (int)want, text, err.text);
    if (want == SL_OK)
        assert_int_equal(sl_hparams_n_sliding(&hp), 6);
}

static void a_pattern_may_be_a_bool_for_each_layer(void **unused)
{
    (void)unused;
    expect_array(SL_GGUF_TYPE_BOOL, (uint8_t[]){1, 1, 1, 1, 1, 0, 1}, 7, SL_OK, "");
    expect_array(SL_GGUF_TYPE_BOOL, (uint8_t[]){1, 1, 0, 1, 1, 0, 1}, 7, SL_REFUSED,
                 "sliding_window_pattern says that layer 2 does not slide, which is not supported: of 'gemma3' it does");
    expect_array(SL_GGUF_TYPE_BOOL, (uint8_t[]){1, 1, 1, 1, 1, 1, 1}, 7, SL_REFUSED,
                 "says that layer 5 slides, which is not supported: of 'gemma3' it does not");
    expect_array(SL_GGUF_TYPE_BOOL, (uint8_t[]){1, 1, 1, 1, 1, 0}, 6, SL_DAMAGED,
                 "is an array of 6 of type bool, expected 7 of bool");
    expect_array(SL_GGUF_TYPE_U8, (uint8_t[]){1, 1, 1, 1, 1, 0, 1}, 7, SL_DAMAGED, "of type u8, expected 7 of bool");
}

static void a_pattern_may_be_a_period(void **unused)
{
    (void)unused;
    for (uint64_t period = 5; period <= 7; period++) {
        gguf_build build;
        sl_hparams hp;
        sl_err err = {SL_OK, ""};
        start(&build);
        gguf_build_uint(&build, key, SL_GGUF_TYPE_U32, period);
        assert_int_equal(read_build(&build, &hp, &err), period == 6 ? SL_OK : SL_REFUSED);
        assert_true(period == 6 || strstr(err.text, "which is not supported (6 is)"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pattern_may_be_a_bool_for_each_layer),
        cmocka_unit_test(a_pattern_may_be_a_period),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
