"""Plants one bug at a time in a copy of the tree and runs the tests that must notice.

    python tests/mutate.py              every mutant; exit code 1 when one survives
    python tests/mutate.py azp scale    those whose name holds one of the words
    python tests/mutate.py --list

The copy lies in build/mutants and keeps its objects: a mutant compiles what includes its line.
It is built with -O1, and without the instruction sets that this machine cannot run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"
ISAS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx2")
TESTS_AT_MOST = 600  # seconds; a mutant that hangs is noticed too


@dataclass
class Verdict:
    word: str
    detail: str = ""


def copy_tree(isas: list[str]) -> None:
    """The sources as they are now; a file that has not changed keeps its time and its object."""
    for top in ("csrc", "scaled_mm", "tests"):
        fresh = {p.relative_to(ROOT) for p in (ROOT / top).rglob("*") if p.is_file()}
        fresh = {p for p in fresh if p.suffix != ".so" and "__pycache__" not in p.parts}
        for stale in (COPY / top).rglob("*"):
            relative = stale.relative_to(COPY)
            if stale.is_file() and stale.suffix in (".cpp", ".h", ".py") and relative not in fresh:
                stale.unlink()
        for path in sorted(fresh):
            write(path, (ROOT / path).read_bytes())
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            write(Path(name), (ROOT / name).read_bytes())
    write(Path("setup.py"), (ROOT / "setup.py").read_bytes().replace(b'"-O3"', b'"-O1"'))
    isa_list = (ROOT / "csrc/cpu/isa.cpp").read_text()
    for isa in set(ISAS) - set(isas):
        isa_list = isa_list.replace(f"    &{isa}_kernels,\n", "")
        (COPY / f"csrc/cpu/isa_{isa}.cpp").unlink()
    write(Path("csrc/cpu/isa.cpp"), isa_list.encode())


def write(path: Path, content: bytes) -> None:
    target = COPY / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != content:
        target.write_bytes(content)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "MAX_JOBS": os.environ.get("MAX_JOBS", "2"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=COPY,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TESTS_AT_MOST,
    )


def build() -> str:
    """Rebuilds what changed; what the compiler said when that fails."""
    done = run("setup.py", "--quiet", "build_ext", "--inplace")
    return (done.stdout + done.stderr)[-3000:] if done.returncode else ""


def run_tests(names: str) -> subprocess.CompletedProcess[str]:
    options = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu")
    return run("-m", "pytest", *options, *[f"tests/{name}.py" for name in names.split()])


def judge(mutant: Mutant) -> Verdict:
    path = COPY / mutant.path
    original = path.read_text()
    if original.count(mutant.old) != 1:
        return Verdict("STALE", f"{original.count(mutant.old)} places hold {mutant.old!r}")
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        if mutant.compiled and (errors := build()):
            return Verdict("BROKEN", errors)
        done = run_tests(mutant.tests)
    except subprocess.TimeoutExpired:
        return Verdict("killed", "did not end")
    finally:
        path.write_text(original)
    if done.returncode == 0:
        return Verdict("SURVIVED", mutant.tests)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Verdict("killed", failed[0][:110] if failed else f"exit code {done.returncode}")


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    if words == ["--list"]:
        print("\n".join(m.name for m in MUTANTS))
        return 0
    question = "from scaled_mm import _library as l; print(*l.cpu_isas())"
    isas = subprocess.check_output([sys.executable, "-c", question], cwd=ROOT, text=True).split()
    copy_tree(isas)
    if errors := build():
        raise SystemExit(f"the copy does not build:\n{errors}")
    for name in sorted({name for mutant in chosen for name in mutant.tests.split()}):
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
        raise SystemExit(errors)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return 1 if counts.keys() - {"killed", "skipped"} else 0


if __name__ == "__main__":
    if not shutil.which("ninja"):
        print("without ninja every mutant compiles everything")
    sys.exit(main(sys.argv[1:]))
