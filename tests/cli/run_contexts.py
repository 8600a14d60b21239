#!/usr/bin/env python3
"""Context files from the command line: what survives a kill, what is refused, what a question sees.

  tests/cli/run_contexts.py BUILD

A small seeded model with 8 KiB of keys and values a token, a text of three segments. Kills at random moments of a prefill
and of an extension, each followed by the same command until it is through: the file is byte for byte the one that was
made in one go, and no resume computes more than one commit's tokens again. SLUICE_TEST_KILLS kills (default 8; half of
them after a commit); SLUICE_TEST_SEED repeats them. Prints PASS or FAIL for each case.
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import context_ground  # noqa: E402
from context_ground import Ground, committed, digest, kill_once, report, watched  # noqa: E402
from tiny_gguf import Tiny  # noqa: E402


def kills(ground, draw, n_kills, name, start, files):
    """start: a file to begin with (None: none); files: the texts."""
    plain, torn = ground.folder / "plain.kv", ground.folder / "torn.kv"
    problems, n_alive, n_after_commit = [], 0, 0
    plain.unlink(missing_ok=True)
    begun = time.monotonic()
    ground.run(ground.prefill(plain, *files))
    whole_s = time.monotonic() - begun
    wanted = digest(plain)
    while n_alive < n_kills and not problems:
        torn.unlink(missing_ok=True)
        if start:
            torn.write_bytes(start.read_bytes())
        before = committed(ground, torn) or 0
        for _ in range(draw.randint(1, 4)):
            n_alive += kill_once(ground.prefill(torn, *files), draw.uniform(0.0, whole_s))
            now = committed(ground, torn)
            checked = ground.run(ground.argv("verify", torn), code=None) if torn.exists() else None
            if checked and checked.returncode != 0:
                problems.append(f"verify after a kill: {checked.stdout.decode()} {checked.stderr.decode()}")
            n_after_commit += now is not None and now > before
            if (now or 0) < before:
                problems.append(f"{now} tokens after a kill, {before} were committed before")
            before = now or 0
        done = ground.run(ground.prefill(torn, *files))
        if done.stdout:
            told = json.loads(done.stdout)
            if told["tokens_kept"] != before or told["tokens_kept"] + told["tokens_recomputed"] != told["tokens"]:
                problems.append(f"{before} tokens were committed: {told}")
        if digest(torn) != wanted:
            problems.append("the file differs from the one made in one go")
    if n_after_commit < n_kills // 2:
        problems.append(f"only {n_after_commit} of {n_alive} kills fell after a commit")
    report(f"{name}: {n_alive} kills, {n_after_commit} after a commit, {whole_s:.2f} s in one go", problems)


def restored_equals_fresh(ground):
    problems = []
    book = ground.folder / "book.kv"
    ground.run(ground.prefill(book, ground.doc))
    before = digest(book)
    fresh = ground.ask("-f", ground.doc)
    for threads in (1, 2, 3):
        for ram in ("40M", "200M"):
            kept = ground.ask("-c", book, ram=ram, extra=("--threads", threads))
            if kept["tokens"] != fresh["tokens"]:
                problems.append(f"threads {threads}, {ram}: {kept['tokens']}, fresh {fresh['tokens']}")
            if kept["stored_tokens"] == 0 or kept["prompt_tokens"] + kept["stored_tokens"] != fresh["prompt_tokens"]:
                problems.append(f"{kept['stored_tokens']} stored, {kept['prompt_tokens']} read, {fresh['prompt_tokens']} fresh")
    if digest(book) != before:
        problems.append("a question changed the file")
    report("a question of a context file gives what it gives of the text", problems)
    problems = []
    chat = ground.folder / "chat.kv"
    ground.run(ground.prefill(chat, ground.doc, extra=("--chat",)))
    if ground.ask("-c", chat, extra=("--chat",))["tokens"] != ground.ask("-f", ground.doc, extra=("--chat",))["tokens"]:
        problems.append("the tokens differ")
    for source, extra in ((chat, ()), (book, ("--chat",))):
        done = ground.run(ground.argv("run", "-m", ground.model, "-c", source, "-p", "x", *extra), code=3)
        if b"--chat" not in done.stderr:
            problems.append(done.stderr.decode())
    report("prefill --chat and run -c --chat give what run -f --chat gives; a mixture is refused", problems)


def refusals(ground):
    book = ground.folder / "book.kv"
    other = ground.folder / "other.gguf"
    tiny = Tiny(wide=True)
    tiny.meta["llama.rope.freq_base"] = (tiny.meta["llama.rope.freq_base"][0], 20000.0)
    other.write_bytes(tiny.bytes())
    less = ground.folder / "less.txt"
    less.write_bytes(ground.doc.read_bytes()[:4000])
    cases = [
        ("another text", ground.prefill(book, ground.more), 3,
         r'holds another text: \d+ tokens, the new one \d+; they differ from token 0 on: after "" there comes '
         r'"the|there comes ".+", here ".+" \(--replace'),
        ("less of the text", ground.prefill(book, less), 3, r"holds this text and more: \d+ tokens, the new one is their "
         r"first \d+ \('sluice fork --at \d+' .*--replace"),
        ("another model", ground.argv("run", "-m", other, "-c", book, "-p", "x"), 3, "RoPE base.*10000.*20000"),
        ("another cache type", [w if w != "f16" else "q8_0" for w in ground.prefill(book, ground.doc, ground.more)], 3, "holds f16"),
        ("no such file", ground.argv("run", "-m", ground.model, "-c", "/nonexistent.kv", "-p", "x"), 1, "/nonexistent.kv"),
        ("not a context", ground.argv("run", "-m", ground.model, "-c", ground.model, "-p", "x"), 4, "model.gguf"),
        ("no question", ground.argv("run", "-m", ground.model, "-c", book), 2, "needs a question"),
        ("document and context", ground.argv("run", "-m", ground.model, "-c", book, "-f", ground.doc, "-p", "x"), 2, "not both"),
    ]
    before = digest(book)
    for name, argv, code, pattern in cases:
        done = ground.run(argv, code=None)
        text = done.stderr.decode(errors="replace")
        problems = []
        if done.returncode != code or not re.search(pattern, text):
            problems.append(f"exit code {done.returncode}, expected {code}: {text[-300:]}")
        if digest(book) != before:
            problems.append("the context file changed")
        report(f"refused: {name}", problems)


def yarn_goes_on(ground, text):
    """What a context was made with is in its file: no option is needed again, and another one is refused."""
    path = ground.folder / "yarn.kv"
    rule = ("--rope-scaling", "yarn", "--rope-scale", 4, "--yarn-orig-ctx", 48, "--yarn-ext-factor", 0.5,
            "--yarn-attn-factor", 1.25, "--yarn-beta-fast", 16, "--yarn-beta-slow", 2)
    ground.run(ground.argv("prefill", "-m", ground.model, "-f", text, "-o", path, *rule, "--allow-ram-dir", "--ram", "64M"))
    asked = ("-m", ground.model, "-c", path, "-p", "x", "-n", 8, "--json")
    told, again = (json.loads(ground.run(ground.argv("run", *asked, *more)).stdout)["tokens"] for more in ((), rule))
    problems = [] if told == again else [f"{told} without the options, {again} with them"]
    for change in (("--yarn-orig-ctx", 64), ("--yarn-beta-fast", 17)):
        done = ground.run(ground.argv("run", *asked, *change), code=None)
        if done.returncode != 3 or b"RoPE factors" not in done.stderr:
            problems.append(f"{change}: exit code {done.returncode}, {done.stderr[-300:]}")
    report("a context's own numbers of YaRN come out of its file", problems)


def rope_rules(ground):
    """A file's rule of positions against the run's, and the end of what LongRoPE's short set serves."""
    long, text, book, short = (ground.folder / name for name in ("longrope.gguf", "forty.txt", "rule.kv", "set.kv"))
    long.write_bytes(Tiny(wide=True).stretched(96).bytes())
    text.write_text("?" * 40)
    for model, path in ((ground.model, book), (long, short)):
        ground.run(ground.argv("prefill", "-m", model, "-f", text, "-o", path, "--allow-ram-dir", "--ram", "64M"))
    of_book, of_short = ("-m", ground.model, "-c", book), ("-m", long, "-c", short)
    beyond = "43 tokens and an answer of 54 .*more than the 96 .*prefill again with --rope-set long"
    cases = [
        ("yarn on a file of none", (*of_book, "--rope-scaling", "yarn", "--rope-scale", 2), 3, "'none', .*'yarn': prefill again"),
        ("the long set on a file of the short", (*of_short, "--rope-set", "long"), 3,
         "'longrope, short set', .*'longrope, long set': prefill again"),
        ("an answer that the short set does not serve", (*of_short, "-n", 54), 3, beyond),
        ("the same, to be appended", (*of_short, "-n", 54, "--append"), 3, beyond),
    ]
    before = digest(book), digest(short)
    for name, argv, code, pattern in cases:
        done = ground.run(ground.argv("run", *argv, "-p", "x"), code=None)
        text = done.stderr.decode(errors="replace")
        problems = []
        if done.returncode != code or done.stdout or not re.search(pattern, text):
            problems.append(f"exit code {done.returncode}, expected {code}: {text[-300:]}")
        if (digest(book), digest(short)) != before:
            problems.append("the context file changed")
        report(f"refused: {name}", problems)
    yarn_goes_on(ground, ground.folder / "forty.txt")
    problems = []
    done = ground.run(ground.argv("run", *of_short, "-p", "x", "--json"))
    noted = "note: the answer has at most 53 tokens: the short set of RoPE factors serves 96; prefill again"
    if noted not in done.stderr.decode(errors="replace") or len(json.loads(done.stdout)["tokens"]) > 53:
        problems.append(done.stderr.decode(errors="replace")[-300:])
    done = ground.run(ground.argv("run", *of_short, "-p", "x", "-n", 53))
    if b"short set" in done.stderr:
        problems.append(done.stderr.decode(errors="replace")[-300:])
    report("an answer of a length that nobody gave ends where the short set does, and that is said", problems)


def extension(ground, draw, n_kills):
    """Over the end of a segment."""
    book, both, grown = (ground.folder / name for name in ("short.kv", "both.kv", "grown.kv"))
    doc, more = ground.folder / "short.txt", ground.folder / "rest.txt"
    doc.write_bytes(ground.doc.read_bytes()[:3000])
    more.write_bytes(ground.more.read_bytes()[:1900])
    ground.run(ground.prefill(book, doc))
    ground.run(ground.prefill(both, doc, more))
    grown.write_bytes(book.read_bytes())
    done = json.loads(ground.run(ground.prefill(grown, doc, more)).stdout)
    problems = [] if digest(grown) == digest(both) else ["the extended file differs from one made of both texts"]
    if not 0 < done["tokens_kept"] < done["tokens"]:
        problems.append(f"kept {done['tokens_kept']} of {done['tokens']}")
    report("one more text extends a context", problems)
    kills(ground, draw, n_kills, "kill -9 while a context is extended", book, (doc, more))


def bytes_written(ground):
    problems = []
    for commit, share in ((4096, 1.05), (256, 1.25)):
        path = ground.folder / "bytes.kv"
        path.unlink(missing_ok=True)
        told = json.loads(ground.run(ground.prefill(path, ground.doc, commit=commit)).stdout)
        most = share * told["kv_bytes"] + (4 << 20)
        if told["bytes_written"] > most:
            problems.append(f"a commit every {commit} tokens: {told['bytes_written']} bytes, at most {most:.0f}")
    report("what a prefill writes", problems)


def sources(ground):
    """Files however they are named give the same bytes; a folder is walked in byte order of names."""
    problems = []
    doc, more = ground.folder / "one.txt", ground.folder / "two.txt"
    doc.write_bytes(ground.doc.read_bytes()[:700])
    more.write_bytes(ground.more.read_bytes()[:500])
    out = {name: ground.folder / f"source-{name}.kv" for name in "words options mixed stdin header folder parts".split()}
    shelf = ground.folder / "shelf"
    (shelf / "b").mkdir(parents=True)
    for name, text in (("b/2.txt", "two of them"), ("a.txt", "the first"), ("Z.txt", "as it was"), (".hidden", "not this"),
                       ("b/10.txt", "ten in all")):
        (shelf / name).write_text(text)
    (shelf / "link.txt").symlink_to(shelf / "Z.txt")
    (shelf / "gone.txt").symlink_to(shelf / "nowhere")
    (shelf / "round").symlink_to(shelf)
    order = [shelf / name for name in ("Z.txt", "a.txt", "b/10.txt", "b/2.txt", "link.txt")]
    ground.run(ground.prefill(out["words"], doc, more, order[0]))
    ground.run(ground.prefill(out["options"], doc, extra=("-f", more, "--file", order[0])))
    ground.run(ground.prefill(out["mixed"], doc, more, extra=("-f", order[0])))
    done = subprocess.run(ground.prefill(out["stdin"], doc, "-", order[0]), capture_output=True,
                          input=more.read_bytes())
    if done.returncode:
        problems.append(done.stderr.decode())
    if len({digest(out[name]) for name in ("words", "options", "mixed", "stdin")}) != 1:
        problems.append("the files differ by how their texts were named")
    done = ground.run(ground.prefill(out["folder"], shelf, extra=("--file-header",)))
    told = json.loads(done.stdout)
    for name in ("gone.txt", "round"):
        if f"{shelf / name}: not a file, left out".encode() not in done.stderr:
            problems.append(f"{name} is left out without a word")
    ground.run(ground.prefill(out["parts"], *order, extra=("--file-header",)))
    if digest(out["folder"]) != digest(out["parts"]):
        problems.append("a folder gives another file than its files in byte order")
    text = "".join(f"\n{path}\n\n{path.read_text()}" for path in order)
    stored = ground.run(ground.argv("export-text", "-m", ground.model, out["folder"])).stdout.decode(errors="replace")
    if stored.strip() != text.strip():
        problems.append(f"the text is {stored!r}, expected {text!r}")
    pattern = ground.folder / "source-pattern.kv"
    ground.run(ground.prefill(pattern, shelf / "[aZ].t?t", extra=("-f", ground.folder / "shel[f]" / "b" / "*")))
    ground.run(ground.prefill(out["parts"], *order[:4], extra=("--replace",)))
    if digest(pattern) != digest(out["parts"]):
        problems.append("patterns give another file than their matches in byte order")
    done = ground.run(ground.prefill(pattern, shelf / "*.md"), code=1)
    if b"nothing matches the pattern" not in done.stderr:
        problems.append(done.stderr.decode())
    (shelf / "-").write_text("a file of that name")
    done = subprocess.run(ground.prefill(pattern.with_name("minus.kv"), "[-]"), cwd=shelf, capture_output=True,
                          stdin=subprocess.DEVNULL)
    if done.returncode or json.loads(done.stdout)["tokens"] == 0:
        problems.append(f"a pattern that matches a file named -: {done.stderr.decode()}")
    (shelf / "-").unlink()
    empty, bad = ground.folder / "empty.txt", ground.folder / "bad.txt"
    empty.write_bytes(b"")
    bad.write_bytes(b"good until \xff here")
    ground.run(ground.prefill(out["mixed"], empty, doc, empty, more, order[0])) # nothing changes it
    done = ground.run(ground.prefill(out["mixed"], doc, bad), code=1)
    if not re.search(rb"bad.txt: the document is not UTF-8: byte 0xff at offset 11", done.stderr):
        problems.append(done.stderr.decode())
    ground.run(ground.prefill(ground.folder / "nothing.kv", empty), code=2)
    inside = shelf / "book.kv"
    ground.run(ground.prefill(inside, shelf, extra=("--file-header",)))
    again = ground.run(ground.prefill(inside, shelf, extra=("--file-header",)))
    if json.loads(again.stdout)["tokens_recomputed"] != 0 or b"already" not in again.stderr or told["tokens"] == 0 or digest(inside) != digest(out["folder"]):
        problems.append(f"a context file in its own folder: {again.stderr.decode()}")
    report("texts: words, -f again and again, standard input, folders, patterns, headers", problems)


def room(ground):
    problems = []
    path, doc = ground.folder / "room.kv", ground.folder / "room.txt"
    doc.write_bytes(ground.doc.read_bytes()[:3000])
    done = ground.run(ground.prefill(path, doc, extra=("--max-disk", "1M")), code=3)
    if not re.search(rb"room.kv.* take .*--max-disk allows 1.00 MiB", done.stderr) or path.exists():
        problems.append(done.stderr.decode())
    told = json.loads(ground.run(ground.prefill(path, doc, extra=("--drive-tb", "300"))).stdout)
    if abs(told["drive_writes"] * 300e12 / told["bytes_written"] - 1) > 1e-6:
        problems.append(str(told))
    if not 0.97 < told["estimated_bytes"] / told["bytes_written"] < 1.03:
        problems.append(f"{told['bytes_written']} bytes were written, {told['estimated_bytes']} foretold")
    path.unlink()
    ground.run(ground.prefill(path, doc, extra=("--max-disk", told["disk_bytes"] - 1)), code=3)
    if path.exists():
        problems.append("a file was made that could not be finished")
    most = told["disk_bytes"]
    planned = json.loads(ground.run(ground.argv("plan", "-m", ground.model, "--tokens", told["tokens"], "--rows", 1, "--kv",
                                                "f16", "--ram", "64M", "--drive-tb", "2", "--json")).stdout)
    if abs(planned["file_drive_writes"] * 2e12 - planned["file_written_bytes"]) > 1 or \
            not 0.97 < planned["file_written_bytes"] / told["bytes_written"] < 1.03:
        problems.append(f"the plan: {planned}")
    if planned["file_bytes"] != most:
        problems.append(f"the plan has {planned['file_bytes']} bytes for a file, prefill {most}")
    # at every moment, by whatever way: at once, by small commits, a part and then the rest
    less = ground.folder / "less.txt"
    less.write_bytes(ground.doc.read_bytes()[:2000])
    for name, files, commit, limit in (("at once", [doc], 4096, most), ("by commits", [doc], 64, most),
                                       ("a part", [less], 64, most), ("the rest", [less, doc], 64, 2 * most)):
        if name != "the rest":
            path.unlink(missing_ok=True)
        seen, done = watched(ground.prefill(path, *files, commit=commit, extra=("--max-disk", limit)), path)
        told = json.loads(done.stdout or b"{}")
        if done.returncode or seen > told["disk_bytes"] or not 0.94 < told["estimated_bytes"] / told["bytes_written"] < 1.06:
            problems.append(f"{name}: {seen} bytes: {done.stdout.decode()} {done.stderr.decode()}")
    report("disk: --max-disk, --drive-tb, what is foretold", problems)


def least_memory(ground):
    """The last commit holds a tile of each layer, the most that one can: with all memory given to resident parts, too."""
    problems, digests = [], set()
    model, text, path = ground.folder / "deep.gguf", ground.folder / "deep.txt", ground.folder / "deep.kv"
    model.write_bytes(Tiny(wide=True, layers=12).bytes())
    text.write_bytes(ground.doc.read_bytes()[:500])
    argv = ground.argv("prefill", "-m", model, "-f", text, "-o", path, "--json", "--allow-ram-dir", "--ram")
    # the model's own tables are told first, then what the context needs
    told = ground.run([*argv, "20M"], code=3).stderr
    least = int(re.search(rb"(\d+)M would do", told)[1])
    for ram in (least - 2, least, least + 4):
        path.unlink(missing_ok=True)
        done = ground.run([*argv, f"{ram}M"], code=None)
        if done.returncode == 0:
            digests.add(digest(path))
        elif ram >= least or not re.search(rb"too small, \d+M would do", done.stderr):
            problems.append(f"{ram} MiB: {done.stderr.decode()}")
    if len(digests) != 1:
        problems.append(f"{len(digests)} different files")
    report("the least memory is enough for the last commit", problems)


def interrupted(ground):
    """Whether it is committed often, or only where it ends: what whole windows have stored is there."""
    problems = []
    rare = ("--window", 128, "--commit-seconds", 100000)
    plain, path = ground.folder / "plain.kv", ground.folder / "interrupted.kv"
    plain.unlink(missing_ok=True)
    begun = time.monotonic()
    ground.run(ground.prefill(plain, ground.doc, commit=64))
    whole_s = time.monotonic() - begun
    n_hits, kept = 0, []
    for i, share in enumerate((0.3, 0.5, 0.7, 0.4, 0.6)):
        path.unlink(missing_ok=True)
        argv = ground.prefill(path, ground.doc, commit=64 if i % 2 else 4096, extra=() if i % 2 else rare)
        child = subprocess.Popen(argv, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        time.sleep(share * whole_s)
        child.send_signal(signal.SIGINT)
        words = child.communicate()[1].decode()
        if child.returncode == 0:
            continue
        n_hits += 1
        before = committed(ground, path) or 0
        kept += [before] if i % 2 == 0 and before < 4096 else []
        if before % (64 if i % 2 else 128) or (before and f"{before} of" not in words):
            problems.append(f"{before} tokens are committed: {words}")
        if child.returncode not in (130, -signal.SIGINT) or (child.returncode == 130 and before and "committed" not in words):
            problems.append(f"exit code {child.returncode}: {words}")
        told = json.loads(ground.run(ground.prefill(path, ground.doc, commit=64)).stdout)
        if told["tokens_kept"] != before or digest(path) != digest(plain):
            problems.append(f"{before} tokens were committed: {told}")
    if n_hits == 0:
        problems.append("every run was through before it was interrupted")
    if kept and not any(kept):
        problems.append(f"nothing is kept of what lay between two commits: {kept}")
    report(f"Ctrl-C keeps what is stored in whole windows: {n_hits} times, {kept} tokens", problems)


def main():
    seed = int(os.environ.get("SLUICE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    n_kills = int(os.environ.get("SLUICE_TEST_KILLS", "8"))
    print(f"seed {seed}")
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        restored_equals_fresh(ground)
        refusals(ground)
        rope_rules(ground)
        bytes_written(ground)
        sources(ground)
        room(ground)
        least_memory(ground)
        interrupted(ground)
        if n_kills > 8:  # else run_crash.py's, of a model that computes less
            kills(ground, draw, n_kills // 2, "kill -9 during a prefill", None, (ground.doc,))
        extension(ground, draw, n_kills // 2)
    return context_ground.failed > 0


sys.exit(main())
