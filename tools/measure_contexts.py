#!/usr/bin/env python3
"""What commits cost a prefill, and how soon `run -c` says its first word. On a quiet machine.

  tools/measure_contexts.py PROGRAM MODEL TEXT [ROUNDS]         ROUNDS: default 5

Alternating runs of the same prefill: commits as they are by default, and one at the end (60 s and 4,096 tokens are the
default; a day and a million tokens are as good as never). Then questions of the context that was made. CSV on stdout: what,
round, seconds as the program has them, its processor seconds, bytes written. The last lines are the medians.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(argv):
    """What the program tells (JSON), and its processor seconds."""
    begun = time.monotonic()
    child = subprocess.Popen([*map(str, argv), "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             stdin=subprocess.DEVNULL)
    out = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{' '.join(map(str, argv))}: status {status}")
    return json.loads(out), used.ru_utime + used.ru_stime, time.monotonic() - begun


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    program, model, text = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    never = ["--commit-tokens", 1 << 20, "--commit-seconds", 86400]
    took = {name: [] for name in ("commits", "no commits", "first token")}
    print("what,round,seconds,processor_s,bytes_written,tokens,commits")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_KV_DIR", "/var/tmp")) as folder:
        book = Path(folder, "book.kv")
        for i in range(rounds):
            for name, extra in (("commits", []), ("no commits", never))[::-1 if i % 2 else 1]:
                book.unlink(missing_ok=True)
                told, cpu, _ = run([program, "prefill", "-m", model, "-f", text, "-o", book, *extra])
                took[name].append((told["prefill_s"], cpu))
                print(f"{name},{i},{told['prefill_s']:.3f},{cpu:.3f},{told['bytes_written']},{told['tokens']},{told['commits']}",
                      flush=True)
        for i in range(rounds):
            told, cpu, whole = run([program, "run", "-m", model, "-c", book, "-p", f"What is it about? ({i})", "-n", 1])
            took["first token"].append((told.get("first_token_s", whole), cpu))
            print(f"first token,{i},{took['first token'][-1][0]:.3f},{cpu:.3f},0,{told['stored_tokens']},0", flush=True)
    for name, values in took.items():
        print(f"median {name}: {statistics.median(v[0] for v in values):.3f} s, processor {statistics.median(v[1] for v in values):.3f} s")
    for i, what in enumerate(("time", "processor time")):
        share = statistics.median(a[i] / b[i] for a, b in zip(took["commits"], took["no commits"])) - 1
        print(f"commits cost {100 * share:+.2f} % of the prefill's {what}")


if __name__ == "__main__":
    main()
