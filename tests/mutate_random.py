"""Random bugs in the Python sources, for those that nobody thought of: operators exchanged,
conditions that never hold, statements left out.

    python tests/mutate_random.py 100                     so many, others at every commit
    python tests/mutate_random.py 100 --seed x --jobs 2

Each is tried with the tests that planted bugs of its file name, or of its folder where there are
none. A survivor is a question: another test may notice it, or nothing can. One that is a gap gets a
test, and a line in mutants_random.py.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping

import mutate
from mutant import Mutant
from mutants import MUTANTS

LEFT_OUT = ("bench", "cli", "demo")  # what they print is read by people
AT_MOST = 6  # files of tests for a bug
EXCHANGED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not",
    "is not": "is", "in": "not in", "not in": "in", "and": "or", "or": "and",
    "+": "-", "-": "+", "*": "+", "//": "*", "/": "*", "%": "//",
}  # fmt: skip
Edit = tuple[int, int, str]  # begin, end, what stands there instead


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All but annotations and messages."""
    yield node
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns") or isinstance(node, (ast.Raise, ast.JoinedStr)):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield from nodes(child)


def edits(source: bytes) -> Iterator[Edit]:
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def begin(node: ast.AST) -> int:
        return lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end(node: ast.AST) -> int:
        return lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def exchanged(left: ast.AST, right: ast.AST) -> Iterator[Edit]:
        between = source[end(left) : begin(right)].decode()
        if (operator := between.strip()) in EXCHANGED:
            yield end(left), begin(right), between.replace(operator, EXCHANGED[operator])

    for node in nodes(ast.parse(source)):
        match node:
            case ast.Compare(left=left, comparators=[right]) | ast.BinOp(left=left, right=right):
                yield from exchanged(left, right)
            case ast.BoolOp(values=[left, right, *_]):
                yield from exchanged(left, right)
            case ast.Constant(value=bool(value)):
                yield begin(node), end(node), str(not value)
            case ast.Constant(value=int(value)):
                yield begin(node), end(node), str(value + 1)
            case ast.UnaryOp(op=ast.Not()):
                yield begin(node), begin(node) + len("not"), ""
            case ast.If(test=test):
                yield begin(test), end(test), "False"
            case ast.Expr(value=ast.Call()):
                yield begin(node), end(node), "pass"


def tests_of(path: str, planted: Mapping[str, Counter[str]]) -> str:
    folder = path.rpartition("/")[0]
    beside = (found for other, found in planted.items() if other.rpartition("/")[0] == folder)
    found = planted.get(path) or sum(beside, Counter[str]())
    return " ".join(test for test, _ in found.most_common(AT_MOST))


def mutants_of(path: str, source: bytes, tests: str) -> Iterator[Mutant]:
    for begin, end, text in edits(source):
        first, last = source.rfind(b"\n", 0, begin) + 1, source.find(b"\n", end)
        while source.count(source[first:last]) > 1:  # more lines, until they stand once
            first, last = source.rfind(b"\n", 0, first - 1) + 1, source.find(b"\n", last + 1)
        old = source[first:last].decode()
        new = (source[first:begin] + text.encode() + source[end:last]).decode()
        line = source.count(b"\n", 0, begin) + 1
        was = " ".join(source[begin:end].decode().split())
        yield Mutant(f"{path}:{line}: {was!r} is {text.strip()!r}", path, old, new, tests)


def possible() -> list[Mutant]:
    planted: dict[str, Counter[str]] = {}
    for mutant in MUTANTS:
        if not mutant.path.startswith("csrc"):
            files = (test.partition("::")[0] for test in mutant.tests.split())
            planted.setdefault(mutant.path, Counter()).update(files)
    made = []
    for file in sorted((mutate.ROOT / "scaled_mm").rglob("*.py")):
        path = str(file.relative_to(mutate.ROOT))
        tests = tests_of(path, planted)
        if tests and path.split("/")[1] not in LEFT_OUT:
            made += mutants_of(path, file.read_bytes(), tests)
    return made


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", default=mutate.commit())
    parser.add_argument("--jobs", type=int, default=1)
    parser.set_defaults(gpu=False, isas="", rows=None)
    options = parser.parse_args(arguments)
    chosen = random.Random(options.seed).sample(possible(), options.count)
    counts: Counter[str] = Counter()
    for mutant, verdict in mutate.judge_all(chosen, options):
        counts[verdict.word] += 1
        said = f"{verdict.word:10} {verdict.seconds:4} s  {mutant.name}  {verdict.detail}"
        print(said, flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))


if __name__ == "__main__":
    main(sys.argv[1:])
