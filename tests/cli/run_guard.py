#!/usr/bin/env python3
"""What a context file may do to whoever handles it: its length, its rights, its unfinished replacement; an answer that
nobody could be shown.

  tests/cli/run_guard.py BUILD

Prints PASS or FAIL for each case; exit code 1 if one failed.
"""
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import context_ground  # noqa: E402
from context_ground import Ground, digest, kill_once, report  # noqa: E402


def sparse(ground, book):
    """A length alone is worth no memory and no time."""
    problems = []
    for size in (8 << 40, 20 << 30):
        long = ground.folder / "long.kv"
        shutil.copy(book, long)
        try:
            os.truncate(long, size)
        except OSError:
            long.unlink()
            continue
        for argv in (["inspect", long], ["run", "-m", ground.model, "-c", long, "-p", "x", "-n", 1, "--ram", "64M"]):
            start = time.monotonic()
            done = ground.run(ground.argv(*argv), code=None)
            if done.returncode != 4 or b"cut off" not in done.stderr or time.monotonic() - start > 20:
                problems.append(f"{size} bytes, {argv[0]}: {done.returncode}, {done.stderr.decode()[-200:]}")
        long.unlink()
    report("a finished file made long", problems)


def tail(ground):
    """What an unfinished file has behind its last commit means nothing."""
    problems, part, state = [], ground.folder / "part.kv", {"tokens": 0, "finished": True}
    for i in range(1, 200):
        part.unlink(missing_ok=True)
        kill_once(ground.prefill(part, ground.doc, ground.more, commit=64), 0.01 * i)
        state = json.loads(ground.run(ground.argv("inspect", part, "--json")).stdout) if part.exists() else state
        if state["tokens"] > 0:
            break
    if state["tokens"] == 0 or state["finished"]:
        print("SKIP no unfinished file was caught", flush=True)
        return
    os.truncate(part, 20 << 30)
    now = json.loads(ground.run(ground.argv("inspect", part, "--json")).stdout)
    asked = ground.run(ground.argv("run", "-m", ground.model, "-c", part, "-p", "x", "-n", 1, "--ram", "64M"), code=None)
    if now["tokens"] != state["tokens"] or asked.returncode != 0:
        problems.append(f"{state['tokens']} tokens, now {now['tokens']}: {asked.stderr.decode()[-200:]}")
    part.unlink()
    report("an unfinished file made long", problems)


def rights(ground, book):
    problems = []
    copy, fork = ground.folder / "private.kv", ground.folder / "fork.kv"
    shutil.copy(book, copy)
    copy.chmod(0o600)
    ground.run(ground.argv("fork", copy, fork, "--allow-ram-dir"))
    ground.run(ground.prefill(copy, ground.more, extra=("--replace",)))
    for path in (copy, fork):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode != 0o600:
            problems.append(f"{path.name}: mode {mode:o}, expected 600")
    fork.unlink()
    copy.unlink()
    report("a private context's copies are private", problems)


def wiped(ground, book):
    problems = []
    copy = ground.folder / "gone.kv"
    beside = ground.folder / "gone.kv.new"
    shutil.copy(book, copy)
    shutil.copy(book, beside)
    with open(beside, "rb") as kept:
        done = ground.run(ground.argv("rm", "--wipe", copy))
        if any(kept.read()):
            problems.append("the replacement's bytes are still there")
    if copy.exists() or beside.exists() or b"gone.kv.new" not in done.stderr:
        problems.append(f"{copy.exists()}, {beside.exists()}: {done.stderr.decode()}")
    report("rm --wipe and the unfinished replacement", problems)


def unshown(ground, book):
    problems = []
    if not os.path.exists("/dev/full"):
        return
    before = digest(book)
    argv = ground.argv("run", "-m", ground.model, "-c", book, "-p", "what was that", "-n", 8, "--append", "--ram", "64M")
    for argv in (argv, ground.argv("export-text", "-m", ground.model, book)):
        with open("/dev/full", "w") as full:
            done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        if done.returncode != 1 or b"cannot write to standard output" not in done.stderr or digest(book) != before:
            problems.append(f"{argv[1]}: {done.returncode}, {done.stderr.decode()[-200:]}")
    report("what cannot be shown: not appended, no interruption", problems)


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR")) as folder:
        ground = Ground(str(Path(sys.argv[1]) / "sluice"), folder)
        book = ground.folder / "book.kv"
        ground.run(ground.prefill(book, ground.doc))
        sparse(ground, book)
        tail(ground)
        rights(ground, book)
        wiped(ground, book)
        unshown(ground, book)
    return 1 if context_ground.failed else 0


if __name__ == "__main__":
    sys.exit(main())
