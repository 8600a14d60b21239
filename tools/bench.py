#!/usr/bin/env python3
"""Runs `sluice bench` and keeps what it measured.

  tools/bench.py BUILD quick|full|mmap [OUT.csv]
  tools/bench.py BUILD kernel [OUT.csv [OPTION..]]

quick: 64K tokens, a file of 256 MiB. full: the published table, 128K and 1M tokens, a file of 4 GiB, five rounds.
mmap: a pass over a mapped file against a streamed one, both inside a memory cgroup of 512 MiB (needs the right to make
one). kernel: kernels beside the machine's peaks and, where one is found or SLUICE_PEER names it, a ggml library.
SLUICE_KV_DIR says where the caches go. OUT defaults to bench/<machine>.csv: one line a figure, with the command
that repeats it; ratios are of medians of one run.
"""
import csv
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 512 << 20
SPREADS = (("end_to_end_s", "end_to_end_min_s", "end_to_end_max_s"), ("compute_s", "compute_min_s", "compute_max_s"),
           ("read_s", "read_min_s", "read_max_s"))
SINGLES = ("wait_s", "floor_disk_s", "floor_compute_s", "read_gb_per_s", "verified_rows_per_s", "peak_rss_bytes",
           "bytes_read", "bytes_written", "published_end_to_end_s")


def first(pattern, text, default):
    found = re.search(pattern, text, re.M)
    return found.group(1).strip() if found else default


def machine(folder):
    """What a reader needs to place a figure; no name of a host, no path."""
    cpu = first(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), platform.machine())
    memory = int(first(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), "0")) / (1 << 20)
    mounts = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    real = os.path.realpath(folder)
    inside = [(m[0].split()[4], m[1].split()[0]) for m in mounts
              if real == m[0].split()[4] or real.startswith(m[0].split()[4].rstrip("/") + "/")]
    return {"cpu": cpu, "processors": os.cpu_count(), "memory": f"{memory:.0f} GiB",
            "system": f"{platform.system()} {first(r'^([0-9]+[.][0-9]+)', platform.release(), platform.release())}",
            "file system": max(inside, key=lambda pair: len(pair[0]), default=("", "unknown"))[1],
            "user": "root" if os.geteuid() == 0 else "ordinary", "date": time.strftime("%Y-%m-%d")}


def run(program, words, prepare=None):
    """The JSON rows of one command; None when it failed, which is told."""
    print("sluice bench " + " ".join(words), file=sys.stderr, flush=True)
    done = subprocess.run([program, "bench", *words, "--json"], stdout=subprocess.PIPE, text=True, preexec_fn=prepare)
    if done.returncode == 130:
        sys.exit(130)
    if done.returncode != 0:
        print(f"  failed with exit code {done.returncode}", file=sys.stderr)
        return None
    return [json.loads(line) for line in done.stdout.splitlines()]


def lines_of(words, rows):
    command = "sluice bench " + " ".join(words)
    for row in rows or []:
        for reader in row.get("readers", []):
            if reader["gb_per_s"] is not None:
                yield [command, reader["name"], "GB/s", reader["gb_per_s"], reader["min_gb_per_s"],
                       reader["max_gb_per_s"]]
                yield [command, reader["name"], "share of fio", reader["share_of_fio"], None, None]
        if "readers" in row:
            continue
        what = f"{row['mode']} {row['context_tokens']} tokens {row['kv_type']} {row['rows']} rows {row['ram_bytes']} ram"
        for spread in SPREADS:
            yield [command, what, spread[0], *(row[key] for key in spread)]
        for key in SINGLES:
            yield [command, what, key, row[key], None, None]
        slower = max(row["read_s"], row["compute_s"])
        if slower > 0:
            yield [command, what, "end to end / max(read, compute)", row["end_to_end_s"] / slower, None, None]


def kernel_lines(words, rows):
    """The peer's figures behind ours: a case with two peers is one case."""
    shown = ["FOLDER" if before == "--peer" else word for before, word in zip(["", *words], words)]
    command, done = "sluice bench " + " ".join(shown), set()
    for row in rows or []:
        shape = {"attention": f"{row['heads']}/{row['kv_heads']} heads of {row['head_dim']}, {row['keys']} keys, "
                              f"{row['rows']} rows",
                 "projection": f"{row['n_out']} x {row['n_in']}, {row['rows']} rows"}.get(row["group"], "")
        what = " ".join(filter(None, (row["name"], row["type"], row["level"], shape, f"{row['threads']} threads")))
        if row["group"] == "peak":
            yield [command, what, "1e9 a second", row["share"], row["min_share"], row["max_share"]]
            continue
        if what not in done:
            done.add(what)
            yield [command, what, "seconds", row["seconds"], row["min_s"], row["max_s"]]
            yield [command, what, f"share of {row['bound']}", row["share"], row["min_share"], row["max_share"]]
            yield [command, what, "share of memory read", row["memory_share"], None, None]
            yield [command, what, f"{row['compute_bound']} peak", row["compute_peak_gops"], None, None]
            yield [command, what, "memory peak GB/s", row["memory_peak_gb_per_s"], None, None]
        peer = f"{row['peer']}: {row['peer_way']}"
        yield [command, what, f"seconds of {peer}", row["peer_s"], row["peer_min_s"], row["peer_max_s"]]
        yield [command, what, f"ratio to {peer}", row["ratio"], row["min_ratio"], row["max_ratio"]]


def work(mode):
    streamed = ["--resident", "0", "--ram", "384M"]
    if mode == "quick":
        yield ["flash", "--file-size", "256M", "--repeat", "5"]
        for rows in ("1", "8", "64"):
            yield ["burst", "--tokens", "64K", "--rows", rows, *streamed, "--repeat", "5"]
        yield ["prefill", "--tokens", "4K", "--ram", "384M", "--resident", "0", "--repeat", "3"]
        yield ["burst", "--tokens", "64K", "--rows", "1", "--ram-sweep", "5", "--repeat", "3"]
        return
    yield ["flash", "--file-size", "4G", "--repeat", "5"]
    for tokens in ("128K", "1M"):
        for rows in ("1", "2", "8", "64"):
            yield ["burst", "--tokens", tokens, "--rows", rows, *streamed, "--repeat", "5"]
    yield ["burst", "--tokens", "256K", "--rows", "1", "--ram-sweep", "9", "--repeat", "5"]
    yield ["burst", "--table"]


def make_group():
    """The folder of a fresh memory cgroup with the limit and no swap, version 2 or 1."""
    two, one = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
    controllers = two / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text():
        group, limits = two / f"sluice-bench-{os.getpid()}", (("memory.max", LIMIT), ("memory.swap.max", 0))
    elif one.is_dir():
        group = one / f"sluice-bench-{os.getpid()}"
        limits = (("memory.limit_in_bytes", LIMIT), ("memory.swappiness", 0))
    else:
        raise OSError("no memory cgroup on this system")
    group.mkdir()
    try:
        for name, value in limits:
            if (group / name).exists():
                (group / name).write_text(str(value))
    except OSError:
        group.rmdir()
        raise
    return group


def mapped_against_streamed(program, tokens):
    """Lines of the comparison: the same kernels and tiles, mapped and streamed, 512 MiB for program and page cache."""
    try:
        group = make_group()
    except OSError as problem:
        print(f"mmap against the stream: skipped, no memory cgroup can be made ({problem})", file=sys.stderr)
        return

    def join():
        (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        for rows in ("1", "64"):
            base = ["burst", "--tokens", tokens, "--rows", rows, "--ram", "384M", "--resident", "0", "--repeat", "3"]
            ours, theirs = run(program, base, join), run(program, [*base, "--mmap"], join)
            if not ours or not theirs:
                continue
            yield from lines_of(base, ours)
            times = [row[0]["end_to_end_s"] for row in (ours, theirs)]
            what = f"{tokens} tokens, {rows} rows, cgroup of 512 MiB"
            yield ["sluice bench " + " ".join([*base, "--mmap"]), what, "mmap end_to_end_s", times[1],
                   theirs[0]["end_to_end_min_s"], theirs[0]["end_to_end_max_s"]]
            yield ["tools/bench.sh BUILD mmap", what, "mmap / stream", times[1] / times[0], None, None]
            print(f"{what}: mmap {times[1]:.3f} s, stream {times[0]:.3f} s, ratio {times[1] / times[0]:.2f}", flush=True)
    finally:
        group.rmdir()


def write(path, about, lines):
    with open(path, "w", newline="") as file:
        for key, value in about.items():
            file.write(f"# {key}: {value}\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["command", "what", "quantity", "median", "min", "max"])
        for line in lines:
            if line[3] is None:  # a figure that this row does not have
                continue
            table.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in line])
            file.flush()


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in ("quick", "full", "mmap", "kernel"):
        print(__doc__, file=sys.stderr)
        return 2
    program, mode = str(Path(sys.argv[1], "sluice").resolve()), sys.argv[2]
    folder = os.environ.get("SLUICE_KV_DIR") or "/var/tmp"
    about = machine(folder)
    name = re.sub(r"[^a-z0-9]+", "-", f"{about['cpu']}-{about['processors']}".lower()).strip("-")
    suffix = {"mmap": "-mmap", "kernel": "-kernels"}.get(mode, "")
    out = sys.argv[3] if len(sys.argv) > 3 else f"bench/{name}{suffix}.csv"

    def lines():
        if mode == "kernel":
            words = ["kernel", *sys.argv[4:]]
            yield from kernel_lines(words, run(program, words))
            return
        for words in work(mode) if mode != "mmap" else []:
            yield from lines_of(words, run(program, words))
        if mode != "quick":
            yield from mapped_against_streamed(program, "256K")
    write(out, dict(about, size=mode), lines())
    print(f"{out} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
