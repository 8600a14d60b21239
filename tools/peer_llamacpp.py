#!/usr/bin/env python3
"""llama.cpp, through llama-cpp-python, on given token ids: logits to compare, or times.

    peer_llamacpp.py logits MODEL.gguf --ids IDS --out OUT.bin [--limit N] [--kv f16|q8_0] [--flash] [--threads 2]
    peer_llamacpp.py time   MODEL.gguf --ids IDS --depth 512,7600 [--decode 32] [--repeat 5] [--kv ..] [--flash] ..

A peer to measure against, never a dependency: `CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary=llama-cpp-python
llama-cpp-python` in an environment of its own. OUT.bin is raw binary32 [n_tokens][n_vocab], as compare_logits.py
reads it. time: tokens per second of prefill (batches of 512) and of one-by-one decoding behind each depth; median,
least and most of the repeats.
"""
import argparse
import ctypes
import statistics
import time

import llama_cpp
import numpy as np

import token_ids

KV_TYPES = {"f16": 1, "q8_0": 8}  # ggml_type
BATCH = 512


class Peer:
    def __init__(self, args, n_ctx):
        llama_cpp.llama_log_set(QUIET, None)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(args.model.encode(), model_params)
        if not self.model:
            raise SystemExit(f"{args.model}: llama.cpp cannot load it")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = (n_ctx + 255) // 256 * 256, BATCH, BATCH
        params.n_threads = params.n_threads_batch = args.threads
        params.type_k = params.type_v = KV_TYPES[args.kv]
        if hasattr(params, "flash_attn_type"):
            params.flash_attn_type = 1 if args.flash else 0
        else:
            params.flash_attn = args.flash
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp refuses this context (a quantised V cache needs --flash)")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def decode(self, ids, first, all_logits):
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, first + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i + 1 == len(ids)
        status = llama_cpp.llama_decode(self.context, batch)
        if status:
            raise SystemExit(f"llama_decode: {status}")

    def logits(self, n):
        data = llama_cpp.llama_get_logits(self.context)
        return np.ctypeslib.as_array(data, shape=(n * self.n_vocab,))

    def clear(self):
        if hasattr(llama_cpp, "llama_memory_clear"):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        else:
            llama_cpp.llama_kv_self_clear(self.context)


@llama_cpp.llama_log_callback
def QUIET(level, text, arg):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        print(ctypes.string_at(text).decode("utf-8", "replace"), end="")


def write_logits(args, ids):
    peer = Peer(args, len(ids))
    with open(args.out, "wb") as out:
        for first in range(0, len(ids), BATCH):
            chunk = ids[first:first + BATCH]
            peer.decode(chunk, first, True)
            out.write(peer.logits(len(chunk)).astype("<f4").tobytes())


def describe(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def measure(args, ids):
    depths = [int(d) for d in args.depth.split(",")]
    if max(depths) + args.decode > len(ids):
        raise SystemExit(f"{max(depths) + args.decode} ids needed, {len(ids)} given")
    peer = Peer(args, max(depths) + args.decode)
    peer.decode(ids[:64], 0, False)  # warm
    for depth in depths:
        prefill, decode = [], []
        for _ in range(args.repeat):
            peer.clear()
            began = time.perf_counter()
            for first in range(0, depth, BATCH):
                peer.decode(ids[first:min(first + BATCH, depth)], first, False)
            peer.logits(1)
            middle = time.perf_counter()
            for i in range(args.decode):
                peer.decode(ids[depth + i:depth + i + 1], depth + i, True)
                peer.logits(1)
            prefill.append(depth / (middle - began))
            decode.append(args.decode / (time.perf_counter() - middle))
        print(f"depth {depth}  kv {args.kv}  flash {'on' if args.flash else 'off'}  threads {args.threads}  prefill "
              f"{describe(prefill)} tokens/s  decode {describe(decode)} tokens/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("logits", "time"))
    parser.add_argument("model")
    parser.add_argument("--ids", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out")
    parser.add_argument("--kv", choices=sorted(KV_TYPES), default="f16")
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", default="512")
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    ids = token_ids.read(args.ids, args.limit)
    if args.what == "logits" and not args.out:
        parser.error("logits needs --out")
    write_logits(args, ids) if args.what == "logits" else measure(args, ids)


if __name__ == "__main__":
    main()
