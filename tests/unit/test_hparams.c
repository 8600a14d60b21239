/* model/hparams.c: which layers slide, as files say it: by a period, or by a bool for each layer; metadata of a wrong
 * type is refused by its key, whatever it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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
                 "pattern says that layer 2 does not slide, which is not supported: of 'gemma3' it does");
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

/* One of the published classes of malformed files. */
static void malformed_metadata_of_a_wrong_type(void **unused)
{
    (void)unused;
    static const char *const keys[] = {
        "general.architecture", "gemma3.block_count", "gemma3.embedding_length", "gemma3.feed_forward_length",
        "gemma3.context_length", "gemma3.attention.head_count", "gemma3.attention.head_count_kv",
        "gemma3.attention.key_length", "gemma3.attention.value_length", "gemma3.attention.layer_norm_rms_epsilon",
        "gemma3.rope.freq_base", "gemma3.rope.dimension_count", "gemma3.attention.sliding_window",
        "gemma3.attention.sliding_window_pattern", "gemma3.rope.scaling.type", "gemma3.attention.scale",
        "gemma3.final_logit_softcapping", "gemma3.attention.causal", "gemma3.expert_count"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        for (int way = 0; way < 3; way++) {
            char usual[96];
            snprintf(usual, sizeof usual, "llama%s", strncmp(keys[i], "gemma3", 6) == 0 ? keys[i] + 6 : "");
            tiny_model model = tiny_model_of_arch(5, "gemma3");
            gguf_build build;
            sl_hparams hp;
            sl_err err = {SL_OK, ""};
            model.omit[0] = strchr(usual, '.') ? usual : keys[i]; /* as the maker knows it */
            gguf_build_init(&build);
            tiny_model_build(&model, &build);
            if (way == 0)
                gguf_build_array(&build, keys[i], SL_GGUF_TYPE_U32, 1, "\7\0\0\0", 4);
            else if (way == 1)
                gguf_build_uint(&build, keys[i], SL_GGUF_TYPE_I8, 0xff); /* -1 */
            else
                gguf_build_raw(&build, keys[i], SL_GGUF_TYPE_STRING, "\1\0\0\0\0\0\0\0" "7", 9);
            sl_status status = read_build(&build, &hp, &err);
            const bool is_text = i == 0 || strstr(keys[i], "scaling.type") != NULL;
            if (!(way == 2 && is_text) && (status != SL_DAMAGED || !strstr(err.text, keys[i])))
                fail_msg("%s, way %d: status %d, %s", keys[i], way, (int)status, err.text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pattern_may_be_a_bool_for_each_layer),
        cmocka_unit_test(a_pattern_may_be_a_period),
        cmocka_unit_test(malformed_metadata_of_a_wrong_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
