"""What the tests of context files share: a small seeded model with 8 KiB of keys and values a token, texts of some
thousand tokens, and the commands about them."""
import hashlib
import json
import random
import signal
import subprocess
import time
from pathlib import Path

from tiny_gguf import Tiny

WORDS = "the of and to in a is that it was for on with as his they be at one have this".split()
COMMIT_TOKENS = 512
failed = 0  # cases that report() was told of


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


class Ground:
    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        self.model = self.folder / "model.gguf"
        self.model.write_bytes(Tiny(wide=True).bytes())
        draw = random.Random(5)
        text = " ".join(draw.choice(WORDS) for _ in range(3600)).encode()
        self.doc, self.more = self.folder / "doc.txt", self.folder / "more.txt"
        self.doc.write_bytes(text[:4700])
        self.more.write_bytes(text[5200:8500])

    def argv(self, *argv):
        return [self.program, *map(str, argv)]

    def prefill(self, out, *files, commit=COMMIT_TOKENS, extra=()):
        return self.argv("prefill", "-m", self.model, "-f", *files, "-o", out, "--kv", "f16", "--commit-tokens", commit,
                         "--ram", "64M", "--json", "--allow-ram-dir", *extra)

    def run(self, argv, code=0):
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL)
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{' '.join(argv[1:])}: exit code {done.returncode}, expected {code}: "
                               f"{done.stderr.decode(errors='replace')[-400:]}")
        return done

    def ask(self, *source, ram="64M", extra=()):
        done = self.run(self.argv("run", "-m", self.model, *source, "-p", "what was that", "-n", 12, "--kv", "f16", "--ram",
                                  ram, "--json", *extra))
        return json.loads(done.stdout)


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def kill_once(argv, moment):
    """Starts the command and kills it at `moment` seconds; whether it was still running."""
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        child.wait(moment)
        return False
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.wait()
        return True


def committed(ground, path):
    if not Path(path).exists():
        return None
    done = ground.run(ground.argv("inspect", path, "--json"))
    return json.loads(done.stdout)["tokens"]


def bytes_on_disk(path):
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def watched(argv, *paths):
    """Runs it; the most that the files took on the disk together at any moment that was looked at."""
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    most = 0
    while True:
        is_over = child.poll() is not None
        most = max(most, sum(bytes_on_disk(path) for path in paths))
        if is_over:
            return most, subprocess.CompletedProcess(argv, child.returncode, *child.communicate())
        time.sleep(0.001)
