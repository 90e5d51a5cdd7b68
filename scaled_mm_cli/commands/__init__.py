"""The commands of `scaled-mm`, a module for each; main.py calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from scaled_mm import _progress

from ..terminal import Console, cell, guarded, print_json

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def progress_display() -> Iterator[Progress]:
    """The library's bars, for as long as a command works, and all that is printed meanwhile: rich
    then puts streams of its own before stdout and stderr, so these are guarded once more."""
    with _progress.progress_display(Console(stderr=True)) as display, guarded():
        yield display


def tell(report: Any, show: Callable[[Any, Console], None], as_json: bool) -> None:
    """The report on the terminal, or as JSON."""
    if as_json:
        print_json(asdict(report))
    else:
        show(report, Console())


def shards_of(report: Any, heading: str, count: str) -> Table:
    """A line for each shard that was written: its size, and its `count` under `heading`."""
    table = Table(box=box.SIMPLE_HEAD, title=cell(f"{report.checkpoint} -> {report.out}"))
    table.add_column("shard")
    for title in ("MB", heading):
        table.add_column(title, justify="right")
    table.add_column("")
    for shard in report.shards:
        remark = "was there already" if shard.skipped else ""
        size = f"{shard.bytes / 1e6:,.1f}"
        table.add_row(cell(shard.name), size, str(getattr(shard, count)), remark)
    return table
