/* sin, cos, log and powers in binary64 by fixed routines: no libm transcendental reaches a logit or a sample,
 * because their last bit differs between libraries. Tested against libm within a few units in the last place. */
#ifndef SL_MATH64_H
#define SL_MATH64_H

/* |x| up to 2^30; error under 4 ulp of 1 near the zeros, see docs/numerics.md. */
void sl_sincos64(double x, double *sin_out, double *cos_out);
/* Natural logarithm of a positive normal number. */
double sl_log64(double x);
/* base^exponent for base > 0, by exp2(exponent * log2(base)). */
double sl_pow64(double base, double exponent);

#endif
