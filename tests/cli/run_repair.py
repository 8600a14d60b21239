#!/usr/bin/env python3
"""sluice repair: damaged context files become byte for byte what they were.

  tests/cli/run_repair.py BUILD [kills|flips]          one of these cases alone

A small seeded model of four layers, a text of three segments. Bits are flipped and sectors overwritten in every kind of
place; repair is killed at random moments and called again. SLUICE_TEST_FLIPS single flipped bits (default 60), each of
which verify, a question and repair must see; SLUICE_TEST_KILLS kills (default 8); SLUICE_TEST_SEED repeats both. Prints
PASS or FAIL for each case.
"""
import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tools")]
import read_context  # noqa: E402
from tiny_gguf import Tiny  # noqa: E402

N_LAYERS, SECTOR = 4, 4096
failed = 0


def report(name, problems):
    global failed
    failed += bool(problems)
    print(f"{'FAIL' if problems else 'PASS'} {name}" + "".join(f"\n    {p}" for p in problems[:8]), flush=True)


def model(base=10000.0):
    tiny = Tiny()
    for key, value in (("context_length", 16384), ("block_count", N_LAYERS), ("rope.freq_base", base)):
        tiny.meta[f"llama.{key}"] = (tiny.meta[f"llama.{key}"][0], value)
    tail = tiny.tensors.pop("output_norm.weight")
    for name in [name for name in tiny.tensors if name.startswith("blk.0.")]:
        for layer in range(1, N_LAYERS):
            tiny.tensors[name.replace("blk.0.", f"blk.{layer}.")] = tiny.tensors[name]
    tiny.tensors["output_norm.weight"] = tail
    return tiny.bytes()


class Ground:
    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        self.model, self.doc, self.book, self.copy = (self.folder / name for name in
                                                      ("model.gguf", "doc.txt", "book.kv", "copy.kv"))
        self.model.write_bytes(model())
        self.doc.write_bytes(b" ".join(b"%d the mill" % (i * i) for i in range(660)))
        self.must(*self.prefill(self.book))
        self.data, self.at = self.book.read_bytes(), read_context.Context(self.book).at
        self.n_tokens = len(read_context.Context(self.book).ids)
        self.n_segments = -(-self.n_tokens // 4096)

    def argv(self, *argv):
        return [self.program, *map(str, argv)]

    def run(self, *argv):
        return subprocess.run(self.argv(*argv), capture_output=True, stdin=subprocess.DEVNULL)

    def must(self, *argv):
        done = self.run(*argv)
        if done.returncode != 0:
            raise RuntimeError(f"{argv}: exit code {done.returncode}: {done.stderr.decode(errors='replace')[-400:]}")
        return done

    def prefill(self, out, commit=4096):
        return "prefill", "-m", self.model, "-f", self.doc, "-o", out, "--commit-tokens", commit, "--allow-ram-dir"

    def repair(self, *extra, path=None, ram="64M"):
        return "repair", "-m", self.model, path or self.copy, "--ram", ram, "--allow-ram-dir", *extra

    def ask(self, path):
        return self.run("run", "-m", self.model, "-c", path, "-p", "what was that", "-n", 8, "--json",
                        "--allow-ram-dir")

    def spoil(self, places, draw, data=None):
        """The book with bits flipped at the offsets, in self.copy."""
        spoilt = bytearray(data or self.data)
        for at in places:
            spoilt[at] ^= 1 << draw.randrange(8)
        self.copy.write_bytes(spoilt)
        return bytes(spoilt)

    def part(self, layer, token):
        """Offset of the part that the token is in."""
        return self.at.group_off(layer, token // 4096, token % 4096 // 1024 * 16)

    def record(self, segment, copy):
        return self.at.group_off(N_LAYERS, segment, 0) + copy * self.at.R

    def repaired(self, problems, name, code=0):
        """Repairs self.copy; what --json said."""
        done = self.run(*self.repair("--json"))
        if done.returncode != code:
            problems.append(f"{name}: exit code {done.returncode}, expected {code}: {done.stderr.decode()[-300:]}")
        elif code == 0 and self.copy.read_bytes() != self.data:
            problems.append(f"{name}: the file is not what it was")
        try:
            return json.loads(done.stdout)
        except ValueError:
            problems.append(f"{name}: {done.stdout}")
            return {"damaged": [], "repaired": 0, "lost": 0, "bytes_written": 0, "tokens_computed": 0}


def places_of(ground):
    """Every kind of place in the file: {name: offsets}."""
    last, at = ground.n_tokens - 1, ground.at
    used = -(-(ground.n_tokens % 4096) // 64)  # tile groups of the last segment
    return {
        "magic": [3], "format version": [9], "superblock, first copy": [100], "superblock, second copy": [at.S + 200],
        "commit area": [2 * at.S + 3 * at.C + 5000], "before the first segment": [at.D - 1],
        "record, first copy": [ground.record(1, 0) + 60], "record, second copy": [ground.record(0, 1) + at.R - 9],
        "last record": [ground.record(ground.n_segments - 1, 0) + 5],
        "end record, first copy": [len(ground.data) - 2 * SECTOR + 9], "end record, second copy": [len(ground.data) - 7],
        "first part": [ground.part(0, 0) + 10], "part inside": [ground.part(2, 2048) + 4097],
        "unfilled tile group": [ground.part(3, last) + (used - 1) % 16 * at.group[3] + 5],
        "behind the last tile group": [at.group_off(1, ground.n_segments - 1, used)],
        "behind a block": [at.group_off(0, ground.n_segments - 1, 0) + at.block[0] - 1],
        "behind the records": [ground.record(0, 1) + at.R],
        "one part in all layers": [ground.part(layer, 1024) + 7 for layer in range(N_LAYERS)],
        "parts of one layer": [ground.part(1, token) + 9 for token in range(0, ground.n_tokens, 1024)],
    }


def kinds(ground, draw):
    problems, every = [], places_of(ground)
    for name, places in every.items():
        spoilt = ground.spoil(places, draw)
        dry = ground.run(*ground.repair("--dry-run", "--json"))
        if dry.returncode != 4 or ground.copy.read_bytes() != spoilt:
            problems.append(f"{name}: --dry-run ends with {dry.returncode}, or changed the file: {dry.stderr}")
        told = ground.repaired(problems, name)
        listed = json.loads(dry.stdout)["damaged"]
        if [{**d, "fate": 0} for d in listed] != [{**d, "fate": 0} for d in told["damaged"]]:
            problems.append(f"{name}: --dry-run lists {listed}, repaired were {told['damaged']}")
        if any(not any(d["offset"] <= at < d["offset"] + d["bytes"] for d in told["damaged"]) for at in places):
            problems.append(f"{name}: {told['damaged']}")
        if told["repaired"] != len(told["damaged"]) or told["lost"]:
            problems.append(f"{name}: {told}")
        # A record or superblock is written whole, of anything else the sectors that were hit.
        most = max(at_least(ground, d) for d in told["damaged"]) * len(places)
        if told["bytes_written"] > most:
            problems.append(f"{name}: {told['bytes_written']} bytes written, at most {most}")
    report(f"repair: {len(every)} kinds of places one after the other", problems)
    problems = []
    alone = (3, 9, 100, ground.record(1, 0) + 60, len(ground.data) - 7)  # the other copy is hit, too
    ground.spoil([at for places in every.values() for at in places if at not in alone], draw)
    ground.repaired(problems, "all")
    whole = ground.run(*ground.repair())
    if whole.returncode or b"nothing to repair" not in whole.stdout:
        problems.append(f"again: {whole.stdout} {whole.stderr}")
    report("repair: all of them at once", problems)


def at_least(ground, damage):
    return {"superblock": ground.at.S, "segment record": ground.at.R}.get(damage["what"], SECTOR)


def overwritten(ground, draw):
    """Rubbish over a quarter of all parts, and over unused bytes; what is whole is not written."""
    problems, spoilt, n = [], bytearray(ground.data), 0
    for segment in range(ground.n_segments):
        for layer in range(N_LAYERS):
            for token in range(segment * 4096, min(segment * 4096 + 4096, ground.n_tokens), 1024):
                if draw.random() < 0.25:
                    off = ground.part(layer, token)
                    spoilt[off:off + SECTOR] = draw.randbytes(SECTOR)
                    n += 1
    ground.copy.write_bytes(spoilt)
    told = ground.repaired(problems, "rubbish")
    if told["bytes_written"] != n * SECTOR:
        problems.append(f"{told['bytes_written']} bytes written for {n} sectors of rubbish")
    report(f"repair: {n} parts at once, {told['tokens_computed']} tokens computed", problems)


def flips(ground, draw, n_flips):
    problems, n_parts = [], 0
    used = ground.n_segments * ground.at.stride
    for i in range(n_flips):
        at = draw.randrange((len(ground.data), ground.at.D)[i % 8 == 7])
        if i % 2 == 0:  # most of the file is parts of its first segments
            at = ground.part(draw.randrange(N_LAYERS), draw.randrange(ground.n_tokens)) + draw.randrange(SECTOR)
        ground.spoil([at], draw)
        verify = ground.run("verify", ground.copy, "--json")
        damaged = json.loads(verify.stdout)["damaged"]
        if verify.returncode != 4 or not any(d["offset"] <= at < d["offset"] + d["bytes"] for d in damaged):
            problems.append(f"a bit of byte {at}: verify ends with {verify.returncode}, {damaged}")
        is_part = any(d["what"] == "part" for d in damaged)
        n_parts += is_part
        asked = ground.ask(ground.copy)
        if asked.returncode != (4 if is_part else 0):
            problems.append(f"a bit of byte {at}: a question ends with {asked.returncode}: {asked.stderr[-200:]}")
        ground.repaired(problems, f"a bit of byte {at}")
    if used and n_flips > 20 and n_parts < n_flips // 8:
        problems.append(f"only {n_parts} of {n_flips} in parts")
    report(f"repair: {n_flips} flipped bits, {n_parts} in parts", problems)


def lost(ground, draw):
    """Both copies of a record are gone: all else is repaired, what is not is named."""
    problems = []
    both = [ground.record(1, 0) + 70, ground.record(1, 1) + 70]
    before, behind = ground.part(2, 1024) + 5, ground.part(1, 8192) + 5
    area, third = 2 * ground.at.S + 77, ground.record(2, 1) + 300
    spoilt = ground.spoil([*both, before, behind, area, third], draw)
    told = ground.repaired(problems, "lost", code=4)
    now = ground.copy.read_bytes()
    wanted = bytearray(ground.data)
    for at in (*both, behind):
        wanted[at] = spoilt[at]
    if now != bytes(wanted):
        problems.append("the file is not what it should be: more lost than the record and what lies behind it")
    if (told["repaired"], told["lost"]) != (3, 2):
        problems.append(f"{told}")
    text = ground.run(*ground.repair())
    if text.returncode != 4 or b"lost: segment record" not in text.stdout or b"cannot be repaired" not in text.stderr:
        problems.append(f"{text.stdout} {text.stderr}")
    report("repair: both copies of a record gone", problems)
    problems = []
    ground.spoil([5, ground.at.S + 5], draw)
    done = ground.run(*ground.repair())
    if done.returncode != 4 or b"superblock" not in done.stderr:
        problems.append(f"exit code {done.returncode}: {done.stderr}")
    report("repair: both superblocks gone", problems)
    problems = []
    # The last segment is not full, so nothing can have followed it: the end record is made again.
    ground.spoil([len(ground.data) - 7, len(ground.data) - SECTOR - 7, before], draw)
    told = ground.repaired(problems, "both end records")
    if (told["repaired"], told["lost"]) != (2, 0):
        problems.append(f"{told}")
    for cut in (SECTOR, ground.at.stride, ground.at.stride + 2 * SECTOR):
        ground.spoil([before], draw)
        os.truncate(ground.copy, len(ground.data) - cut)
        whole = cut == SECTOR
        told = ground.repaired(problems, f"cut by {cut} bytes", code=0 if whole else 4)
        wanted = ground.data if whole else ground.data[:-cut]
        if told["repaired"] != 1 + whole or bool(told["lost"]) == whole or ground.copy.read_bytes() != wanted:
            problems.append(f"cut by {cut} bytes: {told}")
    report("repair: cut off, or no end record", problems)


def refused(ground, draw):
    problems = []
    other = ground.folder / "other.gguf"
    other.write_bytes(model(20000.0))
    spoilt = ground.spoil([100, ground.part(0, 0)], draw)
    for extra in ((), ("--dry-run",)):
        done = ground.run("repair", "-m", other, ground.copy, "--allow-ram-dir", *extra)
        if done.returncode != 3 or b"10000" not in done.stderr or b"20000" not in done.stderr:
            problems.append(f"another model: exit code {done.returncode}: {done.stderr}")
    with open(ground.copy, "r+b") as file:
        fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK
        done = ground.run(*ground.repair())
        if done.returncode != 3 or b"another process is writing" not in done.stderr:
            problems.append(f"another writer: exit code {done.returncode}: {done.stderr}")
    for path, code in ((ground.folder / "none.kv", 1), (ground.model, 4)):
        done = ground.run(*ground.repair(path=path))
        if done.returncode != code or path.name.encode() not in done.stderr:
            problems.append(f"{path}: exit code {done.returncode}: {done.stderr}")
    if ground.copy.read_bytes() != spoilt:
        problems.append("the file changed")
    report("repair: another model, another writer, no context", problems)


def memory(ground, draw):
    """The peak stays under --ram."""
    problems = []
    ground.spoil([ground.part(3, ground.n_tokens - 1)], draw)
    done = ground.run(*ground.repair("--json", ram="20M"))
    peak = json.loads(done.stdout)["peak_rss_bytes"]
    if done.returncode != 0 or not 0 < peak <= 20 << 20 or ground.copy.read_bytes() != ground.data:
        problems.append(f"exit code {done.returncode}, {peak} bytes at most: {done.stderr}")
    report(f"repair: {peak / 2**20:.1f} MiB of 20", problems)


def unfinished(ground, draw):
    """A prefill that was killed: its file is repaired as far as it was committed, and goes on."""
    problems, path, n = [], ground.copy, 0
    begun = time.monotonic()
    path.unlink()
    ground.must(*ground.prefill(path, 192))
    whole_s = time.monotonic() - begun
    for share in (0.5, 0.7, 0.35, 0.85, 0.6):
        path.unlink()
        child = subprocess.Popen(ground.argv(*ground.prefill(path, 192)), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        time.sleep(share * whole_s)
        child.send_signal(signal.SIGKILL)
        child.wait()
        if not path.exists():
            continue
        context = read_context.Context(path)
        stored = len(context.ids)
        if context.finished or stored == 0:
            continue
        n += 1
        ground.run(*ground.repair())  # evens out what the kill left between two copies
        before = path.read_bytes()
        newest = max((before[2 * ground.at.S + copy * ground.at.C:][8:16], copy) for copy in (0, 2))[1]
        places = [50, 2 * ground.at.S + (newest + draw.randrange(2)) * ground.at.C + 70]
        places += [ground.part(draw.randrange(N_LAYERS), token) + draw.randrange(1000)
                   for token in range(0, stored - 64, 1024)]
        ground.spoil(places, draw, before)
        done = ground.run(*ground.repair("--json"))
        if done.returncode != 0 or path.read_bytes() != before:
            problems.append(f"{stored} tokens: exit code {done.returncode}: {done.stdout} {done.stderr}")
        ground.must(*ground.prefill(path, 192))
        if path.read_bytes() != ground.data:
            problems.append(f"{stored} tokens: the finished file is not the one made in one go")
    if n == 0:
        problems.append("no prefill was killed in time")
    report(f"repair: {n} unfinished files", problems)


def kills(ground, draw, n_kills):
    """Killed at any moment, repair goes on; meanwhile a question is answered rightly or not at all."""
    problems, n_killed, n_between = [], 0, 0
    places = [ground.part(layer, token) + draw.randrange(SECTOR) for token in range(0, ground.n_tokens, 1024)
              for layer in range(N_LAYERS)] + [100, ground.record(1, 0) + 99, ground.at.D - 50]
    right = json.loads(ground.ask(ground.book).stdout)["tokens"]
    ground.spoil(places, draw)
    begun = time.monotonic()
    ground.repaired(problems, "in one go")
    whole_s = time.monotonic() - begun
    while n_killed < n_kills and not problems:
        spoilt = ground.spoil(places, draw)
        for _ in range(draw.randint(1, 3)):
            child = subprocess.Popen(ground.argv(*ground.repair()), stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            time.sleep(draw.uniform(0.0, whole_s))
            asked = ground.ask(ground.copy)
            if asked.returncode != 4 and (asked.returncode or json.loads(asked.stdout)["tokens"] != right):
                problems.append(f"a reader beside it: exit code {asked.returncode}: {asked.stdout} {asked.stderr}")
            n_killed += child.poll() is None
            child.send_signal(signal.SIGKILL)
            child.wait()
            now = ground.copy.read_bytes()
            n_between += now not in (spoilt, ground.data)
            if any(now[i] not in (spoilt[i], ground.data[i]) for i in places) or len(now) != len(spoilt):
                problems.append("a killed repair wrote something else than what was there")
        ground.repaired(problems, "after a kill")
    if n_between == 0:
        problems.append("no kill fell between the first and the last repaired thing")
    report(f"repair: {n_killed} kills, {n_between} with some of it done, {whole_s:.2f} s in one go", problems)


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        only = sys.argv[2] if len(sys.argv) > 2 else None
        for case in (kinds, overwritten, refused, lost, memory, unfinished):
            if not only:
                case(ground, draw)
        if only != "kills":
            flips(ground, draw, int(os.environ.get("SLUICE_TEST_FLIPS", "60")))
        if only != "flips":
            kills(ground, draw, int(os.environ.get("SLUICE_TEST_KILLS", "8")))
    return failed > 0


sys.exit(main())
