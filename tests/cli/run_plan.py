#!/usr/bin/env python3
"""sluice plan from outside: sizes against their formulas, refusals, a model larger than any memory, times against a run.

  tests/cli/run_plan.py BUILD         SLUICE_DEMO_MODEL, where set, names the demo model for one real run

Prints PASS, FAIL or SKIP for each case.
"""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import STRING, U32, Tiny  # noqa: E402

TIMEOUT_S = 200
MIB = 1 << 20
results = {"failed": 0}

KEYS = ["works", "problem", "beyond_training", "kv_type", "kv_dir", "tokens", "rows", "kv_token_bytes", "kv_layer_bytes",
        "sliding_layers", "sliding_span", "kv_bytes", "kept_bytes", "walked_bytes", "answer_bytes", "ram_bytes",
        "program_bytes", "weight_bytes", "table_bytes", "ring_bytes", "window_tokens",
        "window_bytes", "resident_bytes", "decode_resident_bytes", "needed_bytes", "whole_bytes",
        "weights_resident_bytes", "weights_file_bytes", "weights_buffer_bytes", "weights_pass_bytes",
        "weights_logit_bytes", "weights_row_bytes", "disk_bytes", "disk_free_bytes",
        "estimate"]
ESTIMATE_KEYS = ["disk_read_rate", "disk_write_rate", "memory_rate", "read_bytes", "in_flight_bytes",
                 "prefill_compute_s", "prefill_read_s", "prefill_write_s", "prefill_s", "first_token_s", "rows",
                 "pass_bytes", "weight_bytes", "weight_bytes_prefill", "weight_pass_s", "weight_row_s", "pass_disk_s", "pass_memory_s", "pass_compute_s", "pass_s", "crossover_rows",
                 "read_bytes_prefill", "written_bytes"]


def report(name, problems):
    if problems:
        results["failed"] += 1
        print(f"FAIL {name}")
        print("".join(f"    {line}\n" for problem in problems for line in str(problem).splitlines()[:12]), end="")
    else:
        print(f"PASS {name}")


class Program:
    def __init__(self, path, cache):
        self.path = path
        self.environment = {key: value for key, value in os.environ.items() if key != "SLUICE_KV_DIR"}
        self.environment["XDG_CACHE_HOME"] = cache

    def run(self, *argv):
        return subprocess.run([self.path, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=TIMEOUT_S, env=self.environment)

    def plan(self, *argv, code=0):
        """The JSON object and what is wrong with how it came."""
        done = self.run("plan", "--json", *argv)
        if done.returncode != code:
            return None, [f"exit code {done.returncode}, expected {code}: {done.stderr[-300:]}"]
        value = json.loads(done.stdout)
        problems = [f"key {key} is missing" for key in KEYS if key not in value]
        problems += [f"key estimate.{key} is missing" for key in ESTIMATE_KEYS if key not in value["estimate"]]
        errors = [line for line in done.stderr.splitlines() if line.startswith("sluice plan:")]
        if (len(errors) == 1) != (code != 0):
            problems.append(f"error lines: {errors}")
        return value, problems

    def result(self, *argv):
        done = self.run(*argv, "--json")
        return (json.loads(done.stdout), []) if done.returncode == 0 else (None, [done])


def write_sparse(path, layers, heads, kv_heads, head_dim, embd, ff):
    """A llama whose weights are a hole in the file: as large as one likes, no data."""
    tiny = Tiny()
    tiny.meta.update({"llama.block_count": (U32, layers), "llama.context_length": (U32, 131072),
                      "llama.embedding_length": (U32, embd), "llama.feed_forward_length": (U32, ff),
                      "llama.attention.head_count": (U32, heads), "llama.attention.head_count_kv": (U32, kv_heads),
                      "llama.attention.key_length": (U32, head_dim), "llama.attention.value_length": (U32, head_dim),
                      "llama.rope.dimension_count": (U32, head_dim), "general.name": (STRING, "sparse")})
    n_vocab = len(tiny.meta["tokenizer.ggml.tokens"][2])
    q, kv, q8_0, f32 = heads * head_dim, kv_heads * head_dim, 8, 0
    tensors = {"token_embd.weight": [q8_0, [embd, n_vocab]], "output_norm.weight": [f32, [embd]]}
    for i in range(layers):
        tensors.update({f"blk.{i}.{name}.weight": value for name, value in {
            "attn_norm": [f32, [embd]], "attn_q": [q8_0, [embd, q]], "attn_k": [q8_0, [embd, kv]],
            "attn_v": [q8_0, [embd, kv]], "attn_output": [q8_0, [q, embd]], "ffn_norm": [f32, [embd]],
            "ffn_gate": [q8_0, [embd, ff]], "ffn_up": [q8_0, [embd, ff]], "ffn_down": [q8_0, [ff, embd]]}.items()})
    offsets, at, weights = {}, 0, 0
    for name, (kind, dims) in tensors.items():
        n = dims[0] * (dims[1] if len(dims) > 1 else 1)
        size = n * 4 if kind == f32 else n // 32 * 34
        offsets[name] = at
        weights += size
        at += -(-size // 32) * 32
    tiny.tensors = tensors
    tiny.data = lambda: (b"", offsets)
    head = b"".join(tiny.pieces())
    head += bytes(-len(head) % 32)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + at)
    assert head[8:16] == struct.pack("<Q", len(tensors))
    return weights


def size_cases(program, model, folder):
    """70 layers of 8 KV heads of 128, 64 heads, on 40 GB of weights: sizes by the formula, in a second, without them."""
    layers, kv_heads, head_dim, tokens = 70, 8, 128, 1 << 20
    weights = write_sparse(model, layers, 64, kv_heads, head_dim, 8192, 22016)
    values = 2 * layers * kv_heads * tokens * head_dim
    for kv, expected in (("q8_0", values // 32 * 34), ("f16", values * 2)):
        start = time.monotonic()
        value, problems = program.plan("-m", model, "--tokens", "1M", "--ram", "1T", "--kv", kv, "--kv-dir", folder)
        took = time.monotonic() - start
        if value and not problems:
            if value["kv_bytes"] != expected or value["kv_layer_bytes"] != expected // layers or \
                    value["kv_token_bytes"] != expected // tokens:
                problems.append(f"cache {value['kv_bytes']}, expected {expected}")
            if value["weight_bytes"] != weights:
                problems.append(f"weights {value['weight_bytes']}, expected {weights}")
            if not value["beyond_training"] or value["window_tokens"] != 4096:
                problems.append(value)
        if took > 30:
            problems.append(f"took {took:.1f} s")
        report(f"plan: a model of {weights / 1e9:.0f} GB, {kv}, in {took:.1f} s", problems)
    value, problems = program.plan("-m", model, "--tokens", "100K", "--ram", "8G", "--kv-dir", folder)
    if value and not problems:
        parts = sum(value[key] for key in ("program_bytes", "weight_bytes", "weights_buffer_bytes", "table_bytes",
                                           "ring_bytes", "window_bytes", "resident_bytes"))
        read = value["weights_pass_bytes"] + value["weight_bytes"]
        if value["weights_file_bytes"] != weights or not weights <= read <= 1.01 * weights or parts > value["ram_bytes"]:
            problems.append(value)
        if value["estimate"]["weight_bytes"] < value["weights_pass_bytes"] or value["whole_bytes"] < weights:
            problems.append(value)
    report("plan: weights that memory cannot hold are read for each pass", problems)
    value, problems = program.plan("-m", model, "--tokens", "1M", "--ram", "1G", "--kv-dir", folder, code=3)
    if value and not problems:
        parts = sum(value[key] for key in ("program_bytes", "weight_bytes", "weights_buffer_bytes", "table_bytes",
                                           "ring_bytes", "window_bytes"))
        if value["works"] or "too small" not in value["problem"] or not parts <= value["needed_bytes"] < weights / 8:
            problems.append(value)
        wanted = value["needed_bytes"] / MIB
        if not any(f"{int(wanted) + more}M" in value["problem"] for more in (1, 2)):
            problems.append(f"{value['problem']} does not name {wanted:.1f}M")
    report("plan: too little memory is exit code 3, the same figures and what would do", problems)
    value, problems = program.plan("-m", model, "--tokens", "1G", "--ram", "1T", "--kv-dir", folder, code=3)
    if value and not problems:
        if value["works"] or "free" not in value["problem"] or value["disk_bytes"] <= value["disk_free_bytes"]:
            problems.append(value)
    report("plan: too little disk is exit code 3 and says so", problems)


def small_cases(program, model, folder):
    Path(model).write_bytes(Tiny(wide=True).bytes())
    base = ["-m", model, "--tokens", "16K", "--kv", "f16", "--kv-dir", folder]
    value, problems = program.plan(*base, "--ram", "1G")
    if value and not problems:
        e = value["estimate"]
        if value["resident_bytes"] != value["kv_bytes"] or value["disk_bytes"] or e["pass_bytes"] or \
                e["written_bytes"] or e["read_bytes_prefill"] or e["pass_disk_s"] or e["crossover_rows"] != 1:
            problems.append(value)
        if abs(value["disk_free_bytes"] - shutil.disk_usage(folder).free) > 4096 * MIB:
            problems.append(f"{value['disk_free_bytes']} bytes are free")
    here = [word for word in base if word not in ("--kv-dir", folder)]  # no folder named: nothing to be checked there
    done = program.run("plan", *here, "--ram", "1G")
    free = [line.split(None, 1)[1] for line in done.stdout.splitlines() if line.split()[:1] == ["free"]]
    if done.returncode or len(free) != 1 or free[0] == "0 B":
        problems.append((free, done))
    report("plan: a cache that fits the memory touches no disk", problems)
    value, problems = program.result("run", "-m", model, "-p", "the cat", "-n", "2", "--ram", "1G")
    if value and (value["resident_bytes"] != value["kv_bytes"] or not value["kv_bytes"]):
        problems.append(f"{value['resident_bytes']} of {value['kv_bytes']} bytes in memory")
    done = program.run("run", "-m", model, "-p", "the cat", "-n", "2", "--ram", "1G", "--verbose")
    problems += [] if "flash       not used" in done.stderr else [done]
    report("run: a cache that fits the memory is all there, and flash not used", problems)

    free, problems = program.plan(*base, "--ram", "48M", "--rows", "4")  # measures the disk
    capped, more = program.plan(*base, "--ram", "48M", "--rows", "4", "--read-rate", "1M")
    problems += more
    if free and capped and not problems:
        e = capped["estimate"]
        if e["disk_read_rate"] != MIB or abs(e["pass_disk_s"] - e["pass_bytes"] / MIB) > 1e-6 * e["pass_disk_s"]:
            problems.append(e)
        if not free["estimate"]["disk_read_rate"] > MIB or not 0 < e["pass_bytes"] < capped["kv_bytes"]:
            problems.append(free["estimate"])
        if e["written_bytes"] != capped["kv_bytes"] - capped["resident_bytes"] or \
                e["pass_bytes"] != capped["kv_bytes"] - capped["decode_resident_bytes"]:
            problems.append(e)
        if e["pass_s"] != max(e["pass_disk_s"], e["pass_memory_s"], e["pass_compute_s"]) or e["rows"] != 4:
            problems.append(e)
        if e["crossover_rows"] is not None and free["estimate"]["crossover_rows"] is not None and \
                e["crossover_rows"] < free["estimate"]["crossover_rows"]:
            problems.append("a slower disk turns a pass compute-bound earlier")
    report("plan: --read-rate stands for the disk's own rate", problems)

    start = time.monotonic()
    again, problems = program.plan(*base, "--ram", "48M")
    took = time.monotonic() - start
    if again and free and not problems:
        same = again["estimate"]["disk_read_rate"] == free["estimate"]["disk_read_rate"]
        if not same and took < 1.5:
            problems.append(f"{again['estimate']['disk_read_rate']} after {free['estimate']['disk_read_rate']}")
    report(f"plan: a disk that was measured is remembered ({took:.1f} s)", problems)

    notes, file = program.environment["XDG_CACHE_HOME"], folder + "/a_file"
    Path(file).write_text("")
    program.environment["XDG_CACHE_HOME"] = file
    done = program.run("plan", *base, "--ram", "128M", "--io-probe")
    program.environment["XDG_CACHE_HOME"] = notes
    warned = [line for line in done.stderr.splitlines()
              if line.startswith("sluice: warning") and "not remembered" in line]
    report("plan: a measurement that was asked for and cannot be kept says so",
           [] if done.returncode == 0 and len(warned) == 1 else [done])

    done = program.run("plan", *base, "--ram", "48M")
    problems = [] if done.returncode == 0 else [done.stderr]
    problems += [f"'{word}' is missing in the table" for word in (
        "16384 tokens in f16", "8192 bytes a token", "weights", "window of", "ring", "needed", "free", "to be written",
        "first token after", "a pass over the whole context, 64 rows", "the largest of them")
        if word not in done.stdout]
    report("plan: the table names every figure", problems)
    done = program.run("plan", *base, "--ram", "1M")
    report("plan: refused, the table is there all the same",
           [] if done.returncode == 3 and "least budget that could work" in done.stdout and
           done.stderr.count("\n") == 1 and "would do" in done.stderr else [done])

    for name, argv, code in (("no tokens", ["-m", model], 2), ("no model", ["--tokens", "1K"], 2),
                             ("0 tokens", base[:2] + ["--tokens", "0"], 2), ("257 rows", base + ["--rows", "257"], 2),
                             ("--io junk", base + ["--io", "junk"], 2),
                             ("--read-rate 1", base + ["--read-rate", "1"], 2),
                             ("--trace over the model", base + ["--trace", model], 2),
                             ("missing folder", base[:6] + ["--kv-dir", folder + "/no", "--ram", "48M"], 3)):
        done = program.run("plan", *argv)
        lines = [line for line in done.stderr.splitlines() if line]
        report(f"plan: {name}", [] if done.returncode == code and lines and len(lines[-1]) < 400 else [done])
    report("plan: --trace left the model alone", [] if Path(model).read_bytes() == Tiny(wide=True).bytes() else ["changed"])


def sliding_case(program, model, text, folder):
    """A layer that slides: a pass is its last parts, and a run reads what the plan said."""
    part, token, span = 1024, 8192, 512
    tiny = Tiny(wide=True)
    tiny.meta["llama.attention.sliding_window"] = (U32, span)
    Path(model).write_bytes(tiny.bytes())
    Path(text).write_text("the cat " * 900)
    shape, problems = program.result("inspect", model)
    if shape and (shape["layer_spans"] != [span] or shape["n_sliding_layers"] != 1 or
                  shape["kv_walked_bytes_f16"] != part * token or shape["kv_token_bytes_f16"] != token):
        problems.append({key: value for key, value in shape.items() if key not in ("metadata", "tensors")})
    value, more = program.plan("-m", model, "--tokens", "16K", "--kv", "f16", "--kv-dir", folder, "--ram", "40M")
    problems += more
    if value and not more and (value["walked_bytes"] != part * token or value["answer_bytes"] != part * token or
                               value["kv_bytes"] != 16 * part * token or value["sliding_span"] != span or
                               value["estimate"]["pass_bytes"] != max(0, part * token - value["decode_resident_bytes"])):
        problems.append(value)
    run = ["run", "-m", model, "-f", text, "-p", "x", "-n", "40", "--kv", "f16", "--draft", "0", "--window", "64"]
    # As little as works: two parts of one layer are all that there is, and memory holds whole ones.
    texts = (program.run(*run, "--ram", f"{ram}M", "--kv-dir", folder).stderr for ram in range(16, 400, 4))
    refused = next(text for text in texts if "smallest window" in text)
    least = refused.split("M would do")[0].split()[-1] + "M"
    told, more = program.result(*run, "--ram", least, "--kv-dir", folder)
    problems += more
    whole, more = program.result(*run, "--ram", "512M")
    problems += more
    if told and whole:
        e = told["estimate"]
        planned = e["read_bytes_prefill"] + told["passes"] * e["pass_bytes"]
        if told["text"] != whole["text"] or whole["bytes_written"] or whole["bytes_read"]:
            problems.append("the text differs, or what fits was written")
        if not 0.9 * planned <= told["bytes_visited"] <= 1.1 * planned or not told["bytes_written"]:
            problems.append((told["bytes_visited"], planned, told["bytes_written"]))
        if told["bytes_visited"] > (told["windows"] + told["passes"]) * 2 * part * token:
            problems.append("a window read more than the end of the cache")
    if value and value["kept_bytes"] != 2 * part * token:
        problems.append(("kept at once", value["kept_bytes"]))
    report("plan: of layers that slide no more is read than the plan says", problems)


def budget_figures(program, model, text):
    """Every refusal for memory names a figure, and the figure does."""
    Path(model).write_bytes(Tiny(wide=True).bytes())
    Path(text).write_text("the cat " * 40)
    run = ["run", "-m", model, "-f", text, "-p", "x", "-n", "2", "--window", "64", "--ram"]
    ram, seen, problems = "1K", [], []
    for _ in range(4):
        done = program.run(*run, ram)
        seen.append((ram, done.returncode))
        if done.returncode == 0:
            break
        words = [word for word in done.stderr.replace(",", " ").replace(";", " ").split() if word.endswith("M")
                 and word[:-1].isdigit()]
        if done.returncode != 3 or "would do" not in done.stderr or len(words) != 1:
            problems.append(done)
            break
        ram = words[0]
    if seen[-1][1] != 0:
        problems.append(seen)
    for low in ("5M", "6M", "7M", "8M"):
        done = program.run(*run, low)
        if done.returncode == 3 and "would do" not in done.stderr:
            problems.append((low, done.stderr))
    report(f"budget: refused at 1K, the figure named is enough ({' '.join(step for step, _ in seen)})", problems)


def interrupt_case(program, model):
    """Ctrl-C while 3 GB of weights are loaded, while the disk is measured: one object on stdout, and 130."""
    write_sparse(model, 12, 16, 4, 64, 4096, 16384)
    for command in (["run", "-m", model, "-p", "x"], ["score", "-m", model, "-f", __file__],
                    ["plan", "-m", model, "--tokens", "4M", "--io-probe"]):
        process = subprocess.Popen([program.path, *command, "--json", "--ram", "8G", "--force-context"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=program.environment)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        problems = [] if process.returncode == 130 else [f"exit code {process.returncode}: {stderr[-300:]}"]
        try:
            value = json.loads(stdout)
            told = value.get("finish_reason") == "cancelled" or value.get("cancelled") is True
            problems += [] if told and stdout.count("\n") == 1 else [stdout[:300]]
        except ValueError:
            problems.append(f"no JSON: {stdout[:200]!r}")
        report(f"interrupt: {command[0]} --json before the first result", problems)


def demo_case(program):
    name = "plan: estimate and measured time of a run"
    model, text = os.environ.get("SLUICE_DEMO_MODEL"), "/usr/share/common-licenses/GPL-3"
    if not model or not os.path.exists(text):
        print(f"SKIP {name}: needs the demo model and a long text")
        return
    done = program.run("run", "-m", model, "-f", text, "-p", "Who published this?", "--chat", "-n", "12", "--json",
                       "--ram", "512M")
    if done.returncode != 0:
        report(name, [done.stderr[-400:]])
        return
    value = json.loads(done.stdout)
    e, problems = value["estimate"], []
    ratios = {"prefill": value["prefill_s"] / e["prefill_s"],
              "pass": value["decode_s"] / value["passes"] / e["pass_s"] if value["passes"] else 1.0}
    problems += [f"{what}: {ratio:.2f} times the estimate" for what, ratio in ratios.items() if not 0.25 <= ratio <= 4]
    if e["written_bytes"] != 0 or value["bytes_written"] != 0:
        problems.append("a cache that fits was written")
    report(f"{name} (measured / estimated: prefill {ratios['prefill']:.2f}, a pass {ratios['pass']:.2f})", problems)
    short = program.run("run", "-m", model, "-p", "Hello", "-n", "4", "--json", "--ram", "512M")
    value = json.loads(short.stdout)
    report("plan: a short run is not held up by measuring",
           [] if value["estimate"]["memory_rate"] is None and value["estimate"]["rows"] > 0 else [value])


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    path = Path(build, "sluice").resolve()
    if not path.is_file():
        print(f"FAIL plan: {path} is not there")
        return 1
    with tempfile.TemporaryDirectory(prefix="sluice_plan_", dir="/var/tmp") as folder:
        program = Program(str(path), folder + "/cache")
        model = folder + "/model.gguf"
        size_cases(program, model, folder)
        small_cases(program, model, folder)
        sliding_case(program, model, folder + "/doc.txt", folder)
        budget_figures(program, model, folder + "/doc.txt")
        interrupt_case(program, model)
        demo_case(program)
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
