"""Plants one bug at a time in a copy of the tree and runs the tests that must notice.

    python tests/mutate.py              every mutant; exit code 1 when one survives
    python tests/mutate.py azp nn/      those whose name or file holds one of the words
    python tests/mutate.py --sample 8   so many, others at every commit
    python tests/mutate.py --gpu        those of the CUDA sources; needs nvcc and a GPU
    python tests/mutate.py --isas avx2  for this instruction set and portable alone
    python tests/mutate.py --again      those too that were killed before
    python tests/mutate.py --list

A survivor and a stale line (file and text are named) make the exit code 1, and so does a mutant
that is killed although a reason says why nothing can notice it. Some bugs must not compile: there a
static_assert has to notice. The copy lies in build/mutants and keeps its objects: a mutant compiles
what includes its line. It is built with -O1, and without the instruction sets that this machine
cannot run.

A run that was stopped goes on where it was: build/mutants.json keeps every verdict, and one that
was good is believed as long as the mutant, its file and the files of its tests are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from mutant import Mutant
from mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"
REPORT = ROOT / "build" / "mutants.json"
GOOD = ("killed", "equivalent")
GPU = False  # whether the copy has the CUDA library and the tests are those on a GPU
SOURCES = (".cpp", ".h", ".def", ".table", ".cu", ".cuh", ".py")
ISAS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx2")
TESTS_AT_MOST = 600  # seconds; a mutant that hangs is noticed too
SAID_AT_MOST = 3000  # characters of a compiler's
COMPILED_IN_A_SAMPLE = 2  # each takes about as long as all of Python's in it


@dataclass
class Verdict:
    word: str
    detail: str = ""
    seconds: int = 0
    key: str = ""


class Report:
    """The verdicts so far, by name of the mutant, in a file that is rewritten after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        kept = json.loads(path.read_text()) if path.is_file() else {}
        self.verdicts = {name: Verdict(**fields) for name, fields in kept.items()}

    def known(self, mutant: Mutant) -> Verdict | None:
        """The verdict of an earlier run that still holds."""
        verdict = self.verdicts.get(mutant.name)
        holds = verdict and verdict.word in GOOD and verdict.key == key_of(mutant)
        return verdict if holds else None

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        verdict.key = key_of(mutant)
        self.verdicts[mutant.name] = verdict
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({name: asdict(v) for name, v in sorted(self.verdicts.items())}, indent=1)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text + "\n")
        fresh.replace(self.path)  # a run that is stopped here loses nothing


def key_of(mutant: Mutant) -> str:
    """Of what a verdict depends on first: the mutant, its file, the files of its tests."""
    paths = [mutant.path, *(f"tests/{test.partition('::')[0]}.py" for test in mutant.tests.split())]
    state = hashlib.sha256(repr(mutant).encode())
    for path in paths:
        state.update((ROOT / path).read_bytes())
    return state.hexdigest()[:16]


def copy_tree(isas: list[str]) -> None:
    """The sources as they are now; a file that has not changed keeps its time and its object."""
    for top in ("csrc", "docs", "scaled_mm", "scaled_mm_cli", "tests", "tools"):
        fresh = {p.relative_to(ROOT) for p in (ROOT / top).rglob("*") if p.is_file()}
        fresh = {p for p in fresh if p.suffix != ".so" and "__pycache__" not in p.parts}
        for stale in (COPY / top).rglob("*"):
            relative = stale.relative_to(COPY)
            if stale.is_file() and stale.suffix in SOURCES and relative not in fresh:
                stale.unlink()
        for path in sorted(fresh):
            write(path, (ROOT / path).read_bytes())
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            write(Path(name), (ROOT / name).read_bytes())
    write(Path("setup.py"), (ROOT / "setup.py").read_bytes().replace(b'"-O3"', b'"-O1"'))
    isa_list = (ROOT / "csrc/cpu/isa.cpp").read_text()
    for isa in set(ISAS) - set(isas):
        line = f"    &{isa}_isa,\n"
        assert isa_list.count(line) == 1, f"csrc/cpu/isa.cpp must list {isa}"
        isa_list = isa_list.replace(line, "")
        (COPY / f"csrc/cpu/isa_{isa}.cpp").unlink()
    write(Path("csrc/cpu/isa.cpp"), isa_list.encode())


def write(path: Path, content: bytes) -> None:
    target = COPY / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != content:
        target.write_bytes(content)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "MAX_JOBS": os.environ.get("MAX_JOBS", str(os.cpu_count() or 2)),
        "SCALED_MM_CUDA": str(int(GPU)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(COPY),
        "OPENBLAS_NUM_THREADS": "1",  # as tests/conftest.py has it, before numpy is imported
    }


def build() -> str:
    """Rebuilds what changed; what the compiler said when that fails."""
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=COPY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr if done.returncode else ""


@dataclass
class Outcome:
    code: int | None  # None: the tests did not end
    said: str


def run_tests(tests: str) -> Outcome:
    """In a fork of this process, which has torch imported already: importing it takes longer than
    most of the tests do."""
    log = COPY / "build/pytest.log"
    worker = multiprocessing.get_context("fork").Process(target=pytest_in_copy, args=(tests, log))
    worker.start()
    worker.join(TESTS_AT_MOST)
    if (code := worker.exitcode) is None:
        assert worker.pid is not None
        os.killpg(worker.pid, signal.SIGKILL)  # and the processes that its tests started
        worker.join()
    return Outcome(code, log.read_text(errors="replace"))


def pytest_in_copy(tests: str, log: Path) -> None:
    os.setsid()
    os.chdir(COPY)
    os.environ.update(environment())
    sys.dont_write_bytecode = True
    sys.path[:] = [str(COPY), *(path for path in sys.path if Path(path) != ROOT / "tests")]
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    marked = "not slow and " + ("gpu" if GPU else "not gpu")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", marked]
    chosen = (test.partition("::") for test in tests.split())
    import pytest

    code = pytest.main([*options, *(f"tests/{f}.py{colons}{t}" for f, colons, t in chosen)])
    sys.stdout.flush()
    os._exit(int(code))


def judge(mutant: Mutant) -> Verdict:
    path = COPY / mutant.path
    original = path.read_text()
    if original.count(mutant.old) != 1:
        count = original.count(mutant.old)
        return Verdict("STALE", f"{mutant.path} holds {count} times {mutant.old!r}")
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        if mutant.compiled:
            errors = build()
            if mutant.breaks_build:
                return judge_build(errors)
            if errors:
                return Verdict("BROKEN", errors[-SAID_AT_MOST:])
        done = run_tests(mutant.tests)
    finally:
        path.write_text(original)
    if done.code is None:
        return Verdict("killed", "did not end")
    if done.code == 0:
        word = "equivalent" if mutant.reason else "SURVIVED"
        return Verdict(word, mutant.reason or mutant.tests)
    failed = [line for line in done.said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    word = "NOTICED" if mutant.reason else "killed"  # in spite of its reason
    return Verdict(word, failed[0][:110] if failed else f"exit code {done.code}")


def judge_build(errors: str) -> Verdict:
    """Of a bug that must not compile."""
    if not errors:
        return Verdict("SURVIVED", "it compiles")
    said = [line for line in errors.splitlines() if "static assertion failed" in line]
    if not said:
        return Verdict("BROKEN", errors[-SAID_AT_MOST:])
    return Verdict("killed", "static_assert" + said[0].partition("failed")[2])


def sample(count: int, seed: str) -> list[Mutant]:
    """So many that need no GPU, mostly of Python files; the same for the same seed."""
    chance = random.Random(seed)
    here = [mutant for mutant in MUTANTS if not mutant.gpu and not mutant.isa]
    compiled = [mutant for mutant in here if mutant.compiled]
    few = min(COMPILED_IN_A_SAMPLE, count)
    others = [mutant for mutant in here if not mutant.compiled]
    return chance.sample(compiled, few) + chance.sample(others, count - few)


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or time.strftime("%Y-%m-%d")


def main(arguments: list[str]) -> int:
    global GPU
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--sample", type=int, metavar="N", help="N of them, by the commit")
    parser.add_argument("--gpu", action="store_true", help="the mutants of the CUDA sources")
    parser.add_argument("--isas", metavar="NAMES", help="only these, by commas; quicker to build")
    parser.add_argument("--again", action="store_true", help="do not believe earlier verdicts")
    parser.add_argument("--list", action="store_true", help="names only")
    options = parser.parse_args(arguments)
    GPU = options.gpu
    chosen = [mutant for mutant in MUTANTS if mutant.gpu == GPU]
    if options.sample is not None:
        seed = commit()
        chosen = sample(options.sample, seed)
        print(f"{len(chosen)} of {len(MUTANTS)} mutants, by {seed}", flush=True)
    if options.words:
        chosen = [m for m in chosen if any(word in f"{m.name} {m.path}" for word in options.words)]
    if options.list:
        print("\n".join(m.name for m in chosen))
        return 0
    if not chosen:
        raise SystemExit("no mutant is meant")
    report = Report(REPORT)
    counts: dict[str, int] = {}
    again = options.again or options.sample is not None
    known = {} if again else {m.name: v for m in chosen if (v := report.known(m))}
    if known:
        counts["judged before"] = len(known)
    # A compiled mutant stays in the library until the next build: those of Python go first.
    chosen = sorted((m for m in chosen if m.name not in known), key=lambda m: m.compiled)
    isas = chosen_isas(options.isas)
    prepare(chosen, isas)
    for mutant in chosen:
        start = time.monotonic()
        if mutant.isa and mutant.isa not in isas:
            verdict = Verdict("skipped", f"this machine has no {mutant.isa}")
        else:
            verdict = judge(mutant)
        verdict.seconds = round(time.monotonic() - start)
        report.add(mutant, verdict)
        counts[verdict.word] = counts.get(verdict.word, 0) + 1
        print(
            f"{verdict.word:10} {verdict.seconds:4} s  {mutant.name}: {verdict.detail}", flush=True
        )
    if chosen and (errors := build()):
        raise SystemExit(errors[-SAID_AT_MOST:])
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return 1 if counts.keys() - {*GOOD, "skipped", "judged before"} else 0


def chosen_isas(wanted: str | None) -> list[str]:
    """The instruction sets that this machine runs and the user wants; always portable."""
    question = "from scaled_mm import _library as l; print(*l.cpu_isas())"
    isas = subprocess.check_output([sys.executable, "-c", question], cwd=ROOT, text=True).split()
    if wanted is None:
        return isas
    return [isa for isa in isas if isa in (*wanted.split(","), "portable")]


def prepare(chosen: list[Mutant], isas: list[str]) -> None:
    """The copy, built; the tests pass there before a bug is planted."""
    if not chosen:
        return
    os.environ.update(environment())
    for module in ("hypothesis", "numpy", "pytest", "safetensors.torch", "torch"):
        importlib.import_module(module)  # for the forks of `run_tests`
    copy_tree(isas)
    if errors := build():
        raise SystemExit(f"the copy does not build:\n{errors[-SAID_AT_MOST:]}")
    tested = [m for m in chosen if not m.breaks_build and (not m.isa or m.isa in isas)]
    for test in sorted({test for mutant in tested for test in mutant.tests.split()}):
        if (done := run_tests(test)).code != 0:
            raise SystemExit(f"{test} fails without a mutant:\n{done.said[-3000:]}")


if __name__ == "__main__":
    if not shutil.which("ninja"):
        print("without ninja every mutant compiles everything")
    sys.exit(main(sys.argv[1:]))
