"""The options of each command, a module for each: a help text needs no more of the command."""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Default: torch's own.")]
