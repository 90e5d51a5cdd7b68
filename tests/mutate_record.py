"""The verdicts so far: kept in docs/validation/mutants.json, and their figures in a document.

python tests/mutate_record.py                        print the figures
python tests/mutate_record.py docs/reliability.md    put them between this file's two marks there,
                                                     and keep the verdicts
python tests/mutate_record.py --of gpu.json ...      with the good ones of another machine's report

Below the figures stands how many verdicts are of earlier sources: the mutant, its file or a file of
its tests has changed since.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mutant import Mutant
from mutants import MUTANTS
from mutate_report import KEPT, REPORT, Report

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


def together(paths: Sequence[Path], kept: Path) -> Report:
    """What these reports say of the mutants, to be written to `kept`: verdicts of these sources
    before others, good ones before others, else those of the first."""
    reports = [Report(path) for path in paths]
    whole = Report(kept)
    whole.verdicts = {}
    for mutant in MUTANTS:
        having = [report for report in reports if mutant.name in report.verdicts]
        having.sort(key=lambda report: (not report.current(mutant), not report.known(mutant)))
        if having:
            whole.verdicts[mutant.name] = having[0].verdicts[mutant.name]
    return whole


def figures_of(report: Report) -> str:
    judged = [mutant for mutant in MUTANTS if mutant.name in report.verdicts]
    earlier = sum(not report.current(mutant) for mutant in judged)
    words = {mutant.name: report.verdicts[mutant.name].word for mutant in judged}
    return f"{table(MUTANTS, words)}\n\nVerdicts of earlier sources: {earlier}."


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("document", nargs="?", type=Path)
    parser.add_argument("--of", type=Path, action="append", default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    whole = together([REPORT, KEPT, *options.of], KEPT)
    figures = figures_of(whole)
    if options.document is None:
        print(figures)
    else:
        options.document.write_text(record(options.document.read_text(), figures))
        whole.write()


if __name__ == "__main__":
    main(sys.argv[1:])
