#!/usr/bin/env python3
"""run -c --append from outside: tests/cli/run_append.py BUILD [kills]      kills: only those

A question and its answer become part of a context file in one commit. Killed at random moments, stopped by Ctrl-C,
short of space: the file holds what it held, or all of it, and the next append makes of it what it would have made anyway,
byte for byte. SLUICE_TEST_KILLS kills (default 8); SLUICE_TEST_SEED repeats them. Prints PASS or FAIL for each case.
"""
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import Tiny  # noqa: E402

FIRST, SECOND = "what was that?", "and this?"  # one token a byte
N_PREDICT = 60
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class Ground:
    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        self.model = self.folder / "model.gguf"
        self.model.write_bytes(Tiny(wide=True).bytes())
        draw = random.Random(7)
        self.text = "".join(draw.choice("aeiou lmnrs.") for _ in range(9000))
        self.made = {}  # books by length and options: each is made once

    def argv(self, *argv):
        return [self.program, *map(str, argv)]

    def run(self, argv, code=0, **extra):
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, **extra)
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{' '.join(argv[1:])}: exit code {done.returncode}, expected {code}: "
                               f"{done.stderr.decode(errors='replace')[-400:]}")
        return done

    def book(self, name, n_tokens, *extra):
        """A context file of so many tokens, and of the template's with --chat."""
        doc, out = self.folder / "doc.txt", self.folder / name
        doc.write_text(self.text[:n_tokens])
        out.unlink(missing_ok=True)
        kept = self.made.setdefault((n_tokens, *extra), self.folder / f"made-{len(self.made)}.kv")
        if not kept.exists():
            self.run(self.argv("prefill", "-m", self.model, "-f", doc, "-o", kept, "--kv", "f16", "--ram", "64M",
                               "--allow-ram-dir", *extra))
        shutil.copyfile(kept, out)
        return out

    def ask(self, book, question, *extra, n=N_PREDICT, ram="64M"):
        return self.argv("run", "-m", self.model, "-c", book, "-p", question, "-n", n, "--ram", ram, "--json",
                         "--allow-ram-dir", *extra)

    def append(self, book, question, *extra, **ways):
        return self.ask(book, question, "--append", *extra, **ways)

    def tokens(self, book):
        told = json.loads(self.run(self.argv("inspect", book, "--json")).stdout)
        return told["tokens"], told["finished"]

    def text_of(self, book):
        return self.run(self.argv("export-text", "-m", self.model, book)).stdout


def copy_of(book, name):
    other = book.parent / name
    shutil.copyfile(book, other)
    return other


def grows(ground):
    """From all kinds of ends: in a tile, at a part's edge, a few tokens before and at the end of a segment."""
    for n_tokens in (1000, 1024, 2111, 4090, 4096):
        problems = []
        book = ground.book("book.kv", n_tokens)
        asked = json.loads(ground.run(ground.ask(book, FIRST)).stdout)
        before = ground.text_of(book)
        told = json.loads(ground.run(ground.append(book, FIRST)).stdout)
        n_more = told["prompt_tokens"] + len(told["tokens"])
        if told["tokens"] != asked["tokens"]:
            problems.append(f"appending changes the answer: {told['tokens']}, else {asked['tokens']}")
        if told["appended_tokens"] != n_more or ground.tokens(book) != (n_tokens + n_more, True):
            problems.append(f"{n_tokens} tokens and {n_more}: {told}, {ground.tokens(book)}")
        if ground.text_of(book) != before + f"\n\n{FIRST}".encode() + told["text"].encode(errors="surrogateescape"):
            problems.append("the text is not document, question and answer")
        checked = ground.run(ground.argv("verify", book), code=None)
        if checked.returncode:
            problems.append(f"verify: {checked.stdout.decode()}")
        # streamed through a small ring or held in memory: the same file
        again = ground.book("again.kv", n_tokens)
        told = json.loads(ground.run(ground.append(again, FIRST, "--threads", 1, "--draft", 0, ram="400M")).stdout)
        if digest(again) != digest(book):
            problems.append("another budget, other drafts: another file")
        if told["peak_rss_bytes"] > 400 << 20:
            problems.append(f"peak {told['peak_rss_bytes']}")
        told = json.loads(ground.run(ground.append(book, SECOND)).stdout)
        if (told["stored_tokens"] != n_tokens + n_more or
                ground.tokens(book)[0] != told["stored_tokens"] + told["appended_tokens"]):
            problems.append(f"a second one: {told}")
        report(f"append to {n_tokens} tokens", problems)


def holds_its_budget(ground):
    problems = []
    book = ground.book("book.kv", 6000)
    refused = ground.run(ground.append(book, FIRST, "--draft", 63, ram="12M"), code=3).stderr.decode()
    least = re.search(r"(\d+)M would do", refused)
    if not least:
        problems.append(refused)
    for ram in [f"{int(least.group(1))}M"] if least else []:
        told = json.loads(ground.run(ground.append(book, FIRST, "--draft", 63, ram=ram)).stdout)
        if told["peak_rss_bytes"] > int(ram[:-1]) << 20 or told["bytes_read"] == 0:
            problems.append(f"{ram}: peak {told['peak_rss_bytes']}, read {told['bytes_read']}")
    report("append within the least memory", problems)


def chat(ground):
    problems = []
    book = ground.book("chat.kv", 300, "--chat")
    first = json.loads(ground.run(ground.append(book, FIRST, "--chat", n=20)).stdout)
    text = ground.run(ground.argv("export-text", "-m", ground.model, "--special", book)).stdout
    if f"\n\n{FIRST}<|im_end|>\n<|im_start|>assistant\n".encode() not in text:
        problems.append(f"the text ends {text[-200:]!r}")
    if first["finish_reason"] == "stop" and not text.endswith(b"<|im_end|>"):
        problems.append("the end token of the answer is not there")
    second = json.loads(ground.run(ground.ask(book, SECOND, "--chat", n=20)).stdout)
    if second["stored_tokens"] != ground.tokens(book)[0]:
        problems.append(f"{second}")
    report("append to a chat context, which is then asked again", problems)


def kill_at(argv, moment):
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        child.wait(moment)
        return False
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.wait()
        return True


def kills(ground, draw, n_kills):
    """n_tokens: before the end of a segment, so that an append goes over it."""
    n_tokens, problems, n_alive, n_unfinished, n_through = 4050, [], 0, 0, 0
    book = ground.book("book.kv", n_tokens)
    once, twice = copy_of(book, "once.kv"), copy_of(book, "twice.kv")
    begun = time.monotonic()
    ground.run(ground.append(once, FIRST))
    whole_s = time.monotonic() - begun
    n_once = ground.tokens(once)[0]
    ground.run(ground.append(twice, FIRST))
    ground.run(ground.append(twice, SECOND))
    old_answer = json.loads(ground.run(ground.ask(book, SECOND)).stdout)["tokens"]
    while n_alive < n_kills and not problems:
        torn = copy_of(book, "torn.kv")
        for _ in range(draw.randint(1, 3)):
            n_alive += kill_at(ground.append(torn, FIRST), draw.uniform(0.0, whole_s))
            n_now, is_finished = ground.tokens(torn)
            n_unfinished += not is_finished
            checked = ground.run(ground.argv("verify", torn), code=None)
            if checked.returncode:
                problems.append(f"verify after a kill: {checked.stdout.decode()} {checked.stderr.decode()}")
            if n_now not in (n_tokens, n_once):
                problems.append(f"{n_now} tokens: neither {n_tokens} nor {n_once}")
            if n_now != n_tokens:
                break
            told = json.loads(ground.run(ground.ask(torn, SECOND)).stdout)
            if told["tokens"] != old_answer:
                problems.append(f"the file answers {told['tokens']}, before {old_answer}")
        n_through += n_now == n_once
        if n_now == n_tokens and draw.randrange(2):
            # the same prefill goes on: nothing is missing but the end
            ground.run(ground.argv("prefill", "-m", ground.model, "-f", ground.folder / "doc.txt", "-o", torn, "--kv", "f16",
                                   "--ram", "64M", "--allow-ram-dir"))
            if digest(torn) != digest(book):
                problems.append("prefill does not bring the file back")
        if n_now == n_tokens:
            ground.run(ground.append(torn, FIRST))
            if digest(torn) != digest(once):
                problems.append("appended again, the file is not the one that was never killed")
        ground.run(ground.append(torn, SECOND))
        if digest(torn) != digest(twice):
            problems.append("with one more question, the file is not the one that was never killed")
    if n_alive >= 100 and n_unfinished < n_alive // 2:
        problems.append(f"only {n_unfinished} of {n_alive} kills fell between its first commit and its last")
    report(f"kill -9 while appending: {n_alive} kills, {n_unfinished} left it unfinished, {n_through} came too late, "
           f"{whole_s:.2f} s in one go", problems)


def wait_for_text(child):
    """The answer has begun: it goes to stderr with --json."""
    return child.stderr.read(1)


def interrupted(ground):
    problems = []
    book = ground.book("book.kv", 2000)
    before = digest(book)
    argv = ground.append(book, FIRST, "--draft", 0, n=6000)
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    wait_for_text(child)
    # In the middle of an answer: nobody else may write, anybody may read what was there.
    child.send_signal(signal.SIGSTOP)
    second = ground.run(ground.append(book, SECOND), code=None)
    if second.returncode != 3 or b"book.kv" not in second.stderr:
        problems.append(f"a second writer: {second.returncode}, {second.stderr.decode()[-300:]}")
    reader = ground.run(ground.ask(book, SECOND), code=None)
    if reader.returncode or json.loads(reader.stdout)["stored_tokens"] != 2000:
        problems.append(f"a reader beside it: {reader.returncode}, {reader.stderr.decode()[-300:]}")
    child.send_signal(signal.SIGCONT)
    child.send_signal(signal.SIGINT)
    out, words = child.communicate()
    told = json.loads(out)
    if child.returncode != 130 or told["finish_reason"] != "cancelled" or not 0 < len(told["tokens"]) < 6000:
        problems.append(f"Ctrl-C: {child.returncode}, {told}, {words.decode()[-300:]}")
    n_more = told["prompt_tokens"] + len(told["tokens"])
    if told["appended_tokens"] != n_more or ground.tokens(book) != (2000 + n_more, True):
        problems.append(f"{n_more} tokens to be appended: {told['appended_tokens']}, {ground.tokens(book)}")
    report("Ctrl-C during an answer appends what was answered; one writer, readers beside it", problems)
    problems = []
    book = ground.book("book.kv", 2000)
    argv = ground.append(book, ground.text[:6500], n=5)
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    time.sleep(0.4)
    child.send_signal(signal.SIGINT)
    out, words = child.communicate()
    if child.returncode == 0:
        print("SKIP Ctrl-C during the question: it was through", flush=True)
        return
    if child.returncode != 130 or digest(book) != before:
        problems.append(f"{child.returncode}, {words.decode()[-400:]}; the file is as it was: {digest(book) == before}")
    report("Ctrl-C during the question: the file is as it was", problems)


def no_room(ground):
    """The file may not grow: at the latest when it is committed, the append fails."""
    problems = []
    for n_tokens, most in ((4090, 0), (4000, 1)):
        book = ground.book("book.kv", n_tokens)
        before, size = digest(book), book.stat().st_size - most * (1 << 20)

        def limit(size=size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        done = ground.run(ground.append(book, FIRST), code=None, preexec_fn=limit)
        words = done.stderr.decode()
        if done.returncode != 1 or "book.kv" not in words or "as it was" not in words and most == 0:
            problems.append(f"{n_tokens} tokens, {size} bytes: exit code {done.returncode}: {words[-400:]}")
        if ground.tokens(book)[0] != n_tokens or (most == 0 and digest(book) != before):
            problems.append(f"{n_tokens} tokens: {ground.tokens(book)} are there; as it was: {digest(book) == before}")
        ground.run(ground.append(book, FIRST))
    report("no room for what is appended", problems)


def refusals(ground):
    book = ground.book("book.kv", 100)
    chat_book = ground.book("chat.kv", 100, "--chat")
    before = digest(book)
    cases = [
        ("no context", ground.argv("run", "-m", ground.model, "-p", "x", "--append"), 2, "--append needs"),
        ("with a document", ground.argv("run", "-m", ground.model, "-f", ground.folder / "doc.txt", "-p", "x", "--append"), 2,
         "--append needs"),
        ("a context as the document", ground.argv("run", "-m", ground.model, "-f", book, "-p", "x"), 2, "give it with -c"),
        ("a context as the text", ground.argv("score", "-m", ground.model, "-f", book), 2, "give it with -c"),
        ("no such file", ground.append(ground.folder / "none.kv", "x"), 1, "none.kv"),
        ("not a context", ground.append(ground.model, "x"), 4, "model.gguf"),
        ("chat without --chat", ground.append(chat_book, "x"), 3, "--chat"),
        ("trace over the context", ground.append(book, "x", "--trace", book), 2, "same file"),
        ("too little memory", ground.append(book, "x", ram="1M"), 3, "budget|memory"),
        ("more than the model was trained for", ground.append(book, ground.text * 2), 3, "trained"),
    ]
    for name, argv, code, pattern in cases:
        done = ground.run(argv, code=None)
        problems = []
        if done.returncode != code or not re.search(pattern, done.stderr.decode(errors="replace")):
            problems.append(f"exit code {done.returncode}, expected {code}: {done.stderr.decode(errors='replace')[-300:]}")
        if digest(book) != before:
            problems.append("the context file changed")
        report(f"refused: {name}", problems)


def scores(ground):
    """Behind a file a text is as likely as in one piece with it."""
    problems = []
    n, more = 1500, ground.text[1500:1900]
    book = ground.book("book.kv", n)
    before = digest(book)
    whole, rest = ground.folder / "whole.txt", ground.folder / "rest.txt"
    whole.write_text(ground.text[:n] + more)
    rest.write_text(more)
    logits = [ground.folder / "whole.f32", ground.folder / "rest.f32"]
    one = json.loads(ground.run(ground.argv("score", "-m", ground.model, "-f", whole, "--kv", "f16", "--json", "--logits",
                                            logits[0], "--allow-ram-dir")).stdout)
    two = json.loads(ground.run(ground.argv("score", "-m", ground.model, "-c", book, "-f", rest, "--json", "--logits",
                                            logits[1], "--allow-ram-dir")).stdout)
    if one["positions"][n - 1:] != two["positions"]:
        problems.append(f"{len(one['positions'])} positions in one piece, {len(two['positions'])} behind the file, others")
    tail = logits[1].read_bytes()
    if logits[0].read_bytes()[-len(tail):] != tail or not tail:
        problems.append("the logits differ")
    if digest(book) != before:
        problems.append("the file changed")
    report("score -c: the rest of a text is as likely as in one piece", problems)


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        for case in (grows, holds_its_budget, chat, scores, refusals, interrupted, no_room):
            if sys.argv[2:] != ["kills"]:
                case(ground)
        kills(ground, random.Random(seed), int(os.environ.get("SLUICE_TEST_KILLS", "8")))
    return failed > 0


sys.exit(main())
