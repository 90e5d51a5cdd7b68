"""The commands of `scaled-mm`, a module for each; main.py calls them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scaled_mm import _progress

from ..terminal import Console, guarded

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def progress_display() -> Iterator[Progress]:
    """The library's bars, for as long as a command works, and all that is printed meanwhile: rich
    then puts streams of its own before stdout and stderr, so these are guarded once more."""
    with _progress.progress_display(Console(stderr=True)) as display, guarded():
        yield display
