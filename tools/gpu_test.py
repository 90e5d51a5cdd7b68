"""Runs the GPU tests, a process for each file, and adds up what they compared.

    python tools/gpu_test.py [--record FILE.md] [pytest options, such as -m "gpu and slow"]

One process alone leaves the GPU idle most of the time: the CPU backend and the reference, which it
is compared with, take longer. The record names the machine, the commit and the counts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import scaled_mm

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/gpu-test"
DEFAULT = ["-m", "gpu and not slow"]


@dataclass(frozen=True)
class Outcome:
    file: str
    passed: bool
    summary: str
    cases: int
    elements: int
    different: int


def start(file: Path, options: list[str]) -> subprocess.Popen[bytes]:
    threads = max(1, (os.cpu_count() or 1) // 8)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--maxfail=20", str(file)]
    log = (LOGS / f"{file.stem}.txt").open("wb")
    return subprocess.Popen(
        [*command, *options], cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT
    )


def outcome(file: Path, code: int) -> Outcome:
    lines = (LOGS / f"{file.stem}.txt").read_text().splitlines()
    summary = next((s for s in reversed(lines) if re.search(r"\d+ (passed|failed|error)", s)), "")
    counts = next((s for s in lines if s.startswith("all: ")), "")
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", counts)] or [0, 0, 0]
    return Outcome(file.stem, code == 0, summary.strip("= "), *numbers[:3])


def record(outcomes: list[Outcome]) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    library = scaled_mm._library
    kernels = ", ".join(
        f"{len(library.cuda_kernels(arch, family))} {family} of {arch}"
        for arch in library.cuda_archs()
        for family in library.FAMILIES
    )
    facts = [
        f"commit {commit or 'unknown'}",
        torch.cuda.get_device_name(),
        f"torch {torch.__version__}, CUDA {torch.version.cuda}",
        f"scaled_mm {scaled_mm.__version__}; kernels: {kernels}",
    ]
    rows = [
        f"| {o.file} | {o.summary} | {o.cases:,} | {o.elements:,} | {o.different} |"
        for o in outcomes
    ]
    cases, elements = sum(o.cases for o in outcomes), sum(o.elements for o in outcomes)
    rows.append(f"| all | | {cases:,} | {elements:,} | {sum(o.different for o in outcomes)} |")
    head = ["| file | pytest | cases | elements | different |", "|---|---|---:|---:|---:|"]
    return "\n".join(["; ".join(facts), "", *head, *rows]) + "\n"


def main(arguments: list[str]) -> int:
    path = None
    if arguments[:1] == ["--record"]:
        path, arguments = Path(arguments[1]), arguments[2:]
    LOGS.mkdir(parents=True, exist_ok=True)
    files = sorted(ROOT.glob("tests/test_cuda_*.py"))
    running = {file: start(file, arguments or DEFAULT) for file in files}
    outcomes = [outcome(file, process.wait()) for file, process in running.items()]
    text = record(outcomes)
    print(text)
    if path is not None:
        path.write_text(text)
    for each in outcomes:
        if not each.passed:
            print(f"FAILED: {each.file}, see {LOGS / each.file}.txt", file=sys.stderr)
    return int(not all(each.passed for each in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
