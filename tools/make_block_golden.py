#!/usr/bin/env python3
"""Makes tests/golden/blocks.golden: rows of every quantised weight type and their values, by the PyPI package `gguf`.

    make_block_golden.py OUT            (Python with gguf and numpy)

Rows of the types of 32 elements are random numbers with outliers, quantised by gguf-py; to K types and IQ4 it cannot
quantise, so their blocks (and MXFP4's) are random bytes with scales of ordinary size. All values come from gguf-py's
dequantise, which shares no code with the engine. Format: for each type a line `type NAME ROWS ELEMENTS`, then for each row two lines: the bytes as in
GGUF and the values as little-endian binary32, both hexadecimal.
"""
import sys

import gguf
import numpy as np

ROWS, ELEMENTS = 2, 512
BEHIND = {"Q6_K": 208, "Q2_K": 80, "Q3_K": 108}
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K",
         "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"]


def random_blocks(rng, kind):
    """[ROWS][bytes], types that gguf-py does not quantise to."""
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * ELEMENTS // elements, block_bytes), dtype=np.uint8)
    scales = rng.uniform(1e-4, 1e-2, (blocks.shape[0], 2)).astype("<f2").view(np.uint8).reshape(-1, 4)
    if kind.name == "MXFP4":  # an exponent; the least ones make denormals
        blocks[:, 0] = rng.integers(100, 130, blocks.shape[0])
        blocks[:4, 0] = [0, 1, 2, 200]
    elif kind.name in BEHIND:  # d, dmin stand behind
        at = BEHIND[kind.name]
        blocks[:, at:] = scales[:, :block_bytes - at]
    elif kind.name in ("IQ4_NL", "IQ4_XS"):
        blocks[:, 0:2] = scales[:, :2]
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
            rows = quantised(rng, kind) if name.endswith(("_0", "_1")) else random_blocks(rng, kind)
            values = gguf.quants.dequantize(rows, kind).astype("<f4")
            out.write(f"type {name} {ROWS} {ELEMENTS}\n")
            for row, value in zip(rows, values):
                out.write(f"{row.tobytes().hex()}\n{value.tobytes().hex()}\n")


if __name__ == "__main__":
    main()
