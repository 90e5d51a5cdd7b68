"""The figures of the verdicts so far, as Markdown, in a document.

python tests/mutate_record.py                        print them
python tests/mutate_record.py docs/reliability.md    between this file's two marks there
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import mutate
from mutant import Mutant
from mutants import MUTANTS

BEGIN, END = "<!-- mutate_record.py: begin -->", "<!-- mutate_record.py: end -->"
WORDS = {"killed": "killed", "equivalent": "cannot matter", "SURVIVED": "survived"}


def language(mutant: Mutant) -> str:
    if mutant.gpu:
        return "CUDA"
    return "C++" if mutant.compiled else "Python"


def table(mutants: Sequence[Mutant], verdicts: Mapping[str, str]) -> str:
    """`verdicts`: the word for each name that was judged; what has another word counts as open."""
    counts: Counter[tuple[str, str]] = Counter()
    for mutant in mutants:
        word = WORDS.get(verdicts.get(mutant.name, ""), "not judged")
        for kind in (language(mutant), "all"):
            counts[kind, word] += 1
            counts[kind, "planted"] += 1
    columns = ["planted", *WORDS.values(), "not judged"]
    lines = [f"| | {' | '.join(columns)} |", "|---" + "|---:" * len(columns) + "|"]
    for kind in ("Python", "C++", "CUDA", "all"):
        lines.append(f"| {kind} | {' | '.join(str(counts[kind, x]) for x in columns)} |")
    return "\n".join(lines)


def record(text: str, figures: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """The document with these figures between the marks.

    Raises:
        SystemExit: a mark is missing.
    """
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise SystemExit(f"the document must hold {marks[0]} and {marks[1]}")
    return f"{before}{begin}\n{figures}\n{end}{after}"


def main(arguments: list[str]) -> None:
    report = mutate.Report(mutate.REPORT)
    figures = table(MUTANTS, {name: verdict.word for name, verdict in report.verdicts.items()})
    if not arguments:
        print(figures)
    for path in map(Path, arguments):
        path.write_text(record(path.read_text(), figures))


if __name__ == "__main__":
    main(sys.argv[1:])
