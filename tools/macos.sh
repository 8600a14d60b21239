#!/bin/sh
# Cross-builds the program, the library and the test programs for macOS and examines the result, which cannot run
# here:   tools/macos.sh DIR [arm64|x86_64]...
# Downloads stay in DIR (cross.sh). Last line: N passed, N failed, N skipped.
set -eu

oldest_macos=11.0 # the first for arm64
step=macos
tools=$(cd "$(dirname "$0")" && pwd)
. "$tools/cross.sh"

cross_open "$1"
shift
[ $# -gt 0 ] || set -- arm64
fetch_compiler
fetch_sources
for arch in "$@"; do
    kit=$root/macos/$arch/kit
    cpu=$arch
    [ "$arch" != arm64 ] || cpu=aarch64
    make_tools "$cpu-macos.$oldest_macos"
    make_libraries "macOS on $arch"
    echo "building sluice for macOS on $arch"
    # Whatever pkg-config knows of this machine does not count.
    export PKG_CONFIG_LIBDIR="$kit/lib/pkgconfig" PKG_CONFIG_PATH=
    quietly "$tools/build.sh" "$root/macos/$arch/build" all \
        -DCMAKE_TOOLCHAIN_FILE=cmake/macos.cmake -DSLUICE_MACOS="$kit" -DSLUICE_MACOS_ARCH="$arch" ||
        die "sluice could not be built for $arch"
done
python3 "$tools/check_macos.py" "$root/zig/ziglang/lib/libc/darwin/libSystem.tbd" "$oldest_macos" "$root/macos" "$@"
