#!/usr/bin/env python3
"""What commands say of context files, and refuse for them: tests/cli/run_told.py BUILD

An append to an unfinished prefill; a cache type that is not the file's; no empty files after a refusal; inspect with its
text and through the second superblock; what /save prints; the ways out that --replace names. Prints PASS or FAIL for each.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import context_ground  # noqa: E402
from context_ground import Ground, committed, digest, kill_once, report  # noqa: E402
from tiny_gguf import Tiny  # noqa: E402


def words(done):
    return done.stderr.decode(errors="replace")


def inspect(ground, path, *extra):
    return json.loads(ground.run(ground.argv("inspect", path, "--json", *extra)).stdout)


def unfinished(ground, name):
    """A prefill of all of the text that was killed after a commit."""
    out, wait = ground.folder / name, 0.1
    while True:
        out.unlink(missing_ok=True)
        kill_once(ground.prefill(out, ground.doc, ground.more, commit=64), wait)
        told = inspect(ground, out) if out.exists() else {"tokens": 0, "finished": False}
        if not told["finished"] and 0 < told["tokens"] < told["intended_tokens"]:
            return out, told
        wait *= 0.8 if told["finished"] else 1.2


def append(ground):
    problems = []
    out, told = unfinished(ground, "torn.kv")
    before = digest(out)
    ask = ground.argv("run", "-m", ground.model, "-c", out, "-p", "what", "-n", 3, "--ram", "64M", "--allow-ram-dir")
    done = ground.run(ask + ["--append"], code=3)
    if not all(word in words(done) for word in (f"{told['tokens']} of {told['intended_tokens']}", "sluice prefill", "fork")):
        problems.append(words(done))
    if digest(out) != before:
        problems.append("the refused append changed the file")
    ground.run(ask)
    ground.run(ground.prefill(out, ground.doc, ground.more))
    if inspect(ground, out)["tokens"] != told["intended_tokens"]:
        problems.append("the prefill does not go on")
    report("--append is refused by an unfinished prefill, which then goes on", problems)


def stopped_append(ground):
    """Killed before anything but the copy of its end was written: every token is there, and an append goes on."""
    problems, wait = [], 0.02
    book, torn = ground.folder / "whole.kv", ground.folder / "stopped.kv"
    ground.run(ground.prefill(book, ground.doc))
    ask = ground.argv("run", "-m", ground.model, "-c", torn, "-p", "what", "-n", 2000, "--draft", 0, "--ram", "64M",
                      "--allow-ram-dir", "--append")
    for _ in range(60):
        shutil.copyfile(book, torn)
        kill_once(ask, wait)
        told = inspect(ground, torn)
        if not told["finished"]:
            break
        wait *= 1.2
    if told["finished"] or told["tokens"] != told["intended_tokens"]:
        problems.append(f"stopped: {told['tokens']} of {told['intended_tokens']}, finished {told['finished']}")
    seen = ground.run(ground.argv("inspect", torn)).stdout.decode()
    if "finishes it" not in seen or "goes on" in seen:
        problems.append(seen)
    done = ground.run(ask[:ask.index("-n")] + ["-n", "3"] + ask[ask.index("-n") + 2:])
    if "finishes it" not in words(done) or not inspect(ground, torn)["finished"]:
        problems.append(words(done))
    report("an append that was killed lacks nothing, and the next one goes on", problems)


def cache_type(ground):
    problems = []
    book, other = ground.folder / "q8.kv", ground.folder / "q8b.kv"
    small = ground.folder / "small.txt"
    small.write_bytes(ground.doc.read_bytes()[:600])
    common = ("-m", ground.model, "--ram", "64M", "--allow-ram-dir")
    for kv in ("q8_0", "f16"):
        book.unlink(missing_ok=True)
        ground.run(ground.argv("prefill", *common, "-f", small, "-o", book, "--kv", kv, "--chat"))
        other.unlink(missing_ok=True)
        ground.run(ground.argv("prefill", *common, "-f", small, "-o", other, "--kv", kv))
        wrong = "f16" if kv == "q8_0" else "q8_0"
        for name, argv in (("run", ground.argv("run", *common, "-c", other, "-p", "x", "-n", 2)),
                           ("score", ground.argv("score", *common, "-c", other, "-f", small)),
                           ("chat", ground.argv("chat", *common, "-c", book, "--room", 200)),
                           ("prefill", ground.argv("prefill", *common, "-f", small, "-f", small, "-o", other))):
            done = ground.run([*argv, "--kv", wrong], code=None)
            if done.returncode != 3 or not all(kind in words(done) for kind in ("f16", "q8_0")):
                problems.append(f"{name} --kv {wrong} of {kv}: {done.returncode} {words(done)}")
            ground.run([*argv, "--kv", kv])
            ground.run(argv)
        if inspect(ground, other)["cache"] != kv:
            problems.append(f"an extension without --kv made {inspect(ground, other)['cache']} of {kv}")
    report("--kv that is not the file's is refused by run, score, chat and prefill", problems)


def nothing_left(ground):
    problems = []
    model = ground.folder / "short.gguf"
    tiny = Tiny(wide=True)
    tiny.meta["llama.context_length"] = (tiny.meta["llama.context_length"][0], 1000)
    model.write_bytes(tiny.bytes())
    out, beside = ground.folder / "left.kv", ground.folder / "left.kv.new"
    small = ground.folder / "few.txt"
    small.write_text("Some other text.")

    def prefill(*extra):
        return ground.argv("prefill", "-m", model, "-o", out, "--allow-ram-dir", *extra)

    for _ in range(2):
        was_there = out.exists()
        for extra in (("--ram", "64M"), ("--force-context", "--ram", "1M"), ("--force-context", "--ram", "6M")):
            done = ground.run(prefill("-f", ground.doc, "--replace", *extra), code=3)
            if out.exists() != was_there or beside.exists():
                problems.append(f"{extra}: a file is left: {words(done)}")
        ground.run(prefill("-f", small, "--ram", "64M"))
    report("a prefill that is refused leaves no file", problems)


def looked_at(ground):
    problems = []
    book, text = ground.folder / "look.kv", ground.folder / "look.txt"
    text.write_text("Ein Anfang: äöü.\n" + "x" * 3000 + "\nund ein Ende: äöü€")
    ground.run(ground.prefill(book, text))
    told = inspect(ground, book, "-m", ground.model)
    bare = inspect(ground, book)
    if not told["text_head"].endswith("x" * 50) or "Ein Anfang: äöü.\nx" not in told["text_head"] or \
            not told["text_tail"].endswith("x\nund ein Ende: äöü€") or len(told["text_tail"]) > 160:
        problems.append(f"{told}")
    if bare["text_head"] is not None or bare["text_tail"] is not None or len(bare["last_ids"]) != 6:
        problems.append(f"without a model: {bare}")
    shape = {"kv_heads": told["kv_heads"], "head_dim": told["head_dim"], "span": 0}
    if told["geometry"] != [shape] * told["layers"] or told["rope_dims"] < 2 or not re.fullmatch("[0-9a-f]{16}", told["tokenizer"]):
        problems.append(f"{told}")
    seen = ground.run(ground.argv("inspect", "-m", ground.model, book)).stdout.decode()
    if "Ein Anfang: äöü. xxx" not in seen or "und ein Ende: äöü€" not in seen:
        problems.append(seen)
    seen = ground.run(ground.argv("inspect", book)).stdout.decode()
    if "-m MODEL" not in seen or "Anfang" in seen:
        problems.append(seen)
    for at, size in ((0, 8), (8, 1), (20, 200), (0, 4096)):
        hurt = ground.folder / "hurt.kv"
        data = bytearray(book.read_bytes())
        data[at:at + size] = bytes(byte ^ 0xff for byte in data[at:at + size])
        hurt.write_bytes(data)
        done = ground.run(ground.argv("inspect", hurt, "--json", "-m", ground.model), code=None)
        if done.returncode or json.loads(done.stdout) != {**told, "damage": json.loads(done.stdout)["damage"]} or \
                "superblock" not in (json.loads(done.stdout)["damage"] or ""):
            problems.append(f"first superblock, {size} bytes at {at}: {done.returncode} {words(done)} {done.stdout.decode()}")
    other = ground.folder / "othervocab.gguf"
    tiny = Tiny(wide=True)
    *kind, kinds = tiny.meta["tokenizer.ggml.token_type"]
    tiny.meta["tokenizer.ggml.token_type"] = (*kind, [*kinds[:-1], 3])
    other.write_bytes(tiny.bytes())
    done = ground.run(ground.argv("inspect", "-m", other, book), code=3)
    if "tokenizer" not in words(done):
        problems.append(words(done))
    report("inspect: text, geometry, the second superblock", problems)


def page_cache(ground):
    """Of what was there before, nothing is this run's."""
    problems = []
    book = ground.folder / "cached.kv"
    ground.run(ground.prefill(book, ground.doc))
    book.read_bytes()
    told = ground.ask("-c", book)
    if told["page_cache_growth_bytes"] not in (0, -1, None):
        problems.append(f"{told['page_cache_growth_bytes']} bytes of {book.stat().st_size}")
    report("what was in the page cache before is not counted", problems)


def chat(ground):
    problems = []
    common = ("-m", ground.model, "--ram", "64M", "--allow-ram-dir", "--room", 400, "-n", 4)

    def talk(lines, *extra):
        return subprocess.run(ground.argv("chat", *common, *extra), input=lines.encode(), capture_output=True,
                              cwd=ground.folder)
    done = talk("hello\n/save a 'b.kv\n/save plain.kv\n", "-v")
    if done.returncode or "chat -c 'a '\\''b.kv' goes on" not in words(done) or "chat -c plain.kv goes on" not in words(done):
        problems.append(words(done))
    if "estimate:" in words(done) or "plan:" not in words(done):
        problems.append(f"-v: {words(done)}")
    report("chat: names are quoted, nothing is estimated", problems)


def replaced(ground):
    problems = []
    book, beside = ground.folder / "book.kv", ground.folder / "book.kv.new"
    link = ground.folder / "link.kv"
    ground.run(ground.prefill(book, ground.doc))
    link.symlink_to(book)
    for _ in range(40):
        kill_once(ground.prefill(book, ground.more, commit=64, extra=("--replace",)), 0.08)
        if beside.exists():
            break
    for name in (book, link):
        done = ground.run(ground.prefill(name, ground.doc, extra=("--replace",)))
        if "already" not in words(done) or "book.kv.new is there" not in words(done):
            problems.append(words(done))
    ground.run(ground.argv("rm", beside))
    chat_book = ground.folder / "chat.kv"
    ground.run(ground.prefill(chat_book, ground.doc, extra=("--chat",)))
    for extra, target in ((("--replace",), chat_book), (("--replace", "--chat"), book), ((), chat_book)):
        done = ground.run(ground.prefill(target, ground.doc, extra=extra), code=3)
        if "--chat" not in words(done) or "-o" not in words(done) or "sluice rm" not in words(done):
            problems.append(words(done))
    report("--replace: the second file that is there, the ways out with --chat", problems)


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        for case in (append, stopped_append, cache_type, nothing_left, looked_at, page_cache, chat, replaced):
            case(ground)
    return context_ground.failed > 0


sys.exit(main())
