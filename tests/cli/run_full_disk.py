#!/usr/bin/env python3
"""A disk that gets full in the middle of a prefill.

  tests/cli/run_full_disk.py BUILD

On a small ext4 file system in a file: after the program has seen that there is room, another file takes it, but for one
of SLUICE_TEST_POINTS (default 4) shares of what is needed. The prefill ends with a clear error, and when the space is
back the same command goes on to the file that an undisturbed run makes. Needs the right to mount; SKIP without it.
"""
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import N_EMBD, U32, Tiny  # noqa: E402

WORDS = "the of and to in a is that it was for on with as his they be at one have this".split()


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def free_bytes(folder):
    info = os.statvfs(folder)
    return info.f_bavail * info.f_frsize


def take(path, size):
    """Takes so many bytes, or all there are."""
    with open(path, "wb") as file:
        while size > 0:
            try:
                os.posix_fallocate(file.fileno(), file.tell(), size)
                return
            except OSError:
                size -= 1 << 20


def one(argv, book, disk, leave):
    """Problems of a run that finds `leave` bytes left; whether it was stopped by them."""
    filler = disk / "filler"
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    has = 0
    while child.poll() is None and has < (2 << 20):  # it works: its checks are over
        time.sleep(0.002)
        has = book.stat().st_blocks * 512 if book.exists() else 0
    take(filler, free_bytes(disk) - max(0, leave - has))
    words = child.communicate()[1].decode(errors="replace")
    filler.unlink()
    if child.returncode == 0:
        return [], False
    if child.returncode != 1 or not re.search(r"book.kv.*No space left", words):
        return [f"{leave} bytes left: exit code {child.returncode}: {words[-300:]}"], True
    return [], True


def quarter():
    """A fourth of the wide model's heads: a file of three segments for little arithmetic. Space is taken by segments."""
    tiny = Tiny(wide=True)
    for key in ("head_count", "head_count_kv"):
        tiny.meta[f"llama.attention.{key}"] = (U32, 4)
    for name, tensor in tiny.tensors.items():
        if any(part in name for part in ("attn_q", "attn_k", "attn_v")):
            tensor[1] = [N_EMBD, 4 * 128]
        elif "attn_output" in name:
            tensor[1] = [4 * 128, N_EMBD]
    return tiny


def points(program, folder, disk):
    n = int(os.environ.get("SLUICE_TEST_POINTS", "4"))
    model, doc, plain, book = folder / "model.gguf", folder / "doc.txt", folder / "plain.kv", disk / "book.kv"
    model.write_bytes(quarter().bytes())
    draw = random.Random(5)
    doc.write_text(" ".join(draw.choice(WORDS) for _ in range(2300)))

    def argv(out):
        return [program, "prefill", "-m", model, "-f", doc, "-o", out, "--kv", "f16", "--commit-tokens", "256",
                "--ram", "64M", "--json"]

    subprocess.run(argv(plain), check=True, capture_output=True)
    wanted, need = digest(plain), plain.stat().st_blocks * 512
    problems, n_stopped = [], 0
    for i in range(n):
        book.unlink(missing_ok=True)
        found, is_stopped = one(argv(book), book, disk, need * i // n)
        n_stopped += is_stopped
        done = subprocess.run(argv(book), capture_output=True)
        if done.returncode or digest(book) != wanted:
            found.append(f"{i} of {n}: {done.stderr.decode(errors='replace')[-300:] or 'another file'}")
        if done.stdout:
            told = json.loads(done.stdout)
            if told["tokens_kept"] + told["tokens_recomputed"] != told["tokens"]:
                found.append(str(told))
        problems += found
    if n_stopped < n // 2:
        problems.append(f"only {n_stopped} of {n} runs found the disk full")
    print(f"{'FAIL' if problems else 'PASS'} a full disk, {n_stopped} times of {n}" +
          "".join(f"\n    {p}" for p in problems[:8]))
    return bool(problems)


def main():
    program = str(Path(sys.argv[1]).resolve() / "sluice")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as name:
        folder, image = Path(name), Path(name) / "image"
        disk = folder / "disk"
        disk.mkdir()
        with open(image, "wb") as file:
            file.truncate(160 << 20)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], capture_output=True)
        if made.returncode or subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True).returncode:
            print("SKIP a full disk: no file system can be mounted here")
            return False
        try:
            return points(program, folder, disk)
        finally:
            subprocess.run(["umount", disk], check=False)


sys.exit(main())
