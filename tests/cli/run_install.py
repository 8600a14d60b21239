#!/usr/bin/env python3
"""What `make install` copies serves a stranger's program: C and C++, shared and static library, by pkg-config only.

  tests/cli/run_install.py BUILD
"""
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tiny_gguf import Tiny  # noqa: E402

PROGRAM = """#include <stdio.h>
#include <string.h>
#include <sluice/sluice.h>

int main(void)
{
    sl_engine_options options;
    sl_engine *engine = NULL;
    sl_err err;
    memset(&options, 0, sizeof options);
    options.model_path = "/nowhere/model.gguf";
    sl_status status = sl_engine_open(&options, &engine, &err);
    printf("%d %s\\n", (int)status, err.text);
    return status == SL_OK;
}
"""


def run(argv, **more):
    done = subprocess.run(argv, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(argv)}: exit code {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
    return done.stdout


def library_folder(prefix):
    return next(prefix.rglob("libsluice.a")).parent  # lib, lib64 or lib/<machine>


def built(prefix, compiler, suffix, static):
    """Compiles the program against the installed files and gives back what it prints."""
    source, program = prefix / f"stranger.{suffix}", prefix / f"stranger_{suffix}_{static}"
    source.write_text(PROGRAM)
    environment = compiled(prefix, compiler, source, program, static)
    return run([str(program)], env=environment)


def compiled(prefix, compiler, source, program, static):
    """By what pkg-config says alone; gives back the environment that the program runs in."""
    lib = library_folder(prefix)
    environment = dict(os.environ, PKG_CONFIG_PATH=str(lib / "pkgconfig"), LD_LIBRARY_PATH=str(lib))
    flags = shlex.split(run(["pkg-config", "--cflags", "--libs", *(["--static"] if static else []), "sluice"],
                            env=environment))
    if static:
        flags = [str(lib / "libsluice.a") if flag == "-lsluice" else flag for flag in flags]
    run([*compiler, "-Wall", "-Wextra", "-Werror", "-o", str(program), str(source), *flags])
    return environment


def example(prefix, program):
    """README's example: 60 lines, built as it says, asked twice; the second time nothing is read."""
    source, built_program = Path("examples/ask.c"), prefix / "ask"
    environment = compiled(prefix, ["cc", "-std=c11"], source, built_program, False)
    model, text, book = prefix / "model.gguf", prefix / "text.txt", prefix / "book.kv"
    model.write_bytes(Tiny(wide=True).bytes())
    text.write_text("it was the best of times and it was the worst of times " * 20)
    argv = [str(built_program), str(model), str(text), str(book)]
    problems = []
    n_lines = len(source.read_text().splitlines())
    if n_lines > 60:
        problems.append(f"{n_lines} lines")
    said = []
    for _ in range(2):
        done = subprocess.run([*argv, "what was it"], capture_output=True, text=True, env=environment)
        said.append(done.stdout)
        if done.returncode != 0 or (" tokens" in done.stderr) != (len(said) == 1):
            problems.append(f"run {len(said)}: exit code {done.returncode}: {done.stderr}")
    wanted = run([program, "run", "-m", str(model), "-c", str(book), "-p", "what was it", "-n", "64"])
    if said[0] != said[1] or said[0].strip("\n") != wanted.strip("\n") or not wanted.strip():
        problems.append(f"answers {said}, the program's {wanted!r}")
    text.write_text("another text")
    done = subprocess.run([*argv, "what"], capture_output=True, text=True, env=environment)
    if done.returncode != 3 or "another text" not in done.stderr:
        problems.append(f"another text: exit code {done.returncode}: {done.stderr}")
    return problems


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    if not Path(build, "libsluice.so").exists():
        print(f"FAIL install: {build}/libsluice.so is not there")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "prefix")
        run(["cmake", "--install", build, "--prefix", str(prefix)])
        cases = [("C, shared", ["cc", "-std=c11"], "c", False), ("C, static", ["cc", "-std=c11"], "c", True),
                 ("C++, shared", ["c++", "-std=c++11"], "cc", False)]
        for name, compiler, suffix, static in cases:
            try:
                output = built(prefix, compiler, suffix, static)
                found = [] if "/nowhere/model.gguf" in output else [output]
            except RuntimeError as error:
                found = [error]
            failed += bool(found)
            print(f"{'FAIL' if found else 'PASS'} install: {name}" + "".join(f"\n    {line}" for line in found))
        try:
            found = example(prefix, str(prefix / "bin" / "sluice"))
        except RuntimeError as error:
            found = [error]
        failed += bool(found)
        print(f"{'FAIL' if found else 'PASS'} install: examples/ask.c" + "".join(f"\n    {line}" for line in found))
        symbols = run(["objdump", "-T", str(library_folder(prefix) / "libsluice.so")])
        exported = [line.split()[-1] for line in symbols.splitlines() if " .text" in line]
        header = "".join(path.read_text() for path in Path("include/sluice").glob("*.h"))
        inner = [name for name in exported if name + "(" not in header]
        found = inner or ([] if exported else ["nothing is exported"])
        failed += bool(found)
        print(f"{'FAIL' if found else 'PASS'} install: the shared library exports the public header's functions only"
              + "".join(f"\n    {name}" for name in found[:10]))
        version = run([str(prefix / "bin" / "sluice"), "--help"])
        failed += "usage" not in version
        print(f"{'PASS' if 'usage' in version else 'FAIL'} install: the installed program runs")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
