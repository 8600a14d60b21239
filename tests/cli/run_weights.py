#!/usr/bin/env python3
"""A model twice as large as --ram: weights that do not fit stay in the file and stream.

  tests/cli/run_weights.py BUILD      SLUICE_DEMO_MODEL names a real model; without it its cases are skipped

A seeded model of random weights, and the demo model. Under budgets of half the weights and less: the logits and the
answer of a run that holds everything, bit for bit, plain, drafted, and behind a context file; the peak resident set at
most --ram; what the kernel says was read from the disk (the model being in the page cache while it is loaded) and what
the run says at most what the plan said, pass by pass; the refusal names a figure that does. Prints PASS, FAIL or SKIP.
"""
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run_budget import watch  # noqa: E402
from tiny_gguf import STRING, U32, Tiny  # noqa: E402

MIB = 1 << 20
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


def write_model(path, layers, embd, ff):
    """A llama of Q8_0 with random weights of a size that keeps the logits finite."""
    tiny, draw, heads, kv_heads, head_dim = Tiny(), random.Random(4), embd // 64, embd // 128, 64
    tiny.meta.update({"llama.block_count": (U32, layers), "llama.context_length": (U32, 8192),
                      "llama.embedding_length": (U32, embd), "llama.feed_forward_length": (U32, ff),
                      "llama.attention.head_count": (U32, heads), "llama.attention.head_count_kv": (U32, kv_heads),
                      "llama.attention.key_length": (U32, head_dim), "llama.attention.value_length": (U32, head_dim),
                      "llama.rope.dimension_count": (U32, head_dim), "general.name": (STRING, "random")})
    n_vocab, q, kv, q8_0, f32 = len(tiny.meta["tokenizer.ggml.tokens"][2]), heads * head_dim, kv_heads * head_dim, 8, 0
    tensors = {"token_embd.weight": [q8_0, [embd, n_vocab]], "output_norm.weight": [f32, [embd]]}
    for i in range(layers):
        tensors.update({f"blk.{i}.{name}.weight": value for name, value in {
            "attn_norm": [f32, [embd]], "attn_q": [q8_0, [embd, q]], "attn_k": [q8_0, [embd, kv]],
            "attn_v": [q8_0, [embd, kv]], "attn_output": [q8_0, [q, embd]], "ffn_norm": [f32, [embd]],
            "ffn_gate": [q8_0, [embd, ff]], "ffn_up": [q8_0, [embd, ff]], "ffn_down": [q8_0, [ff, embd]]}.items()})
    body, offsets = bytearray(), {}
    for name, (kind, dims) in tensors.items():
        offsets[name] = len(body)
        n = dims[0] * (dims[1] if len(dims) > 1 else 1)
        if kind == f32:
            body += b"\0\0\x80\x3f" * n  # 1.0
        else:
            blocks = bytearray(draw.randbytes(n // 32 * 34))
            blocks[0::34], blocks[1::34] = b"\0" * (n // 32), b"\x0c" * (n // 32)  # a scale of 2^-12
            body += blocks
        body += bytes(-len(body) % 32)
    tiny.tensors, tiny.data = tensors, lambda: (bytes(body), offsets)
    path.write_bytes(tiny.bytes())


class Place:
    def __init__(self, program, model, folder, text):
        self.program, self.model, self.folder, self.text = program, str(model), folder, text

    def watched(self, command, ram, *more):
        argv = [self.program, command, "-m", self.model, "--ram", str(ram), "--threads", "2", "--kv-dir", self.folder]
        done = watch(argv + [str(word) for word in more])
        if done["code"] != 0:
            return None, [f"{command}: exit code {done['code']}: {done['err'][-300:]}"]
        return done, [f"peak {done['peak']} of {ram}"] if done["peak"] > ram else []

    def answer(self, ram, *more):
        done, problems = self.watched("run", ram, "-f", self.text, "-p", "what follows", "-n", "10", "--json", *more)
        return (json.loads(done["out"]) if done else None), done, problems

    def logits(self, ram, *more):
        path = Path(self.folder) / "logits"
        _, problems = self.watched("score", ram, "-f", self.text, "--logits", path, "--allow-ram-dir", *more)
        digest = hashlib.sha256()  # piece by piece: children start with this process's peak
        if path.exists():
            with open(path, "rb") as file:
                while block := file.read(MIB):
                    digest.update(block)
        path.unlink(missing_ok=True)
        return digest.hexdigest(), problems


def most_read(told, drafts):
    """What the plan allows a run: every pass, the logits of each eight rows of a pass, every row; a layer ahead."""
    a_pass, logits, row = (told[f"weights_{key}_bytes"] for key in ("pass", "logit", "row"))
    n_passes = told["windows"] + told["passes"]
    rows = told["prompt_tokens"] + told["rows"]
    return n_passes * a_pass + (1 + told["passes"] * -(-(drafts + 1) // 8)) * logits + rows * row + \
        told["weights_buffer_bytes"]


def reading_problems(told, done, drafts):
    problems = []
    read, most = told["weights_bytes_read"], most_read(told, drafts)
    if not told["weights_resident_bytes"] < told["weights_file_bytes"] or not read:
        problems.append(f"nothing streamed: {told['weights_resident_bytes']} of {told['weights_file_bytes']}, {read} read")
    if read > most:
        problems.append(f"{read} bytes of weights read, at most {most} were planned")
    by_kernel = done["read"] - told["bytes_read"]
    # What stays may have been read once more, when it was known how much can.
    if by_kernel > most + told["weights_resident_bytes"] + MIB:
        problems.append(f"the kernel counts {by_kernel} bytes beside the cache's, at most {most} were planned")
    return problems


def cases(name, place, whole, rams):
    want, _, problems = place.answer(whole, "--draft", "0")
    logits, more = place.logits(whole)
    report(f"{name}: all in memory", problems + more)
    if not want or problems or more:
        return
    if want["weights_bytes_read"] or want["weights_resident_bytes"] != want["weights_file_bytes"]:
        report(f"{name}: all in memory reads nothing", [want])
    for ram in rams:
        title = f"{name}: {want['weights_file_bytes'] / MIB:.0f} MiB of weights under --ram {ram / MIB:.0f}M"
        for drafts in ("0", "15"):
            told, done, problems = place.answer(ram, "--draft", drafts)
            if told:
                problems += reading_problems(told, done, int(drafts))
                problems += [] if told["tokens"] == want["tokens"] else [f"{told['tokens']}, expected {want['tokens']}"]
                title_now = f"{title}, {drafts} drafts ({told['weights_bytes_read'] / MIB:.0f} MiB read)"
            report(title_now if told else title, problems)
        got, problems = place.logits(ram, "--window", "64")
        report(f"{title}: every logit", problems + ([] if got == logits else ["the logits differ"]))
    file = Path(place.folder) / f"kept {name}"
    _, problems = place.watched("prefill", rams[0], "-f", place.text, "-o", file, "--allow-ram-dir")
    answers = []
    for ram in (whole, rams[-1]):
        done, more = place.watched("run", ram, "-c", file, "-p", "what follows", "-n", "10", "--json", "--allow-ram-dir")
        problems += more
        answers.append(json.loads(done["out"])["tokens"] if done else None)
    if answers[0] != want["tokens"] or answers[1] != want["tokens"]:
        problems.append(f"{answers}, expected {want['tokens']}")
    report(f"{name}: a context file made and read with streamed weights", problems)


def refusal_case(name, place):
    """The figure of the refusal does, and is less than the weights."""
    done = watch([place.program, "run", "-m", place.model, "-f", place.text, "-p", "x", "-n", "4", "--ram", "13M",
                  "--kv-dir", place.folder])
    found = re.search(r"(\d+)M would do", done["err"])
    problems = [] if done["code"] == 3 and found else [f"exit code {done['code']}: {done['err'][-300:]}"]
    if not problems:
        ram = int(found.group(1)) * MIB
        _, _, problems = place.answer(ram)
        problems += [] if ram < os.path.getsize(place.model) else [f"{ram} is more than the model"]
    report(f"{name}: the figure of a refusal, {found.group(1) if found else '?'}M, does", problems)


def changed_case(place):
    """A model file that changes while it is used."""
    process = subprocess.Popen([place.program, "run", "-m", place.model, "-p", "x", "-n", "4000", "--ram", "36M",
                                "--kv-dir", place.folder],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    process.stdout.read(1)
    with open(place.model, "r+b") as file:
        for at in range(10 * MIB, os.path.getsize(place.model), MIB):
            file.seek(at)
            file.write(b"\x55" * 64)
        file.flush()
        os.fsync(file.fileno())
    try:
        _, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        _, err = process.communicate()
    text = err.decode(errors="replace")
    good = process.returncode == 4 and place.model in text and "tensor blk." in text
    report("a model file that changes is named", [] if good else [f"exit code {process.returncode}: {text[-400:]}"])


def main():
    if sys.argv[1] == "--write":  # by a process of its own: a child starts with its parent's peak
        write_model(Path(sys.argv[2]), 24, 512, 1536)
        return 0
    program = str(Path(sys.argv[1]).resolve() / "sluice")
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp"), prefix="sluice_weights_") as folder:
        text, model = Path(folder) / "text", Path(folder) / "random.gguf"
        text.write_text((Path(__file__).parents[2] / "LICENSE").read_text()[:900])
        subprocess.run([sys.executable, __file__, "--write", str(model)], check=True)
        size = model.stat().st_size
        place = Place(program, model, folder, str(text))
        cases("random weights", place, 300 * MIB, [size // 2 // MIB * MIB, 30 * MIB])
        refusal_case("random weights", place)
        changed_case(place)
        demo = os.environ.get("SLUICE_DEMO_MODEL", "")
        if demo and Path(demo).exists():
            subprocess.run(["cat", demo], stdout=subprocess.DEVNULL, check=True)  # into the page cache
            place = Place(program, demo, folder, str(text))
            cases("the demo model", place, 400 * MIB, [os.path.getsize(demo) // 2])
        else:
            print("SKIP the demo model: SLUICE_DEMO_MODEL names none")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
