#!/usr/bin/env python3
"""What a streaming run takes and leaves, watched from outside.

  tests/cli/run_cycles.py BUILD

kill -9 at thirty random moments leaves no file; the disk is written once (write_bytes of /proc/PID/io); the page cache
does not grow; what a pass reads falls smoothly to nothing as --ram rises. SLUICE_TEST_LONG=1 adds the demo model
(SLUICE_DEMO_MODEL) and a long bench, each in a memory cgroup of 512 MiB without swap. Prints PASS, FAIL or SKIP for
each case. SLUICE_TEST_SEED repeats the random moments.
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

sys.path.insert(0, str(Path(__file__).parent))
from kernel_ways import Missing, memory_group  # noqa: E402
from streamed import MIB, Child, Ground, Streamed, cached_bytes, litter, report, results, run, skip  # noqa: E402

LICENCE = Path("/usr/share/common-licenses/GPL-3")
N_KILLS = 30


def kills(ground, draw):
    """Half of the moments are drawn from the start on, half from when the cache lies on flash."""
    problems, n_with_cache, n_alive = [], 0, 0
    for i in range(N_KILLS):
        with Child(ground.argv(predict=4000)) as child:
            if i % 2:
                child.wait_for(lambda: child.cache(ground.kv_dir))
            time.sleep(draw.uniform(0, 0.3 if i % 2 else 0.12))
            n_alive += child.process.poll() is None
            n_with_cache += child.cache(ground.kv_dir) is not None
            child.process.kill()
            child.process.wait()
        problems += [f"kill {i}: {text}" for text in litter(ground.kv_dir)]
    if n_alive < N_KILLS or n_with_cache < N_KILLS // 2:
        problems.append(f"{n_alive} were running, {n_with_cache} had their cache on flash")
    report(f"kill -9 at {N_KILLS} random moments leaves no file ({n_with_cache} with the cache on flash)", problems)


def cancelled(ground):
    """At 4 KiB a second the next read is sixteen seconds away: what waits for it still hears the signal."""
    problems = []
    for number in (signal.SIGINT, signal.SIGTERM):
        with Child(ground.json("--read-rate", "4K")) as child:
            if not child.wait_for(lambda: child.cache(ground.kv_dir)):
                problems.append(f"{number.name}: it ended before its cache lay on flash")
                continue
            time.sleep(1)
            start = time.monotonic()
            child.process.send_signal(number)
            done = child.end(20)
            took = time.monotonic() - start
        if done.code != 130 or took > 2:
            problems.append(f"{number.name}: ended after {took:.1f} s: {done}")
        elif done.out.count(b"\n") != 1 or json.loads(done.out)["finish_reason"] != "cancelled":
            problems.append(f"{number.name}: {done.out[:300]}")
    report("Ctrl-C and SIGTERM end a run that waits for flash", problems + litter(ground.kv_dir))


def written_once(ground):
    done = run(ground.json())
    told = json.loads(done.out) if done.code == 0 else {}
    most = 1.05 * told.get("kv_bytes", 0)
    # All but the budget's share, the tails and what is drawn at the end goes to the disk
    least = 0.75 * told.get("kv_bytes", 1)
    problems = [] if told and least <= done.disk_written <= most else \
        [f"{done.disk_written} bytes written to the disk, expected {least:.0f} to {most:.0f}: {done}"]
    if told and abs(told["bytes_written"] - done.disk_written) > 0.02 * most:
        problems.append(f"told {told['bytes_written']} bytes written, the kernel counted {done.disk_written}")
    report("a prefill writes the disk at most 1.05 times the cache's size", problems)


def page_cache(ground):
    """The cache file's pages, counted while it runs; direct ways have none, the buffered one few."""
    want = None
    for way in ("auto", "uring", "pool", "buffered"):
        name = f"the page cache does not grow by what is streamed, --io {way}"
        most, n_looks, n_known = 0, 0, 0
        with Child(ground.json("--io", way, predict=24)) as child:
            def look():
                nonlocal most, n_looks, n_known
                path = child.cache(ground.kv_dir)
                try:
                    cached = cached_bytes(path) if path else None
                except OSError:
                    return False
                n_looks += path is not None
                if cached is not None:
                    most, n_known = max(most, cached), n_known + 1
                return False
            child.wait_for(look)
            done = child.end()
        if way == "uring" and done.code == 3 and "io_uring cannot be had" in done.err:
            skip(name, "no io_uring here")
            continue
        if n_looks and not n_known:
            skip(name, "the kernel has no cachestat")
            continue
        told = json.loads(done.out) if done.code == 0 else None
        want = want or told
        problems = [] if told else [f"{done}"]
        if told and told["io_mode"] != ("buffered" if way == "buffered" else "direct"):
            problems.append(f"I/O mode {told['io_mode']}")
        if told and told["tokens"] != want["tokens"]:
            problems.append(f"tokens {told['tokens']}, expected {want['tokens']}")
        if told and told["bytes_read"] < 10 * ground.cache_bytes():
            problems.append(f"only {told['bytes_read']} bytes were streamed")
        if n_looks < 10 or most > (8 * MIB if way == "buffered" else 0):
            problems.append(f"up to {most} bytes in the page cache, seen {n_looks} times")
        report(name, problems)


def pass_bytes(ground, ram):
    """Bytes that a pass over the whole context takes from flash: what two runs walked, their difference. What the disk
    gave is as much, but for the ring's read-ahead into a pass that never came. A chosen part joins the resident ones
    when a pass next reads it, one pass sooner or later: a little noise."""
    ring, told = 2 * Streamed.PART_BYTES, []
    for n in (3, 15):
        done = run(ground.json("--ring", str(ring), ram=ram, predict=n))
        if done.code != 0:
            raise RuntimeError(f"{done}")
        told.append(json.loads(done.out))
        walked = told[-1]["bytes_visited"]
        if not walked <= done.disk_read <= walked + ring + MIB:
            raise RuntimeError(f"{done.disk_read} bytes came from the disk, {walked} were walked")
    return (told[1]["bytes_visited"] - told[0]["bytes_visited"]) // (told[1]["passes"] - told[0]["passes"])


def resident_curve(ground):
    """What a pass reads falls by as much as the budget rises, give or take a part, down to nothing."""
    problems, curve = [], []
    step, noise = Streamed.PART_BYTES * 5 // 4, Streamed.PART_BYTES // 4
    whole = ground.n_tokens * Streamed.TOKEN_BYTES
    ram = ground.least
    while ram < ground.least + whole + 2 * step and not problems and curve[-1:] != [0]:
        try:
            read = pass_bytes(ground, ram)
        except RuntimeError as error:
            problems.append(error)
            break
        curve.append(read)
        if len(curve) > 1 and not -noise <= curve[-2] - read <= step + Streamed.PART_BYTES + noise:
            problems.append("a step too large, or up")
        if read > max(0, whole - (ram - ground.least) + Streamed.PART_BYTES + noise):
            problems.append(f"{read:.0f} bytes a pass with {ram - ground.least} above the least")
        ram += step
    if not problems and (curve[0] < 0.8 * whole or curve[-1] != 0):
        problems.append("it does not start near the cache's size and end with nothing read")
    shown = " ".join(f"{read / 1e6:.2f}" for read in curve)
    report(f"what a pass reads falls smoothly with --ram: {shown} MB", [f"{p}: {shown}" for p in problems])


def grouped(name, argv, most_bytes, folder, check):
    """A run in a memory cgroup of most_bytes: done in it, with under 32 MiB of page cache at any time."""
    try:
        with memory_group(f"sluice_test_{os.getpid()}", most_bytes) as group:
            most = 0
            with Child(argv, group.join, dict(os.environ, SLUICE_KV_DIR=str(folder))) as child:
                def look():
                    nonlocal most
                    most = max(most, group.page_cache())
                    time.sleep(0.005)
                    return False
                child.wait_for(look, 1000)
                done = child.end()
            problems = check(done) if done.code == 0 else [f"{done}"]
            if group.kills() or most > 32 * MIB:
                problems.append(f"{group.kills()} killed, page cache up to {most}")
            report(f"{name} (page cache up to {most / MIB:.1f} MiB)", problems + litter(folder))
    except Missing as missing:
        skip(name, missing)


def bench(ground, tokens):
    name = f"bench burst, {tokens} tokens, in 512 MiB"
    argv = [ground.program, "bench", "burst", "--shape", "m4", "--tokens", tokens, "--rows", "8", "--kv", "q8_0",
            "--json"]
    if subprocess.run([ground.program, "bench", "--help"], capture_output=True).returncode != 0:
        skip(name, "this program has no bench")
        return

    def check(done):
        row = json.loads(done.out)
        row = row[0] if isinstance(row, list) else row.get("rows", [row])[0] if isinstance(row.get("rows"), list) else row
        return [] if 0 < row["peak_rss_bytes"] < 400 * MIB else [f"peak {row['peak_rss_bytes']}"]
    grouped(name, argv, 512 * MIB, ground.kv_dir, check)


def long_demo(ground):
    name = "the demo model over a whole licence, in 512 MiB"
    model = os.environ.get("SLUICE_DEMO_MODEL", "")
    if not Path(model).is_file() or not LICENCE.is_file():
        skip(name, "no demo model or no licence text on this machine")
        return
    run(["cat", model])

    def check(done):
        told = json.loads(done.out)
        return [] if told["peak_rss_bytes"] <= 160 * MIB and done.disk_written <= 1.05 * told["kv_bytes"] else \
            [f"peak {told['peak_rss_bytes']}, written {done.disk_written}, cache {told['kv_bytes']}"]
    grouped(name, [ground.program, "run", "-m", model, "-f", str(LICENCE), "-p", "Who published this license?", "--chat",
                   "-n", "12", "--json", "--ram", "160M"], 512 * MIB, ground.kv_dir, check)


def main():
    program = Path(sys.argv[1] if len(sys.argv) > 1 else "build", "sluice").resolve()
    if not program.is_file():
        print(f"FAIL cycles: {program} is not there")
        return 1
    seed = int(os.environ.get("SLUICE_TEST_SEED", time.time_ns() & 0xffffffff))
    print(f"seed {seed}")
    is_long = os.environ.get("SLUICE_TEST_LONG", "0") not in ("", "0")
    scratch = os.environ.get("SLUICE_TEST_DIR", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="sluice_cycles_", dir=scratch) as folder:
        ground = Ground(program, folder, n_tokens=1100)
        kills(ground, random.Random(seed))
        cancelled(ground)
        written_once(ground)
        page_cache(ground)
        resident_curve(ground)
        bench(ground, "1M" if is_long else "16K")
        if is_long:
            long_demo(ground)
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
