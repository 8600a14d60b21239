#!/usr/bin/env python3
"""The commands of README's section on contexts, run as they stand, one after another, with a small model and small texts.

  tests/cli/run_readme.py BUILD
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import Tiny  # noqa: E402

HEADING = "## Contexts that last\n"


def commands():
    text = Path("README.md").read_text()
    section = text[text.index(HEADING):]
    return re.search(r"```sh\n(.*?)```", section, re.S).group(1).splitlines()


def main():
    build, failed = Path(sys.argv[1]).resolve(), 0
    lines = commands()
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        environment = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}")
        book = "It was the best of times, it was the worst of times. " * 40
        for name, text in (("book.txt", book), ("notes.txt", "So he said."), ("second.txt", book[:1500] + "The end.")):
            Path(folder, name).write_text(text)
        Path(folder, "model.gguf").write_bytes(Tiny(wide=True).bytes())
        for line in lines:
            done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True,
                                  stdin=subprocess.DEVNULL)
            bad = done.returncode != 0
            failed += bad
            command = " ".join(line.split("#")[0].split())
            print(f"{'FAIL' if bad else 'PASS'} README: {command}")
            if bad:
                print(f"    exit code {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
        left = sorted(path.name for path in Path(folder).glob("*.kv*"))
    if left or len(lines) < 10:
        failed += 1
        print(f"FAIL README: {len(lines)} commands, left behind: {left}")
    return failed > 0


sys.exit(main())
