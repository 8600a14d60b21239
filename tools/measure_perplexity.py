#!/usr/bin/env python3
"""Perplexity of a text: the engine's and llama.cpp's, each against llama.cpp's with the same weights as F32.

    measure_perplexity.py MODEL.gguf TEXT [--build build] [--kv f16|q8_0] [--bytes 100000] [--piece 8000] [--threads 2]
                          [--own-f32]

TEXT's first so many bytes are cut at line ends into pieces of at most --piece bytes, each read by itself from its BOS
on; every engine gets the ids that the engine's tokenizer gives. The reference is llama.cpp on a copy of the model whose
every tensor is de-quantised to F32 (rewrite_f32.py), so that neither rounds activations in front of quantised weights.
Printed for each: perplexity, its distance from the reference's in per cent, and how far the log-probabilities of single
tokens are from the reference's (root of the mean square). Needs numpy and llama-cpp-python (a peer to measure against,
never a dependency), and room for the F32 copy in the folder for temporary files.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import peer_llamacpp

HERE = Path(__file__).parent
REFERENCE, PEER = "llama.cpp, F32 weights (the reference)", "llama.cpp, the file's weights"
OWN, OWN_F32 = "sluice, the file's weights", "sluice, F32 weights"
NAMES = (REFERENCE, PEER, OWN, OWN_F32)


def cut(text, size, piece):
    """Pieces of whole lines; a line longer than a piece is cut where it must be."""
    pieces, held = [], b""
    for line in text[:size].splitlines(keepends=True):
        while held and len(held) + len(line) > piece:
            pieces.append(held)
            held = b""
        held += line
    return [p.decode("utf-8", "ignore") for p in pieces + [held] if p.strip()]


def score(args, model, piece, folder):
    """Ids, and the log-probability of each one behind the first."""
    file = folder / "piece.txt"
    file.write_text(piece, encoding="utf-8", newline="")
    done = subprocess.run([str(args.build / "sluice"), "score", "-m", str(model), "-f", str(file), "--kv", args.kv,
                           "--threads", str(args.threads), "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    rows = json.loads(done.stdout)["positions"]
    return [row["id"] for row in rows], [row["logprob"] for row in rows[:-1]]


class Peer:
    """llama.cpp over one model file."""

    def __init__(self, args, model, most):
        self.peer = peer_llamacpp.Peer(argparse.Namespace(model=str(model), kv=args.kv, flash=args.kv != "f16",
                                                          threads=args.threads), most)

    def logprobs(self, ids):
        out, batch = [], peer_llamacpp.BATCH
        self.peer.clear()
        for first in range(0, len(ids), batch):
            chunk = ids[first:first + batch]
            self.peer.decode(chunk, first, True)
            rows = self.peer.logits(len(chunk)).reshape(len(chunk), -1)
            for row, token in zip(rows, ids[first + 1:first + len(chunk) + 1]):
                top = row.max()
                out.append(float(row[token] - top) - math.log(float(np.exp(row - top).sum(dtype=np.float64))))
        return out


def tell(name, values, reference, file=sys.stdout):
    a, b = np.array(values), np.array(reference)
    mine, theirs = math.exp(-a.mean()), math.exp(-b.mean())
    spread = np.sqrt(((a - b) ** 2).mean())
    error = 100 * (a - b).std() / math.sqrt(len(a))
    print(f"{name}: perplexity {mine:.4f}, {100 * (mine / theirs - 1):+.3f} % from the reference (+- {error:.3f}), "
          f"single tokens {spread:.4f} nats", file=file, flush=True)
    return mine


def measure(args, pieces, folder):
    """Log-probabilities by engine, piece after piece: what stands so far is told on the way."""
    f32 = folder / "f32.gguf"
    subprocess.run([sys.executable, str(HERE / "rewrite_f32.py"), str(args.model), str(f32)], check=True)
    most = 2 * args.piece  # ids: pieces of plain text have far fewer than bytes
    reference, peer = Peer(args, f32, most), Peer(args, args.model, most)
    out = {name: [] for name in NAMES if args.own_f32 or name != OWN_F32}
    n_ids = 0
    for i, piece in enumerate(pieces):
        ids, own = score(args, args.model, piece, folder)
        n_ids += len(ids)
        out[REFERENCE] += reference.logprobs(ids)
        out[PEER] += peer.logprobs(ids)
        out[OWN] += own
        if args.own_f32:
            out[OWN_F32] += score(args, f32, piece, folder)[1]
        print(f"piece {i + 1} of {len(pieces)}", file=sys.stderr)
        for name, values in out.items():
            tell(name, values, out[REFERENCE], sys.stderr)
    return out, n_ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--kv", choices=("f16", "q8_0"), default="f16")
    parser.add_argument("--bytes", type=int, default=100000)
    parser.add_argument("--piece", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--own-f32", action="store_true", help="the engine on the F32 copy as well")
    args = parser.parse_args()
    pieces = cut(args.text.read_bytes(), args.bytes, args.piece)
    with tempfile.TemporaryDirectory() as name:
        out, n_ids = measure(args, pieces, Path(name))
    print(f"{args.model.name}: {args.text.name}, {len(pieces)} pieces, {n_ids} tokens, {args.kv} cache")
    told = {name: tell(name, values, out[REFERENCE]) for name, values in out.items()}
    print(f"the engine against llama.cpp, the file's weights: {100 * (told[OWN] / told[PEER] - 1):+.3f} %")


if __name__ == "__main__":
    main()
