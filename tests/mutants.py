"""The bugs that tests/mutate.py plants: each is one place of one file and the tests that must fail.
Many have shipped in other libraries (catalogue.md says which), the rest are slips of the hand."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mutants_checkpoint
import mutants_cpu
import mutants_cuda
import mutants_engines
import mutants_files
import mutants_fuse
import mutants_host
import mutants_kernels
import mutants_layers
import mutants_lowbit
import mutants_models
import mutants_ops
import mutants_parallel
import mutants_problems
import mutants_producers
import mutants_product
import mutants_random
import mutants_units
import mutants_validate
import mutants_weights
import mutants_writers
from mutant import Mutant

PARTS = (
    mutants_product,
    mutants_cpu,
    mutants_lowbit,
    mutants_host,
    mutants_problems,
    mutants_ops,
    mutants_layers,
    mutants_models,
    mutants_validate,
    mutants_files,
    mutants_fuse,
    mutants_checkpoint,
    mutants_engines,
    mutants_producers,
    mutants_writers,
    mutants_parallel,
    mutants_weights,
    mutants_cuda,
    mutants_kernels,
    mutants_units,
    mutants_random,
)
MUTANTS: list[Mutant] = [mutant for part in PARTS for mutant in part.MUTANTS]


def stale(root: Path) -> list[str]:
    """What does not fit the sources under root, a line for each: file and text."""
    lines = []
    for mutant in MUTANTS:
        path = root / mutant.path
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        count = text.count(mutant.old) if path.is_file() else None
        if count is None:
            lines.append(f"{mutant.name}: there is no file {mutant.path}")
        elif count != 1:
            lines.append(f"{mutant.name}: {mutant.path} holds {count} times {mutant.old!r}")
        elif path.suffix == ".py" and (error := unparsed(text.replace(mutant.old, mutant.new))):
            lines.append(f"{mutant.name}: {mutant.path} would not parse: {error}")
        missing = [test for test in mutant.tests.split() if not has_test(root, test)]
        lines += [f"{mutant.name}: there is no test {test}" for test in missing]
    return lines


def unparsed(text: str) -> str:
    """Why it is no Python: every test would fail then, and nothing would be shown."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return str(error)
    return ""


def has_test(root: Path, test: str) -> bool:
    """Whether there is a "test_file", a "test_file::test_function" or one with "[id]" behind it."""
    file, _, function = test.partition("::")
    function = function.partition("[")[0]
    path = root / f"tests/{file}.py"
    if not path.is_file():
        return False
    return not function or bool(re.search(rf"^def {function}\(", path.read_text(), re.MULTILINE))
