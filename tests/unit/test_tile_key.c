/* A key moved between tiles is the key packed there in the first place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/kernel.h"
#include "kernel/tile_key.h"

static _Alignas(64) uint8_t tiles[3][256 * SL_MAX_HEAD_DIM];

static void moved_equals_packed(void **unused)
{
    (void)unused;
    static const size_t dims[] = {32, 64, 96, 128, 256};
    sl_kernels kernels;
    sl_kernels_init(&kernels, SL_CPU_LEVEL_REF);
    float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
    uint32_t state = 7;
    for (int type = 0; type < SL_KV_TYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            sl_kv_pack_fn pack = sl_kernels_kv_pack(&kernels, (sl_kv_type)type);
            memset(tiles, 0x5a, sizeof tiles);
            for (size_t key = 0; key < SL_TILE; key++) {
                size_t to = (key * 37 + 11) % SL_TILE;
                for (size_t d = 0; d < dims[i]; d++) {
                    state = state * 1664525 + 1013904223;
                    k[d] = (float)(int32_t)state * 0x1p-31f;
                    v[d] = (float)(int32_t)(state ^ 0x5bd1e995) * 0x1p-30f;
                }
                assert_true(pack(tiles[0], key, k, v, dims[i]));
                assert_true(pack(tiles[1], to, k, v, dims[i]));
                sl_tile_key_copy((sl_kv_type)type, dims[i], tiles[2], to, tiles[0], key);
                assert_memory_equal(tiles[1], tiles[2], sizeof tiles[1]);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(moved_equals_packed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
