#!/usr/bin/env python3
"""Every architecture's logits against llama.cpp's, on small random models of odd sizes.

    check_families.py [--build build] [--python PYTHON] [--tokens 200] [FAMILY ...]

PYTHON has numpy and llama-cpp-python (the peer to measure against, never a dependency). For each family and each rule of
positions that it is asked with: F32 weights and an F16 cache, mean KL below 1e-5 and the same best token wherever the
reference's first two differ by 0.02; then Q8_0 and Q4_0 weights, in front of which both round activations to 8 bits, each
in its way: against llama.cpp with the same weights as F32 the engine's mean KL is at most 1.15 of llama.cpp's. More than
one sliding window of text. Exit status 1 when a bound is passed.
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


def logits(args, work, model, name, who):
    """Of the ids that the maker wrote. who: sluice, llama.cpp, or the forward pass in numpy."""
    out = work / name
    if who == "sluice":
        run(args.build / "sluice", "score", "-m", model, "-f", work / "text.txt", "--kv", "f16", "--logits", out)
    elif who == "llama.cpp":
        run(args.python, HERE / "peer_llamacpp.py", "logits", model, "--ids", work / "ids.txt", "--out", out)
    else:
        run(args.python, HERE / "reference_forward.py", model, "--ids", work / "ids.txt", "--kv", "f16", "--logits", out)
    return out


def distance(args, work, reference, test):
    said = run(args.python, HERE / "compare_logits.py", "--ids", work / "ids.txt", "--reference", reference, "--logits",
               test, "--gap", "0.02")
    kl = float(re.search(r"mean KL ([0-9.e+-]+)", said).group(1))
    same, asked = map(int, re.search(r"top-1 equal (\d+) of (\d+)", said).groups())
    return kl, same, asked


def compare(args, work, family, rule, kind):
    """True: a bound is passed. What is measured goes to stdout."""
    model, name = work / "m.gguf", " ".join([family, *rule, kind])
    run(args.python, HERE / "make_family_gguf.py", family, model, "--type", kind, "--encode", work / "text.txt",
        work / "ids.txt", *rule)
    exact = model
    if kind != "F32":
        exact = work / "f32.gguf"
        run(args.python, HERE / "rewrite_f32.py", model, exact)
    peer = "numpy" if family in PEERLESS else "llama.cpp"
    reference, own = logits(args, work, exact, "reference.bin", peer), logits(args, work, model, "own.bin", "sluice")
    kl, same, asked = distance(args, work, reference, own)
    if kind == "F32":
        bad = kl > 1e-5 or same < asked
        print(f"{'FAIL' if bad else 'PASS'} {name}: mean KL {kl:.2g}, best token {same} of {asked}", flush=True)
        return bad
    if family in PEERLESS:
        print(f"TOLD {name}: mean KL {kl:.3g}, best token {same} of {asked}; no peer", flush=True)
        return False
    theirs, their_same, _ = distance(args, work, reference, logits(args, work, model, "peer.bin", "llama.cpp"))
    bad = kl > 1.15 * theirs
    print(f"{'FAIL' if bad else 'PASS'} {name}: mean KL {kl:.3g}, llama.cpp's {theirs:.3g}, ratio {kl / theirs:.2f}; best "
          f"token {same}, llama.cpp's {their_same}, of {asked}", flush=True)
    return bad


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
            failed += sum(compare(args, work, family, rule, kind) for kind in ("F32", "Q8_0", "Q4_0"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
