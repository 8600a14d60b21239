#!/usr/bin/env python3
"""What drafting yields: accepted tokens a second against plain decoding, at temperature 0, with as little of the cache
in memory as a run may have that reads at the disk's speed: a ring of 16 MiB, and beside it what a burst needs.

  tools/measure_yield.py BUILD [MODEL.gguf] [TOKENS] [DRAFTER]   MODEL: as tools/get_model.sh finds it; 96 tokens; auto

A text (20,000 characters of the GPL) is read into a context file once. Then three questions behind it: a passage to
copy, a C function with a name changed, and prose of its own; each by `--draft 0` and by `--draft auto`, at 500 MiB/s
and at the disk's own speed. Both answers must be the same tokens. CSV on stdout; the floor is 1.1 times the larger of
a pass's bytes at the rate and what a plain pass takes with everything in memory. Times are of the clock: on a machine
that others use they say little, which the load average in the last line tells.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TEXT, TEXT_CHARACTERS = Path("/usr/share/common-licenses/GPL-3"), 20000
RATE = 500 << 20
ENOUGH, RING = "4G", "16M"


PASSAGE = """The lighthouse keeper of Skerry Point kept two clocks on the shelf above the stove. One told the hour of \
the mainland, and the other told the hour of the tide. When the herring boats came home in October, he would climb the \
ninety-one steps with a can of oil in each hand, count the lamps along the harbour wall, and write the number in a \
green book. Nobody had ever asked to see the green book, and he had never missed an evening. In the winter of the \
great frost the tide clock stopped, and for eleven days he listened to the water instead."""

CODE = """int count_words(const char *text, int limit)
{
    int words = 0;
    int inside = 0;
    for (int i = 0; text[i] != 0 && words < limit; i++) {
        if (text[i] == ' ' || text[i] == '\\n') {
            inside = 0;
        } else if (!inside) {
            inside = 1;
            words = words + 1;
        }
    }
    return words;
}
"""


def questions():
    """Each begins what it asks for, and has it near by: so small a model does not find it over thousands of tokens."""
    return {
        "copy": f"{PASSAGE}\n\nThe same passage again, word for word:\n\n{PASSAGE[:83]}",
        "edit": f"{CODE}\nThe same function, with words renamed to total:\n\n"
                + CODE[:110].replace("int words", "int total"),
        "prose": "An essay about lighthouses\n\nLong before there were lamps, the coast",
    }


def told(argv):
    done = subprocess.run([*map(str, argv), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))[:200]}: {done.stderr.decode(errors='replace')[-400:]}")
    return json.loads(done.stdout)


class Bench:
    def __init__(self, program, model, n_tokens, drafter, folder):
        self.program, self.model, self.n_tokens, self.drafter = program, model, n_tokens, drafter
        self.book = Path(folder, "book.kv")
        self.questions = questions()
        text = Path(folder, "text.txt")
        text.write_text(TEXT.read_text()[:TEXT_CHARACTERS])
        subprocess.run([program, "prefill", "-m", model, "-f", text, "-o", self.book], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def argv(self, task, draft, *more):
        return [self.program, "run", "-m", self.model, "-c", self.book, "-p", self.questions[task], "-n",
                self.n_tokens, "--draft", draft, "--ring", RING, *more]

    def least(self):
        """The smallest budget in which a burst of 64 rows is not refused."""
        refused = subprocess.run(list(map(str, self.argv("copy", 63, "--ram", "16M"))), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, check=False).stderr.decode()
        needed = re.search(r"(\d+)M would do", refused)
        for ram in range(int(needed.group(1)) if needed else 128, 4096):
            done = subprocess.run(list(map(str, self.probe(ram))), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  check=False)
            if done.returncode == 0:
                return f"{ram}M"
        sys.exit("no budget is enough")

    def probe(self, ram):
        argv = self.argv("copy", 63, "--ram", f"{ram}M")
        argv[argv.index("-n") + 1] = 1
        return argv

    def plain(self, task, ram, rate):
        return told(self.argv(task, 0, "--ram", ram, *rate))

    def drafted(self, task, ram, rate):
        return told(self.argv(task, "auto", "--drafter", self.drafter, "--ram", ram, *rate))


def row(task, rate, plain, drafted, compute_s):
    """Seconds a token of both, and what they are to each other."""
    plain_s = plain["decode_s"] / max(1, plain["passes"])
    per_pass = plain["bytes_read"] / max(1, plain["passes"] + plain["windows"])
    disk_s = per_pass / rate if rate else 0.0
    floor = 1.1 * max(disk_s, compute_s)
    speed = plain["accepted_tokens_per_s"], drafted["accepted_tokens_per_s"]
    rows = drafted["rows"] / max(1, drafted["passes"])
    print(f"{task},{rate / 1e6 if rate else 'disk'},{len(drafted['tokens'])},{speed[0]:.2f},{speed[1]:.2f},"
          f"{speed[1] / speed[0]:.2f},{drafted['tokens_per_pass']:.2f},{rows:.1f},"
          f"{drafted['accepted']}/{drafted['drafted']},{drafted['draft_s']:.2f},{drafted['pass_s']:.2f},"
          f"{drafted['accept_s']:.2f},{plain_s:.4f},{disk_s:.4f},{compute_s:.4f},{plain_s / floor if floor else 0:.2f}",
          flush=True)


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    program = str(Path(sys.argv[1], "sluice").resolve())
    model = sys.argv[2] if len(sys.argv) > 2 else subprocess.run(
        [str(Path(__file__).with_name("get_model.sh"))], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    n_tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 96
    drafter = sys.argv[4] if len(sys.argv) > 4 else "auto"
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLUICE_KV_DIR", "/var/tmp")) as folder:
        bench = Bench(program, model, n_tokens, drafter, folder)
        ram = bench.least()
        print(f"# --ram {ram} --ring {RING}, --drafter {drafter}")
        print("task,rate_MB_s,tokens,plain_tokens_per_s,drafted_tokens_per_s,times,tokens_per_pass,rows_per_pass,kept,"
              "draft_s,pass_s,accept_s,plain_pass_s,pass_disk_s,pass_compute_s,plain_to_floor")
        for task in bench.questions:
            inside = bench.plain(task, ENOUGH, [])
            compute_s = inside["decode_s"] / max(1, inside["passes"])
            for rate in (RATE, 0):
                cap = ["--read-rate", "500M"] if rate else []
                plain, drafted = bench.plain(task, ram, cap), bench.drafted(task, ram, cap)
                if not plain["tokens"] == drafted["tokens"] == inside["tokens"]:
                    print(f"{task}: the answers differ", file=sys.stderr)
                    return 1
                row(task, rate, plain, drafted, compute_s)
    print(f"# load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
