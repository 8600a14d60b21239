#!/usr/bin/env python3
"""The demo model under budgets from the least that works to one that holds everything, seen from outside.

  tests/cli/run_budget.py BUILD      SLUICE_DEMO_MODEL names the model; without it everything is skipped

For every way (budget, ring, threads, window, KV type, reading engine): the same logits, bit for bit over the whole vocabulary; the
peak resident set (VmHWM, from wait4) at most --ram; what the kernel says was read from the disk (read_bytes of
/proc/PID/io, or wait4's blocks, the model being in the page cache) between 1.0 and 1.1 times the flash-stored bytes that the passes
walked; what was written at most 1.05 times the cache. Prints PASS, FAIL or SKIP for each case.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from kernel_ways import has_io_uring  # noqa: E402

TEXT_BYTES = 5200  # more than a part of tokens of the licence
LICENCE = Path("/usr/share/common-licenses/GPL-3")
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems), flush=True)


def watch(argv):
    """Runs argv; its standard output, exit code, peak resident bytes, bytes read from and written to the disk."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(argv, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # still a zombie: root can read its counters
        try:
            io = dict(line.split(": ") for line in Path(f"/proc/{child.pid}/io").read_text().splitlines())
        except PermissionError:
            io = None
        _, status, usage = os.wait4(child.pid, 0)
        if io is None:  # the same counters in blocks of 512 bytes
            io = {"read_bytes": usage.ru_inblock * 512, "write_bytes": usage.ru_oublock * 512}
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return {"out": out.read(), "err": err.read().decode(errors="replace"), "code": child.returncode,
                "peak": usage.ru_maxrss * 1024, "read": int(io["read_bytes"]), "written": int(io["write_bytes"])}


def least_budget(argv):
    """The least that holds all weights (with less they stream: run_weights.py)."""
    done = watch(argv + ["--ram", "106M", "--verbose"])
    found = re.search(r"all stay from (\d+)M on", done["err"])
    return int(found.group(1)) << 20 if done["code"] == 0 and found else None


def hash_pipe(path, out):
    """Reads a named pipe to its end."""
    digest = hashlib.blake2b()
    with open(path, "rb") as pipe:
        while block := pipe.read(1 << 20):
            digest.update(block)
    out.append(digest.hexdigest())


def reading(done, walked, written_at_most):
    """What is wrong with what the kernel counted."""
    problems = []
    if walked and not 1.0 <= done["read"] / walked <= 1.1:
        problems.append(f"read {done['read']} from the disk, {walked} bytes were to be walked")
    if done["written"] > written_at_most:
        problems.append(f"wrote {done['written']} bytes, at most {written_at_most} expected")
    return problems


def score_ways(program, model, text):
    # Each way of reading flash in turn
    ways = [["--io", "uring" if has_io_uring() else "auto"], ["--io", "pool"], ["--io", "buffered"]]
    for kv, more in (("q8_0", 30), ("f16", 40)):
        pipe = text + ".logits"
        base = [program, "score", "-m", model, "-f", text, "--top", "2", "--json", "--kv", kv, "--verbose"]
        least = least_budget(base + ["--window", "64"])
        report(f"{kv}: a budget too small for all weights is told with the least that is not", [] if least else ["no figure"])
        if not least:
            continue
        want = None
        mib = 1 << 20
        budgets = [(least + 400 * mib, ["--threads", "1"]),
                   (least, ["--window", "64", "--threads", "2"] + ways[0]),
                   (least + more // 2 * mib, ["--threads", "2"]),
                   (least + 4 * mib, ["--threads", "7"] + ways[1]),
                   (least + 10 * mib, ["--window", "512", "--ring", "2M", "--threads", "3"] + ways[2])]
        for ram, options in budgets if kv == "q8_0" else budgets[:3]:
            os.mkfifo(pipe)
            got = []
            reader = threading.Thread(target=hash_pipe, args=(pipe, got), daemon=True)
            reader.start()
            done = watch(base + ["--ram", str(ram), "--logits", pipe] + options)
            reader.join(20)
            os.unlink(pipe)
            got.append(hashlib.sha256(done["out"]).hexdigest())
            want = want or got
            problems = [] if done["code"] == 0 else [f"exit code {done['code']}: {done['err'][-300:]}"]
            if got != want:
                problems.append("the logits differ from those of the largest budget")
            if done["peak"] > ram:
                problems.append(f"peak {done['peak']} bytes of {ram}")
            walked = re.search(r"(\d+) bytes walked", done["err"])
            walked = int(walked.group(1)) if walked else 0
            problems += reading(done, walked, 40 << 20)
            if not walked and ram < least + 3 * mib:
                problems.append("nothing was read back from flash under the least budget")
            report(f"{kv}: score, {ram / mib:.1f} MiB {' '.join(options)} ({walked / 1e6:.0f} MB walked)", problems)


def run_ways(program, model, text):
    base = [program, "run", "-m", model, "-f", text, "-p", "Who published this license?", "--chat", "-n", "12",
            "--json", "--threads", "2"]
    least = least_budget(base + ["--window", "64"])
    want = None
    for ram, options in ((least + (400 << 20), []), (least, ["--window", "64"]), (least + (9 << 20), []),
                         (least + (9 << 20), ["--draft", "0"]), (least + (17 << 20), ["--draft", "63"])):
        done = watch(base + ["--ram", str(ram)] + options)
        name = f"run, {ram / (1 << 20):.1f} MiB {' '.join(options)}"
        if done["code"] != 0:
            report(name, [f"exit code {done['code']}: {done['err'][-300:]}"])
            continue
        told = json.loads(done["out"])
        want = want or told["tokens"]
        problems = []
        if told["tokens"] != want:
            problems.append(f"tokens {told['tokens']}, expected {want}")
        if done["peak"] > ram or told["peak_rss_bytes"] > ram:
            problems.append(f"peak {done['peak']}, told {told['peak_rss_bytes']}, of {ram}")
        problems += reading(done, told["bytes_visited"], 1.05 * told["kv_bytes"] + (1 << 20))
        if told["io_mode"] == "direct" and told["page_cache_growth_bytes"] > 1 << 20:
            problems.append(f"the page cache grew by {told['page_cache_growth_bytes']}")
        report(name + f" ({told['bytes_visited'] / 1e6:.0f} MB walked, {done['read'] / 1e6:.0f} MB read)", problems)


def main():
    program = str(Path(sys.argv[1]) / "sluice")
    model = os.environ.get("SLUICE_DEMO_MODEL", "")
    if not Path(model).is_file() or not LICENCE.is_file():
        print("SKIP budgets: no demo model or no licence text on this machine")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.write_bytes(LICENCE.read_bytes()[:TEXT_BYTES])
        # Into the page cache, so that what is read from the disk is the context's; by another process, because a child
        # starts with its parent's peak.
        subprocess.run(["cat", model], stdout=subprocess.DEVNULL, check=True)
        score_ways(program, model, str(text))
        run_ways(program, model, str(text))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
