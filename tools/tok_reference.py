"""Reference tokenizers built from a model file's own vocabulary: SentencePiece's and Hugging Face's."""
import struct

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+ENDING|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER +
         r"*ENDING|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# The models' own expressions (tokenizer.json, tekken.json), each cutting what the one before left.
SPLITS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "llama-bpe": [CL100K % r"\p{N}{1,3}"],
    "glm4": [CL100K % r"\p{N}{1,3}"],
    "qwen2": [CL100K % r"\p{N}"],
    "qwen35": [ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "tekken": [CASED.replace("ENDING", "").replace("DIGITS", r"\p{N}")],
    "gpt-4o": [CASED.replace("ENDING", ENDINGS + "?").replace("DIGITS", r"\p{N}{1,3}")],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
}
WHOLE_PIECES = {"llama-bpe", "tekken"}


def bpe(meta, name, with_special):
    """Hugging Face's byte-level BPE with the split pattern of that name."""
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges,
                                     ignore_merges=name in WHOLE_PIECES))
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in SPLITS[name]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        cuts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if with_special:
        kinds = meta["tokenizer.ggml.token_type"]
        tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def field(number, value):
    """One field of a protocol buffer message: a number or bytes."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(int(value))


def pieces_model(meta):
    """SentencePiece's ModelProto (sentencepiece_model.proto) of a GGUF file's vocabulary."""
    out = bytearray()
    unknown = meta.get("tokenizer.ggml.unknown_token_id", 0)
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    for i, (token, score, kind) in enumerate(zip(tokens, meta["tokenizer.ggml.scores"], kinds)):
        text = token.replace(" ", "\u2581") if kind == 4 else token
        piece = field(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score)
        out += field(1, piece + field(3, 2 if i == unknown else kind))
    bos, eos = meta["tokenizer.ggml.bos_token_id"], meta["tokenizer.ggml.eos_token_id"]
    out += field(2, field(3, 2) + field(35, 1) + field(40, unknown) + field(41, bos) + field(42, eos) +
                 field(45, tokens[unknown].encode()) + field(46, tokens[bos].encode()) +
                 field(47, tokens[eos].encode()))
    out += field(3, field(1, b"identity") + field(3, int(meta.get("tokenizer.ggml.add_space_prefix", True))) +
                 field(4, 0) + field(5, 1))
    return bytes(out)


def pieces(meta):
    """SentencePiece itself over that vocabulary."""
    import sentencepiece  # only here: byte-level checks do without
    return sentencepiece.SentencePieceProcessor(model_proto=pieces_model(meta))


VERSION = tokenizers.__version__
