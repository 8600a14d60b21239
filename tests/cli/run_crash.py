#!/usr/bin/env python3
"""kill -9 at random moments of a prefill, looked at from outside.

  tests/cli/run_crash.py BUILD

A small seeded model of two layers and a text of more than three segments; the demo model and a page of text. After
each kill `verify` finds nothing wrong and what was committed before is there. A copy is then taken to its end by the same
command: it keeps all that was committed, computes the rest and nothing else, and its bytes are those of the file made in
one go. The killed process had written no more than the tokens that are committed, those of one commit's distance behind
them, and its commits (write_bytes of /proc/PID/io): so much at most is computed twice.
Some begin with nothing, most with a file that another kill has left; those go on from kill to kill. SLUICE_TEST_KILLS kills
(default 40; a fifth as many of the demo model, twenty at least); SLUICE_TEST_SEED repeats them. Prints PASS or FAIL for each case.
"""
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tools")]
import read_context  # noqa: E402
from tiny_gguf import HEAD_DIM, N_EMBD, U32, Tiny  # noqa: E402

WORDS = "the of and to in a is that it was for on with as his they be at one have this".split()
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def written_by(pid):
    """write_bytes of a process that has ended and is not yet waited for."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    lines = Path(f"/proc/{pid}/io").read_text().split("\n")
    return int(dict(line.split(": ") for line in lines if line)["write_bytes"])


class Crash:
    """One model and one text; argv(out): the command that makes the file."""

    def __init__(self, program, folder, model, doc, commit_tokens, extra):
        self.program, self.folder, self.commit_tokens = program, folder, commit_tokens
        folder.mkdir()
        self.command = [program, "prefill", "-m", model, "-f", doc, "--json", "--allow-ram-dir", *extra, "--commit-tokens"]
        self.plain, self.torn, self.copy = (folder / name for name in ("plain.kv", "torn.kv", "copy.kv"))
        told, written = self.finish(self.torn, 4096)
        begun = time.monotonic()
        self.told, plain_written = self.finish(self.plain, commit_tokens)
        self.whole_s = time.monotonic() - begun
        self.digest, self.at = digest(self.plain), read_context.Context(self.plain).at
        if digest(self.torn) != self.digest:
            raise RuntimeError("the file depends on where it was committed")
        self.token_bytes = self.told["kv_bytes"] / self.told["tokens"]
        # What a file begins and ends with, and a commit's own bytes but for its open segment's token ids.
        n_more, self.fixed_bytes, self.commit_bytes = self.told["commits"] - told["commits"], 0, 0
        self.commit_bytes = (plain_written - written - self.overhead(0, told["tokens"])) / n_more + 4096
        self.fixed_bytes = written - told["kv_bytes"] - told["commits"] * self.commit_bytes + 65536
        self.n_kills = self.n_after_commit = self.most_lost = 0
        self.left, self.problems = [], []  # files that kills have left: (tokens committed, path)

    def finish(self, path, commit_tokens=None):
        """Runs the command to its end: what it tells, and what it wrote as the kernel has it."""
        child = subprocess.Popen([*self.command, str(commit_tokens or self.commit_tokens), "-o", path],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        out, err = child.stdout.read(), child.stderr.read()  # small, both
        written = written_by(child.pid)
        if child.wait():
            raise RuntimeError(f"exit code {child.returncode}: {err.decode(errors='replace')[-400:]}")
        return json.loads(out) if out else None, written

    def committed(self, path):
        if not path.exists():
            return 0
        done = subprocess.run([self.program, "inspect", path, "--json"], capture_output=True)
        return json.loads(done.stdout)["tokens"]

    def kill_once(self, moment):
        """Whether it was still running; bytes it had written."""
        child = subprocess.Popen([*self.command, str(self.commit_tokens), "-o", self.torn], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        time.sleep(moment)
        is_alive = child.poll() is None
        if is_alive:
            child.send_signal(signal.SIGKILL)
            written = written_by(child.pid)
            is_alive = child.wait() == -signal.SIGKILL
        return is_alive, written if is_alive else 0

    def overhead(self, start, end):
        """Bytes beside those of the tokens from start to end: commits are as far apart as said, but for those of segments,
        and one more."""
        places = list(range(start + self.commit_tokens, end + self.commit_tokens + 1, self.commit_tokens))
        n_others = end // 4096 - start // 4096 + 1
        return self.fixed_bytes + self.commit_bytes * (len(places) + n_others) + sum(4 * (at % 4096) for at in places)

    def stored(self):
        """Tokens of the first layer that lie in the file, committed or not, in whole tiles."""
        data = self.torn.read_bytes()
        for segment in range((len(data) - self.at.D) // self.at.stride, -1, -1):
            first = self.at.group_off(0, segment, 0)
            block = data[first:first + self.at.block[0]].rstrip(b"\0")
            if block:
                return segment * 4096 + -(-len(block) // self.at.group[0]) * 64
        return 0

    def check(self, before, written):
        """After a kill that began with `before` tokens committed. The count now."""
        now = self.committed(self.torn)
        tokens = self.told["tokens"]
        if self.torn.exists():
            checked = subprocess.run([self.program, "verify", self.torn], capture_output=True)
            if checked.returncode:
                self.problems.append(f"verify: {checked.stdout.decode()} {checked.stderr.decode()}")
        if now < before:
            self.problems.append(f"{before} tokens were committed, {now} after a kill")
        lost = self.stored() - now if self.torn.exists() and now < tokens else 0  # else the last block is cut short
        self.most_lost = max(self.most_lost, lost)
        if lost > self.commit_tokens:
            self.problems.append(f"{now} tokens are committed, {lost} more were computed and are lost")
        if written > (now - before + self.commit_tokens) * self.token_bytes + self.overhead(before, now):
            self.problems.append(f"{written} bytes written for {now - before} tokens committed")
        self.copy.unlink(missing_ok=True)
        if self.torn.exists():
            shutil.copyfile(self.torn, self.copy)
        told, resumed = self.finish(self.copy)
        if told and (told["tokens_kept"] != now or told["tokens_recomputed"] != tokens - now):
            self.problems.append(f"{now} tokens were committed: {told}")
        if resumed > (tokens - now) * self.token_bytes + self.overhead(now, tokens):
            self.problems.append(f"{resumed} bytes written for {tokens - now} tokens that were missing, "
                                 f"{self.overhead(now, tokens):.0f} beside them were expected: {told}")
        if digest(self.copy) != self.digest:
            self.problems.append(f"resumed from {now} tokens, the file differs from the one made in one go")
        return now

    def history(self, draw, n_kills):
        """From nothing or from what a kill has left, one kill after another."""
        self.torn.unlink(missing_ok=True)
        before = 0
        if self.left and draw.random() < 0.8:
            before, path = draw.choice(self.left)
            shutil.copyfile(path, self.torn)
        while self.n_kills < n_kills and not self.problems:
            rest_s = self.whole_s * (1 - 0.8 * before / self.told["tokens"])
            is_alive, written = self.kill_once(draw.uniform(0, rest_s))
            if not is_alive:
                return
            self.n_kills += 1
            now = self.check(before, written)
            self.n_after_commit += now > 0
            if now > before:
                path = self.folder / f"left{len(self.left) % 12}.kv"
                shutil.copyfile(self.torn, path)
                self.left[len(self.left) % 12:] = [(now, path)] if len(self.left) < 12 else []
            before = now
            if draw.random() < 0.4:
                return


def kills(name, crash, draw, n_kills):
    for _ in range(20 * n_kills):
        crash.history(draw, n_kills)
        if crash.n_kills == n_kills or crash.problems:
            break
    if crash.n_kills < n_kills and not crash.problems:
        crash.problems.append(f"only {crash.n_kills} kills met a running process")
    if crash.n_after_commit < n_kills // 2:
        crash.problems.append(f"only {crash.n_after_commit} of {crash.n_kills} kills fell after a commit")
    report(f"{name}: {crash.n_kills} kills, {crash.n_after_commit} after a commit; {crash.told['tokens']} tokens, a commit every "
           f"{crash.commit_tokens}, {crash.most_lost} tokens lost at most", crash.problems)


def thin():
    """One query head of 32 dimensions: little arithmetic for a long context."""
    tiny = Tiny(layers=2)
    tiny.meta["llama.context_length"], tiny.meta["llama.attention.head_count"] = (U32, 16384), (U32, 1)
    for name, tensor in tiny.tensors.items():
        if "attn_q" in name:
            tensor[1] = [N_EMBD, HEAD_DIM]
        elif "attn_output" in name:
            tensor[1] = [HEAD_DIM, N_EMBD]
    return tiny


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    n_kills = int(os.environ.get("SLUICE_TEST_KILLS", "40"))
    print(f"seed {seed}")
    draw, program = random.Random(seed), str(Path(sys.argv[1]).resolve() / "sluice")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as name:
        folder = Path(name)
        model, doc = folder / "model.gguf", folder / "doc.txt"
        model.write_bytes(thin().bytes())
        words = random.Random(5)
        doc.write_text(" ".join(words.choice(WORDS) for _ in range(4000))[:14200])
        crash = Crash(program, folder / "tiny", model, doc, 512, ["--kv", "f16", "--ram", "48M"])
        if crash.told["tokens"] <= 3 * 4096:
            report("a text of three segments", [str(crash.told)])
        kills("kill -9 during a prefill", crash, draw, n_kills)
        demo = os.environ.get("SLUICE_DEMO_MODEL", "")
        if not Path(demo).is_file():
            print("SKIP kill -9 during a prefill of the demo model: SLUICE_DEMO_MODEL names no file")
            return failed > 0
        doc.write_text((Path(__file__).parents[2] / "README.md").read_text()[:1200])
        crash = Crash(program, folder / "demo", demo, doc, 64, [])
        kills("kill -9 during a prefill of the demo model", crash, draw, max(20, n_kills // 5))
    return failed > 0


sys.exit(main())
