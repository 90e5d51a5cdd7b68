"""Plants one bug at a time in a copy of the tree and runs the tests that must notice.

    python tests/mutate.py              every mutant; exit code 1 when one survives
    python tests/mutate.py azp scale    those whose name holds one of the words
    python tests/mutate.py --sample 8   so many, others at every commit
    python tests/mutate.py --gpu        those of the CUDA sources; needs nvcc and a GPU
    python tests/mutate.py --isas avx2  for this instruction set and portable alone
    python tests/mutate.py --list

A survivor and a stale line (file and text are named) make the exit code 1. Some bugs must not
compile: there a static_assert has to notice. The copy lies in build/mutants and keeps its objects:
a mutant compiles what includes its line. It is built with -O1, and without the instruction sets
that this machine cannot run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"
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


def copy_tree(isas: list[str]) -> None:
    """The sources as they are now; a file that has not changed keeps its time and its object."""
    for top in ("csrc", "scaled_mm", "scaled_mm_cli", "tests", "tools"):
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


def run(*command: str, at_most: int | None = TESTS_AT_MOST) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "MAX_JOBS": os.environ.get("MAX_JOBS", str(os.cpu_count() or 2)),
        "SCALED_MM_CUDA": str(int(GPU)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=COPY,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=at_most,
    )


def build() -> str:
    """Rebuilds what changed; what the compiler said when that fails."""
    done = run("setup.py", "--quiet", "build_ext", "--inplace", at_most=None)
    return done.stdout + done.stderr if done.returncode else ""


def run_tests(names: str) -> subprocess.CompletedProcess[str]:
    options = (
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and " + ("gpu" if GPU else "not gpu"),
    )
    return run("-m", "pytest", *options, *[f"tests/{name}.py" for name in names.split()])


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
    except subprocess.TimeoutExpired:
        return Verdict("killed", "did not end")
    finally:
        path.write_text(original)
    if done.returncode == 0:
        return Verdict("SURVIVED", mutant.tests)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Verdict("killed", failed[0][:110] if failed else f"exit code {done.returncode}")


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
    parser.add_argument("--list", action="store_true", help="names only")
    options = parser.parse_args(arguments)
    GPU = options.gpu
    chosen = [mutant for mutant in MUTANTS if mutant.gpu == GPU]
    if options.sample is not None:
        seed = commit()
        chosen = sample(options.sample, seed)
        print(f"{len(chosen)} of {len(MUTANTS)} mutants, by {seed}", flush=True)
    if options.words:
        chosen = [m for m in chosen if any(word in m.name for word in options.words)]
    if options.list:
        print("\n".join(m.name for m in chosen))
        return 0
    # A compiled mutant stays in the library until the next build: those of Python go first.
    chosen.sort(key=lambda mutant: mutant.compiled)
    if not chosen:
        raise SystemExit("no mutant is meant")
    question = "from scaled_mm import _library as l; print(*l.cpu_isas())"
    isas = subprocess.check_output([sys.executable, "-c", question], cwd=ROOT, text=True).split()
    if options.isas is not None:
        isas = [isa for isa in isas if isa in (*options.isas.split(","), "portable")]
    copy_tree(isas)
    if errors := build():
        raise SystemExit(f"the copy does not build:\n{errors[-SAID_AT_MOST:]}")
    tested = [mutant for mutant in chosen if not mutant.breaks_build]
    for name in sorted({name for mutant in tested for name in mutant.tests.split()}):
        if (done := run_tests(name)).returncode:
            raise SystemExit(f"{name} fails without a mutant:\n{done.stdout[-3000:]}")
    counts: dict[str, int] = {}
    for mutant in chosen:
        start = time.monotonic()
        if mutant.isa and mutant.isa not in isas:
            verdict = Verdict("skipped", f"this machine has no {mutant.isa}")
        else:
            verdict = judge(mutant)
        counts[verdict.word] = counts.get(verdict.word, 0) + 1
        seconds = time.monotonic() - start
        print(f"{verdict.word:8} {seconds:4.0f} s  {mutant.name}: {verdict.detail}", flush=True)
    if errors := build():
        raise SystemExit(errors[-SAID_AT_MOST:])
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return 1 if counts.keys() - {"killed", "skipped"} else 0


if __name__ == "__main__":
    if not shutil.which("ninja"):
        print("without ninja every mutant compiles everything")
    sys.exit(main(sys.argv[1:]))
