/* Synthetic data: incompressible, the same for the same seed on every machine and with any number of threads. */
#ifndef SL_BENCH_SYNTH_H
#define SL_BENCH_SYNTH_H

#include "bench/machine.h"

/* Whole tile groups of one layer: int8 values with binary16 scales near 1/100, or binary16 values below 1; no padding,
 * no absent token. `seed` tells groups apart: group i of the call takes seed + i. */
void bench_fill_groups(const bench_machine *m, uint8_t *groups, size_t n_groups, uint64_t seed);

/* Floats of about unit variance, uniform. */
void bench_fill_floats(const bench_machine *m, float *out, size_t n, uint64_t seed);

/* Any bytes. */
void bench_fill_bytes(uint8_t *out, size_t n, uint64_t seed);

/* n_rows rows' random K and V, rounded and written into tile groups by the kernels, as a layer's projections would be:
 * token first_token of groups[0] is row 0. */
void bench_pack_rows(const bench_machine *m, uint8_t *groups, size_t first_token, size_t n_rows, uint64_t seed);

#endif
