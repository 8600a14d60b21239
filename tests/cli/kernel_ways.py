"""What a kernel can be asked to take away: file systems of every kind, memory, calls, processors. Each way says why
where it cannot be had here (Missing). Whatever was mounted, attached or created is undone when its `with` ends.
Facts: losetup(8), seccomp(2), prctl(2), setrlimit(2), the kernel's cgroup-v1/memory and cgroup-v2 documentation.
"""
import contextlib
import ctypes
import errno
import os
import platform
import resource
import shutil
import struct
import subprocess
import time
from pathlib import Path


class Missing(Exception):
    """This way cannot be had on this machine; the text says why."""


def call(*argv):
    """Runs a tool; its output. Missing when it is absent or fails."""
    if not shutil.which(argv[0], path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
        raise Missing(f"no {argv[0]} here")
    env = dict(os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    done = subprocess.run(argv, capture_output=True, env=env, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Missing(f"{argv[0]} refused: {done.stderr.decode(errors='replace').strip()[:200]}")
    return done.stdout.decode()


def need_root():
    if os.geteuid() != 0:
        raise Missing("only root may do this")


# ------------------------------------------------------------------------------------------------ file systems

def undo(*argv):
    """umount and losetup -d say busy while a killed process is still dying."""
    for _ in range(50):
        with contextlib.suppress(Missing):
            call(*argv)
            return
        time.sleep(0.1)
    print(f"FAIL undo: {' '.join(argv)}")


@contextlib.contextmanager
def mounted(point, *argv):
    """mount ARGV POINT; the folder, made when it is not there."""
    need_root()
    point = Path(point)
    point.mkdir(exist_ok=True)
    call("mount", *argv, str(point))
    try:
        yield point
    finally:
        undo("umount", str(point))


@contextlib.contextmanager
def loop_device(image, size, sector=512):
    """A block device over a sparse file of `size` bytes."""
    need_root()
    with open(image, "wb") as file:
        file.truncate(size)
    device = call("losetup", "--find", "--show", "--sector-size", str(sector), str(image)).strip()
    try:
        yield device
    finally:
        undo("losetup", "--detach", device)
        Path(image).unlink(missing_ok=True)


@contextlib.contextmanager
def disk(folder, name, size, sector=512, options="rw", make=("mkfs.ext4", "-q", "-F", "-m", "0")):
    """A file system of its own on a loop device: (mount point, image)."""
    image = Path(folder, name + ".img")
    with loop_device(image, size, sector) as device:
        call(*make, device)
        with mounted(Path(folder, name), "-o", options, device) as point:
            yield point, image


def shut_down(point):
    """The file system fails every transfer from now on, as when its disk is pulled (EXT4_IOC_SHUTDOWN, no flush)."""
    import fcntl
    fd = os.open(point, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, 0x8004587d, struct.pack("I", 2))
    except OSError as error:
        raise Missing(f"no shutdown of this file system: {error}") from error
    finally:
        os.close(fd)


# ------------------------------------------------------------------------------------------- calls that are refused

SYSCALLS = {  # of those that tests refuse
    "x86_64": {"openat": 257, "fcntl": 72, "fallocate": 285, "io_uring_setup": 425, "io_uring_register": 427,
               "cachestat": 451, "pwrite64": 18, "sync_file_range": 277,
               "mlock": 149, "pwritev": 296, "pwritev2": 328},
    "aarch64": {"openat": 56, "fcntl": 25, "fallocate": 47, "io_uring_setup": 425, "io_uring_register": 427,
                "cachestat": 451, "pwrite64": 68, "sync_file_range": 84,
                "mlock": 228, "pwritev": 70, "pwritev2": 287},
}
O_TMPFILE = 0o20000000  # its own bit, without O_DIRECTORY


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def refuse(*rules):
    """A setup for Child: the calls named fail with an error from the kernel's filter. A rule: (call, errno, tests...);
    a test: (argument, "is", value) or (argument, "has", bits). All must hold."""
    numbers = SYSCALLS.get(platform.machine())
    if not numbers:
        raise Missing(f"no numbers of system calls for {platform.machine()}")
    ins = lambda code, yes, no, k: struct.pack("=HBBI", code, yes, no, k)
    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06  # BPF_LD_W_ABS, BPF_JEQ_K, BPF_JSET_K, BPF_RET_K
    code = b""
    for name, error, *tests in rules:
        left = 2 * len(tests) + 1  # instructions up to the next rule
        code += ins(load, 0, 0, 0) + ins(equal, 0, left, numbers[name])
        for argument, word, value in tests:
            left -= 2
            code += ins(load, 0, 0, 16 + 8 * argument) + ins(equal if word == "is" else any_bit, 0, left, value)
        code += ins(give, 0, 0, 0x00050000 | error)  # SECCOMP_RET_ERRNO
    code += ins(give, 0, 0, 0x7fff0000)  # SECCOMP_RET_ALLOW
    buffer = ctypes.create_string_buffer(code, len(code))
    program = Filter(len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)

    def setup(buffer=buffer, program=program):  # both are kept alive by the function
        if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(program), 0, 0) != 0:
            os._exit(99)  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
    return setup


def can_filter():
    """Missing where the kernel takes no filter: tried in a child."""
    setup = refuse(("mlock", errno.EPERM))
    pid = os.fork()
    if pid == 0:
        setup()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise Missing("the kernel takes no seccomp filter here")


def has_io_uring():
    """Whether this process gets a ring."""
    fd = ctypes.CDLL(None).syscall(ctypes.c_long(425), ctypes.c_uint(1), ctypes.create_string_buffer(120))
    if fd >= 0:
        os.close(fd)
    return fd >= 0


@contextlib.contextmanager
def sysctl(name, value):
    need_root()
    path = Path("/proc/sys", name)
    try:
        before = path.read_text()
        path.write_text(value)
    except OSError as error:
        raise Missing(f"{name} cannot be set: {error}") from error
    try:
        yield
    finally:
        path.write_text(before)


# ------------------------------------------------------------------------------------------------ memory, processors

def limit(kind, amount):
    return lambda: resource.setrlimit(kind, (amount, amount))


def as_user(*more):
    """A setup for Child: nobody, without groups and capabilities; `more` run before, as root."""
    need_root()

    def setup():
        for other in more:
            other()
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    return setup


class Group:
    """A memory cgroup; join is a setup for Child."""

    def __init__(self, path, version):
        self.path, self.version = Path(path), version

    def join(self):
        (self.path / "cgroup.procs").write_text("0")

    def stat(self):
        return {key: int(value) for key, value in
                (line.split() for line in (self.path / "memory.stat").read_text().splitlines())}

    def page_cache(self):
        return self.stat()["file" if self.version == 2 else "total_cache"]

    def kills(self):
        """How many processes the kernel killed for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        for line in (self.path / name).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


@contextlib.contextmanager
def memory_group(name, most):
    """A group that may use `most` bytes and no swap."""
    need_root()
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if (v1 / "memory.limit_in_bytes").is_file():
        group, settings = Group(v1 / name, 1), (("memory.limit_in_bytes", True), ("memory.memsw.limit_in_bytes", False))
    elif "memory" in (v2 / "cgroup.subtree_control").read_text() if (v2 / "cgroup.subtree_control").is_file() else False:
        group, settings = Group(v2 / name, 2), (("memory.max", True), ("memory.swap.max", False))
    else:
        raise Missing("no memory cgroups here")
    try:
        group.path.mkdir()
    except OSError as error:
        raise Missing(f"no cgroup can be made: {error}") from error
    try:
        for setting, is_needed in settings:
            try:
                (group.path / setting).write_text("0" if setting == "memory.swap.max" else str(most))
            except OSError as error:
                if is_needed:
                    raise Missing(f"{setting} cannot be set: {error}") from error
        yield group
    finally:
        for _ in range(50):
            try:
                group.path.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def threads_of(pid):
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def set_cores(pid, cores):
    """All threads of a process; one that has just ended does not matter."""
    for thread in threads_of(pid):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)
