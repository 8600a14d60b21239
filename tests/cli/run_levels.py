#!/usr/bin/env python3
"""The demo model's logits on every level of kernels, against hashes that hold for all of them.

  tests/cli/run_levels.py BUILD [EMULATOR...]     SLUICE_DEMO_MODEL names the model; without it everything is skipped

BUILD is a folder with the program `sluice` in it; EMULATOR (qemu-aarch64 -cpu max, say) stands before it on the command
line. Each level that the processor has (SLUICE_CPU) and each type of the cache must give the bits below over the whole
vocabulary, whatever the compiler and the architecture; a level that it lacks is skipped. The reference level computes
about eight tokens a second: the text is short.
"""
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LEVELS = ["ref", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm", "sme"]
TEXT = ("The GNU General Public License is a free, copyleft license for software and other kinds of works. "
        "When we speak of free software, we are referring to freedom, not price.")
# SHA-256 of all logits (binary32, [tokens][vocabulary]) of the text by SmolLM2-135M-Instruct.Q4_1. A change of the
# arithmetic changes them, and its version with them.
WANTED = {
    "q8_0": "55cae164d95e59a407f0cab62c9bcd8074fcd7d695047b3a8d348eb1c9f15e38",
    "f16": "2dfae58eb6bc1786b05fb8d3ae13f6f39220b752f20c4a9c6e7369f7be14e108",
}


def logits_hash(command, model, level, kv, folder):
    """(hash, None), or (None, what the program said)."""
    text, logits = folder / "text", folder / "logits"
    text.write_text(TEXT)
    argv = command + ["score", "-m", str(model), "-f", str(text), "--kv", kv, "--logits", str(logits), "--ram", "1G",
                      "--json"]
    done = subprocess.run(argv, capture_output=True, env=os.environ | {"SLUICE_CPU": level}, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        return None, done.stderr.decode(errors="replace").strip()
    return hashlib.sha256(logits.read_bytes()).hexdigest(), None


def main():
    program, emulator = Path(sys.argv[1]) / "sluice", sys.argv[2:]
    model = os.environ.get("SLUICE_DEMO_MODEL", "")
    failed = 0
    for level in LEVELS:
        for kv, wanted in WANTED.items():
            name = f"demo logits, level {level}, cache {kv}"
            if not model:
                print(f"SKIP {name}: SLUICE_DEMO_MODEL is not set", flush=True)
                continue
            with tempfile.TemporaryDirectory() as folder:
                got, problem = logits_hash(emulator + [str(program)], model, level, kv, Path(folder))
            if problem and "processor lacks it" in problem:
                print(f"SKIP {name}: the processor lacks it", flush=True)
                continue
            good = got == wanted
            failed += not good
            print(f"{'PASS' if good else 'FAIL'} {name}" + ("" if good else f"\n    {problem or got}"), flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
