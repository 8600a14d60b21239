#!/usr/bin/env python3
"""Coefficients of the exp2 polynomial in src/kernel/scalar.h.

Fits 2^f on [-1/2, 1/2] by a polynomial p with p(0) = 1 and the least largest relative error (Remez exchange in
binary64), rounds the coefficients to binary32 from the lowest up, refitting the rest after each, and prints them
as C hex floats with the error that remains. Usage: fit_exp2.py [degree], numpy needed.
"""
import sys
import numpy as np

DEGREE = int(sys.argv[1]) if len(sys.argv) > 1 else 6
GRID = np.cos(np.pi * (np.arange(4001) + 0.5) / 4001) / 2


def residual(fixed, free_from, free):
    coeffs = list(fixed) + list(free)
    assert len(fixed) == free_from
    return (np.polynomial.polynomial.polyval(GRID, coeffs) - np.exp2(GRID)) / np.exp2(GRID)


def fit(fixed):
    """Lawson's iteration: weighted least squares that tends to the minimax fit of the free coefficients."""
    first = len(fixed)
    target = np.exp2(GRID) - np.polynomial.polynomial.polyval(GRID, fixed)
    basis = np.stack([GRID**k for k in range(first, DEGREE + 1)], axis=1) / np.exp2(GRID)[:, None]
    goal = target / np.exp2(GRID)
    weight = np.full(len(GRID), 1.0 / len(GRID))
    best, best_err = None, np.inf
    for _ in range(3000):
        root = np.sqrt(weight)[:, None]
        free = np.linalg.lstsq(basis * root, goal * root[:, 0], rcond=None)[0]
        err = np.abs(basis @ free - goal)
        if err.max() < best_err:
            best, best_err = free, err.max()
        weight = weight * err
        weight /= weight.sum()
    return best


fixed = [1.0]
while len(fixed) <= DEGREE:
    fixed.append(float(np.float32(fit(fixed)[0])))
for k, c in enumerate(fixed):
    print(f"c{k} = {c.hex()}f")
worst = np.abs(residual(fixed[:1], 1, fixed[1:])).max()
print(f"largest relative error of the polynomial: {worst:.3e} = 2^{np.log2(worst):.2f}")
