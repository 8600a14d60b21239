#!/usr/bin/env python3
"""The tokenizer's golden files: a text of 1 MB and the ids that Hugging Face `tokenizers` gives for it.

    make_tok_golden.py MODEL.gguf TEXT GOLDEN [--keep-text]

TEXT is made from a seed (--keep-text: read instead); characters are those that unicodedata knows, so that Python 3.11
gives Unicode 14. The reference tokenizer is built from MODEL's own vocabulary and merges. GOLDEN is described in
tests/golden/README.md. Needs the PyPI packages tokenizers and xxhash.
"""
import argparse
import array
import platform
import random
import sys
import unicodedata

import tokenizers
import xxhash
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

import gguf_file

SEED = 20261130
N_FIRST = 200
BLOCK_BYTES = 4096
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

SCRIPTS = [  # first and last code point of the ranges that words are drawn from
    (0x61, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x587), (0x5D0, 0x5EA), (0x620, 0x6D3),
    (0x710, 0x74F), (0x904, 0x94D), (0x985, 0x9CD), (0xB85, 0xBCD), (0xC05, 0xC4D), (0xE01, 0xE4E), (0xE81, 0xECD),
    (0xF40, 0xF84), (0x1000, 0x103A), (0x10D0, 0x10FF), (0x1200, 0x135A), (0x13A0, 0x13F5), (0x1780, 0x17D2),
    (0x1820, 0x1878), (0x1E00, 0x1FFE), (0x2C80, 0x2CF3), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x3105, 0x312F),
    (0x4E00, 0x9FFC), (0xAC00, 0xD7A3), (0xFF21, 0xFF5A), (0x10330, 0x1034A), (0x10400, 0x1044F), (0x12000, 0x12399),
    (0x13000, 0x1342E), (0x1D400, 0x1D7FF), (0x1E900, 0x1E943), (0x20000, 0x2A6DF),
]
SPACES = [9, 10, 11, 12, 13, 0x20, 0x20, 0x20, 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x200C), 0x2028, 0x2029,
          0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF]
WORDS = """the of and to a in that is was he for it with as his on be at by had not are but from or have an they which
one you were her all she there would their we him been has when who will more no if out so said what up its about into
than them can only other new some could time these two may then do first any my now such like our over man me even most
made after also did many before must through back years where much your way well down should because each just those
people how too little state good very make world still own see men work long get here between both life being under
never day same another know while last might us great old year off come since against go came right used take three
memory cache attention token context segment stream buffer kernel exact model layer disk flash tile window burst query
tokenizer serialization internationalization antidisestablishmentarianism supercalifragilistic GPU README HTTPServer
café naïve über Straße résumé São Łódź señor Ærø""".split()
CONTRACTIONS = ["I'm", "you're", "it's", "don't", "we've", "they'll", "he'd", "IT'S", "o'clock", "'sup", "can''t",
                "rock'n'roll", "'re", " 's", "I’m", "d'être", "'tis", "x'll'd've"]
NAMES = ["i", "n_tokens", "self", "buf", "fooBar", "parse_header", "MAX_SIZE", "x1", "__init__", "kvCache", "ptr",
         "tmp2"]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇯🇵", "1️⃣", "❤️", "🧑🏿‍🚀", "☠️", "🫠", "🫶", "🤷🏻‍♀️", "#️⃣", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "™️",
         "⌚"]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<reponame>", "<file_sep>", "<|im_start",
            "<<|im_end|>>", "<|im_end|><|im_end|>", "<empty_output>"]


def is_assigned(c):
    return unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")


def word(rng, letters):
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, 12)))


def prose(rng):
    out = []
    for _ in range(rng.randint(4, 30)):
        w = rng.choice(CONTRACTIONS) if rng.random() < 0.08 else WORDS[int(len(WORDS) * rng.random() ** 2)]
        out.append(w.capitalize() if rng.random() < 0.1 else w.upper() if rng.random() < 0.02 else w)
        if rng.random() < 0.15:
            out[-1] += rng.choice([",", ".", ";", ":", "?", "!", "...", " –", "—", "”", ")", "'", "\"", "!!!", " …"])
    return " ".join(out) + rng.choice([".\n", ".\n\n", ".\r\n", "\n", ". "])


def script(rng):
    first, last = rng.choice(SCRIPTS)
    letters = [chr(c) for c in range(first, last + 1) if is_assigned(c)]
    out = []
    for _ in range(rng.randint(3, 20)):
        out.append(word(rng, letters))
        out.append(rng.choice([" ", " ", " ", "", ", ", "。", "、", " - ", "؟ ", "।", "\n", "'s ", "3", " 42 ",
                               "\u0301"]))
    return "".join(out) + "\n"


def code(rng):
    out = []
    for _ in range(rng.randint(2, 10)):
        indent = rng.choice(["", "    ", "        ", "\t", "\t\t", "  "])
        a, b, c = (rng.choice(NAMES) for _ in range(3))
        n = rng.choice([0, 1, 7, 64, 255, 4096, 65537, 3.14159, 0.001, "0x7f", "1e-6", "1'000'000", "0b1011"])
        out.append(indent + rng.choice([
            f"for (int {a} = 0; {a} < {b}; {a}++) {{", f"if ({a} == NULL || {b}->{c} != {n})", "}", "} else {",
            f"def {a}({b}, *{c}, **kwargs):",
            f"return {a}[{n}:{b}] + f\"{{{c}!r:>{n}}}\"", f"#define {a.upper()} ({n}u)",
            f"/* {prose(rng).strip()} */", f"{{\"{a}\": {n}, \"{b}\": [null, true, \"\\u00e9\\n\"]}}",
            f"<div class=\"{a}-{b}\" id='{c}'>&nbsp;{n}%</div>", f"std::vector<{a}_t> {b}{{{n}}}; // {c}",
            f"$ {a} --{b}={n} | grep -E '^{c}+$' && echo $?",
            f"let {a}: &'static str = r#\"{b}\"#;", f"x = {n} ** {n}%7",
            f"assert {a} <= {b} <= {n}, '{c}'", f"lambda {a}: ({b} ^ ~{c}) >> 3 & 0xff"]))
    return "\n".join(out) + "\n"


def white(rng):
    return "".join(
        chr(rng.choice(SPACES)) * rng.choice([1, 1, 1, 2, 3, 17]) + rng.choice(["", "", "a", "Ω", "7", "!", "\n"])
        for _ in range(rng.randint(3, 40)))


def digits(rng):
    kind = rng.choice(["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "½⅓²³ⅣⅫ①㊿", "０１２３", "𝟘𝟙𝟚𝟛", "一二三"])
    number = "".join(rng.choice(kind) for _ in range(rng.choice([1, 2, 3, 5, 9, 40, 300])))
    return number + rng.choice([" ", ".", "km", "\n"])


def controls(rng):
    kinds = [*range(32), *range(127, 160), 0xAD, 0x200D, 0xFE0F, 0xE0001]
    return "".join(chr(rng.choice(kinds)) + rng.choice(["", "", "a", "=", " "]) for _ in range(rng.randint(2, 30)))


def symbols(rng):
    kinds = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~§±×÷€←→∀∑≤█▓♞\x04\x16\x1d"
    return "".join(rng.choice(kinds) * rng.choice([1, 1, 1, 2, 3, 30])
                   for _ in range(rng.randint(2, 30))) + rng.choice([" ", "\n"])


def emoji(rng):
    return "".join(rng.choice(EMOJI) + rng.choice(["", "", " ", "a", "3", "!"])
                   for _ in range(rng.randint(1, 12))) + "\n"


def special(rng):
    return rng.choice(SPECIALS) + rng.choice(["user\n", "", " ", "x"])


def build_text():
    rng = random.Random(SEED)
    # Every assigned character but the ideographs and Hangul syllables, whose neighbours decide how it is split.
    rare = [c for c in range(0x110000) if is_assigned(c) and not unicodedata.name(chr(c), "").startswith(
        ("CJK UNIFIED", "CJK COMPAT", "HANGUL SYLLABLE", "TANGUT IDEOGRAPH", "NUSHU", "KHITAN", "EGYPTIAN", "ANATOLIAN",
         "CUNEIFORM", "BAMUM LETTER PHASE", "YI SYLLABLE", "LINEAR", "VARIATION SELECTOR-"))]
    rng.shuffle(rare)
    every = "".join(chr(c) + rng.choice(["", " ", "a", "1", ".", "  ", "\n"]) for c in rare)
    runs = ["a" * 20000, "ab" * 3000, " " * 5000, "\u3000" * 3000, "=" * 7001, "\n" * 999, "7" * 2000, "é" * 3000,
            "中" * 2000, "x" * 65, "x" * 64, "y" * 63, "!\x04" * 50, "\t" * 130, "the" * 1000, "\U000E0101" * 20]
    out = [every[:len(every) // 2], *[r + rng.choice(["\n", " end\n", "9\n"]) for r in runs],
           every[len(every) // 2:], "\n"]
    makers = [prose, prose, prose, prose, script, script, script, code, code, white, digits, controls, symbols,
              emoji, special]
    size = sum(len(s.encode()) for s in out)
    while size < 1_000_000:
        out.append(rng.choice(makers)(rng))
        size += len(out[-1].encode())
    return "".join(out) + " \n "  # ends in white space: the look-ahead at the end of the text


def pattern(name):
    if name == "smollm":
        return [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if name == "gpt-2":
        return [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    cuts = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]
    return [*[pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts],
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def reference(meta, name, with_special):
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pattern(name))
    if with_special:
        kinds = meta["tokenizer.ggml.token_type"]
        tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer


def ids_line(ids):
    packed = array.array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return f"{len(ids)} {xxhash.xxh3_64_hexdigest(packed.tobytes())}"


def blocks(data):
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + BLOCK_BYTES)
        end = len(data) if end < 0 else end + 1
        yield start, end
        start = end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("golden")
    parser.add_argument("--keep-text", action="store_true")
    args = parser.parse_args()
    if not args.keep_text:
        with open(args.text, "wb") as f:
            f.write(build_text().encode())
    with open(args.text, "rb") as f:
        data = f.read()
    meta = gguf_file.Gguf(args.model).meta
    plain = reference(meta, "smollm", False)
    with open(args.golden, "w", encoding="ascii") as f:
        f.write(f"# tokenizers {tokenizers.__version__}, Python {platform.python_version()}, "
                f"Unicode {unicodedata.unidata_version}, seed {SEED}\n")
        f.write(f"text {len(data)} {xxhash.xxh3_64_hexdigest(data)}\n")
        ids = plain.encode(data.decode()).ids
        f.write("first " + " ".join(map(str, ids[:N_FIRST])) + "\n")
        tokens = meta["tokenizer.ggml.tokens"]
        lacking = len(data) - sum(len(tokens[i]) for i in ids)  # each character of a spelling is a byte
        f.write(f"dropped {lacking}\n")
        for name, with_special in (("smollm", False), ("smollm", True), ("gpt-2", False), ("default", False)):
            ids = reference(meta, name, with_special).encode(data.decode()).ids
            f.write(f"whole {name} {int(with_special)} {ids_line(ids)}\n")
        for start, end in blocks(data):
            f.write(f"block {start} {end - start} {ids_line(plain.encode(data[start:end].decode()).ids)}\n")


if __name__ == "__main__":
    main()
