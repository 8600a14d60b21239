#!/usr/bin/env python3
"""sluice verify, export-text and rm on real context files.

  tests/cli/run_verify.py BUILD

Single bits of a finished file are flipped: every one must be found, in the place where it is, and no command may crash.
SLUICE_TEST_FLIPS flips (default 300); SLUICE_TEST_SEED repeats them. Prints PASS or FAIL for each case.
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tools")]
import read_context  # noqa: E402
from tiny_gguf import Tiny  # noqa: E402

failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


class Ground:
    def __init__(self, program, folder):
        self.program, self.folder, tiny = program, Path(folder), Tiny()
        tiny.meta["llama.context_length"] = (tiny.meta["llama.context_length"][0], 16384)
        self.model, self.doc, self.book = (self.folder / name for name in ("model.gguf", "doc.txt", "book.kv"))
        self.model.write_bytes(tiny.bytes())
        self.doc.write_bytes(b" ".join(b"%d the mill" % (i * i) for i in range(420)))

    def argv(self, *argv):
        return [self.program, *map(str, argv)]

    def run(self, *argv):
        return subprocess.run(self.argv(*argv), capture_output=True, stdin=subprocess.DEVNULL)

    def prefill(self, out, commit=4096):
        return self.argv("prefill", "-m", self.model, "-f", self.doc, "-o", out, "--commit-tokens", commit, "--allow-ram-dir")

    def verify(self, path):
        done = self.run("verify", path, "--json")
        return done.returncode, json.loads(done.stdout), done.stderr.decode(errors="replace")


def whole(ground):
    problems = []
    subprocess.run(ground.prefill(ground.book), check=True, capture_output=True, stdin=subprocess.DEVNULL)
    code, told, text = ground.verify(ground.book)
    n = len(read_context.Context(ground.book).ids)
    if code != 0 or told["damaged"] or told["tokens"] != n or not told["finished"] or told["outside_bytes"]:
        problems.append(f"exit code {code}, {n} tokens: {told} {text}")
    if b"finished" not in ground.run("verify", ground.book).stdout:
        problems.append("not called finished")
    report("verify: a whole file", problems)


def flips(ground, draw, n_flips):
    problems, kinds = [], {}
    data = bytearray(ground.book.read_bytes())
    copy, layout = ground.folder / "flipped.kv", read_context.Context(ground.book).at
    copy.write_bytes(data)
    with open(copy, "r+b") as file:
        for i in range(n_flips):
            at = draw.randrange((len(data), layout.D, len(data), 2 * layout.S)[i % 4])
            file.seek(at)
            file.write(bytes([data[at] ^ 1 << draw.randrange(8)]))
            file.flush()
            code, told, text = ground.verify(copy)
            places = told["damaged"]
            if code != 4 or not any(p["offset"] <= at < p["offset"] + p["bytes"] for p in places):
                problems.append(f"a bit of byte {at}: exit code {code}, {places} {text}")
            for place in places:
                kinds[place["what"]] = kinds.get(place["what"], 0) + 1
            asked = ground.run("run", "-m", ground.model, "-c", copy, "-p", "x", "-n", 1, "--allow-ram-dir")
            allowed = (0, 4) if not any(p["what"] == "part" for p in places) else (4,)
            if asked.returncode not in allowed:
                problems.append(f"a bit of byte {at}: run -c ends with {asked.returncode}: {asked.stderr[-200:]}")
            file.seek(at)
            file.write(data[at:at + 1])
            file.flush()
    if len(kinds) < 5:
        problems.append(f"only {kinds} were hit")
    report(f"verify: {n_flips} flipped bits, {kinds}", problems)


def cut_and_foreign(ground):
    problems = []
    data = ground.book.read_bytes()
    copy = ground.folder / "cut.kv"
    at = read_context.Context(ground.book).at
    cases = [("nothing", b""), ("a few bytes", data[:100]), ("superblocks only", data[:2 * at.S]), ("no segment", data[:at.D]),
             ("cut in a segment", data[:-4096]), ("longer", data + bytes(8192)),
             ("zeros", bytes(len(data))), ("a model", ground.model.read_bytes())]
    for name, content in cases:
        copy.write_bytes(content)
        done = ground.run("verify", copy)
        if done.returncode != 4 or b"cut.kv" not in done.stderr:
            problems.append(f"{name}: exit code {done.returncode}: {done.stdout} {done.stderr}")
    report("verify: cut, long and foreign files", problems)


def unfinished(ground):
    """Kills at any moment leave nothing that is called damage, and what is called committed is there."""
    problems, seen, kept = [], set(), None
    path = ground.folder / "torn.kv"
    begun = time.monotonic()
    subprocess.run(ground.prefill(path, 256), check=True, capture_output=True, stdin=subprocess.DEVNULL)
    whole_s = time.monotonic() - begun
    for i in range(16):
        path.unlink(missing_ok=True)
        child = subprocess.Popen(ground.prefill(path, 256), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(whole_s * (i + 1) / 17)
        child.send_signal(signal.SIGKILL)
        child.wait()
        if not path.exists():
            continue
        code, told, text = ground.verify(path)
        n, told_of = len(read_context.Context(path).ids), json.loads(ground.run("inspect", path, "--json").stdout)
        if code != 0 or not told["tokens"] == n == told_of["tokens"] or told["intended_tokens"] != told_of["intended_tokens"]:
            problems.append(f"exit code {code}, {n} tokens: {told} {text}")
        line = ground.run("verify", path).stdout.decode()
        if not told["finished"] and f"{n} of {told['intended_tokens']} tokens" not in line:
            problems.append(line)
        seen.add(n)
        if n > 0 and not told["finished"]:
            kept = bytearray(path.read_bytes())
    if len(seen) < 3:
        problems.append(f"killed too early or too late: {seen}")
    report(f"verify: unfinished files of {sorted(seen)} tokens", problems)
    if kept:
        kept[read_context.Context(ground.book).at.D + 100] ^= 1
        path.write_bytes(kept)
        code, told, _ = ground.verify(path)
        report("verify: a flipped bit in an unfinished file's part",
               [] if code == 4 and told["damaged"][0]["what"] == "part" else [f"exit code {code}: {told}"])


def text_and_removal(ground):
    done = ground.run("export-text", "-m", ground.model, ground.book)
    report("export-text gives the text back", [] if done.returncode == 0 and done.stdout == ground.doc.read_bytes() else
           [f"exit code {done.returncode}, {len(done.stdout)} bytes: {done.stderr}"])
    problems = []
    for argv, code in (((ground.model,), 4), ((ground.folder / "none.kv",), 1), ((ground.doc,), 4)):
        done = ground.run("rm", *argv)
        if done.returncode != code:
            problems.append(f"{argv}: exit code {done.returncode}, expected {code}: {done.stderr}")
    if not ground.model.exists() or not ground.doc.exists():
        problems.append("removed what is not a context")
    second = ground.folder / "second.kv"
    second.write_bytes(ground.book.read_bytes())
    os.link(second, ground.folder / "link.kv")
    os.symlink(second, ground.folder / "pointer.kv")
    for argv in (("--wipe", second), ("--wipe", ground.folder / "pointer.kv"), (ground.folder / "pointer.kv",)):
        done = ground.run("rm", *argv)
        if done.returncode != 3 or second.read_bytes() != ground.book.read_bytes():
            problems.append(f"{argv}, a file of several names: exit code {done.returncode}: {done.stderr}")
    os.unlink(ground.folder / "link.kv")
    with second.open("rb") as held:
        for argv in (("--wipe", second), (ground.book,)):
            done = ground.run("rm", *argv)
            if done.returncode != 0 or Path(argv[-1]).exists():
                problems.append(f"{argv}: exit code {done.returncode}: {done.stderr}")
        if any(held.read()):
            problems.append("not wiped")
    report("rm: contexts only, wiped if asked", problems)


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        whole(ground)
        cut_and_foreign(ground)
        unfinished(ground)
        flips(ground, random.Random(seed), int(os.environ.get("SLUICE_TEST_FLIPS", "300")))
        text_and_removal(ground)
    return failed > 0


sys.exit(main())
