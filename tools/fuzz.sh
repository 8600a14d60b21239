#!/bin/sh
# Builds the fuzz programs with clang and gives each SECONDS, all of them side by side: tools/fuzz.sh SECONDS
# What they find stays in build_fuzz/found/<program>/; the small corpus that the tests replay is tests/fuzz/corpus/.
# Last line: N passed, N failed, N skipped, counting programs.
set -eu
seconds=$1
targets=
for source in tests/fuzz/fuzz_*.c; do
    name=${source##*/}
    targets="$targets ${name%.c}"
done
CC=clang tools/build.sh build_fuzz "$targets" -DCMAKE_BUILD_TYPE=Debug -DSLUICE_FUZZ=ON \
    -DSLUICE_SANITIZE=address,undefined
for name in $targets; do
    found=build_fuzz/found/$name
    corpus=tests/fuzz/corpus/${name#fuzz_}
    [ -d "$corpus" ] || corpus=
    dict=tests/fuzz/${name#fuzz_}.dict
    [ -f "$dict" ] && dict=-dict=$dict || dict=
    mkdir -p "$found"
    echo "$name: $seconds s"
    rm -f "$found.ok"
    (
        "build_fuzz/tests/fuzz/$name" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
            $dict -artifact_prefix="$found/" "$found" $corpus >"$found.log" 2>&1 && touch "$found.ok"
    ) &
done
wait
passed=0
failed=0
for name in $targets; do
    found=build_fuzz/found/$name
    if [ -e "$found.ok" ]; then
        passed=$((passed + 1))
        echo "$name:"
        grep -E '^Done|^stat::average' "$found.log"
    else
        failed=$((failed + 1))
        tail -n 60 "$found.log"
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
