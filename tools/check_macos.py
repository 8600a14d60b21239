#!/usr/bin/env python3
"""What can be said of programs for macOS without running them.

    check_macos.py LIBSYSTEM.tbd OLDEST_MACOS DIR ARCH...      of each: DIR/ARCH/build, and libraries in DIR/ARCH/kit/lib

Reads Mach-O itself (mach-o/loader.h, mach-o/nlist.h; kern/cs_blobs.h for the signature). LIBSYSTEM.tbd lists what the
system offers. Last line: N passed, N failed, N skipped.
"""
import glob
import hashlib
import os
import re
import struct
import sys

CPU = {"arm64": 0x0100000C, "x86_64": 0x01000007}
OBJECT, EXECUTE, DYLIB = 1, 2, 6
LC_SYMTAB, LC_LOAD_DYLIB, LC_CODE_SIGNATURE, LC_BUILD_VERSION, LC_MAIN = 0x2, 0xC, 0x1D, 0x32, 0x80000028
# Of each role of the platform one call that must be there, and the name of the role.
ROLES = {
    "_fcntl": "uncached I/O", "_mincore": "cached bytes", "_unlink": "no file left", "_fstatfs": "memory file systems",
    "_dispatch_queue_create": "prefetching", "_dispatch_semaphore_wait": "waiting", "_task_info": "footprint",
    "_host_statistics64": "free memory", "_sysctlbyname": "processors", "_clock_gettime_nsec_np": "clock",
}
# Of the compiler's own runtime, which comes with every link.
COMPILER = {"___cpu_model", "___cpu_features2"}
FOREIGN = re.compile(r"io_uring|fallocate|sync_file_range|sched_getaffinity")


class Image:
    """One Mach-O file or archive member."""

    def __init__(self, data):
        self.data = data
        magic, self.cpu, _, self.kind, n_commands, _, self.flags, _ = struct.unpack_from("<8I", data)
        if magic != 0xFEEDFACF:
            raise ValueError("not a 64-bit Mach-O file")
        self.commands, self.defined, self.undefined = {}, set(), set()
        at = 32
        for _ in range(n_commands):
            command, size = struct.unpack_from("<II", data, at)
            self.commands.setdefault(command, []).append(at)
            at += size
        for at in self.commands.get(LC_SYMTAB, []):
            self._read_symbols(*struct.unpack_from("<4I", data, at + 8))

    def _read_symbols(self, symbols, count, strings, strings_size):
        text = self.data[strings:strings + strings_size]
        for i in range(count):
            name_at, kind, _, _, value = struct.unpack_from("<IBBHQ", self.data, symbols + 16 * i)
            if kind & 0xE0 or not kind & 1:  # for debuggers; local
                continue
            name = text[name_at:text.index(b"\0", name_at)].decode()
            # no section but a value: common, so defined
            is_undefined = kind & 0x0E == 0 and value == 0
            (self.undefined if is_undefined else self.defined).add(name)

    def dylibs(self):
        for at in self.commands.get(LC_LOAD_DYLIB, []):
            start = at + struct.unpack_from("<I", self.data, at + 8)[0]
            yield self.data[start:self.data.index(b"\0", start)].decode()

    def build_version(self):
        """(platform, oldest system): 1 is macOS."""
        at = self.commands[LC_BUILD_VERSION][0]
        platform, oldest = struct.unpack_from("<II", self.data, at + 8)
        return platform, f"{oldest >> 16}.{oldest >> 8 & 255}"

    def signature_holds(self):
        """Whether every page has the hash that the signature says: arm64 runs nothing else."""
        start, size = struct.unpack_from("<II", self.data, self.commands[LC_CODE_SIGNATURE][0] + 8)
        blob = self.data[start:start + size]
        magic, _, count = struct.unpack_from(">3I", blob)
        for i in range(count):
            at = struct.unpack_from(">I", blob, 16 + 8 * i)[0]
            if magic == 0xFADE0CC0 and struct.unpack_from(">I", blob, at)[0] == 0xFADE0C02:
                hashes, _, _, n_pages, limit = struct.unpack_from(">5I", blob, at + 16)
                hash_size, hash_kind, _, page_log2 = struct.unpack_from(">4B", blob, at + 36)
                page = 1 << page_log2
                # 2: SHA-256
                return hash_kind == 2 and limit == start and n_pages == -(-limit // page) and all(
                    hashlib.sha256(self.data[n * page:min((n + 1) * page, limit)]).digest()
                    == blob[at + hashes + n * hash_size:at + hashes + (n + 1) * hash_size] for n in range(n_pages))
        return False


def read_archive(path):
    """Members of a BSD or GNU archive that are Mach-O files: (name, Image)."""
    data = open(path, "rb").read()
    if data[:8] != b"!<arch>\n":
        raise ValueError("not an archive")
    at = 8
    while at + 60 <= len(data):
        name, size = data[at:at + 16].decode().rstrip(), int(data[at + 48:at + 58])
        start = at + 60
        if name.startswith("#1/"):
            long_size = int(name[3:])
            name = data[start:start + long_size].rstrip(b"\0").decode()
            start, size = start + long_size, size - long_size
        if not name.startswith(("__.SYMDEF", "/")) or re.match(r"/\d+", name):
            yield name, Image(data[start:start + size])
        at += 60 + int(data[at + 48:at + 58])
        at += at & 1


class Checks:
    def __init__(self):
        self.passed = self.failed = 0

    def that(self, holds, text):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED: {text}")


def check_linked(checks, path, kind, arch, oldest, system):
    name = os.path.basename(path)
    image = Image(open(path, "rb").read())
    checks.that(image.cpu == CPU[arch] and image.kind == kind, f"{name} is of another processor or kind")
    checks.that(image.build_version() == (1, oldest), f"{name} is for {image.build_version()}, not macOS {oldest}")
    checks.that(list(image.dylibs()) == ["/usr/lib/libSystem.B.dylib"],
                f"{name} loads more than the system's library: {list(image.dylibs())}")
    missing = sorted(image.undefined - system)
    checks.that(not missing, f"{name} needs what the system does not have: {missing}")
    # On x86_64 a program runs without one.
    if arch == "arm64":
        checks.that(LC_CODE_SIGNATURE in image.commands and image.signature_holds(), f"{name}: its signature is wrong")
    return image


def public_functions(include):
    names = set()
    for path in glob.glob(os.path.join(include, "*.h")):
        names.update(re.findall(r"\b(sl_[a-z0-9_]+)\(", open(path).read()))
    return {"_" + name for name in names}


def check_library(checks, path, arch, system, libraries):
    members = list(read_archive(path))
    checks.that(members and all(image.cpu == CPU[arch] and image.kind == OBJECT for _, image in members),
                f"{path} holds objects of another processor")
    defined = set().union(*(image.defined for _, image in members))
    wanted = public_functions(os.path.join(os.path.dirname(__file__), "..", "include", "sluice"))
    checks.that(wanted and wanted <= defined, f"{path} lacks public functions: {sorted(wanted - defined)}")
    for other in libraries:
        defined |= set().union(*(image.defined for _, image in read_archive(other)))
    needed = set().union(*(image.undefined for _, image in members)) - defined - system - COMPILER
    checks.that(not needed, f"{path} needs what nobody has: {sorted(needed)}")
    return len(members), wanted


def check_build(checks, build, library_dir, arch, oldest, system):
    program = check_linked(checks, os.path.join(build, "sluice"), EXECUTE, arch, oldest, system)
    checks.that(LC_MAIN in program.commands, "sluice has no entry point")
    # x86_64 has some calls in two forms: _fstatfs$INODE64
    called = {name.partition("$")[0] for name in program.undefined}
    for symbol, role in ROLES.items():
        checks.that(symbol in called, f"sluice does not call {symbol[1:]} ({role})")
    foreign = sorted(name for name in program.undefined if FOREIGN.search(name))
    checks.that(not foreign, f"sluice calls what only Linux has: {foreign}")
    n_members, public = check_library(checks, os.path.join(build, "libsluice.a"), arch, system,
                                      glob.glob(os.path.join(library_dir, "*.a")))
    shared = check_linked(checks, os.path.join(build, "libsluice.dylib"), DYLIB, arch, oldest, system)
    checks.that(public <= shared.defined, f"libsluice.dylib lacks {sorted(public - shared.defined)}")
    tests = sorted(path for path in glob.glob(os.path.join(build, "tests", "*", "test_*")) if os.path.isfile(path))
    checks.that(len(tests) > 20, f"only {len(tests)} test programs were linked")
    for path in tests:
        check_linked(checks, path, EXECUTE, arch, oldest, system)
    size = os.path.getsize(os.path.join(build, "sluice"))
    print(f"{arch}: sluice ({size:,} bytes), libsluice.a ({n_members} objects), libsluice.dylib and {len(tests)} test "
          "programs linked; none has been run")


def main():
    tbd, oldest, root, *arches = sys.argv[1:]
    system = set(re.findall(r"[\w$.]+", open(tbd).read()))
    checks = Checks()
    for arch in arches:
        check_build(checks, os.path.join(root, arch, "build"), os.path.join(root, arch, "kit", "lib"), arch, oldest,
                    system)
    print(f"{checks.passed} passed, {checks.failed} failed, 0 skipped")
    return checks.failed > 0 or checks.passed == 0


if __name__ == "__main__":
    sys.exit(main())
