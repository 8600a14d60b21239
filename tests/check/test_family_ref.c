/* The reference of what single families need (NEOX pairing, GELU, the cap of logits) against binary64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fpenv.h"
#include "check/check_gemm.h"
#include "kernel/ref.h"

#define U 0x1p-24 /* half a unit in the last place of 1 */

/* The pairs of NORM in another order: the same bits. */
static void neox_is_norm_reordered(void **state)
{
    (void)state;
    enum { MOST = 128 };
    for (size_t n_pairs = 0; n_pairs <= MOST; n_pairs++) {
        float apart[2 * MOST], beside[2 * MOST], c[MOST + 1], s[MOST + 1];
        cg_fill(c, MOST, CG_MODE_NORMAL);
        cg_fill(s, MOST, CG_MODE_NORMAL);
        cg_fill(apart, 2 * MOST, CG_MODE_NORMAL);
        for (size_t i = 0; i < n_pairs; i++) {
            beside[2 * i] = apart[i];
            beside[2 * i + 1] = apart[n_pairs + i];
        }
        const float after = apart[2 * n_pairs < 2 * MOST ? 2 * n_pairs : 0];
        sl_rope_neox_ref(apart, c, s, n_pairs);
        sl_rope_norm_ref(beside, c, s, n_pairs);
        for (size_t i = 0; i < n_pairs; i++)
            assert_true(beside[2 * i] == apart[i] && beside[2 * i + 1] == apart[n_pairs + i]);
        if (n_pairs > 0 && n_pairs < MOST)
            assert_true(apart[2 * n_pairs] == after); /* of a head that is turned in part */
    }
}

/* x/2 (1 + tanh y): where tanh is near -1 the sum has an absolute error. tanh: 4 u; its argument: 4 roundings. */
static void gelu_within_bounds(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        float gate = cg_unit() * (i & 1 ? 12.0f : 3.0f), up = cg_value(CG_MODE_NORMAL), got;
        sl_gelu_mul_ref(&got, &gate, &up, 1);
        double x = (double)gate, y = sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
        double want = 0.5 * x * (1.0 + tanh(y)) * (double)up;
        double slope = 1.0 / (cosh(y) * cosh(y));
        double bound = U * fabs(0.5 * x * (double)up) * (5 * fabs(y) * slope + 8) + 3 * U * fabs(want);
        worst = fmax(worst, fabs((double)got - want) / bound);
        if (fabs((double)got - want) > bound)
            fail_msg("gelu(%a) * %a: %a, not %a", x, (double)up, (double)got, want);
    }
    print_message("gelu: worst %.2f of the bound\n", worst);
}

static void softcap_within_bounds(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        float cap = 0.5f + fabsf(cg_unit()) * 60.0f, x = cg_unit() * (i & 1 ? 300.0f : 8.0f), got = x;
        sl_softcap_ref(&got, 1, cap);
        double y = (double)x / (double)cap, want = (double)cap * tanh(y);
        double of_tanh = fabs(y) < 0.125 ? 6 * fabs(y) : 5; /* beyond, it is 1 less a fraction */
        double bound = U * (double)cap * (fabs(y) / (cosh(y) * cosh(y)) + of_tanh);
        worst = fmax(worst, fabs((double)got - want) / (bound + 0x1p-140));
        if (fabs((double)got - want) > bound + 0x1p-140)
            fail_msg("%a capped at %a: %a, not %a", (double)x, (double)cap, (double)got, want);
    }
    print_message("softcap: worst %.2f of the bound\n", worst);
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
    cg_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neox_is_norm_reordered),
        cmocka_unit_test(gelu_within_bounds),
        cmocka_unit_test(softcap_within_bounds),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
