#!/usr/bin/env python3
"""Makes the published classes of malformed GGUF files, tiny ones, as seeds of the fuzzers: make_bad_gguf.py FOLDER

Each is a file that would be right but for one number. tests/unit/test_gguf_bad.c, test_hparams.c and test_spm.c hold what
is to be said of each class.
"""
import struct
import sys
from pathlib import Path

U8, I32, U32, F32, BOOL, STRING, ARRAY = 0, 5, 4, 6, 7, 8, 9


def text(data, size=None):
    return struct.pack("<Q", len(data) if size is None else size) + data


def value(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def u32(key, number):
    return value(key, U32, struct.pack("<I", number))


def tensor(name, dims, kind=0, off=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, off)


def file(values=(), tensors=(), n_values=None, n_tensors=None, data=bytes(64)):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors) if n_tensors is None else n_tensors,
                                 len(values) if n_values is None else n_values)
    out = head + b"".join(values) + b"".join(tensors)
    return out + bytes(-len(out) % 32) + data


def strings(key, items):
    return value(key, ARRAY, struct.pack("<IQ", STRING, len(items)) + b"".join(map(text, items)))


ARCH = value(b"general.architecture", STRING, text(b"llama"))
W = tensor(b"w", [8])
CLASSES = {
    "right": file([ARCH], [W]),
    "dimensions-overflow": file([ARCH], [tensor(b"w", [1 << 32, 1 << 32])]),
    "dimensions-wrap-to-few": file([ARCH], [tensor(b"w", [(1 << 62) + 8, 4])]),
    "dimension-zero": file([ARCH], [tensor(b"w", [8, 0])]),
    "dimensions-five": file([ARCH], [tensor(b"w", [1] * 5)]),
    "count-of-values": file([ARCH], [W], n_values=1 << 60),
    "count-of-tensors": file([ARCH], [W], n_tensors=1 << 60),
    "count-of-items": file([value(b"a", ARRAY, struct.pack("<IQ", F32, 1 << 61))], [W]),
    "offset-past-the-end": file([ARCH], [tensor(b"w", [8], off=1 << 40)]),
    "offset-wraps": file([ARCH], [tensor(b"w", [8], off=(1 << 64) - 32)]),
    "alignment-0": file([ARCH, u32(b"general.alignment", 0)], [W]),
    "alignment-3": file([ARCH, u32(b"general.alignment", 3)], [W]),
    "alignment-2g": file([ARCH, u32(b"general.alignment", 1 << 31)], [W]),
    "string-of-2^40": file([value(b"s", STRING, text(b"abc", 1 << 40))], [W]),
    "key-of-2^40": file([text(b"abc", 1 << 40) + struct.pack("<IB", U8, 1)], [W]),
    "keys-twice": file([ARCH, ARCH], [W]),
    "tensors-twice": file([ARCH], [W, W]),
    "type-unknown": file([value(b"k", 13, bytes(8))], [W]),
    "types-wrong": file([u32(b"general.architecture", 7), value(b"llama.block_count", STRING, text(b"2"))], [W]),
    "bool-of-2": file([value(b"k", BOOL, b"\2")], [W]),
    "arrays-of-arrays": file([value(b"k", ARRAY, struct.pack("<IQIQ", ARRAY, 1, ARRAY, 1))], [W]),
    "byte-tokens-wrong": file([value(b"tokenizer.ggml.model", STRING, text(b"llama")),
                               strings(b"tokenizer.ggml.tokens", [b"<0x4g>", b"<0x>", b"<0x100>"]),
                               value(b"tokenizer.ggml.token_type", ARRAY, struct.pack("<IQ3i", I32, 3, 6, 6, 6))], [W]),
}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, data in CLASSES.items():
        Path(sys.argv[1], f"class-{name}").write_bytes(data)


if __name__ == "__main__":
    main()
