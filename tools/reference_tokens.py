#!/usr/bin/env python3
"""Token ids of a text by Hugging Face `tokenizers`, from the vocabulary and merges inside a GGUF file.

    reference_tokens.py MODEL.gguf TEXT IDS [--limit N]

For GGUF pattern `smollm`: single digits split off, then GPT-2's byte-level pattern. No special tokens, no BOS.
"""
import argparse

from tokenizers import Tokenizer, models, pre_tokenizers

import gguf_file as gf


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("ids")
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    meta = gf.Gguf(args.model).meta
    if meta["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"pattern {meta['tokenizer.ggml.pre']} is not known here")
    vocab = {token: i for i, token in enumerate(meta["tokenizer.ggml.tokens"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    with open(args.text, encoding="utf-8", newline="") as f:
        ids = tokenizer.encode(f.read(), add_special_tokens=False).ids[:args.limit]
    with open(args.ids, "w", encoding="ascii") as f:
        f.write(" ".join(map(str, ids)) + "\n")
    print(f"{len(ids)} tokens")


if __name__ == "__main__":
    main()
