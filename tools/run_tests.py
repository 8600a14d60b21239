#!/usr/bin/env python3
"""Runs test programs and counts single tests.

  tools/run_tests.py BUILD [FOLDER|FOLDER/PROGRAM...]

Programs: every BUILD/tests/<folder>/test_*, and the scripts tests/<folder>/run_*.py of lint, golden and cli. Two ways to
report are read: cmocka's "[       OK ] name" lines, and "PASS name", "FAIL name: why", "SKIP name: why".
A program that crashes, hangs past its time, exits non-zero without a failed test, or runs no test at all adds
one failure. The last line is "N passed, N failed, N skipped"; the exit code is non-zero when a test failed or
none ran.
"""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDERS = ["lint", "unit", "check", "prop", "golden", "fault", "crash", "fuzz", "cli"]
SCRIPT_FOLDERS = ["lint", "golden", "cli"]
TIMEOUT_S = int(os.environ.get("SLUICE_TEST_TIMEOUT", "300"))
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
    """(name, argv) of each program, in the order of FOLDERS."""
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


def run(argv):
    """(output, how it ended badly or None). The program gets its own process group, ended as one on a hang."""
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="STDOUT")
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=environment, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        bad = None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        bad = f"no end after {TIMEOUT_S} s"
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if bad is None and process.returncode < 0:
        bad = f"killed by {signal.Signals(-process.returncode).name}"
    elif bad is None and process.returncode > 0:
        bad = f"exit code {process.returncode}"
    return output.decode("utf-8", "replace"), bad


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = sys.argv[1]
    folders = sys.argv[2:] or FOLDERS
    for folder in folders:
        if folder.split("/")[0] not in FOLDERS:
            sys.exit(f"run_tests: unknown folder {folder!r}: {' '.join(FOLDERS)}")
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for name, argv in commands(build, folders):
        started = time.monotonic()
        output, bad = run(argv)
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
        for word in total:
            total[word] += found[word]
        print(f"{'FAILED' if found['failed'] else 'ok':6} {name:32} {found['passed']} passed, {found['failed']} "
              f"failed, {found['skipped']} skipped  {time.monotonic() - started:.1f} s", flush=True)
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or total["passed"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
