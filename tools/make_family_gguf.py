#!/usr/bin/env python3
"""Makes a small random model of any architecture the engine knows, from a seed, to compare with other engines.

    make_family_gguf.py ARCH OUT.gguf [--type F32|F16|BF16|Q8_0|Q4_0] [--seed 1] [--window 40] [--rope RULE] [--original 64]
                        [--encode TEXT IDS]

Sizes unlike any real model's: hidden 160 (five groups), 6 query heads on 2 KV heads of 32 (qwen2, phi3: 5 on 1), FFN 224
(seven groups); mixtures of 7 experts of FFN 96, 3 used, or 5 of 224, 2 used; as many layers as show the architecture's
pattern. The tokenizer is make_tiny_gguf.py's. RULE: yarn, linear, longrope, llama3 (its divisors, as
rope_freqs.weight): positions stretched beyond the original context.
"""
import argparse
import math

import numpy as np

import gguf_file as gf
import make_tiny_gguf as tiny

HIDDEN, HEADS, KV_HEADS, DIM, FF, CONTEXT, ORIGINAL = 160, 6, 2, 32, 224, 8192, 64
# name: layers and what beside llama's tensors and keys the architecture has
FAMILIES = {
    "llama": {"layers": 3},
    "llama-bias": {"arch": "llama", "layers": 2, "biases": ["attn_q", "attn_k", "attn_v", "attn_output"]},
    "mistral": {"arch": "llama", "layers": 2, "window": True},
    "qwen2": {"layers": 3, "heads": (5, 1), "biases": ["attn_q", "attn_k", "attn_v"]},
    "qwen3": {"layers": 3, "qk_norm": True},
    "qwen3moe": {"layers": 3, "qk_norm": True, "experts": (7, 3, 96)},
    "mixtral": {"arch": "llama", "layers": 3, "experts": (5, 2, FF)},
    "phi3": {"layers": 3, "heads": (5, 1), "fused_qkv": True, "fused_up": True},
    "gemma2": {"layers": 4, "post": True, "window": True, "softcaps": (2.5, 3.5), "embd_scale": True},
    "gemma3": {"layers": 7, "post": True, "window": True, "qk_norm": True, "embd_scale": True,
               "rope_base": 1000000.0},
    "smollm3": {"layers": 5},
    "glm4": {"layers": 3, "post": True, "fused_up": True, "biases": ["attn_q", "attn_k", "attn_v"], "rope_dims": 16},
}


class Maker:
    def __init__(self, args):
        self.args, self.family = args, FAMILIES[args.family]
        self.arch = self.family.get("arch", args.family)
        self.heads, self.kv_heads = self.family.get("heads", (HEADS, KV_HEADS))
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        self.tensors = []

    def vector(self, name, n, mean, sigma):
        values = (mean + sigma * self.rng.standard_normal(n)).astype("<f4")
        self.tensors.append((name, (n,), gf.TYPE_IDS["F32"], values.tobytes))

    def matrix(self, name, rows, columns, sigma):
        values = (sigma * self.rng.standard_normal((rows, columns))).astype(np.float32)
        data = encode(values, self.args.type)
        self.tensors.append((name, (rows, columns), gf.TYPE_IDS[self.args.type], lambda: data))

    def stack(self, name, n, rows, columns, sigma):
        values = (sigma * self.rng.standard_normal((n, rows, columns))).astype(np.float32)
        data = encode(values, self.args.type)
        self.tensors.append((name, (n, rows, columns), gf.TYPE_IDS[self.args.type], lambda: data))

    def mixture(self, name, wide, damp):
        n, _, ff = self.family["experts"]
        router = (4 * wide * self.rng.standard_normal((n, HIDDEN))).astype("<f4")  # F32 whatever the others are
        self.tensors.append((name + "ffn_gate_inp.weight", (n, HIDDEN), gf.TYPE_IDS["F32"], router.tobytes))
        self.stack(name + "ffn_gate_exps.weight", n, ff, HIDDEN, 2 * wide)
        self.stack(name + "ffn_up_exps.weight", n, ff, HIDDEN, 1.5 * wide)
        self.stack(name + "ffn_down_exps.weight", n, HIDDEN, ff, damp / math.sqrt(ff))

    def layer(self, index):
        f, name = self.family, f"blk.{index}."
        layers, q, kv = f["layers"], self.heads * DIM, self.kv_heads * DIM
        wide, damp = 1 / math.sqrt(HIDDEN), 2 / math.sqrt(2 * layers)
        self.vector(name + "attn_norm.weight", HIDDEN, 1, 0.1)
        if f.get("fused_qkv"):
            self.matrix(name + "attn_qkv.weight", q + 2 * kv, HIDDEN, 1.4 * wide)
        else:
            self.matrix(name + "attn_q.weight", q, HIDDEN, 2 * wide)
            self.matrix(name + "attn_k.weight", kv, HIDDEN, wide)
            self.matrix(name + "attn_v.weight", kv, HIDDEN, wide)
        self.matrix(name + "attn_output.weight", HIDDEN, q, damp / math.sqrt(q))
        for bias in f.get("biases", []):
            self.vector(f"{name}{bias}.bias", {"attn_q": q, "attn_output": HIDDEN}.get(bias, kv), 0, 0.5)
        if f.get("qk_norm"):
            self.vector(name + "attn_q_norm.weight", DIM, 2, 0.3)
            self.vector(name + "attn_k_norm.weight", DIM, 1, 0.2)
        if f.get("post"):
            self.vector(name + "post_attention_norm.weight", HIDDEN, 0.6, 0.1)
            self.vector(name + "post_ffw_norm.weight", HIDDEN, 0.6, 0.1)
        self.vector(name + "ffn_norm.weight", HIDDEN, 1, 0.1)
        if f.get("experts"):
            self.mixture(name, wide, damp)
            return
        if not f.get("fused_up"):
            self.matrix(name + "ffn_gate.weight", FF, HIDDEN, 2 * wide)
        self.matrix(name + "ffn_up.weight", 2 * FF if f.get("fused_up") else FF, HIDDEN, 1.5 * wide)
        self.matrix(name + "ffn_down.weight", HIDDEN, FF, damp / math.sqrt(FF))

    def all_tensors(self, n_vocab):
        f, pairs = self.family, self.family.get("rope_dims", DIM) // 2
        scale = math.sqrt(HIDDEN) if f.get("embd_scale") else 1
        self.matrix("token_embd.weight", n_vocab, HIDDEN, 2.4 / math.sqrt(HIDDEN) / (scale if scale > 1 else 1) ** 0.5)
        for index in range(f["layers"]):
            self.layer(index)
        self.vector("output_norm.weight", HIDDEN, 1 * (2 if scale > 1 else 1), 0.1)
        if self.args.rope == "llama3":
            self.vector("rope_freqs.weight", pairs, 3, 0.8)
        if self.args.rope == "longrope":
            self.vector("rope_factors_long.weight", pairs, 6, 1)
            self.vector("rope_factors_short.weight", pairs, 1.2, 0.1)
        return self.tensors

    def metadata(self, tokens, merges):
        f, args, text, u32, f32 = self.family, self.args, gf.STRING, gf.U32, gf.F32_VALUE
        items = {"block_count": (u32, f["layers"]), "context_length": (u32, CONTEXT), "embedding_length": (u32, HIDDEN),
                 "feed_forward_length": (u32, FF), "attention.head_count": (u32, self.heads),
                 "attention.head_count_kv": (u32, self.kv_heads), "attention.key_length": (u32, DIM),
                 "attention.value_length": (u32, DIM), "attention.layer_norm_rms_epsilon": (f32, 1e-5),
                 "rope.freq_base": (f32, f.get("rope_base", 10000.0)),
                 "rope.dimension_count": (u32, f.get("rope_dims", DIM)), "vocab_size": (u32, len(tokens))}
        if f.get("experts"):
            items["expert_count"], items["expert_used_count"] = ((u32, x) for x in f["experts"][:2])
            if self.arch == "qwen3moe":
                items["expert_feed_forward_length"] = (u32, f["experts"][2])
        if f.get("window"):
            items["attention.sliding_window"] = (u32, args.window)
        if f.get("softcaps"):
            items["attn_logit_softcapping"], items["final_logit_softcapping"] = ((f32, x) for x in f["softcaps"])
        if args.rope in ("linear", "yarn"):
            items["rope.scaling.type"], items["rope.scaling.factor"] = (text, args.rope), (f32, 4.0)
        if args.rope in ("yarn", "longrope"):
            items["rope.scaling.original_context_length"] = (u32, args.original)
        if args.rope == "longrope":
            items["rope.scaling.attn_factor"] = (f32, 1.19)
        raw = {"general.architecture": gf.encode_value(text, self.arch),
               "general.name": gf.encode_value(text, f"random {args.type} {args.seed}")}
        raw |= {f"{self.arch}.{key}": gf.encode_value(kind, value) for key, (kind, value) in items.items()}
        shared = tiny.metadata(tokens, merges, argparse.Namespace(type="", seed=0, context=0))
        return raw | {key: value for key, value in shared.items() if key.startswith("tokenizer.")}


def encode(values, type_name):
    if type_name == "F32":
        return values.astype("<f4").tobytes()
    if type_name == "F16":
        return values.astype("<f2").tobytes()
    if type_name == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    groups = values.reshape(-1, 32)
    if type_name == "Q4_0":  # low nibbles first half, high ones second; 8 is zero
        extreme = np.take_along_axis(groups, np.abs(groups).argmax(axis=1)[:, None], axis=1)
        scale = (extreme / -8).astype("<f2")
        q = (np.rint(groups / scale.astype(np.float32)) + 8).clip(0, 15).astype(np.uint8)
        return np.concatenate([scale.view(np.uint8), q[:, :16] | q[:, 16:] << 4], axis=1).tobytes()
    scale = (np.abs(groups).max(axis=1, keepdims=True) / 127).astype("<f2")
    q = np.rint(groups / scale.astype(np.float32)).clip(-127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), q.view(np.uint8)], axis=1).tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("out")
    parser.add_argument("--type", default="F32", choices=["F32", "F16", "BF16", "Q8_0", "Q4_0"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window", type=int, default=40)
    parser.add_argument("--rope", choices=["linear", "yarn", "llama3", "longrope"])
    parser.add_argument("--original", type=int, default=ORIGINAL, help="context before it was stretched")
    parser.add_argument("--encode", nargs=2, metavar=("TEXT", "IDS"), help="also writes the ids of an ASCII text")
    args = parser.parse_args()
    letters, merges = tiny.byte_letters(), tiny.learn_merges()
    tokens = tiny.SPECIALS + [letters[b] for b in range(256)] + [a + b for a, b in merges]
    maker = Maker(args)
    gf.write(args.out, maker.metadata(tokens, merges), maker.all_tensors(len(tokens)))
    if args.encode:
        with open(args.encode[0], encoding="ascii") as f:
            ids = tiny.encode(f.read(), merges, tokens)
        with open(args.encode[1], "w", encoding="ascii") as f:
            f.write(" ".join(map(str, ids)) + "\n")


if __name__ == "__main__":
    main()
