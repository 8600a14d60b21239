# Shared by macos.sh and arm64.sh, which set `step` (their name in messages) and `tools` and call cross_open DIR: the
# compiler (`zig cc`) as pip gives it, and libraries made by it from their upstream sources as apt gives them, each held
# to the checksum below. What is fetched stays in DIR, for both.

zig_version=0.17.1
zig_hashes="ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54
b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e" # Linux on x86_64, on aarch64
xxhash=xxhash_0.8.1.orig.tar.gz
xxhash_sha256=3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c
pcre2=pcre2_10.42.orig.tar.gz
pcre2_sha256=c33b418e3b936ee3153de2c61cc638e7e4fe3156022a5c77d0711bcbb9d64f1f
cmocka=cmocka_1.1.5.orig.tar.xz
cmocka_sha256=f0ccd8242d55e2fd74b16ba518359151f6f8383ff8aef4976e48393f77bba8b6

cross_open() { # DIR: becomes $root
    mkdir -p "$1"
    root=$(cd "$1" && pwd)
    log=$root/log
    rm -f "$log"
}

# One clear line, after the end of what the failed step said.
die() {
    [ ! -s "$log" ] || tail -n 15 "$log" >&2
    echo "sluice: make $step: $1" >&2
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}

# Runs a command with its output kept aside; a line every ten seconds shows that it lives.
quietly() {
    "$@" >"$log" 2>&1 </dev/null &
    job=$!
    seconds=0
    while kill -0 "$job" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        [ $((seconds % 10)) -ne 0 ] || echo "  ... $seconds s"
    done
    wait "$job"
}

fetch_compiler() {
    [ ! -e "$root/zig/$zig_version" ] || return 0
    echo "fetching zig $zig_version by pip, 100 MB, kept in $root/zig"
    python=python3
    "$python" -m pip --version >/dev/null 2>&1 || python=/usr/bin/python3
    rm -rf "$root/zig" "$root/zig.new" "$root/tmp"
    mkdir -p "$root/tmp"
    printf 'ziglang==%s' "$zig_version" >"$root/zig.txt"
    for hash in $zig_hashes; do printf ' --hash=sha256:%s' "$hash" >>"$root/zig.txt"; done
    quietly env TMPDIR="$root/tmp" "$python" -m pip install --no-deps --no-cache-dir --no-compile --only-binary :all: \
        --disable-pip-version-check --require-hashes --target "$root/zig.new" -r "$root/zig.txt" ||
        die "pip could not fetch ziglang $zig_version, the compiler"
    rm -rf "$root/tmp"
    mv "$root/zig.new" "$root/zig"
    touch "$root/zig/$zig_version"
}

is_right() { # FILE SHA256
    [ -e "$1" ] && printf '%s  %s\n' "$2" "$1" | sha256sum -c --status
}

# Debian's indexes beside this machine's own package lists, from the mirrors that apt is set up with.
ask_apt() {
    apt-get -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o Dir::Etc::SourceList="$apt/sources" \
        -o Dir::Etc::SourceParts=/dev/null -o Acquire::Languages=none "$@"
}
open_packages() { # deb or deb-src
    apt=$root/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    command -v apt-get >/dev/null || die "the packages it needs come by apt-get, which is not here"
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
    apt-get -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" update --print-uris 2>"$log" |
        sed -n "s|^'\(.*\)/dists/\($release[^/]*\)/InRelease'.*|$1 \1 \2 main|p" >"$apt/sources"
    [ -s "$apt/sources" ] || die "apt is set up with no mirror of Debian's $release"
}
close_packages() {
    rm -rf "$root/apt"
    apt=
}
update_packages() { # WHAT
    quietly ask_apt -q update || die "apt-get could not fetch the index of $1"
}

fetch_source() { # PACKAGE FILE SHA256
    ! is_right "$root/sources/$2" "$3" || return 0
    if [ -z "${apt:-}" ]; then
        open_packages deb-src
        update_packages "Debian's source packages"
    fi
    rm -f "$root/sources/$1"_*
    # The upstream part alone: Debian's changes to it come and go with point releases, this stays.
    (cd "$root/sources" && quietly ask_apt -q source --download-only --tar-only "$1") ||
        die "apt-get could not fetch the sources of $1, or their index"
    [ -e "$root/sources/$2" ] || die "apt has other sources of $1 than $2: $(cd "$root/sources" && echo "$1"_*)"
    is_right "$root/sources/$2" "$3" || die "$2 is not the expected file: its SHA-256 is not $3"
}

fetch_sources() {
    mkdir -p "$root/sources"
    is_right "$root/sources/$xxhash" "$xxhash_sha256" && is_right "$root/sources/$pcre2" "$pcre2_sha256" &&
        is_right "$root/sources/$cmocka" "$cmocka_sha256" ||
        echo "fetching the sources of xxHash, PCRE2 and cmocka by apt-get, 13 MB with their index"
    fetch_source xxhash "$xxhash" "$xxhash_sha256"
    fetch_source pcre2 "$pcre2" "$pcre2_sha256"
    fetch_source cmocka "$cmocka" "$cmocka_sha256"
    close_packages
}

make_tools() { # TARGET [OPTIONS]: the compiler for it, in $kit
    mkdir -p "$kit/bin" "$kit/lib/pkgconfig" "$kit/include"
    for tool in cc ar ranlib; do
        options=
        [ $tool != cc ] || options="-target $*"
        cat >"$kit/bin/$tool" <<EOF
#!/bin/sh
export ZIG_GLOBAL_CACHE_DIR='$root/zig-cache' ZIG_LOCAL_CACHE_DIR='$root/zig-cache'
exec '$root/zig/ziglang/zig' $tool $options "\$@"
EOF
        chmod +x "$kit/bin/$tool"
    done
}

# Compiles C files, two or more at a time, into a library: archive NAME FILES... -- OPTIONS...
archive() {
    name=$1
    shift
    files=
    while [ "$1" != -- ]; do
        files="$files $1"
        shift
    done
    shift
    rm -rf "$kit/obj/$name"
    mkdir -p "$kit/obj/$name"
    cd "$kit/obj/$name" || return 1
    printf '%s\n' $files | xargs -P "$(nproc)" -n 1 "$kit/bin/cc" -O2 -DNDEBUG -w "$@" -c &&
        rm -f "$kit/lib/lib$name.a" && "$kit/bin/ar" rcs "$kit/lib/lib$name.a" ./*.o
}

describe() { # NAME VERSION LIBRARY [OPTIONS]: for pkg-config
    printf 'Name: %s\nDescription: cross-built\nVersion: %s\nCflags: -I%s %s\nLibs: -L%s -l%s\n' "$1" "$2" "$kit/include" \
        "${4:-}" "$kit/lib" "$3" >"$kit/lib/pkgconfig/$1.pc"
}

make_xxhash() {
    cp "$kit/src/xxHash-0.8.1/xxhash.h" "$kit/include/" &&
        archive xxhash "$kit/src/xxHash-0.8.1/xxhash.c" -- &&
        describe libxxhash 0.8.1 xxhash
}

# As PCRE2's NON-AUTOTOOLS-BUILD says; with Unicode and the compiler to machine code, as Debian has it.
make_pcre2() {
    src=$kit/src/pcre2-10.42/src
    files=
    for part in auto_possess chartables compile config context convert dfa_match error extuni find_bracket \
        jit_compile maketables match match_data newline ord2utf pattern_info script_run serialize string_utils study \
        substitute substring tables ucd valid_utf xclass; do
        files="$files $src/pcre2_$part.c"
    done
    cp "$src/pcre2.h.generic" "$kit/include/pcre2.h" && cp "$src/config.h.generic" "$src/config.h" &&
        cp "$src/pcre2_chartables.c.dist" "$src/pcre2_chartables.c" &&
        archive pcre2-8 $files -- -DHAVE_CONFIG_H -DHAVE_MEMMOVE -DPCRE2_CODE_UNIT_WIDTH=8 -DPCRE2_STATIC \
            -DSUPPORT_UNICODE -DSUPPORT_JIT -I"$src" -I"$kit/include" &&
        describe libpcre2-8 10.42 pcre2-8
}

# What cmocka's configuration would find on macOS, and on Linux too.
make_cmocka() {
    own=-D_UINTPTR_T_DEFINED # by <stdint.h>, of which its header knows some by name only
    has=
    for header in ASSERT INTTYPES SETJMP SIGNAL STDARG STDDEF STDINT STDIO STDLIB STRING STRINGS SYS_STAT SYS_TYPES TIME \
        UNISTD; do
        has="$has -DHAVE_${header}_H=1"
    done
    for feature in CALLOC CLOCK_GETTIME CLOCK_REALTIME EXIT FPRINTF FREE GCC_THREAD_LOCAL_STORAGE LONGJMP MALLOC MEMCPY \
        MEMSET PRINTF SETJMP SIGLONGJMP SIGNAL SNPRINTF STRCMP STRCPY STRSIGNAL STRUCT_TIMESPEC VSNPRINTF; do
        has="$has -DHAVE_$feature=1"
    done
    cp "$kit/src/cmocka-1.1.5/include/cmocka.h" "$kit/include/" &&
        archive cmocka "$kit/src/cmocka-1.1.5/src/cmocka.c" -- $has $own -I"$kit/src/cmocka-1.1.5/include" &&
        describe cmocka 1.1.5 cmocka "$own"
}

build_libraries() {
    rm -rf "$kit/src"
    mkdir -p "$kit/src"
    for file in "$xxhash" "$pcre2" "$cmocka"; do tar -xf "$root/sources/$file" -C "$kit/src" || return 1; done
    make_xxhash && make_pcre2 && make_cmocka && rm -rf "$kit/src" "$kit/obj"
}

# Anew when they were made of other versions or by other rules than this file has.
make_libraries() { # NAME of the system
    made_of=$(sha256sum "$tools/cross.sh" | cut -d' ' -f1)
    [ "$(cat "$kit/made_of" 2>/dev/null)" != "$made_of" ] || return 0
    echo "building xxHash, PCRE2 and cmocka for $1"
    quietly build_libraries || die "the libraries could not be built for $1"
    rm -f "$kit/../build/CMakeCache.txt" # which remembers what pkg-config said of the former ones
    echo "$made_of" >"$kit/made_of"
}
