#!/usr/bin/env python3
"""Every architecture's logits against llama.cpp's, on small random models of odd sizes.

    check_families.py [--build build] [--python PYTHON] [--tokens 200] [FAMILY ...]

PYTHON has numpy and llama-cpp-python (the peer to measure against, never a dependency). For each family and each rule of
positions that it is asked with: F32 weights and an F16 cache, mean KL below 1e-5 and the same best token wherever the
reference's first two differ by 0.02; then Q8_0 weights, whose distance only is told (8-bit activations differ). More
than one sliding window of text. Exit status 1 when a bound is passed.
"""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import make_family_gguf as maker

HERE = Path(__file__).parent
CASES = [(name, []) for name in sorted(maker.FAMILIES)] + [
    ("llama", ["--rope", "llama3"]), ("llama", ["--rope", "linear"]), ("qwen3", ["--rope", "yarn"]),
    ("phi3", ["--rope", "longrope"]), ("phi3", ["--rope", "longrope", "--original", "2048"])]
PEERLESS = {"mistral"}  # llama.cpp passes over the window of `llama` files: against reference_forward.py instead
TEXT = "The store keeps keys and values; 0x1f rows, 27 layers (of 3 kinds).\n"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def compare(args, work, family, rule, kind):
    model, text, ids = work / "m.gguf", work / "text.txt", work / "ids.txt"
    run(args.python, HERE / "make_family_gguf.py", family, model, "--type", kind, "--encode", text, ids, *rule)
    run(args.build / "sluice", "score", "-m", model, "-f", text, "--kv", "f16", "--logits", work / "engine.bin")
    if family in PEERLESS:
        run(args.python, HERE / "reference_forward.py", model, "--ids", ids, "--kv", "f16", "--logits", work / "peer.bin")
    else:
        run(args.python, HERE / "peer_llamacpp.py", "logits", model, "--ids", ids, "--out", work / "peer.bin")
    said = run(args.python, HERE / "compare_logits.py", "--ids", ids, "--reference", work / "peer.bin", "--logits",
               work / "engine.bin", "--gap", "0.02")
    kl = float(re.search(r"mean KL ([0-9.e+-]+)", said).group(1))
    same, asked = map(int, re.search(r"top-1 equal (\d+) of (\d+)", said).groups())
    return kl, same, asked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "text.txt").write_text((TEXT * args.tokens)[:args.tokens + args.tokens // 4])
        for family, rule in CASES:
            if args.families and family not in args.families:
                continue
            for kind in ("F32", "Q8_0"):
                kl, same, asked = compare(args, work, family, rule, kind)
                bad = kind == "F32" and (kl > 1e-5 or same < asked)
                failed += bad
                print(f"{'FAIL' if bad else 'PASS'} {family} {' '.join(rule)} {kind}: mean KL {kl:.2g}, best token "
                      f"{same} of {asked}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
