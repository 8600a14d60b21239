#!/usr/bin/env python3
"""Makes tests/golden/blocks.golden: rows of every quantised weight type and their values, by the PyPI package `gguf`.

    make_block_golden.py OUT            (Python with gguf and numpy)

Rows of the types of 32 elements are random numbers with outliers, quantised by gguf-py; it cannot quantise to K types, so
their blocks are random bytes with scales of ordinary size. All values come from gguf-py's dequantise, which shares no
code with the engine. Format: for each type a line `type NAME ROWS ELEMENTS`, then for each row two lines: the bytes as in
GGUF and the values as little-endian binary32, both hexadecimal.
"""
import sys

import gguf
import numpy as np

ROWS, ELEMENTS, SUPERBLOCK = 2, 512, 256
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]


def random_blocks(rng, kind):
    """[ROWS][bytes], K types."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * ELEMENTS // SUPERBLOCK, block_bytes), dtype=np.uint8)
    scales = rng.uniform(1e-4, 1e-2, (blocks.shape[0], 2)).astype("<f2").view(np.uint8).reshape(-1, 4)
    if kind == gguf.GGMLQuantizationType.Q6_K:
        blocks[:, 208:210] = scales[:, :2]  # d stands behind
    else:
        blocks[:, 0:4] = scales  # d, dmin
    return blocks.reshape(ROWS, -1)


def quantised(rng, kind):
    values = rng.standard_normal((ROWS, ELEMENTS)).astype(np.float32)
    values[rng.random(values.shape) < 0.01] *= 50
    values[0, :32] = 0
    return gguf.quants.quantize(values, kind)


def main():
    rng = np.random.default_rng(5)
    with open(sys.argv[1], "w", encoding="ascii") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            rows = random_blocks(rng, kind) if name.endswith("_K") else quantised(rng, kind)
            values = gguf.quants.dequantize(rows, kind).astype("<f4")
            out.write(f"type {name} {ROWS} {ELEMENTS}\n")
            for row, value in zip(rows, values):
                out.write(f"{row.tobytes().hex()}\n{value.tobytes().hex()}\n")


if __name__ == "__main__":
    main()
