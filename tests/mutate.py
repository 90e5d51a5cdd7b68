"""Plants one bug at a time in a copy of the tree and runs the tests that must notice.

    python tests/mutate.py              every mutant; exit code 1 when one survives
    python tests/mutate.py azp nn/      those whose name or file holds one of the words
    python tests/mutate.py --jobs 16    so many at once, each in a copy of its own
    python tests/mutate.py --sample 8   so many, others at every commit
    python tests/mutate.py --gpu        those of the CUDA sources; needs nvcc and a GPU
    python tests/mutate.py --isas avx2  for this instruction set and portable alone
    python tests/mutate.py --gpu --rows stream_64x64,dense   with these rows of the tables alone
    python tests/mutate.py --again      those too that were killed before
    python tests/mutate.py --list

A survivor and a stale line (file and text are named) make the exit code 1, and so does a mutant
that is killed although a reason says why nothing can notice it, and one whose tests fail without
it. Some bugs must not compile: there a static_assert has to notice. The copies lie in
build/mutants: one is built by setup.py and keeps its objects, and a mutant compiles what includes
its line. It is built with -O1, and without the instruction sets that this machine cannot run.

A run that was stopped goes on where it was: build/mutants.json keeps every verdict, and one that
was good is believed as long as the mutant, its file and the files of its tests are the same. The
first run of a clone begins with the verdicts in docs/validation/mutants.json.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

import mutate_build
from mutant import Mutant
from mutants import MUTANTS
from mutate_report import GOOD, KEPT, REPORT, Report, Verdict

ROOT = Path(__file__).resolve().parent.parent
COPIES = ROOT / "build" / "mutants"
FORK = multiprocessing.get_context("fork")
TESTS_AT_MOST = 60  # seconds, and five times what they take without a bug; a hang is noticed too
SAID_AT_MOST = 3000  # characters of a compiler's
SHOWN_AT_MOST = 150  # of a test's name
COMPILED_IN_A_SAMPLE = 2  # each takes about as long as all of Python's in it


@dataclass
class Plan:
    """What all jobs of a run have in common."""

    gpu: bool  # whether there is the CUDA library, and the tests are those on a GPU
    isas: list[str]
    compiling: int = 1  # processes of a job
    recipe: mutate_build.Recipe | None = None
    seconds: dict[str, int] = field(default_factory=dict)  # of tests, without a bug
    failing: dict[str, str] = field(default_factory=dict)  # tests, without a bug


@dataclass
class Job:
    """One copy of the tree, in which one process plants bugs."""

    copy: Path
    plan: Plan


JOB: Job  # of this process


def environment(copy: Path, gpu: bool) -> dict[str, str]:
    ours = {
        "MAX_JOBS": os.environ.get("MAX_JOBS", str(os.cpu_count() or 2)),
        "SCALED_MM_CUDA": str(int(gpu)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")])),
        "OPENBLAS_NUM_THREADS": "1",  # as tests/conftest.py has it, before numpy is imported
        "OMP_NUM_THREADS": "2",  # with one, no work would be shared; more are the other jobs'
    }
    return {**os.environ, **ours, **({} if gpu else {"CUDA_VISIBLE_DEVICES": ""})}


@dataclass
class Outcome:
    code: int | None  # None: the tests did not end
    said: str


def run_tests(job: Job, tests: str) -> Outcome:
    """In a fork of this process, which has torch imported already: importing it takes longer than
    most of the tests do."""
    log = job.copy / "build/pytest.log"
    log.parent.mkdir(exist_ok=True)
    worker = FORK.Process(target=pytest_in_copy, args=(job, tests, log))
    worker.start()
    worker.join(TESTS_AT_MOST + 5 * sum(job.plan.seconds.get(x, 100) for x in tests.split()))
    if (code := worker.exitcode) is None:
        assert worker.pid is not None
        os.killpg(worker.pid, signal.SIGKILL)  # and the processes that its tests started
        worker.join()
    return Outcome(code, log.read_text(errors="replace"))


def pytest_in_copy(job: Job, tests: str, log: Path) -> None:
    os.setsid()
    os.chdir(job.copy)
    os.environ.update(environment(job.copy, job.plan.gpu))
    sys.dont_write_bytecode = True
    sys.path[:] = [str(job.copy), *(path for path in sys.path if Path(path) != ROOT / "tests")]
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    marked = "not slow and " + ("gpu" if job.plan.gpu else "not gpu")
    scratch = f"--basetemp={job.copy / 'build/tmp'}"
    options = ["-x", "-q", "-p", "no:cacheprovider", scratch, "-m", marked]
    chosen = (test.partition("::") for test in tests.split())
    import pytest

    code = pytest.main([*options, *(f"tests/{f}.py{colons}{t}" for f, colons, t in chosen)])
    sys.stdout.flush()
    os._exit(int(code))


def judge(job: Job, mutant: Mutant) -> Verdict:
    if mutant.isa and mutant.isa not in job.plan.isas:
        return Verdict("skipped", f"this machine has no {mutant.isa}")
    if failing := [test for test in mutant.tests.split() if test in job.plan.failing]:
        return Verdict("UNTRIED", f"{failing[0]} fails without a mutant")
    path = job.copy / mutant.path
    original = path.read_text()
    if original.count(mutant.old) != 1:
        count = original.count(mutant.old)
        return Verdict("STALE", f"{mutant.path} holds {count} times {mutant.old!r}")
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        if mutant.compiled:
            assert job.plan.recipe is not None
            errors = job.plan.recipe.compile(mutant.path, job.copy, job.plan.compiling)
            if mutant.breaks_build:
                return judge_build(errors)
            if errors:
                return Verdict("BROKEN", errors[-SAID_AT_MOST:])
        return judge_tests(mutant, run_tests(job, mutant.tests))
    finally:
        path.write_text(original)
        if mutant.compiled and job.plan.recipe:
            job.plan.recipe.restore(job.copy)


def judge_tests(mutant: Mutant, done: Outcome) -> Verdict:
    if done.code is None:
        return Verdict("killed", "did not end")
    if done.code == 0:
        word = "equivalent" if mutant.reason else "SURVIVED"
        return Verdict(word, mutant.reason or mutant.tests)
    failed = [line for line in done.said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    word = "NOTICED" if mutant.reason else "killed"  # in spite of its reason
    said = failed[0].partition(" - ")[0] if failed else f"exit code {done.code}"
    return Verdict(word, said[:SHOWN_AT_MOST])


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


# ---- the jobs of a run ---------------------------------------------------------------------------


@contextmanager
def jobs(count: int, base: Path, plan: Plan) -> Iterator[ProcessPoolExecutor]:
    """So many processes, forks of this one, each with a copy of its own."""
    copies: Queue[Path] = FORK.Queue()  # type: ignore[assignment]
    for number in range(count):
        copies.put(base.with_name(f"job{number}"))
    with ProcessPoolExecutor(count, FORK, start_job, (copies, base, plan)) as pool:
        yield pool


def start_job(copies: Queue[Path], base: Path, plan: Plan) -> None:
    global JOB
    JOB = Job(copies.get(), plan)
    mutate_build.copy_for_a_job(base, JOB.copy)


def judge_here(mutant: Mutant, seconds: dict[str, int], failing: dict[str, str]) -> Verdict:
    JOB.plan.seconds, JOB.plan.failing = seconds, failing
    start = time.monotonic()
    verdict = judge(JOB, mutant)
    verdict.seconds = round(time.monotonic() - start)
    return verdict


def try_here(test: str) -> tuple[Outcome, int]:
    start = time.monotonic()
    done = run_tests(JOB, test)
    return done, round(time.monotonic() - start)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="N at once (default 1)")
    parser.add_argument("--sample", type=int, metavar="N", help="N of them, by the commit")
    parser.add_argument("--gpu", action="store_true", help="the mutants of the CUDA sources")
    parser.add_argument("--isas", metavar="NAMES", help="only these, by commas; quicker to build")
    parser.add_argument("--rows", metavar="NAMES", help="only these of the GPU's tables, by commas")
    parser.add_argument("--again", action="store_true", help="do not believe earlier verdicts")
    parser.add_argument("--list", action="store_true", help="names only")
    options = parser.parse_args(arguments)
    chosen = chosen_mutants(options)
    if options.list:
        print("\n".join(m.name for m in chosen))
        return 0
    report = Report(REPORT, KEPT)
    counts: dict[str, int] = {}
    again = options.again or options.sample is not None
    known = {} if again else {m.name: v for m in chosen if (v := report.known(m))}
    if known:
        counts["judged before"] = len(known)
    chosen = [m for m in chosen if m.name not in known]
    chosen.sort(key=lambda m: m.name in report.verdicts)  # those that were never judged first
    if chosen:
        for mutant, verdict in judge_all(chosen, options):
            report.add(mutant, verdict)
            counts[verdict.word] = counts.get(verdict.word, 0) + 1
            said = f"{verdict.word:10} {verdict.seconds:4} s  {mutant.name}: {verdict.detail}"
            print(said, flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return 1 if counts.keys() - {*GOOD, "skipped", "judged before"} else 0


def chosen_mutants(options: argparse.Namespace) -> list[Mutant]:
    """
    Raises:
        SystemExit: there is none.
    """
    chosen = [mutant for mutant in MUTANTS if mutant.gpu == options.gpu]
    if options.sample is not None:
        seed = commit()
        chosen = sample(options.sample, seed)
        print(f"{len(chosen)} of {len(MUTANTS)} mutants, by {seed}", flush=True)
    if options.words:
        chosen = [m for m in chosen if any(word in f"{m.name} {m.path}" for word in options.words)]
    if not chosen:
        raise SystemExit("no mutant is meant")
    return chosen


def chosen_isas(wanted: str | None) -> list[str]:
    """The instruction sets that this machine runs and the user wants; always portable."""
    question = "from scaled_mm import _library as l; print(*l.cpu_isas())"
    isas = subprocess.check_output([sys.executable, "-c", question], cwd=ROOT, text=True).split()
    if wanted is None:
        return isas
    return [isa for isa in isas if isa in (*wanted.split(","), "portable")]


def judge_all(
    chosen: list[Mutant], options: argparse.Namespace
) -> Iterator[tuple[Mutant, Verdict]]:
    """Each as soon as it is judged."""
    plan = Plan(options.gpu, chosen_isas(options.isas))
    plan.compiling = max(1, (os.cpu_count() or 2) // options.jobs)
    base = COPIES / "tree"
    ours = environment(base, plan.gpu)
    mutate_build.copy_tree(ROOT, base, plan.isas, options.rows and options.rows.split(","))
    plan.recipe = mutate_build.build(base, ours)
    os.environ.update(ours)
    for module in ("hypothesis", "numpy", "pytest", "safetensors.torch", "torch"):
        importlib.import_module(module)  # for the forks of `run_tests`
    with jobs(options.jobs, base, plan) as pool:
        yield from judge_in_turn(chosen, options.jobs, plan, pool)


def judge_in_turn(
    chosen: list[Mutant], at_once: int, plan: Plan, pool: ProcessPoolExecutor
) -> Iterator[tuple[Mutant, Verdict]]:
    """A mutant as soon as its tests were tried without it; so the first verdicts come early."""
    tests = {m.name: [] if skipped(m, plan) else m.tests.split() for m in chosen}
    waiting, trying = list(chosen), set[str]()
    running: dict[Future[Any], Mutant | str] = {}
    while waiting or running:
        while len(running) < at_once and (task := next_task(waiting, tests, trying, plan)):
            if isinstance(task, Mutant):
                waiting.remove(task)
                running[pool.submit(judge_here, task, plan.seconds, plan.failing)] = task
            else:
                trying.add(task)
                running[pool.submit(try_here, task)] = task
        for done in wait(running, return_when=FIRST_COMPLETED).done:
            task = running.pop(done)
            if isinstance(task, str):
                note(task, *done.result(), plan)
            elif error := done.exception():  # of this one; the others are judged
                yield task, Verdict("BROKEN", repr(error))
            else:
                yield task, done.result()


def skipped(mutant: Mutant, plan: Plan) -> bool:
    """Whether it is judged without a test."""
    return mutant.breaks_build or bool(mutant.isa and mutant.isa not in plan.isas)


def next_task(
    waiting: list[Mutant], tests: dict[str, list[str]], trying: set[str], plan: Plan
) -> Mutant | str | None:
    """The first mutant, or the first of its tests; later ones while these run, None for none."""
    for mutant in waiting:
        if all(test in plan.seconds for test in tests[mutant.name]):
            return mutant
        if new := [test for test in tests[mutant.name] if test not in trying]:
            return new[0]
    return None


def note(test: str, done: Outcome, seconds: int, plan: Plan) -> None:
    """Without a bug a test passes; a mutant whose tests do not is not tried."""
    plan.seconds[test] = seconds
    if done.code != 0:
        plan.failing[test] = done.said
        said = f"{done.said[:SAID_AT_MOST]}\n...\n{done.said[-SAID_AT_MOST:]}"
        print(f"{test} fails without a mutant:\n{said}", flush=True)


if __name__ == "__main__":
    if not shutil.which("ninja"):
        raise SystemExit("ninja is missing")
    sys.exit(main(sys.argv[1:]))
