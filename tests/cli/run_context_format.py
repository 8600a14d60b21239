#!/usr/bin/env python3
"""docs/context-format.md against real files, by the independent reader of tools/read_context.py.

  tests/cli/run_context_format.py BUILD

Token ids against `sluice tokenize`; keys and values against a computation in plain Python from the model's weights (one
layer, whose input is the embedding); places against the example of the document. Prints PASS or FAIL for each case.
"""
import json
import math
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tools")]
import read_context  # noqa: E402
from tiny_gguf import N_EMBD, Tiny  # noqa: E402

HEADS, DIM = 16, 128
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


class Ground:
    def __init__(self, program, folder):
        self.program, self.folder, tiny = program, Path(folder), Tiny(wide=True)
        self.model, self.doc = self.folder / "model.gguf", self.folder / "doc.txt"
        self.model.write_bytes(tiny.bytes())
        self.doc.write_bytes(b" ".join(b"%d the mill" % (i * i) for i in range(420)))
        self.body, self.offsets = tiny.data()
        self.ids = json.loads(self.run("tokenize", "-m", self.model, "-f", self.doc, "--json").stdout)["tokens"]

    def argv(self, *argv):
        return [self.program, *map(str, argv)]

    def run(self, *argv):
        return subprocess.run(self.argv(*argv), capture_output=True, check=True, stdin=subprocess.DEVNULL)

    def prefill(self, out, kv):
        return self.argv("prefill", "-m", self.model, "-f", self.doc, "-o", out, "--kv", kv, "--commit-tokens", 512,
                         "--ram", "64M", "--allow-ram-dir", "--json")

    def rows(self, name, first, n):
        return [struct.unpack_from(f"<{N_EMBD}f", self.body, self.offsets[name] + 4 * N_EMBD * (first + i)) for i in range(n)]

    def vectors(self, name, head, position):
        """The head's [DIM] of `name` for the token at a position, before RoPE."""
        x = self.rows("token_embd.weight", self.ids[position], 1)[0]
        x = [v / math.sqrt(sum(u * u for u in x) / N_EMBD + 1e-5) for v in x]
        return [sum(a * b for a, b in zip(row, x)) for row in self.rows(name, head * DIM, DIM)]

    def key(self, head, position):
        k = self.vectors("blk.0.attn_k.weight", head, position)
        for i in range(0, DIM, 2):
            angle = position * 10000.0 ** (-i / DIM)
            c, s = math.cos(angle), math.sin(angle)
            k[i], k[i + 1] = k[i] * c - k[i + 1] * s, k[i] * s + k[i + 1] * c
        return k


def worst(stored, computed, kv):
    """The largest error, in units of what the stored type allows."""
    most = 0.0
    for i, (a, b) in enumerate(zip(stored, computed)):
        peak = max(map(abs, computed[i // 32 * 32:i // 32 * 32 + 32]))
        allowed = abs(b) / 2048 + 1e-5 if kv == "f16" else peak / 127 * 0.51 + peak / 2048
        most = max(most, abs(a - b) / allowed)
    return most


def numbers(ground, kv):
    path = ground.folder / f"{kv}.kv"
    subprocess.run(ground.prefill(path, kv), check=True, capture_output=True, stdin=subprocess.DEVNULL)
    context = read_context.Context(path)
    told = json.loads(ground.run("inspect", path, "--json").stdout)
    problems = []
    if context.ids != ground.ids or not context.finished or told["tokens"] != len(context.ids):
        problems.append(f"{len(context.ids)} tokens, finished {context.finished}; {len(ground.ids)} of the text; {told}")
    if f"{context.identity['model_high']:016x}{context.identity['model_low']:016x}" != told["model"]:
        problems.append(f"fingerprint {context.identity}, inspect {told['model']}")
    if not read_context._hash:
        print("     no library xxhash: checksums not verified")
    n_all = len(ground.ids)
    for head, tile in ((0, 0), (7, 63), (15, 64), (3, n_all // 64)):
        k, v = context.tile(0, head, tile)
        for token in (0, 1, 63, n_all % 64 - 1):
            position = tile * 64 + token
            if position >= n_all:
                if any(k[token] + v[token]):
                    problems.append(f"token {position} is not there and not zero")
                continue
            for what, got, wanted in (("key", k, ground.key(head, position)),
                                      ("value", v, ground.vectors("blk.0.attn_v.weight", head, position))):
                error = worst(got[token], wanted, kv)
                if error > 1:
                    problems.append(f"{what} of token {position}, head {head}: {error:.2f} of what {kv} allows")
    report(f"{kv}: tokens, identity, keys and values", problems)
    return path


def damaged(ground, path):
    """The second copies stand in for the first; a part is believed by its checksum only."""
    problems, context = [], read_context.Context(path)
    data = bytearray(path.read_bytes())
    copy = ground.folder / "damaged.kv"
    record = context.at.group_off(1, 1, 0)
    for off in (100, record + 3000):
        data[off] ^= 1
    copy.write_bytes(data)
    if read_context._hash and read_context.Context(copy).ids != ground.ids:
        problems.append("first copies damaged: other tokens")
    data[context.at.group_off(0, 0, 20) + 5] ^= 4
    copy.write_bytes(data)
    try:
        read_context.Context(copy).tile(0, 0, 17)
        problems += ["a damaged part was believed"] if read_context._hash else []
    except ValueError as error:
        if str(error) != "layer 0, segment 0: checksum":
            problems.append(str(error))
    report("the reader: second copies, a damaged part", problems)


def cut_off(ground, path):
    """Where a finished file ends is known: behind whole segments, too. Either copy of the end record will do."""
    problems, at, data = [], read_context.Context(path).at, path.read_bytes()
    copy = ground.folder / "cut.kv"
    n = (len(data) - at.D) // at.stride
    cuts = {at.D + s * at.stride + more for s in range(1, n + 1) for more in (0, 4096, 8192, 4096 * 3)} - {len(data)}
    for size in sorted(size for size in cuts if size < len(data)) + [len(data) - 4096, len(data) - 1, len(data) + 4096]:
        copy.write_bytes(data[:size] + bytes(max(0, size - len(data))))
        try:
            problems.append(f"{size} of {len(data)} bytes: {len(read_context.Context(copy).ids)} tokens were believed")
        except ValueError:
            pass
        for argv in (("verify", copy), ("inspect", copy)):
            done = subprocess.run(ground.argv(*argv), capture_output=True, stdin=subprocess.DEVNULL)
            if done.returncode != 4:
                problems.append(f"{size} of {len(data)} bytes: {argv[0]} ends with {done.returncode}")
    for damaged in ((0,), (1,), (0, 1)) if read_context._hash else ():
        torn = bytearray(data)
        for which in damaged:
            torn[at.D + n * at.stride + 4096 * which + 9] ^= 1
        copy.write_bytes(torn)
        told = json.loads(subprocess.run(ground.argv("verify", copy, "--json"), capture_output=True).stdout)["damaged"]
        if len(told) != 1 or "end record" not in told[0]["what"]:
            problems.append(f"copies {damaged} damaged: verify says {told}")
        try:
            ids = read_context.Context(copy).ids
        except ValueError:
            ids = []
        if ids != (ground.ids if len(damaged) == 1 else []):
            problems.append(f"copies {damaged} of the end record damaged: {len(ids)} tokens")
    report("cut-off files, the end record's copies", problems)


def unfinished(ground, whole):
    """After a kill: what the engine says is committed is what the reader finds."""
    problems, sizes = [], []
    k_whole = read_context.Context(whole).tile(0, 5, 2)
    path = ground.folder / "torn.kv"
    begun = time.monotonic()
    subprocess.run(ground.prefill(path, "q8_0"), check=True, capture_output=True, stdin=subprocess.DEVNULL)
    whole_s = time.monotonic() - begun
    for i in range(12):
        path.unlink(missing_ok=True)
        child = subprocess.Popen(ground.prefill(path, "q8_0"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while child.poll() is None and not (path.exists() and path.stat().st_size > read_context.Context(path).at.D):
            time.sleep(0.005)
        time.sleep(whole_s * i / 12)
        child.send_signal(signal.SIGKILL)
        child.wait()
        context, told = read_context.Context(path), json.loads(ground.run("inspect", path, "--json").stdout)
        n = len(context.ids)
        if n != told["tokens"] or context.ids != ground.ids[:n] or context.finished != told["finished"]:
            problems.append(f"{n} tokens, finished {context.finished}; inspect: {told['tokens']}, {told['finished']}")
        if n >= 192 and context.tile(0, 5, 2) != k_whole:
            problems.append(f"{n} tokens: another tile")
        sizes.append(n if not context.finished else 0)
    if sum(n > 0 for n in sizes) < 3:
        problems.append(f"killed too early or too late: {sizes}")
    report(f"unfinished files of {sorted(set(sizes))} tokens", problems)


def example():
    """The document's arithmetic."""
    at = read_context.Layout(1, [(3, 64)] * 30)
    value = at.group_off(7, 1, 14) + 2 * at.tile[7] + 68 * 64 + 8
    found = [at.tile[0], at.group[0], at.block[0], at.S, at.R, at.C, at.D, at.stride, value, at.group_off(30, 1, 0),
             at.D + 2 * at.stride + 2 * read_context.SECTOR]
    text = Path(__file__).parents[2].joinpath("docs", "context-format.md").read_text().split("## Example")[1]
    report("the document's example", [f"{n:,} is not in it" for n in found if f"{n:,}" not in text])


def main():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        example()
        book = numbers(ground, "f16")
        damaged(ground, book)
        cut_off(ground, book)
        unfinished(ground, numbers(ground, "q8_0"))
    return failed > 0


sys.exit(main())
