/* sl_sincos64, sl_log64, sl_pow64 against the C library's long double (64-bit mantissa on x86-64). */
#include "kernel/math64.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static double random_unit(void)
{
    return (double)(random_next() >> 11) * 0x1p-53;
}

/* Error in units of the result's last place. */
static double ulps(double got, long double want)
{
    double rounded = fabs((double)want);
    double unit = nextafter(rounded, INFINITY) - rounded;
    return fabs((double)((long double)got - want)) / unit;
}

static void check_sincos(double x, double *worst)
{
    double s, c;
    sl_sincos64(x, &s, &c);
    double error_s = ulps(s, sinl((long double)x)), error_c = ulps(c, cosl((long double)x));
    *worst = fmax(*worst, fmax(error_s, error_c));
    if (error_s > 1.0 || error_c > 1.0)
        fail_msg("sincos(%a): %a (%.2f ulp), %a (%.2f ulp)", x, s, error_s, c, error_c);
}

static void sincos_is_within_one_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 100000; i++) {
        double magnitude = exp2(random_unit() * 70 - 40);
        check_sincos(i & 1 ? magnitude : -magnitude, &worst);
        /* near the zeros: the doubles next to a multiple of pi/2 */
        double multiple = rint(random_unit() * 0x1p29) * 1.57079632679489661923;
        check_sincos(multiple, &worst);
        check_sincos((double)i, &worst);
    }
    check_sincos(0x1p30, &worst);
    check_sincos(-0x1p30, &worst);
    print_message("sincos: worst %.3f ulp\n", worst);
    double s, c;
    sl_sincos64(0.0, &s, &c);
    assert_true(s == 0.0 && c == 1.0);
}

static void log_is_within_one_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        double x = i & 1 ? exp2(random_unit() * 2040 - 1020) : 0.5 + random_unit() * 1.5;
        double error = ulps(sl_log64(x), logl((long double)x));
        worst = fmax(worst, error);
        if (error > 1.0)
            fail_msg("log(%a): %.2f ulp", x, error);
    }
    print_message("log: worst %.3f ulp\n", worst);
    assert_true(sl_log64(1.0) == 0.0);
    assert_true(sl_log64(2.0) == 0x1.62e42fefa39efp-1);
}

static void pow_is_within_one_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        double base = exp2(random_unit() * 30 - 5);
        double exponent = random_unit() * 8 - 4;
        double error = ulps(sl_pow64(base, exponent), powl((long double)base, (long double)exponent));
        worst = fmax(worst, error);
        if (error > 1.0)
            fail_msg("pow(%a, %a): %.2f ulp", base, exponent, error);
    }
    print_message("pow: worst %.3f ulp\n", worst);
}

static void pow_edges(void **state)
{
    (void)state;
    assert_true(sl_pow64(100000.0, 0.0) == 1.0);
    assert_true(sl_pow64(2.0, 10.0) == 1024.0);
    assert_true(sl_pow64(4.0, -0.5) == 0.5);
    assert_true(sl_pow64(1.0, 1e300) == 1.0);
    assert_true(isinf(sl_pow64(10.0, 1e6)));
    assert_true(sl_pow64(10.0, -1e6) == 0.0);
    assert_true(sl_pow64(2.0, -1074.0) == 0x1p-1074);
    assert_true(isnan(sl_pow64(2.0, NAN)));
}

int main(void)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    if (text)
        random_state = strtoull(text, NULL, 0) | 1;
    print_message("seed 0x%llx\n", (unsigned long long)random_state);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sincos_is_within_one_ulp),
        cmocka_unit_test(log_is_within_one_ulp),
        cmocka_unit_test(pow_is_within_one_ulp),
        cmocka_unit_test(pow_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
