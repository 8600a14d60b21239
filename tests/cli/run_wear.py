#!/usr/bin/env python3
"""What a prefill of the demo model writes, counted by the kernel, and what its progress line tells on a terminal.

  tests/cli/run_wear.py BUILD

Bytes written (write_bytes of the process) over 24,000 bytes of a licence: at most 1.05 times the keys and values plus 4
MiB with commits on whole segments, 1.25 times with a commit every 256 tokens. SKIP without the demo model.
"""
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
DOCUMENT, DOCUMENT_BYTES = Path("/usr/share/common-licenses/GPL-3"), 24000
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


def run_counted(argv):
    """(exit code, standard output, bytes that the kernel says it wrote)"""
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    out = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, out, used.ru_oublock * 512


def wear(program, model, document, folder):
    for name, commit, share in (("whole segments", "4096", 1.05), ("every 256 tokens", "256", 1.25)):
        book = folder / "book.kv"
        book.unlink(missing_ok=True)
        code, out, written = run_counted([program, "prefill", "-m", model, "-f", document, "-o", book, "--ram", "256M",
                                          "--commit-tokens", commit, "--commit-seconds", "100000", "--json"])
        if code != 0:
            report(f"bytes written, commits on {name}", [f"exit code {code}"])
            continue
        told = json.loads(out)
        problems = []
        most = share * told["kv_bytes"] + 4 * MIB
        if not told["kv_bytes"] <= written <= most:
            problems.append(f"{written} bytes of at most {most:.0f}")
        if abs(written - told["bytes_written"]) > MIB:
            problems.append(f"{written} bytes, it tells of {told['bytes_written']}")
        if abs(told["estimated_bytes"] / written - 1) > 0.03:
            problems.append(f"{written} bytes, {told['estimated_bytes']} were foretold")
        report(f"bytes written, commits on {name}: {written / told['kv_bytes']:.3f} x {told['kv_bytes'] / MIB:.1f} MiB",
               problems)


def on_terminal(program, model, document, folder):
    """The line that a person sees, as often as it is drawn."""
    book = folder / "terminal.kv"
    child, fd = pty.fork()
    if child == 0:
        os.execv(program, [str(word) for word in (program, "prefill", "-m", model, "-f", document, "-o", book, "--ram",
                                                  "256M", "--commit-tokens", "1024")])
    seen = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.waitpid(child, 0)
    lines = re.findall(r"prefill \[[#.]+\].*?(?=\r|$)", seen.decode(errors="replace"))
    pattern = re.compile(r"prefill \[[#.]{10}\] +\d+% (\d+)/(\d+) tokens, [\d.]+/s, ([\d.]+ s|\d+ m \d+ s) left; "
                         r"(\d+)% committed, [\d.]+ (B|KiB|MiB) written")
    matches = [found for found in map(pattern.match, lines) if found]
    problems = [] if len(matches) >= 5 else [f"{len(matches)} whole lines of {len(lines)}: {lines[-3:]}"]
    shares = [int(found.group(4)) for found in matches]
    if shares != sorted(shares) or len(set(shares)) < 3:
        problems.append(f"shares committed: {shares}")
    report("progress on a terminal: tokens/s, time left, bytes written, share committed", problems)


def main():
    program = Path(sys.argv[1]).resolve() / "sluice"
    if subprocess.run(["tools/get_model.sh", "--here"], check=False).returncode or not DOCUMENT.exists():
        print("SKIP what a prefill writes: the demo model or the licence is not here")
        return False
    model = subprocess.run(["tools/get_model.sh"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as name:
        folder = Path(name)
        document = folder / "document.txt"
        document.write_bytes(DOCUMENT.read_bytes()[:DOCUMENT_BYTES])
        wear(program, model, document, folder)
        document.write_bytes(DOCUMENT.read_bytes()[:DOCUMENT_BYTES // 3])
        on_terminal(program, model, document, folder)
    return failed > 0


sys.exit(main())
