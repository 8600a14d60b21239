/* Which parts stay in memory, where layers slide: what an answer sees before anything else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "store/parts.h"

enum { N_LAYERS = 6, N_PARTS = 20, MAX_TOKENS = N_PARTS * SL_PART_TOKENS - 100, ANSWER_FROM = 17 * SL_PART_TOKENS };

/* Layers 2 and 5 see all, the others 600 tokens: of these the answer's first row walks parts 16 and on. */
static const sl_kv_layer layers[N_LAYERS] = {{1, 32, 600}, {1, 32, 600}, {1, 32, 0},
                                             {1, 32, 600}, {1, 32, 600}, {1, 32, 0}};
static const sl_geom geom = {SL_KV_TYPE_Q8_0, N_LAYERS, layers};
enum { FIRST_SEEN = 16 };

typedef struct setup {
    sl_slide slide; /* zeros: everything is kept */
    sl_budget budget;
    sl_parts parts;
} setup;

static void start(setup *s, uint64_t answer_from, uint64_t own_part)
{
    sl_budget_init(&s->budget, UINT64_MAX);
    assert_int_equal(SL_OK, sl_parts_init(&s->parts, &geom, MAX_TOKENS, &s->slide, &s->budget, NULL));
    s->parts.answer_from = answer_from;
    s->parts.own_part = own_part;
}

static void finish(setup *s)
{
    sl_parts_deinit(&s->parts);
    assert_int_equal(0, (int)s->budget.used_bytes);
    sl_budget_deinit(&s->budget);
}

static bool is_kept(const setup *s, uint32_t layer, uint64_t part)
{
    return s->parts.places[sl_parts_at(&s->parts, layer, part)] != SL_PLACE_FLASH;
}

static size_t count(const setup *s, bool sliding, uint64_t first, uint64_t end)
{
    size_t n = 0;
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        for (uint64_t part = first; part < end && (layers[layer].span > 0) == sliding; part++)
            n += is_kept(s, layer, part);
    return n;
}

static void what_a_geometry_sees(void **unused)
{
    (void)unused;
    uint64_t part = sl_geom_part_bytes(&geom, 0), tile = sl_geom_group_bytes(&geom, 0);
    uint64_t last = (MAX_TOKENS / SL_TILE - 19 * SL_PART_TILES) * tile;
    assert_int_equal(0, sl_geom_first_part(&layers[2], 1 << 20));
    assert_int_equal(16, sl_geom_first_part(&layers[0], ANSWER_FROM));
    assert_int_equal(16, sl_geom_first_part(&layers[0], ANSWER_FROM + 639)); /* of token 17,984: 17,385 */
    assert_int_equal(17, sl_geom_first_part(&layers[0], ANSWER_FROM + 640));
    assert_int_equal(2 * (19 * part + last) + 4 * (3 * part + last),
                     sl_geom_seen_bytes(&geom, ANSWER_FROM, MAX_TOKENS));
    assert_int_equal(6 * (19 * part + last), sl_geom_seen_bytes(&geom, 0, MAX_TOKENS));
    assert_int_equal(2 * 16 * part, sl_geom_seen_bytes(&geom, MAX_TOKENS, 16 * SL_PART_TOKENS));
}

static void old_parts_of_sliding_layers_come_last(void **unused)
{
    (void)unused;
    uint64_t seen = sl_geom_seen_bytes(&geom, ANSWER_FROM, MAX_TOKENS), part = sl_geom_part_bytes(&geom, 0);
    for (uint64_t percent = 5; percent <= 100; percent += 5) {
        setup s = {.slide = {0}};
        start(&s, ANSWER_FROM, UINT64_MAX);
        assert_int_equal(SL_OK, sl_parts_raise(&s.parts, seen * percent / 100, NULL));
        assert_int_equal(0, count(&s, true, 0, FIRST_SEEN));
        assert_true(s.parts.chosen_bytes <= seen * percent / 100);
        assert_true(s.parts.chosen_bytes + part > seen * percent / 100); /* memory is not left idle */
        finish(&s);
    }
    setup s = {.slide = {0}}; /* of all that is left, evenly */
    start(&s, ANSWER_FROM, UINT64_MAX);
    assert_int_equal(SL_OK, sl_parts_raise(&s.parts, seen / 2, NULL));
    size_t n_whole = count(&s, false, 0, N_PARTS);
    assert_in_range(n_whole, 17, 23);
    assert_in_range(count(&s, false, 0, N_PARTS / 2), n_whole / 2 - 2, n_whole / 2 + 2);
    assert_int_equal(SL_OK, sl_parts_raise(&s.parts, seen + 32 * part, NULL));
    assert_int_equal(2 * N_PARTS, count(&s, false, 0, N_PARTS));
    assert_int_equal(4 * (N_PARTS - FIRST_SEEN), count(&s, true, FIRST_SEEN, N_PARTS));
    assert_int_equal(32, count(&s, true, 0, FIRST_SEEN));
    assert_in_range(count(&s, true, 0, FIRST_SEEN / 2), 14, 18);
    assert_int_equal(SL_OK, sl_parts_raise(&s.parts, UINT64_MAX, NULL));
    assert_int_equal(s.parts.total_bytes, s.parts.chosen_bytes);
    finish(&s);
}

/* Over a file: where all of the context's own parts fit, old ones of sliding layers too, nothing is written. */
static void own_parts_that_all_fit_come_first(void **unused)
{
    (void)unused;
    enum { OWN = 10 };
    uint64_t part = sl_geom_part_bytes(&geom, 0);
    uint64_t own = sl_geom_seen_bytes(&geom, 0, MAX_TOKENS) - N_LAYERS * OWN * part;
    setup s = {.slide = {0}};
    start(&s, ANSWER_FROM, OWN);
    assert_int_equal(SL_OK, sl_parts_raise(&s.parts, own + 2 * part, NULL));
    assert_int_equal(6 * (N_PARTS - OWN), count(&s, true, OWN, N_PARTS) + count(&s, false, OWN, N_PARTS));
    assert_int_equal(0, count(&s, true, 0, OWN));
    assert_int_equal(2, count(&s, false, 0, OWN));
    finish(&s);
    start(&s, ANSWER_FROM, OWN);
    assert_int_equal(SL_OK, sl_parts_raise(&s.parts, own - part, NULL));
    assert_int_equal(2 * N_PARTS, count(&s, false, 0, N_PARTS));
    assert_int_equal(4 * (N_PARTS - FIRST_SEEN), count(&s, true, FIRST_SEEN, N_PARTS));
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_geometry_sees),
        cmocka_unit_test(old_parts_of_sliding_layers_come_last),
        cmocka_unit_test(own_parts_that_all_fit_come_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
