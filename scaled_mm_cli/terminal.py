"""What reaches the terminal: printable characters.

Names of files, tensors and layers come from files that others wrote. Raw, an ESC, a BEL, a U+009B
or a U+202E among them could move the cursor, forge a line or turn a name around.

printable(text)   a name on one line: what does not print stands there as its escape, "\\x1b";
                  cell and lines do this for rich, print_json for JSON
Console           rich's, for tables and bars: all that it prints goes the same way
guarded()         so do stdout and stderr for a while: prints, warnings, logs of other packages
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

import rich.console
from rich.segment import Segment
from rich.text import Text

LAYOUT = "\n\t"
"""What does not print and yet is no harm where text is laid out in lines."""


def printable(text: object, keep: str = "") -> str:
    """`text` with each character for which `str.isprintable` is false as its Python escape, but
    those in `keep`. A lone surrogate, as in the name of a file that is not UTF-8, is one of them.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def cell(text: object) -> Text:
    """A name for a table of rich: printable, and its brackets are no markup."""
    return Text(printable(text))


def lines(console: rich.console.Console, *texts: object, style: str = "") -> None:
    """Print each text as one line, however long."""
    for text in texts:
        console.print(Text(printable(text), style), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print JSON in ASCII. json leaves one character of it that does not print, DEL."""
    print(json.dumps(value, indent=1).replace("\x7f", "\\u007f"))


class Console(rich.console.Console):
    """rich's console on stdout or stderr, without markup. What it renders is made printable; the
    control sequences are rich's own."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        file = options.pop("file", None) or _behind(sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, markup=False, emoji=False, highlight=False, **options)

    def render(
        self,
        renderable: rich.console.RenderableType,
        options: rich.console.ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=printable(segment.text, LAYOUT))

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich's own hook ends the process with exit code 1


class _Guarded:
    """A stream to which only printable characters and `LAYOUT` are written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # What a console of rich looks for: its control sequences must go through, and what it
        # prints has come through `Console.render` above.
        self.rich_proxied_file = _behind(stream)

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # callers try which kind of stream this is
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        self._stream.write(printable(text, LAYOUT))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _behind(stream: TextIO) -> TextIO:
    """The stream itself, behind those that only pass on."""
    while (next_one := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = next_one
    return stream


@contextmanager
def guarded() -> Iterator[None]:
    """For a while, what is written to stdout and stderr is made printable. A character that the
    stream's encoding lacks is written as its escape too, from now on."""
    before = sys.stdout, sys.stderr
    for stream in map(_behind, before):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, _Guarded(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
