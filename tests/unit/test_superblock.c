/* What a superblock with a right checksum may not say: fields beyond their meaning are damage, named with their value.
 * A name is shown without control characters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/format.h"

enum { LAYERS = 2 };

static sl_budget budget;
static const sl_identity good = {.arithmetic_version = 1, .rope_dims = 32, .rope_base = 1e4, .rope_scale = 1.0,
                                 .n_vocab = 100, .name = "a\x1b[31m\x07\nb"};

/* problem NULL: taken as it is, name and span as they should be. */
static void expect(const sl_identity *identity, uint64_t span, const char *problem)
{
    const sl_kv_layer layers[LAYERS] = {{1, 32, 0}, {1, 32, span}};
    const sl_geom geom = {SL_KV_TYPE_Q8_0, LAYERS, layers};
    const size_t bytes = (size_t)sl_layout_of(&geom).superblock_bytes;
    uint8_t *buf = malloc(bytes);
    assert_non_null(buf);
    sl_superblock_encode(buf, identity, &geom);
    sl_superblock found;
    sl_err err = {SL_OK, ""};
    const sl_status status = sl_superblock_decode(buf, bytes, &budget, &found, &err);
    if (status != (problem ? SL_DAMAGED : SL_OK) || (problem && !strstr(err.text, problem)))
        fail_msg("status %d, \"%s\", expected \"%s\"", (int)status, err.text, problem ? problem : "");
    if (!problem) {
        assert_null(strpbrk(found.identity.name, "\x1b\x07\n"));
        assert_int_equal(span, found.geom.layers[1].span);
    }
    sl_superblock_free(&found, &budget);
    free(buf);
}

static void a_name_is_cleaned(void **unused)
{
    (void)unused;
    expect(&good, 512, NULL);
}

static void fields_beyond_their_meaning_are_damage(void **unused)
{
    (void)unused;
    expect(&good, UINT64_C(1) << 63, "layer 1: rows see 9223372036854775808 tokens");
    sl_identity bad = good;
    bad.flags = 2;
    expect(&bad, 0, "flags are 0x2");
    bad = good;
    bad.rope_kind = 9;
    expect(&bad, 0, "rule of RoPE is 9");
    bad = good;
    bad.rope_base = (double)NAN;
    expect(&bad, 0, "RoPE base is nan");
    bad = good;
    bad.softcap = (float)INFINITY;
    expect(&bad, 0, "attention softcap is inf");
    bad = good;
    bad.rope_numbers[2] = (double)INFINITY;
    expect(&bad, 0, "number 2 of the rule of RoPE is inf");
}

int main(void)
{
    sl_budget_init(&budget, UINT64_MAX);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_cleaned),
        cmocka_unit_test(fields_beyond_their_meaning_are_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
