#!/usr/bin/env python3
"""sluice chat, by pipes and on a terminal of the test's own.

  tests/cli/run_chat.py BUILD

A small seeded model with 8 KiB of keys and values a token. Answers are compared token for token: with `sluice run --chat`,
with what the same question got before it was taken back, with the conversation that was not saved in between. The tokens
of a conversation are those of its template written by hand. Prints PASS, FAIL or SKIP for each case.
"""
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from chat_terminal import Terminal  # noqa: E402
from tiny_gguf import Tiny  # noqa: E402

HEAD = "<|im_start|>system\nYou are a small model<|im_end|>\n<|im_start|>user\n"
ASK, NEXT = "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n<|im_start|>user\n"
IM_END = 2
WORDS = "the of and to in a is that it was for on with as his they be at one have this".split()
ANSWERING = "why[?]\r\n.*[^\r\n]{200}"  # longer than a progress line
READER = Path(__file__).resolve().parents[2] / "tools" / "read_context.py"
CASES = []


def case(function):
    CASES.append(function)
    return function


class Ground:
    def __init__(self, program, folder):
        self.program, self.folder = program, Path(folder)
        self.model = self.folder / "model.gguf"
        self.model.write_bytes(Tiny(wide=True).bytes())
        self.doc = self.folder / "doc.txt"
        self.doc.write_text(" ".join(WORDS[(7 * i * i + i) % len(WORDS)] for i in range(1400)))
        self.book = self.folder / "book.kv"
        self.run("prefill", "-f", self.doc, "-o", self.book, "--chat", "--kv", "f16")
        self.plain = self.folder / "plain.kv"
        self.run("prefill", "-f", self.doc, "-o", self.plain, "--kv", "f16")

    def argv(self, command, *more, ram="64M"):
        machine = ["--ram", ram, "--allow-ram-dir", "--kv-dir", self.folder]
        return [self.program, command, "-m", str(self.model), *map(str, [*(machine if command != "tokenize" else []), *more])]

    def run(self, command, *more, code=0, stdin=b"", ram="64M"):
        if command == "prefill":
            more = [*more, "--allow-ram-dir"]
            argv = [self.program, "prefill", "-m", str(self.model), "--ram", ram, *map(str, more)]
        else:
            argv = self.argv(command, *more, ram=ram)
        done = subprocess.run(argv, capture_output=True, input=stdin)
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{' '.join(argv[1:])}: exit code {done.returncode}, expected {code}: "
                               f"{done.stderr.decode(errors='replace')[-400:]}")
        return done

    def ask(self, *source, n=24):
        """One question by `sluice run --chat`: the tokens of its answer."""
        done = self.run("run", *source, "--chat", "-n", n, "--kv", "f16", "--json")
        return json.loads(done.stdout)["tokens"]

    def chat(self, *more, lines, n=24, code=0, ram="64M"):
        """The objects that a conversation of these lines gives, and what it says on stderr."""
        done = self.run("chat", "-n", n, "--kv", "f16", "--json", *more, stdin="".join(f"{line}\n" for line in lines).encode(),
                        code=code, ram=ram)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode(errors="replace")

    def answers(self, *more, lines, **rest):
        return [told.get("tokens") for told in self.chat(*more, lines=lines, **rest)[0]]

    def ids(self, *pieces):
        """The tokens of pieces, each tokenised apart; those of the template (str) with its marks, messages (bytes) without."""
        out = []
        for piece in pieces:
            if isinstance(piece, list):
                out += piece
                continue
            special = ["--special"] if isinstance(piece, str) else []
            text = piece.encode() if special else piece
            done = self.run("tokenize", "-f", "-", *special, "--json", stdin=text)
            out += json.loads(done.stdout)["tokens"]
        return out

    def stored_ids(self, path):
        done = subprocess.run([sys.executable, READER, path], capture_output=True, check=True)
        return json.loads(done.stdout)["ids"]


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def expect(problems, what, got, wanted):
    if got != wanted:
        problems.append(f"{what}: {got!r}, expected {wanted!r}")


# ----------------------------------------------------------------------------------------------------------- answers

@case
def first_answers_are_those_of_run(ground):
    """a first question is answered as sluice run --chat answers it"""
    problems = []
    for question in ("who was that", "why is it so?", "name one of them", "zwölf Boxkämpfer"):
        expect(problems, question, ground.answers(lines=[question]), [ground.ask("-p", question)])
        fresh = ground.ask("-f", ground.doc, "-p", question)
        expect(problems, f"run -c: {question}", ground.ask("-c", ground.book, "-p", question), fresh)
        expect(problems, f"chat -c: {question}", ground.answers("-c", ground.book, lines=[question]), [fresh])
    return problems


@case
def text_is_that_of_the_tokens(ground):
    """without --json the answers' text alone goes to standard output, a line each"""
    lines = ["who was that", "/stats", "why?", "/help"]
    told, _ = ground.chat(lines=lines)
    done = ground.run("chat", "-n", 24, "--kv", "f16", stdin="\n".join(lines).encode())  # the last line without its end
    problems = []
    expect(problems, "text", done.stdout.decode(), "".join(t["text"] + "\n" for t in told))
    for pattern in (r"context +\d+ tokens; room for \d+", r"answers +\d+ tokens", r"/rewind \[N\]"):
        if not re.search(pattern, done.stderr.decode()):
            problems.append(f"no {pattern} in {done.stderr.decode()}")
    return problems


def ended(answer):
    """As it stands in the template's text: the mark comes behind an answer that was cut."""
    return answer[:-1] if answer[-1] == IM_END else answer


@case
def conversations_are_the_template_written_by_hand(ground):
    """three turns, saved, are the tokens of the template written by hand; each further answer is that of run -c on what was saved"""
    problems = []
    questions = ["who was that", "/ is a stroke", "<|im_end|> is text\nand so is this"]
    lines = [questions[0], "/save {0}/one.kv", "/" + questions[1], "/save {0}/two.kv", questions[2].replace("\n", "\\\n"),
             "/save {0}/three.kv"]
    for source, text in (((), b""), (("-c", ground.book), ground.doc.read_bytes())):
        for name in ("one", "two", "three"):
            (ground.folder / f"{name}.kv").unlink(missing_ok=True)
        answers = ground.answers(*source, lines=[line.format(ground.folder) for line in lines])
        gap = b"\n\n" if text else b""
        whole = ground.ids(HEAD, text, gap + questions[0].encode(), ASK, answers[0])
        expect(problems, "one turn", ground.stored_ids(ground.folder / "one.kv"), whole)
        whole = ground.ids(HEAD, text, gap + questions[0].encode(), ASK, ended(answers[0]), NEXT, questions[1].encode(), ASK,
                           ended(answers[1]), NEXT, questions[2].encode(), ASK, answers[2])
        expect(problems, "three turns", ground.stored_ids(ground.folder / "three.kv"), whole)
        for name, question, answer in (("one", questions[1], answers[1]), ("two", questions[2], answers[2])):
            expect(problems, f"run -c {name}.kv", ground.ask("-c", ground.folder / f"{name}.kv", "-p", question), answer)
    return problems


@case
def rewound_and_asked_again(ground):
    """/rewind takes questions back, a saved file's too: asked again they get the same answers"""
    problems = []
    a, b, c = "who was that", "why?", "what then?"
    for source in ((), ("-c", ground.book)):
        plain = ground.answers(*source, lines=[a, b, c])
        got = ground.answers(*source, lines=[a, b, "/rewind", b, c, "/rewind 2", b, c, "/rewind 3", a, b, c, "/rewind 1", "x", "/rewind", c])
        expect(problems, f"{source}", [got[i] for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 10)],
               [plain[i] for i in (0, 1, 1, 2, 1, 2, 0, 1, 2, 2)])
        told, words = ground.chat(*source, lines=[a, "/rewind 2", "/rewind 0", "/rewind x", b], code=3)
        expect(problems, "more than there are", [t.get("tokens") for t in told], plain[:2])
        if "there is 1 question to take back" not in words or words.count("how many questions?") != 2:
            problems.append(words)
    # drawn by chance: a token is a function of seed and position
    warm = ("--temp", "1.2", "--seed", "9")
    plain = ground.answers(*warm, lines=[a, b])
    expect(problems, "warm", ground.answers(*warm, lines=[a, b, "/rewind", b]), [*plain, plain[1]])
    saved = ground.folder / "rewound.kv"
    plain = ground.answers("-c", ground.book, lines=[a, b, c, f"/save {saved}"])
    got = ground.answers("-c", saved, lines=["/rewind 2", b, c, "/rewind 1", c])
    expect(problems, "of a saved file", got, [plain[1], plain[2], plain[2]])
    _, words = ground.chat("-c", saved, lines=["/rewind 3"], code=3)
    if "there are 2 questions to take back (a file's first message stays)" not in words:
        problems.append(words)
    return problems


@case
def saved_conversations_go_on(ground):
    """a saved conversation goes on as the one that was not saved in between; no file is changed"""
    problems = []
    questions = ["who was that", "why?", "what then?", "and then?"]
    before = digest(ground.book)
    for source in ((), ("-c", ground.book)):
        plain = ground.answers(*source, lines=questions)
        for n in (1, 2, 3):
            saved, again = ground.folder / f"saved{n}.kv", ground.folder / f"again{n}.kv"
            for path in (saved, again):
                path.unlink(missing_ok=True)
            first = ground.answers(*source, lines=[*questions[:n], f"/save {saved}", *questions[n:], f"/save {again}"])
            expect(problems, f"saved behind {n}, the same process", first, plain)
            kept = digest(saved)
            expect(problems, f"saved behind {n}", ground.answers("-c", saved, lines=questions[n:]), plain[n:])
            expect(problems, "the saved file", digest(saved), kept)
            for path in (saved, again):
                if subprocess.run([ground.program, "verify", path], capture_output=True).returncode:
                    problems.append(f"{path} does not verify")
    expect(problems, "the file that was asked", digest(ground.book), before)
    taken = ground.folder / "saved1.kv"
    kept = digest(taken)
    told, words = ground.chat(lines=["/save nowhere.kv", "who?", f"/save {taken}", "/save /nonexistent/x.kv", "why?"], code=3)
    expect(problems, "answers", [t.get("tokens") for t in told], ground.answers(lines=["who?", "why?"]))
    expect(problems, "a taken name", digest(taken), kept)
    for pattern in ("nothing to save", "saved1.kv", "/nonexistent/x.kv"):
        if pattern not in words:
            problems.append(f"no {pattern} in {words}")
    return problems


@case
def grown_files_are_conversations(ground):
    """a file that run --chat --append grew takes the next question as a new message, of run and of chat"""
    problems = []
    grown = ground.folder / "grown.kv"
    grown.write_bytes(ground.book.read_bytes())
    plain = ground.answers("-c", ground.book, lines=["who was that", "why?", "what then?"])
    expect(problems, "first", ground.ask("-c", grown, "-p", "who was that", "--append"), plain[0])
    expect(problems, "chat -c", ground.answers("-c", grown, lines=["why?"]), [plain[1]])
    expect(problems, "second", ground.ask("-c", grown, "-p", "why?", "--append"), plain[1])
    expect(problems, "third", ground.ask("-c", grown, "-p", "what then?"), plain[2])
    return problems


# ------------------------------------------------------------------------------------------------- limits, refusals

@case
def refused(ground):
    """a file without a chat template's head is refused with a hint; so is no file at all"""
    problems = []
    for source, code, pattern in ((ground.plain, 3, "plain.kv: made without --chat.*sluice prefill --chat"),
                                  (ground.folder / "none.kv", 1, "none.kv"), (ground.model, 4, "model.gguf")):
        _, words = ground.chat("-c", source, lines=["who?"], code=code)
        if not re.search(pattern, words):
            problems.append(words)
    return problems


@case
def templates_and_system_messages(ground):
    """--system and --chat-template give the head of a conversation; refused without --chat and where there is no place"""
    problems = []
    llama3 = "<|start_header_id|>{}<|end_header_id|>\n\n{}".format
    heads = {
        ("--system", "Be brief"): HEAD.replace("You are a small model", "Be brief"),
        ("--chat-template", "chatml"): "<|im_start|>user\n",
        ("--chat-template", "llama3", "--system", "Be brief"): llama3("system", "Be brief<|eot_id|>") + llama3("user", ""),
        ("--chat-template", "gemma3", "--system", "Be brief"): "<start_of_turn>user\nBe brief\n\n",
    }
    stored = ground.folder / "template.kv"
    text = ground.folder / "short.txt"
    text.write_text("who was that")
    for options, head in heads.items():
        stored.unlink(missing_ok=True)
        ground.run("prefill", "-f", text, "-o", stored, "--chat", *options, "--kv", "f16")
        expect(problems, f"{options}", ground.stored_ids(stored), ground.ids(head, text.read_bytes()))
        if "<|im_start|>" not in head:  # this vocabulary does not hold the mark that ends a message: it cannot go on
            continue
        answer = ground.ask("-c", stored, "-p", "why?", *options, n=8)
        expect(problems, f"run {options}", answer, ground.ask("-f", text, "-p", "why?", *options, n=8))
        expect(problems, f"chat {options}", ground.answers("-c", stored, *options, lines=["why?"], n=8), [answer])
    refused = [(("--system", "Be brief"), 2, "--system .*--chat$"), (("--chat-template", "llama3"), 2, "--chat-template .*--chat$"),
               (("--chat", "--chat-template", "nope"), 2, "unknown chat template 'nope', known are .*llama3"),
               (("--chat", "--chat-template", "gemma", "--system", "Be brief"), 3, "no system messages; .*gemma3")]
    unmade = ground.folder / "unmade.kv"
    for options, code, pattern in refused:
        for command in (("run", "-p", "x"), ("prefill", "-f", text, "-o", unmade)):
            words = ground.run(*command, *options, code=code).stderr.decode().strip()
            if not re.search(pattern, words) or unmade.exists():
                problems.append(f"{command[0]} {options}: {words}")
    return problems


@case
def odd_lines(ground):
    """unknown commands get a line, // begins a message with /, a backslash joins lines, what cannot be asked gets an object"""
    problems = []
    told, words = ground.chat(lines=["", "  ", "/nope", "/stats now", "/quit now", "who?", "two\\\\", "/quit", "never"], code=2)
    expect(problems, "answers", [t.get("tokens") for t in told], ground.answers(lines=["who?", "two\\\\"]))
    expect(problems, "one line each", re.findall(r"sluice: (/.*): no such command", words), ["/nope", "/stats now", "/quit now"])
    one = ground.ask("-p", "/help")
    expect(problems, "//help", ground.answers(lines=["//help"]), [one])
    expect(problems, "nothing behind a backslash", ground.answers(lines=["one\\"]), [ground.ask("-p", "one")])
    expect(problems, "two backslashes", ground.answers(lines=["one\\\\"]), [ground.ask("-p", "one\\")])
    expect(problems, "lines", ground.answers(lines=["one\\", "/two\\", "", "x"]), [ground.ask("-p", "one\n/two\n"), *ground.answers(
        lines=["one\\", "/two\\", "", "x"])[1:]])
    done = ground.run("chat", "--json", "-n", 4, stdin=b"\xff\xfe\nwho?\n", code=1)
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    if "not UTF-8" not in objects[0].get("error", "") or len(objects) != 2 or len(objects[1]["tokens"]) != 4:
        problems.append(f"{objects}")
    done = ground.run("chat", "--json", "-n", 4, "--room", 128, stdin=b"x" * 5000000 + b"\nwho?\n", code=3)
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    if "longer than 2048 bytes" not in objects[0].get("error", "") or len(objects) != 2 or "tokens" not in objects[1]:
        problems.append(f"{objects}")
    return problems


@case
def full_room(ground):
    """where the room ends it says what to do; saved, the conversation goes on with more of it, as it would have"""
    problems = []
    saved = ground.folder / "full.kv"
    saved.unlink(missing_ok=True)
    lines = ["who was that", "why is it so", "what then?", "and then?"]
    plain = ground.answers(lines=lines)
    two = ground.chat(lines=lines[:2])[0][1]["context_tokens"]
    told, words = ground.chat("--room", two + 5, lines=[*lines[:3], f"/save {saved}", "/rewind", lines[1]], code=3)
    expect(problems, "as far as the room goes", [t.get("tokens") for t in told], [*plain[:2], None, plain[1]])
    if not re.search("the room is full: it has 5 tokens left.*/rewind.*/save.*--room", told[2].get("error", "")):
        problems.append(f"{told} {words}")
    expect(problems, "with more room", ground.answers("-c", saved, lines=lines[2:]), plain[2:])
    # full amid an answer: what was drawn is part of the conversation, and is saved
    for left in (1, 2, 5):
        saved.unlink(missing_ok=True)
        told, words = ground.chat("--room", two - left, lines=[*lines[:2], f"/save {saved}", "/rewind", "/stats"])
        expect(problems, f"without the last {left}", [t["tokens"] for t in told], [plain[0], plain[1][:-left]])
        if told[1]["finish_reason"] != "context" or told[1]["room_tokens"] != 0 or "the room is full: /rewind" not in words:
            problems.append(f"{told[1]} {words}")
        expect(problems, "saved", len(ground.stored_ids(saved)), two - left)
        expect(problems, "saved, taken back", ground.answers("-c", saved, lines=["/rewind", *lines[1:]]), plain[1:])
    return problems


@case
def memory(ground):
    """the peak resident set is at most --ram, however long the conversation and its lines are; flash takes the rest"""
    problems = []
    long_line = " ".join(WORDS[i * i % len(WORDS)] for i in range(400))
    for source, ram in (((), 56), (("-c", ground.book), 56), (("-c", ground.book), 80)):
        lines = [long_line, "why?", "/rewind 1", long_line, "/stats", "what then?", "x" * 3000000, long_line * 150]
        argv = ground.argv("chat", "--kv", "f16", "-n", 60, "--json", *source, ram=f"{ram}M")
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        child.stdin.write("\n".join(lines).encode() + b"\n")
        child.stdin.flush()
        told = [json.loads(child.stdout.readline() or "{}") for _ in range(6)]
        peak = int(re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{child.pid}/status").read_text()).group(1))
        child.communicate()
        expect(problems, f"{ram} MiB: exit code", child.returncode, 3)
        answers = [t for t in told if "tokens" in t]
        if peak > ram * 1024 or len(answers) != 4 or "longer than" not in told[4].get("error", "") or "error" not in told[5]:
            problems.append(f"{source} {ram} MiB: peak {peak} KiB, {len(answers)} answers")
        if source and not any(t["bytes_read"] for t in answers):
            problems.append(f"{source} {ram} MiB: nothing was read from flash")
        wanted = ground.answers(*source, lines=lines[:6], n=60, ram="400M")
        if [t["tokens"] for t in answers] != wanted:
            problems.append(f"{source} {ram} MiB: other answers than with 400 MiB")
    return problems


# ---------------------------------------------------------------------------------------------------------- terminal

def terminal(ground, *more):
    t = Terminal(ground.argv("chat", "--kv", "f16", *more))
    t.expect("> $")
    return t


@case
def ctrl_c_stops_the_answer(ground):
    """Ctrl-C stops the answer and not the program: the next question is answered; at the prompt it clears the line"""
    problems = []
    with terminal(ground, "-c", ground.book, "-n", 4000) as t:
        for _ in range(3):
            t.type("why?\n")
            t.expect(ANSWERING)
            t.type("\x03")
            problems += t.wanting("sluice: stopped; .*> $")
            t.type("/rewind\n")
            problems += t.wanting("1 question taken back.*> $")
        t.type("/nonsense\x03")
        problems += t.wanting("> $")
        t.type("\x03")
        problems += t.wanting("> $")
        t.type("/stats\n")
        problems += t.wanting(r"3 asked, 0 can be taken back(?s:.*)> $")
        if "no such command" in t.seen:
            problems.append("a line that was cleared was read")
        expect(problems, "exit code", t.leave(), 0)
    return problems


@case
def edited_lines(ground):
    """lines are edited and remembered, beyond ASCII too; Ctrl-D leaves; what is typed is what is asked"""
    problems = []
    done = ground.run("chat", "-n", 24, "--kv", "f16", stdin="who was thät".encode())
    wanted = done.stdout.decode().strip()
    with terminal(ground, "-n", 24) as t:
        if not t.can_edit:
            return None
        t.type("wo was thöt\x7f\x7fät" + "\x1b[D" * 10 + "h\x1b[C" + "\x05\n")
        t.expect("> $")
        first = t.seen
        t.type("/rewind\n")
        t.expect("taken back.*> $")
        t.type("\x1b[A\x1b[A\n")  # the line before the last
        t.expect("> $")
        flat = [re.sub(r"\s+", " ", text) for text in (first, t.seen, wanted)]
        if flat[2] not in flat[0] or flat[2] not in flat[1]:
            problems.append(f"{flat}")
        t.type("two\\\n")
        problems += t.wanting(r"\. $")
        t.type("\x03")
        problems += t.wanting("> $")
        expect(problems, "exit code", t.leave(), 0)
    return problems


@case
def dumb_terminal(ground):
    """on a terminal that cannot move its cursor lines are plain, and Ctrl-C means the same"""
    problems = []
    with Terminal(ground.argv("chat", "--kv", "f16", "-n", "4000", "-c", ground.book), term="dumb") as t:
        t.expect("> $")
        t.type("why?\n")
        t.expect(ANSWERING)
        t.type("\x03")
        problems += t.wanting("sluice: stopped; .*> $")
        t.type("nonsense\x03")
        problems += t.wanting("> $")
        t.type("/stats\n")
        problems += t.wanting(r"1 asked, 1 can be taken back(?s:.*)> $")
        t.type("/quit\n")
        expect(problems, "exit code", t.end(), 0)
    return problems


@case
def ended_by_signals(ground):
    """SIGTERM ends it at the prompt and in an answer; so does Ctrl-C where lines come from a pipe; nothing is left behind"""
    problems = []
    before = sorted(ground.folder.iterdir())
    for number, question in ((signal.SIGTERM, b""), (signal.SIGTERM, b"why?\n"), (signal.SIGINT, b""), (signal.SIGINT, b"why?\n")):
        child = subprocess.Popen(ground.argv("chat", "-c", ground.book, "--kv", "f16", "-n", 8000), stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdin.write(b"/stats\n" + question)
        child.stdin.flush()
        while b"memory" not in child.stderr.readline():
            pass
        if question:
            os.read(child.stdout.fileno(), 16)  # the answer has begun
        time.sleep(0.1)
        child.send_signal(number)
        _, words = child.communicate(timeout=60)
        if child.returncode != 130 or b"interrupted" not in words:
            problems.append(f"signal {number} {question!r}: exit code {child.returncode}: {words.decode()}")
    expect(problems, "files", sorted(ground.folder.iterdir()), before)
    return problems


def main():
    failed = 0
    only = sys.argv[2:]
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_TEST_DIR", "/var/tmp")) as folder:
        ground = Ground(str(Path(sys.argv[1]).resolve() / "sluice"), folder)
        for function in CASES:
            if only and function.__name__ not in only:
                continue
            try:
                problems = function(ground)
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                problems = [f"{type(error).__name__}: {error}"]
            failed += bool(problems)
            word = "SKIP" if problems is None else "FAIL" if problems else "PASS"
            print(f"{word} chat: {function.__doc__}" + "".join(f"\n    {p}" for p in (problems or [])[:8]), flush=True)
    return failed > 0


sys.exit(main())
