/* Rules of rotary positions: angles of far positions, and what each rule does to the frequencies. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fpenv.h"
#include "model/rope.h"

enum { MOST_DIMS = 256 };

static sl_rope plain(uint32_t dims, double base)
{
    return (sl_rope){.dims = dims,
                     .base = base,
                     .factor = 1.0,
                     .original = 4096.0,
                     .magnitude = 1.0,
                     .fast = 32.0,
                     .slow = 1.0,
                     .low = 1.0,
                     .high = 4.0,
                     .extrapolate = 1.0};
}

/* Half a unit in the last place of binary32 below 1, and what binary64 loses in an angle of 10M turns. */
static void angles_of_ten_million_positions_are_exact(void **unused)
{
    (void)unused;
    static const double bases[] = {10000.0, 500000.0, 1000000.0, 5e6};
    const double bound = 0x1p-25 + 6e-9;
    double worst = 0;
    for (size_t b = 0; b < sizeof bases / sizeof bases[0]; b++) {
        const sl_rope rope = plain(b % 2 ? 128 : 80, bases[b]);
        double freq[MOST_DIMS / 2];
        float c[MOST_DIMS / 2], s[MOST_DIMS / 2];
        sl_rope_frequencies(&rope, NULL, freq);
        for (uint64_t pos = 0; pos <= 10000000; pos += pos < 100 ? 1 : pos / 7 + 13) {
            sl_rope_turn(&rope, true, freq, pos, c, s);
            for (uint32_t i = 0; i < rope.dims / 2; i++) {
                long double part = -2.0L * (long double)i / (long double)rope.dims;
                long double angle = (long double)pos * powl((long double)bases[b], part);
                worst = fmax(worst, fabs((double)((long double)c[i] - cosl(angle))));
                worst = fmax(worst, fabs((double)((long double)s[i] - sinl(angle))));
            }
        }
    }
    print_message("largest error %.3g, bound %.3g\n", worst, bound);
    if (sizeof(long double) > sizeof(double))
        assert_true(worst <= bound);
}

static void linear_divides_positions(void **unused)
{
    (void)unused;
    sl_rope rope = plain(64, 10000.0);
    double freq[MOST_DIMS / 2];
    float c[2][MOST_DIMS / 2], s[2][MOST_DIMS / 2];
    sl_rope_frequencies(&rope, NULL, freq);
    sl_rope_turn(&rope, true, freq, 123, c[0], s[0]);
    rope.factor = 8.0;
    sl_rope_turn(&rope, true, freq, 8 * 123, c[1], s[1]);
    assert_memory_equal(c[0], c[1], 32 * sizeof(float));
    assert_memory_equal(s[0], s[1], 32 * sizeof(float));
    sl_rope_turn(&rope, false, freq, 123, c[1], s[1]); /* a sliding layer's: no rule */
    assert_memory_equal(c[0], c[1], 32 * sizeof(float));
}

/* By hand, for 128 dimensions, base 10^6, original 32768: a dimension turns n times over it where
 * i = 64 log(32768 / (2 pi n)) / log(10^6): 5.09 -> 23 at n = 32, 39.66 -> 40 at n = 1. */
static void yarn_keeps_fast_and_divides_slow(void **unused)
{
    (void)unused;
    sl_rope rope = plain(128, 1e6);
    double before[MOST_DIMS / 2], after[MOST_DIMS / 2];
    sl_rope_frequencies(&rope, NULL, before);
    rope.kind = SL_ROPE_KIND_YARN;
    rope.factor = 4.0;
    rope.original = 32768.0;
    sl_rope_frequencies(&rope, NULL, after);
    for (uint32_t i = 0; i < 64; i++) {
        double keep = i <= 23 ? 1.0 : i >= 40 ? 0.0 : 1.0 - ((double)i - 23.0) / 17.0;
        double want = before[i] / 4.0 * (1.0 - keep) + before[i] * keep;
        if (fabs(after[i] / want - 1.0) > 1e-14)
            fail_msg("pair %u: %.17g, expected %.17g", i, after[i], want);
    }
    assert_true(fabs(sl_rope_magnitude(&rope) - (1.0 + 0.1 * log(4.0))) < 1e-14);
    rope.factor = 1.0;
    assert_true(sl_rope_magnitude(&rope) == 1.0);
}

static void llama3_mixes_between_its_two_factors(void **unused)
{
    (void)unused;
    sl_rope rope = plain(128, 500000.0);
    double before[MOST_DIMS / 2], after[MOST_DIMS / 2];
    sl_rope_frequencies(&rope, NULL, before);
    rope.kind = SL_ROPE_KIND_LLAMA3;
    rope.factor = 8.0;
    rope.original = 8192.0;
    sl_rope_frequencies(&rope, NULL, after);
    unsigned n_mixed = 0;
    for (uint32_t i = 0; i < 64; i++) {
        double length = 2.0 * 3.14159265358979323846 / before[i], want = before[i];
        if (length > 8192.0 / 1.0)
            want = before[i] / 8.0;
        else if (length >= 8192.0 / 4.0) {
            double smooth = (8192.0 / length - 1.0) / 3.0;
            want = (1.0 - smooth) * before[i] / 8.0 + smooth * before[i];
            n_mixed++;
        }
        assert_true(fabs(after[i] / want - 1.0) < 1e-12);
    }
    assert_true(n_mixed > 3);
}

static void divisors_divide(void **unused)
{
    (void)unused;
    const sl_rope rope = plain(8, 10000.0);
    const float divisors[] = {1.0f, 2.0f, 4.0f, 1.5f};
    double before[4], after[4];
    sl_rope_frequencies(&rope, NULL, before);
    sl_rope_frequencies(&rope, divisors, after);
    for (size_t i = 0; i < 4; i++)
        assert_true(after[i] == before[i] / (double)divisors[i]);
}

/* Everything that moves an angle moves the hash; what was there before the rules has none. */
static void the_hash_covers_every_number(void **unused)
{
    (void)unused;
    sl_rope rope = plain(64, 10000.0);
    assert_true(sl_rope_hash(&rope, NULL) == 0);
    rope.kind = SL_ROPE_KIND_YARN;
    const uint64_t base = sl_rope_hash(&rope, NULL);
    double *const fields[] = {&rope.base, &rope.factor, &rope.original, &rope.magnitude,   &rope.fast,
                              &rope.slow, &rope.low,    &rope.high,     &rope.extrapolate, &rope.sliding_base};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        double saved = *fields[i];
        *fields[i] += 0.5;
        assert_true(sl_rope_hash(&rope, NULL) != base);
        *fields[i] = saved;
    }
    const float divisors[32] = {1.0f};
    assert_true(sl_rope_hash(&rope, divisors) != base);
    assert_true(sl_rope_hash(&rope, NULL) == base);
}

static int enter(void **state)
{
    static sl_fpenv saved;
    saved = sl_fpenv_enter();
    *state = &saved;
    return 0;
}

static int leave(void **state)
{
    sl_fpenv_leave(*(sl_fpenv *)*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(angles_of_ten_million_positions_are_exact),
        cmocka_unit_test(linear_divides_positions),
        cmocka_unit_test(yarn_keeps_fast_and_divides_slow),
        cmocka_unit_test(llama3_mixes_between_its_two_factors),
        cmocka_unit_test(divisors_divide),
        cmocka_unit_test(the_hash_covers_every_number),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
