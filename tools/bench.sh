#!/bin/sh
# Builds and runs every measuring program; each figure's meaning stands at the head of its source.
#   tools/bench.sh BUILD        the CSV of each goes to stdout and BUILD/bench/<name>.csv
set -eu
build=$1
tools/build.sh "$build" bench
for source in bench/bench_*.c; do
    name=$(basename "$source" .c)
    echo "== $name"
    "$build/bench/$name" | tee "$build/bench/$name.csv"
done
