#!/usr/bin/env python3
"""The price of streaming: the demo's run within 160 MiB against the same run with everything in memory.

  tools/measure_streaming.py BUILD [MODEL.gguf] [ROUNDS]     MODEL: as tools/get_model.sh finds it; 5 rounds

The two take turns. Prints every round, medians and their ratio; the two answers must be the same tokens.
"""
import json
import statistics
import subprocess
import sys
from pathlib import Path

TEXT = "/usr/share/common-licenses/GPL-3"


def run(program, model, ram):
    command = [program, "run", "-m", model, "-f", TEXT, "--chat", "-p", "Who published this license?", "-n", "64",
               "--ram", ram, "--kv", "q8_0", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    program = str(Path(sys.argv[1], "sluice").resolve())
    model = sys.argv[2] if len(sys.argv) > 2 else subprocess.run(
        [str(Path(__file__).with_name("get_model.sh"))], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    results = {"160M": [], "1G": []}
    for i in range(rounds):
        for ram, kept in results.items():
            kept.append(run(program, model, ram))
            r = kept[-1]
            print(f"round {i + 1}, --ram {ram:4}: prefill {r['prefill_s']:.2f} s, answer {r['decode_s']:.2f} s, "
                  f"{r['bytes_read'] / 2**20:.0f} MiB read, peak {r['peak_rss_bytes'] / 2**20:.0f} MiB", flush=True)
    if len({tuple(r["tokens"]) for kept in results.values() for r in kept}) != 1:
        print("the answers differ", file=sys.stderr)
        return 1
    for key, name in (("prefill_s", "prefill"), ("decode_s", "answer"), (None, "both")):
        streamed, resident = ([r[key] if key else r["prefill_s"] + r["decode_s"] for r in kept]
                              for kept in results.values())
        a, b = statistics.median(streamed), statistics.median(resident)
        print(f"{name:8} streamed {a:.2f} s ({min(streamed):.2f} to {max(streamed):.2f}), in memory {b:.2f} s "
              f"({min(resident):.2f} to {max(resident):.2f}): ratio {a / b:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
