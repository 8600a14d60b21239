#!/usr/bin/env python3
"""Faults that a real kernel makes, and what the program does about each: the text as ever, or one named error.

  tests/cli/run_faults.py BUILD [WORD]      WORD: only the cases with it in their name

File systems of many kinds on loop devices, full, read-only, shut down, cut short; refused system calls; limits of
memory, threads and cores. After each: the exit code, the last line, no result of a failed run, nothing left in the
folder, nothing hung. What needs root or a tool that is not there is skipped with the reason. docs/faults.md lists them.
Prints PASS, FAIL or SKIP for each case. SLUICE_TEST_SEED repeats the random places.
"""
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from fault_cases import CASES, same  # noqa: E402
from kernel_ways import Missing  # noqa: E402
from streamed import Ground, report, results, run, skip  # noqa: E402


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    program = Path(build, "sluice").resolve()
    if not program.is_file():
        print(f"FAIL faults: {program} is not there")
        return 1
    seed = int(os.environ.get("SLUICE_TEST_SEED", time.time_ns() & 0xffffffff))
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="sluice_faults_", dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(program, folder, n_tokens=700)
        ground.seed = seed
        report("without a fault", same(ground, run(ground.json()), mode=None))
        if results["failed"]:
            return 1
        for name, function in CASES:
            if word not in name:
                continue
            started = time.monotonic()
            try:
                report(name, function(ground))
            except Missing as missing:
                skip(name, missing)
            except Exception as error:  # of the test itself: the other cases still run
                report(name, [f"{type(error).__name__}: {error}"])
            if "SLUICE_TEST_TIMES" in os.environ:
                print(f"     {time.monotonic() - started:.2f} s")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
