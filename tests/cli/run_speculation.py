#!/usr/bin/env python3
"""Drafting from outside: whatever drafts there are, the answer is that of plain decoding (--draft 0).

  tests/cli/run_speculation.py BUILD     SLUICE_DEMO_MODEL names the demo model; without it only small models are asked

Text, token ids, log-probabilities (as printed, which is to the last bit) and the reason of the end are compared: prompts
of six kinds, temperatures 0, 0.7 and 1.2, with and without every sampling option, stop strings, drafters, numbers of
drafts, chains and trees. Files that an answer was appended to, and conversations, are the same, too.
Every fifth prompt is asked with a cache in F16, the others with one in Q8_0. SLUICE_TEST_PROMPTS=200 asks the demo
model all of its prompts (20 minutes on a quiet machine); else five. Prints PASS, FAIL or SKIP for each.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import Tiny  # noqa: E402

N_PROMPTS, N_SMALL = 200, 18
FEW = 5
LICENCE = Path("/usr/share/common-licenses/GPL-3")
SAID = ("text", "tokens", "logprobs", "finish_reason")
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


def prose(i):
    text = LICENCE.read_text() if LICENCE.exists() else "It was a quiet morning, and the river was high. " * 400
    paragraphs = [p for p in re.split(r"\n\s*\n", text) if len(p) > 80]
    return " ".join(paragraphs[i * 7 % len(paragraphs)].split())[:400 + 40 * (i % 9)]


def code(i):
    lines = (Path(__file__).parent / "tiny_gguf.py").read_text().splitlines()
    at = i * 5 % (len(lines) - 14)
    return "\n".join(lines[at:at + 4 + i % 10]) + "\n"


def listing(i):
    return "".join(f"{k}. item {k * (i + 3) % 17} of {i}\n" for k in range(1, 4 + i % 6))


def repetition(i):
    part = ["la la la ", "abc", "one two three, ", "=-", "\n- yes\n- no", "The end. "][i % 6]
    return part * (3 + i)


def little(i):
    return ["a", " ", "\n", "?", "0", ".", "I", "\t", "{", "#", "e", "...", "  ", "\n\n", "-", "x="][i % 16] * (1 + i // 16)


def scripts(i):
    texts = ["Der Zug nach Köln fährt um acht. ", "В доме было тихо, и часы стояли. ", "雨が降る。川の水が増えた。",
             "Η θάλασσα ήταν ήρεμη. ", "שלום לכולם, ", "🌊🌊 café ☕ ", "河水很清,山很高。", "पानी ठंडा है। "]
    return texts[i % 8] * (1 + i // 8 % 3) + texts[(i * 3 + 1) % 8]


KINDS = (prose, code, listing, repetition, little, scripts)


def prompt(i):
    return KINDS[i % 6](i // 6)


def options(i):
    """Temperatures 0, 0.7 and 1.2, each alone and with everything else."""
    all_of = ["--temp", ("0", "0.7", "1.2")[i % 3], "--seed", str(i + 1)]
    if i // 3 % 2:
        all_of += ["--top-k", "200", "--top-p", "0.98", "--min-p", "0.005", "--repeat-penalty", "1.15",
                   "--presence-penalty", "0.2", "--frequency-penalty", "0.1", "--repeat-last-n", ("-1", "32")[i % 2],
                   "--logit-bias", "40=1.5", "--logit-bias", "41=-inf", "--logit-bias", "e=0.25"]
    return all_of


def ways(model):
    """The small ones first. A model that drafts for itself foretells nearly all: bursts are full of drafts kept."""
    drafters = ["ngram", "self", f"model:{model}", "ngram,self", "auto"]
    counts = ["1", "2", "7", "8", "63", "64", "200", "auto"]
    shapes = ["--no-tree", "--tree"]
    return [["--drafter", drafters[k % 5], "--draft", counts[k % 8], shapes[k // 5 % 2]] for k in range(80)]


class Asker:
    def __init__(self, program, model, *extra):
        self.program, self.model, self.extra = program, str(model), extra

    def ask(self, text, *more):
        argv = [self.program, "run", "-m", self.model, "-p", text, "--json", "--logprobs", "3", *self.extra, *more]
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv[1:])}: exit code {done.returncode}: {done.stderr.decode()[-300:]}")
        return json.loads(done.stdout)


def differences(want, got, way):
    for key in SAID:
        if want[key] == got[key]:
            continue
        if not isinstance(want[key], list):
            return [f"{' '.join(way)}: {key} is {got[key]!r}, else {want[key]!r}"]
        n = next((k for k, pair in enumerate(zip(want[key], got[key])) if pair[0] != pair[1]),
                 min(len(want[key]), len(got[key])))
        return [f"{' '.join(way)}: {key} {n} is {got[key][n:n + 1]}, else {want[key][n:n + 1]}"]
    return []


def piece_of(text, i):
    """A stop string from the answer, where it has one that can be given on a command line."""
    for k in range(len(text)):
        at = (i * 13 + k) % len(text)
        piece = text[at:at + 1 + i % 5]
        if "\0" not in piece and "\ufffd" not in piece:
            return piece
    return None


def same_answers(asker, name, which, n_ways, n_predict):
    all_ways, n_kept, n_stopped = ways(asker.model), 0, 0
    problems = []
    for turn, i in enumerate(which):
        text, asked = prompt(i), [*options(i), "-n", str(n_predict(i)), "--kv", "f16" if i % 5 == 2 else "q8_0"]
        plain = asker.ask(text, *asked, "--draft", "0")
        stop = piece_of(plain["text"], i) if i % 3 == 1 else None
        if stop:
            asked += [f"--stop={stop}", "--stop=never\x01this"]
            whole, plain = plain["text"], asker.ask(text, *asked, "--draft", "0")
            n_stopped += 1
            if plain["text"] != whole[:whole.index(stop)] or plain["finish_reason"] != "stop":
                problems.append(f"prompt {i}, stop {stop!r}: {plain['text']!r} of {whole!r}, {plain['finish_reason']}")
        if len(plain["logprobs"]) != len(plain["tokens"]):
            problems.append(f"prompt {i}: {len(plain['logprobs'])} log-probabilities of {len(plain['tokens'])} tokens")
        for k in range(n_ways):
            way = all_ways[(turn * n_ways + k) % len(all_ways)]
            got = asker.ask(text, *asked, *way)
            n_kept += got["accepted"]
            problems += [f"prompt {i}, {d}" for d in differences(plain, got, way)]
    if n_kept == 0 or (n_stopped == 0 and len(which) > 3):
        problems.append(f"{n_kept} drafts were kept, {n_stopped} answers had stop strings: nothing was tested")
    report(f"{name}: {len(which)} prompts, {n_ways} ways each, {n_kept} drafts kept, {n_stopped} stop strings", problems)


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def same_files(asker, folder):
    """An answer that a stop string ends leaves the same file; the next one goes on from the same bits."""
    problems = []
    doc, book = folder / "doc.txt", folder / "book.kv"
    doc.write_text("a river and a mill and a river " * 130)
    subprocess.run([asker.program, "prefill", "-m", asker.model, "-f", doc, "-o", book, *asker.extra], check=True,
                   capture_output=True)
    for i in range(4):
        asked = ["-n", "70", "--append", *options(i)]
        copies = [folder / f"copy{k}.kv" for k in range(3)]
        for other in copies:
            shutil.copyfile(book, other)
        plain = asker.ask("and then?", "-c", str(copies[0]), *asked, "--draft", "0")
        stop = piece_of(plain["text"], 3 + i) or "e"
        for other, way in zip(copies[1:], ([], ["--drafter", f"model:{asker.model}", "--draft", "63"])):
            shutil.copyfile(book, other)
            got = asker.ask("and then?", "-c", str(other), *asked, f"--stop={stop}", *(way or ["--draft", "0"]))
            again = asker.ask("go on", "-c", str(other), *asked, *(way or ["--draft", "0"]))
            if way:
                problems += differences(first, got, way) + differences(second, again, way)
            first, second = got, again
        if digest(copies[1]) != digest(copies[2]):
            problems.append(f"options {i}, stop {stop!r}: another file")
    report("a file that answers were appended to does not tell how they were drafted", problems)


def same_conversations(asker):
    problems, said = [], []
    for way in (["--draft", "0"], ["--drafter", f"model:{asker.model}", "--draft", "63"], ["--drafter", "self,ngram"]):
        argv = [asker.program, "chat", "-m", asker.model, "--json", "-n", "40", "--temp", "0.8", "--stop", "e", "--stop",
                "th", "--repeat-penalty", "1.1", "--room", "2K", *asker.extra, *way]
        done = subprocess.run(argv, input=b"one\ntwo three\n/rewind\nfour\nfive\n", capture_output=True)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        said.append([(t["text"], t["tokens"], t["finish_reason"], t["context_tokens"]) for t in told])
        if done.returncode or len(told) != 4 or said[-1] != said[0]:
            problems.append(f"{' '.join(way)}: exit code {done.returncode}, {said[-1]}, else {said[0]}")
    if not any(reason == "stop" for _, _, reason, _ in said[0]):
        problems.append(f"no answer met a stop string: {said[0]}")
    report("a conversation with stop strings is the same however it is drafted", problems)


def main(build):
    program, demo = os.path.abspath(os.path.join(build, "sluice")), os.environ.get("SLUICE_DEMO_MODEL", "")
    everything = int(os.environ.get("SLUICE_TEST_PROMPTS", "0"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "tiny.gguf"
        model.write_bytes(Tiny(wide=True, layers=2).bytes())
        asker = Asker(program, model, "--ram", "112M", "--threads", "2", "--allow-ram-dir")
        same_answers(asker, "a small model", range(N_SMALL), 6 if everything else 3, lambda i: 30 + 17 * (i % 4))
        same_files(asker, folder)
        same_conversations(asker)
        if not os.path.isfile(demo):
            print("SKIP the demo model: SLUICE_DEMO_MODEL names no file")
            return
        which = range(min(everything, N_PROMPTS)) if everything else [k * 41 for k in range(FEW)]
        same_answers(Asker(program, demo, "--ram", "400M"), "the demo model", which, 4 if everything else 2,
                     lambda i: 80 if i % 4 == 0 else 32)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.exit(failed > 0)
