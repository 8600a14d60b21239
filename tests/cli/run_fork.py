#!/usr/bin/env python3
"""sluice fork: the first tokens of a context file in a file of their own.

  tests/cli/run_fork.py BUILD [kills]          kills: only what needs a file system of its own

For several lengths the new file is byte for byte the one that prefill makes of these tokens alone; on file systems of
their own (ext4, btrfs, xfs, mounted from a file: SKIP without that right) a killed or interrupted fork leaves no name
and no space behind, and where blocks can be shared whole segments take no space again. SLUICE_TEST_KILLS kills on each
(default 8).
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import context_ground  # noqa: E402
from context_ground import Ground, committed, digest, kill_once, report  # noqa: E402


def free_bytes(folder):
    os.sync()
    info = os.statvfs(folder)
    return info.f_bavail * info.f_frsize


def sources(ground):
    """A finished file of three segments; how many tokens it has."""
    book, ground.long = ground.folder / "book.kv", ground.folder / "long.txt"
    ground.long.write_bytes(ground.doc.read_bytes() + ground.more.read_bytes() + ground.doc.read_bytes()[:1500])
    ground.run(ground.prefill(book, ground.long))
    tokens = json.loads(ground.run(ground.argv("inspect", book, "--json")).stdout)["tokens"]
    return book, tokens


def equal(ground, book, n_all):
    problems, lengths = [] if n_all > 8192 else [f"only {n_all} tokens"], []
    fork, plain, part = (ground.folder / name for name in ("fork.kv", "plain.kv", "part.txt"))
    text = ground.long.read_bytes()
    for size in (1, 40, 700, 2800, 5000, len(text)):
        fork.unlink(missing_ok=True)
        plain.unlink(missing_ok=True)
        part.write_bytes(text[:size])
        if size == len(text):
            plain.write_bytes(book.read_bytes())
        n = json.loads(ground.run(ground.prefill(plain, part)).stdout)["tokens"]
        at = [] if n == n_all else ["--at", n]
        told = json.loads(ground.run(ground.argv("fork", book, fork, *at, "--json")).stdout)
        if digest(fork) != digest(plain):
            problems.append(f"{n} tokens: another file than prefill's")
        if told["tokens"] != n or told["source_tokens"] != n_all:
            problems.append(str(told))
        lengths.append(n)
    ground.run(ground.argv("verify", fork))
    report(f"forks equal what prefill makes of {lengths} tokens", problems)


def unfinished(ground, book):
    """A source whose prefill was killed: its committed tokens."""
    problems, torn, fork, same = [], *(ground.folder / name for name in ("torn.kv", "of_torn.kv", "same.kv"))
    for moment in (0.4, 0.8, 1.6, 3.2, 6.4):
        torn.unlink(missing_ok=True)
        if not kill_once(ground.prefill(torn, ground.long), moment) or not committed(ground, torn):
            continue
        n = committed(ground, torn)
        done = ground.run(ground.argv("fork", torn, fork, "--json"))
        if f"unfinished: {n} of" not in done.stderr.decode() or json.loads(done.stdout)["tokens"] != n:
            problems.append(f"{n} tokens: {done.stderr.decode()} {done.stdout}")
        ground.run(ground.argv("fork", book, same, "--at", n))
        if digest(fork) != digest(same):
            problems.append(f"{n} committed tokens: another file than the finished one's first tokens")
        break
    else:
        problems.append("no prefill was killed after a commit")
    report("a fork of an unfinished file", problems)


def refusals(ground, book, n_all):
    problems, fork = [], ground.folder / "refused.kv"
    taken = ground.folder / "taken.kv"
    taken.write_bytes(b"mine")
    for argv, code, words in (((book, fork, "--at", 0), 3, [" 0 tokens", f"has {n_all}"]),
                              ((book, fork, "--at", n_all + 1), 3, [f" {n_all + 1} tokens", f"has {n_all}"]),
                              ((book, taken), 3, ["taken.kv", "exists"]),
                              ((book, book), 3, ["book.kv", "exists"]),
                              ((ground.folder / "none.kv", fork), 1, ["none.kv", "No such file"]),
                              ((ground.doc, fork), 4, ["doc.txt"]),
                              ((book, ground.folder / "none" / "x.kv"), 1, ["none/x.kv", "No such file"])):
        done = ground.run(ground.argv("fork", *argv), code=None)
        text = done.stderr.decode()
        if done.returncode != code or any(word not in text for word in words) or text.count("\n") != 1:
            problems.append(f"fork {' '.join(map(str, argv[1:]))}: exit code {done.returncode}, {text!r}")
        if fork.exists() or taken.read_bytes() != b"mine":
            problems.append(f"fork {argv[1:]}: left a file, or changed one")
    # where a shared copy is impossible a damaged part is found while it is copied
    damaged = ground.folder / "damaged.kv"
    data = bytearray(book.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    done = ground.run(ground.argv("fork", damaged, fork), code=None)
    if done.returncode == 0 and ground.run(ground.argv("verify", fork), code=None).returncode != 4:
        problems.append("a damaged source gave a fork in which nothing is found")
    if done.returncode not in (0, 4) or (done.returncode == 4 and fork.exists()):
        problems.append(f"a damaged source: exit code {done.returncode}, {done.stderr.decode()}")
    report("refusals and damage", problems)


def kills(ground, book, disk, kind):
    """Killed or interrupted: no name and no space is left; the same command then makes the file."""
    problems, fork = [], disk / "fork.kv"
    n_kills = int(os.environ.get("SLUICE_TEST_KILLS", "8"))
    draw = random.Random(int(os.environ.get("SLUICE_TEST_SEED", "7")))
    fork.unlink(missing_ok=True)
    begun = time.monotonic()
    ground.run(ground.argv("fork", book, fork))
    whole_s = time.monotonic() - begun
    wanted = digest(fork)
    fork.unlink()
    before, n_alive = free_bytes(disk), 0
    for i in range(n_kills):
        argv, moment = ground.argv("fork", book, fork), draw.uniform(0, whole_s)
        if i % 2:
            child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
            time.sleep(moment)
            child.send_signal(signal.SIGINT)
            said = child.communicate()[1].decode()
            is_killed = child.returncode in (130, -signal.SIGINT)
            if child.returncode == 130 and "there is no" not in said:
                problems.append(f"interrupted: {said!r}")
        else:
            is_killed = kill_once(argv, moment)
        n_alive += is_killed
        if fork.exists():
            if digest(fork) != wanted:
                problems.append("a killed fork left a file that is not whole")
            fork.unlink()
        if [p.name for p in disk.iterdir() if "fork" in p.name]:
            problems.append(f"left behind: {[p.name for p in disk.iterdir()]}")
    for _ in range(50):  # freeing may take its time
        if free_bytes(disk) >= before - (1 << 20):
            break
        time.sleep(0.1)
    if free_bytes(disk) < before - (1 << 20):
        problems.append(f"{before - free_bytes(disk)} bytes less are free")
    ground.run(ground.argv("fork", book, fork))
    if digest(fork) != wanted or n_alive == 0:
        problems.append(f"{n_alive} of {n_kills} were killed; then another file")
    fork.unlink()
    report(f"{n_alive} of {n_kills} forks killed on {kind}", problems)


def on_disk(ground, book, kind, size, shares):
    """A file system of one's own: what is left behind shows, and what is shared."""
    image, disk, problems = ground.folder / f"{kind}.image", ground.folder / kind, []
    disk.mkdir()
    with open(image, "wb") as file:
        file.truncate(size)
    maker = shutil.which(f"mkfs.{kind}", path=os.environ["PATH"] + ":/sbin:/usr/sbin")
    force = "-F" if kind == "ext4" else "-f"
    made = maker and subprocess.run([maker, "-q", force, image], capture_output=True).returncode == 0
    if not made or subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True).returncode:
        print(f"SKIP forks on {kind}: it cannot be made or mounted here")
        return
    try:
        source, fork = disk / "book.kv", disk / "fork.kv"
        source.write_bytes(book.read_bytes())
        plain_digest, before = digest(book), free_bytes(disk)
        told = json.loads(ground.run(ground.argv("fork", source, fork, "--json")).stdout)
        taken = before - free_bytes(disk)
        n_whole = told["tokens"] // 4096
        if digest(fork) != plain_digest:
            problems.append("another file")
        if shares and (told["shared_bytes"] < n_whole * 4096 * 8192 or told["copied_bytes"] > 4096 * 8192):
            problems.append(f"not shared: {told}")
        if taken > source.stat().st_size - told["shared_bytes"] + (4 << 20):
            problems.append(f"{taken} bytes are taken, of {source.stat().st_size}, {told['shared_bytes']} of them shared")
        ground.run(ground.argv("verify", fork))
        source.unlink()  # what is shared outlives the first file
        ground.run(ground.argv("verify", fork))
        fork.rename(source)
        report(f"a fork on {kind}: {taken >> 10} KiB taken of {book.stat().st_size >> 10}", problems)
        kills(ground, source, disk, kind)
    finally:
        subprocess.run(["umount", disk], check=False)


def beside_appends(ground):
    """Forks while another process appends again and again: the file's last part changes between two of a fork's reads."""
    problems, n_appends, n_forks = [], 0, 0
    source, fork, part = (ground.folder / name for name in ("grows.kv", "grown.kv", "part.txt"))
    part.write_bytes(ground.long.read_bytes()[:5000])
    ground.run(ground.prefill(source, part))
    append = ground.argv("run", "-m", ground.model, "-c", source, "-p", "and then", "-n", 4, "--append", "--json")
    child, end = None, time.monotonic() + 6
    while time.monotonic() < end or (n_appends < 3 and time.monotonic() < end + 60):
        if child is None or child.poll() is not None:
            n_appends += child is not None and child.returncode == 0
            child = subprocess.Popen(append, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     stdin=subprocess.DEVNULL)
        fork.unlink(missing_ok=True)
        done = ground.run(ground.argv("fork", source, fork), code=None)
        n_forks += 1
        if done.returncode != 0:
            problems.append(done.stderr.decode())
    child.wait()
    if n_appends == 0:
        problems.append("nothing was appended")
    report(f"{n_forks} forks beside {n_appends} appends", problems)


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        book, n_all = sources(ground)
        if sys.argv[2:] != ["kills"]:
            equal(ground, book, n_all)
            unfinished(ground, book)
            refusals(ground, book, n_all)
            beside_appends(ground)
        on_disk(ground, book, "ext4", 320 << 20, False)
        on_disk(ground, book, "btrfs", 320 << 20, True)
        on_disk(ground, book, "xfs", 400 << 20, True)
    return context_ground.failed > 0


if __name__ == "__main__":
    sys.exit(main())
