"""Options of `scaled-mm tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..words import FAMILIES


def options(
    family: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(FAMILIES)}; may be repeated. Default: all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Keep the times.")] = None,
    read: Annotated[
        Path | None,
        typer.Option(help="Fit the times in this JSON, show the numbers; measure, keep nothing."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure and fit, keep nothing.")
    ] = False,
    removing: Annotated[
        bool, typer.Option("--remove", help="Forget what was measured on this GPU.")
    ] = False,
) -> None:
    """See `scaled_mm_cli.commands.tune.command`."""
