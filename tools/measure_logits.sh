#!/bin/sh
# How far the engine's logits are from an independent binary32 forward pass, beside llama.cpp's distance:
#   tools/measure_logits.sh MODEL TEXT [BUILD [WORK]]
# PYTHON names a Python that has numpy, tokenizers and, for the peer, llama-cpp-python (a virtual environment, say).
# Two weights x two caches; takes minutes, and 2 GB in WORK for 2,000 tokens of the demo model.
set -eu
model=$1 text=$2 build=${3:-build} work=${4:-$(mktemp -d)}
python=${PYTHON:-python3}
here=$(dirname "$0")
mkdir -p "$work"
"$python" "$here/reference_tokens.py" "$model" "$text" "$work/ids.txt"
"$python" "$here/reference_forward.py" "$model" --ids "$work/ids.txt" --logits "$work/reference.bin"
compare() {
    echo "== $1"
    "$python" "$here/compare_logits.py" --ids "$work/ids.txt" --reference "$work/reference.bin" --logits "$work/$2"
    rm -f "$work/$2"
}
for kv in f16 q8_0; do
    "$build/sluice" score -m "$model" -f "$text" --kv "$kv" --logits "$work/engine.bin" >"$work/scores"
    compare "engine, weights of the file, $kv cache" engine.bin
done
"$python" "$here/rewrite_f32.py" "$model" "$work/f32.gguf"
"$build/sluice" score -m "$work/f32.gguf" -f "$text" --kv f16 --logits "$work/engine.bin" >"$work/scores"
compare "engine, weights rewritten as F32, f16 cache" engine.bin
rm -f "$work/f32.gguf"
if "$python" -c 'import llama_cpp' 2>/dev/null; then
    "$python" "$here/peer_llamacpp.py" logits "$model" --ids "$work/ids.txt" --out "$work/peer.bin"
    compare "llama.cpp, weights of the file, F16 cache" peer.bin
else
    echo "== llama.cpp: not measured, this Python lacks llama-cpp-python"
fi
