#!/usr/bin/env python3
"""Runs test programs and counts single tests.

  tools/run_tests.py BUILD [FOLDER|FOLDER/PROGRAM|-FOLDER/PROGRAM...]        with -: not that one

Programs: every BUILD/tests/<folder>/test_*, and the scripts tests/<folder>/run_*.py of lint, golden and cli. Two ways to
report are read: cmocka's "[       OK ] name" lines, and "PASS name", "FAIL name: why", "SKIP name: why".
A program that crashes, hangs past its time, exits non-zero without a failed test, or runs no test at all adds
one failure. The last line is "N passed, N failed, N skipped"; the exit code is non-zero when a test failed or
none ran.

SLUICE_TEST_JOBS programs (default: one for each processor, two at most) run side by side, those that measure time by
themselves after the others. Each result is printed when it is there.
"""
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

FOLDERS = ["lint", "unit", "check", "prop", "golden", "fault", "crash", "fuzz", "cli"]
SCRIPT_FOLDERS = ["lint", "golden", "cli"]
# What measures time would find the machine busy with its neighbour.
ALONE = {"unit/test_ioprobe", "unit/test_queue", "cli/run_bench"}
TIMEOUT_S = int(os.environ.get("SLUICE_TEST_TIMEOUT", "300"))
JOBS = int(os.environ.get("SLUICE_TEST_JOBS", "0")) or min(2, os.cpu_count() or 1)
CMOCKA = re.compile(r"\[ *(OK|FAILED|SKIPPED|RUN) *\] (\S.*?)\s*$")
PLAIN = re.compile(r"(PASS|FAIL|SKIP) (\S.*)$")
MEANING = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped",
           "PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


def count(text):
    """(numbers, names of the skipped) of the single tests in a program's output. cmocka repeats the names of failed
    tests after each group: only the test that is running can be counted, and once."""
    found = {"passed": 0, "failed": 0, "skipped": 0}
    skips = []
    running = None
    for line in text.splitlines():
        match = CMOCKA.search(line)
        if match:
            word, name = match.groups()
            if word == "RUN":
                running = name
            elif name == running:
                found[MEANING[word]] += 1
                running = None
                skips += [name] if word == "SKIPPED" else []
            continue
        match = PLAIN.match(line)
        if match:
            found[MEANING[match.group(1)]] += 1
            skips += [match.group(2)] if match.group(1) == "SKIP" else []
    return found, skips


def commands(build, folders):
    """(name, argv) of each program, in their order."""
    for folder in folders:
        if "/" in folder:
            yield folder, [str(Path(build, "tests", folder))]
            continue
        if folder in SCRIPT_FOLDERS:
            for script in sorted(Path("tests", folder).glob("run_*.py")):
                yield f"{folder}/{script.stem}", [sys.executable, str(script), build]
        for program in sorted(Path(build, "tests", folder).glob("test_*")):
            if program.is_file() and os.access(program, os.X_OK):
                yield f"{folder}/{program.name}", [str(program)]


class Running:
    """The programs that run now; none is started once they have been ended."""

    def __init__(self):
        self.lock, self.processes, self.is_over = threading.Lock(), set(), False

    def start(self, argv):
        with self.lock:
            if self.is_over:
                return None
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="STDOUT"), start_new_session=True)
            self.processes.add(process)
            return process

    def forget(self, process):
        with self.lock:
            self.processes.discard(process)

    def end(self):
        with self.lock:
            self.is_over = True
            for process in self.processes:
                os.killpg(process.pid, signal.SIGKILL)


def run(running, argv):
    """(output, how it ended badly or None, seconds). The program gets its own process group, ended as one on a hang."""
    started = time.monotonic()
    process = running.start(argv)
    if not process:
        return "", "not run", 0.0
    bad = None
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        bad = f"no end after {TIMEOUT_S} s"
    running.forget(process)
    if bad is None and process.returncode < 0:
        bad = f"killed by {signal.Signals(-process.returncode).name}"
    elif bad is None and process.returncode > 0:
        bad = f"exit code {process.returncode}"
    return output.decode("utf-8", "replace"), bad, time.monotonic() - started


def judge(name, output, bad, seconds):
    """Prints a program's result; its numbers."""
    found, skips = count(output)
    if bad and (not found["failed"] or not bad.startswith("exit code")):
        found["failed"] += 1
        output += f"\n{name}: {bad}\n"
    elif sum(found.values()) == 0:
        found["failed"] += 1
        output += f"\n{name}: ran no test\n"
    if found["failed"]:
        print(output, flush=True)
    for skip in skips:
        print(f"       skipped: {skip}")
    print(f"{'FAILED' if found['failed'] else 'ok':6} {name:32} {found['passed']} passed, {found['failed']} "
          f"failed, {found['skipped']} skipped  {seconds:.1f} s", flush=True)
    return found


def results(programs, running):
    """(name, output, how it ended badly, seconds) of each program, as they end."""
    for jobs, chosen in ((JOBS, [p for p in programs if p[0] not in ALONE]), (1, [p for p in programs if p[0] in ALONE])):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            waiting = {pool.submit(run, running, argv): name for name, argv in chosen}
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield waiting[done], *done.result()
            except BaseException:  # Ctrl-C among them: the pool waits for what runs
                running.end()
                raise


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = sys.argv[1]
    left_out = {word[1:] for word in sys.argv[2:] if word.startswith("-")}
    folders = [word for word in sys.argv[2:] if not word.startswith("-")] or FOLDERS
    for folder in [*folders, *left_out]:
        if folder.split("/")[0] not in FOLDERS:
            sys.exit(f"run_tests: unknown folder {folder!r}: {' '.join(FOLDERS)}")
    total = {"passed": 0, "failed": 0, "skipped": 0}
    # The last folders hold the long ones: begun first, they leave no processor without work at the end.
    programs = list(commands(build, sorted(folders, key=lambda f: -FOLDERS.index(f.split("/")[0]))))
    unknown = left_out - {name for name, _ in programs}
    if unknown:
        sys.exit(f"run_tests: nothing of that name to leave out: {' '.join(sorted(unknown))}")
    programs = [program for program in programs if program[0] not in left_out]
    for result in results(programs, Running()):
        found = judge(*result)
        for word in total:
            total[word] += found[word]
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or total["passed"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
