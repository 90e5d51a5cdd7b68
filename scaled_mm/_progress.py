"""Progress on stderr: one display at a time, silent where that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_shown: list[Progress] = []


@contextmanager
def progress_display(console: Console | None = None) -> Iterator[Progress]:
    """The display that is shown already, or a new one on this console, None being stderr. It goes
    when this is done."""
    if _shown:
        yield _shown[-1]
        return
    # Here, so that `import scaled_mm` does without rich.
    import rich.console
    from rich.progress import Progress, TextColumn

    console = console or rich.console.Console(stderr=True)
    columns = (
        TextColumn("{task.description}", style="progress.description", markup=False),
        *Progress.get_default_columns()[1:],
    )
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bars as display:
        _shown.append(display)
        try:
            yield display
        finally:
            _shown.pop()


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar, whose title no file has written: yields what advances it by one."""
    with progress_display() as display:
        task = display.add_task(title, total=total)
        try:
            yield lambda: display.advance(task)
        finally:
            display.remove_task(task)
