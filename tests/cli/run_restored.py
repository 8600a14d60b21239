#!/usr/bin/env python3
"""Restored equals fresh: what a model says behind a context file is, bit for bit, what it says of the whole text.

  tests/cli/run_restored.py BUILD

Fifty texts: prose, code, lists, repetitions, single words, many scripts; most short, some of several segments. Each is
cut in two at the end of a line. All logits of the second half (`score --logits`) from one uninterrupted run over the whole
text are compared with those behind a context file of the first half: as it was made; killed and resumed; forked from the
file of the whole text; and each read by other processes with other threads, budgets, rings, windows, ways of I/O and
instruction sets. A small seeded model; every tenth text also by the demo model. SLUICE_TEST_SEED repeats the choices;
of the fifty, SLUICE_TEST_TEXTS are drawn (12; 50 takes some minutes).
Prints PASS or FAIL for each kind of text.
"""
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import U32, Tiny  # noqa: E402

ROOT = Path(__file__).parents[2]
SCRIPTS = ["Der Fluß trägt Äste über das Wehr, und niemand hält sie auf.", "На дворе трава, на траве дрова, у двора вода.",
           "山の水は谷を下り、やがて海にそそぐ。", "물레방아는 밤에도 쉬지 않고 돈다.", "النهر يجري إلى البحر كل يوم.",
           "नदी का पानी सदा बहता है।", "Ο μύλος γυρίζει όσο τρέχει το νερό.", "🌊🌊 ➜ ⚙️ → 💡 ½ ≠ ⅔", "התחנה עומדת ליד הנחל.",
           "La rivière coule; l'été, elle s'arrête presque."]
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


def source(name):
    return (ROOT / name).read_text(errors="replace")


def texts(draw):
    """(kind, text), ten of each kind."""
    prose = source("README.md") + source("ARCHITECTURE.md") + source("LICENSE")
    code = source("src/store/writer.c") + source("tools/run_tests.py")
    for i, n in enumerate((300, 700, 900, 1300, 500, 200, 1100, 4300, 8400, 64)):
        at = draw.randrange(len(prose) - n)
        yield "prose", prose[at:at + n // 2] + "end\nand" + prose[at + n // 2:at + n]
        at = draw.randrange(len(code) - n)
        yield "code", code[at:at + n // 2] + "end\nand" + code[at + n // 2:at + n]
        yield "lists", "".join(f"{k}. item {draw.randrange(10 ** draw.randrange(1, 9))}, {'abc'[k % 3]}\n" for k in range(n // 16 + 2))
        word = draw.choice(["word", "a", "\t", "7", "the the ", "\n"])
        yield "repetitions and single words", ("mill\nmill" if i == 0 else word * (n // len(word)) + "end\nand" + word * 5)
        yield "many scripts", "".join(draw.choice(SCRIPTS) + "\n" for _ in range(2 + n // 60))


def cut(draw, text):
    """Two halves, neither empty, the first ending with a line, and no space beside the cut: of a run of spaces the
    tokenizer takes all but the last where something follows, and all where the text ends."""
    ends = [i + 1 for i, c in enumerate(text[:-1]) if c == "\n" and not text[i - 1:i].isspace()
            and not text[i + 1].isspace()]
    at = draw.choice(ends)
    return text[:at], text[at:]


class Ground:
    def __init__(self, program, folder, model, draw, ways):
        self.program, self.folder, self.model, self.draw, self.ways = program, folder, model, draw, ways
        self.n_compared = self.n_resumed = self.n_rows = 0

    def run(self, *argv, env=None):
        done = subprocess.run([self.program, *map(str, argv)], capture_output=True, stdin=subprocess.DEVNULL,
                              env=dict(os.environ, **(env or {})))
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, argv))}: exit code {done.returncode}: {done.stderr.decode(errors='replace')[-400:]}")
        return done

    def logits(self, *argv, env=None):
        """Rows of all logits: a list of their bytes."""
        path = self.folder / "logits"
        out = self.run("score", "-m", self.model, *argv, "--allow-ram-dir", "--logits", path, env=env).stdout
        n = len(re.findall(rb"^ *\d+ +\d+ +[-\d]", out, re.M))
        data = path.read_bytes()
        if n == 0 or len(data) % n:
            raise RuntimeError(f"score: {len(data)} bytes of logits in {n} lines")
        size = len(data) // n
        return [data[i * size:(i + 1) * size] for i in range(n)]

    def prefill_argv(self, text, out, kv):
        return ["prefill", "-m", self.model, "-f", text, "-o", out, "--kv", kv, "--commit-tokens", 64, "--allow-ram-dir"]

    def resumed(self, text, out, kv, whole_s):
        """Made by a prefill that was killed, and then finished."""
        for _ in range(2):
            child = subprocess.Popen([self.program, *map(str, self.prefill_argv(text, out, kv))], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            time.sleep(self.draw.uniform(0.3, 0.9) * whole_s)
            child.send_signal(signal.SIGKILL)
            child.wait()
            self.n_resumed += child.returncode == -signal.SIGKILL and out.exists()
        self.run(*self.prefill_argv(text, out, kv))

    def one(self, text):
        """What is wrong with a text."""
        first, rest, whole, problems = *(self.folder / name for name in ("first", "rest", "whole")), []
        halves = cut(self.draw, text)
        for path, content in zip((first, rest, whole), (*halves, text)):
            path.write_bytes(content.encode())
        kv = self.draw.choice(["q8_0", "f16"])
        books = {name: self.folder / f"{name}.kv" for name in ("made", "resumed", "forked")}
        all_of = self.folder / "all.kv"
        for path in (*books.values(), all_of):
            path.unlink(missing_ok=True)
        fresh = self.logits("-f", whole, "--kv", kv)
        begun = time.monotonic()
        self.run(*self.prefill_argv(first, books["made"], kv))
        self.resumed(first, books["resumed"], kv, time.monotonic() - begun)
        self.run(*self.prefill_argv(whole, all_of, kv))
        n = len(fresh) - len(self.logits("-c", books["made"], "-f", rest))
        n_first = json.loads(self.run("inspect", books["made"], "--json").stdout)["tokens"]
        if n not in (n_first, n_first - 1):  # the rows begin with that of the file's last token, or of the next one
            problems.append(f"{n_first} tokens in the file, {len(fresh)} in all, {len(fresh) - n} rows behind it")
        self.run("fork", all_of, books["forked"], "--at", n_first, "--allow-ram-dir")
        for name, book in books.items():
            if hashlib.sha256(book.read_bytes()).digest() != hashlib.sha256(books["made"].read_bytes()).digest():
                problems.append(f"{name}: the file differs")
            for extra, env in [((), {}), *self.draw.sample(self.ways, 1)]:
                rows = self.logits("-c", book, "-f", rest, *extra, env=env)
                self.n_compared, self.n_rows = self.n_compared + 1, self.n_rows + len(rows)
                if len(rows) != len(fresh) - n:
                    problems.append(f"{name}, {extra} {env}: {len(rows)} rows, expected {len(fresh) - n}")
                    continue
                wrong = [i for i, row in enumerate(rows) if row != fresh[n + i]]
                if wrong:
                    problems.append(f"{kv}, {name}, {extra} {env}: {len(wrong)} rows of {len(rows)} differ, the first is {wrong[0]}; "
                                    f"{n_first} tokens before: {halves[1][:40]!r}")
        return problems


def ways(program, budgets, ring):
    """Options and environments that may not change a bit, of what this machine has."""
    levels = [level for level in ("ref", "avx2", "avxvnni", "avx512", "amx", "neon", "i8mm", "sme")
              if b"lacks" not in subprocess.run([program, "plan", "-m", "/nonexistent", "--tokens", "1"], capture_output=True,
                                               env=dict(os.environ, SLUICE_CPU=level)).stderr]
    return ([(("--threads", n), {}) for n in (1, 2, 3, 5)] + [(("--ram", ram), {}) for ram in budgets] +
            [(("--ring", ring), {}), (("--window", 64), {}), (("--window", 192), {}), (("--io", "pool"), {}),
             (("--io", "buffered", "--threads", 3), {})] + [((), {"SLUICE_CPU": level}) for level in levels])


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")
    draw, program = random.Random(seed), str(Path(sys.argv[1]).resolve() / "sluice")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as name:
        folder, tiny, demo = Path(name), Tiny(layers=2), os.environ.get("SLUICE_DEMO_MODEL", "")
        tiny.meta["llama.context_length"] = (U32, 32768)
        model = folder / "model.gguf"
        model.write_bytes(tiny.bytes())
        ground = Ground(program, folder, model, draw, ways(program, ("24M", "48M", "1G"), "300K"))
        large = Ground(program, folder, demo, draw, ways(program, ("300M", "1G"), "2M")) if Path(demo).is_file() else None
        kinds, n_texts = {}, int(os.environ.get("SLUICE_TEST_TEXTS", "12"))
        for i, (kind, text) in sorted(draw.sample(list(enumerate(texts(draw))), n_texts)):
            found, _ = kinds.setdefault(kind, ([], []))
            found += ground.one(text)
            if large and i % 10 == i // 10 and text.strip():  # white space grows together across the cut
                found += [f"demo model: {problem}" for problem in large.one(text[:500] + "\n" + text[-40:])]
        for kind, (found, _) in kinds.items():
            report(f"restored equals fresh: {kind}", found)
        report(f"{ground.n_compared} readings of {ground.n_rows} rows, {ground.n_resumed} kills before",
               [] if ground.n_resumed >= n_texts // 2 else ["too few kills met a file"])
        if large:
            report(f"the demo model: {large.n_compared} readings of {large.n_rows} rows, {large.n_resumed} kills before", [])
        else:
            print("SKIP the demo model: SLUICE_DEMO_MODEL names no file")
    return failed > 0


sys.exit(main())
