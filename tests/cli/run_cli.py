#!/usr/bin/env python3
"""The command line from outside: exit codes, the one error line, JSON shapes.

  tests/cli/run_cli.py BUILD         SLUICE_DEMO_MODEL, where set, names the demo model for one real run

Exit codes: 0 done, 1 failed, 2 usage, 3 refused before work, 4 damaged or foreign file, 130 interrupted.
Prints PASS, FAIL or SKIP for each case.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import tiny_gguf  # noqa: E402
from tiny_gguf import ARRAY, F32, I32, STRING, U32, Tiny  # noqa: E402

TIMEOUT_S = 120
TEXT = "the cat sat on the mat, the dog sat on the log.\n" * 4
results = {"failed": 0}


def report(name, problems):
    if problems:
        results["failed"] += 1
        print(f"FAIL {name}")
        print("".join(f"    {line}\n" for problem in problems for line in str(problem).splitlines()[:12]), end="")
    else:
        print(f"PASS {name}")


def skip(name, why):
    print(f"SKIP {name}: {why}")


class Bench:
    """A scratch folder with the files that cases name in braces, and the program."""

    def __init__(self, program, folder):
        self.program, self.folder, self.n_files = program, Path(folder), 0

    def file(self, data, name=None):
        self.n_files += 1
        path = self.folder / (name or f"file{self.n_files}")
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(path)

    def run(self, *argv, stdin=b""):
        return subprocess.run([self.program, *argv], input=stdin, capture_output=True, timeout=TIMEOUT_S)


def one_line(done, codes, pattern):
    """What is wrong with a refusal: another code, not one line, not the expected text, output on stdout."""
    codes = codes if isinstance(codes, tuple) else (codes,)
    stderr = done.stderr.decode("utf-8", "replace")
    lines = [line for line in stderr.split("\n") if line]
    found = []
    if done.returncode not in codes:
        found.append(f"exit code {done.returncode}, expected {' or '.join(map(str, codes))}")
    # Work that had begun (code 1) may have told its plan and progress before
    if len(lines) != 1 and done.returncode != 1:
        found.append(f"{len(lines)} lines on stderr, expected one")
    if not re.search(pattern, lines[-1] if lines else ""):
        found.append(f"stderr does not match /{pattern}/")
    if done.stdout:
        found.append(f"stdout: {done.stdout[:200]!r}")
    return found + [f"stderr: {stderr[:600]}"] if found else []


def refusal(bench, name, argv, codes, pattern, stdin=b""):
    try:
        report(name, one_line(bench.run(*argv, stdin=stdin), codes, pattern))
    except subprocess.TimeoutExpired:
        report(name, [f"no end after {TIMEOUT_S} s"])


def usage_cases(bench, model, doc):
    run = ["run", "-m", model, "-f", doc, "-p", "why?"]
    cases = [
        ("unknown command", ["rnu"], 2, r"rnu"),
        ("run without model", ["run", "-f", doc, "-p", "x"], 2, r"-m"),
        ("unknown option", run + ["--drafts", "3"], 2, r"--drafts.*--draft\b"),
        ("stray word", run + ["stray"], 2, r"stray"),
        ("-n -1", run + ["-n", "-1"], 2, r"-n.*-1"),
        ("-n empty", run + ["-n", ""], 2, r"-n"),
        ("-n junk", run + ["-n", "12x"], 2, r"12x"),
        ("-n too large", run + ["-n", "99999999999999999999"], 2, r"99999999999999999999"),
        ("-n without a value", run + ["-n"], 2, r"-n"),
        ("--draft 256", run + ["--draft", "256"], 2, r"256.*255"),
        ("--draft some", run + ["--draft", "some"], 2, r"--draft some.*auto"),
        ("an unknown drafter", run + ["--drafter", "ngram,luck"], 2, r"--drafter ngram,luck.*model:FILE"),
        ("none and a drafter", run + ["--drafter", "none,self"], 2, r"none stands alone"),
        ("auto and a drafter", run + ["--drafter", "auto,self"], 2, r"auto takes ngram and self"),
        ("two draft models", run + ["--drafter", "model:a,model:b"], 2, r"one draft model"),
        ("a draft model without a name", run + ["--drafter", "model:"], 2, r"model: needs a file"),
        ("--tree and --no-tree", run + ["--tree", "--no-tree"], 2, r"not both"),
        ("--tree without drafters", run + ["--drafter", "none", "--tree"], 2, r"--tree.*--drafter none"),
        ("--tree without drafts", run + ["--draft", "0", "--tree"], 2, r"--tree.*--draft 0"),
        ("drafts without drafters", run + ["--drafter", "none", "--draft", "8"], 2, r"--draft 8.*--drafter none"),
        ("a drafter twice", run + ["--drafter", "ngram,ngram"], 2, r"--drafter ngram,ngram.*twice"),
        ("--hot without self", run + ["--hot", "1K", "--drafter", "ngram"], 2, r"--hot.*self"),
        ("--temp nan", run + ["--temp", "nan"], 2, r"--temp.*nan"),
        ("--temp -1", run + ["--temp", "-1"], 2, r"--temp.*-1"),
        ("--top-p 1.5", run + ["--top-p", "1.5"], 2, r"--top-p.*1\.5"),
        ("--min-p -0.1", run + ["--min-p", "-0.1"], 2, r"--min-p.*-0\.1"),
        ("--top-k junk", run + ["--top-k", "x"], 2, r"--top-k"),
        ("--threads 0", run + ["--threads", "0"], 2, r"--threads"),
        ("--kv q5", run + ["--kv", "q5"], 2, r"--kv.*q5.*q8_0.*f16"),
        ("--ram junk", run + ["--ram", "12Q"], 2, r"--ram.*12Q"),
        ("--ram overflow", run + ["--ram", "99999999999G"], 2, r"--ram"),
        ("--ram 1K", run + ["--ram", "1K"], (2, 3), r"1K|1\.00 KiB|1024|--ram"),
        ("--io junk", run + ["--io", "junk"], 2, r"--io.*junk.*auto.*uring.*pool.*buffered"),
        ("--read-rate junk", run + ["--read-rate", "fast"], 2, r"--read-rate.*fast"),
        ("--read-rate 100", run + ["--read-rate", "100"], 2, r"--read-rate.*100"),
        ("--trace over the model", run + ["--trace", model], 2, r"same file"),
        ("--trace over the text", run + ["--trace", doc], 2, r"same file"),
        ("--trace among the results", run + ["--trace", "/dev/stdout", "--json"], 2, r"standard output"),
        ("plan without tokens", ["plan", "-m", model], 2, r"--tokens"),
        ("--window 63", run + ["--window", "63"], 2, r"--window.*63"),
        ("tokenize without text", ["tokenize", "-m", model], 2, r"-f"),
        ("score without text", ["score", "-m", model], 2, r"-f"),
        ("score --top junk", ["score", "-m", model, "-f", doc, "--top", "many"], 2, r"--top.*many"),
        ("inspect without file", ["inspect"], 2, r"MODEL|model"),
        ("inspect two files", ["inspect", model, model], 2, r"unexpected|one"),
    ]
    for name, argv, codes, pattern in cases:
        refusal(bench, "usage: " + name, argv, codes, pattern)
    done = bench.run()
    report("usage: no command shows the commands",
           [] if done.returncode == 2 and b"usage: " in done.stderr and not done.stdout else [done])


def input_cases(bench, model, doc):
    folder = str(bench.folder)
    missing = str(bench.folder / "missing")
    latin = bench.file(b"caf\xe9 au lait\n", "latin1.txt")
    empty = bench.file(b"", "empty.txt")
    long_text = bench.file("x " * 4000, "long.txt")
    cases = [
        ("missing model", ["run", "-m", missing, "-p", "x"], (1, 2, 4), r"missing.*No such file"),
        ("folder as model", ["run", "-m", folder, "-p", "x"], (1, 2, 4), r"folder|directory"),
        ("missing text", ["run", "-m", model, "-f", missing, "-p", "x"], 1, r"missing.*No such file"),
        ("folder as text", ["score", "-m", model, "-f", folder], 1, r"directory"),
        ("text not UTF-8", ["run", "-m", model, "-f", latin, "-p", "x"], (1, 2, 4), r"UTF-8.*\b3\b|\b3\b.*UTF-8"),
        ("question not UTF-8", ["run", "-m", model, "-p", b"\xff\xfe"], (1, 2, 4), r"UTF-8"),
        ("tokenize not UTF-8", ["tokenize", "-m", model, "-f", latin], (1, 2, 4), r"UTF-8"),
        ("empty prompt", ["run", "-m", model, "-f", empty], (1, 2), r"empty"),
        ("empty score", ["score", "-m", model, "-f", empty], (1, 2), r"empty"),
        ("beyond the trained context", ["run", "-m", model, "-f", long_text, "-p", "x"], 3, r"256"),
    ]
    for name, argv, codes, pattern in cases:
        refusal(bench, "input: " + name, argv, codes, pattern)
    refusal(bench, "input: empty standard input", ["run", "-m", model, "-f", "-"], (1, 2), r"empty")


def storage_cases(bench):
    """With a budget that the cache (79 MB) does not fit."""
    model = bench.file(Tiny(wide=True).bytes(), "wide.gguf")
    doc = bench.file("the cat " * 1600, "wide.txt")
    missing = str(bench.folder / "missing")
    run = ["run", "-m", model, "-f", doc, "-p", "x", "-n", "2", "--kv", "f16", "--ram", "40M", "--kv-dir"]

    value, problems = parsed(bench.run(*run, str(bench.folder), "--json"), RUN_KEYS)
    if value and not (value["bytes_written"] > 20 << 20 and value["peak_rss_bytes"] <= 40 << 20):
        problems.append(f"written {value['bytes_written']} bytes, peak {value['peak_rss_bytes']}")
    report("storage: a cache larger than --ram goes to flash", problems)
    left = [path.name for path in bench.folder.iterdir() if path.name.startswith(".")]
    report("storage: an ephemeral cache leaves no file", [f"left behind: {left}"] if left else [])

    refusal(bench, "storage: missing folder", run + [missing], (1, 3), r"missing")
    refusal(bench, "storage: a file as folder", run + [doc], (1, 3), r"wide\.txt")
    name = "storage: tmpfs is refused"
    if subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True).stdout.strip() == b"tmpfs":
        refusal(bench, name, run + ["/dev/shm"], 3, r"/dev/shm.*memory|memory.*/dev/shm")
    else:
        skip(name, "/dev/shm is no tmpfs here")
    closed = bench.folder / "closed"
    closed.mkdir(mode=0o500)
    plain = bench.program
    if os.geteuid() == 0:  # root writes anywhere, unless this capability is taken away
        os.chown(closed, 65534, 65534)
        wrapper = bench.file(f"#!/bin/sh\nexec setpriv --bounding-set=-dac_override -- '{plain}' \"$@\"\n", "as_user")
        os.chmod(wrapper, 0o755)
        bench.program = wrapper
    refusal(bench, "storage: unwritable folder", run + [str(closed)], 3, r"closed.*denied")
    bench.program = plain
    kill_case(bench, run)
    full_disk_case(bench, run)


def kill_case(bench, run):
    """SIGKILL while the cache is on flash: nothing is left in the folder."""
    folder, problems, n_open = bench.folder / "killed", [], 0
    folder.mkdir()
    for delay in (0.0, 0.05, 0.2, 0.5):
        process = subprocess.Popen([bench.program, *run, str(folder)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end, is_open = time.monotonic() + 60, False
        while not is_open and process.poll() is None and time.monotonic() < end:  # until it holds the unnamed file
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                try:
                    is_open |= os.readlink(entry).startswith(str(folder)) and os.stat(entry).st_blocks > 0
                except OSError:
                    pass
            time.sleep(0.005)
        time.sleep(delay)
        n_open += is_open and process.poll() is None
        process.kill()
        process.wait()
        problems += [f"left behind: {path.name}" for path in folder.iterdir()]
    if n_open < 2:
        problems.append(f"only {n_open} of 4 were killed while their cache was on flash")
    report(f"storage: kill -9 leaves no file ({n_open} killed with their cache on flash)", problems)


def full_disk_case(bench, run):
    name = "storage: full file system of 64 MB"
    image, mount = bench.folder / "disk.img", bench.folder / "disk"
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        skip(name, "needs root and mkfs.ext4")
        return
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    if subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True).returncode != 0 or \
            subprocess.run(["mount", "-o", "loop", str(image), str(mount)], capture_output=True).returncode != 0:
        skip(name, "no loop mount here")
        return
    try:
        filler = mount / "filler"
        with open(filler, "wb") as file:
            file.write(bytes(30 << 20))
        refusal(bench, name, run + [str(mount)], (1, 3), r"disk|space|free|room")
        left = [path.name for path in mount.iterdir() if path.name not in ("lost+found", "filler")]
        report("storage: a full file system keeps no litter", [f"left behind: {left}"] if left else [])
    finally:
        subprocess.run(["umount", str(mount)], check=False)


def broken_models():
    """(name, bytes, exit codes, pattern): each breaks one thing of a file that works."""
    def changed(change):
        tiny = Tiny()
        change(tiny)
        return tiny.bytes()

    def meta(key, *value):
        return changed(lambda tiny: tiny.meta.__setitem__(key, value))

    def tensor(name, value):
        return changed(lambda tiny: tiny.tensors.__setitem__(name, value))

    whole = Tiny().bytes()
    head = whole[:8]
    q = [tiny_gguf.N_EMBD, tiny_gguf.N_HEADS * tiny_gguf.HEAD_DIM]
    return [
        ("an HTML page", b"<!DOCTYPE html><html><body>404</body></html>" * 50, 4, r"GGUF"),
        ("an empty file", b"", 4, r"GGUF|empty|ends|bytes"),
        ("zeros", bytes(4096), 4, r"GGUF"),
        ("version 1", whole[:4] + b"\1\0\0\0" + whole[8:], 4, r"version"),
        ("version 99", whole[:4] + b"\x63\0\0\0" + whole[8:], 4, r"version.*99"),
        ("big-endian", b"GGUF\0\0\0\3" + whole[8:], 4, r"version|endian"),
        ("2^63 tensors", head + b"\xff" * 7 + b"\x7f" + whole[16:], 4, r"n_tensors.*9223372036854775807"),
        ("2^64-1 values", whole[:16] + b"\xff" * 8 + whole[24:], 4, r"n_kv.*18446744073709551615"),
        ("a string of 2^62 bytes", whole[:24] + b"\0" * 7 + b"\x40" + whole[32:], 4, r"key|ends|bytes|length"),
        ("unknown architecture", meta("general.architecture", STRING, "mamba"), 3, r"mamba"),
        ("no architecture", changed(lambda tiny: tiny.meta.pop("general.architecture")), 4, r"general\.architecture"),
        ("architecture of a wrong type", meta("general.architecture", U32, 7), 4, r"general\.architecture"),
        ("block count of a wrong type", meta("llama.block_count", STRING, "one"), 4, r"block_count"),
        ("no block count", changed(lambda tiny: tiny.meta.pop("llama.block_count")), 4, r"block_count"),
        ("2^32-1 blocks", meta("llama.block_count", U32, 0xffffffff), (3, 4), r"block_count|blk"),
        ("no heads", meta("llama.attention.head_count", U32, 0), (3, 4), r"head"),
        ("5 heads on 2", meta("llama.attention.head_count_kv", U32, 3), (3, 4), r"head"),
        ("epsilon below 0", meta("llama.attention.layer_norm_rms_epsilon", F32, -1.0), (3, 4), r"epsilon"),
        ("dimensions that overflow", tensor("blk.0.attn_q.weight", [0, [1 << 40, 1 << 40]]), 4, r"attn_q"),
        ("a dimension of 0", tensor("blk.0.attn_q.weight", [0, [0, 64]]), 4, r"attn_q"),
        ("a tensor of another shape", tensor("blk.0.attn_q.weight", [0, [q[0], q[1] + 1]]), 4, r"attn_q"),
        ("unknown tensor type", tensor("blk.0.attn_q.weight", [99, q]), (3, 4), r"attn_q.*99|99.*attn_q"),
        ("a tensor type not supported", tensor("blk.0.attn_q.weight", [16, [256, 16]]), 3, r"attn_q.*IQ2_XXS"),
        ("rows that a K type cannot hold", tensor("blk.0.attn_q.weight", [12, [64, 64]]), 4, r"attn_q.*Q4_K.*256"),
        ("missing tensor", changed(lambda tiny: tiny.tensors.pop("blk.0.ffn_up.weight")), 4, r"ffn_up.*missing"),
        ("tokenizer of an unknown kind", meta("tokenizer.ggml.model", STRING, "sentencepig"), 3, r"sentencepig"),
        ("unknown split pattern", meta("tokenizer.ggml.pre", STRING, "blurb"), 3, r"blurb"),
        ("no tokens", changed(lambda tiny: tiny.meta.pop("tokenizer.ggml.tokens")), 4, r"tokenizer\.ggml\.tokens"),
        ("tokens of a wrong type", meta("tokenizer.ggml.tokens", ARRAY, I32, [1, 2, 3]), 4, r"tokenizer\.ggml\.tokens"),
        ("fewer tokens than rows", changed(lambda tiny: tiny.meta.__setitem__(
            "tokenizer.ggml.tokens", (ARRAY, STRING, tiny_gguf.vocabulary()[0][:-5]))), 4, r"tokens|token_type|merge"),
        ("a merge of no tokens", meta("tokenizer.ggml.merges", ARRAY, STRING, ["qq zz"]), 4, r"merge"),
        ("end token out of range", meta("tokenizer.ggml.eos_token_id", U32, 10 ** 6), 4, r"1000000|eos"),
        ("a NaN in the weights", changed(lambda tiny: setattr(tiny, "nan_in", "blk.0.attn_k.weight")), 1,
         r"layer 0|NaN|not finite"),
    ]


def model_cases(bench, doc):
    for name, data, codes, pattern in broken_models():
        path = bench.file(data, "broken.gguf")
        refusal(bench, "model: " + name, ["run", "-m", path, "-f", doc, "-p", "x", "-n", "1"], codes, pattern)
    foreign = bench.file(b"<!DOCTYPE html>" * 100, "page.gguf")
    for command in (["inspect", foreign], ["tokenize", "-m", foreign, "-f", doc], ["score", "-m", foreign, "-f", doc]):
        refusal(bench, f"model: {command[0]} of an HTML page", command, 4, r"GGUF")
    problems, cut = [], 0
    for piece in Tiny().pieces():
        path = bench.file(Tiny.bytes(Tiny())[:cut], "cut.gguf")
        done = bench.run("tokenize", "-m", path, "-f", doc)
        problems += [f"cut at {cut}: {problem}" for problem in one_line(done, 4, r"cut\.gguf")[:3]]
        cut += len(piece)
    report("model: cut at every structural boundary", problems[:8])


def parsed(done, keys):
    """The one JSON object on stdout, or what is wrong with it."""
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        return None, [f"exit code {done.returncode}: {done.stderr.decode('utf-8', 'replace')[-400:]}"]
    if text.count("\n") != 1 or not text.endswith("\n"):
        return None, [f"{text.count(chr(10))} lines on stdout, expected one"]
    try:
        value = json.loads(text)
    except ValueError as error:
        return None, [f"no JSON: {error}: {text[:200]}"]
    return value, [f"key {key} is missing" for key in keys if key not in value]


RUN_KEYS = ["text", "tokens", "finish_reason", "prompt_tokens", "prefill_s", "decode_s", "kv_bytes", "bytes_read",
            "bytes_written", "passes", "wait_s", "compute_s", "verified_rows_per_s", "accepted_tokens_per_s",
            "tokens_per_pass", "drafters", "draft_s", "pass_s", "accept_s", "tree_passes", "plain_disk_s",
            "plain_compute_s", "peak_rss_bytes", "page_cache_growth_bytes", "io_mode", "io_engine", "in_flight_bytes",
            "estimate"]


def good_cases(bench, model, doc):
    done = bench.run("--help")
    report("good: --help", [] if done.returncode == 0 and b"run" in done.stdout else [done.stdout, done.stderr])
    for command in ("run", "score", "plan", "tokenize", "inspect"):
        done = bench.run(command, "--help")
        report(f"good: {command} --help",
               [] if done.returncode == 0 and done.stdout.startswith(b"usage: ") else [done.stdout, done.stderr])

    value, problems = parsed(bench.run("tokenize", "-m", model, "-f", "-", "--json", stdin=b"the th"), ["tokens"])
    letters = tiny_gguf.vocabulary()[0]
    expected = [letters.index("the"), letters.index(tiny_gguf.byte_letters()[32]), letters.index("th")]
    if value and value.get("tokens") != expected:
        problems.append(f"tokens {value.get('tokens')}, expected {expected}")
    report("good: tokenize --json from standard input", problems)

    value, problems = parsed(bench.run("tokenize", "-m", model, "-f", "-", "--json", stdin=b"<|im_end|>"), ["tokens"])
    plain = len(value["tokens"]) if value else 0
    value, more = parsed(bench.run("tokenize", "-m", model, "-f", "-", "--special", "--json", stdin=b"<|im_end|>"),
                         ["tokens"])
    if value and (value["tokens"] != [2] or plain < 5):
        problems.append(f"special {value['tokens']}, plain {plain} tokens")
    report("good: control tokens only with --special", problems + more)

    done = bench.run("inspect", model)
    report("good: inspect", [] if done.returncode == 0 and b"llama.block_count" in done.stdout and
           b"blk.0.attn_q.weight" in done.stdout else [done.stdout[-400:], done.stderr])

    value, problems = parsed(bench.run("score", "-m", model, "-f", doc, "--top", "3", "--json"),
                             ["positions", "perplexity"])
    if value and not problems:
        positions = value["positions"]
        problems += [f"position {i}: {p}" for i, p in enumerate(positions)
                     if set(p) != {"id", "logprob", "top"} or len(p["top"]) != 3 or
                     set(p["top"][0]) != {"id", "logit", "logprob"} or (p["logprob"] is None) != (p is positions[-1])][:3]
    report("good: score --json", problems)

    runs = {}
    for draft in ("0", "15", "auto"):
        argv = ["run", "-m", model, "-f", doc, "-p", "the end?", "-n", "12", "--draft", draft, "--json"]
        runs[draft], problems = parsed(bench.run(*argv), RUN_KEYS)
        if runs[draft] and runs[draft].get("finish_reason") not in ("stop", "length", "context"):
            problems.append(f"finish_reason {runs[draft].get('finish_reason')}")
        report(f"good: run --json --draft {draft}", problems)
    itself = ["--draft", "7", "--tree", "--drafter", f"ngram,self,model:{model}", "--hot", "64", "--json"]
    runs["itself"], problems = parsed(bench.run("run", "-m", model, "-f", doc, "-p", "the end?", "-n", "12", *itself),
                                      RUN_KEYS)
    names = [drafter["name"] for drafter in runs["itself"]["drafters"]] if runs["itself"] else []
    report("good: run --json, three drafters", problems or [] if names == ["n-gram", "self", "model"] else [names])
    if all(runs.values()):
        same = len({tuple(told["tokens"]) for told in runs.values()}) == 1
        report("good: drafts change no token", [] if same else [told["tokens"] for told in runs.values()])

    value, problems = parsed(bench.run("run", "-m", model, "-f", doc, "-p", "x", "-n", "400", "--json"), RUN_KEYS)
    if value and value["finish_reason"] not in ("context", "stop"):
        problems.append(f"finish_reason {value['finish_reason']}, expected context")
    report("good: generation ends at the trained context", problems)


def descriptor_cases(bench, model, doc):
    """Started without standard files, with full ones, with outputs over inputs."""
    size, logits = {}, str(bench.folder / "logits")
    for closed in ("", " 2>&-", " >&- 2>&- <&-"):
        done = subprocess.run(["sh", "-c", f'exec "$@"{closed}', "-", bench.program, "score", "-m", model, "-f", doc,
                               "--verbose", "--logits", logits], capture_output=True, timeout=TIMEOUT_S)
        size[closed] = (done.returncode, os.path.getsize(logits))
    report("descriptors: what is printed never goes into a file of the program's own",
           [] if set(size.values()) == {(0, size[""][1])} else [str(size)])
    before = Path(model).read_bytes()
    refusal(bench, "descriptors: --logits over the model", ["score", "-m", model, "-f", doc, "--logits", model], 2,
            r"same file")
    report("descriptors: the model is untouched", [] if Path(model).read_bytes() == before else ["it was changed"])
    problems = []
    for argv in (["--help"], ["--version"], ["tokenize", "-m", model, "-f", doc],
                 ["score", "-m", model, "-f", doc], ["run", "-m", model, "-f", doc, "-p", "x", "--json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([bench.program, *argv], stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
        if done.returncode != 1:
            problems.append(f"{argv[0]}: exit code {done.returncode}")
    report("descriptors: output that cannot be written is a failure", problems)
    pipe, problems = str(bench.folder / "unread_pipe"), []
    os.mkfifo(pipe)
    for trace, pattern in (("/dev/full", rb"/dev/full.*not complete"), (pipe, rb"unread_pipe.*cannot open")):
        done = bench.run("run", "-m", model, "-f", doc, "-p", "x", "-n", "2", "--trace", trace)
        if done.returncode != 1 or not re.search(pattern, done.stderr):
            problems.append(f"{trace}: exit code {done.returncode}, {done.stderr[-300:]}")
    report("descriptors: a trace that cannot be written is a failure", problems)
    problems = []
    for command in ("run", "score", "tokenize"):
        process = subprocess.Popen([bench.program, command, "-m", model, "-f", "-"], stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
        process.stderr.close()
        process.stdin.close()
        if process.wait() != 130:
            problems.append(f"{command}: exit code {process.returncode}")
    process = subprocess.Popen([bench.program, "run", "-m", model, "-f", "-", "--ram", "4G"],
                               stdin=open("/dev/zero", "rb"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
    if process.wait() != 130:
        problems.append(f"an endless input: exit code {process.returncode}")
    report("interrupt: Ctrl-C while standard input is read ends with 130", problems)
    os.environ["SLUICE_KV_DIR"] = str(bench.folder / "nowhere")
    refusal(bench, "storage: a bad SLUICE_KV_DIR, even when nothing would be written",
            ["run", "-m", model, "-f", doc, "-n", "2"], 3, r"nowhere")
    del os.environ["SLUICE_KV_DIR"]


def interrupt_case(bench):
    name = "interrupt: Ctrl-C ends with 130"
    real, text = os.environ.get("SLUICE_DEMO_MODEL"), Path("/usr/share/common-licenses/GPL-3")
    if not real or not text.exists():
        skip(name, "needs the demo model and a long text")
        return
    process = subprocess.Popen([bench.program, "run", "-m", real, "-f", str(text), "-p", "x", "--json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    try:
        stdout, stderr = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        report(name, ["still running 20 s after the signal"])
        return
    told = json.loads(stdout)["finish_reason"] if process.returncode == 130 else ""
    report(name, [] if told == "cancelled" else [f"exit code {process.returncode}", told, stderr[-300:]])


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    program = Path(build, "sluice").resolve()
    if not program.is_file():
        print(f"FAIL cli: {program} is not there")
        return 1
    with tempfile.TemporaryDirectory(prefix="sluice_cli_", dir="/var/tmp") as folder:
        bench = Bench(str(program), folder)
        model = bench.file(Tiny().bytes(), "tiny.gguf")
        doc = bench.file(TEXT[:150], "doc.txt")
        usage_cases(bench, model, doc)
        input_cases(bench, model, doc)
        storage_cases(bench)
        model_cases(bench, doc)
        good_cases(bench, model, doc)
        descriptor_cases(bench, model, doc)
        interrupt_case(bench)
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
