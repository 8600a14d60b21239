/* sin, cos, log and pow in binary64 as fixed sequences of +, -, *, /, fma and rint.
 * Method: argument reduction with exact fma remainders, then Taylor series (sin, cos, exp) or the series of
 * 2 atanh(s) (log); the leading terms are carried as a sum of two doubles. Own derivation; the error-free
 * transformations are Dekker's and Knuth's (Muller et al., Handbook of Floating-Point Arithmetic, ch. 4). */
#include "kernel/math64.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* pi/2 and ln 2 as unevaluated sums; LN2_TOP has 40 bits, so that its product with an exponent is exact. */
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define PI_2_A 0x1.921fb54442d18p+0
#define PI_2_B 0x1.1a62633145c07p-54
#define PI_2_C (-0x1.f1976b7ed8fbcp-110)
#define LN2_TOP 0x1.62e42fefa2000p-1
#define LN2_REST 0x1.9ef35793c7673p-41
#define LN2_HI 0x1.62e42fefa39efp-1
#define LN2_LO 0x1.abc9e3b39803fp-56
#define LOG2E_HI 0x1.71547652b82fep+0
#define LOG2E_LO 0x1.777d0ffda0d24p-56

typedef struct dd {
    double hi, lo;
} dd;

static dd two_sum(double a, double b)
{
    double s = a + b;
    double t = s - a;
    return (dd){s, (a - (s - t)) + (b - t)};
}

/* Horner over coef[n-1] .. coef[0]. */
static double horner(const double *coef, int n, double z)
{
    double p = coef[n - 1];
    for (int i = n - 2; i >= 0; i--)
        p = fma(p, z, coef[i]);
    return p;
}

/* (-1)^k / (2k+1)!, k = 1..8 */
static const double SIN_COEF[] = {-1.0 / 6,         1.0 / 120,         -1.0 / 5040,          1.0 / 362880,
                                  -1.0 / 39916800,  1.0 / 6227020800.0, -1.0 / 1307674368000.0,
                                  1.0 / 355687428096000.0};
/* (-1)^k / (2k)!, k = 2..9 */
static const double COS_COEF[] = {1.0 / 24,          -1.0 / 720,           1.0 / 40320,         -1.0 / 3628800,
                                  1.0 / 479001600.0, -1.0 / 87178291200.0, 1.0 / 20922789888000.0,
                                  -1.0 / 6402373705728000.0};

/* sin and cos of hi + lo, |hi| <= pi/4 and a little. */
static dd sincos_core(dd r)
{
    double z = r.hi * r.hi;
    double half = 0.5 * z;
    double sine = r.hi + fma(r.hi * z, horner(SIN_COEF, 8, z), r.lo * (1.0 - half));
    double top = 1.0 - half;
    double rest = (1.0 - top) - half; /* what 1 - half lost */
    double cosine = top + (rest + fma(z * z, horner(COS_COEF, 8, z), -(r.hi * r.lo)));
    return (dd){sine, cosine};
}

void sl_sincos64(double x, double *sin_out, double *cos_out)
{
    double n = rint(x * TWO_OVER_PI);
    /* Exact: both terms are multiples of 2^-53 and their difference is below one. */
    double first = fma(-n, PI_2_A, x);
    double product = n * PI_2_B;
    double product_lo = fma(n, PI_2_B, -product);
    dd r = two_sum(first, -product);
    r = two_sum(r.hi, r.lo - fma(n, PI_2_C, product_lo));
    dd sc = sincos_core(r);
    switch ((int64_t)n & 3) {
    case 0:
        *sin_out = sc.hi, *cos_out = sc.lo;
        break;
    case 1:
        *sin_out = sc.lo, *cos_out = -sc.hi;
        break;
    case 2:
        *sin_out = -sc.hi, *cos_out = -sc.lo;
        break;
    default:
        *sin_out = -sc.lo, *cos_out = sc.hi;
        break;
    }
}

/* 2/(2k+1), k = 1..13 */
static const double LOG_COEF[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13, 2.0 / 15,
                                  2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23, 2.0 / 25, 2.0 / 27};

/* x = 2^exponent * m, sqrt(1/2) <= m < sqrt(2); returns log(m) to about 2^-58 of itself. */
static dd log_core(double x, int *exponent)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    /* Offset so that the exponent field steps at sqrt(1/2) instead of 1/2. */
    int64_t step = (int64_t)(bits - 0x3fe6a09e667f3bcdull) >> 52;
    *exponent = (int)step;
    bits -= (uint64_t)step << 52;
    double m;
    memcpy(&m, &bits, sizeof m);

    double f = m - 1.0; /* exact */
    dd d = two_sum(m, 1.0);
    double s = f / d.hi;
    double s_lo = (fma(-s, d.hi, f) - s * d.lo) / d.hi;
    double z = s * s;
    double tail = s * z * horner(LOG_COEF, 13, z);
    return two_sum(2.0 * s, fma(2.0, s_lo, tail));
}

double sl_log64(double x)
{
    int exponent;
    dd m = log_core(x, &exponent);
    double e = exponent;
    dd sum = two_sum(e * LN2_TOP, m.hi);
    return sum.hi + (sum.lo + fma(e, LN2_REST, m.lo));
}

/* 1/k!, k = 2..15 */
static const double EXP_COEF[] = {1.0 / 2,        1.0 / 6,          1.0 / 24,          1.0 / 120,
                                  1.0 / 720,      1.0 / 5040,       1.0 / 40320,       1.0 / 362880,
                                  1.0 / 3628800,  1.0 / 39916800,   1.0 / 479001600.0, 1.0 / 6227020800.0,
                                  1.0 / 87178291200.0, 1.0 / 1307674368000.0};

/* 2^(hi + lo), |hi| < 1100. */
static double exp2_core(dd y)
{
    double n = rint(y.hi);
    dd f = two_sum(y.hi - n, y.lo); /* the difference is exact */
    double r = f.hi * LN2_HI;
    double r_lo = fma(f.hi, LN2_HI, -r) + fma(f.hi, LN2_LO, f.lo * LN2_HI);
    double p = fma(r * r, horner(EXP_COEF, 14, r), fma(r_lo, r, r_lo));
    return ldexp(1.0 + (r + p), (int)n);
}

double sl_pow64(double base, double exponent)
{
    int two;
    dd m = log_core(base, &two);
    double top = m.hi * LOG2E_HI;
    double rest = fma(m.hi, LOG2E_HI, -top) + fma(m.hi, LOG2E_LO, m.lo * LOG2E_HI);
    dd log2_base = two_sum(two, top);
    log2_base.lo += rest;
    double hi = exponent * log2_base.hi;
    double lo = fma(exponent, log2_base.hi, -hi) + exponent * log2_base.lo;
    if (!(hi > -1100.0))
        return hi == hi ? 0.0 : hi;
    if (hi > 1099.0)
        return (double)INFINITY;
    return exp2_core((dd){hi, lo});
}
