"""Bugs by rule, one at a time, in a copy of the tree: do the tests notice?

    python tools/mutate.py scaled_mm/ops/shapes.py --count 20
    python tools/mutate.py --lately 20 --count 8     two Python files of the last 20 commits

The rules are universalmutator's: operators exchanged, conditions negated, statements left out,
numbers changed. No list of bugs is kept, so no change of the sources makes one stale. A survivor is
a question: a test is missing, or nothing can notice. The tests of a file are those that are called
as it, its package or one of its functions is, and those that name most of what it or its users
define; files of cases beside a test count as the test, and a name counts the more the fewer tests
have it (`--tests` names others). The seed is the hash of scaled_mm as committed: a
commit that leaves it alone tries the same bugs again. Exit code 1: fewer than `--least` percent
noticed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutate"
OF_CSRC = ["scaled_mm", "epilogues", "quantize", "guards_int8", "awq", "mixed", "produce"]
OF_CHOICE = ["explain", "explain_lowbit", "gpus", "archs", "tune"]  # of dispatch/ and the models
FILES_OF_TESTS = 8
BUILD = ["setup.py", "--quiet", "build_ext", "--inplace"]


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    text: str  # of the whole line
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        lines[self.line - 1] = self.text
        return "".join(lines)


def meaning(source: str) -> str:
    """What the interpreter makes of it, without docstrings and what is raised."""
    compile(source, "mutant", "exec")  # a `break` outside of a loop can be parsed
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            node.exc = None
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return ast.dump(tree).replace("Expr(value=Constant(value=None))", "Pass()")


def mutants_of(path: str, tests: tuple[str, ...]) -> Iterator[Mutant]:
    from universalmutator import mutator

    source = (ROOT / path).read_text()
    python = path.endswith(".py")
    rules = [f"{x}.rules" for x in ["universal", *(["python"] if python else ["c_like", "cpp"])]]
    lines = source.splitlines(keepends=True)
    with contextlib.redirect_stdout(None):
        made = mutator.mutants_regexp(lines, rules, ignorePatterns=[r"^\s*//"])
    for line, text, *_ in made:
        mutant = Mutant(path, line, text, tests)
        with contextlib.suppress(SyntaxError):
            if not python or meaning(mutant.planted(source)) != meaning(source):
                yield mutant


def names_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {x.name for x in tree.body if isinstance(x, (ast.FunctionDef, ast.ClassDef))}


def tests_of(path: str) -> tuple[str, ...]:
    if not path.endswith(".py"):
        chooses = path.startswith("csrc/dispatch/") or path.endswith("model.cpp")
        return tuple(f"tests/test_{x}.py" for x in (OF_CHOICE if chooses else OF_CSRC))
    stem, package, own = Path(path).stem, Path(path).parent.name, names_of(ROOT / path)
    uses = re.compile(rf"from \S*\.{stem} import|import .*\b{stem}\b")
    users = [x for x in (ROOT / "scaled_mm").rglob("*.py") if uses.search(x.read_text())]
    theirs = set[str]().union(*map(names_of, users)) - own
    left_out = re.compile("test_(cuda|device|tutorials)")  # no GPU here; minutes
    named = {x: set(re.findall(r"\w+", x.read_text())) for x in (ROOT / "tests").glob("*.py")}
    beside = {x.stem: found for x, found in named.items() if not x.stem.startswith("test_")}

    def words_of(file: Path) -> set[str]:
        return named[file].union(*(beside[x] for x in named[file] & beside.keys()))

    files = [x for x in named if x.stem.startswith("test_") and not left_out.match(x.stem)]
    words = {x: words_of(x) & (own | theirs) for x in files}
    count = Counter(name for found in words.values() for name in found)

    def score(file: Path) -> float:
        subject = f"{file.stem.removeprefix('test_')}_"
        names = (stem, f"{package}_{stem}", *own)
        called = float(any(subject.startswith(f"{x}_") for x in names))
        called += 0.5 * subject.startswith(f"{package}_")
        return called + sum((1 if x in own else 0.5) / count[x] for x in words[file])

    best = sorted(files, key=lambda x: (-score(x), x.stem))[:FILES_OF_TESTS]
    return tuple(f"tests/{x.name}" for x in best if score(x))


def lately(commits: int) -> list[str]:
    asked = ["git", "log", f"-{commits}", "--name-only", "--format=", "--", "scaled_mm"]
    named = set(subprocess.check_output(asked, cwd=ROOT, text=True).split())
    return sorted(x for x in named if x.endswith(".py") and (ROOT / x).exists())


# ---- one copy ------------------------------------------------------------------------------------


def copy_tree() -> None:
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    libraries = [str(x.relative_to(ROOT)) for x in (ROOT / "scaled_mm").glob("*.so")]
    for stale in ("scaled_mm", "tests"):
        shutil.rmtree(COPY / stale, ignore_errors=True)
    for name in [*filter(None, tracked), *libraries]:
        if (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)  # with its time: what is built there stays


def run(command: list[str], limit: float) -> tuple[int | None, str]:
    """The exit code, None if it did not end; and what it said."""
    ours = {"PYTHONPATH": str(COPY), "PYTHONDONTWRITEBYTECODE": "1"}
    with (COPY / "said.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=COPY,
            env={**os.environ, **ours},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # and what its tests started
            process.wait()
            code = None
    return code, (COPY / "said.log").read_text(errors="replace")


def judge(mutant: Mutant, limit: float) -> tuple[str, str]:
    file = COPY / mutant.path
    source = file.read_text()
    file.write_text(mutant.planted(source))
    try:
        if mutant.path.startswith("csrc") and run(BUILD, 1800)[0]:
            return "no build", ""
        code, said = run(pytest(mutant.tests), limit)
    finally:
        file.write_text(source)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if code == 0:
        return "SURVIVED", " ".join(mutant.tests)
    return "noticed", failed[0] if failed else f"exit code {code}"


def pytest(tests: tuple[str, ...]) -> list[str]:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
    return ["-m", "pytest", *options, *tests]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="of scaled_mm or csrc")
    parser.add_argument("--lately", type=int, default=0, metavar="COMMITS")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", help="default: the tree of scaled_mm at the commit")
    parser.add_argument("--tests", nargs="*", help="files of tests, in place of those by the rule")
    parser.add_argument("--least", type=int, default=0, help="percent that must be noticed")
    options = parser.parse_args()
    asked = ["git", "rev-parse", "HEAD:scaled_mm"]
    seed = options.seed or subprocess.check_output(asked, cwd=ROOT, text=True).strip()
    chance, chosen = random.Random(seed), list[Mutant]()
    recent = lately(options.lately) if options.lately else []
    files = [*options.files, *chance.sample(recent, min(2, len(recent)))]
    every = {x: list(mutants_of(x, tuple(options.tests or tests_of(x)))) for x in files}
    every = {x: found for x, found in every.items() if found and found[0].tests}
    for path in chance.choices([*every], [len(x) ** 0.5 for x in every.values()], k=options.count):
        chosen.append(chance.choice(every[path]))
    print(f"{len(chosen)} of {sum(map(len, every.values()))}, seed {seed}", flush=True)
    copy_tree()
    words, limits = list[str](), dict[tuple[str, ...], float]()
    for mutant in chosen:
        if mutant.tests not in limits:
            start = time.monotonic()
            code, said = run(pytest(mutant.tests), 1800)
            limits[mutant.tests] = 60 + 3 * (time.monotonic() - start)
            if code:
                raise SystemExit(f"without a bug:\n{said[-3000:]}")
        word, detail = judge(mutant, limits[mutant.tests])
        was = (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip()
        print(f"{word:8} {mutant.path}:{mutant.line} {detail}", flush=True)
        if word == "SURVIVED":
            print(f"  - {was}\n  + {mutant.text.strip()}", flush=True)
        words.append(word)
    noticed, judged = words.count("noticed"), len(words) - words.count("no build")
    print(f"{noticed} of {judged} noticed")
    return int(100 * noticed < options.least * judged)


if __name__ == "__main__":
    sys.exit(main())
