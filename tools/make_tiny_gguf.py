#!/usr/bin/env python3
"""Makes a tiny random `llama` model from a seed, for golden values and tests.

    make_tiny_gguf.py OUT.gguf [--type F32|F16|BF16|Q8_0|Q4_0|Q4_1|mixed] [--seed 1] [--context 8192] [--untied]

2 layers, 4 query heads on 2 KV heads of 32 dimensions, hidden 128, FFN 192; byte-level vocabulary of 3 special
tokens, 256 bytes and 61 merges learnt from the text below; pattern `smollm`; ChatML template. Weights are whole numbers
in -7..7 times a power of two, so every type stores exactly the same values and one golden file serves them all: what
differs between the types is the engine's loader and its 8-bit activations only.
"""
import argparse
import re
import struct

import numpy as np

import gguf_file as gf

N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, N_EMBD, N_FF = 2, 4, 2, 32, 128, 192
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
N_MERGES = 61
TEXT = """The store keeps the keys and the values of every token on flash, and the reader brings them back in order.
When the last segment has been read, the rows of the window are done, and the next layer can begin. There is no
other way to know what the text said: all of the past is in the cache, and the cache is in the file. int main(void)
{ return 0; } for (int i = 0; i < 10; i++) { total += values[i]; } In the year 1984 there were 365 days.
"""
TEMPLATE = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
            "{{ '<|im_start|>system\nYou are a tiny test model<|im_end|>\n' }}{% endif %}"
            "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# Matrices of one layer: (name, rows, columns, log2 of the scale, type in a mixed file).
LAYER = [("attn_q", N_HEADS * HEAD_DIM, N_EMBD, -5, "F16"), ("attn_k", N_KV_HEADS * HEAD_DIM, N_EMBD, -5, "BF16"),
         ("attn_v", N_KV_HEADS * HEAD_DIM, N_EMBD, -6, "Q8_0"), ("attn_output", N_EMBD, N_HEADS * HEAD_DIM, -5, "Q4_0"),
         ("ffn_gate", N_FF, N_EMBD, -5, "Q4_1"), ("ffn_up", N_FF, N_EMBD, -6, "Q8_0"),
         ("ffn_down", N_EMBD, N_FF, -6, "F32")]
# GPT-2's pattern for ASCII without digits, which `smollm` splits off one by one before.
PIECES = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+(?!\S)|\s+")


def byte_letters():
    """The letters by which byte-level BPE writes the 256 bytes: printable Latin-1 as itself, the rest from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(0x100 + i) for i, b in enumerate(rest)}}


def pair_counts(words):
    counts = {}
    for word in words:
        for pair in zip(word, word[1:]):
            counts[pair] = counts.get(pair, 0) + 1
    return counts


def merge_word(word, pair):
    out, i = [], 0
    while i < len(word):
        if tuple(word[i:i + 2]) == pair:
            out.append(pair[0] + pair[1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def spell(text):
    letters = byte_letters()
    pieces = [piece for part in re.split("([0-9])", text) for piece in PIECES.findall(part)]
    return [[letters[b] for b in piece.encode()] for piece in pieces]


def learn_merges():
    words, merges = spell(TEXT), []
    while len(merges) < N_MERGES:
        counts = pair_counts(words)
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        words = [merge_word(word, best) for word in words]
    return merges


def encode(text, merges, tokens):
    """Ids of an ASCII text without control characters but tab and line feed."""
    ids = []
    for word in spell(text):
        for pair in merges:
            word = merge_word(word, pair)
        ids += [tokens.index(piece) for piece in word]
    return ids


def random_words(seed, stream, n):
    """splitmix64 (Steele, Lea, Flood 2014) as a counter: the same numbers with every version of numpy."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed * 1000003 + stream) * np.uint64(0xD1342543DE82EF95)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def whole_numbers(seed, stream, n):
    """-7..7 with a peak at 0: the sum of two numbers out of -3..3 and one out of -1..1."""
    z = random_words(seed, stream, n)
    parts = [(z >> np.uint64(shift)) % np.uint64(m) for shift, m in ((0, 7), (20, 7), (40, 3))]
    return sum(part.astype(np.int64) for part in parts) - 7


def encode_weights(q, log2_scale, type_name):
    """q [rows][columns] whole numbers; the value is q * 2^log2_scale in every type."""
    d = np.float16(2.0 ** log2_scale)
    values = q.astype(np.float32) * np.float32(d)
    if type_name == "F32":
        return values.astype("<f4").tobytes()
    if type_name == "F16":
        return values.astype("<f2").tobytes()
    if type_name == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    blocks = q.reshape(-1, 32)
    scale = np.full((len(blocks), 1), d, dtype="<f2").view(np.uint8).reshape(-1, 2)
    if type_name == "Q8_0":
        return np.concatenate([scale, blocks.astype(np.int8).view(np.uint8)], axis=1).tobytes()
    u = (blocks + 8).astype(np.uint8)
    packed = u[:, :16] | u[:, 16:] << 4
    low = np.full((len(blocks), 1), np.float16(-8) * d, dtype="<f2").view(np.uint8).reshape(-1, 2)
    return np.concatenate([scale, packed] if type_name == "Q4_0" else [scale, low, packed], axis=1).tobytes()


def metadata(tokens, merges, args):
    text, u32, f32 = gf.STRING, gf.U32, gf.F32_VALUE
    items = [("general.architecture", text, "llama"), ("general.name", text, f"tiny {args.type} {args.seed}"),
             ("llama.block_count", u32, N_LAYERS), ("llama.context_length", u32, args.context),
             ("llama.embedding_length", u32, N_EMBD), ("llama.feed_forward_length", u32, N_FF),
             ("llama.attention.head_count", u32, N_HEADS), ("llama.attention.head_count_kv", u32, N_KV_HEADS),
             ("llama.attention.layer_norm_rms_epsilon", f32, 1e-5), ("llama.rope.freq_base", f32, 10000.0),
             ("llama.rope.dimension_count", u32, HEAD_DIM), ("llama.vocab_size", u32, len(tokens)),
             ("tokenizer.ggml.model", text, "gpt2"), ("tokenizer.ggml.pre", text, "smollm"),
             ("tokenizer.ggml.tokens", (gf.ARRAY, text), tokens),
             ("tokenizer.ggml.token_type", (gf.ARRAY, gf.I32), [3] * 3 + [1] * (len(tokens) - 3)),
             ("tokenizer.ggml.merges", (gf.ARRAY, text), [" ".join(pair) for pair in merges]),
             ("tokenizer.ggml.bos_token_id", u32, 1), ("tokenizer.ggml.eos_token_id", u32, 2),
             ("tokenizer.ggml.add_bos_token", gf.BOOL, False), ("tokenizer.chat_template", text, TEMPLATE)]
    return {key: gf.encode_value(kind, value) for key, kind, value in items}


def make_tensors(n_vocab, args):
    tensors = []

    def matrix(name, rows, columns, log2_scale, mixed):
        type_name = mixed if args.type == "mixed" else args.type
        q = whole_numbers(args.seed, len(tensors), rows * columns).reshape(rows, columns)
        data = encode_weights(q, log2_scale, type_name)
        tensors.append((name, (rows, columns), gf.TYPE_IDS[type_name], lambda: data))

    def norm(name):
        q = random_words(args.seed, len(tensors), N_EMBD) % np.uint64(65)
        data = struct.pack(f"<{N_EMBD}f", *(0.5 + q.astype(np.float64) / 64))
        tensors.append((name, (N_EMBD,), gf.TYPE_IDS["F32"], lambda: data))

    matrix("token_embd.weight", n_vocab, N_EMBD, -4, "Q8_0")
    for layer in range(N_LAYERS):
        norm(f"blk.{layer}.attn_norm.weight")
        norm(f"blk.{layer}.ffn_norm.weight")
        for name, rows, columns, log2_scale, mixed in LAYER:
            matrix(f"blk.{layer}.{name}.weight", rows, columns, log2_scale, mixed)
    norm("output_norm.weight")
    if args.untied:
        matrix("output.weight", n_vocab, N_EMBD, -4, "Q8_0")
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--type", default="F32", choices=["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "mixed"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--untied", action="store_true", help="an output matrix of its own")
    parser.add_argument("--encode", nargs=2, metavar=("TEXT", "IDS"), help="also writes the ids of an ASCII text")
    args = parser.parse_args()
    letters, merges = byte_letters(), learn_merges()
    tokens = SPECIALS + [letters[b] for b in range(256)] + [a + b for a, b in merges]
    gf.write(args.out, metadata(tokens, merges, args), make_tensors(len(tokens), args))
    if args.encode:
        with open(args.encode[0], encoding="ascii") as f:
            ids = encode(f.read(), merges, tokens)
        with open(args.encode[1], "w", encoding="ascii") as f:
            f.write(" ".join(map(str, ids)) + "\n")


if __name__ == "__main__":
    main()
