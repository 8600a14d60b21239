#!/bin/sh
# Installs, by apt, what the named groups need and this machine lacks; says nothing when nothing is missing.
#   tools/setup.sh [--check] GROUP...      groups: build test model fuzz macos fmt
# --check installs nothing: it names what is missing, in one line, and fails.
# What counts is whether the thing works, not where it came from: a compiler outside dpkg is a compiler.
set -eu

check_only=no
if [ "${1:-}" = --check ]; then
    check_only=yes
    shift
fi

has_cmake() {
    command -v cmake >/dev/null && printf 'cmake_minimum_required(VERSION 3.25)\n' >"$scratch/v.cmake" &&
        cmake -P "$scratch/v.cmake" >/dev/null 2>&1
}
has_cc() {
    printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' >"$scratch/v.c" &&
        cc -o "$scratch/v" "$scratch/v.c" >/dev/null 2>&1
}
has_cxx() {
    printf 'int main() { return 0; }\n' >"$scratch/v.cc" && c++ -fsyntax-only "$scratch/v.cc" >/dev/null 2>&1
}
has_python() {
    command -v python3 >/dev/null && python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1
}
has_pip() {
    find_pip='import importlib.util, sys; sys.exit(importlib.util.find_spec("pip") is None)'
    python3 -c "$find_pip" || /usr/bin/python3 -c "$find_pip"
}
has_libfuzzer() {
    printf 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);
int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 99 ? 0 : 0; }\n' \
        >"$scratch/f.c" && clang -fsanitize=fuzzer,address -o "$scratch/f" "$scratch/f.c" >/dev/null 2>&1
}

has_mkfs() { PATH="$PATH:/usr/sbin:/sbin" && command -v mkfs.btrfs && command -v mkfs.xfs; }

missing=
need() { # need PACKAGES TEST...
    packages=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $packages"
}

need_group() {
    case $1 in
    build)
        need "gcc libc6-dev" has_cc
        need cmake has_cmake
        # make serves too, so its absence alone is no reason to stop a build; ninja is quicker and says less
        [ "$check_only" = yes ] && command -v make >/dev/null || need ninja-build command -v ninja
        need pkg-config command -v pkg-config
        need libpcre2-dev pkg-config --exists libpcre2-8
        need libxxhash-dev pkg-config --exists libxxhash
        [ "$(uname -s)" != Linux ] || need liburing-dev pkg-config --exists liburing
        [ "$(uname -s)" != Linux ] || need libedit-dev pkg-config --exists libedit
        ;;
    test)
        need libcmocka-dev pkg-config --exists cmocka
        need g++ has_cxx
        need binutils command -v objdump
        need python3 has_python
        need util-linux command -v setpriv
        # only who may mount can use them; their tests are skipped without
        [ "$(uname -s)" != Linux ] || [ "$(id -u)" != 0 ] || need "btrfs-progs xfsprogs" has_mkfs
        ;;
    model)
        need python3 has_python
        need python3-pip has_pip
        ;;
    fuzz) need "clang libclang-rt-dev" has_libfuzzer ;;
    macos)
        need python3 has_python
        need python3-pip has_pip
        need xz-utils command -v xz
        ;;
    fmt) need clang-format command -v clang-format ;;
    *)
        echo "tools/setup.sh: unknown group '$1' (build test model fuzz macos fmt)" >&2
        exit 2
        ;;
    esac
}

# Runs a command with its output kept aside; a line every ten seconds shows that it lives.
quietly() {
    "$@" >"$scratch/log" 2>&1 </dev/null &
    job=$!
    seconds=0
    while kill -0 "$job" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        [ $((seconds % 10)) -ne 0 ] || echo "  ... $seconds s"
    done
    wait "$job"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        quietly env DEBIAN_FRONTEND=noninteractive "$@"
    else
        quietly sudo env DEBIAN_FRONTEND=noninteractive "$@"
    fi
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
for group in "$@"; do
    need_group "$group"
done
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
missing=${missing% }
[ -n "$missing" ] || exit 0

if [ "$check_only" = yes ]; then
    echo "sluice: this machine lacks: $missing - 'make setup' installs them" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "sluice: this machine lacks what Debian calls: $missing - please install them (no apt-get here)" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "sluice: missing: $missing - neither root nor sudo here; as root run: apt-get install $missing" >&2
        exit 1
    fi
    sudo -v </dev/tty 2>/dev/null || sudo -n true || {
        echo "sluice: missing: $missing - sudo refused; as root run: apt-get install $missing" >&2
        exit 1
    }
fi

echo "installing: $missing"
# An update that fails for one foreign source may still have fetched what is needed: the install decides.
as_root apt-get -q update || true
if ! as_root apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $missing; then
    tail -n 15 "$scratch/log" >&2
    echo "sluice: apt-get could not install: $missing" >&2
    exit 1
fi
