#!/usr/bin/env python3
"""Rules about the source itself. Prints PASS, FAIL (with the places) or SKIP for each.

  tests/lint/run_lint.py BUILD        from the root of the tree; BUILD holds compiled objects
"""
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The architecture: what each layer may include besides itself.
LAYERS = {
    "base": [],
    "platform": ["base"],
    "kernel": ["base"],
    "tok": ["base"],
    "store": ["platform", "base"],
    "gguf": ["platform", "base"],
    "attn": ["store", "kernel", "base"],
    "model": ["attn", "store", "gguf", "kernel", "base"],
    "decode": ["model", "attn", "store", "kernel", "tok", "base"],
    "api": ["decode", "model", "attn", "gguf", "store", "tok", "kernel", "platform", "base"],
}
FORBIDDEN_CALLS = ["printf", "fprintf", "vprintf", "vfprintf", "puts", "fputs", "putchar", "putc", "fputc",
                   "perror", "exit", "_exit", "_Exit", "quick_exit", "abort"]
FILE_LINES, FUNCTION_LINES, PARAMETERS = 500, 60, 6
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def files(*suffixes, roots=("src", "apps", "include", "tests", "bench")):
    for root in roots:
        for path in sorted(Path(root).rglob("*")):
            if path.is_file() and path.suffix in suffixes:
                yield path


def code_of(path):
    """The text without comments and without what stands in quotes, same line numbers."""
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def blank(match):
        found = match.group(0)
        return '""' if found[0] == '"' else "' '" if found[0] == "'" else "\n" * found.count("\n") or " "
    return pattern.sub(blank, text)


@check
def include_graph(_build):
    """each layer includes only the layers below it"""
    found = []
    for path in files(".c", ".h", roots=("src",)):
        layer = path.parts[1]
        if layer not in LAYERS:
            found.append(f"{path}: folder of no known layer")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            if not match:
                continue
            quote, name = match.groups()
            top = name.split("/")[0]
            if quote == '"' and (top not in LAYERS or (top != layer and top not in LAYERS[layer])):
                found.append(f"{path}:{number}: {layer} must not include {name}")
            if top == "sluice" and layer != "api" and not (name == "sluice/status.h" and str(path) == "src/base/err.h"):
                found.append(f"{path}:{number}: only api sees {name}; base/err.h takes sluice/status.h")
    for path in files(".c", ".h", roots=("apps",)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if match and match.group(1).split("/")[0] in LAYERS:
                found.append(f"{path}:{number}: apps see <sluice/sluice.h> and common/ only, not {match.group(1)}")
    return found


@check
def headers_alone(_build):
    """each header compiles alone in C11, the public ones in C++ too"""
    flags = ["-fsyntax-only", "-Iinclude", "-Isrc", "-Iapps", "-I.", "-D_POSIX_C_SOURCE=200809L", "-D_DEFAULT_SOURCE",
             "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    for package in ("libxxhash", "libpcre2-8"):
        flags += shlex.split(subprocess.run(["pkg-config", "--cflags", package], capture_output=True,
                                            text=True, check=True).stdout)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for path in files(".h", roots=("include", "src", "apps", "bench")):
            languages = [("c", ["cc", "-std=c11"])]
            if path.parts[0] == "include":
                languages.append(("cc", ["c++", "-std=c++17"]))
            for suffix, compiler in languages:
                # Included twice, so that a missing guard shows; the second object keeps pedantry quiet.
                source = Path(folder, "alone." + suffix)
                include = f'#include "{path.resolve()}"\n'
                source.write_text(include + include + "extern int sl_lint_alone;\n")
                done = subprocess.run(compiler + flags + [str(source)], capture_output=True, text=True)
                if done.returncode:
                    found.append(f"{path} ({compiler[0]}): {done.stderr.strip().splitlines()[0]}")
    return found


@check
def no_print_or_exit(_build):
    """the library never prints, exits or aborts; the environment is read in api only"""
    found = []
    for path in files(".c", ".h", roots=("src",)):
        forbidden = FORBIDDEN_CALLS + ([] if path.parts[1] == "api" else ["getenv", "secure_getenv"])
        pattern = re.compile(r"\b(" + "|".join(forbidden) + r")\s*\(|\b(stdout|stderr)\b")
        for number, line in enumerate(code_of(path).splitlines(), 1):
            if "__attribute__" not in line and (match := pattern.search(line)):
                found.append(f"{path}:{number}: {match.group(0)}")
    return found


@check
def no_libm_transcendental(_build):
    """no function of libm whose last bit differs between libraries (perplexity, which is only shown, excepted)"""
    found = []
    names = "exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 sinh cosh tanh cbrt hypot erf".split()
    pattern = re.compile(r"(?<![\w>.])(" + "|".join(names) + r")[fl]?\s*\(")
    for path in files(".c", ".h", roots=("src",)):
        for number, line in enumerate(code_of(path).splitlines(), 1):
            if (match := pattern.search(line)) and "*perplexity" not in line:
                found.append(f"{path}:{number}: {match.group(1)}")
    return found


@check
def no_fast_math(_build):
    """no flag or pragma that changes the bits"""
    found = []
    pattern = re.compile(r"-ffast-math|-march=|-Ofast|-funsafe-math|-ffp-contract=(?!off)|STDC\s+FP_CONTRACT\s+ON|fast-math")
    for path in [Path("CMakeLists.txt"), Path("Makefile"), *Path("cmake").glob("*"), *Path(".").glob("*/CMakeLists.txt")]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if pattern.search(line.split("#")[0]):
                found.append(f"{path}:{number}: {line.strip()}")
    for path in files(".c", ".h", roots=("src",)):
        for number, line in enumerate(code_of(path).splitlines(), 1):
            if pattern.search(line) or re.search(r"__attribute__\s*\(\s*\(\s*optimize", line):
                found.append(f"{path}:{number}: {line.strip()}")
    return found


def strays(listing, level):
    """Instructions above the level of the file: AVX in plain code, AVX-512 and the dot products of AVX-VNNI in AVX2 code,
    AVX-512 in AVX-VNNI code, tiles in AVX-512 code."""
    found = []
    function = "?"
    for line in listing.splitlines():
        if match := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            function = match.group(1)
            continue
        parts = line.split("\t")
        if len(parts) < 2 or not parts[-1].strip():
            continue
        instruction = parts[-1].strip()
        word = instruction.split()[0]
        amx = bool(re.search(r"%tmm[0-7]\b", instruction)) or word in ("ldtilecfg", "sttilecfg", "tilerelease")
        avx512 = amx or bool(re.search(r"%zmm|%k[0-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b", instruction))
        avx = avx512 or (word.startswith("v") and not word.startswith("ver") and "mm" in instruction)
        dot = "vpdp" in instruction
        if ((level == "plain" and avx) or (level == "avx2" and (avx512 or dot)) or (level == "avxvnni" and avx512) or
                (level == "avx512" and amx)):
            found.append(f"{function}: {instruction}")
    return found


@check
def no_stray_instructions(build):
    """no object holds instructions of a level above its name"""
    if platform.machine() != "x86_64":
        return "SKIP: the rule reads x86-64 objects"
    objects = sorted(Path(build, "src").rglob("*.o"))
    if not objects:
        return [f"{build}/src holds no object: build first"]
    found = []
    for path in objects:
        match = re.search(r"_(avx2|avxvnni|avx512|amx)\.c", path.name)
        level = match.group(1) if match else "plain"
        if level == "amx":
            continue
        listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True,
                                 check=True).stdout
        found += [f"{path.name}: {place}" for place in strays(listing, level)[:3]]
    return found


@check
def stray_check_can_fail(_build):
    """the instruction rule finds planted instructions"""
    if platform.machine() != "x86_64":
        return "SKIP: the rule reads x86-64 objects"
    source = """typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
__attribute__((target("avx"))) void planted8(v8 *x);
__attribute__((target("avx"))) void planted8(v8 *x) { *x += *x; }
__attribute__((target("avx512f"))) void planted16(v16 *x);
__attribute__((target("avx512f"))) void planted16(v16 *x) { *x += *x; }
void planted_tile(void);
void planted_tile(void) { __asm__ volatile("tilezero %tmm0"); }
void planted_dot(void);
void planted_dot(void) { __asm__ volatile("{vex} vpdpwssd %ymm0, %ymm1, %ymm2"); }
"""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "p.c").write_text(source)
        subprocess.run(["cc", "-O2", "-c", "-o", f"{folder}/p.o", f"{folder}/p.c"], check=True)
        listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", f"{folder}/p.o"], capture_output=True,
                                 text=True, check=True).stdout
    plain = " ".join(strays(listing, "plain"))
    avx2 = " ".join(strays(listing, "avx2"))
    avxvnni = " ".join(strays(listing, "avxvnni"))
    avx512 = " ".join(strays(listing, "avx512"))
    ok = ("planted8" in plain and "planted16" in plain and "planted16" in avx2 and "planted8:" not in avx2 and
          "planted_tile" in avx2 and "planted_tile" in avx512 and "planted16" not in avx512 and "planted_dot" in avx2 and
          "planted_dot" not in avxvnni and "planted16" in avxvnni)
    return [] if ok else [f"plain: {plain}; avx2: {avx2}; avxvnni: {avxvnni}; avx512: {avx512}"]


def counted(parameters):
    """Parameters that a reader must order in the head: the error pattern's last one is always the same."""
    items = re.sub(r"\([^()]*\)", "", parameters).split(",")
    return len(items) - ("sl_err *err" in items[-1])


def functions(path):
    """(line, name, lines, parameters) of each function body; bodies open and close in the first column."""
    lines = code_of(path).splitlines()
    head = 0
    for number, line in enumerate(lines):
        if line == "{":
            signature = " ".join(lines[head:number])
            close = next((i for i in range(number, len(lines)) if lines[i].startswith("}")), len(lines))
            if match := re.search(r"(\w+)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*$", signature):
                yield number + 1, match.group(1), close - number + 1, counted(match.group(2))
        if not line.strip() or line.startswith(("}", "#")) or line.endswith(";"):
            head = number + 1


@check
def budgets(_build):
    """files, functions and parameter lists keep their sizes, or say why not"""
    found = []
    for path in files(".c", ".h", roots=("src", "apps", "include", "bench")):
        text = path.read_text()
        n_lines = text.count("\n")
        if n_lines > FILE_LINES and f"{FILE_LINES} lines" not in text:
            found.append(f"{path}: {n_lines} lines, more than {FILE_LINES}")
        if path.suffix != ".c":
            continue
        for number, name, length, parameters in functions(path):
            if length > FUNCTION_LINES and f"{FUNCTION_LINES} lines" not in text:
                found.append(f"{path}:{number}: {name} has {length} lines, more than {FUNCTION_LINES}")
            if parameters > PARAMETERS and "six parameters" not in text:
                found.append(f"{path}:{number}: {name} has {parameters} parameters, more than {PARAMETERS}")
    return found


@check
def names(_build):
    """file names are unique; no type of ours ends in _t; nothing of ours starts with an underscore"""
    found = []
    seen = {}
    for path in files(".c", ".h", roots=("src", "apps", "include")):
        if path.name in seen:
            found.append(f"{path}: same name as {seen[path.name]}")
        seen[path.name] = path
        code = code_of(path)
        for match in re.finditer(r"\btypedef\b[^;{]*?\b(\w+_t)\s*;|^\}\s*(\w+_t)\s*;|\b(?:struct|union|enum)\s+(\w+_t)\b", code, re.M):
            found.append(f"{path}: type {next(g for g in match.groups() if g)}")
        for match in re.finditer(r"^(?:static\s+|extern\s+|const\s+|inline\s+)*\w[\w\s*]*?\b(_[A-Za-z]\w*)\s*\([^;]*\)\s*$", code, re.M):
            if match.group(1) not in ("_Static_assert", "_Alignas"):
                found.append(f"{path}: name {match.group(1)}")
    return found


@check
def everything_is_built(_build):
    """each source and test file is named in the build"""
    lists = "".join(path.read_text() for path in [*Path(".").glob("*/CMakeLists.txt"), Path("tests/tests.cmake")])
    found = []
    for path in files(".c", roots=("src", "apps")):
        name = "/".join(path.parts[1:])
        if not re.search(rf"(?<![\w/]){re.escape(name)}\b", lists) and \
                not re.search(rf"(?<=/){re.escape(path.name)}\b", lists):
            found.append(f"{path}: in no CMakeLists.txt")
    for path in sorted(Path("tests").glob("*/test_*.c")):
        if not re.search(rf"\b{path.stem}\b", lists):
            found.append(f"{path}: not in tests/tests.cmake")
    return found


@check
def dependencies(_build):
    """each library that the build asks for is installed by tools/setup.sh and explained in docs/dependencies.md"""
    setup = Path("tools/setup.sh").read_text()
    page = Path("docs/dependencies.md").read_text()
    found = []
    for path in [Path("CMakeLists.txt"), *Path(".").glob("*/CMakeLists.txt")]:
        for match in re.finditer(r"pkg_check_modules\(\w+ (?:REQUIRED )?IMPORTED_TARGET ([\w-]+)\)", path.read_text()):
            module = match.group(1)
            if f"--exists {module}" not in setup:
                found.append(f"{path}: {module} is not installed by tools/setup.sh")
            if module not in page:
                found.append(f"{path}: {module} is not in docs/dependencies.md")
    return found


@check
def documents(_build):
    """make targets, tools and links that the documents name exist"""
    pages = [path for path in (Path("README.md"), Path("ARCHITECTURE.md"), Path("CONTRIBUTING.md")) if path.exists()]
    pages += sorted(Path("docs").glob("*.md"))
    if not pages:
        return "SKIP: no document yet"
    targets = set(re.findall(r"^([a-z][a-z0-9]*):", Path("Makefile").read_text(), re.M))
    found = []
    for page in pages:
        text = page.read_text()
        for match in re.finditer(r"(?:^|`|\$ |&& |; )make ([a-z][a-z0-9 ]*)", text, re.M):
            for target in match.group(1).split():
                if target not in targets:
                    found.append(f"{page}: make {target} is no target")
                if match.start() == 0 or text[match.start()] == "\n":
                    continue
                break
        for match in re.finditer(r"\]\(([^)#\s]+)", text):
            if "://" not in match.group(1) and not Path(page.parent, match.group(1)).exists():
                found.append(f"{page}: link to {match.group(1)}")
        for match in re.finditer(r"`((?:src|tools|tests|apps|include|docs|bench)/[\w./-]+)`", text):
            if not Path(match.group(1)).exists():
                found.append(f"{page}: {match.group(1)} does not exist")
    return found


@check
def left_overs(_build):
    """no unfinished marks, no paths of one machine, no pointer to what a reader cannot open"""
    pattern = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b|\bissue #?\d|(?<![\w.$}])/(?:home|root|work|Users)/\w"
                         r"|\b(?:DES" r"IGN|ST" r"YLE)\.md|sl_place" r"holder")
    found = []
    for path in [*files(".c", ".h", ".py", ".sh", ".txt", ".cmake", ".md", roots=("src", "apps", "include", "tools", "docs",
                                                                                  "bench", "cmake", "tests")),
                 *(Path(name) for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "Makefile", "CMakeLists.txt",
                                           ".ci/run") if Path(name).exists())]:
        if path.parts[:2] in (("tests", "golden"), ("tests", "fuzz")) and path.suffix == ".txt":
            continue  # sample texts of other people
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if match := pattern.search(line):
                found.append(f"{path}:{number}: {match.group(0)}")
    return found


@check
def format_is_kept(_build):
    """C files keep to 120 columns, blanks and one newline at the end"""
    found = []
    for path in files(".c", ".h"):
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n") or text.endswith("\n\n"):
            found.append(f"{path}: ends with {'no' if not text.endswith(chr(10)) else 'more than one'} newline")
        for number, line in enumerate(text.splitlines(), 1):
            if "\t" in line or line != line.rstrip() or len(line) > 120:
                found.append(f"{path}:{number}: tab, blank at the end or more than 120 columns")
    return found


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    if not shutil.which("objdump") or not os.path.isdir("src"):
        print("FAIL lint: needs objdump, and the root of the tree as the current folder")
        return 1
    failed = 0
    for function in CHECKS:
        found = function(build)
        title = f"{function.__name__}: {function.__doc__}"
        if isinstance(found, str):
            print(f"SKIP {title}: {found[len('SKIP: '):]}")
        elif found:
            failed += 1
            print(f"FAIL {title}")
            print("".join(f"    {place}\n" for place in found[:40]), end="")
        else:
            print(f"PASS {title}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
