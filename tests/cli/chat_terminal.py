"""A program on a terminal of the test's own (a pty): types, waits for what must appear."""
import os
import pty
import re
import select
import signal
import time

LIMIT_S = 60
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """`seen`: what appeared since the last typing, without escape sequences."""

    def __init__(self, argv, term="xterm"):
        self.seen, self.code = "", None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=term, LC_ALL="C.UTF-8", HOME="/nonexistent")
            os.execv(argv[0], argv)
        # a build without libedit leaves the terminal as it is: it echoes by itself, also while nobody reads
        self.can_edit = term != "dumb" and b"libedit" in open(argv[0], "rb").read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def _read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the program has left
            return False
        self.seen = ESCAPES.sub("", self.seen + data.decode(errors="replace"))
        return bool(data)

    def type(self, text):
        self.seen = ""
        os.write(self.fd, text.encode())

    def wanting(self, pattern):
        """[] when the pattern appears in time; else what is wrong."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if re.search(pattern, self.seen, re.S):
                return []
            if not self._read(1) and os.waitpid(self.pid, os.WNOHANG)[0]:
                self.code = -1
                break
        return [f"{pattern!r} did not appear in {self.seen[-300:]!r}"]

    def expect(self, pattern):
        problems = self.wanting(pattern)
        if problems:
            raise RuntimeError(problems[0])

    def leave(self):
        """Ctrl-D, and the exit code. Once more after a while, as a person would: what is typed in the moment between a
        prompt and the terminal's change of mode is lost."""
        for _ in range(3):
            self.type("\x04")
            code = self.end(LIMIT_S / 3)
            if code is not None:
                return code
        return None

    def end(self, limit_s=LIMIT_S):
        """The exit code of a program that is to end by itself."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
        return None
