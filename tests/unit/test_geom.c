#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "store/geom.h"

static sl_geom uniform(sl_kv_type type, uint32_t n_layers, uint32_t heads, uint32_t dim, sl_kv_layer *layers)
{
    for (uint32_t i = 0; i < n_layers; i++)
        layers[i] = (sl_kv_layer){heads, dim, 0};
    return (sl_geom){type, n_layers, layers};
}

/* The demo model: 30 layers, 3 KV heads, 64 dimensions. */
static void test_demo(void **state)
{
    (void)state;
    sl_kv_layer layers[30];
    sl_geom geom = uniform(SL_KV_TYPE_Q8_0, 30, 3, 64, layers);
    sl_err err;
    assert_int_equal(sl_geom_check(&geom, &err), SL_OK);
    assert_int_equal(sl_geom_group_bytes(&geom, 0), 26112);
    assert_int_equal(sl_geom_part_bytes(&geom, 0), 417792);
    assert_int_equal(sl_geom_block_bytes(&geom, 0), 1671168);
    assert_int_equal(sl_geom_token_bytes(&geom), 12240);
    assert_int_equal(sl_geom_segment_bytes(&geom), 30 * 1671168);
    assert_int_equal(sl_geom_block_off(&geom, 0, 0), 0);
    assert_int_equal(sl_geom_block_off(&geom, 0, 2), 2 * 1671168);
    assert_int_equal(sl_geom_block_off(&geom, 3, 1), (3 * 30 + 1) * 1671168);
    /* 7,639 tokens: the 93.5 MB of the demo */
    assert_int_equal(sl_geom_token_bytes(&geom) * 7639, 93501360);
}

/* 16 layers, 2 KV heads, 64 dimensions, 1M tokens: 8.59 GB in F16, 4.56 GB in Q8_0. */
static void test_published_sizes(void **state)
{
    (void)state;
    sl_kv_layer layers[16];
    sl_geom f16 = uniform(SL_KV_TYPE_F16, 16, 2, 64, layers);
    assert_int_equal(sl_geom_token_bytes(&f16) << 20, 8589934592);
    sl_geom q8 = uniform(SL_KV_TYPE_Q8_0, 16, 2, 64, layers);
    assert_int_equal(sl_geom_token_bytes(&q8) << 20, 4563402752);
    /* past 32 bits */
    assert_true(sl_geom_block_off(&q8, 255, 15) > (uint64_t)4 << 30);
}

/* In every geometry: parts are whole sectors, blocks whole 16 KiB, tiles start on 64 bytes, blocks do not overlap. */
static void test_alignment(void **state)
{
    (void)state;
    for (int type = 0; type < SL_KV_TYPE_COUNT; type++) {
        for (uint32_t dim = 16; dim <= SL_MAX_HEAD_DIM; dim += 16) {
            for (uint32_t heads = 1; heads <= 9; heads++) {
                sl_kv_layer layers[3];
                sl_geom geom = uniform((sl_kv_type)type, 3, heads, dim, layers);
                layers[1].n_kv_heads = heads + 1;
                sl_err err;
                if (type == SL_KV_TYPE_Q8_0 && dim % 32 != 0) {
                    assert_int_equal(sl_geom_check(&geom, &err), SL_REFUSED);
                    assert_non_null(strstr(err.text, "f16"));
                    continue;
                }
                assert_int_equal(sl_geom_check(&geom, &err), SL_OK);
                assert_int_equal(sl_tile_bytes(geom.type, dim) % 64, 0);
                for (uint32_t l = 0; l < 3; l++) {
                    assert_int_equal(sl_geom_part_bytes(&geom, l) % 4096, 0);
                    assert_true(sl_geom_group_bytes(&geom, l) >= 4096);
                    assert_int_equal(sl_geom_block_off(&geom, 5, l) % SL_BLOCK_ALIGN, 0);
                    assert_true(sl_geom_block_bytes(&geom, l) >= 4 * sl_geom_part_bytes(&geom, l));
                }
                assert_int_equal(sl_geom_block_off(&geom, 1, 0), sl_geom_segment_bytes(&geom));
                assert_int_equal(sl_geom_block_off(&geom, 0, 2),
                                 sl_geom_block_off(&geom, 0, 1) + sl_geom_block_bytes(&geom, 1));
                assert_int_equal(sl_geom_max_part_bytes(&geom), sl_geom_part_bytes(&geom, 1));
            }
        }
    }
}

static void expect_refused(sl_kv_type type, uint32_t n_layers, uint32_t heads, uint32_t dim, const char *word)
{
    sl_kv_layer layers[1] = {{heads, dim, 0}};
    sl_geom geom = {type, n_layers, layers};
    sl_err err = {0};
    /* Q8_0 on another head dimension is a plan that cannot be carried out; the rest can never be right. */
    bool is_plan = type == SL_KV_TYPE_Q8_0;
    assert_int_equal(sl_geom_check(&geom, &err), is_plan ? SL_REFUSED : SL_USAGE);
    if (!strstr(err.text, word))
        fail_msg("\"%s\" lacks \"%s\"", err.text, word);
}

static void test_refused(void **state)
{
    (void)state;
    expect_refused(SL_KV_TYPE_F16, 0, 1, 64, "0 layers");
    expect_refused(SL_KV_TYPE_F16, UINT32_MAX, 1, 64, "layers");
    expect_refused(SL_KV_TYPE_F16, 1, 0, 64, "layer 0: 0 KV heads");
    expect_refused(SL_KV_TYPE_F16, 1, UINT32_MAX, 64, "KV heads");
    expect_refused(SL_KV_TYPE_F16, 1, 1, 0, "head dimension 0");
    expect_refused(SL_KV_TYPE_F16, 1, 1, 24, "head dimension 24");
    expect_refused(SL_KV_TYPE_F16, 1, 1, 272, "head dimension 272");
    expect_refused(SL_KV_TYPE_Q8_0, 1, 1, 80, "--kv f16");
    expect_refused(SL_KV_TYPE_COUNT, 1, 1, 64, "KV type");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo),
        cmocka_unit_test(test_published_sizes),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
