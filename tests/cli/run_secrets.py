#!/usr/bin/env python3
"""Two contexts of twenty secrets each, asked in turn while the other is written: never a token of the other's.

  tests/cli/run_secrets.py BUILD

Each context is a text of twenty lines with a secret in each. The two files have equal geometry and lie in one folder. Every
question's answer (all logits of it, by `score -c`, and the tokens of `run -c`) must be those of the context's own text read
afresh. Meanwhile the other file is made, killed and resumed, replaced by a third text, forked and removed. Then readers of
one file while it grows: each sees the tokens of some commit of its own, and answers as that much of the text, read afresh.
SLUICE_TEST_SEED repeats it. Prints PASS or FAIL for each case.
"""
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import U32, Tiny  # noqa: E402

N_SECRETS = 20
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


class Ground:
    def __init__(self, program, folder, draw):
        self.program, self.folder, self.draw = program, Path(folder), draw
        tiny = Tiny(layers=2)
        tiny.meta["llama.context_length"] = (U32, 16384)
        self.model = self.folder / "model.gguf"
        self.model.write_bytes(tiny.bytes())

    def text(self, name, n_filler):
        lines = [f"The secret {name}{i} is {self.draw.getrandbits(64):x}." + " Nothing here." * n_filler + "\n" for i in range(N_SECRETS)]
        path = self.folder / f"{name}.txt"
        path.write_text("".join(lines))
        return path

    def argv(self, *argv):
        return [self.program, *map(str, argv)]

    def run(self, *argv, code=0):
        done = subprocess.run(self.argv(*argv), capture_output=True, stdin=subprocess.DEVNULL)
        if done.returncode != code:
            raise RuntimeError(f"{' '.join(map(str, argv))}: exit code {done.returncode}: {done.stderr.decode(errors='replace')[-400:]}")
        return done

    def prefill(self, text, out, *extra):
        return self.argv("prefill", "-m", self.model, "-f", text, "-o", out, "--commit-tokens", 128, "--allow-ram-dir", *extra)

    def answers(self, question, *source):
        """What is said of a question: a hash of all logits behind the source, and the tokens drawn."""
        asked, logits = self.folder / f"asked-{os.getpid()}", self.folder / "logits"
        asked.write_text(question)
        drawn = json.loads(self.run("run", "-m", self.model, *source, "-p", question, "-n", 8, "--json", "--allow-ram-dir").stdout)
        if source[0] == "-f":
            asked.write_text(Path(source[1]).read_text() + question)
            self.run("score", "-m", self.model, "-f", asked, "--logits", logits, "--allow-ram-dir")
        else:
            self.run("score", "-m", self.model, *source, "-f", asked, "--logits", logits, "--allow-ram-dir")
        rows = logits.read_bytes()[-len(question.encode()) // 2 * 261 * 4:]  # tokens are bytes, but for two words
        return hashlib.sha256(rows).hexdigest(), drawn["tokens"]


class Busy:
    """The other context, always under some writer's hands."""

    def __init__(self, ground, texts, out):
        self.ground, self.texts, self.out, self.child, self.n = ground, texts, out, None, 0

    def go_on(self):
        if self.child and self.child.poll() is None:
            if self.ground.draw.random() < 0.5:
                return
            self.child.send_signal(signal.SIGKILL)
        if self.child:
            self.child.wait()
        self.n += 1
        fork = self.out.with_suffix(".fork")
        fork.unlink(missing_ok=True)
        if self.n % 4 == 0:
            self.out.unlink(missing_ok=True)
        text = self.texts[self.n // 2 % 2]
        argv = self.ground.argv("fork", self.out, fork, "--allow-ram-dir") if self.n % 5 == 3 else \
            self.ground.prefill(text, self.out, "--replace")
        self.child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def end(self):
        self.child.kill()
        self.child.wait()


def in_turn(ground):
    problems = []
    texts = [ground.text(name, 12) for name in ("a", "b", "c")]
    books = [ground.folder / f"{name}.kv" for name in ("a", "b")]
    busy_book = ground.folder / "busy.kv"
    questions = [[f"The secret {'ab'[k]}{i} is" for i in range(N_SECRETS)] for k in (0, 1)]
    fresh = [[ground.answers(question, "-f", texts[k]) for question in questions[k]] for k in (0, 1)]
    for k in (0, 1):
        subprocess.run(ground.prefill(texts[k], books[k]), check=True, capture_output=True)
    before = [hashlib.sha256(book.read_bytes()).hexdigest() for book in books]
    busy = Busy(ground, texts[1:], busy_book)
    for i in range(N_SECRETS):
        for k in (0, 1):
            busy.go_on()
            if ground.answers(questions[k][i], "-c", books[k]) != fresh[k][i]:
                problems.append(f"{questions[k][i]}: another answer than of its own text")
    busy.end()
    if [hashlib.sha256(book.read_bytes()).hexdigest() for book in books] != before:
        problems.append("a question changed a file")
    if len({json.dumps(answer) for per_text in fresh for answer in per_text}) < N_SECRETS:
        problems.append("too few different answers: this shows nothing")
    report(f"two contexts of {N_SECRETS} secrets in turn, a third written {busy.n} times beside them", problems)


def beside_a_writer(ground):
    problems, seen = [], {}
    text, book = ground.folder / "a.txt", ground.folder / "grows.kv"
    ids = [int(i) for i in ground.run("tokenize", "-m", ground.model, "-f", text).stdout.split() if i.isdigit()]
    question = "The secret a3 is"
    for _ in range(8):
        book.unlink(missing_ok=True)
        child = subprocess.Popen(ground.prefill(text, book, "--read-rate", "200M"), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        while child.poll() is None:
            copy = ground.folder / "seen.kv"
            copy.unlink(missing_ok=True)
            if not book.exists():
                time.sleep(0.001)
                continue
            done = subprocess.run(ground.argv("fork", book, copy, "--allow-ram-dir"), capture_output=True)
            asked = subprocess.run(ground.argv("run", "-m", ground.model, "-c", book, "-p", question, "-n", 8, "--json",
                                               "--allow-ram-dir"), capture_output=True)
            if done.returncode == 0:
                seen[json.loads(ground.run("inspect", copy, "--json").stdout)["tokens"]] = None
            if asked.returncode == 0:
                told = json.loads(asked.stdout)
                seen[told["stored_tokens"]] = told["tokens"]
            elif b"holds no token" not in asked.stderr and b"0 tokens" not in asked.stderr and b"0 of" not in asked.stderr:
                problems.append(asked.stderr.decode(errors="replace"))
        child.wait()
    for n, tokens in seen.items():
        if tokens is None or n == 0:
            continue
        part, cut = ground.folder / "part.kv", ground.folder / "cut.kv"
        part.unlink(missing_ok=True)
        cut.unlink(missing_ok=True)
        subprocess.run(ground.prefill(text, part), check=True, capture_output=True)
        ground.run("fork", part, cut, "--at", n, "--allow-ram-dir")
        told = json.loads(ground.run("run", "-m", ground.model, "-c", cut, "-p", question, "-n", 8, "--json",
                                     "--allow-ram-dir").stdout)
        if told["tokens"] != tokens:
            problems.append(f"{n} tokens were seen beside the writer: {tokens}, of that much alone {told['tokens']}")
    if len(seen) < 2:
        problems.append(f"only {sorted(seen)} tokens were seen of {len(ids)}")
    report(f"readers beside a writer saw {sorted(seen)} tokens, and answered as that much of the text", problems)


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder, random.Random(seed))
        in_turn(ground)
        beside_a_writer(ground)
    return failed > 0


sys.exit(main())
