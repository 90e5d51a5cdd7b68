"""Progress on stderr: one display at a time, silent where that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_shown: list[Progress] = []


@contextmanager
def progress_display() -> Iterator[Progress]:
    """The display that is shown already, or a new one, which goes when this is done."""
    if _shown:
        yield _shown[-1]
        return
    # Here, so that `import scaled_mm` does without rich.
    from rich.progress import Progress, TextColumn

    from scaled_mm_cli.terminal import Console, guarded, is_guarded

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", style="progress.description", markup=False),
        *Progress.get_default_columns()[1:],
    )
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    # While they show, streams of rich's stand before those that were guarded.
    again = guarded() if is_guarded() else nullcontext()
    with bars as display, again:
        _shown.append(display)
        try:
            yield display
        finally:
            _shown.pop()


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar: yields what advances it by one."""
    with progress_display() as display:
        task = display.add_task(title, total=total)
        try:
            yield lambda: display.advance(task)
        finally:
            display.remove_task(task)
