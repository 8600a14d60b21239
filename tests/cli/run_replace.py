#!/usr/bin/env python3
"""Another text in a context file's place: sluice prefill --replace.

  tests/cli/run_replace.py BUILD

The texts share a segment and a bit; the second file takes over the segment and is made beside the first, which stays
as it is until the second takes its name. Kills at random moments, SLUICE_TEST_KILLS of them (default 6), each followed by
the same command until it is through: never a file that is neither the old text's nor the new one's.
"""
import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import context_ground  # noqa: E402
from context_ground import Ground, committed, digest, kill_once, report, watched  # noqa: E402

SEGMENT = 4096


class Stage(Ground):
    """An old context file `old` (not to be touched: copy it), a new text and `new`, what a prefill of it makes."""
    def __init__(self, program, folder):
        super().__init__(program, folder)
        both = self.doc.read_bytes() + self.more.read_bytes()
        self.text, self.third = self.folder / "new.txt", self.folder / "third.txt"
        self.text.write_bytes(both[:4700] + b" Here it says something else. " + both[:1500])
        self.third.write_bytes(both[:3000] + b" And a third end.")
        self.old, self.new = self.folder / "old.kv", self.folder / "new.kv"
        self.run(self.prefill(self.old, self.doc, self.more))
        began = time.monotonic()
        self.told = json.loads(self.run(self.prefill(self.new, self.text)).stdout)
        self.whole_s = time.monotonic() - began
        self.book = self.folder / "book.kv"
        self.beside = self.folder / "book.kv.new"

    def fresh(self):
        self.beside.unlink(missing_ok=True)
        with open(self.book, "wb") as file:
            file.write(self.old.read_bytes())
            file.flush()
            os.fsync(file.fileno())  # what it takes on the disk is settled

    def replace(self, text, *extra):
        return self.prefill(self.book, text, extra=("--replace", *extra))


def at_once(stage):
    problems = []
    stage.fresh()
    told = json.loads(stage.run(stage.replace(stage.text)).stdout)
    if digest(stage.book) != digest(stage.new) or stage.beside.exists():
        problems.append("not the file that a prefill of the new text makes, or the second one is still there")
    if told["tokens_taken_over"] != SEGMENT or told["tokens_kept"] != SEGMENT or \
            told["tokens_recomputed"] != told["tokens"] - SEGMENT:
        problems.append(f"a segment is shared: {told}")
    if told["shared_bytes"] + told["copied_bytes"] != SEGMENT * told["kv_bytes"] // told["tokens"]:
        problems.append(f"bytes of a segment: {told}")
    again = stage.run(stage.replace(stage.text))
    if json.loads(again.stdout)["tokens_recomputed"] != 0 or b"already" not in again.stderr:
        problems.append(again.stderr.decode())
    report("--replace: the file that a prefill makes, a segment taken over", problems)
    problems = []
    # fewer tokens of the same text; a text that shares nothing; more tokens of the same text (nothing to replace)
    less, other = stage.folder / "less.txt", stage.folder / "other.txt"
    less.write_bytes(stage.doc.read_bytes()[:3000])
    other.write_bytes(b"Nothing of that. " + stage.doc.read_bytes()[:1000])
    for name, files, kept in (("fewer tokens", [less], 0), ("another text", [other], 0)):
        stage.fresh()
        told = json.loads(stage.run(stage.replace(files[0])).stdout)
        plain = stage.folder / "plain.kv"
        plain.unlink(missing_ok=True)
        stage.run(stage.prefill(plain, *files))
        if digest(stage.book) != digest(plain) or told["tokens_kept"] != kept:
            problems.append(f"{name}: {told}")
    told = json.loads(stage.run(stage.prefill(stage.book, other, stage.more, extra=("--replace",))).stdout)
    if told["tokens_kept"] == 0 or stage.beside.exists():
        problems.append(f"an extension: {told}")
    report("--replace: fewer tokens, another text, an extension", problems)


def by_kills(stage, draw, n_kills):
    problems, n_alive, n_named, n_beside = [], 0, 0, 0
    old, wanted = digest(stage.old), digest(stage.new)
    while n_alive < n_kills and not problems:
        stage.fresh()
        for _ in range(draw.randint(1, 4)):
            n_alive += kill_once(stage.replace(stage.text), draw.uniform(0.0, stage.whole_s))
            now = digest(stage.book)
            n_named += now == wanted
            n_beside += stage.beside.exists()
            if now not in (old, wanted):
                problems.append("after a kill the file is neither the old one nor the new one")
            for path in (stage.book, stage.beside):
                checked = stage.run(stage.argv("verify", path), code=None) if path.exists() else None
                if checked and checked.returncode != 0:
                    problems.append(f"verify after a kill: {checked.stdout.decode()} {checked.stderr.decode()}")
        before = committed(stage, stage.beside) or 0
        done = stage.run(stage.replace(stage.text))
        told = json.loads(done.stdout)
        if told["tokens_kept"] + told["tokens_recomputed"] != told["tokens"] or told["tokens_kept"] < before:
            problems.append(f"{before} tokens were committed beside: {told}")
        if digest(stage.book) != wanted or stage.beside.exists():
            problems.append("the file differs from the one made in one go, or the second one is still there")
    if n_beside == 0:
        problems.append("no kill left a second file")
    report(f"--replace: {n_alive} kills, {n_beside} with a second file", problems)


def refusals(stage):
    problems = []
    stage.fresh()
    child = subprocess.Popen(stage.replace(stage.text), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             stdin=subprocess.DEVNULL)
    while not (committed(stage, stage.beside) or 0) and child.poll() is None:
        time.sleep(0.001)
    child.send_signal(signal.SIGSTOP)
    is_running = child.poll() is None
    for name, argv in (("the first file", stage.prefill(stage.book, stage.doc, stage.more, stage.third)),
                       ("the second file", stage.prefill(stage.beside, stage.text)),
                       ("the same command", stage.replace(stage.text))):
        done = stage.run(argv, code=None)
        if is_running and (done.returncode != 3 or b"another process is writing it" not in done.stderr):
            problems.append(f"{name} is not locked: {done.returncode} {done.stderr.decode()}")
    asked = stage.ask("-c", stage.book)  # as old or as new: valid
    child.kill()
    child.wait()
    if not is_running:
        problems.append("the run was over before it was looked at")
    if len(asked["tokens"]) == 0:
        problems.append(f"a question beside the writer: {asked}")
    # a second file with yet another text
    n = committed(stage, stage.beside)
    done = stage.run(stage.replace(stage.third), code=None)
    if n and (done.returncode != 3 or not all(word in done.stderr for word in (b"book.kv.new holds another text", b"begun by"))):
        problems.append(f"a third text: {done.returncode} {done.stderr.decode()}")
    if digest(stage.book) != digest(stage.old):
        problems.append("the old file is not as it was")
    report("--replace: locks on both files, a third text is refused", problems)


def name_goes_elsewhere(stage):
    """Another process has the lock and gives the name to another file: who waited for it takes the file with the name."""
    problems = []
    stage.fresh()
    other = stage.folder / "other-name.kv"
    other.write_bytes(stage.new.read_bytes())
    with open(stage.book, "r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        child = subprocess.Popen(stage.prefill(stage.book, stage.text), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 stdin=subprocess.DEVNULL)
        began = time.monotonic()
        while os.path.realpath(stage.book) not in opened(child.pid) and time.monotonic() < began + 20:
            time.sleep(0.001)
        os.replace(other, stage.book)
    words = child.communicate()[1]
    if child.returncode != 0 or b"holds this text already" not in words:
        problems.append(f"exit code {child.returncode}: {words.decode()}")
    report("a name that goes to another file while its lock is waited for", problems)


def opened(pid):
    try:
        return [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def disk(stage):
    problems = []
    stage.fresh()
    both = stage.book.stat().st_blocks * 512 + stage.told["disk_bytes"]
    done = stage.run(stage.replace(stage.text, "--max-disk", both - 1), code=3)
    if b"--max-disk" not in done.stderr or stage.beside.exists():
        problems.append(done.stderr.decode())
    seen, done = watched(stage.replace(stage.text, "--max-disk", both), stage.book, stage.beside)
    if done.returncode or seen > both or digest(stage.book) != digest(stage.new):
        problems.append(f"{seen} bytes of {both}: {done.stderr.decode()}")
    report("--replace: --max-disk counts both files", problems)


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        stage = Stage(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        at_once(stage)
        refusals(stage)
        disk(stage)
        name_goes_elsewhere(stage)
        by_kills(stage, random.Random(seed), int(os.environ.get("SLUICE_TEST_KILLS", "6")))
    return context_ground.failed > 0


sys.exit(main())
