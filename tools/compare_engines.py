#!/usr/bin/env python3
"""The whole engine beside llama.cpp's or ik_llama.cpp's llama-bench: prefill of N tokens, and decoding behind them.

  tools/compare_engines.py BUILD --peer NAME=PATH/TO/llama-bench [--peer ..] [--model M.gguf] [--depth 512,7600]
        [--kv q8_0,f16] [--threads 2] [--decode 32] [--repeat 5] [--out OUT.csv] [--pin 2,3]

Model: as tools/get_model.sh finds it. The engines take turns, one process a run: round after round of sluice, then each
peer. sluice reads a text of that many tokens (within a few) and goes on for --decode tokens without drafts (sluice run
--draft 0 --json); llama-bench runs with flash attention and the same cache type, its weights repacked where it offers
that (-rtr 1). Depths beyond the model's training run with positions stretched (--rope-scale; llama-bench has no such
option, and none is needed: no work depends on it). OUT.csv: one line a figure, tokens a second, median, least and most
of the rounds; ratios are of the same round's pairs, more than 1 meaning that sluice is faster. A ratio "to the better
cache type" divides the median by the peer's better one, of whichever type.
"""
import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TEXTS = ("/usr/share/common-licenses/GPL-3", "README.md")
QUESTION = "The text goes on:"
METRICS = ("prefill", "decode")


def output_of(command, pin=None):
    words = (["taskset", "-c", pin] if pin else []) + command
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-800:]}")
    return done.stdout


class Sluice:
    name = "sluice"

    def __init__(self, args, folder):
        self.args, self.folder, self.program = args, folder, str(Path(args.build, "sluice").resolve())
        seed = next(Path(text) for text in TEXTS if Path(text).exists()).read_text()
        self.text = seed * (max(args.depths) * 8 // len(seed) + 1)
        self.trained = json.loads(output_of([self.program, "inspect", "--json", args.model]))["n_ctx_train"]
        self.files = {depth: self.file_of(depth) for depth in args.depths}

    def tokens_of(self, text):
        path = Path(self.folder, "measure.txt")
        path.write_text(text)
        return len(json.loads(output_of([self.program, "tokenize", "-m", self.args.model, "-f", str(path), "--json"]))
                   ["tokens"])

    def file_of(self, depth):
        """A beginning of the text that makes about `depth` tokens together with the question."""
        low, high = 0, len(self.text)
        while high - low > 8:
            middle = (low + high) // 2
            enough = self.tokens_of(self.text[:middle] + "\n\n" + QUESTION) >= depth
            low, high = (low, middle) if enough else (middle, high)
        path = Path(self.folder, f"{depth}.txt")
        path.write_text(self.text[:high])
        return str(path)

    def run(self, depth, kv):
        a = self.args
        command = [self.program, "run", "-m", a.model, "-f", self.files[depth], "-p", QUESTION, "-n",
                   str(a.decode + 1), "--draft", "0", "--kv", kv, "--threads", str(a.threads), "--json"]
        if depth + a.decode + 2 > self.trained:
            command += ["--rope-scale", str(-(-(depth + a.decode + 2) // self.trained))]
        shown = json.loads(output_of(command, a.pin))
        n = len(shown["tokens"])
        if n < 2:
            sys.exit(f"sluice drew {n} tokens behind {depth}: nothing to time")
        return {"prefill": shown["prompt_tokens"] / shown["prefill_s"], "decode": (n - 1) / shown["decode_s"]}


class Bench:
    def __init__(self, name, program, args):
        self.name, self.program, self.args = name, program, args
        usage = subprocess.run([program, "--help"], capture_output=True, text=True)
        words = usage.stdout + usage.stderr
        self.is_fork = "-gp" in words
        self.repacks = "-rtr" in words

    def run(self, depth, kv):
        a = self.args
        base = [self.program, "-m", a.model, "-t", str(a.threads), "-fa", "1", "-ctk", kv, "-ctv", kv, "-r", "1", "-o",
                "json"] + (["-rtr", "1"] if self.repacks else [])
        if self.is_fork:
            runs = [["-p", str(depth), "-n", "0"], ["-p", "0", "-n", "0", "-gp", f"{depth},{a.decode}"]]
        else:
            runs = [["-p", str(depth), "-n", "0"], ["-p", "0", "-n", str(a.decode), "-d", str(depth)]]
        result = {}
        for metric, own in zip(METRICS, runs):
            shown = json.loads(output_of(base + own, a.pin))
            if len(shown) != 1:
                sys.exit(f"{self.name}: {len(shown)} results for one test")
            tokens = depth if metric == "prefill" else a.decode
            result[metric] = tokens / (shown[0]["avg_ns"] * 1e-9)
        return result


def measure(args, engines):
    """{(engine, kv, depth, metric): [tokens a second of each round]}"""
    figures = {}
    for depth in args.depths:
        for kv in args.kvs:
            for i in range(args.repeat):
                for engine in engines:
                    for metric, value in engine.run(depth, kv).items():
                        figures.setdefault((engine.name, kv, depth, metric), []).append(value)
                        print(f"{depth} tokens, {kv}, round {i + 1}: {engine.name} {metric} {value:.1f} t/s",
                              file=sys.stderr, flush=True)
    return figures


def lines_of(args, engines, figures):
    def spread(values):
        return [f"{statistics.median(values):.5g}", f"{min(values):.5g}", f"{max(values):.5g}"]

    for (name, kv, depth, metric), values in figures.items():
        yield [name, kv, depth, metric, "tokens a second", *spread(values)]
    for depth in args.depths:
        for metric in METRICS:
            ours = {kv: figures["sluice", kv, depth, metric] for kv in args.kvs}
            for peer in engines[1:]:
                theirs = {kv: figures[peer.name, kv, depth, metric] for kv in args.kvs}
                for kv in args.kvs:
                    ratios = [a / b for a, b in zip(ours[kv], theirs[kv])]
                    yield ["sluice", kv, depth, metric, f"ratio to {peer.name}", *spread(ratios)]
                best = max(statistics.median(values) for values in theirs.values())
                for kv in args.kvs:
                    ratio = statistics.median(ours[kv]) / best
                    yield ["sluice", kv, depth, metric, f"ratio to {peer.name}'s better cache type", f"{ratio:.4g}", "",
                           ""]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--model")
    parser.add_argument("--depth", default="512,7600")
    parser.add_argument("--kv", default="q8_0,f16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out")
    parser.add_argument("--pin", help="processors, as taskset -c takes them")
    args = parser.parse_args()
    args.depths, args.kvs = [int(d) for d in args.depth.split(",")], args.kv.split(",")
    args.peers = [peer.split("=", 1) for peer in args.peer]
    if any(len(peer) != 2 for peer in args.peers):
        parser.error("--peer takes NAME=PATH")
    if not args.model:
        args.model = output_of([str(Path(__file__).with_name("get_model.sh"))]).strip()
    return args


def main():
    args = parse()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        engines = [Sluice(args, folder)] + [Bench(name, path, args) for name, path in args.peers]
        figures = measure(args, engines)
    out = open(args.out, "w", newline="") if args.out else sys.stdout
    cpu = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    out.write(f"# {cpu.group(1) if cpu else 'unknown processor'}, {args.threads} threads, {Path(args.model).name}, "
              f"load {os.getloadavg()[0]:.1f} at the end\n")
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["engine", "kv", "tokens", "what", "quantity", "median", "min", "max"])
    table.writerows(lines_of(args, engines, figures))
    if args.out:
        out.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
