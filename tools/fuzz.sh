#!/bin/sh
# Builds the fuzz programs with clang and gives each SECONDS: tools/fuzz.sh SECONDS
# New findings stay in build_fuzz/found/<program>/; the small corpus that the tests replay is tests/fuzz/corpus/<program>/.
set -eu
seconds=$1
CC=clang tools/build.sh build_fuzz all -DCMAKE_BUILD_TYPE=Debug -DSLUICE_FUZZ=ON \
    -DSLUICE_SANITIZE=address,undefined
ran=0
for program in build_fuzz/tests/fuzz/fuzz_*; do
    [ -x "$program" ] && [ -f "$program" ] || continue
    name=${program##*/}
    found=build_fuzz/found/$name
    mkdir -p "$found"
    corpus=tests/fuzz/corpus/$name
    [ -d "$corpus" ] || corpus=
    echo "$name: $seconds s"
    "$program" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
        -artifact_prefix="$found/" "$found" $corpus
    ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || { echo "sluice: no fuzz program was built" >&2; exit 1; }
