"""The cases of run_faults.py and what they share: each makes one fault with a real kernel and says what is wrong with
what the program did about it."""
import contextlib
import errno
import json
import mmap
import os
import random
import re
import resource
import time

import kernel_ways as ways
from streamed import MIB, Child, Streamed, cached_bytes, litter, run

CASES = []
NO_DIRECT = (("fcntl", errno.EINVAL, (1, "is", 4), (2, "has", os.O_DIRECT)),
             ("openat", errno.EINVAL, (2, "has", os.O_DIRECT)))


def case(name):
    """A case: a function of the ground that returns problems, or raises Missing."""
    def add(function):
        CASES.append((name, function))
        return function
    return add


def same(ground, done, mode="direct", folder=None):
    """What is wrong with a run that should have given the text as ever."""
    if done.code != 0:
        return [f"expected exit code 0: {done}"]
    told = json.loads(done.out)
    if ground.want is None:
        ground.want = told["tokens"]
    problems = [] if told["tokens"] == ground.want else [f"tokens {told['tokens']}, expected {ground.want}"]
    if mode and told["io_mode"] != mode:
        problems.append(f"I/O mode {told['io_mode']}, expected {mode}")
    if told["bytes_read"] < ground.cache_bytes():
        problems.append(f"only {told['bytes_read']} bytes were read from flash")
    n_buffered = sum("direct I/O" in line for line in done.warnings)
    if n_buffered != (told["io_mode"] == "buffered"):
        problems.append(f"{n_buffered} warnings about direct I/O: {done.warnings}")
    return problems + litter(folder or ground.kv_dir)


def named(done, codes, pattern, folder):
    """What is wrong with a run that should have ended in one named error."""
    problems = [] if done.code in codes else [f"exit code, expected one of {codes}: {done}"]
    if not re.search(pattern, done.last) or not done.last.startswith("sluice run: "):
        problems.append(f"the last line does not match /{pattern}/: {done.err[-500:]!r}")
    if done.out:
        problems.append(f"a result of a failed run: {done.out[:200]}")
    return problems + litter(folder)


def under(ground, setup, **expected):
    """A run whose child calls `setup` first and gives the text as ever."""
    return same(ground, run(ground.json(), setup), **expected)


# ---------------------------------------------------------------------------------------------- folders of all kinds

def memory_file_system(ground, kind):
    with ways.mounted(ground.folder / kind, "-t", kind, kind) as point:
        os.chmod(point, 0o777)
        line = ground.json(kv_dir=point)
        return named(run(line), (3,), r"memory.*--allow-ram-dir", point) + \
            same(ground, run(line + ["--allow-ram-dir"]), "buffered", folder=point)


@case("tmpfs is refused, and works when allowed")
def tmpfs(ground):
    return memory_file_system(ground, "tmpfs")


@case("ramfs is refused, and works when allowed")
def ramfs(ground):
    return memory_file_system(ground, "ramfs")


@case("a disk of 4096-byte sectors: direct I/O")
def sectors(ground):
    with ways.disk(ground.folder, "sectors", 64 * MIB, sector=4096) as (point, _):
        with open(point / "odd", "wb") as file:  # the fault is real: what other disks take, this one refuses
            fd = os.open(file.name, os.O_WRONLY | os.O_DIRECT)
        try:
            page = mmap.mmap(-1, 4096)
            os.pwrite(fd, memoryview(page)[:512], 0)
            raise ways.Missing("the loop device takes 512 bytes here")
        except OSError:
            pass
        finally:
            os.close(fd)
            os.unlink(point / "odd")
        return same(ground, run(ground.json(kv_dir=point)), folder=point)


@case("overlayfs: direct I/O")
def overlay(ground):
    folders = [ground.new_folder(name) for name in ("lower", "upper", "work")]
    options = "lowerdir={},upperdir={},workdir={}".format(*folders)
    with ways.mounted(ground.folder / "overlay", "-t", "overlay", "overlay", "-o", options) as point:
        return same(ground, run(ground.json(kv_dir=point)), mode=None, folder=point) + litter(folders[1])


@case("a read-only file system is refused")
def read_only(ground):
    with ways.disk(ground.folder, "read_only", 64 * MIB) as (point, _):
        ways.call("mount", "-o", "remount,ro", str(point))
        return named(run(ground.json(kv_dir=point)), (3,), "read_only.*Read-only file system", point)


@case("no unnamed files (O_TMPFILE refused): created and unlinked at once")
def no_tmpfile(ground):
    ways.can_filter()
    setup = ways.refuse(("openat", errno.EOPNOTSUPP, (2, "has", ways.O_TMPFILE)))
    with Child(ground.json(), setup) as child:
        path = child.stop_with_cache(ground.kv_dir)
        problems = litter(ground.kv_dir)
        if not path or "/.sluice-" not in os.readlink(path):
            problems.append(f"the cache file is {path and os.readlink(path)}")
        child.go_on()
        return problems + same(ground, child.end())


def watched(ground, folder, setup=None):
    """A run in `folder`: how it ended, and the most of its file that was in the page cache at any moment."""
    most = 0
    with Child(ground.json(kv_dir=folder), setup) as child:
        def look():
            nonlocal most
            path = child.cache(folder)
            with contextlib.suppress(OSError):
                most = max(most, (cached_bytes(path) or 0) if path else 0)
            return False
        child.wait_for(look)
        return child.end(), most


def few_pages(most):
    """Through the page cache at most what is read or written at a time: the ring, a window."""
    return [f"{most} bytes in the page cache"] if most > 8 * MIB else []


def buffered(ground, *more_rules):
    """Direct I/O refused at open: the page cache is used, announced, and kept small, seen from outside."""
    ways.can_filter()
    done, most = watched(ground, ground.kv_dir, ways.refuse(*NO_DIRECT, *more_rules))
    return same(ground, done, "buffered") + few_pages(most)


@case("a file system that buffers silently (ext4, data=journal): found by the probe, announced once")
def silently(ground):
    with ways.disk(ground.folder, "silent", 64 * MIB, options="data=journal") as (point, _):
        done, most = watched(ground, point)
        return same(ground, done, "buffered", folder=point) + few_pages(most)


def on_disk(ground, name, size, *make):
    """A run on a file system of another kind, direct or announced; its pages are few in any case."""
    with ways.disk(ground.folder, name, size, make=make) as (point, _):
        os.chmod(point, 0o777)
        done, most = watched(ground, point)
        return same(ground, done, None, folder=point) + few_pages(most)


@case("ext2: no extents, no journal, no space set aside")
def ext2(ground):
    return on_disk(ground, "ext2", 64 * MIB, "mke2fs", "-q", "-F", "-t", "ext2", "-m", "0")


@case("ext4 with blocks of 1,024 bytes")
def small_blocks(ground):
    return on_disk(ground, "blocks", 64 * MIB, "mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "0")


@case("xfs")
def xfs(ground):
    return on_disk(ground, "xfs", 320 * MIB, "mkfs.xfs", "-q", "-f")


@case("btrfs")
def btrfs(ground):
    return on_disk(ground, "btrfs", 160 * MIB, "mkfs.btrfs", "-q", "-f")


@case("vfat: no unnamed files")
def vfat(ground):
    return on_disk(ground, "vfat", 64 * MIB, "mkfs.vfat")


@case("O_DIRECT refused at open: buffered, announced once, pages dropped")
def no_direct(ground):
    return buffered(ground)


@case("O_DIRECT, sync_file_range and cachestat refused")
def no_direct_nor_help(ground):
    return buffered(ground, ("sync_file_range", errno.ENOSYS), ("cachestat", errno.ENOSYS))


@case("fallocate and cachestat refused")
def no_fallocate(ground):
    ways.can_filter()
    return under(ground, ways.refuse(("fallocate", errno.EOPNOTSUPP), ("cachestat", errno.ENOSYS)))


# --------------------------------------------------------------------------------------------- disks that fail

def at_cache(ground, point, act, least=6 * MIB, setup=None):
    """Stops a run once it has written `least` bytes of cache, acts, lets it go on; how it ended."""
    with Child(ground.json(kv_dir=point), setup) as child:
        path = child.stop_with_cache(point, least)
        if not path:
            done = child.end()
            done.err += "\n(it ended before its cache lay on flash)"
            return done
        act(path)
        child.go_on()
        return child.end()


@case("a file system that fills up while the cache is written")
def full_while_writing(ground):
    ways.can_filter()
    no_reserve = ways.refuse(("fallocate", errno.EOPNOTSUPP))  # else it may have its space by then
    with ways.disk(ground.folder, "full", 64 * MIB) as (point, _):
        filler = point / "filler"

        def fill(_):
            with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(MIB // 4))
        done = at_cache(ground, point, fill, least=2 * MIB, setup=no_reserve)
        filler.unlink()
        return named(done, (1,), r"full: cannot write \d+ bytes at offset \d+.*No space left", point)


@case("a file size limit (RLIMIT_FSIZE)")
def file_size(ground):
    done = run(ground.json(), ways.limit(resource.RLIMIT_FSIZE, 8 * MIB))
    return named(done, (1,), r"cannot write \d+ bytes at offset \d+.*File too large", ground.kv_dir)


@case("every write fails (EIO)")
def write_fails(ground):
    ways.can_filter()
    setup = ways.refuse(*((name, errno.EIO) for name in ("pwrite64", "pwritev", "pwritev2")))
    return named(run(ground.json(), setup), (1,), r"cannot write \d+ bytes at.*Input/output error", ground.kv_dir)


@case("a disk that loses writes: its own storage is full")
def thin(ground):
    with ways.mounted(ground.folder / "small", "-t", "tmpfs", "-o", "size=8M", "small") as small, \
            ways.loop_device(small / "image", 64 * MIB) as device:
        ways.call("mkfs.ext4", "-q", "-F", "-E", "nodiscard", device)
        with ways.mounted(ground.folder / "thin", device) as point:
            # The loop device reports some of these as written: then the checksum tells
            return named(run(ground.json(kv_dir=point)), (1, 4), r"thin.*(Input/output error|checksum)", point)


@case("a disk cut short behind the file system (image truncated)")
def disk_cut(ground):
    with ways.disk(ground.folder, "cut", 64 * MIB) as (point, image):
        done = at_cache(ground, point, lambda _: os.truncate(image, 4 * MIB))
        return named(done, (1, 4), r"cut.*offset \d+.*(Input/output error|checksum)", ground.kv_dir)


@case("the disk pulled away while the cache is written")
def pulled_writing(ground):
    with ways.disk(ground.folder, "pulled", 64 * MIB) as (point, _):
        done = at_cache(ground, point, lambda _: ways.shut_down(point))
        return named(done, (1,), r"pulled.*cannot (write|read).*Input/output error", ground.kv_dir)


@case("the disk pulled away while the answer is drawn")
def pulled_reading(ground):
    with ways.disk(ground.folder, "gone", 64 * MIB) as (point, _):
        with Child(ground.argv(kv_dir=point, predict=2000)) as child:
            if not child.wait_for(child.has_written(child.out)):
                return [f"no answer began: {child.end()}"]
            child.stop()
            ways.shut_down(point)
            child.go_on()
            done = child.end()
        done.out = b""  # the answer's beginning, told as it came
        return named(done, (1,), r"gone.*cannot read \d+ bytes at offset \d+.*Input/output error", ground.kv_dir)


@case("the file cut short under the reader")
def file_cut(ground):
    return named(at_cache(ground, ground.kv_dir, lambda path: os.truncate(path, 0)), (1, 4),
                 r"(file ends there|checksum)", ground.kv_dir)


def layers_on_disk(fd, block):
    """The layers whose first tile lies in the file: not those that the budget keeps in memory."""
    found = []
    for layer in range(Streamed.LAYERS):
        with contextlib.suppress(OSError):  # past the end
            found += [layer] if os.lseek(fd, layer * block, os.SEEK_DATA) == layer * block else []
    return found


@case("a flipped bit on the disk")
def flipped(ground):
    draw = random.Random(ground.seed)
    block = Streamed.PART_BYTES * 4  # of one layer and 4096 tokens
    problems, which = [], {}

    def flip(path):
        fd = os.open(path, os.O_RDWR)
        layers = layers_on_disk(fd, block)
        which["layer"] = [layers[0], layers[-1], draw.choice(layers)][which["round"]]
        at = which["layer"] * block + draw.randrange(64 * Streamed.PART_BYTES // 1024)
        os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1 << draw.randrange(8)]), at)
        os.fsync(fd)
        os.close(fd)
    for which["round"] in range(3):
        # Two windows written: each layer that is not in memory has its first tile on the disk
        done = at_cache(ground, ground.kv_dir, flip, least=2 * 64 * Streamed.TOKEN_BYTES + 4096)
        problems += named(done, (4,), r"layer {0}, segment 0, offset {1} .*checksum".format(
            which["layer"], which["layer"] * block), ground.kv_dir)
    return problems


# ------------------------------------------------------------------------------------------- how flash is read

POOL, UNREGISTERED = "pread pool", "io_uring, unregistered buffers"


def falls_back(ground, setup, *engines):
    """The text as ever, by one of these ways of reading (none: any); a way that is not the best is said in one line."""
    done = run(ground.json("--verbose"), setup)
    problems = same(ground, done)
    if problems:
        return problems
    engine = json.loads(done.out)["io_engine"]
    said = [line for line in done.err.split("\n") if line.startswith("sluice: ") and "io_uring" in line]
    if engines and engine not in engines:
        problems.append(f"read by {engine}, expected {engines}")
    if len(said) != (engine != "io_uring"):
        problems.append(f"read by {engine}, said in {len(said)} lines: {said}")
    return problems


@case("io_uring forbidden (EPERM, ENOSYS from a filter)")
def no_uring(ground):
    ways.can_filter()
    problems = []
    for code in (errno.EPERM, errno.ENOSYS):
        setup = ways.refuse(("io_uring_setup", code))
        problems += falls_back(ground, setup, POOL)
        done = run(ground.json("--io", "uring"), setup)
        problems += named(done, (3,), rf"io_uring.*{os.strerror(code)}", ground.kv_dir)
        if done.disk_written > 64 << 10 or done.err.count("\n") != 1:
            problems.append(f"refused after {done.disk_written} bytes of cache were written: {done}")
    return problems


@case("io_uring refuses to register (ENOMEM, EPERM)")
def no_registration(ground):
    ways.can_filter()
    return [problem for code in (errno.ENOMEM, errno.EPERM)
            for problem in falls_back(ground, ways.refuse(("io_uring_register", code)), UNREGISTERED, POOL)]


@case("io_uring forbidden (kernel.io_uring_disabled = 2)")
def uring_disabled(ground):
    with ways.sysctl("kernel/io_uring_disabled", "2"):
        return falls_back(ground, None, POOL)


@case("an ordinary user who may lock 8 MiB, 4 MiB, and nothing")
def ordinary_user(ground):
    lock = lambda amount: ways.as_user(ways.limit(resource.RLIMIT_MEMLOCK, amount))
    return falls_back(ground, lock(8 * MIB)) + falls_back(ground, lock(4 * MIB), UNREGISTERED, POOL) + \
        falls_back(ground, lock(0), UNREGISTERED, POOL)


# --------------------------------------------------------------------------------------------- memory and processors

@case("memory refused by the kernel (RLIMIT_AS), at twelve sizes")
def address_space(ground):
    problems, n_refused, n_done = [], 0, 0
    for amount in range(10, 46, 3):
        done = run(ground.json(), ways.limit(resource.RLIMIT_AS, amount * MIB))
        if done.code == 127:  # the loader itself found no room
            continue
        n_done += done.code == 0
        n_refused += done.code != 0
        found = same(ground, done) if done.code == 0 else \
            named(done, (1, 3), r"(out of memory: .* needs \d+ bytes|cannot start .*thread)", ground.kv_dir)
        problems += [f"{amount} MiB: {problem}" for problem in found]
    if not n_done or n_refused < 3:
        problems.append(f"{n_done} runs went well, {n_refused} were refused")
    return problems


@case("threads refused by the kernel (RLIMIT_NPROC)")
def no_threads(ground):
    problems, n_refused = [], 0
    for most in (1, 2, 3):
        done = run(ground.json(), ways.as_user(ways.limit(resource.RLIMIT_NPROC, most)))
        n_refused += done.code != 0
        problems += same(ground, done) if done.code == 0 else named(done, (1,), r"cannot start .*thread", ground.kv_dir)
    return problems + ([] if n_refused else ["every run had its threads"])


@case("a memory cgroup of --ram and 12 MiB, without swap")
def small_group(ground):
    most = 0
    with ways.memory_group(f"sluice_test_{os.getpid()}", ground.least + 12 * MIB) as group:
        with Child(ground.json(), group.join) as child:
            def look():
                nonlocal most
                most = max(most, group.page_cache())
                return False
            child.wait_for(look)
            problems = same(ground, child.end())
        if group.kills():
            problems.append("the kernel killed for want of memory")
    # Everything the group reads, the model and the program too, is charged to it unless it was cached before
    return problems + ([f"the page cache of the group grew to {most}"] if most > 4 * MIB else [])


@case("a memory cgroup too small for anything is refused by name")
def tiny_group(ground):
    line = ground.json()
    at = line.index("--ram")
    del line[at:at + 2]  # the default: half of what the group has
    with ways.memory_group(f"sluice_test_{os.getpid()}", 10 * MIB) as group:
        done = run(line, group.join)
        return named(done, (3,), r"memory budget of .* is too small", ground.kv_dir) + \
            (["the kernel killed"] if group.kills() else [])


@case("killed for want of memory: no file is left")
def out_of_memory(ground):
    with ways.memory_group(f"sluice_test_{os.getpid()}", 14 * MIB) as group:
        done = run(ground.json(), group.join)
        return ([] if done.code == -9 and group.kills() else [f"it was not killed: {done}"]) + litter(ground.kv_dir)


@case("one core from the start: one thread")
def one_core(ground):
    core = min(os.sched_getaffinity(0))
    line = ground.json("--verbose")
    at = line.index("--threads")
    del line[at:at + 2]
    done = run(line, lambda: os.sched_setaffinity(0, {core}))
    return same(ground, done) + ([] if "sluice: 1 threads" in done.err else [f"not one thread: {done.err[:200]}"])


@case("cores taken away while running, and given back")
def cores(ground):
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        raise ways.Missing("one core here")
    with Child(ground.json()) as child:
        n, start = 0, time.monotonic()

        def change():
            nonlocal n
            if time.monotonic() - start > 0.05 * n:
                n += 1
                ways.set_cores(child.pid, {min(every)} if n % 2 else every)
            return False
        child.wait_for(change)
        return same(ground, child.end()) + ([] if n > 4 else [f"only {n} changes"])


@case("stopped and continued again and again")
def stopped(ground):
    with Child(ground.json()) as child:
        n, start = 0, time.monotonic()

        def pause():
            nonlocal n
            if time.monotonic() - start > 0.04 * n:
                n += 1
                child.stop()
                time.sleep(0.004)
                child.go_on()
            return False
        child.wait_for(pause)
        return same(ground, child.end()) + ([] if n > 4 else [f"only {n} stops"])
