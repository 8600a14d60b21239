#!/usr/bin/env python3
"""Compares next-token distributions with a reference's.

    compare_logits.py --ids IDS --reference REF.bin (--logits TEST.bin | --json SCORE.json|-) [--limit N]
    compare_logits.py --golden GOLDEN.txt (--logits TEST.bin --n-vocab N | --json SCORE.json)

REF.bin and TEST.bin are raw binary32 rows [n_tokens][n_vocab] (reference_forward.py --logits, sluice score
--logits). SCORE.json is the output of `sluice score --top N --json` with N = n_vocab, read position by position.
Prints, over all positions: mean and largest KL(reference || test) in nats, the share of equal top tokens where the
reference's first two logits differ by more than --gap, the largest difference of a logit, both perplexities.
Against a golden file (the best few ids of each position only): the largest differences of their logits and of
log-probabilities, and the same top tokens. Exit status 1 when --max-mean-kl, --max-logprob or --all-top fails.
"""
import argparse
import json
import os
import re
import sys

import numpy as np

import token_ids

TOP = '"top":'
PAIR = re.compile(r'\{"id":\s*(\d+),\s*"logit":\s*([^,}]+)')


def log_softmax(row):
    row = row.astype(np.float64)
    top = row.max()
    return row - (top + np.log(np.exp(row - top).sum()))


def raw_rows(path, n_vocab):
    size = os.path.getsize(path)
    if size % (4 * n_vocab):
        sys.exit(f"{path}: {size} bytes are not rows of {n_vocab} binary32 values")
    yield from np.memmap(path, dtype="<f4", mode="r", shape=(size // 4 // n_vocab, n_vocab))


def json_tops(path):
    """The text inside each "top": [...], read piece by piece: a whole distribution at every position is gigabytes."""
    held = ""
    with (sys.stdin if path == "-" else open(path, encoding="utf-8")) as f:
        while chunk := f.read(1 << 22):
            held += chunk
            while (start := held.find(TOP)) >= 0 and (end := held.find("]", start)) >= 0:
                yield held[start:end]
                held = held[end:]


def json_rows(path, n_vocab):
    for text in json_tops(path):
        row = np.full(n_vocab, np.nan, dtype=np.float32)
        for token, logit in PAIR.findall(text):
            row[int(token)] = float(logit)
        yield row


def json_positions(path):
    """For golden files: the few best with their log-probabilities."""
    with open(path, encoding="utf-8") as f:
        for position in json.load(f)["positions"]:
            top = position["top"]
            yield [t["id"] for t in top], [t["logit"] for t in top], [t["logprob"] for t in top]


def compare(args):
    ids = token_ids.read(args.ids, args.limit)
    size = os.path.getsize(args.reference)
    n_vocab = args.n_vocab or size // 4 // len(token_ids.read(args.ids))
    tests = raw_rows(args.logits, n_vocab) if args.logits else json_rows(args.json, n_vocab)
    kl, ref_nll, test_nll, n_clear, n_same, worst = [], [], [], 0, 0, 0.0
    for i, (ref, test) in enumerate(zip(raw_rows(args.reference, n_vocab), tests)):
        if i == len(ids):
            break
        if not np.isfinite(test).all():
            sys.exit(f"position {i}: a logit is missing or not finite")
        a, b = log_softmax(ref), log_softmax(test)
        kl.append(float(np.sum(np.exp(a) * (a - b))))
        worst = max(worst, float(np.abs(ref.astype(np.float64) - test).max()))
        second, first = np.sort(np.partition(ref, -2)[-2:])
        if first - second > args.gap:
            n_clear += 1
            n_same += int(ref.argmax() == test.argmax())
        if i + 1 < len(ids):
            ref_nll.append(-a[ids[i + 1]])
            test_nll.append(-b[ids[i + 1]])
    if len(kl) != len(ids):
        sys.exit(f"{len(kl)} positions compared, {len(ids)} ids given")
    kl = np.array(kl)
    print(f"positions {len(kl)}  mean KL {kl.mean():.4e} +- {kl.std() / np.sqrt(len(kl)):.1e}  median "
          f"{np.median(kl):.4e}  max KL {kl.max():.4e} at {kl.argmax()}")
    print(f"top-1 equal {n_same} of {n_clear} (gap > {args.gap})  largest logit difference {worst:.4e}")
    print(f"perplexity reference {np.exp(np.mean(ref_nll)):.6f}  test {np.exp(np.mean(test_nll)):.6f}")
    return (args.max_mean_kl is None or kl.mean() <= args.max_mean_kl) and (not args.all_top or n_same == n_clear)


def read_golden(path):
    with open(path, encoding="ascii") as f:
        for line in f:
            if not line.startswith("#"):
                fields = line.split()
                pairs = [pair.split(":") for pair in fields[3:]]
                yield int(fields[0]), float(fields[2]), [int(i) for i, _ in pairs], [float(x) for _, x in pairs]


def compare_golden(args):
    rows = list(raw_rows(args.logits, args.n_vocab)) if args.logits else list(json_positions(args.json))
    d_logit, d_logprob, n_clear, n_same, n_pairs = 0.0, 0.0, 0, 0, 0
    for position, lse, ids, logits in read_golden(args.golden):
        row = rows[position]
        if args.logits:
            found, logprobs = dict(enumerate(row)), dict(enumerate(log_softmax(row)))
            best = int(row.argmax())
        else:
            found, logprobs = dict(zip(row[0], row[1])), dict(zip(row[0], row[2]))
            best = row[0][0]
        for token, logit in zip(ids, logits):
            if token in found:
                n_pairs += 1
                d_logit = max(d_logit, abs(found[token] - logit))
                d_logprob = max(d_logprob, abs(logprobs[token] - (logit - lse)))
        if logits[0] - logits[1] > args.gap:
            n_clear += 1
            n_same += int(best == ids[0])
    print(f"{n_pairs} pairs  largest difference: logit {d_logit:.3e}  log-probability {d_logprob:.3e}  "
          f"top-1 equal {n_same} of {n_clear} (gap > {args.gap})")
    return n_pairs > 0 and (args.max_logprob is None or d_logprob <= args.max_logprob) and (
        not args.all_top or n_same == n_clear)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids")
    parser.add_argument("--reference")
    parser.add_argument("--golden")
    parser.add_argument("--logits")
    parser.add_argument("--json")
    parser.add_argument("--n-vocab", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--gap", type=float, default=0.02)
    parser.add_argument("--max-mean-kl", type=float)
    parser.add_argument("--max-logprob", type=float)
    parser.add_argument("--all-top", action="store_true")
    args = parser.parse_args()
    if bool(args.logits) == bool(args.json) or bool(args.golden) == bool(args.reference):
        parser.error("one of --logits and --json, and one of --golden and --reference")
    if args.reference and not args.ids or args.golden and args.logits and not args.n_vocab:
        parser.error("--reference needs --ids; --golden with --logits needs --n-vocab")
    sys.exit(0 if (compare_golden if args.golden else compare)(args) else 1)


if __name__ == "__main__":
    main()
