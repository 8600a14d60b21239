#!/bin/sh
# Measures this machine: tools/bench.sh BUILD [quick|full|mmap]        quick: minutes; full: hours, 5 GB of disk
# Builds the program and the measuring programs; writes bench/<machine>.csv (tools/bench.py), and the kernels' rates to
# BUILD/bench/<name>.csv, each figure's meaning standing at the head of its source. mmap: that comparison alone.
set -eu
build=$1
mode=${2:-quick}
tools/build.sh "$build" "sluice bench"
[ "$mode" = mmap ] || for source in bench/bench_*.c; do
    name=$(basename "$source" .c)
    echo "== $name"
    "$build/bench/$name" | tee "$build/bench/$name.csv"
done
exec python3 tools/bench.py "$build" "$mode"
