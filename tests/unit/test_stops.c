/* Stop strings against looking for them in the whole text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/effort.h"
#include "decode/stops.h"

static sl_budget budget;

static sl_stops *make(const char *const *texts, size_t n)
{
    sl_err err = {SL_OK, ""};
    sl_stops *stops = NULL;
    if (sl_stops_create(texts, n, &budget, &stops, &err) != SL_OK)
        fail_msg("%s", err.text);
    return stops;
}

static bool ends_with(const char *text, size_t n, const char *end)
{
    const size_t size = strlen(end);
    return n >= size && memcmp(text + n - size, end, size) == 0;
}

/* The longest that ends there; and how much of the end could begin one. */
static size_t found_at(const char *text, size_t n, const char *const *stops, size_t n_stops)
{
    size_t longest = 0;
    for (size_t i = 0; i < n_stops; i++)
        if (ends_with(text, n, stops[i]) && strlen(stops[i]) > longest)
            longest = strlen(stops[i]);
    return longest;
}

static size_t begun_at(const char *text, size_t n, const char *const *stops, size_t n_stops)
{
    size_t longest = 0;
    for (size_t i = 0; i < n_stops; i++)
        for (size_t size = 1; size < strlen(stops[i]) && size <= n; size++)
            if (memcmp(text + n - size, stops[i], size) == 0 && size > longest)
                longest = size;
    return longest;
}

static void random_texts_of_few_letters(void **unused)
{
    (void)unused;
    uint64_t state = 1;
    size_t n_found = 0;
    for (int turn = 0; turn < EFFORT(3000); turn++) {
        char texts[4][12];
        const char *all[4];
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const size_t n = 1 + (state >> 40) % 4;
        for (size_t i = 0; i < n; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            const size_t size = 1 + (state >> 60) % 11;
            for (size_t k = 0; k < size; k++)
                texts[i][k] = (char)('a' + (state >> (20 + 2 * k)) % (turn % 2 ? 2 : 3));
            texts[i][size] = '\0';
            all[i] = texts[i];
        }
        sl_stops *stops = make(all, n);
        char text[200];
        for (size_t at = 0; at < sizeof text; at++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            text[at] = (char)('a' + (state >> 33) % 3);
            const size_t found = sl_stops_take(stops, text[at]);
            assert_int_equal(found_at(text, at + 1, all, n), found);
            n_found += found > 0;
            if (found > 0)
                break;
            assert_int_equal(begun_at(text, at + 1, all, n), sl_stops_held(stops));
        }
        sl_stops_destroy(stops);
    }
    assert_true(n_found > 100);
    assert_int_equal(0, budget.used_bytes);
}

static void none_holds_nothing(void **unused)
{
    (void)unused;
    sl_stops *stops = make(NULL, 0);
    assert_int_equal(0, sl_stops_take(stops, 'a'));
    assert_int_equal(0, sl_stops_held(stops));
    sl_stops_destroy(stops);
}

static void what_can_never_be_met_is_refused(void **unused)
{
    (void)unused;
    static char big[SL_STOPS_BYTES + 1];
    memset(big, 'x', SL_STOPS_BYTES);
    const char *many[SL_STOPS_MAX + 1];
    for (size_t i = 0; i <= SL_STOPS_MAX; i++)
        many[i] = "y";
    const char *bad[][2] = {{"a", ""}, {"ok", "\xc3"}, {big, "y"}};
    const char *words[] = {"stop string 2 is empty", "stop string 2 is not UTF-8 at byte 0", "4097 bytes"};
    for (size_t i = 0; i < 3; i++) {
        sl_err err = {SL_OK, ""};
        assert_int_equal(SL_USAGE, sl_stops_check(bad[i], 2, &err));
        assert_non_null(strstr(err.text, words[i]));
    }
    sl_err err = {SL_OK, ""};
    assert_int_equal(SL_USAGE, sl_stops_check(many, SL_STOPS_MAX + 1, &err));
    assert_int_equal(SL_OK, sl_stops_check(many, SL_STOPS_MAX, &err));
}

int main(void)
{
    sl_budget_init(&budget, UINT64_MAX);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_texts_of_few_letters),
        cmocka_unit_test(none_holds_nothing),
        cmocka_unit_test(what_can_never_be_met_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
