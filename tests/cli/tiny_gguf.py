"""Makes small GGUF files from a seed: a whole one that works, and any number of ways to break it.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Standard library only.
"""
import random
import struct

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
SCALARS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}
TYPE_F32, TYPE_Q6_K = 0, 14
N_EMBD, N_HEADS, N_KV, HEAD_DIM, N_FF, N_CTX = 64, 2, 1, 32, 96, 256
CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\\nYou are a small model<|im_end|>\\n' }}{% endif %}"
          "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def byte_letters():
    """The printable letter that byte-level BPE writes for each byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + extra)
            extra += 1
    return letters


def vocabulary():
    """(tokens, token types, merges): three control tokens, every byte, two merged tokens."""
    letters = byte_letters()
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [letters[byte] for byte in range(256)] + ["th", "the"]
    return tokens, [3, 3, 3] + [1] * 258, ["t h", "th e"]


class Tiny:
    """Metadata and tensors of a llama of one layer, or more; change them, then ask for the bytes.
    wide: 8 KiB of F16 keys and values a token and layer and a long context, so that a small budget needs flash."""

    def __init__(self, wide=False, layers=1):
        tokens, kinds, merges = vocabulary()
        n_heads, n_kv, head_dim, n_ctx = (16, 16, 128, 16384) if wide else (N_HEADS, N_KV, HEAD_DIM, N_CTX)
        self.version = 3
        self.meta = {
            "general.architecture": (STRING, "llama"),
            "general.name": (STRING, "tiny"),
            "llama.block_count": (U32, layers),
            "llama.context_length": (U32, n_ctx),
            "llama.embedding_length": (U32, N_EMBD),
            "llama.feed_forward_length": (U32, N_FF),
            "llama.attention.head_count": (U32, n_heads),
            "llama.attention.head_count_kv": (U32, n_kv),
            "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
            "llama.attention.key_length": (U32, head_dim),
            "llama.attention.value_length": (U32, head_dim),
            "llama.rope.dimension_count": (U32, head_dim),
            "llama.rope.freq_base": (F32, 10000.0),
            "llama.vocab_size": (U32, len(tokens)),
            "tokenizer.ggml.model": (STRING, "gpt2"),
            "tokenizer.ggml.pre": (STRING, "smollm"),
            "tokenizer.ggml.tokens": (ARRAY, STRING, tokens),
            "tokenizer.ggml.token_type": (ARRAY, I32, kinds),
            "tokenizer.ggml.merges": (ARRAY, STRING, merges),
            "tokenizer.ggml.bos_token_id": (U32, 1),
            "tokenizer.ggml.eos_token_id": (U32, 2),
            "tokenizer.ggml.add_bos_token": (BOOL, False),
            "tokenizer.chat_template": (STRING, CHATML),
        }
        q = n_heads * head_dim
        kv = n_kv * head_dim
        self.tensors = {  # name: [type, dimensions, fastest first]
            "token_embd.weight": [TYPE_F32, [N_EMBD, len(tokens)]],
            "blk.0.attn_norm.weight": [TYPE_F32, [N_EMBD]],
            "blk.0.attn_q.weight": [TYPE_F32, [N_EMBD, q]],
            "blk.0.attn_k.weight": [TYPE_F32, [N_EMBD, kv]],
            "blk.0.attn_v.weight": [TYPE_F32, [N_EMBD, kv]],
            "blk.0.attn_output.weight": [TYPE_F32, [q, N_EMBD]],
            "blk.0.ffn_norm.weight": [TYPE_F32, [N_EMBD]],
            "blk.0.ffn_gate.weight": [TYPE_F32, [N_EMBD, N_FF]],
            "blk.0.ffn_up.weight": [TYPE_F32, [N_EMBD, N_FF]],
            "blk.0.ffn_down.weight": [TYPE_F32, [N_FF, N_EMBD]],
            "output_norm.weight": [TYPE_F32, [N_EMBD]],
        }
        for layer in range(1, layers):
            for name in [n for n in self.tensors if n.startswith("blk.0.")]:
                self.tensors[name.replace("blk.0.", f"blk.{layer}.")] = list(self.tensors[name])
        self.nan_in = None  # name of a tensor whose first value is NaN

    def stretched(self, original):
        """A phi3 of one layer with LongRoPE's two sets: the short one serves `original` tokens. Returns itself."""
        dims = {name: dims for name, (_, dims) in self.tensors.items()}
        qkv = sum(dims.pop(f"blk.0.attn_{x}.weight")[1] for x in "qkv")
        dims["blk.0.attn_qkv.weight"] = [N_EMBD, qkv]
        dims["blk.0.ffn_up.weight"] = [N_EMBD, 2 * dims.pop("blk.0.ffn_gate.weight")[1]]
        n_pairs = self.meta["llama.rope.dimension_count"][1] // 2
        dims |= {f"rope_factors_{which}.weight": [n_pairs] for which in ("long", "short")}
        self.tensors = {name: [TYPE_F32, of] for name, of in dims.items()}
        self.meta = {key.replace("llama.", "phi3."): value for key, value in self.meta.items()}
        self.meta["general.architecture"] = (STRING, "phi3")
        self.meta["phi3.rope.scaling.type"] = (STRING, "longrope")
        self.meta["phi3.rope.scaling.original_context_length"] = (U32, original)
        return self

    def data(self):
        """Values of every tensor, each at a multiple of 32, and the offsets."""
        draw = random.Random(11)
        body, offsets = bytearray(), {}
        for name, (_, dims) in self.tensors.items():
            offsets[name] = len(body)
            n = 1
            for dim in dims:
                n *= dim
            n = min(n, 1 << 20)  # a dimension that lies has no data behind it
            is_one = name.endswith("norm.weight") or name.startswith("rope_factors")
            values = [1.0] * n if is_one else [draw.gauss(0, 0.1) for _ in range(n)]
            if name == self.nan_in:
                values[0] = float("nan")
            body += struct.pack(f"<{n}f", *values)
            body += bytes(-len(body) % 32)
        return bytes(body), offsets

    def pieces(self):
        """The file as a list of pieces: each boundary between two is a structural one."""
        body, offsets = self.data()
        text = lambda value: struct.pack("<Q", len(value.encode())) + value.encode()
        out = [b"GGUF", struct.pack("<I", self.version), struct.pack("<Q", len(self.tensors)),
               struct.pack("<Q", len(self.meta))]
        for key, (kind, *value) in self.meta.items():
            out += [text(key), struct.pack("<I", kind)]
            if kind == STRING:
                out.append(text(value[0]))
            elif kind == ARRAY:
                item, items = value
                packed = [text(v) if item == STRING else struct.pack(SCALARS[item], v) for v in items]
                out += [struct.pack("<I", item), struct.pack("<Q", len(items)), b"".join(packed)]
            else:
                out.append(struct.pack(SCALARS[kind], value[0]))
        for name, (kind, dims) in self.tensors.items():
            out += [text(name), struct.pack("<I", len(dims)), struct.pack(f"<{len(dims)}Q", *dims),
                    struct.pack("<I", kind), struct.pack("<Q", offsets[name])]
        head = sum(map(len, out))
        out += [bytes(-head % 32), body]
        return [piece for piece in out if piece]

    def bytes(self):
        return b"".join(self.pieces())
