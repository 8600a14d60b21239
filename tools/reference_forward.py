#!/usr/bin/env python3
"""A plain forward pass of the `llama` architecture on de-quantised weights, as an independent reference.

    reference_forward.py MODEL.gguf --ids IDS [--limit N] [--positions 0-9,20] [--double] [--kv f32|f16|q8_0] [--act8]
                         [--logits OUT.bin] [--golden OUT.txt --top 10]

Nothing of the engine is used: numpy on binary32 (or --double: binary64), textbook softmax. By default nothing is
rounded beyond that. --kv rounds K and V as a cache of that type would; --act8 rounds the input of quantised weights to
signed bytes per 32 elements: they show how much of a difference is the cache's or the activations', and so how much
is a fault. One layer's weights are in memory at a time and logits are written as they come.

--logits: raw little-endian binary32, [n_positions][n_vocab], without a header.
--golden: a line for each position: `position id logsumexp id:logit id:logit ...`, best first; # starts a comment.
"""
import argparse
import sys
import time

import numpy as np

import gguf_file as gf
import token_ids

ROWS = 256  # query rows at a time: bounds the score matrix


def signed_bytes(x):
    """x in groups of 32 as whole numbers in -127..127 and one binary32 scale each."""
    groups = x.reshape(-1, 32).astype(np.float32)
    amax = np.max(np.abs(groups), axis=1, keepdims=True)
    safe = np.where(amax > 0, amax, np.float32(1))
    return np.rint(groups * (np.float32(127) / safe)), amax / np.float32(127)


class Llama:
    def __init__(self, path, real, kv="f32", act8=False):
        self.file, self.real, self.kv, self.act8 = gf.Gguf(path), real, kv, act8
        meta = self.file.meta
        if meta["general.architecture"] != "llama":
            raise ValueError(f"architecture {meta['general.architecture']}")
        get = lambda key, default=None: meta.get("llama." + key, default)
        self.n_layers, self.n_embd = get("block_count"), get("embedding_length")
        self.n_heads = get("attention.head_count")
        self.n_kv_heads = get("attention.head_count_kv", self.n_heads)
        self.head_dim = get("attention.key_length", self.n_embd // self.n_heads)
        self.rope_dim = get("rope.dimension_count", self.head_dim)
        self.rope_base = get("rope.freq_base", 10000.0)
        self.rope_factor = get("rope.scaling.factor", 1.0) if get("rope.scaling.type") == "linear" else 1.0
        self.span = get("attention.sliding_window", 0)  # every layer slides, as Mistral's do
        self.eps = get("attention.layer_norm_rms_epsilon")
        self.embedding = self.file.tensors["token_embd.weight"]
        self.output = self.file.tensors.get("output.weight", self.embedding)
        self.n_vocab = self.output.shape[0]

    def weight(self, name):
        return self.file.tensors[name].values().astype(self.real)

    def linear(self, name, x):
        y = self.activations(self.file.tensors[name + ".weight"], x) @ self.weight(name + ".weight").T
        bias = name + ".bias"
        return y + self.weight(bias) if bias in self.file.tensors else y

    def activations(self, tensor, x):
        if not self.act8 or not tensor.type_name.startswith("Q"):
            return x
        q, scale = signed_bytes(x)
        return (q * scale).reshape(x.shape).astype(self.real)

    def norm(self, name, x):
        mean = np.mean(x * x, axis=1, keepdims=True)
        return x / np.sqrt(mean + self.real(self.eps)) * self.weight(name + ".weight")

    def rope(self, x):
        """x [n][heads][head_dim]: neighbours (2i, 2i + 1) turn by position * base^(-2i / rope_dim)."""
        pair = np.arange(0, self.rope_dim, 2, dtype=np.float64)
        freq = self.rope_base ** (-pair / self.rope_dim) / self.rope_factor
        if "rope_freqs.weight" in self.file.tensors:
            freq /= self.file.tensors["rope_freqs.weight"].values().astype(np.float64)
        angle = np.arange(x.shape[0], dtype=np.float64)[:, None, None] * freq
        c, s = np.cos(angle).astype(self.real), np.sin(angle).astype(self.real)
        out = x.copy()
        even, odd = x[:, :, 0:self.rope_dim:2], x[:, :, 1:self.rope_dim:2]
        out[:, :, 0:self.rope_dim:2] = even * c - odd * s
        out[:, :, 1:self.rope_dim:2] = even * s + odd * c
        return out

    def stored(self, x):
        """What a cache of the chosen type gives back."""
        if self.kv == "f16":
            return x.astype(np.float16).astype(self.real)
        if self.kv == "q8_0":
            q, scale = signed_bytes(x)
            return (q * scale.astype(np.float16).astype(np.float32)).reshape(x.shape).astype(self.real)
        return x

    def attention(self, q, k, v):
        """q [n][heads][d], k and v [n][kv heads][d] -> [n][heads * d]; causal, in chunks of rows."""
        n, group = q.shape[0], self.n_heads // self.n_kv_heads
        scale = self.real(1.0 / np.sqrt(self.head_dim))
        out = np.empty_like(q)
        for start in range(0, n, ROWS):
            end = min(start + ROWS, n)
            hidden = np.arange(end)[None, :] > np.arange(start, end)[:, None]
            if self.span:
                hidden |= np.arange(end)[None, :] <= np.arange(start, end)[:, None] - self.span
            for head in range(self.n_heads):
                scores = (q[start:end, head] @ k[:end, head // group].T) * scale
                scores[hidden] = -np.inf
                p = np.exp(scores - scores.max(axis=1, keepdims=True))
                out[start:end, head] = (p @ v[:end, head // group]) / p.sum(axis=1, keepdims=True)
        return out.reshape(n, -1)

    def layer(self, idx, x):
        name = f"blk.{idx}."
        n = x.shape[0]
        h = self.norm(name + "attn_norm", x)
        q = self.rope(self.linear(name + "attn_q", h).reshape(n, self.n_heads, self.head_dim))
        k = self.rope(self.linear(name + "attn_k", h).reshape(n, self.n_kv_heads, self.head_dim))
        v = self.linear(name + "attn_v", h).reshape(n, self.n_kv_heads, self.head_dim)
        x = x + self.linear(name + "attn_output", self.attention(q, self.stored(k), self.stored(v)))
        h = self.norm(name + "ffn_norm", x)
        gate = self.linear(name + "ffn_gate", h)
        gate /= 1 + np.exp(-gate)
        return x + self.linear(name + "ffn_down", gate * self.linear(name + "ffn_up", h))

    def hidden(self, ids, progress):
        x = self.embedding.rows(np.asarray(ids)).astype(self.real)
        for idx in range(self.n_layers):
            x = self.layer(idx, x)
            progress(idx + 1, self.n_layers)
        return x

    def logits(self, x, positions):
        """Yields (position, row of logits) for the chosen rows of hidden state x."""
        weight = self.output.values().astype(self.real)
        for start in range(0, len(positions), 64):
            chosen = positions[start:start + 64]
            h = self.activations(self.output, self.norm("output_norm", x[chosen]))
            for position, row in zip(chosen, h @ weight.T):
                yield position, row


def logsumexp(row):
    top = row.max()
    return float(top) + float(np.log(np.sum(np.exp((row - top).astype(np.float64)))))


def golden_line(position, token, row, n_top):
    order = np.lexsort((np.arange(row.size), -row))[:n_top]  # equal logits: lower id first
    pairs = " ".join(f"{i}:{row[i]:.9g}" for i in order)
    return f"{position} {token} {logsumexp(row):.9g} {pairs}\n"


def parse_positions(text, n):
    if text is None:
        return list(range(n))
    chosen = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        chosen += range(int(first), int(last or first) + 1)
    return chosen


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ids", required=True, help="file of token ids")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--positions")
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--kv", choices=("f32", "f16", "q8_0"), default="f32")
    parser.add_argument("--act8", action="store_true")
    parser.add_argument("--logits")
    parser.add_argument("--golden")
    parser.add_argument("--top", type=int, default=10)
    return parser.parse_args()


def main():
    args = parse_args()
    ids = token_ids.read(args.ids, args.limit)
    positions = parse_positions(args.positions, len(ids))
    model = Llama(args.model, np.float64 if args.double else np.float32, args.kv, args.act8)
    began = time.time()
    note = "\r" if sys.stderr.isatty() else "\n"
    progress = lambda done, n: print(f"{note}layer {done}/{n}  {time.time() - began:.0f} s", end="", file=sys.stderr)
    x = model.hidden(ids, progress)
    raw = open(args.logits, "wb") if args.logits else None
    golden = open(args.golden, "w", encoding="ascii") if args.golden else None
    if golden:
        golden.write(f"# {len(ids)} tokens, {model.n_vocab} logits, {'binary64' if args.double else 'binary32'}, "
                     f"kv {args.kv}\n# position id logsumexp id:logit ...\n")
    for position, row in model.logits(x, positions):
        if raw:
            raw.write(row.astype("<f4").tobytes())
        if golden:
            golden.write(golden_line(position, ids[position], row, args.top))
    for f in (raw, golden):
        if f:
            f.close()
    print(f"\n{len(ids)} tokens, {len(positions)} rows of logits, {time.time() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
