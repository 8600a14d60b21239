#!/usr/bin/env python3
"""A question about a context file on a disk that has no byte left.

  tests/cli/run_full_reader.py BUILD

The file and the folder for the cache are on a small ext4 file system that is full (mounted from a file: SKIP without that
right). Where the answer's own tokens fit the memory, run -c answers as ever and writes nothing; in a budget that needs
the disk it says so before any work. Prints PASS or FAIL for each case.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import context_ground  # noqa: E402
from context_ground import Ground, digest, report  # noqa: E402


def fill(path):
    """Takes all the space there is, by blocks and then by bytes."""
    with open(path, "wb", buffering=0) as file:
        for step in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"\1" * step) == step:
                    pass
            except OSError:
                pass


def cases(ground, disk):
    book, problems = disk / "book.kv", []
    ground.run(ground.prefill(book, ground.doc))
    wanted, before = ground.ask("-c", book, "--kv-dir", disk), digest(book)
    fill(disk / "filler")
    free = os.statvfs(disk).f_bavail
    found = ground.ask("-c", book)  # beside it, another disk for the cache: not needed either
    told = ground.ask("-c", book, "--kv-dir", disk)
    if free or told["text"] != wanted["text"] or found["text"] != wanted["text"]:
        problems.append(f"{free} blocks free: {told['text']!r}, with room {wanted['text']!r}")
    if told["bytes_written"]:
        problems.append(f"{told['bytes_written']} bytes written")
    report("run -c on a full disk", problems)
    problems = []
    done = ground.run(ground.argv("run", "-m", ground.model, "-c", book, "-p", "what was that", "-n", 3000, "--kv", "f16",
                                  "--ram", "40M", "--kv-dir", disk, "--window", 64), code=None)
    if done.returncode != 3 or "are free, the cache needs" not in done.stderr.decode():
        problems.append(f"exit code {done.returncode}: {done.stderr.decode()[-300:]}")
    if digest(book) != before:
        problems.append("the context file is another")
    report("run -c that needs a full disk", problems)


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        image, disk = ground.folder / "image", ground.folder / "disk"
        disk.mkdir()
        with open(image, "wb") as file:
            file.truncate(160 << 20)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], capture_output=True)
        if made.returncode or subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True).returncode:
            print("SKIP a reader on a full disk: no file system can be mounted here")
            return False
        try:
            cases(ground, disk)
        finally:
            subprocess.run(["umount", disk], check=False)
    return context_ground.failed > 0


sys.exit(main())
