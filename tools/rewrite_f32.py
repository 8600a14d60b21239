#!/usr/bin/env python3
"""Rewrites a GGUF file with every tensor de-quantised to F32; metadata are kept but for general.file_type (0).

    rewrite_f32.py MODEL.gguf OUT.gguf
"""
import sys

import gguf_file as gf


def main(source, target):
    model = gf.Gguf(source)
    meta = dict(model.raw_meta)
    if "general.file_type" in meta:
        meta["general.file_type"] = gf.encode_value(gf.U32, 0)
    meta.pop("general.quantization_version", None)
    tensors = [(t.name, t.shape, gf.TYPE_IDS["F32"], lambda t=t: t.values().astype("<f4").tobytes())
               for t in model.tensors.values()]
    gf.write(target, meta, tensors, model.meta.get("general.alignment", 32))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
