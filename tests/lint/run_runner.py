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
# Each waits for the other's mark, a second at most.
MEET = "cd \"$(dirname \"$0\")\"; touch mark_{mine}; for i in 1 2 3 4 5 6 7 8 9 10; do [ -e mark_{other} ] || sleep 0.1; done; " \
       "[ -e mark_{other} ] || exit 1\n"
BUSY = "cd \"$(dirname \"$0\")\"; touch test_queue.mark test_ioprobe.mark; sleep 0.5; rm test_queue.mark test_ioprobe.mark\n"
CASES = [  # name, programs (bodies, or by name), last line, exit code
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
    ("two run side by side", [MEET.format(mine=0, other=1) + OK, MEET.format(mine=1, other=0) + OK],
     "2 passed, 0 failed, 0 skipped", 0),
    ("what measures time runs by itself", [BUSY + OK, {"test_queue": "[ ! -e \"$0.mark\" ] || exit 1\n" + OK},
                                           {"test_ioprobe": "[ ! -e \"$0.mark\" ] || exit 1\n" + OK}],
     "3 passed, 0 failed, 0 skipped", 0),
    ("what is left out is not run", [OK, BAD], "1 passed, 0 failed, 0 skipped", 0, "-unit/test_1"),
    ("a name that leaves out nothing is refused", [OK], "", 1, "-unit/test_1"),
]


def main():
    failed = 0
    for name, programs, last_line, code, *words in CASES:
        with tempfile.TemporaryDirectory() as build:
            folder = Path(build, "tests", "unit")
            folder.mkdir(parents=True)
            for i, body in enumerate(programs):
                named, = body.items() if isinstance(body, dict) else ((f"test_{i}", body),)
                program, body = folder / named[0], named[1]
                program.write_text("#!/bin/sh\n" + body)
                program.chmod(0o755)
            done = subprocess.run([sys.executable, "tools/run_tests.py", build, "unit", *words], capture_output=True, text=True,
                                  env=dict(os.environ, SLUICE_TEST_TIMEOUT="2", SLUICE_TEST_JOBS="2"))
        found = done.stdout.rstrip("\n").split("\n")[-1]
        if (found, done.returncode) == (last_line, code):
            print(f"PASS runner: {name}")
        else:
            failed += 1
            print(f"FAIL runner: {name}: '{found}', exit code {done.returncode}; expected '{last_line}', {code}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
