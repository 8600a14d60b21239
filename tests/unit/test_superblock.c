/* What a superblock with a right checksum may not say: fields beyond their meaning are damage, named with their value.
 * A name is shown without control characters. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/format.h"

enum { LAYERS = 2 };

static sl_budget budget;

/* NULL: taken as it is. */
static void expect(const sl_identity *identity, uint64_t span, const char *problem)
{
    const sl_kv_layer layers[LAYERS] = {{1, 32, 0}, {1, 32, span}};
    const sl_geom geom = {SL_KV_TYPE_Q8_0, LAYERS, layers};
    const size_t bytes = (size_t)sl_layout_of(&geom).superblock_bytes;
    uint8_t *buf = malloc(bytes);
    if (!buf)
        abort();
    sl_superblock_encode(buf, identity, &geom);
    sl_superblock found;
    sl_err err = {SL_OK, ""};
    sl_status status = sl_superblock_decode(buf, bytes, &budget, &found, &err);
    bool is_right = problem ? status == SL_DAMAGED && strstr(err.text, problem) : status == SL_OK;
    if (!is_right) {
        fprintf(stderr, "status %d, \"%s\", expected \"%s\"\n", (int)status, err.text, problem ? problem : "");
        exit(1);
    }
    if (!problem && (strpbrk(found.identity.name, "\x1b\x07\n") || found.geom.layers[1].span != span)) {
        fprintf(stderr, "name or span not as expected\n");
        exit(1);
    }
    sl_superblock_free(&found, &budget);
    free(buf);
}

int main(void)
{
    sl_budget_init(&budget, UINT64_MAX);
    const sl_identity good = {.arithmetic_version = 1, .rope_dims = 32, .rope_base = 1e4, .rope_scale = 1.0,
                              .n_vocab = 100, .name = "a\x1b[31m\x07\nb"};
    expect(&good, 512, NULL);
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
    sl_budget_deinit(&budget);
    return 0;
}
