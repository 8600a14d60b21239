#!/bin/sh
# Configures DIR when that is due and builds TARGETS in it: tools/build.sh DIR "TARGETS" [cmake options...]
# A failed configuration shows its whole output; a good one nothing.
set -eu
dir=$1
targets=$2
shift 2

generator=
[ -e "$dir/CMakeCache.txt" ] || ! command -v ninja >/dev/null || generator="-GNinja"
mkdir -p "$dir"
if ! cmake -S . -B "$dir" $generator "$@" >"$dir/configure.log" 2>&1; then
    cat "$dir/configure.log" >&2
    echo "sluice: cmake could not configure $dir" >&2
    exit 1
fi
if [ -e "$dir/build.ninja" ]; then
    cmake --build "$dir" --target $targets
else
    MAKEFLAGS=--no-print-directory cmake --build "$dir" --target $targets --parallel "$(nproc)"
fi
