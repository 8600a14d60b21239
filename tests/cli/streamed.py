"""For tests that watch the real program from outside: a small model whose cache needs flash, and a child process that
can be stopped while its cache lies there. Standard library only; Linux.
"""
import ctypes
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from tiny_gguf import F32, N_EMBD, N_FF, TYPE_F32, U32, Tiny

TIMEOUT_S = 60
MIB = 1 << 20
results = {"failed": 0}


def report(name, problems):
    """problems: a list of texts; empty: passed."""
    results["failed"] += bool(problems)
    lines = [line for problem in problems for line in str(problem).splitlines()[:12]]
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {line}" for line in lines), flush=True)


def skip(name, why):
    print(f"SKIP {name}: {why}", flush=True)


class Streamed(Tiny):
    """Eight layers of 8 KV heads of 128: 17 KiB of Q8_0 a token, parts of 2.2 MB, little arithmetic."""
    LAYERS, HEADS, HEAD_DIM = 8, 8, 128
    TOKEN_BYTES = 2 * LAYERS * HEADS * HEAD_DIM // 32 * 34
    PART_BYTES = TOKEN_BYTES // LAYERS * 1024

    def __init__(self):
        super().__init__()
        width = self.HEADS * self.HEAD_DIM
        for key, value in (("block_count", self.LAYERS), ("context_length", 8192), ("attention.head_count", self.HEADS),
                           ("attention.head_count_kv", self.HEADS), ("attention.key_length", self.HEAD_DIM),
                           ("attention.value_length", self.HEAD_DIM), ("rope.dimension_count", self.HEAD_DIM)):
            self.meta["llama." + key] = (U32, value)
        self.meta["llama.rope.freq_base"] = (F32, 10000.0)
        shapes = {"attn_norm": [N_EMBD], "attn_q": [N_EMBD, width], "attn_k": [N_EMBD, width],
                  "attn_v": [N_EMBD, width], "attn_output": [width, N_EMBD], "ffn_norm": [N_EMBD],
                  "ffn_gate": [N_EMBD, N_FF], "ffn_up": [N_EMBD, N_FF], "ffn_down": [N_FF, N_EMBD]}
        for layer in range(self.LAYERS):
            for name, dims in shapes.items():
                self.tensors[f"blk.{layer}.{name}.weight"] = [TYPE_F32, dims]

    def data(self):
        """As the parent's, from fewer random numbers: a megabyte of them takes Python a second."""
        import random
        draw = random.Random(5)
        numbers = struct.pack("<8191f", *(draw.gauss(0, 0.2) for _ in range(8191)))
        body, offsets = bytearray(), {}
        for i, (name, (_, dims)) in enumerate(self.tensors.items()):
            offsets[name] = len(body)
            n = dims[0] * (dims[1] if len(dims) > 1 else 1)
            if name.endswith("norm.weight"):
                body += struct.pack("<f", 1.0) * n
            else:
                start = 4 * (997 * i % 8191)
                body += (numbers * (n * 4 // len(numbers) + 2))[start:start + 4 * n]
            body += bytes(-len(body) % 32)
        return bytes(body), offsets


class Done:
    """How a process ended: code (negative: the signal), out, err (text), bytes read from and written to the disk."""

    def __init__(self, code, out, err, io):
        self.code, self.out, self.err = code, out, err
        self.disk_read, self.disk_written = io["read_bytes"], io["write_bytes"]
        lines = [line for line in err.split("\n") if line]
        self.last = lines[-1] if lines else ""
        self.warnings = [line for line in lines if line.startswith("sluice: warning")]

    def __str__(self):
        return f"exit code {self.code}; {self.err[-500:]}"


class Child:
    """The program running, its output in files, its cache file found through /proc."""

    def __init__(self, argv, setup=None, env=None):
        """setup: called in the child between fork and exec."""
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        preexec_fn=setup, env=env, close_fds=True)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
            self.process.send_signal(signal.SIGCONT)
            self.process.wait()
        self.out.close()
        self.err.close()

    def cache(self, folder):
        """/proc/PID/fd/N of the cache file, or None. Only one with bytes on the disk counts."""
        try:
            for entry in Path(f"/proc/{self.pid}/fd").iterdir():
                try:
                    if os.readlink(entry).startswith(str(folder) + "/") and os.stat(entry).st_blocks > 0:
                        return str(entry)
                except OSError:
                    pass
        except OSError:
            pass
        return None

    def wait_for(self, what, seconds=TIMEOUT_S):
        """Polls until what() is true; False when the process has ended before, or the time is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if what():
                return True
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return False
            time.sleep(0.002)
        return False

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def stop_with_cache(self, folder, least=1):
        """Stops it once it has written `least` bytes; the path to its cache file, None when it ended before."""
        def is_there():
            try:
                return counters(self.pid)["write_bytes"] >= least and self.cache(folder)
            except OSError:
                return False
        if not self.wait_for(is_there):
            return None
        self.stop()
        return self.cache(folder)

    def has_written(self, stream, n_bytes=1):
        """Whether so much has come out of it: stream is self.out or self.err."""
        return lambda: os.fstat(stream.fileno()).st_size >= n_bytes

    def end(self, seconds=TIMEOUT_S):
        """Waits; a process that does not end is killed, its code -999."""
        hung = not self.wait_for(lambda: os.waitid(
            os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None, seconds)
        hung = hung and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        if hung:
            self.process.kill()
            self.process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # a zombie: root can read its counters
        try:
            io = counters(self.pid)
        except OSError:
            io = None
        _, status, usage = os.wait4(self.pid, 0)
        # For others the same in blocks of 512 bytes
        io = io or {"read_bytes": usage.ru_inblock * 512, "write_bytes": usage.ru_oublock * 512}
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.out.seek(0)
        self.err.seek(0)
        text = self.err.read().decode(errors="replace") + (f"\nno end after {seconds} s" if hung else "")
        return Done(-999 if hung else self.process.returncode, self.out.read(), text, io)


def run(argv, setup=None, seconds=TIMEOUT_S, env=None):
    with Child(argv, setup, env) as child:
        return child.end(seconds)


def counters(pid):
    """/proc/PID/io as a dict; of a zombie too, for root."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {key: int(value) for key, value in (line.split(": ") for line in lines)}


def cached_bytes(path):
    """Bytes of a file in the page cache (cachestat, Linux 6.5); None where the kernel cannot tell."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY)
    try:
        every, pages = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
        if libc.syscall(ctypes.c_long(451), ctypes.c_int(fd), every, pages, ctypes.c_uint(0)) != 0:
            return None
        return pages[0] * resource.getpagesize()
    finally:
        os.close(fd)


def litter(folder):
    return [f"left in {folder}: {path.name}" for path in Path(folder).iterdir() if path.name != "lost+found"]


class Ground:
    """Program, model, text and the way to run them with little memory; a scratch folder that others may read."""

    def __init__(self, program, folder, n_tokens=1400):
        self.folder, self.n_tokens = Path(folder), n_tokens
        os.chmod(folder, 0o755)
        os.environ["XDG_CACHE_HOME"] = str(self.folder)  # no notes of the user's, none made for them
        self.program = shutil.copy(program, self.folder / "sluice")  # where an ordinary user may reach it
        self.model, self.text = str(self.folder / "streamed.gguf"), str(self.folder / "text")
        Path(self.model).write_bytes(Streamed().bytes())
        Path(self.text).write_text("".join(chr(97 + i * i % 26) for i in range(n_tokens)))
        self.kv_dir = self.new_folder("kv")
        self.least = self.find_least()
        self.want = None  # the tokens of the first run
        run(["cat", self.model])  # into the page cache, where what is watched from outside should not see it come

    def cache_bytes(self):
        return self.n_tokens // 64 * 64 * Streamed.TOKEN_BYTES

    def new_folder(self, name):
        path = self.folder / name
        path.mkdir()
        os.chmod(path, 0o777)
        return path

    def argv(self, *more, ram=None, kv_dir=None, predict=12, window=64):
        line = [self.program, "run", "-m", self.model, "-f", self.text, "-p", "?", "--temp", "1", "--threads", "2",
                "--draft", "0", "-n", str(predict), "--ram", str(ram or self.least), "--kv-dir",
                str(kv_dir or self.kv_dir)]
        return line + (["--window", str(window)] if window else []) + list(more)

    def json(self, *more, **ways):
        return self.argv("--json", *more, **ways)

    def find_least(self):
        """The least --ram that holds all weights, as the program tells it: with less, they are streamed, too."""
        self.least = 16 * MIB
        done = run(self.argv())
        found = re.search(r"(\d+)M would do", done.err)
        if not found:
            raise SystemExit(f"FAIL no least budget told: {done}")
        self.least = (int(found.group(1)) + 1) * MIB
        whole = re.search(r"all stay from (\d+)M on", run(self.argv("--verbose")).err)
        return (int(whole.group(1)) + 1) * MIB if whole else self.least
