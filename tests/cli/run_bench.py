#!/usr/bin/env python3
"""sluice bench on sizes that run in seconds: columns, sums that must hold, pictures, traces, endings.

  tests/cli/run_bench.py BUILD

Says nothing about speed. Prints PASS, FAIL or SKIP for each case.
"""
import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KEYS = ["context_tokens", "mode", "kv_type", "rows", "end_to_end_s", "compute_s", "read_s", "wait_s", "floor_s",
        "read_gb_per_s", "verified_rows_per_s", "peak_rss_bytes", "io_mode"]
SMALL = ["--layers", "2", "--heads", "4", "--kv-heads", "2", "--head-dim", "32", "--repeat", "1"]
failed = 0
program = ""
folder = ""


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} bench: {name}" + "".join(f"\n    {p}" for p in problems), flush=True)


def bench(*words, timeout=120, environment=None):
    """Runs it with a cache of notes of its own: what is remembered of disks stays the user's."""
    argv = [program, "bench", *words, *(["--kv-dir", folder] if words[0] in ("flash", "burst", "prefill") else [])]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=environment or surroundings())


def surroundings():
    return dict(os.environ, XDG_CACHE_HOME=str(Path(folder).parent / "notes"))


def rows_of(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def kv_bytes(layers, kv_heads, head_dim, tokens, kv):
    return 2 * layers * kv_heads * tokens * (head_dim * 2 if kv == "f16" else head_dim // 32 * 34)


def wrong(done, code=0):
    return [] if done.returncode == code else [f"exit code {done.returncode}: {done.stderr[-400:]}"]


def check_row(row, problems):
    problems += [f"no {key}" for key in KEYS if key not in row]
    for key in ("end_to_end_s", "compute_s", "read_s", "floor_s", "verified_rows_per_s", "peak_rss_bytes"):
        if not row.get(key, 0) > 0:
            problems.append(f"{key} is {row.get(key)}")


def burst_rows():
    for kv in ("q8_0", "f16"):
        done = bench("burst", *SMALL, "--tokens", "8K", "--rows", "4", "--kv", kv, "--resident", "0", "--json")
        problems = wrong(done)
        rows = [] if problems else rows_of(done)
        if not problems and len(rows) != 1:
            problems.append(f"{len(rows)} rows for one")
        for row in rows:
            check_row(row, problems)
            want = kv_bytes(2, 2, 32, 8192, kv)
            for key in ("kv_bytes", "bytes_read"):
                if row[key] != want:
                    problems.append(f"{key} is {row[key]}, by the formula {want}")
            if (row["context_tokens"], row["mode"], row["kv_type"], row["rows"]) != (8192, "mode-b", kv, 4):
                problems.append(f"another row: {row}")
            if row["io_mode"] not in ("direct", "buffered") or row["resident_bytes"] != 0:
                problems.append(f"mode {row['io_mode']}, resident {row['resident_bytes']}")
            if row["published_end_to_end_s"] is not None:
                problems.append("a published figure of another shape")
        report(f"a burst, {kv}", problems)


def resident():
    done = bench("burst", *SMALL, "--tokens", "8K", "--rows", "1", "--ram", "512M", "--json")
    problems = wrong(done)
    for row in [] if problems else rows_of(done):
        if row["bytes_read"] != 0 or row["resident_bytes"] != row["kv_bytes"] or row["io_mode"] != "memory":
            problems.append(f"read {row['bytes_read']}, resident {row['resident_bytes']} of {row['kv_bytes']}")
        if row["mode"] != "naive":
            problems.append(f"one row is {row['mode']}")
    report("a budget that holds everything reads nothing", problems)
    done = bench("burst", *SMALL, "--tokens", "8K", "--rows", "1", "--json")
    problems = wrong(done)
    for row in [] if problems else rows_of(done):
        if row["bytes_read"] != row["kv_bytes"] or row["ram_bytes"] != 384 << 20:
            problems.append(f"read {row['bytes_read']} of {row['kv_bytes']}, ceiling {row['ram_bytes']}")
    report("without a budget everything is streamed", problems)


def prefill():
    done = bench("prefill", *SMALL, "--tokens", "8K", "--window", "1024", "--resident", "0", "--json")
    problems = wrong(done)
    for row in [] if problems else rows_of(done):
        check_row(row, problems)
        all_bytes = kv_bytes(2, 2, 32, 8192, "q8_0")
        walked = sum(range(8)) * all_bytes // 8
        if row["bytes_read"] != walked:
            problems.append(f"read {row['bytes_read']}, the windows walk {walked}")
        if not all_bytes <= row["bytes_written"] <= 1.05 * all_bytes:
            problems.append(f"wrote {row['bytes_written']} for {all_bytes}")
        if row["window_tokens"] != 1024 or row["rows"] != 8192 or row["mode"] != "mode-a":
            problems.append(f"another row: {row}")
        if not row["prompt_tokens_per_s"] > 0:
            problems.append("no prompt tokens a second")
    report("a prefill", problems)


def csv_columns():
    several = ["--tokens", "4K", "--tokens", "8K", "--rows", "1", "--rows", "4"]
    as_csv, as_json = (bench("burst", *SMALL, *several, "--resident", "0", form) for form in ("--csv", "--json"))
    problems = wrong(as_csv) + wrong(as_json)
    if not problems:
        table = list(csv.DictReader(io.StringIO(as_csv.stdout)))
        rows = rows_of(as_json)
        if list(table[0]) != list(rows[0]):
            problems.append("other columns than JSON's")
        found = [(int(r["context_tokens"]), int(r["rows"])) for r in table]
        if found != [(r["context_tokens"], r["rows"]) for r in rows] or found != [(4096, 1), (4096, 4), (8192, 1),
                                                                                   (8192, 4)]:
            problems.append(f"rows {found}")
    report("CSV and JSON, several contexts and row counts", problems)


def sweep():
    picture = Path(folder).parent / "sweep.svg"
    done = bench("burst", *SMALL, "--tokens", "16K", "--rows", "2", "--ram-sweep", "4", "--json", "--svg", str(picture))
    problems = wrong(done)
    rows = [] if problems else rows_of(done)
    if not problems:
        read, budgets = [r["bytes_read"] for r in rows], [r["ram_bytes"] for r in rows]
        if len(rows) != 4 or read != sorted(read, reverse=True) or read[0] != rows[0]["kv_bytes"] or read[-1] != 0:
            problems.append(f"bytes read: {read}")
        if budgets != sorted(set(budgets)):
            problems.append(f"budgets: {budgets}")
        root = ElementTree.parse(picture).getroot()
        space = "{http://www.w3.org/2000/svg}"
        if root.tag != f"{space}svg" or len(root.findall(f"{space}polyline")) != 1:
            problems.append("the picture has no line")
        if len([c for c in root.iter(f"{space}title")]) != 4:
            problems.append("the picture has not four points")
    report("a sweep of budgets and its picture", problems)


def table():
    done = bench("burst", "--table", "--tokens", "4K", "--repeat", "1", "--ram", "384M", "--json", timeout=280)
    problems = wrong(done)
    if not problems:
        rows = {row["mode"]: row for row in rows_of(done)}
        if sorted(rows) != ["in-memory", "mode-a", "mode-b"]:
            problems.append(f"modes {sorted(rows)}")
        for mode, row in rows.items():
            if row["published_end_to_end_s"] is None:
                problems.append(f"{mode}: no published figure beside")
            if mode != "in-memory" and row["peak_rss_bytes"] > 384 << 20:
                problems.append(f"{mode}: peak of {row['peak_rss_bytes']} bytes, 384 MiB allowed")
    report("the published table's short rows", problems)


def capped():
    """A rate that the disk surely has: the reads alone then take as long as it says."""
    done = bench("burst", *SMALL, "--tokens", "8K", "--rows", "1", "--resident", "0", "--read-rate", "4M", "--json")
    problems = wrong(done)
    for row in [] if problems else rows_of(done):
        least = row["kv_bytes"] / (4 << 20)
        if not 0.7 * least < row["read_s"]:
            problems.append(f"{row['kv_bytes']} bytes at 4 MiB/s in {row['read_s']} s")
        if row["compute_s"] > 0.7 * least:
            problems.append(f"the kernels alone took {row['compute_s']} s: held back by the rate?")
    report("a capped rate", problems)


def mapped():
    done = bench("burst", *SMALL, "--tokens", "4K", "--rows", "4", "--mmap", "--json")
    problems = wrong(done)
    for row in [] if problems else rows_of(done):
        if row["mode"] != "mmap" or row["kv_bytes"] != kv_bytes(2, 2, 32, 4096, "q8_0") or not row["end_to_end_s"] > 0:
            problems.append(f"another row: {row}")
    report("the mapped rival", problems)


def flash():
    """With fio, where it is installed, once: it is swept for half a minute."""
    base, hidden = ["flash", "--file-size", "1M", "--repeat", "1"], dict(surroundings(), PATH="/nonexistent")
    done = bench(*base, "--json", timeout=280)
    problems = wrong(done)
    if not problems:
        readers = json.loads(done.stdout)["readers"]
        if [r["name"] for r in readers][::5] != ["sluice", "fio"] or not readers[0]["gb_per_s"] > 0:
            problems.append(f"readers: {readers}")
        if readers[-1]["gb_per_s"] is None and not readers[-1]["note"]:
            problems.append("fio's row says neither a figure nor why")
    report("ways to read a file", problems)
    done = bench(*base, "--csv", environment=hidden)
    problems = wrong(done)
    if not problems and len(list(csv.DictReader(io.StringIO(done.stdout)))) != 6:
        problems.append(done.stdout)
    report("ways to read a file as CSV", problems)
    done = bench(*base, environment=hidden)
    report("flash without fio", wrong(done) + ([] if "fio is not installed" in done.stdout else [done.stdout]))


def trace():
    path = Path(folder).parent / "trace.json"
    done = bench("burst", *SMALL, "--tokens", "8K", "--rows", "4", "--resident", "0", "--trace", str(path), "--json")
    problems = wrong(done)
    if not problems:
        events = json.loads(path.read_text())
        lanes = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        used = {lanes[e["tid"]] for e in events if e["ph"] in "Xbe"}
        if not {"passes", "kernels"} <= used:
            problems.append(f"lanes with events: {used}")
        begun = sorted(e["id"] for e in events if e["ph"] == "b")
        if begun != sorted(e["id"] for e in events if e["ph"] == "e") or len(begun) != len(set(begun)):
            problems.append("reads that begin do not end")
        if any(e["dur"] < 0 for e in events if e["ph"] == "X"):
            problems.append("a negative length")
    report("a trace", problems)


def interrupted():
    path = Path(folder).parent / "cut.json"
    argv = [program, "bench", "burst", "--tokens", "64K", "--rows", "256", "--repeat", "64", "--resident", "0",
            "--kv-dir", folder, "--trace", str(path)]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=surroundings())
    end = time.time() + 60
    while not path.exists() and time.time() < end:  # the handler is there before the trace is
        time.sleep(0.05)
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    try:
        _, text = child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return report("Ctrl-C", ["no end within a minute"])
    problems = [] if child.returncode == 130 and "cancelled" in text + text.replace("interrupted", "cancelled") else [f"{child.returncode}: {text[-300:]}"]
    if not problems:
        json.loads(path.read_text())
    return report("Ctrl-C ends it and the trace", problems)


KERNEL_QUICK = ["kernel", "--quick", "--threads", "1", "--repeat", "2", "--seconds", "0.002"]
VECTORS = {"exp2", "sumexp", "argmax", "finite", "add", "silu_mul", "rmsnorm", "rope_norm", "qrow", "kv_pack_f16",
           "kv_pack_q8"}


def kernels():
    """Every group has its rows, and what was measured fits together."""
    done = bench(*KERNEL_QUICK, "--peer", "none", "--json")
    problems = wrong(done)
    rows = [] if problems else rows_of(done)
    found = {group: [r for r in rows if r["group"] == group] for group in ("peak", "attention", "projection", "vector")}
    if not problems:
        if {r["name"] for r in found["vector"]} != VECTORS:
            problems.append(f"vectors: {[r['name'] for r in found['vector']]}")
        if {(r["type"], r["rows"]) for r in found["attention"]} != {(t, n) for t in ("q8_0", "f16") for n in (1, 64)}:
            problems.append(f"attention: {found['attention']}")
        types = {r["type"] for r in found["projection"]}
        if not {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"} <= types or len(found["projection"]) != 2 * len(types):
            problems.append(f"projections of {sorted(types)}")
        if not {"memory read", "cache read"} <= {r["name"] for r in found["peak"]}:
            problems.append(f"peaks: {[r['name'] for r in found['peak']]}")
    for r in found["attention"]:
        operations = 4 * r["rows"] * r["heads"] * r["head_dim"] * r["keys"]
        if abs(r["gops"] * 1e9 * r["seconds"] / operations - 1) > 1e-6:
            problems.append(f"{r['gops']} Gop/s in {r['seconds']} s")
    for r in found["attention"] + found["projection"] + found["vector"]:
        if not 0 < r["min_s"] <= r["seconds"] <= r["max_s"] or not r["memory_peak_gb_per_s"] > 0 or r["peer"]:
            problems.append(f"figures of {r}")
        if not r["share"] > 0 or r["bound"] not in (r["compute_bound"], r["memory_bound"]):
            problems.append(f"share of {r}")
    report("kernels beside the machine's peaks", problems)


def kernel_forms():
    small = [*KERNEL_QUICK, "--only", "vectors", "--peer", "none"]
    as_csv, as_json, lowest = bench(*small, "--csv"), bench(*small, "--json"), bench(*small, "--json", "--level", "ref")
    problems = wrong(as_csv) + wrong(as_json) + wrong(lowest)
    if not problems:
        table = list(csv.DictReader(io.StringIO(as_csv.stdout)))
        if list(table[0]) != list(rows_of(as_json)[0]) or len(table) != len(VECTORS):
            problems.append("other columns or rows than JSON's")
        if {r["level"] for r in rows_of(lowest)} != {"ref"}:
            problems.append("--level ref was not taken")
    done = bench(*KERNEL_QUICK, "--only", "projections", "--type", "Q8_0", "--rows", "3", "--peer", "none")
    problems += wrong(done)
    if len(done.stdout.split("\n")) != 4 or "q8_0" not in done.stdout:
        problems.append(f"one case: {done.stdout}")
    report("kernels as CSV, as a table, of a lower level", problems)


# A library with ggml's names whose one type is float: it multiplies, slowly, and its attention leaves zeros; or it ends
# the process.
STAND_IN = """
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { size_t bytes; void *memory; bool has_no_data; } params;
typedef struct tensor { int64_t n, rows; struct tensor *w, *x; float *data; } tensor;
typedef struct { tensor *last; } graph;
static tensor *make(int64_t n, int64_t rows) {
    tensor *t = calloc(1, sizeof *t);
    *t = (tensor){n, rows, NULL, NULL, calloc((size_t)(n * rows), 4)};
    return t;
}
void *ggml_init(params p) { (void)p; return calloc(1, 1); }
void *ggml_new_tensor_2d(void *c, int t, int64_t a, int64_t b) { (void)c; (void)t; return make(a, b); }
void *ggml_new_tensor_3d(void *c, int t, int64_t a, int64_t b, int64_t d) { (void)c; (void)t; return make(a, b * d); }
void *ggml_view_3d(void *c, void *x) { (void)c; return x; }
void *ggml_get_data(tensor *t) { return t->data; }
size_t ggml_nbytes(tensor *t) { return (size_t)(t->n * t->rows) * 2; }
size_t ggml_row_size(int t, int64_t n) { (void)t; return (size_t)n * 4; }
size_t ggml_quantize_chunk(int t, const float *from, void *to, int64_t start, int64_t rows, int64_t n) {
    (void)t; (void)start;
    memcpy(to, from, (size_t)(rows * n) * 4);
    return 0;
}
void *ggml_mul_mat(void *c, tensor *w, tensor *x) {
    tensor *t = make(w->rows, x->rows);
    (void)c;
    t->w = w;
    t->x = x;
    return t;
}
void *ggml_flash_attn_ext(void *c, tensor *q) { (void)c; return make(q->n, q->rows); }
void *ggml_new_graph_custom(void) { return calloc(1, sizeof(graph)); }
void ggml_build_forward_expand(graph *g, tensor *t) { g->last = t; }
void *ggml_backend_cpu_init(void) { return calloc(1, 1); }
void ggml_backend_cpu_set_n_threads(void *b, int n) { (void)b; (void)n; }
#ifndef INCOMPLETE
int ggml_backend_graph_compute(void *b, graph *g) {
    tensor *t = g->last;
    (void)b;
#ifdef CRASHING
    raise(SIGILL);
#endif
    for (int64_t i = 0; t->w && i < t->n * t->rows; i++) {
        const float *w = t->w->data + i % t->n * t->w->n, *x = t->x->data + i / t->n * t->x->n;
        float sum = 0;
        for (int64_t k = 0; k < t->x->n; k++)
            sum += w[k] * x[k];
        t->data[i] = sum;
    }
    return usleep(1000);
}
#endif
"""


def kernel_peers():
    """Peers that work, crash, lack a function or are not there; what is ours is measured in any case."""
    base, problems = Path(folder).parent, []
    cases = {"working": "", "crashing": "ended by signal 4", "incomplete": "has no ggml_backend_graph_compute",
             "absent": "cannot open shared object"}
    for name in list(cases)[:3]:
        (base / name).mkdir()
        source = base / f"{name}.c"
        source.write_text(STAND_IN)
        subprocess.run(["cc", "-shared", "-fPIC", f"-D{name.upper()}", "-o", str(base / name / "libggml.so"),
                        str(source)], check=True)
    for only, shape in (("attention", ["--keys", "256"]), ("projections", ["--rows", "1"])):
        peers = [word for name in cases for word in ("--peer", str(base / name))]
        done = bench(*KERNEL_QUICK, "--only", only, "--type", "q8_0", *shape, *peers, "--json")
        problems += wrong(done)
        rows = [] if problems else rows_of(done)
        cases["working"] = "results are wrong" if only == "attention" else "mul_mat"
        if len(rows) % len(cases) != 0 or not rows:
            problems.append(f"{len(rows)} rows for {len(cases)} peers")
        for row, (name, words) in zip(rows, cases.items()):
            if not row["seconds"] > 0 or words not in (row["peer_way"] or ""):
                problems.append(f"{only}, {name}: {row['peer_way']}")
            if (row["ratio"] is not None) != (name == "working" and only == "projections"):
                problems.append(f"{only}, {name}: ratio {row['ratio']}")
            if row["ratio"] is not None and not row["peer_s"] >= 0.001:
                problems.append(f"a call that sleeps a millisecond took {row['peer_s']} s")
    one = [*KERNEL_QUICK, "--only", "attention", "--type", "q8_0", "--rows", "1", "--keys", "256", "--json"]
    named = bench(*one, environment=dict(surroundings(), SLUICE_PEER=str(base / "absent")))
    given = bench(*one, "--peer", str(base / "absent"))
    problems += wrong(named) + wrong(given)
    if not problems and [[r["peer"], r["peer_way"]] for r in rows_of(named)] != [[r["peer"], r["peer_way"]]
                                                                               for r in rows_of(given)]:
        problems.append(f"a wrong SLUICE_PEER: {named.stdout}")
    report("peers of every kind", problems)


def state_of(pid):
    """A letter of proc(5), or None."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def killed():
    """A bench that is killed takes the peer that it has stopped along. Needs kernel_peers' library."""
    if not sys.platform.startswith("linux"):
        return print("SKIP bench: kill -9 (only Linux ends a child with its parent)")
    argv = [program, "bench", "kernel", "--quick", "--threads", "1", "--repeat", "64", "--seconds", "1", "--only",
            "projections", "--type", "f32", "--rows", "1", "--peer", str(Path(folder).parent / "working")]
    bench_child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=surroundings())
    children, peers, end = Path(f"/proc/{bench_child.pid}/task/{bench_child.pid}/children"), [], time.time() + 30
    if not children.exists():
        bench_child.kill()
        bench_child.wait()
        return print("SKIP bench: kill -9 (this kernel lists no children)")
    while time.time() < end and [state_of(p) for p in peers] != ["T"]:
        time.sleep(0.05)
        peers = children.read_text().split()
    problems = [] if [state_of(p) for p in peers] == ["T"] else [f"no stopped peer: {peers}"]
    bench_child.kill()
    bench_child.wait()
    end = time.time() + 10
    while time.time() < end and any(state_of(p) not in (None, "Z", "X") for p in peers):
        time.sleep(0.05)
    problems += [f"the peer lives on, {state_of(p)}" for p in peers if state_of(p) not in (None, "Z", "X")]
    return report("kill -9 ends its peer too", problems)


def refusals():
    pipe = str(Path(folder).parent / "unread_pipe")
    os.mkfifo(pipe)
    cases = [
        (["burst", "--tokens", "4000"], 2, "multiple of 64"),
        (["burst", "--tokens", "x"], 2, "--tokens"),
        (["burst", "--heads", "5", "--kv-heads", "2"], 2, "no multiple"),
        (["burst", "--head-dim", "48"], 3, "use --kv f16"),
        (["burst", "--rows", "0"], 2, "--rows"),
        (["burst", "--tokens", "64K", "--ram", "20M", "--resident", "0"], 3, "too small"),
        (["prefill", "--tokens", "64K", "--window", "4096", "--ram", "64M"], 3, "too small"),
        (["burst", "--tokens", "4K", "--tokens", "8K", "--trace", "/dev/null"], 2, "--trace"),
        (["burst", *SMALL, "--tokens", "4K", "--csv", "--json"], 2, "one form at a time"),
        (["flash", "--csv", "--json"], 2, "one form at a time"),
        (["burst", "--tokens", "4K", "--trace", "/dev/stdout", "--json"], 2, "standard output"),
        (["burst", *SMALL, "--tokens", "4K", "--trace", "/dev/full"], 1, "/dev/full"),
        (["burst", *SMALL, "--tokens", "4K", "--trace", pipe], 1, pipe),
        (["prefil"], 2, "did you mean 'prefill'"),
        ([], 2, "flash, burst, prefill or kernel"),
        (["kernel", "--heads", "32/5"], 2, "--heads: '32/5'"),
        (["kernel", "--heads", "32"], 2, "--heads: '32'"),
        (["kernel", "--level", "mmx"], 2, "unknown level"),
        (["kernel", "--threads", "0"], 2, "--threads"),
        (["kernel", "--only", "norms"], 2, "--only"),
        (["kernel", "--csv", "--json"], 2, "one form at a time"),
        (["kernel", "--level", "mmx"], 2, "--level mmx"),
        (["kernel", "--type", "q9_9"], 2, "'q9_9', expected f32, f16, bf16, q8_0"),
        (["kernel", "--only", "attention", "--type", "q8_0", "--head-dim", "80"], 2, "nothing to measure"),
        (["kernel", "--only", "attention", "--type", "q4_0"], 2, "nothing to measure"),
        (["kernel", "--head-dim", "40"], 2, "multiple of 16"),
        (["kernel", "--head-dim", "272"], 2, "--head-dim"),
        (["kernel", "--keys", "100"], 2, "multiple of 64"),
        (["kernel", "--keys", "4G"], 3, "--keys"),
    ]
    problems = []
    for words, code, text in cases:
        done = bench(*words) if words else subprocess.run([program, "bench"], capture_output=True, text=True)
        if done.returncode != code or text not in done.stderr or (words and words[0] == "kernel" and done.stdout):
            problems.append(f"{words}: exit code {done.returncode}, {done.stderr.strip()[-200:]}")
    report("refusals", problems)


def main():
    global program, folder
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    program = str(Path(build, "sluice").resolve())
    if not os.access(program, os.X_OK):
        print(f"FAIL bench: {program} is not there")
        return 1
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as scratch:
        folder = str(Path(scratch, "kv"))
        os.mkdir(folder)
        # One needs the processors, the other mostly waits for fio; the rest looks at times.
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(case) for case in (table, flash)]:
                done.result()
        for case in (burst_rows, resident, prefill, csv_columns, sweep, capped, mapped, trace, interrupted, kernels,
                     kernel_forms, kernel_peers, killed, refusals):
            case()
        report("nothing is left behind", os.listdir(folder))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
