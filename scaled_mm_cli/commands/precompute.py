"""`scaled-mm precompute`: the azp terms of a checkpoint, added to it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from rich.console import Console as RichConsole

from scaled_mm.checkpoint.precompute import PrecomputeReport, precompute

from ..terminal import lines
from . import progress_display, shards_of, tell


def show(report: PrecomputeReport, console: RichConsole) -> None:
    """The report as a table: a line for each shard, then what needs attention."""
    console.print(shards_of(report, "terms added", "terms"))
    added = Counter(term.name for term in report.terms if term.added)
    there = sum(not term.added for term in report.terms)
    found = [f"{name}: added to {count} layers" for name, count in sorted(added.items())]
    found += [f"{there} layers had their term already"] * (there > 0)
    if report.symmetric:
        found.append(f"{len(report.symmetric)} layers are symmetric and need none")
    found += [
        f"{term.layer}: zero point {term.rounded_from:g} rounded to {term.zero_point}"
        for term in report.terms
        if term.rounded_from is not None
    ]
    if report.copied:
        found.append(f"copied along: {', '.join(report.copied)}")
    if report.left_out:
        found.append(f"left out: {', '.join(report.left_out)}")
    rate = report.bytes / report.seconds / 1e6
    found.append(f"{report.bytes / 1e6:,.1f} MB in {report.seconds:.2f} s, {rate:,.0f} MB/s")
    lines(console, *found)


def command(given: SimpleNamespace) -> None:
    with progress_display() as display:
        bar = display.add_task("precompute")
        report = precompute(
            given.checkpoint,
            given.out,
            lambda done, total: display.update(bar, advance=done, total=total),
        )
    tell(report, show, given.as_json)
