#!/usr/bin/env python3
"""What commits cost a prefill, how soon `run -c` says its first word, how fast `verify` reads. On a quiet machine.

  tools/measure_contexts.py PROGRAM MODEL TEXT [ROUNDS]                 ROUNDS: default 5
  tools/measure_contexts.py PROGRAM --verify [ROUNDS [MIB]]             MIB: of the file, default 1024

Alternating runs of the same prefill: commits as they are by default, and one at the end (60 s and 4,096 tokens are the
default; a day and a million tokens are as good as never). Then questions of the context that was made. CSV on stdout: what,
round, seconds as the program has them, its processor seconds, bytes written. The last lines are the medians.

--verify: a context file of random bytes under right checksums (docs/context-format.md), made here; `verify` of it and the
engine's reader, and others, over a file of that size (`bench flash`) in turn. The last line is verify's share of the
reader, pair by pair.
"""
import ctypes.util
import json
import os
import statistics
import struct
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


def make_file(path, n_segments):
    """A finished file of whole segments: eight layers of eight KV heads of 128, q8_0."""
    layers, heads, dim = 8, 8, 128
    group = heads * 136 * dim
    part, block = 16 * group, 64 * group  # a multiple of 16,384
    digest = ctypes.CDLL(ctypes.util.find_library("xxhash")).XXH3_64bits
    digest.restype, digest.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]

    def up(value, step):
        return -(-value // step) * step

    def sealed(data, size):
        data += bytes(size - 8 - len(data))
        return data + struct.pack("<Q", digest(data, len(data)))

    sizes = up(368 + 16 * layers + 8, 4096), up(56 + 32 * layers + 16384 + 8, 4096), \
        up(64 + 16384 + 8 + layers * (32 + 4096 + group), 4096)
    superblock, record, commit = sizes
    head = b"SLUICEKV" + struct.pack("<6I3Q2I2dQ2I2fQ", 2, 1, superblock, 1, layers, 0, 1, 2, 3, 0, dim, 1e4, 1.0, 0, 1000, 4,
                                     0, 0, 0) + b"none"
    head = sealed(head + bytes(368 - len(head)) + struct.pack("<IIQ", heads, dim, 0) * layers, superblock)
    mark, before, stride = head[-8:], bytes(8), up(layers * block + 2 * record, 16384)
    with open(path, "wb") as file:
        file.write(2 * head)
        at = up(2 * superblock + 4 * commit, 16384)
        for segment in range(n_segments):
            file.seek(at + segment * stride)
            sums = []
            for _ in range(layers * 4):
                data = os.urandom(part)
                sums.append(digest(data, part))
                file.write(data)
            said = sealed(b"SLUICERC" + struct.pack("<QII8s8sQQ", segment, 4096, layers, mark, before, (segment + 1) * 4096, 0) +
                          struct.pack(f"<{len(sums)}Q", *sums) + bytes(16384), record)
            file.write(2 * said)
            before = said[-8:]
        file.seek(at + n_segments * stride)
        file.write(2 * sealed(b"SLUICEEN" + struct.pack("<Q8s8s", n_segments * 4096, before, mark), 4096))
        os.fsync(file.fileno())


def verify_ratio(program, rounds, mib):
    print("what,round,gb_per_s")
    rates = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_KV_DIR", "/var/tmp")) as folder:
        book = Path(folder, "book.kv")
        make_file(book, max(1, mib * (1 << 20) // (8 * 64 * 8 * 136 * 128)))
        for i in range(rounds):
            told, _, _ = run([program, "verify", book])
            rates.setdefault("verify", []).append(told["file_bytes"] / told["seconds"] / 1e9)
            told, _, _ = run([program, "bench", "flash", "--file-size", f"{mib}M", "--repeat", 1, "--kv-dir", folder])
            for reader in told["readers"]:
                if reader["gb_per_s"]:
                    rates.setdefault(reader["name"], []).append(reader["gb_per_s"])
            for name, values in rates.items():
                print(f"{name},{i},{values[-1]:.3f}", flush=True)
    for name, values in rates.items():
        print(f"median {name}: {statistics.median(values):.3f} GB/s, {min(values):.3f} to {max(values):.3f}")
    pairs = [a / b for a, b in zip(rates["verify"], rates["sluice"])]
    print(f"verify: {statistics.median(pairs):.3f} of the reader (sluice), {min(pairs):.3f} to {max(pairs):.3f}")


def main():
    if sys.argv[2:3] == ["--verify"]:
        return verify_ratio(sys.argv[1], int((sys.argv[3:] or [5])[0]), int((sys.argv[4:] or [1024])[0]))
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
