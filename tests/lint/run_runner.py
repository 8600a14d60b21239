#!/usr/bin/env python3
"""The test runner itself: what crashes, hangs, fails or runs nothing must not pass.

  tests/lint/run_runner.py BUILD       from the root of the tree
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OK = "echo '[ RUN      ] one'; echo '[       OK ] one'\n"
BAD = "echo '[ RUN      ] two'; echo '[  FAILED  ] two'\n"
SKIPPED = "echo '[ RUN      ] three'; echo '[  SKIPPED ] three'\n"
SUMMARY = "echo '[==========] 3 test(s) run.'; echo '[  FAILED  ] 1 test(s), listed below:'; echo '[  FAILED  ] two'\n"
CASES = [  # name, programs, last line, exit code
    ("passes are counted", [OK + OK.replace("one", "uno")], "2 passed, 0 failed, 0 skipped", 0),
    ("a failure is counted once", [OK + BAD + SKIPPED + SUMMARY + "exit 1\n"], "1 passed, 1 failed, 1 skipped", 1),
    ("a crash is a failure", [OK, OK + "kill -SEGV $$\n"], "2 passed, 1 failed, 0 skipped", 1),
    ("an exit code alone is a failure", [OK + "exit 3\n"], "1 passed, 1 failed, 0 skipped", 1),
    ("a hang is a failure", [OK + "sleep 60 & sleep 60\n"], "1 passed, 1 failed, 0 skipped", 1),
    ("no test in a program is a failure", [OK, "echo hello\n"], "1 passed, 1 failed, 0 skipped", 1),
    ("nothing at all is no success", [], "0 passed, 0 failed, 0 skipped", 1),
    ("only skipped tests are no success", [SKIPPED], "0 passed, 0 failed, 1 skipped", 1),
    ("a name after other output is found", ["printf 'seed 5 '; " + OK.replace("; echo '[       OK", "; printf 'x'; echo '[       OK")],
     "1 passed, 0 failed, 0 skipped", 0),
    ("a name may hold blanks", [OK.replace("one", "one avx2"), SKIPPED.replace("three", "three avx512")],
     "1 passed, 0 failed, 1 skipped", 0),
    ("plain lines are counted", ["echo 'PASS a: b'; echo 'SKIP c: d'\n"], "1 passed, 0 failed, 1 skipped", 0),
]


def main():
    failed = 0
    for name, programs, last_line, code in CASES:
        with tempfile.TemporaryDirectory() as build:
            folder = Path(build, "tests", "unit")
            folder.mkdir(parents=True)
            for i, body in enumerate(programs):
                program = folder / f"test_{i}"
                program.write_text("#!/bin/sh\n" + body)
                program.chmod(0o755)
            done = subprocess.run([sys.executable, "tools/run_tests.py", build, "unit"], capture_output=True, text=True,
                                  env=dict(os.environ, SLUICE_TEST_TIMEOUT="2"))
        found = done.stdout.rstrip("\n").split("\n")[-1]
        if (found, done.returncode) == (last_line, code):
            print(f"PASS runner: {name}")
        else:
            failed += 1
            print(f"FAIL runner: {name}: '{found}', exit code {done.returncode}; expected '{last_line}', {code}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
