#!/bin/sh
# Cross-builds the kernels' checks and the program for Linux on arm64 and runs them under qemu, whose processor has every
# level that Arm's kernels know; then compares all logits of a text with those of this machine's own build:
#   tools/arm64.sh DIR PROGRAM       PROGRAM: that build's `sluice`
# Downloads stay in DIR (cross.sh): compiler and libraries, and qemu, as apt gives it, unpacked there and installed
# nowhere. Last line: N passed, N failed, N skipped.
set -eu

step=arm64
tools=$(cd "$(dirname "$0")" && pwd)
. "$tools/cross.sh"

# Version 7.2 computes SME's outer products wrongly.
oldest_qemu=10
# It starts with vectors of 256 bits in SME, as Linux does by default: 512, the length of Apple's processors, is what
# the program asks for.
cpu=max
# Of the tests, those of arithmetic; the others know no processor.
targets="sluice test_kernel_levels test_kernels_attn test_kernels_gemm test_kernels_vec test_bits"
levels="ref neon i8mm sme"

is_new_enough() { # QEMU
    version=$("$1" --version 2>/dev/null | sed -n '1s/.*version \([0-9]*\)\..*/\1/p')
    [ "${version:-0}" -ge "$oldest_qemu" ]
}

find_qemu() {
    for qemu in "$root/qemu/usr/bin/qemu-aarch64" qemu-aarch64 qemu-aarch64-static; do
        ! is_new_enough "$qemu" || return 0
    done
    echo "fetching qemu by apt, 63 MB, unpacked in $root/qemu"
    open_packages deb
    suite=$release
    [ "$release" != bookworm ] || suite=bookworm-backports # whose own is 7.2
    sed -n "s|^\(deb .*\) $release main$|\1 $suite main|p" "$apt/sources" >"$apt/mirrors"
    mv "$apt/mirrors" "$apt/sources"
    update_packages "$suite"
    rm -rf "$root/qemu" "$root/qemu.new"
    mkdir -p "$root/qemu.new"
    (cd "$root/qemu.new" && quietly ask_apt -q download qemu-user) || die "apt-get could not fetch qemu-user from $suite"
    dpkg-deb --fsys-tarfile "$root/qemu.new"/qemu-user_*.deb | tar -x -C "$root/qemu.new" ./usr/bin/qemu-aarch64 ||
        die "$(cd "$root/qemu.new" && echo *.deb) holds no qemu-aarch64"
    rm -rf "$root/qemu.new"/*.deb
    close_packages
    mv "$root/qemu.new" "$root/qemu"
    qemu=$root/qemu/usr/bin/qemu-aarch64
    is_new_enough "$qemu" || die "$suite has qemu $version, not $oldest_qemu or later"
}

# A build folder for the test runner, of scripts that run the programs under qemu.
make_runners() {
    rm -rf "$root/arm64/run"
    mkdir -p "$root/arm64/run/tests/check"
    for target in $targets; do
        file=$(cd "$build" && find . -type f -name "$target" -perm -u+x)
        goal=$root/arm64/run/$target
        [ "$target" = sluice ] || goal=$root/arm64/run/tests/check/$target
        printf '#!/bin/sh\nexec "%s" -cpu %s "%s" "$@"\n' "$qemu" "$cpu" "$build/$file" >"$goal"
        chmod +x "$goal"
    done
}

run_tests() {
    echo "running them under qemu"
    SLUICE_TEST_TIMEOUT=${SLUICE_TEST_TIMEOUT:-600} python3 "$tools/run_tests.py" "$root/arm64/run" check \
        >"$root/arm64/tests" 2>&1 </dev/null || true
    grep -v '^ *skipped: ' "$root/arm64/tests" | sed '$d'
    sums=$(tail -n 1 "$root/arm64/tests" |
        sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/passed=\1 failed=\2 skipped=\3/p')
    [ -n "$sums" ] || die "the tests ended without a sum: $root/arm64/tests"
    eval "$sums"
}

hash_of_logits() { # LEVEL PROGRAM MODEL TEXT KV
    rm -f "$root/arm64/logits"
    SLUICE_CPU=$1 "$2" score -m "$3" -f "$4" --kv "$5" --logits "$root/arm64/logits" >"$log" 2>&1 </dev/null || return 1
    sha256sum "$root/arm64/logits" | cut -d' ' -f1
}

expect_logits() { # MODEL TEXT KV
    if ! native=$(hash_of_logits "" "$program" "$1" "$2" "$3"); then
        tail -n 5 "$log"
        native=none
    fi
    for level in $levels; do
        what="logits of ${1##*/}, cache $3, level $level"
        if got=$(hash_of_logits "$level" "$root/arm64/run/sluice" "$1" "$2" "$3") && [ "$got" = "$native" ]; then
            echo "PASS $what"
            passed=$((passed + 1))
        else
            tail -n 5 "$log"
            echo "FAIL $what: ${got:-none}, this machine's build $native"
            failed=$((failed + 1))
        fi
    done
}

cross_open "$1"
program=$2
[ -x "$program" ] || die "$program, this machine's build, is not there"
find_qemu
fetch_compiler
fetch_sources
kit=$root/arm64/kit
build=$root/arm64/build
make_tools aarch64-linux-musl
make_libraries "Linux on arm64"
echo "building the kernels' checks and sluice for Linux on arm64"
# Whatever pkg-config knows of this machine does not count.
export PKG_CONFIG_LIBDIR="$kit/lib/pkgconfig" PKG_CONFIG_PATH=
quietly "$tools/build.sh" "$build" "$targets" \
    -DCMAKE_TOOLCHAIN_FILE=cmake/arm64.cmake -DSLUICE_ARM64="$kit" -DSLUICE_URING=OFF -DSLUICE_EDIT=OFF \
    -DCMAKE_C_FLAGS=-DSLUICE_EMULATED || die "sluice could not be built"
make_runners
run_tests
golden=$tools/../tests/golden
for kv in f16 q8_0; do expect_logits "$golden/tiny.gguf" "$golden/tiny.txt" "$kv"; done
expect_logits "$golden/tiny_mixed.gguf" "$golden/tiny.txt" q8_0
if MODEL='' "$tools/get_model.sh" --here; then
    head -c 90 "$golden/demo.txt" >"$root/arm64/text"
    expect_logits "$(MODEL='' "$tools/get_model.sh")" "$root/arm64/text" q8_0
else
    echo "SKIP logits of the demo model: it is not here"
    skipped=$((skipped + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
