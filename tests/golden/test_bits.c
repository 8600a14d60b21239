/* The bits of arithmetic version 1: XXH3-64 of all logits of a text, on tiny models made from a seed. They were
 * computed by the scalar reference on x86-64 and hold on every processor, compiler and level. A rule that changes them
 * raises SL_ARITHMETIC_VERSION, and this table with it. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sluice/sluice.h>

#include "base/hash.h"
#include "common/tiny_run.h"

_Static_assert(SL_ARITHMETIC_VERSION == 1, "the table below is of version 1");

enum { N = 300 };

static const struct {
    const char *name;
    uint32_t type;
    sl_kv_type kv;
    uint64_t hash;
} table[] = {
    {"F32 weights, F16 cache", TINY_TYPE_F32, SL_KV_TYPE_F16, UINT64_C(0xaf98b4931f1a0220)},
    {"F32 weights, Q8_0 cache", TINY_TYPE_F32, SL_KV_TYPE_Q8_0, UINT64_C(0x0874ba26e8d1b824)},
    {"F16 weights, Q8_0 cache", TINY_TYPE_F16, SL_KV_TYPE_Q8_0, UINT64_C(0x48f82f8bcac5a1b4)},
    {"BF16 weights, Q8_0 cache", TINY_TYPE_BF16, SL_KV_TYPE_Q8_0, UINT64_C(0x9946096fcf541902)},
    {"Q8_0 weights, Q8_0 cache", TINY_TYPE_Q8_0, SL_KV_TYPE_Q8_0, UINT64_C(0x5bc0902f9061b23b)},
    {"Q4_0 weights, Q8_0 cache", TINY_TYPE_Q4_0, SL_KV_TYPE_Q8_0, UINT64_C(0x523bfb497abea289)},
    {"Q4_1 weights, Q8_0 cache", TINY_TYPE_Q4_1, SL_KV_TYPE_Q8_0, UINT64_C(0x45d490ab4146859f)},
    {"Q5_0 weights, Q8_0 cache", TINY_TYPE_Q5_0, SL_KV_TYPE_Q8_0, UINT64_C(0x627f42f3d4e00bdd)},
    {"Q5_1 weights, Q8_0 cache", TINY_TYPE_Q5_1, SL_KV_TYPE_Q8_0, UINT64_C(0x002b5bd35a15e8d8)},
    {"Q4_K weights, Q8_0 cache", TINY_TYPE_Q4_K, SL_KV_TYPE_Q8_0, UINT64_C(0x7f983fc2aeb78205)},
    {"Q5_K weights, Q8_0 cache", TINY_TYPE_Q5_K, SL_KV_TYPE_Q8_0, UINT64_C(0x051d99da87794834)},
    {"Q6_K weights, Q8_0 cache", TINY_TYPE_Q6_K, SL_KV_TYPE_Q8_0, UINT64_C(0x48e174692d1c307d)},
    {"Q4_1 weights, F16 cache", TINY_TYPE_Q4_1, SL_KV_TYPE_F16, UINT64_C(0x1f3d567375a04b6a)},
};

/* The other architectures, and what models of theirs may have; Q8_0 weights and cache. */
static const struct {
    const char *arch, *rope_type;
    bool long_factors;
    uint32_t n_experts; /* of which three are used; 0: the architecture's own number */
    uint64_t hash;
} families[] = {
    {"llama", "yarn", false, 0, UINT64_C(0x27474813c2a728cf)},
    {"llama", "llama3", false, 0, UINT64_C(0x5566ef0455a16696)},
    {"qwen2", NULL, false, 0, UINT64_C(0x14ae8a4da23cf4f3)},
    {"qwen3", NULL, false, 0, UINT64_C(0xd9a7a336807497eb)},
    {"phi3", NULL, true, 0, UINT64_C(0xa24daba7d2e59808)},
    {"gemma2", NULL, false, 0, UINT64_C(0x59ad9baf6d085632)},
    {"gemma3", NULL, false, 0, UINT64_C(0x7ea024129243c387)},
    {"smollm3", NULL, false, 0, UINT64_C(0x5e2579195e64e812)},
    {"glm4", NULL, false, 0, UINT64_C(0x8dfd53c8ce4b9ee1)},
    {"qwen3moe", NULL, false, 0, UINT64_C(0xbc224cf502044200)},
    {"llama", NULL, false, 5, UINT64_C(0xd199d0512d946d0f)},
};

static sl_status add_row(void *arg, uint64_t position, const float *logits, sl_err *err)
{
    (void)position;
    (void)err;
    XXH3_state_t *hash = *(XXH3_state_t **)arg;
    XXH3_64bits_update(hash, logits, tiny_model_n_vocab() * sizeof *logits);
    return SL_OK;
}

static uint64_t hash_of(const tiny_model *model, sl_kv_type kv, sl_cpu_level level)
{
    static int32_t ids[N];
    for (size_t i = 0; i < N; i++)
        ids[i] = 3 + (int32_t)((i * i * 31 + i * 17 + 5) % (tiny_model_n_vocab() - 3));
    tiny_run run;
    tiny_run_open(&run, model, level);
    const tiny_ways ways = {2, 192, 2, 1, 100, 0, level};
    sl_pool *pool;
    sl_session *session = tiny_session(&run, kv, &ways, N, &pool);
    XXH3_state_t *hash = XXH3_createState();
    assert_non_null(hash);
    XXH3_64bits_reset(hash);
    const sl_feed_watch watch = {.logits = add_row, .arg = &hash};
    sl_err err = {SL_OK, ""};
    if (sl_session_feed(session, ids, N, &watch, &err) != SL_OK)
        fail_msg("feed: %s", err.text);
    uint64_t digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    tiny_session_end(session, pool);
    tiny_run_close(&run);
    return digest;
}

static void expect_bits(void **state)
{
    const sl_cpu_level level = *(const sl_cpu_level *)*state;
    if (!sl_cpu_has(level))
        skip();
    int n_wrong = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const tiny_model model = tiny_model_of_type(2026, table[i].type);
        uint64_t got = hash_of(&model, table[i].kv, level);
        if (got != table[i].hash)
            print_message("%s, level %s: %016" PRIx64 ", expected %016" PRIx64 "\n", table[i].name,
                          sl_cpu_level_name(level), got, table[i].hash);
        n_wrong += got != table[i].hash;
    }
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        tiny_model model = tiny_model_of_arch(2027 + i, families[i].arch);
        model.weight_type = model.emb_type = TINY_TYPE_Q8_0;
        model.rope_type = families[i].rope_type;
        model.rope_factor = model.rope_type ? 4.0 : 1.0;
        model.long_factors = families[i].long_factors;
        if (families[i].n_experts > 0) {
            model.n_experts = families[i].n_experts;
            model.n_used = 3;
        }
        uint64_t got = hash_of(&model, SL_KV_TYPE_Q8_0, level);
        if (got != families[i].hash)
            print_message("%s, level %s: 0x%016" PRIx64 ", expected %016" PRIx64 "\n", families[i].arch,
                          sl_cpu_level_name(level), got, families[i].hash);
        n_wrong += got != families[i].hash;
    }
    assert_int_equal(0, n_wrong);
}

int main(void)
{
    static sl_cpu_level levels[SL_CPU_LEVEL_COUNT];
    static char names[SL_CPU_LEVEL_COUNT][32];
    static struct CMUnitTest tests[SL_CPU_LEVEL_COUNT];
    for (int i = 0; i < SL_CPU_LEVEL_COUNT; i++) {
        levels[i] = (sl_cpu_level)i;
        snprintf(names[i], sizeof names[i], "bits of %s", sl_cpu_level_name(levels[i]));
        tests[i] = (struct CMUnitTest){names[i], expect_bits, NULL, NULL, &levels[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
